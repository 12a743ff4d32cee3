"""Every noise model against scipy.stats, its own derivatives, and sums over all data that it can give."""

from __future__ import annotations

import pickle
from functools import cache
from itertools import pairwise

import casadi as ca
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from castfit._support.status import InputError
from castfit.densities.noise.density import Density, factor_curvature
from castfit.densities.noise.models import (
    Cauchy,
    Gaussian,
    Huber,
    Laplace,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Noise,
    Poisson,
    SoftL1,
    StudentT,
)

FEW = settings(max_examples=25, deadline=None, derandomize=True)
FUNCTIONS: dict[Density, dict] = {}
MU, S, M = (ca.SX.sym(name) for name in ("mu", "s", "m"))


def evaluate(density: Density, *names: str, mu=1.0, s=1.0, m=1.0):
    """Evaluate graphs of a density, by name, at numbers or arrays of one shape; arrays (n, rows, columns)."""
    built = FUNCTIONS.setdefault(density, {})
    if names not in built:
        built[names] = ca.Function("f", [MU, S, M], [ca.densify(ca.SX(getattr(density, name))) for name in names])
    function = built[names]
    mu, s, m = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, dtype=float)) for v in (mu, s, m)))
    evaluations = []
    for point in zip(mu, s, m, strict=True):
        evaluations.append([np.array(v) for v in function.call([ca.DM(float(v)) for v in point])])
    arrays = [np.stack(parts) for parts in zip(*evaluations, strict=True)]
    return arrays[0] if len(arrays) == 1 else arrays


@cache
def density_of(noise: Noise) -> Density:
    return noise.density(MU, S, M)


def cost(noise: Noise, mu, s, m):
    return evaluate(density_of(noise), "cost", mu=mu, s=s, m=m).ravel()


def loss_cost(rho, f):
    """-log density of a robust loss, normalised by quadrature."""

    def value(r):
        return 0.5 * f**2 * rho((r / f) ** 2)

    pieces = (0.0, f, 3 * f + 3, 30 * f + 30 / f, np.inf)
    total = sum(
        integrate.quad(lambda r: np.exp(-value(r)), a, b, epsabs=0, epsrel=1e-13, limit=200)[0]
        for a, b in pairwise(pieces)
    )
    return lambda mu, s, m: value(abs(mu - m) / s) + np.log(s) + np.log(2 * total)


CONTINUOUS = {
    "Gaussian": (Gaussian(), lambda mu, s, m: -stats.norm.logpdf(m, mu, s)),
    "StudentT-4": (StudentT(), lambda mu, s, m: -stats.t.logpdf(m, 4, mu, s)),
    "StudentT-1": (StudentT(df=1), lambda mu, s, m: -stats.cauchy.logpdf(m, mu, s)),
    "StudentT-30.5": (StudentT(df=30.5), lambda mu, s, m: -stats.t.logpdf(m, 30.5, mu, s)),
    "Laplace": (Laplace(), lambda mu, s, m: -stats.laplace.logpdf(m, mu, s)),
    "Huber": (Huber(f_scale=1.345), loss_cost(lambda z: z if z <= 1 else 2 * np.sqrt(z) - 1, 1.345)),
    "Huber-0.1": (Huber(f_scale=0.1), loss_cost(lambda z: z if z <= 1 else 2 * np.sqrt(z) - 1, 0.1)),
    "SoftL1": (SoftL1(), loss_cost(lambda z: 2 * (np.sqrt(1 + z) - 1), 1.0)),
    "SoftL1-4": (SoftL1(f_scale=4), loss_cost(lambda z: 2 * (np.sqrt(1 + z) - 1), 4.0)),
    "Cauchy-2": (Cauchy(f_scale=2), loss_cost(np.log1p, 2.0)),
    "Cauchy-1.5": (Cauchy(f_scale=1.5), lambda mu, s, m: -stats.t.logpdf(m, 1.25, mu, s * 1.5 / np.sqrt(1.25))),
}
POSITIVE = {
    "LogNormal": (LogNormal(), lambda mu, s, m: -stats.lognorm.logpdf(m, s, scale=mu)),
    "LogNormal-10": (LogNormal(base=10), lambda mu, s, m: -stats.lognorm.logpdf(m, s * np.log(10), scale=mu)),
}
COUNTS = {
    "Poisson": (Poisson(), lambda mu, s, m: -stats.poisson.logpmf(m, mu)),
    "NegativeBinomial": (NegativeBinomial(), lambda mu, s, m: -stats.nbinom.logpmf(m, 1 / s, 1 / (1 + s * mu))),
}
ALL = {name: noise for group in (CONTINUOUS, POSITIVE, COUNTS) for name, (noise, _) in group.items()} | {
    "Cauchy": Cauchy(),
    "censored": Gaussian(below=0.5, above=2.5),
    "censored-log": LogNormal(below=0.5, above=2.5),
}
UNIT = st.floats(-6, 6).map(lambda u: 10**u)


