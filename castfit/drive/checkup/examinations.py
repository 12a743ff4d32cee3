"""Checks of a fit and its problem, one function each; `EXAMINATIONS` at the end gives their order.

Each returns a `Finding`: fine, or what to look at and to do.  Where a check cannot be applied it says why (`unknown`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.reprs import listed
from castfit._support.status import InputError
from castfit.drive.checkup.stiffness import stiffness
from castfit.fit.choice import Prospect, available_memory, choose, prices, size_of
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import TRANSCRIPTIONS
from castfit.integrate import STEPPED, SUNDIALS, sundials
from castfit.integrate.esdirk_binding import wanted_compiler
from castfit.result.covariance import statistics
from castfit.result.identifiability import CORRELATED_WITH, NOT_IDENTIFIABLE, POORLY_DETERMINED
from castfit.result.residuals import NOTHING
from castfit.result.structural_identifiability import magnitudes_of, random_values, structure
from castfit.simulate.output_sensitivities import Responses, responses
from castfit.simulate.simulate import SimulationError, predict
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.fit.methods import Solver, Transcription
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable
    from castfit.result.result import Result


_GRADIENT = 1e-3  # relative error of a derivative that deserves a word
_STEP = 1e-3  # of differences, relative to each quantity's size
_NOISE = 100.0  # times the tolerance: how far neighbouring integrations differ
_DEAD = 1e-12  # of the largest effect: what moves a value by less does not move it
_DECADES = 3.0  # between bounds, from which a linear search is a bad one
_FAR = 100.0  # factor between guess and estimate
_MOVES = 0.05  # standard deviations by which predictions may depend on the tolerance
_AGREE = 0.1  # standard errors by which estimates of transcriptions may differ
_BETTER = 1e-3  # of chi2 per datum: what is lower by more is a better optimum
_SAME_OUTPUT = 1e-6  # relative difference of outputs that are the same
_MANY = 7  # quantities up to which pairs of exchanges are tried, too
_LONGER, _LEAST = 5.0, 2.0  # of another fit than the first; seconds
MOMENT = 1e-2
"""Seconds that a check has at least."""

LATE = "skipped: no time left."
"""How the sentence of a check ends that had none."""

_SPREAD = float(np.log(10.0))  # starts are drawn within a factor of ten
_TINY = np.finfo(float).tiny

Finding = tuple[bool | None, str, str]
"""Whether it is fine, None if that is not known; what was found; what to do, empty if nothing."""


def fine(sentence: str) -> Finding:
    """Find nothing to do."""
    return True, sentence, ""


def look(sentence: str, advice: str = "") -> Finding:
    """Return a finding that needs attention."""
    return False, sentence, advice


def unknown(sentence: str) -> Finding:
    """Return a finding for a check that could not be made, with the reason."""
    return None, sentence, ""


@dataclass(frozen=True, eq=False)
class Patient:
    """Subject of the checks: a problem at theta, its fit, the user's method, and the remaining seconds."""

    problem: Posable
    posed: Posed
    theta: Array
    result: Result
    options: IntegratorOptions
    method: tuple[Transcription | None, Solver | None]
    starts: int
    rng: np.random.Generator
    left: Callable[[], float]

    def values(self, theta: Array) -> dict[str, float]:
        """Return natural values by name."""
        return dict(zip(self.posed.names, self.posed.to_natural(theta).tolist(), strict=True))

    @property
    def where(self) -> str:
        """Name of the point of evaluation, in words."""
        return "at the estimate" if self.result.success else "at the guess"

    @property
    def magnitudes(self) -> Array:
        """The size of each quantity, natural scale."""
        return magnitudes_of(self.posed, self.theta, self.options)

    def measured(self, condition: Condition, theta: Array, options: IntegratorOptions) -> Responses | None:
        """Return the outputs of one experiment at its measurement times, with sensitivities.

        None if integration fails.
        """
        outputs = [n for n, of in zip(self.posed.outputs, condition.observed, strict=True) if of is not None]
        return responses(self.posed, condition, np.unique(condition.points.times), theta, options, outputs=outputs)

    def fit_from(
        self,
        start: Result | Mapping[str, float],
        transcription: Transcription | str | None,
        solver: Solver | None = None,
    ) -> Result:
        """Fit once more, for many times as long as the first fit took if so much is left."""
        return fit(self.problem, transcription, solver, start=start, retry=False, max_time=self.patience)

    @property
    def patience(self) -> float:
        """Seconds that another fit may take."""
        return float(max(min(self.left(), max(_LEAST, _LONGER * self.result.time)), MOMENT))


