"""Result of a portfolio search, with its statistics: candidates, ways, number of finds, certainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr, one_line
from castfit._support.text_tables import Column, TextTable
from castfit.drive.run.optima import ObjectiveMeasure, Optimum, group_optima
from castfit.drive.run.run_result import SearchResult
from castfit.drive.search.portfolio.strategies import WAY_DESCRIPTIONS
from castfit.problem.compiled_problem import CHI2


@with_old_names(tried="n_tried", solutions="n_converged")
@add_brief_repr
@dataclass(frozen=True)
class StrategySummary:
    """Statistics of one way to search.

    name : name of the way
    n_tried : number of its candidates
    dropped : number of candidates that were dropped before their end
    n_converged : number of candidates that converged at the accuracy of the search, solutions at full accuracy or not
    finds : number of candidates that ended in the best optimum
    improvements : number of candidates that were the best ones at their time
    seconds : computing time in seconds
    """

    name: str
    n_tried: int
    dropped: int
    n_converged: int
    finds: int
    improvements: int
    seconds: float

    @property
    def words(self) -> str:
        """Description of the way in words."""
        return WAY_DESCRIPTIONS[self.name]


@with_old_names(begun="start_theta")
@add_brief_repr
@dataclass(frozen=True)
class SearchCandidate:
    """Candidate of a portfolio search.

    cost : cost at the accuracy of the search
    success : whether the candidate is a solution at full accuracy
    objective, chi2, values : of the fit at full accuracy; NaN and empty if there was none
    best : whether the candidate ended in the best optimum
    dropped : whether the candidate was dropped before its end
    seconds : computing time in seconds
    start_theta : start in search scale; empty if the candidate continues another one
    """

    index: int
    way: str
    objective: float
    chi2: float
    cost: float
    success: bool
    best: bool
    dropped: bool
    values: Mapping[str, float]
    seconds: float
    start_theta: tuple[float, ...] = ()


@add_brief_repr
@dataclass(frozen=True)
class PortfolioProgress:
    """Progress of a portfolio search after a candidate, as passed to a callback.

    candidates : number of candidates so far
    cost, chi2 : cost and chi2 of the best solution; infinite if there is none
    finds : number of candidates that ended in the best optimum
    seconds : seconds since the search began
    lowest : cost at full accuracy of the best solution, or of a lower point in a flat valley
    objective : objective of that point, in units of `measure`
    """

    candidates: int
    cost: float
    chi2: float
    finds: int
    seconds: float
    lowest: float = np.inf
    objective: float = np.inf
    measure: str = CHI2

    @property
    def sentence(self) -> str:
        """The state of things in one line."""
        if not np.isfinite(self.chi2) and np.isfinite(self.lowest):
            state_text = f"{self.measure} = {self.objective:.6g} in a flat valley, not yet an optimum"
            return f"{self.candidates} candidates: {state_text}, {self.seconds:.1f} s"
        if not np.isfinite(self.cost):
            return f"{self.candidates} candidates, no solution yet, {self.seconds:.1f} s"
        times = "once" if self.finds < 2 else f"{self.finds} times"
        return (
            f"{self.candidates} candidates: {self.measure} = {self.objective:.6g} found {times}, {self.seconds:.1f} s"
        )


@with_old_names(sure="stopping_rule_met", ways="strategies", finds="hits", described="is_adequate")
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class PortfolioResult(SearchResult):
    """Result of `castfit.estimate`.

    Attributes
    ----------
    best : Result or None
        The best fit, at full accuracy and verified; None if nothing could be fitted.  On the floor of a long valley
        that is clearly lower than all that converged, where the fit went no farther: ``best.success`` is False then.
    reason : str
        Why the search ended.
    candidates : tuple of SearchCandidate
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
        What fits are compared by, and which differences of it are none.
    spread : float
        How far apart the starts lie that led to the best optimum: the share of the range in which starts are drawn, the
        median of all quantities; NaN of less than two.
    note : str
        Where starts were drawn for want of bounds; empty if there are bounds.

    Examples
    --------
    >>> import castfit as cf
    >>> found = cf.estimate(cf.problems.load("bellman").problem, rng=0)
    >>> found.success, found.stopping_rule_met, found.hits
    (True, True, 3)
    """

    reason: str
    candidates: tuple[SearchCandidate, ...]
    strategies: tuple[StrategySummary, ...]
    stopping_rule_met: bool
    hits: int
    is_adequate: bool
    time: float
    merit: ObjectiveMeasure
    warnings: tuple[str, ...] = ()
    note: str = ""
    spread: float = np.nan

    @cached_property
    def optima(self) -> tuple[Optimum, ...]:
        """The optima that were fitted at full accuracy, the lowest first."""
        return group_optima({c.index: (c.objective, c.values) for c in self.candidates if c.success}, self.merit)

    @property
    def objective(self) -> float:
        """The objective of the best point, in the measure of its problem; infinite if there is none."""
        return np.inf if self.best is None else self.best.objective

    @property
    def value(self) -> float:
        """The `objective`, by an older name."""
        return self.objective

    @property
    def measure(self) -> str:
        """Measure by which fits are compared.

        "chi2" if the standard deviations are known, "PEtab's objective" for PEtab problems, "-2 log L" otherwise.
        """
        return self.merit.measure

    @property
    def story(self) -> list[str]:
        """Sentences about the result: number of finds, distance of their starts, time, certainty, and misfit if any."""
        lines = [self._finds_sentence, self._sure]
        if self.success and self.best is not None and self.best.goodness.amiss:
            lines.append(self.best.goodness.sentence)
        return [line for line in (*lines, self.note) if line]

    @property
    def _finds_sentence(self) -> str:
        """Sentence about the lowest optimum: number of finds, distance of their starts, number of candidates, time."""
        count_text = f"{len(self.candidates)} candidate{'' if len(self.candidates) == 1 else 's'} in {self.time:.1f} s"
        number = f"{self.measure} = {self.objective:.6g}"
        if self.best is None or not self.success:
            lower = self.best is not None and any(c.success for c in self.candidates)
            floor = f"The best point ({number}) lies in a long flat valley, below every converged candidate"
            if lower:
                return f"{floor}. After {count_text} it is not confirmed as an optimum; continue the fit from there."
            n_converged = sum(way.n_converged for way in self.strategies)
            others = f" at full accuracy; {n_converged} converged at the accuracy of the search" if n_converged else ""
            return f"None of {count_text} converged to a solution{others}."
        times = {0: "only from points of other candidates", 1: "once", 2: "twice"}.get(self.hits, f"{self.hits} times")
        ways = sum(way.finds > 0 for way in self.strategies)
        ways_text = f", by {ways} strategies" if self.hits > 1 and ways > 1 else ""
        distance_text = f" {100 * self.spread:.0f} % of the search range apart" if np.isfinite(self.spread) else ""
        starts_text = f" from independent starting points{distance_text}" if self.hits > 1 else ""
        return (
            f"The lowest optimum ({number}) was found {times}{starts_text}{ways_text}; {count_text} found none lower."
        )

    @property
    def _sure(self) -> str:
        """Sentence about the certainty of the result, and the reason why the search ended."""
        if self.stopping_rule_met:
            return f"Stopping criterion met: {self.reason}"
        if not self.success:
            return self.reason
        return (
            f"Stopping criterion not met: {self.reason} "
            "A better optimum may exist: increase max_time or narrow the bounds."
        )

    def sheet(self) -> TextTable:
        """Return the table of the strategies."""
        columns: list[Column[StrategySummary]] = [
            ("strategy", lambda w: w.words),
            (">tried", lambda w: f"{w.n_tried}"),
            (">dropped", lambda w: f"{w.dropped}"),
            (">converged", lambda w: f"{w.n_converged}"),
            (">best", lambda w: f"{w.finds}"),
            (">seconds", lambda w: f"{w.seconds:.1f}"),
        ]
        return TextTable.from_items([way for way in self.strategies if way.n_tried], *columns)

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({' '.join(self.story)})")

    def summary(self) -> str:
        """Return the text that `print` shows."""
        return "\n".join([*self.story, *self.warnings, "", *self.sheet().lines, *self.closing()])
