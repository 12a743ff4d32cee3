"""Models compared by what they explain: information criteria side by side, and the likelihood ratio test.

In flow results of fits to the same data; nothing is fitted but what tells whether one model contains another.  Out come
a `ModelTable`, whose sentences say which model to prefer, and a `LikelihoodRatio`.  Read `compare_models` first.

Notation
--------
T   2 log(L_large / L_small);  d  how many more directions the larger model determines
b   how many quantities of the larger model stand at a bound where it is the smaller one

    T is chi2(d) if the smaller model is right                                                     [Wilks 1938]
    with b at a bound:  sum over i of  binomial(b, i) 2^-b chi2(d - i), if these are independent   [Self and Liang 1987]
    one unknown sigma:  F = ((SSE_small - SSE_large) / d) / (SSE_large / dof)  is F(d, dof), which is exact for few data
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from math import comb
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy

from castfit._support.arguments import is_one_of, items, text
from castfit._support.public_names import public
from castfit._support.reprs import brief
from castfit._support.status import InputError, check
from castfit._support.text_tables import Sheet, Tabled
from castfit.fit.fit import fit
from castfit.problem.problem import Problem
from castfit.result.result import Result
from castfit.result.same_data import data_mistakes
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array

_SUBSTANTIAL = 2.0  # difference of AICc up to which a model is as good as the best (Burnham and Anderson 2002) ...
_NONE = 10.0  # ... and from which nothing speaks for it
_SAME = 1e-2  # standard deviations, in root mean square: predictions that differ by less are the same
_ROUNDING = 1e-3  # of T, that errors of two fits may make
_AT_BOUND = 1e-6  # relative distance from a bound
_CLEAR = 0.05


@public("castfit")
@brief
@dataclass(frozen=True, eq=False, repr=False)
class ModelTable(Tabled):
    """Fits of the same data side by side; ``print`` shows a table.

    Attributes
    ----------
    results : dict
        Fits by name, in the order in which they were given.
    delta : dict
        AICc less that of the best model, of fits that succeeded.
    weights : dict
        Akaike's weights: how probable each model is to be the best of these.
    best : str
        The name of the model with the lowest AICc.
    tests : dict
        `LikelihoodRatio` by (smaller, larger), where one model is the other with quantities fixed.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, n = cf.symbols("x k n")
    >>> data = cf.Experiment({"x": [0.80, 0.66, 0.57, 0.50, 0.44]}, time=[1, 2, 3, 4, 5], sigma=0.01, initial={"x": 1})
    >>> first = cf.Model({x: -k * x}, parameters=[k])
    >>> order = cf.Model({x: -k * x**n}, parameters=[k, n])
    >>> one = cf.fit(cf.Problem(first, data, parameters={"k": 0.3}))
    >>> two = cf.fit(cf.Problem(order, data, parameters={"k": 0.3, "n": cf.Parameter(1.0, lower=0)}))
    >>> cf.compare_models({"first order": one, "any order": two}).best
    'any order'
    """

    results: Mapping[str, Result]
    delta: Mapping[str, float]
    weights: Mapping[str, float]
    best: str
    tests: Mapping[tuple[str, str], LikelihoodRatio]

    def __getitem__(self, name: str) -> Result:
        """Return the fit of a model."""
        return self.results[name]

    @property
    def sheet(self) -> Sheet:
        """The table, the best model first."""
        order = sorted(self.results, key=lambda name: self.delta.get(name, np.inf))

        def cells(name: str) -> tuple[str, ...]:
            found = self.results[name]
            if name not in self.delta:
                return (name, *["-"] * 7, f"failed: {found.status.value}")
            c, p = found.criteria, found.goodness.p_value
            k = f"{c.k:.0f}" if c.k == round(c.k) else f"{c.k:.1f}"
            remark = "" if found.goodness.described else "does not describe the data"
            figures = (f"{c.neg2loglik:.2f}", k, "-" if np.isnan(p) else f"{p:.2g}", f"{c.aicc:.2f}")
            return name, *figures, f"{self.delta[name]:.2f}", f"{self.weights[name]:.2g}", f"{c.bic:.2f}", remark

        heads = ("model", ">-2 log L", ">k", ">p of chi2", ">AICc", ">difference", ">weight", ">BIC", "")
        return Sheet(heads, tuple(cells(name) for name in order))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the table says."""
        if not self.best:
            return ("No fit succeeded.",)
        close = [n for n, d in self.delta.items() if n != self.best and d < _SUBSTANTIAL]
        far = [n for n, d in self.delta.items() if d >= _NONE]
        found = [f"{self.best} explains the data best for what it estimates (AICc)."]
        if close:
            found.append(f"{', '.join(close)} explain{'s' if len(close) == 1 else ''} them about as well.")
        if far:
            found.append(f"Nothing speaks for {', '.join(far)}.")
        if not self.results[self.best].goodness.described:
            found.append("But even the best does not describe the data.")
        most = min(self.delta, key=lambda n: self.results[n].bic)
        if most != self.best:
            found.append(f"BIC, which asks more of additional quantities, prefers {most}.")
        infinite = [n for n in self.delta if np.isinf(self.results[n].aicc)]
        if infinite:
            found.append(f"{', '.join(infinite)}: as many quantities as data.")
        found += [f"{small} in {large}: {test.sentence}" for (small, large), test in self.tests.items()]
        return tuple(found)

    @property
    def parts(self) -> tuple[Sheet | str, ...]:
        """The table, and the sentences below it."""
        return self.sheet, *self.sentences

    def __str__(self) -> str:
        return "\n".join([*self.sheet.lines, "", *self.sentences])


