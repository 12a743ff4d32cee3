"""Posteriors that are known exactly; what is said of chains; what is refused."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit.densities.priors import Gamma, LogNormalPrior, Normal, UniformPrior
from castfit.drive.uncertainty.sample import sample as module
from tests.builders import decay_model, decay_problem, refused
from tests.result.test_bands import AT, T, line

SINGLE = cf.SingleShooting()


@pytest.fixture(scope="module")
def line_sample():
    return cf.sample(cf.fit(line(sigma=0.1), SINGLE), draws=3000, chains=2, rng=1)


def test_the_posterior_of_a_line_is_normal(line_sample):
    result = line_sample.result
    values = np.array(list(line_sample.values.values()))
    effective = min(line_sample.ess.values())
    assert effective > 400
    assert line_sample.converged, line_sample.sentence
    error = np.array(list(result.standard_errors.values()))
    assert values.mean(axis=1) == pytest.approx(list(result.values.values()), abs=4 * error.max() / np.sqrt(effective))
    assert values.std(axis=1) / error == pytest.approx(1.0, abs=4 / np.sqrt(2 * effective))
    assert np.corrcoef(values)[0, 1] == pytest.approx(result.correlation[0, 1], abs=0.03)
    assert "Converged: largest R-hat" in str(line_sample)


def test_inference_data_has_draws_of_every_walker(line_sample):
    data = line_sample.inference_data
    assert data.posterior["a"].shape == line_sample.chain.shape[:2]
    assert data.posterior["a"].values.ravel() == pytest.approx(line_sample.values["a"])
    assert data.sample_stats["lp"].shape == line_sample.chain.shape[:2]


def test_bands_and_pictures(line_sample, tmp_path):
    result = line_sample.result
    (linear,) = result.predict(AT, bands="linear", confidence_level=0.8).values()
    (band,) = result.predict(AT, bands=line_sample, confidence_level=0.8).values()
    assert band["x upper"] - band["x lower"] == pytest.approx(linear["x upper"] - linear["x lower"], rel=0.15)
    line_sample.plot(tmp_path / "histograms.png")
    cf.plots.pairs(line_sample, tmp_path / "pairs.png")
    assert all(p.stat().st_size > 5000 for p in tmp_path.iterdir())


@pytest.mark.slow
def test_an_unknown_sigma_is_integrated_over():
    """The posterior of regression with 1 / sigma beforehand: Student's t, and sigma^2 inverse chi2, n - 2 degrees."""
    result = cf.fit(line(), SINGLE)
    sample = cf.sample(result, draws=8000, chains=2, rng=3)
    dof = T.size - 2
    of_t = np.array([(v - result.values[n]) / result.standard_errors[n] for n, v in sample.values.items()])
    for column in of_t:
        assert np.quantile(column, [0.025, 0.25, 0.75, 0.975]) == pytest.approx(
            stats.t(dof).ppf([0.025, 0.25, 0.75, 0.975]), abs=0.3
        )
    squares = float(result.residuals @ result.residuals)
    expected = stats.invgamma(dof / 2, scale=squares / 2)
    assert np.median(sample.sigmas["sigma"] ** 2) == pytest.approx(expected.median(), rel=0.07)
    assert np.quantile(sample.sigmas["sigma"] ** 2, 0.9) == pytest.approx(expected.ppf(0.9), rel=0.12)


PRIORS = {
    "normal": (Normal(1.0, 0.2), stats.norm(1.0, 0.2)),
    "of the logarithm": (Normal(0.1, 0.5, on="log"), stats.lognorm(0.5, scale=np.exp(0.1))),
    "log-normal": (LogNormalPrior(0.1, 0.5), stats.lognorm(0.5, scale=np.exp(0.1))),
    "gamma": (Gamma(4.0, 0.25), stats.gamma(4.0, scale=0.25)),
}


def priors_on_scales():
    for name in PRIORS:
        for scale in ("linear", "log"):
            quick = (name, scale) in (("normal", "log"), ("of the logarithm", "linear"))
            yield pytest.param(name, scale, marks=[] if quick else [pytest.mark.slow])


