"""Errors that depend on each other: generalised least squares, a Kalman filter, the determinant criterion."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

import castfit as cf
from castfit._bench.correlated_errors import coverage
from castfit.densities.noise.correlation import (
    CrossOutputCorrelation,
    OutputCorrelation,
    TimeCorrelation,
    whitening_matrix,
)
from castfit.fit.correlated_errors import _cost, _Residuals

TIMES = np.array([0.2, 0.5, 1.1, 1.3, 2.0, 2.6, 2.7, 3.9, 4.4, 5.0, 6.1, 6.3])


def line(sigma, values, times=TIMES):
    """A straight line with a free start: a linear model."""
    x, a = cf.symbols("x a")
    model = cf.Model({x: a}, parameters=[a])
    experiment = cf.Experiment({"x": values}, time=times, sigma=sigma, initial={"x": cf.free(0.5)})
    return cf.Problem(model, experiment, parameters={"a": 0.1})


def drawn(seed, tau, sigma, times=TIMES):
    rng = np.random.default_rng(seed)
    P = np.exp(-np.abs(times[:, None] - times) / tau)
    return 1.0 + 0.7 * times + sigma * np.linalg.cholesky(P) @ rng.standard_normal(times.size), P


def generalised(values, C, times=TIMES):
    """Estimates (a, x0), standard errors and -2 log L of a straight line with errors of covariance C."""
    X, inverse = np.column_stack([times, np.ones_like(times)]), np.linalg.inv(C)
    F = X.T @ inverse @ X
    b = np.linalg.solve(F, X.T @ inverse @ values)
    r = values - X @ b
    log_l = r @ inverse @ r + np.linalg.slogdet(C)[1] + values.size * np.log(2 * np.pi)
    return b, np.sqrt(np.diag(np.linalg.inv(F))), float(log_l)


@pytest.mark.parametrize(
    ("transcription", "solver"),
    [
        ("single", "gauss_newton"),
        ("multiple", "sqp"),
        ("collocation", "ipopt"),
        (cf.MultipleShooting("data", derivatives="adjoint"), "gauss_newton"),
        (cf.SingleShooting(derivatives="adjoint"), "ipopt"),
        ("collocation", "gauss_newton"),
    ],
)
def test_generalised_least_squares(transcription, solver):
    values, P = drawn(1, 2.0, 0.3)
    b, errors, log_l = generalised(values, 0.09 * P)
    for sigma in (cf.correlated(0.3, time=2.0), 0.09 * P):
        result = cf.fit(line(sigma, values), transcription, solver)
        assert result.success
        assert list(result.values.values()) == pytest.approx(b, rel=1e-7)
        assert list(result.standard_errors.values()) == pytest.approx(errors, rel=1e-7)
        assert result.neg2loglik == pytest.approx(log_l, rel=1e-9)


def test_fit_with_unknown_correlation_at_max_iter_names_intermediate_correlation():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 3.0})
    y, C = 3 * np.exp(-0.5 * TIMES) + 0.1 * np.sin(3 * TIMES), 0.01 * np.exp(-np.abs(TIMES[:, None] - TIMES) / 1.5)
    experiment = cf.Experiment({"x": y}, time=TIMES, sigma={"x": cf.correlated(0.1, time=1.5)})
    result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.5}), "single", cf.GaussNewton(max_iter=1))
    assert result.status is cf.Status.MAX_ITERATIONS
    r = y - 3 * np.exp(-result["k"].value * TIMES)
    assert result.chi2 == pytest.approx(r @ np.linalg.solve(C, r), rel=1e-5)
    experiment = cf.Experiment({"x": y}, time=TIMES, sigma={"x": cf.correlated(0.1, time=cf.unknown())})
    result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.5}), "single", cf.GaussNewton(max_iter=1))
    assert "The error correlation is that of an intermediate iteration." in result.message
    C = 0.01 * np.exp(-np.abs(TIMES[:, None] - TIMES) / result.errors.times["x"])
    r = y - 3 * np.exp(-result["k"].value * TIMES)
    assert result.chi2 == pytest.approx(r @ np.linalg.solve(C, r), rel=1e-5)


def test_a_gap_and_a_prior_of_the_horizon_keep_the_covariance_of_what_is_left():
    values, P = drawn(2, 2.0, 0.3)
    values_with_gaps = values.copy()
    values_with_gaps[[3, 7]] = np.nan
    is_measured = np.isfinite(values_with_gaps)
    b, _, log_l = generalised(
        values_with_gaps[is_measured], 0.09 * P[np.ix_(is_measured, is_measured)], TIMES[is_measured]
    )
    for sigma in (cf.correlated(0.3, time=2.0), cf.covariance(0.09 * P)):
        problem = line(sigma, values_with_gaps)
        result = cf.fit(problem)
        assert list(result.values.values()) == pytest.approx(b, rel=1e-7)
        assert result.neg2loglik == pytest.approx(log_l, rel=1e-9)
        is_early = TIMES <= 4.0
        truncated_result = cf.fit(problem.posed.with_horizon(4.0))
        mask = is_measured & is_early
        b_early, _, _ = generalised(values_with_gaps[mask], 0.09 * P[np.ix_(mask, mask)], TIMES[mask])
        assert list(truncated_result.values.values()) == pytest.approx(b_early, rel=1e-7)
    assert repr(cf.fit(problem.posed.without_value("experiment 1", 0, "x")).success) == "True"


def test_the_likelihood_is_that_of_a_kalman_filter_of_the_errors():
    """An error that is a state, e' = -e / tau + noise, measured exactly: -2 log L by its innovations."""
    values, _ = drawn(3, 1.5, 0.2)
    result = cf.fit(line(cf.correlated(0.2, time=1.5), values))
    r = values - result.predictions
    mean, variance, total = 0.0, 0.04, 0.0
    previous_time = TIMES[0]
    for t, residual in zip(TIMES, r, strict=True):
        phi = np.exp(-(t - previous_time) / 1.5)
        mean, variance, previous_time = phi * mean, phi**2 * variance + 0.04 * (1 - phi**2), t
        total += (residual - mean) ** 2 / variance + np.log(2 * np.pi * variance)
        mean, variance = residual, 0.0
    assert result.neg2loglik == pytest.approx(total, rel=1e-10)


