"""Decomposition: blocks of equations that can be estimated separately, and each block as a problem.

A graph has the model's equations and the estimated parameters as its nodes, with an edge if a parameter appears in an
equation or in its initial value.  Within an equation the *measured* states of other equations are known functions of
time, interpolated through their data.  Thus the connected components of this graph, the blocks, can be estimated one
by one, each from the data of its own states and independently of errors in the others (Voit and Almeida 2004,
Bioinformatics 20, 1670).  A state that is not measured directly in every experiment joins the equations that contain
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array
from castfit._support.status import InputError
from castfit.experiment.experiment import Experiment
from castfit.experiment.inputs import Input
from castfit.model.model import Model
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Problem
from castfit.problem.quantities import every_parameter, fixed_value

_REMEDY = "start from 'matching' or from values"
_MIN_MEASURED_TIMES = 3  # Smallest number of measured times from which a state is interpolated.


@dataclass(frozen=True)
class EquationBlock:
    """Equations that must be estimated together.

    states : states of the equations
    parameters : parameters in them, or in an experiment's own values of these, including fixed ones
    signals : measured states of other blocks that appear in them
    """

    states: tuple[str, ...]
    parameters: tuple[str, ...]
    signals: tuple[str, ...]


def find_blocks(problem: CompiledProblem) -> tuple[EquationBlock, ...]:
    """Return the blocks of a problem, in the order of their first states."""
    return _components(problem, measured_directly(problem))


def decomposition_mistakes(problem: CompiledProblem) -> list[str]:
    """List the reasons why a problem cannot be decomposed; empty if it can."""
    model, measured = problem.model, measured_directly(problem)
    if model.algebraic_states:
        names = ", ".join(model.algebraic_states)
        return [f"the problem cannot be decomposed: it has algebraic states ({names}); {_REMEDY}"]
    eventful = [c.name for c in problem.conditions if c.schedule.instants]
    if eventful:
        reason = f"events, or switches of the model, happen in '{eventful[0]}'"
        return [f"the problem cannot be decomposed: {reason}, which a block of equations does not include; {_REMEDY}"]
    if len(_components(problem, measured)) > 1:
        return []
    missing_states = [name for name in model.states if name not in measured]
    if missing_states and len(_components(problem, frozenset(model.states))) > 1:
        names = ", ".join(f"'{name}'" for name in missing_states)
        states, couple = ("state", "couples") if len(missing_states) == 1 else ("states", "couple")
        return [
            f"the problem cannot be decomposed: the {states} {names}, which {couple} its equations, must be measured "
            f"directly in every experiment at at least {_MIN_MEASURED_TIMES} times; {_REMEDY}"
        ]
    return [f"the problem cannot be decomposed: shared parameters connect all its equations; {_REMEDY}"]


def measured_directly(problem: CompiledProblem) -> frozenset[str]:
    """Return the states that every experiment measures directly, often enough for interpolation."""
    return frozenset(
        name
        for i, name in enumerate(problem.model.states)
        if all(_curve(problem, e, i)[0].size >= _MIN_MEASURED_TIMES for e in problem.experiments)
    )


def _curve(problem: CompiledProblem, experiment: Experiment, i: int) -> tuple[Array, Array]:
    """Return the times (n,) and values (n,) at which state i was measured directly, replicates averaged."""
    symbol = problem.model.system.x[i]
    output_names = [name for name in experiment.measured if ca.is_equal(problem.model.outputs[name], symbol)]
    data = [experiment.data[name] for name in output_names]
    t = np.concatenate([np.empty(0), *(np.repeat(t, y.shape[1]) for t, y in data)])
    y = np.concatenate([np.empty(0), *(y.ravel() for _, y in data)])
    is_measured = np.isfinite(y)
    times, positions = np.unique(t[is_measured], return_inverse=True)
    return times, np.bincount(positions, y[is_measured]) / np.maximum(np.bincount(positions), 1)


def _components(problem: CompiledProblem, measured: frozenset[str]) -> tuple[EquationBlock, ...]:
    """Find the connected components of equations and of the names that couple them."""
    model, system = problem.model, problem.model.system
    contents = [_names(equation) for equation in _split(system.ode)]
    for i, name in enumerate(model.states):
        for experiment in problem.experiments:
            value = problem.initial_values(experiment)[name]
            contents[i] = contents[i] | (_names(value) if isinstance(value, ca.SX) else set())
            contents[i] = _with_overrides(contents[i], experiment)
    hidden = [name for name in model.states if name not in measured]
    free = {q.symbol_name for q in problem.quantities if q.kind == "parameter"}
    group = list(range(len(contents)))
    for name in (*free, *hidden):
        equation_indices = [i for i, content in enumerate(contents) if name in content or name == model.states[i]]
        groups = {group[i] for i in equation_indices}
        group = [min(groups) if g in groups else g for g in group]
    blocks: list[EquationBlock] = []
    for g in dict.fromkeys(group):
        members = [i for i in range(len(contents)) if group[i] == g]
        block_names = set[str]().union(*(contents[i] for i in members))
        block_states = tuple(model.states[i] for i in members)
        blocks.append(
            EquationBlock(
                block_states,
                tuple(name for name in every_parameter(model, problem.parameters) if name in block_names),
                tuple(name for name in model.states if name in block_names and name not in block_states),
            )
        )
    return tuple(blocks)


def _with_overrides(names: set[str], experiment: Experiment) -> set[str]:
    """Add the names in an experiment's own expressions of parameters, recursively."""
    all_names = set(names)
    while True:
        expressions = [experiment.parameters[n] for n in all_names if isinstance(experiment.parameters.get(n), ca.SX)]
        extended_names = all_names.union(*(_names(value) for value in expressions))
        if extended_names == all_names:
            return all_names
        all_names = extended_names


