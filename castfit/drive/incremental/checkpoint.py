"""What an incremental fit knows between two horizons, and what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class Diary:
    """Writes into a checkpoint, if there is one, what is not there yet.

    Parameters
    ----------
    file : Checkpoint or None
    known : int
        How many horizons the file holds.
    """

    def __init__(self, file: Checkpoint | None, known: int) -> None:
        self._file, self._known = file, known

    def stage(self, stage: Stage) -> None:
        """Write where the fit stands."""
        self._write(stage.horizons, {"known": plain(stage.known), "target": stage.target})

    def end(self, horizons: Sequence[Horizon], result: Result) -> None:
        """Write the result of a fit that was not stopped."""
        if self._file is not None:
            self._write(horizons, {"result": packed(result)})

    @property
    def trouble(self) -> tuple[str, ...]:
        """What went wrong with the file."""
        return () if self._file is None or not self._file.trouble else (self._file.trouble,)

    def _write(self, horizons: Sequence[Horizon], entry: dict[str, Any]) -> None:
        new = [plain(horizon) for horizon in horizons[self._known :]]
        if self._file is not None and self._file.append({"horizons": new, **entry}):
            self._known = len(horizons)


def resumed(file: Checkpoint | None) -> tuple[tuple[Horizon, ...], Stage | None, Result | None]:
    """Return the horizons of a checkpoint, where it stands, and the result if it is complete."""
    horizons: list[Horizon] = []
    stage: Stage | None = None
    for record in () if file is None else file.records:
        entry: Any = numbers(record)
        horizons += [_horizon(h) for h in entry["horizons"]]
        if "result" in record:
            return tuple(horizons), stage, unpacked(record["result"])
        known = entry["known"]
        estimate = Estimate(known["theta"], Bounds(**known["bounds"]), known["horizon"])
        stage = Stage(estimate, entry["target"], tuple(horizons))
    return tuple(horizons), stage, None


def _horizon(entry: Mapping[str, Any]) -> Horizon:
    bounds = {name: (lower, upper) for name, (lower, upper) in entry["bounds"].items()}
    given: dict[str, Any] = {**entry, "bounds": bounds, "status": Status(entry["status"])}
    return Horizon(**given)
