"""``castfit doctor``: what a careful person would try before believing a fit."""

from __future__ import annotations

import argparse

from castfit.cli.command import FAILED, Command, add_options, add_problem, check_outputs, write_json


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "castfit doctor NAME|FILE.py|FILE.yaml [options]"
    add_problem(parser)
    add_options(parser, "json", max_time=60.0, starts=12, seed=0)


def _doctor(arguments: argparse.Namespace) -> int:
    """Check a problem; return 1 if something needs a look."""
    import castfit
    from castfit.cli import console as _console
    from castfit._support.json_codec import finite
    from castfit.cli.method import usual_parts
    from castfit.cli.source import load

    check_outputs(arguments)
    source = load(arguments.name, arguments.option)
    with _console.progress() as show:
        found = castfit.check(
            source.problem,
            *usual_parts(source),
            start=source.starts.get(source.transcription, source.starts["reference"]),
            starts=arguments.starts,
            rng=arguments.seed,
            max_time=arguments.max_time,
            callback=lambda name: show(f"{source.name}: {name}"),
        )
    console = _console.console(stderr=arguments.json == "-")
    console.print(str(found), markup=False, soft_wrap=True)
    lines = [{"check": n.name, "fine": n.fine, "sentence": n.sentence, "advice": n.advice} for n in found.lines]
    write_json(finite({"problem": source.name, "time": found.time, "checks": lines}), arguments.json)
    return 0 if found.fine else FAILED


COMMAND = Command(
    "doctor",
    "check a problem and its fit: fine, or what to do, in under a minute",
    _configure,
    _doctor,
    ("castfit doctor stat5", "castfit doctor decay.py --max-time 20"),
)
