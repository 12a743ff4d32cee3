"""One experiment: measured values with their times and standard deviations, inputs, and initial states.

Data are stored as points: ``times (n_points,)``, ``values (n_points, n_outputs)`` with NaN where nothing was measured.
Replicates are points with equal times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import casadi as ca
import numpy as np

from castfit.inputs import Input
from castfit.status import check, suggest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Free:
    """An initial state that is estimated; create it with `free`."""

    guess: float
    lower: float = -np.inf
    upper: float = np.inf
    scale: str = "linear"


@dataclass(frozen=True)
class Relative:
    """Standard deviations proportional to the measured value; create it with `relative`."""

    fraction: float
    floor: float = 0.0


def free(guess: float, *, lower: float = -np.inf, upper: float = np.inf, scale: str = "linear") -> Free:
    """Say that an initial state is estimated.

    Parameters
    ----------
    guess : float
        Where the search starts, in the state's unit.
    lower, upper : float
        Bounds.
    scale : {"linear", "log"}
        Whether the search moves in the value or in its logarithm.
    """
    return Free(float(guess), float(lower), float(upper), scale)


def relative(fraction: float, *, floor: float = 0.0) -> Relative:
    """Say that sigma = max(fraction * abs(value), floor)."""
    return Relative(float(fraction), float(floor))


Sigma = Union[float, Relative, "Mapping[str, Any]", "ArrayLike", None]
InitialValue = Union[float, Free, ca.SX]


@dataclass(frozen=True)
class Experiment:
    """Measured time courses under one set of conditions.

    Parameters
    ----------
    data : mapping or DataFrame
        ``{"x": values, ...}`` on the common `time`, or ``{"x": (times, values), ...}`` with times of its own; values
        of shape (n_times,), or (n_times, n_replicates).  NaN means not measured.  Names are states or outputs.
    time : sequence of float or str, optional
        Common times, in increasing order (repeated times are replicates); for a DataFrame the name of the time
        column, or nothing if the index is time.
    sigma : float, mapping, array or `relative`, optional
        Standard deviation of the measurement errors, in the unit of the data: one number, or per output a number, an
        array like its values, or ``relative(0.05, floor=1e-3)``.  Nothing means unknown but equal for all values:
        residuals are then unweighted and the variance is estimated from the fit.
    initial : mapping, optional
        For each state a number, ``free(guess)``, or a CasADi expression of the model's parameters.  States that are
        left out take the model's own initial value.  For an algebraic state a number: a guess from which its
        consistent value is sought (1 by default).
    inputs : mapping, optional
        For each input of the model a number or an `Input`.
    start : float
        The time at which the initial states hold.
    name : str, optional
        For tables and plots; by default ``experiment 1`` and so on.

    Raises
    ------
    InputError
        Listing every mistake: times unsorted or before the start, infinite data, wrong lengths, sigma <= 0, ...
    """

    data: Any
    time: Any = None
    sigma: Any = None
    initial: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    start: float = 0.0
    name: str = ""

    def __init__(
        self,
        data: Any,
        time: ArrayLike | str | None = None,
        *,
        sigma: Sigma = None,
        initial: Mapping[str, InitialValue] | Mapping[Any, Any] | None = None,
        inputs: Mapping[str, Input | float] | None = None,
        start: float = 0.0,
        name: str = "",
    ) -> None:
        mistakes: list[str] = []
        series = _read(data, time, mistakes)
        deviations = _read_sigma(sigma, series, mistakes)
        _check_series(series, float(start), mistakes)
        values: dict[str, Any] = {
            "data": {n: (s.times, s.values) for n, s in series.items()},
            "time": None,
            "sigma": None if sigma is None else deviations,
            "initial": {str(k) if isinstance(k, str) else k.name(): v for k, v in (initial or {}).items()},
            "inputs": {str(n): _as_input(str(n), u, mistakes) for n, u in (inputs or {}).items()},
            "start": float(start),
            "name": str(name),
        }
        mistakes += _initial_mistakes(values["initial"])
        check(f"Experiment {name!r}" if name else "Experiment", mistakes)
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the measured quantities."""
        return tuple(self.data)

    @property
    def end(self) -> float:
        """The last time at which anything was measured."""
        return max(float(t[np.isfinite(y).any(axis=1)][-1]) for t, y in self.data.values())

    def until(self, horizon: float) -> Experiment | None:
        """Return the experiment without the measurements after `horizon`; None if nothing is left."""
        kept: dict[str, Any] = {}
        sigma: dict[str, Any] = {}
        for name, (t, y) in self.data.items():
            keep = t <= horizon
            if np.isfinite(y[keep]).any():
                kept[name] = (t[keep], y[keep])
                sigma[name] = None if self.sigma is None else self.sigma[name][keep]
        if not kept:
            return None
        return self._replace(kept, None if self.sigma is None else sigma)

    def with_values(self, values: Mapping[str, Array]) -> Experiment:
        """Return the experiment with other values at the same times, for instance simulated ones.

        Parameters
        ----------
        values : mapping from output name to (n_times,) or (n_times, n_replicates) array
        """
        data = {n: (t, np.reshape(values[n], y.shape)) for n, (t, y) in self.data.items()}
        return self._replace(data, self.sigma)

    def _replace(self, data: Mapping[str, Any], sigma: Any) -> Experiment:
        return Experiment(
            data, sigma=sigma, initial=self.initial, inputs=self.inputs, start=self.start, name=self.name
        )

    def points(self, outputs: Sequence[str]) -> Points:
        """Arrange the measurements on points, with one column for each of `outputs`."""
        # One point per time and replicate, so that a column holds at most one value at a point.
        slots: list[tuple[float, int]] = sorted(
            {(float(t), r) for times, y in self.data.values() for (t, r) in zip(*_slots(times, y), strict=True)}
        )
        row = {slot: i for i, slot in enumerate(slots)}
        values = np.full((len(slots), len(outputs)), np.nan)
        sigma = np.ones_like(values)
        for name, (times, y) in self.data.items():
            j = list(outputs).index(name)
            rows = [row[slot] for slot in zip(*_slots(times, y), strict=True)]
            values[rows, j] = y.ravel()
            if self.sigma is not None:
                sigma[rows, j] = self.sigma[name].ravel()
        measured = np.isfinite(values).any(axis=1)
        values, sigma = values[measured], sigma[measured]
        return Points(np.array([t for t, _ in slots])[measured], values, np.where(np.isfinite(values), sigma, 1.0))

    def __reduce__(self) -> Any:
        """Pickle expressions of parameters through CasADi functions, since bare SX does not pickle."""
        initial = {n: _Graph.of(v) if isinstance(v, ca.SX) else v for n, v in self.initial.items()}
        return _restore, (self.data, self.sigma, initial, dict(self.inputs), self.start, self.name)


