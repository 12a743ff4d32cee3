"""``castfit doctor``: what a careful person would try before believing a fit."""

from __future__ import annotations

import argparse

from castfit.cli.command import FAILED, Command, collect_keywords, write_json


def _doctor(arguments: argparse.Namespace) -> int:
    """Check a problem; return 1 if something needs a look."""
    import castfit
    from castfit._support.json_codec import replace_nonfinite
    from castfit.cli import console as screen
    from castfit.cli.method import find_default_methods
    from castfit.cli.source import load

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


COMMAND = Command(
    "doctor",
    "check a problem and its fit in less than a minute",
    _doctor,
    {"json": None, "max_time": 60.0, "starts": 12, "seed": 0},
    examples=("castfit doctor stat5", "castfit doctor decay.py --max-time 20"),
)
