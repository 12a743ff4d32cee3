"""Inputs that are estimated: interpolation, roughness, fits against linear algebra, and what is refused."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import quad, solve_ivp

import castfit as cf
from tests.builders import refused

KINDS = ("piecewise_constant", "linear", "cubic_spline")
METHODS = (cf.SingleShooting(), cf.MultipleShooting(4), cf.Collocation())
K = 0.5
TIMES = np.linspace(0, 10, 26)[1:]


def labels(methods):
    return [m.label for m in methods]


def driven() -> cf.Model:
    """x' = u - k x."""
    x, u, k = cf.symbols("x u k")
    return cf.Model({x: u - k * x}, parameters=[k], inputs=[u], initial={x: 1.0})


def measured(seed: int = 3, sigma: float = 0.03) -> np.ndarray:
    fine = np.linspace(0, 10, 201)
    signal = cf.Input.linear(fine, 1.0 + np.sin(fine) * np.exp(-0.1 * fine))
    x = cf.simulate(driven(), {"k": K}, TIMES, inputs={"u": signal})["x"]
    return x + sigma * np.random.default_rng(seed).normal(size=x.size)


def asked(u, *, sigma: float | None = 0.03, k=None, factor: float = 1.0, unit: float = 1.0, **more) -> cf.Problem:
    """Return the question, in other units of time (factor) and of states and input (unit)."""
    x, s, p = cf.symbols("x u k")
    model = cf.Model({x: (s - p * x) / factor}, parameters=[p], inputs=[s], initial={x: unit})
    data = cf.Experiment(
        {"x": unit * measured()}, factor * TIMES, sigma=None if sigma is None else unit * sigma, inputs={"u": u}
    )
    return cf.Problem(model, data, parameters={"k": k or cf.Parameter(K, fixed=True)}, **more)


def knots_of(kind: str, n: int = 12) -> np.ndarray:
    t = np.linspace(0, 10, n + 1)
    return t[:-1] if kind == "piecewise_constant" else t


def design(said) -> tuple[np.ndarray, np.ndarray]:
    """Return how the data depend on the values at the knots, by SciPy: x = x_0 + A c."""
    decay = np.exp(-K * TIMES)
    columns = []
    for j in range(said.knots.size):
        ends = np.unique(np.concatenate([said.knots, TIMES, [0.0, 10.0]]))
        x, found = 0.0, {0.0: 0.0}
        for a, b in itertools.pairwise(ends):
            step = quad(lambda t, j=j, b=b: np.exp(-K * (b - t)) * said.interpolation(t)[0, j], a, b)[0]
            x = x * np.exp(-K * (b - a)) + step
            found[float(b)] = x
        columns.append([found[float(t)] for t in TIMES])
    return decay, np.array(columns).T


@given(kind=st.sampled_from(KINDS), steps=st.lists(st.floats(0.1, 3.0), min_size=5, max_size=9), start=st.floats(-9, 9))
def test_interpolation_passes_through_the_knots_and_keeps_constants(kind, steps, start):
    knots = start + np.cumsum(steps)
    said = cf.Input.estimated(knots, kind, guess=1.0)
    assert_allclose(said.interpolation(knots), np.eye(knots.size), atol=1e-9)
    inside = np.linspace(knots[0], knots[-1], 23)
    assert_allclose(said.interpolation(inside).sum(axis=1), 1.0, atol=1e-9)


@pytest.mark.parametrize("kind", ["linear", "cubic_spline"])
def test_interpolation_is_that_of_the_known_input_of_the_same_kind(kind):
    knots, values = np.array([0.0, 1.0, 2.5, 4.0, 7.0, 8.0]), np.array([1.0, 3.0, -1.0, 0.0, 2.0, 2.5])
    at = np.linspace(0, 8, 41)
    known = getattr(cf.Input, kind)(knots, values)
    assert_allclose(cf.Input.estimated(knots, kind, guess=0.0).interpolation(at) @ values, known(at), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [1, 2])
