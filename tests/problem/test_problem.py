"""The estimation problem: quantities, scales, how p and the initial state follow from theta, and what is refused."""

from __future__ import annotations

import pickle

import casadi as ca
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castfit._support.status import InputError
from castfit.experiment.experiment import Experiment, free
from castfit.experiment.inputs import Input
from castfit.model.model import Model, symbols
from castfit.problem.problem import Constraint, Normal, Parameter, Problem
from tests.builders import decay_model, decay_problem, everything, lotka_volterra, refused


def chain_model(**extra) -> Model:
    """Return a chain x -> y -> (nothing), with a rate that nothing but y shows."""
    x, y, k, m = symbols("x y k m")
    return Model({x: -k * x, y: k * x - m * y}, parameters=[k, m], **extra)


def chain_problem(data=None, initial=None, *, model=None, parameters=None, **changes) -> Problem:
    """Return a problem on that chain; by default y is measured."""
    experiment = Experiment(
        {"y": [0.1, 0.4, 0.3]} if data is None else data,
        time=[0, 1, 2],
        initial={"x": 1.0, "y": 0.0} if initial is None else initial,
    )
    return Problem(
        model or chain_model(),
        experiment,
        parameters={"k": 1.0, "m": 0.5} if parameters is None else parameters,
        **changes,
    )


def test_quantities_come_shared_first_then_by_experiment():
    problem = everything()
    assert problem.names == ("k1", "k2", "k3[first]", "x(0)[first]", "k3[second]")
    assert [q.kind for q in problem.quantities] == ["parameter"] * 3 + ["initial state", "parameter"]
    assert [q.experiment for q in problem.quantities] == [None, None, "first", "first", "second"]
    assert [c.theta.tolist() for c in problem.conditions] == [[0, 1, 2, 3], [0, 1, 4]]
    assert problem.outputs == ("y", "z", "product", "logarithm")
    assert problem.n_data == 5 + 4 + 6 + 5
    assert problem.free_parameters.tolist() == [0, 1, 2]
    assert repr(problem).startswith("Problem(2 experiments, 20 values of y, z, product, logarithm; estimates k1, k2")


def test_one_experiment_needs_no_suffix():
    problem = chain_problem(initial={"x": free(1.0), "y": 0}, parameters={"k": 1, "m": Parameter(0.5, local=True)})
    assert problem.names == ("k", "m", "x(0)")
    assert problem.conditions[0].name == "experiment 1"


def test_search_scale_and_bounds():
    problem = everything()
    with pytest.raises(ValueError, match="read-only"):
        problem.guess[0] = 0.0
    np.testing.assert_array_equal(problem.log, [True, False, False, True, False])
    np.testing.assert_allclose(problem.guess, [np.log(0.8), 0.6, 0.4, np.log(0.8), 0.7])
    lower, upper = problem.bounds
    np.testing.assert_allclose(lower, [-np.inf, -np.inf, 0.0, np.log(0.1), 0.0])
    np.testing.assert_allclose(upper, [np.inf, np.inf, 3.0, np.log(5.0), 3.0])


@given(theta=st.lists(st.floats(-3, 3), min_size=5, max_size=5))
def test_scales_are_inverse_to_each_other(theta):
    problem, theta = everything(), np.array(theta)
    natural = problem.to_natural(theta)
    np.testing.assert_allclose(problem.to_search(natural), theta, rtol=1e-12, atol=1e-12)
    step = 1e-6
    slope = (problem.to_natural(theta + step) - problem.to_natural(theta - step)) / (2 * step)
    np.testing.assert_allclose(problem.natural_slope(theta), slope, rtol=1e-7, atol=1e-7)


def test_a_huge_logarithm_is_infinite_without_a_warning():
    problem = everything()
    theta = problem.guess.copy()
    theta[0] = 1e4
    assert problem.to_natural(theta)[0] == np.inf
    assert problem.conditions[0].link.natural(theta[:4]).p[0] == np.inf


