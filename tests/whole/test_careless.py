"""Whatever a careless user passes, what comes back is an object or one InputError in words, never anything else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import casadi as ca
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castfit._support.status import InputError
from castfit.densities.noise.unknown import unknown
from castfit.experiment.experiment import Experiment, free, relative
from castfit.experiment.inputs import Input
from castfit.fit.fit import fit
from castfit.integrate import IntegratorOptions
from castfit.model.model import Model, symbols
from castfit.problem.problem import Constraint, Normal, Parameter, Problem
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.ipopt import Ipopt
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting
from tests.builders import decay_model, decay_problem
from tests.junk import junk, symbols_to_junk


def survives(build: Callable[[], Any]) -> Any:
    """Build; an InputError must say something in every line."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return build()
        except InputError as error:
            messages = error.problems
    assert messages
    assert all(problem.strip() and "\n" not in problem for problem in messages)
    return None


def some(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw junk for one to three of the named arguments."""
    return st.dictionaries(st.sampled_from(names), junk, min_size=1, max_size=3)


MANY = settings(max_examples=25, suppress_health_check=list(HealthCheck))


@MANY
@given(arguments=some(["ode", "algebraic", "parameters", "inputs", "outputs", "time", "initial"]), ode=symbols_to_junk)
def test_model(arguments, ode):
    x, k = symbols("x k")
    good = {"ode": {x: -k * x}, "parameters": [k]}
    survives(lambda: Model(**{**good, **arguments}))
    survives(lambda: Model(ode, algebraic=ode))


@MANY
@given(dae=st.dictionaries(st.sampled_from(["x", "ode", "z", "alg", "p", "u", "t", "quad"]), junk), other=junk)
def test_model_from_dae(dae, other):
    survives(lambda: Model.from_dae(dae))
    survives(lambda: Model.from_dae(other))
    survives(lambda: symbols(other))


@MANY
@given(arguments=some(["data", "time", "sigma", "initial", "parameters", "inputs", "start", "name"]))
def test_experiment(arguments):
    good = {"data": {"x": [1.0, 0.5, 0.2]}, "time": [0, 1, 2], "initial": {"x": 1.0}}
    experiment = survives(lambda: Experiment(**{**good, **arguments}))
    if experiment is not None:
        survives(lambda: Problem(decay_model(), experiment, parameters={"k": 1.0}))
        survives(lambda: Problem(decay_model(), experiment, parameters={"x": 1.0, "z": 2.0}))


@MANY
@given(value=junk, initial=junk, a=junk, b=junk)
def test_expressions_of_an_experiment(value, initial, a, b):
    def build() -> Problem:
        data = Experiment({"x": [1.0, 2.0]}, time=[0, 1], parameters={"k": value}, initial={"x": initial})
        return Problem(decay_model(), data, parameters={"v": a, "k": b})

    survives(build)


@MANY
@given(a=junk, b=junk, c=junk)
def test_a_posed_problem(a, b, c):
    compiled_problem = decay_problem().posed
    survives(lambda: compiled_problem.with_horizon(a))
    survives(lambda: compiled_problem.with_bounds(a, b))
    survives(lambda: compiled_problem.with_bounds(compiled_problem.guess, compiled_problem.guess, c))
    survives(lambda: compiled_problem.starting_at(a))
    survives(lambda: compiled_problem.starting_at({"k": b}))
    survives(lambda: compiled_problem.fix(a))
    survives(lambda: compiled_problem.fix({"k": b}))
    survives(lambda: compiled_problem.with_quantities(a))
    survives(lambda: compiled_problem.with_experiments(a))
    survives(lambda: compiled_problem.experiments[0].until(a))
    survives(lambda: Parameter(1.0, bounds=a))
    survives(lambda: free(1.0, bounds=b))


@MANY
@given(a=junk, b=junk, c=junk, kind=junk)
def test_pieces_of_an_experiment(a, b, c, kind):
    initial = {"x": free(a, lower=b, upper=c, scale=kind)}
    survives(lambda: Experiment({"x": [1, 2]}, time=[0, 1], initial=initial, sigma=relative(b, floor=c)))
    for make in (Input.linear, Input.pchip, Input.cubic_spline, Input.piecewise_constant):
        survives(lambda make=make: make(a, b))
    survives(lambda: Input.constant(c))
    survives(lambda: Input(kind, a, b))


@MANY
@given(arguments=some(["model", "experiments", "parameters", "state_bounds", "constraints"]))
def test_problem(arguments):
    good = decay_problem()
    survives(
        lambda: Problem(**{"model": good.model, "experiments": good.experiments, "parameters": {"k": 1.0}, **arguments})
    )


@MANY
@given(arguments=some(["value", "lower", "upper", "scale", "fixed", "local", "prior"]), a=junk, b=junk)
def test_pieces_of_a_problem(arguments, a, b):
    survives(lambda: decay_problem(parameters={"k": Parameter(**{"value": 1.0, **arguments})}))
    survives(lambda: decay_problem(parameters={"k": Parameter(1.0, prior=Normal(a, b))}))
    survives(lambda: decay_problem(constraints=[Constraint(a, b)]))
    survives(lambda: decay_problem(constraints=[Constraint(ca.SX.sym("x"), a, b, name="c")]))
    survives(lambda: decay_problem().theta_from({"k": a}))
    survives(lambda: decay_problem().theta_from(b))
    survives(lambda: decay_problem().experiments[0].with_values({"x": a}))


@MANY
@given(arguments=some(["lower", "upper", "name", "times", "experiments", "of", "text"]), spread=junk)
def test_a_constraint_and_an_unknown_spread(arguments, spread):
    x = ca.SX.sym("x")
    survives(lambda: decay_problem(constraints=[Constraint(x, **{"lower": 0.0, **arguments})]))
    survives(lambda: Experiment({"x": [1, 2]}, time=[0, 1], initial={"x": 1.0}, sigma=unknown(prior=spread)))


@MANY
@given(a=junk, b=junk, c=junk, arguments=some(["hessian", "max_iter", "tolerance", "linear_solver", "options"]))
def test_options(a, b, c, arguments):
    problem = decay_problem()
    survives(lambda: SingleShooting(a))
    transcription = survives(lambda: MultipleShooting(a, b, c))
    if transcription is not None:
        assert transcription.label
    transcription = survives(lambda: MultipleShooting(2, states=b))
    if transcription is not None:
        survives(lambda: transcription.transcribe(problem, problem.guess))
    survives(lambda: Ipopt(**arguments))


@MANY
@given(
    solver=some(["step_control", "homotopy", "max_iter", "tolerance", "regularisation"]),
    integrator=some(["method", "relative_tolerance", "absolute_tolerance", "max_steps", "elements", "compile"]),
    collocation=some(["degree", "scheme", "elements", "tolerance", "states", "integrator"]),
)
def test_more_options(solver, integrator, collocation):
    survives(lambda: GaussNewton(**solver))
    survives(lambda: IntegratorOptions(**integrator))
    survives(lambda: Collocation(**collocation))


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(
    arguments=some(
        [
            "problem",
            "transcription",
            "solver",
            "start",
            "max_time",
            "callback",
            "absolute_sigma",
            "confidence_level",
            "verbose",
        ]
    )
)
def test_fit(arguments, capfd):
    good = {"problem": decay_problem(), "transcription": SingleShooting(), "solver": Ipopt(max_iter=2)}
    if not callable(arguments.get("callback", 0)):  # a callable is called, and may raise
        survives(lambda: fit(**{**good, **arguments}))
