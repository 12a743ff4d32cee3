"""The page of whatever was found: which sections it has, and in which order."""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit import plots
from castfit._support.arguments import read_mapping, shorten_repr
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit._support.time_limit import interruptible
from castfit.drive.model_comparison.selection_result import SelectionResult
from castfit.drive.search.compare.result import ComparisonResult
from castfit.drive.search.incremental.result import IncrementalResult
from castfit.drive.search.multistart.result import MultistartResult
from castfit.drive.search.portfolio.result import PortfolioResult
from castfit.drive.search.scatter.result import ScatterResult
from castfit.report import result_sections, run_sections
from castfit.report.figures import is_picture
from castfit.report.page import Markup, ReportHeader, Section, facts, joined, page_mistakes, sheet, table, tag, write
from castfit.report.problem_sections import question
from castfit.report.result_sections import Figures
from castfit.result.interval_ends import with_interval_checks
from castfit.result.path_result import PathResult
from castfit.result.result import Result

if TYPE_CHECKING:
    from castfit.drive.run.run_result import SearchResult
    from castfit.report.result_sections import Figures
    from castfit.result.path_result import PathResult


_MAX_CHECK_SECONDS = 10.0  # seconds in which the intervals of a fit are checked

ReportedResult = (
    Result | MultistartResult | ComparisonResult | ScatterResult | IncrementalResult | PortfolioResult | SelectionResult
)
Reportable = ReportedResult | PathResult


@interruptible
def report(
    found: Reportable,
    path: str | Path,
    *,
    title: str = "",
    notes: str = "",
    further: Mapping[str, Any] | None = None,
    command: str = "",
    source: str = "",
) -> Path:
    """Write a page that tells the story of a result: one file that needs no network.

    Parameters
    ----------
    found : Result, or what `multistart`, `compare`, `scatter_search`, `incremental`, `estimate` or `select` found
    path : str or Path
        Where to write the page; it ends in ``.html``.
    title : str
        Above the page.
    notes : str
        What the reader should know beforehand; an empty line begins a paragraph.
    further : mapping from str to text, figure or object, optional
        Chapters of their own, by title, before the last ones: text, a figure, or something with a summary and a plot,
        such as profiles: ``{"Profiles": cf.profile(result)}``.
    command, source : str
        How the result came about: a command, and a script that is shown in full.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    InputError
        If there is nothing to report, or the path is no place for a page.
    """
    text_options = {"title": title, "notes": notes, "command": command, "source": source}
    mistakes = page_mistakes(path, **text_options)
    argument: Any = found
    if not isinstance(argument, Reportable):
        mistakes.append(f"the first argument is {shorten_repr(argument)}; expected the result of a fit or of a search")
    further_content = read_mapping("further", further, mistakes)
    mistakes += [
        f"further['{name}'] is {shorten_repr(entry)}; expected text, a figure, or an object with summary() and plot()"
        for name, entry in further_content.items()
        if not (_is_text(entry) or is_picture(entry) or _tells(entry))
    ]
    raise_if_mistakes("report", mistakes)
    figures = Figures()
    with _collecting_what_is_new():
        if isinstance(found, PathResult):
            above = path_lead(found, title or "A fit", notes)
            chapters = path_sections(found, figures, command, source)
        else:
            above, chapters = _select_sections(found, figures, title, notes)
        insert_index = next((k for k, s in enumerate(chapters) if s.mark == "residuals"), len(chapters))
        chapters[insert_index:insert_index] = [
            _chapter(k, name, entry, figures) for k, (name, entry) in enumerate(further_content.items(), 1)
        ]
    best = None if isinstance(found, PathResult) else found if isinstance(found, Result) else found.best
    if best is not None:
        chapters.append(result_sections.repeat(best, command, source))
    return write(path, above, chapters)


@contextmanager
def _collecting_what_is_new() -> Generator[None, None, None]:
    """Restrict garbage collection to objects created within this context.

    Figures contain many reference cycles.  Each collection would also visit all modules and models, which takes a
    seventh of the time of a page.
    """
    if gc.get_freeze_count():  # The caller has already frozen the collector.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _tells(candidate: Any) -> bool:
    """Check whether an object has a summary and a plot."""
    return hasattr(candidate, "summary") and hasattr(candidate, "plot")


