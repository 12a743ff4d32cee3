"""Lanes laid once give to the last bit what the integrator gives, and leave to it what they cannot do."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from castfit.integrate import Integrator, IntegratorOptions
from castfit.integrate.distributed import lanes_divided
from castfit.integrate.esdirk_binding import missing_integrator_reason
from castfit.integrate.lanes import Lanes
from castfit.integrate.repeated_lanes import RepeatedLanes
from castfit.model.model import Model, symbols
from tests.integrate.test_integrator import identity_seeds, lotka_volterra
from tests.workers import Post

pytestmark = pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")

GRID = np.linspace(0.0, 1.0, 6)


def several(n_u: int = 0) -> Lanes:
    random = np.random.default_rng(3)
    return Lanes(
        start=np.array([0.0, 1.0, 2.0]), duration=np.array([8.0, 5.0, -1.0]), x0=1.0 + 0.1 * random.random((3, 2)),
        p=1.0 + 0.1 * random.random((3, 4)), u=random.random((3, GRID.size, n_u, 4)) * [1, 0, 0, 0],
        z0=np.empty((3, 0)), unit=np.full((3, 2), 0.5),
    )  # fmt: skip


def same(actual, expected) -> bool:
    arrays = [name for name, part in vars(expected).items() if isinstance(part, np.ndarray)]
    field_names = ("failures", "rescued_lanes", "steps")
    return all(np.array_equal(getattr(actual, a), getattr(expected, a), equal_nan=True) for a in arrays) and all(
        getattr(actual, name) == getattr(expected, name) for name in field_names
    )


def driven() -> Model:
    x, y, a, b, c, d, u = symbols("x y a b c d u")
    return Model({x: a * x - b * x * y + u, y: c * x * y - d * y}, parameters=[a, b, c, d], inputs=[u])


@pytest.mark.parametrize("model", [lotka_volterra(), driven()], ids=["autonomous", "driven"])
@pytest.mark.parametrize("watch", [True, False])
def test_repeated_lanes_equal_separate_integration(model, watch):
    integrator = Integrator(model.system, GRID, IntegratorOptions(watch_sensitivities=watch))
    assert integrator.stepping is not None
    lanes = several(len(model.inputs))
    repeated = RepeatedLanes(integrator, replace(lanes, x0=np.empty((3, 2)), p=np.empty((3, 4))))
    for factor in (1.0, 1.1, 1.0):
        scaled_lanes = replace(lanes, x0=factor * lanes.x0, p=factor * lanes.p)
        reused_lanes = repeated.lanes(scaled_lanes.x0, scaled_lanes.p)
        states = repeated.values(reused_lanes)
        expected = integrator.values(scaled_lanes)
        assert same(states, expected)
        seeds = identity_seeds(scaled_lanes)
        directions = np.concatenate(seeds[::-1], axis=1)
        slopes = integrator.sensitivities(scaled_lanes, expected, *seeds)
        assert same(repeated.differentiated(reused_lanes, directions, states)[1], slopes)
        for values_and_slopes in (
            repeated.differentiated(reused_lanes, directions),
            integrator.differentiated(scaled_lanes, *seeds),
        ):
            assert same(values_and_slopes[0], expected)
            assert same(values_and_slopes[1], slopes)


def test_repeated_lanes_failures_equal_those_of_the_integrator():
    x, y, a = symbols("x y a")
    model = Model({x: x**2, y: a * y}, parameters=[a])
    lanes = Lanes(
        np.zeros(3), np.full(3, 2.0), np.array([[0.1, 1.0], [1.0, 1.0], [0.2, 1.0]]), np.array([[1.0], [1.0], [2.0]]),
        np.empty((3, GRID.size, 0, 4)), np.empty((3, 0)),
    )  # fmt: skip
    integrator = Integrator(model.system, GRID)
    repeated = RepeatedLanes(integrator, lanes)
    reused_lanes = repeated.lanes(lanes.x0, lanes.p)
    states = repeated.values(reused_lanes)
    expected = integrator.values(lanes)
    assert [failure.lane for failure in states.failures] == [1]
    assert same(states, expected)
    seeds = identity_seeds(lanes)
    directions = np.concatenate(seeds[::-1], axis=1)
    _, sensitivities = repeated.differentiated(reused_lanes, directions, states)
    assert same(sensitivities, integrator.sensitivities(lanes, expected, *seeds))
    at_once, slopes = repeated.differentiated(reused_lanes, directions)
    assert same(at_once, expected)
    assert same(slopes, sensitivities)
    assert np.isfinite(sensitivities.dx[[0, 2]]).all()


def test_repeated_lanes_with_threads_or_zero_duration_use_the_integrator():
    integrator = Integrator(lotka_volterra().system, GRID)
    lanes = several()
    repeated = RepeatedLanes(integrator, lanes)
    with lanes_divided(2):
        assert same(repeated.values(lanes), integrator.values(lanes))
    still_lanes = replace(lanes, duration=np.array([8.0, 0.0, -1.0]))
    values = RepeatedLanes(integrator, still_lanes).values(still_lanes)
    assert same(values, integrator.values(still_lanes))
    assert (values.x[1] == lanes.x0[1]).all()


def at_rest(method: str) -> tuple[Integrator, Lanes]:
    """A DAE whose states rest in every other lane, so that directions there need steps of their own."""
    x, y, z, k, c, u = symbols("x y z k c u")
    model = Model({x: -k * x, y: z - c * y}, algebraic={z: z**3 + z == k * x + u}, parameters=[k, c], inputs=[u])
    random = np.random.default_rng(5)
    lanes = Lanes(
        start=np.zeros(8), duration=np.full(8, 30.0), x0=np.repeat([[0.0, 0.0], [1.0, 0.5]], 4, axis=0)[::-1],
        p=1.0 + 0.1 * random.random((8, 2)), u=random.random((8, GRID.size, 1, 4)) * [1, 0, 0, 0],
        z0=np.full((8, 1), 0.3), unit=np.ones((8, 3)),
    )  # fmt: skip
    return Integrator(model.system, GRID, IntegratorOptions(method)), lanes


@pytest.mark.parametrize(
    ("method", "executor"),
    [("idas", None), ("esdirk", Post), pytest.param("esdirk", ProcessPoolExecutor, marks=pytest.mark.slow)],
)
def test_results_do_not_depend_on_call_or_worker(method, executor):
    integrator, lanes = at_rest(method)
    dx0, dp = identity_seeds(lanes)
    values = integrator.values(lanes)
    slopes = integrator.sensitivities(lanes, values, dx0, dp)
    exact = np.exp(-lanes.p[:, :1] * lanes.duration[:, None] * GRID)  # of x by its initial state
    np.testing.assert_allclose(slopes.dx[:, :, 0, 0], exact, rtol=1e-5, atol=1e-7)

    def check() -> None:
        assert same(integrator.values(lanes), values)
        separate_slopes = [
            integrator.sensitivities(lanes, states, dx0, dp)
            for states in (values, replace(values, sensitivity_cache=None))
        ]
        joint_values, joint_slopes = integrator.differentiated(lanes, dx0, dp)
        assert same(joint_values, values)
        assert all(same(actual, slopes) for actual in (joint_slopes, *separate_slopes))

    check()
    with lanes_divided(2):
        check()
    if executor is not None:
        with executor(1) as pool, lanes_divided(pool):
            check()
