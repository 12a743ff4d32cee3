"""Data structures of the user's statement before compilation: parameters, priors, constraints, and the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.bounds import both_bounds
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit.densities.priors import Entry, PriorDistribution
from castfit.experiment.estimated_inputs import EstimatedInput
from castfit.experiment.events import Event
from castfit.experiment.experiment import Experiment
from castfit.model.expressions import substitute_by_name
from castfit.model.model import Model
from castfit.problem.constraints import Constraint


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, init=False)
class Parameter:
    """A parameter of the model: its guess, and how it is estimated.

    Parameters
    ----------
    value : float or mapping
        The guess, or the value if fixed.  A local parameter may have one per experiment: ``{"experiment 1": 0.1}``.
    lower, upper : float
        Bounds, natural scale.
    scale : {"linear", "log"}
        Whether the search moves in the value or in its logarithm.
    fixed : bool
        Whether the value is kept.
    local : bool
        Whether every experiment has a value of its own.
    prior : PriorDistribution, optional
        What is known of the value beforehand, such as ``Normal(mean, deviation)``; see `castfit.priors`.
    bounds : (lower, upper), optional
        The bounds in one argument.
    starts : PriorDistribution, optional
        How `multistart` and `estimate` draw starts of it, within its bounds; by default evenly on its scale.  It says
        where to look, and nothing about the answer.

    Raises
    ------
    InputError
        If `bounds` is no pair, or given beside `lower` or `upper`.  What else is wrong is found by `Problem`.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.Parameter(0.5, lower=0)
    Parameter(value=0.5, lower=0)
    >>> cf.Parameter(1.0, bounds=(1e-3, 1e3), scale="log")
    Parameter(value=1, lower=0.001, upper=1000, scale='log')
    >>> cf.Parameter(9.81, fixed=True)
    Parameter(value=9.81, fixed=True)
    >>> cf.Parameter(1.0, local=True, prior=cf.Normal(1.0, 0.2))
    Parameter(value=1, local=True, prior=Normal(mean=1, deviation=0.2))
    >>> cf.Parameter(1.0, bounds=(0, 100), starts=cf.priors.Uniform(0, 2))
    Parameter(value=1, lower=0, upper=100, starts=Uniform(lower=0, upper=2))
    """

    value: float | Mapping[str, float]
    lower: float = -np.inf
    upper: float = np.inf
    scale: str = "linear"
    fixed: bool = False
    local: bool = False
    prior: PriorDistribution | None = None
    starts: PriorDistribution | None = None

    def __init__(
        self,
        value: float | Mapping[str, float],
        lower: float = -np.inf,
        upper: float = np.inf,
        scale: str = "linear",
        fixed: bool = False,
        local: bool = False,
        prior: PriorDistribution | None = None,
        *,
        bounds: tuple[float, float] | None = None,
        starts: PriorDistribution | None = None,
    ) -> None:
        lower, upper = both_bounds("Parameter", lower, upper, bounds)
        vars(self).update(value=value, lower=lower, upper=upper, scale=scale, fixed=fixed, local=local)
        vars(self).update(prior=prior, starts=starts)

    @property
    def bounds(self) -> tuple[float, float]:
        """The lower and the upper bound."""
        return self.lower, self.upper


@add_brief_repr
@dataclass(frozen=True, eq=False)
class ProblemStatement:
    """Statement of a model, its experiments, and settings of their quantities; every experiment has a name.

    `unguessed` are the scales and offsets of outputs whose guess nobody gave.
    """

    model: Model
    experiments: tuple[Experiment, ...]
    parameters: Mapping[str, Parameter]
    state_bounds: Mapping[str, tuple[float, float]]
    constraints: tuple[Constraint, ...]
    priors: tuple[Entry, ...] = ()
    unguessed: frozenset[str] = frozenset()
    units: Mapping[str, str] = field(default_factory=dict[str, str])


def with_scales(
    model: Model, experiments: Iterable[Experiment], parameters: Mapping[str, Parameter]
) -> tuple[dict[str, Parameter], frozenset[str]]:
    """Return the parameters, completed by those of measured scaled outputs, and the names of these without a guess.

    What is `parameters` may hold scales and offsets already.
    """
    completed_parameters = dict(parameters)
    for output, scaling in model.scalings.items():
        users = [e for e in experiments if output in e.measured]
        for name in scaling.parameters:
            if name in completed_parameters or all(name in e.parameters for e in users):
                continue
            if name == scaling.offset:
                completed_parameters[name] = Parameter(0.0, local=scaling.per_experiment)
                continue
            positive = scaling.lower >= 0.0
            guess = np.clip(1.0, scaling.lower, scaling.upper) if scaling.guess is None else scaling.guess
            completed_parameters[name] = Parameter(
                float(guess),
                scaling.lower,
                scaling.upper,
                "log" if positive and guess > 0.0 else "linear",
                local=scaling.per_experiment,
                prior=scaling.prior,
            )
    unguessed = (n for s in model.scalings.values() if s.guess is None for n in s.parameters)
    return completed_parameters, frozenset(n for n in unguessed if n in completed_parameters and n not in parameters)


def with_knots(experiments: Iterable[Experiment], parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return the parameters, completed by the values of estimated inputs at their knots."""
    completed_parameters = dict(parameters)
    for e in experiments:
        for input_name, spec in estimated_inputs(e).items():
            for name, guess in zip(spec.names(input_name), spec.guess.tolist(), strict=True):
                if name in parameters:
                    continue
                value: float | Mapping[str, float] = guess
                if spec.per_experiment:
                    previous_value = completed_parameters[name].value if name in completed_parameters else 0.0
                    value = (
                        {**previous_value, e.name: guess} if isinstance(previous_value, Mapping) else {e.name: guess}
                    )
                completed_parameters[name] = Parameter(
                    value, spec.lower, spec.upper, spec.scale, local=spec.per_experiment
                )
    return completed_parameters


