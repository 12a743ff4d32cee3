"""Explicit steps where nothing is stiff: when they are taken and left, and that all else is as it is with ESDIRK."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import castfit as cf
from castfit.integrate import Integrator, IntegratorOptions
from castfit.integrate.esdirk import ESDIRK5, TSITOURAS5
from castfit.integrate.esdirk_binding import NativeModel, StepSizes, missing_integrator_reason
from castfit.model.model import Model, symbols
from tests.experiment.test_events import bounce, bouncing
from tests.integrate.test_esdirk import _frozen_slope, full_robertson, graph_of, hires, one, oregonator, robertson
from tests.integrate.test_integrator import identity_seeds, lotka_volterra

pytestmark = pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")

DEAR = 2.0
"""An ESDIRK step relative to an explicit one: what it costs at least, of small models (`castfit bench explicit`)."""


def van_der_pol(mu: float, end: float):
    x, y, m = symbols("x y mu")
    return Model({x: y, y: m * (1 - x**2) * y - x}, parameters=[m]), [2.0, 0.0], [mu], end, ()


TURNING = {
    **{f"van der Pol {mu:g}": van_der_pol(mu, max(20.0, 2 * mu)) for mu in (5.0, 20.0, 100.0, 1000.0)},
    "Robertson": full_robertson(),
    "HIRES": hires(),
    "Oregonator": oregonator(),
}


def integrated(case, tolerance: float, pair, grid=(1.0,), *, slopes: bool = False, watch: float = 0.1, replay=None):
    model, x0, p, end, z0 = case
    lanes = one(x0, np.array(p).reshape(1, -1), end, m=len(grid), z0=z0)
    control = StepSizes(tolerance, tolerance / 100, 100_000, watch=watch, replay=replay)
    directions = (*identity_seeds(lanes), None) if slopes else None
    native = NativeModel(graph_of(model), compiled=False)
    return native.integrate(lanes, np.array(grid), ESDIRK5, control, directions=directions, pair=pair)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8])
def test_nonstiff_model_is_integrated_by_explicit_steps(tolerance):
    case = lotka_volterra(), [0.4, 1.0], np.ones(4), 20.0, ()
    result = integrated(case, tolerance, TSITOURAS5, np.linspace(0.05, 1, 20), slopes=True)
    exact = integrated(case, 1e-12, None, np.linspace(0.05, 1, 20), slopes=True)
    steps, _, _, _, explicit = result.counts[0]
    assert explicit > 0.9 * steps
    assert np.abs(result.x - exact.x).max() < 30 * tolerance
    assert np.abs(result.dx - exact.dx).max() < 100 * tolerance * np.abs(exact.dx).max()


@pytest.mark.parametrize("slopes", [False, True])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-7])
@pytest.mark.parametrize("name", TURNING)
def test_model_turning_stiff_costs_no_more_than_esdirk(name, tolerance, slopes):
    case = TURNING[name]
    esdirk_result = integrated(case, tolerance, None, slopes=slopes)
    result = integrated(case, tolerance, TSITOURAS5, slopes=slopes)
    assert (esdirk_result.code[0], result.code[0]) == (0, 0)
    explicit = result.counts[0, 4]
    assert explicit < result.counts[0, 0]
    cost = result.counts[0, :2].sum() - (1 - 1 / DEAR) * explicit
    assert cost < 1.1 * esdirk_result.counts[0, :2].sum()
    error = np.abs(result.x[0, -1] - esdirk_result.x[0, -1]) / np.abs(esdirk_result.x[0, -1])
    assert error.max() < 300 * tolerance


@pytest.mark.parametrize(("mu", "some"), [(20.0, True), (1000.0, False)])
def test_a_fast_beginning_of_what_lasts_for_ever_is_left_to_esdirk(mu, some):
    """Explicit steps at mu = 1000 would be 700,000: those of the first layer only cost accuracy."""
    result = integrated(van_der_pol(mu, 2 * mu), 1e-6, TSITOURAS5, slopes=True)
    assert (result.counts[0, 4] > 0) == some
    if not some:
        np.testing.assert_array_equal(result.x, integrated(van_der_pol(mu, 2 * mu), 1e-6, None, slopes=True).x)


def test_sensitivities_are_those_of_the_steps_taken_by_both():
    case = van_der_pol(20.0, 20.0)
    model, x0, p, end, _ = case
    grid = np.linspace(0.1, 1, 5)
    original_result = integrated(case, 1e-5, TSITOURAS5, grid, watch=0.0)
    assert {*np.sign(original_result.steps)} == {-1.0, 1.0}
    assert (original_result.steps < 0).sum() == original_result.counts[0, 4]
    native, lanes = NativeModel(graph_of(model), compiled=False), one(x0, np.array(p).reshape(1, -1), end, m=5)
    control = StepSizes(1e-5, 1e-7, 10_000, newton=1e-14, replay=original_result.steps)
    seeds = (np.zeros((1, 2, 1)), np.ones((1, 1, 1)), None)
    replayed_result = native.integrate(lanes, grid, ESDIRK5, control, directions=seeds, pair=TSITOURAS5)

    class CombinedMethod:
        def integrate(self, *arguments):
            return native.integrate(*arguments, pair=TSITOURAS5)

    slope = _frozen_slope(
        CombinedMethod(), lanes, grid, ESDIRK5, original_result.steps, lambda lane, d: replace(lane, p=lane.p + d)
    )
    np.testing.assert_allclose(replayed_result.dx[..., 0], slope, rtol=0, atol=1e-7 * np.abs(slope).max())


@pytest.mark.parametrize("watch", [True, False])
def test_steps_of_both_that_were_kept_are_followed(watch):
    model, x0, p, end, _ = van_der_pol(20.0, 20.0)
    lanes = one(x0, np.array(p).reshape(1, -1), end, m=4)
    integrator = Integrator(model.system, np.linspace(0.25, 1, 4), IntegratorOptions(watch_sensitivities=watch))
    values = integrator.values(lanes)
    followed_sensitivities = integrator.sensitivities(lanes, values, *identity_seeds(lanes))
    recomputed_sensitivities = integrator.sensitivities(
        lanes, replace(values, sensitivity_cache=None), *identity_seeds(lanes)
    )
    np.testing.assert_array_equal(followed_sensitivities.dx, recomputed_sensitivities.dx)
    assert followed_sensitivities.steps == recomputed_sensitivities.steps
    assert 0 < followed_sensitivities.steps[1] < followed_sensitivities.steps[0]


def test_adjoint_states_go_back_over_steps_of_both():
    model, x0, p, end, _ = van_der_pol(20.0, 20.0)
    lanes = one(x0, np.array(p).reshape(1, -1), end, m=4)
    integrator = Integrator(model.system, np.linspace(0.25, 1, 4), IntegratorOptions(watch_sensitivities=False))
    values, seeds = integrator.values(lanes), np.random.default_rng(0).standard_normal((1, 2, 4, 2))
    dx0, dp = identity_seeds(lanes)
    slopes = integrator.sensitivities(lanes, values, dx0, dp)
    assert 0 < slopes.steps[1] < slopes.steps[0]
    forward_sums = np.einsum("lami,lmid->lad", seeds, slopes.dx)
    for states in (values, replace(values, sensitivity_cache=None)):
        bars = integrator.adjoint(lanes, states, seeds)
        backward_sums = np.einsum("lai,lid->lad", bars.x0, dx0) + np.einsum("lap,lpd->lad", bars.p, dp)
        np.testing.assert_allclose(backward_sums, forward_sums, rtol=1e-9, atol=1e-12 * np.abs(forward_sums).max())


def test_a_dae_has_no_explicit_steps():
    lanes = one([1.0, 0.0], [0.04, 3e7, 1e4], 40.0, z0=(0.0,))
    integrators = [
        Integrator(robertson().system, [1.0], IntegratorOptions(method)) for method in ("explicit", "esdirk")
    ]
    np.testing.assert_array_equal(integrators[0].values(lanes).x, integrators[1].values(lanes).x)


def test_a_pole_is_reported_as_by_esdirk():
    lanes = one([0.4, 1.0], [0.5, 0.5, 0.5, -0.2], 4.0)
    failures = [Integrator(lotka_volterra().system, [1.0], IntegratorOptions(m)).values(lanes).failures[0]
            for m in ("explicit", "esdirk")]  # fmt: skip
    assert failures[0].cause == failures[1].cause == "step_size"
    assert "at t = 3.3064" in failures[0].detail


def test_explicit_steps_undefined_rates_use_esdirk():
    # The rates of a root are not defined below 0, where stages of long explicit steps come out.
    x, k = symbols("x k")
    model = Model({x: -k * cf.sqrt(x) * x}, parameters=[k])
    lanes = one([1.0], [[1e3]], 10.0)
    exact = (1 + 0.5 * 1e3 * 10.0) ** -2.0  # of x' = -k x^1.5
    values = Integrator(model.system, [1.0], IntegratorOptions("explicit")).values(lanes)
    assert values.x[0, -1, 0] == pytest.approx(exact, rel=1e-6)


def test_events_are_found_within_explicit_steps():
    problem, truth = bouncing(), {"g": 9.81, "r": 0.7}
    simulation = cf.simulate(problem, truth, integrator=IntegratorOptions("explicit", 1e-10, 1e-12))["experiment 1"]
    exact = bounce(problem.conditions[0].points.times, *truth.values())
    np.testing.assert_allclose([simulation["h"], simulation["v"]], exact, atol=1e-8)


def test_a_fit_says_how_it_was_integrated():
    problem = cf.problems.load("lotka_volterra").problem
    message = cf.fit(problem, cf.SingleShooting()).message
    assert "integrator steps were explicit; no stiffness was detected in them." in message
    assert "explicit" not in cf.fit(problem, cf.SingleShooting(IntegratorOptions("esdirk"))).message
