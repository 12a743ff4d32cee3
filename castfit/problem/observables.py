"""Observation of each output in each experiment, with its compiled noise model.

An unknown standard deviation is either a *group* of data, whose sigma is eliminated while fitting, or a parameter
``sigma(y)`` of its own, or ``dispersion(y)``.  A spread that is computed, from parameters, states or outputs, becomes
an output of the model, ``sigma of y``, so that transcriptions evaluate it, and its derivatives, like anything else that
is measured.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit.densities.noise.density import Noise
from castfit.densities.noise.gaussian import Gaussian
from castfit.densities.noise.unknown import UnknownSigma
from castfit.experiment.events import event_symbols
from castfit.experiment.experiment import Experiment
from castfit.model.model import Model
from castfit.problem.parameters import Parameter, ProblemStatement
from castfit.problem.quantities import every_parameter

_FIRST_GUESS = 0.1  # of the data: where an unknown spread stands until residuals say more


@dataclass(frozen=True)
class ObservedOutput:
    """Observation of one output in one experiment.

    noise : noise model, without the spread
    group : position in ``CompiledProblem.groups`` of the unknown sigma that is eliminated; -1 if there is none
    predicted_outputs : the outputs of the model that the density depends on: the measured output, then its spread if
        `is_spread_computed`, then other symbols of the density
    is_weighted : whether a row is simply  (prediction - value) / sigma
    """

    noise: Noise
    group: int
    predicted_outputs: tuple[str, ...]
    is_spread_computed: bool = False
    is_weighted: bool = field(init=False)

    def __post_init__(self) -> None:
        is_weighted = (
            isinstance(self.noise, Gaussian) and self.noise.is_residual_noise and len(self.predicted_outputs) == 1
        )
        object.__setattr__(self, "is_weighted", is_weighted)


@dataclass(frozen=True)
class Observations:
    """Compiled noise of all experiments.

    statement : the statement with the parameters of the noise, and computed spreads as outputs of the model
    observed : per experiment, by output
    groups : unknown sigmas that are eliminated; "" is the common one of all data without a specified sigma
    spreads : computed spreads, outputs of the model
    noise_parameters : parameters that affect only the noise
    """

    statement: ProblemStatement
    observed: tuple[Mapping[str, ObservedOutput], ...]
    groups: tuple[str, ...]
    spreads: tuple[str, ...]
    noise_parameters: frozenset[str]


@dataclass
class _ObservableCollector:
    """Groups, spreads, parameters and noise models collected so far."""

    eliminated: dict[str, bool]
    groups: dict[str, int] = field(default_factory=dict[str, int])
    spreads: dict[str, ca.SX] = field(default_factory=dict[str, ca.SX])
    parameters: dict[str, Parameter] = field(default_factory=dict[str, Parameter])
    models: dict[tuple[object, ...], Noise] = field(default_factory=dict[tuple[object, ...], Noise])

    def without_sigma(self, noise: Noise) -> Noise:
        """Return a noise model without its spread; equal models share one object, so that functions are built once."""
        options = (getattr(noise, f.name) for f in fields(noise) if f.name != "sigma")
        key = (type(noise), *(o if callable(o) else repr(o) for o in options))
        return self.models.setdefault(key, replace(noise, sigma=None))

    def group(self, label: str) -> int:
        return self.groups.setdefault(label, len(self.groups))

    def spread(self, output: str, expression: ca.SX) -> str:
        """Name a computed spread; equal graphs share one name."""
        for name, graph in self.spreads.items():
            if ca.is_equal(graph, expression, 10):
                return name
        names = (f"sigma of {output}{'' if k == 1 else f' ({k})'}" for k in range(1, len(self.spreads) + 2))
        name = next(n for n in names if n not in self.spreads)
        self.spreads[name] = expression
        return name


def label(output: str, sigma: UnknownSigma) -> str:
    """Return the name of an unknown sigma: as given, or that of its output."""
    return sigma.name or output


def parameter_of(noise: Noise, name: str) -> str:
    """Return the name of the estimated parameter for an unknown spread."""
    return f"{noise.spread_name}({name})"


def called_now(name: str, names: Container[str]) -> str:
    """Return the name of a quantity among `names`, which earlier versions may have called otherwise: dispersions."""
    current_name = name.replace("sigma(", "dispersion(", 1) if name.startswith("sigma(") else name
    return current_name if name not in names and current_name in names else name


def unknowns(experiments: Iterable[Experiment]) -> Iterable[tuple[str, str, Noise, UnknownSigma]]:
    """List every use of an unknown sigma: its label, the output, the noise model, and the `UnknownSigma` itself."""
    for e in experiments:
        for output, noise in e.noise.items():
            if isinstance(noise.sigma, UnknownSigma):
                yield label(output, noise.sigma), output, noise, noise.sigma


def work_out(statement: ProblemStatement) -> Observations:
    """Compile the noise models of a statement, which must contain no mistake."""
    uses = list(unknowns(statement.experiments))
    eliminated: dict[str, bool] = {}
    for name, _, noise, sigma in uses:
        eliminated[name] = eliminated.get(name, True) and noise.is_residual_noise and sigma.is_unspecified
    plan = _ObservableCollector(eliminated)
    observed = tuple({n: _compile_observation(e, n, plan) for n in e.measured} for e in statement.experiments)
    if not plan.spreads:
        return Observations(statement, observed, tuple(plan.groups), (), frozenset())
    names = {s.name() for graph in plan.spreads.values() for s in ca.symvar(graph)}
    parameter_names = {*every_parameter(statement.model, statement.parameters), *plan.parameters}
    noise_parameters = [
        n for n in dict.fromkeys((*statement.parameters, *plan.parameters)) if n in names & parameter_names
    ]
    added = [n for n in noise_parameters if n not in statement.model.parameters]
    model = _extend_model(statement.model, added, plan.spreads)
    full_statement = replace(statement, model=model, parameters={**statement.parameters, **plan.parameters})
    values = (v for e in statement.experiments for v in (*e.parameters.values(), *e.initial.values()))
    other_symbols = {s.name() for v in values if isinstance(v, ca.SX) for s in ca.symvar(v)}
    other_symbols = other_symbols.union(*(event_symbols(e.events) for e in statement.experiments))
    measured = (statement.model.outputs[n] for e in statement.experiments for n in e.measured)
    graphs = (statement.model.system.ode, statement.model.system.alg, *statement.model.initial.values(), *measured)
    noise_only = frozenset(noise_parameters).difference(
        other_symbols, (s.name() for graph in graphs for s in ca.symvar(graph))
    )
    return Observations(full_statement, observed, tuple(plan.groups), tuple(plan.spreads), noise_only)


def _compile_observation(experiment: Experiment, output: str, plan: _ObservableCollector) -> ObservedOutput:
    noise = experiment.noise.get(output)
    if noise is None:
        has_sigma = experiment.sigma is not None and output in experiment.sigma
        return ObservedOutput(Gaussian(), -1 if has_sigma else plan.group(""), (output,))
    sigma, bare_noise = noise.sigma, plan.without_sigma(noise)
    if isinstance(sigma, UnknownSigma):
        name = label(output, sigma)
        if plan.eliminated[name]:
            return ObservedOutput(bare_noise, plan.group(name), (output,))
        parameter = parameter_of(noise, name)
        plan.parameters[parameter] = _parameter(experiment, output, noise, sigma)
        sigma = _symbol(parameter)
    extra_names = [plan.spread(output, symbol) for symbol in noise.symbols]
    computed = [] if sigma is None else [plan.spread(output, sigma)]  # else a number, or none is needed
    return ObservedOutput(bare_noise, -1, (output, *computed, *extra_names), bool(computed))


@cache
def _symbol(name: str) -> ca.SX:
    """Return the symbol of a parameter of the noise, always the same, so that graphs of it are recognised."""
    return ca.SX.sym(name)


def _parameter(experiment: Experiment, output: str, noise: Noise, sigma: UnknownSigma) -> Parameter:
    values = experiment.data[output][1]
    size = float(np.nanmedian(np.abs(values))) if noise.in_unit_of_output else 1.0
    guess = _FIRST_GUESS * (size or 1.0) if sigma.guess is None else sigma.guess
    lower = sigma.lower or min(noise.least_spread(values), guess, sigma.upper)
    return Parameter(float(np.clip(guess, lower, sigma.upper)), lower, sigma.upper, "log", prior=sigma.prior)


# Extended models, so that their functions are built once; graphs are kept, since their hashes are addresses.
_EXTENDED_MODELS: PerObjectCache[Model, dict[tuple[object, ...], tuple[Mapping[str, ca.SX], Model]]] = PerObjectCache()


def _extend_model(model: Model, parameters: Sequence[str], spreads: Mapping[str, ca.SX]) -> Model:
    models_by_key = _EXTENDED_MODELS.get(model, lambda _: {})
    key = (*parameters, *spreads, *(hash(graph) for graph in spreads.values()))
    if key not in models_by_key:
        models_by_key[key] = (spreads, model.extended(parameters, spreads))
    return models_by_key[key][1]