def the_fit(patient: Patient) -> Finding:
    """Report how the fit ended."""
    found = patient.result
    if not found.success:
        return look(f"it failed: {found.message}", "Try other starting points (cf.multistart) or tighter bounds.")
    if not found.goodness.described:
        return look(found.goodness.sentence)
    held = [n for n in found.names if n in found.active]
    if held:
        how = ", ".join(f"{n} ({found.active[n]})" for n in held)
        return look(f"converged, but estimates are at their bounds: {how}.", "Widen the bounds if they are guesses.")
    if found.goodness.grade != NOTHING:
        return look(f"an optimum; {found.goodness.sentence}", "Check these sigmas.")
    return fine(f"an optimum; {found.goodness.sentence or 'no test of its size is possible.'}")


def gradient(patient: Patient) -> Finding:
    """Compare sensitivities with differences, and gradients by forward and adjoint sensitivities."""
    posed, theta = patient.posed, patient.theta
    options = replace(patient.options, relative_tolerance=1e-9, absolute_tolerance=1e-11)
    steps = _STEP * np.where(posed.log, 1.0, patient.magnitudes)
    errors: dict[int, float] = {}
    for condition in posed.conditions:
        here = patient.measured(condition, theta, options)
        if here is None:
            return look(f"the model cannot be integrated {patient.where}.", "Give another guess.")
        height = np.maximum(np.abs(here.values).max(axis=0), _TINY)
        for j in map(int, condition.theta):
            if patient.left() <= 0:
                break
            errors.setdefault(j, 0.0)
            step = steps[j] * np.eye(theta.size)[j]
            near = [patient.measured(condition, theta + m * step, options) for m in (-2, -1, 1, 2)]
            y = [r.values for r in near if r is not None]
            if len(y) < len(near):
                continue
            slope = (y[0] - 8 * y[1] + 8 * y[2] - y[3]) / (12 * steps[j]) / height
            exact = here.slopes[:, :, j] / height
            size = float(np.linalg.norm(exact))
            blur = _NOISE * options.relative_tolerance * np.sqrt(exact.size) / steps[j]
            error = max(float(np.linalg.norm(slope - exact)) - blur, 0.0) / max(size, blur)
            errors[j] = max(errors[j], error)
    worst = max(errors, key=lambda j: errors[j], default=None)
    much = 0.0 if worst is None else errors[worst]
    if worst is not None and much > _GRADIENT:
        return look(
            f"the derivative with respect to {posed.names[worst]} differs from finite differences by {much:.1g} (relative).",
            "An input, event or if_else may be discontinuous in this parameter: use cf.Event, or cf.if_else with a "
            "time, instead of a steep function.",
        )
    backward = _adjoint_error(patient) if patient.left() > 0 else None
    if backward is not None and backward > _GRADIENT:
        return look(
            f"adjoint and forward gradients differ by {backward:.1g} (relative).",
            "Tighten the tolerances. If the model amplifies errors, use multiple shooting or collocation.",
        )
    both = "" if backward is None else f"; adjoint gradients agree to {max(backward, 1e-9):.0e}"
    every = {int(j) for condition in posed.conditions for j in condition.theta}
    some = "" if every == set(errors) else f" ({len(errors)} of {len(every)} quantities checked in the available time)"
    said = f"agrees with finite differences to {max(much, 1e-9):.0e}{some}{both}."
    return fine(said) if errors else unknown(said)


