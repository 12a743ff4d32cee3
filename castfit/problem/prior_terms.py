"""Compilation of priors on quantities into terms of the cost, with their names and validation.

A symbol in an expression means the quantity of its name.  One of a local parameter, or of a state whose initial value
is estimated, means the value in each experiment: then there is one prior per experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import casadi as ca
import numpy as np
import scipy

from castfit._support.arrays import Array
from castfit._support.status import suggest
from castfit.densities.priors import (
    JointNormal,
    LaplacePrior,
    Normal,
    Penalty,
    PriorDistribution,
    PriorTerm,
    Truncated,
    prior_bound_conflicts,
)
from castfit.experiment.estimated_inputs import AUTO, EstimatedInput
from castfit.experiment.inputs import Placeholder
from castfit.problem.compiled_experiments import Graph
from castfit.problem.parameters import ProblemStatement
from castfit.problem.prior_rows import ExpressionPrior, JointPriorRows, QuantityPrior, SmoothnessPenalty, Term
from castfit.problem.quantities import Quantity, SymbolMeanings, every_parameter, fixed_value, meanings

_EXPECTED_CURVATURE = 30.0  # expected second derivative, in units of the size of the values per squared span


def compile_priors(statement: ProblemStatement, quantities: Sequence[Quantity]) -> tuple[Term, ...]:
    """Work out penalties on estimated inputs, and priors on expressions and on several quantities.

    Those on one quantity are with the quantities already.
    """
    return tuple(_terms(statement, quantities))


def _terms(statement: ProblemStatement, quantities: Sequence[Quantity]) -> Iterable[Term]:
    yield from _smoothness_penalties(statement, quantities)
    for entry in statement.priors:
        if isinstance(entry, JointNormal):
            yield _joint_prior(entry, quantities)
        elif isinstance(entry, Penalty):
            yield from _penalty_terms(entry, quantities)
        elif isinstance(entry.target, ca.SX):
            yield from _expression_prior(entry, entry.target, statement, quantities)


def _smoothness_penalties(statement: ProblemStatement, quantities: Sequence[Quantity]) -> tuple[SmoothnessPenalty, ...]:
    """Return the penalties on estimated inputs, each function once."""
    index_by_quantity = {(q.symbol_name, q.experiment): j for j, q in enumerate(quantities)}
    penalties: dict[tuple[Any, ...], SmoothnessPenalty] = {}
    has_many_experiments = len({q.experiment for q in quantities if q.experiment is not None}) > 1
    for e in statement.experiments:
        for u in e.inputs.values():
            if not isinstance(u, Placeholder) or u.spec.smoothness == 0.0 or not u.spec.roughness.size:
                continue
            names, label = u.spec.names(u.input_name), u.spec.label(u.input_name)
            values = np.array([fixed_value(statement.parameters[n], e.name) for n in names])
            owner = e.name if u.spec.per_experiment else None
            if (label, owner) in penalties:
                continue
            term = _smoothness_penalty(
                u.spec, label, values, [index_by_quantity.get((n, owner), -1) for n in names], len(quantities)
            )
            if term is not None:
                where = f" in {e.name}" if owner is not None and has_many_experiments else ""
                penalties[label, owner] = replace(term, description=f"the smoothness of {label}{where}")
    return tuple(penalties.values())


def _smoothness_penalty(
    spec: EstimatedInput, label: str, values: Array, positions: Sequence[int], n_theta: int
) -> SmoothnessPenalty | None:
    """Return the penalty on values at positions `positions`, numbers where that is -1; None if all are."""
    is_free = np.array(positions) >= 0
    if not is_free.any():
        return None
    z = np.log(values) if spec.log else values
    size = 1.0 if spec.log else float(np.abs(z).max()) or 1.0
    is_chosen = spec.smoothness == AUTO
    weight = (_EXPECTED_CURVATURE * size) ** -2.0 if isinstance(spec.smoothness, str) else spec.smoothness
    k = int(is_free.sum())
    root, offset = spec.roughness[:, is_free], spec.roughness[:, ~is_free] @ z[~is_free]
    free_positions = np.array(positions, dtype=np.intp)[is_free]
    return SmoothnessPenalty(
        "", free_positions, np.full(k, spec.log), np.zeros(k), root, offset, 0.0, n_theta, label, weight, is_chosen
    )


def _joint_prior(entry: JointNormal, quantities: Sequence[Quantity]) -> JointPriorRows:
    names = [q.name for q in quantities]
    positions = np.array([names.index(n) for n in entry.names], dtype=np.intp)
    log = np.asarray(entry.log, dtype=np.bool_)
    return JointPriorRows(entry.label, positions, log, entry.mean, entry.root, entry.offset, entry.constant, len(names))


def _penalty_terms(entry: Penalty, quantities: Sequence[Quantity]) -> Iterable[Term]:
    """Return one prior per quantity, or on how the values of a local parameter differ."""
    n, deviation = len(quantities), entry.weight**-0.5
    for name in entry.names:
        indices = _find_meanings(name, quantities)
        if entry.towards == "equal" and entry.absolute:
            yield from _differences(entry, indices, quantities)
            continue
        if entry.towards == "equal":
            k = len(indices)
            root = scipy.linalg.helmert(k) / deviation  # root^T root = (1 - ones / k) weight, in k - 1 rows
            log = np.full(k, entry.on == "log", dtype=np.bool_)
            positions = np.array(indices, dtype=np.intp)
            yield JointPriorRows(entry.label, positions, log, np.zeros(k), root, np.zeros(k - 1), 0.0, n)
            continue
        for j in indices:
            center = quantities[j].guess if isinstance(entry.towards, str) else entry.towards[name]
            if entry.on == "log":
                center = float(np.log(center))
            prior: PriorDistribution = Normal(center, deviation, on=entry.on)
            if entry.absolute:
                prior = LaplacePrior(center, 1.0 / entry.weight, on=entry.on)
            yield QuantityPrior(quantities[j].name, prior, j, n)


def _differences(entry: Penalty, indices: Sequence[int], quantities: Sequence[Quantity]) -> Iterable[ExpressionPrior]:
    """Return a Laplace prior on the difference, or the ratio, of each value of a local parameter to the first one."""
    n = len(quantities)
    for j in indices[1:]:
        first_name, other_name = (quantities[i].name for i in (indices[0], j))
        a, b = ca.SX.sym(first_name), ca.SX.sym(other_name)
        graph = Graph.from_expressions([b / a if entry.on == "log" else b - a], {})
        label = f"{other_name} {'/' if entry.on == 'log' else '-'} {first_name}"
        prior = LaplacePrior(0.0, 1.0 / entry.weight, on=entry.on)
        yield ExpressionPrior(label, prior, graph.part([0], [label], {first_name: indices[0], other_name: j}, {}, n))


def _find_meanings(name: str, quantities: Sequence[Quantity]) -> list[int]:
    """Return the positions of the quantity of a name, or of all values of a local parameter or initial state."""
    exactly = [j for j, q in enumerate(quantities) if q.name == name]
    return exactly or [j for j, q in enumerate(quantities) if q.symbol_name == name and q.experiment is not None]


def _readings(
    names: Sequence[str], statement: ProblemStatement, quantities: Sequence[Quantity]
) -> list[SymbolMeanings]:
    def means(name: str, quantity: Quantity, experiment: str) -> bool:
        return quantity.experiment == experiment and quantity.symbol_name == name

    return meanings(names, [e.name for e in statement.experiments], statement.parameters, quantities, means)


def _expression_prior(
    entry: PriorTerm, expression: ca.SX, statement: ProblemStatement, quantities: Sequence[Quantity]
) -> Iterable[ExpressionPrior]:
    graph = Graph.from_expressions([expression], {})
    for reading in _readings(graph.names, statement, quantities):
        where = f" in {reading.experiment}" if reading.experiment and len(statement.experiments) > 1 else ""
        label = f"{entry.label}{where}"
        yield ExpressionPrior(
            label, entry.prior, graph.part([0], [label], reading.entry, reading.number, len(quantities))
        )


def entry_mistakes(statement: ProblemStatement, quantities: Sequence[Quantity]) -> list[str]:
    """Find mistakes in priors on expressions, on several quantities, and by name."""
    mistakes: list[str] = []
    names = [q.name for q in quantities]
    known_names = tuple(dict.fromkeys((*names, *(q.symbol_name for q in quantities))))
    for entry in statement.priors:
        if isinstance(entry, PriorTerm):
            mistakes += _belief_mistakes(entry, statement, quantities)
        elif isinstance(entry, JointNormal):
            mistakes += [
                f"{entry.label} names '{n}', which is not estimated: {suggest(n, names)}; choose by names="
                for n in entry.names
                if n not in names
            ]
            negative = {q.name for q in quantities if q.guess <= 0.0}
            mistakes += [
                f"{entry.label} is on the logarithm of '{n}', whose guess is not positive; change the guess"
                for n, log in zip(entry.names, entry.log, strict=True)
                if log and n in negative
            ]
        else:
            mistakes += _penalty_mistakes(entry, quantities, known_names)
    return mistakes


def _belief_mistakes(entry: PriorTerm, statement: ProblemStatement, quantities: Sequence[Quantity]) -> list[str]:
    known_names = tuple(dict.fromkeys((*(q.name for q in quantities), *(q.symbol_name for q in quantities))))
    if isinstance(entry.target, str):
        matching_quantities = [quantities[j] for j in _find_meanings(entry.target, quantities)]
        if not matching_quantities:
            return [f"priors names {entry.label}, which is not estimated: {suggest(entry.target, known_names)}"]
        if any(q.prior is not entry.prior for q in matching_quantities):
            return [f"{entry.label} has two priors; leave one of them out"]
        return [
            m
            for q in matching_quantities
            for m in prior_bound_conflicts(f"'{q.name}'", q.guess, q.lower, q.upper, entry.prior)
        ]
    symbols = list(dict.fromkeys(s.name() for s in ca.symvar(entry.target)))
    fixed = [n for n in every_parameter(statement.model, statement.parameters) if n in statement.parameters]
    unknown_symbols = [n for n in symbols if n not in known_names and n not in fixed]
    if unknown_symbols:
        where = f"the prior on {entry.label}"
        return [f"{where} contains '{n}', which is not estimated: {suggest(n, known_names)}" for n in unknown_symbols]
    if entry.prior.rows == 0 or isinstance(entry.prior, Truncated):
        remedy = "give Constraint(expression, lower=, upper=), or bounds of the quantities"
        return [f"{entry.prior!r} on {entry.label} means bounds of an expression; {remedy}"]
    if not any(n in known_names for n in symbols):
        return [f"the prior on {entry.label} contains nothing that is estimated; leave it out"]
    if not _readings(symbols, statement, quantities):
        return [f"no experiment has all of {', '.join(symbols)}, which the prior on {entry.label} contains"]
    return []


def _penalty_mistakes(entry: Penalty, quantities: Sequence[Quantity], known_names: Sequence[str]) -> list[str]:
    mistakes: list[str] = []
    for name in entry.names:
        matching_quantities = [quantities[j] for j in _find_meanings(name, quantities)]
        if not matching_quantities:
            mistakes.append(f"{entry.label} names '{name}', which is not estimated: {suggest(name, known_names)}")
        elif entry.towards == "equal" and len(matching_quantities) < 2:
            remedy = "name a parameter that is local to several experiments, or give towards= a number"
            mistakes.append(f"{entry.label}: '{name}' has one value only, which is equal to itself; {remedy}")
        elif entry.on == "log" and any(q.guess <= 0.0 for q in matching_quantities):
            mistakes.append(f"{entry.label} is on the logarithm of '{name}', whose guess is not positive")
    return mistakes
