"""Shared libraries made of C: compiled once per source and machine, kept in a cache folder, loaded by ctypes.

A wheel contains the library of castfit's own integrator, made by .ci/build_backend.py; all others are made here.

The folder is ``$CASTFIT_CACHE``, else ``castfit`` in the user's cache folder, else, where that cannot be written, a
temporary one of this process.  A library is named by a hash of all that it depends on: source, flags, compiler and
processor.  It is written to a temporary name and then moved, so that simultaneous compilations do not interfere.
A checksum is stored beside it: a library that is incomplete, changed, or owned or writable by others is not loaded but
replaced.  A folder that others own or may write to is not used.

CasADi can compile for its integrators by itself, but for those of SUNDIALS it always writes the source into the current
folder.  So its code is compiled here, too: the Rosenbrock method as a whole; for the others, the functions that they
call, which they receive compiled (CasADi's option `cache`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import stat
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import casadi as ca

from castfit._support.casadi_functions import find_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TIME_LIMIT = 300.0  # seconds after which a compiler is stopped
_FLAGS = ("-O1", "-ffp-contract=off")  # straight-line arithmetic: -O3 runs 10 % faster and compiles twice as long
_FUNCTION_HEAD = re.compile(r"static int (casadi_f\d+)\(.*\{$")
_RETURN_STATEMENT = "  return 0;"
_PART_DECLARATION = "static __attribute__((noinline)) void "
_PART_ARGUMENTS = "(const casadi_real** arg, casadi_real** res, casadi_real* w)"
_MAX_PART_STATEMENTS = 500  # number of C statements per part of a long function
_DIRECTIONAL_FUNCTIONS = ("daeF", "jtimesF")  # what is differentiated along directions


class CompilationError(Exception):
    """No C compiler was found, or it failed; the message has the details."""


def load(source: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Return the library compiled from a C source, from the cache where it was compiled before.

    Raises CompilationError if no compiler is found or it fails.
    """
    return ctypes.CDLL(str(compiled_path(source, flags)))


def compiled_path(source: str, flags: tuple[str, ...]) -> Path:
    """Return the path of the loadable library of a C source, compiled if it is not in the cache.

    Raises CompilationError: as `load`.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompilationError("no C compiler was found")
    name = _library_name(source, flags, compiler)
    for place in (cache_folder, _temporary):
        folder = place()
        path = folder / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_owned(folder):
                _warn_unused_folder(folder)
                continue
            if not _is_unchanged(path):
                _compile(compiler, source, flags, path)
            if _is_unchanged(path):
                ctypes.CDLL(str(path))
                return path
        except OSError:  # not writable, or what is there cannot be loaded
            continue
    raise CompilationError(
        "no folder can hold compiled libraries; set CASTFIT_CACHE to one of yours, which programs may be loaded from"
    )


def bundled_library(source: str, folder: Path, stem: str) -> ctypes.CDLL | None:
    """Return the library that was built with castfit of this very source; None if there is none that can be loaded."""
    name = f"{stem}-{hashlib.sha256(source.encode()).hexdigest()[:32]}"
    supports_avx2 = {"avx2", "bmi2", "fma"} <= set(_machine().split())
    for path in (*([folder / f"{name}-v3.so"] if supports_avx2 else []), folder / f"{name}.so", folder / f"{name}.dll"):
        if path.exists():
            with suppress(OSError):
                return ctypes.CDLL(str(path))
    return None


def is_compiled(source: str, flags: tuple[str, ...]) -> bool:
    """Check whether the library of a C source is in the cache."""
    compiler = find_compiler()
    return compiler is not None and (cache_folder() / _library_name(source, flags, compiler)).exists()


def split_work_arrays(source: str) -> str:
    """Return C code of CasADi's, whose functions keep all numbers in their work array, with long functions divided.

    A compiler's time and memory rise with the square of what is in one function: 29,000 operations took gcc minutes,
    in parts of 500 statements 3 s, and run as fast.
    """
    out: list[str] = []
    lines, k = source.split("\n"), 0
    while k < len(lines):
        head = _FUNCTION_HEAD.match(lines[k])
        end = lines.index(_RETURN_STATEMENT, k) if head else k
        body = lines[k + 1 : end]
        if head is None or len(body) <= _MAX_PART_STATEMENTS or any("{" in line for line in body):
            out += lines[k : end + 1]
        else:
            parts = range(0, len(body), _MAX_PART_STATEMENTS)
            for i in parts:
                out += [
                    f"{_PART_DECLARATION}{head[1]}_{i}{_PART_ARGUMENTS} {{",
                    *body[i : i + _MAX_PART_STATEMENTS],
                    "}",
                ]
            out += [lines[k], *(f"  {head[1]}_{i}(arg, res, w);" for i in parts), lines[end]]
        k = end + 1
    return "\n".join(out)


def _library_name(source: str, flags: tuple[str, ...], compiler: str) -> str:
    parts = (source, *flags, compiler, _version(compiler), _machine())
    return f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.so"


def cache_folder() -> Path:
    """Return the folder in which compiled libraries are kept, from the root; a temporary one of users without a home.

    Libraries by relative paths would be sought elsewhere.
    """
    configured_folder = os.environ.get("CASTFIT_CACHE", "")
    try:
        if configured_folder:
            return Path(configured_folder).expanduser().absolute()
        home = os.environ.get("XDG_CACHE_HOME", "") or os.environ.get("LOCALAPPDATA", "")
        return Path(home).absolute() / "castfit" if home else Path.home().absolute() / ".cache" / "castfit"
    except (RuntimeError, OSError):  # no home, or the current folder is gone
        return _temporary()


def _is_owned(path: Path) -> bool:
    """Whether no other user owns a folder or a file, or may write to it, as far as the system reports it."""
    if not hasattr(os, "geteuid"):
        return True
    file_status = path.stat()
    return file_status.st_uid == os.geteuid() and not file_status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def _warn_unused_folder(folder: Path) -> None:
    """Warn, once per folder, that a folder is not used."""
    warnings.warn(
        f"castfit compiles anew in this process, as others own '{folder}' or may write to it; set CASTFIT_CACHE to a "
        f"folder of your own, or `chmod go-w '{folder}'` if it is yours",
        RuntimeWarning,
        stacklevel=2,
    )


def _checksum(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _is_unchanged(path: Path) -> bool:
    """Whether a library is the one that was compiled."""
    try:
        is_owned = _is_owned(path) and _is_owned(_checksum(path))
        return is_owned and _digest(path) == _checksum(path).read_bytes()
    except OSError:
        return False


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).hexdigest().encode()


def _compile(compiler: str, source: str, flags: tuple[str, ...], path: Path) -> None:
    """Compile beside `path`, then move there."""
    with tempfile.TemporaryDirectory(prefix="castfit_", dir=path.parent, ignore_cleanup_errors=True) as folder:
        c, out = Path(folder) / "source.c", Path(folder) / path.name
        c.write_text(source, encoding="utf-8")
        command = [compiler, *flags, "-shared", "-fPIC", "-o", str(out), str(c), "-lm"]
        try:
            process = _run_compiler(command, _TIME_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise CompilationError(f"{compiler} took more than {_TIME_LIMIT:g} s") from error
        if process.returncode != 0:
            error_lines = [line for line in process.stderr.splitlines() if line.strip()]
            raise CompilationError(f"{compiler} failed: {'; '.join(error_lines[-2:])}")
        sums = _checksum(out)
        sums.write_bytes(_digest(out))
        out.chmod(0o700)
        sums.chmod(0o600)
        os.replace(sums, _checksum(path))
        os.replace(out, path)


def _run_compiler(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a compiler, whose output may have any encoding."""
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds, check=False
    )


