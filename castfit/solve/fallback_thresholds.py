"""Thresholds of the fallbacks of a Gauss-Newton solve: when an attempt has failed, and which one follows.

`castfit.solve.homotopy` applies them.  Decreases are relative to 1/2 |r|^2, which is about half the number of data if
sigma is known or profiled.  No threshold thus depends on units or on a cost that may be negative.
"""

from __future__ import annotations

from collections.abc import Sequence

from castfit._support.records import dataclass
from castfit.solve.penalty_homotopy import RelaxationLevel


def relaxation_ladder(floors: Sequence[float], prices: Sequence[float]) -> tuple[RelaxationLevel, ...]:
    """Return the relaxation levels with given floors of the weights and penalties of the equations."""
    return tuple(RelaxationLevel(floor, rho) for floor, rho in zip(floors, prices, strict=True))


@dataclass(frozen=True)
class FallbackThresholds:
    """Thresholds of the fallbacks, measured on the problem library.

    stalled_damping, max_stalled_steps : this number of steps with a smaller damping factor ends the straight attempt;
        easy problems have none or one
    max_straight_iterations, max_exact_iterations : limits on the iterations of the straight attempt, and after the
        relaxed problems
    cycling_length_rtol, max_cycling_steps : this number of successive full steps whose length changes by less than the
        fraction cycles around an optimum, because the curvature of the residuals is large; then steps are damped
    near_gap, near_decrease : below both, only integration errors keep full steps from converging, and level functions
        measure little else
    far_gap, far_decrease : below both, the solution is close enough for full accuracy of values and derivatives
    min_progress_factor, max_idle_steps : near the solution a step is idle unless gap or predicted decrease shrinks by
        this factor; after more idle steps than the limit, only integration errors remain
    divergence_factor : a step near the solution that multiplies the predicted decrease by this factor leads away from
        it; then the step control applies
    full_step_rise : rise of the cost by a full step near the solution that may be an integration error
    curvature_decrease, noise_decrease : predicted decreases, relative and in units of the cost, of which the larger one
        may be due to the curvature of the residuals
    noisy_gap, noisy_decrease : effect of integration errors at a converged solution
    max_stationary_decrease : predicted decrease within one search unit that a solution may leave, without
        regularisation
    relaxation_levels, slow_relaxation_levels : relaxed problems: the best ladder on calcium, and one of more and
        smaller steps for the starts that it loses
    initial_damping : damping at the start of a level
    max_level_iterations : limit on the iterations of a level
    min_level_decrease, min_damped_level_decrease, free_step_damping : relative decreases below which a level ends: the
        first one or, if the damping exceeded the third, the second one
    """

    stalled_damping: float = 0.5
    max_stalled_steps: int = 2
    max_straight_iterations: int = 50
    max_exact_iterations: int = 25
    cycling_length_rtol: float = 0.02
    max_cycling_steps: int = 8
    near_gap: float = 1e-3
    near_decrease: float = 1e-5
    far_gap: float = 1e-2
    far_decrease: float = 1e-3
    min_progress_factor: float = 0.6
    max_idle_steps: int = 2
    divergence_factor: float = 2.0
    full_step_rise: float = 1e-4
    curvature_decrease: float = 0.2
    noise_decrease: float = 5.0
    noisy_gap: float = 1e-5
    noisy_decrease: float = 1e-7
    max_stationary_decrease: float = 1e-5
    relaxation_levels: tuple[RelaxationLevel, ...] = relaxation_ladder(
        (0.65, 0.65, 0.065, 0.065, 0.0065, 0.0),
        (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3),
    )
    slow_relaxation_levels: tuple[RelaxationLevel, ...] = relaxation_ladder(
        (0.65, 0.65, 0.2, 0.2, 0.065, 0.065, 0.02, 0.0065, 0.002, 0.0, 0.0),
        (1e-3, 1e-2, 1e-1, 1.0, 3.0, 1e1, 3e1, 1e2, 3e2, 1e3, 1e4),
    )
    initial_damping: float = 1e-3
    max_level_iterations: int = 15
    min_level_decrease: float = 0.02
    min_damped_level_decrease: float = 1e-4
    free_step_damping: float = 1e-2


# Thresholds of `GaussNewton`.
FALLBACK_THRESHOLDS = FallbackThresholds()
