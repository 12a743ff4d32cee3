"""The BLAS kernel is known, and recorded with each result."""

import os
import platform
import subprocess
import sys

import pytest

import castfit as cf
from castfit._support.blas_threads import blas_kernel, openblas


@pytest.mark.skipif(not openblas() or platform.machine() not in ("x86_64", "AMD64"), reason="needs OpenBLAS on x86")
@pytest.mark.parametrize("kernel", ["Nehalem", "Sandybridge"])
def test_kernel_chosen_by_the_environment_is_reported(kernel):
    code = "from castfit._support.blas_threads import blas_kernel; import sys; sys.stdout.write(blas_kernel())"
    environment = {**os.environ, "OPENBLAS_CORETYPE": kernel}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == kernel


def test_results_record_versions_and_kernel(tmp_path):
    x, k = cf.symbols("x k")
    experiment = cf.Experiment({"x": [1.2, 0.8, 0.5]}, time=[1, 2, 3], sigma=0.1)
    problem = cf.Problem(cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0}), experiment, parameters={"k": 0.4})
    result = cf.fit(problem)
    result.save(tmp_path / "fit.json")
    versions = cf.Result.load(tmp_path / "fit.json").versions
    assert versions == result.versions
    assert {"castfit", "casadi", "numpy", "blas"} <= versions.keys()
    assert versions["blas"] == blas_kernel()
