"""Relaxed problems that begin at constant states: a start for partly measured models.

If outputs are sums, logarithms or scaled states, neither the data nor a simulation determines the states.  The states
start constant in time with a small penalty on the equations; the data determine the trajectories, and these the
parameters:

    Phi = 1/2 sum_i (r_i / sigma_i)^2 + 1/2 sum_j b_j h_e T |dz/dt - F|^2 / rho^2 + 1/2 |z_0 - a(theta)|^2 / rho^2

while rho decreases.  b are the weights of the collocation points, h_e the elements' lengths, T that of the experiment:
the second term is T times an integral over time.  For integrated stages  T/h |gap|^2 / rho^2  replaces it.

States are searched in z: z = log(x + floor) for positive states, z = x / unit for others (see
docs/understand/homotopies.md).

A step is a Levenberg step with damping mu on theta and 0.1 mu on z; only bounds fix variables.  The whole step is
scaled so that no logarithm of a parameter changes by more than 2 and no z by more than 4.

Notation
--------
u  (n_v,)  theta, then z in place of every state of v
X  (n_v,)  dv/du, which is x + floor for a logarithm
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from castfit.solve.penalty_homotopy import NormalEquations, WeightedRows, stage_jacobian
from castfit.solve.solution import CountingProblem
from castfit.solve.staged import (
    Array,
    Chain,
    Evaluation,
    Index,
    Layout,
    Linearization,
    Mask,
    StagedProblem,
    rows_in_units,
)

LONG_RAMP = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
SHORT_RAMP = (1.0, 0.1, 0.01)
_MAX_LEVEL_ITERATIONS: dict[tuple[float, ...], int] = {LONG_RAMP: 15, SHORT_RAMP: 35}  # at each rho, at most
_LOG_ARGUMENT_FLOOR = 1e-7  # Floor of the argument of a logarithm, relative to the largest value of the state.
_CONTINUITY_WEIGHT = 1e3  # Weight of the gaps between elements, which are linear and are not relaxed.
_FIRST_MU = 0.1  # Initial damping factor.
_STATE_DAMPING_RATIO = 0.1  # Damping of the states, relative to that of theta.
_MAX_LOG_STEPS = (2.0, 4.0)  # Limits on the step of a logarithm: of a parameter, and of z.
# Limit on the damping factors tried in one iteration: fewer end searches that a later rho would continue.
_MAX_DAMPING_TRIES = 16
# Relative decrease below which an iteration stagnates; three such iterations in a row end a level.
_MIN_RELATIVE_DECREASE = 3e-3
_MAX_LOGARITHM = 300.0  # Largest logarithm whose exponential is computed.


@dataclass(frozen=True)
class SearchCoordinates:
    """Search coordinates of states: z = log(x + floor) where `logarithmic`, else x / unit.

    logarithmic, unit, floor : (n_v,)
        Theta is searched as it is, with unit 1.
    """

    logarithmic: Mask
    unit: Array
    floor: Array

    @classmethod
    def from_layout(cls, layout: Layout, positive: Mask, magnitude: Array) -> SearchCoordinates:
        """Return the coordinates for states that stay `positive`, of some `magnitude`, both (n_x + n_z,)."""
        logarithmic, unit = np.zeros(layout.n_v, dtype=bool), np.ones(layout.n_v)
        for chain in layout.chains:
            n_points = chain.n_w // magnitude.size
            logarithmic[chain.nodes], unit[chain.nodes] = positive[: chain.n_s], magnitude[: chain.n_s]
            if n_points:
                logarithmic[chain.inner], unit[chain.inner] = np.tile(positive, n_points), np.tile(magnitude, n_points)
        return cls(logarithmic, unit, _LOG_ARGUMENT_FLOOR * unit)

    def natural(self, u: Array) -> Array:
        """Return v."""
        with np.errstate(over="ignore"):
            return np.where(self.logarithmic, np.exp(np.minimum(u, _MAX_LOGARITHM)) - self.floor, u * self.unit)

    def slope(self, u: Array) -> Array:
        """Return X = dv/du."""
        with np.errstate(over="ignore"):
            return np.where(self.logarithmic, np.exp(np.minimum(u, _MAX_LOGARITHM)), self.unit)

    def search(self, v: Array) -> Array:
        """Return u; negative values of positive states count as zero."""
        return self.searched(v, slice(None))

    def searched(self, x: Array, indices: slice | Index) -> Array:
        """Return z of states x at some positions of v."""
        logarithm = np.log(np.maximum(x, 0.0) + np.where(self.logarithmic, self.floor, 1.0)[indices])
        return np.where(self.logarithmic[indices], logarithm, x / self.unit[indices])

    def searched_slope(self, x: Array, indices: slice | Index) -> Array:
        """Return dz/dx of states x at some positions of v."""
        shifted_x = np.maximum(x, 0.0) + np.where(self.logarithmic, self.floor, 1.0)[indices]
        return np.where(self.logarithmic[indices], 1.0 / shifted_x, 1.0 / self.unit[indices])


class FlatRelaxedProblem:
    """Staged problem of stages or elements, nothing eliminated, in other coordinates, its equations with a penalty.

    noise : (K, n_r) per chain, standard deviations in units of the weights of the residuals.  Unknown ones are fixed:
        profiled from the beginning they rise to the deviation of the data, and a constant is stationary
    points : (d,), the weights b of the collocation points; empty for integrated stages
    """

    def __init__(
        self, staged: StagedProblem, coordinates: SearchCoordinates, noise: Sequence[Array], points: Array, rho: float
    ) -> None:
        self.staged, self.coordinates, self.noise, self.rho = staged, coordinates, noise, rho
        self.gap_weights: list[Array] = []
        self.inner_weights: list[Array] = []
        for chain in staged.layout.chains:
            share = np.diff(chain.times) / (chain.times[-1] - chain.times[0])
            per_state = np.repeat(points, chain.n_w // points.size) if points.size else points
            self.inner_weights.append(np.sqrt(per_state / share[:, None]) / rho)
            between = np.full(chain.n_stages, _CONTINUITY_WEIGHT) if points.size else 1.0 / (rho * np.sqrt(share))
            between[0] = 1.0 / rho
            self.gap_weights.append(np.repeat(between[:, None], chain.n_s, axis=1))

    def value(self, u: Array, evaluation: Evaluation) -> float:
        """Phi, infinite if a stage failed."""
        if not evaluation.ok:
            return np.inf
        parts = (part for i in range(len(evaluation.values)) for part in self.parts(i, u, evaluation))
        with np.errstate(over="ignore"):
            square = (
                float(evaluation.prior @ evaluation.prior)
                + 2.0 * evaluation.prior_excess
                + sum(float(np.sum(p**2)) for p in parts)
            )
        return 0.5 * square if np.isfinite(square) else np.inf

    def parts(self, i: int, u: Array, evaluation: Evaluation) -> tuple[Array, Array, Array]:
        """Return the weighted residuals, gaps with the initial one first, and inner equations of chain i."""
        chain, values, coordinates = self.staged.layout.chains[i], evaluation.values[i], self.coordinates
        incoming_states = np.concatenate([values.a[None], values.x[:-1]])
        gap = coordinates.searched(incoming_states, chain.nodes) - u[chain.nodes]
        residual = rows_in_units(self.staged.layout, evaluation)[i] / self.noise[i]
        inner = values.d / coordinates.slope(u)[chain.inner] * self.inner_weights[i]
        return residual, self.gap_weights[i] * gap, inner

    def equations(self, u: Array, linear: Linearization) -> NormalEquations:
        """Return the normal equations at a point."""
        layout = self.staged.layout
        return NormalEquations(layout, linear, (self._rows(i, c, u, linear) for i, c in enumerate(layout.chains)))

    def _rows(self, i: int, chain: Chain, u: Array, linear: Linearization) -> WeightedRows:
        coordinates, j, values, X = self.coordinates, linear.jacobians[i], linear.values[i], self.coordinates.slope(u)
        K, n_s = chain.n_stages, chain.n_s
        residual, gap, inner = self.parts(i, u, linear)
        X_s, X_w = X[chain.nodes][:, None, :], X[chain.inner][:, None, :]
        next_gaps, w_next, slope = np.zeros((3, K, n_s))
        next_gaps[:-1], w_next[:-1] = gap[1:], self.gap_weights[i][1:]
        slope[:-1] = coordinates.searched_slope(values.x[:-1], chain.nodes[1:]) * w_next[:-1]
        row_weights = np.append(linear.sigma, 1.0)[chain.group] / self.noise[i]
        inner_weights = self.inner_weights[i] / X[chain.inner]
        D_w = j.D_w * X_w
        diagonal_indices = np.arange(chain.n_w)
        D_w[:, diagonal_indices, diagonal_indices] -= np.where(
            coordinates.logarithmic[chain.inner], values.d, 0.0
        )  # d/du of 1/X
        jacobian = stage_jacobian(
            (j.R_s * X_s, j.R_w * X_w, j.R_q), (j.X_s * X_s, j.X_w * X_w, j.X_q), (j.D_s * X_s, D_w, j.D_q),
            row_weights, slope, w_next, inner_weights,
        )  # fmt: skip
        weight = self.gap_weights[i][0]
        initial = weight * coordinates.searched_slope(values.a, chain.nodes[0])
        return np.concatenate([residual, next_gaps, inner], axis=1), jacobian, (weight, gap[0], initial[:, None] * j.A)


@dataclass(frozen=True)
class HomotopyPath:
    """Result of the homotopy: v (n_v,), and the number of steps."""

    v: Array
    steps: int


def run_homotopy(
    ledger: CountingProblem,
    at_price: Callable[[float], FlatRelaxedProblem],
    start: Array,
    stations: tuple[float, ...] = LONG_RAMP,
) -> HomotopyPath:
    """Continue from v (n_v,) at the start through the stations, with decreasing rho.

    Nothing is eliminated from the ledger's problem; `at_price` builds the relaxed problem for rho.  The better one of
    `LONG_RAMP` and `SHORT_RAMP` depends on the problem, so that a search alternates them.

    Raises StopRequested if the time is over or Ctrl-C was pressed.
    """
    coordinates = at_price(stations[0]).coordinates
    u, steps = coordinates.search(start), 0
    for rho in stations:
        u, n_steps = _station(
            ledger, at_price(rho), u, _MAX_LEVEL_ITERATIONS.get(stations, _MAX_LEVEL_ITERATIONS[LONG_RAMP])
        )
        steps += n_steps
    return HomotopyPath(np.clip(coordinates.natural(u), ledger.staged.lower, ledger.staged.upper), steps)


def _station(ledger: CountingProblem, soft: FlatRelaxedProblem, u: Array, max_steps: int) -> tuple[Array, int]:
    """Minimise Phi at one rho; return the end and the number of steps."""
    staged, coordinates = soft.staged, soft.coordinates
    n_theta = staged.layout.n_theta
    lower, upper = coordinates.search(staged.lower), coordinates.search(staged.upper)
    unit = np.where(np.arange(u.size) < n_theta, staged.scale, 1.0)
    is_theta = np.arange(u.size) < n_theta
    damping, longest = (
        np.where(is_theta, 1.0, _STATE_DAMPING_RATIO) / unit**2,
        np.where(is_theta, *_MAX_LOG_STEPS) * unit,
    )
    linear = ledger.linearize(coordinates.natural(u))
    current_value, mu, n_stagnant = soft.value(u, linear), _FIRST_MU, 0
    if not (linear.ok and np.isfinite(current_value)):
        return u, 0
    for step in range(max_steps):
        equations = soft.equations(u, linear)
        is_fixed = ((u <= lower) & (equations.gradient >= 0)) | ((u >= upper) & (equations.gradient <= 0))
        is_fixed |= lower == upper
        for i in range(_MAX_DAMPING_TRIES):
            du = equations.solve(mu, is_fixed, damping)
            if du is not None:
                du /= max(1.0, float(np.max(np.abs(du) / longest)))
                new_u = np.clip(u + du, lower, upper)
                trial = ledger.evaluate(coordinates.natural(new_u))
                value, predicted_decrease = soft.value(new_u, trial), equations.decrease(new_u - u)
                gain = (
                    (current_value - value) / predicted_decrease
                    if predicted_decrease > 0.0 and np.isfinite(value)
                    else -np.inf
                )
                if (
                    value < current_value
                    and gain > 1e-4
                    and (new_linear := ledger.linearize(coordinates.natural(new_u))).ok
                ):
                    break
            mu *= 2.0 if i < 4 else 10.0
        else:
            return u, step
        relative_decrease = (current_value - value) / current_value
        u, linear, current_value = new_u, new_linear, value
        mu *= 0.2 if gain > 0.75 else 0.5 if gain > 0.3 else 1.0
        n_stagnant = n_stagnant + 1 if relative_decrease < _MIN_RELATIVE_DECREASE else 0
        if n_stagnant == 3:
            return u, step + 1
    return u, max_steps
