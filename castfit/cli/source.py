"""Problem that a command works on: from the library by name, from a Python file, or from a PEtab file.

``FILE.py`` defines ``problem``; ``FILE.py:name`` names another problem in it, or a function without arguments that
returns one.  The file runs as a script that is imported: what stands below ``if __name__ == "__main__":`` does not.
``FILE.yaml`` is a problem in the PEtab format.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit.cli.command import PETAB_FILES, parse_literal, split_assignments

if TYPE_CHECKING:
    import numpy as np

    from castfit.problem.problem import Problem
    from castfit.problems import Benchmark, Reference

_DEFAULT = "problem"


@dataclass(frozen=True)
class ProblemSource:
    """Problem of a command, with its starts, reference and default settings.

    A file has fewer such data than the library.

    name : str
    problem : Problem
    starts : mapping from a name to a start; "reference" is the problem's own guess
    draw_start : callable
    recommended : mapping from a transcription to keyword arguments
    reference : Reference or None
    transcription, solver : str
        What is used where none is named.  A problem in the PEtab format says where a fit begins, at its nominal values,
        which single shooting keeps to, where collocation begins at the data; and its parameters are known to decades.
    """

    name: str
    problem: Problem
    starts: Mapping[str, Mapping[str, float]]
    draw_start: Callable[[int | np.random.Generator], Mapping[str, float]]
    recommended: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    reference: Reference | None = None
    transcription: str = "collocation"
    solver: str = "gauss-newton"

    @property
    def start(self) -> Mapping[str, float]:
        """Start of a fit with the default transcription."""
        return self.find_start(self.transcription)

    def find_start(self, transcription: str) -> Mapping[str, float]:
        """Return the problem's own start for a transcription, or else the reference start."""
        return self.starts.get(transcription, self.starts["reference"])


def load(name: str, options: Sequence[str]) -> ProblemSource:
    """Load a problem of the library with its options given as key=value, or one from a file.

    Raises
    ------
    InputError
        For an unknown name, options that the problem does not take, a file that cannot be run or has no problem, and
        mistakes in files of PEtab.
    """
    path, object_name = _split(name)
    if path is not None:
        raise_if_mistakes(
            "--option", [f"'{path}' is a file, which takes no options; leave --option out"] if options else []
        )
        return _load_petab(path) if path.suffix in PETAB_FILES else _load_file(path, object_name)
    from castfit.drive.search.compare.benchmarks import recommended_options

    benchmark = _benchmark(name, options)
    return ProblemSource(
        benchmark.name, benchmark.problem, benchmark.starts, benchmark.draw_start, recommended_options(benchmark),
        benchmark.reference,
    )  # fmt: skip


def _benchmark(name: str, options: Sequence[str]) -> Benchmark:
    from castfit import problems

    option_texts = split_assignments(options, "--option")
    try:
        return problems.load(name, **{key: parse_literal(text) for key, text in option_texts.items()})
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError) or not option_texts:
            raise
        raise InputError("--option", [f"problem '{name}' does not take {', '.join(options)}: {error}"]) from error


def _split(name: str) -> tuple[Path | None, str]:
    """Return a file, and the name of what it defines; None if a name is none of a file."""
    if name.endswith((".py", *PETAB_FILES)):
        return Path(name), _DEFAULT
    path, separator, object_name = name.rpartition(".py:")
    return (Path(f"{path}.py"), object_name or _DEFAULT) if separator else (None, "")


def _load_file(path: Path, object_name: str) -> ProblemSource:
    from castfit.problem.problem import Problem
    from castfit.result.result import Result

    namespace = run_script(path)
    candidate: Any = namespace.get(object_name)
    if callable(candidate) and not isinstance(candidate, (type, Problem)):
        with _locate_mistakes(path):
            candidate = candidate()
    if isinstance(candidate, Result):
        candidate = candidate.problem
    if not isinstance(candidate, Problem):
        problem_names = [n for n, value in namespace.items() if isinstance(value, Problem)]
        failure = "does not define" if object_name not in namespace else "has no Problem called"
        if problem_names:
            remedy = f"{suggest(object_name, problem_names)}; write {path}:{problem_names[0]}"
        else:
            remedy = f"give it {_DEFAULT} = cf.Problem(...), outside of if __name__ == '__main__'"
        raise InputError("file", [f"'{path}' {failure} '{object_name}': {remedy}"])
    return _with_own_guess(path.name if object_name == _DEFAULT else f"{path.name}:{object_name}", candidate)


def _load_petab(path: Path) -> ProblemSource:
    from castfit.formats import petab as petab

    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always", UserWarning)
        problem = petab.load(path)
    for warning in caught_warnings:
        sys.stderr.write(f"castfit: {warning.message}\n")
    return replace(_with_own_guess(path.name, problem), transcription="single", solver="box")


def _with_own_guess(label: str, problem: Problem) -> ProblemSource:
    """Return a problem that begins at its own guess."""
    guess = dict(zip(problem.names, problem.to_natural(problem.guess).tolist(), strict=True))
    return ProblemSource(label, problem, {"reference": guess}, _draws(problem))


def run_script(path: Path) -> dict[str, Any]:
    """Run a file, with its folder importable as Python does it, and what it prints on standard error; return its names.

    Raises InputError: if there is none, or it stops.
    """
    raise_if_mistakes(
        "file", [] if path.is_file() else [f"there is no file '{path}'; name a Python file, or see castfit list"]
    )
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with _locate_mistakes(path), contextlib.redirect_stdout(sys.stderr):
            return runpy.run_path(str(path), run_name=path.stem)
    except SystemExit as error:
        raise InputError(
            "file", [f"'{path}' ended itself ({error}); guard that by if __name__ == '__main__'"]
        ) from None
    finally:
        sys.path.remove(folder)


@contextlib.contextmanager
def _locate_mistakes(path: Path) -> Generator[None, None, None]:
    """Convert exceptions into an `InputError` that names the file and the line in which they arose."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError("file", [_describe_script_error(path, error)]) from error


def _describe_script_error(path: Path, error: Exception) -> str:
    """Return a message with the file, the line of the failure if it is known, and the exception."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == path.name]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    return f"'{path}' stopped{'' if line is None else f' in line {line}'}: {type(error).__name__}: {error}"


def _draws(problem: Problem) -> Callable[[int | np.random.Generator], Mapping[str, float]]:
    """Return a function that draws starting points.

    Values come from given distributions, between finite bounds, or within a factor of ten of the guess.
    """

    def draw(rng: int | np.random.Generator) -> Mapping[str, float]:
        import numpy as np

        generator, start = np.random.default_rng(rng), dict[str, float]()
        for q in problem.quantities:
            u = float(generator.uniform())
            finite = np.isfinite(q.lower) and np.isfinite(q.upper)
            if q.starts is not None:
                low, high = (q.starts.cdf(end) for end in (q.lower, q.upper))
                value = q.starts.ppf(low + u * (high - low))
            elif finite and q.scale == "log" and q.lower > 0.0:
                value = q.lower * (q.upper / q.lower) ** u
            elif finite:
                value = q.lower + u * (q.upper - q.lower)
            else:
                value = q.guess * 10.0 ** (2 * u - 1) if q.guess != 0.0 else 2 * u - 1
            start[q.name] = float(min(max(value, q.lower), q.upper))
        return start

    return draw
