"""Laplace priors and the lasso: what ends at the kink ends there exactly, and the rest where SciPy says."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from scipy import optimize, stats

import castfit as cf
from castfit.densities.priors import LaplacePrior, Normal, Truncated
from castfit.result.identifiability import AT_KINK
from tests.builders import refused
from tests.densities.test_priors import DATA, TIMES, decay, shown

FITS = [(t, s) for t in ("single", "multiple", "collocation") for s in (cf.GaussNewton(tolerance=1e-13), cf.Ipopt())]


def best_k(mean: float, scale: float) -> float:
    """Return the most probable k of `decay`, on either side of the kink or at it."""

    def cost(k: float) -> float:
        x = np.exp(-k * TIMES)
        return 0.5 * float(np.sum((x * (x @ DATA) / (x @ x) - DATA) ** 2)) / 0.01 + abs(k - mean) / scale

    sides = [
        optimize.minimize_scalar(cost, bounds=b, method="bounded", options={"xatol": 1e-11})
        for b in ((0.3, mean), (mean, 0.9))
    ]
    best = min(sides, key=lambda optimum: optimum.fun)
    return best.x if best.fun < cost(mean) - 1e-9 else mean


@pytest.mark.parametrize(("transcription", "solver"), FITS, ids=shown)
@pytest.mark.parametrize(("mean", "scale"), [(0.6, 0.02), (0.7, 0.1), (0.52, 0.01), (0.45, 1e-4), (0.5, 1e-6)])
def test_a_quantity_ends_at_the_kink_or_off_it(mean, scale, transcription, solver):
    expected = best_k(mean, scale)
    result = cf.fit(decay(LaplacePrior(mean, scale)), transcription, solver)
    assert result.success, result.message
    assert result.parameters["k"] == pytest.approx(expected, rel=1e-6)
    assert (result.parameters["k"] == mean) == (expected == mean)
    density = stats.laplace(mean, scale).logpdf(result.parameters["k"])
    assert result.neg2loglik == pytest.approx(
        float(result.residuals @ result.residuals) + TIMES.size * np.log(2 * np.pi * 0.01) - 2 * density, abs=1e-8
    )
    assert result.chi2 == pytest.approx(2 * result.cost)


@pytest.mark.parametrize(("mean", "scale"), [(0.6, 0.02), (0.5, 0.001)])
def test_a_fit_that_is_stopped_tells_the_prior_with_its_kink(mean, scale):
    """The search begins with priors that are rounded off."""
    result = cf.fit(decay(LaplacePrior(mean, scale)), "single", callback=lambda iteration: iteration.iteration >= 1)
    assert result.status is cf.Status.STOPPED_BY_CALLBACK
    density = stats.laplace(mean, scale).logpdf(result.parameters["k"])
    assert result.neg2logprior == pytest.approx(-2 * density, abs=1e-8)


def test_a_quantity_at_its_kink_is_said_to_be_there(tmp_path):
    result = cf.fit(decay(LaplacePrior(0.5, 0.001)))
    assert "At the kink of the prior: k." in result.message
    assert result.active == {"k": "kink"}
    assert result.identifiability["k"].kind == AT_KINK
    assert "at the kink of its prior, 0.5" in str(result)
    assert np.isnan(result.standard_errors["k"])
    assert result.dof == TIMES.size - 1
    result.save(tmp_path / "fit.json")
    assert cf.Result.load(tmp_path / "fit.json").active == {"k": "kink"}


def test_off_its_kink_a_prior_moves_but_does_not_inform():
    result, result_without_prior = cf.fit(decay(LaplacePrior(0.7, 0.1))), cf.fit(decay())
    assert "Off it: k." in result.message
    assert result.parameters["k"] > result_without_prior.parameters["k"] + 0.001
    assert result.standard_errors["k"] == pytest.approx(result_without_prior.standard_errors["k"], rel=0.01)
    assert result.dof == result_without_prior.dof
    # Nor is its cost a misfit of the data.
    assert result.goodness.p_value == pytest.approx(stats.chi2.sf(result.residuals @ result.residuals, result.dof))


@pytest.mark.parametrize("solver", [cf.GaussNewton(tolerance=1e-13), cf.Ipopt()], ids=shown)
@pytest.mark.parametrize("mean", [-0.69, -0.5])
def test_kinks_of_logarithms_whatever_the_scale_of_the_search(mean, solver):
    prior = LaplacePrior(mean, 0.01, on="log")
    linear_result, log_result = (cf.fit(decay(prior, scale=scale), "single", solver) for scale in ("linear", "log"))
    assert linear_result.cost == pytest.approx(log_result.cost, rel=1e-8)
    assert linear_result.parameters["k"] == pytest.approx(log_result.parameters["k"], rel=1e-6)
    assert (linear_result.active == {"k": "kink"}) == (mean == -0.69)


@pytest.mark.parametrize(
    ("scale", "solver"),
    [
        pytest.param(0.001, cf.GaussNewton(tolerance=1e-13), id="0.001-gauss_newton"),
        pytest.param(0.02, cf.GaussNewton(tolerance=1e-13), id="0.02-gauss_newton"),
        pytest.param(0.001, cf.Ipopt(), id="0.001-ipopt"),
        pytest.param(0.02, cf.Ipopt(), id="0.02-ipopt", marks=pytest.mark.slow),  # half a minute
    ],
)
def test_kinks_weigh_the_same_in_every_unit_of_data_with_unknown_sigma(scale, solver):
    result, scaled_result = (
        cf.fit(decay(LaplacePrior(0.53, scale), unit=u, sigma=None), "multiple", solver) for u in (1.0, 1000.0)
    )
    assert result.parameters["k"] == pytest.approx(scaled_result.parameters["k"], rel=1e-7)
    assert result.active == scaled_result.active


# -------------------------------------------------------------------------------------- several kinks: the lasso


def terms(t: np.ndarray) -> np.ndarray:
    """Return what multiplies a1 ... a4 in x(t) = integral of a1 + a2 t + a3 t^2 + a4 cos 3 t."""
    return np.array([t, t**2 / 2, t**3 / 3, np.sin(3 * t) / 3]).T


def regression(seed: int) -> tuple[np.ndarray, np.ndarray]:
    t = np.linspace(0.2, 2.0, 12)
    return t, terms(t) @ [1.0, 0.0, 0.05, 0.4] + 0.1 * np.random.default_rng(seed).standard_normal(t.size)


def selection(seed: int, **changes) -> cf.Problem:
    x, t = cf.symbols("x t")
    a = cf.symbols("a1 a2 a3 a4")
    rate = a[0] + a[1] * t + a[2] * t**2 + a[3] * cf.cos(3 * t)
    times, y = regression(seed)
    data = cf.Experiment({"x": y}, time=times, sigma=0.1, initial={"x": 0.0})
    parameters = {f"a{i + 1}": 0.3 for i in range(4)}
    return cf.Problem(cf.Model({x: rate}, parameters=a, time=t), data, **{"parameters": parameters, **changes})


def lasso_of(seed: int, weight: float) -> np.ndarray:
    """Return the lasso's solution by trying all signs: the one that satisfies its conditions."""
    t, y = regression(seed)
    E, r = terms(t) / 0.1, y / 0.1
    for signs in itertools.product((0, -1, 1), repeat=4):
        s = np.array(signs, dtype=float)
        free = s != 0
        a = np.zeros(4)
        if free.any():
            a[free] = np.linalg.solve(E[:, free].T @ E[:, free], E[:, free].T @ r - weight * s[free])
        slope = E.T @ (E @ a - r)
        if (a[free] * s[free] > 0).all() and (np.abs(slope[~free]) <= weight).all():
            return a
    raise AssertionError


