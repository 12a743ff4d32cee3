"""The state of a Gauss-Newton solve: explicit and frozen, so that it can be looked at between two iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from castfit.solve.local import ActiveSet
from castfit.solve.softened import Softening
from castfit.solve.staged import Evaluation
from castfit._support.status import Status

if TYPE_CHECKING:
    from castfit.solve.staged import Array


@dataclass(frozen=True)
class GaussNewtonState:
    """Everything that one iteration hands to the next.

    Attributes
    ----------
    iteration : int
        Steps so far, those of softened problems included.
    phase : str
        "straight", "second start", "station 1", "station 2" ..., "exact", "held back".
    evaluation : Evaluation
        The current point and the values there; at a station they are of low accuracy.
    damping : float
        The factor lambda of the last step; 1 / (1 + mu) where steps are held back instead of shortened.
    report : mapping
        Figures of the last step and of the point that it started from (at the end: of the last point): gap, residual
        (root of the sum of squares), condition and held_directions of the condensed Jacobian, number of active
        constraints, relative size of the full step, and what the step control adds: level, omega or mu.
    status : Status, optional
        How the solve ended, None while it goes on.
    detail : str
        What is to be added to the status's sentence.
    memory : mapping
        What the step control, or the softened problem, remembers of the last step.
    active : ActiveSet, optional
        Active bounds and path constraints of the last local problem.
    bounds : (n_v,) array, optional
        Multipliers of the bounds there.
    stations : tuple of Softening
        The homotopy that is under way; empty before there is one.
    station : int
        Position in it: -1 before the first station, ``len(stations)`` behind the last one, at the exact problem.
    within : int
        Steps within the station.
    stalled : int
        Steps of this try that were damped much.
    idle : int
        Steps close to the solution since one came much closer.
    closest : (float, float)
        The smallest gap and the smallest promised decrease until then; infinite far from the solution.
    astray : bool
        Whether a full step close to the solution led away from it.
    circling : int
        Full steps in a row that were as long as the one before.
    origin : (n_v,) array, optional
        The second start, once it has been made.
    optimum : GaussNewtonState, optional
        The best optimum so far, if it was suspicious and the search went on.
    unheld : bool
        Whether singular directions are held no more, and steps kept in a box instead.
    rough : bool
        Whether values are those of a search far from the solution, where stages are integrated less accurately.
    """

    iteration: int
    phase: str
    evaluation: Evaluation
    damping: float = 1.0
    report: Mapping[str, float] = field(default_factory=dict[str, float])
    status: Status | None = None
    detail: str = ""
    memory: Mapping[str, float] = field(default_factory=dict[str, float])
    active: ActiveSet | None = None
    bounds: Array | None = None
    stations: tuple[Softening, ...] = ()
    station: int = -1
    within: int = 0
    stalled: int = 0
    idle: int = 0
    closest: tuple[float, float] = (np.inf, np.inf)
    astray: bool = False
    circling: int = 0
    origin: Array | None = None
    optimum: GaussNewtonState | None = None
    unheld: bool = False
    rough: bool = False

    @property
    def v(self) -> Array:
        """All variables."""
        return self.evaluation.v

    @property
    def soft(self) -> bool:
        """Whether the problem at hand is a softened one."""
        return 0 <= self.station < len(self.stations)

    @property
    def near(self) -> bool:
        """Whether the last local problem said that the solution is close."""
        return self.closest[0] < np.inf
