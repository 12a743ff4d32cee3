"""The linearized problem at one point: the bounded Gauss-Newton step, its correction, and its multipliers.

    minimise 1/2 |r + J dv|^2   subject to the linearized equations,  lower <= v + dv <= upper,  path constraints

Nodes and inner variables are eliminated (castfit.solve.condensing, or the growth-proof castfit.solve.elimination); what
is left is a small dense problem (Peifer and Timmer 2007, Eq. 10) in theta, with bounds of nodes as rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.bounded_lsq import Rows, bounded_lsq, column_scale, regularise
from castfit.solve.condensing import Condensed, expand, recondense
from castfit.solve.elimination import choose
from castfit.staged import Evaluation, Linearization, StagedProblem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]
    Signs = NDArray[np.int8]


@dataclass(frozen=True)
class ActiveSet:
    """Which bounds of unknowns and which rows were active, to start the next subproblem from."""

    bounds: Signs
    rows: Signs


@dataclass(frozen=True)
class Step:
    """A solution of the linearized problem.

    Attributes
    ----------
    dv : (n_v,) array
        The step of all variables.
    predicted : float
        Cost of the linear model after the full step.
    decrease : float
        1/2 |E x|^2 less the gaps' share: how much the cost falls within the constraints; half a chi-square distance.
    active : ActiveSet
    bound_multipliers : (n_v,) array
        Multipliers of bounds of variables, positive at an upper bound.
    path_multipliers, closure_multipliers : (n_c,), (n_e,) arrays
    residuals : (m,) array
        Residuals of the linear model after the step.
    feasible : bool
        Whether the linearized constraints can be met.
    """

    dv: Array
    predicted: float
    decrease: float
    active: ActiveSet
    bound_multipliers: Array
    path_multipliers: Array
    closure_multipliers: Array
    residuals: Array
    feasible: bool


class LocalProblem:
    """A staged problem linearized at a point.

    Parameters
    ----------
    staged : StagedProblem
    linearization : Linearization
    warm : ActiveSet, optional
        The active set of an earlier subproblem.
    regularisation : float
        Singular values of the scaled parameter block below this fraction of the largest are enlarged (Eq. 23).
    """

    def __init__(
        self,
        staged: StagedProblem,
        linearization: Linearization,
        *,
        warm: ActiveSet | None = None,
        regularisation: float = 0.0,
    ) -> None:
        self.staged, self.linearization = staged, linearization
        self.condensed = choose(staged.layout, linearization, staged.scale)
        self._warm = warm
        self._regularisation = regularisation

    @cached_property
    def _damped(self) -> tuple[Array, Array, float]:
        """Rows that hold singular directions, those directions (n_x, k), and the condition number of E."""
        found = regularise(self.condensed.E, threshold=max(self._regularisation, 1e-300))
        w = found.singular_values
        condition = float(w[0] / w[-1]) if w.size and w[-1] > 0 else np.inf
        if self._regularisation == 0.0:
            return np.empty((0, self.condensed.n_x)), np.empty((self.condensed.n_x, 0)), condition
        return found.damping, found.directions, condition

    @property
    def condition(self) -> float:
        """Condition number of the column-scaled condensed Jacobian."""
        return self._damped[2]

    @property
    def singular_directions(self) -> Array:
        """Singular directions that are held, in scaled unknowns, (n_x, k)."""
        return self._damped[1]

    def direction(self, *, damping: Array | None = None) -> Step:
        """Return the Gauss-Newton step, with rows `damping` (k, n_x) appended to E (Levenberg-Marquardt)."""
        return self._solve(self.condensed, self.linearization, damping)

    def correction(self, evaluation: Evaluation) -> Step:
        """Return the simplified Gauss-Newton step from another point: its values, the matrices of this one (Eq. 15)."""
        return self._solve(recondense(self.condensed, evaluation), evaluation, None)

    @cached_property
    def column_scale(self) -> Array:
        """Inverse column norms of E, (n_x,)."""
        return column_scale(self.condensed.E)

    def _solve(self, condensed: Condensed, at: Evaluation, damping: Array | None) -> Step:
        staged, held = self.staged, self._damped[0]
        extra = held if damping is None else np.vstack([held, damping])
        u, E = condensed.u, condensed.E
        if extra.size:
            u, E = np.concatenate([u, np.zeros(extra.shape[0])]), np.vstack([E, extra])
        rows, places = _rows(staged, condensed, at.v)
        positions = condensed.positions
        warm = self._warm if self._warm is not None and self._warm.rows.size == rows.g.size else None
        found = bounded_lsq(
            u,
            E,
            lower=staged.lower[positions] - at.v[positions],
            upper=staged.upper[positions] - at.v[positions],
            rows=rows,
            bounds_active=None if warm is None or warm.bounds.size != positions.size else warm.bounds,
            rows_active=None if warm is None else warm.rows,
        )
        x = found.x
        moved = condensed.E @ x
        bound_multipliers = np.zeros(staged.layout.n_v)
        bound_multipliers[positions] = found.bound_multipliers
        count = places.size
        np.add.at(bound_multipliers, places, found.row_multipliers[:count])
        n_c = condensed.c.size
        residuals = condensed.u + moved
        return Step(
            dv=expand(condensed, x),
            predicted=0.5 * float(residuals @ residuals),
            decrease=0.5 * float(moved @ moved),
            active=ActiveSet(found.bounds_active, found.rows_active),
            bound_multipliers=bound_multipliers,
            path_multipliers=found.row_multipliers[count : count + n_c],
            closure_multipliers=found.row_multipliers[count + n_c :],
            residuals=residuals,
            feasible=found.feasible,
        )


def _rows(staged: StagedProblem, condensed: Condensed, v: Array) -> tuple[Rows, Index]:
    """Write bounds of nodes and inner variables, path constraints and closure as rows; and where the first kind lies."""
    n_x = condensed.n_x
    kept = np.zeros(staged.layout.n_v, dtype=bool)
    kept[condensed.positions] = True
    parts: list[tuple[Array, Array, Array, Array]] = []
    places: list[Index] = []
    bounded = np.isfinite(staged.lower) | np.isfinite(staged.upper)
    for part in condensed.chains:
        chain = part.chain
        for positions, affine in ((chain.nodes, lambda p=part: (p.g, p.G)), (chain.inner, part.inner)):
            real = bounded[positions] & ~kept[positions]
            if not real.any():
                continue
            offset, slope = affine()
            at = positions[real]
            wide = np.zeros((at.size, n_x))
            wide[:, part.columns] = slope[real]
            parts.append((offset[real], wide, staged.lower[at] - v[at], staged.upper[at] - v[at]))
            places.append(at)
    lower = np.concatenate([chain.constraint_lower.ravel() for chain in staged.layout.chains])
    upper = np.concatenate([chain.constraint_upper.ravel() for chain in staged.layout.chains])
    parts.append((condensed.c, condensed.C, lower, upper))
    zero = np.zeros(condensed.e.size)
    parts.append((condensed.e, condensed.F, zero, zero))
    g, G, low, high = (np.concatenate([p[i] for p in parts]) for i in range(4))
    return Rows(g, G, low, high), np.concatenate(places) if places else np.empty(0, dtype=np.intp)
