"""Initial states that follow from algebraic equations where algebraic states have a value."""

from __future__ import annotations

import pickle
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.optimize import brentq

import castfit as cf
from tests.builders import refused

TIMES = np.linspace(0, 10, 21)
TRUTH = {"pKa": 4.76, "c": 0.1, "rate": 0.05}


def titration(initial: dict[str, Any], data: np.ndarray | None = None, **parameters: Any) -> cf.Problem:
    """A weak acid to which base is added at a constant rate; its pH is measured."""
    base, pH, pKa, c, rate = cf.symbols("base pH pKa c rate")
    H, Ka = ca.exp(-np.log(10.0) * pH), ca.exp(-np.log(10.0) * pKa)
    charge = H + 0.1 * base - 1e-14 / H - c * Ka / (Ka + H)
    model = cf.Model({base: rate}, algebraic={pH: charge}, parameters=[pKa, c, rate])
    measured = cf.Experiment({"pH": np.zeros(21) if data is None else data}, TIMES, sigma=0.05, initial=initial)
    values = {"pKa": 5.0, "c": cf.Parameter(0.08, 0, 1), "rate": cf.Parameter(0.05, fixed=True), **parameters}
    return cf.Problem(model, measured, parameters=values)


def charge(pH: float, base: float, pKa: float, c: float) -> float:
    H, Ka = 10.0**-pH, 10.0**-pKa
    return H + 0.1 * base - 1e-14 / H - c * Ka / (Ka + H)


def test_the_state_is_the_one_from_which_the_value_follows():
    exact = brentq(lambda pH: charge(pH, 0.3, TRUTH["pKa"], TRUTH["c"]), 2, 9, xtol=1e-14)
    problem = titration({"base": cf.consistent(0.1), "pH": exact})
    simulation = cf.simulate(problem, TRUTH)["experiment 1"]
    assert simulation["base"][0] == pytest.approx(0.3, rel=1e-10)
    expected = cf.simulate(titration({"base": 0.3, "pH": 4.0}), TRUTH)["experiment 1"]
    np.testing.assert_allclose(simulation["pH"], expected["pH"], rtol=1e-9)
    copy = pickle.loads(pickle.dumps(problem))
    np.testing.assert_array_equal(cf.simulate(copy, TRUTH)["experiment 1"]["pH"], simulation["pH"])


def test_every_transcription_estimates_the_algebraic_state_or_the_other_alike():
    exact = cf.simulate(titration({"base": 0.3, "pH": 4.0}), TRUTH)["experiment 1"]["pH"]
    data = exact + 0.05 * np.random.default_rng(0).standard_normal(21)
    reference = cf.fit(titration({"base": cf.free(0.2), "pH": 4.5}, data))
    initial_pH = brentq(
        lambda pH: charge(pH, reference.values["base(0)"], reference.values["pKa"], reference.values["c"]), 2, 9
    )
    problem = titration({"base": cf.consistent(0.1), "pH": cf.free(4.5, lower=2, upper=9)}, data)
    for method in ("single", "multiple", "collocation", "collocation/ipopt"):
        result = cf.fit(problem, method)
        assert result.success
        assert result.chi2 == pytest.approx(reference.chi2, rel=1e-6)
        assert result.initial_states["pH(0)"] == pytest.approx(initial_pH, abs=1e-4)
        for name in ("pKa", "c"):
            assert result.values[name] == pytest.approx(reference.values[name], rel=1e-4)
            assert result.standard_errors[name] == pytest.approx(reference.standard_errors[name], rel=1e-3)


@pytest.mark.parametrize("kind", ["free", "logarithm", "expression"])
def test_derivatives(kind):
    start = cf.symbols("start")
    initial = {"free": cf.free(4.4), "logarithm": cf.free(4.4, scale="log"), "expression": 4.0 + start**2}[kind]
    parameters = {"start": 0.7} if kind == "expression" else {}
    compiled_problem = titration({"base": cf.consistent(0.1), "pH": initial}, **parameters).posed
    (condition,) = compiled_problem.conditions
    link, q = condition.link, compiled_problem.guess[condition.theta] * 1.02
    on_p, on_a = np.array([0.3, -0.7, 0.0]), np.array([1.3])

    def stack_values(q: np.ndarray) -> np.ndarray:
        natural = link.natural(q)
        return np.append(natural.p, natural.a)

    def gradient(q: np.ndarray) -> np.ndarray:
        natural = link.natural(q)
        return on_p @ natural.dp + on_a @ natural.da

    natural, h, unit = link.natural(q), 1e-4, np.eye(q.size)

    def slope(function: Any, e: np.ndarray) -> np.ndarray:
        return (
            function(q - 2 * h * e) - 8 * function(q - h * e) + 8 * function(q + h * e) - function(q + 2 * h * e)
        ) / (12 * h)

    jacobian = np.vstack([natural.dp, natural.da])
    np.testing.assert_allclose(np.column_stack([slope(stack_values, e) for e in unit]), jacobian, rtol=1e-8, atol=1e-9)
    bend = link.curvature(q, on_p, on_a)
    np.testing.assert_allclose(np.column_stack([slope(gradient, e) for e in unit]), bend, rtol=1e-7, atol=1e-8)
    assert link.is_initial_fixed.tolist() == [False]
    restricted_link = link.restrict(np.array([0], dtype=np.intp), q)
    np.testing.assert_allclose(restricted_link.natural(q[:1]).a, natural.a, rtol=1e-12)


def test_consistent_start_without_solution_names_the_equation():
    x, y, z, w, k = cf.symbols("x y z w k")
    model = cf.Model({x: -x, y: -y}, algebraic={z: z - x**2, w: w - k * y}, parameters=[k])
    experiment = cf.Experiment({"x": [1.0]}, [1.0], initial={"x": cf.consistent(1.0), "y": 1.0, "z": -1.0})
    with refused("'x' that is consistent with the algebraic equations is nan at k = 1, z(0) = -1 (near its guess, the "
                 "equation of z stays off by"):  # fmt: skip
        cf.Problem(model, experiment, parameters={"k": cf.Parameter(1.0, fixed=True)})


def test_mistakes():
    with refused("follows from the equations; give at most a guess"):
        titration({"base": 0.3, "pH": cf.free(4.0)})
    with refused("'base' is to follow from the algebraic equations, so 1 algebraic state needs a value, but none has"):
        titration({"base": cf.consistent(0.3)})
    with refused("initial state 'base' is consistent('a'); give a finite number as guess"):
        titration({"base": cf.consistent("a"), "pH": 4.0})  # type: ignore[arg-type]
    x, y, z, k = cf.symbols("x y z k")
    model = cf.Model({x: -k * x, y: -y}, algebraic={z: z - x**2}, parameters=[k])
    experiment = cf.Experiment({"x": [1.0]}, [1.0], initial={"y": cf.consistent(1.0), "x": 1.0, "z": 1.0})
    with refused("do not determine the initial value of y, and the equations of z have too few unknowns"):
        cf.Problem(model, experiment, parameters={"k": 1.0})
