"""Unknown standard deviations are eliminated: priors weigh the same in every unit, and exact data end cleanly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

import castfit as cf
from castfit.solve.staged import ChainValues, Specification, build_layout, rows_in_units
from castfit.transcribe.transcribed_problem import MIN_RELATIVE_SIGMA, profile_sigma, resolution
from tests.builders import everything, lotka_volterra

TRANSCRIPTIONS = [cf.SingleShooting(), cf.MultipleShooting(5), cf.Collocation()]
SOLVERS = [cf.GaussNewton(), cf.GaussNewton("exact_penalty"), cf.GaussNewton("levenberg_marquardt"), cf.Ipopt()]
TIMES = np.linspace(0, 4, 15)


PRIOR = cf.Normal(0.6, 0.02)


def decay(unit: float, *, prior: cf.Normal | None = PRIOR, noise: float = 0.1, sigma=None) -> cf.Problem:
    """x' = -k x from 1, observed as s x with s = 3."""
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x})
    y = 3 * np.exp(-0.5 * TIMES) + noise * np.random.default_rng(0).standard_normal(TIMES.size)
    experiment = cf.Experiment({"y": unit * y}, time=TIMES, initial={"x": 1.0}, sigma=sigma)
    parameters = {"k": cf.Parameter(0.3, lower=0, upper=5, prior=prior), "s": cf.Parameter(2.0 * unit)}
    return cf.Problem(model, experiment, parameters=parameters)


def label(part) -> str:
    return part.label


@pytest.mark.parametrize("solver", SOLVERS, ids=label)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
def test_a_prior_weighs_the_same_in_every_unit_of_the_data(transcription, solver):
    result, scaled_result = (cf.fit(decay(unit), transcription, solver) for unit in (1.0, 1000.0))
    assert result.success
    assert scaled_result.success
    assert scaled_result.parameters["k"] == pytest.approx(result.parameters["k"], rel=1e-9)
    assert scaled_result.parameters["s"] == pytest.approx(1000 * result.parameters["s"], rel=1e-9)
    assert scaled_result.standard_errors["k"] == pytest.approx(result.standard_errors["k"], rel=1e-9)
    assert scaled_result.noise == pytest.approx(1000 * result.noise, rel=1e-9)


def test_the_posterior_is_the_minimum_of_the_profiled_likelihood():
    y, n = decay(1.0).conditions[0].points.values[:, 0], TIMES.size

    def objective(point: np.ndarray) -> float:
        sse = float(np.sum((point[1] * np.exp(-point[0] * TIMES) - y) ** 2))
        return 0.5 * n * np.log(sse / n) + 0.5 * ((point[0] - 0.6) / 0.02) ** 2

    best = optimize.minimize(objective, [0.5, 3.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    for transcription in TRANSCRIPTIONS:
        for solver in (cf.GaussNewton(), cf.Ipopt()):
            result = cf.fit(decay(1.0), transcription, solver)
            assert result.cost == pytest.approx(best.fun, abs=1e-5)
            np.testing.assert_allclose(list(result.parameters.values()), best.x, rtol=1e-5)
            assert result.chi2 == pytest.approx(result.residuals @ result.residuals)


def test_standard_errors_without_priors_are_those_of_curve_fit():
    y = decay(1.0).conditions[0].points.values[:, 0]
    _, covariance = optimize.curve_fit(lambda t, k, s: s * np.exp(-k * t), TIMES, y, [0.5, 3.0], xtol=1e-13)
    result = cf.fit(decay(1.0, prior=None))
    np.testing.assert_allclose(result.covariance, covariance, rtol=1e-5)
    assert result.noise == pytest.approx(np.sqrt(result.chi2 / 13))


def test_given_sigmas_of_which_only_the_ratios_are_known_are_no_sigmas_for_a_prior():
    unknown = cf.fit(decay(1.0))
    for sigma in (1e-3, 1e3):
        result = cf.fit(decay(1.0, sigma=sigma), absolute_sigma=False)
        assert result.parameters["k"] == pytest.approx(unknown.parameters["k"], rel=1e-7)
        assert result.standard_errors["k"] == pytest.approx(unknown.standard_errors["k"], rel=1e-6)
        assert result.noise * sigma == pytest.approx(unknown.noise, rel=1e-6)


@pytest.mark.parametrize("prior", [None, PRIOR], ids=["free", "prior"])
@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.GaussNewton("exact_penalty"), cf.Ipopt()], ids=label)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
def test_data_that_are_reproduced_exactly_end_cleanly(transcription, solver, prior):
    result = cf.fit(decay(1.0, noise=0.0, prior=prior), transcription, solver)
    assert result.success, result.message
    assert result.parameters["k"] == pytest.approx(0.5, rel=1e-6)
    assert np.isfinite(result.cost)
    assert np.isfinite(list(result.standard_errors.values())).all()


