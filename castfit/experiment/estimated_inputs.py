"""Inputs that are not known and are estimated: values at knots, an interpolation, and how smooth it should be.

    g(t) = sum_k B_k(t) theta_k           u = g, or u = exp(g) on a logarithmic scale

theta_k is the value, or its logarithm, at knot k, so that g passes through all of them.  B_k depends on the kind alone:
steps, hats, or the cubic spline of `Input.cubic_spline`.  How rough g is, is measured on time s from 0 to 1 between the
first and the last knot, so that no unit of time enters:

    roughness = integral of (d^m g / ds^m)^2 ds = |R theta|^2          m = 1 or 2

exactly for a cubic spline with m = 2, else with divided differences in place of the derivative.  The penalty added
to the cost of the data is  1/2 smoothness |R theta|^2,  the density of a random walk (m = 1) or of an integrated
one (m = 2), as of the smoothing spline (Wahba 1978, J. R. Stat. Soc. B 40, 364).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import numpy as np
import scipy

from castfit._support.arguments import is_count, is_one_of, option_mistakes, read_real, read_reals, shorten_repr
from castfit._support.arrays import Array
from castfit._support.bounds import bound_mistakes
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes, suggest

KINDS = {"piecewise_constant": 1, "linear": 2, "cubic_spline": 4}  # with the fewest knots
AUTO = "auto"
_ROUGHNESS_RANK_RTOL = 1e-9  # smaller singular values of the roughness, relative to the largest, count as zero


@add_brief_repr
@dataclass(frozen=True, eq=False)
class EstimatedInput:
    """An input signal that is estimated; create it with ``Input.estimated``, which describes its fields.

    knots, guess (n,).  Inputs of one name are one function; "" stands for the name that the model gives it.
    """

    kind: str
    knots: Array
    guess: Array
    lower: float
    upper: float
    scale: str
    smoothness: float | str
    order: int
    name: str
    per_experiment: bool

    def __post_init__(self) -> None:
        mistakes: list[str] = []
        if not is_one_of(self.kind, *KINDS):
            mistakes.append(f"kind is {shorten_repr(self.kind)}: {suggest(str(self.kind), KINDS)}")
        t = read_reals(self.knots)
        if t is None or t.ndim != 1 or not np.isfinite(t).all():
            mistakes.append(
                f"knots is {shorten_repr(self.knots)}; give the times between which the input is interpolated"
            )
            t = None
        min_knots = KINDS.get(str(self.kind), 1)
        if t is not None and t.size < min_knots:
            mistakes.append(f"{t.size} knots given; this kind needs at least {min_knots}")
        if t is not None and (np.diff(t) <= 0).any():
            mistakes.append(f"knots must increase strictly; look at t = {t[1:][np.diff(t) <= 0][0]:g}")
        y = self._read_guess(t, mistakes)
        weight = read_real(self.smoothness)
        if not is_one_of(self.smoothness, AUTO) and (weight is None or not 0.0 <= weight < np.inf):
            remedy = "give 'auto', None or 0 for none, or a positive weight"
            mistakes.append(f"smoothness is {shorten_repr(self.smoothness)}; {remedy}")
        if not is_count(self.order, 1, 2):
            mistakes.append(f"order is {shorten_repr(self.order)}; give 1 (little change) or 2 (little curvature)")
        elif weight == 0.0 and self.order == 1:
            mistakes.append("order is that of smoothness, and there is none; leave it out, or give smoothness=")
        is_flag = is_one_of(self.per_experiment, True, False, np.True_, np.False_)
        mistakes += option_mistakes(
            ("name", self.name, isinstance(cast("Any", self.name), str), "give text"),
            ("per_experiment", self.per_experiment, is_flag, "give True or False"),
        )
        raise_if_mistakes("Input.estimated", mistakes)
        assert t is not None
        assert y is not None
        t.flags.writeable = y.flags.writeable = False
        for field, value in (
            *(("knots", t), ("guess", y), ("lower", read_real(self.lower)), ("upper", read_real(self.upper))),
            ("smoothness", AUTO if weight is None else weight),
        ):
            object.__setattr__(self, field, value)

    def _read_guess(self, knots: Array | None, mistakes: list[str]) -> Array | None:
        guess: Any = self.guess
        y = read_reals(guess)
        if guess is None:
            mistakes.append("guess is missing; say where the search begins, a number or one for each knot")
            return None
        if y is None or y.ndim > 1 or not np.isfinite(y).all():
            mistakes.append(f"guess is {shorten_repr(guess)}; give a finite number, or one for each knot")
            return None
        if y.ndim == 1 and knots is not None and y.size != knots.size:
            mistakes.append(f"guess has {y.size} numbers for {knots.size} knots; give one, or one for each knot")
            return None
        values = np.unique(y).tolist()
        faults = [m for v in values for m in bound_mistakes("the input", v, self.lower, self.upper, self.scale)]
        mistakes += list(dict.fromkeys(faults))
        return np.array(np.broadcast_to(y, (1 if knots is None else knots.size,)))

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last time at which the input is defined."""
        end_time = np.inf if self.kind == "piecewise_constant" else float(self.knots[-1])
        return float(self.knots[0]), end_time

    @property
    def log(self) -> bool:
        """Whether the logarithm is interpolated."""
        return self.scale == "log"

    @property
    def identity(self) -> tuple[Any, ...]:
        """Key of the settings; equal for all uses of one function."""
        same = (self.kind, self.lower, self.upper, self.scale, self.smoothness, self.order, self.per_experiment)
        return (*same, *self.knots.tolist(), *([] if self.per_experiment else self.guess.tolist()))

    def label(self, input_name: str) -> str:
        """Return the name of the function, of an input that the model calls so."""
        return self.name or input_name

    def names(self, input_name: str) -> tuple[str, ...]:
        """Return the names of its values, such as ``u(3)``, (n,)."""
        for digits in (6, 12, 17):
            time_texts = [f"{t:.{digits}g}" for t in self.knots.tolist()]
            if len(set(time_texts)) == len(time_texts):
                break
        return tuple(f"{self.label(input_name)}({t})" for t in time_texts)

    def interpolation(self, times: Any) -> Array:
        """Return B (m, n): what the values at the knots contribute to g at times (m,) within the span."""
        t, identity = np.atleast_1d(np.asarray(times, dtype=float)), np.eye(self.knots.size)
        if self.kind == "piecewise_constant":
            return identity[np.maximum(np.searchsorted(self.knots, t, side="right") - 1, 0)]
        if self.kind == "cubic_spline":
            return np.asarray(self._spline(t), dtype=float)
        return np.array([np.interp(t, self.knots, row) for row in identity]).T.reshape(t.size, identity.shape[0])

    @cached_property
    def slopes(self) -> Array:
        """Derivatives of g' at the knots by the values at the knots, (n, n); for a spline only."""
        return np.asarray(self._spline(self.knots, 1), dtype=float)

    @cached_property
    def _spline(self) -> scipy.interpolate.CubicSpline:
        return scipy.interpolate.CubicSpline(self.knots, np.eye(self.knots.size))

    @cached_property
    def roughness(self) -> Array:
        """R (m, n), so that |R theta|^2 is the roughness; m is the number of its directions."""
        n, length = self.knots.size, float(self.knots[-1] - self.knots[0])
        if n <= self.order:
            return np.empty((0, n))
        s = (self.knots - self.knots[0]) / length
        h = np.diff(s)
        if self.order == 1:
            return np.diff(np.eye(n), axis=0) / np.sqrt(h)[:, None]
        if self.kind != "cubic_spline":
            between = 0.5 * (h[1:] + h[:-1])
            return np.diff(np.diff(np.eye(n), axis=0) / h[:, None], axis=0) / np.sqrt(between)[:, None]
        bend = np.asarray(scipy.interpolate.CubicSpline(s, np.eye(n))(s, 2), dtype=float)  # linear between knots
        root = np.concatenate(  # of h/3 (a^2 + a b + b^2) between two knots: Simpson's rule is exact
            [np.sqrt(h / 6)[:, None] * bend[:-1], np.sqrt(h / 6)[:, None] * bend[1:],
             np.sqrt(h / 6)[:, None] * (bend[:-1] + bend[1:])]
        )  # fmt: skip
        _, size, rows = np.linalg.svd(root, full_matrices=False)
        is_significant = size > _ROUGHNESS_RANK_RTOL * size[0]
        return size[is_significant, None] * rows[is_significant]
