"""Dates as times: counted in the model's unit of time from a beginning, so that everything else sees numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.arguments import is_one_of, text
from castfit.experiment.time_series import is_frame

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "week": 604800}  # in seconds
_GIVE = f"say in which unit the model counts time, time_unit= one of {', '.join(map(repr, UNITS))}"


def counted(data: Any, time: Any, start: Any, unit: Any, mistakes: list[str]) -> tuple[Any, Any, Any]:
    """Replace dates, and lengths of time, among the times of data by numbers in a unit; the rest stays as it is.

    Parameters
    ----------
    data, time, start : as `Experiment` takes them
    unit : {"s", "min", "h", "d", "week"} or None

    Returns
    -------
    data, time, start
        Dates count from `start`, if that is a date, else from the first of them, where start becomes 0.
    """
    found = {key: stamps for key, value in _times(data, time).items() if (stamps := _stamps(value)) is not None}
    origin = None if start is None else _stamps(start)
    if not found and origin is None:
        if unit is not None:
            mistakes.append(
                "time_unit is given, but the times are no dates; leave it out, numbers have the model's unit"
            )
        return data, time, start
    if unit is None or not is_one_of(unit, *UNITS):
        mistakes.append(f"the times are dates; {_GIVE}" if unit is None else f"time_unit is {text(unit)}; {_GIVE}")
        unit = "s"  # so that other mistakes are found as well
    kinds = {stamps.dtype.kind for stamps in [*found.values(), *([] if origin is None else [origin])]}
    if len(kinds) > 1:
        mistakes.append("some times are dates and others are lengths of time; give dates only, or lengths only")
        found = {key: stamps.astype("M8[ns]") for key, stamps in found.items()}
        kinds, origin = {"M"}, None
    second = np.timedelta64(UNITS[unit], "s")
    if kinds == {"m"}:
        numbers = {key: stamps / second for key, stamps in found.items()}
        start = start if origin is None else float(origin / second)
    else:
        origin = min(np.nanmin(stamps) for stamps in found.values()) if origin is None else origin
        numbers = {key: (stamps - origin) / second for key, stamps in found.items()}
        start = 0.0
    for key, value in numbers.items():
        data, time = _with_times(data, time, key, value)
    return data, time, start


def _times(data: Any, time: Any) -> dict[str | None, Any]:
    """Return what are times: None for the common ones, and those of each series that has its own."""
    common = time
    if is_frame(data):
        if time is None:
            common = data.index
        elif isinstance(time, str):
            common = data[time] if list(data.columns).count(time) == 1 else None
    own: dict[str | None, Any] = {}
    if isinstance(data, Mapping):
        series = cast("Mapping[Any, Any]", data)
        own = {n: v[0] for n, v in series.items() if isinstance(v, tuple) and len(cast("tuple[Any, ...]", v)) == 2}
    return {None: common, **own}


def _with_times(data: Any, time: Any, key: str | None, numbers: NDArray[np.float64]) -> tuple[Any, Any]:
    if key is not None:
        return {**data, key: (numbers, data[key][1])}, time
    if not is_frame(data):
        return data, numbers
    if time is None:
        return data.set_axis(numbers, axis=0), time
    return (data.assign(**{time: numbers}), time) if isinstance(time, str) else (data, numbers)


def _stamps(value: Any) -> NDArray[Any] | None:
    """Read dates (datetime64) or lengths of time (timedelta64), of a nanosecond; None if there are neither."""
    zoned = getattr(value, "dt", value)  # of a Series, an Index has it itself
    if getattr(zoned, "tz", None) is not None:
        value = zoned.tz_convert(None)
    if isinstance(value, (date, timedelta)):  # datetime and pandas.Timestamp are dates
        value = [value]
        return None if (read := _stamps(value)) is None else read[0]
    if isinstance(value, (list, tuple)):
        entries = cast("list[Any]", value)
        if not entries or not all(isinstance(e, (date, timedelta, np.datetime64, np.timedelta64)) for e in entries):
            return None
        if any(getattr(e, "tzinfo", None) is not None for e in entries):
            from datetime import timezone

            entries = [e.astimezone(timezone.utc).replace(tzinfo=None) for e in entries]
        value = np.array(entries, dtype="m8[ns]" if isinstance(entries[0], (timedelta, np.timedelta64)) else "M8[ns]")
    array: NDArray[Any] = np.asarray(value) if hasattr(value, "dtype") else np.zeros(0)
    return array.astype(f"{array.dtype.kind}8[ns]") if array.dtype.kind in "mM" else None
