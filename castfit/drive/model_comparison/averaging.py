"""Model averaging: estimates and predictions of several models, weighted by model.

Notation: w weight of a model, x its value, s its standard error

    mean  sum w x,   standard error  sum w sqrt(s^2 + (x - mean)^2)        [Burnham and Anderson 2002, equation 4.9]
    intervals and bands  quantiles of the mixture  P(y) = sum w P_model(y)          [Turek and Fletcher 2012]

An average of limits would not be a limit of the mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from castfit._support.arrays import Array
from castfit.result.covariance import quantile

_QUANTILE_BISECTIONS = 80  # halvings of an interval that contains a quantile


@dataclass(frozen=True)
class WeightedValues:
    """Values of models (k,) or (k, n) and their standard errors, weights (k,), degrees of freedom (k,) of the noise."""

    values: Array
    errors: Array
    weights: Array
    dofs: Array

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[Array | float, Array | float, float, float]]) -> WeightedValues:
        """Collect value, error, weight and degrees of freedom of each model; weights are normalised to sum to 1."""
        values, errors, weights, dofs = zip(*rows, strict=True)
        w = np.array(weights, dtype=float)
        return cls(np.array(values, float), np.array(errors, float), w / w.sum(), np.array(dofs, float))

    @property
    def mean(self) -> Array:
        """Weighted mean of the values."""
        return self._summed(self.values)

    @property
    def error(self) -> Array:
        """Averaged standard error, including differences between models."""
        return self._summed(np.hypot(self.errors, self.values - self.mean))

    def _summed(self, component_values: Array) -> Array:
        return np.asarray(np.tensordot(self.weights, component_values, axes=1), dtype=float)

    def quantiles(self, p: float) -> Array:
        """Return the quantile p (n,) of the mixture, by bisection."""
        finite = np.isfinite(self.errors)
        unbounded_weight = self._summed((~finite).astype(float))
        size: Array = np.where(finite, self.errors, 0.0).max(axis=0)
        tails = np.array([quantile(1.0 - 2e-9, dof) for dof in self.dofs])
        low: Array = (self.values.T - tails * size[:, None]).min(axis=1) - size
        high: Array = (self.values.T + tails * size[:, None]).max(axis=1) + size
        if np.any(unbounded_weight):
            low, high = low - 1.0, high + 1.0
        for _ in range(_QUANTILE_BISECTIONS):
            middle: Array = 0.5 * (low + high)
            below = self.distribution(middle) < p
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        quantiles = 0.5 * (low + high)
        quantiles = np.where(unbounded_weight / 2 >= p, -np.inf, quantiles)
        return np.where(1.0 - unbounded_weight / 2 <= p, np.inf, quantiles)

    def distribution(self, y: Array) -> Array:
        """Return P(y) of the mixture; a model that does not determine the value contributes 1/2."""
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled = np.where(np.isinf(self.errors), 0.0, (y - self.values) / self.errors)
        scaled = np.where(np.isnan(scaled), 0.0, scaled)
        component_distributions: list[Any] = [scipy.special.ndtr(u) if np.isinf(dof) else scipy.special.stdtr(dof, u)
                           for u, dof in zip(scaled, self.dofs, strict=True)]  # fmt: skip
        return self._summed(np.array(component_distributions, dtype=float))
