"""Intervals in which bounds are released, and their check by simulations at both ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy

import castfit as cf
import castfit.result.interval_ends as ends_module
from castfit.result.identifiability import AT_BOUND, NOT_IDENTIFIABLE, POORLY_DETERMINED, WELL_DETERMINED
from castfit.result.interval_ends import APPROXIMATE, CHECKED, interval_ends, with_interval_checks

TIMES = np.arange(1.0, 9.0)
GROWTH = np.exp(0.3 * TIMES) * (1.0 + 0.02 * np.sin(7.0 * TIMES))


def growth(birth: Any, death: Any) -> cf.Result:
    """x' = (b - d) x: only b - d enters."""
    x, b, d = cf.symbols("x b d")
    model = cf.Model({x: (b - d) * x}, parameters=[b, d], initial={x: 1})
    return cf.fit(cf.Problem(model, cf.Experiment({"x": GROWTH}, time=TIMES), parameters={"b": birth, "d": death}))


def infection(gamma: Any) -> cf.Result:
    """SIR model at the beginning of an epidemic: almost only beta - gamma enters."""
    infected = [45, 62, 121, 198, 291, 440, 571, 830, 1287, 1975, 2744, 4515]
    S, infectious, beta, recovery = cf.symbols("S I beta gamma")
    rate, total = beta * S * infectious / 1.4e9, 1.4e9
    model = cf.Model(
        {S: -rate, infectious: rate - recovery * infectious},
        parameters=[beta, recovery],
        initial={S: total - 45, infectious: 45},
    )
    parameters = {"beta": cf.Parameter(0.5, lower=0), "gamma": gamma}
    return cf.fit(cf.Problem(model, cf.Experiment({"I": infected}, time=np.arange(12.0)), parameters=parameters))


def test_flat_range_of_a_quantity_at_its_bound_is_released() -> None:
    result = infection(cf.Parameter(0.5, bounds=(0, 1)))
    assert result.active == {"gamma": "lower"}
    intervals, profile = result.confidence_intervals(), cf.profile(result, ["beta", "gamma"])
    for name in ("beta", "gamma"):
        assert intervals[name] == pytest.approx(profile[name].limits(), abs=2e-3)
        assert result.identifiability[name].kind == NOT_IDENTIFIABLE
        assert "only beta - gamma enters; gamma may be anywhere in [0, 1]" in result[name].verdict
    assert result.interval_checks["beta"] == CHECKED


def test_bound_that_the_data_choose_stays_a_bound() -> None:
    """The data exclude most of the range of d: its interval ends where the profile does."""
    x, b, d = cf.symbols("x b d")
    model = cf.Model({x: b - d * x}, parameters=[b, d], initial={x: 1})
    data = 1.0 + 0.5 * TIMES + 0.05 * np.cos(5.0 * TIMES) + 0.01 * TIMES**2
    problem = cf.Problem(
        model, cf.Experiment({"x": data}, time=TIMES), parameters={"b": 0.4, "d": cf.Parameter(0.1, bounds=(0, 10))}
    )
    result = cf.fit(problem)
    intervals, profile = result.confidence_intervals(), cf.profile(result)
    assert [result.identifiability[name].kind for name in "bd"] == [WELL_DETERMINED, AT_BOUND]
    for name in "bd":
        assert intervals[name] == pytest.approx(profile[name].limits(), rel=0.02, abs=1e-3)
        assert with_interval_checks(result).interval_checks[name] == CHECKED


def test_interval_without_upper_bound_is_unbounded() -> None:
    """d at its bound 0 and without another bound: the verdict names the range that was simulated."""
    result = growth(cf.Parameter(0.5), cf.Parameter(1e-3, lower=0))
    pinned = replace(result, active={"d": "lower"}) if not result.active else result
    ends = interval_ends(pinned, 2.0)
    assert ends is not None
    assert np.isinf(ends.values[:, 1]).all()