def close(actual, expected, scale=1e-10):
    np.testing.assert_allclose(actual, expected, rtol=scale, atol=scale)


@pytest.mark.parametrize("name", CONTINUOUS)
@FEW
@given(r=st.floats(-50, 50).filter(lambda r: abs(r) > 1e-2), s=UNIT, m=st.floats(-5, 5))
def test_the_cost_is_minus_the_log_density(name, r, s, m):
    noise, expected_cost = CONTINUOUS[name]
    mu, value = s * (m + r), s * m
    close(cost(noise, mu, s, value)[0], expected_cost(mu, s, value))


@pytest.mark.parametrize("name", POSITIVE)
@FEW
@given(mu=UNIT, ratio=st.floats(-3, 3), s=st.floats(0.01, 5))
def test_the_cost_is_that_of_the_value_whatever_its_logarithm(name, mu, ratio, s):
    noise, expected_cost = POSITIVE[name]
    m = mu * np.exp(ratio)
    close(cost(noise, mu, s, m)[0], expected_cost(mu, s, m))


@pytest.mark.parametrize("name", COUNTS)
@FEW
@given(mu=UNIT.filter(lambda x: x < 1e4), s=st.floats(1e-3, 1e3), m=st.integers(0, 10000))
@example(mu=1e-9, s=1e8, m=0)
@example(mu=5.0, s=1.0, m=10000)
def test_the_cost_of_counts_is_minus_the_log_probability(name, mu, s, m):
    noise, expected_cost = COUNTS[name]
    assume(s * mu > 1e-3 or name == "Poisson")  # else 1 - p, of which scipy takes the logarithm, has lost its digits
    close(cost(noise, mu, s, m)[0], expected_cost(mu, s, m))


@FEW
@given(mu=st.floats(0.1, 1e3), exponent=st.floats(-15, -3), m=st.integers(0, 2000))
def test_little_dispersion_loses_no_digits(mu, exponent, m):
    s = 10**exponent
    log_rising_factorial = np.sum(np.log1p(s * np.arange(m)))
    expected = special.gammaln(m + 1) - log_rising_factorial - m * np.log(mu) + (m + 1 / s) * np.log1p(s * mu)
    close(cost(NegativeBinomial(), mu, s, m)[0], expected)


@pytest.mark.parametrize("side", ["below", "above"])
@pytest.mark.parametrize("model", [Gaussian, LogNormal])
@FEW
@given(z=st.floats(-40, 12), s=st.floats(0.1, 3))
@example(z=-40.0, s=1.0)
@example(z=-3.0, s=1.0)
@example(z=60.0, s=1.0)
def test_a_censored_value_costs_what_lies_beyond_the_limit(model, side, z, s):
    limit = 1.0
    shift = z * s if side == "below" else -z * s  # of the limit from the prediction
    axis = limit if model is Gaussian else np.log(limit)
    mu = axis - shift if model is Gaussian else np.exp(axis - shift)
    noise = model(**{side: limit})
    censored_value = 0.5 if side == "below" else 1.5
    for value in (limit, censored_value):
        close(cost(noise, mu, s, value)[0], -special.log_ndtr(z))
    measured_value = 1.5 if side == "below" else 0.5
    assert cost(noise, mu, s, measured_value)[0] == cost(model(), mu, s, measured_value)[0]


