"""Moving horizons: the Kalman filter where models are linear, the path where windows are long, bounds, a reactor."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy import optimize

import castfit as cf
from castfit.transcribe.path_likelihood import PathLikelihood, marginal
from tests.builders import refused

A = np.array([[-0.5, 0.3, 0.0], [-0.2, -0.4, 0.5], [0.1, -0.3, -0.2]])
G = np.array([[0.5, 0.0], [0.0, 0.3], [0.0, 0.0]])  # the third equation has no noise
C = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
SIGMA, MEAN, SPREAD = np.array([0.3, 0.5]), np.array([0.0, 0.2, 0.1]), np.array([1.0, 0.5, 0.0])
TIMES = 0.4 * np.arange(25)


def linear(values: np.ndarray) -> Any:
    """Return the result of smoothing with a linear model of which everything is known."""
    x, w = cf.symbols("a b c"), cf.symbols("w v")
    right = ca.vertsplit(ca.DM(A) @ ca.vertcat(*x) + ca.DM(G) @ ca.vertcat(*w))
    model = cf.Model(dict(zip(x, right, strict=True)), noises=w, outputs={"y": x[0] + x[2], "z": x[1]})
    initial = {n: cf.Normal(m, d) if d else m for n, m, d in zip("abc", MEAN.tolist(), SPREAD.tolist(), strict=True)}
    experiment = cf.Experiment(
        {"y": values[:, 0], "z": values[:, 1]}, TIMES, sigma={"y": 0.3, "z": 0.5}, initial=initial
    )
    return cf.fit(cf.Problem(model, experiment))


def drawn() -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(TIMES.size, 2))
    values[3, 0], values[7], values[8] = np.nan, (np.nan, 0.3), (0.1, np.nan)
    return values


@pytest.mark.parametrize("horizon", [1, 4, 40])
def test_linear_models_have_the_kalman_filter_at_every_horizon(horizon):
    values = drawn()
    result = linear(values)
    likelihood = PathLikelihood(*marginal(result.problem.posed), result.longest)
    F = likelihood.evaluate(result.y, None).modes[0].blocks.F
    F = F.reshape(TIMES.size - 1, -1, *F.shape[1:])  # the stages of each interval
    estimator, m, P = cf.moving_horizon(result, horizon), MEAN, np.diag(SPREAD**2)
    for k, (time, row) in enumerate(zip(TIMES, values, strict=True)):
        for slope in F[k - 1] if k else ():
            m, P = slope[:, :3] @ m, slope[:, :3] @ P @ slope[:, :3].T + slope[:, 3:] @ slope[:, 3:].T
        is_measured = np.isfinite(row)
        H = C[is_measured]
        S = H @ P @ H.T + np.diag(SIGMA[is_measured] ** 2)
        gain = P @ H.T @ np.linalg.inv(S)
        m, P = m + gain @ (row[is_measured] - H @ m), P - gain @ S @ gain.T
        estimate = estimator.step(time, {"y": row[0], "z": row[1]})
        np.testing.assert_allclose(list(estimate.states.values()), m, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(estimate.covariance, P, rtol=1e-12, atol=1e-12)
        assert estimate.iterations == 1
    assert estimator.states == estimate.states
    assert set(estimator.disturbances) == {"w", "v"}


@pytest.mark.parametrize(("rate", "gap"), [(5.0, 0.3), (1.0, 2.0), (1.0, 9.0), (30.0, 4.0)])
def test_long_intervals_are_divided_until_they_have_the_exact_deviation(rate, gap):
    x, w = cf.symbols("x w")
    times = 0.3 / rate * np.arange(20)
    values = 2.0 * np.exp(-rate * times)
    experiment = cf.Experiment({"x": values}, times, sigma=0.1, initial={"x": cf.Normal(2, 0.5)})
    result = cf.fit(cf.Problem(cf.Model({x: -rate * x + 0.7 * w}, noises=[w]), experiment))
    estimator, mean, variance, previous_time = cf.moving_horizon(result, horizon=6), 2.0, 0.25, 0.0
    for time, value in [*zip(times, values, strict=True), (times[-1] + gap, np.nan), (times[-1] + 1.5 * gap, 0.3)]:
        decay = np.exp(-rate * (time - previous_time))
        mean, variance, previous_time = decay * mean, decay**2 * variance + 0.49 * (1 - decay**2) / (2 * rate), time
        gain = variance / (variance + 0.01) if np.isfinite(value) else 0.0
        mean, variance = mean + gain * ((value if gain else 0.0) - mean), (1 - gain) * variance
        estimate = estimator.step(time, {"x": value})
        assert estimate.deviations["x"] == pytest.approx(np.sqrt(variance), rel=1e-4)
        assert estimate.states["x"] == pytest.approx(mean, abs=1e-4 * np.sqrt(variance))


def oscillator() -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a result of a Van der Pol oscillator that is pushed by an input, too."""
    x, y, w, u = cf.symbols("x y w u")
    model = cf.Model({x: y, y: (1 - x**2) * y - x + u + 0.5 * w}, noises=[w], inputs=[u])
    times = 0.2 * np.arange(1, 31)
    values = 2 * np.cos(times) + 0.1 * np.random.default_rng(1).normal(size=30)
    experiment = cf.Experiment(
        {"x": values},
        times,
        sigma=0.1,
        start=0,
        inputs={"u": 0.3},
        initial={"x": cf.Normal(2, 0.5), "y": cf.Normal(0, 0.5)},
    )
    return cf.fit(cf.Problem(model, experiment)), times, values


