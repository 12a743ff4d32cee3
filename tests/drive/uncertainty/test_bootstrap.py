"""The bootstrap against closed forms, SciPy, exact leaving out; parallel, killed and resumed; what is refused."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit._support.time_limit import with_deadline
from castfit.drive.uncertainty.refits import descent
from castfit.drive.uncertainty.refits import run as refits
from castfit.drive.uncertainty.refits.bootstrap_intervals import (
    acceleration,
    bca,
    percentile,
    quantiles,
    worst_case_limits,
)
from castfit.drive.uncertainty.refits.resampling import case_deletion, leverages, resampling
from tests.builders import decay_model, decay_problem, refused
from tests.drive.chores import Troubled
from tests.drive.killed_bootstrap import run

SINGLE = cf.SingleShooting()


def line(n=8, sigma=0.2, *, noise=None, seed=1, slope=1.5, level=0.7):
    """x' = b from a free x(0) = a: a straight line, whose estimates are those of linear regression."""
    x, b = cf.symbols("x b")
    times = np.linspace(0.0, 3.0, n)
    values = level + slope * times + 0.2 * np.random.default_rng(seed).standard_normal(n)
    noise_options = {"noise": noise} if noise is not None else {"sigma": sigma}
    experiment = cf.Experiment({"x": values}, time=times, initial={"x": cf.free(0.5)}, **noise_options)
    model = cf.Model({x: b + 0 * x}, parameters=[b])
    design = np.column_stack([times, np.ones(n)])  # theta = (b, x(0))
    return cf.Problem(model, experiment, parameters={"b": 1.0}), design, values


def estimate_of(design, values):
    return np.linalg.lstsq(design, values, rcond=None)[0]


@pytest.mark.parametrize("kind", ["residual", "wild", "parametric"])
def test_every_draw_is_the_regression_of_its_data(kind):
    problem, design, _ = line()
    result = cf.fit(problem, SINGLE)
    bootstrap_result = cf.bootstrap(result, kind, samples=12, rng=5, transcription=SINGLE)
    recipe = resampling(kind, problem.posed, result, 5)
    for i, theta in enumerate(bootstrap_result.thetas):
        values = recipe.problem(problem.posed, i).conditions[0].points.values[:, 0]
        assert theta == pytest.approx(estimate_of(design, values), rel=1e-6)
    assert bootstrap_result.failures == {}


def test_standard_errors_of_a_line_are_the_closed_form():
    problem, design, _ = line()
    result = cf.fit(problem, SINGLE)
    bootstrap_result = cf.bootstrap(result, "parametric", samples=40, rng=2, transcription=SINGLE)
    exact = 0.2 * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    assert list(bootstrap_result.standard_errors.values()) == pytest.approx(exact, rel=4 / np.sqrt(2 * 40))
    assert np.abs(list(bootstrap_result.bias.values()) / exact).max() < 4 / np.sqrt(40)


def test_resampled_errors_have_the_variance_of_errors():
    """(e^2 / (1 - h)) is unbiased for sigma^2, whatever the leverage; and the draws' covariance follows."""
    problem, design, values = line(sigma=None)
    result = cf.fit(problem, SINGLE)
    hat = design @ np.linalg.inv(design.T @ design) @ design.T
    assert leverages(result) == pytest.approx(np.diag(hat), abs=1e-7)
    scaled_residuals = (values - hat @ values) / np.sqrt(1 - np.diag(hat))
    recipe = resampling("residual", problem.posed, result, 0)
    spread = np.sqrt(np.sum((values - hat @ values) ** 2) / (values.size - 2))  # unbiased
    assert recipe.errors * spread == pytest.approx(-(scaled_residuals - scaled_residuals.mean()), abs=1e-6)
    assert resampling("wild", problem.posed, result, 0).errors * spread == pytest.approx(-scaled_residuals, abs=1e-6)
    bootstrap_result = cf.bootstrap(result, "residual", samples=40, rng=7, transcription=SINGLE)
    exact = np.std(scaled_residuals) * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    assert list(bootstrap_result.standard_errors.values()) == pytest.approx(exact, rel=4 / np.sqrt(2 * 40))


