"""Choice of the next measurement: output, experiment and time of the value that best determines a combination.

Notation
--------
C  (n, n)  covariance of relative changes u, with a large but finite variance along what is not determined
h  (n,)    the combination; s (n,) what it does to a candidate:  d y / d u  over the standard deviation of a new value

    variance of h after one value of y:   h C h - (h C s)^2 / (1 + s C s)        [a rank-one update]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr
from castfit._support.ties import first_argmax
from castfit.result.confidence_region import Axis, ConfidenceRegion, half_width
from castfit.simulate.output_sensitivities import OutputSensitivities, responses

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem

# Assumed standard error of an undetermined combination, in relative changes or times the largest other error.
_UNDETERMINED_SE_FACTOR = 1e3
_DETERMINED_FRACTION = 0.1  # Fraction of the assumed standard error below which a combination is determined.
_MAX_REMAINING_ERROR = 0.9  # Fraction of the error above which a further value is not suggested.
_FIRST_TIME_FRACTION = 1e-6  # First dense time after the start, as a fraction of the duration of the experiment.
_N_DENSE_TIMES = 30  # at which each experiment is evaluated, beside its measured times
_DEFAULT_RELATIVE_ERROR = 0.05  # Assumed relative error of an output if no measured output has a known error.


@with_old_names(before="error_before", after="error_after")
@add_brief_repr
@dataclass(frozen=True, eq=False, repr=False)
class MeasurementSuggestion:
    """One more value that would help most.

    combination : what it would help to know
    measured : whether this output is measured in this experiment already
    before, after : to what the combination is known, in half-widths as those of `Axis.known_to`; inf for not at all.
    sentence : all that in words
    """

    combination: str
    output: str
    experiment: str
    time: float
    measured: bool
    error_before: float
    error_after: float
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class _MeasurementCandidate:
    """Candidate value: remaining variance, output, experiment, time, and how many halve the error (inf: never)."""

    variance: float
    output: str
    experiment: str
    time: float
    to_halve: float


def _values_to_halve(current_variance: float, squared_covariance: float, response_variance: float) -> float:
    """Return n with  before - n across / (1 + n own) = before / 4."""
    denominator = squared_covariance - 0.75 * current_variance * response_variance
    return 0.75 * current_variance / denominator if denominator > 1e-9 * squared_covariance > 0.0 else np.inf


def suggestions(
    compiled_problem: CompiledProblem,
    theta: Array,
    region: ConfidenceRegion,
    table: Mapping[str, Any],
    options: IntegratorOptions,
) -> tuple[MeasurementSuggestion, ...]:
    """Suggest one more value for the combination with the largest uncertainty.

    The suggestions are the best value of a measured output, and the best value of all outputs if another output is
    better.  They are empty if no value helps.  The table has columns ``experiment``, ``output``, ``time``,
    ``prediction`` and ``deviation``.
    """
    if not region.axes:
        return ()
    axis = region.axes[-1]
    C, scale = _covariance(region)
    h = np.array([axis.form.get(name, 0.0) for name in region.names])
    Ch = C @ h
    current_variance = float(h @ Ch)
    best: dict[bool, _MeasurementCandidate] = {}
    for condition in compiled_problem.conditions:
        condition_responses = responses(compiled_problem, condition, _dense_times(condition), theta, options)
        if condition_responses is None:
            continue
        observed_names = {
            n
            for n, observable in zip(compiled_problem.outputs, condition.observed, strict=True)
            if observable is not None
        }
        for j, name in enumerate(condition_responses.names):
            if name in _internal(compiled_problem):
                continue
            sigma = _deviations(table, condition_responses, j, condition.name)
            with np.errstate(divide="ignore", invalid="ignore"):
                s = (
                    condition_responses.slopes[:, j]
                    / np.where(region.per_theta != 0.0, region.per_theta, np.inf)
                    / sigma[:, None]
                )
            squared_covariance, response_variance = (s @ Ch) ** 2, np.einsum("ij,jk,ik->i", s, C, s)
            gain = squared_covariance / (1.0 + response_variance)
            gain = np.where(np.isfinite(gain), gain, 0.0)
            i = first_argmax(gain)
            remaining_variance = max(current_variance - float(gain[i]), 0.0)
            if (name in observed_names) not in best or remaining_variance < best[name in observed_names].variance:
                time = np.inf if condition.is_steady_state else float(condition_responses.times[i])
                count = _values_to_halve(current_variance, float(squared_covariance[i]), float(response_variance[i]))
                best[name in observed_names] = _MeasurementCandidate(
                    remaining_variance, name, condition.name, time, count
                )
    all_suggestions = [
        _suggestion(axis, kind, candidate, scale, region) for kind, candidate in sorted(best.items(), reverse=True)
    ]
    useful = [s for s in all_suggestions if s.error_after < s.error_before]
    if len(useful) == 2 and useful[1].error_after >= _MAX_REMAINING_ERROR * useful[0].error_after:
        useful.pop()
    return tuple(useful)


def _internal(compiled_problem: CompiledProblem) -> set[str]:
    """Return outputs that cannot be measured: spreads of the noise, and outputs over intervals."""
    remembered = {state for memory in compiled_problem.model.memories for state in memory.states}
    return {*compiled_problem.spreads, *remembered, *(memory.value for memory in compiled_problem.model.memories)}


def _covariance(region: ConfidenceRegion) -> tuple[Array, float]:
    """Return C, and the standard error that stands for not determined."""
    finite = region.root @ region.root.T
    scale = _UNDETERMINED_SE_FACTOR * max(1.0, float(np.sqrt(np.diag(finite).max(initial=0.0))))
    N = region.undetermined
    if N.shape[0]:
        Q = np.linalg.qr(N.T)[0]
        finite = finite + scale**2 * Q @ Q.T
    return finite, scale


def _deviations(table: Mapping[str, Any], condition_responses: OutputSensitivities, j: int, experiment: str) -> Array:
    """Return the standard deviation of new values of an output, (n,): that of the measured ones, or as accurate."""
    name, deviation = condition_responses.names[j], np.asarray(table["deviation"], dtype=float)
    usable = np.isfinite(deviation) & (deviation > 0.0)
    is_output = usable & (table["output"] == name)
    is_same_series = is_output & (table["experiment"] == experiment)
    if is_same_series.any():
        order = np.argsort(table["time"][is_same_series], kind="stable")
        return np.interp(
            condition_responses.times, table["time"][is_same_series][order], deviation[is_same_series][order]
        )
    size = float(np.sqrt(np.mean(condition_responses.values[:, j] ** 2))) or 1.0
    is_reference = is_output if is_output.any() else usable
    predicted = np.asarray(table["prediction"], dtype=float)
    relative = [
        float(np.median(deviation[rows])) / float(np.sqrt(np.mean(predicted[rows] ** 2)))
        for rows in (
            is_reference & (table["output"] == n) for n in dict.fromkeys(table["output"][is_reference].tolist())
        )
        if np.any(predicted[rows])
    ]
    return np.full(
        condition_responses.times.size, size * (float(np.median(relative)) if relative else _DEFAULT_RELATIVE_ERROR)
    )


def _suggestion(
    axis: Axis, measured: bool, candidate: _MeasurementCandidate, scale: float, region: ConfidenceRegion
) -> MeasurementSuggestion:
    error = float(np.sqrt(candidate.variance))
    is_determined = error < _DETERMINED_FRACTION * scale or np.isfinite(axis.known_to)
    width_after = region.factor * axis.unit * error if is_determined else np.inf
    where = f"{candidate.output} in {candidate.experiment} {_when(candidate.time)}"
    accuracy = (
        "with the accuracy of the existing measurements there"
        if measured
        else "not measured there yet; assumed as accurate as the others"
    )
    sentence = f"To determine {axis.combination} more accurately, measure {where} ({accuracy})"
    if np.isfinite(width_after):
        current_text = (
            half_width(axis.known_to, relative=axis.relative) if np.isfinite(axis.known_to) else "not determined"
        )
        sentence += (
            ": one additional measurement reduces the half-width to "
            f"{half_width(width_after, relative=axis.relative)} (now {current_text})"
        )
    if np.isfinite(axis.known_to) and 1.5 < candidate.to_halve < 1e4:
        sentence += f", {int(np.ceil(candidate.to_halve))} halve it"
    measurement = (candidate.output, candidate.experiment, candidate.time, measured)
    return MeasurementSuggestion(axis.combination, *measurement, axis.known_to, width_after, f"{sentence}.")


def _when(time: float) -> str:
    return "at rest" if np.isinf(time) else f"at t = {time:.3g}"


def _dense_times(condition: Condition) -> Array:
    """Return times (n,) from start to end: those measured, those between, evenly spaced ones, and many early ones."""
    measured = np.unique(condition.points.times)
    if condition.is_steady_state:
        return measured
    span = condition.end - condition.start
    # Fast dynamics are visible at early times only.
    early = condition.start + span * np.geomspace(_FIRST_TIME_FRACTION, 1.0, _N_DENSE_TIMES)
    even = np.append(np.linspace(condition.start, condition.end, _N_DENSE_TIMES), early[:-1])
    anchor_times = np.unique(np.append(condition.start, measured))
    between = 0.5 * (anchor_times[1:] + anchor_times[:-1])
    if anchor_times.size > 2 * _N_DENSE_TIMES:
        anchor_times, between = anchor_times[:: anchor_times.size // _N_DENSE_TIMES], between[:0]
    times = np.unique(np.concatenate([even, anchor_times, between]))
    times = times[(times >= condition.start) & (times <= condition.end)]
    return times[np.append(True, np.diff(times) > 1e-2 * _FIRST_TIME_FRACTION * span)]
