"""Designs of populations: groups of subjects with individual parameters, and the measurement schedules of subjects.

A subject of a group with the covariates z has own parameters  phi = mu(y, z) + eta,  eta ~ N(0, Omega(y)), see
`castfit.drive.population`.  Linear in eta (first order), its values are normal with the covariance

    V = L Omega L' + Sigma,    L = df / dphi,  J = L dmu / dy + df / ds,  Sigma the noise's

and a subject adds, without the dependence of V on parameters of the mean (the "reduced" form),

    F = J' V^-1 J + B,    B_ab = tr(V^-1 V_a V^-1 V_b) / 2,  a, b among Omega and the noise

(Mentre, Mallet and Baccar 1997; Retout and Mentre 2003).  Its square root gives the rows of a purchase, so the mix of
schedules is a convex problem with the usual certificate.  Column generation finds the schedules: the relaxed design of
the current schedules has a tangent, tr(G F).  Exchanges of times search for schedules whose value tr(G F) exceeds their
price (Fedorov 1972; Wynn 1970), until there are none.

Notation
--------
n, q     times and outputs of a schedule;  K = n q of its values
m, n_u   individual parameters; parameters of the population, in relative changes u:  dy = T du
P        schedules;  rows (..., 2, m + n_u) of values: (L, J) / s and (0, s') / s
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement
from math import comb
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from castfit._support.arguments import shorten_repr
from castfit._support.arrays import Array, Index
from castfit._support.reprs import join_limited
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit._support.ties import first_argmax
from castfit.densities.noise.gaussian import Gaussian, LogNormal
from castfit.drive.design.candidate import Candidate, with_fields
from castfit.drive.design.exact import CandidatePositions
from castfit.drive.design.interior_point import CandidatePool, DesignGoal, RelaxedDesign, optimize_weights
from castfit.drive.design.knowledge import (
    WEAK_PRIOR_INFORMATION,
    DesignInformation,
    PredictedValues,
    extend_with_candidates,
    tighten_tolerances,
)
from castfit.drive.design.purchases import CandidateSelection
from castfit.drive.design.simple_schedules import EQUIDISTANT, PRESENT, RATIOS, find_simple_places
from castfit.drive.design.times_between import MIN_SPLINE_TIMES, optimize_times
from castfit.drive.population.compiled import CompiledPopulation, compile_population
from castfit.drive.population.result import MixedEffectsResult
from castfit.drive.population.spec import Population
from castfit.experiment.experiment import Experiment
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_experiments import Condition
from castfit.problem.parameters import Parameter
from castfit.problem.problem import Problem

_MAX_ENUMERATED_SCHEDULES = 2000  # number of a group's schedules up to which all of them are compared
_N_FIRST_SCHEDULES = 12  # random schedules of a group with which a search begins
_N_RANDOM_SCHEDULES = 3  # random schedules of a group from which each round searches
_MAX_ROUNDS = 40  # rounds of column generation
_MIN_USED_FRACTION = 1e-3  # fraction of the largest weight above which a schedule counts as used
_PRICE_RTOL = 1e-6  # relative excess of a schedule's value over its price that counts
_MAX_BATCH_NUMBERS = 2**22  # numbers in the arrays of one batch of schedules


@dataclass(frozen=True, eq=False)
class PopulationDesignInformation(DesignInformation):
    """Prior information of a population, and the information of subjects of groups.

    question : with an experiment for each group;  y (n_y,) : the point, `estimate`
    M0 (n_u, n_u) : information of a fit or of priors;  group (N,) : index of the group of each of `candidates`
    integrator : of the fit, if there is one
    simple_indices : indices of simple schedules among `candidates`, one per group, by name
    n_compared : number of schedules compared by the tangent;  all_compared : whether these are all schedules
    """

    question: CompiledPopulation = field(kw_only=True)
    M0: Array = field(kw_only=True)
    group: tuple[int, ...] = field(kw_only=True)
    groups: tuple[Candidate, ...] = field(kw_only=True)
    integrator: IntegratorOptions | None = None
    simple_indices: Mapping[str, list[int]] = field(default_factory=dict[str, "list[int]"])
    n_compared: int = 0
    all_compared: bool = False

    @property
    def has_subjects(self) -> bool:
        """Whether purchases are subjects of a population; True here."""
        return True

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of the parameters of the population."""
        return self.names

    @cached_property
    def absolute_names(self) -> frozenset[str]:
        """Names of correlations and of quantities that are 0, whose standard deviations are absolute."""
        values = self.question.natural(self.estimate)
        is_correlation = np.arange(len(self.names)) >= len(self.question.upper) + self.question.m
        return frozenset(
            n for n, v, is_absolute in zip(self.names, values, is_correlation, strict=True) if is_absolute or v == 0.0
        )

    @cached_property
    def relative_transform(self) -> Array:
        """Matrix T (n_y, n_u) of  dy = T du."""
        values = self.question.natural(self.estimate)
        unit = np.array([1.0 if n in self.absolute_names else abs(v) for n, v in zip(self.names, values, strict=True)])
        return np.asarray(np.linalg.inv(self.question.natural_slopes(self.estimate)) * unit, dtype=float)

    @cached_property
    def covariance_with_slopes(self) -> tuple[Array, Array]:
        """Omega (m, m), and its derivatives by u (m, m, n_u)."""
        covariance, x = self.question.covariance, self.estimate[self.question.of_omega]
        return covariance.matrix(x), covariance.slopes(x) @ self.relative_transform[self.question.of_omega]

    @cached_property
    def _typical_theta_and_slopes(self) -> tuple[Array, Array, Array]:
        """Theta at typical values, and derivatives by u of individual (n, m, n_u) and shared (n_s, n_u) parameters."""
        question, y = self.question, self.estimate
        mu, slopes = question.means(y)
        theta = question.theta(mu, y[question.of_shared])
        return theta, slopes @ self.relative_transform, question.shared_slopes @ self.relative_transform

    def theta(self, sample: int | None = None) -> Array:
        """Return theta of all experiments at typical values."""
        return self._typical_theta_and_slopes[0]

    def compute_prior_information(self, sample: int = 0) -> Array:
        """Return the information of a fit or of priors."""
        return self.M0 + WEAK_PRIOR_INFORMATION * np.eye(len(self.names))

    def condition(self, k: int) -> Condition:
        """Return the group's compiled experiment."""
        return self.extended.conditions[self._condition_index(k)]

    def experiment(self, k: int) -> Experiment:
        """Return the group's experiment as specified."""
        return self._source_problem.experiments[self._condition_index(k)]

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Parameters as specified."""
        return self._source_problem.parameters

    @property
    def _source_problem(self) -> Problem:
        assert self.question.problem_and_population is not None
        return self.question.problem_and_population[0]

    def _condition_index(self, k: int) -> int:
        return len(self.extended.conditions) - len(self.groups) + self.group[k]

    def population(self, group_by_name: Mapping[str, int], names: Sequence[str]) -> Population:
        """Return the population specification with covariates of all experiments.

        New experiments take the covariates of their candidates.
        """
        assert self.question.problem_and_population is not None
        spec = self.question.problem_and_population[1]
        origin_by_name = {
            name: self.experiment(group_by_name[name]).name if name in group_by_name else name for name in names
        }
        covariates = {
            n: {name: float(values[origin_by_name[name]]) for name in names} for n, values in spec.covariates.items()
        }
        return Population(
            spec.individual, correlated=spec.correlated, parameters=spec.parameters, covariates=covariates
        )

    def simple_experiments(self, pool: CandidatePool, counts: Array) -> dict[str, Array]:
        """Return as many subjects at simple times, evenly among groups; empty if no group has `per_subject`."""
        designs: dict[str, Array] = {}
        for name, places in self.simple_indices.items():
            simple_counts = np.zeros_like(counts)
            simple_counts[places] = counts.sum() // len(places) + (np.arange(len(places)) < counts.sum() % len(places))
            designs |= {name: simple_counts} if counts.sum() and pool.fits(simple_counts) else {}
        return designs if any(g.per_subject for g in self.groups) else {}

    def describe_schedule(self, k: int, count: float, values: PredictedValues, *, exact: bool) -> str:
        """Return the instruction for a schedule: outputs, number of subjects and times."""
        number = f"{count:{'.0f' if exact else '.4g'}} {'subject' if count == 1 else 'subjects'}"
        counts_by_time = Counter(f"{t:.4g}" for t in values.times)
        times = ", ".join(p if n == 1 else f"{p} ({n} times)" for p, n in counts_by_time.items())
        return f"{self.labels[k]}: measure {join_limited(values.outputs)} of {number} at t = {times}."

    def values(
        self, k: int, times: Array, sample: int | None = None, *, outputs: Sequence[str] | None = None
    ) -> PredictedValues:
        """Predict the values of subjects at times, with their information rows, at typical values."""
        names = tuple(outputs or self.candidates[k].outputs)
        mu, s, sigma, rows = self._predict_candidate(k, times, self.theta(), names)
        _, individual_slopes, shared_slopes = self._typical_theta_and_slopes
        position, noise = self._condition_index(k), self.extended.noise_parameters
        L = rows[:, :, 0][..., self.question.places[position]]
        by_shared = rows[..., self.question.shared]
        moves_noise = np.array([self.extended.names[j] in noise for j in self.question.shared], dtype=bool)
        relative_rows = np.zeros((*rows.shape[:3], L.shape[-1] + len(self.names)))
        relative_rows[:, :, 0] = np.concatenate(
            [L, L @ individual_slopes[position] + by_shared[:, :, 0] @ shared_slopes], -1
        )
        relative_rows[:, :, 1, L.shape[-1] :] = by_shared[:, :, 1] * moves_noise @ shared_slopes / np.sqrt(2.0)
        between = np.einsum("nqi,ij,nqj->nq", L, self.covariance_with_slopes[0], L)
        return PredictedValues(times, names, mu, s, sigma, relative_rows, between)

    def slopes(self, label: str, times: Array, outputs: Sequence[str]) -> tuple[Array, Array]:
        """Return outputs of typical subjects at times, (n, q), and their derivatives by relative changes."""
        position = self._condition_index(self.labels.index(label))
        response = self.predict(self.extended, self.extended.conditions[position], times, self.theta(), outputs)
        _, individual_slopes, shared_slopes = self._typical_theta_and_slopes
        by_individual, by_shared = (
            response.slopes[..., self.question.places[position]],
            response.slopes[..., self.question.shared],
        )
        return response.values[:, : len(outputs)], (
            by_individual @ individual_slopes[position] + by_shared @ shared_slopes
        )[:, : len(outputs)]

    def gradient(self, target: Any, mistakes: list[str]) -> Array | None:
        """Compute the derivatives of a quantity by relative changes, (n_u,). Return None after a mistake."""
        if not isinstance(target, str) or target not in self.names:
            mistakes.append(
                f"variance_of {shorten_repr(target)}; of a population give a name: {suggest(str(target), self.names)}"
            )
            return None
        j = self.names.index(target)
        value = float(self.question.natural(self.estimate)[j])
        return (1.0 if target in self.absolute_names else abs(value)) * np.eye(len(self.names))[j]

    def purchase_rows(self, values: PredictedValues, purchase_unit: str) -> Array:
        """Return the square root of a subject's information, (1, n_u, n_u)."""
        return compute_root(self.information(values.rows[None]))

    def information(self, rows: Array) -> Array:
        """Return F (P, n_u, n_u) of schedules with rows (P, n, q, 2, m + n_u); see the module."""
        size = max(1, _MAX_BATCH_NUMBERS // ((rows.shape[1] * rows.shape[2]) ** 2 * len(self.names)))
        blocks = [self._information(rows[i : i + size]) for i in range(0, len(rows), size)]
        return np.concatenate(blocks)

    def _information(self, rows: Array) -> Array:
        (omega, by_omega), m = self.covariance_with_slopes, self.question.m
        P, K = len(rows), rows.shape[1] * rows.shape[2]
        flat = rows.reshape(P, K, 2, -1)
        noise = 2.0 * flat[:, :, 1, m:]
        V = flat[:, :, 0, :m] @ omega @ np.swapaxes(flat[:, :, 0, :m], 1, 2) + np.eye(K)
        C = np.linalg.inv(np.linalg.cholesky(V))
        L, J = np.split(C @ flat[:, :, 0], [m], axis=-1)
        moving_indices = np.flatnonzero((by_omega != 0.0).any(axis=(0, 1)) | (noise != 0.0).any(axis=(0, 1)))
        # C V_a C' for each a: between subjects L (dOmega / du_a) L', of the noise 2 s s_a'
        between_blocks = np.einsum("pki,ija,plj->pakl", L, by_omega[:, :, moving_indices], L, optimize=True)
        within_blocks = np.einsum("pkr,pra,plr->pakl", C, noise[:, :, moving_indices], C, optimize=True)
        W = (between_blocks + within_blocks).reshape(P, moving_indices.size, -1)
        F = np.swapaxes(J, 1, 2) @ J
        F[:, moving_indices[:, None], moving_indices] += 0.5 * W @ np.swapaxes(W, 1, 2)
        return F

    @property
    def certificate_scope(self) -> str:
        """Description of the set of designs that the certificate covers."""
        if not any(g.per_subject for g in self.groups):
            return "these groups"
        return f"all {self.n_compared} schedules" if self.all_compared else f"the {self.n_compared} schedules compared"


def compute_root(F: Array) -> Array:
    """Return R (..., n, n) with R'R = F, for F that may be singular."""
    values, vectors = np.linalg.eigh(F)
    return np.sqrt(np.maximum(values, 0.0))[..., None] * np.swapaxes(vectors, -1, -2)


def build_population_information(
    source: Any, population: Any, candidates: Sequence[Candidate], mistakes: list[str]
) -> PopulationDesignInformation:
    """Build the population with a subject for each candidate. Raise an InputError with all `mistakes`, if any."""
    fit = source if isinstance(source, MixedEffectsResult) else None
    if fit is not None:
        if population is not None:
            mistakes.append("the fit contains its population; remove population=")
        if not fit.success:
            mistakes.append("result is not a solution; pass its problem with guesses and population=...")
        elif not np.isfinite(fit.errors.covariance).any():
            mistakes.append("the fit has no standard errors; set standard_errors=True in the fit")
    problem, spec = (source, population) if fit is None else fit.question.problem_and_population or (None, None)
    if not isinstance(problem, Problem) or not isinstance(spec, Population):
        mistakes.append("a design of a population takes a Problem and population=cf.Population(...), or their fit")
        raise_if_mistakes("design", mistakes)
    assert isinstance(problem, Problem)
    assert isinstance(spec, Population)
    mistakes += [
        f"{c.name or f'candidate {k + 1}'}: {message}"
        for k, c in enumerate(candidates)
        for message, is_wrong in (
            ("a subject is measured as a whole; remove cost_unit='time'", c.cost_unit == "time"),
            ("a subject has one cost; pass a number", not isinstance(c.cost, float)),
            ("every subject of a population is a new one; remove repeats=True", c.repeats),
            ("a subject without per_subject is measured at all times; remove spacing and between, or set per_subject",
             c.per_subject is None and (c.spacing > 0.0 or c.continuous_times)),
        )
        if is_wrong
    ]  # fmt: skip
    full_candidates, extended = extend_with_candidates(problem, candidates, mistakes, "design", subjects=True)
    old_names, new_names = [e.name for e in problem.experiments], [e.name for e in extended.experiments]
    bases = [*old_names, *(c.experiment or old_names[0] for c in full_candidates)]
    covariates = {n: _covariate_values(spec, n, old_names, new_names, bases, mistakes) for n in spec.covariates}
    raise_if_mistakes("design", mistakes)
    question = compile_population(
        extended,
        Population(
            spec.individual, correlated=spec.correlated, parameters=spec.parameters,
            covariates=covariates,
        ),
    )  # fmt: skip
    compiled = question.problem
    conditions = compiled.conditions[len(old_names) :]
    for c, condition in zip(full_candidates, conditions, strict=True):
        for output in c.outputs:
            observable = condition.observed[compiled.outputs.index(output)]
            if observable is not None and not isinstance(observable.noise, (Gaussian, LogNormal)):
                mistakes.append(
                    f"{condition.name}: designs of populations need normal noise, but '{output}' has another noise "
                    "model"
                )
            if fit is None and c.sigma_of(output) is None and problem.posed.groups:
                remedy = f"give cf.unknown(guess=...) to the experiments, or Candidate(sigma={{'{output}': ...}})"
                mistakes.append(f"{condition.name}: sigma of '{output}' is unknown; {remedy}")
    raise_if_mistakes("design", mistakes)
    y = question.guess.copy()
    for name, value in zip(fit.names, fit.y, strict=True) if fit is not None else ():
        y[question.names.index(name)] = value
    n_y = question.n_y
    information = PopulationDesignInformation(
        problem,
        compiled,
        tuple(new_names[len(old_names) :]),
        question.names,
        y,
        y[None],
        (),
        np.arange(n_y),
        np.arange(n_y),
        np.arange(n_y),
        fit is not None,
        False,
        None,
        tighten_tolerances(None if fit is None else fit.integrator),
        tuple(with_fields(c, cost_unit="experiment", spacing=0.0, continuous_times=False) for c in full_candidates),
        question=question,
        M0=np.zeros((n_y, n_y)),
        group=tuple(range(len(full_candidates))),
        groups=tuple(full_candidates),
        integrator=None if fit is None else fit.integrator,
    )
    return replace(information, M0=_compute_prior_information(information, fit))


def _covariate_values(
    population: Population,
    name: str,
    old_names: Sequence[str],
    new_names: Sequence[str],
    bases: Sequence[str],
    mistakes: list[str],
) -> dict[str, float]:
    """Return a covariate of every experiment; a new group without a value takes that of its base experiment."""
    values: Any = population.covariates[name]
    by_name = dict(values) if hasattr(values, "keys") else dict(zip(old_names, values, strict=False))
    value_by_name = (
        dict(zip(old_names, population.covariate(name, old_names, mistakes).tolist(), strict=True)) | by_name
    )
    return {
        label: float(value_by_name.get(label, value_by_name.get(base, np.nan)))
        for label, base in zip(new_names, bases, strict=True)
    }


def _compute_prior_information(information: PopulationDesignInformation, fit: MixedEffectsResult | None) -> Array:
    """Return the information of a fit, or of priors, by relative changes."""
    names, turn = information.names, information.relative_transform
    if fit is None:
        rows: Any = information.question.priors(information.estimate).jacobian
        J = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=float) @ turn
        return J.T @ J
    finite_indices = np.flatnonzero(np.isfinite(np.diag(fit.errors.covariance)))
    positions = [names.index(fit.names[j]) for j in finite_indices]
    M = np.zeros((len(names), len(names)))
    M[np.ix_(positions, positions)] = np.linalg.inv(fit.errors.covariance[np.ix_(finite_indices, finite_indices)])
    return turn.T @ M @ turn


