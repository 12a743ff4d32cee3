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

from castfit._support.casadi_functions import Built
from castfit._support.records import dataclass
from castfit._support.time_limit import look
from castfit.integrate.integrator import integrator_of
from castfit.integrate.lanes import Lanes
from castfit.problem.event_schedule import Crossing, Round, StateChange, Timetable, Trigger
from castfit.transcribe.experiment_trajectories import input_cubics, straight_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from castfit._support.arrays import Array, Index, Mask
    from castfit.integrate.dense_output import DenseOutput
    from castfit.integrate.options import IntegratorOptions
    from castfit.model.model import Model
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.parameter_map import Natural
    from castfit.transcribe.crossings import Differences

_STEPS = 200  # usual steps of an experiment ...
_AHEAD = 32  # ... of which so many are integrated at once, ...
_BEYOND = 4.0  # ... or so many times the time to the last event, where these follow each other faster, ...
_LEAST = 1 / 64  # ... but not less than this part of one
_PARTS = 2**10  # of what is integrated at once: where that fails, its beginning may do
_CORRECTIONS = 6  # of a time that was located on polynomials ...
_OFF = 1e-2  # ... by this part of a step at most
_MOST_EVENTS = 100_000  # of one kind, where nothing else limits them
_HALVINGS = 40  # to find where an expression turns back
_TINY = 1e-13  # of a step: how exactly a time is located ...
_LOCATED = 1e-6  # ... or before it is corrected
_ERRORS = 10.0  # times the tolerance of integration: differences that stay so small do not pass zero
_SAME = 1e-11  # of a step: what passes zero within it does so at once


_NOTHING: Array = np.empty(0)
_DIFFERENCES: Built[StateChange, Differences] = Built()


def triggered(
    model: Model,
    condition: Condition,
    at: Natural,
    unit: Array,
    options: IntegratorOptions,
    end: float,
    nodes: tuple[Array, Array] | None = None,
) -> Natural:
    """Return a point with the times up to `end` at which states trigger events; what comes later is `NEVER`.

    unit (n_x + n_z,) as in `Lanes`.  With nodes, times (K,) and states (K, n_x), integration goes on from each: what is
    true there has happened.  Where an event happens more often than it may, its times are NaN.
    """
    if not condition.schedule.triggers:
        return at
    watch = _TriggerWatch(model, condition, at, unit, options, end, nodes)
    try:
        watch.run()
    except _Exhausted as stop:
        watch.e[condition.schedule.rows_of(stop.args[0])] = np.nan
    return replace(at, e=watch.e)


def timetable_of(
    model: Model, condition: Condition, at: Natural, unit: Array, options: IntegratorOptions, end: float
) -> tuple[Timetable, str]:
    """Return the timetable up to `end` with all triggered events, and why it is not allowed; empty if it is.

    Arguments as in `triggered`.  The schedule has one row for each trigger.
    """
    watch = _TriggerWatch(model, condition, at, unit, options, end, rounds=[])
    why = ""
    try:
        watch.run()
    except _Exhausted as stop:
        trigger: Trigger = stop.args[0]
        why = trigger.forbidden or f"the event at {trigger.what} happens more often than {_MOST_EVENTS} times"
    table = Timetable.of(condition.schedule, condition.start, at.p, at.e)
    return table.with_rounds(watch.rounds or []), why


class _Exhausted(Exception):
    """An event happened more often than it may."""


