"""Information at folds against profiles that SciPy computes from closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import castfit as cf

TIMES = np.linspace(0.5, 12.0, 16)


def chain_response(k1: float, k2: float, amplitude: float) -> np.ndarray:
    """Amount of the second substance of a chain of two first-order reactions."""
    if abs(k1 - k2) < 1e-7 * k1:
        return amplitude * k1 * TIMES * np.exp(-k1 * TIMES)
    return amplitude * k1 / (k2 - k1) * (np.exp(-k1 * TIMES) - np.exp(-k2 * TIMES))


def fold_data(seed: int) -> np.ndarray:
    """Data whose best chain has equal rates: their noise opposes the change of the curve when rates separate."""
    k, e = 0.5, 1e-3
    noise = 0.02 * np.random.default_rng(seed).standard_normal(TIMES.size)
    bend = (chain_response(k + e, k - e, 1.0) + chain_response(k - e, k + e, 1.0)) / 2 - chain_response(k, k, 1.0)
    tangents = np.array([chain_response(k, k, 1.0), TIMES * chain_response(k, k, 1.0)]).T
    bend -= tangents @ np.linalg.lstsq(tangents, bend, rcond=None)[0]
    return chain_response(k, k, 1.0) - noise * np.sign(noise @ bend)


def chain_problem(data: np.ndarray, sigma: float | None, scale: str = "linear") -> cf.Problem:
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={b: 0})
    experiment = cf.Experiment(
        {"b": data}, time=TIMES, initial={"a": cf.free(1.1, lower=0.01, upper=100, scale=scale)},
        **({} if sigma is None else {"sigma": sigma}),
    )  # fmt: skip
    rates = {
        name: cf.Parameter(value, lower=0.005, upper=50, scale=scale) for name, value in (("k1", 0.55), ("k2", 0.46))
    }
    return cf.Problem(model, experiment, parameters=rates)


def profile_ends(data: np.ndarray, threshold: float, best: float) -> tuple[float, float]:
    """Rates k1 between which the sum of squares, minimised over the other quantities, is below a threshold."""

    def squares(k1: float) -> float:
        return min(
            2
            * scipy.optimize.least_squares(lambda q: chain_response(k1, *q) - data, start, xtol=1e-12, ftol=1e-12).cost
            for start in ([0.5, 1.0], [0.3, 1.5], [0.9, 0.8])
        )

    low, high = (scipy.optimize.brentq(lambda k: squares(k) - threshold, best, end, xtol=1e-4) for end in (0.1, 3.0))
    return low, high


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("sigma", [0.02, None])
def test_standard_errors_at_equal_rates_agree_with_the_profile(seed: int, sigma: float | None) -> None:
    data = fold_data(seed)
    result = cf.fit(chain_problem(data, sigma), "single", cf.GaussNewton("levenberg_marquardt"))
    assert result.success
    assert result.parameters["k1"] == pytest.approx(result.parameters["k2"], rel=0.05)
    assert (result.rank, result.dof) == (3, TIMES.size - 3)
    quantile = 1.96**2 if sigma else scipy.stats.t.ppf(0.975, result.dof) ** 2
    squares = float(np.sum((chain_response(*result.parameters.values(), result.initial_states["a(0)"]) - data) ** 2))
    noise = sigma**2 if sigma else squares / result.dof
    low, high = profile_ends(data, squares + quantile * noise, result.parameters["k1"])
    interval = result.confidence_intervals()["k1"]
    assert interval[1] - interval[0] == pytest.approx(high - low, rel=0.2)


@pytest.mark.parametrize("transcription", ["multiple", "collocation"])
def test_fold_has_the_same_standard_errors_by_every_transcription(transcription: str) -> None:
    problem = chain_problem(fold_data(0), 0.02, "log")
    single, other = (cf.fit(problem, name, cf.GaussNewton("levenberg_marquardt")) for name in ("single", transcription))
    assert other.success
    assert other.standard_errors["k1"] == pytest.approx(single.standard_errors["k1"], rel=0.02)


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("term", ["sum", "product"])
def test_exact_ridge_stays_not_identifiable(scale: str, term: str) -> None:
    x, k, m = cf.symbols("x k m")
    rate = k + m if term == "sum" else k * m
    model = cf.Model({x: -rate * x}, parameters=[k, m], initial={x: 1})
    data = np.exp(-0.4 * TIMES) + 0.01 * np.random.default_rng(4).standard_normal(TIMES.size)
    parameters = {
        name: cf.Parameter(value, lower=1e-3, upper=10, scale=scale) for name, value in (("k", 0.3), ("m", 0.2))
    }
    result = cf.fit(cf.Problem(model, cf.Experiment({"x": data}, time=TIMES, sigma=0.01), parameters=parameters))
    assert result.success
    assert (result.rank, result.identifiability["k"].kind) == (1, "not identifiable")
