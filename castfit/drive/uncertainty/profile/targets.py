"""What can be profiled: quantities, unknown sigmas, expressions; how each is held, and where it is at a point.

Notation: c is the coordinate, the value that is held, or its logarithm where steps are taken in that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.drive.uncertainty.profile.constrained_problem import Dressed, FixedSigma, Tie

if TYPE_CHECKING:
    from castfit.problem.parameter_map import MappedExpressions
    from castfit.solve.staged import Array, Evaluation, StagedProblem

_STIFF = 1e3  # of the row that holds an expression, relative to the expression's own curvature


@dataclass(frozen=True, eq=False)
class Target(ABC):
    """Something that is held at numbers while all else is fitted.

    kind : "parameter", "initial state", "sigma", "expression" or "prediction"
    log : whether its coordinate is the logarithm
    lower, upper : bounds of the coordinate
    scale : a step of the coordinate that is not small: 1 for logarithms, else the magnitude of the value
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
    def held(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with the coordinate held at a number."""

    @abstractmethod
    def coordinate(self, at: Evaluation, held: StagedProblem) -> float:
        """Return the coordinate at a point, of the problem that holds it or of the one inside."""

    def coordinate_of(self, theta: Array) -> float:
        """Return the coordinate at theta (n_theta,); NaN where theta does not say it."""
        return np.nan

    def own_cost(self, at: Evaluation, held: StagedProblem) -> float:
        """Return what holding it adds to the cost."""
        return 0.0

    def own_rows(self, rows: Array, held: StagedProblem) -> Array:
        """Return what the condensed problem's rows (m,) are without the ones that hold."""
        return rows

    def slope(self, staged: StagedProblem, at: Evaluation) -> tuple[float, float] | None:
        """Return the first and second derivative of the cost by c where these are known; None where steps tell."""
        return None

    def stiffened(self, curvature: float) -> Target:
        """Return the target, held as steeply as the curvature of its profile demands."""
        return self

    @property
    def needs_explicit(self) -> frozenset[int]:
        """Entries of theta that must not be eliminated."""
        return frozenset()

    @property
    def moves_constants(self) -> bool:
        """Whether another number moves only bounds and constants of rows, not their derivatives."""
        return True


@dataclass(frozen=True, eq=False)
class OfQuantity(Target):
    """An entry of theta, held by its bounds."""

    at: int = 0

    def held(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with both bounds at c."""
        lower, upper = staged.lower.copy(), staged.upper.copy()
        lower[self.at] = upper[self.at] = c
        return staged.restricted(lower=lower, upper=upper)

    def coordinate(self, at: Evaluation, held: StagedProblem) -> float:
        """Return the entry of theta."""
        return float(at.v[self.at])

    def coordinate_of(self, theta: Array) -> float:
        """Return the entry of theta."""
        return float(theta[self.at])

    @property
    def needs_explicit(self) -> frozenset[int]:
        """Itself."""
        return frozenset({self.at})


@dataclass(frozen=True, eq=False)
class OfSigma(Target):
    """An unknown sigma that fits eliminate, by its group; its coordinate is a logarithm."""

    group: int = 0

    def held(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with the sigma known."""
        return Dressed(staged, FixedSigma(staged.layout, self.group, float(np.exp(c))))

    @property
    def moves_constants(self) -> bool:
        """Rows are divided by it, derivatives and all."""
        return False

    def coordinate(self, at: Evaluation, held: StagedProblem) -> float:
        """Return the logarithm of the sigma."""
        return float(np.log(at.sigma[self.group]))

    def slope(self, staged: StagedProblem, at: Evaluation) -> tuple[float, float] | None:
        """Return n - SSE / s^2 and 2 SSE / s^2: all else is optimal, so that only the sigma itself counts."""
        size = float(staged.layout.group_sizes[self.group])
        rows = [
            values.r[chain.group == self.group] for chain, values in zip(staged.layout.chains, at.values, strict=True)
        ]
        squares = float(sum(r @ r for r in rows))
        return size - squares, 2.0 * squares


@dataclass(frozen=True, eq=False)
class RowTarget(Target):
    """Something held by a steep row, of this weight."""

    weight: float = 1.0

    def stiffened(self, curvature: float) -> Target:
        """Return the target with a row of a thousand times the profile's own steepness."""
        return replace(self, weight=_STIFF * max(np.sqrt(max(curvature, 0.0)), 1.0 / self.scale))


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

    def held(self, staged: StagedProblem, c: float) -> StagedProblem:
        """Return the staged problem with the row."""
        return Dressed(staged, Tie(staged.layout, self.value, c, self.weight))

    def coordinate(self, at: Evaluation, held: StagedProblem) -> float:
        """Return the expression at the point, which is where it is held up to a millionth."""
        return self.value(at.v[: len(self.theta_log)])[0]

    def coordinate_of(self, theta: Array) -> float:
        """Return the expression at theta."""
        return self.value(theta)[0]

    def own_cost(self, at: Evaluation, held: StagedProblem) -> float:
        """Return half the square of the row."""
        return 0.5 * float(at.prior[-1]) ** 2

    def own_rows(self, rows: Array, held: StagedProblem) -> Array:
        """Leave out the row, which is the last."""
        return rows[:-1]

    @property
    def needs_explicit(self) -> frozenset[int]:
        """The quantities in it."""
        assert self.part is not None
        return frozenset(np.flatnonzero(self.part.pattern.any(axis=0)).tolist())
