"""Page sections of results of many fits: starts and optima, compared methods, a search, horizons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from castfit import plots
from castfit.drive.search.compare.result import within
from castfit.plots._canvas import symbol
from castfit.plots.searches import curves
from castfit.problem.compiled_problem import CHI2
from castfit.report.markup import Content, Markup, joined, tag
from castfit.report.page import Lead, Section
from castfit.report.result_sections import Figures
from castfit.report.tables import facts, sheet, table

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
    found: SearchResult, title: str, kind: str, said: str, figures: Sequence[tuple[str, Content]], notes: str
) -> Lead:
    """Return the head of a page of many fits."""
    right = found.best is not None and found.success and not found.best.goodness.amiss
    mood = "good" if right else "doubtful" if found.success else "bad"
    return Lead(title, kind, mood, " ".join(part for part in (said, *found.misfit()) if part), figures, notes)


def multistart_lead(found: MultistartResult, title: str, notes: str) -> Lead:
    """Return the head of a multistart's page."""
    lowest = found.optima[0] if found.optima else None
    total = len(found.starts)
    best = "" if lowest is None else f"{len(lowest.starts)} of {total} starts found the best optimum. "
    figures = (
        (f"best {symbol(found.measure)}", "none" if lowest is None else f"{lowest.objective:.6g}"),
        ("starts", f"{total}"),
        ("optima", f"{len(found.optima)}"),
        ("without success", f"{sum(not row.success for row in found.starts)}"),
        ("time", f"{found.time:.1f} s" if np.isfinite(found.time) else ""),
    )
    return lead(found, title, "Multistart", f"{best}{found.outlook.sentence}", figures, notes)


def multistart(found: MultistartResult, figures: Figures) -> list[Section]:
    """Return the sections on the starts: objectives, optima, estimates, and a table of all starts."""
    waterfall = figures.add(
        lambda: plots.waterfall(found),
        f"{symbol(found.measure)} of all starts, the lowest first: a flat step is an optimum that many starts found; "
        "crosses ended without success.",
    )
    estimates = None
    if found.optima:
        estimates = figures.add(
            lambda: plots.parameters(found),
            "The estimates of all successful starts, one line each, by optimum. Where lines of one optimum fan out, "
            "the data leave the quantity open.",
        )
    trouble = [("ended without success", counts(found.statuses)), ("failed evaluations", counts(found.failures))]
    lowest = optima(found.optima, len(found.starts), found.measure)
    content = joined(tag("p", found.message), waterfall, lowest, estimates)
    how = joined(
        facts((("transcription", found.transcription), ("solver", found.solver), *trouble)),
        tag("details", tag("summary", f"All {len(found.starts)} starts"), _columns(found.table)),
    )
    return [
        Section("starts", "Optima found", content, "Starts and optima"),
        Section("every-start", "Every start", how),
    ]


def selection_lead(found: SelectionResult, title: str, notes: str) -> Lead:
    """Return the head of the page of a model selection."""
    first = found.names[0] if found.names else ""
    figures = (
        ("best candidate", first or "none"),
        (found.criterion, f"{found.criteria[first]:.3f}" if first else ""),
        ("its weight", f"{found.weights[first]:.3f}" if first else ""),
        ("candidates fitted", f"{len(found.names)}"),
        ("time", f"{found.time:.1f} s"),
    )
    return lead(found, title, "Model selection", found.sentences[0], figures, notes)


def selection(found: SelectionResult, figures: Figures) -> list[Section]:
    """Return the sections on the candidates: criteria, weights, messages, and a table of all candidates."""
    picture = figures.add(
        lambda: plots.selection(found),
        f"{found.criterion} of all candidates against what they estimate, with those that were best so far; the weight "
        "of the candidates that estimate a quantity; the weights of candidates.",
    )
    said = joined(*(tag("p", sentence) for sentence in found.sentences))
    content = joined(tag("p", found.message), sheet(found.sheet), said, picture)
    every = tag("details", tag("summary", f"All {len(found.fits)} candidates"), _columns(found.table))
    return [Section("candidates", "Which model", content), Section("every-candidate", "Every candidate", every)]


def counts(found: Mapping[str, int]) -> str:
    """Write counts by their names."""
    return ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in found.items())


def optima(found: Sequence[Optimum], total: int, measure: str) -> Markup | None:
    """Return the table of optima; estimates that differ between fits of one optimum are not determined there."""
    if not found:
        return None
    unit = abs(found[0].objective) or 1.0 if measure == CHI2 else np.nan

    def above(o: Optimum) -> str:  # a likelihood has no zero: only its differences mean something
        more = o.objective - found[0].objective
        return f"{more:.3g}" if np.isnan(unit) else f"{100 * more / unit:.3g} %"

    rows = [
        (
            f"{k + 1}",
            f"{o.objective:.8g}",
            above(o),
            f"{len(o.starts)} of {total}",
            ", ".join(o.varying),
        )
        for k, o in enumerate(found[:_MOST_OPTIMA])
    ]
    what = symbol(measure)
    heads = (">optimum", f">{what}", ">above the best", ">found by", f"estimates that differ at equal {what}")
    shown = table(heads, rows)
    more = len(found) - _MOST_OPTIMA
    rest = tag("p", f"And {more} more, up to {what} = {found[-1].objective:.6g}.") if more > 0 else None
    return joined(tag("h3", "Optima"), shown, rest)


