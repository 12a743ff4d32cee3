"""Direct multiple shooting: the states at the interval boundaries are variables too (Bock 1981)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._brief import brief
from castfit._reading import text
from castfit.integrate import IntegratorOptions
from castfit.status import check
from castfit.transcribe.division import check_triggers, divided
from castfit.transcribe.grid import interval_mistakes, uniform_or_given
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.trajectory import States, start_trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.posed import Posed
    from castfit.problem import Posable
    from castfit.staged import StagedProblem


@brief
@dataclass(frozen=True)
class MultipleShooting:
    """Integrate every interval from a state of its own, and match the ends.

    Parameters
    ----------
    intervals : int, "data" or array
        Number of equal intervals, an interval between any two measured times, or the boundaries themselves.
    states : {"data", "smoothed", "simulation"} or mapping
        Where the node states start: interpolated or smoothed measurements (the rest by simulation), simulation from
        the guess, or ``{state: (times, values)}``.
    integrator : IntegratorOptions
    """

    intervals: int | str | NDArray[np.float64] = 20
    states: States = "data"
    integrator: IntegratorOptions = field(default_factory=IntegratorOptions)

    def __post_init__(self) -> None:
        mistakes = interval_mistakes("intervals", self.intervals)
        given: Any = self.integrator
        if not isinstance(given, IntegratorOptions):
            mistakes.append(f"integrator is {text(given)}; give IntegratorOptions(...)")
        check("MultipleShooting", mistakes)

    @property
    def label(self) -> str:
        """Name in tables."""
        if isinstance(self.intervals, str):
            return "multiple shooting (at data)"
        count = "given" if np.ndim(self.intervals) else f"{self.intervals}"
        return f"multiple shooting ({count} intervals)"

    @property
    def accuracy(self) -> float:
        """Relative accuracy to which the model is solved over a stage; CVODES errs by ten times its tolerance."""
        return 10 * self.integrator.relative_tolerance

    def transcribe(self, problem: Posable, theta: NDArray[np.float64]) -> ShootingProblem:
        """Lay the problem out as stages, starting from theta (n_theta,)."""
        posed = problem.posed
        check_triggers("MultipleShooting", posed)
        return self._problem(posed, theta, self.states)

    def _problem(self, posed: Posed, theta: NDArray[np.float64], states: States) -> ShootingProblem:
        edges = [uniform_or_given(c, self.intervals, what="intervals") for c in posed.conditions]
        stages = divided(posed, edges, theta)
        trajectory = start_trajectory(posed, theta, states, self.integrator)
        return ShootingProblem(posed, stages, nodes=True, theta=theta, trajectory=trajectory, options=self.integrator)

    def refine(self, problem: Posable, staged: StagedProblem, v: NDArray[np.float64]) -> StagedProblem | None:
        """Return the problem with stages where events are at v, or with tolerances for the states' magnitudes there.

        None if stages and tolerances are right.
        """
        if not isinstance(staged, ShootingProblem):
            return None
        if staged.disarranged(v):
            return self._problem(problem.posed, staged.layout.theta(v), "simulation")
        return staged.rescaled(v)