@dataclass(eq=False)
class _ScheduleCatalog:
    """Schedules of all groups generated so far.

    values : of each group, on its grid;  pool : roots of F by (group, indices on the grid)
    """

    information: PopulationDesignInformation
    values: Sequence[PredictedValues]
    order: Index
    rng: np.random.Generator
    pool: dict[tuple[int, tuple[int, ...]], Array] = field(default_factory=dict[tuple[int, tuple[int, ...]], Any])
    compared_schedules: set[tuple[int, tuple[int, ...]]] = field(default_factory=set[tuple[int, tuple[int, ...]]])

    def compute_informations(self, g: int, schedules: Sequence[Sequence[int]]) -> Array:
        """Return F of schedules of a group (P, n_u, n_u), in the criterion's order."""
        self.compared_schedules |= {(g, tuple(sorted(s))) for s in schedules}
        F = self.information.information(self.values[g].rows[np.array(schedules, dtype=np.intp)])
        return F[:, self.order][:, :, self.order]

    def add(self, g: int, schedules: Iterable[Sequence[int]]) -> bool:
        """Add new schedules to the pool. Return whether there are any."""
        new_schedules = list(
            dict.fromkeys(
                key for s in schedules if (key := tuple(sorted(map(int, s)))) not in self.collect_schedules(g)
            )
        )
        if new_schedules:
            self.pool |= {
                (g, s): R
                for s, R in zip(new_schedules, compute_root(self.compute_informations(g, new_schedules)), strict=True)
            }
        return bool(new_schedules)

    def collect_schedules(self, g: int) -> set[tuple[int, ...]]:
        """Return the schedules of a group in the pool."""
        return {s for group, s in self.pool if group == g}

    def is_spaced(self, g: int, schedule: Sequence[int]) -> bool:
        """Check whether the times of a schedule keep the spacing of the group."""
        times, gap = self.values[g].times[sorted(schedule)], self.information.groups[g].spacing
        return times.size < 2 or bool(np.diff(times).min() >= gap * (1 - 1e-9))

    def build_simple_schedules(self, g: int) -> dict[str, tuple[int, ...]]:
        """Return schedules at grid times nearest to simple times; without `per_subject`, at all grid times."""
        times, n = self.values[g].times, self.information.groups[g].per_subject
        if n is None:
            return dict.fromkeys((EQUIDISTANT, RATIOS, PRESENT), tuple(range(times.size)))
        start, present = self.information.condition(g).start, self.information.measured_times(g, -1)
        places_by_name = find_simple_places(
            times, n, start, present, tells=bool(self.values[g].rows[0].any()), is_distinct=True
        )
        schedules = {name: tuple(np.sort(places).tolist()) for name, places in places_by_name.items()}
        return {name: s for name, s in schedules.items() if self.is_spaced(g, s)}

    def build_earliest_schedule(self, g: int) -> tuple[int, ...] | None:
        """Return the earliest schedule; None if too few grid times keep the spacing."""
        times, n, places = self.values[g].times, self.information.groups[g].per_subject or 0, [0]
        for i in range(1, times.size):
            places += [i] if self.is_spaced(g, [places[-1], i]) else []
        return tuple(places[:n]) if len(places) >= n else None

    def draw_schedule(self, g: int) -> tuple[int, ...] | None:
        """Draw a random schedule; None if 100 draws violate the spacing."""
        n, size = self.information.groups[g].per_subject or 0, self.values[g].times.size
        for _ in range(100):
            trial = np.sort(self.rng.choice(size, n, replace=False))
            if self.is_spaced(g, trial.tolist()):
                return tuple(trial.tolist())
        return None

    def improve_schedule(self, g: int, start: tuple[int, ...], G: Array, stop: Callable[[], object]) -> tuple[int, ...]:
        """Exchange one time for another as long as tr(G F) grows."""
        schedule, value = start, float(np.sum(G * self.compute_informations(g, [start])[0]))
        while not stop():
            trials = [
                trial
                for j in range(len(schedule))
                for i in range(self.values[g].times.size)
                if i != schedule[j] and self.is_spaced(g, trial := (*schedule[:j], i, *schedule[j + 1 :]))
            ]
            gains = np.einsum("ij,pij->p", G, self.compute_informations(g, trials)) if trials else np.zeros(1)
            if gains.max() <= value * (1.0 + _PRICE_RTOL):
                break
            schedule, value = tuple(sorted(trials[first_argmax(gains)])), float(gains.max())
        return schedule