def test_an_unknown_time_maximises_the_restricted_likelihood():
    times = np.cumsum(np.random.default_rng(4).uniform(0.1, 1.0, 60))
    values, _ = drawn(4, 2.0, 0.3, times)
    X = np.column_stack([times, np.ones_like(times)])

    def restricted(log_tau):
        P = np.exp(-np.abs(times[:, None] - times) / np.exp(log_tau))
        inverse = np.linalg.inv(P)
        F = X.T @ inverse @ X
        r = values - X @ np.linalg.solve(F, X.T @ inverse @ values)
        free = times.size - 2
        return free * np.log(r @ inverse @ r) + np.linalg.slogdet(P)[1] + np.linalg.slogdet(F)[1]

    best = scipy.optimize.minimize_scalar(restricted, bounds=(-1, 3), method="bounded", options={"xatol": 1e-9})
    result = cf.fit(line(cf.correlated(time=cf.unknown()), values, times))
    tau = float(np.exp(best.x))
    assert result.errors.times["x"] == pytest.approx(tau, rel=1e-4)
    P = np.exp(-np.abs(times[:, None] - times) / tau)
    b, _, log_l = generalised(values, result.sigmas["sigma(x)"] ** 2 * P, times)
    assert list(result.values.values()) == pytest.approx(b, rel=1e-5)
    assert result.neg2loglik == pytest.approx(log_l, abs=1e-4)
    assert result.aic == pytest.approx(result.neg2loglik + 2 * 4)  # a, x(0), sigma and the time
    assert "Correlation time of the errors of x: " in result.message


def test_intervals_are_wider_by_what_is_unknown_of_the_time():
    """By dense algebra: the mean over both sides of the time, where the restricted likelihood has fallen by 1/2."""
    times = np.linspace(0.2, 12.0, 60)
    values, _ = drawn(8, 0.5, 0.3, times)
    X, free = np.column_stack([times, np.ones_like(times)]), times.size - 2

    def restricted_fit(log_tau):
        P = np.exp(-np.abs(times[:, None] - times) / np.exp(log_tau))
        F = X.T @ np.linalg.solve(P, X)
        b = np.linalg.solve(F, X.T @ np.linalg.solve(P, values))
        r = values - X @ b
        squares = float(r @ np.linalg.solve(P, r))
        cost = 0.5 * (free * np.log(squares) + np.linalg.slogdet(P)[1] + np.linalg.slogdet(F)[1])
        return b, squares / free * np.linalg.inv(F), cost

    options = {"xatol": 1e-10}
    best = scipy.optimize.minimize_scalar(
        lambda x: restricted_fit(x)[2], bounds=(-2, 3), method="bounded", options=options
    ).x
    b, C, min_cost = restricted_fit(best)
    ends = [
        scipy.optimize.brentq(lambda x: restricted_fit(x)[2] - min_cost - 0.5, best, best + offset)
        for offset in (-3.0, 3.0)
    ]
    for end in ends:
        b_end, C_end, _ = restricted_fit(end)
        C = C + abs(end - best) / (ends[1] - ends[0]) * (
            C_end - restricted_fit(best)[1] + np.outer(b_end - b, b_end - b)
        )
    result = cf.fit(line(cf.correlated(time=cf.unknown()), values, times))
    standard_errors, conditional_errors = (
        np.array(list(result.standard_errors.values())),
        np.sqrt(np.diag(restricted_fit(best)[1])),
    )
    assert standard_errors == pytest.approx(np.sqrt(np.diag(C)), rel=0.05)
    assert (standard_errors > 1.02 * conditional_errors).all()
    assert result.confidence_region().standard_errors == pytest.approx(standard_errors, rel=1e-6)