@dataclass(frozen=True)
class Points:
    """Measurements on points: times (n_points,), values and sigma (n_points, n_outputs), NaN = not measured."""

    times: Array
    values: Array
    sigma: Array

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Where a value was measured, (n_points, n_outputs)."""
        return np.isfinite(self.values)


@dataclass(frozen=True)
class _Series:
    times: Array  # (n,)
    values: Array  # (n, replicates)
    shape: tuple[int, ...]  # as the user gave the values


@dataclass(frozen=True)
class _Graph:
    """A pickled SX expression: a function of its symbols, and their names."""

    function: ca.Function
    names: tuple[str, ...]

    @classmethod
    def of(cls, expression: ca.SX) -> _Graph:
        found = ca.symvar(expression)
        return cls(ca.Function("expression", found, [expression]), tuple(s.name() for s in found))

    def expression(self) -> ca.SX:
        return self.function.call([ca.SX.sym(n) for n in self.names])[0]


def _restore(data: Any, sigma: Any, initial: Mapping[str, Any], inputs: Any, start: float, name: str) -> Experiment:
    thawed = {n: v.expression() if isinstance(v, _Graph) else v for n, v in initial.items()}
    return Experiment(data, sigma=sigma, initial=thawed, inputs=inputs, start=start, name=name)


def _slots(times: Array, values: Array) -> tuple[Array, NDArray[np.intp]]:
    """Number the values at equal times, so that (time, number) is unique within a series."""
    flat = np.repeat(times, values.shape[1])
    first = np.searchsorted(flat, flat, side="left")
    return flat, np.arange(flat.size) - first


def _read(data: Any, time: Any, mistakes: list[str]) -> dict[str, _Series]:
    """Read every accepted form of data into one series per name."""
    if hasattr(data, "columns") and hasattr(data, "index"):  # a DataFrame, without importing pandas
        names = [str(c) for c in data.columns]
        if isinstance(time, str):
            if time not in names:
                mistakes.append(f"the DataFrame has no time column '{time}': {suggest(time, names)}")
                return {}
            common = np.asarray(data[time], dtype=float)
            data = {n: np.asarray(data[n], dtype=float) for n in names if n != time}
        else:
            common = np.asarray(data.index if time is None else time, dtype=float)
            data = {n: np.asarray(data[c], dtype=float) for n, c in zip(names, data.columns, strict=True)}
    elif isinstance(data, Mapping):
        if isinstance(time, str):
            mistakes.append(f"time is the text '{time}'; give the times, or a DataFrame with that column")
            return {}
        common = None if time is None else np.asarray(time, dtype=float)
    else:
        mistakes.append(f"data is a {type(data).__name__}; give a mapping from names to values, or a DataFrame")
        return {}
    series: dict[str, _Series] = {}
    for key, value in data.items():
        name = str(key)
        own = isinstance(value, tuple) and len(value) == 2
        if not own and common is None:
            mistakes.append(f"'{name}' has no times; give time=..., or (times, values)")
            continue
        try:
            t = np.array(value[0] if own else common, dtype=float)
            y = np.array(value[1] if own else value, dtype=float)
        except (TypeError, ValueError):
            mistakes.append(f"'{name}' contains something that is no number")
            continue
        if t.ndim != 1 or y.ndim not in (1, 2) or y.shape[0] != t.size or y.size == 0:
            mistakes.append(
                f"'{name}' has values of shape {y.shape} at {t.size} times; give (n_times,) or (n_times, n_replicates)"
            )
            continue
        series[name] = _Series(t, y.reshape(t.size, -1), y.shape)
    if not data:
        mistakes.append("data is empty; give at least one measured quantity")
    return series


def _check_series(series: Mapping[str, _Series], start: float, mistakes: list[str]) -> None:
    for name, s in series.items():
        t, y = s.times, s.values
        if not np.isfinite(t).all():
            mistakes.append(f"the times of '{name}' contain NaN or infinity; leave such rows out")
        elif (np.diff(t) < 0).any():
            late = t[1:][np.diff(t) < 0][0]
            mistakes.append(f"the times of '{name}' are not sorted (look at t = {late:g}); sort the rows by time")
        elif t[0] < start:
            mistakes.append(f"'{name}' has a time {t[0]:g} before the start {start:g}; set start=, or drop the row")
        if np.isinf(y).any():
            mistakes.append(f"'{name}' contains infinite values; use NaN for what was not measured")
        elif not np.isfinite(y).any():
            mistakes.append(f"'{name}' contains no measured value (all NaN); leave it out")


def _read_sigma(sigma: Any, series: Mapping[str, _Series], mistakes: list[str]) -> dict[str, Array]:
    """Expand every accepted form of sigma to one array per series."""
    if sigma is None:
        return {}
    if isinstance(sigma, Mapping):
        given: dict[str, Any] = {str(n): s for n, s in sigma.items()}
        mistakes += [f"sigma names '{n}', which is not in data: {suggest(n, series)}" for n in given if n not in series]
        mistakes += [f"sigma is missing for '{n}'" for n in series if n not in given]
    elif isinstance(sigma, Relative) or np.ndim(sigma) == 0:
        given = dict.fromkeys(series, sigma)
    else:
        table = np.asarray(sigma, dtype=float)
        expected = {(s.times.size, len(series)) for s in series.values()}
        if expected == {table.shape}:
            given = {n: table[:, j] for j, n in enumerate(series)}
        elif len(series) == 1 and table.shape == next(iter(series.values())).shape:
            given = dict.fromkeys(series, table)
        else:
            mistakes.append(
                f"sigma has shape {table.shape}; give a number, one entry per output, or an array (n_times, n_outputs)"
            )
            return {}
    out: dict[str, Array] = {}
    for name, s in series.items():
        if name in given:
            value = _deviations(name, given[name], s, mistakes)
            if value is not None:
                out[name] = value
    return out


def _deviations(name: str, sigma: Any, series: _Series, mistakes: list[str]) -> Array | None:
    measured = np.isfinite(series.values)
    if isinstance(sigma, Relative):
        if not (sigma.fraction >= 0 and sigma.floor >= 0):
            mistakes.append(f"sigma of '{name}': relative() takes a fraction and a floor that are not negative")
            return None
        wide = np.maximum(sigma.fraction * np.abs(np.where(measured, series.values, 1.0)), sigma.floor)
        remedy = "give relative(..., floor=...) a positive floor"
    else:
        try:
            given = np.asarray(sigma, dtype=float)
            wide = given.reshape(series.values.shape) if given.shape == series.shape else given
            wide = np.array(np.broadcast_to(wide, series.values.shape))
        except (TypeError, ValueError):
            mistakes.append(f"sigma of '{name}' does not fit its values of shape {series.shape}; give a number or an "
                            "array of that shape")  # fmt: skip
            return None
        remedy = "standard deviations are positive; leave sigma out if they are unknown"
    bad = measured & ~(np.isfinite(wide) & (wide > 0))
    if bad.any():
        at = series.times[np.argwhere(bad)[0][0]]
        mistakes.append(f"sigma of '{name}' is {wide[bad][0]:g} at t = {at:g}; {remedy}")
        return None
    return wide


def _as_input(name: str, value: Any, mistakes: list[str]) -> Input:
    if isinstance(value, Input):
        return value
    if np.ndim(value) == 0 and not isinstance(value, str):
        if np.isfinite(float(value)):
            return Input.constant(float(value))
        mistakes.append(f"input '{name}' is {value}; give a finite number")
    else:
        mistakes.append(
            f"input '{name}' is a {type(value).__name__}; give a number, or choose the interpolation by name: "
            "Input.linear(times, values), .pchip, .cubic_spline, .piecewise_constant"
        )
    return Input.constant(0.0)


def _initial_mistakes(initial: Mapping[str, Any]) -> list[str]:
    mistakes: list[str] = []
    for name, value in initial.items():
        if isinstance(value, Free):
            mistakes += bound_mistakes(f"free initial state '{name}'", value.guess, value.lower, value.upper, value.scale)
        elif isinstance(value, ca.SX):
            if value.numel() != 1:
                mistakes.append(f"initial state '{name}' has shape {value.shape}; give a scalar expression")
        elif isinstance(value, str) or np.ndim(value) != 0 or not np.isfinite(float(value)):
            mistakes.append(f"initial state '{name}' is {value!r}; give a finite number, free(guess) or an expression")
    return mistakes


def bound_mistakes(what: str, guess: float, lower: float, upper: float, scale: str) -> list[str]:
    """Check a guess against its bounds and its scale."""
    mistakes: list[str] = []
    if scale not in ("linear", "log"):
        mistakes.append(f"{what}: scale is '{scale}'; choose 'linear' or 'log'")
    if not np.isfinite(guess):
        mistakes.append(f"{what}: the guess is {guess}; give a finite number")
    elif np.isnan(lower) or np.isnan(upper) or lower > upper:
        mistakes.append(f"{what}: the bounds [{lower:g}, {upper:g}] are empty; swap or widen them")
    elif not lower <= guess <= upper:
        mistakes.append(f"{what}: the guess {guess:g} lies outside its bounds [{lower:g}, {upper:g}]; move one of them")
    elif scale == "log" and (guess <= 0 or lower < 0 and np.isfinite(lower)):
        mistakes.append(f"{what}: scale='log' needs a positive guess and a lower bound that is not negative")
    return mistakes
