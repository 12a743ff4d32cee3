"""Result of an incremental fit: the final result, and one record per horizon."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr, one_line
from castfit._support.status import Status
from castfit._support.text_tables import Column, TextTable, format_to_error
from castfit.drive.run.run_result import SearchResult
from castfit.problem.compiled_problem import CHI2
from castfit.result.result import Result


@add_brief_repr
@dataclass(frozen=True)
class Horizon:
    """Record of the fit on one horizon.

    horizon : measurements up to this time were used
    n_data : number of measured values
    estimates, standard_errors : natural scale; inf where the data up to here do not determine a quantity (Michalik et
        al. 2009, Eq. 9).
    bounds : per quantity (lower, upper), natural scale, after any relaxation
    relaxations : how often updated bounds were relaxed
    iterations : of all solves on this horizon
    evaluations : number of evaluations by kind, of all solves on this horizon
    share : length of integration relative to that of the whole problem
    chi2 : sum of squared weighted residuals, priors included
    objective, measure : what the fit is told by, and how that is called; of other data on every horizon
    status : how the last solve ended
    fallback : empty, "shorter step" if a shorter horizon was tried next, "another start" if the first horizon was
        solved from a lower point near a poor optimum, or "multiple shooting"
    """

    horizon: float
    n_data: int
    estimates: dict[str, float]
    standard_errors: dict[str, float]
    bounds: dict[str, tuple[float, float]]
    relaxations: int
    iterations: int
    evaluations: dict[str, int]
    share: float
    chi2: float
    status: Status
    fallback: str
    objective: float = np.nan
    measure: str = CHI2


@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class IncrementalResult(SearchResult):
    """Result of an incremental fit.

    Attributes
    ----------
    best : Result
        The fit on the whole horizon, also called `result`; of a fit that failed, the best point so far.
    horizons : tuple of Horizon
        In the order in which they were solved.
    time : float
        Seconds.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> course = cf.incremental(problem)
    >>> [h.horizon for h in course.horizons][-1]
    39.0
    """

    horizons: tuple[Horizon, ...]
    time: float

    @property
    def result(self) -> Result:
        """The fit on the whole horizon."""
        assert self.best is not None
        return self.best

    @property
    def iterations(self) -> int:
        """Iterations on all horizons."""
        return sum(h.iterations for h in self.horizons)

    @property
    def evaluations(self) -> dict[str, int]:
        """Number of evaluations by kind, on all horizons."""
        total: Counter[str] = Counter()
        for h in self.horizons:
            total.update(h.evaluations)
        return dict(total)

    @property
    def equivalent_iterations(self) -> float:
        """Iterations on the whole horizon that would have integrated as far (Michalik et al. 2009, Sec. 5).

        I_equiv = sum_i n_i t_i / t_end, with n_i iterations on the horizon t_i, including iterations with relaxed
        bounds and fallbacks.  With several experiments t_i is the sum of the lengths of all of them.
        """
        return sum(h.iterations * h.share for h in self.horizons)

    def summary(self) -> str:
        """Return the table of horizons, above the summary of the result."""
        table = TextTable.from_items(
            self.horizons,
            (">horizon", lambda h: f"{h.horizon:g}"),
            (">data", lambda h: f"{h.n_data}"),
            *map(_estimate, self.result.names),
            (f">{self.result.measure}", lambda h: f"{h.objective:.4g}"),
            (">relaxed", lambda h: f"{h.relaxations}"),
            (">iterations", lambda h: f"{h.iterations}"),
            ("status", lambda h: h.status.value),
            ("fallback", lambda h: h.fallback),
        )
        counted = f"{self.iterations} iterations, equivalent to {self.equivalent_iterations:.2f} on the full horizon"
        return "\n".join([*table.lines, "", f"{counted}; {self.time:.2f} s", "", self.result.summary()])

    def __repr__(self) -> str:
        count = len(self.horizons)
        horizons_text = f"{count} horizon{'' if count == 1 else 's'}, I_equiv = {self.equivalent_iterations:.2f}"
        return one_line(f"IncrementalResult({horizons_text}; {self.result!r})")


def _estimate(name: str) -> Column[Horizon]:
    """Return the column of a quantity; more than nine digits would only widen it."""
    return f">{name}", lambda h: format_to_error(
        h.estimates[name], max(h.standard_errors[name], 1e-6 * abs(h.estimates[name]))
    )
