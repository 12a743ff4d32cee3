"""What the compiled ESDIRK method makes of lanes: the failures in words, and where the inputs make steps end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.integrate.lanes import LaneFailure, Lanes, shift_cubics
from castfit.integrate.native import (
    FINE,
    MANY_STEPS,
    NO_MEMORY,
    NOT_FINITE,
    SINGULAR,
    STEP_ERROR,
    STEP_NEWTON,
    Control,
    native_model,
)
from castfit.integrate.tableau import ESDIRK4, ESDIRK5

if TYPE_CHECKING:
    from collections.abc import Sequence

    import casadi as ca
    from numpy.typing import NDArray

    from castfit.integrate.native import Kept, Outcome
    from castfit.integrate.options import IntegratorOptions
    from castfit.integrate.tableau import Tableau

    Array = NDArray[np.float64]

_SAME = 1e-13  # up to which inputs go on as they were
_CAUSES = {
    STEP_ERROR: ("step_size", "the error test fails however short they are"),
    STEP_NEWTON: ("step_size", "the stages cannot be solved however short they are"),
    MANY_STEPS: ("too_many_steps", "too many steps are needed"),
    NOT_FINITE: ("not_finite", "the right-hand side is not finite"),
    SINGULAR: ("consistent_initialisation", "the algebraic equations are singular"),
    NO_MEMORY: ("solver", "there is no memory for the integration"),
}


class Stepping:
    """The compiled ESDIRK method for one model.

    Parameters
    ----------
    graph : casadi.Function
        (t, x, z, p, u) -> (ode, alg).
    names : sequence of str
        Of states and algebraic states.
    options : IntegratorOptions

    Raises
    ------
    CompilationError
        If the model cannot be compiled although it has to.
    """

    def __init__(self, graph: ca.Function, names: Sequence[str], options: IntegratorOptions) -> None:
        self._model = native_model(graph, options.compile)
        self._names = tuple(names)
        self._control = Control(options.relative_tolerance, options.absolute_tolerance, options.max_steps)
        if not options.watch_sensitivities:
            self._control = replace(self._control, watch=0.0)
        self._method = method_for(options.relative_tolerance)

    @property
    def worth_compiling(self) -> bool:
        """Whether it pays to compile the model's functions, which are not yet."""
        return self._model.worth_compiling

    def run(
        self,
        lanes: Lanes,
        grid: Array,
        failures: dict[int, LaneFailure],
        directions: tuple[Array, Array, Array | None] | None = None,
        follow: Kept | None = None,
    ) -> Outcome:
        """Integrate lanes that have not failed and last; put the reasons of those that fail among the failures.

        Where directions have no say in the choice of steps, steps are kept without them, for who will `follow` them.
        """
        skip = lanes.duration == 0.0
        skip[list(failures)] = True
        stops = stops_of(lanes, grid) if lanes.u.shape[2] else None
        found = self._model.integrate(
            lanes, grid, self._method, self._control, stops=stops, skip=skip, directions=directions,
            keep=self._control.watch == 0.0 and directions is None, follow=follow,
        )  # fmt: skip
        for lane in np.flatnonzero(found.code != FINE).tolist():
            failures[lane] = self._why(lane, found)
        parts = [found.x, found.z] if found.dx is None else [found.x, found.z, found.dx]
        if not all(np.isfinite(part).all() for part in parts):
            flat = [part.reshape(lanes.size, -1) for part in parts]
            bad = ~np.logical_and.reduce([np.isfinite(part).all(axis=1) for part in flat]) & ~skip
            for lane in np.flatnonzero(bad).tolist():
                failures.setdefault(lane, LaneFailure(lane, "not_finite", "the result is not finite"))
        return found

    def _why(self, lane: int, found: Outcome) -> LaneFailure:
        code, which = int(found.code[lane]), int(found.which[lane])
        cause, detail = _CAUSES[code]
        if code == NOT_FINITE and which >= 0:
            detail = f"NaN or Inf in the equation of {self._names[which]}"
        return LaneFailure(lane, cause, f"{detail}, at t = {found.where[lane]:g}")


_FIFTH_ORDER = 1e-5
"""Relative tolerance from which a seventh stage pays.

Milliseconds of a sweep at 1e-6 by order 4 / 5, and its error in 1e-6: stat5 0.7 / 0.8, 4.4 / 0.5; three-step 5.8 / 6.2,
9.9 / 2.1; calcium 1.3 / 1.5, 7 / 3; HIV 4.3 / 6.0, 64 / 17; Elowitz 9.2 / 7.5, 8 / 1; Boehm 1.5 / 2.0, 0.06 / 0.001.
"""


def method_for(relative_tolerance: float) -> Tableau:
    """Return the method that costs least at a tolerance."""
    return ESDIRK4 if relative_tolerance > _FIFTH_ORDER else ESDIRK5


def stops_of(lanes: Lanes, grid: Array) -> NDArray[np.int8]:
    """Tell where steps must end because of the inputs, (L, m): 1 where one goes on otherwise, 2 where it jumps."""
    out = np.zeros((lanes.size, grid.size), dtype=np.int8)
    if grid.size < 2:
        return out
    widths = lanes.duration[:, None] * np.diff(grid, prepend=0.0)
    continued = shift_cubics(lanes.u[:, :-1], widths[:, :-1, None])
    reach = widths[:, 1:, None, None] ** np.arange(4)  # what a difference of coefficients amounts to
    size = (np.abs(lanes.u[:, 1:]) * reach).sum(axis=3, keepdims=True)
    differs = np.abs(continued - lanes.u[:, 1:]) * reach > _SAME * size
    out[:, :-1] = np.where(differs[..., 0].any(axis=2), 2, differs.any(axis=(2, 3)))
    return out
