"""Fisher information of a condensed problem: rank, inverse, undetermined directions, leverages.

Notation
--------
E  (m, n)     d r / d theta along the constraints; m = n_data + n_prior rows, n = n_theta
F  (n_f, n)   active node bounds and path constraints as rows,  F dtheta = 0
d  (n,)       column norms of E: in y = d * dtheta every quantity has the same effect on the data
Z  (n, f)     orthonormal basis of the free y: nothing at its bound, F dtheta = 0
W  (n, rank)  the free y that the data determine;  N (n, f - rank) those that they do not

    E diag(1/d) Z = U S V^T,   [W N] = Z V,   N where S <= rank_tolerance * S[0]
    covariance of theta = diag(1/d) W S^-2 W^T diag(1/d)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy

from castfit._support.records import dataclass

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Mask


RANK_TOLERANCE = 1e-7  # scaled singular values below this fraction of the largest are no information
ROUNDING_RTOL = 1e-14  # Relative size below which rows or degrees of freedom are rounding errors.
NEGLIGIBLE_EFFECT_RTOL = (
    1e-10  # Relative effect below which constraints are dropped: they repeat others or move nothing.
)
MIN_DIRECTION_WEIGHT = 1e-3  # a quantity takes part in an undetermined direction if its weight there exceeds this


@dataclass(frozen=True)
class FisherInformation:
    """Information in a condensed problem, for noise of variance 1; n = n_theta, f free directions.

    inverse (n, n) : inverse of E^T E along the constraints, on the determined subspace; 0 for quantities at a bound
    root (n, rank) : inverse = root root^T
    response (n, m) : how the estimate answers to errors of the residuals, d theta / d u
    closure_response (n, n_f) : how it answers to errors of the equations, d theta / d e
    rank : number of free directions that the data determine
    singular_values (f,) : of E diag(1/d) Z, decreasing
    directions (f - rank, n) : undetermined directions d * dtheta, each of length 1 and on as few quantities as possible
    scale (n,) : d, the effect of each quantity on the data
    undetermined (n,) : quantities that take part in an undetermined direction
    null (n, f - rank) : N: undetermined directions d * dtheta, each of length 1 with what follows from it
    leverage (m,) : how much of each row's own error the fit follows, from 0 to 1
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
    null: Array
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
    is_at_bound: Mask,
    *,
    n_theta: int | None = None,
    scale: Array | None = None,
    rank_tolerance: float = RANK_TOLERANCE,
    metric: Array | None = None,
    largest: float = 0.0,
) -> FisherInformation:
    """Decide the rank of a condensed least-squares problem, and invert it where it can be inverted.

    E (m, n_x) : derivative of the residuals
    F (n_f, n_x) : derivative of the equations
    is_at_bound (n_x,) : unknowns at an active bound; they are excluded
    n_theta : only the first n_theta unknowns are reported; by default all
    scale (n_x,) : d; by default the column norms of E
    rank_tolerance : singular values of the column-scaled Jacobian below this fraction of the largest count as zero
    metric (n_x, n_x) : y^T metric y is the square length of a direction y, where others follow from it; by default y^T
        y
    largest : a singular value of a larger matrix, of which these are the rest
    """
    m = E.shape[0]
    d = positive(np.linalg.norm(E, axis=0) if scale is None else scale)
    n = d.size if n_theta is None else n_theta
    free_directions, F_inverse = free_basis(F / d, is_at_bound)
    Z = free_directions if metric is None else _of_unit_length(free_directions, metric)
    f = Z.shape[1]
    # Rows of zeros make the SVD return all f directions where there are fewer data than that.
    padded = np.vstack([E / d @ Z, np.zeros((max(f - m, 0), f))])
    U, S, Vt = np.linalg.svd(padded, full_matrices=False)
    max_singular_value = max(largest, float(S[0]) if f else 0.0)
    rank = int(np.count_nonzero(rank_tolerance * max_singular_value < S)) if max_singular_value > 0 else 0
    W, N = Z @ Vt[:rank].T, Z[:n] @ Vt[rank:].T
    half = W / S[:rank] / d[:, None]
    response = -half @ U[:m, :rank].T
    to_closure = -F_inverse / d[:, None]  # d x / d e with the least d x, then corrected for what that does to u
    return FisherInformation(
        inverse=half[:n] @ half[:n].T,
        root=half[:n],
        response=response[:n],
        closure_response=(to_closure + response @ (E @ to_closure))[:n],
        rank=rank,
        singular_values=S,
        directions=sparse_basis(N),
        scale=d[:n],
        undetermined=takes_part(N),
        null=N,
        leverage=np.sum(U[:m, :rank] ** 2, axis=1),
    )


def _of_unit_length(Z: Array, metric: Array) -> Array:
    """Return a basis of the same space in which y^T metric y is the square length of a direction y."""
    if not Z.shape[1]:
        return Z
    G = scipy.linalg.cholesky(Z.T @ metric @ Z)
    return np.asarray(scipy.linalg.solve_triangular(G, Z.T, trans="T"), dtype=float).T


def takes_part(N: Array) -> Mask:
    """Return a mask of the quantities (rows of N) that take part in any of the directions (columns)."""
    return np.linalg.norm(N, axis=1) > MIN_DIRECTION_WEIGHT * np.linalg.norm(N, axis=0).min(initial=1.0)


def positive(lengths: Array) -> Array:
    """Return lengths with 1 for those that are zero."""
    return np.where(lengths > 0.0, lengths, 1.0)


def free_basis(F: Array, is_at_bound: Mask) -> tuple[Array, Array]:
    """Return an orthonormal basis (n, f) of the free directions, and the pseudo-inverse of F on them.

    Free directions x satisfy F x = 0 and are zero for unknowns that are at a bound.
    """
    free_columns = np.eye(is_at_bound.size)[:, ~is_at_bound]
    if not len(F):
        return free_columns, np.empty((is_at_bound.size, 0))
    rows = F @ free_columns
    lengths = np.linalg.norm(rows, axis=1)
    weight = np.where(lengths > ROUNDING_RTOL * lengths.max(initial=0.0), 1.0 / positive(lengths), 0.0)
    U, S, Vt = np.linalg.svd(rows * weight[:, None], full_matrices=True)
    rank = int(np.count_nonzero(S > NEGLIGIBLE_EFFECT_RTOL))
    inverse = Vt[:rank].T / S[:rank] @ U[:, :rank].T * weight
    return free_columns @ Vt[rank:].T, free_columns @ inverse


def sparse_basis(N: Array) -> Array:
    """Return vectors (k, n) that span the columns of N, each of length 1 and concentrated on few entries."""
    if N.shape[1] > N.shape[0]:  # For instance, the data do not constrain many nodes.
        U, S, _ = np.linalg.svd(N, full_matrices=False)
        return sparse_basis(U[:, NEGLIGIBLE_EFFECT_RTOL * S[0] < S])
    k = N.shape[1]
    if k == 0:
        return N.T
    pivots = scipy.linalg.qr(N.T, mode="r", pivoting=True)[1][:k]
    rows = scipy.linalg.solve(N[pivots].T, N.T)  # row i is 1 at pivot i and 0 at the other pivots
    rows[np.abs(rows) < 0.1 * MIN_DIRECTION_WEIGHT] = 0.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.sign(rows[np.arange(k), np.argmax(rows != 0.0, axis=1)])[:, None]  # first entry positive
