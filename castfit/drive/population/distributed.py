"""Choice of a cohort: batched blocks of similar individuals, single individuals, or parts of both.

If there are workers, they own the individuals of the same structure.  Each worker receives its individuals once, with
their data, and then parameters; it returns costs, gradients and curvatures.  The numbers of an individual do not depend
on the other individuals, so they are equal to the numbers of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from castfit._support.arrays import Array, Index
from castfit._support.process_pool import LostTask
from castfit.drive.population.batched import BatchedCohort, laid_out, suitable
from castfit.drive.population.compiled import CompiledPopulation
from castfit.drive.population.likelihoods import Cohort, IndividualCurvature, SimulatedCohort
from castfit.integrate import STEPPED, IntegratorOptions
from castfit.integrate.distributed import make_worker_object, workers
from castfit.integrate.esdirk_binding import missing_integrator_reason

Answers = Callable[[str, Sequence[tuple[Any, ...]]], Sequence[Any]]

# Compared with a relative tolerance of 1e-10, estimates change by 3e-8 of their standard errors for 300 individuals
# (`castfit bench population`).
_QUICK = IntegratorOptions(method="explicit", relative_tolerance=1e-7, absolute_tolerance=1e-9, compile="auto")


def default_integrator() -> IntegratorOptions:
    """Return the default integrator options for individuals."""
    return IntegratorOptions() if missing_integrator_reason() else _QUICK


def build_cohort(question: CompiledPopulation, integrator: IntegratorOptions) -> Cohort:
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

    def answers(method: str, argument_tuples: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(part, method)(*arguments) for part, arguments in zip(parts, argument_tuples, strict=True)]

    return PartitionedCohort(question, members, answers)


def _blocks(question: CompiledPopulation, integrator: IntegratorOptions) -> Cohort:
    """Return the cohort of a question, every experiment of which is `suitable`, on workers if there are any."""
    pool, threads = workers(), integrator.method in STEPPED
    if pool is None or (threads and not pool.replaces_threads):
        return BatchedCohort(question, integrator)
    grids, units = laid_out(question)
    shares = pool.divide(question.n)
    members = [np.arange(share.start, share.stop, dtype=np.intp) for share in shares]
    worker_cohorts = [
        make_worker_object(BatchedCohort, question.of_some(indices), integrator, (grids[share], units[share]))
        for indices, share in zip(members, shares, strict=True)
    ]

    def answers(method: str, argument_tuples: Sequence[tuple[Any, ...]]) -> list[Any]:
        return pool.run(
            [(cohort, method, arguments) for cohort, arguments in zip(worker_cohorts, argument_tuples, strict=True)]
        )

    return PartitionedCohort(question, members, answers)


class PartitionedCohort:
    """The cohort of a question in parts, with the individuals `members` of each part, ascending.

    answers : (method of cohorts, arguments for each part) -> the result of each part, `LostTask` if a worker was lost
    """

    def __init__(self, question: CompiledPopulation, members: Sequence[Index], answers: Answers) -> None:
        self._m, self._members, self._answers = question.m, members, answers
        sizes = [int(c.points.mask.sum()) for c in question.problem.conditions]
        owner = np.repeat(np.arange(question.n), sizes)
        self._values = [np.isin(owner, indices) for indices in members]

    def curved(self, phi: Array, s: Array, individuals: Index) -> IndividualCurvature:
        """Return costs, gradients and curvatures."""
        evaluation = IndividualCurvature.blank(individuals.size, self._m + s.size)
        positions_by_part = [np.flatnonzero(np.isin(individuals, indices)) for indices in self._members]
        argument_tuples = [
            (phi[positions], s, np.searchsorted(indices, individuals[positions]))
            for positions, indices in zip(positions_by_part, self._members, strict=True)
        ]
        for positions, answer in zip(positions_by_part, self._answers("curved", argument_tuples), strict=True):
            if isinstance(answer, LostTask):
                evaluation.failures.update(dict.fromkeys(positions.tolist(), answer.message))
            else:
                evaluation.put(positions, answer)
        return evaluation

    def evaluate_data(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of the values of all individuals."""
        columns = np.empty((3, self._values[0].size))
        argument_tuples = [(phi[indices], s) for indices in self._members]
        for mask, answer in zip(self._values, self._answers("evaluate_data", argument_tuples), strict=True):
            columns[:, mask] = [[np.nan], [1.0], [np.nan]] if isinstance(answer, LostTask) else answer
        return columns[0], columns[1], columns[2]
