"""The quantities that are estimated: the entries of theta, in the order in which they stand there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import casadi as ca

from castfit._support.records import dataclass
from castfit._support.reprs import brief
from castfit.densities.priors import Belief
from castfit.experiment.events import symbols_of
from castfit.experiment.experiment import Experiment, Free
from castfit.model.scaled_outputs import measured_with
from castfit.problem.parameters import Parameter, Statement, estimated_inputs, initial_values

if TYPE_CHECKING:
    from castfit.densities.priors import PriorDistribution
    from castfit.model.model import Model


@brief
@dataclass(frozen=True)
class Quantity:
    """One entry of theta.

    `kind` is "parameter" or "initial state"; `of` names the parameter or state; `experiment` is None if shared.
    Guess and bounds are in natural scale; the bounds lie within the prior's support.  `starts` says how starts are
    drawn, if not evenly.
    """

    name: str
    kind: str
    of: str
    experiment: str | None
    guess: float
    lower: float
    upper: float
    scale: str
    prior: PriorDistribution | None = None
    starts: PriorDistribution | None = None


def within_support(lower: float, upper: float, prior: PriorDistribution | None) -> tuple[float, float]:
    """Return bounds that exclude what a prior declares impossible."""
    if prior is None:
        return lower, upper
    low, high = prior.support
    return max(lower, low), min(upper, high)


def every_parameter(model: Model, parameters: Iterable[str]) -> tuple[str, ...]:
    """Return the names of all parameters: the model's, then those that appear in expressions only."""
    return (*model.parameters, *(n for n in parameters if n not in model.parameters))


def names_used(model: Model, experiment: Experiment) -> frozenset[str]:
    """Return the parameters whose values an experiment needs: the model's, and those in its expressions and events.

    It does not need the scales of outputs that it does not measure.
    """
    values = (*initial_values(model, experiment).values(), *experiment.parameters.values())
    before = experiment
    while before.steady is not None:
        before = before.before
        values = (*values, *initial_values(model, before).values(), *before.parameters.values())
    inside = (symbol.name() for v in values if isinstance(v, ca.SX) for symbol in ca.symvar(v))
    no_parameters = {*model.states, *model.algebraic_states, *model.inputs, model.system.t.name()}
    of_events = symbols_of(experiment.events) - no_parameters
    given = (u.names(n) for n, u in estimated_inputs(experiment).items())
    at_knots = (name for names in given for name in names)
    elsewhere = measured_with(model.scalings, model.scalings) - measured_with(model.scalings, experiment.measured)
    own = (n for n in model.parameters if n not in elsewhere)
    return frozenset((*own, *inside, *at_knots, *of_events, *noise_names(model, experiment)))


def noise_names(model: Model, experiment: Experiment) -> Iterator[str]:
    """List the symbols in an experiment's noise that the model does not explain: parameters of the noise."""
    inputs, time = model.inputs, model.system.t.name()
    for noise in experiment.noise.values():
        graphs = [*noise.symbols, *([noise.sigma] if isinstance(noise.sigma, ca.SX) else [])]
        for symbol in (s for graph in graphs for s in ca.symvar(graph)):
            if symbol.name() not in (*model.output_names, *inputs, time):
                yield symbol.name()


def fixed_value(parameter: Parameter, experiment: str) -> float:
    """Return the value, or the guess, that a parameter has in an experiment."""
    value = parameter.value
    return float(value[experiment] if isinstance(value, Mapping) else value)


@dataclass(frozen=True)
class SymbolMeanings:
    """Meanings of the names in an expression, in one experiment ("" if in all): entries of theta, or numbers."""

    experiment: str
    entry: Mapping[str, int]
    number: Mapping[str, float]


def meanings(
    names: Sequence[str],
    experiments: Iterable[str],
    parameters: Mapping[str, Parameter],
    quantities: Sequence[Quantity],
    means: Callable[[str, Quantity, str], bool],
    *,
    own: Collection[str] = (),
) -> list[SymbolMeanings]:
    """Return the meanings of names: one if all names are shared, else one for every experiment that has all of them.

    ``means(name, quantity, experiment)`` tells whether a name is that of a quantity there; parameters of which some
    experiment has its `own` value are not shared.
    """
    shared = {q.name: j for j, q in enumerate(quantities) if not (q.experiment is None and q.of in own)}
    fixed = {n: p for n, p in parameters.items() if p.fixed and n not in own}
    entry = {n: shared[n] for n in names if n in shared}
    number = {n: fixed_value(fixed[n], "") for n in names if n in fixed and not isinstance(fixed[n].value, Mapping)}
    left = [n for n in names if n not in entry and n not in number]
    if not left:
        return [SymbolMeanings("", entry, number)]
    found: list[SymbolMeanings] = []
    for e in experiments:
        here = {n: j for n in left for j, q in enumerate(quantities) if means(n, q, e)}
        given = {n: fixed[n].value for n in left if n in fixed}
        numbers = {n: float(v[e]) for n, v in given.items() if isinstance(v, Mapping) and e in v}
        if all(n in here or n in numbers for n in left):
            found.append(SymbolMeanings(e, {**entry, **here}, {**number, **numbers}))
    return found


def quantities_of(said: Statement) -> tuple[Quantity, ...]:
    """List the estimated quantities: shared parameters, then per experiment local parameters and initial states."""
    found: list[Quantity] = []
    several = len(said.experiments) > 1
    stated = {n: said.parameters.get(n) for n in every_parameter(said.model, said.parameters)}
    free = {n: p for n, p in stated.items() if p is not None and not p.fixed}
    by_name = {b.what: b.prior for b in said.priors if isinstance(b, Belief) and isinstance(b.what, str)}
    for name, p in free.items():
        if not p.local:
            assert not isinstance(p.value, Mapping)
            prior = p.prior or by_name.get(name)
            limits = within_support(p.lower, p.upper, prior)
            found.append(Quantity(name, "parameter", name, None, float(p.value), *limits, p.scale, prior, p.starts))
    for e in said.experiments:
        suffix = f"[{e.name}]" if several else ""
        used = names_used(said.model, e) - {*e.parameters}
        for name, p in free.items():
            if p.local and name in used:
                guess, label = fixed_value(p, e.name), f"{name}{suffix}"
                prior = p.prior or by_name.get(label) or by_name.get(name)
                limits = within_support(p.lower, p.upper, prior)
                found.append(Quantity(label, "parameter", name, e.name, guess, *limits, p.scale, prior, p.starts))
        for name, value in initial_values(said.model, e).items():
            if isinstance(value, Free):
                found.append(_initial_state(name, value, e, suffix, by_name))
    return tuple(found)


def _initial_state(
    name: str, value: Free, experiment: Experiment, suffix: str, by_name: Mapping[str, PriorDistribution]
) -> Quantity:
    label = f"{name}({experiment.start:g}){suffix}"
    prior = value.prior or by_name.get(label) or by_name.get(name)
    limits = within_support(value.lower, value.upper, prior)
    return Quantity(label, "initial state", name, experiment.name, value.guess, *limits, value.scale, prior)
