"""Integration until a model reaches steady state: runs of outputs, each output time eight times the previous one.

Accuracy matters little on the way, as long as no basin of another steady state is entered; stability and long steps do.
castfit's own method is L-stable and conserves what the model conserves linearly, and near rest its steps grow, so that
any horizon is reached soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import casadi as ca
import numpy as np

from castfit._support.arrays import Array, Mask
from castfit.integrate.integrator import Integrator
from castfit.integrate.lanes import Lanes
from castfit.integrate.options import IntegratorOptions

_OUTPUT_TIME_RATIO = 8.0  # ratio of two consecutive output times
_OUTPUTS_PER_RUN = 8  # number of output times of one integration
_MAX_RUNS = 5  # largest number of integrations: the last one ends after 1e33 of the fastest time constants
_FIRST_OUTPUT_TIME = 1e-2  # time of the first output, in fastest time constants
# Largest change between two outputs, relative to a variable's magnitude, at which Newton's method is tried.
_MAX_RELATIVE_CHANGE = 0.1
_GRID = _OUTPUT_TIME_RATIO ** np.arange(1 - _OUTPUTS_PER_RUN, 1.0)
_OPTIONS = IntegratorOptions(
    relative_tolerance=1e-3, absolute_tolerance=1e-6, max_steps=2000, watch_sensitivities=False,
)  # fmt: skip


@dataclass(frozen=True)
class SettlingState:
    """Point of the integration.

    w (n,) : variables
    rate (n,) : F(w)
    jacobian (n, n) : J(w)
    size (n,) : largest magnitudes so far
    """

    time: float
    w: Array
    rate: Array
    jacobian: Array
    size: Array


def relaxation_integrator(system: ca.Function, states: tuple[str, ...]) -> Integrator:
    """Build the integrator of a function (t, x, z, p, u) -> (ode, alg) without inputs, from one output to the next."""
    algebraic = tuple(f"z{i}" for i in range(system.size1_in(2)))
    return Integrator.from_function(system, states, algebraic, _GRID, _OPTIONS)


def relax(
    integrator: Integrator,
    residual_and_jacobian: Callable[[Array], tuple[Array, Array]],
    w: Array,
    p: Array,
    idle: Mask,
) -> Iterator[SettlingState]:
    """Yield the start, later points at which little moves any more, and the last one of a run; end as integration does.

    residual_and_jacobian : w to F(w) with its Jacobian
    w : (n,) consistent variables, the n_x differential ones first
    idle : (n_x,) states that stay at zero, where rounding would move them
    """
    n_x, time = idle.size, 0.0
    f0, jacobian = residual_and_jacobian(w)
    fastest = _fastest(jacobian[:n_x, :n_x])
    size = _sizes(residual_and_jacobian, w, n_x, fastest)
    yield SettlingState(time, w, f0, jacobian, size)
    if not np.isfinite(fastest):
        return
    duration = _FIRST_OUTPUT_TIME / (_GRID[0] * (fastest or 1.0))
    no_inputs = np.zeros((1, _OUTPUTS_PER_RUN, 0, 4))
    for _ in range(_MAX_RUNS):
        unit = np.where(size > 0.0, size, 1.0)
        lanes = Lanes(np.zeros(1), np.array([duration]), w[None, :n_x], p[None], no_inputs, w[None, n_x:], unit[None])
        course = _course(integrator, lanes)
        course[:, :n_x][:, idle] = 0.0
        n_finite = int(np.logical_and.accumulate(np.isfinite(course).all(axis=1)).sum())
        sizes = np.maximum.accumulate(np.vstack([size, np.abs(course[:n_finite])]))[1:]
        with np.errstate(invalid="ignore", divide="ignore"):
            changes = np.nan_to_num(np.abs(np.diff(course[:n_finite], axis=0, prepend=w[None])) / sizes).max(axis=1)
        for k in range(n_finite):
            w, size = course[k], sizes[k]
            if changes[k] <= _MAX_RELATIVE_CHANGE or k == n_finite - 1:
                yield SettlingState(time + duration * _GRID[k], w, *residual_and_jacobian(w), size)
        if n_finite < _OUTPUTS_PER_RUN:
            return
        time, duration = time + duration, duration * _OUTPUT_TIME_RATIO**_OUTPUTS_PER_RUN


def _course(integrator: Integrator, lanes: Lanes) -> Array:
    """Return the variables (m, n) at the outputs, NaN from where they cannot be integrated."""
    if integrator.stepping is None:
        solution = integrator.values(lanes)
    else:  # which tells how far it came, too
        solution = integrator.stepping.model.integrate(
            lanes, integrator.grid, integrator.stepping.method, integrator.stepping.control
        )
    return np.hstack([solution.x[0], solution.z[0]])


def _fastest(jacobian: Array) -> float:
    """Return the largest modulus of the eigenvalues; NaN where there are none."""
    return float(np.abs(np.linalg.eigvals(jacobian)).max(initial=0.0)) if np.isfinite(jacobian).all() else np.nan


def _sizes(residual_and_jacobian: Callable[[Array], tuple[Array, Array]], w: Array, n_x: int, fastest: float) -> Array:
    """Return magnitudes (n,): of what stands at zero the one to which its rate leads before it decays.

    Products of a reaction get theirs one after the other.
    """
    size = np.abs(w)
    for _ in range(n_x):
        zero = size[:n_x] == 0.0
        if not zero.any():
            break
        rate, jacobian = residual_and_jacobian(np.concatenate([size[:n_x], w[n_x:]]))
        decay = np.abs(np.diagonal(jacobian)[:n_x])
        with np.errstate(divide="ignore", invalid="ignore"):
            reached_levels = np.abs(rate[:n_x]) / np.where(decay > 0.0, decay, fastest)
        added = np.where(zero & np.isfinite(reached_levels), reached_levels, 0.0)
        if not (added > 0.0).any():
            break
        size[:n_x] += added
    return size
