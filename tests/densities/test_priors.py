"""Priors: densities against scipy.stats, posterior modes against an independent optimisation, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

import castfit as cf
from castfit.densities.priors import Beta, Gamma, LogNormalPrior, Normal, Truncated, UniformPrior
from castfit.problem.fingerprint import fingerprint
from tests.builders import decay_model, refused

TIMES = np.linspace(0, 4, 9)
DATA = 3 * np.exp(-0.5 * TIMES) + 0.1 * np.random.default_rng(0).standard_normal(TIMES.size)

PRIORS = [
    (Normal(0.7, 0.02), stats.norm(0.7, 0.02)),
    (LogNormalPrior(np.log(0.7), 0.05), stats.lognorm(0.05, scale=0.7)),
    (Gamma(50, 0.015), stats.gamma(50, scale=0.015)),
    (Gamma(1, 0.01), stats.gamma(1, scale=0.01)),
    (Beta(70, 30), stats.beta(70, 30)),
    (Beta(1, 30), stats.beta(1, 30)),
    (Beta(9, 1, lower=0.2, upper=0.8), stats.beta(9, 1, loc=0.2, scale=0.6)),
    (UniformPrior(0.55, 0.9), stats.uniform(0.55, 0.35)),
    (Truncated(Normal(0.7, 0.02), 0.65, 0.9), stats.truncnorm(-2.5, 10, 0.7, 0.02)),
]
ON_LOGARITHMS = [
    (Normal(np.log(0.7), 0.05, on="log"), stats.norm(np.log(0.7), 0.05), 1.0),
    (Normal(-0.2, 0.02, on="log10"), stats.norm(-0.2, 0.02), np.log(10)),
    (UniformPrior(-0.9, 0.1, on="log"), stats.uniform(-0.9, 1.0), 1.0),
]
FITS = [(t, s) for t in ("single", "multiple", "collocation") for s in (cf.GaussNewton(tolerance=1e-13), cf.Ipopt())]


def shown(part) -> str:
    if isinstance(part, (str, cf.priors.PriorDistribution)):
        return str(part)
    return getattr(part, "label", "") or "known"


def decay(prior=None, *, unit=1.0, scale="linear", guess=0.7, sigma: float | None = 0.1, **changes) -> cf.Problem:
    """x' = -k x from 1, observed as s x with s = 3."""
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x})
    data = {"y": unit * DATA}
    experiment = cf.Experiment(data, time=TIMES, initial={"x": 1.0}, sigma=None if sigma is None else unit * sigma)
    parameters = {"k": cf.Parameter(guess, scale=scale, prior=prior), "s": 2.0 * unit}
    return cf.Problem(model, experiment, **{"parameters": parameters, **changes})


def misfit(point: np.ndarray) -> float:
    """Half the sum of squared weighted residuals of `decay` at k and s."""
    return 0.5 * float(np.sum(((point[1] * np.exp(-point[0] * TIMES) - DATA) / 0.1) ** 2))


def best_of(log_density, bounds=(1e-6, 5.0)) -> np.ndarray:
    """Return the most probable (k, s) by an optimiser that knows nothing of castfit."""

    def cost(k: float) -> float:
        x = np.exp(-k * TIMES)
        return misfit(np.array([k, x @ DATA / (x @ x)])) - float(log_density(k))

    grid = np.linspace(max(bounds[0], 0.2), min(bounds[1], 1.2), 201)[1:-1]
    start = grid[np.argmin([cost(k) for k in grid])]
    lower, upper = max(start - 0.02, bounds[0]), min(start + 0.02, bounds[1])
    k = optimize.minimize_scalar(cost, bounds=(lower, upper), method="bounded", options={"xatol": 1e-11}).x
    x = np.exp(-k * TIMES)
    return np.array([k, x @ DATA / (x @ x)])


