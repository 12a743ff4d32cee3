"""`fit` of models with noise: quantities maximise the likelihood of the data over all paths.

A quasi-Newton method with the exact gradient, begun with the curvature by differences of it, ends in steps with the
differenced curvature at the optimum, from which the standard errors are.  The stages are halved, and all is done again
from where it ended, until the likelihood stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.progress_line import say
from castfit._support.status import Status, check
from castfit._support.time_limit import Interrupt
from castfit.fit.path_bands import PathBands
from castfit.problem.compiled_problem import LIKELIHOOD, LOSS, NO_LIKELIHOOD
from castfit.problem.fingerprint import question
from castfit.result.path_result import Innovations, PathResult, PathTrack
from castfit.solve.solution import Iteration
from castfit.transcribe.path_likelihood import PathEvaluation, PathLikelihood, PathStart, marginal

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Mask
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable

_STILL, _SLOW = 1e-4, 5e-3  # in log L, of one experiment: what is left to move; where halving gains little, was moved
_GAIN, _BEST_GAIN = 6.0, 16.0  # times less is moved at each halving where that pays; for linear models (order 4)
_LEVELS = 10  # refinements
_ROUGH = 1.0  # in log L: stages that are refined before anything is estimated
_ITERATIONS, _HALVINGS, _POLISH = 200, 15, 6
_FLAT = 1e-7  # promised gain of log L at which a search ends
_SHARP = 1e-11  # the same by the differenced curvature
_ACCEPTED = 1e-4  # gain still promised where rounding ends the search
_LONGEST = 1.5  # step of a logarithm
_FIRST_STEP, _STEP = 1e-4, 0.02  # of differences: relative, then in standard errors
_WIDEST = 0.05  # step of differences of a logarithm: an intensity near 0 hardly matters, however far one goes
_NOTHING = 1e-3  # curvature along a logarithm of which nothing is known: 30 is its standard error
_SINGULAR = 1e-9  # least eigenvalue of the curvature, scaled by its diagonal
_GUESS = 0.1  # of the size of the data: where an unknown sigma begins


def noisy_mistakes(problem: Posed) -> list[str]:
    """List the features that cannot be combined with noises in a model, with alternatives."""
    model, found = problem.model, list[str]()
    said = f"the model has process noise ({', '.join(model.noises)}), so"
    if problem.constraints or problem.state_bounds:
        found.append(f"{said} constraints and state_bounds cannot be enforced along the path; remove them")
    if model.lines:
        found.append(f"{said} delays are unsupported; write them as a linear chain of states")
    if model.memories:
        found.append(f"{said} outputs must not be per_interval, interval_mean or relative_to_first; use plain outputs")
    if problem.correlations:
        found.append(f"{said} measurement errors must be independent; write the autocorrelated part as a state with process noise")
    if any(term.chosen for term in problem.smooth):
        found.append(f"{said} smoothness='auto' is unsupported; set a number, or write the input as a state with process noise")
    if problem.measure == LOSS:
        found.append(NO_LIKELIHOOD)
    observed = zip(problem.outputs, zip(*(c.observed for c in problem.conditions), strict=True), strict=True)
    for output in [name for name, of in observed if any(o is not None and o.noise.kinked for o in of)]:
        found.append(f"{said} the noise model of '{output}' must be smooth, because the Laplace approximation is "
                     "invalid at kinks; use StudentT")  # fmt: skip
    for c in problem.conditions:
        if c.settled:
            found.append(f"{c.name}: {said} it has no steady state; pass finite times")
        if c.schedule.triggers:
            found.append(f"{c.name}: {said} state-triggered events are unsupported; set the event times")
        elif c.schedule.moves:
            found.append(f"{c.name}: {said} event times cannot be estimated; fix them")
        if any(i.change is not None and not i.change.linear for i in c.schedule.instants):
            found.append(f"{c.name}: {said} events must change states linearly; write the change with fixed factors")  # fmt: skip
    return found


@dataclass
class _Climb:
    """The search for the most likely quantities, on stages that become finer; lower and upper are bounds of y."""

    lower: Array
    upper: Array
    log: Mask
    n_data: int
    deadline: float
    callback: Callable[[Iteration], Any] | None
    interrupt: Interrupt
    verbose: bool
    began: float
    history: list[float] = field(default_factory=list[float])
    evaluations: int = 0
    stopped: Status | None = None

    def evaluate(self, likelihood: PathLikelihood, y: Array, starts: list[PathStart] | None) -> PathEvaluation:
        self.evaluations += 1
        return likelihood.evaluate(y, starts)

    def told(self, at: PathEvaluation) -> bool:
        """Report the current point, and return whether the search must stop."""
        self.history.append(2.0 * at.value)
        seconds = time.perf_counter() - self.began
        now = Iteration(len(self.history) - 1, at.value, np.nan, 0.0, at.y, seconds, self.history[-1], LIKELIHOOD)
        if self.verbose:
            say(f"{now.iteration:5d}  -log L {at.value:14.8g}  {seconds:7.2f} s")
        if self.callback is not None and self.callback(now):
            self.stopped = Status.STOPPED_BY_CALLBACK
        return self.halted()

    def halted(self) -> bool:
        """Check whether the search must stop."""
        if self.stopped is not None:
            return True
        if time.perf_counter() > self.deadline:
            self.stopped = Status.MAX_TIME
        elif self.interrupt.requested:
            self.stopped = Status.INTERRUPTED
        return self.stopped is not None

    def free(self, at: PathEvaluation) -> Mask:
        """Return a mask of the quantities that are not fixed by a bound."""
        held = ((at.y <= self.lower) & (at.gradient > 0.0)) | ((at.y >= self.upper) & (at.gradient < 0.0))
        return ~held

    def curvature(self, likelihood: PathLikelihood, at: PathEvaluation, widths: Array) -> Array:
        """Return the second derivatives by differences of gradients; central ones but at bounds; NaN where none."""
        out, starts = np.empty((at.y.size, at.y.size)), [mode.start for mode in at.modes]
        for j, width in enumerate(widths.tolist()):
            ends: list[tuple[float, Array]] = []
            if self.halted():
                return np.full(out.shape, np.nan)
            for sign in (1.0, -1.0):
                y = at.y.copy()
                y[j] = np.clip(y[j] + sign * width, self.lower[j], self.upper[j])
                there = self.evaluate(likelihood, y, starts) if y[j] != at.y[j] else at
                ends.append((y[j], there.gradient) if np.isfinite(there.value) else (at.y[j], at.gradient))
            apart = ends[0][0] - ends[1][0]
            out[j] = (ends[0][1] - ends[1][1]) / apart if apart else np.nan
        return 0.5 * (out + out.T)

    def convex(self, hessian: Array) -> Array:
        """Return a positive definite matrix near it: with absolute eigenvalues, scaled by its diagonal."""
        hessian = np.where(np.isfinite(hessian), hessian, 0.0)
        unit = np.sqrt(np.maximum(np.abs(np.diag(hessian)), 1e-12))
        values, vectors = np.linalg.eigh(hessian / np.outer(unit, unit))
        values = np.maximum(np.abs(values), 1e-3)
        return (vectors * values) @ vectors.T * np.outer(unit, unit)

    def climb(
        self, likelihood: PathLikelihood, at: PathEvaluation, bend: Array
    ) -> tuple[PathEvaluation, Array, Status]:
        """Search from a point, with a curvature; return where it ended, what became of the curvature, and how."""
        rebuilt = False
        for _ in range(_ITERATIONS):
            if self.stopped is not None:
                return at, bend, self.stopped
            free = self.free(at)
            step = np.zeros(at.y.size)
            step[free] = -np.linalg.solve(bend[np.ix_(free, free)], at.gradient[free])
            promised = -0.5 * float(step @ at.gradient)
            if promised < _FLAT:
                return at, bend, Status.CONVERGED
            there, starts, longest = None, [mode.start for mode in at.modes], np.abs(step[self.log]).max(initial=0.0)
            length = min(1.0, _LONGEST / longest) if longest > 0.0 else 1.0
            for _ in range(_HALVINGS):
                y = np.clip(at.y + length * step, self.lower, self.upper)
                trial = self.evaluate(likelihood, y, starts)
                if trial.value <= at.value + 1e-4 * float(at.gradient @ (y - at.y)):
                    there = trial
                    break
                length *= 0.5 if np.isfinite(trial.value) else 0.25
            if there is None:
                if rebuilt:
                    return at, bend, Status.CONVERGED if promised < _ACCEPTED else Status.STEP_TOO_SMALL
                bend, rebuilt = self.convex(self.curvature(likelihood, at, self.first_widths(at.y))), True
                continue
            s, change = there.y - at.y, there.gradient - at.gradient
            along = bend @ s
            bent, sy = float(s @ along), float(s @ change)
            share = 1.0 if sy >= 0.2 * bent else 0.8 * bent / (bent - sy)  # Powell's damping
            r = share * change + (1.0 - share) * along
            if bent > 0.0:
                bend = bend - np.outer(along, along) / bent + np.outer(r, r) / float(s @ r)
            at, rebuilt = there, False
            self.told(at)
        return at, bend, Status.MAX_ITERATIONS

    def polished(
        self, likelihood: PathLikelihood, at: PathEvaluation, bend: Array
    ) -> tuple[PathEvaluation, Array, Status]:
        """Take steps with the differenced curvature, which is that of the optimum; go on if that is no minimum."""
        hessian, promised = bend, np.inf
        for _ in range(_POLISH):
            free = self.free(at)
            if not free.any():
                return at, hessian, Status.CONVERGED
            widths = _STEP / np.sqrt(np.maximum(np.diag(bend), 1e-300))
            hessian = self.curvature(likelihood, at, np.where(self.log, np.minimum(widths, _WIDEST), widths))
            own = hessian[np.ix_(free, free)]
            if not definite(own):
                # A direction in which nothing is known: flat, so that the likelihood is as good everywhere along it.
                own = self.convex(own)
            step = np.zeros(at.y.size)
            step[free] = -np.linalg.solve(own, at.gradient[free])
            promised = -0.5 * float(step @ at.gradient)
            if promised < _SHARP or self.stopped is not None:
                return at, hessian, self.stopped or Status.CONVERGED
            longest = np.abs(step[self.log]).max(initial=0.0)
            y = np.clip(at.y + (min(1.0, _LONGEST / longest) if longest > 0.0 else 1.0) * step, self.lower, self.upper)
            there = self.evaluate(likelihood, y, [mode.start for mode in at.modes])
            if not there.value < at.value:
                return at, hessian, Status.CONVERGED if promised < _ACCEPTED else Status.STEP_TOO_SMALL
            at, bend = there, self.convex(hessian)
            self.told(at)
        return at, hessian, Status.CONVERGED if promised < _FLAT else Status.ACCEPTABLE

    def covariance(self, at: PathEvaluation, hessian: Array) -> Array:
        """Return the covariance of y, NaN for what a bound holds or is flat, or all of it where there is none."""
        out, known = np.full(hessian.shape, np.nan), self.free(at) & ~self.flat(at, hessian)
        own = np.ix_(known, known)
        if definite(hessian[own]):
            out[own] = np.linalg.inv(hessian[own])
        return out

    def flat(self, at: PathEvaluation, hessian: Array) -> Mask:
        """Return a mask of the free logarithms with negligible curvature, if the Hessian is not positive definite."""
        free = self.free(at)
        if definite(hessian[np.ix_(free, free)]):
            return np.zeros(free.size, dtype=np.bool_)
        return free & self.log & (np.abs(np.diag(hessian)) < _NOTHING)

    def fine(self, before: float, now: float, experiments: int) -> bool:
        """Check whether the stages are fine enough, from the changes of log L in the last two refinements.

        What n experiments leave counts beside standard errors that shrink with sqrt(n).
        """
        ratio = abs(before) / abs(now) if now else np.inf
        if ratio <= _GAIN:
            return abs(now) < _SLOW * np.sqrt(experiments)
        return abs(now) < _STILL * np.sqrt(experiments) * (min(ratio, _BEST_GAIN) - 1.0)

    def bands(self, likelihood: PathLikelihood, at: PathEvaluation) -> PathBands:
        """Build the quadrature that computes the bands of the path."""
        starts = [mode.start for mode in at.modes]

        def evaluate(y: Array) -> PathEvaluation | None:
            self.evaluations += 1
            return None if self.halted() else likelihood.evaluate(y, starts, slopes=False)

        return PathBands(likelihood.chains, evaluate, at, self.log, (self.lower, self.upper))

    def first_widths(self, y: Array) -> Array:
        """Return the step sizes of finite differences used before any curvature is known."""
        return np.where(self.log, 1.0, np.maximum(np.abs(y), 1e-3)) * _FIRST_STEP


def definite(hessian: Array) -> bool:
    """Check whether a matrix is positive definite by more than rounding, independently of the units."""
    if not (hessian.size and np.isfinite(hessian).all() and (np.diag(hessian) > 0.0).all()):
        return False
    unit = np.sqrt(np.diag(hessian))
    return bool(np.linalg.eigvalsh(hessian / np.outer(unit, unit)).min() > _SINGULAR)


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
    began = time.perf_counter()
    posed = problem.posed
    check("fit", noisy_mistakes(posed))
    inner, spreads = marginal(posed)
    given = start.parameters if isinstance(start, PathResult) else dict(start or {})
    labels = [f"sigma({name})" if name else "sigma" for name in inner.groups]
    at_start = {n: float(v) for n, v in given.items() if n in labels}
    theta = inner.theta_from({n: v for n, v in given.items() if n not in labels})
    sizes = [_size(inner, g) for g in range(len(labels))]
    sigma = [at_start.get(n, _GUESS * size) for n, size in zip(labels, sizes, strict=True)]
    least = np.array([1e-6 * size for size in sizes])
    limits = np.array(inner.group_bounds, dtype=float).reshape(-1, 2) if inner.group_bounds else None
    if limits is not None:
        least = np.maximum(least, limits[:, 0])
    most = np.full(len(labels), np.inf) if limits is None else limits[:, 1]
    names = (*inner.names, *labels)
    with np.errstate(divide="ignore"):
        lower = np.concatenate([inner.bounds[0], np.log(least)])
        upper = np.concatenate([inner.bounds[1], np.log(most)])
    log = np.concatenate([inner.log, np.ones(len(labels), dtype=np.bool_)])
    y = np.clip(np.concatenate([theta, np.log(np.array(sigma, dtype=float))]), lower, upper)

    with Interrupt() as interrupt, np.errstate(all="ignore"):
        search = _Climb(lower, upper, log, posed.n_data, began + max_time, callback, interrupt, verbose == 2, began)
        likelihood = PathLikelihood(inner, spreads, [_gap(c.times, c.start) for c in inner.conditions])
        found, likelihood, refined = _begun(search, likelihood, y)
        status, hessian = Status.START_FAILED, np.full((y.size, y.size), np.nan)
        if found.modes:
            search.told(found)
            bend = search.convex(search.curvature(likelihood, found, search.first_widths(found.y)))
            for _ in range(_LEVELS):
                found, bend, status = search.climb(likelihood, found, bend)
                if not status.success:
                    break
                finer = likelihood.divided(2.0)
                there = search.evaluate(finer, found.y, finer.starts_from(likelihood, found))
                before, refined = refined, there.value - found.value
                if not np.isfinite(refined):
                    break
                found, likelihood = there, finer
                if search.fine(before, refined, len(likelihood.chains)):
                    break
            if status.success:
                found, hessian, status = search.polished(likelihood, found, bend)
        variances = None
        if status.success:
            variances = search.bands(likelihood, found).variances(search.covariance(found, hessian))
            status = status if variances else search.stopped or status
    where = found.failure and f" No most probable path was found in '{found.failure}' from there."
    parts = [status.sentence + (where if not found.modes else ""),
             *_remarks(search, found, hessian, status, refined, likelihood)]  # fmt: skip
    if not found.modes:
        parts.append("Try another starting point, narrower initial-state priors, or a larger initial sigma.")
    return _result(problem, likelihood, found, hessian, search, variances, names=names, status=status, refined=refined,
                   message=" ".join(parts), began=began, confidence_level=confidence_level)  # fmt: skip


def _begun(search: _Climb, likelihood: PathLikelihood, y: Array) -> tuple[PathEvaluation, PathLikelihood, float]:
    """Refine the stages at the start until they are good enough to estimate anything."""
    found = search.evaluate(likelihood, y, None)
    refined = np.nan
    for _ in range(_LEVELS):
        if search.halted():
            break
        finer = likelihood.divided(2.0)
        starts = finer.starts_from(likelihood, found) if found.modes else None
        there = search.evaluate(finer, y, starts)
        refined = abs(there.value - found.value)
        if refined < _ROUGH:
            break
        found, likelihood = there, finer
    return found, likelihood, refined


def _remarks(
    search: _Climb, at: PathEvaluation, hessian: Array, status: Status, refined: float, likelihood: PathLikelihood
) -> list[str]:
    """List the remarks for the user about a successful search."""
    found: list[str] = []
    if not at.modes or not status.success:
        return found
    known = search.free(at) & ~search.flat(at, hessian)
    if known.any() and not definite(hessian[np.ix_(known, known)]):
        found.append("The likelihood is flat in some direction, so standard errors are not available. Fix a quantity.")
    if not abs(refined) < _SLOW * np.sqrt(len(likelihood.chains)):
        found.append("The stages were still too long when refinement ended; use closer times or a shorter horizon.")
    if not all(each.chain.quadratic for each in likelihood.chains):
        found.append("log L uses the Laplace approximation over paths, which was not tested; call result.laplace_check().")
    return found


def _result(
    problem: Posable, likelihood: PathLikelihood, at: PathEvaluation, hessian: Array, search: _Climb,
    variances: list[Array] | None, *,
    names: tuple[str, ...], status: Status, refined: float, message: str, began: float, confidence_level: float,
) -> PathResult:  # fmt: skip
    posed, n = likelihood.problem, len(names)
    covariance, held = np.full((n, n), np.nan), dict[str, str]()
    free = search.free(at) if at.modes else np.zeros(n, dtype=np.bool_)
    if at.modes:
        held = {names[j]: "lower" if at.y[j] <= search.lower[j] else "upper" for j in np.flatnonzero(~free)}
    if status.success:
        slope = np.where(search.log, np.exp(np.where(search.log, at.y, 0.0)), 1.0)
        covariance = search.covariance(at, hessian) * np.outer(slope, slope)
        np.fill_diagonal(covariance, np.where(search.flat(at, hessian), np.inf, np.diag(covariance)))
    tracks, innovations = dict[str, PathTrack](), dict[str, Innovations]()
    for i, (each, mode) in enumerate(zip(likelihood.chains, at.modes, strict=False)):
        condition, values = each.chain.condition, each.chain.condition.points.values
        times, path, deviations = each.track(mode)
        deviations = np.sqrt(variances[i]) if variances else deviations
        tracks[condition.name] = PathTrack(posed.model.output_names, times, path, deviations)
        times = each.chain.row_times[:, 0]
        innovations[condition.name] = Innovations(posed.outputs, times, values, *each.innovations(mode))
    hidden = {*posed.spreads}
    tracks = {n: _without(track, hidden) for n, track in tracks.items()}
    return PathResult(
        status=status,
        message=message,
        names=names,
        y=at.y,
        log=search.log,
        covariance=covariance,
        log_likelihood=at.prior - at.value if at.modes else np.nan,
        neg2logprior=2.0 * at.prior if posed.every_prior else 0.0,
        refined=float(refined),
        stages=likelihood.stages,
        longest=likelihood.longest,
        tracks=tracks,
        innovations=innovations,
        active=held,
        units={name: posed.unit(name) for name in names if posed.unit(name)},
        n_data=posed.n_data,
        iterations=max(len(search.history) - 1, 0),
        evaluations=search.evaluations,
        time=time.perf_counter() - began,
        history=tuple(search.history),
        confidence_level=confidence_level,
        question=question(problem),
        problem=problem,
    )


def _without(track: PathTrack, hidden: set[str]) -> PathTrack:
    keep = [j for j, name in enumerate(track.names) if name not in hidden]
    names = tuple(track.names[j] for j in keep)
    return PathTrack(names, track.times, track.values[:, keep], track.deviations[:, keep])


def _gap(times: Array, start: float) -> float:
    """Return the longest time between data."""
    marks = np.unique(np.append(times, start))
    return float(np.diff(marks).max(initial=0.0)) or 1.0


def _size(problem: Posed, group: int) -> float:
    """Return the size of the data of an unknown sigma, in units of what they are weighted by."""
    sizes: list[Array] = []
    for c in problem.conditions:
        for j, of in enumerate(c.observed):
            if of is not None and of.group == group:
                mask = c.points.mask[:, j]
                sizes.append(np.abs(c.points.values[mask, j] / c.points.sigma[mask, j]))
    every = np.concatenate([*sizes, np.empty(0)])
    return float(np.sqrt(np.mean(every**2))) if every.size and every.any() else 1.0
