"""Fits of quantities that the data hardly determine: folds, hidden states, exact ridges."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf
from castfit.fit.choice import DEFAULT_SOLVER

TIMES = np.linspace(0.25, 10, 40)


def equal_rates(seed: int, scale: str = "log") -> cf.Problem:
    """A -> B -> C with equal rates, of which B is measured, from rates 2.5 times too large and half as large."""
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={b: 0})
    data = 0.6 * TIMES * np.exp(-0.6 * TIMES) + 0.02 * np.random.default_rng(seed).standard_normal(TIMES.size)
    initial = {"a": cf.free(2.0, lower=0.01, upper=100, scale=scale)}
    parameters = {
        name: cf.Parameter(value, lower=0.006, upper=60, scale=scale) for name, value in (("k1", 1.5), ("k2", 0.3))
    }
    return cf.Problem(model, cf.Experiment({"b": data}, time=TIMES, sigma=0.02, initial=initial), parameters=parameters)


def hidden_predator() -> cf.Problem:
    """Lotka and Volterra's model with measured prey only: b and the predator's start enter as their product."""
    x, y, a, b, c, d = cf.symbols("x y a b c d")
    model = cf.Model({x: a * x - b * x * y, y: c * x * y - d * y}, parameters=[a, b, c, d])
    times = np.linspace(0.5, 15, 40)
    truth = {"a": 1.0, "b": 0.5, "c": 0.3, "d": 0.8}
    prey = np.asarray(cf.simulate(model, truth, times, initial={"x": 2.0, "y": 1.0})["x"])
    data = prey * np.exp(0.1 * np.random.default_rng(0).standard_normal(40))
    experiment = cf.Experiment({"x": data}, time=times, initial={"x": cf.free(1.5), "y": cf.free(1.0)})
    parameters = {name: cf.Parameter(0.5, lower=1e-3, upper=10, scale="log") for name in truth}
    return cf.Problem(model, experiment, parameters=parameters)


@pytest.mark.parametrize("method", [(), ("single",), ("single", cf.GaussNewton("levenberg_marquardt"))])
@pytest.mark.parametrize("seed", [2, 3, 5])
def test_equal_rates_are_found_in_a_few_iterations(seed, method):
    result = cf.fit(equal_rates(seed), *method)
    assert result.success
    assert result.strategies == ("the start",)
    assert result.iterations <= 20  # 66 to 2,539 without the curvature of the residuals
    assert result.parameters["k1"] == pytest.approx(result.parameters["k2"], rel=0.02)
    assert all(np.isfinite(list(result.standard_errors.values())))


def test_full_steps_near_the_solution_do_not_raise_the_cost_far():
    """An unchecked full step near the fold of these data multiplied the cost by 680."""
    costs = [entry["cost"] for entry in cf.fit(equal_rates(5), "single").history]
    lowest = np.minimum.accumulate(costs)
    is_close = lowest[:-1] < 1.1 * min(costs)
    assert (np.array(costs[1:])[is_close] < 2.0 * min(costs)).all()


def test_profile_starts_at_a_fold():
    result = cf.fit(equal_rates(3))
    low, high = cf.profile(result, ["k1"])["k1"].limits()
    interval = result.confidence_intervals()["k1"]
    assert np.log(interval[1] / interval[0]) == pytest.approx(np.log(high / low), rel=0.2)


@pytest.mark.parametrize(("transcription", "limit"), [(None, 60), ("multiple", 150), ("collocation", 150)])
def test_hidden_state_from_a_far_guess_takes_few_iterations(transcription, limit):
    result = cf.fit(hidden_predator(), transcription)
    assert result.success
    assert result.neg2loglik == pytest.approx(-21.1145, abs=1e-3)
    assert result.iterations <= limit  # 844, 451 and 912 before
    assert transcription is None or result.method[1] == DEFAULT_SOLVER  # without the limits of a first search


@pytest.mark.parametrize("transcription", ["multiple", "collocation"])
def test_scale_and_amplitude_do_not_slow_transcriptions_with_states(transcription):
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k, s], outputs={"out": s * x})
    times = np.linspace(0.125, 5, 40)
    data = 3.0 * np.exp(-0.7 * times) + 0.05 * np.random.default_rng(121).standard_normal(40)
    initial = {"x": cf.free(2.5, lower=0.01, upper=100, scale="log")}
    parameters = {name: cf.Parameter(1.5, lower=0.01, upper=100, scale="log") for name in ("k", "s")}
    problem = cf.Problem(
        model, cf.Experiment({"out": data}, time=times, sigma=0.05, initial=initial), parameters=parameters
    )
    result = cf.fit(problem, transcription)
    assert result.success
    assert result.iterations <= 40
    assert result.rank == 2


def test_solver_of_the_user_is_not_replaced_on_rank_deficient_problems():
    result = cf.fit(hidden_predator(), "multiple", cf.GaussNewton("levenberg_marquardt"))
    assert result.success
    assert result.solver != DEFAULT_SOLVER.label
    result = cf.fit(hidden_predator(), "multiple", cf.GaussNewton(max_iter=30), retry=False)
    assert result.iterations <= 30
    assert result.strategies == ("the start",)


def test_descent_follows_a_fallback_that_ends_near_an_optimum():
    result = cf.fit(hidden_predator(), "collocation")
    assert result.strategies[-1] == "descent from the end of the last search"
    assert result.transcription.startswith("collocation")  # as requested