@pytest.mark.parametrize("name", ALL)
@FEW
@given(
    mu=st.floats(-2, 3).map(lambda u: 10**u),
    s=st.floats(-2, 1).map(lambda u: 10**u),
    m=st.integers(0, 400),
)
@example(mu=0.5, s=0.01, m=400)
def test_rows_multiply_to_the_gradient(name, mu, s, m):
    value = m if name in COUNTS else (m + 1) / 80
    score, factor, rows = evaluate(density_of(ALL[name]), "gradient", "factor", "rows", mu=mu, s=s, m=value)
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(factor @ rows, score, rtol=1e-12, atol=1e-12 * np.abs(score).max())


@pytest.mark.parametrize("name", ALL)
@FEW
@given(mu=st.floats(0.2, 5), s=st.floats(0.1, 1), m=st.integers(0, 12))
def test_gradient_and_hessian_are_derivatives_of_the_cost(name, mu, s, m):
    value = m if name in COUNTS else 0.3 + m / 4.001
    noise, h = ALL[name], 1e-5
    kinks = {"Laplace": 0.0, "Huber": 1.345, "Huber-0.1": 0.1}
    if name in kinks and abs(abs(mu - value) / s - kinks[name]) < 1e-3:
        mu += 0.01 * s
    density = density_of(noise)
    gradient, hessian = evaluate(density, "gradient", "hessian", mu=mu, s=s, m=value)
    n = density.eta.numel()
    steps = h * np.eye(2)[:n]
    up, down = (
        [evaluate(density, "cost", "gradient", mu=mu + sign * d[0], s=s + sign * d[1], m=value) for d in steps]
        for sign in (1, -1)
    )
    slopes = np.array([(a[0] - b[0]).item() / (2 * h) for a, b in zip(up, down, strict=True)])
    curvature = np.column_stack([(a[1] - b[1]).ravel() / (2 * h) for a, b in zip(up, down, strict=True)])
    np.testing.assert_allclose(gradient.ravel(), slopes, rtol=1e-6, atol=1e-6 * (1 + np.abs(slopes).max()))
    if name == "Laplace":  # that of the rows takes its place
        factor = evaluate(density, "factor", mu=mu, s=s, m=value)[0]
        curvature = factor @ factor.T
    np.testing.assert_allclose(hessian[0], curvature, rtol=1e-5, atol=1e-5 * (1 + np.abs(curvature).max()))


def information(noise, mu, s, m):
    """Return the curvature of statistics, (n, n_eta, n_eta)."""
    factor, multiplier = evaluate(density_of(noise), "factor", "information", mu=mu, s=s, m=m)
    scaled_factor = factor * np.swapaxes(multiplier, 1, 2)
    return scaled_factor @ np.swapaxes(scaled_factor, 1, 2)


@pytest.mark.parametrize("name", [*CONTINUOUS, *POSITIVE])
@pytest.mark.parametrize("s", [0.3, 2.0])
def test_information_is_the_expected_square_of_the_score(name, s):
    noise, mu = ALL[name], 1.7
    actual = information(noise, mu, s, np.array([1.9, 2.4]))
    np.testing.assert_allclose(actual[0], actual[1], rtol=1e-12)  # it does not depend on the datum
    # By the midpoint rule in a variable in which even Cauchy's density falls exponentially.
    u = np.linspace(-12, 12, 40000)
    r = np.sinh(u * (4 if "Cauchy" in name or name == "StudentT-1" else 0.75))
    with np.errstate(all="ignore"):
        value = mu + s * r if name in CONTINUOUS else mu * np.exp(s * noise._unit * r)
        width = np.gradient(value)
    value, width = value[np.isfinite(width) & (value != 0)], width[np.isfinite(width) & (value != 0)]
    density = density_of(noise)
    density_and_score = ca.Function("f", [M, MU, S], [ca.exp(-density.cost), density.gradient]).map(value.size)
    weight, score = (np.array(v) for v in density_and_score(value[None], mu, s))
    weight = weight * width
    assert weight.sum() == pytest.approx(1, abs=1e-5)
    rounded = 2e-3 if name == "Laplace" else 1e-5  # its kink
    np.testing.assert_allclose(actual[0], (score * weight) @ score.T, rtol=rounded, atol=1e-6)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("s", [1e-7, 1e-5, 2e-5, 0.01, 0.3, 4.0, 50.0])
