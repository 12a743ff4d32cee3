"""Incremental fits: estimate on a short horizon first, then on longer ones, within confidence limits.

Single shooting mostly fails late on the horizon, while parameters are still wrong.  Incremental single shooting
(Michalik, Hannemann and Marquardt 2009) integrates no further than the estimates are good for:

    start, user's bounds
        v
    solve on horizon i <-----------------------------+
        |                                            |
        +-- an updated bound is active: relax it ----+   (Eqs. 10-11)
        |                                            |
        +-- fails, or cannot be right: fall back ----+   shorter horizon, the first one from beyond the hills around,
        |                                            |   then multiple shooting
        v
    bounds = 99 % confidence limits within the user's bounds, i = i + 1    (Eq. 9)

The fallback and the coarse tolerances on early horizons are not in the paper; `fallback=False` and `coarse=False` give
its plain method.

Notation: an *updated* bound is one that differs from the user's bound of the same quantity.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from castfit._support.arguments import flag_mistakes, is_one_of, is_within, option_mistakes, read_reals, shorten_repr
from castfit._support.arrays import Array
from castfit._support.renamed import accept_old_names
from castfit._support.status import Status, raise_if_mistakes, suggest
from castfit._support.time_limit import guarded
from castfit.drive.run.loop import open_reporter
from castfit.drive.run.options import RunOptions, require_problem
from castfit.drive.search.incremental.hills import N_LINE_POINTS, find_lower_neighbour
from castfit.drive.search.incremental.horizons import (
    break_time,
    doubling_horizons,
    end,
    integrated_length,
    measured_times,
)
from castfit.drive.search.incremental.limits import Bounds, HorizonEstimate, confidence_limits, standard_deviations
from castfit.drive.search.incremental.result import Horizon, IncrementalResult
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import Solver, Transcription, parts_from
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import Posable, start_mistakes
from castfit.result.result import Result
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import Iteration
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

RULES = ("doubling", "break time")
_HOPELESS = (Status.UNRESOLVABLE, Status.INACCURATE)  # a shorter step does not help
_MOST_ITERATIONS = 50  # iteration limit of the default solver and of a rescue, per solve
_MOST_RELAXATIONS = 8  # number of relaxations after which the user's bounds are used
_MOST_SHORTER = 3  # number of fallbacks in a fit after which no shorter horizon is tried
_MOST_HILLS = 3  # number of line searches beyond a poor optimum of the first horizon
_LOWEST_LOG = -700.0  # smallest logarithm of a quantity whose exponential is positive
_COARSE_INTEGRATION = 1e-6  # relative tolerance; gradients then err by 1e-4 (Lotka-Volterra)
_COARSE_SOLUTION = 1e-4  # tolerance of the solver
# Mean square of weighted residuals above which a fit is implausible, if the standard deviations are known.
_MAX_MEAN_SQUARE = 4.0
# Mean square of the residuals over that of the data above which a fit is implausible, if sigma is unknown.
_MAX_UNEXPLAINED_FRACTION = 0.04

_Part = TypeVar("_Part", Transcription, Solver)


@accept_old_names(bound_confidence="bound_confidence_level")
@guarded
def incremental(
    problem: Posable,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    *,
    start: Mapping[str, float] | None = None,
    horizons: str | Sequence[float] = "doubling",
    break_fraction: float | None = None,
    bound_confidence_level: float = 0.99,
    bound_relaxation: float = 2.0,
    coarse: bool = True,
    fallback: bool = True,
    max_time: float = np.inf,
    callback: Callable[[Iteration], Any] | None = None,
    absolute_sigma: bool | None = None,
    confidence_level: float = 0.95,
    verbose: int | None = None,
) -> IncrementalResult:
    """Estimate on successively longer horizons (incremental single shooting; Michalik et al. 2009).

    Parameters
    ----------
    problem : Problem or Posed
    transcription : SingleShooting, MultipleShooting or Collocation, optional
        By default single shooting, with which also the first of several horizons is solved for the others.
    solver : GaussNewton or Ipopt, optional
        By default Gauss-Newton with the l1 line search and without homotopy.  Both may be names, as in `fit`.
    start : mapping from quantity name to value, optional
        Natural scale; what is not named starts at its guess.
    horizons : {"doubling", "break time"} or sequence of float
        Times up to which measurements are used, one after the other; the last one is always the end.  "doubling":
        1, 2, 4, ... points of each measured quantity.  "break time": everything at once if the integration reaches
        the end, otherwise `break_fraction` of the time at which it breaks down.
    break_fraction : float, optional
        alpha in the paper's Sec. 3.2, between 0 and 1, by default 0.5; of ``horizons="break time"``.
    bound_confidence_level : float
        Level of the confidence limits that bound the next horizon.
    bound_relaxation : float
        BRF of Eqs. 10-11: an active updated bound moves by that many times the distance between the bounds.
    coarse : bool
        Whether all horizons but the last are integrated and solved with coarse tolerances.
    fallback : bool
        Whether a horizon that fails, or whose residuals are far too large, is approached in shorter steps, the first
        one from lower points around, and then by multiple shooting with the default Gauss-Newton method within the
        user's bounds.  Once rounding errors exceed the noise on a horizon, single shooting is not tried on longer ones.
    max_time : float
        Seconds for all horizons together.
    callback : callable, optional
        Called with an `Iteration` after each iteration of every solve; the fit stops when it returns True.
    absolute_sigma : bool, optional
        As in `fit`.
    confidence_level : float
        Of the intervals in the result's table.
    verbose : {0, 1, 2}, optional
        Nothing, one line per horizon, one line per solve.  By default a line on a terminal or in a notebook, from two
        seconds on until the end.

    Returns
    -------
    IncrementalResult
        Also for a fit that failed or was interrupted; see `Result`.

    Raises
    ------
    InputError
        For misuse: unknown names or values outside the bounds in `start`, horizons that do not increase, ...

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> course = cf.incremental(problem)
    >>> course.result.success, len(course.horizons) > 1
    (True, True)
    """
    run = RunOptions(max_time=max_time, callback=callback, verbose=verbose)
    mistakes: list[str] = []
    # Models that this is for are led astray by rough integration; `coarse` has its own tolerances.
    default_solver = GaussNewton("exact_penalty", homotopy="never", max_iter=_MOST_ITERATIONS, accuracy="full")
    chosen_transcription, chosen_solver = parts_from(
        transcription, solver, mistakes, default=(SingleShooting(), default_solver)
    )
    alpha = 0.5 if break_fraction is None else break_fraction
    fraction, positive = "give a number that is between 0 and 1", "give a number that is positive"
    mistakes += option_mistakes(
        ("break_fraction", alpha, is_within(alpha, 0, 1, strictly=True), fraction),
        (
            "bound_confidence_level",
            bound_confidence_level,
            is_within(bound_confidence_level, 0, 1, strictly=True),
            fraction,
        ),
        ("bound_relaxation", bound_relaxation, is_within(bound_relaxation, 0, strictly=True), positive),
        ("confidence_level", confidence_level, is_within(confidence_level, 0, 1, strictly=True), fraction),
        ("absolute_sigma", absolute_sigma, absolute_sigma is None or is_one_of(absolute_sigma, True, False),
         "give True, False or None"),
    )  # fmt: skip
    if break_fraction is not None and not is_one_of(horizons, "break time"):
        mistakes.append("break_fraction has an effect only with horizons='break time'; remove it")
    mistakes += flag_mistakes(coarse=coarse, fallback=fallback) + run.mistakes()
    require_problem("incremental", problem, mistakes)
    if not isinstance(horizons, str):
        mistakes += _horizon_mistakes(problem.posed, horizons)
    elif horizons not in RULES:
        mistakes.append(f"horizons is '{horizons}': {suggest(horizons, RULES)}")
    if start is not None:
        mistakes += start_mistakes(problem, start)
    raise_if_mistakes("incremental", mistakes)
    run = run.with_plain_numbers()
    driver = _IncrementalDriver(
        problem,
        chosen_transcription,
        chosen_solver,
        horizons if isinstance(horizons, str) else tuple(map(float, horizons)),
        alpha,
        bound_confidence_level,
        bound_relaxation,
        coarse,
        fallback,
        time.perf_counter() + run.max_time,
        {
            "callback": callback,
            "absolute_sigma": absolute_sigma,
            "confidence_level": confidence_level,
            "verbose": verbose and verbose - 1,
        },
    )
    theta = problem.guess if start is None else problem.theta_from(start)
    with open_reporter(2 if verbose else verbose) as report:
        result, solved = driver.run(HorizonEstimate(theta, driver.user, -np.inf), report)
    return IncrementalResult(result, solved, run.seconds)


@dataclass(frozen=True)
class _HorizonAttempt:
    """A fit on one horizon."""

    problem: CompiledProblem
    horizon: float
    result: Result
    bounds: Bounds
    accuracy: float
    relaxations: int
    iterations: int
    evaluations: Counter[str]
    fallback: str = ""

    @property
    def plausible(self) -> bool:
        """Whether residuals are not far too large."""
        result = self.result
        if result.absolute_sigma:
            return float(np.mean(result.normalised_residuals**2)) <= _MAX_MEAN_SQUARE
        data = np.concatenate([(c.points.values / c.points.sigma)[c.points.mask] for c in self.problem.conditions])
        return float(np.mean(result.residuals**2)) <= _MAX_UNEXPLAINED_FRACTION * float(np.mean(data**2))


@dataclass(frozen=True)
class _IncrementalDriver:
    """The choices of one incremental fit; `deadline` is a time of `time.perf_counter`."""

    problem: Posable
    transcription: Transcription
    solver: Solver
    horizons: str | Sequence[float]
    break_fraction: float
    confidence: float
    relaxation: float
    coarse: bool
    fallback: bool
    deadline: float
    options: dict[str, Any]

    @property
    def compiled_problem(self) -> CompiledProblem:
        """The problem, worked out."""
        return self.problem.posed

    @property
    def user(self) -> Bounds:
        """The user's bounds."""
        return Bounds(*self.problem.bounds)

    def leads(self, attempt: _HorizonAttempt) -> bool:
        """Whether a fit ended where the next one may begin: at its optimum, or, on the way, where steps were too small.

        At the coarse tolerances of shorter horizons that is what errors of integration make of an optimum.
        """
        status, final = attempt.result.status, attempt.horizon >= end(self.compiled_problem)
        return (status.success or (status is Status.STEP_TOO_SMALL and not final)) and attempt.plausible

    def run(self, estimate: HorizonEstimate, report: Callable[..., None]) -> tuple[Result, tuple[Horizon, ...]]:
        """Follow the flow chart to the end of the last horizon."""
        horizons: tuple[Horizon, ...] = ()
        target = self.next_horizon(estimate)
        unstable = False
        while True:
            attempt = self.in_pieces(target, estimate) if unstable else self.solve(target, estimate)
            is_cut_off = attempt.result.status.cut_off
            if self.fallback and not unstable and not is_cut_off and not self.leads(attempt):
                unstable = attempt.result.status is Status.UNRESOLVABLE  # on longer horizons all the more
                shorter_horizon = self.nearer_horizon(attempt, estimate, horizons)
                if shorter_horizon is not None:
                    horizons = (*horizons, self.record(replace(attempt, fallback="shorter step"), report))
                    target = shorter_horizon
                    continue
                attempt = self.search_neighbours(attempt, estimate)
                is_cut_off = attempt.result.status.cut_off
                if not is_cut_off and not self.leads(attempt):
                    attempt = self.rescue(attempt, estimate)
                    is_cut_off = attempt.result.status.cut_off
            horizons = (*horizons, self.record(attempt, report))
            if target >= end(self.compiled_problem):
                return attempt.result.with_known_problem(self.problem), horizons
            if is_cut_off:
                return self.unfinished(attempt.result), horizons
            estimate = self.learn(attempt, estimate)
            target = self.next_horizon(estimate)

    def next_horizon(self, estimate: HorizonEstimate) -> float:
        """Return the horizon that the rule wants next."""
        last_time = end(self.compiled_problem)
        times = doubling_horizons(self.compiled_problem) if isinstance(self.horizons, str) else self.horizons
        next_time = next((t for t in times if t > estimate.horizon), last_time)
        if self.horizons == "break time":
            stop = break_time(self.compiled_problem, estimate.theta, self.transcription.integrator)
            if np.isinf(stop):
                return last_time
            measured = measured_times(self.compiled_problem)
            reachable_times = measured[measured <= self.break_fraction * stop]
            return (
                float(reachable_times[-1])
                if reachable_times.size and reachable_times[-1] > estimate.horizon
                else next_time
            )
        return min(next_time, last_time)

    def nearer_horizon(
        self, attempt: _HorizonAttempt, estimate: HorizonEstimate, horizons: Sequence[Horizon]
    ) -> float | None:
        """Return a horizon halfway between the one that was reached and the one that failed; None to give up."""
        if attempt.result.status in _HOPELESS or sum(bool(h.fallback) for h in horizons) >= _MOST_SHORTER:
            return None
        times = measured_times(self.compiled_problem)
        candidate_times = times[(times > estimate.horizon) & (times < attempt.horizon)]
        return float(candidate_times[(candidate_times.size - 1) // 2]) if candidate_times.size else None

    def solve(self, horizon: float, estimate: HorizonEstimate) -> _HorizonAttempt:
        """Estimate on one horizon, and repeat with relaxed bounds until no updated bound is active."""
        horizon_problem = self.compiled_problem.with_horizon(horizon)
        transcription, solver = self.transcription, self.solver
        if estimate.horizon == -np.inf and horizon < end(self.compiled_problem):
            # Nodes or collocation points would start from hardly any data, and wander away together with theta.
            transcription = SingleShooting(integrator=transcription.integrator)
        if self.coarse and horizon < end(self.compiled_problem):
            transcription, solver = with_loose_tolerances(transcription), with_loose_tolerances(solver)
        theta, bounds = estimate.theta, estimate.bounds
        relaxations = iterations = 0
        evaluations: Counter[str] = Counter()
        while True:
            result = self.fit(horizon_problem, theta, bounds, transcription, solver)
            iterations += result.iterations
            evaluations.update(result.evaluations)
            positions = {name: j for j, name in enumerate(result.names)}
            active = {positions[name]: side for name, side in result.active.items()
                      if name in positions and side != "kink"}  # fmt: skip
            updated = bounds.select_updated(active, self.user)
            if not result.success or not updated:
                accuracy = transcription.accuracy
                return _HorizonAttempt(
                    horizon_problem, horizon, result, bounds, accuracy, relaxations, iterations, evaluations
                )
            relaxations += 1
            theta = result.theta
            is_limit_reached = relaxations >= _MOST_RELAXATIONS
            bounds = self.user if is_limit_reached else bounds.with_relaxed(updated, self.relaxation, self.user)

    def search_neighbours(self, attempt: _HorizonAttempt, estimate: HorizonEstimate) -> _HorizonAttempt:
        """Search the first of several horizons from lower points around where a search ended."""
        if estimate.horizon > -np.inf or attempt.horizon >= end(self.compiled_problem):
            return attempt
        iterations, evaluations = attempt.iterations, attempt.evaluations
        best = attempt
        for _ in range(_MOST_HILLS):
            if time.perf_counter() > self.deadline:
                break
            staged = with_loose_tolerances(SingleShooting(self.transcription.integrator)).transcribe(
                best.problem, best.result.theta
            )
            lower = find_lower_neighbour(self.compiled_problem, staged, best.result)
            evaluations = evaluations + Counter(values=N_LINE_POINTS + 1)
            if lower is None:
                break
            best = self.solve(attempt.horizon, replace(estimate, theta=lower))
            iterations, evaluations = iterations + best.iterations, evaluations + best.evaluations
            if self.leads(best) or best.result.status.cut_off:
                return replace(best, iterations=iterations, evaluations=evaluations, fallback="another start")
        return replace(attempt, iterations=iterations, evaluations=evaluations)

    def rescue(self, attempt: _HorizonAttempt, estimate: HorizonEstimate) -> _HorizonAttempt:
        """Try multiple shooting within the user's bounds; return the better of the two attempts."""
        second_attempt = self.in_pieces(attempt.horizon, estimate)
        first_result, second_result = attempt.result, second_attempt.result
        is_better = second_result.success and not (first_result.success and first_result.cost <= second_result.cost)
        return replace(
            second_attempt if is_better or second_result.status.cut_off else attempt,
            relaxations=attempt.relaxations,
            iterations=attempt.iterations + second_attempt.iterations,
            evaluations=attempt.evaluations + second_attempt.evaluations,
            fallback=second_attempt.fallback,
        )

    def in_pieces(self, horizon: float, estimate: HorizonEstimate) -> _HorizonAttempt:
        """Estimate on one horizon by multiple shooting within the user's bounds."""
        transcription = MultipleShooting(integrator=self.transcription.integrator)
        if self.coarse and horizon < end(self.compiled_problem):
            transcription = with_loose_tolerances(transcription)
        horizon_problem, solver = (
            self.compiled_problem.with_horizon(horizon),
            GaussNewton(max_iter=_MOST_ITERATIONS, accuracy="full"),
        )
        result = self.fit(horizon_problem, estimate.theta, self.user, transcription, solver)
        counts = result.iterations, Counter(result.evaluations)
        return _HorizonAttempt(
            horizon_problem, horizon, result, self.user, transcription.accuracy, 0, *counts, "multiple shooting"
        )

    def fit(
        self, problem: CompiledProblem, theta: Array, bounds: Bounds, transcription: Transcription, solver: Solver
    ) -> Result:
        """Fit within bounds in the time that is left."""
        remaining = max(self.deadline - time.perf_counter(), 1e-9)
        start = np.clip(theta, bounds.lower, bounds.upper)
        # What the data leave open may run away in its logarithm, further than numbers reach.
        logarithmic = np.array([q.scale == "log" for q in problem.quantities])
        start = np.where(logarithmic, np.clip(start, _LOWEST_LOG, -_LOWEST_LOG), start)
        bounds = Bounds(np.minimum(bounds.lower, start), np.maximum(bounds.upper, start))
        bounded = problem.with_bounds(bounds.lower, bounds.upper, start)
        final = end(problem) >= end(self.compiled_problem)  # earlier estimates, at coarse tolerances, only lead the way
        with np.errstate(over="ignore", invalid="ignore"):  # far from the solution trajectories may be huge
            return fit(bounded, transcription, solver, retry=False, verify=final, max_time=remaining, **self.options)

    def learn(self, attempt: _HorizonAttempt, estimate: HorizonEstimate) -> HorizonEstimate:
        """Return estimates and bounds for the next horizon; a horizon that failed leaves the estimates alone."""
        result = attempt.result
        if not result.success and not self.leads(attempt):
            return HorizonEstimate(estimate.theta, self.user, attempt.horizon)
        if not result.success or (self.fallback and not attempt.plausible):
            return HorizonEstimate(result.theta, self.user, attempt.horizon)
        limits = confidence_limits(result, self.confidence, attempt.accuracy, self.user)
        return HorizonEstimate(result.theta, limits, attempt.horizon)

    def unfinished(self, result: Result) -> Result:
        """Return the best point so far as a result of the whole problem, with the status of the fit that stopped."""
        full_problem = self.compiled_problem.with_bounds(self.user.lower, self.user.upper, result.theta)
        options: dict[str, Any] = {**self.options, "callback": None, "verbose": 0}
        with np.errstate(over="ignore", invalid="ignore"):
            point_result = fit(
                full_problem, self.transcription, GaussNewton(homotopy="never", max_iter=0), retry=False, **options
            )
        return point_result.with_status(result.status, result.message).with_known_problem(self.problem)

    def record(self, attempt: _HorizonAttempt, report: Callable[..., None]) -> Horizon:
        """Build the record of a horizon, and report it."""
        result, problem = attempt.result, self.compiled_problem
        deviations = standard_deviations(result, attempt.accuracy)[0]
        is_known = np.isfinite(deviations)
        deviations[is_known] *= problem.natural_slope(result.theta)[is_known]
        lower, upper = (problem.to_natural(b).tolist() for b in (attempt.bounds.lower, attempt.bounds.upper))
        record = Horizon(
            horizon=attempt.horizon,
            n_data=result.n_data,
            estimates=result.values,
            standard_errors=dict(zip(result.names, deviations.tolist(), strict=True)),
            bounds=dict(zip(result.names, zip(lower, upper, strict=True), strict=True)),
            relaxations=attempt.relaxations,
            iterations=attempt.iterations,
            evaluations=dict(attempt.evaluations),
            share=integrated_length(attempt.problem) / integrated_length(problem),
            chi2=result.chi2,
            objective=result.objective,
            measure=result.measure,
            status=result.status,
            fallback=attempt.fallback,
        )
        fallback_text = f", {record.fallback}" if record.fallback else ""
        message = (
            f"{record.status.value} after {record.iterations} iterations, {record.measure} = {record.objective:.6g}"
        )
        message = f"until {record.horizon:g}: {message} from {record.n_data} data{fallback_text}"
        report(message, message)
        return record


def with_loose_tolerances(component: _Part) -> _Part:
    """Return a transcription or solver with tolerances that suffice where the estimates are not final."""
    if not is_dataclass(component) or isinstance(component, type):
        return component
    changes: dict[str, Any] = {}
    options: Any = getattr(component, "integrator", None)
    if isinstance(options, IntegratorOptions) and options.relative_tolerance < _COARSE_INTEGRATION:
        factor = _COARSE_INTEGRATION / options.relative_tolerance
        changes["integrator"] = replace(
            options,
            relative_tolerance=_COARSE_INTEGRATION,
            absolute_tolerance=factor * options.absolute_tolerance,
        )
    tolerance: Any = getattr(component, "tolerance", None)
    if isinstance(tolerance, float):
        changes["tolerance"] = max(_COARSE_SOLUTION, tolerance)
    return cast("_Part", replace(cast("Any", component), **changes))


def _horizon_mistakes(problem: CompiledProblem, horizons: Any) -> list[str]:
    """Check horizons that the user gave."""
    times = read_reals(horizons)
    if times is None or times.ndim != 1 or not times.size or not np.isfinite(times).all():
        return [f"horizons is {shorten_repr(horizons)}; give {', '.join(map(repr, RULES))} or a list of times"]
    first_time = float(measured_times(problem)[0])
    mistakes: list[str] = []
    if not (np.diff(times) > 0).all():
        mistakes.append(f"horizons is {shorten_repr(horizons)}; give increasing times")
    if times[0] < first_time:
        mistakes.append(
            f"the first horizon is {times[0]:g}, but the first measurement is at {first_time:g}; pass a longer horizon"
        )
    return mistakes
