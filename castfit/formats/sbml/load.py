"""Conversion of an SBML document to a model: states, parameters, outputs and events."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_count, is_one_of, read_mapping, read_real, read_sequence, shorten_repr
from castfit._support.reprs import join_limited
from castfit._support.status import raise_if_mistakes, suggest
from castfit.experiment.events import Event
from castfit.formats.optional import library
from castfit.formats.sbml.classification import QuantityRole
from castfit.formats.sbml.document import parse_document
from castfit.formats.sbml.events import events_of, with_delays
from castfit.formats.sbml.late_jumps import with_late_jumps
from castfit.formats.sbml.reading import document, from_antimony
from castfit.formats.sbml.values import SbmlValues
from castfit.formats.sbml.waiting_events import MAX_OCCURRENCES, MAX_PENDING_EVENTS, EventLimits
from castfit.model.delay import substitute_symbols
from castfit.model.expressions import holds_nan
from castfit.model.model import Model
from castfit.problem.imported_model import ImportedModel, ImportedStart, Species

_MAX_SEED = 2**32 - 1  # largest seed of the random order of simultaneous events


def load(
    source: Any,
    *,
    parameters: Iterable[str] | str = (),
    count: int | None = None,
    waiting: int | None = None,
    rng: int = 0,
) -> ImportedModel:
    """Load a model from SBML.

    Species (as amounts or concentrations), compartments of changing size, function definitions, initial assignments,
    assignment, rate and algebraic rules, variable stoichiometries, conversion factors, delays, fast reactions, and
    events with delays and priorities are understood.  Other constructs are refused, with a list of all their names.

    Parameters
    ----------
    source : path or str
        A file of SBML (any level) or Antimony (``.ant``), or the text of SBML.
    parameters : sequence of str, optional
        Constants that are to be parameters although the file computes them, as by an initial assignment; ``"all"`` for
        every constant.
    count : int, optional
        How often an event that states trigger may happen; more often is a failure.  By default 100, in a simulation of
        what is returned as often as needed.
    waiting : int, optional
        How many events of one kind may wait at once for their delay to pass; more is a failure.  By default 3, in a
        simulation as many as needed.
    rng : int
        Seed by which events of one time and priority are put in order, anew each time, alike in every integration.

    Returns
    -------
    Loaded

    Raises
    ------
    InputError
        Listing every mistake: a missing file, what libsbml calls an error, with its line, features that cannot be
        expressed, quantities that depend on themselves.

    Examples
    --------
    >>> import castfit as cf
    >>> text = cf.sbml.load_antimony("A -> B; k * A; A = 2; B = 0; k = 0.3").sbml  # or a path, "model.xml"
    >>> loaded = cf.sbml.load(text)
    >>> loaded.parameters
    {'default_compartment': 1.0, 'k': 0.3}
    >>> loaded.model.initial
    {'A': SX(2), 'B': SX(0)}
    """
    limits, mistakes = _limits(count, waiting, rng)
    return _built("sbml.load", document("sbml.load", source), parameters, limits, mistakes)


def load_antimony(
    source: str,
    *,
    parameters: Iterable[str] | str = (),
    count: int | None = None,
    waiting: int | None = None,
    rng: int = 0,
) -> ImportedModel:
    """Load a model from the text of Antimony, a language for models of reactions.

    Parameters
    ----------
    source : str
    parameters, count, waiting, rng
        As for `load`.

    Raises
    ------
    InputError
        With Antimony's complaint, and as `load`.

    Examples
    --------
    >>> import castfit as cf
    >>> decay = cf.sbml.load_antimony("x' = -k * x; x = 2; k = 0.3; at x < 1: x = 2")
    >>> cf.simulate(decay, times=[0, 2, 3])["x"].round(4)
    array([2.    , 1.0976, 1.6263])
    """
    where = "sbml.load_antimony"
    limits, mistakes = _limits(count, waiting, rng)
    return _built(where, document(where, from_antimony(where, source)), parameters, limits, mistakes)


def _built(
    where: str, sbml_document: Any, parameters: Any, limits: EventLimits, mistakes: Iterable[str] = ()
) -> ImportedModel:
    mistakes = list(mistakes)
    contents = parse_document(sbml_document)
    quantities = contents.quantities
    parameter_names = _select_parameters(parameters, quantities, mistakes)
    values = SbmlValues(contents, frozenset(quantities if is_one_of(parameters, "all") else parameter_names), mistakes)
    mistakes += [
        f"parameters names '{n}', which changes, by {values.roles[n].value}; only constants are parameters"
        for n in parameter_names
        if n in quantities and values.roles[n] is not QuantityRole.CONSTANT
    ]
    reactions_with_law = [
        n for n, r in contents.reactions.items() if r.law is not None
    ]  # others may change nothing that varies
    expressions = {n: values.value(n) for n in (*contents.quantities, *reactions_with_law)}
    rates = {n: values.state_rate(n) for n in values.states}
    start = values.start({})
    initial = {n: start.state(n) for n in values.states if start.is_given(n)}
    values.settle_fast_reactions(start, values.numbers)
    values.check_fast_reactions(start)
    events = events_of(values, limits)
    tracked_delays = values.follow_delays({n for e in events for n in e.changes})
    events = with_late_jumps(values, events, limits)
    raise_if_mistakes(where, list(dict.fromkeys(mistakes)))
    if values.assumed:
        warnings.warn(_assumption(list(dict.fromkeys(values.assumed))), UserWarning, stacklevel=2)
    lines = values.delay_lines()
    expressions, rates, residuals = (put(group, lines) for group in (expressions, rates, values.residuals))
    ode = {values.states[n]: rates[n] for n in values.states} | dict.fromkeys(values.memories.values(), ca.SX(0))
    ode |= {f.state: put({"": f.rate}, lines)[""] for f in tracked_delays.values()}
    if not ode:  # nothing moves but time
        ode = {ca.SX.sym("elapsed_time"): ca.SX(1)}
        initial = {}
    used_expressions = [*rates.values(), *initial.values(), *residuals.values(), *_symbols(events)]
    unset_symbols = _without_values(values, ca.vertcat(*used_expressions), expressions)
    states = {s.name() for s in (*ode, *values.algebraic.values())}
    outputs = {
        n: e
        for n, e in expressions.items()
        if n not in states and n not in values.parameters and not holds_nan(e) and _finite(e)
        if not any(ca.depends_on(e, symbol) for symbol in unset_symbols)
    }
    initial_by_symbol: dict[Any, Any] = {values.states[n]: v for n, v in initial.items()}
    initial_by_symbol |= {f.state: start.at_start(f.value.symbol) for f in tracked_delays.values()}
    initial_by_symbol |= dict.fromkeys(values.memories.values(), 0.0)
    initial_by_symbol |= {} if values.states or values.memories else dict.fromkeys(ode, 0.0)
    event_symbol_names = {s.name() for s in _symbols(events)}
    outputs |= {
        n: e for n, (symbol, e) in lines.items() if n not in tracked_delays and symbol.name() in event_symbol_names
    }
    model = Model(
        ode,
        algebraic={values.algebraic[n]: r for n, r in residuals.items()},
        parameters=values.parameters.values(),
        outputs=outputs,
        time=values.time,
        initial=initial_by_symbol,
    )
    events = with_delays(events, lines, model)
    species = {
        n: Species(q.compartment, values.is_amount(n)) for n, q in contents.quantities.items() if q.kind == "species"
    }
    expressions["time"] = values.time

    return ImportedModel(
        contents.name,
        model,
        {n: values.numbers[n] for n in values.parameters if n in values.numbers},
        {
            n: _to_number(start.read_file_value(n)) if _follows(values, n) else values.numbers[n]
            for n in values.parameters
            if n in values.numbers or _follows(values, n)
        },
        events,
        expressions,
        species,
        str(library("libsbml").writeSBMLToString(sbml_document)),
        partial(_started, values),
        partial(_larger, where, sbml_document, parameters, limits),
        "count" in limits.fixed,
    )


def _select_parameters(parameters: Any, identifiers: Iterable[str], mistakes: list[str]) -> list[str]:
    """Return the listed identifiers that are to remain parameters."""
    requested_names = read_sequence(parameters)
    if requested_names is None:
        if not is_one_of(parameters, "all"):
            mistakes.append(f"parameters is {shorten_repr(parameters)}; give a list of identifiers, or 'all'")
        return []
    names = [n for n in requested_names if isinstance(n, str)]
    mistakes += [
        f"parameters names '{n}', which is not in the model: {suggest(n, identifiers)}"
        for n in names
        if n not in identifiers
    ]
    return names


def _assumption(reactions: list[str]) -> str:
    """Return a note on reactions whose stoichiometries are open in SBML level 3 and are taken to be 1."""
    few = join_limited((f"'{name}'" for name in reactions), 60)
    return f"stoichiometries that the SBML file leaves open are taken to be 1, in the reactions {few}"


def put(group: Mapping[str, ca.SX], lines: Mapping[str, tuple[ca.SX, ca.SX]]) -> dict[str, ca.SX]:
    """Substitute the expressions of delayed values for their symbols."""
    if not lines:
        return dict(group)
    old, new = ([pair[i] for pair in lines.values()] for i in (0, 1))
    return dict(zip(group, substitute_symbols([ca.SX(e) for e in group.values()], old, new), strict=True))


def _symbols(events: Iterable[Event]) -> list[ca.SX]:
    values = (v for e in events for v in (e.when, e.priority, *e.changes.values()) if v is not None)
    return ca.symvar(ca.SX(ca.vertcat(*(ca.SX(v) for v in values))))


def _larger(where: str, sbml_document: Any, parameters: Any, limits: EventLimits, reason: str) -> ImportedModel | None:
    """Return the model in which more events may happen, or wait, whichever were too few; None where there may not."""
    larger_limits = limits.grown(waiting="waiting=" in reason)
    return None if larger_limits is None else _built(where, sbml_document, parameters, larger_limits)


def _limits(count: Any, waiting: Any, rng: Any) -> tuple[EventLimits, list[str]]:
    """Read the limits of event counts and of waiting events and the seed, and collect the errors."""
    mistakes: list[str] = []
    if count is not None and not is_count(count, 1, MAX_OCCURRENCES):
        mistakes.append(f"count is {shorten_repr(count)}; give the largest number of events, a positive integer")
    if waiting is not None and not is_count(waiting, 1, MAX_PENDING_EVENTS):
        mistakes.append(
            f"waiting is {shorten_repr(waiting)}; give the largest number of events that wait, a positive integer"
        )
    if not is_count(rng, 0, _MAX_SEED):
        mistakes.append(f"rng is {shorten_repr(rng)}; give a seed, an integer that is not negative")
    arguments = {k: v for k, v in (("count", count), ("waiting", waiting)) if v is not None}
    return EventLimits(rng=rng, fixed=frozenset(arguments), **arguments) if not mistakes else EventLimits(), mistakes


def _without_values(values: SbmlValues, used_expressions: ca.SX, expressions: Mapping[str, ca.SX]) -> list[ca.SX]:
    """Remove constants without a value that need none: sizes of compartments, and constants without effect.

    Return their symbols.
    """
    unset_names = [n for n in values.parameters if n not in values.numbers and n not in values.parameter_constants]
    unset_names = [n for n in unset_names if not ca.depends_on(used_expressions, values.parameters[n])]
    other_expressions = ca.vertcat(*(e for n, e in expressions.items() if n not in unset_names))
    sizes = [n for n in unset_names if (q := values.contents.quantities.get(n)) and q.kind == "compartment"]
    unused = [n for n in unset_names if n not in sizes and not ca.depends_on(other_expressions, values.parameters[n])]
    if unused:
        few = join_limited((f"'{n}'" for n in unused), 60)
        warnings.warn(f"constants without a value, on which nothing depends, are left out: {few}", stacklevel=4)
    return [values.parameters.pop(n) for n in (*sizes, *unused)]


def _finite(expression: ca.SX) -> bool:
    return not expression.is_constant() or bool(np.isfinite(float(expression)))


def _started(values: SbmlValues, user_values: Mapping[str, Any]) -> ImportedStart:
    """Work out the initial values where some are given."""
    mistakes: list[str] = []
    read_values: dict[str, ca.SX] = {}
    quantities, roles = values.contents.quantities, values.roles
    names = dict.fromkeys((*quantities, *values.parameters))
    for name, value in read_mapping("values", user_values, mistakes).items():
        number = read_real(value)
        if name not in names:
            mistakes.append(f"'{name}' is not in the model: {suggest(name, names)}")
        elif name in quantities and roles[name] in (QuantityRole.ASSIGNED, QuantityRole.ALGEBRAIC):
            mistakes.append(f"'{name}' follows from {roles[name].value}; it has no value of its own")
        elif name in quantities and roles[name] is QuantityRole.CONSTANT and name not in values.parameters:
            mistakes.append(f"'{name}' is computed by the file; load with parameters=['{name}'] to give its value")
        elif isinstance(value, ca.SX) and value.numel() == 1:
            read_values[name] = value
        elif number is None or not np.isfinite(number):
            mistakes.append(f"'{name}' is {shorten_repr(value)}; give a finite number or a scalar SX expression")
        else:
            read_values[name] = ca.SX(number)
    state_values = {n: v for n, v in read_values.items() if n not in values.parameters}
    for name, source_names in values.computed_from.items():
        sources = sorted(source_names & state_values.keys())
        if sources:
            mistakes.append(
                f"'{name}' is computed from the initial value of '{sources[0]}'; "
                f"to change it, load with parameters=['{name}']"
            )
    raise_if_mistakes("Loaded.start", mistakes)
    n_mistakes = len(values.mistakes)
    start = values.start(state_values)
    initial = {values.states[n].name(): _to_number(start.state(n)) for n in values.states if start.is_given(n)}
    initial |= dict.fromkeys((s.name() for s in values.memories.values()), 0.0)
    initial |= {n: _to_number(start.at_start(f.value.symbol)) for n, f in values.followed.items()}
    initial |= {n: v for n in values.algebraic if (v := quantities[n].value) is not None and np.isfinite(v)}
    parameter_values = {n: _to_number(v) for n, v in read_values.items() if n in values.parameters}
    numbers = values.numbers | {n: v for n, v in parameter_values.items() if isinstance(v, float)}
    equilibrium = values.settle_fast_reactions(start, numbers) or values.settle_fast_reactions(
        values.start({}), numbers
    )
    initial |= {n: v for n, v in equilibrium.items() if n in values.algebraic}
    parameter_values |= {
        n: _to_number(start.read_file_value(n))
        for n in values.parameters
        if n not in parameter_values and _follows(values, n)
    }
    raise_if_mistakes("Loaded.start", list(dict.fromkeys(values.mistakes[n_mistakes:])))
    return ImportedStart(initial, parameter_values)


def _follows(values: SbmlValues, name: str) -> bool:
    """Check whether a kept parameter is computed by the file rather than given as a plain number."""
    return name in values.parameters and name in values.parameter_constants and not values.is_plain(name)


def _to_number(value: ca.SX) -> Any:
    return float(value) if value.is_constant() else value
