"""The likelihood ratio test of a smaller model against a larger model that contains it.

Notation
--------
T   2 log(L_large / L_small);  d  number of additional directions that the larger model determines
b   number of quantities of the larger model that are at a bound where it equals the smaller one

    T is chi2(d) if the smaller model is right                                                     [Wilks 1938]
    with b at a bound:  sum over i of  w_i chi2(d - b + i),  w_i the probability that i of the b estimates would
    be off their bounds: 2^-b binomial(b, i), if these are independent                             [Self and Liang 1987]
    one unknown sigma:  F = ((SSE_small - SSE_large) / m) / (SSE_large / (dof_small - m))  is F(m, dof_small - m) in the
    place of chi2(m), which is exact for few data                                                  [Wolak 1987]

For a normal z of covariance V, with J off their bounds and K on them, z_J conditional on z_K and the multipliers
V_KK^-1 z_K are independent.  Each w_i is therefore a sum of products of two orthant probabilities over all J of size i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from castfit._support.arguments import describe_rejected, is_one_of, shorten_repr
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit._support.time_limit import interruptible
from castfit.fit.fit import fit
from castfit.problem.problem import Problem
from castfit.result.covariance import MAX_WRITTEN_OUT_QUANTITIES
from castfit.result.result import Result
from castfit.result.same_data import data_mistakes
from castfit.transcribe.single_shooting import SingleShooting

_MAX_PREDICTION_DIFFERENCE_SD = 1e-2  # root mean square in standard deviations, up to which predictions are equal
_STATISTIC_ERROR = 1e-3  # of T: error that two fits may contribute
_BOUND_RTOL = 1e-6  # distance up to which a quantity is at its bound, relative to its size or uncertainty
_REJECTION_LEVEL = 0.05  # p-value below which the smaller model is rejected
_MIN_EIGENVALUE_FRACTION = 1e-12  # relative to the trace: a covariance with a smaller one is singular
_MAX_EXACT_BOUNDS = 3  # quantities at bounds up to which the weights have a closed form
_WEIGHT_DRAWS = 5000  # draws, always the same, that estimate the weights of more quantities at bounds


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False, repr=False)
class LikelihoodRatio:
    """A likelihood ratio test; ``print`` shows its sentence.

    Attributes
    ----------
    statistic : float
        T = 2 log(L_large / L_small).
    dof : int
        Number of additional directions that the larger model determines.
    p_value : float
        Probability of a T at least as large if the smaller model is right.
    distribution : {"chi2", "F"}
        F if the data share one unknown standard deviation.
    at_bound : tuple of str
        Additional quantities of the larger model that are at a bound where it equals the smaller one.
    sentence : str

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, n = cf.symbols("x k n")
    >>> data = cf.Experiment({"x": [0.80, 0.66, 0.57, 0.50, 0.44]}, time=[1, 2, 3, 4, 5], sigma=0.01, initial={"x": 1})
    >>> first = cf.Model({x: -k * x}, parameters=[k])
    >>> order = cf.Model({x: -k * x**n}, parameters=[k, n])
    >>> one = cf.fit(cf.Problem(first, data, parameters={"k": 0.3}))
    >>> two = cf.fit(cf.Problem(order, data, parameters={"k": 0.3, "n": cf.Parameter(1.0, lower=0)}))
    >>> cf.likelihood_ratio(one, two).p_value < 0.001
    True
    """

    statistic: float
    dof: int
    p_value: float
    distribution: str
    at_bound: tuple[str, ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@interruptible
def likelihood_ratio(smaller: Result, larger: Result, *, nested: bool | None = None) -> LikelihoodRatio:
    """Test whether the data reject a model in favour of a larger model that contains it.

    Parameters
    ----------
    smaller, larger : Result
        Fits of the same data, without priors.
    nested : bool, optional
        True asserts that the larger model contains the smaller one.  By default this is checked: the larger one must
        make the same predictions, at the smaller one's estimates if it has the same quantities (and others that the
        smaller one fixes), or after a fit to the smaller one's predictions.

    Raises
    ------
    InputError
        If data differ, a fit failed, there are priors, or the models are not nested.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, n = cf.symbols("x k n")
    >>> data = cf.Experiment({"x": [0.80, 0.66, 0.57, 0.50, 0.44]}, time=[1, 2, 3, 4, 5], sigma=0.01, initial={"x": 1})
    >>> first = cf.Model({x: -k * x}, parameters=[k])
    >>> order = cf.Model({x: -k * x**n}, parameters=[k, n])
    >>> one = cf.fit(cf.Problem(first, data, parameters={"k": 0.3}))
    >>> two = cf.fit(cf.Problem(order, data, parameters={"k": 0.3, "n": cf.Parameter(1.0, lower=0)}))
    >>> test = cf.likelihood_ratio(one, two)
    >>> test.dof, round(test.statistic)
    (1, 41)
    """
    results_by_role: dict[str, Any] = {"smaller": smaller, "larger": larger}
    mistakes = [
        f"{n} is {describe_rejected(r, 'expected the result of a fit')}"
        for n, r in results_by_role.items()
        if not isinstance(r, Result)
    ]
    raise_if_mistakes("likelihood_ratio", mistakes)
    if not is_one_of(nested, True, None):
        mistakes.append(
            f"nested is {shorten_repr(nested)}; pass True, or omit it to test whether the models are nested"
        )
    mistakes += [
        f"the fit of the {n} model failed; the test needs both optima"
        for n, r in results_by_role.items()
        if not r.success
    ]
    mistakes += [
        f"the {n} model has priors; fit it without priors, or use cf.compare_models"
        for n, r in results_by_role.items()
        if r.neg2logprior != 0.0 or (r.problem is not None and r.problem.posed.every_prior)
    ]
    mistakes += data_mistakes(smaller, larger, ("the smaller fit", "the larger fit"))
    raise_if_mistakes("likelihood_ratio", mistakes)
    d = _dimension(larger) - _dimension(smaller)
    if d <= 0:
        counts = f"the larger model determines {_dimension(larger)} numbers, the smaller one {_dimension(smaller)}"
        raise_if_mistakes(
            "likelihood_ratio", [f"{counts}; pass the model with fewer quantities first, or use cf.compare_models"]
        )
    at_bound: dict[str, int] = {}
    point = find_nested_point(smaller, larger)
    if point is None and nested is None:
        point = _fitted(smaller, larger)
        if point is None:
            raise_if_mistakes(
                "likelihood_ratio",
                ["the models do not seem to be nested; use cf.compare_models, or set nested=True"],
            )
    if point is not None:
        at_bound = {n: side for n, side in _bound_quantities(larger, point).items() if n not in smaller.names}
    T = smaller.neg2loglik - larger.neg2loglik
    kind, p = _probability(smaller, larger, T, d, _weights(larger, at_bound, d))
    return LikelihoodRatio(T, d, p, kind, tuple(at_bound), _sentence(T, d, p, kind, tuple(at_bound)))


def _dimension(result: Result) -> int:
    """Count the directions of theta that the data determine, ignoring bounds, plus eliminated deviations.

    Every equation removes one direction; equations along a path remove as many as the rank implies.
    """
    equations = sum(max(len(row.times), 1) for row in result.constraints if row.active == "equal")
    directions = len(result.names) - result.undetermined.shape[0]
    return (max(directions - equations, result.rank) if equations else directions) + len(result.sigmas)


def find_nested_point(smaller: Result, larger: Result) -> dict[str, float] | None:
    """Return the values of the larger model, by name, at which it equals the smaller one; None if there are none."""
    smaller_problem, larger_problem = smaller.problem, larger.problem
    if smaller_problem is None or larger_problem is None or not set(smaller.names) <= set(larger.names):
        return None
    values = dict(smaller.values)
    for q in larger_problem.posed.quantities:
        parameter = smaller_problem.posed.parameters.get(q.symbol_name)
        if q.name in values:
            continue
        if parameter is None or not parameter.fixed:
            return None
        fixed_value = parameter.value
        number = (
            fixed_value[q.experiment] if isinstance(fixed_value, dict) and q.experiment in fixed_value else fixed_value
        )
        if not isinstance(number, (int, float)):
            return None
        values[q.name] = float(number)
    span = {q.name: (q.lower, q.upper) for q in larger_problem.posed.quantities}
    if any(not low <= values[n] <= high for n, (low, high) in span.items()):
        return None
    if any(q.scale == "log" and not values[q.name] > 0.0 for q in larger_problem.posed.quantities):
        return None
    theta = larger_problem.posed.theta_from(values)
    staged = SingleShooting(larger.integrator).transcribe(larger_problem, theta).explicit()
    if not staged.evaluate(theta).ok:
        return None
    predictions = np.concatenate([part[0] for part in staged.standardised(theta)])
    return values if _has_same_predictions(predictions, smaller) else None


def _has_same_predictions(predictions: Array, result: Result) -> bool:
    deviations = np.where(result.deviations > 0.0, result.deviations, np.nan)
    differences = (predictions - result.predictions) / deviations
    return bool(np.isfinite(differences).all() and np.sqrt(np.mean(differences**2)) < _MAX_PREDICTION_DIFFERENCE_SD)


def _fitted(smaller: Result, larger: Result) -> dict[str, float] | None:
    """Fit the larger model to the predictions of the smaller one; return None if they differ."""
    problem, table = larger.problem, smaller.residual_table()
    if not isinstance(problem, Problem):
        return None
    named_experiments = [e.called(c.name) for e, c in zip(problem.experiments, problem.conditions, strict=True)]
    experiments = [e.with_values(_predicted(table, e.name, e.data)) for e in named_experiments]
    result = fit(problem.replace(experiments=experiments), start=larger, verify=False)
    return result.values if result.success and _has_same_predictions(result.predictions, smaller) else None


def _predicted(table: Mapping[str, NDArray[Any]], experiment: str, data: Mapping[str, Any]) -> dict[str, Array]:
    predicted: dict[str, Array] = {}
    for name, (_, values) in data.items():
        is_in_series = (table["experiment"] == experiment) & (table["output"] == name)
        filled = np.full(values.shape, np.nan)
        filled[np.isfinite(values)] = table["prediction"][is_in_series]
        predicted[name] = filled
    return predicted


def _bound_quantities(larger: Result, values: Mapping[str, float]) -> dict[str, int]:
    """Return the quantities that are at a bound at `values`: 1 at the lower bound, -1 at the upper."""
    sides: dict[str, int] = {}
    # A value that is fitted to a bound of 0 has no size of its own, but an uncertainty and a guess.
    assert larger.problem is not None
    guess, information = larger.problem.posed.guess, np.diag(larger.information) if larger.information.size else 0.0
    errors = 1.0 / np.sqrt(np.maximum(information, np.finfo(float).tiny))
    errors = np.where(larger.log, 0.0, np.minimum(errors, np.abs(guess)))
    for name, (low, high), error in zip(larger.names, larger.bounds.tolist(), errors.tolist(), strict=True):
        value, size = values[name], max(abs(low) if np.isfinite(low) else 0.0, abs(larger.values[name]), error)
        tolerance = _BOUND_RTOL * max(abs(value), size)
        if low < high and (value - low <= tolerance or high - value <= tolerance):
            sides[name] = 1 if value - low <= tolerance else -1
    return sides


def _weights(larger: Result, at_bound: Mapping[str, int], d: int) -> list[float]:
    """Return the probabilities w_i that i estimates, 0 to b, would be off their bounds.

    They follow from the larger fit's information, or assume independent estimates if it is unknown.  If b is large, the
    probabilities are estimated by draws.
    """
    b, side = min(len(at_bound), d), np.array(list(at_bound.values()), dtype=float)
    covariance, information = np.eye(b), larger.information
    indices = [larger.names.index(n) for n in at_bound]
    if b == len(indices) > 1 and information.size and len(larger.names) <= MAX_WRITTEN_OUT_QUANTITIES:
        size = np.sqrt(np.maximum(np.diag(information), np.finfo(float).tiny))
        scaled_covariance = np.linalg.pinv(information / np.outer(size, size), hermitian=True)[np.ix_(indices, indices)]
        if np.linalg.eigvalsh(scaled_covariance)[0] > _MIN_EIGENVALUE_FRACTION * np.trace(scaled_covariance):
            covariance = scaled_covariance * np.outer(side, side)
    if b > _MAX_EXACT_BOUNDS:
        root = np.linalg.cholesky(np.linalg.inv(covariance)).T
        draws = np.random.default_rng(0).standard_normal((_WEIGHT_DRAWS, b))
        off = [int(np.count_nonzero(scipy.optimize.nnls(root, z)[0])) for z in draws]
        return (np.bincount(off, minlength=b + 1) / _WEIGHT_DRAWS).tolist()
    weights = [0.0] * (b + 1)
    for i in range(b + 1):
        for off in combinations(range(b), i):
            J, K = list(off), [k for k in range(b) if k not in off]
            of_K = np.linalg.inv(covariance[np.ix_(K, K)])
            of_J = covariance[np.ix_(J, J)] - covariance[np.ix_(J, K)] @ of_K @ covariance[np.ix_(K, J)]
            weights[i] += _orthant(of_J) * _orthant(of_K)
    return weights


def _orthant(V: Any) -> float:
    """Return the probability that all entries of a normal vector of covariance V (n, n) are positive, n <= 3."""
    n, size = len(V), np.sqrt(np.diag(V))
    angles = np.arcsin(np.clip(V / np.outer(size, size), -1.0, 1.0))[np.triu_indices(n, 1)]
    return float(0.5**n * (1.0 + 2.0 / np.pi * angles.sum()))


def _probability(smaller: Result, larger: Result, T: float, d: int, weights: list[float]) -> tuple[str, float]:
    exact = list(smaller.sigmas) == list(larger.sigmas) == ["sigma"] and smaller.dof > d
    if exact and larger.chi2 > 0.0:
        excess = max(smaller.chi2 - larger.chi2, 0.0) / larger.chi2

        def tail(m: int) -> float:
            remaining_dof = smaller.dof - m
            return (
                float(scipy.special.fdtrc(m, remaining_dof, excess * remaining_dof / m))
                if m > 0
                else float(excess * remaining_dof <= _STATISTIC_ERROR)
            )

    else:

        def tail(m: int) -> float:
            return float(scipy.special.chdtrc(m, max(T, 0.0))) if m > 0 else float(T <= _STATISTIC_ERROR)

    b = len(weights) - 1
    return ("F" if exact else "chi2"), sum(w * tail(d - b + i) for i, w in enumerate(weights))


def _sentence(T: float, d: int, p: float, kind: str, at_bound: tuple[str, ...]) -> str:
    count_text = f"{d} quantit{'y' if d == 1 else 'ies'} more"
    figures = f"likelihood ratio {T:.4g} for {count_text}, p = {p:.2g}"
    distribution_text = " by the F distribution" if kind == "F" else ""
    bound_effect = "halves such a probability" if len(at_bound) == 1 else "makes such a probability smaller"
    bound = f"; {', '.join(at_bound)} would be at a bound, which {bound_effect}" if at_bound else ""
    if -_STATISTIC_ERROR * max(1.0, abs(T)) > T:
        return (
            f"The larger model fits worse ({figures}), although it contains the smaller one: its fit is not the global "
            "optimum. Start it from the estimates of the smaller model."
        )
    if p < _REJECTION_LEVEL:
        return f"The test rejects the smaller model ({figures}{distribution_text}{bound})."
    return f"The test does not reject the smaller model ({figures}{distribution_text}{bound})."
