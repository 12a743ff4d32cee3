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

from castfit._support.reprs import brief
from castfit.result.confidence_region import Axis, ConfidenceRegion, half_width
from castfit.result.structural_identifiability import dense_times
from castfit.simulate.output_sensitivities import Responses, responses

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_problem import Posed

_UNKNOWN = 1e3  # standard error of what is not determined, in relative changes, or times the largest other
_DETERMINED = 0.1  # of that: what is below is determined
_HELPS = 0.9  # of the error: a value that leaves more than this is hardly worth it
_NOISE = 0.05  # relative error of outputs that nobody has measured, where nothing is known of any


@brief
@dataclass(frozen=True, eq=False, repr=False)
class Suggestion:
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
    before: float
    after: float
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class _Candidate:
    """Candidate value: remaining variance, output, experiment, time, and how many halve the error (inf: never)."""

    variance: float
    output: str
    experiment: str
    time: float
    to_halve: float


def _to_halve(before: float, across: float, own: float) -> float:
    """Return n with  before - n across / (1 + n own) = before / 4."""
    rest = across - 0.75 * before * own
    return 0.75 * before / rest if rest > 1e-9 * across > 0.0 else np.inf


def suggestions(
    posed: Posed, theta: Array, region: ConfidenceRegion, table: Mapping[str, Any], options: IntegratorOptions
) -> tuple[Suggestion, ...]:
    """Suggest one more value for the combination with the largest uncertainty.

    That is the best value of what is measured already, and the best of all if another output is better; none where
    nothing helps.  The table has columns ``experiment``, ``output``, ``time``, ``prediction`` and ``deviation``.
    """
    if not region.axes:
        return ()
    axis = region.axes[-1]
    C, scale = _covariance(region)
    h = np.array([axis.form.get(name, 0.0) for name in region.names])
    Ch = C @ h
    before = float(h @ Ch)
    best: dict[bool, _Candidate] = {}
    for condition in posed.conditions:
        found = responses(posed, condition, dense_times(condition), theta, options)
        if found is None:
            continue
        own = {n for n, of in zip(posed.outputs, condition.observed, strict=True) if of is not None}
        for j, name in enumerate(found.names):
            if name in _internal(posed):
                continue
            sigma = _deviations(table, found, j, condition.name)
            with np.errstate(divide="ignore", invalid="ignore"):
                s = found.slopes[:, j] / np.where(region.per_theta != 0.0, region.per_theta, np.inf) / sigma[:, None]
            across, own_variance = (s @ Ch) ** 2, np.einsum("ij,jk,ik->i", s, C, s)
            gain = across / (1.0 + own_variance)
            gain = np.where(np.isfinite(gain), gain, 0.0)
            i = int(np.argmax(gain))
            after = max(before - float(gain[i]), 0.0)
            if (name in own) not in best or after < best[name in own].variance:
                time = np.inf if condition.settled else float(found.times[i])
                count = _to_halve(before, float(across[i]), float(own_variance[i]))
                best[name in own] = _Candidate(after, name, condition.name, time, count)
    every = [_suggestion(axis, kind, found, scale, region) for kind, found in sorted(best.items(), reverse=True)]
    useful = [s for s in every if s.after < s.before]
    if len(useful) == 2 and useful[1].after >= _HELPS * useful[0].after:
        useful.pop()
    return tuple(useful)


def _internal(posed: Posed) -> set[str]:
    """Return outputs that nobody can measure: spreads of the noise, and what states remember."""
    remembered = {state for memory in posed.model.memories for state in memory.states}
    return {*posed.spreads, *remembered, *(memory.value for memory in posed.model.memories)}


def _covariance(region: ConfidenceRegion) -> tuple[Array, float]:
    """Return C, and the standard error that stands for not determined."""
    finite = region.root @ region.root.T
    scale = _UNKNOWN * max(1.0, float(np.sqrt(np.diag(finite).max(initial=0.0))))
    N = region.undetermined
    if N.shape[0]:
        Q = np.linalg.qr(N.T)[0]
        finite = finite + scale**2 * Q @ Q.T
    return finite, scale


def _deviations(table: Mapping[str, Any], found: Responses, j: int, experiment: str) -> Array:
    """Return the standard deviation of new values of an output, (n,): that of the measured ones, or as accurate."""
    name, deviation = found.names[j], np.asarray(table["deviation"], dtype=float)
    usable = np.isfinite(deviation) & (deviation > 0.0)
    own = usable & (table["output"] == name)
    here = own & (table["experiment"] == experiment)
    if here.any():
        order = np.argsort(table["time"][here], kind="stable")
        return np.interp(found.times, table["time"][here][order], deviation[here][order])
    size = float(np.sqrt(np.mean(found.values[:, j] ** 2))) or 1.0
    like = own if own.any() else usable
    predicted = np.asarray(table["prediction"], dtype=float)
    relative = [
        float(np.median(deviation[at])) / float(np.sqrt(np.mean(predicted[at] ** 2)))
        for at in (like & (table["output"] == n) for n in dict.fromkeys(table["output"][like].tolist()))
        if np.any(predicted[at])
    ]
    return np.full(found.times.size, size * (float(np.median(relative)) if relative else _NOISE))


def _suggestion(axis: Axis, measured: bool, found: _Candidate, scale: float, region: ConfidenceRegion) -> Suggestion:
    error = float(np.sqrt(found.variance))
    known = error < _DETERMINED * scale or np.isfinite(axis.known_to)
    after = region.factor * axis.unit * error if known else np.inf
    where = f"{found.output} in {found.experiment} {_when(found.time)}"
    accuracy = "with the accuracy of the existing measurements there" if measured else "not measured there yet; assumed as accurate as the others"
    said = f"To determine {axis.combination} more accurately, measure {where} ({accuracy})"
    if np.isfinite(after):
        now = half_width(axis.known_to, relative=axis.relative) if np.isfinite(axis.known_to) else "not determined"
        said += f": one additional measurement reduces the half-width to {half_width(after, relative=axis.relative)} (now {now})"
    if np.isfinite(axis.known_to) and 1.5 < found.to_halve < 1e4:
        said += f", {int(np.ceil(found.to_halve))} halve it"
    at = (found.output, found.experiment, found.time, measured)
    return Suggestion(axis.combination, *at, axis.known_to, after, f"{said}.")


def _when(time: float) -> str:
    return "at rest" if np.isinf(time) else f"at t = {time:.3g}"
