"""What the tasks of a run share, as bytes that every process thaws once, and the options that all such runs take."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import Executor
from typing import Any, TypeVar

import numpy as np

from castfit._reading import is_one_of, real, text
from castfit.status import InputError

Parts = TypeVar("Parts", bound=tuple[Any, ...])


def freeze(where: str, what: str, parts: Parts, *, needed: bool) -> bytes | Parts:
    """Pickle what tasks share, so that it is built in the same way everywhere, here too.

    Parameters
    ----------
    where, what : str
        The function that the user called, and the parts in words, for the message.
    parts : tuple
    needed : bool
        Whether it must reach other processes; otherwise what cannot be pickled is returned as it is.

    Raises
    ------
    InputError
        If it is needed and cannot be pickled.
    """
    try:
        job = pickle.dumps(parts)
        pickle.loads(job)
    except Exception as error:  # whatever a user's class raises
        if not needed:
            return parts
        reason = f"{what} cannot be sent to other processes ({type(error).__name__}: {error})"
        raise InputError(where, [f"{reason}; define their classes in a module, or use workers=1"]) from error
    return job


_thawed = threading.local()  # CasADi's functions are not shared between threads


def thaw(job: bytes | Parts) -> Parts:
    """Rebuild what tasks share; the last job is kept, with all that it has compiled."""
    if not isinstance(job, bytes):
        return job
    if getattr(_thawed, "job", None) != job:
        _thawed.parts, _thawed.job = pickle.loads(job), job
    return _thawed.parts


def part_mistakes(transcription: Any, solver: Any) -> list[str]:
    """Find a transcription or a solver that is of the wrong kind, such as a class instead of an instance."""
    parts = (("transcription", transcription, "transcribe", "SingleShooting()"), ("solver", solver, "solve", "Ipopt()"))
    return [
        f"{name} is {text(part)}; give an instance such as {example}"
        for name, part, method, example in parts
        if isinstance(part, type) or not callable(getattr(part, method, None))
    ]


def option_mistakes(*, workers: Any, max_time: Any, start_max_time: Any, callback: Any, verbose: Any) -> list[str]:
    """Check where a run takes place, how long it may take, and how it reports."""
    mistakes: list[str] = []
    counted = isinstance(workers, (int, np.integer)) and not isinstance(workers, bool) and workers >= 1
    if not counted and not isinstance(workers, Executor):
        mistakes.append(f"workers is {text(workers)}; give a number of processes or a concurrent.futures.Executor")
    for name, limit in (("max_time", max_time), ("start_max_time", start_max_time)):
        number = real(limit)
        if number is None or not number > 0.0:
            mistakes.append(f"{name} is {text(limit)}; give a positive number of seconds")
    if callback is not None and not callable(callback):
        mistakes.append(f"callback is {text(callback)}; give a function of one argument")
    if not is_one_of(verbose, 0, 1, 2):
        mistakes.append(f"verbose is {text(verbose)}; choose 0, 1 or 2")
    return mistakes
