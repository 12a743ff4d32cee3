"""Evidences of models, and averages of their values.

The evidence is the probability density of the data, integrated over the priors of the quantities of a model.

Notation, search scale:  theta, p(theta) prior, L likelihood, n quantities, I information at the optimum

    Z = integral of L p over theta
    Laplace:  log Z = log(L p) + n/2 log 2 pi - 1/2 log det I + log P                  [Tierney and Kadane 1986]
    bridge:   r <- mean_2(l / (s1 l + s2 r)) / mean_1(1 / (s1 l + s2 r)),  l = L p / g  [Meng and Wong 1996]

P is the probability of N(theta, I^-1) between the bounds of the quantities and within constraints on them, linear at
theta: a share of the peak near a bound is beyond it.  mean_1 is over draws of the posterior, mean_2 over draws of a
normal proposal g, which is fitted to other draws; s1 and s2 are their shares, by the effective number of draws (Gronau
et al. 2017).  The relative mean square error of r follows Fruehwirth-Schnatter (2004).  An eliminated unknown sigma is
integrated over, with the improper prior 1 / sigma, which cancels in ratios, because all candidates have it.

Averages of estimates and predictions, with the weight w of a model, its value x, and the standard error s of the value:

    mean  sum w x,   standard error  sum w sqrt(s^2 + (x - mean)^2)        [Burnham and Anderson 2002, equation 4.9]
    intervals and bands  quantiles of the mixture  P(y) = sum w P_model(y)          [Turek and Fletcher 2012]

An average of limits would not be a limit of the mixture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lgamma
from typing import Any

import numpy as np
import scipy

from castfit._support.arrays import Array, Mask
from castfit._support.public_names import public
from castfit._support.status import raise_if_mistakes, unknown_names
from castfit._support.text_tables import TabularReport, TextTable
from castfit._support.ties import stable_order
from castfit.drive.uncertainty.sample.posterior import jacobian_signs, posterior
from castfit.drive.uncertainty.sample.sample import sample
from castfit.problem.compiled_problem import CompiledProblem
from castfit.result.covariance import quantile
from castfit.result.residuals import groups
from castfit.result.result import Result

_MAX_FIXED_POINT_ITERATIONS = 1000  # iterations of the bridge estimate
_FIXED_POINT_RTOL = 1e-12  # relative change at which they end
_FAR_BOUND_SD = 6.0  # standard deviations to a bound, from which on no mass is beyond it
_MIN_DRAWS_PER_QUANTITY = 8  # draws of a posterior, below which no evidence is computed


@dataclass(frozen=True)
class Evidence:
    """log Z of one model, its standard error (0 by Laplace's formula, whose error is unknown), and a remark."""

    log: float
    error: float = 0.0
    remark: str = ""


@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class EvidenceTable(TabularReport):
    """Evidences of models; ``print`` shows a table.

    Attributes
    ----------
    found : dict
        By model its evidence: ``log``, the standard ``error`` of that, and a ``remark``.
    method : {"laplace", "bridge"}
        Method by which they were computed.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, m = cf.symbols("x k m")
    >>> model = cf.Model({x: -k * x - m}, parameters=[k, m], initial={x: 2})
    >>> data = cf.Experiment({"x": [1.49, 1.09, 0.83, 0.59, 0.46, 0.33]}, time=[1, 2, 3, 4, 5, 6], sigma=0.02)
    >>> known = {n: cf.Parameter(0.5, prior=cf.Normal(0.5, 1.0)) for n in "km"}
    >>> problem = cf.Problem(model, data, parameters=known)
    >>> found = cf.select(problem, choices={"k": [0, cf.estimated], "m": [0, cf.estimated]})
    >>> found.evidence().weights["k"] > 0.9
    True
    """

    found: Mapping[str, Evidence]
    method: str

    def __getitem__(self, name: str) -> Evidence:
        """Return the evidence of a model."""
        raise_if_mistakes("evidence", unknown_names("unknown model '{}'", [name], self.found))
        return self.found[name]

    @property
    def weights(self) -> dict[str, float]:
        """Posterior probabilities of the models with known evidence, for equal prior probabilities."""
        logs = {n: e.log for n, e in self.found.items() if np.isfinite(e.log)}
        max_log = max(logs.values(), default=0.0)
        total = sum(np.exp(v - max_log) for v in logs.values())
        return {n: float(np.exp(v - max_log) / total) for n, v in logs.items()}

    def log_bayes_factor(self, one: str, other: str) -> float:
        """Return the logarithm of the ratio of the evidence of one model to that of another."""
        return self[one].log - self[other].log

    @property
    def sheet(self) -> TextTable:
        """The table, the most probable model first."""
        names = sorted(self.found)
        ranks = stable_order([self.found[n].log for n in names], descending=True, scale=1.0)
        order = [names[int(i)] for i in ranks.flat]
        weights = self.weights
        return TextTable.from_items(
            order,
            ("model", lambda n: n),
            (">log evidence", lambda n: f"{self.found[n].log:.4f}" if np.isfinite(self.found[n].log) else "-"),
            (">+-", lambda n: f"{self.found[n].error:.2g}" if self.found[n].error else ""),
            (">probability", lambda n: f"{weights[n]:.3g}" if n in weights else "-"),
            ("", lambda n: self.found[n].remark),
        )

    @property
    def parts(self) -> tuple[TextTable | str, ...]:
        """The table, and its method."""
        laplace = "Laplace approximation (exact for normal posteriors)"
        method_name = laplace if self.method == "laplace" else "Bridge sampling"
        return self.sheet, f"{method_name}. The evidence depends on the priors: wider priors reduce it."


def quantities_without_prior(compiled_problem: CompiledProblem) -> list[str]:
    """Return the names of quantities without prior and without finite bounds, for which a model has no evidence."""
    lower, upper = compiled_problem.bounds
    has_prior = _with_prior(compiled_problem)
    return [
        n for j, n in enumerate(compiled_problem.names) if not has_prior[j] and not np.isfinite(upper[j] - lower[j])
    ]


def _with_prior(compiled_problem: CompiledProblem) -> Mask:
    """Return a mask of the quantities that have a prior of their own or a joint prior, (n,)."""
    has_prior = np.array([q.prior is not None for q in compiled_problem.quantities], dtype=bool)
    for term in compiled_problem.prior_terms:
        has_prior[np.unique(getattr(term, "theta_index", []))] = True
    return has_prior


def _constant(compiled_problem: CompiledProblem) -> float:
    """Compute the terms of log(L p) besides -neg2loglik / 2: flat priors, and sigmas integrated over."""
    lower, upper = compiled_problem.bounds
    flat = ~_with_prior(compiled_problem)
    total = -float(np.sum(np.log((upper - lower)[flat])))
    group = groups(compiled_problem)
    for size in np.bincount(group[group >= 0]).tolist():
        m = 0.5 * size  # for the integral of L / sigma, relative to the largest L
        total += float(np.log(0.5) + lgamma(m) + m - m * np.log(m))
    return total


def laplace(result: Result) -> Evidence:
    """Return the evidence by Laplace's formula; NaN if the optimum is at a bound or constraint, and so no peak."""
    if undefined_evidence := _evidence_undefined(result):
        return undefined_evidence
    compiled_problem = _compile_problem(result)
    reasons = [f"{n} at a bound" for n in result.names if n in result.active]
    reasons += [f"'{row.name}' holds" for row in result.constraints.active]
    reasons += ["some quantities are not identifiable"] if result.undetermined.size else []
    if reasons:
        return Evidence(
            np.nan, remark=f"the Laplace approximation is not valid: {', '.join(reasons)}; use sampling=True"
        )
    theta, n = result.theta, len(result.names)
    log_lp = -0.5 * result.neg2loglik + _constant(compiled_problem) + _to_theta(compiled_problem, theta)
    _, determinant = np.linalg.slogdet(np.asarray(result.information)) if n else (1.0, 0.0)
    log_mass = _log_allowed_mass(compiled_problem, result)
    return Evidence(float(log_lp + 0.5 * n * np.log(2 * np.pi) - 0.5 * determinant + log_mass))


def _log_allowed_mass(compiled_problem: CompiledProblem, result: Result) -> float:
    """Return the log of the probability of the normal posterior within bounds and constraints on quantities."""
    from scipy.stats import multivariate_normal  # slow to import

    values, slopes = compiled_problem.evaluate_relations(result.theta)
    limits = np.array([(r.lower, r.upper) for r in compiled_problem.relations]).reshape(-1, 2)
    rows = np.concatenate([np.eye(result.theta.size), slopes]) @ result.root
    deviations = np.linalg.norm(rows, axis=1)
    ends = np.concatenate([np.transpose(compiled_problem.bounds), limits])
    with np.errstate(invalid="ignore", divide="ignore"):
        ends = (ends - np.concatenate([result.theta, values])[:, None]) / deviations[:, None]
    near = np.flatnonzero(np.abs(ends).min(axis=1, initial=np.inf) < _FAR_BOUND_SD)
    if not near.size:
        return 0.0
    (low, high), unit_rows = ends[near].T, rows[near] / deviations[near, None]
    normal: Any = multivariate_normal(cov=unit_rows @ unit_rows.T, allow_singular=True, seed=0)
    return float(np.log(normal.cdf(high, lower_limit=low)))


def _evidence_undefined(result: Result) -> Evidence | None:
    """Return NaN as evidence if an equation ties quantities, which leaves their priors without a density.

    Return None otherwise.
    """
    equal = [f"'{row.name}'" for row in result.constraints.active if row.active == "equal"]
    if not equal:
        return None
    statement = f"{', '.join(equal)} {'ties' if len(equal) == 1 else 'tie'} quantities"
    explanation = "whose constraint leaves the prior without a density; write one quantity in terms of the others"
    return Evidence(np.nan, remark=f"no evidence: {statement}, {explanation}")


def _compile_problem(result: Result) -> CompiledProblem:
    assert result.problem is not None
    return result.problem.posed.with_absolute_sigma(absolute_sigma=result.absolute_sigma)


def _to_theta(compiled_problem: CompiledProblem, theta: Array) -> float:
    """Return the log of the derivatives that transform prior densities of natural values to theta."""
    signs = jacobian_signs(compiled_problem)
    logs = np.where(compiled_problem.log, theta, np.log(np.maximum(theta, np.finfo(float).tiny)))
    return float(np.sum(np.where(signs != 0, signs * logs, 0.0)))


def bridge(result: Result, draws: int, rng: np.random.Generator, workers: Any = 1) -> Evidence:
    """Return the evidence by bridge sampling from draws of the posterior."""
    if undefined_evidence := _evidence_undefined(result):
        return undefined_evidence
    compiled_problem = _compile_problem(result)
    if not result.names:
        return Evidence(-0.5 * result.neg2loglik + _constant(compiled_problem))
    sampling_result = sample(result, draws=draws, rng=int(rng.integers(2**31)), workers=workers, verbose=0)
    chain, heights = sampling_result.chain, sampling_result.log_density
    min_effective = min(sampling_result.ess.values())
    if not np.isfinite(min_effective) or chain.shape[0] * chain.shape[1] < _MIN_DRAWS_PER_QUANTITY * len(result.names):
        return Evidence(np.nan, remark="too few samples; increase draws")
    density = posterior(compiled_problem, result.theta, result.integrator)
    at_best = density(result.theta)[0] - _to_theta(compiled_problem, result.theta)
    shift = -0.5 * result.neg2loglik + _constant(compiled_problem) - at_best  # from the sampler's density to log(L p)
    n, steps = len(result.names), chain.shape[1]
    halves = slice(0, steps // 2), slice(steps // 2, steps)
    pairs = [
        bridge_estimate(
            chain[:, fitting].reshape(-1, n), chain[:, averaged].reshape(-1, n), heights[:, averaged].ravel(), density,
            max(0.5 * min_effective, 2.0), rng,
        )
        for fitting, averaged in (halves, halves[::-1])
    ]  # fmt: skip
    logs, squares = [log for log, _ in pairs], [error**2 for _, error in pairs]
    error = float(np.sqrt(0.5 * np.mean(squares) + 0.5 * np.var(logs)))
    remark = "" if sampling_result.converged else sampling_result.sentence
    return Evidence(float(np.mean(logs)) + shift, error, remark)


def bridge_estimate(
    fitting: Array, draws: Array, heights: Array, density: Any, effective: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the log of the integral of a density, and its standard error.

    fitting (m, n) : draws that determine the proposal
    draws (m, n), heights (m,) : draws for the estimate, and their log density
    effective : effective number of these draws
    """
    n = draws.shape[1]
    centre: Array = fitting.mean(axis=0)
    root = np.asarray(np.linalg.cholesky(np.cov(fitting.T).reshape(n, n)), dtype=float)
    proposals = centre + rng.standard_normal((draws.shape[0], n)) @ root.T

    def log_g(theta: Array) -> Array:
        u = np.asarray(np.linalg.solve(root, (theta - centre).T), dtype=float)
        return -0.5 * np.sum(u**2, axis=0) - np.sum(np.log(np.diag(root))) - 0.5 * n * np.log(2 * np.pi)

    l1 = heights - log_g(draws)
    l2 = np.array([density(theta)[0] for theta in proposals]) - log_g(proposals)
    median = float(np.median(l1))
    l1, l2 = np.exp(l1 - median), np.exp(l2 - median)
    n1, n2 = effective, float(len(l2))
    s1, s2 = n1 / (n1 + n2), n2 / (n1 + n2)
    r = 1.0
    for _ in range(_MAX_FIXED_POINT_ITERATIONS):
        previous_r, r = r, float(np.mean(l2 / (s1 * l2 + s2 * r)) / np.mean(1.0 / (s1 * l1 + s2 * r)))
        if abs(r - previous_r) <= _FIXED_POINT_RTOL * r:
            break
    f1, f2 = l2 / (s1 * l2 + s2 * r), r / (s1 * l1 + s2 * r)  # Fruehwirth-Schnatter 2004, equation 20
    square = np.var(f1) / np.mean(f1) ** 2 / n2 + np.var(f2) / np.mean(f2) ** 2 / n1
    return float(np.log(r)) + median, float(np.sqrt(square))


def evidences(results: Mapping[str, Result], *, sampling: bool, draws: int, rng: Any, workers: Any) -> EvidenceTable:
    """Return the evidence of each model.

    Raises InputError with every quantity that has neither a prior nor finite bounds.
    """
    improper_by_model = {n: quantities_without_prior(_compile_problem(r)) for n, r in results.items()}
    improper_names = list(dict.fromkeys(q for names in improper_by_model.values() for q in names))
    raise_if_mistakes("evidence", [f"'{q}' has neither a prior nor two finite bounds, so the evidence is undefined; "
                                   "set one of them" for q in improper_names])  # fmt: skip
    generator = np.random.default_rng(rng)
    evidence_by_model = {
        n: bridge(r, draws, generator, workers) if sampling else laplace(r) for n, r in results.items()
    }
    return EvidenceTable(evidence_by_model, "bridge" if sampling else "laplace")


_QUANTILE_BISECTIONS = 80  # halvings of an interval that contains a quantile


@dataclass(frozen=True)
class WeightedValues:
    """Values of models (k,) or (k, n) and their standard errors, weights (k,), degrees of freedom (k,) of the noise."""

    values: Array
    errors: Array
    weights: Array
    dofs: Array

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[Array | float, Array | float, float, float]]) -> WeightedValues:
        """Collect value, error, weight and degrees of freedom of each model; weights are normalised to sum to 1."""
        values, errors, weights, dofs = zip(*rows, strict=True)
        w = np.array(weights, dtype=float)
        return cls(np.array(values, float), np.array(errors, float), w / w.sum(), np.array(dofs, float))

    @property
    def mean(self) -> Array:
        """Weighted mean of the values."""
        return self._summed(self.values)

    @property
    def error(self) -> Array:
        """Averaged standard error, including differences between models."""
        return self._summed(np.hypot(self.errors, self.values - self.mean))

    def _summed(self, component_values: Array) -> Array:
        return np.asarray(np.tensordot(self.weights, component_values, axes=1), dtype=float)

    def quantiles(self, p: float) -> Array:
        """Return the quantile p (n,) of the mixture, by bisection."""
        finite = np.isfinite(self.errors)
        unbounded_weight = self._summed((~finite).astype(float))
        size: Array = np.where(finite, self.errors, 0.0).max(axis=0)
        tails = np.array([quantile(1.0 - 2e-9, dof) for dof in self.dofs])
        low: Array = (self.values.T - tails * size[:, None]).min(axis=1) - size
        high: Array = (self.values.T + tails * size[:, None]).max(axis=1) + size
        if np.any(unbounded_weight):
            low, high = low - 1.0, high + 1.0
        for _ in range(_QUANTILE_BISECTIONS):
            middle: Array = 0.5 * (low + high)
            below = self.distribution(middle) < p
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        quantiles = 0.5 * (low + high)
        quantiles = np.where(unbounded_weight / 2 >= p, -np.inf, quantiles)
        return np.where(1.0 - unbounded_weight / 2 <= p, np.inf, quantiles)

    def distribution(self, y: Array) -> Array:
        """Return P(y) of the mixture; a model that does not determine the value contributes 1/2."""
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled = np.where(np.isinf(self.errors), 0.0, (y - self.values) / self.errors)
        scaled = np.where(np.isnan(scaled), 0.0, scaled)
        component_distributions: list[Any] = [scipy.special.ndtr(u) if np.isinf(dof) else scipy.special.stdtr(dof, u)
                           for u, dof in zip(scaled, self.dofs, strict=True)]  # fmt: skip
        return self._summed(np.array(component_distributions, dtype=float))
