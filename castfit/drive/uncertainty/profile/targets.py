"""Profile targets: quantities, unknown sigmas, expressions, predictions; how each is fixed and evaluated at a point.

The staged problem is built once.  The coordinate c changes from point to point: it is the fixed value, or its logarithm
for targets with scale "log".  A target is fixed without rebuilding the problem:

    a quantity       by equal bounds
    a sigma          by rows of its group divided by the fixed number instead of the most likely sigma
    an expression    by an additional row  w (g(theta) - c)  with a w that makes g equal to c up to a millionth of its
                     own uncertainty
    a prediction     by the same row among the data rows (see castfit.drive.uncertainty.profile.predictions)

The fixing rows are no part of the objective.  Their cost is subtracted at the solution: the remainder is the profile at
the reached g, for any w (Kreutz, Raue and Timmer 2012).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from castfit._support.arrays import Array
from castfit._support.sparse_rows import sparse_rows, stack_rows
from castfit.problem.parameter_map import MappedExpressions
from castfit.solve.staged import Evaluation, Failure, Layout, Linearization, StagedProblem, read_only_copy

E = TypeVar("E", bound=Evaluation)

_CONSTRAINT_ROW_WEIGHT = 1e3  # weight of the row that fixes an expression, relative to its own curvature


class ModifiedStagedProblem(StagedProblem):
    """A staged problem with modified evaluations and linearizations; it shares all else with the inner problem.

    The exact Hessian is not available, because the fixing row has a curvature of its own.
    """

    def __init__(self, inner: StagedProblem, change: Callable[[Any], Any]) -> None:
        self.inner, self.change = inner, change
        self.layout, self.signal, self.least_sigma = inner.layout, inner.signal, inner.least_sigma
        self.lower, self.upper, self.scale, self.start = inner.lower, inner.upper, inner.scale, inner.start
        self.least_squares, self.tolerates_outliers = inner.least_squares, inner.tolerates_outliers
        self.integrated, self.integration_rtol, self.eliminated = (
            inner.integrated,
            inner.integration_rtol,
            inner.eliminated,
        )

    def evaluate(self, v: Array) -> Evaluation:
        """Return the values of all functions at v."""
        return self.change(self.inner.evaluate(v))

    def linearize(self, v: Array) -> Linearization:
        """Return values and Jacobian blocks at v."""
        return self.change(self.inner.linearize(v))

    def data_sizes(self) -> tuple[Array, ...]:
        """Return the size of every measured value in units of its standard deviation."""
        return self.inner.data_sizes()

    def low_accuracy(self) -> StagedProblem:
        """Return this problem with functions of lower accuracy."""
        return self._with_inner(self.inner.low_accuracy())

    def explicit(self) -> StagedProblem:
        """Return this problem with all of theta as search variables."""
        return self._with_inner(self.inner.explicit())

    def describe_failure(self, v: Array) -> str:
        """Describe the cause and place of a failed evaluation of the functions at v."""
        return self.inner.describe_failure(v)

    def _with_inner(self, inner: StagedProblem) -> StagedProblem:
        if inner is self.inner:
            return self
        other = copy(self)
        other.inner = inner
        other.eliminated = inner.eliminated
        return other


def undecorated(staged: StagedProblem) -> StagedProblem:
    """Return the innermost staged problem, without wrappers."""
    return undecorated(staged.inner) if isinstance(staged, ModifiedStagedProblem) else staged


def with_start(staged: StagedProblem, v: Array) -> StagedProblem:
    """Return a staged problem with another start (n_v,)."""
    other = copy(staged)
    other.start = read_only_copy(v)
    return other


def scaled_rows(evaluation: E, factors: Sequence[Array], shift: Sequence[Array] | None = None) -> E:
    """Scale the rows of an evaluation, and their derivatives, by factors; then add the shift to the rows only."""
    offsets = [0.0] * len(factors) if shift is None else shift
    values = tuple(
        replace(chain_values, r=chain_values.r * f + s)
        for chain_values, f, s in zip(evaluation.values, factors, offsets, strict=True)
    )
    scaled_evaluation = replace(evaluation, values=values)
    if not isinstance(scaled_evaluation, Linearization):
        return scaled_evaluation
    jacobians = tuple(
        replace(j, R_s=j.R_s * f[..., None], R_w=j.R_w * f[..., None], R_q=j.R_q * f[..., None])
        for j, f in zip(scaled_evaluation.jacobians, factors, strict=True)
    )
    return replace(scaled_evaluation, jacobians=jacobians)


@dataclass(frozen=True, eq=False)
class Target(ABC):
    """Target of a profile, which is fixed at values while all other quantities are fitted.

    kind : "parameter", "initial state", "sigma", "expression" or "prediction"
    log : whether the coordinate is the logarithm
    lower, upper : bounds of the coordinate
    scale : a large step of the coordinate: 1 for logarithms, else the magnitude of the value
    """

    name: str
    kind: str
    log: bool
    lower: float
    upper: float
    scale: float

    def natural(self, c: Array) -> Array:
        """Return values from coordinates."""
        with np.errstate(over="ignore"):
            return np.exp(c) if self.log else np.asarray(c, dtype=float)

    @abstractmethod
    def with_fixed_value(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with the coordinate fixed at c."""

    @abstractmethod
    def coordinate(self, evaluation: Evaluation, fixed_problem: StagedProblem) -> float:
        """Return the coordinate at a point of the fixed or the inner problem."""

    def coordinate_of(self, theta: Array) -> float:
        """Return the coordinate at theta (n_theta,); NaN if theta does not determine it."""
        return np.nan

    def own_cost(self, evaluation: Evaluation, fixed_problem: StagedProblem) -> float:
        """Return the cost of the rows that fix the target."""
        return 0.0

    def own_rows(self, rows: Array, fixed_problem: StagedProblem) -> Array:
        """Return the rows (m,) of the condensed problem without the rows that fix the target."""
        return rows

    def slope(self, staged: StagedProblem, evaluation: Evaluation) -> tuple[float, float] | None:
        """Return the first and second derivative of the cost by c; None if they follow from the Gauss-Newton step."""
        return None

    def stiffened(self, curvature: float) -> Target:
        """Return the target with the row weight that the curvature of its profile requires."""
        return self

    @property
    def needs_explicit(self) -> frozenset[int]:
        """Entries of theta that must not be eliminated."""
        return frozenset()

    @property
    def moves_constants(self) -> bool:
        """Whether another value of c changes only bounds and constants of rows, not their derivatives."""
        return True


