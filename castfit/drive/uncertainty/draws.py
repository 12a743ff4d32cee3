"""Common base of the bootstrap and the sampler: draws of the estimates of a result."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from castfit._support.arrays import Array
from castfit._support.renamed import accept_old_names
from castfit._support.views import views
from castfit.drive.run.run_result import RunResult
from castfit.problem.parameter_map import natural_value
from castfit.result.result import Result
from castfit.simulate.predictions import Prediction
from castfit.simulate.simulate import Times

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class DrawsResult(RunResult):
    """Draws of the estimates of the fit `result`, with predictions and histograms."""

    result: Result

    @property
    def names(self) -> tuple[str, ...]:
        """The estimated quantities."""
        return self.result.names

    @property
    @abstractmethod
    def thetas(self) -> Array:
        """All draws, search scale, (n, n_theta)."""

    @property
    @abstractmethod
    def limits(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Intervals per quantity by the name of the method; the first method is the most reliable."""

    @cached_property
    def natural(self) -> Array:
        """All draws, natural scale, (n, n_theta)."""
        return natural_value(self.thetas, self.result.log)

    @property
    def values(self) -> dict[str, Array]:
        """Draws of each quantity, natural scale, (n,)."""
        return dict(zip(self.names, self.natural.T, strict=True))

    @accept_old_names(level="confidence_level")
    def predict(
        self, times: Times = None, *, noise: bool = False, confidence_level: float | None = None, **options: Any
    ) -> Prediction:
        """Return predictions with bands between quantiles of the draws: ``result.predict(times, bands=drawn)``."""
        bands: Any = self
        return self.result.predict(times, bands=bands, noise=noise, confidence_level=confidence_level, **options)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot histograms of the draws with the limits of the intervals; `castfit.plots.pairs` shows them in pairs."""
        return views().plots.histograms(self, path)
