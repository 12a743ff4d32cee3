"""Simulation: the model's outputs over time, integrated piece by piece.

A trajectory that is known at nodes is integrated anew from every node, so that outputs between them stay accurate
where the system is unstable.  All pieces have one output time, their end, and share one integrator.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Union, cast

import casadi as ca
import numpy as np

from castfit._reading import reals
from castfit.integrate import Integrator, IntegratorOptions, Lanes
from castfit.posed import Posed
from castfit.status import CastfitError, InputError, check, suggest
from castfit.transcribe.grid import merge, snap
from castfit.transcribe.integrators import integrator_of
from castfit.transcribe.trajectory import Trajectory

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from castfit.conditions import Condition
    from castfit.problem import Posable

    Array = NDArray[np.float64]

_SUBDIVISIONS = 12  # table entries between measured times or nodes, so that interpolation errs little

Prediction = dict[str, dict[str, Any]]
Times = Union["ArrayLike", "Mapping[str, ArrayLike]", None]


class SimulationError(CastfitError):
    """The integration of an experiment stopped; the message says where, in which state, and what to try.

    Attributes
    ----------
    experiment : str
    time : float
        How far the integration came.
    """

    def __init__(self, experiment: str, time: float, sentence: str) -> None:
        self.experiment, self.time, self.sentence = experiment, time, sentence
        super().__init__(f"{experiment}: {sentence}")

    def __reduce__(self) -> Any:
        """Pickle by the constructor's arguments, so that the error crosses process borders."""
        return type(self), (self.experiment, self.time, self.sentence)


@dataclass(frozen=True)
class Nodes:
    """A trajectory known at nodes: times (K,), increasing from the experiment's start, and states (K, n_x)."""

    times: Array
    states: Array


def simulate(
    problem: Posable,
    parameters: Mapping[str, float] | ArrayLike | None = None,
    *,
    times: Times = None,
    integrator: IntegratorOptions | None = None,
) -> Prediction:
    """Integrate the experiments of a problem for given values.

    Parameters
    ----------
    problem : Problem or Posed
    parameters : mapping from str to float, or (n_theta,) array, optional
        Natural values of estimated quantities, or of parameters of the model (fixed ones too); what is left out keeps
        its guess.  An array is theta, in search scale.
    times : (n,) array, or mapping from experiment to array, optional
        Output times, increasing; by default the measured ones.
    integrator : IntegratorOptions, optional

    Returns
    -------
    dict
        Per experiment ``{"time": (n,), output: (n,), ...}`` for every output of the model.

    Raises
    ------
    InputError
        Listing every mistake in the names, values and times.
    SimulationError
        If the integration stops.
    """
    problem, theta = _settle(problem, parameters)
    starts = [c.link.natural(theta[c.theta]).a[None] for c in problem.conditions]
    nodes = [Nodes(np.array([c.start]), a) for c, a in zip(problem.conditions, starts, strict=True)]
    return predict(problem, theta, nodes, times=times, integrator=integrator)


def predict(
    problem: Posable,
    theta: Array,
    nodes: list[Nodes],
    *,
    times: Times = None,
    integrator: IntegratorOptions | None = None,
) -> Prediction:
    """Evaluate all outputs at `times`, integrating from one node to the next; as `simulate`."""
    chosen = _output_times(problem, times)
    system = problem.model.system
    step = integrator_of(problem.model, [1.0], integrator or IntegratorOptions())
    observe = system.function("outputs", ca.densify(ca.vertcat(*problem.model.outputs.values())))
    out: Prediction = {}
    for condition, known in zip(problem.conditions, nodes, strict=True):
        if condition.name not in chosen:
            continue
        t = chosen[condition.name]
        p = condition.link.natural(theta[condition.theta]).p
        x, z = _march(step, condition, p, known, t)
        u = np.array([signal(t) for signal in condition.inputs]).reshape(-1, t.size)
        y = np.asarray(observe.map(t.size)(t[None], x.T, z.T, np.repeat(p[:, None], t.size, axis=1), u))
        out[condition.name] = {"time": t, **dict(zip(problem.model.output_names, y, strict=True))}
    return out


def trace(problem: Posed, theta: Array, nodes: list[Nodes], integrator: IntegratorOptions) -> Trajectory:
    """Tabulate the states, integrating from one node to the next; where that stops, the nodes themselves are held."""
    step = integrator_of(problem.model, [1.0], integrator)
    tables: list[tuple[Array, Array, Array]] = []
    for condition, known in zip(problem.conditions, nodes, strict=True):
        marks = merge(np.array([condition.start]), condition.points.times, condition.breakpoints, known.times)
        pieces: list[Array] = [
            np.linspace(a, b, _SUBDIVISIONS, endpoint=False) for a, b in itertools.pairwise(marks.tolist())
        ]
        times = np.concatenate([*pieces, marks[-1:]])
        p = condition.link.natural(theta[condition.theta]).p
        try:
            x, z = _march(step, condition, p, known, times)
        except SimulationError:
            last = np.searchsorted(known.times, times, side="right") - 1
            x, z = known.states[last], np.repeat(condition.z_guess[None], times.size, axis=0)
        tables.append((times, x, z))
    return Trajectory(tuple(tables), tuple(known.times for known in nodes))


