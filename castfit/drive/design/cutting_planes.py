"""Linear programs over planes above a concave function of weights, for the last digits of E and for T-optimality.

    max_w sum_g p_g t_g - price'w   with  t_g <= c_k + d_k'w  for the planes k of group g,  A w <= b,  0 <= w <= u

bounds the function from above for every design, since  t_g  is at least the minimum of all planes of its group.  If the
least eigenvalues coincide, planes are unit vectors v,

    lambda_min(M(w)) <= v'M0 v + sum_i w_i |J_i v|^2

with one group for each sample if the mean counts, or one group of all samples if the worst one counts.  Multipliers
q_k >= 0 of sum p_g in each group are a certificate: h = sum_k q_k d_k - price.  The eigenvectors of M at the solution,
and of  Z = sum_k q_k v_k v_k',  are the next planes (Kelley 1960); near the best design, where the interior point ends,
few are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import linprog

from castfit._support.arrays import Array, Index, Mask
from castfit.drive.design.interior_point import CandidatePool, DesignGoal, GoalTangent, RelaxedDesign, optimality_bound

_MAX_ROUNDS = 60  # rounds of linear programs
_MIN_PLANE_WEIGHT = 1e-12  # multiplier of a plane, or eigenvalue of Z, below which it is dropped
_CUT_RTOL = 1e-7  # relative distance above the bound up to which an eigenvalue gives a plane
_LP_TOLERANCE = 1e-10  # feasibility tolerance of the linear programs, the smallest that HiGHS accepts
_MAX_IDLE_PLANES = 1000  # number of planes up to which planes without weight are retained
_MAX_ENTERING = 20  # candidates that a round may add to the support


@dataclass(frozen=True, eq=False)
class PlanesOptimum:
    """The highest point below planes: w (N,), t by group, value, and multipliers q of planes and y (m,) of budgets."""

    w: Array
    t: Array
    value: float
    q: Array
    y: Array


def maximize_below_planes(
    c: Array, d: Array, pool: CandidatePool, group: Index | None = None, p: Array | None = None
) -> PlanesOptimum | None:
    """Return the highest point below planes c (K,), d (K, N). Return None if the linear program fails."""
    p, K, m = np.ones(1) if p is None else p, len(c), len(pool.b)
    group = np.zeros(K, dtype=np.intp) if group is None else group
    unit = max(float(np.abs(d).max()), 1e-300)
    result: Any = linprog(
        np.concatenate([pool.price / unit, -p]),
        A_ub=np.block([[-d / unit, np.eye(p.size)[group]], [pool.A, np.zeros((m, p.size))]]),
        b_ub=np.concatenate([c / unit, pool.b]),
        bounds=[*((0.0, None if np.isinf(u) else u) for u in pool.u), *[(None, None)] * p.size],
        method="highs",
        options={"primal_feasibility_tolerance": _LP_TOLERANCE, "dual_feasibility_tolerance": _LP_TOLERANCE},
    )
    if result.x is None:
        return None
    w, t = np.split(np.asarray(result.x, dtype=float), [pool.count])
    q, y = np.split(np.maximum(-np.asarray(result.ineqlin.marginals, dtype=float), 0.0), [K])
    return PlanesOptimum(w, t * unit, -float(result.fun) * unit, q, y * unit)


def refine_by_planes(
    goal: DesignGoal, pool: CandidatePool, solution: RelaxedDesign, support: Index, tolerance: float
) -> RelaxedDesign:
    """Improve a design and its bound by cutting planes.

    support : candidates that may be in the best design
    tolerance : of the gap, absolute
    """
    S, best, w, value, bound = len(pool.J), solution, solution.w, solution.value, solution.bound
    offsets = np.zeros(S) if goal.best is None else goal.best
    p = np.full(S, 1.0 / S) if goal.best is None else np.ones(1)
    sample, v = _cuts(pool.information(w), np.full(S, np.inf))
    for _ in range(_MAX_ROUNDS):
        d = np.zeros((len(v), pool.count))
        for s in range(S):
            d[sample == s] = np.sum((pool.J[s] @ v[sample == s].T) ** 2, axis=1).T
        c = np.einsum("ki,kij,kj->k", v, pool.M0[sample], v) + offsets[sample]
        group: Index = sample if p.size > 1 else np.zeros(sample.size, dtype=np.intp)
        optimum = maximize_below_planes(c, d[:, support], pool.with_candidates(support), group, p)
        if optimum is None:
            break
        q = optimum.q * (p / np.maximum(np.bincount(group, optimum.q, p.size), 1e-300))[group]
        h = q @ d - pool.price
        new_bound = optimality_bound(
            GoalTangent(0.0, 0.0, -h, np.empty((pool.count, 0)), h, -float(q @ c)), pool, optimum.y
        )
        if new_bound > bound:
            bound, best = new_bound, replace(best, sensitivity=h, y=optimum.y)
        is_retained = (q > _MIN_PLANE_WEIGHT) | (q.size <= _MAX_IDLE_PLANES)
        Z = np.zeros((S, *pool.M0.shape[1:]))
        np.add.at(Z, sample, q[:, None, None] * v[:, :, None] * v[:, None, :])
        weights, vectors = np.linalg.eigh(Z)
        cuts = [(sample[is_retained], v[is_retained]), _select_vectors(weights > _MIN_PLANE_WEIGHT, vectors)]
        trial = np.zeros(pool.count)
        trial[support] = optimum.w
        for trial_weights in (trial, 0.5 * (trial + w)):
            M = pool.information(trial_weights)
            trial_value = float(goal.values(M) + pool.price @ trial_weights)
            value, w = (trial_value, trial_weights) if trial_value < value and pool.fits(trial_weights) else (value, w)
            cuts.append(_cuts(M, (optimum.t - offsets) if p.size == 1 else optimum.t))
        sample, v = (np.concatenate(part) for part in zip(*cuts, strict=True))
        if value - bound <= tolerance:
            break
        excess = h - optimum.y @ pool.A
        entering_candidates = np.argsort(-excess)[:_MAX_ENTERING]
        support = np.union1d(support, entering_candidates[excess[entering_candidates] > 0.0])
    return replace(best, w=w, value=value, bound=bound)


def _cuts(M: Array, t: Array) -> tuple[Index, Array]:
    """Return the sample indices (K,) and eigenvectors (K, n) of eigenvalues of M (S, n, n) near t (S,) or below."""
    values, vectors = np.linalg.eigh(M)
    return _select_vectors(values < (t + _CUT_RTOL * np.abs(t))[:, None], vectors)


def _select_vectors(mask: Mask, vectors: Array) -> tuple[Index, Array]:
    sample, column = np.nonzero(mask)
    return sample, vectors[sample, :, column]
