"""One experiment: measured values with their times and standard deviations, inputs, and initial states.

Data are stored as points: ``times (n_points,)``, ``values (n_points, n_outputs)`` with NaN where nothing was measured.
Replicates are points with equal times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Union

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike, NDArray

from castfit._support.arguments import read_mapping, read_real, read_reals, shorten_repr
from castfit._support.arrays import Array, Mask
from castfit._support.bounds import both_bounds, bound_mistakes
from castfit._support.pickling import Picklable
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr, join_limited, one_line
from castfit._support.status import InputError, raise_if_mistakes, suggest, unknown_names
from castfit.densities.noise.correlation import Correlated, ErrorCovariance
from castfit.densities.noise.density import Noise
from castfit.densities.noise.gaussian import Gaussian
from castfit.densities.noise.unknown import UnknownSigma
from castfit.densities.priors import Normal, PriorDistribution, prior_bound_conflicts, prior_mistakes
from castfit.experiment.estimated_inputs import EstimatedInput
from castfit.experiment.events import Doses, Event, Happening, events_until, read_events
from castfit.experiment.free_inputs import FreeInput
from castfit.experiment.inputs import Input
from castfit.experiment.measurements import (
    Relative,
    TimeSeries,
    dates_to_numbers,
    index_mistakes,
    keep_valid_outputs,
    read_noise,
    read_series,
    scale_mistakes,
    series_mistakes,
)
from castfit.model.expressions import number_or_expression


@add_brief_repr
@dataclass(frozen=True)
class Free:
    """An initial state that is estimated; create it with `free`."""

    guess: float
    lower: float = -np.inf
    upper: float = np.inf
    scale: str = "linear"
    prior: PriorDistribution | None = None
    random: bool = False
    """Whether it was given as a density, which a model with noise integrates out."""


def free(
    guess: float,
    *,
    lower: float = -np.inf,
    upper: float = np.inf,
    scale: str = "linear",
    bounds: tuple[float, float] | None = None,
    prior: PriorDistribution | None = None,
) -> Free:
    """Declare an initial state to be estimated.

    Parameters
    ----------
    guess : float
        Where the search starts, in the state's unit.
    lower, upper : float
        Bounds.
    scale : {"linear", "log"}
        Whether the search moves in the value or in its logarithm.
    bounds : (lower, upper), optional
        The same in one argument.
    prior : PriorDistribution, optional
        What is known of the value beforehand, such as ``Normal(mean, deviation)``; see `castfit.priors`.

    Raises
    ------
    InputError
        If `bounds` is no pair, or given beside `lower` or `upper`.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.free(2.0, lower=0)
    Free(guess=2, lower=0)
    >>> cf.free(2.0, scale="log", prior=cf.Normal(2.0, 0.5))
    Free(guess=2, scale='log', prior=Normal(mean=2, deviation=0.5))
    """
    return Free(guess, *both_bounds("free", lower, upper, bounds), scale, prior)


@dataclass(frozen=True)
class Consistent:
    """An initial state that follows from the algebraic equations; create it with `consistent`."""

    guess: float


def consistent(guess: float) -> Consistent:
    """Declare that the initial value of a state follows from the algebraic equations.

    As many algebraic states then have a value of their own in `initial`: a number, ``free(guess)``, or an expression
    of parameters.  For an algebraic state, this is the default.

    Parameters
    ----------
    guess : float
        Where the search for it begins, in the state's unit.

    Examples
    --------
    The pH at the start is known, the base that was added before follows from it:

    >>> import castfit as cf
    >>> base, pH, rate = cf.symbols("base pH rate")
    >>> model = cf.Model({base: rate}, algebraic={pH: base - cf.exp(pH - 7)}, parameters=[rate])
    >>> experiment = cf.Experiment({"pH": [7.4]}, [1.0], initial={"pH": 7.0, "base": cf.consistent(0.5)})
    >>> problem = cf.Problem(model, experiment, parameters={"rate": 0.5})
    >>> round(float(cf.simulate(problem, times=[0.0])["experiment 1"]["base"][0]), 6)
    1.0
    """
    return Consistent(guess)


@add_brief_repr
@dataclass(frozen=True, eq=False)
class SteadyStart(Picklable, Mapping[str, Any]):
    """The steady state in which an experiment begins; create it with `castfit.steady_state`.

    As a mapping it holds the initial states that differ from the steady state.

    inputs : constant inputs before the experiment; an omitted input keeps its value at the start of the experiment
    parameters : parameter values before the experiment, if they differ from those of the experiment
    initial : initial states of the search for the steady state, which set the conserved sums; by default those of the
        model.  If the experiment is measured only at steady state, this may be another, preceding steady state
    replace : initial states of the experiment itself that differ from the steady state: a number, an expression, `free`
    is_measured_at_steady_state : whether the experiment is measured only at steady state
    """

    inputs: Mapping[str, Input]
    parameters: Mapping[str, Any]
    initial: Mapping[str, Any]
    replace: Mapping[str, Any]
    is_measured_at_steady_state: bool = False

    def __getitem__(self, name: str) -> Any:
        """Return the initial value of a state that differs from the steady state."""
        return self.replace[name]

    def __iter__(self) -> Iterator[str]:
        """Go through the states that differ from the steady state."""
        return iter(self.replace)

    def __len__(self) -> int:
        """Count the states that differ from the steady state."""
        return len(self.replace)


def relative(fraction: float, *, floor: float = 0.0) -> Relative:
    """Specify sigma = max(fraction * abs(value), floor).

    Examples
    --------
    >>> import castfit as cf
    >>> made = cf.Experiment({"x": [10.0, 1.0, 0.0]}, time=[0, 1, 2], sigma=cf.relative(0.1, floor=0.01))
    >>> made.sigma["x"].ravel()
    array([1.  , 0.1 , 0.01])
    """
    return Relative(fraction, floor)


Sigma = Union[float, Relative, UnknownSigma, Correlated, ErrorCovariance, ca.SX, "Mapping[str, Any]", "ArrayLike", None]
InitialValue = float | Free | Consistent | ca.SX


@public("castfit")
@dataclass(frozen=True, eq=False)
class Experiment(Picklable):
    """Measured time courses under one set of conditions.

    Parameters
    ----------
    data : mapping or DataFrame
        ``{"x": values, ...}`` on the common `time`, or ``{"x": (times, values), ...}`` with times of its own; values
        of shape (n_times,), or (n_times, n_replicates).  NaN means not measured.  Names are states or outputs.
    time : sequence of float or str, optional
        Common times, in increasing order (repeated times are replicates); for a DataFrame the name of the time
        column, or nothing if the index is time.  Times that are all ``np.inf`` mean that the model had come to rest,
        from `initial` under constant inputs; finite times are another experiment.
    sigma : float, mapping, array or `relative`, optional
        Standard deviation of the measurement errors, in the unit of the data: one number or ``relative(0.05,
        floor=1e-3)`` for all, an array (n_times, n_outputs), or a mapping with, per output, a number, `relative`, one
        number per time, or an array like its values (where both are of pandas, with the same index); ``unknown()`` for
        a standard deviation of this output that is estimated, and an expression of parameters, states, inputs and
        outputs for one that varies, as in ``a + b * y`` (parameters that appear nowhere else are declared in the
        problem like others).  Nothing means unknown but equal for all values: residuals are then unweighted and the
        variance is estimated from the fit.
    noise : noise model or mapping, optional
        Per output, or for all, how values scatter about the prediction: ``Gaussian()``, ``LogNormal()``,
        ``StudentT(df=4)``, ``Poisson()``, ...  Their `sigma` may be given there or as above; where it is neither it is
        unknown.
    initial : mapping, optional
        For each state a number, ``free(guess)``, or a CasADi expression of the model's parameters; or what is known of
        it, ``Normal(mean, deviation)``: a free value with this prior, which is integrated out where the model has
        noises.  States that are left out take the model's own initial value.  For an algebraic state a number: a guess
        from which its consistent value is sought (1 by default); or its value, where ``consistent(guess)`` says that a
        differential state follows from it.  Or ``castfit.steady_state(...)``: the steady state that the model had
        before the experiment.
    parameters : mapping, optional
        Parameters of the model that have another value in this experiment: a number, or a CasADi expression of other
        parameters, as in ``{"k": 2 * k_ref, "d": 0.3}``.  Names in expressions, also in those of `initial`, mean the
        values in this experiment.
    inputs : mapping, optional
        For each input of the model a number or an `Input`; ``Input.estimated(...)`` for one that is not known.
    events : sequence of Event and Doses, optional
        What happens at certain times: changes of states, doses, infusions; in the order in which it happens where
        times are equal.
    start : float or date, optional
        The time at which the initial states hold, 0 by default; it must be given where all times are far from 0, as
        calendar years are.  Of dates the first by default.
    time_unit : {"s", "min", "h", "d", "week"}, optional
        What the model counts time in, where times are dates (of `datetime`, NumPy or pandas) or lengths of time.
    name : str, optional
        For tables and plots; by default ``experiment 1`` and so on.

    Raises
    ------
    InputError
        Listing every mistake: times unsorted or before the start, infinite data, wrong lengths, sigma <= 0, ...

    Examples
    --------
    >>> import castfit as cf
    >>> cf.Experiment({"x": [2.1, 1.2, 0.8], "y": [0.0, float("nan"), 1.1]}, time=[0, 1, 2], sigma=0.1)
    Experiment(5 values of x, y, times 0 to 2)
    >>> cf.Experiment({"x": ([1, 2], [1.2, 0.8]), "y": ([0, 4], [0.0, 1.7])}, initial={"x": cf.free(2.0), "y": 0})
    Experiment(4 values of x, y, times 0 to 4)
    >>> cf.Experiment({"x": [2.1, 1.2]}, time=[1, 0])
    Traceback (most recent call last):
        ...
    castfit.InputError: Experiment: 1 mistake found
      - the times of 'x' are not sorted (look at t = 0); sort the rows by time
    """

    data: Any
    time: Any = None
    sigma: Any = None
    noise: Mapping[str, Noise] = field(default_factory=dict[str, Noise])
    initial: Mapping[str, Any] = field(default_factory=dict[str, Any])
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    events: tuple[Happening, ...] = ()
    start: float = 0.0
    name: str = ""
    time_unit: str | None = field(default=None, init=False)
    origin: np.datetime64 | None = field(default=None, init=False)
    """The date of time 0, where times were given as dates."""

    def __init__(
        self,
        data: Any,
        time: ArrayLike | str | None = None,
        *,
        sigma: Sigma = None,
        noise: Noise | Mapping[str, Noise] | Mapping[Any, Any] | None = None,
        initial: Mapping[str, InitialValue] | Mapping[Any, Any] | SteadyStart | None = None,
        parameters: Mapping[str, float | ca.SX] | Mapping[Any, Any] | None = None,
        inputs: Mapping[str, Input | EstimatedInput | float] | None = None,
        events: Event | Doses | Sequence[Happening] | None = None,
        start: Any = None,
        name: str = "",
        time_unit: str | None = None,
    ) -> None:
        mistakes = index_mistakes(data, time, sigma, noise)
        data, time, start, origin = dates_to_numbers(data, time, start, time_unit, mistakes)
        start_time = 0.0 if start is None else read_real(start)
        if start_time is None or not np.isfinite(start_time):
            date_hint = "; a date goes with times that are dates" if start_time is None else ""
            mistakes.append(f"start is {shorten_repr(start)}; give a finite number{date_hint}")
            start_time = None
        label: Any = name
        if not isinstance(label, str):
            mistakes.append(f"name is {shorten_repr(label)}; give text")
            label = ""
        series, is_at_infinity = _settle_infinite_data(read_series(data, time, mistakes), start_time, mistakes)
        noise_spec = read_noise(
            keep_valid_outputs(sigma, data, series), keep_valid_outputs(noise, data, series), time, series, mistakes
        )
        mistakes += series_mistakes(series, start_time)
        if not mistakes and start_time is not None:
            mistakes += scale_mistakes(series, noise_spec.deviations, start_time, is_start_given=start is not None)
        given_inputs = read_mapping("inputs", inputs, mistakes)
        signals = {n: u if isinstance(u, EstimatedInput) else as_input(n, u, mistakes) for n, u in given_inputs.items()}
        happenings = read_events(events, mistakes)
        initial_spec: Any = initial
        if is_at_infinity:
            initial_spec = _steady_start(initial, signals, mistakes)
            mistakes += ["events happen, but the data are at infinity; leave the events out"] if happenings else []
        states = {n: _initial_value(n, v, mistakes) for n, v in read_mapping("initial", initial_spec, mistakes).items()}
        local_parameters = {
            n: read_local_parameter(n, v, mistakes) for n, v in read_mapping("parameters", parameters, mistakes).items()
        }
        raise_if_mistakes(f"Experiment '{label}'" if label else "Experiment", mistakes)
        vars(self).update(
            data={n: (s.times, s.values) for n, s in series.items()},
            time=None,
            sigma=noise_spec.deviations or None,
            noise=noise_spec.noise,
            initial=replace(initial_spec, replace=states) if isinstance(initial_spec, SteadyStart) else states,
            parameters=local_parameters,
            inputs=signals,
            events=happenings,
            start=start_time,
            name=name,
            time_unit=time_unit,
            origin=origin,
        )

    def __repr__(self) -> str:
        times = np.concatenate([t for t, _ in self.data.values()])
        count = sum(int(np.isfinite(y).sum()) for _, y in self.data.values())
        title = f"'{self.name}': " if self.name else ""
        when = "at rest" if self.settled else f"times {times.min():g} to {times.max():g}"
        return one_line(f"Experiment({title}{count} values of {join_limited(self.data)}, {when})")

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the measured quantities."""
        return tuple(self.data)

    @property
    def end(self) -> float:
        """The last time at which anything was measured."""
        return max(float(t[np.isfinite(y).any(axis=1)][-1]) for t, y in self.data.values())

    def until(self, horizon: float) -> Experiment | None:
        """Return the experiment without the measurements after `horizon`. Return None if no measurement remains.

        Raises
        ------
        InputError
            If `horizon` is no time.
        """
        end = read_real(horizon)
        if end is None or np.isnan(end):
            raise InputError("Experiment.until", [f"the horizon is {shorten_repr(horizon)}; give a time"])
        remaining_data: dict[str, Any] = {}
        sigma: dict[str, Any] = {}
        for name, (t, y) in self.data.items():
            is_before = t <= horizon
            if np.isfinite(y[is_before]).any():
                remaining_data[name] = (t[is_before], y[is_before])
                if self.sigma is not None and name in self.sigma:
                    sigma[name] = self.sigma[name][is_before]
        return (
            self._measuring(remaining_data, sigma or None, events_until(self.events, end)) if remaining_data else None
        )

    def with_values(self, values: Mapping[str, Array]) -> Experiment:
        """Return the experiment with other values where it has values, for instance simulated ones.

        Parameters
        ----------
        values : mapping from output name to (n_times,) or (n_times, n_replicates) array
        """
        mistakes: list[str] = []
        values_by_name = read_mapping("values", values, mistakes)
        mistakes += unknown_names("'{}' is not measured", values_by_name, self.data)
        data: dict[str, Any] = {}
        for name, (t, y) in self.data.items():
            new_values = read_reals(values_by_name.get(name))
            if new_values is None or new_values.size != y.size or new_values.shape[:1] != y.shape[:1]:
                mistakes.append(
                    f"'{name}' needs an array of shape {y.shape}; it is {shorten_repr(values_by_name.get(name))}"
                )
            else:
                data[name] = (t, np.where(np.isfinite(y), new_values.reshape(y.shape), np.nan))
        raise_if_mistakes("Experiment.with_values", mistakes)
        return self._measuring(data, self.sigma, self.events)

    def with_points(self, outputs: Sequence[str], values: Array) -> Experiment:
        """Return the experiment with other values, arranged as by `points`, where it has values.

        Parameters
        ----------
        outputs : sequence of str
        values : (n_points, n_outputs) array
        """
        row = self._rows(measured=True)
        data: dict[str, Any] = {}
        for name, (times, y) in self.data.items():
            row_indices = [row.get(slot, -1) for slot in zip(*_slots(times, y), strict=True)]
            new_values = np.where(
                np.isfinite(y), values[row_indices, list(outputs).index(name)].reshape(y.shape), np.nan
            )
            if np.isfinite(new_values).any():
                data[name] = (times, new_values)
        return self.with_changes(data=data)

    def robust(self, model: Noise) -> Experiment:
        """Return the experiment with another noise model where errors are normal; itself if they are so nowhere.

        A missing standard deviation is unknown and common to all these values, ``unknown("all")``.
        """
        noise = dict(self.noise)
        for name in self.data:
            noise_model = noise.get(name)
            if noise_model is not None and not (isinstance(noise_model, Gaussian) and noise_model.is_residual_noise):
                continue
            is_unspecified = noise_model is None and (self.sigma is None or name not in self.sigma)
            noise[name] = replace(
                model,
                sigma=UnknownSigma("all") if is_unspecified else None if noise_model is None else noise_model.sigma,
            )
        return self if noise == self.noise else self.with_changes(noise=noise)

    def _measuring(self, data: Mapping[str, Any], sigma: Any, events: Sequence[Happening]) -> Experiment:
        return Experiment(
            data,
            sigma=sigma,
            noise={n: model for n, model in self.noise.items() if n in data},
            initial=self.initial,
            parameters=self.parameters,
            inputs=self.inputs,
            events=events,
            start=self.start,
            name=self.name,
        ).with_changes(time_unit=self.time_unit, origin=self.origin)

    @property
    def steady(self) -> SteadyStart | None:
        """Specification of the steady state in which the experiment begins; None if it begins otherwise."""
        return self.initial if isinstance(self.initial, SteadyStart) else None

    @property
    def settled(self) -> bool:
        """Whether everything is measured at rest."""
        return self.steady is not None and self.steady.is_measured_at_steady_state

    @property
    def before(self) -> Experiment:
        """Conditions before an experiment that begins at a steady state, as an `Experiment`."""
        if self.steady is None:
            raise AttributeError("an experiment that does not begin at a steady state has no conditions before it")
        constant_inputs = {
            n: u if isinstance(u, EstimatedInput) else Input.constant(float(u(self.start)))
            for n, u in self.inputs.items()
        }
        parameters = {**self.parameters, **self.steady.parameters}
        inputs = {**constant_inputs, **self.steady.inputs}
        return self.with_changes(events=(), initial=self.steady.initial, parameters=parameters, inputs=inputs)

    def called(self, name: str) -> Experiment:
        """Return the experiment under another name."""
        new_name: Any = name
        if not isinstance(new_name, str):
            raise InputError("Experiment.called", [f"name is {shorten_repr(new_name)}; expected text"])
        return self.with_changes(name=name)

    def with_events(self, events: Sequence[Happening]) -> Experiment:
        """Return the experiment in which other things happen."""
        return self.with_changes(events=tuple(events))

    def with_changes(self, **changes: Any) -> Experiment:
        """Return a copy with other fields, in the form that the experiment keeps.

        Parameters
        ----------
        **changes
            Fields by name: mappings where they are mappings here, such as ``sigma={"y": array}``.

        Raises
        ------
        InputError
            For unknown fields, and for what a new `Experiment` would have to read first.
        """
        own_fields, mistakes = vars(self), list[str]()
        for key, value in changes.items():
            if key not in own_fields:
                mistakes.append(f"'{key}' is no field of an experiment: {suggest(key, own_fields)}")
            elif isinstance(own_fields[key], Mapping) and not isinstance(value, (Mapping, type(None))):
                mistakes.append(
                    f"{key} is {shorten_repr(value)}; expected a mapping from names, such as experiment.{key}; "
                    f"pass such a mapping, or make a new Experiment(..., {key}=...)"
                )
        raise_if_mistakes("Experiment.with_changes", mistakes)
        changed_experiment = Experiment.__new__(Experiment)
        vars(changed_experiment).update({**own_fields, **changes})
        return changed_experiment

    def points(self, outputs: Sequence[str]) -> MeasurementPoints:
        """Arrange the measurements on points, with one column for each of `outputs`."""
        row = self._rows()
        slots = list(row)
        values = np.full((len(slots), len(outputs)), np.nan)
        sigma = np.ones_like(values)
        for name, (times, y) in self.data.items():
            j = list(outputs).index(name)
            rows = [row[slot] for slot in zip(*_slots(times, y), strict=True)]
            values[rows, j] = y.ravel()
            if self.sigma is not None and name in self.sigma:
                sigma[rows, j] = self.sigma[name].ravel()
            if getattr(getattr(self.noise.get(name), "correlation", None), "unknown", False):
                sigma[rows, j] = float(np.nanstd(y)) or 1.0  # in whose units unknown("joint") begins
        measured = np.isfinite(values).any(axis=1)
        values, sigma = values[measured], sigma[measured]
        return MeasurementPoints(
            np.array([t for t, _ in slots])[measured], values, np.where(np.isfinite(values), sigma, 1.0)
        )

    def _rows(self, *, measured: bool = False) -> dict[tuple[float, int], int]:
        """Return the index of the point for each time and replicate.

        If `measured`, only of points with a measured value.

        One point per time and replicate, so that a column holds at most one value at a point.
        """
        slots = {
            (float(t), int(r))
            for times, y in self.data.values()
            for t, r, v in zip(*_slots(times, y), y.ravel().tolist(), strict=True)
            if not measured or np.isfinite(v)
        }
        return {slot: i for i, slot in enumerate(sorted(slots))}