def compare_models(results: Mapping[str, Result] | Iterable[Result]) -> ModelTable:
    """Compare models that were fitted to the same data.

    Noise models may differ, for all likelihoods have their constants.  Priors are left out of the likelihood, and count
    by as much as they leave to be estimated (see castfit.result.goodness_of_fit).

    Parameters
    ----------
    results : mapping from name to Result, or several Results
        Without names they are "model 1" and so on.

    Raises
    ------
    InputError
        If fits are of different data, naming which.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, n = cf.symbols("x k n")
    >>> data = cf.Experiment({"x": [0.80, 0.66, 0.57, 0.50, 0.44]}, time=[1, 2, 3, 4, 5], sigma=0.01, initial={"x": 1})
    >>> first = cf.Model({x: -k * x}, parameters=[k])
    >>> order = cf.Model({x: -k * x**n}, parameters=[k, n])
    >>> one = cf.fit(cf.Problem(first, data, parameters={"k": 0.3}))
    >>> two = cf.fit(cf.Problem(order, data, parameters={"k": 0.3, "n": cf.Parameter(1.0, lower=0)}))
    >>> print(cf.compare_models({"first order": one, "any order": two}))
    model        -2 log L  k  p of chi2    AICc  difference   weight     BIC
    ----------------------------------------------------------------------------------------------------
    any order      -36.53  2       0.95  -26.53        0.00        1  -33.31
    first order      4.25  1    2.6e-08    7.58       34.11  3.9e-08    5.85  does not describe the data
    <BLANKLINE>
    any order explains the data best for what it estimates (AICc).
    Nothing speaks for first order.
    """
    given: Any = results
    mistakes: list[str] = []
    if isinstance(given, Mapping):
        named = {str(k): v for k, v in cast("Mapping[Any, Any]", given).items()}
    else:
        listed = None if isinstance(given, Result) else items(given)
        named = {f"model {i}": r for i, r in enumerate(listed or [], start=1)}
        if listed is None:
            mistakes.append(f"results is {text(given)}; give several results, by name or in a list")
    mistakes += [f"'{n}' is {text(r)}; give the result of a fit" for n, r in named.items() if not isinstance(r, Result)]
    if not mistakes and len(named) < 2:
        mistakes.append("there are fewer than two results; give those that are to be compared")
    check("compare_models", mistakes)
    first = next(iter(named))
    for name in [n for n in named if n != first]:
        mistakes += data_mistakes(named[first], named[name], (f"'{first}'", f"'{name}'"))
    check("compare_models", mistakes)
    good = {n: r.aicc for n, r in named.items() if r.success and np.isfinite(r.neg2loglik)}
    least = min(good.values(), default=np.nan)
    delta = {n: float(a - least) if a != least else 0.0 for n, a in good.items()}
    share = {n: float(np.exp(-0.5 * d)) for n, d in delta.items()}
    whole = sum(share.values())
    best = min(delta, key=lambda n: delta[n], default="")
    return ModelTable(named, delta, {n: s / whole for n, s in share.items()}, best, _tests(named, list(delta)))


