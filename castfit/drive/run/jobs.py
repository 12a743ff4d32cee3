"""Tasks of a run, and the job that they share.

`RunOptions.pickle_job` pickles the job; every process unpickles it once.
"""

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
    """Wrap a function as a task of a run: one BLAS thread, and errors returned instead of raised.

    InputError is returned unchanged, other errors as text, so that one task does not stop the others.  Warnings about
    overflow are suppressed, since numbers often overflow far from a solution.
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


_unpickled = threading.local()  # CasADi's functions are not shared between threads


def unpickle_job(job: bytes | Parts) -> Parts:
    """Unpickle the job that tasks share.  The last job is cached with its compiled functions."""
    if not isinstance(job, bytes):
        return job
    if getattr(_unpickled, "job", None) != job:
        _unpickled.parts, _unpickled.job = pickle.loads(job), job
    return _unpickled.parts
