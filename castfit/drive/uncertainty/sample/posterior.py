"""The posterior of theta as a function: the cost of a fit, priors as densities of what they are said of, and bounds.

    log p(theta | data) = -cost(theta) + sum of log |d x / d theta| + const        within bounds and constraints

A prior is a density of a natural value x, or by ``on="log"`` of its logarithm.  Where theta is the other one of the
two, the density of theta has the derivative beside: with a prior of x and theta = log x it is x itself.  A quantity
without prior is equally probable everywhere between its bounds in the scale of the search: of ``scale="log"`` in its
logarithm.  Priors on expressions count as data.

An unknown sigma that is eliminated costs  n/2 log SSE, which is what integrating over it leaves for Jeffreys' prior
1 / sigma; drawn anew it is  sqrt(SSE / chi2_n).

Draws are made in whitened coordinates,  theta = estimate + L u,  L L^T the covariance of the fit.  What constraints
hold at the estimate is free to move away from them, so that L L^T is the inverse of the information there, on what
equations between quantities leave open: these are kept to, if they are linear in theta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from castfit._support.arrays import Array
from castfit._support.status import check
from castfit.densities.priors.distributions import Truncated
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import Posed
from castfit.problem.prior_rows import Joint
from castfit.result.result import Result
from castfit.solve.staged import Evaluation, Layout
from castfit.transcribe.single_shooting import SingleShooting

_WIDE = 4.0  # standard deviations between two bounds of what the data do not determine
_OPEN = 1.0  # of the estimate's size: the same where there are no bounds
_CLOSE = 0.5
_SINGULAR = 1e-12  # eigenvalues of scaled information that tell nothing
_KEPT = 1e-6  # to which equations hold, in their units
_CURVED = (
    "sampling supports only equality constraints that are linear on the estimation scale (log of quantities with "
    "scale='log'); eliminate the constraint by writing one quantity in terms of the others in the model"
)
_ASIDE = 0.1  # standard deviations: how far a curve is followed to see that it is none


@dataclass(frozen=True)
class Whitening:
    """theta = centre + root u, with centre (n,) and root (n, n_u), n_u < n by the number of equations."""

    centre: Array
    root: Array

    def theta(self, u: Array) -> Array:
        """Return theta (n,) of u (n,)."""
        return self.centre + self.root @ u


def whitening(posed: Posed, result: Result) -> Whitening:
    """Scale by the covariance of a fit; what that leaves open by bounds, or by the estimate's size.

    Raises InputError for equations that are not kept to where theta is a linear function of u.
    """
    staged: Any = SingleShooting(result.integrator).transcribe(posed, result.theta).explicit()
    if not staged.layout.constrained:
        return _by_covariance(posed, result)
    slopes = staged.linearize(result.theta).related_jacobian.reshape(-1, len(result.theta))
    relations = staged.layout.relations
    root = _by_information(np.asarray(result.information), slopes[relations.lower == relations.upper])
    white = _by_covariance(posed, result) if root is None else Whitening(result.theta, root)
    lows, highs = staged.layout.path_limits
    for step in _ASIDE * white.root.T:
        found = staged.evaluate(result.theta + step)
        if found.ok and (_beyond(staged.layout, found)[lows == highs] > _KEPT).any():
            check("sample", [_CURVED])
    return white


def _by_information(information: Array, slopes: Array) -> Array | None:
    """Return L (n, n_u) with L L^T the inverse of information (n, n) where slopes (n_e, n) vanish; None if singular."""
    diagonal = np.diag(information)
    if not (information.size and np.isfinite(information).all() and (diagonal > 0.0).all()):
        return None
    unit = 1.0 / np.sqrt(diagonal)
    rows = slopes * unit
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)
    _, sizes, vectors = np.linalg.svd(rows)
    open_ = vectors[int(np.sum(sizes > _KEPT)) :].T
    values, axes = np.linalg.eigh(open_.T @ (information * np.outer(unit, unit)) @ open_)
    if (values < _SINGULAR).any():
        return None
    return unit[:, None] * (open_ @ axes) / np.sqrt(values)


def _beyond(layout: Layout, found: Evaluation) -> Array:
    """Return by how much constraints are broken, in their units, (n_c,)."""
    lows, highs = layout.path_limits
    c = np.concatenate([*(values.c.ravel() for values in found.values), found.related])
    return np.fmax(lows - c, c - highs) / layout.path_units


def _by_covariance(posed: Posed, result: Result) -> Whitening:
    covariance = result.covariance / np.outer(posed.natural_slope(result.theta), posed.natural_slope(result.theta))
    lower, upper = posed.bounds
    spread = np.where(np.isfinite(upper - lower), (upper - lower) / _WIDE, 0.0)
    most = np.where(spread > 0.0, spread, np.inf)  # more than bounds leave says nothing
    with np.errstate(invalid="ignore"):
        known = (np.diag(covariance) > 0.0) & (np.sqrt(np.diag(covariance)) <= most) & np.isfinite(np.diag(covariance))
    size = np.where(posed.log, _OPEN, np.maximum(np.abs(result.theta), _OPEN) * _CLOSE)
    whole = np.diag(np.where(spread > 0.0, np.minimum(spread, size), size) ** 2)
    at = np.ix_(known, known)
    whole[at] = covariance[at]
    values, vectors = np.linalg.eigh(whole[at]) if known.any() else (np.empty(0), np.empty((0, 0)))
    root = np.sqrt(np.maximum(whole, 0.0) * np.eye(len(whole)))
    root[at] = vectors * np.sqrt(np.maximum(values, 0.0))
    return Whitening(result.theta, root)


def posterior(posed: Posed, theta: Array, options: IntegratorOptions) -> Callable[[Array], tuple[float, Array]]:
    """Return a function of theta (n_theta,): the log of the posterior, and the sigmas that are eliminated (n_groups,).

    Where the posterior is zero, sigmas are NaN.
    """
    staged: Any = SingleShooting(options).transcribe(posed, theta).explicit()
    lower, upper = posed.bounds
    sign = jacobian_signs(posed)
    none = (-np.inf, np.full(len(posed.groups), np.nan))
    lows, highs = staged.layout.path_limits
    allowed = np.where(lows == highs, _KEPT, 0.0)

    def at(theta: Array) -> tuple[float, Array]:
        if (theta < lower).any() or (theta > upper).any():
            return none
        found = staged.evaluate(theta)
        if not found.ok or not np.isfinite(found.cost):
            return none
        if (_beyond(staged.layout, found) > allowed).any():
            return none
        logs = np.where(posed.log, theta, np.log(np.maximum(theta, np.finfo(float).tiny)))
        return float(-found.cost + np.sum(np.where(sign != 0, sign * logs, 0.0))), found.sigma.copy()

    return at


def jacobian_signs(posed: Posed) -> Array:
    """Return by which power of x the density of theta differs from what the priors say, (n_theta,)."""
    of_log = np.full(len(posed.names), -1)  # 1: the prior is a density of log x, 0: of x, -1: there is none
    for term in posed.prior_terms:
        if isinstance(term, Joint):
            of_log[term.at] = term.log
    for j, q in enumerate(posed.quantities):
        if q.prior is not None:
            inner = q.prior.prior if isinstance(q.prior, Truncated) else q.prior
            of_log[j] = getattr(inner, "on", "value") != "value"
    return np.where(of_log < 0, 0, np.where(posed.log, 1 - of_log, -of_log)).astype(float)