def select_schedules(
    information: PopulationDesignInformation,
    selection: CandidateSelection,
    goal: DesignGoal,
    order: Index,
    rng: np.random.Generator,
    stop: Callable[[], object],
) -> tuple[PopulationDesignInformation, CandidateSelection]:
    """Build schedules by enumeration or column generation. Return them as candidates, with their purchases."""
    free_groups = [int(k) for k in selection.candidate]  # groups that are not fixed
    column_by_group = {g: i for i, g in enumerate(free_groups)}
    pool, max_counts = _group_budgets(selection.pool)
    M0 = pool.M0[:, order][:, :, order]
    catalog, is_finished = _ScheduleCatalog(information, selection.values[0], order, rng), True
    open_groups: list[int] = []
    for g in free_groups:
        n, size = information.groups[g].per_subject, selection.values[0][g].times.size
        catalog.add(g, catalog.build_simple_schedules(g).values())
        if n is not None and comb(size + n - 1, n) <= _MAX_ENUMERATED_SCHEDULES:
            catalog.add(g, [s for s in combinations_with_replacement(range(size), n) if catalog.is_spaced(g, s)])
        elif n is not None:
            open_groups.append(g)
            catalog.add(
                g,
                [
                    s
                    for s in (
                        catalog.build_earliest_schedule(g),
                        *(catalog.draw_schedule(g) for _ in range(_N_FIRST_SCHEDULES)),
                    )
                    if s is not None
                ],
            )
        if not catalog.collect_schedules(g):
            message = (
                f"no {n} of its times are {information.groups[g].spacing:g} apart; give more times, or less spacing"
            )
            raise InputError("design", [f"{information.labels[g]}: {message}"])

    def build_pool() -> CandidatePool:
        columns = [column_by_group[g] for g, _ in catalog.pool]
        J = np.array(list(catalog.pool.values()))[None]
        return CandidatePool(J, M0, pool.A[:, columns], pool.b, max_counts[columns], pool.price[columns])

    for _ in range(_MAX_ROUNDS if open_groups else 0):
        current_pool, is_finished = build_pool(), False
        solution = optimize_weights(goal, current_pool, _PRICE_RTOL, stop=stop)
        linearization = solution and goal.criterion.tangent(current_pool.information(solution.w)[0], M0[0], solution.mu)
        if solution is None or not linearization or stop():
            break
        keys, is_finished, catalog.compared_schedules = list(catalog.pool), True, set(catalog.pool)
        for g in open_groups:
            used_schedules = [
                keys[i][1]
                for i in np.flatnonzero(solution.w > _MIN_USED_FRACTION * solution.w.max())
                if keys[i][0] == g
            ]
            starts = [
                *used_schedules,
                *(s for s in (catalog.draw_schedule(g) for _ in range(_N_RANDOM_SCHEDULES)) if s is not None),
            ]
            end_schedules = sorted({catalog.improve_schedule(g, s, linearization.G, stop) for s in starts})
            gains = np.einsum("ij,pij->p", linearization.G, catalog.compute_informations(g, end_schedules))
            price = float(solution.y @ pool.A[:, column_by_group[g]]) + pool.price[column_by_group[g]]
            is_finished &= not (catalog.add(g, end_schedules) and gains.max() > price * (1.0 + _PRICE_RTOL))
        if is_finished:
            break
    if not is_finished:
        catalog.compared_schedules = set(catalog.pool)
    return _as_candidates(catalog, selection, build_pool(), order, is_complete=not open_groups)


