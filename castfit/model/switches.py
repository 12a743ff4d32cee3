"""Switches: where a graph changes its form at a time that numbers or parameters tell.

``if_else(t > t0, a, b)``, ``heaviside(t - t0)``, ``fmax(t - t0, 0)`` and their like jump or kink at t0.  An integrator
that steps over it loses its order, and collocation too; so each becomes a parameter s, 0 before t0 and 1 after it, that
is constant between boundaries of stages:

    a < b          s or 1 - s
    sign(g)        2 s - 1 or 1 - 2 s
    fabs(g)        sign(g) g
    fmax(a, b)     b + (a - b) [a > b];    fmin(a, b)  =  a - (a - b) [a > b]

What is compared must be linear in time, with a number as its slope; its root t0 is then an expression of parameters.
Everything else stays as it is, comparisons of states among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import casadi as ca

from castfit.model.graph_rewriting import rewritten

_COMPARISONS = (ca.OP_LT, ca.OP_LE)
_KINKS = (ca.OP_FMAX, ca.OP_FMIN)
_SIGNS = (ca.OP_SIGN, ca.OP_FABS)
_SWITCHING = (*_COMPARISONS, *_KINKS, *_SIGNS)


@dataclass(frozen=True, eq=False)
class Switch:
    """A parameter that is 0 before a time, an expression of parameters or a number, and 1 after it."""

    symbol: ca.SX
    time: ca.SX

    @property
    def name(self) -> str:
        """What it is called among the parameters."""
        return self.symbol.name()


@dataclass
class _Finder:
    """Collects the switches of graphs in time t; `others` are states and whatever else cannot tell a time."""

    t: ca.SX
    others: ca.SX
    found: dict[str, Switch] = field(default_factory=dict[str, Switch])

    def replaced(self, op: int, arguments: Sequence[ca.SX]) -> ca.SX | None:
        """Return an operation with its switch; None if it stays."""
        a, b = arguments if len(arguments) == 2 else (arguments[0], ca.SX(0))
        after = self._positive(a - b)  # [a > b]
        if after is None:
            return None
        if op in _COMPARISONS:
            return 1 - after
        if op == ca.OP_SIGN:
            return 2 * after - 1
        if op == ca.OP_FABS:
            return (2 * after - 1) * a
        return b + (a - b) * after if op == ca.OP_FMAX else a - (a - b) * after

    def _positive(self, g: ca.SX) -> ca.SX | None:
        """Return [g > 0] by a switch, if g changes its sign at one time that parameters tell."""
        switches = [s.symbol for s in self.found.values()]
        if not ca.depends_on(g, self.t) or ca.depends_on(g, ca.vertcat(self.others, *switches)):
            return None
        slope = ca.simplify(ca.jacobian(g, self.t))
        if not slope.is_constant() or float(slope) == 0.0:
            return None
        at_zero = ca.substitute([g], [self.t], [ca.SX(0)])[0]
        time = ca.simplify(-at_zero / slope)
        name = f"after {self.t.name()} = {time}"
        if name not in self.found:
            self.found[name] = Switch(ca.SX.sym(name), time)
        symbol = self.found[name].symbol
        return symbol if float(slope) > 0.0 else 1 - symbol


def switched(columns: Sequence[ca.SX], t: ca.SX, others: ca.SX) -> tuple[list[ca.SX], tuple[Switch, ...]]:
    """Return columns of expressions with switches in place of what jumps or kinks at a time, and the switches.

    Parameters
    ----------
    columns : sequence of casadi.SX columns
    t : casadi.SX
        The symbol of time.
    others : casadi.SX
        States, inputs: what depends on them is no time.
    """
    finder = _Finder(t, others)
    out = rewritten(columns, _SWITCHING, finder.replaced)
    return out, tuple(finder.found.values())
