"""``castfit fit``: one problem, one method, against its reference optimum if it has one."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import castfit
from castfit._support.json_codec import replace_nonfinite
from castfit._support.status import InputError, Status, raise_if_mistakes, suggest
from castfit.cli.command import (
    FAILED,
    INTERRUPTED,
    Command,
    argument,
    parse_literal,
    split_assignments,
    verbose_argument,
    write_results,
)  # fmt: skip
from castfit.cli.source import ProblemSource, load
from castfit.fit.methods import SOLVERS, TRANSCRIPTIONS, Solver, Transcription

if TYPE_CHECKING:
    from castfit.fit.methods import Transcription
    from castfit.result.result import Result
    from castfit.solve.solution import Iteration


SETTINGS = ("intervals", "elements", "degree", "states", "derivatives", "matching")  # of transcriptions
_SOLVERS: Mapping[str, Callable[[], Solver]] = {name.replace("_", "-"): make for name, make in SOLVERS.items()}


PARTS = (
    argument(
        "--transcription",
        choices=TRANSCRIPTIONS,
        help="(default: single or collocation, by predicted time; for a PEtab file single, from its nominal values)",
    ),
    argument(
        "--solver",
        choices=_SOLVERS,
        help="box is gauss-newton with a trust region, for parameters known only to an order of magnitude (default: "
        "gauss-newton; box for a PEtab file with single shooting)",
    ),
)
METHOD = (  # the method and the start of a fit
    *PARTS,
    argument("--intervals", type=parse_literal, metavar="N|data", help="number of multiple-shooting intervals"),
    argument("--elements", type=parse_literal, metavar="N|auto|data", help="elements of collocation"),
    argument("--degree", type=int, metavar="D", help="collocation points per element"),
    argument(
        "--states",
        choices=("data", "smoothed", "simulation"),
        help="initial states of multiple shooting and collocation (default: as the problem recommends)",
    ),
    argument(
        "--derivatives",
        choices=("auto", "forward", "adjoint"),
        help="derivative method of shooting (default: the faster one)",
    ),
    argument(
        "--matching",
        choices=("vector", "scalar"),
        help="matching conditions of --intervals data --derivatives adjoint (default: vector)",
    ),
    argument(
        "--start",
        metavar="START",
        help="named starting point such as reference; random; or name=value,... (default: the problem's own for the "
        "transcription, else reference)",
    ),
)


def make_transcription(source: ProblemSource, kind: str, options: Mapping[str, Any]) -> Transcription:
    """Make a transcription from what the user gave, what the library recommends, and defaults, in this order."""
    settings = {name: options[name] for name in SETTINGS if options.get(name) is not None}
    accepted = [name for name in SETTINGS if name in inspect.signature(TRANSCRIPTIONS[kind]).parameters]
    remedy = f"it takes {', '.join(f'--{o}' for o in accepted)}" if accepted else "it has no such options"
    raise_if_mistakes(
        "options", [f"--transcription {kind} does not take --{o}; {remedy}" for o in settings if o not in accepted]
    )
    return TRANSCRIPTIONS[kind](**{**source.recommended.get(kind, {}), **settings})


def choose_solver_name(source: ProblemSource, kind: str, requested_name: str | None) -> str:
    """Return a solver's name: the given one, else what suits the problem by this transcription."""
    return requested_name or (source.solver if kind == source.transcription else "gauss-newton")


def make_solver(name: str) -> Solver:
    """Make a solver."""
    return _SOLVERS[name]()


def find_default_methods(source: ProblemSource) -> tuple[Transcription | None, Solver | None]:
    """Return the default transcription and solver of a problem, each None for castfit's own default."""
    transcription = make_transcription(source, source.transcription, {})
    has_own_transcription = (
        source.transcription in source.recommended or source.transcription != ProblemSource.transcription
    )
    return (
        transcription if has_own_transcription else None,
        None if source.solver == ProblemSource.solver else make_solver(source.solver),
    )


@dataclass(frozen=True)
class FitCall:
    """A problem, and by what and from where it is fitted."""

    source: ProblemSource
    transcription: Transcription
    solver: str
    start: Mapping[str, float]

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> FitCall:
        """Read the options of the command. Missing options take the defaults of the kind of problem."""
        source = load(arguments.name, arguments.option)
        option_names = ("transcription", "solver", *SETTINGS, "start")
        passed_options = [name for name in option_names if getattr(arguments, name, None) is not None]
        if source.problem.posed.model.noises:
            reason = "has no effect for models with process noise, whose path is estimated by its likelihood; remove it"
            raise_if_mistakes("options", [f"--{name} {reason}" for name in passed_options if name != "start"])
        if getattr(arguments, "guess", False):
            raise_if_mistakes(
                "options",
                [f"--{name} sets how to fit, but --guess skips the fit; remove one of them" for name in passed_options],
            )
        kind = arguments.transcription or source.transcription
        transcription = make_transcription(source, kind, vars(arguments))
        has_noises = bool(
            source.problem.posed.model.noises
        )  # whose random initial states are no quantities to start at
        start: Mapping[str, float] = dict[str, float]()
        if not has_noises or arguments.start is not None:
            start = read_start(source, kind, arguments.start, arguments.seed)
        return cls(source, transcription, choose_solver_name(source, kind, arguments.solver), start)

    def run(self, *, max_time: float = math.inf, verbose: int = 0) -> Any:
        """Fit the problem, with progress on standard error; a model with noises gives a `PathResult`."""
        from castfit.cli import console as screen

        has_noises = bool(self.source.problem.posed.model.noises)
        method = "path" if has_noises else self.transcription.label
        label = f"{self.source.name}, {method}"

        def format_progress(iteration: Iteration) -> str:
            return f"{label}: iteration {iteration.iteration}, {iteration.measure} = {iteration.objective:.6g}"

        # Lines of progress would spoil the moving one, and must not mix with JSON.
        with screen.show_progress(silent=verbose > 0) as show, contextlib.redirect_stdout(sys.stderr):
            show(label)
            return castfit.fit(
                self.source.problem,
                None if has_noises else self.transcription,
                None if has_noises else make_solver(self.solver),
                start=self.start,
                max_time=max_time,
                callback=lambda iteration: show(format_progress(iteration)),
                verbose=verbose,
            )


