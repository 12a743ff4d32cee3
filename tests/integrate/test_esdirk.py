"""The compiled ESDIRK methods: their tables, order, exact sensitivities, stiff problems, the cache, threads."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import casadi as ca
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from castfit._bench.esdirk_reference import ReferenceMethod
from castfit._support.casadi_functions import find_compiler
from castfit._support.status import InputError
from castfit.integrate import Integrator, IntegratorOptions, LaneFailure, Lanes, compilation
from castfit.integrate.esdirk import ESDIRK4, ESDIRK5, TSITOURAS5
from castfit.integrate.esdirk_binding import CompiledStepper, NativeModel, StepSizes, missing_integrator_reason
from castfit.model.model import Model, symbols
from tests.integrate.test_integrator import identity_seeds, lotka_volterra, make_lanes
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(
    missing_integrator_reason() != "", reason="needs a C compiler"
)  # or the integrator of a wheel
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler for models")
ALL = {"order 4": ESDIRK4, "order 5": ESDIRK5, "explicit": TSITOURAS5}
TABLES = pytest.mark.parametrize("method", ALL.values(), ids=ALL)
IMPLICIT = pytest.mark.parametrize("method", [ESDIRK4, ESDIRK5], ids=["order 4", "order 5"])
CASES = pytest.mark.parametrize(
    ("method", "name"),
    [(ESDIRK4, "robertson"), (ESDIRK5, "robertson"), *((method, "lotka_volterra") for method in ALL.values())],
)


def graph_of(model: Model) -> ca.Function:
    system = model.system
    return system.function("system", ca.densify(system.ode), ca.densify(system.alg))


def one(x0, p, duration, m=1, z0=(), **kind) -> Lanes:
    return make_lanes(x0, p, duration, m=m, z0=z0, **kind)


# Tables


def _conditions(b, a, c, order):
    """Left-hand sides minus right-hand sides of the order conditions (Hairer, Norsett, Wanner, II.2), stage order 2."""
    defects = [b.sum() - 1, b @ c - 1 / 2, b @ c**2 - 1 / 3]
    if order > 3:
        defects += [b @ c**3 - 1 / 4, b @ a @ c**2 - 1 / 12, (b * c) @ a @ c - 1 / 8, b @ a @ a @ c - 1 / 24]
    if order > 4:
        defects += [
            b @ c**4 - 1 / 5,
            (b * c) @ a @ c**2 - 1 / 15,
            (b * c**2) @ a @ c - 1 / 10,
            b @ a @ c**3 - 1 / 20,
            b @ (a @ c) ** 2 - 1 / 20,
            b @ a @ (c * (a @ c)) - 1 / 40,
            b @ a @ a @ c**2 - 1 / 60,
            (b * c) @ a @ a @ c - 1 / 30,
            b @ a @ a @ a @ c - 1 / 120,
        ]
    return np.array(defects)


@TABLES
def test_tables_have_their_orders(method):
    a, b, c = method.a, method.b, method.c
    order = method.embedded_order + 1
    assert np.abs(_conditions(b, a, c, order)).max() < 1e-14
    assert np.abs(_conditions(method.bhat, a, c, order - 1)).max() < 1e-14
    assert np.abs(_conditions(method.bhat, a, c, order)).max() > 1e-4  # so that the two differ
    np.testing.assert_allclose(a @ np.ones_like(c), c, atol=1e-14)


@IMPLICIT
def test_implicit_tables_are_l_stable(method):
    a, b, c = method.a, method.b, method.c
    np.testing.assert_allclose(a @ c, c**2 / 2, atol=1e-14)  # stage order 2
    ones, eye = np.ones_like(c), np.eye(c.size)

    def growth(z):
        return 1 + z * b @ np.linalg.solve(eye - z * a, ones)

    assert abs(growth(-1e6)) < 1e-4
    assert all(abs(growth(1j * y)) <= 1 + 1e-12 for y in np.geomspace(1e-3, 1e6, 200))


@TABLES
def test_the_continuous_extension_has_order_four(method):
    # y(th) = y_0 + h sum b_i(th) K_i satisfies the conditions of order 4 at every th, those of a shorter step
    c, a = method.c, method.a
    first_unit, last_unit = np.eye(c.size)[[0, -1]]
    ac = a @ c
    for th in (0.1, 0.37, 0.5, 0.9):
        weight = th**2 * (3 - 2 * th) * method.b + th * (1 - th) ** 2 * first_unit - th**2 * (1 - th) * last_unit
        weight += th**2 * (1 - th) ** 2 * method.dense
        defects = [weight.sum() - th, weight @ c - th**2 / 2, weight @ c**2 - th**3 / 3, weight @ c**3 - th**4 / 4]
        defects += [weight @ ac - th**3 / 6, weight @ (c * ac) - th**4 / 8, weight @ a @ ac - th**4 / 24]
        assert np.abs([*defects, weight @ a @ c**2 - th**4 / 12]).max() < 1e-13


# Order


@TABLES
def test_equal_steps_converge_with_the_order_of_the_method(method):
    model = NativeModel(graph_of(lotka_volterra()), compiled=False)
    lanes = one([0.4, 1.0], np.ones(4), 5.0, m=2)
    dx0, dp = identity_seeds(lanes)
    steps = np.array([40, 160])  # so that the first output lies a third into a step of both

    def solve(count):
        control = StepSizes(1e-6, 1e-8, 10_000, newton=1e-13, replay=np.full(count, 1 / count))
        result = model.integrate(lanes, np.array([0.5 + 1 / 120, 1.0]), method, control, directions=(dx0, dp, None))
        assert result.code[0] == 0
        return result.x[0], result.dx[0]

    exact = solve(1280)
    errors = np.array([[np.abs(v - e).max(axis=tuple(range(1, v.ndim))) for v, e in zip(solve(n), exact, strict=True)]
                       for n in steps])  # (steps, values or slopes, output)  # fmt: skip
    order = np.log2(errors[0] / errors[1]) / 2
    expected = method.embedded_order + 1
    assert (order[:, 1] > expected - 0.25).all()  # at the end of a step
    assert (order[:, 0] > 4 - 0.25).all()  # between steps


@pytest.mark.parametrize("tolerance", [1e-5, 1e-9])
def test_errors_follow_the_tolerance(tolerance):
    lanes = one([0.4, 1.0], np.ones(4), 20.0, m=41)
    grid = np.linspace(0.0, 1.0, 41)
    options = IntegratorOptions("esdirk", tolerance, tolerance / 100)
    values = Integrator(lotka_volterra().system, grid, options).values(lanes)
    exact = Integrator(lotka_volterra().system, grid, IntegratorOptions("cvodes", 1e-12, 1e-13)).values(lanes)
    assert np.abs(values.x - exact.x).max() < 30 * tolerance


# Sensitivities


def robertson(scale=1.0) -> Model:
    a, b, c, k1, k2, k3 = symbols("a b c k1 k2 k3")
    ode = {a: -k1 * a + k3 * b * c, b: k1 * a - k3 * b * c - k2 * b**2}
    return Model(ode, algebraic={c: a + b + c - 1}, parameters=[k1, k2, k3])


def _frozen_slope(model, lanes, grid, method, steps, lane_of):
    """Differentiate numbers of the same steps by differences of order 6."""
    control = StepSizes(1e-6, 1e-8, 10_000, newton=1e-14, replay=steps)

    def values(delta):
        return model.integrate(lane_of(lanes, delta), grid, method, control).x

    d = 1e-3
    difference_1, difference_2, difference_3 = ((values(k * d) - values(-k * d)) / (2 * k * d) for k in (1, 2, 3))
    return (15 * difference_1 - 6 * difference_2 + difference_3) / 10


@CASES
def test_sensitivities_are_those_of_the_steps_taken(method, name):
    if name == "robertson":
        system, grid = robertson(), np.linspace(0.1, 1, 5)
        lanes = one([0.9, 1e-5], [0.04, 30.0, 10.0], 20.0, m=5, z0=(0.1 - 1e-5,))
    else:
        system, grid = lotka_volterra(), np.linspace(0.1, 1, 5)
        lanes = one([0.4, 1.0], [0.9, 1.1, 1.0, 0.8], 8.0, m=5)
    model = NativeModel(graph_of(system), compiled=False)
    n_d = lanes.x0.shape[1] + lanes.p.shape[1]
    dx0, dp = (np.array(part) for part in identity_seeds(lanes))
    dx0, dp = dx0 * 0, dp * lanes.p[:, :, None]  # relative changes of parameters
    span_directions = np.zeros((2, 1, n_d))
    span_directions[0, 0, 0], span_directions[1, 0, 1] = (
        0.5,
        lanes.duration[0],
    )  # two directions in which start and duration move
    original_result = model.integrate(lanes, grid, method, StepSizes(1e-5, 1e-7, 10_000, newton=1e-14, watch=0.0))
    assert original_result.counts[0, 0] > 8
    control = StepSizes(1e-5, 1e-7, 10_000, newton=1e-14, replay=original_result.steps)
    replayed_result = model.integrate(lanes, grid, method, control, directions=(dx0, dp, span_directions))
    np.testing.assert_allclose(replayed_result.x, original_result.x, rtol=1e-13)
    for d in range(n_d):

        def moved_lane(lane, delta, d=d):
            p = lane.p + delta * dp[:, :, d]
            start, duration = (
                lane.start + delta * span_directions[0, :, d],
                lane.duration + delta * span_directions[1, :, d],
            )
            return replace(lane, p=p, start=start, duration=duration)

        slope = _frozen_slope(model, lanes, grid, method, original_result.steps, moved_lane)
        np.testing.assert_allclose(
            replayed_result.dx[..., d], slope, rtol=0, atol=1e-10 * np.abs(replayed_result.dx).max()
        )


def test_a_state_at_rest_has_accurate_sensitivities():
    # Steps could grow at will while the state stays at zero, and its sensitivity exp(-k t) would be lost.
    x, k = symbols("x k")
    model = Model({x: -k * x}, parameters=[k])
    grid = np.linspace(0.1, 1, 10)
    integrator = Integrator(model.system, grid, IntegratorOptions("esdirk", 1e-8, 1e-10))
    lanes = one([0.0], [1.0], 5.0, m=10)
    sensitivities = integrator.sensitivities(lanes, integrator.values(lanes), np.ones((1, 1, 1)), np.zeros((1, 1, 1)))
    np.testing.assert_allclose(sensitivities.dx[0, :, 0, 0], np.exp(-5 * grid), rtol=1e-5)


@CASES
def test_the_reference_gives_the_same_numbers(method, name):
    if name == "robertson":
        system, lanes = robertson(), one([1.0, 0.0], [0.04, 3e7, 1e4], 40.0, m=3, z0=(0.0,))
    else:
        system, lanes = lotka_volterra(), one([0.4, 1.0], np.ones(4), 8.0, m=3)
    graph, grid, control = graph_of(system), np.array([0.3, 0.6, 1.0]), StepSizes(1e-6, 1e-8, 10_000)
    dx0, dp = (np.array(part) for part in identity_seeds(lanes))
    result = NativeModel(graph, compiled=False).integrate(lanes, grid, method, control, directions=(dx0, dp, None))
    y = np.concatenate([lanes.x0[0], lanes.z0[0]])
    reference = ReferenceMethod(graph, method, control)
    path = reference.integrate(0.0, lanes.duration[0], y, lanes.p[0], np.ones(y.size), grid, dx0[0], dp[0])
    assert (result.counts[0, 3] > 0) == (name == "robertson")  # whose directions need steps of their own
    np.testing.assert_allclose(path.steps, result.steps, rtol=1e-4)
    np.testing.assert_allclose(path.x, result.x[0], rtol=1e-8)
    np.testing.assert_allclose(path.dx, result.dx[0], rtol=1e-6, atol=1e-8 * np.abs(result.dx).max())


# Stiff problems, with their solutions from the test set for initial value problem solvers (Mazzia, Magherini; Bari)


def van_der_pol():
    x, y, mu = symbols("x y mu")
    return Model({x: y, y: mu * ((1 - x**2) * y - x)}, parameters=[mu]), [2.0, 0.0], [1e6], 2.0, ()


def hires():
    y = symbols(f"y{i}" for i in range(1, 9))
    a, b, c, d, e, f, g, h = y
    ode = {
        a: -1.71 * a + 0.43 * b + 8.32 * c + 0.0007,
        b: 1.71 * a - 8.75 * b,
        c: -10.03 * c + 0.43 * d + 0.035 * e,
        d: 8.32 * b + 1.71 * c - 1.12 * d,
        e: -1.745 * e + 0.43 * f + 0.43 * g,
        f: -280 * f * h + 0.69 * d + 1.71 * e - 0.43 * f + 0.69 * g,
        g: 280 * f * h - 1.81 * g,
        h: -280 * f * h + 1.81 * g,
    }
    return Model(ode), [1.0, 0, 0, 0, 0, 0, 0, 0.0057], [], 321.8122, ()


def oregonator():
    a, b, c = symbols("a b c")
    s, q, w = 77.27, 8.375e-6, 0.161
    ode = {a: s * (b + a * (1 - q * a - b)), b: (c - (1 + a) * b) / s, c: w * (a - c)}
    return Model(ode), [1.0, 2.0, 3.0], [], 360.0, ()


def full_robertson():
    a, b, c = symbols("a b c")
    ode = {a: -0.04 * a + 1e4 * b * c, b: 0.04 * a - 1e4 * b * c - 3e7 * b**2, c: 3e7 * b**2}
    return Model(ode), [1.0, 0.0, 0.0], [], 1e11, ()


def akzo():
    """The chemical Akzo Nobel problem: five states, one algebraic."""
    y = symbols(f"y{i}" for i in range(1, 6))
    z = symbols("y6")
    y1, y2, y3, y4, y5 = y
    k1, k2, k3, k4, K, kla, po2, H, Ks = 18.7, 0.58, 0.09, 0.42, 34.4, 3.3, 0.9, 737.0, 115.83
    root = ca.sqrt(y2)
    r1, r2, r3 = k1 * y1**4 * root, k2 * y3 * y4, k2 / K * y1 * y5
    r4, r5, inflow = k3 * y1 * y4**2, k4 * z**2 * root, kla * (po2 / H - y2)
    ode = {
        y1: -2 * r1 + r2 - r3 - r4,
        y2: -0.5 * r1 - r4 - 0.5 * r5 + inflow,
        y3: r1 - r2 + r3,
        y4: -r2 + r3 - 2 * r4,
        y5: r2 - r3 + r5,
    }
    start = [0.444, 0.00123, 0.0, 0.007, 0.0]
    return Model(ode, algebraic={z: Ks * y1 * y4 - z}), start, [], 180.0, (Ks * 0.444 * 0.007,)


STIFF = {
    "van der Pol": (van_der_pol, [1.706167732170483, -0.8928097010247975]),
    "HIRES": (
        hires,
        [7.371312573325668e-4, 1.442485726316185e-4, 5.888729740967575e-5, 1.175651343283149e-3,
         2.386356198831331e-3, 6.238968252742796e-3, 2.849998395185769e-3, 2.850001604814231e-3],
    ),
    "Oregonator": (oregonator, [1.000814870318523, 1.228178521549917e3, 1.320554942846706e2]),
    "Robertson": (full_robertson, [2.083340149701255e-8, 8.333360770334713e-14, 0.9999999791665050]),
    "Akzo": (
        akzo, [0.1150794920661702, 1.203831471567715e-3, 0.1611562887407974, 3.656156421249283e-4, 1.708010885264404e-2]
    ),
}  # fmt: skip


@pytest.mark.parametrize("tolerance", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("name", STIFF)
def test_stiff_problems_are_solved_within_ten_tolerances(name, tolerance):
    build, solution = STIFF[name]
    model, x0, p, duration, z0 = build()
    solution = np.array(solution)
    lanes = replace(one(x0, np.array(p).reshape(1, -1), duration, z0=z0))
    unit = np.concatenate([np.abs(solution), np.full(len(z0), 4.9e-3)])
    options = IntegratorOptions("esdirk", tolerance, tolerance / 100, max_steps=100_000)
    values = Integrator(model.system, [1.0], options).values(replace(lanes, unit=unit[None]))
    assert values.failures == ()
    assert (np.abs(values.x[0, -1] - solution) / np.abs(solution)).max() < 10 * tolerance


# Compiled and evaluated functions, threads, pickling, the cache


@needs_compiler
def test_compiled_functions_give_the_same_bits():
    graph, grid, control = graph_of(lotka_volterra()), np.linspace(0.1, 1, 10), StepSizes(1e-6, 1e-8, 10_000)
    lanes = one([0.4, 1.0], [[0.9, 1.1, 1.0, 0.8], np.ones(4)], 8.0, m=10)
    results = [
        NativeModel(graph, compiled=compiled).integrate(
            lanes, grid, ESDIRK5, control, directions=(*identity_seeds(lanes), None)
        )
        for compiled in (False, True)
    ]
    np.testing.assert_array_equal(results[0].x, results[1].x)
    np.testing.assert_array_equal(results[0].dx, results[1].dx)


def test_lanes_do_not_depend_on_their_company_or_thread():
    p = np.random.default_rng(0).uniform(0.5, 1.5, (12, 4))
    grid = np.linspace(0.1, 1, 10)
    integrator = Integrator(lotka_volterra().system, grid, IntegratorOptions("esdirk"))
    lanes = make_lanes([0.4, 1.0], p, 8.0, m=10)
    joint_slopes = integrator.sensitivities(lanes, integrator.values(lanes), *identity_seeds(lanes)).dx

    def slopes_of_lane(i):
        lane = lanes[i : i + 1]
        return integrator.sensitivities(lane, integrator.values(lane), *identity_seeds(lane)).dx[0]

    with ThreadPoolExecutor(4) as pool:
        separate_slopes = list(pool.map(slopes_of_lane, range(12)))
    np.testing.assert_array_equal(joint_slopes, separate_slopes)
    copied = pickle.loads(pickle.dumps(integrator))
    np.testing.assert_array_equal(copied.values(lanes).x, integrator.values(lanes).x)


def test_a_failure_says_where_and_why():
    lanes = one([0.4, 1.0], [[0.5, 0.5, 0.5, -0.2], np.ones(4)], 4.0)
    integrator = Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk"))
    values = integrator.values(lanes)
    assert [f.cause for f in values.failures] == ["step_size"]
    assert "at t = 3.3064" in values.failures[0].detail  # the pole
    assert np.isnan(values.x[0]).all()
    assert np.isfinite(values.x[1]).all()
    stop = integrator.locate_failure(lanes, 0)
    assert stop.time == pytest.approx(3.3064, abs=1e-3)
    x, k = symbols("x k")
    model = Model({x: ca.log(k - x)}, parameters=[k])
    values = Integrator(model.system, [1.0], IntegratorOptions("esdirk")).values(one([2.0], [1.0], 1.0))
    assert values.failures[0].cause == "not_finite"
    assert "in the equation of x, at t = 0" in values.failures[0].detail


def test_esdirk_failed_lane_is_integrated_by_another_method(monkeypatch):
    def gives_up(self, result, skip, failures):
        failures[0] = LaneFailure(0, "too_many_steps", "gives up")

    monkeypatch.setattr(CompiledStepper, "record_failures", gives_up)
    lanes = one([0.4, 1.0], np.ones(4), 20.0)
    integrator = Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk"))
    values = integrator.values(lanes)
    assert integrator.rescue_method == "cvodes"
    assert values.failures == ()
    assert values.rescued_lanes == (0,)
    slopes = integrator.sensitivities(lanes, values, *identity_seeds(lanes))
    assert slopes.rescued_lanes == (0,)
    monkeypatch.undo()
    exact = Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk", 1e-10, 1e-12))
    np.testing.assert_allclose(values.x, exact.values(lanes).x, rtol=1e-5)
    np.testing.assert_allclose(slopes.dx, exact.sensitivities(lanes, values, *identity_seeds(lanes)).dx, rtol=1e-4)


@pytest.mark.parametrize("grid", [[1.0], [0.0, 0.2, 1.0]])
@pytest.mark.parametrize("watch", [True, False])
def test_stored_steps_are_followed_by_sensitivities(grid, watch):
    lanes = replace(one([0.4, 1.0], np.ones(4), 20.0, m=len(grid)), unit=np.full((1, 2), 0.7))
    options = IntegratorOptions("esdirk", watch_sensitivities=watch)
    integrator = Integrator(lotka_volterra().system, grid, options)
    values = integrator.values(lanes)
    assert values.sensitivity_cache is not None
    assert pickle.loads(pickle.dumps(values)).sensitivity_cache is None
    followed = integrator.sensitivities(lanes, values, *identity_seeds(lanes))
    recomputed_sensitivities = integrator.sensitivities(
        lanes, replace(values, sensitivity_cache=None), *identity_seeds(lanes)
    )
    np.testing.assert_array_equal(followed.dx, recomputed_sensitivities.dx)
    # Steps of other lanes, or of another accuracy, are not taken for these.
    other_lanes, coarse_integrator = (
        replace(lanes, p=lanes.p * 1.1),
        Integrator(lotka_volterra().system, grid, replace(options, relative_tolerance=1e-3)),
    )
    other_slopes = integrator.sensitivities(
        other_lanes, integrator.values(other_lanes), *identity_seeds(other_lanes)
    ).dx
    np.testing.assert_array_equal(
        integrator.sensitivities(other_lanes, values, *identity_seeds(other_lanes)).dx, other_slopes
    )
    assert not np.array_equal(
        coarse_integrator.sensitivities(lanes, values, *identity_seeds(lanes)).dx, recomputed_sensitivities.dx
    )


def a_ring(n: int) -> Model:
    """Of n states, each fed by a saturating rate of the one before: functions of about 30 operations a state."""
    x, k = symbols(" ".join(f"x{i}" for i in range(n))), symbols("k")
    right = {x[i]: k * x[i - 1] / (1 + x[i - 1]) + ca.sin(k * x[i] * x[i - 2]) - x[i] for i in range(n)}
    return Model(right, parameters=[k])


@needs_compiler
def test_large_models_are_compiled_in_parts_where_that_pays_and_give_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("CASTFIT_CACHE", str(tmp_path))
    graph, n = graph_of(a_ring(150)), 150
    lanes = make_lanes(np.linspace(0.1, 1.0, n), np.ones((1, 1)), 3.0, m=2)
    grid, dx0, dp = np.array([0.5, 1.0]), np.zeros((1, n, 1)), np.ones((1, 1, 1))

    def integrate_model(model):
        result = model.integrate(lanes, grid, ESDIRK5, StepSizes(1e-6, 1e-8, 10_000), directions=(dx0, dp, None))
        return result.x, result.dx

    interpreted_model, growing_model = (
        NativeModel(graph, compiled=False),
        NativeModel(graph, compiled=False, may_compile=True),
    )
    first_arrays = integrate_model(growing_model)
    assert not growing_model.is_compiled
    growing_model.n_evaluated_operations = 1e12
    second_arrays, exact = integrate_model(growing_model), integrate_model(interpreted_model)
    assert growing_model.is_compiled
    assert not interpreted_model.is_compiled
    for arrays in (first_arrays, second_arrays):
        for actual, expected in zip(arrays, exact, strict=True):
            np.testing.assert_array_equal(actual, expected)
    source = growing_model._source
    assert source.count("noinline") > 3
    assert max(map(len, source.split("noinline"))) < 60 * 500


@needs_compiler
def test_models_are_worth_compiling_once_that_takes_no_longer_than_they_did(tmp_path, monkeypatch):
    monkeypatch.setenv("CASTFIT_CACHE", str(tmp_path))
    x = symbols("x")
    graph = graph_of(Model({x: -0.377 * x}))
    fresh = NativeModel(graph, compiled=False)
    assert not fresh.is_worth_compiling
    result = fresh.integrate(one([1.0], [], 3.0, m=2), np.array([0.5, 1.0]), ESDIRK5, StepSizes(1e-6, 1e-8, 10_000))
    assert 0 < result.counts[0, 2] <= fresh.n_evaluated_operations < 1e5
    assert not fresh.is_worth_compiling
    fresh.n_evaluated_operations = 1e9
    assert fresh.is_worth_compiling
    compiled = NativeModel(graph, compiled=True)
    assert compiled.is_compiled
    assert not compiled.is_worth_compiling
    second_model = NativeModel(graph, compiled=False)
    second_model.n_evaluated_operations = 0.4e8  # too little for a compiler
    assert second_model.is_worth_compiling  # since it was compiled before


def test_the_limit_of_steps_holds_for_the_methods_that_try_again():
    lanes = one([0.4, 1.0], np.ones(4), 20.0)
    values = Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk", max_steps=20)).values(lanes)
    assert [f.cause for f in values.failures] == ["too_many_steps"]
    assert "at t = 0.9" in values.failures[0].detail  # how far this one came


@needs_compiler
def test_searches_limit_the_steps_of_a_whole_lane_others_those_between_two_outputs():
    lanes = one([0.4, 1.0], np.ones(4), 100.0)
    for watched, outputs, causes in ((True, 200, []), (False, 200, ["too_many_steps"]), (False, 2000, [])):
        grid = np.linspace(0.0, 1.0, outputs + 1)[1:]
        options = IntegratorOptions("esdirk", 1e-6, 1e-8, max_steps=20, watch_sensitivities=watched)
        values = Integrator(lotka_volterra().system, grid, options).values(lanes)
        assert [f.cause for f in values.failures] == causes


@needs_compiler
def test_compiled_libraries_are_kept_and_processes_share_them(tmp_path, monkeypatch):
    monkeypatch.setenv("CASTFIT_CACHE", str(tmp_path / "cache"))
    source = "double twice(double x) { return 2 * x; }"
    program = f"from castfit.integrate.compilation import load; load({source!r}, ('-O1',))"
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [p.wait() for p in running] == [0, 0]
    (library,) = (tmp_path / "cache").glob("*.so")
    mtime_ns = library.stat().st_mtime_ns
    compilation.load(source, ("-O1",))
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == [library.name, f"{library.name}.sha256"]
    assert library.stat().st_mtime_ns == mtime_ns
    compilation.load(source, ("-O2",))
    assert len(list((tmp_path / "cache").glob("*.so"))) == 2


SEVEN = "double seven(void) { return 7.0; }"
SEVENTH = "import ctypes; from castfit.integrate.compilation import load; seven = load({!r}, ('-O1',)).seven; "
SEVENTH = SEVENTH.format(SEVEN) + "seven.restype = ctypes.c_double; print(seven())"


def seventh(folder, cache=None):
    """Let another process use a library that it finds in a cache, or not; return how that ended."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment = {"CASTFIT_CACHE": str(folder / "cache" if cache is None else cache), "PYTHONPATH": path}
    command = [sys.executable, "-W", "always", "-c", SEVENTH]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, cwd=folder)


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory):
    """A folder with a cache of one library."""
    if find_compiler() is None:
        pytest.skip("needs a C compiler for models")
    folder = tmp_path_factory.mktemp("compiled")
    process = seventh(folder)
    assert (process.stdout, process.stderr) == ("7.0\n", "")
    return folder


