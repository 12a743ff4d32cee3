"""What this process used, and what it may use, where the system counts it: Windows does not tell."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import numpy as np

_PER_MEGABYTE = 1e6 if sys.platform == "darwin" else 1e3  # bytes, or kilobytes


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it has ended, as finely as the system counts them."""
    resource = _resource()
    if resource is None:
        return sum(os.times()[:4])
    used = (resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def peak_memory() -> float:
    """Return the most memory that this process has held, in MB; NaN where the system does not count it."""
    resource = _resource()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _PER_MEGABYTE if resource else np.nan


def limit_memory(most: int) -> None:
    """Let this process have no more bytes than these, where the system sees to that."""
    resource = _resource()
    if resource:
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def limit_cpu(seconds: float) -> None:
    """Let the system end this process after that many CPU seconds, where it sees to that."""
    resource = _resource()
    if resource:
        resource.setrlimit(resource.RLIMIT_CPU, (int(np.ceil(seconds)), resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _resource() -> Any:
    try:
        return import_module("resource")
    except ImportError:
        return None
