"""The door to the problem library: benchmarks by name, each with its data and its published answer.

The library is the folder ``problems/``: one readable file per benchmark, small tables beside it.  An installation
carries it as the package ``castfit._problems``; in a checkout it lies beside ``castfit/``.  Every file has a function
``benchmark(**options) -> Benchmark`` and is found by its name.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import casadi as ca
import numpy as np
import scipy
from numpy.typing import ArrayLike

from castfit._support.arguments import shorten_repr
from castfit._support.arrays import Array
from castfit._support.casadi_functions import BufferedFunction
from castfit._support.reprs import add_brief_repr, one_line
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit.model.model import Model
from castfit.problem.problem import Problem

T = TypeVar("T")

_PACKAGE = "castfit._problems"


@add_brief_repr
@dataclass(frozen=True)
class Reference:
    """The answer that a fit should reach.

    Attributes
    ----------
    parameters : mapping from str to float
        Every estimated quantity, free initial states included, natural scale.
    objective : float
        chi2: the sum of squared weighted residuals; the plain sum of squares where sigma is unknown.
    source : str
        Who computed these numbers, and how.
    objective_tolerance : float
        Relative, absolute for an objective of zero; a fit within it has found this optimum.
    parameter_tolerance : float
        Relative to each value; absolute for a value of zero.
    standard_errors : mapping from str to float, optional
        Natural scale, linearised at the optimum; the variance is chi2 / (n - p) where sigma is unknown.  A quantity
        at its bound has none.
    """

    parameters: Mapping[str, float]
    objective: float
    source: str
    objective_tolerance: float = 1e-4
    parameter_tolerance: float = 1e-3
    standard_errors: Mapping[str, float] | None = None

    @classmethod
    def at_truth(cls, truth: Mapping[str, float], residuals: ArrayLike, *, parameter_tolerance: float) -> Reference:
        """Take the parameters behind simulated data as the answer, since the optimum lies close to them.

        A fit lowers chi2 below its value at the truth by a random amount that follows a chi-square distribution with
        as many degrees of freedom as there are parameters; the tolerance is exceeded once in 10,000 draws.

        Parameters
        ----------
        truth : mapping from str to float
        residuals : (n,) array
            Weighted residuals at the truth.
        parameter_tolerance : float
            Relative distance within which the optimum is expected.
        """
        objective = float(np.sum(np.square(residuals)))
        drop = float(scipy.special.chdtri(len(truth), 1e-4))
        source = "the parameters that the data were simulated with; chi2 is taken at them"
        return cls(dict(truth), objective, source, drop / objective, parameter_tolerance)

    def is_reached(self, objective: float) -> bool:
        """Whether chi2 of a fit is as low as this one, within the tolerance."""
        return bool(objective <= self.objective + self.objective_tolerance * (self.objective or 1.0))

    def is_matched(self, parameters: Mapping[str, float]) -> bool:
        """Whether every estimate agrees with this one, within the tolerance."""
        return all(
            abs(parameters[name] - value) <= self.parameter_tolerance * (abs(value) or 1.0)
            for name, value in self.parameters.items()
        )


@add_brief_repr
@dataclass(frozen=True)
class Uniform:
    """Random starts: every quantity uniform between its limits, in the value or (`log`) in its logarithm.

    Parameters
    ----------
    limits : mapping from str to (lower, upper)
    log : bool
    """

    limits: Mapping[str, tuple[float, float]]
    log: bool = False

    def __call__(self, rng: int | np.random.Generator) -> dict[str, float]:
        """Draw one start; `rng` is a seed or a NumPy generator."""
        generator = np.random.default_rng(rng)
        limits: Array = np.array(list(self.limits.values()), dtype=float)
        ends: Array = np.log(limits) if self.log else limits
        draws: Array = generator.uniform(ends[:, 0], ends[:, 1])
        values: Array = np.exp(draws) if self.log else draws
        return dict(zip(self.limits, values.tolist(), strict=True))

    @classmethod
    def around(cls, centre: Mapping[str, float], *, factor: float = 10.0) -> Uniform:
        """Spread the logarithms evenly from ``value / factor`` to ``value * factor``; values must be positive."""
        raise_if_mistakes(
            "Uniform.around", [f"'{n}' is {v:g}; give a positive value" for n, v in centre.items() if not v > 0]
        )
        return cls({name: (value / factor, value * factor) for name, value in centre.items()}, log=True)


@dataclass(frozen=True)
class Benchmark:
    """Problem of the library, with its reference, sources, starts and recommended settings.

    Attributes
    ----------
    name, description : str
    problem : Problem
    reference : Reference
    sources : tuple of str
        Papers and repositories that equations and data come from.
    draw_start : callable
        ``draw_start(rng)`` returns a random start, ``{name: natural value}``.
    starts : mapping from str to start
        Starts with a name; "reference" is the published one, which is also the problem's guess.
    notes : str
        Corrections of printed errors, choices of our own, traps.
    start_strategy : {"data", "simulation"}
        Where the states of multiple shooting and collocation are best started from.
    transcriptions : mapping from {"single", "multiple", "collocation"} to keyword arguments
        Recommended settings, where the defaults do not do.
    population : Population, optional
        How own parameters are distributed, for `castfit.mixed_effects`.
    """

    name: str
    description: str
    problem: Problem
    reference: Reference
    sources: tuple[str, ...]
    draw_start: Callable[[int | np.random.Generator], dict[str, float]]
    starts: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    notes: str = ""
    start_strategy: str = "data"
    transcriptions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    population: Any = None

    def __repr__(self) -> str:
        return one_line(f"Benchmark('{self.name}': {self.description})")

    def __post_init__(self) -> None:
        """Insert the problem's own guess as the first of the named starts."""
        guess = self.problem.to_natural(self.problem.guess).tolist()
        reference_start = dict(zip(self.problem.names, guess, strict=True))
        if dict(self.starts.get("reference", reference_start)) != reference_start:
            raise InputError("Benchmark", ["the start 'reference' is the guess of the problem; rename the other one"])
        object.__setattr__(self, "starts", {"reference": reference_start, **self.starts})


