"""``castfit profile``, ``castfit bootstrap`` and ``castfit doctor``: how far the fit of a problem can be trusted."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from typing import TYPE_CHECKING, Any

import castfit
from castfit._support.json_codec import replace_nonfinite
from castfit._support.status import raise_if_mistakes
from castfit.cli.command import (
    FAILED,
    Command,
    argument,
    collect_keywords,
    print_line,
    split_commas,
    verbose_argument,
    write_json,
    write_results,
)
from castfit.cli.fit import PARTS, FitCall, find_default_methods, find_exit_status, make_solver
from castfit.cli.source import load
from castfit.problem.problem import kind_mistakes

if TYPE_CHECKING:
    from castfit.drive.uncertainty.profile.result import Profiles


def _profile(arguments: argparse.Namespace) -> int:
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
            arguments.names,
            fit_call.transcription,
            make_solver(fit_call.solver),
            confidence_levels=[_read_number(level) for level in arguments.confidence_levels.split(",")],
            **collect_keywords(arguments, "limits", "everywhere", "workers", "max_time", "checkpoint", "resume"),
            verbose=min(arguments.verbose, 2) or None,
        )
    screen.print_report(console, profiles.summary())
    record = _build_record(fit_call.source.name, profiles)
    write_results(arguments, record, profiles, has_plot=len(profiles) > 0)
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


PROFILE = Command(
    "profile",
    "profile likelihoods of a problem of the library",
    _profile,
    {"json": None, "plot": None, "save": None, "max_time": math.inf, "seed": 0, "workers": 1},
    (
        argument(
            "--names",
            metavar="Q,Q",
            type=split_commas,
            help="quantities, or expressions such as k1/k2 (default: all)",
        ),
        argument("--confidence-levels", metavar="L,L", default="0.95", help="(default: %(default)s)"),
        argument("--levels", dest="confidence_levels", default=argparse.SUPPRESS, help=argparse.SUPPRESS),
        argument("--limits", choices=("auto", "chi2", "F"), default="auto", help="(default: %(default)s)"),
        argument("--everywhere", action="store_true", help="continue beyond the confidence limits, to the bounds"),
        *PARTS,
        argument("--start", metavar="START", help="of the fit: a start with a name, random, or name=value,..."),
        argument("--checkpoint", metavar="FILE", help="checkpoint file for finished branches"),
        argument("--resume", action="store_true", help="continue the checkpoint if it exists"),
        verbose_argument("show progress of the run; twice: of each branch"),
    ),
    (
        "castfit profile stat5",
        "castfit profile lotka_volterra --names p1,p1/p2 --confidence-levels 0.68,0.95 --plot profiles.png",
    ),
)


def _bootstrap(arguments: argparse.Namespace) -> int:
    """Fit, draw data about the fit, and fit these; return 1 if the first fit or every other one failed."""
    from castfit.cli import console as screen

    source = load(arguments.name, arguments.option)
    method, solver = find_default_methods(source)
    raise_if_mistakes("bootstrap", kind_mistakes(source.problem))
    result: Any = castfit.fit(source.problem, method, solver, start=source.start)
    console = screen.make_console(stderr=arguments.json == "-")
    if not result.success:
        print_line(result.summary(), sys.stderr)
        return FAILED
    bootstrap_result = castfit.bootstrap(
        result,
        arguments.kind,
        transcription=method,
        solver=solver,
        **collect_keywords(arguments, "samples", "seed", "workers", "max_time"),
    )
    screen.print_report(console, bootstrap_result.summary())
    record = {
        "problem": source.name,
        "kind": bootstrap_result.kind,
        "level": result.confidence_level,
        "samples": len(bootstrap_result.rows),
        "fitted": len(bootstrap_result.solved),
        "failures": bootstrap_result.failures,
        "standard_errors": bootstrap_result.standard_errors,
        "bias": bootstrap_result.bias,
        "intervals": {
            "percentile": bootstrap_result.confidence_intervals(method="percentile"),
            "bca": bootstrap_result.confidence_intervals(),
        },
    }
    if not bootstrap_result.solved:
        write_json(replace_nonfinite(record), arguments.json)
        return FAILED
    write_results(arguments, replace_nonfinite(record), bootstrap_result)
    return 0


BOOTSTRAP = Command(
    "bootstrap",
    "compute standard errors and intervals by bootstrap",
    _bootstrap,
    {"json": None, "plot": None, "save": None, "max_time": math.inf, "seed": 0, "workers": 1},
    (
        argument(
            "--kind",
            choices=("residual", "wild", "parametric"),
            default="residual",
            help="how data are resampled (default: %(default)s)",
        ),
        argument(
            "--samples",
            type=int,
            metavar="N",
            default=1000,
            help="number of data sets (default: %(default)s)",
        ),
    ),
    (
        "castfit bootstrap bellman --samples 200 --workers 2",
        "castfit bootstrap decay.py --kind wild --plot k.png",
    ),
)


def _doctor(arguments: argparse.Namespace) -> int:
    """Check a problem; return 1 if something needs a look."""
    from castfit.cli import console as screen

    source = load(arguments.name, arguments.option)
    with screen.show_progress() as show:
        checkup = castfit.doctor(
            source.problem,
            *find_default_methods(source),
            start=source.start,
            **collect_keywords(arguments, "starts", "seed", "max_time"),
            callback=lambda name: show(f"{source.name}: {name}"),
        )
    screen.print_report(screen.make_console(stderr=arguments.json == "-"), str(checkup))
    lines = [{"check": n.name, "fine": n.ok, "sentence": n.sentence, "advice": n.advice} for n in checkup.lines]
    write_json(replace_nonfinite({"problem": source.name, "time": checkup.time, "checks": lines}), arguments.json)
    return 0 if checkup.ok else FAILED


DOCTOR = Command(
    "doctor",
    "check a problem and its fit in less than a minute",
    _doctor,
    {"json": None, "max_time": 60.0, "starts": 12, "seed": 0},
    examples=("castfit doctor stat5", "castfit doctor decay.py --max-time 20"),
)
