"""The result of a fit: estimates, their uncertainty, a verdict in words, and how the solve ended."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit._json import plain, restored
from castfit._reading import real, text
from castfit._text import aligned, rounded
from castfit.goodness import UNKNOWN, Goodness, Series, goodness
from castfit.identifiability import Combination, Identifiability, Verdict, judge, no_verdict
from castfit.integrate import IntegratorOptions
from castfit.simulate import Nodes, Prediction, Times, predict
from castfit.staged import Evaluation, Linearization, StagedProblem, gaps, rows_in_units, weighted_squares
from castfit.statistics import information_criteria, neg2loglik, quantile, statistics
from castfit.status import InputError, Status, check

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from castfit.problem import Posable
    from castfit.verification import Verification

    Array = NDArray[np.float64]

FORMAT = 2  # of saved results; those of format 1, without goodness of fit, are read too


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a fit found; the same from every transcription and solver.

    Values are in natural scale unless said otherwise.  In arrays over the estimated quantities they stand in the order
    of `names`.

    Attributes
    ----------
    success : bool
        Whether this is a solution; if not it is the best point so far, and there are no standard errors.
    status : Status
    message : str
        How the solve ended, in words.
    names : tuple of str
        The estimated quantities.
    theta : (n_theta,) array
        Estimates in search scale.
    parameters, initial_states : dict
        Estimated parameters and estimated initial states by name.
    cost : float
        What was minimised: ``chi2 / 2`` where standard deviations are known; where they share an unknown factor
        ``n_data / 2 * log(chi2 / n_data)`` plus half the squares of the priors' residuals.
    chi2 : float
        Sum of squared weighted residuals, priors included; of the data alone where the weights' factor is unknown.
    neg2loglik : float
        -2 log likelihood with all constants; with unknown noise at its maximum likelihood.
    n_data, dof : int
        Number of measured values; number of values and priors minus the number of directions that they determine.
    aic, bic : float
    residuals : (n_data,) array
        (model - data) / sigma by experiment, time, output, with sigma as it was given, 1 if it was not.
    jacobian : (n_data + n_prior, n_theta) array
        d residuals / d theta (search scale) along the model's equations; rows of priors last.
    gradient : (n_theta,) array
        d cost / d theta, search scale.
    active : dict
        ``"lower"`` or ``"upper"`` for each variable that a bound holds, nodes included.
    covariance, correlation : (n_theta, n_theta) arrays
        NaN where a bound holds a quantity, inf on the diagonal of what is not identifiable.
    standard_errors : dict
        Square roots of the covariance's diagonal; numerical errors included.
    numerical_errors : dict
        The part of the standard errors that is due to the finite accuracy of the integration.
    noise : float
        Estimated factor on the standard deviations of the data (their value where none was given); 1 if they are
        taken as they are.
    identifiability : Identifiability
    goodness : Goodness
        Whether the model describes the data.
    gaps : float
        Largest continuity defect of the trajectory, in units of the state's typical magnitude.
    iterations : int
    evaluations, failures : dict
        Number of evaluations by kind; number of failed evaluations by cause.
    time : float
        Seconds.
    history : tuple of dict
        One entry per iteration.
    trajectories : dict
        Per experiment the `Nodes`: times (K,) and states (K, n_x) at the start of every stage.
    transcription, solver : str
    versions : dict
    confidence_level : float
        Of the intervals in the table.
    absolute_sigma : bool
        Whether standard deviations are taken as they are.
    integrator : IntegratorOptions
        With which `predict` integrates.
    log : (n_theta,) bool array
        Which entries of theta are logarithms.
    problem : Problem or None
        None in a result that was loaded; see `with_problem`.
    """

    success: bool
    status: Status
    message: str
    names: tuple[str, ...]
    theta: Array
    parameters: dict[str, float]
    initial_states: dict[str, float]
    cost: float
    chi2: float
    neg2loglik: float
    n_data: int
    dof: int
    aic: float
    bic: float
    residuals: Array
    jacobian: Array
    gradient: Array
    active: dict[str, str]
    covariance: Array
    correlation: Array
    standard_errors: dict[str, float]
    numerical_errors: dict[str, float]
    noise: float
    identifiability: Identifiability
    goodness: Goodness
    gaps: float
    iterations: int
    evaluations: dict[str, int]
    failures: dict[str, int]
    time: float
    history: tuple[dict[str, float], ...]
    trajectories: dict[str, Nodes]
    transcription: str
    solver: str
    versions: Mapping[str, str]
    confidence_level: float
    absolute_sigma: bool
    integrator: IntegratorOptions
    log: NDArray[np.bool_]
    problem: Posable | None = field(default=None)

    @property
    def values(self) -> dict[str, float]:
        """All estimates by name, in the order of `names`."""
        both = {**self.parameters, **self.initial_states}
        return {name: both[name] for name in self.names}

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

    def predict(self, times: Times = None) -> Prediction:
        """Evaluate all outputs of the model, integrating anew from every node.

        Parameters
        ----------
        times : (n,) array, or mapping from experiment to array, optional
            By default the measured times.

        Returns
        -------
        dict
            Per experiment ``{"time": (n,), output: (n,), ...}``.

        Raises
        ------
        InputError
            For a loaded result without its problem, or for times outside the experiment.
        SimulationError
            If the integration stops, as it may after a fit that failed.
        """
        problem = self._owner("predict")
        nodes = [self.trajectories[condition.name] for condition in problem.conditions]
        return predict(problem, self.theta, nodes, times=times, integrator=self.integrator)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot data, model and residuals; also write the figure to `path` if it is given."""
        from castfit import plots

        self._owner("plot")
        return plots.fit(self, path)

    def with_problem(self, problem: Posable) -> Result:
        """Return the result together with the problem that it answers, after loading.

        Raises
        ------
        InputError
            If the problem estimates other quantities or has other experiments or data.
        """
        found = (problem.names, tuple(c.name for c in problem.conditions), problem.n_data)
        expected = (self.names, tuple(self.trajectories), self.n_data)
        what = ("estimated quantities", "experiments", "number of measured values")
        check(
            "with_problem",
            [
                f"the {name} of the problem are {have}, those of the result {want}; give the problem that was fitted"
                for name, have, want in zip(what, found, expected, strict=True)
                if have != want
            ],
        )
        return replace(self, problem=problem)

    def _owner(self, what: str) -> Posable:
        if self.problem is None:
            raise InputError(what, ["a loaded result does not know its model; use result.with_problem(problem) first"])
        return self.problem

    def save(self, path: str | Path) -> None:
        """Write everything but the problem as JSON."""
        content = {"castfit_result": FORMAT}
        content |= {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name != "problem"}
        entries = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
        Path(path).write_text("{\n" + ",\n".join(entries) + "\n}\n")

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
        content = cast("dict[str, Any]", loaded if isinstance(loaded, dict) else {})
        version = content.pop("castfit_result", None)
        if version not in (1, FORMAT):
            found = "no saved result" if version is None else f"of format {version}; this castfit reads format {FORMAT}"
            raise InputError("Result.load", [f"'{path}' is {found}"])
        if version == 1:
            content["goodness"] = plain(UNKNOWN)
        absent = [f.name for f in fields(cls) if f.name not in content and f.name != "problem"]
        check("Result.load", [f"'{path}' lacks {', '.join(absent)}; it is damaged"] if absent else [])
        try:
            result = cls(**_read(content))
            result.summary()
            return result
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InputError("Result.load", [f"'{path}' is damaged ({error}); save the result again"]) from None

    def summary(self) -> str:
        """Return the table that `print` shows."""
        return "\n".join([*_table(self), "", *_footer(self)])

    __str__ = summary

    def __repr__(self) -> str:
        shown = [f"{name} = {value:.4g}" for name, value in self.values.items()]
        listed = ", ".join(shown if len(shown) <= 6 else [*shown[:5], "..."])
        return f"Result({self.status.value}: chi2 = {self.chi2:.6g}, {listed}; {self.transcription}, {self.solver})"


def _read(content: dict[str, Any]) -> dict[str, Any]:
    """Turn what JSON holds into the fields of a result."""
    said = content["identifiability"]
    names: list[Any] = content["names"]
    for key in ("theta", "log"):
        if np.shape(content[key]) != (len(names),):
            raise ValueError(f"{key} is {text(content[key])}")
    identifiability = Identifiability(
        tuple(Verdict(**v) for v in said["verdicts"]),
        tuple(Combination(tuple(c["names"]), tuple(c["directions"]), c["sentence"]) for c in said["combinations"]),
        said["condition"],
        said["sentence"],
    )
    return {
        **content,
        "identifiability": identifiability,
        "goodness": Goodness(**content["goodness"]),
        "status": Status(content["status"]),
        "log": content["log"].astype(bool),
        "integrator": IntegratorOptions(**content["integrator"]),
        "trajectories": {name: Nodes(**nodes) for name, nodes in content["trajectories"].items()},
        "names": tuple(names),
        "history": tuple(content["history"]),
    }


def estimate(
    problem: Posable,
    staged: StagedProblem,
    v: Array,
    at: Evaluation,
    *,
    status: Status,
    message: str,
    active: NDArray[np.int8],
    iterations: int,
    evaluations: dict[str, int],
    failures: dict[str, int],
    time: float,
    history: tuple[dict[str, float], ...],
    transcription: str,
    solver: str,
    absolute_sigma: bool,
    confidence_level: float,
    integrator: IntegratorOptions,
    accuracy: float,
    verification: Verification | None = None,
) -> Result:
    """Build the result from where a solver ended, for fits that failed as well.

    Parameters
    ----------
    problem : Problem
    staged : StagedProblem
    v : (n_v,) array
        The solution, or the best point so far.
    at : Linearization or Evaluation
        The problem at v; statistics need the linearization.
    active : (n_v,) int array
        -1 where the lower bound of a variable is active, +1 the upper, 0 neither.
    status, message, iterations, evaluations, failures, time, history, transcription, solver
        For the fields of the same names.
    absolute_sigma : bool
        Whether standard deviations are taken as they are; otherwise the variance of the noise is estimated.
    confidence_level : float
    integrator : IntegratorOptions
        With which predictions are made.
    accuracy : float
        Relative accuracy to which the transcription solves the model over a stage; it gives the numerical error.
    verification : Verification, optional
        What the model's own integration says; it adds to the numerical error.
    """
    layout, quantities = staged.layout, problem.quantities
    names, theta = layout.names, layout.theta(v).copy()
    # exp(log(bound)) may lie beyond the bound by rounding, and a solver may overstep a bound by its tolerance.
    natural = np.clip(problem.to_natural(theta), [q.lower for q in quantities], [q.upper for q in quantities])
    slope = problem.natural_slope(theta)
    values = dict(zip(names, natural.tolist(), strict=True))
    n_theta, n_rows = len(names), problem.n_data + at.prior.size
    held = {layout.describe(int(i)): "lower" if active[i] < 0 else "upper" for i in np.flatnonzero(active)}

    found, unknown = None, "" if status.success else "the fit did not succeed"
    if isinstance(at, Linearization) and at.ok:
        try:
            found = statistics(
                layout,
                at,
                active,
                scale=staged.scale,
                relative_tolerance=accuracy,
                absolute_tolerance=integrator.absolute_tolerance,
                row_errors=None if verification is None else verification.row_errors,
                defects=None if verification is None else verification.defects,
            )
        except (np.linalg.LinAlgError, RuntimeError):  # derivatives that are not finite, or multipliers not found
            unknown = unknown or "the linear algebra of the statistics failed"
    trusted = found if status.success else None
    none = np.full((n_theta, n_theta), np.nan)
    covariance, errors, numerical = none, np.full(n_theta, np.nan), np.full(n_theta, np.nan)
    if trusted is not None:
        with np.errstate(invalid="ignore"):  # infinitely uncertain, and too small for a number
            covariance = slope[:, None] * trusted.covariance * slope
            errors, numerical = slope * trusted.standard_errors, slope * trusted.numerical_errors
    dof = found.dof if found is not None else n_rows - n_theta
    likelihood = neg2loglik(at.cost, _log_deviations(problem), n_unknown=int(layout.group_sizes.sum()))
    aic, bic = information_criteria(likelihood, n_rows, n_rows - dof + layout.n_groups)
    chi2 = weighted_squares(layout, at)
    units = rows_in_units(layout, at)
    residuals = np.concatenate([r[chain.row_mask] for chain, r in zip(layout.chains, units, strict=True)])
    return Result(
        success=status.success,
        status=status,
        message=message,
        names=names,
        theta=theta,
        parameters={q.name: values[q.name] for q in quantities if q.kind == "parameter"},
        initial_states={q.name: values[q.name] for q in quantities if q.kind == "initial state"},
        cost=at.cost,
        chi2=chi2,
        neg2loglik=likelihood,
        n_data=problem.n_data,
        dof=dof,
        aic=aic,
        bic=bic,
        residuals=residuals,
        jacobian=found.jacobian if found is not None else np.full((n_rows, n_theta), np.nan),
        gradient=found.gradient if found is not None else np.full(n_theta, np.nan),
        active=held,
        covariance=covariance,
        correlation=trusted.correlation if trusted is not None else none,
        standard_errors=_by_name(names, errors),
        numerical_errors=_by_name(names, numerical),
        noise=np.nan if found is None else float(found.noise[0]) if found.noise.size else 1.0,
        identifiability=(
            judge(names, natural, slope, held, found, unknown=unknown)
            if found is not None
            else no_verdict(names, unknown or "the problem was not linearized")
        ),
        goodness=goodness(_series(problem, residuals), chi2, dof, absolute_sigma=absolute_sigma),
        gaps=_largest_gap(staged, at),
        iterations=iterations,
        evaluations=evaluations,
        failures=failures,
        time=time,
        history=history,
        trajectories={
            chain.name: Nodes(chain.times[:-1], states)
            for chain, states in zip(layout.chains, staged.node_states(v), strict=True)
        },
        transcription=transcription,
        solver=solver,
        versions=_versions(),
        confidence_level=confidence_level,
        absolute_sigma=absolute_sigma,
        integrator=integrator,
        log=problem.log,
        problem=problem,
    )


def _series(problem: Posable, residuals: Array) -> list[Series]:
    """Divide residuals (n_data,), which stand by experiment, time and output, into series."""
    found: list[Series] = []
    begin = 0
    for condition in problem.conditions:
        points = condition.points
        rows = np.full(points.mask.shape, np.nan)
        rows[points.mask] = residuals[begin : begin + int(points.mask.sum())]
        begin += int(points.mask.sum())
        found += [
            Series(condition.name, output, rows[on, j], points.values[on, j], points.sigma[on, j])
            for j, output in enumerate(problem.outputs)
            if (on := points.mask[:, j]).any()
        ]
    return found


def _by_name(names: Sequence[str], values: Array) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def _log_deviations(problem: Posable) -> Array:
    """Return the logarithms of the standard deviations of all data and priors."""
    data = [np.log(c.points.sigma[c.points.mask]) for c in problem.conditions]
    priors = [np.log(q.prior.deviation) for q in problem.quantities if q.prior is not None]
    return np.concatenate([*data, np.array(priors)])


def _largest_gap(staged: StagedProblem, at: Evaluation) -> float:
    scaled = [
        np.abs(gap / staged.scale[chain.nodes]).ravel()
        for chain, gap in zip(staged.layout.chains, gaps(staged.layout, at), strict=True)
    ]
    return float(np.concatenate(scaled).max(initial=0.0))  # NaN where a stage failed


@cache
def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for package in ("castfit", "casadi", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # castfit run from a checkout
            found[package] = "unknown"
    return found


def _table(result: Result) -> list[str]:
    """Return name, value, standard error, interval and remark, aligned in columns."""
    intervals = result.confidence_intervals()
    rows = [("", "value", "std. error", f"{100 * result.confidence_level:g} % interval", "remark")]
    for (name, value), log in zip(result.values.items(), result.log, strict=True):
        error, verdict = result.standard_errors[name], result.identifiability[name]
        low, high = (rounded(end, error) for end in intervals[name])
        absent = "inf" if error > 0 else "-"
        deviation, interval = (f"{error:.2g}", f"[{low}, {high}]") if np.isfinite(error) else (absent, absent)
        remark = verdict.sentence + (" (log scale)" if log else "")
        rows.append((name, rounded(value, error), deviation, interval, remark))
    return aligned(rows, "<>><<")


def _verdict(result: Result) -> str:
    if not result.success:
        return "Failure"
    return "Success" if result.goodness.described else "An optimum, but the model does not describe the data"


def _footer(result: Result) -> list[str]:
    noise = "" if result.absolute_sigma or np.isnan(result.noise) else f", estimated noise {result.noise:.3g}"
    failed = ", ".join(f"{count} {cause}" for cause, count in result.failures.items())
    lines = [
        f"chi2 = {result.chi2:.8g} from {result.n_data} data, {result.dof} degrees of freedom{noise}",
        f"-2 log L = {result.neg2loglik:.6g}, AIC = {result.aic:.6g}, BIC = {result.bic:.6g}",
        *([result.goodness.sentence] if result.goodness.sentence else []),
        result.identifiability.sentence,
        *(f"  {combination}" for combination in result.identifiability.combinations),
        f"{_verdict(result)}: {result.message}",
        f"{result.transcription}, {result.solver}: {result.iterations} iterations, {result.time:.2f} s",
    ]
    return [*lines, f"failed evaluations: {failed}"] if failed else lines