@dataclass(frozen=True, eq=False)
class OfQuantity(Target):
    """An entry of theta, fixed by its bounds."""

    theta_index: int = 0

    def with_fixed_value(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with both bounds at c."""
        lower, upper = staged.lower.copy(), staged.upper.copy()
        lower[self.theta_index] = upper[self.theta_index] = c
        return staged.restricted(lower=lower, upper=upper)

    def coordinate(self, evaluation: Evaluation, fixed_problem: StagedProblem) -> float:
        """Return the entry of theta."""
        return float(evaluation.v[self.theta_index])

    def coordinate_of(self, theta: Array) -> float:
        """Return the entry of theta."""
        return float(theta[self.theta_index])

    @property
    def needs_explicit(self) -> frozenset[int]:
        """The entry of theta."""
        return frozenset({self.theta_index})


@dataclass(frozen=True, eq=False)
class OfSigma(Target):
    """An unknown, eliminated sigma, by its group; its coordinate is the logarithm."""

    group: int = 0

    def with_fixed_value(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with the sigma known."""
        return ModifiedStagedProblem(staged, partial(self._fixed, staged.layout, float(np.exp(c))))

    def _fixed(self, layout: Layout, sigma: float, evaluation: E) -> E:
        """Divide the rows of the group by sigma; the cost is  n log sigma + SSE / (2 sigma^2) - n / 2."""
        if not evaluation.ok:
            return evaluation
        estimated_sigma, size = float(evaluation.sigma[self.group]), int(layout.group_sizes[self.group])
        sigmas = evaluation.sigma.copy()
        sigmas[self.group] = sigma
        excess = evaluation.excess + float(size * np.log(sigma / estimated_sigma))
        factors = [np.where(chain.group == self.group, estimated_sigma / sigma, 1.0) for chain in layout.chains]
        return scaled_rows(replace(evaluation, sigma=sigmas, excess=excess), factors)

    @property
    def moves_constants(self) -> bool:
        """False: rows and their derivatives are divided by the sigma."""
        return False

    def coordinate(self, evaluation: Evaluation, fixed_problem: StagedProblem) -> float:
        """Return the logarithm of the sigma."""
        return float(np.log(evaluation.sigma[self.group]))

    def slope(self, staged: StagedProblem, evaluation: Evaluation) -> tuple[float, float] | None:
        """Return n - SSE / s^2 and 2 SSE / s^2; all other quantities are optimal and do not contribute."""
        size = float(staged.layout.group_sizes[self.group])
        rows = [
            values.r[chain.group == self.group]
            for chain, values in zip(staged.layout.chains, evaluation.values, strict=True)
        ]
        squares = float(sum(r @ r for r in rows))
        return size - squares, 2.0 * squares


@dataclass(frozen=True, eq=False)
class RowTarget(Target):
    """A target that is fixed by a row with a large weight."""

    weight: float = 1.0

    def stiffened(self, curvature: float) -> Target:
        """Return the target with a row weight of a thousand times the root of the curvature of its profile."""
        return replace(self, weight=_CONSTRAINT_ROW_WEIGHT * max(np.sqrt(max(curvature, 0.0)), 1.0 / self.scale))


@dataclass(frozen=True, eq=False)
class ExpressionTarget(RowTarget):
    """An expression of quantities, `part` a function of their natural values; theta_log (n_theta,)."""

    part: MappedExpressions | None = None
    theta_log: tuple[bool, ...] = ()

    def value(self, theta: Array) -> tuple[float, Array]:
        """Return the coordinate at theta (n_theta,) and its derivative (n_theta,)."""
        assert self.part is not None
        log = np.array(self.theta_log)
        with np.errstate(all="ignore"):
            natural = np.where(log, np.exp(np.where(log, theta, 0.0)), theta)
            values, by_n = self.part.values(natural)
            g, slope = float(values[0]), by_n[0] * np.where(log, natural, 1.0)
            return (float(np.log(g)), slope / g) if self.log else (g, slope)

    def with_fixed_value(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with the row."""
        return ModifiedStagedProblem(staged, partial(self._append_row, staged.layout, c))

    def _append_row(self, layout: Layout, c: float, evaluation: E) -> E:
        """Add the row to the priors, as the last."""
        if not evaluation.ok:
            return evaluation
        g, slope = self.value(layout.theta(evaluation.v))
        if not (np.isfinite(g) and np.isfinite(slope).all()):
            failure = Failure(layout.chains[0].name, 0, "expression", "the fixed expression is not finite")
            return replace(evaluation, failures=(failure,))
        return replace(
            evaluation,
            prior=np.append(evaluation.prior, self.weight * (g - c)),
            prior_jacobian=stack_rows(
                [sparse_rows(evaluation.prior_jacobian), sparse_rows(self.weight * np.atleast_2d(slope))], slope.size
            ),
            prior_curved=None if evaluation.prior_curved is None else np.append(evaluation.prior_curved, True),
        )

    def coordinate(self, evaluation: Evaluation, fixed_problem: StagedProblem) -> float:
        """Return the expression at the point, which equals the fixed value up to a millionth of its uncertainty."""
        return self.value(evaluation.v[: len(self.theta_log)])[0]

    def coordinate_of(self, theta: Array) -> float:
        """Return the expression at theta."""
        return self.value(theta)[0]

    def own_cost(self, evaluation: Evaluation, fixed_problem: StagedProblem) -> float:
        """Return half the square of the row."""
        return 0.5 * float(evaluation.prior[-1]) ** 2

    def own_rows(self, rows: Array, fixed_problem: StagedProblem) -> Array:
        """Return the rows without the last one, which fixes the target."""
        return rows[:-1]

    @property
    def needs_explicit(self) -> frozenset[int]:
        """The quantities in the expression."""
        assert self.part is not None
        return frozenset(np.flatnonzero(self.part.pattern.any(axis=0)).tolist())
