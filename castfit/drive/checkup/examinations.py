"""Checks of a fit and its problem, one function each; `EXAMINATIONS` at the end gives their order.

Each returns a `Finding`: ok, a warning with advice, or the reason for a skipped check (`report_skipped`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from castfit._support.arrays import Array
from castfit._support.reprs import join_limited
from castfit._support.status import InputError
from castfit._support.time_limit import available_memory, format_memory
from castfit.drive.checkup.random_points import magnitudes_of, random_values
from castfit.drive.checkup.stiffness import stiffness
from castfit.fit.choice import CostFeatures, choose, predict_costs
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import TRANSCRIPTIONS, Solver, Transcription
from castfit.integrate import STEPPED, SUNDIALS, IntegratorOptions, sundials
from castfit.integrate.esdirk_binding import wanted_compiler
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import Posable
from castfit.result.covariance import statistics
from castfit.result.identifiability import CORRELATED_WITH, NOT_IDENTIFIABLE, POORLY_DETERMINED
from castfit.result.interval_ends import APPROXIMATE, with_interval_checks
from castfit.result.residuals import NO_FINDING
from castfit.result.result import Result
from castfit.result.structural_identifiability import structure
from castfit.simulate.output_sensitivities import OutputSensitivities, responses
from castfit.simulate.simulate import SimulationError, predict
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

_MAX_DERIVATIVE_ERROR = 1e-3  # relative error of a derivative, beyond which the check warns
_DIFFERENCE_STEP_REL = 1e-3  # step of finite differences, relative to each quantity's size
_INTEGRATION_NOISE_FACTOR = 100.0  # times the tolerance: how far neighbouring integrations differ
_MIN_EFFECT_FRACTION = 1e-12  # fraction of the largest effect below which a value is unaffected
_MAX_LINEAR_DECADES = 3.0  # decades between bounds, beyond which a linear scale is poor
_MAX_GUESS_RATIO = 100.0  # factor between guess and estimate
_MAX_PREDICTION_SHIFT_SIGMA = 0.05  # standard deviations by which predictions may depend on the tolerance
_MAX_ESTIMATE_SHIFT_SE = 0.1  # standard errors by which estimates of transcriptions may differ
_MIN_CHI2_GAIN_PER_DATUM = 1e-3  # decrease of chi2 per datum that makes a better optimum
_SAME_OUTPUT = 1e-6  # relative difference up to which outputs are equal
_CHECK_TIME_SHARE = 0.1  # share of the remaining time in which intervals are checked
_MAX_PAIR_EXCHANGE_QUANTITIES = 7  # number of quantities up to which pairs of exchanges are tried
# Limit of another fit's time: a multiple of the first fit's, and seconds.
_PATIENCE_FACTOR, _MIN_PATIENCE_SECONDS = 5.0, 2.0
# Minimum seconds of a check.
MIN_CHECK_SECONDS = 1e-2

# End of the sentence of a check that was skipped for lack of time.
NO_TIME_LEFT = "no time left."

_START_SCATTER_LOG = float(np.log(10.0))  # starts are drawn within a factor of ten
_TINY = np.finfo(float).tiny

Finding = tuple[bool | None, str, str]
"""Whether it is fine, None if skipped; the sentence; advice, empty if none."""


def report_ok(sentence: str) -> Finding:
    """Return a finding without a problem."""
    return True, sentence, ""


def report_warning(sentence: str, advice: str = "") -> Finding:
    """Return a finding that needs attention."""
    return False, sentence, advice


def report_skipped(sentence: str) -> Finding:
    """Return a finding for a check that could not be made, with the reason."""
    return None, sentence, ""


@dataclass(frozen=True, eq=False)
class CheckContext:
    """Subject of the checks: a problem at theta, its fit, the user's method, and the remaining seconds."""

    problem: Posable
    compiled_problem: CompiledProblem
    theta: Array
    result: Result
    options: IntegratorOptions
    method: tuple[Transcription | None, Solver | None]
    starts: int
    rng: np.random.Generator
    seconds_left: Callable[[], float]

    def values_by_name(self, theta: Array) -> dict[str, float]:
        """Return natural values by name."""
        return dict(zip(self.compiled_problem.names, self.compiled_problem.to_natural(theta).tolist(), strict=True))

    @property
    def point_label(self) -> str:
        """Description of the point of evaluation."""
        return "at the estimate" if self.result.success else "at the guess"

    @property
    def magnitudes(self) -> Array:
        """The size of each quantity, natural scale."""
        return magnitudes_of(self.compiled_problem, self.theta, self.options)

    def predict_outputs(
        self, condition: Condition, theta: Array, options: IntegratorOptions
    ) -> OutputSensitivities | None:
        """Return the outputs of one experiment at its measurement times, with sensitivities.

        None if integration fails.
        """
        outputs = [
            n
            for n, observable in zip(self.compiled_problem.outputs, condition.observed, strict=True)
            if observable is not None
        ]
        return responses(
            self.compiled_problem, condition, np.unique(condition.points.times), theta, options, outputs=outputs
        )

    def fit_from(
        self,
        start: Result | Mapping[str, float],
        transcription: Transcription | str | None,
        solver: Solver | None = None,
    ) -> Result:
        """Fit again within `patience` seconds."""
        return fit(self.problem, transcription, solver, start=start, retry=False, max_time=self.patience)

    @property
    def patience(self) -> float:
        """Seconds that another fit may take."""
        return float(
            max(
                min(self.seconds_left(), max(_MIN_PATIENCE_SECONDS, _PATIENCE_FACTOR * self.result.time)),
                MIN_CHECK_SECONDS,
            )
        )


