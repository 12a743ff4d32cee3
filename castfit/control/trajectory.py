"""The model integrated with error control under inputs that were found or guessed: starts, and the last judgement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.status import InputError
from castfit._support.time_limit import unwatched
from castfit.control.terms import END, INTEGRAL
from castfit.integrate import IntegratorOptions
from castfit.model.expressions import exchanged
from castfit.model.model import Model
from castfit.simulate.simulate import SimulationError, simulate

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.control.question import ControlQuestion
    from castfit.experiment.inputs import Input


@dataclass(frozen=True, eq=False)
class PlanCourse:
    """What was integrated: times (n,), states x (n, n_x), integrals (n, n_terms), algebraic states z (n, n_z).

    u (n, n_u) are the inputs just before each time, as a stage that ends there has them.
    """

    t: Array
    x: Array
    integrals: Array
    z: Array
    u: Array


class PlanJudge:
    """Integrates the model of a question, with the integrals of its objective and constraints as further states."""

    def __init__(self, question: ControlQuestion) -> None:
        self.question, system = question, question.model.system
        self.terms = [t for t in question.terms if t.kind == INTEGRAL]
        self.ends = [t for t in question.terms if t.kind == END]
        self.names = [f"integral {i + 1} of the plan" for i in range(len(self.terms))]
        integrals = {ca.SX.sym(n): t.expression for n, t in zip(self.names, self.terms, strict=True)}
        self.model = Model(
            {**dict(zip(_split(system.x), _split(system.ode), strict=True)), **integrals},
            algebraic=dict(zip(_split(system.z), _split(system.alg), strict=True)),
            parameters=_split(system.p), inputs=_split(system.u), time=system.t,
        )  # fmt: skip
        # Quantities that are no parameters may stand in expressions, by name.
        more = [ca.SX.sym(q.name) for q in question.quantities if q.name not in question.model.parameters]
        self._more = [s.name() for s in more]

        def over(expressions: Iterable[ca.SX]) -> ca.SX:
            column = ca.SX(ca.vertcat(*expressions))
            return ca.densify(exchanged(column, {s.name(): s for s in more}))

        groups = (
            [t.expression for t in self.ends],
            *([c.expression for c in g] for g in (question.path, question.points)),
        )
        q = ca.SX(ca.vertcat(*more))
        self._at = ca.Function("at", [*system.arguments, q], [over(g) for g in groups])
        self._mapped: dict[int, Any] = {}
        symbols = ca.SX(ca.vertcat(*(t.symbol for t in question.terms)))
        whole = [question.objective, *(c.expression for c in question.whole)]
        self._whole = ca.Function("whole", [symbols, system.p, q], [over(whole)])

    def integrated(
        self, p: Array, x0: Array, inputs: dict[str, Input], times: Array, tolerance: float = 1e-9
    ) -> PlanCourse | None:
        """Integrate from initial states x0 (n_x,); None where that is not possible."""
        question, model = self.question, self.question.model
        first: dict[str, Any] = dict(zip(model.states, x0.tolist(), strict=True))
        first |= dict.fromkeys(self.names, 0.0)
        first |= dict(zip(model.algebraic_states, question.algebraic_guess.tolist(), strict=True))
        options = IntegratorOptions(relative_tolerance=tolerance, absolute_tolerance=tolerance)
        values = dict(zip(model.parameters, p.tolist(), strict=True))
        try:
            with unwatched():  # what was found is to be judged, however little time is left
                found = simulate(self.model, values, times, initial=first, inputs=inputs, start=question.start,
                                 integrator=options)  # fmt: skip
        except (SimulationError, InputError):
            return None
        empty = np.empty((times.size, 0))
        x, integrals, z = (
            np.stack([found[n] for n in names], axis=1) if names else empty
            for names in (model.states, self.names, model.algebraic_states)
        )
        before = np.concatenate([times[:1], 0.5 * (times[1:] + times[:-1])])
        u = [inputs[n](before) if inputs[n].kind == "piecewise_constant" else inputs[n](times) for n in model.inputs]
        return PlanCourse(times, x, integrals, z, np.stack(u, axis=1) if u else empty)

    def at(self, course: PlanCourse, p: Array, quantities: dict[str, float]) -> tuple[Array, Array, Array]:
        """Return end terms, path and point constraints at all times of a course, (n, ...) each."""
        count = course.t.size
        more = np.tile(np.array([quantities[n] for n in self._more], dtype=float)[:, None], (1, count))
        wide = np.tile(p[:, None], (1, count))
        if count not in self._mapped:
            self._mapped = {count: self._at.map(count)}
        found = self._mapped[count](course.t[None], course.x.T, course.z.T, wide, course.u.T, more)
        ends, path, points = (np.asarray(f).T.reshape(count, -1) for f in found)
        return ends, path, points

    def whole(self, course: PlanCourse, p: Array, quantities: dict[str, float], horizon: float) -> Array:
        """Return the objective and the constraints of the horizon as a whole, as integrated."""
        ends = self.at(course, p, quantities)[0][-1]
        known = {id(t): v for t, v in zip(self.ends, ends.tolist(), strict=True)}
        known |= {id(t): v for t, v in zip(self.terms, course.integrals[-1].tolist(), strict=True)}
        values = np.array([known.get(id(t), horizon) for t in self.question.terms], dtype=float)
        more = np.array([quantities[n] for n in self._more], dtype=float)
        return np.asarray(self._whole(values, p, more)).ravel()


def _split(column: ca.SX) -> list[ca.SX]:
    return ca.vertsplit(column) if column.numel() else []