@dataclass(frozen=True)
class ControlBenchmark:
    """A problem of optimal control of the library, with the best value known.

    Attributes
    ----------
    name, description : str
    model : Model
    question : mapping
        The other arguments of `castfit.control`: ``cf.control(b.model, **b.question)``.
    objective : float
        The best value known, of these pieces.
    objective_tolerance : float
        Relative; a plan within it has found this optimum.
    sources : tuple of str
    """

    name: str
    description: str
    model: Model
    question: Mapping[str, Any]
    objective: float
    objective_tolerance: float
    sources: tuple[str, ...]

    def __repr__(self) -> str:
        return one_line(f"ControlBenchmark('{self.name}': {self.description})")

    def is_reached(self, objective: float) -> bool:
        """Whether a plan is as good as the best known one, and no better, within the tolerance."""
        return bool(abs(objective - self.objective) <= self.objective_tolerance * (abs(self.objective) or 1.0))


@dataclass(frozen=True)
class PaperRow:
    """A row of a published table: a method's name there, and its figures in words."""

    method: str
    figures: str


@add_brief_repr
@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper that a problem can repeat; a problem file lists its own in ``TABLES``.

    Attributes
    ----------
    name : str
        Such as "calcium-table1".
    problem : str
        Name of the benchmark.
    starts : int
        How many starts the paper drew.
    paper : tuple of PaperRow
        What the paper reports.
    methods : tuple of str
        The paper's methods and ours, by the names of `castfit._bench` and `castfit.compare`.
    source : str
    cases : tuple of mappings
        Options of the benchmark; with several cases, such as ``{"mu": 5}`` and ``{"mu": 10}``, every method has a row
        in each.  A benchmark whose data are simulated takes ``rng``, so that other noise can be drawn.
    start : str, optional
        Name of the benchmark's start that the paper began from, of a table with a single one; by default starts are
        drawn.
    tolerance : float, optional
        Relative tolerance of a compiled integrator, for problems that are slow otherwise; by default each method has
        its own.
    """

    name: str
    problem: str
    starts: int
    paper: tuple[PaperRow, ...]
    methods: tuple[str, ...]
    source: str
    cases: tuple[Mapping[str, Any], ...] = ({},)
    start: str | None = None
    tolerance: float | None = None


def tables() -> dict[str, PublishedTable]:
    """Return all published tables that problems declare, by name."""
    modules = (importlib.import_module(f"{_PACKAGE}.{name}") for name in names())
    declared: Iterable[PublishedTable] = (table for m in modules for table in getattr(m, "TABLES", ()))
    return {table.name: table for table in declared}


def names() -> tuple[str, ...]:
    """Return the names of all benchmarks, in alphabetical order."""
    module_names = (module.name for module in pkgutil.iter_modules(_library().__path__) if not module.ispkg)
    return tuple(sorted(name for name in module_names if not name.startswith("_")))


def control_names() -> tuple[str, ...]:
    """Return the names of all problems of optimal control, in alphabetical order."""
    _library()
    folder = importlib.import_module(f"{_PACKAGE}.control")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folder.__path__)))


def load_control(name: str) -> ControlBenchmark:
    """Load a problem of optimal control by name.

    Parameters
    ----------
    name : str
        One of `control_names`.

    Raises
    ------
    InputError
        For an unknown name, naming the nearest valid one.
    """
    valid_names = control_names()
    is_unknown = name not in valid_names
    raise_if_mistakes(
        "problems.load_control",
        [f"no problem is named {shorten_repr(name)}: {suggest(str(name), valid_names)}"] if is_unknown else [],
    )
    return importlib.import_module(f"{_PACKAGE}.control.{name}").benchmark()


def load(name: str, **options: Any) -> Benchmark:
    """Load a benchmark by name.

    Parameters
    ----------
    name : str
        One of `names`.
    **options
        What the benchmark's file offers, such as ``mu=20`` for "notorious".

    Raises
    ------
    InputError
        For an unknown name or option, naming the nearest valid one, or a value that the benchmark refuses.
    """
    valid_names = names()
    if not isinstance(cast("Any", name), str):
        raise_if_mistakes(
            "problems.load", [f"name is {shorten_repr(name)}; give the name of a problem, one of problems.names()"]
        )
    raise_if_mistakes(
        "problems.load", [] if name in valid_names else [f"no problem is named '{name}': {suggest(name, valid_names)}"]
    )
    build: Callable[..., Benchmark] = importlib.import_module(f"{_PACKAGE}.{name}").benchmark
    valid_options = inspect.signature(build).parameters
    raise_if_mistakes(
        f"problem '{name}'",
        [f"unknown option '{o}': {suggest(o, valid_options)}" for o in options if o not in valid_options],
    )
    return build(**options)


def read_table(file: str) -> dict[str, Array]:
    """Read a table of the library, a csv file with a line of names, into columns; empty cells become NaN."""
    with resources.files(_library()).joinpath(file).open(encoding="utf-8") as lines:
        table = np.genfromtxt(lines, delimiter=",", names=True)
    return {column: np.array(table[column], dtype=float) for column in table.dtype.names or ()}


def one_of(option: str, value: T, valid: Iterable[T]) -> T:
    """Return an option's value; InputError if it is none of the valid ones."""
    choices = list(valid)
    if value not in choices:
        raise InputError("problems.load", [f"{option} is {value!r}; choose one of {', '.join(map(repr, choices))}"])
    return value


