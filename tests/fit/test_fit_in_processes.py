"""One fit whose lanes are integrated by several processes: the same bits, whatever happens to them."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import castfit as cf
from castfit.integrate import distributed
from castfit.integrate.distributed import lanes_divided

CVODES = cf.IntegratorOptions(method="cvodes")


def animals(count: int = 9) -> cf.Problem:
    """One compartment with an infusion that ends at another time for each second animal; an own rate for each."""
    x, k, v, feed = cf.symbols("x k v feed")
    model = cf.Model({x: feed - k * x}, parameters=[k, v], inputs=[feed], outputs={"y": x / v}, initial={x: 0.0})
    times, rng = np.linspace(0.5, 6.0, 7), np.random.default_rng(3)
    experiments: list[cf.Experiment] = []
    for i in range(count):
        end, rate = 1.0 + i % 2, 0.3 + 0.05 * i
        x_end = (1 - np.exp(-rate * end)) / rate
        y = np.where(times < end, (1 - np.exp(-rate * times)) / rate, x_end * np.exp(-rate * (times - end)))
        data = {"y": y / 2.0 + 0.01 * rng.standard_normal(times.size)}
        feeding = cf.Input.piecewise_constant([0.0, end], [1.0, 0.0])
        experiments.append(cf.Experiment(data, times, sigma=cf.unknown(), inputs={"feed": feeding}))
    return cf.Problem(model, experiments, parameters={"k": cf.Parameter(0.5, lower=0.01, local=True), "v": 1.5})


def bits(result: cf.Result) -> tuple[object, ...]:
    """Return what must not depend on where lanes are integrated."""
    arrays = result.theta, result.residuals, np.asarray(result.covariance)
    return (*(a.tobytes() for a in arrays), result.iterations, result.message)


@pytest.fixture(scope="module")
def hired():
    """Two processes for all tests here; they are started at once, although these fits do not need them."""
    with pytest.MonkeyPatch.context() as patch, lanes_divided(2):
        patch.setattr(distributed, "_MIN_SECONDS_TO_START_WORKERS", 0.0)
        yield distributed.workers()


@pytest.mark.parametrize("transcription", [cf.SingleShooting(CVODES), cf.MultipleShooting(2, integrator=CVODES)])
def test_processes_change_no_number(hired, transcription):
    one, two = (cf.fit(animals(), transcription, workers=workers) for workers in (1, 2))
    assert one.success
    assert bits(one) == bits(two)
    assert hired.pool._staff


def test_algebraic_equations_and_adjoint_states_change_no_number(hired):
    x, z, k = cf.symbols("x z k")
    model = cf.Model({x: -z}, algebraic={z: z + 0.1 * z**3 - k * x}, parameters=[k], outputs={"y": z})
    times, rng = np.linspace(0.3, 3.0, 6), np.random.default_rng(1)
    experiments = [
        cf.Experiment({"y": a * np.exp(-0.7 * times) + 0.01 * rng.standard_normal(6)}, times, sigma=0.02,
                      initial={"x": cf.free(1.0)}) for a in (0.7, 0.8, 0.9)
    ]  # fmt: skip
    problem = cf.Problem(model, experiments, parameters={"k": 0.5})
    idas = cf.IntegratorOptions(method="idas")
    one, two = (cf.fit(problem, cf.SingleShooting(idas), workers=workers) for workers in (1, 2))
    assert one.success
    assert bits(one) == bits(two)
    adjoint = cf.SingleShooting(CVODES, derivatives="adjoint")
    one, two = (cf.fit(animals(3), adjoint, cf.Ipopt(max_iter=8), workers=workers) for workers in (1, 2))
    assert bits(one) == bits(two)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(hired):
    killed: list[int] = []

    def kill(iteration: object) -> None:
        if len(killed) < 2:
            worker = hired.pool._staff[0]
            killed.append(worker.process.pid)
            worker.process.kill()

    one = cf.fit(animals(), cf.SingleShooting(CVODES))
    two = cf.fit(animals(), cf.SingleShooting(CVODES), workers=2, callback=kill)
    assert len(set(killed)) == 2
    assert bits(one) == bits(two)


def test_an_executor_that_takes_no_work_is_refused():
    with ThreadPoolExecutor(1) as pool:
        pass
    with pytest.raises(cf.InputError, match="The executor accepts no more tasks"):
        cf.fit(animals(3), cf.SingleShooting(CVODES), workers=pool)


def test_any_executor_will_do_and_threads_of_it_share_nothing():
    with ThreadPoolExecutor(2) as pool:
        one, two = (cf.fit(animals(5), cf.SingleShooting(CVODES), workers=workers) for workers in (1, pool))
    assert bits(one) == bits(two)


def test_short_fits_start_no_process(monkeypatch):
    monkeypatch.setattr(distributed, "_MIN_SECONDS_TO_START_WORKERS", 1.0)
    children_before = set(multiprocessing.active_children())
    cf.fit(animals(3), cf.SingleShooting(CVODES), workers=3)
    assert set(multiprocessing.active_children()) <= children_before


def test_a_limit_of_time_ends_what_processes_do(hired):
    result = cf.fit(animals(), cf.SingleShooting(CVODES), workers=2, max_time=1e-3)
    assert result.status is cf.Status.MAX_TIME
