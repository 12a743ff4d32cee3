"""Workers without the seconds that processes need to start, which get everything as those do; the clock of a pool."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest


class Post(ThreadPoolExecutor):
    """Threads that get tasks as bytes and answer in bytes; one that is told to exit is lost, as a process would be."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function as it arrives on the other side."""
        return super().submit(_serve, pickle.dumps((fn, args, kwargs)))


def _serve(sent: bytes) -> Any:
    function, arguments, named = pickle.loads(sent)
    try:
        return pickle.loads(pickle.dumps(function(*arguments, **named)))
    except SystemExit:
        raise BrokenExecutor("it left") from None


def no_time_passes_until(others_are_done: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock that tells a pool who hangs while others may still be slow; then it goes on by hours."""
    from castfit._support import process_pool  # conftest.py takes this module before numpy may be imported

    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now += 3600.0 * others_are_done()
        return now

    monkeypatch.setattr(process_pool, "time", SimpleNamespace(monotonic=monotonic, time=lambda: 0.0))