@pytest.mark.slow
def test_confidence_intervals_of_correlated_errors_cover_the_rate():
    shares = {row.figure: row.found for row in coverage(60, 1)}
    assert shares["intervals of k that hold 0.5, memory unknown, %"] > 88
    assert shares["intervals of k that hold 0.5, taken as independent, %"] < 60


def chain(values, sigma):
    A, B, k = cf.symbols("A B k")
    model = cf.Model({A: -k * A, B: k * A}, parameters=[k])
    data = {"A": values[:, 0], "B": values[:, 1]}
    experiment = cf.Experiment(data, time=TIMES, sigma=sigma, initial={"A": cf.free(1.5), "B": 0})
    return cf.Problem(model, experiment, parameters={"k": 1.0})


def residuals(k, A, values):
    return np.column_stack([A * np.exp(-k * TIMES), A * (1 - np.exp(-k * TIMES))]) - values


def measured(seed=5):
    E = np.random.default_rng(seed).multivariate_normal([0, 0], [[0.003, 0.0036], [0.0036, 0.012]], TIMES.size)
    return E - residuals(0.5, 2.0, 0.0 * E) * -1.0


@pytest.mark.parametrize(("transcription", "solver"), [("single", "ipopt"), ("collocation", "gauss_newton")])
def test_joint_errors_minimise_box_and_drapers_determinant(transcription, solver):
    values = measured()
    best = scipy.optimize.minimize(
        lambda p: np.log(np.linalg.det(residuals(*p, values).T @ residuals(*p, values))),
        [0.5, 2.0], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12},
    )  # fmt: skip
    problem = chain(values, cf.unknown("joint"))
    result = cf.fit(problem, transcription, solver)
    assert list(result.values.values()) == pytest.approx(best.x, rel=2e-6)
    R = residuals(*best.x, values)
    assert np.array(result.errors.covariance) == pytest.approx(R.T @ R / len(R), rel=1e-5)
    log_det = np.linalg.slogdet(R.T @ R / len(R))[1]
    assert result.neg2loglik == pytest.approx(len(R) * (log_det + 2 + 2 * np.log(2 * np.pi)), abs=1e-6)
    assert result.aic == pytest.approx(result.neg2loglik + 2 * 5)


def test_joint_errors_with_gaps_are_a_maximum_of_the_likelihood():
    values = measured(6)
    values[[1, 4, 5], 1] = np.nan
    values[8, 0] = np.nan
    result = cf.fit(chain(values, cf.unknown("joint")))

    def neg2loglik(k, A, S):
        total = 0.0
        for r in residuals(k, A, values):
            is_finite = np.isfinite(r)
            C = S[np.ix_(is_finite, is_finite)]
            total += r[is_finite] @ np.linalg.solve(C, r[is_finite]) + np.linalg.slogdet(2 * np.pi * C)[1]
        return total

    k, A, S = *result.values.values(), np.array(result.errors.covariance)
    minimum = neg2loglik(k, A, S)
    assert result.neg2loglik == pytest.approx(minimum, abs=1e-6)
    for dk, dA, dS in ((1e-3, 0, 0), (0, 3e-3, 0), (0, 0, [[1e-4, 0], [0, 0]]), (0, 0, [[0, 1e-4], [1e-4, 0]])):
        for sign in (-1, 1):
            assert neg2loglik(k + sign * dk, A + sign * dA, S + sign * np.array(dS)) > minimum