@pytest.mark.parametrize("mu", [0.01, 2.0, 70.0])
def test_information_of_counts_is_the_expected_square_of_the_score(name, mu, s):
    noise, expected_cost = COUNTS[name]
    actual = information(noise, mu, s, 3)[0]
    size = mu * (1 + s * mu)
    count = np.arange(int(mu + 60 * np.sqrt(size) + 60 * (1 + s * mu)))
    density = density_of(noise)
    score = np.array(ca.Function("f", [M, MU, S], [density.gradient]).map(count.size)(count[None], mu, s))
    weight = np.exp(-expected_cost(mu, s, count))
    assert weight.sum() == pytest.approx(1, abs=1e-7)
    outer = np.einsum("in,jn,n->ij", score, score, weight)
    np.testing.assert_allclose(np.diag(actual), np.diag(outer), rtol=5e-5 if mu * s**3 < 1e-15 else 1e-6)
    np.testing.assert_allclose(actual, outer, rtol=1, atol=1e-6 * np.sqrt(np.prod(np.diag(outer))))


def test_robust_rows_are_those_of_reweighted_least_squares():
    r = np.array([-30.0, -0.7, 0.4, 5.0])
    factor, rows = evaluate(SoftL1(f_scale=2.0).density(MU, S, M), "factor", "rows", mu=r, s=1.0, m=0.0)
    weight = 1 / np.sqrt(1 + (r / 2) ** 2)
    np.testing.assert_allclose(rows[:, 0, 0], r * np.sqrt(weight), rtol=1e-12)
    np.testing.assert_allclose(factor[:, 0, 0], np.sqrt(weight), rtol=1e-12)


@pytest.mark.parametrize("name", [*CONTINUOUS, *POSITIVE])
@pytest.mark.parametrize("s", [1e-3, 0.5, 1.0])
@pytest.mark.parametrize("distance", [0.4, 1.0, -2.5])
def test_the_row_of_a_spread_leads_to_the_one_that_the_datum_alone_would_have(name, s, distance):
    density = density_of(ALL[name])
    mu = np.exp(distance) if name in POSITIVE else 1.0 + distance
    factor, rows = evaluate(density, "factor", "rows", mu=mu, s=s, m=1.0)
    step = -rows[0, 1, 0] / (factor[0, 1, 1] * s)  # of log s
    score = evaluate(density, "gradient", mu=mu, s=s * np.exp(step), m=1.0)
    assert score[0, 1, 0] * s * np.exp(step) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("r", [-60.0, -1.0, 3.0, 200.0])
def test_censored_rows_are_finite_in_both_tails(r):
    density = Gaussian(below=0.0).density(MU, S, M)
    score, factor, rows, residual = evaluate(density, "gradient", "factor", "rows", "residual", mu=r, s=1.0, m=-1.0)
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(factor @ rows, score, rtol=1e-11, atol=1e-300)
    assert residual.item() >= 0
    assert factor[0, :, 1].tolist() == [0, 0]  # one row is enough
    if r > 3:
        assert rows[0, 0, 0] == pytest.approx(r, rel=0.2)  # far in the tail, as if the limit had been measured