@dataclass(frozen=True)
class BlockProblem:
    """Block as a separate estimation problem; its n quantities are at `positions` in theta of the full problem."""

    problem: CompiledProblem
    positions: NDArray[np.intp]


def pose(problem: CompiledProblem, block: EquationBlock) -> BlockProblem | None:
    """Return a block as a problem; None if its data cannot determine it, or there is nothing to estimate.

    Only the direct measurements of the block's states are used; constraints apply only to the full problem.
    """
    experiments = [e for e in problem.experiments if _direct(problem, block, e)]
    parameters = {n: _among(problem.parameters[n], experiments) for n in block.parameters if n in problem.parameters}
    if not experiments:
        return None
    try:
        block_problem = Problem(
            _model(problem.model, block),
            [_experiment(problem, block, e) for e in experiments],
            parameters=parameters,
            state_bounds={name: limits for name, limits in problem.state_bounds.items() if name in block.states},
        )
    except InputError:  # the full problem is valid, so the block only lacks data
        return None
    # The full problem may be a modified one, with other bounds and scales, and with fewer quantities.
    index_by_quantity = {(q.kind, q.symbol_name, q.experiment): j for j, q in enumerate(problem.quantities)}
    index_by_name = {
        q.name: index_by_quantity.get((q.kind, q.symbol_name, q.experiment)) for q in block_problem.quantities
    }
    fixed_values = {
        q.name: _fixed_value(problem, q.kind, q.symbol_name, q.experiment)
        for q in block_problem.quantities
        if index_by_name[q.name] is None
    }
    positions = np.array([j for j in index_by_name.values() if j is not None], dtype=np.intp)
    if not positions.size:
        return None
    compiled_problem = block_problem.posed.fix(fixed_values) if fixed_values else block_problem.posed
    index_name_pairs: zip[tuple[int, str]] = zip(positions.tolist(), compiled_problem.names, strict=True)
    quantities = [replace(problem.quantities[j], name=n) for j, n in index_name_pairs]
    return BlockProblem(compiled_problem.with_quantities(quantities), positions)


