"""Errors that depend on each other: a fit as if they did not, then generalised least squares, until nothing moves.

Unknown time constants tau and the unknown covariance S between outputs move nothing but the density of the errors, so
that their information and that of theta do not mix.  The joint likelihood is maximised in turns:

    theta      given tau, S:   minimise |W r(theta)|^2, W as in castfit.densities.noise.correlation
    tau        given theta:    minimise  sum_g n_g/2 log |W r|_g^2 + 1/2 |W r|_known^2 + 1/2 log |P(tau)|
                                         + 1/2 log |J^T W^T S^-2 W J|,    S the sigmas of the groups, J = dr/dtheta
    S          given theta:    S = (1/n) sum_t E[r_t r_t^T],  expected where an output was not measured (Dempster, Laird
                               and Rubin 1977); where all were, S = R^T R / n

The last term of tau makes it the restricted likelihood (Patterson and Thompson 1971, Biometrika 58, 545-554):
residuals are less alike than the errors were, since theta follows these.  Of an exponential with 40 values over six
time constants of its errors, 100 data sets, the median tau is 0.52 of the true one without it and 0.80 with it, and
95 % intervals of the rate hold the truth 89 and 91 times (98 where tau is known, 44 where errors count as independent).

S ends where the determinant |R^T R| is least (Box and Draper 1965, Biometrika 52, 355-365; Bard 1974).

The result's problem has the numbers that were found: profiles and samples hold at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy

from castfit._support.status import Status
from castfit.densities.noise.correlation import Across, CorrelationEstimates, InTime
from castfit.fit.refinement import FitQuestion, RefinedFit
from castfit.result.covariance import WRITTEN_OUT
from castfit.result.residuals import groups
from castfit.result.result import Result

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.compiled_problem import Posed

_ROUNDS = 60  # fits until numbers must stay
_NOWHERE = (Status.START_FAILED, Status.EVALUATION_FAILED)
_STILL = 1e-6  # relative change of what is estimated
_GRID = 41  # time constants that are tried first
_SHORT, _LONG = 0.05, 30.0  # of the shortest distance of data, and of their whole length
_EXACT = 1e-12  # relative change at which expectations of what was not measured end
_SINGULAR = 1e-10  # least eigenvalue of joint correlations
_RANK = 1e-9  # relative size of directions that the data do not determine
_STEP = 1e-3  # in the logarithm of a time constant, for curvatures
_TRIES, _FAR, _NEAR = 8, 3.0, 1.5  # of widths of the likelihood of a logarithm: how often, how far, how nearly


class CorrelatedErrors(RefinedFit):
    """Refinement of the error correlations, repeated until they no longer change."""

    what = "errors that depend on each other"

    def __init__(self, question: FitQuestion) -> None:
        self.problem = question.problem
        posed = self.problem.posed
        self.said = posed.correlations
        self.labels = tuple(dict.fromkeys(c.label for c in self.said if isinstance(c, InTime) and c.label))
        self.joint = tuple(dict.fromkeys(n for c in self.said if isinstance(c, Across) and c.unknown for n in c.names))
        self.found: CorrelationEstimates | None = None
        if isinstance(question.start, Result):  # of the same errors, with what was found of them
            self.found = question.start.errors
        self.rounds, self.settled, self.notes = 0, False, list[str]()
        self.residuals: _Residuals | None = None

    def begun(self, question: FitQuestion) -> FitQuestion:
        """Return the problem in which errors are independent, or are what an earlier result says."""
        return replace(question, problem=self.problem.posed.with_errors(self.found))

    def refined(self, answer: Result) -> FitQuestion | None:
        """Return the problem at likelier numbers, unless they stay."""
        first = self.found is None  # and answers another question than that of errors that depend on each other
        led = not answer.status.cut_off and answer.status not in _NOWHERE
        if not (answer.success or (first and led)) or self.rounds == _ROUNDS:
            return None
        self.rounds += 1
        posed = self.problem.posed
        self.residuals = residuals = _Residuals.of(answer, posed.with_errors(self.found))
        new = estimated(posed, self.labels, self.joint, residuals, self.found)
        if self.joint and _least_correlation(new) < _SINGULAR:
            alike = f"The errors of {', '.join(self.joint)} are so strongly correlated that their covariance matrix"
            self.notes = [f"{alike} is singular: some combination of outputs is fitted exactly. Remove one of these outputs."]
            return None
        if self.found is not None and _moved(self.found, new) <= _STILL:
            self.settled = True
            return None
        self.found = new
        return FitQuestion(posed.with_errors(new), answer, near=True)

    def concluded(self, answer: Result) -> Result:
        """Return the result with the estimated error correlations."""
        said = list(self.notes)
        if self.found is None or self.notes:
            said += ["The errors were still treated as independent."] if not answer.success else []
        elif answer.success and not self.settled:
            said.append("The error correlation did not converge: the last iteration still changed it.")
        found = self.found or CorrelationEstimates({})
        if not answer.success and (found.times or found.joint):
            said.append("The error correlation is that of an intermediate iteration.")
        status = Status.DIVERGING if self.notes and answer.success else answer.status
        more = len(self.labels) + (len(self.joint) * (len(self.joint) + 1) // 2 - 1 if self.joint else 0)
        n = np.log(answer.n_data)
        ended = answer.ended(status, " ".join([answer.message, *said, *(told(found) if answer.success else ())]))
        if self.settled and self.residuals is not None:
            for label in self.labels:
                ended = widened(ended, self.problem.posed, label, found, self.residuals)
        return replace(
            ended, errors=found, n_estimated=answer.n_estimated + more, aic=answer.aic + 2.0 * more,
            bic=answer.bic + more * float(n),
        )  # fmt: skip


def estimated(
    posed: Posed, labels: tuple[str, ...], joint: tuple[str, ...], residuals: _Residuals,
    before: CorrelationEstimates | None,
) -> CorrelationEstimates:  # fmt: skip
    """Return the likeliest numbers given residuals (n,), in units of the data's weights, per experiment."""
    times, errors = dict(before.times) if before else {}, dict[str, float]()
    for label in labels:
        times[label], errors[label] = _likeliest_time(posed, label, times, residuals)
    rows: list[list[float]] = _joint_covariance(posed, joint, residuals.r, before).tolist() if joint else []
    return CorrelationEstimates(times, joint, tuple(tuple(row) for row in rows), errors)


