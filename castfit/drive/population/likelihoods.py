"""Data costs of all individuals at once, with derivatives with respect to own and shared parameters.

    c_i(phi_i, s)      -log p(data of i), all constants included
    g_i  (m + n_s,)    its gradient by (phi_i, s)
    H_i  (m + n_s, m + n_s)    its expected curvature, Fisher's information: for normal errors, J^T J with weighted
                       residuals, and  2 (d log sigma)^T (d log sigma)  for each value whose sigma depends on them

`SimulatedCohort` computes them by single shooting, for any problem; blocks of individuals of the same structure are
faster (`castfit.drive.population.batched`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from castfit._support.arrays import Array, Index
from castfit.drive.population.compiled import CompiledPopulation
from castfit.integrate import IntegratorOptions
from castfit.transcribe.observation import constant
from castfit.transcribe.single_shooting import SingleShooting


@dataclass(frozen=True)
class IndividualCurvature:
    """Costs (k,) of k individuals, with their derivatives.

    cost: infinite if the evaluation failed; failures: reasons by index among the k
    gradient (k, m + n_s), curvature (k, m + n_s, m + n_s): NaN if the evaluation failed
    """

    cost: Array
    failures: dict[int, str]
    gradient: Array
    curvature: Array

    @classmethod
    def blank(cls, count: int, size: int) -> IndividualCurvature:
        """Return an empty record for `count` individuals with `size` parameters."""
        return cls(np.full(count, np.inf), {}, np.full((count, size), np.nan), np.full((count, size, size), np.nan))

    def put(self, positions: Index, evaluation: IndividualCurvature) -> None:
        """Store the results of some individuals."""
        self.cost[positions], self.gradient[positions], self.curvature[positions] = (
            evaluation.cost,
            evaluation.gradient,
            evaluation.curvature,
        )
        self.failures.update({int(positions[k]): reason for k, reason in evaluation.failures.items()})

    def select_individuals(self, positions: Index) -> IndividualCurvature:
        """Return the results of some individuals."""
        failures = {k: self.failures[i] for k, i in enumerate(positions.tolist()) if i in self.failures}
        return IndividualCurvature(self.cost[positions], failures, self.gradient[positions], self.curvature[positions])

    def replaced(self, positions: Index, evaluation: IndividualCurvature) -> IndividualCurvature:
        """Return a copy with the results of some individuals replaced."""
        remaining_failures = {i: reason for i, reason in self.failures.items() if i not in {*positions.tolist()}}
        updated_copy = IndividualCurvature(
            self.cost.copy(), remaining_failures, self.gradient.copy(), self.curvature.copy()
        )
        updated_copy.put(positions, evaluation)
        return updated_copy


class Cohort(Protocol):
    """Interface for the data costs of individuals."""

    def curved(self, phi: Array, s: Array, individuals: Index) -> IndividualCurvature:
        """Return the costs of `individuals` (k,), ascending, at own parameters phi (k, m) and shared ones s (n_s,)."""
        ...

    def evaluate_data(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of the values of all individuals, (n_data,) each.

        By individual, time and output; NaN if the simulation failed.
        """
        ...


class SimulatedCohort:
    """The cohort of a question, by single shooting of all its experiments."""

    def __init__(self, question: CompiledPopulation, integrator: IntegratorOptions) -> None:
        self._question, compiled_problem = question, question.problem
        staged = SingleShooting(integrator, derivatives="forward").transcribe(compiled_problem, compiled_problem.guess)
        self._staged = staged.explicit()
        self._constant = np.array(
            [constant(replace(compiled_problem, conditions=(c,))) for c in compiled_problem.conditions]
        )
        directions = question.directions
        self._columns: list[Index] = [directions[c.theta] for c in compiled_problem.conditions]
        self._place = {name: i for i, name in enumerate(question.individuals)}
        self._phi = question.problem.guess[question.places]

    def curved(self, phi: Array, s: Array, individuals: Index) -> IndividualCurvature:
        """Return costs, gradients and curvatures; other individuals are simulated at their previous parameters."""
        evaluation = IndividualCurvature.blank(individuals.size, self._question.m + s.size)
        if not individuals.size:
            return evaluation
        linearization = self._staged.linearize(self._theta(phi, s, individuals))
        information = linearization.information() if linearization.information is not None else None
        failures = {self._place[f.chain]: f.detail for f in linearization.failures if f.chain in self._place}
        for k, i in enumerate(map(int, individuals)):
            r, rows, columns = linearization.values[i].r, linearization.jacobians[i].R_q, self._columns[i]
            if i in failures or not np.isfinite(rows).all():
                evaluation.failures[k] = failures.get(i, "a derivative is not finite")
                continue
            evaluation.cost[k] = 0.5 * float(np.vdot(r, r)) + linearization.values[i].excess + self._constant[i]
            evaluation.gradient[k], evaluation.curvature[k] = 0.0, 0.0
            evaluation.gradient[k, columns] = np.einsum("kr,krq->q", r, rows)
            if information is not None:
                w = information[i]
                rows = w[..., None] * rows if w.ndim == 2 else w @ rows
            flat = rows.reshape(-1, rows.shape[2])
            evaluation.curvature[k][np.ix_(columns, columns)] = flat.T @ flat
        return evaluation

    def evaluate_data(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of the values of all individuals."""
        everybody = np.arange(self._question.n)
        prediction, spread, residual = zip(*self._staged.standardised(self._theta(phi, s, everybody)), strict=True)
        return np.concatenate(prediction), np.concatenate(spread), np.concatenate(residual)

    def _theta(self, phi: Array, s: Array, individuals: Index) -> Array:
        self._phi = self._phi.copy()
        self._phi[individuals] = phi
        return self._question.theta(self._phi, s)
