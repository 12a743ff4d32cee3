"""Sums of squares by Gauss and Newton's method: the optima of IPOPT in fewer steps, and IPOPT where it fails."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import castfit as cf
from castfit.control.stages import squares_in

x, v, u, k = cf.symbols("x v u k")
POINT = cf.Model({x: v, v: u}, inputs=[u], initial={x: 1, v: 0})
PENDULUM = cf.Model({x: v, v: cf.sin(x) + u}, parameters=[], inputs=[u], initial={x: 1, v: 0})
BOTH = pytest.mark.parametrize("transcription", ["collocation", "multiple"])


def question(**more):
    return {"horizon": 3, "inputs": {"u": cf.Input.free(12, bounds=(-2, 2))}, **more}


def test_what_is_a_sum_of_squares():
    for expression, factors in [
        (x**2 + 3 * (u - k) ** 2, [1, 3]), ((x**2 + u**2) / 4, [0.25, 0.25]), (2 * (cf.sin(x) - 1) ** 2 + 5, [2]),
        (x * x, [1]), (x**2 - u**2, None), (-(x**2), None), (x * u, None), (k * x**2, None), (1 / x**2, None),
    ]:  # fmt: skip
        rows = squares_in(expression)
        assert (rows if rows is None else [factor for factor, _ in rows]) == factors, expression


@BOTH
def test_linear_models_with_quadratic_costs_take_one_step(transcription):
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
def test_plans_again_are_those_of_ipopt(transcription, output):
    """A model and rows that are no longer linear, with bounds that hold: from another place, the same plan."""
    options = question(
        minimise=cf.integral((output - 0.1) ** 2 + v**2 + 0.1 * u**2),
        constraints=[cf.along(v >= -0.4), cf.at_end(v == 0)], transcription=transcription,
    )  # fmt: skip
    again = cf.control(PENDULUM, **options).again({"x": 0.9, "v": 0.05})
    other = cf.control(PENDULUM, initial={"x": 0.9, "v": 0.05}, solver=cf.Ipopt(), **options)
    assert again.success, again.message
    assert other.success, other.message
    assert again.solver == "Gauss-Newton"
    assert again.objective == pytest.approx(other.objective, rel=1e-5)
    assert again.constraints["v >= -0.4 along"].active


def test_where_steps_do_not_end_ipopt_is_asked(monkeypatch):
    """From a simulated start of a model that is not linear, where too few steps are allowed, and of what is concave."""
    costs = cf.integral(x**2 + u**2)
    plan = cf.control(PENDULUM, minimise=costs, constraints=[cf.at_end(x == 0)], **question())
    assert plan.solver.startswith("IPOPT")
    elsewhere = {"x": 0.7, "v": 0.2}
    again = plan.again(elsewhere)
    monkeypatch.setattr(sys.modules["castfit.control.control"], "_STEPS", 1)
    other = plan.again(elsewhere)
    assert (again.solver, other.solver) == ("Gauss-Newton", "IPOPT")
    assert other.success, other.message
    assert again.objective == pytest.approx(other.objective, rel=1e-6)
    concave = cf.control(POINT, minimise=cf.integral(u**2 - 0.01 * x**2), **question())
    assert concave.solver == "IPOPT"
    assert concave.success, concave.message
