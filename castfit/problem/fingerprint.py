"""Fingerprints: what makes a problem itself, in a form that is the same in every process and small enough to keep.

Checkpoints and saved results hold one, so that what was computed for one problem is not taken for another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import PerObjectCache
from castfit.densities.noise.correlation import Correlation
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.constraints import Constraint
from castfit.problem.map_initial_states import ConsistentInitialRows, SteadyStateRows
from castfit.problem.parameter_map import MappedExpressions, ParameterLink
from castfit.problem.problem import Posable

# What was found of each posed problem; a thousand fits may ask.
_QUESTIONS: PerObjectCache[CompiledProblem, dict[str, str]] = PerObjectCache()


def question(problem: Posable) -> dict[str, str]:
    """Return hashes of model, data, conditions of the experiments and constraints; the guess is not included.

    Keys are words, such as ``"data of 'experiment 1'"``.
    """
    return _QUESTIONS.get(problem.posed, _question)


def fingerprint(problem: Posable) -> dict[str, Any]:
    """Return `question`, and guess, bounds, scale and prior of each quantity in full."""
    quantities = {
        f"guess, bounds, scale and prior of '{q.name}'": [
            float(q.guess),
            float(q.lower),
            float(q.upper),
            q.scale,
            None if q.prior is None else q.prior.to_dict(),
            *([] if q.starts is None else [q.starts.to_dict()]),
        ]
        for q in problem.quantities
    }
    terms = {f"prior on {term.description}": digest(*term.identity()) for term in problem.posed.prior_terms}
    return {**question(problem), **quantities, **terms}


def describe_differences(hashes: Mapping[str, Any], expected_hashes: Mapping[str, Any]) -> list[str]:
    """Return the keys of the entries that differ between two fingerprints."""
    return [key for key in dict.fromkeys((*expected_hashes, *hashes)) if hashes.get(key) != expected_hashes.get(key)]


def digest(*parts: Any) -> str:
    """Return a short hash of arrays, text and numbers that is the same in every process."""
    hashed = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            array = cast("np.ndarray[Any, Any]", part)
            hashed.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
        else:
            hashed.update(repr(part).encode() + b"\0")
    return f"sha256:{hashed.hexdigest()[:24]}"


def _question(compiled_problem: CompiledProblem) -> dict[str, str]:
    model, system = compiled_problem.model, compiled_problem.model.system
    equations = system.function("equations", system.ode, system.alg, compiled_problem.observed)
    bound = [(n, *map(float, pair)) for n, pair in sorted(compiled_problem.state_bounds.items())]
    constraints = [
        (c.name, float(c.lower), float(c.upper), *_list_locations(c), *_expression(c.expression))
        for c in compiled_problem.constraints
    ]
    names = (model.states, model.algebraic_states, model.parameters, model.inputs, compiled_problem.outputs)
    unknown = ("sigma unknown",) if compiled_problem.experiments[0].sigma is None else ()
    graphs: dict[int, list[Any]] = {}  # of noise models, which thousands of experiments may share
    return {
        "model": digest(names, *_graph(equations)),
        **{
            f"data of '{c.name}'": digest(
                c.points.times, c.points.values, _sigma(c), *unknown, *_noise(compiled_problem, c, graphs)
            )
            for c in compiled_problem.conditions
        },
        **{f"inputs, initial and fixed values of '{c.name}'": _condition(c) for c in compiled_problem.conditions},
        **({"state_bounds": digest(bound)} if bound else {}),
        **({"constraints": digest(constraints)} if constraints else {}),
    }


def _sigma(condition: Condition) -> Any:
    """Return standard deviations, without those that were estimated with a covariance."""
    joint = [getattr(getattr(o and o.noise, "correlation", None), "unknown", False) for o in condition.observed]
    return np.where(joint, 1.0, condition.points.sigma) if any(joint) else condition.points.sigma


def _noise(compiled_problem: CompiledProblem, condition: Condition, graphs: dict[int, list[Any]]) -> list[Any]:
    """List the identifying parts of an experiment's noise beyond standard deviations; `graphs` is a cache."""
    entries: list[Any] = []
    for name, observable in zip(compiled_problem.outputs, condition.observed, strict=True):
        correlation: Correlation | None = getattr(observable and observable.noise, "correlation", None)
        if correlation is not None:
            entries += [name, "correlated", correlation.identity]
        if observable is None or (
            observable.is_weighted and (observable.group < 0 or compiled_problem.groups[observable.group] == "")
        ):
            continue
        if id(observable.noise) not in graphs:
            mu, s, m = (ca.SX.sym(n) for n in ("mu", "s", "m"))
            density = observable.noise.density(mu, s, m)
            other_symbols = [
                e for e in ca.symvar(density.cost) if not any(ca.is_equal(e, symbol) for symbol in (mu, s, m))
            ]
            graphs[id(observable.noise)] = _graph(ca.Function("cost", [mu, s, m, *other_symbols], [density.cost]))
        group = compiled_problem.groups[observable.group] if observable.group >= 0 else None
        entries += [name, observable.predicted_outputs, group, *graphs[id(observable.noise)]]
    return entries