@dataclass(frozen=True)
class _Zero:
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
        found = integrator_of(self.watch.model, [1.0], self.watch.options).values(self._lanes(time))
        return None if found.failures else (found.x[0, -1], found.z[0, -1])

    def dense(self, time: float) -> DenseOutput | None:
        """Return the states up to a later time, as polynomials; None if integration fails."""
        from castfit.integrate.dense_output import dense_output

        watch = self.watch
        least = max(1, int(np.ceil((time - self.t) / watch.usual)))
        least = 1 << (least - 1).bit_length()  # few integrators are built
        return dense_output(watch.model, watch.options, self._lanes(time), least, watch.cubics)

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
    at: Natural
    unit: Array
    options: IntegratorOptions
    end: float
    nodes: tuple[Array, Array] | None = None
    rounds: list[Round] | None = None
    e: Array = field(init=False)
    signs: Array = field(init=False)
    held: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.e = self.at.e.copy()
        self.triggers: tuple[Trigger, ...] = self.condition.schedule.triggers
        self._left = [deque(self.condition.schedule.rows_of(trigger)) for trigger in self.triggers]
        self._counts = [0] * len(self.triggers)
        self._crossings: dict[tuple[int, ...], Crossing] = {}
        self._truths: dict[tuple[int, bytes], bool] = {}
        self._draws: dict[int, np.random.Generator] = {}
        self._slopes: tuple[Array, Array, Array] | None = None
        self._even: tuple[object, Array, tuple[Array, Array] | None] | None = None
        self._last = -np.inf
        self._begun = -1

    def run(self) -> None:
        """Go through the experiment, and set the times of triggered events in e."""
        table = Timetable.of(self.condition.schedule, self.condition.start, self.at.p, self.e)
        t, x, z = self.condition.start, self.at.a, self.condition.z_guess
        done, most = table.done(t, 0.0, at_start=True), _AHEAD * self.usual
        ahead = most
        marks = np.concatenate([table.times[table.times <= self.end], self.condition.breakpoints, [self.end]])
        if self.nodes is not None:
            marks, x = np.append(marks, self.nodes[0]), self.nodes[1][0]
        marks = np.unique(marks)
        self._look(t, x)
        due = [i for i, held in enumerate(self.held) if held and self.triggers[i].at_start]
        later: list[int] = []
        while True:
            look()  # where nothing is to be integrated, nothing else does
            if self.nodes is not None and t > self.condition.start and t in self.nodes[0]:
                early = [i for i in due if self.triggers[i] in self._late]  # at the end of the stage that ends here
                x, due = self._happen(early, t, x), [i for i in due if i not in early]
            while done < table.times.size and table.times[done] <= t:
                crossing = table.crossings[done]
                if crossing is not None:
                    before, self._last = self._all(t, x), t
                    x = crossing.values(x, table.e, self._inputs(t)[0])
                    due = [*self._made_true(before, self._all(t, x)), *due]
                done += 1
            x = self._from_node([*due, *later], t, x)
            x = self._happen(due, t, x)  # after what is known, as everywhere
            x = self._happen([i for i in later if self.triggers[i].truth is None or self.held[i]], t, x)
            if t >= self.end:
                return
            b = float(min(t + ahead, marks[np.searchsorted(marks, t, side="right")]))
            reached = self._first(_Step(self, t, x, z, table.p[done]), b)
            if reached is None:  # the integration itself will say why
                return
            passed, there, x, z = reached
            due, later = self._passed(passed)
            # What lies behind an event was integrated in vain.
            ahead = min(most, max(_BEYOND * (there - t if due or later else ahead), _LEAST * self.usual))
            t = there

    def _look(self, t: float, x: Array, due: Sequence[int] = ()) -> None:
        """See where conditions are true, but for those that are due."""
        signs = np.sign(self._all(t, x))
        held = [self._holds(i, signs[of]) for i, of in enumerate(self._of)]
        for i in due:
            signs[self._of[i]], held[i] = self.signs[self._of[i]], self.held[i]
        self.signs, self.held = signs, held

    def _from_node(self, due: Sequence[int], t: float, x: Array) -> Array:
        """Return the states from which integration goes on: of the last node here, if there is one."""
        if self.nodes is None:
            return x
        here = np.flatnonzero(self.nodes[0] == t)
        if not here.size or t >= self.end or here[-1] == self._begun:
            return x
        self._begun = int(here[-1])  # once: a node at which a condition changes sign would be left again and again
        x = self.nodes[1][self._begun]
        self._look(t, x, due)
        return x

    @cached_property
    def _ordered(self) -> frozenset[int]:
        """The events that happen in their turn."""
        return frozenset(i for i, trigger in enumerate(self.triggers) if trigger.ordered)

    @cached_property
    def _late(self) -> set[Trigger]:
        """The triggers of events after which a value of their very time is measured."""
        return {i.trigger for i in self.condition.schedule.instants if i.trigger is not None and i.after}

    # What happens

    def _happen(self, events: Sequence[int], t: float, x: Array) -> Array:
        """Apply events, then the events whose conditions these make true, and so on; return the states."""
        waiting, before = list(events), self._all(t, x) if events else np.empty(0)
        while waiting:
            self._last = t if self._last < t else float(np.nextafter(self._last, np.inf))
            turn = self._next(waiting, t, x)
            for i in turn:  # once: it may wait twice
                waiting.remove(i)
            x = self._changed(turn, t, x)
            after = self._all(t, x)
            made = self._made_true(before, after)
            waiting = [i for i in waiting if not self._called_off(i, before, after)] + made
            before = after
        return x

    def _changed(self, events: Sequence[int], t: float, x: Array) -> Array:
        """Apply simultaneous events, and return the states."""
        u = self._inputs(t)[0]
        if self.rounds is None:
            rows: list[int] = []
            for i in events:
                if not self._left[i] or self.triggers[i].forbidden:
                    raise _Exhausted(self.triggers[i])
                rows.append(self._left[i].popleft())
            self.e[rows] = self._last
            return self.condition.schedule.crossing_at(rows).values(x, self.e, u)
        key = tuple(events)
        if key not in self._crossings:
            rows = [self._left[i][0] for i in events]
            self._crossings[key] = self.condition.schedule.crossing_at(rows)
        for i in events:
            self._counts[i] += 1
            if self.triggers[i].forbidden or self._counts[i] > _MOST_EVENTS:
                raise _Exhausted(self.triggers[i])
        self.rounds.append(Round(self._last, self._crossings[key]))
        return self._crossings[key].at(self._last, x, self.e, u)

    def _next(self, waiting: Sequence[int], t: float, x: Array) -> list[int]:
        """Return the next events among those that wait: all of them, or the one with the highest priority."""
        if self._ordered.isdisjoint(waiting):
            return list(waiting)
        u = self._inputs(t)[0]
        ranks = [self.triggers[i].rank(t, x, u, self.e) for i in waiting]
        highest = max(ranks)
        first = [i for i, rank in zip(waiting, ranks, strict=True) if rank == highest]
        seed = self.triggers[first[0]].rng
        if len(first) == 1 or seed is None:
            return first[:1]
        if seed not in self._draws:
            self._draws[seed] = np.random.default_rng(seed)
        return [first[int(self._draws[seed].integers(len(first)))]]

    def _called_off(self, i: int, before: Array, after: Array) -> bool:
        """Check whether a jump changed a condition to false and so cancels its waiting event."""
        of = self._of[i]
        return not (self.triggers[i].persistent or self.held[i] or np.array_equal(before[of], after[of]))

    def _holds(self, i: int, signs: Array) -> bool:
        """Check whether a condition is true for these signs of its differences; results are cached."""
        key = i, signs.tobytes()
        if key not in self._truths:
            self._truths[key] = self.triggers[i].holds(signs)
        return self._truths[key]

    def _made_true(self, before: Array, after: Array) -> list[int]:
        """Return the conditions that a jump made true; differences that it left alone keep their signs."""
        found: list[int] = []
        moved: Index = np.flatnonzero(after != before)
        if not moved.size:
            return found
        signs: Array = np.sign(after[moved])
        turned: Index = moved[signs != self.signs[moved]]
        self.signs[moved] = signs
        owners: list[int] = self._owner[turned].tolist()
        for i in dict.fromkeys(owners):
            held, self.held[i] = self.held[i], self._holds(i, self.signs[self._of[i]])
            if self.held[i] and not held:
                found.append(i)
        return found

    def _passed(self, passed: Sequence[_Zero]) -> tuple[list[int], list[int]]:
        """Return the events at zero crossings: those true at the crossing, and those true right after it."""
        there, later = list[int](), list[int]()
        for i in dict.fromkeys(zero.trigger for zero in passed):
            trigger, old = self.triggers[i], self.signs[self._of[i]].copy()
            between, new = old.copy(), old.copy()
            for zero in passed:
                if zero.trigger == i:
                    between[zero.row], new[zero.row] = 0.0, zero.sign
            self.signs[self._of[i]] = new
            if trigger.truth is None:
                if old[0] != 0.0 and trigger.direction * old[0] <= 0:
                    there.append(i)
                continue
            held, self.held[i] = self.held[i], self._holds(i, new)
            at_zero = self._holds(i, between)
            if at_zero and not held:
                there.append(i)
            elif self.held[i] and not at_zero:
                later.append(i)
        return there, later

    # Where differences pass zero

    def _first(self, step: _Step, b: float) -> tuple[list[_Zero], float, Array, Array] | None:
        """Return the first zero crossings in (t, b], their time or b, and the states there; None if integration fails.

        Where integration fails before b, up to where it does.
        """
        at, noise = self._evaluated(step.t, step.x, self._inputs(step.t)[0])
        even = self._even_rates(step.p, at[1])
        if even is not None:
            return self._straight(step, b, even, at[0], noise)
        shortest = (b - step.t) / _PARTS
        while (dense := step.dense(b)) is None:
            if b - step.t <= shortest:
                return None
            b = step.t + 0.5 * (b - step.t)
        dense.times[-1] = b
        found = self._differences.suspects(dense, self.cubics(dense.times), self.e[self._rows], at, self.signs, noise)
        for begin, end in found.intervals.tolist():
            zeros = self._zeros(dense, begin, end)
            if zeros:
                return self._at_once(step, dense, zeros)
        if not step.t < found.end < b:
            return [], b, dense.x[-1], dense.z[-1]
        return [], found.end, dense.at(found.end)[0], dense.z[dense.part(found.end)]

    def _even_rates(self, p: Array, slopes: Array) -> tuple[Array, Array] | None:
        """Return the rates (n_x,) and (m,) where states, and differences that move, change evenly; None elsewhere."""
        known = self._even
        if known is None or known[0] is not self._slopes or not np.array_equal(p, known[1]):
            f = straight_rates(self.model, p)
            rates = None if f is None else self._differences.even(f, slopes)
            self._even = known = self._slopes, p, None if f is None or rates is None else (f, rates)
        return known[2]

    def _straight(
        self, step: _Step, b: float, even: tuple[Array, Array], g: Array, noise: Array
    ) -> tuple[list[_Zero], float, Array, Array]:
        """Return the first zero crossings as `_first` does, if states and differences change at constant rates."""
        (f, rates), long, s, same = even, b - step.t, self.signs, _SAME * self.usual
        end = g + rates * long
        leaves = np.where(s == 0.0, end != 0.0, s * end <= np.maximum(-s * rates * same, 0.0))
        leaves &= np.maximum(np.abs(g), np.abs(end)) > noise
        rows: Index = np.flatnonzero(leaves)
        if not rows.size:
            return [], b, step.x + f * long, step.z
        with np.errstate(divide="ignore", invalid="ignore"):
            after = np.where(s[rows] * g[rows] > 0.0, -g[rows] / rates[rows], 0.0)
        after = np.minimum(np.where(np.isnan(after), 0.0, after), long)
        first = float(after.min())
        zeros: list[_Zero] = []
        owners: list[int] = self._owner[rows].tolist()
        places: list[int] = rows.tolist()
        for k, i, late in zip(places, owners, after.tolist(), strict=True):
            if late <= first + same:
                sign = float(-s[k] if s[k] else np.sign(end[k])) if end[k] != 0.0 else 0.0
                zeros.append(_Zero(step.t + first, i, k - self._begins[i], sign))
        return zeros, step.t + first, step.x + f * first, step.z

    def _at_once(
        self, step: _Step, dense: DenseOutput, zeros: Sequence[_Zero]
    ) -> tuple[list[_Zero], float, Array, Array] | None:
        """Return the first of some zeros, with others at its time, that time and the states there.

        It is located on polynomials, and then moved to where it is by integration.
        """
        first = min(zeros, key=lambda zero: zero.time)
        time, k = first.time, dense.part(first.time)
        row = self._of[first.trigger].start + first.row
        node = step if k == 0 else replace(step, t=float(dense.times[k]), x=dense.x[k], z=dense.z[k])
        width = float(dense.times[k + 1] - dense.times[k])
        rests, reached = dense.rests(k), (node.x, node.z)
        for _ in range(_CORRECTIONS):
            if not rests:
                there = node.to(time)
                if there is None:
                    return None
                reached = there
            g, rates, _ = self._every_rate(dense, time, reached[0])
            off = -float(g[row]) / float(rates[row]) if rates[row] != 0.0 and self._differences.smooth[row] else 0.0
            if abs(off) > _OFF * width:
                break
            time = max(time + off, node.t)
            if abs(off) <= _TINY * min(width, self.usual):  # the states are those of so much earlier or later
                break
        g, rates, _ = self._every_rate(dense, time, reached[0])
        near: Mask = np.abs(g) <= np.abs(rates) * _SAME * self.usual
        at_once = [
            zero
            for zero in zeros
            if zero is first
            or zero.time <= first.time + _SAME * self.usual
            or (zero.time <= first.time + _OFF * width and near[self._of[zero.trigger].start + zero.row])
        ]
        return at_once, time, *reached

    def _zeros(self, dense: DenseOutput, a: float, b: float) -> list[_Zero]:
        """Return the first zeros of all differences in (a, b]."""
        g0, rate0, by_x = self._every_rate(dense, a)
        g1, rate1, _ = self._every_rate(dense, b)
        signs, same = self.signs, _SAME * self.usual
        resting = np.maximum(np.abs(g0), np.abs(g1)) <= np.abs(by_x) @ self._noise  # at zero but for errors
        turns = (signs * rate0 < 0) & (signs * rate1 > 0)
        stays = (signs * g1 > np.maximum(-signs * rate1 * same, 0.0)) & ~turns
        zeros: list[_Zero] = []
        for k in np.flatnonzero(~(resting | stays)).tolist():
            i = int(self._owner[k])
            row, sign = k - self._of[i].start, float(signs[k])
            ends = (float(g0[k]), float(rate0[k]), float(g1[k]), float(rate1[k]))
            if 0.0 < sign * ends[2] <= -sign * ends[3] * same:
                zeros.append(_Zero(b, i, row, -sign))  # with what passes zero right here
                continue
            exact = _LOCATED if self._differences.smooth[k] else _TINY
            zero = _search(self._along(dense, a, i, row), sign, b - a, *ends, exact)
            if zero is not None:
                zeros.append(_Zero(a + zero[0], i, row, zero[1]))
        return zeros

    def _along(
        self, dense: DenseOutput, a: float, i: int, row: int
    ) -> Callable[[float], tuple[float, Callable[[], float]]]:
        """Return a difference as a function of the time since a, with its rate."""

        def at(s: float) -> tuple[float, Callable[[], float]]:
            g = self._values(i, a + s, dense.at(a + s)[0])
            return float(g[row]), lambda: float(self._every_rate(dense, a + s)[1][self._of[i]][row])

        return at

    def _values(self, i: int, t: float, x: Array) -> Array:
        return self.triggers[i].values(t, x, self._inputs(t)[0], self.e)

    def _all(self, t: float, x: Array) -> Array:
        """Return the differences of all triggers."""
        return self._together.values(t, x, self._inputs(t)[0], self.e[self._rows])

    def _evaluated(self, t: float, x: Array, u: Array) -> tuple[tuple[Array, Array], Array]:
        """Return the differences of all triggers, their derivatives, and how large errors of the states make them.

        Derivatives that nothing moves are those of before; the others are written over, and so lost at the next call.
        """
        c, known = self.e[self._rows], self._slopes
        if known is None or not np.array_equal(c, known[0]):
            at = self._together.evaluate(t, x, u, c)
            self._slopes = c, at[1], np.abs(at[1][:, 1 : 1 + x.size]) @ self._noise
            return at, self._slopes[2]
        _, slopes, noise = known
        rows, bent = self._differences.bent
        if bent is not None:
            slopes[rows] = bent.evaluate(t, x, u, c)[1]
            noise[rows] = np.abs(slopes[rows, 1 : 1 + x.size]) @ self._noise
        return (self._together.values(t, x, u, c), slopes), noise

    @cached_property
    def _together(self) -> StateChange:
        """The differences of all triggers, as one function."""
        return self.condition.schedule.every_trigger

    @cached_property
    def _rows(self) -> Index:
        return np.concatenate([trigger.parameters for trigger in self.triggers])

    @cached_property
    def _of(self) -> list[slice]:
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
        return np.repeat(np.arange(len(self._of)), [of.stop - of.start for of in self._of])

    def _every_rate(self, dense: DenseOutput, t: float, x: Array | None = None) -> tuple[Array, Array, Array]:
        """Return differences of all triggers, how fast they change, and their derivatives by states.

        The states are those of the polynomials, or x; they change as the polynomials do.
        """
        (u, du), (there, f) = self._inputs(t), dense.at(t)
        (g, found), _ = self._evaluated(t, there if x is None else x, u)
        by_x = found[:, 1 : 1 + f.size].copy()
        rates = found[:, 0] + by_x @ f + found[:, 1 + f.size : 1 + f.size + u.size] @ du
        return g, rates, by_x

    @cached_property
    def _differences(self) -> Differences:
        from castfit.transcribe.crossings import Differences

        return _DIFFERENCES.get(self._together, Differences)

    @cached_property
    def usual(self) -> float:
        """A time that is short beside the experiment's."""
        return (self.end - self.condition.start) / _STEPS

    def cubics(self, times: Array) -> Array:
        """Return the inputs between times (m + 1,) as local cubics, (m, n_u, 4)."""
        return input_cubics(self.condition.inputs, times)

    @cached_property
    def _noise(self) -> Array:
        """Return the assumed bounds of the integration errors of the states, (n_x,)."""
        return _ERRORS * self.options.relative_tolerance * self.unit[: self.at.a.size]

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


