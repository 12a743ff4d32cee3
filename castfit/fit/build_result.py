"""From where a search ended to a result: estimates, their uncertainty, verdicts."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, cast

import casadi as ca
import numpy as np

from castfit._support.version import __version__
from castfit.fit.choice import DOWN, PROBE
from castfit.problem.compiled_problem import LOSS
from castfit.problem.observables import parameter_of, unknowns
from castfit.problem.prior_rows import Smooth
from castfit.result.block_matrix import BlockMatrix
from castfit.result.constraint_table import ConstraintTable, constraint_table
from castfit.result.covariance import WRITTEN_OUT, Statistics, neg2loglik, quantile, statistics
from castfit.result.goodness_of_fit import NO_OPTIMUM, UNKNOWN, Criteria, Goodness, goodness
from castfit.result.identifiability import judge, no_verdict
from castfit.result.residuals import Seen, series
from castfit.result.result import Result, with_dependence
from castfit.simulate.simulate import Nodes
from castfit.solve.staged import Evaluation, Linearization, StagedProblem, gaps, weighted_squares
from castfit.transcribe.observation import constant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array
    from castfit.fit.attempt import Attempt, FitRun
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable

_INTEGRATED = 1e4  # times what rounding leaves: what integrators and collocation leave


def estimate(
    problem: Posable, found: Attempt, run: FitRun, *, message: str, time: float, confidence_level: float
) -> Result:
    """Build the result from where the last search of a run ended, for fits that failed as well.

    problem : what the user asked; what was solved, which need not be that as it stands, is the run's
    """
    posed, staged, solution, at = run.problem, found.staged, found.solution, found.linear
    transcription = found.transcription
    by = found.staging.solver or run.solver
    by = DOWN if by is PROBE else by  # how far it went at most is how it was found, not what it is
    v, status, active = solution.v, solution.status, solution.active
    layout, quantities = staged.layout, problem.quantities
    unknown_sigmas = sigma_names(posed)
    names, theta = layout.names, layout.theta(v).copy()
    # exp(log(bound)) may lie beyond the bound by rounding, and a solver may overstep a bound by its tolerance.
    natural = np.clip(problem.to_natural(theta), [q.lower for q in quantities], [q.upper for q in quantities])
    slope = problem.natural_slope(theta)
    values = dict(zip(names, natural.tolist(), strict=True))
    n_theta, n_rows = len(names), problem.n_data + _n_informing(at) - int(posed.penalties.sum())
    rough = sum(term.rows(natural)[2] for term in posed.smooth)
    held = {layout.describe(int(i)): "lower" if active[i] < 0 else "upper" for i in np.flatnonzero(active)}

    known, unknown = _uncertainty(posed, found)
    constraints = ConstraintTable()
    if (posed.path or posed.relations or posed.implied) and isinstance(at, Linearization) and at.ok:
        constraints = constraint_table(posed, staged, at, success=status.success)
    trusted = known if status.success else None
    none, few = nothing_known(names), n_theta <= WRITTEN_OUT
    covariance, errors, numerical = none, np.full(n_theta, np.nan), np.full(n_theta, np.nan)
    if trusted is not None:
        with np.errstate(invalid="ignore"):  # infinitely uncertain, and too small for a number
            matrix = trusted.covariance
            blocks = matrix.scaled(slope) if isinstance(matrix, BlockMatrix) else slope[:, None] * matrix * slope
            covariance = cast("Array", blocks)
            errors, numerical = slope * trusted.standard_errors, slope * trusted.numerical_errors
    dof = known.dof if known is not None else n_rows - n_theta
    likelihood = neg2loglik(
        at.cost - rough, constant(posed) + posed.prior_constant, n_unknown=int(layout.group_sizes.sum())
    )
    priors = [term for term in posed.every_prior if not isinstance(term, Smooth)]
    prior = 2.0 * (posed.priors(theta).cost - rough + posed.prior_constant) if priors else 0.0
    # of what is determined, priors and penalties determine their part
    n_estimated = float(layout.n_groups) + (n_theta if known is None else known.rank - known.by_priors)
    if posed.measure == LOSS:
        n_estimated = np.nan  # there are no criteria of what is no likelihood
    criteria = Criteria(likelihood - prior, problem.n_data, n_estimated)
    seen = Seen.of(posed, staged, at, None if known is None else known.noise)
    chi2 = weighted_squares(layout, at) if posed.least_squares else float(np.sum(seen.normalised**2))
    counted = posed.least_squares and not posed.groups  # then chi2 holds what priors cost
    chi2 -= 2.0 * counted * rough
    verdict = no_verdict(names, unknown)
    if known is not None:
        reach = quantile(0.95, np.inf if posed.absolute_sigma else dof)
        verdict = judge(names, natural, slope, held, known, reach=reach, unknown=unknown)
    judged = _goodness(posed, found, seen, chi2 - 2.0 * counted * posed.priors(theta).straight_cost, dof)
    result = Result(
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
        residuals=seen.residuals,
        predictions=seen.predictions,
        spreads=seen.spreads,
        normalised_residuals=seen.normalised,
        deviations=seen.deviations,
        bounds=np.array([(q.lower, q.upper) for q in quantities], dtype=float).reshape(-1, 2),
        active=held,
        gaps=_largest_gap(staged, at),
        trajectories={
            chain.name: Nodes(times[:-1], states)
            for chain, times, states in zip(layout.chains, staged.times(v), staged.node_states(v), strict=True)
        },
        goodness=judged,
        dof=dof,
        neg2loglik=likelihood,
        aic=criteria.aic,
        bic=criteria.bic,
        jacobian=known.jacobian if known is not None else np.full((n_rows if few else 0, n_theta), np.nan),
        gradient=known.gradient if known is not None else np.full(n_theta, np.nan),
        covariance=covariance,
        correlation=trusted.correlation if trusted is not None else none,
        standard_errors=_by_name(names, errors),
        numerical_errors=_by_name(names, numerical),
        noise=_noise(posed, known),
        sigmas=dict(zip(unknown_sigmas, at.sigma.tolist(), strict=True)),
        sigma_errors=dict(
            zip(unknown_sigmas, (at.sigma * np.nan if trusted is None else trusted.noise_errors).tolist(), strict=True)
        ),
        information=known.information if known is not None else none,
        rank=-1 if known is None else known.rank,
        root=np.full((n_theta, n_theta if few else 0), np.nan) if trusted is None else trusted.root,
        undetermined=np.empty((0, n_theta)) if trusted is None else trusted.directions / trusted.scale,
        neg2logprior=prior,
        n_estimated=n_estimated,
        leverage=np.full(problem.n_data, np.nan) if trusted is None else trusted.leverage,
        absolute_sigma=posed.absolute_sigma,
        measure=posed.measure,
        confidence_level=confidence_level,
        smoothness={term.label: term.weight for term in posed.smooth},
        effective=_effective(posed, held, None if known is None else known.held_back),
        inflation=1.0 if known is None else known.inflation,
        constraints=constraints,
        identifiability=verdict,
        transcription=transcription.label,
        solver=by.label,
        integrator=transcription.integrator,
        iterations=run.iterations,
        evaluations=dict(run.evaluations),
        failures=dict(run.failures),
        time=time,
        history=tuple(run.history),
        versions=versions(),
        strategies=tuple(run.strategies),
        found_by=(transcription, by),
        problem=problem,
    )
    return with_dependence(result, problem.posed) if judged.doubtful else result


def _uncertainty(posed: Posed, found: Attempt) -> tuple[Statistics | None, str]:
    """Compute the statistics at the end of the search, or None, and the reason if uncertainties are unknown."""
    at, verification = found.linear, found.verification
    unknown = "" if found.solution.status.success else "the fit did not succeed"
    if not (isinstance(at, Linearization) and at.ok):
        return None, unknown or "the problem was not linearized"
    try:
        known = statistics(
            found.staged.layout,
            at,
            found.solution.active,
            scale=found.staged.scale,
            relative_tolerance=found.transcription.accuracy,
            absolute_tolerance=found.transcription.integrator.absolute_tolerance,
            penalty=posed.penalties,
            row_errors=None if verification is None else verification.row_errors,
            defects=None if verification is None else verification.defects,
        )
    except (np.linalg.LinAlgError, RuntimeError):  # derivatives that are not finite, or multipliers not found
        return None, unknown or "the linear algebra of the statistics failed"
    return known, unknown


def _goodness(posed: Posed, found: Attempt, seen: Seen, chi2: float, dof: int) -> Goodness:
    """Judge how well the model describes the data, by the residuals and chi2 without what priors cost."""
    if found.verification is not None and not found.verification.reproduced:
        return UNKNOWN  # these are not the model's residuals
    heavy = any(o is not None and o.noise.heavy for c in posed.conditions for o in c.observed)
    absolute, of = posed.absolute_sigma and not heavy, series(posed, seen)
    if absolute and any(o is not None and o.noise.beyond(c.points.values[:, j]).any()
                        for c in posed.conditions for j, o in enumerate(c.observed)):  # fmt: skip
        # What is beyond a limit of detection costs the less the farther it is: no residual, and no degree of freedom.
        chi2 = sum(float(s.residuals @ s.residuals) for s in of)
        dof -= posed.n_data - sum(s.residuals.size for s in of)
    judged = goodness(of, chi2, dof, absolute_sigma=absolute)
    no_optimum = judged is not UNKNOWN and not found.solution.status.success
    return replace(judged, sentence=NO_OPTIMUM) if no_optimum else judged


def sigma_names(posed: Posed) -> list[str]:
    """Return the names of the eliminated sigmas in results."""
    return [f"sigma({name})" if name else "sigma" for name in posed.groups]


def _effective(posed: Posed, held: Mapping[str, str], leverage: Array | None) -> dict[str, float]:
    """Compute the number of values of each smooth input that the data determine; NaN if unknown."""
    out: dict[str, float] = {}
    first = 0
    for term in posed.smooth:
        own = slice(first, first + term.offset.size)
        first = own.stop
        free = sum(posed.names[j] not in held for j in term.at.tolist())
        left = np.nan if leverage is None else free - float(np.sum(leverage[own]))
        out[term.label] = out.get(term.label, 0.0) + left
    return out


def nothing_known(names: tuple[str, ...]) -> Array:
    """Return a matrix of NaN over the quantities, which takes no memory if there are many."""
    n = len(names)
    if n <= WRITTEN_OUT:
        return np.full((n, n), np.nan)
    each, held = np.arange(n), np.ones(n, dtype=np.bool_)
    nothing, none = np.empty((n, 0)), np.empty(0, dtype=np.intp)
    return cast(
        "Array",
        BlockMatrix(
            names, none, each, each, np.zeros(n, dtype=np.intp), np.empty((0, 0)), nothing, nothing, np.zeros((n, 1)),
            np.ones(n), held, ~held,
        ),
    )  # fmt: skip


def _by_name(names: Sequence[str], values: Array) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def _n_informing(at: Evaluation) -> int:
    return at.prior.size if at.prior_curved is None else int(at.prior_curved.sum())


def _noise(problem: Posed, found: Statistics | None) -> float:
    """Return the factor on the standard deviations that all data share; NaN if unknown, or if they share none."""
    if problem.groups == ("",):
        return np.nan if found is None else float(found.noise[0])
    return 1.0 if not problem.groups and not problem.noise_parameters else np.nan


def _largest_gap(staged: StagedProblem, at: Evaluation) -> float:
    scaled = [
        np.abs(gap / staged.scale[chain.nodes]).ravel()
        for chain, gap in zip(staged.layout.chains, gaps(staged.layout, at), strict=True)
    ]
    return float(np.concatenate(scaled).max(initial=0.0))  # NaN where a stage failed


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of what computed a result."""
    by = {name: str(vars(package)["__version__"]) for name, package in (("casadi", ca), ("numpy", np))}
    return {"python": platform.python_version(), "castfit": __version__, **by}


def reproduced(problem: Posed, staged: StagedProblem, at: Evaluation, active: NDArray[np.int8]) -> str:
    """Return a sentence about data that are reproduced exactly, so that their noise is unknown.

    Empty if there are none.

    Sigmas that are eliminated are then as small as errors of integration; those that are estimated are at the bound
    that the resolution of the data sets, unless another one was given.
    """
    floor = at.sigma <= staged.least_sigma
    small = at.sigma <= _INTEGRATED * staged.least_sigma
    names = [name for name, exact in zip(problem.groups, small, strict=True) if exact]
    held = [name for name, side in zip(problem.names, active[: len(problem.names)], strict=True) if side < 0]
    if held:
        free = {
            parameter_of(n, name): name for name, _, n, sigma in unknowns(problem.experiments) if sigma.lower == 0.0
        }
        names += [free[name] for name in held if name in free]
    if not names:
        return ""
    data = f"data of {', '.join(names)}" if all(names) else "data"
    left = "rounding" if len(names) == np.count_nonzero(floor) else "the errors of the integration"
    return f"The {data} are fitted exactly (within {left}), so their noise cannot be estimated."
