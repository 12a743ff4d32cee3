"""Measurements that are no state at a time: per interval, means, relative to the first."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import castfit as cf

TIMES = np.array([0.5, 1.0, 2.5, 3.0, 6.0, 7.0])
TRUE = {"b": 1.5, "g": 0.7}


def epidemic() -> cf.Model:
    s, i, b, g = cf.symbols("s i b g")
    return cf.Model(
        {s: -b * s * i, i: b * s * i - g * i},
        parameters=[b, g],
        outputs={
            "cases": cf.per_interval(1e3 * b * s * i),
            "mean": cf.interval_mean(i),
            "relative": cf.relative_to_first(i),
        },
    )


def expected(times: np.ndarray) -> dict[str, np.ndarray]:
    """The same by an independent integration of cumulative states."""

    def rates(_: float, y: np.ndarray) -> list[float]:
        new = 1.5 * y[0] * y[1]
        return [-new, new - 0.7 * y[1], 1e3 * new, y[1]]

    y = solve_ivp(rates, (0, times[-1]), [0.95, 0.05, 0, 0], t_eval=[0, *times], rtol=1e-11, atol=1e-13).y
    return {
        "cases": np.diff(y[2]),
        "mean": np.diff(y[3]) / np.diff([0, *times]),
        "relative": y[1][1:] / y[1][1],
    }


def problem(**data: Any) -> cf.Problem:
    measurements = data or expected(TIMES)
    series = {n: v if isinstance(v, tuple) else (TIMES, v) for n, v in measurements.items()}
    sizes = {n: 0.01 * float(np.nanmax(v[1])) for n, v in series.items()}
    experiment = cf.Experiment(series, sigma=sizes, initial={"s": 0.95, "i": 0.05})
    return cf.Problem(epidemic(), experiment, parameters={"b": 1.2, "g": 0.5})


def test_simulations_are_differences_of_cumulative_states() -> None:
    (simulation,) = cf.simulate(problem(), TRUE, integrator=cf.IntegratorOptions(relative_tolerance=1e-10)).values()
    for name, values in expected(TIMES).items():
        np.testing.assert_allclose(simulation[name], values, rtol=1e-7)


@pytest.mark.parametrize(
    "transcription", [cf.SingleShooting(), cf.MultipleShooting(3), cf.Collocation()], ids=lambda t: t.label
)
@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=lambda s: s.label)
def test_interval_outputs_rates_agree_in_all_transcriptions(transcription: Any, solver: Any) -> None:
    result = cf.fit(problem(), transcription, solver)
    assert result.success
    assert result.parameters == pytest.approx(TRUE, rel=1e-5)


def test_each_output_has_intervals_of_its_own() -> None:
    """A missing value makes the next interval longer, for this output alone."""
    late = TIMES[1::2]
    gappy = expected(TIMES)["cases"]
    data = {"cases": (TIMES, np.where(TIMES == 2.5, np.nan, gappy)), "mean": (late, expected(late)["mean"])}
    data["cases"][1][3] += gappy[2]
    (simulation,) = cf.simulate(problem(**data), TRUE, {"experiment 1": TIMES}).values()
    np.testing.assert_allclose(simulation["cases"][[0, 1, 3, 4, 5]], data["cases"][1][[0, 1, 3, 4, 5]], rtol=1e-5)
    np.testing.assert_allclose(simulation["mean"][1::2], expected(late)["mean"], rtol=1e-5)


def test_copies_and_horizons_remember() -> None:
    original_problem = problem()
    for copy in (
        pickle.loads(pickle.dumps(original_problem)),
        original_problem.replace(parameters={"b": 1.2, "g": 0.5}),
    ):
        (simulation,) = cf.simulate(copy, TRUE).values()
        np.testing.assert_allclose(simulation["cases"], expected(TIMES)["cases"], rtol=1e-5)
    assert original_problem.experiments[0].events == ()
    shorter = cf.fit(original_problem.posed.with_horizon(3.0), cf.SingleShooting())
    assert shorter.parameters == pytest.approx(TRUE, rel=1e-4)


def test_counts_per_interval_are_those_of_explicit_events() -> None:
    s, i, b, g, c = cf.symbols("s i b g c")
    by_hand = cf.Model(
        {s: -b * s * i, i: b * s * i - g * i, c: 1e3 * b * s * i}, parameters=[b, g], outputs={"cases": c + 0}
    )
    values = np.round(expected(TIMES)["cases"])
    events = [cf.Event(float(t), {c: 0.0}) for t in TIMES[:-1]]
    explicit = cf.Experiment(
        {"cases": values}, time=TIMES, noise=cf.Poisson(), events=events, initial={"s": 0.95, "i": 0.05, "c": 0}
    )
    short = cf.Experiment({"cases": values}, time=TIMES, noise=cf.Poisson(), initial={"s": 0.95, "i": 0.05})
    guesses = {"b": 1.2, "g": 0.5}
    one = cf.fit(cf.Problem(by_hand, explicit, parameters=guesses))
    other = cf.fit(cf.Problem(epidemic(), short, parameters=guesses))
    assert other.neg2loglik == pytest.approx(one.neg2loglik, rel=1e-7)
    assert other.standard_errors == pytest.approx(one.standard_errors, rel=1e-4)


def test_predictions_count_from_the_measurement_before_after_the_last_one_too() -> None:
    """From a new time on it is the integral since the last measured one, at which counting began anew."""
    result = cf.fit(problem())
    times = np.array([0.7, 1.8, 6.5, 8.0, 11.0])
    prediction = result.predict(times)["experiment 1"]

    def rates(_: float, y: np.ndarray) -> list[float]:
        new = result.values["b"] * y[0] * y[1]
        return [-new, new - result.values["g"] * y[1], 1e3 * new, y[1]]

    y = solve_ivp(rates, (0, 11), [0.95, 0.05, 0, 0], rtol=1e-11, atol=1e-13, dense_output=True).sol
    interval_starts = np.array([TIMES[t > TIMES][-1] for t in times])
    _, _, cases, integral = y(times) - y(interval_starts)
    np.testing.assert_allclose(prediction["cases"], cases, rtol=1e-5)
    np.testing.assert_allclose(prediction["mean"], integral / (times - interval_starts), rtol=1e-5)


def test_experiments_may_begin_at_rest() -> None:
    """What is gathered from measurement to measurement grows for ever, and has no part in that."""
    x, k, u = cf.symbols("x k u")
    outputs = {"made": cf.per_interval(k * x), "mean": cf.interval_mean(x), "fold": cf.relative_to_first(x)}
    model = cf.Model({x: u - k * x}, parameters=[k], inputs=[u], outputs=outputs, initial={x: 1})
    times = np.array([0.5, 1.0, 3.0])
    data = {n: np.ones(3) for n in outputs}
    initial = cf.steady_state(inputs={"u": 2.0})
    experiment = cf.Experiment(data, times, sigma=0.1, initial=initial, inputs={"u": 1.0})
    simulation = cf.simulate(cf.Problem(model, experiment, parameters={"k": 0.5}), times=times)["experiment 1"]
    integral = 2 * times + 4 * (1 - np.exp(-0.5 * times))  # x falls from 2 / k to 1 / k
    np.testing.assert_allclose(simulation["made"], 0.5 * np.diff([0, *integral]), rtol=1e-6)
    np.testing.assert_allclose(simulation["mean"], np.diff([0, *integral]) / np.diff([0, *times]), rtol=1e-6)
    values = 2 + 2 * np.exp(-0.5 * times)
    np.testing.assert_allclose(simulation["fold"], values / values[0], rtol=1e-6)
    assert cf.steady_state(model, {"k": 0.5}, inputs={"u": 2.0}).states["x"] == pytest.approx(4.0)


def test_an_interval_without_length_is_refused() -> None:
    with pytest.raises(cf.InputError, match="first interval has no length"):
        problem(cases=(np.array([0.0, 1.0]), np.array([1.0, 2.0])))


def test_relative_to_first_excludes_first_value_from_measurements() -> None:
    """It counted as one without an error: sigma was too small by a tenth of four values."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], outputs={"fold": cf.relative_to_first(x)}, initial={x: 2.0})
    direct_model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    times, fold = np.array([1.0, 2, 3, 4]), np.array([1.0, 0.62, 0.35, 0.23])
    result = cf.fit(cf.Problem(model, cf.Experiment({"fold": fold}, time=times), parameters={"k": 0.4}))
    reference = cf.fit(
        cf.Problem(direct_model, cf.Experiment({"x": fold[1:]}, time=times[1:] - 1), parameters={"k": 0.4})
    )
    assert result.n_data == 3
    assert result.noise == pytest.approx(reference.noise, rel=1e-6)
    assert result.values == pytest.approx(reference.values, rel=1e-6)
    assert result.aic == pytest.approx(reference.aic, abs=1e-6)
    with pytest.raises(cf.InputError, match="no other is measured"):
        cf.Problem(model, cf.Experiment({"fold": [1.0]}, time=[1.0]), parameters={"k": 0.4})


def test_a_rate_must_be_an_expression() -> None:
    x = cf.symbols("x")
    with pytest.raises(cf.InputError, match="rate is 'x'; give a scalar SX expression"):
        cf.Model({x: -x}, outputs={"cases": cf.per_interval("x")})
