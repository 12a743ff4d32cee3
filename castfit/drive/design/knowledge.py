"""Prior information, and the information of candidates: rows of the Fisher information in relative changes.

Every candidate is an experiment of an extended problem.  Its quantities are the problem's quantities, and new ones for
free initial states and local parameters.  A value with prediction mu and spread s adds the rows

    sqrt(kappa) mu' / s    and, if s depends on the quantities,    sqrt(lambda) s' / s

with kappa = 1, lambda = 2 for normal errors.  mu' and s' are derivatives by relative changes u: changes of the
logarithm of a quantity, or of a quantity divided by its size.  Eliminated constant spreads have a separate block.

A weak prior with a relative standard deviation of 1e5 makes every matrix invertible.  A quantity with a relative
standard deviation above 1e4 counts as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np
from scipy.special import log_ndtr, ndtr

from castfit._support.arguments import describe_rejected, shorten_repr
from castfit._support.arrays import Array, Index, Mask
from castfit._support.reprs import join_limited
from castfit._support.status import InputError, raise_if_mistakes, suggest, unknown_names
from castfit.densities.noise.counts import NegativeBinomial, Poisson
from castfit.densities.noise.density import Noise
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.densities.noise.robust import HeavyTailed
from castfit.drive.design.candidate import Candidate, with_fields
from castfit.drive.design.choices import substitute_choices
from castfit.drive.design.interior_point import CandidatePool
from castfit.experiment.events import Happening, is_after_data
from castfit.experiment.experiment import Experiment, SteadyStart
from castfit.experiment.measurements import Relative
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.observables import ObservedOutput
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Problem
from castfit.problem.quantities import Quantity
from castfit.result.result import Result
from castfit.simulate.output_sensitivities import OutputSensitivities, ResponseFunction

WEAK_PRIOR_INFORMATION = 1e-10  # information of the weak prior of each quantity, in relative changes
EQUATION_PRECISION = 1e5  # square root of the information of an equation between quantities, in relative changes
UNKNOWN_DEVIATION = 1e4  # relative standard deviation from which a quantity counts as unknown
_CORRELATED_MESSAGE = "correlated measurement errors are unsupported in designs; remove the correlation"
_INTEGRATION_RTOL = 1e-8  # relative tolerance of the integration: rounding must not look like information


@dataclass(frozen=True, eq=False)
class PredictedValues:
    """Values of one candidate's outputs that could be measured.

    times (n,), outputs (q,);  mu, s (n, q) : predictions, and standard deviations of errors in the unit of the output
    sigma (n, q) : spreads of the noise, in its own unit
    rows (n, q, 2, n_u) : information rows of each, in relative changes
    between_variance (n, q) : variance between subjects, in units of s^2
    """

    times: Array
    outputs: tuple[str, ...]
    mu: Array
    s: Array
    sigma: Array
    rows: Array
    between_variance: Array | float = 0.0

    @property
    def deviation(self) -> Array:
        """Standard deviations of values (n, q), including the variation between subjects."""
        return self.s * np.sqrt(1.0 + self.between_variance)


@dataclass(frozen=True, eq=False)
class DesignInformation:
    """The problem extended by candidates, at one or several points theta.

    problem : has the target quantities;  extended : with an experiment for each candidate, in `labels`
    estimate (n_theta,) : of the problem;  thetas (S, n_theta) : samples of it;  sigmas : by group
    problem_positions (n_theta,) : positions of the problem's quantities among the n_u of the extended problem
    columns : positions of the extended problem's theta among the n_u
    origins : positions in theta of the quantities whose estimates new quantities take, -1 without one
    is_fitted, is_refuted : whether there is a fit, and whether it shows that the model is wrong
    response_cache : response functions by experiment, times and outputs; None if each is used once
    """

    problem: Problem
    extended: CompiledProblem
    labels: tuple[str, ...]
    names: tuple[str, ...]
    estimate: Array
    thetas: Array
    sigmas: tuple[float, ...]
    problem_positions: Index
    columns: Index
    origins: Index
    is_fitted: bool
    is_refuted: bool
    absolute_sigma: bool | None
    options: IntegratorOptions
    candidates: tuple[Candidate, ...]
    response_cache: dict[tuple[Any, ...], ResponseFunction] | None = None

    @cached_property
    def compiled_problem(self) -> CompiledProblem:
        """The compiled problem, with the fit's assumption on sigmas."""
        return self.problem.posed.with_absolute_sigma(absolute_sigma=self.absolute_sigma)

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of the problem's quantities."""
        return self.compiled_problem.names

    @cached_property
    def absolute_names(self) -> frozenset[str]:
        """Names of quantities with absolute standard deviations: value 0, and not in log scale."""
        entries = zip(self.compiled_problem.names, self.estimate, self.compiled_problem.log, strict=True)
        return frozenset(n for n, value, log in entries if value == 0.0 and not log)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Parameters, their guesses for new experiments among them."""
        return self.extended.parameters

    @property
    def has_subjects(self) -> bool:
        """Whether purchases are subjects of a population; False here."""
        return False

    def describe_schedule(self, k: int, count: float, values: PredictedValues, *, exact: bool) -> str:
        """Describe the measurements of a schedule's subjects; only populations have schedules."""
        raise NotImplementedError

    @property
    def certificate_scope(self) -> str:
        """Description of the set of designs that a certificate covers."""
        return "these candidates and times"

    @property
    def has_samples(self) -> bool:
        """Whether the design is for draws of the quantities, one or more, instead of the estimate."""
        return not np.array_equal(self.thetas, self.estimate[None])

    @cached_property
    def is_problem_quantity(self) -> Mask:
        """Mask of the n_u that are quantities of the problem, (n_u,)."""
        mask = np.zeros(len(self.names), dtype=bool)
        mask[self.problem_positions] = True
        return mask

    def theta(self, sample: int | None = None) -> Array:
        """Return theta of the extended problem at the estimate, or at a sample."""
        problem_theta = self.estimate if sample is None else self.thetas[sample]
        values = np.full(len(self.names), np.nan)
        values[self.problem_positions] = problem_theta
        theta = values[self.columns]
        new_indices = np.flatnonzero(np.isnan(theta))
        origins = self.origins[new_indices]
        theta[new_indices] = np.where(origins >= 0, problem_theta[origins], self.extended.guess[new_indices])
        return theta

    @cached_property
    def units(self) -> Array:
        """Size in search scale of a relative change of 1, (n_u,); 1 for logarithms and values of 0."""
        log, theta = np.zeros(len(self.names), dtype=bool), np.zeros(len(self.names))
        log[self.columns], theta[self.columns] = self.extended.log, self.theta()
        return np.where(log | (theta == 0.0), 1.0, np.abs(theta))

    def compute_prior_information(self, sample: int = 0) -> Array:
        """Return the information of data and priors, (n_u, n_u)."""
        theta, n = self.thetas[sample], len(self.names)
        rows = [self._to_relative_rows(self.compiled_problem.priors(theta).jacobian, self.problem_positions)]
        extended = self._to_relative_rows(self.extended.priors(self.theta(sample)).jacobian, self.columns)
        rows.append(extended[~(extended[:, self.is_problem_quantity] != 0.0).any(axis=1)])
        for condition in self.compiled_problem.conditions if self.is_fitted else ():
            points = condition.points
            times, time_indices = np.unique(points.times, return_inverse=True)
            response = self.predict(self.compiled_problem, condition, times, theta, self.compiled_problem.outputs)
            for j, noise in enumerate(condition.observed):
                point_indices = np.flatnonzero(points.mask[:, j])
                if noise is not None and point_indices.size:
                    block = information_rows(
                        self.compiled_problem,
                        condition,
                        j,
                        response,
                        time_indices[point_indices],
                        points.sigma[point_indices, j],
                        self.sigmas,
                    )[3]
                    rows.append(self._to_relative_rows(np.concatenate(list(block)), self.problem_positions))
        J = np.concatenate([*rows, self._equations(theta)])
        return J.T @ J + WEAK_PRIOR_INFORMATION * np.eye(n)

    def _equations(self, theta: Array) -> Array:
        """Compute information rows (m, n_u) of equations between quantities, with `EQUATION_PRECISION`."""
        _, slopes = self.compiled_problem.evaluate_relations(theta)
        rows = self._to_relative_rows(
            slopes[[relation.lower == relation.upper for relation in self.compiled_problem.relations]],
            self.problem_positions,
        )
        size = np.linalg.norm(rows, axis=1, keepdims=True)
        return EQUATION_PRECISION * rows / np.where(size > 0.0, size, 1.0)

    def values(
        self, k: int, times: Array, sample: int | None = None, *, outputs: Sequence[str] | None = None
    ) -> PredictedValues:
        """Predict the values of candidate k at times, with their information rows, at the estimate or at a sample."""
        names = tuple(outputs or self.candidates[k].outputs)
        mu, s, sigma, rows = self._predict_candidate(k, times, self.theta(sample), names)
        return PredictedValues(times, names, mu, s, sigma, self._to_relative_rows(rows, self.columns))

    def _predict_candidate(
        self, k: int, times: Array, theta: Array, names: Sequence[str]
    ) -> tuple[Array, Array, Array, Array]:
        """Return predictions, deviations, spreads (n, q) of candidate k, and rows (n, q, 2, n_theta)."""
        condition = self.condition(k)
        response = self.predict(self.extended, condition, times, theta, names)
        mu: list[Array] = []
        s: list[Array] = []
        sigma: list[Array] = []
        rows: list[Array] = []
        for name in names:
            j, spread = self.extended.outputs.index(name), self.spread_of(k, name, times)
            if isinstance(spread, Relative):
                spread = spread.compute_deviations(response.values[:, response.names.index(name)])
                if not np.all(spread > 0.0):
                    message = (
                        f"sigma of '{name}' is relative, and its prediction is 0; give cf.relative(..., floor=...)"
                    )
                    raise InputError("design", [f"{self.labels[k]}: {message}"])
            unit_sigmas = (1.0,) * len(self.sigmas)
            arrays = information_rows(self.extended, condition, j, response, np.arange(times.size), spread, unit_sigmas)
            for array, collection in zip(arrays, (mu, s, sigma, rows), strict=True):
                collection.append(array)
        return np.stack(mu, 1), np.stack(s, 1), np.stack(sigma, 1), np.stack(rows, axis=1)

    def gradient(self, target: Any, mistakes: list[str]) -> Array | None:
        """Compute the derivatives of an expression of quantities by relative changes, (n_u,).

        Return None after a mistake.
        """
        compiled = self.compiled_problem
        if isinstance(target, str):
            if target not in compiled.names:
                mistakes.append(f"'{target}' is not estimated: {suggest(target, compiled.names)}")
                return None
            slope = np.eye(len(compiled.names))[compiled.names.index(target)]
        elif isinstance(target, ca.SX) and target.numel() == 1:
            symbols, theta, slope = ca.symvar(target), compiled.to_natural(self.estimate), np.zeros(len(compiled.names))
            positions = [
                [j for j, q in enumerate(compiled.quantities) if s.name() in (q.name, q.symbol_name)] for s in symbols
            ]
            fixed = {n: p.value for n, p in compiled.parameters.items() if p.fixed}
            for symbol, symbol_positions in zip(symbols, positions, strict=True):
                if len(symbol_positions) != 1 and symbol.name() not in fixed:
                    fault = (
                        "is not estimated"
                        if not symbol_positions
                        else "differs between experiments: give the name of one"
                    )
                    mistakes.append(f"'{symbol.name()}' in the expression {fault} ({join_limited(compiled.names)})")
                    return None
            values: Any = [
                theta[indices[0]] if indices else fixed[s.name()] for s, indices in zip(symbols, positions, strict=True)
            ]
            gradient_function = ca.Function(
                "gradient", [ca.vertcat(*symbols)], [ca.gradient(target, ca.vertcat(*symbols))]
            )
            for symbol_positions, value in zip(
                positions, np.array(gradient_function(np.array(values, dtype=float))).ravel(), strict=True
            ):
                slope[symbol_positions[:1]] += value
        else:
            remedy = "give a quantity, an expression of quantities, or cf.OutputAt(...)"
            mistakes.append(f"variance_of {shorten_repr(target)}; {remedy}")
            return None
        row = np.zeros(len(self.names))
        row[self.problem_positions] = slope * compiled.natural_slope(self.estimate)
        return row * self.units

    def spread_of(self, k: int, output: str, times: Array) -> Relative | Array:
        """Return the spreads of an output of candidate k at times (n,), or its `Relative` sigma."""
        sigma, condition, j = (
            self.candidates[k].sigma_of(output),
            self.condition(k),
            self.extended.outputs.index(output),
        )
        if sigma is not None:
            return sigma if isinstance(sigma, Relative) else np.full(times.size, float(sigma))
        return self.sigma_factor(condition.observed[j]) * np.interp(
            times, condition.points.times, condition.points.sigma[:, j]
        )

    def slopes(self, label: str, times: Array, outputs: Sequence[str]) -> tuple[Array, Array]:
        """Return outputs at times, (n, q), and their derivatives by relative changes, (n, q, n_u)."""
        response = self.predict(self.extended, self._find_condition(label), times, self.theta(), outputs)
        slopes = response.slopes[:, : len(outputs)]
        return response.values[:, : len(outputs)], self._to_relative_rows(slopes, self.columns)

    def condition(self, k: int) -> Condition:
        """Return the compiled experiment of candidate k."""
        return self._find_condition(self.labels[k])

    def observable(self, k: int, output: str) -> ObservedOutput | None:
        """Return the `ObservedOutput` of an output of candidate k, or None if there is none."""
        return self.condition(k).observed[self.extended.outputs.index(output)]

    def sigma_factor(self, observable: ObservedOutput | None) -> float:
        """Return the estimated factor of a sigma, 1 if sigma is known."""
        return self.sigmas[observable.group] if observable is not None and observable.group >= 0 else 1.0

    def experiment(self, k: int) -> Experiment:
        """Return the experiment of candidate k as specified."""
        return next(e for e in self.extended.experiments if e.name == self.labels[k])

    def events(self, k: int) -> tuple[Happening, ...]:
        """Return the events of candidate k, or of its base experiment if the candidate specifies none."""
        candidate, experiments = self.candidates[k], {e.name: e for e in self.problem.experiments}
        base = experiments[candidate.experiment or next(iter(experiments))]
        return base.events if candidate.events is None else candidate.events

    def purchase_rows(self, values: PredictedValues, purchase_unit: str) -> Array:
        """Return the information rows (N, k, n_u) of each purchase, from the rows of values (n, q, 2, n_u)."""
        n, q, _, n_u = values.rows.shape
        rows = values.rows if values.rows[:, :, 1].any() else values.rows[:, :, :1]
        rows = np.swapaxes(rows, 0, 1) if purchase_unit == "output" else rows
        count = {"output": q * n, "time": n}.get(purchase_unit, 1)
        result = rows.reshape(count, int(np.prod(rows.shape[:3])) // count, n_u)
        if result.shape[1] <= n_u:
            return result
        return np.array([np.linalg.qr(block, mode="r") for block in result])

    def simple_experiments(self, pool: CandidatePool, counts: Array) -> dict[str, Array]:
        """Return whole experiments at simple times; only populations have them (simple_schedules)."""
        return {}

    def measured_times(self, k: int, output: int) -> Array:
        """Return the measurement times so far of candidate k's base experiment; output -1 means all outputs."""
        candidate, experiments = self.candidates[k], {e.name: e for e in self.problem.experiments}
        data = experiments[candidate.experiment or next(iter(experiments))].data
        names = candidate.outputs if output < 0 else candidate.outputs[output : output + 1]
        return np.unique(np.concatenate([np.empty(0), *(data[n][0] for n in names if n in data)]))

    def _find_condition(self, name: str) -> Condition:
        return next(c for c in self.extended.conditions if c.name == name)

    def _to_relative_rows(self, rows: Any, columns: Index) -> Array:
        """Convert rows by theta (..., n) to rows by relative changes of the n_u quantities."""
        dense_rows = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=float)
        full_rows = np.zeros((*dense_rows.shape[:-1], len(self.names)))
        for j, column in enumerate(columns):
            full_rows[..., column] += dense_rows[..., j]
        return full_rows * self.units

    def predict(
        self, compiled: CompiledProblem, condition: Condition, times: Array, theta: Array, outputs: Sequence[str]
    ) -> OutputSensitivities:
        """Return outputs of an experiment at times, followed by predictions on which their noise depends."""
        observables = (condition.observed[compiled.outputs.index(o)] for o in outputs if o in compiled.outputs)
        requested_outputs = tuple(
            dict.fromkeys(
                (
                    *outputs,
                    *(n for observable in observables if observable is not None for n in observable.predicted_outputs),
                )
            )
        )
        key = (compiled is self.extended, condition.name, times.tobytes(), requested_outputs)
        response_function = None if self.response_cache is None else self.response_cache.get(key)
        response_function = response_function or ResponseFunction.from_condition(
            compiled, condition, times, theta, self.options, requested_outputs
        )
        if self.response_cache is not None:
            self.response_cache[key] = response_function
        response = response_function(theta)
        if response is None:
            message = "the sensitivities could not be integrated; change the conditions or times"
            raise InputError("design", [f"{condition.name}: {message}"])
        return response


