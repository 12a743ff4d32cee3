"""Individual fits: the modes of all individuals' own parameters at once, each with a damping of its own.

    minimise over phi_i      F_i = c_i(phi_i, s) + 1/2 (phi_i - mu_i)^T Omega^-1 (phi_i - mu_i)

by Levenberg-Marquardt steps   (A_i + lambda_i diag A_i) d_i = -(g_i + Omega^-1 (phi_i - mu_i)),   A_i = H_i + Omega^-1,
with the expected curvature H_i: Fisher scoring; near modes that were found before the difference of the exact curvature
to H_i there, `bend`, is added, which makes the steps Newton's, or nearly so.  Those who have arrived are not simulated
any more; one who cannot be simulated stays where he was and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit.drive.population.likelihoods import Cohort, Curved

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Mask


_ARRIVED = 1e-14  # promised decrease of -log p, relative: then phi is right to 1e-7 of its own uncertainty
_NEAR = 1e-6  # and for the first steps of a search this will do
_NEARLY = 1e-7  # promised decreases below are of the size of integration errors, and taken on trust
_STUCK = 1e10  # a damping that is larger makes no progress any more
_LEAST = 0.1  # of the least eigenvalue of the expected curvature: what is left of it may not be less
_MOST = 100


@dataclass(frozen=True)
class OwnPrior:
    """Normal prior of the own parameters: mean (n, m) and precision Omega^-1 (m, m)."""

    mean: Array
    precision: Array

    def pull(self, phi: Array, mean: Array) -> tuple[Array, Array]:
        """Return 1/2 eta^T Omega^-1 eta (k,), and Omega^-1 eta (k, m), at phi (k, m)."""
        force = (phi - mean) @ self.precision
        return 0.5 * ((phi - mean) * force).sum(axis=1), force


@dataclass(frozen=True)
class Modes:
    """The individuals' modes.

    cost : (n,) F_i at phi (n, m); inf where it cannot be had
    arrived : (n,) who is at the mode;  failures : whom could not be fitted, and why
    sweeps : how often somebody was simulated with derivatives
    at : the cost of the data of all there
    """

    phi: Array
    cost: Array
    arrived: Mask
    failures: Mapping[int, str]
    sweeps: int
    at: Curved


def find_modes(
    cohort: Cohort,
    prior: OwnPrior,
    s: Array,
    start: Array,
    bend: Array | None = None,
    *,
    roughly: bool = False,
) -> Modes:
    """Find everybody's mode from phi = start (n, m).

    `bend` (n, m, m) is added to expected curvatures, where the sum is definite; with `roughly` modes need not be exact.
    """
    n, m = start.shape
    phi: Array = start.copy()
    everybody = np.arange(n, dtype=np.intp)
    at = cohort.curved(phi, s, everybody)
    lost = np.flatnonzero(~np.isfinite(at.cost))
    if lost.size:  # begin anew where the population expects them
        phi[lost] = prior.mean[lost]
        at = at.replaced(lost, cohort.curved(phi[lost], s, lost))
    pull, _ = prior.pull(phi, prior.mean)
    cost, damping = at.cost + pull, np.zeros(n)
    moving, arrived, sweeps = np.isfinite(cost), np.zeros(n, dtype=np.bool_), 1
    for _ in range(_MOST):
        who = np.flatnonzero(moving)
        if not who.size:
            break
        _, force = prior.pull(phi[who], prior.mean[who])
        gradient = at.gradient[who, :m] + force
        curvature = _definite(at.curvature[who, :m, :m] + prior.precision, None if bend is None else bend[who])
        diagonal = np.einsum("kii->ki", curvature)
        damped = curvature + (damping[who, None] * diagonal)[:, :, None] * np.eye(m)
        step = solved(damped, -gradient)
        newton = 0.5 * np.einsum("ki,ki->k", gradient, solved(curvature, gradient))
        promised = -np.einsum("ki,ki->k", gradient, step) - 0.5 * np.einsum("ki,kij,kj->k", step, curvature, step)
        there = newton <= (_NEAR if roughly else _ARRIVED) * (1.0 + np.abs(cost[who]))
        arrived[who[there]], moving[who[there]] = True, False
        who, step, promised, newton = who[~there], step[~there], promised[~there], newton[~there]
        if not who.size:
            break
        trial = cohort.curved(phi[who] + step, s, who)
        sweeps += 1
        tried = trial.cost + prior.pull(phi[who] + step, prior.mean[who])[0]
        with np.errstate(invalid="ignore"):
            ratio = np.where(np.isfinite(tried), (cost[who] - tried) / promised, -1.0)
        good = (ratio > 1e-3) | ((newton < _NEARLY * (1.0 + np.abs(cost[who]))) & np.isfinite(tried))
        taken = who[good]
        phi[taken] += step[good]
        cost[taken] = tried[good]
        at = at.replaced(taken, trial.of(np.flatnonzero(good)))
        damping[taken] = np.where(ratio[good] > 0.75, damping[taken] * 0.1, damping[taken])
        damping[taken] = np.where((ratio[good] > 0.25) | (damping[taken] > 0.0), damping[taken], 1e-3)
        damping[taken[damping[taken] < 1e-6]] = 0.0
        refused = who[~good]
        damping[refused] = np.maximum(10.0 * damping[refused], 1e-3)
        moving[refused[damping[refused] > _STUCK]] = False
    still = "the steps make no progress"
    why = {
        i: still if np.isfinite(cost[i]) else at.failures.get(i, "the data cannot be predicted")
        for i in np.flatnonzero(~arrived).tolist()
    }
    return Modes(phi, cost, arrived, why, sweeps, at)


def solved(matrices: Array, right: Array) -> Array:
    """Return the solutions x (k, m) of  matrices (k, m, m) x = right (k, m)."""
    return np.asarray(np.linalg.solve(matrices, right[..., None]), dtype=float)[..., 0]


def _definite(expected: Array, bend: Array | None) -> Array:
    """Return expected curvatures (k, m, m) plus `bend`; without it where the sum is not positive definite enough."""
    if bend is None:
        return expected
    exact = np.where(np.isfinite(bend).all(axis=(1, 2), keepdims=True), expected + bend, expected)
    size = np.sqrt(np.einsum("kii->ki", expected))
    unit = size[:, :, None] * size[:, None, :]
    fine = np.linalg.eigvalsh(exact / unit)[:, 0] > _LEAST * np.linalg.eigvalsh(expected / unit)[:, 0]
    return np.where(fine[:, None, None], exact, expected)
