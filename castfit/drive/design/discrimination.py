"""Designs that discriminate between models: T-optimality (Atkinson and Fedorov 1975).

The fitted model predicts y1; the rival is fitted to these predictions, and the design maximises its misfit:

    max_w min_theta2  T(w, theta2),    T = c(theta2) + sum_i w_i d_i(theta2),    d_i = ((y1_i - y2_i(theta2)) / s_i)^2

with c from previous measurements; y are on the scale of the noise, and d is weighted by the noise's information on the
mean (`_compute_misfit_roots`).  If spreads differ, d_i is twice the Kullback-Leibler divergence (Lopez-Fidalgo, Tommasi
and Trandafir 2007).  Each fit of the rival to noise-free y1 gives a plane above the minimum:

    T(v) <= c_k + d_k'v  for all designs v

A linear program over all planes bounds every design from above.  The next fit is at its solution, or half way between
it and the best design so far, which damps the oscillations of plain cutting planes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from castfit._support.arguments import shorten_repr
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.status import InputError, raise_if_mistakes
from castfit.densities.noise.counts import NegativeBinomial, Poisson
from castfit.densities.noise.density import Noise
from castfit.densities.noise.gaussian import LogNormal
from castfit.drive.design.criteria import ECriterion
from castfit.drive.design.cutting_planes import maximize_below_planes
from castfit.drive.design.exact import optimize_counts
from castfit.drive.design.interior_point import CandidatePool, DesignGoal, RelaxedDesign
from castfit.drive.design.knowledge import (
    DesignInformation,
    build_design_information,
    censoring_share,
    information_factors,
    information_rows,
    transform_slope,
)
from castfit.drive.design.purchases import CandidateSelection
from castfit.drive.design.simple_schedules import build_simple_designs
from castfit.problem.problem import Problem
from castfit.result.result import Result
from castfit.simulate.output_sensitivities import OutputSensitivities

_MAX_ROUNDS = 60  # rounds of a linear program and a fit of the rivals
_GAP_RTOL = 1e-5  # gap, relative to the bound, that ends the rounds
_FIRST_FIT_STARTS = 4  # random starts of a rival's first fit; later fits have one, and the last optimum
_FAILED_RESIDUAL = 1e6  # residual where the rival cannot be integrated
_START_SCATTER = 0.7  # standard deviation of random starts, in log scale or relative to the guess
_MAX_EXACT_ROUNDS = 12  # rounds of an exchange and a fit of the rivals
_MIN_USED_WEIGHT = 1e-9  # number of measurements up to which a purchase counts as unused
_MIN_LOG_ARGUMENT = 1e-300  # lower limit of a rival's prediction before its logarithm is taken


@public("castfit")
@dataclass(frozen=True, eq=False)
class Discrimination:
    """Rival models that a design discriminates from the model; create it with `discriminate`.

    Examples
    --------
    >>> import castfit as cf
    >>> len(cf.discriminate(cf.problems.load("bellman").problem).rivals)
    1
    """

    rivals: tuple[Any, ...]


def discriminate(*rivals: Result | Problem) -> Discrimination:
    """Create a criterion: discriminate the model from rivals that are fitted to its predictions.

    Parameters
    ----------
    *rivals : Result or Problem
        Models with outputs of the same names.  If both the model and the rival are results, the fit of the rival
        includes the measured values.  With several rivals the nearest one counts.

    Raises
    ------
    InputError
        If an argument is neither.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> pilot = cf.Experiment({"x": [0.7, 0.4]}, [1, 2], sigma=0.05)
    >>> first, second = (
    ...     cf.Problem(cf.Model({x: -k * x**n}, parameters=[k], initial={x: 1.0}), pilot, parameters={"k": 0.5})
    ...     for n in (1, 2)
    ... )
    >>> design = cf.design(first, cf.Candidate([0.5, 1, 2, 4, 8]), budget=3, criterion=cf.discriminate(second))
    >>> design.table["time"], design.table["count"]
    (array([0.5, 8. ]), array([1, 2]))
    """
    arguments: tuple[Any, ...] = rivals
    mistakes = [shorten_repr(r) for r in arguments if not isinstance(r, (Result, Problem))]
    mistakes = [f"a competing model is {value_text}; expected a Result or a Problem" for value_text in mistakes]
    raise_if_mistakes(
        "discriminate",
        mistakes or ([] if rivals else ["no competing model was passed; expected a Result or a Problem"]),
    )
    return Discrimination(rivals)


@dataclass(frozen=True, eq=False)
class DiscriminatingDesign:
    """A design against rivals: counts, T there, simple designs with theirs, the relaxed design, and fits made."""

    counts: Array
    value: float
    relaxed: RelaxedDesign
    goal: DesignGoal
    simple: dict[str, tuple[Array, float]]
    fits: int


@dataclass(eq=False)
class _RivalModel:
    """A rival of the fitted model: its misfit, and the best fits so far."""

    information: DesignInformation
    selection: CandidateSelection
    rival: DesignInformation
    has_common_data: bool
    has_variable_sigma: bool
    rng: np.random.Generator
    best_fits: list[Array] = field(default_factory=list[Array])
    fits: int = 0

    @cached_property
    def _predictions(self) -> dict[str, OutputSensitivities]:
        """Predictions of the known model at the measured times, by experiment."""
        information = self.information
        return {
            c.name: information.predict(
                information.compiled_problem,
                c,
                np.unique(c.points.times),
                information.estimate,
                information.compiled_problem.outputs,
            )
            for c in (information.compiled_problem.conditions if self.has_common_data else ())
        }

    def compute_roots(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        """Return roots of c, (m,), and of d, (N, values), and their derivatives by theta (not of variable spreads)."""
        rival, information, n = replace(self.rival, estimate=theta), self.information, theta.size
        data_roots, data_slopes = [np.empty(0)], [np.empty((0, n))]
        for condition in information.compiled_problem.conditions if self.has_common_data else ():
            rival_condition = next(c for c in rival.compiled_problem.conditions if c.name == condition.name)
            times, time_indices = np.unique(condition.points.times, return_inverse=True)
            prediction, points = self._predictions[condition.name], condition.points
            rival_prediction = rival.predict(
                rival.compiled_problem, rival_condition, times, theta, information.compiled_problem.outputs
            )
            for j, observable in enumerate(condition.observed):
                rows = np.flatnonzero(points.mask[:, j])
                if observable is None or not rows.size:
                    continue
                arguments = (
                    information.compiled_problem,
                    condition,
                    j,
                    prediction,
                    time_indices[rows],
                    points.sigma[rows, j],
                    information.sigmas,
                )
                mu, deviation, sigma, _ = information_rows(*arguments)
                root, slope = _compute_misfit_roots(
                    observable.noise,
                    mu,
                    deviation,
                    sigma,
                    rival_prediction.values[time_indices[rows], j],
                    rival_prediction.slopes[time_indices[rows], j],
                )
                data_roots.append(root)
                data_slopes.append(slope)
        root_pairs = [self._compute_candidate_roots(k, rival) for k in range(len(information.candidates))]
        free_pairs = [
            pair for pair, candidate in zip(root_pairs, information.candidates, strict=True) if not candidate.fixed
        ]
        for (root, slope), candidate in zip(root_pairs, information.candidates, strict=True):
            if candidate.fixed:  # it is measured in any case
                data_roots.append(root.ravel())
                data_slopes.append(np.concatenate(slope))
        roots, derivatives = (np.concatenate(part) for part in zip(*free_pairs, strict=True))
        return np.concatenate(data_roots), roots, np.concatenate(data_slopes), derivatives

    def _compute_candidate_roots(self, k: int, rival: DesignInformation) -> tuple[Array, Array]:
        """Return per purchase of candidate k the roots of d, (n, values), and their derivatives by theta."""
        values = self.selection.values[0][k]
        rival_values = rival.values(k, values.times, outputs=values.outputs)
        by_theta = (
            rival_values.rows[:, :, 0][..., rival.problem_positions]
            / rival.units[rival.problem_positions]
            * rival_values.s[..., None]
        )
        parts = [
            _compute_misfit_roots(
                observable.noise,
                values.mu[:, j],
                values.s[:, j],
                values.sigma[:, j],
                rival_values.mu[:, j],
                by_theta[:, j],
            )
            for j, observable in enumerate(self.information.observable(k, output) for output in values.outputs)
            if observable is not None
        ]
        root, slope = (np.stack(part, axis=1) for part in zip(*parts, strict=True))
        if self.has_variable_sigma:
            ratio = values.sigma / rival_values.sigma
            root = np.sign(root) * np.sqrt(np.maximum((root * ratio) ** 2 + ratio**2 - 1.0 - 2.0 * np.log(ratio), 0.0))
        shape = {"output": (-1, 1), "time": root.shape, "experiment": (1, -1)}[self.information.candidates[k].cost_unit]
        if shape[0] == -1:
            root, slope = root.T, np.swapaxes(slope, 0, 1)
        root, slope = root.reshape(shape), slope.reshape(*root.reshape(shape).shape, slope.shape[-1])
        padding = (0, self._width - root.shape[1])
        return np.pad(root, ((0, 0), padding)), np.pad(slope, ((0, 0), padding, (0, 0)))

    @property
    def _width(self) -> int:
        pairs = zip(self.information.candidates, self.selection.values[0], strict=True)
        return max({"output": 1, "time": v.mu.shape[1], "experiment": v.mu.size}[c.cost_unit] for c, v in pairs)

    def fit_nearest(self, w: Array) -> tuple[float, float, Array]:
        """Return T at w by the nearest fit found, and its plane: constant and d (N,)."""
        is_used = w > _MIN_USED_WEIGHT
        weight_roots, (lower, upper) = np.sqrt(w[is_used])[:, None], self.rival.compiled_problem.bounds
        cache: dict[bytes, tuple[Array, Array]] = {}

        def evaluate_residuals(theta: Array) -> tuple[Array, Array]:
            if theta.tobytes() not in cache:
                cache.clear()
                try:
                    data_roots, candidate_roots, data_slopes, slopes = self.compute_roots(theta)
                    rows = np.concatenate(weight_roots[..., None] * slopes[is_used])
                    evaluation = (
                        np.concatenate([data_roots, (weight_roots * candidate_roots[is_used]).ravel()]),
                        np.concatenate([data_slopes, rows]),
                    )
                except InputError:  # the rival cannot be integrated
                    evaluation = np.full(size, _FAILED_RESIDUAL), np.zeros((size, theta.size))
                cache[theta.tobytes()] = evaluation
            return cache[theta.tobytes()]

        guess, size = self.rival.estimate, 1
        size = evaluate_residuals(guess)[0].size
        width = _START_SCATTER * np.where(self.rival.compiled_problem.log, 1.0, np.abs(guess) + 0.1)
        random_starts: list[Array] = [
            guess + width * self.rng.standard_normal(guess.size)
            for _ in range(1 if self.best_fits else _FIRST_FIT_STARTS)
        ]
        with np.errstate(invalid="ignore"):
            low, high = lower + 1e-9 * (1.0 + np.abs(lower)), upper - 1e-9 * (1.0 + np.abs(upper))
        low, high = np.where(np.isfinite(low), low, lower), np.where(np.isfinite(high), high, upper)
        best_fit: Any = None
        starts: list[Array] = [*(self.best_fits[-1:] or [guess]), *random_starts]
        for start in starts if guess.size else starts[:1]:
            self.fits += 1
            fit: Any = least_squares(
                lambda theta: evaluate_residuals(theta)[0],
                np.clip(start, low, high),
                "2-point" if self.has_variable_sigma else lambda theta: evaluate_residuals(theta)[1],
                bounds=(lower, upper), x_scale="jac", xtol=1e-10, ftol=1e-10, gtol=1e-10,
            )  # fmt: skip
            best_fit = fit if best_fit is None or fit.cost < best_fit.cost else best_fit
        theta = np.asarray(best_fit.x)
        self.best_fits.append(theta)
        data_roots, candidate_roots, _, _ = self.compute_roots(theta)
        return 2.0 * float(best_fit.cost), float(data_roots @ data_roots), np.sum(candidate_roots**2, axis=1)


def optimize_discrimination(
    information: DesignInformation,
    selection: CandidateSelection,
    criterion: Discrimination,
    *,
    exact: bool,
    rng: np.random.Generator,
    stop: Callable[[], object],
) -> DiscriminatingDesign:
    """Choose the design that maximises the misfit of the nearest rival."""
    rivals = [_build_rival(information, selection, rival, rng) for rival in criterion.rivals]
    pool = selection.pool
    planes: list[tuple[float, Array]] = []

    def find_nearest(w: Array) -> float:
        fits = [rival.fit_nearest(w) for rival in rivals]
        planes.extend((constant, d) for _, constant, d in fits)
        return min(value for value, _, _ in fits)

    even_count = np.min(pool.b / pool.A.sum(axis=1), initial=np.inf)  # the budget, evenly spent
    w = best = np.minimum(even_count if np.isfinite(even_count) else 1.0, pool.u)
    value, solution = -np.inf, RelaxedDesign(w, np.inf, -np.inf, np.zeros(w.size), np.zeros(len(pool.b)), 0)
    for k in range(_MAX_ROUNDS):
        current_value = find_nearest(w)
        value, best = (current_value, w) if current_value > value else (value, best)
        d = np.array([d for _, d in planes])
        optimum = maximize_below_planes(np.array([c for c, _ in planes]), d, pool)
        if optimum is None:
            break
        solution = RelaxedDesign(best, -value, -optimum.value, optimum.q @ d, optimum.y, len(planes))
        if solution.gap <= _GAP_RTOL * abs(optimum.value) or stop():
            break
        w = optimum.w if k % 2 == 0 else 0.5 * (optimum.w + best)
    counts = best
    if exact:
        counts, value = _optimize_exact_counts(pool, selection, best, planes, find_nearest, rng, stop)
    simple = build_simple_designs(information, selection, counts) if exact else {}
    simple_values = {name: (simple_counts, find_nearest(simple_counts)) for name, simple_counts in simple.items()}
    return DiscriminatingDesign(
        counts, value, solution, DesignGoal(ECriterion(1)), simple_values, sum(r.fits for r in rivals)
    )


def _optimize_exact_counts(
    pool: CandidatePool,
    selection: CandidateSelection,
    best: Array,
    planes: list[tuple[float, Array]],
    find_nearest: Any,
    rng: Any,
    stop: Any,
) -> tuple[Array, float]:
    """Return counts by exchange below all planes, until the rival's misfit there agrees with the planes.

    The minimum of  c_k + d_k'n  is the least eigenvalue of a diagonal matrix: E-optimality.
    """
    counts, value = np.zeros_like(best), -np.inf
    for _ in range(_MAX_EXACT_ROUNDS):
        d = np.array([d for _, d in planes])
        J = np.zeros((1, best.size, len(d), len(d)))
        J[0, :, range(len(d)), range(len(d))] = np.sqrt(d)
        plane_pool = replace(pool, J=J, M0=np.diag([c for c, _ in planes])[None])
        trial = optimize_counts(
            DesignGoal(ECriterion(len(d))), plane_pool, selection.positions, best, rng=rng, starts=1, stop=stop
        )
        predicted_value = float(-DesignGoal(ECriterion(len(d))).values(plane_pool.information(trial)))
        current_value = find_nearest(trial)
        counts, value = (trial, current_value) if current_value > value else (counts, value)
        if predicted_value - value <= 1e-3 * abs(predicted_value) or stop():
            break
    return counts, value


def _compute_misfit_roots(
    noise: Noise, mu: Array, deviation: Array, sigma: Array, rival_mu: Array, slope: Array
) -> tuple[Array, Array]:
    """Return roots of d (n,), and derivatives (n, n_theta), of predictions `rival_mu` with derivatives `slope`.

    Errors are on the scale of the noise, weighted by the information on the mean that limits of detection leave.
    Errors of counts are relative to their standard deviation.
    """
    if isinstance(noise, (Poisson, NegativeBinomial)):
        return (mu - rival_mu) / deviation, -slope / deviation[:, None]
    rival_mu = np.maximum(rival_mu, _MIN_LOG_ARGUMENT) if isinstance(noise, LogNormal) else rival_mu
    uncensored = replace(noise, below=None) if isinstance(noise, LogNormal) else noise  # predictions have no limit
    factor = np.sqrt(information_factors(noise)[0] * censoring_share(noise, mu, sigma))
    return factor * uncensored.error(mu, sigma, rival_mu), -slope * (factor * transform_slope(noise, rival_mu) / sigma)[
        :, None
    ]


def _build_rival(
    information: DesignInformation, selection: CandidateSelection, source: Any, rng: np.random.Generator
) -> _RivalModel:
    """Build the rival with the same candidates; sigma is the model's unless sigma depends on parameters."""
    from castfit.drive.design.candidate import with_fields

    mistakes: list[str] = []
    problem: Any = source.problem if isinstance(source, Result) else source
    outputs = {o for c in information.candidates for o in c.outputs}
    missing_outputs = [
        o for o in sorted(outputs) if problem is not None and o not in problem.original_model.output_names
    ]
    raise_if_mistakes(
        "discriminate",
        [f"the competing model has no output '{o}'; add an output with this name" for o in missing_outputs],
    )
    pairs = zip(information.candidates, information.labels, strict=True)
    rival_candidates = [with_fields(c, name=label, sigma={"": 1.0}, cost=1.0) for c, label in pairs]
    rival = build_design_information(source, rival_candidates, mistakes, samples=1, where="discriminate")
    names = {c.name for c in rival.compiled_problem.conditions}
    measured = information.is_fitted and rival.is_fitted
    if measured and not {c.name for c in information.compiled_problem.conditions} <= names:
        raise_if_mistakes(
            "discriminate", ["the competing model was fitted to other experiments; fit both models to the same data"]
        )
    spreads = any(_has_parameter_dependent_sigma(information, k) for k in range(len(rival_candidates)))
    if spreads:
        spread_candidates = [with_fields(c, sigma=None) for c in rival_candidates]
        rival = build_design_information(source, spread_candidates, mistakes, samples=1, where="discriminate")
    return _RivalModel(information, selection, replace(rival, response_cache={}), measured, spreads, rng)


def _has_parameter_dependent_sigma(information: DesignInformation, k: int) -> bool:
    """Check whether the spread of an output of candidate k depends on the quantities."""
    candidate = information.candidates[k]
    observables = (information.observable(k, n) for n in candidate.outputs if candidate.sigma_of(n) is None)
    return any(observable is not None and observable.is_spread_computed for observable in observables)