def test_censored_rows_sum_to_the_observed_information_at_the_optimum():
    values = np.clip(np.array([0.3, 1.2, 0.9, 0.5, 0.5, 2.0, 1.4, 0.5]), 0.5, None)
    density = Gaussian(below=0.5).density(MU, S, M)
    total = ca.Function("f", [MU, S, M], [density.cost, density.gradient, density.hessian, density.factor])
    mean, spread = 1.0, 1.0
    for _ in range(30):  # Newton's method
        parts = [[np.array(v) for v in total.call([mean, spread, m])] for m in values]
        g, H = sum(p[1] for p in parts), sum(p[2] for p in parts)
        step = np.linalg.solve(H, -g).ravel()
        mean, spread = mean + step[0], spread + step[1]
    assert np.abs(step).max() < 1e-12
    np.testing.assert_allclose(sum(p[3] @ p[3].T for p in parts), H, rtol=1e-9)


@pytest.mark.parametrize("name", [n for n in ALL if n != "Poisson"])
def test_a_known_spread_leaves_one_row_of_the_prediction(name):
    density = density_of(ALL[name]).known_spread
    assert density.eta.numel() == 1
    score, factor, rows = evaluate(density, "gradient", "factor", "rows", mu=1.3, s=0.7, m=1.0)
    assert rows.shape == (1, 1, 1)
    np.testing.assert_allclose(factor @ rows, score, rtol=1e-12)


@pytest.mark.parametrize("name", ["Gaussian", "LogNormal", "LogNormal-10"])
def test_plain_rows_are_residuals_of_which_the_cost_is_half_the_square(name):
    noise = ALL[name]
    assert noise.is_residual_noise
    density = density_of(noise).known_spread
    half = ca.Function("f", [MU, S, M], [ca.gradient(density.cost - 0.5 * density.rows**2, MU)])
    slope = ca.Function("f", [MU, S, M], [ca.gradient(density.rows, MU) - density.factor])
    for mu in (0.2, 1.0, 7.0):
        assert float(half(mu, 0.4, 1.5)) == pytest.approx(0, abs=1e-12 / mu)
        assert float(slope(mu, 0.4, 1.5)) == pytest.approx(0, abs=1e-12 / mu)


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("Gaussian", "LogNormal", "LogNormal-10")])
def test_other_rows_are_not_plain(name):
    assert not ALL[name].is_residual_noise


@pytest.mark.parametrize("name", [*CONTINUOUS, *POSITIVE, *COUNTS])
def test_samples_have_the_distribution_of_the_cost(name):
    noise, expected_cost = (CONTINUOUS | POSITIVE | COUNTS)[name]
    mu, s, n = 3.0, 0.6, 4000
    sample = noise.sample(np.random.default_rng(5), np.full(n, mu), s)
    assert sample.shape == (n,)
    if name in COUNTS:
        count = np.arange(40)
        chance = np.array([np.exp(-expected_cost(mu, s, k)) for k in count])
        observed = np.array([np.count_nonzero(sample == k) for k in count])
        is_frequent = chance * n > 5
        assert (
            stats.chisquare(
                [*observed[is_frequent], n - observed[is_frequent].sum()],
                [*(n * chance[is_frequent]), n * (1 - chance[is_frequent].sum())],
            ).pvalue
            > 1e-3
        )
        mistakes = noise.value_mistakes(sample)
        assert mistakes == []
    else:
        quantiles = np.quantile(sample, [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98])
        for level, q in zip([0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98], quantiles, strict=True):
            support_start = -np.inf if name in CONTINUOUS else 0.0
            inside = [support_start, *(p for p in (mu - 30 * s, mu - 3 * s, mu) if support_start < p < q), q]
            mass = sum(
                integrate.quad(lambda v: np.exp(-expected_cost(mu, s, v)), a, b, limit=200)[0]
                for a, b in pairwise(inside)
            )
            assert mass == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / n))


@pytest.mark.parametrize("name", [n for n in ALL if n != "Poisson"])
@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_the_starting_spread_is_near_the_true_one_in_any_unit(name, unit):
    noise = ALL[name]
    fixed = name in COUNTS or "censored" in name
    if fixed and unit != 1.0:
        unit = 1.0
    mu = unit * np.linspace(1.0, 2.0, 2000) * (30 if name in COUNTS else 1)
    s = 0.3 if fixed or name in POSITIVE else 0.3 * unit
    spread = noise.starting_spread(mu, noise.sample(np.random.default_rng(3), mu, s)) if name != "Cauchy" else s
    assert spread == pytest.approx(s, rel=0.35 if fixed else 0.1)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("m", [np.full(3, 4.0), np.array([np.nan, 2.0, np.nan]), np.array([1.0])])
