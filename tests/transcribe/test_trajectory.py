"""Where state trajectories start: near the data, finite, and as asked."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from castfit.experiment.experiment import Experiment, free
from castfit.integrate import IntegratorOptions
from castfit.model.model import Model, symbols
from castfit.problem.problem import Parameter, Problem
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.trajectory import Trajectory, start_trajectory
from tests.builders import LOTKA_VOLTERRA, LOTKA_VOLTERRA_POLE, everything, lotka_volterra, refused

OPTIONS = IntegratorOptions()


def start(problem: Problem, states="data") -> Trajectory:
    return start_trajectory(problem, problem.guess, states, OPTIONS)


def test_measured_states_pass_through_their_data_and_the_initial_value():
    problem = lotka_volterra()
    x, z = start(problem).interpolate(0, np.arange(0.0, 11.0))
    np.testing.assert_allclose(x[1:], LOTKA_VOLTERRA, rtol=1e-12)
    np.testing.assert_array_equal(x[0], [0.4, 1.0])
    assert z.shape == (11, 0)


def test_simulation_ignores_the_data():
    problem = lotka_volterra()
    k = problem.guess
    exact = solve_ivp(
        lambda t, s: [-k[0] * s[0] + k[1] * s[0] * s[1], k[2] * s[1] - k[3] * s[0] * s[1]],
        (0, 10),
        [0.4, 1.0],
        rtol=1e-10,
        atol=1e-12,
        t_eval=[0.5, 3, 10],
    )
    trajectory = start(problem, "simulation")
    np.testing.assert_allclose(trajectory.interpolate(0, np.array([0.5, 3, 10]))[0], exact.y.T, rtol=1e-6)


def test_unmeasured_states_are_simulated_with_the_measured_ones_imposed():
    x, y, k = symbols("x y k")
    model = Model({x: -k * x, y: x - y}, parameters=[k])
    times = np.linspace(0, 4, 9)
    problem = Problem(  # far from the data, which say k = 1: y follows the data, not the parameter
        model,
        Experiment({"x": np.exp(-times)}, time=times, initial={"x": 1.0, "y": 0.0}),
        parameters={"k": 5.0},
    )
    states = start(problem).interpolate(0, times)[0]
    np.testing.assert_allclose(states[:, 1], times * np.exp(-times), atol=2e-3)


def test_outputs_that_show_one_state_are_inverted_and_averaged():
    x, k, u, t = symbols("x k u t")
    model = Model(
        {x: -x}, parameters=[k], inputs=[u], time=t, outputs={"gauge": k * x + u * t, "square": x**2, "double": 2 * x}
    )
    times = np.array([0.0, 1.0, 2.0, 3.0])
    values = np.array([1.0, 0.5, 0.3, 0.2])
    data = {
        "gauge": (times, 3 * values + 0.7 * times),
        "square": (times, 99 + values),
        "double": (times, np.column_stack([2 * values + 1, 2 * values - 1])),
    }
    sigma = {"gauge": 3.0, "square": 1.0, "double": 2.0}
    experiment = Experiment(data, sigma=sigma, initial={"x": 1.0}, inputs={"u": 0.7})
    problem = Problem(model, experiment, parameters={"k": 3.0})
    np.testing.assert_allclose(start(problem).interpolate(0, times)[0][:, 0], values, rtol=1e-12)
    # Weights count: a gauge that is off by 1 counts a fourth of the two others together if it is three times as noisy.
    off = {**data, "gauge": (times, 3 * (values + 1) + 0.7 * times)}
    noisy = Experiment(off, sigma={**sigma, "gauge": 6.0}, initial={"x": 1.0}, inputs={"u": 0.7})
    states = start(problem.replace(experiments=noisy)).interpolate(0, times[1:])[0][:, 0]
    np.testing.assert_allclose(states, values[1:] + 0.25 / 2.25, rtol=1e-12)


def test_smoothing_is_smoother_but_near():
    x = symbols("x")
    rng = np.random.default_rng(1)
    times = np.linspace(0, 6, 40)
    clean = np.sin(times)
    noisy = clean + 0.1 * rng.standard_normal(times.size)
    problem = Problem(Model({x: -x}), Experiment({"x": noisy}, time=times, initial={"x": free(0.0)}))
    rough, smooth = (start(problem, kind).interpolate(0, times)[0][1:, 0] for kind in ("data", "smoothed"))
    np.testing.assert_allclose(rough, noisy[1:], rtol=1e-10)
    assert np.abs(np.diff(smooth, 2)).sum() < 0.2 * np.abs(np.diff(rough, 2)).sum()
    assert np.abs(smooth - clean[1:]).max() < 0.1


def test_states_by_hand():
    problem = lotka_volterra()
    times = np.array([0.0, 5.0, 10.0])
    data = {"x": (times, [9.0, 2.0, 4.0])}
    x = start(problem, data).interpolate(0, times)[0]
    assert x[:, 0].tolist() == [0.4, 2.0, 4.0]  # the initial value is the problem's own
    nested = start(problem, {"experiment 1": data}).interpolate(0, times)[0]
    np.testing.assert_array_equal(nested, x)
    trajectory = start(problem)
    assert start(problem, trajectory) is trajectory


def test_states_by_hand_for_some_experiments():
    problem = everything()
    trajectory = start(problem, {"second": {"y": ([0.2, 1.6], [1.0, 3.0])}})
    assert trajectory.interpolate(1, np.array([1.6]))[0][0, 1] == 3.0
    free_run = start(problem, "simulation")
    np.testing.assert_allclose(
        trajectory.interpolate(0, np.array([1.0]))[0], free_run.interpolate(0, np.array([1.0]))[0]
    )


@pytest.mark.parametrize(
    ("states", "phrases"),
    [
        ("dat", ["'dat' is not known: did you mean 'data'?"]),
        (3, ["states is a int"]),
        ({"z": ([0, 1], [1, 2])}, ["there is no state 'z'"]),
        ({"x": [1, 2, 3]}, ["state 'x' is [1, 2, 3]; give (times, values)"]),
        ({"x": ([0, 1], [1, 2, 3])}, ["state 'x' is ([0, 1], [1, 2, 3])"]),
        ({"x": ([1, 0], [1, 2]), "y": ([0, 1], [1, np.nan])}, ["state 'x' is", "state 'y' is"]),
        ({"x": (["0", "1"], [1, 2])}, ["state 'x' is"]),
        ({"first": {"x": ([0], [1])}}, ["there is no experiment 'first': "]),
        (
            {"experiment 1": 3, "experiment 2": {}},
            ["there is no experiment 'experiment 2'", "states of 'experiment 1' is a int"],
        ),
    ],
)
def test_wrong_states_are_refused(states, phrases):
    problem = lotka_volterra()
    with refused(*phrases):
        MultipleShooting(3, states=states).transcribe(problem, problem.guess)


def test_a_simulation_that_stops_holds_its_last_value():
    problem = lotka_volterra(LOTKA_VOLTERRA_POLE)
    trajectory = start(problem, "simulation")
    x = trajectory.interpolate(0, np.linspace(0, 10, 101))[0]
    assert np.isfinite(x).all()
    np.testing.assert_array_equal(x[50:], x[-1:].repeat(51, axis=0))  # the pole is at 3.3
    assert (x[33] > 5).all()


def test_algebraic_states_are_consistent_where_all_states_are_measured():
    x, z, k = symbols("x z k")
    model = Model({x: -k * z}, algebraic={z: z**3 - x}, parameters=[k])
    times = np.array([0.0, 1.0, 2.0])
    data = Experiment({"x": [8.0, 1.0, 0.125]}, time=times, initial={"x": 8.0, "z": 1.0})
    found_x, found_z = start(Problem(model, data, parameters={"k": 1.0})).interpolate(0, times)
    np.testing.assert_allclose(found_z[:, 0], [2.0, 1.0, 0.5], rtol=1e-9)
    np.testing.assert_allclose(found_x[:, 0], [8.0, 1.0, 0.125])


def test_algebraic_states_are_simulated_with_inputs_that_jump():
    problem = everything()
    k2 = problem.guess[1]
    for i, condition in enumerate(problem.conditions):
        x, z = start(problem).interpolate(i, np.unique(condition.points.times))
        np.testing.assert_allclose(z + 0.1 * z**3, (k2 * x[:, 0] + x[:, 1] ** 2)[:, None], rtol=2e-3, atol=1e-6)


def test_data_at_the_start_only():
    x, y, k = symbols("x y k")
    model = Model({x: -k * x, y: x - y}, parameters=[k])
    data = Experiment({"x": ([0.0], [2.0]), "y": ([1.0, 2.0], [0.1, 0.2])}, initial={"x": 1.0, "y": 0.0})
    states = start(Problem(model, data, parameters={"k": 1.0})).interpolate(0, np.array([0.0, 1.0, 2.0]))[0]
    np.testing.assert_allclose(states, [[1, 0], [1, 0.1], [1, 0.2]])


def test_magnitudes_are_positive():
    x, y, k = symbols("x y k")
    model = Model({x: -k * x, y: 0 * y}, parameters=[k])
    data = Experiment({"x": [-4.0, -2.0]}, time=[0, 1], initial={"x": -4.0, "y": 0.0})
    trajectory = start(Problem(model, data, parameters={"k": 1.0}))
    assert trajectory.units[0][1] == 1.0
    assert 2.0 < trajectory.units[0][0] < 4.0


@pytest.mark.parametrize("states", ["data", "smoothed", "simulation"])
def test_starts_are_finite_however_wild_theta_is(states):
    x, y, k, m = symbols("x y k m")
    model = Model(
        {x: k * x**2, y: ca.log(m) * x}, parameters=[k, m], outputs={"scaled": ca.log(m) * x}, initial={x: 1 / (1 - m)}
    )
    data = Experiment({"scaled": [1, 2, 1.5]}, time=[0, 1, 2], initial={"y": 0.0})
    problem = Problem(model, data, parameters={"k": 1.0, "m": Parameter(2.0)})
    for theta in ([1e300, -1.0], [1.0, 1.0], [-1e5, 1e-300], [np.inf, np.inf]):
        trajectory = start_trajectory(problem, np.array(theta), states, OPTIONS)
        x_found, _ = trajectory.interpolate(0, np.linspace(0, 2, 7))
        assert np.isfinite(x_found).all()
        assert np.isfinite(trajectory.units[0]).all()