def test_a_window_that_holds_all_data_has_the_path_of_all_data():
    result, times, values = oscillator()
    likelihood = PathLikelihood(*marginal(result.problem.posed), result.longest)
    mode = likelihood.evaluate(result.y, None).modes[0]
    estimator = cf.moving_horizon(result, horizon=50)
    for time, value in zip(times, values, strict=True):
        estimate = estimator.step(time, {"x": value}, inputs={"u": 0.3} if time < 0.3 else None)
    np.testing.assert_allclose(list(estimate.states.values()), mode.point.x[-1], rtol=1e-6)
    np.testing.assert_allclose(estimate.covariance, mode.factor.covariances[1][-1], rtol=1e-4)
    h = likelihood.chains[0].chain.h[:, 0]
    in_interval = np.cumsum(h[::-1])[::-1] < 0.2 + 1e-9
    assert h[in_interval].sum() == pytest.approx(0.2)
    mean_noise = np.sqrt(h[in_interval]) @ mode.point.c[in_interval, 0] / 0.2
    assert estimate.disturbances["w"] == pytest.approx(mean_noise, rel=1e-4, abs=1e-6)
    # A short one, one step of Newton's method each, stays near.
    short_estimator = cf.moving_horizon(result, horizon=8, iterations=1)
    for time, value in zip(times, values, strict=True):
        short_estimate = short_estimator.step(time, {"x": value}, inputs={"u": 0.3})
    assert short_estimate.iterations == 1
    np.testing.assert_allclose(list(short_estimate.states.values()), list(estimate.states.values()), atol=0.05)


