"""Which transcription and solver a command uses: as the user says, else as the kind of problem has it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from castfit.cli.command import literal
from castfit.cli.source import Source
from castfit.fit.methods import SOLVERS, TRANSCRIPTIONS
from castfit._support.status import check

if TYPE_CHECKING:
    from castfit.fit.methods import Solver, Transcription

_SETTINGS = ("intervals", "elements", "degree", "states", "derivatives", "matching")  # of transcriptions
_SOLVERS: Mapping[str, Callable[[], Solver]] = {name.replace("_", "-"): make for name, make in SOLVERS.items()}


def add_method(parser: Any) -> None:
    """Add transcription, its settings, and solver to a parser or a group of its arguments."""
    _add_transcription(parser)
    _add_settings(parser)
    _add_solver(parser)


def add_parts(parser: Any) -> None:
    """Add transcription and solver alone."""
    _add_transcription(parser)
    _add_solver(parser)


def _add_transcription(parser: Any) -> None:
    parser.add_argument(
        "--transcription",
        choices=TRANSCRIPTIONS,
        help="(default: collocation; for a PEtab file single, which begins at its nominal values)",
    )


def _add_solver(parser: Any) -> None:
    parser.add_argument(
        "--solver",
        choices=_SOLVERS,
        help="box is gauss-newton in a trust region for parameters known to decades "
        "(default: gauss-newton; for a PEtab file by single shooting box)",
    )


def _add_settings(parser: Any) -> None:
    parser.add_argument("--intervals", type=literal, metavar="N|data", help="intervals of multiple shooting")
    parser.add_argument("--elements", type=literal, metavar="N|auto|data", help="elements of collocation")
    parser.add_argument("--degree", type=int, metavar="D", help="collocation points per element")
    parser.add_argument(
        "--states",
        choices=("data", "smoothed", "simulation"),
        help="where the states of multiple shooting and collocation start (default: as the problem recommends)",
    )
    parser.add_argument(
        "--derivatives",
        choices=("auto", "forward", "adjoint"),
        help="how shooting is differentiated (default: whichever is faster)",
    )
    parser.add_argument(
        "--matching",
        choices=("vector", "scalar"),
        help="matching conditions of --intervals data --derivatives adjoint (default: vector)",
    )


def make_transcription(source: Source, kind: str, given: Mapping[str, Any]) -> Transcription:
    """Make a transcription from what the user gave, what the library recommends, and defaults, in this order."""
    chosen = {option: given[option] for option in _SETTINGS if given.get(option) is not None}
    accepted = [option for option in _SETTINGS if option in inspect.signature(TRANSCRIPTIONS[kind]).parameters]
    takes = f"it takes {', '.join(f'--{o}' for o in accepted)}" if accepted else "it has no such options"
    check("options", [f"--transcription {kind} does not take --{o}; {takes}" for o in chosen if o not in accepted])
    return TRANSCRIPTIONS[kind](**{**source.recommended.get(kind, {}), **chosen})


def solver_name(source: Source, kind: str, given: str | None) -> str:
    """Return a solver's name: the given one, else what suits the problem by this transcription."""
    return given or (source.solver if kind == source.transcription else "gauss-newton")


def make_solver(name: str) -> Solver:
    """Make a solver."""
    return _SOLVERS[name]()


def usual_parts(source: Source) -> tuple[Transcription | None, Solver | None]:
    """Return what a problem is solved by where nothing is said; None for castfit's own defaults."""
    transcription = make_transcription(source, source.transcription, {})
    own = source.transcription in source.recommended or source.transcription != Source.transcription
    return transcription if own else None, None if source.solver == Source.solver else make_solver(source.solver)
