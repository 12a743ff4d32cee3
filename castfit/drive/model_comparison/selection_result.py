"""Result of a selection: ranked candidates, weights, averages, and the next experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import (
    is_count,
    is_one_of,
    level_rule,
    option_mistakes,
    read_names,
    read_real,
    rng_mistakes,
)
from castfit._support.public_names import public
from castfit._support.reprs import join_limited
from castfit._support.status import raise_if_mistakes, suggest, unknown_names
from castfit._support.text_tables import TextTable
from castfit._support.views import views
from castfit.drive.model_comparison.candidates import CandidateFit, CandidateModel
from castfit.drive.model_comparison.evidence import EvidenceTable, WeightedValues, evidences
from castfit.drive.model_comparison.selection_log import SelectionLog, rank_by_criterion
from castfit.drive.run.run_result import SearchResult
from castfit.drive.run.run_result import build_columns as as_columns
from castfit.drive.uncertainty.refits.resampling import unit_spreads
from castfit.result.covariance import quantile
from castfit.result.estimate import Estimate
from castfit.result.residuals import output_places
from castfit.result.result import Result, describe_uncounted
from castfit.simulate.predictions import Prediction
from castfit.simulate.simulate import Times

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from castfit._support.arrays import Array
    from castfit.drive.design.design import Design

_MAX_SUMMARY_ROWS = 12  # candidates in a summary
_MIN_RELATIVE_WEIGHT = 1e-6  # of the largest weight: models with less are left out of averages
_CANDIDATE_TIMES = 40  # times of a default candidate experiment
# Differences of a criterion to the lowest one (Burnham and Anderson 2002):
_SIMILAR_DELTA = 2.0  # below it, models are about as good
_MAX_RIVAL_DELTA = 10.0  # from it on, a model is no rival in the design of an experiment
_MIN_NEEDED_IMPORTANCE, _MAX_DISPENSABLE_IMPORTANCE = 0.95, 0.5  # sums of weights that are commented on
_DEFAULT_LEVEL = 0.95  # confidence level without a fit, and of the bands that are averaged


@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class SelectionResult(SearchResult):
    """Result of a model selection; ``print`` shows the ranking and its interpretation.

    Attributes
    ----------
    best : Result or None
        The fit of the first candidate; None if none was fitted.
    names : tuple of str
        Fitted candidates, the best first: by the criterion to a thousandth, then by number of estimates, then by name.
    criterion, method : str
    criteria : dict
        Criterion of each fitted candidate by name.
    fits : dict
        Fit of each proposed candidate by name, including failed fits.
    path : tuple of str
        The candidates that were best in the course of the search, in order.
    complete : bool
        Whether the search ended by itself.
    message : str
        Summary of the fits.
    time : float
        Seconds.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k, m = cf.symbols("x k m")
    >>> model = cf.Model({x: -k * x - m}, parameters=[k, m], initial={x: 2})
    >>> data = cf.Experiment({"x": [1.49, 1.09, 0.83, 0.59, 0.46, 0.33]}, time=[1, 2, 3, 4, 5, 6], sigma=0.02)
    >>> problem = cf.Problem(model, data, parameters={"k": 0.5, "m": 0.1})
    >>> found = cf.select(problem, choices={"k": [0, cf.estimated], "m": [0, cf.estimated]})
    >>> found["k"].success, list(found.names)
    (True, ['k', 'k m', 'm', '(none)'])
    >>> float(found.average("k")) == found["k"].values["k"]
    False
    """

    names: tuple[str, ...]
    criterion: str
    method: str
    criteria: Mapping[str, float]
    fits: Mapping[str, CandidateFit]
    path: tuple[str, ...]
    complete: bool
    message: str
    time: float
    remarks: tuple[str, ...] = ()
    _log: SelectionLog = field(kw_only=True)

    @classmethod
    def from_log(
        cls,
        log: SelectionLog,
        *,
        method: str,
        is_complete: bool,
        message: str,
        time: float,
        remarks: tuple[str, ...] = (),
    ) -> SelectionResult:
        """Build the result from a log."""
        values = {n: log.value(n) for n, row in log.rows.items() if row.success}
        names = tuple(rank_by_criterion(values, log.rows))
        best = log.result(names[0]) if names else None
        criteria = {n: values[n] for n in names}
        return cls(
            best, names, log.criterion, method, criteria, dict(log.rows), tuple(log.path), is_complete, message, time,
            remarks, _log=log,
        )  # fmt: skip

    def __getitem__(self, name: str) -> Result:
        """Return the fit of a candidate, with its problem.

        Raises
        ------
        InputError
            If there is no such candidate, or its fit failed.
        """
        name = self._resolve_name(str(name))
        if name not in self.fits:
            raise_if_mistakes("selection", [f"unknown candidate '{name}': {suggest(name, list(self.fits)[:50])}"])
        if name not in self.names:
            raise_if_mistakes("selection", [f"'{name}' was not fitted: {self.fits[name].message}"])
        return self._log.result(name)

    def _resolve_name(self, name: str) -> str:
        """Return the candidate that estimates the listed names, in any order; common estimates may be omitted."""
        requested_names = set(name.split())
        for n in self.names if name not in self.fits else ():
            candidate = self.candidate(n)
            if candidate.chosen and candidate.free <= requested_names <= {*candidate.name.split(), *self._row(n).names}:
                return n
        return name

    def __contains__(self, name: object) -> bool:
        """Check whether a candidate was fitted."""
        return self._resolve_name(str(name)) in self.names

    def __iter__(self) -> Any:
        """Iterate over the fitted candidates, the best first."""
        return iter(self.names)

    def __len__(self) -> int:
        """Return the number of fitted candidates."""
        return len(self.names)

    def candidate(self, name: str) -> CandidateModel:
        """Return a candidate by name, with its alternatives."""
        raise_if_mistakes("selection", unknown_names("unknown candidate '{}'", [name], list(self.fits)))
        return self._log.candidate(name)

    @property
    def delta(self) -> dict[str, float]:
        """Differences of the criterion to the best candidate by name."""
        best_value = min((v for v in self.criteria.values() if np.isfinite(v)), default=np.nan)
        return {n: v - best_value if np.isfinite(v) else np.inf for n, v in self.criteria.items()}

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the candidates by name: exp(-difference / 2), normalised to a sum of 1."""
        shares = {n: float(np.exp(-0.5 * d)) for n, d in self.delta.items()}
        total = sum(shares.values())
        return {n: s / total for n, s in shares.items()} if total > 0.0 else shares

    @property
    def importance(self) -> dict[str, float]:
        """Total weight of the candidates that estimate a quantity, if some candidates estimate it and others do not."""
        weights = self.weights
        chosen = list(self._log.space.choices)
        if chosen or any(self.candidate(n).chosen for n in self.names):
            chosen = chosen or list(dict.fromkeys(p for n in self.names for p in self.candidate(n).chosen))
            sums = {p: sum(w for n, w in weights.items() if p in self.candidate(n).free) for p in chosen}
            return {p: s for p, s in sums.items() if len({p in self.candidate(n).free for n in self.names}) > 1}
        names_by_candidate = {n: set(self._row(n).names) for n in self.names}
        quantity_names = dict.fromkeys(q for names in names_by_candidate.values() for q in names)
        return {
            q: sum(w for n, w in weights.items() if q in names_by_candidate[n])
            for q in quantity_names if not all(q in names for names in names_by_candidate.values())
        }  # fmt: skip

    def size(self, name: str) -> int:
        """Return the number of estimates of a candidate, including eliminated sigmas."""
        raise_if_mistakes("selection", unknown_names("'{}' is not a fitted candidate", [name], self.names))
        return len(self._row(name).names) + len(self._row(name).sigmas)

    def _row(self, name: str) -> Result:
        result = self.fits[name].result
        assert result is not None
        return result

    @cached_property
    def leave_one_out(self) -> dict[str, float]:
        """Sum of squared leave-one-out prediction errors by candidate, in standard deviations of the best candidate.

        It is computed from the leverages, sum (r / (1 - h))^2, without a fit; exact for linear models.  Values that
        follow each other in time predict their neighbours: use `leave_out` to leave out whole experiments.
        """
        best = self.best
        if best is None or best.problem is None:
            return {}
        sigma, is_additive = unit_spreads(best.problem.posed, best), np.zeros(best.n_data, dtype=np.bool_)
        for block in output_places(best.problem.posed):
            is_additive[block.rows] = block.noise.additive

        def sum_squares(row: Result) -> float:
            with np.errstate(divide="ignore", invalid="ignore"):
                own_errors = row.normalised_residuals * row.deviations / best.deviations
                errors = np.where(is_additive, row.residuals * row.spreads / sigma, own_errors)
                # A cost of the user has no standard deviation.
                errors = np.where(np.isnan(errors), row.normalised_residuals, errors)
                return float(np.sum((errors / (1.0 - row.leverage)) ** 2))

        return {n: sum_squares(self._row(n)) for n in self.names}

    @property
    def table(self) -> dict[str, NDArray[Any]]:
        """All candidates as columns, failed ones last, for instance for ``pandas.DataFrame(selection.table)``."""
        failed = [n for n in self.fits if n not in self.names]
        order, weights, delta, out = [*self.names, *failed], self.weights, self.delta, self.leave_one_out

        def number(values_by_name: Mapping[str, float], name: str) -> float:
            return values_by_name.get(name, np.nan)

        return as_columns(
            order,
            {
                "candidate": str,
                "status": lambda n: self.fits[n].status,
                "estimated": lambda n: self.size(n) if n in weights else -1,
                "-2 log L": lambda n: self._row(n).criteria.neg2loglik if n in weights else np.nan,
                self.criterion: lambda n: number(self.criteria, n),
                "difference": lambda n: number(delta, n),
                "weight": lambda n: number(weights, n),
                "leave-one-out": lambda n: number(out, n),
                "before": lambda n: self._log.predecessors.get(n, ""),
            },
        )

    def average(self, name: str, confidence_level: float | None = None) -> Estimate:
        """Return a quantity averaged over the candidates by weight; candidates that fix it contribute the exact value.

        Parameters
        ----------
        name : str
            A parameter or an initial state.
        confidence_level : float, optional
            Of the interval; by default that of the fits.

        Returns
        -------
        Estimate
            Its standard error and interval include differences between the models.  The limits of the interval are
            quantiles of the mixture of the models; its coverage assumes that the models are approximately correct.

        Raises
        ------
        InputError
            If no fitted candidate has such a quantity.
        """
        level = self._level("average", confidence_level)
        weights, rows = self.weights, dict[str, tuple[float, float, float, float]]()
        for n in self._heavy():
            value_and_error = self._value(n, str(name))
            if value_and_error is not None:
                row = self._row(n)
                rows[n] = (*value_and_error, weights[n], np.inf if row.absolute_sigma else float(row.dof))
        if not rows:
            valid_names = dict.fromkeys(q for n in self.names for q in self._row(n).names)
            raise_if_mistakes("average", [f"no candidate has '{name}': {suggest(str(name), valid_names)}"])
        total = sum(weights[n] for n in rows)
        values = WeightedValues.from_rows(
            [(np.array([v]), np.array([0.0 if np.isnan(e) else e]), w, dof) for v, e, w, dof in rows.values()]
        )
        bound = [n for n, (_, error, *_) in rows.items() if np.isnan(error)]
        low, high = (float(values.quantiles(p)[0]) for p in (0.5 - level / 2, 0.5 + level / 2))
        verdict = f"averaged over {len(rows)} model{'s' if len(rows) > 1 else ''}"
        verdict += f" that have it, of weight {total:.3g}" if total < 1.0 - 1e-3 else ""
        verdict += f"; at a bound, and without error, in {join_limited(bound, 40)}" if bound else ""
        return Estimate(
            float(values.mean[0]), name=str(name), standard_error=float(values.error[0]), interval=(low, high),
            confidence_level=level, verdict=verdict,
        )  # fmt: skip

    def _level(self, where: str, argument: Any) -> float:
        default = self.best.confidence_level if self.best is not None else _DEFAULT_LEVEL
        level = default if argument is None else read_real(argument)
        mistakes = option_mistakes(level_rule(argument, level))
        raise_if_mistakes(where, [*mistakes, *([] if self.best is not None else ["no candidate was fitted"])])
        assert level is not None
        return level

    def _heavy(self) -> list[str]:
        """Return the candidates with a relevant weight."""
        weights = self.weights
        max_weight = max(weights.values(), default=0.0)
        return [n for n, w in weights.items() if w > _MIN_RELATIVE_WEIGHT * max_weight]

    def _value(self, candidate: str, name: str) -> tuple[float, float] | None:
        """Return a quantity's value and standard error in a model, 0 if it is fixed; None if the model lacks it."""
        row = self._row(candidate)
        if name in row.names:
            return row.values[name], row.standard_errors[name]
        fixed_value = self.candidate(candidate).chosen.get(name)
        if fixed_value is None:
            problem = self[candidate].problem
            assert problem is not None
            parameter = problem.posed.parameters.get(name)
            fixed_value = parameter.value if parameter is not None and parameter.fixed else None
        return (float(fixed_value), 0.0) if isinstance(fixed_value, (int, float)) else None

    def predict(self, times: Times = None, *, confidence_level: float | None = None) -> Prediction:
        """Predict all outputs that the candidates share: weighted means, and quantiles of the mixture.

        Parameters
        ----------
        times : (n,) array, or mapping from experiment to array, optional
            By default the measured times.
        confidence_level : float, optional
            Probability that the band encloses the model's output; by default that of the fits.

        Returns
        -------
        dict
            As of `Result.predict` with bands: ``found["y"]``, ``found["y lower"]``, ``found["y upper"]``.

        Raises
        ------
        InputError
            If no candidate was fitted, and for times outside the experiments.
        """
        level = self._level("predict", confidence_level)
        weights, rows = self.weights, dict[str, tuple[Prediction, float, float, float]]()
        for n in self._heavy():
            result = self[n]
            dof = np.inf if result.absolute_sigma else float(result.dof)
            banded = result.predict(times, bands="linear", confidence_level=_DEFAULT_LEVEL)
            rows[n] = banded, weights[n], dof, quantile(_DEFAULT_LEVEL, dof)
        first_prediction = next(iter(rows.values()))[0]
        columns_by_experiment: dict[str, dict[str, Array]] = {}
        for experiment, columns in first_prediction.items():
            shared = [
                y for y in columns if all(f"{y} upper" in prediction[experiment] for prediction, *_ in rows.values())
            ]
            columns_by_experiment[experiment] = {"time": columns["time"]}
            for y in shared:
                values = WeightedValues.from_rows([
                    (p[experiment][y], (p[experiment][f"{y} upper"] - p[experiment][y]) / factor, w, dof)
                    for p, w, dof, factor in rows.values()
                ])  # fmt: skip
                low, high = (values.quantiles(p) for p in (0.5 - level / 2, 0.5 + level / 2))
                columns_by_experiment[experiment] |= {y: values.mean, f"{y} lower": low, f"{y} upper": high}
        return Prediction(columns_by_experiment)

    def evidence(
        self, *, sampling: bool = False, draws: int | None = None, candidates: Sequence[str] | None = None,
        rng: int | np.random.Generator = 0, workers: int | Executor = 1,
    ) -> EvidenceTable:  # fmt: skip
        """Compute the evidence of each model: the probability of the data, integrated over the priors.

        The prior of a quantity without one is uniform between its bounds, on the scale of its search.

        Parameters
        ----------
        sampling : bool
            True for bridge sampling from draws of `sample`, with an error (extra ``sampling``); False for Laplace's
            formula at the optimum.
        draws : int, optional
            Draws of each posterior, by default 4000.
        candidates : sequence of str, optional
            By default all fitted candidates.
        rng : int or numpy.random.Generator
        workers : int or concurrent.futures.Executor
            Workers for draws.

        Raises
        ------
        InputError
            If a quantity has neither a prior nor two finite bounds, because the evidence is then undefined.
        """
        mistakes = option_mistakes(
            ("sampling", sampling, is_one_of(sampling, True, False), "expected True or False"),
            ("draws", draws, draws is None or is_count(draws, 100), "expected at least 100"),
        )
        candidate_names = read_names("candidates", candidates, self.names, mistakes)
        fitted_names = [n for n in candidate_names if isinstance(n, str) and n in self]
        mistakes += unknown_names("'{}' is not a fitted candidate", candidate_names, {*self.names, *fitted_names})
        sampling_only = {"draws": draws is not None, "workers": not is_one_of(workers, 1)}
        mistakes += [
            f"{n}= has an effect only with sampling=True; remove it"
            for n, is_set in sampling_only.items()
            if is_set and sampling is False
        ]
        raise_if_mistakes("evidence", [*mistakes, *rng_mistakes(rng)])
        results = {n: self[n] for n in candidate_names}
        return evidences(results, sampling=sampling, draws=draws or 4000, rng=rng, workers=workers)

    def next_experiment(
        self, candidates: Any = None, *, budget: float = 8, against: Sequence[str] | None = None, **options: Any
    ) -> Design:
        """Design an experiment in which the models differ most after being fitted to each other.

        If one of two models is nested in the other, the larger one is assumed to be the truth, because it can reproduce
        every measurement of the smaller one.

        Parameters
        ----------
        candidates : Candidate or sequence of Candidate, optional
            Possible measurements, as for `design`; by default all outputs of each experiment at 40 times, from its
            first to its last measured time.
        budget : float
            Number of values, or their total cost.
        against : sequence of str, optional
            The candidate that is assumed to be the truth, and its rivals; by default the best candidate, and those
            whose criterion is higher by less than 10.
        **options
            Options of `design`.

        Returns
        -------
        Design
            ``print`` shows the measurements, and how well they discriminate between the models.

        Raises
        ------
        InputError
            If there are fewer than two candidates.
        """
        from castfit.drive.design.candidate import Candidate
        from castfit.drive.design.design import design
        from castfit.drive.design.discrimination import discriminate

        chosen = self._rivals() if against is None else [str(n) for n in against]
        few = [] if len(chosen) > 1 else ["fewer than two plausible candidates; name candidates by against=[...]"]
        raise_if_mistakes("next_experiment", few)
        truth, *rivals = (self[n] for n in chosen)
        if candidates is None:
            assert truth.problem is not None
            candidates = [
                Candidate(np.linspace(float(c.points.times[0]), c.end, _CANDIDATE_TIMES).tolist(), experiment=c.name)
                for c in truth.problem.conditions
            ]
        return design(truth, candidates, budget=budget, criterion=discriminate(*rivals), **options)

    def _rivals(self) -> list[str]:
        """Return the model that is assumed to be the truth, then its rivals."""
        close_names = [n for n in self.names if self.delta[n] < _MAX_RIVAL_DELTA]
        if len(close_names) < 2:
            return close_names
        best, second = close_names[:2]
        if self._log.find_nested_point(best, second) is not None:
            return [second, best]
        return [best, *(n for n in close_names[1:] if self._log.find_nested_point(best, n) is None)]

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences that interpret the table."""
        if not self.names:
            return ("No candidate was fitted.",)
        weights, delta = self.weights, self.delta
        best = self.names[0]
        similar = [n for n in self.names[1:] if delta[n] < _SIMILAR_DELTA]
        lines = [f"'{best}' has the lowest {self.criterion}."]
        if similar:
            names_text = join_limited((f"'{n}'" for n in similar), 80)
            lines.append(f"{names_text} have a similar {self.criterion}; average the models instead of choosing one.")
        undefined = [n for n in self.names if not np.isfinite(self.criteria[n])]
        if undefined:
            undefined_text = join_limited(undefined, 80)
            lines.append(
                f"{self.criterion} is undefined for {undefined_text}: too few measurements for the number of estimated "
                "quantities."
            )
        importance = self.importance
        needed = [q for q, v in importance.items() if v >= _MIN_NEEDED_IMPORTANCE]
        dispensable = [f"{q} ({v:.2f})" for q, v in importance.items() if v < _MAX_DISPENSABLE_IMPORTANCE]
        if needed:
            lines.append(f"In models with nearly all of the weight: {join_limited(needed, 80)}.")
        if dispensable:
            lines.append(f"Not needed to fit the data: {join_limited(dispensable, 80)}.")
        if self.method != "all":
            lines.append(f"Method '{self.method}' fitted {len(self.fits)} of {self._log.space.count} candidates. The "
                         "best one may be among the others; the weights refer to the fitted candidates.")  # fmt: skip
        if weights[best] < 1.0 and needed:
            q = needed[0]
            value = self.average(q)
            if value.standard_error > 0.0 and q in self._row(best).names:
                best_error = self._row(best).standard_errors[q]
                lines.append(f"Model average: {q} = {value.value:.4g} +- {value.standard_error:.2g} (best model: +- "
                             f"{best_error:.2g}).")  # fmt: skip
        return (*lines, *self.remarks, *self.misfit())

    @property
    def sheet(self) -> TextTable:
        """The table of the best candidates."""
        weights = self.weights
        return TextTable.from_items(
            self.names[:_MAX_SUMMARY_ROWS],
            ("candidate", str),
            (">estimated", lambda n: f"{self.size(n)}"),
            (">-2 log L", lambda n: f"{self._row(n).criteria.neg2loglik:.3f}"),
            (f">{self.criterion}", lambda n: f"{self.criteria[n]:.3f}"),
            (">weight", lambda n: f"{weights[n]:.3f}" if weights[n] >= 5e-4 else f"{weights[n]:.1e}"),
            ("", lambda n: describe_uncounted(self._row(n))),
        )

    @property
    def parts(self) -> tuple[TextTable | str, ...]:
        """The message, the table, and the sentences that interpret it."""
        remaining_names = self.names[_MAX_SUMMARY_ROWS:]
        weight = sum(self.weights[n] for n in remaining_names)
        remainder = (
            (f"({len(remaining_names)} more candidates with total weight {weight:.2g})",) if remaining_names else ()
        )
        return self.message, self.sheet, *remainder, *self.sentences

    def summary(self) -> str:
        """Return the text that `print` shows."""
        heading, sheet, *details = self.parts
        lines = sheet.lines if isinstance(sheet, TextTable) else [sheet]
        return "\n".join([f"{heading} ({self.time:.1f} s)", *(lines if self.names else []), "", *map(str, details)])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot criteria against the number of quantities with the path of the search, importances and weights."""
        return views().plots.selection(self, path)

    def __repr__(self) -> str:
        best = f"; best '{self.names[0]}', {self.criterion} = {self.criteria[self.names[0]]:.6g}" if self.names else ""
        return f"SelectionResult({len(self.names)} of {len(self.fits)} candidates fitted{best})"