def check_fit(context: CheckContext) -> Finding:
    """Check convergence, active bounds and goodness of fit."""
    result = context.result
    if not result.success:
        return report_warning(
            f"it failed: {result.message}", "Try other starting points (cf.multistart) or tighter bounds."
        )
    if not result.goodness.described:
        return report_warning(result.goodness.sentence)
    names_at_bounds = [n for n in result.names if n in result.active]
    if names_at_bounds:
        bound_text = ", ".join(f"{n} ({result.active[n]})" for n in names_at_bounds)
        return report_warning(
            f"converged, but estimates are at their bounds: {bound_text}.", "Widen the bounds if they are guesses."
        )
    if result.goodness.grade != NO_FINDING:
        return report_warning(f"an optimum. {result.goodness.sentence}", "Check these sigmas.")
    return report_ok(f"an optimum. {result.goodness.sentence or 'No test of its size is possible.'}")


def check_gradient(context: CheckContext) -> Finding:
    """Compare sensitivities with differences, and gradients by forward and adjoint sensitivities."""
    compiled_problem, theta = context.compiled_problem, context.theta
    options = replace(context.options, relative_tolerance=1e-9, absolute_tolerance=1e-11)
    steps = _DIFFERENCE_STEP_REL * np.where(compiled_problem.log, 1.0, context.magnitudes)
    errors: dict[int, float] = {}
    for condition in compiled_problem.conditions:
        response = context.predict_outputs(condition, theta, options)
        if response is None:
            return report_warning(f"the model cannot be integrated {context.point_label}.", "Give another guess.")
        height = np.maximum(np.abs(response.values).max(axis=0), _TINY)
        for j in map(int, condition.theta):
            if context.seconds_left() <= 0:
                break
            errors.setdefault(j, 0.0)
            step = steps[j] * np.eye(theta.size)[j]
            neighbors = [context.predict_outputs(condition, theta + m * step, options) for m in (-2, -1, 1, 2)]
            y = [r.values for r in neighbors if r is not None]
            if len(y) < len(neighbors):
                continue
            slope = (y[0] - 8 * y[1] + 8 * y[2] - y[3]) / (12 * steps[j]) / height
            exact = response.slopes[:, :, j] / height
            size = float(np.linalg.norm(exact))
            noise_level = _INTEGRATION_NOISE_FACTOR * options.relative_tolerance * np.sqrt(exact.size) / steps[j]
            error = max(float(np.linalg.norm(slope - exact)) - noise_level, 0.0) / max(size, noise_level)
            errors[j] = max(errors[j], error)
    worst_index = max(errors, key=lambda j: errors[j], default=None)
    max_error = 0.0 if worst_index is None else errors[worst_index]
    if worst_index is not None and max_error > _MAX_DERIVATIVE_ERROR:
        return report_warning(
            f"the derivative with respect to {compiled_problem.names[worst_index]} differs from finite differences by "
            f"{max_error:.1g} (relative).",
            "An input, event or if_else may be discontinuous in this parameter: use cf.Event, or cf.if_else with a "
            "time, instead of a steep function.",
        )
    backward = _compute_adjoint_error(context) if context.seconds_left() > 0 else None
    if backward is not None and backward > _MAX_DERIVATIVE_ERROR:
        return report_warning(
            f"adjoint and forward gradients differ by {backward:.1g} (relative).",
            "Tighten the tolerances. If the model amplifies errors, use multiple shooting or collocation.",
        )
    adjoint_text = "" if backward is None else f"; adjoint gradients agree to {max(backward, 1e-9):.0e}"
    used_indices = {int(j) for condition in compiled_problem.conditions for j in condition.theta}
    coverage_text = (
        ""
        if used_indices == set(errors)
        else f" ({len(errors)} of {len(used_indices)} quantities checked in the available time)"
    )
    sentence = f"agrees with finite differences to {max(max_error, 1e-9):.0e}{coverage_text}{adjoint_text}."
    return report_ok(sentence) if errors else report_skipped(sentence)


