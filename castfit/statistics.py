"""What the data say about theta: its covariance, its numerical error, and the directions left undetermined.

Everything follows from the reduced Jacobian E: nodes and inner variables are eliminated by the linearised
constraints, so that the figures depend neither on the transcription nor on the solver that found the solution.

Notation
--------
E  (m, n)     d r / d theta along the constraints; m = n_data + n_prior rows, n = n_theta
F  (n_f, n)   active node bounds and path constraints as rows,  F dtheta = 0
d  (n,)       column norms of E: in y = d * dtheta every quantity has the same effect on the data
Z  (n, f)     orthonormal basis of the free y: nothing at its bound, F dtheta = 0
W  (n, rank)  the free y that the data determine;  N (n, f - rank) those that they do not

    E diag(1/d) Z = U S V^T,   [W N] = Z V,   N where S <= rank_tolerance * S[0]
    covariance of theta = diag(1/d) W S^-2 W^T diag(1/d)

Rows have variance 1.  Those of an unknown sigma are divided by its unbiased estimate,  s2 = SSE / (n - tr H),  where
tr H is what the n data of the group contribute to the estimates, the sum of their leverages |U_i|^2: the number of
quantities where there are no priors.  Rows of a spread that is computed from estimated quantities are corrected by the
same factor, n / (n - tr H), so that it makes no difference whether a sigma is eliminated or a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg, optimize, special

from castfit.solve.condensing import Condensed, adjoint, condense
from castfit.solve.elimination import choose
from castfit.staged import Evaluation, Layout, Linearization, gaps, rows_in_units

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

RANK_TOLERANCE = 1e-7  # scaled singular values below this fraction of the largest are no information ...
DERIVATIVE_ERROR = 30.0  # ... nor below this times the integrator's tolerance (measured: 1 times, without any gaps)
ROUNDING = 1e-14  # rows that small beside others are zero
NEGLIGIBLE = 1e-10  # constraints that repeat others, or move nothing, up to this are dropped
NEAR = 1e-6  # relative distance from its bound at which an inequality is examined
PARTICIPATION = 1e-3  # a quantity takes part in an undetermined direction if its weight there exceeds this


@dataclass(frozen=True)
class Information:
    """What a condensed problem determines, for noise of variance 1; n = n_theta, f free directions.

    Attributes
    ----------
    inverse : (n, n) array
        Inverse of E^T E along the constraints, on the determined subspace; 0 for quantities at a bound.
    root : (n, rank) array
        inverse = root root^T.
    response : (n, m) array
        How the estimate answers to errors of the residuals, d theta / d u.
    closure_response : (n, n_f) array
        How it answers to errors of the equations, d theta / d e.
    rank : int
        Number of free directions that the data determine.
    singular_values : (f,) array
        Of E diag(1/d) Z, decreasing.
    directions : (f - rank, n) array
        Undetermined directions d * dtheta, each of length 1 and on as few quantities as possible.
    scale : (n,) array
        d, the effect of each quantity on the data.
    undetermined : (n,) bool array
        Quantities that take part in an undetermined direction.
    leverage : (m,) array
        How much of each row's own error the fit follows, from 0 to 1.
    """

    inverse: Array
    root: Array
    response: Array
    closure_response: Array
    rank: int
    singular_values: Array
    directions: Array
    scale: Array
    undetermined: Mask
    leverage: Array

    @property
    def condition(self) -> float:
        """Condition number of the column-scaled Jacobian on the free subspace; inf if it is deficient."""
        s = self.singular_values
        if s.size == 0:
            return 1.0
        return float(s[0] / s[-1]) if self.rank == s.size else np.inf


def information(
    E: Array,
    F: Array,
    held: Mask,
    *,
    n_theta: int | None = None,
    scale: Array | None = None,
    rank_tolerance: float = RANK_TOLERANCE,
) -> Information:
    """Decide the rank of a condensed least-squares problem, and invert it where it can be inverted.

    Parameters
    ----------
    E : (m, n_x) array
        Derivative of the residuals.
    F : (n_f, n_x) array
        Derivative of the equations.
    held : (n_x,) bool array
        Unknowns that a bound holds; they are excluded.
    n_theta : int, optional
        Only the first n_theta unknowns are reported; by default all.
    scale : (n_x,) array, optional
        d; by default the column norms of E.
    rank_tolerance : float
        Singular values of the column-scaled Jacobian below this fraction of the largest count as zero.
    """
    m = E.shape[0]
    d = _positive(np.linalg.norm(E, axis=0) if scale is None else scale)
    n = d.size if n_theta is None else n_theta
    Z, F_inverse = _free_basis(F / d, held)
    f = Z.shape[1]
    # Rows of zeros make the SVD return all f directions where there are fewer data than that.
    padded = np.vstack([E / d @ Z, np.zeros((max(f - m, 0), f))])
    U, S, Vt = np.linalg.svd(padded, full_matrices=False)
    rank = int(np.count_nonzero(rank_tolerance * S[0] < S)) if f and S[0] > 0 else 0
    W, N = Z @ Vt[:rank].T, Z[:n] @ Vt[rank:].T
    half = W / S[:rank] / d[:, None]
    response = -half @ U[:m, :rank].T
    to_closure = -F_inverse / d[:, None]  # d x / d e with the least d x, then corrected for what that does to u
    return Information(
        inverse=half[:n] @ half[:n].T,
        root=half[:n],
        response=response[:n],
        closure_response=(to_closure + response @ (E @ to_closure))[:n],
        rank=rank,
        singular_values=S,
        directions=_sparse_basis(N),
        scale=d[:n],
        undetermined=np.linalg.norm(N, axis=1) > PARTICIPATION * np.linalg.norm(N, axis=0).min(initial=1.0),
        leverage=np.sum(U[:m, :rank] ** 2, axis=1),
    )


def _positive(lengths: Array) -> Array:
    return np.where(lengths > 0.0, lengths, 1.0)


def _free_basis(F: Array, held: Mask) -> tuple[Array, Array]:
    """Return an orthonormal basis (n, f) of what F x = 0 and `held` leave free, and the pseudo-inverse of F there."""
    free = np.eye(held.size)[:, ~held]
    rows = F @ free
    lengths = np.linalg.norm(rows, axis=1)
    weight = np.where(lengths > ROUNDING * lengths.max(initial=0.0), 1.0 / _positive(lengths), 0.0)
    U, S, Vt = np.linalg.svd(rows * weight[:, None], full_matrices=True)
    rank = int(np.count_nonzero(S > NEGLIGIBLE))
    inverse = Vt[:rank].T / S[:rank] @ U[:, :rank].T * weight
    return free @ Vt[rank:].T, free @ inverse


def _sparse_basis(N: Array) -> Array:
    """Return vectors (k, n) that span the columns of N, each of length 1 and concentrated on few entries."""
    k = N.shape[1]
    if k == 0:
        return N.T
    pivots = linalg.qr(N.T, mode="r", pivoting=True)[1][:k]
    rows = linalg.solve(N[pivots].T, N.T)  # row i is 1 at pivot i and 0 at the other pivots
    rows[np.abs(rows) < 0.1 * PARTICIPATION] = 0.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.sign(rows[np.arange(k), np.argmax(rows != 0.0, axis=1)])[:, None]  # first entry positive


@dataclass(frozen=True)
class Statistics:
    """Statistics of a solution, in search scale; n = n_theta.

    Attributes
    ----------
    jacobian : (m, n) array
        Derivative of weighted residuals with all nodes eliminated, in units of unknown sigmas' data; rows of priors
        last.
    gradient : (n,) array
        E^T r, the derivative of the cost.
    noise, noise_errors : (n_groups,) arrays
        Unbiased estimates of the unknown sigmas; standard errors of their most likely values.
    dof : int
        Rows minus the number of directions that they determine.
    covariance, correlation : (n, n) arrays
        NaN where a bound holds a quantity; the diagonal is inf, the rest of the row NaN, where the data leave it open.
    standard_errors : (n,) array
        Square roots of the covariance's diagonal, which adds statistical and numerical variance.
    numerical_errors : (n,) array
        Part of the standard errors that comes from the finite accuracy of the integration.
    condition : float
        Condition number of the column-scaled Jacobian on the free subspace.
    directions : (k, n) array
        Undetermined directions scale * dtheta, each of length 1.
    scale : (n,) array
        Effect of each quantity on the data.
    used : float
        The degrees of freedom that the estimates take from data and priors: the sum of the leverages of their rows.
    held_back : (n_penalties,) array
        The leverage of each penalty.
    inflation : float
        The unbiased variance of an unknown sigma that all data share, in units of the most likely one; else 1.
    information : (n, n) array
        Fisher's information of data and priors on theta, bounds and other active constraints left aside.
    rank : int
        Number of directions that data and priors determine.
    root : (n, n) array
        root root^T is the covariance of what is determined, whatever is not; 0 in rows of quantities at a bound.
    leverage : (n_data,) array
        How much of each value's own error the fit follows, from 0 to 1; their sum is the number of directions that the
        data determine, less what priors do.
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
    used: float
    held_back: Array
    inflation: float


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
) -> Statistics:
    """Compute the statistics of a solution from its linearization.

    Parameters
    ----------
    layout : Layout
    linearization : Linearization
        At the solution.
    active : (n_v,) int array
        -1 where the lower bound of a variable is active, +1 the upper, 0 neither.
    scale : (n_v,) array, optional
        Typical magnitudes of all variables.
    relative_tolerance, absolute_tolerance : float
        To which the states at the ends of stages, and their derivatives, are accurate; the latter in units of `scale`.
    row_errors : (m,) array, optional
        Known errors of the `weighted_residuals`, by which the estimates are off.
    penalty : (n_prior,) bool array, optional
        Which rows of priors are penalties, which count as no degrees of freedom.  Where one unknown sigma is common to
        all data its bias is theirs too: they are chosen in its units.
    defects : tuple of (K, n_s) arrays, optional
        Known gaps before the nodes, where the linearization's own are not those of the model.
    """
    n = layout.n_theta
    condensed = choose(layout, linearization, scale)
    rows = residuals(layout, linearization)
    with np.errstate(over="ignore", invalid="ignore"):  # condensing a violently unstable system overflows
        plain = condensed if condensed.n_x == n else condense(layout, linearization)
        gradient = plain.E.T @ rows
    straight = _straight(linearization, rows.size)  # they move the estimates, but hold no information
    informing = (
        replace(condensed, rows=condensed.rows.scaled(np.where(straight, 0.0, 1.0))) if straight.any() else condensed
    )
    d = _effects(informing)
    held = active[condensed.positions] != 0
    bounds = _bound_rows(condensed, active, d)
    path = _path_rows(condensed, held, np.vstack([condensed.F, bounds.rows]), d)
    equations = np.vstack([condensed.F, bounds.rows, condensed.C[path]])
    tolerance = max(RANK_TOLERANCE, DERIVATIVE_ERROR * relative_tolerance)
    information_of = _information(layout, linearization)
    informative = _times(information_of, informing.E)
    found = information(informative, equations, held, n_theta=n, scale=d, rank_tolerance=tolerance)
    kinds = _Kinds.of(layout, linearization)
    penalised = np.zeros(rows.size, dtype=np.bool_)
    if penalty is not None:
        penalised[rows.size - penalty.size :] = penalty
    free = kinds.sizes - np.bincount(kinds.kind + 1, found.leverage * kinds.datum, minlength=kinds.sizes.size + 1)[1:]
    ratio = kinds.unbiased(rows, free)
    weighed = bool(np.isfinite(ratio).all()) and np.unique(kinds.kind).size > 1
    unit = np.append(ratio, 1.0)[kinds.kind]
    unit[penalised] = ratio[0] if ratio.size == 1 else 1.0
    if weighed:  # rows of different kind are weighed against each other
        informative = informative / unit[:, None]
        found = information(informative, equations, held, n_theta=n, scale=d, rank_tolerance=tolerance)
        spread = 1.0
    else:
        spread = float(ratio[0]) if ratio.size else 1.0
    numerical = numerical_error(
        response_to_gaps(condensed, found, bounds.positions, path),
        gap_errors(layout, linearization, relative_tolerance, absolute_tolerance, scale=scale, defects=defects),
    )
    if row_errors is not None and np.isfinite(row_errors).all():
        units = kinds.sigma * (unit if weighed else 1.0)
        shift = found.response @ _times(information_of, (row_errors / units)[:, None])[:, 0]
        numerical += shift[:, None] * shift
    n_straight = int(straight.sum())
    dof = rows.size - n_straight - found.rank
    counted = kinds.datum & ~penalised
    if not counted.all():  # rows of computed spreads, and penalties, are no data
        dof = round(float(np.sum((1.0 - found.leverage)[counted]))) - n_straight
    covariance = spread**2 * found.inverse + numerical
    compact = _compact(spread * found.root, numerical)
    covariance[held[:n]] = covariance[:, held[:n]] = np.nan
    covariance[found.undetermined] = covariance[:, found.undetermined] = np.nan
    covariance[found.undetermined, found.undetermined] = np.inf
    errors = np.sqrt(np.diag(covariance))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = covariance / errors[:, None] / errors
    np.fill_diagonal(correlation, np.where(np.isfinite(errors), 1.0, np.nan))
    unit = unit if weighed else np.full(rows.size, spread)
    rate = np.where(np.isfinite(unit) & (unit > 0.0), 1.0 / np.where(unit > 0.0, unit, 1.0), 1.0) * ~straight
    root = _times(information_of, plain.E) * rate[:, None]
    return Statistics(
        information=root.T @ root,
        jacobian=(np.where(straight[:, None], 0.0, plain.E) * kinds.sigma[:, None])[kinds.datum],
        gradient=gradient,
        noise=ratio[: layout.n_groups] * linearization.sigma,
        noise_errors=linearization.sigma / np.sqrt(2.0 * np.where(free > 0.0, free, np.nan))[: layout.n_groups],
        dof=dof,
        covariance=covariance,
        correlation=correlation,
        standard_errors=errors,
        numerical_errors=np.where(np.isfinite(errors), np.sqrt(np.diag(numerical)), errors),
        condition=found.condition,
        directions=found.directions,
        scale=found.scale,
        rank=found.rank,
        root=compact,
        leverage=found.leverage[kinds.datum & (np.arange(rows.size) < rows.size - linearization.prior.size)],
        used=float(np.sum(found.leverage[counted])),
        held_back=found.leverage[penalised],
        inflation=float(ratio[0]) ** 2 if ratio.size == 1 and np.isfinite(ratio[0]) else 1.0,
    )


