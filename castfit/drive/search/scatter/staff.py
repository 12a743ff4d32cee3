"""Who works for a scatter search: this process, processes of its own that stay, or an executor.

The order of the answers is that of the questions, so that nothing depends on who answered.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from castfit._support.arrays import Array
from castfit._support.process_pool import Lost, Pool
from castfit.drive.search.scatter.tasks import Job, Simulated, simulate_block

_PIECES = 4  # per process: enough to even out members that take longer
_ON_EXECUTORS = 8  # members per task where the number of workers is not known


class Halt(Exception):
    """Ends the search between two tasks; its text says why."""


class Staff:
    """Runs the tasks of a search.

    Parameters
    ----------
    job : Job
    pool : Pool
    deadline : float
        As `time.time` gives it.
    """

    def __init__(self, job: Job, pool: Pool, deadline: float) -> None:
        self._job, self._pool, self._deadline = job, pool, deadline

    def simulate(self, X: Array) -> Simulated:
        """Simulate members at the rows of X (k, n); fewer values than rows if the time is over."""
        size = _ON_EXECUTORS
        if isinstance(self._pool.workers, int):
            size = max(1, -(-len(X) // (_PIECES * self._pool.workers)))
        pieces = [X[i : i + size] for i in range(0, len(X), size)]
        answers = zip(self._ask([(piece,) for piece in pieces]), pieces, strict=True)
        return _joined(pieces, (a if isinstance(a, Simulated) else self._one_by_one(x) for a, x in answers))

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Have one task done: ``function(job, *arguments, deadline)``."""
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
        pieces = [x[None] for x in X]
        answers = (self._ask([(piece,)])[0] for piece in pieces)
        return _joined(
            pieces, (a if isinstance(a, Simulated) else Simulated((np.inf,), Counter({a.cause: 1})) for a in answers)
        )


def _joined(pieces: Sequence[Array], answers: Iterable[Simulated]) -> Simulated:
    """Put the answers to pieces together, up to the first one that is not complete."""
    values: list[float] = []
    failures: Counter[str] = Counter()
    for piece, found in zip(pieces, answers, strict=False):
        values += found.values
        failures += found.failures
        if len(found.values) < len(piece):
            break
    return Simulated(tuple(values), failures)
