"""`steady_state`: where a model comes to rest, or that an experiment begins there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import read_mapping, read_real, shorten_repr
from castfit._support.arrays import Array
from castfit._support.blas_threads import one_blas_thread
from castfit._support.public_names import public
from castfit._support.status import CastfitError, raise_if_mistakes
from castfit._support.text_tables import align_columns
from castfit._support.time_limit import interruptible
from castfit.experiment.experiment import Free, SteadyStart, as_input, read_local_parameter
from castfit.experiment.inputs import Input
from castfit.experiment.steady import SteadyStateSolver
from castfit.model.model import Model
from castfit.simulate.simulate import read_model


@public("castfit")
class SteadyStateError(CastfitError):
    """No steady state exists or was found; the message describes the behaviour of the model.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: 1.0 + 0 * k}, parameters=[k], initial={x: 2.0})
    >>> try:
    ...     cf.steady_state(model, {"k": 4.0})
    ... except cf.SteadyStateError as error:
    ...     print(str(error)[:26])
    No steady state was found:
    """


@public("castfit")
@dataclass(frozen=True, eq=False)
class SteadyState:
    """Steady state of a model.

    Attributes
    ----------
    states : dict from name to float
        Of differential and algebraic states.
    outputs : dict from name to float
        Of everything that can be measured.
    jacobian : (n_states, n_parameters) array
        Derivatives of the states, in the order of `states`, by the model's parameters.
    by_initial : (n_states, n_x) array
        Derivatives by the initial differential states: what is conserved depends on them.
    conserved : dict from sum to float
        The sums that the model conserves, such as ``"E + ES"``, and their values.
    eigenvalues : (n_x,) complex array
        Of the Jacobian along the states there, by increasing real part; one zero for every conserved sum.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: 1.0 - k * x}, parameters=[k], initial={x: 2.0})
    >>> rest = cf.steady_state(model, {"k": 4.0})
    >>> rest.states, rest.jacobian.round(4)
    ({'x': 0.25}, array([[-0.0625]]))
    """

    states: dict[str, float]
    outputs: dict[str, float]
    jacobian: Array
    by_initial: Array
    conserved: dict[str, float]
    eigenvalues: NDArray[np.complex128]

    @property
    def time_constant(self) -> float:
        """Time in which the slowest deviation decays to 1 / e of its size."""
        decaying = -self.eigenvalues.real[: len(self.eigenvalues) - len(self.conserved)]
        return float(1.0 / decaying.min()) if decaying.size else np.inf

    def __str__(self) -> str:
        rows = [["state", "at rest"], *([name, f"{value:.6g}"] for name, value in self.states.items())]
        sums = [f"conserved: {name} = {value:.6g}" for name, value in self.conserved.items()]
        return "\n".join([*align_columns(rows, "<>"), *sums, f"slowest time constant {self.time_constant:.3g}"])


@overload
def steady_state(
    model: Model,
    parameters: Mapping[str, float] | None = None,
    *,
    initial: Mapping[Any, Any] | None = None,
    inputs: Mapping[str, Input | float] | None = None,
) -> SteadyState: ...
@overload
def steady_state(
    model: None = None,
    parameters: Mapping[Any, Any] | None = None,
    *,
    initial: Mapping[Any, Any] | None = None,
    inputs: Mapping[str, Input | float] | None = None,
    replace: Mapping[Any, Any] | None = None,
) -> SteadyStart: ...
@interruptible
@one_blas_thread
def steady_state(
    model: Model | None = None,
    parameters: Mapping[Any, Any] | None = None,
    *,
    initial: Mapping[Any, Any] | None = None,
    inputs: Mapping[str, Input | float] | None = None,
    replace: Mapping[Any, Any] | None = None,
) -> SteadyState | SteadyStart:
    """Compute the steady state of a model; or, without a model, declare that an experiment begins at steady state.

    The model is integrated from its initial state until Newton's method takes over.  Sums of states that it conserves,
    such as all of an enzyme, are found and kept at their initial values.  A steady state counts only if it is stable
    and integration had come near it.  Derivatives follow from the implicit function theorem.

    Parameters
    ----------
    model : Model, optional
        Without it, the answer is for ``Experiment(initial=cf.steady_state(...))``.
    parameters : mapping from str to float
        With a model, values of all its parameters.  For an experiment, values (or expressions of parameters) that
        differ from the experiment's before it; all others are the experiment's own.
    initial : mapping from state to number or expression of parameters, optional
        From where the model comes to rest; by default the model's initial values.
    inputs : mapping from input to number, optional
        Constant inputs.  For an experiment those before it; an input that is left out stands at its value at the start.
    replace : mapping from state to number, expression or `free`, optional
        Only for an experiment: initial states that differ from the steady state, such as a dose.

    Returns
    -------
    SteadyState, or SteadyStart for an experiment

    Raises
    ------
    InputError
        Listing every mistake: names, values, inputs that change in time, a model that contains the time.
    SteadyStateError
        If there is none: the model grows, oscillates, settles too slowly, or its rest depends on more than what is
        given.  In a fit, the point counts as one that cannot be evaluated, with the same reason.

    Examples
    --------
    >>> import castfit as cf
    >>> x, u, k, d = cf.symbols("x u k d")
    >>> model = cf.Model({x: k * u - d * x}, parameters=[k, d], inputs=[u])
    >>> rest = cf.steady_state(model, {"k": 0.3, "d": 0.1}, inputs={"u": 2.0}, initial={"x": 0.0})
    >>> round(rest.states["x"], 6)
    6.0
    >>> cf.Experiment({"x": [0.5, 1.0]}, time=[1, 5], initial=cf.steady_state(inputs={"u": 0}), inputs={"u": 1})
    Experiment(2 values of x, times 1 to 5)
    """
    mistakes: list[str] = []
    if model is None:
        return _read_conditions_before(parameters, initial, inputs, replace, mistakes)
    candidate: Any = model
    if not isinstance(candidate, Model):
        raise_if_mistakes(
            "steady_state",
            [f"model is {shorten_repr(candidate)}; expected a Model; pass other arguments by name (inputs=...)"],
        )
    if replace is not None:
        mistakes.append("replace has an effect only for experiments that start at steady state; remove it")
    system = model.system
    if ca.depends_on(ca.vertcat(system.ode, system.alg), system.t):
        mistakes.append("the model has no steady state, because its equations depend on time")
    mistakes += _moving(inputs)
    signals, p, a, z = read_model("steady_state", model, parameters, initial, inputs, 0.0, mistakes)
    u = np.array([float(signal(0.0)) for signal in signals])
    solver = SteadyStateSolver.from_system(model.settling, u, z, p, a, np.ones(p.size, dtype=bool))
    solution = solver.solve(p, a)
    if not solution.ok:
        raise SteadyStateError(f"No steady state was found: {solution.reason}.")
    n_p, n_x = p.size, a.size
    dp, da = np.eye(n_p, n_p + n_x), np.eye(n_x, n_p + n_x, n_p)
    slopes = solver.slopes(solution, p, dp, da)
    state_indices = [i for i, n in enumerate((*model.states, *model.algebraic_states)) if n in model.outputs]
    names = [n for n in (*model.states, *model.algebraic_states) if n in model.outputs]
    observe = system.function("outputs", ca.densify(ca.vertcat(*model.outputs.values())))
    values: Any = observe(0.0, solution.w[:n_x], solution.w[n_x:], p, u)
    sums = solver.laws.describe(model.states)
    totals = solver.laws.coefficients @ a
    return SteadyState(
        dict(zip(names, solution.w[state_indices].tolist(), strict=True)),
        dict(zip(model.output_names, np.asarray(values, dtype=float).ravel().tolist(), strict=True)),
        slopes[state_indices][:, :n_p],
        slopes[state_indices][:, n_p:],
        dict(zip(sums, totals.tolist(), strict=True)),
        solution.eigenvalues[np.argsort(solution.eigenvalues.real)],
    )


def _read_conditions_before(
    parameters: Any, initial: Any, inputs: Any, replace: Any, mistakes: list[str]
) -> SteadyStart:
    """Read the values given for the time before an experiment."""
    signals = {n: as_input(n, u, mistakes) for n, u in read_mapping("inputs", inputs, mistakes).items()}
    parameter_values = {
        n: read_local_parameter(n, v, mistakes) for n, v in read_mapping("parameters", parameters, mistakes).items()
    }
    states: dict[str, Any] = {}
    for name, value in read_mapping("initial", initial, mistakes).items():
        number = read_real(value)
        if isinstance(value, Free):
            mistakes.append(
                f"initial state '{name}' is free; pass a parameter instead, and set its guess in the problem's "
                "parameters"
            )
        elif isinstance(value, ca.SX) and value.numel() == 1:
            states[name] = float(value) if value.is_constant() else value
        elif number is not None and np.isfinite(number):
            states[name] = number
        else:
            mistakes.append(
                f"initial state '{name}' is {shorten_repr(value)}; expected a finite number or a scalar SX expression"
            )
    mistakes += _moving(inputs)
    replacements = read_mapping("replace", replace, mistakes)
    raise_if_mistakes("steady_state", mistakes)
    return SteadyStart(signals, parameter_values, states, replacements)


def _moving(inputs: Any) -> list[str]:
    """Find inputs that change in time."""
    return [
        f"input '{n}' changes in time; pass its constant value at steady state"
        for n, u in read_mapping("inputs", inputs, []).items()
        if getattr(u, "kind", "constant") != "constant"
    ]