def _compact(root: Array, more: Array) -> Array:
    """Return an (n, n) root of  root root^T + more,  where more (n, n) is small.

    The sum itself would lose the combinations that are known best beside those that are known worst.
    """
    if not (np.isfinite(root).all() and np.isfinite(more).all()):  # as where nothing is left to estimate the noise
        return np.full(more.shape, np.nan)
    size = np.sqrt(np.maximum(np.diag(more), 0.0))
    S, V = np.linalg.eigh(more / np.outer(_positive(size), _positive(size)))
    both = np.hstack([root, size[:, None] * V * np.sqrt(np.maximum(S, 0.0))])
    triangular = np.asarray(linalg.qr(both.T, mode="r")[0], dtype=float)
    return triangular[: root.shape[0]].T


def _straight(linearization: Linearization, m: int) -> Mask:
    """Return which rows, (m,), are those of a prior whose cost is straight."""
    out = np.zeros(m, dtype=np.bool_)
    if linearization.prior_curved is not None:
        out[m - linearization.prior.size :] = ~linearization.prior_curved
    return out


def _information(layout: Layout, linearization: Linearization) -> list[Array]:
    """Return by what blocks of rows are multiplied, so that their products are Fisher's information.

    Each block, (n,) factors or an (n, n) matrix, applies to the next n of the measured rows; others stay.
    """
    blocks: list[Array] = []
    if linearization.information is not None:
        for chain, of in zip(layout.chains, linearization.information(), strict=True):
            if of.ndim == 2:
                blocks.append(of[chain.row_mask])
            else:
                blocks += [m[np.ix_(rows, rows)] for m, rows in zip(of, chain.row_mask, strict=True)]
    return blocks