def _fixed_value(problem: CompiledProblem, kind: str, name: str, experiment: str | None) -> float:
    """Return the value of a parameter or initial state that the full problem no longer estimates."""
    for condition in problem.conditions:
        if experiment in (None, condition.name):
            natural = condition.link.natural(problem.guess[condition.theta])
            names, values = (
                (problem.model.parameters, natural.p) if kind == "parameter" else (problem.model.states, natural.a)
            )
            if name in names:
                return float(values[names.index(name)])
    return fixed_value(problem.parameters[name], experiment or "")


def _direct(problem: CompiledProblem, block: EquationBlock, experiment: Experiment) -> dict[str, str]:
    """Return the outputs of an experiment that equal a state of the block, {output: state}."""
    model = problem.model
    symbols = {name: model.outputs[name] for name in block.states}
    return {
        output: name
        for output in experiment.measured
        for name, symbol in symbols.items()
        if ca.is_equal(model.outputs[output], symbol)
    }


def _model(model: Model, block: EquationBlock) -> Model:
    """Extract the block's equations from the model; the measured states in them become inputs."""
    system = model.system
    symbol = {s.name(): s for vector in system.arguments for s in _split(vector)}
    parameter_names = [name for name in block.parameters if name in model.parameters]
    rates = dict(zip(model.states, _split(system.ode), strict=True))
    used_names = set[str]().union(*(_names(rates[name]) for name in block.states))
    return Model(
        {symbol[name]: rates[name] for name in block.states},
        parameters=[symbol[name] for name in parameter_names],
        inputs=[symbol[name] for name in (*(n for n in model.inputs if n in used_names), *block.signals)],
        time=system.t,
    )


def _experiment(problem: CompiledProblem, block: EquationBlock, experiment: Experiment) -> Experiment:
    """Keep the block's direct measurements, and interpolate the other states through their data."""
    model, initial = problem.model, problem.initial_values(experiment)
    data: dict[str, Any] = {}
    sigma: dict[str, Any] = {}
    for output, state in _direct(problem, block, experiment).items():
        if state not in data or output == state:
            data[state] = experiment.data[output]
            # An unknown sigma is only a relative weight.
            sigma[state] = 1.0 if experiment.sigma is None else experiment.sigma.get(output, 1.0)
    signals = {name: _signal(problem, experiment, name) for name in block.signals}
    inputs = {name: signal for name, signal in experiment.inputs.items() if name in model.inputs}
    block_model = _model(model, block)
    return Experiment(
        data,
        sigma=sigma,
        initial={name: initial[name] for name in block.states},
        parameters={name: value for name, value in experiment.parameters.items() if name in block.parameters},
        inputs={name: {**inputs, **signals}[name] for name in block_model.inputs},
        start=experiment.start,
        name=experiment.name,
    )


def _signal(problem: CompiledProblem, experiment: Experiment, name: str) -> Input:
    """Interpolate a measured state, constant beyond the data; a known initial value counts as a datum."""
    t, y = _curve(problem, experiment, problem.model.states.index(name))
    initial_value = problem.initial_values(experiment)[name]
    is_later = t > experiment.start + 1e-9 * (experiment.end - experiment.start)
    first_value = float(initial_value) if isinstance(initial_value, (int, float)) else float(y[0])
    times, values = np.append(experiment.start, t[is_later]), np.append(first_value, y[is_later])
    if times[-1] < experiment.end:
        times, values = np.append(times, experiment.end), np.append(values, values[-1])
    return Input.pchip(times, values)


def _among(parameter: Parameter, experiments: Sequence[Experiment]) -> Parameter:
    """Restrict a parameter with one value per experiment to some experiments."""
    if not isinstance(parameter.value, Mapping):
        return parameter
    return replace(parameter, value={e.name: parameter.value[e.name] for e in experiments})


def _names(expression: ca.SX) -> set[str]:
    return {symbol.name() for symbol in ca.symvar(expression)}


def _split(vector: ca.SX) -> list[ca.SX]:
    return list(ca.vertsplit(vector)) if vector.numel() else []
