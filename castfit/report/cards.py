"""Cards of results, problems and models in notebooks, and the pages of a plan and of a population."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from castfit import plots
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TabularReport, TextTable, format_to_error
from castfit.drive.run.run_result import SearchResult
from castfit.drive.search.compare.result import ComparisonResult
from castfit.drive.search.multistart.result import MultistartResult
from castfit.model.model import Model
from castfit.plots._canvas import objective_symbol
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.problem import Problem
from castfit.report import problem_sections, result_sections, run_sections
from castfit.report.page import Content, Markup, ReportHeader, Section, joined, page_mistakes, sheet, table, tag, write
from castfit.report.result_sections import Figures
from castfit.result.result import Result

if TYPE_CHECKING:
    from typing import Any

    from castfit.control.plan import Plan
    from castfit.drive.population.result import MixedEffectsResult


_STYLE = Markup(
    ".castfit{font-size:.92em;line-height:1.45}.castfit p{margin:.35em 0;max-width:60em}.castfit table{border-collapse:"
    "collapse;margin:.5em 0}.castfit th,.castfit td{padding:.15em .8em .15em 0;text-align:left;border:0}"
    ".castfit thead th{border-bottom:1px solid currentColor}.castfit thead button{all:unset;font-weight:600}"
    ".castfit .number{text-align:right;font-variant-numeric:tabular-nums}.castfit h3{font-size:1em;margin:.7em 0 .1em}"
    ".castfit .groups{display:flex;flex-wrap:wrap;gap:0 3em}.castfit .scroll{overflow-x:auto}"
    ".castfit table.equations td:first-child{text-align:right}"
)


def card(subject: Result | SearchResult | TabularReport | Problem | CompiledProblem | Model) -> str:
    """Return HTML for a notebook.

    Parameters
    ----------
    subject : Result, MultistartResult, ComparisonResult, any other result of a driver, Problem or Model
        Or anything else that consists of tables and sentences.
    """
    render = next(render for kind, render in _CARDS if isinstance(subject, kind))
    return tag("div", tag("style", _STYLE), render(subject), class_="castfit")


def _tables(report: TabularReport) -> Markup:
    return joined(sheet(part) if isinstance(part, TextTable) else tag("p", part) for part in report.parts)


def _headline(bold: str, *content: Content) -> Markup:
    return tag("p", tag("b", bold), *content)


def _result(result: Result) -> Markup:
    level = f"{100 * result.confidence_level:g} %"
    heads = ("", "?unit", ">value", ">std. error", f"{level} interval", "remark")
    rows: list[list[Content]] = []
    for name, estimate in result_sections.estimated(result):
        error = estimate.standard_error
        cells = (f"{error:.2g}", result_sections.interval(estimate)) if np.isfinite(error) else ("–", "–")
        rows.append([name, estimate.unit, format_to_error(estimate.value, error), *cells, estimate.verdict])
    method_text = f"{result.transcription}, {result.solver}: {result.iterations} iterations, {result.time:.2f} s"
    number = f"{objective_symbol(result.measure)} = {result.objective:.6g}"
    facts = f": {number} from {result.n_data} data, {result.dof} degrees of freedom"
    kind = "Result" if result.success else "No solution"
    return joined(
        _headline(kind, facts),
        table(heads, rows),
        tag("p", result_sections.verdict(result)),
        tag("p", tag("small", method_text)),
    )


def _best(result: SearchResult) -> Markup | None:
    if result.best is None:
        return None
    return joined(tag("h3", "The best fit" if result.success else "The best point"), _result(result.best))


def _multistart(result: MultistartResult) -> Markup:
    above = run_sections.multistart_lead(result, "", "")
    return joined(
        _headline("Multistart", f": {len(result.starts)} starts"),
        tag("p", above.verdict),
        run_sections.optima(result.optima, len(result.starts), result.measure),
        _best(result),
    )


def _comparison(result: ComparisonResult) -> Markup:
    above, rows = run_sections.comparison_lead(result, "", ""), result.sheet()
    best = f"{objective_symbol(result.measure)} = {result.best_objective:.6g}"
    return joined(
        _headline("Comparison", f": {len(result.rows)} methods from {len(result.drawn)} starts, {best}"),
        tag("p", above.verdict),
        table(rows.heads, rows.rows),
    )


def _render_search(result: SearchResult) -> Markup:
    return joined(tag("p", repr(result)), (tag("p", text) for text in result.misfit()), _best(result))


def _model(model: Model) -> Markup:
    kind = "Differential-algebraic equations" if model.algebraic_states else "Ordinary differential equations"
    parameter_names = [name for name in model.parameters if name not in model.noises]
    parameter_text = f" with the parameters {', '.join(parameter_names)}" if parameter_names else " without parameters"
    inputs = f" and the inputs {', '.join(model.inputs)}" if model.inputs else ""
    noises = f", driven by white noise {', '.join(model.noises)}" if model.noises else ""
    return joined(_headline(kind, parameter_text, inputs, noises), problem_sections.model(model))


def _problem(problem: Problem | CompiledProblem) -> Markup:
    return joined(_headline("Problem"), problem_sections.question(problem))


# What a card shows, by the class of its subject; the first one that fits.
_CARDS: tuple[tuple[Any, Callable[[Any], Markup]], ...] = (
    (Result, _result),
    (MultistartResult, _multistart),
    (ComparisonResult, _comparison),
    (SearchResult, _render_search),
    (TabularReport, _tables),
    (Model, _model),
    ((Problem, CompiledProblem), _problem),
)


def plan_report(plan: Plan, path: Any, *, title: str = "A plan", notes: str = "") -> Path:
    """Write the page; see `Plan.report`."""
    raise_if_mistakes("report", page_mistakes(path, title=title, notes=notes))
    figures, mood = Figures(), "good" if plan.success else "bad"
    numbers = (
        ("objective", f"{plan.objective:.8g}"), ("integrated", f"{plan.integrated:.8g}"),
        ("horizon", f"{plan.horizon:.6g}"), ("stages", f"{plan.stages}"), ("iterations", f"{plan.iterations}"),
    )  # fmt: skip
    picture = figures.add(lambda: plots.plan(plan), "States and chosen inputs over time; dotted lines are bounds.")
    chapters = [
        Section("plan", "The plan", picture),
        Section("numbers", "In numbers", joined(sheet(part) for part in plan.parts if isinstance(part, TextTable))),
        Section("question", "The question", tag("p", plan.question)),
    ]
    return write(path, ReportHeader(title, "Optimal control", mood, plan.message, numbers, notes), chapters)


def population_report(result: MixedEffectsResult, path: Any, *, title: str = "A population", notes: str = "") -> Path:
    """Write the page of a mixed-effects fit; see `MixedEffectsResult.report`."""
    raise_if_mistakes("report", page_mistakes(path, title=title, notes=notes))
    figures, mood = Figures(), "good" if result.success else "bad"
    numbers = (
        ("individuals", f"{result.n_individuals}"), ("measurements", f"{result.n_data}"),
        ("-2 log L", f"{result.neg2loglik:.6g}"), ("AIC", f"{result.aic:.6g}"), ("BIC", f"{result.bic:.6g}"),
    )  # fmt: skip
    texts = joined(sheet(part) if isinstance(part, TextTable) else tag("p", part) for part in result.text_parts)
    heads = tuple(result.individual_table)
    columns = zip(*result.individual_table.values(), strict=True)
    individuals = TextTable(
        heads, tuple(tuple(c if isinstance(c, str) else f"{c:.5g}" for c in row) for row in columns)
    )
    picture = figures.add(lambda: plots.individuals(result), "Data of the first individuals, and their predictions.")
    chapters = [
        Section("estimates", "Estimates", texts),
        Section("individuals", "Individuals", joined(picture, sheet(individuals))),
    ]
    return write(path, ReportHeader(title, "Mixed effects", mood, result.message, numbers, notes), chapters)
