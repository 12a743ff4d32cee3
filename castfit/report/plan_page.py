"""Page of a plan: the figure, the numbers of the solution and of the integrated model, and the question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from castfit import plots
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.report.markup import joined, tag
from castfit.report.page import ReportHeader, Section, page_mistakes, write
from castfit.report.result_sections import Figures
from castfit.report.tables import sheet

if TYPE_CHECKING:
    from typing import Any

    from castfit.control.plan import Plan
    from castfit.drive.population.result import MixedEffectsResult


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
