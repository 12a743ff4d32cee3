"""One thread for linear algebra."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import ContextDecorator, suppress
from functools import cache, partial
from importlib import util
from pathlib import Path
from typing import Any


class _OneThread(ContextDecorator):
    """Counts the blocks that want one BLAS thread, as several threads of ours may be inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._before: list[tuple[Callable[[int], None], int]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._before = [(put, get()) for get, put in openblas()]
                for put, _ in self._before:
                    put(1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                for put, count in self._before:
                    put(count)


one_blas_thread = _OneThread()
"""A context in which the OpenBLAS of numpy's and scipy's wheels use one thread.

Sums are then added in the same order everywhere, so that numbers do not depend on where a task runs, and n workers
use n cores.  The matrices of a fit are too small for more: on two busy cores a fit of the three-step pathway took 9.9 s
of CPU time with two threads, as they wait for each other by spinning, and 0.54 s with one.  Another BLAS, such as MKL,
takes its number of threads from the environment.

threadpoolctl would know every BLAS, but not count blocks in several threads, for which most of this file would stay; it
takes 1.4 ms to look for libraries at each fit, or misses those that are loaded after it has looked once.
"""


def openblas() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """Find the libraries' functions that get and set the number of threads."""
    libraries = _find_libraries(*(package for package in ("numpy", "scipy") if package in sys.modules))
    return tuple((library("get_num_threads"), library("set_num_threads")) for library in libraries)


def blas_kernel() -> str:
    """Return the name of the processor kernel that the OpenBLAS of NumPy runs, or "unknown" for another BLAS.

    Sums are rounded differently by different kernels, so results agree to rounding only.
    """
    for library in _find_libraries("numpy"):
        corename = library("get_corename")
        corename.restype = ctypes.c_char_p
        return str(corename().decode())
    return "unknown"


@cache
def _find_libraries(*packages: str) -> tuple[Callable[[str], Any], ...]:
    """Return, for each OpenBLAS library of the packages, a lookup of its functions by their names."""
    lookups: list[Callable[[str], Any]] = []
    for package in packages:
        spec = util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        package_folder = Path(spec.origin).parent
        for path in (
            *(package_folder.parent / f"{package}.libs").glob("*openblas*"),
            *(package_folder / ".dylibs").glob("*openblas*"),
        ):
            with suppress(OSError):
                library = ctypes.CDLL(str(path))
                lookups += [
                    partial(_get_function, library, prefix, suffix)
                    for prefix in ("scipy_openblas", "openblas")
                    for suffix in ("64_", "")
                    if hasattr(library, f"{prefix}_set_num_threads{suffix}")
                ]
    return tuple(lookups)


def _get_function(library: ctypes.CDLL, prefix: str, suffix: str, name: str) -> Any:
    return getattr(library, f"{prefix}_{name}{suffix}")
