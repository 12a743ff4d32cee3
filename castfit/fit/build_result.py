"""Construction of a result from the end of a search: estimates, their uncertainty, verdicts."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import cast

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array
from castfit._support.blas_threads import blas_kernel
from castfit._support.time_limit import StopRequested
from castfit._support.version import __version__
from castfit.fit.attempt import Attempt, FitRun
from castfit.fit.choice import DEFAULT_SOLVER, DESCENT_SOLVER, PROBE_SOLVER, RANK_DEFICIENT_SOLVER
from castfit.problem.compiled_problem import LOSS, CompiledProblem
from castfit.problem.observables import parameter_of, unknowns
from castfit.problem.prior_rows import SmoothnessPenalty
from castfit.problem.problem import Posable
from castfit.result.block_matrix import BlockMatrix
from castfit.result.constraint_table import ConstraintTable, constraint_table
from castfit.result.covariance import MAX_WRITTEN_OUT_QUANTITIES, Statistics, neg2loglik, quantile, statistics
from castfit.result.goodness_of_fit import NO_OPTIMUM, UNKNOWN, Criteria, Goodness, goodness
from castfit.result.identifiability import AT_BOUND, POORLY_DETERMINED, judge, no_verdict
from castfit.result.residuals import ResidualTable, series
from castfit.result.result import Result, with_dependence
from castfit.simulate.simulate import TrajectoryNodes
from castfit.solve.matrices import MAX_DENSE_LOCAL_UNKNOWNS
from castfit.solve.staged import Evaluation, Linearization, StagedProblem, gaps, weighted_squares
from castfit.solve.subproblem import units_of_search
from castfit.transcribe.observation import constant

# Multiple of the rounding floor of sigma that integration and collocation errors may reach.
_INTEGRATION_ERROR_FACTOR = 1e4
_MIN_FOLD_HALF_WIDTH = 0.3  # Half-width of a linear interval, in search units, from which a fold is looked for.
_MAX_CHECK_FRACTION = 0.05  # simulations for intervals by evaluations of the search: at most a tenth of its time


def build_result(
    problem: Posable, attempt: Attempt, run: FitRun, *, message: str, time: float, confidence_level: float
) -> Result:
    """Build the result from the last search of a run, also for fits that failed.

    problem : problem of the user; the problem of the run, which was solved, may differ from it
    """
    compiled_problem, staged, solution, evaluation = run.problem, attempt.staged, attempt.solution, attempt.linear
    transcription = attempt.transcription
    solver = attempt.staging.solver or run.solver
    # The limit on iterations is not part of the result.
    solver = DESCENT_SOLVER if solver is PROBE_SOLVER else DEFAULT_SOLVER if solver is RANK_DEFICIENT_SOLVER else solver
    v, status, active = solution.v, solution.status, solution.active
    layout, quantities = staged.layout, problem.quantities
    unknown_sigmas = sigma_names(compiled_problem)
    names, theta = layout.names, layout.theta(v).copy()
    # exp(log(bound)) may lie beyond the bound by rounding, and a solver may overstep a bound by its tolerance.
    natural = np.clip(problem.to_natural(theta), [q.lower for q in quantities], [q.upper for q in quantities])
    slope = problem.natural_slope(theta)
    values = dict(zip(names, natural.tolist(), strict=True))
    n_theta, n_rows = len(names), problem.n_data + _n_informing(evaluation) - int(compiled_problem.penalty_mask.sum())
    roughness_cost = sum(term.rows(natural)[2] for term in compiled_problem.smoothness_penalties)
    bound_sides = {layout.describe(int(i)): "lower" if active[i] < 0 else "upper" for i in np.flatnonzero(active)}

    fit_statistics, unknown_reason = _uncertainty(run, attempt)
    constraints = ConstraintTable()
    if (
        (compiled_problem.path or compiled_problem.relations or compiled_problem.implied_relations)
        and isinstance(evaluation, Linearization)
        and evaluation.ok
    ):
        constraints = constraint_table(compiled_problem, staged, evaluation, success=status.success)
    solution_statistics = fit_statistics if status.success else None
    undefined_matrix, is_small = nan_matrix(names), n_theta <= MAX_WRITTEN_OUT_QUANTITIES
    covariance, standard_errors, numerical_errors = undefined_matrix, np.full(n_theta, np.nan), np.full(n_theta, np.nan)
    if solution_statistics is not None:
        with np.errstate(invalid="ignore"):  # infinite uncertainty, or underflow
            matrix = solution_statistics.covariance
            blocks = matrix.scaled(slope) if isinstance(matrix, BlockMatrix) else slope[:, None] * matrix * slope
            covariance = cast("Array", blocks)
            standard_errors, numerical_errors = (
                slope * solution_statistics.standard_errors,
                slope * solution_statistics.numerical_errors,
            )
    dof = fit_statistics.dof if fit_statistics is not None else n_rows - n_theta
    likelihood = neg2loglik(
        evaluation.cost - roughness_cost,
        constant(compiled_problem) + compiled_problem.prior_constant,
        n_unknown=int(layout.group_sizes.sum()),
    )
    priors = [term for term in compiled_problem.every_prior if not isinstance(term, SmoothnessPenalty)]
    prior = (
        2.0 * (compiled_problem.priors(theta).cost - roughness_cost + compiled_problem.prior_constant)
        if priors
        else 0.0
    )
    # The rank counts directions that priors and penalties determine, too.
    n_estimated = float(layout.n_groups) + (
        n_theta if fit_statistics is None else fit_statistics.rank - fit_statistics.by_priors
    )
    if compiled_problem.measure == LOSS:
        n_estimated = np.nan  # a robust loss is not a likelihood
    criteria = Criteria(likelihood - prior, problem.n_data, n_estimated)
    residual_statistics = ResidualTable.from_evaluation(
        compiled_problem, staged, evaluation, None if fit_statistics is None else fit_statistics.noise
    )
    chi2 = (
        weighted_squares(layout, evaluation)
        if compiled_problem.least_squares
        else float(np.sum(residual_statistics.normalised**2))
    )
    includes_priors = (
        compiled_problem.least_squares and not compiled_problem.groups
    )  # then chi2 includes the cost of priors
    chi2 -= 2.0 * includes_priors * roughness_cost
    verdict = no_verdict(names, unknown_reason)
    if fit_statistics is not None:
        confidence_factor = quantile(0.95, np.inf if compiled_problem.absolute_sigma else dof)
        verdict = judge(
            names, natural, slope, bound_sides, fit_statistics, reach=confidence_factor, unknown=unknown_reason
        )
    goodness_of_fit = _goodness(
        compiled_problem,
        attempt,
        residual_statistics,
        chi2 - 2.0 * includes_priors * compiled_problem.priors(theta).straight_cost,
        dof,
    )
    result = Result(
        status=status,
        message=message,
        names=names,
        theta=theta,
        log=problem.log,
        parameters={q.name: values[q.name] for q in quantities if q.kind == "parameter"},
        initial_states={q.name: values[q.name] for q in quantities if q.kind == "initial state"},
        cost=evaluation.cost,
        chi2=chi2,
        n_data=problem.n_data,
        residuals=residual_statistics.residuals,
        predictions=residual_statistics.predictions,
        spreads=residual_statistics.spreads,
        normalised_residuals=residual_statistics.normalised,
        deviations=residual_statistics.deviations,
        bounds=np.array([(q.lower, q.upper) for q in quantities], dtype=float).reshape(-1, 2),
        active=bound_sides,
        gaps=_largest_gap(staged, evaluation),
        trajectories={
            chain.name: TrajectoryNodes(times[:-1], states)
            for chain, times, states in zip(layout.chains, staged.times(v), staged.node_states(v), strict=True)
        },
        goodness=goodness_of_fit,
        dof=dof,
        neg2loglik=likelihood,
        aic=criteria.aic,
        bic=criteria.bic,
        jacobian=-fit_statistics.jacobian
        if fit_statistics is not None
        else np.full((n_rows if is_small else 0, n_theta), np.nan),
        gradient=fit_statistics.gradient if fit_statistics is not None else np.full(n_theta, np.nan),
        covariance=covariance,
        correlation=solution_statistics.correlation if solution_statistics is not None else undefined_matrix,
        standard_errors=_by_name(names, standard_errors),
        numerical_errors=_by_name(names, numerical_errors),
        noise=_noise(compiled_problem, fit_statistics),
        sigmas=dict(zip(unknown_sigmas, evaluation.sigma.tolist(), strict=True)),
        sigma_errors=dict(
            zip(
                unknown_sigmas,
                (
                    evaluation.sigma * np.nan if solution_statistics is None else solution_statistics.noise_errors
                ).tolist(),
                strict=True,
            )
        ),
        information=fit_statistics.information if fit_statistics is not None else undefined_matrix,
        rank=-1 if fit_statistics is None else fit_statistics.rank,
        root=np.full((n_theta, n_theta if is_small else 0), np.nan)
        if solution_statistics is None
        else solution_statistics.root,
        undetermined=np.empty((0, n_theta))
        if solution_statistics is None
        else solution_statistics.directions / solution_statistics.scale,
        neg2logprior=prior,
        n_estimated=n_estimated,
        leverage=np.full(problem.n_data, np.nan) if solution_statistics is None else solution_statistics.leverage,
        absolute_sigma=compiled_problem.absolute_sigma,
        measure=compiled_problem.measure,
        confidence_level=confidence_level,
        smoothness={term.label: term.weight for term in compiled_problem.smoothness_penalties},
        effective=_effective(
            compiled_problem, bound_sides, None if fit_statistics is None else fit_statistics.held_back
        ),
        inflation=1.0 if fit_statistics is None else fit_statistics.inflation,
        constraints=constraints,
        identifiability=verdict,
        transcription=transcription.label,
        solver=solver.label,
        integrator=transcription.integrator,
        iterations=run.iterations,
        evaluations=dict(run.evaluations),
        failures=dict(run.failures),
        time=time,
        history=tuple(run.history),
        versions=versions(),
        strategies=tuple(run.strategies),
        method=(transcription, solver),
        problem=problem,
    )
    is_doubtful = any(v.kind in (POORLY_DETERMINED, AT_BOUND) for v in verdict.verdicts)
    if fit_statistics is not None and (is_doubtful or fit_statistics.has_fold):
        from castfit.result.interval_ends import with_interval_checks  # most fits need none

        # An evaluation of nodes or elements takes less time than a simulation with derivatives.
        n_columns = 1 + n_theta if staged.layout.is_theta_only else 1
        n_values = run.evaluations["values"] + n_columns * run.evaluations["jacobians"]
        result = with_interval_checks(
            result,
            n_evaluations=_MAX_CHECK_FRACTION * n_values,
            only_doubtful=not fit_statistics.has_fold,
            staged=staged if staged.layout.is_theta_only else None,
        )
    return with_dependence(result, problem.posed) if goodness_of_fit.doubtful else result


def _uncertainty(run: FitRun, attempt: Attempt) -> tuple[Statistics | None, str]:
    """Compute the statistics at the end of the search, or None, and the reason if uncertainties are unknown."""
    evaluation, verification = attempt.linear, attempt.verification
    unknown_reason = "" if attempt.solution.status.success else "the fit did not succeed"
    if not (isinstance(evaluation, Linearization) and evaluation.ok):
        return None, unknown_reason or "the problem was not linearized"
    compute_statistics = partial(
        statistics,
        attempt.staged.layout,
        evaluation,
        attempt.solution.active,
        scale=attempt.staged.scale,
        relative_tolerance=attempt.transcription.accuracy,
        absolute_tolerance=attempt.transcription.integrator.absolute_tolerance,
        penalty=run.problem.penalty_mask,
        row_errors=None if verification is None else verification.row_errors,
        defects=None if verification is None else verification.defects,
    )
    try:
        fit_statistics = compute_statistics()
        fold = None if unknown_reason else _fold(run, attempt, fit_statistics)
        return fit_statistics if fold is None else compute_statistics(fold=fold), unknown_reason
    except (np.linalg.LinAlgError, RuntimeError):  # non-finite derivatives, or no multipliers
        return None, unknown_reason or "the linear algebra of the statistics failed"


def _fold(run: FitRun, attempt: Attempt, fit_statistics: Statistics) -> Array | None:
    """Return the second-order information of a solution whose linear intervals are wide; None if it has none."""
    staged, n = attempt.staged, len(run.problem.names)
    z = quantile(0.95, np.inf if run.problem.absolute_sigma else fit_statistics.dof) * np.sqrt(fit_statistics.inflation)
    is_quadratic = n <= MAX_DENSE_LOCAL_UNKNOWNS and staged.least_squares and not staged.layout.has_constraints
    is_quadratic &= bool((attempt.linear.sigma > _INTEGRATION_ERROR_FACTOR * staged.least_sigma).all())
    min_error = _MIN_FOLD_HALF_WIDTH * units_of_search(staged, attempt.solution.v)[:n] / z
    if is_quadratic and (fit_statistics.standard_errors > min_error).any():
        from castfit.fit.strategies import simulated_problem
        from castfit.result.fold_information import fold_rows

        with suppress(StopRequested, np.linalg.LinAlgError), np.errstate(all="ignore"):
            is_simulated, theta = staged.layout.is_theta_only, attempt.theta
            simulation = staged if is_simulated else simulated_problem(run, attempt.transcription, theta)
            return fold_rows(simulation, simulation.linearize(theta), attempt.solution.active[:n], z)
    return None


def _goodness(
    compiled_problem: CompiledProblem, attempt: Attempt, residual_statistics: ResidualTable, chi2: float, dof: int
) -> Goodness:
    """Assess the goodness of fit from the residuals and from chi2 without the cost of priors."""
    if attempt.verification is not None and not attempt.verification.is_reproduced:
        return UNKNOWN  # the residuals are not those of the model
    has_heavy_tails = any(
        o is not None and o.noise.is_heavy_tailed for c in compiled_problem.conditions for o in c.observed
    )
    is_absolute, residual_series = (
        compiled_problem.absolute_sigma and not has_heavy_tails,
        series(compiled_problem, residual_statistics),
    )
    if is_absolute and any(o is not None and o.noise.censoring_side(c.points.values[:, j]).any()
                        for c in compiled_problem.conditions for j, o in enumerate(c.observed)):  # fmt: skip
        # A value beyond a limit of detection has no residual and no degree of freedom.
        chi2 = sum(float(s.residuals @ s.residuals) for s in residual_series)
        dof -= compiled_problem.n_data - sum(s.residuals.size for s in residual_series)
    goodness_of_fit = goodness(residual_series, chi2, dof, absolute_sigma=is_absolute)
    is_no_optimum = goodness_of_fit is not UNKNOWN and not attempt.solution.status.success
    return replace(goodness_of_fit, sentence=NO_OPTIMUM) if is_no_optimum else goodness_of_fit


def sigma_names(compiled_problem: CompiledProblem) -> list[str]:
    """Return the names of the eliminated sigmas in results."""
    return [f"sigma({name})" if name else "sigma" for name in compiled_problem.groups]


def _effective(
    compiled_problem: CompiledProblem, bound_sides: Mapping[str, str], leverage: Array | None
) -> dict[str, float]:
    """Compute the number of values of each smooth input that the data determine; NaN if unknown."""
    effective_counts: dict[str, float] = {}
    offset = 0
    for term in compiled_problem.smoothness_penalties:
        rows = slice(offset, offset + term.offset.size)
        offset = rows.stop
        n_free = sum(compiled_problem.names[j] not in bound_sides for j in term.theta_index.tolist())
        n_determined = np.nan if leverage is None else n_free - float(np.sum(leverage[rows]))
        effective_counts[term.label] = effective_counts.get(term.label, 0.0) + n_determined
    return effective_counts


def nan_matrix(names: tuple[str, ...]) -> Array:
    """Return a matrix of NaN over the quantities, which takes no memory if there are many."""
    n = len(names)
    if n <= MAX_WRITTEN_OUT_QUANTITIES:
        return np.full((n, n), np.nan)
    indices, is_undefined = np.arange(n), np.ones(n, dtype=np.bool_)
    no_columns, no_indices = np.empty((n, 0)), np.empty(0, dtype=np.intp)
    return cast(
        "Array",
        BlockMatrix(
            names, no_indices, indices, indices, np.zeros(n, dtype=np.intp), np.empty((0, 0)), no_columns, no_columns,
            np.zeros((n, 1)), np.ones(n), is_undefined, ~is_undefined,
        ),
    )  # fmt: skip


def _by_name(names: Sequence[str], values: Array) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def _n_informing(evaluation: Evaluation) -> int:
    return evaluation.prior.size if evaluation.prior_curved is None else int(evaluation.prior_curved.sum())


def _noise(problem: CompiledProblem, fit_statistics: Statistics | None) -> float:
    """Return the common factor on the standard deviations of all data; NaN if unknown, or if there is none."""
    if problem.groups == ("",):
        return np.nan if fit_statistics is None else float(fit_statistics.noise[0])
    return 1.0 if not problem.groups and not problem.noise_parameters else np.nan


def _largest_gap(staged: StagedProblem, evaluation: Evaluation) -> float:
    scaled = [
        np.abs(gap / staged.scale[chain.nodes]).ravel()
        for chain, gap in zip(staged.layout.chains, gaps(staged.layout, evaluation), strict=True)
    ]
    return float(np.concatenate(scaled).max(initial=0.0))  # NaN if a stage failed


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of the packages that computed a result, and the kernel of the BLAS."""
    package_versions = {name: str(vars(package)["__version__"]) for name, package in (("casadi", ca), ("numpy", np))}
    return {"python": platform.python_version(), "castfit": __version__, **package_versions, "blas": blas_kernel()}


