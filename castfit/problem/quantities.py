"""The quantities that are estimated: the entries of theta, in the order in which they stand there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import casadi as ca

from castfit._support.records import dataclass
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr
from castfit.densities.priors import PriorDistribution, PriorTerm
from castfit.experiment.events import event_symbols
from castfit.experiment.experiment import Experiment, Free
from castfit.model.model import Model
from castfit.model.scaled_outputs import measured_with
from castfit.problem.parameters import Parameter, ProblemStatement, estimated_inputs, initial_values


@with_old_names(of="symbol_name")
@add_brief_repr
@dataclass(frozen=True)
class Quantity:
    """One entry of theta.

    `kind` is "parameter" or "initial state"; `of` names the parameter or state; `experiment` is None if shared.
    Guess and bounds are in natural scale; the bounds lie within the prior's support.  `starts` says how starts are
    drawn, if not evenly.
    """

    name: str
    kind: str
    symbol_name: str
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
    previous = experiment
    while previous.steady is not None:
        previous = previous.before
        values = (*values, *initial_values(model, previous).values(), *previous.parameters.values())
    expression_names = (symbol.name() for v in values if isinstance(v, ca.SX) for symbol in ca.symvar(v))
    no_parameters = {*model.states, *model.algebraic_states, *model.inputs, model.system.t.name()}
    event_names = event_symbols(experiment.events) - no_parameters
    knot_names = (u.names(n) for n, u in estimated_inputs(experiment).items())
    at_knots = (name for names in knot_names for name in names)
    unmeasured_scales = measured_with(model.scalings, model.scalings) - measured_with(
        model.scalings, experiment.measured
    )
    model_names = (n for n in model.parameters if n not in unmeasured_scales)
    return frozenset((*model_names, *expression_names, *at_knots, *event_names, *noise_names(model, experiment)))


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
    local_names: Collection[str] = (),
) -> list[SymbolMeanings]:
    """Return the meanings of names: one if all names are shared, else one for every experiment that has all of them.

    ``means(name, quantity, experiment)`` tells whether a name is that of a quantity there; parameters of which some
    experiment has its `local_names` value are not shared.
    """
    shared = {
        q.name: j for j, q in enumerate(quantities) if not (q.experiment is None and q.symbol_name in local_names)
    }
    fixed = {n: p for n, p in parameters.items() if p.fixed and n not in local_names}
    entry = {n: shared[n] for n in names if n in shared}
    number = {n: fixed_value(fixed[n], "") for n in names if n in fixed and not isinstance(fixed[n].value, Mapping)}
    remaining = [n for n in names if n not in entry and n not in number]
    if not remaining:
        return [SymbolMeanings("", entry, number)]
    symbol_meanings: list[SymbolMeanings] = []
    for e in experiments:
        local_entries = {n: j for n in remaining for j, q in enumerate(quantities) if means(n, q, e)}
        fixed_values = {n: fixed[n].value for n in remaining if n in fixed}
        numbers = {n: float(v[e]) for n, v in fixed_values.items() if isinstance(v, Mapping) and e in v}
        if all(n in local_entries or n in numbers for n in remaining):
            symbol_meanings.append(SymbolMeanings(e, {**entry, **local_entries}, {**number, **numbers}))
    return symbol_meanings


def list_quantities(statement: ProblemStatement) -> tuple[Quantity, ...]:
    """List the estimated quantities: shared parameters, then per experiment local parameters and initial states."""
    quantities: list[Quantity] = []
    has_many_experiments = len(statement.experiments) > 1
    parameters_by_name = {
        n: statement.parameters.get(n) for n in every_parameter(statement.model, statement.parameters)
    }
    free_parameters = {n: p for n, p in parameters_by_name.items() if p is not None and not p.fixed}
    by_name = {b.target: b.prior for b in statement.priors if isinstance(b, PriorTerm) and isinstance(b.target, str)}
    for name, p in free_parameters.items():
        if not p.local:
            assert not isinstance(p.value, Mapping)
            prior = p.prior or by_name.get(name)
            limits = within_support(p.lower, p.upper, prior)
            quantities.append(
                Quantity(name, "parameter", name, None, float(p.value), *limits, p.scale, prior, p.starts)
            )
    for e in statement.experiments:
        suffix = f"[{e.name}]" if has_many_experiments else ""
        used_names = names_used(statement.model, e) - {*e.parameters}
        for name, p in free_parameters.items():
            if p.local and name in used_names:
                guess, label = fixed_value(p, e.name), f"{name}{suffix}"
                prior = p.prior or by_name.get(label) or by_name.get(name)
                limits = within_support(p.lower, p.upper, prior)
                quantities.append(Quantity(label, "parameter", name, e.name, guess, *limits, p.scale, prior, p.starts))
        for name, value in initial_values(statement.model, e).items():
            if isinstance(value, Free):
                quantities.append(_initial_state(name, value, e, suffix, by_name))
    return tuple(quantities)


def _initial_state(
    name: str, value: Free, experiment: Experiment, suffix: str, by_name: Mapping[str, PriorDistribution]
) -> Quantity:
    label = f"{name}({experiment.start:g}){suffix}"
    prior = value.prior or by_name.get(label) or by_name.get(name)
    limits = within_support(value.lower, value.upper, prior)
    return Quantity(label, "initial state", name, experiment.name, value.guess, *limits, value.scale, prior)
