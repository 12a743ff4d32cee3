"""The result of a fit: its parts, its table, prediction, and saving; `castfit.concluded` builds it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._support.reprs import listed, one_line
from castfit._support.json_codec import plain, rebuilt, restored
from castfit._support.lazy_imports import made, page, picture
from castfit._support.arguments import is_count, is_one_of, option_mistakes, real, rng_mistakes, text
from castfit._support.text_tables import aligned, rounded
from castfit.result.bands_linear import bands_mistakes, read_outputs, with_bands
from castfit.result.information_criteria import Criteria
from castfit.result.diagnostics import Diagnostics, diagnose
from castfit.result.bands_from_draws import Ensemble, with_ensemble
from castfit.result.estimate import Estimate
from castfit.problem.fingerprint import changed, question
from castfit.result.goodness_of_fit import EXACT, UNKNOWN, Goodness
from castfit.result.identifiability import NUMERICAL, Identifiability
from castfit.result.bands_inputs import input_bands
from castfit.integrate import IntegratorOptions
from castfit.result.influence import Influence, influence, named_influential
from castfit.result.parts import Estimates, Provenance, Uncertainty
from castfit.problem.problem import kind_mistakes, with_nodes, with_smoothness
from castfit.result.confidence_region import ConfidenceRegion, confidence_region
from castfit.result.residuals import Seen, residual_table, scores
from castfit.simulate.simulate import Nodes, Prediction, Times, predict
from castfit.result.covariance import quantile
from castfit._support.status import InputError, Status, check, suggest

if TYPE_CHECKING:
    import casadi as ca
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from castfit.result.constraint_table import ConstraintTable
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable

    Array = NDArray[np.float64]

_PARTS = (Estimates, Uncertainty, Provenance)
_MANY = 12  # experiments up to which each has a row of its own in tables
FORMAT = 2  # of saved results; those of format 1, without goodness of fit, are read too


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a fit found; the same from every transcription and solver.

    Values are in natural scale unless said otherwise.  In arrays over the estimated quantities they stand in the order
    of `names`.

    Attributes
    ----------
    solution : Estimates
        Where the search ended.
    statistics : Uncertainty
        What the data say about the estimates.
    goodness : Goodness
        Whether the model describes the data.
    provenance : Provenance
        How the result came about.
    problem : Problem or None
        None in a result that was loaded; see `with_problem`.

    What the parts hold is also to be had from the result itself, for instance ``result.parameters``.

    Examples
    --------
    >>> import castfit as cf
    >>> problem = cf.problems.load("bellman").problem
    >>> result = cf.fit(problem)
    >>> result
    Result(converged: chi2 = 21.8667, k1 = 4.577e-06, k2 = 0.0002796; collocation)
    >>> result["k1"]
    k1 = 4.577e-06 ± 1.6e-07, 95 % interval [4.235e-06, 4.919e-06] (well determined)
    >>> {name: float(f"{error:.2g}") for name, error in result.standard_errors.items()}
    {'k1': 1.6e-07, 'k2': 5.5e-05}
    >>> later = result.predict([50.0, 100.0])["experiment 1"]
    >>> later["z"].round(2)
    array([47.43, 48.64])
    """

    solution: Estimates
    statistics: Uncertainty
    goodness: Goodness
    provenance: Provenance
    problem: Posable | None = field(default=None)

    @property
    def success(self) -> bool:
        """Whether this is a solution; if not it is the best point so far, and there are no standard errors."""
        return self.status.success

    @property
    def status(self) -> Status:
        """How the solve ended."""
        return self.solution.status

    @property
    def message(self) -> str:
        """How the solve ended, in words."""
        return self.solution.message

    @property
    def names(self) -> tuple[str, ...]:
        """The estimated quantities."""
        return self.solution.names

    @property
    def theta(self) -> Array:
        """Estimates in search scale."""
        return self.solution.theta

    @property
    def log(self) -> NDArray[np.bool_]:
        """Which entries of theta are logarithms."""
        return self.solution.log

    @property
    def parameters(self) -> dict[str, float]:
        """Estimated parameters by name."""
        return self.solution.parameters

    @property
    def initial_states(self) -> dict[str, float]:
        """Estimated initial states by name."""
        return self.solution.initial_states

    @property
    def cost(self) -> float:
        """What was minimised."""
        return self.solution.cost

    @property
    def chi2(self) -> float:
        """Sum of squared weighted residuals, priors included."""
        return self.solution.chi2

    @property
    def n_data(self) -> int:
        """Number of measured values."""
        return self.solution.n_data

    @property
    def residuals(self) -> Array:
        """(model - data) / sigma by experiment, time, output, with sigma as it was given, 1 if it was not."""
        return self.solution.residuals

    @property
    def active(self) -> dict[str, str]:
        """``"lower"`` or ``"upper"`` for each variable that a bound holds, nodes included."""
        return self.solution.active

    @property
    def gaps(self) -> float:
        """Largest continuity defect of the trajectory, in units of the state's typical magnitude."""
        return self.solution.gaps

    @property
    def trajectories(self) -> dict[str, Nodes]:
        """Per experiment the `Nodes`: times (K,) and states (K, n_x) at the start of every stage."""
        return self.solution.trajectories

    @property
    def dof(self) -> int:
        """Number of values and priors minus the number of directions that they determine."""
        return self.statistics.dof

    @property
    def neg2loglik(self) -> float:
        """-2 log likelihood with all constants."""
        return self.statistics.neg2loglik

    @property
    def aic(self) -> float:
        """Akaike's information criterion."""
        return self.statistics.aic

    @property
    def bic(self) -> float:
        """Schwarz's (Bayesian) information criterion."""
        return self.statistics.bic

    @property
    def jacobian(self) -> Array:
        """Derivative of the residuals with respect to theta along the model's equations, rows of priors last.

        Of more than 500 quantities in many experiments a sparse array of SciPy.
        """
        return self.statistics.jacobian

    @property
    def gradient(self) -> Array:
        """Derivative of the cost with respect to theta."""
        return self.statistics.gradient

    @property
    def neg2logprior(self) -> float:
        """The part of `neg2loglik` that is the priors'."""
        return self.statistics.neg2logprior

    @property
    def n_estimated(self) -> float:
        """How many numbers the data determine, unknown deviations of the noise included."""
        return self.statistics.n_estimated

    @property
    def criteria(self) -> Criteria:
        """Information criteria of the data: AIC, AICc, BIC, and what they are made of."""
        k = self.n_estimated
        if np.isnan(k):  # saved by an earlier version, which counted so
            k = 0.5 * (self.aic - self.neg2loglik)
        return Criteria(self.neg2loglik - self.neg2logprior, self.n_data, k)

    @property
    def aicc(self) -> float:
        """Akaike's information criterion, corrected for few data."""
        return self.criteria.aicc

    @property
    def covariance(self) -> Array:
        """Covariance of the estimates: NaN where a bound holds one, inf on the diagonal of what is not identifiable.

        Of more than 500 quantities in many experiments a `BlockMatrix`, as are correlation and information.
        """
        return self.statistics.covariance

    @property
    def information(self) -> Array:
        """Fisher's information of data and priors on theta, search scale, active bounds left aside."""
        return self.statistics.information

    @property
    def rank(self) -> int:
        """Number of directions of theta that data and priors determine; -1 if it is not known."""
        return self.statistics.rank

    @property
    def root(self) -> Array:
        """Square root of the covariance of what is determined, search scale; see `confidence_region`."""
        return self.statistics.root

    @property
    def undetermined(self) -> Array:
        """Directions of theta that data and priors leave open, (k, n_theta), search scale."""
        return self.statistics.undetermined

    @property
    def leverage(self) -> Array:
        """How much of each measured value's own error the fit follows, from 0 to 1, in the order of `residuals`."""
        return self.statistics.leverage

    @property
    def bounds(self) -> Array:
        """Lower and upper bounds of the estimated quantities, (n_theta, 2)."""
        return self.solution.bounds

    @property
    def correlation(self) -> Array:
        """Correlation of the estimates, (n_theta, n_theta)."""
        return self.statistics.correlation

    @property
    def standard_errors(self) -> dict[str, float]:
        """Square roots of the covariance's diagonal, numerical errors included."""
        return self.statistics.standard_errors

    @property
    def numerical_errors(self) -> dict[str, float]:
        """The part of the standard errors that is due to the finite accuracy of the integration."""
        return self.statistics.numerical_errors

    @property
    def smoothness(self) -> dict[str, float]:
        """The weight of the roughness of each smooth estimated input, as given or chosen."""
        return self.statistics.smoothness

    @property
    def effective(self) -> dict[str, float]:
        """Effective degrees of freedom of each smooth estimated input: how many of its values the data determine."""
        return self.statistics.effective

    @property
    def inflation(self) -> float:
        """The unbiased variance of an unknown sigma that all data share, in units of the most likely one; else 1."""
        return self.statistics.inflation

    @property
    def noise(self) -> float:
        """Estimated factor on the standard deviations of the data (their value where none was given)."""
        return self.statistics.noise

    @property
    def sigmas(self) -> dict[str, float]:
        """The most likely values of unknown standard deviations that were eliminated; others are parameters."""
        return self.statistics.sigmas

    @property
    def sigma_errors(self) -> dict[str, float]:
        """Standard errors of `sigmas`."""
        return self.statistics.sigma_errors

    @property
    def normalised_residuals(self) -> Array:
        """Residuals of variance 1 if the model is right, in the order of `residuals`; NaN where sigma is not known."""
        if self.solution.normalised_residuals.size < self.n_data:  # saved by an earlier version
            return self.residuals / (1.0 if self.absolute_sigma else self.noise)
        return self.solution.normalised_residuals

    @property
    def predictions(self) -> Array:
        """What the model says of every measured value, in the order of `residuals`."""
        return self.solution.predictions

    @property
    def spreads(self) -> Array:
        """Sigma, scale or dispersion of every measured value, as given or computed; 1 where unknown and eliminated."""
        return self.solution.spreads

    @property
    def deviations(self) -> Array:
        """Standard deviation of every measured value by its noise model, in the unit of the output."""
        return self.solution.deviations

    @property
    def absolute_sigma(self) -> bool:
        """Whether standard deviations are taken as they are."""
        return self.statistics.absolute_sigma

    @property
    def confidence_level(self) -> float:
        """Confidence level of the intervals in the table."""
        return self.statistics.confidence_level

    @property
    def constraints(self) -> ConstraintTable:
        """What constraints did to the estimates, and what each costs: ``print(result.constraints)``."""
        return self.statistics.constraints

    @property
    def identifiability(self) -> Identifiability:
        """A verdict on every quantity."""
        return self.statistics.identifiability

    @property
    def transcription(self) -> str:
        """Label of the transcription."""
        return self.provenance.transcription

    @property
    def solver(self) -> str:
        """Label of the solver."""
        return self.provenance.solver

    @property
    def integrator(self) -> IntegratorOptions:
        """Options with which `predict` integrates."""
        return self.provenance.integrator

    @property
    def iterations(self) -> int:
        """Number of iterations, those of all attempts."""
        return self.provenance.iterations

    @property
    def evaluations(self) -> dict[str, int]:
        """Number of evaluations by kind."""
        return self.provenance.evaluations

    @property
    def failures(self) -> dict[str, int]:
        """Number of failed evaluations by cause."""
        return self.provenance.failures

    @property
    def time(self) -> float:
        """Seconds that the fit took."""
        return self.provenance.time

    @property
    def history(self) -> tuple[dict[str, float], ...]:
        """One entry per iteration."""
        return self.provenance.history

    @property
    def versions(self) -> Mapping[str, str]:
        """Of castfit, CasADi, NumPy and Python."""
        return self.provenance.versions

    @property
    def values(self) -> dict[str, float]:
        """All estimates by name, in the order of `names`."""
        both = {**self.parameters, **self.initial_states}
        return {name: both[name] for name in self.names}

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
        estimated = name in self.parameters or name in self.initial_states
        if not estimated and name not in self.sigmas:
            known = dict.fromkeys((*self.names, *self.sigmas))
            check("result", [f"'{name}' was not estimated: {suggest(str(name), known)}"])
        unit = "" if self.problem is None else self.problem.posed.unit(name)
        if estimated:
            interval, error = self.confidence_intervals()[name], self.standard_errors[name]
            said = self.identifiability[name].sentence
        else:
            interval, error, said = _sigma_interval(self, name), self.sigma_errors[name], "noise, eliminated"
        value = {**self.parameters, **self.initial_states}[name] if estimated else self.sigmas[name]
        return Estimate(
            value,
            name=name,
            standard_error=error,
            interval=interval,
            level=self.confidence_level,
            verdict=said,
            unit=unit,
        )

    def __contains__(self, name: object) -> bool:
        """Whether something of that name was estimated."""
        return name in self.names or name in self.sigmas

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the estimates."""
        return iter(self.names)

    def confidence_intervals(self, level: float | None = None) -> dict[str, tuple[float, float]]:
        """Return the interval of each estimate.

        Intervals are symmetric in search scale, so that those of a quantity on a logarithmic scale stay positive; they
        are not clipped at bounds.  Where the noise is estimated they use Student's t with `dof` degrees of freedom,
        where it is known the normal distribution.

        Parameters
        ----------
        level : float, optional
            By default the result's `confidence_level`.
        """
        chosen = self.confidence_level if level is None else real(level)
        wrong = chosen is None or not 0 < chosen < 1
        check("confidence_intervals", [f"level is {text(level)}; it lies between 0 and 1"] if wrong else [])
        assert chosen is not None
        factor = quantile(chosen, np.inf if self.absolute_sigma else self.dof)
        out: dict[str, tuple[float, float]] = {}
        for (name, value), log in zip(self.values.items(), self.log, strict=True):
            reach = factor * self.standard_errors[name]
            if log and value == 0.0:  # its logarithm is an estimate, but no number is that small
                out[name] = (np.nan, np.nan)
            elif log:
                with np.errstate(over="ignore"):
                    out[name] = (float(value * np.exp(-reach / value)), float(value * np.exp(reach / value)))
            else:
                out[name] = (value - reach, value + reach)
        return out

    def confidence_region(self, level: float | None = None) -> ConfidenceRegion:
        """Return the ellipsoid in which the quantities lie together: its axes, the boxes about it, in words.

        Parameters
        ----------
        level : float, optional
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
        chosen = self.confidence_level if level is None else real(level)
        wrong = chosen is None or not 0 < chosen < 1
        check("confidence_region", [f"level is {text(level)}; it lies between 0 and 1"] if wrong else [])
        assert chosen is not None
        return confidence_region(self.solution, self.statistics, chosen)

    def predict(
        self,
        times: Times = None,
        *,
        outputs: Mapping[str, ca.SX] | None = None,
        bands: str | Ensemble | None = None,
        noise: bool = False,
        level: float | None = None,
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
        level : float, optional
            Probability that the limits enclose, by default the result's `confidence_level`.
        rng : int or numpy.random.Generator
            For the noise about the predictions of draws.
        workers : int or concurrent.futures.Executor
            For bands="profile": 1 follows profiles in this process, n in n processes; a script then needs
            ``if __name__ == "__main__":``.

        Returns
        -------
        dict
            Per experiment ``{"time": (n,), output: (n,), ...}``, with bands also ``"output lower"`` and
            ``"output upper"``: infinite where something that is not identifiable moves the output, NaN for the noise of
            outputs of which none is known.

        Raises
        ------
        InputError
            For a loaded result without its problem, for times outside the experiment, or draws of another fit.
        SimulationError
            If the integration stops, as it may after a fit that failed.
        """
        problem, chosen = self._owner("predict"), self.confidence_level if level is None else real(level)
        mistakes = option_mistakes(
            ("noise", noise, is_one_of(noise, True, False), "give True or False"),
            ("level", level, chosen is not None and 0.0 < chosen < 1.0, "it lies between 0 and 1"),
        )
        mistakes += [*bands_mistakes(bands, self.names), *rng_mistakes(rng)]
        profiled, alone = is_one_of(bands, "profile"), is_one_of(workers, 1)
        mistakes += option_mistakes(
            ("workers", workers, alone or isinstance(workers, Executor) or is_count(workers, 1),
             "give a number of processes or a concurrent.futures.Executor"),
            ("workers", workers, alone or profiled, "it is for bands='profile'; leave it out"),
        )[:1]  # fmt: skip
        added, wrong = read_outputs(outputs, problem.posed.model)
        mistakes += wrong
        if noise is True and bands is None:
            mistakes.append("noise=True widens bands; choose bands='linear' or 'profile'")
        if bands is not None and not self.success:
            mistakes.append("a fit that failed has no covariance, and so no bands")
        check("predict", mistakes)
        assert chosen is not None
        posed = problem.posed.showing(added)
        nodes = [self.trajectories[condition.name] for condition in problem.conditions]
        found = predict(posed, self.theta, nodes, times=times, integrator=self.integrator)
        if bands is None:
            return found
        if isinstance(bands, str):
            parts = (self.solution, self.statistics, posed, found, self.integrator)
            linear = with_bands(*parts, chosen, noise=noise and not profiled)
            if not profiled:
                return linear
            return made("profile.bands.prediction_bands")(self, posed, linear, chosen, noise=noise, workers=workers)
        drawn = (bands, self.statistics, posed, self.theta, found, self.integrator)
        return with_ensemble(*drawn, chosen, np.random.default_rng(rng), noise=noise)

    def estimated_inputs(self, times: Times = None, *, level: float | None = None) -> Prediction:
        """Return every estimated input as a function of time, with its band.

        Parameters
        ----------
        times : (n,) array, or mapping from experiment to array, optional
            Between the first and the last knot; by default evenly from the start of each experiment to its end, and the
            knots.
        level : float, optional
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
        problem, chosen = self._owner("estimated_inputs"), self.confidence_level if level is None else real(level)
        wrong = chosen is None or not 0 < chosen < 1
        check("estimated_inputs", [f"level is {text(level)}; it lies between 0 and 1"] if wrong else [])
        assert chosen is not None
        return input_bands(self.solution, self.statistics, problem.posed, times, chosen)

    def residual_table(self) -> dict[str, NDArray[Any]]:
        """Return one row per measured value, as columns: ``pandas.DataFrame(result.residual_table())`` is a frame.

        ``experiment``, ``output``, ``time``, ``replicate`` (counted from 0 among equal times), ``value``,
        ``prediction``, ``sigma`` (1 where it is unknown), ``residual`` = (prediction - value) / sigma (of the
        logarithms, of counts otherwise, as the noise model says) and ``normalised``, the same with the estimated
        sigma; each (n_data,).

        Raises
        ------
        InputError
            For a loaded result without its problem.
        """
        found = self.solution
        seen = Seen(found.predictions, found.spreads, found.residuals, self.normalised_residuals, found.deviations)
        return residual_table(self._owner("residual_table"), seen)

    @property
    def diagnostics(self) -> Diagnostics:
        """Whether the residuals look like noise: `Diagnostics` per output and experiment, and outliers by name.

        Raises
        ------
        InputError
            For a loaded result without its problem.
        """
        return _examined(self, self._owner("diagnostics").posed)

    @property
    def influence(self) -> Influence:
        """What each measured value does to the estimates: leverage, Cook's distance, and what moves without it.

        Raises
        ------
        InputError
            For a fit that failed, reproduces its data exactly, or has more than 500 quantities.
        """
        found = _influence(self)
        if found is None:
            known = "only fits that succeeded, and that leave errors of measurement, say what data do"
            raise InputError("influence", [f"{known}; of more than 500 quantities it is not worked out"])
        return found

    def ended(self, status: Status, message: str) -> Result:
        """Return the result with another status and message."""
        return replace(self, solution=replace(self.solution, status=status, message=message))

    def plot(self, path: str | Path | None = None, **options: Any) -> Figure:
        """Plot data, model and residuals; also write the figure to `path` if it is given.

        Parameters
        ----------
        path : str or Path, optional
        **options
            Of `castfit.plots.fit`: `bands`, `noise`, `level` and `rng` are those of `predict` and shade where the curve
            lies; ``log=False`` keeps axes linear, ``share=False`` gives every panel its own scale.
        """
        self._owner("plot")
        return picture("fit")(self, path, **options)

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
        return page("report")(self, path, **options)

    def with_problem(self, problem: Posable) -> Result:
        """Return the result together with the problem that it answers, after loading.

        Raises
        ------
        InputError
            If the problem estimates other quantities or has other experiments or data.
        """
        check("with_problem", kind_mistakes(problem))
        problem = self._with_nodes(problem)
        found = (problem.names, tuple(c.name for c in problem.conditions), problem.n_data)
        expected = (self.names, tuple(self.trajectories), self.n_data)
        what = ("estimated quantities", "experiments", "number of measured values")
        mistakes = [
            f"the {name} of the problem are {have}, those of the result {want}; give the problem that was fitted"
            for name, have, want in zip(what, found, expected, strict=True)
            if have != want
        ]
        if self.provenance.question and not mistakes:
            other = changed(self.provenance.question, question(problem))
            mistakes = [
                f"the {what} differs from that of the result; give the problem that was fitted" for what in other
            ]
        check("with_problem", mistakes)
        return replace(self, problem=with_smoothness(problem, self.smoothness))

    def answering(self, problem: Posable) -> Result:
        """Return the result with the problem that it is known to answer; see `with_problem` where that is not known."""
        return replace(self, problem=self._with_nodes(problem))

    def _with_nodes(self, problem: Posable) -> Posable:
        """Return the problem with as many nodes in its delay lines as the trajectories have."""
        model = problem.posed.model
        adaptive = [line for line in model.lines if line.adaptive]
        if not adaptive or not self.trajectories:
            return problem
        width = next(iter(self.trajectories.values())).states.shape[1]
        order, rest = divmod(width - len(model.states) + sum(line.order for line in adaptive), len(adaptive))
        if rest or order < 2:
            return problem
        return with_nodes(problem, order) or problem

    def _owner(self, what: str) -> Posable:
        if self.problem is None:
            raise InputError(what, ["a loaded result does not know its model; use result.with_problem(problem) first"])
        return self.problem

    def save(self, path: str | Path) -> None:
        """Write everything but the problem as JSON.

        Of more than 500 quantities in many experiments the matrices are left out: covariance, correlation,
        information, jacobian.  Fit again from the saved estimates, ``start=result``, to have them.
        """
        entries = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in self.to_plain().items())
        Path(path).write_text("{\n" + ",\n".join(entries) + "\n}\n")

    def to_plain(self) -> dict[str, Any]:
        """Return what JSON gets: everything but the problem."""
        content: dict[str, Any] = {"castfit_result": FORMAT, "goodness": plain(self.goodness)}
        for part in (self.solution, _written_out(self.statistics), self.provenance):
            content |= plain(part)
        if self.problem is not None:
            content["question"] = question(self.problem)
        return content

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a result that was saved; `predict` and `plot` then need `with_problem`.

        Raises
        ------
        InputError
            If the file is no saved result, or of a later version of castfit.
        """
        try:
            loaded = json.loads(Path(path).read_text(encoding="utf-8"), object_hook=restored)
        except TypeError:
            raise InputError("Result.load", [f"path is {text(path)}; give the path of a file"]) from None
        except (ValueError, KeyError) as error:  # no text, no JSON, or no array where one is announced
            raise InputError("Result.load", [f"'{path}' is no JSON file: {error}"]) from None
        return cls.from_plain(loaded, f"'{path}'")

    @classmethod
    def from_plain(cls, entry: Any, where: str = "the record") -> Result:
        """Read what `to_plain` returned and `castfit._json.restored` left of it; `where` it was, for messages."""
        content = dict(cast("dict[str, Any]", entry if isinstance(entry, dict) else {}))
        version = content.pop("castfit_result", None)
        if version not in (1, FORMAT):
            found = "no saved result" if version is None else f"of format {version}; this castfit reads format {FORMAT}"
            raise InputError("Result.load", [f"{where} is {found}"])
        if version == 1:
            content |= {"goodness": plain(UNKNOWN), "question": {}}
        absent = [
            f.name for part in _PARTS for f in fields(part) if f.name not in content and f.default_factory is MISSING
        ]
        check("Result.load", [f"{where} lacks {', '.join(absent)}; it is damaged"] if absent else [])
        try:
            result = _read(content)
            result.summary()
            return result
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InputError("Result.load", [f"{where} is damaged ({error}); save the result again"]) from None

    def summary(self, *, every: bool = False) -> str:
        """Return the table that `print` shows.

        Parameters
        ----------
        every : bool
            Whether quantities of single experiments get a row each, however many they are.  By default those of more
            than 12 experiments share one: the median of the values, of the standard errors, and where nine in ten of
            the values lie.
        """
        check("summary", option_mistakes(("every", every, is_one_of(every, True, False), "give True or False")))
        return "\n".join([*_table(self, every=every), "", *_footer(self)])

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return page("card")(self)

    def __repr__(self) -> str:
        shown = listed((f"{name} = {value:.4g}" for name, value in self.values.items()), 60)
        how = self.transcription.partition(" (")[0]
        return one_line(f"Result({self.status.value}: chi2 = {self.chi2:.6g}, {shown}; {how})")


def _written_out(statistics: Uncertainty) -> Uncertainty:
    """Leave out matrices that stand in blocks, which no file should hold as a whole."""
    none = np.empty((0, 0))
    matrices = {name: getattr(statistics, name) for name in ("covariance", "correlation", "information", "jacobian")}
    return replace(statistics, **{n: none for n, m in matrices.items() if not isinstance(m, np.ndarray)})


def _read(content: dict[str, Any]) -> Result:
    """Turn what JSON holds into a result."""
    names: list[Any] = content["names"]
    for key in ("theta", "log"):
        if np.shape(content[key]) != (len(names),):
            raise ValueError(f"{key} is {text(content[key])}")
    solution, statistics, provenance = (rebuilt(part, content) for part in _PARTS)
    return Result(solution, statistics, rebuilt(Goodness, content["goodness"]), provenance)


def _families(names: Sequence[str]) -> dict[str, list[str]]:
    """Gather the names of one quantity in many experiments, such as ``k[experiment 7]``, by what is before the bracket.

    Of a few nothing is gathered.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        label, bracket, _ = name.partition("[")
        if bracket:
            found[label].append(name)
    return {label: members for label, members in found.items() if len(members) > _MANY}


