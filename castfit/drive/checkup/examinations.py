"""What a careful person tries before believing a fit, one function each; `castfit.checkup` puts them in order.

Each returns a `Line`: fine, or what to do.  What a check cannot be applied to says why, and is neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.reprs import brief, listed
from castfit.fit.fit import fit
from castfit.result.identifiability import CORRELATED_WITH, NOT_IDENTIFIABLE, POORLY_DETERMINED
from castfit.integrate import SUNDIALS
from castfit.fit.methods import TRANSCRIPTIONS
from castfit.simulate.output_sensitivities import responses
from castfit.simulate.simulate import SimulationError, predict
from castfit.result.covariance import statistics
from castfit._support.status import InputError
from castfit.drive.checkup.stiffness import stiffness
from castfit.result.structural_identifiability import magnitudes_of, random_values, structure
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable
    from castfit.result.result import Result

    Array = NDArray[np.float64]

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
_LONGER, _LEAST, _MOMENT = 5.0, 2.0, 1e-2  # of another fit than the first; seconds
_SPREAD = float(np.log(10.0))  # starts are drawn within a factor of ten


@brief
@dataclass(frozen=True, repr=False)
class Line:
    """One check.

    Attributes
    ----------
    name : str
    fine : bool or None
        None if it could not be made.
    sentence : str
        What was found.
    advice : str
        What to do; empty if nothing.
    """

    name: str
    fine: bool | None
    sentence: str
    advice: str = ""

    def __str__(self) -> str:
        mark = {True: "fine", False: "LOOK", None: "-"}[self.fine]
        return f"{mark:>4}  {self.name}: {self.sentence}{f' {self.advice}' if self.advice else ''}"


@dataclass(frozen=True, eq=False)
class Patient:
    """What is examined: a problem at theta, the fit if there is one, and how to fit again."""

    problem: Posable
    posed: Posed
    theta: Array
    result: Result | None
    options: IntegratorOptions
    rng: np.random.Generator
    left: Callable[[], float]

    @property
    def values(self) -> dict[str, float]:
        """Natural values by name."""
        return dict(zip(self.posed.names, self.posed.to_natural(self.theta).tolist(), strict=True))

    @property
    def patience(self) -> float:
        """Seconds for one more fit: many times what the first one took, if so much is left."""
        first = np.inf if self.result is None else max(_LEAST, _LONGER * self.result.time)
        return float(max(min(self.left(), first), _MOMENT))

    @property
    def where(self) -> str:
        """Where things are evaluated, in words."""
        return "at the estimate" if self.result is not None and self.result.success else "at the guess"


def gradient(patient: Patient) -> Line:
    """Compare sensitivities with differences, and gradients by forward and adjoint sensitivities."""
    name, posed, theta = "gradient", patient.posed, patient.theta
    options = replace(patient.options, relative_tolerance=1e-9, absolute_tolerance=1e-11)
    sizes = magnitudes_of(posed, theta, options)
    steps = _STEP * np.where(posed.log, 1.0, sizes)
    worst, which, compared = 0.0, "", set[int]()
    for condition in posed.conditions:
        outputs = [n for n, of in zip(posed.outputs, condition.observed, strict=True) if of is not None]
        times = np.unique(condition.points.times)

        def at(moved: Array, c: Any = condition, t: Array = times, o: Sequence[str] = outputs) -> Any:
            return responses(posed, c, t, moved, options, outputs=o)

        here = at(theta)
        if here is None:
            return Line(name, False, f"the model cannot be integrated {patient.where}.", "Give another guess.")
        scale = np.maximum(np.abs(here.values).max(axis=0), np.finfo(float).tiny)
        for j in condition.theta:
            if patient.left() <= 0:
                break
            compared.add(int(j))
            near = [at(theta + m * steps[j] * np.eye(theta.size)[j]) for m in (-2, -1, 1, 2)]
            if any(r is None for r in near):
                continue
            y = [r.values for r in near]
            slope = (y[0] - 8 * y[1] + 8 * y[2] - y[3]) / (12 * steps[j]) / scale
            exact = here.slopes[:, :, j] / scale
            size = float(np.linalg.norm(exact))
            blur = _NOISE * options.relative_tolerance * np.sqrt(exact.size) / steps[j]
            error = max(float(np.linalg.norm(slope - exact)) - blur, 0.0) / max(size, blur)
            if error > worst:
                worst, which = error, posed.names[int(j)]
    backward = _adjoint_error(patient) if patient.left() > 0 else None
    both = "" if backward is None else f"; by adjoint states to {max(backward, 1e-9):.0e}"
    if worst > _GRADIENT:
        what = (
            "An input, event or if_else may jump with it: use cf.Event or cf.if_else with a time, not a steep function."
        )
        return Line(
            name, False, f"the derivative with respect to {which} differs from differences by {worst:.1g}.", what
        )
    if backward is not None and backward > _GRADIENT:
        advice = (
            "Tighten the tolerances; where the model amplifies errors, divide time (multiple shooting, collocation)."
        )
        return Line(name, False, f"adjoint and forward gradients differ by {backward:.1g}.", advice)
    every = {int(j) for condition in posed.conditions for j in condition.theta}
    some = "" if compared == every else f" ({len(compared)} of {len(every)} quantities in the time given)"
    return Line(name, True if compared else None, f"agrees with differences to {max(worst, 1e-9):.0e}{some}{both}.")


def _adjoint_error(patient: Patient) -> float | None:
    """Return the relative difference of the gradient by adjoint states; None where there are none."""
    posed, theta, options = patient.posed, patient.theta, patient.options
    if not posed.least_squares:
        return None
    try:
        shooting = MultipleShooting("data", integrator=options, states="simulation", derivatives="adjoint")
        found = [
            statistics(staged.layout, staged.linearize(staged.start), np.zeros(staged.layout.n_v, dtype=np.int8))
            for staged in (t.transcribe(posed, theta) for t in (SingleShooting(options), shooting))
        ]
    except (InputError, np.linalg.LinAlgError, RuntimeError, ValueError, AttributeError):  # not for such a problem
        return None
    d = np.sqrt(found[0].information.diagonal())  # gradients in units of each quantity's own uncertainty
    forward, backward = (np.where(d > 0.0, f.gradient / np.where(d > 0.0, d, 1.0), 0.0) for f in found)
    return float(np.linalg.norm(forward - backward)) / max(float(np.linalg.norm(forward)), 1.0)


def scale(patient: Patient) -> Line:
    """Look for quantities that should be searched as logarithms, and guesses that are far away."""
    posed = patient.posed
    wide = [
        q.name
        for q in posed.quantities
        if q.scale != "log" and q.lower > 0.0 and np.isfinite(q.upper) and q.upper / q.lower > 10**_DECADES
    ]
    if wide:
        advice = "Give cf.Parameter(..., scale='log') where only the order of magnitude is known."
        return Line("scale", False, f"the bounds of {listed(wide)} span more than {_DECADES:.0f} decades.", advice)
    if patient.result is not None and patient.result.success:
        ratios = {
            n: _ratio(v, g) for (n, v), g in zip(patient.values.items(), posed.to_natural(posed.guess), strict=True)
        }
        far = [n for n, r in ratios.items() if r > _FAR]
        linear = [n for n, q in zip(posed.names, posed.quantities, strict=True) if n in far and q.scale != "log"]
        if linear:
            advice = "Guesses nearer by, or scale='log', make the fit surer."
            return Line("scale", False, f"estimates of {listed(linear)} are over {_FAR:.0f} times the guess.", advice)
    return Line("scale", True, "guesses and bounds suit the search.")


def _ratio(value: float, guess: float) -> float:
    if value == 0.0 or guess == 0.0 or value * guess < 0.0:
        return 1.0
    return max(value / guess, guess / value)


def unused_data(patient: Patient) -> Line:
    """Look for measured values that nothing estimated moves."""
    posed, theta = patient.posed, patient.theta
    silent: list[str] = []
    at_start = 0
    for condition in posed.conditions:
        outputs = [n for n, of in zip(posed.outputs, condition.observed, strict=True) if of is not None]
        found = responses(posed, condition, np.unique(condition.points.times), theta, patient.options, outputs=outputs)
        if found is None:
            return Line("data", None, f"not examined: the model cannot be integrated {patient.where}.")
        sizes = np.where(posed.log, 1.0, np.maximum(np.abs(theta), np.finfo(float).tiny))
        effect = np.abs(found.slopes * sizes).max(axis=2)
        dead = effect <= _DEAD * max(float(effect.max(initial=0.0)), np.finfo(float).tiny)
        for j, output in enumerate(outputs):
            if dead[:, j].all():
                silent.append(f"{output} in {condition.name}")
            else:
                at_start += int(np.count_nonzero(dead[:, j]))
    if silent:
        advice = "They say nothing of the estimates: leave them out, or estimate what they depend on."
        return Line("data", False, f"no estimate moves {listed(silent)}.", advice)
    some = f" ({at_start} values, as those of known initial states, do not)" if at_start else ""
    return Line("data", True, f"every output says something of the estimates{some}.")


def stiff(patient: Patient) -> Line:
    """Ask how stiff the model is, and whether it grows."""
    try:
        found = stiffness(patient.problem, patient.theta)
    except (SimulationError, InputError, np.linalg.LinAlgError, ValueError) as error:
        return Line("stiffness", None, f"not known: {str(error).splitlines()[0]}.")
    worst = max(found.values(), key=lambda s: s.steps)
    grows = max(s.growth for s in found.values())
    method = patient.options.method
    suggested = {s.suggested for s in found.values()}
    suits = {"esdirk", *suggested}
    if not any(s.oscillating for s in found.values()):
        suits |= {"auto", *SUNDIALS}
    if "rosenbrock" not in suggested:
        suits.add("auto")
    if method not in suits:
        advice = f"Try IntegratorOptions(method='{sorted(suggested)[-1]}')."
        return Line("stiffness", False, worst.sentence, advice)
    if grows > 10.0:
        return Line("stiffness", False, worst.sentence, "Do not use single shooting.")
    return Line("stiffness", True, worst.sentence.partition(";")[0] + ".")


def the_fit(patient: Patient) -> Line:
    """Report how the fit ended."""
    found = patient.result
    if found is None:
        return Line("fit", None, "not made: no time was left.")
    if not found.success:
        return Line("fit", False, f"it failed: {found.message}", "Try other starts (cf.multistart), or tighter bounds.")
    if not found.goodness.described:
        return Line("fit", False, found.goodness.sentence)
    held = [n for n in found.names if n in found.active]
    if held:
        how = ", ".join(f"{n} ({found.active[n]})" for n in held)
        return Line(
            "fit", False, f"an optimum, with estimates at their bounds: {how}.", "Widen them if they are guesses."
        )
    return Line("fit", True, f"an optimum; {found.goodness.sentence or 'no test of its size is possible.'}")


def redundant(patient: Patient) -> Line:
    """Find what no data of these outputs could tell."""
    bare = structure(patient.posed, patient.theta, patient.rng, patient.options, wanted=lambda: patient.left() > 0)
    if bare.rank < 0:
        return Line("redundant parameters", None, bare.sentence)
    if bare.combinations:
        advice = "Fix one of them, write the model with the combination, or measure another output."
        return Line("redundant parameters", False, bare.sentence, advice)
    return Line("redundant parameters", True, f"none (rank {bare.rank} of {len(bare.names)} at random values).")


def symmetric(patient: Patient) -> Line:
    """Exchange quantities, in pairs and in pairs of pairs, and see whether the outputs notice."""
    posed, name = patient.posed, "symmetric parameters"
    sizes = magnitudes_of(posed, patient.theta, patient.options)
    theta = random_values(posed, patient.theta, sizes, patient.rng, 0.3)
    here = _outputs(patient, theta)
    if here is None:
        return Line(name, None, "not examined: the model could not be integrated at random values.")
    kinds = [(q.kind, q.experiment, q.scale) for q in posed.quantities]
    another = random_values(posed, patient.theta, sizes, patient.rng, 0.3)
    seen = [j for j in range(theta.size) if patient.left() > 0 and _enters(patient, theta, another, j, here)]
    pairs = [(i, j) for i, j in itertools.combinations(seen, 2) if kinds[i] == kinds[j]]
    found: list[tuple[tuple[int, int], ...]] = []
    every: list[tuple[tuple[int, int], ...]] = [(pair,) for pair in pairs]
    if theta.size <= _MANY:
        every += [two for two in itertools.combinations(pairs, 2) if len({*two[0], *two[1]}) == 4]
    tried = 0
    for swaps in every:
        if patient.left() <= 0:
            break
        if any(set(known) <= set(swaps) for known in found):
            continue
        tried += 1
        moved = theta.copy()
        for i, j in swaps:
            moved[[i, j]] = theta[[j, i]]
        other = _outputs(patient, moved)
        if other is not None and float(np.abs(other - here).max(initial=0.0)) <= _SAME_OUTPUT:
            found.append(swaps)
    if found:
        said = "; ".join(" with ".join(f"{posed.names[i]} and {posed.names[j]}" for i, j in s) for s in found)
        advice = "Every optimum has a twin: order them by bounds, or by cf.Constraint."
        return Line(name, False, f"the data do not notice when these are exchanged: {said}.", advice)
    return Line(name, True, f"none among {tried} exchanges of quantities.")


def _enters(patient: Patient, theta: Array, another: Array, j: int, here: Array) -> bool:
    """Tell whether a quantity moves the outputs at all; parameters of the noise do not, and none is another's twin."""
    moved = theta.copy()
    moved[j] = another[j]
    other = _outputs(patient, moved)
    return other is None or float(np.abs(other - here).max(initial=0.0)) > _SAME_OUTPUT