def _tests(results: Mapping[str, Result], names: list[str]) -> dict[tuple[str, str], LikelihoodRatio]:
    """Test every model against those that it is with quantities fixed."""
    found: dict[tuple[str, str], LikelihoodRatio] = {}
    for small, large in permutations(names, 2):
        one, other = results[small], results[large]
        if len(one.names) < len(other.names) and _within(one, other) is not None:
            with suppress(InputError):  # priors, or as many directions
                found[small, large] = likelihood_ratio(one, other)
    return found


@public("castfit")
@brief
@dataclass(frozen=True, eq=False, repr=False)
class LikelihoodRatio:
    """A likelihood ratio test; ``print`` shows its sentence.

    Attributes
    ----------
    statistic : float
        T = 2 log(L_large / L_small).
    dof : int
        How many more directions the larger model determines.
    p_value : float
        Probability of a T at least as large if the smaller model is right.
    distribution : {"chi2", "F"}
        F where the data share one unknown standard deviation.
    at_bound : tuple of str
        Quantities that the larger model has in addition, and that stand at a bound where it is the smaller one.
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


def likelihood_ratio(smaller: Result, larger: Result, *, nested: bool | None = None) -> LikelihoodRatio:
    """Test whether a model needs what a larger one, which contains it, has in addition.

    Parameters
    ----------
    smaller, larger : Result
        Fits of the same data, without priors.
    nested : bool, optional
        True says that the larger model contains the smaller one.  By default this is checked: the larger one must
        predict the same, at the smaller one's estimates if it has the same quantities (and others that the smaller one
        holds fixed), or where it is fitted to the smaller one's predictions.

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
    given: dict[str, Any] = {"smaller": smaller, "larger": larger}
    mistakes = [f"{n} is {text(r)}; give the result of a fit" for n, r in given.items() if not isinstance(r, Result)]
    check("likelihood_ratio", mistakes)
    if not is_one_of(nested, True, None):
        mistakes.append(f"nested is {text(nested)}; give True, or nothing to have it checked")
    mistakes += [
        f"the fit of the {n} model failed; a test needs both optima" for n, r in given.items() if not r.success
    ]
    mistakes += [
        f"the {n} model has priors, which are no data; fit it without, or compare by cf.compare_models"
        for n, r in given.items()
        if r.neg2logprior != 0.0 or (r.problem is not None and r.problem.posed.every_prior)
    ]
    mistakes += data_mistakes(smaller, larger, ("the smaller fit", "the larger fit"))
    check("likelihood_ratio", mistakes)
    d = _dimension(larger) - _dimension(smaller)
    if d <= 0:
        said = f"the larger model determines {_dimension(larger)} numbers, the smaller one {_dimension(smaller)}"
        check("likelihood_ratio", [f"{said}; give the one with fewer first, or compare by cf.compare_models"])
    at_bound: tuple[str, ...] = ()
    point = _within(smaller, larger)
    if point is None and nested is None:
        point = _fitted(smaller, larger)
        if point is None:
            check(
                "likelihood_ratio",
                [
                    "the larger model does not seem to contain the smaller one; "
                    "compare by cf.compare_models, or say nested=True"
                ],
            )
    if point is not None:
        at_bound = tuple(n for n in _held(larger, point) if n not in smaller.names)
    T = smaller.neg2loglik - larger.neg2loglik
    kind, p = _probability(smaller, larger, T, d, min(len(at_bound), d))
    return LikelihoodRatio(T, d, p, kind, at_bound, _sentence(T, d, p, kind, at_bound))


def _dimension(result: Result) -> int:
    """Count the directions of theta that the data determine, bounds left aside, and eliminated deviations."""
    return len(result.names) - result.undetermined.shape[0] + len(result.sigmas)