@pytest.mark.parametrize("transcription", [cf.SingleShooting(), cf.MultipleShooting(3), cf.Collocation(elements=3)])
def test_rows_have_the_gradient_of_the_cost(transcription):
    """J^T r = grad cost, on a DAE with priors and several experiments."""
    problem = everything().posed.with_absolute_sigma(absolute_sigma=False)
    staged = transcription.transcribe(problem, problem.guess)
    assert staged.layout.n_groups == 1
    rng = np.random.default_rng(1)
    v = staged.start + 0.02 * staged.scale * rng.standard_normal(staged.layout.n_v)
    direction = staged.scale * rng.standard_normal(staged.layout.n_v)
    linearization, h = staged.linearize(v), 1e-4
    slope = linearization.prior @ linearization.prior_jacobian @ direction[: staged.layout.n_theta]
    for chain, values, j in zip(staged.layout.chains, linearization.values, linearization.jacobians, strict=True):
        q, s, w = chain.local(direction)
        jacobian_product = j.R_q @ q + np.einsum("krs,ks->kr", j.R_s, s) + np.einsum("krw,kw->kr", j.R_w, w)
        slope += np.vdot(values.r, jacobian_product)
    ahead, behind = (staged.evaluate(v + sign * h * direction).cost for sign in (1, -1))
    assert slope == pytest.approx((ahead - behind) / (2 * h), rel=1e-5)


def test_the_cost_is_smooth_where_the_floor_begins_to_hold():
    """Residuals that shrink: the cost falls with the slope of its rows, above the floor, at it and below it."""
    mask, none = np.ones((1, 3), dtype=bool), np.zeros((1, 0))
    group = np.zeros((1, 3), dtype=np.intp)
    chain = Specification("e", np.array([0]), 0, 0, mask, none, none, np.array([0.0, 1.0]), (), group=group)
    layout, floor, direction = build_layout(("k",), (chain,)), 1e-10, np.array([[1.0, -2.0, 3.0]])
    assert resolution(layout, (np.full((1, 3), 7.0),)) == pytest.approx(7 * MIN_RELATIVE_SIGMA)
    sizes = np.geomspace(1e-13, 1e-7, 200)
    costs, slopes = [], []
    for size in sizes:
        values = ChainValues(size * direction, np.zeros(0), none, np.zeros((1, 0)), none)
        profile = profile_sigma(layout, (values,), np.array([floor]), np.array([np.inf]))
        (rows,) = (chain_values.r for chain_values in profile.values)
        costs.append(0.5 * float(np.vdot(rows, rows)) + profile.excess)
        slopes.append(float(np.vdot(rows, direction / profile.sigma)))
        assert profile.sigma[0] == pytest.approx(max(floor, size * np.sqrt(14 / 3)))
    rise = 0.5 * (np.array(slopes[1:]) + slopes[:-1]) * np.diff(sizes)
    np.testing.assert_allclose(np.diff(costs), rise, rtol=0.03)


def test_the_hessian_of_ipopt_sees_what_the_profiled_sigma_takes_from_the_curvature():
    """Without that term the second solve converges linearly, by 0.25 per iteration."""
    result = cf.fit(decay(1.0), cf.Collocation(), cf.Ipopt())
    result_without_prior = cf.fit(decay(1.0, prior=None), cf.Collocation(), cf.Ipopt())
    assert result.iterations <= result_without_prior.iterations + 12


def test_fit_reports_an_active_floor_of_sigma():
    """x' = 0 from a free value: the model is exact without any integration error."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: 0 * k}, parameters=[k], outputs={"y": x + k})
    exact = cf.Experiment({"y": [2.0, 2.0, 2.0]}, time=[0.0, 1.0, 2.0], initial={"x": 1.0})
    result = cf.fit(cf.Problem(model, exact, parameters={"k": 0.5}), cf.SingleShooting())
    assert result.success
    assert "fitted exactly (within rounding)" in result.message
    assert "fitted exactly" not in cf.fit(decay(1.0)).message


def test_rows_in_units_of_no_sigma_are_residuals_as_measured():
    problem = lotka_volterra()
    staged = cf.SingleShooting().transcribe(problem, problem.guess)
    evaluation = staged.evaluate(staged.start)
    (r,) = rows_in_units(staged.layout, evaluation)
    assert evaluation.sigma[0] == pytest.approx(np.sqrt(np.mean(r**2)))
    np.testing.assert_allclose(evaluation.values[0].r * evaluation.sigma[0], r)
    assert evaluation.half_square == pytest.approx(10.0)  # half of 20 data
