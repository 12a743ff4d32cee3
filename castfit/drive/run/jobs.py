"""What the tasks of a run share, as bytes that every process thaws once."""

from __future__ import annotations

import pickle
import threading
from typing import Any, TypeVar

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