def _family_row(result: Result, label: str, members: Sequence[str], values: Mapping[str, float]) -> tuple[str, ...]:
    """Return one row for a quantity of many experiments."""
    numbers = np.array([values[name] for name in members])
    errors = np.array([result.standard_errors[name] for name in members])
    finite = errors[np.isfinite(errors)]
    error = float(np.median(finite)) if finite.size else np.nan
    low, middle, high = (rounded(float(q), error) for q in np.quantile(numbers, (0.05, 0.5, 0.95)))
    kinds = Counter(result.identifiability[name].kind for name in members)
    remark = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    name = f"{label}[{len(members):,} experiments]"
    unit = "" if result.problem is None else result.problem.posed.unit(members[0])
    deviation = f"{error:.2g}" if finite.size else "-"
    return f"{name} ({unit})" if unit else name, middle, deviation, f"[{low}, {high}]", remark


def _table(result: Result, *, every: bool = False) -> list[str]:
    """Return name, value, standard error, interval and remark, aligned in columns."""
    intervals = result.confidence_intervals()
    posed = None if result.problem is None else result.problem.posed
    rows: list[tuple[str, ...]] = [
        ("", "value", "std. error", f"{100 * result.confidence_level:g} % interval", "remark")
    ]
    values, families = result.values, {} if every else _families(result.names)
    shown: set[str] = set()
    for (name, value), log in zip(values.items(), result.log, strict=True):
        label = name.partition("[")[0]
        if label in families and "[" in name:
            if label not in shown:
                rows.append(_family_row(result, label, families[label], values))
            shown.add(label)
            continue
        error, verdict = result.standard_errors[name], result.identifiability[name]
        low, high = (rounded(end, error) for end in intervals[name])
        absent = "inf" if error > 0 else "-"
        deviation, interval = (f"{error:.2g}", f"[{low}, {high}]") if np.isfinite(error) else (absent, absent)
        remark = verdict.sentence + (" (log scale)" if log else "")
        unit = "" if posed is None else posed.unit(name)
        rows.append((f"{name} ({unit})" if unit else name, rounded(value, error), deviation, interval, remark))
    rows += [_sigma_row(result, name) for name in result.sigmas if name != "sigma"]
    table = aligned(rows, "<>><<")
    if families:
        table += [
            "Of quantities of single experiments: median, median standard error, where nine in ten values lie.",
            f"One of them is result['{next(iter(families.values()))[0]}'], all are in result.summary(every=True).",
        ]
    return table


