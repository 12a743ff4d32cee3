"""The posed problem: everything that transcriptions, solvers, statistics and drivers need, complete and frozen.

`Problem` is what the user says; `Problem.posed` is what it means.  Drivers pose other questions about the same model by
pure functions (`until`, `within`, `starting_at`, `fix`, `restated`, `only`, `constrained`), whose results are as good
as the first: they can be fitted, pickled and changed again.

Notation
--------
theta  (n_theta,)  everything that is estimated, in search scale: a quantity on a logarithmic scale as its logarithm
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import is_one_of, read_mapping, read_real, read_reals, read_sequence, shorten_repr
from castfit._support.arrays import Array
from castfit._support.bounds import bound_mistakes
from castfit._support.records import dataclass
from castfit._support.reprs import join_limited, one_line
from castfit._support.sparse_rows import stack_rows
from castfit._support.status import InputError, raise_if_mistakes, suggest, unknown_names
from castfit._support.views import views
from castfit.densities.noise.correlation import CorrelationEstimates
from castfit.experiment.experiment import Experiment, MeasurementPoints
from castfit.model.model import Model
from castfit.problem.compiled_experiments import Condition, conditions_of, with_switch_parameters
from castfit.problem.constraint_compilation import (
    Relation,
    bend,
    compile_constraints,
    constant_mistakes,
    evaluate_relations,
    held_mistakes,
    with_watched_times,
)
from castfit.problem.constraints import read_constraints, repeated_names
from castfit.problem.feasibility import contradictions, redundant
from castfit.problem.observables import called_now, work_out
from castfit.problem.parameter_map import natural_value
from castfit.problem.parameters import Constraint, Parameter, ProblemStatement, initial_values
from castfit.problem.prior_rows import PriorRows, QuantityPrior, SmoothnessPenalty, Term, prior_rows
from castfit.problem.prior_terms import compile_priors
from castfit.problem.quantities import Quantity, list_quantities, within_support

# Names of the objective that is reported; see `CompiledProblem.measure`.
CHI2, LIKELIHOOD, LOSS, PETAB = "chi2", "-2 log L", "2 loss", "PEtab's objective"

# Reason why fits with the objective `LOSS` cannot be compared, and the remedy.
NO_LIKELIHOOD = "Cauchy's loss with f_scale up to 1 is no likelihood; raise it, or use StudentT"

_HORIZON_RTOL = 1e-12  # relative distance beyond the horizon within which measurements belong to it


@dataclass(frozen=True, eq=False)
class CompiledProblem:
    """An estimation problem, compiled; ``problem.posed`` builds it.

    The user's specification: `experiments`, `parameters`, `state_bounds`, `constraints`, `units`.  Derived from it:

    outputs : outputs that any experiment measures, in the model's order
    quantities : the entries of theta; `unguessed` are scales and offsets without a user's guess
    conditions : the compiled experiments
    groups : unknown standard deviations that are eliminated while fitting; "" is that of data without a specified
        sigma.  group_bounds (lower, upper) of each, in the unit of the data or of their logarithm; empty if unbounded
    format_measure : `measure` as defined by the file format of an imported problem; empty for all other problems
    spreads : outputs of the model that are spreads of others; `noise_parameters` affect only the noise
    prior_terms : priors on expressions, and on several quantities together; priors on one are in the quantities
    tolerates_outliers : whether some residuals may be large even if the model is correct, for instance if least squares
        replace a robust density
    relations : constraints of quantities, without the `implied_relations`, which follow from others; `path` are
        constraints at points of experiments
    """

    model: Model
    experiments: tuple[Experiment, ...]
    parameters: Mapping[str, Parameter]
    state_bounds: Mapping[str, tuple[float, float]]
    constraints: tuple[Constraint, ...]
    outputs: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    conditions: tuple[Condition, ...]
    groups: tuple[str, ...] = ()
    spreads: tuple[str, ...] = ()
    noise_parameters: frozenset[str] = frozenset()
    prior_terms: tuple[Term, ...] = ()
    tolerates_outliers: bool = False
    unguessed: frozenset[str] = frozenset()
    units: Mapping[str, str] = field(default_factory=dict[str, str])
    relations: tuple[Relation, ...] = ()
    path: tuple[Constraint, ...] = ()
    implied_relations: tuple[Relation, ...] = ()
    group_bounds: tuple[tuple[float, float], ...] = ()
    format_measure: str = ""

    # Properties derived from the fields

    @property
    def posed(self) -> CompiledProblem:
        """Itself."""
        return self

    @property
    def original_model(self) -> Model:
        """The model; `Problem.original_model` is the model as the user passed it."""
        return self.model

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the estimated quantities, in the order of theta."""
        return tuple(quantity.name for quantity in self.quantities)

    @cached_property
    def triggered(self) -> tuple[str, ...]:
        """Names of the experiments in which states trigger events."""
        return tuple(condition.name for condition in self.conditions if condition.schedule.triggers)

    @cached_property
    def absolute_sigma(self) -> bool:
        """Whether all standard deviations are known, by default where they are given; else some are estimated."""
        return not self.groups and not self.noise_parameters

    @cached_property
    def least_squares(self) -> bool:
        """Check whether all rows are residuals with known or eliminated sigmas: a sum of squares is minimised."""
        return all(
            o is None or (o.noise.is_residual_noise and len(o.predicted_outputs) == 1)
            for c in self.conditions
            for o in c.observed
        )

    @property
    def measure(self) -> str:
        """Name of the reported objective: chi2 if all sigmas are known, else -2 log likelihood.

        For a problem from PEtab files it is the objective that PEtab defines.  For a loss without a density it is twice
        the loss, with the constants of normal errors.
        """
        if self.format_measure:
            return self.format_measure
        if not all(o is None or o.noise.normalisable for c in self.conditions for o in c.observed):
            return LOSS
        return CHI2 if self.least_squares and not self.groups else LIKELIHOOD

    @cached_property
    def n_data(self) -> int:
        """Number of measured values."""
        return sum(int(condition.points.mask.sum()) for condition in self.conditions)

    @cached_property
    def log(self) -> NDArray[np.bool_]:
        """Return the mask of the entries of theta that are logarithms, (n_theta,)."""
        return np.array([quantity.scale == "log" for quantity in self.quantities], dtype=bool)

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of theta, each (n_theta,)."""
        lower = np.array([quantity.lower for quantity in self.quantities], dtype=float)
        upper = np.array([quantity.upper for quantity in self.quantities], dtype=float)
        return self.to_search(np.where(self.log, np.maximum(lower, 0.0), lower)), self.to_search(upper)

    @cached_property
    def _support_bounds(self) -> tuple[Array, Array]:
        """Return the bounds of theta from the supports of the priors, lower and upper ends, each (n_theta,)."""
        ends = np.array([within_support(-np.inf, np.inf, q.prior) for q in self.quantities]).reshape(-1, 2)
        return self.to_search(np.where(self.log, np.maximum(ends[:, 0], 0.0), ends[:, 0])), self.to_search(ends[:, 1])

    @cached_property
    def guess(self) -> Array:
        """The starting theta, (n_theta,), locked."""
        guess = self.to_search(np.array([quantity.guess for quantity in self.quantities], dtype=float))
        guess.flags.writeable = False
        return guess

    def to_search(self, natural: Array) -> Array:
        """Convert natural values (n_theta,) to search scale."""
        with np.errstate(divide="ignore"):
            return np.where(self.log, np.log(np.where(self.log, natural, 1.0)), natural)

    def to_natural(self, theta: Array) -> Array:
        """Convert theta (n_theta,) to natural values."""
        return natural_value(theta, self.log)

    def natural_slope(self, theta: Array) -> Array:
        """Return d natural / d theta, (n_theta,)."""
        return np.where(self.log, self.to_natural(theta), 1.0)

    def priors(self, theta: Array) -> PriorRows:
        """Return the rows that all priors add to the cost, with their Jacobian by theta."""
        if not self.every_prior:
            return self._no_priors
        return prior_rows(self.every_prior, self.to_natural(theta), self.natural_slope(theta))

    @cached_property
    def _no_priors(self) -> PriorRows:
        return PriorRows(np.empty(0), stack_rows([], len(self.quantities)), 0.0, np.empty(0, dtype=np.bool_))

    def evaluate_relations(self, theta: Array) -> tuple[Array, Array]:
        """Return the values of the relations of quantities (n_h,), and their derivatives by theta (n_h, n_theta)."""
        if not self.relations:
            return np.empty(0), np.empty((0, theta.size))
        return evaluate_relations(self.relations, self.to_natural(theta), self.natural_slope(theta))

    def relations_hessian(self, theta: Array, weight: Array) -> Array:
        """Return  sum_i weight_i d2 h_i / d theta2  of the relations, (n_theta, n_theta)."""
        return bend(self.relations, self.to_natural(theta), self.log, weight)

    @cached_property
    def every_prior(self) -> tuple[Term, ...]:
        """The priors on one quantity each, in their order, then those on expressions and on several together."""
        n = len(self.quantities)
        quantity_priors = [
            QuantityPrior(q.name, q.prior, j, n) for j, q in enumerate(self.quantities) if q.prior is not None
        ]
        return (*quantity_priors, *self.prior_terms)

    @cached_property
    def informed_mask(self) -> NDArray[np.bool_]:
        """Return the mask of the quantities on which a prior is informative, bounds apart, (n_theta,)."""
        is_informed = np.zeros(len(self.quantities), dtype=np.bool_)
        for term in self.every_prior:
            is_informed |= term.informs
        return is_informed

    @property
    def smoothness_penalties(self) -> tuple[SmoothnessPenalty, ...]:
        """The penalties on the roughness of estimated inputs."""
        return tuple(term for term in self.prior_terms if isinstance(term, SmoothnessPenalty))

    @cached_property
    def penalty_mask(self) -> NDArray[np.bool_]:
        """Return the mask of the rows of priors that are penalties on estimated inputs, (n_prior,)."""
        none = np.empty(0, dtype=np.bool_)
        masks = [
            np.full(term.curved.size, isinstance(term, SmoothnessPenalty), dtype=np.bool_) for term in self.every_prior
        ]
        return np.concatenate([none, *masks])

    @property
    def prior_constant(self) -> float:
        """-log of the densities of all priors at their modes: what -log p has besides the cost."""
        return float(sum(term.constant for term in self.every_prior))

    @property
    def observed(self) -> ca.SX:
        """The graph of the measured outputs, then of spreads, (n_outputs + n_spreads, 1), over the model's symbols."""
        return ca.densify(ca.vertcat(*(self.model.outputs[n] for n in (*self.outputs, *self.spreads))))

    @cached_property
    def free_parameters(self) -> NDArray[np.intp]:
        """Positions in p of the parameters that depend on theta in any experiment."""
        return np.unique(np.concatenate([c.link.free_parameters for c in self.conditions]))

    @cached_property
    def varying(self) -> frozenset[str]:
        """The model's parameters that may differ between experiments."""
        has_many_experiments = len(self.experiments) > 1
        overridden_names = {n for e in self.experiments for n in e.parameters}
        local_names = {n for n, p in self.parameters.items() if p.local}
        return (
            frozenset((overridden_names | local_names) & {*self.model.parameters})
            if has_many_experiments
            else frozenset()
        )

    def initial_values(self, experiment: Experiment) -> dict[str, Any]:
        """Return the value or specification of each initial state: the experiment's own, else the model's."""
        return initial_values(self.model, experiment)

    def theta_from(self, values: Mapping[str, float], label: str = "start") -> Array:
        """Return theta with the named quantities at the given natural values, the rest at their guess.

        An unknown name or a value outside its bounds is an InputError.
        """
        mistakes: list[str] = []
        theta, (lower, upper) = self.guess.copy(), self.bounds
        index_by_name = {name: j for j, name in enumerate(self.names)}
        for raw_name, value in read_mapping(label, values, mistakes).items():
            name = called_now(raw_name, index_by_name)
            if name not in index_by_name:
                mistakes.append(f"'{name}' is not estimated: {suggest(name, self.names)}")
                continue
            j = index_by_name[name]
            q, number = self.quantities[j], read_real(value)
            if number is not None and np.isfinite(number) and (q.scale != "log" or number > 0):
                # A result at a bound of a logarithm comes back with a rounding error.
                search = np.log(number) if q.scale == "log" else number
                theta[j] = np.clip(search, lower[j], upper[j])
                if abs(theta[j] - search) <= 1e-12 * max(1.0, abs(search)):
                    continue
            mistakes += bound_mistakes(f"{label} of '{name}'", value, q.lower, q.upper, q.scale)
        raise_if_mistakes(label, mistakes)
        return theta

    def unit(self, name: str) -> str:
        """Return the unit of time, an output, a parameter or an estimated quantity; empty if none was named.

        An initial state has the unit of its state, a value of one experiment that of its parameter.
        """
        base_name = self._symbol_names.get(name, name)
        if name.startswith("sigma(") and name not in self.units:
            base_name = name[len("sigma(") : -1]
        return self.units.get(name, self.units.get(base_name, ""))

    @cached_property
    def _symbol_names(self) -> dict[str, str]:
        """Return the parameter or state name (`of`) of each quantity, by the quantity's name."""
        return {q.name: q.symbol_name for q in self.quantities}

    def label(self, name: str) -> str:
        """Return a name with its unit, as on an axis: ``time (min)``."""
        unit = self.unit(name)
        return f"{name} ({unit})" if unit else name

    def _repr_html_(self) -> str:
        return views().reports.card(self)

    def __repr__(self) -> str:
        return summarize_problem("Posed", self)

    # Variants of the problem with the same model

    def with_horizon(self, horizon: float) -> CompiledProblem:
        """Return the problem without the measurements after a time, with the same theta.

        Experiments of which nothing after their start is left are missing.  The layout of theta stays, so that
        estimates carry over from one horizon to the next; it may then contain quantities that nothing depends on.
        """
        end = read_real(horizon)
        if end is None or np.isnan(end):
            raise InputError("with_horizon", [f"the horizon is {shorten_repr(horizon)}; give a time"])
        end += _HORIZON_RTOL * abs(end) if np.isfinite(end) else 0.0
        remaining_pairs = [
            (e, c)
            for e, c in zip(self.experiments, self.conditions, strict=True)
            if ((c.points.times > c.start) & (c.points.times <= end)).any()
        ]
        if not remaining_pairs:
            first_time = min(float(c.points.times[c.points.times > c.start][0]) for c in self.conditions)
            raise InputError(
                "with_horizon",
                [f"nothing is measured up to {horizon:g}; the first time after a start is {first_time:g}"],
            )

        def truncate(c: Condition) -> Condition:
            t, values, sigma = (
                part[c.points.times <= end] for part in (c.points.times, c.points.values, c.points.sigma)
            )
            watched = c.watched_times[(c.watched_times <= end) | (end >= c.points.times[-1])]
            return replace(c, points=MeasurementPoints(t, values, sigma), watched_times=watched)

        experiments = (e.until(end) for e, _ in remaining_pairs)
        return replace(
            self,
            experiments=tuple(e for e in experiments if e is not None),
            conditions=tuple(truncate(c) for _, c in remaining_pairs),
        )

    def with_bounds(self, lower: Array, upper: Array, guess: Array | None = None) -> CompiledProblem:
        """Return the problem with other bounds (n_theta,) in search scale, and the guess moved between them."""
        mistakes: list[str] = []
        low, high = self._theta("lower", lower, mistakes), self._theta("upper", upper, mistakes)
        support_lower, support_upper = self._support_bounds
        low, high = np.maximum(low, support_lower), np.minimum(high, support_upper)
        start = self.guess if guess is None else self._theta("guess", guess, mistakes)
        crossed = [] if mistakes else np.flatnonzero(low > high).tolist()
        mistakes += [f"the bounds of '{self.names[j]}' are [{low[j]:g}, {high[j]:g}]; swap them" for j in crossed]
        raise_if_mistakes("with_bounds", mistakes)
        low_natural, high_natural = self.to_natural(low), self.to_natural(high)
        values = np.clip(self.to_natural(np.clip(start, low, high)), low_natural, high_natural)
        rows = zip(self.quantities, values.tolist(), low_natural.tolist(), high_natural.tolist(), strict=True)
        return replace(self, quantities=tuple(replace(q, guess=g, lower=a, upper=b) for q, g, a, b in rows))

    def with_absolute_sigma(self, *, absolute_sigma: bool | None) -> CompiledProblem:
        """Return the problem with standard deviations taken as they are (True) or only their ratios (False).

        Raises InputError if the noise is specified by more than deviations, or not at all.
        """
        if absolute_sigma is None or absolute_sigma == self.absolute_sigma:
            return self
        if self.groups not in ((), ("",)) or not all(
            o is None or o.is_weighted for c in self.conditions for o in c.observed
        ):
            raise InputError("absolute_sigma", ["the experiments specify the noise; remove absolute_sigma"])
        if absolute_sigma and all(bool((c.points.sigma == 1.0).all()) for c in self.conditions):
            raise InputError(
                "absolute_sigma",
                ["absolute_sigma=True uses the given standard deviations, but the experiments have none; pass sigma to "
                 "the experiments, or remove absolute_sigma"],
            )  # fmt: skip
        group = -1 if absolute_sigma else 0
        return replace(
            self,
            groups=() if absolute_sigma else ("",),
            conditions=tuple(
                replace(c, observed=tuple(o and replace(o, group=group) for o in c.observed)) for c in self.conditions
            ),
        )

    def with_sigma(self, sigma: float) -> CompiledProblem:
        """Return the problem in which the one unknown sigma, of all data, is a number."""
        return replace(
            self,
            groups=(),
            group_bounds=(),
            conditions=tuple(
                replace(
                    c,
                    points=replace(c.points, sigma=c.points.sigma * sigma),
                    observed=tuple(o and replace(o, group=-1) for o in c.observed),
                )
                for c in self.conditions
            ),
        )

    def with_errors(self, estimates: CorrelationEstimates | None) -> CompiledProblem:
        """Return the problem with numbers for the unknown parameters of the error correlations.

        Without any, errors are independent.
        """
        from castfit.densities.noise.correlation import with_numbers

        def fix_errors(c: Condition) -> Condition:
            sigma, observed = c.points.sigma.copy(), list(c.observed)
            for j, (name, observable) in enumerate(zip(self.outputs, c.observed, strict=True)):
                correlation = None if observable is None else getattr(observable.noise, "correlation", None)
                if observable is None or correlation is None:
                    continue
                observed[j] = replace(
                    observable,
                    noise=replace(observable.noise, correlation=estimates and with_numbers(correlation, estimates)),
                )
                if getattr(correlation, "unknown", False) and estimates:
                    sigma[:, j] = estimates.deviation(name)
            return replace(c, observed=tuple(observed), points=replace(c.points, sigma=sigma))

        return replace(self, conditions=tuple(fix_errors(c) for c in self.conditions))

    @cached_property
    def correlations(self) -> tuple[Any, ...]:
        """Return the error correlations of all outputs in all experiments that have one."""
        correlations = (
            getattr(o.noise, "correlation", None) for c in self.conditions for o in c.observed if o is not None
        )
        return tuple(correlation for correlation in correlations if correlation is not None)

    def starting_at(self, values: Mapping[str, float] | Array) -> CompiledProblem:
        """Return the problem with another guess: natural values by name, or theta (n_theta,) in search scale."""
        if isinstance(values, Mapping):
            return self.with_bounds(*self.bounds, self.theta_from(values, "values"))
        mistakes: list[str] = []
        theta = self._theta("theta", values, mistakes)
        raise_if_mistakes("starting_at", mistakes)
        return self.with_bounds(*self.bounds, theta)

    def fix(self, names: Iterable[str] | Mapping[str, float]) -> CompiledProblem:
        """Return the problem in which the named quantities are numbers, and theta is shorter by them.

        Without natural values they stay at their guess.  A prior on such a quantity is dropped; a prior on several
        quantities, or on an expression, applies to the remaining ones.
        """
        mistakes: list[str] = []
        values_by_name = read_mapping("names", names, mistakes) if isinstance(names, Mapping) else {}
        listed = list(values_by_name) or _read_names("names", names, self.names, mistakes)
        mistakes += unknown_names("'{}' is not estimated", values_by_name, self.names)
        raise_if_mistakes("fix", mistakes)
        fixed_names = {*listed}
        theta = self.theta_from(values_by_name, "names")
        keep = np.array([j for j, n in enumerate(self.names) if n not in fixed_names], dtype=np.intp)
        new_positions = np.full(len(self.names), -1, dtype=np.intp)
        new_positions[keep] = np.arange(keep.size)

        natural = self.to_natural(theta)
        remaining_terms = [term.restrict(keep, natural) for term in self.prior_terms]
        relations = [relation.restrict(keep, natural) for relation in self.relations]
        decided = [r for r, shorter in zip(self.relations, relations, strict=True) if shorter is None]
        raise_if_mistakes("fix", [m for r in decided for m in r.contradictions(natural)])

        def shorten(c: Condition) -> Condition:
            rows = np.flatnonzero(new_positions[c.theta] >= 0)
            return replace(c, theta=new_positions[c.theta[rows]], link=c.link.restrict(rows, theta[c.theta]))

        return replace(
            self,
            quantities=tuple(q for q in self.quantities if q.name not in fixed_names),
            prior_terms=tuple(term for term in remaining_terms if term is not None),
            relations=tuple(relation for relation in relations if relation is not None),
            implied_relations=tuple(
                r for r in (relation.restrict(keep, natural) for relation in self.implied_relations) if r is not None
            ),
            conditions=tuple(shorten(c) for c in self.conditions),
        )

    def with_quantities(self, quantities: Sequence[Quantity]) -> CompiledProblem:
        """Return the problem with other guesses, bounds, scales and priors of the same quantities in the same order."""
        quantity_list = read_sequence(quantities) or []
        if (
            not all(isinstance(q, Quantity) for q in quantity_list)
            or tuple(q.name for q in quantity_list) != self.names
        ):
            raise InputError("with_quantities", [f"give the quantities {', '.join(self.names)}, in this order"])
        mistakes = [m for q in quantities for m in bound_mistakes(f"'{q.name}'", q.guess, q.lower, q.upper, q.scale)]
        raise_if_mistakes("with_quantities", mistakes)
        log = np.array([q.scale == "log" for q in quantities], dtype=bool)
        return replace(
            self,
            quantities=tuple(quantities),
            conditions=tuple(replace(c, link=replace(c.link, log=log[c.theta])) for c in self.conditions),
        )

    def without_priors(self) -> CompiledProblem:
        """Return the problem of the data alone.

        Bounds stay, also those from the support of a prior.  The smoothness penalties of estimated inputs stay too,
        since the inputs are not defined without them.
        """
        return replace(
            self,
            quantities=tuple(replace(q, prior=None) for q in self.quantities),
            prior_terms=self.smoothness_penalties,
        )

    def smoothed(self, weights: Mapping[str, float]) -> CompiledProblem:
        """Return the problem with given weights of the roughness of estimated inputs, by name; others stay.

        An unknown name, or a weight that is not positive, is an InputError.
        """
        mistakes: list[str] = []
        weights_by_name, labels = (
            read_mapping("weights", weights, mistakes),
            {term.label for term in self.smoothness_penalties},
        )
        mistakes += unknown_names("'{}' is no estimated input that is smooth", weights_by_name, labels)
        numbers = {n: read_real(w) for n, w in weights_by_name.items()}
        invalid_names = [n for n, w in numbers.items() if w is None or not 0.0 < w < np.inf]
        mistakes += [
            f"the weight of '{n}' is {shorten_repr(weights_by_name[n])}; give a positive number" for n in invalid_names
        ]
        raise_if_mistakes("smoothed", mistakes)

        def with_weight(term: Term) -> Term:
            if not isinstance(term, SmoothnessPenalty) or term.label not in weights_by_name:
                return term
            return replace(term, weight=float(weights_by_name[term.label]), chosen=False)

        return replace(self, prior_terms=tuple(with_weight(term) for term in self.prior_terms))

    def with_experiments(self, experiments: Iterable[str]) -> CompiledProblem:
        """Return the problem of some experiments, by name, with the same theta."""
        mistakes: list[str] = []
        selected_names = _read_names("experiments", experiments, [c.name for c in self.conditions], mistakes)
        raise_if_mistakes(
            "with_experiments",
            mistakes if selected_names or mistakes else ["no experiment is named; give at least one"],
        )
        return replace(
            self,
            experiments=tuple(e for e in self.experiments if e.name in selected_names),
            conditions=tuple(c for c in self.conditions if c.name in selected_names),
        )

    def with_data(self, values: Sequence[Array]) -> CompiledProblem:
        """Return the problem with other data, for instance simulated ones, at the same times.

        values : per experiment an array (n_points, n_outputs), arranged as ``condition.points.values``; only measured
            values are replaced

        Raises InputError for another shape, or if a replaced value is not finite.
        """
        mistakes: list[str] = []
        for c, v in zip(self.conditions, values, strict=True):
            if np.shape(v) != c.points.values.shape:
                shape, expected_shape = np.shape(v), c.points.values.shape
                mistakes.append(f"the values of '{c.name}' have the shape {shape}; give an array {expected_shape}")
            elif not np.isfinite(v[c.points.mask]).all():
                subject = f"the values of '{c.name}' are not finite everywhere"
                mistakes.append(f"{subject}; expected a number for every measured value")
        raise_if_mistakes("with_data", mistakes)
        new_values = [np.where(c.points.mask, v, np.nan) for c, v in zip(self.conditions, values, strict=True)]
        return replace(
            self,
            experiments=tuple(
                e.with_points(self.outputs, v) for e, v in zip(self.experiments, new_values, strict=True)
            ),
            conditions=tuple(
                replace(c, points=replace(c.points, values=v)) for c, v in zip(self.conditions, new_values, strict=True)
            ),
        )

    def with_outputs(self, outputs: Mapping[str, ca.SX]) -> CompiledProblem:
        """Return the problem with further outputs, to be predicted: expressions of anything that the model has."""
        return replace(self, model=self.model.extended((), outputs)) if outputs else self

    def without_value(self, experiment: str, point: int, output: str) -> CompiledProblem:
        """Return the problem without one measured value, in the row `point` of its experiment's points."""
        j = self.outputs.index(output)
        remaining_pairs: list[tuple[Experiment, Condition]] = []
        for e, c in zip(self.experiments, self.conditions, strict=True):
            if c.name == experiment:
                values = c.points.values.copy()
                values[point, j] = np.nan
                is_remaining = np.isfinite(values).any(axis=1)
                if not is_remaining.any():
                    continue
                e = e.with_points(self.outputs, values)
                c = replace(
                    c,
                    points=MeasurementPoints(
                        c.points.times[is_remaining], values[is_remaining], c.points.sigma[is_remaining]
                    ),
                )
            remaining_pairs.append((e, c))
        if not remaining_pairs:
            raise InputError("without_value", ["nothing else is measured"])
        return replace(
            self, experiments=tuple(e for e, _ in remaining_pairs), conditions=tuple(c for _, c in remaining_pairs)
        )

    def with_order(self, order: int) -> CompiledProblem | None:
        """Return the problem with `order` nodes in each delay line.

        None if the model has parameters for infusions or noise that its statement would add again, or if quantities
        were fixed or left out.
        """
        if self.model.is_extended or self.spreads or self.noise_parameters:
            return None
        statement = ProblemStatement(
            self.model.with_order(order),
            self.experiments,
            self.parameters,
            self.state_bounds,
            (),
            unguessed=self.unguessed,
            units=self.units,
        )
        new_problem = compose(statement)
        if new_problem.names != self.names:
            return None
        new_problem = new_problem.with_valid_constraints(self.constraints)
        restated_problem = new_problem.with_quantities(self.quantities).with_absolute_sigma(
            absolute_sigma=self.absolute_sigma
        )
        return replace(restated_problem, prior_terms=self.prior_terms, format_measure=self.format_measure)

    def with_constraints(self, constraints: Any) -> CompiledProblem:
        """Return the problem with more constraints, as `Problem` takes them.

        They are relations of quantities, by the model's symbols or ``cf.quantity(name)``, or ``cf.at(time, ...)``,
        ``cf.along(...)``, ``cf.monotone(...)``, ``cf.conserved(...)``.  Raises InputError for invalid constraints.
        """
        mistakes: list[str] = []
        new_constraints = read_constraints(constraints, mistakes, taken_names=[c.name for c in self.constraints])
        raise_if_mistakes("with_constraints", mistakes + repeated_names((*self.constraints, *new_constraints)))
        raise_if_mistakes("with_constraints", held_mistakes(self, new_constraints))
        new_problem = self.with_valid_constraints(new_constraints)
        raise_if_mistakes(
            "with_constraints", constant_mistakes(new_problem, new_problem.guess) + new_problem.contradictions
        )
        return new_problem

    def with_valid_constraints(self, constraints: Sequence[Constraint]) -> CompiledProblem:
        """Return the problem with more constraints, which must contain no mistake (see `with_constraints`)."""
        if not constraints:
            return self
        compiled_constraints = compile_constraints(self, constraints)
        relations = (*self.relations, *compiled_constraints.relations)
        redundant_indices = redundant(relations, self.to_natural(self.guess), *self._natural_bounds)
        new_problem = replace(
            self,
            constraints=(*self.constraints, *constraints),
            relations=relations,
            path=(*self.path, *compiled_constraints.path),
            conditions=tuple(
                replace(c, watched_times=w)
                for c, w in zip(self.conditions, compiled_constraints.watched_times, strict=True)
            ),
        )
        # If relations contradict each other, redundant ones stay: the contradiction is reported before any solve.
        return (
            new_problem.without_relations(relations[i].name for i in redundant_indices)
            if redundant_indices and not new_problem.contradictions
            else new_problem
        )

    @property
    def contradictions(self) -> list[str]:
        """Describe the relations that contradict each other or the bounds, as far as the checks can detect it."""
        return contradictions(self.relations, self.to_natural(self.guess), *self._natural_bounds)

    @property
    def _natural_bounds(self) -> tuple[Array, Array]:
        lower, upper = (self.to_natural(b) for b in self.bounds)
        return lower, upper

    def without_relations(self, names: Iterable[str]) -> CompiledProblem:
        """Return the problem without some relations, by name, that follow from others."""
        released_names = set(names)
        return replace(
            self,
            relations=tuple(r for r in self.relations if r.name not in released_names),
            implied_relations=(*self.implied_relations, *(r for r in self.relations if r.name in released_names)),
        )

    def with_watched_times(self, times: Sequence[Array]) -> CompiledProblem:
        """Return the problem with path constraints at additional times, per condition (n,)."""
        return replace(
            self,
            conditions=tuple(
                with_watched_times(c, new_times) for c, new_times in zip(self.conditions, times, strict=True)
            ),
        )

    def _theta(self, label: str, values: Any, mistakes: list[str]) -> Array:
        """Read an array in search scale; infinite bounds are allowed."""
        array = read_reals(values)
        if array is not None and array.shape == (len(self.names),) and not np.isnan(array).any():
            return array
        mistakes.append(f"{label} is {shorten_repr(values)}; give {len(self.names)} numbers, one for each quantity")
        return np.zeros(len(self.names))


