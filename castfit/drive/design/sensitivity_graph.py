"""What a candidate tells, as a graph of its choices: Runge-Kutta steps, differentiated as often as it takes.

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
from castfit.integrate.trajectories import input_cubics
from castfit.model.expressions import exchanged
from castfit.model.model import by_name
from castfit.problem.compiled_experiments import resolved
from castfit.problem.constraints import ALONG, Constraint
from castfit.problem.parameters import initial_values
from castfit.problem.quantities import fixed_value

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """What candidate k tells at times (n,), with the constraints that hold there; `said` is it with its choices."""

    known: Knowledge
    k: int
    said: Candidate
    times: Array
    constraints: tuple[Constraint, ...]
    steps: int

    @property
    def obstacles(self) -> list[str]:
        """Say what the candidate has that no graph of steps holds."""
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
        """Those in the candidate, whose numbers are d one after the other."""
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
        """What names in expressions are: numbers, quantities, choices."""
        _, _, chosen, natural = self._symbols
        return {
            **{n: fixed_value(p, self.known.labels[self.k]) for n, p in self.known.extended.parameters.items()},
            **{of: s for (kind, of), s in natural.items() if kind == "parameter"},
            **{n: v for n, v in self._overrides.items() if not isinstance(v, ca.SX)},
            **{n: s for n, s in chosen.items() if s.numel() == 1},
        }

    def _told(self, value: Any, pieces: Mapping[str, Any] | None = None) -> Any:
        """Write a value over q and d; symbols of states, inputs and time are those of the system."""
        whole = exchanged(resolved(_ca.SX(value), self._overrides), {**self._values, **(pieces or {})})
        return by_name(whole, self.known.extended.model.system)

    @cached_property
    def _happens(self) -> list[tuple[Occurrence, Any, Any]]:
        """What happens, with its time and its amount or rate."""
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

    def _inputs(self, Q: Any, D: Any) -> Any:
        """Return cubics of the inputs in each step, (4 n_u, N)."""
        q, d, chosen, _ = self._symbols
        middle, rows = 0.5 * (self._nodes[1:] + self._nodes[:-1]), [_ca.MX(0, self._nodes.size - 1)]
        for n in self.known.extended.model.inputs:
            if n not in self._signals:
                rows.append(_ca.MX(_ca.DM(input_cubics([self._experiment.inputs[n]], self._nodes)[:, 0].T)))
                continue
            edges = edges_of(self.said, self._signals[n], self._experiment.start)
            of = [{m: s[min(j, s.numel() - 1)] for m, s in chosen.items()} for j in range(edges.size - 1)]
            each = _ca.Function("pieces", [q, d], [_ca.horzcat(*(self._told(self._signals[n], one) for one in of))])
            piece = np.clip(np.searchsorted(edges, middle) - 1, 0, edges.size - 2).tolist()
            rows.append(_ca.vertcat(each(Q, D)[:, piece], _ca.MX(3, middle.size)))
        return _ca.vertcat(*rows)

    def _inputs_before(self, u: Any) -> Any:
        """Return inputs just before each node, (n_u, N + 1)."""
        n_u, h = u.shape[0] // 4, np.diff(self._nodes)
        powers = _ca.DM(np.tile(h[None] ** np.arange(4)[:, None], (n_u, 1)).reshape(4 * n_u, h.size))
        last = _ca.DM(np.kron(np.eye(n_u), np.ones((1, 4))).reshape(n_u, 4 * n_u)) @ (u * powers)
        return _ca.horzcat(u[::4, 0], last)

    def _step(self, moving: list[str]) -> Any:
        """Return one step  (x, t, h, u, r, p, tau, a) -> x  at a rate r more, with doses a into states at tau."""
        model, system = self.known.extended.model, self.known.extended.model.system
        n_x, n_u = system.x.numel(), system.u.numel()
        right: Any = system.function("right", system.ode)
        sizes = {"x": n_x, "t": 1, "h": 1, "u": 4 * n_u, "r": n_x, "p": system.p.numel()}
        x, t, h, u, r, p = (_ca.SX.sym(n, size) for n, size in sizes.items())
        tau, a = _ca.SX.sym("tau", len(moving)), _ca.SX.sym("a", len(moving))

        def f(at: Any, y: Any) -> Any:
            now = _ca.reshape(u, 4, n_u).T @ _ca.vertcat(*[(at - t) ** i for i in range(4)])
            return right(at, y, _ca.SX(0, 1), p, now) + r

        def advanced(at: Any, y: Any, by: Any) -> Any:
            k1 = f(at, y)
            k2 = f(at + by / 2, y + by / 2 * k1)
            k3 = f(at + by / 2, y + by / 2 * k2)
            return y + by / 6 * (k1 + 2 * k2 + 2 * k3 + f(at + by, y + by * k3))

        y: Any = x
        at: Any = t
        for j, into in enumerate(moving):
            now = _ca.fmax(at, _ca.fmin(tau[j], t + h))
            y, at = advanced(at, y, now - at), now
            y[model.states.index(into)] += _ca.if_else(_ca.logic_and(tau[j] >= t, tau[j] < t + h), a[j], 0)
        return _ca.Function("step", [x, t, h, u, r, p, tau, a], [advanced(at, y, t + h - at)])

    def _states(self, Q: Any, D: Any, p: Any, u: Any) -> tuple[Any, Any]:
        """Return X and Y; where values are measured after what happens, X is Y."""
        model, (q, d, _, natural) = self.known.extended.model, self._symbols
        system, nodes, before = model.system, self._nodes, self._inputs_before(u)
        n, h = nodes.size - 1, np.diff(nodes)
        initial = {**initial_values(model, self._experiment), **self.said.initial}
        first = [natural["initial state", s] if isinstance(initial[s], Free) else self._told(initial[s])
                 for s in model.states]  # fmt: skip
        moving = [one for one in self._happens if not one[1].is_constant()]
        rate, jumps, late = _ca.MX(len(first), n), dict[int, list[Any]](), list[int]()
        for o, time, amount in self._happens:
            i = self._node(float(time))[0] if time.is_constant() else -1
            into = model.states.index(o.into) if o.into else -1
            if o.until is not None:
                during = (np.arange(n) >= i) & (np.arange(n) < self._node(float(self._told(o.until)))[0])
                unit = _ca.DM(np.eye(len(first))[:, into])
                rate += unit @ (_ca.Function("rate", [q, d], [amount])(Q, D) @ _ca.DM(during.astype(float)[None]))
            elif i >= 0 and float(time) <= nodes[-1]:
                new = _ca.SX(system.x)
                for s, v in (o.changes or {o.into: system.x[into] + amount}).items():
                    new[model.states.index(s)] = self._told(v)
                jumps.setdefault(i, []).append(_ca.Function("jump", [system.x, system.t, system.u, q, d], [new]))
                late += [i] if o.measured == "after" else []
        doses = [_ca.vertcat(_ca.SX(0, 1), *of) for of in ([t for _, t, _ in moving], [a for _, _, a in moving])]
        x: Any
        x, tau, a = _ca.Function("first", [q, d], [_ca.vertcat(*first), *doses])(Q, D)
        step, courses, after = self._step([o.into for o, _, _ in moving]), [x], list[Any]()
        for i, j in pairwise([*sorted({0, n, *(i for i in jumps if i < n)}), n]):
            for jump in jumps.get(i, ()):
                x = jump(x, float(nodes[i]), before[:, i], Q, D)
            after.append(x)
            if j > i:
                alike = (_ca.repmat(v, 1, j - i) for v in (p, tau, a))
                courses.append(step.mapaccum(j - i)(x, nodes[None, i:j], h[None, i:j], u[:, i:j], rate[:, i:j], *alike))
                after.append(courses[-1][:, :-1])
                x = courses[-1][:, -1]
        X, Y = _ca.horzcat(*courses), _ca.horzcat(*after)
        return (_ca.horzcat(*(Y[:, i] if i in late else X[:, i] for i in range(n + 1))) if late else X), Y

    @cached_property
    def functions(self) -> tuple[Any, Any, Any]:
        """(q, d) -> rows;  (q, d, seeds) -> gradient by d of their product;  (q, d) -> what constraints have left."""
        known, model, condition = self.known, self.known.extended.model, self.known.condition(self.k)
        q, d, _, _ = self._symbols
        Q, D = _ca.MX.sym("Q", q.numel()), _ca.MX.sym("D", d.numel())
        named = [self._overrides.get(n, self._values.get(n, 0.0)) for n in model.parameters]
        p = _ca.Function("p", [q, d], [_ca.vertcat(_ca.SX(0, 1), *(self._told(v) for v in named))])(Q, D)
        u = self._inputs(Q, D)
        X, Y = self._states(Q, D, p, u)
        before = self._inputs_before(u)

        def seen(expressions: Any, states: Any, inputs: Any, at: list[int]) -> Any:
            graph: Any = model.system.function("seen", _ca.densify(expressions)).map(len(at))
            return graph(
                self._nodes[None, at], states[:, at], _ca.MX(0, len(at)), _ca.repmat(p, 1, len(at)), inputs[:, at]
            )

        names, place = known.candidates[self.k].outputs, self._node(self.times)
        noises: list[Any] = [condition.observed[known.extended.outputs.index(o)] for o in names]
        spreads = [of.predicted[1] for of in noises if of.computed]
        shown = _ca.vertcat(*(by_name(_ca.SX(model.outputs[n]), model.system) for n in (*names, *spreads)))
        y = seen(shown, X, before, place)
        slopes: Any = _ca.vertsplit(
            _ca.densify(_ca.jacobian(_ca.vec(y.T), Q)), len(place)
        )  # one output after the other
        wide, rows, scatter = _ca.DM.ones(1, q.numel()), list[Any](), list[Any]()
        for j, (name, of) in enumerate(zip(names, noises, strict=True)):
            location, scale = informations(of.noise)
            mu, at = y[j, :].T, len(names) + (spreads.index(of.predicted[1]) if of.computed else 0)
            given = known.spread_of(self.k, name, self.times)
            s: Any = (
                _ca.fmax(given.fraction * _ca.fabs(mu), given.floor) if isinstance(given, Relative) else _ca.DM(given)
            )
            s = y[at, :].T if of.computed else s
            scatter.append(np.sqrt(scale) * slopes[at] / (s @ wide) if of.computed else _ca.MX(len(place), q.numel()))
            if isinstance(of.noise, (Poisson, NegativeBinomial)):
                s = _ca.sqrt(mu + (s * mu**2 if isinstance(of.noise, NegativeBinomial) else 0))
            rows.append(np.sqrt(location) * slopes[j] / ((s * mu if isinstance(of.noise, LogNormal) else s) @ wide))
        parts: list[Any] = [_ca.densify(_ca.vertcat(*of)) for of in ((rows, scatter) if spreads else (rows,))]
        seeds: list[Any] = [_ca.MX.sym("seed", *part.shape) for part in parts]
        pulled = _ca.gradient(_ca.vertcat(*map(_ca.dot, seeds, parts)).T @ _ca.DM.ones(len(parts)), D)
        left: list[Any] = [_ca.MX(0, 1)]
        after = _ca.horzcat(u[::4, :], before[:, -1])
        for c in self.constraints:
            nodes = list(range(self._nodes.size)) if c.times == ALONG else self._node(c.times)
            for states, inputs in ((X, before), (Y, after)):
                value = seen(in_symbols(model, c.expression), states, inputs, nodes).T
                left += [sign * (value - bound) for sign, bound in ((1, c.lower), (-1, c.upper)) if np.isfinite(bound)]
        held = _ca.vertcat(*left)
        return (
            _ca.Function("rows", [Q, D], parts),
            _ca.Function("pull", [Q, D, *seeds], [_ca.densify(pulled)]),
            _ca.Function("held", [Q, D], [held, _ca.densify(_ca.jacobian(held, D))]),
        )

    def rows(self, theta: Array, d: Array) -> Array:
        """Return what the values tell by search scale, (n, n_outputs, 2, n_theta)."""
        out = np.zeros((len(self.known.candidates[self.k].outputs), self.times.size, 2, theta.size))
        for i, part in enumerate(self.functions[0].call([theta[self.theta], d])):
            out[:, :, i, self.theta] = np.array(part).reshape(*out.shape[:2], -1)
        return np.swapaxes(out, 0, 1)

    def pull(self, theta: Array, d: Array, seed: Array) -> Array:
        """Return the gradient by d (n_d,) of the product of the rows with seeds of the same shape."""
        own = np.swapaxes(seed, 0, 1)[..., self.theta]
        parts = [own[:, :, i].reshape(-1, self.theta.size) for i in range(self.functions[0].n_out())]
        return np.array(self.functions[1].call([theta[self.theta], d, *parts])[0]).ravel()

    def held(self, theta: Array, d: Array) -> tuple[Array, Array]:
        """Return what constraints have left (n,), not negative where they are kept, and its derivatives (n, n_d)."""
        value, slope = self.functions[2].call([theta[self.theta], d])
        return np.array(value).ravel(), np.array(slope)
