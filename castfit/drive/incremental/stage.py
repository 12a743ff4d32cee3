"""What an incremental fit knows between two horizons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from castfit.drive.incremental.limits import Bounds
from castfit.drive.incremental.result import Horizon

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True)
class Estimate:
    """What one horizon hands to the next: theta, the bounds on it, and the horizon that it was estimated on."""

    theta: Array
    bounds: Bounds
    horizon: float


@dataclass(frozen=True)
class Stage:
    """Where an incremental fit stands.

    Attributes
    ----------
    known : Estimate
    target : float
        The horizon that is solved next.
    horizons : tuple of Horizon
        Those that have been solved.
    """

    known: Estimate
    target: float
    horizons: tuple[Horizon, ...] = ()
