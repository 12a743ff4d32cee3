"""Adjoint states of the compiled ESDIRK methods: the derivatives that directions along the same steps have."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import casadi as ca
import numpy as np
import pytest

from castfit._bench.adjoint_scaling import network
from castfit._support.casadi_functions import find_compiler
from castfit._support.status import Status
from castfit._support.time_limit import StopRequested
from castfit.integrate import Integrator, IntegratorOptions, Lanes, esdirk_binding
from castfit.integrate.distributed import lanes_divided
from castfit.integrate.esdirk_binding import missing_integrator_reason
from castfit.model.model import Model, symbols
from tests.integrate.test_integrator import lotka_volterra, make_lanes

pytestmark = pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")


def dae() -> Model:
    """Robertson's kinetics with a conserved sum, and an algebraic state that depends on all others and on time."""
    a, b, c, z, k1, k2, k3, t = symbols("a b c z k1 k2 k3 t")
    rates = {a: -k1 * a + k2 * b * c, b: k1 * a - k2 * b * c - k3 * b**2}
    return Model(rates, algebraic={c: a + b + c - 1, z: z + 0.1 * z**3 - a * ca.sin(t)}, parameters=[k1, k2, k3],
                 time=t)  # fmt: skip


def chain(n: int) -> Model:
    """A row of cells with diffusion and saturated decay, sparse, driven by an input."""
    x, (d, v, u) = [symbols(f"x{i}") for i in range(n)], symbols("d v u")
    behind, ahead = [u, *x[:-1]], [*x[1:], x[-1]]
    rates = {x[i]: d * (behind[i] - 2 * x[i] + ahead[i]) - v * x[i] / (1 + x[i]) for i in range(n)}
    return Model(rates, parameters=[d, v], inputs=[u])


def of_network(rng) -> tuple[Model, Lanes, list[float]]:
    return network(25, 60), make_lanes(rng.uniform(0.5, 1.5, (2, 25)), rng.uniform(0, 1, (2, 60)), 5.0, m=2), [0.4, 1]


def of_lotka_volterra(rng) -> tuple[Model, Lanes, list[float]]:
    """Outputs at the start, inside steps, and so many that steps do not end at them; one lane runs backwards."""
    grid = [0.0, *np.linspace(0.01, 1, 600).tolist()]
    return lotka_volterra(), make_lanes([0.4, 1.0], rng.uniform(0.8, 1.2, (2, 4)), [7.0, -1.0], m=601), grid


def of_dae(rng) -> tuple[Model, Lanes, list[float]]:
    del rng
    return dae(), make_lanes([1.0, 0.0], [0.04, 1e4, 3e7], 40.0, start=0.5, m=3, z0=[0.0, 0.4]), [0.01, 0.3, 1.0]


def of_chain(rng) -> tuple[Model, Lanes, list[float]]:
    """An input with a kink after 0.2 and a jump after 0.5."""
    u = np.array([[[1, 2, 0, 0]], [[1.4, -1, 3, 0]], [[3.0, 0, 0, -1]]])
    return chain(60), make_lanes(rng.uniform(0, 1, 60), [30.0, 2.0], 1.0, u=u, m=3), [0.2, 0.5, 1.0]


CASES = pytest.mark.parametrize("case", [of_network, of_lotka_volterra, of_dae, of_chain])


def same_sums(integrator: Integrator, lanes: Lanes, rng, *, moving: bool) -> None:
    """Compare derivatives along random directions from either side, of three sums."""
    n_x, n_p, n_d = lanes.x0.shape[1], lanes.p.shape[1], 3
    weight = 1 / np.maximum(np.abs(lanes.p), 1e-3)
    dx0 = rng.standard_normal((lanes.size, n_x, n_d))
    dp = rng.standard_normal((lanes.size, n_p, n_d)) / weight[:, :, None]
    spans = rng.standard_normal((2, lanes.size, n_d)) if moving else None
    values = integrator.values(lanes)
    seeds = rng.standard_normal((lanes.size, 3, integrator.grid.size, n_x))
    ahead = integrator.sensitivities(lanes, values, dx0, dp, spans)
    back = integrator.adjoint(lanes, values, seeds)
    assert values.sensitivity_cache is not None
    assert ahead.failures == back.failures == ()
    forward = np.einsum("lamx,lmxd->lad", seeds, ahead.dx)
    backward = back.x0 @ dx0 + back.p @ dp
    if spans is not None:
        backward = backward + np.einsum("la,lkd->lad", back.start, spans[:1].transpose(1, 0, 2))
        backward = backward + np.einsum("la,lkd->lad", back.duration, spans[1:].transpose(1, 0, 2))
    size = np.einsum("lamx,lmxd->lad", np.abs(seeds), np.abs(ahead.dx))
    assert (np.abs(forward - backward) / size).max() < 1e-11
    recomputed_adjoint = integrator.adjoint(lanes, replace(values, sensitivity_cache=None), seeds)
    for kept_bar, recomputed_bar in zip(back.bars, recomputed_adjoint.bars, strict=True):
        np.testing.assert_array_equal(kept_bar, recomputed_bar)