def _compute_adjoint_error(context: CheckContext) -> float | None:
    """Return the relative difference of adjoint and forward gradients; None if adjoints are unsupported."""
    compiled_problem, theta, options = context.compiled_problem, context.theta, context.options
    if not compiled_problem.least_squares:
        return None
    # Adjoints by a separate integration are an independent check; adjoints of the ESDIRK steps are not.
    adjoint_options = (
        replace(options, method=sundials(len(compiled_problem.model.algebraic_states)))
        if options.method == "auto"
        else options
    )
    try:
        shooting = MultipleShooting("data", integrator=adjoint_options, states="simulation", derivatives="adjoint")
        evaluations = [
            statistics(staged.layout, staged.linearize(staged.start), np.zeros(staged.layout.n_v, dtype=np.int8))
            for staged in (t.transcribe(compiled_problem, theta) for t in (SingleShooting(options), shooting))
        ]
    except (InputError, np.linalg.LinAlgError, RuntimeError, ValueError, AttributeError):  # unsupported problem
        return None
    d = np.sqrt(evaluations[0].information.diagonal())  # gradients in units of each quantity's own uncertainty
    forward, backward = (np.where(d > 0.0, f.gradient / np.where(d > 0.0, d, 1.0), 0.0) for f in evaluations)
    return float(np.linalg.norm(forward - backward)) / max(float(np.linalg.norm(forward)), 1.0)


def check_unused_data(context: CheckContext) -> Finding:
    """Look for outputs that no estimated quantity affects."""
    sizes = np.where(context.compiled_problem.log, 1.0, np.maximum(np.abs(context.theta), _TINY))
    unused_names: list[str] = []
    at_start = 0
    for condition in context.compiled_problem.conditions:
        response = context.predict_outputs(condition, context.theta, context.options)
        if response is None:
            return report_skipped(f"skipped: the model cannot be integrated {context.point_label}.")
        effect = np.abs(response.slopes * sizes).max(axis=2)
        is_insensitive = effect <= _MIN_EFFECT_FRACTION * max(float(effect.max(initial=0.0)), _TINY)
        is_unused = is_insensitive.all(axis=0)
        unused_names += [
            f"{name} in {condition.name}" for name, flag in zip(response.names, is_unused, strict=True) if flag
        ]
        at_start += int(np.count_nonzero(is_insensitive[:, ~is_unused]))
    if unused_names:
        advice = (
            "They do not depend on estimated quantities: remove them, or estimate the quantities on which they depend."
        )
        return report_warning(f"no estimated quantity affects {join_limited(unused_names)}.", advice)
    start_text = f" ({at_start} values of known initial states are not informative)" if at_start else ""
    return report_ok(f"every output depends on estimated quantities{start_text}.")


