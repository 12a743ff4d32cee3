"""Fits that need more memory than is available end in a sentence, before an allocation if its size is known."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import castfit as cf
from castfit._support import time_limit
from tests.builders import decay_problem, refused


@pytest.mark.parametrize("method", [cf.Collocation(elements=50), cf.MultipleShooting(50)], ids=lambda m: m.label)
def test_derivatives_beyond_the_available_memory_are_refused(method, monkeypatch):
    monkeypatch.setattr(time_limit, "_CHECKED_MEMORY_BYTES", 0.0)
    monkeypatch.setattr(time_limit, "available_memory", lambda: 1e3)
    with refused("memory are needed, but 0.001 MB are available; use SingleShooting()"):
        cf.fit(decay_problem(), method)
    assert cf.fit(decay_problem(), "single").success
    monkeypatch.setattr(time_limit, "available_memory", lambda: 1e6)
    assert cf.fit(decay_problem(), method).success


def test_limits_of_control_groups_count_without_cached_files(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 400000\nactive_file 100000\n")
    files = str(tmp_path / "memory.max"), str(tmp_path / "memory.current")
    monkeypatch.setattr(time_limit, "_CGROUP_FILES", (files,))
    assert time_limit.available_memory() == 500000.0
    (tmp_path / "memory.max").write_text("max\n")
    assert time_limit.available_memory() > 1e6


@pytest.mark.parametrize("raised", [MemoryError("no room"), RuntimeError("x.cpp:1: Map::init failed: std::bad_alloc")])
def test_failed_allocation_names_the_call(raised, monkeypatch):
    """Guards within a call add nothing to the sentence."""
    result = cf.fit(decay_problem())

    def fail(*_):
        raise raised

    monkeypatch.setattr(cf.Experiment, "until", fail)
    with pytest.raises(
        MemoryError, match=r"^cf\.incremental needs more memory than is available \(.*\); use"
    ) as caught:
        cf.incremental(decay_problem(), "single", horizons=[2.0, 4.0])
    assert str(caught.value).count("needs more memory") == 1
    assert result.success


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_allocation_that_fails_in_casadi_or_numpy_ends_in_a_sentence():
    script = """
import resource
import numpy as np
import castfit as cf
from tests.bad_inputs import noisy, problem, result
result(), noisy()
resource.setrlimit(resource.RLIMIT_AS, (1200 * 2**20,) * 2)
for call in (lambda: result().predict(np.linspace(0.0, 5.0, 50_000_000)), lambda: noisy().laplace_check(10**6)):
    try:
        call()
    except (MemoryError, cf.CastfitError) as error:
        print("said", str(error)[:300])
"""
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False, env=None
    )
    assert process.stdout.count("said cf.") == 2, process.stdout + process.stderr[-2000:]
    assert np.isfinite(process.returncode)