@pytest.mark.parametrize(("prior", "distribution"), PRIORS, ids=shown)
def test_costs_are_densities_and_rows_have_their_slope(prior, distribution):
    """cost + constant = -log p;  r j = cost';  cost >= 0, and 0 at the mode."""
    points = distribution.ppf([0.001, 0.1, 0.35, 0.6, 0.99])
    costs = np.array([prior.row(x).cost for x in points])
    np.testing.assert_allclose(costs + prior.constant, -distribution.logpdf(points), rtol=1e-10, atol=1e-10)
    assert (costs >= 0.0).all()
    for x in points:
        h, row = 1e-5 * x, prior.row(x)
        slope = (prior.row(x + h).cost - prior.row(x - h).cost) / (2 * h)
        assert row.r * row.j == pytest.approx(slope, rel=1e-6, abs=1e-6)
        assert prior.cdf(x) == pytest.approx(distribution.cdf(x), rel=1e-9)
        assert prior.ppf(prior.cdf(x)) == pytest.approx(x, rel=1e-9)
    assert (prior.cdf(-np.inf), prior.cdf(np.inf)) == (0.0, 1.0)


@pytest.mark.parametrize(("prior", "distribution", "unit"), ON_LOGARITHMS, ids=shown)
def test_a_prior_on_the_logarithm_is_its_density(prior, distribution, unit):
    for z in distribution.ppf([0.02, 0.4, 0.9]):
        x = np.exp(unit * z)
        row, h = prior.row(x), 1e-5 * x
        assert row.cost + prior.constant == pytest.approx(-distribution.logpdf(z), rel=1e-10)
        slope = (prior.row(x + h).cost - prior.row(x - h).cost) / (2 * h)
        assert row.r * row.j == pytest.approx(slope, rel=1e-6, abs=1e-6)
        assert prior.ppf(distribution.cdf(z)) == pytest.approx(x, rel=1e-9)
        assert prior.cdf(x) == pytest.approx(distribution.cdf(z), rel=1e-9)
    assert prior.cdf(0.0) == 0.0


@given(shape=st.floats(1.001, 1e4), scale=st.floats(1e-6, 1e6), start=st.floats(1e-8, 1e8))
def test_full_steps_lead_to_the_mode_of_a_gamma_prior_from_anywhere(shape, scale, start):
    """The coordinate in which the curvature is taken makes Newton's method converge without a step control."""
    prior, mode = Gamma(shape, scale), (shape - 1) * scale
    z = (start * mode) ** (1 / 3)
    for _ in range(60):
        row = prior.row(z**3)
        z -= row.r / (row.j * 3 * z**2)
    assert z**3 == pytest.approx(mode, rel=1e-6)


@pytest.mark.parametrize(("transcription", "solver"), FITS, ids=shown)
@pytest.mark.parametrize(("prior", "distribution"), PRIORS, ids=shown)
def test_the_posterior_mode_is_found(prior, distribution, transcription, solver):
    expected = best_of(distribution.logpdf, prior.support)
    result = cf.fit(decay(prior), transcription, solver)
    assert result.success, result.message
    np.testing.assert_allclose(list(result.parameters.values()), expected, rtol=1e-6)
    constant = TIMES.size * np.log(2 * np.pi * 0.01)
    assert result.neg2loglik == pytest.approx(
        2 * (misfit(expected) - distribution.logpdf(expected[0])) + constant, abs=1e-5
    )
    assert result.chi2 == pytest.approx(2 * result.cost)


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize(("prior", "distribution", "unit"), ON_LOGARITHMS, ids=shown)
def test_the_posterior_mode_of_logarithms_is_found(prior, distribution, unit, scale):
    expected = best_of(lambda k: distribution.logpdf(np.log(k) / unit))
    result = cf.fit(decay(prior, scale=scale), "single", cf.GaussNewton(tolerance=1e-13))
    np.testing.assert_allclose(list(result.parameters.values()), expected, rtol=1e-6)


@pytest.mark.parametrize(("prior", "distribution"), PRIORS, ids=shown)
def test_the_mode_does_not_depend_on_the_scale_of_the_search(prior, distribution):
    """A density of the natural value: no factor of the transformation is added."""
    linear_result, log_result = (
        cf.fit(decay(prior, scale=s), "single", cf.GaussNewton(tolerance=1e-13)) for s in ("linear", "log")
    )
    assert linear_result.parameters["k"] == pytest.approx(log_result.parameters["k"], rel=1e-6)
    assert linear_result.cost == pytest.approx(log_result.cost, rel=1e-9)


