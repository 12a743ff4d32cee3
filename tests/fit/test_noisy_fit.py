"""Fits of models with noise: published and closed forms, what is refused, and what a result tells."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy import optimize

import castfit as cf
from castfit._bench.process_noise import (
    NILE,
    exact_ornstein_uhlenbeck,
    fitzhugh_nagumo,
    nile,
    ornstein_uhlenbeck,
    simulated_fits,
    van_der_pol,
)
from castfit.transcribe.path_likelihood import PathLikelihood, marginal


def walk(**options: Any) -> cf.Problem:
    """Return a random walk with known sigma."""
    x, w, s = cf.symbols("x w s")
    model = cf.Model({x: s * w}, parameters=[s], noises=[w])
    data = [1.1, 0.9, 1.6, 2.2, 1.9, 2.4, 3.3, 3.1, 2.6, 2.9, 3.5, 4.1]
    arguments: dict[str, Any] = {"sigma": 0.2, "initial": {"x": cf.Normal(1.0, 1.0)}, **options}
    problem_options: dict[str, Any] = {k: arguments.pop(k) for k in ("constraints", "state_bounds") if k in arguments}
    experiment = cf.Experiment({"x": data}, time=np.arange(12.0), **arguments)
    return cf.Problem(model, experiment, parameters={"s": cf.Parameter(0.3, scale="log")}, **problem_options)


def test_the_nile_is_that_of_durbin_and_koopman():
    result = cf.fit(nile())
    assert result.success
    assert result.log_likelihood == pytest.approx(-641.5856, abs=1e-4)
    assert result.values["sigma(x)"] ** 2 == pytest.approx(15099, rel=1e-3)
    assert result.values["s"] ** 2 == pytest.approx(1469.1, rel=1e-3)
    # The smoothed level of 1898 by the same model, by hand: a symmetric filter of the data, cut off far away.
    gain = result.values["s"] ** 2 / result.values["sigma(x)"] ** 2
    decay = 1 + gain / 2 - np.sqrt(gain + gain**2 / 4)
    weights = decay ** np.abs(np.arange(100) - 50)
    assert result.path("x").at(50.0) == pytest.approx(weights @ NILE / weights.sum(), rel=2e-3)


def test_an_ornstein_uhlenbeck_process_is_estimated_as_its_closed_form_says():
    case = ornstein_uhlenbeck()
    times, _, values = case.simulated(np.random.default_rng(4))
    keep = np.sort(np.random.default_rng(1).choice(times.size, 60, replace=False))
    keep[0] = 0
    times, values = times[keep], values[keep]
    result = cf.fit(case.problem(times, values))
    arguments = times, values, case.initial["x"]
    exact: Any = optimize.minimize(exact_ornstein_uhlenbeck, result.y, args=arguments, method="BFGS")
    assert result.log_likelihood == pytest.approx(-exact.fun, abs=1e-4)
    np.testing.assert_allclose(result.y, exact.x, atol=1e-3)
    # Standard errors are those of its curvature, by differences.
    h, n = 1e-3, len(exact.x)
    H = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            ends = [exact.x + h * (a * np.eye(n)[i] + b * np.eye(n)[j]) for a in (1, -1) for b in (1, -1)]
            f = [exact_ornstein_uhlenbeck(y, *arguments) for y in ends]
            H[i, j] = (f[0] - f[1] - f[2] + f[3]) / (4 * h * h)
    errors = np.sqrt(np.diag(np.linalg.inv(H))) * np.exp(exact.x)
    np.testing.assert_allclose(list(result.standard_errors.values()), errors, rtol=1e-2)


@pytest.mark.slow
def test_a_van_der_pol_oscillator_with_noise_is_found_and_laplace_holds():
    case = van_der_pol()
    times, states, values = case.simulated(np.random.default_rng([0, 0]))
    result = cf.fit(case.problem(times[:101], values[:101]))
    assert result.success
    for name, (low, high) in result.confidence_intervals(0.999).items():
        assert low < {"mu": 1.0, "s": 0.5, "sigma(x)": 0.1}[name] < high
    band = result.path("y")
    indices = np.searchsorted(band.times, times[:101] - 1e-9)
    inside = (band.lower[indices] <= states[:101, 1]) & (states[:101, 1] <= band.upper[indices])
    assert inside.mean() > 0.85
    checked = result.laplace_check(100, rng=0)
    assert checked.effective_share > 0.7
    assert abs(checked.correction) < 0.2
    assert "no evidence against the Laplace approximation" in str(checked)
    assert result.laplace_check(100, rng=0) == checked


@pytest.mark.slow
@pytest.mark.parametrize(("case", "sets"), [(ornstein_uhlenbeck, 20), (van_der_pol, 20), (fitzhugh_nagumo, 4)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(case, sets):
    rows = simulated_fits(case(), sets, 1, lambda _: None)
    shares = [row.found for row in rows if "intervals" in row.figure]
    assert all(f"of {sets} fits that converged" in row.note for row in rows if "%" in row.figure)
    assert np.mean(shares) > 80
    assert all(row.found > 85 for row in rows if row.figure.startswith("the path"))


def test_a_band_holds_what_an_estimated_drift_is_uncertain_by():
    x, b, w, d = cf.symbols("x b w d")
    data: dict[str, Any] = {"data": {"x": [0.3, 1.4, 0.9, 2.2]}, "time": [1.0, 2.0, 3.0, 5.0], "sigma": 0.2, "start": 0}
    estimated = cf.Problem(
        cf.Model({x: d + 0.4 * w}, parameters=[d], noises=[w]),
        cf.Experiment(**data, initial={"x": cf.Normal(0, 0.3)}), parameters={"d": 0.0},
    )  # fmt: skip
    state = cf.Problem(
        cf.Model({x: b + 0.4 * w, b: 0}, noises=[w]),
        cf.Experiment(**data, initial={"x": cf.Normal(0, 0.3), "b": cf.Normal(0, 1e4)}),
    )
    one, two = (cf.fit(problem).path("x") for problem in (estimated, state))
    np.testing.assert_allclose(one.deviations, two.deviations, rtol=1e-5)
    np.testing.assert_allclose(one.values, two.values, rtol=1e-5, atol=1e-7)


def test_an_intensity_that_may_be_0_leaves_the_others_their_errors_and_counts_in_the_band():
    """Begun where the likelihood does not see it at all, beside a start from where it does, and the plain model."""
    x, k, w, s = cf.symbols("x k w s")
    times = np.linspace(0.2, 4.0, 12)
    values = np.exp(-0.5 * times) + 0.05 * np.random.default_rng(0).standard_normal(12)
    experiment = cf.Experiment({"x": values}, time=times, sigma=0.05, initial={"x": 1.0})
    model = cf.Model({x: -k * x + s * w}, parameters=[k, s], noises=[w])

    def fitted(start):
        quantities = {"k": 1.0, "s": cf.Parameter(start, scale="log")}
        return cf.fit(cf.Problem(model, experiment, parameters=quantities))

    zero_start_result, positive_start_result = fitted(1e-16), fitted(0.1)
    result_without_noise = cf.fit(cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 1.0}))
    assert [e.verdict for e in zero_start_result] == ["determined", "may be 0"]
    assert zero_start_result.standard_errors["k"] == pytest.approx(result_without_noise.standard_errors["k"], rel=0.02)
    assert "flat" not in zero_start_result.message
    deviations = [result.path("x").deviations[1:] for result in (zero_start_result, positive_start_result)]
    assert np.interp(4.0, zero_start_result.path("x").times[1:], deviations[0]) == pytest.approx(
        deviations[1][-1], rel=0.1
    )
    text = str(zero_start_result.laplace_check(50, rng=0))
    assert "nan" not in text


@pytest.mark.slow
def test_a_band_is_there_where_sigma_is_estimated_as_nothing():
    case = ornstein_uhlenbeck()
    times, states, values = case.simulated(np.random.default_rng([0, 11]))
    result = cf.fit(case.problem(times, values))
    assert result.values["sigma(x)"] < 0.01
    band = result.path("x")
    indices = np.searchsorted(band.times, times - 1e-9)
    assert np.median(band.deviations[indices]) > 0.02
    inside = (band.lower[indices] <= states[:, 0]) & (states[:, 0] <= band.upper[indices])
    assert inside.mean() > 0.5  # none by the deviations at the estimate


def test_everything_at_once_is_fitted():
    x, y, w, k, s, f = cf.symbols("x y w k s f")
    model = cf.Model({x: -k * x + s * w, y: k * x - 0.5 * y}, parameters=[k, s, f], noises=[w], outputs={"sum": x + y})
    t = np.array([0.5, 1.0, 1.0, 2.0, 2.7, 3.1])
    one = cf.Experiment(
        {"x": [1.2, 0.8, 0.7, np.nan, 0.9, 0.6], "sum": [1.9, 1.6, np.nan, 1.5, 2.1, 1.8]}, t, start=0,
        sigma=0.1, initial={"x": cf.Normal(2.0, 0.3), "y": cf.free(0.2)}, events=[cf.Doses(x, f, 2.2)],
    )  # fmt: skip
    two = cf.Experiment({"y": [0.4, 0.7, 0.6]}, [0.4, 1.2, 2.0], start=0, sigma=0.05, initial={"x": 1.0, "y": 0.1})
    parameters = {"k": cf.Parameter(0.8, scale="log"), "s": cf.Parameter(0.3, scale="log"), "f": 0.4}
    result = cf.fit(cf.Problem(model, [one, two], parameters=parameters))
    assert result.success
    assert set(result.names) == {"k", "s", "f", "y(0)[experiment 1]"}
    assert np.isfinite(list(result.standard_errors.values())).all()
    assert set(result.tracks) == {"experiment 1", "experiment 2"}
    jump = result.path("x", "experiment 1")
    indices = np.flatnonzero(np.diff(jump.times) == 0.0)
    assert jump.values[indices + 1] - jump.values[indices] == pytest.approx(result.values["f"], rel=1e-6)


def test_a_dae_is_what_it_is_without_its_algebraic_state():
    x, z, w, k, s = cf.symbols("x z w k s")
    arguments: dict[str, Any] = {"parameters": {"k": 0.8, "s": cf.Parameter(0.3, scale="log")}}
    experiment = cf.Experiment(
        {"x": [3.1, 2.6, 1.7, 1.4, 1.1, 0.5]}, [0.5, 1, 1.5, 2, 2.5, 3], start=0, sigma=0.1, initial={"x": 4.0}
    )
    ode_model = cf.Model({x: -k * cf.sqrt(x) + s * w}, parameters=[k, s], noises=[w])
    dae_model = cf.Model({x: -k * z + s * w}, algebraic={z: z**2 == x}, parameters=[k, s], noises=[w])
    one, two = (cf.fit(cf.Problem(m, experiment, **arguments)) for m in (ode_model, dae_model))
    assert two.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-9)
    np.testing.assert_allclose(two.y, one.y, rtol=1e-6)
    np.testing.assert_allclose(two.path("z").values ** 2, two.path("x").values, rtol=1e-9)


def test_a_fit_that_knows_everything_smooths():
    x, w = cf.symbols("x w")
    model = cf.Model({x: 0.3 * w}, noises=[w])
    experiment = cf.Experiment(
        {"x": [1.0, 1.4, 0.9]}, [1.0, 2.0, 3.0], sigma=0.2, start=0, initial={"x": cf.Normal(1, 1)}
    )
    result = cf.fit(cf.Problem(model, experiment))
    assert result.success
    assert result.names == ()
    assert result.path("x").deviations[0] > result.path("x").deviations[-1]
    assert "log L" in result.summary()


# Logarithms of yearly traffic fatalities: a level that walks, or a slope that does, explains most of the changes.
LOG_FATALITIES = [
    6.96129605, 7.04141166, 7.05272105, 6.9902565, 6.76272951, 6.8134446, 6.68959927, 6.56385553, 6.41345896,
    6.47697236, 6.31173481, 6.31896811, 6.34388043, 6.4035742, 6.29341928, 6.29341928, 6.41673228, 6.36475076,
    6.48157713, 6.59850903, 6.47543272, 6.44888939, 6.39859493, 6.18208491, 6.1737861, 6.08904488, 6.00141488,
    6.08221891, 5.99146455, 6.06610809, 5.98141421, 6.07073773, 6.02827852, 5.93753621,
]  # fmt: skip


def local_trend(values: Any, level: float, slope: float, **initial: Any) -> cf.PathResult:
    """Fit a level and a slope that both walk, and an unknown sigma, from guesses of the first two."""
    a, b, v, w, p, q = cf.symbols("a b v w p q")
    model = cf.Model({a: b + p * v, b: q * w}, parameters=[p, q], noises=[v, w])
    experiment = cf.Experiment({"a": values}, np.arange(len(values)), sigma=cf.unknown(), initial=initial)
    parameters = {"p": cf.Parameter(level, scale="log"), "q": cf.Parameter(slope, scale="log")}
    result: Any = cf.fit(cf.Problem(model, experiment, parameters=parameters))
    return result


def local_trend_log_likelihood(values: Any, logs: Any) -> float:
    """Return log L of a Kalman filter with exact transitions, for level, slope and sigma."""
    p, q, sigma = np.exp(np.clip(logs, -16, 3))
    F, Q = np.array([[1, 1], [0, 1]]), np.array([[p**2 + q**2 / 3, q**2 / 2], [q**2 / 2, q**2]])
    m, P, log_l = np.array([7.0, 0.0]), np.diag([100.0, 100.0]), 0.0
    for k, value in enumerate(values):
        m, P = (F @ m, F @ P @ F.T + Q) if k else (m, P)
        S, error = P[0, 0] + sigma**2, value - m[0]
        log_l -= 0.5 * (np.log(2 * np.pi * S) + error**2 / S)
        m, P = m + P[:, 0] * error / S, P - np.outer(P[:, 0], P[:, 0]) / S
    return float(log_l)


@pytest.mark.parametrize(("level", "slope"), [(0.05, 0.05), (0.3, 0.3), (0.001, 0.1), (0.1, 0.001)])
def test_noises_that_may_be_0_are_searched_a_second_time(level, slope):
    starts = ([-3, -3, -3], [-8, -3, -3], [-3, -8, -3], [-3, -3, -8])
    best = max(
        -optimize.minimize(lambda z: -local_trend_log_likelihood(LOG_FATALITIES, z), z, method="Nelder-Mead").fun
        for z in starts
    )
    result = local_trend(LOG_FATALITIES, level, slope, a=cf.Normal(7, 10), b=cf.Normal(0, 10))
    assert result.success
    assert result.log_likelihood == pytest.approx(best, abs=2e-3)
    assert len(result.history) == result.iterations + 1
    assert result.history[-1] == pytest.approx(result.neg2loglik, abs=0.01)


def test_a_second_search_finds_noises_that_vanish_from_an_optimum_where_none_does():
    rng = np.random.default_rng(13)
    gains = []
    for _ in range(3):
        values = 7 + np.cumsum(0.17 * rng.normal(size=34)) + 0.13 * rng.normal(size=34)
        result = local_trend(values, 0.05, 0.05, a=cf.Normal(7, 10), b=cf.Normal(0, 10))
        best = max(
            -optimize.minimize(lambda z, y=values: -local_trend_log_likelihood(y, z), z, method="Nelder-Mead").fun
            for z in ([-2, -2, -2], [-8, -2, -2], [-2, -8, -2], [-2, -8, -4])
        )
        gains.append(result.log_likelihood - best)
    assert min(gains) > -0.01


def test_a_likelihood_without_a_maximum_is_reported_and_the_advice_helps():
    """The first value is met exactly by a free start, so that log L grows like -log(sigma)."""
    result = local_trend(LOG_FATALITIES, 0.1, 0.01, a=cf.free(7.0), b=cf.free(0.0))
    assert result.status is cf.Status.DIVERGING
    assert "no maximum" in result.message
    assert "cf.Normal" in result.message
    assert local_trend(LOG_FATALITIES, 0.1, 0.01, a=cf.Normal(7, 10), b=cf.free(0.0)).success
    local_maximum = local_trend(LOG_FATALITIES, 0.05, 0.05, a=cf.free(7.0), b=cf.free(0.0))
    assert local_maximum.success
    assert "no maximum" in local_maximum.message


def test_sigma_that_wants_to_vanish_is_said_to_be_at_its_bound():
    rng = np.random.default_rng(0)
    x, w, s = cf.symbols("x w s")
    model = cf.Model({x: s * w}, parameters=[s], noises=[w])
    values = np.cumsum(rng.normal(size=30)) + 20.0  # without any error of measurement
    experiment = cf.Experiment({"x": values}, np.arange(30.0), sigma=cf.unknown(), initial={"x": cf.Normal(20, 10)})
    result = cf.fit(cf.Problem(model, experiment, parameters={"s": cf.Parameter(1.0, scale="log")}))
    assert result.success
    assert result.values["sigma(x)"] < 0.1
    assert result["s"].interval[0] < 1.0 < result["s"].interval[1]


def test_a_quantity_at_its_bound_is_not_counted():
    rng = np.random.default_rng(0)
    x, w, s, k = cf.symbols("x w s k")
    model = cf.Model({x: s * w - k * x}, parameters=[s, k], noises=[w])
    experiment = cf.Experiment({"x": np.cumsum(rng.normal(size=30))}, np.arange(30.0), sigma=0.2, initial={"x": 0})
    parameters = {"s": cf.Parameter(1.0, scale="log"), "k": cf.Parameter(1.0, bounds=(0.9, 2.0))}
    result = cf.fit(cf.Problem(model, experiment, parameters=parameters))
    assert result.active == {"k": "lower"}
    assert result["k"].verdict == "at its bound"
    assert result.aic == result.neg2loglik + 2 * 1
    assert result.bic == result.neg2loglik + np.log(30)


def test_innovations_of_a_wrong_model_are_reported_as_not_white():
    rng = np.random.default_rng(2)
    t = np.arange(80.0)
    values = 10 + 3 * np.sin(2 * np.pi * t / 12) + 0.2 * rng.normal(size=80)  # a wave, no random walk
    x, w, s = cf.symbols("x w s")
    model = cf.Model({x: s * w}, parameters=[s], noises=[w])
    experiment = cf.Experiment({"x": values}, t, sigma=0.2, initial={"x": cf.Normal(10, 5)})
    result = cf.fit(cf.Problem(model, experiment, parameters={"s": cf.Parameter(1.0, scale="log")}))
    assert "deviation from white noise of variance 1 is shown: neighbours of x" in result.white
    assert "no evidence against white noise" in cf.fit(walk()).white


def test_stage_refinement_converges_and_reports_the_last_change():
    case = van_der_pol()
    times, _, values = case.simulated(np.random.default_rng(3))
    result = cf.fit(case.problem(times[:41], values[:41]))
    assert abs(result.refined) < 5e-3
    assert f"changed log L by {abs(result.refined):.2g}" in result.summary()
    finer = PathLikelihood(*marginal(result.problem.posed), [length / 4 for length in result.longest])
    assert -finer.evaluate(result.y, None).value == pytest.approx(result.log_likelihood, abs=1e-2)


def test_path_result_is_saved_pickled_and_used_as_a_start(tmp_path):
    problem = walk()
    result = cf.fit(problem)
    result.save(tmp_path / "walk.json")
    loaded = cf.PathResult.load(tmp_path / "walk.json")
    assert str(loaded) == str(result)
    np.testing.assert_array_equal(loaded.path("x").values, result.path("x").values)
    with pytest.raises(cf.InputError, match=r"call result.with_problem"):
        loaded.plot()
    assert loaded.with_problem(problem).laplace_check(5, rng=0).draws == 5
    with pytest.raises(cf.InputError, match="pass the problem that was fitted"):
        loaded.with_problem(walk(sigma=0.3))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(cf.InputError, match="contains no PathResult"):
        cf.PathResult.load(tmp_path / "other.json")
    pickled_result = pickle.loads(pickle.dumps(result))
    assert pickled_result.values == result.values
    assert cf.fit(problem, start=result).iterations <= 1
    assert cf.fit(problem, start={"s": result.values["s"]}).iterations <= 1
    assert result["s"].standard_error == result.standard_errors["s"]
    assert "<table" in result._repr_html_()


def test_callbacks_and_time_limits_stop_a_fit():
    iterations: list[cf.Iteration] = []
    result = cf.fit(nile(), callback=lambda iteration: iterations.append(iteration) or len(iterations) == 2)
    assert result.status is cf.Status.STOPPED_BY_CALLBACK
    assert len(iterations) == 2
    assert np.isnan(list(result.standard_errors.values())).all()
    timed_out_result = cf.fit(nile(), max_time=1e-9)
    assert timed_out_result.status is cf.Status.MAX_TIME
    assert "The stages were not refined" in str(timed_out_result)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transcription": "multiple"}, "transcription has no effect for models with process noise"),
        ({"solver": "ipopt"}, "solver has no effect"),
        ({"workers": 2}, "workers has no effect"),
        ({"retry": False}, "retry has no effect"),
        ({"absolute_sigma": True}, "absolute_sigma has no effect"),
        ({"start": "matching"}, "start is 'matching'; expected values by name"),
        ({"start": {"q": 1.0}}, "'q' is not estimated"),
    ],
)
def test_arguments_that_do_not_apply_are_refused(options, words):
    with pytest.raises(cf.InputError, match=words):
        cf.fit(walk(), **options)


def test_fit_refuses_unsupported_problems_with_process_noise():
    x, w, s, t0 = cf.symbols("x w s t0")
    data: dict[str, Any] = {"data": {"x": [1.0, 2.0, 3.0]}, "time": [1.0, 2.0, 3.0], "sigma": 0.1, "start": 0}
    model = cf.Model({x: -x + s * w}, parameters=[s], noises=[w], initial={x: 1.0})

    def refused(words: str, *, model: cf.Model = model, parameters: Any = None, **options: Any) -> None:
        problem: dict[str, Any] = {k: options.pop(k) for k in ("constraints", "state_bounds") if k in options}
        experiment = cf.Experiment(**{**data, **options})
        with pytest.raises(cf.InputError, match=words):
            cf.fit(cf.Problem(model, experiment, parameters={"s": 0.3, **(parameters or {})}, **problem))

    refused("constraints and state_bounds cannot be enforced along the path", constraints=[cf.along(x <= 3)])
    refused("constraints and state_bounds cannot be enforced", state_bounds={"x": (0.0, 5.0)})
    refused("state-triggered events are unsupported", events=[cf.Event(when=x - 2, changes={x: 0})])
    refused("event times cannot be estimated", events=[cf.Event(t0, {x: 0})], parameters={"t0": 1.5})
    refused("events must change states linearly", events=[cf.Event(1.5, {x: x**2})])
    refused("'w' is white noise: it has no value at a time", events=[cf.Event(1.5, {x: x + w})])
    refused("'w' is white noise: it has no value at a time", events=[cf.Doses(x, w, 1.0)])
    refused("'w' is white noise: it has no value at a time", events=[cf.Event(when=x - w, changes={x: 0})])
    refused("'w' is white noise of the model, not a parameter", parameters={"w": 1.0})
    late = cf.Model({x: -cf.delay(x, 0.5, history=1.0) + s * w}, parameters=[s], noises=[w], initial={x: 1.0})
    refused("delays are unsupported", model=late)
    for kinked in (cf.Laplace(), cf.Likelihood(lambda y, m: cf.fabs(m - y) / 0.1 + np.log(0.2))):
        refused("the noise model of 'x' must be smooth, .* use StudentT", sigma=None, noise=kinked)
    refused("Cauchy's loss with f_scale up to 1 is no likelihood", noise=cf.Cauchy(f_scale=1.0))


@pytest.mark.parametrize(
    ("ode", "options", "words"),
    [
        (lambda x, w: {x: -x}, {}, "noise 'w' enters no right-hand side; write it into one"),
        (lambda x, w: {x: -x + w**2}, {}, "not linear in the noise; white noise has no square"),
        (lambda x, w: {x: -x + w}, {"outputs": lambda x, w: {"y": x + w}}, "output 'y' holds noise"),
        (lambda x, w: {x: -x + w}, {"algebraic": lambda z, w: {z: z - w}}, "the equation of 'z' holds noise"),
        (lambda x, w: {x: -x + w}, {"parameters": "w"}, "declared twice"),
        (lambda x, w: {x: -x + w}, {"twice": True}, "'w' is declared twice, as noise and as noise"),
    ],
)
def test_model_refuses_unsupported_noises(ode, options, words):
    x, z, w = cf.symbols("x z w")
    arguments: dict[str, Any] = {"noises": [w, w] if "twice" in options else [w]}
    if "outputs" in options:
        arguments["outputs"] = options["outputs"](x, w)
    if "algebraic" in options:
        arguments["algebraic"] = options["algebraic"](z, w)
    if "parameters" in options:
        arguments["parameters"] = [w]
    with pytest.raises(cf.InputError, match=words):
        cf.Model(ode(x, w), **arguments)


def test_drivers_refuse_problems_with_noises():
    problem = walk()
    words = r"has noises \(w\), which only fit\(problem\) estimates"
    drivers = (
        cf.estimate,
        cf.multistart,
        cf.scatter_search,
        cf.incremental,
        cf.doctor,
        cf.identifiability,
        cf.coverage,
    )
    for driver in (*drivers, lambda noisy_problem: cf.compare(noisy_problem, ["single"])):
        with pytest.raises(cf.InputError, match=words):
            driver(problem)
    result = cf.fit(problem)
    for driver in (cf.profile, cf.bootstrap, cf.sample, cf.leave_out, cf.prior_influence):
        with pytest.raises(cf.InputError, match="models with process noise"):
            driver(result)


def test_an_initial_density_is_a_prior_where_there_is_no_noise():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k])
    data: dict[str, Any] = {"data": {"x": [1.5, 1.0, 0.7]}, "time": [0.5, 1.0, 1.5], "sigma": 0.1, "start": 0}
    problems = [
        cf.Problem(model, cf.Experiment(**data, initial={"x": value}), parameters={"k": 1.0})
        for value in (cf.Normal(2.0, 0.1), cf.free(2.0, prior=cf.Normal(2.0, 0.1)))
    ]
    one, two = (cf.fit(p) for p in problems)
    assert one.values == two.values
    with pytest.raises(cf.InputError, match="of the value itself"):
        cf.Experiment(**data, initial={"x": cf.Normal(2.0, 0.1, on="log")})
    with pytest.raises(cf.InputError, match="deviation positive"):
        cf.Experiment(**data, initial={"x": cf.Normal(2.0, -0.1)})


def test_models_with_noise_are_pickled_and_simulated_without_it():
    problem = walk()
    copy = pickle.loads(pickle.dumps(problem))
    assert copy.model.noises == ("w",)
    assert cf.fit(copy).log_likelihood == pytest.approx(cf.fit(problem).log_likelihood, rel=1e-12)
    assert "noises w" in repr(problem.model)
    (simulation,) = cf.simulate(problem, times=[0.0, 5.0]).values()
    np.testing.assert_allclose(simulation["x"], 1.0)


def test_path_plot_has_a_band_for_each_output(tmp_path):
    result = cf.fit(walk())
    figure = result.plot(tmp_path / "walk.png")
    assert len(figure.axes) == 2
    assert (tmp_path / "walk.png").stat().st_size > 1000
    with pytest.raises(cf.InputError, match=r"use plots\.paths"):
        cf.plots.fit(result)
    assert "driven by white noise w" in result.problem.original_model._repr_html_()
    with pytest.raises(cf.InputError, match="state or output"):
        cf.plots.paths(result, outputs=["q"])
    with pytest.raises(cf.InputError, match="state or output"):
        result.path("q")
    with pytest.raises(cf.InputError, match="unknown experiment"):
        result.path("x", "other")
    with pytest.raises(cf.InputError, match="must be between 0 and 1"):
        result.path("x", confidence_level=2.0)


def test_message_warns_of_an_untested_laplace_approximation():
    x, w = cf.symbols("x w")
    times = np.arange(1, 13) * 0.5
    values = np.random.default_rng(0).standard_normal(12)

    def fitted(decay, noise):
        model = cf.Model({x: -decay + 0.5 * w}, noises=[w])
        experiment = cf.Experiment({"x": values}, times, noise={"x": noise}, start=0, initial={"x": 1.0})
        return cf.fit(cf.Problem(model, experiment))

    exact = fitted(x, cf.Gaussian(sigma=0.2))
    assert "Laplace" not in str(exact)
    assert abs(exact.laplace_check(20, rng=0).correction) < 1e-9
    for result in (fitted(x, cf.StudentT(df=3, sigma=0.2)), fitted(x**3, cf.Gaussian(sigma=0.2))):
        assert "the Laplace approximation over paths, which was not tested" in result.message
        assert abs(result.laplace_check(20, rng=0).correction) > 1e-3


@pytest.mark.parametrize(("r_guess", "s_guess"), [(0.3, 0.2), (1.0, 0.4), (2.0, 1.0)])
def test_counts_of_a_growing_population_have_one_optimum_from_all_starts(r_guess, s_guess):
    x, w, r, s = cf.symbols("x w r s")
    model = cf.Model({x: r * (1 - cf.exp(x) / 8) + s * w}, parameters=[r, s], noises=[w], outputs={"N": cf.exp(x)})
    counts = [3, 9, 3, 6, 4, 5, 10, 4, 5, 8, 9, 3, 6, 3, 12, 5, 9, 16, 7, 5]
    initial = {"x": cf.Normal(np.log(2), 0.2)}
    experiment = cf.Experiment({"N": counts}, np.arange(1, 21), start=0, noise=cf.Poisson(), initial=initial)
    parameters = {"r": cf.Parameter(r_guess, lower=0.01), "s": cf.Parameter(s_guess, scale="log")}
    result = cf.fit(cf.Problem(model, experiment, parameters=parameters))
    assert result.success
    assert result.log_likelihood == pytest.approx(-51.3983, abs=2e-4)
    assert result.values["r"] == pytest.approx(1.3207, abs=2e-3)
    assert result.values["s"] == pytest.approx(0.4706, abs=2e-3)


def test_a_change_of_variables_changes_no_estimate_of_a_noise_that_multiplies_its_state():
    x, w, r, s = cf.symbols("x w r s")
    counts = [3, 9, 3, 6, 4, 5, 10, 4, 5, 8, 9, 3, 6, 3, 12, 5, 9, 16, 7, 5]
    results = []
    for right, output, start in (
        (r * (1 - cf.exp(x) / 8) + s * w, cf.exp(x), np.log(2)), (r * x * (1 - x / 8) + s * x * w, x, 2.0)
    ):  # fmt: skip
        model = cf.Model({x: right}, parameters=[r, s], noises=[w], outputs={"N": output})
        experiment = cf.Experiment({"N": counts}, np.arange(1, 21), start=0, noise=cf.Poisson(), initial={"x": start})
        parameters = {"r": cf.Parameter(0.5, scale="log"), "s": cf.Parameter(0.3, scale="log")}
        results.append(cf.fit(cf.Problem(model, experiment, parameters=parameters)))
    assert all(result.success for result in results)
    assert results[0].log_likelihood == pytest.approx(results[1].log_likelihood, abs=1e-4)
    np.testing.assert_allclose(list(results[0].values.values()), list(results[1].values.values()), rtol=1e-3)


def test_halved_stages_change_log_l_by_no_more_than_the_result_says():
    case = van_der_pol()
    times, _, values = case.simulated(np.random.default_rng(3))
    result = cf.fit(case.problem(times[:41], values[:41]))
    finer = PathLikelihood(*marginal(result.problem.posed), [0.5 * length for length in result.longest])
    change = -finer.evaluate(result.y, None).value - result.log_likelihood
    assert abs(change) <= 1.01 * abs(result.refined) < 7e-4
