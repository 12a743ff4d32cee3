"""Who works for a scatter search: this process, processes of its own that stay, or an executor.

The order of the answers is that of the questions, so that nothing depends on who answered.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.drive.run.pool import Lost, Pool
from castfit.drive.scatter.book import Halt
from castfit.drive.scatter.tasks import Job, Simulated, simulate_block

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_PIECES = 4  # per process: enough to even out members that take longer
_ON_EXECUTORS = 8  # members per task where the number of workers is not known


class Staff:
    """Runs the tasks of a search.

    Parameters
    ----------
    job : Job
    workers : int or concurrent.futures.Executor
    deadline : float
        As `time.time` gives it.
    """

    def __init__(self, job: Job, workers: int | Executor, deadline: float) -> None:
        self._job, self._workers, self._deadline = job, workers, deadline
        self._pool = Pool(workers)

    def __enter__(self) -> Staff:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """End the processes that were started."""
        self._pool.dismiss()

    def simulate(self, X: Array) -> Simulated:
        """Simulate members at the rows of X (k, n); fewer values than rows if the time is over."""
        if self._workers == 1:
            return simulate_block(self._job, X, self._deadline)
        size = _ON_EXECUTORS
        if isinstance(self._workers, int):
            size = max(1, -(-len(X) // (_PIECES * self._workers)))
        pieces = [X[i : i + size] for i in range(0, len(X), size)]
        values: list[float] = []
        failures: Counter[str] = Counter()
        wanted = 0
        for piece, answer in zip(pieces, self._ask([(piece,) for piece in pieces]), strict=True):
            found = answer if isinstance(answer, Simulated) else self._one_by_one(piece)
            values += found.values
            failures += found.failures
            wanted += len(piece)
            if len(values) < wanted:
                break
        return Simulated(tuple(values), failures)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Have one task done: ``function(job, *arguments, deadline)``."""
        if self._workers == 1:
            return function(self._job, *arguments, self._deadline)
        return self._ask([arguments], function)[0]

    def _ask(self, tasks: Sequence[tuple[Any, ...]], function: Callable[..., Any] = simulate_block) -> list[Any]:
        """Return the answers in the order of the tasks; `Lost` where a worker was lost again and again."""
        queue = deque((i, (self._job, *arguments, self._deadline)) for i, arguments in enumerate(tasks))
        answers = dict(self._pool.run(function, queue, deadline=self._deadline))
        for answer in answers.values():
            if isinstance(answer, Lost) and answer.cause == "not_run":  # values that nobody computes are not infinite
                raise Halt(answer.message)
        return [answers[i] for i in range(len(tasks))]

    def _one_by_one(self, X: Array) -> Simulated:
        """Repeat a task that ended its workers, so that it costs only the member that they died of."""
        values: list[float] = []
        failures: Counter[str] = Counter()
        for x in X:
            (answer,) = self._ask([(x[None],)])
            found = answer if isinstance(answer, Simulated) else Simulated((np.inf,), Counter({answer.cause: 1}))
            values += found.values
            failures += found.failures
            if not found.values:
                break
        return Simulated(tuple(values), failures)