@pytest.mark.parametrize(("name", "scale"), list(priors_on_scales()))
def test_without_information_the_posterior_is_the_prior_on_any_scale(name, scale):
    prior, exact = PRIORS[name]
    experiment = cf.Experiment({"x": [0.5]}, time=[1.0], sigma=1e3, initial={"x": 1.0})
    parameters = {"k": cf.Parameter(1.0, lower=1e-6, upper=50.0, scale=scale, prior=prior)}
    result = cf.fit(cf.Problem(decay_model(), experiment, parameters=parameters), SINGLE)
    sample = cf.sample(result, draws=1500, chains=2, walkers=10, rng=2)
    effective = min(sample.ess.values())
    assert effective > 120
    p = exact.cdf(sample.values["k"])  # evenly spread if the draws are right
    assert np.mean(p) == pytest.approx(0.5, abs=4 / np.sqrt(12 * effective))
    assert np.quantile(p, [0.1, 0.9]) == pytest.approx([0.1, 0.9], abs=4 * 0.3 / np.sqrt(effective))


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_posterior_without_prior_is_uniform_on_search_scale(scale):
    experiment = cf.Experiment({"x": [0.5]}, time=[1.0], sigma=1e3, initial={"x": 1.0})
    parameters = {"k": cf.Parameter(0.5, lower=0.1, upper=4.0, scale=scale)}
    result = cf.fit(cf.Problem(decay_model(), experiment, parameters=parameters), SINGLE)
    sample = cf.sample(result, draws=1500, chains=2, walkers=10, rng=2, tune=60)
    k = sample.values["k"]
    assert 0.1 <= k.min() < k.max() <= 4.0
    p = (k - 0.1) / 3.9 if scale == "linear" else np.log(k / 0.1) / np.log(40.0)
    assert np.quantile(p, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.12)


def test_constraints_and_bounds_hold():
    k = cf.symbols("k")
    experiment = cf.Experiment({"x": [0.7, 0.5]}, time=[1.0, 2.0], sigma=0.2, initial={"x": 1.0})
    problem = cf.Problem(
        decay_model(), experiment, parameters={"k": cf.Parameter(0.33, prior=UniformPrior(0.2, 0.6))},
        constraints=[cf.Constraint(k**2, upper=0.25)],
    )  # fmt: skip
    sample = cf.sample(cf.fit(problem, SINGLE), draws=600, chains=2)
    assert 0.2 <= sample.values["k"].min() < 0.25
    assert 0.45 < sample.values["k"].max() <= 0.5


def normal_line():
    """Return mean (2,) and covariance (2, 2) of the posterior of `line(sigma=0.1)`, by linear algebra."""
    problem = line(sigma=0.1)
    (experiment,) = problem.experiments
    times, values = next(iter(experiment.data.values()))
    M = np.column_stack([np.ones(len(times)), times])
    return np.linalg.solve(M.T @ M, M.T @ values.ravel()), 0.01 * np.linalg.inv(M.T @ M)


def test_draws_leave_a_constraint_that_holds_at_the_estimate():
    mean, covariance = normal_line()
    first_name, second_name = line(sigma=0.1).names
    u, v = (cf.symbols(n) for n in (first_name, second_name))
    direction = np.array([1.0, 2.0])
    deviation = np.sqrt(direction @ covariance @ direction)
    limit = direction @ mean - 0.5 * deviation  # of u + 2 v, half a standard deviation below its mean
    result = cf.fit(line(sigma=0.1).replace(constraints=[u + 2.0 * v <= limit]), SINGLE)
    sample = cf.sample(result, draws=3000, chains=2, rng=1)
    draws = np.column_stack([sample.values[n] for n in (first_name, second_name)])
    below = -stats.norm.pdf(0.5) / stats.norm.cdf(-0.5)  # mean of a normal deviate below -1/2
    assert (draws @ direction <= limit).all()
    assert np.std(draws @ direction) > 0.4 * deviation  # they were all at the limit
    expected = mean + covariance @ direction / deviation * below
    assert draws.mean(axis=0) == pytest.approx(expected, abs=0.15 * np.sqrt(covariance[0, 0]))