@pytest.fixture
def cached(compiled_once, tmp_path):
    """A copy of that cache, which may be damaged, and the library in it."""
    copy = shutil.copytree(compiled_once / "cache", tmp_path / "cache")
    (library,) = copy.glob("*.so")
    return library


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 4],
        lambda content: content[:4096] + bytes(200) + content[4296:],
        lambda content: b"garbage",
        lambda content: content.replace(b"seven", b"eight"),
    ],
    ids=["truncated", "changed", "garbage", "another symbol"],
)
def test_a_damaged_library_in_the_cache_is_replaced(tmp_path, cached, damage):
    """A truncated one ended the process by SIGBUS, a changed one by SIGFPE or SIGSEGV."""
    content = cached.read_bytes()
    cached.write_bytes(damage(content))
    process = seventh(tmp_path)
    assert (process.returncode, process.stdout, process.stderr) == (0, "7.0\n", "")
    assert cached.read_bytes() == content
    assert len(list(cached.parent.iterdir())) == 2


def test_a_relative_cache_folder_is_used(cached):
    mtime_ns = cached.stat().st_mtime_ns
    assert seventh(cached.parent, ".").stdout == "7.0\n"
    assert cached.stat().st_mtime_ns == mtime_ns
    assert len(list(cached.parent.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix", reason="permissions differ")
def test_a_folder_or_a_file_that_others_may_write_to_is_not_used(tmp_path, cached):
    cache, library = cached.parent, cached
    assert cache.stat().st_mode & 0o777 == 0o700
    library.chmod(0o777)
    assert seventh(tmp_path).stdout == "7.0\n"
    assert library.stat().st_mode & 0o777 == 0o700
    library.unlink()
    cache.chmod(0o777)
    process = seventh(tmp_path)
    assert process.stdout == "7.0\n"
    assert process.stderr.count(f"others own '{cache}' or may write to it; set CASTFIT_CACHE to") == 1
    assert not library.exists()


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root may give files away")
@pytest.mark.parametrize("kind", ["folder", "library"])
def test_library_owned_by_another_user_is_not_loaded(tmp_path, cached, kind):
    planted = cached.parent if kind == "folder" else cached
    os.chown(planted, 12345, 12345)
    process = seventh(tmp_path)
    assert process.stdout == "7.0\n"
    assert ("others own" in process.stderr) == (kind == "folder")
    assert (planted.stat().st_uid == 0) == (kind == "library")


@needs_compiler
def test_users_without_a_home_compile_too(monkeypatch):
    def homeless(*_):
        raise RuntimeError("Could not determine home directory.")

    for name in ("CASTFIT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert compilation.load(SEVEN, ("-O1",)).seven
    monkeypatch.setenv("CASTFIT_CACHE", "~nobody-of-this-name/cache")
    assert compilation.load(SEVEN, ("-O1",)).seven


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("CASTFIT_CACHE", str(blocked / "cache"))
    compilation.load("double thrice(double x) { return 3 * x; }", ("-O1",))
    assert not (blocked / "cache").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs a shell script")
def test_a_compiler_that_fails_is_reported(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho broken compiler >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(compilation.CompilationError, match="broken compiler"):
        compilation.load("double four(double x) { return 4 * x; }", ("-O1",))
    with pytest.raises(InputError, match=r"compile='always', but compiling failed: .*broken compiler"):
        Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk", compile="always"))


def test_the_shortest_lanes_move_with_their_ends():
    # Between two events that follow at once; the end stays while the start moves.
    x, k = symbols("x k")
    integrator = Integrator(Model({x: k * x}, parameters=[k]).system, [1.0], IntegratorOptions("esdirk"))
    lanes = one([4.5], [0.12], 2.220446049250313e-16, start=1.1)
    spans = np.array([1.0, -1.0]).reshape(2, 1, 1)
    sensitivities = integrator.sensitivities(
        lanes, integrator.values(lanes), np.ones((1, 1, 1)), np.zeros((1, 1, 1)), spans
    )
    assert sensitivities.dx[0, 0, 0, 0] == pytest.approx(1.0 - 0.12 * 4.5, rel=1e-9)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-7, 1e-10])
def test_integration_from_rest_does_not_skip_a_later_change(tolerance):
    # The pulse is over at a hundredth of the lane; at t = 0 nothing moves but by rounding errors.
    t, x, k = symbols("t x k")
    pulse = t * ca.exp(-10 * t)
    model = Model({x: k * pulse * 1000 - 0.01 * (x - 1)}, parameters=[k], time=t)
    values = Integrator(model.system, [1.0], IntegratorOptions("esdirk", tolerance, tolerance / 100)).values(
        one([1.0 + 1e-15], [1.0], 100.0)
    )
    exact = solve_ivp(lambda t, x: 1000 * t * np.exp(-10 * t) - 0.01 * (x - 1), (0, 100), [1.0], rtol=1e-12, atol=1e-13,
                      max_step=0.1)  # fmt: skip
    assert values.x[0, -1, 0] == pytest.approx(exact.y[0, -1], rel=100 * tolerance)


def test_a_state_that_dies_away_does_not_hold_up_the_others():
    x, y, k = symbols("x y k")
    model = Model({x: -1000 * k * x, y: -k * y}, parameters=[k])
    lanes = replace(one([1.0, 1.0], [1.0], 1.0), unit=np.array([[1e-300, 1.0]]))
    native = NativeModel(graph_of(model), compiled=False)
    result = native.integrate(lanes, np.array([1.0]), ESDIRK5, StepSizes(1e-6, 1e-8, 10_000))
    assert result.counts[0, 0] < 150
    assert result.x[0, -1, 1] == pytest.approx(np.exp(-1.0), rel=1e-6)
    assert abs(result.x[0, -1, 0]) < 1e-13
