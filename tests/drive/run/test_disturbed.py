"""Runs that are disturbed from outside: owners and workers that are killed, full disks, paths that are no files."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import castfit as cf
from castfit.drive.run.checkpoint import read
from tests.builders import decay_problem, refused
from tests.drive import killed_population
from tests.drive.chores import STRAIGHT, Fragile, pole, rows
from tests.drive.killed import run
from tests.paths import ROOT

POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX signals and devices")
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="/proc tells who works for whom")
SMALL = {"dim_refset": 4, "n_diverse": 12, "rng": 3, "max_eval": 80}


def bounded() -> cf.Problem:
    return decay_problem(parameters={"k": cf.Parameter(0.5, lower=0.1, upper=2.0)})


# Killed processes


@LINUX
@pytest.mark.parametrize("driver", ["multistart", "scatter_search"])
def test_workers_end_with_the_process_that_started_them(driver):
    """They are in the middle of a task that takes minutes, when their owner is killed."""
    script = (
        "import castfit as cf; from tests.drive.chores import Troubled, pole\n"
        "if __name__ == '__main__':\n"
        f"    cf.{driver}(pole(), Troubled(trouble='hang', above=-1.0, below=9.0), workers=2)"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            workers = awaited(lambda: busy(process.pid), 200)
        finally:
            process.send_signal(signal.SIGKILL)
    try:
        assert workers
        assert awaited(lambda: not any(alive(pid) for pid in workers), 60)
    finally:
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def awaited(condition, seconds):
    """Wait until a condition holds; return what it says at last."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return value


def busy(pid):
    """Return the workers of a process once they have stopped to compute: they are asleep in their task."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    with suppress(OSError):
        children = [int(child) for task in tasks for child in task.read_text().split()]
        workers = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
        cpu_seconds = [seconds(worker) for worker in workers]
        time.sleep(1.0)
        if len(workers) == 2 and min(cpu_seconds) > 0.3 and cpu_seconds == [seconds(worker) for worker in workers]:
            return workers
    return []


def seconds(pid):
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alive(pid):
    """Tell whether a process is more than a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.slow
@POSIX
def test_a_scatter_search_whose_worker_is_killed_finds_the_same(tmp_path):
    undisturbed = cf.scatter_search(bounded(), Fragile(), STRAIGHT, **SMALL)
    flag = tmp_path / "killed"
    disturbed = cf.scatter_search(bounded(), Fragile(flag=str(flag)), STRAIGHT, **SMALL, workers=2)
    assert flag.exists()
    assert [(m.simulations, m.chi2) for m in disturbed.history] == [
        (m.simulations, m.chi2) for m in undisturbed.history
    ]
    assert [replace(s, seconds=0.0) for s in disturbed.searches] == [
        replace(s, seconds=0.0) for s in undisturbed.searches
    ]
    assert disturbed.failures == undisturbed.failures
    assert disturbed.best.values == undisturbed.best.values


@POSIX
def test_a_multistart_whose_worker_is_killed_finds_the_same(tmp_path):
    starts = [{"k": k} for k in (0.2, 0.4, 0.6)]
    undisturbed = cf.multistart(pole(), Fragile(), STRAIGHT, starts=starts)
    flag = tmp_path / "killed"
    disturbed = cf.multistart(pole(), Fragile(flag=str(flag)), STRAIGHT, starts=starts, workers=2)
    assert flag.exists()
    assert rows(disturbed) == rows(undisturbed)


def test_an_executor_that_takes_no_more_work_ends_a_scatter_search():
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(1)
    result = cf.scatter_search(
        bounded(), cf.SingleShooting(), **SMALL, workers=executor,
        callback=lambda progress: executor.shutdown() if progress.generation == 1 else None,
    )  # fmt: skip
    assert "accepts no more tasks" in result.reason
    assert result.success
    assert not result.failures


# Full disks


@pytest.fixture
def full_disk(monkeypatch):
    """Let what is written after so many records not reach the disk."""

    def fill(n_written, last_failure=np.inf):
        count, sync = 0, os.fsync

        def fsync(descriptor):
            nonlocal count
            count += stat.S_ISREG(os.fstat(descriptor).st_mode)
            if n_written < count <= last_failure:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    return fill


