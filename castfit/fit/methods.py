"""Interfaces and names of the two parts of a fit: transcriptions and solvers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from castfit._support.arguments import shorten_repr
from castfit._support.records import dataclass
from castfit._support.status import suggest
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.staged import Array, GradientEvaluation, Linearization, MatchingProducts, StagedProblem
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit.integrate import IntegratorOptions
    from castfit.problem.problem import Posable
    from castfit.solve.solution import Solution, SolveControl
    from castfit.transcribe.trajectory import States


class Transcription(Protocol):
    """Converts a problem into a staged least-squares problem; see castfit.transcribe."""

    @property
    def label(self) -> str:
        """Name in tables."""
        ...

    @property
    def integrator(self) -> IntegratorOptions:
        """Integrator options of the stages, or of their check against integration."""
        ...

    @property
    def accuracy(self) -> float:
        """Relative accuracy to which the model is solved over a stage."""
        ...

    @property
    def states(self) -> States:
        """Start values of the states; "data" also if no states are started."""
        ...

    def transcribe(self, problem: Posable, theta: Array) -> StagedProblem:
        """Divide the problem into stages, starting at theta (n_theta,)."""
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

    def solve(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        """Solve; a failure is a status, not an exception.  `warm`: the start is nearly optimal."""
        ...


TRANSCRIPTIONS: dict[str, Callable[..., Transcription]] = {
    "single": SingleShooting,
    "multiple": MultipleShooting,
    "collocation": Collocation,
}


def _ipopt() -> Solver:
    from castfit.solve.ipopt import Ipopt

    return Ipopt()


def _sqp() -> Solver:
    from castfit.solve.sqp import Sqp

    return Sqp()


SOLVERS: dict[str, Callable[[], Solver]] = {
    "gauss_newton": GaussNewton,
    "box": partial(GaussNewton, "box"),
    "trust_region": partial(GaussNewton, "box"),
    "ipopt": _ipopt,
    "sqp": _sqp,
}

_T = TypeVar("_T")


def parts_from(
    transcription: Any, solver: Any, mistakes: list[str], *, default: tuple[Transcription, Solver] | None = None
) -> tuple[Transcription, Solver]:
    """Parse the transcription and solver that a user passed; append mistakes to `mistakes`.

    Missing parts are those of `default`, or else Collocation() and GaussNewton().
    """
    given_transcription, given_solver = given_parts(transcription, solver, mistakes)
    defaults = (Collocation(), GaussNewton()) if default is None else default
    if given_transcription is None and given_solver is not None:
        mistakes += mismatches(defaults[0], given_solver)
    if given_transcription is not None and given_solver is None and mismatches(given_transcription, defaults[1]):
        return given_transcription, GaussNewton()
    return given_transcription or defaults[0], given_solver or defaults[1]


def given_parts(
    transcription: Any,
    solver: Any,
    mistakes: list[str],
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    also: Iterable[str] = (),
) -> tuple[Transcription | None, Solver | None]:
    """Parse a transcription and solver passed as objects, names or None; append mistakes to `mistakes`.

    "multiple/ipopt" names both.  `settings` are keyword arguments by a transcription's name, and `also` lists further
    valid names for suggestions.
    """
    if isinstance(transcription, str) and "/" in transcription and solver is None:
        transcription, solver = transcription.split("/", 1)
    makers = {name: partial(make, **(settings or {}).get(name, {})) for name, make in TRANSCRIPTIONS.items()}
    remedy = "SingleShooting(), MultipleShooting() or Collocation()"
    chosen_transcription = _part(
        "transcription", transcription, "transcribe", makers, [*makers, *also], remedy, mistakes
    )
    chosen_solver = _part("solver", solver, "solve", SOLVERS, SOLVERS, "GaussNewton(), Ipopt() or Sqp()", mistakes)
    solver_requirement = _solver_requirement(chosen_transcription)
    if chosen_solver is None and solver_requirement is not None:
        return chosen_transcription, solver_requirement.solver()
    mistakes += mismatches(chosen_transcription, chosen_solver)
    return chosen_transcription, chosen_solver


@dataclass(frozen=True)
class SolverRequirement:
    """Requirement of a transcription without Jacobians, which not every solver fulfils.

    description, remedy : clauses of the message: the requirement, and alternatives for other solvers
    solver : creates the default solver for it
    """

    description: str
    remedy: str
    solver: Callable[[], Solver]


# Requirements of transcriptions that do not provide a `Linearization`, by what they provide.
SOLVER_REQUIREMENTS: dict[type, SolverRequirement] = {
    MatchingProducts: SolverRequirement(
        "matching='scalar' gives one vanishing gradient per interval",
        "use Sqp() or Ipopt(), or matching='vector'",
        _sqp,
    ),
    GradientEvaluation: SolverRequirement(
        "derivatives='adjoint' gives the gradient of the cost alone",
        "use Ipopt(), or derivatives='forward'",
        _ipopt,
    ),
}


def _solver_requirement(transcription: Any) -> SolverRequirement | None:
    """Return the requirement of a transcription, or None. A user's transcription need not define `gives`."""
    capabilities = getattr(transcription, "gives", (Linearization,))
    return None if Linearization in capabilities else SOLVER_REQUIREMENTS[capabilities[0]]


def mismatches(transcription: Any, solver: Any) -> list[str]:
    """List the mismatches between the output of a transcription and the input of a solver."""
    requirement = _solver_requirement(transcription)
    if requirement is not None and not set(transcription.gives) & set(getattr(solver, "takes", (Linearization,))):
        return [f"{requirement.description}, which {type(solver).__name__} does not support; {requirement.remedy}"]
    return []


def _part(
    label: str,
    value: Any,
    method: str,
    makers: Mapping[str, Callable[[], _T]],
    suggestions: Iterable[str],
    remedy: str,
    mistakes: list[str],
) -> _T | None:
    if isinstance(value, str):
        name = value.replace("-", "_")
        if name in makers:
            return makers[name]()
        mistakes.append(f"{label} is '{value}': {suggest(name, suggestions)}; or give {remedy}")
    elif value is not None and (isinstance(value, type) or not callable(getattr(value, method, None))):
        mistakes.append(f"{label} is {shorten_repr(value)}; give {remedy}")
    else:
        return cast("_T | None", value)
    return None