def test_known_covariance_between_outputs():
    values, S = measured(7), np.array([[0.003, 0.0036], [0.0036, 0.012]])
    result = cf.fit(chain(values, S))
    R = residuals(*result.values.values(), values)
    expected = float(np.sum(R * np.linalg.solve(S, R.T).T))
    assert result.chi2 == pytest.approx(expected, rel=1e-7)
    assert result.neg2loglik == pytest.approx(expected + len(R) * np.linalg.slogdet(2 * np.pi * S)[1], rel=1e-7)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 9))
def test_whitening_uses_the_specified_covariance(seed, n):
    """W P W^T = 1 and log |P|, for any gaps."""
    rng = np.random.default_rng(seed)
    times, mask = np.cumsum(rng.uniform(0.1, 2.0, n)), rng.random((n, 4)) < 0.7
    A = rng.standard_normal((n, n + 2))
    correlation = A @ A.T
    correlation /= np.sqrt(np.outer(np.diag(correlation), np.diag(correlation)))
    r = rng.uniform(-0.9, 0.9)
    pair = CrossOutputCorrelation(("c", "d"), np.array([[1.0, r], [r, 1.0]]))
    whitener = whitening_matrix(
        times, mask, ("a", "b", "c", "d"), (TimeCorrelation("", 0.8), OutputCorrelation(correlation, times), pair, pair)
    )
    P = np.zeros((n, 4, n, 4))
    P[:, 0, :, 0] = np.exp(-np.abs(times[:, None] - times) / 0.8)
    P[:, 1, :, 1] = correlation
    for i in range(n):
        P[i, 2:, i, 2:] = pair.P
    is_measured = mask.ravel()
    P = P.reshape(4 * n, 4 * n)[np.ix_(is_measured, is_measured)]
    W = whitener.W.toarray()
    assert pytest.approx(np.eye(len(P)), abs=1e-8) == W @ P @ W.T
    assert whitener.log_det == pytest.approx(np.linalg.slogdet(P)[1], abs=1e-8)
    z = rng.standard_normal(len(P))
    assert whitener.coloured(W @ z) == pytest.approx(z, abs=1e-8)


def test_log_normal_correlated_errors_agree_with_logarithms():
    rng = np.random.default_rng(8)
    x, k = cf.symbols("x k")
    P = np.exp(-np.abs(TIMES[:, None] - TIMES) / 1.5)
    values = np.exp(np.log(2.0) - 0.4 * TIMES + 0.1 * np.linalg.cholesky(P) @ rng.standard_normal(TIMES.size))
    experiment = cf.Experiment(
        {"x": values},
        time=TIMES,
        sigma=cf.correlated(0.1, time=1.5),
        noise=cf.LogNormal(),
        initial={"x": cf.free(1.0, scale="log")},
    )
    result = cf.fit(cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 1.0}))
    b, errors, log_l = generalised(np.log(values), 0.01 * P)
    assert result["k"].value == pytest.approx(-b[0], rel=1e-6)
    assert result.standard_errors["k"] == pytest.approx(errors[0], rel=1e-6)
    assert result.neg2loglik == pytest.approx(log_l + 2 * np.log(values).sum(), rel=1e-7)


def test_residuals_are_judged_by_what_is_new_in_them():
    times = np.linspace(0.1, 6, 50)
    values, _ = drawn(9, 1.5, 0.3, times)
    independent_result, correlated_result = (
        cf.fit(line(0.3, values, times)),
        cf.fit(line(cf.correlated(0.3, time=1.5), values, times)),
    )
    assert independent_result.diagnostics.outputs["x"].autocorrelation.grade == "significant"
    assert correlated_result.diagnostics.outputs["x"].autocorrelation.grade == "none"
    phi = np.exp(-(times[1] - times[0]) / 1.5)
    r = correlated_result.normalised_residuals
    innovations = (r[1:] - phi * r[:-1]) / np.sqrt(1 - phi**2)
    whitened_residuals = np.append(r[0], innovations)
    expected = float(np.sum(whitened_residuals[1:] * whitened_residuals[:-1]) / np.sum(whitened_residuals**2))
    assert correlated_result.diagnostics.outputs["x"].autocorrelation.number == pytest.approx(expected, rel=1e-6)


