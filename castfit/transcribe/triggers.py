"""Events triggered by states: at a zero crossing of an expression, or when a condition becomes true.

Their times are found by integrating from event to event, watching signs: of the expression, or of the differences in
the condition (castfit.model.comparisons).  Where one may change, inside of steps too, is proved from bounds
(castfit.transcribe.crossings); the time is located by bracketing, and corrected by integrating up to it.
They stand then among the times of the schedule like any other.
How they move follows from where they are reached, with f the rates before the event,

    g(T, x(T), u(T), c) = 0    =>    dT = -(g_x dx + g_c dc) / (g_t + g_u u' + g_x f)

in which dx is at fixed time; jumps carry that on (the saltation of the sensitivities).

What one event makes true follows at once.  So that the order is known wherever times are read, each round of events
takes the next number that a computer can tell from the time of the round before.  Events that are true at one time
happen in one round, unless any of them has a priority or may be called off: then each has a round of its own, the one
whose turn it is, and those that wait are called off by what makes their condition false.

Notation: g differences, s their signs; T_k the time of round k.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit._support.time_limit import check_deadline
from castfit.integrate.integrator import integrator_of
from castfit.integrate.lanes import Lanes
from castfit.problem.event_schedule import EventUpdate, NumericSchedule, StageEndUpdate, Trigger, TriggeredRound
from castfit.transcribe.experiment_trajectories import input_cubics, straight_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from castfit._support.arrays import Array, Index, Mask
    from castfit.integrate.dense_output import DenseOutput
    from castfit.integrate.options import IntegratorOptions
    from castfit.model.model import Model
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.parameter_map import NaturalValues
    from castfit.transcribe.crossings import TriggerFunctions

_MAX_STEPS = 200  # usual number of steps of an experiment ...
_STEPS_PER_BATCH = 32  # ... number of them that are integrated together, ...
_LOOKAHEAD_FACTOR = 4.0  # ... or this multiple of the time since the last event, if that is shorter, ...
_MIN_BATCH_FRACTION = 1 / 64  # ... but at least this part of a step
_MAX_SUBDIVISIONS = 2**10  # divisions of a batch whose integration fails; its first part may succeed
_MAX_TIME_CORRECTIONS = 6  # Newton corrections of a time that was located on polynomials ...
_MAX_CORRECTION_FRACTION = 1e-2  # ... each at most this part of a step
_MAX_EVENTS_PER_TRIGGER = 100_000  # number of events of one trigger, if the model sets no limit
_MAX_BISECTIONS = 40  # bisections that locate where an expression turns back
_EVENT_TIME_RTOL = 1e-13  # accuracy of a located time, relative to a step ...
_UNCORRECTED_TIME_RTOL = 1e-6  # ... and of a time that is corrected afterwards
_INTEGRATION_ERROR_FACTOR = 10.0  # multiple of the integration tolerance, below which a difference is no crossing
_SIMULTANEOUS_RTOL = 1e-11  # time relative to a step, within which crossings count as simultaneous


_NOTHING: Array = np.empty(0)
_DIFFERENCES: PerObjectCache[EventUpdate, TriggerFunctions] = PerObjectCache()


def locate_triggered_events(
    model: Model,
    condition: Condition,
    natural: NaturalValues,
    unit: Array,
    options: IntegratorOptions,
    end: float,
    nodes: tuple[Array, Array] | None = None,
) -> NaturalValues:
    """Return a point with the times up to `end` at which states trigger events; what comes later is `NEVER`.

    unit (n_x + n_z,) as in `Lanes`.  With nodes, times (K,) and states (K, n_x), integration goes on from each: what is
    true there has happened.  Where an event happens more often than it may, its times are NaN.
    """
    if not condition.schedule.triggers:
        return natural
    watch = _TriggerWatch(model, condition, natural, unit, options, end, nodes)
    try:
        watch.run()
    except _EventLimitReached as stop:
        watch.e[condition.schedule.rows_of(stop.args[0])] = np.nan
    return replace(natural, e=watch.e)


def timetable_of(
    model: Model, condition: Condition, natural: NaturalValues, unit: Array, options: IntegratorOptions, end: float
) -> tuple[NumericSchedule, str]:
    """Return the timetable up to `end` with all triggered events, and why it is not allowed; empty if it is.

    Arguments as in `locate_triggered_events`.  The schedule has one row for each trigger.
    """
    watch = _TriggerWatch(model, condition, natural, unit, options, end, rounds=[])
    reason = ""
    try:
        watch.run()
    except _EventLimitReached as stop:
        trigger: Trigger = stop.args[0]
        reason = (
            trigger.forbidden
            or f"the event at {trigger.description} happens more often than {_MAX_EVENTS_PER_TRIGGER} times"
        )
    table = NumericSchedule.from_schedule(condition.schedule, condition.start, natural.p, natural.e)
    return table.with_rounds(watch.rounds or []), reason


class _EventLimitReached(Exception):
    """An event happened more often than it may."""


@dataclass(frozen=True)
class _TriggerCrossing:
    """A difference passes zero: when, that of which trigger, and its sign afterwards."""

    time: float
    trigger: int
    row: int
    sign: float


@dataclass(frozen=True)
class _Step:
    """Integration from (t, x, z) with parameters p, to any later time."""

    watch: _TriggerWatch
    t: float
    x: Array
    z: Array
    p: Array

    def to(self, time: float) -> tuple[Array, Array] | None:
        """Return the states (x, z) at a later time; None if integration fails."""
        if time == self.t:
            return self.x, self.z
        trajectories = integrator_of(self.watch.model, [1.0], self.watch.options).values(self._lanes(time))
        return None if trajectories.failures else (trajectories.x[0, -1], trajectories.z[0, -1])

    def dense(self, time: float) -> DenseOutput | None:
        """Return the states up to a later time, as polynomials; None if integration fails."""
        from castfit.integrate.dense_output import dense_output

        watch = self.watch
        min_intervals = max(1, int(np.ceil((time - self.t) / watch.usual)))
        min_intervals = 1 << (min_intervals - 1).bit_length()  # few integrators are built
        return dense_output(watch.model, watch.options, self._lanes(time), min_intervals, watch.cubics)

    def _lanes(self, time: float) -> Lanes:
        return Lanes(
            start=np.array([self.t]),
            duration=np.array([time - self.t]),
            x0=self.x[None],
            p=self.p[None],
            u=self.watch.cubics(np.array([self.t, time]))[None],
            z0=self.z[None],
            unit=self.watch.unit[None],
        )


@dataclass
class _TriggerWatch:
    """Integrates one experiment, watching triggers; e (n_e,) collects their times, or `rounds` what happens."""

    model: Model
    condition: Condition
    natural_values: NaturalValues
    unit: Array
    options: IntegratorOptions
    end: float
    nodes: tuple[Array, Array] | None = None
    rounds: list[TriggeredRound] | None = None
    e: Array = field(init=False)
    signs: Array = field(init=False)
    is_condition_true: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.e = self.natural_values.e.copy()
        self.triggers: tuple[Trigger, ...] = self.condition.schedule.triggers
        self._remaining_rows = [
            {side: deque(rows) for side, rows in self.condition.schedule.rows_by_side(trigger).items()}
            for trigger in self.triggers
        ]
        self._counts = [0] * len(self.triggers)
        self._crossings: dict[tuple[int, ...], StageEndUpdate] = {}
        self._truths: dict[tuple[int, bytes], bool] = {}
        self._draws: dict[int, np.random.Generator] = {}
        self._slopes: tuple[Array, Array, Array] | None = None
        self._constant_rates_cache: tuple[object, Array, tuple[Array, Array] | None] | None = None
        self._last_event_time = -np.inf
        self._last_node_index = -1

    def run(self) -> None:
        """Go through the experiment, and set the times of triggered events in e."""
        table = NumericSchedule.from_schedule(
            self.condition.schedule, self.condition.start, self.natural_values.p, self.e
        )
        t, x, z = self.condition.start, self.natural_values.a, self.condition.z_guess
        n_past_events, max_lookahead = table.count_past_events(t, 0.0, at_start=True), _STEPS_PER_BATCH * self.usual
        lookahead = max_lookahead
        stop_times = np.concatenate([table.times[table.times <= self.end], self.condition.breakpoints, [self.end]])
        if self.nodes is not None:
            stop_times, x = np.append(stop_times, self.nodes[0]), self.nodes[1][0]
        stop_times = np.unique(stop_times)
        self._update_signs(t, x)
        due = [i for i, holds in enumerate(self.is_condition_true) if holds and self.triggers[i].at_start]
        later: list[int] = []
        while True:
            check_deadline()  # where nothing is to be integrated, nothing else does
            if self.nodes is not None and t > self.condition.start and t in self.nodes[0]:
                early_events = [
                    i for i in due if self.triggers[i] in self._late_triggers
                ]  # at the end of the stage that ends here
                x, due = self._apply_events(early_events, t, x), [i for i in due if i not in early_events]
            while n_past_events < table.times.size and table.times[n_past_events] <= t:
                crossing = table.crossings[n_past_events]
                if crossing is not None:
                    values_before, self._last_event_time = self._evaluate_all(t, x), t
                    x = crossing.values(x, table.e, self._inputs(t)[0])
                    due = [*self._find_newly_true(values_before, self._evaluate_all(t, x)), *due]
                n_past_events += 1
            x = self._restart_at_node([*due, *later], t, x)
            x = self._apply_events(due, t, x)  # after the changes at known times
            x = self._apply_events(
                [i for i in later if self.triggers[i].truth is None or self.is_condition_true[i]], t, x, is_later=True
            )
            if t >= self.end:
                return
            b = float(min(t + lookahead, stop_times[np.searchsorted(stop_times, t, side="right")]))
            step_result = self._find_first_crossings(_Step(self, t, x, z, table.p[n_past_events]), b)
            if step_result is None:  # the integration of the stages reports the cause
                return
            zeros, next_time, x, z = step_result
            due, later = self._sort_crossed_events(zeros)
            # The part of the step after an event is discarded.
            lookahead = min(
                max_lookahead,
                max(
                    _LOOKAHEAD_FACTOR * (next_time - t if due or later else lookahead), _MIN_BATCH_FRACTION * self.usual
                ),
            )
            t = next_time

    def _update_signs(self, t: float, x: Array, due: Sequence[int] = ()) -> None:
        """Update the truth of all conditions except those that are due."""
        signs = np.sign(self._evaluate_all(t, x))
        is_true = [self._is_true(i, signs[rows]) for i, rows in enumerate(self._difference_slices)]
        for i in due:
            signs[self._difference_slices[i]], is_true[i] = (
                self.signs[self._difference_slices[i]],
                self.is_condition_true[i],
            )
        self.signs, self.is_condition_true = signs, is_true

    def _restart_at_node(self, due: Sequence[int], t: float, x: Array) -> Array:
        """Return the states from which integration goes on: of the last node here, if there is one."""
        if self.nodes is None:
            return x
        node_indices = np.flatnonzero(self.nodes[0] == t)
        if not node_indices.size or t >= self.end or node_indices[-1] == self._last_node_index:
            return x
        self._last_node_index = int(
            node_indices[-1]
        )  # once: a node at which a condition changes sign would be left again and again
        x = self.nodes[1][self._last_node_index]
        self._update_signs(t, x, due)
        return x

    @cached_property
    def _ordered_events(self) -> frozenset[int]:
        """The conditions that are ordered by priority."""
        return frozenset(i for i, trigger in enumerate(self.triggers) if trigger.is_ordered)

    @cached_property
    def _late_triggers(self) -> set[Trigger]:
        """The triggers of events after which a value of their very time is measured."""
        return {i.trigger for i in self.condition.schedule.instants if i.trigger is not None and i.is_measured_after}

    # Events

    def _apply_events(self, events: Sequence[int], t: float, x: Array, *, is_later: bool = False) -> Array:
        """Apply events, then the events whose conditions these make true, and so on; return the states.

        With `is_later`, the conditions are true right after t only.
        """
        waiting, values_before = list(events), self._evaluate_all(t, x) if events else np.empty(0)
        while waiting:
            self._last_event_time = (
                t if self._last_event_time < t else float(np.nextafter(self._last_event_time, np.inf))
            )
            next_events = self._select_next_events(waiting, t, x)
            for i in next_events:  # once: it may wait twice
                waiting.remove(i)
            x = self._apply_simultaneous_events(next_events, t, x, is_later=is_later)
            values_after = self._evaluate_all(t, x)
            newly_true = self._find_newly_true(values_before, values_after)
            waiting = [i for i in waiting if not self._is_cancelled(i, values_before, values_after)] + newly_true
            values_before = values_after
        return x

    def _apply_simultaneous_events(self, events: Sequence[int], t: float, x: Array, *, is_later: bool) -> Array:
        """Apply simultaneous events, and return the states."""
        u = self._inputs(t)[0]
        queues = [self._remaining_rows[i] for i in events]
        remaining_rows = [queue[not is_later] if len(queue) > 1 else next(iter(queue.values())) for queue in queues]
        if self.rounds is None:
            rows: list[int] = []
            for i, unused_rows in zip(events, remaining_rows, strict=True):
                if not unused_rows or self.triggers[i].forbidden:
                    raise _EventLimitReached(self.triggers[i])
                rows.append(unused_rows.popleft())
            self.e[rows] = self._last_event_time
            return self.condition.schedule.crossing_at(rows).values(x, self.e, u)
        key = is_later, *events
        if key not in self._crossings:
            rows = [unused_rows[0] for unused_rows in remaining_rows]
            self._crossings[key] = self.condition.schedule.crossing_at(rows)
        for i in events:
            self._counts[i] += 1
            if self.triggers[i].forbidden or self._counts[i] > _MAX_EVENTS_PER_TRIGGER:
                raise _EventLimitReached(self.triggers[i])
        self.rounds.append(TriggeredRound(self._last_event_time, self._crossings[key]))
        return self._crossings[key].apply_at_time(self._last_event_time, x, self.e, u)

    def _select_next_events(self, waiting: Sequence[int], t: float, x: Array) -> list[int]:
        """Return the next events among those that wait: all of them, or the one with the highest priority."""
        if self._ordered_events.isdisjoint(waiting):
            return list(waiting)
        u = self._inputs(t)[0]
        ranks = [self.triggers[i].rank(t, x, u, self.e) for i in waiting]
        highest = max(ranks)
        highest_ranked = [i for i, rank in zip(waiting, ranks, strict=True) if rank == highest]
        seed = self.triggers[highest_ranked[0]].rng
        if len(highest_ranked) == 1 or seed is None:
            return highest_ranked[:1]
        if seed not in self._draws:
            self._draws[seed] = np.random.default_rng(seed)
        return [highest_ranked[int(self._draws[seed].integers(len(highest_ranked)))]]

    def _is_cancelled(self, i: int, values_before: Array, values_after: Array) -> bool:
        """Check whether a jump changed a condition to false and so cancels its waiting event."""
        rows = self._difference_slices[i]
        return not (
            self.triggers[i].persistent
            or self.is_condition_true[i]
            or np.array_equal(values_before[rows], values_after[rows])
        )

    def _is_true(self, i: int, signs: Array) -> bool:
        """Check whether a condition is true for these signs of its differences; results are cached."""
        key = i, signs.tobytes()
        if key not in self._truths:
            self._truths[key] = self.triggers[i].is_true(signs)
        return self._truths[key]

    def _find_newly_true(self, values_before: Array, values_after: Array) -> list[int]:
        """Return the conditions that a jump made true; differences that it left alone keep their signs."""
        newly_true: list[int] = []
        changed_rows: Index = np.flatnonzero(values_after != values_before)
        if not changed_rows.size:
            return newly_true
        signs: Array = np.sign(values_after[changed_rows])
        turned_rows: Index = changed_rows[signs != self.signs[changed_rows]]
        self.signs[changed_rows] = signs
        owners: list[int] = self._owner[turned_rows].tolist()
        for i in dict.fromkeys(owners):
            was_true, self.is_condition_true[i] = (
                self.is_condition_true[i],
                self._is_true(i, self.signs[self._difference_slices[i]]),
            )
            if self.is_condition_true[i] and not was_true:
                newly_true.append(i)
        return newly_true

    def _sort_crossed_events(self, zeros: Sequence[_TriggerCrossing]) -> tuple[list[int], list[int]]:
        """Return the events at zero crossings: those true at the crossing, and those true right after it."""
        due, later = list[int](), list[int]()
        for i in dict.fromkeys(zero.trigger for zero in zeros):
            trigger, old_signs = self.triggers[i], self.signs[self._difference_slices[i]].copy()
            signs_at_zero, new_signs = old_signs.copy(), old_signs.copy()
            for zero in zeros:
                if zero.trigger == i:
                    signs_at_zero[zero.row], new_signs[zero.row] = 0.0, zero.sign
                    if len(self._remaining_rows[i]) > 1 and not self._differences.is_smooth[self._begins[i] + zero.row]:
                        signs_at_zero[zero.row] = zero.sign  # it jumps, and has its new value at this time
            self.signs[self._difference_slices[i]] = new_signs
            if trigger.truth is None:
                if old_signs[0] != 0.0 and trigger.direction * old_signs[0] <= 0:
                    due.append(i)
                continue
            was_true, self.is_condition_true[i] = self.is_condition_true[i], self._is_true(i, new_signs)
            at_zero = self._is_true(i, signs_at_zero)
            if at_zero and not was_true:
                due.append(i)
            elif self.is_condition_true[i] and not at_zero:
                later.append(i)
        return due, later

    # Zero crossings of differences

    def _find_first_crossings(self, step: _Step, b: float) -> tuple[list[_TriggerCrossing], float, Array, Array] | None:
        """Return the first zero crossings in (t, b], their time or b, and the states there; None if integration fails.

        If integration fails before b, the search ends there.
        """
        evaluation, noise = self._evaluate_with_errors(step.t, step.x, self._inputs(step.t)[0])
        even_rates = self._constant_rates(step.p, evaluation[1])
        if even_rates is not None:
            return self._find_linear_crossings(step, b, even_rates, evaluation[0], noise)
        shortest = (b - step.t) / _MAX_SUBDIVISIONS
        while (dense := step.dense(b)) is None:
            if b - step.t <= shortest:
                return None
            b = step.t + 0.5 * (b - step.t)
        dense.times[-1] = b
        candidates = self._differences.find_suspect_intervals(
            dense, self.cubics(dense.times), self.e[self._rows], evaluation, self.signs, noise
        )
        for begin, end in candidates.intervals.tolist():
            zeros = self._find_zeros(dense, begin, end)
            if zeros:
                return self._locate_simultaneous_crossings(step, dense, zeros)
        if not step.t < candidates.end < b:
            return [], b, dense.x[-1], dense.z[-1]
        return [], candidates.end, dense.interpolate(candidates.end)[0], dense.z[dense.find_step(candidates.end)]

    def _constant_rates(self, p: Array, slopes: Array) -> tuple[Array, Array] | None:
        """Return the rates (n_x,) and (m,) where states, and differences that move, change evenly; None elsewhere."""
        cached = self._constant_rates_cache
        if cached is None or cached[0] is not self._slopes or not np.array_equal(p, cached[1]):
            f = straight_rates(self.model, p)
            rates = None if f is None else self._differences.constant_rates(f, slopes)
            self._constant_rates_cache = cached = self._slopes, p, None if f is None or rates is None else (f, rates)
        return cached[2]

    def _find_linear_crossings(
        self, step: _Step, b: float, even_rates: tuple[Array, Array], g: Array, noise: Array
    ) -> tuple[list[_TriggerCrossing], float, Array, Array]:
        """Return the first zero crossings like `_find_first_crossings`, for constant rates of all differences."""
        (f, rates), duration, s, time_tolerance = even_rates, b - step.t, self.signs, _SIMULTANEOUS_RTOL * self.usual
        end = g + rates * duration
        leaves_sign = np.where(s == 0.0, end != 0.0, s * end <= np.maximum(-s * rates * time_tolerance, 0.0))
        leaves_sign &= np.maximum(np.abs(g), np.abs(end)) > noise
        rows: Index = np.flatnonzero(leaves_sign)
        if not rows.size:
            return [], b, step.x + f * duration, step.z
        with np.errstate(divide="ignore", invalid="ignore"):
            delays = np.where(s[rows] * g[rows] > 0.0, -g[rows] / rates[rows], 0.0)
        delays = np.minimum(np.where(np.isnan(delays), 0.0, delays), duration)
        first_delay = float(delays.min())
        zeros: list[_TriggerCrossing] = []
        owners: list[int] = self._owner[rows].tolist()
        places: list[int] = rows.tolist()
        for k, i, delay in zip(places, owners, delays.tolist(), strict=True):
            if delay <= first_delay + time_tolerance:
                sign = float(-s[k] if s[k] else np.sign(end[k])) if end[k] != 0.0 else 0.0
                zeros.append(_TriggerCrossing(step.t + first_delay, i, k - self._begins[i], sign))
        return zeros, step.t + first_delay, step.x + f * first_delay, step.z

    def _locate_simultaneous_crossings(
        self, step: _Step, dense: DenseOutput, zeros: Sequence[_TriggerCrossing]
    ) -> tuple[list[_TriggerCrossing], float, Array, Array] | None:
        """Return the first of some zeros, with others at its time, that time and the states there.

        It is located on polynomials, and then moved to where it is by integration.
        """
        first_zero = min(zeros, key=lambda zero: zero.time)
        time, k = first_zero.time, dense.find_step(first_zero.time)
        row = self._difference_slices[first_zero.trigger].start + first_zero.row
        node = step if k == 0 else replace(step, t=float(dense.times[k]), x=dense.x[k], z=dense.z[k])
        width = float(dense.times[k + 1] - dense.times[k])
        rests, states = dense.is_constant(k), (node.x, node.z)
        for _ in range(_MAX_TIME_CORRECTIONS):
            if not rests:
                integrated = node.to(time)
                if integrated is None:
                    return None
                states = integrated
            g, rates, _ = self._evaluate_rates(dense, time, states[0])
            correction = (
                -float(g[row]) / float(rates[row]) if rates[row] != 0.0 and self._differences.is_smooth[row] else 0.0
            )
            if abs(correction) > _MAX_CORRECTION_FRACTION * width:
                break
            time = max(time + correction, node.t)
            if abs(correction) <= _EVENT_TIME_RTOL * min(
                width, self.usual
            ):  # the states are those of so much earlier or later
                break
        g, rates, _ = self._evaluate_rates(dense, time, states[0])
        is_near_zero: Mask = np.abs(g) <= np.abs(rates) * _SIMULTANEOUS_RTOL * self.usual
        at_once = [
            zero
            for zero in zeros
            if zero is first_zero
            or zero.time <= first_zero.time + _SIMULTANEOUS_RTOL * self.usual
            or (
                zero.time <= first_zero.time + _MAX_CORRECTION_FRACTION * width
                and is_near_zero[self._difference_slices[zero.trigger].start + zero.row]
            )
        ]
        return at_once, time, *states

    def _find_zeros(self, dense: DenseOutput, a: float, b: float) -> list[_TriggerCrossing]:
        """Return the first zeros of all differences in (a, b]."""
        g0, rate0, by_x = self._evaluate_rates(dense, a)
        g1, rate1, _ = self._evaluate_rates(dense, b)
        signs, time_tolerance = self.signs, _SIMULTANEOUS_RTOL * self.usual
        is_resting = np.maximum(np.abs(g0), np.abs(g1)) <= np.abs(by_x) @ self._noise  # at zero but for errors
        turns_back = (signs * rate0 < 0) & (signs * rate1 > 0)
        keeps_sign = (signs * g1 > np.maximum(-signs * rate1 * time_tolerance, 0.0)) & ~turns_back
        zeros: list[_TriggerCrossing] = []
        for k in np.flatnonzero(~(is_resting | keeps_sign)).tolist():
            i = int(self._owner[k])
            row, sign = k - self._difference_slices[i].start, float(signs[k])
            ends = (float(g0[k]), float(rate0[k]), float(g1[k]), float(rate1[k]))
            if 0.0 < sign * ends[2] <= -sign * ends[3] * time_tolerance:
                zeros.append(_TriggerCrossing(b, i, row, -sign))  # with what passes zero right here
                continue
            tolerance = _UNCORRECTED_TIME_RTOL if self._differences.is_smooth[k] else _EVENT_TIME_RTOL
            zero = _find_crossing_time(self._build_difference_function(dense, a, i, row), sign, b - a, *ends, tolerance)
            if zero is not None:
                zeros.append(_TriggerCrossing(a + zero[0], i, row, zero[1]))
        return zeros

    def _build_difference_function(
        self, dense: DenseOutput, a: float, i: int, row: int
    ) -> Callable[[float], tuple[float, Callable[[], float]]]:
        """Return a difference as a function of the time since a, with its rate."""

        def evaluate(s: float) -> tuple[float, Callable[[], float]]:
            g = self._values(i, a + s, dense.interpolate(a + s)[0])
            return float(g[row]), lambda: float(self._evaluate_rates(dense, a + s)[1][self._difference_slices[i]][row])

        return evaluate

    def _values(self, i: int, t: float, x: Array) -> Array:
        return self.triggers[i].values(t, x, self._inputs(t)[0], self.e)

    def _evaluate_all(self, t: float, x: Array) -> Array:
        """Return the differences of all triggers."""
        return self._joint_differences.values(t, x, self._inputs(t)[0], self.e[self._rows])

    def _evaluate_with_errors(self, t: float, x: Array, u: Array) -> tuple[tuple[Array, Array], Array]:
        """Return the differences of all triggers, their derivatives, and how large errors of the states make them.

        Constant derivatives are reused; the others are in buffers that the next call overwrites.
        """
        c, cached = self.e[self._rows], self._slopes
        if cached is None or not np.array_equal(c, cached[0]):
            evaluation = self._joint_differences.evaluate(t, x, u, c)
            self._slopes = c, evaluation[1], np.abs(evaluation[1][:, 1 : 1 + x.size]) @ self._noise
            return evaluation, self._slopes[2]
        _, slopes, noise = cached
        rows, nonlinear = self._differences.nonlinear_rows
        if nonlinear is not None:
            slopes[rows] = nonlinear.evaluate(t, x, u, c)[1]
            noise[rows] = np.abs(slopes[rows, 1 : 1 + x.size]) @ self._noise
        return (self._joint_differences.values(t, x, u, c), slopes), noise

    @cached_property
    def _joint_differences(self) -> EventUpdate:
        """The differences of all triggers, as one function."""
        return self.condition.schedule.every_trigger

    @cached_property
    def _rows(self) -> Index:
        return np.concatenate([trigger.parameters for trigger in self.triggers])

    @cached_property
    def _difference_slices(self) -> list[slice]:
        """Return the slice of the differences of each trigger."""
        ends = np.cumsum([trigger.function.graph.size1_out(0) for trigger in self.triggers]).tolist()
        return [slice(a, b) for a, b in itertools.pairwise([0, *ends])]

    @cached_property
    def _begins(self) -> list[int]:
        """The first difference of each trigger."""
        sizes: list[int] = [int(trigger.function.graph.size1_out(0)) for trigger in self.triggers]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    @cached_property
    def _owner(self) -> Index:
        """Return the index of the trigger to which each difference belongs."""
        return np.repeat(
            np.arange(len(self._difference_slices)), [rows.stop - rows.start for rows in self._difference_slices]
        )

    def _evaluate_rates(self, dense: DenseOutput, t: float, x: Array | None = None) -> tuple[Array, Array, Array]:
        """Return differences of all triggers, how fast they change, and their derivatives by states.

        The states are those of the polynomials, or x; they change as the polynomials do.
        """
        (u, du), (state, f) = self._inputs(t), dense.interpolate(t)
        (g, derivatives), _ = self._evaluate_with_errors(t, state if x is None else x, u)
        by_x = derivatives[:, 1 : 1 + f.size].copy()
        rates = derivatives[:, 0] + by_x @ f + derivatives[:, 1 + f.size : 1 + f.size + u.size] @ du
        return g, rates, by_x

    @cached_property
    def _differences(self) -> TriggerFunctions:
        from castfit.transcribe.crossings import TriggerFunctions

        return _DIFFERENCES.get(self._joint_differences, TriggerFunctions)

    @cached_property
    def usual(self) -> float:
        """A time that is short relative to the experiment."""
        return (self.end - self.condition.start) / _MAX_STEPS

    def cubics(self, times: Array) -> Array:
        """Return the inputs between times (m + 1,) as local cubics, (m, n_u, 4)."""
        return input_cubics(self.condition.inputs, times)

    @cached_property
    def _noise(self) -> Array:
        """Return the assumed bounds of the integration errors of the states, (n_x,)."""
        return _INTEGRATION_ERROR_FACTOR * self.options.relative_tolerance * self.unit[: self.natural_values.a.size]

    def _inputs(self, t: float) -> tuple[Array, Array]:
        """Return the inputs just before t, and their slopes, (n_u,)."""
        start, inputs = self.condition.start, self.condition.inputs
        if not inputs:
            return _NOTHING, _NOTHING
        begin = max(b for b in (start, *self.condition.breakpoints.tolist()) if b < t or b == start)
        if t <= begin:
            cubics = input_cubics(inputs, np.array([t, t + max(abs(t), self.end - start) * 1e-9]))[0]
            return cubics[:, 0], cubics[:, 1]
        c, s = input_cubics(inputs, np.array([begin, t]))[0], t - begin
        powers, slopes = s ** np.arange(4), np.array([0.0, 1.0, 2 * s, 3 * s * s])
        return c @ powers, c @ slopes


def _find_crossing_time(
    evaluate: Callable[[float], tuple[float, Callable[[], float]]],
    sign: float,
    right: float,
    g0: float,
    rate0: float,
    g1: float,
    rate1: float,
    tolerance: float = _EVENT_TIME_RTOL,
) -> tuple[float, float] | None:
    """Return when a difference first leaves its sign in (0, right], and its sign then; None if it does not.

    g0, rate0, g1, rate1 are the difference and its rate at both ends; it is located to `tolerance` of the time.
    """
    cache: dict[float, float] = {}

    def value(s: float) -> float:
        if s not in cache:
            cache[s] = evaluate(s)[0]
        return cache[s]

    if sign == 0.0:
        if g1 == 0.0:
            return None
        low, high, sign_after = _bisect_change(value, 0.0, right, float(np.sign(g1)), lambda g: g == 0.0)
        return (0.0 if low == 0.0 else high), sign_after
    if sign * g1 > 0:
        if not (sign * rate0 < 0 < sign * rate1):
            return None
        right = _find_turning_time(evaluate, right, sign)  # nearest to zero in between
        g1 = value(right)
        if sign * g1 > 0:
            return None
    low = 0.0
    if not sign * g0 > 0:  # it has just passed zero
        low = _find_signed_time(value, right, sign)
        if low == right:
            return 0.0, -sign
    if g1 == 0.0:
        return _bisect_change(value, low, right, 0.0, lambda g: sign * g > 0)[1:]  # it leaves its sign as by a jump
    if sign * value(right) >= 0:  # integrated by itself this step ends before zero, by less than its errors
        return right, -sign
    root: Any = scipy.optimize.brentq(value, low, right, xtol=tolerance * right)
    return float(root), -sign


def _bisect_change(
    value: Callable[[float], float], low: float, high: float, sign_after: float, is_before: Callable[[float], bool]
) -> tuple[float, float, float]:
    """Return places next to each other where a difference is still, and no longer, as `is_before`; and its sign then.

    It has the sign `sign_after` at high.
    """
    for _ in range(_MAX_BISECTIONS):
        middle = 0.5 * (low + high)
        g = value(middle)
        low, high, sign_after = (middle, high, sign_after) if is_before(g) else (low, middle, float(np.sign(g)))
    return low, high, sign_after


def _find_turning_time(
    evaluate: Callable[[float], tuple[float, Callable[[], float]]], right: float, sign: float
) -> float:
    """Return a time in (0, right) at which a difference has changed its sign or is nearest to zero."""
    low, high = 0.0, right
    for _ in range(_MAX_BISECTIONS):
        middle = 0.5 * (low + high)
        g, rate = evaluate(middle)
        if sign * g < 0:
            return middle
        low, high = (middle, high) if sign * rate() < 0 else (low, middle)
    return high


def _find_signed_time(value: Callable[[float], float], right: float, sign: float) -> float:
    """Return a place within (0, right) where a difference that begins at zero has its sign; right if nowhere."""
    s = right
    for _ in range(_MAX_BISECTIONS):
        s *= 0.5
        if sign * value(s) > 0:
            return s
    return right
