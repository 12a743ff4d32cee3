"""Typical magnitudes of all variables of a program, so that no plan depends on units.

Sizes of states come from the trajectory under the guessed inputs, and from bounds and end values; sizes of inputs from
their bounds and guesses.  A variable that is zero throughout takes the size that changes another state, or that results
from other variables, by a typical amount over the horizon:

    size of y_j = size of x_i / (T |df_i/dy_j|),      size of x_i = T max_j |df_i/dy_j| size of y_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.control.terms import END

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._support.arrays import Array
    from castfit.control.question import ControlQuestion
    from castfit.control.trajectory import PlanTrajectory


@dataclass(frozen=True, eq=False)
class PlanUnits:
    """Units of states with integrals (n_s,), algebraic states (n_z,), values of inputs (n_u,) and quantities (n_q,)."""

    states: Array
    algebraic: Array
    values: Array
    quantities: Array


def compute_units(
    question: ControlQuestion, courses: Sequence[PlanTrajectory], parameters: Array, carried: Sequence[int]
) -> PlanUnits:
    """Compute the units from trajectories with parameters (scenarios, n_p).

    `carried` are the indices of the integrals that are states.
    """
    system = question.model.system
    n_x, n_z, horizon = system.x.numel(), system.z.numel(), question.horizon
    states, algebraic, integrals = (
        _compute_max_sizes([getattr(c, n) for c in courses]) for n in ("x", "z", "integrals")
    )
    states = states if courses else np.zeros(n_x)
    algebraic = algebraic if courses else np.zeros(n_z)
    for name, size in _named_sizes(question).items():
        if name in question.model.states:
            i = question.model.states.index(name)
            states[i] = max(states[i], size)
    inputs = np.zeros(system.u.numel())
    for i, name in enumerate(question.model.inputs):
        if name in question.free_inputs:
            u = question.free_inputs[name]
            guess = np.abs(u.build_start_values(question.start, horizon)).max()
            inputs[i] = max(guess, *(abs(b) if np.isfinite(b) else 0.0 for b in (u.lower, u.upper)))
        elif courses:
            inputs[i] = max(float(np.abs(c.u[:, i]).max()) for c in courses)
    slopes = _compute_slopes(question, courses, parameters)
    all_sizes = _estimate_missing_sizes(np.concatenate([states, inputs]), slopes, horizon)
    states, inputs = all_sizes[:n_x], all_sizes[n_x:]
    carried_sizes = integrals[list(carried)] if courses else np.zeros(len(carried))
    values = [np.full(u.size, inputs[question.model.inputs.index(n)]) for n, u in question.free_inputs.items()]
    return PlanUnits(
        np.concatenate([states, _replace_invalid_sizes(carried_sizes)]), _replace_invalid_sizes(algebraic),
        np.concatenate(values) if values else np.empty(0), np.array([_quantity_size(q) for q in question.quantities]),
    )  # fmt: skip


def _named_sizes(question: ControlQuestion) -> dict[str, float]:
    """Return the largest bounds of constraints on single states: along the horizon, at times, or at the end."""
    ends = {hash(t.symbol): t.expression for t in question.terms if t.kind == END}
    out: dict[str, float] = {}
    for c in (*question.path, *question.points, *question.horizon_constraints):
        graph = ends.get(hash(c.expression), c.expression)
        if graph.is_symbolic():
            bounds = [abs(b) for b in (c.lower, c.upper) if np.isfinite(b)]
            out[graph.name()] = max([out.get(graph.name(), 0.0), *bounds])
    return out


def _compute_slopes(question: ControlQuestion, courses: Sequence[PlanTrajectory], parameters: Array) -> Array:
    """Return the largest sizes of df/d(x, u) along the courses, (n_x, n_x + n_u)."""
    system = question.model.system
    y = ca.vertcat(system.x, system.u)
    slope: Any = ca.Function("slope", system.arguments, [ca.densify(ca.jacobian(system.ode, y))])
    out = np.zeros((system.x.numel(), y.numel()))
    for course, p in zip(courses, parameters, strict=False):
        for k in np.unique(np.linspace(0, course.t.size - 1, 5).astype(int)):
            magnitudes = np.abs(np.asarray(slope(course.t[k], course.x[k], course.z[k], p, course.u[k]), dtype=float))
            out = np.maximum(out, np.where(np.isfinite(magnitudes), magnitudes, 0.0))
    return out


def _estimate_missing_sizes(sizes: Array, slopes: Array, horizon: float) -> Array:
    """Estimate missing sizes from the equations in which the variables occur. Use 1 if the equations give no size."""
    n = slopes.shape[0]
    for _ in range(sizes.size):
        unknown = sizes == 0.0
        if not unknown.any():
            break
        updated = sizes.copy()
        for j in np.flatnonzero(unknown):
            candidates = [
                sizes[i] / (horizon * slopes[i, j]) for i in range(n) if slopes[i, j] > 0.0 and sizes[i] > 0.0
            ]
            implied_size = horizon * float(np.max(slopes[j] * sizes, initial=0.0)) if j < n else 0.0
            updated[j] = min(candidates) if candidates else implied_size
        if np.array_equal(updated, sizes):
            break
        sizes = updated
    return _replace_invalid_sizes(sizes)


def _compute_max_sizes(columns: Sequence[Array]) -> Array:
    return np.max([np.abs(c).max(axis=0, initial=0.0) for c in columns], axis=0) if columns else np.empty(0)


def _replace_invalid_sizes(sizes: Array) -> Array:
    return np.where((sizes > 0.0) & np.isfinite(sizes), sizes, 1.0)


def _quantity_size(q: Any) -> float:
    bounds = [abs(b) for b in (q.lower, q.upper) if np.isfinite(b)]
    return 1.0 if q.log else abs(q.guess) or max(bounds, default=1.0) or 1.0