def _sigma_row(result: Result, name: str) -> tuple[str, ...]:
    """Return the row of a standard deviation that was eliminated."""
    value, error = result.sigmas[name], result.sigma_errors[name]
    if not (np.isfinite(error) and value > 0.0):
        return name, f"{value:.4g}", "-", "-", "noise, eliminated"
    low, high = (rounded(end, error) for end in _sigma_interval(result, name))
    return name, rounded(value, error), f"{error:.2g}", f"[{low}, {high}]", "noise, eliminated"


def _sigma_interval(result: Result, name: str) -> tuple[float, float]:
    """Return the interval of a standard deviation that was eliminated, symmetric in the logarithm."""
    value, error = result.sigmas[name], result.sigma_errors[name]
    if not (np.isfinite(error) and value > 0.0):
        return np.nan, np.nan
    reach = float(np.exp(quantile(result.confidence_level, result.dof) * error / value))
    return value / reach, value * reach


def _verdict(result: Result) -> str:
    if not result.success:
        return "Failure"
    return "Success" if result.goodness.described else "An optimum, but the model does not describe the data"


def _examined(result: Result, posed: Posed, *, by_experiment: bool = True) -> Diagnostics:
    """Look at the residuals of a result."""
    table = result.residual_table()
    models = [(name, o.noise) for c in posed.conditions for name, o in zip(posed.outputs, c.observed, strict=True) if o]
    found = _influence(result)
    return diagnose(
        {**table, "normalised": scores(posed, table)},
        dof=result.dof,
        known=result.absolute_sigma,
        exact=[name for name, left in result.goodness.unexplained.items() if left < EXACT],
        not_normal={name for name, noise in models if not noise.normal},
        heavy={name for name, noise in models if noise.heavy},
        by_experiment=by_experiment,
        influential=() if found is None else named_influential(found, table, result.names),
        goodness=result.goodness,
        chi2=result.chi2,
    )