@dataclass(frozen=True)
class _Residuals:
    """Residuals and their derivatives, in units of the data's weights, per experiment; those of `priors`."""

    r: list[Array]
    J: list[Array]
    priors: Array

    @classmethod
    def of(cls, answer: Result, posed: Posed) -> _Residuals:
        """Build the residuals and Jacobians from a fit, whose Jacobian is that of independent errors."""
        sizes = [int(c.points.mask.sum()) for c in posed.conditions]
        free = np.array([name not in answer.active for name in answer.names], dtype=np.bool_)
        J = scipy.sparse.csr_array(answer.jacobian).toarray()[:, free]
        own, slopes = np.split(answer.residuals, np.cumsum(sizes)[:-1]), np.split(J, np.cumsum(sizes))
        for i, condition in enumerate(posed.conditions):
            found = condition.whitening(posed.outputs)
            if found is not None and slopes[i].size:
                slopes[i] = found.coloured(slopes[i]).reshape(slopes[i].shape)
        return cls(own, slopes[:-1], slopes[-1])

    def at(self, moved: Array) -> _Residuals:
        """Return the residuals after a change of theta, to first order."""
        return replace(self, r=[r + J @ moved for r, J in zip(self.r, self.J, strict=True)])


def _likeliest_time(posed: Posed, label: str, times: dict[str, float], residuals: _Residuals) -> tuple[float, float]:
    """Return a time constant, the others given, and the standard error of its logarithm."""
    own = [
        c.points.times[c.points.mask[:, j]]
        for c in posed.conditions
        for j, o in enumerate(c.observed)
        if o is not None and getattr(getattr(o.noise, "correlation", None), "label", "") == label
    ]
    shortest = min((float(np.diff(t).min()) for t in own if t.size > 1), default=1.0)
    longest = max((float(t[-1] - t[0]) for t in own), default=1.0) or shortest

    def cost(log_time: float) -> float:
        return _cost(posed, {**times, label: float(np.exp(log_time))}, residuals)

    first, last = float(np.log(_SHORT * shortest)), float(np.log(_LONG * longest))
    grid = [first + (last - first) * k / (_GRID - 1) for k in range(_GRID)]
    k = int(np.argmin([cost(x) for x in grid]))
    low, high = grid[max(k - 1, 0)], grid[min(k + 1, _GRID - 1)]
    x = float(scipy.optimize.minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": 1e-9}).x)
    bend = (cost(x + _STEP) - 2.0 * cost(x) + cost(x - _STEP)) / _STEP**2
    return float(np.exp(x)), float(bend**-0.5) if bend > _STEP else np.inf


def widened(answer: Result, posed: Posed, label: str, found: CorrelationEstimates, residuals: _Residuals) -> Result:
    """Return the result with the uncertainty of a time constant included in its covariance."""
    free = np.flatnonzero([name not in answer.active for name in answer.names])
    if not free.size or len(answer.names) > WRITTEN_OUT:
        return answer
    covariance: Array = np.array(answer.covariance, dtype=float)
    own = covariance[np.ix_(free, free)]
    if not np.isfinite(own).all():
        return answer
    slope = posed.natural_slope(answer.theta)[free]
    best = _Weighted.at(posed, found.times, residuals)
    unbiased = float(np.mean(np.diag(own) / (slope**2 * np.diag(best.covariance))))
    sides: list[tuple[float, Array]] = []
    for sign in (1.0, -1.0):
        reach = min(found.errors[label], 1.0)
        for _ in range(_TRIES):
            times = {**found.times, label: found.times[label] * float(np.exp(sign * reach))}
            near = _Weighted.at(posed, times, residuals)
            moved = near.covariance @ (best.gradient - near.gradient)
            there = _Weighted.at(posed, times, residuals.at(moved))
            fall = float(np.sqrt(max(there.cost - best.cost, 1e-12) / 0.5))
            if 1.0 / _NEAR < fall < _NEAR or reach == _FAR:
                scale = fall if fall < _NEAR and reach < _FAR else max(fall, 1.0)
                more = unbiased * (there.covariance - best.covariance) + np.outer(moved, moved)
                sides.append((reach / scale, more / scale**2))
                break
            reach = min(reach / fall, 4.0 * reach, _FAR)
    whole = sum(width for width, _ in sides)
    added = sum((width / whole * more for width, more in sides), np.zeros_like(own))
    values, vectors = np.linalg.eigh(added)  # what is unsure makes nothing surer
    own = own + (vectors * np.maximum(values, 0.0)) @ vectors.T * np.outer(slope, slope)
    covariance[np.ix_(free, free)] = own
    deviation = np.sqrt(np.diag(covariance))
    errors = {answer.names[j]: float(deviation[j]) for j in free.tolist()}
    return replace(
        answer, covariance=covariance, correlation=covariance / np.outer(deviation, deviation),
        standard_errors={**answer.standard_errors, **errors},
    )  # fmt: skip


@dataclass(frozen=True)
class _Weighted:
    """Least squares at time constants, with the likeliest sigma of every group.

    covariance : of theta;  gradient : of the squares by it, without priors;  cost : -log of the restricted likelihood,
        but for constants
    """

    covariance: Array
    gradient: Array
    cost: float

    @classmethod
    def at(cls, posed: Posed, times: Mapping[str, float], residuals: _Residuals) -> _Weighted:
        """Whiten the data and weight them."""
        given, total = posed.with_errors(CorrelationEstimates(times)), 0.0
        rows: list[Array] = []
        for condition, r, J in zip(given.conditions, residuals.r, residuals.J, strict=True):
            both, whitening = np.column_stack([r, J]), condition.whitening(given.outputs)
            rows.append(both if whitening is None else whitening.W @ both)
            total += 0.0 if whitening is None else 0.5 * whitening.log_det
        every, group = np.concatenate(rows), groups(given)
        sizes = np.bincount(group[group >= 0], minlength=len(given.groups))
        squares = np.bincount(group + 1, every[:, 0] ** 2, minlength=len(given.groups) + 1)
        variance = np.maximum(squares[1:] / np.maximum(sizes, 1), np.finfo(float).tiny)
        total += 0.5 * float(np.sum(sizes * np.log(variance))) + 0.5 * float(squares[0])
        every = every / np.sqrt(np.append(variance, 1.0))[group][:, None]
        slopes = np.concatenate([every[:, 1:], residuals.priors])
        _, size, right = np.linalg.svd(slopes, full_matrices=False)
        kept = size > _RANK * size[:1].sum()
        root = right[kept].T / size[kept]
        return cls(root @ root.T, every[:, 1:].T @ every[:, 0], total + float(np.sum(np.log(size[kept]))))


def _cost(posed: Posed, times: Mapping[str, float], residuals: _Residuals) -> float:
    return _Weighted.at(posed, times, residuals).cost


def _joint_covariance(
    posed: Posed, joint: tuple[str, ...], residuals: list[Array], before: CorrelationEstimates | None
) -> Array:
    """Return the likeliest covariance of the errors of `joint` outputs."""
    rows: list[Array] = []
    at = posed.with_errors(before)
    for condition, r in zip(at.conditions, residuals, strict=True):
        table = np.full(condition.points.mask.shape, np.nan)
        table[condition.points.mask] = r
        own = table * condition.points.sigma  # in the unit of the data
        rows.append(own[:, [at.outputs.index(n) for n in joint]])
    every = np.concatenate(rows)
    R = every[np.isfinite(every).any(axis=1)]
    S = np.array(before.covariance) if before else np.diag(np.nanmean(R**2, axis=0))
    for _ in range(1 if np.isfinite(R).all() else 500):
        new = np.zeros_like(S)
        for pattern in np.unique(np.isfinite(R), axis=0):
            here = R[(np.isfinite(R) == pattern).all(axis=1)]
            full = np.zeros((len(here), len(joint)))
            full[:, pattern] = here[:, pattern]
            slope = np.linalg.solve(S[np.ix_(pattern, pattern)], S[np.ix_(pattern, ~pattern)])
            full[:, ~pattern] = here[:, pattern] @ slope
            new += full.T @ full
            new[np.ix_(~pattern, ~pattern)] += len(here) * (
                S[np.ix_(~pattern, ~pattern)] - S[np.ix_(~pattern, pattern)] @ slope
            )
        moved = np.abs(new / len(R) - S).max()
        S[:] = new / len(R)
        if moved <= _EXACT * np.abs(S).max():
            break
    return 0.5 * (S + S.T)


def _least_correlation(found: CorrelationEstimates) -> float:
    S = np.array(found.covariance)
    deviation = np.sqrt(np.diag(S))
    ok = (deviation > 0.0).all()
    return float(np.linalg.eigvalsh(S / np.outer(deviation, deviation))[0]) if ok else 0.0


def _moved(before: CorrelationEstimates, after: CorrelationEstimates) -> float:
    """Return the largest relative change; of a covariance in units of its deviations."""
    moved = [abs(np.log(after.times[n] / t)) if n in after.times else np.inf for n, t in before.times.items()]
    if after.joint:
        S = np.array(after.covariance)
        old = np.array(before.covariance) if before.covariance else np.zeros_like(S)
        deviation = np.sqrt(np.diag(S))
        moved.append(float((np.abs(S - old) / np.outer(deviation, deviation)).max()))
    return max(moved, default=0.0)


def told(found: CorrelationEstimates) -> Iterable[str]:
    """Describe the estimated error correlations, one sentence each."""
    for name, time in found.times.items():
        error = found.errors.get(name, np.inf)
        if np.isfinite(error) and error < 1.0:
            low, high = time * np.exp(-1.96 * error), time * np.exp(1.96 * error)
            yield f"Correlation time of the errors of {name}: {time:.3g} (95 % interval {low:.3g} to {high:.3g})."
        else:
            yield f"The correlation time of the errors of {name} is not identifiable (most likely value {time:.3g})."
    if found.joint:
        S = np.array(found.covariance)
        deviation = np.sqrt(np.diag(S))
        each = ", ".join(f"{d:.3g} of {n}" for n, d in zip(found.joint, deviation.tolist(), strict=True))
        pairs = [(i, j) for i in range(len(S)) for j in range(i)]
        i, j = max(pairs, key=lambda p: abs(S[p] / deviation[p[0]] / deviation[p[1]]))
        r = S[i, j] / deviation[i] / deviation[j]
        most = "" if len(pairs) == 1 else ", the strongest"
        yield f"Error standard deviations: {each}; correlation of {found.joint[j]} and {found.joint[i]}: {r:.2f}{most}."
