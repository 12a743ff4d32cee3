"""Fit of models with process noise: the quantities maximise the likelihood of the data over all paths.

A quasi-Newton method with the exact gradient starts with a finite-difference curvature.  It ends with steps that use
the finite-difference curvature at the optimum, which also gives the standard errors.  At each point that the search
accepts, halved stages may change log L by a tenth of the decrease that the next step promises.  If they change it by
more, the stages are halved there.  Values are compared on equal stages only.

The likelihood may have several maxima in which different noises are 0, since noises explain the same deviations.  If
one may be 0 at the end of the search, a second search begins where it is not, and where the others are small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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

# Limits on the change of log L when stages are halved: during the search, and per experiment at its end. The remaining
# change is a seventh for stages of order 3, and a fifteenth for linear models (order 4).
_MAX_STAGE_ERROR_LOG_L, _MAX_FINAL_ERROR, _MAX_FINAL_ERROR_LINEAR = 1.0, 7e-4, 1.5e-3
_MAX_KEPT_ERROR = 1e-4  # Change of log L by halved stages, per experiment, below which they do not replace the others.
_STAGE_ERROR_FRACTION = 0.1  # The same, relative to the predicted decrease of log L.
_STAGE_ERROR_GROWTH = 4.0  # Assumed growth of the change: as this power of a quantity.
# Change of log L that the search accepts before its end, and above which, per experiment, the message mentions it.
_MIN_STAGE_ERROR_LOG_L = 5e-3
_MIN_DIVISOR = 1e-300  # Lower limit on a divisor, which may be 0.
_MAX_REFINEMENTS = 10  # Limit on the refinements of the stages.
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


@dataclass(frozen=True)
class _SearchEnd:
    """End of a search: the point, the likelihood on its stages, the Hessian, NaN if the search failed, the status.

    stage_change : by which halved stages change log L, or changed it if they are those of the end
    """

    evaluation: PathEvaluation
    likelihood: PathLikelihood
    hessian: Array
    status: Status
    stage_change: float


@dataclass
class _LikelihoodSearch:
    """Search for the most likely quantities, on stages that become finer.

    likelihood : on the present stages; `finer` is on halved ones, with the last point that was evaluated there
    stage_change : by which halved stages changed log L at that point
    lower, upper, guess : bounds and guesses of y
    intensities : mask of the parameters that only multiply noises
    """

    likelihood: PathLikelihood
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
    stage_change: float = np.nan
    finer: tuple[PathLikelihood, PathEvaluation] | None = None

    def evaluate(self, y: Array, starts: list[PathStart] | None, *, slopes: bool = True) -> PathEvaluation:
        self.evaluations += 1
        return self.likelihood.evaluate(y, starts, slopes=slopes)

    def final_error(self) -> float:
        """Return the accepted change of log L by halved stages at the end.

        The accepted change of n experiments grows with sqrt(n), because standard errors shrink with sqrt(n).
        """
        error = _MAX_FINAL_ERROR_LINEAR if self.likelihood.is_linear else _MAX_FINAL_ERROR
        return float(error * np.sqrt(len(self.likelihood.chains)))

    def refine(
        self, evaluation: PathEvaluation, max_error: float, *, exactly: bool = False, max_value: float = np.inf
    ) -> PathEvaluation:
        """Halve stages until further halving changes log L by at most max_error; return the point on the new stages.

        Near a point where the change is known it is estimated, except if `exactly`.  If -log L is above max_value on
        halved stages, the present ones are kept, and the point on halved ones is returned.
        """
        for _ in range(_MAX_REFINEMENTS):
            if self.finer and self.finer[1].modes:
                checked_y = self.finer[1].y
                unit = np.where(self.log, 1.0, np.maximum(np.abs(checked_y), _MIN_DIVISOR))
                distance = float(np.max(np.abs(evaluation.y - checked_y) / unit, initial=0.0))
                change = abs(self.stage_change) * np.exp(_STAGE_ERROR_GROWTH * distance)
                if change <= max_error and (distance == 0.0 or not exactly):
                    break
            if self.must_stop():
                break
            finer = self.likelihood.with_shorter_stages(2.0)
            starts = finer.starts_from(self.likelihood, evaluation) if evaluation.modes else None
            self.evaluations += 1
            finer_evaluation = finer.evaluate(evaluation.y, starts, slopes=False)
            self.finer, self.stage_change = (finer, finer_evaluation), finer_evaluation.value - evaluation.value
            if not abs(self.stage_change) <= max_error:
                if finer_evaluation.value > max_value:
                    return finer_evaluation
                evaluation = self.move_to_finer()
        return evaluation

    def move_to_finer(self) -> PathEvaluation:
        """Replace the stages by the halved ones, and return the point that was evaluated there."""
        assert self.finer is not None
        (self.likelihood, evaluation), self.finer = self.finer, None
        return self.likelihood.with_gradient(evaluation)

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

    def curvature(self, evaluation: PathEvaluation, widths: Array) -> Array:
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
                shifted = self.evaluate(y, starts) if y[j] != evaluation.y[j] else evaluation
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

    def climb(self, evaluation: PathEvaluation, curvature: Array) -> tuple[PathEvaluation, Array, Status]:
        """Search from a point with a curvature; return the end, the updated curvature and the status."""
        is_rebuilt = False
        for _ in range(_MAX_ITERATIONS):
            if self.stop_status is not None:
                return evaluation, curvature, self.stop_status
            free = self.free_mask(evaluation)
            step = np.zeros(evaluation.y.size)
            step[free] = -np.linalg.solve(curvature[np.ix_(free, free)], evaluation.gradient[free])
            predicted_decrease = -0.5 * float(step @ evaluation.gradient)
            is_end = predicted_decrease < _MIN_PREDICTED_GAIN_LOG_L
            max_error = min(_STAGE_ERROR_FRACTION * predicted_decrease, _MAX_STAGE_ERROR_LOG_L)
            max_error = self.final_error() if is_end else max(max_error, _MIN_STAGE_ERROR_LOG_L)
            refined = self.refine(evaluation, max_error, exactly=is_end)
            if refined is not evaluation and refined.modes:
                evaluation = refined
                continue
            if is_end or not refined.modes:
                return evaluation, curvature, Status.CONVERGED
            evaluation, new_evaluation = self._search_line(evaluation, step, max_error)
            if new_evaluation is None:
                if is_rebuilt:
                    is_acceptable = predicted_decrease < _ACCEPTABLE_GAIN_LOG_L
                    return evaluation, curvature, Status.CONVERGED if is_acceptable else Status.STEP_TOO_SMALL
                curvature = self.make_convex(self.curvature(evaluation, self.first_widths(evaluation.y)))
                is_rebuilt = True
                continue
            s, change = new_evaluation.y - evaluation.y, new_evaluation.gradient - evaluation.gradient
            curvature_s = curvature @ s
            s_curvature_s, sy = float(s @ curvature_s), float(s @ change)
            share = 1.0 if sy >= 0.2 * s_curvature_s else 0.8 * s_curvature_s / (s_curvature_s - sy)  # Powell's damping
            r = share * change + (1.0 - share) * curvature_s
            if s_curvature_s > 0.0 and np.isfinite(sy):
                curvature = (
                    curvature - np.outer(curvature_s, curvature_s) / s_curvature_s + np.outer(r, r) / float(s @ r)
                )
            evaluation, is_rebuilt = new_evaluation, False
            self.report_progress(evaluation)
        return evaluation, curvature, Status.MAX_ITERATIONS

    def _search_line(
        self, evaluation: PathEvaluation, step: Array, max_error: float
    ) -> tuple[PathEvaluation, PathEvaluation | None]:
        """Return the point, and a better one along a step or None, both on the same stages."""
        length = self._limited_length(step)
        for _ in range(_MAX_STEP_HALVINGS):
            y, likelihood = np.clip(evaluation.y + length * step, self.lower, self.upper), self.likelihood
            trial = self.evaluate(y, [mode.start for mode in evaluation.modes], slopes=False)
            if self._is_decrease(evaluation, trial):
                trial = self.refine(trial, max_error, max_value=evaluation.value + max_error)
                if self.likelihood is not likelihood:
                    starts = self.likelihood.starts_from(likelihood, evaluation)
                    evaluation = self.evaluate(evaluation.y, starts)
                if self._is_decrease(evaluation, trial):
                    return evaluation, self.likelihood.with_gradient(trial)
            length *= 0.5 if np.isfinite(trial.value) else 0.25
        return evaluation, None

    def _is_decrease(self, evaluation: PathEvaluation, trial: PathEvaluation) -> bool:
        """Check whether a trial decreases -log L enough (Armijo), or is the only point with a path."""
        limit = evaluation.value + 1e-4 * float(evaluation.gradient @ (trial.y - evaluation.y))
        return trial.value <= limit if evaluation.modes else bool(trial.modes)

    def _limited_length(self, step: Array) -> float:
        """Return the part of a step, at most 1, that changes no logarithm by more than the limit."""
        longest = float(np.abs(step[self.log]).max(initial=0.0))
        return min(1.0, _MAX_LOG_STEP / longest) if longest > 0.0 else 1.0

    def polish(self, evaluation: PathEvaluation, curvature: Array) -> tuple[PathEvaluation, Array, Status]:
        """Take steps with the finite-difference curvature; continue the search if the point is not an optimum."""
        hessian, predicted_decrease = curvature, np.inf
        for _ in range(_MAX_NEWTON_STEPS):
            free = self.free_mask(evaluation)
            if not free.any():
                return evaluation, hessian, Status.CONVERGED
            if predicted_decrease > _MIN_PREDICTED_GAIN_LOG_L:  # else the point has hardly moved
                widths = _DIFFERENCE_STEP_SE / np.sqrt(np.maximum(np.diag(curvature), _MIN_DIVISOR))
                hessian = self.curvature(
                    evaluation, np.where(self.log, np.minimum(widths, _MAX_LOG_DIFFERENCE_STEP), widths)
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
            y = np.clip(evaluation.y + self._limited_length(step) * step, self.lower, self.upper)
            new_evaluation = self.evaluate(y, [mode.start for mode in evaluation.modes])
            if not new_evaluation.value < evaluation.value:
                is_acceptable = predicted_decrease < _ACCEPTABLE_GAIN_LOG_L
                return evaluation, hessian, Status.CONVERGED if is_acceptable else Status.STEP_TOO_SMALL
            evaluation, curvature = new_evaluation, self.make_convex(hessian)
            self.report_progress(evaluation)
        is_end = predicted_decrease < _MIN_PREDICTED_GAIN_LOG_L
        return evaluation, hessian, Status.CONVERGED if is_end else Status.ACCEPTABLE

    def maximize(self, evaluation: PathEvaluation, max_value: float = np.inf) -> _SearchEnd:
        """Search from a point on the present stages; end on halved ones if they change log L noticeably.

        The end is not computed exactly if -log L is above max_value.
        """
        self.report_progress(evaluation)
        curvature = self.make_convex(self.curvature(evaluation, self.first_widths(evaluation.y)))
        evaluation, hessian, status = self.climb(evaluation, curvature)
        if status.success and evaluation.value < max_value:
            max_change = _MAX_KEPT_ERROR * np.sqrt(len(self.likelihood.chains))
            if self.finer and self.finer[1].modes and abs(self.stage_change) > max_change:
                evaluation = self.move_to_finer()
            evaluation, hessian, status = self.polish(evaluation, hessian)
        hessian = hessian if status.success else np.full(hessian.shape, np.nan)
        return _SearchEnd(evaluation, self.likelihood, hessian, status, self.stage_change)

    def exchange_noises(self, end: _SearchEnd) -> PathEvaluation | None:
        """Return a start in which noises that may be 0 at an end are not, and others are small; None without any.

        The start is on stages twice as long, which replace the present ones.
        """
        self.likelihood, self.finer = end.likelihood.with_shorter_stages(0.5), None
        y, starts = end.evaluation.y, self.likelihood.starts_from(end.likelihood, end.evaluation)
        sigmas = np.arange(y.size) >= len(self.likelihood.problem.names)
        noises, value = self.intensities | sigmas, self.evaluate(y, starts, slopes=False).value
        may_vanish = np.zeros(y.size, dtype=np.bool_)
        for j in np.flatnonzero(noises) if np.sum(noises) > 1 else ():
            without = self._scaled(y, np.arange(y.size) == j, _LEFT_OUT_FACTOR)
            may_vanish[j] = self.evaluate(without, starts, slopes=False).value < value + _MAX_LOSS_WITHOUT_NOISE
        needed_noises = noises & ~may_vanish
        if not may_vanish.any() or not needed_noises.any() or self.must_stop():
            return None
        y = self._scaled(
            y, needed_noises & ~sigmas if (needed_noises & ~sigmas).any() else needed_noises, _EXCHANGE_FACTOR
        )
        y = np.where(may_vanish, self.guess, y)
        trials = [self.evaluate(self._scaled(y, may_vanish, factor), starts) for factor in _GUESS_FACTORS]
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

    def bands(self, end: _SearchEnd) -> PathBands:
        """Build the quadrature that computes the bands of the path."""
        starts = [mode.start for mode in end.evaluation.modes]

        def evaluate(y: Array) -> PathEvaluation | None:
            self.evaluations += 1
            return None if self.must_stop() else end.likelihood.evaluate(y, starts, slopes=False)

        return PathBands(end.likelihood.chains, evaluate, end.evaluation, self.log, (self.lower, self.upper))

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
        max_lengths = [_gap(c.times, c.start) for c in marginal_problem.conditions]
        search = _LikelihoodSearch(
            PathLikelihood(marginal_problem, spreads, max_lengths),
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
        evaluation = search.refine(search.evaluate(y, None), _MAX_STAGE_ERROR_LOG_L)
        hessian, remark = np.full((y.size, y.size), np.nan), ""
        end = _SearchEnd(evaluation, search.likelihood, hessian, Status.START_FAILED, search.stage_change)
        if evaluation.modes:
            end = search.maximize(evaluation)
            remark, n_iterations = _unbounded_remark(end.evaluation, marginal_problem, labels), len(search.history)
            end = replace(end, status=Status.DIVERGING) if remark and end.status.success else end
            second_start = search.exchange_noises(end) if end.status.success else None
            if second_start is not None:
                second = search.maximize(second_start, end.evaluation.value - _MIN_SECOND_GAIN)
                gain, is_success = end.evaluation.value - second.evaluation.value, second.status.success
                remark = _unbounded_remark(second.evaluation, marginal_problem, labels) if is_success else ""
                remark = remark and f"{remark} The result is a local maximum."
                if is_success and not remark and gain > _MIN_SECOND_GAIN:
                    remark = (
                        f"A first search, in which other noises vanished, ended at a log L that is {gain:.4g} lower."
                    )
                    end, n_iterations = second, len(search.history)
                del search.history[n_iterations:]
        variances, status, evaluation = None, end.status, end.evaluation
        if status.success:
            variances = search.bands(end).variances(search.covariance(evaluation, end.hessian))
            end = end if variances else replace(end, status=search.stop_status or status)
    failure_note = evaluation.failure and f" No most probable path was found in '{evaluation.failure}' from there."
    message = "" if status is Status.DIVERGING else end.status.message + ("" if evaluation.modes else failure_note)
    sentences = [*filter(None, (message, remark)), *_remarks(search, end)]
    if not evaluation.modes:
        sentences.append("Try another starting point, narrower initial-state priors, or a larger initial sigma.")
    return _result(problem, end, search, variances, names=names, message=" ".join(sentences), start_time=start_time,
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


def _remarks(search: _LikelihoodSearch, end: _SearchEnd) -> list[str]:
    """List the remarks for the user about a successful search."""
    evaluation, hessian, likelihood = end.evaluation, end.hessian, end.likelihood
    remarks: list[str] = []
    if not evaluation.modes or not end.status.success:
        return remarks
    is_determined = search.free_mask(evaluation) & ~search.flat_mask(evaluation, hessian)
    if is_determined.any() and not definite(hessian[np.ix_(is_determined, is_determined)]):
        remarks.append(
            "The likelihood is flat in some direction, so standard errors are not available. Fix a quantity."
        )
    if not abs(end.stage_change) < _MIN_STAGE_ERROR_LOG_L * np.sqrt(len(likelihood.chains)):
        remarks.append("The stages were still too long when refinement ended; use closer times or a shorter horizon.")
    if not all(chain_likelihood.chain.quadratic for chain_likelihood in likelihood.chains):
        remarks.append(
            "log L uses the Laplace approximation over paths, which was not tested; call result.laplace_check()."
        )
    return remarks


def _result(
    problem: Posable, end: _SearchEnd, search: _LikelihoodSearch, variances: list[Array] | None, *,
    names: tuple[str, ...], message: str, start_time: float, confidence_level: float,
) -> PathResult:  # fmt: skip
    evaluation, likelihood, status = end.evaluation, end.likelihood, end.status
    compiled_problem, n = likelihood.problem, len(names)
    covariance, bound_sides = np.full((n, n), np.nan), dict[str, str]()
    free = search.free_mask(evaluation) if evaluation.modes else np.zeros(n, dtype=np.bool_)
    if evaluation.modes:
        bound_sides = {
            names[j]: "lower" if evaluation.y[j] <= search.lower[j] else "upper" for j in np.flatnonzero(~free)
        }
    if status.success:
        slope = np.where(search.log, np.exp(np.where(search.log, evaluation.y, 0.0)), 1.0)
        covariance = search.covariance(evaluation, end.hessian) * np.outer(slope, slope)
        np.fill_diagonal(covariance, np.where(search.flat_mask(evaluation, end.hessian), np.inf, np.diag(covariance)))
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
        refined=float(end.stage_change),
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