def _within(smaller: Result, larger: Result) -> dict[str, float] | None:
    """Return the larger model's quantities at which it is the smaller one, by their names; None if it is not."""
    one, other = smaller.problem, larger.problem
    if one is None or other is None or not set(smaller.names) <= set(larger.names):
        return None
    values = dict(smaller.values)
    for q in other.posed.quantities:
        stated = one.posed.parameters.get(q.of)
        if q.name in values:
            continue
        if stated is None or not stated.fixed:
            return None
        held = stated.value
        number = held[q.experiment] if isinstance(held, dict) and q.experiment in held else held
        if not isinstance(number, (int, float)):
            return None
        values[q.name] = float(number)
    span = {q.name: (q.lower, q.upper) for q in other.posed.quantities}
    if any(not low <= values[n] <= high for n, (low, high) in span.items()):
        return None
    if any(q.scale == "log" and not values[q.name] > 0.0 for q in other.posed.quantities):
        return None
    theta = other.posed.theta_from(values)
    staged = SingleShooting(larger.integrator).transcribe(other, theta).explicit()
    if not staged.evaluate(theta).ok:
        return None
    predictions = np.concatenate([part[0] for part in staged.standardised(theta)])
    return values if _alike(predictions, smaller) else None


def _alike(predictions: Array, result: Result) -> bool:
    deviations = np.where(result.deviations > 0.0, result.deviations, np.nan)
    off = (predictions - result.predictions) / deviations
    return bool(np.isfinite(off).all() and np.sqrt(np.mean(off**2)) < _SAME)


def _fitted(smaller: Result, larger: Result) -> dict[str, float] | None:
    """Fit the larger model to what the smaller one predicts; None if it cannot do it."""
    problem, table = larger.problem, smaller.residual_table()
    if not isinstance(problem, Problem):
        return None
    named = [e.called(c.name) for e, c in zip(problem.experiments, problem.conditions, strict=True)]
    experiments = [e.with_values(_predicted(table, e.name, e.data)) for e in named]
    found = fit(problem.replace(experiments=experiments), start=larger, verify=False)
    return found.values if found.success and _alike(found.predictions, smaller) else None


def _predicted(table: Mapping[str, NDArray[Any]], experiment: str, data: Mapping[str, Any]) -> dict[str, Array]:
    out: dict[str, Array] = {}
    for name, (_, values) in data.items():
        own = (table["experiment"] == experiment) & (table["output"] == name)
        filled = np.full(values.shape, np.nan)
        filled[np.isfinite(values)] = table["prediction"][own]
        out[name] = filled
    return out


def _held(larger: Result, values: Mapping[str, float]) -> tuple[str, ...]:
    """Name quantities at a bound that those of the larger model need not be at."""
    held: list[str] = []
    for name, (low, high) in zip(larger.names, larger.bounds.tolist(), strict=True):
        value = values[name]
        near = _AT_BOUND * max(abs(value), abs(low) if np.isfinite(low) else 0.0, abs(larger.values[name]))
        if low < high and (value - low <= near or high - value <= near):
            held.append(name)
    return tuple(held)


def _probability(smaller: Result, larger: Result, T: float, d: int, b: int) -> tuple[str, float]:
    exact = list(smaller.sigmas) == list(larger.sigmas) == ["sigma"] and larger.dof > 0
    if exact and larger.chi2 > 0.0:
        excess = max(smaller.chi2 - larger.chi2, 0.0) / larger.chi2 * larger.dof

        def tail(m: int) -> float:
            return float(scipy.special.fdtrc(m, larger.dof, excess / m)) if m > 0 else float(excess <= 0.0)

    else:

        def tail(m: int) -> float:
            return float(scipy.special.chdtrc(m, max(T, 0.0))) if m > 0 else float(T <= 0.0)

    p = sum(comb(b, i) * 0.5**b * tail(d - i) for i in range(b + 1))
    return ("F" if exact else "chi2"), p


def _sentence(T: float, d: int, p: float, kind: str, at_bound: tuple[str, ...]) -> str:
    more = f"{d} quantit{'y' if d == 1 else 'ies'} more"
    figures = f"likelihood ratio {T:.4g} for {more}, p = {p:.2g}"
    how = " by the F distribution" if kind == "F" else ""
    bound = f"; {', '.join(at_bound)} would be at a bound, which halves such a probability" if at_bound else ""
    if -_ROUNDING * max(1.0, abs(T)) > T:
        return (
            f"The larger model fits worse ({figures}): its fit is no global optimum, for it contains the smaller one. "
            "Start it from the smaller one's estimates."
        )
    if p < _CLEAR:
        return f"The larger model is needed ({figures}{how}{bound})."
    return f"The smaller model is enough ({figures}{how}{bound})."