@CASES
@pytest.mark.parametrize("tolerance", [1e-4, 1e-8])
def test_gradients_are_those_of_directions_along_the_same_steps(case, tolerance):
    rng = np.random.default_rng(3)
    model, lanes, grid = case(rng)
    options = IntegratorOptions("esdirk", tolerance, tolerance / 100, watch_sensitivities=False)
    # Inputs that vary do not move with lanes that have several intervals.
    same_sums(Integrator(model.system, grid, options), lanes, rng, moving=case is not of_chain)


@CASES
def test_many_sums_are_each_what_they_are_alone(case):
    rng = np.random.default_rng(7)
    model, lanes, grid = case(rng)
    integrator = Integrator(model.system, grid, IntegratorOptions("esdirk"))
    values = integrator.values(lanes, keep=True)
    seeds = rng.standard_normal((lanes.size, 131, integrator.grid.size, lanes.x0.shape[1]))  # in three parts
    joint_adjoint = integrator.adjoint(lanes, values, seeds)
    for j in (0, 43, 44, 130):
        single_adjoint = integrator.adjoint(lanes, values, seeds[:, [j]])
        for many, one in zip(joint_adjoint.bars, single_adjoint.bars, strict=True):
            np.testing.assert_allclose(many[:, [j]], one, rtol=1e-12, atol=1e-14 * np.abs(many).max())


def test_one_interval_with_an_input_moves_with_its_ends():
    rng = np.random.default_rng(4)
    u = np.array([[[1.0, 2.0, -0.5, 0.1]]])
    lanes = make_lanes(rng.uniform(0, 1, 60), [30.0, 2.0], 1.0, u=u, start=2.0)
    options = IntegratorOptions("esdirk", watch_sensitivities=False)
    same_sums(Integrator(chain(60).system, [1.0], options), lanes, rng, moving=True)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler for an integrator of its own")
def test_adjoint_with_inaccurate_factors_is_corrected(monkeypatch):
    """Every matrix is doubted, and its factors err by 1e-6, as those of badly scaled networks may."""
    rng = np.random.default_rng(5)
    _, lanes, grid = of_chain(rng)
    seeds = rng.standard_normal((1, 2, 3, 60))
    usual = esdirk_binding.integrator()
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted(esdirk_binding._FOLDER.glob("esdirk*.c")))
    changes = [(rf"#define {n} \S+", f"#define {n} {v}")
               for n, v in (("LARGEST_OF_MANY", "0.0"), ("ACCURATE", "-1.0"), ("ROUGH", "1.0"))]  # fmt: skip
    for old, new in [*changes, (r"inverse\[k\] = 1.0 / here", "inverse[k] = 1.000001 / here")]:
        source, count = re.subn(old, new, source)
        assert count == 1
    doubting = esdirk_binding.load(source, esdirk_binding._FLAGS)
    for name in ("castfit_integrate", "castfit_pull"):
        getattr(doubting, name).argtypes = getattr(usual, name).argtypes
        getattr(doubting, name).restype = getattr(usual, name).restype
    integrator = Integrator(chain(60).system, grid, IntegratorOptions("esdirk"))
    values = integrator.values(lanes, keep=True)
    adjoint = integrator.adjoint(lanes, values, seeds)
    monkeypatch.setattr(esdirk_binding, "integrator", lambda: doubting)
    for actual_bar, expected_bar in zip(integrator.adjoint(lanes, values, seeds).bars, adjoint.bars, strict=True):
        np.testing.assert_allclose(actual_bar, expected_bar, rtol=1e-12, atol=1e-13)


