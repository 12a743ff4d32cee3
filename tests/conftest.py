"""What every test shares: examples that are the same in every run, one thread per process, no display."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.workers import Post

# Before numpy and matplotlib are imported: pytest-xdist fills the cores with processes already.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Scripts, command lines and workers that tests start take half the time if they need not compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What a shell starts in the background ignores interrupts, which tests send to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# As on Windows and macOS, whatever the system's own way is; see .ci/release.
if os.environ.get("CASTFIT_START_METHOD"):
    multiprocessing.set_start_method(os.environ["CASTFIT_START_METHOD"])

# Shared machines are slow at times, so no example has a deadline.  Every run draws the same examples, so that one
# failure is everybody's; more than 25 would be tried in vain again and again.  CASTFIT_EXPLORE=5 draws five times 100,
# or what a test tells, at random, --hypothesis-seed=N the same ones again.
EXPLORE = int(os.environ.get("CASTFIT_EXPLORE", "0"))
settings.register_profile(
    "same", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("same"), derandomize=False, max_examples=100)
settings.load_profile("explore" if EXPLORE else "same")


@dataclass
class Clock:
    """The time that a test lets pass, in seconds, and what passes of it whenever castfit looks."""

    now: float = 0.0
    step: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def read(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the clocks by which castfit keeps limits: time passes as the test says, however busy the machine is."""
    shown, since, counted = Clock(), time.time(), time.perf_counter()
    monkeypatch.setattr(time, "time", lambda: since + shown.read())
    monkeypatch.setattr(time, "perf_counter", lambda: counted + shown.read())
    return shown


@pytest.fixture(autouse=True)
def _figures_are_closed():
    """Close what a test left with pyplot, which warns of more than twenty figures."""
    yield
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")


@pytest.fixture(params=["post", pytest.param("processes", marks=pytest.mark.slow)])
def two_workers(request: pytest.FixtureRequest):
    """What drivers take as `workers`: threads that share nothing with us; processes, slow to start."""
    if request.param == "processes":
        yield 2
    else:
        with Post(2) as executor:
            yield executor


@pytest.fixture
def collected(pytestconfig: pytest.Config) -> set[str]:
    """Every case of the files that this run looked at, slow ones too; none if it was asked for single ones."""
    return set() if any("::" in asked for asked in pytestconfig.args) else pytestconfig.stash[COLLECTED]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for garbage among what tests make: going through thousands of them and their modules took a third."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


COLLECTED = pytest.StashKey[set[str]]()
SLOW = set((Path(__file__).parent / "slow_cases.txt").read_text(encoding="utf-8").splitlines())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow cases; let every property be tried with more examples, also where it tells their number."""
    config.stash[COLLECTED] = {item.nodeid for item in items}
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker("slow")
    if not EXPLORE:
        return
    for test in {getattr(item, "obj", None) for item in items}:
        used = getattr(test, "_hypothesis_internal_use_settings", None)
        if used is not None:
            more = settings(used, max_examples=EXPLORE * used.max_examples, derandomize=False)
            test._hypothesis_internal_use_settings = more
