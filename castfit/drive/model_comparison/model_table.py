"""Comparison of models: information criteria of results side by side, and tests of nested models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from typing import Any, cast

import numpy as np

from castfit._support.arguments import describe_rejected, read_sequence, shorten_repr
from castfit._support.public_names import public
from castfit._support.reprs import add_brief_repr
from castfit._support.status import InputError, raise_if_mistakes, unknown_names
from castfit._support.text_tables import TabularReport, TextTable
from castfit._support.ties import first_argmin, stable_order
from castfit.drive.model_comparison.likelihood_ratio import LikelihoodRatio, find_nested_point, likelihood_ratio
from castfit.result.result import Result, describe_uncounted
from castfit.result.same_data import data_mistakes

# Differences of AICc to the lowest one (Burnham and Anderson 2002):
_SIMILAR_DELTA = 2.0  # below it, a model is about as good as the best one
_IMPLAUSIBLE_DELTA = 10.0  # from it on, a model has essentially no support


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False, repr=False)
class ModelTable(TabularReport):
    """Fits of the same data side by side; ``print`` shows a table.

    Attributes
    ----------
    results : dict
        Fits by name, in the order of the argument.
    delta : dict
        Differences of AICc to the best model, for fits that succeeded.
    weights : dict
        Akaike weights: the probability of each model to be the best of these.
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
        raise_if_mistakes("compare_models", unknown_names("unknown model '{}'", [name], self.results))
        return self.results[name]

    @property
    def sheet(self) -> TextTable:
        """The table, the best model first."""
        names = [*self.results]
        ranks = stable_order([self.delta.get(name, np.inf) for name in names], scale=1.0)
        order = [names[int(i)] for i in ranks.flat]

        def cells(name: str) -> tuple[str, ...]:
            result = self.results[name]
            if name not in self.delta:
                return (name, *["-"] * 7, f"failed: {result.status.value}")
            c, p = result.criteria, result.goodness.p_value
            remarks = ("" if result.goodness.described else "does not fit the data", describe_uncounted(result))
            figures = (
                f"{c.neg2loglik:.2f}",
                f"{c.k:.{int(c.k != round(c.k))}f}",
                "-" if np.isnan(p) else f"{p:.2g}",
                f"{c.aicc:.2f}",
            )
            return (
                name,
                *figures,
                f"{self.delta[name]:.2f}",
                f"{self.weights[name]:.2g}",
                f"{c.bic:.2f}",
                ", ".join(filter(None, remarks)),
            )

        heads = ("model", ">-2 log L", ">k", ">p of chi2", ">AICc", ">difference", ">weight", ">BIC", "")
        return TextTable(heads, tuple(cells(name) for name in order))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences that interpret the table."""
        if not self.best:
            return ("No fit succeeded.",)
        similar = [n for n, d in self.delta.items() if n != self.best and d < _SIMILAR_DELTA]
        implausible = [n for n, d in self.delta.items() if d >= _IMPLAUSIBLE_DELTA]
        lines = [f"{self.best} has the lowest AICc."]
        if similar:
            lines.append(f"{', '.join(similar)} {'has' if len(similar) == 1 else 'have'} a similar AICc.")
        if implausible:
            lines.append(
                f"{', '.join(implausible)}: essentially no support (AICc higher by {_IMPLAUSIBLE_DELTA:g} or more)."
            )
        if not self.results[self.best].goodness.described:
            lines.append("The best model does not fit the data either.")
        bic_best = [*self.delta][first_argmin([self.results[n].bic for n in self.delta], scale=1.0)]
        if bic_best != self.best:
            lines.append(f"BIC, which penalises additional quantities more strongly, prefers {bic_best}.")
        infinite = [n for n in self.delta if np.isinf(self.results[n].aicc)]
        if infinite:
            lines.append(f"AICc of {', '.join(infinite)} is undefined: it needs two measurements more than quantities.")
        lines += [f"{small} in {large}: {test.sentence}" for (small, large), test in self.tests.items()]
        return tuple(lines)

    @property
    def parts(self) -> tuple[TextTable | str, ...]:
        """The table, and the sentences below it."""
        return self.sheet, *self.sentences


def compare_models(results: Mapping[str, Result] | Iterable[Result]) -> ModelTable:
    """Compare models that were fitted to the same data.

    Noise models may differ, because likelihoods include all constants.  The likelihood excludes priors; they reduce the
    effective number of estimated quantities (see castfit.result.goodness_of_fit).

    Parameters
    ----------
    results : mapping from name to Result, or several Results
        Without names, the models are named "model 1" and so on.

    Raises
    ------
    InputError
        If the fits have different data.

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
    -----------------------------------------------------------------------------------------------
    any order      -36.53  2       0.95  -26.53        0.00        1  -33.31
    first order      4.25  1    2.6e-08    7.58       34.11  3.9e-08    5.85  does not fit the data
    <BLANKLINE>
    any order has the lowest AICc.
    first order: essentially no support (AICc higher by 10 or more).
    """
    argument: Any = results
    mistakes: list[str] = []
    if isinstance(argument, Mapping):
        results_by_name = {str(k): v for k, v in cast("Mapping[Any, Any]", argument).items()}
    else:
        sequence = None if isinstance(argument, Result) else read_sequence(argument)
        results_by_name = {f"model {i}": r for i, r in enumerate(sequence or [], start=1)}
        if sequence is None:
            mistakes.append(f"results is {shorten_repr(argument)}; expected several results, by name or in a list")
    mistakes += [
        f"'{n}' is {describe_rejected(r, 'expected the result of a fit')}"
        for n, r in results_by_name.items()
        if not isinstance(r, Result)
    ]
    if not mistakes and len(results_by_name) < 2:
        mistakes.append("fewer than two results; pass the results to be compared")
    raise_if_mistakes("compare_models", mistakes)
    first_name = next(iter(results_by_name))
    for name in [n for n in results_by_name if n != first_name]:
        mistakes += data_mistakes(results_by_name[first_name], results_by_name[name], (f"'{first_name}'", f"'{name}'"))
    raise_if_mistakes("compare_models", mistakes)
    aicc_by_name = {n: r.aicc for n, r in results_by_name.items() if r.success and np.isfinite(r.neg2loglik)}
    min_aicc = min(aicc_by_name.values(), default=np.nan)
    delta = {n: float(a - min_aicc) if a != min_aicc else 0.0 for n, a in aicc_by_name.items()}
    shares = {n: float(np.exp(-0.5 * d)) for n, d in delta.items()}
    total_share = sum(shares.values())
    best = [*delta][first_argmin([*delta.values()], scale=1.0)] if delta else ""
    return ModelTable(
        results_by_name,
        delta,
        {n: s / total_share for n, s in shares.items()},
        best,
        _tests(results_by_name, list(delta)),
    )


def _tests(results: Mapping[str, Result], names: list[str]) -> dict[tuple[str, str], LikelihoodRatio]:
    """Test every model against the models that it becomes with quantities fixed."""
    tests: dict[tuple[str, str], LikelihoodRatio] = {}
    for small, large in permutations(names, 2):
        smaller_result, larger_result = results[small], results[large]
        if (
            len(smaller_result.names) < len(larger_result.names)
            and find_nested_point(smaller_result, larger_result) is not None
        ):
            with suppress(InputError):  # priors, or as many directions
                tests[small, large] = likelihood_ratio(smaller_result, larger_result)
    return tests
