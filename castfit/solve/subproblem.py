"""Linearized problem at one point: the bounded Gauss-Newton step, its correction, and its multipliers.

    minimise 1/2 |r + J dv|^2   subject to the linearized equations,  lower <= v + dv <= upper,  path constraints

Nodes and inner variables are eliminated (castfit.solve.condensing, or castfit.solve.elimination for growing nodes).
The result is a small dense problem (Peifer and Timmer 2007, Eq. 10) in theta, with bounds of nodes as rows.  With many
experiments local quantities are eliminated chain by chain (castfit.solve.arrow); the dense problem then contains the
shared quantities.  Chains with active path constraints, or with nodes at bounds, keep their local quantities in it.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.records import dataclass
from castfit.solve.block_pivoting import active_signs, minimize_in_box
from castfit.solve.bounded_lsq import (
    LinearConstraints,
    bounded_lsq,
    column_scale,
    find_rank_deficiency,
    split,
)
from castfit.solve.condensing import Condensed, condense, expand, recondense, theta_residuals, theta_rows
from castfit.solve.matrices import (
    MAX_DENSE_LOCAL_UNKNOWNS,
    RANK_TOLERANCE,
    TallFactors,
    euclidean_norm,
    thin,
    triangular_solution,
)
from castfit.solve.residual_plausibility import size_square
from castfit.solve.staged import Evaluation, Layout, Linearization, StagedProblem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Index, Mask, Signs
    from castfit.solve.arrow import ArrowMatrix
    from castfit.solve.arrow_step import DirectionHold
    from castfit.solve.solution import CountingProblem


# Largest number whose square is certain not to overflow.
_MAX_SQUARABLE = 1e150

# Infeasibility of a solution, in units of the states.
MATCHING_TOLERANCE = 1e-7

# Of the data: what rounding leaves of data that are reproduced exactly.
EXACT_DATA_RTOL = 1e-10

# Ridge of a trust-region step: added to every squared column of E in search units, and relative to their sum.
RIDGE_FRACTIONS = (1e-8, 1e-15)

# Smallest column of E in search units, relative to the largest, that is scaled up fully.
MIN_COLUMN_NORM_FRACTION = 1e-6

# Growth of the nodes over a horizon above which `choose` does not use condensing.
GROWTH_LIMIT = 1e6

_NO_VALUES, _NO_SIGNS = np.zeros(0), np.zeros(0, dtype=np.int8)

# Violation of a bound, in units of the variable, that counts as rounding.
_BOUND_VIOLATION_RTOL = 1e-9


@dataclass(frozen=True)
class ActiveSet:
    """Active bounds of variables (n_v,) and active path constraints (n_c,): -1 lower, +1 upper."""

    variables: Signs
    path: Signs


@dataclass(frozen=True)
class Step:
    """Solution of the linearized problem: the step dv (n_v,) of all variables.

    predicted : cost of the linear model after the full step
    residuals (m,) : residuals of the linear model after the full step
    decrease : 1/2 |E x|^2: decrease of the linear model's cost by the unknowns once the gaps are closed; half a
        chi-square distance.  For a trust-region step: decrease of the linear model's cost in total
    bound_multipliers (n_v,), path_multipliers (n_c,), closure_multipliers (n_e,) : positive at an upper bound
    feasible : whether the linearized constraints can be satisfied
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
    """Staged problem linearized at a point.

    `warm` is the active set of an earlier subproblem.  Singular values of the scaled condensed Jacobian below
    `regularisation` times the largest are enlarged (Eq. 23).
    """

    def __init__(
        self,
        staged: StagedProblem,
        linearization: Linearization,
        *,
        warm: ActiveSet | None = None,
        regularisation: float = 0.0,
        condensed: Condensed | None = None,
    ) -> None:
        self.staged, self.linearization = staged, linearization
        if condensed is not None:
            self.condensed = condensed
        self._warm = warm
        self._regularisation = regularisation
        self._arrows: dict[bytes, ArrowMatrix] = {}
        self._holds: dict[bytes, DirectionHold] = {}
        self._steps_by_radius: dict[float, Step] = {}

    def with_linearization(self, staged: StagedProblem, linearization: Linearization) -> LocalProblem:
        """Return the problem at its point with other bounds or constants of rows and the same derivatives."""
        is_same_point = linearization is self.linearization
        condensed = self.condensed if is_same_point else recondense(self.condensed, linearization)
        return LocalProblem(staged, linearization, regularisation=self._regularisation, condensed=condensed)

    @cached_property
    def condensed(self) -> Condensed:
        """Remaining dense problem."""
        return choose(self.staged.layout, self.linearization, self.staged.scale)

    @cached_property
    def _E(self) -> Array:
        """Derivatives of all rows by the unknowns, (m, n_x)."""
        return self.condensed.rows.dense

    @cached_property
    def _u(self) -> Array:
        """All rows, (m,)."""
        return self.condensed.u

    @cached_property
    def column_scale(self) -> Array:
        """Typical magnitudes of the unknowns, (n_x,): inverse column norms of E if nothing better is known.

        Columns that are zero up to rounding are scaled less than columns that the data determine.
        """
        return self._by_columns if self.condensed.scale is None else self.condensed.scale

    @property
    def _by_columns(self) -> Array:
        size = self.norms
        size = np.maximum(size, MIN_COLUMN_NORM_FRACTION * float((size * self._unit).max(initial=0.0)) / self._unit)
        return 1.0 / np.where(size > 0.0, size, 1.0)

    @cached_property
    def norms(self) -> Array:
        """Lengths of the columns of E, (n_x,)."""
        return self.condensed.rows.norms

    @cached_property
    def _unit(self) -> Array:
        return units_of_search(self.staged, self.linearization.v)[self.condensed.positions]

    def _arrow(self, is_tied: Mask) -> ArrowMatrix:
        """Return the rows as an arrow, with local unknowns of tied chains in its border."""
        key = is_tied.tobytes()
        if key not in self._arrows:
            from castfit.solve.arrow import arrow

            self._arrows[key] = arrow(self.condensed.rows, self.column_scale, is_tied)
        return self._arrows[key]

    @cached_property
    def _is_tied(self) -> Mask:
        """Chains with nodes that stay unknown, path equations, or constraints that were active."""
        layout = self.staged.layout
        is_tied = np.array([part.e.size > 0 for part in self.condensed.chains], dtype=np.bool_)
        is_pinned = np.zeros(self.condensed.c.size, dtype=np.bool_)
        is_pinned[self._pinned] = True
        self._tie(is_tied, is_pinned)
        if self._warm is not None:
            for i, chain in enumerate(layout.chains):
                at_bound = (self._warm.variables[positions].any() for positions in (chain.nodes, chain.inner))
                is_tied[i] |= any(at_bound)
        return is_tied

    def _tie(self, is_tied: Mask, path: Mask) -> None:
        """Mark the chains on whose local unknowns some path constraints and relations (n_c,) depend."""
        if not path.any():
            return
        path_rows = self.condensed.path
        for i in range(len(is_tied)):
            is_tied[i] |= bool(path[path_rows.starts[i] : path_rows.starts[i + 1]].any())
        path_tail = path_rows.tail.select_rows(np.flatnonzero(path[int(path_rows.starts[-1]) :]))
        is_involved = np.zeros(path_rows.width, dtype=np.bool_)
        is_involved[path_tail.column] = True
        is_involved &= self._arrow(np.zeros_like(is_tied)).border_positions < 0
        for i, part in enumerate(self.condensed.chains):
            is_tied[i] |= bool(is_involved[part.columns].any())

    @cached_property
    def _tall(self) -> TallFactors:
        """The rows as a dense matrix, factored; residuals of other points share it."""
        return TallFactors(self._E)

    def _factored(self, u: Array, damping: Array | None) -> tuple[Array, TallFactors]:
        """Return residuals u (m,) and rows of the dense problem, with the rows of regularisation or damping."""
        tall_factors, held_rows = self._tall, self._regularised_factors
        if damping is not None:
            extra_rows = np.concatenate([self._singular[0], np.diag(damping)])
            held_rows = TallFactors(np.concatenate([tall_factors.R, extra_rows]))
        projected_u, n_extra = tall_factors.project(u), held_rows.m - len(tall_factors.R)
        return np.concatenate([projected_u, np.zeros(n_extra)]) if n_extra else projected_u, held_rows

    @cached_property
    def _regularised_factors(self) -> TallFactors:
        """Triangle of the rows with those that fix singular directions."""
        tall_factors, extra_rows = self._tall, self._singular[0]
        return (
            TallFactors(np.concatenate([tall_factors.R, extra_rows]))
            if len(extra_rows)
            else tall_factors.triangle_factors
        )

    @cached_property
    def _eliminates(self) -> bool:
        if self.condensed.n_x <= MAX_DENSE_LOCAL_UNKNOWNS:  # this is cheap
            return False
        return self.condensed.rows.own_count > MAX_DENSE_LOCAL_UNKNOWNS and not self._arrow(self._is_tied).is_trivial

    @cached_property
    def _singular(self) -> tuple[Array, Array, float]:
        """Rows that fix singular directions (k, n_x), those directions (n_x, k), and the condition number.

        Closure rows and equal bounds determine directions as well, without rows of E: the rank of E counts within the
        remaining directions.
        """
        D, n_x = self.column_scale, self._unit.size
        is_fixed, determining_rows = (self.staged.lower == self.staged.upper)[self.positions], self._determining
        if len(determining_rows) or is_fixed.any():
            closure = determining_rows * D
            free: Array = np.eye(n_x)[:, ~is_fixed]
            closure = closure @ free
            Z: Array = free @ split(closure * column_scale(closure.T)[:, None])[1] if len(closure) else free
            rows = self._tall.R * D @ Z
            deficiency = find_rank_deficiency(rows, threshold=self._regularisation, scale=np.ones(int(Z.shape[1])))
            damping, directions = deficiency.damping @ Z.T / D, Z @ deficiency.directions
        else:  # by the decomposition that the step needs
            deficiency = find_rank_deficiency(self._tall.triangle_factors, threshold=self._regularisation, scale=D)
            damping, directions = deficiency.damping, deficiency.directions
        w = deficiency.singular_values
        condition = float(w[0] / w[-1]) if w.size and w[-1] > 0 else np.inf
        if self._regularisation == 0.0:
            return np.empty((0, n_x)), np.empty((n_x, 0)), condition
        return damping, directions, condition

    @property
    def _determining(self) -> Array:
        """Closure rows, and path constraints that determine directions, (k, n_x)."""
        return np.concatenate([self.condensed.closure.dense, self.condensed.path.take_rows(self._pinned)])

    @property
    def _pinned(self) -> Index:
        """Path constraints that determine directions, too: equations, and constraints that were active before."""
        lower, upper = self.staged.layout.path_limits
        is_pinned = lower == upper
        if self._warm is not None:
            is_pinned |= self._warm.path != 0
        return np.flatnonzero(is_pinned)

    def _hold(self, is_tied: Mask) -> DirectionHold:
        key = is_tied.tobytes()
        if key not in self._holds:
            from castfit.solve.arrow_step import find_singular_directions

            condensed, arrow_matrix = self.condensed, self._arrow(is_tied)
            positions = condensed.positions
            pinned_rows = np.concatenate([condensed.closure.dense, condensed.path.take_rows(self._pinned)])[
                :, arrow_matrix.border
            ]
            self._holds[key] = find_singular_directions(
                arrow_matrix.factor_chains(condensed.u),
                self.staged.lower[positions] == self.staged.upper[positions],
                pinned_rows * self.column_scale[arrow_matrix.border],
                self._regularisation,
            )
        return self._holds[key]

    @property
    def positions(self) -> Index | slice:
        """Positions of the unknowns in v."""
        return self.condensed.positions

    @property
    def gradient(self) -> Array:
        """Gradient of the cost of the linear model with respect to the unknowns, (n_x,)."""
        return self.condensed.rows.transposed(self.condensed.u)

    @property
    def condition(self) -> float:
        """Condition number of the column-scaled condensed Jacobian; an estimate if local unknowns are eliminated."""
        return self._hold(self._is_tied).condition if self._eliminates else self._singular[2]

    @property
    def held_directions(self) -> int:
        """Number of singular directions that are fixed."""
        return self._hold(self._is_tied).count if self._eliminates else self._singular[1].shape[1]

    @property
    def is_finite(self) -> bool:
        """Whether no number overflowed in condensing or would overflow when squared; otherwise there are no steps."""
        return self._finite

    @cached_property
    def _finite(self) -> bool:
        condensed = self.condensed
        numbers = [
            *condensed.rows.blocks,
            condensed.rows.tail.entry,
            *condensed.closure.blocks,
            *(part.G for part in condensed.chains),
        ]
        numbers += [self._path_rows] if self._path.size else []
        return self._constants_finite(condensed) and squares_are_finite(numbers)

    def direction(self, *, damping: Array | None = None) -> Step:
        """Return the Gauss-Newton step, with rows  damping[j] x[j]  appended to E, (n_x,) (Levenberg-Marquardt)."""
        if self._is_theta_only:
            return self._of_theta(self._u, self.linearization, damping)
        return self._solve(self.condensed, self.linearization, damping)

    def compute_trust_region_step(self, radius: float) -> Step:
        """Compute the step of lowest cost of the linear model within `radius` search units.

        Singular directions stay free.

        A ridge of `RIDGE_FRACTIONS` makes it unique.
        """
        cached_step = self._steps_by_radius.get(radius)
        if cached_step is not None:
            return cached_step
        unit, ridge = self._unit, min(self._ridge, _MAX_SQUARABLE)
        positions = self.positions
        max_step = radius * unit
        if self.staged.eliminated.size:
            max_step[np.isin(np.arange(self.linearization.v.size)[positions], self.staged.eliminated)] = np.inf
        local = self.unregularized
        guess = np.zeros(unit.size, dtype=np.int8)
        if not local._eliminates:
            R = self._tall.R * unit
            low, high = ((end - self.linearization.v)[positions] for end in (self.staged.lower, self.staged.upper))
            low, high = np.maximum(low, -max_step) / unit, np.minimum(high, max_step) / unit
            H, c = R.T @ R + ridge * np.eye(unit.size), R.T @ self._tall.project(self._u)
            with suppress(np.linalg.LinAlgError):  # not positive definite because of rounding
                guess = active_signs(minimize_in_box(H, c, low, high), low, high)
            if self._is_theta_only and unit.size and not guess.any():
                interior_step = self._ridged(R, unit, np.sqrt(ridge), (low, high))
                if interior_step is not None:
                    self._steps_by_radius[radius] = interior_step
                    return interior_step
        reach = TrustRegionBounds(max_step, unit, guess)
        damping = np.sqrt(ridge) / unit
        if self._is_theta_only:
            step = local._of_theta(self._u, self.linearization, damping, reach=reach)
        else:
            step = local._solve(self.condensed, self.linearization, damping, reach=reach)
        self._steps_by_radius[radius] = step
        return step

    def _ridged(self, R: Array, unit: Array, root: float, ends: tuple[Array, Array]) -> Step | None:
        """Return the step of R (k, n), in search units, with a ridge; None if a trust-region bound is active."""
        n, low, high = unit.size, *ends
        Q, T = thin(np.concatenate([R, root * np.eye(n)]))
        x = triangular_solution(T, -(self._tall.project(self._u) @ Q[: len(R)]))
        if not ((low < x) & (x < high)).all():
            return None
        return self._free_step(self._u, unit * x, is_in_box=True)

    @property
    def _ridge(self) -> float:
        with np.errstate(over="ignore"):
            return RIDGE_FRACTIONS[0] + RIDGE_FRACTIONS[1] * float(((self.norms * self._unit) ** 2).sum())

    @property
    def unregularized(self) -> LocalProblem:
        """Problem at this point with singular directions free.

        No self-reference is cached: it would delay the release of matrices.
        """
        return self if self._regularisation == 0.0 else self._released

    @cached_property
    def _released(self) -> LocalProblem:
        released_problem = copy(self)
        for name in ("_singular", "_spectrum", "_regularised_factors", "predicted_decrease"):
            released_problem.__dict__.pop(name, None)
        released_problem._regularisation, released_problem._holds = 0.0, {}
        return released_problem

    @cached_property
    def predicted_decrease(self) -> float:
        """Predicted decrease of the linear model's cost within one unit of the search, with singular directions free.

        The data do not determine a further decrease along singular directions.  It is infinite if numbers overflow, so
        that such a point is never accepted as an optimum.
        """
        return self.compute_trust_region_step(1.0).decrease if np.isfinite(self._ridge) else np.inf

    def correction(self, evaluation: Evaluation, similar_step: Step | None = None) -> Step | None:
        """Return the simplified Gauss-Newton step from another point, with its values and these matrices (Eq. 15).

        Return None if numbers overflow.  The search for active constraints starts with those of `similar_step`.
        """
        active = None if similar_step is None else similar_step.active
        with np.errstate(over="ignore", invalid="ignore"):
            recondensed = recondense(self.condensed, evaluation)
        if not (self._finite and self._constants_finite(recondensed)):
            return None
        if self._is_theta_only:
            return self._of_theta(recondensed.u, evaluation, None, active)
        return self._solve(recondensed, evaluation, None, active)

    @cached_property
    def _path(self) -> Index:
        lower, upper = self.staged.layout.path_limits
        return np.flatnonzero(np.isfinite(lower) | np.isfinite(upper))

    @cached_property
    def _path_rows(self) -> Array:
        """Derivatives of the finite path constraints with respect to the unknowns; corrections share them."""
        return self.condensed.path.take_rows(self._path)

    def _constants_finite(self, condensed: Condensed) -> bool:
        return squares_are_finite(
            [
                condensed.u,
                condensed.e,
                condensed.c[self._path],
                *(block for part in condensed.chains for block in (part.g, part.h)),
            ]
        )

    def _solve(
        self,
        condensed: Condensed,
        evaluation: Evaluation,
        damping: Array | None,
        active: ActiveSet | None = None,
        reach: TrustRegionBounds | None = None,
    ) -> Step:
        """Solve with only those bounds of nodes and inner variables that would be violated otherwise.

        Thousands of bounds are rarely active: solve, add the rows that are violated, and solve again.  A solution
        without violations solves the full problem.  Path constraints, and relations of local quantities if local
        unknowns are eliminated, are added in this way as well.
        """
        staged = self.staged
        lower, upper = staged.lower - evaluation.v, staged.upper - evaluation.v
        limits = lower[condensed.positions], upper[condensed.positions]
        if reach is not None:
            limits = np.maximum(limits[0], -reach.max_steps), np.minimum(limits[1], reach.max_steps)
        slack = _BOUND_VIOLATION_RTOL * np.maximum(staged.scale, np.abs(evaluation.v))
        is_unknown = np.zeros(evaluation.v.size, dtype=bool)
        is_unknown[condensed.positions] = True
        n_e = condensed.e.size
        active = (
            active
            or self._warm
            or ActiveSet(np.zeros(evaluation.v.size, dtype=np.int8), np.zeros(condensed.c.size, dtype=np.int8))
        )
        if reach is not None:
            active = ActiveSet(active.variables.copy(), active.path)
            active.variables[condensed.positions] = reach.guess
        is_chosen = (active.variables != 0) & ~is_unknown
        is_tied = self._is_tied.copy() if self._eliminates else np.zeros(0, dtype=np.bool_)
        scale = self.column_scale if reach is None else reach.unit
        dense = None if self._eliminates else self._factored(condensed.u, damping)
        while True:
            path = self._path if dense is not None else self._of_border(self._arrow(is_tied), is_tied)
            slopes = self._path_rows if path is self._path else condensed.path.take_rows(path)
            rows, bound_positions = _rows(staged, condensed, lower, upper, is_chosen, path, slopes)
            bound_slice, path_slice = (
                slice(bound_positions.size),
                slice(bound_positions.size, bound_positions.size + path.size),
            )
            guess, guess_rows = active.variables[condensed.positions], np.zeros(path_slice.stop + n_e, dtype=np.int8)
            guess_rows[bound_slice], guess_rows[path_slice] = active.variables[bound_positions], active.path[path]
            if dense is not None:
                solution = bounded_lsq(
                    *dense, lower=limits[0], upper=limits[1], rows=rows, scale=scale,
                    bounds_active=guess, rows_active=guess_rows,
                )  # fmt: skip
            else:
                from castfit.solve.arrow_step import solve

                arrow_matrix = self._arrow(is_tied)
                border_rows = LinearConstraints(rows.g, rows.G[:, arrow_matrix.border], rows.lower, rows.upper)
                solution = solve(
                    arrow_matrix.factor_chains(condensed.u), self._hold(is_tied), lower=limits[0], upper=limits[1],
                    rows=border_rows, damping=damping, bounds_active=guess, rows_active=guess_rows,
                )  # fmt: skip
            dv = expand(condensed, solution.x)
            active = ActiveSet(np.zeros(evaluation.v.size, dtype=np.int8), np.zeros(condensed.c.size, dtype=np.int8))
            active.variables[condensed.positions], active.path[path] = (
                solution.bounds_active,
                solution.rows_active[path_slice],
            )
            active.variables[bound_positions] = solution.rows_active[bound_slice]
            violates_bounds = ((dv < lower - slack) | (dv > upper + slack)) & ~is_unknown & ~is_chosen
            is_chosen |= violates_bounds
            if not (
                violates_bounds.any()
                if dense is not None
                else self._ties(condensed, solution.x, is_tied, violates_bounds, path)
            ):
                break
        linear_change = condensed.rows.times(solution.x)
        residuals = condensed.u + linear_change
        decrease = 0.5 * float(linear_change @ linear_change)
        if reach is not None:
            # At active bounds, or at the trust-region bounds, the cost would decrease further: by more than the square.
            decrease = max(decrease, 0.5 * float((condensed.u - residuals) @ (condensed.u + residuals)))
            is_inside = (dv > lower) & (dv < upper) & is_unknown
            active.variables[is_inside] = 0  # trust-region bounds are not active bounds
        bound_multipliers = np.zeros(staged.layout.n_v)
        bound_multipliers[condensed.positions] = solution.bound_multipliers
        bound_multipliers[bound_positions] = solution.row_multipliers[bound_slice]
        bound_multipliers[is_unknown & (active.variables == 0)] = 0.0
        path_multipliers = np.zeros(condensed.c.size)
        path_multipliers[path] = solution.row_multipliers[path_slice]
        return Step(
            dv=dv,
            predicted=0.5 * float(residuals @ residuals),
            decrease=decrease,
            active=active,
            bound_multipliers=bound_multipliers,
            path_multipliers=path_multipliers,
            closure_multipliers=solution.row_multipliers[path_slice.stop :],
            residuals=residuals,
            feasible=solution.feasible,
        )

    @property
    def _is_theta_only(self) -> bool:
        """Whether theta is the only variable, with bounds only, and elimination is not worthwhile."""
        return self.staged.layout.is_theta_only and not self._eliminates

    def _of_theta(
        self,
        u: Array,
        evaluation: Evaluation,
        damping: Array | None,
        active: ActiveSet | None = None,
        reach: TrustRegionBounds | None = None,
    ) -> Step:
        """Solve as `_solve` does if theta is the only variable; u (m,) are the rows.

        If no bound was active at the similar step, the first attempt is without bounds.
        """
        guess = active or self._warm
        lower, upper = self.staged.lower - evaluation.v, self.staged.upper - evaluation.v
        low, high, scale, signs = lower, upper, self.column_scale, None if guess is None else guess.variables
        if damping is None and reach is None and (signs is None or not signs.any()):
            dv = self._unbounded(u)
            if bool(((low <= dv) & (dv <= high) & (low < high)).all()):
                return self._free_step(u, dv)
        if reach is not None:
            low, high = np.maximum(lower, -reach.max_steps), np.minimum(upper, reach.max_steps)
            scale, signs = reach.unit, reach.guess
        solution = bounded_lsq(*self._factored(u, damping), lower=low, upper=high, scale=scale, bounds_active=signs)
        dv, bound_signs, no_multipliers = solution.x, solution.bounds_active, _NO_VALUES
        linear_change = self._E @ dv
        residuals = u + linear_change
        decrease = 0.5 * float(linear_change @ linear_change)
        if reach is not None:  # as in `_solve`
            decrease = max(decrease, 0.5 * float((u - residuals) @ (u + residuals)))
            bound_signs = np.where((dv > lower) & (dv < upper), np.int8(0), bound_signs)
        return Step(
            dv=dv,
            predicted=0.5 * float(residuals @ residuals),
            decrease=decrease,
            active=ActiveSet(bound_signs, _NO_SIGNS),
            bound_multipliers=np.where(bound_signs == 0, 0.0, solution.bound_multipliers),
            path_multipliers=no_multipliers,
            closure_multipliers=no_multipliers,
            residuals=residuals,
            feasible=solution.feasible,
        )

    def _unbounded(self, u: Array) -> Array:
        """Return the step (n_x,) of the dense problem without bounds."""
        projected_u, rows = self._factored(u, None)
        coordinates = rows.whitened(self.column_scale)
        return self.column_scale * (coordinates.T @ coordinates.target(rows.project(projected_u)))

    def _free_step(self, u: Array, dv: Array, *, is_in_box: bool = False) -> Step:
        """Return a step without active bounds, with its predicted decrease if it is a trust-region step."""
        linear_change = self._E @ dv
        residuals, zero_multipliers = u + linear_change, np.zeros(dv.size)
        square, decrease = 0.5 * float(residuals @ residuals), 0.5 * float(linear_change @ linear_change)
        if is_in_box:  # as in `_solve`
            decrease = max(decrease, 0.5 * float((u - residuals) @ (u + residuals)))
        no_active = ActiveSet(np.zeros(dv.size, dtype=np.int8), _NO_SIGNS)
        return Step(dv, square, decrease, no_active, zero_multipliers, _NO_VALUES, _NO_VALUES, residuals, feasible=True)

    def _of_border(self, arrow_matrix: ArrowMatrix, is_tied: Mask) -> Index:
        """Return the path constraints and relations that do not depend on eliminated local unknowns."""
        path_rows = self.condensed.path
        is_in_border = np.zeros(self.condensed.c.size, dtype=np.bool_)
        for i in np.flatnonzero(is_tied | ~arrow_matrix.free).tolist():
            is_in_border[path_rows.starts[i] : path_rows.starts[i + 1]] = True
        tail_start = int(path_rows.starts[-1])
        is_local = np.zeros(path_rows.tail.shape[0], dtype=np.bool_)
        is_local[path_rows.tail.row[arrow_matrix.border_positions[path_rows.tail.column] < 0]] = True
        is_in_border[tail_start:] = ~is_local
        return self._path[is_in_border[self._path]]

    def _ties(self, condensed: Condensed, x: Array, is_tied: Mask, violates_bounds: Mask, path: Index) -> bool:
        """Tie the chains whose nodes, path constraints or relations a step would violate; return whether there are any.

        This includes chains that are tied already, which then need more rows.
        """
        needs_repeat = bool(violates_bounds.any())
        for i, chain in enumerate(self.staged.layout.chains) if needs_repeat else ():
            is_tied[i] |= bool(violates_bounds[chain.nodes].any() or violates_bounds[chain.inner].any())
        other_indices = np.setdiff1d(self._path, path)
        if other_indices.size:
            low, high = (limits[other_indices] for limits in self.staged.layout.path_limits)
            value = (condensed.c + condensed.path.times(x))[other_indices]
            slack = _BOUND_VIOLATION_RTOL * (
                self.staged.layout.path_units[other_indices] + np.abs(condensed.c[other_indices])
            )
            violates_path = np.zeros(condensed.c.size, dtype=np.bool_)
            violates_path[other_indices] = (value < low - slack) | (value > high + slack)
            self._tie(is_tied, violates_path)
            needs_repeat |= bool(violates_path.any())
        return needs_repeat


