"""Parts of a comparison that come from a benchmark of the library: settings, drawn starts, and a line of progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.drive.search.compare.result import MethodTrial
from castfit.fit.methods import TRANSCRIPTIONS

if TYPE_CHECKING:
    from castfit.problems import Benchmark

Progress = Callable[[str], object]  # called with a line about the current task


def recommended_options(benchmark: Benchmark) -> dict[str, Mapping[str, Any]]:
    """Return the keyword arguments that a benchmark recommends for each transcription."""
    states = {"states": benchmark.start_strategy}
    settings_by_kind = benchmark.transcriptions
    return {kind: {**({} if kind == "single" else states), **settings_by_kind.get(kind, {})} for kind in TRANSCRIPTIONS}


def drawn_starts(
    draw: Callable[[np.random.Generator], Mapping[str, float]], count: int, seed: int
) -> list[dict[str, float]]:
    """Draw starts, each from a random stream of its own."""
    return [dict(draw(np.random.default_rng(s))) for s in np.random.SeedSequence(seed).spawn(count)]


def progress_callback(title: str, total: int, progress: Progress) -> Callable[[MethodTrial], None]:
    """Return a callback of `castfit.compare` that tells how far it is."""
    numbers = iter(range(1, total + 1))
    progress(title)

    def tell(trial: MethodTrial) -> None:
        progress(f"{title}: {next(numbers)} of {total} fits, the last by {trial.method}")

    return tell
