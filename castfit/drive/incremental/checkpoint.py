"""What an incremental fit knows between two horizons, and what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from castfit._json import plain
from castfit.drive.incremental.limits import Bounds
from castfit.drive.incremental.result import Horizon
from castfit.drive.run.checkpoint import Checkpoint, numbers, packed, unpacked
from castfit.status import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.result import Result

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


Save = Callable[[Stage], None]


def save_to(file: Checkpoint | None) -> Save:
    """Return a function that writes a stage, of the horizons the last one only."""

    def save(stage: Stage) -> None:
        if file is not None:
            file.append({"stage": plain({**vars(stage), "horizons": stage.horizons[-1:]})})

    return save


def finish(file: Checkpoint | None, last: Horizon, result: Result) -> None:
    """Write the last horizon and the result of a fit that was not stopped."""
    if file is not None:
        file.append({"last": plain(last), "result": packed(result)})


def resumed(file: Checkpoint | None) -> tuple[Stage | None, tuple[Horizon, Result] | None]:
    """Return the last stage of a checkpoint, and the last horizon and the result if it is complete."""
    horizons: list[Horizon] = []
    stage: Stage | None = None
    for record in () if file is None else file.records:
        if "result" in record:
            return stage, (_horizon(numbers(record["last"])), unpacked(record["result"]))
        entry: Any = numbers(record["stage"])
        horizons += [_horizon(h) for h in entry["horizons"]]
        known = entry["known"]
        estimate = Estimate(known["theta"], Bounds(**known["bounds"]), known["horizon"])
        stage = Stage(estimate, entry["target"], tuple(horizons))
    return stage, None


def _horizon(entry: Mapping[str, Any]) -> Horizon:
    bounds = {name: (lower, upper) for name, (lower, upper) in entry["bounds"].items()}
    given: dict[str, Any] = {**entry, "bounds": bounds, "status": Status(entry["status"])}
    return Horizon(**given)
