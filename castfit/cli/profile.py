"""``castfit profile``: fit one problem, then profile its quantities."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from typing import TYPE_CHECKING, Any

import castfit
from castfit._support.json_codec import finite
from castfit.cli.command import FAILED, INTERRUPTED, Command, add_options, add_problem, check_outputs, write_json
from castfit.cli.fit import fit_source, read_start
from castfit.cli.method import add_parts, make_solver, make_transcription, solver_name
from castfit.cli.source import load
from castfit._support.status import Status

if TYPE_CHECKING:
    from castfit.drive.uncertainty.profile.result import Profiles


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit profile NAME|FILE.py|FILE.yaml [options]"
    add_problem(parser)
    parser.add_argument("--names", metavar="Q,Q", help="quantities, or expressions such as k1/k2 (default: all)")
    parser.add_argument("--levels", metavar="L,L", default="0.95", help="confidence levels (default: %(default)s)")
    parser.add_argument("--limits", choices=("auto", "chi2", "F"), default="auto", help="(default: %(default)s)")
    parser.add_argument("--everywhere", action="store_true", help="go on beyond the limits, to the bounds")
    add_parts(parser)
    parser.add_argument("--start", metavar="START", help="of the fit: a start with a name, random, or name=value,...")
    parser.add_argument("--checkpoint", metavar="FILE", help="write every finished side there")
    parser.add_argument("--resume", action="store_true", help="continue the checkpoint if it exists")
    add_options(parser, "json", "plot", "save", max_time=math.inf, seed=0, workers=1)
    parser.add_argument("-v", "--verbose", action="count", default=0, help="report the run; twice: each side")


def _run(arguments: argparse.Namespace) -> int:
    """Fit, and profile."""
    from castfit.cli import console as _console

    check_outputs(arguments)
    source = load(arguments.name, arguments.option)
    kind = arguments.transcription or source.transcription
    transcription = make_transcription(source, kind, {})
    start = read_start(source, kind, arguments.start, arguments.seed)
    console = _console.console(stderr=arguments.json == "-")
    solver = solver_name(source, kind, arguments.solver)
    result = fit_source(source, transcription, start, solver, max_time=arguments.max_time)
    if not result.success:
        console.print(result.summary(), markup=False, soft_wrap=True)
        return INTERRUPTED if result.status is Status.INTERRUPTED else FAILED
    with contextlib.redirect_stdout(sys.stderr):
        found = castfit.profile(
            result,
            None if arguments.names is None else [name.strip() for name in arguments.names.split(",")],
            transcription,
            make_solver(solver),
            levels=[_number(level) for level in arguments.levels.split(",")],
            limits=arguments.limits,
            everywhere=arguments.everywhere,
            workers=arguments.workers,
            max_time=arguments.max_time,
            checkpoint=arguments.checkpoint,
            resume=arguments.resume,
            verbose=min(arguments.verbose, 2),
        )
    console.print(found.summary(), markup=False, soft_wrap=True)
    write_json(_record(source.name, found), arguments.json)
    if arguments.plot and len(found):
        found.plot(arguments.plot)
    if arguments.save:
        found.save(arguments.save)
    return 0 if found.complete else FAILED


def _number(text: str) -> Any:
    """Read a number; what is none is refused later, by its name."""
    try:
        return float(text)
    except ValueError:
        return text


def _record(name: str, found: Profiles) -> dict[str, Any]:
    """Return what --json writes; what is not finite becomes None."""
    return finite(
        {
            "problem": name,
            "message": found.message,
            "complete": found.complete,
            "limits_by": found.by,
            "improved": found.improved,
            "time": found.time,
            "fits": found.solves,
            "optima": [{"values": dict(o.values), "objective": o.objective} for o in found.optima],
            "profiles": {
                n: {
                    "estimate": p.estimate,
                    "limits": {f"{level:g}": list(p.limits(level)) for level in p.levels},
                    "below": p.sides()[0].kind,
                    "above": p.sides()[1].kind,
                    "values": p.values.tolist(),
                    "objective": p.objective.tolist(),
                }
                for n, p in found.items()
            },
        }
    )


COMMAND = Command(
    "profile",
    "profile likelihoods of a problem of the library",
    _configure,
    _run,
    (
        "castfit profile stat5",
        "castfit profile lotka_volterra --names p1,p1/p2 --levels 0.68,0.95 --plot profiles.png",
    ),
)
