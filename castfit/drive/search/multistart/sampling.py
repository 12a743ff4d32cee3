"""Sampling of starts: points of the unit cube mapped into limits or through distributions, or the user's function.

Every start has a random stream of its own, spawned from `rng`, so that its numbers depend neither on the other starts
nor on where and when it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from castfit._support.arguments import (
    is_count,
    is_one_of,
    read_mapping,
    read_reals,
    read_sequence,
    rng_mistakes,
    shorten_repr,
)
from castfit._support.arrays import Array
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit._support.time_limit import is_interrupted
from castfit.densities.priors.distributions import truncated_quantile
from castfit.fit.start.gaussian_surrogate import gaussian_surrogate
from castfit.fit.start.local_search import lowest_draw
from castfit.fit.start.search_problem import drawn_about, finite_bounds, sampling_radius, search_problem_of
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.linear_scales import eliminated_entries
from castfit.problem.problem import Posable
from castfit.problem.quantities import Quantity

SAMPLINGS = ("sobol", "latin_hypercube", "uniform", "log_uniform")

_MAX_STARTS = 10**6  # largest number of starts, since all of them are drawn before the first fit
_STARTS_PER_CLOCK_CHECK = 64  # number of starts drawn between two checks of the time limit
# Distance of probabilities from 0 and 1, where the quantiles of a distribution may be infinite.
_MIN_PROBABILITY = 2.0**-40


@dataclass(frozen=True)
class DrawnStarts:
    """The starts.

    initial_starts : for each start its first candidate: a natural value for every quantity
    redraw : ``redraw(i)`` draws the next candidate of start i; None if the user passed the starts
    seeds : for each start a number from which what is random in its fit may be drawn
    n_requested : number of starts that the user requested; more than there are if the time limit was reached
    note : where they were drawn for want of bounds
    """

    initial_starts: tuple[dict[str, float], ...]
    redraw: Callable[[int], dict[str, float]] | None
    seeds: tuple[int, ...] = ()
    n_requested: int = 0
    note: str = ""


@dataclass(frozen=True)
class _Axis:
    """Map from one coordinate of the unit cube to the value of a quantity."""

    quantity: Quantity
    lower: float
    upper: float
    log: bool = False
    distribution: Any = None
    about: bool = False  # whether the range lies around the guess, because a bound is missing

    def value(self, u: float) -> float:
        """Map u in [0, 1) to a value within the quantity's bounds."""
        u = min(max(u, _MIN_PROBABILITY), 1.0 - _MIN_PROBABILITY)
        if self.distribution is not None:
            value = truncated_quantile(self.distribution, u, self.quantity.lower, self.quantity.upper)
        elif self.log:
            value = float(np.exp(np.log(self.lower) + u * np.log(self.upper / self.lower)))
        else:
            value = self.lower + u * (self.upper - self.lower)
        return float(np.clip(value, self.quantity.lower, self.quantity.upper))


