"""Fits with Laplace priors: a few smooth fits decide which quantities end at the kink of their prior.

    minimise  f(theta) + sum_i |u_i(theta)| / b_i        u_i: distance from the kink

At the solution every u_i is positive, negative, or zero with a multiplier lambda_i = -df/du_i within +-1/b_i.  Known
which, the problem is smooth: a straight cost on either side, a fixed quantity at the kink.  It is found out by

    1. a fit with parabolas in place of the kinks
    2. the linearized problem, solved exactly by its dual: least squares in lambda with bounds +-1/b_i,
       minimise 1/2 |L^-1 (g + A^T lambda)|^2 - u^T lambda,     L L^T = Hessian of f,  g = grad f,  A = du/dtheta
       (lambda_i inside: u_i = 0;  at +-1/b_i: u_i has that sign)
    3. a fit with these signs, from there; and 2 again, until the signs stay

For a problem that is linear in theta the first signs are right.  A quantity is held by bounds, an expression by a steep
parabola about its kink and the multiplier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy

from castfit._support.status import Status
from castfit.densities.priors.distributions import PriorDistribution
from castfit.densities.priors.laplace import (
    AtKink,
    LaplacePrior,
    OneSided,
    Pinned,
    distance_of,
    laplace_of,
    rounded_off,
)
from castfit.fit.refinement import FitQuestion, RefinedFit
from castfit.problem.prior_rows import ExpressionPrior, QuantityPrior
from castfit.result.identifiability import AT_KINK, Identifiability, Verdict, overall
from castfit.result.result import Result

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable

_ROUNDS = 20  # fits until the signs must stay
_INSIDE = 1e-7  # a multiplier that is this close to its bound is there
_RIDGE = 1e-10  # relative; makes undetermined directions, and equal kinks, no singularity
_GENTLE = 0.01  # curvature of a straight cost, relative to that of the data: small, for the solver alone
_STEEP = 1e6  # that of what holds an expression at its kink


@dataclass(frozen=True)
class Kink:
    """A Laplace prior among all priors of a problem, by its position there.

    `side` is 0 where it may end on both sides, +1 or -1 where bounds leave one.
    """

    at: int
    term: QuantityPrior | ExpressionPrior
    prior: LaplacePrior
    side: float

    def distance(self, natural: Array) -> tuple[float, Array]:
        """Return u and du/dn (n_theta,)."""
        rows, slopes, _, _ = replace(self.term, prior=distance_of(self.prior)).rows(natural)
        return float(rows[0]), slopes[0]


@dataclass(frozen=True)
class KinkSide:
    """Position of a quantity relative to a kink: sign +1, -1, or 0 at it; multiplier; curvature of the data along u."""

    sign: float
    multiplier: float
    curvature: float


def kinks_of(problem: Posed) -> tuple[Kink, ...]:
    """Find the Laplace priors of a problem."""
    found: list[Kink] = []
    for i, term in enumerate(problem.every_prior):
        if isinstance(term, (QuantityPrior, ExpressionPrior)):
            prior = laplace_of(term.prior)
            if prior is not None:
                found.append(Kink(i, term, prior, _only_side(problem, term, prior)))
    return tuple(found)


def _only_side(problem: Posed, term: QuantityPrior | ExpressionPrior, prior: LaplacePrior) -> float:
    if isinstance(term, ExpressionPrior):
        return 0.0
    q = problem.quantities[term.at]
    # A kink at a bound is no kink; one at 0 is infinitely far on a logarithmic scale.
    if prior.kink <= q.lower or (q.scale == "log" and prior.kink <= 0.0):
        return 1.0
    return -1.0 if prior.kink >= q.upper else 0.0


class LaplaceKinks(RefinedFit):
    """Signs of distances from kinks, until they stay; before any is known there are parabolas in place of the kinks."""

    what = "kinks of Laplace priors"

    def __init__(self, question: FitQuestion) -> None:
        self.problem, posed = question.problem, question.problem.posed
        self.kinks = kinks_of(posed)
        rounded: dict[int, KinkSide | None] = {k.at: KinkSide(k.side, 0.0, 0.0) if k.side else None for k in self.kinks}
        self.smooth = _arranged(posed, self.kinks, rounded)
        self.seen: list[tuple[float, ...]] = []
        self.settled = False

    def begun(self, question: FitQuestion) -> FitQuestion:
        """Return the problem with parabolas."""
        return replace(question, problem=self.smooth)

    def refined(self, answer: Result) -> FitQuestion | None:
        """Return the problem with the signs that follow from the answer, unless these are known."""
        seen = self.seen
        if not _usable(answer) or (seen and not answer.success) or len(seen) == _ROUNDS:
            return None
        places = _places(answer, self.smooth, self.kinks)
        signs = tuple(place.sign for place in places.values())
        self.settled = bool(seen) and signs == seen[-1]
        if signs in seen:
            return None
        seen.append(signs)
        self.smooth = _arranged(self.problem.posed, self.kinks, places)
        return FitQuestion(self.smooth, _moved(answer, self.smooth), near=True)

    def concluded(self, answer: Result) -> Result:
        """Return the answer as one of the problem with kinks."""
        signs = self.seen[-1] if self.seen else ()
        return _as_asked(self.problem, self.smooth, answer, self.kinks, signs, settled=self.settled)


def _usable(result: Result) -> bool:
    """Whether the first fit, though no solution, came to a point from where signs can be guessed."""
    finite = np.isfinite(result.information.diagonal()).all() and np.isfinite(result.gradient).all()
    return bool(finite) and not result.status.cut_off


def _arranged(problem: Posed, kinks: Sequence[Kink], places: Mapping[int, KinkSide | None]) -> Posed:
    """Return the problem with smooth costs in place of kinks: parabolas where the place is not known."""
    terms, quantities = list(problem.every_prior), [replace(q, prior=None) for q in problem.quantities]
    for kink in kinks:
        place, of = places[kink.at], kink.prior
        smooth: PriorDistribution
        if place is None:
            smooth = rounded_off(of, _guess(problem, kink))
        elif place.sign:
            smooth = OneSided(of.mean, of.scale, place.sign, _GENTLE * place.curvature, on=of.on)
        elif isinstance(kink.term, QuantityPrior):
            smooth, j = AtKink(of.mean, of.scale, on=of.on), kink.term.at
            quantities[j] = replace(quantities[j], guess=of.kink, lower=of.kink, upper=of.kink)
        else:
            smooth = Pinned(of.mean, of.scale, place.multiplier, _STEEP * place.curvature, on=of.on)
        terms[kink.at] = replace(kink.term, prior=smooth)
    return replace(problem, quantities=tuple(quantities), prior_terms=tuple(terms))


def _guess(problem: Posed, kink: Kink) -> float:
    natural = problem.to_natural(problem.guess)
    if isinstance(kink.term, QuantityPrior):
        return float(natural[kink.term.at])
    return float(kink.term.expression.values(natural)[0][0])


def _moved(result: Result, problem: Posed) -> Result:
    """Return a result as the start of a problem in which some quantities are fixed."""
    fixed = {q.name: q.guess for q in problem.quantities if q.lower == q.upper}
    return replace(
        result,
        parameters={n: fixed.get(n, v) for n, v in result.parameters.items()},
        initial_states={n: fixed.get(n, v) for n, v in result.initial_states.items()},
    )


def _places(result: Result, problem: Posed, kinks: Sequence[Kink]) -> dict[int, KinkSide]:
    """Solve the problem linearized at a result, and say where each quantity is relative to its kink."""
    theta = result.theta
    natural, slope = problem.to_natural(theta), problem.natural_slope(theta)
    found = problem.priors(theta)
    curvature, gradient = np.array(result.information), result.gradient.copy()
    first = np.cumsum([0, *(term.curved.size for term in problem.every_prior)])
    jacobian = found.jacobian.dense
    for kink in kinks:
        own = slice(first[kink.at], first[kink.at + 1])
        gradient -= found.rows[own] @ jacobian[own]
        slopes = jacobian[own] * found.curved[own, None]
        curvature -= slopes.T @ slopes
    pairs = [kink.distance(natural) for kink in kinks]
    u, A = np.array([distance for distance, _ in pairs]), np.array([by_n * slope for _, by_n in pairs])
    open_ = np.array([q.lower == q.upper or q.name not in result.active for q in problem.quantities], dtype=np.bool_)
    size = np.sqrt(np.maximum(np.diag(curvature), 0.0))
    largest = np.max(np.abs(A), axis=0)
    unit = np.where(size > 0.0, size, np.where(largest > 0.0, largest, 1.0))[open_]
    L = _lower_root(curvature[np.ix_(open_, open_)] / unit[:, None] / unit)
    c, Q = (scipy.linalg.solve_triangular(L, right / unit[:, None], lower=True) for right in (
        gradient[open_, None], A[:, open_].T))  # fmt: skip
    weight = np.array([1.0 / kink.prior.scale for kink in kinks])
    multiplier = weight * _dual(Q * weight, c[:, 0], u * weight, [kink.side for kink in kinks])
    squares = np.sum(Q**2, axis=0)  # 0 where bounds hold all that u depends on
    along = np.where(squares > 0.0, 1.0 / np.where(squares > 0.0, squares, 1.0), weight**2)
    places: dict[int, KinkSide] = {}
    for i, kink in enumerate(kinks):
        inside = abs(multiplier[i]) < (1.0 - _INSIDE) * weight[i] and not kink.side
        sign = 0.0 if inside else float(np.sign(multiplier[i]))
        places[kink.at] = KinkSide(sign, float(multiplier[i]), float(along[i]))
    return places


def _lower_root(H: Array) -> Array:
    """Return L (n, n), lower triangular, with L L^T = H but for a ridge; H may be indefinite by rounding."""
    values, vectors = np.linalg.eigh(H)
    roots = np.sqrt(np.maximum(values, 0.0) + _RIDGE)
    return np.asarray(scipy.linalg.qr((vectors * roots).T, mode="r")[0], dtype=np.float64).T


def _dual(Q: Array, c: Array, u: Array, sides: Sequence[float]) -> Array:
    """Minimise 1/2 |c + Q x|^2 - u x over |x| <= 1; what bounds leave one side has x = side."""
    k = u.size
    ridge = np.sqrt(_RIDGE) * np.diag(np.maximum(np.linalg.norm(Q, axis=0), np.finfo(float).tiny))
    square = np.vstack([Q, ridge])
    shift = np.linalg.pinv(square.T) @ u
    target = shift - np.append(c, np.zeros(k))
    lower, upper = np.array([s or -1.0 for s in sides]), np.array([s or 1.0 for s in sides])
    x = np.where(lower == upper, lower, 0.0)
    free = lower < upper
    if free.any():
        left = target - square[:, ~free] @ x[~free]
        x[free] = scipy.optimize.lsq_linear(square[:, free], left, (-1.0, 1.0), method="bvls", tol=1e-14).x
    return x


def _as_asked(
    problem: Posable, smooth: Posed, found: Result, kinks: Sequence[Kink], signs: Sequence[float], *, settled: bool
) -> Result:
    """Return a fit of the smooth problem as one of the problem with kinks, and say which quantities are at them."""
    posed = problem.posed
    with np.errstate(all="ignore"):
        ours, theirs = posed.priors(found.theta).cost, smooth.priors(found.theta).cost
    more = ours - theirs if found.success or np.isfinite(ours) else 0.0
    twice = 2.0 * (more + posed.prior_constant - smooth.prior_constant)
    asked = posed.assuming(absolute_sigma=found.absolute_sigma)
    held = [kink for kink, sign in zip(kinks, signs, strict=False) if sign == 0.0]
    names = {posed.names[kink.term.at]: kink.prior.kink for kink in held if isinstance(kink.term, QuantityPrior)}
    said = ""
    if found.success:
        apart = [k.term.what for k, sign in zip(kinks, signs, strict=False) if sign]
        said = _said([k.term.what for k in held], apart)
    status = found.status
    if found.success and not settled:
        status = Status.ACCEPTABLE
        said = f"{said} The set of quantities at kinks of their priors did not converge; try other starting points."
    chi2 = found.chi2 + 2.0 * more if asked.least_squares and not asked.groups else found.chi2
    return replace(
        found,
        status=status,
        message=f"{found.message} {said}".strip(),
        cost=found.cost + more,
        chi2=chi2,
        active={n: "kink" if n in names else side for n, side in found.active.items()},
        neg2loglik=found.neg2loglik + twice,
        neg2logprior=found.neg2logprior + twice,
        aic=found.aic + twice,
        bic=found.bic + twice,
        identifiability=_judged(found.identifiability, names),
        problem=problem,
    )


def _said(held: Sequence[str], apart: Sequence[str]) -> str:
    parts = [f"{label}: {', '.join(names)}." for label, names in (
        ("At the kink of the prior", held), ("Off it", apart)) if names]  # fmt: skip
    return " ".join(parts)


def _judged(found: Identifiability, names: Mapping[str, float]) -> Identifiability:
    if not names:
        return found
    verdicts = tuple(
        Verdict(v.name, AT_KINK, f"at the kink of its prior, {names[v.name]:g}") if v.name in names else v
        for v in found.verdicts
    )
    return replace(found, verdicts=verdicts, sentence=overall(verdicts, ""))
