"""Fit of models with process noise: the quantities maximise the likelihood of the data over all paths.

A quasi-Newton method with the exact gradient starts with a finite-difference curvature.  It ends with steps that use
the finite-difference curvature at the optimum, which also gives the standard errors.  The stages are halved, and the
search is repeated from its end, until the likelihood no longer changes.

The likelihood may have several maxima in which different noises are 0, since noises explain the same deviations.  If
one may be 0 at the end of the search, a second search begins where it is not, and where the others are small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.progress_line import print_progress
from castfit._support.status import Status, raise_if_mistakes
from castfit._support.ties import first_argmin
from castfit._support.time_limit import Interrupt
from castfit.fit.path_bands import PathBands
from castfit.problem.compiled_problem import LIKELIHOOD
from castfit.problem.fingerprint import question
from castfit.problem.validation import noisy_mistakes
from castfit.result.path_result import Innovations, PathResult, PathTrack
from castfit.solve.solution import Iteration
from castfit.transcribe.path_likelihood import PathEvaluation, PathLikelihood, PathStart, marginal

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Mask
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.problem import Posable

# Accepted change of log L per experiment: expected in further refinements, and of the last one if halving the stages
# gains little.
_MAX_REMAINING_CHANGE_LOG_L, _MAX_SLOW_CHANGE_LOG_L = 1e-4, 5e-3
# Ratio of changes of log L in successive halvings: smallest one that justifies an extrapolation; that of linear
# models (order 4).
_MIN_HALVING_GAIN, _MAX_HALVING_GAIN = 6.0, 16.0
_MAX_REFINEMENTS = 10  # Limit on the refinements of the stages.
_MAX_STAGE_ERROR_LOG_L = 1.0  # Change of log L above which the stages are refined before the estimation starts.
# Limits on the iterations of a search, the halvings of a step and the final Newton steps.
_MAX_ITERATIONS, _MAX_STEP_HALVINGS, _MAX_NEWTON_STEPS = 200, 15, 6
_MIN_PREDICTED_GAIN_LOG_L = 1e-7  # Predicted gain of log L below which a search ends.
_MIN_PREDICTED_GAIN_NEWTON = 1e-11  # The same for Newton steps with the finite-difference curvature.
_ACCEPTABLE_GAIN_LOG_L = 1e-4  # Predicted gain of log L that is acceptable if rounding ends the search.
_MAX_LOG_STEP = 1.5  # Limit on the step of a logarithm in one iteration.
# Steps of finite differences: relative to the value, then in standard errors.
_INITIAL_DIFFERENCE_STEP, _DIFFERENCE_STEP_SE = 1e-4, 0.02
# Limit on the finite-difference step of a logarithm: an intensity near 0 has hardly any effect at any step.
_MAX_LOG_DIFFERENCE_STEP = 0.05
# Curvature along a logarithm below which the data do not determine it: its standard error is above 30.
_UNINFORMATIVE_CURVATURE = 1e-3
_MIN_SCALED_EIGENVALUE = 1e-9  # Smallest eigenvalue of a positive definite curvature, scaled by its diagonal.
# Initial and least value of an unknown sigma, relative to the magnitude of the data.
_INITIAL_SIGMA_FRACTION, _MIN_SIGMA_FRACTION = 0.1, 1e-6
# Derivative of log L by the logarithm of a vanishing sigma, which is 1 for each value that the path meets exactly.
_MIN_UNBOUNDED_SLOPE = 0.5
# Decrease of log L below which a noise may be 0 (chi-square with 1 dof, 95 %); gain of log L by the second search that
# makes its end the result.
_MAX_LOSS_WITHOUT_NOISE, _MIN_SECOND_GAIN = 1.92, 0.01
# Factors of the second start: of noises that are left out to test them and of the other ones; of guesses.
_LEFT_OUT_FACTOR, _EXCHANGE_FACTOR, _GUESS_FACTORS = 1e-3, 0.03, np.logspace(-2.0, 2.0, 9)


@dataclass
class _LikelihoodSearch:
    """Search for the most likely quantities, on stages that become finer.

    lower, upper, guess : bounds and guesses of y
    intensities : mask of the parameters that only multiply noises
    """

    lower: Array
    upper: Array
    guess: Array
    log: Mask
    intensities: Mask
    n_data: int
    deadline: float
    callback: Callable[[Iteration], Any] | None
    interrupt: Interrupt
    verbose: bool
    began: float
    history: list[float] = field(default_factory=list[float])
    evaluations: int = 0
    stop_status: Status | None = None

    def evaluate(self, likelihood: PathLikelihood, y: Array, starts: list[PathStart] | None) -> PathEvaluation:
        self.evaluations += 1
        return likelihood.evaluate(y, starts)

    def report_progress(self, evaluation: PathEvaluation) -> bool:
        """Report the current point, and return whether the search must stop."""
        self.history.append(2.0 * evaluation.value)
        seconds = time.perf_counter() - self.began
        iteration = Iteration(
            len(self.history) - 1, evaluation.value, np.nan, 0.0, evaluation.y, seconds, self.history[-1], LIKELIHOOD
        )
        if self.verbose:
            print_progress(f"{iteration.iteration:5d}  -log L {evaluation.value:14.8g}  {seconds:7.2f} s")
        if self.callback is not None and self.callback(iteration):
            self.stop_status = Status.STOPPED_BY_CALLBACK
        return self.must_stop()

    def must_stop(self) -> bool:
        """Check whether the search must stop."""
        if self.stop_status is not None:
            return True
        if time.perf_counter() > self.deadline:
            self.stop_status = Status.MAX_TIME
        elif self.interrupt.requested:
            self.stop_status = Status.INTERRUPTED
        return self.stop_status is not None

    def free_mask(self, evaluation: PathEvaluation) -> Mask:
        """Return a mask of the quantities that are not fixed by a bound."""
        is_at_bound = ((evaluation.y <= self.lower) & (evaluation.gradient > 0.0)) | (
            (evaluation.y >= self.upper) & (evaluation.gradient < 0.0)
        )
        return ~is_at_bound

    def curvature(self, likelihood: PathLikelihood, evaluation: PathEvaluation, widths: Array) -> Array:
        """Return the second derivatives as finite differences of gradients.

        The differences are central except at bounds, and NaN if a gradient could not be computed.
        """
        hessian, starts = np.empty((evaluation.y.size, evaluation.y.size)), [mode.start for mode in evaluation.modes]
        for j, width in enumerate(widths.tolist()):
            ends: list[tuple[float, Array]] = []
            if self.must_stop():
                return np.full(hessian.shape, np.nan)
            for sign in (1.0, -1.0):
                y = evaluation.y.copy()
                y[j] = np.clip(y[j] + sign * width, self.lower[j], self.upper[j])
                shifted = self.evaluate(likelihood, y, starts) if y[j] != evaluation.y[j] else evaluation
                ends.append(
                    (y[j], shifted.gradient) if np.isfinite(shifted.value) else (evaluation.y[j], evaluation.gradient)
                )
            distance = ends[0][0] - ends[1][0]
            hessian[j] = (ends[0][1] - ends[1][1]) / distance if distance else np.nan
        return 0.5 * (hessian + hessian.T)

    def make_convex(self, hessian: Array) -> Array:
        """Return a similar positive definite matrix: with absolute eigenvalues, scaled by its diagonal."""
        hessian = np.where(np.isfinite(hessian), hessian, 0.0)
        unit = np.sqrt(np.maximum(np.abs(np.diag(hessian)), 1e-12))
        values, vectors = np.linalg.eigh(hessian / np.outer(unit, unit))
        values = np.maximum(np.abs(values), 1e-3)
        return (vectors * values) @ vectors.T * np.outer(unit, unit)

    def climb(
        self, likelihood: PathLikelihood, evaluation: PathEvaluation, curvature: Array
    ) -> tuple[PathEvaluation, Array, Status]:
        """Search from a point with a curvature; return the end, the updated curvature and the status."""
        is_rebuilt = False
        for _ in range(_MAX_ITERATIONS):
            if self.stop_status is not None:
                return evaluation, curvature, self.stop_status
            free = self.free_mask(evaluation)
            step = np.zeros(evaluation.y.size)
            step[free] = -np.linalg.solve(curvature[np.ix_(free, free)], evaluation.gradient[free])
            predicted_decrease = -0.5 * float(step @ evaluation.gradient)
            if predicted_decrease < _MIN_PREDICTED_GAIN_LOG_L:
                return evaluation, curvature, Status.CONVERGED
            new_evaluation, starts, longest = (
                None,
                [mode.start for mode in evaluation.modes],
                np.abs(step[self.log]).max(initial=0.0),
            )
            length = min(1.0, _MAX_LOG_STEP / longest) if longest > 0.0 else 1.0
            for _ in range(_MAX_STEP_HALVINGS):
                y = np.clip(evaluation.y + length * step, self.lower, self.upper)
                trial = self.evaluate(likelihood, y, starts)
                if trial.value <= evaluation.value + 1e-4 * float(evaluation.gradient @ (y - evaluation.y)):
                    new_evaluation = trial
                    break
                length *= 0.5 if np.isfinite(trial.value) else 0.25
            if new_evaluation is None:
                if is_rebuilt:
                    return (
                        evaluation,
                        curvature,
                        Status.CONVERGED if predicted_decrease < _ACCEPTABLE_GAIN_LOG_L else Status.STEP_TOO_SMALL,
                    )
                curvature, is_rebuilt = (
                    self.make_convex(self.curvature(likelihood, evaluation, self.first_widths(evaluation.y))),
                    True,
                )
                continue
            s, change = new_evaluation.y - evaluation.y, new_evaluation.gradient - evaluation.gradient
            curvature_s = curvature @ s
            s_curvature_s, sy = float(s @ curvature_s), float(s @ change)
            share = 1.0 if sy >= 0.2 * s_curvature_s else 0.8 * s_curvature_s / (s_curvature_s - sy)  # Powell's damping
            r = share * change + (1.0 - share) * curvature_s
            if s_curvature_s > 0.0:
                curvature = (
                    curvature - np.outer(curvature_s, curvature_s) / s_curvature_s + np.outer(r, r) / float(s @ r)
                )
            evaluation, is_rebuilt = new_evaluation, False
            self.report_progress(evaluation)
        return evaluation, curvature, Status.MAX_ITERATIONS

    def polish(
        self, likelihood: PathLikelihood, evaluation: PathEvaluation, curvature: Array
    ) -> tuple[PathEvaluation, Array, Status]:
        """Take steps with the finite-difference curvature; continue the search if the point is not an optimum."""
        hessian, predicted_decrease = curvature, np.inf
        for _ in range(_MAX_NEWTON_STEPS):
            free = self.free_mask(evaluation)
            if not free.any():
                return evaluation, hessian, Status.CONVERGED
            if predicted_decrease > _MIN_PREDICTED_GAIN_LOG_L:  # else the point is where it was, in standard errors
                widths = _DIFFERENCE_STEP_SE / np.sqrt(np.maximum(np.diag(curvature), 1e-300))
                hessian = self.curvature(
                    likelihood, evaluation, np.where(self.log, np.minimum(widths, _MAX_LOG_DIFFERENCE_STEP), widths)
                )
            free_hessian = hessian[np.ix_(free, free)]
            if not definite(free_hessian):
                # Flat direction: the likelihood hardly changes along it.
                free_hessian = self.make_convex(free_hessian)
            step = np.zeros(evaluation.y.size)
            step[free] = -np.linalg.solve(free_hessian, evaluation.gradient[free])
            predicted_decrease = -0.5 * float(step @ evaluation.gradient)
            if predicted_decrease < _MIN_PREDICTED_GAIN_NEWTON or self.stop_status is not None:
                return evaluation, hessian, self.stop_status or Status.CONVERGED
            longest = np.abs(step[self.log]).max(initial=0.0)
            y = np.clip(
                evaluation.y + (min(1.0, _MAX_LOG_STEP / longest) if longest > 0.0 else 1.0) * step,
                self.lower,
                self.upper,
            )
            new_evaluation = self.evaluate(likelihood, y, [mode.start for mode in evaluation.modes])
            if not new_evaluation.value < evaluation.value:
                return (
                    evaluation,
                    hessian,
                    Status.CONVERGED if predicted_decrease < _ACCEPTABLE_GAIN_LOG_L else Status.STEP_TOO_SMALL,
                )
            evaluation, curvature = new_evaluation, self.make_convex(hessian)
            self.report_progress(evaluation)
        return (
            evaluation,
            hessian,
            Status.CONVERGED if predicted_decrease < _MIN_PREDICTED_GAIN_LOG_L else Status.ACCEPTABLE,
        )

    def maximize(
        self, likelihood: PathLikelihood, evaluation: PathEvaluation, refinement_change: float
    ) -> tuple[PathEvaluation, PathLikelihood, Array, Status, float]:
        """Search from a point, and from each end on finer stages.

        Return the end, its likelihood, the Hessian, the status and the change of log L in the last refinement.
        """
        self.report_progress(evaluation)
        curvature = self.make_convex(self.curvature(likelihood, evaluation, self.first_widths(evaluation.y)))
        hessian, status = np.full(curvature.shape, np.nan), Status.MAX_ITERATIONS
        for _ in range(_MAX_REFINEMENTS):
            evaluation, curvature, status = self.climb(likelihood, evaluation, curvature)
            if not status.success:
                break
            finer_likelihood = likelihood.with_shorter_stages(2.0)
            finer_evaluation = self.evaluate(
                finer_likelihood, evaluation.y, finer_likelihood.starts_from(likelihood, evaluation)
            )
            previous_change, refinement_change = refinement_change, finer_evaluation.value - evaluation.value
            if not np.isfinite(refinement_change):
                break
            evaluation, likelihood = finer_evaluation, finer_likelihood
            if self.is_fine_enough(previous_change, refinement_change, len(likelihood.chains)):
                break
        if status.success:
            evaluation, hessian, status = self.polish(likelihood, evaluation, curvature)
        return evaluation, likelihood, hessian, status, refinement_change

    def exchange_noises(
        self, likelihood: PathLikelihood, evaluation: PathEvaluation, finer_likelihood: PathLikelihood
    ) -> PathEvaluation | None:
        """Return a start in which noises that may be 0 at an end are not, and others are small; None without any."""
        y, starts = evaluation.y, likelihood.starts_from(finer_likelihood, evaluation)
        sigmas = np.arange(y.size) >= len(likelihood.problem.names)
        noises, value = self.intensities | sigmas, self.evaluate(likelihood, y, starts).value
        may_vanish = np.zeros(y.size, dtype=np.bool_)
        for j in np.flatnonzero(noises) if np.sum(noises) > 1 else ():
            without = self._scaled(y, np.arange(y.size) == j, _LEFT_OUT_FACTOR)
            may_vanish[j] = self.evaluate(likelihood, without, starts).value < value + _MAX_LOSS_WITHOUT_NOISE
        needed_noises = noises & ~may_vanish
        if not may_vanish.any() or not needed_noises.any() or self.must_stop():
            return None
        y = self._scaled(
            y, needed_noises & ~sigmas if (needed_noises & ~sigmas).any() else needed_noises, _EXCHANGE_FACTOR
        )
        y = np.where(may_vanish, self.guess, y)
        trials = [self.evaluate(likelihood, self._scaled(y, may_vanish, factor), None) for factor in _GUESS_FACTORS]
        best = trials[first_argmin([trial.value for trial in trials])]
        return best if best.modes else None

    def _scaled(self, y: Array, mask: Mask, factor: float) -> Array:
        """Return y with some of its quantities multiplied by a factor, within the bounds."""
        return np.clip(np.where(mask, np.where(self.log, y + np.log(factor), factor * y), y), self.lower, self.upper)

    def covariance(self, evaluation: PathEvaluation, hessian: Array) -> Array:
        """Return the covariance of y, NaN for fixed and flat directions, or everywhere if it does not exist."""
        covariance, is_determined = (
            np.full(hessian.shape, np.nan),
            self.free_mask(evaluation) & ~self.flat_mask(evaluation, hessian),
        )
        block = np.ix_(is_determined, is_determined)
        if definite(hessian[block]):
            covariance[block] = np.linalg.inv(hessian[block])
        return covariance

    def flat_mask(self, evaluation: PathEvaluation, hessian: Array) -> Mask:
        """Return a mask of the free logarithms with negligible curvature, if the Hessian is not positive definite."""
        free = self.free_mask(evaluation)
        if definite(hessian[np.ix_(free, free)]):
            return np.zeros(free.size, dtype=np.bool_)
        return free & self.log & (np.abs(np.diag(hessian)) < _UNINFORMATIVE_CURVATURE)

    def is_fine_enough(self, previous_change: float, change: float, experiments: int) -> bool:
        """Check whether the stages are fine enough, from the changes of log L in the last two refinements.

        The accepted change of n experiments grows with sqrt(n), because standard errors shrink with sqrt(n).
        """
        ratio = abs(previous_change) / abs(change) if change else np.inf
        if ratio <= _MIN_HALVING_GAIN:
            return abs(change) < _MAX_SLOW_CHANGE_LOG_L * np.sqrt(experiments)
        return abs(change) < _MAX_REMAINING_CHANGE_LOG_L * np.sqrt(experiments) * (min(ratio, _MAX_HALVING_GAIN) - 1.0)

    def bands(self, likelihood: PathLikelihood, evaluation: PathEvaluation) -> PathBands:
        """Build the quadrature that computes the bands of the path."""
        starts = [mode.start for mode in evaluation.modes]

        def evaluate(y: Array) -> PathEvaluation | None:
            self.evaluations += 1
            return None if self.must_stop() else likelihood.evaluate(y, starts, slopes=False)

        return PathBands(likelihood.chains, evaluate, evaluation, self.log, (self.lower, self.upper))

    def first_widths(self, y: Array) -> Array:
        """Return the step sizes of finite differences used before any curvature is known."""
        return np.where(self.log, 1.0, np.maximum(np.abs(y), 1e-3)) * _INITIAL_DIFFERENCE_STEP


def definite(hessian: Array) -> bool:
    """Check whether a matrix is positive definite by more than rounding, independently of the units."""
    if not (hessian.size and np.isfinite(hessian).all() and (np.diag(hessian) > 0.0).all()):
        return False
    unit = np.sqrt(np.diag(hessian))
    return bool(np.linalg.eigvalsh(hessian / np.outer(unit, unit)).min() > _MIN_SCALED_EIGENVALUE)


def fit_noisy(
    problem: Posable,
    *,
    start: Mapping[str, float] | PathResult | None,
    max_time: float,
    callback: Callable[[Iteration], Any] | None,
    confidence_level: float,
    verbose: int | None,
) -> PathResult:
    """Estimate quantities and the path of a problem whose model has noises; see `fit`."""
    start_time = time.perf_counter()
    compiled_problem = problem.posed
    raise_if_mistakes("fit", noisy_mistakes(compiled_problem))
    marginal_problem, spreads = marginal(compiled_problem)
    start_values = start.parameters if isinstance(start, PathResult) else dict(start or {})
    labels = [f"sigma({name})" if name else "sigma" for name in marginal_problem.groups]
    start_sigmas = {n: float(v) for n, v in start_values.items() if n in labels}
    theta = marginal_problem.theta_from({n: v for n, v in start_values.items() if n not in labels})
    sizes = [_size(marginal_problem, g) for g in range(len(labels))]
    sigma = [start_sigmas.get(n, _INITIAL_SIGMA_FRACTION * size) for n, size in zip(labels, sizes, strict=True)]
    limits = np.array(marginal_problem.group_bounds or [(0.0, np.inf)] * len(labels), dtype=float).reshape(-1, 2)
    min_sigmas = np.maximum(_MIN_SIGMA_FRACTION * np.array(sizes), limits[:, 0])
    names = (*marginal_problem.names, *labels)
    with np.errstate(divide="ignore"):
        lower = np.concatenate([marginal_problem.bounds[0], np.log(min_sigmas)])
        upper = np.concatenate([marginal_problem.bounds[1], np.log(limits[:, 1])])
    log = np.concatenate([marginal_problem.log, np.ones(len(labels), dtype=np.bool_)])
    y = np.clip(np.concatenate([theta, np.log(np.array(sigma, dtype=float))]), lower, upper)
    guess_sigmas = np.log(_INITIAL_SIGMA_FRACTION * np.array(sizes))

    with Interrupt() as interrupt, np.errstate(all="ignore"):
        search = _LikelihoodSearch(
            lower,
            upper,
            np.clip(np.concatenate([marginal_problem.guess, guess_sigmas]), lower, upper),
            log,
            np.array([*_find_intensities(marginal_problem), *(False for _ in labels)], dtype=np.bool_),
            compiled_problem.n_data,
            start_time + max_time,
            callback,
            interrupt,
            verbose == 2,
            start_time,
        )
        likelihood = PathLikelihood(
            marginal_problem, spreads, [_gap(c.times, c.start) for c in marginal_problem.conditions]
        )
        evaluation, likelihood, refinement_change = _refine_start(search, likelihood, y)
        status, hessian, remark = Status.START_FAILED, np.full((y.size, y.size), np.nan), ""
        if evaluation.modes:
            end = search.maximize(likelihood, evaluation, refinement_change)
            remark, n_iterations = _unbounded_remark(end[0], marginal_problem, labels), len(search.history)
            end = (*end[:3], Status.DIVERGING, end[4]) if remark and end[3].success else end
            coarser_likelihood = end[1].with_shorter_stages(0.5)
            second_start = None if not end[3].success else search.exchange_noises(coarser_likelihood, *end[:2])
            if second_start is not None:
                second = search.maximize(coarser_likelihood, second_start, end[4])
                gain, is_success = end[0].value - second[0].value, second[3].success
                remark = _unbounded_remark(second[0], marginal_problem, labels) if is_success else ""
                remark = remark and f"{remark} The result is a local maximum."
                if is_success and not remark and gain > _MIN_SECOND_GAIN:
                    remark = (
                        f"A first search, in which other noises vanished, ended at a log L that is {gain:.4g} lower."
                    )
                    end, n_iterations = second, len(search.history)
                del search.history[n_iterations:]
            evaluation, likelihood, hessian, status, refinement_change = end
        variances = None
        if status.success:
            variances = search.bands(likelihood, evaluation).variances(search.covariance(evaluation, hessian))
            status = status if variances else search.stop_status or status
    failure_note = evaluation.failure and f" No most probable path was found in '{evaluation.failure}' from there."
    message = "" if status is Status.DIVERGING else status.message + (failure_note if not evaluation.modes else "")
    sentences = [*filter(None, (message, remark)),
             *_remarks(search, evaluation, hessian, status, refinement_change, likelihood)]  # fmt: skip
    if not evaluation.modes:
        sentences.append("Try another starting point, narrower initial-state priors, or a larger initial sigma.")
    return _result(problem, likelihood, evaluation, hessian, search, variances, names=names, status=status,
                   refinement_change=refinement_change, message=" ".join(sentences), start_time=start_time,
                   confidence_level=confidence_level)  # fmt: skip


def _find_intensities(problem: CompiledProblem) -> list[bool]:
    """List whether each quantity only multiplies noises."""
    model, system = problem.model, problem.model.system
    symbols = dict(zip(model.parameters, ca.vertsplit(system.p), strict=True))
    noises = ca.vertcat(*(symbols[n] for n in model.noises))
    drift = ca.substitute([system.ode], [noises], [ca.SX.zeros(noises.numel(), 1)])[0]
    noise_free, gain = ca.vertcat(drift, system.alg, *model.outputs.values()), ca.SX(ca.jacobian(system.ode, noises))
    entries = [symbols.get(q.symbol_name) if q.kind == "parameter" else None for q in problem.quantities]
    return [s is not None and ca.depends_on(gain, s) and not ca.depends_on(noise_free, s) for s in entries]


def _unbounded_remark(evaluation: PathEvaluation, problem: CompiledProblem, labels: list[str]) -> str:
    """Return a message if log L grows while a sigma vanishes, with the remedy."""
    n, sizes = len(problem.names), [_size(problem, g) for g in range(len(labels))]
    is_small = evaluation.y[n:] < np.log(2.0 * _MIN_SIGMA_FRACTION * np.array(sizes))
    vanishing = [labels[j] for j in np.flatnonzero(is_small & (evaluation.gradient[n:] > _MIN_UNBOUNDED_SLOPE))]
    free = ", ".join(dict.fromkeys(q.symbol_name for q in problem.quantities if q.kind == "initial state"))
    remedy = f"a density of the start, cf.Normal(mean, deviation), for {free} instead of cf.free" if free else "sigma"
    return "".join(
        f"The likelihood seems to have no maximum: log L still grows when {label} is 1e-6 of the data. Set {remedy}."
        for label in vanishing[:1]
    )


def _refine_start(
    search: _LikelihoodSearch, likelihood: PathLikelihood, y: Array
) -> tuple[PathEvaluation, PathLikelihood, float]:
    """Refine the stages at the start until they are good enough to estimate anything."""
    evaluation = search.evaluate(likelihood, y, None)
    refinement_change = np.nan
    for _ in range(_MAX_REFINEMENTS):
        if search.must_stop():
            break
        finer_likelihood = likelihood.with_shorter_stages(2.0)
        starts = finer_likelihood.starts_from(likelihood, evaluation) if evaluation.modes else None
        finer_evaluation = search.evaluate(finer_likelihood, y, starts)
        refinement_change = abs(finer_evaluation.value - evaluation.value)
        if refinement_change < _MAX_STAGE_ERROR_LOG_L:
            break
        evaluation, likelihood = finer_evaluation, finer_likelihood
    return evaluation, likelihood, refinement_change


def _remarks(
    search: _LikelihoodSearch,
    evaluation: PathEvaluation,
    hessian: Array,
    status: Status,
    refinement_change: float,
    likelihood: PathLikelihood,
) -> list[str]:
    """List the remarks for the user about a successful search."""
    remarks: list[str] = []
    if not evaluation.modes or not status.success:
        return remarks
    is_determined = search.free_mask(evaluation) & ~search.flat_mask(evaluation, hessian)
    if is_determined.any() and not definite(hessian[np.ix_(is_determined, is_determined)]):
        remarks.append(
            "The likelihood is flat in some direction, so standard errors are not available. Fix a quantity."
        )
    if not abs(refinement_change) < _MAX_SLOW_CHANGE_LOG_L * np.sqrt(len(likelihood.chains)):
        remarks.append("The stages were still too long when refinement ended; use closer times or a shorter horizon.")
    if not all(chain_likelihood.chain.quadratic for chain_likelihood in likelihood.chains):
        remarks.append(
            "log L uses the Laplace approximation over paths, which was not tested; call result.laplace_check()."
        )
    return remarks


def _result(
    problem: Posable, likelihood: PathLikelihood, evaluation: PathEvaluation, hessian: Array, search: _LikelihoodSearch,
    variances: list[Array] | None, *,
    names: tuple[str, ...], status: Status, refinement_change: float, message: str, start_time: float,
    confidence_level: float,
) -> PathResult:  # fmt: skip
    compiled_problem, n = likelihood.problem, len(names)
    covariance, bound_sides = np.full((n, n), np.nan), dict[str, str]()
    free = search.free_mask(evaluation) if evaluation.modes else np.zeros(n, dtype=np.bool_)
    if evaluation.modes:
        bound_sides = {
            names[j]: "lower" if evaluation.y[j] <= search.lower[j] else "upper" for j in np.flatnonzero(~free)
        }
    if status.success:
        slope = np.where(search.log, np.exp(np.where(search.log, evaluation.y, 0.0)), 1.0)
        covariance = search.covariance(evaluation, hessian) * np.outer(slope, slope)
        np.fill_diagonal(covariance, np.where(search.flat_mask(evaluation, hessian), np.inf, np.diag(covariance)))
    tracks, innovations = dict[str, PathTrack](), dict[str, Innovations]()
    for i, (chain_likelihood, mode) in enumerate(zip(likelihood.chains, evaluation.modes, strict=False)):
        condition, values = chain_likelihood.chain.condition, chain_likelihood.chain.condition.points.values
        times, path, deviations = chain_likelihood.track(mode)
        deviations = np.sqrt(variances[i]) if variances else deviations
        tracks[condition.name] = PathTrack(compiled_problem.model.output_names, times, path, deviations)
        times = chain_likelihood.chain.row_times[:, 0]
        innovations[condition.name] = Innovations(
            compiled_problem.outputs, times, values, *chain_likelihood.innovations(mode)
        )
    hidden_outputs = {*compiled_problem.spreads}
    tracks = {n: _without(track, hidden_outputs) for n, track in tracks.items()}
    return PathResult(
        status=status,
        message=message,
        names=names,
        y=evaluation.y,
        log=search.log,
        covariance=covariance,
        log_likelihood=evaluation.prior - evaluation.value if evaluation.modes else np.nan,
        neg2logprior=2.0 * evaluation.prior if compiled_problem.every_prior else 0.0,
        refined=float(refinement_change),
        stages=likelihood.stages,
        longest=likelihood.max_stage_lengths,
        tracks=tracks,
        innovations=innovations,
        active=bound_sides,
        units={name: compiled_problem.unit(name) for name in names if compiled_problem.unit(name)},
        n_data=compiled_problem.n_data,
        iterations=max(len(search.history) - 1, 0),
        evaluations=search.evaluations,
        time=time.perf_counter() - start_time,
        history=tuple(search.history),
        confidence_level=confidence_level,
        question=question(problem),
        problem=problem,
    )


def _without(track: PathTrack, hidden_outputs: set[str]) -> PathTrack:
    indices = [j for j, name in enumerate(track.names) if name not in hidden_outputs]
    names = tuple(track.names[j] for j in indices)
    return PathTrack(names, track.times, track.values[:, indices], track.deviations[:, indices])


def _gap(times: Array, start: float) -> float:
    """Return the longest time between two data."""
    return float(np.diff(np.unique(np.append(times, start))).max(initial=0.0)) or 1.0


def _size(problem: CompiledProblem, group: int) -> float:
    """Return the magnitude of the data of an unknown sigma, in units of their weights."""
    sizes: list[Array] = []
    for c in problem.conditions:
        for j, observable in enumerate(c.observed):
            if observable is not None and observable.group == group:
                mask = c.points.mask[:, j]
                sizes.append(np.abs(c.points.values[mask, j] / c.points.sigma[mask, j]))
    scaled_values = np.concatenate([*sizes, np.empty(0)])
    return float(np.sqrt(np.mean(scaled_values**2))) if scaled_values.size and scaled_values.any() else 1.0
