"""`identifiability`: structural and practical identifiability of the quantities, and what to measure next.

structural   quantities that the measured outputs do not determine, even with dense data without errors
             (castfit.result.structural_identifiability)
practical    quantities that these data do not determine, although the outputs could
             (castfit.result.identifiability, confidence_region)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import option_mistakes, read_names, read_real, rng_mistakes
from castfit._support.arrays import Array
from castfit._support.blas_threads import one_blas_thread
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr, join_limited
from castfit._support.status import Status, raise_if_mistakes, unknown_names
from castfit._support.text_tables import TabularReport, TextTable
from castfit._support.ties import stable_order
from castfit._support.time_limit import (
    StopRequested,
    check_deadline,
    guarded,
    is_interrupted,
    with_deadline,
    without_deadline,
)
from castfit.drive.run.run_result import STOPS
from castfit.drive.uncertainty.inputs import problem_mistakes
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import Posable
from castfit.result.collinearity import (
    MAX_COLLINEARITY_INDEX,
    collinearity,
    largest_subset,
    most_collinear,
    sensitivities,
)
from castfit.result.confidence_region import ConfidenceRegion
from castfit.result.covariance import statistics
from castfit.result.experimental_design import MeasurementSuggestion, suggestions
from castfit.result.identifiability import AT_BOUND, NOT_IDENTIFIABLE, POORLY_DETERMINED, UNKNOWN, WELL_DETERMINED
from castfit.result.interval_ends import with_interval_checks
from castfit.result.result import Result
from castfit.result.structural_identifiability import StructuralRank, structure
from castfit.transcribe.single_shooting import SingleShooting

STRUCTURAL = "structurally not identifiable"
PRACTICAL = "practically not identifiable"
POORLY = "practically poorly determined"
_MAX_COLLINEAR_PAIRS = 3  # pairs: the study lists the most collinear ones
_CHECK_TIME_SHARE = 0.25  # share of the time in which intervals are checked
_CVODES_ERROR_FACTOR = 10.0  # times rtol: assumed relative error of sensitivities by CVODES


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False, repr=False)
class IdentifiabilityStudy(TabularReport):
    """Result of a study of structural and practical identifiability; ``print`` shows it.

    Attributes
    ----------
    names : tuple of str
    kinds : dict
        By name: "structurally not identifiable", "practically not identifiable", "practically poorly determined", or
        the status of the fit, such as "well determined" or "at its bound".
    remarks : dict
        By name, a sentence.
    structure : StructuralRank
        The quantities that dense data without errors would determine, from exact arithmetic.
    sensitivity : dict
        By name, the largest first: how many standard deviations a datum moves, in root mean square, if the quantity
        changes by its own size (delta^msqr of Brun et al. 2001).
    collinear : tuple of (names, index)
        The most collinear pairs and triples.
    subset : tuple of str
        The largest set of quantities that can be estimated together: collinearity at most 10.
    region : ConfidenceRegion or None
        Of a fit that succeeded.
    suggestions : tuple of Suggestion
        Effects of one additional measurement on the most uncertain combination.
    information : (n, n) array
        Fisher's information on theta; without a fit, that of the design at the guess.
    message : str
        Why parts are missing; empty if none is.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> found = cf.identifiability(problem, rng=0)
    >>> found.kinds["k1"]
    'well determined'
    >>> round(found.collinearity(["k1", "k2"]), 1)
    2.2
    """

    names: tuple[str, ...]
    kinds: Mapping[str, str]
    remarks: Mapping[str, str]
    structure: StructuralRank
    sensitivity: Mapping[str, float]
    collinear: tuple[tuple[tuple[str, ...], float], ...]
    subset: tuple[str, ...]
    region: ConfidenceRegion | None
    suggestions: tuple[MeasurementSuggestion, ...]
    information: Array
    message: str = ""

    def collinearity(self, names: Sequence[str]) -> float:
        """Return the collinearity index of some quantities (Brun et al. 2001); above 10, not identifiable together.

        Raises
        ------
        InputError
            For names that are not estimated.
        """
        mistakes: list[str] = []
        requested_names = read_names("names", names, (), mistakes)
        mistakes += unknown_names("'{}' is not estimated", requested_names, self.names)
        raise_if_mistakes("collinearity", mistakes)
        return collinearity(self.information, [self.names.index(n) for n in dict.fromkeys(requested_names)])

    @property
    def table(self) -> TextTable:
        """One row per quantity, the one that moves the data most first."""
        gains_by_name = {} if self.region is None else dict(zip(self.names, self.region.gains.tolist(), strict=True))

        def gain(name: str) -> str:
            value = gains_by_name.get(name, np.nan)
            return "-" if np.isnan(value) else "inf" if np.isinf(value) else f"{value:.2g}"

        return TextTable.from_items(
            self.sensitivity,
            ("", lambda n: n),
            (">moves data by", lambda n: f"{self.sensitivity[n]:.3g} sigma" if self.information.any() else "-"),
            (">gain if others known", lambda n: f"{gain(n)} times" if gain(n) != "-" else "-"),
            ("verdict", lambda n: self.remarks[n]),
        )

    def _needs_advice(self, name: str) -> bool:
        """Check whether a quantity is not yet well determined or at its bound; always True before a fit."""
        return self.region is None or self.kinds[name] not in (WELL_DETERMINED, AT_BOUND)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Messages that supplement the table and explain the verdicts."""
        messages = [self.message] * bool(self.message) + [self.structure.sentence]
        other_names = [n for n in self.names if n not in self.subset and self._needs_advice(n)]
        if not self.information.any():
            messages.append(
                "No sensitivities: the model could not be integrated at this point, or its outputs do not change."
            )
        elif other_names:
            count_text = f"{len(self.subset)} of {len(self.names)}"
            measure_hint = "" if any(self.kinds[n] == STRUCTURAL for n in other_names) else ", or measure more"
            messages.append(
                f"Estimable together: {join_limited(self.subset)} ({count_text}); "
                f"fix {join_limited(other_names)}{measure_hint}."
            )
        for names, index in self.collinear:
            if np.isinf(index):
                messages.append(f"{' and '.join(names)} are not distinguishable.")
            elif index > MAX_COLLINEARITY_INDEX and any(map(self._needs_advice, names)):
                messages.append(f"{' and '.join(names)} are nearly collinear (collinearity index {index:.3g}).")
            elif index > MAX_COLLINEARITY_INDEX:
                messages.append(
                    f"Changes in the other quantities compensate all but {100 / index:.2g} % of the effect of one of "
                    f"{join_limited(names)} (collinearity index {index:.3g}). The standard errors include this."
                )
        if self.region is not None:
            messages += self.region.sentences
        messages += [s.sentence for s in self.suggestions]
        worst_axis = None if self.region is None or not self.region.axes else self.region.axes[-1]
        if worst_axis is not None and np.isinf(worst_axis.standard_error) and not self.suggestions:
            messages.append(
                f"No additional measurement was found that would determine {worst_axis.combination} at this point: "
                "fix a quantity or add a prior."
            )
        return tuple(messages)

    @property
    def parts(self) -> tuple[TextTable | str, ...]:
        """The table, and the sentences below it."""
        return self.table, *self.sentences


