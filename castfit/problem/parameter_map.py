"""Link from the estimated quantities to one experiment's parameters and initial state.

    q --natural scale--> n --> y = (p, a, e)

Each row of y is a number, or one of the natural values n, or is computed from them by a *part* of the link.  A part
evaluates its rows as functions of n, with first and second derivatives, and describes why a value cannot be computed.
The first kind of part is a set of expressions.  A steady state is another kind: it returns the root of the model's
right-hand side at p(n), and its derivatives by the implicit function theorem.

Notation
--------
q      (n_q,)      what the experiment depends on, in search scale
n      (n_q,)      the same in natural scale
y      (n_y,)      rows: p, then a, then e
p      (n_p,)      all parameters of the model
a      (n_x,)      the initial state
e      (n_e,)      what events need: times, rates, parameters of what changes (see castfit.problem.event_schedule)
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.records import dataclass

if TYPE_CHECKING:
    import casadi as ca

    from castfit._support.arrays import Array, Index, Mask
    from castfit.problem.map_initial_states import ConsistentInitialRows, SteadyStateRows


def natural_value(theta: Array, log: Mask) -> Array:
    """Convert search scale to natural values; values that overflow become infinite."""
    if not log.any():
        return theta.copy()
    with np.errstate(over="ignore"):
        return np.where(log, np.exp(np.where(log, theta, 0.0)), theta)


@dataclass(frozen=True, eq=False)
class MappedExpressions:
    """A part of rows (m,) that are expressions of quantities and of numbers; `labels` describe the rows.

    source : (k,) the entry of n that each argument, named in `names`, is; -1 for a number, one of `numbers` (k,)
    jacobian_function : arguments -> (values, Jacobian)
    hessian_function : (arguments, weight) -> (weighted Jacobian, weighted Hessian)
    support : (m, k) which row depends on which argument, by the structure of the graph
    """

    rows: Index
    labels: tuple[str, ...]
    names: tuple[str, ...]
    source: Index
    numbers: Array
    jacobian_function: ca.Function
    hessian_function: ca.Function
    support: Mask
    n_q: int

    @cached_property
    def _variable_arguments(self) -> Index:
        return np.flatnonzero(self.source >= 0)

    @property
    def pattern(self) -> Mask:
        """Return the pattern of rows that can depend on entries of n, (m, n_q)."""
        out = np.zeros((self.rows.size, self.n_q), dtype=np.bool_)
        out[:, self.source[self._variable_arguments]] = self.support[:, self._variable_arguments]
        return out

    def _arguments(self, n: Array) -> Array:
        arguments = self.numbers.copy()
        arguments[self._variable_arguments] = n[self.source[self._variable_arguments]]
        return arguments

    def values(self, n: Array) -> tuple[Array, Array]:
        """Return the values (m,) and their derivatives by n (m, n_q)."""
        values, slopes = self.jacobian_function(self._arguments(n))
        jacobian = np.zeros((self.rows.size, self.n_q))
        jacobian[:, self.source[self._variable_arguments]] = slopes.full()[:, self._variable_arguments]
        return values.full()[:, 0], jacobian

    def curvature(self, n: Array, weight: Array) -> tuple[Array, Array]:
        """Return the weighted sums of first and second derivatives by n."""
        slope, bend = self.hessian_function(self._arguments(n), weight)
        gradient, hessian = np.zeros(self.n_q), np.zeros((self.n_q, self.n_q))
        indices = self.source[self._variable_arguments]
        gradient[indices] = slope.full()[0, self._variable_arguments]
        hessian[indices[:, None], indices] = bend.full()[self._variable_arguments[:, None], self._variable_arguments]
        return gradient, hessian

    def reason(self, n: Array, row: int) -> tuple[str, str]:
        """Return the description of a row, and the values of its arguments."""
        used_columns = np.flatnonzero(self.support[row])
        arguments = self._arguments(n)
        where = ", ".join(f"{self.names[j]} = {arguments[j]:.6g}" for j in used_columns)
        return self.labels[row], where

    def restrict(self, keep: Index, n: Array) -> MappedExpressions:
        """Return the part as a function of the entries `keep` of n, the others held at their value."""
        new_positions = np.full(self.n_q + 1, -1, dtype=np.intp)  # the last entry is that of numbers
        new_positions[keep] = np.arange(keep.size)
        source = new_positions[self.source]
        numbers = np.where(source >= 0, 0.0, self._arguments(n))
        return replace(self, source=source, numbers=numbers, n_q=keep.size)


@dataclass(frozen=True)
class NaturalValues:
    """Parameters and initial state at a point, natural scale, with derivatives with respect to q.

    p (n_p,), dp (n_p, n_q), a (n_x,), da (n_x, n_q), e (n_e,), de (n_e, n_q)
    """

    p: Array
    dp: Array
    a: Array
    da: Array
    e: Array = field(default_factory=lambda: np.empty(0))
    de: Array = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True, eq=False)
class ParameterLink:
    """Link from q to one experiment's parameters p and initial state a.

    n_p : how many rows of y are parameters; initial states follow, the last n_e rows are those of events
    base : (n_y,) the rows that are numbers; 0 elsewhere
    quantity_rows : (n_q,) the row that an entry of q is, -1 for one that appears in parts only
    log : (n_q,) which entries of q are logarithms
    equation_parameters : (n_p,) which parameters the model's equations contain, by default all; the others appear in
        outputs or noise only
    """

    n_p: int
    base: Array
    quantity_rows: Index
    log: Mask
    parts: tuple[MappedExpressions | SteadyStateRows | ConsistentInitialRows, ...] = ()
    equation_parameters: Mask | None = None
    n_e: int = 0

    @property
    def _state_rows(self) -> slice:
        """The rows of initial states."""
        return slice(self.n_p, self.base.size - self.n_e)

    @property
    def _event_rows(self) -> slice:
        """The rows of events."""
        return slice(self.base.size - self.n_e, self.base.size)

    @cached_property
    def _direct_entries(self) -> tuple[Index, Index]:
        """The entries of q that are rows, and these rows."""
        entries = np.flatnonzero(self.quantity_rows >= 0)
        return entries, self.quantity_rows[entries]

    def natural(self, q: Array) -> NaturalValues:
        """Evaluate p(q), a(q) and their Jacobians; what cannot be computed is not finite (see `failure`)."""
        n = natural_value(q, self.log)
        slope = np.where(self.log, n, 1.0)
        y, dy = self.base.copy(), np.zeros((self.base.size, q.size))
        entries, rows = self._direct_entries
        y[rows] = n[entries]
        dy[rows, entries] = slope[entries]
        for part in self.parts:
            y[part.rows], by_n = part.values(n)
            with np.errstate(invalid="ignore"):  # where an expression cannot be computed
                dy[part.rows] = by_n * slope
        p, a, e = self.n_p, self._state_rows, self._event_rows
        return NaturalValues(y[:p], dy[:p], y[a], dy[a], y[e], dy[e])

    def failure(self, q: Array, natural: NaturalValues, *, slopes: bool = False) -> str:
        """Describe the first row that is not finite at q, or whose derivative is not; empty if all are finite."""
        if not self.parts:
            return ""
        y, dy = (
            np.concatenate([natural.p, natural.a, natural.e]),
            np.concatenate([natural.dp, natural.da, natural.de.reshape(natural.e.size, q.size)]),
        )
        for part in self.parts:
            is_computed = np.isfinite(dy[part.rows]).all(axis=1) if slopes else np.isfinite(y[part.rows])
            if not is_computed.all():
                row = int(np.argmin(is_computed))
                subject, where = part.reason(natural_value(q, self.log), row)
                value = "not finite" if slopes else str(y[part.rows][row])
                return f"{'the derivative of ' if slopes else ''}{subject} is {value} at {where}"
        return ""

    def curvature(self, q: Array, weight_p: Array, weight_a: Array, weight_e: Array | None = None) -> Array:
        """Return sum_i weight_p[i] d2 p_i/dq2 + the same of a and of e, (n_q, n_q)."""
        n = natural_value(q, self.log)
        slope, second = np.where(self.log, n, 1.0), np.where(self.log, n, 0.0)
        weight = np.concatenate([weight_p, weight_a, np.zeros(self.n_e) if weight_e is None else weight_e])
        out, gain = np.zeros((q.size, q.size)), np.zeros(q.size)
        entries, rows = self._direct_entries
        gain[entries] = weight[rows]
        for part in self.parts:
            gradient, hessian = part.curvature(n, weight[part.rows])
            gain += gradient
            out += slope[:, None] * hessian * slope
        out[np.diag_indices(q.size)] += gain * second
        return out

    @cached_property
    def pattern(self) -> Mask:
        """Return the pattern of rows of y that can depend on entries of q, (n_y, n_q)."""
        out = np.zeros((self.base.size, self.quantity_rows.size), dtype=np.bool_)
        entries, rows = self._direct_entries
        out[rows, entries] = True
        for part in self.parts:
            out[part.rows] = part.pattern
        return out

    @cached_property
    def free_parameters(self) -> Index:
        """The parameters of the model that depend on q, by their position in p."""
        return np.flatnonzero(self.pattern[: self.n_p].any(axis=1))

    @cached_property
    def moving_quantities(self) -> Mask:
        """Return the mask of the entries of q that change a parameter of the model's equations, or an event, (n_q,)."""
        rows, events = self.pattern[: self.n_p], np.logical_or.reduce(self.pattern[self._event_rows], axis=0)
        return (
            np.logical_or.reduce(rows if self.equation_parameters is None else rows[self.equation_parameters], axis=0)
            | events
        )

    @cached_property
    def moving_events(self) -> Mask:
        """Return the mask of the rows of events that depend on q, (n_e,)."""
        return np.logical_or.reduce(self.pattern[self._event_rows], axis=1)

    @cached_property
    def starting_quantities(self) -> Mask:
        """Return the mask of the entries of q that change an initial state, (n_q,)."""
        return np.logical_or.reduce(self.pattern[self._state_rows], axis=0)

    @cached_property
    def is_initial_fixed(self) -> Mask:
        """Return the mask of the initial states that do not depend on q, (n_x,)."""
        return np.logical_not(np.logical_or.reduce(self.pattern[self._state_rows], axis=1))

    @property
    def parameter_of(self) -> Index:
        """The parameter that an entry of q is, by its position in p; -1 if it is none, (n_q,)."""
        return np.where(self.quantity_rows < self.n_p, self.quantity_rows, -1)

    @property
    def state_of(self) -> Index:
        """The initial state that an entry of q is; -1 if it is none, (n_q,)."""
        among = (self.quantity_rows >= self.n_p) & (self.quantity_rows < self.base.size - self.n_e)
        return np.where(among, self.quantity_rows - self.n_p, -1)

    @property
    def base_p(self) -> Array:
        """The parameters that are numbers, (n_p,)."""
        return self.base[: self.n_p]

    @property
    def base_a(self) -> Array:
        """The initial states that are numbers, (n_x,)."""
        return self.base[self._state_rows]

    def restrict(self, keep: Index, q: Array) -> ParameterLink:
        """Return the link as a function of the entries `keep` of q, the others held at their value."""
        n = natural_value(q, self.log)
        entries, rows = self._direct_entries
        is_fixed = ~np.isin(entries, keep)
        base = self.base.copy()
        base[rows[is_fixed]] = n[entries[is_fixed]]
        parts = tuple(part.restrict(keep, n) for part in self.parts)
        return ParameterLink(
            self.n_p, base, self.quantity_rows[keep], self.log[keep], parts, self.equation_parameters, self.n_e
        )
