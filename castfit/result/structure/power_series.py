"""Power series over a finite field, computed through the graph of an expression.

Every node of a graph holds the coefficients of a series in t.  A coefficient is itself a polynomial in a second
variable s, of n_s terms.  The durations between events are multiples of s; with n_s = 1 a coefficient is a residue.
Coefficients of order k follow from coefficients of lower orders (Taylor's method):

    c = a b           c_k = sum a_i b_(k-i).
    c = a / b         c_k b_0 = a_k - sum_(i<k) c_i b_(k-i).
    dw = h(g) dg      k w_k = sum_(i>0) i g_i h_(k-i).

The last line is for exp (h = w), log (1 / g), sqrt (1 / (2 w)), sin (cos g), cos (-sin g), atan (1 / (1 + g^2)), asin
(1 / sqrt(1 - g^2)) and erf (2 / sqrt(pi) exp(-g^2)).

The values of these functions of g_0 are drawn, once for every g_0: over the rational functions of g_0 they are
independent variables.  Relations of exp, log and powers with products and sums are used before (`to_rational`).

Notation: k order, n orders, n_s terms in s, C conditions computed together; coefficients are arrays (C, ..., n_s).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arrays import Index
from castfit._support.graphs import rewrite_operations
from castfit.result.structure.finite_field import MAX_TERMS, RedrawError, Residues, inverse, square_root, to_residue

_MAX_INTEGER_POWER = 64  # larger powers are computed by exp and log
_EXPANDED = (
    ca.OP_EXP, ca.OP_LOG, ca.OP_POW, ca.OP_CONSTPOW, ca.OP_TAN, ca.OP_SINH, ca.OP_COSH, ca.OP_TANH, ca.OP_EXPM1,
    ca.OP_LOG1P, ca.OP_ACOS, ca.OP_ATAN2,
)  # fmt: skip
_FACTOR_DIGITS = 12  # decimal digits to which products of constant factors are rounded
_DRAWN = (ca.OP_EXP, ca.OP_LOG, ca.OP_SQRT, ca.OP_SIN, ca.OP_COS, ca.OP_ATAN, ca.OP_ASIN, ca.OP_ERF)
_SAME_KIND = {ca.OP_SQ: ca.OP_MUL, ca.OP_TWICE: ca.OP_ADD, ca.OP_NEG: ca.OP_SUB, ca.OP_INV: ca.OP_DIV}


class NotCoveredError(Exception):
    """An operation, or a part of a problem, that exact arithmetic does not cover."""


def to_rational(columns: Sequence[ca.SX]) -> list[ca.SX]:
    """Return columns of expressions over +, -, *, /, exp, log, sqrt, sin, cos; relations of exp and log are used."""
    return rewrite_operations(columns, _EXPANDED, _expand)


def _expand(op: int, arguments: Sequence[ca.SX]) -> ca.SX:
    a, *exponents = arguments
    if op == ca.OP_LOG:
        return _log(a)
    if op == ca.OP_LOG1P:
        return _log(1 + a)
    if op in (ca.OP_POW, ca.OP_CONSTPOW):
        return _power(a, exponents[0])
    if op in (ca.OP_TAN, ca.OP_ACOS, ca.OP_ATAN2):  # up to constants
        return (
            ca.sin(a) / ca.cos(a) if op == ca.OP_TAN else -ca.asin(a) if op == ca.OP_ACOS else ca.atan(a / exponents[0])
        )
    e = _exp(a)
    if op == ca.OP_TANH:
        return (e * e - 1) / (e * e + 1)
    return {ca.OP_SINH: (e - 1 / e) / 2, ca.OP_COSH: (e + 1 / e) / 2, ca.OP_EXPM1: e - 1}.get(op, e)


def _power(a: ca.SX, n: ca.SX) -> ca.SX:
    if not n.is_constant() or not _is_simple_power(float(n)):
        return _exp(n * _log(a))
    twice = round(2 * float(n))
    base, k = (ca.sqrt(a), abs(twice)) if twice % 2 else (a, abs(twice) // 2)
    result = ca.SX(1)
    for bit in f"{k:b}":
        result = result * result * base if bit == "1" else result * result
    return 1 / result if twice < 0 else result


def _is_simple_power(n: float) -> bool:
    return float(2 * n).is_integer() and abs(2 * n) <= _MAX_INTEGER_POWER


def _log(a: ca.SX) -> ca.SX:
    op = a.op() if a.n_dep() else None
    if op in (ca.OP_MUL, ca.OP_DIV):
        return _log(a.dep(0)) + _log(a.dep(1)) * (1 if op == ca.OP_MUL else -1)
    factors = {ca.OP_SQ: 2.0, ca.OP_INV: -1.0, ca.OP_SQRT: 0.5}
    if op in factors:
        return factors[op] * _log(a.dep(0))
    return a.dep(0) if op == ca.OP_EXP else ca.log(a)


def _exp(a: ca.SX, factor: float = 1.0) -> ca.SX:
    """Return exp(factor a), where that of a sum is a product and that of a logarithm is a power."""
    op, operands = (a.op(), [a.dep(i) for i in range(a.n_dep())]) if a.n_dep() else (None, [])
    if op in (ca.OP_NEG, ca.OP_TWICE):
        return _exp(operands[0], (-1.0 if op == ca.OP_NEG else 2.0) * factor)
    if op in (ca.OP_ADD, ca.OP_SUB):
        return _exp(operands[0], factor) * _exp(operands[1], factor if op == ca.OP_ADD else -factor)
    if op == ca.OP_DIV and operands[1].is_constant():
        return _exp(operands[0], factor / float(operands[1]))
    for b, c in (operands, operands[::-1]) if op == ca.OP_MUL else ():
        if b.is_constant():
            return _exp(c, factor * float(b))
        if c.n_dep() and c.op() in (ca.OP_ADD, ca.OP_SUB, ca.OP_NEG):
            terms = [
                _exp(
                    b * c.dep(i),
                    factor if i == 0 and c.op() != ca.OP_NEG else -factor if c.op() != ca.OP_ADD else factor,
                )
                for i in range(c.n_dep())
            ]
            return terms[0] if len(terms) == 1 else terms[0] * terms[1]
    factor = float(np.round(factor, _FACTOR_DIGITS))
    if op == ca.OP_LOG and _is_simple_power(factor):
        return _power(operands[0], ca.SX(factor))
    return _power(ca.exp(a), ca.SX(factor)) if factor.is_integer() and _is_simple_power(factor) else ca.exp(factor * a)


def without_logarithm(output: ca.SX) -> ca.SX:
    """Return an output, or its exponential to some power, if it is a logarithm times a number plus other terms.

    Both tell the same.  The logarithm itself is singular where its argument is zero, as at many starts.
    """
    logarithms: list[ca.SX] = []

    def collect(_: int, __: Sequence[ca.SX]) -> ca.SX:
        logarithms.append(ca.SX.sym("logarithm"))
        return logarithms[-1]

    (column,) = rewrite_operations([output], (ca.OP_LOG,), collect)
    for symbol in logarithms:
        slope = ca.simplify(ca.jacobian(column, symbol))
        if slope.is_constant() and float(slope):
            return _exp(output, 1.0 / float(slope))
    return output


def convolve(x: Residues, y: Residues, p: int) -> Residues:
    """Return  sum_i x_i y_i  for coefficients (..., n, n_s), (..., n_s)."""
    n_s = x.shape[-1]
    total = np.zeros((*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), n_s), dtype=np.int64)
    for start in range(0, x.shape[-2], MAX_TERMS):
        rows = slice(start, start + MAX_TERMS)
        for j in range(n_s):
            total[..., j:] += (x[..., rows, j, None] * y[..., rows, : n_s - j]).sum(axis=-2) % p
    return total % p


def product(x: Residues, y: Residues, p: int) -> Residues:
    """Return x y for coefficients (..., n_s)."""
    return convolve(x[..., None, :], y[..., None, :], p)


def reciprocal(x: Residues, p: int) -> Residues:
    """Return 1 / x for coefficients (..., n_s)."""
    result = np.zeros_like(x)
    result[..., 0] = inverse(x[..., 0], p)
    for j in range(1, x.shape[-1]):
        terms = (x[..., 1 : j + 1] * result[..., j - 1 :: -1] % p).sum(axis=-1) % p
        result[..., j] = -result[..., 0] * terms % p
    return result


class SeriesGraph:
    """Graph of a column of expressions of an input vector; equal operations at equal depth are computed together.

    outputs (m,) : the node of each row;  depths : of all nodes, of which the inputs are the first
    constants : values by node;  groups : operations, and the nodes (n,) of their results and arguments
    """

    def __init__(self, inputs: ca.SX, column: ca.SX) -> None:
        function = ca.Function("graph", [inputs], [ca.densify(column)])
        self.depths, self.constants = [0] * inputs.numel(), dict[int, float]()
        self._nodes: dict[Any, int] = {}
        self._rows: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self.outputs: Index = np.zeros(column.numel(), dtype=np.intp)
        work: dict[int, int] = {}
        for k in range(function.n_instructions()):
            op, sources = function.instruction_id(k), function.instruction_input(k)
            target = function.instruction_output(k)
            if op == ca.OP_OUTPUT:
                self.outputs[target[1]] = work[sources[0]]
            elif op == ca.OP_CONST:
                work[target[0]] = self._constant(function.instruction_constant(k))
            else:
                work[target[0]] = sources[1] if op == ca.OP_INPUT else self._operation(op, [work[i] for i in sources])
        self.groups = [(op, np.array(rows, dtype=np.intp).T) for (_, op), rows in sorted(self._rows.items())]

    def _constant(self, value: float) -> int:
        node = self._add(("number", value), 0)
        self.constants[node] = value
        return node

    def _add(self, key: Any, depth: int) -> int:
        if key not in self._nodes:
            self._nodes[key] = len(self.depths)
            self.depths.append(depth)
        return self._nodes[key]

    def _operation(self, op: int, arguments: list[int]) -> int:
        """Return the node of an operation. Equal operations of equal nodes share a node; cos follows its sin."""
        a, b = arguments[0], arguments[-1]
        if op == ca.OP_ASSIGN:
            return a
        if op in (ca.OP_NEG, ca.OP_INV):
            a = self._constant(0.0 if op == ca.OP_NEG else 1.0)
        kind = _SAME_KIND.get(op, op)
        if kind not in (ca.OP_ADD, ca.OP_SUB, ca.OP_MUL, ca.OP_DIV, *_DRAWN):
            raise NotCoveredError(next(n for n in dir(ca) if n.startswith("OP_") and getattr(ca, n) == op)[3:].lower())
        if kind in (ca.OP_ADD, ca.OP_MUL):
            a, b = min(a, b), max(a, b)
        if (kind, a, b) not in self._nodes:
            depth = 1 + max(self.depths[a], self.depths[b])
            node = self._add((kind, a, b), depth)
            self._rows.setdefault((depth, kind), []).append(
                (node, a, self._slope(kind, a, node) if kind in _DRAWN else b)
            )
        return self._nodes[kind, a, b]

    def _slope(self, op: int, g: int, w: int) -> int:
        """Return the node of dw/dg, without the sign of that of cos."""
        if op == ca.OP_EXP:
            return w
        if op in (ca.OP_SIN, ca.OP_COS):
            return self._operation(ca.OP_COS if op == ca.OP_SIN else ca.OP_SIN, [g])
        if op in (ca.OP_LOG, ca.OP_SQRT):
            return self._operation(ca.OP_INV, [g if op == ca.OP_LOG else self._operation(ca.OP_TWICE, [w])])
        square, one = self._operation(ca.OP_SQ, [g]), self._constant(1.0)
        if op == ca.OP_ERF:
            exponential = self._operation(ca.OP_EXP, [self._operation(ca.OP_NEG, [square])])
            return self._operation(ca.OP_MUL, [self._constant(2.0 / np.sqrt(np.pi)), exponential])
        if op == ca.OP_ATAN:
            return self._operation(ca.OP_INV, [self._operation(ca.OP_ADD, [one, square])])
        root = self._operation(ca.OP_SQRT, [self._operation(ca.OP_SUB, [one, square])])
        return self._operation(ca.OP_INV, [root])


class Draws:
    """Random residues, and values of functions that are the same for the same argument."""

    def __init__(self, p: int, rng: np.random.Generator) -> None:
        self.p, self.rng = p, rng
        self._values = {(op, 0): 0 for op in _DRAWN} | {(ca.OP_EXP, 0): 1, (ca.OP_LOG, 1): 0}
        del self._values[ca.OP_LOG, 0]

    def residues(self, *shape: int) -> Residues:
        """Return residues that are not zero."""
        return self.rng.integers(1, self.p, shape)

    def evaluate(self, op: int, arguments: Residues) -> list[Residues]:
        """Return values of a function; sin and cos are 2 r / (1 + r^2) and (1 - r^2) / (1 + r^2) with r drawn."""
        if op == ca.OP_SQRT:
            return [square_root(arguments, self.p)]
        is_circular = op in (ca.OP_SIN, ca.OP_COS)
        kind = ca.OP_SIN if is_circular else op
        r = np.array([self._value(kind, v) for v in arguments.ravel().tolist()], dtype=np.int64).reshape(
            arguments.shape
        )
        if not is_circular:
            return [r]
        scale = inverse((1 + r * r) % self.p, self.p)
        return [2 * r % self.p * scale % self.p, (1 - r * r) % self.p * scale % self.p]

    def _value(self, op: int, argument: int) -> int:
        if (op, argument) == (ca.OP_LOG, 0):
            raise RedrawError
        if (op, argument) not in self._values:
            self._values[op, argument] = value = int(self.rng.integers(1, self.p))
            if op in (ca.OP_EXP, ca.OP_LOG):  # inverse to each other
                self._values.setdefault((ca.OP_LOG if op == ca.OP_EXP else ca.OP_EXP, value), argument)
        return self._values[op, argument]


class GraphSeries:
    """Series of all nodes of a graph: `values` (n_nodes, C, n, n_s), the inputs first."""

    def __init__(self, graph: SeriesGraph, draws: Draws, C: int, n_s: int, n: int) -> None:
        self.graph, self.p, self.draws = graph, draws.p, draws
        self.values: Residues = np.zeros((len(graph.depths), C, n, n_s), dtype=np.int64)
        self._inverses: dict[int, Residues] = {}

    def outputs(self, k: int) -> Residues:
        """Return the coefficients of the rows of order k, (m, C, n_s)."""
        return self.values[self.graph.outputs, :, k]

    def grow(self, n: int) -> None:
        """Make room for n orders."""
        self.values = np.pad(self.values, [(0, 0), (0, 0), (0, n - self.values.shape[2]), (0, 0)])

    def advance(self, k: int) -> None:
        """Compute the coefficients of order k from lower orders and from the inputs."""
        values, p = self.values, self.p
        for node, value in self.graph.constants.items() if k == 0 else ():
            values[node, :, 0, 0] = to_residue(value, p)
        for index, (op, (node, a, b)) in enumerate(self.graph.groups):
            if op in (ca.OP_ADD, ca.OP_SUB):
                values[node, :, k] = (values[a, :, k] + (1 if op == ca.OP_ADD else -1) * values[b, :, k]) % p
            elif op == ca.OP_MUL:
                values[node, :, k] = convolve(values[a, :, : k + 1], values[b, :, k::-1], p)
            elif op == ca.OP_DIV:
                if k == 0:
                    self._inverses[index] = reciprocal(values[b, :, 0], p)
                numerator = values[a, :, k] - convolve(values[node, :, :k], values[b, :, k:0:-1], p)
                values[node, :, k] = product(numerator % p, self._inverses[index], p)
            elif k == 0:
                values[node, :, 0] = self._begin(op, values[a, :, 0], values[b, :, 0])
            else:
                weight: Residues = np.arange(1, k + 1, dtype=np.int64)[:, None] * pow(k, -1, p) % p
                step = convolve(weight * values[a, :, 1 : k + 1] % p, values[b, :, k - 1 :: -1], p)
                values[node, :, k] = -step % p if op == ca.OP_COS else step

    def _begin(self, op: int, g: Residues, h: Residues) -> Residues:
        """Return the coefficients of order 0 of a drawn function: a series in s, (..., n_s), as g and h are."""
        p, values = self.p, self.draws.evaluate(op, g[..., 0])
        series = [np.concatenate([w[..., None], np.zeros_like(g[..., 1:])], axis=-1) for w in values]
        w = series[-1 if op == ca.OP_COS else 0]
        for j in range(1, g.shape[-1]):
            if op == ca.OP_SQRT:
                remainder = g[..., j] - (w[..., 1:j] * w[..., j - 1 : 0 : -1] % p).sum(axis=-1)
                w[..., j] = remainder % p * inverse(2 * w[..., 0] % p, p) % p
                continue
            slopes = np.arange(1, j + 1, dtype=np.int64) * pow(j, -1, p) % p * g[..., 1 : j + 1] % p
            partners = [series[1], -series[0]] if len(series) == 2 else series if op == ca.OP_EXP else [h]
            steps = [(slopes * partner[..., j - 1 :: -1] % p).sum(axis=-1) % p for partner in partners]
            for function, step in zip(series, steps, strict=True):
                function[..., j] = step
        return w
