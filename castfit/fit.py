"""`fit`: a problem, a transcription and a solver give a result.

theta, states --transcribe--> staged problem --solve--> v --(refine, solve again)--> statistics --> Result
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from castfit._blas import one_blas_thread
from castfit._reading import is_one_of, real, text
from castfit.posed import Posed
from castfit.problem import Posable, Problem
from castfit.result import Result, estimate
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import Control, Iteration, Solution
from castfit.staged import Evaluation, StagedProblem
from castfit.start.decomposition.search import Decomposed, Origin, decompose
from castfit.start.matching import matching, unfelt
from castfit.status import Status, check
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.trajectory import every_state_measured
from castfit.verification import Verification, verify

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.integrate import IntegratorOptions
    from castfit.transcribe.trajectory import States

    Array = NDArray[np.float64]

_MAX_REFINEMENTS = 8
_AMPLIFIED_ROUNDING = 0.1  # standard deviations by which rounding theta may move a residual


class Transcription(Protocol):
    """Turns a problem into a staged least-squares problem; see castfit.transcribe."""

    @property
    def label(self) -> str:
        """Name in tables."""
        ...

    @property
    def integrator(self) -> IntegratorOptions:
        """How stages are integrated, or checked against integration."""
        ...

    @property
    def accuracy(self) -> float:
        """Relative accuracy to which the model is solved over a stage."""
        ...

    def transcribe(self, problem: Posable, theta: Array) -> StagedProblem:
        """Lay the problem out as stages, starting from theta (n_theta,)."""
        ...

    def refine(self, problem: Posable, staged: StagedProblem, v: Array) -> StagedProblem | None:
        """Return a finer problem started from the solution v, or None if v is accurate enough."""
        ...


class Solver(Protocol):
    """Solves a staged problem; see castfit.solve."""

    @property
    def label(self) -> str:
        """Name in tables."""
        ...

    def solve(self, staged: StagedProblem, control: Control, *, warm: bool = False) -> Solution:
        """Solve; a fit that fails is a status, not an exception.  `warm` says that the start is nearly optimal."""
        ...


# Wild trial points overflow; they are found and rejected, and must not warn.
@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def fit(
    problem: Posable,
    transcription: Transcription | None = None,
    solver: Solver | None = None,
    *,
    start: Mapping[str, float] | Result | Decomposed | str | None = None,
    second_start: bool = True,
    max_time: float = np.inf,
    callback: Callable[[Iteration], Any] | None = None,
    absolute_sigma: bool | None = None,
    confidence_level: float = 0.95,
    verbose: int = 0,
) -> Result:
    """Estimate parameters and initial states.

    Parameters
    ----------
    problem : Problem or Posed
    transcription : SingleShooting, MultipleShooting or Collocation, optional
        By default collocation on elements that are refined until the solution agrees with the integrator.
    solver : GaussNewton or Ipopt, optional
        By default Gauss-Newton.
    start : mapping from quantity name to value, Result, "matching", "decomposed" or Decomposed, optional
        Where the search starts, natural scale; what is not named starts at its guess.  "matching" first fits the
        model's right-hand side to the measured states (see castfit.start.matching); where all states are measured this
        is also tried when the search gets nowhere from the guess.  "decomposed" first estimates the equations that
        share no parameter apart from each other, from many random starts between the bounds (see `Decomposed`).
    second_start : bool
        Whether Gauss-Newton may go on from the measured states, by "matching", when it gets nowhere from the start.
    max_time : float
        Seconds after which the best point so far is returned.
    callback : callable, optional
        Called with an `Iteration` after each iteration; the solve stops when it returns True.
    absolute_sigma : bool, optional
        Whether the given standard deviations are taken as they are (True) or only their ratios (False), as in
        ``scipy.optimize.curve_fit``.  By default True where the experiments state sigma.
    confidence_level : float
        Of the intervals in the result's table.
    verbose : {0, 1, 2}
        Nothing, one line per solve, one line per iteration.

    Returns
    -------
    Result
        Also for a fit that failed or was interrupted: then ``success`` is False, the parameters are the best point so
        far, and ``message`` says why.

    Raises
    ------
    InputError
        For misuse: unknown names or values outside the bounds in `start`, options out of range, a decomposition of a
        problem that has none.
    """
    began = time.perf_counter()
    transcription = Collocation() if transcription is None else transcription
    solver = GaussNewton() if solver is None else solver
    mistakes = _kind_mistakes(problem, transcription, solver, callback)
    level, limit = real(confidence_level), real(max_time)
    if level is None or not 0.0 < level < 1.0:
        mistakes.append(f"confidence_level is {text(confidence_level)}; it lies between 0 and 1")
    if limit is None or not limit > 0.0:
        mistakes.append(f"max_time is {text(max_time)}; give a positive number of seconds")
    if not (absolute_sigma is None or is_one_of(absolute_sigma, True, False)):
        mistakes.append(f"absolute_sigma is {text(absolute_sigma)}; give True, False or None")
    if not is_one_of(verbose, 0, 1, 2):
        mistakes.append(f"verbose is {text(verbose)}; choose 0, 1 or 2")
    check("fit", mistakes)

    posed = problem.posed.assuming(absolute_sigma=absolute_sigma)
    origin = _origin(posed, transcription, start, max_time)
    staged, note = _transcribe(posed, transcription, origin.theta, second_start=second_start)
    if verbose:
        if origin.note:
            _say(origin.note)
        _say(f"{transcription.label}, {solver.label}: {staged.layout.n_v} variables, {posed.n_data} data")
    history: list[dict[str, float]] = []
    evaluations: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    iterations = refinement = 0
    while True:
        remaining = began + max_time - time.perf_counter() if origin.ended is None else 0.0
        solution = solver.solve(staged, Control(remaining, _reporter(callback, verbose)), warm=refinement > 0)
        evaluations.update(solution.evaluations)
        failures.update(solution.failures)
        history += [{**entry, "refinement": refinement} for entry in solution.history]
        iterations += solution.iterations
        finer = transcription.refine(posed, staged, solution.v) if solution.status.success else None
        if finer is None:
            break
        if refinement == _MAX_REFINEMENTS:
            detail = f"After {refinement} refinements it still differs from the integrator; give more elements."
            solution = replace(solution, status=Status.ACCEPTABLE, detail=detail)
            break
        staged, refinement = finer, refinement + 1
        if verbose:
            _say(f"refined to {staged.layout.n_v} variables")
    if origin.ended is not None:
        solution = replace(solution, status=origin.ended)
    solution, linear = _judge(staged, solution)
    solution, verification = _verified(posed, transcription, staged, solution, linear)
    seconds = time.perf_counter() - began
    result = estimate(
        problem,
        staged,
        solution.v,
        linear,
        status=solution.status,
        message=" ".join(part for part in (solution.status.sentence, solution.detail, origin.note, note) if part),
        active=solution.active,
        iterations=iterations,
        evaluations=dict(evaluations),
        failures=dict(failures),
        time=seconds,
        history=tuple(history),
        transcription=transcription.label,
        solver=solver.label,
        absolute_sigma=posed.absolute_sigma,
        confidence_level=confidence_level,
        integrator=transcription.integrator,
        accuracy=transcription.accuracy,
        verification=verification,
    )
    if verbose:
        _say(f"{solution.status.value} after {iterations} iterations, {seconds:.2f} s: chi2 = {result.chi2:.8g}")
    return result


def _kind_mistakes(problem: Any, transcription: Any, solver: Any, callback: Any) -> list[str]:
    """Find arguments that are of the wrong kind, such as a class instead of an instance."""
    found = (
        (isinstance(problem, (Problem, Posed)), "problem", problem, "a Problem"),
        (_has(transcription, "transcribe"), "transcription", transcription, "SingleShooting(), MultipleShooting() or "
                                                                            "Collocation()"),
        (_has(solver, "solve"), "solver", solver, "GaussNewton() or Ipopt()"),
        (callback is None or callable(callback), "callback", callback, "a function of one Iteration"),
    )  # fmt: skip
    return [f"{what} is {text(value)}; give {remedy}" for right, what, value, remedy in found if not right]


def _has(part: Any, method: str) -> bool:
    return not isinstance(part, type) and callable(getattr(part, method, None))


def _origin(
    problem: Posed,
    transcription: Transcription,
    start: Mapping[str, float] | Result | Decomposed | str | None,
    max_time: float,
) -> Origin:
    """Find where the search starts; a note says what was done for it."""
    if isinstance(start, str):
        if start not in ("matching", "decomposed"):
            remedy = "give a mapping from names to values, a Result, 'matching' or 'decomposed'"
            check("fit", [f"start is '{start}'; {remedy}"])
        if start == "matching":
            theta = matching(problem, problem.guess, _states(transcription), transcription.integrator)
            return Origin(theta)
        start = Decomposed()
    if isinstance(start, Decomposed):
        return decompose(problem, problem.theta_from(start.start), rng=start.rng, max_time=max_time)
    if isinstance(start, Result):
        start = {**start.parameters, **start.initial_states}
    return Origin(problem.guess if start is None else problem.theta_from(start))


def _states(transcription: Transcription) -> States:
    """Return where the transcription's states start; single shooting has none, so the data serve."""
    return getattr(transcription, "states", "data")


