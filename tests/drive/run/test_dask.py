"""A real local cluster of separate processes, as slow to start as clusters are."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import castfit as cf
from tests.drive.chores import STRAIGHT, Troubled, pole, rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("distributed") is None, reason="Dask is not installed"),
    pytest.mark.filterwarnings("default"),  # those of Dask are not ours
]


@contextmanager
def client_of(workers: int) -> Iterator[Any]:
    """Start a cluster that waits for workers which are started again; it gives up after 15 s, and may end with none."""
    import dask
    import distributed

    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"}),
        distributed.LocalCluster(workers, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def executor():
    with client_of(2) as client:
        yield client.get_executor()


def test_a_cluster_gives_the_table_of_one_process(executor):
    one, other = (
        cf.multistart(pole(), cf.SingleShooting(), STRAIGHT, starts=12, max_draws=2, workers=w) for w in (1, executor)
    )
    assert rows(one) == rows(other)
    assert one.best.values == other.best.values


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_worker_that_dies_costs_its_start(executor):
    starts = [{"k": k} for k in (0.2, 0.7, 0.4, 0.5)]
    troubled = Troubled(trouble="die", above=0.6, below=0.9)
    result = cf.multistart(pole(), troubled, STRAIGHT, starts=starts, workers=executor)
    assert [row.status for row in result.starts] == ["converged", "worker_died", "converged", "converged"]
    assert "Start 1: Its worker was lost (KilledWorker" in result.message


def wells(count: int = 40) -> cf.Problem:
    """Decays from one dose, each with a background of its own."""
    x, k, b = cf.symbols("x k b")
    model = cf.Model({x: -k * x**1.5}, parameters=[k, b], outputs={"y": x + b}, initial={x: 2.0})
    rng, times = np.random.default_rng(0), np.linspace(0.5, 6.0, 10)
    exact = (1 / np.sqrt(2.0) + 0.2 * times) ** -2
    data = [exact + 0.1 * i / count + 0.02 * rng.standard_normal(10) for i in range(count)]
    experiments = [cf.Experiment({"y": y}, times, sigma=0.02) for y in data]
    return cf.Problem(model, experiments, parameters={"k": 0.9, "b": cf.Parameter(0.3, local=True)})


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_one_fit_of_four_workers_survives_the_death_of_one():
    """Workers hold the model, and population fits hold their individuals; one of four is killed in the middle."""
    problem, how = wells(), cf.SingleShooting(cf.IntegratorOptions(method="cvodes"))
    here = cf.fit(problem, how)
    starts = [{"k": 0.5}, {"k": 1.2}]
    searched = cf.multistart(problem, how, starts=starts)
    population, subjects = cf.Population({"b": cf.Individual(distribution="normal", omega=0.1)}), wells(12)
    mixed = cf.mixed_effects(subjects, population, max_iter=3, standard_errors=False)
    killed: list[int] = []
    with client_of(4) as client:

        def kill(now: object) -> None:
            if not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        workers = client.get_executor()
        there = cf.fit(problem, how, workers=workers, callback=kill)
        again = cf.multistart(problem, how, starts=starts, workers=workers)
        killed.clear()
        far = cf.mixed_effects(subjects, population, max_iter=3, standard_errors=False, workers=workers, callback=kill)
        profile_there = cf.profile(here, "k", how, workers=workers)
    profile_here = cf.profile(here, "k", how)
    assert here.success
    for name in ("theta", "residuals"):
        assert getattr(here, name).tobytes() == getattr(there, name).tobytes()
    assert np.asarray(here.covariance).tobytes() == np.asarray(there.covariance).tobytes()
    assert here.iterations == there.iterations
    assert rows(searched) == rows(again)
    assert mixed.history == far.history
    assert mixed.y.tobytes() == far.y.tobytes()
    assert mixed.phi.tobytes() == far.phi.tobytes()
    assert profile_here.limits() == profile_there.limits()
