"""Choice of the transcription of a fit that names none: the one with the lowest predicted time.

    features        sizes, sparsity, steps of one simulation from the start, measured states (`CostFeatures`)
    terms           numbers to which the time of an iteration, and its memory, are proportional (`features`)
    costs           terms times their measured costs (measured_costs.json, by ``castfit bench costs``),
                    times the number of iterations of similar models (`predict_costs`)

The costs were measured on one machine.  Only their ratios decide, and they are part of the package, so that the choice
depends on neither the machine nor its load.  The available memory can only exclude a transcription.

Single shooting descends from the starting point in a trust region.  If it stops early, or ends far from the data, and
all states are measured, it restarts from parameters that are matched to the data.  Collocation follows, or multiple
shooting if it is cheaper and the data provide the states at the nodes; then the strategies of castfit.fit.strategies.
A cheap fallback is used early: optima that single shooting reaches in time are near after the first few steps.
Collocation comes first if it is cheaper.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit._support.status import Status
from castfit._support.time_limit import StopRequested, available_memory, format_memory
from castfit.fit.methods import Solver, Transcription
from castfit.integrate.options import SUNDIALS
from castfit.model.model import Model
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.homotopy import within_bounds
from castfit.solve.residual_plausibility import has_implausible_residuals
from castfit.solve.solution import Iteration, Solution, SolveControl
from castfit.solve.staged import StagedProblem
from castfit.transcribe.collocation import MIN_INITIAL_ELEMENTS, Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting
from castfit.transcribe.trajectory import every_state_measured

# Measured costs, written by `castfit bench costs`.
MEASURED_COSTS_PATH = Path(__file__).with_name("measured_costs.json")

DEFAULT_SOLVER = GaussNewton()
# Solver of transcriptions with states if the data do not determine every direction; a descent from its end follows.
RANK_DEFICIENT_SOLVER = replace(DEFAULT_SOLVER, regularisation=1e-4, homotopy="never", max_iter=40)
DESCENT_SOLVER = GaussNewton("box")
# Descent by single shooting before a fallback; successful descents take 5 to 30 iterations.
PROBE_SOLVER = replace(DESCENT_SOLVER, max_iter=40)
# The same from the same start, if the trust region ends far from the data.
_DAMPED_PROBE_SOLVER = replace(PROBE_SOLVER, step_control="levenberg_marquardt", homotopy="never")

# Alternative values were tested on 35 problems of ``castfit bench sizes`` (up to 80 states, 1,000 data and 100
# experiments), the chosen ones on all of them (2 to 1,000 states, 10 to 1e5 data, 1 to 10,000 experiments).
# Iterations of a probe, and the fraction by which the cost must fall within them.
_PATIENT_WINDOW_AND_DECREASE = 8, 0.01
# The same for a cheap fallback; 2 to 4 and 0.5 to 0.95 take equally long within 3 %, 8 a tenth longer.
_BRIEF_WINDOW_AND_DECREASE = 3, 0.9
# Predicted time of a fallback, relative to single shooting, above which it is expensive; 2 to 6 do as well.
_EXPENSIVE_COST_RATIO = 3.0
# Half mean square of the residuals, on all data or up to a time, above which a fit is far from the data.
FAR_HALF_MEAN_SQUARE = 10.0
# Cost of the second start, relative to the lowest cost, below which it is used; 0.65 to 0.88 do as well.
_SECOND_START_COST_RATIO = 0.75
# Ratio of predicted times below which the predictions cannot distinguish two transcriptions.
_INDISTINGUISHABLE_COST_RATIO = 1.3
# Predicted time of collocation, relative to single shooting, up to which its convergence is worth the time. With
# unobserved states it takes 6 to 14 times as long and solves 11 of 24 textbook models that single shooting misses.
_MAX_COLLOCATION_COST_RATIO = 15.0
# Predicted seconds of collocation above which one of many starts uses single shooting. For 3 models of 20
# experiments, collocation took 4.8 times as long for as many hits (all states measured), otherwise 1.6 times as long
# per hit.
_LONG_FIT_SECONDS = 10.0
_REPORTED_MEMORY_BYTES = 1e8  # Memory, in bytes, above which the message reports it.
# Number of time constants within an element above which a model counts as stiff; 9 to 65 choose alike.
_STIFF_TIME_CONSTANTS_PER_ELEMENT = 10.0
_STIFFNESS_SAMPLE_POINTS = 10  # Number of sampled points per trajectory in the stiffness test.
_MAX_STIFFNESS_EXPERIMENTS = 4  # Limit on the experiments in the stiffness test.
_MAX_EIGENVALUE_STATES = 60  # Limit on the states for which the stiffness test computes eigenvalues.
_DEFAULT_INTEGRATOR_STEPS = 200  # Assumed steps per experiment if the integrator does not report them.
_DEGREE = Collocation().degree
_DEFAULT_SHOOTING_STAGES = 20  # Stages per experiment of multiple shooting by default.

# The Jacobian of each model by its states and algebraic states.
_SLOPES: PerObjectCache[Model, ca.Function] = PerObjectCache()


@dataclass(frozen=True)
class EarlyStoppingDescent:
    """Descent that stops early if it stagnates far from the data, because a fallback follows.

    values : number of measured values
    patience : window in iterations, and the fraction by which the cost must fall within it
    twice : whether it also descends from the second start
    solver : solver of the descent, with its limit on iterations
    """

    n_values: int
    patience: tuple[int, float] = _PATIENT_WINDOW_AND_DECREASE
    tries_second_start: bool = False
    solver: GaussNewton = PROBE_SOLVER

    @property
    def label(self) -> str:
        """Name in tables."""
        return self.solver.label

    def solve(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        """Solve. If the result is poor, solve from the second start, or with damped steps; return the better end."""
        start_time = time.perf_counter()
        first_solution = self._down(staged, control, warm=warm)
        if first_solution.status.cut_off or not _poor(staged, first_solution):
            return first_solution
        other, second_problem = self, staged.restricted()
        with suppress(StopRequested):  # the next solver checks the time limit again
            if self.tries_second_start and control.second_start is not None:
                second_problem.start = within_bounds(second_problem, control.second_start())
                first_cost, second_cost = _cost(staged, first_solution.v), _cost(second_problem, second_problem.start)
                is_useful = second_cost < _SECOND_START_COST_RATIO * first_cost
            else:
                other = replace(self, solver=_DAMPED_PROBE_SOLVER)
                is_useful = staged.layout.n_groups > 0 and has_implausible_residuals(
                    staged, staged.evaluate(first_solution.v)
                )
            if is_useful:
                seconds_left = control.max_time - (time.perf_counter() - start_time)
                second_solution = other._down(second_problem, replace(control, max_time=seconds_left))
                return _better_of(staged, first_solution, second_solution)
        return first_solution

    def _down(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        """Minimise from the start of the problem. A search that is given up ends with status MAX_ITERATIONS."""
        lowest_costs: list[float] = []
        given_up, (window, min_decrease) = False, self.patience

        def report(iteration: Iteration) -> bool:
            nonlocal given_up
            if control.callback is not None and control.callback(iteration):
                return True
            lowest_costs.append(min([iteration.cost, *lowest_costs[-1:]]))
            is_far = lowest_costs[-1] > FAR_HALF_MEAN_SQUARE * self.n_values
            given_up = (
                is_far
                and len(lowest_costs) > window
                and lowest_costs[-1] > (1.0 - min_decrease) * lowest_costs[-1 - window]
            )
            return given_up

        has_known_sigmas = staged.layout.n_groups == 0  # if sigmas are estimated, costs are logarithms
        solution = self.solver.solve(
            staged, replace(control, callback=report) if has_known_sigmas else control, warm=warm
        )
        given_up &= solution.status is Status.STOPPED_BY_CALLBACK
        return replace(solution, status=Status.MAX_ITERATIONS) if given_up else solution


def _poor(staged: StagedProblem, solution: Solution) -> bool:
    """Whether the solve failed or its residuals are implausibly large."""
    return not solution.status.success or has_implausible_residuals(staged, staged.evaluate(solution.v))


def _cost(staged: StagedProblem, v: Array) -> float:
    evaluation = staged.evaluate(v)
    return evaluation.cost if evaluation.ok else np.inf


def _better_of(staged: StagedProblem, first_solution: Solution, second_solution: Solution) -> Solution:
    """Return the better of two solutions, with the counts and history of both."""
    is_second_better = not _poor(staged, second_solution) or _cost(staged, second_solution.v) < _cost(
        staged, first_solution.v
    )
    return replace(
        second_solution if is_second_better else first_solution,
        earlier_iterations=first_solution.iterations if is_second_better else 0,
        iterations=first_solution.iterations + second_solution.iterations,
        evaluations=dict(Counter(first_solution.evaluations) + Counter(second_solution.evaluations)),
        failures=dict(Counter(first_solution.failures) + Counter(second_solution.failures)),
        history=(
            *first_solution.history,
            *({**e, "iteration": e["iteration"] + first_solution.iterations} for e in second_solution.history),
        ),
    )


@dataclass(frozen=True)
class CostFeatures:
    """Size and properties of a fit, from which its time and memory are predicted.

    n_x, n_z : numbers of states and algebraic states
    n_q : largest number of quantities of an experiment
    experiments, points, rows : numbers of experiments, of measured times, of measured values
    elements : initial number of collocation elements
    steps : integrator steps of one simulation of all experiments
    products, entries : multiplications and entries of a factorization of the model's Jacobian
    method : integration method
    measured : whether every state is measured
    stiff : whether a mode decays well within a collocation element; False until tested, True for DAEs
    is_simulated : whether the model could be simulated to the end from the starting point
    described : whether this simulation fits the data
    """

    n_x: int
    n_z: int
    n_q: int
    experiments: int
    points: int
    rows: int
    elements: int
    steps: int
    products: int
    entries: int
    method: str = "esdirk"
    is_fully_measured: bool = False
    is_stiff: bool = False
    is_simulated: bool = True
    fits_data: bool = False

    @classmethod
    def from_problem(
        cls, problem: CompiledProblem, theta: Array, staged: ShootingProblem | None = None
    ) -> CostFeatures:
        """Compute the features at theta (n_theta,); `staged` is its single shooting, if there is one already."""
        staged, steps = staged or SingleShooting().transcribe(problem, theta), 0
        is_simulated = fits_data = False
        with suppress(StopRequested):  # no time to simulate: the solver checks the limit again
            evaluation = staged.evaluate(staged.start)
            is_simulated, steps = evaluation.ok, staged.steps(staged.start)
            fits_data = evaluation.ok and not has_implausible_residuals(staged, evaluation)
        n_x, n_z = len(problem.model.states), len(problem.model.algebraic_states)
        integrator = staged.groups[0].integrator
        products, entries = integrator.factorization
        n_times = [np.unique(c.times).size for c in problem.conditions]
        n_boundaries = [np.unique(np.concatenate([[c.start], c.times, c.breakpoints])).size for c in problem.conditions]
        return cls(
            n_x=n_x,
            n_z=n_z,
            n_q=max(c.theta.size for c in problem.conditions),
            experiments=len(problem.conditions),
            points=sum(n_times),
            rows=problem.n_data,
            elements=sum(n_boundaries) + MIN_INITIAL_ELEMENTS * len(n_boundaries),
            steps=steps or _DEFAULT_INTEGRATOR_STEPS * len(n_boundaries),
            products=products,
            entries=entries,
            method=integrator.method,
            is_fully_measured=every_state_measured(problem),
            is_stiff=n_z > 0,
            is_simulated=is_simulated,
            fits_data=fits_data,
        )

    def with_stiffness(self, problem: CompiledProblem, staged: ShootingProblem) -> CostFeatures:
        """Return a copy in which `stiff` is set from the fastest decay of the model along its simulation."""
        if self.is_stiff or not self.is_simulated or self.n_x > _MAX_EIGENVALUE_STATES:
            return self
        return replace(self, is_stiff=_stiffness(problem, staged) > _STIFF_TIME_CONSTANTS_PER_ELEMENT)

    @property
    def kind(self) -> str:
        """Key of the class of models with similar iteration counts."""
        return ("measured" if self.is_fully_measured else "partly measured") + (", stiff" if self.is_stiff else "")


@dataclass(frozen=True)
class PredictedCost:
    """Predicted cost of a fit: seconds on the machine of the measured costs, and bytes in addition to the problem."""

    seconds: float
    memory: float


def features(prospect: CostFeatures) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return the terms to which time and memory of an iteration are proportional, by transcription.

    Multiple shooting was measured where integration is compiled.
    """
    o = prospect
    n, n_q, K = o.n_x + o.n_z, o.n_q, o.elements
    m = _DEGREE * n
    single = "single, SUNDIALS" if o.method in SUNDIALS else "single"
    feature_vectors: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
        single: (
            (1.0, o.experiments, o.points, o.rows * n_q, o.steps * n, o.steps * o.products, o.steps * n_q * o.entries),
            (1.0, o.points * n * n_q, o.rows * n_q),
        ),
        "collocation": (
            (1.0, o.experiments, K, K * m * (o.n_x + n_q), K * m * m * (m + o.n_x + n_q), K * o.n_x**2 * (o.n_x + n_q)),
            (1.0, K * m, K * m * (m + o.n_x + n_q), K * o.n_x * (o.n_x + n_q)),
        ),
    }
    if single == "single":
        n_stages, n_d = _DEFAULT_SHOOTING_STAGES * o.experiments, o.n_x + n_q
        feature_vectors["multiple"] = (
            (1.0, o.experiments, n_stages * n, o.rows * n_d, o.steps * n, o.steps * o.products,
             o.steps * n_d * o.entries, n_stages * o.n_x**2 * n_d),
            (1.0, n_stages * o.n_x * n_d, o.rows * n_d),
        )  # fmt: skip
    return feature_vectors


