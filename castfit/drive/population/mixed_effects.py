"""`mixed_effects`: the driver of a mixed-effects fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np

from castfit._support.arguments import (
    flag_mistakes,
    is_count,
    level_rule,
    option_mistakes,
    read_mapping,
    read_real,
    shorten_repr,
)
from castfit._support.blas_threads import one_blas_thread
from castfit._support.json_codec import rebuild_value
from castfit._support.progress_line import duration, time_left
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit._support.time_limit import StopRequested, guarded, with_deadline, without_deadline
from castfit.drive.population.compiled import CompiledPopulation, compile_population
from castfit.drive.population.distributed import build_cohort, default_integrator
from castfit.drive.population.laplace import LaplaceApproximation, MarginalLikelihood
from castfit.drive.population.likelihoods import Cohort
from castfit.drive.population.result import MixedEffectsResult
from castfit.drive.population.search import (
    EstimateErrors,
    PopulationOptimum,
    SearchIterate,
    compute_errors,
    minimise,
    no_errors,
)
from castfit.drive.population.spec import Population
from castfit.drive.run.checkpoint import Checkpoint, describe_method, run_header
from castfit.drive.run.loop import open_reporter
from castfit.drive.run.options import RunOptions
from castfit.drive.run.run_result import STOPS
from castfit.integrate import IntegratorOptions
from castfit.integrate.distributed import lanes_divided
from castfit.problem.problem import Problem

_WHERE = "mixed_effects"
_MAX_LISTED_INDIVIDUALS = 5  # individuals in one message


@dataclass(frozen=True)
class MixedEffectsProgress:
    """Progress of a mixed-effects fit: iterations, -2 log L, estimates by name, seconds."""

    iteration: int
    neg2loglik: float
    values: Mapping[str, float]
    seconds: float

    @property
    def sentence(self) -> str:
        """State of the run in one line."""
        pace = f", {duration(self.seconds / self.iteration)} an iteration" if self.iteration else ""
        return f"iteration {self.iteration}: -2 log L = {self.neg2loglik:.6g}; {self.seconds:.0f} s{pace}"


# Extreme trial points overflow; they are rejected, and must not warn.
@guarded
@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def mixed_effects(
    problem: Problem,
    population: Population,
    *,
    start: Mapping[str, float] | MixedEffectsResult | None = None,
    integrator: IntegratorOptions | None = None,
    max_iter: int = 200,
    standard_errors: bool = True,
    confidence_level: float = 0.95,
    workers: int | Executor = 1,
    max_time: float = np.inf,
    callback: Callable[[MixedEffectsProgress], Any] | None = None,
    verbose: int | None = None,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
) -> MixedEffectsResult:
    """Estimate the distribution of local parameters over many experiments (nonlinear mixed effects).

    Every experiment is an individual with its own parameters (``local=True``), which come from the distribution in
    `population`.  Typical values, effects of covariates, shared parameters, noise, and the covariance between
    individuals are estimated together.  The estimates maximise Laplace's approximation of the likelihood with the
    expected curvature, which NONMEM calls FOCE with interaction; for additive errors, R's ``nlme`` agrees with it.

    Parameters
    ----------
    problem : Problem
        Its experiments are the individuals.  Standard deviations may be given, unknown (``cf.unknown()``) or
        expressions of parameters and outputs, such as ``a + b * conc``.
    population : Population
    start : mapping from name to value, or MixedEffectsResult, optional
        Start of the search: typical values, shared parameters, ``"omega(CL)"``; by default the guesses.
    integrator : IntegratorOptions, optional
        By default the compiled ESDIRK method or, without a compiler, CVODES and IDAS.
    max_iter : int
        0 evaluates the start: individual fits for a known population.
    standard_errors : bool
        Whether to compute standard errors, from second derivatives of the likelihood.
    confidence_level : float
        Of the intervals in the result's table.
    workers : int or concurrent.futures.Executor
        Workers among which individuals are divided: threads with the compiled integrator, else processes, or an
        executor, such as that of a Dask cluster.  Processes and executors own individuals of the same structure, with
        their data.  The numbers do not depend on the workers.
    max_time : float
        Seconds after which the best point so far is returned.
    callback : callable, optional
        Called with a `MixedEffectsProgress` after each iteration; the search stops when it returns True.
    verbose : {0, 1, 2}, optional
        Nothing, the state of the search, one line per iteration.  By default a line on a terminal or in a notebook,
        from two seconds on until the end.
    checkpoint : path, optional
        A file to which every iteration is written.
    resume : bool
        Whether to continue from the checkpoint.

    Returns
    -------
    MixedEffectsResult
        If the search failed or was interrupted, ``success`` is False, and ``message`` has the reason.

    Raises
    ------
    InputError
        With all mistakes in the arguments, and all inconsistencies between them.

    Examples
    --------
    >>> import castfit as cf
    >>> import numpy as np
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    >>> rng, times = np.random.default_rng(1), np.array([1.0, 2.0, 4.0])
    >>> rates = 0.3 * np.exp(0.4 * rng.standard_normal(8))
    >>> data = [10 * np.exp(-r * times) + 0.2 * rng.standard_normal(3) for r in rates]
    >>> animals = [cf.Experiment({"x": values}, times, sigma=cf.unknown()) for values in data]
    >>> problem = cf.Problem(model, animals, parameters={"k": cf.Parameter(0.5, local=True)})
    >>> result = cf.mixed_effects(problem, cf.Population({"k": cf.Individual(omega=0.5)}))
    >>> result.names, result.success
    (('k', 'sigma(x)', 'omega(k)'), True)
    >>> abs(result.values["k"] - 0.3) < 2 * result.standard_errors["k"]
    True
    """
    run = RunOptions(
        workers=workers, max_time=max_time, callback=callback, verbose=verbose, checkpoint=checkpoint, resume=resume
    )
    level = read_real(confidence_level)
    integrator_value: Any = integrator
    mistakes = [
        *run.mistakes(),
        *run.file_mistakes(),
        *option_mistakes(
            ("max_iter", max_iter, is_count(max_iter, 0), "expected a number of iterations, 0 or more"),
            level_rule(confidence_level, level),
            ("integrator", integrator, integrator_value is None or isinstance(integrator_value, IntegratorOptions),
             "expected IntegratorOptions(...)"),
        ),
        *flag_mistakes(standard_errors=standard_errors),
    ]  # fmt: skip
    try:
        question = compile_population(problem, population)
        initial_iterate = _start(question, start)
    except InputError as error:
        raise InputError(_WHERE, [*mistakes, *error.problems]) from None
    raise_if_mistakes(_WHERE, mistakes)
    assert level is not None
    integrator_options = integrator or default_integrator()
    search = _PopulationSearch(run.with_plain_numbers(), integrator_options, int(max_iter), standard_errors, level)
    with with_deadline(search.run.max_time), lanes_divided(workers):
        return search.carry_out(problem, population, question, initial_iterate)


@dataclass
class _PopulationSearch:
    """A run of the driver."""

    run: RunOptions
    integrator: IntegratorOptions
    max_iter: int
    standard_errors: bool
    level: float
    began: float = field(default_factory=time.perf_counter)
    history: list[float] = field(default_factory=list[float])
    best: tuple[SearchIterate, MarginalLikelihood] | None = None

    def carry_out(
        self, problem: Problem, population: Population, question: CompiledPopulation, initial_iterate: SearchIterate
    ) -> MixedEffectsResult:
        """Run the search and build the result."""
        entries = {**question.digests, "integrator": describe_method(self.integrator)}
        header = {
            **run_header(_WHERE, question.problem.with_experiments([question.individuals[0]]), None, None),
            **entries,
        }
        with self.run.open_checkpoint(header) as book, open_reporter(self.run.verbose) as report:
            left_out: dict[str, str] = {}
            cohort = build_cohort(question, self.integrator)
            failures = self._find_failed_individuals(question, cohort, initial_iterate)
            if failures and len(failures) < question.n - 1:
                left_out = {question.individuals[i]: reason for i, reason in failures.items()}
                retained_indices = [i for i in range(question.n) if i not in failures]
                all_names = question.individuals
                question = compile_population(
                    problem.replace(experiments=[problem.experiments[i] for i in retained_indices]),
                    population.of_some(all_names, retained_indices),
                )
                initial_iterate = replace(initial_iterate, phi=initial_iterate.phi[retained_indices])
                cohort = build_cohort(question, self.integrator)
            laplace = LaplaceApproximation(question, cohort)
            if book is not None and book.records:
                with book.intact():
                    initial_iterate = rebuild_value(SearchIterate, book.records[-1]["here"])

            def report_iteration(iterate: SearchIterate, marginal: MarginalLikelihood) -> bool:
                self.best = iterate, marginal
                self.history.append(2.0 * float(marginal.parts.sum()))
                if book is not None:
                    book.append({"here": iterate})
                values = dict(zip(question.names, question.natural(iterate.y).tolist(), strict=True))
                progress = MixedEffectsProgress(
                    iterate.iteration, self.history[-1], values, time.perf_counter() - self.began
                )
                report(progress.sentence, progress.sentence, milestone=iterate.iteration % 10 == 0)
                return self.run.call_callback(progress)

            try:
                outcome = minimise(laplace, initial_iterate, max_iter=self.max_iter, on_iteration=report_iteration)
            except StopRequested as stop:
                outcome = stop
            errors_start_time = time.perf_counter()

            def report_errors(n_done: int, total: int) -> None:
                current_time = time.perf_counter()
                remaining_text = time_left(current_time - errors_start_time, n_done, total - n_done)
                state = (
                    f"standard errors: {n_done} of {total} entries; {current_time - self.began:.0f} s{remaining_text}"
                )
                report(state, state, milestone=n_done == 0)

            return self._result(question, laplace, outcome, left_out, book, report_errors)

    def _find_failed_individuals(
        self, question: CompiledPopulation, cohort: Cohort, initial_iterate: SearchIterate
    ) -> dict[int, str]:
        """Return the individuals whose data cannot be predicted at the start, with reasons."""
        try:
            evaluation = cohort.curved(
                initial_iterate.phi, initial_iterate.y[question.of_shared], np.arange(question.n, dtype=np.intp)
            )
        except StopRequested:
            return {}
        return {
            i: evaluation.failures.get(i, "not finite") for i in np.flatnonzero(~np.isfinite(evaluation.cost)).tolist()
        }

    def _result(
        self,
        question: CompiledPopulation,
        laplace: LaplaceApproximation,
        outcome: PopulationOptimum | StopRequested,
        left_out: Mapping[str, str],
        book: Checkpoint | None,
        on_progress: Callable[[int, int], None],
    ) -> MixedEffectsResult:
        status = outcome.status
        iterate, marginal = (
            (outcome.iterate, outcome.marginal_likelihood)
            if isinstance(outcome, PopulationOptimum)
            else self.best or (None, None)
        )
        remarks: list[str] = []
        errors = no_errors(question.n_y, "")
        if isinstance(outcome, PopulationOptimum) and self.standard_errors and status.success:
            errors = self._errors(laplace, outcome, on_progress)
            remarks.append(errors.remark)
        elif self.standard_errors:
            remarks.append("Standard errors were not computed.")
        y = question.guess if iterate is None else iterate.y
        if marginal is None:
            n, m = question.n, question.m
            phi, spread, parts = question.means(y)[0], np.full((n, m, m), np.nan), np.full(n, np.nan)
            unfinished = dict.fromkeys(question.individuals, "not fitted")
        else:
            phi, spread, parts = marginal.modes.phi, marginal.precise, marginal.parts
            unfinished = {question.individuals[i]: reason for i, reason in marginal.modes.failures.items()}
        shared = y[question.of_shared]
        with without_deadline():
            data_evaluation = laplace.cohort.evaluate_data(phi, shared)
            expected = laplace.cohort.evaluate_data(question.means(y)[0], shared)[0]
        remarks += _missing_individuals_message(left_out, unfinished, question.n + len(left_out))
        remarks += [] if book is None else [book.trouble]
        return MixedEffectsResult(
            status=status,
            message=" ".join(part for part in (status.message, *remarks) if part),
            question=question,
            integrator=self.integrator,
            y=y,
            phi=phi,
            spread=spread,
            parts=parts,
            errors=errors,
            data_evaluation=data_evaluation,
            expected=expected,
            left_out=dict(left_out),
            unfinished=unfinished,
            history=tuple(self.history),
            iterations=0 if iterate is None else iterate.iteration,
            sweeps=laplace.sweeps,
            time=time.perf_counter() - self.began,
            confidence_level=self.level,
        )

    def _errors(
        self, laplace: LaplaceApproximation, optimum: PopulationOptimum, on_progress: Callable[[int, int], None]
    ) -> EstimateErrors:
        assert optimum.marginal_likelihood is not None
        assert optimum.scores is not None
        try:
            return compute_errors(laplace, optimum.marginal_likelihood, optimum.scores, on_progress)
        except StopRequested as stop:
            return no_errors(laplace.question.n_y, f"{STOPS[stop.status]} Standard errors were not computed.")


def _missing_individuals_message(left_out: Mapping[str, str], unfinished: Mapping[str, str], total: int) -> list[str]:
    """Return messages with the number and names of individuals that were left out or not fitted to the end."""
    messages: list[str] = []
    for reason_by_name, label in ((left_out, "excluded, because their data cannot be predicted at the start"),
                        (unfinished, "not converged")):  # fmt: skip
        if reason_by_name:
            shown_items = list(reason_by_name.items())[:_MAX_LISTED_INDIVIDUALS]
            names_by_reason = {
                reason: ", ".join(f"'{n}'" for n, other_reason in shown_items if other_reason == reason)
                for _, reason in shown_items
            }
            names = [f"{joined_names} ({reason})" for reason, joined_names in names_by_reason.items()]
            suffix = (
                f" and {len(reason_by_name) - _MAX_LISTED_INDIVIDUALS} more"
                if len(reason_by_name) > _MAX_LISTED_INDIVIDUALS
                else ""
            )
            messages.append(f"{len(reason_by_name)} of {total} individuals are {label}: {', '.join(names)}{suffix}.")
    return messages


def _start(question: CompiledPopulation, start: Any) -> SearchIterate:
    """Return the initial state of the search."""
    y, k = question.guess.copy(), len(question.upper)
    start_values = start.values if isinstance(start, MixedEffectsResult) else start
    mistakes: list[str] = []
    values = read_mapping("start", start_values, mistakes)
    if isinstance(start, MixedEffectsResult) and start.names == question.names:
        y = start.y.copy()
        values = {}
    lower, upper = question.bounds
    for name, value in values.items():
        number = read_real(value)
        if name not in question.names[: k + question.m]:
            if not isinstance(start, MixedEffectsResult):
                mistakes.append(f"'{name}' cannot be started: {suggest(name, question.names[: k + question.m])}")
            continue
        j = question.names.index(name)
        positive = j >= k or question.log[j]
        if number is None or not np.isfinite(number) or (positive and number <= 0.0):
            mistakes.append(
                f"start of '{name}' is {shorten_repr(value)}; expected a {'positive ' if positive else ''}number"
            )
            continue
        y[j] = np.log(number) if positive else number
        if not lower[j] <= y[j] <= upper[j]:
            mistakes.append(f"start of '{name}' is {shorten_repr(value)}, which lies outside its bounds")
    raise_if_mistakes("start", mistakes)
    mu, _ = question.means(y)
    missing_names = [
        n for n, column in zip(question.individual_parameters, mu.T, strict=True) if not np.isfinite(column).all()
    ]
    raise_if_mistakes(
        "start", [f"the typical value of '{n}' is undefined at this start; change the start" for n in missing_names]
    )
    return SearchIterate(y, mu, np.empty((0, 0)), 0.5, 0, np.inf)
