"""Inputs u(t): piecewise cubics through given points, each kind chosen by name.

Every kind is stored as cubics between breakpoints, so that transcriptions can put their boundaries on the
breakpoints and integrators never step across a kink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.interpolate import CubicSpline, PchipInterpolator, PPoly

from castfit.status import check

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Input:
    """An input signal u(t); create it with one of the named constructors.

    Attributes
    ----------
    kind : str
        ``constant``, ``piecewise_constant``, ``linear``, ``pchip`` or ``cubic_spline``.
    times, values : (n,) arrays
        The given points, in the experiment's time and the input's unit.
    """

    kind: str
    times: NDArray[np.float64]
    values: NDArray[np.float64]

    @classmethod
    def constant(cls, value: float) -> Input:
        """Hold one value at all times."""
        return cls("constant", np.array([-np.inf]), np.array([float(value)]))

    @classmethod
    def piecewise_constant(cls, times: ArrayLike, values: ArrayLike) -> Input:
        """Hold ``values[i]`` from ``times[i]`` up to ``times[i + 1]``; the last value holds on for ever."""
        return cls("piecewise_constant", *_points("Input.piecewise_constant", times, values, at_least=1))

    @classmethod
    def linear(cls, times: ArrayLike, values: ArrayLike) -> Input:
        """Interpolate linearly."""
        return cls("linear", *_points("Input.linear", times, values, at_least=2))

    @classmethod
    def pchip(cls, times: ArrayLike, values: ArrayLike) -> Input:
        """Interpolate by the shape-preserving cubics of Fritsch and Carlson (scipy's ``PchipInterpolator``)."""
        return cls("pchip", *_points("Input.pchip", times, values, at_least=2))

    @classmethod
    def cubic_spline(cls, times: ArrayLike, values: ArrayLike) -> Input:
        """Interpolate by a twice differentiable cubic spline, not-a-knot ends (scipy's ``CubicSpline``)."""
        return cls("cubic_spline", *_points("Input.cubic_spline", times, values, at_least=4))

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last time at which the input is defined."""
        last = np.inf if self.kind in ("constant", "piecewise_constant") else float(self.times[-1])
        return float(self.times[0]), last

    @property
    def breakpoints(self) -> NDArray[np.float64]:
        """Times at which the signal or one of its derivatives may jump."""
        return self.times[np.isfinite(self.times)]

    def _polynomial(self) -> PPoly:
        t, y = self.times, self.values
        if self.kind == "linear":
            slopes = np.diff(y) / np.diff(t)
            return PPoly(np.vstack([slopes, y[:-1]]), t)
        return PchipInterpolator(t, y) if self.kind == "pchip" else CubicSpline(t, y)

    def __call__(self, t: ArrayLike) -> NDArray[np.float64]:
        """Evaluate at times t; piecewise constants are continuous from the right."""
        at = np.asarray(t, dtype=float)
        if self.kind in ("constant", "piecewise_constant"):
            return self.values[np.maximum(np.searchsorted(self.times, at, side="right") - 1, 0)]
        return np.asarray(self._polynomial()(at), dtype=float)

    def cubics(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the signal between edges as local cubics, u(t) = sum_c out[j, c] (t - edges[j])**c.

        Parameters
        ----------
        edges : (n + 1,) array
            Increasing times; no breakpoint lies strictly between two of them.

        Returns
        -------
        (n, 4) array
        """
        left, right = edges[:-1], edges[1:]
        out = np.zeros((left.size, 4))
        middle = 0.5 * (left + right)
        if self.kind in ("constant", "piecewise_constant"):
            out[:, 0] = self(middle)
            return out
        # Expanding about the middle's own piece keeps an edge that is off by a rounding error on the right piece.
        polynomial = self._polynomial()
        piece = np.clip(np.searchsorted(polynomial.x, middle, side="right") - 1, 0, polynomial.x.size - 2)
        coefficients = polynomial.c[::-1, piece].T  # (n, degree + 1), ascending, about the piece's own left end
        shift = left - polynomial.x[piece]
        for c in range(coefficients.shape[1] - 1, -1, -1):  # Horner's scheme of the shifted polynomial
            out[:, 1:] = out[:, 1:] * shift[:, None] + out[:, :-1]
            out[:, 0] = out[:, 0] * shift + coefficients[:, c]
        return out


def _points(where: str, times: ArrayLike, values: ArrayLike, *, at_least: int) -> tuple[Any, Any]:
    t = np.atleast_1d(np.array(times, dtype=float))
    y = np.atleast_1d(np.array(values, dtype=float))
    mistakes: list[str] = []
    if t.ndim != 1 or t.shape != y.shape:
        mistakes.append(f"times has shape {t.shape} and values {y.shape}; give two sequences of the same length")
    if t.size < at_least:
        mistakes.append(f"{t.size} points given; this kind needs at least {at_least}")
    if not (np.isfinite(t).all() and np.isfinite(y).all()):
        mistakes.append("times or values contain NaN or infinity; leave such points out")
    elif (np.diff(t) <= 0).any():
        mistakes.append(f"times must increase strictly; look at t = {t[1:][np.diff(t) <= 0][0]:g}")
    check(where, mistakes)
    t.flags.writeable = False
    y.flags.writeable = False
    return t, y
