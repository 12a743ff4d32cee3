"""Calls that are watched or counted: a measure of work which no load of the machine changes, nor what ran before."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Note = Callable[[FrameType, str, Any], object]


@contextmanager
def watched(note: Note) -> Generator[None, None, None]:
    """Tell `note` of every call in this thread; no garbage of other tests is collected, whose finalizers are calls."""
    before, collecting = sys.getprofile(), gc.isenabled()
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()


def calls_of(action: Callable[[], object], *kinds: str) -> int:
    """Count the calls in an action: of functions of Python ("call"), of others ("c_call"), or without kinds of both."""
    counted, count = kinds or ("call", "c_call"), 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in counted

    with watched(note):
        action()
    return count
