"""Experiments, worked out: data on points, inputs in order, and the link from theta to parameters and initial state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.experiment import Experiment, Free, Points
from castfit.inputs import Input
from castfit.link import Expressions, Link
from castfit.observed import Observations, Observed
from castfit.quantities import Quantity, fixed_value
from castfit.statement import Statement, initial_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Condition:
    """One experiment, compiled: what transcriptions need of it.

    Attributes
    ----------
    name : str
    start : float
    points : Points
        Measurements with one column for each of ``Posed.outputs``.
    observed : tuple of Observed
        Their noise; None where an output is not measured in this experiment.
    inputs : tuple of Input
        In the model's order.
    theta : (n_q,) int array
        Positions in theta of what this experiment depends on.
    link : Link
        How p and a follow from q = theta[self.theta].
    z_guess : (n_z,) array
        Where the search for consistent algebraic states begins.
    """

    name: str
    start: float
    points: Points
    observed: tuple[Observed | None, ...]
    inputs: tuple[Input, ...]
    theta: NDArray[np.intp]
    link: Link
    z_guess: Array

    @property
    def end(self) -> float:
        """The last measured time."""
        return float(self.points.times[-1])

    @cached_property
    def breakpoints(self) -> Array:
        """Times strictly inside the horizon at which an input or one of its derivatives may jump."""
        found = [u.breakpoints for u in self.inputs]
        every = np.unique(np.concatenate(found)) if found else np.empty(0)
        return every[(every > self.start) & (every < self.end)]


def conditions_of(
    observations: Observations, outputs: Sequence[str], quantities: Sequence[Quantity]
) -> tuple[Condition, ...]:
    """Work out all experiments; expressions that several of them share become one function."""
    graphs, said = _Graphs(), observations.said
    return tuple(
        _condition(said, e, tuple(of.get(n) for n in outputs), outputs, quantities, graphs)
        for e, of in zip(said.experiments, observations.observed, strict=True)
    )


def resolved(expression: ca.SX, overrides: Mapping[str, Any]) -> ca.SX:
    """Put an experiment's own expressions in the place of the parameters that they override.

    What remains are the names of quantities and of parameters that are numbers.

    Raises
    ------
    RecursionError
        If a parameter depends on itself.
    """
    found = [s for s in ca.symvar(expression) if isinstance(overrides.get(s.name()), ca.SX)]
    if not found:
        return expression
    inner = [resolved(overrides[s.name()], overrides) for s in found]
    return ca.substitute([expression], [ca.vertcat(*found)], [ca.vertcat(*inner)])[0]


def _condition(
    said: Statement,
    experiment: Experiment,
    observed: tuple[Observed | None, ...],
    outputs: Sequence[str],
    quantities: Sequence[Quantity],
    graphs: _Graphs,
) -> Condition:
    model, initial = said.model, initial_values(said.model, experiment)
    named: list[tuple[str, Any]] = [(n, experiment.parameters.get(n)) for n in model.parameters]
    named += [(n, initial[n]) for n in model.states]
    what = [*(f"parameter '{n}'" for n in model.parameters), *(f"the initial value of '{n}'" for n in model.states)]
    computed = [i for i, (_, value) in enumerate(named) if isinstance(value, ca.SX)]
    graph = graphs.get([named[i][1] for i in computed], experiment.parameters) if computed else None

    row_of = {("parameter", n): i for i, n in enumerate(model.parameters)}
    row_of |= {("initial state", n): len(model.parameters) + i for i, n in enumerate(model.states)}
    seen = {*model.parameters, *(graph.names if graph is not None else ())} - {*experiment.parameters}
    own = [
        j
        for j, q in enumerate(quantities)
        if q.experiment in (None, experiment.name) and (q.kind == "initial state" or q.of in seen)
    ]
    of = np.array([row_of.get((quantities[j].kind, quantities[j].of), -1) for j in own], dtype=np.intp)

    entry = {quantities[j].of: i for i, j in enumerate(own)}  # initial states too: delay lines may begin at them
    number = {n: float(v) for n, v in experiment.parameters.items() if not isinstance(v, ca.SX)}
    number |= {n: fixed_value(said.parameters[n], experiment.name) for n in seen if n not in entry}
    base = np.zeros(len(named))
    for i, (name, value) in enumerate(named):
        if i < len(model.parameters):
            base[i] = number.get(name, 0.0)
        elif not isinstance(value, (ca.SX, Free)):
            base[i] = float(value)
    parts = () if graph is None else (graph.part(computed, what, entry, number, len(own)),)
    return Condition(
        experiment.name,
        experiment.start,
        experiment.points(outputs),
        observed,
        tuple(experiment.inputs[n] for n in model.inputs),
        np.array(own, dtype=np.intp),
        Link(
            len(model.parameters),
            base,
            of,
            np.array([quantities[j].scale == "log" for j in own], dtype=bool),
            parts,
            model.flow_parameters,
        ),
        np.array([float(initial.get(n, 1.0)) for n in model.algebraic_states]),
    )


@dataclass(frozen=True, eq=False)
class Graph:
    """Expressions of an experiment as functions of the parameters in them."""

    texts: tuple[str, ...]
    names: tuple[str, ...]
    first: ca.Function
    second: ca.Function
    support: NDArray[np.bool_]

    @classmethod
    def of(cls, expressions: Sequence[ca.SX], overrides: Mapping[str, Any]) -> Graph:
        """Build the functions of expressions in which an experiment's own ones stand for some parameters."""
        texts = tuple(_shortened(str(e)) for e in expressions)
        column = ca.densify(ca.vertcat(*(resolved(e, overrides) for e in expressions)))
        found = ca.symvar(column)
        names = tuple(dict.fromkeys(s.name() for s in found))
        x = ca.SX.sym("x", len(names))
        if found:  # two experiments may have made a symbol of the same name each
            same = ca.vertcat(*(x[names.index(s.name())] for s in found))
            (column,) = ca.substitute([column], [ca.vertcat(*found)], [same])
        weight = ca.SX.sym("weight", len(texts))
        hessian, gradient = ca.hessian(ca.dot(weight, column), x)
        jacobian = ca.jacobian(column, x)
        support = np.zeros((len(texts), len(names)), dtype=np.bool_)
        rows, columns = jacobian.sparsity().get_triplet()
        support[rows, columns] = True
        first = ca.Function("link", [x], [column, ca.densify(jacobian)])
        second = ca.Function("link_curvature", [x, weight], [ca.densify(gradient.T), ca.densify(hessian)])
        return cls(texts, names, first, second, support)

    def part(
        self, rows: Sequence[int], what: Sequence[str], entry: Mapping[str, int], number: Mapping[str, float], n_q: int
    ) -> Expressions:
        """Return the functions as a part of a link: arguments are entries of q, or numbers."""
        return Expressions(
            np.array(rows, dtype=np.intp),
            tuple(f"{what[i]} = {text}" for i, text in zip(rows, self.texts, strict=True)),
            self.names,
            np.array([entry.get(n, -1) for n in self.names], dtype=np.intp),
            np.array([number.get(n, 0.0) for n in self.names]),
            self.first,
            self.second,
            self.support,
            n_q,
        )


@dataclass(frozen=True)
class _Graphs:
    """The graphs that were made, by the expressions in them: many experiments may share one."""

    made: dict[tuple[int, ...], Graph] = field(default_factory=dict[tuple[int, ...], Graph])

    def get(self, expressions: Sequence[ca.SX], overrides: Mapping[str, Any]) -> Graph:
        own = {n: v for n, v in overrides.items() if isinstance(v, ca.SX)}
        key = tuple(hash(e) for e in (*expressions, *own.values()))  # of the graph's node, not of its form
        if key not in self.made:
            self.made[key] = Graph.of(expressions, own)
        return self.made[key]


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
