"""The result of a fit: estimates, their uncertainty, a verdict in words, and how the solve ended."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit.identifiability import AT_BOUND, Combination, Identifiability, Verdict, judge, no_verdict
from castfit.integrate import IntegratorOptions
from castfit.simulate import Nodes, Prediction, Times, predict
from castfit.staged import Evaluation, Linearization, StagedProblem, gaps
from castfit.statistics import information_criteria, neg2loglik, quantile, statistics
from castfit.status import InputError, Status, check

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from castfit.problem import Problem

    Array = NDArray[np.float64]

FORMAT = 1  # of saved results


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
        Half the sum of squared weighted residuals, priors included.
    chi2 : float
        ``2 * cost``.
    neg2loglik : float
        -2 log likelihood with all constants; with unknown noise at its maximum likelihood.
    n_data, dof : int
        Number of measured values; number of values and priors minus the number of directions that they determine.
    aic, bic : float
    residuals : (n_data,) array
        (model - data) / sigma by experiment, time, output.
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
    gaps: float
    iterations: int
    evaluations: dict[str, int]
    failures: dict[str, int]
    time: float
    history: tuple[dict[str, float], ...]
    trajectories: dict[str, Nodes]
    transcription: str
    solver: str
    versions: dict[str, str]
    confidence_level: float
    absolute_sigma: bool
    integrator: IntegratorOptions
    log: NDArray[np.bool_]
    problem: Problem | None = field(default=None)

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
        level = self.confidence_level if level is None else level
        check("confidence_intervals", [] if 0 < level < 1 else [f"level is {level}; it lies between 0 and 1"])
        factor = quantile(level, np.inf if self.absolute_sigma else self.dof)
        out: dict[str, tuple[float, float]] = {}
        for (name, value), log in zip(self.values.items(), self.log, strict=True):
            reach = factor * self.standard_errors[name]
            if log:
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

    def with_problem(self, problem: Problem) -> Result:
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

    def _owner(self, what: str) -> Problem:
        if self.problem is None:
            raise InputError(what, ["a loaded result does not know its model; use result.with_problem(problem) first"])
        return self.problem

    def save(self, path: str | Path) -> None:
        """Write everything but the problem as JSON."""
        content = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "problem"}
        Path(path).write_text(json.dumps({"castfit_result": FORMAT, **content}, allow_nan=False, indent=1))

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a result that was saved; `predict` and `plot` then need `with_problem`.

        Raises
        ------
        InputError
            If the file is no saved result, or of a later version of castfit.
        """
        try:
            content = json.loads(Path(path).read_text(), object_hook=_restored)
        except json.JSONDecodeError as error:
            raise InputError("Result.load", [f"'{path}' is no JSON file: {error}"]) from None
        version = content.pop("castfit_result", None) if isinstance(content, dict) else None
        if version != FORMAT:
            found = "no saved result" if version is None else f"of format {version}; this castfit reads format {FORMAT}"
            raise InputError("Result.load", [f"'{path}' is {found}"])
        said = content["identifiability"]
        content["identifiability"] = Identifiability(
            tuple(Verdict(**v) for v in said["verdicts"]),
            tuple(
                Combination(tuple(c["names"]), tuple(c["directions"]), c["sentence"]) for c in said["combinations"]
            ),
            said["condition"],
            said["sentence"],
        )
        content["status"] = Status(content["status"])
        content["log"] = content["log"].astype(bool)
        content["integrator"] = IntegratorOptions(**content["integrator"])
        content["trajectories"] = {name: Nodes(**nodes) for name, nodes in content["trajectories"].items()}
        return cls(**{**content, "names": tuple(content["names"]), "history": tuple(content["history"])})

    def summary(self) -> str:
        """Return the table that `print` shows."""
        return "\n".join([*_table(self), "", *_footer(self)])

    __str__ = summary

    def __repr__(self) -> str:
        shown = [f"{name} = {value:.4g}" for name, value in self.values.items()]
        listed = ", ".join(shown if len(shown) <= 6 else [*shown[:5], "..."])
        return f"Result({self.status.value}: chi2 = {self.chi2:.6g}, {listed}; {self.transcription}, {self.solver})"