@pytest.mark.parametrize("n_bounds", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_ends_are_the_extreme_points_of_the_linear_model(n_bounds: int, seed: int) -> None:
    """Compare with a general solver: largest and smallest delta_k where the rise is at most 4, within the bounds."""
    rng, n = np.random.default_rng(seed), 4
    result = _linear_result(rng.standard_normal((9, n)) * [1.0, 30.0, 0.2, 5.0], n_bounds, rng)
    ends = interval_ends(result, 2.0)
    assert ends is not None
    g = np.where(np.arange(n) < n_bounds, result.gradient, 0.0)
    bounds = scipy.optimize.Bounds(*(result.bounds.T - result.theta))

    def rise(delta: np.ndarray) -> float:
        return float(2.0 * g @ delta + delta @ result.information @ delta)

    for k in range(n):
        for side, sign in enumerate((-1.0, 1.0)):
            assert rise(ends.points[k, side]) <= 4.0 + 1e-9
            scale = 1.0 / np.sqrt(np.diag(result.information))
            limit = scipy.optimize.NonlinearConstraint(lambda y, s=scale: rise(y * s), -np.inf, 4.0)
            scaled_bounds = scipy.optimize.Bounds(bounds.lb / scale, bounds.ub / scale)
            best = max(
                sign * k_scale * solution.x[k]
                for start in (np.zeros(n), ends.points[k, side] / scale)
                for k_scale in [scale[k]]
                if (
                    solution := scipy.optimize.minimize(
                        lambda y, k=k, sign=sign: -sign * y[k], start, bounds=scaled_bounds, constraints=limit,
                        method="SLSQP", options={"ftol": 1e-12, "maxiter": 500},
                    )
                ).success
            )  # fmt: skip
            assert sign * ends.values[k, side] == pytest.approx(best, rel=1e-4, abs=1e-6 * scale[k])


def _linear_result(E: np.ndarray, n_bounds: int, rng: np.random.Generator) -> Any:
    """Build a result with these derivatives; the first quantities are at their bounds, the others far from them."""
    n = E.shape[1]
    M = E.T @ E
    is_at_bound = np.arange(n) < n_bounds
    root = np.zeros((n, n))
    root[np.ix_(~is_at_bound, ~is_at_bound)] = np.linalg.cholesky(np.linalg.inv(M[np.ix_(~is_at_bound, ~is_at_bound)]))
    scale = 1.0 / np.sqrt(np.diag(M))
    lower, upper = np.full(n, -1e6), np.full(n, 1e6)
    lower[is_at_bound], upper[is_at_bound] = 0.0, (rng.uniform(0.1, 4.0, n) * scale)[is_at_bound]
    names = tuple("abcd")
    base = growth(cf.Parameter(0.5, bounds=(0, 1)), 0.1)
    return replace(
        base, names=names, theta=np.zeros(n), log=np.zeros(n, dtype=bool), bounds=np.column_stack([lower, upper]),
        active=dict.fromkeys(names[:n_bounds], "lower"), information=M, root=root, covariance=root @ root.T,
        gradient=np.where(is_at_bound, rng.uniform(0.0, 1.0, n) / scale, 0.0), inflation=1.0,
    )  # fmt: skip


def test_open_interval_is_marked_approximate_and_poor() -> None:
    """Michaelis-Menten data below saturation: the profile of km is open above, whatever its linear interval is."""
    s, v, k = cf.symbols("s v k")
    model = cf.Model({s: -v * s / (k + s)}, parameters=[v, k], initial={s: 1.0})
    truth = cf.simulate(model, {"v": 0.8, "k": 2.0}, np.linspace(0.3, 6.0, 20))
    data = truth["s"] + 0.02 * np.random.default_rng(3).standard_normal(20)
    positive = {"v": cf.Parameter(1.0, lower=0.0), "k": cf.Parameter(1.0, lower=0.0)}
    experiment = cf.Experiment({"s": data}, time=np.linspace(0.3, 6.0, 20), sigma=0.02)
    result = with_interval_checks(cf.fit(cf.Problem(model, experiment, parameters=positive)))
    profile = cf.profile(result)
    for name in ("v", "k"):
        estimate, limits, linear = result[name], profile[name].limits(), result.confidence_intervals()[name]
        ratios = [(end - estimate) / (limit - estimate) for end, limit in zip(linear, limits, strict=True)]
        is_good = all(1.0 / 1.5 <= ratio <= 1.5 for ratio in ratios)
        assert is_good or result.interval_checks[name] == APPROXIMATE
        if np.ptp(limits) > 2.0 * estimate:
            assert result.identifiability[name].kind == POORLY_DETERMINED


def test_linear_model_passes_every_check() -> None:
    result = cf.fit(cf.problems.load("bellman").problem)
    assert result.interval_checks == {}
    assert with_interval_checks(result).interval_checks == dict.fromkeys(result.names, CHECKED)
    study = cf.identifiability(result, rng=0)
    assert set(study.kinds.values()) == {WELL_DETERMINED}


def test_quantity_between_equal_bounds_and_saved_results_without_bounds_are_left_out() -> None:
    result = growth(cf.Parameter(0.5, bounds=(0, 1)), 0.1)
    pinned = replace(result, active={"d": "lower"}, bounds=np.array([[0.0, 1.0], [result["d"], result["d"]]]))
    ends = interval_ends(replace(pinned, root=np.diag([0.01, 0.0]), covariance=np.diag([1e-4, np.nan])), 2.0)
    assert ends is not None
    assert ends.values[0] == pytest.approx([-0.02, 0.02])
    assert np.isnan(ends.values[1]).all()
    assert interval_ends(replace(result, bounds=np.empty((0, 2))), 2.0) is None


def test_wide_intervals_are_named_also_if_no_simulation_is_left(monkeypatch):
    """The table's interval and the verdict agree if a bound is released that the search has no time to check."""
    monkeypatch.setattr(ends_module, "_N_FLAT_SIMULATIONS", 0)
    result = infection(cf.Parameter(0.5, bounds=(0, 1)))
    assert not result.interval_checks
    low, high = result["beta"].interval
    assert high - low > 1.0
    assert result.identifiability["beta"].kind == POORLY_DETERMINED
