"""Proposal of the next measurements: accuracy of the quantities afterwards, and a bound on the loss to the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import is_count, option_mistakes, rng_mistakes
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.reprs import join_limited, join_with_and, one_line
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit._support.text_tables import align_columns
from castfit._support.ties import first_argmax
from castfit._support.time_limit import guarded
from castfit._support.views import views
from castfit.densities.noise.counts import NegativeBinomial, Poisson
from castfit.drive.design.criteria import standard_deviations
from castfit.drive.design.knowledge import UNKNOWN_DEVIATION, DesignInformation, PredictedValues
from castfit.drive.design.simple_schedules import EQUIDISTANT, PRESENT, RATIOS
from castfit.drive.uncertainty.inputs import as_seed
from castfit.experiment.events import is_after_data
from castfit.experiment.experiment import Experiment
from castfit.experiment.measurements import Relative

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Index
    from castfit.drive.design.interior_point import DesignGoal, RelaxedDesign
    from castfit.drive.design.purchases import CandidateSelection
    from castfit.drive.design.trials import VerifiedPopulation
    from castfit.drive.population.spec import Population
    from castfit.drive.uncertainty.refits.coverage import CoverageResult
    from castfit.problem.problem import Problem

_HEADS = {EQUIDISTANT: "equidistant", RATIOS: "equal ratios", PRESENT: "present times"}
# Efficiency from which whole percents are printed; two digits below it, so that none reads 0 %.
_WHOLE_PERCENT_EFFICIENCY = 0.095
_POOR_DEVIATION = 0.5  # relative standard deviation from which a quantity counts as poorly determined
_WORDS = ("no", "one", "two", "three", "four", "five", "six")
_TIMES = ("", "", "twice")


@with_old_names(known="information", bought="selection", goal="design_goal")
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Design:
    """A proposal of the next measurements; ``print(design)`` describes it.

    Attributes
    ----------
    criterion : str
        The criterion that was minimised: "D", "Ds", "A", "c", "E" or "T".
    weights : (N,) array
        Count of each of N purchases in the relaxed design, a real number.
    counts : (N,) array
        Count of each purchase; equal to the weights if the design is not exact.
    value, bound : float
        The criterion, and a lower bound of the criterion of all designs within the budgets.
    efficiency : float
        Lower bound of the efficiency relative to the best possible design.
    before, after : dict
        Standard deviations by quantity: relative to their values, absolute for values of 0; inf for unidentifiable
        quantities.  With several samples, their medians.
    simple, simple_efficiency : dict
        Standard deviations and efficiency of simple designs with as many measurements: ``"equidistant times"``,
        ``"times in equal ratios"`` and ``"the present times"``, if they are within the budget.
    chosen : dict
        Chosen values of each candidate with choices (`choose`), by place: a number, or (pieces,) of an input.
    remarks : tuple of str
        Further remarks.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> pilot = cf.Experiment({"x": [1.2, 0.8]}, [1, 2], sigma=0.1)
    >>> problem = cf.Problem(model, pilot, parameters={"k": cf.Parameter(0.5, scale="log")})
    >>> design = cf.design(problem, cf.Candidate([0.5, 1, 2, 4, 8], ["x"]), budget=3)
    >>> design.table["time"], design.table["count"]
    (array([2.]), array([3]))
    """

    criterion: str
    weights: Array
    counts: Array
    value: float
    bound: float
    efficiency: float
    before: dict[str, float]
    after: dict[str, float]
    simple: dict[str, dict[str, float]] = field(default_factory=dict[str, "dict[str, float]"])
    simple_efficiency: dict[str, float] = field(default_factory=dict[str, float])
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict[str, "dict[str, Any]"])
    remarks: tuple[str, ...] = ()
    exact: bool = True
    design_goal: DesignGoal
    information: DesignInformation
    selection: CandidateSelection
    relaxed: RelaxedDesign

    @property
    def reordered(self) -> bool:
        """Whether the criterion and `known` order the quantities differently."""
        return self.criterion == "Ds"

    @property
    def equidistant_efficiency(self) -> float:
        """The efficiency of as many measurements at equidistant times; NaN if there is no such design."""
        return self.simple_efficiency.get(EQUIDISTANT, np.nan)

    @property
    def gap(self) -> float:
        """Upper bound of the improvement of the criterion by any other design."""
        return self.value - self.bound

    @cached_property
    def spent(self) -> float:
        """Cost of the design, including fixed candidates."""
        return float(self.selection.cost @ self.counts) + self.selection.fixed_cost

    @cached_property
    def _predicted_values(self) -> tuple[PredictedValues, ...]:
        """Predicted values of each candidate at the estimate."""
        first_values = self.selection.values[0]
        if not self.information.has_samples:
            return first_values
        return tuple(self.information.values(k, values.times) for k, values in enumerate(first_values))

    @cached_property
    def table(self) -> dict[str, NDArray[Any]]:
        """One row for each value to be measured, as columns, for instance for ``pandas.DataFrame(design.table)``."""
        rows: list[tuple[Any, ...]] = []
        for i in np.flatnonzero(self.counts > 0):
            k, o, t = (
                int(indices[i]) for indices in (self.selection.candidate, self.selection.output, self.selection.time)
            )
            values = self._predicted_values[k]
            outputs = range(len(values.outputs)) if o < 0 else [o]
            times = range(values.times.size) if t < 0 else [t]
            label = self.information.labels[k]
            count = int(self.counts[i]) if self.exact else float(self.counts[i])
            rows += [
                (label, values.outputs[b], values.times[a], count, values.mu[a, b], values.deviation[a, b])
                for b in outputs
                for a in times
            ]
        headers = ("candidate", "output", "time", "count", "prediction", "deviation")
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(headers)
        return {head: np.array(column) for head, column in zip(headers, columns, strict=True)}

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """The proposed experiments, with predictions in the place of measured values.

        Insert measured values with `Experiment.with_values`, and fit a problem of the old and new experiments:
        ``design.problem`` is that problem, with the predictions.

        Raises
        ------
        InputError
            If the design is not exact.
        """
        if not self.exact:
            raise InputError("Design.experiments", ["the weights are not integers; set exact=True"])
        return tuple(e for _, e in self._candidate_experiments)

    @cached_property
    def _candidate_experiments(self) -> list[tuple[int, Experiment]]:
        """Experiments with the candidates to which they belong."""
        experiment_pairs: list[tuple[int, Experiment]] = []
        for k, candidate in enumerate(self.information.candidates):
            measurements = self.selection.experiments(self.counts, k)
            if candidate.fixed:
                measurements = {o: [(float(t), i, 1) for i, t in enumerate(candidate.times)] for o in candidate.outputs}
            if measurements:
                new_experiments = (
                    self._subjects(k, measurements)
                    if self.information.has_subjects
                    else [self._experiment(k, measurements)]
                )
                experiment_pairs += [(k, e) for e in new_experiments]
        return experiment_pairs

    def _subjects(self, k: int, measurements: Mapping[str, Sequence[tuple[float, int, int]]]) -> list[Experiment]:
        """Return an experiment for each subject, with predictions of a typical subject."""
        number = next(n for rows in measurements.values() for _, _, n in rows)
        experiment = self._experiment(k, {o: [(t, i, 1) for t, i, _ in rows] for o, rows in measurements.items()})
        return [experiment.called(f"{self.information.labels[k]}, subject {i + 1}") for i in range(number)]

    def _experiment(self, k: int, measurements: Mapping[str, Sequence[tuple[float, int, int]]]) -> Experiment:
        template = self.information.experiment(k)
        values, data, sigma = self._predicted_values[k], dict[str, Any](), dict[str, Any]()
        for output, rows in measurements.items():
            j = values.outputs.index(output)
            times = np.repeat([t for t, _, _ in rows], [n for _, _, n in rows])
            mu = np.repeat(values.mu[[i for _, i, _ in rows], j], [n for _, _, n in rows])
            has_count_noise = isinstance(template.noise.get(output), (Poisson, NegativeBinomial))
            data[output] = (times, np.round(np.maximum(mu, 0.0)) if has_count_noise else mu)
            if template.sigma is not None and output in template.sigma:
                spread = self.information.spread_of(k, output, times)
                spread = spread.compute_deviations(mu) if isinstance(spread, Relative) else spread
                sigma[output] = spread / self.information.sigma_factor(self.information.observable(k, output))
        noise = {o: n for o, n in template.noise.items() if o in data}
        end = max(float(times[-1]) for times, _ in data.values())
        events = [e for e in self.information.events(k) if not is_after_data(e, end)]
        return Experiment(
            data, sigma=sigma or None, noise=noise or None, initial=template.initial, parameters=template.parameters,
            inputs=template.inputs, events=events, start=template.start, name=template.name,
        )  # fmt: skip

    @property
    def problem(self) -> Problem:
        """Problem of the next fit: the experiments measured so far, if any, and the proposed ones.

        Candidates with ``repeats=True`` add their values to their experiment.
        """
        old_experiments = list(self.information.problem.experiments)
        new_experiments = list(self.experiments)
        pairs = [(e, self.information.candidates[k]) for k, e in self._candidate_experiments]
        origin_by_name = {e.name: c.experiment or old_experiments[0].name for e, c in pairs if c.repeats}
        additions = {
            old_name: [e for e in new_experiments if origin_by_name.get(e.name) == old_name]
            for old_name in origin_by_name.values()
        }
        new_experiments = [e for e in new_experiments if e.name not in origin_by_name]
        if self.information.is_fitted:
            old_experiments = [_join_data(e, additions.get(e.name, ())) for e in old_experiments]
        else:
            old_experiments = [
                e.called(name)
                for name, replicates in additions.items()
                for e in [_join_data(replicates[0], replicates[1:])]
            ]
        parameters = {n: self.information.parameters.get(n, p) for n, p in self.information.problem.parameters.items()}
        return self.information.problem.replace(experiments=[*old_experiments, *new_experiments], parameters=parameters)

    @property
    def population(self) -> Population:
        """Specification of the population for `problem`, with covariates of all its subjects.

        Raises
        ------
        InputError
            If the design is not of a population.
        """
        information: Any = self.information
        if not information.has_subjects:
            raise InputError("Design.population", ["the design is not of a population; use design.problem"])
        return information.population(
            {e.name: k for k, e in self._candidate_experiments}, [e.name for e in self.problem.experiments]
        )

    @guarded
    def verify(
        self, samples: int = 200, *, rng: int | np.random.Generator = 0, **options: Any
    ) -> CoverageResult | VerifiedPopulation:
        """Simulate the design with any previous data, fit again, and compute the scatter of the estimates.

        For a population each trial draws new subjects, and `mixed_effects` fits it.

        Parameters
        ----------
        samples : int
            Number of simulated data sets.
        rng : int or numpy.random.Generator
            Draws the noise.
        **options
            Options of `castfit.coverage`: `workers`, `max_time`, ...  For a population `workers`, `max_time`,
            `fit_max_time`, `callback` and `verbose`.

        Returns
        -------
        CoverageResult or VerifiedPopulation
            ``verified.quantities["k"].scatter`` beside ``design.after["k"]`` times the value, which a
            VerifiedPopulation holds as ``promised``.

        Raises
        ------
        InputError
            If the design is not exact, or the noise cannot be drawn.
        """
        from castfit.drive.uncertainty.refits.coverage import coverage

        mistakes = option_mistakes(("samples", samples, is_count(samples, 2), "give at least 2"))
        if not self.information.has_subjects:
            raise_if_mistakes("Design.verify", mistakes)
        else:
            from castfit.drive.design.trials import OPTIONS, verify_population_design

            option_errors = [
                f"'{n}' is no option for populations: {suggest(n, OPTIONS)}" for n in options if n not in OPTIONS
            ]
            raise_if_mistakes("Design.verify", [*mistakes, *rng_mistakes(rng), *option_errors])
            return verify_population_design(self, samples, as_seed(rng), options)
        problem = self.problem
        natural_values = dict(
            zip(
                self.information.extended.names,
                self.information.extended.to_natural(self.information.theta()),
                strict=True,
            )
        )
        true_values = {n: float(natural_values[n]) for n in problem.names if n in natural_values}
        true_values |= dict(
            zip(
                self.information.compiled_problem.names,
                self.information.compiled_problem.to_natural(self.information.estimate),
                strict=True,
            )
        )
        true_values = {n: float(v) for n, v in true_values.items() if n in problem.names}
        sigma_by_group = dict(zip(self.information.extended.groups, self.information.sigmas, strict=True))
        unknown_sigmas = {name or "sigma": sigma_by_group[name] for name in problem.posed.groups}
        return coverage(problem, true_values, sigma=unknown_sigmas or None, samples=samples, rng=rng, **options)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot predictions with their bands before and after, times with counts, certificate, ellipses, and budgets.

        Parameters
        ----------
        path : str or Path, optional
            Where to write the figure to.
        """
        return views().plots.design(self, path)

    def save_petab(self, folder: str | Path) -> Path:
        """Write the next problem as PEtab files, with predictions in the place of measured values.

        Parameters
        ----------
        folder : str or Path

        Returns
        -------
        Path
            Of the YAML file.
        """
        from castfit.formats.petab import save

        return save(self.problem, folder)

    def summary(self) -> str:
        """Return the text that `print` shows."""
        return "\n".join([*self._instructions, "", *self._error_lines, "", *self._certificate_lines, *self.remarks])

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return one_line(f"Design({self.criterion}, {len(self.table['time'])} values, efficiency {self.efficiency:.3g})")

    @property
    def _instructions(self) -> list[str]:
        is_single = len(self.information.labels) == 1
        lines: list[str] = []
        for label, values in self.chosen.items():
            choice_texts = [
                f"{location} = {', '.join(f'{v:.4g}' for v in np.atleast_1d(value))}"
                for location, value in values.items()
            ]
            lines.append(
                f"{'' if is_single else f'In {label}: '}{'Choose' if is_single else 'choose'} "
                f"{'; '.join(choice_texts)}."
            )
        for k, label in enumerate(self.information.labels):
            prefix = "" if is_single else f"In {label}: "
            if self.information.candidates[k].fixed:
                lines.append(f"Perform {label} (fixed).")
                continue
            indices = np.flatnonzero((self.counts > 0) & (self.selection.candidate == k))
            if self.information.has_subjects:
                lines += [
                    self.information.describe_schedule(
                        k, float(self.counts[i]), self.selection.values[0][k], exact=self.exact
                    )
                    for i in indices
                ]
            elif not indices.size:
                lines.append(
                    "Measure nothing: no measurement is worth its price." if is_single else f"Leave {label} out."
                )
            elif self.information.candidates[k].cost_unit == "experiment":
                lines.append(f"Do {label}{self._count_text(float(self.counts[indices[0]]), ' ')}.")
            else:
                lines.append(f"{prefix or 'M'}{'measure' if prefix else 'easure'} {self._times_text(k, indices)}.")
        return lines

    def _times_text(self, k: int, indices: Index) -> str:
        values, texts = self.selection.values[0][k], list[str]()
        for o in np.unique(self.selection.output[indices]).tolist():
            output_indices = indices[self.selection.output[indices] == o]
            output_indices = output_indices[np.argsort(self.selection.time[output_indices])]
            outputs_text = join_limited(values.outputs if o < 0 else values.outputs[o : o + 1])
            times = [
                f"{values.times[self.selection.time[i]]:.4g}{self._count_text(float(self.counts[i]), ' (', ')')}"
                for i in output_indices
            ]
            texts.append(f"{outputs_text} at t = {join_with_and(times)}")
        return "; ".join(texts)

    def _count_text(self, count: float, prefix: str, suffix: str = "") -> str:
        if not self.exact:
            return f"{prefix}weight {count:.4g}{suffix}"
        n = round(count)
        return "" if n == 1 else f"{prefix}{_TIMES[n] if n < len(_TIMES) else f'{n} times'}{suffix}"

    @property
    def _error_lines(self) -> list[str]:
        efficiencies = self.simple_efficiency
        best_name = [*efficiencies][first_argmax([*efficiencies.values()])] if efficiencies else None
        headers = ["", "now", "after this", *([f"{_HEADS[best_name]}, same cost"] if best_name else [])]
        columns = (self.before, self.after, *([self.simple[best_name]] if best_name else []))
        absolute = self.information.absolute_names
        rows = [[n, *(_format_deviation(column[n], absolute=n in absolute) for column in columns)] for n in self.before]
        return [
            line for line in align_columns([headers, *rows], "<" + ">" * len(columns)) if rows and line[:3] != "---"
        ]

    @property
    def _certificate_lines(self) -> list[str]:
        max_gain = 1.0 / self.efficiency - 1.0 if self.efficiency > 0.0 else np.inf
        criterion_text = f"{self.criterion} and its price" if self.selection.price else self.criterion
        scope_text = self.information.certificate_scope + (", as chosen," if self.chosen else "")
        budget_text = " within the budget" if self.selection.has_budget or not self.selection.price else ""
        phrases = [
            f"Optimality bound: no design of {scope_text}{budget_text} is better by more than "
            f"{_format_percent(max_gain)} ({criterion_text})"
        ]
        for name, efficiency in self.simple_efficiency.items():
            unknown_names = [
                n for n, sd in self.simple[name].items() if not np.isfinite(sd) and np.isfinite(self.after[n])
            ]
            if not unknown_names:
                percent_text = (
                    f"{100 * efficiency:.0f}" if efficiency >= _WHOLE_PERCENT_EFFICIENCY else f"{100 * efficiency:.2g}"
                )
                phrases.append(
                    f"{name}{'' if any('reach' in phrase for phrase in phrases) else ' reach'} {percent_text} %"
                )
            elif name == EQUIDISTANT:
                phrases.append(f"{name} leave {join_limited(unknown_names)} unknown")
        lines = [f"{'; '.join(phrases[:2])}{''.join(f', {other}' for other in phrases[2:])}."]
        if self.selection.price:
            lines.append(
                f"The cost is {self.spent:g}; at a price of {self.selection.price:g} additional measurements do not "
                "pay."
            )
        return lines


