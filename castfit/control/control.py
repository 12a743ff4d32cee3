"""Optimal control: `control` reads a question, solves it on a grid, divides the grid, and lets the integrator judge.

1. The states begin as the model, integrated with the guessed inputs, has them.
2. The program is solved by IPOPT with exact first and second derivatives.
3. Stages with errors above the tolerance are divided, and the program is solved again from there.
4. The model is integrated with error control under the inputs that were found: it must give the same objective and keep
   the constraints, between the points at which they were held, too.  Otherwise the plan is none, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_count, named, real, rng_mistakes, text
from castfit._support.status import Status, check, suggest
from castfit._support.time_limit import watched
from castfit.control.grid import StageGrid
from castfit.control.plan import Plan, PlanConstraint, PlanPurpose
from castfit.control.question import HORIZON, read_question
from castfit.control.stages import StageMethod
from castfit.control.trajectory import PlanJudge
from castfit.control.transcription import PlanDecision, TranscribedPlan
from castfit.control.units import PlanUnits, units_of
from castfit.solve.ipopt import Ipopt
from castfit.transcribe.collocation import Collocation

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Mask
    from castfit.control.program import ProgramSolution
    from castfit.control.question import ControlQuestion
    from castfit.control.stages import StageGraphs
    from castfit.control.trajectory import PlanCourse
    from castfit.experiment.experiment import Free
    from castfit.experiment.free_inputs import FreeInput
    from castfit.experiment.inputs import Input
    from castfit.problem.constraints import Constraint

FIRST_ELEMENTS = 20
"""Of a horizon, at least; more where there are more pieces."""

_ROUNDS = 6  # of division, at most
_CONFIRMED = 1e-4  # of the objective's and a constraint's size: what the integrated model may differ by
_BETWEEN = (0.25, 0.5, 0.75)  # parts of a stage at which constraints are looked at, besides its points
_FIRST_STEPS, _MOST_STEPS = 4, 64  # of Runge and Kutta in a stage
_SHARPER = 0.03  # the next tolerance of stages, where they agree and the whole does not
_SHARPENED = 2  # times, at most
_NOTHING = 1e-8  # of the objective's size at the start: below it is about zero
_AGREEING = 10.0  # tolerances: by no more than that states are apart where no stage is divided
_LOOSE = 0.05  # of an input's range: regular inputs of the library reach 0.016, those on singular arcs 0.075
_FAR = 1e10  # units of a variable: there it is on its way to infinity
_WARM = {"mu_init": 1e-5, "bound_push": 1e-8, "bound_frac": 1e-8}  # fmt: skip


def control(
    model: Any,
    *,
    horizon: float | Free,
    minimise: Any,
    inputs: Mapping[str, FreeInput | Input | float] | None = None,
    constraints: Any = None,
    parameters: Any = None,
    initial: Mapping[str, Any] | None = None,
    start: float = 0.0,
    transcription: Any = "collocation",
    solver: Ipopt | None = None,
    scenarios: str = "mean",
    soft: float | None = None,
    starts: int = 1,
    rng: Any = None,
    max_time: float = np.inf,
) -> Plan:
    """Find the inputs, parameters and initial states of a model that make an objective least.

    Parameters
    ----------
    model : Model
    horizon : float or cf.free
        Length of the horizon; ``cf.free(2.0, lower=0.1)`` lets it be chosen.
    minimise : casadi.SX or float
        Any expression of `integral`, `at_end`, `final_time`, parameters, and quantities, ``cf.quantity("x(0)")``.
    inputs : mapping from input to Input.free, Input or float
        Those that are chosen, and those that are given.
    constraints : sequence of relations
        ``cf.along(x <= 1)`` at all times, ``cf.at(3, x == 0)`` at some, ``cf.at_end(x) == 1``,
        ``cf.integral(u) <= 2``, ``k1 <= k2``.
    parameters : mapping from str to float or Parameter, Result, or a list of these
        Numbers, or quantities to be chosen: ``cf.Parameter(1.0, bounds=(0, 2))``; of a result its estimates, and what
        was fixed in its problem.  A list is one of scenarios, for which the same inputs, and the same chosen
        quantities, must do.
    initial : mapping from state to float, expression or cf.free
        Initial states that the model itself does not give, or others; with ``cf.free`` one is chosen, as ``x(0)``.
    start : float
        Time at the beginning of the horizon.
    transcription : {"collocation", "multiple"} or Collocation
        Collocation, whose elements are divided until the integrator agrees, or multiple shooting by Runge-Kutta steps,
        more of them until it does.
    solver : Ipopt, optional
    scenarios : {"mean", "worst"}
        Whether the mean of the objective over all scenarios or its largest value is made least.
    soft : float, optional
        Lets constraints along the horizon be violated, at this price for each unit of the largest violation: a closed
        loop may begin where they do not hold.
    starts : int
        The search begins at the guesses, and at so many points less one drawn within the bounds.
    rng : int or Generator
        For several starts.
    max_time : float
        Seconds; what was found by then is returned.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        Listing every mistake.

    Examples
    --------
    >>> import castfit as cf
    >>> a, b, u = cf.symbols("a b u")
    >>> model = cf.Model({a: -(u + u**2 / 2) * a, b: u * a}, inputs=[u], initial={a: 1, b: 0})
    >>> free = {"u": cf.Input.free(pieces=20, kind="linear", bounds=(0, 5))}
    >>> plan = cf.control(model, horizon=1, inputs=free, minimise=-cf.at_end(b))
    >>> plan.success, round(plan.objective, 3)
    (True, -0.574)
    """
    begun = time.process_time()
    question = read_question(
        model, horizon, inputs, minimise, constraints, parameters, initial, start, scenarios, soft
    )  # fmt: skip
    planner = _planner(question, transcription, solver, starts, rng, max_time)
    return planner.plan(begun)


def _planner(
    question: ControlQuestion, transcription: Any, solver: Any, starts: Any, rng: Any, max_time: Any
) -> Planner:
    mistakes: list[str] = []
    method, elements, tolerance = StageMethod(), FIRST_ELEMENTS, 1e-7
    if isinstance(transcription, Collocation):
        method = StageMethod(transcription.degree, transcription.scheme)
        tolerance = transcription.tolerance
        pieces = max((u.pieces for u in question.free_inputs.values()), default=1)
        if is_count(transcription.elements, 1):
            elements = int(transcription.elements)
            if elements < pieces:
                mistakes.append(f"Collocation has {elements} elements and an input {pieces} pieces, and no element may "
                                f"hold a jump; give elements={pieces} or more, or fewer pieces")  # fmt: skip
        elif transcription.elements != "auto":
            mistakes.append("Collocation(elements=...) is neither a number nor 'auto'; there are no data here")
    elif transcription in ("multiple", "multiple shooting"):
        method = StageMethod(steps=_FIRST_STEPS)
        if question.model.algebraic_states:
            mistakes.append("the model has algebraic states, and Runge-Kutta steps none; choose 'collocation'")
    elif transcription != "collocation":
        mistakes.append(f"transcription is {text(transcription)}; give 'collocation', cf.Collocation() or 'multiple'")
    chosen = Ipopt() if solver is None else solver
    if not isinstance(chosen, Ipopt) or chosen.hessian not in ("auto", "exact"):
        mistakes.append(f"solver is {text(solver)}; give cf.Ipopt(...), whose Hessian is exact here")
        chosen = Ipopt()
    if not is_count(starts, 1):
        mistakes.append(f"starts is {text(starts)}; give the number of starts, 1 or more")
    elif starts > 1 and rng is None:
        mistakes.append("several starts are drawn at random; give rng=0, say, so that they can be drawn again")
    mistakes += rng_mistakes(rng)
    limit = real(max_time)
    if limit is None or not limit > 0.0:
        mistakes.append(f"max_time is {text(max_time)}; give seconds")
    check("control", mistakes)
    return Planner(question, method, elements, tolerance, chosen, int(starts), rng, float(limit or np.inf))


@dataclass(frozen=True, eq=False)
class FoundPlan:
    """A solution on a grid: variables, what was decided, and how the integrated model does under it."""

    on: TranscribedPlan
    solution: ProgramSolution
    P: Array
    decision: PlanDecision
    courses: list[PlanCourse | None]
    iterations: int
    options: dict[str, Any]
    size: float


class Planner:
    """How a question is answered: `plan` does it, `again` does it for other initial states."""

    def __init__(
        self, question: ControlQuestion, method: StageMethod, elements: int, tolerance: float, solver: Ipopt,
        starts: int, rng: Any, max_time: float,
    ) -> None:  # fmt: skip
        self.question, self.method, self.elements, self.tolerance = question, method, elements, tolerance
        self.solver, self.starts, self.rng, self.max_time = solver, starts, rng, max_time
        self.judge = PlanJudge(question)

    def plan(self, begun: float) -> Plan:
        """Solve from every start, and return the best plan."""
        question, rng = self.question, np.random.default_rng(self.rng)
        initial = np.array([v if isinstance(v, float) else 0.0 for v in question.initial.values()])
        plans: list[Plan] = []
        with watched(self.max_time) as watch:
            for i in range(self.starts):
                first = self._guess() if i == 0 else self._drawn(rng)
                plans.append(self._planned(first, initial, watch, begun))
                if watch.cause is not None:
                    break
        best = min(plans, key=lambda p: (not p.success, p.objective if np.isfinite(p.objective) else np.inf))
        if len(plans) == 1:
            return best
        good = [p for p in plans if p.success]
        near = sum(abs(p.objective - best.objective) <= 1e-5 * max(abs(best.objective), 1e-12) for p in good)
        said = f"{len(plans)} starts: {len(good)} ended at a plan that holds, {near} of them at this objective."
        return replace(best, message=f"{best.message} {said}", seconds=time.process_time() - begun)

    def _guess(self) -> PlanDecision:
        question = self.question
        values = [u.first(question.start, question.horizon) for u in question.free_inputs.values()]
        quantities = np.array([q.guess for q in question.quantities])
        return PlanDecision(np.concatenate(values) if values else np.empty(0), quantities)

    def _drawn(self, rng: np.random.Generator) -> PlanDecision:
        """Draw a start: inputs with a few levels within their bounds, quantities within theirs."""
        first, values, question = self._guess(), list[Any](), self.question
        for u in question.free_inputs.values():
            guess = u.first(question.start, question.horizon)
            size = max(float(np.abs(guess).max()), 1.0)
            low = u.lower if np.isfinite(u.lower) else min(u.upper, float(guess.min())) - size
            high = u.upper if np.isfinite(u.upper) else max(u.lower, float(guess.max())) + size
            knots = rng.uniform(low, high, 5)
            values.append(np.interp(np.linspace(0.0, 4.0, u.size), np.arange(5), knots))
        drawn: list[float] = []
        for q, guess in zip(question.quantities, first.quantities, strict=True):
            finite = np.isfinite(q.lower) and np.isfinite(q.upper)
            drawn.append(rng.uniform(q.lower, q.upper) if finite else float(np.clip(guess * rng.uniform(0.5, 2.0),
                                                                                    q.lower, q.upper)))  # fmt: skip
        return PlanDecision(np.concatenate(values) if values else np.empty(0), np.array(drawn))

    def _planned(self, first: PlanDecision, initial: Array, watch: Any, begun: float) -> Plan:
        question, method = self.question, self.method
        grid = StageGrid.of(question, self.elements)
        units, courses, graphs = self._units(first, initial, grid)
        on = TranscribedPlan(question, method, grid, units, graphs)
        P = on.P(initial, question.scenarios)
        x = on.filled(first, courses, on.first(first, P)[1])
        on.measure(x, P)
        size = on.objective_size(x, P)
        options, iterations = self._options(size), 0
        found, tolerance = None, self.tolerance
        for k in range(_ROUNDS + 1):
            low, high = on.bounds()
            left = max(watch.deadline - time.perf_counter(), 1e-3)
            warm = _WARM if k else {}
            solution = on.program.solve(x, P, low, high, {**options, **warm}, left)
            iterations += solution.iterations
            decision = on.decided(solution.x)
            found = FoundPlan(on, solution, P, decision, self._courses(on, decision, P), iterations, options, size)
            if not solution.status.success or k == _ROUNDS or watch.cause is not None:
                break
            finer = self._finer(found, tolerance)
            if finer is None and k < _SHARPENED and self._differs(found) > 3 * self.tolerance:
                tolerance *= _SHARPER
                finer = self._finer(found, tolerance)
            if finer is None:
                break
            method, grid = finer
            new = TranscribedPlan(question, method, grid, units, None if method.steps else on.graphs, on.row_units)
            if method.steps:
                x = new.filled(decision, self._courses(new, decision, P, ()), new.first(decision, P)[1])
                x[new.layout.slack] = solution.x[on.layout.slack]
            else:
                x = on.onto(solution.x, new)
            on = new
        assert found is not None
        return self._judged(found, begun)

    def again(self, plan: Plan, initial: Any, parameters: Any, shift: Any, max_time: Any) -> Plan:
        """Solve the same program for other numbers, from the plan, so much later."""
        begun, question = time.process_time(), self.question
        found: FoundPlan = plan.found
        mistakes: list[str] = []
        later, limit = real(shift), real(max_time)
        if later is None or not 0.0 <= later < plan.horizon:
            mistakes.append(f"shift is {text(shift)}; give the time that has passed, less than the horizon")
        if limit is None or not limit > 0.0:
            mistakes.append(f"max_time is {text(max_time)}; give seconds")
        own, model, P = len(question.model.own_states), question.model, found.P.copy()
        given = {n: v for n, v in question.initial.items() if isinstance(v, float)}
        for what, told, valid, places in (
            ("initial", initial, [*given], {n: P.shape[1] - 1 - own + i for i, n in enumerate(model.own_states)}),
            ("parameters", parameters, [n for n in model.parameters if question.place(n) is None],
             {n: i for i, n in enumerate(model.parameters)}),
        ):  # fmt: skip
            for n, value in ({} if told is None else named(what, told, mistakes)).items():
                number = real(value)
                if n not in valid:
                    mistakes.append(f"{what} names '{n}', which no number of this plan is: {suggest(n, valid)}")
                elif number is None or not np.isfinite(number):
                    mistakes.append(f"{what} gives '{n}' as {text(value)}; give a finite number")
                else:
                    P[:, places[n]] = number
        check("Plan.again", mistakes)
        on, before, part = found.on, found.solution, float(later or 0.0) / plan.horizon
        x = before.x if part == 0.0 or on.method.steps else on.onto(before.x, on, part)
        offset = 0
        for n, u in question.free_inputs.items():
            edges = u.edges(question.start, plan.horizon)
            at = edges if u.linear else 0.5 * (edges[1:] + edges[:-1])
            x[on.layout.inputs[offset : offset + u.size]] = plan.inputs[n](np.minimum(at + (later or 0.0), edges[-1]))
            offset += u.size
        low, high = on.bounds()
        with watched(float(limit or np.inf)):
            solution = on.program.solve(x, P, low, high, {**found.options, **_WARM}, float(limit or np.inf))
        decision = on.decided(solution.x)
        new = replace(found, solution=solution, P=P, decision=decision, iterations=solution.iterations,
                      courses=self._courses(on, decision, P))  # fmt: skip
        return self._judged(new, begun, looking=False)

    def _units(
        self, first: PlanDecision, initial: Array, grid: StageGrid
    ) -> tuple[PlanUnits, list[PlanCourse | None], StageGraphs]:
        """Return typical magnitudes, from the model under the guessed inputs, how it went, and the stage's graphs."""
        question, none = self.question, np.ones(0)
        on = TranscribedPlan(question, self.method, grid, PlanUnits(none, none, none, none))
        P = on.P(initial, question.scenarios)
        courses = self._courses(on, first, P, ())
        carried = [i for i, t in enumerate(self.judge.terms) if t in on.graphs.carried]
        known = [c for c in courses if c is not None]
        return units_of(question, known, on.first(first, P)[0], carried), courses, on.graphs

    def _courses(
        self, on: Any, decision: PlanDecision, P: Array, extra: tuple[float, ...] = _BETWEEN
    ) -> list[PlanCourse | None]:
        """Integrate every scenario; at edges and inner points of stages, and at some more parts of each."""
        times, _ = on.times(decision, extra)
        p, x0 = on.first(decision, P)
        inputs = decision.inputs(self.question)
        return [self.judge.integrated(of, begin, inputs, times) for of, begin in zip(p, x0, strict=True)]

    def _options(self, size: float) -> dict[str, Any]:
        return {
            "tol": self.solver.tolerance, "max_iter": self.solver.max_iter, "linear_solver": self.solver.linear_solver,
            "obj_scaling_factor": 1.0 / size, "diverging_iterates_tol": _FAR, **self.solver.options,
        }  # fmt: skip

    def _undetermined(self, found: FoundPlan, sentences: list[str]) -> dict[str, Array]:
        """Return by how much values of inputs can change that are hardly determined; say where these are."""
        from castfit.control.determinacy import LITTLE, freedom

        question, on, solution = self.question, found.on, found.solution
        eps = LITTLE * max(abs(solution.objective), _NOTHING * found.size)
        P, out, offset = found.P, dict[str, Any](), 0
        every = freedom(on.program, solution.x, P, solution.multipliers, eps, *on.bounds())
        if every is None:
            return out
        for name, u in question.free_inputs.items():
            values = every[offset : offset + u.size]
            bound = u.upper - u.lower
            span = bound if np.isfinite(bound) else float(np.ptp(solution.x[offset : offset + u.size]))
            loose = np.flatnonzero(values > _LOOSE * span) if span > 0.0 else np.empty(0, dtype=np.intp)
            offset += u.size
            if loose.size:
                out[name] = np.minimum(values, span)
                edges = u.edges(question.start, found.decision.horizon(question))
                first, last = edges[loose[0]], edges[min(loose[-1] + 1, edges.size - 1)]
                sentences.append(
                    f"'{name}' is hardly determined: {loose.size} of its {u.size} values, between {first:.4g} and "
                    f"{last:.4g}, can change by more than a twentieth of its range while the objective changes by "
                    "1e-8 of its size (to second order); the objective is reliable there, the shape of the input is "
                    "not."
                )
        return out

    def _integrated(self, found: FoundPlan) -> float:
        """Return the objective as the integrated model has it; NaN where it could not be integrated."""
        question, decision = self.question, found.decision
        horizon, quantities = decision.horizon(question), decision.named(question)
        each = [
            np.nan if c is None else float(self.judge.whole(c, p, quantities, horizon)[0])
            for c, p in zip(found.courses, self._p(found), strict=True)
        ]
        return float(np.max(each) if question.worst else np.mean(each))

    def _objective(self, found: FoundPlan) -> float:
        """Return the objective of the program, without what violations cost."""
        slack = found.solution.x[found.on.layout.slack[int(self.question.worst) :]]
        return found.solution.objective - (self.question.soft or 0.0) * float(slack.sum())

    def _differs(self, found: FoundPlan) -> float:
        """Return by how much both differ, relative to the larger one."""
        objective, integrated = self._objective(found), self._integrated(found)
        apart = abs(objective - integrated) / max(abs(objective), abs(integrated), _NOTHING * found.size)
        return apart if np.isfinite(apart) else np.inf

    def _finer(self, found: FoundPlan, tolerance: float) -> tuple[StageMethod, StageGrid] | None:
        """Return a finer discretisation, where errors or violations between points ask for it."""
        on, unit = found.on, max(abs(found.solution.objective), 1e-300)
        if any(c is None for c in found.courses):
            return None
        wrong = self._apart(found)
        if on.method.steps:
            if wrong <= 10 * tolerance or on.method.steps >= _MOST_STEPS:
                return None
            return replace(on.method, steps=2 * on.method.steps), on.grid
        errors = on.errors(found.solution.x, found.P, unit)
        order = 2 * on.method.degree - (on.method.scheme == "radau")
        parts = np.ceil((np.maximum(errors, 1e-300) / tolerance) ** (1.0 / order) * 1.1)
        agrees = self._differs(found) <= self.tolerance and wrong <= _AGREEING * self.tolerance
        parts = np.where((errors > tolerance) & (not agrees), np.clip(parts, 2, 4), 1).astype(np.intp)
        violated = self._violated_stages(found)
        parts = np.where(violated, np.maximum(parts, 2), parts)
        return (on.method, on.grid.divided(parts)) if (parts > 1).any() else None

    def _apart(self, found: FoundPlan) -> float:
        """Return by how much nodes and the integrated states are apart, at most, in the states' units."""
        on, n_x = found.on, self.question.model.system.x.numel()
        _, place = on.times(found.decision, _BETWEEN)
        edges, unit = np.append(place[:, 0], place[-1, -1]), on.units.states[:n_x]
        gaps = [
            np.abs(c.x[edges] - found.solution.x[nodes][:, :n_x]) / unit
            for c, nodes in zip(found.courses, on.layout.nodes, strict=True) if c is not None
        ]  # fmt: skip
        return float(np.max(gaps, initial=0.0))

    def _violated_stages(self, found: FoundPlan) -> Mask:
        """Tell in which stages a path constraint is violated between its points."""
        question, K = self.question, found.on.grid.stages
        out = np.zeros(K, dtype=np.bool_)
        if question.soft is not None:
            return out
        _, place = found.on.times(found.decision, _BETWEEN)
        for c, p in zip(found.courses, self._p(found), strict=True):
            if c is None:
                continue
            values = self.judge.at(c, p, found.decision.named(question))[1]
            for j, of in enumerate(question.path):
                size = found.on.unit_of(of.name, of.lower, of.upper)
                excess = np.maximum(of.lower - values[:, j], values[:, j] - of.upper) > 1e-6 * size
                out |= excess[place[:, 1:]].any(axis=1)
        return out

    def _p(self, found: FoundPlan) -> Array:
        return found.on.first(found.decision, found.P)[0]

    def _judged(self, found: FoundPlan, begun: float, *, looking: bool = True) -> Plan:
        """Return the plan, with what the integrated model says of it; where inputs are loose only if it is looking."""
        question, decision, solution, on = self.question, found.decision, found.solution, found.on
        status, sentences = solution.status, list[str]()
        horizon, named_ = decision.horizon(question), decision.named(question)
        whole, held = list[Any](), dict[str, PlanConstraint]()
        for course, p in zip(found.courses, self._p(found), strict=True):
            if course is None:
                continue
            whole.append(self.judge.whole(course, p, named_, horizon))
            _, path, points = self.judge.at(course, p, named_)
            for c, values in zip(question.path, path.T, strict=True):
                first = int(not _depends_on_inputs(question, c))  # of the given initial states nothing is decided
                _hold(held, c, values[first:])
            for c, values in zip(question.points, points.T, strict=True):
                assert isinstance(c.times, tuple)
                _hold(held, c, values[[int(np.argmin(np.abs(course.t - t))) for t in c.times]])
            for c, value in zip(question.whole, whole[-1][1:], strict=True):
                _hold(held, c, np.array([value]))
        complete = len(whole) == len(question.scenarios)
        objective, integrated = self._objective(found), self._integrated(found)
        slack = solution.x[on.layout.slack[int(question.worst) :]]
        if slack.max(initial=0.0) > 1e-6:
            sentences.append("Soft constraints are violated, as the table says.")
        sentence = _SENTENCES.get(status, status.sentence)
        if status is Status.INFEASIBLE:
            worst = f" Worst: {solution.worst}." if solution.worst else ""
            sentence = f"No inputs were found that keep all constraints.{worst} Widen them, or give soft=."
        sentences.insert(0, sentence)
        if status.success:
            differs = self._differs(found)
            hard = () if question.soft is not None else tuple(held.values())
            broken = [c.name for c in hard if c.violation > _CONFIRMED * on.unit_of(c.name, c.lower, c.upper)]
            if not complete:
                sentences.append("The model could not be integrated under these inputs.")
            elif differs > _CONFIRMED:
                sentences.append(f"The integrated model gives {integrated:.6g} instead of {objective:.6g}.")
            if broken:
                sentences.append(f"The integrated model does not keep {', '.join(broken)}.")
            if not complete or differs > _CONFIRMED or broken:
                status = Status.INACCURATE
                sentences.append("Give more elements, cf.Collocation(elements=...), or a finer tolerance.")
            else:
                kept = " and keeps the constraints" if held else ""
                sentences.append(f"The model, integrated under these inputs, gives this objective within "
                                 f"{max(differs, 1e-15):.0e} of its size{kept}.")  # fmt: skip
        undetermined = self._undetermined(found, sentences) if status.success and looking else {}
        courses = [c for c in found.courses if c is not None]
        times = courses[0].t if courses else on.times(decision)[0]
        model = question.model
        states = dict[str, Any]()
        if courses:
            states = {n: _stacked([c.x[:, i] for c in courses]) for i, n in enumerate(model.states)}
            states |= {n: _stacked([c.z[:, i] for c in courses]) for i, n in enumerate(model.algebraic_states)}
        return Plan(
            status, " ".join(sentences), objective, integrated, horizon, decision.inputs(question), times, states,
            {n: v for n, v in named_.items() if n != HORIZON}, held, undetermined, on.grid.stages, found.iterations,
            time.process_time() - begun, PlanPurpose.of(question), self, found,
        )  # fmt: skip


_SENTENCES = {
    Status.DIVERGING: (
        "The objective seems to have no minimum: the variables grow without limit. Bound the inputs, "
        "cf.Input.free(..., bounds=...), or let the objective contain what they cost."
    ),
    Status.MAX_ITERATIONS: "The iteration limit was reached; give cf.Ipopt(max_iter=...), or another guess.",
    Status.MAX_TIME: "The time limit was reached; this is where the search stood.",
}


def _stacked(values: list[Array]) -> Array:
    return values[0] if len(values) == 1 else np.stack(values)


def _depends_on_inputs(question: ControlQuestion, c: Constraint) -> bool:
    return bool(question.model.inputs) and bool(ca.depends_on(c.expression, question.model.system.u))


def _hold(held: dict[str, PlanConstraint], c: Constraint, values: Array) -> None:
    least, greatest = float(values.min()), float(values.max())
    if c.name in held:
        least, greatest = min(least, held[c.name].least), max(greatest, held[c.name].greatest)
    violation = max(c.lower - least, greatest - c.upper, 0.0)
    held[c.name] = PlanConstraint(c.name, c.lower, c.upper, least, greatest, violation)
