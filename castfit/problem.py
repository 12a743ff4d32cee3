"""The question: a model, its experiments, and what is estimated within which bounds.

All estimated quantities form one vector theta, in search scale: shared parameters, then per experiment its local
parameters and its free initial states.  A quantity on a logarithmic scale enters theta as its natural logarithm.

Notation
--------
theta  (n_theta,)  everything that is estimated, in search scale
q      (n_q,)      the entries of theta that one experiment depends on
p      (n_p,)      all parameters of the model, natural scale, fixed ones included
a      (n_x,)      the initial state
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import casadi as ca
import numpy as np

from castfit._mistakes import guess_mistakes, problem_mistakes, support_mistakes
from castfit._reading import items, named, real, reals, text
from castfit.experiment import Experiment, Free, Points, bound_mistakes
from castfit.inputs import Input
from castfit.model import Model, by_name
from castfit.status import check, suggest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Normal:
    """A normal prior on the natural value of a parameter; it adds the residual (value - mean) / deviation."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Parameter:
    """A parameter of the model: its guess, and how it is estimated.

    Parameters
    ----------
    value : float or mapping
        The guess, or the value if fixed.  A local parameter may have one per experiment: ``{"experiment 1": 0.1}``.
    lower, upper : float
        Bounds, natural scale.
    scale : {"linear", "log"}
        Whether the search moves in the value or in its logarithm.
    fixed : bool
        Whether the value is kept.
    local : bool
        Whether every experiment has a value of its own.
    prior : Normal, optional
        Prior knowledge, treated as one more measurement.
    """

    value: float | Mapping[str, float]
    lower: float = -np.inf
    upper: float = np.inf
    scale: str = "linear"
    fixed: bool = False
    local: bool = False
    prior: Normal | None = None


@dataclass(frozen=True, eq=False)
class Constraint:
    """``lower <= expression <= upper`` at every measured time; equal bounds make it an equation.

    The expression is a CasADi SX graph over the model's symbols.
    """

    expression: ca.SX
    lower: float = -np.inf
    upper: float = np.inf
    name: str = ""

    def __reduce__(self) -> Any:
        """Pickle through a CasADi function, since bare SX does not pickle."""
        found = ca.symvar(self.expression)
        graph = ca.Function("constraint", found, [self.expression])
        return _restore_constraint, (graph, tuple(s.name() for s in found), self.lower, self.upper, self.name)


def _restore_constraint(graph: ca.Function, names: Iterable[str], lower: float, upper: float, name: str) -> Constraint:
    return Constraint(ca.SX(graph.call([ca.SX.sym(n) for n in names])[0]), lower, upper, name)


@dataclass(frozen=True)
class Quantity:
    """One entry of theta.

    `kind` is "parameter" or "initial state"; `of` names the parameter or state; `experiment` is None if shared.
    Guess and bounds are in natural scale.
    """

    name: str
    kind: str
    of: str
    experiment: str | None
    guess: float
    lower: float
    upper: float
    scale: str
    prior: Normal | None = None


def natural_value(theta: Array, log: NDArray[np.bool_]) -> Array:
    """Convert search scale to natural values; what is too large for a number becomes infinite."""
    with np.errstate(over="ignore"):
        return np.where(log, np.exp(np.where(log, theta, 0.0)), theta)


@dataclass(frozen=True)
class Natural:
    """Parameters and initial state at a point, natural scale, with derivatives with respect to q.

    p (n_p,), dp (n_p, n_q), a (n_x,), da (n_x, n_q)
    """

    p: Array
    dp: Array
    a: Array
    da: Array