def information_rows(
    compiled: CompiledProblem,
    condition: Condition,
    j: int,
    response: OutputSensitivities,
    time_indices: Index,
    sigma: Array,
    sigmas: Sequence[float],
) -> tuple[Array, Array, Array, Array]:
    """Return predictions, standard deviations, spreads (n,), rows (n, 2, n_theta) of output j at some of the times."""
    observable = condition.observed[j]
    assert observable is not None
    mu, slope = (
        array[time_indices, response.names.index(compiled.outputs[j])] for array in (response.values, response.slopes)
    )
    rows = np.zeros((time_indices.size, 2, slope.shape[1]))
    s = sigma * (sigmas[observable.group] if observable.group >= 0 else 1.0)
    location, scale = information_factors(observable.noise)
    if observable.is_spread_computed:
        spread_index = response.names.index(observable.predicted_outputs[1])
        s = response.values[time_indices, spread_index]
        rows[:, 1] = np.sqrt(scale) * response.slopes[time_indices, spread_index] / s[:, None]
    deviation = observable.noise.deviation(mu, s)
    unit = deviation if isinstance(observable.noise, (Poisson, NegativeBinomial)) else s
    unit = unit / transform_slope(observable.noise, mu)
    with np.errstate(divide="ignore", invalid="ignore"):
        rows[:, 0] = np.where(unit[:, None] != 0.0, np.sqrt(location) * slope / unit[:, None], 0.0)
        rows[:, 0] *= np.sqrt(censoring_share(observable.noise, mu, s))[:, None]
    return mu, deviation, s, rows


