"""``castfit report``: fit a problem, and write the page that tells the story."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path
from typing import Any, cast

import castfit
from castfit._support.status import Status, raise_if_mistakes
from castfit._support.whole_files import folder_mistakes
from castfit.cli.command import Command, print_line
from castfit.cli.fit import FitCall, add_fit, find_exit_status

_MOST_SOURCE = 100_000  # letters of a script that go into the page


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE.html", help="output page (default: NAME.html)")
    parser.add_argument("--title", metavar="TEXT", help="above the page (default: NAME)")
    parser.add_argument("--profiles", action="store_true", help="also compute profiles of all quantities (slower)")
    add_fit(parser)


def _run(arguments: argparse.Namespace) -> int:
    """Fit, and write the page; that of a fit that failed says why."""
    fit_call = FitCall.from_arguments(arguments)
    stem = fit_call.source.name.replace(".py", "").replace(".yaml", "").replace(".yml", "").replace(":", "-")
    target = Path(arguments.out or f"{stem}.html")
    suffix_mistakes = (
        [] if target.suffix.lower() in (".html", ".htm") else [f"'{target}' is no page; let --out end in .html"]
    )
    raise_if_mistakes("--out", suffix_mistakes + folder_mistakes(target))
    result: Any = fit_call.run(max_time=arguments.max_time)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    is_path = isinstance(result, castfit.PathResult)
    raise_if_mistakes(
        "--profiles",
        ["models with process noise have no profiles; remove --profiles"] * (is_path and arguments.profiles),
    )
    result.report(
        target,
        title=arguments.title or stem,
        notes=_find_description(arguments.name),
        command=shlex.join(["castfit", *_read_further()]),
        source=_read_script(arguments.name),
        further={"Profiles": castfit.profile(cast("Any", result))} if arguments.profiles and result.success else {},
    )
    print_line(f"{result!r}", sys.stdout)
    print_line(f"The report is in {target}.", sys.stdout)
    return find_exit_status([result])


def _find_description(name: str) -> str:
    """Return the description of a problem of the library, "" for other problems."""
    from castfit import problems

    return problems.load(name).description if name in problems.names() else ""


def _read_script(name: str) -> str:
    """Return the script that states the problem; empty for a problem of the library."""
    path, mark, _ = name.partition(".py")
    file = Path(f"{path}.py")
    text = file.read_text(encoding="utf-8", errors="replace") if mark and file.is_file() else ""
    return text if len(text) <= _MOST_SOURCE else ""


def _read_further() -> list[str]:
    return sys.argv[1:] if sys.argv[1:2] == ["report"] else ["report"]


COMMAND = Command(
    "report",
    "fit one problem, and write a page that tells the story",
    _run,
    {"max_time": math.inf, "seed": 0},
    _configure,
    ("castfit report stat5", "castfit report decay.py --profiles --out decay.html"),
)
