"""Covariance of theta, its numerical error, and the directions that the data leave undetermined.

Everything follows from the reduced Jacobian E: nodes and inner variables are eliminated by the linearised
constraints, so that the figures depend neither on the transcription nor on the solver that found the solution.

`castfit.result.fisher_information` computes rank, inverse and leverages, and defines the notation.  For many
experiments with local quantities, `castfit.result.fisher_information_arrow` computes them without a matrix over theta.

Rows have variance 1.  Rows of an unknown sigma are divided by its unbiased estimate,  s2 = SSE / (n - tr H),  where
tr H is what the n data of the group contribute to the estimates, the sum of their leverages |U_i|^2: the number of
quantities where there are no priors.  Rows of a spread that is computed from estimated quantities are corrected by the
same factor, n / (n - tr H), so eliminating a sigma or estimating it as a parameter gives the same result.  With limits
of detection the results may differ: the rows then contain information on sigma, tr H can count it, and dof is lower by
up to one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import scipy

from castfit._support.distribution_functions import normal_quantile, t_quantile
from castfit._support.records import dataclass
from castfit.result.fisher_information import (
    NEGLIGIBLE_EFFECT_RTOL,
    RANK_TOLERANCE,
    ROUNDING_RTOL,
    FisherInformation,
    free_basis,
    information,
    positive,
)
from castfit.solve.condensing import Condensed, adjoint, condense
from castfit.solve.matrices import MAX_DENSE_LOCAL_UNKNOWNS, BlockRows, block_rows, upper_factor
from castfit.solve.staged import Evaluation, Layout, Linearization, gaps, rows_in_units
from castfit.solve.subproblem import choose

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Mask
    from castfit.result.fisher_information_arrow import BlockFisherInformation
    from castfit.solve.arrow import ArrowMatrix


# Singular values below this multiple of the integrator's tolerance are zero (measured error: 1 tolerance).
DERIVATIVE_ERROR_FACTOR = 30.0
# Number of quantities up to which matrices are written out if local quantities are eliminated.
MAX_WRITTEN_OUT_QUANTITIES = 500
ACTIVE_INEQUALITY_RTOL = 1e-6  # Relative distance from its bound within which an inequality may be active.


@dataclass(frozen=True)
class Statistics:
    """Statistics of a solution, in search scale; n = n_theta.

    jacobian (m, n) : derivative of weighted residuals with all nodes eliminated, in units of unknown sigmas' data; rows
        of priors last
    gradient (n,) : E^T r, the derivative of the cost
    noise, noise_errors (n_groups,) : unbiased estimates of the unknown sigmas; standard errors of their most likely
        values
    dof : rows minus the number of directions that they determine
    covariance, correlation (n, n) : NaN where a bound holds a quantity; the diagonal is inf, the rest of the row NaN,
        where the data leave it open
    standard_errors (n,) : square roots of the covariance's diagonal, which adds statistical and numerical variance
    numerical_errors (n,) : part of the standard errors that comes from the finite accuracy of the integration
    condition : condition number of the column-scaled Jacobian on the free subspace
    directions (k, n) : undetermined directions scale * dtheta, each of length 1
    scale (n,) : effect of each quantity on the data
    by_priors : how many of the directions that are determined are the priors': the sum of the leverages of their rows
    held_back (n_penalties,) : the leverage of each penalty
    inflation : the unbiased variance of an unknown sigma that all data share, in units of the most likely one; else 1
    rank_tolerance : relative size of singular values of the column-scaled Jacobian below which they count as zero
    has_fold : whether second-order changes of the rows are part of the information
    information (n, n) : Fisher's information of data and priors on theta, bounds and other active constraints left
        aside
    rank : number of directions that data and priors determine
    root (n, n) : root root^T is the covariance of what is determined, whatever is not; 0 in rows of quantities at a
        bound
    leverage (n_data,) : how much of each value's own error the fit follows, from 0 to 1; their sum is the number of
        directions that the data determine, less what priors do
    """

    jacobian: Array
    gradient: Array
    noise: Array
    noise_errors: Array
    dof: int
    covariance: Array
    correlation: Array
    standard_errors: Array
    numerical_errors: Array
    condition: float
    directions: Array
    scale: Array
    information: Array
    rank: int
    root: Array
    leverage: Array
    by_priors: float
    held_back: Array
    inflation: float
    rank_tolerance: float
    has_fold: bool


def statistics(
    layout: Layout,
    linearization: Linearization,
    active: NDArray[np.int8],
    *,
    scale: Array | None = None,
    relative_tolerance: float = 0.0,
    absolute_tolerance: float = 0.0,
    row_errors: Array | None = None,
    penalty: Mask | None = None,
    defects: tuple[Array, ...] | None = None,
    fold: Array | None = None,
) -> Statistics:
    """Compute the statistics of a solution from its linearization.

    linearization : at the solution
    active (n_v,) : -1 where the lower bound of a variable is active, +1 the upper, 0 neither
    scale (n_v,) : typical magnitudes of all variables
    relative_tolerance, absolute_tolerance : to which the states at the ends of stages, and their derivatives, are
        accurate; the latter in units of `scale`
    row_errors (m,) : known errors of the `weighted_residuals`, by which the estimates are off
    penalty (n_prior,) : which rows of priors are penalties, which count as no degrees of freedom.  Where one unknown
        sigma is common to all data its bias is theirs too: they are chosen in its units.
    defects (K, n_s) : known gaps before the nodes, where the linearization's own are not those of the model
    fold (m, n_theta) : change of the rows' derivatives at a fold (castfit.result.fold_information)
    """
    n = layout.n_theta
    condensed = choose(layout, linearization, scale)
    rows = residuals(layout, linearization)
    with np.errstate(over="ignore", invalid="ignore"):  # condensing a violently unstable system overflows
        full_condensed = condensed if condensed.n_x == n else condense(layout, linearization, scale)
        gradient = full_condensed.rows.transposed(rows)
    is_linear_prior = _straight(linearization, rows.size)  # they move the estimates, but hold no information
    informative_condensed = condensed
    if is_linear_prior.any():
        informative_condensed = replace(condensed, rows=condensed.rows.scaled(np.where(is_linear_prior, 0.0, 1.0)))
    information_of = _information(layout, linearization)
    finder = _RankFinder.of_solution(
        condensed, informative_condensed, _plus(_times(information_of, informative_condensed.rows), fold), active
    )
    tolerance = max(RANK_TOLERANCE, DERIVATIVE_ERROR_FACTOR * relative_tolerance)
    solution = finder.solve(tolerance)
    kinds = _RowKinds.from_layout(layout, linearization)
    is_penalty = np.zeros(rows.size, dtype=np.bool_)
    if penalty is not None:
        is_penalty[rows.size - penalty.size :] = penalty
    dof_by_kind = (
        kinds.sizes
        - np.bincount(
            kinds.kind + 1, solution.fisher_information.leverage * kinds.datum, minlength=kinds.sizes.size + 1
        )[1:]
    )
    ratio = kinds.unbiased(rows, dof_by_kind)
    is_weighted = bool(np.isfinite(ratio).all()) and np.unique(kinds.kind).size > 1
    unit = np.append(ratio, 1.0)[kinds.kind]
    unit[is_penalty] = ratio[0] if ratio.size == 1 else 1.0
    if is_weighted:  # rows of different kind are weighed against each other
        solution = finder.weighed(1.0 / unit).solve(tolerance)
        spread = 1.0
    else:
        spread = float(ratio[0]) if ratio.size else 1.0
    errors_of_gaps = gap_errors(
        layout, linearization, relative_tolerance, absolute_tolerance, scale=scale, defects=defects
    )
    shift = None
    if row_errors is not None and np.isfinite(row_errors).all():
        units = kinds.sigma * (unit if is_weighted else 1.0)
        shift = solution.response(_of_rows(information_of, row_errors / units))
    n_linear_priors = int(is_linear_prior.sum())
    dof = rows.size - n_linear_priors - solution.fisher_information.rank
    is_datum = kinds.datum & ~is_penalty
    if not is_datum.all():  # rows of computed spreads, and penalties, are no data
        dof = round(float(np.sum((1.0 - solution.fisher_information.leverage)[is_datum]))) - n_linear_priors
    covariance_parts = solution.combined(spread, errors_of_gaps, shift, finder.is_at_bound[:n])
    unit = unit if is_weighted else np.full(rows.size, spread)
    rate = np.where(np.isfinite(unit) & (unit > 0.0), 1.0 / np.where(unit > 0.0, unit, 1.0), 1.0) * ~is_linear_prior
    return Statistics(
        information=solution.squares(_plus(_times(information_of, full_condensed.rows), fold).scaled(rate)),
        jacobian=solution.written(full_condensed.rows.scaled(np.where(is_linear_prior, 0.0, kinds.sigma)), kinds.datum),
        gradient=gradient,
        noise=ratio[: layout.n_groups] * linearization.sigma,
        noise_errors=linearization.sigma
        / np.sqrt(2.0 * np.where(dof_by_kind > 0.0, dof_by_kind, np.nan))[: layout.n_groups],
        dof=dof,
        covariance=covariance_parts.covariance,
        correlation=covariance_parts.correlation,
        standard_errors=covariance_parts.errors,
        numerical_errors=np.where(
            np.isfinite(covariance_parts.errors), np.sqrt(covariance_parts.numerical), covariance_parts.errors
        ),
        condition=solution.fisher_information.condition,
        directions=solution.fisher_information.directions,
        scale=solution.fisher_information.scale,
        rank=solution.fisher_information.rank,
        root=covariance_parts.root,
        leverage=solution.fisher_information.leverage[
            kinds.datum & (np.arange(rows.size) < rows.size - linearization.prior.size)
        ],
        by_priors=float(np.sum(solution.fisher_information.leverage[rows.size - linearization.prior.size :])),
        held_back=solution.fisher_information.leverage[is_penalty],
        inflation=float(ratio[0]) ** 2 if ratio.size == 1 and np.isfinite(ratio[0]) else 1.0,
        rank_tolerance=tolerance,
        has_fold=fold is not None,
    )


@dataclass(frozen=True)
class _CovarianceParts:
    """Covariance with statistical and numerical variance, its correlation and root, standard errors.

    numerical (n,) is the diagonal of the numerical part.
    """

    covariance: Array
    correlation: Array
    errors: Array
    numerical: Array
    root: Array


@dataclass(frozen=True)
class _DenseCovariance:
    """Information in the data, as dense matrices."""

    finder: _RankFinder
    fisher_information: FisherInformation

    def response(self, du: Array) -> Array:
        """Compute the response of theta to errors (m,) of the rows, (n,)."""
        return self.fisher_information.response @ du

    def combined(
        self, spread: float, errors_of_gaps: tuple[Array, ...], shift: Array | None, is_at_bound: Mask
    ) -> _CovarianceParts:
        """Add what the noise causes, of a standard deviation `spread`, and the integration: gaps and a known error."""
        finder = self.finder
        numerical = numerical_error(
            response_to_gaps(finder.condensed, self.fisher_information, finder.bounded, finder.path), errors_of_gaps
        )
        if shift is not None:
            numerical = numerical + shift[:, None] * shift
        covariance = spread**2 * self.fisher_information.inverse + numerical
        is_undetermined = self.fisher_information.undetermined
        compact = _compact(spread * self.fisher_information.root, numerical)
        covariance[is_at_bound] = covariance[:, is_at_bound] = np.nan
        covariance[is_undetermined] = covariance[:, is_undetermined] = np.nan
        covariance[is_undetermined, is_undetermined] = np.inf
        errors = np.sqrt(np.diag(covariance))
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = covariance / errors[:, None] / errors
        np.fill_diagonal(correlation, np.where(np.isfinite(errors), 1.0, np.nan))
        return _CovarianceParts(covariance, correlation, errors, np.diag(numerical), compact)

    def squares(self, rows: BlockRows) -> Array:
        """Return E^T E of some rows."""
        return rows.dense.T @ rows.dense

    def written(self, rows: BlockRows, is_selected: Mask) -> Array:
        """Return some of the rows as a matrix."""
        return rows.dense[is_selected]


@dataclass(frozen=True)
class _BlockCovariance:
    """Information in the data, in blocks of experiments; dense matrices are built for few quantities only."""

    finder: _RankFinder
    fisher_information: BlockFisherInformation

    @property
    def _few(self) -> bool:
        return self.fisher_information.scale.size <= MAX_WRITTEN_OUT_QUANTITIES

    def response(self, du: Array) -> Array:
        return self.fisher_information.response(du)

    def combined(
        self, spread: float, errors_of_gaps: tuple[Array, ...], shift: Array | None, is_at_bound: Mask
    ) -> _CovarianceParts:
        finder = self.finder
        numerical = self.fisher_information.numerical(
            finder.condensed, errors_of_gaps, finder.bounded, finder.path, shift
        )
        is_undetermined = self.fisher_information.undetermined
        covariance = replace(
            self.fisher_information.inverse.plus(numerical, spread**2),
            held=is_at_bound & ~is_undetermined,
            open=is_undetermined,
        )
        errors = np.sqrt(covariance.diagonal())
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = np.where(np.isfinite(errors) & (errors > 0.0), 1.0 / errors, np.nan)
        no_rows = np.zeros(errors.size, dtype=np.bool_)
        correlation = replace(covariance, held=is_at_bound | is_undetermined, open=no_rows).scaled(rate)
        parts = (errors, numerical.diagonal())
        if not self._few:  # what stands for arrays, and does what arrays do
            return _CovarianceParts(cast("Array", covariance), cast("Array", correlation), *parts, np.empty((0, 0)))
        dense = correlation.dense
        np.fill_diagonal(dense, np.where(np.isfinite(errors), 1.0, np.nan))
        return _CovarianceParts(
            covariance.dense, dense, *parts, _compact(spread * self.fisher_information.root, numerical.dense)
        )

    def squares(self, rows: BlockRows) -> Array:
        from castfit.result.fisher_information_arrow import of_squares
        from castfit.solve.arrow import arrow

        matrix = of_squares(arrow(rows, np.ones(rows.width)), self.fisher_information.inverse.names)
        return matrix.dense if self._few else cast("Array", matrix)

    def written(self, rows: BlockRows, is_selected: Mask) -> Array:
        if self._few:
            return rows.dense[is_selected]
        positions, values = rows.places
        matrix = scipy.sparse.csr_array((values, positions), shape=(rows.height, rows.width))[
            np.flatnonzero(is_selected)
        ]
        return cast("Array", matrix)


@dataclass(frozen=True)
class _RankFinder:
    """Inputs of the rank decision: rows, equations, and unknowns fixed by bounds.

    is_at_bound : (n_x,) unknowns at an active bound
    bounded, path : active bounds of eliminated variables, in v, and active path constraints
    arrow_matrix : the rows as an arrow, if own quantities are eliminated chain by chain
    equations : (k, n_x) or, of an arrow, (k, n_b)
    d : (n_x,)
    """

    condensed: Condensed
    rows: BlockRows
    is_at_bound: Mask
    bounded: NDArray[np.intp]
    path: NDArray[np.intp]
    arrow_matrix: ArrowMatrix | None
    equations: Array
    d: Array

    @classmethod
    def of_solution(
        cls, condensed: Condensed, informing: Condensed, rows: BlockRows, active: NDArray[np.int8]
    ) -> _RankFinder:
        """Collect the active equations; local quantities of chains with such equations are not eliminated."""
        d = _effects(informing)
        is_at_bound = active[condensed.positions] != 0
        bounds = _bound_rows(condensed, active, d)
        arrow_rows = None
        if rows.own_count > MAX_DENSE_LOCAL_UNKNOWNS:
            from castfit.solve.arrow import arrow

            lower, upper = condensed.layout.path_limits
            near_indices = np.flatnonzero(
                _find_near_constraints(condensed)[0] | _find_near_constraints(condensed)[1] | (lower == upper)
            )
            candidate_arrow = arrow(
                rows, 1.0 / d, _chains_with_local_equations(condensed, bounds.positions, near_indices)
            )
            arrow_rows = None if candidate_arrow.is_trivial else candidate_arrow
        border = None if arrow_rows is None else arrow_rows.border
        columns = slice(None) if border is None else border
        closure = np.vstack([condensed.closure.dense, bounds.rows])[:, columns]
        path = _path_rows(condensed, is_at_bound[columns], closure, d[columns], border)
        equations = np.vstack([closure, condensed.path.take_rows(path)[:, columns]])
        return cls(condensed, rows, is_at_bound, bounds.positions, path, arrow_rows, equations, d)

    def weighed(self, factors: Array) -> _RankFinder:
        """Return a copy with the rows multiplied by factors."""
        rows = self.rows.scaled(factors)
        if self.arrow_matrix is None:
            return replace(self, rows=rows)
        from castfit.solve.arrow import arrow

        return replace(self, rows=rows, arrow_matrix=arrow(rows, self.arrow_matrix.scale, ~self.arrow_matrix.free))

    def solve(self, tolerance: float) -> _DenseCovariance | _BlockCovariance:
        """Decide the rank, and invert what can be."""
        n = self.condensed.layout.n_theta
        if self.arrow_matrix is None:
            E = self.rows.dense
            fisher_information = information(
                E, self.equations, self.is_at_bound, n_theta=n, scale=self.d, rank_tolerance=tolerance
            )
            return _DenseCovariance(self, fisher_information)
        from castfit.result.fisher_information_arrow import own_information

        scaled, names = self.equations * self.arrow_matrix.scale[self.arrow_matrix.border], self.condensed.layout.names
        return _BlockCovariance(
            self,
            own_information(self.rows, self.arrow_matrix, scaled, self.is_at_bound, names, rank_tolerance=tolerance),
        )


def _compact(root: Array, correction: Array) -> Array:
    """Return an (n, n) root of  root root^T + more,  where more (n, n) is small.

    The sum itself would lose the combinations that are known best beside those that are known worst.
    """
    if not (
        np.isfinite(root).all() and np.isfinite(correction).all()
    ):  # as where nothing is left to estimate the noise
        return np.full(correction.shape, np.nan)
    size = np.sqrt(np.maximum(np.diag(correction), 0.0))
    S, V = np.linalg.eigh(correction / np.outer(positive(size), positive(size)))
    triangular = upper_factor(np.hstack([root, size[:, None] * V * np.sqrt(np.maximum(S, 0.0))]).T)
    return triangular[: root.shape[0]].T


def _straight(linearization: Linearization, m: int) -> Mask:
    """Return a mask of the rows, (m,), of priors whose cost is linear."""
    is_linear = np.zeros(m, dtype=np.bool_)
    if linearization.prior_curved is not None:
        is_linear[m - linearization.prior.size :] = ~linearization.prior_curved
    return is_linear


def _information(layout: Layout, linearization: Linearization) -> list[Array]:
    """Return by what blocks of rows are multiplied, so that their products are Fisher's information.

    Each block, (n,) factors or an (n, n) matrix, applies to the next n of the measured rows; others stay.
    """
    blocks: list[Array] = []
    if linearization.information is not None:
        for chain, chain_information in zip(layout.chains, linearization.information(), strict=True):
            if chain_information.ndim == 2:
                blocks.append(chain_information[chain.row_mask])
            else:
                blocks += [m[np.ix_(rows, rows)] for m, rows in zip(chain_information, chain.row_mask, strict=True)]
    return [block for block in blocks if len(block)]


def _times(blocks: list[Array], rows: BlockRows) -> BlockRows:
    """Multiply rows by blocks."""
    if not blocks:
        return rows
    products: list[Array] = []
    n_used = 0
    for chain_rows in rows.blocks:
        pieces: list[Array] = []
        offset = 0
        while offset < len(chain_rows):
            block = blocks[n_used]
            part = chain_rows[offset : offset + len(block)]
            pieces.append(block[:, None] * part if block.ndim == 1 else block @ part)
            offset, n_used = offset + len(block), n_used + 1
        products.append(np.concatenate([chain_rows[:0], *pieces]))
    return BlockRows(rows.columns, tuple(products), rows.tail)


def _plus(rows: BlockRows, fold: Array | None) -> BlockRows:
    """Add a matrix (m, n_theta) to the first columns of rows."""
    if fold is None:
        return rows
    n, width = fold.shape[1], rows.width
    return block_rows([(np.arange(width), rows.dense + np.pad(fold, ((0, 0), (0, width - n))))], width)


def _of_rows(blocks: list[Array], u: Array) -> Array:
    """Multiply values of rows (m,) by blocks."""
    products, offset = u.copy(), 0
    for block in blocks:
        row_range = slice(offset, offset + len(block))
        products[row_range] = block * u[row_range] if block.ndim == 1 else block @ u[row_range]
        offset = row_range.stop
    return products


@dataclass(frozen=True)
class _RowKinds:
    """Groups of rows (m,) with a common unknown sigma or computed spread.

    kind : (m,) which of them, -1 where sigma is known
    sizes : how many data each has
    n_groups : how many of them are unknown sigmas, the others are spreads
    sigma : (m,) the unknown sigma, 1 elsewhere
    datum : (m,) False for a value's second row
    """

    kind: NDArray[np.intp]
    sizes: Array
    n_groups: int
    sigma: Array
    datum: Mask

    @classmethod
    def from_layout(cls, layout: Layout, linearization: Linearization) -> _RowKinds:
        priors = np.full(linearization.prior.size, -1)
        group = np.concatenate([*(c.group[c.row_mask] for c in layout.chains), priors])
        spread = np.concatenate([*(c.spread[c.row_mask] for c in layout.chains), priors])
        datum = np.concatenate([*(c.datum_mask[c.row_mask] for c in layout.chains), priors < 0])
        spreads, spread_index = np.unique(spread[spread >= 0], return_inverse=True)
        kind = group.copy()
        kind[spread >= 0] = layout.n_groups + spread_index
        sizes = np.bincount(kind[datum] + 1, minlength=1 + layout.n_groups + spreads.size)[1:].astype(float)
        return cls(kind, sizes, layout.n_groups, np.append(linearization.sigma, 1.0)[group], datum)

    def unbiased(self, rows: Array, dof_by_kind: Array) -> Array:
        """Return the unbiased estimates of sigmas and spreads, in units of the most likely ones, (number of kinds,).

        free (number of kinds,) is n - tr H.
        """
        n = self.sizes.size
        is_counted = self.datum & (self.kind >= 0)
        squares = np.bincount(self.kind[is_counted], rows[is_counted] ** 2, minlength=n)
        squares = np.where(np.arange(n) < self.n_groups, squares, self.sizes)
        is_determined = dof_by_kind > ROUNDING_RTOL * self.sizes
        ratio = np.sqrt(squares / np.where(is_determined, dof_by_kind, 1.0))
        return np.where(is_determined, ratio, np.where(self.sizes == 0.0, 1.0, np.nan))


def residuals(layout: Layout, evaluation: Evaluation) -> Array:
    """Return the rows (m,): the measured ones chain by chain and stage by stage, then the prior."""
    measured = [part.r[chain.row_mask] for chain, part in zip(layout.chains, evaluation.values, strict=True)]
    return np.concatenate([*measured, evaluation.prior])


def weighted_residuals(layout: Layout, evaluation: Evaluation) -> Array:
    """Return the `residuals` (m,) in units of what data are weighted by: not divided by unknown sigmas."""
    rows = rows_in_units(layout, evaluation)
    return np.concatenate(
        [*(r[chain.row_mask] for chain, r in zip(layout.chains, rows, strict=True)), evaluation.prior]
    )


def numerical_error(response: tuple[Array, ...], errors: tuple[Array, ...]) -> Array:
    """Return the covariance (n, n) that independent errors of the matching conditions cause in theta.

    The estimate solves the discretised equations only: to the tolerance of the integration and up to the remaining
    gaps.  In an unstable system the data may seem to fix theta to far more digits than that.

    response (K, n_s, n) : d theta / d(initial and matching condition of each stage), per chain
    errors (K, n_s) : size of the errors of these conditions
    """
    scaled = [
        (rows * size[:, :, None]).reshape(size.size, rows.shape[2]) for rows, size in zip(response, errors, strict=True)
    ]
    scaled_rows = np.concatenate(scaled)
    return scaled_rows.T @ scaled_rows


def gap_errors(
    layout: Layout,
    linearization: Linearization,
    relative: float,
    absolute: float,
    *,
    scale: Array | None = None,
    defects: tuple[Array, ...] | None = None,
) -> tuple[Array, ...]:
    """Return, per chain (K, n_s), the gap before each node plus the error of the integration that led there.

    An error made early in a stage grows like the stage's own sensitivities: the tolerance applies to |x| and |X_s| |s|.
    The absolute one is relative to the nodes' scale.
    """
    scale = np.ones(layout.n_v) if scale is None else scale
    sizes: list[Array] = []
    solution_gaps = gaps(layout, linearization)
    model_gaps = solution_gaps if defects is None else defects
    for chain, gap, defect, values, j in zip(
        layout.chains, solution_gaps, model_gaps, linearization.values, linearization.jacobians, strict=True
    ):
        propagated_sizes = (np.abs(j.X_s) @ np.abs(linearization.v[chain.nodes])[:, :, None])[:, :, 0]
        size = np.maximum(np.abs(gap), np.abs(defect))
        size[1:] += relative * (np.abs(values.x[:-1]) + propagated_sizes[:-1]) + absolute * scale[chain.nodes[1:]]
        sizes.append(size)
    return tuple(sizes)


def response_to_gaps(
    condensed: Condensed, fisher_information: FisherInformation, bounded: NDArray[np.intp], path: NDArray[np.intp]
) -> tuple[Array, ...]:
    """Return d theta / d(initial and matching conditions), per chain (K, n_s, n).

    The estimate moves by  response du + closure_response de, where u and e depend on the gaps through the nodes: their
    multipliers, with theta in the place of the cost, are the derivatives.  The rows of e are the closure, the
    active bounds of v[bounded], and the active path constraints.
    """
    n, n_e = fisher_information.inverse.shape[0], condensed.e.size
    closure, bound, constraint = np.split(fisher_information.closure_response.T, [n_e, n_e + bounded.size])
    bounds, paths = np.zeros((condensed.layout.n_v, n)), np.zeros((condensed.c.size, n))
    bounds[bounded], paths[path] = bound, constraint
    response = adjoint(condensed, fisher_information.response.T, bounds, paths, closure)
    return tuple(np.concatenate([m.initial[None], m.matching]) for m in response)


@dataclass(frozen=True)
class _BoundRows:
    """Active bounds of eliminated variables v[positions] as rows in the unknowns x."""

    positions: NDArray[np.intp]
    rows: Array


def _bound_rows(condensed: Condensed, active: NDArray[np.int8], d: Array) -> _BoundRows:
    """Collect the active bounds of nodes and inner variables, without those that no unknown moves."""
    eliminated = active != 0
    eliminated[condensed.positions] = False
    positions = [np.empty(0, dtype=np.intp)]
    rows = [np.empty((0, d.size))]
    for part in condensed.chains:
        inner = part.inner()[1] if eliminated[part.chain.inner].any() else np.empty((0, 0, 0))
        for places, derivative in ((part.chain.nodes, part.G), (part.chain.inner, inner)):
            is_eliminated = eliminated[places]
            if not is_eliminated.any():
                continue
            effect = np.linalg.norm(derivative / d[part.columns], axis=2)
            is_eliminated &= effect > NEGLIGIBLE_EFFECT_RTOL * effect.max(axis=0)
            full = np.zeros((int(is_eliminated.sum()), d.size))
            full[:, part.columns] = derivative[is_eliminated]
            positions.append(places[is_eliminated])
            rows.append(full)
    return _BoundRows(np.concatenate(positions), np.vstack(rows))


def _find_near_constraints(condensed: Condensed) -> tuple[Mask, Mask]:
    """Return masks of the path constraints near their lower and near their upper bound."""
    lower, upper = condensed.layout.path_limits
    size = condensed.layout.path_units + np.abs(condensed.c)
    return condensed.c - lower <= ACTIVE_INEQUALITY_RTOL * size, upper - condensed.c <= ACTIVE_INEQUALITY_RTOL * size


def _chains_with_local_equations(condensed: Condensed, bounded: NDArray[np.intp], path: NDArray[np.intp]) -> Mask:
    """Return a mask of the chains with equations that own quantities may enter, (number of chains,)."""
    is_coupled = np.array([part.e.size > 0 for part in condensed.chains], dtype=np.bool_)
    path_rows = condensed.path
    is_coupled[np.unique(np.searchsorted(path_rows.starts, path[path < path_rows.starts[-1]], side="right") - 1)] = True
    tail = path_rows.tail.select_rows(path[path >= path_rows.starts[-1]] - path_rows.starts[-1])
    is_bounded = np.zeros(condensed.layout.n_v, dtype=np.bool_)
    is_bounded[bounded] = True
    is_private = np.zeros(path_rows.width, dtype=np.bool_)
    is_private[tail.column] = True
    chain_counts = np.zeros(path_rows.width, dtype=np.intp)
    for part in condensed.chains:
        chain_counts[part.columns] += 1
    is_private &= chain_counts == 1
    for i, part in enumerate(condensed.chains) if is_bounded.any() or is_private.any() else ():
        is_coupled[i] |= bool(is_bounded[part.chain.nodes].any() or is_bounded[part.chain.inner].any())
        is_coupled[i] |= bool(is_private[part.columns].any())
    return is_coupled


def _path_rows(
    condensed: Condensed, is_at_bound: Mask, equations: Array, d: Array, border: NDArray[np.intp] | None
) -> NDArray[np.intp]:
    """Find the path constraints that hold as equations: equal bounds, or a bound that holds the optimum back.

    Which inequalities do, among those near a bound, is read off multipliers lambda >= 0 that make the gradient vanish.
    Equations, d and `is_at_bound` are of all unknowns, or of those in a border.
    """
    lower, upper = condensed.layout.path_limits
    equal = lower == upper
    below, above = _find_near_constraints(condensed)
    near_indices = np.flatnonzero((below | above) & ~equal)
    if near_indices.size == 0:
        return np.flatnonzero(equal)
    columns = slice(None) if border is None else border
    pinned, C = (
        condensed.path.take_rows(np.flatnonzero(equal))[:, columns],
        condensed.path.take_rows(near_indices)[:, columns],
    )
    Z, _ = free_basis(np.vstack([equations, pinned]) / d, is_at_bound)
    gradient = condensed.rows.transposed(condensed.u)[columns] / d @ Z
    outward = np.where(below[near_indices], -1.0, 1.0)[:, None] * C / d @ Z
    outward /= positive(np.linalg.norm(outward, axis=1))[:, None]
    pressure, _ = scipy.optimize.nnls(outward.T, -gradient)
    is_active = pressure > ACTIVE_INEQUALITY_RTOL * np.linalg.norm(condensed.u)  # columns of E / d have length 1
    return np.sort(np.concatenate([np.flatnonzero(equal), near_indices[is_active]]))


def _effects(condensed: Condensed) -> Array:
    """Return d (n_x,): the column norms of E, and of F in units of the data where nodes stay unknown."""
    of_data, of_closure = condensed.rows.norms, condensed.closure.norms
    n = condensed.layout.n_theta
    exchange = of_data[n:] / positive(of_closure[n:])  # what closing a gap at a node costs in the data
    return positive(np.hypot(of_data, exchange.max(initial=0.0) * of_closure))


def quantile(level: float, dof: float) -> float:
    """Return the half-width of a two-sided interval in standard errors: Student's t, or normal for dof = inf."""
    if dof <= 0:
        return np.nan
    upper = 0.5 + level / 2
    return normal_quantile(upper) if np.isinf(dof) else t_quantile(dof, upper)


def neg2loglik(cost: float, constant: float, *, n_unknown: int = 0) -> float:
    """Return -2 log likelihood, with all constants.

    cost : what was minimised
    constant : what it lacks for -log of the density of data and priors, with unknown sigmas at 1
    n_unknown : how many of the data have an unknown factor on their standard deviation; it takes its most likely value
    """
    return float(2 * (cost + constant) + n_unknown)