def _transcribe(
    problem: Posed, transcription: Transcription, theta: Array, *, second_start: bool
) -> tuple[StagedProblem, str]:
    """Transcribe, and find another start where all states are measured: at once if the first one is numb."""
    staged = transcription.transcribe(problem, theta)
    usable = second_start and is_one_of(_states(transcription), "data", "smoothed")
    if not usable or not every_state_measured(problem):
        return staged, ""

    def second() -> StagedProblem:
        moved = matching(problem, theta, _states(transcription), transcription.integrator)
        return transcription.transcribe(problem, moved)

    linear = staged.linearize(staged.start) if isinstance(staged, ShootingProblem) else None
    numb = unfelt(staged, linear) if linear is not None and linear.ok else ()
    if numb:
        note = f"At the start nothing responds to {', '.join(numb)}: started from the measured states instead."
        return second(), note
    staged.second_start = lambda: second().start
    return staged, ""


def _judge(staged: StagedProblem, solution: Solution) -> tuple[Solution, Evaluation]:
    """Linearize at the end, or at least evaluate, and withdraw a solution that rounding errors would spoil."""
    linear = staged.linearize(solution.v)
    if not linear.ok:
        return solution, staged.evaluate(solution.v)
    if solution.status in (Status.INTERRUPTED, Status.STOPPED_BY_CALLBACK):
        return solution, linear
    theta = np.maximum(np.abs(staged.layout.theta(solution.v)), 1e-300)
    worst, what = 0.0, ""
    for chain, blocks in zip(staged.layout.chains, linear.jacobians, strict=True):
        if chain.n_s == 0 and blocks.R_q.size:
            moved = np.abs(blocks.R_q).max(axis=(0, 1)) * theta[chain.theta] * np.finfo(float).eps
            j = int(np.argmax(moved))
            if moved[j] > worst:
                worst, what = float(moved[j]), f"{staged.layout.names[chain.theta[j]]} ({chain.name})"
    if worst > _AMPLIFIED_ROUNDING:
        detail = f"Rounding {what} alone moves a residual by {worst:.1g} standard deviations."
        return replace(solution, status=Status.UNRESOLVABLE, detail=detail), linear
    return solution, linear