def _times(blocks: list[Array], rows: Array) -> Array:
    """Multiply rows (m, n) by blocks."""
    out, first = rows.copy(), 0
    for block in blocks:
        own = slice(first, first + len(block))
        out[own] = block[:, None] * rows[own] if block.ndim == 1 else block @ rows[own]
        first = own.stop
    return out


@dataclass(frozen=True)
class _Kinds:
    """What rows (m,) have in common: an unknown sigma, or a computed spread.

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
    def of(cls, layout: Layout, linearization: Linearization) -> _Kinds:
        priors = np.full(linearization.prior.size, -1)
        group = np.concatenate([*(c.group[c.row_mask] for c in layout.chains), priors])
        spread = np.concatenate([*(c.spread[c.row_mask] for c in layout.chains), priors])
        datum = np.concatenate([*(c.datum_mask[c.row_mask] for c in layout.chains), priors < 0])
        spreads, place = np.unique(spread[spread >= 0], return_inverse=True)
        kind = group.copy()
        kind[spread >= 0] = layout.n_groups + place
        sizes = np.bincount(kind[datum] + 1, minlength=1 + layout.n_groups + spreads.size)[1:].astype(float)
        return cls(kind, sizes, layout.n_groups, np.append(linearization.sigma, 1.0)[group], datum)

    def unbiased(self, rows: Array, free: Array) -> Array:
        """Return the unbiased estimates of sigmas and spreads, in units of the most likely ones, (number of kinds,).

        free (number of kinds,) is n - tr H.
        """
        ratio = np.full(self.sizes.size, np.nan)
        for g, (size, dof) in enumerate(zip(self.sizes, free, strict=True)):
            own = (self.kind == g) & self.datum
            squares = float(np.sum(rows[own] ** 2)) if g < self.n_groups else size
            if dof > ROUNDING * size:
                ratio[g] = np.sqrt(squares / dof)
            elif size == 0.0:
                ratio[g] = 1.0
        return ratio


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

    Parameters
    ----------
    response : tuple of (K, n_s, n) arrays
        d theta / d(initial and matching condition of each stage), per chain.
    errors : tuple of (K, n_s) arrays
        Size of the errors of these conditions.
    """
    scaled = [
        (rows * size[:, :, None]).reshape(size.size, rows.shape[2]) for rows, size in zip(response, errors, strict=True)
    ]
    every = np.concatenate(scaled)
    return every.T @ every


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
    found = gaps(layout, linearization)
    known = found if defects is None else defects
    for chain, gap, defect, values, j in zip(
        layout.chains, found, known, linearization.values, linearization.jacobians, strict=True
    ):
        grown = (np.abs(j.X_s) @ np.abs(linearization.v[chain.nodes])[:, :, None])[:, :, 0]
        size = np.maximum(np.abs(gap), np.abs(defect))
        size[1:] += relative * (np.abs(values.x[:-1]) + grown[:-1]) + absolute * scale[chain.nodes[1:]]
        sizes.append(size)
    return tuple(sizes)


