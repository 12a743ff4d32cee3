"""Bands from draws of the estimates, expressions beside the outputs, and pictures of draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit.result.bands import _limits
from tests.builders import decay_problem, refused
from tests.result.test_bands import AT, line

SINGLE = cf.SingleShooting()


@dataclass
class Normal:
    """Draws whose mean and covariance are exactly those of the linear approximation."""

    result: cf.Result
    count: int = 500

    names = property(lambda self: self.result.names)
    limits = property(lambda self: {"percentile": self.result.confidence_intervals()})

    @property
    def thetas(self):
        draws = np.random.default_rng(0).standard_normal((self.count, self.result.theta.size))
        draws -= draws.mean(axis=0)
        white = np.linalg.solve(np.linalg.cholesky(np.cov(draws, rowvar=False)), draws.T)
        return self.result.theta + (np.linalg.cholesky(self.result.covariance) @ white).T

    @property
    def values(self):
        return dict(zip(self.names, self.thetas.T, strict=True))

    @property
    def sigmas(self):
        return {name: np.full(self.count, value) for name, value in self.result.sigmas.items()}


@pytest.mark.parametrize("known_sigma", [True, False])
@pytest.mark.parametrize("noise", [True, False])
def test_bands_of_normal_draws_are_the_linear_ones(known_sigma, noise):
    problem = line(sigma=0.1) if known_sigma else line()
    result = cf.fit(problem, SINGLE)
    _, a = cf.symbols("x a")
    options = {"outputs": {"twice": 2 * a}, "noise": noise, "confidence_level": 0.8}
    (linear_band,) = result.predict(AT, bands="linear", **options).values()
    (sampled_band,) = result.predict(AT, bands=Normal(result), rng=1, **options).values()
    factor = 1.0 if known_sigma else stats.norm.ppf(0.9) / stats.t.ppf(0.9, result.dof)
    for side in ("lower", "upper"):
        reach = (linear_band[f"x {side}"] - linear_band["x"]) * factor
        assert sampled_band[f"x {side}"] - sampled_band["x"] == pytest.approx(reach, rel=0.12)
    assert np.array_equal(sampled_band["x"], linear_band["x"])
    assert sampled_band["twice"] == pytest.approx(2 * result.values["a"])
    assert np.isnan(sampled_band["twice upper"]).all() == np.isnan(linear_band["twice upper"]).all() == noise
    if not noise:
        reach = stats.norm.ppf(0.9) * 2 * result.standard_errors["a"]
        assert sampled_band["twice upper"] - sampled_band["twice"] == pytest.approx(reach, rel=0.12)


def test_a_bootstrap_reaches_predictions_and_pictures(tmp_path):
    result = cf.fit(line(sigma=0.1), SINGLE)
    bootstrap = cf.bootstrap(result, "parametric", samples=40, transcription=SINGLE)
    (one,) = bootstrap.predict(AT, confidence_level=0.9).values()
    (other,) = result.predict(AT, bands=bootstrap, confidence_level=0.9).values()
    assert np.array_equal(one["x upper"], other["x upper"])
    (linear,) = result.predict(AT, bands="linear", confidence_level=0.9).values()
    assert one["x upper"] - one["x lower"] == pytest.approx(linear["x upper"] - linear["x lower"], rel=0.3)
    result.plot(tmp_path / "fit.png", bands=bootstrap, noise=True)
    bootstrap.plot(tmp_path / "histograms.png")
    cf.plots.pairs(bootstrap, tmp_path / "pairs.png", names=["b", "a"])
    assert all(p.stat().st_size > 5000 for p in tmp_path.iterdir())
    figure = result.plot(bands=bootstrap)
    assert any("95 %" in t.get_text() for t in figure.legends[0].get_texts())
    with pytest.raises(cf.InputError, match="has no draws"):
        cf.plots.histograms(bootstrap, names=["c"])


def test_counts_have_bands_of_counts():
    times = np.linspace(0.0, 3.0, 7)
    experiment = cf.Experiment({"x": [50, 33, 20, 13, 9, 5, 3]}, time=times, noise=cf.Poisson(), initial={"x": 50.0})
    x, k = cf.symbols("x k")
    problem = cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 0.8})
    result = cf.fit(problem, SINGLE)
    bootstrap = cf.bootstrap(result, "parametric", samples=20, transcription=SINGLE)
    (band,) = result.predict(times, bands=bootstrap, noise=True, rng=3).values()
    inside = (experiment.data["x"][1][:, 0] >= band["x lower"]) & (experiment.data["x"][1][:, 0] <= band["x upper"])
    assert inside.mean() > 0.8
    assert band["x upper"][0] - band["x lower"][0] == pytest.approx(4 * np.sqrt(50), rel=0.25)


def test_draws_that_fail_widen_bands():
    values = np.arange(101.0)[:, None]
    assert np.ravel(_limits(values, 0, 0.9)) == pytest.approx([5.0, 95.0])
    low, high = _limits(values[2:99], 4, 0.9)  # of 101 draws 4 may be anywhere: 2 from each end are missing, say
    assert low[0] <= 5.0
    assert high[0] >= 95.0
    assert np.isinf(_limits(values, 20, 0.9)).all()
    assert np.isinf(_limits(np.empty((0, 3)), 5, 0.9)).all()


def test_predict_invalid_draws_and_expressions_refused():
    result, other = cf.fit(line(sigma=0.1), SINGLE), cf.fit(decay_problem(), SINGLE)
    bootstrap = cf.bootstrap(other, samples=2, transcription=SINGLE)
    x, q = cf.symbols("x q")
    with refused(
        "noise is 2",
        "bands were computed for another fit",
        "rng is 'a'",
        "'x' is an output",
        "expected a scalar",
        "contains 'q'",
    ):
        result.predict(AT, bands=bootstrap, rng="a", noise=2, outputs={"x": x, "n": 3, "m": x * q})
    with refused("needs parameter samples; pass bands=castfit.bootstrap(result)"):
        result.predict(AT, bands="bootstrap")
    with refused("bands is 4; expected 'linear', 'profile'"):
        result.plot(bands=4)
    with refused("needs bands='linear' or bands='profile'"):
        result.plot(noise=True)


def test_quantile_bands_unstable_model_refused():
    """x'' = 400 x, from its end to its beginning: what is known at nodes is not known from the start."""
    from castfit.problems import load

    benchmark = load("notorious")
    result = cf.fit(benchmark.problem, cf.MultipleShooting(40), start=benchmark.starts["reference"])
    assert result.success
    spread = np.maximum(1e-3 * np.abs(result.theta), 1e-6)
    thetas = result.theta + spread * np.random.default_rng(0).standard_normal((5, spread.size))

    class Few:
        names, sigmas = result.names, {}

    few = Few()
    few.thetas = thetas
    with refused("is unstable: samples cannot be simulated from the initial states"):
        result.predict(bands=few)