def _adjoint_error(patient: Patient) -> float | None:
    """Return the relative difference of the gradient by adjoint states; None where there are none."""
    posed, theta, options = patient.posed, patient.theta, patient.options
    if not posed.least_squares:
        return None
    # Adjoint states that are integrated anew can disagree; those of the ESDIRK method's own steps hardly can.
    apart = (
        replace(options, method=sundials(len(posed.model.algebraic_states))) if options.method == "auto" else options
    )
    try:
        shooting = MultipleShooting("data", integrator=apart, states="simulation", derivatives="adjoint")
        found = [
            statistics(staged.layout, staged.linearize(staged.start), np.zeros(staged.layout.n_v, dtype=np.int8))
            for staged in (t.transcribe(posed, theta) for t in (SingleShooting(options), shooting))
        ]
    except (InputError, np.linalg.LinAlgError, RuntimeError, ValueError, AttributeError):  # not for such a problem
        return None
    d = np.sqrt(found[0].information.diagonal())  # gradients in units of each quantity's own uncertainty
    forward, backward = (np.where(d > 0.0, f.gradient / np.where(d > 0.0, d, 1.0), 0.0) for f in found)
    return float(np.linalg.norm(forward - backward)) / max(float(np.linalg.norm(forward)), 1.0)


def unused_data(patient: Patient) -> Finding:
    """Look for measured values that nothing estimated moves."""
    sizes = np.where(patient.posed.log, 1.0, np.maximum(np.abs(patient.theta), _TINY))
    silent: list[str] = []
    at_start = 0
    for condition in patient.posed.conditions:
        found = patient.measured(condition, patient.theta, patient.options)
        if found is None:
            return unknown(f"skipped: the model cannot be integrated {patient.where}.")
        effect = np.abs(found.slopes * sizes).max(axis=2)
        dead = effect <= _DEAD * max(float(effect.max(initial=0.0)), _TINY)
        nothing = dead.all(axis=0)
        silent += [f"{name} in {condition.name}" for name, none in zip(found.names, nothing, strict=True) if none]
        at_start += int(np.count_nonzero(dead[:, ~nothing]))
    if silent:
        advice = "They do not depend on estimated quantities: remove them, or estimate the quantities on which they depend."
        return look(f"no estimate moves {listed(silent)}.", advice)
    some = f" ({at_start} values of known initial states are not informative)" if at_start else ""
    return fine(f"every output depends on estimated quantities{some}.")


def scale(patient: Patient) -> Finding:
    """Look for quantities that should be searched as logarithms, and guesses that are far away."""
    linear = [q for q in patient.posed.quantities if q.scale != "log"]
    wide = [q.name for q in linear if q.lower > 0.0 and np.isfinite(q.upper) and q.upper / q.lower > 10**_DECADES]
    if wide:
        advice = "Set cf.Parameter(..., scale='log') for parameters known only to an order of magnitude."
        return look(f"the bounds of {listed(wide)} span more than {_DECADES:.0f} decades.", advice)
    if patient.result.success:
        found, guess = patient.values(patient.theta), patient.values(patient.posed.guess)
        far = [q.name for q in linear if _ratio(found[q.name], guess[q.name]) > _FAR]
        if far:
            advice = "Closer guesses, or scale='log', make the fit more robust."
            return look(f"the estimates of {listed(far)} are more than {_FAR:.0f} times the guesses.", advice)
    return fine("guesses and bounds are well scaled.")


def _ratio(value: float, guess: float) -> float:
    return max(value / guess, guess / value) if value * guess > 0.0 else 1.0


