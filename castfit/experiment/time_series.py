"""Measurements as users give them: a table, a mapping, series with times of their own; read into one series each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.reprs import brief
from castfit._support.arguments import named, real, reals, text
from castfit._support.status import suggest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_FAR = 10.0  # spans of the data; initial states that hold so long before the first datum are hardly meant
_LARGEST = 1e100  # whose square is a number
_RESOLVED = 1e6 * np.finfo(float).eps  # length of an experiment, relative to its times


@brief
@dataclass(frozen=True)
class Relative:
    """Standard deviations proportional to the measured value; create it with `relative`."""

    fraction: float
    floor: float = 0.0


@dataclass(frozen=True)
class Series:
    """Values of one quantity at its times, replicates in columns."""

    times: Array  # (n,)
    values: Array  # (n, replicates)
    shape: tuple[int, ...]  # as the user gave the values


def is_frame(data: Any) -> bool:
    """Tell a pandas DataFrame, without importing pandas."""
    return hasattr(data, "columns") and hasattr(data, "index") and hasattr(data, "iloc")


def _columns(frame: Any, mistakes: list[str]) -> dict[str, Any]:
    names = [str(c) for c in frame.columns]
    mistakes += [f"the DataFrame has several columns '{n}'" for n in dict.fromkeys(names) if names.count(n) > 1]
    return {n: frame.iloc[:, i] for i, n in enumerate(names)}


def read_series(data: Any, time: Any, mistakes: list[str]) -> dict[str, Series]:
    """Read every accepted form of data into one series per name."""
    columns: dict[str, Any]
    if is_frame(data):
        columns = _columns(data, mistakes)
        if time is None:
            time = data.index
        elif isinstance(time, (str, int)):
            if str(time) not in columns:
                mistakes.append(f"the DataFrame has no time column '{time}': {suggest(str(time), columns)}")
                return {}
            time = columns.pop(str(time))
    elif isinstance(data, Mapping):
        columns = named("data", data, mistakes)
        if isinstance(time, str):
            mistakes.append(f"time is the text '{time}'; give the times, or a DataFrame with that column")
            return {}
    else:
        mistakes.append(f"data is a {type(data).__name__}; give a mapping from names to values, or a pandas DataFrame")
        return {}
    common = None if time is None else reals(time)
    if time is not None and common is None:
        mistakes.append(f"time is {text(time)}; give real numbers, for instance hours since the start")
    series: dict[str, Series] = {}
    for name, value in columns.items():
        own = isinstance(value, tuple) and _are_arrays(cast("tuple[Any, ...]", value))
        if not own and common is None:
            if time is None:
                mistakes.append(f"'{name}' has no times; give time=..., or (times, values)")
            continue
        t, y = (reals(value[0]), reals(value[1])) if own else (common, reals(value))
        if t is None or y is None:
            mistakes.append(f"'{name}' contains something that is no real number: {text(value)}")
        elif t.ndim != 1 or y.ndim not in (1, 2) or y.shape[0] != t.size or y.size == 0:
            mistakes.append(
                f"'{name}' has values of shape {y.shape} at times of shape {t.shape}; "
                "give (n_times,) or (n_times, n_replicates)"
            )
        else:
            series[name] = Series(t, y.reshape(t.size, -1), y.shape)
    if not columns:
        mistakes.append("data is empty; give at least one measured quantity")
    return series


def _are_arrays(pair: tuple[Any, ...]) -> bool:
    """Tell (times, values) from two measured numbers."""
    return len(pair) == 2 and not all(v is None or isinstance(v, Number) for v in pair)


def series_mistakes(series: Mapping[str, Series], start: float | None) -> list[str]:
    """Find times and values that cannot be measurements."""
    mistakes: list[str] = []
    for name, s in series.items():
        t, y = s.times, s.values
        if not np.isfinite(t).all():
            mistakes.append(f"the times of '{name}' contain NaN or infinity; leave such rows out")
        elif (np.diff(t) < 0).any():
            late = t[1:][np.diff(t) < 0][0]
            mistakes.append(f"the times of '{name}' are not sorted (look at t = {late:g}); sort the rows by time")
        elif start is not None and t[0] < start:
            mistakes.append(f"'{name}' has a time {t[0]:g} before the start {start:g}; set start=, or drop the row")
        if np.isinf(y).any():
            mistakes.append(f"'{name}' contains infinite values; use NaN for what was not measured")
        elif not np.isfinite(y).any():
            mistakes.append(f"'{name}' contains no measured value (all NaN); leave it out")
    return mistakes


def scale_mistakes(
    series: Mapping[str, Series], deviations: Mapping[str, Array], start: float, *, given: bool
) -> list[str]:
    """Find times and values with which floating-point numbers cannot reckon, and a start that was hardly meant."""
    measured = [s.times[np.isfinite(s.values).any(axis=1)] for s in series.values()]
    first, last = min(float(t[0]) for t in measured), max(float(t[-1]) for t in measured)
    mistakes = time_mistakes(first, last, start, given=given)
    for name, s in series.items():
        y = np.abs(s.values[np.isfinite(s.values)])
        if y.max(initial=0.0) > _LARGEST:
            mistakes.append(f"'{name}' contains {y.max():g}; give it in another unit")
        sigma = deviations.get(name)
        if sigma is None:
            continue
        ratio = np.divide(np.abs(s.values), sigma, out=np.zeros_like(sigma), where=np.isfinite(s.values))
        if sigma.max() > _LARGEST or sigma.min() < 1 / _LARGEST or ratio.max(initial=0.0) > _LARGEST:
            span = f"between {sigma.min():g} and {sigma.max():g}"
            mistakes.append(f"sigma of '{name}' is {span}, too far from the values; give it in another unit")
    return mistakes


def time_mistakes(first: float, last: float, start: float, *, given: bool) -> list[str]:
    """Find times with which floating-point numbers cannot reckon, and a start, if none was given, that is hardly meant.

    first, last : of the wanted or measured times
    """
    length, largest = last - start, max(abs(start), abs(last))
    if largest > _LARGEST or 0 < length < 1 / _LARGEST:
        return [f"the times reach from {start:g} to {last:g}; give them in another unit"]
    if 0 < length < _RESOLVED * largest:
        return [
            f"the times from {start!r} to {last!r} are too close to each other for numbers of this size; "
            f"count them from {start:g}"
        ]
    if not given and first > _FAR * (last - first) > 0:
        return [
            f"the times, from {first:g} to {last:g}, are far from 0: when do the initial states hold? "
            f"Give start={first:g}, or start=0"
        ]
    return []


def read_sigma(
    sigma: Any, time: Any, series: Mapping[str, Series], mistakes: list[str], *, elsewhere: Collection[str] = ()
) -> dict[str, Array]:
    """Expand every accepted form of sigma to one array per series; of those `elsewhere` it may be missing."""
    if sigma is None or not series:
        return {}
    given: dict[str, Any]
    if isinstance(sigma, Mapping) or is_frame(sigma):
        given = _columns(sigma, mistakes) if is_frame(sigma) else named("sigma", sigma, mistakes)
        if isinstance(time, str) and time not in series:
            given.pop(time, None)
        mistakes += [f"sigma names '{n}', which is not in data: {suggest(n, series)}" for n in given if n not in series]
        mistakes += [f"sigma is missing for '{n}'" for n in series if given.get(n) is None and n not in elsewhere]
        given = {n: s for n, s in given.items() if s is not None}
    elif isinstance(sigma, Relative) or real(sigma) is not None:
        given = dict.fromkeys(series, sigma)
    else:
        table = reals(sigma)
        if table is not None and all(table.shape == (s.times.size, len(series)) for s in series.values()):
            given = {n: table[:, j] for j, n in enumerate(series)}
        elif table is not None and len(series) == 1:
            given = dict.fromkeys(series, table)
        else:
            shown = text(sigma) if table is None else f"an array of shape {table.shape}"
            mistakes.append(f"sigma is {shown}; give a number, a mapping per output, or an array (n_times, n_outputs)")
            return {}
    out: dict[str, Array] = {}
    for name, own in series.items():
        value = _deviations(name, given[name], own, mistakes) if name in given else None
        if value is not None:
            out[name] = value
    return out


def _deviations(name: str, sigma: Any, series: Series, mistakes: list[str]) -> Array | None:
    measured, shape = np.isfinite(series.values), series.values.shape
    if isinstance(sigma, Relative):
        fraction, floor = real(sigma.fraction), real(sigma.floor)
        if fraction is None or floor is None or not (0 <= fraction < np.inf and 0 <= floor < np.inf):
            mistakes.append(f"sigma of '{name}': relative() takes a fraction and a floor that are not negative")
            return None
        wide = np.maximum(fraction * np.abs(np.where(measured, series.values, 1.0)), floor)
        remedy = "give relative(..., floor=...) a positive floor"
    else:
        given = reals(sigma)
        if given is None or given.shape not in ((), shape[:1], series.shape, shape):
            mistakes.append(
                f"sigma of '{name}' is {text(sigma)}; give a number, one per time, or an array of shape {series.shape}"
            )
            return None
        wide = np.array(np.broadcast_to(given[:, None] if given.ndim == 1 else given, shape))
        remedy = "standard deviations are positive; leave sigma out if they are unknown"
    bad = measured & ~(np.isfinite(wide) & (wide > 0))
    if bad.any():
        at = series.times[np.argwhere(bad)[0][0]]
        mistakes.append(f"sigma of '{name}' is {wide[bad][0]:g} at t = {at:g}; {remedy}")
        return None
    return wide
