"""Execution of tasks in this process, in own processes, or on any `concurrent.futures.Executor`.

A `WorkerPool` runs rounds of tasks and yields (key, outcome) in the order in which tasks end.  Each worker process of
the pool runs one task at a time, so the pool knows which task a worker ran when it died or hung.  A task whose worker
died is run again, as another process may have killed the worker.  The outcome of a task that kills every worker, or
hangs, is `LostTask`; other tasks are not affected.  Worker processes are kept from round to round.  They end with the
pool or with the process that owns it.
"""

from __future__ import annotations

import concurrent.futures as cf
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from types import TracebackType
from typing import Any

from castfit._support.records import dataclass
from castfit._support.status import InputError, Status
from castfit._support.time_limit import StopRequested, check_interrupt

HANG_MARGIN_SECONDS = 10.0  # seconds beyond its time limit after which a task counts as hanging
MAX_WORKERS_PER_TASK = 3  # number of workers that may die in the same task before the task is reported as the cause
# Longest wait in seconds: on some platforms a keyboard interrupt is delivered only between two waits.
_POLL_SECONDS = 0.1
_PARENT_CHECK_SECONDS = 1.0  # seconds between two checks whether the parent process still runs
# Expected seconds of work below which no worker processes are started, as starting one takes about a second.
MIN_PARALLEL_SECONDS = 2.0
# Number of consecutive workers that ended before their first task, after which the pool gives up.
_MAX_FAILED_STARTS = 3

Function = Callable[..., Any]
Task = tuple[int, tuple[Any, ...]]
Tasks = deque[Task]
Outcomes = Generator[tuple[int, Any], None, None]


@dataclass(frozen=True)
class LostTask:
    """A task without an outcome: `cause` is "worker_died", "worker_hung" or "not_run"."""

    cause: str
    message: str


ERROR = "error"
# Causes of tasks that ended without an answer, besides those that were not run.
LOST = ("worker_died", "worker_hung", ERROR)


def lost_task_status(outcome: Any) -> tuple[str, str]:
    """Return status and message of a task that ended without an answer: lost, an error's text, or not run (None)."""
    if isinstance(outcome, LostTask):
        return outcome.cause, outcome.message
    return ("not_run", "Not run.") if outcome is None else (ERROR, str(outcome))