def describe_exact_data(
    problem: CompiledProblem, staged: StagedProblem, evaluation: Evaluation, active: NDArray[np.int8]
) -> str:
    """Return a sentence about data that are fitted exactly, so that their noise is unknown.

    Return an empty string if there are none.  Eliminated sigmas are then as small as integration errors; estimated ones
    are at the bound that follows from the resolution of the data, unless another bound was set.
    """
    is_at_floor = evaluation.sigma <= staged.least_sigma
    is_reproduced = evaluation.sigma <= _INTEGRATION_ERROR_FACTOR * staged.least_sigma
    names = [name for name, is_exact in zip(problem.groups, is_reproduced, strict=True) if is_exact]
    names_at_bound = [name for name, side in zip(problem.names, active[: len(problem.names)], strict=True) if side < 0]
    if names_at_bound:
        free = {
            parameter_of(n, name): name for name, _, n, sigma in unknowns(problem.experiments) if sigma.lower == 0.0
        }
        names += [free[name] for name in names_at_bound if name in free]
    if not names:
        return ""
    data = f"data of {', '.join(names)}" if all(names) else "data"
    error_source = "rounding" if len(names) == np.count_nonzero(is_at_floor) else "the errors of the integration"
    return f"The {data} are fitted exactly (within {error_source}), so their noise cannot be estimated."
