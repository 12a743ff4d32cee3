"""The covariance of own parameters between experiments, in unconstrained coordinates.

    Omega = L L^T,    L = D U,    D = diag(exp x_0 ... exp x_{m-1}),    U unit lower triangular

The coordinates x are the logarithms of the diagonal of D and the nonzero entries of U below the diagonal.  Parameters
of one *block* are correlated, parameters of different blocks are not.  Every x gives a positive definite covariance,
and only the coordinates of D have a unit.

Notation
--------
m    own parameters;  n_x  coordinates of the covariance
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from castfit._support.arrays import Array, Index


@dataclass(frozen=True)
class Covariance:
    """Block structure of the covariance of own parameters.

    Each block contains the positions of its parameters; every parameter is in exactly one block.
    """

    names: tuple[str, ...]
    blocks: tuple[tuple[int, ...], ...]

    @property
    def m(self) -> int:
        """Number of own parameters."""
        return len(self.names)

    @cached_property
    def below(self) -> tuple[Index, Index]:
        """Rows and columns of the entries of U that are coordinates."""
        pairs = [(b[i], b[j]) for b in self.blocks for i in range(len(b)) for j in range(i)]
        array = np.array([(max(p), min(p)) for p in pairs], dtype=np.intp).reshape(-1, 2)
        return array[:, 0], array[:, 1]

    @property
    def size(self) -> int:
        """Number of coordinates n_x."""
        return self.m + self.below[0].size

    def start(self, deviations: Array) -> Array:
        """Return the coordinates of uncorrelated parameters with these standard deviations (m,)."""
        return np.concatenate([np.log(deviations), np.zeros(self.below[0].size)])

    def factor(self, x: Array) -> Array:
        """Return L (m, m)."""
        unit = np.eye(self.m)
        unit[self.below] = x[self.m :]
        return np.exp(x[: self.m])[:, None] * unit

    def matrix(self, x: Array) -> Array:
        """Return Omega (m, m)."""
        factor = self.factor(x)
        return factor @ factor.T

    def slopes(self, x: Array) -> Array:
        """Return the derivatives of Omega by x, (m, m, n_x)."""
        factor = self.factor(x)
        by_x = np.zeros((self.m, self.m, self.size))
        for k in range(self.m):
            by_x[k, :, k] = factor[k]
        rows, columns = self.below
        by_x[rows, columns, self.m + np.arange(rows.size)] = np.exp(x[rows])
        half = np.einsum("ijk,lj->ilk", by_x, factor)
        return half + half.transpose(1, 0, 2)

    def coordinates(self, matrix: Array) -> Array:
        """Return x of a covariance (m, m), without its entries outside of the blocks.

        Raises LinAlgError if it is not positive definite.
        """
        mask = np.zeros((self.m, self.m), dtype=np.bool_)
        for block in self.blocks:
            mask[np.ix_(block, block)] = True
        factor = np.linalg.cholesky(np.where(mask, matrix, 0.0))
        diagonal = np.diag(factor)
        rows, columns = self.below
        return np.concatenate([np.log(diagonal), factor[rows, columns] / diagonal[rows]])

    @cached_property
    def reported_names(self) -> tuple[str, ...]:
        """Names of the reported values: standard deviations, then correlations within the blocks."""
        rows, columns = self.below
        pairs = zip(rows.tolist(), columns.tolist(), strict=True)
        deviations = (f"omega({n})" for n in self.names)
        return (*deviations, *(f"correlation({self.names[j]}, {self.names[i]})" for i, j in pairs))

    def report(self, x: Array) -> tuple[Array, Array]:
        """Return standard deviations and correlations (n_x,), and their derivatives by x (n_x, n_x)."""
        matrix, by_x = self.matrix(x), self.slopes(x)
        variance = np.diag(matrix)
        deviation = np.sqrt(variance)
        d_log = np.einsum("iik->ik", by_x) / (2.0 * variance[:, None])  # of log deviations
        rows, columns = self.below
        correlation = matrix[rows, columns] / (deviation[rows] * deviation[columns])
        d_correlation = by_x[rows, columns] / (deviation[rows] * deviation[columns])[:, None]
        d_correlation -= correlation[:, None] * (d_log[rows] + d_log[columns])
        return np.concatenate([deviation, correlation]), np.vstack([deviation[:, None] * d_log, d_correlation])