def positive(option: str, value: Any, *, below: float = np.inf) -> float:
    """Return an option's value; InputError if it is not a number between zero and `below`."""
    if isinstance(value, Real) and 0 < float(value) < below:
        return float(value)
    limit = "" if below == np.inf else f" below {below:g}"
    raise InputError("problems.load", [f"{option} is {value!r}; give a positive number{limit}"])


def exact_trajectory(
    model: Model, *, parameters: Mapping[str, float], initial: Mapping[str, float], times: ArrayLike
) -> dict[str, Array]:
    """Solve a model without inputs and algebraic states by SciPy's LSODA to about eight digits.

    Benchmarks with simulated data get their truth here, so that no integrator of castfit judges itself.

    Parameters
    ----------
    model : Model
    parameters, initial : mappings from str to float
        All parameters, and all states at ``times[0]``.
    times : (n,) array

    Returns
    -------
    mapping from state to (n,) array
    """
    argument: Any = model
    raise_if_mistakes(
        "exact_trajectory", [] if isinstance(argument, Model) else [f"model is {shorten_repr(argument)}; give a Model"]
    )
    system = model.system
    p = [parameters[name] for name in model.parameters]
    right = BufferedFunction(system.function("right", ca.densify(system.ode)), ("o0",))
    slope = BufferedFunction(system.function("slope", ca.densify(ca.jacobian(system.ode, system.x))), ("o0",))
    time_array = np.asarray(times, dtype=float)
    from scipy.integrate import solve_ivp  # imported where it is needed: it takes long

    def value(function: BufferedFunction, t: float, x: Array) -> Array:
        function.arguments["t"][...], function.arguments["x"][...] = t, x
        if p:
            function.arguments["p"][...] = p
        function()
        return function.results["o0"].T.copy()

    solution = solve_ivp(
        lambda t, x: value(right, t, x).ravel(),
        (time_array[0], time_array[-1]),
        [initial[name] for name in model.states],
        method="LSODA",
        t_eval=time_array,
        jac=lambda t, x: value(slope, t, x),
        rtol=1e-11,
        atol=1e-13,
    )
    return dict(zip(model.states, solution.y, strict=True))


@cache
def import_sibling(package: str, folder: str) -> ModuleType:
    """Import a package under its installed name, from the folder beside castfit/ if it is not installed."""
    if importlib.util.find_spec(package) is not None:
        return importlib.import_module(package)
    folder_path = Path(__file__).resolve().parents[1] / folder
    spec = importlib.util.spec_from_file_location(
        package, folder_path / "__init__.py", submodule_search_locations=[str(folder_path)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    return module


def _library() -> ModuleType:
    """Import the library under its installed name, from the folder beside castfit/ if it is not installed."""
    return import_sibling(_PACKAGE, "problems")