def transform_slope(noise: Noise, mu: Array) -> Array | float:
    """Return the derivative of the noise's scale, (n,); 1 except for `LogNormal`."""
    if not isinstance(noise, LogNormal):
        return 1.0
    with np.errstate(divide="ignore"):
        return 1.0 / (mu * (np.log(10.0) if noise.base == 10 else 1.0))


def censoring_share(noise: Noise, mu: Array, s: Array) -> Array:
    """Return the share of the information on the mean that limits of detection leave, (n,).

    z is the distance of a limit from the mean, in standard deviations, positive towards the detected values.  Detected
    values have the share  1 - Phi(z) + z phi(z)  of the information, the frequency of censoring has  phi(z)^2 / Phi(z).
    """
    share = np.ones(mu.size)
    if isinstance(noise, (Gaussian, LogNormal)):
        for limit, sign in ((noise.below, 1.0), (noise.above, -1.0)):
            if limit is not None:
                z = -sign * noise.error(mu, s, np.full(mu.size, limit))
                density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
                hazard = np.exp(-0.5 * z**2 - log_ndtr(z)) / np.sqrt(2.0 * np.pi)
                share += z * density + density * hazard - ndtr(z)
    return np.clip(share, 0.0, 1.0)


def information_factors(noise: Noise) -> tuple[float, float]:
    """Return kappa (mean) and lambda (logarithm of the spread) of a noise model."""
    match noise:
        case Gaussian() | LogNormal():
            return 1.0, 2.0
        case HeavyTailed():
            numbers = noise._numbers  # pyright: ignore[reportPrivateUsage] - of the density
            return numbers.location, numbers.scale
        case _:  # counts: information on the mean by their variance, none on the dispersion
            return 1.0, 0.0


