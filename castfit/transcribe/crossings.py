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
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np

from castfit.integrate.dense_output import LEFT, POWERS, RIGHT, DenseOutput
from castfit.integrate.intervals import Enclosure, jumps
from castfit.problem.event_schedule import StateChange

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask

_DEPTH = 26  # halvings of a step, below which ends alone tell
_ULPS = 4  # that are not halved
_MOST = 20_000  # intervals that are looked at together


@dataclass(frozen=True)
class Suspects:
    """Intervals (n, 2), in order, in one of which something passes zero first, if it does before `end`."""

    intervals: Array
    end: float


class Differences:
    """The differences g(t, x, u, c) (m,) of all triggers.

    smooth : (m,) those that do not jump
    bent : rows of those whose derivatives something moves, and these alone as a function, if there are any
    """

    def __init__(self, together: StateChange) -> None:
        sizes = [together.graph.size1_in(i) for i in range(4)]
        t, x, u, c = arguments = [ca.SX.sym(n, size) for n, size in zip("txuc", sizes, strict=True)]
        dx, du = ca.SX.sym("dx", x.numel()), ca.SX.sym("du", u.numel())
        found: Any = together.first(*arguments)
        g, slopes = cast("ca.SX", found[0]), cast("ca.SX", found[1])[:, : 1 + x.numel() + u.numel()]
        entries, gradients = ca.vertsplit(g), ca.vertsplit(slopes)
        moved = ca.vertcat(t, x, u)
        self._n_x, self._n_u, self._support = x.numel(), u.numel(), together.support[:, : 1 + x.numel() + u.numel()]
        self.smooth = np.array([not jumps(entry) for entry in entries], dtype=np.bool_)
        straight = np.array([not ca.depends_on(of, moved) for of in gradients], dtype=np.bool_)
        self._linear: Mask = self.smooth & straight
        rows = np.flatnonzero(~straight)
        self.bent = rows, StateChange.of(arguments, g[rows.tolist()]) if rows.size else None
        self._enclosed: dict[int, tuple[Enclosure, Enclosure, Index]] = {}
        for k in np.flatnonzero(~self._linear).tolist():
            every = ca.vertcat(t, x, u, dx, du, c)
            rate = ca.mtimes(gradients[k], ca.vertcat(1, dx, du))
            by_value, by_rate = (np.array(ca.which_depends(of, every, 1)) for of in (entries[k], rate))
            at = np.flatnonzero(by_value | by_rate)
            own = ca.SX.sym("own", at.size)
            full = ca.SX(every)
            full[at.tolist()] = own
            g_k, rate_k = ca.substitute([entries[k], rate], [every], [full])
            self._enclosed[k] = Enclosure(own, g_k), Enclosure(own, rate_k), at

    def even(self, f: Array, slopes: Array) -> Array | None:
        """Return constant rates (m,) of differences, for states with rates f (n_x,), no inputs; None if rates vary.

        slopes (m, 1 + n_x + ...) : their derivatives, constant where anything moves
        """
        moves = np.concatenate([[True], f != 0.0, np.ones(self._n_u, dtype=np.bool_)])
        if (self._support[~self._linear] & moves).any():
            return None
        return np.where(self._linear, slopes[:, 0] + slopes[:, 1 : 1 + f.size] @ f, 0.0)

    def suspects(
        self, dense: DenseOutput, inputs: Array, c: Array, at: tuple[Array, Array], signs: Array, noise: Array
    ) -> Suspects:
        """Return the intervals in which a difference may change its sign (m,), up to the first certain change.

        inputs (K, n_u, 4) : between the times of the dense output, as local cubics
        at : g (m,) and its derivatives (m, 1 + n_x + n_u + ...) at the first time
        noise (m,) : what is zero but for errors
        """
        times, end = dense.times, float(dense.times[-1])
        widths = np.diff(times)
        moves = np.concatenate([[True], (dense.ends[:, [1, 3, 4]] != 0.0).any(axis=(0, 1)), np.ones(self._n_u, bool)])
        active = (self._support & moves).any(axis=1)
        linear, others = np.flatnonzero(active & self._linear), np.flatnonzero(active & ~self._linear)
        if not active.any():
            return Suspects(np.empty((0, 2)), end)
        g, slopes = at
        needed = moves[1:] & self._support[active, 1:].any(axis=0)
        states, signals = np.flatnonzero(needed[: self._n_x]), np.flatnonzero(needed[self._n_x :])
        u = np.einsum("ij,kuj->kiu", POWERS, inputs[:, signals] * widths[:, None, None] ** np.arange(4))
        moving = np.concatenate([dense.coefficients(states), u], axis=2)
        places = np.concatenate([1 + states, 1 + self._n_x + signals])
        by = slopes[linear][:, places]
        along = (times[:-1, None] - times[0]) + widths[:, None] * np.arange(5) / 4
        rows = g[linear] + (moving - moving[0, 0]) @ by.T + along[:, :, None] * slopes[linear, 0]
        part = _Cuts(times[:-1], times[1:], rows, moving if others.size else moving[:, :, :0])
        still = np.concatenate([[0.0], dense.x[0], np.zeros(2 * self._n_u + self._n_x), c])
        s, small = (a[np.concatenate([linear, others])] for a in (signs, noise))
        found: list[Array] = []
        for depth in range(_DEPTH + 1):
            bounds = self._bounds(part, others, places, still)
            seen = ((s * bounds[0] <= 0) | (s * bounds[1] <= 0)) & (np.maximum(-bounds[0], bounds[1]) > small)
            here = (part.begin < end) & seen.any(axis=1)
            if not here.any():
                break
            part, seen, (low, high, jump) = part.some(here), seen[here], (a[here] for a in bounds)
            g0, g1, rate0, rate1, one_way = self._courses(part, others, places, still, jump)
            seen &= ~(one_way & ((s * g1 > 0) | (np.maximum(np.abs(g0), np.abs(g1)) <= small)))
            passes = seen & (one_way | ((s * low < 0) & (s * high < 0)))
            end = min(end, float(part.end[passes.any(axis=1)].min(initial=np.inf)))
            here = (part.begin < end) & seen.any(axis=1)
            last = part.end - part.begin <= _ULPS * np.spacing(np.abs(part.end))
            last |= depth == _DEPTH
            seen &= ~last[:, None] | passes | (s * g1 <= 0) | ((s * rate0 < 0) & (s * rate1 > 0))
            here &= seen.any(axis=1)
            settled = here & (last | (passes | ~seen).all(axis=1))
            found.append(np.stack([part.begin[settled], part.end[settled]], axis=1))
            left = here & ~settled
            if not left.any():
                break
            part = part.some(left)
            if part.begin.size > _MOST:  # what is later is looked at later
                end = float(np.partition(part.begin, _MOST)[_MOST])
                part = part.some(part.begin < end)
            part = part.halved()
        every = np.concatenate([np.empty((0, 2)), *found])
        every = every[np.argsort(every[:, 0], kind="stable")]
        return Suspects(every[every[:, 0] < end], end)

    def _bounds(self, part: _Cuts, others: Index, places: Index, still: Array) -> tuple[Array, Array, Array]:
        """Return bounds of all differences, and where they may jump, (N, m) each."""
        low, high = part.rows.min(axis=1), part.rows.max(axis=1)
        jump = np.zeros(low.shape)
        if not others.size:
            return low, high, jump
        lows, highs, jumping = [low], [high], [jump]
        low, high = part.box(still, places, self._n_x + self._n_u)
        for k in others.tolist():
            value, _, used = self._enclosed[k]
            found = value(low[:, used], high[:, used])
            lows.append(found[0])
            highs.append(found[1])
            jumping.append(found[2][:, None].astype(float))
        return np.concatenate(lows, axis=1), np.concatenate(highs, axis=1), np.concatenate(jumping, axis=1)

    def _courses(
        self, part: _Cuts, others: Index, places: Index, still: Array, jump: Array
    ) -> tuple[Array, Array, Array, Array, Mask]:
        """Return differences and rates at both ends, and whether they surely rise or fall in between, (N, m) each."""
        steps = np.diff(part.rows, axis=1)
        one_way: Mask = np.logical_or((steps > 0).all(axis=1), (steps < 0).all(axis=1))
        ends = [part.rows[:, 0], part.rows[:, -1], steps[:, 0], steps[:, -1]]
        if not others.size:
            return ends[0], ends[1], ends[2], ends[3], one_way
        n = self._n_x + self._n_u
        (low, high), points = part.box(still, places, n), part.ends(still, places, n)
        for j, k in enumerate(others.tolist(), start=one_way.shape[1]):
            value, rate, used = self._enclosed[k]
            least, most, _ = rate(low[:, used], high[:, used])
            sure: Mask = np.logical_and(np.logical_or(least > 0, most < 0), jump[:, j : j + 1] == 0.0)
            one_way = np.append(one_way, sure, axis=1)
            at = [a for f in (value, rate) for a in np.split(f(points[:, used], points[:, used])[0], 2)]
            ends = [np.append(known, new, axis=1) for known, new in zip(ends, at, strict=True)]
        return ends[0], ends[1], ends[2], ends[3], one_way


