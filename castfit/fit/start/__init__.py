"""Starting points: parameters matched to measured states, decomposition, relaxed dynamics, growing horizons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from castfit._support.records import dataclass

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit._support.status import Status
    from castfit.simulate.simulate import TrajectoryNodes


@dataclass(frozen=True)
class StartingPoint:
    """Start of a fit: theta (n_theta,), search scale.

    note : what was done to find it, in a sentence
    ended : why that search ended early, if it did: MAX_TIME or INTERRUPTED
    nodes : a trajectory there, one per experiment
    """

    theta: Array
    note: str = ""
    stop_status: Status | None = None
    nodes: list[TrajectoryNodes] | None = None