@pytest.mark.parametrize("mu", ["exact", "failed"])
def test_the_starting_spread_is_positive_whatever_the_predictions(name, m, mu):
    spread = ALL[name].starting_spread(m if mu == "exact" else np.full_like(m, np.nan), m)
    assert np.isfinite(spread)
    assert spread > 0


def test_residuals_have_mean_0_and_variance_1():
    rng = np.random.default_rng(0)
    for name in ("Gaussian", "LogNormal-10", "StudentT-30.5", "Laplace", "Poisson", "NegativeBinomial"):
        noise = ALL[name]
        sample = noise.sample(rng, np.full(2000, 5.0), 0.4)
        residual = evaluate(density_of(noise), "residual", mu=5.0, s=0.4, m=sample).ravel()
        assert np.mean(residual) == pytest.approx(0, abs=0.1)
        assert np.var(residual) == pytest.approx(1, abs=0.15)
    censored = np.clip(5.0 + 0.4 * rng.standard_normal(4000), 4.9, None)
    residual = evaluate(Gaussian(below=4.9).density(MU, S, M), "residual", mu=5.0, s=0.4, m=censored)
    assert np.mean(residual) == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("s", [0.1, 3.0])
@pytest.mark.parametrize("mu", [0.05, 4.0, 300.0])
def test_scores_of_counts_are_normal_quantiles_of_their_probability(mu, s):
    m = np.array([0.0, 1.0, 2.0, 5.0, 40.0, 400.0, 3000.0])
    for noise, law in ((Poisson(), stats.poisson(mu)), (NegativeBinomial(), stats.nbinom(1 / s, 1 / (1 + s * mu)))):
        actual = noise.scores(0 * m, np.full(m.size, mu), np.full(m.size, s), m)
        assert np.isfinite(actual).all()
        lower_probability, upper_probability = (
            law.sf(m) * (1 - 1e-9),
            law.sf(m - 1) * (1 + 1e-9),
        )  # P(M > m) and P(M >= m)
        probability = special.ndtr(-actual)  # of larger counts: a count above its prediction has a positive score
        np.testing.assert_array_less(
            np.where(lower_probability < 1e-280, 0, lower_probability), np.maximum(probability, 1e-280)
        )
        np.testing.assert_array_less(probability, np.maximum(upper_probability, 1e-280))
        sample = noise.sample(np.random.default_rng(1), np.full(3000, mu), s)
        scores = noise.scores(0 * sample, np.full(3000, mu), np.full(3000, s), sample)
        assert stats.kstest(scores, "norm").pvalue > 1e-3
        np.testing.assert_array_equal(scores, noise.scores(0 * sample, np.full(3000, mu), np.full(3000, s), sample))


@pytest.mark.parametrize("name", ALL)
def test_noise_models_say_what_their_residuals_are_like(name):
    noise = ALL[name]
    assert noise.normal == (name in ("Gaussian", *POSITIVE, *COUNTS))
    assert noise.is_heavy_tailed == (name not in ("Gaussian", "censored", "censored-log", *POSITIVE, *COUNTS))
    r = np.array([1.0, -2.0])
    if name not in COUNTS:
        np.testing.assert_array_equal(noise.scores(r, r, r, np.array([1.0, 2.0])), r)
    if "censored" in name:
        np.testing.assert_array_equal(noise.scores(r, r, r, np.array([0.5, 2.0])), [np.nan, -2.0])


def test_no_count_is_expected_where_none_is_counted():
    for noise in (Poisson(), NegativeBinomial()):
        for mu in (0.0, -1e-12):
            value, score, factor, rows = evaluate(
                density_of(noise), "cost", "gradient", "factor", "rows", mu=mu, s=0.5, m=0.0
            )
            assert value.item() == pytest.approx(0, abs=1e-11)
            assert np.isfinite(factor).all()
            np.testing.assert_allclose(factor @ rows, score, rtol=1e-9)
        assert not np.isfinite(cost(noise, -0.1, 0.5, 0.0)).any()
        assert not np.isfinite(cost(noise, -0.1, 0.5, 3.0)).any()