def test_bootstrap_draws_correlated_errors(tmp_path):
    values, _ = drawn(10, 2.0, 0.3)
    problem = line(cf.correlated(0.3, time=cf.unknown("memory")), values)
    result = cf.fit(problem, "single")
    recipe = __import__("castfit.drive.uncertainty.refits.resampling", fromlist=["resampling"]).resampling
    compiled_problem = result.problem.posed
    scheme = recipe("parametric", compiled_problem, result, 1)
    rng = np.random.default_rng(0)
    errors = np.array([scheme.values(compiled_problem, rng)[0][:, 0] - result.predictions for _ in range(4000)])
    tau = result.errors.times["memory"]
    expected = 0.09 * np.exp(-np.abs(TIMES[:, None] - TIMES) / tau)
    assert errors.T @ errors / len(errors) == pytest.approx(expected, abs=6e-3)
    result.save(tmp_path / "result.json")
    loaded = cf.Result.load(tmp_path / "result.json").with_problem(problem)
    assert loaded.errors == result.errors
    assert loaded.diagnostics.sentence == result.diagnostics.sentence
    refit = cf.fit(problem, "single", start=result)
    assert refit.errors.times["memory"] == pytest.approx(tau, rel=1e-4)


def test_profiles_of_parameters_and_predictions_follow_the_generalised_squares():
    values, P = drawn(11, 2.0, 0.3)
    result = cf.fit(line(cf.correlated(0.3, time=2.0), values), "collocation")
    _, errors, _ = generalised(values, 0.09 * P)
    profile = cf.profile(result, "a").profiles["a"]
    low, high = profile.limits(0.95)
    half = 0.5 * (high - low)
    assert half == pytest.approx(1.959964 * errors[0], rel=1e-4)


MISTAKES = [
    (cf.covariance([[1, 2], [2, 1]]), "not positive definite"),
    (cf.covariance([[1, 0.2], [0.1, 1]]), "not symmetric: 0.2 in row 1, column 2"),
    (cf.covariance(np.eye(3)), "has 3 rows for 2 outputs"),
    (cf.covariance([[1, 0], [0, -1]]), "variance -1 in row 2"),
    ({"A": cf.covariance(np.eye(3)), "B": 1.0}, "the covariance of 'A' has 3 rows for 12 values"),
    (cf.correlated(0.1, time=-1.0), "time of correlated\\(\\) is -1.0; give a positive number"),
    (cf.correlated(0.1, time=cf.unknown(guess=2.0)), "it takes a name and nothing else"),
    (cf.correlated(cf.unknown(guess=1.0), time=2.0), "give numbers, or unknown\\(\\) with nothing but a name"),
    ({"A": cf.unknown("joint"), "B": 0.1}, "no other output has it"),
]


@pytest.mark.parametrize(("sigma", "message"), MISTAKES)
def test_invalid_correlated_errors_are_refused(sigma, message):
    with pytest.raises(cf.InputError, match=message):
        chain(measured(), sigma)


def test_correlated_errors_unsupported_uses_are_refused(tmp_path):
    with pytest.raises(cf.InputError, match="cannot be combined with StudentT"):
        cf.Experiment({"x": [1.0, 2.0]}, time=[1, 2], noise=cf.StudentT(), sigma=cf.correlated(0.1, time=1.0))
    with pytest.raises(cf.InputError, match="at t = 1 'x' has several values"):
        cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=[1, 1, 2], sigma=cf.correlated(0.1, time=1.0))
    with pytest.raises(cf.InputError, match="set correlated errors in sigma="):
        cf.Experiment({"x": [1.0, 2.0]}, time=[1, 2], noise=cf.Gaussian(cf.correlated(0.1, time=1.0)))
    values, _ = drawn(12, 2.0, 0.3)
    problem = line(cf.correlated(0.3, time=cf.unknown()), values)
    with pytest.raises(cf.InputError, match="the error correlation of 'x' is unknown"):
        cf.coverage(problem, rng=0, samples=10)


def test_the_search_for_a_time_sees_the_same_function_as_dense_algebra():
    values, _ = drawn(13, 2.0, 0.3)
    problem = line(cf.correlated(cf.unknown(), time=cf.unknown()), values).posed
    result = cf.fit(line(cf.unknown(), values))
    parts = _Residuals.from_result(result, problem.with_errors(None))
    X, r = np.column_stack([TIMES, np.ones_like(TIMES)]), result.predictions - values

    def dense(tau):
        P = np.exp(-np.abs(TIMES[:, None] - TIMES) / tau)
        squares = r @ np.linalg.solve(P, r)
        free = TIMES.size - 2
        return 0.5 * (
            free * np.log(squares) + np.linalg.slogdet(P)[1] + np.linalg.slogdet(X.T @ np.linalg.solve(P, X))[1]
        )

    costs = [_cost(problem, {"x": tau}, parts) for tau in (0.3, 1.0, 4.0)]
    assert np.diff(costs) == pytest.approx(np.diff([dense(tau) for tau in (0.3, 1.0, 4.0)]), abs=1e-9)
