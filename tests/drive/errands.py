"""What workers are told to do in tests of the pool; they import it from here, which takes them no time."""

from __future__ import annotations

import os
import signal
import sys
import time


def square(x):
    return x * x


def chore(kind):
    """Do as told: a number is returned, words are trouble."""
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "leave":
        os._exit(3)
    if kind == "exit":
        sys.exit(3)
    if kind == "hang":
        time.sleep(600)
    return kind


def leave_at_once(channel):
    """Stand in for a worker that never gets to work."""
    os._exit(1)
