"""Page sections of a fit: data and model, estimates, identifiability, residuals, solution."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit import plots
from castfit._support.reprs import join_limited
from castfit._support.status import CastfitError, InputError
from castfit._support.text_tables import format_interval, format_to_error
from castfit.plots._canvas import objective_symbol, off_pyplot
from castfit.problem.problem import Problem
from castfit.report.figures import WIDTH, figure, framed, sketch
from castfit.report.page import Content, Markup, ReportHeader, Section, facts, joined, sheet, table, tag
from castfit.report.problem_sections import question
from castfit.result.identifiability import WELL_DETERMINED
from castfit.result.residuals import NO_FINDING
from castfit.simulate.simulate import SimulationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from castfit.drive.design.proposal import Design
    from castfit.report.figures import SketchPanel
    from castfit.result.diagnostics import Diagnostics
    from castfit.result.estimate import Estimate
    from castfit.result.result import Result


_MOST_EMBEDDED = 400_000  # bytes of a saved result that go into the page
_MOST_SERIES = 50  # outputs of single experiments, whose tests are all shown
_MOST_CORRELATED = 40  # quantities in a picture of correlations


class Figures:
    """Numbered figures of a page, with a sentence for a figure that is missing."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, draw: Callable[[], Figure], caption: Content) -> Markup:
        """Return a figure, or why it cannot be drawn."""
        try:
            with off_pyplot():
                picture = draw()
        except (SimulationError, CastfitError) as reason:
            return tag("p", f"This figure is missing: {reason}", class_="verdict doubtful")
        self._count += 1
        return figure(picture, self._count, caption)

    def sketched(self, panels: Sequence[SketchPanel], caption: Content) -> Markup:
        """Return a figure of curves, which is drawn by hand."""
        self._count += 1
        return framed(sketch(panels), len(panels) * WIDTH, {}, self._count, caption)


def lead(result: Result, title: str, notes: str) -> ReportHeader:
    """Return the head of the page."""
    is_described = result.success and result.goodness.described
    mood = "good" if is_described and not _doubts(result) else "doubtful" if result.success else "bad"
    criteria = f"{result.objective:.6g} from {result.n_data} data"
    return ReportHeader(
        title,
        "Parameter estimation",
        mood,
        verdict(result),
        (
            (objective_symbol(result.measure), criteria),
            ("degrees of freedom", f"{result.dof}"),
            ("estimated quantities", f"{len(result.names)}"),
            ("transcription", result.transcription.partition(" (")[0]),
            ("time", f"{result.time:.2g} s"),
        ),
        notes,
    )


def verdict(result: Result) -> str:
    """Summarise the result of a fit in a few sentences."""
    if not result.success:
        return f"The fit failed: {result.message}"
    parts = (result.goodness.sentence or "A solution was found.", *_suspicions(result), result.determination)
    return " ".join(part for part in parts if part)


def _doubts(result: Result) -> bool:
    unlikely = result.goodness.grade != NO_FINDING
    is_determined = all(verdict.kind == WELL_DETERMINED for verdict in result.identifiability.verdicts)
    return unlikely or bool(_suspicions(result)) or not is_determined


def _suspicions(result: Result) -> tuple[str, ...]:
    return () if result.problem is None or not result.success else result.diagnostics.messages


def sections(result: Result, figures: Figures, bands: str | None = "linear") -> list[Section]:
    """Return the sections of a fit in order; a loaded result without its problem has fewer."""
    has_problem = result.problem is not None
    chapters: list[Section] = []
    if result.problem is not None:
        chapters.append(Section("question", "The question", question(result.problem)))
        chapters.append(Section("fit", "Data and fit", data_and_fit(result, figures, bands)))
    chapters.append(Section("estimates", "Estimates", estimates(result)))
    if result.success:
        chapters.append(
            Section(
                "determined",
                "Precision of the estimates",
                joint_precision_section(result, figures),
                "What is determined",
            )
        )
    if has_problem and result.success:
        chapters.append(Section("residuals", "Residual tests", residuals(result, figures), "Residuals"))
        chapters.append(Section("next", "Suggested measurements", measured_next(result, figures)))
    chapters.append(Section("solution", "Solver", solver_section(result, figures)))
    return chapters


