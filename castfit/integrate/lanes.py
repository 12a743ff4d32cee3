"""Inputs and outputs of an integrator: lanes, times, trajectories, sensitivities, failures.

Measured times are exact.  Boundaries of equal division and breakpoints are computed, and may miss the intended time by
a few units in the last place.  So times that differ by no more than that count as equal, and relative grids that differ
by no more are one grid, for which one integrator is built.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._support.arrays import Array, Mask


_INPUT_CONTINUITY_RTOL = 1e-13  # relative difference of coefficients up to which an input continues unchanged
_TIME_ROUNDING_ULPS = 16  # units in the last place by which two equal times may differ
_MAX_GRID_DIGITS = 9  # decimal digits of the key of a grid; fewer if rounding is worse


@dataclass(frozen=True)
class Lanes:
    """L initial value problems on one relative grid of m output times.

    start, duration : (L,)
        A lane runs from ``start`` to ``start + duration``; backwards where the duration is negative.
    x0 : (L, n_x)       initial states
    p : (L, n_p)        parameters
    u : (L, m, n_u, 4)  the inputs on the m grid intervals as local cubics: on interval j, which ends at grid[j]
                        and begins at grid[j - 1] (0 for j = 0),  u_i(t) = sum_c u[l, j, i, c] (t - t_begin)**c.
                        If grid[0] = 0, interval 0 is empty and has the inputs at the start.
    z0 : (L, n_z)       guess of the algebraic states at the start
    unit : (L, n_x + n_z), optional
        Typical magnitude of every state and algebraic state, positive: absolute tolerances are relative to it.  By
        default 1.
    """

    start: Array
    duration: Array
    x0: Array
    p: Array
    u: Array
    z0: Array
    unit: Array | None = None

    @property
    def size(self) -> int:
        """Number of lanes L."""
        return self.x0.shape[0]

    @property
    def units(self) -> tuple[Array, Array]:
        """Typical magnitudes of the states (L, n_x) and of the algebraic states (L, n_z)."""
        n_x = self.x0.shape[1]
        unit = np.ones((self.size, n_x + self.z0.shape[1])) if self.unit is None else self.unit
        return unit[:, :n_x], unit[:, n_x:]

    def __getitem__(self, rows: Any) -> Lanes:
        unit = None if self.unit is None else self.unit[rows]
        return Lanes(
            self.start[rows], self.duration[rows], self.x0[rows], self.p[rows], self.u[rows], self.z0[rows], unit
        )


@dataclass(frozen=True)
class LaneFailure:
    """Why a lane could not be integrated.

    `cause` is one of the keys ``step_size``, ``too_many_steps``, ``not_finite``, ``consistent_initialisation``,
    ``algebraic_equations``, ``newton`` (collocation's equations) and ``solver`` (anything else); `detail` says more.
    """

    lane: int
    cause: str
    detail: str


@dataclass(frozen=True)
class Trajectories:
    """States x (L, m, n_x) and algebraic states z (L, m, n_z) at the output times; NaN in lanes that failed.

    `rescued_lanes` are the lanes that a fallback integrator integrated; `sensitivity_cache` holds an integrator's data
    for the sensitivities of the same lanes.  `steps` is the number of steps, 0 if the integrator does not report it.
    """

    x: Array
    z: Array
    failures: tuple[LaneFailure, ...]
    rescued_lanes: tuple[int, ...] = ()
    sensitivity_cache: Any = field(default=None, compare=False, repr=False)
    steps: int = 0

    def __getitem__(self, lanes: Sequence[int]) -> Trajectories:
        place = {lane: i for i, lane in enumerate(lanes)}
        failures = tuple(replace(f, lane=place[f.lane]) for f in self.failures if f.lane in place)
        rescued = tuple(place[lane] for lane in self.rescued_lanes if lane in place)
        return Trajectories(self.x[list(lanes)], self.z[list(lanes)], failures, rescued)


@dataclass(frozen=True)
class Sensitivities:
    """Derivatives dx (L, m, n_x, n_d) and dz (L, m, n_z, n_d) along n_d directions; NaN in lanes that failed.

    `rescued_lanes` as in `Trajectories`; `steps` of the compiled integrator: all, and explicit ones.
    """

    dx: Array
    dz: Array
    failures: tuple[LaneFailure, ...]
    rescued_lanes: tuple[int, ...] = ()
    steps: tuple[int, ...] = (0, 0)


@dataclass(frozen=True)
class Adjoints:
    """Derivatives of n_a sums over each lane's trajectory; NaN in lanes that failed.

    x0 (L, n_a, n_x), p (L, n_a, n_p), start (L, n_a), duration (L, n_a)

    `rescued_lanes` as in `Trajectories`.
    """

    x0: Array
    p: Array
    start: Array
    duration: Array
    failures: tuple[LaneFailure, ...]
    rescued_lanes: tuple[int, ...] = ()

    @property
    def bars(self) -> tuple[Array, Array, Array, Array]:
        """The four arrays of derivatives: x0, p, start and duration."""
        return self.x0, self.p, self.start, self.duration


@dataclass(frozen=True)
class IntegrationStop:
    """Time at which the integration of a lane stopped, the fastest-changing state there, and a sentence for users."""

    time: float
    state: str
    value: float
    sentence: str


def shift_cubics(cubics: Array, shift: Array) -> Array:
    """Expand cubics (..., 4) about a point that lies `shift` (...) to the right of the old one."""
    c0, c1, c2, c3 = np.moveaxis(cubics, -1, 0)
    return np.stack(
        [
            c0 + shift * (c1 + shift * (c2 + shift * c3)),
            c1 + shift * (2 * c2 + shift * 3 * c3),
            c2 + shift * 3 * c3,
            c3 + 0 * shift,
        ],
        axis=-1,
    )


def shift_slopes(cubics: Array) -> Array:
    """Return the derivative of `shift_cubics` by `shift` at 0, (..., 4)."""
    _, c1, c2, c3 = np.moveaxis(cubics, -1, 0)
    return np.stack([c1, 2 * c2, 3 * c3, 0 * c3], axis=-1)


def input_discontinuities(cubics: Array, widths: Array) -> Mask:
    """Mark the coefficients of inputs (L, m, n_u, 4) that do not continue the previous cubics, (L, m - 1, n_u, 4).

    widths (L, m) are those of the intervals.
    """
    continued = shift_cubics(cubics[:, :-1], widths[:, :-1, None])
    reach = widths[:, 1:, None, None] ** np.arange(4)  # effect of a difference of coefficients over the interval
    size = (np.abs(cubics[:, 1:]) * reach).sum(axis=3, keepdims=True)
    return np.abs(continued - cubics[:, 1:]) * reach > _INPUT_CONTINUITY_RTOL * size


def time_rounding(times: Array, origin: float = 0.0) -> Array:
    """Return the difference up to which other times equal these, (n,); `origin` is the reference time."""
    return _TIME_ROUNDING_ULPS * np.spacing(np.maximum(np.abs(times), abs(origin)))


def snap_times(times: Array, edges: Array, reach: float = 0.0) -> Array:
    """Move times that differ from an edge by rounding only, or by less than `reach`, onto that edge."""
    if edges.size < 2:
        if edges.size == 0:
            return times
        edges = np.repeat(edges, 2)
    nearest = np.clip(np.searchsorted(edges, times), 1, edges.size - 1)
    nearest = np.where(np.abs(edges[nearest - 1] - times) < np.abs(edges[nearest] - times), nearest - 1, nearest)
    is_close = np.abs(edges[nearest] - times) <= np.maximum(time_rounding(times, edges[0]), reach)
    return np.where(is_close, edges[nearest], times)


def merge(*groups: Array) -> Array:
    """Sort and unite times, treating times that differ by rounding only as one."""
    times = np.unique(np.concatenate(groups))
    # Half the distance of `snap_times`, so that it still finds every time that is dropped here.
    is_distinct = np.concatenate([[True], np.diff(times) > 0.5 * time_rounding(times[1:], times[0])])
    return times[is_distinct]


class SharedGrids:
    """Relative grids, one for all those that differ by the rounding of their times."""

    def __init__(self) -> None:
        self._grids_by_key: dict[tuple[float, ...], list[Array]] = {}

    def share(self, times: Array) -> tuple[float, ...]:
        """Return the output times[1:] (m,) relative to times[0] ... times[-1]; the last one is 1."""
        left, right = times[0], times[-1]
        grid: Array = (times[1:] - left) / (right - left)
        slack = time_rounding(times[1:], left) / (right - left) + time_rounding(grid)
        digits = int(np.clip(np.floor(-np.log10(slack.max())) - 2, 0, _MAX_GRID_DIGITS))
        candidates = self._grids_by_key.setdefault((digits, *np.round(grid, digits).tolist()), [])
        for candidate in candidates:
            if (np.abs(candidate - grid) <= slack).all():
                return tuple(candidate.tolist())
        candidates.append(grid)
        return tuple(grid.tolist())
