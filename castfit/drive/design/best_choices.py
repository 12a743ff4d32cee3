"""Optimisation of the choices of a design; the weights of samples are projected out by an inner convex problem.

    F(d) = min_w f(M(w, d)),    M(w, d) = M0 + sum_i w_i J_i(d)' J_i(d)

The inner problem is convex, and solved with its certificate by castfit.drive.design.interior_point; the weights need no
derivatives (Danskin 1967), so that with G of the criterion's tangent

    dF/dd = -tr(G dM/dd) = -2 sum_i w_i <J_i G, dJ_i/dd>

takes one sweep backwards through the graph of the sensitivities.  F is not convex: quasi-Newton steps within bounds, or
quadratic programs with constraints, begin at the middle, at what the experiment was like, at corners and at random, and
again beside the best local optima.  The graph is never believed: its slopes are compared with those of the integrated
model at the middle and at the end of every search, and there are more steps until both agree.

Notation:  z (n_z,) in [0, 1] are all choices between their bounds, one after the other;  d those of one candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np
from scipy.optimize import minimize

from castfit._support.reprs import listed
from castfit._support.status import InputError, check, suggest
from castfit._support.time_limit import unwatched
from castfit.drive.design.choices import DesignChoice, chosen_in, edges_of, places_of
from castfit.drive.design.interior_point import DesignGoal, Offers, relaxed
from castfit.drive.design.purchases import Purchases, offered
from castfit.drive.design.sensitivity_graph import SensitivityGraph, in_symbols
from castfit.model.expressions import exchanged
from castfit.problem.constraints import ALONG, Constraint, read_constraints, repeated_names
from castfit.simulate.output_sensitivities import responses

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.drive.design.candidate import Candidate
    from castfit.drive.design.knowledge import Knowledge
    from castfit.drive.design.proposal import Design

    Numbers = dict[str, Array]
    End = tuple[float, Array]

_STEPS, _MOST_STEPS = 60, 4000  # of Runge and Kutta over an experiment, at least
_NEAR, _NEARER = 1e-9, 1e-13  # of the criterion: what ends a local search, and the last one
_ROUGHLY, _AGREEING, _APART = 1e-3, 1e-4, 1e-2  # of the largest slope: for a search, for its end, no agreement at all
_KEPT = 1e-5  # of its size: what a constraint may be violated by
_SAME = 1e-4  # of a logarithm: starts that end as near have found the same
_NOWHERE = 1e8  # the logarithm of what cannot be integrated
_DISTINCT, _BESIDE, _TRIED, _ELSEWHERE = 4, 60, 3, 0.05  # optima; points beside one; those tried; their distance in z
_AGAIN, _GAIN = 10, 1e-8  # times that choices are sought again, and what that must bring for whole numbers
_FINE = 400  # times at which the integrated model is looked at


def path_constraints(
    given: Any, known: Knowledge, choices: Sequence[DesignChoice], mistakes: list[str]
) -> list[Constraint]:
    """Read constraints as `control` takes them: along courses, at times, or relations of choices."""
    every, model = read_constraints(given or (), mistakes), known.extended.model
    mistakes += repeated_names(every)
    names = {c.name for c in choices if c.pieces == 1}
    courses = {*model.outputs, *model.parameters, *model.inputs, model.system.t.name()}
    last = max(float(c.times[-1]) for c in known.candidates)
    for c in every:
        inside, path = {s.name() for s in ca.symvar(c.expression)}, _on_course(c)
        strange = sorted(inside - (courses if path else names))
        if c.of != "value":
            mistakes.append(f"constraint '{c.name}' bounds a rate of change; bound a state or an output")
        elif path:
            mistakes += [f"constraint '{c.name}' contains '{n}': {suggest(n, courses)}" for n in strange]
        elif strange:
            mistakes.append(f"constraint '{c.name}' contains {listed(strange)}; along a course write cf.along(...), "
                            "else constrain single numbers that cf.choose returned")  # fmt: skip
        wrong = [n for n in c.experiments if n not in known.labels]
        mistakes += [f"constraint '{c.name}' names '{n}': {suggest(n, known.labels)}" for n in wrong]
        if isinstance(c.times, tuple) and max(c.times) > last:
            mistakes.append(f"constraint '{c.name}' is at a time after the last measurement time of every candidate")
    return list(every)


def _on_course(c: Constraint) -> bool:
    return c.times == ALONG or isinstance(c.times, tuple)


@dataclass(frozen=True, eq=False)
class ChoiceSearch:
    """The criterion as a function of choices, the weights of samples at their best, in the criterion's order."""

    known: Knowledge
    bought: Purchases
    goal: DesignGoal
    order: Index
    said: Sequence[Candidate]
    choices: Sequence[DesignChoice]
    constraints: Sequence[Constraint]
    steps: int = _STEPS
    _weights: dict[str, Array] = field(default_factory=dict[str, "Array"])

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper ones of the choices, (n_z,) each."""
        every = np.array([pair for c in self.choices for pair in c.pieces * [(c.low, c.high)]], dtype=float)
        return every[:, 0], every[:, 1]

    @cached_property
    def place(self) -> dict[str, Index]:
        """Indices in z of each choice, by name."""
        ends = np.cumsum([0, *(c.pieces for c in self.choices)]).tolist()
        return {c.name: np.arange(i, i + c.pieces) for c, i in zip(self.choices, ends[:-1], strict=True)}

    @cached_property
    def graphs(self) -> dict[int, SensitivityGraph]:
        """The candidates in which something is chosen."""
        return {
            k: SensitivityGraph(self.known, k, c, self.bought.values[0][k].times, self.along(k), self.steps)
            for k, c in enumerate(self.said)
            if places_of(c)
        }

    def along(self, k: int) -> tuple[Constraint, ...]:
        """Return the constraints of candidate k's course."""
        label = self.known.labels[k]
        own = (c for c in self.constraints if _on_course(c))
        return tuple(c for c in own if not c.experiments or label in c.experiments)

    @cached_property
    def _relative(self) -> Array:
        """From rows by the extended problem's theta to those by relative changes, in the criterion's order."""
        columns = np.zeros((self.known.columns.size, len(self.known.names)))
        columns[np.arange(self.known.columns.size), self.known.columns] = self.known.units[self.known.columns]
        return columns[:, self.order]

    @cached_property
    def _samples(self) -> list[tuple[Array, Array]]:
        """Pairs of theta and the information without any candidate, one for each sample, in the criterion's order."""
        samples, own = range(len(self.known.thetas)), np.ix_(self.order, self.order)
        return [(self.known.theta(s), self.known.known(s)[own]) for s in samples]

    @cached_property
    def _whole(self) -> Any:
        """CasADi function of z: slacks of the relations between choices, and their Jacobian."""
        z, (low, high), left = ca.SX.sym("z", self.bounds[0].size), self.bounds, [ca.SX(0, 1)]
        numbers = {n: low[i[0]] + (high[i[0]] - low[i[0]]) * z[int(i[0])] for n, i in self.place.items() if i.size == 1}
        for c in (one for one in self.constraints if not _on_course(one)):
            value = exchanged(c.expression, numbers)
            left += [sign * (value - bound) for sign, bound in ((1, c.lower), (-1, c.upper)) if np.isfinite(bound)]
        held = ca.vertcat(*left)
        return ca.Function("held", [z], [held, ca.densify(ca.jacobian(held, z))])

    def numbers(self, z: Array) -> Numbers:
        """Return the choices, (pieces,) each, by name."""
        d = self.bounds[0] + (self.bounds[1] - self.bounds[0]) * z
        return {name: d[place] for name, place in self.place.items()}

    def _own(self, k: int, z: Array) -> tuple[Index, Array]:
        """Return the indices in z of the choices of candidate k, and their values d."""
        names, numbers = [c.name for c in self.graphs[k].choices], self.numbers(z)
        return np.concatenate([self.place[n] for n in names]), np.concatenate([numbers[n] for n in names])

    def rows(self, z: Array, s: int, k: int) -> Array:
        """Return the information rows of candidate k at sample s, (n, n_outputs, 2, n_u)."""
        if k not in self.graphs:
            return self.bought.values[s][k].rows[..., self.order]
        return self.graphs[k].rows(self._samples[s][0], self._own(k, z)[1]) @ self._relative

    def apart(self, bought: Purchases, z: Array) -> float:
        """Return by how much what candidates tell at z differs from what the integrated model says, relatively."""
        return self._off({k: bought.values[0][k].rows[..., self.order] for k in self.graphs}, z)

    def unsteady(self, z: Array) -> float:
        """Return by how much it differs from what twice the steps say."""
        return self._off({k: self.finer.rows(z, 0, k) for k in self.graphs}, z)

    def _off(self, true: dict[int, Array], z: Array) -> float:
        with np.errstate(invalid="ignore"):
            found = [np.abs(self.rows(z, 0, k) - rows).max() / (np.abs(rows).max() or 1.0) for k, rows in true.items()]
        return float(max(found)) if np.isfinite(found).all() else np.inf

    @cached_property
    def finer(self) -> ChoiceSearch:
        """Copy of the search with twice as many integration steps."""
        return replace(self, steps=2 * self.steps)

    def value(self, z: Array, counts: Array | None = None, *, sloped: bool = True) -> tuple[float, Array]:
        """Return the logarithm of the criterion, with its gradient by z, of the best weights or of given ones."""
        nowhere, criterion, S = (_NOWHERE, np.zeros(z.size)), self.goal.criterion, len(self._samples)
        every = [[self.rows(z, s, k) for k in range(len(self.said))] for s in range(S)]
        if not all(np.isfinite(rows).all() for of in every for rows in of):
            return nowhere
        nu = 1e-9
        if counts is None and (counts := self._everything) is None:
            found = relaxed(self.goal, self._offers(every), start=self._weights.get("last"))
            if found is None:
                return nowhere
            counts, nu = found.w, found.mu
            self._weights["last"] = counts  # where the next inner problem begins
        value, slope = float(self.bought.offers.price @ counts), np.zeros(z.size)
        shares: list[Array] = [np.append(counts, 1.0)[place][..., None, None] for place in self._place_of]
        for (theta, M0), of in zip(self._samples, every, strict=True):
            flat = [rows.reshape(-1, M0.shape[0]) for rows in of]
            M = M0 + sum((share * rows).reshape(one.shape).T @ one
                         for share, rows, one in zip(shares, of, flat, strict=True))  # fmt: skip
            at = criterion.tangent(M, M0, nu)
            if at is None:
                return nowhere
            value += at.value / S
            for k, graph in self.graphs.items() if sloped else ():
                place, d = self._own(k, z)
                seed = -2.0 / S * shares[k] * (of[k] @ (at.G @ self._relative.T))
                slope[place] += graph.pull(theta, d, seed)
        slope *= self.bounds[1] - self.bounds[0]
        if criterion.logarithmic or self.bought.offers.price.any():
            return value, slope
        return float(np.sign(value) * np.log(abs(value))), slope / abs(value)

    @cached_property
    def _everything(self) -> Array | None:
        return self.bought.offers.everything

    @cached_property
    def _place_of(self) -> list[Index]:
        """Index in the counts of each value (n, n_outputs) of each candidate; one past the end for fixed candidates."""
        bought, found = self.bought, list["Index"]()
        for k, (c, values) in enumerate(zip(self.said, bought.values[0], strict=True)):
            place = np.full((values.times.size, len(values.outputs)), bought.candidate.size)
            for i in np.flatnonzero(bought.candidate == k) if not c.fixed else ():
                t, o = int(bought.time[i]), int(bought.output[i])
                place[slice(None) if t < 0 else t, slice(None) if o < 0 else o] = i
            found.append(place)
        return found

    def _offers(self, every: list[list[Array]]) -> Offers:
        """Build the offers from the information rows of each sample and candidate."""
        pairs = zip(self.bought.values, every, strict=True)
        values = [[replace(one, rows=rows) for one, rows in zip(*of, strict=True)] for of in pairs]
        J, M0 = offered(self.known, values, np.array([M for _, M in self._samples]))
        return replace(self.bought.offers, J=J, M0=M0)

    def held(self, z: Array) -> tuple[Array, Array]:
        """Compute the slacks of all constraints, (n,), and their derivatives by z, (n, n_z)."""
        found: list[Any] = [self._whole.call([z])]
        for k, graph in self.graphs.items():
            place, d = self._own(k, z)
            left, by = graph.held(self.known.theta(), d)
            wide = np.zeros((left.size, z.size))
            wide[:, place] = by * (self.bounds[1] - self.bounds[0])[place]
            found.append((left, wide))
        return np.concatenate([np.array(v).ravel() for v, _ in found]), np.concatenate([np.array(s) for _, s in found])

    def local(self, z: Array, counts: Array | None, stop: Callable[[], bool], near: float = _NEAR) -> End:
        """Return the best point near z that keeps the constraints, with its value; infinite if there is none."""
        best: list[Any] = [np.inf, z]
        size = np.abs(np.nan_to_num(self.held(z)[0])) if self.constraints else np.empty(0)
        size = np.maximum(size, 1e-3 * max(float(size.max(initial=0.0)), 1e-300))

        def of(point: Any) -> Any:
            found = self.value(np.asarray(point, dtype=float), counts)
            if found[0] < min(best[0], _NOWHERE) and (not size.size or left(point).min() >= -_GAIN):
                best[:] = [found[0], np.array(point)]
            if stop():
                raise StopIteration
            return found

        def left(point: Any) -> Array:
            return self.held(point)[0] / size

        def by(point: Any) -> Array:
            return self.held(point)[1] / size[:, None]

        common: Any = {"jac": True, "bounds": [(0.0, 1.0)] * z.size}
        solve: Any = minimize
        try:
            if self.constraints:
                rule: Any = {"type": "ineq", "fun": left, "jac": by}
                solve(of, z, method="SLSQP", constraints=[rule], options={"maxiter": 200, "ftol": near}, **common)
            else:
                solve(of, z, method="L-BFGS-B", options={"maxiter": 300, "ftol": near, "gtol": 1e-9}, **common)
        except StopIteration:
            pass
        return best[0], best[1]

    def starts(self, count: int, rng: np.random.Generator) -> list[Array]:
        """Return starting points: the middle, the values of the base experiments, both bounds, then corners and
        random points.

        Of three more one is a corner in which inputs are pulses, early or late, one any corner, and one any point.
        """
        n = self.bounds[0].size
        found = [np.full(n, 0.5), self._old(), np.zeros(n), np.ones(n)]
        for i in range(len(found), count):
            z = rng.random(n) if i % 3 == 0 else rng.integers(0, 2, n).astype(float)
            late, length = (i - 4) // 3 % 2, (i - 4) // 6 + 1
            for place in self.place.values() if i % 3 == 1 else ():
                pulse = np.arange(place.size) < length
                z[place] = pulse[::-1] if late else pulse
            found.append(z)
        return found[:count]

    def _old(self) -> Array:
        """Return z with the values of the base experiments in the place of choices, and the middle where there are
        none.
        """
        z, (low, high) = np.full(self.bounds[0].size, 0.5), self.bounds
        experiments, model = {e.name: e for e in self.known.problem.experiments}, self.known.problem.own_model
        for said in (self.said[k] for k in self.graphs):
            base = experiments[said.experiment or next(iter(experiments))]
            had: dict[str, Any] = {**model.initial, **base.initial, **base.inputs}
            for name, value in {**said.initial, **said.inputs}.items():
                was = getattr(had.get(name), "guess", had.get(name))
                place = self.place.get(str(value))
                if place is None or was is None or (isinstance(was, ca.SX) and not was.is_constant()):
                    continue
                edges = edges_of(said, value, base.start)
                number: Any = was(0.5 * (edges[1:] + edges[:-1])) if callable(was) else float(was)
                z[place] = np.clip((number - low[place]) / (high - low)[place], 0.0, 1.0)
        return z

    def beside(self, z: Array, rng: np.random.Generator) -> list[Array]:
        """Return points of which one choice is elsewhere, or in which an input comes a piece earlier or later."""
        found = [np.where(np.arange(z.size) == i, value, z) for i, value in product(range(z.size), (0.0, 0.5, 1.0))]
        for place, by in product(self.place.values(), (-1, 1)):
            found.append(z.copy())
            found[-1][place] = np.roll(z[place], by)
        found = [y for y in found if np.abs(y - z).max() > _ELSEWHERE]
        return found if len(found) <= _BESIDE else [found[i] for i in rng.choice(len(found), _BESIDE, replace=False)]


