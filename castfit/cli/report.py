"""``castfit report``: fit a problem, and write the page that tells the story."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from castfit.cli.command import Command, add_options, add_problem, say
from castfit.cli.fit import add_fit, exit_status, fit_source, read_start
from castfit.cli.method import make_transcription, solver_name
from castfit.cli.source import load
from castfit._support.status import Status, check

if TYPE_CHECKING:
    from castfit.drive.uncertainty.profile.result import Profiles
    from castfit.result.result import Result

_MOST_SOURCE = 100_000  # letters of a script that go into the page


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit report NAME|FILE.py|FILE.yaml [options]"
    add_problem(parser)
    parser.add_argument("--out", metavar="FILE.html", help="where to write the page (default: NAME.html)")
    parser.add_argument("--title", metavar="TEXT", help="above the page (default: NAME)")
    parser.add_argument("--profiles", action="store_true", help="profile all quantities too, which takes longer")
    add_fit(parser)
    add_options(parser, max_time=math.inf, seed=0)


def _run(arguments: argparse.Namespace) -> int:
    """Fit, and write the page; that of a fit that failed says why."""
    source = load(arguments.name, arguments.option)
    stem = source.name.replace(".py", "").replace(".yaml", "").replace(".yml", "").replace(":", "-")
    target = Path(arguments.out or f"{stem}.html")
    wrong = [] if target.suffix.lower() in (".html", ".htm") else [f"'{target}' is no page; let --out end in .html"]
    wrong += [] if target.absolute().parent.is_dir() else [f"there is no folder '{target.parent}'; make it first"]
    check("--out", wrong)
    kind = arguments.transcription or source.transcription
    transcription = make_transcription(source, kind, vars(arguments))
    start = read_start(source, kind, arguments.start, arguments.seed)
    result = fit_source(
        source, transcription, start, solver_name(source, kind, arguments.solver), max_time=arguments.max_time
    )
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    result.report(
        target,
        title=arguments.title or stem,
        notes=_description(arguments.name),
        command=shlex.join(["castfit", *_given()]),
        source=_script(arguments.name),
        further={"Profiles": _profiles(result)} if arguments.profiles and result.success else {},
    )
    say(f"{result!r}", sys.stdout)
    say(f"The report is in {target}.", sys.stdout)
    return exit_status([result])


def _profiles(result: Result) -> Profiles:
    import castfit

    return castfit.profile(result)


def _description(name: str) -> str:
    """Return what the library says of a problem."""
    from castfit import problems

    return problems.load(name).description if name in problems.names() else ""


def _script(name: str) -> str:
    """Return the script that states the problem; empty for a problem of the library."""
    path, mark, _ = name.partition(".py")
    file = Path(f"{path}.py")
    text = file.read_text(encoding="utf-8", errors="replace") if mark and file.is_file() else ""
    return text if len(text) <= _MOST_SOURCE else ""


def _given() -> list[str]:
    return sys.argv[1:] if sys.argv[1:2] == ["report"] else ["report"]


COMMAND = Command(
    "report",
    "fit one problem, and write a page that tells the story",
    _configure,
    _run,
    ("castfit report stat5", "castfit report decay.py --profiles --out decay.html"),
)
