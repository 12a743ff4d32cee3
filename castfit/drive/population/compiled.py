"""Compiled mixed-effects problem: the estimated quantities of both levels, and the relation between the levels.

Notation
--------
n, m       experiments (individuals), own parameters of each
phi_i      (m,)    own parameters of individual i in search scale: logarithms of log-normal ones
mu_i(y)    (m,)    their typical values in the same scale;  phi_i = mu_i + eta_i,  eta_i ~ N(0, Omega(y))
s          (n_s,)  shared parameters of the problem in search scale, those of the noise among them
y          (n_y,)  everything on the upper level: population parameters, s, coordinates of Omega
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arguments import option_mistakes, read_real
from castfit._support.arrays import Array, Index, Mask
from castfit._support.bounds import bound_mistakes
from castfit._support.status import raise_if_mistakes, suggest
from castfit.densities.noise.gaussian import Gaussian
from castfit.densities.noise.unknown import UnknownSigma
from castfit.drive.population.covariance import Covariance
from castfit.drive.population.spec import Individual, Population
from castfit.experiment.experiment import Experiment, Free
from castfit.problem.compiled_problem import LOSS, NO_LIKELIHOOD, CompiledProblem
from castfit.problem.fingerprint import digest, fingerprint
from castfit.problem.parameter_map import natural_value
from castfit.problem.parameters import Parameter, initial_values
from castfit.problem.prior_rows import PriorRows, QuantityPrior, prior_rows
from castfit.problem.problem import Problem, kind_mistakes
from castfit.problem.quantities import Quantity

_SIGMA_GUESS_FRACTION = 0.2  # of the median of the data: the guess of an unknown standard deviation
_MIN_OMEGA_FRACTION = 1e-3  # of its guess: the lower bound of a standard deviation of a population
_WHERE = "mixed_effects"


@dataclass(frozen=True, eq=False)
class CompiledPopulation:
    """Compiled mixed-effects model.

    problem : the problem with own parameters for every experiment, in the scale of their distribution, and with sigmas
        as parameters
    places (n, m), shared (n_s,) : positions of the own parameters of each individual, and of shared ones, in theta
    upper : population parameters, then shared ones: the first entries of y
    typical : (entries of y in `upper`, covariates) -> (mu (m), derivatives (m, n_upper))
    covariates : (n, n_covariates)
    omega : (m,) guesses of the standard deviations
    problem_and_population : the problem and the population that were compiled
    """

    problem: CompiledProblem
    individual_parameters: tuple[str, ...]
    lognormal: Mask
    places: Index
    shared: Index
    upper: tuple[Quantity, ...]
    covariance: Covariance
    typical: ca.Function
    covariates: Array
    omega: Array
    problem_and_population: tuple[Problem, Population] | None = None

    @property
    def digests(self) -> dict[str, str]:
        """Hashes of the population and of the problem, which tell a file from that of another question."""
        parts = self.individual_parameters, self.typical.serialize(), self.covariates, self.guess
        return {"population": digest(*parts), "problem": digest(fingerprint(self.problem))}

    @property
    def n(self) -> int:
        """Number of individuals."""
        return self.places.shape[0]

    @property
    def m(self) -> int:
        """Number of own parameters of each."""
        return self.places.shape[1]

    @property
    def n_y(self) -> int:
        """Number of entries of y."""
        return len(self.upper) + self.covariance.size

    @cached_property
    def of_shared(self) -> Index:
        """Indices of the shared parameters in y."""
        return np.arange(len(self.upper) - self.shared.size, len(self.upper))

    @cached_property
    def shared_slopes(self) -> Array:
        """Derivatives of shared parameters by y, (n_s, n_y)."""
        return np.eye(self.n_y)[self.of_shared]

    @cached_property
    def of_omega(self) -> slice:
        """Slice of the coordinates of Omega in y."""
        return slice(len(self.upper), self.n_y)

    @cached_property
    def log(self) -> Mask:
        """Mask of the entries of y that are logarithms of natural values; always False for the coordinates of Omega."""
        return np.array([*(u.scale == "log" for u in self.upper), *[False] * self.covariance.size], dtype=np.bool_)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of population and shared parameters, then of standard deviations and correlations between."""
        return (*(u.name for u in self.upper), *self.covariance.reported_names)

    @cached_property
    def individuals(self) -> tuple[str, ...]:
        """Names of the experiments."""
        return tuple(c.name for c in self.problem.conditions)

    @cached_property
    def guess(self) -> Array:
        """Start of the search, in search scale."""
        natural = np.array([u.guess for u in self.upper])
        return np.concatenate([_to_search(natural, self.log[: natural.size]), self.covariance.start(self.omega)])

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of y; standard deviations have a lower bound, which means no variation."""
        log = self.log[: len(self.upper)]
        lower, upper = (np.array([getattr(u, end) for u in self.upper]) for end in ("lower", "upper"))
        floor = np.full(self.covariance.size, -np.inf)
        floor[: self.m] = np.log(_MIN_OMEGA_FRACTION * self.omega)
        return (
            np.concatenate([_to_search(np.where(log, np.maximum(lower, 0.0), lower), log), floor]),
            np.concatenate([_to_search(upper, log), np.full(self.covariance.size, np.inf)]),
        )

    @cached_property
    def directions(self) -> Index:
        """Index of each entry of theta among the own and then shared parameters of its individual.

        -1 if it is neither.
        """
        directions = np.full(len(self.problem.names), -1, dtype=np.intp)
        directions[self.shared] = self.m + np.arange(self.shared.size)
        directions[self.places] = np.arange(self.m)
        return directions

    def of_some(self, members: Index) -> CompiledPopulation:
        """Return the question of some individuals, with the same theta."""
        compiled_problem, indices = self.problem, [int(i) for i in members]
        subproblem = replace(
            compiled_problem,
            experiments=tuple(compiled_problem.experiments[i] for i in indices),
            conditions=tuple(compiled_problem.conditions[i] for i in indices),
        )
        return replace(self, problem=subproblem, places=self.places[members], covariates=self.covariates[members])

    def natural(self, y: Array) -> Array:
        """Convert y to natural values, standard deviations and correlations, in the order of `names`."""
        return np.concatenate(
            [natural_value(y, self.log)[: len(self.upper)], self.covariance.report(y[self.of_omega])[0]]
        )

    def natural_slopes(self, y: Array) -> Array:
        """Return the derivatives of `natural` by y, (n_y, n_y)."""
        out = np.zeros((self.n_y, self.n_y))
        k = len(self.upper)
        out[range(k), range(k)] = np.where(self.log, natural_value(y, self.log), 1.0)[:k]
        out[k:, k:] = self.covariance.report(y[self.of_omega])[1]
        return out

    def means(self, y: Array, covariates: Array | None = None) -> tuple[Array, Array]:
        """Return mu (n, m) and its derivatives by y (n, m, n_y); NaN if a typical value is undefined."""
        covariate_values = self.covariates if covariates is None else covariates
        k, n = len(self.upper), covariate_values.shape[0]
        # Without covariates all individuals have the same typical values.
        rows = covariate_values.T if covariate_values.shape[1] else np.zeros((0, 1))
        mu, slopes = self.typical(np.repeat(y[:k, None], rows.shape[1], axis=1), rows)
        by_y = np.zeros((n, self.m, self.n_y))
        # Column blocks (m, n_upper) stand beside each other, individual by individual.
        by_y[:, :, :k] = slopes.full().reshape(self.m, -1, k).transpose(1, 0, 2)
        out = np.empty((n, self.m))
        out[:] = mu.full().T
        return out, by_y

    def omega_at(self, y: Array) -> Array:
        """Return Omega (m, m)."""
        return self.covariance.matrix(y[self.of_omega])

    def priors(self, y: Array) -> PriorRows:
        """Return the rows that priors on population and shared parameters add to the cost."""
        natural = np.where(self.log, natural_value(y, self.log), y)
        return prior_rows(self.terms, natural, np.where(self.log, natural, 1.0))

    @cached_property
    def terms(self) -> tuple[QuantityPrior, ...]:
        """Priors on population and shared parameters."""
        return tuple(
            QuantityPrior(u.name, u.prior, j, self.n_y) for j, u in enumerate(self.upper) if u.prior is not None
        )

    def theta(self, phi: Array, s: Array) -> Array:
        """Build theta from own (n, m) and shared (n_s,) parameters."""
        out = self.problem.guess.copy()
        out[self.shared] = s
        out[self.places] = phi
        return out


def _to_search(natural: Array, log: Mask) -> Array:
    with np.errstate(divide="ignore"):
        return np.where(log, np.log(np.where(log, natural, 1.0)), natural)


def compile_population(problem: Any, population: Any) -> CompiledPopulation:
    """Compile a mixed-effects model.

    Raises InputError with all inconsistencies between problem and population.
    """
    kinds = (
        ("problem", problem, isinstance(problem, Problem), "expected a Problem"),
        ("population", population, isinstance(population, Population), "expected a Population"),
    )
    raise_if_mistakes(_WHERE, option_mistakes(*kinds))
    raise_if_mistakes(_WHERE, [*_problem_mistakes(problem, population), *_population_mistakes(problem, population)])
    covariate_mistakes: list[str] = []
    experiment_names = [e.name for e in problem.experiments]
    covariates = {n: population.covariate(n, experiment_names, covariate_mistakes) for n in population.covariates}
    raise_if_mistakes(_WHERE, covariate_mistakes)
    local_names = tuple(population.individual)
    compiled_problem = _compile_problem(problem, population)
    places, unused = _places(compiled_problem, local_names)
    raise_if_mistakes(_WHERE, unused)
    log = np.array([population.individual[n].distribution == "lognormal" for n in local_names], dtype=np.bool_)
    shared = np.array([j for j, q in enumerate(compiled_problem.quantities) if q.experiment is None], dtype=np.intp)
    upper = (*_upper(problem, population), *(q for q in compiled_problem.quantities if q.experiment is None))
    question = CompiledPopulation(
        compiled_problem,
        local_names,
        log,
        places,
        shared,
        upper,
        _covariance(population, local_names),
        _typical(population, local_names, upper, tuple(covariates)),
        np.array(list(covariates.values()), dtype=float).reshape(len(covariates), len(experiment_names)).T,
        np.array([population.individual[n].omega for n in local_names], dtype=float),
        (problem, population),
    )
    raise_if_mistakes(_WHERE, _start_mistakes(question))
    return question


def _problem_mistakes(problem: Problem, population: Population) -> list[str]:
    """Return messages about parts of the problem that a population does not support."""
    local = [n for n, p in problem.parameters.items() if p.local and not p.fixed]
    mistakes = [f"'{n}' is not a local parameter: {suggest(n, local)}; declare it as Parameter(..., local=True)"
                for n in population.individual if n not in local]  # fmt: skip
    mistakes += [
        f"local parameter '{n}' has no distribution; add it to Population({{...}}), or remove local=True"
        for n in local
        if n not in population.individual
    ]
    if len(problem.experiments) < 2:
        mistakes.append("the problem has one experiment; a population needs at least two")
    mistakes += kind_mistakes(problem)
    mistakes += [
        f"local parameter '{n}' has a prior; remove it, because the population distribution replaces it"
        for n in population.individual
        if n in problem.parameters and problem.parameters[n].prior is not None
    ]
    mistakes += [
        f"local parameter '{n}' has bounds, which its distribution does not support; remove them"
        for n, individual in population.individual.items()
        if n in problem.parameters
        and (problem.parameters[n].lower > _find_lower_bound(individual) or problem.parameters[n].upper < np.inf)
    ]
    free = {
        f"'{n}' of '{e.name}'"
        for e in problem.experiments
        for n, v in initial_values(problem.original_model, e).items()
        if isinstance(v, Free)
    }
    mistakes += [
        f"the initial state {n} is free; use a local parameter with a distribution, initial={{...: x0}}"
        for n in sorted(free)[:3]
    ]
    for label, value in (("constraints", problem.constraints), ("state_bounds", problem.state_bounds)):
        if value:
            mistakes.append(f"{label} cannot be combined with a population; remove them")
    if problem.given_priors:
        mistakes.append("the problem has priors={...}; pass the priors with their parameters, Parameter(prior=...)")
    if problem.posed.correlations:
        mistakes.append("correlated measurement errors cannot be combined with a population; remove the correlation")
    if problem.posed.measure == LOSS:
        mistakes.append(NO_LIKELIHOOD)
    if problem.posed.smoothness_penalties:
        mistakes.append(
            "estimated inputs cannot be combined with a population; use known inputs, or parameters for their values"
        )
    return mistakes


def _population_mistakes(problem: Problem, population: Population) -> list[str]:
    """Return messages about parts of the population that are inconsistent with the problem."""
    shared = {n for n, p in problem.parameters.items() if not p.local and not p.fixed}
    known_names = {*population.parameters, *population.covariates, *shared}
    mistakes = [f"'{n}' is a parameter of both the problem and the population; rename one"
                for n in population.parameters if n in problem.parameters]  # fmt: skip
    mistakes += [f"'{n}' is a parameter of the problem and a covariate; rename one"
                 for n in population.covariates if n in problem.parameters]  # fmt: skip
    used_names: set[str] = set()
    for name, individual in population.individual.items():
        if not isinstance(individual.typical, ca.SX):
            continue
        names = [s.name() for s in ca.symvar(individual.typical)]
        used_names |= {*names}
        mistakes += [
            f"the typical value of '{name}' contains the unknown name '{n}': {suggest(n, known_names)}; add it to "
            "Population(parameters={...}) or covariates={...}"
            for n in names
            if n not in known_names
        ]
    for kind, declared_names in (("population parameter", population.parameters), ("covariate", population.covariates)):
        mistakes += [
            f"{kind} '{n}' is used in no typical value; remove it" for n in declared_names if n not in used_names
        ]
    for name, p in population.parameters.items():
        mistakes += bound_mistakes(f"population parameter '{name}'", p.value, p.lower, p.upper, p.scale)
    return mistakes


def _guess(problem: Problem, name: str, individual: Individual) -> float:
    """Return the guess of a typical value that is a parameter by itself."""
    if individual.typical is not None and not isinstance(individual.typical, ca.SX):
        return float(individual.typical)
    value = problem.parameters[name].value
    values = np.array([*value.values()] if isinstance(value, Mapping) else [value], dtype=float)
    if individual.distribution == "lognormal" and (values > 0.0).all():
        return float(np.exp(np.log(values).mean()))
    return float(values.mean())


def _upper(problem: Problem, population: Population) -> list[Quantity]:
    """List the parameters of typical values that are estimated."""
    typical_parameters = {
        n: Parameter(_guess(problem, n, individual), lower=_find_lower_bound(individual), scale=_scale(individual))
        for n, individual in population.individual.items()
        if not isinstance(individual.typical, ca.SX)
    }
    return [
        Quantity(n, "parameter", n, None, _number(p), p.lower, p.upper, p.scale, p.prior)
        for n, p in [*typical_parameters.items(), *population.parameters.items()]
        if not p.fixed
    ]


def _scale(individual: Individual) -> str:
    return "log" if individual.distribution == "lognormal" else "linear"


def _find_lower_bound(individual: Individual) -> float:
    return 0.0 if individual.distribution == "lognormal" else -np.inf


def _compile_problem(problem: Problem, population: Population) -> CompiledProblem:
    """Compile the problem with own parameters in the scale of their distributions, and sigmas as parameters."""
    parameters = dict(problem.parameters)
    for name, individual in population.individual.items():
        guess = (
            _guess(problem, name, individual)
            if not isinstance(individual.typical, ca.SX)
            else _guess(problem, name, Individual())
        )
        if _scale(individual) == "log" and not guess > 0.0:
            remedy = "pass a positive one, or distribution='normal'"
            raise_if_mistakes(_WHERE, [f"the guess of the log-normal '{name}' is {guess:g}; {remedy}"])
        parameters[name] = Parameter(guess, scale=_scale(individual), local=True)
    return problem.replace(experiments=_with_sigmas(problem), parameters=parameters).posed


def _with_sigmas(problem: Problem) -> list[Experiment]:
    """Return the experiments in which unknown standard deviations are parameters, not eliminated.

    Elimination would give their optimum at the most probable own parameters, which does not maximise the likelihood of
    the population.
    """
    has_many_outputs = len(problem.posed.outputs) > 1
    sizes: dict[str, list[Array]] = {}
    unknown_sigmas: list[tuple[Experiment, dict[str, tuple[Any, UnknownSigma, str]]]] = []
    for e in problem.experiments:
        unknown_by_output: dict[str, tuple[Any, UnknownSigma, str]] = {}
        for output, (_, values) in e.data.items():
            noise = e.noise.get(output)
            if noise is None and (e.sigma is None or output not in e.sigma):
                sigma = UnknownSigma("all" if has_many_outputs else "")
                noise = Gaussian(sigma=sigma)
            elif noise is not None and isinstance(noise.sigma, UnknownSigma) and noise.sigma.guess is None:
                sigma = noise.sigma
            else:
                continue
            label = sigma.name or output
            unknown_by_output[output] = (noise, sigma, label)
            sizes.setdefault(label, []).append(np.abs(values[np.isfinite(values)]) if noise.in_unit_of_output
                                               else np.ones(1))  # fmt: skip
        unknown_sigmas.append((e, unknown_by_output))
    guess = {
        label: _SIGMA_GUESS_FRACTION * (float(np.median(np.concatenate(arrays))) or 1.0)
        for label, arrays in sizes.items()
    }

    def guessed(noise: Any, sigma: UnknownSigma, label: str) -> Any:
        return replace(noise, sigma=replace(sigma, guess=float(np.clip(guess[label], sigma.lower, sigma.upper))))

    return [
        e.with_changes(
            noise={**e.noise, **{o: guessed(*specification) for o, specification in unknown_by_output.items()}}
        )
        if unknown_by_output
        else e
        for e, unknown_by_output in unknown_sigmas
    ]


def _places(compiled_problem: CompiledProblem, local_names: Sequence[str]) -> tuple[Index, list[str]]:
    """Return the positions of own parameters in theta (n, m), and messages about experiments that lack one."""
    theta_index = {
        (q.symbol_name, q.experiment): j for j, q in enumerate(compiled_problem.quantities) if q.kind == "parameter"
    }
    places = np.array(
        [[theta_index.get((n, c.name), -1) for n in local_names] for c in compiled_problem.conditions], dtype=np.intp
    )
    missing = [
        f"'{c.name}' does not depend on local parameter '{n}'; fit it separately, or remove its own value of '{n}'"
        for c, row in zip(compiled_problem.conditions, places, strict=True)
        for n, place in zip(local_names, row, strict=True)
        if place < 0
    ]
    return places, missing


def _covariance(population: Population, local_names: tuple[str, ...]) -> Covariance:
    grouped = [tuple(sorted(local_names.index(n) for n in group)) for group in population.correlated]
    singletons = [(k,) for k in range(len(local_names)) if not any(k in group for group in grouped)]
    return Covariance(local_names, tuple(sorted([*grouped, *singletons])))


def _typical(
    population: Population, local_names: Sequence[str], upper: Sequence[Quantity], covariates: Sequence[str]
) -> ca.Function:
    """Build  (y of `upper`, covariates) -> mu, d mu / dy."""
    y = [ca.SX.sym(u.name) for u in upper]
    covariate_symbols = [ca.SX.sym(n) for n in covariates]
    natural = {u.name: ca.exp(s) if u.scale == "log" else s for u, s in zip(upper, y, strict=True)}
    natural |= dict(zip(covariates, covariate_symbols, strict=True))
    natural |= {n: ca.SX(_number(p)) for n, p in population.parameters.items() if p.fixed}
    mu: list[ca.SX] = []
    for name in local_names:
        individual = population.individual[name]
        if not isinstance(individual.typical, ca.SX):
            mu.append(y[[u.name for u in upper].index(name)])
            continue
        symbols = ca.symvar(individual.typical)
        replacements = ca.vertcat(*(natural[s.name()] for s in symbols))
        (typical,) = (
            ca.substitute([individual.typical], [ca.vertcat(*symbols)], [replacements])
            if symbols
            else [individual.typical]
        )
        mu.append(ca.log(typical) if individual.distribution == "lognormal" else typical)
    mu_vector, y_vector = ca.vertcat(*mu), ca.vertcat(*y)
    return ca.Function(
        "typical", [y_vector, ca.vertcat(*covariate_symbols)], [mu_vector, ca.densify(ca.jacobian(mu_vector, y_vector))]
    )


def _number(parameter: Parameter) -> float:
    value = read_real(parameter.value)
    assert value is not None
    return value


def _start_mistakes(question: CompiledPopulation) -> list[str]:
    """Return messages about typical values that are not finite or not differentiable at the guess."""
    mu, slopes = question.means(question.guess)
    steep = np.asarray(np.isfinite(slopes).all(axis=2), dtype=np.bool_)
    mistakes: list[str] = []
    for n, log, column, smooth in zip(question.individual_parameters, question.lognormal, mu.T, steep.T, strict=True):
        is_finite = np.isfinite(column)
        individual_name = question.individuals[int(np.argmin(is_finite & smooth))]
        if not is_finite.all():
            mistakes.append(
                f"the typical value of '{n}' in '{individual_name}' is undefined at the guess: it is not a "
                f"{'positive ' if log else ''}number; change the guesses, the expression or the covariates"
            )
        elif not smooth.all():
            remedy = "powers that are estimated are of positive covariates, such as (weight / 70) ** b"
            mistakes.append(
                f"the typical value of '{n}' in '{individual_name}' has no derivative at the guess; {remedy}"
            )
    return mistakes
