"""Bands about predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import castfit as cf

T = np.linspace(0.5, 6, 12)
AT = np.array([1.0, 2.5, 7.0])


def line(parameters: dict[str, Any] | None = None, **noise: Any) -> cf.Problem:
    """x = a + b t, which is linear in its parameters."""
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: b}, parameters=[a, b], initial={x: a})
    rng = np.random.default_rng(1)
    data = 1.0 + 0.5 * T + 0.1 * rng.standard_normal(T.size)
    guesses = {"a": 0.5, "b": 0.0, **(parameters or {})}
    return cf.Problem(model, cf.Experiment({"x": data}, time=T, **noise), parameters=guesses)


@pytest.mark.parametrize("transcription", [cf.SingleShooting(), cf.Collocation()], ids=lambda t: t.label)
@pytest.mark.parametrize("sigma", [0.1, None, cf.unknown()], ids=["known", "unknown", "unknown of x"])
def test_bands_are_those_of_linear_regression(transcription: Any, sigma: Any) -> None:
    from scipy import stats

    problem, is_known = line(sigma=sigma), sigma == 0.1
    result = cf.fit(problem, transcription)
    design, new_design = np.column_stack([np.ones_like(T), T]), np.column_stack([np.ones_like(AT), AT])
    y = problem.experiments[0].data["x"][1][:, 0]
    residuals = y - design @ np.linalg.lstsq(design, y)[0]
    variance = 0.01 if is_known else residuals @ residuals / (T.size - 2)
    spread = np.einsum("ij,jk,ik->i", new_design, np.linalg.inv(design.T @ design), new_design) * variance
    factor = stats.norm.ppf(0.95) if is_known else stats.t.ppf(0.95, T.size - 2)
    for noise, extra in ((False, 0.0), (True, variance)):
        (band,) = result.predict(AT, bands="linear", noise=noise, confidence_level=0.9).values()
        np.testing.assert_allclose(band["x upper"] - band["x"], factor * np.sqrt(spread + extra), rtol=1e-5)
        np.testing.assert_allclose(band["x"] - band["x lower"], factor * np.sqrt(spread + extra), rtol=1e-5)


def test_the_scale_of_the_search_does_not_matter() -> None:
    problem = line(sigma=0.1)
    log_problem = problem.replace(parameters={n: cf.Parameter(0.7, scale="log") for n in ("a", "b")})
    linear_band, log_band = (next(iter(cf.fit(p).predict(AT, bands="linear").values())) for p in (problem, log_problem))
    np.testing.assert_allclose(linear_band["x upper"], log_band["x upper"], rtol=1e-5)


def test_a_relative_error_widens_with_the_prediction() -> None:
    x, c = cf.symbols("x c")  # the symbol x of the noise is another one than the model's: names count
    problem = line(sigma=c * x, parameters={"c": cf.Parameter(0.1, scale="log")})
    (band,) = cf.fit(problem).predict(AT, bands="linear", noise=True).values()
    width = band["x upper"] - band["x"]
    assert width[2] > 1.5 * width[0]


def test_linear_bands_not_identifiable_output_unbounded() -> None:
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: -a * b * x}, parameters=[a, b], outputs={"a alone": a})
    data = cf.Experiment({"x": np.exp(-T)}, time=T, sigma=0.1, initial={"x": 1.0})
    result = cf.fit(cf.Problem(model, data, parameters={"a": 2.0, "b": 1.0}))
    (band,) = result.predict(AT, bands="linear").values()
    assert np.isinf(band["a alone upper"]).all()


def test_an_eliminated_scale_is_as_uncertain_as_an_explicit_one() -> None:
    x, k, s = cf.symbols("x k s")
    data = 3 * np.exp(-0.7 * T) + 0.05 * np.cos(9 * T)
    experiment = cf.Experiment({"y": data}, time=T, sigma=0.05, initial={"x": 1.0})
    scaled = cf.Model({x: -k * x}, parameters=[k], outputs={"y": cf.scaled(x)})
    explicit = cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x})
    one = cf.fit(cf.Problem(scaled, experiment, parameters={"k": 0.5})).predict(AT, bands="linear")
    other = cf.fit(cf.Problem(explicit, experiment, parameters={"k": 0.5, "s": 2.0})).predict(AT, bands="linear")
    for name in ("y lower", "y upper", "x upper"):
        np.testing.assert_allclose(one["experiment 1"][name], other["experiment 1"][name], rtol=1e-5)


def test_predict_invalid_bands_options_refused() -> None:
    result = cf.fit(line())
    for options, message in (
        ({"bands": "wide"}, "bands is 'wide'; expected 'linear', 'profile'"),
        ({"noise": True}, "needs bands='linear' or bands='profile'"),
        ({"bands": "linear", "confidence_level": 2.0}, "between 0 and 1"),
    ):
        with pytest.raises(cf.InputError, match=message):
            result.predict(AT, **options)


def test_bands_of_an_experiment_that_is_measured_only_at_its_start() -> None:
    """Its model runs as long as the others', and its bands are those of the straight line there."""
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: b}, parameters=[a, b], initial={x: a})
    long = cf.Experiment({"x": 1 + 0.5 * T}, time=T, sigma=0.1, name="long")
    short = cf.Experiment({"x": [1.0]}, time=[0.0], sigma=0.1, name="short")
    result = cf.fit(cf.Problem(model, [long, short], parameters={"a": 0.5, "b": 0.0}), "single")
    long_band, short_band = (result.predict(AT, bands="linear")[n] for n in ("long", "short"))
    assert short_band["x lower"] == pytest.approx(long_band["x lower"], rel=1e-6)
    assert (short_band["x lower"] < short_band["x"]).all()