@pytest.mark.parametrize(
    "sigma", [0.2, None, {"x": cf.correlated(0.2, time=1.0)}], ids=["known", "unknown", "correlated"]
)
def test_leaving_out_a_value_linearly_is_exact_for_a_line(sigma):
    problem, _, values = line(sigma=sigma)
    result = cf.fit(problem, SINGLE)
    left = cf.leave_out(result, "value", transcription=SINGLE)
    assert left.moves == pytest.approx(case_deletion(problem.posed, result), abs=1e-6)
    n = values.size
    for name, column in zip(left.names, left.thetas.T, strict=True):
        spread = np.sqrt((n - 1) / n * np.sum((column - column.mean()) ** 2))
        assert left.standard_errors[name] == pytest.approx(spread, rel=1e-12)


def test_leave_out_names_steady_state_values():
    x, k, u = cf.symbols("x k u")
    model = cf.Model({x: k * u - x}, parameters=[k], inputs=[u], initial={x: 0.0})
    rests = [cf.Experiment({"x": [v]}, [np.inf], sigma=0.1, inputs={"u": u}) for u, v in ((1.0, 2.1), (2.0, 3.8))]
    left = cf.leave_out(cf.fit(cf.Problem(model, rests, parameters={"k": 1.0})), "value")
    assert [row.name for row in left.rows] == ["x at rest of 'experiment 1'", "x at rest of 'experiment 2'"]


@pytest.mark.parametrize(("is_sigma_known", "min_correlation"), [(True, 0.999), (False, 0.7)])
def test_case_deletion_of_several_outputs_agrees_with_refits(is_sigma_known, min_correlation):
    """A normal and a log-normal output, two experiments: the linear moves are near the exact ones.

    They leave unknown sigmas as they are, and so the weights: refits of every value move k as `leave_out` says.
    """
    x_sigma, d_sigma = (0.02, 0.05) if is_sigma_known else (cf.unknown("x"), cf.unknown("d"))
    x, k = cf.symbols("x k")
    rng = np.random.default_rng(0)
    model = cf.Model({x: -k * x}, parameters=[k], outputs={"double": 2 * x})
    times = np.linspace(0.1, 3.0, 8)
    truth = {1.0: np.exp(-times), 2.0: 2 * np.exp(-times)}
    experiments = [
        cf.Experiment(
            {"x": y + 0.02 * rng.standard_normal(8), "double": 2 * y * np.exp(0.05 * rng.standard_normal(8))},
            time=times, noise={"x": cf.Gaussian(x_sigma), "double": cf.LogNormal(d_sigma)},
            initial={"x": start}, name=f"from {start:g}",
        )
        for start, y in truth.items()
    ]  # fmt: skip
    result = cf.fit(cf.Problem(model, experiments, parameters={"k": 0.8}), SINGLE)
    left = cf.leave_out(result, "value", transcription=SINGLE)
    linear = case_deletion(result.problem.posed, result)
    assert left.failures == {}
    assert np.corrcoef(left.moves[:, 0], linear[:, 0])[0, 1] > min_correlation
    assert np.std(linear) == pytest.approx(np.std(left.moves), rel=0.02 if is_sigma_known else 0.2)
    by_experiment = cf.leave_out(result, transcription=SINGLE)
    assert [row.name for row in by_experiment.rows] == ["'from 1'", "'from 2'"]
    one = cf.fit(result.problem.posed.with_experiments(["from 2"]), SINGLE)
    assert by_experiment.rows[0].theta == pytest.approx(one.theta, rel=1e-6)