def multistart(path, **options):
    starts = [{"k": k} for k in (0.2, 0.4, 0.6, 0.7)]
    return cf.multistart(pole(), cf.SingleShooting(), STRAIGHT, starts=starts, checkpoint=path, **options)


def scatter_search(path, **options):
    return cf.scatter_search(bounded(), cf.SingleShooting(), **SMALL, checkpoint=path, **options)


DRIVERS = [multistart, scatter_search]


@POSIX
def test_a_full_disk_leaves_the_result_that_was_saved(tmp_path):
    """The disk is a limit on the size of files, which a disk that is full differs from in its number alone."""
    import resource

    path, result = tmp_path / "result.json", cf.fit(bounded(), "single")
    result.save(path)
    content, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) // 2, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            result.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    result.save(path)
    assert cf.Result.load(path).values == result.values


@POSIX
def test_a_result_is_saved_to_links_devices_and_folders_that_take_no_new_files(tmp_path, monkeypatch):
    result = cf.fit(bounded(), "single")
    result.save("/dev/null")
    link, path = tmp_path / "link.json", tmp_path / "result.json"
    path.write_text("old")
    link.symlink_to(path)
    result.save(link)
    assert link.is_symlink()
    path.write_text("old")
    monkeypatch.setattr("tempfile.mkdtemp", forbidden)
    result.save(path)
    assert cf.Result.load(path).values == result.values


def forbidden(*arguments, **options):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("n_written", [0, 3])
def test_checkpoint_on_full_disk_keeps_the_result(driver, n_written, tmp_path, full_disk, capfd):
    reference_result = driver(None)
    full_disk(n_written)
    result = driver(tmp_path / "run.jsonl")
    assert result.success
    assert result.message.endswith("because some writes failed (No space left on device).")
    assert result.message in result.summary()
    assert result.best.values == reference_result.best.values
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is full")
@pytest.mark.parametrize("driver", DRIVERS)
def test_checkpoint_on_full_device_is_reported_once(driver, capfd):
    assert driver("/dev/full", verbose=1).success
    assert capfd.readouterr().err.count("'/dev/full' failed (No space left on device)") == 1


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_disk_that_was_full_for_a_while_leaves_a_checkpoint_that_can_be_continued(driver, tmp_path, full_disk):
    path = tmp_path / "run.jsonl"
    full_disk(2, last_failure=4)
    first_result = driver(path)
    header, records, size = read(path)
    assert header
    assert records
    assert size == path.stat().st_size
    resumed_result = driver(path, resume=True)
    assert resumed_result.best.values == first_result.best.values
    assert first_result.success


# Paths that are no files


@POSIX
def test_save_to_device_keeps_the_device(tmp_path):
    result = run(None, starts=2)
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    result.save(null)
    assert null.is_symlink()
    assert Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with refused("pipe' cannot be written"):
        result.save(pipe)
    assert pipe.is_fifo()
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    result.save(pipe)
    assert os.read(reader, 20) == b'{"castfit_checkpoint'
    os.close(reader)
    assert pipe.is_fifo()


@POSIX
def test_save_to_link_writes_its_target(tmp_path):
    target, link = tmp_path / "target.jsonl", tmp_path / "link.jsonl"
    target.write_text("old")
    link.symlink_to(target)
    run(None, starts=2).save(link)
    assert link.is_symlink()
    assert cf.MultistartResult.load(target).success


@POSIX
@pytest.mark.parametrize("driver", DRIVERS)
def test_checkpoint_on_pipe_raises_input_error(driver, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with refused("is not a file; pass a file path"):
        driver(pipe)
    assert pipe.is_fifo()


@POSIX
def test_a_mixed_effects_fit_that_is_killed_goes_on(tmp_path):
    path = tmp_path / "population.jsonl"
    command = [sys.executable, "-m", "tests.drive.killed_population", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = [process.stdout.readline().strip() for _ in range(4)]
        finally:
            process.send_signal(signal.SIGKILL)
    assert lines == ["0", "1", "2", "3"]
    resumed_result, full_result = killed_population.run(path), killed_population.run(None)
    assert resumed_result.success
    assert len(resumed_result.history) < len(full_result.history)
    for name, value in full_result.values.items():
        assert resumed_result.values[name] == pytest.approx(value, rel=1e-4)
        assert resumed_result.standard_errors[name] == pytest.approx(full_result.standard_errors[name], rel=1e-2)
