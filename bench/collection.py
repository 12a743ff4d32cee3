"""The PEtab benchmark collection: is each problem read as its authors meant it, how fast, how often solved.

Nothing of the collection ships with castfit: a folder is named that holds its problems, each in a folder of its own
(github.com/Benchmarking-Initiative/Benchmark-Models-PEtab).

Searches are those of `castfit.estimate` by default, from guesses drawn between the bounds.  They end when their best
point is within 0.1 of the best value that the collection knows, or when their time is over, which is CPU time: what
else runs on the machine changes nothing.  Hits are those that ended at or below this value, plus 0.1 or 1; the CPU time
per hit is that of all searches divided by their number.  The figures of pyPESTO and AMICI beside ours were measured
with pyPESTO 0.7 and AMICI 1.0 on one core, ten starts by the best of fides, trf and L-BFGS-B; or, where an interpreter
is named in which they are installed, they are run here and now: compiled, evaluated beside castfit's objective in
pyPESTO, and started ten times with fides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import castfit as cf
from castfit._support.status import CastfitError, Status, raise_if_mistakes, suggest
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.formats.petab.likelihood import Objective, accurate
from castfit.formats.petab.loading import LoadedProblem, load_tables
from castfit.report.page import ReportHeader, Section, joined, page, tag

from .collected_courses import difference
from .cpu_clock import cpu_clock, cpu_timed
from .gradients import SmoothObjective
from .nominal_table import nominal_sheet, run_nominal, verdict
from .peers import PEERS, Peer, interpreter_mistakes, live
from .table import Kind, Report, collect_rows, number_mistakes, record

if TYPE_CHECKING:
    from castfit.drive.search.portfolio.result import PortfolioProgress
    from castfit.problem.problem import Problem
    from castfit.result.result import Result

    Array = np.ndarray[Any, np.dtype[np.float64]]

NAME = "petab"
MAX_TIME = 60.0  # seconds per run where nothing is known of others
_NEAR, _FAR = 0.1, 1.0
_N_PEER_STARTS = 10  # number of starts of the other program
_N_REPEATS = 5  # number of repeated evaluations, of which the median time counts
_MAX_GRADIENT_POINTS = 6
"""Number of points at which differences are tried until one is accurate enough to test a gradient."""
_DIFFERENCE_RTOL = 3e-6  # relative uncertainty up to which a finite difference is accurate enough
_POINT_RADIUS = 0.1  # distance of further points from theta, in units of the search scale


REFERENCES = {
    "Armistead_CellDeathDis2024": -301.9161824,
    "Beer_MolBioSystems2014": -58622.9141181,
    "Blasi_CellSystems2016": -642.8268936,
    "Boehm_JProteomeRes2014": 138.2219977,
    "Borghans_BiophysChem1997": -83.3236954,
    "Brannmark_JBC2010": 141.8889366,
    "Bruno_JExpBot2016": -46.6881821,
    "Chen_MSB2009": 130591.7530,
    "Crauste_CellSystems2017": 190.9639776,
    "Elowitz_Nature2000": -63.2027504,
    "Fiedler_BMCSystBiol2016": -58.5838716,
    "Fujita_SciSignal2010": -53.0837668,
    "Lang_PLOSComputBiol2024": -2741.6965,
    "Okuonghae_ChaosSolitonsFractals2020": 470490.6059183,
    "Raia_CancerResearch2011": 346.0897815,
    "Raimundez_PCB2020": 550.0359831,
    "Schwen_PONE2014": 943.9992989,
    "Smith_BMCSystBiol2013": 888198.4365,
    "Sneyd_PNAS2002": -319.7917770,
    "Weber_BMC2015": 296.2017981,
    "Zheng_PNAS2012": -278.3335322,
}
"""Negative log likelihoods at the nominal parameters: of the petab library on the collection's simulations where these
belong to them and are accurate, else of two integrators that agree; those of others differ by up to 0.004 (Lang)."""


@dataclass(frozen=True)
class CollectionEntry:
    """What was found of one problem.

    Attributes
    ----------
    problem : str
    loading : float
        CPU seconds of reading and building.
    nominal, reference : float
        Negative log likelihood at the nominal parameters, and what it must be.
    simulations : float
        Largest relative difference from the collection's table of simulations; NaN without one.
    value, gradient : float
        CPU milliseconds of one evaluation and one Jacobian, with castfit's default integrator.
    gradient_error : float
        Largest difference of the gradient from finite differences, relative to its largest entry or 1.
    checked_at : str
        Where: at the nominal parameters, or near them where differences are too uncertain at these.
    seeds, values, seconds : list
        Of the searches: seed, objective reached (priors included), CPU seconds.
    best : float
        The objective at the nominal parameters (priors included), to which values are compared.
    peer : Peer
    trouble : str
        Why the problem could not be read, or what failed.
    """

    problem: str
    loading: float = np.nan
    nominal: float = np.nan
    reference: float = np.nan
    simulations: float = np.nan
    value: float = np.nan
    gradient: float = np.nan
    gradient_error: float = np.nan
    checked_at: str = ""
    seeds: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    best: float = np.nan
    peer: Peer = field(default_factory=Peer)
    trouble: str = ""

    def hits(self, margin: float) -> int:
        """Return how many searches ended at or below the best known value, plus a margin."""
        return sum(v <= self.best + margin for v in self.values)

    @property
    def seconds_per_hit(self) -> float:
        """CPU seconds of all searches by their hits; infinite without one."""
        hits = self.hits(_NEAR)
        return sum(self.seconds) / hits if hits else np.inf


def run_collection(
    folder: str | Path,
    *,
    problems: Sequence[str] | None = None,
    starts: int = 0,
    seed: int = 1,
    max_time: float | None = None,
    tolerance: float | None = None,
    pypesto: str | None = None,
    progress: Callable[[str], object] = lambda text: None,
) -> Iterator[CollectionEntry]:
    """Go through the problems in a folder, one entry after the other.

    Parameters
    ----------
    folder : str or path
        With one folder for each problem.
    problems : sequence of str, optional
        Beginnings of their names; by default all.
    starts : int
        Searches for the optimum; none by default.
    seed : int
        Of the first search; each has the next one.
    max_time : float, optional
        CPU seconds of one search; by default what ten starts of pyPESTO and AMICI take.
    tolerance : float, optional
        Of the integrator, for the times of evaluations.
    pypesto : str, optional
        The Python in which pyPESTO and AMICI are installed, to run them now; else their published figures are shown.

    Raises
    ------
    InputError
        For a folder without problems, and unknown names.
    """
    paths = _find_problems(folder, problems, interpreter_mistakes(pypesto))
    return (_entry(n, p, starts, seed, max_time, tolerance, pypesto, progress) for n, p in paths.items())


def _find_problems(folder: str | Path, problems: Sequence[str] | None, mistakes: Sequence[str] = ()) -> dict[str, Path]:
    """Return the problems of a folder whose names begin so.

    Raises InputError: with what is wrong besides.
    """
    paths = {p.parent.name: p for p in sorted(Path(folder).glob("*/*.yaml"))}
    mistakes_found = [] if paths else [f"'{folder}' holds no problem, FOLDER/NAME/NAME.yaml"]
    mistakes_found += [
        f"there is no problem '{b}': {suggest(b, paths)}"
        for b in (problems or () if paths else ())
        if not any(n.startswith(b) for n in paths)
    ]
    raise_if_mistakes(NAME, [*mistakes_found, *mistakes])
    return {n: p for n, p in paths.items() if problems is None or any(n.startswith(b) for b in problems)}


def _entry(
    name: str,
    path: Path,
    starts: int,
    seed: int,
    max_time: float | None,
    tolerance: float | None,
    pypesto: str | None,
    progress: Progress,
) -> CollectionEntry:
    progress(f"{name}: reading")
    peer, reference = PEERS.get(name, Peer()), REFERENCES.get(name, np.nan)
    began = time.process_time()
    try:
        loaded = load_tables(path)
        problem = loaded.problem
    except CastfitError as error:
        return CollectionEntry(name, reference=reference, peer=peer, trouble=str(error))
    loading = time.process_time() - began
    theta = np.array(problem.guess)
    try:
        nominal = Objective(problem, theta).evaluate(theta).negative_log_likelihood
    except CastfitError as error:
        return CollectionEntry(name, loading, reference=reference, peer=peer, trouble=str(error))
    prior = _prior(problem, theta)
    best = (reference if np.isfinite(reference) else nominal) + prior
    if pypesto is not None:
        progress(f"{name}: pyPESTO and AMICI")
        peer_seconds = _N_PEER_STARTS * (max_time or MAX_TIME)
        peer = live(pypesto, path, best, _NEAR, _N_PEER_STARTS if starts else 0, seed, peer_seconds)
    progress(f"{name}: gradient")
    error, where = _gradient_error(problem, theta)
    value, gradient = _times(problem, theta, tolerance)
    limit = max_time if max_time is not None else peer.seconds or MAX_TIME
    seeds = tuple(range(seed, seed + starts))
    searches = [_search(problem, name, s, limit, best + _NEAR, progress) for s in seeds]
    return CollectionEntry(
        name,
        loading,
        nominal,
        reference,
        _simulations(loaded, path, name),
        value,
        gradient,
        error,
        where,
        seeds,
        tuple(v for v, _ in searches),
        tuple(s for _, s in searches),
        best,
        peer,
    )


def _simulations(loaded: LoadedProblem, path: Path, name: str) -> float:
    try:
        return difference(loaded, path.parent, name)
    except CastfitError:
        return np.nan


def _gradient_error(problem: Problem, theta: Array) -> tuple[float, str]:
    """Compare the gradient with differences where these are sharp: at theta, or near it."""
    rng = np.random.default_rng(0)
    error, location = np.nan, "nowhere"
    objective = SmoothObjective(problem, theta, accurate(1e-10))
    for k in range(_MAX_GRADIENT_POINTS):
        point = theta if k == 0 else theta + _POINT_RADIUS * rng.uniform(-1.0, 1.0, theta.size)
        exact = objective.gradient(point)
        if not np.isfinite(exact).all():
            continue
        differences, uncertain = objective.differences(point)
        size = max(1.0, float(np.abs(exact).max()))
        relative_error = float(np.abs(differences - exact).max()) / size
        if uncertain.max() <= _DIFFERENCE_RTOL * size:
            return relative_error, "nominal" if k == 0 else "near"
        if not np.isfinite(error):
            error, location = relative_error, "uncertain"
    return error, location


def _times(problem: Problem, theta: Array, tolerance: float | None) -> tuple[float, float]:
    """Return the CPU milliseconds of a value and of a Jacobian, with the default integrator; NaN where it fails."""
    options = None if tolerance is None else cf.IntegratorOptions(relative_tolerance=tolerance)
    objective = SmoothObjective(problem, theta, options or cf.IntegratorOptions())
    milliseconds: list[float] = []
    for act in (objective.value, objective.gradient):
        if not np.isfinite(act(theta)).all():  # also builds what is built once
            milliseconds.append(np.nan)
            continue
        took: list[float] = []
        for k in range(1, _N_REPEATS + 1):
            shifted_theta = theta + 1e-9 * k  # what was evaluated last is remembered
            took.append(cpu_timed(partial(act, shifted_theta))[1])
        milliseconds.append(1e3 * float(np.median(took)))
    return milliseconds[0], milliseconds[1]


def _search(
    problem: Problem, name: str, seed: int, limit: float, target: float, progress: Progress
) -> tuple[float, float]:
    """Return the objective that a search reaches, priors included, confirmed with a tight tolerance, and CPU s."""
    label = f"{name}: search with seed {seed}"
    progress(label)
    result, took = cpu_timed(
        lambda: searched(problem, seed, limit, target, lambda sentence: progress(f"{label}: {sentence}"))
    )
    if result is None:
        return np.inf, took
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    theta = np.asarray(result.theta)
    return SmoothObjective(problem, theta).value(theta) + _prior(problem, theta), took


def searched(
    problem: Problem, seed: int, limit: float, target: float = -np.inf, progress: Progress = lambda text: None
) -> Result | None:
    """Return what `castfit.estimate` finds within a limit in CPU seconds, or once its objective is at the target.

    It begins at a random guess: the nominal one is the answer.
    """
    lower, upper = problem.bounds
    low, high = (np.where(np.isfinite(b), b, problem.guess + offset) for b, offset in ((lower, -5.0), (upper, 5.0)))
    guess = np.random.default_rng([seed, 1]).uniform(low, high)
    nominal = Objective(problem, problem.guess).evaluate(problem.guess)
    constant = nominal.negative_log_likelihood - nominal.evaluation.cost + problem.posed.prior_constant

    def is_target_reached(progress_report: PortfolioProgress) -> bool:
        progress(progress_report.sentence)
        return progress_report.lowest + constant <= target

    with cpu_clock():
        return cf.estimate(problem.posed.starting_at(guess), max_time=limit, rng=seed, callback=is_target_reached).best


def _prior(problem: Problem, theta: Array) -> float:
    """Return what priors add to the objective."""
    return problem.priors(theta).cost + problem.posed.prior_constant if problem.posed.every_prior else 0.0


def sheet(entries: Iterable[CollectionEntry]) -> TextTable:
    """Return the table: ours and theirs side by side; in pyPESTO too where that was run."""
    entries = list(entries)
    inside = [(">in pyPESTO", _inside)] if any(e.peer.ratio is not None for e in entries) else []
    return TextTable.from_items(
        entries,
        ("problem", lambda e: e.problem.partition("_")[0]),
        (">nominal", lambda e: f"{e.nominal:.4f}"),
        (">off by", lambda e: f"{abs(e.nominal - e.reference):.1e}"),
        (">courses", lambda e: "-" if np.isnan(e.simulations) else f"{e.simulations:.0e}"),
        (">load", lambda e: f"{e.loading:.2f} s"),
        (">value", lambda e: f"{e.value:.1f} ms"),
        (">gradient", lambda e: f"{e.gradient:.1f} ms"),
        (">AMICI, ms", lambda e: _or(e.peer.value, e.peer.gradient, "{:.2g}, {:.2g}")),
        (">error", lambda e: f"{e.gradient_error:.0e}" + ("" if e.checked_at == "nominal" else f" {e.checked_at}")),
        (">hits 0.1", lambda e: f"{e.hits(_NEAR)}/{len(e.values)}" if e.values else "-"),
        (">hits 1", lambda e: f"{e.hits(_FAR)}" if e.values else "-"),
        (">best", lambda e: f"{min(e.values):.4f}" if e.values else "-"),
        (">CPU s/hit", lambda e: f"{e.seconds_per_hit:.3g}" if e.values else "-"),
        *inside,
        (">pyPESTO", lambda e: _or(e.peer.hits, e.peer.seconds, f"{{:g}}/{e.peer.starts}, {{:.3g}} s")),
    )  # fmt: skip


def _inside(entry: CollectionEntry) -> str:
    """Say how castfit's gradient does in pyPESTO: milliseconds, over AMICI's there; how far off value and gradient are.

    In brackets how far off AMICI's gradient is, at the tolerances at which it was timed.
    """
    ratio, castfit_values = entry.peer.ratio, entry.peer.castfit
    if ratio is None:
        return "-"
    error_text = "AMICI fails"
    if "off" in castfit_values:
        amici_error = (
            f"{castfit_values['amici_gradient_off']:.0e}" if "amici_gradient_off" in castfit_values else "fails"
        )
        error_text = f"{castfit_values['off']:.0e}, {castfit_values['gradient_off']:.0e} ({amici_error})"
    return f"{castfit_values['gradient']:.2g} ms, {ratio:.2f}, {error_text}"


def _or(one: float | None, other: float | None, form: str) -> str:
    return "-" if one is None or other is None else form.format(one, other)


def written(entries: Sequence[CollectionEntry]) -> str:
    """Return the table as a page."""
    table = sheet(entries)
    heads = tag("tr", [tag("th", head.removeprefix(">")) for head in table.heads])
    rows = [tag("tr", [tag("td", cell) for cell in row]) for row in table.rows]
    failed_entries = [e for e in entries if e.trouble or e.peer.trouble]
    max_difference = max(
        (abs(e.nominal - e.reference) for e in entries if np.isfinite(e.reference + e.nominal)), default=np.nan
    )
    lead = ReportHeader(
        "PEtab benchmark collection",
        "castfit bench petab",
        "bad" if any(e.trouble for e in entries) else "good",
        f"{sum(not e.trouble for e in entries)} of {len(entries)} problems are read; the objective differs from its "
        f"reference by at most {max_difference:.1e}.",
        [("problems", str(len(entries))), ("searches", str(sum(len(e.values) for e in entries)))],
    )
    words = tag("p", " ".join((__doc__ or "").split("\n\n")[2].split()))
    notes = [tag("p", line) for line in _below(entries)]
    scroll = tag("div", tag("table", heads, rows), class_="scroll")
    sections = [Section("table", "The table", joined(scroll, *notes, words))]
    if failed_entries:
        listed = [tag("li", f"{e.problem}: {e.trouble or f'pyPESTO: {e.peer.trouble}'}") for e in failed_entries]
        sections.append(Section("trouble", "What could not be done", tag("ul", listed)))
    return page(lead, sections)


def _record(entry: CollectionEntry) -> Mapping[str, Any]:
    hits = {"hits_0.1": entry.hits(_NEAR), "hits_1": entry.hits(_FAR), "cpu_s_per_hit": entry.seconds_per_hit}
    return {**asdict(entry), **(hits if entry.values else {})}


def _run(
    name: str,
    progress: Progress,
    *,
    folder: str = "",
    problems: Sequence[str] | None = None,
    starts: int = 0,
    seed: int = 1,
    max_time: float | None = None,
    tolerance: float | None = None,
    pypesto: str | None = None,
    html: str | None = None,
    nominal: bool = False,
) -> Report:
    mistakes = [] if folder else ["name the folder that holds the collection's problems: --folder FOLDER"]
    mistakes += number_mistakes(seed=seed, max_time=1.0 if max_time is None else max_time)
    mistakes += [f"starts is {starts}; give a number that is not negative"] if starts < 0 else []
    if nominal:
        nominal_conflicts = {
            "starts": starts,
            "tolerance": tolerance,
            "pypesto": pypesto,
            "html": html,
            "max_time": max_time,
        }
        mistakes += [
            f"--nominal takes no {option.replace('_', '-')}; leave it out"
            for option, v in nominal_conflicts.items()
            if v
        ]
    raise_if_mistakes(f"bench {name}", mistakes)
    if nominal:
        entries, status = collect_rows(run_nominal(_find_problems(folder, problems), REFERENCES, progress))
        lines = [f"{e.problem}: {e.trouble}" for e in entries if e.trouble]
        fine = sum(verdict(e) == "as it must be" for e in entries)
        lines.insert(0, f"{fine} of {len(entries)} are as they must be")
        nominal_record = record(
            name, [asdict(e) for e in entries], castfit=cf.__version__, folder=str(folder), **status
        )
        return Report((nominal_sheet(entries), "", *lines), nominal_record)
    rows, status = collect_rows(
        run_collection(
            folder, problems=problems, starts=starts, seed=seed, max_time=max_time, tolerance=tolerance,
            pypesto=pypesto, progress=progress,
        )
    )  # fmt: skip
    if html:
        Path(html).write_text(written(rows), encoding="utf-8")
    trouble = [f"{e.problem}: {e.trouble}" for e in rows if e.trouble]
    trouble += [f"{e.problem}, pyPESTO: {e.peer.trouble}" for e in rows if e.peer.trouble]
    return Report(
        (sheet(rows), "", *_below(rows), *trouble),
        record(name, [dict(_record(e)) for e in rows], castfit=cf.__version__, folder=str(folder), **status),
    )


def _below(entries: Sequence[CollectionEntry]) -> list[str]:
    """Return what is said below the table."""
    version_text = next((e.peer.versions for e in entries if e.peer.versions), "")
    peers = (
        f"run now, {version_text}"
        if version_text
        else "measured with AMICI 1.0 and pyPESTO 0.7 on one core (ten starts)"
    )
    lines = [f"AMICI, pyPESTO: {peers}"]
    if any(e.values for e in entries):
        lines.append("hits: searches that ended within 0.1, or 1, of the best value known; each stopped there, or when "
                    "its CPU seconds were over")  # fmt: skip
    peers_in_pypesto = [e.peer for e in entries if e.peer.ratio is not None]
    if peers_in_pypesto:
        lines.append("in pyPESTO: a gradient with its value by castfit's objective in pyPESTO's problem, in turns with "
                    "AMICI's: CPU time, over AMICI's; how far, relatively, values and gradients are off from AMICI's "
                    "at tight tolerances, and in brackets AMICI's gradients as they were timed")  # fmt: skip
    lines += [f"{e.problem}, castfit in pyPESTO: {e.peer.castfit['trouble']}"
             for e in entries if "trouble" in e.peer.castfit]  # fmt: skip
    objective_differences = [
        abs(e.peer.nominal - e.nominal) for e in entries if e.peer.nominal is not None and not e.trouble
    ]
    lines += (
        [f"Objectives at the nominal parameters differ from AMICI's by at most {max(objective_differences):.1e}"]
        if objective_differences
        else []
    )
    if any(e.simulations > 1e-3 for e in entries):
        lines.append(
            "courses: tables of simulations that are far off were made at other parameters, or with two labels "
            "exchanged (see the documentation)"
        )
    return lines


KIND = Kind(
    lambda: (NAME,),
    ("folder", "problems", "starts", "seed", "max_time", "tolerance", "pypesto", "html", "nominal"),
    _run,
    lambda name: "the PEtab benchmark collection in a folder: objectives, gradients, times, hits",
)