def _condition(condition: Condition) -> str:
    inputs = [x for u in condition.inputs for x in (u.kind, u.times, u.values, *["after"] * (u.measured == "after"))]
    link = condition.link
    return digest(
        condition.start,
        *inputs,
        link.base,
        condition.z_guess,
        condition.theta,
        link.quantity_rows,
        *_parts(link),
        *_events(condition),
    )


def _parts(link: ParameterLink) -> list[Any]:
    """List what the parts of a link are made of."""
    entries: list[Any] = []
    for part in link.parts:
        if isinstance(part, MappedExpressions):
            entries += [part.rows, part.names, part.source, part.numbers, *_graph(part.jacobian_function)]
        if isinstance(part, SteadyStateRows):
            inner = part.inner
            entries += [part.rows, part.solver.u, part.solver.z_guess, inner.base, inner.quantity_rows, *_parts(inner)]
        if isinstance(part, ConsistentInitialRows):
            inner = part.inner
            entries += [part.rows, part.guess, inner.base, inner.quantity_rows, *_graph(part.equations), *_parts(inner)]
    return entries


def _events(condition: Condition) -> list[Any]:
    schedule = condition.schedule
    entries: list[Any] = []
    for instant in schedule.instants:
        change = () if instant.change is None else _graph(instant.change.jacobian_function)
        entries += [instant.time, instant.parameters, instant.is_measured_after, *change]
        if instant.trigger is not None:
            trigger = instant.trigger
            entries += [trigger.direction, trigger.parameters, *_graph(trigger.function.jacobian_function)]
            entries += [] if trigger.truth is None else [trigger.at_start, *_graph(trigger.truth)]
            if trigger.is_ordered:
                entries += [trigger.persistent, trigger.rng]
            if trigger.priority is not None:
                entries += [trigger.priority[1], *_graph(trigger.priority[0].jacobian_function)]
    return [
        *entries,
        *(
            (x.parameter, x.on_instant, x.off_instant, x.height_row, *([True] if x.is_assignment else []))
            for x in schedule.levels
        ),
    ]


def _list_locations(constraint: Constraint) -> tuple[Any, ...]:
    """List where a constraint holds; nothing where it is at every measured time, as results of format 1 have it."""
    is_default = constraint.times is None and not constraint.experiments
    return () if is_default else (constraint.times, constraint.experiments, constraint.of)


def _expression(expression: ca.SX) -> list[Any]:
    symbols = ca.symvar(expression)
    return [tuple(s.name() for s in symbols), *_graph(ca.Function("expression", symbols, [expression]))]


def _graph(function: ca.Function) -> list[Any]:
    """List a function's instructions."""
    steps: list[Any] = []
    for k in range(function.n_instructions()):
        op = function.instruction_id(k)
        constant = function.instruction_constant(k) if op == ca.OP_CONST else None
        steps.append((op, function.instruction_input(k), function.instruction_output(k), constant))
    return steps