def _value(end: End) -> float:
    return end[0]


def chosen_design(
    search: ChoiceSearch, at: Callable[[Numbers], tuple[Knowledge, Purchases]],
    designed: Callable[[Knowledge, Purchases], Design], starts: int, rng: np.random.Generator, stop: Callable[[], bool],
) -> Design:  # fmt: skip
    """Return the design of samples at the best choices, which are sought for it again where it is of whole numbers.

    at : the integrated model at numbers;  designed : the best design of samples there
    """
    known, said = search.known, search.said

    def integrated(z: Array) -> tuple[Knowledge, Purchases]:
        with unwatched():  # what was found is judged, however late it is
            return at(search.numbers(z))

    check("design", [m for graph in search.graphs.values() for m in graph.obstacles])
    trusted = TrustedSearch(search, integrated, stop)
    z, off, there = trusted.run(starts, rng)
    search = trusted.search
    found = designed(*there)
    for _ in range(_AGAIN if found.exact and not stop() else 0):
        value, moved = search.local(z, found.counts, stop, _NEARER)
        if not value < search.value(z, found.counts, sloped=False)[0] - _GAIN:
            break
        other = designed(*integrated(moved))
        if not other.value < found.value - _GAIN * abs(found.value):
            break
        found, z = other, moved
    ends = f"{sum(one <= _SAME for one in off) or 'none'} of which converged to this design"
    remark = f"Best design of {len(off)} starting points, {ends}; a better one may exist."
    chosen = {known.labels[k]: chosen_in(said[k], search.numbers(z)) for k in search.graphs}
    return replace(found, chosen=chosen, remarks=(*found.remarks, remark, *_kept(found.known, search)))


