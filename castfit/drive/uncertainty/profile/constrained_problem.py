"""A staged problem in which something is held at a number that changes from point to point.

The staged problem is built once; what holds costs nothing to change:

    a quantity       its bounds, moved together
    a sigma          the rows of its group, divided by the number instead of the most likely sigma
    an expression    one more row,  w (g(theta) - z),  so steep that g is z up to a millionth of its own uncertainty
    a prediction     the same row, but among those of the data (see castfit.drive.uncertainty.profile.predictions)

The rows that hold are no part of the objective: at the solution theirs is the only cost that is taken off, so that the
rest is the profile at the g that was reached, whatever w (Kreutz, Raue and Timmer 2012).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from castfit._support.sparse_rows import below, sparse_rows
from castfit.solve.staged import Evaluation, Failure, Linearization, StagedProblem, locked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from castfit.solve.staged import Array, Layout

E = TypeVar("E", bound=Evaluation)


class Dress(ABC):
    """What is done to the values and derivatives of a staged problem."""

    @abstractmethod
    def on(self, at: E) -> E:
        """Return an evaluation, or linearization, with the change made."""


class Dressed(StagedProblem):
    """A staged problem whose evaluations are changed; it shares everything else with the one inside.

    It has no exact Hessian, as what is held has a curvature of its own.
    """

    def __init__(self, inner: StagedProblem, dress: Dress) -> None:
        self.inner, self.dress = inner, dress
        self.layout, self.signal, self.least_sigma = inner.layout, inner.signal, inner.least_sigma
        self.lower, self.upper, self.scale, self.start = inner.lower, inner.upper, inner.scale, inner.start
        self.least_squares, self.forgiving = inner.least_squares, inner.forgiving
        self.integrated, self.jitter, self.eliminated = inner.integrated, inner.jitter, inner.eliminated

    def evaluate(self, v: Array) -> Evaluation:
        """Return the values of all functions at v."""
        return self.dress.on(self.inner.evaluate(v))

    def linearize(self, v: Array) -> Linearization:
        """Return values and Jacobian blocks at v."""
        return self.dress.on(self.inner.linearize(v))

    def data_sizes(self) -> tuple[Array, ...]:
        """Return the size of every measured value in its own standard deviation."""
        return self.inner.data_sizes()

    def coarse(self) -> StagedProblem:
        """Return the same problem with functions of lower accuracy."""
        return self._around(self.inner.coarse())

    def explicit(self) -> StagedProblem:
        """Return the same problem in which all of theta is searched."""
        return self._around(self.inner.explicit())

    def explain(self, v: Array) -> str:
        """Say where and why the functions could not be evaluated at v."""
        return self.inner.explain(v)

    def _around(self, inner: StagedProblem) -> StagedProblem:
        if inner is self.inner:
            return self
        other = copy(self)
        other.inner = inner
        other.eliminated = inner.eliminated
        return other


def bare(staged: StagedProblem) -> StagedProblem:
    """Return a staged problem without what was done to it."""
    return bare(staged.inner) if isinstance(staged, Dressed) else staged


def started(staged: StagedProblem, v: Array) -> StagedProblem:
    """Return a staged problem with another start (n_v,)."""
    other = copy(staged)
    other.start = locked(v)
    return other


class FixedSigma(Dress):
    """Hold the unknown sigma of a group at a number.

    cost = n log s + SSE / (2 s^2) - n / 2,  which is  n log sigma^  where s is the most likely one.
    """

    def __init__(self, layout: Layout, group: int, sigma: float) -> None:
        self.layout, self.group, self.sigma = layout, group, sigma

    def on(self, at: E) -> E:
        """Return the evaluation with the rows of the group divided by the number."""
        if not at.ok:
            return at
        found, size = float(at.sigma[self.group]), int(self.layout.group_sizes[self.group])
        known = at.sigma.copy()
        known[self.group] = self.sigma
        excess = at.excess + float(size * np.log(self.sigma / found))
        factors = [np.where(chain.group == self.group, found / self.sigma, 1.0) for chain in self.layout.chains]
        return scaled_rows(replace(at, sigma=known, excess=excess), factors)


class Tie(Dress):
    """Hold g(theta) by a steep row,  w (g(theta) - z);  `function` returns g and dg/dtheta (n_theta,)."""

    def __init__(self, layout: Layout, function: Callable[[Array], tuple[float, Array]], z: float, w: float) -> None:
        self.layout, self.function, self.z, self.w = layout, function, z, w

    def on(self, at: E) -> E:
        """Return the evaluation with one more row among the priors, the last."""
        if not at.ok:
            return at
        g, slope = self.function(self.layout.theta(at.v))
        if not (np.isfinite(g) and np.isfinite(slope).all()):
            chain = self.layout.chains[0].name
            return replace(at, failures=(Failure(chain, 0, "expression", "the expression held is not finite"),))
        curved = None if at.prior_curved is None else np.append(at.prior_curved, True)
        more = sparse_rows(self.w * np.atleast_2d(slope))
        return replace(
            at,
            prior=np.append(at.prior, self.w * (g - self.z)),
            prior_jacobian=below([sparse_rows(at.prior_jacobian), more], slope.size),
            prior_curved=curved,
        )


def scaled_rows(at: E, factors: Sequence[Array], shift: Sequence[Array] | None = None) -> E:
    """Return an evaluation with rows, and their derivatives, multiplied; what is then added moves only the rows."""
    added = [0.0] * len(factors) if shift is None else shift
    values = tuple(replace(of, r=of.r * f + s) for of, f, s in zip(at.values, factors, added, strict=True))
    changed = replace(at, values=values)
    if not isinstance(changed, Linearization):
        return changed
    jacobians = tuple(
        replace(j, R_s=j.R_s * f[..., None], R_w=j.R_w * f[..., None], R_q=j.R_q * f[..., None])
        for j, f in zip(changed.jacobians, factors, strict=True)
    )
    return replace(changed, jacobians=jacobians)
