"""Every problem of the library by every method: what succeeds, finds the reference optimum, and what it costs.

This table measures castfit against itself, so the module uses what all its versions have; `castfit._bench.regression`
shows it.  It can be run as a script with another version of castfit on the path, and the two tables be compared:

    PYTHONPATH=/other/checkout python bench/library.py before.json 20 bellman gasoil
    castfit bench library --against before.json --max-time 20 --problems bellman,gasoil

The time limit and the problems may be left out; the file is written again after every problem.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import castfit as cf
from castfit import problems

if __package__:
    from .cpu_clock import cpu_clock
else:  # run as a script
    from cpu_clock import cpu_clock

try:
    from castfit._support.status import raise_if_mistakes, suggest
except ImportError:  # castfit 0.2, run by this script
    from castfit.status import check as raise_if_mistakes
    from castfit.status import suggest

NAME = "library"
MAX_TIME = 60.0  # seconds per fit
TRANSCRIPTIONS = {"single": cf.SingleShooting, "multiple": cf.MultipleShooting, "collocation": cf.Collocation}
SOLVERS = {"gauss_newton": cf.GaussNewton, "ipopt": cf.Ipopt}
METHODS = ("default", *(f"{t}/{s}" for t in TRANSCRIPTIONS for s in SOLVERS))
"""``fit(problem)`` as it is, and every transcription, as the problem recommends it, by every solver."""


@dataclass(frozen=True)
class LibraryEntry:
    """What a method did with a problem.

    Attributes
    ----------
    problem, method : str
    starts, success, correct : int
        Fits in all; how many ended in a solution; how many in the reference optimum.
    iterations, evaluations : float
        Medians.
    building, cpu : float
        CPU seconds, summed over the starts: what the first fit took longer than its repetition, where models are built;
        and of all fits, without that.
    ends : tuple of str
        How the fits ended.
    """

    problem: str
    method: str
    starts: int
    success: int
    correct: int
    iterations: float
    evaluations: float
    building: float
    cpu: float
    ends: tuple[str, ...]


def run_library(
    *,
    names: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    starts: int = 1,
    seed: int = 0,
    max_time: float = MAX_TIME,
    progress: Callable[[str], object] = lambda text: None,
) -> Iterator[LibraryEntry]:
    """Fit every problem by every method, one entry after the other.

    Parameters
    ----------
    names : sequence of str, optional
        Of problems; by default all of them.
    methods : sequence of str, optional
        Of `METHODS`; by default all of them.
    starts : int
        The first one is the problem's own for the transcription, the others are drawn.
    seed : int
    max_time : float
        CPU seconds per fit.
    progress : callable
        Told what is being done.

    Raises
    ------
    InputError
        For unknown methods or numbers out of range.
    """
    chosen = METHODS if methods is None else tuple(methods)
    mistakes = [f"there is no method '{m}': {suggest(m, METHODS)}" for m in chosen if m not in METHODS]
    mistakes += [f"starts is {starts}; give at least 1"] if starts < 1 else []
    mistakes += [f"seed is {seed}; give a number that is not negative"] if seed < 0 else []
    mistakes += [] if max_time > 0 else [f"max_time is {max_time}; give a positive number of seconds"]
    chosen_names = problems.names() if names is None else tuple(names)
    mistakes += [f"there is no problem '{n}': {suggest(n, problems.names())}" for n in chosen_names
                 if n not in problems.names()]  # fmt: skip
    raise_if_mistakes(NAME, mistakes)

    def entries() -> Iterator[LibraryEntry]:
        for name in chosen_names:
            benchmark = problems.load(name)
            streams = np.random.SeedSequence(seed).spawn(starts - 1)
            random_starts = [benchmark.draw_start(np.random.default_rng(stream)) for stream in streams]
            for method in chosen:
                progress(f"{NAME}: {name}, {method}")
                reference_start = benchmark.starts.get(method.partition("/")[0], benchmark.starts["reference"])
                yield _entry(benchmark, method, [reference_start, *random_starts], max_time)

    return entries()


def _entry(benchmark: Any, method: str, starts: Sequence[Mapping[str, float]], max_time: float) -> LibraryEntry:
    ends: list[str] = []
    counts: list[tuple[int, int]] = []
    success = correct = 0
    building = cpu = 0.0
    for i, start in enumerate(starts):
        result, took = _timed(benchmark, method, start, max_time)
        if i == 0:  # again, now that everything is built
            result, seconds = _timed(benchmark, method, start, max_time)
            building, took = max(took - seconds, 0.0), seconds
        cpu += took
        if isinstance(result, str):
            ends.append(result)
            continue
        ends.append(result.status.value)
        success += result.success
        correct += bool(result.success and benchmark.reference.is_reached(result.chi2))
        counts.append((result.iterations, sum(result.evaluations.values())))
    iterations, evaluations = np.median(counts, axis=0).tolist() if counts else (0.0, 0.0)
    return LibraryEntry(benchmark.name, method, len(starts), success, correct, iterations, evaluations, building, cpu,
                 tuple(ends))  # fmt: skip


def _timed(benchmark: Any, method: str, start: Mapping[str, float], max_time: float) -> tuple[Any, float]:
    """Return a fit, or an error in words, and the CPU seconds that it took."""
    began = time.process_time()
    result: Any
    try:
        with np.errstate(all="ignore"), cpu_clock():
            result = cf.fit(benchmark.problem, *_parts(benchmark, method), start=start, max_time=max_time)
    except Exception as error:  # one fit must not cost the table
        result = f"{type(error).__name__}: {error}"
    else:
        if result.status is cf.Status.INTERRUPTED:
            raise KeyboardInterrupt
    return result, time.process_time() - began


def _parts(benchmark: Any, method: str) -> tuple[Any, ...]:
    """Return a method's transcription, with the problem's recommended settings, and solver."""
    if method == "default":
        return ()
    kind, solver = method.split("/")
    states = {} if kind == "single" else {"states": benchmark.start_strategy}
    return TRANSCRIPTIONS[kind](**{**states, **benchmark.transcriptions.get(kind, {})}), SOLVERS[solver]()


def record(entries: Iterable[LibraryEntry], **options: Any) -> dict[str, Any]:
    """Return what JSON gets: the options, when and where it was measured, and the rows."""
    where = {"date": f"{date.today()}", "machine": machine()}
    return {"table": NAME, "castfit": cf.__version__, **where, **options, "rows": [asdict(entry) for entry in entries]}


def machine() -> str:
    """Return the processor, as far as the system tells it, the system, and the version of Python."""
    name = platform.processor() or platform.machine()
    try:
        fields = (line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines())
        name = next((value.strip() for key, _, value in fields if key.strip() == "model name"), name)
    except OSError:
        pass
    return f"{name}, {platform.system()}, Python {platform.python_version()}"


def main(arguments: Sequence[str]) -> None:
    """Run the table with the castfit on the path: ``FILE [MAX_TIME [PROBLEM ...]]``."""
    file, *other_arguments = arguments
    limit = float(other_arguments[0]) if other_arguments else MAX_TIME
    names = other_arguments[1:] or None
    entries: list[LibraryEntry] = []
    for entry in run_library(names=names, max_time=limit, progress=lambda text: print(text, file=sys.stderr)):  # noqa: T201
        entries.append(entry)
        Path(file).write_text(
            json.dumps(record(entries, starts=1, seed=0, max_time=limit), indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
