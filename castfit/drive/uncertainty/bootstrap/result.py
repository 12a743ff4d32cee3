"""What a bootstrap found: draws of the estimates, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.json_codec import rebuilt
from castfit._support.arguments import is_one_of, option_mistakes, real, text
from castfit._support.text_tables import aligned, rounded
from castfit.drive.uncertainty.bootstrap.intervals import acceleration, bca, percentile, worst
from castfit.drive.uncertainty.drawn import Drawn
from castfit.drive.uncertainty.refits.leave_out import LeaveOutResult
from castfit.drive.uncertainty.refits.recipes import KINDS
from castfit.drive.uncertainty.refits.row import Refit, failure_table, failures
from castfit.drive.uncertainty.refits.run import read_rows
from castfit.drive.uncertainty.refits.solution import pull
from castfit.drive.run.checkpoint import read, write
from castfit.drive.run.found import columns
from castfit.result.result import Result
from castfit._support.status import InputError, check

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem.problem import Posable

    Array = NDArray[np.float64]

WHAT = "data sets"
METHODS = ("percentile", "bca")
_FEW = 2  # draws that have a scatter


@dataclass(frozen=True, eq=False, repr=False)
class BootstrapResult(Drawn):
    """Estimates from data sets that were drawn about a fit.

    Attributes
    ----------
    result : Result
        The fit.
    kind : str
        How data were drawn.
    rows : tuple of Refit
        One for each data set, whatever became of it.
    message : str
        How the run ended, in words.
    time : float
        Seconds; after a resumed run those of its last part.
    header : dict
        What it belongs to, for `save`.

    Examples
    --------
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> drawn = cf.bootstrap(result, samples=20, rng=0)
    >>> lower, upper = drawn.confidence_intervals(0.8, method="percentile")["k1"]
    >>> 0 < lower < upper
    True
    """

    result: Result
    kind: str
    rows: tuple[Refit, ...]
    message: str
    time: float
    header: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """The estimated quantities."""
        return self.result.names

    @cached_property
    def solved(self) -> tuple[Refit, ...]:
        """The rows of fits that succeeded, of which everything else is made."""
        return tuple(row for row in self.rows if row.success)

    @property
    def thetas(self) -> Array:
        """The estimates of all fits that succeeded, search scale, (n, n_theta)."""
        return self._thetas

    @cached_property
    def _thetas(self) -> Array:
        return np.array([row.theta for row in self.solved]).reshape(-1, len(self.names))

    @cached_property
    def natural(self) -> Array:
        """The same in natural scale, (n, n_theta)."""
        with np.errstate(over="ignore"):
            return np.where(self.result.log, np.exp(np.where(self.result.log, self.thetas, 0.0)), self.thetas)

    @property
    def values(self) -> dict[str, Array]:
        """The estimates of each quantity, (n,), natural scale."""
        return dict(zip(self.names, self.natural.T, strict=True))

    @property
    def sigmas(self) -> dict[str, Array]:
        """The unknown standard deviations that were eliminated, (n,) each: the most likely values."""
        return {name: np.array([row.sigmas.get(name, np.nan) for row in self.solved]) for name in self.result.sigmas}

    @property
    def failures(self) -> dict[str, int]:
        """How many fits ended without a solution, by cause."""
        return failures(self.rows)

    @property
    def table(self) -> dict[str, NDArray[Any]]:
        """All data sets as columns, for instance for ``pandas.DataFrame(drawn.table)``; NaN where a fit failed."""
        cells: dict[str, Callable[[Refit], Any]] = {
            "data set": lambda row: row.index,
            "status": lambda row: row.status,
            "chi2": lambda row: row.chi2,
            "start": lambda row: row.start,
            "iterations": lambda row: row.iterations,
            "time": lambda row: row.time,
        }
        found = dict(zip((row.index for row in self.solved), self.natural.tolist(), strict=True))
        absent = dict.fromkeys(self.names, np.nan)

        def values(row: Refit) -> dict[str, float]:
            return dict(zip(self.names, found[row.index], strict=True)) if row.index in found else absent

        return columns(self.rows, cells, values=values)

    @property
    def covariance(self) -> Array:
        """Covariance of the draws, natural scale, (n_theta, n_theta)."""
        if len(self.solved) < _FEW:
            return np.full((len(self.names), len(self.names)), np.nan)
        return np.atleast_2d(np.cov(self.natural, rowvar=False))

    @property
    def standard_errors(self) -> dict[str, float]:
        """Standard deviations of the draws, natural scale."""
        with np.errstate(invalid="ignore"):
            return dict(zip(self.names, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    @property
    def correlation(self) -> Array:
        """Correlation of the draws, (n_theta, n_theta); NaN of what does not move."""
        errors = np.sqrt(np.diag(self.covariance))
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.covariance / errors[:, None] / errors

    @property
    def bias(self) -> dict[str, float]:
        """By how much the mean of the draws exceeds the estimate, natural scale: estimates minus this are unbiased."""
        mean = self.natural.mean(axis=0) if len(self.solved) else np.full(len(self.names), np.nan)
        return {n: float(m) - self.result.values[n] for n, m in zip(self.names, mean, strict=True)}

    def confidence_intervals(
        self, level: float | None = None, method: str = "bca", *, jackknife: LeaveOutResult | None = None
    ) -> dict[str, tuple[float, float]]:
        """Return the interval of each estimate.

        Parameters
        ----------
        level : float, optional
            By default the result's `confidence_level`.
        method : {"bca", "percentile"}
            "percentile" takes quantiles of the draws; "bca" corrects them for bias and for a spread that changes with
            the quantity, for which it needs to know what each datum pulls the estimates by.
        jackknife : LeaveOutResult, optional
            Where "bca" has that from: `castfit.leave_out`, of experiments or, exactly, of values.  By default values
            are left out linearly, at the estimate, which costs nothing.

        Returns
        -------
        dict
            NaN where there are too few draws for the level, and for "bca" where all draws lie on one side of the
            estimate.
        """
        chosen = self.result.confidence_level if level is None else real(level)
        given: Any = jackknife
        mistakes = option_mistakes(
            ("level", level, chosen is not None and 0.0 < chosen < 1.0, "it lies between 0 and 1"),
            ("method", method, is_one_of(method, *METHODS), "choose 'bca' or 'percentile'"),
            ("jackknife", jackknife, given is None or isinstance(given, LeaveOutResult), "give castfit.leave_out(...)"),
        )
        if given is not None and is_one_of(method, "percentile"):
            mistakes.append("jackknife is for method='bca'; leave it out")
        if isinstance(given, LeaveOutResult) and given.names != self.names:
            mistakes.append("jackknife is that of another fit; give castfit.leave_out of the same result")
        check("confidence_intervals", mistakes)
        assert chosen is not None
        if method == "percentile":
            pairs = [percentile(column, chosen) for column in self.thetas.T]
        else:
            a = self._acceleration if given is None else acceleration(given.moves)
            pairs = [
                bca(column, float(at), float(own), chosen)
                for column, at, own in zip(self.thetas.T, self.result.theta, a, strict=True)
            ]
        return self._natural_pairs(pairs)

    @cached_property
    def _acceleration(self) -> Array:
        posed = self._owner("confidence_intervals").posed.assuming(absolute_sigma=self.result.absolute_sigma)
        return acceleration(pull(posed, self.result).moves)

    def _natural_pairs(self, pairs: Sequence[tuple[float, float]]) -> dict[str, tuple[float, float]]:
        ends = np.array(pairs).reshape(-1, 2)
        with np.errstate(over="ignore"):
            ends = np.where(self.result.log[:, None], np.exp(np.where(self.result.log[:, None], ends, 0.0)), ends)
        return {name: (low, high) for name, (low, high) in zip(self.names, ends.tolist(), strict=True)}

    @property
    def limits(self) -> dict[str, dict[str, tuple[float, float]]]:
        """The intervals by their method, those to rely on first, at the result's `confidence_level`."""
        known = [m for m in METHODS[::-1] if m == "percentile" or self.result.problem is not None]
        return {"BCa" if m == "bca" else m: self.confidence_intervals(method=m) for m in known}

    def with_problem(self, problem: Posable) -> BootstrapResult:
        """Return it with the problem that it answers, after loading; see `Result.with_problem`."""
        return replace(self, result=self.result.with_problem(problem))

    def save(self, path: str | Path) -> None:
        """Write everything but the problem; the file is a checkpoint, from which a later run may go on."""
        first = {"kind": self.kind, "samples": len(self.rows), "result": self.result}
        write(path, self.header, [first, *({"row": row} for row in self.rows if row.finished)])

    @classmethod
    def load(cls, path: str | Path) -> BootstrapResult:
        """Read what `save` wrote, or the checkpoint of a run, finished or not.

        Raises
        ------
        InputError
            If the file is no checkpoint of a bootstrap, or damaged.
        """
        header, records, _ = read(path)
        if header is None or header.get("driver") != "bootstrap" or not records:
            raise InputError("BootstrapResult.load", [f"'{path}' holds no bootstrap; choose another file"])
        first = records[0]
        kept = read_rows(records)
        rows = tuple(kept.get(i, Refit(index=i)) for i in range(max(int(first["samples"]), *(i + 1 for i in kept), 0)))
        ended = f"Read from a file: {len(kept)} of {len(rows)} data sets were fitted."
        return cls(rebuilt(Result, first["result"]), first["kind"], rows, ended, np.nan, header)

    def summary(self) -> str:
        """Return the text that `print` shows."""
        took = "" if np.isnan(self.time) else f", {self.time:.1f} s"
        lines = [f"bootstrap, {self.kind}: {KINDS[self.kind]}{took}", self.message, ""]
        lines += [*self._table(), "", *self._failed(), *self._remarks()]
        return "\n".join(lines)

    __str__ = summary

    def _table(self) -> list[str]:
        level = f"{100 * self.result.confidence_level:g} %"
        methods = [m for m in METHODS if m == "percentile" or self.result.problem is not None]
        found = [self.confidence_intervals(method=m) for m in methods] + [self.result.confidence_intervals()]
        heads = [f"{level} {'BCa' if m == 'bca' else m}" for m in methods] + [f"{level} linear"]
        rows = [("", "value", "bias", "std. error", "linear", *heads)]
        for name, value in self.result.values.items():
            error, linear = self.standard_errors[name], self.result.standard_errors[name]
            cells = [_interval(pairs[name], error) for pairs in found]
            rows.append((name, rounded(value, error), f"{self.bias[name]:.2g}", _error(error), _error(linear), *cells))
        return aligned(rows, "<>>>>" + "<" * len(heads))

    def _failed(self) -> list[str]:
        """Say which fits failed and what that may do to the intervals."""
        failed = sum(self.failures.values())
        if not failed:
            return []
        rows = [
            ("failed", "cause", "for instance"),
            *((f"{n}", cause, said) for cause, n, said in failure_table(self.rows)),
        ]
        total = failed + len(self.solved)
        level = self.result.confidence_level
        lines = [
            *aligned(rows, "><<"),
            f"{failed} of {total} fits failed; errors and intervals are those of the others.",
        ]
        wider: list[str] = []
        for name, column in zip(self.names, self.thetas.T, strict=True):
            low, high = percentile(column, level)
            least, most = worst(column, failed, level)
            wider.append(f"{name} {_growth(high - low, most - least)}")
        shown = ", ".join(wider[:6]) + (", ..." if len(wider) > 6 else "")
        lines.append(
            f"Had all of them ended beyond either limit, percentile intervals would be wider, in search scale: {shown}."
        )
        return [*lines, ""]

    def _remarks(self) -> list[str]:
        said: list[str] = []
        fewest = int(np.ceil(2.0 / (1.0 - self.result.confidence_level))) - 1
        if len(self.solved) < fewest:
            level = f"{100 * self.result.confidence_level:g} %"
            said.append(f"{len(self.solved)} draws are too few for {level} intervals; {fewest} are the least.")
        elsewhere = sum(row.elsewhere for row in self.solved)
        if elsewhere:
            said.append(
                f"In {elsewhere} of {len(self.solved)} data sets another start found a better optimum than the "
                "estimate did: the draws are of several optima."
            )
        held = [n for n in self.names if n in self.result.active]
        if held:
            said.append(f"A bound holds {', '.join(held)} at the estimate; its draws pile up there.")
        posed = None if self.result.problem is None else self.result.problem.posed
        if posed is not None and posed.every_prior:
            said.append(
                "Priors were not drawn anew: where they hold information, more is unknown than estimates scatter."
            )
        if posed is not None and len(self.solved) >= fewest:
            both = self.confidence_intervals(), self.confidence_intervals(method="percentile")
            none = [n for n in self.names if np.isnan(both[0][n]).any() and np.isfinite(both[1][n]).all()]
            if none:
                said.append(
                    f"BCa limits of {', '.join(none)} are quantiles that {len(self.solved)} draws do not tell; raise "
                    "samples."
                )
        if posed is not None:
            said.append("BCa: acceleration from values left out one by one, linearly at the estimate.")
        return said

    def _owner(self, what: str) -> Posable:
        if self.result.problem is None:
            said = "a loaded bootstrap does not know its model; use drawn.with_problem(problem) first"
            raise InputError(what, [said])
        return self.result.problem

    def __repr__(self) -> str:
        failed = sum(self.failures.values())
        return f"BootstrapResult({self.kind}: {len(self.solved)} draws of {text(list(self.names))}, {failed} failed)"


def _error(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "inf" if value > 0 else "-"


def _interval(pair: tuple[float, float], error: float) -> str:
    if not np.isfinite(pair).all():
        return "-"
    low, high = (rounded(end, error) for end in pair)
    return f"[{low}, {high}]"


def _growth(before: float, after: float) -> str:
    if not np.isfinite(after):
        return "without limit"
    return f"by {100 * (after / before - 1):.0f} %" if before > 0.0 else "as they are"