def test_roughness_is_none_of_what_is_smooth_and_has_no_unit_of_time(kind, order):
    knots = np.array([0.0, 1.0, 2.5, 4.0, 7.0, 8.0])
    said = cf.Input.estimated(knots, kind, guess=1.0, order=order)
    assert said.roughness.shape == (knots.size - order, knots.size)
    assert_allclose(said.roughness @ np.ones(6), 0.0, atol=1e-9)
    if order == 2:
        assert_allclose(said.roughness @ (3.0 - 2.0 * knots), 0.0, atol=1e-9)
    later = cf.Input.estimated(2000.0 + 60.0 * knots, kind, guess=1.0, order=order)
    values = np.array([1.0, 3.0, -1.0, 0.0, 2.0, 2.5])
    assert_allclose(np.sum((later.roughness @ values) ** 2), np.sum((said.roughness @ values) ** 2), rtol=1e-9)


def test_roughness_of_a_spline_is_the_integral_of_its_squared_curvature():
    knots, values = np.array([1.0, 2.0, 3.5, 5.0, 8.0, 9.0]), np.array([1.0, 3.0, -1.0, 0.0, 2.0, 2.5])
    said = cf.Input.estimated(knots, "cubic_spline", guess=1.0)
    spline = cf.Input.cubic_spline(knots, values)._polynomial
    total = sum(quad(lambda t: float(spline(t, 2)) ** 2, a, b)[0] for a, b in itertools.pairwise(knots))
    assert_allclose(np.sum((said.roughness @ values) ** 2), total * 8.0**3, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS, ids=labels(METHODS))
def test_estimates_and_errors_are_those_of_penalised_linear_algebra(kind, method):
    weight = 0.002
    said = cf.Input.estimated(knots_of(kind), kind, guess=1.0, smoothness=weight)
    result = cf.fit(asked(said), method)
    assert result.success, result.message
    decay, A = design(said)
    E, R = A / 0.03, np.sqrt(weight) * said.roughness
    H = E.T @ E + R.T @ R
    y = (measured() - decay) / 0.03
    best = np.linalg.solve(H, E.T @ y)
    left = y - E @ best
    assert_allclose(result.theta, best, atol=2e-5)
    assert_allclose(list(result.standard_errors.values()), np.sqrt(np.diag(np.linalg.inv(H))), rtol=1e-3)
    used = np.trace(np.linalg.solve(H, E.T @ E))
    assert_allclose(result.chi2, left @ left, rtol=1e-4)
    assert result.dof == round(TIMES.size - used)
    assert_allclose(result.effective["u"], used, rtol=1e-4)
    assert_allclose(result.neg2loglik, left @ left + TIMES.size * np.log(2 * np.pi * 0.03**2), rtol=1e-4)
    assert_allclose(result.aic - result.neg2loglik, 2 * used, rtol=1e-4)


def restricted(log_weight: float, E, y, R, variance: float | None) -> float:
    """Return -2 log of the density of the data with all values integrated over; the variance profiled if unknown."""
    S = np.exp(log_weight) * R.T @ R
    H = E.T @ E + S
    best = np.linalg.solve(H, E.T @ y)
    total = np.sum((y - E @ best) ** 2) + best @ S @ best
    spread = np.linalg.slogdet(H)[1] - R.shape[0] * log_weight
    free = y.size - (R.shape[1] - R.shape[0])
    return total / variance + spread if variance else free * np.log(total) + spread


@pytest.mark.parametrize("known", [True, False])
def test_the_weight_is_that_of_the_largest_restricted_likelihood(known):
    said = cf.Input.estimated(knots_of("linear", 20), guess=1.0)
    result = cf.fit(asked(said, sigma=0.03 if known else None))
    decay, A = design(said)
    unit, variance = (0.03, 1.0) if known else (1.0, None)
    E, y = A / unit, (measured() - decay) / unit
    grid = np.linspace(-25, 15, 4001)
    values = [restricted(g, E, y, said.roughness, variance) for g in grid]
    best = float(np.exp(grid[int(np.argmin(values))]))
    found = result.smoothness["u"]
    if not known:  # there the penalty is relative to the variance of the data
        found = found * result.sigmas["sigma"] ** 2
    assert_allclose(np.log(found), np.log(best), atol=0.05)


