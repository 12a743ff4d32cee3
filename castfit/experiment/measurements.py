"""Measurements as users give them, read into one series each: tables and mappings, dates, deviations and noise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import date, timedelta, timezone
from numbers import Number
from typing import Any, cast

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import (
    describe_non_numbers,
    is_one_of,
    read_mapping,
    read_real,
    read_reals,
    read_sequence,
    shorten_repr,
    symbol_or_text_name,
)
from castfit._support.arrays import Array
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import suggest, unknown_names
from castfit.densities.noise.density import Noise
from castfit.densities.noise.gaussian import Gaussian
from castfit.densities.noise.unknown import UnknownSigma
from castfit.experiment.correlated_errors import is_dependent, is_misplaced_dependence, read_dependence, with_dependence

# Longest time from the start to the first measurement, in spans of the measured times, if start= is not set.
_MAX_LEAD_SPANS = 10.0
_MAX_MAGNITUDE = 1e100  # largest magnitude whose square is still far from overflow
_MIN_RELATIVE_DURATION = 1e6 * np.finfo(float).eps  # shortest duration of an experiment, relative to its times
UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "week": 604800}  # in seconds
_GIVE = f"say in which unit the model counts time, time_unit= one of {', '.join(map(repr, UNITS))}"
_FRAMES = ("to_frame", "to_dataframe", "to_pandas")  # of pandas.Series, xarray and polars
_TIMES = "give real numbers, for instance hours since the start, or dates, which pandas.to_datetime makes of text"
_NUMBERS = "give numbers, and NaN for missing values"


@add_brief_repr
@dataclass(frozen=True)
class Relative:
    """Standard deviations proportional to the measured value; create it with `relative`."""

    fraction: float
    floor: float = 0.0

    def compute_deviations(self, values: Array) -> Array:
        """Return the standard deviations of values, of any shape."""
        return np.maximum(self.fraction * np.abs(values), self.floor)


@dataclass(frozen=True)
class TimeSeries:
    """Values of one quantity at its times, replicates in columns."""

    times: Array  # (n,)
    values: Array  # (n, replicates)
    shape: tuple[int, ...]  # as the user gave the values


def is_frame(data: Any) -> bool:
    """Check for a pandas DataFrame without importing pandas."""
    return hasattr(data, "iloc") and hasattr(data, "columns") and hasattr(data, "index")


def index_mistakes(data: Any, time: Any, sigma: Any, noise: Any) -> list[str]:
    """Find times and deviations of pandas with other labels than the values: all are read by position, in their order.

    If they are in another order, pandas would align them, so the intended order is ambiguous.
    """

    def parts(argument: Any) -> dict[str | None, Any]:
        mapping = cast("Mapping[Any, Any]", argument) if isinstance(argument, Mapping) else {None: argument}
        return {symbol_or_text_name(n): v for n, v in mapping.items()}

    values, related_values = dict[str | None, Any](), list[tuple[str, str | None, Any]]()
    for name, value in parts(data).items():
        pair = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else ()
        series_times, values[name] = pair if len(pair) == 2 else (time, value)
        related_values.append(("the times", name, series_times))
    related_values += [("sigma", name, s) for name, s in parts(sigma).items()]
    related_values += [("sigma", name, getattr(model, "sigma", None)) for name, model in parts(noise).items()]
    remedy = "give .loc[values.index], or .to_numpy() if the order is the same"
    messages = [
        f"{role}{f' of {name!r}' if name else ''} and the values have different labels (index); {remedy}"
        for role, name, other in related_values
        for n, value in values.items()
        if (n == name or None in (n, name)) and hasattr(value, "iloc") and hasattr(other, "iloc")
        if not value.index.equals(other.index)
    ]
    return list(dict.fromkeys(messages))


def _columns(frame: Any, mistakes: list[str]) -> dict[str, Any]:
    names = [str(c) for c in frame.columns]
    repeated_names = [n for n in dict.fromkeys(names) if names.count(n) > 1]
    mistakes += [
        f"the DataFrame has several columns '{n}'; rename them, or leave all but one out" for n in repeated_names
    ]
    return {n: frame.iloc[:, i] for i, n in enumerate(names)}


def read_series(data: Any, time: Any, mistakes: list[str]) -> dict[str, TimeSeries]:
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
        columns = read_mapping("data", data, mistakes)
        if isinstance(time, str):
            frame_hint = " (its to_dataframe() makes one)" if hasattr(cast("Any", data), "to_dataframe") else ""
            mistakes.append(f"time is the text '{time}'; pass the times, or a DataFrame with that column{frame_hint}")
            return {}
    else:
        frame_hint = next((f" (its {n}() makes one)" for n in _FRAMES if hasattr(data, n)), "")
        mistakes.append(
            f"data is a {_kind(data)}; give a mapping from names to values, or a pandas DataFrame{frame_hint}"
        )
        return {}
    common = None if time is None else read_reals(time)
    if time is not None and common is None:
        mistakes.append(f"time is {describe_non_numbers(time)}; {_TIMES}")
    series: dict[str, TimeSeries] = {}
    for name, value in columns.items():
        has_own_times = isinstance(value, tuple) and _are_arrays(cast("tuple[Any, ...]", value))
        if not has_own_times and time is None:
            mistakes.append(f"'{name}' has no times; pass time=..., or (times, values)")
            continue
        t, y = (read_reals(value[0]), read_reals(value[1])) if has_own_times else (common, read_reals(value))
        if has_own_times and t is None:
            mistakes.append(
                f"the times of '{name}' contain a value that is not a real number: "
                f"{describe_non_numbers(value[0])}; {_TIMES}"
            )
        if y is None:
            value_text = describe_non_numbers(value[1] if has_own_times else value)
            mistakes.append(f"'{name}' contains a value that is not a real number: {value_text}; {_NUMBERS}")
        elif t is None:
            continue  # an error was already added
        elif y.ndim > 0 and y.size == 0:
            mistakes.append(f"'{name}' has no values; leave it out")
        elif t.ndim != 1 or y.ndim not in (1, 2) or y.shape[0] != t.size:
            mistakes.append(
                f"'{name}' has values of shape {y.shape} at times of shape {t.shape}; "
                "give (n_times,) or (n_times, n_replicates)"
            )
        else:
            series[name] = TimeSeries(t, y.reshape(t.size, -1), y.shape)
    if not columns:
        mistakes.append("data is empty; give at least one measured quantity")
    return series


def _kind(value: object) -> str:
    """Name a class with its package, since DataFrames exist in several packages."""
    value_class = type(value)
    return (
        value_class.__name__
        if value_class.__module__ == "builtins"
        else f"{value_class.__module__.split('.')[0]}.{value_class.__name__}"
    )


def keep_valid_outputs(argument: Any, data: Any, series: Mapping[str, TimeSeries]) -> Any:
    """Return the settings per output without outputs whose values could not be read, which is reported already."""
    if not isinstance(argument, Mapping):
        return argument
    entries = cast("Mapping[Any, Any]", argument)
    columns: list[Any] = list(cast("Any", data)) if isinstance(data, Mapping) or is_frame(data) else []
    unread = {symbol_or_text_name(key) for key in columns} - {*series}
    return {key: value for key, value in entries.items() if symbol_or_text_name(key) not in unread}


def _are_arrays(pair: tuple[Any, ...]) -> bool:
    """Distinguish a pair (times, values) from two measured numbers."""
    return len(pair) == 2 and not all(v is None or isinstance(v, Number) for v in pair)


def series_mistakes(series: Mapping[str, TimeSeries], start: float | None) -> list[str]:
    """Find times and values that cannot be measurements."""
    mistakes: list[str] = []
    for name, s in series.items():
        t, y = s.times, s.values
        if not np.isfinite(t).all():
            mistakes.append(f"the times of '{name}' contain NaN or infinity; leave such rows out")
        elif (np.diff(t) < 0).any():
            misplaced_time = t[1:][np.diff(t) < 0][0]
            mistakes.append(
                f"the times of '{name}' are not sorted (look at t = {misplaced_time:g}); sort the rows by time"
            )
        elif start is not None and t[0] < start:
            mistakes.append(f"'{name}' has a time {t[0]:g} before the start {start:g}; set start=, or remove the row")
        if np.isinf(y).any():
            mistakes.append(f"'{name}' contains infinite values; use NaN for missing values")
        elif not np.isfinite(y).any():
            mistakes.append(f"'{name}' contains no measured value (all NaN); leave it out")
    return mistakes


def scale_mistakes(
    series: Mapping[str, TimeSeries], deviations: Mapping[str, Array], start: float, *, is_start_given: bool
) -> list[str]:
    """Find times and values with which floating-point numbers cannot reckon, and a start that was hardly meant."""
    measured = [s.times[np.isfinite(s.values).any(axis=1)] for s in series.values()]
    first_time, last_time = min(float(t[0]) for t in measured), max(float(t[-1]) for t in measured)
    mistakes = time_mistakes(first_time, last_time, start, is_start_given=is_start_given)
    for name, s in series.items():
        y = np.abs(s.values[np.isfinite(s.values)])
        if y.max(initial=0.0) > _MAX_MAGNITUDE:
            mistakes.append(f"'{name}' contains {y.max():g}; give it in another unit")
        sigma = deviations.get(name)
        if sigma is None:
            continue
        ratio = np.divide(np.abs(s.values), sigma, out=np.zeros_like(sigma), where=np.isfinite(s.values))
        if sigma.max() > _MAX_MAGNITUDE or sigma.min() < 1 / _MAX_MAGNITUDE or ratio.max(initial=0.0) > _MAX_MAGNITUDE:
            span = f"between {sigma.min():g} and {sigma.max():g}"
            mistakes.append(f"sigma of '{name}' is {span}, too far from the values; give it in another unit")
    return mistakes


def time_mistakes(first_time: float, last_time: float, start: float, *, is_start_given: bool) -> list[str]:
    """Find times with which floating-point numbers cannot reckon, and a start, if none was given, that is hardly meant.

    first_time, last_time : of the wanted or measured times
    """
    length, largest = last_time - start, max(abs(start), abs(last_time))
    if largest > _MAX_MAGNITUDE or 0 < length < 1 / _MAX_MAGNITUDE:
        return [f"the times reach from {start:g} to {last_time:g}; give them in another unit"]
    if 0 < length < _MIN_RELATIVE_DURATION * largest:
        return [
            f"the times from {start!r} to {last_time!r} are too close to each other for numbers of this size; "
            f"count them from {start:g}"
        ]
    if not is_start_given and first_time > _MAX_LEAD_SPANS * (last_time - first_time) > 0:
        return [
            f"the times, from {first_time:g} to {last_time:g}, are far from 0, and the time of the initial states "
            f"is not set; set start={first_time:g} or start=0"
        ]
    return []


# Dates


def dates_to_numbers(data: Any, time: Any, start: Any, unit: Any, mistakes: list[str]) -> tuple[Any, Any, Any, Any]:
    """Replace dates, and lengths of time, among the times of data by numbers in a unit; the rest stays as it is.

    Data, time and start are arguments of `Experiment`.  Dates count from `start`, if that is a date, else from the
    first of them, and start becomes 0.  The fourth return value is that date, or None if there are no dates.
    """
    zoned: set[bool] = set()
    times = _times(data, time)
    stamps_by_key = {key: stamps for key, value in times.items() if (stamps := _stamps(value, zoned)) is not None}
    origin = None if start is None or read_sequence(start) is not None else _stamps(start, zoned)
    origin = None if origin is None else origin[()]  # a scalar, of an array without axes
    if not stamps_by_key and origin is not None:
        mistakes.append(
            f"start is {shorten_repr(start)}, but the times are no dates; give a number, or dates as times, too"
        )
        return data, time, None, None
    if not stamps_by_key:
        if unit is not None and all(value is None or read_reals(value) is not None for value in times.values()):
            mistakes.append(
                "time_unit is given, but the times are no dates; leave it out, numbers have the model's unit"
            )
        return data, time, start, None
    if unit is None or not is_one_of(unit, *UNITS):
        mistakes.append(
            f"the times are dates; {_GIVE}" if unit is None else f"time_unit is {shorten_repr(unit)}; {_GIVE}"
        )
        unit = "s"  # so that other mistakes are found as well
    if len(zoned) > 1:
        mistakes.append("some dates (start is one) have a time zone and others have none; give one to all of them")
    kinds = {stamps.dtype.kind for stamps in [*stamps_by_key.values(), *([] if origin is None else [origin])]}
    if len(kinds) > 1:
        mistakes.append("some times are dates and others are lengths of time; give dates only, or lengths only")
        stamps_by_key = {key: stamps.astype("M8[ns]") for key, stamps in stamps_by_key.items()}
        kinds, origin = {"M"}, None
    elif kinds == {"M"} and start is not None and (origin is None or np.isnat(origin)):
        mistakes.append(f"start is {shorten_repr(start)}; give a date, as the times are dates")
        origin = None
    numeric_times = (
        read_reals(value) for key, value in times.items() if value is not None and key not in stamps_by_key
    )
    if any(numbers is not None and np.isfinite(numbers).any() for numbers in numeric_times):
        mistakes.append("some times are dates, or lengths of time, and others are numbers; give one kind")
    second = np.timedelta64(UNITS[unit], "s")
    if kinds == {"m"}:
        numbers = {key: stamps / second for key, stamps in stamps_by_key.items()}
        start, origin = start if origin is None else float(origin / second), None
    else:
        origin = min(np.nanmin(stamps) for stamps in stamps_by_key.values()) if origin is None else origin
        numbers = {key: (stamps - origin) / second for key, stamps in stamps_by_key.items()}
        start = 0.0
    for key, value in numbers.items():
        data, time = _with_times(data, time, key, value)
    return data, time, start, origin


def _times(data: Any, time: Any) -> dict[str | None, Any]:
    """Return the times: the common ones under None, and by name for each series that has its own."""
    common = time
    if is_frame(data):
        if time is None:
            common = data.index
        elif isinstance(time, str):
            common = data[time] if list(data.columns).count(time) == 1 else None
    times_by_name: dict[str | None, Any] = {}
    if isinstance(data, Mapping):
        series = cast("Mapping[Any, Any]", data)
        times_by_name = {
            n: v[0] for n, v in series.items() if isinstance(v, tuple) and len(cast("tuple[Any, ...]", v)) == 2
        }
    return {None: common, **times_by_name}


def _with_times(data: Any, time: Any, key: str | None, numbers: NDArray[np.float64]) -> tuple[Any, Any]:
    if key is not None:
        return {**data, key: (numbers, data[key][1])}, time
    if not is_frame(data):
        return data, numbers
    if time is None:
        return data.set_axis(numbers, axis=0), time
    return (data.assign(**{time: numbers}), time) if isinstance(time, str) else (data, numbers)


def _stamps(value: Any, zoned: set[bool]) -> NDArray[Any] | None:
    """Read dates (datetime64) or lengths of time (timedelta64), of a nanosecond; None if there are neither.

    Whether dates have a time zone is added to `zoned`.
    """
    if isinstance(value, (date, timedelta)):  # datetime and pandas.Timestamp are dates
        return None if (read := _stamps([value], zoned)) is None else read[0]
    dtype = getattr(value, "dtype", None)
    kind, days = getattr(dtype, "kind", None), str(dtype).startswith(("date32", "date64"))  # of pyarrow
    if (kind == "O" or days) and getattr(value, "ndim", 0) == 1:
        value = list(value)
    is_date_like = kind in ("M", None) and not days
    date_accessor: Any = (
        getattr(value, "dt", value) if is_date_like else None
    )  # a Series has an accessor, an Index is its own
    if getattr(date_accessor, "tz", None) is not None:
        value = date_accessor.tz_convert(None)
        zoned.add(True)
    elif kind == "M":
        zoned.add(False)
    if isinstance(value, (list, tuple)):
        entries = cast("list[Any]", value)
        if not entries or not all(isinstance(e, (date, timedelta, np.datetime64, np.timedelta64)) for e in entries):
            return None
        valid_entries = [e for e in entries if e == e]  # pandas.NaT is none
        zones = [getattr(e, "tzinfo", None) is not None for e in valid_entries]
        zoned.update(
            has for e, has in zip(valid_entries, zones, strict=True) if not isinstance(e, (timedelta, np.timedelta64))
        )
        valid_entries = [
            e.astimezone(timezone.utc).replace(tzinfo=None) if has else e
            for e, has in zip(valid_entries, zones, strict=True)
        ]
        kind = "m8[ns]" if valid_entries and isinstance(valid_entries[0], (timedelta, np.timedelta64)) else "M8[ns]"
        value = np.full(len(entries), "NaT", dtype=kind)
        value[[e == e for e in entries]] = np.array(valid_entries, dtype=kind)
    array: NDArray[Any] = np.asarray(value) if hasattr(value, "dtype") else np.zeros(0)
    return array.astype(f"{array.dtype.kind}8[ns]") if array.dtype.kind in "mM" else None


# Errors


@dataclass(frozen=True)
class NoiseSpec:
    """Specification of the measurement errors of an experiment, by output.

    deviations : arrays like the values of the series, where numbers were given
    noise : where more was said than that; `sigma` of a model is None (a number, or none needed), `UnknownSigma` or an
        expression
    """

    deviations: dict[str, Array]
    noise: dict[str, Noise]


def read_noise(sigma: Any, noise: Any, time: Any, series: Mapping[str, TimeSeries], mistakes: list[str]) -> NoiseSpec:
    """Read the arguments `sigma` and `noise`."""
    models, dependent = _models(noise, series, mistakes), dict[str, Any]()
    if is_dependent(sigma, series):
        sigma, dependent = read_dependence(sigma, series, mistakes)
    spreads = {n: m.sigma for n, m in models.items() if _is_spread(m.sigma)}
    numbers = {n: m.sigma for n, m in models.items() if m.sigma is not None and not _is_spread(m.sigma)}
    names_with_spread = {*spreads, *numbers}
    if _is_spread(sigma):
        spreads = {**dict.fromkeys(series, sigma), **spreads}
        sigma, names_with_sigma = None, set(series)
    elif isinstance(sigma, Mapping) or is_frame(sigma):
        mapping = read_mapping("sigma", sigma, mistakes) if isinstance(sigma, Mapping) else None
        names_with_sigma = set(mapping or ())
        if mapping is not None:
            spreads = {**{n: s for n, s in mapping.items() if _is_spread(s)}, **spreads}
            sigma = {n: s for n, s in mapping.items() if not _is_spread(s)} or None
            mistakes += unknown_names("sigma names '{}', which is not in data", spreads, series)
    else:
        names_with_sigma = set[str]()
    mistakes += [
        f"sigma of '{n}' is given twice, as sigma= and in noise=; leave one out"
        for n in sorted(names_with_spread & names_with_sigma)
    ]
    names_without_spread = {n for n, m in models.items() if not m.has_spread}
    if sigma is not None and not isinstance(sigma, Mapping) and not is_frame(sigma):
        remaining_series = {n: s for n, s in series.items() if n not in (*spreads, *numbers, *names_without_spread)}
        deviations = read_sigma(sigma, time, remaining_series, mistakes) if remaining_series else {}
        if series and not remaining_series:
            mistakes.append("sigma is given, but noise= says it of every output, or needs none; leave sigma out")
    else:
        deviations = read_sigma(sigma, time, series, mistakes, optional_names={*spreads, *models})
    deviations |= read_sigma(numbers or None, time, series, mistakes, optional_names=set(series))
    mistakes += [
        f"{type(models[n]).__name__} of '{n}' takes no sigma; leave it out"
        for n in names_without_spread
        if n in deviations
    ]
    noise_by_output: dict[str, Noise] = {}
    for name in series:
        model, spread = models.get(name), spreads.get(name)
        if isinstance(spread, UnknownSigma):
            mistakes += spread.mistakes(f"sigma of '{name}'")
        if model is None and spread is None:
            continue
        if model is not None and spread is None and name not in deviations and name not in names_without_spread:
            spread = UnknownSigma()
        if spread is not None and model is not None:
            mistakes += [f"noise of '{name}': {m}" for m in model.spread_mistakes()]
        noise_by_output[name] = replace(Gaussian() if model is None else model, sigma=spread)
    return NoiseSpec(
        deviations, with_dependence(noise_by_output, dependent, mistakes) if dependent else noise_by_output
    )


def _models(noise: Any, series: Mapping[str, TimeSeries], mistakes: list[str]) -> dict[str, Noise]:
    """Read noise models by output, and check them and the values they are for."""
    if noise is None:
        return {}
    models_by_output = (
        read_mapping("noise", noise, mistakes) if isinstance(noise, Mapping) else dict.fromkeys(series, noise)
    )
    valid_models: dict[str, Noise] = {}
    for name, model in models_by_output.items():
        if name not in series:
            mistakes.append(f"noise names '{name}', which is not in data: {suggest(name, series)}")
        elif not isinstance(model, Noise):
            write = f"{model.__name__}()" if isinstance(model, type) else "a noise model such as StudentT(df=4)"
            mistakes.append(f"noise of '{name}' is {shorten_repr(model)}; give {write}")
        elif is_misplaced_dependence(model):
            mistakes.append(f"noise of '{name}': set correlated errors in sigma= of the experiment")
        elif faults := model.option_mistakes():
            mistakes += [f"noise of '{name}': {m}" for m in faults]
        else:
            values = series[name].values
            mistakes += [f"'{name}': {m}" for m in model.value_mistakes(values[np.isfinite(values)])]
            valid_models[name] = model
    return valid_models


def _is_spread(sigma: Any) -> bool:
    """Check whether `sigma` is an unknown standard deviation or an expression rather than numbers."""
    return isinstance(sigma, UnknownSigma) or (
        isinstance(sigma, ca.SX) and sigma.numel() == 1 and not sigma.is_constant()
    )


def read_sigma(
    sigma: Any,
    time: Any,
    series: Mapping[str, TimeSeries],
    mistakes: list[str],
    *,
    optional_names: Collection[str] = (),
) -> dict[str, Array]:
    """Expand any accepted form of sigma to one array per series; it may be missing for series in `optional_names`."""
    if sigma is None or not series:
        return {}
    sigma_by_output: dict[str, Any]
    if isinstance(sigma, Mapping) or is_frame(sigma):
        sigma_by_output = _columns(sigma, mistakes) if is_frame(sigma) else read_mapping("sigma", sigma, mistakes)
        if isinstance(time, str) and time not in series:
            sigma_by_output.pop(time, None)
        mistakes += unknown_names("sigma names '{}', which is not in data", sigma_by_output, series)
        mistakes += [
            f"sigma is missing for '{n}'" for n in series if sigma_by_output.get(n) is None and n not in optional_names
        ]
        sigma_by_output = {n: s for n, s in sigma_by_output.items() if s is not None}
    elif isinstance(sigma, Relative) or read_real(sigma) is not None:
        sigma_by_output = dict.fromkeys(series, sigma)
    else:
        table = read_reals(sigma)
        if table is not None and all(table.shape == (s.times.size, len(series)) for s in series.values()):
            sigma_by_output = {n: table[:, j] for j, n in enumerate(series)}
        elif table is not None and len(series) == 1:
            sigma_by_output = dict.fromkeys(series, table)
        else:
            value_text = shorten_repr(sigma) if table is None else f"an array of shape {table.shape}"
            mistakes.append(
                f"sigma is {value_text}; give a number, a mapping per output, or an array (n_times, n_outputs)"
            )
            return {}
    deviations_by_output: dict[str, Array] = {}
    for name, output_series in series.items():
        value = _deviations(name, sigma_by_output[name], output_series, mistakes) if name in sigma_by_output else None
        if value is not None:
            deviations_by_output[name] = value
    return deviations_by_output


def _deviations(name: str, sigma: Any, series: TimeSeries, mistakes: list[str]) -> Array | None:
    measured, shape = np.isfinite(series.values), series.values.shape
    if isinstance(sigma, Relative):
        fraction, floor = read_real(sigma.fraction), read_real(sigma.floor)
        if fraction is None or floor is None or not (0 <= fraction < np.inf and 0 <= floor < np.inf):
            value_text = f"({shorten_repr(sigma.fraction)}, floor={shorten_repr(sigma.floor)})"
            mistakes.append(
                f"sigma of '{name}' is relative{value_text}; give a fraction and a floor that are not negative"
            )
            return None
        deviations = np.maximum(fraction * np.abs(np.where(measured, series.values, 1.0)), floor)
        remedy = "give relative(..., floor=...) a positive floor"
    else:
        sigma_array = read_reals(sigma)
        if sigma_array is None or sigma_array.shape not in ((), shape[:1], series.shape, shape):
            mistakes.append(
                f"sigma of '{name}' is {shorten_repr(sigma)}; "
                f"give a number, one per time, or an array of shape {series.shape}"
            )
            return None
        deviations = np.array(np.broadcast_to(sigma_array[:, None] if sigma_array.ndim == 1 else sigma_array, shape))
        remedy = "standard deviations must be positive; omit sigma if it is unknown"
    is_invalid = measured & ~(np.isfinite(deviations) & (deviations > 0))
    if is_invalid.any():
        invalid_time = series.times[np.argwhere(is_invalid)[0][0]]
        mistakes.append(f"sigma of '{name}' is {deviations[is_invalid][0]:g} at t = {invalid_time:g}; {remedy}")
        return None
    return deviations
