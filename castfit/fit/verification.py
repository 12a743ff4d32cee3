"""Verification of a solution: the model, integrated with error control, must reproduce it.

A search represents the model by its transcription: polynomials on elements, or stages that match up to a tolerance.
The verification integrates the model again, with error control and to a tighter tolerance than that of the search:

1. From the initial states over the whole experiment.  The resulting rows are compared with those of the search.
2. If they differ, as they must in a system that amplifies errors: from one measured time to the next, if there are far
   more nodes than measured times; if this fails or does not apply, from every node to the next.  The trajectory is
   reproduced if each piece ends at the start of the next one, up to the possible integration error *there*,

    |x_{k+1} - s_{k+1}| <= tolerance (|x_{k+1}| + |X_s| |s_k|),

   or, for instance if a state starts at zero, up to the effect of this error at the end of the piece that follows.
   The magnitude of the state elsewhere does not count: x' = k x^2 from x(0) = 0 stays at zero, and a gap of 1e-10 with
   k = 1e10 is not a rounding error; it explains how the search came to its solution.

SUNDIALS also verifies searches by the ESDIRK method: with Adams' formulas and a still tighter tolerance, if no
stiffness was detected and they reproduce the solution; otherwise with BDF.  If SUNDIALS cannot integrate the model at
all, the method of the search does, to the tighter tolerance.  The numerical error of a search is known as accurately as
the second integration is.  At equal tolerances Adams' formulas have a quarter of the error of BDF (Lotka-Volterra
1.2e-9 and 4.3e-9 at 1e-10), in half the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from castfit._support.arrays import Array, Index
from castfit._support.records import dataclass
from castfit.integrate import STEPPED, IntegratorOptions, method_of, sundials
from castfit.integrate.lanes import snap_times
from castfit.problem.compiled_problem import CHI2, PETAB, CompiledProblem
from castfit.result.covariance import neg2loglik, weighted_residuals
from castfit.solve.staged import Evaluation, Layout, StagedProblem, gaps, weighted_squares
from castfit.transcribe.collocation_problem import CollocationProblem
from castfit.transcribe.observation import constant
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.stage_division import divide_all
from castfit.transcribe.trajectory import Trajectory, trajectory_through

_CHI2_RTOL = 1e-3  # Relative difference of chi2 within which two integrations agree.
_CHI2_RTOL_PER_DATUM = 0.1  # The same for few data: this tolerance divided by their number, if that is larger.
_EXACT_FIT_RTOL = 1e-6  # Norm of the residuals, relative to the data, below which the fit counts as exact.
_NEGLIGIBLE_RESIDUAL_SD = 1e-3  # Residual per datum, in known standard deviations, that is negligible.
# Largest gap at the end of a piece, relative to its terms, that counts as an integration error.
_LOCAL_ERROR_RTOL = 1e-6
_STATE_ROUNDING_RTOL = 1e-14  # Rounding error of a state, relative to its largest magnitude.
# Number of pieces between measured times, relative to the stages, up to which they are tried first.
_MAX_PIECES_FRACTION = 0.5
_NONSTIFF_STEP_FRACTION = 0.9  # Fraction of explicit steps in the search from which a model counts as nonstiff.
_TIGHTER_RTOL_FACTOR = 0.1  # Integration tolerance of the verification, relative to that of the search.
_MIN_INTEGRATION_RTOL = 1e-12  # Smallest relative tolerance of the verifying integration.


@dataclass(frozen=True)
class Verification:
    """Comparison of a solution with an integration of the model under error control.

    reproduced : whether the integration reproduces the trajectory and chi2 of the search
    chi2 : of the integration from the initial states or, if only pieces can be integrated, from the nodes; in units
        of the sigmas of the search if several are unknown
    row_errors : (m,), differences of the residuals from those of the search; priors last
    defects : per experiment (K, n_s), integrated state minus node at each node, if pieces were integrated
    sentence : reason if the solution is not reproduced, otherwise empty
    objective : objective of the integration, the measure of the problem
    """

    is_reproduced: bool
    chi2: float
    row_errors: Array
    defects: tuple[Array, ...] | None = None
    sentence: str = ""
    objective: float = np.inf


def verify(
    problem: CompiledProblem, staged: StagedProblem, evaluation: Evaluation, options: IntegratorOptions, accuracy: float
) -> Verification:
    """Integrate the model again from a solution, and compare.

    `options` are the integrator options of the search, and `accuracy` is its relative accuracy over a stage; the
    verification tightens both.
    """
    n_x, n_z = len(problem.model.states), len(problem.model.algebraic_states)
    tight_options, local_tolerance = tighter(options, accuracy, n_z), max(_LOCAL_ERROR_RTOL, 10 * accuracy)
    if (
        tight_options.method == "cvodes"
        and isinstance(staged, ShootingProblem)
        and staged.explicit_share >= _NONSTIFF_STEP_FRACTION
    ):
        verification = _verified_by(_by_adams(tight_options), problem, staged, evaluation, local_tolerance)
        if verification.is_reproduced:
            return verification
    verification = _verified_by(tight_options, problem, staged, evaluation, local_tolerance)
    is_evaluated = np.isfinite(verification.chi2) or verification.defects is not None
    if is_evaluated:
        return verification
    user_options = replace(tight_options, method=options.method)
    system = problem.model.system
    if method_of(user_options, n_x, n_z, system.function("system", system.ode, system.alg)) not in STEPPED:
        return verification
    # SUNDIALS does not handle time scales 1e15 apart.
    second_verification = _verified_by(user_options, problem, staged, evaluation, local_tolerance)
    return second_verification if second_verification.is_reproduced else verification


def _verified_by(
    tight_options: IntegratorOptions,
    problem: CompiledProblem,
    staged: StagedProblem,
    evaluation: Evaluation,
    local_tolerance: float,
) -> Verification:
    """Integrate by one method over the whole experiment, otherwise piece by piece."""
    theta = staged.layout.theta(evaluation.v)
    single_shooting = _shooting(problem, staged, evaluation, tight_options)
    simulated = _compare(problem, staged, evaluation, single_shooting.layout, single_shooting.evaluate(theta))
    if simulated.is_reproduced:
        return simulated
    if staged.layout.chains[0].n_s == 0:  # there is only one piece
        return replace(simulated, sentence=_describe_difference(problem, simulated, staged, evaluation))
    measured_stages = _at_data(problem, staged)
    if measured_stages is not None:
        verification = _piecewise(
            problem, staged, evaluation, tight_options, local_tolerance, simulated, measured_stages
        )
        if verification.is_reproduced:
            return verification
    all_stages = tuple(np.arange(chain.n_stages) for chain in staged.layout.chains)
    return _piecewise(problem, staged, evaluation, tight_options, local_tolerance, simulated, all_stages)


def _shooting(
    problem: CompiledProblem,
    staged: StagedProblem,
    evaluation: Evaluation,
    options: IntegratorOptions,
    start_stages: tuple[Index, ...] | None = None,
) -> ShootingProblem:
    """Return the problem as single shooting, or as multiple shooting from some of its stages, with its units."""
    chains, theta = staged.layout.chains, staged.layout.theta(evaluation.v)
    is_every_stage = start_stages is None or all(
        k.size == c.n_stages for k, c in zip(start_stages, chains, strict=True)
    )
    is_same_form = bool(chains[0].n_s) == (start_stages is not None) and not chains[0].n_w  # nothing is relaxed here
    if isinstance(staged, ShootingProblem) and is_every_stage and is_same_form:
        return staged.explicit().integrated_by(options)
    times = staged.times(evaluation.v)
    algebraic = staged.algebraic_states(evaluation.v)
    tables = [
        (t, np.vstack([s, s[-1:]]), np.vstack([z, z[-1:]]))
        for t, s, z in zip(times, staged.node_states(evaluation.v), algebraic, strict=True)
    ]
    if isinstance(staged, ShootingProblem):
        trajectory = Trajectory(tuple(tables), staged.units)
    else:
        trajectory = trajectory_through(problem, theta, tables)
    if is_every_stage and start_stages is not None and isinstance(staged, (CollocationProblem, ShootingProblem)):
        divisions = list(staged.divisions)
    else:
        first_stages = start_stages or tuple(np.zeros(1, dtype=np.intp) for _ in chains)
        divisions = divide_all(
            problem, [np.append(t[k], t[-1]) for t, k in zip(times, first_stages, strict=True)], theta
        )
    shooting_problem = ShootingProblem(
        problem, divisions, nodes=start_stages is not None, theta=theta, trajectory=trajectory, options=options
    )
    return shooting_problem.explicit()  # estimates are verified unchanged, not fitted again


def _at_data(problem: CompiledProblem, staged: StagedProblem) -> tuple[Index, ...] | None:
    """Return the stages that begin at a measured time or breakpoint.

    Return None if they are many or if data lie inside stages.  Every piece then has only one output, at its end, and
    one integrator serves all pieces.
    """
    if any(condition.schedule.instants for condition in problem.conditions):
        return None  # stages end at events
    stages: list[Index] = []
    for chain, condition in zip(staged.layout.chains, problem.conditions, strict=True):
        boundaries = snap_times(np.concatenate([condition.points.times, condition.breakpoints]), chain.times)
        if not np.isin(boundaries, chain.times).all():
            return None
        stages.append(np.flatnonzero(np.isin(chain.times[:-1], np.append(boundaries, chain.times[0]))))
    max_pieces = _MAX_PIECES_FRACTION * sum(chain.n_stages for chain in staged.layout.chains)
    return tuple(stages) if sum(k.size for k in stages) <= max_pieces else None


@cache
def tighter(options: IntegratorOptions, accuracy: float, n_z: int) -> IntegratorOptions:
    """Return integrator options with a tenth of the error of the search, and with error control.

    SUNDIALS verifies castfit's own method if it can; n_z is the number of algebraic states.
    """
    method = sundials(n_z) if options.method in ("auto", *STEPPED, "collocation") else options.method
    return _with_tolerance(
        replace(options, method=method), _TIGHTER_RTOL_FACTOR * min(options.relative_tolerance, accuracy)
    )


@cache
def _by_adams(tight_options: IntegratorOptions) -> IntegratorOptions:
    return _with_tolerance(
        replace(tight_options, method="adams"), _TIGHTER_RTOL_FACTOR * tight_options.relative_tolerance
    )


def _with_tolerance(options: IntegratorOptions, tolerance: float) -> IntegratorOptions:
    """Return the options with a relative tolerance, limited by rounding, and an absolute one with it."""
    relative = max(tolerance, _MIN_INTEGRATION_RTOL)
    absolute = options.absolute_tolerance * relative / options.relative_tolerance
    return replace(options, relative_tolerance=relative, absolute_tolerance=absolute)


def _compare(
    problem: CompiledProblem,
    staged: StagedProblem,
    evaluation: Evaluation,
    layout: Layout,
    other_evaluation: Evaluation,
) -> Verification:
    """Compare the residuals of two integrations, separately for each unknown sigma.

    They are compared before the division by unknown sigmas: in units of the most likely sigma of each integration the
    squares sum to n in both, for any model, and at the smallest sigma they are integration errors.
    """
    residuals = weighted_residuals(staged.layout, evaluation)
    if not other_evaluation.ok:
        return Verification(
            False, np.inf, np.full(residuals.size, np.nan), sentence=other_evaluation.failures[0].detail
        )
    other_residuals, chains = weighted_residuals(layout, other_evaluation), staged.layout.chains
    group = np.concatenate([chain.group[chain.row_mask] for chain in chains])
    sizes = np.concatenate([s[chain.row_mask] for s, chain in zip(staged.data_sizes(), chains, strict=True)])
    is_same = True
    for g in np.unique(group):
        rows = np.flatnonzero(group == g)
        min_sigma = _NEGLIGIBLE_RESIDUAL_SD if g < 0 else staged.least_sigma[g]
        prior_excess = 0.0
        if g < 0:  # priors are the same in both
            rows = np.append(rows, np.arange(group.size, residuals.size))
            prior_excess = 2.0 * evaluation.prior_excess
        tolerance = max(_EXACT_FIT_RTOL * float(np.linalg.norm(sizes[group == g])), min_sigma * np.sqrt(rows.size))
        square, other_square = (float(r[rows] @ r[rows]) + prior_excess for r in (residuals, other_residuals))
        is_same &= (
            abs(other_square - square) <= max(_CHI2_RTOL, _CHI2_RTOL_PER_DATUM / rows.size) * square
            or abs(np.sqrt(other_square) - np.sqrt(square)) <= tolerance
        )
    chi2, objective = (
        weighted_squares(layout, other_evaluation, evaluation.sigma),
        objective_of(problem, layout, other_evaluation),
    )
    return Verification(bool(is_same), chi2, other_residuals - residuals, objective=objective)


def _piecewise(
    problem: CompiledProblem,
    staged: StagedProblem,
    evaluation: Evaluation,
    options: IntegratorOptions,
    local_tolerance: float,
    simulated: Verification,
    start_stages: tuple[Index, ...],
) -> Verification:
    """Integrate from the start of some stages to the next one, as multiple shooting does."""
    nodes = tuple(s[k] for s, k in zip(staged.node_states(evaluation.v), start_stages, strict=True))
    pieces = _shooting(problem, staged, evaluation, options, start_stages)
    inner = tuple(np.empty((k.size, 0)) for k in start_stages)
    v = pieces.layout.pack(staged.layout.theta(evaluation.v), nodes, inner)
    piece_evaluation = pieces.evaluate(v)
    verification, defects = (
        _compare(problem, staged, evaluation, pieces.layout, piece_evaluation),
        gaps(pieces.layout, piece_evaluation),
    )
    if not piece_evaluation.ok:
        return replace(verification, sentence=_describe_difference(problem, simulated, staged, evaluation))
    worst_excess, location = 0.0, ""
    floors = [_STATE_ROUNDING_RTOL * np.abs(s).max(axis=0) for s in nodes]
    sizes = [
        np.vstack([np.abs(values.a), np.abs(values.x[:-1])]) + floor
        for values, floor in zip(piece_evaluation.values, floors, strict=True)
    ]
    # Most gaps are small relative to the states; for the others, sensitivities limit the possible errors.
    open_masks = [(np.abs(gap) > local_tolerance * size).any(axis=1) for gap, size in zip(defects, sizes, strict=True)]
    if verification.is_reproduced and any(mask.any() for mask in open_masks):
        strengths = pieces.node_sensitivities(v, [mask | np.append(mask[1:], False) for mask in open_masks])
        if strengths is None:
            return replace(
                verification, is_reproduced=False, sentence=_describe_difference(problem, simulated, staged, evaluation)
            )
        for chain, times, mask, defect, values, X_s, s, floor in zip(
            pieces.layout.chains,
            pieces.times(v),
            open_masks,
            defects,
            piece_evaluation.values,
            strengths,
            nodes,
            floors,
            strict=True,
        ):
            strength = np.abs(X_s)
            size = np.abs(values.x) + (strength @ np.abs(s)[:, :, None])[:, :, 0]
            relative_gap = np.abs(defect) / _positive(np.vstack([np.abs(values.a), size[:-1]]) + floor)
            carried_gap = (strength @ np.abs(defect)[:, :, None])[:, :, 0] / _positive(size + floor)
            excess = np.where(
                mask, np.minimum(relative_gap.max(axis=1), carried_gap.max(axis=1)) / local_tolerance, 0.0
            )
            k = int(np.argmax(excess))
            if excess[k] > worst_excess:
                i, worst_excess = int(np.argmax(relative_gap[k])), float(excess[k])
                jump = f"{chain.state_names[i]} jumps by {abs(defect[k, i]):.2g}"
                location = f"{jump} at t = {times[k]:.6g} ({chain.name})"
    if verification.is_reproduced and worst_excess <= 1.0:
        return replace(verification, defects=_spread(staged, start_stages, defects))
    summary = _describe_difference(problem, simulated, staged, evaluation)
    cause = (
        f"The shooting segments do not match: {location}, more than integration errors explain."
        if verification.is_reproduced
        else "Integrated segment by segment from its nodes, the model has "
        f"{problem.measure} = {verification.objective:.6g}."
    )
    spread = _spread(staged, start_stages, defects)
    return replace(
        verification, is_reproduced=False, chi2=simulated.chi2, defects=spread, sentence=f"{summary} {cause}"
    )


def _spread(staged: StagedProblem, start_stages: tuple[Index, ...], defects: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return defects for all stages, zero if no piece begins at the stage."""
    all_defects = tuple(np.zeros((chain.n_stages, chain.n_s)) for chain in staged.layout.chains)
    for chain_defects, k, stage_defects in zip(all_defects, start_stages, defects, strict=True):
        chain_defects[k] = stage_defects
    return all_defects