@given(
    theta=st.lists(st.floats(-1, 1), min_size=5, max_size=5), weights=st.lists(st.floats(-2, 2), min_size=6, max_size=6)
)
def test_links_derivatives(theta, weights):
    theta, weight_p, weight_a = np.array(theta), np.array(weights[:4]), np.array(weights[4:])
    for condition in everything().conditions:
        link, q, h = condition.link, theta[condition.theta], 1e-5
        natural = link.natural(q)

        def gradient(q, link=link):
            values = link.natural(q)
            return weight_p @ values.dp + weight_a @ values.da

        for j, e in enumerate(np.eye(q.size)):
            ahead, behind = link.natural(q + h * e), link.natural(q - h * e)
            np.testing.assert_allclose(natural.dp[:, j], (ahead.p - behind.p) / (2 * h), atol=1e-8)
            np.testing.assert_allclose(natural.da[:, j], (ahead.a - behind.a) / (2 * h), atol=1e-8)
            second = (gradient(q + h * e) - gradient(q - h * e)) / (2 * h)
            np.testing.assert_allclose(link.curvature(q, weight_p, weight_a)[:, j], second, atol=1e-7)


def test_initial_values_follow_experiment_before_model():
    first_condition, second_condition = everything().conditions
    q = first_condition.link.natural(np.array([np.log(2.0), 3.0, 0.1, np.log(0.7)]))
    assert q.p == pytest.approx([2.0, 3.0, 0.1, 0.5])
    assert q.a == pytest.approx([0.7, 0.5 * 2 * 3])  # free, the model's own expression
    q = second_condition.link.natural(np.array([np.log(2.0), 3.0, 0.1]))
    assert q.a == pytest.approx([0.9, 2 / 10])  # given, the experiment's expression
    assert first_condition.link.is_initial_fixed.tolist() == [False, False]
    assert second_condition.link.is_initial_fixed.tolist() == [True, False]


def test_constant_initial_values_of_the_model_are_given():
    problem = chain_problem(model=chain_model(initial={"x": 1.0, "y": 0}), initial={})
    assert problem.conditions[0].link.is_initial_fixed.all()
    assert problem.conditions[0].link.natural(problem.guess).a.tolist() == [1.0, 0.0]


def test_a_problem_may_estimate_nothing_but_initial_states():
    x = symbols("x")
    data = Experiment({"x": [1.0, 0.5]}, time=[0, 1], initial={"x": free(2.0)})
    assert Problem(Model({x: -x}), data).names == ("x(0)",)


def test_priors_are_on_natural_values():
    problem = everything()
    theta = problem.guess + 0.3
    priors = problem.priors(theta)
    assert priors.rows == pytest.approx([(0.8 * np.exp(0.3) - 1.0) / 0.5])
    assert priors.jacobian == pytest.approx(np.array([[0.8 * np.exp(0.3) / 0.5, 0, 0, 0, 0]]))


def test_start_values_by_name():
    problem = everything()
    theta = problem.theta_from({"k1": 2.0, "x(0)[first]": np.float64(1.0)})
    np.testing.assert_allclose(theta, [np.log(2.0), 0.6, 0.4, 0.0, 0.7])
    np.testing.assert_array_equal(problem.theta_from({}), problem.guess)
    with refused(
        "'k3' is not estimated: did you mean",
        "start of 'k3[first]': the guess 4 is outside its bounds [0, 3]",
        "start of 'k1': scale='log' needs a positive guess; it is 0",
        "start of 'k2': the guess is '1'; expected a finite number",
        "start of 'x(0)[first]': the guess is nan",
    ):
        problem.theta_from({"k3": 1, "k3[first]": 4, "k1": 0, "k2": "1", "x(0)[first]": np.nan})
    with refused("start is a list"):
        problem.theta_from([1.0])


@given(bound=st.floats(1e-3, 1e3))
def test_a_value_at_a_logarithmic_bound_may_come_back(bound):
    problem = decay_problem(parameters={"k": Parameter(bound, lower=bound, upper=10 * bound, scale="log")})
    for edge in problem.bounds:
        theta = problem.theta_from({"k": problem.to_natural(edge)[0]})
        assert problem.bounds[0] <= theta <= problem.bounds[1]
        assert theta == pytest.approx(edge)


def test_pickling():
    problem = everything()
    copy = pickle.loads(pickle.dumps(problem))
    assert copy.quantities == problem.quantities
    theta = problem.guess + 0.1
    for a, b in zip(problem.conditions, copy.conditions, strict=True):
        np.testing.assert_array_equal(a.points.values, b.points.values)
        for name in ("p", "dp", "a", "da"):
            q = theta[a.theta]
            np.testing.assert_array_equal(getattr(a.link.natural(q), name), getattr(b.link.natural(q), name))
    assert copy.constraints[0].name == "constraint 1"
    assert {s.name() for s in ca.symvar(copy.constraints[0].expression)} == {"x", "y", "z", "u", "t", "k2"}