def test_bounds_hold_and_the_rest_is_the_optimum_within_them():
    values = drawn()
    values[4:7] = -1.5
    result = linear(values)
    bounds = {"b": (-0.1, 0.9), "w": (-0.8, 0.8)}
    estimator = cf.moving_horizon(result, horizon=50, bounds=bounds)
    for time, row in zip(TIMES[:8], values[:8], strict=True):
        estimate = estimator.step(time, {"y": row[0], "z": row[1]})
    likelihood = PathLikelihood(*marginal(result.problem.posed), result.longest)
    F = likelihood.evaluate(result.y, None).modes[0].blocks.F
    m, parts = F.shape[2] - 3, F.shape[0] // (TIMES.size - 1)
    K = 7 * parts

    def path(u: np.ndarray) -> np.ndarray:
        x = [np.array([MEAN[0] + SPREAD[0] * u[0], MEAN[1] + SPREAD[1] * u[1], MEAN[2]])]
        for k in range(K):
            x.append(F[k] @ np.concatenate([x[-1], u[2 + k * m : 2 + (k + 1) * m]]))
        return np.array(x)

    def cost(u: np.ndarray) -> float:
        r = (path(u)[::parts] @ C.T - values[:8]) / SIGMA
        return 0.5 * float(u @ u) + 0.5 * float(np.nansum(r**2))

    reach = 0.8 * np.sqrt(0.4 / parts)
    box = [(None, None)] * 2 + [(-reach, reach) if j == 0 else (None, None) for _ in range(K) for j in range(m)]
    inside = [
        {"type": "ineq", "fun": lambda u: path(u)[:, 1] + 0.1}, {"type": "ineq", "fun": lambda u: 0.9 - path(u)[:, 1]}
    ]  # fmt: skip
    exact = optimize.minimize(
        cost,
        np.zeros(2 + K * m),
        method="SLSQP",
        bounds=box,
        constraints=inside,
        options={"ftol": 1e-14, "maxiter": 500},
    )
    states = np.array(estimator._window.x)
    assert cost_of(estimator, values[:8]) == pytest.approx(exact.fun, rel=1e-6)
    np.testing.assert_allclose(states, path(exact.x), atol=2e-4)
    assert states[:, 1].min() > -0.1 - 1e-6
    assert any(name in estimator.now.held or np.isclose(states[:, 1], -0.1, atol=1e-6).any() for name in ("b", "w"))
    assert estimate.states["b"] >= -0.1 - 1e-6


def cost_of(estimator: Any, values: np.ndarray) -> float:
    """Return what the path of a window costs."""
    w = estimator._window
    r = (np.array(w.x)[w.steps] @ C.T - values) / SIGMA
    return 0.5 * float(np.sum(np.array(w.c) ** 2) + w.initial_deviations @ w.initial_deviations) + 0.5 * float(
        np.nansum(r**2)
    )


def reactor() -> tuple[Any, Any]:
    """Return a gas-phase reactor, A = B + C, 2 B = C, of which the pressure is measured, with a poor prior (1, 0, 4).

    Haseltine and Rawlings, Ind. Eng. Chem. Res. 44 (2005) 2451.
    """
    a, b, c, *w = cf.symbols("a b c wa wb wc")
    first_rate, second_rate = 0.5 * a - 0.05 * b * c, 0.2 * b**2 - 0.01 * c
    right = (-first_rate, first_rate - 2 * second_rate, first_rate + second_rate)
    model = cf.Model(
        {x: f + 0.002 * n for x, f, n in zip((a, b, c), right, w, strict=True)}, noises=w,
        outputs={"pressure": 32.84 * (a + b + c)},
    )  # fmt: skip
    truth = cf.Model(dict(zip((a, b, c), right, strict=True)))
    times = 0.25 * np.arange(121)
    true = cf.simulate(truth, {}, times[1:], initial={"a": 0.5, "b": 0.05, "c": 0.0})
    initial = {n: cf.Normal(m, 0.5) for n, m in {"a": 1.0, "b": 0.0, "c": 4.0}.items()}
    experiment = cf.Experiment({"pressure": [20.0, 21.0]}, times[1:3], sigma=0.25, start=0, initial=initial)
    return cf.fit(cf.Problem(model, experiment)), true


def test_the_batch_reactor_needs_a_horizon_and_bounds():
    result, true = reactor()
    assert result.success
    names, errors = ("a", "b", "c"), {}
    pressure = 32.84 * sum(true[n] for n in names)
    data = pressure + 0.25 * np.random.default_rng(0).normal(size=pressure.size)
    final_states = np.array([true[n][-1] for n in names])
    bounds = {n: (0.0, 10.0) for n in names}
    for kind, options in {
        "filter": {"horizon": 1, "iterations": 1},
        "horizon": {"horizon": 10, "bounds": bounds},
    }.items():
        estimator: Any = cf.moving_horizon(result, **options)
        for time, value in zip(true["time"], data, strict=True):
            estimator.step(time, {"pressure": value})
        errors[kind] = np.abs(np.array([estimator.states[n] for n in names]) - final_states).max()
    assert errors["filter"] > 0.3
    assert errors["horizon"] < 0.02