def _temporary() -> Path:
    """Return a folder of this process, deleted at its end."""
    return Path(_temporary_folder().name)


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="castfit_", ignore_cleanup_errors=True)


@cache
def _version(compiler: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        return _run_compiler([compiler, "--version"], 20.0).stdout
    return ""


@cache
def _machine() -> str:
    """Return a description of the processor's features, since code compiled for them runs on no other processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return f"{sys.platform} {platform.machine()} {platform.processor()}"


def derivative_function(integrator: ca.Function, kind: str, count: int) -> ca.Function:
    """Return an integrator itself ("values"), or its derivative along `count` directions ("forward", "reverse")."""
    if kind == "values":
        return integrator
    return integrator.forward(count) if kind == "forward" else integrator.reverse(count)


def compiled(build: Callable[[dict[str, Any]], ca.Function], kind: str, count: int) -> ca.Function:
    """Return a derivative, as `derivative_function` does, of the integrator that `build` makes with more options.

    Raises CompilationError: if compiling fails.
    """
    integrator = build({})
    if integrator.class_name() == "Rosenbrock":
        derivative = derivative_function(integrator, kind, count)
        # For reverse derivatives CasADi generates no code, and needs derivatives that compiled functions do not have.
        return derivative if kind == "reverse" else ca.external(derivative.name(), _generate_library([derivative]))
    options = {"cache": _compile_functions(integrator)}
    if kind == "values":
        return build(options)
    parts = derivative_function(integrator, kind, count).find_functions(1)
    augmented = next(part for part in parts if part.class_name() == integrator.class_name())
    return derivative_function(
        build({**options, "augmented_options": {"cache": _compile_functions(augmented)}}), kind, count
    )


def _compile_functions(integrator: ca.Function) -> dict[str, ca.Function]:
    """Return the functions that an integrator evaluates, compiled, by their names."""
    functions = {name: integrator.get_function(name) for name in integrator.get_function() if not name.endswith("dae")}
    # CasADi checks one derivative of a compiled function before it looks for more.
    all_functions = functions | {
        f"fwd1_{name}": functions[name].forward(1) for name in _DIRECTIONAL_FUNCTIONS if name in functions
    }
    path = _generate_library(all_functions.values())
    forward = {name: ca.external(name, path) for name in all_functions if name.startswith("fwd")}

    def loaded(name: str) -> ca.Function:
        return ca.external(name, path, {"cache": {key: f for key, f in forward.items() if key.endswith(f"_{name}")}})

    return {name: loaded(name) for name in functions}


def _generate_library(functions: Iterable[ca.Function]) -> str:
    generator = ca.CodeGenerator("model")
    for function in functions:
        generator.add(function)
    return str(compiled_path(generator.dump(), _FLAGS))
