"""What single values do to the estimates, against fits without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import castfit as cf
from tests.builders import lotka_volterra, refused

T = np.append(np.linspace(0.0, 2.0, 12), 9.0)
NOISE = 0.1 * np.random.default_rng(4).standard_normal(T.size)


def line(values: np.ndarray, times: np.ndarray = T, **noise: Any) -> cf.Problem:
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: b}, parameters=[a, b], initial={x: a})
    return cf.Problem(model, cf.Experiment({"x": values}, time=times, **noise), parameters={"a": 0.5, "b": 0.1})


@pytest.mark.parametrize("known_sigma", [True, False])
@pytest.mark.parametrize("transcription", [cf.SingleShooting(), cf.Collocation()], ids=lambda t: t.label)
def test_leverages_are_those_of_regression(known_sigma: bool, transcription: Any) -> None:
    y = 1 + 0.5 * T + NOISE
    result = cf.fit(line(y, sigma=0.1) if known_sigma else line(y), transcription)
    X = np.column_stack([np.ones_like(T), T])
    H = X @ np.linalg.inv(X.T @ X) @ X.T
    r = (X @ np.linalg.lstsq(X, y)[0] - y) / (0.1 if known_sigma else 1.0)
    r = r if known_sigma else r / np.sqrt(r @ r / 11)
    h = np.diag(H)
    assert result.leverage == pytest.approx(h, rel=1e-5)
    assert result.influence.distance == pytest.approx(r**2 * h / (2 * (1 - h) ** 2), rel=1e-4)


def test_shifts_are_those_of_fits_without_a_value() -> None:
    y = 1 + 0.5 * T + NOISE
    result = cf.fit(line(y, sigma=0.1))
    for i in (0, 5, 12):
        keep = np.arange(T.size) != i
        reduced_result = cf.fit(line(y[keep], T[keep], sigma=0.1))
        errors = np.array(list(result.standard_errors.values()))
        assert result.influence.shifts[i] == pytest.approx((reduced_result.theta - result.theta) / errors, abs=1e-4)


def test_shifts_where_errors_are_alike_are_those_of_generalised_least_squares(tmp_path: Path) -> None:
    times = np.arange(1.0, 10.0)
    C = 0.09 * np.exp(-np.abs(times[:, None] - times) / 2.0)
    y = 2 + 0.5 * times + np.sin(5 * times)
    result = cf.fit(line(y, times, sigma={"x": cf.correlated(0.3, time=2.0)}, start=0.0))

    def solved(keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        X = np.column_stack([np.ones_like(times), times])[keep]
        P = np.linalg.inv(C[np.ix_(keep, keep)])
        cov = np.linalg.inv(X.T @ P @ X)
        return cov @ X.T @ P @ y[keep], np.sqrt(np.diag(cov))

    estimates, errors = solved(np.full(times.size, True))
    shifts = np.array([(solved(np.arange(times.size) != i)[0] - estimates) / errors for i in range(times.size)])
    assert result.influence.shifts == pytest.approx(shifts, abs=1e-6)
    result.save(tmp_path / "fit.json")
    with refused("the loaded result has no model"):  # nor how errors depend on each other
        _ = cf.Result.load(tmp_path / "fit.json").influence


def test_influence_decisive_value_is_named_with_shift() -> None:
    y = 1 + 0.5 * T + NOISE
    y[-1] += 1.0
    diagnostics = cf.fit(line(y)).diagnostics
    influence = diagnostics.influential[0]
    assert (influence.output, influence.time, influence.quantity) == ("x", 9.0, "b")
    assert influence.leverage > 0.8
    assert abs(influence.shift) > 2
    assert "depend strongly on a few measurements: removing x at t = 9 would change b by " in diagnostics.sentence
    assert "Cook's distance" in str(diagnostics)


def test_influence_sole_determinant_is_named() -> None:
    """k shows in the last value only: x is given before."""
    x, k, c = cf.symbols("x k c")
    model = cf.Model({x: -k * x}, parameters=[k, c], outputs={"y": x, "w": c})
    experiment = cf.Experiment({"y": np.exp(-0.3 * T) + 0.01 * NOISE, "w": ([1.0], [3.0])}, time=T, sigma=0.01,
                               initial={"x": 1.0})  # fmt: skip
    diagnostics = cf.fit(cf.Problem(model, experiment, parameters={"k": 0.5, "c": 1.0})).diagnostics
    influence = next(one for one in diagnostics.influential if one.output == "w")
    assert influence.leverage == pytest.approx(1.0)
    assert np.isinf(influence.distance)
    assert str(influence).startswith("The measurement of ")
    assert " alone determines some combination of the estimates" in str(influence)


def test_transcriptions_agree_on_influence() -> None:
    single, multiple, collocation = (
        cf.fit(lotka_volterra(), t).influence for t in (cf.SingleShooting(), cf.MultipleShooting(), cf.Collocation())
    )
    for other in (multiple, collocation):
        assert other.leverage == pytest.approx(single.leverage, rel=1e-3)
        assert other.distance == pytest.approx(single.distance, rel=2e-3, abs=1e-6)
        assert other.shifts == pytest.approx(single.shifts, abs=2e-3)


def test_units_do_not_matter() -> None:
    y = 1 + 0.5 * T + NOISE
    influence, scaled_influence = cf.fit(line(y)).influence, cf.fit(line(1e-7 * y)).influence
    assert scaled_influence.distance == pytest.approx(influence.distance, rel=1e-4)
    assert scaled_influence.shifts == pytest.approx(influence.shifts, abs=1e-4)


def test_the_size_of_residuals_is_a_check() -> None:
    y = 1 + 0.5 * T + NOISE
    fine, small, unknown = (
        cf.fit(line(y, **s), "single").diagnostics.chi2 for s in ({"sigma": 0.1}, {"sigma": 1e-3}, {})
    )
    assert not fine.is_finding
    assert 0.1 < fine.p_value < 0.99
    assert small.is_finding
    assert np.isnan(unknown.number)
    assert "sigma is unknown" in unknown.sentence


def test_exact_data_and_failed_fits_have_none() -> None:
    with refused("only for converged fits with a positive residual variance"):
        _ = cf.fit(line(1 + 0.5 * T)).influence
    with refused("only for converged fits with a positive residual variance"):
        _ = cf.fit(line(1 + 0.5 * T + NOISE), callback=lambda _: True).influence