def stiff(patient: Patient) -> Finding:
    """Check whether the integrator suits the stiffness of the model, and whether perturbations grow."""
    try:
        found = stiffness(patient.problem, patient.theta).values()
    except (SimulationError, InputError, np.linalg.LinAlgError, ValueError) as error:
        return unknown(f"not known: {str(error).splitlines()[0]}.")
    worst = max(found, key=lambda s: s.steps)
    suggested = {s.suggested for s in found}
    suits = {*STEPPED, *suggested}
    if not any(s.oscillating for s in found):
        suits |= {"auto", *SUNDIALS} if suggested == {"explicit"} else {"auto", *SUNDIALS} - {"adams"}
    if "rosenbrock" not in suggested:
        suits.add("auto")
    if patient.options.method not in suits:
        return look(worst.sentence, f"Try IntegratorOptions(method='{sorted(suggested)[-1]}').")
    if max(s.growth for s in found) > 10.0:
        return look(worst.sentence, "Do not use single shooting.")
    wanted = f" {wanted_compiler()}" if patient.options.method == "auto" and wanted_compiler() else ""
    return fine(f"{worst.sentence.partition(';')[0]}.{wanted}")


def redundant(patient: Patient) -> Finding:
    """Find parameter combinations that no data of these outputs could determine."""
    bare = structure(patient.posed, patient.theta, patient.rng, patient.options, wanted=lambda: patient.left() > 0)
    if bare.rank < 0:
        return unknown(bare.sentence)
    if bare.combinations:
        advice = "Fix one of them, reparametrise the model by the identifiable combination, or measure another output."
        return look(bare.sentence, advice)
    return fine(f"none (rank {bare.rank} of {len(bare.names)} at random parameter values).")


def symmetric(patient: Patient) -> Finding:
    """Exchange quantities, in pairs and in pairs of pairs, and see whether the outputs notice."""
    posed, sizes = patient.posed, patient.magnitudes
    theta = random_values(posed, patient.theta, sizes, patient.rng, 0.3)
    here = _outputs(patient, theta)
    if here is None:
        return unknown("skipped: the model could not be integrated at random parameter values.")
    kinds = [(q.kind, q.experiment, q.scale) for q in posed.quantities]
    another = random_values(posed, patient.theta, sizes, patient.rng, 0.3)
    seen = [j for j in range(theta.size) if patient.left() > 0 and _enters(patient, theta, another, j, here)]
    pairs = [(i, j) for i, j in itertools.combinations(seen, 2) if kinds[i] == kinds[j]]
    found: list[tuple[tuple[int, int], ...]] = []
    every: list[tuple[tuple[int, int], ...]] = [(pair,) for pair in pairs]
    if theta.size <= _MANY:
        every += [two for two in itertools.combinations(pairs, 2) if len({*two[0], *two[1]}) == 4]
    tried, late = 0, patient.left() <= 0
    for swaps in every:
        if late := patient.left() <= 0:
            break
        if any(set(known) <= set(swaps) for known in found):
            continue
        tried += 1
        moved = theta.copy()
        for i, j in swaps:
            moved[[i, j]] = theta[[j, i]]
        other = _outputs(patient, moved)
        if other is not None and _same(other, here):
            found.append(swaps)
    if found:
        said = "; ".join(" with ".join(f"{posed.names[i]} and {posed.names[j]}" for i, j in s) for s in found)
        advice = "Every optimum has a symmetric copy: order the quantities by bounds or by cf.Constraint."
        return look(f"exchanging these quantities does not change the fit: {said}.", advice)
    if late and not tried:
        return unknown(f"not examined: {LATE}")
    return fine(f"none in {tried} exchanges of quantities{', all that the time allowed' if late else ''}.")


def _enters(patient: Patient, theta: Array, another: Array, j: int, here: Array) -> bool:
    """Check whether changing a quantity changes the outputs (noise parameters do not).

    True if they cannot be computed.
    """
    moved = theta.copy()
    moved[j] = another[j]
    other = _outputs(patient, moved)
    return other is None or not _same(other, here)


