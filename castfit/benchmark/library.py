"""Every problem of the library by every method: what succeeds, finds the reference optimum, and what it costs.

This table measures castfit against itself, so the module uses what all its versions have.  It can be run as a
script with another version of castfit on the path, and the two tables be compared:

    PYTHONPATH=/other/checkout python castfit/benchmark/library.py before.json 20 bellman gasoil
    castfit bench library --against before.json --max-time 20 --problems bellman,gasoil

The time limit and the problems may be left out; the file is written again after every problem.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import castfit as cf
from castfit import problems
from castfit._text import aligned
from castfit.status import InputError, check, suggest

NAME = "library"
MAX_TIME = 60.0  # seconds per fit
TRANSCRIPTIONS = {"single": cf.SingleShooting, "multiple": cf.MultipleShooting, "collocation": cf.Collocation}
SOLVERS = {"gauss_newton": cf.GaussNewton, "ipopt": cf.Ipopt}
METHODS = ("default", *(f"{t}/{s}" for t in TRANSCRIPTIONS for s in SOLVERS))
"""``fit(problem)`` as it is, and every transcription, as the problem recommends it, by every solver."""


@dataclass(frozen=True)
class Entry:
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
) -> Iterator[Entry]:
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
        Seconds per fit.
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
    wanted = problems.names() if names is None else tuple(names)
    mistakes += [f"there is no problem '{n}': {suggest(n, problems.names())}" for n in wanted
                 if n not in problems.names()]  # fmt: skip
    check(NAME, mistakes)
    return _entries(wanted, chosen, starts, seed, max_time, progress)


def _entries(
    names: Sequence[str],
    methods: Sequence[str],
    starts: int,
    seed: int,
    max_time: float,
    progress: Callable[[str], object],
) -> Iterator[Entry]:
    for name in names:
        benchmark = problems.load(name)
        drawn = [benchmark.draw_start(np.random.default_rng(s)) for s in np.random.SeedSequence(seed).spawn(starts - 1)]
        for method in methods:
            progress(f"{NAME}: {name}, {method}")
            kind = method.partition("/")[0]
            own = benchmark.starts.get(kind, benchmark.starts["reference"])
            yield _entry(benchmark, method, [own, *drawn], max_time)


def _entry(benchmark: Any, method: str, starts: Sequence[Mapping[str, float]], max_time: float) -> Entry:
    ends: list[str] = []
    counts: list[tuple[int, int]] = []
    success = correct = 0
    building = cpu = 0.0
    for i, start in enumerate(starts):
        result, took = _timed(benchmark, method, start, max_time)
        if i == 0:  # again, now that everything is built
            result, again = _timed(benchmark, method, start, max_time)
            building, took = max(took - again, 0.0), again
        cpu += took
        if isinstance(result, str):
            ends.append(result)
            continue
        ends.append(result.status.value)
        success += result.success
        correct += bool(result.success and benchmark.reference.is_reached(result.chi2))
        counts.append((result.iterations, sum(result.evaluations.values())))
    iterations, evaluations = np.median(counts, axis=0).tolist() if counts else (0.0, 0.0)
    return Entry(benchmark.name, method, len(starts), success, correct, iterations, evaluations, building, cpu,
                 tuple(ends))  # fmt: skip


def _timed(benchmark: Any, method: str, start: Mapping[str, float], max_time: float) -> tuple[Any, float]:
    """Return a fit, or an error in words, and the CPU seconds that it took."""
    began = time.process_time()
    result: Any
    try:
        with np.errstate(all="ignore"):
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


def record(entries: Iterable[Entry], **options: Any) -> dict[str, Any]:
    """Return what JSON gets."""
    return {"table": NAME, "castfit": cf.__version__, **options, "rows": [asdict(entry) for entry in entries]}


def earlier(path: str) -> dict[tuple[str, str], Entry]:
    """Read the entries of a table that was written before.

    Raises
    ------
    InputError
        If the file is no such table.
    """
    try:
        content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        rows: list[dict[str, Any]] = [{**row, "ends": tuple(row["ends"])} for row in content["rows"]]
        found = [Entry(**row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"'{path}' holds no such table ({type(error).__name__}: {error})"
        raise InputError("--against", [f"{what}; give a file that castfit bench {NAME} --json wrote"]) from error
    return {(entry.problem, entry.method): entry for entry in found}


def lines(entries: Sequence[Entry], before: Mapping[tuple[str, str], Entry] | None = None) -> list[str]:
    """Return the table as text, one row per problem and method, and with an earlier one the ratios to it."""
    head = ["problem", "method", "success", "correct", "iterations", "evaluations", "building", "CPU", "ends"]
    known = before or {}
    extra = ["before", "iterations", "CPU"] if before is not None else []
    rows = [[*head[:-1], *extra, head[-1]]]
    last = ""
    for entry in entries:
        cells = [
            entry.problem if entry.problem != last else "", entry.method, f"{entry.success} of {entry.starts}",
            str(entry.correct), f"{entry.iterations:g}", f"{entry.evaluations:g}", f"{entry.building:.2f} s",
            f"{entry.cpu:.3f} s",
        ]  # fmt: skip
        last = entry.problem
        old = known.get((entry.problem, entry.method))
        if before is not None and old is None:
            cells += ["", "", ""]
        elif old is not None:
            cells += [f"{old.success}, {old.correct}", _ratio(entry.iterations, old.iterations),
                      _ratio(entry.cpu, old.cpu)]  # fmt: skip
        rows.append([*cells, ", ".join(dict.fromkeys(end for end in entry.ends if end != "converged"))[:60]])
    return [*aligned(rows, "<<" + ">" * (len(rows[0]) - 3) + "<"), "", *_sums(entries, known)]


def _sums(entries: Sequence[Entry], before: Mapping[tuple[str, str], Entry]) -> list[str]:
    """Say what stands below the table: sums, and what changed since an earlier one."""
    fits = sum(entry.starts for entry in entries)
    found, correct = sum(entry.success for entry in entries), sum(entry.correct for entry in entries)
    out = [f"{fits} fits: {found} succeed, {correct} in the reference optimum; {_seconds(entries):.1f} s of CPU time"]
    pairs = [(entry, before[key]) for entry in entries if (key := (entry.problem, entry.method)) in before]
    if not pairs:
        return out
    both = [(new, old) for new, old in pairs if new.correct == old.correct > 0]
    out.append(
        f"before: {sum(old.success for _, old in pairs)} succeed, {sum(old.correct for _, old in pairs)} in the "
        f"reference optimum; {_seconds(old for _, old in pairs):.1f} s"
    )
    if both:
        out.append(
            f"where both find the optimum ({len(both)} rows), geometric mean of new / old: "
            f"iterations {_mean(new.iterations / old.iterations for new, old in both if old.iterations):.3f}, "
            f"CPU {_mean(new.cpu / old.cpu for new, old in both):.3f}"
        )
    changed = [(new, old) for new, old in pairs if new.correct != old.correct]
    return out + [
        f"{new.problem}, {new.method}: {old.correct} correct before, {new.correct} now" for new, old in changed
    ]


def _seconds(entries: Iterable[Entry]) -> float:
    return sum(entry.cpu for entry in entries)


def _ratio(new: float, old: float) -> str:
    return f"{new / old:.2f}" if old else ""


def _mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log([max(ratio, 1e-9) for ratio in ratios]))))


def main(arguments: Sequence[str]) -> None:
    """Run the table with the castfit on the path: ``FILE [MAX_TIME [PROBLEM ...]]``."""
    file, *rest = arguments
    limit = float(rest[0]) if rest else MAX_TIME
    names = rest[1:] or None
    found: list[Entry] = []
    for entry in run_library(names=names, max_time=limit, progress=lambda text: print(text, file=sys.stderr)):  # noqa: T201
        found.append(entry)
        Path(file).write_text(json.dumps(record(found, starts=1, seed=0, max_time=limit), indent=2) + "\n")
    print("\n".join(lines(found)))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
