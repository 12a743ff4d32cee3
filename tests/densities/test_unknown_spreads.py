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


def sigmas(found: cf.Result) -> dict[str, tuple[float, float]]:
    """Return the sigmas and their standard errors, whether they were eliminated or estimated."""
    own = {n: (found.values[n], found.standard_errors[n]) for n in found.values if n.startswith("sigma(")}
    return own | {n: (s, found.sigma_errors[n]) for n, s in found.sigmas.items()}


@pytest.mark.parametrize("prior", [None, cf.Normal(1.1, 0.02)], ids=["free", "prior"])
@pytest.mark.parametrize("names", [("", ""), ("s", "s")], ids=["two groups", "one group"])
def test_eliminated_and_estimated_sigmas_agree(names, prior):
    eliminated = cf.fit(problem(*(cf.unknown(n) for n in names), prior=prior), cf.SingleShooting(), EXACT)
    estimated = cf.fit(problem(*(cf.unknown(n, guess=1.0) for n in names), prior=prior), cf.SingleShooting(), EXACT)
    assert estimated.neg2loglik == pytest.approx(eliminated.neg2loglik, abs=1e-7)
    for name, value in eliminated.values.items():
        assert estimated.values[name] == pytest.approx(value, rel=1e-6)
        assert estimated.standard_errors[name] == pytest.approx(eliminated.standard_errors[name], rel=1e-4)
    there = sigmas(estimated)
    for name, (value, error) in sigmas(eliminated).items():
        assert there[name] == pytest.approx((value, error), rel=1e-4)


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=lambda t: t.label)
def test_it_does_not_matter_where_sigma_begins(transcription):
    found = [
        cf.fit(problem(cf.unknown(guess=1000 * g), cf.unknown(guess=g)), transcription) for g in (1e-6, 1e-2, 1.0, 1e6)
    ]
    for result in found[1:]:
        assert result.neg2loglik == pytest.approx(found[0].neg2loglik, abs=1e-7)
        assert result.values == pytest.approx(found[0].values, rel=1e-6)
    iterations = [result.iterations for result in found]
    assert max(iterations) <= 2 * min(iterations)


@pytest.mark.parametrize("unknown", [cf.unknown(), cf.unknown(guess=0.1)], ids=["eliminated", "estimated"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.label)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS[:2], ids=lambda t: t.label)
def test_an_output_that_is_fitted_exactly_ends_and_is_told(transcription, solver, unknown):
    found = cf.fit(problem(unknown, unknown, noise=0.0), transcription, solver)
    assert found.success, found.message
    assert "data of big are reproduced" in found.message
    assert np.isfinite(found.neg2loglik)
    assert found.values["k1"] == pytest.approx(1.0, rel=1e-6)
    assert np.isfinite([found.standard_errors[n] for n in ("k1", "k2")]).all()
    noisy = cf.fit(problem(unknown, unknown), transcription, solver)
    assert "reproduced" not in noisy.message


@pytest.mark.parametrize("known", [True, False], ids=["known sigma", "unknown sigma"])
@pytest.mark.parametrize("kind", [cf.Huber, cf.StudentT, cf.SoftL1], ids=lambda kind: kind.__name__)
def test_an_outlier_of_20_sigma_is_named_and_moves_little(kind, known):
    gasoil = cf.problems.load("gasoil").problem
    (experiment,) = gasoil.experiments
    clean = cf.fit(gasoil, cf.MultipleShooting(4))
    name = next(iter(experiment.data))
    times = experiment.data[name][0]
    values = {n: series[1].copy() for n, series in experiment.data.items()}
    at = times.size // 3
    values[name][at] += 20 * clean.noise
    noise = kind(clean.noise) if known else kind()
    again = cf.Experiment(values, time=times, noise=noise, initial=experiment.initial)
    found = cf.fit(cf.Problem(gasoil.model, again, parameters=gasoil.parameters), cf.MultipleShooting(4))
    assert found.success
    for n, value in clean.values.items():
        assert abs(found.values[n] - value) < clean.standard_errors[n]
    worst = str(found.diagnostics.outliers[0])
    assert worst.startswith(f"{name} ")
    assert f"t = {times[at]:g}" in worst


@cache
def without_deviations() -> cf.Problem:
    """JAK-STAT signalling, of whose standard deviations nothing is known."""
    given = cf.problems.load("stat5").problem
    (of,) = given.experiments
    data = {name: series[1] for name, series in of.data.items()}
    unknown = cf.Experiment(
        data, time=of.data["y1"][0], sigma=cf.unknown(), initial={"x1": cf.free(3.8, lower=0)}, inputs=of.inputs
    )
    return cf.Problem(given.model, unknown, parameters=given.parameters)


@cache
def independent_stat5() -> float:
    """Minimise -2 log L of JAK-STAT signalling by SciPy alone, sigmas at their most likely values."""
    (of,) = without_deviations().experiments
    times, y1, y2 = of.data["y1"][0], of.data["y1"][1].ravel(), of.data["y2"][1].ravel()
    activity = np.ravel(of.inputs["u"].values)

    def slope(t, x, k1, k2, tau, u0, u1, t0, t1):
        u = u0 + (u1 - u0) * (t - t0) / (t1 - t0)
        x1, x2, x3, _ = x[:4]
        q = x[4:]
        into, out = k1 * x1 * u, k2 * q[-1]
        chained = 8 / tau * (np.concatenate([[x3], q[:-1]]) - q)
        return np.concatenate([[out - into, into - x2**2, x2**2 - k2 * x3, k2 * x3 - out], chained])

    def neg2loglik(v):
        k1, k2, tau, start = np.exp(v)
        x = np.zeros(12)
        x[0] = start
        seen = [(0.33 * (x[1] + x[2]), 0.26 * (x[0] + x[1] + x[2]))]
        for k in range(times.size - 1):
            piece = (activity[k], activity[k + 1], times[k], times[k + 1])
            found = integrate.solve_ivp(
                slope, times[k : k + 2], x, "LSODA", args=(k1, k2, tau, *piece), rtol=1e-10, atol=1e-12
            )
            x = found.y[:, -1]
            seen.append((0.33 * (x[1] + x[2]), 0.26 * (x[0] + x[1] + x[2])))
        total = 0.0
        for prediction, value in zip(np.array(seen).T, (y1, y2), strict=True):
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
    found = cf.fit(without_deviations(), transcription, solver)
    assert found.success
    assert found.neg2loglik == pytest.approx(independent_stat5(), abs=1e-6)


@pytest.mark.parametrize(
    ("transcription", "solver"),
    [
        pytest.param(t, s, id=f"{t.label}-{s.label}", marks=[] if s.label != "IPOPT" else pytest.mark.slow)
        for t in TRANSCRIPTIONS
        for s in SOLVERS
    ],
)
def test_signalling_with_unknown_sigmas_needs_no_more_iterations(transcription, solver):
    found = cf.fit(without_deviations(), transcription, solver)
    assert found.success
    assert found.neg2loglik == pytest.approx(-81.656526, abs=2e-6)
    assert found.iterations <= 2 * cf.fit(cf.problems.load("stat5").problem, transcription, solver).iterations
