"""Transcription and solver of a command: the user's choice, else the default of the kind of problem."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from castfit._support.status import raise_if_mistakes
from castfit.cli.command import format_option, parse_literal
from castfit.cli.source import ProblemSource
from castfit.fit.methods import SOLVERS, TRANSCRIPTIONS, Solver, Transcription

SETTINGS = ("intervals", "elements", "degree", "states", "derivatives", "matching")  # of transcriptions
_CHOICES = {
    "states": (
        ("data", "smoothed", "simulation"),
        "initial states of multiple shooting and collocation (default: as the problem recommends)",
    ),
    "derivatives": (
        ("auto", "forward", "adjoint"),
        "derivative method of shooting (default: the faster one)",
    ),
    "matching": (
        ("vector", "scalar"),
        "matching conditions of --intervals data --derivatives adjoint (default: vector)",
    ),
}
_SOLVERS: Mapping[str, Callable[[], Solver]] = {name.replace("_", "-"): make for name, make in SOLVERS.items()}


def add_parts(parser: Any) -> None:
    """Add transcription and solver to a parser or a group of its arguments."""
    parser.add_argument(
        "--transcription",
        choices=TRANSCRIPTIONS,
        help="(default: single or collocation, by predicted time; for a PEtab file single, from its nominal values)",
    )
    parser.add_argument(
        "--solver",
        choices=_SOLVERS,
        help="box is gauss-newton with a trust region, for parameters known only to an order of magnitude (default: "
        "gauss-newton; box for a PEtab file with single shooting)",
    )


def add_settings(parser: Any) -> None:
    """Add the settings of transcriptions."""
    parser.add_argument(
        "--intervals", type=parse_literal, metavar="N|data", help="number of multiple-shooting intervals"
    )
    parser.add_argument("--elements", type=parse_literal, metavar="N|auto|data", help="elements of collocation")
    parser.add_argument("--degree", type=int, metavar="D", help="collocation points per element")
    for name, (choices, words) in _CHOICES.items():
        parser.add_argument(format_option(name), choices=choices, help=words)


def make_transcription(source: ProblemSource, kind: str, options: Mapping[str, Any]) -> Transcription:
    """Make a transcription from what the user gave, what the library recommends, and defaults, in this order."""
    settings = {name: options[name] for name in SETTINGS if options.get(name) is not None}
    accepted = [name for name in SETTINGS if name in inspect.signature(TRANSCRIPTIONS[kind]).parameters]
    remedy = f"it takes {', '.join(f'--{o}' for o in accepted)}" if accepted else "it has no such options"
    raise_if_mistakes(
        "options", [f"--transcription {kind} does not take --{o}; {remedy}" for o in settings if o not in accepted]
    )
    return TRANSCRIPTIONS[kind](**{**source.recommended.get(kind, {}), **settings})


def choose_solver_name(source: ProblemSource, kind: str, requested_name: str | None) -> str:
    """Return a solver's name: the given one, else what suits the problem by this transcription."""
    return requested_name or (source.solver if kind == source.transcription else "gauss-newton")


def make_solver(name: str) -> Solver:
    """Make a solver."""
    return _SOLVERS[name]()


def find_default_methods(source: ProblemSource) -> tuple[Transcription | None, Solver | None]:
    """Return the default transcription and solver of a problem, each None for castfit's own default."""
    transcription = make_transcription(source, source.transcription, {})
    has_own_transcription = (
        source.transcription in source.recommended or source.transcription != ProblemSource.transcription
    )
    return (
        transcription if has_own_transcription else None,
        None if source.solver == ProblemSource.solver else make_solver(source.solver),
    )