def test_stored_steps_reuse_the_previous_size_and_release_older_ones(monkeypatch):
    rng = np.random.default_rng(6)
    _, lanes, grid = of_chain(rng)
    seeds = rng.standard_normal((1, 1, 3, 60))
    monkeypatch.setattr(esdirk_binding, "_POOL_SIZE", 1000)
    integrator = Integrator(chain(60).system, grid, IntegratorOptions("esdirk"))
    first_values = integrator.values(lanes, keep=True)
    assert first_values.sensitivity_cache.count[0] == -1  # in so little room
    second_values = integrator.values(lanes, keep=True)
    assert second_values.sensitivity_cache.count[0] == second_values.steps
    monkeypatch.setattr(
        esdirk_binding, "_MAX_STORED_NUMBERS", int(1.5 * second_values.sensitivity_cache.buffers[0].size)
    )
    third_values = integrator.values(lanes, keep=True)
    assert (second_values.sensitivity_cache.count[0], third_values.sensitivity_cache.count[0]) == (
        -1,
        third_values.steps,
    )
    for adjoint in (integrator.adjoint(lanes, values, seeds) for values in (first_values, second_values)):
        for actual_bar, expected_bar in zip(
            adjoint.bars, integrator.adjoint(lanes, third_values, seeds).bars, strict=True
        ):
            np.testing.assert_array_equal(actual_bar, expected_bar)


def test_sparse_matrices_give_what_pivoting_gives(monkeypatch):
    rng = np.random.default_rng(5)
    _, lanes, grid = of_chain(rng)
    seeds = rng.standard_normal((1, 1, 3, 60))
    adjoints = []
    for order in (esdirk_binding.elimination, lambda *_: None):
        monkeypatch.setattr(esdirk_binding, "elimination", order)
        integrator = Integrator(chain(60).system, grid, IntegratorOptions("esdirk"))
        assert (integrator.stepping.model.elimination is None) == (len(adjoints) == 1)
        adjoints.append(integrator.adjoint(lanes, integrator.values(lanes), seeds))
    for actual_bar, expected_bar in zip(adjoints[0].bars, adjoints[1].bars, strict=True):
        np.testing.assert_allclose(actual_bar, expected_bar, rtol=1e-9, atol=1e-11)


def test_gradients_agree_with_another_method():
    lanes = make_lanes([0.4, 1.0], np.ones(4), 5.0, start=1.0)
    seeds = np.ones((1, 1, 1, 2))
    bars = []
    for method in ("esdirk", "cvodes"):
        integrator = Integrator(lotka_volterra().system, [1.0], IntegratorOptions(method, 1e-10, 1e-12))
        bars.append(integrator.adjoint(lanes, integrator.values(lanes), seeds).bars)
    for esdirk_bar, cvodes_bar in zip(*bars, strict=True):
        np.testing.assert_allclose(esdirk_bar, cvodes_bar, rtol=1e-6, atol=1e-7)


def test_lanes_of_no_duration_stand_still():
    lanes = make_lanes([0.4, 1.0], np.ones((2, 4)), [0.0, 1.0], m=2)
    integrator = Integrator(lotka_volterra().system, [0.5, 1.0], IntegratorOptions("esdirk"))
    adjoint = integrator.adjoint(lanes, integrator.values(lanes), np.ones((2, 1, 2, 2)))
    np.testing.assert_array_equal(adjoint.x0[0], [[2.0, 2.0]])
    np.testing.assert_array_equal(adjoint.p[0], 0.0)
    np.testing.assert_allclose(adjoint.duration[0], 2 * (-0.4 + 0.4 + 1 - 0.4))


