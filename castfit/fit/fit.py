"""`fit`: a problem, a transcription and a solver give a result.

theta, states --transcribe--> staged problem --solve--> v --(refine, solve again)--> statistics --> Result
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.arguments import (
    flag_mistakes,
    is_one_of,
    is_within,
    level_rule,
    option_mistakes,
    read_real,
    shorten_repr,
    stop_query,
)
from castfit._support.blas_threads import one_blas_thread
from castfit._support.progress_line import duration, print_progress, progress_line
from castfit._support.records import dataclass
from castfit._support.silence import is_interactive
from castfit._support.status import InputError, Status, raise_if_mistakes
from castfit._support.time_limit import StopRequested, guard, with_deadline
from castfit.fit.attempt import FitRun, has_states, with_start_trajectory, with_state_start
from castfit.fit.build_result import build_result, describe_exact_data
from castfit.fit.choice import DEFAULT_SOLVER, choose
from castfit.fit.methods import Solver, Transcription, given_parts
from castfit.fit.refinement import RefinedFit, RefinementProblem, SignOfGuess, solve_with_refinements
from castfit.fit.start import StartingPoint
from castfit.fit.strategies import add_gap_note, ensure_not_above_start, lowest_visited_point, search_with_fallbacks
from castfit.integrate.distributed import lanes_divided, worker_mistakes
from castfit.integrate.esdirk_binding import wanted_compiler
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import Posable, Problem, kind_mistakes, start_mistakes
from castfit.result.result import Result
from castfit.simulate.simulate import TrajectoryNodes
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import Iteration
from castfit.transcribe.collocation import Collocation

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.fit.start.decomposition.search import Decomposed
    from castfit.fit.start.soft_start import SoftStart
    from castfit.result.path_result import PathResult

# Advice for failed searches of problems whose states trigger events, which only shooting follows.
_TRIGGERED_ADVICE = (
    "Try another starting point, bounds, scale='log' for the parameters, the other shooting method (SingleShooting(), "
    "MultipleShooting(10)), or multistart."
)
# Gap, in units of the states, above which the objective is not that of a continuous trajectory.
_MATCHING_TOLERANCE = 1e-6


# Wild trial points overflow; they are found and rejected, and must not warn.
@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def fit(
    problem: Posable,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    *,
    start: Mapping[str, float] | Result | Decomposed | SoftStart | str | None = None,
    second_start: bool = True,
    retry: bool = True,
    verify: bool = True,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    callback: Callable[[Iteration], Any] | None = None,
    absolute_sigma: bool | None = None,
    loss: str = "linear",
    f_scale: float = 1.0,
    confidence_level: float = 0.95,
    verbose: int | None = None,
) -> Result | PathResult:
    """Estimate parameters and initial states.

    Parameters
    ----------
    problem : Problem or Posed
    transcription : SingleShooting, MultipleShooting or Collocation, optional
        By default single shooting or collocation, whichever is predicted to take less time; the message says which was
        chosen and why (see castfit.fit.choice).  Or a name: "single", "multiple", "collocation", also with the solver,
        as in "multiple/ipopt".
    solver : GaussNewton, Ipopt or Sqp, optional
        By default Gauss-Newton, if the transcription provides Jacobians; or a name: "gauss_newton", "ipopt", "sqp",
        "box" (Gauss-Newton in a trust region for parameters known to an order of magnitude).
    start : mapping from quantity name to value, Result, "matching", "decomposed", "soft", Decomposed or SoftStart
        Starting point of the search, natural scale; quantities that are not named start at their guess.  "matching"
        first fits the model's right-hand side to the measured states (see castfit.fit.start.matching); if all states
        are measured, it is also tried when the search from the guess makes no progress.  "decomposed" first estimates
        equations without common parameters separately, from many random starts between the bounds (see `Decomposed`).
        "soft" estimates states and parameters jointly while relaxed equations are tightened (see `SoftStart`), for
        partly measured models.  From a Result, multiple shooting and collocation start at its whole trajectory.
    second_start : bool
        Whether Gauss-Newton may restart from the measured states, by "matching", if it makes no progress.
    retry : bool
        Whether fallback strategies follow if multiple shooting or collocation fails, or ends with residuals far larger
        than the noise (see castfit.fit.strategies), and whether a fit that ends above its own start descends from
        there.  If parameters without bounds and with positive guesses end at negative or huge values, a search with
        positive values on a logarithmic scale follows.  The message lists the attempts.
    verify : bool
        Whether the model, integrated with error control, must reproduce a solution for the fit to succeed.  Set it to
        False only for estimates that are not final.
    workers : int or concurrent.futures.Executor
        Workers among which the integrations of experiments, and of stages of multiple shooting, are divided: threads
        for castfit's compiled integrator, processes for others, or an executor, such as that of a Dask cluster.  The
        numbers do not depend on it.  Processes take a second or two to start, so they are started once integration has
        taken a second.  Collocation has no integrations to divide.
    max_time : float
        Seconds after which the best point so far is returned.
    callback : callable, optional
        Called with an `Iteration` after each iteration; the solve stops when it returns True.
    absolute_sigma : bool, optional
        Whether the given standard deviations are used as they are (True) or only their ratios (False), as in
        ``scipy.optimize.curve_fit``.  By default True if the experiments set sigma.
    loss : {"linear", "huber", "soft_l1", "cauchy"}
        A robust loss for outputs with normal errors, as in ``scipy.optimize.least_squares`` but with residuals in
        standard deviations, which are estimated if they are unknown: short for ``problem.robust(loss, f_scale)``.
        Other noise models are given with the experiments.
    f_scale : float
        Residual, in standard deviations, from which a robust loss is less than quadratic.
    confidence_level : float
        Of the intervals in the result's table.
    verbose : {0, 1, 2}, optional
        0: no output.  1: one line per solve, a hint if a C compiler would help, and on a terminal a progress line with
        the time per iteration and the time left until `max_time`.  2: one line per iteration.  By default a progress
        line on a terminal or in a notebook, after two seconds until the end.

    Returns
    -------
    Result
        Also for a fit that failed or was interrupted: then ``success`` is False, the parameters are the best point
        found, and ``message`` states the reason.
        If the problem estimates nothing, the model is evaluated once, and the result has no quantities.
        If the model has process noise, a `PathResult`, by the likelihood of the data over all paths; arguments without
        effect raise an InputError.

    Raises
    ------
    InputError
        For misuse: unknown names or values outside the bounds in `start`, options out of range, a decomposition of a
        problem that has none.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> result.success
    True
    >>> cf.fit(problem, "multiple", "ipopt").status
    <Status.CONVERGED: 'converged'>
    >>> cf.fit(problem, start={"k3": 1.0})
    Traceback (most recent call last):
        ...
    castfit.InputError: start: 1 mistake found
      - 'k3' is not estimated: did you mean 'k2'? (valid: k1, k2)
    """
    start_time = time.perf_counter()
    loss_mistakes: list[str] = []
    if not (is_one_of(loss, "linear") and is_within(f_scale, 1.0, 1.0)):
        if isinstance(problem, Problem):
            try:
                problem = problem.robust(loss, f_scale)
            except InputError as error:
                loss_mistakes += error.problems
        else:
            loss_mistakes.append("loss has an effect only for a Problem; pass problem.robust(loss)")
    is_callable = callback is None or callable(callback)
    any_problem: Any = problem
    has_noises = isinstance(any_problem, (Problem, CompiledProblem)) and bool(any_problem.posed.model.noises)
    is_given = {
        "transcription": transcription is not None, "solver": solver is not None, "workers": not is_one_of(workers, 1),
        "absolute_sigma": absolute_sigma is not None, "second_start": not is_one_of(second_start, True),
        "retry": not is_one_of(retry, True), "verify": not is_one_of(verify, True),
    }  # fmt: skip
    mistakes = _noisy_mistakes(is_given, start) if has_noises else kind_mistakes(problem, may_be_fixed=True)
    mistakes += loss_mistakes
    mistakes += option_mistakes(("callback", callback, is_callable, "give a function of one Iteration"))
    callback = stop_query(callback)
    requested_transcription, requested_solver = (
        given_parts(None, None, mistakes) if has_noises else given_parts(transcription, solver, mistakes)
    )
    level, time_limit = read_real(confidence_level), read_real(max_time)
    is_valid_choice = absolute_sigma is None or is_one_of(absolute_sigma, True, False)
    mistakes += option_mistakes(
        level_rule(confidence_level, level),
        ("max_time", max_time, time_limit is not None and time_limit > 0.0, "expected a positive number of seconds"),
        ("absolute_sigma", absolute_sigma, is_valid_choice, "give True, False or None"),
        ("verbose", verbose, verbose is None or is_one_of(verbose, 0, 1, 2), "choose 0, 1 or 2"),
    )
    mistakes += flag_mistakes(second_start=second_start, retry=retry, verify=verify)
    mistakes += _worker_mistakes(workers, requested_transcription)
    if mistakes and not has_noises and isinstance(start, Mapping):
        mistakes += start_mistakes(problem, start)
    raise_if_mistakes("fit", mistakes)
    assert level is not None
    assert time_limit is not None
    if has_noises:
        from castfit.fit.noisy_fit import fit_noisy  # other fits do not need it

        start_values = cast("Any", start)
        return cast(
            "Any",
            fit_noisy(
                problem,
                start=start_values,
                max_time=time_limit,
                callback=callback,
                confidence_level=level,
                verbose=verbose,
            ),
        )
    if isinstance(start, Result):
        problem = (
            start.with_known_problem(problem).problem or problem
        )  # with as many nodes in delay lines as the result has
    single_fit = _FitRequest(
        requested_transcription, requested_solver, start_time + time_limit, callback, verbose, level, absolute_sigma,
        second_start=second_start, retry=retry, verify=verify, divided=isinstance(workers, Executor) or workers != 1,
    )  # fmt: skip
    question, refinements = RefinementProblem(problem, start), _refinements(problem.posed, verify=verify)
    solve = single_fit.fit
    if refinements:
        solve = partial(solve_with_refinements, refinements=refinements, solve=solve)
    with guard("castfit.fit"), lanes_divided(workers), _progress_line(verbose):
        answer = solve(question)
        return SignOfGuess(question).refine_until_done(answer, solve) if retry else answer


plain_fit = cast("Callable[..., Result]", fit)
"""`fit` of problems whose model has no noises, as drivers know that they are."""


def _noisy_mistakes(is_given: Mapping[str, bool], start: Any) -> list[str]:
    """List the arguments that have no effect for a model with noises, and an unsuitable start."""
    reason = "has no effect for models with process noise, whose path is estimated by its likelihood; remove it"
    mistakes = [f"{name} {reason}" for name, is_set in is_given.items() if is_set]
    is_valid_start = start is None or isinstance(start, Mapping) or type(start).__name__ == "PathResult"
    return mistakes + (
        []
        if is_valid_start
        else [f"start is {shorten_repr(start)}; expected values by name, or a result of the same model"]
    )


def _refinements(problem: CompiledProblem, *, verify: bool) -> list[type[RefinedFit]]:
    """Return the refinements that repeat the whole fit, the outermost first."""
    refinements: list[type[RefinedFit]] = []
    if problem.model.adaptive and verify:
        from castfit.fit.delay_refinement import DelayNodes

        refinements.append(DelayNodes)
    if problem.correlations:
        from castfit.fit.correlated_errors import CorrelatedErrors

        refinements.append(CorrelatedErrors)
    if any(term.chosen for term in problem.smoothness_penalties):
        from castfit.fit.smoothing_weights import SmoothnessWeights

        refinements.append(SmoothnessWeights)
    if problem.every_prior:
        from castfit.fit.laplace_kinks import LaplaceKinks, find_kinks

        if find_kinks(problem):
            refinements.append(LaplaceKinks)
    return refinements


@dataclass(frozen=True)
class _FitRequest:
    """Checked arguments of `fit`, except the problem and the start, which refinements change."""

    transcription: Transcription | None
    solver: Solver | None
    deadline: float
    callback: Callable[[Iteration], Any] | None
    verbose: int | None
    confidence_level: float
    absolute_sigma: bool | None
    second_start: bool
    retry: bool
    verify: bool
    divided: bool

    def fit(self, question: RefinementProblem) -> Result:
        """Fit once, with the delay lines, smoothness weights and signs of the question."""
        start_time = time.perf_counter()
        problem, start, transcription, choice = (
            question.problem,
            question.start,
            self.transcription or Collocation(),
            None,
        )
        seconds_left = self.deadline - start_time
        with with_deadline(seconds_left) as watch, _progress_line(self.verbose) as line:
            if line is not None:
                line("before the first iteration")
            compiled_problem = problem.posed.with_absolute_sigma(absolute_sigma=self.absolute_sigma)
            origin = _origin(compiled_problem, transcription, start, seconds_left)
            nodes = result_nodes(compiled_problem, start) if isinstance(start, Result) else origin.nodes
            if self.transcription is None:
                choice = choose(
                    compiled_problem,
                    origin.theta,
                    states=bool(nodes),
                    workers=self.divided,
                    straight=self.retry or question.is_near_solution,
                    bound=self.solver is not None,
                )
                transcription = choice.transcription
            with suppress(StopRequested):  # the solver checks the time limit again
                if nodes and isinstance(transcription.states, str):
                    transcription = with_start_trajectory(compiled_problem, transcription, origin.theta, nodes)
                    if choice is not None and choice.fallback is not None:
                        choice = replace(
                            choice,
                            fallback=with_start_trajectory(compiled_problem, choice.fallback, origin.theta, nodes),
                        )
            report_note: Callable[[str], None] = print_progress if self.verbose else lambda _: None
            if origin.note:
                report_note(origin.note)
            if (
                self.verbose
                and getattr(transcription, "integrates", True)
                and transcription.integrator.method == "auto"
            ):
                _mention(wanted_compiler())
            deadline = start_time + seconds_left if origin.stop_status is None else start_time
            run = FitRun(
                compiled_problem,
                self.solver or DEFAULT_SOLVER,
                deadline,
                _reporter(self.callback, self.verbose, line, deadline),
                report_note,
                verify=self.verify,
                second_start=self.second_start and not question.is_near_solution,
                retry=self.retry and not question.is_near_solution,
                choice=choice,
                cached_simulation=choice
                and choice.single_shooting_problem
                and (compiled_problem, origin.theta.copy(), choice.single_shooting_problem),
            )
            if compiled_problem.least_squares:
                search_end = search_with_fallbacks(run, transcription, origin.theta)
            else:
                from castfit.fit.maximum_likelihood import most_likely

                search_end = most_likely(run, transcription, origin.theta)
            cause = watch.cause
            search_end = lowest_visited_point(run, search_end, transcription)
            search_end = ensure_not_above_start(run, search_end, transcription, origin.theta)
        attempt = search_end.attempt
        stop_status = cause if attempt.solution.status is Status.MAX_ITERATIONS else origin.stop_status
        attempt = attempt if stop_status is None else attempt.with_status(stop_status)
        solution, success, staged = attempt.solution, attempt.solution.status.success, attempt.staged
        rounding = describe_exact_data(run.problem, staged, attempt.linear, solution.active) if success else ""
        remark = staged.remark(solution.v) if success else ""
        advice = solution.status.advice
        if run.problem.triggered and "matching" in advice:
            advice = _TRIGGERED_ADVICE
        sentences = (
            *(solution.status.message, solution.detail, rounding, origin.note, choice.sentence if choice else ""),
            *(*search_end.notes, add_gap_note(run, attempt), remark, advice),
        )
        message, seconds = (
            " ".join(f"{part.removesuffix('.')}." for part in sentences if part),
            time.perf_counter() - start_time,
        )
        level = self.confidence_level
        result = build_result(problem, attempt, run, message=message, time=seconds, confidence_level=level)
        if self.verbose:
            summary = f"{solution.status.value} after {run.iterations} iterations, {seconds:.2f} s"
            quality_note = ", a poor optimum" if result.success and not result.is_adequate else ""
            print_progress(f"{summary}: {result.measure} = {result.objective:.8g}{quality_note}")
        return result


def _worker_mistakes(workers: Any, transcription: Transcription | None) -> list[str]:
    """List the mistakes in `workers`, including a transcription without integrations."""
    mistakes = worker_mistakes(workers)
    is_serial = not isinstance(workers, Executor) and workers == 1
    if (
        mistakes or is_serial or transcription is None or getattr(transcription, "integrates", True)
    ):  # a user's transcription need not define it
        return mistakes
    remedy = "use SingleShooting() or MultipleShooting(), or remove workers"
    return [f"workers is {shorten_repr(workers)}, but {transcription.label} has no integrations to divide; {remedy}"]


def _origin(
    problem: CompiledProblem,
    transcription: Transcription,
    start: Mapping[str, float] | Result | Decomposed | SoftStart | str | None,
    max_time: float,
) -> StartingPoint:
    """Compute the start of the search, with a note on the method used."""
    if isinstance(start, Result):
        start = {**start.parameters, **start.initial_states}
    if start is None or isinstance(start, Mapping):
        return StartingPoint(problem.guess if start is None else problem.theta_from(start))
    from castfit.fit.start.decomposition.search import Decomposed, decompose
    from castfit.fit.start.matching import match_gradients
    from castfit.fit.start.soft_start import SoftStart, soft_start_or_guess

    if isinstance(start, str):
        if start not in ("matching", "decomposed", "soft"):
            remedy = "give a mapping from names to values, a Result, 'matching', 'decomposed' or 'soft'"
            raise_if_mistakes("fit", [f"start is '{start}'; {remedy}"])
        if start == "matching":
            theta = match_gradients(problem, problem.guess, transcription.states, transcription.integrator)
            return StartingPoint(theta)
        start = SoftStart() if start == "soft" else Decomposed()
    if isinstance(start, SoftStart):
        return soft_start_or_guess(problem, problem.theta_from(start.start), transcription.integrator, start.stations)
    other = cast("Any", start)
    if isinstance(other, Decomposed):
        return decompose(problem, problem.theta_from(other.start), rng=other.rng, max_time=max_time)
    return StartingPoint(problem.theta_from(other))  # it reports that this is not a starting point


def refit_method_options(result: Result) -> tuple[Transcription, Solver]:
    """Return the transcription and solver for a refit of a result.

    They are those that found the result or, if these are unknown, are chosen at its estimates.  Fits start at its
    trajectory in any case.
    """
    if result.method is None:
        compiled_problem = result.problem and result.problem.posed
        return choose(
            compiled_problem, result.theta, straight=False
        ).transcription if compiled_problem else Collocation(), GaussNewton()
    transcription, solver = result.method
    has_start_nodes = has_states(transcription) and not isinstance(transcription.states, str)
    return with_state_start(transcription, "data") if has_start_nodes else transcription, solver


def start_at_trajectory(
    problem: CompiledProblem, transcription: Transcription, theta: Array, start: Result
) -> Transcription:
    """Return the transcription with its states started at a result's nodes, if these are of the same experiments."""
    nodes = result_nodes(problem, start)
    return (
        with_start_trajectory(problem, transcription, theta, nodes)
        if nodes and isinstance(transcription.states, str)
        else transcription
    )


