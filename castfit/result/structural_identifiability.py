"""Structural identifiability: what the measured outputs could tell, however often and however well they were measured.

At random values of all quantities the measured outputs are computed densely in time and without errors.  What leaves
them alone there, at every draw, leaves them alone everywhere, but for chance: the rank of an analytic Jacobian is the
largest possible almost everywhere (Jacquez and Greif 1985).

Notation
--------
J  (m, n)   derivative of the outputs, each divided by its largest value, at one draw;  d (n,) its column norms
e  (m, n)   how much J changes if it is integrated ten times less accurately

    rank of J diag(1/d):  singular values above  SAFETY |e diag(1/d)|;  a column with d_j < SAFETY |e_j| is zero

so that what is rounding follows from the integration itself, not from a constant.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.reprs import brief
from castfit.integrate import IntegratorOptions
from castfit.result.covariance import information
from castfit.result.identifiability import Combination, combinations_of
from castfit.simulate.output_sensitivities import responses

if TYPE_CHECKING:
    from collections.abc import Callable

    from castfit._support.arrays import Array, Mask
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import Posed


DRAWS = 3  # points at which the rank is found
_EARLIEST = 1e-6  # of an experiment: the first time after its start
TIMES = 30  # at which each experiment is evaluated, beside its measured times
_TRIES = 8  # draws, at most, where integration fails
_WIDTH = 1.0  # of the logarithm of a draw: a factor of e to both sides, halved where integration fails
_SAFETY = 30.0
_FLOOR = 1e-10  # of the largest singular value
_TOLERANCE = 1e-9  # of the integration


@brief
@dataclass(frozen=True, eq=False, repr=False)
class Structure:
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
    combinations: tuple[Combination, ...]
    margin: float
    draws: int
    resolution: float
    sentence: str

    @property
    def identifiable(self) -> bool | None:
        """Whether everything is determined, near almost any values; None if that is not known."""
        return None if self.rank < 0 else self.rank == len(self.names)

    def of(self, name: str) -> Combination | None:
        """Return the combination in which a quantity is hidden; None if it is determined."""
        return next((c for c in self.combinations if name in c.names), None)

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  {c}" for c in self.combinations)])


def structure(
    posed: Posed,
    theta: Array,
    rng: np.random.Generator,
    options: IntegratorOptions,
    *,
    wanted: Callable[[], bool] = lambda: True,
) -> Structure:
    """Find the rank at random quantities around theta (n_theta,), within the bounds.

    theta (n_theta,)
    options : their method is used, with tolerances of this test
    wanted : asked before each further draw; False ends the test with what is known
    """
    kept = np.array([q.of not in posed.noise_parameters for q in posed.quantities], dtype=np.bool_)
    names = tuple(q.name for q, keep in zip(posed.quantities, kept, strict=True) if keep)
    fine = replace(options, relative_tolerance=_TOLERANCE, absolute_tolerance=1e-2 * _TOLERANCE)
    rough = replace(fine, relative_tolerance=10 * _TOLERANCE, absolute_tolerance=1e-1 * _TOLERANCE)
    magnitudes = magnitudes_of(posed, theta, rough)
    found: list[Structure] = []
    width = _WIDTH
    for _ in range(_TRIES):
        if len(found) == DRAWS or (found and not wanted()):
            break
        at = random_values(posed, theta, magnitudes, rng, width)
        J, other = (_jacobian(posed, at, chosen) for chosen in (fine, rough))
        if J is None or other is None:
            width *= 0.5
            continue
        found.append(_rank(posed, names, at, J[:, kept], other[:, kept] - J[:, kept], kept))
    if not found:
        sentence = "Structural identifiability: not tested, because the model could not be integrated at random parameter values."
        return Structure(names, -1, (), np.nan, 0, np.nan, sentence)
    rank = max(f.rank for f in found)
    best = [f for f in found if f.rank == rank]
    said = Counter(tuple(c.sentence for c in f.combinations) for f in best).most_common(1)[0][0]
    chosen = next(f for f in best if tuple(c.sentence for c in f.combinations) == said)
    counted = replace(chosen, margin=min(f.margin for f in best), draws=len(found))
    return replace(counted, sentence=_sentence(counted))


def _sentence(found: Structure) -> str:
    points = f"{found.draws} random point{'' if found.draws == 1 else 's'}"
    where = f"(rank {found.rank} of {len(found.names)} at {points}, tolerance {found.resolution:.0e})"
    if not found.combinations:
        return f"Structurally identifiable: dense, error-free measurements of these outputs would determine every quantity {where}."
    said = "; ".join(c.sentence for c in found.combinations)
    return f"Structurally not identifiable from these outputs, regardless of the amount of data: {said} {where}."


def _rank(posed: Posed, names: tuple[str, ...], theta: Array, J: Array, e: Array, kept: Mask) -> Structure:
    """Compute rank and undetermined combinations at one draw."""
    d, noise = np.linalg.norm(J, axis=0), np.linalg.norm(e, axis=0)
    dead = d <= _SAFETY * noise
    scale = np.where(dead, 1.0, d)
    live = np.where(dead, 0.0, J)
    largest = float(np.linalg.norm(live / scale, 2)) if not dead.all() else 1.0
    error = float(np.linalg.norm(np.where(dead, 0.0, e) / scale, 2))
    tolerance = max(_SAFETY * error / largest, _FLOOR)
    free = np.zeros(d.size, dtype=np.bool_)
    known = information(live, np.zeros((0, d.size)), free, scale=scale, rank_tolerance=tolerance)
    values, slopes = posed.to_natural(theta)[kept], posed.natural_slope(theta)[kept]
    smallest = float(known.singular_values[known.rank - 1]) if known.rank else np.nan
    margin = smallest / max(error, np.finfo(float).eps * largest)
    hidden = combinations_of(names, values, slopes, known.directions, known.scale)
    return Structure(names, known.rank, hidden, margin, 1, tolerance, "")


def random_values(posed: Posed, theta: Array, magnitudes: Array, rng: np.random.Generator, width: float) -> Array:
    """Draw theta: values within a factor of exp(width), those at zero within their magnitude; between the bounds."""
    lower, upper = posed.bounds
    away = width * rng.uniform(-1.0, 1.0, theta.size)
    natural = posed.to_natural(theta)

    def beyond(change: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return posed.to_search(np.where(natural != 0.0, natural * np.exp(change), 0.5 * magnitudes * change))

    moved, mirrored = beyond(away), beyond(-away)
    out = np.clip(np.where((moved < lower) | (moved > upper), mirrored, moved), lower, upper)
    # Where both lie outside, a place between the bounds.
    stuck = ((out <= lower) | (out >= upper)) & np.isfinite(upper - lower)
    part = 0.5 + 0.4 * np.clip(away, -1.0, 1.0)
    return np.where(stuck, (1 - part) * np.where(stuck, lower, 0.0) + part * np.where(stuck, upper, 0.0), out)


def magnitudes_of(posed: Posed, theta: Array, options: IntegratorOptions) -> Array:
    """Return the sizes of quantities, natural scale: those at zero by what they do to the outputs."""
    natural, slope = posed.to_natural(theta), posed.natural_slope(theta)
    size = np.abs(natural)
    if (size > 0.0).all():
        return size
    J = _jacobian(posed, theta, options)
    if J is None:
        return np.where(size > 0.0, size, 1.0)
    effect = np.linalg.norm(J / np.where(slope != 0.0, slope, 1.0), axis=0) / np.sqrt(max(J.shape[0], 1))
    return np.where(size > 0.0, size, np.where(effect > 0.0, 1.0 / np.where(effect > 0.0, effect, 1.0), 1.0))


def dense_times(condition: Condition) -> Array:
    """Return times (n,) from start to end: those measured, those between, evenly spaced ones, and many early ones."""
    measured = np.unique(condition.points.times)
    if condition.settled:
        return measured
    span = condition.end - condition.start
    early = condition.start + span * np.geomspace(_EARLIEST, 1.0, TIMES)  # what is fast at these values shows early
    even = np.append(np.linspace(condition.start, condition.end, TIMES), early[:-1])
    known = np.unique(np.append(condition.start, measured))
    between = 0.5 * (known[1:] + known[:-1])
    if known.size > 2 * TIMES:
        known, between = known[:: known.size // TIMES], between[:0]
    every = np.unique(np.concatenate([even, known, between]))
    every = every[(every >= condition.start) & (every <= condition.end)]
    return every[np.append(True, np.diff(every) > 1e-2 * _EARLIEST * span)]


def _jacobian(posed: Posed, theta: Array, options: IntegratorOptions) -> Array | None:
    """Compute the derivative of the measured outputs, densely in time, each relative to its size, (m, n_theta)."""
    rows: list[Array] = []
    for condition in posed.conditions:
        names = [n for n, of in zip(posed.outputs, condition.observed, strict=True) if of is not None]
        found = responses(posed, condition, dense_times(condition), theta, options, outputs=names)
        if found is None:
            return None
        size = np.abs(found.values).max(axis=0)
        slopes = np.abs(found.slopes).max(axis=(0, 2))
        unit = np.where(size > 0.0, size, np.where(slopes > 0.0, slopes, 1.0))
        rows.append((found.slopes / unit[:, None]).reshape(-1, theta.size))
    return np.concatenate(rows)