def _influence(result: Result) -> Influence | None:
    """Return what each value does to the estimates; None where that is not known, as of a fit that failed."""
    leverage, n = result.leverage, result.n_data
    if not result.success or leverage.size != n or not np.isfinite(result.root).all():
        return None
    if result.root.shape != (len(result.names),) * 2:
        return None  # of very many quantities
    exact = any(left < EXACT for left in result.goodness.unexplained.values())
    limited = any(result.numerical_errors[q] > NUMERICAL * result.standard_errors[q] for q in result.names)
    if exact or limited:  # what moves the estimates are then errors of the integration
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = np.where(result.normalised_residuals != 0.0, result.residuals / result.normalised_residuals, np.nan)
    rows = result.jacobian[:n] / factor[:, None]
    dof = np.inf if result.absolute_sigma else float(result.dof)
    return influence(result.normalised_residuals, rows, result.root, leverage, result.rank, dof)


def _suspicions(result: Result) -> tuple[str, ...]:
    """Say what is wrong with the residuals, in at most two lines; nothing of a search that found no solution."""
    if result.problem is None or not result.success or not result.goodness.unexplained:
        return ()
    return _examined(result, result.problem.posed, by_experiment=False).sentences


def _held(result: Result) -> list[str]:
    """Say which constraints hold the estimates back, and that errors are those along them."""
    holding = result.constraints.active
    if not holding or not result.success:
        return []
    count = "1 constraint holds" if len(holding) == 1 else f"{len(holding)} constraints hold"
    lines = [f"{count} the estimates; standard errors are those along {'it' if len(holding) == 1 else 'them'}:"]
    return [*lines, *(f"  {row.sentence}" for row in holding)]


def _footer(result: Result) -> list[str]:
    noise = "" if result.absolute_sigma or np.isnan(result.noise) else f", estimated noise {result.noise:.3g}"
    failed = ", ".join(f"{count} {cause}" for cause, count in result.failures.items())
    lines = [
        f"chi2 = {result.chi2:.8g} from {result.n_data} data, {result.dof} degrees of freedom{noise}",
        f"-2 log L = {result.neg2loglik:.6g}, AIC = {result.aic:.6g}, BIC = {result.bic:.6g}",
        *(
            f"{name}: {result.effective[name]:.3g} effective degrees of freedom, smoothness {weight:.3g}"
            for name, weight in result.smoothness.items()
        ),
        *([result.goodness.sentence] if result.goodness.sentence else []),
        *_suspicions(result),
        result.identifiability.sentence,
        *(f"  {combination}" for combination in result.identifiability.combinations),
        *_held(result),
        f"{_verdict(result)}: {result.message}",
        f"{result.transcription}, {result.solver}: {result.iterations} iterations, {result.time:.2f} s",
    ]
    return [*lines, f"failed evaluations: {failed}"] if failed else lines