def data_and_fit(result: Result, figures: Figures, bands: str | None) -> Markup:
    """Return the data with the model's curves."""
    shaded = bands if result.success else None
    chance = f"{100 * result.confidence_level:g} %"
    about = f" The shade holds the curve with {chance} probability, at each time by itself." if shaded else ""
    caption = (
        "Measured values with their standard deviations, the model's curve, and below it the residuals in standard "
        f"deviations; the grey stripe is two of them to either side.{about}"
    )
    return joined(
        tag("p", result.goodness.sentence) if result.goodness.sentence else None,
        figures.add(lambda: plots.fit(result, bands=shaded), caption),
    )


def estimates(result: Result) -> Markup:
    """Return the table of estimates, with intervals as text and drawn."""
    level = f"{100 * result.confidence_level:g} %"
    verdicts = "assuming that the model is correct" if result.is_contradicted else "verdict"
    heads = ("quantity", "?unit", ">value", ">standard error", f"{level} interval", "", verdicts)
    logs = dict(zip(result.names, result.log, strict=True))
    rows: list[list[Content]] = []
    for name, estimate in estimated(result):
        error = estimate.standard_error
        cells = ("inf", "∞") if error > 0 else ("–", "none")
        if np.isfinite(error):
            cells = (f"{error:.2g}", interval(estimate))
        remark = estimate.verdict + (" (log scale)" if logs.get(name) else "")
        whisker = _whisker(estimate.value, *estimate.interval)
        rows.append([name, estimate.unit, format_to_error(estimate.value, error), *cells, whisker, remark])
    sigma = result.sigmas.get("sigma", np.nan)
    noise = "" if np.isnan(sigma) else f" Estimated noise: {sigma:.3g} (maximum likelihood)."
    distribution = (
        "the normal distribution" if result.absolute_sigma else f"Student's t with {result.dof} degrees of freedom"
    )
    bars = "Drawn are intervals relative to their values: the whole width is from −100 % to +100 %."
    return joined(
        table(heads, rows),
        tag("p", f"Intervals are linear approximations at the optimum, by {distribution}. {bars}{noise}"),
        tag("p", "Held by bounds: " + ", ".join(f"{n} ({side})" for n, side in result.active.items()) + ".")
        if result.active
        else None,
    )


def estimated(result: Result) -> list[tuple[str, Estimate]]:
    """Return all quantities, and noises that were estimated beside them."""
    noises = (n for n in result.sigmas if n not in result.names and n != "sigma")
    return [(name, result[name]) for name in (*result.names, *noises)]


def interval(estimate: Estimate) -> str:
    """Write the confidence interval of an estimate."""
    return format_interval(estimate.interval, estimate.value)


def _whisker(value: float, low: float, high: float) -> Markup:
    """Draw an interval relative to its value, between -100 % and +100 %."""
    if not (np.isfinite([value, low, high]).all() and value != 0.0):
        return Markup("")
    ends = sorted((end - value) / abs(value) for end in (low, high))
    left, right = (50.0 + 50.0 * float(np.clip(end, -1.0, 1.0)) for end in ends)
    line = tag("i", style=f"left: {left:.1f}%; width: {max(right - left, 0.5):.1f}%")
    return tag("span", line, tag("b", style="left: 50%"), class_="bar", aria_hidden="true")