@pytest.mark.parametrize("control", ["natural_level", "exact_penalty", "levenberg_marquardt", "hemker"])
@pytest.mark.parametrize("prior", [Gamma(50, 0.015), LogNormalPrior(-0.4, 0.05), Beta(70, 30)], ids=shown)
def test_step_controls_and_unknown_sigma_agree(prior, control):
    expected = cf.fit(decay(prior, sigma=None), "single", cf.Ipopt())
    result = cf.fit(decay(prior, sigma=None), "single", cf.GaussNewton(control, tolerance=1e-13))
    assert result.success
    assert result.cost == pytest.approx(expected.cost, abs=1e-8)
    assert result.parameters["k"] == pytest.approx(expected.parameters["k"], rel=1e-6)


@pytest.mark.parametrize("sigma", [0.1, None])
@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=shown)
def test_priors_weigh_the_same_in_every_unit_of_the_data(sigma, solver):
    result, scaled_result = (
        cf.fit(decay(Gamma(50, 0.015), unit=u, sigma=sigma), "multiple", solver) for u in (1.0, 1000.0)
    )
    assert scaled_result.parameters["k"] == pytest.approx(result.parameters["k"], rel=1e-8)
    assert scaled_result.standard_errors["k"] == pytest.approx(result.standard_errors["k"], rel=1e-6)


def test_a_straight_prior_moves_the_estimate_but_adds_no_information():
    """x = k t: the exponential prior shifts k by variance / scale, and neither error nor degrees of freedom."""
    x, k = cf.symbols("x k")
    model, t = cf.Model({x: k}, parameters=[k]), np.array([1.0, 2.0, 3.0])
    data = cf.Experiment({"x": [1.1, 1.9, 3.2]}, time=t, initial={"x": 0.0}, sigma=0.1)
    prior = Gamma(1, 0.05)
    problems = [cf.Problem(model, data, parameters={"k": cf.Parameter(1.0, prior=p)}) for p in (prior, None)]
    with_it, without = (cf.fit(problem, "single", cf.GaussNewton(tolerance=1e-14)) for problem in problems)
    variance = 0.1**2 / (t @ t)
    assert with_it.parameters["k"] == pytest.approx(without.parameters["k"] - variance / 0.05, rel=1e-8)
    assert with_it.standard_errors["k"] == pytest.approx(np.sqrt(variance), rel=1e-6)
    assert with_it.dof == without.dof == 2


def test_a_normal_prior_is_one_more_measurement():
    x, k = cf.symbols("x k")
    model, t = cf.Model({x: k}, parameters=[k]), np.array([1.0, 2.0, 3.0])
    data = cf.Experiment({"x": [1.1, 1.9, 3.2]}, time=t, initial={"x": 0.0}, sigma=0.1)
    result = cf.fit(cf.Problem(model, data, parameters={"k": cf.Parameter(1.0, prior=Normal(1.2, 0.02))}), "single")
    information = t @ t / 0.1**2 + 1 / 0.02**2
    expected = (t @ [1.1, 1.9, 3.2] / 0.1**2 + 1.2 / 0.02**2) / information
    assert result.parameters["k"] == pytest.approx(expected, rel=1e-7)
    assert result.standard_errors["k"] == pytest.approx(information**-0.5, rel=1e-6)
    assert result.dof == 3


@pytest.mark.parametrize("transcription", ["single", "multiple", "collocation"])
def test_initial_states_have_priors(transcription):
    """x = x0 exp(-k t) with k known: one measurement and the prior weigh by their variances."""
    measured = {"x": [0.9 * np.exp(-0.5)]}
    start = cf.free(1.2, prior=Normal(1.0, 0.05))
    e = cf.Experiment(measured, time=[1.0], sigma=0.05 * np.exp(-0.5), initial={"x": start})
    problem = cf.Problem(decay_model(), e, parameters={"k": cf.Parameter(0.5, fixed=True)})
    result = cf.fit(problem, transcription)
    assert result.initial_states["x(0)"] == pytest.approx(0.95, rel=1e-6)
    assert pickle.loads(pickle.dumps(problem)).quantities[0].prior == Normal(1.0, 0.05)


