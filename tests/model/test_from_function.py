"""Models from functions of symbols: the same models, and sentences where a function cannot take symbols."""

from __future__ import annotations

import math

import casadi as ca
import numpy as np
import pytest

import castfit as cf


def by_hand():
    x, y, a, b = cf.symbols("x y a b")
    t = cf.symbols("t")
    return cf.Model({x: -a * x * y + cf.exp(-t), y: b * cf.sqrt(x) - y}, parameters=[a, b], time=t)


def in_order(t, x, p):
    return [-p[0] * x[0] * x[1] + np.exp(-t), p[1] * np.sqrt(x[0]) - x[1]]


def unpacked(t, x, p):
    (one, other), (a, b) = x, p
    return np.array([-a * one * other + cf.exp(-t), b * cf.sqrt(one) - other])


def by_name(t, x, p):
    return {"y": p["b"] * x["x"] ** 0.5 - x["y"], "x": -p["a"] * x["x"] * x["y"] + np.exp(-t)}


def as_column(t, x, p):
    return ca.vertcat(-p[0] * x[0] * x[1] + ca.exp(-t), p[1] * ca.sqrt(x[0]) - x[1])


def with_matrices(t, x, p):
    rows = np.array([[0.0, 0.0], [0.0, -1.0]]) @ x
    return rows + np.array([-p[0] * np.prod(x) + np.exp(-t), p[1] * np.sqrt(x[0])])


def values(model):
    system = model.system
    point = [0.3, [0.7, 1.4], [], [2.0, 0.6], []]
    return np.asarray(system.function("f", system.ode)(*point), dtype=float).ravel()


@pytest.mark.parametrize("function", [in_order, unpacked, by_name, as_column, with_matrices])
def test_model_from_function_equals_symbolic_model(function):
    model = cf.Model.from_function(function, "x y", ["a", "b"])
    assert repr(model) == repr(by_hand())
    np.testing.assert_allclose(values(model), values(by_hand()), rtol=1e-14)


def test_it_is_fitted_with_inputs_outputs_and_initial_values():
    def f(t, x, p, u):
        return -p["k"] * x + u["feed"]

    model = cf.Model.from_function(
        f, ["x"], "k", inputs="feed", outputs=lambda t, x, p, u: {"twice": 2 * x["x"]}, initial={"x": 1.0}
    )
    assert (model.states, model.parameters, model.inputs, model.output_names) == (
        ("x",), ("k",), ("feed",), ("x", "twice"))  # fmt: skip
    times = np.linspace(0.5, 3, 6)
    exact = 2 * (0.25 / 0.5 + (1 - 0.25 / 0.5) * np.exp(-0.5 * times))
    experiment = cf.Experiment({"twice": exact}, times, sigma=0.01, inputs={"feed": 0.25})
    result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    assert result.success
    assert result.parameters["k"] == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda t, x, p: [x[0] if x[0] > 1 else 0.0, 0.0], "write conditions on symbols as cf.if_else"),
        (lambda t, x, p: [-x[0]], "f returns 1 derivatives for 2 states (x, y); return one for each"),
        (lambda t, x, p: {"x": 0.0, "z": 1.0}, "f returns a derivative of 'z', which is no state: choose from x, y"),
        (lambda t, x, p: {"x": 0.0}, "f returns no derivative of 'y'; return 0 if it is constant"),
        (lambda t, x, p: [math.exp(x[0]), 0.0], "ode of 'x' is or contains NaN, which math.exp"),
        (lambda t, x, p: [p["c"], 0.0], "there is no 'c': choose from a, b"),
        (lambda t, x: [0.0, 0.0], "f(t, x, p) cannot be called with symbols (TypeError: "),
        (lambda t, x, p: None, "f returns 1 derivatives for 2 states"),
        (3, "f is 3; give a function of t, x and p"),
    ],
)
def test_model_function_unsupported_operations_are_explained(function, words):
    with pytest.raises(cf.InputError) as caught:
        cf.Model.from_function(function, "x y", "a b")
    assert words in str(caught.value)


def test_model_from_function_checks_names_and_points_to_from_function():
    with pytest.raises(cf.InputError, match="the name 'a' is declared twice, as state and as parameter"):
        cf.Model.from_function(lambda t, x, p: x, "a", "a")
    with pytest.raises(cf.InputError, match=r"ode is a function; write Model.from_function"):
        cf.Model(in_order)
