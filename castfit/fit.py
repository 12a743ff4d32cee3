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

from castfit.problem import Problem
from castfit.result import Result, estimate
from castfit.solve.ipopt import Ipopt
from castfit.solve.solution import Control, Iteration, Solution
from castfit.staged import Linearization, StagedProblem
from castfit.status import Status, check
from castfit.transcribe.direct_collocation import Collocation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.integrate import IntegratorOptions

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

    def transcribe(self, problem: Problem, theta: Array) -> StagedProblem:
        """Lay the problem out as stages, starting from theta (n_theta,)."""
        ...

    def refine(self, problem: Problem, staged: StagedProblem, v: Array) -> StagedProblem | None:
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


def fit(
    problem: Problem,
    transcription: Transcription | None = None,
    solver: Solver | None = None,
    *,
    start: Mapping[str, float] | Result | None = None,
    max_time: float = np.inf,
    callback: Callable[[Iteration], Any] | None = None,
    absolute_sigma: bool | None = None,
    confidence_level: float = 0.95,
    verbose: int = 0,
) -> Result:
    """Estimate parameters and initial states.

    Parameters
    ----------
    problem : Problem
    transcription : SingleShooting, MultipleShooting or Collocation, optional
        By default collocation on elements that are refined until the solution agrees with the integrator.
    solver : Ipopt, optional
    start : mapping from quantity name to value, or Result, optional
        Where the search starts, natural scale; what is not named starts at its guess.
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
        For misuse: unknown names or values outside the bounds in `start`, options out of range.
    """
    began = time.perf_counter()
    transcription = transcription or Collocation()
    solver = solver or Ipopt()
    mistakes: list[str] = []
    if not 0.0 < confidence_level < 1.0:
        mistakes.append(f"confidence_level is {confidence_level}; it lies between 0 and 1")
    if not max_time > 0.0:
        mistakes.append(f"max_time is {max_time}; give a positive number of seconds")
    if verbose not in (0, 1, 2):
        mistakes.append(f"verbose is {verbose!r}; choose 0, 1 or 2")
    check("fit", mistakes)

    staged = transcription.transcribe(problem, _starting_theta(problem, start))
    if verbose:
        _say(f"{transcription.label}, {solver.label}: {staged.layout.n_v} variables, {problem.n_data} data")
    history: list[dict[str, float]] = []
    evaluations: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    iterations = 0
    for refinement in range(_MAX_REFINEMENTS + 1):
        remaining = began + max_time - time.perf_counter()
        solution = solver.solve(staged, Control(remaining, _reporter(callback, verbose)), warm=refinement > 0)
        evaluations.update(solution.evaluations)
        failures.update(solution.failures)
        history += [{**entry, "refinement": refinement} for entry in solution.history]
        iterations += solution.iterations
        if not solution.status.success or refinement == _MAX_REFINEMENTS:
            break
        finer = transcription.refine(problem, staged, solution.v)
        if finer is None:
            break
        staged = finer
        if verbose:
            _say(f"refined to {staged.layout.n_v} variables")
    solution, linear = _judge(staged, solution)
    seconds = time.perf_counter() - began
    result = estimate(
        problem,
        staged,
        solution.v,
        linear,
        status=solution.status,
        message=f"{solution.status.sentence} {solution.detail}".strip(),
        active=solution.active,
        iterations=iterations,
        evaluations=dict(evaluations),
        failures=dict(failures),
        time=seconds,
        history=tuple(history),
        transcription=transcription.label,
        solver=solver.label,
        absolute_sigma=problem.absolute_sigma if absolute_sigma is None else absolute_sigma,
        confidence_level=confidence_level,
        integrator=transcription.integrator,
    )
    if verbose:
        _say(f"{solution.status.value} after {iterations} iterations, {seconds:.2f} s: chi2 = {result.chi2:.8g}")
    return result


def _starting_theta(problem: Problem, start: Mapping[str, float] | Result | None) -> Array:
    if start is None:
        return problem.guess
    if isinstance(start, Result):
        start = {**start.parameters, **start.initial_states}
    return problem.theta_from(start)


def _judge(staged: StagedProblem, solution: Solution) -> tuple[Solution, Linearization]:
    """Linearize at the end, and withdraw a solution that rounding errors would spoil."""
    linear = staged.linearize(solution.v)
    if not linear.ok:
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

    Console(highlight=False, soft_wrap=True).print(line)
