"""Many starts on many machines
============================

Many starts on many machines: the same table from this process, from two processes, and from a Dask cluster.

Isomerisation of alpha-pinene (Box et al. 1973), single shooting from random rate constants.  The numbers do not depend
on where a start runs: each has a random stream of its own, and rows stand in the order of the starts.  Needs
``pip install castfit[dask]``.

A cluster is reached by the address of its scheduler, ``Client("tcp://...:8786")``; here one is started on this machine,
in processes of its own.  On machines with MPI the same works with

    from mpi4py.futures import MPIPoolExecutor

    with MPIPoolExecutor() as executor:
        castfit.multistart(problem, workers=executor)

in a script that is started by ``mpiexec -n 64 python -m mpi4py.futures script.py``.
"""

import tempfile
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster

import castfit as cf
from castfit import problems

STARTS = 12


def search(**options: object) -> cf.MultistartResult:
    """Search for the optimum from random starts."""
    benchmark = problems.load("alpha_pinene")
    return cf.multistart(
        benchmark.problem,
        cf.SingleShooting(),
        starts=STARTS,
        sampling="log_uniform",
        limits=dict.fromkeys(benchmark.problem.names, (1e-6, 1e-2)),
        rng=1,
        start_max_time=60,
        **options,
    )


def estimates(result: cf.MultistartResult) -> np.ndarray:
    """Return the estimates of all starts, (starts, quantities)."""
    return np.array([[row.values.get(name, np.nan) for name in row.start] for row in result.starts])


# Workers import this script, so that what it does stands below this line.
if __name__ == "__main__":
    here = search()
    print(here)

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        # Should this machine fail, the same line run again repeats only what was not finished.
        checkpoint = Path(folder) / "alpha_pinene.jsonl"
        there = search(workers=client.get_executor(), checkpoint=checkpoint, resume=True)
        finished = cf.MultistartResult.load(checkpoint)

    processes = search(workers=2)
    for other in (there, processes, finished):
        np.testing.assert_array_equal(estimates(other), estimates(here))  # bit for bit
    reference = problems.load("alpha_pinene").reference
    assert here.success
    assert reference.is_reached(here.best.chi2)
    print(f"The same {STARTS} rows from one process, two processes and a Dask cluster.")
