"""Page sections of results of many fits: starts and optima, compared methods, a search, horizons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from castfit import plots
from castfit._support.ties import first_argmin
from castfit.drive.search.compare.result import objective_tolerance
from castfit.plots._canvas import objective_symbol
from castfit.plots.searches import curves
from castfit.problem.compiled_problem import CHI2
from castfit.report.page import Content, Markup, ReportHeader, Section, facts, joined, sheet, table, tag
from castfit.report.result_sections import Figures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from castfit.drive.model_comparison.selection_result import SelectionResult
    from castfit.drive.run.optima import Optimum
    from castfit.drive.run.run_result import SearchResult
    from castfit.drive.search.compare.result import ComparisonResult
    from castfit.drive.search.incremental.result import IncrementalResult
    from castfit.drive.search.multistart.result import MultistartResult
    from castfit.drive.search.portfolio.result import PortfolioResult
    from castfit.drive.search.scatter.result import ScatterResult

_MOST_STARTS = 500  # rows of a table
_MOST_OPTIMA = 20


def lead(
    result: SearchResult, title: str, kind: str, summary: str, figures: Sequence[tuple[str, Content]], notes: str
) -> ReportHeader:
    """Return the head of a page of many fits."""
    is_sound = result.best is not None and result.success and not result.best.goodness.amiss
    mood = "good" if is_sound else "doubtful" if result.success else "bad"
    return ReportHeader(
        title, kind, mood, " ".join(part for part in (summary, *result.misfit()) if part), figures, notes
    )


def multistart_lead(result: MultistartResult, title: str, notes: str) -> ReportHeader:
    """Return the head of a multistart's page."""
    best_optimum = result.optima[0] if result.optima else None
    total = len(result.starts)
    best = "" if best_optimum is None else f"{len(best_optimum.starts)} of {total} starts found the best optimum. "
    figures = (
        (
            f"best {objective_symbol(result.measure)}",
            "none" if best_optimum is None else f"{best_optimum.objective:.6g}",
        ),
        ("starts", f"{total}"),
        ("optima", f"{len(result.optima)}"),
        ("without success", f"{sum(not row.success for row in result.starts)}"),
        ("time", f"{result.time:.1f} s" if np.isfinite(result.time) else ""),
    )
    return lead(result, title, "Multistart", f"{best}{result.outlook.sentence}", figures, notes)


def multistart(result: MultistartResult, figures: Figures) -> list[Section]:
    """Return the sections on the starts: objectives, optima, estimates, and a table of all starts."""
    waterfall = figures.add(
        lambda: plots.waterfall(result),
        f"{objective_symbol(result.measure)} of all starts, the lowest first: a flat step is an optimum that many "
        "starts found; crosses ended without success.",
    )
    estimates = None
    if result.optima:
        estimates = figures.add(
            lambda: plots.parameters(result),
            "The estimates of all successful starts, one line each, by optimum. If the lines of one optimum fan out, "
            "the data do not determine the quantity.",
        )
    trouble = [("ended without success", counts(result.statuses)), ("failed evaluations", counts(result.failures))]
    optima_table = optima(result.optima, len(result.starts), result.measure)
    content = joined(tag("p", result.message), waterfall, optima_table, estimates)
    details = joined(
        facts((("transcription", result.transcription), ("solver", result.solver), *trouble)),
        tag("details", tag("summary", f"All {len(result.starts)} starts"), _columns(result.table)),
    )
    return [
        Section("starts", "Optima found", content, "Starts and optima"),
        Section("every-start", "Every start", details),
    ]


def selection_lead(result: SelectionResult, title: str, notes: str) -> ReportHeader:
    """Return the head of the page of a model selection."""
    best_name = result.names[0] if result.names else ""
    figures = (
        ("best candidate", best_name or "none"),
        (result.criterion, f"{result.criteria[best_name]:.3f}" if best_name else ""),
        ("its weight", f"{result.weights[best_name]:.3f}" if best_name else ""),
        ("candidates fitted", f"{len(result.names)}"),
        ("time", f"{result.time:.1f} s"),
    )
    return lead(result, title, "Model selection", result.sentences[0], figures, notes)


