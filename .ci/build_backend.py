"""setuptools' backend, with the compiled integrator in wheels, and editable installs that type checkers find.

The integrator is plain C without Python's interface, so that a wheel serves every Python of its platform.  Where no
compiler works, the wheel is one for all platforms, without it: castfit compiles it when it is first used, or does
without.  A library is called after its source: one of another source, in a checkout that was changed, is not loaded.

Packages in several folders are found by an import hook, which setuptools installs.  Type checkers cannot ask hooks, but
follow paths in ``.pth`` files (https://typing.python.org/en/latest/spec/distributing.html), so the path of the project
is written to the one that installs the hook.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403, the other hooks

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "castfit/integrate"
FLAGS = ("-O2", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")  # but -march
NEWER = "-march=x86-64-v3"  # processors since 2013: a fifth faster


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel, with the compiled integrator where that works."""
    name = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    with tempfile.TemporaryDirectory() as folder:
        made = libraries(Path(folder))
        return add_libraries(Path(wheel_directory, name), made) if made else name


def libraries(folder: Path) -> list[Path]:
    """Compile the integrator, for any processor and for newer ones; return what came of it."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / FOLDER).glob("esdirk*.c")))
    stem = f"esdirk-{hashlib.sha256(source.encode()).hexdigest()[:32]}"
    suffix = ".dll" if sys.platform == "win32" else ".so"
    wanted = {folder / f"{stem}{suffix}": FLAGS}
    if sys.platform == "linux" and platform.machine() == "x86_64":
        wanted[folder / f"{stem}-v3{suffix}"] = (*FLAGS, NEWER)
    Path(folder, "source.c").write_text(source, encoding="utf-8")
    return [path for path, flags in wanted.items() if _compile(folder / "source.c", path, flags)]


def _compile(source: Path, path: Path, flags: tuple[str, ...]) -> bool:
    """Tell whether one of the compilers that may be there makes a library."""
    more = [*flags, *_platform_flags(), "-o", str(path), str(source), "-lm"]
    return any(_runs([compiler, *more]) for compiler in (os.environ.get("CC"), "cc", "gcc", "clang") if compiler)


def _platform_flags() -> list[str]:
    """Return what a library needs on this platform: on macOS the processors of this Python's name."""
    if sys.platform == "win32":
        return ["-shared", "-static-libgcc"]
    universal = "-arch arm64 -arch x86_64" if sysconfig.get_platform().endswith("universal2") else ""
    return ["-shared", "-fPIC", *os.environ.get("ARCHFLAGS", universal).split()]


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, timeout=300, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def add_libraries(wheel: Path, made: list[Path]) -> str:
    """Add libraries to a wheel, which then is one of this platform; return its new name."""
    tag = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    new = wheel.with_name(wheel.name.replace("py3-none-any", tag))

    def of_platform(text: bytes) -> bytes:
        return text.replace(b"Tag: py3-none-any", f"Tag: {tag}".encode()).replace(b"Purelib: true", b"Purelib: false")

    rewrite(wheel, {".dist-info/WHEEL": of_platform}, {f"{FOLDER}/{path.name}": path.read_bytes() for path in made})
    wheel.rename(new)
    return new.name


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the wheel of an editable install."""
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    add_path(Path(wheel_directory, name), ROOT)
    return name


def add_path(wheel: Path, folder: Path) -> None:
    """Add a folder to the ``.pth`` file of a wheel."""
    rewrite(wheel, {".pth": lambda text: text.rstrip() + f"\n{folder}\n".encode()}, {})


def rewrite(wheel: Path, change: dict[str, Callable[[bytes], bytes]], add: dict[str, bytes]) -> None:
    """Change files of a wheel by the ends of their names, add others, and say in its record what they are now."""
    with zipfile.ZipFile(wheel) as old:
        files = {info.filename: (info, old.read(info)) for info in old.infolist()}
    changed = dict(add)
    for ending, by in change.items():
        place = next(name for name in files if name.endswith(ending))
        changed[place] = by(files[place][1])
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    lines = [line for line in files[record][1].decode().splitlines() if line.split(",")[0] not in changed]
    for place, content in changed.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{place},sha256={digest},{len(content)}")
    changed[record] = "\n".join([*lines, ""]).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for name, (info, data) in files.items():
            new.writestr(info, changed.pop(name, data))
        for name, data in changed.items():
            new.writestr(name, data)
