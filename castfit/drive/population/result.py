"""Result of a mixed-effects fit: the population, its individuals, and the uncertainty of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from castfit._support.arguments import flag_mistakes, is_one_of, read_level, read_names
from castfit._support.arrays import Array
from castfit._support.json_codec import check_shapes, load_record, read_json, write_record
from castfit._support.public_names import public
from castfit._support.renamed import accept_old_names, with_old_names
from castfit._support.reprs import join_limited, one_line
from castfit._support.status import InputError, Status, raise_if_mistakes, suggest, unknown_names
from castfit._support.text_tables import TextTable, format_interval, format_to_error
from castfit._support.views import views
from castfit.drive.population.compiled import CompiledPopulation, compile_population
from castfit.drive.population.search import EstimateErrors
from castfit.drive.population.spec import Population
from castfit.drive.run.run_result import RunResult
from castfit.integrate import IntegratorOptions
from castfit.problem.parameter_map import natural_value
from castfit.problem.problem import Problem
from castfit.result.estimate import Estimate, frame_of
from castfit.result.residuals import data_columns
from castfit.simulate.predictions import Prediction
from castfit.simulate.simulate import Times, simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMAT = 1  # of saved results
_MARKER = "castfit_mixed_effects"
# Shrinkage above which plots and correlations of individual values mislead  [Savic, Karlsson 2009].
_MAX_SHRINKAGE = 0.3


@dataclass(frozen=True)
class PopulationEstimate:
    """One estimated quantity of a population.

    name; value in natural scale; standard_error; interval at the result's confidence level; at_bound
    """

    name: str
    value: float
    standard_error: float
    interval: tuple[float, float]
    at_bound: bool = False

    @property
    def relative_error(self) -> float:
        """The standard error divided by the value, often printed in percent (RSE)."""
        return self.standard_error / abs(self.value) if self.value else np.nan


@dataclass(frozen=True)
class IndividualFit:
    """Estimates of one individual.

    parameters: the most probable own parameters given its data and the population (empirical Bayes estimates),
        natural scale.
    eta: deviations from the typical values, on the scale of their distribution.
    deviations: standard deviations of eta given its data, for the estimated population.
    neg2loglik: contribution to -2 log L.
    message: reason if the fit failed.
    """

    name: str
    parameters: Mapping[str, float]
    eta: Mapping[str, float]
    deviations: Mapping[str, float]
    neg2loglik: float
    success: bool = True
    message: str = ""

    def __repr__(self) -> str:
        parameter_text = ", ".join(f"{n} = {v:.4g}" for n, v in self.parameters.items())
        return one_line(f"IndividualFit('{self.name}': {parameter_text}{'' if self.success else '; ' + self.message})")


@with_old_names(seen="data_evaluation")
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class MixedEffectsResult(RunResult):
    """Result of `mixed_effects`.

    Attributes
    ----------
    status : Status
    message : str
        Summary of how the search ended, with remarks.
    question : CompiledPopulation
        The compiled problem.
    y : (n_y,) array
        Estimates in search scale.
    phi : (n, m) array
        Own parameters in search scale: logarithms of log-normal ones.
    spread : (n, m, m) array
        Their covariances given the data.
    parts : (n,) array
        -log of each individual's likelihood, all constants included.
    errors : Errors
        Covariances of `y`.
    left_out : mapping from str to str
        Individuals that were excluded, with reasons.
    unfinished : mapping from str to str
        Individuals whose fit did not converge, with reasons.
    history : tuple of float
        -2 log L by iteration.
    iterations, sweeps : int
        Iterations of the search, and simulations of all individuals with derivatives.
    time : float
        Seconds.
    confidence_level : float

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    >>> data = [[7.2, 5.1, 2.4], [6.1, 3.6, 1.4], [8.0, 6.7, 4.3], [7.5, 5.4, 3.0]]
    >>> animals = [cf.Experiment({"x": values}, [1.0, 2.0, 4.0], sigma=0.2) for values in data]
    >>> problem = cf.Problem(model, animals, parameters={"k": cf.Parameter(0.3, local=True)})
    >>> result = cf.mixed_effects(problem, cf.Population({"k": cf.Individual()}))
    >>> {name: round(value, 2) for name, value in result.values.items()}
    {'k': 0.32, 'omega(k)': 0.31}
    >>> result.individuals["experiment 2"]
    IndividualFit('experiment 2': k = 0.498)
    >>> bool(result["k"].interval[0] < 0.32 < result["k"].interval[1])
    True
    """

    status: Status
    message: str
    question: CompiledPopulation
    integrator: IntegratorOptions
    y: Array
    phi: Array
    spread: Array
    parts: Array
    errors: EstimateErrors
    data_evaluation: tuple[Array, Array, Array]
    expected: Array
    left_out: Mapping[str, str]
    unfinished: Mapping[str, str]
    history: tuple[float, ...]
    iterations: int
    sweeps: int
    time: float
    confidence_level: float

    @property
    def success(self) -> bool:
        """Whether the estimates maximise the likelihood of all individuals that were given."""
        return self.status.success and not self.left_out and not self.unfinished

    @property
    def names(self) -> tuple[str, ...]:
        """Population parameters, shared parameters (of the noise too), omegas and correlations."""
        return self.question.names

    @cached_property
    def values(self) -> dict[str, float]:
        """Estimates by name, natural scale."""
        return dict(zip(self.names, self.question.natural(self.y).tolist(), strict=True))

    @property
    def parameters(self) -> dict[str, float]:
        """Typical values and shared parameters by name, including parameters of the noise."""
        return {u.name: self.values[u.name] for u in self.question.upper}

    @property
    def omega(self) -> Array:
        """The covariance of own parameters between individuals, (m, m), on the scale of their distributions."""
        return self.question.omega_at(self.y)

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the estimates in natural scale, in the order of `names`; NaN where there is none."""
        return self._natural(self.errors.covariance)

    def _natural(self, covariance: Array) -> Array:
        slopes = self.question.natural_slopes(self.y)
        is_finite = np.isfinite(np.diag(covariance))
        natural_covariance = slopes @ np.where(np.isfinite(covariance), covariance, 0.0) @ slopes.T
        is_affected = (slopes[:, ~is_finite] != 0.0).any(axis=1)
        natural_covariance[is_affected] = np.nan
        natural_covariance[:, is_affected] = np.nan
        return natural_covariance

    @cached_property
    def standard_errors(self) -> dict[str, float]:
        """Standard errors by name, natural scale, from the curvature of the likelihood; NaN at bounds."""
        return dict(zip(self.names, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    @cached_property
    def robust_standard_errors(self) -> dict[str, float]:
        """Sandwich standard errors from curvature and scores.

        They are valid for misspecified models, but only with many individuals.
        """
        return dict(zip(self.names, np.sqrt(np.diag(self._natural(self.errors.robust))).tolist(), strict=True))

    @accept_old_names(level="confidence_level")
    def confidence_intervals(self, confidence_level: float | None = None) -> dict[str, tuple[float, float]]:
        """Compute confidence intervals by name: normal in the logarithm for positive values, in atanh for correlations.

        Parameters
        ----------
        confidence_level : float, optional
            By default that of the result.
        """
        level = read_level("confidence_intervals", confidence_level, self.confidence_level)
        z = float(scipy.special.ndtri(0.5 + 0.5 * level))
        k, m = len(self.question.upper), self.question.m
        intervals: dict[str, tuple[float, float]] = {}
        for j, (name, value) in enumerate(self.values.items()):
            error = z * self.standard_errors[name]
            if j < k and not self.question.log[j]:
                intervals[name] = value - error, value + error
            elif j < k + m:
                intervals[name] = value * float(np.exp(-error / value)), value * float(np.exp(error / value))
            else:
                center, width = float(np.arctanh(value)), error / (1.0 - value**2)
                intervals[name] = float(np.tanh(center - width)), float(np.tanh(center + width))
        return intervals

    def __getitem__(self, name: str) -> PopulationEstimate:
        """Return an estimate with its standard error and interval."""
        if name not in self.values:
            raise InputError("result", [f"'{name}' is not estimated: {suggest(str(name), self.names)}"])
        interval = self.confidence_intervals()[name]
        return PopulationEstimate(name, self.values[name], self.standard_errors[name], interval, name in self.at_bounds)

    def __iter__(self) -> Iterator[PopulationEstimate]:
        """Iterate over all estimates."""
        return (self[name] for name in self.names)

    @cached_property
    def at_bounds(self) -> tuple[str, ...]:
        """Names of estimates at a bound; an omega at its bound means that the data show no variation."""
        lower, upper = self.question.bounds
        is_at_bound = (self.y <= lower) | (self.y >= upper)
        return tuple(n for n, is_active in zip(self.names, is_at_bound, strict=True) if is_active)

    # Likelihood

    @property
    def neg2loglik(self) -> float:
        """-2 log L by Laplace's approximation, all constants included: R's nlme prints ``logLik`` = -half of it."""
        return 2.0 * float(self.parts.sum())

    @property
    def objective_nonmem(self) -> float:
        """The value -2 log L without n log(2 pi), the objective function value of NONMEM's FOCE with interaction."""
        return self.neg2loglik - self.n_data * float(np.log(2.0 * np.pi))

    @property
    def n_data(self) -> int:
        """Number of measured values."""
        return self.question.problem.n_data

    @property
    def n_individuals(self) -> int:
        """Number of individuals."""
        return self.question.n

    @property
    def aic(self) -> float:
        """-2 log L + 2 k with k estimated quantities, without those at a bound."""
        return self.neg2loglik + 2.0 * (len(self.names) - len(self.at_bounds))

    @property
    def bic(self) -> float:
        """-2 log L + k log n with the number of measured values n, as in R's nlme, and k as in `aic`."""
        return self.neg2loglik + (len(self.names) - len(self.at_bounds)) * float(np.log(self.n_data))

    # Individuals

    @cached_property
    def typical(self) -> Array:
        """Typical values of each individual, by its covariates, natural scale, (n, m)."""
        return natural_value(self.question.means(self.y)[0], self.question.lognormal)

    @cached_property
    def etas(self) -> Array:
        """Deviations of own parameters from typical values, on the scale of their distributions, (n, m)."""
        return self.phi - self.question.means(self.y)[0]

    @cached_property
    def individuals(self) -> dict[str, IndividualFit]:
        """Fits of all individuals by name, including excluded ones."""
        local_names = self.question.individual_parameters
        natural = natural_value(self.phi, self.question.lognormal)
        deviations = np.sqrt(np.einsum("nii->ni", self.spread))

        def by_name(row: Array) -> dict[str, float]:
            return dict(zip(local_names, row.tolist(), strict=True))

        fits = {
            name: IndividualFit(
                name,
                by_name(natural[i]),
                by_name(self.etas[i]),
                by_name(deviations[i]),
                2.0 * float(self.parts[i]),
                name not in self.unfinished,
                self.unfinished.get(name, ""),
            )
            for i, name in enumerate(self.question.individuals)
        }
        nan_values = dict.fromkeys(local_names, np.nan)
        return fits | {
            n: IndividualFit(n, nan_values, nan_values, nan_values, np.nan, False, reason)
            for n, reason in self.left_out.items()
        }

    @cached_property
    def shrinkage(self) -> dict[str, float]:
        """Shrinkage of individual values towards the typical value: 1 - sd(eta) / omega of each own parameter.

        Near 0, the data of each individual determine its value; near 1, they carry no information, and its value is
        the typical one.
        """
        scatter = self.etas.std(axis=0, ddof=1)
        omega = np.sqrt(np.diag(self.omega))
        return dict(zip(self.question.individual_parameters, (1.0 - scatter / omega).tolist(), strict=True))

    @property
    def residual_shrinkage(self) -> float:
        """Shrinkage of residuals, 1 - sd of weighted residuals: large if predictions follow the errors of the data."""
        residual = self.data_evaluation[2][np.isfinite(self.data_evaluation[2])]
        return 1.0 - float(residual.std(ddof=1)) if residual.size > 1 else np.nan

    @cached_property
    def table(self) -> dict[str, NDArray[Any]]:
        """One row per measured value, as columns, for instance for ``pandas.DataFrame(result.table)``.

        ``experiment``, ``output``, ``time``, ``replicate``, ``value``, ``population`` (prediction at typical values),
        ``individual`` (at the individual's own), ``sigma``, ``residual`` (value - individual prediction, in sigmas).
        """
        prediction, sigma, residual = self.data_evaluation
        return {
            **data_columns(self.question.problem),
            "population": self.expected,
            "individual": prediction,
            "sigma": sigma,
            "residual": residual,
        }

    @property
    def individual_table(self) -> dict[str, NDArray[Any]]:
        """One row per individual, as columns: its name, own parameters, etas, their deviations, -2 log L."""
        rows = [self.individuals[n] for n in self.question.individuals]
        local_names = self.question.individual_parameters
        return {
            "individual": np.array([row.name for row in rows]),
            **{n: np.array([row.parameters[n] for row in rows]) for n in local_names},
            **{f"eta({n})": np.array([row.eta[n] for row in rows]) for n in local_names},
            **{f"sd(eta({n}))": np.array([row.deviations[n] for row in rows]) for n in local_names},
            "-2 log L": np.array([row.neg2loglik for row in rows]),
        }

    def predict(
        self, times: Times = None, *, individuals: str | Iterable[str] | None = None, typical: bool = False
    ) -> Prediction:
        """Simulate individuals.

        Parameters
        ----------
        times : (n,) array, or mapping from individual to array, optional
            By default the measured ones.
        individuals : str or sequence of str, optional
            By default all.
        typical : bool
            Whether with the typical values of somebody with their covariates, instead of their own.

        Returns
        -------
        dict
            Per individual ``{"time": (n,), output: (n,), ...}``.
        """
        mistakes = flag_mistakes(typical=typical)
        requested_names = read_names("individuals", individuals, self.question.individuals, mistakes)
        mistakes += unknown_names("'{}' is no individual", requested_names, self.question.individuals)
        raise_if_mistakes("predict", mistakes)
        phi = self.question.means(self.y)[0] if typical else self.phi
        theta = self.question.theta(phi, self.y[self.question.of_shared])
        simulation = simulate(
            self.question.problem.with_experiments(requested_names), theta, times, integrator=self.integrator
        )
        hidden = self.question.problem.spreads
        return Prediction(
            (name, {n: v for n, v in columns.items() if n not in hidden}) for name, columns in simulation.items()
        )

    def plot(self, path: str | Path | None = None, *, individuals: Sequence[str] | None = None) -> Figure:
        """Plot data with individual and population predictions, a panel for each individual (the first 12)."""
        return views().plots.individuals(self, path, individuals=individuals)

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write estimates, individuals and figures as one HTML file that needs no network.

        Parameters
        ----------
        path : str or Path
            Where to write the page; it ends in ``.html``.
        **options
            ``title=`` and ``notes=`` stand above the page.

        Returns
        -------
        Path
            Path of the file.
        """
        return views().reports.population_report(self, path, **options)

    def to_frame(self) -> Any:
        """Return the estimates as a pandas DataFrame, one row for each, as `Result.to_frame` does.

        ``pandas.DataFrame(result.individual_table)`` has one row for each individual.

        Returns
        -------
        pandas.DataFrame
            Columns ``estimate``, ``standard_error``, ``lower``, ``upper``, ``verdict`` and ``unit``.
        """
        return frame_of(
            [
                Estimate(
                    e.value, name=e.name, standard_error=e.standard_error, interval=e.interval,
                    confidence_level=self.confidence_level, verdict="at its bound" if e.at_bound else "",
                )
                for e in self
            ]
        )  # fmt: skip

    # Files

    def save(self, path: str | Path) -> None:
        """Write everything but the problem and the population as JSON."""
        digests = self.question.digests
        write_record(path, _MARKER, FORMAT, self, without=("question",), question=digests)

    @classmethod
    def load(cls, path: str | Path, problem: Problem, population: Population) -> MixedEffectsResult:
        """Read a saved result, together with the problem and the population that it answers.

        Raises
        ------
        InputError
            If the file is no saved result of a mixed-effects fit, is damaged, or answers another question.
        """
        content: Any = read_json("MixedEffectsResult.load", path)
        entries = cast("dict[str, Any]", content) if isinstance(content, dict) else dict[str, Any]()
        mappings: list[Any] = [v if isinstance(v := entries.get(n), dict) else {} for n in ("left_out", "question")]
        left_out, digests = mappings
        compile_population(problem, population)  # which finds mistakes in both
        names = [e.name for e in problem.experiments]
        retained_indices = [i for i, name in enumerate(names) if name not in left_out]
        question = compile_population(
            problem.replace(experiments=[problem.experiments[i] for i in retained_indices]),
            population.of_some(names, retained_indices),
        )
        result: MixedEffectsResult = load_record(cls, path, _MARKER, FORMAT, question=question)
        differences = [n for n, value in question.digests.items() if not is_one_of(digests.get(n), value)]
        remedy = "differs from the saved one; pass the problem and the population that were fitted"
        raise_if_mistakes("MixedEffectsResult.load", [f"the {n} {remedy}" for n in differences])
        return result

    def use_all(self) -> None:
        """Compute all that the file determines; an error shows that its entries do not fit together."""
        size, n, m = self.question.n_y, self.question.n, self.question.m
        data = [(part, (self.n_data,)) for part in (*self.data_evaluation, self.expected)]
        errors = [(part, (size, size)) for part in (self.errors.covariance, self.errors.robust)]
        estimates = [(self.y, (size,)), (self.phi, (n, m)), (self.spread, (n, m, m)), (self.parts, (n,))]
        arrays: list[tuple[Array, tuple[int, ...]]] = [*data, *errors, *estimates]
        check_shapes(("an array", array, shape) for array, shape in arrays)
        self.summary()
        self.individual_table  # noqa: B018

    # Text

    def __repr__(self) -> str:
        return one_line(
            f"MixedEffectsResult({self.status.value}; {self.n_individuals} individuals, {self.n_data} values; "
            f"-2 log L = {self.neg2loglik:.6g}; {join_limited(self.names, 40)})"
        )

    def summary(self) -> str:
        """Return the text that `print` shows."""
        blocks = ([*part.lines, ""] if isinstance(part, TextTable) else [part] for part in self.text_parts)
        return "\n".join(line for lines in blocks for line in lines)

    @property
    def text_parts(self) -> list[TextTable | str]:
        """The tables and messages, in their order."""
        shrinks = {f"omega({n})": f"{100 * s:.0f} %" for n, s in self.shrinkage.items()}

        def show_if_finite(estimate: PopulationEstimate, cell: str) -> str:
            return cell if np.isfinite(estimate.standard_error) else ""

        estimates = TextTable.from_items(
            self,
            ("", lambda e: e.name),
            (">estimate", lambda e: format_to_error(e.value, e.standard_error)),
            (">std. error", lambda e: show_if_finite(e, f"{e.standard_error:.3g}")),
            (">rel. error", lambda e: show_if_finite(e, f"{100 * e.relative_error:.3g} %")),
            (
                f"{100 * self.confidence_level:g} % interval",
                lambda e: show_if_finite(e, format_interval(e.interval, e.value, " to ")),
            ),
            (">shrinkage", lambda e: shrinks.get(e.name, "")),
            ("", lambda e: "at its bound" if e.at_bound else ""),
        )
        text_parts: list[TextTable | str] = [
            f"mixed effects, {self.n_individuals} individuals, {self.n_data} measurements: {self.status.value}, "
            f"{self.iterations} iterations, {self.time:.1f} s",
            f"{self.message}\n",
            estimates,
            f"-2 log L = {self.neg2loglik:.4f}   AIC {self.aic:.2f}   BIC {self.bic:.2f}   NONMEM objective "
            f"{self.objective_nonmem:.4f}",
            f"shrinkage of residuals {100 * self.residual_shrinkage:.0f} %",
        ]
        shrunken_names = [
            n for n, s in self.shrinkage.items() if s > _MAX_SHRINKAGE and f"omega({n})" not in self.at_bounds
        ]
        if shrunken_names:
            text_parts.append(
                f"High shrinkage: the individual values of {', '.join(shrunken_names)} are close to the typical value, "
                "because the data of an individual constrain them weakly. Plots of these values against covariates are "
                "misleading."
            )
        return text_parts
