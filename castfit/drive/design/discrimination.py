"""Designs that tell two models apart: T-optimality (Atkinson and Fedorov 1975).

The model that is known predicts y1; the rival comes as near as it can, and the design keeps it as far away as possible:

    max_w min_theta2  T(w, theta2),    T = c(theta2) + sum_i w_i d_i(theta2),    d_i = ((y1_i - y2_i(theta2)) / s_i)^2

with c from values that were measured already; y are on the axis on which errors are those of the noise, and d times its
information on the mean (`_apart`).  Where spreads differ, d_i is twice the Kullback-Leibler divergence
(Lopez-Fidalgo, Tommasi and Trandafir 2007).  Each fit of the rival to noise-free y1 gives a plane above the minimum:

    T(v) <= c_k + d_k'v  for all designs v

so that a linear program over all planes bounds every design from above, and the next fit is at its solution, or half
way between it and the best design so far, which ends the wandering that plain cutting planes are known for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import least_squares

from castfit._support.arguments import text
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.status import InputError, check
from castfit.densities.noise.counts import NegativeBinomial, Poisson
from castfit.densities.noise.gaussian import LogNormal
from castfit.drive.design.criteria import ECriterion
from castfit.drive.design.cutting_planes import highest
from castfit.drive.design.exact import exact as exact_design
from castfit.drive.design.interior_point import DesignGoal, Offers, RelaxedDesign
from castfit.drive.design.knowledge import Knowledge, informations, knowledge, seen, steepness, told_rows
from castfit.drive.design.simple_schedules import simple_designs
from castfit.problem.problem import Problem
from castfit.result.result import Result

if TYPE_CHECKING:
    from castfit.densities.noise.density import Noise
    from castfit.drive.design.purchases import Purchases
    from castfit.simulate.output_sensitivities import Responses

_ROUNDS = 60
_TOLERANCE = 1e-5  # of the gap, relative to the bound
_FITS = 4  # starts of the first fit of a rival; later ones begin where the one before ended, and at one more
_FAR = 1e6  # of a residual where the rival cannot be integrated
_WIDTH = 0.7  # of the logarithm of random starts
_EXACT_ROUNDS = 12
_UNUSED = 1e-9  # of a measurement
_POSITIVE = 1e-300  # what a rival predicts of values that have a logarithm, at least


@public("castfit")
@dataclass(frozen=True, eq=False)
class Discrimination:
    """Rivals from which a design is to tell the model; create it with `discriminate`.

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
        Models with outputs of the same names.  Where both the model and the rival are results, the values that were
        measured count: a rival must describe them, too.  Of several rivals the nearest one counts.

    Raises
    ------
    InputError
        For what is neither.

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
    given: tuple[Any, ...] = rivals
    wrong = [text(r) for r in given if not isinstance(r, (Result, Problem))]
    wrong = [f"a competing model is {shown}; expected a Result or a Problem" for shown in wrong]
    check("discriminate", wrong or ([] if rivals else ["no competing model was passed; expected a Result or a Problem"]))
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
class _Rival:
    """A rival model beside the one that is known: its misfit, and the best fits so far."""

    known: Knowledge
    bought: Purchases
    rival: Knowledge
    measured: bool
    spreads: bool
    rng: np.random.Generator
    found: list[Array] = field(default_factory=list[Array])
    fits: int = 0

    @cached_property
    def _predicted(self) -> dict[str, Responses]:
        """Predictions of the known model at the measured times, by experiment."""
        known = self.known
        return {
            c.name: known.predicted(known.posed, c, np.unique(c.points.times), known.estimate, known.posed.outputs)
            for c in (known.posed.conditions if self.measured else ())
        }

    def roots(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        """Return roots of c, (m,), and of d, (N, values), and their derivatives by theta; wrong where spreads move."""
        rival, known, n = replace(self.rival, estimate=theta), self.known, theta.size
        old, slopes = [np.empty(0)], [np.empty((0, n))]
        for condition in known.posed.conditions if self.measured else ():
            other = next(c for c in rival.posed.conditions if c.name == condition.name)
            times, place = np.unique(condition.points.times, return_inverse=True)
            one, points = self._predicted[condition.name], condition.points
            two = rival.predicted(rival.posed, other, times, theta, known.posed.outputs)
            for j, of in enumerate(condition.observed):
                at = np.flatnonzero(points.mask[:, j])
                if of is None or not at.size:
                    continue
                here = (known.posed, condition, j, one, place[at], points.sigma[at, j], known.sigmas)
                mu, deviation, sigma, _ = told_rows(*here)
                root, slope = _apart(of.noise, mu, deviation, sigma, two.values[place[at], j], two.slopes[place[at], j])
                old.append(root)
                slopes.append(slope)
        every = [self._roots(k, rival) for k in range(len(known.candidates))]
        new = [one for one, candidate in zip(every, known.candidates, strict=True) if not candidate.fixed]
        for (root, slope), candidate in zip(every, known.candidates, strict=True):
            if candidate.fixed:  # it is done anyway
                old.append(root.ravel())
                slopes.append(slope.reshape(-1, n))
        roots, derivatives = (np.concatenate(part) for part in zip(*new, strict=True))
        return np.concatenate(old), roots, np.concatenate(slopes), derivatives

    def _roots(self, k: int, rival: Knowledge) -> tuple[Array, Array]:
        """Return per purchase of candidate k the roots of d, (n, values), and their derivatives by theta."""
        values = self.bought.values[0][k]
        two = rival.values(k, values.times, outputs=values.outputs)
        by_theta = two.rows[:, :, 0][..., rival.of] / rival.units[rival.of] * two.s[..., None]
        parts = [
            _apart(of.noise, values.mu[:, j], values.s[:, j], values.sigma[:, j], two.mu[:, j], by_theta[:, j])
            for j, of in enumerate(self.known.observed(k, output) for output in values.outputs)
            if of is not None
        ]
        root, slope = (np.stack(part, axis=1) for part in zip(*parts, strict=True))
        if self.spreads:
            ratio = values.sigma / two.sigma
            root = np.sign(root) * np.sqrt(np.maximum((root * ratio) ** 2 + ratio**2 - 1.0 - 2.0 * np.log(ratio), 0.0))
        shape = {"output": (-1, 1), "time": root.shape, "experiment": (1, -1)}[self.known.candidates[k].together]
        if shape[0] == -1:
            root, slope = root.T, np.swapaxes(slope, 0, 1)
        root, slope = root.reshape(shape), slope.reshape(*shape, slope.shape[-1])
        more = (0, self._width - root.shape[1])
        return np.pad(root, ((0, 0), more)), np.pad(slope, ((0, 0), more, (0, 0)))

    @property
    def _width(self) -> int:
        pairs = zip(self.known.candidates, self.bought.values[0], strict=True)
        return max({"output": 1, "time": v.mu.shape[1], "experiment": v.mu.size}[c.together] for c, v in pairs)

    def nearest(self, w: Array) -> tuple[float, float, Array]:
        """Return T at w by the nearest fit found, and its plane: constant and d (N,)."""
        used = w > _UNUSED
        root, (lower, upper) = np.sqrt(w[used])[:, None], self.rival.posed.bounds
        last: dict[bytes, tuple[Array, Array]] = {}

        def at(theta: Array) -> tuple[Array, Array]:
            if theta.tobytes() not in last:
                last.clear()
                try:
                    old, new, old_slopes, slopes = self.roots(theta)
                    rows = (root[..., None] * slopes[used]).reshape(-1, theta.size)
                    found = np.concatenate([old, (root * new[used]).ravel()]), np.concatenate([old_slopes, rows])
                except InputError:  # of integration: as far as can be
                    found = np.full(size, _FAR), np.zeros((size, theta.size))
                last[theta.tobytes()] = found
            return last[theta.tobytes()]

        guess, size = self.rival.estimate, 1
        size = at(guess)[0].size
        width = _WIDTH * np.where(self.rival.posed.log, 1.0, np.abs(guess) + 0.1)
        wild: list[Array] = [
            guess + width * self.rng.standard_normal(guess.size) for _ in range(1 if self.found else _FITS)
        ]
        with np.errstate(invalid="ignore"):
            low, high = lower + 1e-9 * (1.0 + np.abs(lower)), upper - 1e-9 * (1.0 + np.abs(upper))
        low, high = np.where(np.isfinite(low), low, lower), np.where(np.isfinite(high), high, upper)
        best: Any = None
        starts: list[Array] = [*(self.found[-1:] or [guess]), *wild]
        for start in starts:
            self.fits += 1
            found: Any = least_squares(
                lambda theta: at(theta)[0],
                np.clip(start, low, high),
                "2-point" if self.spreads else lambda theta: at(theta)[1],
                bounds=(lower, upper), x_scale="jac", xtol=1e-10, ftol=1e-10, gtol=1e-10,
            )  # fmt: skip
            best = found if best is None or found.cost < best.cost else best
        theta = np.asarray(best.x)
        self.found.append(theta)
        old, new, _, _ = self.roots(theta)
        return 2.0 * float(best.cost), float(old @ old), np.sum(new**2, axis=1)


def discriminated(
    known: Knowledge,
    bought: Purchases,
    criterion: Discrimination,
    *,
    exact: bool,
    rng: np.random.Generator,
    stop: Callable[[], bool],
) -> DiscriminatingDesign:
    """Choose what tells the model from its rivals."""
    rivals = [_rival(known, bought, rival, rng) for rival in criterion.rivals]
    offers = bought.offers
    planes: list[tuple[float, Array]] = []

    def nearest(w: Array) -> float:
        found = [rival.nearest(w) for rival in rivals]
        planes.extend((constant, d) for _, constant, d in found)
        return min(value for value, _, _ in found)

    most = np.min(offers.b / offers.A.sum(axis=1), initial=np.inf)  # the budget, evenly spent
    w = best = np.minimum(most if np.isfinite(most) else 1.0, offers.u)
    value, relaxed = -np.inf, RelaxedDesign(w, np.inf, -np.inf, np.zeros(w.size), np.zeros(len(offers.b)), 0)
    for k in range(_ROUNDS):
        here = nearest(w)
        value, best = (here, w) if here > value else (value, best)
        d = np.array([d for _, d in planes])
        ideal = highest(np.array([c for c, _ in planes]), d, offers)
        if ideal is None:
            break
        relaxed = RelaxedDesign(best, -value, -ideal.value, ideal.q @ d, ideal.y, len(planes))
        if relaxed.gap <= _TOLERANCE * abs(ideal.value) or stop():
            break
        w = ideal.w if k % 2 == 0 else 0.5 * (ideal.w + best)
    counts = best
    if exact:
        counts, value = _whole(offers, bought, best, planes, nearest, rng, stop)
    simple = simple_designs(known, bought, counts) if exact else {}
    beside = {name: (of, nearest(of)) for name, of in simple.items()}
    return DiscriminatingDesign(counts, value, relaxed, DesignGoal(ECriterion(1)), beside, sum(r.fits for r in rivals))


def _whole(
    offers: Offers, bought: Purchases, best: Array, planes: list[tuple[float, Array]], nearest: Any, rng: Any, stop: Any
) -> tuple[Array, float]:
    """Return whole numbers, by exchange below all planes, until the rival's fit there meets them.

    The least of  c_k + d_k'n  is the least eigenvalue of a diagonal matrix: E-optimality.
    """
    counts, value = np.zeros_like(best), -np.inf
    for _ in range(_EXACT_ROUNDS):
        d = np.array([d for _, d in planes])
        J = np.zeros((1, best.size, len(d), len(d)))
        J[0, :, range(len(d)), range(len(d))] = np.sqrt(d)
        below = replace(offers, J=J, M0=np.diag([c for c, _ in planes])[None])
        trial = exact_design(DesignGoal(ECriterion(len(d))), below, bought.at, best, rng=rng, starts=1, stop=stop)
        promised = float(-DesignGoal(ECriterion(len(d))).values(below.information(trial)))
        here = nearest(trial)
        counts, value = (trial, here) if here > value else (counts, value)
        if promised - value <= 1e-3 * abs(promised) or stop():
            break
    return counts, value


def _apart(noise: Noise, mu: Array, deviation: Array, sigma: Array, other: Array, slope: Array) -> tuple[Array, Array]:
    """Return roots of d (n,), and derivatives (n, n_theta), where the rival's `other` moves by `slope`.

    On the axis on which errors are those of the noise, by the information on the mean that limits of detection leave;
    of counts by their deviation.
    """
    if isinstance(noise, (Poisson, NegativeBinomial)):
        return (mu - other) / deviation, -slope / deviation[:, None]
    other = np.maximum(other, _POSITIVE) if isinstance(noise, LogNormal) else other
    factor = np.sqrt(informations(noise)[0] * seen(noise, mu, sigma))
    return factor * noise.error(mu, sigma, other), -slope * (factor * steepness(noise, other) / sigma)[:, None]


def _rival(known: Knowledge, bought: Purchases, given: Any, rng: np.random.Generator) -> _Rival:
    """Pose the rival with the same candidates; where its own spreads do not move, the accuracy is that of the model."""
    from castfit.drive.design.candidate import with_fields

    mistakes: list[str] = []
    problem: Any = given.problem if isinstance(given, Result) else given
    outputs = {o for c in known.candidates for o in c.outputs}
    lacking = [o for o in sorted(outputs) if problem is not None and o not in problem.own_model.output_names]
    check("discriminate", [f"the competing model has no output '{o}'; add an output with this name" for o in lacking])
    named = zip(known.candidates, known.labels, strict=True)
    own = [with_fields(c, name=label, sigma={"": 1.0}, cost=1.0) for c, label in named]
    rival = knowledge(given, own, mistakes, samples=1, where="discriminate")
    names = {c.name for c in rival.posed.conditions}
    measured = known.fitted and rival.fitted
    if measured and not {c.name for c in known.posed.conditions} <= names:
        check("discriminate", ["the competing model was fitted to other experiments; fit both models to the same data"])
    spreads = any(_computed(known, k) for k in range(len(own)))
    if spreads:
        spread = [with_fields(c, sigma=None) for c in own]
        rival = knowledge(given, spread, mistakes, samples=1, where="discriminate")
    return _Rival(known, bought, replace(rival, kept={}), measured, spreads, rng)


def _computed(known: Knowledge, k: int) -> bool:
    """Check whether the spread of an output of candidate k depends on the quantities."""
    candidate = known.candidates[k]
    every = (known.observed(k, n) for n in candidate.outputs if candidate.sigma_of(n) is None)
    return any(of is not None and of.computed for of in every)
