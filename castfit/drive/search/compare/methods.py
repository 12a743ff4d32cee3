"""Methods that can be compared: ways from a start to an answer, by name or as the user's own function.

transcription                          single, multiple, collocation; solved by Gauss-Newton
transcription/solver                   multiple/ipopt, single/box
driver, driver/transcription/solver    incremental, incremental/multiple, incremental/collocation/ipopt
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast

from castfit._support.arguments import read_mapping, read_sequence, shorten_repr
from castfit.drive.run.run_result import FitAnswer
from castfit.drive.search.incremental.incremental import incremental
from castfit.drive.search.incremental.result import IncrementalResult
from castfit.drive.search.scatter.result import ScatterResult
from castfit.drive.search.scatter.scatter_search import scatter_search
from castfit.fit.fit import plain_fit as fit
from castfit.fit.methods import Solver, Transcription, given_parts
from castfit.problem.problem import Posable
from castfit.result.result import Result
from castfit.solve.gauss_newton import GaussNewton
from castfit.transcribe.single_shooting import SingleShooting


class Method(Protocol):
    """Method that is compared: from a start to an answer; plain data, which can be pickled for other processes."""

    @property
    def description(self) -> str:
        """Description of the method in words, for tables."""
        ...

    def __call__(self, problem: Posable, *, start: Mapping[str, float], max_time: float, seed: int) -> Any:
        """Solve from a start within max_time seconds; the answer is for `castfit.drive.run.loop.read_answer`.

        Random numbers of a method depend on `seed`, which differs from start to start.
        """
        ...


@dataclass(frozen=True)
class DriverCall:
    """Call of a driver: its parts (None for its defaults), and its description `words` for tables."""

    transcription: Transcription | None = None
    solver: Solver | None = None
    words: str = ""
    title: ClassVar[tuple[str, ...]] = ()

    @property
    def description(self) -> str:
        """Description of the method in words."""
        parts = (part.label for part in (self.transcription, self.solver) if part is not None)
        return self.words or ", ".join([*self.title, *parts])


@dataclass(frozen=True)
class FitMethod(DriverCall):
    """One call of `fit`; if `second_start`, it may continue from the measured states."""

    solver: Solver | None = field(default_factory=GaussNewton)
    second_start: bool = True

    def __call__(self, problem: Posable, *, start: Mapping[str, float], max_time: float, seed: int) -> Result:
        """Fit from a start."""
        return fit(
            problem,
            self.transcription,
            self.solver,
            start=start,
            second_start=self.second_start,
            retry=False,
            max_time=max_time,
        )


@dataclass(frozen=True)
class Incremental(DriverCall):
    """Incremental fits with a transcription; `plain` leaves out extensions of the published method."""

    transcription: Transcription | None = field(default_factory=SingleShooting)
    is_original: bool = False
    title = ("growing horizons",)

    def __call__(
        self, problem: Posable, *, start: Mapping[str, float], max_time: float, seed: int
    ) -> IncrementalResult:
        """Fit from a start on growing horizons."""
        extras = not self.is_original
        return incremental(
            problem, self.transcription, self.solver, start=start, max_time=max_time, coarse=extras, fallback=extras
        )


@dataclass(frozen=True)
class ScatterSearch(DriverCall):
    """Scatter search within the bounds, which must be finite; the start is among its first points."""

    title = ("scatter search",)

    def __call__(
        self, problem: Posable, *, start: Mapping[str, float], max_time: float, seed: int
    ) -> FitAnswer | ScatterResult:
        """Search; its generations count as iterations."""
        compiled = problem.posed.starting_at(start)
        result = scatter_search(compiled, self.transcription, self.solver, rng=seed, max_time=max_time)
        if result.best is None:
            return result
        evaluations = {
            "values": result.simulations - result.n_sensitivity_evaluations,
            "jacobians": result.n_sensitivity_evaluations,
        }
        return FitAnswer(result.best, result.generations, evaluations)


@dataclass(frozen=True)
class CustomMethod:
    """The user's own function, called as ``function(problem, start=..., max_time=...)``."""

    function: Callable[..., Any]

    @property
    def description(self) -> str:
        """Name of the function, or of its type if it has none."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, problem: Posable, *, start: Mapping[str, float], max_time: float, seed: int) -> Any:
        """Answer from a start."""
        return self.function(problem, start=start, max_time=max_time)


DRIVERS: dict[str, Callable[..., Method]] = {"incremental": Incremental, "scatter_search": ScatterSearch}


def methods_from(
    methods: Any,
    mistakes: list[str],
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    also: Mapping[str, Method] | None = None,
) -> dict[str, Method]:
    """Read methods as users give them, and append any errors to `mistakes`.

    methods : names as above; the values of a mapping are such names, transcriptions, pairs (transcription, solver), or
        functions that are called as ``function(problem, start=..., max_time=...)``
    settings : keyword arguments that a transcription is made with, by its short name
    also : methods with names of their own, which come before those of the grammar
    """
    listed = read_sequence(methods)
    if isinstance(methods, Mapping):
        entries = read_mapping("methods", methods, mistakes)
    elif listed is None:
        mistakes.append(
            f"methods is {shorten_repr(methods)}; expected a list of names, or a mapping from names to methods"
        )
        return {}
    else:
        mistakes += [f"methods holds {shorten_repr(m)}; give names, or a mapping from names to methods" for m in listed
                     if not isinstance(m, str)]  # fmt: skip
        names = [m for m in listed if isinstance(m, str)]
        mistakes += [f"methods holds '{m}' twice" for m in dict.fromkeys(names) if names.count(m) > 1]
        entries = {m: m for m in names}
    if not entries and not mistakes:
        mistakes.append("methods is empty; pass at least one")
    methods_by_name = {
        name: _method(name, entry, mistakes, settings or {}, also or {}) for name, entry in entries.items()
    }
    return {name: method for name, method in methods_by_name.items() if method is not None}


def _method(
    name: str,
    entry: Any,
    mistakes: list[str],
    settings: Mapping[str, Mapping[str, Any]],
    also: Mapping[str, Method],
) -> Method | None:
    if isinstance(entry, str):
        return also[entry] if entry in also else _parse_method(name, entry, mistakes, settings, also)
    if callable(entry) and not isinstance(entry, type):
        return cast("Method", entry) if hasattr(entry, "description") else CustomMethod(entry)
    pair: tuple[Any, ...] = cast("tuple[Any, ...]", entry) if isinstance(entry, tuple) else (entry, None)
    pair_mistakes: list[str] = []
    if len(pair) == 2 and pair[0] is not None:
        parts = given_parts(*pair, pair_mistakes)
        if not pair_mistakes:
            return _build_method(FitMethod, parts)
        if None not in parts:  # both are what they should be, but do not go together
            mistakes += [f"the method '{name}': {mistake}" for mistake in pair_mistakes]
            return None
    expected_text = "a name, a transcription, (transcription, solver), or a function of a problem, start= and max_time="
    mistakes.append(f"the method '{name}' is {shorten_repr(entry)}; give {expected_text}")
    return None


def _parse_method(
    name: str, spec: str, mistakes: list[str], settings: Mapping[str, Mapping[str, Any]], also: Iterable[str]
) -> Method | None:
    """Make a method from what it is made of, in words."""
    driver_name, separator, parts_text = spec.replace("-", "_").partition("/")
    driver = DRIVERS.get(driver_name)
    part_mistakes: list[str] = []
    if driver is None:
        parts = given_parts(spec, None, part_mistakes, settings=settings, also=(*also, *DRIVERS))
    else:
        parts = given_parts(parts_text if separator else None, None, part_mistakes, settings=settings)
    mistakes += [f"the method '{name}': {mistake}" for mistake in part_mistakes]
    return None if part_mistakes else _build_method(driver or FitMethod, parts)


def _build_method(driver: Callable[..., Method], parts: Iterable[Any]) -> Method:
    return driver(*(part for part in parts if part is not None))
