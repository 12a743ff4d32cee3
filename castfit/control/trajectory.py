"""Integration of the model with error control under guessed or optimal inputs, for starts and verification."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import casadi as ca
import numpy as np

from castfit._support.status import InputError
from castfit._support.time_limit import without_deadline
from castfit.control.terms import END, INTEGRAL, TIME
from castfit.integrate import IntegratorOptions
from castfit.model.expressions import substitute_by_name
from castfit.model.model import Model
from castfit.simulate.simulate import SimulationError, simulate

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.control.question import ControlQuestion
    from castfit.experiment.inputs import Input


@dataclass(frozen=True, eq=False)
class PlanTrajectory:
    """Integrated trajectory: times t (n,), states x (n, n_x), integrals (n, n_terms), algebraic states z (n, n_z).

    u (n, n_u) are the inputs just before each time, as at the end of a stage.
    """

    t: Array
    x: Array
    integrals: Array
    z: Array
    u: Array


_MAX_FINAL_STATE_STEPS = 10  # Newton steps to states that satisfy the constraints of the end values
_N_EIGENVALUE_POINTS = 8  # points of a trajectory at which eigenvalues are computed


class PlanVerifier:
    """Integrator of a question's model, with the integrals of its objective and constraints as further states."""

    def __init__(self, question: ControlQuestion) -> None:
        self.question, system = question, question.model.system
        self.terms = [t for t in question.terms if t.kind == INTEGRAL]
        self.names = [f"integral {i + 1} of the plan" for i in range(len(self.terms))]
        integrals = {ca.SX.sym(n): t.expression for n, t in zip(self.names, self.terms, strict=True)}
        self.model = Model(
            {**dict(zip(_split_column(system.x), _split_column(system.ode), strict=True)), **integrals},
            algebraic=dict(zip(_split_column(system.z), _split_column(system.alg), strict=True)),
            parameters=_split_column(system.p), inputs=_split_column(system.u), time=system.t,
        )  # fmt: skip
        # Expressions may contain quantities other than parameters, by name.
        extra_symbols = {
            q.name: ca.SX.sym(q.name) for q in question.quantities if q.name not in question.model.parameters
        }
        self._extra_symbols, q = tuple(extra_symbols), ca.SX(ca.vertcat(*extra_symbols.values()))

        def over(expressions: Iterable[ca.SX]) -> ca.SX:
            return ca.densify(substitute_by_name(ca.SX(ca.vertcat(*expressions)), extra_symbols))

        point_expressions = [
            over(c.expression for c in constraints) for constraints in (question.path, question.points)
        ]
        self._path_function: Any = ca.Function("along", [*system.arguments, q], point_expressions)
        self._ends: Any = ca.Function("ends", [*system.arguments, q],
                                 [over(t.expression for t in question.terms if t.kind == END)])  # fmt: skip
        symbols = [ca.SX(ca.vertcat(*(t.symbol for t in question.terms if t.kind == kind)))
                   for kind in (INTEGRAL, END, TIME)]  # fmt: skip
        horizon_expressions = over([question.objective, *(c.expression for c in question.horizon_constraints)])
        self._horizon_function: Any = ca.Function("whole", [*symbols, system.p, q], [horizon_expressions])

        # Constraints of the end values alone.
        end_symbols, end_values = symbols[1], [t.expression for t in question.terms if t.kind == END]
        end_rows = [
            (ca.substitute(c.expression, end_symbols, ca.SX(ca.vertcat(*end_values))), c)
            for c in question.horizon_constraints
        ]
        end_rows += [
            (c.expression, c)
            for c in question.points
            if max(cast("tuple[float, ...]", c.times)) >= question.start + question.horizon
        ]
        self._end_limits = np.array([(c.lower, c.upper) for _, c in end_rows]).reshape(-1, 2).T
        rows = over(row for row, _ in end_rows)
        states = ca.vertcat(system.x, symbols[0])
        end_arguments = [system.t, states, system.z, system.p, system.u, q, symbols[2]]
        self._end_function: Any = ca.Function("end_rows", end_arguments, [rows, ca.densify(ca.jacobian(rows, states))])

    def build_line(
        self, p: Array, x0: Array, inputs: dict[str, Input], quantities: dict[str, float], horizon: float
    ) -> PlanTrajectory:
        """Return states on a line from x0 (n_x,) to the nearest ones that satisfy the constraints of the end values.

        The states are constant if no such states are found.
        """
        start, (lower, upper), z = self.question.start, self._end_limits, self.question.algebraic_guess
        begin, end = np.concatenate([x0, np.zeros(len(self.terms))]), start + horizon
        x, units = begin, np.where(begin != 0.0, np.abs(begin), 1.0)
        u = np.array([float(inputs[n](end)) for n in self.question.model.inputs])
        extra_values = np.array([quantities[n] for n in self._extra_symbols], dtype=float)
        for _ in range(_MAX_FINAL_STATE_STEPS if lower.size else 0):
            values, slopes = self._end_function(
                end, x, z, p, u, extra_values, [horizon] * self._end_function.size1_in(6)
            )
            g, J = np.asarray(values).ravel(), np.asarray(slopes)
            violation = g - np.clip(g, lower, upper)
            if not (np.isfinite(violation).all() and np.isfinite(J).all()):
                x = begin
                break
            x = x - units * (np.linalg.pinv(J * units) @ violation)
        states, integrals = np.split(np.stack([begin, x]), [x0.size], axis=1)
        return PlanTrajectory(np.array([start, end]), states, integrals, np.stack([z, z]), np.stack([u, u]))

    def integrate(
        self, p: Array, x0: Array, inputs: dict[str, Input], times: Array, tolerance: float = 1e-9
    ) -> PlanTrajectory | None:
        """Integrate from initial states x0 (n_x,). Return None if the integration fails."""
        question, model = self.question, self.question.model
        initial_values: dict[str, Any] = dict(zip(model.states, x0.tolist(), strict=True))
        initial_values |= dict.fromkeys(self.names, 0.0)
        initial_values |= dict(zip(model.algebraic_states, question.algebraic_guess.tolist(), strict=True))
        options = IntegratorOptions(relative_tolerance=tolerance, absolute_tolerance=tolerance)
        values = dict(zip(model.parameters, p.tolist(), strict=True))
        try:
            with without_deadline():  # the solution is verified even if the time is over
                solution = simulate(
                    self.model,
                    values,
                    times,
                    initial=initial_values,
                    inputs=inputs,
                    start=float(times[0]),
                    integrator=options,
                )
        except (SimulationError, InputError):
            return None
        empty = np.empty((times.size, 0))
        x, integrals, z = (
            np.stack([solution[n] for n in names], axis=1) if names else empty
            for names in (model.states, self.names, model.algebraic_states)
        )
        input_times = np.concatenate([times[:1], 0.5 * (times[1:] + times[:-1])])
        u = [
            inputs[n](input_times) if inputs[n].kind == "piecewise_constant" else inputs[n](times) for n in model.inputs
        ]
        return PlanTrajectory(times, x, integrals, z, np.stack(u, axis=1) if u else empty)

    def compute_fastest_rate(self, course: PlanTrajectory, p: Array) -> float:
        """Return the size of the largest eigenvalue with negative real part, at some points of a trajectory."""
        system = self.question.model.system
        jacobian: Any = ca.Function("jacobian", system.arguments, [ca.densify(ca.jacobian(system.ode, system.x))])
        indices = np.linspace(0, course.t.size - 1, min(course.t.size, _N_EIGENVALUE_POINTS)).astype(np.intp)
        jacobians = [
            np.array(jacobian(course.t[i], course.x[i], course.z[i], p, course.u[i])) for i in indices.tolist()
        ]
        values = np.linalg.eigvals(np.array([matrix for matrix in jacobians if np.isfinite(matrix).all()])).ravel()
        return float(np.abs(values[values.real < 0.0]).max(initial=0.0))

    def evaluate_course(
        self, course: PlanTrajectory, p: Array, quantities: dict[str, float], horizon: float
    ) -> tuple[Array, ...]:
        """Return objective and horizon constraints, (1 + n,), then path and point constraints, (times, n) each."""
        extra_values = np.array([quantities[n] for n in self._extra_symbols], dtype=float)
        point_values = self._path_function(course.t[None], course.x.T, course.z.T, p, course.u.T, extra_values)
        ends = self._ends(course.t[-1], course.x[-1], course.z[-1], p, course.u[-1], extra_values)
        time = [horizon] * self._horizon_function.size1_in(2)
        horizon_values = np.asarray(self._horizon_function(course.integrals[-1], ends, time, p, extra_values)).ravel()
        return horizon_values, *(np.asarray(f).T.reshape(course.t.size, -1) for f in point_values)


def _split_column(column: ca.SX) -> list[ca.SX]:
    return ca.vertsplit(column) if column.numel() else []