def _group_budgets(pool: CandidatePool) -> tuple[CandidatePool, Array]:
    """Convert the largest counts of groups to budgets that their schedules share."""
    capped_groups = np.flatnonzero(np.isfinite(pool.u))
    rows = np.eye(pool.count)[capped_groups]
    A, b = np.concatenate([pool.A, rows]), np.concatenate([pool.b, pool.u[capped_groups]])
    return replace(pool, A=A, b=b), np.full(pool.count, np.inf)


def _as_candidates(
    catalog: _ScheduleCatalog, selection: CandidateSelection, pool: CandidatePool, order: Index, *, is_complete: bool
) -> tuple[PopulationDesignInformation, CandidateSelection]:
    """Return the pool as candidates, in the order of `information`."""
    information, keys, inverse_order = catalog.information, list(catalog.pool), np.argsort(order)
    column_by_group = {int(g): i for i, g in enumerate(selection.candidate)}
    values, simple = (
        tuple(_select_times(catalog.values[g], list(s)) for g, s in keys),
        {g: catalog.build_simple_schedules(g) for g in column_by_group},
    )
    candidates = tuple(
        with_fields(information.candidates[g], times=v.times) for (g, _), v in zip(keys, values, strict=True)
    )
    fixed = [g for g, c in enumerate(information.candidates) if c.fixed]
    group = (*(g for g, _ in keys), *fixed)
    new_information = replace(
        information, candidates=(*candidates, *(information.candidates[g] for g in fixed)), group=group,
        labels=tuple(f"{information.labels[g]} #{k + 1}" for k, g in enumerate(group)),
        n_compared=len(catalog.compared_schedules), all_compared=is_complete,
        simple_indices={name: [keys.index((g, s[name])) for g, s in simple.items()]
                  for name in (EQUIDISTANT, RATIOS, PRESENT) if all(name in s for s in simple.values())},
    )  # fmt: skip
    N = len(keys)
    reordered_pool = replace(pool, J=pool.J[..., inverse_order], M0=selection.pool.M0)
    positions = CandidatePositions(-1 - np.arange(N), np.arange(N), np.zeros(N), np.zeros(N))
    no_index, cost = np.full(N, -1, dtype=np.intp), np.array([selection.cost[column_by_group[g]] for g, _ in keys])
    fixed_values = tuple(selection.values[0][g] for g in fixed)
    return new_information, replace(
        selection,
        pool=reordered_pool,
        positions=positions,
        candidate=np.arange(N),
        output=no_index,
        time=no_index,
        cost=cost,
        values=((*values, *fixed_values),),
    )


