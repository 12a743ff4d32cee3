"""Information rows of a candidate as a graph of its choices, by differentiable Runge-Kutta steps.

Between nodes (times of the grid, kinks of inputs, doses) the model takes equal steps of the classical method of order 4
(Kutta 1901).  A dose whose time is chosen or estimated divides the step that it lies in:

    t_k --h_1--> s = min(max(tau, t_k), t_k + h), x + a if t_k <= tau < t_k + h, --h - h_1--> t_k + h

so that everything is a differentiable function of quantities q and choices d, by steps that do not depend on either.

Notation
--------
q (n_q,)   the quantities that the experiment depends on, in search scale;  d (n_d,) choices
N          steps;  X (n_x, N + 1) states at nodes before anything happens there, Y after it;  u (4 n_u, N) cubics
rows       mu' / s and, where the spread s is computed, sqrt(lambda) s' / s, as in castfit.drive.design.knowledge
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.densities.noise.counts import NegativeBinomial, Poisson
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.drive.design.choices import choices_in, edges_of, places_of
from castfit.drive.design.knowledge import Knowledge, informations
from castfit.experiment.events import occurrences
from castfit.experiment.experiment import Free
from castfit.experiment.inputs import Placeholder
from castfit.experiment.measurements import Relative
from castfit.model.expressions import exchanged
from castfit.model.model import by_name
from castfit.problem.compiled_experiments import resolved
from castfit.problem.constraints import ALONG, Constraint
from castfit.problem.parameters import initial_values
from castfit.problem.quantities import fixed_value
from castfit.transcribe.experiment_trajectories import input_cubics

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.drive.design.candidate import Candidate
    from castfit.drive.design.choices import DesignChoice
    from castfit.experiment.events import Occurrence
    from castfit.experiment.experiment import Experiment
    from castfit.model.model import Model
    from castfit.problem.quantities import Quantity

_ca: Any = ca  # whose functions take graphs and numbers of every kind
_ALIKE = 1e-12  # of the whole time: nodes this close are one


def in_symbols(model: Model, expression: Any) -> Any:
    """Write an expression over the model's system; names of outputs stand for their expressions."""
    outputs = {n: e for n, e in model.outputs.items() if n not in model.states}
    return by_name(exchanged(model.told(expression), outputs), model.system)