class WorkerPool:
    """Workers for rounds of tasks, in a ``with`` block that ends them.

    workers : 1 is this process; n > 1 are n processes, started when they are needed
    """

    def __init__(self, workers: int | cf.Executor) -> None:
        self.workers = workers
        self._staff: list[_Worker] = []
        self._homes: dict[int, str] = {}  # addresses of workers on a cluster, by the key of a task

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """End the processes at once; others are started if there is another round."""
        while self._staff:
            self._staff.pop().end()

    def run(
        self,
        function: Function,
        tasks: Tasks,
        *,
        limit: float = float("inf"),
        deadline: float = float("inf"),
        idle: Callable[[], None] = lambda: None,
        has_affinity: bool = False,
        expected: float = float("inf"),
    ) -> Outcomes:
        """Call ``function(*arguments)`` for every task; yield each key with the returned value, or with `LostTask`.

        function : defined in a module; it must not raise
        tasks : a deque of (key, arguments); it is emptied; the caller may append to it while iterating
        limit : largest time of one task in seconds
        deadline : end of the round, on the clock of `time.time`.  The function itself observes both limits; a task that
            exceeds one of them by `HANG_MARGIN_SECONDS` counts as hanging.
        idle : called from time to time while the pool waits for tasks; an exception that it raises ends the round
        has_affinity : whether a free worker prefers tasks whose keys it had before, because it caches their data
        expected : expected time of a task in seconds.  Tasks run in this process as long as the remaining ones are
            expected to take less than `MIN_PARALLEL_SECONDS`, judged by the times measured so far.

        Raises InputError: if processes cannot be started.
        Raises StopRequested: after a signal, or if a cluster is lost.
        """
        if isinstance(self.workers, cf.Executor):
            return _on_executor(function, tasks, self.workers, limit, deadline, idle, self._home(has_affinity))
        if self.workers == 1:
            return _run_in_process(function, tasks)
        left_over = self._on_processes(function, tasks, self.workers, limit, deadline, idle, has_affinity)
        return _run_last_tasks_in_process(function, tasks, expected, left_over) if not self._staff else left_over

    @property
    def n_workers(self) -> int | None:
        """The number of workers, None of an executor that does not tell."""
        if not isinstance(self.workers, cf.Executor):
            return self.workers
        return len(self._cluster) or None

    @property
    def _cluster(self) -> list[str]:
        """The addresses of a Dask cluster's workers, one for each of their threads; none of other executors."""
        client: Any = getattr(self.workers, "_client", None)
        if client is None or not type(self.workers).__module__.startswith("distributed") or _is_disconnected(client):
            return []
        try:
            return [address for address, threads in sorted(client.nthreads().items()) for _ in range(threads)]
        except OSError:  # the scheduler is gone
            return []

    def _home(self, has_affinity: bool) -> Callable[[int], dict[str, Any]]:
        """Return a function from a key to Dask's placement options: the key's last worker, or the least busy."""
        addresses = self._cluster if has_affinity else []

        def submit_options(key: int) -> dict[str, Any]:
            if not addresses:
                return {}
            if self._homes.get(key) not in addresses:
                busy = Counter(self._homes.values())
                self._homes[key] = min(addresses, key=lambda address: busy[address] / addresses.count(address))
            return {"workers": [self._homes[key]], "allow_other_workers": True, "pure": False}

        return submit_options

    def _on_processes(
        self,
        function: Function,
        tasks: Tasks,
        count: int,
        limit: float,
        deadline: float,
        idle: Callable[[], None],
        has_affinity: bool,
    ) -> Outcomes:
        workers = self._staff
        deaths: Counter[int] = Counter()
        n_failed_starts = 0
        try:
            while tasks or any(worker.task for worker in workers):
                while tasks and time.time() >= deadline:
                    yield tasks.popleft()[0], None
                busy = sum(worker.task is not None for worker in workers)
                while len(workers) < min(count, busy + len(tasks)):
                    workers.append(_Worker())
                for worker in workers:
                    if worker.ready and worker.task is None and tasks:
                        worker.give(
                            function, _take_suitable_task(tasks, worker, workers) if has_affinity else tasks.popleft()
                        )
                ready_connections = connection.wait([worker.connection for worker in workers], _POLL_SECONDS)
                idle()
                check_interrupt()
                for worker in list(workers):
                    task = worker.task
                    if worker.connection in ready_connections:
                        outcome = worker.take()
                        if isinstance(outcome, LostTask):
                            workers.remove(worker)
                            worker.end()
                            n_failed_starts = 0 if worker.ready else n_failed_starts + 1
                        elif not worker.ready:
                            worker.ready, n_failed_starts = True, 0
                            continue
                        if n_failed_starts == _MAX_FAILED_STARTS:
                            raise InputError("workers", [_NOT_STARTED.format(_describe_exit(worker.process.exitcode))])
                    elif task is not None and _is_overdue(worker.since, limit, deadline):
                        outcome = LostTask("worker_hung", "The worker process hung and was terminated.")
                        workers.remove(worker)
                        worker.end()
                    else:
                        continue
                    worker.task = None
                    if task is None:
                        continue
                    key, _ = task
                    if isinstance(outcome, LostTask) and outcome.cause == "worker_died":
                        deaths[key] += 1
                        if deaths[key] < MAX_WORKERS_PER_TASK:
                            tasks.appendleft(task)
                            continue
                    yield key, outcome
        finally:  # what a round that was left early has begun is of no use to the next one
            for worker in [worker for worker in workers if worker.task is not None]:
                workers.remove(worker)
                worker.end()


def _take_suitable_task(tasks: Tasks, worker: _Worker, workers: list[_Worker]) -> Task:
    """Take the best task for a worker: one it had before, else one that no worker had, else any."""
    assigned_keys = {key for other in workers for key in other.had}
    keys = [key for key, _ in tasks]
    index = next((i for i, key in enumerate(keys) if key in worker.had), None)
    if index is None:
        index = next((i for i, key in enumerate(keys) if key not in assigned_keys), 0)
    task = tasks[index]
    del tasks[index]
    return task


def _run_in_process(function: Function, tasks: Tasks) -> Outcomes:
    while tasks:
        check_interrupt()
        key, arguments = tasks.popleft()
        yield key, function(*arguments)


def _run_last_tasks_in_process(function: Function, tasks: Tasks, expected: float, outcomes: Outcomes) -> Outcomes:
    """Work here while all that is left is little, then let others do it."""
    start_time, n_done = time.monotonic(), 0
    while tasks and expected * len(tasks) <= MIN_PARALLEL_SECONDS:
        check_interrupt()
        key, arguments = tasks.popleft()
        yield key, function(*arguments)
        n_done += 1
        expected = (time.monotonic() - start_time) / n_done
    yield from outcomes


