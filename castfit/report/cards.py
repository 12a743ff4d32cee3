"""Cards of results, problems and models in notebooks: tables and formulas instead of a line of text."""

from __future__ import annotations

import numpy as np

from castfit._support.text_tables import Sheet, Tabled, rounded
from castfit.drive.run.run_result import SearchResult
from castfit.drive.search.compare.result import ComparisonResult
from castfit.drive.search.multistart.result import MultistartResult
from castfit.model.model import Model
from castfit.plots._canvas import symbol
from castfit.problem.compiled_problem import Posed
from castfit.problem.problem import Problem
from castfit.report import problem_sections, result_sections, run_sections
from castfit.report.markup import Content, Markup, joined, tag
from castfit.report.tables import sheet, table
from castfit.result.result import Result

_STYLE = Markup(
    ".castfit{font-size:.92em;line-height:1.45}.castfit p{margin:.35em 0;max-width:60em}.castfit table{border-collapse:"
    "collapse;margin:.5em 0}.castfit th,.castfit td{padding:.15em .8em .15em 0;text-align:left;border:0}"
    ".castfit thead th{border-bottom:1px solid currentColor}.castfit thead button{all:unset;font-weight:600}"
    ".castfit .number{text-align:right;font-variant-numeric:tabular-nums}.castfit h3{font-size:1em;margin:.7em 0 .1em}"
    ".castfit .groups{display:flex;flex-wrap:wrap;gap:0 3em}.castfit .scroll{overflow-x:auto}"
    ".castfit table.equations td:first-child{text-align:right}"
)


def card(thing: Result | SearchResult | Tabled | Problem | Posed | Model) -> str:
    """Return HTML for a notebook.

    Parameters
    ----------
    thing : Result, MultistartResult, ComparisonResult, any other result of a driver, Problem or Model
        Or anything else that consists of tables and sentences.
    """
    content = _content(thing)
    return tag("div", tag("style", _STYLE), content, class_="castfit")


def _content(thing: Result | SearchResult | Tabled | Problem | Posed | Model) -> Markup:
    if isinstance(thing, Result):
        return _result(thing)
    if isinstance(thing, MultistartResult):
        return _multistart(thing)
    if isinstance(thing, ComparisonResult):
        return _comparison(thing)
    if isinstance(thing, SearchResult):
        return _found(thing)
    if isinstance(thing, Tabled):
        return joined(sheet(part) if isinstance(part, Sheet) else tag("p", part) for part in thing.parts)
    return _model(thing) if isinstance(thing, Model) else _problem(thing)


def _headline(bold: str, *rest: Content) -> Markup:
    return tag("p", tag("b", bold), *rest)


def _result(found: Result) -> Markup:
    level = f"{100 * found.confidence_level:g} %"
    heads = ("", "?unit", ">value", ">std. error", f"{level} interval", "remark")
    rows: list[list[Content]] = []
    for name, one in result_sections.estimated(found):
        error = one.standard_error
        cells = (f"{error:.2g}", result_sections.interval(one)) if np.isfinite(error) else ("–", "–")
        rows.append([name, one.unit, rounded(one.value, error), *cells, one.verdict])
    how = f"{found.transcription}, {found.solver}: {found.iterations} iterations, {found.time:.2f} s"
    number = f"{symbol(found.measure)} = {found.objective:.6g}"
    facts = f": {number} from {found.n_data} data, {found.dof} degrees of freedom"
    kind = "Result" if found.success else "No solution"
    return joined(
        _headline(kind, facts),
        table(heads, rows),
        tag("p", result_sections.verdict(found)),
        tag("p", tag("small", how)),
    )


def _best(found: SearchResult) -> Markup | None:
    if found.best is None:
        return None
    return joined(tag("h3", "The best fit" if found.success else "The best point"), _result(found.best))


def _multistart(found: MultistartResult) -> Markup:
    above = run_sections.multistart_lead(found, "", "")
    return joined(
        _headline("Multistart", f": {len(found.starts)} starts"),
        tag("p", above.verdict),
        run_sections.optima(found.optima, len(found.starts), found.measure),
        _best(found),
    )


def _comparison(found: ComparisonResult) -> Markup:
    above, rows = run_sections.comparison_lead(found, "", ""), found.sheet()
    best = f"{symbol(found.measure)} = {found.best_objective:.6g}"
    return joined(
        _headline("Comparison", f": {len(found.rows)} methods from {len(found.drawn)} starts, {best}"),
        tag("p", above.verdict),
        table(rows.heads, rows.rows),
    )


def _found(found: SearchResult) -> Markup:
    return joined(tag("p", repr(found)), (tag("p", text) for text in found.misfit()), _best(found))


def _model(asked: Model) -> Markup:
    kind = "Differential-algebraic equations" if asked.algebraic_states else "Ordinary differential equations"
    own = [name for name in asked.parameters if name not in asked.noises]
    named = f" with the parameters {', '.join(own)}" if own else " without parameters"
    inputs = f" and the inputs {', '.join(asked.inputs)}" if asked.inputs else ""
    noises = f", driven by white noise {', '.join(asked.noises)}" if asked.noises else ""
    return joined(_headline(kind, named, inputs, noises), problem_sections.model(asked))


def _problem(asked: Problem | Posed) -> Markup:
    return joined(_headline("Problem"), problem_sections.question(asked))