def estimate(
    problem: Problem,
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
        Its tolerances give the numerical error.
    """
    layout, quantities = staged.layout, problem.quantities
    names, theta = layout.names, layout.theta(v).copy()
    # exp(log(bound)) may lie beyond the bound by rounding, and a solver may overstep a bound by its tolerance.
    natural = np.clip(problem.to_natural(theta), [q.lower for q in quantities], [q.upper for q in quantities])
    slope = problem.natural_slope(theta)
    values = dict(zip(names, natural.tolist(), strict=True))
    n_theta, n_rows = len(names), problem.n_data + at.prior.size
    held = {layout.describe(int(i)): "lower" if active[i] < 0 else "upper" for i in np.flatnonzero(active)}

    found = None
    if isinstance(at, Linearization) and at.ok:
        found = statistics(
            layout,
            at,
            active,
            absolute_sigma=absolute_sigma,
            relative_tolerance=integrator.relative_tolerance,
            absolute_tolerance=integrator.absolute_tolerance,
        )
    trusted = found is not None and status.success
    none = np.full((n_theta, n_theta), np.nan)
    dof = found.dof if found is not None else n_rows - n_theta
    chi2 = 2 * at.cost
    likelihood = neg2loglik(chi2, _log_deviations(problem), absolute_sigma=absolute_sigma)
    aic, bic = information_criteria(likelihood, n_rows, n_rows - dof + (not absolute_sigma))
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
        residuals=np.concatenate(
            [part.r[chain.row_mask] for chain, part in zip(layout.chains, at.values, strict=True)]
        ),
        jacobian=found.jacobian if found is not None else np.full((n_rows, n_theta), np.nan),
        gradient=found.gradient if found is not None else np.full(n_theta, np.nan),
        active=held,
        covariance=slope[:, None] * found.covariance * slope if found is not None and trusted else none,
        correlation=found.correlation if found is not None and trusted else none,
        standard_errors=_by_name(names, slope * found.standard_errors if found is not None and trusted else none[0]),
        numerical_errors=_by_name(names, slope * found.numerical_errors if found is not None and trusted else none[0]),
        noise=float(np.sqrt(found.variance)) if found is not None else np.nan,
        identifiability=(
            judge(names, natural, slope, held, found)
            if found is not None and trusted
            else no_verdict(names, "the fit did not succeed")
        ),
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


def _by_name(names: Sequence[str], values: Array) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def _log_deviations(problem: Problem) -> Array:
    """Return the logarithms of the standard deviations of all data and priors."""
    data = [np.log(c.points.sigma[c.points.mask]) for c in problem.conditions]
    priors = [np.log(q.prior.deviation) for q in problem.quantities if q.prior is not None]
    return np.concatenate([*data, np.array(priors)])


def _largest_gap(staged: StagedProblem, at: Evaluation) -> float:
    worst = 0.0
    for chain, gap in zip(staged.layout.chains, gaps(staged.layout, at), strict=True):
        worst = max(worst, float(np.abs(gap / staged.scale[chain.nodes]).max(initial=0.0)))
    return worst


def _versions() -> dict[str, str]:
    return {
        "castfit": _own_version(),
        "casadi": ca.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _own_version() -> str:
    try:
        return metadata.version("castfit")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"


def _table(result: Result) -> list[str]:
    """Return name, value, standard error, interval and remark, aligned in columns."""
    intervals = result.confidence_intervals()
    rows = [("", "value", "std. error", f"{100 * result.confidence_level:g} % interval", "remark")]
    for (name, value), log in zip(result.values.items(), result.log, strict=True):
        error = result.standard_errors[name]
        verdict = result.identifiability[name]
        known = np.isfinite(error)
        low, high = (_rounded(end, error) for end in intervals[name])
        dash = "-" if verdict.kind == AT_BOUND or np.isnan(error) else "inf"
        remark = verdict.sentence + (" (log scale)" if log else "")
        rows.append(
            (name, _rounded(value, error), f"{error:.2g}" if known else dash, f"[{low}, {high}]" if known else dash, remark)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2)), row[3].ljust(widths[3]), row[4]])
        for row in rows
    ]
    return [lines[0].rstrip(), "-" * max(len(line.rstrip()) for line in lines), *(line.rstrip() for line in lines[1:])]


def _rounded(value: float, error: float) -> str:
    """Show a value to the third digit of its error."""
    if not (np.isfinite(value) and np.isfinite(error) and error > 0):
        return f"{value:.6g}"
    decimals = 2 - int(np.floor(np.log10(error)))
    if 0 <= decimals <= 9 and abs(value) < 1e7:
        return f"{value:.{decimals}f}"
    digits = int(np.clip(decimals + np.floor(np.log10(abs(value) or 1.0)), 2, 12))
    return f"{value:.{digits}e}"


def _footer(result: Result) -> list[str]:
    noise = "" if result.absolute_sigma or np.isnan(result.noise) else f", estimated noise {result.noise:.3g}"
    failed = ", ".join(f"{count} {cause}" for cause, count in result.failures.items())
    lines = [
        f"chi2 = {result.chi2:.8g} from {result.n_data} data, {result.dof} degrees of freedom{noise}",
        f"-2 log L = {result.neg2loglik:.6g}, AIC = {result.aic:.6g}, BIC = {result.bic:.6g}",
        result.identifiability.sentence,
        *(f"  {combination}" for combination in result.identifiability.combinations),
        f"{'Success' if result.success else 'Failure'}: {result.message}",
        f"{result.transcription}, {result.solver}: {result.iterations} iterations, {result.time:.2f} s",
    ]
    return [*lines, f"failed evaluations: {failed}"] if failed else lines


def _plain(value: Any) -> Any:
    """Turn a value into what JSON can hold; floats that are not finite become text."""
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "values": [_plain(x) for x in value.ravel().tolist()]}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": str(value)}
    return value


def _restored(entry: dict[str, Any]) -> Any:
    """Undo `_plain` for arrays and for floats that are not finite."""
    if entry.keys() == {"shape", "values"}:
        return np.array(entry["values"], dtype=float).reshape(entry["shape"])
    return float(entry["float"]) if entry.keys() == {"float"} else entry
