"""Workers without the seconds that processes need to start: threads to which everything is sent as to processes."""

from __future__ import annotations

import pickle
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from typing import Any


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