def test_replace():
    problem = everything()
    changed = problem.replace(parameters={**problem.parameters, "k4": 2.0})
    assert "k4" in changed.names
    assert changed.experiments == problem.experiments
    with refused("unknown argument 'parameter': did you mean 'parameters'?"):
        problem.replace(parameter={})


def test_breakpoints_lie_inside_the_horizon():
    first_condition, second_condition = everything().conditions
    assert first_condition.breakpoints.tolist() == [0.73, 1.1]
    assert second_condition.breakpoints.tolist() == [0.5, 1.2]


@pytest.mark.parametrize(
    ("measured", "unseen"),
    [
        ("x", ["the free parameter 'm'", "the free initial state 'y(0)'"]),
        ("y", []),
        ("sum", []),
        ("double", ["the free parameter 'm'", "the free initial state 'y(0)'"]),
        ("rate", ["the free initial state 'x(0)'", "the free initial state 'y(0)'"]),
    ],
)
def test_unmeasured_quantities_are_reported(measured, unseen):
    x, y, k, m = symbols("x y k m")
    outputs = {"sum": x + y, "double": 2 * x, "rate": k * m}
    model = Model({x: -k * x, y: k * x - m * y}, parameters=[k, m], outputs=outputs)
    initial = {"x": free(1.0), "y": free(0.5)}

    def build() -> Problem:
        return chain_problem({measured: [1, 2, 3]}, initial, model=model)

    if unseen:
        with refused(*(f"no measurement depends on {label}" for label in unseen)):
            build()
    else:
        assert set(build().names) == {"k", "m", "x(0)", "y(0)"}


def test_support_through_algebraic_states_initial_values_and_priors():
    x, z, k, m = symbols("x z k m")
    model = Model({x: -x}, algebraic={z: z - k * x}, parameters=[k, m], initial={x: m})
    data = {"z": [1, 2, 3]}
    assert chain_problem(data, {}, model=model).names == ("k", "m")
    with refused("no measurement depends on the free parameter 'k'; fix it"):
        chain_problem({"x": [1, 2, 3]}, {}, model=model)
    prior = {"k": Parameter(1.0, prior=Normal(1, 1)), "m": 1.0}
    assert chain_problem({"x": [1, 2, 3]}, {}, model=model, parameters=prior).names == ("k", "m")


def test_algebraic_equations_may_stand_in_any_order():
    """Here a = k b, b = x and c = m x, each beside another's unknown."""
    x, a, b, c, k, m = symbols("x a b c k m")
    model = Model({x: -x}, algebraic={a: b - x, b: c - m * x, c: a - k * b}, parameters=[k, m])
    for measured, unseen in (("a", "m"), ("c", "k")):
        with refused(f"no measurement depends on the free parameter '{unseen}'"):
            chain_problem({measured: [1, 2, 3]}, {"x": 1.0}, model=model)
    experiment = Experiment({"a": [1, 2], "c": [1, 2]}, time=[0, 1], initial={"x": 1.0})
    assert Problem(model, experiment, parameters={"k": 1.0, "m": 1.0}).names == ("k", "m")


def test_every_mistake_is_listed_at_once():
    model, x = chain_model(), ca.SX.sym("x")
    one = Experiment({"yy": [1, 2]}, time=[0, 1], initial={"x": 2, "zz": 1}, inputs={"u": 1}, sigma=1, name="a")
    two = Experiment({"y": [1]}, time=[0], initial={"x": x, "y": 1}, name="a")
    with refused(
        "two experiments are named 'a'",
        "some experiments have sigma and some not",
        "'kk' is no parameter of the model: did you mean 'k'?",
        "parameter 'k' has no guess",
        "parameter 'm': the guess 3 is outside its bounds [0, 1]",
        "state_bounds names 'xx', which is no state: did you mean 'x'?",
        "constraint 1 contains 'q', which is not in the model",
        "a: 'yy' is measured but is neither a state nor an output: did you mean 'y'?",
        "a: initial names 'zz', which is no state",
        "a: state 'y' has no initial value",
        "a: the initial value 2 of 'x' lies outside its state_bounds [0, 1]",
        "a: 'u' is no input of the model: there are none",
        "a: the initial value of 'x' contains 'x', which is no parameter",
    ):
        Problem(
            model,
            [one, two],
            parameters={"kk": 1.0, "m": Parameter(3, 0, 1)},
            state_bounds={"xx": (0, 1), "x": (0, 1)},
            constraints=[Constraint(ca.SX.sym("q"), upper=1)],
        )


