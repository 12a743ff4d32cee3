"""Information rows of a candidate as a graph of its choices, by differentiable Runge-Kutta steps.

Between nodes (grid times, breakpoints of inputs, doses) the method takes equal steps of the classical method of order 4
(Kutta 1901).  A dose at a chosen or estimated time divides its step:

    t_k --h_1--> s = min(max(tau, t_k), t_k + h), x + a if t_k <= tau < t_k + h, --h - h_1--> t_k + h

The rows are a differentiable function of quantities q and choices d, with steps that depend on neither.

Notation
--------
q (n_q,)   the quantities that the experiment depends on, in search scale;  d (n_d,) choices
N          steps;  X (n_x, N + 1) states at nodes before the events there, Y after them;  u (4 n_u, N) cubics
rows       mu' / s and, where the spread s is computed, sqrt(lambda) s' / s, as in castfit.drive.design.knowledge
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arrays import Array, Index
from castfit.densities.noise.counts import NegativeBinomial, Poisson
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.drive.design.candidate import Candidate
from castfit.drive.design.choices import DesignChoice, choice_locations, collect_choices, piece_edges
from castfit.drive.design.knowledge import DesignInformation, information_factors
from castfit.experiment.events import ScheduledEvent, occurrences
from castfit.experiment.experiment import Experiment, Free
from castfit.experiment.inputs import Placeholder
from castfit.experiment.measurements import Relative
from castfit.model.expressions import substitute_by_name
from castfit.model.model import Model, by_name
from castfit.problem.compiled_experiments import resolve_overrides
from castfit.problem.constraints import ALONG, Constraint
from castfit.problem.parameters import initial_values
from castfit.problem.quantities import Quantity, fixed_value
from castfit.transcribe.experiment_trajectories import input_cubics

_ca: Any = ca  # functions that take graphs and numbers of every kind
_NODE_MERGE_RTOL = 1e-12  # distance up to which two nodes are merged, relative to the whole time


def substitute_symbols(model: Model, expression: Any) -> Any:
    """Write an expression over the model's system; names of outputs stand for their expressions."""
    outputs = {n: e for n, e in model.outputs.items() if n not in model.states}
    return by_name(substitute_by_name(model.to_system_symbols(expression), outputs), model.system)


