"""Taylor coefficients of a model's outputs in time, with their derivatives along directions, over a finite field.

With y = (x, z), rows F = (x', 0, outputs) of the model, and coefficients of order k,

    (k + 1) x_(k+1) = f_k,    0 = g_k,        dF_k = sum_i A_(k-i) dy_i + B_k dp,    A = dF/dy,  B = dF/dp

where z_k, which enters g_k linearly with the matrix g_z at order 0, follows from the residual of g_k at z_k = 0.

Notation: C conditions, n orders, n_s terms in s (see `power_series`), r directions.  Jets are arrays (..., 1 + r) of
values and of their derivatives along the directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from castfit._support.arrays import Index
from castfit.result.structure.finite_field import MAX_TERMS, RedrawError, Residues, multiply, reduce_rows
from castfit.result.structure.power_series import Draws, GraphSeries, NotCoveredError, SeriesGraph, to_rational

_FIRST_ORDERS = 16  # number of orders for which there is room at first


class DifferentiatedGraph:
    """Graph of a column of expressions of some inputs, and of its Jacobian.

    rows, columns (n_nonzeros,) : the structural nonzeros of the Jacobian, of a `shape`
    """

    def __init__(self, inputs: Sequence[ca.SX], column: ca.SX) -> None:
        arguments = ca.vertcat(*inputs)
        (rational,) = to_rational([ca.densify(column)])
        jacobian = ca.jacobian(rational, arguments)
        nonzeros: list[Any] = jacobian.nonzeros()
        everything = ca.vertcat(rational, *nonzeros)
        self.function = ca.Function("values", list(inputs), [everything])
        self.graph, self.shape = SeriesGraph(arguments, everything), jacobian.shape
        self.rows, self.columns = (np.array(v, dtype=np.intp) for v in jacobian.sparsity().get_triplet())

    def apply(self, jets: Residues, draws: Draws) -> Residues:
        """Return the jets of the column, (C, m, n_s, 1 + r), at jets of the inputs (C, n_in, n_s, 1 + r)."""
        C, n_in, n_s, _ = jets.shape
        series = GraphSeries(self.graph, draws, C, n_s, 1)
        series.values[:n_in, :, 0] = jets[..., 0].swapaxes(0, 1)
        series.advance(0)
        nonzeros = series.values[self.graph.outputs[self.shape[0] :], :, :1]
        slopes = sparse_product(nonzeros, self.rows, self.columns, self.shape, jets[None, ..., 1:], draws.p)
        values = series.outputs(0)[: self.shape[0]].swapaxes(0, 1)
        return np.concatenate([values[..., None], slopes], axis=-1)


def sparse_product(
    nonzeros: Residues, rows: Index, columns: Index, shape: tuple[int, int], slopes: Residues, p: int
) -> Residues:
    """Return  sum_i A_(n-1-i) dy_i  for the nonzeros of A (n_nonzeros, C, n, n_s) and slopes (n, C, n_in, n_s, r)."""
    (n, C, n_in, n_s, r), m = slopes.shape, shape[0]
    total = np.zeros((C * m, n_s, r), dtype=np.int64)
    chunk = max(1, MAX_TERMS // max(1, int(np.bincount(rows, minlength=1).max())))
    c: Index = np.arange(C, dtype=np.intp)[:, None]
    for start in range(0, n if rows.size else 0, chunk):
        orders: Index = np.arange(start, min(start + chunk, n), dtype=np.intp)
        targets: Any = np.broadcast_to(c * m + rows[:, None, None], (rows.size, C, orders.size)).ravel()
        sources: Any = (((orders - start) * C + c) * n_in + columns[:, None, None]).ravel()
        block = slopes[orders].reshape(-1, n_s, r)
        for j in range(n_s):
            entries = nonzeros[:, :, n - 1 - orders, j].ravel()
            A: Any = scipy.sparse.csr_matrix((entries, (targets, sources)), shape=(C * m, block.shape[0]))
            total[:, j:] += (A @ block[:, : n_s - j].reshape(block.shape[0], -1)).reshape(C * m, n_s - j, r) % p
    return (total % p).reshape(C, m, n_s, r)


class ModelGraph(DifferentiatedGraph):
    """The rows (x', 0, outputs) of a model, functions of (t, x, z, p, u)."""

    def __init__(self, arguments: Sequence[ca.SX], columns: Sequence[ca.SX]) -> None:
        super().__init__(arguments, ca.vertcat(*(ca.densify(column) for column in columns)))
        self.n_x, self.n_z, self.n_p = (arguments[i].numel() for i in (1, 2, 3))
        self.n_y = self.n_x + self.n_z

    def entries(self, start: int, n: int) -> Index:
        """Return the nonzeros of the derivatives by n inputs from one on, as positions among all nonzeros."""
        return np.flatnonzero((self.columns >= start) & (self.columns < start + n))

    @cached_property
    def longest_path(self) -> int:
        """Number of steps of the longest of the shortest paths between two states, one of which changes the other."""
        entries = self.entries(1, self.n_x)
        entries = entries[self.rows[entries] < self.n_x]
        links: Any = scipy.sparse.csr_matrix(
            (np.ones(entries.size), (self.rows[entries], self.columns[entries] - 1)), shape=(self.n_x, self.n_x)
        )
        distances: Any = scipy.sparse.csgraph.shortest_path(links, unweighted=True)
        return int(distances[np.isfinite(distances)].max(initial=0))


class OutputSeries:
    """The series of a model from a time on, order by order; slopes (n + 1, C, n_y, n_s, r) are derivatives of y."""

    def __init__(self, graph: ModelGraph, draws: Draws, jets: Residues, inputs: Residues) -> None:
        """Begin at jets of (t, y, p), (C, 1 + n_y + n_p, n_s, 1 + r), with inputs (C, n_u, n, n_s)."""
        C, n_in, n_s, _ = jets.shape
        self.graph, self.draws, self.k, self._inputs = graph, draws, 0, inputs
        self.series = GraphSeries(graph.graph, draws, C, n_s, 0)
        self.slopes, self.dp = jets[None, :, 1 : 1 + graph.n_y, :, 1:], jets[:, 1 + graph.n_y :, :, 1:]
        self._grow(_FIRST_ORDERS)
        self.series.values[:n_in, :, 0] = jets[..., 0].swapaxes(0, 1)
        self.series.values[0, :, 1:2, 0] = 1

    def _grow(self, n: int) -> None:
        """Make room for n orders, or for as many as there are inputs."""
        n, n_in = min(n, self._inputs.shape[2]), 1 + self.graph.n_y + self.graph.n_p
        self.series.grow(n)
        self.series.values[n_in : n_in + self._inputs.shape[1]] = self._inputs[:, :, :n].swapaxes(0, 1)
        padding = np.zeros((n + 1 - len(self.slopes), *self.slopes.shape[1:]), dtype=np.int64)
        self.slopes = np.concatenate([self.slopes, padding])

    def advance(self) -> Residues:
        """Compute one more order. Return the derivatives of the outputs' coefficients, (C, n_outputs, n_s, r)."""
        graph, k, p, n_x, n_y = self.graph, self.k, self.draws.p, self.graph.n_x, self.graph.n_y
        if k + 1 >= self.series.values.shape[2]:
            self._grow(2 * (k + 1))
        values = self.series.values
        self.series.advance(k)
        rounds = values.shape[-1] if graph.n_z else 0  # each determines one more term in s
        for _ in range(rounds):
            step = self._solve(self.series.outputs(k)[n_x:n_y].swapaxes(0, 1)[..., None])[..., 0]
            values[1 + n_x : 1 + n_y, :, k] = (values[1 + n_x : 1 + n_y, :, k] - step.swapaxes(0, 1)) % p
            self.series.advance(k)
        if self.series.outputs(k)[n_x:n_y].any():
            raise NotCoveredError("algebraic states that jump, in nonlinear equations")
        slopes = self._row_slopes(k)
        for _ in range(rounds):
            self.slopes[k, :, n_x:] = (self.slopes[k, :, n_x:] - self._solve(slopes[:, n_x:n_y])) % p
            slopes = self._row_slopes(k)
        share = pow(k + 1, -1, p)
        values[1 : 1 + n_x, :, k + 1 : k + 2] = (self.series.outputs(k)[:n_x] * share % p)[:, :, None]
        self.slopes[k + 1, :, :n_x] = slopes[:, :n_x] * share % p
        self.k += 1
        return slopes[:, n_y:]

    def outputs(self, k: int) -> Residues:
        """Return the coefficients of the outputs of order k, (C, n_outputs, n_s)."""
        return self.series.outputs(k)[self.graph.n_y : self.graph.shape[0]].swapaxes(0, 1)

    def _row_slopes(self, k: int) -> Residues:
        graph, values, p = self.graph, self.series.values, self.draws.p
        nodes, total = graph.graph.outputs[graph.shape[0] :], 0
        for first_input, slopes in ((1, self.slopes[: k + 1]), (1 + graph.n_y, self.dp[None])):
            entries = graph.entries(first_input, slopes.shape[2])
            nonzeros = values[nodes[entries], :, k + 1 - len(slopes) : k + 1]
            columns = graph.columns[entries] - first_input
            total = total + sparse_product(nonzeros, graph.rows[entries], columns, graph.shape, slopes, p)
        return np.asarray(total) % p

    def _solve(self, residual: Residues) -> Residues:
        """Return g_z^-1 at order 0 times residuals (C, n_z, n_s, r)."""
        graph, n_x, n_z = self.graph, self.graph.n_x, self.graph.n_z
        entries = graph.entries(1 + n_x, n_z)
        entries = entries[(graph.rows[entries] >= n_x) & (graph.rows[entries] < graph.n_y)]
        matrices = np.zeros((len(residual), n_z, n_z), dtype=np.int64)
        nonzeros = self.series.outputs(0)[graph.shape[0] + entries, :, 0]
        matrices[:, graph.rows[entries] - n_x, graph.columns[entries] - 1 - n_x] = nonzeros.T
        solutions = np.zeros_like(residual)
        for matrix, right_side, solution in zip(matrices, residual, solutions, strict=True):
            rows, pivots = reduce_rows(np.hstack([matrix, right_side.reshape(n_z, -1)]), self.draws.p)
            if pivots != list(range(n_z)):
                raise RedrawError
            solution[...] = rows[:, n_z:].reshape(solution.shape)
        return solutions

    def project(self, basis: Residues) -> None:
        """Go on along the directions of a basis (r, r') of the present ones."""
        self.slopes, self.dp = (
            multiply(d.reshape(-1, len(basis)), basis, self.draws.p).reshape(*d.shape[:-1], basis.shape[1])
            for d in (self.slopes[: self.k + 1], self.dp)
        )
        self._grow(self.series.values.shape[2])

    @property
    def is_at_rest(self) -> bool:
        """Whether neither y nor its derivatives change with time, by the orders computed."""
        values = self.series.values[1 : 1 + self.graph.n_y, :, 1 : self.k]
        return not values.any() and not self.slopes[1 : self.k].any()

    def end(self, c: int) -> tuple[Residues, Residues]:
        """Return the jets of y (C, n_y, n_s, 1 + r), and y', after a time c s."""
        n_s, p = self.dp.shape[2], self.draws.p
        values = self.series.values[1 : 1 + self.graph.n_y].transpose(2, 1, 0, 3)[..., None]
        y = np.concatenate([values, self.slopes[: len(values)]], axis=-1)
        jets, rates = np.zeros_like(y[0]), np.zeros_like(y[0])
        for k in range(n_s):
            factor = pow(c, k, p)
            jets[:, :, k:] += factor * y[k, :, :, : n_s - k] % p
            rates[:, :, k:] += factor * (k + 1) % p * y[k + 1, :, :, : n_s - k] % p
        return jets % p, rates[..., 0] % p