@dataclass(frozen=True)
class Chart:
    """How one experiment's parameters p and initial state a follow from q.

    Each of the model's parameters and each initial state has a constant base value; entry j of q overrides the
    parameter ``parameter_of[j]`` or the initial state ``state_of[j]`` (-1 = does not).  Expressions of the parameters
    are evaluated by `expressions`, a function p -> (values, Jacobian, weighted Hessian), into the rows `computed`.
    """

    base_p: Array
    base_a: Array
    parameter_of: NDArray[np.intp]
    state_of: NDArray[np.intp]
    log: NDArray[np.bool_]
    computed: NDArray[np.intp]
    expressions: ca.Function | None

    def natural(self, q: Array) -> Natural:
        """Evaluate p(q), a(q) and their Jacobians."""
        value = natural_value(q, self.log)
        slope = np.where(self.log, value, 1.0)
        p, a = self.base_p.copy(), self.base_a.copy()
        dp, da = np.zeros((p.size, q.size)), np.zeros((a.size, q.size))
        of_p, of_a = np.flatnonzero(self.parameter_of >= 0), np.flatnonzero(self.state_of >= 0)
        p[self.parameter_of[of_p]] = value[of_p]
        dp[self.parameter_of[of_p], of_p] = slope[of_p]
        a[self.state_of[of_a]] = value[of_a]
        da[self.state_of[of_a], of_a] = slope[of_a]
        if self.expressions is not None:
            values, jacobian, _ = self.expressions(p, np.zeros(self.computed.size))
            a[self.computed] = np.asarray(values).ravel()
            with np.errstate(invalid="ignore"):  # where an expression cannot be computed
                da[self.computed] = np.asarray(jacobian) @ dp
        return Natural(p, dp, a, da)

    @property
    def given(self) -> NDArray[np.bool_]:
        """Which initial states are plain numbers, (n_x,)."""
        given = np.ones(self.base_a.size, dtype=np.bool_)
        given[self.state_of[self.state_of >= 0]] = False
        given[self.computed] = False
        return given

    def curvature(self, q: Array, weight_p: Array, weight_a: Array) -> Array:
        """Return sum_i weight_p[i] d2 p_i/dq2 + sum_i weight_a[i] d2 a_i/dq2, (n_q, n_q)."""
        second = np.where(self.log, natural_value(q, self.log), 0.0)
        out = np.zeros((q.size, q.size))
        total_p = weight_p
        if self.expressions is not None:
            at = self.natural(q)
            _, jacobian, hessian = self.expressions(at.p, weight_a[self.computed])
            total_p = weight_p + np.asarray(jacobian).T @ weight_a[self.computed]
            out += at.dp.T @ np.asarray(hessian) @ at.dp
        gain = np.where(self.parameter_of >= 0, total_p[self.parameter_of] if total_p.size else 0.0, 0.0)
        gain += np.where(self.state_of >= 0, weight_a[self.state_of], 0.0)
        out[np.diag_indices(q.size)] += gain * second
        return out


@dataclass(frozen=True)
class Condition:
    """One experiment, compiled: what transcriptions need of it.

    Attributes
    ----------
    name : str
    start : float
    points : Points
        Measurements with one column for each of ``Problem.outputs``.
    inputs : tuple of Input
        In the model's order.
    theta : (n_q,) int array
        Positions in theta of what this experiment depends on.
    chart : Chart
        How p and a follow from q = theta[self.theta].
    z_guess : (n_z,) array
        Where the search for consistent algebraic states begins.
    """

    name: str
    start: float
    points: Points
    inputs: tuple[Input, ...]
    theta: NDArray[np.intp]
    chart: Chart
    z_guess: Array

    @property
    def end(self) -> float:
        """The last measured time."""
        return float(self.points.times[-1])

    @cached_property
    def breakpoints(self) -> Array:
        """Times strictly inside the horizon at which an input or one of its derivatives may jump."""
        found = [u.breakpoints for u in self.inputs]
        every = np.unique(np.concatenate(found)) if found else np.empty(0)
        return every[(every > self.start) & (every < self.end)]