def selection(result: SelectionResult, figures: Figures) -> list[Section]:
    """Return the sections on the candidates: criteria, weights, messages, and a table of all candidates."""
    picture = figures.add(
        lambda: plots.selection(result),
        f"{result.criterion} of all candidates against their number of estimates, with the best candidates so far; the "
        "weight of the candidates that estimate a quantity; the weights of candidates.",
    )
    paragraphs = joined(*(tag("p", sentence) for sentence in result.sentences))
    content = joined(tag("p", result.message), sheet(result.sheet), paragraphs, picture)
    all_candidates = tag("details", tag("summary", f"All {len(result.fits)} candidates"), _columns(result.table))
    return [
        Section("candidates", "Which model", content),
        Section("every-candidate", "Every candidate", all_candidates),
    ]


def counts(counts_by_name: Mapping[str, int]) -> str:
    """Write counts by their names."""
    return ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts_by_name.items())


def optima(optimum_list: Sequence[Optimum], total: int, measure: str) -> Markup | None:
    """Return the table of optima; estimates that differ between fits of one optimum are not determined there."""
    if not optimum_list:
        return None
    unit = abs(optimum_list[0].objective) or 1.0 if measure == CHI2 else np.nan

    def above(o: Optimum) -> str:  # a likelihood has no zero: only its differences mean something
        excess = o.objective - optimum_list[0].objective
        return f"{excess:.3g}" if np.isnan(unit) else f"{100 * excess / unit:.3g} %"

    rows = [
        (
            f"{k + 1}",
            f"{o.objective:.8g}",
            above(o),
            f"{len(o.starts)} of {total}",
            ", ".join(o.varying),
        )
        for k, o in enumerate(optimum_list[:_MOST_OPTIMA])
    ]
    objective_label = objective_symbol(measure)
    heads = (
        ">optimum",
        f">{objective_label}",
        ">above the best",
        ">found by",
        f"estimates that differ at equal {objective_label}",
    )
    optima_table = table(heads, rows)
    n_remaining = len(optimum_list) - _MOST_OPTIMA
    remainder = (
        tag("p", f"And {n_remaining} more, up to {objective_label} = {optimum_list[-1].objective:.6g}.")
        if n_remaining > 0
        else None
    )
    return joined(tag("h3", "Optima"), optima_table, remainder)


def comparison_lead(result: ComparisonResult, title: str, notes: str) -> ReportHeader:
    """Return the head of a comparison's page."""
    tested_rows = [row for row in result.rows if row.starts]
    most_reliable = max(tested_rows, key=lambda row: (row.success_rate, -row.expected_time), default=None)
    fastest = tested_rows[first_argmin([row.expected_time for row in tested_rows])] if tested_rows else None
    verdict = result.message
    if most_reliable is not None and fastest is not None and most_reliable.correct:
        verdict = (
            f"{most_reliable.method} found the best optimum most often, from {most_reliable.correct} of "
            f"{most_reliable.starts} starts"
        )
        fastest_text = f"{fastest.expected_time:.2g} s expected until it is found"
        verdict += (
            f"; it is also the fastest: {fastest_text}."
            if fastest is most_reliable
            else f"; {fastest.method} is the fastest: {fastest_text}."
        )
    figures = (
        (f"best {objective_symbol(result.measure)}", f"{result.best_objective:.6g}"),
        ("methods", f"{len(result.rows)}"),
        ("starts", f"{len(result.drawn)}"),
        ("time", f"{result.time:.1f} s" if np.isfinite(result.time) else ""),
    )
    return lead(result, title, "Comparison of methods", verdict, figures, notes)


def comparison(result: ComparisonResult, figures: Figures) -> list[Section]:
    """Return the sections on the compared methods: success rates, times, and a table of all fits."""
    content = joined(
        tag("p", result.message),
        sheet(result.sheet()),
        tag(
            "p",
            f"Correct: {objective_symbol(result.measure)} = {result.best_objective:.6g} within "
            f"{objective_tolerance(result.merit)}. "
            "Wrong: converged elsewhere. "
            "Integration: the model could not be integrated. Expected: the mean time per start divided by the success "
            "rate, which is how long one waits for the optimum.",
        ),
        figures.add(
            lambda: plots.success(result),
            "From what share of the starts each method has found the best optimum, against the time that it had. A "
            "curve that rises early is fast, one that ends high is reliable.",
        ),
        tag("h3", "The methods"),
        facts(result.descriptions.items()),
    )
    all_fits = tag("details", tag("summary", f"All {len(result.trials)} fits"), _columns(result.table))
    return [
        Section("methods", "Performance of the methods", content, "Methods"),
        Section("every-fit", "Every fit", all_fits),
    ]


