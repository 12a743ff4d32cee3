"""Many starts on many machines, and one fit
=========================================

Many starts on many machines: the same table from this process, from two processes, and from a Dask cluster.  Then one
fit whose experiments are integrated all over the cluster.

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

N_STARTS = 12  # number of starting points


def search(**options: object) -> cf.MultistartResult:
    """Search for the optimum from random starts."""
    benchmark = problems.load("alpha_pinene")
    return cf.multistart(
        benchmark.problem,
        cf.SingleShooting(),
        starts=N_STARTS,
        sampling="log_uniform",
        limits=dict.fromkeys(benchmark.problem.names, (1e-6, 1e-2)),
        rng=1,
        fit_max_time=60,
        **options,
    )


def estimates(result: cf.MultistartResult) -> np.ndarray:
    """Return the estimates of all starts, (starts, quantities)."""
    return np.array([[row.values.get(name, np.nan) for name in row.start] for row in result.starts])


def many_wells(count: int = 24) -> cf.Problem:
    """Return a problem of many experiments: decays of order 1.5 with a common rate and own backgrounds."""
    x, k, b = cf.symbols("x k b")
    model = cf.Model({x: -k * x**1.5}, parameters=[k, b], outputs={"y": x + b}, initial={x: 2.0})
    rng, times = np.random.default_rng(0), np.linspace(0.5, 6.0, 10)
    exact = (1 / np.sqrt(2.0) + 0.2 * times) ** -2
    wells = [
        cf.Experiment({"y": exact + 0.1 * i / count + 0.02 * rng.standard_normal(10)}, time=times, sigma=0.02)
        for i in range(count)
    ]
    return cf.Problem(model, wells, parameters={"k": 0.9, "b": cf.Parameter(0.3, local=True)})


# Workers import this script, so that what it does stands below this line.
if __name__ == "__main__":
    local_search = search()
    print(local_search)

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        # Should this machine fail, the same line run again repeats only what was not finished.
        checkpoint = Path(folder) / "alpha_pinene.jsonl"
        cluster_search = search(workers=client.get_executor(), checkpoint=checkpoint, resume=True)
        finished = cf.MultistartResult.load(checkpoint)

        # One fit of many experiments takes the same word.  The model travels to each worker once; then parameters go
        # there, states and sensitivities come back, and a worker that dies costs nothing but time.
        shared = cf.fit(many_wells(), cf.SingleShooting(), workers=client.get_executor())

    single_process_fit = cf.fit(many_wells(), cf.SingleShooting())
    assert single_process_fit.success
    np.testing.assert_array_equal(shared.theta, single_process_fit.theta)  # bit for bit, too

    processes = search(workers=2)
    for other in (cluster_search, processes, finished):
        np.testing.assert_array_equal(estimates(other), estimates(local_search))  # bit for bit
    reference = problems.load("alpha_pinene").reference
    assert local_search.success
    assert reference.is_reached(local_search.best.chi2)
    figure = cf.plots.waterfall(local_search)
    print(f"The same {N_STARTS} rows from one process, two processes and a Dask cluster, and one fit of 24 wells.")
