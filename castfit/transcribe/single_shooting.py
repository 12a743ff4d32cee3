"""Single shooting, the initial value approach: parameters and initial states are the only variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._brief import brief
from castfit._reading import text
from castfit.integrate import IntegratorOptions
from castfit.status import check
from castfit.transcribe.division import divided
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.trajectory import States, still_trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem import Posable
    from castfit.staged import StagedProblem


@brief
@dataclass(frozen=True)
class SingleShooting:
    """Integrate every experiment from its initial state to its end.

    Parameters
    ----------
    integrator : IntegratorOptions

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> cf.fit(problem, cf.SingleShooting()).transcription
    'single shooting'
    """

    integrator: IntegratorOptions = field(default_factory=IntegratorOptions)

    def __post_init__(self) -> None:
        given: Any = self.integrator
        if not isinstance(given, IntegratorOptions):
            check("SingleShooting", [f"integrator is {text(given)}; give IntegratorOptions(...)"])

    @property
    def label(self) -> str:
        """Name in tables."""
        return "single shooting"

    @property
    def accuracy(self) -> float:
        """Relative accuracy to which the model is solved over a stage; CVODES errs by ten times its tolerance."""
        return 10 * self.integrator.relative_tolerance

    @property
    def states(self) -> States:
        """Where states start: there are none to start, so starts for theta alone are matched to the data."""
        return "data"

    def transcribe(self, problem: Posable, theta: NDArray[np.float64]) -> ShootingProblem:
        """Lay the problem out as stages, starting from theta (n_theta,)."""
        posed = problem.posed
        edges = [np.array([c.start, c.end]) for c in posed.conditions]
        staged = ShootingProblem(
            posed,
            divided(posed, edges, theta),
            nodes=False,
            theta=theta,
            trajectory=still_trajectory(posed, theta),
            options=self.integrator,
        )
        staged.settle_units()
        return staged

    def refine(self, problem: Posable, staged: StagedProblem, v: NDArray[np.float64]) -> StagedProblem | None:
        """Return the problem with tolerances for the states' magnitudes at v, or None if they were met."""
        return staged.rescaled(v) if isinstance(staged, ShootingProblem) else None
