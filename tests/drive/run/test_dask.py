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
    problem, transcription = wells(), cf.SingleShooting(cf.IntegratorOptions(method="cvodes"))
    local_result = cf.fit(problem, transcription)
    starts = [{"k": 0.5}, {"k": 1.2}]
    local_multistart = cf.multistart(problem, transcription, starts=starts)
    population, subjects = cf.Population({"b": cf.Individual(distribution="normal", omega=0.1)}), wells(12)
    local_population = cf.mixed_effects(subjects, population, max_iter=3, standard_errors=False)
    killed: list[int] = []
    with client_of(4) as client:

        def kill(iteration: object) -> None:
            if not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        workers = client.get_executor()
        remote_result = cf.fit(problem, transcription, workers=workers, callback=kill)
        remote_multistart = cf.multistart(problem, transcription, starts=starts, workers=workers)
        killed.clear()
        remote_population = cf.mixed_effects(
            subjects, population, max_iter=3, standard_errors=False, workers=workers, callback=kill
        )
        profile_there = cf.profile(local_result, "k", transcription, workers=workers)
    profile_here = cf.profile(local_result, "k", transcription)
    assert local_result.success
    for name in ("theta", "residuals"):
        assert getattr(local_result, name).tobytes() == getattr(remote_result, name).tobytes()
    assert np.asarray(local_result.covariance).tobytes() == np.asarray(remote_result.covariance).tobytes()
    assert local_result.iterations == remote_result.iterations
    assert rows(local_multistart) == rows(remote_multistart)
    assert local_population.history == remote_population.history
    assert local_population.y.tobytes() == remote_population.y.tobytes()
    assert local_population.phi.tobytes() == remote_population.phi.tobytes()
    assert profile_here.limits() == profile_there.limits()