@pytest.mark.parametrize(("transcription", "solver"), FITS, ids=shown)
def test_the_lasso_of_a_linear_model_is_that_of_all_signs(transcription, solver):
    expected = lasso_of(0, 20.0)
    assert 0 < np.count_nonzero(expected) < 4
    result = cf.fit(
        selection(0, priors=cf.lasso([f"a{i}" for i in range(1, 5)], 20.0, towards=0)), transcription, solver
    )
    assert result.success
    values = np.array(list(result.parameters.values()))
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-12)
    assert (values[expected == 0] == 0.0).all()


@pytest.mark.parametrize("weight", [0.1, 3.0, 60.0, 1000.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_lasso_at_other_weights(weight, seed):
    expected = lasso_of(seed, weight)
    problem = selection(seed, priors=cf.lasso([f"a{i}" for i in range(1, 5)], weight, towards=0))
    result = cf.fit(pickle.loads(pickle.dumps(problem)), "single", cf.GaussNewton(tolerance=1e-14))
    np.testing.assert_allclose(list(result.parameters.values()), expected, rtol=1e-6, atol=1e-7)
    zero = [name for name, value in result.parameters.items() if value == 0.0]
    assert zero == [f"a{i + 1}" for i in range(4) if expected[i] == 0.0]


def three(values=(1.0, 1.02, 1.15), *, priors=None, scale="linear", sigma=0.1) -> cf.Problem:
    """x' = k with a k of its own in each of three experiments."""
    x, k = cf.symbols("x k")
    t = np.linspace(0.5, 3.0, 6)
    experiments = [
        cf.Experiment({"x": v * t}, time=t, sigma=sigma, initial={"x": 0.0}, name=name)
        for name, v in zip("abc", values, strict=True)
    ]
    local = {"k": cf.Parameter(1.1, local=True, scale=scale)}
    return cf.Problem(cf.Model({x: k}, parameters=[k]), experiments, parameters=local, priors=priors)


@pytest.mark.parametrize(("transcription", "solver"), FITS, ids=shown)
def test_local_parameters_are_equal_unless_the_data_object(transcription, solver):
    """Both a and b take the mean of their data, less c's pull; c is off by weight / information."""
    t = np.linspace(0.5, 3.0, 6)
    information, weight = float(t @ t) / 0.01, 20.0
    result = cf.fit(three(priors=cf.lasso("k", weight, towards="equal")), transcription, solver)
    a, b, c = result.parameters.values()
    assert b == pytest.approx(a, rel=1e-10)
    assert a == pytest.approx(1.01 + weight / (2 * information), rel=1e-6)
    assert c == pytest.approx(1.15 - weight / information, rel=1e-6)
    assert "At the kink of the prior: k[b] - k[a]. Off it: k[c] - k[a]." in result.message
    assert result.standard_errors["k[a]"] == pytest.approx((2 * information) ** -0.5, rel=1e-4)
    assert result.standard_errors["k[b]"] == pytest.approx((2 * information) ** -0.5, rel=1e-4)
    assert result.dof == 16


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_ratios_of_local_parameters(scale):
    result = cf.fit(three(priors=cf.lasso("k", 20.0, towards="equal", on="log"), scale=scale), "single", "ipopt")
    a, b, c = result.parameters.values()
    assert b == pytest.approx(a, rel=1e-9)
    assert c > 1.1 * a
    assert "At the kink of the prior: k[b] / k[a]. Off it: k[c] / k[a]." in result.message


def test_kinks_of_expressions():
    k1, k2 = cf.symbols("a1 a2")
    result = cf.fit(selection(0, priors={k1 + k2: LaplacePrior(1.1, 1e-3)}), "single", cf.GaussNewton(tolerance=1e-13))
    assert sum(list(result.parameters.values())[:2]) == pytest.approx(1.1, rel=1e-10)
    t, y = regression(0)
    E = terms(t)
    E[:, 1] -= E[:, 0]  # a1 = 1.1 - a2
    expected = np.linalg.lstsq(E[:, 1:], y - 1.1 * t, rcond=None)[0]
    np.testing.assert_allclose(list(result.parameters.values())[1:], expected, rtol=1e-6)
    assert "At the kink of the prior: (a1+a2)." in result.message


def test_a_bound_at_the_kink_leaves_one_side():
    """With a >= 0 the lasso towards 0 is an exponential prior."""
    weights = {f"a{i}": cf.Parameter(0.3, lower=0.0) for i in range(1, 5)}
    result = cf.fit(selection(0, parameters=weights, priors=cf.lasso("a2", 20.0, towards=0)), "single")
    gamma_parameters = {**weights, "a2": cf.Parameter(0.3, prior=cf.priors.Gamma(1, 1 / 20.0))}
    expected = cf.fit(selection(0, parameters={**weights, **gamma_parameters}), "single")
    np.testing.assert_allclose(
        list(result.parameters.values()), list(expected.parameters.values()), rtol=1e-6, atol=1e-12
    )
    assert result.active == expected.active


def test_a_truncated_kink():
    result = cf.fit(decay(Truncated(LaplacePrior(0.52, 0.001), 0.4, 0.8)))
    assert result.parameters["k"] == 0.52
    mass = stats.laplace(0.52, 0.001).cdf([0.4, 0.8])
    untruncated_result = cf.fit(decay(LaplacePrior(0.52, 0.001)))
    assert result.neg2loglik == pytest.approx(untruncated_result.neg2loglik + 2 * np.log(mass[1] - mass[0]), abs=1e-6)


def test_everything_at_its_kink_and_other_priors_besides():
    priors = [cf.lasso([f"a{i}" for i in range(1, 5)], 1e5, towards=0), {"a1": Normal(1.0, 0.1)}]
    result = cf.fit(selection(0, priors=priors), "single")
    assert result.success
    assert list(result.parameters.values()) == [0.0] * 4
    assert result.dof == 13
    assert result.problem.posed.every_prior[0].prior == Normal(1.0, 0.1)


@pytest.mark.parametrize("noise", [cf.StudentT(0.1), cf.Gaussian(cf.unknown(guess=0.2))], ids=str)
def test_the_lasso_beside_other_noise(noise):
    """The same from both solvers, a point at which no quantity off its kink moves the density and what is zero is."""
    times, y = regression(0)
    data = cf.Experiment({"x": y}, time=times, noise=noise, initial={"x": 0.0})
    problem = selection(0, priors=cf.lasso([f"a{i}" for i in range(1, 5)], 20.0, towards=0))
    problem = problem.replace(experiments=[data])
    gauss_newton_result, ipopt_result = (
        cf.fit(problem, "single", solver) for solver in (cf.GaussNewton(tolerance=1e-12), cf.Ipopt())
    )
    assert gauss_newton_result.cost == pytest.approx(ipopt_result.cost, abs=1e-6)
    assert [n for n, v in gauss_newton_result.parameters.items() if v == 0] == [
        n for n, v in ipopt_result.parameters.items() if v == 0
    ]
    assert "At the kink" in gauss_newton_result.message


def test_an_interrupted_fit_has_the_cost_of_the_real_prior():
    problem = selection(0, priors=cf.lasso("a2", 20.0, towards=0))
    result = cf.fit(problem, "single", callback=lambda iteration: iteration.iteration == 0)
    assert not result.success
    expected = 0.5 * float(result.residuals @ result.residuals) + 20.0 * abs(result.parameters["a2"])
    assert result.cost == pytest.approx(expected)
    assert result.problem is problem


def test_multistart_knows_kinks():
    bounded = {f"a{i}": cf.Parameter(0.3, bounds=(-2.0, 2.0)) for i in range(1, 5)}
    problem = selection(0, parameters=bounded, priors=cf.lasso(list(bounded), 20.0, towards=0))
    multistart_result = cf.multistart(problem, "single", starts=4, rng=0)
    np.testing.assert_allclose(list(multistart_result.best.values.values()), lasso_of(0, 20.0), rtol=1e-4, atol=1e-12)
    assert len(multistart_result.optima) == 1


def test_laplace_priors_that_make_no_sense_are_refused():
    with refused("give Laplace(mean, scale), scale positive"):
        decay(LaplacePrior(0.5, 0.0))
    with refused("weight is 0"):
        cf.lasso("k", 0)
    with refused("'k' has one value only"):
        decay(priors=cf.lasso("k", 1.0, towards="equal"))
