"""What a bootstrap and a sampler have in common: draws of the estimates of a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from castfit._support.lazy_imports import picture

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.result.result import Result
    from castfit.simulate.simulate import Prediction, Times


class Drawn:
    """Draws that are carried through the model, and drawn as histograms; `result` is the fit that they belong to."""

    result: Result

    def predict(
        self, times: Times = None, *, noise: bool = False, level: float | None = None, **options: Any
    ) -> Prediction:
        """Return predictions with bands that hold the middle of the draws: ``result.predict(times, bands=drawn)``."""
        bands: Any = self
        return self.result.predict(times, bands=bands, noise=noise, level=level, **options)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot histograms of the draws with the limits of the intervals; `castfit.plots.pairs` shows them in pairs."""
        return picture("histograms")(self, path)