def test_bca_is_that_of_scipy():
    rng = np.random.default_rng(3)
    sample = rng.lognormal(size=25)
    scipy_result = stats.bootstrap(
        (sample,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(1), confidence_level=0.9
    )
    without = np.array([np.delete(sample, i).mean() for i in range(sample.size)])
    a = acceleration((without - sample.mean())[:, None])[0]
    interval = bca(scipy_result.bootstrap_distribution, float(sample.mean()), float(a), 0.9)
    assert interval == pytest.approx(tuple(scipy_result.confidence_interval), rel=2e-3)


def test_extreme_quantiles_of_few_draws_are_nan():
    draws = np.arange(1.0, 40.0)  # 39 draws: the first is the quantile 1/40
    assert percentile(draws, 0.95) == pytest.approx((1.0, 39.0))
    assert np.isnan(percentile(draws[:-1], 0.95)).all()
    assert np.isnan(percentile(np.empty(0), 0.95)).all()
    assert quantiles(draws, np.array([0.5, np.nan]))[0] == 20.0
    same = np.full(100, 2.0)
    assert bca(same, 2.0, 0.0, 0.9) == (2.0, 2.0)  # held at a bound: half of them count as below
    assert np.isnan(bca(np.arange(1.0, 200.0), 0.0, 0.0, 0.9)).all()


def test_worst_case_limits_include_failed_fits():
    draws = np.arange(1.0, 191.0)
    low, high = worst_case_limits(
        draws, 9, 0.9
    )  # of 199 draws the 10th is the quantile 0.05; nine of those before are missing
    assert (low, high) == pytest.approx((1.0, 190.0))
    assert np.isnan(worst_case_limits(draws, 10, 0.9)).all()
    assert worst_case_limits(draws, 0, 0.9) == pytest.approx(percentile(draws, 0.9))


NOISES = {
    "relative": (None, cf.relative(0.1)),
    "log-normal": (cf.LogNormal(0.1), None),
    "t": (cf.StudentT(0.05, df=4), None),
    "Laplace": (cf.Laplace(0.05), None),
    "Huber": (cf.Huber(0.05), None),
    "soft l1": (cf.SoftL1(0.05), None),
    "Cauchy": (cf.Cauchy(0.05, f_scale=2.0), None),
    "detected": (cf.Gaussian(0.05, below=0.3), None),
    "Poisson": (cf.Poisson(), None),
    "negative binomial": (cf.NegativeBinomial(0.1), None),
}


@pytest.mark.parametrize("name", NOISES)
def test_parametric_data_come_from_the_noise_model(name):
    noise, sigma = NOISES[name]
    counts = isinstance(noise, (cf.Poisson, cf.NegativeBinomial))
    start = 60.0 if counts else 1.0
    times = np.linspace(0.0, 2.0, 9)
    values = start * np.exp(-0.7 * times)
    values = np.round(values) if counts else np.maximum(values, 0.3) if name == "detected" else values
    noise_options = {"noise": noise} if noise is not None else {"sigma": sigma}
    experiment = cf.Experiment({"x": values}, time=times, initial={"x": start}, **noise_options)
    result = cf.fit(cf.Problem(decay_model(), experiment, parameters={"k": 0.6}), SINGLE)
    compiled_problem = result.problem.posed
    recipe = resampling("parametric", compiled_problem, result, 0)
    simulated_values = np.array(
        [recipe.values(compiled_problem, np.random.default_rng(i))[0][:, 0] for i in range(1500)]
    )
    middle = np.median(simulated_values, axis=0)
    if name == "detected":
        assert simulated_values.min() == 0.3
        assert (simulated_values[:, -1] == 0.3).mean() == pytest.approx(
            stats.norm.cdf((0.3 - result.predictions[-1]) / 0.05), abs=0.06
        )
    elif counts:
        assert (simulated_values == np.round(simulated_values)).all()
        assert simulated_values.mean(axis=0) == pytest.approx(result.predictions, rel=0.06)
        assert simulated_values.std(axis=0) == pytest.approx(result.deviations, rel=0.1)
    else:
        assert middle == pytest.approx(result.predictions, rel=0.03)
    if name in ("relative", "log-normal", "t"):
        quartile = np.quantile(simulated_values, 0.75, axis=0) - middle
        unit_quartile = stats.t(4).ppf(0.75) if name == "t" else stats.norm.ppf(0.75)
        size = {"relative": 0.1 * values, "t": 0.05, "log-normal": 0.1 * middle}[name]
        assert quartile / (unit_quartile * size) == pytest.approx(1.0, abs=0.2)
    bootstrap_result = cf.bootstrap(result, "parametric", samples=2, rng=1, transcription=SINGLE)
    assert len(bootstrap_result.solved) == 2


def test_a_spread_that_is_a_parameter_is_drawn_without_bias():
    c = cf.symbols("c")
    times = np.linspace(0.1, 2.0, 8)
    values = np.exp(-0.7 * times) * (1 + 0.1 * np.random.default_rng(2).standard_normal(8))
    x = cf.symbols("x")
    experiment = cf.Experiment({"x": values}, time=times, noise=cf.Gaussian(c * x), initial={"x": cf.free(1.0)})
    problem = cf.Problem(
        decay_model(), experiment, parameters={"k": 0.6, "c": cf.Parameter(0.1, scale="log", lower=1e-3)}
    )
    result = cf.fit(problem, SINGLE)
    recipe = resampling("parametric", problem.posed, result, 0)
    free = 8 - leverages(result).sum()
    assert free == pytest.approx(6.0, abs=0.1)  # two of eight, k and x(0); the information on c is not counted
    assert recipe.spreads == pytest.approx(result.spreads * np.sqrt(8 / free), rel=1e-6)


@pytest.mark.parametrize("name", ["detected", "Poisson", "negative binomial"])
@pytest.mark.parametrize("kind", ["residual", "wild"])
def test_residual_bootstrap_of_unsupported_noise_raises(name, kind):
    noise = NOISES[name][0]
    experiment = cf.Experiment({"x": [9, 5, 3, 2]}, time=[0, 1, 2, 3], noise=noise, initial={"x": 9.0})
    result = cf.fit(cf.Problem(decay_model(), experiment, parameters={"k": 0.6}), SINGLE)
    reason = "limit of detection" if name == "detected" else "counts are integers"
    with refused(reason):
        cf.bootstrap(result, kind, samples=3)


def test_bootstrap_of_user_defined_cost_raises():
    noise = cf.Likelihood(lambda y, m: 50 * (y - m) ** 2)
    experiment = cf.Experiment({"x": [1.0, 0.7, 0.5]}, time=[0, 1, 2], noise=noise, initial={"x": 1.0})
    result = cf.fit(cf.Problem(decay_model(), experiment, parameters={"k": 0.6}), SINGLE)
    with refused("cannot be sampled from a user-defined cost"):
        cf.bootstrap(result, "parametric")
    with refused("derivatives of a user-defined cost"):
        cf.bootstrap(result, "wild")


def test_bootstrap_with_several_mistakes_lists_all(tmp_path):
    result = cf.fit(decay_problem(), SINGLE)
    with refused(
        "transcription is 'bad'",
        "kind is 'boot'",
        "samples is 0",
        "rng is -1",
        "resume=True",
        "workers",
        "fit_max_time",
    ):
        cf.bootstrap(result, "boot", samples=0, rng=-1, transcription="bad", resume=True, workers=0, fit_max_time=-1.0)
    with refused("expected the result of a fit"):
        cf.bootstrap(decay_problem())
    with refused("starts is -1"):
        cf.bootstrap(result, starts=-1)
    with refused("'k' has the limits [-inf, inf]"):
        cf.bootstrap(result, starts=2, limits={"k": (-np.inf, np.inf)})
    with refused("limits has an effect only with starts > 0"):
        cf.bootstrap(result, limits={"k": (0.1, 1.0)})
    failed = cf.fit(decay_problem(), SINGLE, cf.GaussNewton(max_iter=0))
    assert not failed.success
    with refused("result is not a solution"):
        cf.bootstrap(failed)
    result.save(tmp_path / "r.json")
    with refused("with_problem"):
        cf.bootstrap(cf.Result.load(tmp_path / "r.json"))
    with refused("one experiment"):
        cf.leave_out(result)
    with refused("each is 'thing'"):
        cf.leave_out(result, "thing")
    bootstrap_result = cf.bootstrap(result, samples=2, transcription=SINGLE)
    with refused("confidence_level is 2", "method is 'basic'", "jackknife is 3"):
        bootstrap_result.confidence_intervals(2, "basic", jackknife=3)
    with refused("jackknife has an effect only with method='bca'"):
        bootstrap_result.confidence_intervals(
            method="percentile", jackknife=cf.leave_out(result, "value", transcription=SINGLE)
        )


def test_residual_bootstrap_without_degrees_of_freedom_raises():
    experiment = cf.Experiment({"x": [0.6]}, time=[1.0], initial={"x": 1.0})
    result = cf.fit(cf.Problem(decay_model(), experiment, parameters={"k": 0.6}), SINGLE)
    with refused("the noise is unknown"):
        cf.bootstrap(result)
    known_sigma_experiment = cf.Experiment({"x": [0.6]}, time=[1.0], initial={"x": 1.0}, sigma=0.1)
    exact = cf.fit(cf.Problem(decay_model(), known_sigma_experiment, parameters={"k": 0.6}), SINGLE)
    with refused("fitted exactly"):
        cf.bootstrap(exact)
    bootstrap_result = cf.bootstrap(exact, "parametric", samples=20, transcription=SINGLE)
    assert bootstrap_result.standard_errors["k"] == pytest.approx(exact.standard_errors["k"], rel=0.6)


def test_workers_make_no_difference(two_workers):
    serial_result, parallel_result = run(None, samples=10), run(None, workers=two_workers, samples=10)
    assert np.array_equal(serial_result.thetas, parallel_result.thetas)
    assert [row.status for row in serial_result.rows] == [row.status for row in parallel_result.rows]


@pytest.mark.slow
def test_bootstrap_resumed_after_kill_gives_the_same_rows(tmp_path):
    path = tmp_path / "boot.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.drive.killed_bootstrap", str(path)], stdout=subprocess.PIPE, text=True
    )
    for line_ in process.stdout:
        if int(line_) == 5:
            process.kill()  # SIGKILL
            break
    process.wait()
    process.stdout.close()
    partial = cf.BootstrapResult.load(path)
    assert 5 <= len(partial.solved) < 40
    resumed_result, full_result = run(path), run(None)
    assert np.array_equal(resumed_result.thetas, full_result.thetas)
    assert resumed_result.confidence_intervals(0.8) == full_result.confidence_intervals(0.8)
    extended_result = run(path, samples=45)
    assert np.array_equal(extended_result.thetas[:40], full_result.thetas)
    with refused("has kind = residual", "differs from this run in the estimate"):
        result = cf.fit(decay_problem(), SINGLE)
        cf.bootstrap(result, "wild", samples=3, rng=3, transcription="single", checkpoint=path, resume=True)


