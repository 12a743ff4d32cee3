"""The result of a fit: what it holds, its table, prediction, and saving; `castfit.fit.build_result` builds it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import MISSING, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.arguments import (
    is_count,
    is_one_of,
    level_rule,
    option_mistakes,
    read_level,
    read_real,
    rng_mistakes,
    shorten_repr,
)
from castfit._support.arrays import Array, Mask
from castfit._support.json_codec import decode_object, read_json, rebuild_fields, to_jsonable
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.renamed import accept_old_names, warn_renamed, with_old_names
from castfit._support.reprs import join_limited, one_line
from castfit._support.status import InputError, Status, raise_if_mistakes, suggest
from castfit._support.text_tables import align_columns, format_interval, format_to_error
from castfit._support.ties import first_argmax
from castfit._support.views import views
from castfit._support.whole_files import write_atomically
from castfit.densities.noise.correlation import CorrelationEstimates
from castfit.integrate import IntegratorOptions
from castfit.problem import fingerprint
from castfit.problem.compiled_problem import CHI2, LIKELIHOOD, LOSS, PETAB
from castfit.problem.observables import called_now
from castfit.problem.problem import Posable, kind_mistakes, with_correlations, with_nodes, with_smoothness
from castfit.problem.validation import noisy_mistakes
from castfit.result.block_matrix import BlockMatrix
from castfit.result.constraint_table import ConstraintTable
from castfit.result.covariance import MAX_WRITTEN_OUT_QUANTITIES, quantile
from castfit.result.diagnostics import CORRELATED_ERRORS_REMEDY, PROCESS_NOISE_REMEDY, Diagnostics, diagnose
from castfit.result.estimate import Estimate, frame_of
from castfit.result.goodness_of_fit import EXACT_UNEXPLAINED_VARIANCE, UNKNOWN, Criteria, Goodness, unexplained_message
from castfit.result.identifiability import NUMERICAL_ERROR_SHARE, Identifiability
from castfit.result.influence import Influence, influence, named_influential
from castfit.result.residuals import (
    ResidualTable,
    along_values,
    residual_table,
    scores,
    unbiased_sigmas,
    whiten_residuals,
)
from castfit.simulate.predictions import Prediction
from castfit.simulate.simulate import Times, TrajectoryNodes, predict

if TYPE_CHECKING:
    import casadi as ca
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.result.bands import ParameterDraws
    from castfit.result.confidence_region import ConfidenceRegion
    from castfit.simulate.output_sensitivities import OutputSensitivities


_CHI2_RTOL = 1e-9  # Relative difference up to which the cost and chi2 are the same number.
_MAX_EXPERIMENT_ROWS = 12  # experiments up to which each has a row of its own in tables
_MAX_FAMILY_ROWS = 3  # Rows of a family in a table that omits some experiments.
# Version of the file format of saved results.  Older formats are read: format 1 has no goodness of fit, format 2 other
# names of fields, and the residuals of formats before 4 are predicted minus observed.
FORMAT = 4


@with_old_names(
    described="is_adequate",
    refuted="is_contradicted",
    ended="with_status",
    answering="with_known_problem",
    found_by="method",
    to_plain="to_dict",
)
@public("castfit")
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result:
    """Result of a fit, with the same content for every transcription and solver.

    Values are in natural scale unless said otherwise.  In arrays over the estimated quantities they stand in the order
    of `names`, in arrays over the data by experiment, time, output.

    Attributes
    ----------
    status : Status
        How the solve ended.
    message : str
        How the solve ended, in words.
    names : tuple of str
        The estimated quantities.
    theta : (n_theta,) array
        Estimates in search scale.
    log : (n_theta,) array of bool
        Which entries of theta are logarithms.
    parameters, initial_states : dict
        Estimates by name.
    bounds : (n_theta, 2) array
        Lower and upper bounds of the estimated quantities.
    active : dict
        ``"lower"`` or ``"upper"`` for each variable that a bound holds, nodes included.
    cost : float
        What was minimised: ``chi2 / 2`` where standard deviations are known; where they share an unknown factor
        ``n_data / 2 * log(chi2 / n_data)`` plus half the squares of the priors' residuals.
    measure : str
        Which number tells how good this is: "chi2" where standard deviations are known, "-2 log L" elsewhere, "PEtab's
        objective" where the problem was read from PEtab files, "2 loss" where a loss is no likelihood (`Cauchy`).
    objective : float
        That number: `chi2`, `neg2loglik`, or half of the latter, the negative log likelihood of data and priors.
    chi2 : float
        Sum of squared weighted residuals, priors included; of the data alone where the weights' factor is unknown.
    n_data : int
        Number of measured values.
    residuals : (n_data,) array
        (data - model) / sigma, with sigma as it was given, 1 if it was not: positive for a value above the curve.
    normalised_residuals : (n_data,) array
        Residuals of variance 1 if the model is right; NaN where sigma could not be estimated.
    predictions : (n_data,) array
        What the model says of every measured value.
    spreads : (n_data,) array
        Sigma, scale or dispersion of every measured value, as given or computed; 1 where unknown and eliminated.
    deviations : (n_data,) array
        Standard deviation of every measured value by its noise model, in the unit of the output.
    gaps : float
        Largest continuity defect of the trajectory, in units of the state's typical magnitude.
    trajectories : dict
        Per experiment the `TrajectoryNodes`: times (K,) and states (K, n_x) at the start of every stage.
    goodness : Goodness
        Whether the model describes the data.
    identifiability : Identifiability
        A verdict on every quantity.
    constraints : ConstraintTable
        What constraints did to the estimates, and what each costs: ``print(result.constraints)``.
    dof : int
        Number of values and priors minus the number of directions that they determine.
    neg2loglik : float
        -2 log likelihood with all constants; with unknown noise at its maximum likelihood.
    neg2logprior : float
        The part of `neg2loglik` that is the priors'.
    n_estimated : float
        How many numbers the data determine, unknown deviations of the noise included; see `criteria`.
    aic, bic : float
        Akaike's and Schwarz's (Bayesian) information criteria, of the data; NaN where a loss is no likelihood.
    standard_errors : dict
        Square roots of the covariance's diagonal, numerical errors included.
    numerical_errors : dict
        The part of the standard errors that is due to the finite accuracy of the integration.
    covariance, correlation : (n_theta, n_theta) array
        NaN where a bound holds an estimate, inf on the diagonal of what is not identifiable.  Of more than 500
        quantities in many experiments a `BlockMatrix`, as is `information`.
    information : (n_theta, n_theta) array
        Fisher's information of data and priors on theta, search scale, active bounds left aside.
    jacobian : (n_data + n_prior, n_theta) array
        Derivative of `residuals` with respect to theta along the model's equations, so that of predictions with the
        opposite sign; rows of priors, (mean - theta) / deviation, last.  Of more than 500 quantities in many
        experiments a sparse array of SciPy.
    gradient : (n_theta,) array
        Derivative of the cost with respect to theta.
    rank : int
        Number of directions of theta that data and priors determine; -1 if it is not known.
    root : (n_theta, n_theta) array
        root @ root.T is the covariance of what is determined, search scale; see `confidence_region`.
    undetermined : (k, n_theta) array
        Directions of theta that data and priors leave open, search scale.
    leverage : (n_data,) array
        How much of each measured value's own error the fit follows, from 0 to 1.
    noise : float
        Unbiased estimate of the factor on the standard deviations of the data (their value where none was given), on
        which standard errors are based; 1 if they are taken as they are; NaN where data do not share one factor.
        Tables show the most likely value, ``sigmas["sigma"]``.
    sigmas, sigma_errors : dict
        The most likely values of unknown standard deviations that were eliminated, as ``sigma(y)``, and their standard
        errors; others are parameters.
    absolute_sigma : bool
        Whether standard deviations are taken as they are.
    inflation : float
        The unbiased variance of an unknown sigma that all data share, in units of the most likely one; else 1.
    smoothness : dict
        The weight of the roughness of each smooth estimated input, as given or chosen.
    effective : dict
        Effective degrees of freedom of each smooth estimated input, in all experiments together: how many of its
        values the data determine.
    errors : CorrelationEstimates or None
        How errors of measurement depend on each other, where that is unknown: ``times`` by output, and the `covariance`
        of the outputs `joint`; None where all errors are independent.
    interval_checks : dict
        By name, "checked" if simulations at both ends of the 95 % interval confirm it, "approximate" if -2 log L
        differs there from its limit by more than a factor of 2; the intervals of other quantities are linear.
    confidence_level : float
        Confidence level of the intervals in the table.
    transcription, solver : str
        Their labels.
    integrator : IntegratorOptions
        Options with which `predict` integrates.
    iterations : int
        Number of iterations, those of all attempts.
    evaluations, failures : dict
        Number of evaluations by kind, and of failed ones by cause.
    time : float
        Seconds that the fit took.
    history : tuple of dict
        One entry per iteration.
    versions : mapping
        Versions of castfit, CasADi, NumPy and Python, and the processor kernel of the BLAS.
    question : mapping
        Hashes of model and data, by what they are of, in a result that was loaded.
    strategies : tuple of str
        What was tried, in this order, until something described the data; the first search is "the start".
    method : tuple or None
        The transcription and the solver themselves, by which `bootstrap` and others fit again; None in a result that
        was loaded.
    problem : Problem or None
        None in a result that was loaded; see `with_problem`.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> result
    Result(converged: -2 log L = 45.973, k1 = 4.577e-06, k2 = 0.0002796; single shooting)
    >>> result["k1"]
    k1 = 4.577e-06 ± 1.6e-07, 95 % interval [4.235e-06, 4.919e-06] (assuming that the model is correct: well determined)
    >>> {name: float(f"{error:.2g}") for name, error in result.standard_errors.items()}
    {'k1': 1.6e-07, 'k2': 5.5e-05}
    >>> later = result.predict([50.0, 100.0])["experiment 1"]
    >>> later["z"].round(2)
    array([47.43, 48.64])
    """

    status: Status
    message: str
    names: tuple[str, ...]
    theta: Array
    log: Mask
    parameters: dict[str, float]
    initial_states: dict[str, float]
    bounds: Array = field(default_factory=lambda: np.empty((0, 2)))
    active: dict[str, str]
    cost: float
    chi2: float
    n_data: int
    residuals: Array
    normalised_residuals: Array = field(default_factory=lambda: np.empty(0))
    predictions: Array = field(default_factory=lambda: np.empty(0))
    spreads: Array = field(default_factory=lambda: np.empty(0))
    deviations: Array = field(default_factory=lambda: np.empty(0))
    gaps: float
    trajectories: dict[str, TrajectoryNodes]
    goodness: Goodness
    identifiability: Identifiability
    constraints: ConstraintTable = field(default_factory=ConstraintTable)
    dof: int
    neg2loglik: float
    neg2logprior: float = 0.0
    n_estimated: float = np.nan
    aic: float
    bic: float
    standard_errors: dict[str, float]
    numerical_errors: dict[str, float]
    covariance: Array
    correlation: Array
    information: Array = field(default_factory=lambda: np.empty((0, 0)))
    jacobian: Array
    gradient: Array
    rank: int = -1
    root: Array = field(default_factory=lambda: np.empty((0, 0)))
    undetermined: Array = field(default_factory=lambda: np.empty((0, 0)))
    leverage: Array = field(default_factory=lambda: np.empty(0))
    noise: float
    sigmas: dict[str, float] = field(default_factory=dict[str, float])
    sigma_errors: dict[str, float] = field(default_factory=dict[str, float])
    absolute_sigma: bool
    inflation: float = 1.0
    smoothness: dict[str, float] = field(default_factory=dict[str, float])
    effective: dict[str, float] = field(default_factory=dict[str, float])
    errors: CorrelationEstimates | None = None
    interval_checks: dict[str, str] = field(default_factory=dict[str, str])
    confidence_level: float
    transcription: str
    solver: str
    integrator: IntegratorOptions
    iterations: int
    evaluations: dict[str, int]
    failures: dict[str, int]
    time: float
    history: tuple[dict[str, float], ...]
    versions: Mapping[str, str]
    question: Mapping[str, str] = field(default_factory=dict[str, str])
    strategies: tuple[str, ...] = ()
    measure: str = LIKELIHOOD
    method: tuple[Any, Any] | None = None
    problem: Posable | None = None

    @property
    def solution(self) -> Result:
        """The result itself; castfit 0.2 kept where the search ended here."""
        return self

    @property
    def statistics(self) -> Result:
        """The result itself; castfit 0.2 kept what the data say about the estimates here."""
        return self

    @property
    def provenance(self) -> Result:
        """The result itself; castfit 0.2 kept how it came about here."""
        return self

    @property
    def success(self) -> bool:
        """Whether this is a solution; if not it is the best point so far, and there are no standard errors."""
        return self.status.success

    @property
    def is_adequate(self) -> bool:
        """Whether the fit succeeded and the model describes the data; see `goodness`."""
        return self.success and self.goodness.described

    @cached_property  # every estimate asks for it
    def is_contradicted(self) -> bool:
        """Whether this solution shows that the model is wrong, so that its intervals are not valid.

        Either the model does not describe the data, or residuals have a shown autocorrelation; see `diagnostics`.
        """
        return _refuted(self, _summary(self))

    @property
    def determination(self) -> str:
        """Sentence of `identifiability` on all quantities together, conditional if the model is `refuted`."""
        return _determination(self, self.is_contradicted)

    @property
    def objective(self) -> float:
        """Objective by which the fit is reported and compared, in the `measure` of its kind of problem."""
        return self.chi2 if self.measure == CHI2 else self.neg2loglik * (0.5 if self.measure == PETAB else 1.0)

    @property
    def criteria(self) -> Criteria:
        """Information criteria of the data: AIC, AICc, BIC, and what they are made of."""
        k = self.n_estimated
        if np.isnan(k):  # saved by an earlier version, which counted so
            k = 0.5 * (self.aic - self.neg2loglik)
        return Criteria(self.neg2loglik - self.neg2logprior, self.n_data, k)

    @property
    def has_criteria(self) -> bool:
        """Whether information criteria are defined: the fit is an optimum of a likelihood and leaves some noise.

        With unknown sigma, as many quantities as data reproduce the data, and the likelihood is undefined.
        """
        return self.measure != LOSS and self.success and (self.absolute_sigma or self.dof > 0)

    @property
    def aicc(self) -> float:
        """Akaike's information criterion, corrected for few data."""
        return self.criteria.aicc

    @property
    def values(self) -> dict[str, float]:
        """All estimates by name, in the order of `names`."""
        all_values = {**self.parameters, **self.initial_states}
        return {name: all_values[name] for name in self.names}

    def __getitem__(self, name: str) -> Estimate:
        """Return an estimate by name: the number, its standard error, its interval, its verdict.

        Parameters
        ----------
        name : str
            One of `names`, or of `sigmas`.

        Raises
        ------
        InputError
            If nothing of that name was estimated.
        """
        name = called_now(str(name), self.names)
        estimated = name in self.parameters or name in self.initial_states
        if not estimated and name not in self.sigmas:
            known_names = dict.fromkeys((*self.names, *self.sigmas))
            raise_if_mistakes("result", [f"'{name}' was not estimated: {suggest(str(name), known_names)}"])
        return self.build_estimate(
            name, self.confidence_intervals() if estimated else {}, contradicts_model=self.is_contradicted
        )

    def build_estimate(
        self, name: str, intervals: Mapping[str, tuple[float, float]], *, contradicts_model: bool
    ) -> Estimate:
        """Build the estimate of a quantity, or of an eliminated sigma, which is not in `intervals`."""
        estimated = name in intervals
        unit = "" if self.problem is None else self.problem.posed.unit(name)
        if estimated:
            interval, error = intervals[name], self.standard_errors[name]
            verdict_text = self.identifiability[name].sentence
        else:
            interval, error, verdict_text = (
                _sigma_interval(self, name),
                self.sigma_errors[name],
                "noise, maximum likelihood",
            )
        verdict_text = f"assuming that the model is correct: {verdict_text}" if contradicts_model else verdict_text
        values = self.sigmas if not estimated else self.parameters if name in self.parameters else self.initial_states
        return Estimate(
            values[name],
            name=name,
            standard_error=error,
            interval=interval,
            confidence_level=self.confidence_level,
            verdict=verdict_text,
            unit=unit,
        )

    def __contains__(self, name: object) -> bool:
        """Whether something of that name was estimated."""
        return name in self.names or name in self.sigmas

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the estimates."""
        return iter(self.names)

    @accept_old_names(level="confidence_level")
    def confidence_intervals(self, confidence_level: float | None = None) -> dict[str, tuple[float, float]]:
        """Return the interval of each estimate.

        Intervals are symmetric in search scale, so the interval of a quantity on a logarithmic scale stays positive.
        Intervals are not clipped at bounds.  They use Student's t with `dof` degrees of freedom if the noise is
        estimated, and the normal distribution if it is known.  If a bound is active, the linear approximation includes
        points at which the quantity leaves its bound, and the intervals are not symmetric.

        Parameters
        ----------
        confidence_level : float, optional
            By default the result's `confidence_level`.
        """
        factor = self._quantile(read_level("confidence_intervals", confidence_level, self.confidence_level))
        out: dict[str, tuple[float, float]] = {}
        ends = None
        if self.success and any(name in self.active for name in self.names) and np.isfinite(factor):
            from castfit.result.interval_ends import interval_ends  # most fits have no active bound

            ends = interval_ends(self, factor)
        for j, ((name, value), log) in enumerate(zip(self.values.items(), self.log, strict=True)):
            reach = factor * self.standard_errors[name]
            if ends is not None:
                out[name] = ends.natural(self, j)
            elif log and value == 0.0:  # its logarithm is an estimate, but no number is that small
                out[name] = (np.nan, np.nan)
            elif log:
                with np.errstate(over="ignore"):
                    out[name] = (float(value * np.exp(-reach / value)), float(value * np.exp(reach / value)))
            else:
                out[name] = (value - reach, value + reach)
        return out

    @accept_old_names(level="confidence_level")
    def confidence_region(self, confidence_level: float | None = None) -> ConfidenceRegion:
        """Return the ellipsoid in which the quantities lie together: its axes, the boxes about it, in words.

        Parameters
        ----------
        confidence_level : float, optional
            By default the result's `confidence_level`.

        Returns
        -------
        ConfidenceRegion
            ``print`` shows how well each quantity is known by itself, together with the others, and if the others were
            known, and which combinations of quantities are known best and worst.

        Raises
        ------
        InputError
            For a fit that failed.
        """
        from castfit.result.confidence_region import confidence_region  # most fits are not asked for it

        chosen = read_level("confidence_region", confidence_level, self.confidence_level)
        if not self.names:
            raise InputError("confidence_region", ["no confidence region: nothing is estimated"])
        if not self.success:
            raise InputError(
                "confidence_region", ["no confidence region: the fit failed, so the covariance is unknown"]
            )
        return confidence_region(self, chosen)

    @accept_old_names(level="confidence_level")
    def predict(
        self,
        times: Times = None,
        *,
        outputs: Mapping[str, ca.SX] | None = None,
        bands: str | ParameterDraws | None = None,
        noise: bool = False,
        confidence_level: float | None = None,
        rng: int | np.random.Generator = 0,
        workers: int | Executor = 1,
    ) -> Prediction:
        """Evaluate all outputs of the model, and any other expression, integrating anew from every node.

        Parameters
        ----------
        times : (n,) array, or mapping from experiment to array, optional
            By default the measured times.
        outputs : mapping from name to expression, optional
            What else to evaluate: CasADi expressions of states, parameters, inputs, outputs and time, matched by name.
        bands : {None, "linear", "profile"}, BootstrapResult or SampleResult
            Whether to add limits between which the prediction lies: "linear" from the covariance of the estimates,
            "profile" from a profile of every value by itself (some constrained fits each; by collocation), or quantiles
            of the predictions of all draws of a bootstrap or a sampler.
        noise : bool
            Whether the limits are those of a new measured value, its noise included.
        confidence_level : float, optional
            Probability that the limits enclose, by default the result's `confidence_level`.
        rng : int or numpy.random.Generator
            For the noise about the predictions of draws.
        workers : int or concurrent.futures.Executor
            For bands="profile": 1 follows profiles in this process, n in n processes; a script then needs
            ``if __name__ == "__main__":``.

        Returns
        -------
        dict
            Per experiment ``{"time": (n,), output: (n,), ...}``, where ``found["y"]`` does for
            ``found["experiment 1"]["y"]`` if there is but one; with bands also ``"output lower"`` and
            ``"output upper"``: infinite where something that is not identifiable moves the output, NaN for the noise of
            outputs of which none is known.

        Raises
        ------
        InputError
            For a loaded result without its problem, for times outside the experiment, or draws of another fit.
        SimulationError
            If the integration stops, as it may after a fit that failed.
        """
        from castfit.result.bands import bands_mistakes, deviation, linear_bands, quantile_bands, read_outputs

        problem = self._owner("predict")
        level = self.confidence_level if confidence_level is None else read_real(confidence_level)
        mistakes = option_mistakes(
            ("noise", noise, is_one_of(noise, True, False), "pass True or False"),
            level_rule(confidence_level, level),
        )
        mistakes += [*bands_mistakes(bands, self.names), *rng_mistakes(rng)]
        is_profile, is_serial = is_one_of(bands, "profile"), is_one_of(workers, 1)
        mistakes += option_mistakes(
            ("workers", workers, is_serial or isinstance(workers, Executor) or is_count(workers, 1),
             "pass a number of processes or a concurrent.futures.Executor"),
            ("workers", workers, is_serial or is_profile, "it has an effect only with bands='profile'; remove it"),
        )[:1]  # fmt: skip
        extra_outputs, output_mistakes = read_outputs(outputs, problem.posed.model)
        mistakes += output_mistakes
        if noise is True and bands is None:
            mistakes.append("noise=True widens bands and needs bands='linear' or bands='profile'")
        if confidence_level is not None and bands is None:
            mistakes.append("confidence_level applies to bands; set bands='linear' or bands='profile'")
        if bands is not None and not self.success:
            mistakes.append("no bands: the fit failed, so the covariance is unknown")
        raise_if_mistakes("predict", mistakes)
        assert level is not None
        compiled_problem = problem.posed.with_outputs(extra_outputs)
        nodes = [self.trajectories[condition.name] for condition in problem.conditions]
        prediction = predict(compiled_problem, self.theta, nodes, times=times, integrator=self.integrator)
        if bands is None:
            return prediction
        sigmas = unbiased_sigmas(compiled_problem, self.residuals, self.normalised_residuals) if noise else {}
        if isinstance(bands, str):
            of_values = partial(deviation, sigmas, compiled_problem) if noise and not is_profile else None
            linear_arguments = (self.theta, self.covariance, compiled_problem, prediction, self.integrator)
            linear = linear_bands(*linear_arguments, self._quantile(level), of_values)
            if not is_profile:
                return Prediction(linear)
            return Prediction(
                views().profile_bands(self, compiled_problem, linear, level, noise=noise, workers=workers)
            )
        unbiased = {name: sigma / self.sigmas[name] for name, sigma in sigmas.items() if self.sigmas[name] > 0.0}
        draw_arguments = (bands, self.theta, compiled_problem, prediction, self.integrator)
        return Prediction(
            quantile_bands(*draw_arguments, level, np.random.default_rng(rng), unbiased if noise else None)
        )

    def sensitivities(self, times: Times = None) -> dict[str, OutputSensitivities]:
        """Return all outputs of the model at any times, and their derivatives by the estimated quantities.

        Parameters
        ----------
        times : (n,) array, or mapping from experiment to array, optional
            Increasing, from the start of each experiment on; by default the measured times.

        Returns
        -------
        dict
            Per experiment `names` of the outputs, `times` (n,), `values` (n, n_outputs) and `slopes` (n, n_outputs,
            n_theta), by the natural values of the quantities in the order of `names`.

        Raises
        ------
        InputError
            For times that are none, and for a loaded result without its problem.
        SimulationError
            If the model cannot be integrated with its sensitivities.

        Examples
        --------
        >>> import castfit as cf
        >>> result = cf.fit(cf.problems.load("bellman").problem)
        >>> found = result.sensitivities([0.0, 10.0])["experiment 1"]
        >>> found.names, found.slopes.shape
        (('z',), (2, 1, 2))
        """
        from castfit.simulate.output_sensitivities import natural_responses

        return natural_responses(self._owner("sensitivities").posed, self.theta, times, self.integrator)

    @accept_old_names(level="confidence_level")
    def estimated_inputs(self, times: Times = None, *, confidence_level: float | None = None) -> Prediction:
        """Return every estimated input as a function of time, with its band.

        Parameters
        ----------
        times : (n,) array, or mapping from experiment to array, optional
            Between the first and the last knot; by default evenly from the start of each experiment to its end, and the
            knots.
        confidence_level : float, optional
            Probability that the band covers the input, at each time by itself; by default the result's
            `confidence_level`.

        Returns
        -------
        dict
            Per experiment ``{"time": (n,), u: (n,), "u lower": (n,), "u upper": (n,)}``; limits are infinite where the
            data leave the input open, NaN after a fit that failed.  With smoothness a band holds on average over time,
            for inputs as smooth as was found: sharp peaks are rounded.

        Raises
        ------
        InputError
            If no input is estimated, for times beyond the knots, and for a loaded result without its problem.
        """
        from castfit.result import bands

        problem = self._owner("estimated_inputs")
        chosen = read_level("estimated_inputs", confidence_level, self.confidence_level)
        factor = self._quantile(chosen) if self.success else np.nan
        return Prediction(
            bands.input_bands(self.theta, self.log.astype(float), self.covariance, problem.posed, times, factor)
        )

    def to_frame(self) -> Any:
        """Return the estimates as a pandas DataFrame, one row for each, by name: for sorting, joining, and files.

        Returns
        -------
        pandas.DataFrame
            Columns ``estimate``, ``standard_error``, ``lower`` and ``upper`` (the interval at the result's
            `confidence_level`), ``verdict`` and ``unit``; standard deviations that were eliminated come last.

        Raises
        ------
        InputError
            If pandas is not installed.

        Examples
        --------
        >>> import castfit as cf
        >>> result = cf.fit(cf.problems.load("bellman").problem)
        >>> result.to_frame().loc["k2", "estimate"] == result["k2"]
        True
        """
        intervals = self.confidence_intervals()
        contradicts_model, names = self.is_contradicted, dict.fromkeys((*self.names, *self.sigmas))
        return frame_of([self.build_estimate(n, intervals, contradicts_model=contradicts_model) for n in names])

    def residual_table(self) -> dict[str, NDArray[Any]]:
        """Return one row per measured value, as columns: ``pandas.DataFrame(result.residual_table())`` is a frame.

        ``experiment``, ``output``, ``time``, ``replicate`` (counted from 0 among equal times), ``value``,
        ``prediction``, ``sigma`` (1 where it is unknown), ``residual`` = (value - prediction) / sigma (of the
        logarithms, of counts otherwise, as the noise model says) and ``normalised``, the same with the estimated
        sigma; each (n_data,).

        Raises
        ------
        InputError
            For a loaded result without its problem.
        """
        residual_values = ResidualTable(
            self.predictions, self.spreads, self.residuals, self.normalised_residuals, self.deviations
        )
        return residual_table(self._owner("residual_table"), residual_values)

    @cached_property  # a report asks for it five times
    def diagnostics(self) -> Diagnostics:
        """Shown or suspected deviations of the residuals per output and experiment, and outliers by name.

        Raises
        ------
        InputError
            For a loaded result without its problem.
        """
        return _residual_diagnostics(self, self._owner("diagnostics").posed)

    @property
    def influence(self) -> Influence:
        """Influence of each measured value on the estimates: leverage, Cook's distance, and the changes without it.

        Raises
        ------
        InputError
            For a fit that failed, reproduces its data exactly, or has more than 500 quantities; for a loaded result
            without its problem, if errors depend on each other.
        """
        influences = _influence(self, None if self.errors is None else self._owner("influence").posed)
        if influences is None:
            reason = "influence is available only for converged fits with a positive residual variance"
            raise InputError("influence", [f"{reason}, and for at most 500 quantities"])
        return influences

    def with_status(self, status: Status, message: str) -> Result:
        """Return the result with another status and message."""
        return replace(self, status=status, message=message)

    def plot(self, path: str | Path | None = None, **options: Any) -> Figure:
        """Plot data, model and residuals; also write the figure to `path` if it is given.

        Parameters
        ----------
        path : str or Path, optional
        **options
            Of `castfit.plots.fit`: `bands`, `noise`, `confidence_level` and `rng` are those of `predict` and shade
            where the curve lies; ``log=False`` keeps axes linear, ``share=False`` gives every panel its own scale.
        """
        self._owner("plot")
        return views().plots.fit(self, path, **options)

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write a page that tells the story of this fit: question, data, estimates, verdicts, residuals, the way there.

        It is one file that needs no network: formulas are typeset, tables are sorted by a click, figures can be
        enlarged and their curves switched off; it prints well.

        Parameters
        ----------
        path : str or Path
            Where to write the page; it ends in ``.html``.
        **options
            Of `castfit.report.report`: ``title=`` and ``notes=`` stand above the page.

        Returns
        -------
        Path
            Of the file.
        """
        return views().reports.report(self, path, **options)

    def with_problem(self, problem: Posable) -> Result:
        """Return the result together with the problem that it answers, after loading.

        Raises
        ------
        InputError
            If the problem estimates other quantities or has other experiments or data.
        """
        raise_if_mistakes("with_problem", kind_mistakes(problem, may_be_fixed=True))
        problem = with_correlations(self._with_nodes(problem), self.errors)
        new_names = {name: new_name for name in self.names if (new_name := called_now(name, problem.names)) != name}
        if new_names:
            saved = json.dumps(self.to_dict())
            for name, new_name in new_names.items():
                saved = saved.replace(name, new_name)
            now_named = Result.from_dict(json.loads(saved, object_hook=decode_object))
            model = {"model": fingerprint.question(problem)["model"]}  # whose hash holds the name
            new_question = {**now_named.question, **model} if now_named.question else {}
            return replace(now_named, question=new_question).with_problem(problem)
        problem_signature = (problem.names, tuple(c.name for c in problem.conditions), problem.n_data)
        result_signature = (self.names, tuple(self.trajectories), self.n_data)
        labels = ("estimated quantities", "experiments", "number of measurements")
        mistakes = [
            f"the problem has {have} {name}, the result {want}; pass the problem that was fitted"
            for name, have, want in zip(labels, problem_signature, result_signature, strict=True)
            if have != want
        ]
        if self.question and not mistakes:
            differences = fingerprint.describe_differences(self.question, fingerprint.question(problem))
            mistakes = [
                f"{label}: the problem differs from the result; pass the problem that was fitted"
                for label in differences
            ]
        raise_if_mistakes("with_problem", mistakes)
        return replace(self, problem=with_smoothness(problem, self.smoothness))

    def with_known_problem(self, problem: Posable) -> Result:
        """Return the result with the problem that it is known to answer; see `with_problem` where that is not known."""
        return replace(self, problem=self._with_nodes(problem))

    def _with_nodes(self, problem: Posable) -> Posable:
        """Return the problem with as many nodes in its delay lines as the trajectories have."""
        model = problem.posed.model
        adaptive = [line for line in model.lines if line.adaptive]
        if not adaptive or not self.trajectories:
            return problem
        width = next(iter(self.trajectories.values())).states.shape[1]
        order, remainder = divmod(width - len(model.states) + sum(line.order for line in adaptive), len(adaptive))
        if remainder or order < 2:
            return problem
        return with_nodes(problem, order) or problem

    def _quantile(self, level: float) -> float:
        """Return half the width of an interval, in standard errors."""
        return quantile(level, np.inf if self.absolute_sigma else self.dof)

    def _owner(self, method_name: str) -> Posable:
        if self.problem is None:
            raise InputError(method_name, ["the loaded result has no model; call result.with_problem(problem) first"])
        return self.problem

    def save(self, path: str | Path) -> None:
        """Write everything but the problem as JSON.

        Of more than 500 quantities in many experiments the matrices are left out: covariance, correlation,
        information, jacobian.  Fit again from the saved estimates, ``start=result``, to have them.  What a full disk
        cannot take leaves the file as it was.
        """
        entries = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in self.to_dict().items())
        write_atomically(path, [("{\n" + ",\n".join(entries) + "\n}\n").encode()])

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file: all fields except `problem` and `method`."""
        matrices = ("covariance", "correlation", "information", "jacobian")  # in blocks no file should hold them whole
        field_values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("method", "problem")}
        field_values |= {name: np.empty((0, 0)) for name in matrices if not isinstance(field_values[name], np.ndarray)}
        if self.problem is not None:
            field_values["question"] = fingerprint.question(self.problem)
        return {"castfit_result": FORMAT, **to_jsonable(field_values)}

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a result that was saved; `predict` and `plot` then need `with_problem`.

        Raises
        ------
        InputError
            If the file is no saved result, or of a later version of castfit.
        """
        return cls.from_dict(read_json("Result.load", path), f"'{path}'")

    @classmethod
    def from_dict(cls, entry: Any, where: str = "the record") -> Result:
        """Build a result from the output of `to_dict` after `decode_object`; `where` is its origin, for messages."""
        content = dict(cast("dict[str, Any]", entry if isinstance(entry, dict) else {}))
        version = content.pop("castfit_result", None)
        if not is_one_of(version, *range(1, FORMAT + 1)):
            description = (
                "not a saved result"
                if version is None
                else f"a result of format {version}; this version of castfit reads formats up to {FORMAT}"
            )
            raise InputError("Result.load", [f"{where} is {description}"])
        if version == 1:
            unknown = json.loads(json.dumps(to_jsonable(UNKNOWN)), object_hook=decode_object)
            content |= {"goodness": unknown, "question": {}}
        needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
        absent = [name for name in needed if name not in content]
        raise_if_mistakes("Result.load", [f"{where} is damaged: {', '.join(absent)} missing"] if absent else [])
        try:
            result = _read(content)
            if version < FORMAT:
                signed = ("residuals", "normalised_residuals", "jacobian")
                result = replace(result, **{name: -getattr(result, name) for name in signed})
            result.summary()
            return result
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            raise InputError("Result.load", [f"{where} is damaged ({error}); save the result again"]) from None

    @classmethod
    def from_plain(cls, entry: Any, where: str = "the record") -> Result:
        """Call `from_dict`, with a warning."""
        warn_renamed("Result.from_plain", "Result.from_dict")
        return cls.from_dict(entry, where)

    def summary(self, *, every: bool = False) -> str:
        """Return the table that `print` shows.

        Parameters
        ----------
        every : bool
            Whether quantities of single experiments get a row each, however many they are.  By default those of more
            than 12 experiments share one: the median of the values, of the standard errors, and where nine in ten of
            the values lie.
        """
        raise_if_mistakes(
            "summary", option_mistakes(("every", every, is_one_of(every, True, False), "pass True or False"))
        )
        diagnostics = _summary(self)
        contradicts_model = _refuted(self, diagnostics)
        return "\n".join(
            [*_table(self, contradicts_model, show_all=every), "", *_footer(self, diagnostics, contradicts_model)]
        )

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return views().reports.card(self)

    def __repr__(self) -> str:
        values_text = join_limited((f"{name} = {value:.4g}" for name, value in self.values.items()), 60)
        method = self.transcription.partition(" (")[0]
        return one_line(f"Result({self.status.value}: {self.measure} = {self.objective:.6g}, {values_text}; {method})")


