"""Estimation problem: a model, its experiments, and the quantities that are estimated within bounds.

All estimated quantities form one vector theta, in search scale: shared parameters, then per experiment its local
parameters and its free initial states.  A quantity on a logarithmic scale enters theta as its natural logarithm.
`Problem` is what the user says of them; what follows from it is `Problem.posed`, in whose words transcriptions,
solvers and drivers speak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import is_one_of, is_within, read_mapping, read_reals, read_sequence, shorten_repr
from castfit._support.arrays import Array
from castfit._support.public_names import public
from castfit._support.renamed import with_old_names
from castfit._support.status import collect_mistakes, raise_if_mistakes, unknown_names
from castfit._support.views import views
from castfit.densities.noise.correlation import CorrelationEstimates
from castfit.densities.noise.unknown import UnknownSigma
from castfit.densities.priors import Entry, Normal, Priors, read_entries
from castfit.experiment.experiment import Experiment
from castfit.model.model import Model
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem, compose, summarize_problem
from castfit.problem.constraint_compilation import constant_mistakes, held_mistakes
from castfit.problem.constraints import Constraint, read_constraints
from castfit.problem.parameters import (
    Parameter,
    ProblemStatement,
    estimated_inputs,
    initial_values,
    with_knots,
    with_resets,
    with_scales,
)
from castfit.problem.prior_rows import PriorRows
from castfit.problem.prior_terms import entry_mistakes
from castfit.problem.quantities import Quantity, list_quantities
from castfit.problem.validation import (
    UnmeasuredError,
    guess_mistakes,
    local_mistakes,
    name_mistakes,
    reset_mistakes,
    scale_mistakes,
    statement_mistakes,
    support_mistakes,
)

__all__ = ["Constraint", "Normal", "Parameter", "Posable", "Problem"]

_T = TypeVar("_T")


def _forward_to_posed(name: str, doc: str = "") -> Any:
    """Return a property of `Problem` that forwards to the compiled problem."""
    return property(lambda self: getattr(self.posed, name), doc=doc or getattr(CompiledProblem, name).__doc__)


@with_old_names(own_model="original_model", measured_by="with_format_measure")
@public("castfit")
class Problem:
    """An estimation problem.

    Parameters
    ----------
    model : Model
    experiments : Experiment or sequence of Experiment
    parameters : mapping from str to Parameter or float
        One entry for each parameter of the model, unless every experiment has its own value of it, and for each
        quantity that appears in expressions of experiments only; a bare number is a free parameter's guess.
    state_bounds : mapping from str to (lower, upper), optional
        Bounds that a trajectory must respect: at the measured times in shooting, at nodes of multiple shooting besides,
        and at nodes and collocation points (with Radau's the end is one) in collocation.  `cf.along` holds between them
        as well.
    constraints : sequence of relations or Constraint, optional
        What must hold: relations of estimated quantities, ``k1 + k2 <= 1`` or ``k1 == 2 * k3``, of states and outputs
        at times, ``cf.at(10, x >= 0.5)``, or always, ``cf.along(x + y <= 3)``; ``cf.between(0, x, 1)`` has two bounds;
        ``cf.monotone(z)``, ``cf.conserved(x + y)``.  The result says what they cost: `Result.constraints`.
    priors : mapping, `cf.Prior`, `cf.tikhonov`, `cf.lasso`, `multivariate_normal`, or sequence of these, optional
        What is known beforehand: ``{name or expression: prior}`` for a quantity or a CasADi expression of quantities,
        ``{k1 * x0: cf.Normal(2.0, 0.1)}``, and of several quantities together.  A symbol of a local parameter, or of a
        state with an estimated initial value, means the value in every experiment.
    units : mapping from str to str, optional
        What values are measured in, for labels of plots and tables: ``{"time": "min", "x": "mmol/L", "k": "1/min"}``,
        of time, states, outputs, parameters and inputs.  Nothing is converted.

    Raises
    ------
    InputError
        Listing every mistake: unknown names with the nearest valid one, missing guesses, guesses outside their bounds,
        inputs that do not cover the horizon, quantities that no measurement depends on, ...

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    >>> experiment = cf.Experiment({"x": [1.2, 0.8, 0.4]}, time=[1, 2, 3], sigma=0.1)
    >>> cf.Problem(model, experiment, parameters={"k": cf.Parameter(1.0, lower=0)})
    Problem(1 experiment, 3 values of x; estimates k)
    >>> cf.Problem(model, experiment, parameters={"K": 1.0})
    Traceback (most recent call last):
        ...
    castfit.InputError: Problem: 2 mistakes found
      - 'K' is no parameter of the model: did you mean 'k'? (valid: k)
      - parameter 'k' has no guess; add it to parameters={...}
    """

    model: Model = _forward_to_posed(
        "model",
        "The model; where spreads of the noise are computed they are outputs of it, and their parameters its own.",
    )
    outputs: tuple[str, ...] = _forward_to_posed("outputs", "What is measured in any experiment, in the model's order.")
    quantities: tuple[Quantity, ...] = _forward_to_posed(
        "quantities", "The estimated quantities, in the order of theta."
    )
    conditions: tuple[Condition, ...] = _forward_to_posed("conditions", "The experiments, worked out.")
    names: tuple[str, ...] = _forward_to_posed("names")
    n_data: int = _forward_to_posed("n_data")
    absolute_sigma: bool = _forward_to_posed(
        "absolute_sigma", "Whether standard deviations were given, so that they need not be estimated."
    )
    log: NDArray[np.bool_] = _forward_to_posed("log")
    bounds: tuple[Array, Array] = _forward_to_posed("bounds")
    guess: Array = _forward_to_posed("guess")
    observed: ca.SX = _forward_to_posed(
        "observed", "The graph of the measured outputs, (n_outputs, 1), over the model's symbols."
    )
    free_parameters: NDArray[np.intp] = _forward_to_posed("free_parameters")
    varying: frozenset[str] = _forward_to_posed("varying")

    def __init__(
        self,
        model: Model,
        experiments: Experiment | Sequence[Experiment],
        *,
        parameters: Mapping[str, Parameter | float] | None = None,
        state_bounds: Mapping[str, tuple[float, float]] | None = None,
        constraints: Sequence[Any] | Any = (),
        priors: Priors = None,
        units: Mapping[str, str] | None = None,
    ) -> None:
        mistakes: list[str] = []
        experiment_list = _read_items("experiments", experiments, Experiment, mistakes)
        labeled_experiments = [e if e.name else e.called(f"experiment {i + 1}") for i, e in enumerate(experiment_list)]
        self._model = model
        self.experiments: tuple[Experiment, ...] = tuple(labeled_experiments)
        self.parameters: dict[str, Parameter] = {
            n: v if isinstance(v, Parameter) else Parameter(v)
            for n, v in read_mapping("parameters", parameters, mistakes).items()
        }
        self.state_bounds: dict[str, tuple[float, float]] = {
            n: _bounds(n, v, mistakes) for n, v in read_mapping("state_bounds", state_bounds, mistakes).items()
        }
        self.constraints: tuple[Constraint, ...] = read_constraints(constraints, mistakes)
        self.given_priors: tuple[Entry, ...] = read_entries(priors, mistakes)
        self.units: dict[str, str] = read_mapping("units", units, mistakes)
        argument: Any = model
        if not isinstance(argument, Model):
            raise_if_mistakes("Problem", [f"model is {shorten_repr(argument)}; give a Model", *mistakes])
        mistakes += [f"{e.name}: {m}" for e in labeled_experiments for m in reset_mistakes(model, e)]
        mistakes += _unit_mistakes(self.units, model, self.parameters)
        all_parameters, unguessed = with_scales(model, self.experiments, self.parameters)
        all_parameters = with_knots(self.experiments, all_parameters)
        statement = ProblemStatement(
            model,
            tuple(with_resets(model, e) for e in labeled_experiments),
            all_parameters,
            self.state_bounds,
            self.constraints,
            self.given_priors,
            unguessed,
            self.units,
        )
        mistakes += scale_mistakes(model, self.parameters)
        mistakes += local_mistakes(model, self.experiments, self.parameters)
        raise_if_mistakes("Problem", mistakes + statement_mistakes(statement))
        raise_if_mistakes("Problem", entry_mistakes(statement, list_quantities(statement)))
        compiled_problem = compose(statement)
        raise_if_mistakes(
            "Problem", name_mistakes(compiled_problem) or held_mistakes(compiled_problem, self.constraints)
        )
        compiled_problem = compiled_problem.with_valid_constraints(self.constraints)
        unmeasured = support_mistakes(compiled_problem)
        other_mistakes = (
            guess_mistakes(compiled_problem)
            + constant_mistakes(compiled_problem, compiled_problem.guess)
            + compiled_problem.contradictions
        )
        raise_if_mistakes("Problem", [*unmeasured.values(), *other_mistakes] if other_mistakes else [])
        if unmeasured:
            raise UnmeasuredError("Problem", unmeasured)
        self.posed: CompiledProblem = compiled_problem
        """What follows from all this: what transcriptions, solvers and drivers work with."""

    def smoothed(self, weights: Mapping[str, float]) -> Problem:
        """Return the problem with given weights of the roughness of estimated inputs, by name; others stay.

        Raises
        ------
        InputError
            For an unknown name, or a weight that is not positive.
        """
        self.posed.smoothed(weights)  # says what is wrong
        changed = (
            {
                n: replace(u, smoothness=float(weights[u.label(n)]))
                for n, u in inputs_by_name.items()
                if u.label(n) in weights
            }
            for inputs_by_name in map(estimated_inputs, self.experiments)
        )
        pairs = zip(self.experiments, changed, strict=True)
        return self.replace(
            experiments=tuple(e.with_changes(inputs={**e.inputs, **new_inputs}) for e, new_inputs in pairs)
        )

    def with_nodes(self, order: int) -> Problem:
        """Return the problem with so many nodes in each delay line of its model."""
        return self.replace(model=self._model.with_order(order))  # as it was given: what was added is added anew

    @property
    def original_model(self) -> Model:
        """The model as it was given."""
        return self._model

    def initial_values(self, experiment: Experiment) -> dict[str, Any]:
        """Return the value or specification of each initial state: the experiment's own, else the model's."""
        return initial_values(self._model, experiment)

    def to_search(self, natural: Array) -> Array:
        """Convert natural values (n_theta,) to search scale."""
        return self.posed.to_search(natural)

    def to_natural(self, theta: Array) -> Array:
        """Convert theta (n_theta,) to natural values."""
        return self.posed.to_natural(theta)

    def natural_slope(self, theta: Array) -> Array:
        """Return d natural / d theta, (n_theta,)."""
        return self.posed.natural_slope(theta)

    def priors(self, theta: Array) -> PriorRows:
        """Return the rows that all priors add to the cost, with their Jacobian by theta."""
        return self.posed.priors(theta)

    def theta_from(self, values: Mapping[str, float]) -> Array:
        """Return theta with the named quantities at the given natural values, the rest at their guess.

        Raises
        ------
        InputError
            For an unknown name or a value outside its bounds.
        """
        return self.posed.theta_from(values)

    def without_priors(self) -> CompiledProblem:
        """Return the problem of the data alone; bounds stay, those by which a prior excludes values too."""
        return self.posed.without_priors()

    def robust(self, loss: str, f_scale: float = 1.0) -> Problem:
        """Return the problem with a robust loss instead of normal errors, by the names of SciPy's `least_squares`.

        Parameters
        ----------
        loss : {"linear", "huber", "soft_l1", "cauchy"}
            Of every output with normal errors of known or unknown standard deviation; "linear" changes nothing.
        f_scale : float
            Residual, in standard deviations, from which it is no longer quadratic; none with "linear".

        Raises
        ------
        InputError
            For another loss, an `f_scale` that is not positive, or a problem in which no output has normal errors.
        """
        from castfit.densities.noise.models import LOSSES

        if not is_one_of(loss, "linear", *LOSSES):
            raise_if_mistakes(
                "loss", [f"loss is {shorten_repr(loss)}; choose 'linear', {', '.join(map(repr, LOSSES))}"]
            )
        if is_one_of(loss, "linear"):
            of_none = "f_scale is that of a robust loss; give loss='huber' or another, or leave f_scale out"
            raise_if_mistakes("loss", [] if is_within(f_scale, 1.0, 1.0) else [of_none])
            return self
        model = LOSSES[loss](f_scale=f_scale)
        unknown_flags = (isinstance(n.sigma, UnknownSigma) for e in self.experiments for n in e.noise.values())
        has_unknown_sigma = any(e.sigma is None for e in self.experiments) or any(unknown_flags)
        raise_if_mistakes("loss", model.option_mistakes() + (model.spread_mistakes() if has_unknown_sigma else []))
        experiments = tuple(e.robust(model) for e in self.experiments)
        if all(e is original for e, original in zip(experiments, self.experiments, strict=True)):
            raise_if_mistakes("loss", ["no output has normal errors, to be made robust; leave loss out"])
        return self.replace(experiments=experiments)

    def replace(self, **changes: Any) -> Problem:
        """Return the problem with other arguments of its constructor, by name."""
        arguments = self._arguments
        raise_if_mistakes("Problem.replace", unknown_names("unknown argument '{}'", changes, arguments))
        return Problem(**{**arguments, **changes}).with_format_measure(self.posed.format_measure)

    def with_format_measure(self, format_measure: str) -> Problem:
        """Return the problem as read from files of a format that has a number of its own for fits; empty if not."""
        if format_measure == self.posed.format_measure:
            return self
        problem = object.__new__(Problem)  # `copy` would build everything anew
        problem.__dict__ |= self.__dict__
        problem.posed = replace(self.posed, format_measure=format_measure)
        return problem

    @property
    def _arguments(self) -> dict[str, Any]:
        return {
            "model": self._model,
            "experiments": self.experiments,
            "parameters": self.parameters,
            "state_bounds": self.state_bounds,
            "constraints": self.constraints,
            "priors": self.given_priors,
            "units": self.units,
        }

    def _repr_html_(self) -> str:
        return views().reports.card(self)

    def __repr__(self) -> str:
        return summarize_problem("Problem", self.posed)

    def __reduce__(self) -> Any:
        """Pickle by the constructor's arguments; compiled functions are rebuilt."""
        return partial(_rebuild_problem, self.posed.format_measure, **self._arguments), ()


def _rebuild_problem(format_measure: str, **arguments: Any) -> Problem:
    return Problem(**arguments).with_format_measure(format_measure)


Posable: TypeAlias = Problem | CompiledProblem
"""What transcriptions, `fit` and drivers take: what a user said, or what a driver made of it."""


def with_smoothness(problem: Posable, weights: Mapping[str, float]) -> Posable:
    """Return the problem with weights of the roughness of inputs, where these were to be chosen."""
    free_labels = {term.label for term in problem.posed.smoothness_penalties if term.chosen}
    chosen_weights = {n: w for n, w in weights.items() if n in free_labels}
    return problem.smoothed(chosen_weights) if chosen_weights else problem


def with_correlations(problem: Posable, estimates: CorrelationEstimates | None) -> Posable:
    """Return the problem with numbers for how errors depend on each other, where these were to be estimated."""
    if estimates is None or not (estimates.times or estimates.joint or estimates.sigma):
        return problem
    if not {*estimates.joint} <= {*problem.posed.outputs}:  # the fit used combinations of the outputs
        from castfit.problem.response_dependencies import without_dependencies

        problem, _ = without_dependencies(problem)
    return (
        problem.posed.with_errors(estimates) if estimates.sigma is None else problem.posed.with_sigma(estimates.sigma)
    )


def kind_mistakes(problem: Any, *, may_be_fixed: bool = False, may_be_noisy: bool = False) -> list[str]:
    """Describe mistakes that rule out a least-squares search: not a problem, a model with noises, or nothing estimated.

    A fit that only evaluates (`may_be_fixed`) needs nothing free; a result of a model with noises `may_be_noisy`.
    """
    if not isinstance(problem, (Problem, CompiledProblem)):
        return [f"problem is {shorten_repr(problem)}; give a Problem"]
    noises = problem.posed.model.noises
    if noises and not may_be_noisy:
        return [f"the model has noises ({', '.join(noises)}), which only fit(problem) estimates, with the path"]
    if problem.names or may_be_fixed:
        return []
    return ["nothing is estimated: free a parameter (fixed=False) or an initial state (free(guess)), or use simulate"]


def start_mistakes(problem: Any, start: Any) -> list[str]:
    """Describe mistakes in the start values of a search; empty if `problem` is not a problem."""
    if not isinstance(problem, (Problem, CompiledProblem)):
        return []
    messages = collect_mistakes(lambda: problem.posed.theta_from(start))
    return [message if message.startswith("start") else f"start: {message}" for message in messages]


def with_nodes(problem: Posable, order: int) -> Posable | None:
    """Return the problem with `order` nodes in each delay line; None if a compiled problem cannot be recompiled."""
    if isinstance(problem, CompiledProblem):
        return problem.with_order(order)
    return problem.with_nodes(order)


def _unit_mistakes(units: Mapping[str, Any], model: Model, parameters: Mapping[str, Any]) -> list[str]:
    """Find units of what does not exist, and units that are no text."""
    known_names = dict.fromkeys(("time", *model.output_names, *model.parameters, *parameters, *model.inputs))
    unknown_name_mistakes = unknown_names("units names '{}', which is unknown", units, known_names)
    type_mistakes = [
        f"the unit of '{name}' is {shorten_repr(unit)}; give text such as 'mmol/L'"
        for name, unit in units.items()
        if not isinstance(unit, str)
    ]
    return unknown_name_mistakes + type_mistakes


def _read_items(label: str, value: Any, kind: type[_T], mistakes: list[str]) -> list[_T]:
    """Read one or several things of a kind."""
    if isinstance(value, kind):
        return [value]
    entries = read_sequence(value)
    if entries is None:
        mistakes.append(f"{label} is {shorten_repr(value)}; give a list of {kind.__name__}")
        return []
    invalid_entries = [item for item in entries if not isinstance(item, kind)]
    mistakes += [f"{label} contains {shorten_repr(item)}; give {kind.__name__}(...)" for item in invalid_entries]
    return [item for item in entries if isinstance(item, kind)]


def _bounds(name: str, value: Any, mistakes: list[str]) -> tuple[float, float]:
    """Read the bounds of a state."""
    pair = read_reals(value)
    if pair is None or pair.shape != (2,) or not pair[0] <= pair[1]:
        mistakes.append(
            f"state_bounds of '{name}' are {shorten_repr(value)}; give (lower, upper) with lower <= upper, infinite "
            "for none"
        )
        return -np.inf, np.inf
    return float(pair[0]), float(pair[1])