def test_something_must_be_measured_after_a_start():
    model = chain_model()
    at_start = Experiment({"y": [1]}, time=[0], initial={"x": 2.0, "y": 1.0}, name="a")
    with refused("a: nothing is measured after the start 0"):
        Problem(model, at_start, parameters={"k": 1.0, "m": 1.0})
    later = Experiment({"y": [1, 2, 3]}, time=[0, 1, 2], initial={"x": 2.0, "y": 1.0}, name="b")
    assert Problem(model, [at_start, later], parameters={"k": 1.0, "m": 1.0}).n_data == 4


@pytest.mark.parametrize(
    ("value", "phrases"),
    [
        (None, ["the guess is None"]),
        ("1", ["the guess is '1'"]),
        (True, ["the guess is True"]),
        (1j, ["the guess is 1j"]),
        ([1.0], ["the guess is [1.0]"]),
        ((0, 1, 2), ["the guess is (0, 1, 2)"]),
        (np.nan, ["the guess is nan"]),
        (ca.SX.sym("k"), ["the guess is SX(k)"]),
        (Parameter(1, lower="0"), ["the bounds are '0' and inf"]),  # type: ignore[arg-type]
        (Parameter(1, lower=0, upper=None), ["the bounds are 0 and None"]),  # type: ignore[arg-type]
        (Parameter(1, 2, 0), ["the bounds [2, 0] are empty"]),
        (Parameter(0, scale="log"), ["scale='log' needs a positive guess"]),
        (Parameter(1, scale="logarithmic"), ["scale is 'logarithmic'"]),
        (Parameter(1, fixed="yes", local=1), ["fixed is 'yes'", "local is 1"]),  # type: ignore[arg-type]
        (Parameter(1, prior=Normal(1, 0)), ["has the prior Normal(mean=1, deviation=0)"]),
        (Parameter(1, prior=Normal(np.nan, 1)), ["has the prior"]),
        (Parameter(1, prior=(1, 2)), ["has the prior (1, 2); give Normal(mean, deviation)"]),  # type: ignore[arg-type]
        ({"experiment 1": 1.0}, ["has a value per experiment but is not local; add local=True"]),
        (
            Parameter({"experiment": 1, "b": None}, local=True),  # type: ignore[dict-item]
            [
                "has a value for 'experiment': did you mean 'experiment 1'?",
                "has a value for 'b'",
                "local parameter 'k' has no value for 'experiment 1'",
                "parameter 'k', b: the guess is None",
            ],
        ),
    ],
)
def test_wrong_parameters_are_refused(value, phrases):
    with refused(*phrases):
        decay_problem(parameters={"k": value})


@pytest.mark.parametrize(
    ("changes", "phrases"),
    [
        ({"parameters": [1.0]}, ["parameters is a list", "parameter 'k' has no guess"]),
        ({"parameters": {1: 1.0}}, ["parameters has the key 1", "parameter 'k' has no guess"]),
        ({"parameters": None}, ["parameter 'k' has no guess"]),
        ({"state_bounds": [(0, 1)]}, ["state_bounds is a list"]),
        ({"state_bounds": {"x": 1}}, ["state_bounds of 'x' are 1; give (lower, upper)"]),
        ({"state_bounds": {"x": (1, 0)}}, ["state_bounds of 'x' are (1, 0)"]),
        ({"state_bounds": {"x": (0, None)}}, ["state_bounds of 'x' are (0, None)"]),
        ({"state_bounds": {"x": ("0", "1")}}, ["state_bounds of 'x' are ('0', '1')"]),
        ({"state_bounds": {"x": (2, 3)}}, ["the initial value 1 of 'x' lies outside its state_bounds [2, 3]"]),
        ({"constraints": 1}, ["constraints is 1; give a list of relations"]),
        ({"constraints": [ca.SX.sym("x")]}, ["constraints contains SX(x); give Constraint(...)"]),
    ],
)
def test_wrong_kinds_are_refused(changes, phrases):
    with refused(*phrases):
        decay_problem(**changes)