@dataclass(frozen=True, eq=False)
class SensitivityGraph:
    """Graph of the information rows of candidate k at times (n,), and of its constraints.

    `said` is the candidate with its choices.
    """

    known: Knowledge
    k: int
    said: Candidate
    times: Array
    constraints: tuple[Constraint, ...]
    steps: int

    @property
    def obstacles(self) -> list[str]:
        """Messages about features of the candidate that the graph does not support."""
        model, experiment = self.known.extended.model, self._experiment
        happens = [(o, t.is_constant() and self._until(o).is_constant(), a) for o, t, a in self._happens]
        of_states = [o for o, at, a in happens if not at and {s.name() for s in _ca.symvar(a)} & {*model.states}]
        noises = [o.noise for o in self.known.condition(self.k).observed if o is not None]
        has = {
            "algebraic states": model.algebraic_states,
            "delays": model.lines,
            "switches at times": model.switches,
            "a steady state to begin with": experiment.steady is not None,
            "an estimated input": any(isinstance(u, Placeholder) for u in experiment.inputs.values()),
            "events that states trigger": any(o.when is not None for o, _, _ in happens),
            "limits of detection": any(isinstance(n, (Gaussian, LogNormal)) and n.censored for n in noises),
            "parameters that switch": any(o.values is not None for o, _, _ in happens),
            "an event at no known time": any(o.changes is not None and not at for o, at, _ in happens),
            "an infusion at no known time": any(o.until is not None and not at for o, at, _ in happens),
            "a dose by states at no known time": of_states,
        }
        remedy = "with which nothing can be chosen; give several candidates with numbers instead of cf.choose"
        return [f"{self.known.labels[self.k]} has {what}, {remedy}" for what, is_so in has.items() if is_so]

    @cached_property
    def theta(self) -> Index:
        """Positions of q in theta."""
        return self.known.condition(self.k).theta

    @cached_property
    def choices(self) -> tuple[DesignChoice, ...]:
        """Choices in the candidate; d contains their numbers in this order."""
        return choices_in(places_of(self.said).values())

    @cached_property
    def _experiment(self) -> Experiment:
        return self.known.experiment(self.k)

    @cached_property
    def _symbols(self) -> tuple[Any, Any, dict[str, Any], dict[tuple[str, str], Any]]:
        """Return q, d, the choices by name, and natural values of quantities by kind and name."""
        sizes = [c.pieces for c in self.choices]
        q, d = _ca.SX.sym("q", self.theta.size), _ca.SX.sym("d", sum(sizes))
        parts = _ca.vertsplit(d, np.cumsum([0, *sizes]).tolist())
        of_q: list[Quantity] = [self.known.extended.quantities[int(j)] for j in np.asarray(self.theta).tolist()]
        natural: dict[tuple[str, str], Any] = {}
        for quantity, one in zip(of_q, _ca.vertsplit(q), strict=True):
            natural[quantity.kind, quantity.of] = _ca.exp(one) if quantity.scale == "log" else one
        return q, d, dict(zip((c.name for c in self.choices), parts, strict=True)), natural

    @cached_property
    def _overrides(self) -> dict[str, Any]:
        return {**self._experiment.parameters, **self.said.parameters}

    @cached_property
    def _values(self) -> dict[str, Any]:
        """Values of the names in expressions: numbers, quantities and choices."""
        _, _, chosen, natural = self._symbols
        return {
            **{n: fixed_value(p, self.known.labels[self.k]) for n, p in self.known.extended.parameters.items()},
            **{of: s for (kind, of), s in natural.items() if kind == "parameter"},
            **{n: v for n, v in self._overrides.items() if not isinstance(v, ca.SX)},
            **{n: s for n, s in chosen.items() if s.numel() == 1},
        }

    def _told(self, value: Any) -> Any:
        """Write a value over q and d; symbols of states, inputs and time are those of the system."""
        whole = exchanged(resolved(_ca.SX(value), self._overrides), self._values)
        return by_name(whole, self.known.extended.model.system)

    @cached_property
    def _happens(self) -> list[tuple[Occurrence, Any, Any]]:
        """Occurrences of events and doses, with their time and their amount or rate."""
        events = self._experiment.events if self.said.events is None else self.said.events
        return [(o, self._told(o.time), self._told(o.amount)) for o in occurrences(events, float(self.times[-1]))]

    def _until(self, o: Occurrence) -> Any:
        return self._told(0.0 if o.until is None else o.until)

    @cached_property
    def _signals(self) -> dict[str, Any]:
        """The inputs that are chosen."""
        return {n: v for n, v in self.said.inputs.items() if choices_in([v])}

    @cached_property
    def _nodes(self) -> Array:
        """Times between steps, (N + 1,)."""
        start, end = self._experiment.start, float(self.times[-1])
        when = [t for o, time, _ in self._happens for t in (time, self._until(o)) if t.is_constant()]
        held = [t for c in self.constraints if isinstance(c.times, tuple) for t in c.times]
        kinks = [u.breakpoints for n, u in self._experiment.inputs.items() if n not in self._signals]
        kinks += [edges_of(self.said, v, start) for v in self._signals.values()]
        every = np.unique(np.concatenate([[start, end], self.times, [float(t) for t in when], held, *kinks]))
        every = every[(every >= start) & (every <= end)]
        every = every[np.append(True, np.diff(every) > _ALIKE * (end - start))]
        counts = np.ceil(np.diff(every) / (end - start) * self.steps - 1e-9).astype(int)
        left, width = every[:-1], np.diff(every) / np.maximum(counts, 1)
        nodes = (left[i] + width[i] * j for i, n in enumerate(counts.tolist()) for j in range(max(n, 1)))
        return np.array([*nodes, end])

    def _node(self, times: Any) -> list[int]:
        return np.argmin(np.abs(self._nodes[:, None] - np.atleast_1d(times)[None]), axis=0).tolist()

    def _inputs(self) -> Any:
        """Return cubics of the inputs in each step, (4 n_u, N)."""
        q, d, chosen, _ = self._symbols
        middle, names = 0.5 * (self._nodes[1:] + self._nodes[:-1]), self.known.extended.model.inputs
        u = _ca.SX(4 * len(names), middle.size)
        for i, n in enumerate(names):
            if n not in self._signals:
                u[4 * i : 4 * i + 4, :] = _ca.DM(input_cubics([self._experiment.inputs[n]], self._nodes)[:, 0].T)
                continue
            edges = edges_of(self.said, self._signals[n], self._experiment.start)
            own = [c for c in choices_in([self._signals[n]]) if c.pieces > 1]
            graph = _ca.Function("piece", [*(c.symbol for c in own), q, d], [self._told(self._signals[n])])
            piece = np.clip(np.searchsorted(edges, middle) - 1, 0, edges.size - 2)
            there = (chosen[c.name][np.minimum(piece, c.pieces - 1).tolist()].T for c in own)
            u[4 * i, :] = graph.map(piece.size)(*there, *(_ca.repmat(of, 1, piece.size) for of in (q, d)))
        return u

    def _beside(self, values: Any, n: int) -> Any:
        """Append to each column (m, K) its derivatives by n of q, in one sparsity pattern: (m, K (1 + n))."""
        m, K = values.shape
        slopes = _ca.jacobian(_ca.vec(_ca.densify(values)), self._symbols[0])[:, :n]
        whole = _ca.sparsify(_ca.horzcat(values, *(_ca.reshape(slopes[:, j], m, K) for j in range(n))))
        whole = whole[:, [k + K * j for k in range(K) for j in range(1 + n)]]
        rows, columns = (np.array(of, dtype=int) for of in whole.sparsity().get_triplet())
        used = np.unique([rows, columns % (1 + n)], axis=1).tolist()
        return _ca.project(whole, _ca.repmat(_ca.Sparsity.triplet(m, 1 + n, *used), 1, K))

    def _step(self, given: Any, moving: list[str]) -> Any:
        """Return one step  (Z, t, h, g) -> Z;  g: parameters, times and amounts of moving doses, cubics, rates more."""
        model, system, m = self.known.extended.model, self.known.extended.model.system, len(moving)
        n_x, n_p, n_u = system.x.numel(), system.p.numel(), system.u.numel()
        right: Any = system.function("right", system.ode)
        Z, g, t, h = _ca.SX.sym("Z", n_x, given.size2()), _ca.SX.sym("g", given), _ca.SX.sym("t"), _ca.SX.sym("h")
        p, tau, a, u, r = _ca.vertsplit(g[:, 0], np.cumsum([0, n_p, m, m, 4 * n_u, n_x]).tolist())

        def f(at: Any, y: Any) -> Any:
            now = _ca.reshape(u, 4, n_u).T @ _ca.vertcat(*[(at - t) ** i for i in range(4)])
            return right(at, y, _ca.SX(0, 1), p, now) + r

        def advanced(at: Any, y: Any, by: Any) -> Any:
            k1 = f(at, y)
            k2 = f(at + by / 2, y + by / 2 * k1)
            k3 = f(at + by / 2, y + by / 2 * k2)
            return y + by / 6 * (k1 + 2 * k2 + 2 * k3 + f(at + by, y + by * k3))

        y: Any = Z[:, 0]
        at: Any = t
        for j, into in enumerate(moving):
            now = _ca.fmax(at, _ca.fmin(tau[j], t + h))
            y, at = advanced(at, y, now - at), now
            y[model.states.index(into)] += _ca.if_else(_ca.logic_and(tau[j] >= t, tau[j] < t + h), a[j], 0)
        moved = _moved(advanced(at, y, t + h - at), Z, g)
        return _ca.Function("step", [Z, t, h, g], [moved], {"cse": True, "is_diff_in": [True, False, False, True]})

    def _course(self, n: int) -> _Course:
        """Return the course, with its derivatives by n of the q."""
        model, nodes, (q, d, _, natural) = self.known.extended.model, self._nodes, self._symbols
        N, h, n_u, n_p, system = nodes.size - 1, np.diff(nodes), len(model.inputs), len(model.parameters), model.system
        initial = {**initial_values(model, self._experiment), **self.said.initial}
        first = [natural["initial state", s] if isinstance(initial[s], Free) else initial[s] for s in model.states]
        p = [self._overrides.get(name, self._values.get(name, 0.0)) for name in model.parameters]
        moving = [one for one in self._happens if not one[1].is_constant()]
        u, rate, jumps, late = self._inputs(), _ca.SX(len(first), N), dict[int, list[Any]](), list[int]()
        Z, w, wide_q = *self._wide(n), _ca.horzcat(q, _ca.SX.eye(q.numel()))[:, : 1 + n]
        for o, time, amount in self._happens:
            i = self._node(float(time))[0] if time.is_constant() else -1
            into = model.states.index(o.into) if o.into else -1
            if o.until is not None:
                for j in range(i, self._node(float(self._told(o.until)))[0]):
                    rate[into, j] += amount
            elif i >= 0 and float(time) <= nodes[-1]:
                new = _ca.SX(system.x)
                for s, v in (o.changes or {o.into: system.x[into] + amount}).items():
                    new[model.states.index(s)] = self._told(v)
                jump = _ca.Function("jump", [system.x, system.t, system.u, q, d], [new])
                moved = _moved(jump(Z[:, 0], system.t, w[n_p:, 0], q, d), Z, w, wide_q)
                jumps.setdefault(i, []).append(_ca.Function("jump", [Z, system.t, w, q, d], [moved]))
                late += [i] if o.measured == "after" else []
        powers = _ca.DM(np.tile(h[None] ** np.arange(4)[:, None], (n_u, 1)).reshape(4 * n_u, N))
        before = _ca.horzcat(
            u[::4, 0], _ca.DM(np.kron(np.eye(n_u), np.ones((1, 4))).reshape(n_u, 4 * n_u)) @ (u * powers)
        )
        same = self._beside(
            _ca.vertcat(
                self._told(_ca.vertcat(_ca.SX(0, 1), *p)), *(t for _, t, _ in moving), *(a for _, _, a in moving)
            ),
            n,
        )
        steps = _ca.vertcat(_ca.repmat(same, 1, N), self._beside(_ca.vertcat(u, rate), n))
        sides = [_ca.vertcat(_ca.repmat(same[:n_p, :], 1, N + 1), self._beside(of, n))
                 for of in (before, _ca.horzcat(u[::4, :], before[:, -1]))]  # fmt: skip
        Q, D = _ca.MX.sym("Q", q.numel()), _ca.MX.sym("D", d.numel())
        given = _ca.Function("given", [q, d], [self._beside(self._told(_ca.vertcat(*first)), n), steps, *sides])
        z: Any
        z, steps, *sides = given(Q, D)
        step = self._step(steps[:, : 1 + n].sparsity(), [o.into for o, _, _ in moving])
        courses, after = [z], list[Any]()
        for i, j in pairwise([*sorted({0, N, *(i for i in jumps if i < N)}), N]):
            for jump in jumps.get(i, ()):
                z = jump(z, float(nodes[i]), _columns(sides[0], [i], n), Q, D)
            after.append(z)
            if j > i:
                of = steps[:, i * (1 + n) : j * (1 + n)]
                courses.append(step.mapaccum(j - i)(z, nodes[None, i:j], h[None, i:j], of))
                after.append(courses[-1][:, : -1 - n])
                z = courses[-1][:, -1 - n :]
        X, Y = _ca.horzcat(*courses), _ca.horzcat(*after)
        seen = _ca.horzcat(*(_columns(Y if i in late else X, [i], n) for i in range(N + 1))) if late else X
        return _Course(n, Q, D, (seen, sides[0]), (Y, sides[1]))

    def _wide(self, n: int) -> tuple[Any, Any]:
        """Return symbols of states and of parameters and inputs, with derivatives by n of the q beside them."""
        system = self.known.extended.model.system
        return _ca.SX.sym("Z", system.x.numel(), 1 + n), _ca.SX.sym("w", system.p.numel() + system.u.numel(), 1 + n)

    def _shown(self, expression: Any, Z: Any, w: Any) -> Any:
        """Return an expression of the system (m,), with its derivatives beside it, of wide symbols."""
        system = self.known.extended.model.system
        p, u = _ca.vertsplit(w[:, 0], [0, system.p.numel(), w.size1()])
        graph: Any = system.function("shown", _ca.densify(expression))
        return _moved(graph(system.t, Z[:, 0], _ca.SX(0, 1), p, u), Z, w)

    @cached_property
    def _rows(self) -> tuple[_Course, Any]:
        """Course of the states, and the information rows at each time, (q, n n_q), or (2 q, n n_q) if spreads are
        computed.
        """
        known, model, condition = self.known, self.known.extended.model, self.known.condition(self.k)
        course, names, place = self._course(self.theta.size), known.candidates[self.k].outputs, self._node(self.times)
        noises: list[Any] = [condition.observed[known.extended.outputs.index(o)] for o in names]
        spreads = [of.predicted[1] for of in noises if of.computed]
        (Z, w), given = self._wide(course.n), _ca.SX.sym("s", len(names))
        y = self._shown(by_name(_ca.vertcat(*(model.outputs[n] for n in (*names, *spreads))), model.system), Z, w)
        sigma, rows, scatter = np.zeros((len(names), self.times.size)), list[Any](), list[Any]()
        for j, (name, of) in enumerate(zip(names, noises, strict=True)):
            location, scale = informations(of.noise)
            mu, s, said = y[j, 0], given[j], known.spread_of(self.k, name, self.times)
            if of.computed:
                at = len(names) + spreads.index(of.predicted[1])
                s = y[at, 0]
                scatter.append(np.sqrt(scale) * y[at, 1:] / s)
            elif isinstance(said, Relative):
                s = _ca.fmax(said.fraction * _ca.fabs(mu), said.floor)
            else:
                sigma[j] = said
            if not of.computed and spreads:
                scatter.append(_ca.SX(1, course.n))
            if isinstance(of.noise, (Poisson, NegativeBinomial)):
                s = _ca.sqrt(mu + (s * mu**2 if isinstance(of.noise, NegativeBinomial) else 0))
            rows.append(np.sqrt(location) * y[j, 1:] / (s * mu if isinstance(of.noise, LogNormal) else s))
        told: Any = _ca.Function("told", [Z, model.system.t, w, given], [_ca.densify(_ca.vertcat(*rows, *scatter))])
        states, inputs = (_columns(of, place, course.n) for of in course.before)
        return course, told.map(len(place))(states, self._nodes[None, place], inputs, _ca.DM(sigma))

    @cached_property
    def _told_rows(self) -> Any:
        course, rows = self._rows
        return _ca.Function("rows", [course.Q, course.D], [rows])

    @cached_property
    def _pull(self) -> Any:
        (course, rows), seed = self._rows, _ca.MX.sym("seed", *self._rows[1].shape)
        pulled = _ca.gradient(_ca.dot(seed, rows), course.D)
        return _ca.Function("pull", [course.Q, course.D, seed], [_ca.densify(pulled)])

    @cached_property
    def _held(self) -> Any:
        course, model, left = self._course(0), self.known.extended.model, [_ca.MX(0, 1)]
        Z, w = self._wide(0)
        for c in self.constraints:
            nodes = list(range(self._nodes.size)) if c.times == ALONG else self._node(c.times)
            value = self._shown(in_symbols(model, c.expression), Z, w)
            graph = _ca.Function("value", [Z, model.system.t, w], [value]).map(len(nodes))
            for states, inputs in (course.before, course.after):
                there = graph(states[:, nodes], self._nodes[None, nodes], inputs[:, nodes]).T
                left += [sign * (there - bound) for sign, bound in ((1, c.lower), (-1, c.upper)) if np.isfinite(bound)]
        held = _ca.vertcat(*left)
        return _ca.Function("held", [course.Q, course.D], [held, _ca.densify(_ca.jacobian(held, course.D))])

    def rows(self, theta: Array, d: Array) -> Array:
        """Compute the information rows of the values by search scale, (n, n_outputs, 2, n_theta)."""
        out = np.zeros((self.times.size, len(self.known.candidates[self.k].outputs), 2, theta.size))
        told = np.array(self._told_rows.call([theta[self.theta], d])[0])
        told = told.reshape(-1, out.shape[1], self.times.size, self.theta.size)
        out[:, :, : len(told), self.theta] = told.transpose(2, 1, 0, 3)
        return out

    def pull(self, theta: Array, d: Array, seed: Array) -> Array:
        """Return the gradient by d (n_d,) of the product of the rows with seeds of the same shape."""
        rows, columns = self._rows[1].shape
        own = seed[..., self.theta].transpose(2, 1, 0, 3).reshape(-1, columns)[:rows]
        return np.array(self._pull.call([theta[self.theta], d, own])[0]).ravel()

    def held(self, theta: Array, d: Array) -> tuple[Array, Array]:
        """Compute the slacks of constraints (n,), nonnegative where satisfied, and their derivatives by d (n, n_d)."""
        value, slope = self._held.call([theta[self.theta], d])
        return np.array(value).ravel(), np.array(slope)


@dataclass(frozen=True, eq=False)
class _Course:
    """Graphs of q and d: states, and parameters with inputs, before and after what happens at nodes.

    The derivatives by n of the q stand beside each column.
    """

    n: int
    Q: Any
    D: Any
    before: tuple[Any, Any]
    after: tuple[Any, Any]


def _columns(wide: Any, nodes: list[int], n: int) -> Any:
    """Return the columns of the given nodes, with their derivative columns."""
    return wide[:, [i * (1 + n) + j for i in nodes for j in range(1 + n)]]


def _moved(expression: Any, *wide: Any) -> Any:
    """Append to an expression (m,) of first columns its derivatives, by the chain rule from the other columns."""
    if wide[0].size2() == 1:
        return _ca.densify(expression)
    symbols = _ca.vertcat(*(w[:, 0].nz[:] for w in wide))
    seeds = _ca.vertcat(*(w[w[:, 0].sparsity().row(), 1:] for w in wide))
    return _ca.densify(_ca.horzcat(expression, _ca.jtimes(expression, symbols, seeds)))