def draw(
    problem: Posable, starts: Any, sampling: Any, limits: Any, rng: Any, mistakes: list[str], deadline: float = np.inf
) -> DrawnStarts:
    """Draw the first candidate of every start, and append any errors to `mistakes`.

    starts : how many, or the starts themselves
    sampling : one of `SAMPLINGS`, or a function from a generator to ``{name: value}``; None is "sobol"
    limits : per quantity (lower, upper) or a distribution with ``cdf`` and ``ppf``; by default the quantity's bounds,
        and about its guess where one is missing
    deadline : when to stop, as `time.time` gives it; at least one start is drawn
    """
    n_before, listed = len(mistakes), read_sequence(starts)
    mistakes += rng_mistakes(rng)
    axes: list[_Axis] = []
    user_starts: list[dict[str, float]] = []
    if listed is not None:
        if sampling is not None or limits is not None:
            mistakes.append("starts were passed, so nothing is sampled; remove sampling= and limits=")
        user_starts = [_complete_start(problem, i, start, mistakes) for i, start in enumerate(listed)]
    if not user_starts and not is_count(starts, 1, _MAX_STARTS):
        starts_text = "empty" if listed == [] else shorten_repr(starts)
        mistakes.append(
            f"starts is {starts_text}; expected a number from 1 to {_MAX_STARTS} or a list of {{name: value}}"
        )
    if listed is None and callable(sampling):
        if limits is not None:
            mistakes.append("limits and a sampling function cannot be combined; remove one of them")
    elif listed is None:
        kind = "sobol" if sampling is None else sampling
        if not is_one_of(kind, *SAMPLINGS):
            nearest = suggest(str(kind), SAMPLINGS)
            mistakes.append(f"sampling is {shorten_repr(kind)}: {nearest}, or pass a function of a generator")
        axes = _build_axes(problem, limits, is_one_of(kind, "log_uniform"), mistakes)
    if len(mistakes) > n_before:
        return DrawnStarts((), None)
    streams = _RandomStreams(rng)

    def start_at(point: Array) -> dict[str, float]:
        values = {axis.quantity.name: axis.value(float(u)) for axis, u in zip(axes, point, strict=True)}
        return {q.name: values.get(q.name, float(q.guess)) for q in problem.quantities}

    def redraw(i: int) -> dict[str, float]:
        if not callable(sampling):
            return start_at(streams[i].random(len(axes)))
        start_mistakes: list[str] = []
        start = _complete_start(problem, i, sampling(streams[i]), start_mistakes)
        raise_if_mistakes("sampling", start_mistakes)
        return start

    count = len(user_starts) or int(starts)
    cube = None if user_starts or callable(sampling) else _draw_unit_cube(sampling, count, len(axes), streams.design)
    initial_starts: list[dict[str, float]] = []
    seeds: list[int] = []
    for i in range(count):
        if not user_starts and i % _STARTS_PER_CLOCK_CHECK == 1 and (time.time() >= deadline or is_interrupted()):
            break
        initial_starts.append(user_starts[i] if user_starts else redraw(i) if cube is None else start_at(cube[i]))
        seeds.append(streams.seed(i))
    note = drawn_about({axis.quantity.name: (axis.lower, axis.upper) for axis in axes if axis.about})
    return DrawnStarts(tuple(initial_starts), None if user_starts else redraw, tuple(seeds), count, note)


def screen_draws(problem: Posable, draws: DrawnStarts, count: int, deadline: float = np.inf) -> DrawnStarts:
    """Return for each start the best of `count` draws, judged by simulations of low accuracy.

    Each start draws from its own stream, as without screening.  Points that cannot be simulated rank last.  Starts
    after the deadline stay as drawn.
    """
    redraw = draws.redraw
    if count < 2 or redraw is None:
        return draws
    search_problem = search_problem_of(problem.posed)
    best_starts: list[dict[str, float]] = []
    with np.errstate(all="ignore"):
        for i, initial_start in enumerate(draws.initial_starts):
            starts = [initial_start, *(redraw(i) for _ in range(count - 1))]
            if time.time() >= deadline or is_interrupted():
                best_starts.append(initial_start)
                continue
            k, _ = lowest_draw(
                search_problem, [problem.theta_from(start)[search_problem.positions] for start in starts]
            )
            best_starts.append(starts[k])
    return replace(draws, initial_starts=tuple(best_starts))


class _RandomStreams:
    """Random streams: `design` for all starts together, and one for each start, spawned when it is first needed."""

    def __init__(self, rng: Any) -> None:
        self._parent = np.random.default_rng(rng)
        self._own: list[np.random.Generator] = []
        (self.design,) = self._parent.spawn(1)

    def __getitem__(self, i: int) -> np.random.Generator:
        self._own += self._parent.spawn(max(i + 1 - len(self._own), 0))
        return self._own[i]

    def seed(self, i: int) -> int:
        """Return a seed for the fit of start i, without changing the random stream of its draws."""
        (fresh,) = self[i].spawn(1)
        return int(fresh.integers(2**63))


def _draw_unit_cube(sampling: str | None, n: int, d: int, generator: np.random.Generator) -> Array | None:
    """Return points that fill the unit cube together, (n, d); None if each start draws its own."""
    from scipy.stats import qmc  # scipy.stats takes a third of castfit's time of import

    if sampling == "latin_hypercube":
        return qmc.LatinHypercube(d, seed=generator).random(n)
    if sampling in (None, "sobol"):
        return qmc.Sobol(d, seed=generator).random_base2((n - 1).bit_length())[:n]
    return None


def _build_axes(problem: Posable, limits: Any, log: bool, mistakes: list[str]) -> list[_Axis]:
    limit_by_name = read_mapping("limits", limits, mistakes)
    mistakes += [
        f"limits has the name '{n}', which is not estimated: {suggest(n, problem.names)}"
        for n in limit_by_name
        if n not in problem.names
    ]
    follow = _find_fitted_names(problem.posed)
    return [
        _build_axis(q, limit_by_name.get(q.name), log or q.scale == "log", mistakes)
        for q in problem.quantities
        if q.name in limit_by_name or q.name not in follow
    ]


