"""Graphs rewritten operation by operation: powers of states, and switches at times.

**Powers** of states with estimated exponents: x**n where rounding makes x zero or negative.

A state that decays to zero is as often a little below it, where x**n is no number and d(x**n)/dn = x**n log x has none
at zero either: one such rounding error ends an integration, and more often its sensitivities.  Here

    x**n  =  f exp(n log max(x, tiny)),    f = 1 for x > 0

and at or below zero f continues the power: by 0 for n > 0, and by 1 for n <= 0, so that a negative power of zero is
as large as numbers get.  If n is an integer, powers of negative states keep their values: |x| takes the place of x, and
f is (-1)**n.

**Switches**: where a graph changes its form at a time that numbers or parameters tell.

``if_else(t > t0, a, b)``, ``heaviside(t - t0)``, ``fmax(t - t0, 0)`` and their like jump or kink at t0.  An integrator
that steps over it loses its order, and collocation too; so each becomes a parameter s, 0 before t0 and 1 after it, that
is constant between boundaries of stages:

    a < b          s or 1 - s
    sign(g)        2 s - 1 or 1 - 2 s
    fabs(g)        sign(g) g
    fmax(a, b)     b + (a - b) [a > b];    fmin(a, b)  =  a - (a - b) [a > b]

The compared expression must be linear in time, with a number as its slope; its root t0 is then an expression of
parameters.  Everything else stays as it is, including comparisons of states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import casadi as ca

from castfit._support.graphs import rewrite_operations
from castfit._support.records import dataclass

MIN_POWER_BASE = 1e-150  # smallest base of a power: its square, and the inverse of it in a derivative, are still finite
_COMPARISONS = (ca.OP_LT, ca.OP_LE)
_KINKS = (ca.OP_FMAX, ca.OP_FMIN)
_SIGNS = (ca.OP_SIGN, ca.OP_FABS)
_SWITCHING = (*_COMPARISONS, *_KINKS, *_SIGNS)


def differentiable_powers(columns: Sequence[ca.SX], states: ca.SX) -> list[ca.SX]:
    """Return columns of expressions in which powers of states are differentiable for all values of the state.

    It changes powers whose base has the sign of one state and whose exponent is not a number, such as  x**n  and
    (x / K)**n.
    """

    def replace_power(op: int, arguments: Sequence[ca.SX]) -> ca.SX | None:
        base, exponent = arguments
        if exponent.is_constant() or ca.depends_on(exponent, states) or not _is_share(base, states):
            return None
        return power(base, exponent)

    return rewrite_operations(columns, (ca.OP_POW,), replace_power)


def power(x: ca.SX, n: ca.SX) -> ca.SX:
    """Return x**n as above."""
    is_integer = n == ca.floor(n)
    is_mirrored = ca.logic_and(is_integer, x < 0)
    factor = ca.if_else(x > 0, 1, ca.if_else(is_mirrored, ca.cos(ca.pi * n), n <= 0))
    return factor * ca.exp(n * ca.log(ca.fmax(ca.if_else(is_mirrored, -x, x), MIN_POWER_BASE)))


def _is_share(base: ca.SX, states: ca.SX) -> bool:
    """Whether an expression is a state times something that no state enters."""
    if not ca.depends_on(base, states):
        return False
    slope = ca.jacobian(base, states)
    if slope.nnz() != 1 or ca.depends_on(slope, states):
        return False
    return bool(ca.simplify(ca.substitute(base, states, ca.SX.zeros(states.shape))).is_zero())


@dataclass(frozen=True, eq=False)
class Switch:
    """A parameter that is 0 before a time, an expression of parameters or a number, and 1 after it."""

    symbol: ca.SX
    time: ca.SX

    @property
    def name(self) -> str:
        """Name of the switch among the parameters."""
        return self.symbol.name()


@dataclass
class _Finder:
    """Collects the switches of graphs in time t; `others` are states and whatever else cannot tell a time."""

    t: ca.SX
    other_symbols: ca.SX
    switches: dict[str, Switch] = field(default_factory=dict[str, Switch])

    def replaced(self, op: int, arguments: Sequence[ca.SX]) -> ca.SX | None:
        """Return an operation with its switch; None if it stays."""
        a, b = arguments if len(arguments) == 2 else (arguments[0], ca.SX(0))
        indicator = self._positive(a - b)  # [a > b]
        if indicator is None:
            return None
        if op in _COMPARISONS:
            return 1 - indicator
        if op == ca.OP_SIGN:
            return 2 * indicator - 1
        if op == ca.OP_FABS:
            return (2 * indicator - 1) * a
        return b + (a - b) * indicator if op == ca.OP_FMAX else a - (a - b) * indicator

    def _positive(self, g: ca.SX) -> ca.SX | None:
        """Return [g > 0] by a switch, if g changes its sign at one time that parameters tell."""
        switches = [s.symbol for s in self.switches.values()]
        if not ca.depends_on(g, self.t) or ca.depends_on(g, ca.vertcat(self.other_symbols, *switches)):
            return None
        slope = ca.simplify(ca.jacobian(g, self.t))
        if not slope.is_constant() or float(slope) == 0.0:
            return None
        at_zero = ca.substitute([g], [self.t], [ca.SX(0)])[0]
        time = ca.simplify(-at_zero / slope)
        name = f"after {self.t.name()} = {time}"
        if name not in self.switches:
            self.switches[name] = Switch(ca.SX.sym(name), time)
        symbol = self.switches[name].symbol
        return symbol if float(slope) > 0.0 else 1 - symbol


def replace_jumps(columns: Sequence[ca.SX], t: ca.SX, other_symbols: ca.SX) -> tuple[list[ca.SX], tuple[Switch, ...]]:
    """Return columns of expressions with switches in place of what jumps or kinks at a time t, and the switches.

    `other_symbols` are states and inputs: what depends on them is no time.
    """
    finder = _Finder(t, other_symbols)
    replaced_columns = rewrite_operations(columns, _SWITCHING, finder.replaced)
    return replaced_columns, tuple(finder.switches.values())
