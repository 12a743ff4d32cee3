"""Structural identifiability: what the measured outputs could tell, however often and however well they were measured.

At random values of all quantities the measured outputs are computed densely in time and without errors.  What leaves
them alone there, at every draw, leaves them alone everywhere, but for chance: the rank of an analytic Jacobian is the
largest possible almost everywhere (Jacquez and Greif 1985).

Notation
--------
J  (m, n)   derivative of the outputs, each divided by its largest value, at one draw;  d (n,) its column norms
e  (m, n)   how much J changes if it is integrated ten times less accurately

    rank of J diag(1/d):  singular values above  s |e diag(1/d)|;  a column with d_j < s |e_j| is zero

with the safety factor s, so the rank tolerance follows from the measured integration error, not from a constant.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.reprs import add_brief_repr
from castfit.integrate import IntegratorOptions
from castfit.result.covariance import information
from castfit.result.identifiability import ConfoundedQuantities, combinations_of
from castfit.simulate.output_sensitivities import responses

if TYPE_CHECKING:
    from collections.abc import Callable

    from castfit._support.arrays import Array, Mask
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem


N_RANDOM_POINTS = 3  # points at which the rank is found
_FIRST_TIME_FRACTION = 1e-6  # First dense time after the start, as a fraction of the duration of the experiment.
N_DENSE_TIMES = 30  # at which each experiment is evaluated, beside its measured times
_MAX_DRAWS = 8  # Random points that are tried at most, because integration may fail.
_LOG_DRAW_WIDTH = 1.0  # of the logarithm of a draw: a factor of e to both sides, halved where integration fails
_RANK_SAFETY_FACTOR = 30.0  # Factor between the measured error of the Jacobian and the rank tolerance.
_MIN_SINGULAR_VALUE_FRACTION = 1e-10  # of the largest singular value
_INTEGRATION_RTOL = 1e-9  # Relative tolerance of the integrations.


@add_brief_repr
@dataclass(frozen=True, eq=False, repr=False)
class StructuralRank:
    """Structural identifiability of a problem whose outputs are known densely and without errors.

    names : quantities that were examined: all but those that appear in the noise only
    rank : number of directions that are determined; -1 if no draw could be integrated
    combinations : what is not, and what remains of it, such as ``only k1*k2 enters``
    margin : how many times the smallest singular value that counts exceeds the errors of the integration
    draws : at how many random points
    resolution : what is smaller than this part of the largest effect counts as none
    sentence : all that in words
    """

    names: tuple[str, ...]
    rank: int
    combinations: tuple[ConfoundedQuantities, ...]
    margin: float
    draws: int
    resolution: float
    sentence: str

    @property
    def identifiable(self) -> bool | None:
        """Whether everything is determined, near almost any values; None if that is not known."""
        return None if self.rank < 0 else self.rank == len(self.names)

    def find_combination(self, name: str) -> ConfoundedQuantities | None:
        """Return the combination in which a quantity is hidden; None if it is determined."""
        return next((c for c in self.combinations if name in c.names), None)

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  {c}" for c in self.combinations)])


def structure(
    compiled_problem: CompiledProblem,
    theta: Array,
    rng: np.random.Generator,
    options: IntegratorOptions,
    *,
    may_continue: Callable[[], bool] = lambda: True,
) -> StructuralRank:
    """Find the rank at random quantities around theta (n_theta,), within the bounds.

    theta (n_theta,)
    options : their method is used, with tolerances of this test
    may_continue : asked before each further draw; False ends the test with what is known
    """
    is_examined = np.array(
        [q.symbol_name not in compiled_problem.noise_parameters for q in compiled_problem.quantities], dtype=np.bool_
    )
    names = tuple(q.name for q, keep in zip(compiled_problem.quantities, is_examined, strict=True) if keep)
    fine_options = replace(options, relative_tolerance=_INTEGRATION_RTOL, absolute_tolerance=1e-2 * _INTEGRATION_RTOL)
    rough_options = replace(
        fine_options, relative_tolerance=10 * _INTEGRATION_RTOL, absolute_tolerance=1e-1 * _INTEGRATION_RTOL
    )
    magnitudes = magnitudes_of(compiled_problem, theta, rough_options)
    draw_results: list[StructuralRank] = []
    width = _LOG_DRAW_WIDTH
    for _ in range(_MAX_DRAWS):
        if len(draw_results) == N_RANDOM_POINTS or (draw_results and not may_continue()):
            break
        random_theta = random_values(compiled_problem, theta, magnitudes, rng, width)
        J, other = (
            _jacobian(compiled_problem, random_theta, tolerance_options)
            for tolerance_options in (fine_options, rough_options)
        )
        if J is None or other is None:
            width *= 0.5
            continue
        draw_results.append(
            _rank(
                compiled_problem,
                names,
                random_theta,
                J[:, is_examined],
                other[:, is_examined] - J[:, is_examined],
                is_examined,
            )
        )
    if not draw_results:
        sentence = (
            "Structural identifiability: not tested, because the model could not be integrated at random parameter "
            "values."
        )
        return StructuralRank(names, -1, (), np.nan, 0, np.nan, sentence)
    rank = max(f.rank for f in draw_results)
    best_draws = [f for f in draw_results if f.rank == rank]
    most_frequent_sentences = Counter(tuple(c.sentence for c in f.combinations) for f in best_draws).most_common(1)[0][
        0
    ]
    representative_result = next(
        f for f in best_draws if tuple(c.sentence for c in f.combinations) == most_frequent_sentences
    )
    combined_result = replace(representative_result, margin=min(f.margin for f in best_draws), draws=len(draw_results))
    return replace(combined_result, sentence=_sentence(combined_result))


def _sentence(rank_result: StructuralRank) -> str:
    points = f"{rank_result.draws} random point{'' if rank_result.draws == 1 else 's'}"
    where = f"(rank {rank_result.rank} of {len(rank_result.names)} at {points}, tolerance {rank_result.resolution:.0e})"
    if not rank_result.combinations:
        return (
            "Structurally identifiable: dense, error-free measurements of these outputs would determine every quantity "
            f"{where}."
        )
    combination_texts = "; ".join(c.sentence for c in rank_result.combinations)
    return (
        "Structurally not identifiable from these outputs, regardless of the amount of data: "
        f"{combination_texts} {where}."
    )


def _rank(
    compiled_problem: CompiledProblem, names: tuple[str, ...], theta: Array, J: Array, e: Array, is_examined: Mask
) -> StructuralRank:
    """Compute rank and undetermined combinations at one draw."""
    d, noise = np.linalg.norm(J, axis=0), np.linalg.norm(e, axis=0)
    has_no_effect = d <= _RANK_SAFETY_FACTOR * noise
    scale = np.where(has_no_effect, 1.0, d)
    effective_J = np.where(has_no_effect, 0.0, J)
    largest = float(np.linalg.norm(effective_J / scale, 2)) if not has_no_effect.all() else 1.0
    error = float(np.linalg.norm(np.where(has_no_effect, 0.0, e) / scale, 2))
    tolerance = max(_RANK_SAFETY_FACTOR * error / largest, _MIN_SINGULAR_VALUE_FRACTION)
    free = np.zeros(d.size, dtype=np.bool_)
    fisher_information = information(effective_J, np.zeros((0, d.size)), free, scale=scale, rank_tolerance=tolerance)
    values, slopes = compiled_problem.to_natural(theta)[is_examined], compiled_problem.natural_slope(theta)[is_examined]
    smallest = (
        float(fisher_information.singular_values[fisher_information.rank - 1]) if fisher_information.rank else np.nan
    )
    margin = smallest / max(error, np.finfo(float).eps * largest)
    hidden = combinations_of(names, values, slopes, fisher_information.directions, fisher_information.scale)
    return StructuralRank(names, fisher_information.rank, hidden, margin, 1, tolerance, "")


def random_values(
    compiled_problem: CompiledProblem, theta: Array, magnitudes: Array, rng: np.random.Generator, width: float
) -> Array:
    """Draw theta: values within a factor of exp(width), those at zero within their magnitude; between the bounds."""
    lower, upper = compiled_problem.bounds
    log_changes = width * rng.uniform(-1.0, 1.0, theta.size)
    natural = compiled_problem.to_natural(theta)

    def apply_change(change: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return compiled_problem.to_search(
                np.where(natural != 0.0, natural * np.exp(change), 0.5 * magnitudes * change)
            )

    shifted_values, mirrored_values = apply_change(log_changes), apply_change(-log_changes)
    values = np.clip(
        np.where((shifted_values < lower) | (shifted_values > upper), mirrored_values, shifted_values), lower, upper
    )
    # If both values are outside, use a value between the bounds.
    stuck = ((values <= lower) | (values >= upper)) & np.isfinite(upper - lower)
    part = 0.5 + 0.4 * np.clip(log_changes, -1.0, 1.0)
    return np.where(stuck, (1 - part) * np.where(stuck, lower, 0.0) + part * np.where(stuck, upper, 0.0), values)


def magnitudes_of(compiled_problem: CompiledProblem, theta: Array, options: IntegratorOptions) -> Array:
    """Return the sizes of quantities, natural scale: those at zero by what they do to the outputs."""
    natural, slope = compiled_problem.to_natural(theta), compiled_problem.natural_slope(theta)
    size = np.abs(natural)
    if (size > 0.0).all():
        return size
    J = _jacobian(compiled_problem, theta, options)
    if J is None:
        return np.where(size > 0.0, size, 1.0)
    effect = np.linalg.norm(J / np.where(slope != 0.0, slope, 1.0), axis=0) / np.sqrt(max(J.shape[0], 1))
    return np.where(size > 0.0, size, np.where(effect > 0.0, 1.0 / np.where(effect > 0.0, effect, 1.0), 1.0))


def dense_times(condition: Condition) -> Array:
    """Return times (n,) from start to end: those measured, those between, evenly spaced ones, and many early ones."""
    measured = np.unique(condition.points.times)
    if condition.is_steady_state:
        return measured
    span = condition.end - condition.start
    # Fast dynamics are visible at early times only.
    early = condition.start + span * np.geomspace(_FIRST_TIME_FRACTION, 1.0, N_DENSE_TIMES)
    even = np.append(np.linspace(condition.start, condition.end, N_DENSE_TIMES), early[:-1])
    anchor_times = np.unique(np.append(condition.start, measured))
    between = 0.5 * (anchor_times[1:] + anchor_times[:-1])
    if anchor_times.size > 2 * N_DENSE_TIMES:
        anchor_times, between = anchor_times[:: anchor_times.size // N_DENSE_TIMES], between[:0]
    times = np.unique(np.concatenate([even, anchor_times, between]))
    times = times[(times >= condition.start) & (times <= condition.end)]
    return times[np.append(True, np.diff(times) > 1e-2 * _FIRST_TIME_FRACTION * span)]


def _jacobian(compiled_problem: CompiledProblem, theta: Array, options: IntegratorOptions) -> Array | None:
    """Compute the derivative of the measured outputs, densely in time, each relative to its size, (m, n_theta)."""
    rows: list[Array] = []
    for condition in compiled_problem.conditions:
        names = [
            n
            for n, observable in zip(compiled_problem.outputs, condition.observed, strict=True)
            if observable is not None
        ]
        condition_responses = responses(
            compiled_problem, condition, dense_times(condition), theta, options, outputs=names
        )
        if condition_responses is None:
            return None
        size = np.abs(condition_responses.values).max(axis=0)
        slopes = np.abs(condition_responses.slopes).max(axis=(0, 2))
        unit = np.where(size > 0.0, size, np.where(slopes > 0.0, slopes, 1.0))
        rows.append((condition_responses.slopes / unit[:, None]).reshape(-1, theta.size))
    return np.concatenate(rows)
