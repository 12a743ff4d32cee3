"""Choice of a cohort: batched blocks of similar individuals, single individuals, or parts of both.

Where there are workers, they hold the individuals that are alike.  Each worker is sent its individuals once, data
and all, and then parameters; it answers with costs, gradients and curvatures.  Somebody's numbers do not depend on who
else is there, so they are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.process_pool import Lost
from castfit.drive.population.batched import BatchedCohort, laid_out, suitable
from castfit.drive.population.likelihoods import Cohort, Curved, SimulatedCohort
from castfit.integrate import STEPPED, IntegratorOptions
from castfit.integrate.distributed import held, workers
from castfit.integrate.esdirk_binding import obstacle

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.drive.population.compiled import Question

Answers = Callable[[str, Sequence[tuple[Any, ...]]], Sequence[Any]]

_QUICK = IntegratorOptions(method="explicit", relative_tolerance=1e-7, absolute_tolerance=1e-9, compile="auto")
"""Beside 1e-10, 300 individuals of `castfit bench population`: estimates agree to 3e-8 of their standard errors."""


def usual() -> IntegratorOptions:
    """Return the default integrator options for individuals."""
    return IntegratorOptions() if obstacle() else _QUICK


def cohort_of(question: Question, integrator: IntegratorOptions) -> Cohort:
    """Return the cohort of a question."""
    fit = np.array([suitable(c) for c in question.problem.conditions])
    if fit.all():
        return _blocks(question, integrator)
    if not fit.any():
        return SimulatedCohort(question, integrator)
    members = np.flatnonzero(fit), np.flatnonzero(~fit)
    parts: tuple[Cohort, ...] = (
        _blocks(question.of_some(members[0]), integrator),
        SimulatedCohort(question.of_some(members[1]), integrator),
    )

    def answers(method: str, given: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(part, method)(*arguments) for part, arguments in zip(parts, given, strict=True)]

    return PartedCohort(question, members, answers)


def _blocks(question: Question, integrator: IntegratorOptions) -> Cohort:
    """Return the cohort of a question of which every experiment is `suitable`, on workers where there are any."""
    by, threads = workers(), integrator.method in STEPPED
    if by is None or (threads and not by.elsewhere):
        return BatchedCohort(question, integrator)
    grids, units = laid_out(question)
    shares = by.shares(question.n)
    members = [np.arange(part.start, part.stop, dtype=np.intp) for part in shares]
    kept = [
        held(BatchedCohort, question.of_some(own), integrator, (grids[part], units[part]))
        for own, part in zip(members, shares, strict=True)
    ]

    def answers(method: str, given: Sequence[tuple[Any, ...]]) -> list[Any]:
        return by.run([(what, method, arguments) for what, arguments in zip(kept, given, strict=True)])

    return PartedCohort(question, members, answers)


class PartedCohort:
    """The cohort of a question in parts, each with individuals of its own, `members`, ascending.

    answers : a method of cohorts, and its arguments for each part -> what each answers, `Lost` where a worker was
    """

    def __init__(self, question: Question, members: Sequence[Index], answers: Answers) -> None:
        self._m, self._members, self._answers = question.m, members, answers
        sizes = [int(c.points.mask.sum()) for c in question.problem.conditions]
        owner = np.repeat(np.arange(question.n), sizes)
        self._values = [np.isin(owner, own) for own in members]

    def curved(self, phi: Array, s: Array, who: Index) -> Curved:
        """Return costs, gradients and curvatures."""
        out = Curved.blank(who.size, self._m + s.size)
        places = [np.flatnonzero(np.isin(who, own)) for own in self._members]
        given = [(phi[at], s, np.searchsorted(own, who[at])) for at, own in zip(places, self._members, strict=True)]
        for at, found in zip(places, self._answers("curved", given), strict=True):
            if isinstance(found, Lost):
                out.failures.update(dict.fromkeys(at.tolist(), found.message))
            else:
                out.put(at, found)
        return out

    def seen(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of everybody's values."""
        out = np.empty((3, self._values[0].size))
        given = [(phi[own], s) for own in self._members]
        for at, found in zip(self._values, self._answers("seen", given), strict=True):
            out[:, at] = [[np.nan], [1.0], [np.nan]] if isinstance(found, Lost) else found
        return out[0], out[1], out[2]