def _read(content: dict[str, Any]) -> Result:
    """Turn what JSON holds into a result."""
    names: list[Any] = content["names"]
    for key in ("theta", "log"):
        if np.shape(content[key]) != (len(names),):
            raise ValueError(f"{key} is {shorten_repr(content[key])}")
    result = Result(**rebuild_fields(Result, content))
    if "measure" not in content:  # saved by an earlier version
        squares = abs(2.0 * result.cost - result.chi2) <= _CHI2_RTOL * abs(result.chi2)
        result = replace(result, measure=CHI2 if result.absolute_sigma and squares else LIKELIHOOD)
    if result.normalised_residuals.size < result.n_data:  # saved by an earlier version
        normalised = result.residuals / (1.0 if result.absolute_sigma else result.noise)
        return replace(result, normalised_residuals=normalised)
    return result


def describe_uncounted(result: Result) -> str:
    """Name the quantities that a bound holds, which `criteria` and `dof` do not count; empty if there are none."""
    names = [name for name in result.names if name in result.active]
    return f"{join_limited(names, 40)} at a bound, not counted" if names else ""


def _families(names: Sequence[str]) -> dict[str, list[str]]:
    """Group the names of one quantity in many experiments, such as ``k[experiment 7]``, by the text before the bracket.

    Of a few nothing is gathered.
    """
    members_by_label: dict[str, list[str]] = defaultdict(list)
    for name in names:
        label, bracket, _ = name.partition("[")
        if bracket:
            members_by_label[label].append(name)
    return {label: members for label, members in members_by_label.items() if len(members) > _MAX_EXPERIMENT_ROWS}