def joint_precision_section(result: Result, figures: Figures) -> Markup:
    """Return the section on the joint uncertainty of the estimates."""
    if not result.names:
        return joined(tag("p", result.determination))
    region = result.confidence_region()
    messages = [*map(str, result.identifiability.combinations), *region.sentences]
    has_several = len(result.names) > 1
    parts: list[Content] = [
        tag("p", result.determination),
        tag("ul", (tag("li", s) for s in dict.fromkeys(messages)), class_="said") if messages else None,
        tag("h3", "How well each is known"),
        sheet(region.limits),
        tag(
            "p",
            "“By itself”: whatever the others are. “All together”: the box about the region in which all lie at once. "
            "“Others at their estimates”: the section of that region, as wide in standard errors as the box; of many "
            "quantities both are wider than an interval of one.",
        ),
    ]
    if has_several:
        parts += [
            tag("h3", "Which combinations are known"),
            sheet(region.combinations),
            figures.add(
                lambda: plots.directions(result),
                "The principal axes of the confidence region, the worst known first: the shares of the quantities in "
                "each, in relative changes.",
            ),
            figures.add(
                lambda: plots.ellipses(result),
                "Pairs of quantities in the linear approximation. The shadow of the solid ellipse on an axis is the "
                "quantity's own interval; the dashed one holds both together.",
            ),
        ]
    if has_several and len(result.names) <= _MOST_CORRELATED:
        parts.append(figures.add(lambda: plots.correlation(result), "Correlations of the estimates."))
    if result.problem is not None:
        parts += [
            tag("h3", "What moves what, and when"),
            figures.add(
                lambda: plots.sensitivities(result),
                "How much a relative change of each quantity moves the outputs. Lines of the same shape are hard to "
                "tell apart from these data; dots are where something was measured.",
            ),
        ]
    return joined(*parts)


def residuals(result: Result, figures: Figures) -> Markup:
    """Return the tests of the residuals, outliers, and criteria for comparing models."""
    diagnostics = result.diagnostics
    outliers = [
        [o.experiment, o.output, f"{o.time:g}", f"{o.value:.5g}", f"{o.prediction:.5g}", f"{o.residual:.2f}"]
        for o in diagnostics.outliers
    ]
    heads = ("experiment", "output", ">time", ">measured", ">model", ">residual / σ")
    chance = f"{result.goodness.p_value:.2g}" if np.isfinite(result.goodness.p_value) else ""
    return joined(
        tag("p", f"{diagnostics.sentence} {diagnostics.advice}".strip()),
        figures.add(
            lambda: plots.residuals(result),
            "Residuals in time, against the size of the prediction, against the quantiles of a normal distribution, "
            "and their correlation with each other by distance. Small p mean that noise hardly looks like "
            "this; red ones are suspected, all tests together.",
        ),
        tag("h3", "Tests"),
        _tests(diagnostics, result.goodness.chi2_per_datum),
        (tag("h3", "Outliers"), table(heads, outliers)) if outliers else None,
        tag("h3", "Figures for comparing models"),
        facts(
            (
                (objective_symbol(result.measure), f"{result.objective:.8g}"),
                ("degrees of freedom", f"{result.dof}"),
                ("p of χ²", chance),
                *(
                    (name, f"{criterion:.6g}")
                    for name, criterion in (("AIC", result.aic), ("BIC", result.bic))
                    if result.has_criteria
                ),
            )
        ),
    )


def _tests(diagnostics: Diagnostics, order: Mapping[str, Any]) -> Markup:
    """Return the table of all tests, outputs in the order of the problem."""
    outputs = sorted(
        diagnostics.outputs.values(), key=lambda c: list(order).index(c.output) if c.output in order else -1
    )
    single = list(diagnostics.series.values()) if diagnostics.has_many_experiments else []
    shown_series = (
        [s for s in single if any(c.is_finding for c in s.checks.values())] if len(single) > _MOST_SERIES else single
    )
    shown_checks = [*outputs, *shown_series]
    rows = [
        (
            checks.output,
            checks.experiment or "all",
            name.replace("_", " "),
            f"{c.number:.3g}",
            f"{c.p_value:.2g}",
            f"{c.adjusted:.2g}" if np.isfinite(c.adjusted) else "",
            c.sentence,
        )
        for checks in shown_checks
        for name, c in checks.checks.items()
        if np.isfinite(c.p_value)
    ]
    test_table = table(("output", "experiment", "test", ">number", ">p", ">p of all together", "in words"), rows)
    tests = test_table if len(shown_checks) <= 4 else tag("details", tag("summary", f"{len(rows)} tests"), test_table)
    omission_text = (
        f"{len(shown_series)} of {len(single)} outputs of single experiments have a shown or suspected "
        "deviation; only these are listed."
    )
    return joined(tests, tag("p", omission_text) if len(shown_series) < len(single) else None)


