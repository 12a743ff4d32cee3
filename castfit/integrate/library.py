"""Shared libraries made of C: compiled once per source and machine, kept in a cache folder, loaded by ctypes.

The folder is ``$CASTFIT_CACHE``, else ``castfit`` in the user's cache folder, else, where that cannot be written, a
temporary one of this process.  A library is named by a hash of all that it depends on: source, flags, compiler and
processor.  It is written beside its place and moved there, so that processes that compile the same at once do not meet.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from castfit._support.casadi_functions import find_compiler

_TIME_LIMIT = 300.0  # seconds that a compiler may take


class CompilationError(Exception):
    """There is no C compiler, or it failed; says which."""


def load(source: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Return the library compiled from a C source, from the cache where it was compiled before.

    Raises
    ------
    CompilationError
        If no compiler is found or it fails.
    """
    return ctypes.CDLL(str(compiled_path(source, flags)))


def compiled_path(source: str, flags: tuple[str, ...]) -> Path:
    """Return where the library compiled from a C source is, which can be loaded.

    Raises
    ------
    CompilationError
        As `load`.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompilationError("no C compiler was found")
    name = _name(source, flags, compiler)
    for place in (cache_folder, _temporary):
        folder = place()
        path = folder / name
        try:
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                _compile(compiler, source, flags, path)
            ctypes.CDLL(str(path))
            return path
        except OSError:  # not writable, or what is there cannot be loaded
            continue
    raise CompilationError("no folder for compiled libraries can be written; set CASTFIT_CACHE to one")


def is_compiled(source: str, flags: tuple[str, ...]) -> bool:
    """Tell whether the library of a C source is in the cache."""
    compiler = find_compiler()
    return compiler is not None and (cache_folder() / _name(source, flags, compiler)).exists()


def _name(source: str, flags: tuple[str, ...], compiler: str) -> str:
    parts = (source, *flags, compiler, _version(compiler), _machine())
    return f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.so"


def cache_folder() -> Path:
    """Return the folder in which compiled libraries are kept."""
    given = os.environ.get("CASTFIT_CACHE", "")
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME", "") or os.environ.get("LOCALAPPDATA", "")
    return Path(home) / "castfit" if home else Path.home() / ".cache" / "castfit"


def _compile(compiler: str, source: str, flags: tuple[str, ...], path: Path) -> None:
    """Compile beside `path`, then move there."""
    with tempfile.TemporaryDirectory(prefix="castfit_", dir=path.parent, ignore_cleanup_errors=True) as folder:
        c, out = Path(folder) / "source.c", Path(folder) / path.name
        c.write_text(source, encoding="utf-8")
        command = [compiler, *flags, "-shared", "-fPIC", "-o", str(out), str(c), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIME_LIMIT, check=False)
        except subprocess.TimeoutExpired as error:
            raise CompilationError(f"{compiler} took more than {_TIME_LIMIT:g} s") from error
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise CompilationError(f"{compiler} failed: {'; '.join(said[-2:])}")
        os.replace(out, path)


@cache
def _temporary() -> Path:
    """Return a folder of this process, deleted at its end."""
    folder = tempfile.TemporaryDirectory(prefix="castfit_", ignore_cleanup_errors=True)
    _KEPT.append(folder)
    return Path(folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _version(compiler: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    return ""


@cache
def _machine() -> str:
    """Return what the processor can do: code made for it runs nowhere else."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return f"{sys.platform} {platform.machine()} {platform.processor()}"