def _outputs(patient: Patient, theta: Array) -> Array | None:
    """Return measured outputs relative to their sizes, in one row; None where integration fails."""
    lower, upper = patient.posed.bounds
    staged = SingleShooting(patient.options).transcribe(patient.posed, np.clip(theta, lower, upper)).explicit()
    if not staged.evaluate(theta).ok:
        return None
    y = np.concatenate([part[0] for part in staged.standardised(theta)])
    return y / max(float(np.abs(y).max(initial=0.0)), np.finfo(float).tiny)


def practical(patient: Patient) -> Line:
    """Say what these data leave open."""
    found = patient.result
    if found is None or not found.success:
        return Line("identifiability", None, "not known without a fit.")
    bad = (NOT_IDENTIFIABLE, POORLY_DETERMINED, CORRELATED_WITH)
    weak = [v for v in found.identifiability.verdicts if v.kind in bad]
    valley = [s for s in found.confidence_region().sentences if "flat valley" in s]
    if weak or valley:
        said = found.identifiability.sentence if weak else valley[0]
        return Line("identifiability", False, said, "See cf.identifiability(result): it says what to measure next.")
    return Line("identifiability", True, found.identifiability.sentence)


def residuals(patient: Patient) -> Line:
    """Say whether the residuals look like noise, and whether single values decide."""
    found = patient.result
    if found is None or not found.success:
        return Line("residuals", None, "not known without a fit.")
    said = found.diagnostics
    return Line("residuals", not said.suspicious, said.sentence, "See result.diagnostics." if said.suspicious else "")


