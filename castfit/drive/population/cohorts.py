"""Which cohort suits a question: blocks of individuals that are alike, or each by itself, or some of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.drive.population.aligned import Aligned, suitable
from castfit.drive.population.cohort import Cohort, Curved, Simulated, of_some
from castfit.drive.population.divided import Divided
from castfit.integrate import IntegratorOptions
from castfit.integrate.crew import crew
from castfit.integrate.native import obstacle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.drive.population.question import Question

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]


_QUICK = IntegratorOptions(method="esdirk", relative_tolerance=1e-7, absolute_tolerance=1e-9, compile="auto")
"""Beside 1e-10, 300 individuals of `castfit bench population`: estimates agree to 3e-8 of their standard errors."""


def usual() -> IntegratorOptions:
    """Return how individuals are integrated if nothing is said."""
    return IntegratorOptions() if obstacle() else _QUICK


def cohort_of(question: Question, integrator: IntegratorOptions) -> Cohort:
    """Return the cohort of a question; where there is a crew its workers hold the individuals that are alike."""
    fit = np.array([suitable(c) for c in question.problem.conditions])
    if fit.all():
        return _blocks(question, integrator)
    if not fit.any():
        return Simulated(question, integrator)
    return _Both(question, integrator, np.flatnonzero(fit), np.flatnonzero(~fit))


def _blocks(question: Question, integrator: IntegratorOptions) -> Cohort:
    by, threads = crew(), integrator.method == "esdirk"
    if by is None or (threads and not by.elsewhere):
        return Aligned(question, integrator)
    return Divided(question, integrator, by)


class _Both(Cohort):
    """Some individuals in blocks, the others each by itself."""

    def __init__(self, question: Question, integrator: IntegratorOptions, alike: Index, apart: Index) -> None:
        self._n, self._sizes = question.n, [int(c.points.mask.sum()) for c in question.problem.conditions]
        self._parts: tuple[tuple[Index, Cohort], ...] = (
            (alike, _blocks(of_some(question, alike), integrator)),
            (apart, Simulated(of_some(question, apart), integrator)),
        )

    def curved(self, phi: Array, s: Array, who: Index) -> Curved:
        """Return costs, gradients and curvatures."""
        size = phi.shape[1] + s.size
        cost, failures = np.full(who.size, np.inf), dict[int, str]()
        gradient, curvature = np.full((who.size, size), np.nan), np.full((who.size, size, size), np.nan)
        for members, cohort in self._parts:
            at = np.flatnonzero(np.isin(who, members))
            if at.size:
                found = cohort.curved(phi[at], s, np.searchsorted(members, who[at]))
                cost[at], gradient[at], curvature[at] = found.cost, found.gradient, found.curvature
                failures |= {int(at[k]): why for k, why in found.failures.items()}
        return Curved(cost, failures, gradient, curvature)

    def seen(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of everybody's values."""
        sizes = np.array(self._sizes)
        owner = np.repeat(np.arange(self._n), sizes)
        out = np.empty((3, owner.size))
        for members, cohort in self._parts:
            out[:, np.isin(owner, members)] = cohort.seen(phi[members], s)
        return out[0], out[1], out[2]
