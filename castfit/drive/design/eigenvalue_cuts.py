"""E-optimality where eigenvalues meet: linear programs over cuts, which end what the interior point has begun.

    max_w t   with  t <= v_k' M(w) v_k  for some unit vectors v_k,  A w <= b,  0 <= w <= u

bounds the least eigenvalue of every design from above, since v'Mv >= lambda_min(M).  Its multipliers q_k >= 0 of sum 1
make  Z = sum_k q_k v_k v_k' >= 0  with the trace 1, of which the certificate is made.  The eigenvectors of M at the
solution are the next cuts (Kelley 1960); near the best design, where the interior point ends, few are needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linprog

from castfit.drive.design.interior_point import GoalTangent, Offers, RelaxedDesign, bound_at

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index

_ROUNDS = 60
_LEAST = 1e-12  # weight of a cut, and of an eigenvalue of Z: below, it is left out
_NEAR = 1e-7  # relative: eigenvectors up to so far above the bound are cuts


def sharpened(offers: Offers, found: RelaxedDesign, few: Index, tolerance: float) -> RelaxedDesign:
    """Return a better design, and a better bound of all others, of candidates `few` among which the best ones are.

    tolerance : of the gap, relative to the value
    """
    own = offers.only(few)
    best, w, value, bound = found, found.w[few], found.value, found.bound
    v = _eigen(own, w)[1].T  # (k, n)
    for _ in range(_ROUNDS):
        unit = abs(value)
        g, c = np.sum((own.J[0] @ v.T) ** 2, axis=1) / unit, np.einsum("ki,ij,kj->k", v, offers.M0[0], v) / unit
        solved: Any = linprog(
            np.append(own.price / unit, -1.0),
            A_ub=np.block([[-g.T, np.ones((len(v), 1))], [own.A, np.zeros((len(own.b), 1))]]),
            b_ub=np.concatenate([c, own.b]),
            bounds=[*((0.0, None if np.isinf(u) else u) for u in own.u), (None, None)],
            method="highs",
        )
        if solved.x is None:  # rounding
            break
        q, y = np.split(np.maximum(-np.asarray(solved.ineqlin.marginals), 0.0), [len(v)])
        Z = (v.T * (q / q.sum())) @ v
        h = ((offers.J[0] @ Z) * offers.J[0]).sum((1, 2)) - offers.price
        at = GoalTangent(0.0, 0.0, -h, np.empty((offers.count, 0)), h, -float(np.sum(Z * offers.M0[0])))
        new = bound_at(at, offers, unit * y)
        if new > bound:
            bound, best = new, replace(best, sensitivity=h, y=unit * y)
        cuts = [v[q > _LEAST]]
        for trial in (solved.x[:-1], 0.5 * (solved.x[:-1] + w)):
            values, vectors = _eigen(own, trial)
            cuts.append(vectors.T[values < unit * float(solved.x[-1]) * (1.0 + _NEAR)])
            here = float(own.price @ trial) - float(values[0])
            value, w = (here, trial) if here < value and own.fits(trial) else (value, w)
        weights, vectors = np.linalg.eigh(Z)
        v = np.concatenate([*cuts, vectors.T[weights > _LEAST]])
        if value - bound <= tolerance * unit:
            break
    whole = np.zeros(offers.count)
    whole[few] = w
    return replace(best, w=whole if value < found.value else found.w, value=value, bound=bound)


def _eigen(offers: Offers, w: Array) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh(offers.information(w)[0])
    return values, vectors
