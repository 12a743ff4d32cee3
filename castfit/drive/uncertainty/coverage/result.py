"""What a Monte-Carlo check of intervals found, per quantity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.text_tables import aligned, rounded
from castfit.drive.uncertainty.refits.row import Refit, failure_table, failures
from castfit.drive.run.found import columns
from castfit.problem.compiled_problem import Posed
from castfit.result.covariance import quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_SURE = 0.99  # probability of the range that a share must leave for a word


@dataclass(frozen=True)
class Covered:
    """How well the intervals of one quantity do.

    Attributes
    ----------
    truth : float
    intervals : int
        How many there are.
    share : float
        The part that contains the truth; NaN without any.
    error : float
        Its binomial standard error.
    below, above : float
        The parts that lie wholly below the truth, and above it.
    bias : float
        Mean estimate minus truth, natural scale.
    bias_error : float
        Standard error of that, from the number of data sets.
    scatter : float
        Standard deviation of the estimates.
    standard_error : float
        Mean of the standard errors that the fits give.
    width : float
        Mean width of the intervals.
    """

    truth: float
    intervals: int
    share: float
    error: float
    below: float
    above: float
    bias: float
    bias_error: float
    scatter: float
    standard_error: float
    width: float

    def verdict(self, level: float) -> str:
        """Say in words whether intervals keep what they promise."""
        if not self.intervals:
            return "no interval"
        low, high = wilson(self.share, self.intervals, _SURE)
        if low <= level <= high:
            return "as promised"
        return "too narrow" if self.share < level else "too wide"


def wilson(share: float, count: int, level: float) -> tuple[float, float]:
    """Return where the probability of an event lies that happened in a part of so many cases [Wilson 1927]."""
    z2 = quantile(level, np.inf) ** 2 / count
    middle = (share + z2 / 2) / (1 + z2)
    reach = np.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return float(middle - reach), float(middle + reach)


@dataclass(frozen=True, eq=False, repr=False)
class CoverageResult:
    """How often intervals contain the truth, for data sets that were drawn at it.

    Attributes
    ----------
    posed : Posed
        The design.
    truth : dict
        The true values by name.
    level : float
        The nominal probability.
    intervals : str
        What kind of intervals.
    rows : tuple of Refit
        One for each data set.
    message : str
        How the run ended, in words.
    time : float
        Seconds.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> checked = cf.coverage(result, samples=8)
    >>> 0 <= checked.quantities["k1"].share <= 1
    True
    """

    posed: Posed
    truth: Mapping[str, float]
    level: float
    intervals: str
    rows: tuple[Refit, ...]
    message: str
    time: float

    @property
    def fitted(self) -> int:
        """How many fits succeeded."""
        return sum(row.success for row in self.rows)

    @property
    def failures(self) -> dict[str, int]:
        """How many fits ended without a solution, by cause."""
        return failures(self.rows)

    @cached_property
    def quantities(self) -> dict[str, Covered]:
        """What was found of each quantity."""
        solved = [row for row in self.rows if row.success]
        thetas = np.array([row.theta for row in solved]).reshape(-1, len(self.posed.names))
        with np.errstate(over="ignore"):
            natural = self.posed.to_natural(thetas)
        return {
            name: _covered(self.truth[name], solved, name, natural[:, self.posed.names.index(name)])
            for name in self.truth
        }

    @property
    def share(self) -> float:
        """The part of all intervals together that contains the truth."""
        found = [c for c in self.quantities.values() if c.intervals]
        total = sum(c.intervals for c in found)
        return sum(c.share * c.intervals for c in found) / total if total else np.nan

    @property
    def table(self) -> dict[str, NDArray[Any]]:
        """All data sets as columns: status, estimates, and the ends of every interval; NaN where there is none."""
        cells: dict[str, Callable[[Refit], Any]] = {
            "data set": lambda row: row.index,
            "status": lambda row: row.status,
            "chi2": lambda row: row.chi2,
        }
        for k, side in enumerate(("lower", "upper")):
            for name in self.truth:
                cells[f"{name} {side}"] = _end(name, k)
        return columns(self.rows, cells)

    def summary(self) -> str:
        """Return the text that `print` shows."""
        heads = ("", "truth", "inside", "below", "above", "bias", "scatter", "std. error", "width", "")
        rows: list[tuple[str, ...]] = [heads]
        for name, c in self.quantities.items():
            inside = f"{100 * c.share:.1f} ± {100 * c.error:.1f} %"
            sides = (f"{100 * c.below:.1f} %", f"{100 * c.above:.1f} %")
            bias = f"{c.bias:.2g} ± {c.bias_error:.1g}"
            figures = (f"{c.scatter:.3g}", f"{c.standard_error:.3g}", f"{c.width:.3g}")
            rows.append((name, rounded(c.truth, c.scatter), inside, *sides, bias, *figures, c.verdict(self.level)))
        count = f"{self.fitted} data sets"
        lines = [f"coverage of {self.intervals} intervals, nominal {100 * self.level:g} %, {count}: {self.time:.1f} s"]
        lines += [self.message, "", *aligned(rows, "<" + ">" * 8 + "<")]
        failed = sum(self.failures.values())
        if failed:
            listed = [("failed", "cause", "for instance")]
            listed += [(f"{n}", cause, said) for cause, n, said in failure_table(self.rows)]
            least = self.share * self.fitted / (self.fitted + failed) if self.fitted else 0.0
            lines += ["", *aligned(listed, "><<")]
            lines.append(
                f"{failed} fits failed and have no interval; were these counted as missing the truth, "
                f"{100 * least:.1f} % would be inside."
            )
        open_ = {n: self.fitted - c.intervals for n, c in self.quantities.items() if c.intervals < self.fitted}
        if open_:
            said = ", ".join(f"{n} in {count}" for n, count in open_.items())
            lines += ["", f"Without an interval though the fit succeeded (held by a bound, or not determined): {said}."]
        return "\n".join(lines)

    __str__ = summary

    def __repr__(self) -> str:
        share = f"{100 * self.share:.1f} %" if self.fitted else "none"
        return f"CoverageResult({self.intervals}, nominal {100 * self.level:g} %: {share} of {self.fitted} data sets)"


def _end(name: str, k: int) -> Callable[[Refit], float]:
    return lambda row: row.found.get(name, (np.nan, np.nan))[k]


def _covered(truth: float, solved: list[Refit], name: str, estimates: Array) -> Covered:
    ends = np.array([row.found.get(name, (np.nan, np.nan)) for row in solved]).reshape(-1, 2)
    known = np.isfinite(ends).any(axis=1) & ~np.isnan(ends).any(axis=1)  # one that is open on one side is one
    errors = np.array([row.found.get(f"standard error of {name}", (np.nan, np.nan))[0] for row in solved])
    low: Array = ends[known, 0]
    high: Array = ends[known, 1]
    n, several = int(known.sum()), estimates.size > 1
    share = float(np.mean((low <= truth) & (truth <= high))) if n else np.nan
    scatter = float(np.std(estimates, ddof=1)) if several else np.nan
    return Covered(
        truth=truth,
        intervals=n,
        share=share,
        error=float(np.sqrt(share * (1 - share) / n)) if n else np.nan,
        below=float(np.mean(high < truth)) if n else np.nan,
        above=float(np.mean(low > truth)) if n else np.nan,
        bias=float(np.mean(estimates)) - truth if estimates.size else np.nan,
        bias_error=scatter / np.sqrt(estimates.size) if several else np.nan,
        scatter=scatter,
        standard_error=float(np.mean(errors[known])) if n else np.nan,
        width=float(np.mean(high - low)) if n else np.nan,
    )
