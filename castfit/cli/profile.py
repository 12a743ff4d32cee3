"""``castfit profile``: fit one problem, then profile its quantities."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from typing import TYPE_CHECKING, Any

import castfit
from castfit._support.json_codec import replace_nonfinite
from castfit.cli.command import FAILED, Command, add_verbose, collect_keywords, write_json
from castfit.cli.fit import FitCall, find_exit_status
from castfit.cli.method import add_parts, make_solver

if TYPE_CHECKING:
    from castfit.drive.uncertainty.profile.result import Profiles


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--names", metavar="Q,Q", help="quantities, or expressions such as k1/k2 (default: all)")
    parser.add_argument("--confidence-levels", metavar="L,L", default="0.95", help="(default: %(default)s)")
    parser.add_argument("--levels", dest="confidence_levels", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--limits", choices=("auto", "chi2", "F"), default="auto", help="(default: %(default)s)")
    parser.add_argument(
        "--everywhere", action="store_true", help="continue beyond the confidence limits, to the bounds"
    )
    add_parts(parser)
    parser.add_argument("--start", metavar="START", help="of the fit: a start with a name, random, or name=value,...")
    parser.add_argument("--checkpoint", metavar="FILE", help="checkpoint file for finished branches")
    parser.add_argument("--resume", action="store_true", help="continue the checkpoint if it exists")
    add_verbose(parser, "show progress of the run; twice: of each branch")


def _run(arguments: argparse.Namespace) -> int:
    """Fit, and profile."""
    from castfit.cli import console as screen

    fit_call = FitCall.from_arguments(arguments)
    console = screen.make_console(stderr=arguments.json == "-")
    result = fit_call.run(max_time=arguments.max_time)
    if not result.success:
        screen.print_report(console, result.summary())
        return find_exit_status([result])
    with contextlib.redirect_stdout(sys.stderr):
        profiles = castfit.profile(
            result,
            None if arguments.names is None else [name.strip() for name in arguments.names.split(",")],
            fit_call.transcription,
            make_solver(fit_call.solver),
            confidence_levels=[_read_number(level) for level in arguments.confidence_levels.split(",")],
            **collect_keywords(arguments, "limits", "everywhere", "workers", "max_time", "checkpoint", "resume"),
            verbose=min(arguments.verbose, 2) or None,
        )
    screen.print_report(console, profiles.summary())
    write_json(_build_record(fit_call.source.name, profiles), arguments.json)
    if arguments.plot and len(profiles):
        profiles.plot(arguments.plot)
    if arguments.save:
        profiles.save(arguments.save)
    return 0 if profiles.complete else FAILED


def _read_number(text: str) -> Any:
    """Convert a text to a number. Return the text itself if it is not one; it is refused later, by name."""
    try:
        return float(text)
    except ValueError:
        return text


def _build_record(name: str, profiles: Profiles) -> dict[str, Any]:
    """Return the record for ``--json``. Non-finite numbers become None."""
    return replace_nonfinite(
        {
            "problem": name,
            "message": profiles.message,
            "complete": profiles.complete,
            "limits_by": profiles.statistic,
            "improved": profiles.improved,
            "time": profiles.time,
            "fits": profiles.solves,
            "optima": [{"values": dict(o.values), "objective": o.objective} for o in profiles.optima],
            "profiles": {
                n: {
                    "estimate": p.estimate,
                    "limits": {f"{level:g}": list(p.limits(level)) for level in p.confidence_levels},
                    "below": p.sides()[0].kind,
                    "above": p.sides()[1].kind,
                    "values": p.values.tolist(),
                    "objective": p.objective.tolist(),
                }
                for n, p in profiles.items()
            },
        }
    )


COMMAND = Command(
    "profile",
    "profile likelihoods of a problem of the library",
    _run,
    {"json": None, "plot": None, "save": None, "max_time": math.inf, "seed": 0, "workers": 1},
    _configure,
    (
        "castfit profile stat5",
        "castfit profile lotka_volterra --names p1,p1/p2 --confidence-levels 0.68,0.95 --plot profiles.png",
    ),
)
