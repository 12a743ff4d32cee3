"""Result of a scatter search: the best fit, the history of the best value, and the optima of local searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import is_within, option_mistakes
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit._support.views import views
from castfit.drive.run.optima import ObjectiveMeasure, Optimum, group_optima
from castfit.drive.run.run_result import FitRecord, SearchResult, format_counts, optima_lines
from castfit.problem.compiled_problem import CHI2

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@add_brief_repr
@dataclass(frozen=True)
class BestSoFar:
    """The best objective after so many simulations and seconds."""

    simulations: int
    seconds: float
    objective: float

    @property
    def chi2(self) -> float:
        """The `objective`, which was called so before there were others."""
        return self.objective


@add_brief_repr
@dataclass(frozen=True)
class LocalSearch(FitRecord):
    """A local search.

    start, end : objective where it began and where it ended
    values : where it ended, by name, natural scale
    simulations : simulations and sensitivity sweeps that it took
    status : a value of `Status`; "joined" if it was broken off on the path of an earlier one, "error" if it was
        impossible
    seconds : when it ended
    """

    start: float
    end: float
    values: dict[str, float]
    simulations: int
    status: str
    message: str
    seconds: float


@add_brief_repr
@dataclass(frozen=True)
class Generation:
    """Progress of a scatter search after a generation, as passed to a callback.

    generation, simulations, searches (local ones) : int; objective : the best so far, in its measure; seconds : float.
    """

    generation: int
    simulations: int
    searches: int
    objective: float
    seconds: float
    measure: str = CHI2

    @property
    def chi2(self) -> float:
        """The `objective`, which was called so before there were others."""
        return self.objective

    @property
    def sentence(self) -> str:
        """The state of things in one line."""
        has_value = np.isfinite(self.objective)
        best_text = f"best {self.measure} = {self.objective:.8g}" if has_value else "no point could be simulated yet"
        work = f"{self.simulations} simulations, {self.searches} local searches"
        return f"generation {self.generation}: {best_text}; {work}, {self.seconds:.1f} s"


@with_old_names(sweeps="n_sensitivity_evaluations")
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class ScatterResult(SearchResult):
    """Result of a scatter search.

    Attributes
    ----------
    best : Result or None
        The best fit, of the problem as it was given; None if nothing could be simulated.
    reason : str
        Why the search ended.
    history : tuple of BestSoFar
        The best objective whenever it fell.  What a local search gained is entered at its end.
    searches : tuple of LocalSearch
    simulations, sweeps : int
        Simulations in all, and how many of these were sensitivity sweeps.
    generations : int
    failures : dict
        Causes of failed simulations and their counts.
    time : float
        Seconds, those of a run that was continued included.
    transcription, solver : str
        Of the local searches.
    names : tuple of str
        The quantities that are estimated.
    logarithmic : tuple of str
        Quantities that the search moved in their logarithm.
    merit : Merit
        What points are compared by, and which differences of it are none.
    warnings : tuple of str
        What else went wrong: a checkpoint that could not be written.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> bounded = problem.replace(
    ...     parameters={n: cf.Parameter(1e-4, bounds=(1e-8, 1e-1), scale="log") for n in problem.names}
    ... )
    >>> found = cf.scatter_search(bounded, rng=0, max_eval=200)
    >>> round(found.chi2, 3)
    21.867
    >>> found.best.success
    True
    """

    reason: str
    history: tuple[BestSoFar, ...]
    searches: tuple[LocalSearch, ...]
    simulations: int
    n_sensitivity_evaluations: int
    generations: int
    failures: Mapping[str, int]
    time: float
    transcription: str
    solver: str
    names: tuple[str, ...]
    logarithmic: tuple[str, ...]
    merit: ObjectiveMeasure
    warnings: tuple[str, ...] = ()

    @property
    def chi2(self) -> float:
        """The best chi2; inf if nothing could be simulated."""
        return np.inf if self.best is None else self.best.chi2

    @property
    def message(self) -> str:
        """Message about the end of the search, in words."""
        parts = [self.reason]
        if self.best is None:
            nothing = "No point could be simulated"
            parts += [
                f"{line}." for line in format_counts(nothing, self.failures) or [f"{nothing}: the cause is unknown"]
            ]
        elif not self.success:
            parts.append(f"The best point is not a solution: {self.best.message}")
        return " ".join([*parts, *self.warnings])

    @cached_property
    def optima(self) -> tuple[Optimum, ...]:
        """The optima that local searches found, the lowest first; their `starts` are positions in `searches`."""
        ends = {i: (s.end, s.values) for i, s in enumerate(self.searches) if s.success}
        return group_optima(ends, self.merit)

    @property
    def measure(self) -> str:
        """Measure by which points are compared: that of the fit; "-2 log L of normal errors" in the place of others."""
        return self.merit.measure

    @property
    def objective(self) -> float:
        """The objective of the best fit; inf if nothing could be simulated."""
        return np.inf if self.best is None else self.best.objective

    def simulations_to(self, objective: float) -> float:
        """Return after how many simulations the objective was as low; inf if it never was."""
        _require_number(objective)
        return next((float(m.simulations) for m in self.history if m.objective <= objective), np.inf)

    def seconds_to(self, objective: float) -> float:
        """Return after how many seconds the objective was as low; inf if it never was."""
        _require_number(objective)
        return next((m.seconds for m in self.history if m.objective <= objective), np.inf)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot the best value against simulations and time; see `castfit.plots.searches.curves`.

        Parameters
        ----------
        path : str or Path, optional
            Where to write the figure; the ending decides on the format.
        """
        return views().search_curves({"scatter search": [self]}, path)

    def summary(self) -> str:
        """Return the text that `print` shows."""
        local = f"{len(self.searches)} local searches ({self.transcription}, {self.solver})"
        lines = [
            f"scatter search: {self.generations} generations, {self.simulations} simulations "
            f"({self.n_sensitivity_evaluations} with sensitivities), {local}: {self.time:.1f} s",
            self.message,
            "",
        ]
        lines += [*optima_lines(self.optima, len(self.searches), measure=self.measure), *self.misfit()]
        if self.logarithmic:
            lines.append("searched on a log scale: " + ", ".join(self.logarithmic))
        return "\n".join([*lines, *format_counts("failed simulations", self.failures), *self.closing()])

    def __repr__(self) -> str:
        number = "no point could be simulated"
        if self.best is not None:
            number = f"{self.best.measure} = {self.objective:.6g}"
        return (
            f"ScatterResult({number}; {self.simulations} simulations, {len(self.searches)} local "
            f"searches, {self.time:.1f} s)"
        )


def _require_number(objective: Any) -> None:
    remedy = "expected a number"
    raise_if_mistakes("ScatterResult", option_mistakes(("objective", objective, is_within(objective), remedy)))