@dataclass(eq=False)
class TrustedSearch:
    """Local searches whose ends the integrated model confirms; where it does not there are more steps from then on."""

    search: ChoiceSearch
    integrated: Callable[[Array], tuple[Knowledge, Purchases]]
    stop: Callable[[], bool]

    def local(self, z: Array, within: float = _ROUGHLY, below: float = np.inf) -> End:
        """Return the best point near z; twice the steps confirm it if its value, infinite without one, is below."""
        near = _NEAR if within == _ROUGHLY else _NEARER
        while True:
            end = self.search.local(z, None, self.stop, near)
            if self.stop() or not end[0] < below or self._steady(end[1], within):
                return end
            z = z if within == _ROUGHLY else end[1]

    def _steady(self, z: Array, within: float) -> bool:
        """Check whether twice the steps give the same rows at z, or the step limit is reached.

        If not, double the steps.
        """
        if self.search.steps >= _MOST_STEPS or self.search.unsteady(z) <= within:
            return True
        self.search = self.search.finer
        return False

    def improved(self, end: End, rng: np.random.Generator) -> End:
        """Improve a local optimum by local searches from points beside it, as long as the value decreases."""
        for _ in range(_AGAIN):
            near = sorted(
                (self.search.value(y, sloped=False)[0], i, y) for i, y in enumerate(self.search.beside(end[1], rng))
            )
            tried = (self.local(y, below=end[0]) for value, _, y in near[:_TRIED] if value < _NOWHERE)
            best = min(tried, key=_value, default=end)
            if self.stop() or not best[0] < end[0] - _SAME:
                break
            end = best
        return end

    def run(self, starts: int, rng: np.random.Generator) -> tuple[Array, list[float], tuple[Knowledge, Purchases]]:
        """Search from all starts and beside the best local optima.

        Return z, the excess of each start, and the model at z.
        """
        middle = np.full(self.search.bounds[0].size, 0.5)
        while self.search.apart(self.search.bought, middle) > _ROUGHLY and self.search.steps < _MOST_STEPS:
            self.search = self.search.finer
        ends: list[End] = []
        for start in self.search.starts(starts, rng):
            ends.append(self.local(start, below=min(ends, key=_value, default=(np.inf, start))[0]))
            if self.stop():
                break
        ranked = sorted(ends, key=_value)
        if not np.isfinite(ranked[0][0]):
            what = "keeps the constraints" if self.search.constraints else "can be integrated"
            raise InputError("design", [f"none of {len(ends)} starting points led to a design that {what}; narrow the "
                                        "bounds of cf.choose, or relax the constraints"])  # fmt: skip
        lone = [end for i, end in enumerate(ranked) if not i or end[0] > ranked[i - 1][0] + _SAME][:_DISTINCT]
        value, z = min((self.improved(end, rng) for end in lone if np.isfinite(end[0])), key=_value)
        z = self.local(z, _AGREEING)[1]
        there = self.integrated(z)
        if (apart := self.search.apart(there[1], z)) > _APART:
            said = (
                f"{self.search.steps} Runge-Kutta steps differ from the accurately integrated model by {100 * apart:.2g} %"
            )
            raise InputError("design", [f"{said}: the model is too stiff for cf.choose; pass candidates with fixed numbers"])
        return z, [end - value for end, _ in ends], there


def _kept(known: Knowledge, search: ChoiceSearch) -> list[str]:
    """Return a remark for each path constraint: whether the integrated model satisfies it at the estimate."""
    found: list[str] = []
    for k, c in [(i, one) for i in search.graphs for one in search.along(i)]:
        label, last = known.labels[k], float(search.said[k].times[-1])
        posed = known.extended.showing({"constraint": in_symbols(known.extended.model, c.expression)})
        condition = next(one for one in posed.conditions if one.name == label)
        times = np.linspace(condition.start, last, _FINE) if c.times == ALONG else np.unique(np.array(c.times, float))
        there = responses(posed, condition, times, known.theta(), known.options, outputs=["constraint"])
        y = np.full(1, np.nan) if there is None else there.values[:, 0]
        beyond = np.maximum(c.lower - y, y - c.upper)
        worst = int(np.argmax(beyond))
        kept = bool(beyond[worst] <= _KEPT * np.abs(y).max())
        where = "" if kept else f" at t = {times[worst]:.4g}, where it is {y[worst]:.6g}"
        found.append(f"The integrated model of {label} {'satisfies' if kept else 'violates'} '{c.name}'{where}.")
    return found