def _join_data(experiment: Experiment, additions: Sequence[Experiment]) -> Experiment:
    """Return an experiment with the values of others added, in the order of time."""
    data, sigma = dict(experiment.data), dict(experiment.sigma or {})
    for addition in additions:
        for name, (t, y) in addition.data.items():
            old_t, old_y = data.get(name, (np.empty(0), np.empty((0, 1))))
            is_finite = np.isfinite(old_y)
            times = np.concatenate([np.repeat(old_t, old_y.shape[1])[is_finite.ravel()], np.repeat(t, y.shape[1])])
            order = np.argsort(times, kind="stable")
            data[name] = (times[order], np.concatenate([old_y[is_finite], y.ravel()])[order][:, None])
            if addition.sigma is not None and name in addition.sigma:
                old_s = sigma.get(name, np.empty((0, 1)))
                old_s = np.broadcast_to(old_s, old_y.shape)[is_finite]
                sigma[name] = np.concatenate([old_s, np.broadcast_to(addition.sigma[name], y.shape).ravel()])[order][
                    :, None
                ]
    noise = {**experiment.noise, **{n: m for e in additions for n, m in e.noise.items() if n not in experiment.data}}
    events = max((experiment, *additions), key=lambda e: e.end).events  # shorter experiments lack later events
    return experiment.with_changes(data=data, sigma=sigma or None, noise=noise, events=events)