def comparison_lead(found: ComparisonResult, title: str, notes: str) -> Lead:
    """Return the head of a comparison's page."""
    fair = [row for row in found.rows if row.starts]
    sure = max(fair, key=lambda row: (row.success_rate, -row.expected_time), default=None)
    fast = min(fair, key=lambda row: row.expected_time, default=None)
    said = found.message
    if sure is not None and fast is not None and sure.correct:
        said = f"{sure.method} found the best optimum most often, from {sure.correct} of {sure.starts} starts"
        quick = f"{fast.expected_time:.2g} s expected until it is found"
        said += f"; it is also the fastest: {quick}." if fast is sure else f"; {fast.method} is the fastest: {quick}."
    figures = (
        (f"best {symbol(found.measure)}", f"{found.best_objective:.6g}"),
        ("methods", f"{len(found.rows)}"),
        ("starts", f"{len(found.drawn)}"),
        ("time", f"{found.time:.1f} s" if np.isfinite(found.time) else ""),
    )
    return lead(found, title, "Comparison of methods", said, figures, notes)


def comparison(found: ComparisonResult, figures: Figures) -> list[Section]:
    """Return the sections on the compared methods: success rates, times, and a table of all fits."""
    what = joined(
        tag("p", found.message),
        sheet(found.sheet()),
        tag(
            "p",
            f"Correct: {symbol(found.measure)} = {found.best_objective:.6g} within {within(found.merit)}. "
            "Wrong: converged elsewhere. "
            "Integration: the model could not be integrated. Expected: the mean time per start divided by the success "
            "rate, which is how long one waits for the optimum.",
        ),
        figures.add(
            lambda: plots.success(found),
            "From what share of the starts each method has found the best optimum, against the time that it had. A "
            "curve that rises early is fast, one that ends high is reliable.",
        ),
        tag("h3", "The methods"),
        facts(found.descriptions.items()),
    )
    every = tag("details", tag("summary", f"All {len(found.trials)} fits"), _columns(found.table))
    return [Section("methods", "Performance of the methods", what, "Methods"), Section("every-fit", "Every fit", every)]


def search_lead(found: ScatterResult, title: str, notes: str) -> Lead:
    """Return the head of a scatter search's page."""
    figures = (
        ("best χ²" if found.best is None else f"best {symbol(found.best.measure)}", f"{found.objective:.6g}"),
        ("simulations", f"{found.simulations}"),
        ("local searches", f"{len(found.searches)}"),
        ("generations", f"{found.generations}"),
        ("time", f"{found.time:.1f} s"),
    )
    return lead(found, title, "Scatter search", found.message, figures, notes)


def search(found: ScatterResult, figures: Figures) -> list[Section]:
    """Return the course of a scatter search."""
    content = joined(
        figures.add(
            lambda: curves({"scatter search": [found]}),
            f"The best {symbol(found.measure)} after so many simulations, and after so many seconds.",
        ),
        optima(found.optima, len(found.searches), found.measure),
        facts(
            (
                ("transcription of local searches", found.transcription),
                ("solver of local searches", found.solver),
                ("searched in the logarithm", ", ".join(found.logarithmic)),
                ("failed simulations", counts(found.failures)),
            )
        ),
    )
    return [Section("search", "The search", content)]


def portfolio_lead(found: PortfolioResult, title: str, notes: str) -> Lead:
    """Return the head of the page of an estimate."""
    figures = (
        (f"best {symbol(found.measure)}", "" if found.best is None else f"{found.objective:.6g}"),
        ("found", f"{found.finds} times"),
        ("candidates", f"{len(found.candidates)}"),
        ("time", f"{found.time:.1f} s"),
    )
    return lead(found, title, "Portfolio of searches", " ".join(found.story[:2]), figures, notes)


def portfolio(found: PortfolioResult) -> list[Section]:
    """Return the section on a portfolio of searches: its messages and its table."""
    told = (tag("p", line) for line in found.story)
    return [Section("search", "The search", joined(told, sheet(found.sheet())))]


def horizons(found: IncrementalResult) -> Section:
    """Return the table of an incremental fit's horizons."""
    names = found.result.names
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
        for h in found.horizons
    ]
    heads = (
        ">horizon",
        ">data",
        *(f">{n}" for n in names),
        f">{symbol(found.result.measure)}",
        ">iterations",
        "status",
        "fallback",
    )
    effort = f"{found.iterations} iterations, equivalent to {found.equivalent_iterations:.2f} on the whole horizon."
    said = "The fit began with the first measurements and went on to longer horizons, each from the estimates before."
    return Section(
        "horizons", "Horizon by horizon", joined(tag("p", f"{said} {effort}"), table(heads, rows)), "Horizons"
    )


def _columns(found: Mapping[str, NDArray[Any]]) -> Markup:
    """Return columns as a table; so many rows that a browser stays quick."""
    columns = {name: values.tolist() for name, values in found.items()}
    rows = list(zip(*columns.values(), strict=True))[:_MOST_STARTS]
    cells = [[f"{v:.6g}" if isinstance(v, float) else f"{v}" for v in row] for row in rows]
    text = {name for name, values in found.items() if values.dtype.kind not in "iuf"}
    heads = [name if name in text else f">{name}" for name in columns]
    left = max((values.size for values in found.values()), default=0) - len(rows)
    rest = tag("p", f"And {left} more.") if left > 0 else None
    return joined(table([symbol(h) for h in heads], cells), rest)
