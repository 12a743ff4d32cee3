"""Individual fits: the modes of all individuals' own parameters at once, with separate dampings.

    minimise over phi_i      F_i = c_i(phi_i, s) + 1/2 (phi_i - mu_i)^T Omega^-1 (phi_i - mu_i)

by Levenberg-Marquardt steps   (A_i + lambda_i diag A_i) d_i = -(g_i + Omega^-1 (phi_i - mu_i)),   A_i = H_i + Omega^-1,
with the expected curvature H_i (Fisher scoring).  Near earlier modes, the difference of the exact curvature and H_i
there, `curvature_excess`, is added, so that the steps are nearly Newton steps.  Individuals at their modes are not
simulated again; an individual that cannot be simulated keeps its point, and the failure is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array, Mask
from castfit.drive.population.likelihoods import Cohort, IndividualCurvature

# Predicted decreases of -log p by a Newton step, relative to 1 + |-log p|:
_MODE_DECREASE_RTOL = 1e-14  # at a mode: phi then has an error of 1e-7 of its own uncertainty
_ROUGH_MODE_DECREASE_RTOL = 1e-6  # at a mode, during the first steps of a search
_ERROR_DECREASE_RTOL = 1e-7  # of the size of integration errors: smaller ones are accepted without a test
_MAX_DAMPING = 1e10  # of the diagonal: a search that needs more has failed
_MIN_EIGENVALUE_FRACTION = 0.1  # of the smallest one of the expected curvature: the exact one needs at least this
_MAX_MODE_ITERATIONS = 100  # simulations of an individual in the search for its mode


@dataclass(frozen=True)
class IndividualPrior:
    """Normal prior of the own parameters: mean (n, m) and precision Omega^-1 (m, m)."""

    mean: Array
    precision: Array

    def pull(self, phi: Array, mean: Array) -> tuple[Array, Array]:
        """Return 1/2 eta^T Omega^-1 eta (k,), and Omega^-1 eta (k, m), at phi (k, m)."""
        force = (phi - mean) @ self.precision
        return 0.5 * ((phi - mean) * force).sum(axis=1), force


@dataclass(frozen=True)
class IndividualModes:
    """The modes of all individuals.

    cost : (n,) F_i at phi (n, m); inf if it cannot be computed
    arrived : (n,) whether the individual is at its mode;  failures : reasons of failed fits, by index
    sweeps : number of simulations with derivatives
    evaluation : the data costs of all individuals at the modes
    """

    phi: Array
    cost: Array
    arrived: Mask
    failures: Mapping[int, str]
    sweeps: int
    evaluation: IndividualCurvature


def find_modes(
    cohort: Cohort,
    prior: IndividualPrior,
    s: Array,
    start: Array,
    curvature_excess: Array | None = None,
    *,
    roughly: bool = False,
) -> IndividualModes:
    """Find the modes of all individuals from phi = start (n, m).

    `curvature_excess` (n, m, m) is added to expected curvatures if the sum is definite.  With `roughly`, the modes have
    a lower accuracy.
    """
    n, m = start.shape
    phi: Array = start.copy()
    everybody = np.arange(n, dtype=np.intp)
    evaluation = cohort.curved(phi, s, everybody)
    failed_individuals = np.flatnonzero(~np.isfinite(evaluation.cost))
    if failed_individuals.size:  # start again at the mean of the population
        phi[failed_individuals] = prior.mean[failed_individuals]
        evaluation = evaluation.replaced(
            failed_individuals, cohort.curved(phi[failed_individuals], s, failed_individuals)
        )
    pull, _ = prior.pull(phi, prior.mean)
    cost, damping = evaluation.cost + pull, np.zeros(n)
    is_active, arrived, sweeps = np.isfinite(cost), np.zeros(n, dtype=np.bool_), 1
    for _ in range(_MAX_MODE_ITERATIONS):
        individuals = np.flatnonzero(is_active)
        if not individuals.size:
            break
        _, force = prior.pull(phi[individuals], prior.mean[individuals])
        gradient = evaluation.gradient[individuals, :m] + force
        curvature = _definite(
            evaluation.curvature[individuals, :m, :m] + prior.precision,
            None if curvature_excess is None else curvature_excess[individuals],
        )
        diagonal = np.einsum("kii->ki", curvature)
        damped = curvature + (damping[individuals, None] * diagonal)[:, :, None] * np.eye(m)
        step = solve_batched(damped, -gradient)
        newton = 0.5 * np.einsum("ki,ki->k", gradient, solve_batched(curvature, gradient))
        predicted_decrease = -np.einsum("ki,ki->k", gradient, step) - 0.5 * np.einsum(
            "ki,kij,kj->k", step, curvature, step
        )
        is_at_mode = newton <= (_ROUGH_MODE_DECREASE_RTOL if roughly else _MODE_DECREASE_RTOL) * (
            1.0 + np.abs(cost[individuals])
        )
        arrived[individuals[is_at_mode]], is_active[individuals[is_at_mode]] = True, False
        individuals, step, predicted_decrease, newton = (
            individuals[~is_at_mode],
            step[~is_at_mode],
            predicted_decrease[~is_at_mode],
            newton[~is_at_mode],
        )
        if not individuals.size:
            break
        trial = cohort.curved(phi[individuals] + step, s, individuals)
        sweeps += 1
        trial_cost = trial.cost + prior.pull(phi[individuals] + step, prior.mean[individuals])[0]
        with np.errstate(invalid="ignore"):
            ratio = np.where(np.isfinite(trial_cost), (cost[individuals] - trial_cost) / predicted_decrease, -1.0)
        is_accepted = (ratio > 1e-3) | (
            (newton < _ERROR_DECREASE_RTOL * (1.0 + np.abs(cost[individuals]))) & np.isfinite(trial_cost)
        )
        accepted_individuals = individuals[is_accepted]
        phi[accepted_individuals] += step[is_accepted]
        cost[accepted_individuals] = trial_cost[is_accepted]
        evaluation = evaluation.replaced(accepted_individuals, trial.select_individuals(np.flatnonzero(is_accepted)))
        damping[accepted_individuals] = np.where(
            ratio[is_accepted] > 0.75, damping[accepted_individuals] * 0.1, damping[accepted_individuals]
        )
        damping[accepted_individuals] = np.where(
            (ratio[is_accepted] > 0.25) | (damping[accepted_individuals] > 0.0), damping[accepted_individuals], 1e-3
        )
        damping[accepted_individuals[damping[accepted_individuals] < 1e-6]] = 0.0
        rejected_individuals = individuals[~is_accepted]
        damping[rejected_individuals] = np.maximum(10.0 * damping[rejected_individuals], 1e-3)
        is_active[rejected_individuals[damping[rejected_individuals] > _MAX_DAMPING]] = False
    stalled_message = "the steps make no progress"
    failures = {
        i: stalled_message if np.isfinite(cost[i]) else evaluation.failures.get(i, "the data cannot be predicted")
        for i in np.flatnonzero(~arrived).tolist()
    }
    return IndividualModes(phi, cost, arrived, failures, sweeps, evaluation)


def solve_batched(matrices: Array, right: Array) -> Array:
    """Return the solutions x (k, m) of  matrices (k, m, m) x = right (k, m)."""
    return np.asarray(np.linalg.solve(matrices, right[..., None]), dtype=float)[..., 0]


def _definite(expected: Array, curvature_excess: Array | None) -> Array:
    """Return expected curvatures (k, m, m) plus `curvature_excess`; without it if the sum is nearly indefinite."""
    if curvature_excess is None:
        return expected
    exact = np.where(
        np.isfinite(curvature_excess).all(axis=(1, 2), keepdims=True), expected + curvature_excess, expected
    )
    size = np.sqrt(np.einsum("kii->ki", expected))
    unit = size[:, :, None] * size[:, None, :]
    is_definite = (
        np.linalg.eigvalsh(exact / unit)[:, 0] > _MIN_EIGENVALUE_FRACTION * np.linalg.eigvalsh(expected / unit)[:, 0]
    )
    return np.where(is_definite[:, None, None], exact, expected)