def solver_section(result: Result, figures: Figures) -> Markup:
    """Return the section on the solution: status, method, counts of evaluations, and history."""
    counted = ", ".join(f"{n} {kind}" for kind, n in result.evaluations.items())
    failed = ", ".join(f"{n} {cause}" for cause, n in result.failures.items())
    options = result.integrator
    accuracy = f"relative tolerance {options.relative_tolerance:g}, absolute tolerance {options.absolute_tolerance:g}"
    parts: list[Content] = [
        tag("p", result.message),
        facts(
            (
                ("status", result.status.value.replace("_", " ")),
                ("transcription", result.transcription),
                ("solver", result.solver),
                ("iterations", f"{result.iterations}"),
                ("evaluations", counted),
                ("failed evaluations", failed),
                ("largest gap", f"{result.gaps:.2g}" if np.isfinite(result.gaps) else ""),
                ("time", f"{result.time:.3g} s"),
                ("integrator of predictions", accuracy),
            )
        ),
    ]
    if len(result.history) > 1:
        caption = "The objective over the iterations, and how far the pieces of the trajectory were apart."
        parts.append(figures.add(lambda: plots.history(result), caption))
    return joined(*parts)


def repeat(result: Result, command: str = "", source: str = "") -> Section:
    """Return versions, fingerprints, and the result itself to be loaded again."""
    serialized = result.to_dict()
    marks: Mapping[str, Any] = serialized.get("question") or result.question
    saved = json.dumps(serialized, allow_nan=False)
    parts: list[Content] = []
    if command:
        parts += [tag("p", "This page was written by the command"), tag("pre", command)]
    if source:
        parts.append(tag("details", tag("summary", "The script that states the problem"), tag("pre", source)))
    parts += [tag("h3", "Versions"), facts(result.versions.items())]
    if marks:
        fingerprint_facts = facts((label, tag("code", mark)) for label, mark in marks.items())
        parts += [
            tag("p", "A problem is the one of this page if its fingerprints are these:"),
            tag("details", tag("summary", f"{len(marks)} fingerprints of model and data"), fingerprint_facts),
        ]
    if len(saved) <= _MOST_EMBEDDED:
        link = _file("the result as a file", "application/json", saved, "result.json")
        load = "result = cf.Result.load('result.json').with_problem(problem)"
        parts.append(tag("p", "Save ", link, " and read it with ", tag("code", load), ".", class_="screen"))
    if result.problem is not None:
        parts.append(tag("p", "Data and predictions of the model: ", _residual_file(result), ".", class_="screen"))
    return Section("repeat", "Reproducing this page", joined(*parts))


def _residual_file(result: Result) -> Markup:
    columns = result.residual_table()
    lines = [",".join(columns), *(_line(row) for row in zip(*(c.tolist() for c in columns.values()), strict=True))]
    file = _file("a table", "text/csv", "\n".join(lines), "residuals.csv")
    return tag("code", "result.residual_table()") if len(file) > _MOST_EMBEDDED else file


def _file(words: str, kind: str, content: str, name: str) -> Markup:
    """Return a link to a file that is part of the page."""
    data = base64.b64encode(content.encode()).decode()
    return tag("a", words, href=f"data:{kind};base64,{data}", download=name)


def _line(row: Iterable[Any]) -> str:
    """Write a line of a CSV file; text is quoted."""
    return ",".join('"' + c.replace('"', '""') + '"' if isinstance(c, str) else repr(c) for c in row)


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
    from castfit.report.figures import SketchPanel

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
