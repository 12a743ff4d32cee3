"""Joint analysis of many local fits: the distinct optima, and the benefit of more starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from castfit._support.reprs import add_brief_repr, one_line
from castfit.problem.compiled_problem import CHI2, PETAB
from castfit.problem.problem import Posable
from castfit.result.covariance import neg2loglik
from castfit.transcribe.observation import constant as density_constant

# Relative difference of mean squares up to which two fits found the same optimum.
SAME_OPTIMUM_RTOL = 1e-4

_MAX_RELATIVE_SPREAD = 1e-2  # relative spread of an estimate above which an optimum does not determine it
_CONFIDENCE_TARGET = 0.99
_ROUNDING_RTOL = 1e-10  # rounding error of chi2, as a fraction of the sum of squared data
_MAX_LOG_ARGUMENT = 300.0


@add_brief_repr
@dataclass(frozen=True)
class Optimum:
    """An optimum and the starts that led to it.

    objective : the lowest that was found, in the measure of the problem: chi2, -2 log L, or PEtab's objective
    starts : which starts found it, the best first
    varying : quantities whose estimates differ although the objective does not: several optima of equal height (a
        symmetry), or a valley, as where something is not identifiable
    """

    objective: float
    starts: tuple[int, ...]
    varying: tuple[str, ...]

    @property
    def chi2(self) -> float:
        """The `objective`, which was called so before there were others."""
        return self.objective


@dataclass(frozen=True)
class ObjectiveMeasure:
    """Measure by which fits of a problem are compared: the objective of a `Result`, and the scale of its differences.

    measure : how it is called: "chi2" where sigmas are known, "PEtab's objective" of PEtab problems, else "-2 log L"
    n_data : number of data
    constant : -2 log L at cost 0; half of it belongs to PEtab's objective
    floor : what is smaller may be rounding, as where a model fits its data exactly: differences of chi2; of other
        measures the value itself
    squares : whether the cost is half of chi2, with priors

    Searches need a positive number whose relative differences mean something, whatever the units of the data add to a
    likelihood: the `height`, which is chi2 where the cost is half of it, else the chi2 of one unknown sigma for all,

        cost = n/2 log(height / n)    <=>    height = n exp(2 cost / n)
    """

    measure: str = CHI2
    n_data: int = 1
    constant: float = 0.0
    floor: float = 0.0
    squares: bool = True

    @classmethod
    def from_problem(cls, problem: Posable) -> ObjectiveMeasure:
        """Return the merit of fits of a problem."""
        compiled_problem = problem.posed
        observables = [observed for c in compiled_problem.conditions for observed in c.observed if observed is not None]
        has_known_sigma = compiled_problem.least_squares and not compiled_problem.groups
        has_single_sigma = compiled_problem.least_squares and {observed.group for observed in observables} == {
            0
        }  # one sigma is eliminated
        points = (condition.points for condition in compiled_problem.conditions)
        squares = np.concatenate([(p.values[p.mask] / p.sigma[p.mask]) ** 2 for p in points])
        size = float(squares.sum())
        if not (has_known_sigma or has_single_sigma):  # logarithms of spreads count, if any is estimated
            positive = squares[squares > 0.0]
            typical = float(np.exp(np.mean(np.log(positive)))) if positive.size else 0.0
            size = 0.0 if compiled_problem.absolute_sigma else squares.size * typical
        n_unknown = sum(
            int(c.points.mask[:, j].sum())
            for c in compiled_problem.conditions
            for j, observed in enumerate(c.observed)
            if observed is not None and observed.group >= 0
        )
        constant = neg2loglik(
            0.0, density_constant(compiled_problem) + compiled_problem.prior_constant, n_unknown=n_unknown
        )
        objective_measure = cls(
            compiled_problem.measure, compiled_problem.n_data, constant, _ROUNDING_RTOL * size, squares=has_known_sigma
        )
        if objective_measure.measure == CHI2:
            return objective_measure
        return replace(
            objective_measure,
            floor=objective_measure.at_height(objective_measure.floor)
            if size > 0.0 and not has_known_sigma
            else -np.inf,
        )

    def level(self, lowest: float, share: float = SAME_OPTIMUM_RTOL) -> float:
        """Return up to which objective fits are the same as the lowest: mean squares differ by that share, or less."""
        if self.measure != CHI2:
            return max(lowest, self.floor) + self._scale_factor * self.n_data * share
        return lowest + max(share * abs(lowest), self.floor)

    def compute_height(self, cost: float, chi2: float) -> float:
        """Return the height of a cost and a sum of squared weighted residuals."""
        if self.squares or not np.isfinite(cost):
            return chi2
        exponent = 2.0 * cost / self.n_data
        excess = max(exponent - _MAX_LOG_ARGUMENT, 0.0)  # grows on where the exponential would overflow
        return float(self.n_data * np.exp(exponent - excess) * (1.0 + excess))

    def at_height(self, height: float) -> float:
        """Return the objective of fits of that height."""
        if self.measure == CHI2 or not np.isfinite(height):
            return height
        if self.squares:
            return self._scale_factor * (height + self.constant)
        exponent = float(np.log(max(height, np.finfo(float).tiny) / self.n_data))
        if exponent > _MAX_LOG_ARGUMENT:
            exponent = _MAX_LOG_ARGUMENT + float(np.exp(exponent - _MAX_LOG_ARGUMENT)) - 1.0
        return self._scale_factor * (self.n_data * exponent + self.constant)

    def height_at(self, objective: float) -> float:
        """Return the height of fits of that objective."""
        value = objective if self.measure == CHI2 else objective / self._scale_factor - self.constant
        return value if self.squares or not np.isfinite(value) else self.compute_height(0.5 * value, np.nan)

    @property
    def _scale_factor(self) -> float:
        return 0.5 if self.measure == PETAB else 1.0


def group_optima(
    ends: Mapping[int, tuple[float, Mapping[str, float]]], merit: ObjectiveMeasure | None = None
) -> tuple[Optimum, ...]:
    """Gather fits of equal objective, the lowest first.

    ends : by start (objective, estimates) of the fits that succeeded
    merit : which differences are the same optimum; without it those of chi2
    """
    order = sorted(ends, key=lambda i: (ends[i][0], i))
    level = (merit or ObjectiveMeasure()).level
    groups: list[list[int]] = []
    for i in order:
        if groups and ends[i][0] <= level(ends[groups[-1][0]][0]):
            groups[-1].append(i)
        else:
            groups.append([i])
    return tuple(Optimum(ends[g[0]][0], tuple(g), _find_varying_names([ends[i][1] for i in g])) for g in groups)


def _find_varying_names(estimates: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    values_by_name = {name: np.array([e[name] for e in estimates]) for name in estimates[0]}
    return tuple(
        name for name, values in values_by_name.items() if np.ptp(values) > _MAX_RELATIVE_SPREAD * np.abs(values).max()
    )


def additional_fits_needed(w: int, N: int) -> int:
    """Return the number of further fits worth running after N fits with w distinct optima; see `StoppingEstimate`."""
    return max(2 * w**2 + 3 * w + 2 - N, 0)


@dataclass(frozen=True)
class StoppingEstimate:
    """Whether more starts are worth it.

    The starts are draws from an unknown number of regions of attraction of unknown sizes.  With N fits that ended in w
    different optima and no prior preference, the number of optima is expected to be w (N - 1) / (N - w - 2), and the
    total size of the regions not seen w (w + 1) / (N (N - 1)).  Looking on is not worth it once the expected number
    exceeds w by at most one half, which is N >= 2 w^2 + 3 w + 2 (Boender and Rinnooy Kan 1987, Mathematical Programming
    37, 59-80).

    n_fits, n_optima : N, of successful fits, and w
    unseen : expected probability that the next successful fit ends in an optimum not seen yet; 1 if it cannot be told
    expected_optima : expected number of optima; infinite if it cannot be told
    more_starts : number of starts after which looking on would no longer be worth it, if nothing new turned up
    success_rate : share of all starts that found the best optimum
    starts_for_best : number of starts needed to find the best optimum with probability 0.99, were the search begun anew
    """

    n_fits: int
    n_optima: int
    unseen: float
    expected_optima: float
    more_starts: int
    success_rate: float
    starts_for_best: float

    @classmethod
    def from_optima(cls, optima: Sequence[Optimum], n_starts: int) -> StoppingEstimate:
        """Judge optima that were found by `n_starts` starts, failed ones included."""
        w, N = len(optima), sum(len(optimum.starts) for optimum in optima)
        rate = len(optima[0].starts) / n_starts if optima else 0.0
        n_lacking = additional_fits_needed(w, N)
        return cls(
            n_fits=N,
            n_optima=w,
            unseen=min(w * (w + 1) / (N * (N - 1)), 1.0) if N > 1 else 1.0,
            expected_optima=w * (N - 1) / (N - w - 2) if N - w > 2 else np.inf,
            # Some of the further starts will fail as well.
            more_starts=int(np.ceil(n_lacking * n_starts / N)) if N else n_starts,
            success_rate=rate,
            starts_for_best=_count_needed_starts(rate),
        )

    def __repr__(self) -> str:
        return one_line(f"{type(self).__name__}({self.sentence})")

    @property
    def sentence(self) -> str:
        """The judgement in words."""
        if not self.n_fits:
            return "No start converged, so the number of optima cannot be estimated."
        counts = f"{self.n_optima} optim{'um' if self.n_optima == 1 else 'a'} in {self.n_fits} successful fits"
        if self.unseen < 1.0:
            expectation = f"the estimated probability that the next start finds a new optimum is {self.unseen:.2g}"
        else:
            expectation = "too few to estimate the probability of a new optimum"
        count = "no" if self.more_starts == 0 else f"about {self.more_starts}"
        advice = f"{count} more {'start is' if self.more_starts == 1 else 'starts are'} recommended"
        return f"{counts}: {expectation}; {advice}."


def _count_needed_starts(rate: float) -> float:
    if rate <= 0.0:
        return np.inf
    return 1.0 if rate >= 1.0 else float(np.ceil(np.log(1.0 - _CONFIDENCE_TARGET) / np.log(1.0 - rate)))
