"""DAEs with kinked inputs and steep equations, and stiff starts: IDAS converges, or Rosenbrock takes over."""

from __future__ import annotations

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest

import castfit as cf
from castfit.integrate import Integrator, IntegratorOptions
from castfit.model.model import Model, symbols
from tests.crossed import crossed
from tests.integrate.test_integrator import everything, lotka_volterra, make_lanes

IDAS = cf.IntegratorOptions(method="idas")


def kinked(kind: str) -> cf.Problem:
    """An index-1 DAE with an input of 40 pieces, all states measured."""
    x, z, k, v, u = symbols("x z k v u")
    model = Model({x: u - v * z}, algebraic={z: z * (1 + z**2 / (k + 1e-3)) - x}, parameters=[k, v], inputs=[u])
    rng = np.random.default_rng(0)
    levels, times = rng.uniform(0, 2, 41), np.linspace(0.25, 10, 40)
    signal = getattr(cf.Input, kind)(np.linspace(0, 10, 41), levels)
    zero = {"x": np.zeros(40), "z": np.zeros(40)}
    parameters = {n: cf.Parameter(g, 1e-3, 1e3, scale="log") for n, g in (("k", 0.5), ("v", 1.0))}
    arguments = {"initial": {"x": 1.0, "z": 0.5}, "inputs": {"u": signal}, "sigma": 0.02, "time": times}
    truth = cf.simulate(cf.Problem(model, [cf.Experiment(zero, **arguments)], parameters=parameters))["experiment 1"]
    data = {name: truth[name] + 0.02 * rng.standard_normal(40) for name in zero}
    return cf.Problem(model, [cf.Experiment(data, **arguments)], parameters=parameters)


@pytest.mark.parametrize(
    ("kind", "transcription"),
    crossed(
        ["linear", "piecewise_constant"],
        {"single": cf.SingleShooting(IDAS), "multiple": cf.MultipleShooting(7, integrator=IDAS)},
    ),
)
@pytest.mark.parametrize("seed", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_inputs_with_kinks_do_not_stop_idas(kind, transcription, seed):
    rng = np.random.default_rng(seed)
    start = {"k": 0.5 * 10 ** rng.uniform(-1, 1), "v": 10 ** rng.uniform(-1, 1)}
    result = cf.fit(kinked(kind), transcription, start=start, second_start=False)
    assert result.success
    assert result.chi2 < 100
    assert result.failures == {}


@pytest.mark.parametrize("kind", ["linear", "piecewise_constant"])
def test_transcriptions_agree_where_inputs_have_kinks(kind):
    problem = kinked(kind)
    relaxed = cf.MultipleShooting(7, algebraic="relaxed")
    results = [
        cf.fit(problem, method) for method in ("single", "multiple", relaxed, "collocation", "collocation/ipopt")
    ]
    for result in results:
        assert result.success
        assert result.chi2 == pytest.approx(results[0].chi2, rel=1e-6)
        for name, error in results[0].standard_errors.items():
            assert abs(result.values[name] - results[0].values[name]) < 1e-3 * error
            assert result.standard_errors[name] == pytest.approx(error, rel=1e-3)


def titration() -> cf.Problem:
    """A weak acid, base added at a constant rate: the pH jumps by five units at t = 5."""
    h, pKa, c, rate, base = symbols("pH pKa c rate base")
    volume, ten = 0.05, np.log(10.0)
    H, Ka = ca.exp(-ten * h), ca.exp(-ten * pKa)
    charge = H + 0.1 * base / (volume + base) - 1e-14 / H - c * volume / (volume + base) * Ka / (Ka + H)
    model = Model({base: rate}, algebraic={h: charge}, parameters=[pKa, c, rate])
    times = np.linspace(0, 10, 41)
    arguments = {"time": times, "sigma": 0.05, "initial": {"base": 0.0, "pH": 3.0}}
    parameters = {"pKa": 4.76, "c": cf.Parameter(0.1, 0, 1), "rate": cf.Parameter(0.01, fixed=True)}
    truth = cf.simulate(cf.Problem(model, [cf.Experiment({"pH": np.zeros(41)}, **arguments)], parameters=parameters))
    data = truth["experiment 1"]["pH"] + 0.05 * np.random.default_rng(0).standard_normal(41)
    return cf.Problem(model, [cf.Experiment({"pH": data}, **arguments)], parameters=parameters)


@pytest.mark.parametrize("intervals", [1, 2, 5, 20, "data"])
def test_a_titration_started_at_the_truth_converges(intervals):
    result = cf.fit(titration(), cf.MultipleShooting(intervals))
    assert result.success
    assert result.chi2 == pytest.approx(25.7672462, rel=1e-6)
    assert result.parameters["pKa"] == pytest.approx(4.7501916, abs=1e-5)


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=["gauss_newton", "ipopt"])
def test_collocation_sees_algebraic_states_measured_where_an_element_begins(solver):
    """The pH at t = 0 is extrapolated from the first element's points; its curve is steep there."""
    result = cf.fit(titration(), cf.Collocation(), solver)
    assert result.success
    assert result.chi2 == pytest.approx(25.7672462, rel=1e-6)
    assert result.parameters["pKa"] == pytest.approx(4.7501916, abs=1e-6)


