"""The default search over hard problems, and what each of its ingredients contributes.

``castfit bench estimate``   runs `castfit.estimate` to its own end: what is doubted, or not, is seen there
``castfit bench ablation``   runs it until the optimum is reached, with one ingredient after the other switched off

Guesses are drawn like starts: for problems of the library by their own distribution, for those of a PEtab collection
(``--folder``) evenly between the bounds on their scale.  The optimum is the reference of the library; of a collection
the refitted nominal parameters, up to 0.1 in the logarithm of the likelihood, at full accuracy, whether the point
converged or is on the floor of a valley.  A run of the ablation ends at the
optimum or at the limit, in CPU seconds; a hit costs the CPU seconds of all runs over the number of hits.

Methods run in turns, seed by seed, and take turns in who is the first: what is compiled once, and what else the machine
does, meets all alike.  A run that could not differ from the default's is not repeated: before six candidates have ended
nobody is dropped in a race, and nothing moved.  Such a run has the default's figures.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import castfit as cf
from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import Column, TextTable, format_or_never
from castfit.drive.run.options import RunOptions
from castfit.drive.search.compare.benchmarks import Progress
from castfit.drive.search.portfolio.allocation import PortfolioOptions
from castfit.drive.search.portfolio.limits import build_search_region
from castfit.drive.search.portfolio.portfolio import applicable_strategies
from castfit.drive.search.portfolio.result import PortfolioProgress, PortfolioResult
from castfit.drive.search.portfolio.search import run_portfolio
from castfit.drive.search.portfolio.strategies import SAME_COST_TOL, WAYS
from castfit.fit.start.search_problem import search_problem_of
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problems import load

from .table import Kind, Report, collect_rows, number_mistakes, record, unknown_mistakes

PARTLY_OBSERVED = ("lorenz", "fitzhugh_nagumo", "lotka_volterra_log", "goodwin", "repressilator", "cascade")
OTHERS = ("lotka_volterra_michalik", "stat5", "alpha_pinene")
MAX_TIME = 10.0  # CPU seconds per run of the ablation
_PETAB = ("Boehm", "Bruno", "Sneyd")
_MAX_UNAFFECTED_CANDIDATES = 6  # number of candidates up to which race and pool have no effect
_UNLIMITED_FINDS = 10**6  # number of finds that is never reached: a run ends at the reference optimum


@dataclass(frozen=True)
class AblationCase:
    """A problem to be searched: how guesses are drawn, and whether a cost or chi2 is the optimum."""

    name: str
    problem: CompiledProblem
    draw: Callable[[np.random.Generator], Mapping[str, float]]
    reached: Callable[[float, float], bool]


@dataclass(frozen=True)
class Ingredient:
    """What is switched off: in words, how options change, whether it has no part in the first candidates."""

    words: str
    change: Callable[[PortfolioOptions], PortfolioOptions] = lambda options: options
    late: bool = False  # whether the first candidates are those of the default


def _without(way: str) -> Ingredient:
    return Ingredient(
        f"never: {WAYS[way]}", lambda options: replace(options, ways=tuple(w for w in options.ways if w != way))
    )


INGREDIENTS: dict[str, Ingredient] = {
    "default": Ingredient("everything"),
    "no screening": Ingredient("the first draw, not the best of several", lambda o: replace(o, screen=1)),
    "no race": Ingredient("no candidate is dropped on the way", lambda o: replace(o, race=False), late=True),
    "no box": Ingredient(
        "local fits by Levenberg and Marquardt's steps", lambda o: replace(o, step_control="levenberg_marquardt")
    ),
    **{f"no {way}": _without(way) for way in ("fit", "growing", "soft")},
    "no moved": replace(_without("moved"), late=True),
    "one family": Ingredient(
        "only the best point is moved, not the heads of three families", lambda o: replace(o, families=1), late=True
    ),
    "no single": replace(_without("box"), words="never straight down from the best of several draws"),
    "no doubt": Ingredient(
        "the best point is not tried with two quantities exchanged", lambda o: replace(o, doubt=False)
    ),
}
"""What can be switched off."""

TO_THE_OPTIMUM = tuple(name for name in INGREDIENTS if name != "no doubt")
"""What has a part in the way there."""


@dataclass(frozen=True)
class AblationRun:
    """A search.

    seed;  hit : whether it reached the optimum;  sure : of what it found;  finds : how often it found that;
    candidates;  cpu : seconds;  to_hit : those until it reached the optimum, inf if it did not
    """

    seed: int
    hit: bool
    sure: bool
    finds: int
    candidates: int
    cpu: float
    to_hit: float


@dataclass(frozen=True)
class AblationRow:
    """What searches without an ingredient did on a problem."""

    problem: str
    method: str
    runs: tuple[AblationRun, ...]

    @property
    def hits(self) -> int:
        """How many runs reached the optimum."""
        return sum(run.hit for run in self.runs)

    @property
    def cpu(self) -> float:
        """CPU seconds of all runs."""
        return sum(run.cpu for run in self.runs)


def library_case(name: str) -> AblationCase:
    """Return a problem of the library."""
    benchmark = load(name)
    return AblationCase(
        name, benchmark.problem.posed, benchmark.draw_start, lambda cost, chi2: benchmark.reference.is_reached(chi2)
    )


def petab_cases(folder: str | Path, names: Sequence[str]) -> Iterator[AblationCase]:
    """Yield the problems of a collection whose names begin so."""
    from castfit.formats.petab.loading import load_tables

    paths = {path.parent.name: path for path in sorted(Path(folder).glob("*/*.yaml"))}
    unknown = [b for b in names if not any(n.startswith(b) for n in paths)]
    raise_if_mistakes("ablation", [f"'{folder}' holds no problem '{b}'" for b in unknown])
    for name, path in paths.items():
        if any(name.startswith(b) for b in names):
            problem = load_tables(path).problem
            reference_fit = cf.fit(problem, "single", cf.GaussNewton("box"))
            yield AblationCase(name, problem.posed, _evenly(problem.posed), _below(reference_fit.cost + SAME_COST_TOL))


def _evenly(compiled_problem: CompiledProblem) -> Callable[[np.random.Generator], Mapping[str, float]]:
    region, positions = build_search_region(compiled_problem, None), search_problem_of(compiled_problem).positions

    def draw(rng: np.random.Generator) -> Mapping[str, float]:
        theta = compiled_problem.guess.copy()
        theta[positions] = region.draw(rng)
        return dict(zip(compiled_problem.names, compiled_problem.to_natural(theta).tolist(), strict=True))

    return draw


def _below(target: float) -> Callable[[float, float], bool]:
    return lambda cost, chi2: bool(cost <= target)


def run_ablation(
    *,
    methods: Sequence[str] | None = None,
    problems: Sequence[str] | None = None,
    folder: str | Path | None = None,
    starts: int = 10,
    seed: int = 0,
    max_time: float = MAX_TIME,
    to_the_end: bool = False,
    progress: Progress = lambda text: None,
) -> Iterator[AblationRow]:
    """Search every problem without each ingredient, the rows of one problem after the other.

    Parameters
    ----------
    methods : sequence of str, optional
        Of `INGREDIENTS`; by default all that have a part in the way to the optimum.
    problems : sequence of str, optional
        Of the library, or of the folder by the beginnings of their names; by default those that are only partly
        observed, some others, and of the folder some of the smaller ones.
    folder : path, optional
        With PEtab problems.
    starts, seed : int
    max_time : float
        CPU seconds per run, looked at after every candidate.
    to_the_end : bool
        Whether runs end as `castfit.estimate` does, or at the optimum.
    progress : callable
        Told what is being done.

    Raises
    ------
    InputError
        For unknown names or numbers out of range.
    """
    chosen = TO_THE_OPTIMUM if methods is None else tuple(methods)
    problem_names = (
        (*PARTLY_OBSERVED, *OTHERS, *(() if folder is None else _PETAB)) if problems is None else tuple(problems)
    )
    library_names = set(cf.problems.names())
    petab_names = [] if folder is None else [name for name in problem_names if name not in library_names]
    mistakes = unknown_mistakes("method", chosen, INGREDIENTS)
    mistakes += unknown_mistakes("problem", [name for name in problem_names if name not in petab_names], library_names)
    mistakes += number_mistakes(starts=starts, seed=seed, max_time=max_time)
    raise_if_mistakes("ablation", mistakes)
    if "no doubt" in chosen and not to_the_end:
        raise_if_mistakes("ablation", ["the doubt comes after the optimum; ask for it with castfit bench estimate"])

    def rows() -> Iterator[AblationRow]:
        cases = [library_case(name) for name in problem_names if name in library_names]
        for case in itertools.chain(cases, petab_cases(folder, petab_names) if folder is not None else ()):
            runs: dict[str, list[AblationRun]] = {method: [] for method in chosen}
            try:
                for k in range(starts):
                    for method in _in_turn(chosen, k):
                        usual = runs["default"][k] if len(runs.get("default", ())) > k else None
                        late = INGREDIENTS[method].late and not to_the_end
                        if late and usual is not None and usual.hit and usual.candidates <= _MAX_UNAFFECTED_CANDIDATES:
                            runs[method].append(usual)
                            continue
                        progress(f"{case.name}, start {k + 1} of {starts}: {method}")
                        runs[method].append(_run(case, INGREDIENTS[method], seed + k, max_time, to_the_end))
            except KeyboardInterrupt:  # what has ended is not lost
                yield from _rows(case, runs)
                raise
            yield from _rows(case, runs)

    return rows()


def _rows(case: AblationCase, runs: Mapping[str, Sequence[AblationRun]]) -> list[AblationRow]:
    return [
        AblationRow(case.name, method, tuple(completed_runs))
        for method, completed_runs in runs.items()
        if completed_runs
    ]


def _in_turn(methods: Sequence[str], k: int) -> list[str]:
    """Return the order of methods for the k-th start: each time another one first, and the late ones last."""
    early = [method for method in methods if not INGREDIENTS[method].late]
    turn = k % len(early) if early else 0
    return [*early[turn:], *early[:turn], *(method for method in methods if INGREDIENTS[method].late)]


def _run(case: AblationCase, ingredient: Ingredient, seed: int, max_time: float, to_the_end: bool) -> AblationRun:
    began = time.process_time()
    compiled_problem = case.problem.starting_at(case.draw(np.random.default_rng((seed, 1))))
    reached_at: list[float] = []

    def is_finished(progress_report: PortfolioProgress) -> bool:
        spent = time.process_time() - began
        if not reached_at and case.reached(progress_report.lowest, progress_report.chi2):
            reached_at.append(spent)
        return spent > max_time or bool(reached_at and not to_the_end)

    options = ingredient.change(PortfolioOptions(applicable_strategies(compiled_problem)))
    search_result: PortfolioResult = run_portfolio(
        compiled_problem, options, build_search_region(compiled_problem, None),
        RunOptions(max_time=100.0 * max_time, callback=is_finished), {},
        rng=seed, finds=3 if to_the_end else _UNLIMITED_FINDS,
    )  # fmt: skip
    if search_result.reason.startswith("Interrupted"):
        raise KeyboardInterrupt
    best = search_result.best
    hit = bool(reached_at) or (best is not None and best.success and case.reached(best.cost, best.chi2))
    cpu = time.process_time() - began
    to_hit = reached_at[0] if reached_at else np.inf
    return AblationRun(
        seed, hit, search_result.stopping_rule_met, search_result.hits, len(search_result.candidates), cpu, to_hit
    )


def _hits_per(row: AblationRow) -> str:
    return format_or_never(row.cpu / row.hits if row.hits else np.inf, ".2f")


def shown_ablation(rows: Sequence[AblationRow]) -> tuple[TextTable | str, ...]:
    """Return a row for every ingredient, and for every problem hits and CPU seconds per hit."""
    cases = list(dict.fromkeys(row.problem for row in rows))
    row_by_case = {(row.method, row.problem): row for row in rows}

    def cell(method: str, case: str) -> str:
        return _cell(row_by_case.get((method, case)))

    columns: list[Column[str]] = [("", str)]
    for case in cases:
        head = f">{case.partition('_')[0] if case[0].isupper() else case}"
        columns.append((head, partial(cell, case=case)))
    columns.append((">all", lambda method: _cell(_sum_up(rows, method))))
    methods = list(dict.fromkeys(row.method for row in rows))
    words = [f"{method}: {INGREDIENTS[method].words}" for method in methods]
    return TextTable.from_items(methods, *columns, title="ablation: hits, CPU seconds a hit"), "", *words


def _cell(row: AblationRow | None) -> str:
    return "-" if row is None else f"{row.hits}/{len(row.runs)} {_hits_per(row)}"


def _sum_up(rows: Sequence[AblationRow], method: str) -> AblationRow:
    return AblationRow("", method, tuple(run for row in rows if row.method == method for run in row.runs))


def shown_estimate(rows: Sequence[AblationRow]) -> tuple[TextTable | str, ...]:
    """Return a row for every problem."""
    return (
        TextTable.from_items(
            rows,
            ("problem", lambda row: row.problem),
            ("", lambda row: row.method),
            (">optimum found", lambda row: f"{row.hits} of {len(row.runs)}"),
            (">sure", lambda row: f"{sum(run.sure for run in row.runs)}"),
            (">wrongly sure", lambda row: f"{sum(run.sure and not run.hit for run in row.runs)}"),
            (">candidates", lambda row: f"{np.median([run.candidates for run in row.runs]):.0f}"),
            (">CPU s to it", lambda row: f"{np.median([run.to_hit for run in row.runs]):.2f}"),
            (">CPU s in all", lambda row: f"{np.median([run.cpu for run in row.runs]):.2f}"),
            (">most", lambda row: f"{max(run.cpu for run in row.runs):.1f}"),
            (">finds per 100 CPU s", lambda row: f"{100 * sum(run.finds for run in row.runs) / row.cpu:.0f}"),
            title="castfit.estimate: medians of runs, each from a guess of its own",
        ),
    )


def _report(name: str, progress: Progress, **options: Any) -> Report:
    if name == "estimate":
        problems = (*PARTLY_OBSERVED, *(_PETAB if "folder" in options else ()))
        defaults = {"starts": 20, "problems": problems, "max_time": 120.0, "methods": ("default",)}
        arguments: dict[str, Any] = {**defaults, **options}
        rows, status = collect_rows(run_ablation(to_the_end=True, progress=progress, **arguments))
        sections = shown_estimate(rows)
    else:
        rows, status = collect_rows(run_ablation(progress=progress, **options))
        sections = shown_ablation(rows)
    records = [{**asdict(row), "hits": row.hits, "cpu": row.cpu} for row in rows]
    return Report(sections, record(name, records, castfit=cf.__version__, **status))


KIND = Kind(
    lambda: ("estimate", "ablation"),
    ("starts", "seed", "methods", "max_time", "problems", "folder"),
    _report,
    lambda name: {
        "estimate": "castfit.estimate on six problems that are only partly observed, from anywhere",
        "ablation": "the same search with one ingredient after the other switched off",
    }[name],
)