def tolerances(patient: Patient) -> Line:
    """Integrate a hundred times more accurately, from the nodes of the trajectory, and compare the predictions."""
    found, name = patient.result, "tolerances"
    if found is None or not found.success:
        return Line(name, None, "not known without a fit.")
    used = found.integrator
    fine = replace(
        used,
        method="auto" if used.method == "collocation" else used.method,
        relative_tolerance=max(1e-2 * used.relative_tolerance, 1e-12),
        absolute_tolerance=1e-2 * used.absolute_tolerance,
    )
    nodes = [found.trajectories[c.name] for c in patient.posed.conditions]
    try:
        exact = predict(patient.problem, found.theta, nodes, integrator=fine)
    except SimulationError as error:
        return Line(name, False, f"the model cannot be integrated more accurately: {error.sentence}", "Relax them.")
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
        return Line(name, None, "not examined: there are no deviations to compare with.")
    much = float(np.abs(off).max())
    if much > _MOVES:
        advice = "Tighten IntegratorOptions, or take more elements."
        return Line(name, False, f"predictions move by up to {much:.2g} sigma at finer tolerances.", advice)
    return Line(
        name, True, f"predictions move by at most {max(much, 1e-9):.0e} sigma at tolerances a hundred times finer."
    )


def other_transcriptions(patient: Patient) -> Line:
    """Fit from the estimate by the other transcriptions, and compare estimates."""
    found, name = patient.result, "other transcriptions"
    if found is None or not found.success:
        return Line(name, None, "not tried without a fit.")
    own = {"single shooting": "single", "multiple shooting": "multiple", "collocation": "collocation"}
    mine = next((kind for label, kind in own.items() if found.transcription.startswith(label)), "")
    agreed: list[str] = []
    for kind in [k for k in TRANSCRIPTIONS if k != mine]:
        if patient.left() <= 0:
            break
        try:
            other = fit(patient.problem, kind, start=found, retry=False, max_time=patient.patience)
        except InputError:  # this transcription does not take such a problem
            continue
        if not other.success:
            continue
        off = _distance(found, other)
        if off > _AGREE:
            said = f"by {kind} the estimates differ by {off:.2g} standard errors"
            lower = _lower(other, found)
            return Line(
                name, False, f"{said}{', at a lower chi2' if lower else ''}.", "Tighten the tolerances; compare."
            )
        agreed.append(kind)
    if not agreed:
        return Line(name, None, "none could be compared.")
    return Line(name, True, f"{' and '.join(agreed)} end at the same estimates.")