def check_scaling(context: CheckContext) -> Finding:
    """Look for quantities that need a log scale, and for distant guesses."""
    linear = [q for q in context.compiled_problem.quantities if q.scale != "log"]
    wide_names = [
        q.name for q in linear if q.lower > 0.0 and np.isfinite(q.upper) and q.upper / q.lower > 10**_MAX_LINEAR_DECADES
    ]
    if wide_names:
        advice = "Set cf.Parameter(..., scale='log') for parameters known only to an order of magnitude."
        return report_warning(
            f"the bounds of {join_limited(wide_names)} span more than {_MAX_LINEAR_DECADES:.0f} decades.", advice
        )
    if context.result.success:
        estimates, guess = context.values_by_name(context.theta), context.values_by_name(context.compiled_problem.guess)
        far_names = [q.name for q in linear if _compute_ratio(estimates[q.name], guess[q.name]) > _MAX_GUESS_RATIO]
        if far_names:
            advice = "Closer guesses, or scale='log', make the fit more robust."
            return report_warning(
                f"the estimates of {join_limited(far_names)} are more than {_MAX_GUESS_RATIO:.0f} times the guesses.",
                advice,
            )
    return report_ok("guesses and bounds are well scaled.")


def _compute_ratio(value: float, guess: float) -> float:
    return max(value / guess, guess / value) if value * guess > 0.0 else 1.0


def check_stiffness(context: CheckContext) -> Finding:
    """Check whether the integrator suits the stiffness of the model, and whether perturbations grow."""
    try:
        stiffness_results = stiffness(context.problem, context.theta).values()
    except (SimulationError, InputError, np.linalg.LinAlgError, ValueError) as error:
        return report_skipped(f"skipped: {str(error).splitlines()[0]}.")
    worst = max(stiffness_results, key=lambda s: s.steps)
    suggested = {s.suggested for s in stiffness_results}
    suitable_methods = {*STEPPED, *suggested}
    if not any(s.oscillating for s in stiffness_results):
        suitable_methods |= {"auto", *SUNDIALS} if suggested == {"explicit"} else {"auto", *SUNDIALS} - {"adams"}
    if "rosenbrock" not in suggested:
        suitable_methods.add("auto")
    if context.options.method not in suitable_methods:
        return report_warning(worst.sentence, f"Try IntegratorOptions(method='{sorted(suggested)[-1]}').")
    if max(s.growth for s in stiffness_results) > 10.0:
        return report_warning(worst.sentence, "Do not use single shooting.")
    compiler_text = f" {wanted_compiler()}" if context.options.method == "auto" and wanted_compiler() else ""
    return report_ok(f"{worst.sentence.partition(';')[0]}.{compiler_text}")


def check_structural_identifiability(context: CheckContext) -> Finding:
    """Find parameter combinations that are structurally unidentifiable from these outputs."""
    structural = structure(context.compiled_problem, context.rng, may_continue=lambda: context.seconds_left() > 0)
    if structural.rank < 0:
        return report_skipped(structural.sentence)
    if structural.combinations:
        advice = (
            "Fix one of these quantities, reparametrise the model by the identifiable combination, or measure another "
            "output."
        )
        return report_warning(structural.sentence, advice)
    return report_ok(f"none (exact rank {structural.rank} of {len(structural.names)}).")


