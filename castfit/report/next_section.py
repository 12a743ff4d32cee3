"""Page section on the next measurements: a paragraph and a figure, if a design is cheap to compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit._support.reprs import join_limited
from castfit._support.status import CastfitError, InputError
from castfit.problem.problem import Problem
from castfit.report.markup import Markup, joined, tag
from castfit.simulate.simulate import SimulationError

if TYPE_CHECKING:
    from castfit.drive.design.proposal import Design
    from castfit.report.result_sections import Figures
    from castfit.report.sketch import SketchPanel
    from castfit.result.result import Result

_N_PROPOSED_VALUES = 3  # Further measurements of which the section reports the effect.
_N_CANDIDATE_TIMES = 60  # Candidate times of the further measurements.
_N_CURVE_POINTS = 81  # Points of a curve.
_MOST_PANELS = 4
_MOST_SLOPES = 60  # states times quantities, so that a page is not kept waiting
_MOST_EXPERIMENTS = 4
_MAX_RELATIVE_SD = 10.0  # Relative standard deviation above which a change is not reported.


def measured_next(result: Result, figures: Figures) -> Markup:
    """Propose the most informative further values of the first experiment, or give the reason why none are proposed."""
    problem = result.problem
    if not isinstance(problem, Problem):
        return tag("p", "No suggestion: the result has no problem.")
    large = len(result.names) * len(problem.original_model.states) > _MOST_SLOPES
    if large or len(problem.experiments) > _MOST_EXPERIMENTS:
        call_markup = tag("code", "cf.design(result, cf.Candidate(times), budget=...)")
        return tag("p", "The problem is too large for a suggestion on this page; call ", call_markup, ".")
    try:
        proposal = _proposal(result, problem)
    except InputError as reason:
        return tag("p", f"No suggestion: {'; '.join(reason.problems)}.")
    except (SimulationError, CastfitError) as reason:
        return tag("p", f"No suggestion: {reason}")

    caption = (
        "The model's curve with its bands of 95 % before (light) and after; the marks are where to measure, with how "
        "often."
    )
    return joined(tag("p", _describe_proposal(result, problem, proposal)), figures.sketched(_panels(proposal), caption))


def _proposal(result: Result, problem: Problem) -> Design:
    from castfit.drive.design.candidate import Candidate
    from castfit.drive.design.design import design

    first_experiment = problem.experiments[0]
    times = np.linspace(first_experiment.start, first_experiment.end, _N_CANDIDATE_TIMES + 1)[1:]
    interval_outputs = {
        memory.output for memory in problem.original_model.memories
    }  # of which single values are no offer
    outputs = [n for n in first_experiment.measured if n not in interval_outputs] or None
    return design(
        result,
        Candidate(times, outputs, repeats=True, name=f"more of {first_experiment.name}"),
        budget=_N_PROPOSED_VALUES,
    )


def _panels(proposal: Design) -> list[SketchPanel]:
    """Return the predictions that are measured, their bands before and after, and the times with how often."""
    from castfit.plots._canvas import escape_text
    from castfit.plots.designs import SHADES, predicted
    from castfit.report.sketch import SketchPanel

    information, table = proposal.information, proposal.table
    (values,) = proposal.selection.values[0]
    panels: list[SketchPanel] = []
    times = np.linspace(float(information.condition(0).start), float(values.times[-1]), _N_CURVE_POINTS)
    measured = [o for o in values.outputs if o in table["output"]]
    mu, bands = predicted(proposal, 0, times, measured)
    axis = escape_text(information.extended.label("time"))
    for j, name in enumerate(measured[:_MOST_PANELS]):
        is_output = table["output"] == name
        marks = [(float(t), float(y), f"{n}") for t, y, n in
                 zip(*(table[c][is_output] for c in ("time", "prediction", "count")), strict=True)]  # fmt: skip
        band_layers = [
            (reach[:, j], alpha) for (_, reach), alpha in zip(bands.items(), SHADES[2 - len(bands) :], strict=True)
        ]
        panels.append(SketchPanel(escape_text(name), axis, times, mu[:, j], band_layers, marks))
    return panels


def _describe_proposal(result: Result, problem: Problem, proposal: Design) -> str:
    instruction = proposal.summary().splitlines()[0]
    changes = [
        f"{name} from ±{100 * error_before:.3g} % to ±{100 * proposal.after[name]:.3g} %"
        for name, error_before in proposal.before.items()
        if error_before < _MAX_RELATIVE_SD and proposal.after[name] < _MAX_RELATIVE_SD and result.values[name] != 0.0
    ]
    experiment_text = f" of {problem.experiments[0].name}" if len(problem.experiments) > 1 else ""
    sentences = [
        f"If {_N_PROPOSED_VALUES} more values{experiment_text} could be measured, with the accuracy and within the "
        "times of the existing measurements, these would reduce the joint uncertainty of all "
        "quantities most (criterion D): "
        f"{instruction[0].lower()}{instruction[1:]}",
        f"The standard deviations would change as follows: {join_limited(changes)}." if changes else "",
        f"The efficiency of this design is at least {np.floor(1000 * proposal.efficiency) / 10:g} %.",
        *proposal.remarks,
        "These predictions assume that the model is correct, but the residual tests reject it."
        if result.is_contradicted
        else "",
    ]
    return " ".join(part for part in sentences if part)
