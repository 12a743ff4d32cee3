"""Page sections of a fit of a model with process noise: question, path, estimates, innovations, solution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit import plots
from castfit._support.text_tables import Sheet
from castfit.report.markup import Markup, joined, tag
from castfit.report.page import Lead, Section
from castfit.report.problem_sections import question
from castfit.report.tables import facts, sheet, table

if TYPE_CHECKING:
    from castfit.report.result_sections import Figures
    from castfit.result.path_result import PathResult


def lead(found: PathResult, title: str, notes: str) -> Lead:
    """Return the head of the page."""
    mood = "good" if found.described else "doubtful" if found.success else "bad"
    shown = (
        ("log likelihood", f"{found.log_likelihood:.6g} from {found.n_data} data"),
        ("estimated quantities", f"{len(found.names)}"),
        ("stages of the path", f"{found.stages}"),
        ("time", f"{found.time:.2g} s"),
    )
    return Lead(title, "Parameters and path", mood, f"{found.message} {found.white}", shown, notes)


def sections(found: PathResult, figures: Figures, command: str = "", source: str = "") -> list[Section]:
    """Return the story in its order."""
    parts = [sheet(part) if isinstance(part, Sheet) else tag("p", part) for part in found.parts]
    tests = table(("tested", ">figure", ">p"), [[what, f"{x:.3g}", f"{p:.2g}"] for what, x, p in found.whiteness])
    told: list[Section] = []
    if found.problem is not None:
        told.append(Section("question", "The question", question(found.problem)))
        caption = "Most probable path given all data, with pointwise bands, and the innovations."
        told.append(Section("path", "Data and path", figures.add(lambda: plots.paths(found), caption)))
    told.append(Section("estimates", "Estimates", joined(*parts)))
    told.append(Section("residuals", "Innovations", joined(tag("p", found.white), tests), "Innovations"))
    way = facts(
        (
            ("status", found.status.sentence),
            ("iterations", f"{found.iterations}"),
            ("evaluations of the likelihood", f"{found.evaluations}"),
            (
                "log L moved at the last refinement by",
                "no refinement" if np.isnan(found.refined) else f"{abs(found.refined):.2g}",
            ),
        )
    )
    return [
        *told,
        Section("solution", "How it was solved", way),
        Section("repeat", "How to repeat it", _repeat(found, command, source)),
    ]


def _repeat(found: PathResult, command: str, source: str) -> Markup:
    """Return the command and the script that produced the page, and the fingerprints of model and data."""
    marks = facts((what, tag("code", mark)) for what, mark in found.question.items())
    return joined(
        tag("p", "This page was written by the command ", tag("code", command)) if command else None,
        tag("details", tag("summary", "The script that states the problem"), tag("pre", source)) if source else None,
        tag("details", tag("summary", "Fingerprints of model and data"), marks),
    )
