"""Tasks of a run: what they share, as bytes that every process thaws once, and how they end."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from castfit._support.blas_threads import one_blas_thread
from castfit._support.status import InputError

P = ParamSpec("P")
T = TypeVar("T")
Parts = TypeVar("Parts", bound=tuple[Any, ...])


def task(function: Callable[P, T]) -> Callable[P, T | InputError | str]:
    """Let a function run anywhere as the task of a run: with one BLAS thread, and errors that are returned.

    Misuse is returned as it is; of other errors the text, as one task must not cost the others.  Numbers overflow far
    from any solution, which is nothing to be told.
    """

    @wraps(function)
    def run(*arguments: P.args, **options: P.kwargs) -> T | InputError | str:
        try:
            with one_blas_thread, np.errstate(all="ignore"):
                return function(*arguments, **options)
        except InputError as error:
            return error
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return run


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
