"""Prior knowledge, worked out: the rows, the slopes and the cost that priors add at a point.

Notation
--------
n      (n_theta,)  all estimated quantities in natural scale
r      (m,)        rows,  J = dr/dn (m, n_theta)   with  J^T r = d cost/dn  exactly
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.records import dataclass
from castfit._support.sparse_rows import SparseRows, stack_rows
from castfit.densities.priors import PriorDistribution
from castfit.problem.parameter_map import MappedExpressions

if TYPE_CHECKING:
    from typing_extensions import Self

    from castfit._support.arrays import Array, Index, Mask


@dataclass(frozen=True)
class PriorRows:
    """Contribution of all priors at a point: rows (n_prior,), and Jacobian (n_prior, n_theta), in search scale.

    cost : -log p less its least value, of all priors together; inf where a density is 0.  `straight_cost` is the part
        that is straight: no square of a deviation, which chi2's distribution would know.  `excess` is the cost less
        half the squares of the rows; 0 for normal priors
    curved : (n_prior,) False where a row's cost is straight, so that it holds no information
    failure : which density is 0, or cannot be computed; empty if none
    """

    rows: Array
    jacobian: SparseRows
    cost: float
    curved: Mask
    failure: str = ""
    straight_cost: float = 0.0
    excess: float = 0.0


@dataclass(frozen=True, eq=False)
class _ScalarPriorRow:
    """A prior on one number that is computed from the quantities."""

    description: str
    prior: PriorDistribution

    @property
    def constant(self) -> float:
        """-log p at its mode."""
        return self.prior.constant

    @property
    def curved(self) -> Mask:
        """Whether its row has a curvature."""
        return np.full(self.prior.rows, self.prior.curved, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class QuantityPrior(_ScalarPriorRow):
    """A prior on one quantity, by its position in theta."""

    theta_index: int
    n_theta: int

    @property
    def informs(self) -> Mask:
        """Return the mask of the quantities on which the prior is informative."""
        is_informed = np.zeros(self.n_theta, dtype=np.bool_)
        is_informed[self.theta_index] = self.prior.rows > 0
        return is_informed

    def rows(self, n: Array) -> tuple[Array, SparseRows, float, str]:
        """Return r (m,), J (m, n_theta), the cost, and a failure message, empty if the cost is finite."""
        m, x = self.prior.rows, float(n[self.theta_index])
        if m == 0:
            return np.zeros(0), in_columns(np.zeros((0, 1)), np.array([self.theta_index]), self.n_theta), 0.0, ""
        row = self.prior.row(x)
        jacobian = in_columns(np.full((m, 1), row.j), np.array([self.theta_index]), self.n_theta)
        failure = (
            ""
            if np.isfinite(row.cost)
            else f"the prior's density of {self.description} is 0 at {self.description} = {x:.6g}"
        )
        return np.array([row.r]), jacobian, row.cost, failure

    def restrict(self, keep: Index, n: Array) -> QuantityPrior | None:
        """Return the term with another position of its quantity."""
        positions = np.flatnonzero(keep == self.theta_index)
        return replace(self, theta_index=int(positions[0]), n_theta=keep.size) if positions.size else None

    def identity(self) -> tuple[Any, ...]:
        """Return the parts that identify the prior."""
        return self.theta_index, str(self.prior.to_dict())


@dataclass(frozen=True, eq=False)
class ExpressionPrior(_ScalarPriorRow):
    """A prior on an expression of quantities and numbers, as `MappedExpressions` of one row over all of n."""

    expression: MappedExpressions

    @property
    def informs(self) -> Mask:
        """Return the mask of the quantities on which the prior is informative."""
        return self.expression.pattern[0]

    def rows(self, n: Array) -> tuple[Array, Array, float, str]:
        """Return r (m,), J (m, n_theta), the cost, and a failure message, empty if cost and derivatives are finite."""
        values, slopes = self.expression.values(n)
        x = float(values[0])
        row = self.prior.row(x)
        failure = ""
        if not (np.isfinite(row.cost) and np.isfinite(slopes).all()):
            where = self.expression.reason(n, 0)[1]
            failure = f"the prior's density of {self.description} = {x:.6g} is 0, or cannot be computed, at {where}"
        with np.errstate(invalid="ignore"):  # where that is so
            return np.array([row.r]), row.j * slopes, row.cost, failure

    def restrict(self, keep: Index, n: Array) -> ExpressionPrior | None:
        """Return the term as one of the entries `keep` of n, the others held."""
        expression = self.expression.restrict(keep, n)
        return replace(self, expression=expression) if expression.pattern.any() else None

    def identity(self) -> tuple[Any, ...]:
        """Return the parts that identify the prior."""
        part = self.expression
        return str(self.prior.to_dict()), part.labels, part.names, part.source, part.numbers


@dataclass(frozen=True, eq=False)
class _NormalRows:
    """Rows  r = factor (root (z - mean) + offset)  of several quantities together,  z = n or its logarithm.

    root (m, k), mean (k,), offset (m,); theta_index (k,) positions in theta; log (k,) which z are logarithms.
    """

    description: str
    theta_index: Index
    log: Mask
    mean: Array
    root: Array
    offset: Array
    constant: float
    n_theta: int

    @property
    def factor(self) -> float:
        """Return the factor by which all rows are multiplied."""
        return 1.0

    @property
    def curved(self) -> Mask:
        """All rows have a curvature."""
        return np.ones(self.offset.size, dtype=np.bool_)

    @property
    def informs(self) -> Mask:
        """Return the mask of the quantities on which the prior is informative."""
        is_informed = np.zeros(self.n_theta, dtype=np.bool_)
        is_informed[self.theta_index] = np.any(self.root != 0.0, axis=0)
        return is_informed

    def rows(self, n: Array) -> tuple[Array, SparseRows, float, str]:
        """Return r (m,), J (m, n_theta), the cost, and a failure message, empty if r and J are finite."""
        x = n[self.theta_index]
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(self.log, np.log(np.where(self.log, x, 1.0)), x)
            r = self.factor * (self.root @ (z - self.mean) + self.offset)
            slopes = np.where(self.log, 1.0 / np.where(self.log, x, 1.0), 1.0)
        jacobian = in_columns(self.factor * self.root * slopes, self.theta_index, self.n_theta)
        finite = bool(np.isfinite(r).all() and np.isfinite(jacobian.entry).all())
        cost = 0.5 * float(r @ r) if finite else np.inf
        return r, jacobian, cost, "" if finite else f"{self.description} cannot be computed"

    def restrict(self, keep: Index, n: Array) -> Self | None:
        """Return the term as one of the entries `keep` of n, the others held: the distribution given their values."""
        new_positions = {int(j): i for i, j in enumerate(keep)}
        is_kept = np.array([int(j) in new_positions for j in self.theta_index], dtype=np.bool_)
        if not is_kept.any():
            return None
        fixed_values = n[self.theta_index[~is_kept]]
        z = np.where(self.log[~is_kept], np.log(np.where(self.log[~is_kept], fixed_values, 1.0)), fixed_values)
        return replace(
            self,
            theta_index=np.array([new_positions[int(j)] for j in self.theta_index[is_kept]], dtype=np.intp),
            log=self.log[is_kept],
            mean=self.mean[is_kept],
            root=self.root[:, is_kept],
            offset=self.offset + self.root[:, ~is_kept] @ (z - self.mean[~is_kept]),
            n_theta=keep.size,
        )


@dataclass(frozen=True, eq=False)
class JointPriorRows(_NormalRows):
    """A normal prior on several quantities together."""

    def identity(self) -> tuple[Any, ...]:
        """Return the parts that identify the prior."""
        return self.theta_index, self.log, self.mean, self.root, self.offset


@dataclass(frozen=True, eq=False)
class SmoothnessPenalty(_NormalRows):
    """The penalty on the roughness of an estimated input, `label`, which experiments may share:  1/2 weight |R z|^2.

    z are the values at knots, or their logarithms; R is that of castfit.experiment.estimated_inputs.  It is no
    knowledge about any value, but says which functions are meant: it stays where priors are left aside, and what it
    costs is no part of the likelihood.  Its rows count as no degrees of freedom; instead a smooth input uses fewer than
    it has values, by as much as the penalty decides about them (the leverage of its rows).  Where the weight is
    `chosen`, by a fit, this one is where it begins.
    """

    label: str
    weight: float
    chosen: bool

    @property
    def factor(self) -> float:
        """Return the factor by which all rows are multiplied."""
        return float(np.sqrt(self.weight))

    def identity(self) -> tuple[Any, ...]:
        """Return the parts that identify the penalty; a weight that is chosen automatically is not one of them."""
        return self.theta_index, self.log, self.root, self.offset, None if self.chosen else self.weight


Term = QuantityPrior | ExpressionPrior | JointPriorRows | SmoothnessPenalty
"""A prior on something that is computed from the quantities."""


def in_columns(block: Array, columns: Index, width: int) -> SparseRows:
    """Return rows (m, k) that live in some columns of a matrix, (m, width)."""
    m = len(block)
    return SparseRows((m, width), np.repeat(np.arange(m), columns.size), np.tile(columns, m), block.ravel())


def _sparse(term: Term, jacobian: Array | SparseRows) -> SparseRows:
    """Return a term's derivatives with the same entries at every point, zeros among them."""
    if isinstance(jacobian, SparseRows):
        return jacobian
    columns = np.flatnonzero(term.informs | jacobian.any(axis=0))
    return in_columns(jacobian[:, columns], columns, jacobian.shape[1])


def prior_rows(terms: Sequence[Term], natural: Array, slope: Array) -> PriorRows:
    """Gather the rows of all terms at natural values (n_theta,), whose slopes by theta are `slope` (n_theta,)."""
    term_rows = [term.rows(natural) for term in terms]
    rows = np.concatenate([np.empty(0), *(r for r, _, _, _ in term_rows)])
    with np.errstate(invalid="ignore", over="ignore"):
        parts = [_sparse(term, term_row[1]) for term, term_row in zip(terms, term_rows, strict=True)]
        jacobian = stack_rows(parts, slope.size).scaled(columns=slope)
    failure = next((message for _, _, _, message in term_rows if message), "")
    if not failure and not np.isfinite(jacobian.entry).all():
        failure = "the derivative of a prior is not finite"
    curved = np.concatenate([np.empty(0, dtype=np.bool_), *(term.curved for term in terms)])
    costs = [cost for _, _, cost, _ in term_rows]
    straight = [cost for term, cost in zip(terms, costs, strict=True) if not term.curved.all()]
    cost = float(sum(costs))
    return PriorRows(rows, jacobian, cost, curved, failure, float(sum(straight)), cost - 0.5 * float(rows @ rows))