@cache
def measured_costs() -> Mapping[str, Any]:
    """Return the table of measured costs."""
    return json.loads(MEASURED_COSTS_PATH.read_text(encoding="utf-8"))


def predict_costs(prospect: CostFeatures) -> dict[str, PredictedCost]:
    """Predict time and memory of a fit, by transcription."""
    costs = measured_costs()
    predicted_costs: dict[str, PredictedCost] = {}
    for name, (time_features, memory_features) in features(prospect).items():
        kind = name.partition(",")[0]
        iterations = costs["iterations"][kind][prospect.kind]
        seconds = float(np.dot(costs["seconds"][name], time_features))
        predicted_costs[kind] = PredictedCost(
            iterations * seconds, float(np.dot(costs["bytes"][kind], memory_features))
        )
    return predicted_costs


@dataclass(frozen=True)
class TranscriptionChoice:
    """Chosen transcriptions of a fit, with the reason.

    transcription : the first one
    solver : solver of the first search; None for that of the fit
    fallback : transcription that is used if the first one fails, or None
    returns_to_fallback : whether a solution of the fallback returns to the first transcription, which refits faster
    simulated : single shooting at the starting point, from which the choice was made
    """

    transcription: Transcription
    solver: Solver | None
    fallback: Transcription | None
    sentence: str
    returns_to_fallback: bool = True
    single_shooting_problem: ShootingProblem | None = field(default=None, compare=False, repr=False)