def select_table_names(names: Sequence[str], all_in: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the names to which a table gives rows, few of each family, and a line that says where all are."""
    families = _families(names)
    hidden_names = {name for members in families.values() for name in members[_MAX_FAMILY_ROWS:]}
    more_text = ", ".join(
        f"{len(members) - _MAX_FAMILY_ROWS:,} more {label}[...]" for label, members in families.items()
    )
    return tuple(n for n in names if n not in hidden_names), [
        f"Not shown: {more_text}. All values: {all_in}."
    ] if more_text else []


def _family_row(result: Result, label: str, members: Sequence[str], values: Mapping[str, float]) -> tuple[str, ...]:
    """Return one row for a quantity of many experiments."""
    numbers = np.array([values[name] for name in members])
    errors = np.array([result.standard_errors[name] for name in members])
    finite = errors[np.isfinite(errors)]
    error = float(np.median(finite)) if finite.size else np.nan
    low, middle, high = (format_to_error(float(q), error) for q in np.quantile(numbers, (0.05, 0.5, 0.95)))
    kinds = Counter(result.identifiability[name].kind for name in members)
    remark = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    name = f"{label}[{len(members):,} experiments]"
    unit = "" if result.problem is None else result.problem.posed.unit(members[0])
    deviation = f"{error:.2g}" if finite.size else "-"
    return f"{name} ({unit})" if unit else name, middle, deviation, f"[{low}, {high}]", remark


def _table(result: Result, contradicts_model: bool, *, show_all: bool = False) -> list[str]:
    """Return name, value, standard error, interval and remark, aligned in columns."""
    intervals = result.confidence_intervals()
    remark = "assuming that the model is correct" if contradicts_model else "remark"
    interval_head = f"{100 * result.confidence_level:g} % interval, linear"
    rows: list[tuple[str, ...]] = [("", "value", "std. error", interval_head, remark)]
    values, families = result.values, {} if show_all else _families(result.names)
    shown_labels: set[str] = set()
    for name, log in zip(values, result.log.tolist(), strict=True):
        label = name.partition("[")[0]
        if label in families and "[" in name:
            if label not in shown_labels:
                rows.append(_family_row(result, label, families[label], values))
            shown_labels.add(label)
            continue
        rows.append(_row(result.build_estimate(name, intervals, contradicts_model=False), is_log=log))
    sigmas = (result.build_estimate(name, {}, contradicts_model=False) for name in result.sigmas if name != "sigma")
    rows += [_row(sigma) for sigma in sigmas]
    table = align_columns(rows, "<>><<")
    if families:
        table += [
            "Local quantities of experiments: median, median standard error, 5 % and 95 % quantiles.",
            f"For example result['{next(iter(families.values()))[0]}']; for all of them: result.summary(every=True).",
        ]
    return table


def _row(e: Estimate, *, is_log: bool = False) -> tuple[str, ...]:
    """Return the row of an estimate."""
    missing = "inf" if e.standard_error > 0 else "-"
    error = f"{e.standard_error:.2g}" if np.isfinite(e.standard_error) else missing
    is_known = np.isfinite(e.standard_error) or np.isfinite(e.interval).all()
    interval = format_interval(e.interval, e.value) if is_known else missing
    name, remark = f"{e.name} ({e.unit})" if e.unit else e.name, f"{e.verdict}{' (log scale)' if is_log else ''}"
    return name, format_to_error(e.value, e.standard_error), error, interval, remark


def _sigma_interval(result: Result, name: str) -> tuple[float, float]:
    """Return the interval of a standard deviation that was eliminated, symmetric in the logarithm."""
    value, error = result.sigmas[name], result.sigma_errors[name]
    if not (np.isfinite(error) and value > 0.0):
        return np.nan, np.nan
    reach = float(np.exp(quantile(result.confidence_level, result.dof) * error / value))
    return value / reach, value * reach


def _verdict(result: Result) -> str:
    """Describe the end of the fit, with a remedy if an optimum does not describe the data."""
    if result.is_adequate or not result.success:
        return f"{'Success' if result.success else 'Failure'}: {result.message}"
    unexplained = {name: left for name, left in result.goodness.unexplained.items() if np.isfinite(left)}
    or_else = ""
    if np.isfinite(result.goodness.p_value):
        poor, or_else = f"chi2/n = {result.chi2 / result.n_data:.3g}", ", or sigma is too small"
    elif unexplained:
        worst = [*unexplained][first_argmax([*unexplained.values()])]
        poor = unexplained_message(worst, unexplained[worst])
    else:
        poor = "the model does not fit the data"
    search_advice = (
        "cf.estimate(problem) searches for a better optimum. If it finds none, the" if result.names else "The"
    )
    remedy = f"{search_advice} model is probably inadequate{or_else}."
    return f"A poor optimum: {poor}; {remedy} {result.message}"


def _residual_diagnostics(
    result: Result, compiled_problem: CompiledProblem, *, by_experiment: bool = True
) -> Diagnostics:
    """Look at the residuals of a result."""
    table = result.residual_table()
    models = [
        (name, o.noise)
        for c in compiled_problem.conditions
        for name, o in zip(compiled_problem.outputs, c.observed, strict=True)
        if o
    ]
    influences, (hat, shared) = _influence(result, compiled_problem), _hat(result)
    table["normalised"] = whiten_residuals(compiled_problem, scores(compiled_problem, table))
    is_untestable = (
        hat is None and result.success and len(result.names) > MAX_WRITTEN_OUT_QUANTITIES
    )  # a file keeps no derivatives of so many
    diagnostics = diagnose(
        table,
        dof=result.dof,
        is_sigma_known=result.absolute_sigma,
        exact=[
            name
            for name, left in result.goodness.unexplained.items()
            if is_untestable or left < EXACT_UNEXPLAINED_VARIANCE
        ],
        not_normal={name for name, noise in models if not noise.normal},
        heavy={name for name, noise in models if noise.is_heavy_tailed},
        by_experiment=by_experiment,
        hat=hat,
        shared=shared,
        influential=() if influences is None else named_influential(influences, table, result.names),
        goodness=result.goodness,
        chi2=result.chi2,
    )
    if compiled_problem.model.inputs:
        from castfit.result.jump_residuals import residuals_at_jumps  # which others do not need

        diagnostics = replace(diagnostics, at_jumps=residuals_at_jumps(diagnostics.outliers, table, compiled_problem))
    is_correlated, remedies = bool(compiled_problem.correlations), list[str]()
    if len(noisy_mistakes(compiled_problem)) == is_correlated:  # Correlated errors themselves are one mistake.
        remedies.append(f"{PROCESS_NOISE_REMEDY}{', with independent measurement errors' * is_correlated}")
    if not is_correlated and not any(getattr(noise, "censored", True) for _, noise in models):
        remedies.append(CORRELATED_ERRORS_REMEDY)
    return replace(diagnostics, correlated=is_correlated, remedies=tuple(remedies))


def _influence(result: Result, compiled_problem: CompiledProblem | None) -> Influence | None:
    """Compute the influence of each value on the estimates; None if unknown, for instance after a failed fit.

    compiled_problem : needed where errors depend on each other
    """
    leverage, n = result.leverage, result.n_data
    if not result.success or leverage.size != n or not np.isfinite(result.root).all():
        return None
    if result.root.shape != (len(result.names),) * 2:
        return None  # of very many quantities
    exact = any(left < EXACT_UNEXPLAINED_VARIANCE for left in result.goodness.unexplained.values())
    limited = any(result.numerical_errors[q] > NUMERICAL_ERROR_SHARE * result.standard_errors[q] for q in result.names)
    if exact or limited:  # what moves the estimates are then errors of the integration
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = np.where(result.normalised_residuals != 0.0, result.residuals / result.normalised_residuals, np.nan)
    rows = result.jacobian[:n] / factor[:, None]
    dof = np.inf if result.absolute_sigma else float(result.dof)
    r = result.normalised_residuals
    if compiled_problem is not None and compiled_problem.correlations:
        r, rows = along_values(compiled_problem, r, rows)
        leverage = np.sum((rows @ result.root) ** 2, axis=1)
    return influence(r, rows, result.root, leverage, result.rank, dof)


def _hat(result: Result) -> tuple[Array | None, int | None]:
    """Return rows (n_data, k) whose products are the hat matrix of the fit; None where it is not known.

    With them the number of columns that experiments share, None for all: of very many quantities each experiment has
    the others for itself.
    """
    n, rows, root, covariance = result.n_data, result.jacobian[: result.n_data], result.root, result.covariance
    blocks = isinstance(covariance, BlockMatrix) and hasattr(rows, "tocsc") and rows.shape[0] == n
    if not result.success or result.leverage.size != n or not (blocks or root.shape == (len(result.names),) * 2):
        return None, None
    if isinstance(covariance, BlockMatrix):
        parts = covariance.scaled(np.exp(np.where(result.log, -result.theta, 0.0))).half(rows)  # in search scale
    else:
        parts = (np.asarray(rows @ root),)
    hat_root = np.concatenate(parts, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # Each row gets the leverage of its normalised residual.
        scaled = hat_root * np.sqrt(result.leverage / np.sum(hat_root**2, axis=1))[:, None]
    return np.nan_to_num(scaled, posinf=0.0, neginf=0.0), parts[0].shape[1] if blocks else None


def with_dependence(result: Result, compiled_problem: CompiledProblem) -> Result:
    """Return the result with a goodness of fit that includes shown autocorrelation of the residuals."""
    diagnostics = _residual_diagnostics(result, compiled_problem, by_experiment=False)
    return replace(result, goodness=result.goodness.with_dependence(diagnostics.dependent))


def _summary(result: Result) -> Diagnostics | None:
    """Look at the residuals of all experiments together; not of a search that found no solution."""
    if result.problem is None or not result.success or not result.goodness.unexplained:
        return None
    return _residual_diagnostics(result, result.problem.posed, by_experiment=False)


def _diagnostics_unavailable(result: Result) -> tuple[str, ...]:
    """Return a note if a loaded result does not know the order of its residuals in time."""
    sentence = "Residual tests need the problem: call result.with_problem(problem)."
    return (sentence,) if result.problem is None and result.success and result.goodness.unexplained else ()


def _refuted(result: Result, diagnostics: Diagnostics | None) -> bool:
    return result.success and (
        not result.goodness.described or (diagnostics is not None and bool(diagnostics.dependent))
    )


def _determination(result: Result, contradicts_model: bool) -> str:
    """Return the sentence on identifiability, with a reservation if the model is wrong."""
    sentence = result.identifiability.sentence
    if not contradicts_model:
        return sentence
    return (
        "Assuming that the model is correct: "
        f"{sentence.removesuffix('.').replace('All quantities', 'all quantities', 1)}. "
        "The residuals contradict this assumption, so the confidence intervals may be wrong."
    )


def _active_constraints_note(result: Result) -> list[str]:
    """Describe the active constraints; the standard errors are those along them."""
    active_constraints = result.constraints.active
    if not active_constraints or not result.success:
        return []
    n = len(active_constraints)
    lines = [
        f"{'1 constraint is' if n == 1 else f'{n} constraints are'} active at the estimates; the standard errors "
        f"are those along {'it' if n == 1 else 'them'}:"
    ]
    return [*lines, *(f"  {row.sentence}" for row in active_constraints)]


def _footer(result: Result, diagnostics: Diagnostics | None, contradicts_model: bool) -> list[str]:
    noise = f", estimated noise {result.sigmas['sigma']:.3g} (maximum likelihood)" if "sigma" in result.sigmas else ""
    failed = ", ".join(f"{count} {cause}" for cause, count in result.failures.items())
    lines = [
        f"{result.measure} = {result.objective:.8g}, {result.n_data} measurements, "
        f"{result.dof} degrees of freedom{noise}",
        *([f"AIC = {result.aic:.6g}, BIC = {result.bic:.6g}"] if result.has_criteria else []),
        *(
            f"{name}: {result.effective[name]:.3g} effective degrees of freedom, smoothness {weight:.3g}"
            for name, weight in result.smoothness.items()
        ),
        *([result.goodness.sentence] if result.goodness.sentence else []),
        *(
            _diagnostics_unavailable(result)
            if diagnostics is None
            else (*diagnostics.messages, *([diagnostics.advice] if diagnostics.advice else []))
        ),
        _determination(result, contradicts_model),
        *(f"  {combination}" for combination in result.identifiability.combinations),
        *_active_constraints_note(result),
    ]
    method = [f"{result.transcription}, {result.solver}: {result.iterations} iterations, {result.time:.2f} s"]
    method += [f"failed evaluations: {failed}"] if failed else []
    verdict = [_verdict(result)]
    poor = result.success and not result.is_adequate
    return [*lines, *method, *verdict] if poor else [*lines, *verdict, *method]