def build_design_information(
    source: Any,
    candidates: Sequence[Candidate],
    mistakes: list[str],
    *,
    samples: int,
    where: str = "design",
    choice_values: Mapping[str, Array] | None = None,
) -> DesignInformation:
    """Build the problem extended by an experiment for each candidate. Raise an InputError with all `mistakes`, if any.

    choice_values : numbers of the choices in candidates (castfit.drive.design.choices)
    """
    result, estimate, thetas = _read_source(source, samples, mistakes, where)
    problem: Any = source if result is None else result.problem
    full_candidates, extended_problem = extend_with_candidates(problem, candidates, mistakes, where, choice_values)
    absolute = None if result is None else result.absolute_sigma
    extended = extended_problem.posed.with_absolute_sigma(absolute_sigma=absolute)
    labels = [e.name for e in extended_problem.experiments[len(problem.experiments) :]]
    names, positions, columns, origins = _match_quantities(problem, extended, labels, full_candidates)
    information = DesignInformation(
        problem,
        extended,
        tuple(labels),
        names,
        estimate,
        thetas,
        _eliminated_sigmas(result, extended),
        positions,
        columns,
        origins,
        result is not None,
        result is not None and result.is_contradicted,
        absolute,
        tighten_tolerances(None if result is None else result.integrator),
        tuple(full_candidates),
    )
    messages: list[str] = []
    for k, o in [(k, o) for k, c in enumerate(full_candidates) for o in c.outputs if c.sigma_of(o) is None]:
        observable = information.observable(k, o)
        if observable is not None and not np.isfinite(information.sigma_factor(observable)):
            remedy = f"set Candidate(sigma={{'{o}': ...}})"
            messages.append(f"{labels[k]}: the sigma of '{o}' is unknown; {remedy}")
        noise = observable.noise if observable is not None and observable.is_spread_computed else None
        if isinstance(noise, (Gaussian, LogNormal)) and noise.censored:
            messages.append(
                f"{labels[k]}: sigma of '{o}' depends on estimated quantities, and values are censored; "
                "this combination is unsupported: set Candidate(sigma=...)"
            )
    raise_if_mistakes(where, messages)
    return information