def test_saved_and_loaded(tmp_path):
    bootstrap_result = run(None, samples=50)
    bootstrap_result.save(tmp_path / "boot")
    loaded = cf.BootstrapResult.load(tmp_path / "boot")
    assert np.array_equal(loaded.thetas, bootstrap_result.thetas)
    assert "percentile" in str(loaded)
    restored_result = loaded.with_problem(decay_problem())
    assert restored_result.confidence_intervals() == bootstrap_result.confidence_intervals()
    with refused("with_problem"):
        loaded.confidence_intervals(method="bca")
    (tmp_path / "other").write_text("{}\n")
    with refused("is not a castfit checkpoint"):
        cf.BootstrapResult.load(tmp_path / "other")


def test_bootstrap_stopped_by_callback_or_time_returns_finished_fits(clock):
    result = cf.fit(decay_problem(), SINGLE)
    messages = []

    def callback(progress):
        messages.append(progress.sentence("data sets"))
        return progress.finished == 4

    bootstrap_result = cf.bootstrap(result, samples=30, transcription=SINGLE, callback=callback)
    assert len(bootstrap_result.solved) == 4
    assert "Stopped by the callback. 4 of 30 data sets were fitted." in str(bootstrap_result)
    assert "too few" in str(bootstrap_result)
    assert messages[0].startswith("1 of 30 data sets")
    time_options = {"max_time": 2.0, "callback": lambda progress: clock.sleep(0.9)}
    stopped_result = cf.bootstrap(result, samples=10_000, transcription=SINGLE, **time_options)
    assert 0 < len(stopped_result.solved) < 10
    assert "time limit was reached" in stopped_result.message
    assert stopped_result.failures == {}


