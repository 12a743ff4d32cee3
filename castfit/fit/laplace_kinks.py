"""Fits with Laplace priors: a few smooth fits determine which quantities end at the kink of their prior.

    minimise  f(theta) + sum_i |u_i(theta)| / b_i        u_i: distance from the kink

At the solution every u_i is positive, negative, or zero with a multiplier lambda_i = -df/du_i within +-1/b_i.  Given
these signs, the problem is smooth: a linear cost on either side, a fixed quantity at the kink.  They are determined by

1. a fit with parabolas in place of the kinks
2. the linearized problem, solved exactly by its dual: least squares in lambda with bounds +-1/b_i,
       minimise 1/2 |L^-1 (g + A^T lambda)|^2 - u^T lambda,     L L^T = Hessian of f,  g = grad f,  A = du/dtheta
       (lambda_i inside: u_i = 0;  at +-1/b_i: u_i has that sign)
3. a fit with these signs, started at the last one; steps 2 and 3 are repeated until the signs no longer change

For a problem that is linear in theta the first signs are correct.  Bounds fix a quantity at its kink; a steep parabola
about the kink and the multiplier fix an expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from castfit._support.arrays import Array
from castfit._support.status import Status
from castfit.densities.priors.distributions import PriorDistribution
from castfit.densities.priors.laplace import (
    FixedAtKink,
    KinkBounds,
    LaplacePrior,
    OneSidedLinearCost,
    distance_prior,
    find_laplace,
    smooth_kink,
)
from castfit.fit.refinement import RefinedFit, RefinementProblem
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.prior_rows import ExpressionPrior, QuantityPrior
from castfit.problem.problem import Posable
from castfit.result.identifiability import AT_KINK, Identifiability, IdentifiabilityStatus, overall
from castfit.result.result import Result

_MAX_SIGN_ROUNDS = 20  # Limit on the fits until the signs at the kinks no longer change.
_MULTIPLIER_TOLERANCE = 1e-7  # Relative distance to its bound within which a multiplier counts as at the bound.
# Ridge, relative, that keeps undetermined directions and equal kinks regular.
_RIDGE_EIGENVALUE = 1e-10
_LINEAR_COST_CURVATURE = 0.01  # Small curvature of a linear cost, relative to that of the data, for the solver.
_KINK_HOLD_CURVATURE = 1e6  # Curvature, relative to that of the data, that fixes an expression at its kink.


@dataclass(frozen=True)
class KinkPosition:
    """Laplace prior, by its position among all priors of a problem.

    `side` is 0 if the quantity may end on both sides, +1 or -1 if bounds leave one side.
    """

    prior_index: int
    term: QuantityPrior | ExpressionPrior
    prior: LaplacePrior
    side: float

    def distance(self, natural: Array) -> tuple[float, Array]:
        """Return u and du/dn (n_theta,)."""
        rows, slopes, _, _ = replace(self.term, prior=distance_prior(self.prior)).rows(natural)
        return float(rows[0]), slopes[0]


@dataclass(frozen=True)
class KinkSide:
    """Position of a quantity relative to a kink: sign +1, -1, or 0 at it; multiplier; curvature of the data along u."""

    sign: float
    multiplier: float
    curvature: float


def find_kinks(problem: CompiledProblem) -> tuple[KinkPosition, ...]:
    """Find the Laplace priors of a problem."""
    kinks: list[KinkPosition] = []
    for i, term in enumerate(problem.every_prior):
        if isinstance(term, (QuantityPrior, ExpressionPrior)):
            prior = find_laplace(term.prior)
            if prior is not None:
                kinks.append(KinkPosition(i, term, prior, _only_side(problem, term, prior)))
    return tuple(kinks)


def _only_side(problem: CompiledProblem, term: QuantityPrior | ExpressionPrior, prior: LaplacePrior) -> float:
    if isinstance(term, ExpressionPrior):
        return 0.0
    q = problem.quantities[term.theta_index]
    # A kink at a bound is no kink; one at 0 is infinitely far on a logarithmic scale.
    if prior.kink <= q.lower or (q.scale == "log" and prior.kink <= 0.0):
        return 1.0
    return -1.0 if prior.kink >= q.upper else 0.0


class LaplaceKinks(RefinedFit):
    """Refinement of the signs of distances from kinks, until they no longer change; first with parabolas."""

    subject = "kinks of Laplace priors"

    def __init__(self, question: RefinementProblem) -> None:
        self.problem, compiled_problem = question.problem, question.problem.posed
        self.kinks = find_kinks(compiled_problem)
        initial_sides: dict[int, KinkSide | None] = {
            k.prior_index: KinkSide(k.side, 0.0, 0.0) if k.side else None for k in self.kinks
        }
        self.smooth = _arranged(compiled_problem, self.kinks, initial_sides)
        self.visited_signs: list[tuple[float, ...]] = []
        self.is_converged = False

    def prepare(self, question: RefinementProblem) -> RefinementProblem:
        """Return the problem with parabolas in place of the kinks."""
        return replace(question, problem=self.smooth)

    def next_question(self, answer: Result) -> RefinementProblem | None:
        """Return the problem with the signs that follow from the answer, or None if they were used before."""
        seen_signs = self.visited_signs
        if not _usable(answer) or (seen_signs and not answer.success) or len(seen_signs) == _MAX_SIGN_ROUNDS:
            return None
        kink_sides = _places(answer, self.smooth, self.kinks)
        signs = tuple(kink_side.sign for kink_side in kink_sides.values())
        self.is_converged = bool(seen_signs) and signs == seen_signs[-1]
        if signs in seen_signs:
            return None
        seen_signs.append(signs)
        self.smooth = _arranged(self.problem.posed, self.kinks, kink_sides)
        return RefinementProblem(self.smooth, _with_fixed_values(answer, self.smooth), is_near_solution=True)

    def conclude(self, answer: Result) -> Result:
        """Return the answer as a result of the problem with kinks."""
        signs = self.visited_signs[-1] if self.visited_signs else ()
        return _restore_kinks(self.problem, self.smooth, answer, self.kinks, signs, is_converged=self.is_converged)


def _usable(result: Result) -> bool:
    """Whether signs can be derived from the first fit even if it did not converge."""
    finite = np.isfinite(result.information.diagonal()).all() and np.isfinite(result.gradient).all()
    return bool(finite) and not result.status.cut_off


def _arranged(
    problem: CompiledProblem, kinks: Sequence[KinkPosition], kink_sides: Mapping[int, KinkSide | None]
) -> CompiledProblem:
    """Return the problem with smooth costs in place of kinks: parabolas if the sign is unknown."""
    terms, quantities = list(problem.every_prior), [replace(q, prior=None) for q in problem.quantities]
    for kink in kinks:
        kink_side, laplace_prior = kink_sides[kink.prior_index], kink.prior
        smooth: PriorDistribution
        if kink_side is None:
            smooth = smooth_kink(laplace_prior, _guess(problem, kink))
        elif kink_side.sign:
            smooth = OneSidedLinearCost(
                laplace_prior.mean,
                laplace_prior.scale,
                kink_side.sign,
                _LINEAR_COST_CURVATURE * kink_side.curvature,
                on=laplace_prior.on,
            )
        elif isinstance(kink.term, QuantityPrior):
            smooth, j = KinkBounds(laplace_prior.mean, laplace_prior.scale, on=laplace_prior.on), kink.term.theta_index
            quantities[j] = replace(
                quantities[j], guess=laplace_prior.kink, lower=laplace_prior.kink, upper=laplace_prior.kink
            )
        else:
            smooth = FixedAtKink(
                laplace_prior.mean,
                laplace_prior.scale,
                kink_side.multiplier,
                _KINK_HOLD_CURVATURE * kink_side.curvature,
                on=laplace_prior.on,
            )
        terms[kink.prior_index] = replace(kink.term, prior=smooth)
    return replace(problem, quantities=tuple(quantities), prior_terms=tuple(terms))


def _guess(problem: CompiledProblem, kink: KinkPosition) -> float:
    natural = problem.to_natural(problem.guess)
    if isinstance(kink.term, QuantityPrior):
        return float(natural[kink.term.theta_index])
    return float(kink.term.expression.values(natural)[0][0])


def _with_fixed_values(result: Result, problem: CompiledProblem) -> Result:
    """Return a result as the start of a problem in which some quantities are fixed."""
    fixed_values = {q.name: q.guess for q in problem.quantities if q.lower == q.upper}
    return replace(
        result,
        parameters={n: fixed_values.get(n, v) for n, v in result.parameters.items()},
        initial_states={n: fixed_values.get(n, v) for n, v in result.initial_states.items()},
    )


def _places(result: Result, problem: CompiledProblem, kinks: Sequence[KinkPosition]) -> dict[int, KinkSide]:
    """Solve the problem linearized at a result, and return the position of each quantity relative to its kink."""
    theta = result.theta
    natural, slope = problem.to_natural(theta), problem.natural_slope(theta)
    prior_values = problem.priors(theta)
    curvature, gradient = np.array(result.information), result.gradient.copy()
    offsets = np.cumsum([0, *(term.curved.size for term in problem.every_prior)])
    jacobian = prior_values.jacobian.dense
    for kink in kinks:
        rows = slice(offsets[kink.prior_index], offsets[kink.prior_index + 1])
        gradient -= prior_values.rows[rows] @ jacobian[rows]
        slopes = jacobian[rows] * prior_values.curved[rows, None]
        curvature -= slopes.T @ slopes
    pairs = [kink.distance(natural) for kink in kinks]
    u, A = np.array([distance for distance, _ in pairs]), np.array([by_n * slope for _, by_n in pairs])
    is_free = np.array([q.lower == q.upper or q.name not in result.active for q in problem.quantities], dtype=np.bool_)
    size = np.sqrt(np.maximum(np.diag(curvature), 0.0))
    largest = np.max(np.abs(A), axis=0)
    unit = np.where(size > 0.0, size, np.where(largest > 0.0, largest, 1.0))[is_free]
    L = _lower_root(curvature[np.ix_(is_free, is_free)] / unit[:, None] / unit)
    c, Q = (scipy.linalg.solve_triangular(L, right / unit[:, None], lower=True) for right in (
        gradient[is_free, None], A[:, is_free].T))  # fmt: skip
    weight = np.array([1.0 / kink.prior.scale for kink in kinks])
    multiplier = weight * _dual(Q * weight, c[:, 0], u * weight, [kink.side for kink in kinks])
    squares = np.sum(Q**2, axis=0)  # 0 if bounds fix all quantities of u
    curvature_along = np.where(squares > 0.0, 1.0 / np.where(squares > 0.0, squares, 1.0), weight**2)
    kink_sides: dict[int, KinkSide] = {}
    for i, kink in enumerate(kinks):
        is_at_kink = abs(multiplier[i]) < (1.0 - _MULTIPLIER_TOLERANCE) * weight[i] and not kink.side
        sign = 0.0 if is_at_kink else float(np.sign(multiplier[i]))
        kink_sides[kink.prior_index] = KinkSide(sign, float(multiplier[i]), float(curvature_along[i]))
    return kink_sides


def _lower_root(H: Array) -> Array:
    """Return L (n, n), lower triangular, with L L^T = H except for a ridge; H may be indefinite by rounding."""
    values, vectors = np.linalg.eigh(H)
    roots = np.sqrt(np.maximum(values, 0.0) + _RIDGE_EIGENVALUE)
    return np.asarray(scipy.linalg.qr((vectors * roots).T, mode="r")[0], dtype=np.float64).T


def _dual(Q: Array, c: Array, u: Array, sides: Sequence[float]) -> Array:
    """Minimise 1/2 |c + Q x|^2 - u x over |x| <= 1; entries restricted by bounds to one side have x = side."""
    k = u.size
    ridge = np.sqrt(_RIDGE_EIGENVALUE) * np.diag(np.maximum(np.linalg.norm(Q, axis=0), np.finfo(float).tiny))
    square = np.vstack([Q, ridge])
    shift = np.linalg.pinv(square.T) @ u
    target = shift - np.append(c, np.zeros(k))
    lower, upper = np.array([s or -1.0 for s in sides]), np.array([s or 1.0 for s in sides])
    x = np.where(lower == upper, lower, 0.0)
    free = lower < upper
    if free.any():
        reduced_target = target - square[:, ~free] @ x[~free]
        x[free] = scipy.optimize.lsq_linear(square[:, free], reduced_target, (-1.0, 1.0), method="bvls", tol=1e-14).x
    return x


def _restore_kinks(
    problem: Posable,
    smooth: CompiledProblem,
    result: Result,
    kinks: Sequence[KinkPosition],
    signs: Sequence[float],
    *,
    is_converged: bool,
) -> Result:
    """Return a fit of the smooth problem as one of the problem with kinks, with the quantities at kinks."""
    compiled_problem = problem.posed
    with np.errstate(all="ignore"):
        kinked_cost, smooth_cost = compiled_problem.priors(result.theta).cost, smooth.priors(result.theta).cost
    cost_change = kinked_cost - smooth_cost if result.success or np.isfinite(kinked_cost) else 0.0
    neg2log_change = 2.0 * (cost_change + compiled_problem.prior_constant - smooth.prior_constant)
    assumed_problem = compiled_problem.with_absolute_sigma(absolute_sigma=result.absolute_sigma)
    active_kinks = [kink for kink, sign in zip(kinks, signs, strict=False) if sign == 0.0]
    names = {
        compiled_problem.names[kink.term.theta_index]: kink.prior.kink
        for kink in active_kinks
        if isinstance(kink.term, QuantityPrior)
    }
    note = ""
    if result.success:
        labels_off_kink = [k.term.description for k, sign in zip(kinks, signs, strict=False) if sign]
        note = _describe_kinks([k.term.description for k in active_kinks], labels_off_kink)
    status = result.status
    if result.success and not is_converged:
        status = Status.ACCEPTABLE
        note = f"{note} The set of quantities at kinks of their priors did not converge; try other starting points."
    chi2 = (
        result.chi2 + 2.0 * cost_change if assumed_problem.least_squares and not assumed_problem.groups else result.chi2
    )
    return replace(
        result,
        status=status,
        message=f"{result.message} {note}".strip(),
        cost=result.cost + cost_change,
        chi2=chi2,
        active={n: "kink" if n in names else side for n, side in result.active.items()},
        neg2loglik=result.neg2loglik + neg2log_change,
        neg2logprior=result.neg2logprior + neg2log_change,
        aic=result.aic + neg2log_change,
        bic=result.bic + neg2log_change,
        identifiability=_mark_kinks(result.identifiability, names),
        problem=problem,
    )


def _describe_kinks(labels_at_kink: Sequence[str], labels_off_kink: Sequence[str]) -> str:
    sentences = [f"{label}: {', '.join(names)}." for label, names in (
        ("At the kink of the prior", labels_at_kink), ("Off it", labels_off_kink)) if names]  # fmt: skip
    return " ".join(sentences)


def _mark_kinks(identifiability: Identifiability, names: Mapping[str, float]) -> Identifiability:
    if not names:
        return identifiability
    verdicts = tuple(
        IdentifiabilityStatus(v.name, AT_KINK, f"at the kink of its prior, {names[v.name]:g}") if v.name in names else v
        for v in identifiability.verdicts
    )
    return replace(identifiability, verdicts=verdicts, sentence=overall(verdicts, ""))