def check_symmetry(context: CheckContext) -> Finding:
    """Exchange quantities, in pairs and pairs of pairs, and compare the outputs."""
    compiled_problem, sizes = context.compiled_problem, context.magnitudes
    theta = random_values(compiled_problem, context.theta, sizes, context.rng, 0.3)
    outputs = _compute_outputs(context, theta)
    if outputs is None:
        return report_skipped("skipped: the model could not be integrated at random parameter values.")
    kinds = [(q.kind, q.experiment, q.scale) for q in compiled_problem.quantities]
    other_theta = random_values(compiled_problem, context.theta, sizes, context.rng, 0.3)
    active_indices = [
        j
        for j in range(theta.size)
        if context.seconds_left() > 0 and _has_effect(context, theta, other_theta, j, outputs)
    ]
    pairs = [(i, j) for i, j in itertools.combinations(active_indices, 2) if kinds[i] == kinds[j]]
    symmetries: dict[tuple[tuple[int, int], ...], str] = {}
    candidates: list[tuple[tuple[int, int], ...]] = [(pair,) for pair in pairs]
    if theta.size <= _MAX_PAIR_EXCHANGE_QUANTITIES:
        candidates += [
            exchange for exchange in itertools.combinations(pairs, 2) if len({*exchange[0], *exchange[1]}) == 4
        ]
    n_tried, is_late = 0, context.seconds_left() <= 0
    for swaps in candidates:
        if is_late := context.seconds_left() <= 0:
            break
        if any(set(symmetry) <= set(swaps) for symmetry in symmetries):
            continue
        n_tried += 1
        exchanged_theta = theta.copy()
        for i, j in swaps:
            exchanged_theta[[i, j]] = theta[[j, i]]
        if (rescaled_name := _find_rescaled(context, exchanged_theta, active_indices, outputs)) is not None:
            symmetries[swaps] = f" (with {rescaled_name} rescaled)" if rescaled_name else ""
    if symmetries:
        description = "; ".join(
            " with ".join(f"{compiled_problem.names[i]} and {compiled_problem.names[j]}" for i, j in swaps) + note
            for swaps, note in symmetries.items()
        )
        advice = "Every optimum has a symmetric copy: order the quantities by bounds or by cf.Constraint."
        return report_warning(f"exchanging these quantities does not change the outputs: {description}.", advice)
    if is_late and not n_tried:
        return report_skipped(f"skipped: {NO_TIME_LEFT}")
    return report_ok(f"none in {n_tried} tested exchanges of quantities{' (stopped at max_time)' if is_late else ''}.")


def _has_effect(context: CheckContext, theta: Array, other_theta: Array, j: int, outputs: Array) -> bool:
    """Check whether changing a quantity changes the outputs (noise parameters do not).

    True if they cannot be computed.
    """
    changed_theta = theta.copy()
    changed_theta[j] = other_theta[j]
    other_outputs = _compute_outputs(context, changed_theta)
    return other_outputs is None or not _are_equal(other_outputs, outputs)


def _find_rescaled(context: CheckContext, theta: Array, indices: list[int], outputs: Array) -> str | None:
    """Return the name of a quantity that makes the outputs at theta equal to `outputs` if it is rescaled.

    Return "" if the outputs are equal at theta. Return None if no quantity makes them equal.
    """
    exchanged_outputs = _compute_outputs(context, theta)
    if exchanged_outputs is None or _are_equal(exchanged_outputs, outputs):
        return None if exchanged_outputs is None else ""
    factor = _get_height(exchanged_outputs) / _get_height(outputs)
    if not _are_equal(exchanged_outputs / factor, outputs):
        return None
    for j in indices:
        rescaled_theta = theta.copy()
        rescaled_theta[j] = theta[j] - np.log(factor) if context.compiled_problem.log[j] else theta[j] / factor
        rescaled_outputs = _compute_outputs(context, rescaled_theta)
        if rescaled_outputs is not None and _are_equal(rescaled_outputs, outputs):
            return context.compiled_problem.names[j]
    return None


def _get_height(outputs: Array) -> float:
    return max(float(np.abs(outputs).max(initial=0.0)), _TINY)


def _are_equal(one: Array, other: Array) -> bool:
    return _get_height(one - other) <= _SAME_OUTPUT * _get_height(other)


def _compute_outputs(context: CheckContext, theta: Array) -> Array | None:
    """Return all measured outputs in one array; None if the integration fails."""
    lower, upper = context.compiled_problem.bounds
    staged = (
        SingleShooting(context.options).transcribe(context.compiled_problem, np.clip(theta, lower, upper)).explicit()
    )
    if not staged.evaluate(theta).ok:
        return None
    return np.concatenate([part[0] for part in staged.standardised(theta)])


