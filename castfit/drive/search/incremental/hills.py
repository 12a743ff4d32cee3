"""Line search beyond a poor local optimum of a short horizon.

A short horizon may have many local optima, which no solver can distinguish from the right one: in Bock's problem one
for every 63 units of p.  Evaluations are cheap there, so the search evaluates points along the Gauss-Newton step, in
units of the quantities,

    theta + t u,    u = d / max |d_i / scale_i|,    d = - (J^T J)^+ g,    t = +-1/16, +-3/16 ... +-31/16,

and continues from the lowest of these points if it is lower than the optimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy

from castfit.transcribe.transcribed_problem import parameter_scale

if TYPE_CHECKING:
    from collections.abc import Iterator

    from castfit._support.arrays import Array
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.result.result import Result
    from castfit.solve.staged import StagedProblem

N_LINE_POINTS = 32  # evaluations along the line, half of them on either side of the optimum
_MAX_RELATIVE_CHANGE = 2.0  # largest change of a quantity along the line, in units of its size
_RANK_RTOL = 1e-7  # singular values below this fraction of the largest one count as zero


def neighbour_points(problem: CompiledProblem, result: Result) -> Iterator[Array]:
    """Yield points (n_theta,) within the problem's bounds, on both sides of where a fit ended."""
    jacobian, gradient, theta = result.jacobian, result.gradient, result.theta
    if scipy.sparse.issparse(jacobian):  # of many experiments: too large to be inverted
        return
    if not (np.isfinite(jacobian).all() and np.isfinite(gradient).all()):
        return
    size = parameter_scale(problem, theta)
    effect = np.linalg.norm(jacobian, axis=0)
    effect = np.where(effect > 0.0, effect, 1.0)
    inverse = np.linalg.pinv(jacobian / effect, rcond=_RANK_RTOL)
    step = -(inverse @ (inverse.T @ (gradient / effect))) / effect
    longest = np.abs(step / size).max(initial=0.0)
    if not 0.0 < longest < np.inf:
        return
    for t in _MAX_RELATIVE_CHANGE * (np.arange(N_LINE_POINTS // 2) + 0.5) / (N_LINE_POINTS // 2):
        for side in (-1.0, 1.0):
            yield np.clip(theta + side * t / longest * step, *problem.bounds)


def find_lower_neighbour(problem: CompiledProblem, staged: StagedProblem, result: Result) -> Array | None:
    """Return the lowest (n_theta,) of the points around the end of a fit, or None if no point is lower than the end.

    problem : problem with the bounds
    staged : the fitted problem by single shooting
    """
    points = [staged.evaluate(theta) for theta in (result.theta, *neighbour_points(problem, result))]
    costs = [point.cost for point in points]  # infinite where it could not be evaluated
    best = int(np.argmin(costs))
    return points[best].v if best > 0 else None