def objective_of(problem: CompiledProblem, layout: Layout, evaluation: Evaluation) -> float:
    """Return the objective of a fit (`CompiledProblem.measure`) at a point."""
    return objective_function(problem, layout)(evaluation.v, evaluation.cost, weighted_squares(layout, evaluation))


def objective_function(problem: CompiledProblem, layout: Layout) -> Callable[[Array, float, float], float]:
    """Return a function that computes `CompiledProblem.measure` from variables (n_v,), their cost and chi2."""
    is_chi2 = problem.measure == CHI2
    constant_term = 0.0 if is_chi2 else constant(problem) + problem.prior_constant
    share, n_unknown = 0.5 if problem.measure == PETAB else 1.0, int(layout.group_sizes.sum())

    def objective(v: Array, cost: float, chi2: float) -> float:
        roughness_cost = sum(term.rows(problem.to_natural(layout.theta(v)))[2] for term in problem.smoothness_penalties)
        return (
            chi2 - 2.0 * roughness_cost
            if is_chi2
            else share * neg2loglik(cost - roughness_cost, constant_term, n_unknown=n_unknown)
        )

    return objective


def _describe_difference(
    problem: CompiledProblem, simulated: Verification, staged: StagedProblem, evaluation: Evaluation
) -> str:
    claim = f"instead of {objective_of(problem, staged.layout, evaluation):.6g} in the search"
    if np.isfinite(simulated.chi2):
        measure_text = f"{problem.measure} = {simulated.objective:.6g}"
        return f"Simulated from the estimated initial states, the model has {measure_text} {claim}."
    return f"The model cannot be simulated from the estimated initial states ({simulated.sentence})."


def _positive(sizes: Array) -> Array:
    return np.maximum(sizes, np.finfo(float).tiny)
