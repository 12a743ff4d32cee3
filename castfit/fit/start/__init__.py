"""Starting points: parameters matched to measured states, decomposition, relaxed dynamics, growing horizons."""

from __future__ import annotations

from castfit._support.arrays import Array
from castfit._support.records import dataclass
from castfit._support.status import Status
from castfit.simulate.simulate import TrajectoryNodes


@dataclass(frozen=True)
class StartingPoint:
    """Starting point of a fit: theta (n_theta,), search scale.

    note : sentence about how it was computed
    stop_status : MAX_TIME or INTERRUPTED if its computation ended early
    nodes : trajectory of each experiment at this point
    """

    theta: Array
    note: str = ""
    stop_status: Status | None = None
    nodes: list[TrajectoryNodes] | None = None
