"""What a fit takes from the machine, and gives back."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import castfit as cf
from castfit.transcribe.shooting_problem import ShootingProblem

MANY_DATA = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (6_000_000_000, 6_000_000_000))
import numpy as np, castfit as cf
x, k = cf.symbols("x k")
t = np.linspace(0, 10, 100_000)
y = np.exp(-0.3 * t) + 0.01 * np.random.default_rng(0).normal(size=t.size)
problem = cf.Problem(
    cf.Model({x: -k * x}, parameters=[k]),
    cf.Experiment({"x": y}, time=t, sigma=0.01, initial={"x": 1.0}),
    parameters={"k": 0.5},
)
result = cf.fit(problem, cf.SingleShooting())
print(result.success, result.parameters["k"], result.standard_errors["k"], result.chi2)
"""

COMPILED = """
import os, castfit as cf
def fit():
    x, k = cf.symbols("x k")
    problem = cf.Problem(
        cf.Model({x: -k * x}, parameters=[k]),
        cf.Experiment({"x": [0.7, 0.5, 0.36, 0.25]}, time=[1.0, 2.0, 3.0, 4.0], initial={"x": 1.0}),
        parameters={"k": 0.5},
    )
    assert cf.fit(problem, cf.SingleShooting(cf.IntegratorOptions(compile="always"))).success
fit()
before = len(os.listdir("/proc/self/fd"))
for _ in range(2):
    fit()
print(len(os.listdir("/proc/self/fd")) - before)
"""


def run(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are set as Linux has them")
def test_single_shooting_of_1e5_data_needs_memory_in_proportion_to_them():
    success, k, error, chi2 = run(MANY_DATA)
    assert success == "True"
    assert float(k) == pytest.approx(0.3, abs=4 * float(error))
    assert float(error) == pytest.approx(3.4e-5, rel=0.05)
    assert float(chi2) == pytest.approx(1e5, rel=0.02)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted as Linux shows them")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_compiled_fits_leave_no_files_open():
    assert run(COMPILED) == ["0"]


def test_fit_starts_no_linearization_that_exceeds_the_time_limit(clock, monkeypatch):
    began, real = [], ShootingProblem._linearize

    def slow(staged, *arguments):
        began.append(staged)
        clock.sleep(1.2)
        return real(staged, *arguments)

    monkeypatch.setattr(ShootingProblem, "_linearize", slow)
    benchmark = cf.problems.load("lotka_volterra")
    result = cf.fit(benchmark.problem, "single", start=benchmark.starts["reference"], max_time=3.0)
    assert 1 <= len(began) <= 2  # the third would end after 3.6 seconds, and another one would judge
    assert result.status is cf.Status.MAX_TIME
    assert "was not verified, which would take about" in result.message
    assert np.isfinite(result.objective)
    assert result.parameters.keys() == {"p1", "p2", "p3", "p4"}