class Problem:
    """An estimation problem.

    Parameters
    ----------
    model : Model
    experiments : Experiment or sequence of Experiment
    parameters : mapping from str to Parameter or float
        One entry for each parameter of the model; a bare number is a free parameter's guess.
    state_bounds : mapping from str to (lower, upper), optional
        Bounds that a trajectory must respect: at every node in multiple shooting and collocation, at the measured
        times in single shooting.
    constraints : sequence of Constraint, optional

    Raises
    ------
    InputError
        Listing every mistake: unknown names with the nearest valid one, missing guesses, guesses outside their bounds,
        inputs that do not cover the horizon, quantities that no measurement depends on, ...
    """

    def __init__(
        self,
        model: Model,
        experiments: Experiment | Sequence[Experiment],
        *,
        parameters: Mapping[str, Parameter | float] | None = None,
        state_bounds: Mapping[str, tuple[float, float]] | None = None,
        constraints: Sequence[Constraint] = (),
    ) -> None:
        mistakes: list[str] = []
        given = _items("experiments", experiments, Experiment, mistakes)
        labelled = [e if e.name else replace_name(e, f"experiment {i + 1}") for i, e in enumerate(given)]
        self.model = model
        self.experiments: tuple[Experiment, ...] = tuple(labelled)
        self.parameters: dict[str, Parameter] = {
            n: v if isinstance(v, Parameter) else Parameter(v)
            for n, v in named("parameters", parameters, mistakes).items()
        }
        self.state_bounds: dict[str, tuple[float, float]] = {
            n: _bounds(n, v, mistakes) for n, v in named("state_bounds", state_bounds, mistakes).items()
        }
        self.constraints: tuple[Constraint, ...] = tuple(
            replace(c, name=c.name or f"constraint {i + 1}")
            for i, c in enumerate(_items("constraints", constraints, Constraint, mistakes))
        )
        chosen: Any = model
        if not isinstance(chosen, Model):
            check("Problem", [f"model is {text(chosen)}; give a Model", *mistakes])
        check("Problem", mistakes + problem_mistakes(self))

        measured = {name for e in labelled for name in e.measured}
        self.outputs: tuple[str, ...] = tuple(n for n in model.output_names if n in measured)
        self.quantities: tuple[Quantity, ...] = tuple(_quantities(self))
        self.conditions: tuple[Condition, ...] = tuple(_condition(self, e) for e in labelled)
        check("Problem", support_mistakes(self) + guess_mistakes(self))

    def initial_values(self, experiment: Experiment) -> dict[str, Any]:
        """Return what is known of each initial state: the experiment's own, else the model's."""
        general = {n: float(v) if v.is_constant() else v for n, v in self.model.initial.items()}
        return {**general, **experiment.initial}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the estimated quantities, in the order of theta."""
        return tuple(quantity.name for quantity in self.quantities)

    @property
    def n_data(self) -> int:
        """Number of measured values."""
        return sum(int(condition.points.mask.sum()) for condition in self.conditions)

    @property
    def absolute_sigma(self) -> bool:
        """Whether standard deviations were given, so that they need not be estimated."""
        return self.experiments[0].sigma is not None

    @cached_property
    def log(self) -> NDArray[np.bool_]:
        """Which entries of theta are logarithms, (n_theta,)."""
        return np.array([quantity.scale == "log" for quantity in self.quantities], dtype=bool)

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of theta, each (n_theta,)."""
        lower = np.array([quantity.lower for quantity in self.quantities], dtype=float)
        upper = np.array([quantity.upper for quantity in self.quantities], dtype=float)
        return self.to_search(np.where(self.log, np.maximum(lower, 0.0), lower)), self.to_search(upper)

    @cached_property
    def guess(self) -> Array:
        """The starting theta, (n_theta,), locked."""
        guess = self.to_search(np.array([quantity.guess for quantity in self.quantities], dtype=float))
        guess.flags.writeable = False
        return guess

    def to_search(self, natural: Array) -> Array:
        """Convert natural values (n_theta,) to search scale."""
        with np.errstate(divide="ignore"):
            return np.where(self.log, np.log(np.where(self.log, natural, 1.0)), natural)

    def to_natural(self, theta: Array) -> Array:
        """Convert theta (n_theta,) to natural values."""
        return natural_value(theta, self.log)

    def natural_slope(self, theta: Array) -> Array:
        """Return d natural / d theta, (n_theta,)."""
        return np.where(self.log, self.to_natural(theta), 1.0)

    def priors(self, theta: Array) -> tuple[Array, Array]:
        """Return the prior's residuals (n_prior,) and their Jacobian (n_prior, n_theta)."""
        held = [(j, quantity.prior) for j, quantity in enumerate(self.quantities) if quantity.prior is not None]
        value, slope = self.to_natural(theta), self.natural_slope(theta)
        jacobian = np.zeros((len(held), theta.size))
        residuals = np.zeros(len(held))
        for i, (j, prior) in enumerate(held):
            residuals[i] = (value[j] - prior.mean) / prior.deviation
            jacobian[i, j] = slope[j] / prior.deviation
        return residuals, jacobian

    @cached_property
    def observed(self) -> ca.SX:
        """The graph of the measured outputs, (n_outputs, 1), over the model's symbols."""
        return ca.densify(ca.vertcat(*(self.model.outputs[n] for n in self.outputs)))

    @cached_property
    def free_parameters(self) -> NDArray[np.intp]:
        """Positions in p of the parameters that are estimated in any experiment."""
        return np.unique(np.concatenate([c.chart.parameter_of[c.chart.parameter_of >= 0] for c in self.conditions]))

    def theta_from(self, values: Mapping[str, float]) -> Array:
        """Return theta with the named quantities at the given natural values, the rest at their guess.

        Raises
        ------
        InputError
            For an unknown name or a value outside its bounds.
        """
        mistakes: list[str] = []
        theta, (lower, upper) = self.guess.copy(), self.bounds
        for name, value in named("start", values, mistakes).items():
            if name not in self.names:
                mistakes.append(f"'{name}' is not estimated: {suggest(name, self.names)}")
                continue
            j = self.names.index(name)
            q, number = self.quantities[j], real(value)
            if number is not None and np.isfinite(number) and (q.scale != "log" or number > 0):
                # A result at a bound of a logarithm comes back with a rounding error.
                search = np.log(number) if q.scale == "log" else number
                theta[j] = np.clip(search, lower[j], upper[j])
                if abs(theta[j] - search) <= 1e-12 * max(1.0, abs(search)):
                    continue
            mistakes += bound_mistakes(f"start of '{name}'", value, q.lower, q.upper, q.scale)
        check("start", mistakes)
        return theta

    def replace(self, **changes: Any) -> Problem:
        """Return the problem with other `model`, `experiments`, `parameters`, `state_bounds` or `constraints`."""
        same: dict[str, Any] = {
            "model": self.model,
            "experiments": self.experiments,
            "parameters": self.parameters,
            "state_bounds": self.state_bounds,
            "constraints": self.constraints,
        }
        unknown = [f"unknown argument '{n}': {suggest(n, same)}" for n in changes if n not in same]
        check("Problem.replace", unknown)
        return Problem(**{**same, **changes})

    def __repr__(self) -> str:
        return (
            f"Problem({len(self.experiments)} experiment(s), {self.n_data} values of {', '.join(self.outputs)}; "
            f"estimates {', '.join(self.names)})"
        )

    def __reduce__(self) -> Any:
        """Pickle by the constructor's arguments; compiled functions are rebuilt."""
        arguments = (self.model, self.experiments, self.parameters, self.state_bounds, self.constraints)
        return _restore_problem, arguments


