"""The linearized problem where few unknowns vary within bounds, and nothing else: single shooting of small models.

Nothing is condensed and nothing eliminated: all rows are laid out as a dense matrix once per linearization, which is
factored once.  The step, its correction, the test of convergence and the verdict at the end share that.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.condensing import theta_residuals, theta_rows
from castfit.solve.matrices import FEW
from castfit.solve.subproblem import ActiveSet, LocalProblem, Step, moderate, units_of_search

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.solve.staged import Evaluation, Linearization, StagedProblem

_EVERY = slice(None)


def local_problem(
    staged: StagedProblem, linearization: Linearization, *, warm: ActiveSet | None = None, regularisation: float = 0.0
) -> LocalProblem:
    """Return the problem linearized at a point in the form that suits it; arguments as of `LocalProblem`."""
    layout = staged.layout
    form = DenseProblem if layout.of_theta and layout.n_theta <= FEW else LocalProblem
    return form(staged, linearization, warm=warm, regularisation=regularisation)


class DenseProblem(LocalProblem):
    """A staged problem of few variables, all of them theta, linearized at a point."""

    @cached_property
    def _eliminates(self) -> bool:
        return False

    @property
    def _alone(self) -> bool:
        return True

    @cached_property
    def _E(self) -> Array:
        return theta_rows(self.staged.layout, self.linearization)

    @cached_property
    def _u(self) -> Array:
        return theta_residuals(self.staged.layout, self.linearization)

    def moved(self, staged: StagedProblem, linearization: Linearization) -> LocalProblem:
        """Return the problem at the same point with other bounds or constants of rows."""
        return DenseProblem(staged, linearization, regularisation=self._regularisation)

    @cached_property
    def column_scale(self) -> Array:
        """Typical magnitudes of the unknowns, (n_x,)."""
        return self._by_columns

    @cached_property
    def norms(self) -> Array:
        """Lengths of the columns of E, (n_x,)."""
        return np.sqrt(np.einsum("ij,ij->j", self._E, self._E))

    @cached_property
    def _unit(self) -> Array:
        return units_of_search(self.staged, self.linearization.v)

    @property
    def _determining(self) -> Array:
        return np.empty((0, self._unit.size))

    @property
    def positions(self) -> Index | slice:
        """Where the unknowns lie in v."""
        return _EVERY

    @property
    def gradient(self) -> Array:
        """That of the cost of the linear model by the unknowns, (n_x,)."""
        return self._u @ self._E

    @cached_property
    def _finite(self) -> bool:
        return moderate([self._E, self._u])

    def correction(self, evaluation: Evaluation, like: Step | None = None) -> Step | None:
        """Return the simplified Gauss-Newton step from another point, as of `LocalProblem`."""
        u = theta_residuals(self.staged.layout, evaluation, self.linearization.sigma)
        active = None if like is None else like.active
        return self._of_theta(u, evaluation, None, active) if self._finite and moderate([u]) else None
