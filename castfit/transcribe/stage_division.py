"""Division of an experiment into stages, with the measurements on them and the effects of events on boundaries.

Stage k covers [edges[k], edges[k+1]]; a measurement on an inner edge belongs to the stage that ends there.  Every
stage holds the same number M of points; a stage with fewer is padded with points of weight zero.  Times are exact:
only those that differ by a few units in the last place are one, because one of them was computed.

A stage ends at every event; the changes of the event are part of its end map.  Boundaries are numbers, but a boundary
at an estimated time moves with it:

    edges(e) = base + weight e          e: the rows of events in the link

Data are measured at fixed times.  So the *cell* in which an estimated time T lies, between the nearest times
t_a <= T <= t_b at which anything is measured or known to happen, is divided at T, and its ends are boundaries too:

    ... | t_a       T           t_b | ...
        [ before    )[   after      ]            nothing is measured inside

Nothing else moves.  If a search moves T beyond t_b, the stage from T to t_b is integrated backwards: the functions stay
smooth, but the datum at t_b is compared with the state after an event that is still to come.  The arrangement is then
no longer valid (`is_valid`); single shooting rebuilds it at every point, other transcriptions after every solve.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import option_mistakes, read_reals, shorten_repr
from castfit._support.records import dataclass
from castfit._support.status import raise_if_mistakes
from castfit.integrate import IntegratorOptions
from castfit.integrate.lanes import merge, snap_times, time_rounding
from castfit.problem.event_schedule import Schedule, StageEndUpdate, SwitchedParameter, follows, merge_instants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._support.arrays import Array, Index, Mask
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem


_MIN_OCCUPIED_FRACTION = 0.5  # share of equal intervals with data, below which they are not used ...
_BOUNDARY_SNAP_FRACTION = 1e-9  # distance to data, relative to an interval, up to which a boundary is moved onto them
_EARLY_DATA_FRACTION = 1e-2  # ... if the data begin as early in the first of them
_MAX_INTERVALS = 10_000  # intervals that a number may mean


@dataclass(frozen=True)
class StagedMeasurements:
    """The measurements of one experiment, arranged by stage: boundaries `edges` (K + 1,), and M points per stage.

    tau (K, M) : where each point lies in its stage, in [0, 1], increasing; padding stands at 1, or, where all data are
        read where stages begin, at 0;  times (K, M) : of padding, too
    values, weight (K, M, n_outputs) : what is measured, and 1 / sigma; 0 where nothing is
    is_real (K, M) : True at measured or watched points, False at padding
    """

    edges: Array
    tau: Array
    values: Array
    weight: Array
    times: Array
    is_real: Mask

    @property
    def start(self) -> Array:
        """Start time of each stage, (K,)."""
        return self.edges[:-1]

    @property
    def duration(self) -> Array:
        """Length of each stage, (K,)."""
        return np.diff(self.edges)

    @property
    def is_first_replicate(self) -> Mask:
        """True at measured points that are neither padding nor a replicate of the point before, (K, M)."""
        measured: Mask = np.logical_or.reduce(self.weight > 0, axis=2)
        return measured & self.is_distinct

    @property
    def is_distinct(self) -> Mask:
        """True at points that are neither padding nor at the time of the point before, (K, M)."""
        is_distinct = self.is_real.copy()
        is_distinct[:, 1:] &= self.tau[:, 1:] != self.tau[:, :-1]
        return is_distinct


def arrange(
    condition: Condition, edges: Array, measured_after: Mask | None = None, *, starts: bool = False
) -> StagedMeasurements:
    """Assign every measured or watched time to a stage; with `measured_after`, to the last one that ends there.

    With `starts` every such time is a boundary, and measurements belong to the stage that begins there.
    """
    points = condition.watched_points
    mask = points.mask
    snapped = snap_times(points.times, edges)
    ends = np.searchsorted(edges, snapped, side="left")
    if measured_after is not None and measured_after.any():
        late = np.isin(snapped, edges[measured_after])
        ends[late] = np.searchsorted(edges, snapped[late], side="right") - 1
    stage = np.clip(ends if starts else ends - 1, 0, edges.size - 2)
    stages = edges.size - 1
    counts = np.bincount(stage, minlength=stages)
    position = np.arange(stage.size) - np.concatenate([[0], np.cumsum(counts)])[stage]
    shape = (stages, int(counts.max()))
    padding = edges[:-1] if starts else edges[1:]
    tau, times = np.full(shape, 0.0 if starts else 1.0), np.repeat(padding[:, None], shape[1], axis=1)
    length = np.diff(edges)[stage]
    tau[stage, position] = np.where(length > 0.0, (snapped - edges[stage]) / np.where(length > 0.0, length, 1.0), 1.0)
    times[stage, position] = snapped
    real = np.zeros(shape, dtype=np.bool_)
    real[stage, position] = True
    values = np.zeros((*shape, points.values.shape[1]))
    weight = np.zeros_like(values)
    values[stage, position] = np.where(mask, points.values, 0.0)
    weight[stage, position] = np.where(mask, 1.0 / points.sigma, 0.0)
    return StagedMeasurements(edges, tau, values, weight, times, real)


def interval_mistakes(option_name: str, intervals: Any, *, words: tuple[str, ...] = ("data",)) -> list[str]:
    """Check stage boundaries that are given as a number, a word, or times."""
    listing = ", ".join(f"'{word}'" for word in words)
    advice = f"give a positive integer, {listing}, or increasing times"
    if isinstance(intervals, str):
        return [] if intervals in words else [f"{option_name} is '{intervals}'; {advice}"]
    times = read_reals(intervals)
    if times is not None and times.ndim == 0 and np.isfinite(times) and times == np.floor(times):
        return (
            []
            if 1 <= times <= _MAX_INTERVALS
            else [f"{option_name} is {intervals}; {advice} (at most {_MAX_INTERVALS})"]
        )
    if times is None or times.ndim != 1 or times.size == 0 or not np.isfinite(times).all():
        return [f"{option_name} is {shorten_repr(intervals)}; {advice}"]
    return [] if (np.diff(times) > 0).all() else [f"the times in {option_name} do not increase; sort them"]


def integrator_mistakes(value: Any) -> list[str]:
    """Check the option `integrator` of a transcription."""
    return option_mistakes(("integrator", value, isinstance(value, IntegratorOptions), "give IntegratorOptions(...)"))


def uniform_or_given(condition: Condition, intervals: int | str | Array, *, option_name: str) -> Array:
    """Return stage boundaries: a division into a number, the measured times, or the given times within the horizon.

    The division into a number is into equal parts; where that would leave most of them without data although there are
    enough, as for times that span decades, it is into parts with equal numbers of measured times.
    """
    raise_if_mistakes(option_name, interval_mistakes(option_name, intervals))
    start, end = condition.start, condition.end
    if isinstance(intervals, str):
        return merge(np.array([start, end]), condition.points.times)
    if np.ndim(intervals) == 0:
        return _divide(start, np.unique(np.append(condition.points.times, end)), int(intervals))
    inner = np.asarray(intervals, dtype=float)
    return merge(np.array([start, end]), inner[(inner > start) & (inner < end)])


def separate_from_events(edges: Array, times: Array) -> Array:
    """Move inner boundaries (n,) away from events at times (m,), as far as the middle between two of them.

    A time that passes a boundary during a fit would make the states there jump, which no small step can follow.
    """
    event_times = np.unique(np.clip(times, edges[0], edges[-1]))
    ends = np.unique(np.concatenate([edges[[0, -1]], event_times]))
    right = np.clip(np.searchsorted(ends, edges[1:-1]), 1, ends.size - 1)
    low, high = ends[right - 1], ends[right]
    half_gap = 0.5 * (high - low)
    inner = np.clip(
        edges[1:-1], low + half_gap * np.isin(low, event_times), high - half_gap * np.isin(high, event_times)
    )
    return np.unique(np.concatenate([edges[[0, -1]], inner]))


def _divide(start: float, times: Array, n: int) -> Array:
    """Divide from the start to the last of the measured times into n parts, or fewer where fewer times are measured."""
    uniform = np.linspace(start, float(times[-1]), n + 1)
    later = times[times > start]
    occupied = np.unique(np.searchsorted(uniform, snap_times(later, uniform), side="left")).size
    if occupied >= _MIN_OCCUPIED_FRACTION * min(n, later.size) or later[0] - start > _EARLY_DATA_FRACTION * (
        uniform[1] - start
    ):
        # Times that were computed, by a cumulative sum for instance, may miss the boundary that they mean.
        uniform[1:-1] = snap_times(uniform[1:-1], times, _BOUNDARY_SNAP_FRACTION * (uniform[1] - start))
        return uniform
    boundaries = merge(np.array([start]), later)
    return boundaries[np.unique(np.linspace(0, boundaries.size - 1, n + 1).round().astype(np.intp))]


@dataclass(frozen=True, eq=False)
class StageDivision:
    """The K stages of one experiment.

    edges (K + 1,) : boundaries where the division was made, not decreasing; elsewhere  base + weight e, of base
        (K + 1,) and weight (K + 1, n_e)
    crossings, levels : state changes at the end of each stage, and the parameters that are switched during it
    is_measured_after (K + 1,) : whether values measured at a boundary were measured after the events there
    cells (n, 4) : per estimated time its row of e, the ends of its cell, and 1 if it may be at the end, 0 if at the
        beginning
    absent_times : estimated times, by rows of e, that are not a boundary: they are after the end, or, if True, before
        the start
    key : identifies the arrangement: estimated times in their order, by rows of e, with the beginnings of their cells
    """

    edges: Array
    base: Array
    weight: Array
    crossings: tuple[StageEndUpdate | None, ...]
    levels: tuple[tuple[SwitchedParameter, ...], ...]
    is_measured_after: Mask
    cells: Array
    absent_times: tuple[tuple[int, bool], ...] = ()
    key: tuple[tuple[int, float], ...] = ()

    @cached_property
    def moving_boundaries(self) -> Mask:
        """Return the mask of the boundaries that move, (K + 1,)."""
        return np.logical_or.reduce(self.weight != 0.0, axis=1) if self.weight.size else np.zeros(self.edges.size, bool)

    @cached_property
    def is_eventless(self) -> bool:
        """Whether there are no events."""
        return not (any(self.crossings) or any(self.levels) or self.moving_boundaries.any())

    def compute_boundaries(self, e: Array) -> Array:
        """Return the boundaries, (K + 1,)."""
        return self.base + self.weight @ e if self.moving_boundaries.any() else self.edges

    def preceding_update(self, stage: int) -> StageEndUpdate | None:
        """Return the state change just before a stage, across stages of length zero; None if there is none."""
        for k in range(stage - 1, -1, -1):
            if self.crossings[k] is not None or self.edges[k] < self.edges[k + 1]:
                return self.crossings[k]
        return None

    def stage_parameters(self, p: Array, e: Array) -> Array:
        """Return the parameters of each stage, (K, n_p), or their derivatives (K, n_p, n) from those of p and e."""
        out = np.repeat(p[None], len(self.levels), axis=0)
        for stage, parameter, height, sets in self._level_actions:
            if sets:
                out[stage, parameter] = e[height]
            else:
                np.add.at(out, (stage, parameter), e[height])
        return out

    @cached_property
    def _level_actions(self) -> list[tuple[Index, Index, Index, bool]]:
        """Return stages, parameters and rows of e of the levels that set a parameter, then of those that add to it."""
        all_levels = [(k, level) for k, active in enumerate(self.levels) for level in active]
        actions: list[tuple[Index, Index, Index, bool]] = []
        for sets in (True, False):
            selected = [
                (k, level.parameter, level.height_row) for k, level in all_levels if level.is_assignment == sets
            ]
            if selected:
                stage, parameter, height = np.array(selected, dtype=np.intp).T
                actions.append((stage, parameter, height, sets))
        return actions

    def level_weights(self, by_p: Array, n_e: int) -> tuple[Array, Array]:
        """Return the weights of the second derivatives of p (n_p,) and e (n_e,), from those of each stage (K, n_p)."""
        remaining, by_e = by_p.copy(), np.zeros(n_e)
        for stage, parameter, height, sets in self._level_actions:
            np.add.at(by_e, height, by_p[stage, parameter])
            if sets:
                remaining[stage, parameter] = 0.0
        return remaining.sum(axis=0), by_e

    def is_valid(self, e: Array) -> bool:
        """Whether estimated times are in their cells and in the order in which the division has them."""
        if not (self.cells.size or self.absent_times):
            return True
        edges, (row, left, right, late) = self.compute_boundaries(e), self.cells.T
        time = e[row.astype(np.intp)]
        includes_end = late > 0
        late_enough, early_enough = (
            (left < time) | (~includes_end & (left == time)),
            (time < right) | (includes_end & (time == right)),
        )
        if not (late_enough & early_enough).all():
            return False
        slack = time_rounding(edges, edges[0])
        outside = (
            e[row] <= edges[0] + slack[0] if early else e[row] >= edges[-1] - slack[-1]
            for row, early in self.absent_times
        )
        return bool((np.diff(edges) >= -slack[1:]).all()) and all(outside)


def divide(condition: Condition, edges: Array, e: Array, *, starts: bool = False) -> StageDivision:
    """Divide an experiment at increasing boundaries (n,), which contain its start and end, and where something happens.

    e (n_e,) are the rows of events where the division is made; times before the start are taken for the start.  With
    `starts` data are read where stages begin: then a stage of no length follows at the end, and one precedes every
    jump, so that each datum has a node of its own.
    """
    schedule, start, end = condition.schedule, condition.start, condition.end
    if not schedule.instants:
        edges = np.append(edges, edges[-1]) if starts else edges
        count = edges.size - 1
        return StageDivision(
            edges, edges, np.zeros((edges.size, 0)), (None,) * count, ((),) * count,
            np.zeros(edges.size, dtype=bool), np.zeros((0, 4)),
        )  # fmt: skip
    return _Divider(condition, edges, e, start, end, starts=starts).division()


def check_triggers(method_name: str, problem: CompiledProblem) -> None:
    """Refuse events that states trigger."""
    trigger_names = problem.triggered
    reason = f"states trigger events in '{trigger_names[0]}', which only shooting can follow" if trigger_names else ""
    raise_if_mistakes(method_name, [f"{reason}; use SingleShooting() or MultipleShooting()"] if trigger_names else [])


def stages_of(schedule: Schedule, stages: StageDivision, pieces: StageDivision) -> Index:
    """Return the stage in which each piece lies, where states trigger events within stages; (pieces,).

    Boundaries of stages are found among those of pieces in order; between them lie the times of events, and the ends of
    their cells.
    """
    rows = [row for trigger in schedule.triggers for row in schedule.rows_of(trigger)]
    event = np.logical_or.reduce(pieces.weight[:, rows] != 0.0, axis=1)
    count, position = pieces.edges.size - 1, -1
    begins = np.zeros(count + 1, dtype=np.intp)
    for k, edge in enumerate(stages.edges[:-1].tolist()):
        matches = np.flatnonzero(
            ~event & (np.arange(count + 1) > position) & _match_boundaries(pieces, stages, k, edge)
        )
        position = int(matches[0])
        begins[position] += 1
    return np.cumsum(begins)[:-1] - 1


def _match_boundaries(pieces: StageDivision, stages: StageDivision, k: int, edge: float) -> Mask:
    """Check which boundaries of pieces are the k-th boundary of stages: at the same time, or with the same motion."""
    if stages.moving_boundaries[k]:
        return (pieces.weight == stages.weight[k]).all(axis=1) & (pieces.base == stages.base[k])
    return (pieces.edges == edge) & ~pieces.moving_boundaries


def divide_all(
    problem: CompiledProblem, edges: Sequence[Array], theta: Array, *, starts: bool = False
) -> list[StageDivision]:
    """Divide all experiments at given boundaries (n,), at theta (n_theta,)."""
    return [
        divide(c, boundaries, c.link.natural(theta[c.theta]).e, starts=starts)
        for c, boundaries in zip(problem.conditions, edges, strict=True)
    ]


@dataclass(frozen=True)
class _StageBoundary:
    """A boundary: its time here, how it moves, the instants that happen there, and whether data come after them."""

    time: float
    base: float
    weight: Array
    instants: tuple[int, ...] = ()
    is_measured_after: bool = False


class _Divider:
    def __init__(self, condition: Condition, edges: Array, e: Array, start: float, end: float, *, starts: bool) -> None:
        self.condition, self.schedule, self.start, self.end = condition, condition.schedule, start, end
        self.starts = starts
        times = np.where(np.isfinite(e[self.schedule.rows]), e[self.schedule.rows], np.inf)
        self.early = times < start
        self.times = np.maximum(times, start)
        known_instants = self.schedule.known_instants
        fixed = snap_times(self.times[known_instants], merge(condition.times, edges))
        self.times[known_instants] = fixed
        inside = fixed[(fixed >= start) & (fixed <= end)]
        self.fixed = merge(edges, inside, np.array([start, end]))
        self.boundaries = merge(np.array([start, end]), condition.times, condition.breakpoints, inside)
        if self.schedule.triggers:  # nodes stay where they are
            self.boundaries = merge(self.boundaries, edges)
        self.followed = self._find_followed_times()
        self.n_e = e.size

    def division(self) -> StageDivision:
        """Arrange the boundaries in time, then determine the events and parameters between them."""
        schedule, instants = self.schedule, self.schedule.instants
        cells: dict[tuple[float, float], list[int]] = {}
        cell_rows: list[tuple[int, float, float, float]] = []
        absent: list[tuple[int, bool]] = []
        for i in schedule.order(self._event_rows()):
            if not instants[i].is_moving:
                continue
            cell = self._cell(i)
            if cell is None:
                absent.append((instants[i].time, bool(self.early[i])))
            else:
                cells.setdefault(cell, []).append(i)
                right = float(self.times[i]) if i in self.followed else cell[1]
                cell_rows.append((instants[i].time, cell[0], right, float(instants[i].is_measured_after)))
        fixed = merge(self.fixed, np.array([t for cell in cells for t in cell])) if cells else self.fixed
        boundaries: list[_StageBoundary] = []
        for time in fixed.tolist():
            inner = next((cell for cell in cells if cell[0] < time < cell[1]), None)
            if inner is None:
                boundaries += self._build_boundaries(time)
            cell = next((c for c in cells if c[0] == time), None)
            if cell is not None:
                between = fixed[(fixed > cell[0]) & (fixed < cell[1])]
                boundaries += self._build_cell_boundaries(cell, cells[cell], between)
                if cell[0] == cell[1]:
                    boundaries.append(self._fixed_boundary(time))
        return self._assemble(boundaries, np.array(cell_rows).reshape(-1, 4), tuple(absent))

    def _event_rows(self) -> Array:
        e = np.zeros(self.n_e)
        e[self.schedule.rows] = self.times
        return e

    def _find_followed_times(self) -> dict[int, float]:
        """Return the known times of changes that conditions follow at once, by instant.

        Values measured after the change at such a time are also measured after the changes that follow it.
        """
        instants = self.schedule.instants
        known_instants: list[int] = self.schedule.known_instants.tolist()
        jumps = [i for i in known_instants if instants[i].change is not None and instants[i].is_measured_after]
        times: list[float] = sorted({float(self.times[i]) for i in jumps})
        out: dict[int, float] = {}
        for i, instant in enumerate(instants):
            k = bisect_right(times, float(self.times[i])) - 1
            if (
                instant.trigger is not None
                and instant.is_measured_after
                and k >= 0
                and follows(times[k], float(self.times[i]))
            ):
                out[i] = times[k]
        return out

    def _cell(self, i: int) -> tuple[float, float] | None:
        """Find the cell of an estimated time; None if it has no effect, as for a switch before the start."""
        if i in self.followed:
            return self.followed[i], self.followed[i]
        time, instant, b = float(self.times[i]), self.schedule.instants[i], self.boundaries
        if instant.change is None and self.early[i]:
            return None
        if time > self.end or (time == self.end and not instant.is_measured_after):
            return None
        if instant.is_measured_after:
            c = int(np.searchsorted(b, time, side="left"))
            return (float(b[c - 1]), float(b[c])) if c else (self.start, self.start)
        c = int(np.searchsorted(b, time, side="right"))
        return float(b[c - 1]), float(b[c])

    def _fixed_boundary(
        self, time: float, instants: tuple[int, ...] = (), *, measured_after: bool = False
    ) -> _StageBoundary:
        return _StageBoundary(time, time, np.zeros(self.n_e), instants, measured_after)

    def _build_boundaries(self, time: float) -> list[_StageBoundary]:
        """Return the marks at a known time: several where data lie between them."""
        indices = tuple(int(i) for i in self.schedule.known_instants if self.times[i] == time)
        jumps = tuple(i for i in indices if self.schedule.instants[i].change is not None)
        measured_after = any(self.schedule.instants[i].is_measured_after for i in jumps)
        if self.starts and not measured_after and (jumps or time == self.end) and time > self.start:
            return [self._fixed_boundary(time), self._fixed_boundary(time, indices)]
        if not jumps or (time == self.end and not measured_after):
            return [self._fixed_boundary(time, indices)]
        first_marks = [self._fixed_boundary(time, measured_after=measured_after)] if time == self.start else []
        last_marks = [self._fixed_boundary(time, measured_after=True)] if measured_after else []
        return [*first_marks, self._fixed_boundary(time, indices, measured_after=measured_after), *last_marks]

    def _build_cell_boundaries(
        self, cell: tuple[float, float], moving_events: list[int], inner_edges: Array
    ) -> list[_StageBoundary]:
        """Return the marks in a cell: estimated times, and between them boundaries that move along."""
        left = self._fixed_boundary(cell[0])
        boundaries: list[_StageBoundary] = []
        for indices in [*self._group_simultaneous(moving_events), ()]:
            if not indices:
                right = self._fixed_boundary(cell[1])
            else:
                weight = np.zeros(self.n_e)
                weight[self.schedule.instants[indices[0]].time] = 1.0
                measured_after = any(self.schedule.instants[i].is_measured_after for i in indices)
                right = _StageBoundary(
                    self.followed.get(indices[0], float(self.times[indices[0]])), 0.0, weight, indices, measured_after
                )
            slack = float(time_rounding(np.array([right.time]), self.start)[0])
            for time in inner_edges[(inner_edges > left.time + slack) & (inner_edges < right.time - slack)].tolist():
                fraction = (time - left.time) / (right.time - left.time)
                base = (1 - fraction) * left.base + fraction * right.base
                boundaries.append(_StageBoundary(time, base, (1 - fraction) * left.weight + fraction * right.weight))
            if indices:
                boundaries.append(right)
            left = right
        return boundaries

    def _group_simultaneous(self, moving_events: list[int]) -> list[tuple[int, ...]]:
        """Group conditions that became true at exactly the same time, if their changes can be united."""
        out: list[tuple[int, ...]] = []
        for i in moving_events:
            instants = [self.schedule.instants[k] for k in (*out[-1], i)] if out else []
            if instants and self.times[out[-1][0]] == self.times[i] and len(merge_instants(instants)) == 1:
                out[-1] = (*out[-1], i)
            else:
                out.append((i,))
        return out

    def _assemble(
        self, boundaries: list[_StageBoundary], cells: Array, absent: tuple[tuple[int, bool], ...]
    ) -> StageDivision:
        instants, count = self.schedule.instants, len(boundaries) - 1
        begins = np.full(len(instants), count, dtype=np.intp)  # the first stage after each instant
        for j, boundary in enumerate(boundaries):
            begins[list(boundary.instants)] = j
        begins[[i for i, instant in enumerate(instants) if instant.change is None and self.early[i]]] = 0
        crossings: list[StageEndUpdate | None] = []
        for boundary in boundaries[1:]:
            jumps = tuple(instants[i] for i in boundary.instants if instants[i].change is not None)
            crossings.append(StageEndUpdate(merge_instants(jumps)) if jumps else None)
        levels = tuple(
            tuple(
                level
                for level in self.schedule.levels
                if begins[level.on_instant] <= k and (level.off_instant < 0 or k < begins[level.off_instant])
            )
            for k in range(count)
        )
        return StageDivision(
            np.array([boundary.time for boundary in boundaries]),
            np.array([boundary.base for boundary in boundaries]),
            np.array([boundary.weight for boundary in boundaries]).reshape(len(boundaries), self.n_e),
            tuple(crossings),
            levels,
            np.array([boundary.is_measured_after for boundary in boundaries]),
            cells,
            absent,
            tuple((int(row), float(left)) for row, left, *_ in cells),
        )