@dataclass(frozen=True)
class _Cuts:
    """Intervals from begin to end (N,) with coefficients of linear differences and of what others need, (N, 5, n)."""

    begin: Array
    end: Array
    rows: Array
    moving: Array

    def some(self, which: Mask) -> _Cuts:
        """Return the selected intervals."""
        return self if which.all() else _Cuts(self.begin[which], self.end[which], self.rows[which], self.moving[which])

    def halved(self) -> _Cuts:
        """Return both halves of each."""
        middle = 0.5 * (self.begin + self.end)
        rows, moving = (
            np.concatenate([np.einsum("ij,kjn->kin", half, a) for half in (LEFT, RIGHT)])
            for a in (self.rows, self.moving)
        )
        return _Cuts(np.concatenate([self.begin, middle]), np.concatenate([middle, self.end]), rows, moving)

    def box(self, still: Array, places: Index, n: int) -> tuple[Array, Array]:
        """Return bounds of (t, x, u, dx, du, c), (N, ...); entries of (t, x, u) outside of `places` are constant.

        n : how many there are of x and u
        """
        slopes = self._slopes
        bounds = [(self.moving.min(axis=1), slopes.min(axis=1)), (self.moving.max(axis=1), slopes.max(axis=1))]
        low, high = (
            self._placed(still, places, n, t, *of) for t, of in zip((self.begin, self.end), bounds, strict=True)
        )
        return low, high

    def ends(self, still: Array, places: Index, n: int) -> Array:
        """Return the values of (t, x, u, dx, du, c) at all begins, then at all ends, (2 N, ...)."""
        slopes = self._slopes
        return np.concatenate(
            [
                self._placed(still, places, n, t, self.moving[:, i], slopes[:, i])
                for t, i in ((self.begin, 0), (self.end, -1))
            ]
        )

    @property
    def _slopes(self) -> Array:
        return 4.0 * np.diff(self.moving, axis=1) / (self.end - self.begin)[:, None, None]

    def _placed(self, still: Array, places: Index, n: int, t: Array, values: Array, slopes: Array) -> Array:
        out = np.repeat(still[None], t.size, axis=0)
        out[:, 0], out[:, places], out[:, n + places] = t, values, slopes
        return out
