"""`fit`: a problem, a transcription and a solver give a result.

theta, states --transcribe--> staged problem --solve--> v --(refine, solve again)--> statistics --> Result
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.arguments import flag_mistakes, is_one_of, is_within, level_rule, option_mistakes, real, text
from castfit._support.blas_threads import one_blas_thread
from castfit._support.progress_line import duration, following, say
from castfit._support.records import dataclass
from castfit._support.silence import is_live
from castfit._support.status import InputError, check
from castfit._support.time_limit import Interrupt, Stopped, watched
from castfit.fit.attempt import FitRun, has_states, started_from, with_states
from castfit.fit.build_result import estimate, reproduced
from castfit.fit.choice import choose
from castfit.fit.methods import Solver, Transcription, given_parts
from castfit.fit.refinement import FitQuestion, RefinedFit, solved
from castfit.fit.start import Origin
from castfit.fit.strategies import lowest_met, never_above_start, search, told_of_gaps
from castfit.integrate.distributed import lanes_divided, worker_mistakes
from castfit.integrate.esdirk_binding import wanted_compiler
from castfit.problem.compiled_problem import Posed
from castfit.problem.problem import Posable, Problem, kind_mistakes, start_mistakes
from castfit.result.result import Result
from castfit.simulate.simulate import Nodes
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import Iteration
from castfit.transcribe.collocation import Collocation

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.fit.start.decomposition.search import Decomposed
    from castfit.fit.start.soft_start import SoftStart
    from castfit.result.path_result import PathResult

_CLOSED = 1e-6  # gaps, in units of the states: with larger ones an objective is not that of a trajectory


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
        By default Gauss-Newton, if the transcription gives what it needs; or a name: "gauss_newton", "ipopt", "sqp",
        "box" (Gauss-Newton in a trust region for parameters known to decades).
    start : mapping from quantity name to value, Result, "matching", "decomposed", "soft", Decomposed or SoftStart
        Where the search starts, natural scale; what is not named starts at its guess.  "matching" first fits the
        model's right-hand side to the measured states (see castfit.fit.start.matching); where all states are measured
        this is also tried when the search gets nowhere from the guess.  "decomposed" first estimates the equations that
        share no parameter apart from each other, from many random starts between the bounds (see `Decomposed`).  "soft"
        lets constant states and parameters find each other while the equations harden (see `SoftStart`), where little
        is measured.  From a Result multiple shooting and collocation begin at its whole trajectory.
    second_start : bool
        Whether Gauss-Newton may go on from the measured states, by "matching", when it gets nowhere from the start.
    retry : bool
        Whether multiple shooting and collocation go on by other means where they fail, or end where the residuals are
        far larger than the noise (see castfit.fit.strategies), and whether a fit that ends above its own start goes
        down from there; the message says what was tried.
    verify : bool
        Whether a solution must be reproduced by the model itself, integrated with error control, to be called one.
        Without it castfit believes the transcription: for estimates that are not final.
    workers : int or concurrent.futures.Executor
        Among which experiments, and the stages of multiple shooting, are divided while they are integrated: threads
        where the integrator is castfit's compiled one, processes otherwise, or an executor, such as that of a Dask
        cluster.  The numbers are the same for any.  Processes take a second or two to start, so they are started once
        integration has taken a second.  Collocation integrates nothing that could be divided.
    max_time : float
        Seconds after which the best point so far is returned.
    callback : callable, optional
        Called with an `Iteration` after each iteration; the solve stops when it returns True.
    absolute_sigma : bool, optional
        Whether the given standard deviations are taken as they are (True) or only their ratios (False), as in
        ``scipy.optimize.curve_fit``.  By default True where the experiments state sigma.
    loss : {"linear", "huber", "soft_l1", "cauchy"}
        A robust loss for outputs with normal errors, as in ``scipy.optimize.least_squares`` but with residuals in
        standard deviations, which are estimated where they are unknown: short for ``problem.robust(loss, f_scale)``.
        Other noise models are given with the experiments.
    f_scale : float
        Residual, in standard deviations, from which a robust loss is less than quadratic.
    confidence_level : float
        Of the intervals in the result's table.
    verbose : {0, 1, 2}, optional
        Nothing; one line per solve, once whether a C compiler would help, and on a terminal how it goes on, with what
        an iteration takes and the time that `max_time` leaves; one line per iteration.  By default a line on a terminal
        or in a notebook, from two seconds on until the end.

    Returns
    -------
    Result
        Also for a fit that failed or was interrupted: then ``success`` is False, the parameters are the best point so
        far, and ``message`` says why.
        Of a problem that estimates nothing it holds no quantity: the model is evaluated as it is.
        Where the model has noises a `PathResult`, by the likelihood of the data over all paths; arguments that mean
        nothing then are refused.

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
    began = time.perf_counter()
    of_loss: list[str] = []
    if not (is_one_of(loss, "linear") and is_within(f_scale, 1.0, 1.0)):
        if isinstance(problem, Problem):
            try:
                problem = problem.robust(loss, f_scale)
            except InputError as error:
                of_loss += error.problems
        else:
            of_loss.append("loss is for a Problem; give the problem problem.robust(loss)")
    callable_ = callback is None or callable(callback)
    known: Any = problem
    noisy = isinstance(known, (Problem, Posed)) and bool(known.posed.model.noises)
    given = {
        "transcription": transcription is not None, "solver": solver is not None, "workers": not is_one_of(workers, 1),
        "absolute_sigma": absolute_sigma is not None, "second_start": not is_one_of(second_start, True),
        "retry": not is_one_of(retry, True), "verify": not is_one_of(verify, True),
    }  # fmt: skip
    mistakes = _noisy_mistakes(given, start) if noisy else kind_mistakes(problem, may_be_fixed=True)
    mistakes += of_loss
    mistakes += option_mistakes(("callback", callback, callable_, "give a function of one Iteration"))
    asked, by = given_parts(None, None, mistakes) if noisy else given_parts(transcription, solver, mistakes)
    level, limit = real(confidence_level), real(max_time)
    known = absolute_sigma is None or is_one_of(absolute_sigma, True, False)
    mistakes += option_mistakes(
        level_rule(confidence_level, level),
        ("max_time", max_time, limit is not None and limit > 0.0, "give a positive number of seconds"),
        ("absolute_sigma", absolute_sigma, known, "give True, False or None"),
        ("verbose", verbose, verbose is None or is_one_of(verbose, 0, 1, 2), "choose 0, 1 or 2"),
    )
    mistakes += flag_mistakes(second_start=second_start, retry=retry, verify=verify)
    mistakes += _worker_mistakes(workers, asked)
    if mistakes and not noisy and isinstance(start, Mapping):
        mistakes += start_mistakes(problem, start)
    check("fit", mistakes)
    assert level is not None
    assert limit is not None
    if noisy:
        from castfit.fit.noisy_fit import fit_noisy  # which other fits do not need

        begin = cast("Any", start)
        return cast(
            "Any",
            fit_noisy(problem, start=begin, max_time=limit, callback=callback, confidence_level=level, verbose=verbose),
        )
    if isinstance(start, Result):
        problem = start.answering(problem).problem or problem  # with as many nodes in delay lines as there
    once = _Fit(
        asked, by, began + limit, callback, verbose, level, absolute_sigma,
        second_start=second_start, retry=retry, verify=verify, divided=isinstance(workers, Executor) or workers != 1,
    )  # fmt: skip
    question, refinements = FitQuestion(problem, start), _refinements(problem.posed, verify=verify)
    with Interrupt(), lanes_divided(workers), _line_of(verbose):
        return solved(question, refinements, once.fit) if refinements else once.fit(question)


plain_fit = cast("Callable[..., Result]", fit)
"""`fit` of problems whose model has no noises, as drivers know that they are."""


def _noisy_mistakes(given: Mapping[str, bool], start: Any) -> list[str]:
    """List the arguments that have no effect for a model with noises, and an unsuitable start."""
    why = "has no effect for models with process noise, whose path is estimated by its likelihood; remove it"
    found = [f"{name} {why}" for name, said in given.items() if said]
    known = start is None or isinstance(start, Mapping) or type(start).__name__ == "PathResult"
    return found + ([] if known else [f"start is {text(start)}; expected values by name, or a result of the same model"])


def _refinements(problem: Posed, *, verify: bool) -> list[type[RefinedFit]]:
    """Return the refinements that repeat the whole fit, the outermost first."""
    found: list[type[RefinedFit]] = []
    if problem.model.adaptive and verify:
        from castfit.fit.delay_refinement import DelayNodes

        found.append(DelayNodes)
    if problem.correlations:
        from castfit.fit.correlated_errors import CorrelatedErrors

        found.append(CorrelatedErrors)
    if any(term.chosen for term in problem.smooth):
        from castfit.fit.smoothing_weights import SmoothnessWeights

        found.append(SmoothnessWeights)
    if problem.every_prior:
        from castfit.fit.laplace_kinks import LaplaceKinks, kinks_of

        if kinks_of(problem):
            found.append(LaplaceKinks)
    return found


@dataclass(frozen=True)
class _Fit:
    """Checked arguments of `fit`, except the problem and the start, which refinements change."""

    asked: Transcription | None
    given: Solver | None
    deadline: float
    callback: Callable[[Iteration], Any] | None
    verbose: int | None
    confidence_level: float
    absolute_sigma: bool | None
    second_start: bool
    retry: bool
    verify: bool
    divided: bool

    def fit(self, question: FitQuestion) -> Result:
        """Fit once, with the delay lines, weights of smoothness and signs that the question has."""
        began = time.perf_counter()
        problem, start, asked, choice = question.problem, question.start, self.asked or Collocation(), None
        limit = self.deadline - began
        with watched(limit), _line_of(self.verbose) as line:
            if line is not None:
                line("before the first iteration")
            posed = problem.posed.assuming(absolute_sigma=self.absolute_sigma)
            origin = _origin(posed, asked, start, limit)
            nodes = nodes_of(posed, start) if isinstance(start, Result) else origin.nodes
            if self.asked is None:
                choice = choose(
                    posed,
                    origin.theta,
                    states=bool(nodes),
                    workers=self.divided,
                    straight=self.retry or question.near,
                    bound=self.given is not None,
                )
                asked = choice.first
            with suppress(Stopped):  # the solver will notice
                if nodes and isinstance(asked.states, str):
                    asked = started_from(posed, asked, origin.theta, nodes)
                    if choice is not None and choice.then is not None:
                        choice = replace(choice, then=started_from(posed, choice.then, origin.theta, nodes))
            tell: Callable[[str], None] = say if self.verbose else lambda _: None
            if origin.note:
                tell(origin.note)
            if self.verbose and getattr(asked, "integrates", True) and asked.integrator.method == "auto":
                _mention(wanted_compiler())
            deadline = began + limit if origin.ended is None else began
            run = FitRun(
                posed,
                self.given or GaussNewton(),
                deadline,
                _reporter(self.callback, self.verbose, line, deadline),
                tell,
                verify=self.verify,
                second_start=self.second_start and not question.near,
                retry=self.retry and not question.near,
                choice=choice,
                simulated=choice and choice.simulated and (posed, origin.theta.copy(), choice.simulated),
            )
            if posed.least_squares:
                ended = search(run, asked, origin.theta)
            else:
                from castfit.fit.maximum_likelihood import most_likely

                ended = most_likely(run, asked, origin.theta)
            ended = lowest_met(run, ended, asked)
            ended = never_above_start(run, ended, asked, origin.theta)
        found = ended.attempt if origin.ended is None else ended.attempt.ending(origin.ended)
        solution, success, staged = found.solution, found.solution.status.success, found.staged
        rounding = reproduced(run.problem, staged, found.linear, solution.active) if success else ""
        remark = staged.remark(solution.v) if success else ""
        parts = (
            *(solution.status.sentence, solution.detail, rounding, origin.note, choice.sentence if choice else ""),
            *(*ended.notes, told_of_gaps(run, found), remark, solution.status.remedy),
        )
        message, seconds = " ".join(f"{part.removesuffix('.')}." for part in parts if part), time.perf_counter() - began
        level = self.confidence_level
        result = estimate(problem, found, run, message=message, time=seconds, confidence_level=level)
        if self.verbose:
            said = f"{solution.status.value} after {run.iterations} iterations, {seconds:.2f} s"
            poor = ", a poor optimum" if result.success and not result.described else ""
            say(f"{said}: {result.measure} = {result.objective:.8g}{poor}")
        return result


def _worker_mistakes(workers: Any, asked: Transcription | None) -> list[str]:
    """List the mistakes in `workers`, including a transcription that integrates nothing."""
    wrong = worker_mistakes(workers)
    alone = not isinstance(workers, Executor) and workers == 1
    if (
        wrong or alone or asked is None or getattr(asked, "integrates", True)
    ):  # a transcription of the user's own need not say so
        return wrong
    remedy = "use SingleShooting() or MultipleShooting(), or remove workers"
    return [f"workers is {text(workers)}, but {asked.label} has no integrations to divide; {remedy}"]


def _origin(
    problem: Posed,
    transcription: Transcription,
    start: Mapping[str, float] | Result | Decomposed | SoftStart | str | None,
    max_time: float,
) -> Origin:
    """Compute the start of the search, with a note on the method used."""
    if isinstance(start, Result):
        start = {**start.parameters, **start.initial_states}
    if start is None or isinstance(start, Mapping):
        return Origin(problem.guess if start is None else problem.theta_from(start))
    from castfit.fit.start.decomposition.search import Decomposed, decompose
    from castfit.fit.start.matching import matching
    from castfit.fit.start.soft_start import SoftStart, softened

    if isinstance(start, str):
        if start not in ("matching", "decomposed", "soft"):
            remedy = "give a mapping from names to values, a Result, 'matching', 'decomposed' or 'soft'"
            check("fit", [f"start is '{start}'; {remedy}"])
        if start == "matching":
            theta = matching(problem, problem.guess, transcription.states, transcription.integrator)
            return Origin(theta)
        start = SoftStart() if start == "soft" else Decomposed()
    if isinstance(start, SoftStart):
        return softened(problem, problem.theta_from(start.start), transcription.integrator, start.stations)
    other = cast("Any", start)
    if isinstance(other, Decomposed):
        return decompose(problem, problem.theta_from(other.start), rng=other.rng, max_time=max_time)
    return Origin(problem.theta_from(other))  # which says that it is nothing to start from


def refitted_by(result: Result) -> tuple[Transcription, Solver]:
    """Return by what a result is fitted again: by what found it, or is chosen at its estimates where that is forgotten.

    Fits begin at its trajectory anyway.
    """
    if result.found_by is None:
        posed = result.problem and result.problem.posed
        return choose(posed, result.theta, straight=False).first if posed else Collocation(), GaussNewton()
    transcription, solver = result.found_by
    begun = has_states(transcription) and not isinstance(transcription.states, str)
    return with_states(transcription, "data") if begun else transcription, solver


def at_trajectory(problem: Posed, asked: Transcription, theta: Array, start: Result) -> Transcription:
    """Return the transcription with its states started at a result's nodes, if these are of the same experiments."""
    nodes = nodes_of(problem, start)
    return started_from(problem, asked, theta, nodes) if nodes and isinstance(asked.states, str) else asked


