"""Events that states trigger: when an expression of them passes zero.

Their times are found by integrating from event to event in small steps, watching signs; where one changes, or where an
expression turns back before zero between two steps, the time is located by bracketing.  They stand then among the times
of the schedule like any other.  How they move follows from where they are reached, with f the rates before the event,

    g(T, x(T), u(T), c) = 0    =>    dT = -(g_x dx + g_c dc) / (g_t + g_u u' + g_x f)

in which dx is at fixed time; jumps carry that on (the saltation of the sensitivities).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq

from castfit.integrate.integrators import integrator_of
from castfit.integrate.lanes import Lanes
from castfit.integrate.march import input_cubics
from castfit.schedule import Timetable

if TYPE_CHECKING:
    from collections.abc import Callable

    from castfit._array import Array
    from castfit.conditions import Condition
    from castfit.integrate.integrator import Integrator
    from castfit.integrate.options import IntegratorOptions
    from castfit.link import Natural
    from castfit.model import Model
    from castfit.schedule import Trigger

_STEPS = 200  # in which an experiment is watched
_HALVINGS = 40  # to find where an expression turns back
_TINY = 1e-13  # of a step: how exactly a time is located


def triggered(
    model: Model, condition: Condition, at: Natural, unit: Array, options: IntegratorOptions, end: float
) -> Natural:
    """Return a point with the times up to `end` at which states trigger events; what comes later is `NEVER`.

    unit (n_x + n_z,) as in `Lanes`.  Where an event happens more often than it may, its times are NaN.
    """
    if not condition.schedule.triggers:
        return at
    return replace(at, e=_Watch(model, condition, at, unit, options, end).times())


@dataclass
class _Watch:
    """Integrates one experiment, watching triggers."""

    model: Model
    condition: Condition
    at: Natural
    unit: Array
    options: IntegratorOptions
    end: float

    def times(self) -> Array:
        """Return e with the times of triggered events."""
        schedule, e = self.condition.schedule, self.at.e.copy()
        table = Timetable.of(schedule, self.condition.start, self.at.p, e)
        triggers = schedule.triggers
        left = {i: schedule.rows_of(trigger) for i, trigger in enumerate(triggers)}
        step = integrator_of(self.model, [1.0], self.options)
        t, x, z = self.condition.start, self.at.a, self.condition.z_guess
        done, fired, h = table.done(t, 0.0, at_start=True), -1, (self.end - t) / _STEPS
        marks = np.unique(
            np.concatenate([table.times[table.times <= self.end], self.condition.breakpoints, [self.end]])
        )
        while True:
            while done < table.times.size and table.times[done] <= t:
                crossing = table.crossings[done]
                if crossing is not None:
                    x, fired = crossing.values(x, table.e, self._inputs(t)[0]), -1
                done += 1
            if t >= self.end:
                return e
            b = float(min(t + h, marks[np.searchsorted(marks, t, side="right")]))
            found = self._first(step, triggers, t, b, x, z, table.p[done], e, fired)
            if found is None:  # the integration itself will say why
                return e
            i, t, x, z = found
            fired = i
            if i < 0:
                continue
            if not left[i]:
                e[schedule.rows_of(triggers[i])] = np.nan
                return e
            row = left[i].pop(0)
            e[row] = t
            x = schedule.crossing_at(row).values(x, e, self._inputs(t)[0])

    def _inputs(self, t: float) -> tuple[Array, Array]:
        """Return the inputs just before t, and their slopes, (n_u,)."""
        start, inputs = self.condition.start, self.condition.inputs
        if not inputs:
            return np.empty(0), np.empty(0)
        begin = max(b for b in (start, *self.condition.breakpoints.tolist()) if b < t or b == start)
        if t <= begin:
            cubics = input_cubics(inputs, np.array([t, t + max(abs(t), self.end - start) * 1e-9]))[0]
            return cubics[:, 0], cubics[:, 1]
        c, s = input_cubics(inputs, np.array([begin, t]))[0], t - begin
        powers, slopes = s ** np.arange(4), np.array([0.0, 1.0, 2 * s, 3 * s * s])
        return c @ powers, c @ slopes

    def _move(self, step: Integrator, t: float, s: float, x: Array, z: Array, p: Array) -> tuple[Array, Array] | None:
        if s == 0.0:
            return x, z
        lanes = Lanes(
            start=np.array([t]),
            duration=np.array([s]),
            x0=x[None],
            p=p[None],
            u=input_cubics(self.condition.inputs, np.array([t, t + s]))[None],
            z0=z[None],
            unit=self.unit[None],
        )
        found = step.values(lanes)
        return None if found.failures else (found.x[0, -1], found.z[0, -1])

    def _rate(self, step: Integrator, trigger: Trigger, t: float, x: Array, z: Array, p: Array, e: Array) -> float:
        """Return how fast a trigger's expression changes."""
        u, du = self._inputs(t)
        graph: Any = step.graph
        f = np.asarray(graph(t, x, z, p, u)[0], dtype=float).ravel()
        _, by_t, by_x, by_u, _ = trigger.slopes(t, x, u, e)
        return float(by_t + by_x @ f + by_u @ du)

    def _first(
        self,
        step: Integrator,
        triggers: tuple[Trigger, ...],
        t: float,
        b: float,
        x: Array,
        z: Array,
        p: Array,
        e: Array,
        fired: int,
    ) -> tuple[int, float, Array, Array] | None:
        """Return the first trigger in [t, b], or -1, with its time and the states there; None if integration fails."""
        moved = self._move(step, t, b - t, x, z, p)
        if moved is None:
            return None
        best: tuple[int, float, Array, Array] = (-1, b, *moved)

        def watched(trigger: Trigger) -> Callable[[float], float]:
            def value(s: float) -> float:
                to = self._move(step, t, s, x, z, p)
                return np.nan if to is None else trigger.value(t + s, to[0], self._inputs(t + s)[0], e)

            return value

        for i, trigger in enumerate(triggers):
            rate = self._rate(step, trigger, t, x, z, p, e)
            sign = np.sign(rate if i == fired else trigger.value(t, x, self._inputs(t)[0], e))
            at_end = trigger.value(b, moved[0], self._inputs(b)[0], e)
            right = b - t
            if sign * at_end > 0 and sign * rate < 0 and sign * self._rate(step, trigger, b, *moved, p, e) > 0:
                right = self._turn(step, trigger, t, right, x, z, p, e, sign)  # nearest to zero in between
                at_end = watched(trigger)(right)
            if sign == 0 or not sign * at_end <= 0 or trigger.direction * sign > 0:
                continue
            low = _TINY * (b - t)
            value = watched(trigger)
            if i == fired:  # away from zero first
                low = self._away(value, right, float(sign))
            if not low < right or not sign * value(low) > 0:
                continue
            root: Any = right if at_end == 0 else brentq(value, low, right, xtol=_TINY * (b - t))
            if t + float(root) <= best[1]:
                to = self._move(step, t, float(root), x, z, p)
                if to is None:
                    return None
                best = (i, t + float(root), *to)
        return best

    def _turn(
        self, step: Integrator, trigger: Trigger, t: float, right: float, x: Array, z: Array, p: Array, e: Array,
        sign: float,
    ) -> float:  # fmt: skip
        """Return where an expression is nearest to zero within (0, right)."""
        low, high = 0.0, right
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            to = self._move(step, t, middle, x, z, p)
            if to is None:
                return right
            if sign * trigger.value(t + middle, to[0], self._inputs(t + middle)[0], e) < 0:
                return middle
            low, high = (middle, high) if sign * self._rate(step, trigger, t + middle, *to, p, e) < 0 else (low, middle)
        return high

    @staticmethod
    def _away(value: Callable[[float], float], right: float, sign: float) -> float:
        """Return a place within (0, right) where an expression that begins at zero has left it; right if nowhere."""
        s = right
        for _ in range(_HALVINGS):
            s *= 0.5
            if sign * value(s) > 0:
                return s
        return right
