"""Fixed Rosenbrock steps: order, agreement with an error-controlled integrator, derivatives, and wild parameters."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf
from castfit.fit.start.decomposition.rosenbrock import FixedSteps


def problem(n=30, *, scale="linear"):
    """Two states, an input, time, local and fixed parameters, a free and a computed initial state, missing values."""
    t, x, y, u, a, b, c = cf.symbols("t x y u a b c")
    model = cf.Model(
        {x: -a * x**2 + u + 0.3 * np.pi * y, y: b * x - y * (1 + 0.1 * t) - c * y},
        parameters=[a, b, c], inputs=[u], time=t, initial={y: 0.5 * b},
    )  # fmt: skip
    times = np.linspace(0.1, 3, n)
    signal = cf.Input.pchip([0, 1, 2, 3], [0.2, 1.0, 0.4, 0.6])
    values = np.cos(times)
    values[4] = np.nan
    experiments = [
        cf.Experiment({"x": values, "y": (times[::2], np.sin(times[::2]))}, time=times, sigma=0.1,
                      initial={"x": cf.free(1.2)}, inputs={"u": signal}, name="one"),
        cf.Experiment({"y": (times[3:9], np.sin(times[3:9]))}, sigma=0.2, initial={"x": 0.8},
                      inputs={"u": 0.5}, name="two"),
    ]  # fmt: skip
    parameters = {
        "a": cf.Parameter(0.9, lower=0, scale=scale, prior=cf.Normal(1.0, 0.1)),
        "b": cf.Parameter({"one": 1.1, "two": 0.7}, local=True),
        "c": cf.Parameter(0.4, fixed=True),
    }
    return cf.Problem(model, experiments, parameters=parameters)


def integrated(posed, theta):
    """Residuals by an integrator with error control, in the order of the measured values."""
    staged = cf.SingleShooting(cf.IntegratorOptions(relative_tolerance=1e-11, absolute_tolerance=1e-13)).transcribe(
        posed, theta
    )
    at = staged.evaluate(theta)
    rows = [v.r[chain.row_mask] for v, chain in zip(at.values, staged.layout.chains, strict=True)]
    return np.concatenate([*rows, at.prior])


def test_residuals_agree_with_an_integrator():
    posed = problem()
    assert FixedSteps(posed).residuals(posed.guess) == pytest.approx(integrated(posed, posed.guess), abs=5e-4)


@pytest.mark.parametrize("kind", ["driven", "time in front"])
def test_the_order_is_three(kind):
    t, x, k = cf.symbols("t x k")
    right = {"driven": -k * x + 3 * t**2, "time in front": -k * t * x}[kind]
    model = cf.Model({x: right}, parameters=[k], time=t, initial={x: 1})
    errors = []
    for n in (20, 80):  # two steps between data, from 20 intervals on
        times = np.linspace(0, 2, n + 1)[1:]
        posed = cf.Problem(model, cf.Experiment({"x": 0 * times}, time=times, sigma=1), parameters={"k": 1.3})
        errors.append(np.abs(FixedSteps(posed).residuals(posed.guess) - integrated(posed, posed.guess)).max())
    assert np.log(errors[0] / errors[1]) / np.log(4) == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_jacobian(scale):
    posed = problem(scale=scale)
    model = FixedSteps(posed)
    exact, h = model.jacobian(posed.guess), 1e-6
    for j in range(posed.guess.size):
        e = h * (np.arange(posed.guess.size) == j)
        slope = (model.residuals(posed.guess + e) - model.residuals(posed.guess - e)) / (2 * h)
        assert exact[:, j] == pytest.approx(slope, abs=1e-7)


def test_jacobian_without_computed_initial_states():
    """The charts of all experiments at once give what they give one by one."""
    posed = problem()
    same = posed.replace(experiments=[_with_initial(e) for e in posed.experiments])
    model, theta = FixedSteps(same), same.guess
    together, single = model._charts.natural(theta), model._charts._one_by_one(theta)
    for left, right in zip(together, single, strict=True):
        assert np.array_equal(left, right)


def _with_initial(e):
    initial = {**e.initial, "y": 0.3}
    return cf.Experiment(e.data, sigma=e.sigma, initial=initial, inputs=e.inputs, name=e.name)


@pytest.mark.parametrize("k", [1e-12, 1e3, 1e9])
def test_rate_constants_may_be_wild(k):
    x, rate = cf.symbols("x k")
    model = cf.Model({x: rate * (1 - x)}, parameters=[rate], initial={x: 0})
    times = np.arange(1.0, 6.0)
    posed = cf.Problem(
        model, cf.Experiment({"x": 0 * times}, time=times, sigma=1), parameters={"k": cf.Parameter(k, scale="log")}
    )
    assert FixedSteps(posed).residuals(posed.guess) == pytest.approx(1 - np.exp(-k * times), abs=1e-6)


def test_what_cannot_be_computed_is_not_raised():
    x, rate = cf.symbols("x k")
    model = cf.Model({x: rate * (-x) ** 0.5}, parameters=[rate], initial={x: 1})
    times = np.arange(1.0, 6.0)
    posed = cf.Problem(model, cf.Experiment({"x": 0 * times}, time=times, sigma=1), parameters={"k": 1.0})
    steps = FixedSteps(posed)
    assert not np.isfinite(steps.residuals(posed.guess)).all()
    assert np.isfinite(steps.jacobian(posed.guess)).all()