def nodes_of(problem: Posed, result: Result) -> list[Nodes]:
    """Return a result's trajectory, per experiment, where it is one of this problem, else nothing."""
    nodes = list(result.trajectories.values())
    fits = list(result.trajectories) == [c.name for c in problem.conditions] and all(
        known.states.shape[1] == len(problem.model.states)
        and known.times[-1] <= c.end
        and bool(np.isfinite(known.states).all())
        for known, c in zip(nodes, problem.conditions, strict=True)
    )
    return nodes if fits else []


def _line_of(verbose: int | None) -> AbstractContextManager[Callable[[str], None] | None]:
    """Return the line that shows how a fit goes on, where somebody sees it."""
    return following(verbose, keep=False) if is_live() else nullcontext()


def _reporter(
    callback: Callable[[Iteration], Any] | None,
    verbose: int | None,
    line: Callable[[str], None] | None,
    deadline: float,
) -> Callable[[Iteration], Any] | None:
    """Return the function called after each iteration, which reports objective, time per iteration and time limit."""
    if verbose != 2 and line is None:
        return callback
    began = time.perf_counter()

    def report(now: Iteration) -> Any:
        clock = time.perf_counter()
        off = f" (infeasible by {now.infeasibility:.1g})" if now.infeasibility > _CLOSED else ""
        at = f"iteration {now.iteration}: {now.measure} = {now.objective:.6g}{off}"
        if verbose is None and line is not None:
            line(at)
        elif line is not None:
            pace = f", {duration((clock - began) / now.iteration)} an iteration" if now.iteration else ""
            most = f", at most {duration(max(deadline - clock, 0.0))} left" if np.isfinite(deadline) else ""
            line(f"{at}; {clock - began:.0f} s{pace}{most}")
        else:
            told = f"{now.measure} {now.objective:14.8g}  infeasibility {now.infeasibility:9.2e}  {now.seconds:7.2f} s"
            say(f"{now.iteration:5d}  {told}")
        return callback(now) if callback is not None else None

    return report


@cache
def _mention(sentence: str) -> None:
    """Print a sentence once per process."""
    if sentence:
        say(sentence)
