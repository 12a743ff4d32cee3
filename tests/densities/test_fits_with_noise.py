"""Fits with densities: against SciPy, from spreads begun anywhere, and where a spread wants to be zero."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
from scipy import optimize, stats

import castfit as cf
from castfit.densities.noise.likelihood import smooth_kinks
from tests.crossed import crossed

TIMES = np.linspace(0.1, 5, 40)
WAYS = [
    (cf.SingleShooting(), cf.GaussNewton()),
    (cf.MultipleShooting(4), cf.GaussNewton()),
    (cf.Collocation(), cf.GaussNewton()),
    (cf.Collocation(), cf.Ipopt()),
]
TRANSCRIPTIONS = ["single", "multiple", "collocation"]


def decay(values, noise, *, guess=0.3, amount=5.0, **parameters):
    x, k = cf.symbols("x k")
    data = cf.Experiment({"x": values}, TIMES, noise=noise, initial={"x": cf.free(amount)})
    return cf.Problem(cf.Model({x: -k * x}, parameters=[k]), data, parameters={"k": guess, **parameters})


def course(amount, k):
    return amount * np.exp(-k * TIMES)


@pytest.mark.parametrize(("transcription", "solver"), WAYS)
def test_values_below_the_limit_of_detection_are_fitted_by_maximum_likelihood(transcription, solver):
    limit = 1.0
    values = np.maximum(course(10.0, 0.7) + 0.4 * np.random.default_rng(2).standard_normal(40), limit)
    assert np.count_nonzero(values == limit) > 10

    def cost(v):
        mu, s = course(v[0], v[1]), v[2]
        log_tail, log_density = stats.norm.logcdf((limit - mu) / s), stats.norm.logpdf(values, mu, s)
        return -np.sum(np.where(values <= limit, log_tail, log_density))

    best = optimize.minimize(cost, [9.9, 0.68, 0.35], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    result = cf.fit(decay(values, cf.Gaussian(below=limit)), transcription, solver)
    assert result.success
    assert result.neg2loglik == pytest.approx(2 * best.fun, abs=1e-5)
    actual = [result.values[name] for name in ("x(0)", "k", "sigma(x)")]
    np.testing.assert_allclose(actual, best.x, rtol=1e-4)
    h = 1e-4 * best.x
    e = np.diag(h)
    hessian = [
        [
            (cost(best.x + a + b) - cost(best.x + a - b) - cost(best.x - a + b) + cost(best.x - a - b))
            / (4 * np.abs(a).sum() * np.abs(b).sum())
            for b in e
        ]
        for a in e
    ]
    errors = np.sqrt(np.diag(np.linalg.inv(hessian)) * 40 / result.dof)
    actual = [result.standard_errors[name] for name in ("x(0)", "k", "sigma(x)")]
    np.testing.assert_allclose(actual, errors, rtol=0.01)


NOISES = {
    "StudentT": cf.StudentT,
    "Huber": lambda sigma=None: cf.Huber(sigma, f_scale=1.345),
    "SoftL1": cf.SoftL1,
    "Cauchy": lambda sigma=None: cf.Cauchy(sigma, f_scale=2.0),
}


@pytest.mark.parametrize("name", NOISES)
def test_it_does_not_matter_where_a_spread_begins(name):
    values = NOISES[name]().sample(np.random.default_rng(4), course(10.0, 0.7), 0.3)
    results = [
        cf.fit(decay(values, NOISES[name](cf.unknown(guess=guess)), guess=0.5, amount=8.0), cf.SingleShooting())
        for guess in (1e-6, 1e-3, 0.3, 1e3, 1e6)
    ]
    assert all(result.success for result in results)
    for result in results:
        assert result.neg2loglik == pytest.approx(results[2].neg2loglik, abs=1e-5)
        assert result.iterations <= 2 * results[2].iterations


@pytest.mark.parametrize(
    ("way", "kind"),
    crossed(
        {f"{t.label}-{s.label}": (t, s) for t, s in WAYS},
        {
            "heavy tails": (cf.StudentT(), course(10.0, 0.7)),
            "a limit": (cf.Gaussian(below=1.0), np.maximum(course(10.0, 0.7), 1.0)),
            "counts": (cf.NegativeBinomial(), np.round(course(30.0, 0.5))),
        },
    ),
)
def test_sigma_that_tends_to_zero_ends_at_lower_bound(way, kind):
    (transcription, solver), (noise, values) = way, kind
    result = cf.fit(decay(values, noise, guess=0.6, amount=12.0), transcription, solver)
    assert result.success
    assert result.active == {f"{noise.spread_name}(x)": "lower"}
    assert "at its lower bound" in str(result)
    assert np.isfinite(result.neg2loglik)
    assert np.isfinite(result.standard_errors["k"])


def test_laplace_meets_some_data_exactly_with_both_solvers():
    values = cf.Laplace().sample(np.random.default_rng(6), course(10.0, 0.7), 0.3)

    def cost(v):
        return -np.sum(stats.laplace.logpdf(values, course(v[0], v[1]), 0.3))

    best = min(
        (
            optimize.minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12})
            for start in ([10.0, 0.7], [9.8, 0.72], [10.2, 0.69])
        ),
        key=lambda optimum: optimum.fun,
    )
    problem = decay(values, cf.Laplace(0.3), guess=0.5, amount=8.0)
    ipopt_result = cf.fit(problem, cf.SingleShooting(), cf.Ipopt())
    assert ipopt_result.status is cf.Status.CONVERGED
    assert ipopt_result.neg2loglik == pytest.approx(
        2 * best.fun, abs=2e-3
    )  # two data are at the kink, which is rounded
    assert np.count_nonzero(np.abs(ipopt_result.normalised_residuals) < 1e-3) == 2
    gauss_newton_result = cf.fit(problem, cf.SingleShooting(), cf.GaussNewton())
    assert gauss_newton_result.success
    assert gauss_newton_result.neg2loglik == pytest.approx(2 * best.fun, abs=0.1)


@pytest.mark.parametrize(("transcription", "solver"), crossed(TRANSCRIPTIONS, ["gauss_newton", "box", "ipopt", "sqp"]))
def test_a_likelihood_of_ones_own_without_curvature_ends_at_its_optimum(transcription, solver):
    """The example of `cf.Likelihood`: |m - y| / spread has no second derivative by y."""
    x, k, spread = cf.symbols("x k spread")
    noise = cf.Likelihood(lambda y, m: cf.fabs(m - y) / spread + cf.log(2 * spread))
    data = cf.Experiment({"x": [1.6, 1.2, 0.9, 0.7, 0.5, 0.4]}, [0.5, 1, 1.5, 2, 2.5, 3], noise={"x": noise})
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    problem = cf.Problem(model, data, parameters={"k": 1.0, "spread": cf.Parameter(0.1, lower=1e-3)})
    result = cf.fit(problem, transcription, solver)
    assert result.success
    assert result.neg2loglik == pytest.approx(-25.058, abs=1e-3)


s = ca.SX.sym("s")
COSTS = {
    "a line with a kink": (lambda y, m: cf.fabs(m - y) / 0.3, lambda y, m, p: np.abs(m - y) / 0.3),
    "a logarithm of its spread": (
        lambda y, m: cf.fabs(m - y) * ca.exp(-s) + s,
        lambda y, m, p: np.abs(m - y) * np.exp(-p[2]) + p[2],
    ),
    "quantiles": (
        lambda y, m: cf.fmax(0.7 * (m - y), 0.3 * (y - m)) / 0.2,
        lambda y, m, p: np.maximum(0.7 * (m - y), 0.3 * (y - m)) / 0.2,
    ),
    "indifference": (
        lambda y, m: cf.fmax(cf.fabs(m - y) - 0.2, 0) / 0.2,
        lambda y, m, p: np.maximum(np.abs(m - y) - 0.2, 0) / 0.2,
    ),
    "heavy tails": (lambda y, m: ca.log1p(((m - y) / 0.2) ** 2), lambda y, m, p: np.log1p(((m - y) / 0.2) ** 2)),
    "nothing at the datum": (lambda y, m: ((m - y) / 0.5) ** 4, lambda y, m, p: ((m - y) / 0.5) ** 4),
}


@pytest.mark.parametrize(("name", "transcription"), crossed(list(COSTS), TRANSCRIPTIONS))
def test_likelihoods_of_ones_own_end_where_nelder_and_mead_do(name, transcription):
    cost, number = COSTS[name]
    values = course(10.0, 0.7) + 0.3 * np.random.default_rng(3).laplace(size=40)
    spread = {"s": -1.0} if name == "a logarithm of its spread" else {}
    best = optimize.minimize(
        lambda p: np.sum(number(course(p[0], p[1]), values, p)),
        [9.9, 0.68, *spread.values()],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000, "maxfev": 4000},
    )
    result = cf.fit(decay(values, cf.Likelihood(cost), **spread), transcription)
    assert result.success
    assert result.cost == pytest.approx(best.fun, abs=0.02)


def test_a_kink_is_rounded_off_by_next_to_nothing():
    mu, m = ca.SX.sym("mu"), ca.SX.sym("m")
    sharp = cf.fabs(cf.fabs(m - mu) - 2.0) / 0.1 + cf.fmin(mu, 3 * m) - cf.fmax(mu, 0)
    kinked_and_rounded = ca.Function("both", [mu, m], [sharp, smooth_kinks(sharp, mu)])
    for prediction in np.linspace(-3.0, 7.0, 2001):
        exact, rounded = (float(value) for value in kinked_and_rounded(prediction, 1.0))
        assert abs(rounded - exact) <= 1.51e-3  # of four kinks
    slope = ca.Function("slope", [mu, m], [ca.gradient(smooth_kinks(sharp, mu), mu)])
    assert all(np.isfinite(float(slope(prediction, 1.0))) for prediction in (-1.0, 0.0, 1.0, 3.0))
