"""Global searches compared on the same objective: scatter search, its ingredients switched off, and baselines.

All methods minimise the same chi2 in the same box, simulate with the same integrator and count alike: a simulation is
one evaluation of all experiments, and a sensitivity sweep counts as one.  A run ends when it has reached the target,
the optimum known for the problem, or at a limit of simulations or time.  Integrators are compiled by a run that is not
counted.  The problem's guess is kept from all methods.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.json_codec import replace_nonfinite
from castfit._support.status import InputError, raise_if_mistakes
from castfit._support.text_tables import TextTable, format_or_never
from castfit.drive.search.compare.benchmarks import Progress
from castfit.plots._canvas import BLUE, INK, SOFT, new_figure, save_or_show, tidy
from castfit.plots.searches import curves
from castfit.problem.problem import Problem
from castfit.problems import Benchmark, PaperRow, load

from .baselines import ABLATION, SEARCHERS, Budget, Scatter, Searcher, SearchTrace
from .cpu_clock import cpu_clock
from .table import COMMON, Kind, Report, collect_rows, number_mistakes, record, reported, unknown_mistakes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MIN_PLOTTED_CHI2 = 1e-30  # smallest chi2 on the logarithmic axis
_ZERO_OPTIMUM_TARGET = 1e-4  # target objective if the optimum is zero


@dataclass(frozen=True)
class SearchTable:
    """A comparison of searches.

    Attributes
    ----------
    name, source : str
    cases : tuple of (problem's name, options)
    searchers : mapping from name to Searcher
        Those that may be asked for.
    methods : tuple of str
        Those that are run unless others are asked for.
    paper : tuple of PaperRow
    max_eval : int
        Simulations per run.
    histogram : bool
        Whether the ends of all local fits are worth a picture.
    """

    name: str
    source: str
    cases: tuple[tuple[str, Mapping[str, Any]], ...]
    searchers: Mapping[str, Searcher]
    methods: tuple[str, ...]
    paper: tuple[PaperRow, ...]
    max_eval: int
    histogram: bool = False


_SSM = "Rodriguez-Fernandez, Egea and Banga (2006)"
TABLES = {
    table.name: table
    for table in (
        SearchTable(
            "ssm-pinene",
            f"{_SSM}, figure 3",
            (("alpha_pinene", {}), ("alpha_pinene", {"scale": "log"})),
            SEARCHERS,
            ("scatter", "multistart", "de"),
            (
                PaperRow("SSm", "always converged to the global solution after a short computational time"),
                PaperRow("SRES, DE", "failed, or converged in a much larger time"),
                PaperRow("local solvers from 0.5", "failed, or converged to bad local solutions"),
            ),
            20_000,
        ),
        SearchTable(
            "ssm-hiv",
            f"{_SSM}, figure 8",
            (("hiv_proteinase", {}),),
            SEARCHERS,
            ("scatter", "multistart", "de"),
            (
                PaperRow("simulated annealing (Mendes and Kell 1998)", "0.0211 after 3 million simulations"),
                PaperRow("Levenberg-Marquardt (the same)", "0.0213 after 4000 simulations"),
                PaperRow("SSm", "a better value than these in less than 1500 simulations"),
            ),
            5000,
        ),
        SearchTable(
            "ssm-threestep",
            f"{_SSM}, figures 13 and 16",
            (("three_step", {"lower": 1e-3}),),
            SEARCHERS,
            ("decomposed", "multistart", "de"),
            (
                PaperRow("SRES (Moles et al. 2003)", "two days"),
                PaperRow("SSm", "a couple of minutes"),
                PaperRow("100 local searches", "none reached the global optimum"),
            ),
            20_000,
            histogram=True,
        ),
        SearchTable(
            "ssm-ablation",
            "what each ingredient of the scatter search contributes",
            (("hiv_proteinase", {}), ("alpha_pinene", {})),
            ABLATION,
            tuple(ABLATION),
            (),
            1500,
        ),
    )
}


@dataclass(frozen=True)
class SearchRun:
    """One run: the lowest chi2, simulations and seconds to the target (inf if missed), and what was spent in all."""

    seed: int
    chi2: float
    simulations_to_target: float
    seconds_to_target: float
    simulations: int
    cpu: float
    trace: SearchTrace


@dataclass(frozen=True)
class SearchRow:
    """What one method did on one case, run by run."""

    method: str
    words: str
    problem: str
    options: Mapping[str, Any]
    target: float
    runs: tuple[SearchRun, ...]

    @property
    def case(self) -> str:
        """The problem and its options, in words."""
        options = ", ".join(f"{k} = {v}" for k, v in self.options.items() if k != "data")
        return f"{self.problem} ({options})" if options else self.problem

    @property
    def reached(self) -> int:
        """How many runs reached the target."""
        return int(sum(np.isfinite(run.simulations_to_target) for run in self.runs))

    @property
    def expected_simulations(self) -> float:
        """All simulations over the number of runs that reached the target; inf if none did."""
        return sum(run.simulations for run in self.runs) / self.reached if self.reached else np.inf

    @property
    def expected_cpu(self) -> float:
        """All CPU seconds over the number of runs that reached the target; inf if none did."""
        return sum(run.cpu for run in self.runs) / self.reached if self.reached else np.inf

    def record(self) -> dict[str, Any]:
        """Return what JSON gets: all runs with their histories."""
        runs = [
            {
                **{k: v for k, v in vars(run).items() if k != "trace"},
                "history": [[m.simulations, m.seconds, m.chi2] for m in run.trace.history],
                "ends": run.trace.ends,
            }
            for run in self.runs
        ]
        names = ("method", "problem", "target", "reached", "expected_simulations", "expected_cpu")
        options = {k: str(v) if k == "data" else v for k, v in self.options.items()}
        return replace_nonfinite({**{name: getattr(self, name) for name in names}, "options": options, "runs": runs})


def run_searches(
    table: SearchTable,
    *,
    methods: Sequence[str] | None = None,
    runs: int = 5,
    seed: int = 0,
    workers: int = 1,
    max_time: float = 60.0,
    data: str | PathLike[str] | None = None,
    progress: Progress = lambda text: None,
) -> Iterator[SearchRow]:
    """Run a comparison, one row after the other.

    Parameters
    ----------
    table : SearchTable
    methods : sequence of str, optional
        By default those of the table.
    runs : int
        Runs of each method, with the seeds ``seed, seed + 1, ...``.
    seed : int
    workers : int
    max_time : float
        CPU seconds per run with one worker, else seconds.
    data : path, optional
        The measurements of hiv_proteinase; without it they are simulated.
    progress : callable
        Told what is being done.

    Raises
    ------
    InputError
        For unknown methods or numbers out of range.
    """
    chosen = table.methods if methods is None else tuple(methods)
    mistakes = unknown_mistakes("method", chosen, table.searchers)
    mistakes += number_mistakes(runs=runs, workers=workers, seed=seed, max_time=max_time)
    if data is not None and all(problem != "hiv_proteinase" for problem, _ in table.cases):
        mistakes.append(f"{table.name} reads no data; leave out data")
    raise_if_mistakes(table.name, mistakes)

    def rows() -> Iterator[SearchRow]:
        for problem, options in table.cases:
            row_options = {**options, **({"data": data} if data is not None and problem == "hiv_proteinase" else {})}
            benchmark = load(problem, **row_options)
            target = target_of(benchmark)
            budget = Budget(table.max_eval, max_time, target)
            for method in chosen:
                searcher, label = table.searchers[method], f"{table.name}, {problem}, {method}"
                progress(f"{label}: building")
                _warm_up(searcher, benchmark.problem, budget)
                runs_so_far: list[SearchRun] = []
                for k in range(runs):
                    progress(f"{label}: run {k + 1} of {runs}")
                    runs_so_far.append(_run(searcher, benchmark.problem, seed + k, workers, budget))
                yield SearchRow(method, searcher.words, problem, row_options, target, tuple(runs_so_far))

    return rows()


def target_of(benchmark: Benchmark) -> float:
    """Return the chi2 at which the reference optimum counts as found."""
    reference = benchmark.reference
    return reference.objective * (1.0 + reference.objective_tolerance) or _ZERO_OPTIMUM_TARGET


def _warm_up(searcher: Searcher, problem: Problem, budget: Budget) -> None:
    """Build and compile what the runs need: until the first fit has ended."""
    small = replace(searcher, options={**searcher.options, "dim_refset": 3, "n_diverse": 3, "local_n1": 0,
                                       "local_searches": 1}) if isinstance(searcher, Scatter) else searcher  # fmt: skip
    small(problem, seed=0, workers=1, budget=replace(budget, max_eval=4 if small is searcher else 10))


def _run(searcher: Searcher, problem: Problem, seed: int, workers: int, budget: Budget) -> SearchRun:
    began = time.process_time()
    with cpu_clock(workers):
        trace = searcher(problem, seed=seed, workers=workers, budget=budget)
    cpu = time.process_time() - began
    hit = next((m for m in trace.history if m.chi2 <= budget.vtr), None)
    return SearchRun(
        seed=seed,
        chi2=min((m.chi2 for m in trace.history), default=np.inf),
        simulations_to_target=np.inf if hit is None else float(hit.simulations),
        seconds_to_target=np.inf if hit is None else hit.seconds,
        simulations=trace.simulations,
        cpu=cpu,
        trace=trace,
    )


def build_tables(table: SearchTable, rows: Sequence[SearchRow], files: Iterable[str]) -> tuple[TextTable | str, ...]:
    """Return what a paper reports of global searches, our rows, and where their curves are."""
    castfit_table = TextTable.from_items(
        rows,
        ("problem", lambda row: row.case),
        ("method", lambda row: row.method),
        (">reached", lambda row: f"{row.reached} of {len(row.runs)}"),
        (">best", lambda row: f"{min(run.chi2 for run in row.runs):.7g}"),
        (">worst", lambda row: f"{max(run.chi2 for run in row.runs):.5g}"),
        (
            ">simulations",
            lambda row: format_or_never(float(np.median([r.simulations_to_target for r in row.runs])), ".0f"),
        ),
        (">expected", lambda row: format_or_never(row.expected_simulations, ".0f")),
        (">seconds", lambda row: format_or_never(float(np.median([r.seconds_to_target for r in row.runs])), ".2f")),
        (">expected", lambda row: format_or_never(row.expected_cpu, ".2f")),
        ("", lambda row: row.words),
    )
    targets = ", ".join(dict.fromkeys(f"{row.problem} {row.target:.7g}" for row in rows))
    words = (
        f"targets: {targets}; simulations and seconds: median to the target; expected: all simulations, and all CPU "
        "seconds, over the number of runs that reached it"
    )
    paper = [reported(table.name, table.source, table.paper), ""] if table.paper else []
    return *paper, castfit_table, "", words, *(f"The curves are in {file}." for file in files)


def draw(rows: Iterable[SearchRow], table: SearchTable, path: str) -> tuple[str, ...]:
    """Draw the convergence curves of the first case into a file, and the histogram of local fits beside it.

    Returns
    -------
    tuple of str
        The files that were written.
    """
    case_rows = [row for row in rows if (row.problem, row.options) == _case_of(rows)]
    curves({row.method: [run.trace for run in row.runs] for row in case_rows}, path, target=case_rows[0].target)
    ends = [f for row in case_rows if row.method == "multistart" for run in row.runs for f in run.trace.ends]
    if not (table.histogram and np.isfinite(ends).any()):
        return (path,)
    target_path = Path(path)
    target_path = target_path.with_name(f"{target_path.stem}_histogram{target_path.suffix}")
    draw_histogram(ends, target_path, target=case_rows[0].target)
    return path, str(target_path)


def draw_histogram(chi2: Sequence[float], path: str | Path | None = None, *, target: float | None = None) -> Figure:
    """Plot how often local fits ended at which chi2, on a logarithmic axis; fits without a value are counted in words.

    Parameters
    ----------
    chi2 : sequence of float
    path : str or Path, optional
    target : float, optional
        The global optimum, to be marked.

    Raises
    ------
    InputError
        If no fit has a value.
    """
    values = np.maximum(np.array([f for f in chi2 if np.isfinite(f)]), _MIN_PLOTTED_CHI2)
    if not values.size:
        raise InputError("bench", ["no fit has a value of chi2; there is nothing to show"])
    figure = new_figure(6.0, 3.4)
    axes = figure.subplots()
    tidy(axes)
    low, high = float(np.floor(np.log10(values.min()))), float(np.ceil(np.log10(values.max())))
    decades = max(int(high - low), 1)
    edges = np.logspace(low, low + decades, 4 * decades + 1)
    axes.hist(values, bins=edges, color=BLUE, alpha=0.85)
    if target is not None and target > 0:
        axes.axvline(target, color=SOFT, linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlabel("χ² at the end", fontsize=9, color=INK)
    axes.set_ylabel("fits", fontsize=9, color=INK)
    missing = len(chi2) - len(values)
    axes.set_title(
        f"{len(chi2)} fits" + (f", {missing} without a value" if missing else ""), loc="left", fontsize=10, color=INK
    )
    return save_or_show(figure, path)


def _case_of(rows: Iterable[SearchRow]) -> tuple[str, Mapping[str, Any]]:
    row = next(iter(rows))
    return row.problem, row.options


def _report(
    name: str, progress: Progress, starts: int = 5, seed: int = 0, plot: str | None = None, **options: Any
) -> Report:
    table = TABLES[name]
    rows, status = collect_rows(run_searches(table, runs=starts, seed=seed, progress=progress, **options))
    files = draw(rows, table, plot) if plot and rows else ()
    return Report(build_tables(table, rows, files), record(name, [row.record() for row in rows], seed=seed, **status))


KIND = Kind(lambda: TABLES, (*COMMON, "data", "plot"), _report, lambda name: "global searches: success against effort")