def with_resets(model: Model, experiment: Experiment) -> Experiment:
    """Return the experiment with the events at which its model's memory is set; itself if there is none.

    What others are relative to is no measurement: predicted to be 1 whatever the model, it would count as one without
    an error.
    """
    events = tuple(_resets(model, experiment))
    data = dict(experiment.data)
    for output in (m.output for m in model.memories if m.kind == "relative" and m.output in experiment.measured):
        times, values = data[output]
        first_time, *later_times = measured_times(experiment, output)
        if later_times:  # else that is a mistake
            data[output] = times, np.where((times == first_time)[:, None], np.nan, values)
    return experiment.with_changes(events=(*experiment.events, *events), data=data) if events else experiment


def _resets(model: Model, experiment: Experiment) -> Iterator[Event]:
    for memory in model.memories:
        if memory.output not in experiment.measured:
            continue
        times = measured_times(experiment, memory.output)
        if memory.kind == "relative":
            reference_state, flag_state = memory.states
            yield Event(float(times[0]), {reference_state: model.outputs[memory.value], flag_state: 1.0})
        else:
            for t in times:
                yield Event(float(t), dict.fromkeys(memory.states, 0.0))


def measured_times(experiment: Experiment, output: str) -> Array:
    """Return the times at which an output has a value, increasing."""
    times, values = experiment.data[output]
    return np.unique(times[np.isfinite(values).any(axis=1)])


def estimated_inputs(experiment: Experiment) -> dict[str, EstimatedInput]:
    """Return the estimated inputs of an experiment, by their names in the model."""
    return {n: u for n, u in experiment.inputs.items() if isinstance(u, EstimatedInput)}


def initial_values(model: Model, experiment: Experiment) -> dict[str, Any]:
    """Return the value or specification of each initial state: the experiment's own, else the model's.

    Those of delay lines may be expressions that hold free initial states by the names of the states.  Of an experiment
    that begins at a steady state only what differs from it.
    """
    if experiment.steady is not None:
        return dict(experiment.initial)
    model_values = {n: float(v) if v.is_constant() else v for n, v in model.initial.items()}
    values_by_name = {**model_values, **experiment.initial}
    for line in model.lines:
        values_by_name |= {
            n: at_start(model_values[n], model, experiment.start, experiment.inputs, values_by_name) for n in line.nodes
        }
    return values_by_name


def at_start(
    value: Any, model: Model, start: float, inputs: Mapping[str, Any], states: Mapping[str, Any]
) -> float | ca.SX:
    """Substitute an experiment's start, inputs and initial states into an initial value of a delay line."""
    if not isinstance(value, ca.SX):
        return value
    system = model.system
    values_by_name: dict[str, Any] = {system.t.name(): start}
    values_by_name |= {n: float(u(start)) for n, u in inputs.items() if not isinstance(u, EstimatedInput)}
    values_by_name |= {n: v for n, v in states.items() if n in model.own_states and isinstance(v, (float, int, ca.SX))}
    value = substitute_by_name(value, values_by_name)
    return float(value) if value.is_constant() else value
