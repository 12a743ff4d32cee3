"""When a Gauss-Newton solve counts as lost, and what it tries then: one policy, with what each threshold is for.

`castfit.solve.homotopy` carries it out.  Decreases are relative to 1/2 |r|^2, which is about half the number of data
where sigma is known or profiled, so that no threshold depends on units or on a cost that may be negative.
"""

from __future__ import annotations

from collections.abc import Sequence

from castfit._support.records import dataclass
from castfit.solve.penalty_homotopy import RelaxationLevel


def relaxation_ladder(floors: Sequence[float], prices: Sequence[float]) -> tuple[RelaxationLevel, ...]:
    """Return stations of some floors of the weights and prices of the equations."""
    return tuple(RelaxationLevel(floor, rho) for floor, rho in zip(floors, prices, strict=True))


@dataclass(frozen=True)
class FallbackThresholds:
    """Thresholds of the rescues, as measured over the problem library.

    damped, stalled: so many steps damped so much end the straight way: easy problems have none or one.
    straight_iterations, exact_iterations: so many iterations suffice on the straight way, and after the stations;
        more mean a bad place.
    same_length, circling: so many full steps in a row whose length changes by less than this fraction lead round
        and round an optimum, where the residuals' own curvature is large: from then on steps are held back.
    near_gap, near_decrease: below both only integration errors keep full steps from converging: level functions see
        little else.
    far_gap, far_decrease: below both the solution is close enough to deserve values and derivatives of full
        accuracy.
    closer, idle: near the solution a step is idle unless gap or promised decrease shrinks by this factor; so many
        idle ones are forgiven, after one more the rest is integration error.
    away: A step near the solution that multiplies a promised decrease by this leads away: the step control takes
        over.
    noisy_gap, noisy_decrease: what an integration error may leave of a converged solution.
    stationary: what one unit of the search, with nothing held, may still promise at a solution.
    stations, slow_stations: the softened problems on the way: the ladder that measured best on calcium, and one of
        more and smaller steps for what it loses.
    first_mu: damping with which a station begins.
    station_iterations: at most, per station.
    drop, no_drop, free_step: relative decreases below which a station has done its work: `drop`, but `no_drop`
        where damping above `free_step` held the step back.
    """

    damped: float = 0.5
    stalled: int = 2
    straight_iterations: int = 50
    exact_iterations: int = 25
    same_length: float = 0.02
    circling: int = 8
    near_gap: float = 1e-3
    near_decrease: float = 1e-5
    far_gap: float = 1e-2
    far_decrease: float = 1e-3
    closer: float = 0.6
    idle: int = 2
    divergence_factor: float = 2.0
    noisy_gap: float = 1e-5
    noisy_decrease: float = 1e-7
    stationary: float = 1e-5
    stations: tuple[RelaxationLevel, ...] = relaxation_ladder(
        (0.65, 0.65, 0.065, 0.065, 0.0065, 0.0),
        (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3),
    )
    slow_stations: tuple[RelaxationLevel, ...] = relaxation_ladder(
        (0.65, 0.65, 0.2, 0.2, 0.065, 0.065, 0.02, 0.0065, 0.002, 0.0, 0.0),
        (1e-3, 1e-2, 1e-1, 1.0, 3.0, 1e1, 3e1, 1e2, 3e2, 1e3, 1e4),
    )
    first_mu: float = 1e-3
    station_iterations: int = 15
    drop: float = 0.02
    no_drop: float = 1e-4
    free_step: float = 1e-2


FALLBACK_THRESHOLDS = FallbackThresholds()
"""The policy of `GaussNewton`."""