def choose(
    problem: CompiledProblem,
    theta: Array,
    *,
    states: bool = False,
    workers: bool = False,
    straight: bool = True,
    bound: bool = False,
) -> TranscriptionChoice:
    """Choose the transcription with which a fit begins at theta (n_theta,).

    states : whether the start includes the states of a trajectory
    workers : whether workers divide the integrations
    straight : whether the first search may be a trust-region descent that stops early
    bound : whether it may not, at any start: the user chose the solver, or there are many starts
    """
    if problem.triggered:
        reason = "castfit chose single shooting: collocation does not support state-triggered events."
        return TranscriptionChoice(SingleShooting(), None, None, reason)
    bound = bound or bool(problem.path or problem.relations)
    staged = SingleShooting().transcribe(problem, theta)
    prospect, options = (
        CostFeatures.from_problem(problem, theta, staged),
        {"states": states, "workers": workers, "straight": straight},
    )
    choice = choose_from_features(prospect, bound=bound, **options)
    if isinstance(choice.transcription, Collocation):  # stiffness only makes collocation slower
        choice = choose_from_features(prospect.with_stiffness(problem, staged), bound=bound, **options)
    return replace(choice, single_shooting_problem=staged)


def choose_from_features(
    prospect: CostFeatures, *, states: bool = False, workers: bool = False, straight: bool = True, bound: bool = False
) -> TranscriptionChoice:
    """Choose a transcription from the cost features; see `choose`."""
    has_many_starts, straight, has_poor_start = not straight, straight and not bound, bound or not prospect.fits_data
    single, collocation, memory_limit = SingleShooting(), Collocation(), available_memory()
    costs = predict_costs(prospect)
    single_cost, collocation_cost = costs["single"], costs["collocation"]
    if collocation_cost.memory > memory_limit:
        size = (
            f"it needs about {format_memory(collocation_cost.memory)}, but {format_memory(memory_limit)} are available"
        )
        reason = f"castfit chose single shooting without trying collocation: {size}."
        return TranscriptionChoice(single, DESCENT_SOLVER if straight else None, None, reason)
    ratio = collocation_cost.seconds / single_cost.seconds
    if workers:
        reason = "castfit chose single shooting, because workers divide its integrations."
        return TranscriptionChoice(
            single, EarlyStoppingDescent(prospect.rows) if straight else None, collocation if straight else None, reason
        )
    if not (prospect.is_simulated or straight):
        reason = "castfit chose collocation: the model cannot be integrated to the end from the starting point."
        return TranscriptionChoice(collocation, None, None, reason)
    # If the start already fits the data, every search is short.
    is_patient = (
        collocation_cost.seconds < _LONG_FIT_SECONDS if has_many_starts and not states else states or not straight
    )
    is_single_cheaper = ratio > (
        _MAX_COLLOCATION_COST_RATIO if has_poor_start and is_patient else 1 / _INDISTINGUISHABLE_COST_RATIO
    )
    chosen_name, other_name = (
        ("Single shooting", "collocation") if is_single_cheaper else ("Collocation", "single shooting")
    )
    times, size = (ratio, collocation_cost.memory) if is_single_cheaper else (1 / ratio, single_cost.memory)
    ratio_text = (
        "about as long"
        if 1 / _INDISTINGUISHABLE_COST_RATIO < ratio < _INDISTINGUISHABLE_COST_RATIO
        else f"about {f'{times:.2g}' if times < 10.0 else f'{times:.0f}'} times as long"
    )
    memory_text = f" and need {format_memory(size)}" if size > _REPORTED_MEMORY_BYTES else ""
    optimum_note = (
        ""
        if is_single_cheaper or ratio < _INDISTINGUISHABLE_COST_RATIO
        else "it converges more often from starting points far from the data; "
    )
    reason = f"{chosen_name} was chosen: {optimum_note}{other_name} would take {ratio_text}{memory_text}."
    if not is_single_cheaper:
        return TranscriptionChoice(collocation, None, None, reason)
    if not straight:
        return TranscriptionChoice(single, None, None, reason)
    if not prospect.is_fully_measured:
        return TranscriptionChoice(single, EarlyStoppingDescent(prospect.rows), collocation, reason)
    multiple_cost = costs.get("multiple")  # its nodes start at the data, so it needs fewer iterations
    expensive_seconds = _EXPENSIVE_COST_RATIO * single_cost.seconds
    useful_multiple_cost = (
        multiple_cost
        if multiple_cost is not None and multiple_cost.seconds < max(expensive_seconds, collocation_cost.seconds)
        else None
    )
    fallback, fallback_cost = (
        (collocation, collocation_cost) if useful_multiple_cost is None else (MultipleShooting(), useful_multiple_cost)
    )
    is_brief = fallback_cost.seconds < expensive_seconds
    tries_second_start = prospect.elements <= prospect.steps  # otherwise matching takes as long as integrating
    return TranscriptionChoice(
        single,
        EarlyStoppingDescent(
            prospect.rows, _BRIEF_WINDOW_AND_DECREASE if is_brief else _PATIENT_WINDOW_AND_DECREASE, tries_second_start
        ),
        fallback,
        reason,
        returns_to_fallback=not is_brief,
    )


