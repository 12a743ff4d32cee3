"""The upper level: minimise -log of the approximate likelihood over y, within bounds.

First steps of expectation and maximisation, as long as they gain anything: they do well from afar and need no scale.
Where they end is not the maximum; from there a quasi-Newton method goes on, in a box of trust.  Its first curvature is
the information of the model made linear, which fits every scale; BFGS updates mend it.  Each trial is one set of
individual fits, which begin where the modes are expected to move; a gradient is computed where a trial was accepted.

    minimise g^T p + 1/2 p^T B p   in   |p_j| <= radius,  lower <= y + p <= upper
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit.drive.population.laplace import LaplaceApproximation, Marginal, Scores
from castfit.solve.block_pivoting import lowest_in_box

_WORTH = 0.5  # of -log p: steps that gain less are left to the quasi-Newton method
_PROMISE = 1e-7  # of -log p: then y is right to less than a thousandth of its standard errors
_RADIUS, _LARGEST, _SMALLEST = 0.5, 2.0, 1e-7  # of the box of trust; y are mostly logarithms
_RIDGE, _LEAST = 1e-4, 1e-6  # of the diagonal, and what it is at least beside its largest entry
_BENT = 0.2  # Powell's damping of updates


@dataclass(frozen=True)
class Here:
    """State of the search, sufficient to continue it.

    y (n_y,), phi (n, m) the individuals' modes, curvature B (n_y, n_y), empty before the quasi-Newton method begins,
    radius, iteration, and what was found at y.
    """

    y: Array
    phi: Array
    curvature: Array
    radius: float
    iteration: int
    value: float
    promise: float = np.inf


@dataclass(frozen=True)
class PopulationOptimum:
    """Result of the search: the last state and the status; without scores if the search could not begin."""

    here: Here
    at: Marginal | None
    scores: Scores | None
    status: Status


def minimise(
    laplace: LaplaceApproximation,
    here: Here,
    *,
    max_iter: int,
    tell: Callable[[Here, Marginal], bool],
) -> PopulationOptimum:
    """Go on from `here` until the gradient vanishes.

    A search that begins has an empty curvature.  `tell` is called with every place that is reached; the search ends
    where it returns True.

    Raises Stopped when the time is over.
    """
    lower, upper = laplace.question.bounds
    at = laplace.value(here.y, here.phi, roughly=not here.curvature.size)
    if at is None or not np.isfinite(at.value):
        return PopulationOptimum(here, at, None, Status.START_FAILED)
    if not here.curvature.size:
        here, at, stopped = _approached(laplace, replace(here, phi=at.modes.phi, value=at.value), at, max_iter, tell)
        if stopped:
            return PopulationOptimum(here, at, laplace.scores(at), Status.STOPPED_BY_CALLBACK)
        at = laplace.value(here.y, here.phi) or at  # exactly
    scores = laplace.scores(at)
    curvature = here.curvature if here.curvature.size else definite(laplace.expected(at))
    here = replace(here, phi=at.modes.phi, curvature=curvature, value=at.value)
    while True:
        gradient = scores.gradient
        free = lowest_in_box(here.curvature, gradient, lower - here.y, upper - here.y)
        promise = -float(gradient @ free + 0.5 * free @ here.curvature @ free)
        here = replace(here, promise=promise)
        if tell(here, at):
            return PopulationOptimum(here, at, scores, Status.STOPPED_BY_CALLBACK)
        if promise <= _PROMISE:
            return PopulationOptimum(here, at, scores, Status.CONVERGED)
        if here.iteration >= max_iter:
            return PopulationOptimum(here, at, scores, Status.MAX_ITERATIONS)
        taken: Marginal | None = None
        radius = here.radius
        while taken is None:
            ends = np.maximum(lower - here.y, -radius), np.minimum(upper - here.y, radius)
            step = lowest_in_box(here.curvature, gradient, *ends)
            promised = -float(gradient @ step + 0.5 * step @ here.curvature @ step)
            trial = laplace.value(here.y + step, at.modes.phi + scores.moving @ step, scores.bend)
            gain = -np.inf if trial is None else at.value - trial.value
            if trial is not None and gain > 1e-4 * promised:
                taken = trial
                radius = min(2.0 * radius, _LARGEST) if gain > 0.7 * promised else radius
            else:
                radius = 0.3 * min(radius, float(np.abs(step).max()))
                if radius < _SMALLEST:
                    status = Status.ACCEPTABLE if promise < 1e-3 else Status.STEP_TOO_SMALL
                    return PopulationOptimum(here, at, scores, status)
        after = laplace.scores(taken)
        curvature = updated(here.curvature, taken.y - here.y, after.gradient - gradient)
        at, scores = taken, after
        here = Here(at.y, at.modes.phi, curvature, radius, here.iteration + 1, at.value)


def _approached(
    laplace: LaplaceApproximation, here: Here, at: Marginal, max_iter: int, tell: Callable[[Here, Marginal], bool]
) -> tuple[Here, Marginal, bool]:
    """Go on by expectation and maximisation as long as that gains; tell whether that was stopped."""
    while here.iteration < max_iter:
        if tell(here, at):
            return here, at, True
        trial = laplace.value(y := laplace.improved(at), moved(laplace, at, y - at.y), roughly=True)
        if trial is None or not trial.value < at.value:
            break
        gain, at = at.value - trial.value, trial
        here = replace(here, y=at.y, phi=at.modes.phi, iteration=here.iteration + 1, value=at.value)
        if gain < _WORTH:
            break
    return here, at, False


def definite(information: Array) -> Array:
    """Return an information matrix with a ridge by which it is definite."""
    diagonal = np.diag(information)
    least = _LEAST * float(diagonal.max(initial=0.0)) or 1.0
    return information + _RIDGE * np.diag(np.maximum(diagonal, least))


def moved(laplace: LaplaceApproximation, at: Marginal, step: Array) -> Array:
    """Return from where modes are sought after a step of y: typical values take their individuals along."""
    before, _ = laplace.question.means(at.y)
    after, _ = laplace.question.means(at.y + step)
    shift = np.where(np.isfinite(after), after - before, 0.0)
    # What the data say of own parameters does not move with the typical ones.
    given = laplace.prior(at.y)
    share = np.zeros((laplace.question.m, laplace.question.m)) if given is None else given[0].precision
    return at.modes.phi + np.einsum("nij,jk,nk->ni", np.nan_to_num(at.precise), share, shift)


def updated(curvature: Array, step: Array, change: Array) -> Array:
    """Return the curvature after a BFGS update with Powell's damping, which keeps it definite."""
    b_step = curvature @ step
    bend, met = float(step @ b_step), float(step @ change)
    if met < _BENT * bend:
        share = (1.0 - _BENT) * bend / (bend - met)
        change = share * change + (1.0 - share) * b_step
        met = float(step @ change)
    return curvature - np.outer(b_step, b_step) / bend + np.outer(change, change) / met