class DenseProblem(LocalProblem):
    """Local problem with few unknowns and no constraints except bounds: single shooting of small models.

    Nothing is condensed or eliminated: all rows form a dense matrix, which is factored once.  The step, its correction,
    the convergence test and the final verification share the factors.  Rows of the residuals' curvature may follow
    (castfit.solve.residual_curvature).
    """

    curvature: tuple[Array, ...] = ()

    def with_curvature(self, problem: CountingProblem) -> DenseProblem:
        """Return the problem with rows of the residuals' curvature, for which `problem` is evaluated nearby."""
        from castfit.solve.residual_curvature import curvature_rows

        curved = DenseProblem(self.staged, self.linearization, warm=self._warm, regularisation=self._regularisation)
        curved.curvature = curvature_rows(problem, self.linearization, self._E, self._u)
        return curved if curved.curvature else self

    def _rows_at(self, evaluation: Evaluation) -> Array:
        """Return the rows (m,) at another point, for which rows of the curvature are linear functions."""
        u = theta_residuals(self.staged.layout, evaluation, self.linearization.sigma)
        return np.concatenate([u, *(rows @ (evaluation.v - self.linearization.v) for rows in self.curvature)])

    @cached_property
    def _eliminates(self) -> bool:
        return False

    @property
    def _is_theta_only(self) -> bool:
        return True

    @cached_property
    def _E(self) -> Array:
        return np.concatenate([theta_rows(self.staged.layout, self.linearization), *self.curvature])

    @cached_property
    def _u(self) -> Array:
        u = theta_residuals(self.staged.layout, self.linearization)
        return np.concatenate([u, *(np.zeros(len(rows)) for rows in self.curvature)])

    def with_linearization(self, staged: StagedProblem, linearization: Linearization) -> LocalProblem:
        """Return the problem at its point with other bounds or constants of rows."""
        return DenseProblem(staged, linearization, regularisation=self._regularisation)

    @cached_property
    def _spectrum(self) -> tuple[Array, Array] | None:
        """V S^-1 U^T of the scaled triangle, and S; None if directions are singular, or bounds fix a quantity."""
        U, S, Vt = self._tall.triangle_factors.svd(self.column_scale)
        if not 0 < S.size == len(Vt) or np.logical_or.reduce(self.staged.lower == self.staged.upper):
            return None
        min_singular_value = max(self._regularisation * float(S[0]), RANK_TOLERANCE * euclidean_norm(S))
        return ((Vt.T / S) @ U.T, S) if min_singular_value < S[-1] else None

    def _unbounded(self, u: Array) -> Array:
        if self._spectrum is None:
            return super()._unbounded(u)
        return -self.column_scale * (self._spectrum[0] @ self._tall.project(u))

    @property
    def condition(self) -> float:
        """Condition number of the column-scaled Jacobian."""
        return super().condition if self._spectrum is None else float(self._spectrum[1][0] / self._spectrum[1][-1])

    @property
    def held_directions(self) -> int:
        """Number of singular directions that are fixed."""
        return super().held_directions if self._spectrum is None else 0

    @cached_property
    def column_scale(self) -> Array:
        """Typical magnitudes of the unknowns, (n_x,)."""
        return self._by_columns

    @cached_property
    def norms(self) -> Array:
        """Lengths of the columns of E, (n_x,)."""
        return np.sqrt(np.add.reduce(self._E * self._E, axis=0))

    @cached_property
    def _unit(self) -> Array:
        return units_of_search(self.staged, self.linearization.v)

    @property
    def _determining(self) -> Array:
        return np.empty((0, self._unit.size))

    @property
    def positions(self) -> Index | slice:
        """Positions of the unknowns in v."""
        return slice(None)

    @property
    def gradient(self) -> Array:
        """Gradient of the cost of the linear model with respect to the unknowns, (n_x,)."""
        return self._u @ self._E

    @cached_property
    def _finite(self) -> bool:
        return float(np.maximum.reduce(self.norms, initial=0.0)) < _MAX_SQUARABLE and squares_are_finite([self._u])

    def correction(self, evaluation: Evaluation, similar_step: Step | None = None) -> Step | None:
        """Return the simplified Gauss-Newton step from another point, as of `LocalProblem`."""
        u = self._rows_at(evaluation)
        active = None if similar_step is None else similar_step.active
        return self._of_theta(u, evaluation, None, active) if self._finite and squares_are_finite([u]) else None


