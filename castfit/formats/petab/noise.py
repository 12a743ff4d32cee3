"""Laplace's errors of a logarithm, which PEtab has and castfit's own noise models have not.

With  r = (log mu - log m) / s  the density of the measured value itself is  exp(-|r|) / (2 s m),  of decades with a
factor log 10 in each logarithm; rows are the same as in `Laplace`, with d log mu in the place of d mu.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.reprs import add_brief_repr
from castfit.densities.noise.density import Density, Noise, floor_spread, lower_triangular, pairs, secant_curvature

_KINK_HALF_WIDTH = 1e-3  # half width of the parabola that replaces the kink of abs(r) at 0, as in Laplace


@add_brief_repr
@dataclass(frozen=True, eq=False)
class LogLaplace(Noise):
    """Double exponential errors of the logarithm; the density is that of the measured value itself.

    sigma : scale of the logarithm's errors, without unit; nothing means unknown
    base {"e", 10} : which logarithm
    """

    in_unit_of_output: ClassVar[bool] = False
    is_heavy_tailed: ClassVar[bool] = True
    base: Any = field(default="e", kw_only=True)

    @property
    def _unit(self) -> float:
        return float(np.log(10.0)) if self.base == 10 else 1.0

    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return ``|r| + log 2 s + log m``."""
        r = (ca.log(mu) - ca.log(m)) / (self._unit * s)
        size = ca.fabs(r)
        value = ca.if_else(size > _KINK_HALF_WIDTH, size, 0.5 * r**2 / _KINK_HALF_WIDTH + 0.5 * _KINK_HALF_WIDTH)
        weight = 1 / ca.fmax(size, _KINK_HALF_WIDTH)
        c = secant_curvature(weight * r**2 - 1, size, 1.0, 1.0)
        factor = ca.diag(ca.vertcat(ca.sqrt(weight) / (self._unit * mu), ca.sqrt(c))) / s
        cost = value + ca.log(2 * s) + ca.log(m * self._unit)
        information = ca.vertcat(ca.sqrt(1 / weight), ca.sqrt(1 / c))
        triangular = lower_triangular(ca.vertcat(mu, s), m, cost, r / np.sqrt(2.0), factor, information)
        return Density(
            triangular.eta,
            m,
            triangular.cost,
            triangular.residual,
            triangular.factor,
            triangular.rows,
            triangular.information,
            factor @ factor.T,
        )

    def error(self, mu: Array, s: Array, m: Array) -> Array:
        """Return the errors r, on the axis of the logarithm."""
        return (np.log(mu) - np.log(m)) / (self._unit * s)

    def value_at(self, mu: Array, s: Array, r: Array) -> Array:
        """Return the values whose errors are r."""
        return mu * np.exp(-self._unit * s * r)

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return the standard deviations of values whose median is mu; NaN where the tail is too heavy for one."""
        b = self._unit * np.asarray(s, dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = np.where(b < 0.5, 1 / (1 - 4 * b**2) - 1 / (1 - b**2) ** 2, np.nan)
        return np.abs(mu) * np.sqrt(variance)

    @property
    def additive(self) -> bool:
        """Whether a value is its prediction plus an error, on the axis of the logarithm."""
        return True

    def starting_spread(self, mu: Array, m: Array) -> float:
        """Return the mean absolute deviation of the logarithm."""
        prediction, value = pairs(mu, m)
        with np.errstate(all="ignore"):
            size = np.abs(np.log(prediction) - np.log(value)) / self._unit
        return floor_spread(float(np.mean(size)) if size.size else np.nan, np.log(value), 1.0)

    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Draw measured values."""
        return np.asarray(mu) * np.exp(self._unit * rng.laplace(0.0, s, np.shape(mu)))

    def value_mistakes(self, values: Array) -> list[str]:
        """Refuse values that have no logarithm."""
        bad = values[values <= 0]
        return [f"it contains {bad.flat[0]:g}; errors of a logarithm need positive values"] if bad.size else []