def _same(one: Array, other: Array) -> bool:
    return float(np.abs(one - other).max(initial=0.0)) <= _SAME_OUTPUT


def _outputs(patient: Patient, theta: Array) -> Array | None:
    """Return measured outputs relative to their sizes, in one row; None where integration fails."""
    lower, upper = patient.posed.bounds
    staged = SingleShooting(patient.options).transcribe(patient.posed, np.clip(theta, lower, upper)).explicit()
    if not staged.evaluate(theta).ok:
        return None
    y = np.concatenate([part[0] for part in staged.standardised(theta)])
    return y / max(float(np.abs(y).max(initial=0.0)), _TINY)


def practical(patient: Patient) -> Finding:
    """Check which quantities these data do not determine, or determine poorly."""
    found = patient.result
    if not found.success:
        return unknown("not assessed without a fit.")
    if np.isnan(list(found.standard_errors.values())).all():
        return unknown(found.identifiability.sentence)
    bad = (NOT_IDENTIFIABLE, POORLY_DETERMINED, CORRELATED_WITH)
    weak = any(v.kind in bad for v in found.identifiability.verdicts)
    if weak:
        return look(found.determination, "cf.identifiability(result) suggests the next measurement.")
    return fine(found.determination)


def residuals(patient: Patient) -> Finding:
    """Check the residual diagnostics for problems."""
    if not patient.result.success:
        return unknown("not assessed without a fit.")
    said = patient.result.diagnostics
    where = "Use result.plot() to see where the model does not fit. "
    advice = f"{where}{said.remedy} " * bool(said.remedy) + "See result.diagnostics."
    return look(said.sentence, advice) if said.suspicious else fine(said.sentence)


def tolerances(patient: Patient) -> Finding:
    """Integrate a hundred times more accurately, from the nodes of the trajectory, and compare the predictions."""
    found = patient.result
    if not found.success:
        return unknown("not assessed without a fit.")
    used = found.integrator
    finer = replace(
        used,
        method="auto" if used.method == "collocation" else used.method,
        relative_tolerance=max(1e-2 * used.relative_tolerance, 1e-12),
        absolute_tolerance=1e-2 * used.absolute_tolerance,
    )
    nodes = [found.trajectories[c.name] for c in patient.posed.conditions]
    try:
        exact = predict(patient.problem, found.theta, nodes, integrator=finer)
    except SimulationError as error:
        return look(f"the model cannot be integrated with tighter tolerances: {error.sentence}", "Relax them.")
    table = found.residual_table()
    finite = np.isfinite(table["time"]) & (found.deviations > 0.0)
    off = np.array([
        (np.interp(t, exact[e]["time"], exact[e][o]) - y) / s
        for e, o, t, y, s in zip(
            table["experiment"][finite], table["output"][finite], table["time"][finite],
            found.predictions[finite], found.deviations[finite], strict=True,
        )
    ], dtype=float)  # fmt: skip
    if off.size == 0:
        return unknown("skipped: no standard deviations are available for comparison.")
    much = float(np.abs(off).max())
    if much > _MOVES:
        advice = "Tighten IntegratorOptions or use more elements."
        return look(f"predictions change by up to {much:.2g} sigma with tighter tolerances.", advice)
    return fine(f"predictions change by at most {max(much, 1e-9):.0e} sigma with tolerances 100 times tighter.")


def other_transcriptions(patient: Patient) -> Finding:
    """Fit from the estimate by the other transcriptions, and compare estimates."""
    found = patient.result
    if not found.success:
        return unknown("not tried without a fit.")
    agreed: list[str] = []
    too_large = ""
    for kind in TRANSCRIPTIONS:
        if found.transcription.startswith(kind):  # labels begin with these names
            continue
        if kind == "collocation" and (too_large := _too_large(patient)):
            continue
        if patient.left() <= 0:
            break
        try:
            other = patient.fit_from(found, kind)
        except InputError:  # this transcription does not take such a problem
            continue
        if not other.success:
            continue
        off = _distance(found, other)
        if off > _AGREE:
            lower = ", at a lower chi2" if _lower(other, found) else ""
            said = f"{kind}: the estimates differ by {off:.2g} standard errors{lower}."
            return look(said, "Tighten the tolerances and compare again.")
        agreed.append(kind)
    if not agreed:
        return unknown(f"no other transcription could be compared.{too_large}")
    ends = "ends" if len(agreed) == 1 else "end"
    return fine(f"{' and '.join(agreed)} {ends} at the same estimates.{too_large}")