# The user's own likelihood


def test_an_own_likelihood_is_a_function_of_prediction_datum_and_parameters():
    spread = ca.SX.sym("spread")
    likelihood = Likelihood(lambda y, m: 0.5 * ((m - y) / spread) ** 2 + ca.log(spread) + 0.5 * np.log(2 * np.pi))
    for noise in (likelihood, pickle.loads(pickle.dumps(likelihood))):
        assert noise.option_mistakes() == []
        assert noise.names == ("spread",)
        density = density_of(noise)
        assert density.factor is None
        function = ca.Function("f", [density.eta, M], [density.cost, density.residual])
        value, residual = function([1.3, 0.4], 2.0)
        assert float(value) == pytest.approx(-stats.norm.logpdf(2.0, 1.3, 0.4), rel=1e-12)
        assert float(residual) == pytest.approx((1.3 - 2.0) / 0.4, rel=1e-12)


@FEW
@given(
    a=st.lists(st.floats(-3, 3).map(lambda v: round(v, 6)), min_size=6, max_size=6),
    g=st.lists(st.floats(-3, 3).map(lambda v: round(v, 6)), min_size=3, max_size=3),
    unit=st.lists(st.floats(-6, 6), min_size=3, max_size=3),
)
@example(a=[0.0] * 6, g=[1.0, 0.0, -2.0], unit=[0.0] * 3)
def test_rows_of_any_curvature_multiply_to_the_gradient_in_any_unit(a, g, unit):
    hessian = np.zeros((3, 3))
    hessian[np.triu_indices(3)] = a
    hessian = hessian + np.triu(hessian, 1).T
    score, scale = np.array(g), 10.0 ** np.array(unit)
    factor, rows = factor_curvature(
        np.stack([hessian, hessian * np.outer(scale, scale)]), np.stack([score, score * scale])
    )
    assert np.isfinite(rows).all()
    assert np.abs(rows).max() <= 2e4
    for f, r, row_scale in zip(factor, rows, (1.0, scale), strict=True):
        np.testing.assert_allclose((f @ r) / row_scale, score, rtol=1e-8, atol=1e-9 * np.abs(score).max())
    assume(((np.diag(hessian) != 0) | (score != 0)).all())
    np.testing.assert_allclose(
        factor[1] @ factor[1].T / np.outer(scale, scale), factor[0] @ factor[0].T, rtol=1e-5, atol=1e-5
    )


def test_a_positive_curvature_is_kept_and_a_failed_one_is_marked():
    hessian = np.array([[[4.0, 1.0], [1.0, 2.0]], [[np.nan, 0.0], [0.0, 1.0]]])
    factor, rows = factor_curvature(hessian, np.array([[1.0, 2.0], [1.0, 1.0]]))
    np.testing.assert_allclose(factor[0] @ factor[0].T, hessian[0], rtol=1e-12)
    assert np.isnan(rows[1]).all()
    assert np.isnan(factor[1]).all()


# Bad input


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (StudentT(df=0), "df is 0; give a positive number"),
        (StudentT(df=True), "df is True"),
        (Huber(f_scale=-1.0), "f_scale is -1.0; give a positive number of standard deviations"),
        (Cauchy(f_scale="2"), "f_scale is '2'"),
        (LogNormal(base=2), "base is 2; choose 'e' or 10"),
        (LogNormal(below=0.0), "below is 0; LogNormal needs a positive limit"),
        (Gaussian(below=2, above=1), "below, 2, is not less than above, 1; swap"),
        (Gaussian(below=[1, 2]), r"below is \[1, 2\]; give the limit of detection, a number"),
        (Poisson(1.0), "Poisson has no sigma: the variance is the expectation; leave it out"),
        (Likelihood(lambda y, m: y - m, sigma=1.0), "Likelihood has no sigma"),
        (Likelihood(3), r"cost is 3; give a function"),
        (Likelihood(lambda y: y), "cost raised TypeError"),
        (Likelihood(lambda y, m: m**2), "cost does not depend on the prediction"),
        (Likelihood(lambda y, m: ca.vertcat(y, m)), r"cost returns a matrix \(2, 1\)"),
    ],
)
def test_bad_options_are_refused_in_words(noise, said):
    mistakes = noise.option_mistakes()
    assert len(mistakes) == 1
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(mistakes[0])


