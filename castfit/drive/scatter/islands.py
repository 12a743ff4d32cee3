"""Cooperative islands: several searches side by side that tell each other what they found after every generation.

Each island does a whole generation wherever there is a worker free for it.  Then every island is offered the best
member of all, and knows the paths of all local searches, so that none repeats another's.  Islands differ in their
random numbers and in how much they prefer novelty to quality when they choose where to search locally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.drive.run.jobs import thaw
from castfit.drive.scatter.book import OUT_OF_SIMULATIONS, Book, Halt, Limits
from castfit.drive.scatter.method.members import Member
from castfit.drive.scatter.method.options import Options
from castfit.drive.scatter.method.search import State, begin, offer, step
from castfit.drive.scatter.staff import Staff
from castfit.status import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.drive.scatter.tasks import Job
    from castfit.result import Result

    Array = NDArray[np.float64]

_SPREAD = 0.25  # of the balance, to both sides


@dataclass(frozen=True, eq=False)
class Report:
    """What an island did in a generation: where it stands, what it entered in its book, its best local search."""

    state: State | None
    record: dict[str, Any]
    result: Result | None


def options_of(options: Options, island: int, count: int) -> Options:
    """Return the options of one of `count` islands: their balances are spread about the given one."""
    if count == 1:
        return options
    shift = _SPREAD * (2.0 * island / (count - 1) - 1.0)
    return replace(options, balance=float(np.clip(options.balance + shift, 0.0, 1.0)))


def advance(
    job: Job, state: State | None, seed: int, options: Options, given: Array | None, limits: Limits, deadline: float
) -> Report | InputError:
    """Do one generation of an island within this process."""
    (work,) = thaw(job)
    limits = replace(limits, deadline=deadline)
    with Staff(job, 1, deadline) as staff:
        book = Book(staff, work, limits, seed)
        book.best_f = np.inf if state is None else state.best.f
        try:
            if state is None:
                state = begin(book, work.box.lower.size, seed, options, given)
            else:
                state = step(book, state, options)
        except Halt:
            pass  # what was done is in the book; the search of all islands finds out by itself
        except InputError as error:
            return error
        return Report(state, book.record(), book.result)


def generation(
    staff: Staff,
    book: Book,
    states: Sequence[State | None],
    seeds: Sequence[int],
    options: Options,
    given: Array | None,
    limits: Limits,
) -> tuple[State, ...]:
    """Do one generation of all islands, enter it, and let them exchange what they found.

    Raises
    ------
    Halt
        Where a limit is met.
    """
    count = len(states)
    share = replace(limits, max_eval=max((limits.max_eval - book.simulations) / count, 1.0))
    tasks = [
        (state, seed, options_of(options, i, count), given, share)
        for i, (state, seed) in enumerate(zip(states, seeds, strict=True))
    ]
    reports = staff.gather(advance, tasks)
    after: list[State] = []
    for report in reports:
        if isinstance(report, InputError):
            raise report
        if not isinstance(report, Report):
            raise Halt(f"An island was lost: {report.message}")
        book.absorb(report.record, report.result)
        if report.state is not None:
            after.append(report.state)
    book.told()
    book.check()
    if len(after) < count:  # an island's share of simulations did not suffice for its first generation
        raise Halt(OUT_OF_SIMULATIONS)
    return exchanged(states, after, options)


def exchanged(before: Sequence[State | None], after: Sequence[State], options: Options) -> tuple[State, ...]:
    """Tell all islands the best member and the local searches of this generation."""
    best: Member = min((state.best for state in after), key=lambda member: member.f)
    fresh = [state.climbs[0 if old is None else len(old.climbs) :] for old, state in zip(before, after, strict=True)]
    told: list[State] = []
    for i, state in enumerate(after):
        others = [climb for k, climbs in enumerate(fresh) if k != i for climb in climbs]
        told.append(offer(replace(state, climbs=(*state.climbs, *others)), best, options))
    return tuple(told)