def test_bootstrap_counts_failures_and_bounds_their_effect():
    result = cf.fit(decay_problem(), SINGLE)
    middle = result.theta[0]
    bad = Troubled(trouble="raise", above=middle - 1.0, below=middle + 1.0)
    failed_result = cf.bootstrap(result, samples=5, transcription=bad)
    assert failed_result.failures == {"error": 5}
    assert np.isnan(failed_result.standard_errors["k"])
    assert "trouble at" in str(failed_result)
    short = cf.bootstrap(result, samples=30, rng=1, transcription=SINGLE, solver=cf.GaussNewton(max_iter=3))
    assert 0 < sum(short.failures.values()) < 30
    assert len(short.solved) + sum(short.failures.values()) == 30
    text = str(short)
    assert f"{sum(short.failures.values())} of 30 fits failed" in text
    assert "If all failed fits were beyond one of the limits" in text
    assert np.isnan(short.table["k"]).sum() == sum(short.failures.values())


def test_other_starts_find_other_optima():
    """The sign of a is not determined by a^2, but its start decides: draws from other starts change sides."""
    x, a = cf.symbols("x a")
    model = cf.Model({x: -(a**2) * x + 0.002 * a}, parameters=[a])
    times = np.linspace(0.2, 3.0, 8)
    values = np.exp(-0.5 * times) + 0.01 * np.random.default_rng(0).standard_normal(8)
    experiment = cf.Experiment({"x": values}, time=times, initial={"x": 1.0}, sigma=0.03)
    result = cf.fit(cf.Problem(model, experiment, parameters={"a": cf.Parameter(0.6, lower=-2, upper=2)}), SINGLE)
    near_result = cf.bootstrap(result, "parametric", samples=12, transcription=SINGLE)
    far_result = cf.bootstrap(result, "parametric", samples=12, transcription=SINGLE, starts=[{"a": -0.6}])
    assert (near_result.values["a"] > 0).all()
    n_elsewhere = sum(row.has_other_optimum for row in far_result.rows)
    assert n_elsewhere == (far_result.values["a"] < 0).sum() > 0
    assert all(b.cost <= a.cost + 1e-9 for a, b in zip(near_result.rows, far_result.rows, strict=True))
    assert f"In {n_elsewhere} of 12 data sets another start" in str(far_result)


