"""A real local cluster of separate processes, as slow to start as clusters are."""

from __future__ import annotations

import os

import pytest

import castfit as cf
from tests.drive.chores import STRAIGHT, Troubled, pole, rows

distributed = pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # those of Dask are not ours
]


@pytest.fixture(scope="module")
def executor():
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
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