def _restore_problem(model: Model, experiments: Any, parameters: Any, state_bounds: Any, constraints: Any) -> Problem:
    return Problem(model, experiments, parameters=parameters, state_bounds=state_bounds, constraints=constraints)


def replace_name(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment under another name."""
    return Experiment(
        experiment.data,
        sigma=experiment.sigma,
        initial=experiment.initial,
        inputs=experiment.inputs,
        start=experiment.start,
        name=name,
    )


def _items(what: str, given: Any, kind: type[_T], mistakes: list[str]) -> list[_T]:
    """Read one or several things of a kind."""
    if isinstance(given, kind):
        return [given]
    every = items(given)
    if every is None:
        mistakes.append(f"{what} is {text(given)}; give a list of {kind.__name__}")
        return []
    wrong = [item for item in every if not isinstance(item, kind)]
    mistakes += [f"{what} contains {text(item)}; give {kind.__name__}(...)" for item in wrong]
    return [item for item in every if isinstance(item, kind)]


def _bounds(name: str, given: Any, mistakes: list[str]) -> tuple[float, float]:
    """Read the bounds of a state."""
    pair = reals(given)
    if pair is None or pair.shape != (2,) or not pair[0] <= pair[1]:
        mistakes.append(
            f"state_bounds of '{name}' are {text(given)}; give (lower, upper) with lower <= upper, infinite for none"
        )
        return -np.inf, np.inf
    return float(pair[0]), float(pair[1])


def _quantities(problem: Problem) -> Iterable[Quantity]:
    several = len(problem.experiments) > 1
    for name in problem.model.parameters:
        p = problem.parameters[name]
        if not p.fixed and not p.local:
            assert not isinstance(p.value, Mapping)
            yield Quantity(name, "parameter", name, None, float(p.value), p.lower, p.upper, p.scale, p.prior)
    for e in problem.experiments:
        suffix = f"[{e.name}]" if several else ""
        for name in problem.model.parameters:
            p = problem.parameters[name]
            if p.local and not p.fixed:
                value = p.value[e.name] if isinstance(p.value, Mapping) else p.value
                yield Quantity(
                    f"{name}{suffix}", "parameter", name, e.name, float(value), p.lower, p.upper, p.scale, p.prior
                )
        for name, value in problem.initial_values(e).items():
            if isinstance(value, Free):
                yield Quantity(
                    f"{name}({e.start:g}){suffix}",
                    "initial state",
                    name,
                    e.name,
                    value.guess,
                    value.lower,
                    value.upper,
                    value.scale,
                )


def _condition(problem: Problem, experiment: Experiment) -> Condition:
    model, quantities = problem.model, problem.quantities
    own = [j for j, quantity in enumerate(quantities) if quantity.experiment in (None, experiment.name)]
    chosen = [quantities[j] for j in own]
    base_p = np.zeros(len(model.parameters))
    for i, name in enumerate(model.parameters):
        value = problem.parameters[name].value
        base_p[i] = value[experiment.name] if isinstance(value, Mapping) else value
    initial = problem.initial_values(experiment)
    graphs = {n: v for n, v in initial.items() if isinstance(v, ca.SX)}
    base_a = np.array([0.0 if isinstance(initial[n], (ca.SX, Free)) else float(initial[n]) for n in model.states])
    chart = Chart(
        base_p,
        base_a,
        np.array([model.parameters.index(c.of) if c.kind == "parameter" else -1 for c in chosen], dtype=np.intp),
        np.array([model.states.index(c.of) if c.kind == "initial state" else -1 for c in chosen], dtype=np.intp),
        np.array([c.scale == "log" for c in chosen], dtype=bool),
        np.array([model.states.index(n) for n in graphs], dtype=np.intp),
        _expression_function(list(graphs.values()), model) if graphs else None,
    )
    return Condition(
        experiment.name,
        experiment.start,
        experiment.points(problem.outputs),
        tuple(experiment.inputs[n] for n in model.inputs),
        np.array(own, dtype=np.intp),
        chart,
        np.array([float(initial.get(n, 1.0)) for n in model.algebraic_states]),
    )


def _expression_function(graphs: Sequence[ca.SX], model: Model) -> ca.Function:
    p = model.system.p
    values = ca.densify(ca.vertcat(*(by_name(g, model) for g in graphs)))
    weight = ca.SX.sym("weight", len(graphs))
    hessian, _ = ca.hessian(ca.dot(weight, values), p)
    return ca.Function("initial", [p, weight], [values, ca.densify(ca.jacobian(values, p)), ca.densify(hessian)])