def _march(step: Integrator, condition: Condition, p: Array, nodes: Nodes, times: Array) -> tuple[Array, Array]:
    """Return states (n, n_x) and algebraic states (n, n_z) at `times`, integrated from the last node before each.

    Pieces run between neighbours among nodes, breakpoints of the inputs and output times; the first has length zero
    and makes the algebraic states consistent.  In round r the r-th piece after every node is integrated.
    """
    until = times[-1]
    kinks = [signal.breakpoints for signal in condition.inputs]
    inside = [group[(group >= condition.start) & (group <= until)] for group in (nodes.times, *kinks)]
    ends = merge(*inside, times)
    begins = np.concatenate([ends[:1], ends[:-1]])
    node_times = snap(nodes.times, ends)
    node = np.searchsorted(node_times, begins, side="right") - 1
    rounds = np.arange(ends.size) - np.searchsorted(node, node, side="left")
    u = np.zeros((ends.size, 1, len(condition.inputs), 4))
    for i, signal in enumerate(condition.inputs):
        u[1:, 0, i] = signal.cubics(ends)
        u[0, 0, i, 0] = signal(ends[0])
    x, z = np.empty((ends.size, step.n_x)), np.empty((ends.size, step.n_z))
    for r in range(int(rounds.max()) + 1):
        now = np.flatnonzero(rounds == r)
        lanes = Lanes(
            start=begins[now],
            duration=(ends - begins)[now],
            x0=x[now - 1] if r else nodes.states[node[now]],
            p=np.repeat(p[None], now.size, axis=0),
            u=u[now],
            z0=z[now - 1] if r else np.repeat(condition.z_guess[None], now.size, axis=0),
        )
        found = step.values(lanes)
        if found.failures:
            stop = step.locate_failure(lanes, found.failures[0].lane)
            raise SimulationError(condition.name, stop.time, stop.sentence)
        x[now], z[now] = found.x[:, -1], found.z[:, -1]
    wanted = np.searchsorted(ends, snap(times, ends))
    return x[wanted], z[wanted]


def _settle(problem: Posable, parameters: Any) -> tuple[Posable, Array]:
    """Return theta for the given values, and the problem with fixed parameters changed where they were named."""
    if parameters is None:
        return problem, problem.guess
    if not isinstance(parameters, Mapping):
        theta = np.asarray(parameters, dtype=float)
        if theta.shape != problem.guess.shape or not np.isfinite(theta).all():
            raise InputError("simulate", [f"theta must hold {problem.guess.size} finite numbers, one for each of "
                                          f"{', '.join(problem.names)}; its shape is {theta.shape}"])  # fmt: skip
        return problem, theta
    natural = problem.to_natural(problem.guess)
    fixed: dict[str, Any] = {}
    mistakes: list[str] = []
    for name, value in cast("Mapping[str, float]", parameters).items():
        owners = [j for j, quantity in enumerate(problem.quantities) if name in (quantity.name, quantity.of)]
        if np.ndim(value) != 0 or not np.isfinite(value):
            mistakes.append(f"'{name}' is {value!r}; give a finite number")
        elif any(problem.log[j] and value <= 0 for j in owners):
            mistakes.append(f"'{name}' is {value:g}, but its scale is 'log'; give a positive number")
        elif owners:
            natural[owners] = value
        elif name in problem.parameters and not isinstance(problem, Posed):
            fixed[name] = replace(problem.parameters[name], value=float(value), lower=-np.inf, upper=np.inf)
        elif name in problem.parameters:
            mistakes.append(f"'{name}' is a number in this posed problem; give the Problem to change it")
        else:
            known = dict.fromkeys((*problem.names, *problem.parameters))
            mistakes.append(f"'{name}' is neither estimated nor a parameter of the model: {suggest(name, known)}")
    check("simulate", mistakes)
    theta = problem.to_search(natural)
    if not fixed or isinstance(problem, Posed):
        return problem, theta
    return problem.replace(parameters={**problem.parameters, **fixed}), theta


def _output_times(problem: Posable, times: Times) -> dict[str, Array]:
    """Return the output times per experiment, checked."""
    names = [condition.name for condition in problem.conditions]
    if times is None:
        return {c.name: np.unique(c.points.times) for c in problem.conditions}
    given: dict[str, Any] = (
        {str(n): t for n, t in times.items()} if isinstance(times, Mapping) else dict.fromkeys(names, times)
    )
    mistakes = [
        f"times are given for '{n}', which is no experiment: {suggest(n, names)}" for n in given if n not in names
    ]
    read = {n: reals(t) for n, t in given.items() if n in names}
    chosen = {n: np.empty(0) if t is None else np.atleast_1d(t) for n, t in read.items()}
    for condition in problem.conditions:
        t = chosen.get(condition.name, np.array([condition.start]))
        if t.ndim != 1 or t.size == 0 or not np.isfinite(t).all() or (np.diff(t) <= 0).any():
            mistakes.append(f"the times of '{condition.name}' must be finite and increasing")
        elif t[0] < condition.start:
            mistakes.append(f"'{condition.name}' starts at {condition.start:g}; there is nothing at t = {t[0]:g}")
        else:
            mistakes += [
                f"input '{name}' of '{condition.name}' is given up to {signal.span[1]:g}; extend it to {t[-1]:g}"
                for name, signal in zip(problem.model.inputs, condition.inputs, strict=True)
                if t[-1] > signal.span[1]
            ]
    check("times", mistakes)
    return chosen