def search_lead(result: ScatterResult, title: str, notes: str) -> ReportHeader:
    """Return the head of a scatter search's page."""
    figures = (
        (
            "best χ²" if result.best is None else f"best {objective_symbol(result.best.measure)}",
            f"{result.objective:.6g}",
        ),
        ("simulations", f"{result.simulations}"),
        ("local searches", f"{len(result.searches)}"),
        ("generations", f"{result.generations}"),
        ("time", f"{result.time:.1f} s"),
    )
    return lead(result, title, "Scatter search", result.message, figures, notes)


def search(result: ScatterResult, figures: Figures) -> list[Section]:
    """Return the course of a scatter search."""
    content = joined(
        figures.add(
            lambda: curves({"scatter search": [result]}),
            f"The best {objective_symbol(result.measure)} after so many simulations, and after so many seconds.",
        ),
        optima(result.optima, len(result.searches), result.measure),
        facts(
            (
                ("transcription of local searches", result.transcription),
                ("solver of local searches", result.solver),
                ("searched in the logarithm", ", ".join(result.logarithmic)),
                ("failed simulations", counts(result.failures)),
            )
        ),
    )
    return [Section("search", "The search", content)]


def portfolio_lead(result: PortfolioResult, title: str, notes: str) -> ReportHeader:
    """Return the head of the page of an estimate."""
    figures = (
        (f"best {objective_symbol(result.measure)}", "" if result.best is None else f"{result.objective:.6g}"),
        ("found", f"{result.hits} times"),
        ("candidates", f"{len(result.candidates)}"),
        ("time", f"{result.time:.1f} s"),
    )
    return lead(result, title, "Portfolio of searches", " ".join(result.story[:2]), figures, notes)


def portfolio(result: PortfolioResult, _: Figures) -> list[Section]:
    """Return the section on a portfolio of searches: its messages and its table."""
    paragraphs = (tag("p", line) for line in result.story)
    return [Section("search", "The search", joined(paragraphs, sheet(result.sheet())))]


def horizons(result: IncrementalResult) -> Section:
    """Return the table of an incremental fit's horizons."""
    names = result.result.names
    rows = [
        (
            f"{h.horizon:g}",
            f"{h.n_data}",
            *(f"{h.estimates[n]:.4g}" for n in names),
            f"{h.objective:.4g}",
            f"{h.iterations}",
            h.status.value.replace("_", " "),
            h.fallback,
        )
        for h in result.horizons
    ]
    heads = (
        ">horizon",
        ">data",
        *(f">{n}" for n in names),
        f">{objective_symbol(result.result.measure)}",
        ">iterations",
        "status",
        "fallback",
    )
    effort = f"{result.iterations} iterations, equivalent to {result.equivalent_iterations:.2f} on the whole horizon."
    explanation = (
        "The fit began with the first measurements and extended the horizon, each time from the previous estimates."
    )
    return Section(
        "horizons", "Horizon by horizon", joined(tag("p", f"{explanation} {effort}"), table(heads, rows)), "Horizons"
    )


def _columns(values_by_column: Mapping[str, NDArray[Any]]) -> Markup:
    """Return columns as a table; so many rows that a browser stays quick."""
    columns = {name: values.tolist() for name, values in values_by_column.items()}
    rows = list(zip(*columns.values(), strict=True))[:_MOST_STARTS]
    cells = [[f"{v:.6g}" if isinstance(v, float) else f"{v}" for v in row] for row in rows]
    text = {name for name, values in values_by_column.items() if values.dtype.kind not in "iuf"}
    heads = [name if name in text else f">{name}" for name in columns]
    n_omitted = max((values.size for values in values_by_column.values()), default=0) - len(rows)
    remainder = tag("p", f"And {n_omitted} more.") if n_omitted > 0 else None
    return joined(table([objective_symbol(h) for h in heads], cells), remainder)
