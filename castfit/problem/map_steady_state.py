"""A part of a link: initial states that are the steady state before the experiment.

    n --inner link--> (p, a) before the experiment --rest--> w(p, a)

The inner link gives the parameters before the experiment and the state from which the model comes to rest; the rest
itself, and the rules by which it is differentiated, are in `castfit.rest`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.problem.parameter_map import Link
from castfit.experiment.steady import Rest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]
    Mask = NDArray[np.bool_]

_SHOWN = 8  # values in a message


@dataclass(frozen=True, eq=False)
class AtRest:
    """Rows of a link that are states at rest.

    Attributes
    ----------
    rows : (m,) int array
    states : (m,) int array
        Which state of the model each row is.
    rest : Rest
    before : Link
        n -> (p, a) before the experiment; nothing in it is a logarithm, since n is in natural scale.
    names : tuple of str
        Of the model's parameters, for messages.
    """

    rows: Index
    states: Index
    rest: Rest
    before: Link
    names: tuple[str, ...]

    @property
    def pattern(self) -> Mask:
        """Which row can depend on which entry of n, (m, n_q): all of them on whatever matters before."""
        moving = self.before.moving | self.before.starting
        return np.repeat(moving[None], self.rows.size, axis=0)

    def values(self, n: Array) -> tuple[Array, Array]:
        """Return the states (m,) and their derivatives by n (m, n_q); NaN where there is no steady state."""
        given = self.before.natural(n)
        found = self.rest.solve(given.p, given.a)
        if not found.ok:
            return np.full(self.rows.size, np.nan), np.full((self.rows.size, n.size), np.nan)
        slopes = self.rest.slopes(found, given.p, given.dp, given.da)
        return found.w[self.states], slopes[self.states]

    def curvature(self, n: Array, weight: Array) -> tuple[Array, Array]:
        """Return the weighted sums of first and second derivatives by n."""
        given = self.before.natural(n)
        found = self.rest.solve(given.p, given.a)
        if not found.ok:
            return np.full(n.size, np.nan), np.full((n.size, n.size), np.nan)
        slopes = self.rest.slopes(found, given.p, given.dp, given.da)
        on = np.zeros(found.w.size)
        np.add.at(on, self.states, weight)
        on_p, on_a, bend = self.rest.adjoint(found, given.p, on)
        along = np.concatenate([slopes, given.dp])
        return on @ slopes, along.T @ bend @ along + self.before.curvature(n, on_p, on_a)

    def reason(self, n: Array, row: int) -> tuple[str, str]:
        """Say which state has no value, at which parameters, and why."""
        given = self.before.natural(n)
        wrong = self.before.failure(n, given)
        found = self.rest.solve(given.p, given.a)
        name = self.rest.states[int(self.states[row])]
        shown = [f"{k} = {v:.6g}" for k, v in zip(self.names, given.p.tolist(), strict=True)]
        where = ", ".join([*shown[:_SHOWN], *(["..."] if len(shown) > _SHOWN else [])])
        why = wrong or found.reason
        return f"the steady state of '{name}' before the experiment", f"{where}{f' ({why})' if why else ''}"

    def kept(self, keep: Index, n: Array) -> AtRest:
        """Return the part as a function of the entries `keep` of n, the others held at their value."""
        return replace(self, before=self.before.kept(keep, n))