@pytest.mark.parametrize("name", ALL)
def test_good_options_are_accepted(name):
    assert ALL[name].option_mistakes() == []
    assert ALL[name].value_mistakes(np.array([[1.0, np.nan], [3.0, 2.0]])) == []


@pytest.mark.parametrize(
    ("noise", "values", "said"),
    [
        (LogNormal(), [1.0, 0.0, np.nan], "it contains 0; LogNormal needs positive values"),
        (Poisson(), [1.0, -1.0], "it contains -1; Poisson needs counts, whole numbers from 0"),
        (NegativeBinomial(), [2.5, np.nan], "it contains 2.5; NegativeBinomial needs counts"),
    ],
)
def test_impossible_values_are_refused_in_words(noise, values, said):
    (mistake,) = noise.value_mistakes(np.array(values))
    assert mistake.startswith(said)


def test_a_spread_that_cannot_be_estimated_is_refused():
    assert "sigma cannot be estimated; give sigma, or f_scale above 1" in Cauchy().spread_mistakes()[0]
    assert Cauchy(f_scale=1.1).spread_mistakes() == []
    assert Poisson().spread_mistakes()
    with pytest.raises(InputError, match="not a density"):
        Cauchy().sample(np.random.default_rng(0), np.ones(2), 1.0)
    with pytest.raises(InputError, match="cannot be drawn"):
        Likelihood(lambda y, m: y).sample(np.random.default_rng(0), np.ones(2), 1.0)


@pytest.mark.parametrize("mu", [0.02, 3.0, 500.0])
@pytest.mark.parametrize("m", [0, 1, 2, 7, 450])
def test_the_score_of_a_dispersion_has_its_limit_at_zero(mu, m):
    """It is that of Poisson's, ((m - mu)^2 - m) / 2, and rows stay finite however small the dispersion is."""
    density = density_of(NegativeBinomial())
    limit = -0.5 * ((m - mu) ** 2 - m)
    for s in (1e-30, 1e-17, 1e-12, 1e-9):
        score, hessian, rows, factor = evaluate(density, "gradient", "hessian", "rows", "factor", mu=mu, s=s, m=m)
        assert score[0, 1, 0] == pytest.approx(limit, rel=1e-4, abs=1e-6)
        assert np.isfinite(hessian).all()
        np.testing.assert_allclose(factor @ rows, score, rtol=1e-12)
    for s in (1e-6, 1e-4, 9.9e-3 / max(m, 1), 1.01e-2 / max(m, 1), 0.5):  # on both sides of the series
        j = np.arange(m)
        F = np.log1p(s * mu) / s
        exact = -(F - mu / (1 + s * mu)) / s + m * mu / (1 + s * mu) - np.sum(j / (1 + s * j))
        score = evaluate(density, "gradient", mu=mu, s=s, m=m)[0, 1, 0]
        assert score == pytest.approx(exact, rel=1e-8, abs=1e-9 * (1 + mu / s * 1e-6))


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_the_least_spread_is_far_below_any_that_can_be_seen(unit):
    m = unit * np.array([[4.0, np.nan], [-2.0, 3.0]])
    assert Gaussian().least_spread(m) == pytest.approx(1e-6 * unit * np.sqrt(29 / 3))
    assert StudentT().least_spread(0 * m) > 0
    assert LogNormal().least_spread(m) == 1e-6
    counts = np.array([3.0, 5.0, np.nan])
    assert NegativeBinomial().least_spread(counts) * 4.0 == pytest.approx(1e-6)