def _verified(
    problem: Posed, transcription: Transcription, staged: StagedProblem, solution: Solution, linear: Evaluation
) -> tuple[Solution, Verification | None]:
    """Withdraw a solution that the model itself does not reproduce."""
    if not solution.status.success or not linear.ok:
        return solution, None
    found = verify(problem, staged, linear, transcription.integrator, transcription.accuracy)
    if found.reproduced:
        return solution, found
    return replace(
        solution, status=Status.INACCURATE, detail=f"{found.sentence} {solution.detail or _remedy(staged)}"
    ), found


def _remedy(staged: StagedProblem) -> str:
    """Say what to try after a solution that is none."""
    if any(chain.n_w for chain in staged.layout.chains):
        return "Use more elements, elements='auto', or another start."
    if staged.layout.chains[0].n_s:
        return "Use another start, bounds, or tighter tolerances of the integrator."
    return "Tighten the tolerances of the integrator, or use MultipleShooting or Collocation."


def _reporter(callback: Callable[[Iteration], Any] | None, verbose: int) -> Callable[[Iteration], Any] | None:
    if verbose < 2:
        return callback

    def report(now: Iteration) -> Any:
        _say(f"{now.iteration:5d}  cost {now.cost:14.8g}  infeasibility {now.infeasibility:9.2e}  {now.seconds:7.2f} s")
        return callback(now) if callback is not None else None

    return report


def _say(line: str) -> None:
    """Print a line of progress; only called when the user asked for it."""
    from rich.console import Console

    Console(highlight=False, markup=False, soft_wrap=True).print(line)