def check_practical_identifiability(context: CheckContext) -> Finding:
    """Check for quantities that these data do not determine, or determine poorly."""
    result = with_interval_checks(context.result, max_time=_CHECK_TIME_SHARE * context.seconds_left())
    if not result.success:
        return report_skipped("skipped: the fit did not succeed.")
    if np.isnan(list(result.standard_errors.values())).all():
        return report_skipped(result.identifiability.sentence)
    weak_kinds = (NOT_IDENTIFIABLE, POORLY_DETERMINED, CORRELATED_WITH)
    is_weak = any(v.kind in weak_kinds for v in result.identifiability.verdicts)
    if is_weak:
        return report_warning(result.determination, "cf.identifiability(result) suggests the next measurement.")
    approximate = [name for name, check in result.interval_checks.items() if check == APPROXIMATE]
    if approximate:
        message = f"{result.determination} The intervals of {join_limited(approximate)} are approximate."
        return report_warning(message, "cf.profile(result) computes the limits.")
    return report_ok(result.determination)


def check_residuals(context: CheckContext) -> Finding:
    """Check the residual diagnostics for problems."""
    if not context.result.success:
        return report_skipped("skipped: the fit did not succeed.")
    diagnostics = context.result.diagnostics
    hint = "Use result.plot() to see where the model does not fit. "
    advice = f"{hint}{diagnostics.advice} " * bool(diagnostics.advice) + "See result.diagnostics."
    return report_warning(diagnostics.sentence, advice) if diagnostics.has_findings else report_ok(diagnostics.sentence)


def check_tolerances(context: CheckContext) -> Finding:
    """Integrate with tolerances 100 times tighter from the trajectory's nodes, and compare the predictions."""
    result = context.result
    if not result.success:
        return report_skipped("skipped: the fit did not succeed.")
    options = result.integrator
    fine_options = replace(
        options,
        method="auto" if options.method == "collocation" else options.method,
        relative_tolerance=max(1e-2 * options.relative_tolerance, 1e-12),
        absolute_tolerance=1e-2 * options.absolute_tolerance,
    )
    nodes = [result.trajectories[c.name] for c in context.compiled_problem.conditions]
    try:
        exact = predict(context.problem, result.theta, nodes, integrator=fine_options)
    except SimulationError as error:
        return report_warning(
            f"the model cannot be integrated with tighter tolerances: {error.sentence}", "Relax them."
        )
    table = result.residual_table()
    finite = np.isfinite(table["time"]) & (result.deviations > 0.0)
    shifts = np.array([
        (np.interp(t, exact[e]["time"], exact[e][o]) - y) / s
        for e, o, t, y, s in zip(
            table["experiment"][finite], table["output"][finite], table["time"][finite],
            result.predictions[finite], result.deviations[finite], strict=True,
        )
    ], dtype=float)  # fmt: skip
    if shifts.size == 0:
        return report_skipped("skipped: no standard deviations are available for comparison.")
    max_shift = float(np.abs(shifts).max())
    if max_shift > _MAX_PREDICTION_SHIFT_SIGMA:
        advice = "Tighten IntegratorOptions or use more elements."
        return report_warning(f"predictions change by up to {max_shift:.2g} sigma with tighter tolerances.", advice)
    return report_ok(
        f"predictions change by at most {max(max_shift, 1e-9):.0e} sigma with tolerances 100 times tighter."
    )


def check_transcriptions(context: CheckContext) -> Finding:
    """Fit from the estimate by the other transcriptions, and compare the estimates."""
    result = context.result
    if not result.success:
        return report_skipped("skipped: the fit did not succeed.")
    agreeing_kinds: list[str] = []
    too_large = ""
    for kind in TRANSCRIPTIONS:
        if result.transcription.startswith(kind):  # labels begin with these names
            continue
        if kind == "collocation" and (too_large := _describe_size_limit(context)):
            continue
        if context.seconds_left() <= 0:
            break
        try:
            other_result = context.fit_from(result, kind)
        except InputError:  # unsupported by this transcription
            continue
        if not other_result.success:
            continue
        distance = _compute_distance(result, other_result)
        if distance > _MAX_ESTIMATE_SHIFT_SE:
            note = ", at a lower chi2" if _is_lower(other_result, result) else ""
            sentence = f"{kind}: the estimates differ by {distance:.2g} standard errors{note}."
            return report_warning(sentence, "Tighten the tolerances and compare again.")
        agreeing_kinds.append(kind if kind == "collocation" else f"{kind} shooting")
    if not agreeing_kinds:
        return report_skipped(f"no other transcription could be compared.{too_large}")
    limit = f"{_MAX_ESTIMATE_SHIFT_SE:g} standard errors"
    return report_ok(f"estimates by {' and '.join(agreeing_kinds)} differ by at most {limit}.{too_large}")