def summarize_problem(kind: str, compiled_problem: CompiledProblem) -> str:
    """Describe the measured outputs and the estimated quantities in one line."""
    count = f"{len(compiled_problem.conditions)} experiment{'' if len(compiled_problem.conditions) == 1 else 's'}"
    measured = f"{compiled_problem.n_data} values of {join_limited(compiled_problem.outputs, 40)}"
    return one_line(f"{kind}({count}, {measured}; estimates {join_limited(compiled_problem.names, 56) or 'nothing'})")


def _read_names(label: str, names: Any, known_names: Sequence[str], mistakes: list[str]) -> list[str]:
    """Read a list of names; unknown names are mistakes."""
    name_list = read_sequence({} if names is None else names)
    if isinstance(names, Mapping) and not names:
        return []
    if name_list is None:
        mistakes.append(f"{label} is {shorten_repr(names)}; give a list of names")
        return []
    mistakes += [
        f"{label} holds {shorten_repr(n)}: {suggest(str(n), known_names)}"
        for n in name_list
        if not is_one_of(n, *known_names)
    ]
    return name_list


def compose(statement: ProblemStatement) -> CompiledProblem:
    """Compile a statement, apart from its constraints; it must contain no mistake (see castfit.problem.validation)."""
    statement = with_switch_parameters(statement)
    measured = {name for e in statement.experiments for name in e.measured}
    outputs = tuple(n for n in statement.model.output_names if n in measured)
    observations = work_out(statement)
    full_statement = observations.statement
    quantities = list_quantities(full_statement)
    return CompiledProblem(
        full_statement.model,
        full_statement.experiments,
        dict(full_statement.parameters),
        dict(full_statement.state_bounds),
        (),
        outputs,
        quantities,
        conditions_of(observations, outputs, quantities),
        observations.groups,
        observations.spreads,
        observations.noise_parameters,
        compile_priors(full_statement, quantities),
        unguessed=statement.unguessed,
        units=statement.units,
    )
