"""Types of arrays (real and complex numbers, indices and masks), and the memory that is available for them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from castfit._support.status import InputError

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
Signs = NDArray[np.int8]
Complex = NDArray[np.complex128]

_CHECKED_MEMORY_BYTES = 1e8  # Arrays of this size and more are compared with the available memory.
# Files with the limit and the usage of a control group, in versions 2 and 1 of cgroups.
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory() -> float:
    """Return the available memory in bytes; inf if the system does not report it."""
    limits = [np.inf]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits.append(1024.0 * float(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
            limits.append(limit - float(pages) * resource.getpagesize())
    for limit_file, usage_file in _CGROUP_FILES:
        with suppress(OSError, ValueError):  # "max" is no limit
            limits.append(float(Path(limit_file).read_text()) - float(Path(usage_file).read_text()))
            # The kernel frees cached files first.
            lines = (Path(usage_file).parent / "memory.stat").read_text().splitlines()
            limits[-1] += sum(float(line.split()[1]) for line in lines if line.startswith("inactive_file"))
    return max(min(limits), 0.0)


def format_memory(memory: float) -> str:
    """Format an amount of memory in MB or GB."""
    size, unit = (memory / 1e9, "GB") if memory >= 1e9 else (memory / 1e6, "MB")
    return f"{size:.2g} {unit}" if size < 10.0 else f"{size:.0f} {unit}"


def require_memory(where: str, n_numbers: float, remedy: str) -> None:
    """Raise InputError if arrays with this number of entries exceed the available memory."""
    size = 8.0 * n_numbers
    limit = available_memory() if size > _CHECKED_MEMORY_BYTES else np.inf
    if size > limit:
        needed = f"at least {format_memory(size)} of memory are needed, but {format_memory(limit)} are available"
        raise InputError(where, [f"{needed}; {remedy}"])