def _describe_size_limit(context: CheckContext) -> str:
    """Return a note if collocation was not tried because of its estimated time or memory, else an empty string."""
    cost, result = predict_costs(CostFeatures.from_problem(context.compiled_problem, context.theta)), context.result
    times, memory = cost["collocation"].seconds / cost["single"].seconds, cost["collocation"].memory
    is_longer = result.transcription.startswith("single") and times * result.time > context.patience
    if not is_longer and memory <= available_memory():
        return ""
    return f" Collocation was not tried: it would take about {times:.0f} times as long and {format_memory(memory)}."


def _compute_distance(one: Result, other: Result) -> float:
    """Return the largest difference of estimates in standard errors, over quantities with known standard errors."""
    errors = np.array([one.standard_errors[n] for n in one.names])
    values = np.array([[r.values[n] for n in one.names] for r in (one, other)])
    is_determined = np.isfinite(errors) & (errors > 0.0)
    return float((np.abs(values[1] - values[0])[is_determined] / errors[is_determined]).max(initial=0.0))


def _is_lower(other: Result, reference: Result) -> bool:
    """Check whether another optimum is better by more than the errors of the fits, per datum in log-likelihood."""
    return bool(reference.cost - other.cost > _MIN_CHI2_GAIN_PER_DATUM * max(reference.n_data, 1) * 0.5)


def check_starts(context: CheckContext) -> Finding:
    """Fit from random starts within a factor of ten, as time allows."""
    result, sizes = context.result, context.magnitudes
    n_tried, n_same, best_result = 0, 0, result if result.success else None
    transcription, solver = context.method
    if transcription is None and context.starts:
        transcription = choose(context.compiled_problem, context.theta, straight=False, bound=True).transcription
    while context.seconds_left() > 0 and n_tried < context.starts:
        theta = random_values(context.compiled_problem, context.theta, sizes, context.rng, _START_SCATTER_LOG)
        other_result = context.fit_from(context.values_by_name(theta), transcription, solver)
        if context.seconds_left() <= 0 and not other_result.success:
            break  # cut off
        n_tried += 1
        if not other_result.success:
            continue
        if best_result is None or _is_lower(other_result, best_result):
            best_result = other_result
        n_same += result.success and not _is_lower(other_result, result) and not _is_lower(result, other_result)
    if n_tried == 0:
        return report_skipped(f"none tried: {NO_TIME_LEFT}" if context.starts else "none requested.")
    if best_result is None:
        return report_warning(
            f"none of {n_tried} starting points led to an optimum.", "Check the model and the guesses."
        )
    if best_result is not result:
        values = ", ".join(f"{n} = {v:.4g}" for n, v in list(best_result.values.items())[:6])
        sentence = (
            f"one of {n_tried} starting points led to a better optimum ({best_result.measure} = "
            f"{best_result.objective:.6g}, at {values})."
        )
        return report_warning(sentence, "Start there and run cf.multistart.")
    sentence = (
        f"{n_tried} starting points within a factor of ten: {n_same} reached the cost of this optimum, "
        "none a lower one."
    )
    return report_ok(sentence) if n_same else report_warning(sentence, "Run cf.multistart to confirm this optimum.")


# Names of the checks in order, with the fraction of max_time by which each must end.
EXAMINATIONS: tuple[tuple[str, float, Callable[[CheckContext], Finding]], ...] = (
    ("fit", 1.0, check_fit),
    ("gradient", 0.4, check_gradient),
    ("data", 1.0, check_unused_data),
    ("scale", 1.0, check_scaling),
    ("stiffness", 1.0, check_stiffness),
    ("redundant parameters", 0.5, check_structural_identifiability),
    ("symmetric parameters", 0.6, check_symmetry),
    ("identifiability", 1.0, check_practical_identifiability),
    ("residuals", 1.0, check_residuals),
    ("tolerances", 0.85, check_tolerances),
    ("other transcriptions", 0.85, check_transcriptions),
    ("other starts", 1.0, check_starts),
)
