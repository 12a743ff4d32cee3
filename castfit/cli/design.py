"""``castfit design``: fit a problem, and propose the next measurements."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import numpy as np

import castfit
from castfit._support.status import InputError, Status, raise_if_mistakes, suggest
from castfit.cli.command import Command, argument, print_line, split_commas
from castfit.cli.fit import METHOD, FitCall

_N_GRID_TIMES = 101  # number of times of the default grid of candidates


def _run(arguments: argparse.Namespace) -> int:
    """Fit unless told not to, and print the design."""
    fit_call = FitCall.from_arguments(arguments)
    problem, mistakes = fit_call.source.problem, list[str]()
    candidate = _read_candidates(arguments, problem, mistakes)
    quantity_names, estimated = arguments.over, problem.names
    mistakes += [
        f"--over: '{n}' is not estimated: {suggest(n, estimated)}" for n in quantity_names or () if n not in estimated
    ]
    for option_name, value in (("--budget", arguments.budget), ("--price", arguments.price)):
        if value is not None and not 0.0 < value < math.inf:
            mistakes.append(f"{option_name} is {value:g}; give a positive number")
    if arguments.budget is None and arguments.price is None:
        mistakes.append("the amount of data is not limited; set --budget or --price")
    raise_if_mistakes("castfit design", mistakes)
    fit_or_problem = problem if arguments.guess else fit_call.run(max_time=arguments.max_time)
    if isinstance(fit_or_problem, castfit.Result):
        if fit_or_problem.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        print_line(f"{fit_or_problem!r}", sys.stdout)
    design = castfit.design(
        fit_or_problem, candidate, budget=arguments.budget, price=arguments.price or 0.0, criterion=arguments.criterion,
        over=quantity_names, rng=arguments.seed,
    )  # fmt: skip
    print_line(design.summary(), sys.stdout)
    if arguments.plot:
        design.plot(arguments.plot)
    if arguments.petab:
        design.save_petab(arguments.petab)
    return 0


def _read_candidates(arguments: argparse.Namespace, problem: castfit.Problem, mistakes: list[str]) -> Any:
    """Read the candidate measurements. Return None if they are invalid."""
    conditions = {c.name: c for c in problem.conditions}
    name, outputs = arguments.experiment or next(iter(conditions)), arguments.outputs
    if name not in conditions:
        mistakes.append(f"--experiment: '{name}' is none: {suggest(name, conditions)}")
    model = problem.original_model
    unknown = [o for o in outputs or () if o not in model.output_names]
    mistakes += [f"--outputs: '{o}' is none: {suggest(o, model.output_names)}" for o in unknown]
    condition = conditions.get(name) or next(iter(conditions.values()))
    times = _read_times(arguments.times, condition.start, condition.end, mistakes)
    choices = _read_choices(arguments.choose, model, mistakes)
    try:
        return castfit.Candidate(
            times, outputs, experiment=name, spacing=arguments.spacing, sigma=arguments.sigma, name="next",
            initial=choices["initial"], parameters=choices["parameters"], inputs=choices["inputs"],
        )  # fmt: skip
    except InputError as error:
        mistakes += error.problems
        return None


def _read_times(text: str | None, start: float, end: float, mistakes: list[str]) -> np.ndarray:
    """Read a grid; the default leaves out the start, where nothing has moved yet."""
    try:
        first_time, last_time, n_times = (text or "").split(":")
        return np.linspace(float(first_time), float(last_time), int(n_times))
    except ValueError:
        mistakes += [] if text is None else [f"--times is '{text}'; give A:B:N, such as 0:20:201"]
        return np.linspace(start, end, _N_GRID_TIMES)[1:]


def _read_choices(texts: list[str], model: castfit.Model, mistakes: list[str]) -> dict[str, dict[str, Any]]:
    """Read the design variables, grouped by inputs, parameters and initial states."""
    choices: dict[str, dict[str, Any]] = {"inputs": {}, "parameters": {}, "initial": {}}
    names_by_section = dict(zip(choices, (model.inputs, model.parameters, model.states), strict=True))
    for text in texts:
        name, _, bounds = text.partition("=")
        section = next((section for section, names in names_by_section.items() if name in names), "")
        if not section:
            known_names = [n for names in names_by_section.values() for n in names]
            mistakes.append(f"--choose: '{name}' is not an input, parameter or state: {suggest(name, known_names)}")
        try:
            low, high, *pieces = bounds.split(":")
            numbers, (count,) = (float(low), float(high)), map(int, pieces or ["1"])
        except ValueError:
            mistakes.append(f"--choose is '{text}'; give NAME=A:B or NAME=A:B:N, such as T=300:700:8")
            continue
        try:
            choices.get(section, {})[name] = castfit.choose(*numbers, pieces=count)
        except InputError as error:
            mistakes += [f"--choose {name}: {problem}" for problem in error.problems]
    return choices


COMMAND = Command(
    "design",
    "propose the next measurements, with an optimality bound",
    _run,
    {"plot": None, "max_time": math.inf, "seed": 0},
    (
        argument("--budget", metavar="B", type=float, help="number of measurements, if each costs 1"),
        argument("--price", metavar="P", type=float, help="price of a measurement, in units of the criterion"),
        argument("--times", metavar="A:B:N", help="N times from A to B (default: 101 over the experiment)"),
        argument("--outputs", metavar="Y,Y", type=split_commas, help="outputs to measure (default: the measured ones)"),
        argument("--experiment", metavar="NAME", default="", help="experiment to repeat (default: the first)"),
        argument("--criterion", choices=("D", "A", "E"), default="D", help="(default: %(default)s)"),
        argument("--over", metavar="Q,Q", type=split_commas, help="quantities of interest (default: all)"),
        argument("--spacing", metavar="T", type=float, default=0.0, help="minimum time between measurements"),
        argument(
            "--sigma",
            metavar="S",
            type=float,
            help="standard deviation of new measurements (default: as existing ones)",
        ),
        argument(
            "--choose",
            metavar="NAME=A:B[:N]",
            action="append",
            default=[],
            help="optimise an input (N pieces), a parameter or an initial state between A and B",
        ),
        argument("--guess", action="store_true", help="do not fit; design at the guesses"),
        argument("--petab", metavar="FOLDER", help="write the next problem, with predictions as data, as PEtab"),
    ),
    ("castfit design bellman --budget 3", "castfit design decay.py --budget 6 --times 0:10:101 --plot design.png"),
    method=METHOD,
)
