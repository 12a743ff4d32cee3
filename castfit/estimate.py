"""From where a search ended to a result: estimates, their uncertainty, verdicts."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np

from castfit.goodness import UNKNOWN, goodness
from castfit.identifiability import judge, no_verdict
from castfit.outcome import Estimates, Provenance, Uncertainty
from castfit.residuals import series
from castfit.result import Result
from castfit.simulate import Nodes
from castfit.staged import Evaluation, Linearization, StagedProblem, gaps, rows_in_units, weighted_squares
from castfit.statistics import information_criteria, neg2loglik, statistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem import Posable
    from castfit.status import Status
    from castfit.verification import Verification

    Array = NDArray[np.float64]


def estimate(
    problem: Posable,
    staged: StagedProblem,
    v: Array,
    at: Evaluation,
    *,
    status: Status,
    message: str,
    active: NDArray[np.int8],
    provenance: Provenance,
    absolute_sigma: bool,
    confidence_level: float,
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
    status : Status
    message : str
    provenance : Provenance
    absolute_sigma : bool
        Whether standard deviations are taken as they are; otherwise the variance of the noise is estimated.
    confidence_level : float
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
    n_theta, n_rows = len(names), problem.n_data + _n_informing(at)
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
                absolute_tolerance=provenance.integrator.absolute_tolerance,
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
    likelihood += 2.0 * problem.posed.prior_constant
    aic, bic = information_criteria(likelihood, n_rows, n_rows - dof + layout.n_groups)
    chi2 = weighted_squares(layout, at)
    units = rows_in_units(layout, at)
    residuals = np.concatenate([r[chain.row_mask] for chain, r in zip(layout.chains, units, strict=True)])
    none_known = no_verdict(names, unknown or "the problem was not linearized")
    solution = Estimates(
        status=status,
        message=message,
        names=names,
        theta=theta,
        log=problem.log,
        parameters={q.name: values[q.name] for q in quantities if q.kind == "parameter"},
        initial_states={q.name: values[q.name] for q in quantities if q.kind == "initial state"},
        cost=at.cost,
        chi2=chi2,
        n_data=problem.n_data,
        residuals=residuals,
        active=held,
        gaps=_largest_gap(staged, at),
        trajectories={
            chain.name: Nodes(chain.times[:-1], states)
            for chain, states in zip(layout.chains, staged.node_states(v), strict=True)
        },
    )
    uncertainty = Uncertainty(
        dof=dof,
        neg2loglik=likelihood,
        aic=aic,
        bic=bic,
        jacobian=found.jacobian if found is not None else np.full((n_rows, n_theta), np.nan),
        gradient=found.gradient if found is not None else np.full(n_theta, np.nan),
        covariance=covariance,
        correlation=trusted.correlation if trusted is not None else none,
        standard_errors=_by_name(names, errors),
        numerical_errors=_by_name(names, numerical),
        noise=np.nan if found is None else float(found.noise[0]) if found.noise.size else 1.0,
        absolute_sigma=absolute_sigma,
        confidence_level=confidence_level,
        identifiability=judge(names, natural, slope, held, found, unknown=unknown) if found is not None else none_known,
    )
    judged = goodness(series(problem, residuals), chi2, dof, absolute_sigma=absolute_sigma)
    if verification is not None and not verification.reproduced:
        judged = UNKNOWN  # these are not the model's residuals
    return Result(solution, uncertainty, judged, provenance, problem)


def _by_name(names: Sequence[str], values: Array) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def _n_informing(at: Evaluation) -> int:
    """Count the rows of priors that hold information."""
    return at.prior.size if at.prior_curved is None else int(at.prior_curved.sum())


def _log_deviations(problem: Posable) -> Array:
    """Return the logarithms of the standard deviations of all data."""
    return np.concatenate([np.log(c.points.sigma[c.points.mask]) for c in problem.conditions])


def _largest_gap(staged: StagedProblem, at: Evaluation) -> float:
    scaled = [
        np.abs(gap / staged.scale[chain.nodes]).ravel()
        for chain, gap in zip(staged.layout.chains, gaps(staged.layout, at), strict=True)
    ]
    return float(np.concatenate(scaled).max(initial=0.0))  # NaN where a stage failed


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of what computed a result."""
    found = {"python": platform.python_version()}
    for package in ("castfit", "casadi", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # castfit run from a checkout
            found[package] = "unknown"
    return found