def test_filter_and_smoother_are_those_of_the_fit_where_the_model_is_linear():
    result = linear(drawn())
    kalman_result = cf.kalman(result)
    assert kalman_result.log_likelihood == pytest.approx(result.log_likelihood, rel=1e-9)
    for name in "abc":
        np.testing.assert_allclose(kalman_result.smoothed(name).values, result.path(name).values, atol=1e-8)
        np.testing.assert_allclose(kalman_result.smoothed(name).deviations, result.path(name).deviations, atol=1e-7)
    np.testing.assert_allclose(
        kalman_result.filtered("a").values[-1], kalman_result.smoothed("a").values[-1], rtol=1e-12
    )
    with pytest.raises(cf.InputError, match="unknown state 'y'"):
        kalman_result.filtered("y")
    with pytest.raises(cf.InputError, match="unknown experiment 'other'"):
        cf.kalman(result, "other")
    with pytest.raises(cf.InputError, match="pass the result of a model with process noise"):
        cf.kalman("x")


def test_filter_of_an_oscillator_is_near_and_that_of_a_horizon_of_one():
    result, times, values = oscillator()
    kalman_result = cf.kalman(result)
    assert abs(kalman_result.log_likelihood - result.log_likelihood) < 4.0
    coarse: Any = cf.fit(result.problem)
    estimator = cf.moving_horizon(coarse, horizon=1, iterations=1)
    for time, value in zip(times, values, strict=True):
        estimator.step(time, {"x": value}, inputs={"u": 0.3})
    filtered_states = [kalman_result.filtered(n).values[-1] for n in ("x", "y")]
    np.testing.assert_allclose(list(estimator.states.values()), filtered_states, atol=0.05)  # on other stages


def test_a_drifting_sensor_is_a_state():
    x, b, w, v = cf.symbols("x b w v")
    model = cf.Model({x: -x + 0.3 * w, b: 0.05 * v}, noises=[w, v], outputs={"y": x + b})
    rng = np.random.default_rng(3)
    t = 0.2 * np.arange(1, 201)
    data = 0.5 + 0.05 * rng.normal(size=200)  # at rest, behind a bias of one half
    initial = {"x": cf.Normal(0, 0.3), "b": cf.Normal(0, 1)}
    result: Any = cf.fit(cf.Problem(model, cf.Experiment({"y": data[:5]}, t[:5], sigma=0.05, start=0, initial=initial)))
    estimator = cf.moving_horizon(result, 10)
    for time, value in zip(t, data, strict=True):
        estimate = estimator.step(time, {"y": value})
    assert abs(estimate.states["b"] - 0.5) < 2.5 * estimate.deviations["b"] < 0.6


@pytest.mark.parametrize("steps", [160, pytest.param(10_000, marks=pytest.mark.slow)])
def test_moving_horizon_memory_does_not_grow(steps):
    result = linear(drawn())
    estimator, rng = cf.moving_horizon(result, 5), np.random.default_rng(0)
    sizes = []
    tracemalloc.start()
    for k in range(steps):
        estimator.step(0.4 * k, {"y": rng.normal(), "z": rng.normal()})
        if k in (60, steps - 1):
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] < sizes[0] + 20_000
    assert sum(estimator._window.steps) == 5