def test_sample_satisfies_linear_equations_and_refuses_others():
    mean, covariance = normal_line()
    first_name, second_name = line(sigma=0.1).names
    u, v = (cf.symbols(n) for n in (first_name, second_name))
    total = float(mean.sum())
    sample = cf.sample(
        cf.fit(line(sigma=0.1).replace(constraints=[u + v == total]), SINGLE), draws=2000, chains=2, rng=1
    )
    assert sample.values[first_name] + sample.values[second_name] == pytest.approx(total, abs=1e-6)
    direction = np.array([1.0, -1.0])
    expected = 1.0 / np.sqrt(direction @ np.linalg.inv(covariance) @ direction)
    assert np.std(sample.values[first_name]) == pytest.approx(expected, rel=0.1)
    curved = cf.fit(line(sigma=0.1).replace(constraints=[u * v == float(mean.prod())]), SINGLE)
    with refused("writing one quantity in terms of the others"):
        cf.sample(curved, draws=20, chains=1)


def test_workers_make_no_difference(two_workers):
    result = cf.fit(decay_problem(), SINGLE)
    serial_sample, parallel_sample = (
        cf.sample(result, draws=80, tune=5, chains=2, rng=5, workers=n) for n in (1, two_workers)
    )
    assert np.array_equal(serial_sample.chain, parallel_sample.chain)
    assert serial_sample.evaluations == parallel_sample.evaluations
    assert "NOT converged" in str(serial_sample)


def test_default_sample_ends_at_convergence():
    result = cf.fit(line(sigma=0.1), SINGLE)
    states = []
    sample = cf.sample(result, chains=2, walkers=4, rng=1, callback=lambda progress: states.append(progress.draws))
    assert sample.converged, sample.sentence
    assert len(sample.thetas) == 4000  # 750 steps of 8 walkers and no more
    assert states[-1] == 6000


def test_sample_doubled_from_a_state_equals_one_longer_run(monkeypatch):
    result = cf.fit(decay_problem(), SINGLE)
    monkeypatch.setattr(module, "_DEFAULT_DRAWS", 40)
    monkeypatch.setattr(module, "_MAX_DOUBLINGS", 2)
    rounds = cf.sample(result, chains=2, walkers=4, rng=1)  # 8 steps, then 16, then 32
    full_sample = cf.sample(result, chains=2, walkers=4, rng=1, draws=8 * 21, tune=11)
    assert np.array_equal(rounds.chain, full_sample.chain)
    assert rounds.accepted == full_sample.accepted
    assert rounds.evaluations == full_sample.evaluations
    assert "NOT converged" in str(rounds)


def test_chains_in_time_slices_give_the_same_draws(monkeypatch):
    """What is ended early has all chains, so that they can be compared."""
    result = cf.fit(decay_problem(), SINGLE)
    full_sample = cf.sample(result, chains=2, walkers=4, rng=1, draws=80, tune=4)
    monkeypatch.setattr(module, "_CHAIN_TIME_SLICE_SECONDS", 0.0)
    alternating_sample = cf.sample(result, chains=2, walkers=4, rng=1, draws=80, tune=4)
    assert np.array_equal(alternating_sample.chain, full_sample.chain)
    assert alternating_sample.evaluations == full_sample.evaluations
    stopped_sample = cf.sample(
        result, chains=2, walkers=4, rng=1, draws=80, tune=4, callback=lambda progress: progress.draws == 4 * (8 + 8)
    )
    assert stopped_sample.chains == 2
    assert np.array_equal(stopped_sample.chain, full_sample.chain[:, :4])
    assert np.isfinite(list(stopped_sample.r_hat.values())).all()