def _fit(arguments: argparse.Namespace) -> int:
    """Fit one problem and compare with its reference optimum."""
    from castfit.cli import console as screen

    fit_call = FitCall.from_arguments(arguments)
    source = fit_call.source
    result = fit_call.run(max_time=arguments.max_time, verbose=min(arguments.verbose, 2))
    console = screen.make_console(stderr=arguments.json == "-")
    screen.print_report(console, result.summary())
    if source.reference is not None and isinstance(result, castfit.Result) and math.isfinite(result.chi2):
        sentence, table = screen.compare_with_reference(result, source.reference)
        console.print()
        console.print(screen.stack_tables(table))
        console.print(sentence, markup=False)
    is_path = isinstance(result, castfit.PathResult)
    record = build_path_record(source.name, result) if is_path else build_fit_record(source.name, result)
    write_results(arguments, record, result)
    return find_exit_status([result])


def read_start(source: ProblemSource, kind: str, text: str | None, seed: int) -> Mapping[str, float]:
    """Read a start: by default the problem's own for this transcription."""
    default_start = source.find_start(kind)
    raise_if_mistakes("--rng", [f"the seed is {seed}; give a number that is not negative"] if seed < 0 else [])
    if text is None:
        return default_start
    if text == "random":
        import numpy as np

        return source.draw_start(np.random.default_rng(seed))
    if text in source.starts:
        return source.starts[text]
    if "=" not in text:
        start_names = [*source.starts, "random", "name=value,..."]
        raise InputError("--start", [f"unknown start '{text}' of '{source.name}': {suggest(text, start_names)}"])
    values = {name: parse_literal(value) for name, value in split_assignments(text.split(","), "--start").items()}
    raise_if_mistakes(
        "--start", [f"'{n}' is {v!r}; give a number" for n, v in values.items() if not isinstance(v, (int, float))]
    )
    return {**default_start, **values}


def build_fit_record(name: str, result: Result) -> dict[str, Any]:
    """Return the record for ``--json``. Non-finite numbers become None."""
    import numpy as np

    assert result.problem is not None
    points = [condition.points for condition in result.problem.conditions]
    sigma = np.concatenate([p.sigma[p.mask] for p in points])

    return replace_nonfinite(
        {
            "problem": name,
            "transcription": result.transcription,
            "solver": result.solver,
            "success": result.success,
            "described": result.is_adequate,
            "status": result.status.value,
            "message": result.message,
            "parameters": result.values,
            "standard_errors": result.standard_errors,
            "measure": result.measure,
            "objective": result.objective,
            "chi2": result.chi2,
            "sse": float(np.sum((sigma * result.residuals) ** 2)),
            "n_data": result.n_data,
            "iterations": result.iterations,
            "time": result.time,
        }
    )


def build_path_record(name: str, result: castfit.PathResult) -> dict[str, Any]:
    """Return the JSON record of a fit of a model with process noise."""
    field_names = (
        "success",
        "message",
        "standard_errors",
        "log_likelihood",
        "n_data",
        "iterations",
        "time",
    )
    values = {n: getattr(result, n) for n in field_names} | {"described": result.is_adequate}
    return replace_nonfinite({"problem": name, "status": result.status.value, "parameters": result.values, **values})


def find_exit_status(results: Sequence[Any]) -> int:
    """Return 0 if all fits succeeded and describe their data, otherwise what says why not."""
    if any(result.status is Status.INTERRUPTED for result in results):
        return INTERRUPTED
    return 0 if all(result.is_adequate for result in results) else FAILED


COMMAND = Command(
    "fit",
    "fit one problem and compare it with its reference optimum, if known",
    _fit,
    {"json": None, "plot": None, "save": None, "petab": None, "max_time": math.inf, "seed": 0},
    (verbose_argument("each solve; twice: each iteration"),),
    (
        "castfit fit stat5 --plot stat5.png",
        "castfit fit calcium --transcription multiple --intervals 25 --start random --rng 3",
        "castfit fit decay.py --save decay.json",
        "castfit fit problem.yaml --petab found",
        "castfit fit notorious --option mu=20 --start p=100 --transcription collocation",
    ),
    method=METHOD,
)