def shift_schedule_times(
    information: PopulationDesignInformation,
    selection: CandidateSelection,
    goal: DesignGoal,
    counts: Array,
    order: Index,
) -> tuple[CandidateSelection, CandidatePool] | None:
    """Move the times of used schedules between grid times. Return the purchases and offers, or None if not better.

    All times move together, along splines of the rows on the grids. The model then predicts the rows at the new times.
    """
    grids = {
        g: information.values(information.group.index(g), grid.times)
        for g, grid in enumerate(information.groups)
        if grid.continuous_times and grid.times.size >= MIN_SPLINE_TIMES
    }
    used_candidates = [int(k) for k in np.flatnonzero(counts) if information.group[k] in grids]
    if not used_candidates:
        return None
    splines = {g: CubicSpline(grid.times, grid.rows) for g, grid in grids.items()}
    start = np.concatenate([selection.values[0][k].times for k in used_candidates])
    ends = np.cumsum([selection.values[0][k].times.size for k in used_candidates])
    group_of_time = [information.group[k] for k in used_candidates for _ in selection.values[0][k].times]
    low, high = (np.array([grids[g].times[end_index] for g in group_of_time]) for end_index in (0, -1))
    gap = np.array([information.groups[g].spacing for g in group_of_time])
    gap_starts = np.setdiff1d(np.arange(start.size - 1), ends - 1)
    M = selection.pool.information(np.where(np.isin(np.arange(counts.size), used_candidates), 0.0, counts))[0]

    def split_times(t: Array) -> list[Array]:
        return [np.sort(part) for part in np.split(t, ends[:-1])]

    def interpolate_information(t: Array) -> Array:
        total = M.copy()
        for k, times in zip(used_candidates, split_times(t), strict=True):
            total += counts[k] * information.information(splines[information.group[k]](times)[None])[0]
        return total[None]

    def recompute_selection(t: Array) -> CandidateSelection:
        values, J = list(selection.values[0]), selection.pool.J.copy()
        for k, times in zip(used_candidates, split_times(t), strict=True):
            values[k] = information.values(k, times)
            J[0, k] = information.purchase_rows(values[k], "experiment")[0]
        return replace(selection, pool=replace(selection.pool, J=J), values=(tuple(values),))

    return optimize_times(
        selection,
        goal,
        counts,
        order,
        (start, low, high),
        (gap_starts, gap[1:][gap_starts]),
        interpolate_information,
        recompute_selection,
    )