def test_local_quantities_have_no_estimate_without_their_experiment():
    times = np.linspace(0.2, 3.0, 8)
    experiments = [
        cf.Experiment(
            {"x": s * np.exp(-0.5 * times)}, time=times, initial={"x": cf.free(s)}, sigma=0.05, name=f"e{s:g}"
        )
        for s in (1.0, 2.0, 3.0)
    ]
    result = cf.fit(cf.Problem(decay_model(), experiments, parameters={"k": 0.6}), SINGLE)
    left = cf.leave_out(result, transcription=SINGLE)
    assert left.unseen == (("x(0) [e1]",), ("x(0) [e2]",), ("x(0) [e3]",)) or all(len(u) == 1 for u in left.unseen)
    assert np.isnan(left.thetas).sum() == 3
    assert "would not be identifiable" not in str(left)  # local quantities are not reported
    assert set(left.table) >= {"without", "status", "k"}
    assert np.isfinite(left.standard_errors["k"])


def bent(sigma=None, *, priors=None, bounds=(0.0, 5.0)):
    """Growth and decay seen through two outputs on scales far apart, that depend on no quantity linearly."""
    x, k, r = cf.symbols("x k r")
    model = cf.Model({x: r * x * (1 - k * x)}, parameters=[k, r], outputs={"small": x, "large": 1e3 * x**2})
    times, rng = np.linspace(0.2, 4.0, 12), np.random.default_rng(3)
    exact = 1 / (0.8 + (1 / 0.1 - 0.8) * np.exp(-1.6 * times))
    data = {"small": exact + 0.05 * rng.standard_normal(12), "large": 1e3 * exact**2 + 40 * rng.standard_normal(12)}
    noise_options = {} if sigma is None else {"sigma": sigma}
    experiment = cf.Experiment(data, time=times, initial={"x": cf.free(0.1)}, **noise_options)
    return cf.Problem(model, experiment, parameters={"k": 1.0, "r": cf.Parameter(1.0, bounds=bounds)}, priors=priors)


