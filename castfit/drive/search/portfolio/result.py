"""What a portfolio found, and its story: what was tried, what was found how often, how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from castfit._support.reprs import brief, one_line
from castfit._support.text_tables import Column, Sheet
from castfit.drive.run.optima import Merit, Optimum, optima
from castfit.drive.run.run_result import SearchResult
from castfit.drive.search.portfolio.strategies import WORDS


@brief
@dataclass(frozen=True)
class Way:
    """What came of one way to search.

    name : str; tried, dropped, solutions, finds : int, candidates, those given up on the way, those that ended in
    optima, and those in the best of these; improvements : int, how often it found what was best
    then; seconds : float, of computing time
    """

    name: str
    tried: int
    dropped: int
    solutions: int
    finds: int
    improvements: int
    seconds: float

    @property
    def words(self) -> str:
        """What it does."""
        return WORDS[self.name]


@brief
@dataclass(frozen=True)
class Candidate:
    """A candidate: its way, where it ended, computing seconds.

    cost is what the search saw; success tells whether it was fitted at full accuracy, chi2 and values (by name, natural
    scale) are of that fit, NaN and none if there was none; best tells whether it ended in the best optimum.
    """

    index: int
    way: str
    chi2: float
    cost: float
    success: bool
    best: bool
    dropped: bool
    values: Mapping[str, float]
    seconds: float


@brief
@dataclass(frozen=True)
class PortfolioProgress:
    """What a callback sees after each candidate.

    candidates : how many were made;  cost, chi2 : of the best solution, infinite as long as there is none;  finds : how
    often it was found;  seconds;  lowest : cost at full accuracy, of the best solution or of a point on the floor of a
    long valley that is lower
    """

    candidates: int
    cost: float
    chi2: float
    finds: int
    seconds: float
    lowest: float = np.inf

    @property
    def sentence(self) -> str:
        """The state of things in one line."""
        if not np.isfinite(self.cost):
            return f"{self.candidates} candidates, no solution yet, {self.seconds:.1f} s"
        times = "once" if self.finds < 2 else f"{self.finds} times"
        return f"{self.candidates} candidates: cost {self.cost:.6g} found {times}, {self.seconds:.1f} s"


@dataclass(frozen=True, eq=False, repr=False)
class PortfolioResult(SearchResult):
    """What `castfit.estimate` found.

    Attributes
    ----------
    best : Result or None
        The best fit, at full accuracy and verified; None if nothing could be fitted.  On the floor of a long valley
        that is clearly lower than all that converged, where the fit went no farther: ``best.success`` is False then.
    reason : str
        Why the search ended.
    candidates : tuple of Candidate
        Everything that was tried, in the order in which it was planned.
    ways : tuple of Way
        What came of every way to search.
    sure : bool
        Whether the best optimum was found again as often as was asked for.
    finds : int
        How many candidates from starts of their own ended in it.
    described : bool
        Whether it describes the data: what is left may be noise.
    time : float
        Seconds.
    merit : Merit
        What fits are compared by: chi2, or an equivalent one where several sigmas are unknown.
    note : str
        Where starts were drawn for want of bounds; empty if there are bounds.

    Examples
    --------
    >>> import castfit as cf
    >>> found = cf.estimate(cf.problems.load("bellman").problem, rng=0)
    >>> found.success, found.sure, found.finds
    (True, True, 3)
    """

    reason: str
    candidates: tuple[Candidate, ...]
    ways: tuple[Way, ...]
    sure: bool
    finds: int
    described: bool
    time: float
    merit: Merit
    warnings: tuple[str, ...] = ()
    note: str = ""

    @cached_property
    def optima(self) -> tuple[Optimum, ...]:
        """The optima that were fitted at full accuracy, the lowest first."""
        ends = {c.index: (c.chi2, c.values) for c in self.candidates if c.success}
        return optima(ends, floor=self.merit.floor)

    @property
    def value(self) -> float:
        """What the best point is compared by, its chi2 or an equivalent one; infinite if there is none."""
        return np.inf if self.best is None else self.merit(self.best.cost, self.best.chi2)

    @property
    def story(self) -> list[str]:
        """What was tried, what was found how often, and how sure that is, in sentences."""
        return [*self._told, *([self.note] if self.note else [])]

    @property
    def _told(self) -> list[str]:
        n = len(self.candidates)
        tried = ", ".join(f"{way.tried} x {way.words}" for way in self.ways if way.tried)
        measured = f"{self.merit.measure} = {self.value:.6g}"
        lines = [f"{n} candidates in {self.time:.1f} s: {tried}."]
        if self.best is None or not self.best.success:
            if self.best is not None and any(c.success for c in self.candidates):
                lines.append(
                    f"The best point, {measured}, is on the floor of a long valley: lower than all "
                    "that converged, and not seen to be an optimum. Fit on from there."
                )
                return [*lines, self.reason]
            return [*lines, "None ended in a solution.", self.reason]
        times = {0: "by moves alone", 1: "once", 2: "twice"}.get(self.finds, f"{self.finds} times")
        lines.append(f"The best optimum, {measured}, was found {times} from starts of their own.")
        best = max(self.ways, key=lambda w: (w.finds, w.improvements, -w.seconds))
        if best.finds:
            lines.append(f"It was found most often by {best.words}: {best.finds} of {best.tried}.")
        if not self.described:
            lines.append(
                "It does not describe the data: the model is wrong, the noise larger, or there is a better optimum."
            )
        lines.append(self.reason)
        if not self.sure:
            lines.append("It may not be the best there is: give more time (max_time), or narrower bounds.")
        return lines

    def sheet(self) -> Sheet:
        """Return the table of the ways."""
        columns: list[Column[Way]] = [
            ("way", lambda w: w.name),
            (">tried", lambda w: f"{w.tried}"),
            (">dropped", lambda w: f"{w.dropped}"),
            (">optima", lambda w: f"{w.solutions}"),
            (">best", lambda w: f"{w.finds}"),
            (">seconds", lambda w: f"{w.seconds:.1f}"),
        ]
        return Sheet.of([way for way in self.ways if way.tried], *columns)

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({' '.join(self.story[1:])})")

    def summary(self) -> str:
        """Return the text that `print` shows."""
        return "\n".join([*self.story, *self.warnings, "", *self.sheet().lines, *self.closing()])
