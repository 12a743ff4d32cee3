"""Single shooting, the initial value approach: parameters and initial states are the only variables."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit.integrate import IntegratorOptions
from castfit.solve.staged import GradientEvaluation, Linearization, StagedProblem
from castfit.transcribe.shooting_problem import (
    ShootingProblem,
    adjoint_obstacle,
    derivative_mistakes,
    for_gradients,
    is_gradient_cheaper,
)
from castfit.transcribe.stage_division import divide_all, integrator_mistakes
from castfit.transcribe.trajectory import States, constant_trajectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from castfit.problem.problem import Posable


@public("castfit")
@add_brief_repr
@dataclass(frozen=True)
class SingleShooting:
    """Integrate every experiment from its initial state to its end.

    Parameters
    ----------
    integrator : IntegratorOptions
    derivatives : {"auto", "forward", "adjoint"}
        What solvers are given: the derivatives of all residuals, by forward sensitivities, one per quantity; or the
        gradient of the cost alone, by one adjoint state, whatever the number of quantities, with which IPOPT
        approximates the Hessian.  "auto" takes that for hundreds of quantities of one experiment if the solver is IPOPT
        and the integrator CVODES.  Statistics come from all derivatives, which are computed once more at the end.
        By "adjoint", models of 100 states or more are integrated to a relative tolerance of 1e-6, not 1e-9, unless
        `integrator` has another one: the gradient is that of the steps, and needs no finer ones.

    Raises
    ------
    InputError
        Listing every option that is wrong.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> cf.fit(problem, cf.SingleShooting()).transcription
    'single shooting'
    """

    integrator: IntegratorOptions = field(default_factory=IntegratorOptions)
    derivatives: str = "auto"

    def __post_init__(self) -> None:
        raise_if_mistakes(
            "SingleShooting", integrator_mistakes(self.integrator) + derivative_mistakes(self.derivatives)
        )

    @property
    def label(self) -> str:
        """Name in tables."""
        return "single shooting (adjoint)" if self.derivatives == "adjoint" else "single shooting"

    @property
    def gives(self) -> tuple[type, ...]:
        """Return the classes that solvers should request; see castfit.solve.staged."""
        return (GradientEvaluation,) if self.derivatives == "adjoint" else (Linearization,)

    @property
    def accuracy(self) -> float:
        """Relative accuracy to which the model is solved over a stage; CVODES errs by ten times its tolerance."""
        return 10 * self.integrator.relative_tolerance

    @property
    def states(self) -> States:
        """Return "data" as the source of starts: without states, starts of theta are matched to the data."""
        return "data"

    def transcribe(
        self, problem: Posable, theta: NDArray[np.float64], units: Sequence[NDArray[np.float64]] | None = None
    ) -> ShootingProblem:
        """Lay the problem out as stages, starting from theta (n_theta,).

        Typical magnitudes of states, per experiment (n_x + n_z,), are found by a simulation unless they are given.

        Raises
        ------
        InputError
            If the problem has what adjoint states cannot follow.
        """
        compiled = problem.posed
        obstacle = adjoint_obstacle(compiled)
        if self.derivatives == "adjoint":
            advice = "give derivatives='forward'"
            raise_if_mistakes("SingleShooting(derivatives='adjoint')", [f"{obstacle}; {advice}"] if obstacle else [])
        prefers_gradient = (
            self.derivatives == "auto" and not obstacle and is_gradient_cheaper(compiled, self.integrator)
        )
        edges = [np.array([c.start, c.end]) for c in compiled.conditions]
        staged = ShootingProblem(
            compiled,
            divide_all(compiled, edges, theta),
            nodes=False,
            theta=theta,
            trajectory=constant_trajectory(compiled, theta, units),
            options=for_gradients(compiled, self.integrator) if self.derivatives == "adjoint" else self.integrator,
            gives=(GradientEvaluation, Linearization) if prefers_gradient else self.gives,
        )
        if units is None:
            staged.settle_units()
        return staged

    def refine(self, problem: Posable, staged: StagedProblem, v: NDArray[np.float64]) -> StagedProblem | None:
        """Return the problem with tolerances for the states' magnitudes at v, or None if they were met."""
        return staged.rescaled(v) if isinstance(staged, ShootingProblem) else None