def response_to_gaps(
    condensed: Condensed, found: Information, bounded: NDArray[np.intp], path: NDArray[np.intp]
) -> tuple[Array, ...]:
    """Return d theta / d(initial and matching conditions), per chain (K, n_s, n).

    The estimate moves by  response du + closure_response de, where u and e depend on the gaps through the nodes: their
    multipliers, with theta in the place of the cost, are the derivatives.  The rows of e are those of the closure, of
    active bounds of v[bounded], and of active path constraints.
    """
    n, n_e = found.inverse.shape[0], condensed.e.size
    closure, bound, constraint = np.split(found.closure_response.T, [n_e, n_e + bounded.size])
    bounds, paths = np.zeros((condensed.layout.n_v, n)), np.zeros((condensed.c.size, n))
    bounds[bounded], paths[path] = bound, constraint
    response = adjoint(condensed, found.response.T, bounds, paths, closure)
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
            hit = eliminated[places]
            if not hit.any():
                continue
            effect = np.linalg.norm(derivative / d[part.columns], axis=2)
            hit &= effect > NEGLIGIBLE * effect.max(axis=0)
            full = np.zeros((int(hit.sum()), d.size))
            full[:, part.columns] = derivative[hit]
            positions.append(places[hit])
            rows.append(full)
    return _BoundRows(np.concatenate(positions), np.vstack(rows))