def _search(
    along: Callable[[float], tuple[float, Callable[[], float]]],
    sign: float,
    right: float,
    g0: float,
    rate0: float,
    g1: float,
    rate1: float,
    exact: float = _TINY,
) -> tuple[float, float] | None:
    """Return when a difference first leaves its sign in (0, right], and its sign then; None if it does not.

    g0, rate0, g1, rate1 are the difference and its rate at both ends; it is located to `exact` of the time.
    """
    known: dict[float, float] = {}

    def value(s: float) -> float:
        if s not in known:
            known[s] = along(s)[0]
        return known[s]

    if sign == 0.0:
        if g1 == 0.0:
            return None
        low, high, after = _border(value, 0.0, right, float(np.sign(g1)), lambda g: g == 0.0)
        return (0.0 if low == 0.0 else high), after
    if sign * g1 > 0:
        if not (sign * rate0 < 0 < sign * rate1):
            return None
        right = _turn(along, right, sign)  # nearest to zero in between
        g1 = value(right)
        if sign * g1 > 0:
            return None
    low = 0.0
    if not sign * g0 > 0:  # it has just passed zero
        low = _away(value, right, sign)
        if low == right:
            return 0.0, -sign
    if g1 == 0.0:
        return _border(value, low, right, 0.0, lambda g: sign * g > 0)[1:]  # it leaves its sign as by a jump
    if sign * value(right) >= 0:  # integrated by itself this step ends before zero, by less than its errors
        return right, -sign
    root: Any = scipy.optimize.brentq(value, low, right, xtol=exact * right)
    return float(root), -sign


def _border(
    value: Callable[[float], float], low: float, high: float, after: float, before: Callable[[float], bool]
) -> tuple[float, float, float]:
    """Return places next to each other where a difference is still, and no longer, as `before`; and its sign then.

    It has the sign `after` at high.
    """
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        g = value(middle)
        low, high, after = (middle, high, after) if before(g) else (low, middle, float(np.sign(g)))
    return low, high, after


def _turn(along: Callable[[float], tuple[float, Callable[[], float]]], right: float, sign: float) -> float:
    """Return a time in (0, right) at which a difference has changed its sign or is nearest to zero."""
    low, high = 0.0, right
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        g, rate = along(middle)
        if sign * g < 0:
            return middle
        low, high = (middle, high) if sign * rate() < 0 else (low, middle)
    return high


def _away(value: Callable[[float], float], right: float, sign: float) -> float:
    """Return a place within (0, right) where a difference that begins at zero has its sign; right if nowhere."""
    s = right
    for _ in range(_HALVINGS):
        s *= 0.5
        if sign * value(s) > 0:
            return s
    return right
