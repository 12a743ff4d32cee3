"""The posterior density of theta: the cost of a fit, priors as densities of natural values or logarithms, and bounds.

    log p(theta | data) = -cost(theta) + sum of log |d x / d theta| + const        within bounds and constraints

A prior is a density of a natural value x or, with ``on="log"``, of its logarithm.  If theta is on the other scale,
the density of theta has the derivative as an additional factor: for a prior of x and theta = log x, the factor x.  A
quantity without prior is uniform between its bounds on the scale of the search, with ``scale="log"`` in its logarithm.
Priors on expressions count as data.

An eliminated unknown sigma contributes  n/2 log SSE, the result of integrating over it with Jeffreys' prior 1 / sigma.
Its draws are  sqrt(SSE / chi2_n).

Draws are made in whitened coordinates,  theta = estimate + L u,  with L L^T the covariance of the fit.  Draws may leave
constraints that are active at the estimate, so L L^T is the inverse of the information there, in the subspace that
satisfies the equations between quantities.  Draws satisfy these equations, which must be linear in theta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import raise_if_mistakes
from castfit.densities.priors.distributions import Truncated
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.prior_rows import JointPriorRows
from castfit.result.result import Result
from castfit.solve.staged import Evaluation, Layout
from castfit.transcribe.single_shooting import SingleShooting

_MAX_WIDTH_SD = 4.0  # standard deviations between two bounds of a quantity that the data do not determine
_UNBOUNDED_WIDTH_FRACTION = 1.0  # of the estimate's size: its standard deviation if there are no bounds
_START_WIDTH_FACTOR = 0.5  # of the estimate's size: spread of starts in directions that data do not determine
_MIN_EIGENVALUE_FRACTION = 1e-12  # of scaled information: directions with smaller eigenvalues are not determined
_EQUATION_TOLERANCE = 1e-6  # violation of an equation, in its units
_CURVED = (
    "sampling supports only equality constraints that are linear on the estimation scale (log of quantities with "
    "scale='log'); eliminate the constraint by writing one quantity in terms of the others in the model"
)
_TAIL_DISTANCES_SD = np.array([10.0, 20.0, 40.0])  # standard errors at which the tails of the posterior are examined
_MAX_TAIL_FALL = (
    25.0  # fall of the log density at the first of them (of a normal one: 50) up to which a tail may be flat
)
_CURVE_STEP_SD = 0.1  # standard deviations: step by which the linearity of an equation is tested


@dataclass(frozen=True)
class PosteriorScaling:
    """theta = centre + root u, with centre (n,) and root (n, n_u), n_u < n by the number of equations."""

    centre: Array
    root: Array

    def theta(self, u: Array) -> Array:
        """Return theta (n,) of u (n,)."""
        return self.centre + self.root @ u


def whitening_transform(compiled_problem: CompiledProblem, result: Result) -> PosteriorScaling:
    """Return the scaling by the covariance of a fit; for undetermined directions, by bounds or the estimate's size.

    Raises InputError if an equation between quantities is not linear in theta.
    """
    staged: Any = SingleShooting(result.integrator).transcribe(compiled_problem, result.theta).explicit()
    if not staged.layout.has_constraints:
        return _by_covariance(compiled_problem, result)
    slopes = staged.linearize(result.theta).related_jacobian.reshape(-1, len(result.theta))
    relations = staged.layout.relations
    root = _by_information(np.asarray(result.information), slopes[relations.lower == relations.upper])
    scaling = _by_covariance(compiled_problem, result) if root is None else PosteriorScaling(result.theta, root)
    lows, highs = staged.layout.path_limits
    for step in _CURVE_STEP_SD * scaling.root.T:
        evaluation = staged.evaluate(result.theta + step)
        if (
            evaluation.ok
            and (_constraint_violation(staged.layout, evaluation)[lows == highs] > _EQUATION_TOLERANCE).any()
        ):
            raise_if_mistakes("sample", [_CURVED])
    return scaling


def _by_information(information: Array, slopes: Array) -> Array | None:
    """Return L (n, n_u) with L L^T the inverse of information (n, n) in the null space of slopes; None if singular."""
    diagonal = np.diag(information)
    if not (information.size and np.isfinite(information).all() and (diagonal > 0.0).all()):
        return None
    unit = 1.0 / np.sqrt(diagonal)
    rows = slopes * unit
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)
    _, sizes, vectors = np.linalg.svd(rows)
    free_directions = vectors[int(np.sum(sizes > _EQUATION_TOLERANCE)) :].T
    values, axes = np.linalg.eigh(free_directions.T @ (information * np.outer(unit, unit)) @ free_directions)
    if (values < _MIN_EIGENVALUE_FRACTION).any():
        return None
    return unit[:, None] * (free_directions @ axes) / np.sqrt(values)


def _constraint_violation(layout: Layout, evaluation: Evaluation) -> Array:
    """Return the violations of the constraints, in their units, (n_c,)."""
    lows, highs = layout.path_limits
    c = np.concatenate([*(values.c.ravel() for values in evaluation.values), evaluation.related])
    return np.fmax(lows - c, c - highs) / layout.path_units


def _by_covariance(compiled_problem: CompiledProblem, result: Result) -> PosteriorScaling:
    covariance = result.covariance / np.outer(
        compiled_problem.natural_slope(result.theta), compiled_problem.natural_slope(result.theta)
    )
    lower, upper = compiled_problem.bounds
    spread = np.where(np.isfinite(upper - lower), (upper - lower) / _MAX_WIDTH_SD, 0.0)
    max_sd = np.where(spread > 0.0, spread, np.inf)  # a larger error than the bounds allow carries no information
    with np.errstate(invalid="ignore"):
        is_determined = (
            (np.diag(covariance) > 0.0) & (np.sqrt(np.diag(covariance)) <= max_sd) & np.isfinite(np.diag(covariance))
        )
    size = np.where(
        compiled_problem.log,
        _UNBOUNDED_WIDTH_FRACTION,
        np.maximum(np.abs(result.theta), _UNBOUNDED_WIDTH_FRACTION) * _START_WIDTH_FACTOR,
    )
    full_covariance = np.diag(np.where(spread > 0.0, np.minimum(spread, size), size) ** 2)
    block = np.ix_(is_determined, is_determined)
    full_covariance[block] = covariance[block]
    values, vectors = np.linalg.eigh(full_covariance[block]) if is_determined.any() else (np.empty(0), np.empty((0, 0)))
    root = np.sqrt(np.maximum(full_covariance, 0.0) * np.eye(len(full_covariance)))
    root[block] = vectors * np.sqrt(np.maximum(values, 0.0))
    return PosteriorScaling(result.theta, root)


def posterior(
    compiled_problem: CompiledProblem, theta: Array, options: IntegratorOptions
) -> Callable[[Array], tuple[float, Array]]:
    """Return a function of theta (n_theta,): the log of the posterior, and the sigmas that are eliminated (n_groups,).

    The sigmas are NaN if the posterior is zero.
    """
    staged: Any = SingleShooting(options).transcribe(compiled_problem, theta).explicit()
    lower, upper = compiled_problem.bounds
    sign = jacobian_signs(compiled_problem)
    zero_density = (-np.inf, np.full(len(compiled_problem.groups), np.nan))
    lows, highs = staged.layout.path_limits
    tolerances = np.where(lows == highs, _EQUATION_TOLERANCE, 0.0)

    def evaluate(theta: Array) -> tuple[float, Array]:
        if (theta < lower).any() or (theta > upper).any():
            return zero_density
        evaluation = staged.evaluate(theta)
        if not evaluation.ok or not np.isfinite(evaluation.cost):
            return zero_density
        if (_constraint_violation(staged.layout, evaluation) > tolerances).any():
            return zero_density
        logs = np.where(compiled_problem.log, theta, np.log(np.maximum(theta, np.finfo(float).tiny)))
        return float(-evaluation.cost + np.sum(np.where(sign != 0, sign * logs, 0.0))), evaluation.sigma.copy()

    return evaluate


def find_improper(compiled_problem: CompiledProblem, result: Result) -> dict[str, float]:
    """Find quantities along which the posterior has no finite integral, and by how much its log falls there.

    The density is evaluated at 10, 20 and 40 standard errors, along each quantity with the others at their estimates or
    on the linear path, and along directions that the data do not determine.  It has no finite integral if it falls more
    slowly than the inverse of the distance.
    """
    evaluate = posterior(compiled_problem, result.theta, result.integrator)
    lower, upper = compiled_problem.bounds
    height, covariance = evaluate(result.theta)[0], result.root @ result.root.T
    size = np.sqrt(np.maximum(np.diag(np.asarray(result.information)), 0.0))
    size = np.where(size > 0.0, 1.0 / np.where(size > 0.0, size, 1.0), np.maximum(np.abs(result.theta), 1.0))
    errors = np.sqrt(np.diag(covariance))
    rays = [(j, row) for j, row in enumerate(np.diag(np.where(errors > 0.0, errors, size)))]
    rays += [(j, covariance[j] / error) for j, error in enumerate(errors.tolist()) if error > 0.0]
    rays += [(int(np.argmax(np.abs(row / size))), row / np.linalg.norm(row / size)) for row in result.undetermined]
    improper = dict[str, float]()
    for j, ray in rays:
        for side in (-_TAIL_DISTANCES_SD, _TAIL_DISTANCES_SD):
            ends = result.theta + side[:, None] * ray
            if compiled_problem.names[j] in improper or ((ends < lower) | (ends > upper)).any():
                continue
            falls = height - np.array([evaluate(theta)[0] for theta in ends[:2]])
            if falls[0] > _MAX_TAIL_FALL or not falls[1] - falls[0] < np.log(
                _TAIL_DISTANCES_SD[1] / _TAIL_DISTANCES_SD[0]
            ):
                continue
            far_fall = height - evaluate(ends[2])[0] - falls[0]
            if far_fall < np.log(_TAIL_DISTANCES_SD[2] / _TAIL_DISTANCES_SD[0]):
                improper[compiled_problem.names[j]] = float(max(falls[0], 0.0))
    return improper


def jacobian_signs(compiled_problem: CompiledProblem) -> Array:
    """Return the power of x by which the density of theta differs from the prior density, (n_theta,)."""
    of_log = np.full(len(compiled_problem.names), -1)  # 1: prior density of log x, 0: of x, -1: no prior
    for term in compiled_problem.prior_terms:
        if isinstance(term, JointPriorRows):
            of_log[term.theta_index] = term.log
    for j, q in enumerate(compiled_problem.quantities):
        if q.prior is not None:
            inner = q.prior.prior if isinstance(q.prior, Truncated) else q.prior
            of_log[j] = getattr(inner, "on", "value") != "value"
    return np.where(of_log < 0, 0, np.where(compiled_problem.log, 1 - of_log, -of_log)).astype(float)
