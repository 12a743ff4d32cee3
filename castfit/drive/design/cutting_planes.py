"""Linear programs over planes above a concave function of weights: what ends E-optimality, and T-optimality altogether.

    max_w sum_g p_g t_g - price'w   with  t_g <= c_k + d_k'w  for the planes k of group g,  A w <= b,  0 <= w <= u

bounds the function from above for every design, as  t_g  is nowhere less than what lies below all planes of its group.
Where least eigenvalues meet, planes are unit vectors v,

    lambda_min(M(w)) <= v'M0 v + sum_i w_i |J_i v|^2

one group for each sample whose mean counts, or a single one of all samples where the worst one counts.  Multipliers
q_k >= 0 of sum p_g in each group are a certificate: h = sum_k q_k d_k - price.  The eigenvectors of M at the solution,
and of  Z = sum_k q_k v_k v_k',  are the next planes (Kelley 1960); near the best design, where the interior point ends,
few are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linprog

from castfit.drive.design.interior_point import DesignGoal, GoalTangent, Offers, RelaxedDesign, bound_at

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask

_ROUNDS = 60
_LEAST = 1e-12  # weight of a plane, and of an eigenvalue of Z: below, it is left out
_NEAR = 1e-7  # relative: eigenvectors up to so far above the bound are planes
_EXACT = 1e-10  # of the linear programs, the least that HiGHS takes
_KEPT = 1000  # planes, up to which those of no weight stay
_ENTERING = 20  # candidates that a round may add


@dataclass(frozen=True, eq=False)
class PlanesOptimum:
    """The highest point below planes: w (N,), t by group, value, and multipliers q of planes and y (m,) of budgets."""

    w: Array
    t: Array
    value: float
    q: Array
    y: Array


def highest(
    c: Array, d: Array, offers: Offers, group: Index | None = None, p: Array | None = None
) -> PlanesOptimum | None:
    """Return the highest point below planes c (K,), d (K, N); None where rounding prevents it."""
    p, K, m = np.ones(1) if p is None else p, len(c), len(offers.b)
    group = np.zeros(K, dtype=np.intp) if group is None else group
    unit = max(float(np.abs(d).max()), 1e-300)
    solved: Any = linprog(
        np.concatenate([offers.price / unit, -p]),
        A_ub=np.block([[-d / unit, np.eye(p.size)[group]], [offers.A, np.zeros((m, p.size))]]),
        b_ub=np.concatenate([c / unit, offers.b]),
        bounds=[*((0.0, None if np.isinf(u) else u) for u in offers.u), *[(None, None)] * p.size],
        method="highs",
        options={"primal_feasibility_tolerance": _EXACT, "dual_feasibility_tolerance": _EXACT},
    )
    if solved.x is None:
        return None
    w, t = np.split(np.asarray(solved.x, dtype=float), [offers.count])
    q, y = np.split(np.maximum(-np.asarray(solved.ineqlin.marginals, dtype=float), 0.0), [K])
    return PlanesOptimum(w, t * unit, -float(solved.fun) * unit, q, y * unit)


def sharpened(goal: DesignGoal, offers: Offers, found: RelaxedDesign, few: Index, tolerance: float) -> RelaxedDesign:
    """Return a better design, and a better bound of all others; `few` are candidates that are likely in the best one.

    tolerance : of the gap, absolute
    """
    S, best, w, value, bound = len(offers.J), found, found.w, found.value, found.bound
    behind = np.zeros(S) if goal.best is None else goal.best
    p = np.full(S, 1.0 / S) if goal.best is None else np.ones(1)
    sample, v = _cuts(offers.information(w), np.full(S, np.inf))
    for _ in range(_ROUNDS):
        d = np.zeros((len(v), offers.count))
        for s in range(S):
            d[sample == s] = np.sum((offers.J[s] @ v[sample == s].T) ** 2, axis=1).T
        c = np.einsum("ki,kij,kj->k", v, offers.M0[sample], v) + behind[sample]
        group: Index = sample if p.size > 1 else np.zeros(sample.size, dtype=np.intp)
        solved = highest(c, d[:, few], offers.only(few), group, p)
        if solved is None:
            break
        q = solved.q * (p / np.maximum(np.bincount(group, solved.q, p.size), 1e-300))[group]
        h = q @ d - offers.price
        new = bound_at(GoalTangent(0.0, 0.0, -h, np.empty((offers.count, 0)), h, -float(q @ c)), offers, solved.y)
        if new > bound:
            bound, best = new, replace(best, sensitivity=h, y=solved.y)
        kept = (q > _LEAST) | (q.size <= _KEPT)
        Z = np.zeros((S, *offers.M0.shape[1:]))
        np.add.at(Z, sample, q[:, None, None] * v[:, :, None] * v[:, None, :])
        weights, vectors = np.linalg.eigh(Z)
        cuts = [(sample[kept], v[kept]), _chosen(weights > _LEAST, vectors)]
        trial = np.zeros(offers.count)
        trial[few] = solved.w
        for other in (trial, 0.5 * (trial + w)):
            M = offers.information(other)
            here = float(goal.values(M) + offers.price @ other)
            value, w = (here, other) if here < value and offers.fits(other) else (value, w)
            cuts.append(_cuts(M, (solved.t - behind) if p.size == 1 else solved.t))
        sample, v = (np.concatenate(part) for part in zip(*cuts, strict=True))
        if value - bound <= tolerance:
            break
        short = h - solved.y @ offers.A
        entering = np.argsort(-short)[:_ENTERING]
        few = np.union1d(few, entering[short[entering] > 0.0])
    return replace(best, w=w, value=value, bound=bound)


def _cuts(M: Array, t: Array) -> tuple[Index, Array]:
    """Return the sample indices (K,) and eigenvectors (K, n) of M (S, n, n) that become planes: eigenvalues near t
    (S,) or below.
    """
    values, vectors = np.linalg.eigh(M)
    return _chosen(values < (t + _NEAR * np.abs(t))[:, None], vectors)


def _chosen(which: Mask, vectors: Array) -> tuple[Index, Array]:
    sample, column = np.nonzero(which)
    return sample, vectors[sample, :, column]
