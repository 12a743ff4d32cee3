"""Solution of a control problem and its check by integration: objective, constraints, and poorly determined inputs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.pickling import ProcessLocal
from castfit._support.status import Status
from castfit.control.determinacy import OBJECTIVE_CHANGE_RTOL, compute_input_freedom
from castfit.control.plan import ControlStatement, Plan, PlanConstraint
from castfit.control.question import HORIZON

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Mask
    from castfit.control.program import ProgramSolution
    from castfit.control.trajectory import PlanTrajectory
    from castfit.control.transcription import DecisionValues, TranscribedPlan
    from castfit.problem.constraints import Constraint

CHECK_FRACTIONS = (0.25, 0.5, 0.75)
"""Fractions of a stage at which constraints are evaluated, besides its points."""

CONFIRMATION_RTOL = 1e-4
"""Accepted difference of the integrated model, relative to the terms of the objective or to a constraint."""

_HELPFUL_REDUCTION = 0.5  # ratio of the differences after and before the last refinement, below which more is advised
_ZERO_OBJECTIVE = 1e-8  # objective, relative to its size at the start, below which it counts as zero
_MAX_DIVERGING_DEVIATION = 1e-2  # accepted relative difference of the integrated model where variables are huge
_MAX_UNIT_RATIO = 1e3  # unit of a state over its largest value in the plan from which units are recomputed
# Of an input's range: regular inputs of the library reach 0.016, those on singular arcs 0.075.
_UNDETERMINED_FRACTION = 0.05

_SENTENCES = {
    Status.DIVERGING: "The objective seems to be unbounded below: the variables grow without limit.",
    Status.INFEASIBLE: (
        "No inputs were found for which the model can be integrated over the horizon: the states diverge, or the "
        "input bounds are too narrow. Try another guess, a shorter horizon, or wider bounds."
    ),
    Status.MAX_ITERATIONS: "The iteration limit was reached; increase cf.Ipopt(max_iter=...), or try another guess.",
    Status.MAX_TIME: "The time limit was reached; the result is the last iterate.",
}


@dataclass(frozen=True, eq=False)
class PlanSolution(ProcessLocal):
    """Solution of a program with its decision, and the objective and constraints of the integrated model.

    P, p : numbers (scenarios, n_P) and parameters (scenarios, n_p) of the scenarios
    courses, integrated_values : of each scenario, None if the model could not be integrated
    size : of the objective at the start
    iterations, solvers : including earlier grids
    previous_excess : `excess` on the coarser grid before; NaN on the first one
    """

    transcribed: TranscribedPlan
    solution: ProgramSolution
    P: Array
    decision: DecisionValues
    p: Array
    courses: list[PlanTrajectory | None]
    integrated_values: list[tuple[Array, ...] | None]
    size: float
    iterations: int
    solvers: tuple[str, ...]
    previous_excess: float = np.nan

    @cached_property
    def objective(self) -> float:
        """The objective of the program, without the cost of violations."""
        question = self.transcribed.question
        slack = self.solution.x[self.transcribed.layout.slack[int(question.is_worst_case) :]]
        return self.solution.objective - (question.soft_price or 0.0) * float(slack.sum())

    @cached_property
    def integrated_objective(self) -> float:
        """The objective of the integrated model; NaN if it could not be integrated."""
        objectives = [np.nan if values is None else float(values[0][0]) for values in self.integrated_values]
        return float(np.max(objectives) if self.transcribed.question.is_worst_case else np.mean(objectives))

    @cached_property
    def objective_size(self) -> float:
        """Size of the terms of the objective, which may be 0 itself."""
        size = self.transcribed.program.size_objective(self.solution.x, self.P, self.solution.multipliers)
        return max(abs(self.objective), abs(self.integrated_objective), _ZERO_OBJECTIVE * self.size, size)

    @cached_property
    def objective_deviation(self) -> float:
        """Difference of both objectives, relative to the size of their terms."""
        difference = abs(self.objective - self.integrated_objective) / self.objective_size
        return difference if np.isfinite(difference) else np.inf

    @cached_property
    def max_defect(self) -> float:
        """Largest difference of nodes and integrated states, in the states' units."""
        transcribed, n_x = self.transcribed, self.transcribed.question.model.system.x.numel()
        _, point_indices = transcribed.times(self.decision, CHECK_FRACTIONS)
        edges, nodes = (
            np.append(point_indices[:, 0], point_indices[-1, -1]),
            self.solution.x[transcribed.layout.nodes][:, :, :n_x],
        )
        gaps = [np.abs(c.x[edges] - s) for c, s in zip(self.courses, nodes, strict=True) if c is not None]
        return float(np.max(gaps / transcribed.units.states[:n_x], initial=0.0))

    @cached_property
    def has_invalid_units(self) -> bool:
        """Whether states are so much smaller than at the start, where they diverged, that its units are invalid."""
        if not self.solution.status.success or any(c is None for c in self.courses):
            return False
        sizes = np.max([np.abs(c.x).max(axis=0) for c in self.courses if c is not None], axis=0)
        return bool((self.transcribed.units.states[: sizes.size] > _MAX_UNIT_RATIO * sizes)[sizes > 0.0].any())

    def find_violated_stages(self) -> Mask:
        """Return a mask of the stages in which a path constraint is violated between its points."""
        transcribed, out = self.transcribed, np.zeros(self.transcribed.grid.stages, dtype=np.bool_)
        _, point_indices = transcribed.times(self.decision, CHECK_FRACTIONS)
        for scenario_values in self.integrated_values if transcribed.question.soft_price is None else ():
            for c, values in zip(
                transcribed.question.path,
                scenario_values[1].T if scenario_values is not None else (),
                strict=scenario_values is not None,
            ):
                excess = np.maximum(c.lower - values, values - c.upper) > 1e-6 * transcribed.program.units[c.name]
                out |= excess[point_indices[:, 1:]].any(axis=1)
        return out

    @cached_property
    def constraints(self) -> dict[str, PlanConstraint]:
        """The extreme values of all constraints on the integrated model, over all scenarios."""
        question, values_by_name = self.transcribed.question, dict[str, list[Any]]()
        all_constraints = (*question.path, *question.points, *question.horizon_constraints)
        for course, scenario_values in zip(self.courses, self.integrated_values, strict=True):
            if course is None or scenario_values is None:
                continue
            horizon_values, path, points = scenario_values
            for c, values in zip(all_constraints, (*path.T, *points.T, *horizon_values[1:, None]), strict=True):
                if c in question.path:  # fixed initial states do not count
                    selected = values[int(not self.transcribed.graphs.is_affected_at_start(c)) :]
                elif isinstance(c.times, tuple):
                    selected = values[[int(np.argmin(np.abs(course.t - t))) for t in c.times]]
                else:
                    selected = values
                values_by_name.setdefault(c.name, []).append(selected)
        return {
            c.name: _constraint_extremes(c, np.concatenate(values_by_name[c.name]))
            for c in all_constraints
            if c.name in values_by_name
        }

    @cached_property
    def excess(self) -> float:
        """Largest difference or hard violation of the integrated model, as a multiple of the accepted one."""
        units = self.transcribed.program.units
        violations = [c.violation / units[c.name] for c in self._hard_constraints]
        return max(self.objective_deviation, *violations, 0.0) / CONFIRMATION_RTOL

    @property
    def _hard_constraints(self) -> list[PlanConstraint]:
        question = self.transcribed.question
        soft = question.path if question.soft_price is not None else ()
        return [v for n, v in self.constraints.items() if n not in {c.name for c in soft}]

    @cached_property
    def is_confirmed(self) -> bool:
        """Whether the program is solved, and the integrated model reproduces the objective and the hard constraints."""
        return self.solution.status.success and all(c is not None for c in self.courses) and self.excess <= 1.0

    @cached_property
    def is_unbounded(self) -> bool:
        """Whether the objective diverges, that of the integrated model too, and it satisfies the hard constraints."""
        largest_violation = max(
            (c.violation / max(abs(c.least), abs(c.greatest), self.transcribed.program.units[c.name])
             for c in self._hard_constraints), default=0.0
        )  # fmt: skip
        excess = (self.integrated_objective - self.objective) / self.objective_size
        return self.solution.status is Status.DIVERGING and max(excess, largest_violation) <= _MAX_DIVERGING_DEVIATION

    @property
    def failure_rank(self) -> int:
        """Rank among solutions of which none is confirmed; the lowest is shown."""
        return 0 if self.is_unbounded else 1 if self.solution.status.success else 2

    def find_undetermined_inputs(self, sentences: list[str]) -> dict[str, Array]:
        """Return the possible changes of poorly determined inputs. Add a message for each to `sentences`."""
        question, transcribed, solution, offset = self.transcribed.question, self.transcribed, self.solution, 0
        eps, out = OBJECTIVE_CHANGE_RTOL * max(abs(solution.objective), _ZERO_OBJECTIVE * self.size), dict[str, Any]()
        possible_changes = compute_input_freedom(
            transcribed.program, solution.x, self.P, solution.multipliers, eps, *transcribed.bounds()
        )
        if possible_changes is None:
            return out
        for name, u in question.free_inputs.items():
            values = possible_changes[offset : offset + u.size]
            input_values = solution.x[offset : offset + u.size]
            span = u.upper - u.lower if np.isfinite(u.upper - u.lower) else float(np.ptp(input_values))
            loose_indices = (
                np.flatnonzero(values > _UNDETERMINED_FRACTION * span) if span > 0.0 else np.empty(0, dtype=np.intp)
            )
            offset += u.size
            if loose_indices.size:
                out[name] = np.minimum(values, span)
                edges = u.edges(question.start, self.decision.horizon(question))
                first_time, last_time = edges[loose_indices[0]], edges[min(loose_indices[-1] + 1, edges.size - 1)]
                sentences.append(
                    f"'{name}' is nearly undetermined: {loose_indices.size} of its {u.size} values, between "
                    f"{first_time:.4g} and "
                    f"{last_time:.4g}, can change by more than 5 % of their range while the objective changes by 1e-8 "
                    "of "
                    "its size (second-order estimate). The objective is reliable there; the shape of the input is not."
                )
        return out


