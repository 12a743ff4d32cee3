"""Compilation of priors on quantities into terms of the cost, with their names and validation.

A symbol in an expression means the quantity of its name.  One of a local parameter, or of a state whose initial value
is estimated, means the value in each experiment: then there is one prior per experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np
import scipy

from castfit._support.status import suggest
from castfit.densities.priors import (
    Belief,
    JointNormal,
    LaplacePrior,
    Normal,
    Penalty,
    PriorDistribution,
    Truncated,
    contradictions,
)
from castfit.experiment.estimated_inputs import AUTO
from castfit.experiment.inputs import Placeholder
from castfit.problem.compiled_experiments import Graph
from castfit.problem.prior_rows import ExpressionPrior, Joint, QuantityPrior, Smooth, Term
from castfit.problem.quantities import Quantity, SymbolMeanings, every_parameter, fixed_value, meanings

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.experiment.estimated_inputs import EstimatedInput
    from castfit.problem.parameters import Statement

_BEND = 30.0  # second derivative, in the size of the values and their span, that is expected before anything is known


def terms_of(said: Statement, quantities: Sequence[Quantity]) -> tuple[Term, ...]:
    """Work out penalties on estimated inputs, and priors on expressions and on several quantities.

    Those on one quantity are with the quantities already.
    """
    return tuple(_terms(said, quantities))


def _terms(said: Statement, quantities: Sequence[Quantity]) -> Iterable[Term]:
    yield from _smooth_terms(said, quantities)
    for entry in said.priors:
        if isinstance(entry, JointNormal):
            yield _joint(entry, quantities)
        elif isinstance(entry, Penalty):
            yield from _pulls(entry, quantities)
        elif isinstance(entry.what, ca.SX):
            yield from _of_expression(entry, entry.what, said, quantities)


def _smooth_terms(said: Statement, quantities: Sequence[Quantity]) -> tuple[Smooth, ...]:
    """Return the penalties on estimated inputs, each function once."""
    place = {(q.of, q.experiment): j for j, q in enumerate(quantities)}
    found: dict[tuple[Any, ...], Smooth] = {}
    several = len({q.experiment for q in quantities if q.experiment is not None}) > 1
    for e in said.experiments:
        for u in e.inputs.values():
            if not isinstance(u, Placeholder) or u.said.smoothness == 0.0 or not u.said.roughness.size:
                continue
            names, label = u.said.names(u.called), u.said.label(u.called)
            values = np.array([fixed_value(said.parameters[n], e.name) for n in names])
            owner = e.name if u.said.per_experiment else None
            if (label, owner) in found:
                continue
            term = _smooth_term(u.said, label, values, [place.get((n, owner), -1) for n in names], len(quantities))
            if term is not None:
                where = f" in {e.name}" if owner is not None and several else ""
                found[label, owner] = replace(term, what=f"the smoothness of {label}{where}")
    return tuple(found.values())


def _smooth_term(said: EstimatedInput, label: str, values: Array, at: Sequence[int], n_theta: int) -> Smooth | None:
    """Return the penalty on values at positions `at`, numbers where that is -1; None if all are."""
    free = np.array(at) >= 0
    if not free.any():
        return None
    z = np.log(values) if said.log else values
    size = 1.0 if said.log else float(np.abs(z).max()) or 1.0
    chosen = said.smoothness == AUTO
    weight = (_BEND * size) ** -2.0 if isinstance(said.smoothness, str) else said.smoothness
    k = int(free.sum())
    root, offset = said.roughness[:, free], said.roughness[:, ~free] @ z[~free]
    places = np.array(at, dtype=np.intp)[free]
    return Smooth("", places, np.full(k, said.log), np.zeros(k), root, offset, 0.0, n_theta, label, weight, chosen)


def _joint(entry: JointNormal, quantities: Sequence[Quantity]) -> Joint:
    names = [q.name for q in quantities]
    at = np.array([names.index(n) for n in entry.names], dtype=np.intp)
    log = np.asarray(entry.log, dtype=np.bool_)
    return Joint(entry.label, at, log, entry.mean, entry.root, entry.offset, entry.constant, len(names))


def _pulls(entry: Penalty, quantities: Sequence[Quantity]) -> Iterable[Term]:
    """Return one prior per quantity, or on how the values of a local parameter differ."""
    n, deviation = len(quantities), entry.weight**-0.5
    for name in entry.names:
        meant = _meant(name, quantities)
        if entry.towards == "equal" and entry.absolute:
            yield from _differences(entry, meant, quantities)
            continue
        if entry.towards == "equal":
            k = len(meant)
            root = scipy.linalg.helmert(k) / deviation  # root^T root = (1 - ones / k) weight, in k - 1 rows
            log = np.full(k, entry.on == "log", dtype=np.bool_)
            at = np.array(meant, dtype=np.intp)
            yield Joint(entry.label, at, log, np.zeros(k), root, np.zeros(k - 1), 0.0, n)
            continue
        for j in meant:
            centre = quantities[j].guess if isinstance(entry.towards, str) else entry.towards[name]
            if entry.on == "log":
                centre = float(np.log(centre))
            prior: PriorDistribution = Normal(centre, deviation, on=entry.on)
            if entry.absolute:
                prior = LaplacePrior(centre, 1.0 / entry.weight, on=entry.on)
            yield QuantityPrior(quantities[j].name, prior, j, n)


def _differences(entry: Penalty, meant: Sequence[int], quantities: Sequence[Quantity]) -> Iterable[ExpressionPrior]:
    """Return a Laplace prior on the difference, or the ratio, of each value of a local parameter to the first one."""
    n = len(quantities)
    for j in meant[1:]:
        first, other = (quantities[i].name for i in (meant[0], j))
        a, b = ca.SX.sym(first), ca.SX.sym(other)
        graph = Graph.of([b / a if entry.on == "log" else b - a], {})
        what = f"{other} {'/' if entry.on == 'log' else '-'} {first}"
        prior = LaplacePrior(0.0, 1.0 / entry.weight, on=entry.on)
        yield ExpressionPrior(what, prior, graph.part([0], [what], {first: meant[0], other: j}, {}, n))


def _meant(name: str, quantities: Sequence[Quantity]) -> list[int]:
    """Return the positions of the quantity of a name, or of all values of a local parameter or initial state."""
    exactly = [j for j, q in enumerate(quantities) if q.name == name]
    return exactly or [j for j, q in enumerate(quantities) if q.of == name and q.experiment is not None]


def _readings(names: Sequence[str], said: Statement, quantities: Sequence[Quantity]) -> list[SymbolMeanings]:
    def means(name: str, quantity: Quantity, experiment: str) -> bool:
        return quantity.experiment == experiment and quantity.of == name

    return meanings(names, [e.name for e in said.experiments], said.parameters, quantities, means)


def _of_expression(
    entry: Belief, expression: ca.SX, said: Statement, quantities: Sequence[Quantity]
) -> Iterable[ExpressionPrior]:
    graph = Graph.of([expression], {})
    for reading in _readings(graph.names, said, quantities):
        where = f" in {reading.experiment}" if reading.experiment and len(said.experiments) > 1 else ""
        what = f"{entry.label}{where}"
        yield ExpressionPrior(
            what, entry.prior, graph.part([0], [what], reading.entry, reading.number, len(quantities))
        )


def entry_mistakes(said: Statement, quantities: Sequence[Quantity]) -> list[str]:
    """Find mistakes in priors on expressions, on several quantities, and by name."""
    mistakes: list[str] = []
    names = [q.name for q in quantities]
    known = tuple(dict.fromkeys((*names, *(q.of for q in quantities))))
    for entry in said.priors:
        if isinstance(entry, Belief):
            mistakes += _belief_mistakes(entry, said, quantities)
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
            mistakes += _penalty_mistakes(entry, quantities, known)
    return mistakes


def _belief_mistakes(entry: Belief, said: Statement, quantities: Sequence[Quantity]) -> list[str]:
    known = tuple(dict.fromkeys((*(q.name for q in quantities), *(q.of for q in quantities))))
    if isinstance(entry.what, str):
        meant = [quantities[j] for j in _meant(entry.what, quantities)]
        if not meant:
            return [f"priors names {entry.label}, which is not estimated: {suggest(entry.what, known)}"]
        if any(q.prior is not entry.prior for q in meant):
            return [f"{entry.label} has two priors; leave one of them out"]
        return [m for q in meant for m in contradictions(f"'{q.name}'", q.guess, q.lower, q.upper, entry.prior)]
    symbols = list(dict.fromkeys(s.name() for s in ca.symvar(entry.what)))
    fixed = [n for n in every_parameter(said.model, said.parameters) if n in said.parameters]
    strange = [n for n in symbols if n not in known and n not in fixed]
    if strange:
        where = f"the prior on {entry.label}"
        return [f"{where} contains '{n}', which is not estimated: {suggest(n, known)}" for n in strange]
    if entry.prior.rows == 0 or isinstance(entry.prior, Truncated):
        remedy = "give Constraint(expression, lower=, upper=), or bounds of the quantities"
        return [f"{entry.prior!r} on {entry.label} means bounds of an expression; {remedy}"]
    if not any(n in known for n in symbols):
        return [f"the prior on {entry.label} contains nothing that is estimated; leave it out"]
    if not _readings(symbols, said, quantities):
        return [f"no experiment has all of {', '.join(symbols)}, which the prior on {entry.label} contains"]
    return []


def _penalty_mistakes(entry: Penalty, quantities: Sequence[Quantity], known: Sequence[str]) -> list[str]:
    mistakes: list[str] = []
    for name in entry.names:
        meant = [quantities[j] for j in _meant(name, quantities)]
        if not meant:
            mistakes.append(f"{entry.label} names '{name}', which is not estimated: {suggest(name, known)}")
        elif entry.towards == "equal" and len(meant) < 2:
            remedy = "name a parameter that is local to several experiments, or give towards= a number"
            mistakes.append(f"{entry.label}: '{name}' has one value only, which is equal to itself; {remedy}")
        elif entry.on == "log" and any(q.guess <= 0.0 for q in meant):
            mistakes.append(f"{entry.label} is on the logarithm of '{name}', whose guess is not positive")
    return mistakes
