"""A real local cluster of separate processes, as slow to start as clusters are."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
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
    assert "Start 1: The worker was lost (KilledWorker" in result.message


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


@contextmanager
def cluster_with_scheduler() -> Iterator[tuple[Any, Any]]:
    """Start a scheduler and two workers in processes of their own; yield the client and the scheduler's process."""
    import distributed

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    no_output: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler_call = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    worker_call = ["-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nworkers", "2", "--nthreads", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        subprocess.Popen([sys.executable, *scheduler_call, "--no-dashboard"], **no_output) as scheduler,
        subprocess.Popen([sys.executable, *worker_call, "--no-dashboard"], env=environment, **no_output) as workers,
    ):
        client = distributed.Client(f"tcp://127.0.0.1:{port}", timeout=60)
        client.wait_for_workers(2, timeout=120)
        try:
            yield client, scheduler
        finally:
            workers.terminate()
            scheduler.kill()
            client.close(timeout=1)


@pytest.mark.parametrize("name", ["fit", "multistart", "mixed_effects"])
def test_scheduler_that_goes_away_leaves_the_best_point_and_one_sentence(name):
    with cluster_with_scheduler() as (client, scheduler):

        def stop(_: object) -> None:
            scheduler.kill()
            scheduler.wait()

        options: dict[str, Any] = {"workers": client.get_executor(), "callback": stop}
        if name == "fit":
            transcription = cf.SingleShooting(cf.IntegratorOptions(method="cvodes"))
            result: Any = cf.fit(wells(), transcription, **options)
            assert np.isfinite(result.cost)
        elif name == "multistart":
            result = cf.multistart(pole(), cf.SingleShooting(), STRAIGHT, starts=40, **options)
            assert result.best is not None
        else:
            population = cf.Population({"b": cf.Individual(distribution="normal", omega=0.1)})
            result = cf.mixed_effects(wells(12), population, **options)
            assert np.isfinite(result.neg2loglik)
    assert not result.success or name == "multistart"
    assert result.message.count("The connection to the workers was lost") == 1
    assert "Start" not in result.message
