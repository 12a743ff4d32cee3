"""``castfit bench sbml``: time courses of the SBML Test Suite, or of any folder laid out like it.

Nothing of the suite ships with castfit (github.com/sbmlteam/sbml-test-suite, cases/semantic).  A folder is named that
holds a folder of each case: the model ``NNNNN-sbml-lLvV.xml``, of which the highest level and version is read,
``NNNNN-settings.txt`` and ``NNNNN-results.csv``.  A case is

    right     every value is within the case's own tolerances,  |found - expected| <= absolute + relative |expected|
    refused   castfit says by name what it does not do
    wrong     anything else: a value that is off, an integration that stopped, any other exception
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

import castfit as cf
from castfit._support.status import InputError, raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit._support.time_limit import StopRequested, check_deadline, with_deadline
from castfit.drive.search.compare.benchmarks import Progress

from .cpu_clock import cpu_clock
from .table import Kind, Report, collect_rows, number_mistakes, record, unknown_mistakes

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[np.float64]]

NAME = "sbml"
MAX_TIME = 60.0  # CPU seconds of a case
_TIGHT = cf.IntegratorOptions(relative_tolerance=1e-9, absolute_tolerance=1e-12)
_MAX_REASON_LENGTH = 110  # number of characters of a reason that are printed


@dataclass(frozen=True)
class SuiteCase:
    """A case as its files say it; settings by their names in small letters."""

    name: str
    model: Path
    settings: dict[str, str]
    columns: tuple[str, ...]
    times: Array
    expected: Array  # (n, columns)

    @classmethod
    def read(cls, folder: Path) -> SuiteCase:
        """Read the case in a folder."""
        name = folder.name
        lines = (folder / f"{name}-settings.txt").read_text(encoding="utf-8").splitlines()
        settings = {
            key.strip().lower(): value.strip() for key, mark, value in (line.partition(":") for line in lines) if mark
        }
        with (folder / f"{name}-results.csv").open(encoding="utf-8") as file:
            head, *rows = [row for row in csv.reader(file) if row]
        table = np.array([[float(value) for value in row] for row in rows])
        columns = tuple(column.strip() for column in head[1:])
        return cls(name, max(folder.glob(f"{name}-sbml-l*.xml")), settings, columns, table[:, 0], table[:, 1:])

    def named(self, setting: str) -> list[str]:
        """Return the identifiers that a setting lists."""
        return [name.strip() for name in self.settings.get(setting, "").split(",") if name.strip()]

    def found(self, loaded: cf.sbml.Loaded) -> Array:
        """Simulate, and return what the case asks for, (n, columns), in the amounts or concentrations it asks for."""
        course = cf.simulate(loaded, times=self.times, integrator=_TIGHT)

        def values(name: str) -> Array:
            if name in course and name != "time":
                return course[name]
            number = loaded.parameters.get(name)
            if number is None and name in loaded.expressions:
                number = float(loaded.expressions[name])
            return np.full(self.times.size, np.nan if number is None else number)

        out: list[Array] = []
        for name in self.columns:
            column, species = values(name), loaded.species.get(name)
            if species and name in self.named("amount") and not species.is_amount:
                column = column * values(species.compartment)
            elif species and name in self.named("concentration") and species.is_amount:
                column = column / values(species.compartment)
            out.append(column)
        return np.array(out).T


@dataclass(frozen=True)
class SuiteRow:
    """What became of a case: "right", "refused" or "wrong".

    error : the largest difference, in units of what the case allows; NaN where there is none
    seconds : CPU time of loading and simulating
    reason : what is refused, or what went wrong
    """

    case: str
    outcome: str
    error: float
    seconds: float
    reason: str = ""


def cases_in(folder: str | Path) -> list[str]:
    """Return the names of the time courses in a folder, in order."""
    return sorted(
        path.name
        for path in Path(folder).iterdir()
        if _is_time_course(path) and any(path.glob(f"{path.name}-sbml-l*.xml"))
    )


def _is_time_course(folder: Path) -> bool:
    """Tell a time course from other kinds of tests, which say which steps they take, too, but as no number."""
    settings, results = folder / f"{folder.name}-settings.txt", folder / f"{folder.name}-results.csv"
    if not (settings.is_file() and results.is_file()):
        return False
    steps = [
        line.partition(":")[2].strip()
        for line in settings.read_text(encoding="utf-8").splitlines()
        if line.lower().startswith("steps")
    ]
    return bool(steps) and steps[0].isdigit() and int(steps[0]) > 0


def run_case(folder: Path, max_time: float = MAX_TIME) -> SuiteRow:
    """Load and simulate a case, and compare."""
    began = time.process_time()

    def row(outcome: str, error: float = np.nan, reason: str = "") -> SuiteRow:
        return SuiteRow(folder.name, outcome, float(error), time.process_time() - began, reason)

    try:
        with cpu_clock(), with_deadline(max_time):
            case = SuiteCase.read(folder)
            simulated = case.found(cf.sbml.load(case.model))
            check_deadline()  # what ends too late is not done either
    except InputError as refusal:
        return row("refused", reason="; ".join(refusal.problems))
    except (StopRequested, TimeoutError):
        return row("wrong", reason=f"not done within {max_time:g} CPU seconds")
    except Exception as error:  # the table goes on
        return row("wrong", reason=f"{type(error).__name__}: {error}")
    allowed = float(case.settings["absolute"]) + float(case.settings["relative"]) * np.abs(case.expected)
    with np.errstate(invalid="ignore"):
        off = np.where(simulated == case.expected, 0.0, np.abs(simulated - case.expected) / allowed)
    off[np.isnan(simulated) & np.isnan(case.expected)] = 0.0
    off[np.isnan(off)] = np.inf
    worst = float(off.max(initial=0.0))
    if worst <= 1.0:
        return row("right", worst)
    time_index, column = np.unravel_index(int(off.argmax()), off.shape)
    simulated_value, expected_value = simulated[time_index, column], case.expected[time_index, column]
    message = (
        f"{case.columns[column]} is {simulated_value:.6g} at t = {case.times[time_index]:g}, not {expected_value:.6g}"
    )
    return row("wrong", worst, message)


def _run(
    name: str,
    progress: Progress,
    *,
    folder: str = "",
    problems: Sequence[str] | None = None,
    max_time: float = MAX_TIME,
) -> Report:
    has_folder = bool(folder) and Path(folder).is_dir()
    mistakes = [] if has_folder else ["name the folder that holds a folder of each case: --folder FOLDER"]
    cases = cases_in(folder) if has_folder else []
    mistakes += ["the folder holds no case NNNNN with its settings and results"] if has_folder and not cases else []
    mistakes += unknown_mistakes("case", problems or (), cases) if cases else []
    raise_if_mistakes(f"bench {name}", mistakes + number_mistakes(max_time=max_time))

    def run() -> Iterator[SuiteRow]:
        for case in problems or cases:
            progress(f"{NAME}: {case}")
            yield run_case(Path(folder) / case, max_time)

    rows, status = collect_rows(run())
    counts = Counter(row.outcome for row in rows)
    share = (counts["refused"] + counts["wrong"]) / max(len(rows), 1)
    sheet = TextTable.from_items(
        [row for row in rows if row.outcome != "right"],
        ("case", lambda row: row.case),
        ("", lambda row: row.outcome),
        ("off by, of what is allowed", lambda row: f"{row.error:.3g}" if np.isfinite(row.error) else ""),
        ("CPU s", lambda row: f"{row.seconds:.2f}"),
        ("why", lambda row: shorten(row.reason, _MAX_REASON_LENGTH)),
        title=f"{name}: what is not right",
    )
    sentence = (
        f"{len(rows)} time courses: {counts['right']} right, {counts['refused']} refused by name, {counts['wrong']} "
        f"wrong; {100 * share:.1f} % not right.  {sum(row.seconds for row in rows):.0f} CPU s, the longest "
        f"{max((row.seconds for row in rows), default=0.0):.1f} s"
    )
    blocks = (sheet, "", sentence) if share else (sentence,)
    return Report(
        blocks, record(name, [asdict(row) for row in rows], folder=str(folder), castfit=cf.__version__, **status)
    )


KIND = Kind(
    lambda: (NAME,),
    ("folder", "problems", "max_time"),
    _run,
    lambda name: "time courses of the SBML Test Suite in a folder: right, refused by name, wrong",
)