def name_schedules(information: PopulationDesignInformation, counts: Array) -> PopulationDesignInformation:
    """Name the schedules after their groups, with letters if a group has several."""
    labels = list(information.labels)
    for g, experiment in enumerate(information.extended.experiments[-len(information.groups) :]):
        schedules = [
            k for k, group in enumerate(information.group) if group == g and (k >= counts.size or counts[k] > 0)
        ]
        for i, k in enumerate(schedules):
            labels[k] = experiment.name + (f" {_letters(i)}" if len(schedules) > 1 else "")
    return replace(information, labels=tuple(labels))


def schedule_time_gains(
    information: PopulationDesignInformation,
    selection: CandidateSelection,
    goal: DesignGoal,
    solution: RelaxedDesign,
    counts: Array,
) -> list[tuple[str, Array, Array]]:
    """Return name, times (n,) and the best ratio of value to price with one time moved there, per used schedule.

    Only schedules of groups with `per_subject` are included.
    """
    pool = selection.pool
    linearization = goal.criterion.tangent(pool.information(solution.w)[0], pool.M0[0], solution.mu)
    result: list[tuple[str, Array, Array]] = []
    chosen_schedules = [
        k for k in np.flatnonzero(counts).tolist() if information.groups[information.group[k]].per_subject
    ]
    for k in chosen_schedules if linearization is not None else ():
        assert linearization is not None
        values, grid = selection.values[0][k], information.values(k, information.groups[information.group[k]].times)
        moved_rows = np.repeat(values.rows[None, None], values.times.size, 0).repeat(grid.times.size, 1)
        for j in range(values.times.size):
            moved_rows[j, :, j] = grid.rows
        gains = np.einsum(
            "ij,pij->p", linearization.G, information.information(moved_rows.reshape(-1, *values.rows.shape))
        )
        gains = gains.reshape(values.times.size, -1)
        for j in range(values.times.size):
            other_times = np.delete(values.times, j)
            is_near = np.abs(grid.times[:, None] - other_times) < information.groups[information.group[k]].spacing * (
                1 - 1e-9
            )
            gains[j, is_near.any(axis=1)] = np.nan
        price = float(solution.y @ pool.A[:, k]) + float(pool.price[k])
        has_value = ~np.isnan(gains).all(axis=0)
        result.append((information.labels[k], grid.times[has_value], np.nanmax(gains[:, has_value], axis=0) / price))
    return result


def _letters(i: int) -> str:
    return chr(ord("a") + i) if i < 26 else _letters(i // 26 - 1) + _letters(i % 26)


def _select_times(values: PredictedValues, places: Sequence[int]) -> PredictedValues:
    indices = np.array(places, dtype=np.intp)
    arrays = {name: getattr(values, name)[indices] for name in ("times", "mu", "s", "rows", "between_variance")}
    return replace(values, **arrays)
