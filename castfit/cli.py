"""The command line.

A command is a `Command`: its name, its arguments, and a function that runs it and returns the exit status: 0 for
success, 1 for a fit that failed, 2 for misuse, 130 for an interruption.  That function imports what it needs, so that
``castfit --help`` answers at once.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import castfit
from castfit.status import CastfitError, InputError, Status, check, suggest

if TYPE_CHECKING:
    from castfit.fit import Transcription
    from castfit.problems import Benchmark
    from castfit.result import Result

FAILED, MISUSE, INTERRUPTED = 1, 2, 130

# The name of each choice in castfit, and which options of the command line it takes.
TRANSCRIPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "single": ("SingleShooting", ()),
    "multiple": ("MultipleShooting", ("intervals", "states")),
    "collocation": ("Collocation", ("elements", "degree", "states")),
}
SOLVERS = {"gauss-newton": "GaussNewton", "ipopt": "Ipopt"}


@dataclass(frozen=True)
class Command:
    """A subcommand: `configure` adds its arguments to a parser, `run` takes them and returns the exit status."""

    name: str
    summary: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.
    """
    chosen = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # descriptions hold letters that a terminal may not have
            stream.reconfigure(errors="replace")
    try:
        return chosen.run(chosen)
    except (CastfitError, OSError) as error:
        _say(str(error) if isinstance(error, CastfitError) else f"castfit: {error}", sys.stderr)
        return MISUSE
    except KeyboardInterrupt:
        _say("castfit: interrupted", sys.stderr)
        return INTERRUPTED