def _chapter(k: int, name: str, subject: Any, figures: Figures) -> Section:
    """Return the section of a further text, figure or object."""
    if is_picture(subject):
        content = figures.add(lambda: subject, name)
    elif _is_text(subject):
        content = joined(tag("p", paragraph) for paragraph in subject.split("\n\n"))
    else:
        content = joined(figures.add(subject.plot, name), tag("pre", subject.summary()))
    return Section(f"further-{k}", name, content)


def _select_sections(
    result: ReportedResult, figures: Figures, title: str, notes: str
) -> tuple[ReportHeader, list[Section]]:
    if isinstance(result, Result):
        result = with_interval_checks(result, max_time=_MAX_CHECK_SECONDS)
        return result_sections.lead(result, title or "A fit", notes), result_sections.sections(result, figures)
    if isinstance(result, IncrementalResult):
        above = result_sections.lead(result.result, title or "An incremental fit", notes)
        first_section, *remaining_sections = _of_best(result, figures)
        return above, [first_section, run_sections.horizons(result), *remaining_sections]
    default_title, lead, sections = next(page for kind, *page in _RUN_PAGES if isinstance(result, kind))
    above, run_chapters = lead(result, title or default_title, notes), sections(result, figures)
    problem = None if result.best is None else result.best.problem
    question_sections = [] if problem is None else [Section("question", "The question", question(problem))]
    best = [s for s in _of_best(result, figures) if s.mark != "question"]
    return above, [*question_sections, run_chapters[0], *best, *run_chapters[1:]]


# Pages of results of many fits: title, head and sections.
_RUN_PAGES: tuple[tuple[Any, ...], ...] = (
    (MultistartResult, "A multistart", run_sections.multistart_lead, run_sections.multistart),
    (ComparisonResult, "A comparison", run_sections.comparison_lead, run_sections.comparison),
    (SelectionResult, "A selection of models", run_sections.selection_lead, run_sections.selection),
    (PortfolioResult, "An estimate", run_sections.portfolio_lead, run_sections.portfolio),
    (ScatterResult, "A scatter search", run_sections.search_lead, run_sections.search),
)


def _of_best(result: SearchResult, figures: Figures) -> list[Section]:
    """Return the sections of the best fit, under titles that name it."""
    if result.best is None:
        return []
    titles = {"fit": "The best fit", "solution": "How the best fit was solved"}
    return [
        Section(s.mark, titles.get(s.mark, s.title), s.content, s.short or titles.get(s.mark, ""))
        for s in result_sections.sections(result.best, figures)
    ]


def path_lead(result: PathResult, title: str, notes: str) -> ReportHeader:
    """Return the head of the page."""
    mood = "good" if result.is_adequate else "doubtful" if result.success else "bad"
    key_figures = (
        ("log likelihood", f"{result.log_likelihood:.6g} from {result.n_data} data"),
        ("estimated quantities", f"{len(result.names)}"),
        ("stages of the path", f"{result.stages}"),
        ("time", f"{result.time:.2g} s"),
    )
    return ReportHeader(title, "Parameters and path", mood, f"{result.message} {result.white}", key_figures, notes)


def path_sections(result: PathResult, figures: Figures, command: str = "", source: str = "") -> list[Section]:
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
        Section("repeat", "How to repeat it", _repeat_path(result, command, source)),
    ]


def _repeat_path(result: PathResult, command: str, source: str) -> Markup:
    """Return the command and the script that produced the page, and the fingerprints of model and data."""
    marks = facts((label, tag("code", mark)) for label, mark in result.question.items())
    return joined(
        tag("p", "This page was written by the command ", tag("code", command)) if command else None,
        tag("details", tag("summary", "The script that states the problem"), tag("pre", source)) if source else None,
        tag("details", tag("summary", "Fingerprints of model and data"), marks),
    )