def test_steps_that_are_kept_belong_to_their_lanes():
    lanes = make_lanes([0.4, 1.0], np.ones(4), 5.0)
    integrator = Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk"))
    seeds = np.ones((1, 1, 1, 2))
    values = integrator.values(lanes, keep=True)
    assert values.sensitivity_cache is not None
    other_lanes = replace(lanes, p=lanes.p * 1.1)
    other_adjoint = integrator.adjoint(other_lanes, integrator.values(other_lanes), seeds)
    np.testing.assert_array_equal(integrator.adjoint(other_lanes, values, seeds).p, other_adjoint.p)
    directions = np.zeros((1, 2, 1)), np.ones((1, 4, 1))
    np.testing.assert_array_equal(
        integrator.sensitivities(lanes, values, *directions).dx,
        integrator.sensitivities(lanes, replace(values, sensitivity_cache=None), *directions).dx,
    )


def test_threads_give_the_same_numbers():
    rng = np.random.default_rng(6)
    lanes = make_lanes([0.4, 1.0], rng.uniform(0.8, 1.2, (9, 4)), 5.0)
    integrator = Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk"))
    seeds = rng.standard_normal((9, 2, 1, 2))
    serial_adjoint = integrator.adjoint(lanes, integrator.values(lanes, keep=True), seeds)
    with lanes_divided(3):
        divided = integrator.adjoint(lanes, integrator.values(lanes, keep=True), seeds)
    with ThreadPoolExecutor(2) as pool:
        thread_integrator = Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk"))
        other = pool.submit(lambda: thread_integrator.adjoint(lanes, thread_integrator.values(lanes), seeds)).result()
    for adjoint in (divided, other):
        for actual_bar, expected_bar in zip(adjoint.bars, serial_adjoint.bars, strict=True):
            np.testing.assert_array_equal(actual_bar, expected_bar)


# What goes wrong


def test_a_derivative_that_does_not_exist_is_reported_for_its_lane_alone():
    x, k = symbols("x k")
    model = Model({x: -ca.sqrt(k) * x}, parameters=[k])
    lanes = make_lanes([1.0], [[0.0], [1.0]], 1.0)
    integrator = Integrator(model.system, [1.0], IntegratorOptions("esdirk"))
    values = integrator.values(lanes)
    assert values.failures == ()
    adjoint = integrator.adjoint(lanes, values, np.ones((2, 1, 1, 1)))
    assert [(f.lane, f.cause) for f in adjoint.failures] == [(0, "not_finite")]
    assert np.isnan(adjoint.x0[0]).all()
    np.testing.assert_allclose(adjoint.p[1], [[-0.5 * np.exp(-1)]])


def test_adjoint_without_memory_for_steps_uses_another_method(monkeypatch):
    """A lane whose steps need more than there is goes to another method, which starts again from points on the way."""
    lanes = make_lanes([0.4, 1.0], np.ones(4), 10.0)
    integrator = Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk"))
    values, seeds = replace(integrator.values(lanes), sensitivity_cache=None), np.ones((1, 1, 1, 2))
    reference_adjoint = integrator.adjoint(lanes, values, seeds)
    assert reference_adjoint.rescued_lanes == ()
    monkeypatch.setattr(esdirk_binding, "_MAX_ADJOINT_NUMBERS", 2000)
    adjoint = integrator.adjoint(lanes, values, seeds)
    assert adjoint.rescued_lanes == (0,)
    assert adjoint.failures == ()
    np.testing.assert_allclose(adjoint.p, reference_adjoint.p, rtol=1e-5)


def test_adjoint_stops_between_lanes_and_can_be_repeated(monkeypatch):
    lanes = make_lanes([0.4, 1.0], np.ones((3, 4)), 5.0)
    integrator = Integrator(lotka_volterra().system, [1.0], IntegratorOptions("esdirk"))
    values, seeds = integrator.values(lanes, keep=True), np.ones((3, 1, 1, 2))
    expected = integrator.adjoint(lanes, values, seeds)
    looks = []

    def stop() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise StopRequested(Status.MAX_TIME)

    monkeypatch.setattr(esdirk_binding, "check_deadline", stop)
    monkeypatch.setattr(esdirk_binding, "_STEPS_PER_CALL", 1)
    with pytest.raises(StopRequested):
        integrator.adjoint(lanes, values, seeds)
    assert len(looks) == 2
    adjoint = integrator.adjoint(lanes, values, seeds)
    for actual_bar, expected_bar in zip(adjoint.bars, expected.bars, strict=True):
        np.testing.assert_array_equal(actual_bar, expected_bar)
    assert len(looks) == 5