def extend_with_candidates(
    problem: Problem,
    candidates: Sequence[Candidate],
    mistakes: list[str],
    where: str,
    choice_values: Mapping[str, Array] | None = None,
    *,
    subjects: bool = False,
) -> tuple[list[Candidate], Problem]:
    """Return the candidates, with their outputs, and the problem with an experiment for each.

    Raise an InputError with all `mistakes`, if any.

    subjects : whether purchases are subjects, measured at all times unless `per_subject` is set
    """
    experiments = {e.name: e for e in problem.experiments}
    if problem.posed.correlations:
        mistakes.append(_CORRELATED_MESSAGE)
    labels: list[str] = []
    new_experiments: list[Experiment] = []
    full_candidates: list[Candidate] = []
    for k, candidate in enumerate(candidates):
        label = candidate.name or f"candidate {k + 1}"
        if label in (*labels, *experiments):
            mistakes.append(f"'{label}' is the name of another experiment; give the candidate its own name")
        base = experiments.get(candidate.experiment or next(iter(experiments)))
        if base is None:
            mistakes.append(
                f"{label}: '{candidate.experiment}' is no experiment: {suggest(candidate.experiment, experiments)}"
            )
            continue
        unknown_outputs = unknown_names(
            f"{label}: '{{}}' is no output", candidate.named_outputs, problem.original_model.output_names
        )
        mistakes += unknown_outputs
        if unknown_outputs:
            continue
        candidate = with_fields(candidate, outputs=candidate.outputs or base.measured)
        if base.settled:
            mistakes.append(
                f"{label}: '{base.name}' is a steady-state measurement without times; choose another experiment"
            )
            continue
        if candidate.times[0] < base.start:
            start_text = f"times begin at {candidate.times[0]:g}, the experiment at {base.start:g}"
            mistakes.append(f"{label}: {start_text}; begin later")
            continue
        memory_outputs = [m.output for m in problem.original_model.memories if m.output in candidate.outputs]
        is_divided = candidate.per_subject is not None if subjects else candidate.cost_unit != "experiment"
        if memory_outputs and is_divided and not candidate.fixed:
            remedy = "leave per_subject out" if subjects else "give cost_unit='experiment'"
            mistakes.append(
                f"{label}: the information of a measurement of '{memory_outputs[0]}' depends on earlier measurements; "
                f"{remedy}"
            )
        if choice_values:
            candidate = substitute_choices(candidate, choice_values, base.start)
        labels.append(label)
        candidate_experiments = _candidate_experiment(label, candidate, base, problem, mistakes)
        new_experiments += candidate_experiments
        full_candidates += [candidate] if candidate_experiments else []
    parameters = {
        n: _extend_local_parameter(
            p,
            {
                e.name: c.experiment or next(iter(experiments))
                for e, c in zip(new_experiments, full_candidates, strict=True)
            },
        )
        for n, p in problem.parameters.items()
    }
    try:
        extended = Problem(problem.original_model, [*problem.experiments, *new_experiments], parameters=parameters)
    except InputError as error:
        raise InputError(where, [*mistakes, *error.problems]) from None
    raise_if_mistakes(where, mistakes)
    return full_candidates, extended