@guarded
@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def identifiability(
    problem: Result | Posable, *, rng: int | np.random.Generator = 0, max_time: float = 60.0
) -> IdentifiabilityStudy:
    """Assess structural and practical identifiability, and suggest what to measure next.

    Parameters
    ----------
    problem : Result, Problem or Posed
        With a fit, the information of the data at the estimate is used; with a problem, that of the design at the
        guess, without the values of the data.  Structural identifiability depends on neither.
    rng : int or numpy.random.Generator
        Draws the points of finite fields at which the rank is computed; the answer does not depend on it, but for
        chance.
    max_time : float
        Seconds, after which parts that have not ended are left out.

    Returns
    -------
    IdentifiabilityStudy
        Also if no quantity is identifiable.

    Raises
    ------
    InputError
        For a loaded result without its problem, or options out of range.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> cf.identifiability(problem, rng=0).kinds
    {'k1': 'well determined', 'k2': 'well determined'}
    """
    start_time, limit = time.perf_counter(), read_real(max_time)
    source: Any = problem
    mistakes = rng_mistakes(rng)
    mistakes += option_mistakes(
        ("max_time", max_time, limit is not None and limit > 0.0, "expected a number of seconds")
    )
    mistakes += problem_mistakes(source, "expected a Result or a Problem")
    raise_if_mistakes("identifiability", mistakes)
    assert limit is not None
    if isinstance(source, Result):
        assert source.problem is not None
        fit_result = source if source.success else None
        with suppress(StopRequested):  # the next part looks again
            fit_result = fit_result and with_interval_checks(source, max_time=_CHECK_TIME_SHARE * limit)
        theta, options = source.theta, source.integrator
        compiled_problem = source.problem.posed.with_absolute_sigma(absolute_sigma=source.absolute_sigma)
    else:
        fit_result, theta, options, compiled_problem = None, source.posed.guess, IntegratorOptions(), source.posed
    generator = np.random.default_rng(rng)
    cause: Status | None = None
    try:
        with with_deadline(start_time + limit - time.perf_counter()):
            structural_rank = structure(
                compiled_problem, generator, may_continue=lambda: time.perf_counter() - start_time < 0.5 * limit
            )
    except StopRequested as stop:
        sentence, cause = "Structural identifiability: not tested.", stop.status
        structural_rank = StructuralRank(compiled_problem.names, -1, (), np.nan, 0, sentence)
    with without_deadline():  # one evaluation, without which there is no result
        information = (
            np.asarray(fit_result.information) if fit_result is not None else _design(compiled_problem, theta, options)
        )
    region = None if fit_result is None else fit_result.confidence_region()
    sizes = (
        _sizes(compiled_problem, theta)
        if region is None
        else 1.0 / np.where(region.per_theta != 0, region.per_theta, np.inf)
    )
    effect = sensitivities(information, np.abs(sizes), compiled_problem.n_data)
    order = stable_order(effect, descending=True)
    pairs = most_collinear(information, 2, _MAX_COLLINEAR_PAIRS)
    collinear_pairs = [indices for indices, index in pairs if index > MAX_COLLINEARITY_INDEX]
    pairs += [
        (indices, g)
        for indices, g in most_collinear(information, 3, 1)
        if not any(np.isin(pair, indices).all() for pair in collinear_pairs)
    ]
    names = compiled_problem.names
    kinds = {name: _kind(name, structural_rank, fit_result) for name in names}
    advice: tuple[MeasurementSuggestion, ...] = ()
    if fit_result is not None and region is not None:
        try:
            with with_deadline(start_time + limit - time.perf_counter()):
                check_deadline()
                table = {**fit_result.residual_table(), "deviation": fit_result.deviations}
                advice = suggestions(compiled_problem, theta, region, table, options)
        except StopRequested as stop:
            cause = stop.status
    return IdentifiabilityStudy(
        names=names,
        kinds={name: kind for name, (kind, _) in kinds.items()},
        remarks={name: remark for name, (_, remark) in kinds.items()},
        structure=structural_rank,
        sensitivity={names[j]: float(effect[j]) for j in order},
        collinear=tuple((_select_names(names, indices), index) for indices, index in pairs),
        subset=_select_names(names, largest_subset(information, np.abs(sizes))),
        region=region,
        suggestions=advice,
        information=information,
        message=STOPS[Status.INTERRUPTED] if is_interrupted() else STOPS[cause] if cause else "",
    )