def local_problem(
    staged: StagedProblem, linearization: Linearization, *, warm: ActiveSet | None = None, regularisation: float = 0.0
) -> LocalProblem:
    """Return the problem linearized at a point in the form that suits it; arguments as of `LocalProblem`."""
    layout = staged.layout
    form = DenseProblem if layout.is_theta_only and layout.n_theta <= MAX_DENSE_LOCAL_UNKNOWNS else LocalProblem
    return form(staged, linearization, warm=warm, regularisation=regularisation)


def choose(layout: Layout, linearization: Linearization, scale: Array | None = None) -> Condensed:
    """Condense, or eliminate by orthogonal factors the chains whose nodes grow too much over the horizon.

    The relative error of a condensed step is 1e-16 times the growth (measured for x'' = mu^2 x with mu = 2 ... 24,
    growth 3 ... 4e9: between 4e-17 and 3e-16 times), so ten digits are left at the limit of 1e6.  Below it condensing
    is the better choice at any size: two to six times faster, and without further unknowns.  `scale` (n_v,) are typical
    magnitudes of all variables.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        condensed = condense(layout, linearization, scale)
        unsafe_chains = [
            i for i, part in enumerate(condensed.chains) if part.chain.n_s and not part.growth(scale) <= GROWTH_LIMIT
        ]
    if not unsafe_chains:
        return condensed
    from castfit.solve.elimination import eliminate

    return eliminate(layout, linearization, scale, chains=unsafe_chains)


@dataclass(frozen=True)
class TrustRegionBounds:
    """Trust region around a point: limits of steps, units, and likely active bounds of unknowns, (n_x,) each."""

    max_steps: Array
    unit: Array
    guess: Signs


def units_of_search(staged: StagedProblem, v: Array) -> Array:
    """Return one unit of the search for every variable, (n_v,), in any units of data, states and time.

    An e-fold of a logarithm; otherwise the width of the bounds, or the magnitude if that is smaller.
    """
    n = staged.layout.n_theta
    is_zero = np.zeros(v.size, dtype=np.bool_)
    is_zero[:n] = staged.start[:n] == 0.0
    return units_between(staged.lower, staged.upper, np.maximum(np.abs(v), staged.scale), is_zero, staged.logarithmic)


def units_between(lower: Array, upper: Array, magnitude: Array, is_zero: Mask, logarithmic: Mask) -> Array:
    """Return the units of the search from bounds and magnitudes (n_v,); `is_zero` marks entries that start at zero."""
    width = upper - lower
    is_bounded = np.isfinite(width) & (width > 0.0)
    magnitude = np.where(is_zero & is_bounded, np.inf, magnitude)  # the scale of zero is not a magnitude
    unit = np.where(is_bounded, np.minimum(width, magnitude), magnitude)
    unit[: logarithmic.size][logarithmic] = 1.0
    return unit


def is_small_decrease(staged: StagedProblem, linear: Evaluation, decrease: float, tolerance: float) -> bool:
    """Check whether a predicted decrease of the cost is below a fraction of the half-square, or below rounding."""
    part = tolerance * linear.informing_square
    if decrease <= part:
        return True
    return decrease <= part + EXACT_DATA_RTOL**2 * size_square(staged, linear)


def active_bounds(staged: StagedProblem, v: Array, multiplier: Array) -> Signs:
    """Mark the active bounds: bounds of nonzero multiplier, and fixed variables."""
    active = np.zeros(v.size, dtype=np.int8)
    tolerance = 1e-7 * np.maximum(staged.scale, np.abs(v))
    active[(multiplier < 0) & (v - staged.lower <= tolerance)] = -1
    active[(multiplier > 0) & (staged.upper - v <= tolerance)] = 1
    active[staged.lower == staged.upper] = -1
    return active


def squares_are_finite(numbers: list[Array]) -> bool:
    """Check whether the squares of all numbers can be computed."""
    return all([float(np.maximum.reduce(np.abs(block), axis=None)) < _MAX_SQUARABLE for block in numbers if block.size])


def _rows(
    staged: StagedProblem,
    condensed: Condensed,
    lower: Array,
    upper: Array,
    is_chosen: NDArray[np.bool_],
    path: Index,
    slopes: Array,
) -> tuple[LinearConstraints, Index]:
    """Write bounds of the chosen nodes and inner variables, path constraints with their slopes, and closure as rows.

    Also return the positions in v of the first kind, in the order of their rows.
    """
    n_x = condensed.n_x
    if not (is_chosen.any() or path.size or condensed.e.size):
        return LinearConstraints.none(n_x), path
    parts: list[tuple[Array, Array, Array, Array]] = []
    position_blocks: list[Index] = [np.empty(0, dtype=np.intp)]
    for part in condensed.chains:
        chain = part.chain
        for positions, affine in ((chain.nodes, lambda p=part: (p.g, p.G)), (chain.inner, part.inner)):
            is_row = is_chosen[positions]
            if not is_row.any():
                continue
            offset, slope = affine()
            chosen_positions = positions[is_row]
            padded_slope = np.zeros((chosen_positions.size, n_x))
            padded_slope[:, part.columns] = slope[is_row]
            parts.append((offset[is_row], padded_slope, lower[chosen_positions], upper[chosen_positions]))
            position_blocks.append(chosen_positions)
    low, high = staged.layout.path_limits
    parts.append((condensed.c[path], slopes, low[path], high[path]))
    zeros = np.zeros(condensed.e.size)
    parts.append((condensed.e, condensed.F, zeros, zeros))
    g, G, low, high = (np.concatenate([p[i] for p in parts]) for i in range(4))
    return LinearConstraints(g, G, low, high), np.concatenate(position_blocks)
