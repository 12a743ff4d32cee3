"""Shared libraries made of C: compiled once per source and machine, kept in a cache folder, loaded by ctypes.

The folder is ``$CASTFIT_CACHE``, else ``castfit`` in the user's cache folder, else, where that cannot be written, a
temporary one of this process.  A library is named by a hash of all that it depends on: source, flags, compiler and
processor.  It is written beside its place and moved there, so that processes that compile the same at once do not meet.

CasADi can compile for its integrators by itself, but for those of SUNDIALS it writes the source into the current
folder, whatever it is told.  So its code is compiled here, too: the Rosenbrock method whole, of the others
the functions that they call, which are given to them ready (CasADi's option `cache`).
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
from typing import TYPE_CHECKING, Any

import casadi as ca

from castfit._support.casadi_functions import find_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TIME_LIMIT = 300.0  # seconds that a compiler may take
_FLAGS = ("-O1", "-ffp-contract=off")  # straight-line arithmetic: -O3 runs 10 % faster and compiles twice as long
_MOVED = ("daeF", "jtimesF")  # what is differentiated along directions


class CompilationError(Exception):
    """There is no C compiler, or it failed; says which."""


def load(source: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Return the library compiled from a C source, from the cache where it was compiled before.

    Raises CompilationError if no compiler is found or it fails.
    """
    return ctypes.CDLL(str(compiled_path(source, flags)))


def compiled_path(source: str, flags: tuple[str, ...]) -> Path:
    """Return where the library compiled from a C source is, which can be loaded.

    Raises CompilationError: as `load`.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompilationError("no C compiler was found")
    name = _name(source, flags, compiler)
    for place in (cache_folder, lambda: Path(_temporary().name)):
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
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """Return a folder of this process, deleted at its end."""
    return tempfile.TemporaryDirectory(prefix="castfit_", ignore_cleanup_errors=True)


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


def derived(integrator: ca.Function, kind: str, count: int) -> ca.Function:
    """Return an integrator itself ("values"), or its derivative along `count` directions ("forward", "reverse")."""
    if kind == "values":
        return integrator
    return integrator.forward(count) if kind == "forward" else integrator.reverse(count)


def compiled(build: Callable[[dict[str, Any]], ca.Function], kind: str, count: int) -> ca.Function:
    """Return a derivative, as `derived` does, of the integrator that `build` makes with more options.

    Raises CompilationError: if compiling fails.
    """
    plain = build({})
    if plain.class_name() == "Rosenbrock":
        whole = derived(plain, kind, count)
        # On the way back it generates no code, and asks for derivatives that compiled functions do not have.
        return whole if kind == "reverse" else ca.external(whole.name(), _library([whole]))
    own = {"cache": _functions(plain)}
    if kind == "values":
        return build(own)
    parts = derived(plain, kind, count).find_functions(1)
    augmented = next(part for part in parts if part.class_name() == plain.class_name())
    return derived(build({**own, "augmented_options": {"cache": _functions(augmented)}}), kind, count)


def _functions(integrator: ca.Function) -> dict[str, ca.Function]:
    """Return the functions that an integrator evaluates, compiled, by their names."""
    wanted = {name: integrator.get_function(name) for name in integrator.get_function() if not name.endswith("dae")}
    # CasADi asks a compiled function for one derivative before it believes that there are more.
    every = wanted | {f"fwd1_{name}": wanted[name].forward(1) for name in _MOVED if name in wanted}
    path = _library(every.values())
    forward = {name: ca.external(name, path) for name in every if name.startswith("fwd")}

    def loaded(name: str) -> ca.Function:
        return ca.external(name, path, {"cache": {key: f for key, f in forward.items() if key.endswith(f"_{name}")}})

    return {name: loaded(name) for name in wanted}


def _library(functions: Iterable[ca.Function]) -> str:
    generator = ca.CodeGenerator("model")
    for function in functions:
        generator.add(function)
    return str(compiled_path(generator.dump(), _FLAGS))