@dataclass(frozen=True, eq=False)
class SensitivityGraph:
    """Graph of the information rows of candidate k at times (n,), and of its constraints.

    `candidate` has its choices, and the experiment k has numbers in their place.
    """

    information: DesignInformation
    k: int
    candidate: Candidate
    times: Array
    constraints: tuple[Constraint, ...]
    steps: int

    @property
    def obstacles(self) -> list[str]:
        """Messages about features of the candidate that the graph does not support."""
        model, experiment = self.information.extended.model, self._experiment
        events = [(o, t.is_constant() and self._build_end_time(o).is_constant(), a) for o, t, a in self._occurrences]
        state_doses = [
            o
            for o, is_fixed_time, a in events
            if not is_fixed_time and {s.name() for s in _ca.symvar(a)} & {*model.states}
        ]
        noises = [o.noise for o in self.information.condition(self.k).observed if o is not None]
        features = {
            "algebraic states": model.algebraic_states,
            "delays": model.lines,
            "switches at times": model.switches,
            "a steady state as initial state": experiment.steady is not None,
            "an estimated input": any(isinstance(u, Placeholder) for u in experiment.inputs.values()),
            "events triggered by states": any(o.when is not None for o, _, _ in events),
            "limits of detection": any(isinstance(n, (Gaussian, LogNormal)) and n.censored for n in noises),
            "parameters that switch": any(o.values is not None for o, _, _ in events),
            "an event at a variable time": any(
                o.changes is not None and not is_fixed_time for o, is_fixed_time, _ in events
            ),
            "an infusion at a variable time": any(
                o.end_time is not None and not is_fixed_time for o, is_fixed_time, _ in events
            ),
            "a state-dependent dose at a variable time": state_doses,
        }
        remedy = "which cf.choose does not support; pass several candidates with numbers instead"
        return [
            f"{self.information.labels[self.k]} has {feature}, {remedy}"
            for feature, is_present in features.items()
            if is_present
        ]

    @cached_property
    def theta(self) -> Index:
        """Positions of q in theta."""
        return self.information.condition(self.k).theta

    @cached_property
    def choices(self) -> tuple[DesignChoice, ...]:
        """Choices in the candidate; d contains their numbers in this order."""
        return collect_choices(choice_locations(self.candidate).values())

    @cached_property
    def _experiment(self) -> Experiment:
        return self.information.experiment(self.k)

    @cached_property
    def _symbols(self) -> tuple[Any, Any, dict[str, Any], dict[tuple[str, str], Any]]:
        """Return q, d, the choices by name, and natural values of quantities by kind and name."""
        sizes = [c.pieces for c in self.choices]
        q, d = _ca.SX.sym("q", self.theta.size), _ca.SX.sym("d", sum(sizes))
        pieces = _ca.vertsplit(d, np.cumsum([0, *sizes]).tolist())
        quantities: list[Quantity] = [
            self.information.extended.quantities[int(j)] for j in np.asarray(self.theta).tolist()
        ]
        natural: dict[tuple[str, str], Any] = {}
        for quantity, symbol in zip(quantities, _ca.vertsplit(q), strict=True):
            natural[quantity.kind, quantity.symbol_name] = _ca.exp(symbol) if quantity.scale == "log" else symbol
        return q, d, dict(zip((c.name for c in self.choices), pieces, strict=True)), natural

    @cached_property
    def _overrides(self) -> dict[str, Any]:
        return {**self._experiment.parameters, **self.candidate.parameters}

    @cached_property
    def _values(self) -> dict[str, Any]:
        """Values of the names in expressions: numbers, quantities and choices."""
        _, _, choice_symbols, natural = self._symbols
        return {
            **{
                n: fixed_value(p, self.information.labels[self.k])
                for n, p in self.information.extended.parameters.items()
            },
            **{name: s for (kind, name), s in natural.items() if kind == "parameter"},
            **{n: v for n, v in self._overrides.items() if not isinstance(v, ca.SX)},
            **{n: s for n, s in choice_symbols.items() if s.numel() == 1},
        }

    def _substitute_values(self, value: Any) -> Any:
        """Write a value over q and d, and over the system's symbols of states, inputs and time."""
        expression = substitute_by_name(resolve_overrides(_ca.SX(value), self._overrides), self._values)
        return by_name(expression, self.information.extended.model.system)

    @cached_property
    def _occurrences(self) -> list[tuple[ScheduledEvent, Any, Any]]:
        """Occurrences of events and doses, with their time and their amount or rate."""
        events = self._experiment.events if self.candidate.events is None else self.candidate.events
        return [
            (o, self._substitute_values(o.time), self._substitute_values(o.amount))
            for o in occurrences(events, float(self.times[-1]))
        ]

    def _build_end_time(self, o: ScheduledEvent) -> Any:
        return self._substitute_values(0.0 if o.end_time is None else o.end_time)

    @cached_property
    def _signals(self) -> dict[str, Any]:
        """Inputs that contain choices."""
        return {n: v for n, v in self.candidate.inputs.items() if collect_choices([v])}

    @cached_property
    def _nodes(self) -> Array:
        """Times between steps, (N + 1,)."""
        start, end = self._experiment.start, float(self.times[-1])
        event_times = [
            t for o, time, _ in self._occurrences for t in (time, self._build_end_time(o)) if t.is_constant()
        ]
        constraint_times = [t for c in self.constraints if isinstance(c.times, tuple) for t in c.times]
        kinks = [u.breakpoints for n, u in self._experiment.inputs.items() if n not in self._signals]
        kinks += [piece_edges(self.candidate, v, start) for v in self._signals.values()]
        times = np.unique(
            np.concatenate([[start, end], self.times, [float(t) for t in event_times], constraint_times, *kinks])
        )
        times = times[(times >= start) & (times <= end)]
        times = times[np.append(True, np.diff(times) > _NODE_MERGE_RTOL * (end - start))]
        counts = np.ceil(np.diff(times) / (end - start) * self.steps - 1e-9).astype(int)
        left_ends, width = times[:-1], np.diff(times) / np.maximum(counts, 1)
        nodes = (left_ends[i] + width[i] * j for i, n in enumerate(counts.tolist()) for j in range(max(n, 1)))
        return np.array([*nodes, end])

    def _node_indices(self, times: Any) -> list[int]:
        return np.argmin(np.abs(self._nodes[:, None] - np.atleast_1d(times)[None]), axis=0).tolist()

    def _build_inputs(self) -> Any:
        """Return cubics of the inputs in each step, (4 n_u, N)."""
        q, d, choice_symbols, _ = self._symbols
        middle, names = 0.5 * (self._nodes[1:] + self._nodes[:-1]), self.information.extended.model.inputs
        u = _ca.SX(4 * len(names), middle.size)
        for i, n in enumerate(names):
            if n not in self._signals:
                u[4 * i : 4 * i + 4, :] = _ca.DM(input_cubics([self._experiment.inputs[n]], self._nodes)[:, 0].T)
                continue
            edges = piece_edges(self.candidate, self._signals[n], self._experiment.start)
            piece_choices = [c for c in collect_choices([self._signals[n]]) if c.pieces > 1]
            graph = _ca.Function(
                "piece", [*(c.symbol for c in piece_choices), q, d], [self._substitute_values(self._signals[n])]
            )
            piece = np.clip(np.searchsorted(edges, middle) - 1, 0, edges.size - 2)
            choice_values = (choice_symbols[c.name][np.minimum(piece, c.pieces - 1).tolist()].T for c in piece_choices)
            u[4 * i, :] = graph.map(piece.size)(
                *choice_values, *(_ca.repmat(symbol, 1, piece.size) for symbol in (q, d))
            )
        return u

    def _append_derivatives(self, values: Any, n: int) -> Any:
        """Append to each column (m, K) its derivatives by n of q, in one sparsity pattern: (m, K (1 + n))."""
        m, K = values.shape
        slopes = _ca.jacobian(_ca.vec(_ca.densify(values)), self._symbols[0])[:, :n]
        stacked = _ca.sparsify(_ca.horzcat(values, *(_ca.reshape(slopes[:, j], m, K) for j in range(n))))
        stacked = stacked[:, [k + K * j for k in range(K) for j in range(1 + n)]]
        rows, columns = (np.array(indices, dtype=int) for indices in stacked.sparsity().get_triplet())
        pattern = np.unique([rows, columns % (1 + n)], axis=1).tolist()
        return _ca.project(stacked, _ca.repmat(_ca.Sparsity.triplet(m, 1 + n, *pattern), 1, K))

    def _build_step(self, sparsity: Any, dose_states: list[str]) -> Any:
        """Return one step  (Z, t, h, g) -> Z;  g: parameters, times and amounts of moving doses, cubics, rates."""
        model, system, m = self.information.extended.model, self.information.extended.model.system, len(dose_states)
        n_x, n_p, n_u = system.x.numel(), system.p.numel(), system.u.numel()
        rhs: Any = system.function("rhs", system.ode)
        Z, g, t, h = _ca.SX.sym("Z", n_x, sparsity.size2()), _ca.SX.sym("g", sparsity), _ca.SX.sym("t"), _ca.SX.sym("h")
        p, tau, a, u, r = _ca.vertsplit(g[:, 0], np.cumsum([0, n_p, m, m, 4 * n_u, n_x]).tolist())

        def evaluate_rhs(time: Any, y: Any) -> Any:
            input_values = _ca.reshape(u, 4, n_u).T @ _ca.vertcat(*[(time - t) ** i for i in range(4)])
            return rhs(time, y, _ca.SX(0, 1), p, input_values) + r

        def advance(time: Any, y: Any, step_length: Any) -> Any:
            k1 = evaluate_rhs(time, y)
            k2 = evaluate_rhs(time + step_length / 2, y + step_length / 2 * k1)
            k3 = evaluate_rhs(time + step_length / 2, y + step_length / 2 * k2)
            return y + step_length / 6 * (k1 + 2 * k2 + 2 * k3 + evaluate_rhs(time + step_length, y + step_length * k3))

        y: Any = Z[:, 0]
        time: Any = t
        for j, state_name in enumerate(dose_states):
            dose_time = _ca.fmax(time, _ca.fmin(tau[j], t + h))
            y, time = advance(time, y, dose_time - time), dose_time
            y[model.states.index(state_name)] += _ca.if_else(_ca.logic_and(tau[j] >= t, tau[j] < t + h), a[j], 0)
        step_expression = _with_derivatives(advance(time, y, t + h - time), Z, g)
        return _ca.Function(
            "step", [Z, t, h, g], [step_expression], {"cse": True, "is_diff_in": [True, False, False, True]}
        )

    def _build_trajectory(self, n: int) -> _SensitivityTrajectory:
        """Return the trajectory, with its derivatives by n of the q."""
        model, nodes, (q, d, _, natural) = self.information.extended.model, self._nodes, self._symbols
        N, h, n_u, n_p, system = nodes.size - 1, np.diff(nodes), len(model.inputs), len(model.parameters), model.system
        initial = {**initial_values(model, self._experiment), **self.candidate.initial}
        initial_states = [
            natural["initial state", s] if isinstance(initial[s], Free) else initial[s] for s in model.states
        ]
        p = [self._overrides.get(name, self._values.get(name, 0.0)) for name in model.parameters]
        moving_doses = [dose for dose in self._occurrences if not dose[1].is_constant()]
        u, rate, jumps, late_nodes = (
            self._build_inputs(),
            _ca.SX(len(initial_states), N),
            dict[int, list[Any]](),
            list[int](),
        )
        Z, w, wide_q = *self._build_wide_symbols(n), _ca.horzcat(q, _ca.SX.eye(q.numel()))[:, : 1 + n]
        for o, time, amount in self._occurrences:
            i = self._node_indices(float(time))[0] if time.is_constant() else -1
            state_index = model.states.index(o.into) if o.into else -1
            if o.end_time is not None:
                for j in range(i, self._node_indices(float(self._substitute_values(o.end_time)))[0]):
                    rate[state_index, j] += amount
            elif i >= 0 and float(time) <= nodes[-1]:
                new_states = _ca.SX(system.x)
                for s, v in (o.changes or {o.into: system.x[state_index] + amount}).items():
                    new_states[model.states.index(s)] = self._substitute_values(v)
                jump = _ca.Function("jump", [system.x, system.t, system.u, q, d], [new_states])
                jump_expression = _with_derivatives(jump(Z[:, 0], system.t, w[n_p:, 0], q, d), Z, w, wide_q)
                jumps.setdefault(i, []).append(_ca.Function("jump", [Z, system.t, w, q, d], [jump_expression]))
                late_nodes += [i] if o.measured == "after" else []
        powers = _ca.DM(np.tile(h[None] ** np.arange(4)[:, None], (n_u, 1)).reshape(4 * n_u, N))
        inputs_before = _ca.horzcat(
            u[::4, 0], _ca.DM(np.kron(np.eye(n_u), np.ones((1, 4))).reshape(n_u, 4 * n_u)) @ (u * powers)
        )
        constant_inputs = self._append_derivatives(
            _ca.vertcat(
                self._substitute_values(_ca.vertcat(_ca.SX(0, 1), *p)),
                *(t for _, t, _ in moving_doses),
                *(a for _, _, a in moving_doses),
            ),
            n,
        )
        steps = _ca.vertcat(_ca.repmat(constant_inputs, 1, N), self._append_derivatives(_ca.vertcat(u, rate), n))
        node_inputs = [_ca.vertcat(_ca.repmat(constant_inputs[:n_p, :], 1, N + 1), self._append_derivatives(inputs, n))
                 for inputs in (inputs_before, _ca.horzcat(u[::4, :], inputs_before[:, -1]))]  # fmt: skip
        Q, D = _ca.MX.sym("Q", q.numel()), _ca.MX.sym("D", d.numel())
        input_function = _ca.Function(
            "inputs",
            [q, d],
            [self._append_derivatives(self._substitute_values(_ca.vertcat(*initial_states)), n), steps, *node_inputs],
        )
        z: Any
        z, steps, *node_inputs = input_function(Q, D)
        step = self._build_step(steps[:, : 1 + n].sparsity(), [o.into for o, _, _ in moving_doses])
        states_before, states_after = [z], list[Any]()
        for i, j in pairwise([*sorted({0, N, *(i for i in jumps if i < N)}), N]):
            for jump in jumps.get(i, ()):
                z = jump(z, float(nodes[i]), _columns(node_inputs[0], [i], n), Q, D)
            states_after.append(z)
            if j > i:
                step_inputs = steps[:, i * (1 + n) : j * (1 + n)]
                states_before.append(step.mapaccum(j - i)(z, nodes[None, i:j], h[None, i:j], step_inputs))
                states_after.append(states_before[-1][:, : -1 - n])
                z = states_before[-1][:, -1 - n :]
        X, Y = _ca.horzcat(*states_before), _ca.horzcat(*states_after)
        measured_states = (
            _ca.horzcat(*(_columns(Y if i in late_nodes else X, [i], n) for i in range(N + 1))) if late_nodes else X
        )
        return _SensitivityTrajectory(n, Q, D, (measured_states, node_inputs[0]), (Y, node_inputs[1]))

    def _build_wide_symbols(self, n: int) -> tuple[Any, Any]:
        """Return symbols of states and of parameters and inputs, with derivatives by n of the q beside them."""
        system = self.information.extended.model.system
        return _ca.SX.sym("Z", system.x.numel(), 1 + n), _ca.SX.sym("w", system.p.numel() + system.u.numel(), 1 + n)

    def _differentiate_expression(self, expression: Any, Z: Any, w: Any) -> Any:
        """Return an expression of the system (m,) and its derivatives, as a graph of wide symbols."""
        system = self.information.extended.model.system
        p, u = _ca.vertsplit(w[:, 0], [0, system.p.numel(), w.size1()])
        graph: Any = system.function("expression", _ca.densify(expression))
        return _with_derivatives(graph(system.t, Z[:, 0], _ca.SX(0, 1), p, u), Z, w)

    @cached_property
    def _rows(self) -> tuple[_SensitivityTrajectory, Any]:
        """Trajectory of the states, and information rows at all times, (q or 2 q, n n_q)."""
        information, model, condition = (
            self.information,
            self.information.extended.model,
            self.information.condition(self.k),
        )
        trajectory, names, node_indices = (
            self._build_trajectory(self.theta.size),
            information.candidates[self.k].outputs,
            self._node_indices(self.times),
        )
        observables: list[Any] = [condition.observed[information.extended.outputs.index(o)] for o in names]
        spread_names = [observable.predicted_outputs[1] for observable in observables if observable.is_spread_computed]
        (Z, w), sigma_symbols = self._build_wide_symbols(trajectory.n), _ca.SX.sym("s", len(names))
        y = self._differentiate_expression(
            by_name(_ca.vertcat(*(model.outputs[n] for n in (*names, *spread_names))), model.system), Z, w
        )
        sigma, rows, spread_rows = np.zeros((len(names), self.times.size)), list[Any](), list[Any]()
        for j, (name, observable) in enumerate(zip(names, observables, strict=True)):
            location, scale = information_factors(observable.noise)
            mu, s, spread = y[j, 0], sigma_symbols[j], information.spread_of(self.k, name, self.times)
            if observable.is_spread_computed:
                spread_index = len(names) + spread_names.index(observable.predicted_outputs[1])
                s = y[spread_index, 0]
                spread_rows.append(np.sqrt(scale) * y[spread_index, 1:] / s)
            elif isinstance(spread, Relative):
                s = _ca.fmax(spread.fraction * _ca.fabs(mu), spread.floor)
            else:
                sigma[j] = spread
            if not observable.is_spread_computed and spread_names:
                spread_rows.append(_ca.SX(1, trajectory.n))
            if isinstance(observable.noise, (Poisson, NegativeBinomial)):
                s = _ca.sqrt(mu + (s * mu**2 if isinstance(observable.noise, NegativeBinomial) else 0))
            rows.append(np.sqrt(location) * y[j, 1:] / (s * mu if isinstance(observable.noise, LogNormal) else s))
        row_function: Any = _ca.Function(
            "rows", [Z, model.system.t, w, sigma_symbols], [_ca.densify(_ca.vertcat(*rows, *spread_rows))]
        )
        states, inputs = (_columns(values, node_indices, trajectory.n) for values in trajectory.values_before_events)
        return trajectory, row_function.map(len(node_indices))(
            states, self._nodes[None, node_indices], inputs, _ca.DM(sigma)
        )

    @cached_property
    def _row_function(self) -> Any:
        trajectory, rows = self._rows
        return _ca.Function("rows", [trajectory.Q, trajectory.D], [rows])

    @cached_property
    def _choice_gradient_function(self) -> Any:
        (trajectory, rows), seed = self._rows, _ca.MX.sym("seed", *self._rows[1].shape)
        gradient = _ca.gradient(_ca.dot(seed, rows), trajectory.D)
        return _ca.Function("pull", [trajectory.Q, trajectory.D, seed], [_ca.densify(gradient)])

    @cached_property
    def _slack_function(self) -> Any:
        trajectory, model, slack_terms = self._build_trajectory(0), self.information.extended.model, [_ca.MX(0, 1)]
        Z, w = self._build_wide_symbols(0)
        for c in self.constraints:
            nodes = list(range(self._nodes.size)) if c.times == ALONG else self._node_indices(c.times)
            value = self._differentiate_expression(substitute_symbols(model, c.expression), Z, w)
            graph = _ca.Function("value", [Z, model.system.t, w], [value]).map(len(nodes))
            for states, inputs in (trajectory.values_before_events, trajectory.values_after_events):
                values = graph(states[:, nodes], self._nodes[None, nodes], inputs[:, nodes]).T
                slack_terms += [
                    sign * (values - bound) for sign, bound in ((1, c.lower), (-1, c.upper)) if np.isfinite(bound)
                ]
        slacks = _ca.vertcat(*slack_terms)
        return _ca.Function(
            "slacks", [trajectory.Q, trajectory.D], [slacks, _ca.densify(_ca.jacobian(slacks, trajectory.D))]
        )

    def rows(self, theta: Array, d: Array) -> Array:
        """Compute the information rows of the values by search scale, (n, n_outputs, 2, n_theta)."""
        rows = np.zeros((self.times.size, len(self.information.candidates[self.k].outputs), 2, theta.size))
        values = np.array(self._row_function.call([theta[self.theta], d])[0])
        values = values.reshape(-1, rows.shape[1], self.times.size, self.theta.size)
        rows[:, :, : len(values), self.theta] = values.transpose(2, 1, 0, 3)
        return rows

    def compute_choice_gradient(self, theta: Array, d: Array, seed: Array) -> Array:
        """Return the gradient by d (n_d,) of the inner product of the rows with a seed of the same shape."""
        rows, columns = self._rows[1].shape
        seed_columns = seed[..., self.theta].transpose(2, 1, 0, 3).reshape(-1, columns)[:rows]
        return np.array(self._choice_gradient_function.call([theta[self.theta], d, seed_columns])[0]).ravel()

    def compute_slacks(self, theta: Array, d: Array) -> tuple[Array, Array]:
        """Compute the slacks of constraints (n,), nonnegative where satisfied, and their derivatives by d (n, n_d)."""
        value, slope = self._slack_function.call([theta[self.theta], d])
        return np.array(value).ravel(), np.array(slope)


@dataclass(frozen=True, eq=False)
class _SensitivityTrajectory:
    """Graphs of q and d: states, and parameters with inputs, before and after the events at nodes.

    Each column is followed by its derivatives by n of the q.
    """

    n: int
    Q: Any
    D: Any
    values_before_events: tuple[Any, Any]
    values_after_events: tuple[Any, Any]


def _columns(stacked: Any, nodes: list[int], n: int) -> Any:
    """Return the columns of the given nodes, with their derivative columns."""
    return stacked[:, [i * (1 + n) + j for i in nodes for j in range(1 + n)]]


def _with_derivatives(expression: Any, *stacked: Any) -> Any:
    """Append to an expression (m,) of first columns its derivatives, by the chain rule from the other columns."""
    if stacked[0].size2() == 1:
        return _ca.densify(expression)
    symbols = _ca.vertcat(*(w[:, 0].nz[:] for w in stacked))
    seeds = _ca.vertcat(*(w[w[:, 0].sparsity().row(), 1:] for w in stacked))
    return _ca.densify(_ca.horzcat(expression, _ca.jtimes(expression, symbols, seeds)))
