"""Enclosures of zero crossings of differences, proved from bounds: between and inside the steps of an integrator.

On every step the states are polynomials (castfit.integrate.dense_output).  A difference that is linear in states,
inputs and time is one too, which lies between its Bernstein coefficients; of any other one interval arithmetic tells
the bounds (castfit.integrate.intervals).  So of each difference g on each interval of time either

    0 is not in g              nothing passes zero
    0 is not in g'             it passes zero once, or not at all, as the signs at the ends say
    neither is known           the interval is halved

until nothing is left but intervals in which a difference touches zero or jumps.  What oscillates many times inside a
step, in time or in states, is found whatever its frequency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.arrays import Array, Index, Mask
from castfit.integrate.dense_output import LEFT, POWERS, RIGHT, DenseOutput
from castfit.integrate.intervals import Enclosure, may_jump
from castfit.problem.event_schedule import EventUpdate

_MAX_HALVINGS = 26  # halvings of a step at most; below that width only the signs at the ends count
_MIN_INTERVAL_ULPS = 4  # width in units in the last place of time, below which an interval is not halved
_MAX_INTERVALS_PER_BATCH = 20_000  # number of intervals whose bounds are computed together


@dataclass(frozen=True)
class CrossingIntervals:
    """Intervals (n, 2), in order, in one of which something passes zero first, if it does before `end`."""

    intervals: Array
    end: float


class TriggerFunctions:
    """The differences g(t, x, u, c) (m,) of all triggers.

    is_smooth : (m,) True for differences that do not jump
    nonlinear_rows : rows of differences with variable derivatives, and their function, if there are any
    """

    def __init__(self, all_triggers: EventUpdate) -> None:
        sizes = [all_triggers.graph.size1_in(i) for i in range(4)]
        t, x, u, c = arguments = [ca.SX.sym(n, size) for n, size in zip("txuc", sizes, strict=True)]
        dx, du = ca.SX.sym("dx", x.numel()), ca.SX.sym("du", u.numel())
        outputs: Any = all_triggers.jacobian_function(*arguments)
        g, slopes = cast("ca.SX", outputs[0]), cast("ca.SX", outputs[1])[:, : 1 + x.numel() + u.numel()]
        entries, gradients = ca.vertsplit(g), ca.vertsplit(slopes)
        moving_variables = ca.vertcat(t, x, u)
        self._n_x, self._n_u, self._support = x.numel(), u.numel(), all_triggers.support[:, : 1 + x.numel() + u.numel()]
        self.is_smooth = np.array([not may_jump(entry) for entry in entries], dtype=np.bool_)
        is_linear = np.array(
            [not ca.depends_on(expression, moving_variables) for expression in gradients], dtype=np.bool_
        )
        self._linear: Mask = self.is_smooth & is_linear
        rows = np.flatnonzero(~is_linear)
        self.nonlinear_rows = rows, EventUpdate.from_expressions(arguments, g[rows.tolist()]) if rows.size else None
        self._enclosed: dict[int, tuple[Enclosure, Enclosure, Index]] = {}
        for k in np.flatnonzero(~self._linear).tolist():
            all_variables = ca.vertcat(t, x, u, dx, du, c)
            rate = ca.mtimes(gradients[k], ca.vertcat(1, dx, du))
            by_value, by_rate = (
                np.array(ca.which_depends(expression, all_variables, 1)) for expression in (entries[k], rate)
            )
            used = np.flatnonzero(by_value | by_rate)
            used_symbols = ca.SX.sym("own", used.size)
            enclosure_arguments = ca.SX(all_variables)
            enclosure_arguments[used.tolist()] = used_symbols
            g_k, rate_k = ca.substitute([entries[k], rate], [all_variables], [enclosure_arguments])
            self._enclosed[k] = Enclosure(used_symbols, g_k), Enclosure(used_symbols, rate_k), used

    def constant_rates(self, f: Array, slopes: Array) -> Array | None:
        """Return constant rates (m,) of differences, for states with rates f (n_x,), no inputs; None if rates vary.

        slopes (m, 1 + n_x + ...) : their derivatives, constant where anything moves
        """
        is_moving = np.concatenate([[True], f != 0.0, np.ones(self._n_u, dtype=np.bool_)])
        if (self._support[~self._linear] & is_moving).any():
            return None
        return np.where(self._linear, slopes[:, 0] + slopes[:, 1 : 1 + f.size] @ f, 0.0)

    def find_suspect_intervals(
        self, dense: DenseOutput, inputs: Array, c: Array, evaluation: tuple[Array, Array], signs: Array, noise: Array
    ) -> CrossingIntervals:
        """Return the intervals in which a difference may change its sign (m,), up to the first certain change.

        inputs (K, n_u, 4) : between the times of the dense output, as local cubics
        evaluation : g (m,) and its derivatives (m, 1 + n_x + n_u + ...) at the first time
        noise (m,) : what is zero but for errors
        """
        times, end = dense.times, float(dense.times[-1])
        widths = np.diff(times)
        is_moving = np.concatenate(
            [[True], (dense.ends[:, [1, 3, 4]] != 0.0).any(axis=(0, 1)), np.ones(self._n_u, bool)]
        )
        active = (self._support & is_moving).any(axis=1)
        linear, nonlinear = np.flatnonzero(active & self._linear), np.flatnonzero(active & ~self._linear)
        if not active.any():
            return CrossingIntervals(np.empty((0, 2)), end)
        g, slopes = evaluation
        needed = is_moving[1:] & self._support[active, 1:].any(axis=0)
        states, signals = np.flatnonzero(needed[: self._n_x]), np.flatnonzero(needed[self._n_x :])
        u = np.einsum("ij,kuj->kiu", POWERS, inputs[:, signals] * widths[:, None, None] ** np.arange(4))
        moving = np.concatenate([dense.coefficients(states), u], axis=2)
        places = np.concatenate([1 + states, 1 + self._n_x + signals])
        linear_slopes = slopes[linear][:, places]
        elapsed = (times[:-1, None] - times[0]) + widths[:, None] * np.arange(5) / 4
        rows = g[linear] + (moving - moving[0, 0]) @ linear_slopes.T + elapsed[:, :, None] * slopes[linear, 0]
        polynomials = _IntervalPolynomials(times[:-1], times[1:], rows, moving if nonlinear.size else moving[:, :, :0])
        constant_values = np.concatenate([[0.0], dense.x[0], np.zeros(2 * self._n_u + self._n_x), c])
        s, noise_levels = (a[np.concatenate([linear, nonlinear])] for a in (signs, noise))
        intervals: list[Array] = []
        for depth in range(_MAX_HALVINGS + 1):
            bounds = self._bounds(polynomials, nonlinear, places, constant_values)
            is_candidate = ((s * bounds[0] <= 0) | (s * bounds[1] <= 0)) & (
                np.maximum(-bounds[0], bounds[1]) > noise_levels
            )
            is_remaining = (polynomials.begin < end) & is_candidate.any(axis=1)
            if not is_remaining.any():
                break
            polynomials, is_candidate, (low, high, jump) = (
                polynomials.select(is_remaining),
                is_candidate[is_remaining],
                (a[is_remaining] for a in bounds),
            )
            g0, g1, rate0, rate1, one_way = self._courses(polynomials, nonlinear, places, constant_values, jump)
            is_candidate &= ~(one_way & ((s * g1 > 0) | (np.maximum(np.abs(g0), np.abs(g1)) <= noise_levels)))
            is_crossing = is_candidate & (one_way | ((s * low < 0) & (s * high < 0)))
            end = min(end, float(polynomials.end[is_crossing.any(axis=1)].min(initial=np.inf)))
            is_remaining = (polynomials.begin < end) & is_candidate.any(axis=1)
            is_smallest = polynomials.end - polynomials.begin <= _MIN_INTERVAL_ULPS * np.spacing(
                np.abs(polynomials.end)
            )
            is_smallest |= depth == _MAX_HALVINGS
            is_candidate &= ~is_smallest[:, None] | is_crossing | (s * g1 <= 0) | ((s * rate0 < 0) & (s * rate1 > 0))
            is_remaining &= is_candidate.any(axis=1)
            is_resolved = is_remaining & (is_smallest | (is_crossing | ~is_candidate).all(axis=1))
            intervals.append(np.stack([polynomials.begin[is_resolved], polynomials.end[is_resolved]], axis=1))
            is_unresolved = is_remaining & ~is_resolved
            if not is_unresolved.any():
                break
            polynomials = polynomials.select(is_unresolved)
            if polynomials.begin.size > _MAX_INTERVALS_PER_BATCH:  # later intervals are examined in the next batch
                end = float(np.partition(polynomials.begin, _MAX_INTERVALS_PER_BATCH)[_MAX_INTERVALS_PER_BATCH])
                polynomials = polynomials.select(polynomials.begin < end)
            polynomials = polynomials.halve()
        all_intervals = np.concatenate([np.empty((0, 2)), *intervals])
        all_intervals = all_intervals[np.argsort(all_intervals[:, 0], kind="stable")]
        return CrossingIntervals(all_intervals[all_intervals[:, 0] < end], end)

    def _bounds(
        self, polynomials: _IntervalPolynomials, nonlinear: Index, places: Index, constant_values: Array
    ) -> tuple[Array, Array, Array]:
        """Return bounds of all differences, and where they may jump, (N, m) each."""
        low, high = polynomials.rows.min(axis=1), polynomials.rows.max(axis=1)
        jump = np.zeros(low.shape)
        if not nonlinear.size:
            return low, high, jump
        lows, highs, jumping = [low], [high], [jump]
        low, high = polynomials.bounds(constant_values, places, self._n_x + self._n_u)
        for k in nonlinear.tolist():
            value, _, used = self._enclosed[k]
            enclosure = value(low[:, used], high[:, used])
            lows.append(enclosure[0])
            highs.append(enclosure[1])
            jumping.append(enclosure[2][:, None].astype(float))
        return np.concatenate(lows, axis=1), np.concatenate(highs, axis=1), np.concatenate(jumping, axis=1)

    def _courses(
        self, polynomials: _IntervalPolynomials, nonlinear: Index, places: Index, constant_values: Array, jump: Array
    ) -> tuple[Array, Array, Array, Array, Mask]:
        """Return differences and rates at both ends, and whether they surely rise or fall in between, (N, m) each."""
        steps = np.diff(polynomials.rows, axis=1)
        one_way: Mask = np.logical_or((steps > 0).all(axis=1), (steps < 0).all(axis=1))
        ends = [polynomials.rows[:, 0], polynomials.rows[:, -1], steps[:, 0], steps[:, -1]]
        if not nonlinear.size:
            return ends[0], ends[1], ends[2], ends[3], one_way
        n = self._n_x + self._n_u
        (low, high), points = (
            polynomials.bounds(constant_values, places, n),
            polynomials.ends(constant_values, places, n),
        )
        for j, k in enumerate(nonlinear.tolist(), start=one_way.shape[1]):
            value, rate, used = self._enclosed[k]
            min_rate, max_rate, _ = rate(low[:, used], high[:, used])
            is_monotonic: Mask = np.logical_and(np.logical_or(min_rate > 0, max_rate < 0), jump[:, j : j + 1] == 0.0)
            one_way = np.append(one_way, is_monotonic, axis=1)
            end_values = [a for f in (value, rate) for a in np.split(f(points[:, used], points[:, used])[0], 2)]
            ends = [np.append(previous, added, axis=1) for previous, added in zip(ends, end_values, strict=True)]
        return ends[0], ends[1], ends[2], ends[3], one_way


@dataclass(frozen=True)
class _IntervalPolynomials:
    """Intervals from begin to end (N,) with coefficients of linear differences and of what others need, (N, 5, n)."""

    begin: Array
    end: Array
    rows: Array
    moving: Array

    def select(self, mask: Mask) -> _IntervalPolynomials:
        """Return the selected intervals."""
        return (
            self
            if mask.all()
            else _IntervalPolynomials(self.begin[mask], self.end[mask], self.rows[mask], self.moving[mask])
        )

    def halve(self) -> _IntervalPolynomials:
        """Return both halves of each."""
        middle = 0.5 * (self.begin + self.end)
        rows, moving = (
            np.concatenate([np.einsum("ij,kjn->kin", half, a) for half in (LEFT, RIGHT)])
            for a in (self.rows, self.moving)
        )
        return _IntervalPolynomials(
            np.concatenate([self.begin, middle]), np.concatenate([middle, self.end]), rows, moving
        )

    def bounds(self, constant_values: Array, places: Index, n: int) -> tuple[Array, Array]:
        """Return bounds of (t, x, u, dx, du, c), (N, ...); entries of (t, x, u) outside of `places` are constant.

        n : how many there are of x and u
        """
        slopes = self._slopes
        bounds = [(self.moving.min(axis=1), slopes.min(axis=1)), (self.moving.max(axis=1), slopes.max(axis=1))]
        low, high = (
            self._assemble_arguments(constant_values, places, n, t, *bound)
            for t, bound in zip((self.begin, self.end), bounds, strict=True)
        )
        return low, high

    def ends(self, constant_values: Array, places: Index, n: int) -> Array:
        """Return the values of (t, x, u, dx, du, c) at all begins, then at all ends, (2 N, ...)."""
        slopes = self._slopes
        return np.concatenate(
            [
                self._assemble_arguments(constant_values, places, n, t, self.moving[:, i], slopes[:, i])
                for t, i in ((self.begin, 0), (self.end, -1))
            ]
        )

    @property
    def _slopes(self) -> Array:
        return 4.0 * np.diff(self.moving, axis=1) / (self.end - self.begin)[:, None, None]

    def _assemble_arguments(
        self, constant_values: Array, places: Index, n: int, t: Array, values: Array, slopes: Array
    ) -> Array:
        out = np.repeat(constant_values[None], t.size, axis=0)
        out[:, 0], out[:, places], out[:, n + places] = t, values, slopes
        return out
