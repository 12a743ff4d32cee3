"""Shared data of the searches of one problem, built once per process: low-accuracy problem, horizons, draw ranges.

Single shooting at search accuracy compares starts and follows trajectories; shorter horizons use a lower accuracy.
Such points are not reported: `castfit.fit` fits promising ones again at full accuracy, and verifies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from castfit._support.arrays import Array, Mask
from castfit._support.casadi_functions import RecentObjectCache
from castfit._support.reprs import join_limited
from castfit.fit.start.gaussian_surrogate import gaussian_surrogate
from castfit.integrate import IntegratorOptions
from castfit.integrate.esdirk_binding import missing_integrator_reason
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.linear_scales import eliminable_blocks
from castfit.solve.subproblem import units_between, units_of_search
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting
from castfit.transcribe.trajectory import every_state_measured
from castfit.transcribe.transcribed_problem import parameter_scale

_SEARCH_TOLERANCES = 1e-6, 1e-8
_ACCURATE_TOLERANCES = 1e-7, 1e-9
_HORIZON_TOLERANCES = 1e-4, 1e-6  # over horizons; whole descents so rough took twice the time a hit on Crauste's model
_MAX_EXPERIMENT_STEPS = 5000  # Limit on the integrator steps of one experiment: at least ten times the usual number.
# Smallest limit on the steps between two outputs; Borghans' optima take 630 steps over 111 intervals in all.
_MIN_INTERVAL_STEPS = 200
_MAGNITUDE_DRAWS = 8  # Number of random points, besides the guess, for the magnitudes of the states.
_MAX_CACHED_PROBLEMS = 8  # Limit on the cached search problems.
_UNBOUNDED_RADIUS_UNITS = 3.0  # Radius about the guess, in search units, for quantities without bounds.
LOG_START_DECADES = 3.0  # Decades about the guess from which starts on a logarithmic scale are drawn.
_MAX_LISTING_CHARACTERS = 200  # Limit on the characters of a list in a message.
_LINEAR_START_FACTOR = 10.0  # Multiple of the guess, to each side, from which starts on a linear scale are drawn.


@dataclass
class SearchProblem:
    """Compiled problem in the forms that searches use.

    original_problem : CompiledProblem
        The problem of the user.
    searched : CompiledProblem
        The same problem with normal errors of unknown, eliminated sigmas in place of other densities.
    staged : ShootingProblem
        Single shooting of `searched` at search accuracy.
    """

    original_problem: CompiledProblem
    searched: CompiledProblem
    staged: ShootingProblem
    transcription: SingleShooting
    _shorter: dict[float, ShootingProblem] = field(default_factory=dict[float, ShootingProblem])
    _units: Sequence[Array] | None = None
    _accurate: ShootingProblem | None = None
    _finer: SearchProblem | None = None

    @property
    def times(self) -> Array:
        """Distinct measured times after the start, (n_times,)."""
        later_times = [c.points.times[c.points.times > c.start] for c in self.searched.conditions]
        return np.unique(np.concatenate([np.empty(0), *later_times]))

    @property
    def positions(self) -> list[int]:
        """Positions of the searched quantities among all quantities."""
        return [self.original_problem.names.index(name) for name in self.searched.names]

    def transcribe_until(self, end: float) -> ShootingProblem:
        """Return the problem up to a measured time, at the lower accuracy of horizons."""
        if end not in self._shorter:
            truncated_problem = self.searched.with_horizon(end)
            transcription = SingleShooting(self._options(_HORIZON_TOLERANCES))
            units: list[Array] | None = None
            if self._units is not None:  # experiments that begin later are left out
                units_by_name = dict(zip((c.name for c in self.searched.conditions), self._units, strict=True))
                units = [units_by_name[c.name] for c in truncated_problem.conditions]
            if units is None or self.staged.eliminated.size:
                staged = transcription.transcribe(truncated_problem, truncated_problem.guess)
                self._shorter[end] = staged if units is None else staged.with_units(units)
            else:
                self._shorter[end] = transcription.transcribe(truncated_problem, truncated_problem.guess, units)
        return self._shorter[end]

    @property
    def accurate_problem(self) -> ShootingProblem:
        """Problem at an accuracy at which long valleys can be followed."""
        if self._accurate is None:
            self._accurate = self.staged.integrated_by(self._options(_ACCURATE_TOLERANCES))
        return self._accurate

    def _options(self, tolerances: tuple[float, float]) -> IntegratorOptions:
        relative, absolute = tolerances
        return replace(self.transcription.integrator, relative_tolerance=relative, absolute_tolerance=absolute)

    @property
    def full_accuracy(self) -> SearchProblem:
        """Search problem at full accuracy, for problems whose trajectories differ in shape at search accuracy."""
        if self._finer is None:
            staged = self.staged.integrated_by(self.exact_transcription.integrator)
            self._finer = replace(self, staged=staged, _shorter={}, _accurate=staged)
            self._finer._finer = self._finer
        return self._finer

    @property
    def exact_transcription(self) -> SingleShooting:
        """Single shooting at full accuracy, by the integration method of the search."""
        return SingleShooting(IntegratorOptions(search_options().method))

    def cost(self, theta: Array) -> float:
        """Return the cost at theta (n,), infinite if the model cannot be integrated."""
        return evaluate_cost(self.staged, theta)

    def exact_cost(self, theta: Array) -> float:
        """Return the cost at theta (n,) at full accuracy, infinite if the model cannot be integrated."""
        return self.full_accuracy.cost(theta)


def evaluate_cost(staged: ShootingProblem, theta: Array) -> float:
    """Return the cost of a problem whose only variables are theta, infinite if it cannot be integrated."""
    v = np.clip(theta, staged.lower, staged.upper)
    if staged.dense_evaluator is not None:
        cost = staged.dense_evaluator.cost(v)
    else:
        evaluation = staged.evaluate(v)
        cost = evaluation.cost if evaluation.ok else None
    return cost if cost is not None and np.isfinite(cost) else np.inf


_SCENES: RecentObjectCache[CompiledProblem, SearchProblem] = RecentObjectCache(_MAX_CACHED_PROBLEMS)


def search_problem_of(compiled_problem: CompiledProblem) -> SearchProblem:
    """Return the search problem of a compiled problem, built once."""
    return _SCENES.get(compiled_problem, _scene)


def search_options(outputs: int = 1) -> IntegratorOptions:
    """Return the integrator options of searches: the compiled method if it is available.

    Far from an optimum a few points in a hundred take a hundred times as many steps as the others, and would take most
    of the time: the number of steps between two of the `outputs` is therefore limited.
    """
    relative, absolute = _SEARCH_TOLERANCES
    method = (
        "auto" if missing_integrator_reason() else "esdirk"
    )  # explicit steps: Crauste's model takes 32 to 60 s instead of 14
    return IntegratorOptions(
        method=method, relative_tolerance=relative, absolute_tolerance=absolute, watch_sensitivities=False,
        max_steps=max(_MAX_EXPERIMENT_STEPS // max(outputs, 1), _MIN_INTERVAL_STEPS),
    )  # fmt: skip


def search_frame(compiled_problem: CompiledProblem) -> tuple[CompiledProblem, Array, Array, Array]:
    """Return the searched problem, its bounds, and the units of the search at its guess, (n,) each.

    If nothing is eliminated, no search problem is built: searches in other processes do not need one here.
    """
    searched_problem = _searched(compiled_problem)
    guess = searched_problem.guess
    if eliminable_blocks(searched_problem):
        scene = search_problem_of(compiled_problem)
        searched_problem, staged = scene.searched, scene.staged
        n = guess.size
        return searched_problem, staged.lower[:n].copy(), staged.upper[:n].copy(), units_of_search(staged, guess)[:n]
    lower, upper = (end.copy() for end in searched_problem.bounds)
    magnitude = np.maximum(np.abs(guess), parameter_scale(searched_problem, guess))
    return searched_problem, lower, upper, units_between(lower, upper, magnitude, guess == 0.0, searched_problem.log)


def _searched(compiled_problem: CompiledProblem) -> CompiledProblem:
    return compiled_problem if compiled_problem.least_squares else gaussian_surrogate(compiled_problem)


def _scene(compiled_problem: CompiledProblem) -> SearchProblem:
    searched_problem = _searched(compiled_problem)
    n_times = min((np.unique(c.points.times).size for c in searched_problem.conditions), default=1)
    transcription = SingleShooting(search_options(n_times))
    staged = transcription.transcribe(searched_problem, searched_problem.guess)
    if every_state_measured(searched_problem):
        return SearchProblem(compiled_problem, searched_problem, staged, transcription)
    units = _typical(searched_problem, staged, transcription)
    return SearchProblem(compiled_problem, searched_problem, staged.with_units(units), transcription, _units=units)


def finite_bounds(lower: Array, upper: Array, guess: Array, reach: Array) -> tuple[Array, Array]:
    """Return finite bounds (n,): at the distance `reach` (n,) from the guess if a bound is missing."""
    lower = np.where(np.isfinite(lower), lower, np.minimum(guess - reach, upper))
    return lower, np.where(np.isfinite(upper), upper, np.maximum(guess + reach, lower))


def sampling_radius(guess: Array, log: Mask) -> Array:
    """Return the range about the guess (n,), in search scale, from which starts are drawn if bounds are missing."""
    return np.where(log, LOG_START_DECADES * np.log(10.0), _LINEAR_START_FACTOR * np.abs(guess))


def drawn_about(ranges: Mapping[str, tuple[float, float]]) -> str:
    """Describe the ranges of starts, in natural values, of quantities without a bound; empty if there are none."""
    listing = join_limited(
        (f"{name} in [{low:.3g}, {high:.3g}]" for name, (low, high) in ranges.items()), _MAX_LISTING_CHARACTERS
    )
    return f"Starting points were sampled around the guess where a bound is missing: {listing}." if ranges else ""


def _typical(searched_problem: CompiledProblem, staged: ShootingProblem, transcription: SingleShooting) -> list[Array]:
    """Compute typical magnitudes of states, per condition: upper quartiles over the guess and several draws.

    If parameters are known only to orders of magnitude, a state may be 1e-47 at one point and 10 at another; in units
    of the first, nothing can be integrated at the second.
    """
    rng = np.random.default_rng(0)
    half_width = _UNBOUNDED_RADIUS_UNITS * units_of_search(staged, searched_problem.guess)
    lower, upper = finite_bounds(staged.lower, staged.upper, searched_problem.guess, half_width)
    units = [staged.units]
    needs_transcription = staged.eliminated.size or any(c.schedule.instants for c in searched_problem.conditions)
    for _ in range(_MAGNITUDE_DRAWS):
        theta = lower + (upper - lower) * rng.random(lower.size)
        units.append(
            transcription.transcribe(searched_problem, theta).units if needs_transcription else staged.units_at(theta)
        )
    return [np.exp(np.quantile(np.log(np.array(magnitudes)), 0.75, axis=0)) for magnitudes in zip(*units, strict=True)]
