"""Page sections of a fit of a model with process noise: question, path, estimates, innovations, solution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit import plots
from castfit._support.text_tables import TextTable
from castfit.report.page import Markup, ReportHeader, Section, facts, joined, sheet, table, tag
from castfit.report.problem_sections import question

if TYPE_CHECKING:
    from castfit.report.result_sections import Figures
    from castfit.result.path_result import PathResult


def lead(result: PathResult, title: str, notes: str) -> ReportHeader:
    """Return the head of the page."""
    mood = "good" if result.is_adequate else "doubtful" if result.success else "bad"
    key_figures = (
        ("log likelihood", f"{result.log_likelihood:.6g} from {result.n_data} data"),
        ("estimated quantities", f"{len(result.names)}"),
        ("stages of the path", f"{result.stages}"),
        ("time", f"{result.time:.2g} s"),
    )
    return ReportHeader(title, "Parameters and path", mood, f"{result.message} {result.white}", key_figures, notes)


def sections(result: PathResult, figures: Figures, command: str = "", source: str = "") -> list[Section]:
    """Return the story in its order."""
    parts = [sheet(part) if isinstance(part, TextTable) else tag("p", part) for part in result.parts]
    tests = table(
        ("tested", ">figure", ">p"), [[test_name, f"{x:.3g}", f"{p:.2g}"] for test_name, x, p in result.whiteness]
    )
    chapters: list[Section] = []
    if result.problem is not None:
        chapters.append(Section("question", "The question", question(result.problem)))
        caption = "Most probable path given all data, with pointwise bands, and the innovations."
        chapters.append(Section("path", "Data and path", figures.add(lambda: plots.paths(result), caption)))
    chapters.append(Section("estimates", "Estimates", joined(*parts)))
    chapters.append(Section("residuals", "Innovations", joined(tag("p", result.white), tests), "Innovations"))
    solution_facts = facts(
        (
            ("status", result.status.message),
            ("iterations", f"{result.iterations}"),
            ("evaluations of the likelihood", f"{result.evaluations}"),
            (
                "log L moved at the last refinement by",
                "no refinement" if np.isnan(result.refined) else f"{abs(result.refined):.2g}",
            ),
        )
    )
    return [
        *chapters,
        Section("solution", "How it was solved", solution_facts),
        Section("repeat", "How to repeat it", _repeat(result, command, source)),
    ]


def _repeat(result: PathResult, command: str, source: str) -> Markup:
    """Return the command and the script that produced the page, and the fingerprints of model and data."""
    marks = facts((label, tag("code", mark)) for label, mark in result.question.items())
    return joined(
        tag("p", "This page was written by the command ", tag("code", command)) if command else None,
        tag("details", tag("summary", "The script that states the problem"), tag("pre", source)) if source else None,
        tag("details", tag("summary", "Fingerprints of model and data"), marks),
    )