def unbounded_input_message(name: str) -> str:
    """Return a message that an input is unlimited, with the remedy."""
    return (
        f"'{name}' is unconstrained: it has no bounds and no cost along the horizon, and enters linearly. The "
        "objective may be unbounded, or equal for many inputs. Set cf.Input.free(..., bounds=...), or add a cost such "
        f"as 1e-3 * cf.integral({name}**2)."
    )


def build_plan(plan_solution: PlanSolution, planner: Any, start_time: float, *, check_determinacy: bool = True) -> Plan:
    """Return the plan with its verification; undetermined inputs are found only if `check_determinacy`."""
    transcribed, solution, decision = plan_solution.transcribed, plan_solution.solution, plan_solution.decision
    question, model, status = transcribed.question, transcribed.question.model, solution.status
    constraints, differs = plan_solution.constraints, plan_solution.objective_deviation
    sentences = [_SENTENCES.get(status, status.message)]
    if status is Status.INFEASIBLE and transcribed.method.steps:
        sentences = [f"{sentences[0]} The Runge-Kutta steps may also have been too long: try 'collocation'."]
    if status is Status.INFEASIBLE and solution.worst_constraint:
        can_be_soft = question.soft_price is None and solution.worst_constraint in {c.name for c in question.path}
        other_starts_may_help = planner.starts == 1 and not transcribed.program.linear
        advice = ["Relax it", *["set soft="] * can_be_soft,
                  *["call cf.control with starts=10, rng=0"] * other_starts_may_help]  # fmt: skip
        sentences = [
            f"No feasible inputs were found. Largest violation: {solution.worst_constraint}. {', or '.join(advice)}."
        ]
    elif status is Status.EVALUATION_FAILED and solution.iterations == 0:
        reason = (
            "The objective or a constraint is not finite"
            if all(plan_solution.courses)
            else "The model cannot be integrated"
        )
        sentences = [f"{reason} at the starting point; pass another guess, cf.Input.free(..., guess=...)."]
    if status.success and solution.prefers_small_inputs:
        names = ", ".join(f"'{n}'" for n in question.nonlinear_inputs)
        sentences.append(
            f"Small values of {names}, which has no bounds and no cost, were preferred: the last search added its mean "
            "square times 1e-8 of the objective's size."
        )
    if status is Status.DIVERGING and not plan_solution.is_unbounded:
        status = Status.INACCURATE
        sentences = [
            f"The search diverged to the objective {plan_solution.objective:.3g}, which the integrated model does not "
            f"reach: it gives {plan_solution.integrated_objective:.6g}, or violates a constraint. Bound the states, as "
            "in cf.along(x >= 0), or use more elements, cf.Collocation(elements=...)."
        ]
    if status is Status.DIVERGING and not question.unlimited_inputs:
        sentences.append(
            "Set bounds on the inputs, cf.Input.free(..., bounds=...), or add their cost to the objective."
        )
    sentences += [unbounded_input_message(name) for name in question.unlimited_inputs]
    if not status.success and any("fabs" in str(t.expression) for t in question.terms):
        sentences.append(
            "fabs has no derivative at 0. If its argument is an input, write the input as a - b, with two inputs "
            "whose lower bounds are 0, and fabs as a + b."
        )
    soft = {c.name for c in question.path} if question.soft_price is not None else set[str]()
    violated_names = [
        c.name for c in constraints.values() if c.violation > CONFIRMATION_RTOL * transcribed.program.units[c.name]
    ]
    if soft.intersection(violated_names):
        sentences.append("Soft constraints are violated; see the table.")
    if status.success:
        n_sentences, hard_violations = len(sentences), [name for name in violated_names if name not in soft]
        if any(c is None for c in plan_solution.courses):
            sentences.append("The model could not be integrated with these inputs.")
        elif differs > CONFIRMATION_RTOL:
            sentences.append(
                f"The integrated model gives the objective {plan_solution.integrated_objective:.6g} instead of "
                f"{plan_solution.objective:.6g}."
            )
        if hard_violations:
            sentences.append(f"The integrated model violates {', '.join(hard_violations)}.")
        if len(sentences) > n_sentences:
            status = Status.INACCURATE
            is_improving = plan_solution.excess < _HELPFUL_REDUCTION * plan_solution.previous_excess
            if is_improving or planner.tolerance > CONFIRMATION_RTOL:
                sentences.append("Use more elements, cf.Collocation(elements=...), or a tighter tolerance.")
            elif np.isfinite(plan_solution.previous_excess):
                sentences.append("Finer elements did not reduce the difference.")
        else:
            constraints_text = "satisfies the constraints and " if constraints and not violated_names else ""
            sentences.append(
                f"Integrating the model with these inputs {constraints_text}reproduces the objective to an accuracy of "
                f"{max(differs, 1e-15):.0e}, relative to the size of its terms."
            )
    undetermined = plan_solution.find_undetermined_inputs(sentences) if status.success and check_determinacy else {}
    courses, states = [c for c in plan_solution.courses if c is not None], dict[str, Any]()
    for names, tables in ((model.states, [c.x for c in courses]), (model.algebraic_states, [c.z for c in courses])):
        states |= {n: np.squeeze(np.stack([table[:, i] for table in tables]), 0) if len(tables) == 1 else
                   np.stack([table[:, i] for table in tables]) for i, n in enumerate(names) if tables}  # fmt: skip
    return Plan(
        status,
        " ".join(sentences),
        plan_solution.objective,
        plan_solution.integrated_objective,
        decision.horizon(question),
        decision.inputs(question),
        courses[0].t if courses else transcribed.times(decision)[0],
        states,
        {n: v for n, v in decision.quantities_by_name(question).items() if n != HORIZON},
        constraints,
        undetermined,
        transcribed.grid.stages,
        plan_solution.iterations,
        ", then ".join(plan_solution.solvers),
        time.process_time() - start_time,
        ControlStatement.from_question(question),
        planner,
        plan_solution,
    )


def _constraint_extremes(c: Constraint, values: Array) -> PlanConstraint:
    min_value, max_value = float(values.min()), float(values.max())
    return PlanConstraint(
        c.name, c.lower, c.upper, min_value, max_value, max(c.lower - min_value, max_value - c.upper, 0.0)
    )