def _read_source(source: Any, samples: int, mistakes: list[str], where: str) -> tuple[Result | None, Array, Array]:
    """Return the result, if there is one, the estimate, and the samples (S, n_theta)."""
    result = source if isinstance(source, Result) else getattr(source, "result", None)
    if isinstance(source, Problem):
        return None, source.guess.copy(), source.guess[None].copy()
    if not isinstance(result, Result):
        alternatives = "give a Result, a Problem, a sample or a bootstrap"
        raise_if_mistakes(where, [f"the first argument is {describe_rejected(source, alternatives)}", *mistakes])
    assert isinstance(result, Result)
    if result.problem is not None and result.problem.posed.correlations:
        raise_if_mistakes(where, [_CORRELATED_MESSAGE, *mistakes])
    if not isinstance(result.problem, Problem):
        remedy = "use result.with_problem(problem) first" if result.problem is None else "fit the Problem itself"
        raise_if_mistakes(where, [f"the result has no problem; {remedy}", *mistakes])
    if not result.success:
        raise_if_mistakes(where, ["result is not a solution; pass its problem with guesses instead", *mistakes])
    if source is result:
        return result, result.theta.copy(), result.theta[None].copy()
    sample: Any = source
    draws: Array = np.asarray(sample.thetas, dtype=float)
    if not len(draws):
        raise_if_mistakes(where, ["there are no samples, because all fits failed", *mistakes])
    draw_indices = np.unique(np.linspace(0, len(draws) - 1, min(len(draws), samples)).astype(int))
    return result, result.theta.copy(), draws[draw_indices]