@pytest.mark.parametrize("method", ["cvodes", "idas", "esdirk", "rosenbrock", "collocation"])
def test_the_first_output_may_come_ten_decades_before_the_last(method):
    x, k = symbols("x k")
    lanes = make_lanes([1.0], [1e4], 1e5, m=3)
    integrator = Integrator(Model({x: -k * x}, parameters=[k]).system, [1e-10, 2e-10, 1.0], IntegratorOptions(method))
    values, sensitivities = everything(integrator, lanes)
    exact = np.exp([-0.1, -0.2, -1e9])
    np.testing.assert_allclose(values.x[0, :, 0], exact, atol=1e-8)
    np.testing.assert_allclose(sensitivities.dx[0, :, 0, 1] * 1e4, [-0.1, -0.2, 0] * exact, atol=1e-7)


@pytest.mark.parametrize("method", ["cvodes", "idas", "esdirk", "rosenbrock"])
def test_tolerances_are_relative_to_the_units_of_states(method):
    grid = np.array([0.3, 1.0])
    integrator = Integrator(lotka_volterra().system, grid, IntegratorOptions(method, 1e-6, 1e-6))
    unit = np.array([1e-12, 1e9])
    p = np.array([0.9, 1.1, 1.0, 0.8])
    scaled_parameters = p / [1.0, unit[1], 1.0, unit[0]]
    lanes = make_lanes([0.4, 1.0], p, 5.0, m=2)
    scaled_lanes = make_lanes([0.4, 1.0] * unit, scaled_parameters, 5.0, m=2)
    values, _ = everything(integrator, lanes)
    scaled_values, _ = everything(integrator, replace(scaled_lanes, unit=unit[None]))
    np.testing.assert_allclose(scaled_values.x[0] / unit, values.x[0], rtol=1e-9)


def test_lanes_that_idas_gives_up_are_rescued():
    """At t = 5 the titration curve is so steep that IDAS cannot start there."""
    problem = titration()
    system = problem.model.system
    lanes = make_lanes(
        [0.05], problem.posed.conditions[0].link.natural(problem.posed.guess).p, 1.0, start=5.0, z0=[8.7]
    )
    values, sensitivities = everything(Integrator(system, [1.0], IntegratorOptions("idas")), lanes)
    exact_values, exact_sensitivities = everything(Integrator(system, [1.0], IntegratorOptions("rosenbrock")), lanes)
    assert values.failures == sensitivities.failures == ()
    assert values.rescued_lanes + sensitivities.rescued_lanes
    np.testing.assert_allclose(sensitivities.dx, exact_sensitivities.dx, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(values.z, exact_values.z, rtol=1e-6)


def test_a_result_says_that_another_integrator_took_over():
    x, k = symbols("x k")
    t = np.array([1e-5, 2e-5, 1e5])
    data = cf.Experiment({"x": np.exp(-1e4 * t) + np.array([0.01, -0.01, 0])}, time=t, sigma=0.01, initial={"x": 1.0})
    problem = cf.Problem(Model({x: -k * x}, parameters=[k]), data, parameters={"k": cf.Parameter(1e4, scale="log")})
    result = cf.fit(problem, cf.SingleShooting(IntegratorOptions("idas")))
    assert result.success
    assert result.message.endswith("1 stage was integrated by rosenbrock, because idas failed.")
