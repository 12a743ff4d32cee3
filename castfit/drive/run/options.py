"""Common options of runs of many fits, read and checked in one place."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np

from castfit._support.arguments import (
    flag_mistakes,
    is_count,
    is_one_of,
    option_mistakes,
    read_real,
    shorten_repr,
    stop_query,
)
from castfit._support.status import InputError, Status, raise_if_mistakes
from castfit.drive.run.checkpoint import Checkpoint
from castfit.drive.run.jobs import Parts, unpickle_job
from castfit.problem.problem import kind_mistakes


@dataclass(frozen=True)
class RunOptions:
    """Options of a run: workers, time limits, progress reports, and checkpoint.

    max_time, fit_max_time : time limits of the run and of one fit in seconds
    began : start of the run, as returned by `time.time`
    """

    workers: int | Executor = 1
    max_time: float = np.inf
    fit_max_time: float = np.inf
    callback: Callable[[Any], Any] | None = None
    verbose: int | None = None
    checkpoint: str | PathLike[str] | None = None
    resume: bool = False
    began: float = field(default_factory=time.time)

    def with_plain_numbers(self) -> RunOptions:
        """Return checked options with plain numbers."""
        numbers: dict[str, Any] = {name: read_real(getattr(self, name)) for name in ("max_time", "fit_max_time")}
        if not isinstance(self.workers, Executor):
            numbers["workers"] = int(self.workers)
        return replace(self, **numbers)

    def mistakes(self) -> list[str]:
        """Return messages about invalid options, each with its fix; `file_mistakes` checks the checkpoint."""
        seconds, executor = "expected a positive number of seconds", isinstance(self.workers, Executor)
        return option_mistakes(
            ("workers", self.workers, executor or is_count(self.workers, 1),
             "give a number of processes or a concurrent.futures.Executor"),
            *((name, getattr(self, name), (read_real(getattr(self, name)) or 0.0) > 0.0, seconds)
              for name in ("max_time", "fit_max_time")),
            ("callback", self.callback, self.callback is None or callable(self.callback),
             "give a function of one argument"),
            ("verbose", self.verbose, self.verbose is None or is_one_of(self.verbose, 0, 1, 2), "choose 0, 1 or 2"),
        )  # fmt: skip

    def file_mistakes(self) -> list[str]:
        """Return messages about invalid checkpoint options."""
        path: Any = self.checkpoint
        mistakes = flag_mistakes(resume=self.resume)
        if path is not None and not isinstance(path, (str, PathLike)):
            mistakes.append(f"checkpoint is {shorten_repr(path)}; give the path of a file")
        if is_one_of(self.resume, True) and path is None:
            mistakes.append("resume=True continues a checkpoint; give checkpoint=path")
        return mistakes

    @property
    def deadline(self) -> float:
        """Time of the end of the run, as returned by `time.time`."""
        return self.began + self.max_time

    @property
    def seconds(self) -> float:
        """Elapsed seconds since the run began."""
        return time.time() - self.began

    def find_stop_reason(self, loop_status: Status | None, unfinished: bool) -> Status | None:
        """Return the status that ended the run.

        MAX_TIME if nothing stopped the loop but fits are unfinished and time is over.
        """
        return Status.MAX_TIME if loop_status is None and unfinished and self.seconds >= self.max_time else loop_status

    def pickle_job(self, function_name: str, label: str, parts: Parts) -> bytes | Parts:
        """Pickle the job of the tasks, so that every process, including this one, builds it in the same way.

        If the job cannot be pickled, return it unchanged if ``workers=1``.  Otherwise raise an InputError of the
        function `function_name` that names the parts as `label`.
        """
        try:
            job = pickle.dumps(parts)
            unpickle_job(job)  # Tasks in this process use the same copy.
        except Exception as error:  # whatever a user's class raises
            if self.workers == 1:
                return parts
            reason = f"{label} cannot be pickled for other processes ({type(error).__name__}: {error})"
            raise InputError(function_name, [f"{reason}; define the classes in a module, or use workers=1"]) from error
        return job

    def open_checkpoint(
        self, header: Mapping[str, Any]
    ) -> AbstractContextManager[Checkpoint] | AbstractContextManager[None]:
        """Open the checkpoint for a ``with`` block that closes it; None in the block if there is none."""
        if self.checkpoint is None:
            return nullcontext()
        return closing(Checkpoint(self.checkpoint, header, resume=self.resume, verbose=bool(self.verbose)))

    def call_callback(self, progress: Any) -> bool:
        """Call the callback with the progress; return whether it requests to stop."""
        return self.callback is not None and stop_query(self.callback)(progress)


def require_problem(function_name: str, problem: Any, mistakes: list[str]) -> None:
    """Raise at once, with the mistakes found so far, if there is no problem to look at."""
    problem_mistakes = kind_mistakes(problem)
    raise_if_mistakes(function_name, [*problem_mistakes, *mistakes] if problem_mistakes else [])
