"""Search methods: the order in which candidates are fitted, in batches of independent fits."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from castfit.drive.model_comparison.candidates import CandidateModel, Candidates
from castfit.drive.model_comparison.forecast import QuadraticForecast, full_problem
from castfit.result.result import Result

MAX_EXHAUSTIVE_CANDIDATES = 64  # candidates up to which "auto" fits all of them
_BATCH_SIZE = 6  # neighbours, the best by their forecasts, that are fitted at once, for any number of workers
_MAX_NEIGHBOURS = 36  # neighbours of one candidate that are fitted
_FORECAST_MARGIN = 2.0  # of the criterion: neighbours with a forecast worse than the best by more are not fitted
_BEAM_WIDTH = 4  # best candidates whose neighbours are examined


@dataclass(frozen=True)
class CandidateProposal:
    """A candidate to be fitted, and the candidate whose estimates are its start; empty if none."""

    candidate: CandidateModel
    predecessor: str = ""


Search = Generator[list[CandidateProposal], None, None]


class SearchHistoryView(Protocol):
    """Interface of a search to the completed fits."""

    @property
    def best(self) -> str | None:
        """The name of the best candidate; None if no fit succeeded."""
        ...

    @property
    def order(self) -> list[str]:
        """Names of the fits that succeeded, the best first."""
        ...

    def candidate(self, name: str) -> CandidateModel:
        """Return a candidate that was proposed."""
        ...

    def is_proposed(self, name: str) -> bool:
        """Whether a candidate was proposed before."""
        ...

    def result(self, name: str) -> Result:
        """Return the result of a fit that succeeded."""
        ...

    def value(self, name: str) -> float:
        """Return the criterion of a candidate; NaN where its fit failed."""
        ...

    def nearest(self, candidate: CandidateModel) -> str:
        """Return the best fitted candidate that is nested in this one; empty if there is none."""
        ...


def exhaustive(space: Candidates, history: SearchHistoryView, criterion: str) -> Search:
    """Propose all candidates, smaller ones first, whose estimates are starts of larger ones."""
    by_size = sorted(space, key=lambda c: len(space.problem(c).names) if not c.chosen else len(c.free))
    for _, level in groupby(by_size, key=lambda c: len(c.free)):
        yield [CandidateProposal(c, history.nearest(c)) for c in level]


def forward(space: Candidates, history: SearchHistoryView, criterion: str) -> Search:
    """Add one estimate at a time, beginning with the smallest candidate, until the criterion no longer improves."""
    return _stepwise(space, history, space.smallest, is_forward=True)


def backward(space: Candidates, history: SearchHistoryView, criterion: str) -> Search:
    """Remove one estimate at a time, beginning with the largest candidate, until the criterion no longer improves."""
    return _stepwise(space, history, space.largest, is_forward=False)


def _stepwise(space: Candidates, history: SearchHistoryView, current: CandidateModel, *, is_forward: bool) -> Search:
    yield [CandidateProposal(current)]
    while history.best == current.name:
        neighbors = space.neighbours(current, allow_more=is_forward, allow_fewer=not is_forward)
        yield [CandidateProposal(c, current.name) for c in neighbors if not history.is_proposed(c.name)]
        if history.best in (current.name, None):
            return
        current = history.candidate(history.best or "")


def forecast(space: Candidates, history: SearchHistoryView, criterion: str) -> Search:
    """Search by forecasts from the largest and smallest candidates: remove, add and swap estimates."""
    full = full_problem(space)
    yield [CandidateProposal(space.largest), CandidateProposal(space.smallest)]
    for start_name in (space.largest.name, space.smallest.name, history.best or ""):
        current_name = start_name
        while current_name and history.is_proposed(current_name):
            local_forecast = _forecast_at(full, history, current_name)
            if local_forecast is None:
                break
            target = local_forecast.descended(space, criterion)
            if history.is_proposed(target.name):
                break
            yield [CandidateProposal(target, current_name)]
            current_name = target.name
    expanded: set[str] = set()
    while pending_names := [name for name in history.order[:_BEAM_WIDTH] if name not in expanded]:
        current_name = pending_names[0]  # the best candidate whose neighbours were not examined
        local_forecast = _forecast_at(full, history, current_name)
        expanded.add(current_name)
        if local_forecast is None:
            continue
        current_candidate, best = history.candidate(current_name), history.value(history.best or "")
        untried = (
            c
            for c in [*space.neighbours(current_candidate), *space.swaps(current_candidate)]
            if not history.is_proposed(c.name)
        )
        ranked = [c for value, c in local_forecast.ranked(untried, criterion) if value < best + _FORECAST_MARGIN][
            :_MAX_NEIGHBOURS
        ]
        for k in range(0, len(ranked), _BATCH_SIZE):
            yield [CandidateProposal(c, current_name) for c in ranked[k : k + _BATCH_SIZE]]
            if history.best != current_name and history.best not in expanded:
                break


def _forecast_at(full: object, history: SearchHistoryView, name: str) -> QuadraticForecast | None:
    try:
        result = history.result(name)
    except LookupError:  # its fit failed
        return None
    return QuadraticForecast.from_candidate(full, history.candidate(name), result)  # type: ignore[arg-type]


METHODS = {"all": exhaustive, "forward": forward, "backward": backward, "forecast": forecast}
