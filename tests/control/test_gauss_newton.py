"""Sums of squares by Gauss and Newton's method: the optima of IPOPT in fewer steps, and IPOPT where it fails."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import castfit as cf
from castfit.control.stages import extract_squares

x, v, u, k = cf.symbols("x v u k")
POINT = cf.Model({x: v, v: u}, inputs=[u], initial={x: 1, v: 0})
PENDULUM = cf.Model({x: v, v: cf.sin(x) + u}, parameters=[], inputs=[u], initial={x: 1, v: 0})
BOTH = pytest.mark.parametrize("transcription", ["collocation", "multiple"])


def question(**options):
    return {"horizon": 3, "inputs": {"u": cf.Input.free(12, bounds=(-2, 2))}, **options}


def test_extract_squares_returns_factors_or_none():
    for expression, factors in [
        (x**2 + 3 * (u - k) ** 2, [1, 3]), ((x**2 + u**2) / 4, [0.25, 0.25]), (2 * (cf.sin(x) - 1) ** 2 + 5, [2]),
        (x * x, [1]), (x**2 - u**2, None), (-(x**2), None), (x * u, None), (k * x**2, None), (1 / x**2, None),
    ]:  # fmt: skip
        rows = extract_squares(expression)
        assert (rows if rows is None else [factor for factor, _ in rows]) == factors, expression


@BOTH
def test_gauss_newton_of_a_linear_quadratic_problem_takes_one_step(transcription):
    """By multiple shooting, too: Runge and Kutta's steps of a linear model are linear."""
    costs = cf.integral(x**2 + 0.5 * x * v + v**2 + 0.1 * u**2) + 3 * cf.at_end(x - 0.2) ** 2
    plan = cf.control(POINT, minimise=costs, transcription=transcription, **question())
    other = cf.control(POINT, minimise=costs, transcription=transcription, solver=cf.Ipopt(), **question())
    assert plan.success, plan.message
    assert (plan.solver, other.solver) == ("Gauss-Newton", "IPOPT")
    assert plan.iterations <= 2
    assert plan.objective == pytest.approx(other.objective, rel=1e-7)
    assert np.allclose(plan.inputs["u"].values, other.inputs["u"].values, atol=1e-5)


@BOTH
@pytest.mark.parametrize("output", [x, cf.sin(x) + x])
def test_plan_again_by_gauss_newton_equals_ipopt(transcription, output):
    """A model and rows that are no longer linear, with bounds that hold: from another place, the same plan."""
    options = question(
        minimise=cf.integral((output - 0.1) ** 2 + v**2 + 0.1 * u**2),
        constraints=[cf.along(v >= -0.4), cf.at_end(v == 0)], transcription=transcription,
    )  # fmt: skip
    next_plan = cf.control(PENDULUM, **options).again({"x": 0.9, "v": 0.05})
    ipopt_plan = cf.control(PENDULUM, initial={"x": 0.9, "v": 0.05}, solver=cf.Ipopt(), **options)
    assert next_plan.success, next_plan.message
    assert ipopt_plan.success, ipopt_plan.message
    assert next_plan.solver == "Gauss-Newton"
    assert next_plan.objective == pytest.approx(ipopt_plan.objective, rel=1e-5)
    assert next_plan.constraints["v >= -0.4 along"].active


def test_gauss_newton_without_convergence_falls_back_to_ipopt(monkeypatch):
    """A nonlinear model from a simulated start, too few steps, and a concave objective."""
    costs = cf.integral(x**2 + u**2)
    plan = cf.control(PENDULUM, minimise=costs, constraints=[cf.at_end(x == 0)], **question())
    assert plan.solver.startswith("IPOPT")
    initial_state = {"x": 0.7, "v": 0.2}
    next_plan = plan.again(initial_state)
    monkeypatch.setattr(sys.modules["castfit.control.control"], "_MAX_GAUSS_NEWTON_STEPS", 1)
    ipopt_plan = plan.again(initial_state)
    assert (next_plan.solver, ipopt_plan.solver) == ("Gauss-Newton", "IPOPT")
    assert ipopt_plan.success, ipopt_plan.message
    assert next_plan.objective == pytest.approx(ipopt_plan.objective, rel=1e-6)
    concave = cf.control(POINT, minimise=cf.integral(u**2 - 0.01 * x**2), **question())
    assert concave.solver == "IPOPT"
    assert concave.success, concave.message


@pytest.mark.parametrize("transcription", ["collocation", pytest.param("multiple", marks=pytest.mark.slow)])
def test_units_are_recomputed_after_a_diverging_start(transcription):
    """Without an input the state grows by e**15; the solution stays small, and sets its own units."""
    model = cf.Model({x: v, v: 9 * x + u}, inputs=[u], initial={x: 0.1, v: 0})
    options = {
        "horizon": 5, "inputs": {"u": cf.Input.free(25, bounds=(-2, 2))}, "minimise": cf.integral(x**2 + 0.1 * u**2),
        "transcription": transcription,
    }  # fmt: skip
    plan, initial_state = cf.control(model, **options), {"x": -0.05, "v": 0.1}
    next_plan = plan.again(initial_state, shift=0.2)
    ipopt_plan = cf.control(model, initial=initial_state, solver=cf.Ipopt(), **options)
    assert plan.success, plan.message
    assert next_plan.success, next_plan.message
    assert next_plan.objective == pytest.approx(ipopt_plan.objective, rel=1e-5)


AGAIN = {
    "free time": (POINT, {"x": -0.8, "v": 0.1}, {
        "horizon": cf.free(3.0, lower=0.1), "minimise": cf.final_time(),
        "constraints": [cf.at_end(x == 0), cf.at_end(v == 0)],
    }),
    "worst case": (cf.Model({x: -k * x + u}, inputs=[u], parameters=[k], initial={x: 1}), {"x": 0.7}, {
        "horizon": 1, "minimise": cf.integral(x**2 + 0.1 * u**2), "parameters": [{"k": 0.5}, {"k": -0.5}],
        "scenarios": "worst",
    }),
    "known input": (cf.Model({x: -x + u + v}, inputs=[u, v], initial={x: 1}), {"x": 0.5}, {
        "horizon": 1, "minimise": cf.integral(x**2 + 0.1 * u**2),
        "inputs": {
            "u": cf.Input.free(12, "linear", bounds=(-2, 2)), "v": cf.Input.linear([0, 0.3, 1, 2], [0, 1, -1, 0.5]),
        },
    }),
    "algebraic": (cf.Model({x: k}, algebraic={k: k - u + x}, inputs=[u], initial={x: 1}), {"x": 0.5}, {
        "horizon": 1, "minimise": cf.integral(k**2 + x**2 + 0.1 * u**2),
    }),
    "an integral in a root": (cf.Model({x: -x + u}, inputs=[u], initial={x: 1}), {"x": 0.7}, {
        "horizon": 1, "minimise": cf.sqrt(cf.integral(x**2 + 0.1 * u**2) + 1), "constraints": [cf.integral(u) >= -0.1],
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", AGAIN)
def test_plan_again_equals_a_new_plan(case):
    model, initial_state, options = AGAIN[case]
    options = question(**options)
    next_plan = cf.control(model, **options).again(initial_state, shift=0.1)
    fresh_plan = cf.control(model, initial=initial_state, start=0.1, **options)
    assert next_plan.success, next_plan.message
    assert fresh_plan.success, fresh_plan.message
    assert next_plan.objective == pytest.approx(fresh_plan.objective, rel=1e-6)