def _say(text: str, stream: TextIO) -> None:
    stream.write(text + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="castfit", description="Estimate parameters of ODE and DAE models from measured time courses."
    )
    parser.add_argument("--version", action="version", version=f"castfit {castfit.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = commands.add_parser(command.name, help=command.summary, description=command.summary)
        command.configure(own)
        own.set_defaults(run=command.run)
    return parser


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def _list(arguments: argparse.Namespace) -> int:
    """Show the problem library."""
    from castfit import _console, problems

    _console.console().print(_console.library(problems.load(name) for name in problems.names()))
    return 0


def _configure_fit(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit fit NAME [options]"
    parser.add_argument("name", metavar="NAME", help="problem of the library; see castfit list")
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="options of the problem, such as mu=20",
    )
    method = parser.add_argument_group("method")
    method.add_argument("--transcription", choices=TRANSCRIPTIONS, default="collocation", help="(default: %(default)s)")
    method.add_argument("--intervals", type=_number_or_word, metavar="N|data", help="intervals of multiple shooting")
    method.add_argument("--elements", type=_number_or_word, metavar="N|auto|data", help="elements of collocation")
    method.add_argument("--degree", type=int, metavar="D", help="collocation points per element")
    method.add_argument(
        "--states",
        choices=("data", "smoothed", "simulation"),
        help="where the states of multiple shooting and collocation start (default: as the problem recommends)",
    )
    method.add_argument("--solver", choices=SOLVERS, default="gauss-newton", help="(default: %(default)s)")
    method.add_argument("--max-time", type=float, default=math.inf, metavar="S", help="stop after S seconds")
    method.add_argument(
        "--start",
        metavar="START",
        help="a start with a name, such as reference; random; or name=value,... "
        "(default: the problem's own start for the transcription, or else reference)",
    )
    method.add_argument("--seed", type=int, default=0, metavar="N", help="of the random start (default: %(default)s)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write the estimates as JSON; - is standard output")
    output.add_argument("--plot", metavar="FILE", help="write a figure; the ending decides on the format")
    output.add_argument("--save", metavar="FILE", help="write the whole result; castfit.Result.load reads it")
    output.add_argument("-v", "--verbose", action="count", default=0, help="report each solve; twice: each iteration")


def _fit(arguments: argparse.Namespace) -> int:
    """Fit one problem and compare with its reference optimum."""
    from castfit import _console

    check("output", [*_file_mistakes(arguments.json, arguments.save), *_picture_mistakes(arguments.plot)])
    benchmark = _load(arguments.name, arguments.option)
    transcription = _transcription(benchmark, arguments.transcription, vars(arguments))
    start = _start(benchmark, arguments.transcription, arguments.start, arguments.seed)
    verbose = min(arguments.verbose, 2)
    result = _run(benchmark, transcription, start, arguments.solver, max_time=arguments.max_time, verbose=verbose)
    console = _console.console(stderr=arguments.json == "-")
    console.print(result.summary(), markup=False, soft_wrap=True)
    if math.isfinite(result.chi2):
        sentence, table = _console.against_reference(result, benchmark.reference)
        console.print()
        console.print(table)
        console.print(sentence, markup=False)
    if arguments.json:
        text = json.dumps(_record(arguments.name, arguments.solver, result), indent=2, allow_nan=False)
        if arguments.json == "-":
            _say(text, sys.stdout)
        else:
            Path(arguments.json).write_text(text + "\n")
    if arguments.plot:
        result.plot(arguments.plot)
    if arguments.save:
        result.save(arguments.save)
    return _exit_status([result])


def _configure_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", metavar="FILE", default="castfit-demo.png", help="the picture (default: %(default)s)")


def _demo(arguments: argparse.Namespace) -> int:
    """Fit two problems with measured data by every transcription."""
    from castfit import _console, plots

    check("output", _picture_mistakes(arguments.plot))
    results: dict[str, dict[str, Result]] = {}
    for name in ("stat5", "alpha_pinene"):
        benchmark = _load(name, [])
        for kind in TRANSCRIPTIONS:
            transcription = _transcription(benchmark, kind, {})
            label = transcription.label.partition(" (")[0]
            result = _run(benchmark, transcription, _start(benchmark, kind, None, 0), "gauss-newton")
            if result.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
            results.setdefault(name, {})[label] = result
    console = _console.console()
    console.print(_console.demonstration(results))
    console.print(
        "alpha_pinene starts where the literature does: all rate constants 0.5, up to 25,000 times too large."
    )
    plots.gallery(results, arguments.plot)
    console.print(f"Data, models and residuals are in {arguments.plot}.", markup=False)
    return _exit_status([result for group in results.values() for result in group.values()])


def _configure_bench(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit bench TABLE [options]"
    parser.add_argument(
        "table", metavar="TABLE", help="a published table such as calcium-table1, or condensing-scaling"
    )
    parser.add_argument("--starts", type=int, metavar="N", help="number of starts (default: as many as the paper)")
    parser.add_argument("--seed", type=int, metavar="N", help="draws other noise and other starts")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--methods", metavar="A,B", help="methods to run (default: those of the table)")
    parser.add_argument("--max-time", type=float, default=60.0, metavar="S", help="per start (default: %(default)s s)")
    parser.add_argument("--tolerance", type=float, metavar="T", help="relative tolerance of the integrator")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON; - is standard output")


def _bench(arguments: argparse.Namespace) -> int:
    """Repeat a published table, or time the linear algebra."""
    from castfit import _console, benchmark, problems

    check("output", _file_mistakes(arguments.json))
    console = _console.console(stderr=arguments.json == "-")
    if arguments.table == "condensing-scaling":
        scaling = benchmark.condensing_scaling(rng=arguments.seed or 0)
        console.print(_console.scaling(scaling))
        record = {"table": arguments.table, "rows": [vars(scaling) | {"slopes": scaling.slopes}]}
    else:
        tables = problems.tables()
        name, known = arguments.table, (*tables, "condensing-scaling")
        check("bench", [] if name in tables else [f"there is no table '{name}': {suggest(name, known)}"])
        with _console.progress() as show:
            found = benchmark.run_table(
                tables[name],
                methods=arguments.methods.split(",") if arguments.methods else None,
                starts=arguments.starts,
                seed=arguments.seed,
                workers=arguments.workers,
                max_time=arguments.max_time,
                tolerance=arguments.tolerance,
                progress=show,
            )
        console.print(_console.repeated(found))
        record = found.record()
    if arguments.json:
        text = json.dumps(record, indent=2)
        if arguments.json == "-":
            _say(text, sys.stdout)
        else:
            Path(arguments.json).write_text(text + "\n")
    return 0


COMMANDS = (
    Command("list", "list the problems of the library", _no_arguments, _list),
    Command("fit", "fit one problem and compare with its reference optimum", _configure_fit, _fit),
    Command("bench", "repeat a published table and print it beside ours", _configure_bench, _bench),
    Command("demo", "fit two problems by every transcription, with a table and a picture", _configure_demo, _demo),
)


def _load(name: str, options: Sequence[str]) -> Benchmark:
    """Load a benchmark with its options given as key=value."""
    from castfit import problems

    given = _assignments(options, "--option")
    try:
        return problems.load(name, **{key: _literal(text) for key, text in given.items()})
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError) or not given:
            raise
        raise InputError("--option", [f"problem '{name}' does not take {', '.join(options)}: {error}"]) from error


def _transcription(benchmark: Benchmark, kind: str, given: Mapping[str, Any]) -> Transcription:
    """Make a transcription from what the user gave, what the benchmark recommends, and defaults, in this order."""
    transcription, accepted = TRANSCRIPTIONS[kind]
    every = sorted({option for _, options in TRANSCRIPTIONS.values() for option in options})
    chosen = {option: given[option] for option in every if given.get(option) is not None}
    takes = f"it takes {', '.join(f'--{o}' for o in accepted)}" if accepted else "it has no such options"
    check("options", [f"--transcription {kind} does not take --{o}; {takes}" for o in chosen if o not in accepted])
    states = {"states": benchmark.start_strategy} if "states" in accepted else {}
    return getattr(castfit, transcription)(**{**states, **benchmark.transcriptions.get(kind, {}), **chosen})


def _start(benchmark: Benchmark, kind: str, text: str | None, seed: int) -> Mapping[str, float]:
    """Read a start: by default the benchmark's own for this transcription."""
    own = benchmark.starts.get(kind, benchmark.starts["reference"])
    if text is None:
        return own
    if text == "random":
        import numpy as np

        check("--seed", [f"the seed is {seed}; give a number that is not negative"] if seed < 0 else [])
        return benchmark.draw_start(np.random.default_rng(seed))
    if text in benchmark.starts:
        return benchmark.starts[text]
    if "=" not in text:
        known = [*benchmark.starts, "random", "name=value,..."]
        raise InputError("--start", [f"'{text}' is no start of '{benchmark.name}': {suggest(text, known)}"])
    given = {name: _literal(value) for name, value in _assignments(text.split(","), "--start").items()}
    check("--start", [f"'{n}' is {v!r}; give a number" for n, v in given.items() if not isinstance(v, (int, float))])
    return {**own, **given}


def _run(
    benchmark: Benchmark,
    transcription: Transcription,
    start: Mapping[str, float],
    solver: str,
    *,
    max_time: float = math.inf,
    verbose: int = 0,
) -> Result:
    """Fit a benchmark, with progress on standard error."""
    from castfit import _console

    what = f"{benchmark.name}, {transcription.label}"
    # Lines of progress would spoil the moving one, and must not mix with JSON.
    with _console.progress(silent=verbose > 0) as show, contextlib.redirect_stdout(sys.stderr):
        show(what)
        return castfit.fit(
            benchmark.problem,
            transcription,
            getattr(castfit, SOLVERS[solver])(),
            start=start,
            max_time=max_time,
            callback=lambda now: show(f"{what}: iteration {now.iteration}, chi2 {2 * now.cost:.6g}"),
            verbose=verbose,
        )


def _record(name: str, solver: str, result: Result) -> dict[str, Any]:
    """Return what --json writes; what is not finite becomes None."""
    import numpy as np

    assert result.problem is not None
    points = [condition.points for condition in result.problem.conditions]
    sigma = np.concatenate([p.sigma[p.mask] for p in points])

    def finite(values: Mapping[str, float]) -> dict[str, float | None]:
        return {n: v if math.isfinite(v) else None for n, v in values.items()}

    sums = finite({"chi2": result.chi2, "sse": float(np.sum((sigma * result.residuals) ** 2))})
    return {
        "problem": name,
        "transcription": result.transcription,
        "solver": result.solver,
        "success": result.success,
        "status": result.status.value,
        "message": result.message,
        "parameters": finite(result.values),
        "standard_errors": finite(result.standard_errors),
        **sums,
        "n_data": result.n_data,
        "iterations": result.iterations,
        "time": result.time,
    }


def _exit_status(results: Sequence[Result]) -> int:
    if any(result.status is Status.INTERRUPTED for result in results):
        return INTERRUPTED
    return 0 if all(result.success for result in results) else FAILED


def _file_mistakes(*files: str | None) -> list[str]:
    """Find files that cannot be written, before a long fit rather than after it."""
    mistakes: list[str] = []
    for file in files:
        if file is None or file == "-":
            continue
        path = Path(file)
        if path.is_dir():
            mistakes.append(f"'{file}' is a folder; give a file")
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            mistakes.append(f"'{file}' cannot be written; give a file in a folder that exists and is yours")
    return mistakes


def _picture_mistakes(file: str | None) -> list[str]:
    """Find a picture that cannot be written, or whose ending names no format."""
    from matplotlib.backend_bases import FigureCanvasBase

    if file is None:
        return []
    known = FigureCanvasBase.get_supported_filetypes()
    ending = Path(file).suffix.removeprefix(".").lower()
    wrong = [f"'{file}' has no ending that is a format of pictures; choose .png, .svg or .pdf"]
    return _file_mistakes(file) + (wrong if ending not in known else [])


def _assignments(pairs: Sequence[str], where: str) -> dict[str, str]:
    """Split key=value pairs."""
    split = {key.strip(): (mark, text.strip()) for key, mark, text in (pair.partition("=") for pair in pairs)}
    empty = [key for key, (mark, text) in split.items() if not (mark and text)]
    check(where, [f"'{key}' has no value; write {key}=value" for key in empty])
    return {key: text for key, (_, text) in split.items()}


def _literal(text: str) -> Any:
    """Read a number, True, False or None; anything else is text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _number_or_word(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


if __name__ == "__main__":
    sys.exit(main())