def _stiffness(problem: CompiledProblem, staged: ShootingProblem) -> float:
    """Compute the largest length of a collocation element, in time constants of the fastest decay."""
    longest = max(_longest_element(c) for c in problem.conditions[:_MAX_STIFFNESS_EXPERIMENTS])
    slopes: Any = _SLOPES.get(problem.model, _slopes)
    count = _STIFFNESS_SAMPLE_POINTS * _MAX_STIFFNESS_EXPERIMENTS
    points = [*islice(staged.visited(staged.start, _STIFFNESS_SAMPLE_POINTS), count)]
    if not points:
        return 0.0
    columns = [np.stack([np.atleast_1d(value) for value in values], axis=-1) for values in zip(*points, strict=True)]
    jacobians = np.array(slopes(*columns), dtype=float)  # (n, N n)
    matrices = jacobians.reshape(len(jacobians), -1, len(jacobians)).swapaxes(0, 1)
    finite = np.isfinite(matrices).all(axis=(1, 2))
    return longest * -float(np.linalg.eigvals(matrices[finite]).real.min(initial=0.0))


def _longest_element(condition: Condition) -> float:
    marks = np.unique(np.concatenate([[condition.start], condition.times]))
    return min(float(np.diff(marks).max(initial=0.0)), (condition.end - condition.start) / MIN_INITIAL_ELEMENTS)


def _slopes(model: Model) -> ca.Function:
    system = model.system
    return system.function("slopes", ca.densify(ca.jacobian(system.ode, system.x)))