def _distance(one: Result, other: Result) -> float:
    """Return by how many standard errors estimates differ, at most; of what is not determined nothing is asked."""
    errors = np.array([one.standard_errors[n] for n in one.names])
    values = np.array([[r.values[n] for n in one.names] for r in (one, other)])
    known = np.isfinite(errors) & (errors > 0.0)
    return float((np.abs(values[1] - values[0])[known] / errors[known]).max(initial=0.0))


def _lower(other: Result, found: Result) -> bool:
    """Tell whether another optimum is better by more than errors of fits: in units of the likelihood, per datum."""
    return bool(found.cost - other.cost > _BETTER * max(found.n_data, 1) * 0.5)


def other_starts(patient: Patient, solve: Callable[[Mapping[str, float], float], Result], starts: int) -> Line:
    """Fit from random starts within a factor of ten, as many as the time allows."""
    found, name = patient.result, "other starts"
    sizes = magnitudes_of(patient.posed, patient.theta, patient.options)
    tried, same, best = 0, 0, found if found is not None and found.success else None
    while patient.left() > 0 and tried < starts:
        theta = random_values(patient.posed, patient.theta, sizes, patient.rng, _SPREAD)
        values = dict(zip(patient.posed.names, patient.posed.to_natural(theta).tolist(), strict=True))
        other = solve(values, patient.patience)
        if patient.left() <= 0 and not other.success:
            break  # cut off
        tried += 1
        if not other.success:
            continue
        if best is None or _lower(other, best):
            best = other
        same += found is not None and found.success and not _lower(other, found) and not _lower(found, other)
    if tried == 0:
        return Line(name, None, "none tried: no time was left." if starts else "none were asked for.")
    if best is not None and best is not found:
        values = ", ".join(f"{n} = {v:.4g}" for n, v in list(best.values.items())[:6])
        said = f"{tried} tried, and one leads to a better optimum (chi2 = {best.chi2:.6g}, at {values})."
        return Line(name, False, said, "Begin there, and run cf.multistart.")
    if best is None:
        return Line(name, False, f"none of {tried} led to an optimum.", "Look at the model and at the guesses.")
    return Line(name, True, f"{tried} tried within a factor of ten, {same} end at this optimum, none at a better one.")