def _find_fitted_names(problem: CompiledProblem) -> frozenset[str]:
    """Return the names of quantities that are not drawn, because a first fit determines them.

    These are unbounded standard deviations, scales and offsets.
    """
    noise = (q for q in problem.quantities if q.symbol_name in problem.noise_parameters)
    spreads = (q.name for q in noise if not np.isfinite([q.lower, q.upper]).all())
    least_squares_problem = problem if problem.least_squares else gaussian_surrogate(problem)
    return frozenset(
        (*spreads, *(least_squares_problem.names[int(j)] for j in eliminated_entries(least_squares_problem)))
    )


def _build_axis(quantity: Quantity, limit: Any, log: bool, mistakes: list[str]) -> _Axis:
    name, lower, upper = quantity.name, quantity.lower, quantity.upper
    remedy = (
        f"set limits={{'{name}': (lower, upper)}}, or a distribution such as scipy.stats.norm(mean, deviation), "
        "or pass a function as sampling="
    )
    if all(callable(getattr(limit, method, None)) for method in ("cdf", "ppf")):
        if not float(limit.cdf(upper)) > float(limit.cdf(lower)):
            mistakes.append(f"the distribution of '{name}' lies outside its bounds [{lower:g}, {upper:g}]")
        return _Axis(quantity, lower, upper, distribution=limit)
    if limit is None and quantity.starts is not None:
        return _Axis(quantity, lower, upper, distribution=quantity.starts)
    if limit is None and quantity.prior is not None and not np.isfinite([lower, upper]).all():
        return _Axis(quantity, lower, upper, distribution=quantity.prior)
    if limit is not None:
        pair = read_reals(limit)
        if pair is None or pair.shape != (2,) or not pair[0] <= pair[1]:
            mistakes.append(
                f"the limits of '{name}' are {shorten_repr(limit)}; expected (lower, upper) or a distribution"
            )
            return _Axis(quantity, lower, upper)
        if pair[0] < lower or pair[1] > upper:
            mistakes.append(f"the limits {shorten_repr(limit)} of '{name}' exceed its bounds [{lower:g}, {upper:g}]")
        lower, upper = float(pair[0]), float(pair[1])
    if limit is None and (about := _build_axis_around_guess(quantity, log=log)) is not None:
        return about
    if not np.isfinite([lower, upper]).all():
        range_text = f"[{lower:g}, {upper:g}]" + (f" about its guess {quantity.guess:g}" if limit is None else "")
        mistakes.append(f"'{name}' has the limits {range_text}, from which no starting point can be sampled; {remedy}")
    elif log and not lower > 0:
        mistakes.append(f"'{name}' is sampled on a log scale, but its lower limit is {lower:g}; {remedy}")
    return _Axis(quantity, lower, upper, log)


def _build_axis_around_guess(quantity: Quantity, *, log: bool) -> _Axis | None:
    """Return the range about the guess of a quantity of which a bound is missing; None if none is, or it cannot be."""
    guess, ends = float(quantity.guess), (quantity.lower, quantity.upper)
    is_missing = not np.isfinite(ends).all() or (log and quantity.lower == 0.0)
    if not is_missing or guess == 0.0 or (log and quantity.scale == "linear" and quantity.lower < 0.0):
        return None
    with np.errstate(divide="ignore"):
        center, lower, upper = (np.array([np.log(max(x, 0.0)) if log else x]) for x in (guess, *ends))
    low, high = (float(end[0]) for end in finite_bounds(lower, upper, center, sampling_radius(center, np.array([log]))))
    low, high = (float(np.exp(low)), float(np.exp(high))) if log else (low, high)
    return _Axis(quantity, low, high, log, about=True)


def _complete_start(problem: Posable, i: int, start: Any, mistakes: list[str]) -> dict[str, float]:
    """Complete a start by the guess and check it."""
    if start is None:
        mistakes.append(f"start {i} is None; give {{name: value}}")
        return {}
    try:
        problem.theta_from(start)
    except InputError as error:
        mistakes += [f"start {i}: {mistake}" for mistake in error.problems]
        return {}
    guess = problem.to_natural(problem.guess).tolist()
    start_values = {str(n) if isinstance(n, str) else n.name(): float(v) for n, v in start.items()}
    return {**dict(zip(problem.names, guess, strict=True)), **start_values}
