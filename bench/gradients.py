"""The derivatives of PEtab's objective, from sensitivities and from differences, to judge the ones by the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit._support.blas_threads import one_blas_thread
from castfit.formats.petab.likelihood import Objective
from castfit.simulate.simulate import SimulationError
from castfit.solve.assembly import cost_gradient

if TYPE_CHECKING:
    from castfit._support.arrays import Array

_STEPS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)  # of differences, in units of theta where that is not a logarithm near 0


class SmoothObjective(Objective):
    """An objective with its derivatives."""

    def value(self, theta: Array) -> float:
        """Return the negative log likelihood; infinite where the model cannot be integrated."""
        try:
            return self.evaluate(theta).negative_log_likelihood
        except SimulationError:
            return float("inf")

    @one_blas_thread
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def gradient(self, theta: Array) -> Array:
        """Return its derivatives by theta, (n_theta,), from sensitivities; NaN where they cannot be integrated."""
        linear = self.staged.linearize(self.packed(theta))
        if not linear.ok:
            return np.full(theta.size, np.nan)
        layout = self.staged.layout
        return layout.theta(cost_gradient(layout, linear, np.ones(layout.n_groups + 1)))

    def differences(self, theta: Array) -> tuple[Array, Array]:
        """Return the same by central differences of fourth order of the value, and their uncertainty, (n_theta,) each.

        Of several steps the one is taken from which the next differs least: longer ones meet curvature, shorter ones
        rounding.  By how much it differs is the uncertainty.
        """
        estimates = np.array([self._difference(theta, j) for j in range(theta.size)]).reshape(-1, 2)
        return estimates[:, 0], estimates[:, 1]

    def _difference(self, theta: Array, j: int) -> tuple[float, float]:
        estimates: list[float] = []
        for step in _STEPS:
            size = step * max(1.0, abs(float(theta[j])))
            unit = np.where(np.arange(theta.size) == j, size, 0.0)
            near_difference, far_difference = (
                self.value(theta + k * unit) - self.value(theta - k * unit) for k in (1, 2)
            )
            estimates.append((8 * near_difference - far_difference) / (12 * size))
        with np.errstate(invalid="ignore"):
            change = np.abs(np.diff(estimates))
        change = np.where(np.isfinite(change), change, np.inf)
        best = int(np.argmin(change))
        return estimates[1 + best], float(change[best])