def _path_rows(condensed: Condensed, held: Mask, equations: Array, d: Array) -> NDArray[np.intp]:
    """Find the path constraints that hold as equations: equal bounds, or a bound that holds the optimum back.

    Which inequalities do, among those near a bound, is read off multipliers lambda >= 0 that make the gradient vanish.
    """
    lower, upper = condensed.layout.path_limits
    equal = lower == upper
    size = condensed.layout.path_units + np.abs(condensed.c)
    below, above = condensed.c - lower <= NEAR * size, upper - condensed.c <= NEAR * size
    near = np.flatnonzero((below | above) & ~equal)
    if near.size == 0:
        return np.flatnonzero(equal)
    Z, _ = _free_basis(np.vstack([equations, condensed.C[equal]]) / d, held)
    gradient = condensed.u @ condensed.E / d @ Z
    outward = np.where(below[near], -1.0, 1.0)[:, None] * condensed.C[near] / d @ Z
    outward /= _positive(np.linalg.norm(outward, axis=1))[:, None]
    pressure, _ = optimize.nnls(outward.T, -gradient)
    holding = pressure > NEAR * np.linalg.norm(condensed.u)  # columns of E / d have length 1
    return np.sort(np.concatenate([np.flatnonzero(equal), near[holding]]))


def _effects(condensed: Condensed) -> Array:
    """Return d (n_x,): the column norms of E, and of F in units of the data where nodes stay unknown."""
    of_data, of_closure = np.linalg.norm(condensed.E, axis=0), np.linalg.norm(condensed.F, axis=0)
    n = condensed.layout.n_theta
    exchange = of_data[n:] / _positive(of_closure[n:])  # what closing a gap at a node costs in the data
    return _positive(np.hypot(of_data, exchange.max(initial=0.0) * of_closure))


def quantile(level: float, dof: float) -> float:
    """Return the half-width of a two-sided interval in standard errors: Student's t, or normal for dof = inf."""
    if dof <= 0:
        return np.nan
    upper = 0.5 + level / 2
    # scipy.special rather than scipy.stats, whose import alone takes a quarter of castfit's.
    return float(special.ndtri(upper) if np.isinf(dof) else special.stdtrit(dof, upper))


def neg2loglik(cost: float, constant: float, *, n_unknown: int = 0) -> float:
    """Return -2 log likelihood, with all constants.

    Parameters
    ----------
    cost : float
        What was minimised.
    constant : float
        What it lacks for -log of the density of data and priors, with unknown sigmas at 1.
    n_unknown : int
        How many of the data have an unknown factor on their standard deviation; it takes its most likely value.
    """
    return float(2 * (cost + constant) + n_unknown)
