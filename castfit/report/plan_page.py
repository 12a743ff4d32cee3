"""Page of a plan: the figure, the numbers of the solution and of the integrated model, and the question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from castfit import plots
from castfit._support.arguments import shorten_repr
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.report.markup import joined, tag
from castfit.report.page import ReportHeader, Section, write
from castfit.report.result_sections import Figures
from castfit.report.tables import sheet

if TYPE_CHECKING:
    from typing import Any

    from castfit.control.plan import Plan


def plan_report(plan: Plan, path: Any, *, title: str = "A plan", notes: str = "") -> Path:
    """Write the page; see `Plan.report`."""
    mistakes = [] if isinstance(path, (str, Path)) else [f"path is {shorten_repr(path)}; expected a file path"]
    if not mistakes and Path(path).suffix.lower() not in (".html", ".htm"):
        mistakes.append(f"'{path}' is not a file name of a page; it must end in .html")
    raise_if_mistakes("report", mistakes)
    figures, mood = Figures(), "good" if plan.success else "bad"
    numbers = (
        ("objective", f"{plan.objective:.8g}"), ("integrated", f"{plan.integrated:.8g}"),
        ("horizon", f"{plan.horizon:.6g}"), ("stages", f"{plan.stages}"), ("iterations", f"{plan.iterations}"),
    )  # fmt: skip
    picture = figures.add(lambda: plots.plan(plan), "States and chosen inputs over time; dotted lines are bounds.")
    tables = joined(sheet(part) for part in plan.parts if isinstance(part, TextTable))
    chapters = [
        Section("plan", "The plan", picture),
        Section("numbers", "In numbers", tables),
        Section("question", "The question", tag("p", plan.question)),
    ]
    return write(path, ReportHeader(title, "Optimal control", mood, plan.message, numbers, notes), chapters)
