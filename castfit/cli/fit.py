"""``castfit fit``: one problem, one method, against its reference optimum if it has one."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import castfit
from castfit._support.json_codec import finite
from castfit.cli.command import (
    FAILED,
    INTERRUPTED,
    Command,
    add_options,
    add_problem,
    assignments,
    check_outputs,
    literal,
    write_json,
)
from castfit.cli.method import add_method, make_solver, make_transcription, solver_name
from castfit.cli.source import Source, load
from castfit._support.status import InputError, Status, check, suggest

if TYPE_CHECKING:
    from castfit.fit.methods import Transcription
    from castfit.result.result import Result


def _configure_fit(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit fit NAME|FILE.py|FILE.yaml [options]"
    add_problem(parser)
    add_fit(parser)
    add_options(parser, "json", "plot", "save", max_time=math.inf, seed=0)
    parser.add_argument("-v", "--verbose", action="count", default=0, help="report each solve; twice: each iteration")


def add_fit(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how to fit, and from where."""
    method = parser.add_argument_group("method")
    add_method(method)
    method.add_argument(
        "--start",
        metavar="START",
        help="a start with a name, such as reference; random; or name=value,... "
        "(default: the problem's own start for the transcription, or else reference)",
    )


def _fit(arguments: argparse.Namespace) -> int:
    """Fit one problem and compare with its reference optimum."""
    from castfit.cli import console as _console

    check_outputs(arguments)
    source = load(arguments.name, arguments.option)
    kind = arguments.transcription or source.transcription
    transcription = make_transcription(source, kind, vars(arguments))
    start = read_start(source, kind, arguments.start, arguments.seed)
    verbose = min(arguments.verbose, 2)
    solver = solver_name(source, kind, arguments.solver)
    result = fit_source(source, transcription, start, solver, max_time=arguments.max_time, verbose=verbose)
    console = _console.console(stderr=arguments.json == "-")
    console.print(result.summary(), markup=False, soft_wrap=True)
    if source.reference is not None and math.isfinite(result.chi2):
        sentence, table = _console.against_reference(result, source.reference)
        console.print()
        console.print(_console.shown(table))
        console.print(sentence, markup=False)
    write_json(fit_record(source.name, solver, result), arguments.json)
    if arguments.plot:
        result.plot(arguments.plot)
    if arguments.save:
        result.save(arguments.save)
    return exit_status([result])


def read_start(source: Source, kind: str, text: str | None, seed: int) -> Mapping[str, float]:
    """Read a start: by default the problem's own for this transcription."""
    own = source.starts.get(kind, source.starts["reference"])
    if text is None:
        return own
    if text == "random":
        import numpy as np

        check("--seed", [f"the seed is {seed}; give a number that is not negative"] if seed < 0 else [])
        return source.draw_start(np.random.default_rng(seed))
    if text in source.starts:
        return source.starts[text]
    if "=" not in text:
        known = [*source.starts, "random", "name=value,..."]
        raise InputError("--start", [f"'{text}' is no start of '{source.name}': {suggest(text, known)}"])
    given = {name: literal(value) for name, value in assignments(text.split(","), "--start").items()}
    check("--start", [f"'{n}' is {v!r}; give a number" for n, v in given.items() if not isinstance(v, (int, float))])
    return {**own, **given}


def fit_source(
    source: Source,
    transcription: Transcription,
    start: Mapping[str, float],
    solver: str,
    *,
    max_time: float = math.inf,
    verbose: int = 0,
) -> Result:
    """Fit a problem, with progress on standard error."""
    from castfit.cli import console as _console

    what = f"{source.name}, {transcription.label}"
    # Lines of progress would spoil the moving one, and must not mix with JSON.
    with _console.progress(silent=verbose > 0) as show, contextlib.redirect_stdout(sys.stderr):
        show(what)
        return castfit.fit(
            source.problem,
            transcription,
            make_solver(solver),
            start=start,
            max_time=max_time,
            callback=lambda now: show(f"{what}: iteration {now.iteration}, chi2 {now.chi2:.6g}"),
            verbose=verbose,
        )


def fit_record(name: str, solver: str, result: Result) -> dict[str, Any]:
    """Return what --json writes; what is not finite becomes None."""
    import numpy as np

    assert result.problem is not None
    points = [condition.points for condition in result.problem.conditions]
    sigma = np.concatenate([p.sigma[p.mask] for p in points])

    return finite(
        {
            "problem": name,
            "transcription": result.transcription,
            "solver": result.solver,
            "success": result.success,
            "status": result.status.value,
            "message": result.message,
            "parameters": result.values,
            "standard_errors": result.standard_errors,
            "chi2": result.chi2,
            "sse": float(np.sum((sigma * result.residuals) ** 2)),
            "n_data": result.n_data,
            "iterations": result.iterations,
            "time": result.time,
        }
    )


def exit_status(results: Sequence[Result]) -> int:
    """Return 0 if all fits succeeded, otherwise what says why not."""
    if any(result.status is Status.INTERRUPTED for result in results):
        return INTERRUPTED
    return 0 if all(result.success for result in results) else FAILED


COMMAND = Command(
    "fit",
    "fit one problem, and compare with its reference optimum if it has one",
    _configure_fit,
    _fit,
    (
        "castfit fit stat5 --plot stat5.png",
        "castfit fit calcium --transcription multiple --intervals 25 --start random --rng 3",
        "castfit fit decay.py --save decay.json",
        "castfit fit notorious --option mu=20 --start p=100 --transcription collocation",
    ),
)