def _candidate_experiment(
    label: str, candidate: Candidate, base: Experiment, problem: Problem, mistakes: list[str]
) -> list[Experiment]:
    """Return the experiment of a candidate, with placeholder values; none if there are mistakes."""
    n_before = len(mistakes)
    sigma: dict[str, Any] = {}
    noise: dict[str, Any] = {}
    times = candidate.times if candidate.times[-1] > base.start else np.append(candidate.times, base.end)
    for output in candidate.outputs:
        candidate_sigma = candidate.sigma_of(output)
        reference = next((e for e in (base, *problem.experiments) if output in e.measured), None)
        if candidate_sigma is not None:
            if "" not in problem.posed.groups:  # if the problem has no sigma, new experiments have none
                sigma[output] = 1.0 if isinstance(candidate_sigma, Relative) else float(candidate_sigma)
        elif reference is None:
            mistakes.append(
                f"{label}: '{output}' was not measured, so its accuracy is unknown; "
                f"set Candidate(sigma={{'{output}': ...}})"
            )
        else:
            if reference.sigma is not None and output in reference.sigma:
                data_times, y = reference.data[output]
                has_values = np.isfinite(y).any(axis=1)
                mean = np.nanmean(np.where(np.isfinite(y), reference.sigma[output], np.nan)[has_values], axis=1)
                sigma[output] = np.interp(times, data_times[has_values], mean)
            if output in reference.noise:
                noise[output] = reference.noise[output]
                if not isinstance(noise[output], (Gaussian, LogNormal, HeavyTailed, Poisson, NegativeBinomial)):
                    mistakes.append(
                        f"{label}: the information of '{output}' is undefined for a user-defined likelihood; set sigma"
                    )
                    noise.pop(output)
    initial: Any = {**base.initial, **candidate.initial}
    if isinstance(base.initial, SteadyStart):
        initial = replace(base.initial, replace=initial)
    if len(mistakes) > n_before:
        return []
    try:
        experiment = Experiment(
            {o: (times, np.ones(times.size)) for o in candidate.outputs},
            sigma=sigma or None,
            noise=noise or None,
            initial=initial,
            parameters={**base.parameters, **candidate.parameters},
            inputs={**base.inputs, **candidate.inputs},
            events=base.events if candidate.events is None else candidate.events,
            start=base.start,
            name=label,
        )
    except InputError as error:
        mistakes += [f"{label}: {message}" for message in error.problems]
        return []
    return [experiment.with_changes(events=tuple(e for e in experiment.events if not is_after_data(e, experiment.end)))]


