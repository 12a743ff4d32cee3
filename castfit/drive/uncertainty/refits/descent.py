"""Fits to other data from an estimate, where nothing but theta moves: two or three integrations each.

All data sets of a run share what was measured when, and where they begin.  So two things are found once, at the
estimate: how the rows bend,

    B_ijk = d^2 rows_i / d theta_j d theta_k        by differences of their derivatives

and with that a start for every data set that costs no integration, the minimum of 1/2 |u + E x + 1/2 x B x|^2 in the
box.  From there Newton's method goes down, with the same B in the second derivatives of the cost,

    H = E^T E + sum_i u_i B_i,    c = E^T u        (castfit.solve.dense_descent has the notation)

so that large residuals cost no further steps.  What does not arrive so is for an ordinary fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from castfit._support.arrays import Array
from castfit._support.time_limit import Stopped
from castfit.fit.laplace_kinks import kinks_of
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import Posed
from castfit.solve.block_pivoting import lowest_in_box
from castfit.solve.dense_descent import descends
from castfit.solve.staged import DenseRows
from castfit.solve.subproblem import RIDGE, units_of_search
from castfit.transcribe.dense_single_shooting import DenseResiduals
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting

_STEPS = 12
_PROMISED = 1e-8  # of half the squares and 1: a decrease of the cost that is none
_PART = 0.1  # of what a quantity is known to, or of a unit of the search: the step of the differences
_MOST = 10**7  # numbers in B
_NARROWER = 0.25  # the box after a step that led up, of the step
_SAME = 1e-3  # of half the squares and 1: costs of a trajectory that can be integrated over the whole
_SLACK = 1e-9  # of half the squares and 1, by which the cost may rise


@dataclass(frozen=True)
class DescentEnd:
    """A minimum theta (n,), the point before it, from which nothing more is promised, and the number of steps."""

    theta: Array
    before: Array
    steps: int


@dataclass(frozen=True)
class _Surroundings:
    """Local second-order model of the residual rows at the estimate theta (n,).

    scale (m,) : what rows were multiplied by;  E (m, n) : their derivatives;  B (m, n, n) : their second ones
    units, lower, upper (n,) : units of the search, and bounds
    """

    staged: ShootingProblem
    theta: Array
    scale: Array
    E: Array
    B: Array
    units: Array
    lower: Array
    upper: Array

    def model(self, u: Array) -> Callable[[Array], DenseRows]:
        """Return rows that are u (m,) at the estimate and bend as is known, in the units of E."""

        def rows(v: Array) -> DenseRows:
            x = v - self.theta
            bent = self.B @ x
            there = u + (self.E + 0.5 * bent) @ x
            half_square = 0.5 * float(there @ there)
            return DenseRows(v, half_square, half_square, there, self.E + bent)

        return rows

    def descended(self, rows: Callable[[Array], DenseRows | None], start: Array, factor: Array) -> DescentEnd | None:
        """Minimise half the squared rows by Newton steps within the bounds. Return None if no minimum is found.

        factor (m,) : what B is multiplied by, for rows in other units than E.
        """
        at, width = rows(start), 1.0
        if at is None:
            return None
        second = self.units[:, None] * np.tensordot(factor * at.u, self.B, axes=1) * self.units
        for k in range(_STEPS):
            E, enough = at.E * self.units, 1.0 + at.half_square
            H, c = E.T @ E, E.T @ at.u
            H[np.diag_indices_from(H)] += RIDGE[0] + RIDGE[1] * float(np.trace(H))
            low = np.maximum((self.lower - at.v) / self.units, -width)
            high = np.minimum((self.upper - at.v) / self.units, width)
            bent = H + second
            try:
                s = lowest_in_box(bent, c, low, high)
            except np.linalg.LinAlgError:  # no minimum: that of Gauss and Newton
                bent = H
                s = lowest_in_box(bent, c, low, high)
            promised = -float(s @ (c + 0.5 * (bent @ s)))
            there = np.clip(at.v + self.units * s, self.lower, self.upper)
            if promised <= _PROMISED * enough:
                return DescentEnd(there, at.v, k)
            after = rows(there)
            if after is not None and after.cost <= at.cost + _SLACK * enough:
                x, anew = (after.v - at.v) / self.units, after.E * self.units
                second = _remembered(second, x, anew.T @ after.u - E.T @ after.u, anew.T @ after.u - c)
                at, width = after, min(2.0 * width, 1.0)
            else:
                width = _NARROWER * float(np.abs(s).max())
        return None


def _remembered(S: Array, x: Array, bent: Array, y: Array) -> Array:
    """Update the second-order term S of the Hessian by a secant condition with step x: S x = bent.

    y is the difference of the gradients (Dennis, Gay and Welsch 1981, equation 4.3).
    """
    along = float(y @ x)
    if not along > 0.0:
        return S
    missed = bent - S @ x
    mixed = np.outer(missed, y)
    return S + (mixed + mixed.T) / along - float(missed @ x) / along**2 * np.outer(y, y)


@dataclass(frozen=True)
class WarmDescent:
    """Fits to other data of a problem, each started from its estimate theta (n_theta,) with its cost."""

    posed: Posed
    integrator: IntegratorOptions
    theta: Array
    cost: float

    def reached(self, problem: Posed) -> tuple[DescentEnd, DenseResiduals] | None:
        """Return the end of the fit to a problem that differs only in its data, and its rows; None if the fit fails.

        An end above the cost at the estimate, about which the data were drawn, is none.
        """
        near = self._surroundings
        staged = None if near is None else near.staged.measuring(problem)
        dense = None if staged is None else staged.dense_evaluator
        if near is None or dense is None:
            return None
        try:
            here = dense.residuals(self.theta)
            if here is None:
                return None
            factor = here.scale / near.scale
            begun = near.descended(near.model(here.u / factor), self.theta, np.ones(factor.size))
            found = near.descended(dense.rows, self.theta if begun is None else begun.theta, factor)
            end = None if found is None else dense.residuals(found.before)
        except (Stopped, np.linalg.LinAlgError):
            return None
        if found is None or end is None or end.cost > here.cost + _SLACK * (1.0 + abs(here.cost)):
            return None
        return found, end

    @cached_property
    def _surroundings(self) -> _Surroundings | None:
        posed = self.posed
        if not posed.least_squares or posed.smooth or kinks_of(posed):
            return None
        try:
            staged = SingleShooting(self.integrator).transcribe(posed, self.theta).explicit()
            known = staged.measuring(posed)  # whose last point remains the estimate
            dense, aside = staged.dense_evaluator, None if known is None else known.dense_evaluator
            if dense is None or aside is None or not descends(staged):
                return None
            at, here = dense.rows(self.theta), dense.residuals(self.theta)
            if at is None or here is None or abs(at.cost - self.cost) > _SAME * (1.0 + at.half_square):
                return None
            units = units_of_search(staged, self.theta)
            B = np.zeros((*at.E.shape, self.theta.size))
            if B.size > _MOST:
                return None
            for j, size in enumerate(np.linalg.norm(at.E, axis=0)):
                h = _PART * min(units[j], 1.0 / size if size > 0.0 else np.inf)
                h = -h if self.theta[j] + h > staged.upper[j] else h
                moved = aside.rows(np.where(np.arange(self.theta.size) == j, self.theta + h, self.theta))
                if moved is None:
                    return None
                B[:, :, j] = (moved.E - at.E) / h
        except Stopped:
            return None
        both = 0.5 * (B + B.transpose(0, 2, 1))
        return _Surroundings(staged, self.theta, here.scale, at.E, both, units, staged.lower, staged.upper)