def test_support_of_prior_acts_as_bound():
    problem = decay(UniformPrior(0.65, 0.9))
    assert (problem.quantities[0].lower, problem.quantities[0].upper) == (0.65, 0.9)
    result = cf.fit(problem, "single")
    assert result.active == {"k": "lower"}
    assert result.parameters["k"] == 0.65
    widened_problem = problem.posed.with_bounds(np.array([0.0, 0.0]), np.array([9.0, 9.0]))
    assert (widened_problem.quantities[0].lower, widened_problem.quantities[0].upper) == (0.65, 0.9)
    bounded_problem = decay(parameters={"k": cf.Parameter(0.7, lower=0.6, prior=LogNormalPrior(-0.4, 0.1)), "s": 2.0})
    assert (bounded_problem.quantities[0].lower, bounded_problem.quantities[0].upper) == (0.6, np.inf)


def test_fingerprint_differs_between_priors():
    fingerprints = [
        fingerprint(decay(p)) for p in (None, Normal(0.7, 0.1), LogNormalPrior(0.7, 0.1), Normal(0.7, 0.1, on="log"))
    ]
    assert all(a != b for i, a in enumerate(fingerprints) for b in fingerprints[:i])


def test_starts_are_drawn_from_priors_where_there_are_no_bounds():
    parameters = {"k": cf.Parameter(0.7, prior=LogNormalPrior(-0.5, 0.2)), "s": cf.Parameter(2.0, lower=1, upper=5)}
    multistart_result = cf.multistart(decay(parameters=parameters), "single", starts=16, rng=0)
    drawn_rates = np.array([start.start["k"] for start in multistart_result.starts])
    expected = stats.lognorm(0.2, scale=np.exp(-0.5))
    assert expected.ppf(1e-3) < drawn_rates.min() < expected.ppf(0.3)
    assert expected.ppf(0.7) < drawn_rates.max() < expected.ppf(0.999)


@pytest.mark.parametrize(
    ("prior", "phrase"),
    [
        (Normal(1, 0), "deviation positive"),
        (Normal(1, 1, on="ln"), "on is 'ln'; choose 'value', 'log' or 'log10'"),
        (LogNormalPrior("0", 1), "give LogNormal(mean, deviation)"),  # type: ignore[arg-type]
        (Gamma(0.5, 1), "the density is infinite at 0"),
        (Gamma(2, -1), "scale positive"),
        (Beta(0.5, 2), "the density is infinite at an end"),
        (Beta(2, 2, lower=1, upper=0), "give Beta"),
        (UniformPrior(1, 0), "lower < upper"),
        (UniformPrior(0, np.inf), "both finite"),
        (Truncated(Normal(0, 1), 2, 1), "lower < upper"),
        (Truncated(Normal(0, 1), 100, 101), "has no probability in [100, 101]"),
        (Truncated(0.5), "give a prior such as Normal"),  # type: ignore[arg-type]
        (UniformPrior(1, 2), "the guess 0.7 is impossible by its prior Uniform(lower=1, upper=2)"),
        (Truncated(Normal(0.7, 1), upper=-1), "is impossible"),
        (0.5, "has the prior 0.5; give Normal(mean, deviation) or another of castfit.priors"),
    ],
)
def test_priors_that_make_no_sense_are_refused(prior, phrase):
    with refused(phrase):
        decay(prior)


def test_mistakes_in_priors_come_with_all_others():
    with refused("the guess is nan", "deviation positive", "parameter 's' has no guess"):
        decay(parameters={"k": cf.Parameter(np.nan, prior=Normal(1, -1))})
    with refused("Uniform(lower=0, upper=0.5) excludes all values in the bounds [1, 2]"):
        decay(parameters={"k": cf.Parameter(1.5, 1, 2, prior=UniformPrior(0, 0.5)), "s": 1.0})
    with refused("free initial state 'x' has the prior Normal(mean=1, deviation=0)"):
        cf.Experiment({"x": [1.0]}, time=[1.0], initial={"x": cf.free(1.0, prior=Normal(1, 0))})