def _extend_local_parameter(parameter: Parameter, origin_by_name: Mapping[str, str]) -> Parameter:
    """Return a parameter whose guesses by experiment include the new experiments."""
    value: Any = parameter.value
    if isinstance(value, (int, float)):
        return parameter
    new_values = {name: value[origin] for name, origin in origin_by_name.items() if origin in value}
    return Parameter(
        {**value, **new_values}, parameter.lower, parameter.upper, parameter.scale, parameter.fixed, parameter.local,
        parameter.prior, starts=parameter.starts,
    )  # fmt: skip


def _match_quantities(
    problem: Problem, extended: CompiledProblem, labels: Sequence[str], candidates: Sequence[Candidate]
) -> tuple[tuple[str, ...], Index, Index, Index]:
    """Return all names, positions of the problem's and the extended problem's quantities, and origins."""
    compiled, first_name = problem.posed, problem.experiments[0].name
    origin_by_label = {
        label: c.experiment or first_name for label, c in zip(labels, candidates, strict=True) if c.repeats
    }

    def key(q: Quantity) -> tuple[str, str, str | None]:
        return q.kind, q.symbol_name, q.experiment and origin_by_label.get(q.experiment, q.experiment)

    names = {key(q): q.name for q in extended.quantities}
    names |= {key(q): q.name for q in compiled.quantities}
    order = list(names)
    positions = np.array([order.index(key(q)) for q in compiled.quantities], dtype=np.intp)
    columns = np.array([order.index(key(q)) for q in extended.quantities], dtype=np.intp)
    base_by_label = {label: c.experiment or first_name for label, c in zip(labels, candidates, strict=True)}
    index_by_key = {(q.kind, q.symbol_name, q.experiment): j for j, q in enumerate(compiled.quantities)}
    keys = (
        (q.kind, q.symbol_name, q.experiment and base_by_label.get(q.experiment, q.experiment))
        for q in extended.quantities
    )
    return tuple(names.values()), positions, columns, np.array([index_by_key.get(k, -1) for k in keys], dtype=np.intp)


def _eliminated_sigmas(result: Result | None, extended: CompiledProblem) -> tuple[float, ...]:
    """Return the unbiased sigma of each eliminated group; NaN without an estimate."""
    if result is None:
        return (np.nan,) * len(extended.groups)
    from castfit.drive.uncertainty.refits.resampling import group_factors

    compiled = result.problem.posed.with_absolute_sigma(absolute_sigma=result.absolute_sigma)  # pyright: ignore
    factor_by_group = dict(zip(compiled.groups, group_factors(compiled, result).tolist(), strict=True))
    return tuple(factor_by_group.get(group, np.nan) for group in extended.groups)


def tighten_tolerances(options: IntegratorOptions | None) -> IntegratorOptions:
    """Return integrator options with the tolerances of designs."""
    return replace(
        options or IntegratorOptions(),
        relative_tolerance=_INTEGRATION_RTOL,
        absolute_tolerance=1e-2 * _INTEGRATION_RTOL,
    )