@add_brief_repr
@dataclass(frozen=True)
class MeasurementPoints:
    """Measurements on points: times (n_points,), values and sigma (n_points, n_outputs), NaN = not measured.

    mask (n_points, n_outputs) tells where a value was measured.
    """

    times: Array
    values: Array
    sigma: Array
    mask: Mask = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", np.isfinite(self.values))


def _slots(times: Array, values: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return each value's time and its number among those at that time, which make it unique in a series."""
    flat = np.repeat(times, values.shape[1])
    first_index = np.searchsorted(flat, flat, side="left")
    return flat, np.arange(flat.size) - first_index


def _settle_infinite_data(
    series: dict[str, TimeSeries], start_time: float | None, mistakes: list[str]
) -> tuple[dict[str, TimeSeries], bool]:
    """Move times at infinity to a finite time, as the model begins and stays at steady state.

    Return also whether all are infinite.
    """
    infinite = [np.isposinf(s.times) for s in series.values()]
    if not any(is_infinite.any() for is_infinite in infinite):
        return series, False
    if not all(is_infinite.all() for is_infinite in infinite):
        mistakes.append("values at infinity stand beside others; give those at infinity as an experiment of their own")
        finite = {n: np.where(is_infinite, np.nanmax(s.times, where=~is_infinite, initial=start_time or 0.0), s.times)
                  for (n, s), is_infinite in zip(series.items(), infinite, strict=True)}  # fmt: skip
        return {n: TimeSeries(finite[n], s.values, s.shape) for n, s in series.items()}, False
    steady_time = (start_time or 0.0) + max(abs(start_time or 0.0), 1.0)
    return {n: TimeSeries(np.full_like(s.times, steady_time), s.values, s.shape) for n, s in series.items()}, True


def _steady_start(initial: Any, signals: Mapping[str, Input | EstimatedInput], mistakes: list[str]) -> SteadyStart:
    """Return from where an experiment that is only measured at rest comes to it."""
    states: dict[str, Any] = {}
    if isinstance(initial, SteadyStart) and initial.is_measured_at_steady_state:
        return initial
    states = {n: _initial_value(n, v, mistakes) for n, v in read_mapping("initial", initial, mistakes).items()}
    mistakes += [
        f"initial state '{n}' is free, but the data are at infinity; give a parameter instead, and its guess in the "
        "problem's parameters"
        for n, v in states.items()
        if isinstance(v, Free)
    ]
    mistakes += [
        f"input '{n}' changes in time, but the data are at infinity; give a number"
        for n, u in signals.items()
        if u.kind != "constant"
    ]
    # From a steady state before it, or from initial states, the model comes to rest, again or at all.
    steady_start = replace(initial, replace=states) if isinstance(initial, SteadyStart) else states
    return SteadyStart({}, {}, steady_start, {}, is_measured_at_steady_state=True)


def as_input(name: str, value: Any, mistakes: list[str]) -> Input:
    """Read an input: a number or an Input."""
    if isinstance(value, Input):
        return value
    number = read_real(value)
    if number is not None and np.isfinite(number):
        return Input.constant(number)
    if isinstance(value, EstimatedInput):
        mistakes.append(f"input '{name}' is to be estimated, which only experiments of a problem can be; give a number")
        return Input.constant(0.0)
    if isinstance(value, FreeInput):
        mistakes.append(f"input '{name}' is free, which cf.control alone can choose; give a number or an Input")
        return Input.constant(0.0)
    mistakes.append(
        f"input '{name}' is {shorten_repr(value)}; give a finite number, or choose the interpolation by name: "
        "Input.linear(times, values), .pchip, .cubic_spline, .piecewise_constant"
    )
    return Input.constant(0.0)


def _initial_value(name: str, value: Any, mistakes: list[str]) -> InitialValue:
    """Read one entry of `initial`."""
    if isinstance(value, Normal):
        prior_faults = prior_mistakes(f"initial state '{name}'", value)
        if not prior_faults and value.on != "value":
            prior_faults = [
                f"initial state '{name}' is {shorten_repr(value)}; give Normal(mean, deviation) of the value itself"
            ]
        mistakes += prior_faults
        return Free(np.nan if prior_faults else float(value.mean), prior=value, random=True)
    if isinstance(value, Free):
        label = f"free initial state '{name}'"
        faults = bound_mistakes(label, value.guess, value.lower, value.upper, value.scale)
        prior_faults = prior_mistakes(label, value.prior)
        faults += prior_faults or (
            [] if faults else prior_bound_conflicts(label, value.guess, value.lower, value.upper, value.prior)
        )
        mistakes += faults
        if faults:
            return value
        return replace(value, guess=float(value.guess), lower=float(value.lower), upper=float(value.upper))
    if isinstance(value, Consistent):
        guess = read_real(value.guess)
        if guess is None or not np.isfinite(guess):
            mistakes.append(
                f"initial state '{name}' is consistent({shorten_repr(value.guess)}); give a finite number as guess"
            )
        return Consistent(np.nan if guess is None else guess)
    return number_or_expression(
        f"initial state '{name}'", value, "give a finite number, cf.free(guess) or a scalar SX expression", mistakes
    )


def read_local_parameter(name: str, value: Any, mistakes: list[str]) -> float | ca.SX:
    """Read one entry of `parameters`."""
    remedy = "give a finite number or a scalar SX expression of other parameters"
    if isinstance(value, Free):
        remedy = "declare it as Parameter(guess, local=True) in the problem to estimate a value of its own"
    return number_or_expression(f"parameter '{name}'", value, remedy, mistakes)
