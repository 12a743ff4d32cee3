"""What a fit is made of, a transcription and a solver: what each must offer, and their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from castfit._reading import text
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.ipopt import Ipopt
from castfit.status import suggest
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit.integrate import IntegratorOptions
    from castfit.problem import Posable
    from castfit.solve.solution import Control, Solution
    from castfit.staged import Array, StagedProblem
    from castfit.transcribe.trajectory import States


class Transcription(Protocol):
    """Turns a problem into a staged least-squares problem; see castfit.transcribe."""

    @property
    def label(self) -> str:
        """Name in tables."""
        ...

    @property
    def integrator(self) -> IntegratorOptions:
        """How stages are integrated, or checked against integration."""
        ...

    @property
    def accuracy(self) -> float:
        """Relative accuracy to which the model is solved over a stage."""
        ...

    @property
    def states(self) -> States:
        """Where states start; "data" also where there are none to start."""
        ...

    def transcribe(self, problem: Posable, theta: Array) -> StagedProblem:
        """Lay the problem out as stages, starting from theta (n_theta,)."""
        ...

    def refine(self, problem: Posable, staged: StagedProblem, v: Array) -> StagedProblem | None:
        """Return a finer problem started from the solution v, or None if v is accurate enough."""
        ...


class Solver(Protocol):
    """Solves a staged problem; see castfit.solve."""

    @property
    def label(self) -> str:
        """Name in tables."""
        ...

    def solve(self, staged: StagedProblem, control: Control, *, warm: bool = False) -> Solution:
        """Solve; a fit that fails is a status, not an exception.  `warm` says that the start is nearly optimal."""
        ...


TRANSCRIPTIONS: dict[str, Callable[..., Transcription]] = {
    "single": SingleShooting,
    "multiple": MultipleShooting,
    "collocation": Collocation,
}
SOLVERS: dict[str, Callable[[], Solver]] = {"gauss_newton": GaussNewton, "ipopt": Ipopt}

_T = TypeVar("_T")


def parts_from(transcription: Any, solver: Any, mistakes: list[str]) -> tuple[Transcription | None, Solver | None]:
    """Read a transcription and a solver as users give them, by name or ready; what is wrong is added to `mistakes`.

    "multiple/ipopt" names both.  None stands for Collocation() and GaussNewton().
    """
    if isinstance(transcription, str) and "/" in transcription and solver is None:
        transcription, solver = transcription.split("/", 1)
    remedy = "SingleShooting(), MultipleShooting() or Collocation()"
    return (
        _part("transcription", Collocation() if transcription is None else transcription, "transcribe", TRANSCRIPTIONS,
              remedy, mistakes),
        _part("solver", GaussNewton() if solver is None else solver, "solve", SOLVERS, "GaussNewton() or Ipopt()",
              mistakes),
    )  # fmt: skip


def _part(
    what: str, given: Any, method: str, known: dict[str, Callable[..., _T]], remedy: str, mistakes: list[str]
) -> _T | None:
    if isinstance(given, str):
        name = given.replace("-", "_")
        if name in known:
            return known[name]()
        mistakes.append(f"{what} is '{given}': {suggest(name, known)}; or give {remedy}")
    elif isinstance(given, type) or not callable(getattr(given, method, None)):
        mistakes.append(f"{what} is {text(given)}; give {remedy}")
    else:
        return cast("_T", given)
    return None
