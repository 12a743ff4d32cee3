"""What a solution says of every measured value: its error, its leverage, and what the estimates do without it.

Notation
--------
J  (m, n)  rows of variance 1, d r / d theta: those of data, then of priors; columns of what a bound holds left out
h  (m,)    leverage, the diagonal of  J (J^T J)^-1 J^T:  how much of its own error a value takes along with the fit
r  (m,)    residuals in standard deviations, prediction minus value

    left out, value i moves theta by    d_i = (J^T J)^-1 J_i^T r_i / (1 - h_i)      linearly [Cook and Weisberg 1982]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from castfit.densities.noise.density import Noise
from castfit.problem.compiled_problem import Posed
from castfit.result.covariance import RANK_TOLERANCE

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.result.result import Result


ALONE = 1e-8  # of 1 - h: below it a value is met exactly, whatever its error


@dataclass(frozen=True)
class OutputPlace:
    """The values of one output in one experiment: their noise, where they stand among all, and at which points."""

    condition: int
    output: int
    noise: Noise
    computed: bool
    of: Index
    points: Index


def output_places(posed: Posed) -> tuple[OutputPlace, ...]:
    """List the outputs of all experiments, of all data by experiment, time and output."""
    found: list[OutputPlace] = []
    begin = 0
    for i, condition in enumerate(posed.conditions):
        point, output = np.nonzero(condition.points.mask)
        for j, of in enumerate(condition.observed):
            own = np.flatnonzero(output == j)
            if of is not None and own.size:
                found.append(OutputPlace(i, j, of.noise, of.computed, begin + own, point[own]))
        begin += output.size
    return tuple(found)


def measured_values(posed: Posed) -> Array:
    """Return all measured values (n_data,) by experiment, time and output."""
    return np.concatenate([c.points.values[c.points.mask] for c in posed.conditions])


def unit_spreads(posed: Posed, result: Result) -> Array:
    """Return the spread of every value (n_data,), sigmas that were estimated without bias; NaN where none is known."""
    return result.spreads * np.append(group_factors(posed, result), 1.0)[groups(posed)]


def groups(posed: Posed) -> Index:
    """Return the number of the sigma that each value shares and that is eliminated, (n_data,); -1 if none is."""
    observed = [c.observed[j] for c in posed.conditions for j in np.nonzero(c.points.mask)[1]]
    return np.array([-1 if of is None else of.group for of in observed], dtype=np.intp)


def group_factors(posed: Posed, result: Result) -> Array:
    """Return the unbiased estimate of each sigma that is eliminated, (n_groups,)."""
    group = groups(posed)
    found = np.full(len(posed.groups), np.nan)
    for g in range(found.size):
        own = group == g
        plain, normal = result.residuals[own], result.normalised_residuals[own]
        squares = float(np.sum(normal**2))
        if squares > 0.0:
            found[g] = np.sqrt(float(np.sum(plain**2)) / squares)
        elif np.isfinite(squares):
            found[g] = 0.0  # the model meets the data exactly
    return found


def leverages(result: Result) -> Array:
    """Return the leverage of every value, (n_data,), rounding taken off."""
    return np.clip(result.leverage, 0.0, 1.0)


def case_deletion(posed: Posed, result: Result) -> Array:
    """Return d_i, what the estimates move by without value i, linearly, (n_data, n_theta); 0 for what a bound holds."""
    n = result.n_data
    scale = np.append(group_factors(posed, result), 1.0)[groups(posed)]
    jacobian = sparse.csr_array(result.jacobian).toarray()  # of many experiments it is sparse
    scale = np.append(np.where(scale > 0.0, scale, 1.0), np.ones(len(jacobian) - n))
    free = np.array([name not in result.active for name in result.names], dtype=np.bool_)
    J = jacobian[:, free] / scale[:, None]
    size = np.linalg.norm(J, axis=0)
    size = np.where(size > 0.0, size, 1.0)
    U, S, Vt = np.linalg.svd(J / size, full_matrices=False)
    rank = int(np.count_nonzero(RANK_TOLERANCE * S[0] < S)) if S.size and S[0] > 0.0 else 0
    r = np.where(np.isfinite(result.normalised_residuals), result.normalised_residuals, 0.0)
    weight = r / np.maximum(1.0 - leverages(result), ALONE)
    moves = np.zeros((n, len(result.names)))
    moves[:, free] = (U[:n, :rank] * weight[:, None] / S[:rank]) @ Vt[:rank] / size
    return moves