def _too_large(patient: Patient) -> str:
    """Return a note if collocation was not tried because of its estimated time or memory, else an empty string."""
    cost, found = prices(Prospect.of(patient.posed, patient.theta)), patient.result
    times, memory = cost["collocation"].seconds / cost["single"].seconds, cost["collocation"].memory
    longer = found.transcription.startswith("single") and times * found.time > patient.patience
    if not longer and memory <= available_memory():
        return ""
    return f" Collocation was not tried: it would take about {times:.0f} times as long and {size_of(memory)}."


def _distance(one: Result, other: Result) -> float:
    """Return the largest difference of estimates in standard errors, over quantities with known standard errors."""
    errors = np.array([one.standard_errors[n] for n in one.names])
    values = np.array([[r.values[n] for n in one.names] for r in (one, other)])
    known = np.isfinite(errors) & (errors > 0.0)
    return float((np.abs(values[1] - values[0])[known] / errors[known]).max(initial=0.0))


def _lower(other: Result, found: Result) -> bool:
    """Check whether another optimum is better by more than the errors of the fits, per datum in log-likelihood."""
    return bool(found.cost - other.cost > _BETTER * max(found.n_data, 1) * 0.5)


def other_starts(patient: Patient) -> Finding:
    """Fit from random starts within a factor of ten, as many as the time allows."""
    found, sizes = patient.result, patient.magnitudes
    tried, same, best = 0, 0, found if found.success else None
    asked, solver = patient.method
    if asked is None and patient.starts:
        asked = choose(patient.posed, patient.theta, straight=False, bound=True).first
    while patient.left() > 0 and tried < patient.starts:
        theta = random_values(patient.posed, patient.theta, sizes, patient.rng, _SPREAD)
        other = patient.fit_from(patient.values(theta), asked, solver)
        if patient.left() <= 0 and not other.success:
            break  # cut off
        tried += 1
        if not other.success:
            continue
        if best is None or _lower(other, best):
            best = other
        same += found.success and not _lower(other, found) and not _lower(found, other)
    if tried == 0:
        return unknown(f"none tried: {LATE}" if patient.starts else "none requested.")
    if best is None:
        return look(f"none of {tried} starting points led to an optimum.", "Check the model and the guesses.")
    if best is not found:
        values = ", ".join(f"{n} = {v:.4g}" for n, v in list(best.values.items())[:6])
        said = f"one of {tried} starting points led to a better optimum ({best.measure} = {best.objective:.6g}, at {values})."
        return look(said, "Start there and run cf.multistart.")
    return fine(f"{tried} starting points within a factor of ten: {same} converged to this optimum, none to a better one.")


EXAMINATIONS: tuple[tuple[str, float, Callable[[Patient], Finding]], ...] = (
    ("fit", 1.0, the_fit),
    ("gradient", 0.4, gradient),
    ("data", 1.0, unused_data),
    ("scale", 1.0, scale),
    ("stiffness", 1.0, stiff),
    ("redundant parameters", 0.5, redundant),
    ("symmetric parameters", 0.6, symmetric),
    ("identifiability", 1.0, practical),
    ("residuals", 1.0, residuals),
    ("tolerances", 0.85, tolerances),
    ("other transcriptions", 0.85, other_transcriptions),
    ("other starts", 1.0, other_starts),
)
"""Their names, in order, and which part of the time may be gone when each ends."""