@pytest.mark.parametrize(
    ("expression", "bounds", "phrase"),
    [
        (ca.SX.sym("x"), {}, "constraint 1 has no bound"),
        (ca.SX.sym("x"), {"lower": 2, "upper": 1}, "constraint 1 has the bounds 2 and 1"),
        (ca.SX.sym("x"), {"lower": np.nan}, "constraint 1 has the bounds nan and inf"),
        (ca.SX.sym("x"), {"lower": "0"}, "constraint 1 has the bounds '0' and inf"),
        (ca.SX.sym("x"), {"lower": np.inf}, "constraint 1 has the bounds inf and inf"),
        (ca.SX.sym("x") <= 1, {"upper": 1}, "write Constraint(expression, lower=, upper=)"),
        (ca.SX.sym("x", 2), {"upper": 1}, "constraint 1 is SX([x_0, x_1]); give a scalar SX expression"),
        (ca.MX.sym("x"), {"upper": 1}, "constraint 1 is MX(x)"),
        (1.0, {"upper": 1}, "constraint 1 is 1.0"),
        (ca.SX(1), {"upper": 1}, "constraint 1 is SX(1)"),
        (ca.SX.sym("y"), {"upper": 1, "name": "cap"}, "cap contains 'y', which is not in the model"),
    ],
)
def test_wrong_constraints_are_refused(expression, bounds, phrase):
    with refused(phrase):
        decay_problem(constraints=[Constraint(expression, **bounds)])


def test_numpys_truth_values_are_truth_values():
    problem = decay_problem(parameters={"k": Parameter(0.5, fixed=np.True_)})  # type: ignore[arg-type]
    assert problem.names == ()


def test_one_constraint_needs_no_list():
    problem = decay_problem(constraints=Constraint(ca.SX.sym("x"), upper=2))
    assert problem.constraints[0].name == "constraint 1"


@pytest.mark.parametrize("experiments", [None, 3, "data", {"a": 1}])
def test_experiments_are_experiments(experiments):
    with refused("experiments is", "no experiment given"):
        Problem(decay_model(), experiments, parameters={"k": 1.0})


def test_experiments_may_come_from_a_generator():
    experiment = Experiment({"x": [1, 0.5]}, time=[0, 1], initial={"x": 1})
    problem = Problem(decay_model(), (experiment for _ in range(2)), parameters={"k": 1.0})
    assert [c.name for c in problem.conditions] == ["experiment 1", "experiment 2"]
    with refused("experiments contains {'x': [1]}; give Experiment(...)"):
        Problem(decay_model(), [experiment, {"x": [1]}], parameters={"k": 1.0})  # type: ignore[list-item]


def test_the_model_is_a_model():
    with refused("model is <class 'castfit.Model'>; give a Model", "parameters is a int"):
        Problem(Model, lotka_volterra().experiments, parameters=3)  # type: ignore[arg-type]


def input_problem(signal, times=(0.0, 1.0, 2.0)) -> Problem:
    x, u = symbols("x u")
    k = symbols("k")
    model = Model({x: -k * x + u}, parameters=[k], inputs=[u])
    inputs = {} if signal is None else {"u": signal}
    data = Experiment({"x": np.ones(len(times))}, time=times, initial={"x": 1}, inputs=inputs)
    return Problem(model, data, parameters={"k": 1.0})


def test_inputs_cover_the_horizon():
    with refused("experiment 1: input 'u' is missing"):
        input_problem(None)
    with refused("input 'u' is given on [0, 1.5] but the experiment runs over [0, 2]; extend it"):
        input_problem(Input.linear([0, 1.5], [0, 1]))
    with refused("input 'u' is given on [0.5, inf]"):
        input_problem(Input.piecewise_constant([0.5, 1.5], [0, 1]))
    assert input_problem(Input.linear([0, 1.5, 2 - 1e-12], [0, 1, 2])).n_data == 3


def test_algebraic_states_take_a_guess_only():
    x, z, k = symbols("x z k")
    model = Model({x: -k * z}, algebraic={z: z**3 - x}, parameters=[k])
    data = {"x": [1, 0.5, 0.2]}
    guessed = chain_problem(data, {"x": 1, "z": 0.5}, model=model, parameters={"k": 1.0})
    assert guessed.conditions[0].z_guess.tolist() == [0.5]
    for value in (free(1.0), 2 * k):
        with refused("the initial value of the algebraic state 'z' follows from the equations"):
            chain_problem(data, {"x": 1, "z": value}, model=model, parameters={"k": 1.0})


def test_initial_values_that_cannot_be_computed():
    k = ca.SX.sym("k")
    with refused("experiment 1: the initial value of 'x' = (1./k) is inf at k = 0, the guess; change"):
        chain_problem(initial={"x": 1 / k, "y": 0}, parameters={"k": 0.0, "m": 1})


def test_the_error_is_picklable():
    with pytest.raises(InputError) as caught:
        decay_problem(parameters={})
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.problems == caught.value.problems
    assert str(copy) == str(caught.value)