@pytest.mark.parametrize(
    "options",
    [{}, {"sigma": {"small": 0.05, "large": 40.0}}, {"priors": {"k": cf.Normal(0.75, 0.05)}}, {"bounds": (0.0, 1.5)}],
    ids=["sigmas unknown", "known", "a prior", "at a bound"],
)
def test_a_descent_from_the_estimate_ends_where_a_fit_does(options, monkeypatch):
    """The same data, fitted in full; the descent itself makes no fit."""
    result = cf.fit(bent(**options), "single")
    full_result = cf.bootstrap(result, samples=6, rng=4, transcription="single")
    monkeypatch.setattr(refits, "fit", None)
    descent_result = cf.bootstrap(result, samples=6, rng=4)
    assert [row.status for row in descent_result.rows] == ["converged"] * 6
    unit = np.where(np.std(full_result.thetas, axis=0) > 0.0, np.std(full_result.thetas, axis=0), 1.0)
    assert np.abs((descent_result.thetas - full_result.thetas) / unit).max() < 2e-3
    for row, full in zip(descent_result.rows, full_result.rows, strict=True):
        assert row.measure == full.measure
        assert [row.cost, row.chi2, row.objective] == pytest.approx([full.cost, full.chi2, full.objective], rel=1e-4)
        assert dict(row.sigmas) == pytest.approx(dict(full.sigmas), rel=1e-4)


def test_refit_uses_ordinary_fit_if_descent_fails(monkeypatch):
    """With a step at most no descent arrives: every data set is fitted, by the method of the result."""
    result = cf.fit(bent(), "single")
    full_result = cf.bootstrap(result, samples=3, rng=4, transcription="single")
    monkeypatch.setattr(descent, "_MAX_DESCENT_STEPS", 0)
    labels = []
    monkeypatch.setattr(
        refits, "fit", lambda *arguments, **options: labels.append(arguments[1].label) or cf.fit(*arguments, **options)
    )
    assert cf.bootstrap(result, samples=3, rng=4).thetas == pytest.approx(full_result.thetas, rel=1e-9)
    assert labels == ["single shooting"] * 3


@pytest.mark.parametrize("method", ["single", "multiple", "collocation"])
def test_refit_uses_transcription_of_the_result(method, monkeypatch):
    result = cf.fit(decay_problem(), method)
    labels = set()
    monkeypatch.setattr(
        refits,
        "fit",
        lambda *arguments, **options: labels.add(arguments[1].label.split(" (")[0]) or cf.fit(*arguments, **options),
    )
    assert not cf.leave_out(result, "value").failures
    assert labels == {result.transcription.split(" (")[0]}


def test_descent_is_skipped_if_trajectory_cannot_be_integrated():
    """A cost that is not the result's: pieces that do not join, say."""
    result = cf.fit(bent(), "single")
    compiled_problem = result.problem.posed
    warm_descent = descent.WarmStartedRefits(compiled_problem, result.integrator, result.theta, result.cost)
    assert warm_descent.refit(compiled_problem) is not None
    shifted_descent = descent.WarmStartedRefits(compiled_problem, result.integrator, result.theta, result.cost - 1.0)
    assert shifted_descent.refit(compiled_problem) is None


def test_descents_keep_the_limit_of_time_of_a_data_set(clock):
    """A clock that every descent moves beyond the limit: the fit that follows has no time, and says so."""
    result = cf.fit(bent(), "single")
    compiled_problem = result.problem.posed
    warm_descent = descent.WarmStartedRefits(compiled_problem, result.integrator, result.theta, result.cost)
    with with_deadline(1.0):
        clock.sleep(2.0)
        assert warm_descent.refit(compiled_problem) is None
    assert (
        descent.WarmStartedRefits(compiled_problem, result.integrator, result.theta, result.cost).refit(
            compiled_problem
        )
        is not None
    )


def test_an_interrupt_ends_a_run_within_a_descent(monkeypatch):
    """Pressed while the second data set is on its way: the first one is kept."""
    result = cf.fit(bent(), "single")
    original_method, problems = descent.WarmStartedRefits.refit, []

    def pressed(self, problem):
        problems.append(problem)
        if len(problems) == 2:
            signal.raise_signal(signal.SIGINT)
        return original_method(self, problem)

    monkeypatch.setattr(descent.WarmStartedRefits, "refit", pressed)
    bootstrap_result = cf.bootstrap(result, samples=5, rng=4)
    assert len(problems) == 2
    assert bootstrap_result.rows[0].success
    assert [row.success for row in bootstrap_result.rows[2:]] == [False] * 3
    assert "1 of 5" in bootstrap_result.message or "2 of 5" in bootstrap_result.message