def test_the_choice_depends_on_no_unit():
    knots = knots_of("linear", 20)
    plain = cf.fit(asked(cf.Input.estimated(knots, guess=1.0)))
    for factor, unit in ((60.0, 1.0), (1.0, 1e4), (1e-3, 1e-3)):
        other = cf.fit(asked(cf.Input.estimated(factor * knots, guess=unit), factor=factor, unit=unit))
        assert_allclose(other.theta, unit * plain.theta, rtol=2e-3, atol=2e-3 * unit)
        assert_allclose(other.effective["u"], plain.effective["u"], rtol=2e-3)
        assert_allclose(other.smoothness["u"] * unit**2, plain.smoothness["u"], rtol=0.02)


def test_problems_and_results_survive_pickling_and_saving(tmp_path):
    problem = asked(cf.Input.estimated(knots_of("cubic_spline"), "cubic_spline", guess=1.0, scale="log"))
    again = pickle.loads(pickle.dumps(problem))
    assert again.names == problem.names
    posed = pickle.loads(pickle.dumps(problem.posed))
    result = cf.fit(problem)
    assert_allclose(cf.fit(again).theta, result.theta, rtol=1e-6)
    assert_allclose(cf.fit(posed).theta, result.theta, rtol=1e-6)
    result.save(tmp_path / "result.json")
    loaded = cf.Result.load(tmp_path / "result.json").with_problem(again)
    assert loaded.smoothness == result.smoothness
    assert loaded.effective == result.effective
    assert_allclose(loaded.predict()["experiment 1"]["x"], result.predict()["experiment 1"]["x"], rtol=1e-9)


def test_what_is_wrong_with_an_estimated_input_is_said_at_once():
    first = ("kind is 'wavy'", "knots must increase strictly; look at t = 1", "guess is missing")
    with refused(*first, "smoothness is -1", "order is 3", "per_experiment is 'yes'"):
        cf.Input.estimated([0, 2, 1], "wavy", smoothness=-1, order=3, per_experiment="yes")
    with refused("3 knots given; this kind needs at least 4", "the guess 0 lies outside"):
        cf.Input.estimated([0, 1, 2], "cubic_spline", guess=0.0, lower=1.0)
    with refused("scale='log' needs a positive guess"):
        cf.Input.estimated([0, 1, 2], guess=0.0, scale="log")
    with refused("guess has 2 numbers for 3 knots"):
        cf.Input.estimated([0, 1, 2], guess=[1.0, 2.0])


def test_what_is_wrong_with_its_place_is_said_at_once():
    with refused("input 'u' is given on [1, 8] but the experiment runs over [0, 10]"):
        asked(cf.Input.estimated([1, 4, 8], guess=1.0))
    with refused(
        "the knot 50 of 'u' lies behind the last measurement at 10", "the knot -8 of 'u' lies before the start"
    ):
        asked(cf.Input.estimated([-8, -4, 4, 12, 50], guess=1.0))
    with refused("and a value holds from its knot on"):
        asked(cf.Input.estimated([0, 5, 10], "piecewise_constant", guess=1.0))
    with refused("input 'u' is to be estimated, which only experiments"):
        cf.simulate(driven(), {"k": 1.0}, [1.0], inputs={"u": cf.Input.estimated([0, 1], guess=1.0)})


def scipy_course(knots, values, log: bool) -> np.ndarray:
    g = cf.Input.linear(knots, np.log(values) if log else values)
    u = (lambda t: np.exp(g(t))) if log else g
    found = solve_ivp(lambda t, x: u(t) - K * x, (0, 10), [1.0], t_eval=TIMES, rtol=1e-10, atol=1e-10, max_step=0.1)
    return found.y[0]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_simulations_follow_the_values_at_the_knots(scale):
    knots, values = np.array([0.0, 2.0, 5.0, 10.0]), np.array([1.0, 3.0, 0.5, 2.0])
    problem = asked(cf.Input.estimated(knots, guess=1.0, scale=scale))
    assert problem.names == ("u(0)", "u(2)", "u(5)", "u(10)")
    found = cf.simulate(problem, dict(zip(problem.names, values, strict=True)))["experiment 1"]["x"]
    assert_allclose(found, scipy_course(knots, values, scale == "log"), rtol=1e-5)