@pytest.mark.slow
def test_ten_walkers_converge_for_twelve_quantities():
    """The posterior of twelve constants, each with a datum of its own and all of them with their sum."""
    x, *k = cf.symbols(["x", *(f"k{i}" for i in range(12))])
    outputs = {f"y{i}": p * x for i, p in enumerate(k)} | {"sum": sum(k) * x}
    model = cf.Model({x: 0 * x}, parameters=k, outputs=outputs)
    data = {name: [1.0] for name in outputs} | {"sum": [12.0]}
    experiment = cf.Experiment(data, time=[1.0], sigma=0.1, initial={"x": 1.0})
    result = cf.fit(cf.Problem(model, experiment, parameters={p.name(): 1.0 for p in k}), SINGLE)
    sample = cf.sample(result, rng=4)
    assert sample.converged, sample.sentence
    effective = min(sample.ess.values())
    error = np.array(list(result.standard_errors.values()))
    spread = sample.thetas.std(axis=0) / error
    assert spread == pytest.approx(1.0, abs=4 / np.sqrt(2 * effective))
    summed = sample.thetas.sum(axis=1)
    assert summed.mean() == pytest.approx(12.0, abs=4 * 0.1 / np.sqrt(effective))
    assert summed.std() == pytest.approx(0.1 * np.sqrt(12 / 13), rel=4 / np.sqrt(2 * effective))


def test_walkers_at_their_starts_are_not_converged(line_sample):
    """Ensembles agree where each holds the same share of two modes; single walkers do not."""
    modes = np.where(np.arange(20) % 2, 5.0, -5.0)[:, None, None]
    chain = modes + np.random.default_rng(0).standard_normal((20, 300, 2))
    stuck_sample = dataclasses.replace(line_sample, chain=chain, chains=2)
    assert max(stuck_sample.r_hat.values()) <= 1.01
    assert not stuck_sample.converged
    assert "R-hat of single walkers" in stuck_sample.sentence


def test_sample_stopped_by_time_or_callback_returns_draws(clock):
    result = cf.fit(decay_problem(), SINGLE)
    stopped_sample = cf.sample(result, draws=60, chains=4, callback=lambda progress: progress.finished == 1)
    assert "Stopped by the callback." in stopped_sample.message
    assert "Only 1 of them reached" in stopped_sample.message
    assert "cannot be assessed with a single chain" in str(stopped_sample)
    assert stopped_sample.thetas.size > 0
    clock.step = 1.0
    timed_out_sample = cf.sample(result, draws=10**6, chains=1, tune=0, max_time=1000.0)
    assert "time limit was reached" in timed_out_sample.message
    assert 0 < timed_out_sample.chain.shape[1] < 10**3
    empty_sample = cf.sample(result, draws=10, chains=1, max_time=1e-9)
    assert empty_sample.thetas.size == 0
    assert "Too few steps" in str(empty_sample)


def test_sample_with_wrong_arguments_raises(monkeypatch):
    result = cf.fit(decay_problem(), SINGLE)
    with refused("draws is 0", "chains is 0", "tune is -1", "walkers is 3", "rng", "workers"):
        cf.sample(result, draws=0, chains=0, tune=-1, walkers=3, rng=-1, workers=0)
    with refused("expected the result of a fit"):
        cf.sample(3)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with refused("pip install 'castfit[sampling]'"):
        cf.sample(result)
    assert importlib.util.find_spec("emcee") is not None


def saturating(**bounds: Any) -> cf.Result:
    """x = 1 - exp(-k t) at times at which x is nearly 1: the likelihood does not fall as k grows."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * (1 - x)}, parameters=[k], initial={x: 0})
    times, data = [1.0, 2.0, 3.0, 4.0], [0.97, 1.02, 0.99, 1.01]
    parameter = cf.Parameter(2.0, scale="log", **bounds)
    return cf.fit(
        cf.Problem(model, cf.Experiment({"x": data}, time=times, sigma=0.03), parameters={"k": parameter}), SINGLE
    )


def test_improper_posterior_is_refused_by_name() -> None:
    with pytest.raises(cf.InputError, match="the posterior of k is improper"):
        cf.sample(saturating(), draws=40, chains=2, tune=2)
    cf.sample(saturating(), draws=40, chains=2, tune=2, improper=True)
    cf.sample(saturating(upper=100.0), draws=40, chains=2, tune=2)
    cf.sample(saturating(prior=LogNormalPrior(1.0, 1.0)), draws=40, chains=2, tune=2)


def test_theophylline_without_priors_names_the_open_rate_of_subject_9() -> None:
    result = cf.fit(cf.problems.load("theophylline").problem, SINGLE)
    with pytest.raises(cf.InputError, match=r"ka\[subject 9\] is improper: its log density falls by 0\.408"):
        cf.sample(result)
