"""``castfit design``: fit a problem, and say what to measure next."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import numpy as np

import castfit
from castfit._support.status import InputError, Status, suggest
from castfit.cli.command import Command, say
from castfit.cli.fit import FitCall, add_fit

_FINE = 101  # times of the default grid


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget", metavar="B", type=float, required=True, help="how many values, if each costs 1")
    parser.add_argument("--times", metavar="A:B:N", help="N times from A to B (default: 101 over the experiment)")
    parser.add_argument("--outputs", metavar="Y,Y", help="what to measure (default: what is measured)")
    parser.add_argument("--experiment", metavar="NAME", default="", help="which one to repeat (default: the first)")
    parser.add_argument("--criterion", choices=("D", "A", "E"), default="D", help="(default: %(default)s)")
    parser.add_argument("--over", metavar="Q,Q", help="the quantities that matter (default: all)")
    parser.add_argument("--spacing", metavar="T", type=float, default=0.0, help="the least distance of two times")
    parser.add_argument("--sigma", metavar="S", type=float, help="how accurate values are (default: as those measured)")
    parser.add_argument(
        "--choose", metavar="NAME=A:B[:N]", action="append", default=[],
        help="choose an input (in N pieces), a parameter or an initial state between A and B",
    )  # fmt: skip
    parser.add_argument("--guess", action="store_true", help="do not fit: design at the guesses")
    parser.add_argument("--petab", metavar="FOLDER", help="write the next problem, with predictions for data, as PEtab")
    add_fit(parser)


def _run(arguments: argparse.Namespace) -> int:
    """Fit unless told not to, and print the design."""
    asked = FitCall.of(arguments)
    problem = asked.source.problem
    known = problem if arguments.guess else asked.run(max_time=arguments.max_time)
    if isinstance(known, castfit.Result):
        if known.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        say(f"{known!r}", sys.stdout)
    names = [c.name for c in problem.conditions]
    if arguments.experiment and arguments.experiment not in names:
        raise InputError("design", [f"'{arguments.experiment}' is no experiment; choose one of {', '.join(names)}"])
    condition = problem.conditions[names.index(arguments.experiment or names[0])]
    chosen = _choices(arguments.choose, problem.own_model)
    candidate = castfit.Candidate(
        _times(arguments.times, condition.start, condition.end),
        _listed(arguments.outputs),
        experiment=condition.name,
        spacing=arguments.spacing,
        sigma=arguments.sigma,
        name="next",
        initial=chosen.get("initial"),
        parameters=chosen.get("parameters"),
        inputs=chosen.get("inputs"),
    )
    found = castfit.design(
        known, candidate, budget=arguments.budget, criterion=arguments.criterion, over=_listed(arguments.over),
        rng=arguments.seed,
    )  # fmt: skip
    say(found.summary(), sys.stdout)
    if arguments.plot:
        found.plot(arguments.plot)
    if arguments.petab:
        found.save_petab(arguments.petab)
    return 0


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _times(text: str | None, start: float, end: float) -> np.ndarray:
    """Read a grid; the default leaves out the start, where nothing has moved yet."""
    if text is None:
        return np.linspace(start, end, _FINE)[1:]
    try:
        first, last, count = text.split(":")
        return np.linspace(float(first), float(last), int(count))
    except ValueError:
        raise InputError("design", [f"--times is '{text}'; give A:B:N, such as 0:20:201"]) from None


def _choices(given: list[str], model: castfit.Model) -> dict[str, dict[str, Any]]:
    """Read what is to be chosen, by where it belongs."""
    found: dict[str, dict[str, Any]] = {}
    every = {"inputs": model.inputs, "parameters": model.parameters, "initial": model.states}
    for text in given:
        name, _, bounds = text.partition("=")
        where = next((where for where, names in every.items() if name in names), "")
        try:
            low, high, *pieces = bounds.split(":")
            numbers = float(low), float(high), int(pieces[0]) if pieces else 1
        except ValueError:
            raise InputError(
                "design", [f"--choose is '{text}'; give NAME=A:B or NAME=A:B:N, such as T=300:700:8"]
            ) from None
        if not where:
            known = [n for names in every.values() for n in names]
            raise InputError("design", [f"--choose: '{name}' is no input, parameter or state: {suggest(name, known)}"])
        found.setdefault(where, {})[name] = castfit.choose(*numbers[:2], pieces=numbers[2])
    return found


COMMAND = Command(
    "design",
    "say what to measure next, and how far that is from the best",
    _run,
    {"plot": None, "max_time": math.inf, "seed": 0},
    _configure,
    ("castfit design bellman --budget 3", "castfit design decay.py --budget 6 --times 0:10:101 --plot design.png"),
)
