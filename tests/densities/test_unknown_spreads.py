"""Unknown sigmas, eliminated or estimated: the same answers, from anywhere; outliers, and data that are exact."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import integrate, optimize

import castfit as cf

TIMES = np.linspace(0.2, 6.0, 18)
EXACT = cf.GaussNewton(tolerance=1e-13)
TRANSCRIPTIONS = [cf.SingleShooting(), cf.MultipleShooting(4), cf.Collocation()]
SOLVERS = [cf.GaussNewton(), cf.Ipopt()]


@cache
def chain() -> cf.Model:
    x, y, k1, k2 = cf.symbols("x y k1 k2")
    return cf.Model({x: -k1 * x, y: k1 * x - k2 * y}, parameters=[k1, k2], outputs={"big": 1000 * x})


def problem(big, small, *, prior=None, noise: float = 30.0) -> cf.Problem:
    """Two outputs of different size; `big` and `small` are what is said of their sigmas."""
    rng = np.random.default_rng(1)
    exact = cf.simulate(chain(), {"k1": 1.0, "k2": 0.4}, TIMES, initial={"x": 1.0, "y": 0.0})
    data = {
        "big": exact["big"] + noise * rng.standard_normal(TIMES.size),
        "y": exact["y"] + 0.02 * rng.standard_normal(TIMES.size),
    }
    experiment = cf.Experiment(data, time=TIMES, sigma={"big": big, "y": small}, initial={"x": 1.0, "y": 0.0})
    parameters = {"k1": cf.Parameter(2.0, scale="log", prior=prior), "k2": cf.Parameter(1.0, scale="log")}
    return cf.Problem(chain(), experiment, parameters=parameters)


def sigmas(result: cf.Result) -> dict[str, tuple[float, float]]:
    """Return the sigmas and their standard errors, whether they were eliminated or estimated."""
    estimated_sigmas = {
        n: (result.values[n], result.standard_errors[n]) for n in result.values if n.startswith("sigma(")
    }
    return estimated_sigmas | {n: (s, result.sigma_errors[n]) for n, s in result.sigmas.items()}


@pytest.mark.parametrize("prior", [None, cf.Normal(1.1, 0.02)], ids=["free", "prior"])
@pytest.mark.parametrize("names", [("", ""), ("s", "s")], ids=["two groups", "one group"])
def test_eliminated_and_estimated_sigmas_agree(names, prior):
    eliminated = cf.fit(problem(*(cf.unknown(n) for n in names), prior=prior), cf.SingleShooting(), EXACT)
    estimated = cf.fit(problem(*(cf.unknown(n, guess=1.0) for n in names), prior=prior), cf.SingleShooting(), EXACT)
    assert estimated.neg2loglik == pytest.approx(eliminated.neg2loglik, abs=1e-7)
    for name, value in eliminated.values.items():
        assert estimated.values[name] == pytest.approx(value, rel=1e-6)
        assert estimated.standard_errors[name] == pytest.approx(eliminated.standard_errors[name], rel=1e-4)
    estimated_sigmas = sigmas(estimated)
    for name, (value, error) in sigmas(eliminated).items():
        assert estimated_sigmas[name] == pytest.approx((value, error), rel=1e-4)


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=lambda t: t.label)
def test_it_does_not_matter_where_sigma_begins(transcription):
    results = [
        cf.fit(problem(cf.unknown(guess=1000 * g), cf.unknown(guess=g)), transcription) for g in (1e-6, 1e-2, 1.0, 1e6)
    ]
    for result in results[1:]:
        assert result.neg2loglik == pytest.approx(results[0].neg2loglik, abs=1e-7)
        assert result.values == pytest.approx(results[0].values, rel=1e-6)
    iterations = [result.iterations for result in results]
    assert max(iterations) <= 2 * min(iterations)


@pytest.mark.parametrize("unknown", [cf.unknown(), cf.unknown(guess=0.1)], ids=["eliminated", "estimated"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.label)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS[:2], ids=lambda t: t.label)
def test_exactly_fitted_output_converges_and_is_named(transcription, solver, unknown):
    result = cf.fit(problem(unknown, unknown, noise=0.0), transcription, solver)
    assert result.success, result.message
    assert "data of big are fitted exactly" in result.message
    assert np.isfinite(result.neg2loglik)
    assert result.values["k1"] == pytest.approx(1.0, rel=1e-6)
    assert np.isfinite([result.standard_errors[n] for n in ("k1", "k2")]).all()
    noisy = cf.fit(problem(unknown, unknown), transcription, solver)
    assert "reproduced" not in noisy.message


@pytest.mark.parametrize("is_sigma_known", [True, False], ids=["known sigma", "unknown sigma"])
@pytest.mark.parametrize("kind", [cf.Huber, cf.StudentT, cf.SoftL1], ids=lambda kind: kind.__name__)
def test_an_outlier_of_20_sigma_is_named_and_moves_little(kind, is_sigma_known):
    gasoil = cf.problems.load("gasoil").problem
    (experiment,) = gasoil.experiments
    clean = cf.fit(gasoil, cf.MultipleShooting(4))
    name = next(iter(experiment.data))
    times = experiment.data[name][0]
    values = {n: series[1].copy() for n, series in experiment.data.items()}
    index = times.size // 3
    values[name][index] += 20 * clean.noise
    noise = kind(clean.noise) if is_sigma_known else kind()
    corrupted_experiment = cf.Experiment(values, time=times, noise=noise, initial=experiment.initial)
    result = cf.fit(
        cf.Problem(gasoil.model, corrupted_experiment, parameters=gasoil.parameters), cf.MultipleShooting(4)
    )
    assert result.success
    for n, value in clean.values.items():
        assert abs(result.values[n] - value) < clean.standard_errors[n]
    worst = str(result.diagnostics.outliers[0])
    assert worst.startswith(f"{name} ")
    assert f"t = {times[index]:g}" in worst


@cache
def without_deviations() -> cf.Problem:
    """JAK-STAT signalling, of whose standard deviations nothing is known."""
    benchmark_problem = cf.problems.load("stat5").problem
    (experiment,) = benchmark_problem.experiments
    data = {name: series[1] for name, series in experiment.data.items()}
    experiment_without_sigma = cf.Experiment(
        data,
        time=experiment.data["y1"][0],
        sigma=cf.unknown(),
        initial={"x1": cf.free(3.8, lower=0)},
        inputs=experiment.inputs,
    )
    return cf.Problem(benchmark_problem.model, experiment_without_sigma, parameters=benchmark_problem.parameters)


@cache
def independent_stat5() -> float:
    """Minimise -2 log L of JAK-STAT signalling by SciPy alone, sigmas at their most likely values."""
    (experiment,) = without_deviations().experiments
    times, y1, y2 = experiment.data["y1"][0], experiment.data["y1"][1].ravel(), experiment.data["y2"][1].ravel()
    activity = np.ravel(experiment.inputs["u"].values)

    def slope(t, x, k1, k2, tau, u0, u1, t0, t1):
        u = u0 + (u1 - u0) * (t - t0) / (t1 - t0)
        x1, x2, x3, _ = x[:4]
        q = x[4:]
        inflow, outflow = k1 * x1 * u, k2 * q[-1]
        chained = 8 / tau * (np.concatenate([[x3], q[:-1]]) - q)
        return np.concatenate([[outflow - inflow, inflow - x2**2, x2**2 - k2 * x3, k2 * x3 - outflow], chained])

    def neg2loglik(v):
        k1, k2, tau, start = np.exp(v)
        x = np.zeros(12)
        x[0] = start
        predictions = [(0.33 * (x[1] + x[2]), 0.26 * (x[0] + x[1] + x[2]))]
        for k in range(times.size - 1):
            piece = (activity[k], activity[k + 1], times[k], times[k + 1])
            solution = integrate.solve_ivp(
                slope, times[k : k + 2], x, "LSODA", args=(k1, k2, tau, *piece), rtol=1e-10, atol=1e-12
            )
            x = solution.y[:, -1]
            predictions.append((0.33 * (x[1] + x[2]), 0.26 * (x[0] + x[1] + x[2])))
        total = 0.0
        for prediction, value in zip(np.array(predictions).T, (y1, y2), strict=True):
            r = (prediction - value)[np.isfinite(value)]
            total += r.size * (np.log(2 * np.pi * np.mean(r**2)) + 1)
        return total

    begin = np.log([2.0, 0.13, 4.6, 3.75])
    return float(
        optimize.minimize(
            neg2loglik, begin, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9, "maxiter": 2000}
        ).fun
    )


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.label)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=lambda t: t.label)
def test_signalling_with_unknown_sigmas_is_that_of_an_independent_fit(transcription, solver):
    result = cf.fit(without_deviations(), transcription, solver)
    assert result.success
    assert result.neg2loglik == pytest.approx(independent_stat5(), abs=1e-6)


@pytest.mark.parametrize(
    ("transcription", "solver"),
    [
        pytest.param(t, s, id=f"{t.label}-{s.label}", marks=[] if s.label != "IPOPT" else pytest.mark.slow)
        for t in TRANSCRIPTIONS
        for s in SOLVERS
    ],
)
def test_signalling_with_unknown_sigmas_needs_no_more_iterations(transcription, solver):
    result = cf.fit(without_deviations(), transcription, solver)
    assert result.success
    assert result.neg2loglik == pytest.approx(-81.656526, abs=2e-6)
    assert result.iterations <= 2 * cf.fit(cf.problems.load("stat5").problem, transcription, solver).iterations
