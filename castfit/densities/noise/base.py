"""What every noise model answers.

Notation, in all noise models
-----------------------------
m       the measured value
mu      its prediction
s       the spread: sigma, scale or dispersion
r       (mu - m) / s, of LogNormal with logarithms of both
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from castfit._support.reprs import brief

if TYPE_CHECKING:
    import casadi as ca

    from castfit._support.arrays import Array
    from castfit.densities.noise.density import Density


_RESOLUTION = 1e-10  # a starting spread is not smaller than this part of the data
_ACCURACY = 1e-6  # an estimated one not than this, to which models are integrated


@brief
@dataclass(frozen=True, eq=False)
class Noise(ABC):
    """How measured values scatter about their predictions; given per output.

    Parameters
    ----------
    sigma : float, array, `relative`, `unknown` or casadi.SX, optional
        The spread, in the unit that the class states; nothing means unknown.
    """

    sigma: Any = None

    has_spread: ClassVar[bool] = True
    """Whether the density has a spread, so that `sigma` means something."""
    heavy: ClassVar[bool] = False
    """Whether values far away are to be expected, so that the sum of squared residuals says little."""
    in_unit_of_output: ClassVar[bool] = True
    """Whether the spread has the unit of the output."""

    @abstractmethod
    def density(self, mu: ca.SX, s: ca.SX, m: ca.SX) -> Density:
        """Return cost, curvature and normalised residual as graphs of three scalar symbols.

        Parameters
        ----------
        mu, s, m : casadi.SX
            The prediction, the spread, and the measured value.
        """

    @abstractmethod
    def starting_spread(self, mu: Array, m: Array) -> float:
        """Estimate an unknown spread, positive, from predictions (n,) and measured values (n,), by moments."""

    def least_spread(self, m: Array) -> float:
        """Return the smallest spread, positive, that is estimated from measured values of any shape.

        Data that the model meets exactly want none, and their likelihood would have no bound; no model is integrated so
        accurately that spreads much smaller than this could be told from none.
        """
        known = m[np.isfinite(m)]
        size = float(np.sqrt(np.mean(known**2))) if known.size else 0.0
        return _ACCURACY * ((size or 1.0) if self.in_unit_of_output else 1.0)

    @abstractmethod
    def sample(self, rng: np.random.Generator, mu: Array, s: Array | float) -> Array:
        """Draw measured values of predictions mu and spreads s, of the shape of both together."""

    @property
    def additive(self) -> bool:
        """Whether a value is its prediction plus an error, on some axis, so that residuals can stand for errors."""
        return False

    def error(self, mu: Array, s: Array, m: Array) -> Array:
        """Return the errors r of additive noise, prediction minus value in spreads, on the axis of the errors."""
        return (mu - m) / s

    def value_at(self, mu: Array, s: Array, r: Array) -> Array:
        """Return the values of additive noise whose errors are r; undoes `error`."""
        return mu - s * r

    def deviation(self, mu: Array, s: Array) -> Array:
        """Return the standard deviations of values about predictions mu, for spreads s, in the unit of the output (n,).

        NaN where there is none or it is not known; by default the spread itself.
        """
        return np.broadcast_to(s, np.shape(mu)).astype(float)

    @property
    def symbols(self) -> tuple[ca.SX, ...]:
        """Symbols in the density besides prediction, spread and datum."""
        return ()

    def scores(self, residual: Array, mu: Array, s: Array, m: Array) -> Array:
        """Return residuals for tests, (n,) as all arguments: those of counts as probable as standard normal ones.

        By default the normalised residuals themselves; NaN where there is none.
        """
        return residual

    @property
    def normal(self) -> bool:
        """Whether the residuals for tests have a normal distribution if the model is right."""
        return False

    @property
    def profiled(self) -> bool:
        """Whether an unknown spread is the root mean square of the rows, so that it is eliminated."""
        return False

    @property
    def plain(self) -> bool:
        """Whether the first row is the residual, so that the cost of a known spread is half its square, and more."""
        return False

    def option_mistakes(self) -> list[str]:
        """Say which options are out of range."""
        return []

    def spread_mistakes(self) -> list[str]:
        """Say why the spread cannot be unknown, if it cannot."""
        return []

    def value_mistakes(self, values: Array) -> list[str]:
        """Say which measured values, of any shape, cannot come from this model; NaN is not measured."""
        return []


def positive(spread: float, m: Array, otherwise: float | None = None) -> float:
    """Return a spread, or what the data resolve where it is smaller; their own scatter where there is none.

    spread: may be NaN.
    m (n,): measured values, in the unit of the spread.
    otherwise: instead of the scatter of the data, for a spread of another unit.
    """
    known = m[np.isfinite(m)]
    size = float(np.sqrt(np.mean(known**2))) if known.size else 0.0
    if not np.isfinite(spread):
        spread = (float(np.std(known)) if known.size else 0.0) if otherwise is None else otherwise
    least = _RESOLUTION * (size if otherwise is None else 1.0)
    return max(spread, least) or 1.0


def pairs(mu: Array, m: Array) -> tuple[Array, Array]:
    """Return predictions and values where both are finite."""
    use = np.isfinite(mu) & np.isfinite(m)
    return np.asarray(mu, dtype=float)[use], np.asarray(m, dtype=float)[use]
