"""``castfit report`` and ``castfit explore``: fit a problem, and write a page about the result, or one with sliders."""

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
from castfit.cli.command import Command, argument, print_line
from castfit.cli.fit import METHOD, FitCall, find_exit_status

_MOST_SOURCE = 100_000  # letters of a script that go into the page


_TITLE = argument("--title", metavar="TEXT", help="above the page (default: NAME)")


def _report(arguments: argparse.Namespace) -> int:
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


REPORT = Command(
    "report",
    "fit one problem, and write a page that tells the story",
    _report,
    {"max_time": math.inf, "seed": 0},
    (
        argument("--out", metavar="FILE.html", help="output page (default: NAME.html)"),
        _TITLE,
        argument("--profiles", action="store_true", help="also compute profiles of all quantities (slower)"),
    ),
    ("castfit report stat5", "castfit report decay.py --profiles --out decay.html"),
    method=METHOD,
)


def _explore(arguments: argparse.Namespace) -> int:
    """Fit unless told not to, and write the page; where a fit fails, without an estimate."""
    fit_call = FitCall.from_arguments(arguments)
    name = Path(fit_call.source.name).name
    stem = name.replace(".py", "").replace(".yaml", "").replace(".yml", "").replace(":", "-")
    result = None if arguments.guess else fit_call.run(max_time=arguments.max_time)
    if result is not None and result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    is_fitted = result is not None and result.success
    if result is not None:
        print_line(f"{result!r}", sys.stdout)
    target = arguments.out or f"{stem}-model.html"
    fit_or_problem = result if result is not None and is_fitted else fit_call.source.problem
    castfit.explore(fit_or_problem, target, title=arguments.title or stem)
    print_line(f"Created {target}{'' if is_fitted else ' (without estimates)'}.", sys.stdout)
    return 0


EXPLORE = Command(
    "explore",
    "write an HTML page with sliders that integrates the model in the browser",
    _explore,
    {"max_time": math.inf, "seed": 0},
    (
        argument("--out", metavar="FILE.html", help="output page (default: NAME-model.html)"),
        _TITLE,
        argument("--guess", action="store_true", help="do not fit; set the sliders to the guesses"),
    ),
    ("castfit explore lotka_volterra", "castfit explore decay.py --guess --out decay.html"),
    method=METHOD,
)