class _Worker:
    """A process that works on one task at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_connection = context.Pipe()
        self.process = context.Process(target=_serve, args=(child_connection,), daemon=True)
        with _environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1"):
            self.process.start()
        child_connection.close()
        self.ready = False
        self.task: Task | None = None
        self.since = 0.0
        self.had: set[int] = set()  # keys of tasks

    def give(self, function: Function, task: Task) -> None:
        self.task, self.since = task, time.monotonic()
        self.had.add(task[0])
        with suppress(OSError):  # a worker that is dead will be found so
            self.connection.send((function, task[1]))

    def take(self) -> Any:
        """Return the object sent by the worker, or `LostTask` if the worker is dead."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(HANG_MARGIN_SECONDS)
            return LostTask("worker_died", f"The worker process died ({_describe_exit(self.process.exitcode)}).")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(channel: connection.Connection) -> None:
    """Work in a process until the other side closes the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for the results decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the other side is gone
        channel.send(None)
        while True:
            function, arguments = channel.recv()
            channel.send(function(*arguments))


def _end_with_parent() -> None:
    """End this process, whatever it is doing, when the one that started it is gone."""
    parent = multiprocessing.parent_process()
    while parent is not None and os.getppid() == parent.pid:
        if connection.wait([parent.sentinel], _PARENT_CHECK_SECONDS):
            break
    os._exit(1)


_NOT_STARTED = (
    "worker processes exit at start ({}). In a script that uses workers, put everything except imports and definitions "
    'below `if __name__ == "__main__":`, because every worker imports the script'
)


def _describe_exit(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    names = {int(s): s.name for s in signal.Signals}
    return names.get(-code, f"signal {-code}")


def _is_overdue(since: float, limit: float, deadline: float) -> bool:
    return time.monotonic() - since > limit + HANG_MARGIN_SECONDS or time.time() > deadline + HANG_MARGIN_SECONDS


def _on_executor(
    function: Function,
    tasks: Tasks,
    executor: cf.Executor,
    limit: float,
    deadline: float,
    idle: Callable[[], None],
    submit_options: Callable[[int], dict[str, Any]],
) -> Outcomes:
    """Run on an executor that is not ours: it cannot be looked into, nor be repaired."""
    waiting: dict[cf.Future[Any], int] = {}
    broken = ""
    last_response_time = float("inf")  # a cluster may take long to begin
    try:
        while tasks or waiting:
            while tasks:
                key, arguments = tasks.popleft()
                try:
                    if broken:
                        raise RuntimeError(broken)
                    waiting[executor.submit(function, *arguments, **submit_options(key))] = key
                except RuntimeError as error:  # broken or shut down
                    broken = str(error)
                    yield key, LostTask("not_run", f"The executor accepts no more tasks: {broken}")
            completed, _ = cf.wait(waiting, _POLL_SECONDS, cf.FIRST_COMPLETED)
            idle()
            check_interrupt()
            if _is_disconnected(getattr(executor, "_client", None)) or any(future.cancelled() for future in completed):
                raise StopRequested(Status.WORKERS_LOST)
            if completed or (last_response_time == float("inf") and any(future.running() for future in waiting)):
                last_response_time = time.monotonic()
            elif waiting and _is_overdue(last_response_time, limit, deadline):
                # Every worker had time for a whole task since the last answer, so all that are left hang.
                for future, key in list(waiting.items()):
                    del waiting[future]
                    is_unstarted = future.cancel() and future.cancelled() and not _may_run_unseen(executor)
                    cause, message = (
                        ("not_run", "All workers hung.") if is_unstarted else ("worker_hung", "Its worker hung.")
                    )
                    yield key, LostTask(cause, message)
            for future in completed:
                yield waiting.pop(future), _outcome(future)
    finally:
        for future in waiting:
            future.cancel()


def _is_disconnected(client: Any) -> bool:
    """Whether the scheduler of a Dask cluster is gone, and with it all tasks."""
    return getattr(client, "status", "running") in ("connecting", "closing", "closed")


def _may_run_unseen(executor: cf.Executor) -> bool:
    """Whether a future may be running although it says that it waits: everywhere but in the standard library."""
    return not type(executor).__module__.startswith("concurrent.futures")


def _outcome(future: cf.Future[Any]) -> Any:
    try:
        return future.result()
    except (Exception, cf.CancelledError) as error:  # the function itself does not raise
        return LostTask("worker_died", f"The worker was lost ({type(error).__name__}: {error}).")


@contextmanager
def _environment(**variables: str) -> Generator[None, None, None]:
    """Set environment variables, for processes that are started meanwhile."""
    saved_values = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in saved_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
