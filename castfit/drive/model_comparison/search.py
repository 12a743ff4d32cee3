"""In which order candidates are fitted: each method yields batches, whose fits do not depend on each other."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from castfit.drive.model_comparison.candidates import CandidateModel, Candidates
from castfit.drive.model_comparison.forecast import Forecast, full_problem
from castfit.result.result import Result

FEW = 64
"""Candidates up to which "auto" fits all of them."""
_BATCH = 6  # neighbours that are fitted at once, whatever the number of workers, by their forecasts ...
_TRIES = 36  # ... and in all, of one candidate, ...
_MARGIN = 2.0  # ... as long as the forecast is not worse than the best by so much
_BEAM = 4  # how many of the best candidates are left by all that is forecast to be better


@dataclass(frozen=True)
class Proposal:
    """A candidate to be fitted, and the name of the one whose estimates it may begin at; empty if none."""

    candidate: CandidateModel
    before: str = ""


Search = Generator[list[Proposal], None, None]


class Known(Protocol):
    """Interface of a search to the fits so far."""

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

    def tried(self, name: str) -> bool:
        """Whether a candidate was proposed before."""
        ...

    def result(self, name: str) -> Result:
        """Return the result of a fit that succeeded."""
        ...

    def value(self, name: str) -> float:
        """Return the criterion of a candidate; NaN where its fit failed."""
        ...

    def nearest(self, candidate: CandidateModel) -> str:
        """Return the best candidate that one contains; empty if none was fitted."""
        ...


def every(space: Candidates, known: Known, criterion: str) -> Search:
    """All candidates, those that estimate less first, so that larger ones begin where these ended."""
    by_size = sorted(space, key=lambda c: len(space.problem(c).names) if not c.chosen else len(c.free))
    for _, level in groupby(by_size, key=lambda c: len(c.free)):
        yield [Proposal(c, known.nearest(c)) for c in level]


def forward(space: Candidates, known: Known, criterion: str) -> Search:
    """From the smallest candidate, the best of all that estimate one more, until that is no better."""
    return _stepwise(space, known, space.smallest, more=True)


def backward(space: Candidates, known: Known, criterion: str) -> Search:
    """From the largest candidate, the best of all that estimate one less, until that is no better."""
    return _stepwise(space, known, space.largest, more=False)


def _stepwise(space: Candidates, known: Known, at: CandidateModel, *, more: bool) -> Search:
    yield [Proposal(at)]
    while known.best == at.name:
        near = space.neighbours(at, more=more, fewer=not more)
        yield [Proposal(c, at.name) for c in near if not known.tried(c.name)]
        if known.best in (at.name, None):
            return
        at = known.candidate(known.best or "")


def forecast(space: Candidates, known: Known, criterion: str) -> Search:
    """From the largest and the smallest candidate to the neighbours whose forecasts are best: drops, adds and swaps."""
    full = full_problem(space)
    yield [Proposal(space.largest), Proposal(space.smallest)]
    for begin in (space.largest.name, space.smallest.name, known.best or ""):
        at = begin
        while at and known.tried(at):
            near = _forecast_at(full, known, at)
            if near is None:
                break
            reached = near.descended(space, criterion)
            if known.tried(reached.name):
                break
            yield [Proposal(reached, at)]
            at = reached.name
    seen: set[str] = set()
    while ahead := [name for name in known.order[:_BEAM] if name not in seen]:
        at = ahead[0]  # the best whose neighbours are not known yet
        near = _forecast_at(full, known, at)
        seen.add(at)
        if near is None:
            continue
        here, best = known.candidate(at), known.value(known.best or "")
        others = (c for c in [*space.neighbours(here), *space.swaps(here)] if not known.tried(c.name))
        ranked = [c for value, c in near.ranked(others, criterion) if value < best + _MARGIN][:_TRIES]
        for k in range(0, len(ranked), _BATCH):
            yield [Proposal(c, at) for c in ranked[k : k + _BATCH]]
            if known.best != at and known.best not in seen:
                break


def _forecast_at(full: object, known: Known, name: str) -> Forecast | None:
    try:
        result = known.result(name)
    except LookupError:  # its fit failed
        return None
    return Forecast.at(full, known.candidate(name), result)  # type: ignore[arg-type]


METHODS = {"all": every, "forward": forward, "backward": backward, "forecast": forecast}
