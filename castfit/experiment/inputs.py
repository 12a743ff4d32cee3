"""Inputs u(t): piecewise cubics through given points, each kind chosen by name.

Every kind is stored as cubics between breakpoints, so that transcriptions can put their boundaries on the
breakpoints and integrators never step across a kink.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import Any, cast

import numpy as np
import scipy
from numpy.typing import ArrayLike

from castfit._support.arguments import is_one_of, number_remedy, read_real, read_reals, shorten_repr
from castfit._support.arrays import Array
from castfit._support.bounds import both_bounds
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes, suggest
from castfit.experiment.estimated_inputs import EstimatedInput
from castfit.experiment.free_inputs import FreeInput

_AT_LEAST = {"constant": 1, "piecewise_constant": 1, "linear": 2, "pchip": 2, "cubic_spline": 4}  # points


@dataclass(frozen=True, eq=False)
class PiecewisePolynomial:
    """Piecewise polynomials as in scipy.interpolate, whose import takes longer than a small fit.

    x : (n,)
        Breakpoints; the first and the last piece extend beyond them.
    c : (degree + 1, n - 1, ...)
        Coefficients about the left ends of the pieces, the highest power first.
    """

    x: Array
    c: Array

    @classmethod
    def pchip(cls, x: Array, y: Array) -> PiecewisePolynomial:
        """Interpolate y (n, ...) by cubics that keep its shape (Fritsch and Butland 1984, eq. 5)."""
        h = np.diff(x).reshape(-1, *[1] * (y.ndim - 1))
        m = np.diff(y, axis=0) / h
        d = np.zeros_like(y)
        if x.size == 2:
            d[:] = m
        else:
            w1, w2 = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
            monotone = (np.sign(m[1:]) == np.sign(m[:-1])) & (m[1:] != 0) & (m[:-1] != 0)
            with np.errstate(all="ignore"):  # slopes of zero, or almost
                mean = 1.0 / ((w1 / m[:-1] + w2 / m[1:]) / (w1 + w2))
            d[1:-1] = np.where(monotone, mean, 0.0)
            d[0], d[-1] = _end_slope(h[0], h[1], m[0], m[1]), _end_slope(h[-1], h[-2], m[-1], m[-2])
        bend = (d[:-1] + d[1:] - 2 * m) / h
        return cls(x, np.stack([bend / h, (m - d[:-1]) / h - bend, d[:-1], y[:-1]]))

    def __call__(self, t: Array) -> Array:
        """Evaluate at times t, of any shape."""
        piece = np.clip(np.searchsorted(self.x, t, side="right") - 1, 0, self.x.size - 2)
        s = np.reshape(t - self.x[piece], (*np.shape(t), *[1] * (self.c.ndim - 2)))
        total, power = self.c[-1, piece], 1.0
        for coefficient in self.c[-2::-1]:
            power = power * s
            total = total + coefficient[piece] * power
        return total


def _end_slope(h0: Array, h1: Array, m0: Array, m1: Array) -> Array:
    """Return the slope at an end from a parabola through three points, bounded where it would not keep the shape."""
    slope = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1)
    bounded = np.where((np.sign(m0) != np.sign(m1)) & (np.abs(slope) > 3 * np.abs(m0)), 3 * m0, slope)
    return np.where(np.sign(slope) == np.sign(m0), bounded, 0.0)


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Input:
    """An input signal u(t); create it with one of the named constructors.

    Attributes
    ----------
    kind : str
        ``constant``, ``piecewise_constant``, ``linear``, ``pchip`` or ``cubic_spline``.
    times, values : (n,) arrays
        The given points, in the experiment's time and the input's unit.
    measured : {"before", "after"}
        Whether a value measured at the very time of a jump was measured before or after it.

    Raises
    ------
    InputError
        Listing every mistake: unequal lengths, too few points, times that do not increase, what is no finite number.

    Examples
    --------
    >>> import castfit as cf
    >>> pump = cf.Input.piecewise_constant([0, 12, 24], [0.1, 0.35, 0.2])
    >>> pump([0, 11.9, 12, 30])
    array([0.1 , 0.1 , 0.35, 0.2 ])
    >>> float(cf.Input.linear([0, 10], [1.0, 3.0])(2.5))
    1.5
    """

    kind: str
    times: Array
    values: Array
    measured: str = field(default="before", kw_only=True)

    def __post_init__(self) -> None:
        mistakes: list[str] = []
        if not is_one_of(self.kind, *_AT_LEAST):
            mistakes.append(f"kind is {shorten_repr(self.kind)}: {suggest(str(self.kind), _AT_LEAST)}")
        t, y = read_reals(self.times), read_reals(self.values)
        if t is None or not (np.isfinite(t).all() or is_one_of(self.kind, "constant")):
            mistakes.append(f"times is {shorten_repr(self.times)}; {number_remedy(self.times, 'give finite numbers')}")
        if y is None or not np.isfinite(y).all():
            mistakes.append(f"values is {shorten_repr(self.values)}; give finite numbers, and omit missing values")
        if not is_one_of(self.measured, "before", "after"):
            mistakes.append(f"measured is {shorten_repr(self.measured)}; choose 'before' or 'after'")
        elif self.measured == "after" and self.kind != "piecewise_constant":
            mistakes.append("measured is for jumps, which only piecewise constant inputs have; leave it out")
        raise_if_mistakes(
            "Input" if mistakes and not is_one_of(self.kind, *_AT_LEAST) else f"Input.{self.kind}", mistakes
        )
        assert t is not None
        assert y is not None
        t, y = np.atleast_1d(t), np.atleast_1d(y)
        if t.ndim != 1 or t.shape != y.shape:
            mistakes.append(f"times has shape {t.shape} and values {y.shape}; give two sequences of equal length")
        elif t.size < _AT_LEAST[self.kind]:
            mistakes.append(f"{t.size} points given; this kind needs at least {_AT_LEAST[self.kind]}")
        elif (np.diff(t) <= 0).any():
            mistakes.append(f"times must increase strictly; look at t = {t[1:][np.diff(t) <= 0][0]:g}")
        raise_if_mistakes(f"Input.{self.kind}", mistakes)
        t.flags.writeable = y.flags.writeable = False
        object.__setattr__(self, "times", t)
        object.__setattr__(self, "values", y)

    @classmethod
    def constant(cls, value: float) -> Input:
        """Hold one value at all times."""
        number = read_real(value)
        if number is None or not np.isfinite(number):
            raise_if_mistakes("Input.constant", [f"the value is {shorten_repr(value)}; give a finite number"])
        return cls("constant", np.array([-np.inf]), np.array([number]))

    @classmethod
    def piecewise_constant(cls, times: ArrayLike, values: ArrayLike, *, measured: str = "before") -> Input:
        """Hold ``values[i]`` from ``times[i]`` up to ``times[i + 1]``; the last value holds for all later times.

        A value measured at a jump saw the input before it, or ``measured="after"`` it, as where a logger writes both
        in one row and the input holds from then on.
        """
        return cls("piecewise_constant", cast("Array", times), cast("Array", values), measured=measured)

    @classmethod
    def linear(cls, times: ArrayLike, values: ArrayLike) -> Input:
        """Interpolate linearly."""
        return cls("linear", cast("Array", times), cast("Array", values))

    @classmethod
    def pchip(cls, times: ArrayLike, values: ArrayLike) -> Input:
        """Interpolate by the shape-preserving cubics of Fritsch and Carlson (scipy's ``PchipInterpolator``)."""
        return cls("pchip", cast("Array", times), cast("Array", values))

    @classmethod
    def cubic_spline(cls, times: ArrayLike, values: ArrayLike) -> Input:
        """Interpolate by a twice differentiable cubic spline, not-a-knot ends (scipy's ``CubicSpline``)."""
        return cls("cubic_spline", cast("Array", times), cast("Array", values))

    @classmethod
    def estimated(
        cls,
        knots: ArrayLike,
        kind: str = "linear",
        *,
        guess: ArrayLike | None = None,
        scale: str = "linear",
        smoothness: float | str | None = "auto",
        order: int = 2,
        lower: float = -np.inf,
        upper: float = np.inf,
        bounds: tuple[float, float] | None = None,
        name: str = "",
        per_experiment: bool = False,
    ) -> EstimatedInput:
        """Declare an unknown input, which is estimated together with all other quantities, as values at knots.

        The values are quantities such as ``u(3)``, for input u at knot t = 3, with estimates, standard errors and
        priors like others; ``result.estimated_inputs()`` is the whole function with its band.

        Parameters
        ----------
        knots : (n,) array
            Times, increasing, from the start of the experiment to its end; between them the input is interpolated.
            Stages of a transcription end at them.  With smoothness there may be more knots than data tell apart.
        kind : {"piecewise_constant", "linear", "cubic_spline"}
            As the constructors of these names.  A value holds from its knot on where it is piecewise constant.
        guess : float or (n,) array
            Where the search begins, in the input's unit.
        scale : {"linear", "log"}
            With "log" the logarithm is interpolated, searched and smooth: the input is positive everywhere.
        smoothness : "auto", float or None
            Weight of the integral of the squared second derivative, in units of the knots' span; a larger one makes the
            input smoother, 0 or None leaves the values free of each other.  With "auto" `fit` chooses it by its
            marginal likelihood; the choice depends on no unit.
        order : {1, 2}
            Which derivative is kept small: with 1 a smooth input is constant, with 2 a straight line.
        lower, upper : float
            Bounds of the values.
        bounds : (lower, upper), optional
            The same in one argument.
        name : str, optional
            Inputs of the same name, in several experiments or of one model, are one function; by default the name
            that the model gives the input, so that experiments share it.
        per_experiment : bool
            Whether every experiment has a function of its own instead; these share the weight of their roughness.

        Raises
        ------
        InputError
            Listing every mistake: too few knots, knots that do not increase, an unknown kind, guesses outside bounds.

        Examples
        --------
        >>> import numpy as np
        >>> import castfit as cf
        >>> u = cf.Input.estimated(np.linspace(0, 60, 21), "cubic_spline", guess=1.0, scale="log")
        >>> u.names("u")[:3]
        ('u(0)', 'u(3)', 'u(6)')
        """
        low, high = both_bounds("Input.estimated", lower, upper, bounds)
        weight: Any = 0.0 if smoothness is None else smoothness
        untyped_knots: Any = knots
        return EstimatedInput(
            kind, untyped_knots, cast("Any", guess), low, high, scale, weight, order, name, per_experiment
        )

    @classmethod
    def free(
        cls,
        pieces: int,
        kind: str = "piecewise_constant",
        *,
        guess: Any = None,
        lower: float = -np.inf,
        upper: float = np.inf,
        bounds: tuple[float, float] | None = None,
    ) -> FreeInput:
        """Declare an input to be chosen: `control` finds the values that optimise an objective.

        Parameters
        ----------
        pieces : int
            Number of equal pieces of the horizon.
        kind : {"piecewise_constant", "linear"}
            One value for each piece, or one at each end of a piece with straight lines between them.
        guess : float, array or Input, optional
            Where the search begins, in the input's unit: one number, one for each value, or a function of time.  By
            default the middle between finite bounds, else what is nearest to 0 within them.
        lower, upper : float
            Bounds of the values.
        bounds : (lower, upper), optional
            The same in one argument.

        Raises
        ------
        InputError
            Listing every mistake: a number of pieces that is none, an unknown kind, guesses outside bounds.

        Examples
        --------
        >>> import castfit as cf
        >>> cf.Input.free(pieces=20, bounds=(-1, 1))
        FreeInput(pieces=20, kind='piecewise_constant', lower=-1, upper=1, guess=None)
        """
        low, high = both_bounds("Input.free", lower, upper, bounds)
        return FreeInput(pieces, kind, low, high, guess)

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last time at which the input is defined."""
        end_time = np.inf if self.kind in ("constant", "piecewise_constant") else float(self.times[-1])
        return float(self.times[0]), end_time

    @property
    def breakpoints(self) -> Array:
        """Times at which the signal or one of its derivatives may jump."""
        return self.times[np.isfinite(self.times)]

    @property
    def jumps(self) -> Array:
        """Times at which the signal jumps."""
        return self.times[1:][np.diff(self.values) != 0.0] if self.kind == "piecewise_constant" else np.empty(0)

    @cached_property
    def _polynomial(self) -> Any:
        t, y = self.times, self.values
        if self.kind == "linear":
            return PiecewisePolynomial(t, np.stack([np.diff(y) / np.diff(t), y[:-1]]))
        return PiecewisePolynomial.pchip(t, y) if self.kind == "pchip" else scipy.interpolate.CubicSpline(t, y)

    def __call__(self, t: ArrayLike) -> Array:
        """Evaluate at times t; piecewise constants are continuous from the right."""
        times = np.asarray(t, dtype=float)
        if self.kind in ("constant", "piecewise_constant"):
            return self.values[np.maximum(np.searchsorted(self.times, times, side="right") - 1, 0)]
        return np.asarray(self._polynomial(times), dtype=float)

    def cubics(self, edges: Array) -> Array:
        """Return the signal between edges as local cubics, u(t) = sum_c out[j, c] (t - edges[j])**c.

        Parameters
        ----------
        edges : (n + 1,) array
            Increasing times; no breakpoint lies strictly between two of them.

        Returns
        -------
        (n, 4) array
        """
        interval_starts, interval_ends = edges[:-1], edges[1:]
        cubic_table = np.zeros((interval_starts.size, 4))
        middle = 0.5 * (interval_starts + interval_ends)
        if self.kind in ("constant", "piecewise_constant"):
            cubic_table[:, 0] = self(middle)
            return cubic_table
        # Expanding about the middle's own piece keeps an edge that is off by a rounding error on the right piece.
        polynomial = self._polynomial
        piece = np.clip(np.searchsorted(polynomial.x, middle, side="right") - 1, 0, polynomial.x.size - 2)
        coefficients = polynomial.c[::-1, piece].T  # (n, degree + 1), ascending, about the piece's own left end
        shift = interval_starts - polynomial.x[piece]
        for c in range(coefficients.shape[1] - 1, -1, -1):  # Horner's scheme of the shifted polynomial
            cubic_table[:, 1:] = cubic_table[:, 1:] * shift[:, None] + cubic_table[:, :-1]
            cubic_table[:, 0] = cubic_table[:, 0] * shift + coefficients[:, c]
        return cubic_table


@dataclass(frozen=True, eq=False)
class Placeholder(Input):
    """Placeholder, zero at all times, for an estimated input whose values are quantities.

    input_name : name of the input in the model
    """

    spec: EstimatedInput
    input_name: str

    @classmethod
    def from_spec(cls, spec: EstimatedInput, name: str) -> Placeholder:
        """Stand for an input that the model calls so."""
        return cls("constant", np.array([-np.inf]), np.zeros(1), spec, name)

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last time at which the input is defined."""
        return self.spec.span
