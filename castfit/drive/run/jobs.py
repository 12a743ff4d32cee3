"""Tasks of a run: what they share, bytes of `RunOptions.pickle_job` which every process unpickles once, and how they end."""

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


_thawed = threading.local()  # CasADi's functions are not shared between threads


def unpickle_job(job: bytes | Parts) -> Parts:
    """Rebuild what tasks share; the last job is kept, with all that it has compiled."""
    if not isinstance(job, bytes):
        return job
    if getattr(_thawed, "job", None) != job:
        _thawed.parts, _thawed.job = pickle.loads(job), job
    return _thawed.parts