def _select_names(names: Sequence[str], indices: NDArray[np.intp]) -> tuple[str, ...]:
    return tuple(names[int(j)] for j in indices)


def _kind(name: str, structural_rank: StructuralRank, fit_result: Result | None) -> tuple[str, str]:
    """Return the identifiability kind of a quantity, structural or practical, and a sentence that explains it."""
    hidden_combination = structural_rank.find_combination(name)
    if hidden_combination is not None:
        error = np.inf if fit_result is None else fit_result.standard_errors[name]
        remark = "; determined only by priors" if np.isfinite(error) else ""
        return STRUCTURAL, f"{STRUCTURAL}: {hidden_combination.sentence}{remark}"
    if fit_result is None:
        if structural_rank.rank < 0 or name not in structural_rank.names:
            return UNKNOWN, "not examined"
        return WELL_DETERMINED, "structurally identifiable"
    status = fit_result.identifiability[name]
    structural_text = (
        "identifiable from dense, error-free data"
        if structural_rank.rank >= 0
        else "structural identifiability is not known"
    )
    if status.kind == NOT_IDENTIFIABLE:
        return PRACTICAL, f"{PRACTICAL}: {status.sentence.removeprefix('not identifiable: ')}, but {structural_text}"
    if status.kind == POORLY_DETERMINED:
        detail = status.sentence.removeprefix("poorly determined: ")
        return POORLY, f"{POORLY}: {detail}; {structural_text}"
    return status.kind, status.sentence


def _sizes(compiled_problem: CompiledProblem, theta: Array) -> Array:
    """Return the size in search scale that corresponds to a relative change of 1, at the guess."""
    natural = np.abs(compiled_problem.to_natural(theta))
    return np.where(compiled_problem.log, 1.0, np.where(natural > 0.0, natural, 1.0))


def _design(compiled_problem: CompiledProblem, theta: Array, options: IntegratorOptions) -> Array:
    """Return Fisher's information of the design at theta; zeros where the model cannot be integrated there."""
    staged = SingleShooting(options).transcribe(compiled_problem, theta).explicit()
    linear = staged.linearize(theta)
    n = theta.size
    if not linear.ok:
        return np.zeros((n, n))
    fit_statistics = statistics(
        staged.layout, linear, np.zeros(staged.layout.n_v, dtype=np.int8),
        scale=staged.scale, relative_tolerance=_CVODES_ERROR_FACTOR * options.relative_tolerance,
    )  # fmt: skip
    return np.where(np.isfinite(fit_statistics.information), fit_statistics.information, 0.0)