def test_moving_horizon_invalid_arguments_refused():
    result, _, _ = oscillator()
    with pytest.raises(cf.InputError, match="pass the result of a model with process noise"):
        cf.moving_horizon("x")
    with pytest.raises(cf.InputError) as caught:
        cf.moving_horizon(
            result, 0, experiment="e", bounds={"q": (0, 1), "x": (2, 1)}, initial={"r": 1.0, "y": "z"}, start=np.inf
        )
    message = str(caught.value)
    for words in ("horizon is 0; expected an integer of at least 1", "unknown experiment 'e'",
                  "bounds has the unknown name 'q'", "the bounds of 'x'",
                  "unknown state 'r'", "the initial value of 'y'", "start is inf"):  # fmt: skip
        assert words in message
    estimator = cf.moving_horizon(result, 5, initial={"x": 1.0, "y": cf.Normal(0, 0.1)}, start=10.0)
    assert estimator.states == {"x": 1.0, "y": 0.0}
    with pytest.raises(cf.InputError, match="input 'u' has no value yet"):
        estimator.step(11.0, {"x": 1.0})
    with pytest.raises(cf.InputError, match="before the start; expected a time from 10 on"):
        estimator.step(9.0, {"x": 1.0}, inputs={"u": 0.0})
    estimator.step(11.0, {"x": 1.0}, inputs={"u": 0.0})
    with pytest.raises(cf.InputError, match="times must increase"):
        estimator.step(10.5, {"x": 1.0})
    with pytest.raises(cf.InputError, match="'q' is not a measured output"):
        estimator.step(12.0, {"q": 1.0})
    for value in (np.inf, "a", None):
        with pytest.raises(cf.InputError, match="expected a finite number, or NaN for a missing measurement"):
            estimator.step(12.0, {"x": value})
    with pytest.raises(cf.InputError, match=r"expected Normal\(mean, deviation\) or a finite number"):
        cf.moving_horizon(result, initial={"x": np.inf})
    with pytest.raises(cf.InputError, match="unknown input 'v'"):
        estimator.step(12.0, {"x": 1.0}, inputs={"v": 1.0})
    previous_states = estimator.states
    assert estimator.step(12.0, {}).states != previous_states
    x, w = cf.symbols("x w")
    model = cf.Model({x: -x + w}, noises=[w])
    experiment = cf.Experiment(
        {"x": [1.0, 0.5]}, [1, 2], sigma=0.1, start=0, initial={"x": 1.0}, events=[cf.Event(1.5, {x: 0})]
    )
    with pytest.raises(cf.InputError, match="events and estimated inputs are unsupported"):
        cf.moving_horizon(cf.fit(cf.Problem(model, experiment)), 5)


@pytest.mark.parametrize("n_before", [0, 1, 5])
def test_saved_and_pickled_estimators_go_on_in_the_same_way(n_before, tmp_path):
    """Also before the first step, in a window that is not full, and with bounds that are active."""
    x, w, s = cf.symbols("x w s")
    values, times = [0.9, 0.6, 0.2, 0.1, 0.05, 0.3, 0.2], np.array([1.0, 2.0, 3.0, 9.0, 9.5, 10.0, 14.0])
    experiment = cf.Experiment({"x": values}, times, sigma=0.1, start=0.0, initial={"x": cf.Normal(1.0, 0.2)})
    model = cf.Model({x: -0.5 * x + s * w}, parameters=[s], noises=[w])
    result = cf.fit(cf.Problem(model, experiment, parameters={"s": cf.Parameter(0.2, scale="log")}))
    estimator = cf.moving_horizon(result, 3, bounds={"x": (0.15, 0.95)})
    for time, value in zip(times[:n_before], values[:n_before], strict=True):
        estimator.step(time, {"x": value})
    estimator.save(tmp_path / "horizon.json")
    copies = [pickle.loads(pickle.dumps(estimator)), cf.MovingHorizon.load(tmp_path / "horizon.json", result)]
    for time, value in zip(times[n_before:], values[n_before:], strict=True):
        estimates = [e.step(time, {"x": value}) for e in (estimator, *copies)]
        assert all(e.states == estimates[0].states and e.held == estimates[0].held for e in estimates)
        assert all(np.array_equal(e.covariance, estimates[0].covariance) for e in estimates)
    other = cf.fit(result.problem.replace(experiments=experiment.with_values({"x": 0.9 * np.array(values)[:, None]})))
    with refused("made from another result"):
        cf.MovingHorizon.load(tmp_path / "horizon.json", other)


def test_a_gap_of_too_many_stages_is_refused():
    x, w = cf.symbols("x w")
    experiment = cf.Experiment({"x": [0.4, 0.2]}, time=[1, 2], sigma=0.1, start=0, initial={"x": cf.Normal(1, 0.5)})
    result = cf.fit(cf.Problem(cf.Model({x: -x + 0.5 * w}, noises=[w]), experiment))
    estimator = cf.moving_horizon(result)
    with refused("time is 1e+300, after a gap of more than"):
        estimator.step(1e300, {"x": 0.5})
    assert estimator.step(50.0, {"x": 0.5}).states["x"] == pytest.approx(0.461, abs=0.01)