def result_nodes(problem: CompiledProblem, result: Result) -> list[TrajectoryNodes]:
    """Return the trajectory of a result, per experiment; empty if it is not one of this problem."""
    nodes = list(result.trajectories.values())
    matches_problem = list(result.trajectories) == [c.name for c in problem.conditions] and all(
        trajectory.states.shape[1] == len(problem.model.states)
        and trajectory.times[-1] <= c.end
        and bool(np.isfinite(trajectory.states).all())
        for trajectory, c in zip(nodes, problem.conditions, strict=True)
    )
    return nodes if matches_problem else []


def _progress_line(verbose: int | None) -> AbstractContextManager[Callable[[str], None] | None]:
    """Return the progress line of a fit, if the output is interactive."""
    return progress_line(verbose, keep=False) if is_interactive() else nullcontext()


def _reporter(
    callback: Callable[[Iteration], Any] | None,
    verbose: int | None,
    line: Callable[[str], None] | None,
    deadline: float,
) -> Callable[[Iteration], Any] | None:
    """Return the function called after each iteration, which reports objective, time per iteration and time limit."""
    if verbose != 2 and line is None:
        return callback
    start_time = time.perf_counter()

    def report(iteration: Iteration) -> Any:
        current_time = time.perf_counter()
        infeasibility_text = (
            f" (infeasible by {iteration.infeasibility:.1g})" if iteration.infeasibility > _MATCHING_TOLERANCE else ""
        )
        progress = (
            f"iteration {iteration.iteration}: {iteration.measure} = {iteration.objective:.6g}{infeasibility_text}"
        )
        if verbose is None and line is not None:
            line(progress)
        elif line is not None:
            pace_text = (
                f", {duration((current_time - start_time) / iteration.iteration)} an iteration"
                if iteration.iteration
                else ""
            )
            limit_text = (
                f", at most {duration(max(deadline - current_time, 0.0))} left" if np.isfinite(deadline) else ""
            )
            line(f"{progress}; {current_time - start_time:.0f} s{pace_text}{limit_text}")
        else:
            values_text = (
                f"{iteration.measure} {iteration.objective:14.8g}  infeasibility {iteration.infeasibility:9.2e}"
            )
            print_progress(f"{iteration.iteration:5d}  {values_text}  {iteration.seconds:7.2f} s")
        return callback(iteration) if callback is not None else None

    return report


@cache
def _mention(sentence: str) -> None:
    """Print a sentence once per process."""
    if sentence:
        print_progress(sentence)