def _format_percent(share: float) -> str:
    if not np.isfinite(share):
        return "any amount"
    percent = max(100.0 * share, 1e-4)  # the bound is not more accurate
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"


def _format_deviation(sd: float, *, absolute: bool) -> str:
    if not np.isfinite(sd):
        return "unknown"
    return f"±{sd:.3g}" if absolute else f"±{100 * sd:.3g} %"


def compute_deviations(information: DesignInformation, M: Array) -> dict[str, float]:
    """Compute standard deviations of the quantities, medians over informations (S, n_u, n_u).

    Inf for undetermined ones.
    """
    sd = np.median(standard_deviations(M), axis=0)[information.problem_positions]
    return {n: float(v) if v < UNKNOWN_DEVIATION else np.inf for n, v in zip(information.quantities, sd, strict=True)}


def build_remarks(design: Design) -> tuple[str, ...]:
    """Return remarks on a design, such as undetectable lack of fit, unsupported guesses and undetermined quantities."""
    information, remarks = design.information, list[str]()
    if information.is_refuted:
        remarks.append(
            "The fitted model does not fit the data (see print(result)); these predictions assume that it is correct."
        )
    equations = {
        relation.constraint.name
        for relation in information.compiled_problem.relations
        if relation.lower == relation.upper
    }
    other_constraints = [c.name for c in information.problem.constraints if c.name not in equations]
    if other_constraints:
        remarks.append(
            f"The design ignores the information of the constraint{'' if len(other_constraints) == 1 else 's'} "
            f"{join_limited(other_constraints)}."
        )
    table = design.table
    n_points = len({*zip(table["candidate"].tolist(), table["output"].tolist(), table["time"].tolist(), strict=True)})
    n = len(information.problem_positions)
    if not information.is_fitted and not information.has_subjects and n_points and n_points <= n:
        number_word = _WORDS[n_points].capitalize() if n_points < len(_WORDS) else str(n_points)
        noun = "distinct time shows" if n_points == 1 else "distinct times show"
        remarks.append(f"{number_word} {noun} no lack of fit; set distinct={n + 1} to be able to detect it.")
    unknown_names = [name for name, sd in design.after.items() if not np.isfinite(sd)]
    if unknown_names:
        remarks.append(
            f"{join_limited(unknown_names)} will not be identifiable after this experiment (not a target of the "
            "design)."
        )
    if not information.has_samples:
        poorly_known = [name for name, sd in design.before.items() if sd > _POOR_DEVIATION]
        if not information.is_fitted:
            remarks.append("The design is optimal only if the guesses are correct; no data support them.")
        elif poorly_known:
            can_sample = not equations and np.isfinite(list(design.before.values())).all()
            remarks.append(
                f"The design depends on poorly determined estimates ({join_limited(poorly_known)})."
                f"{' Pass cf.sample(result) to average over their uncertainty.' * bool(can_sample)}"
            )
    return tuple(remarks)
