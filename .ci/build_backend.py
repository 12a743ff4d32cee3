"""setuptools' backend, with editable installs that type checkers find.

Packages in several folders are found by an import hook, which setuptools installs.  Type checkers cannot ask hooks, but
follow paths in ``.pth`` files (https://typing.python.org/en/latest/spec/distributing.html), so the path of the project
is written to the one that installs the hook.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403, the other hooks


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the wheel of an editable install."""
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    add_path(Path(wheel_directory, name), Path(__file__).resolve().parents[1])
    return name


def add_path(wheel: Path, folder: Path) -> None:
    """Add a folder to the ``.pth`` file of a wheel, and to its record what that file is now."""
    with zipfile.ZipFile(wheel) as old:
        files = {info.filename: (info, old.read(info)) for info in old.infolist()}
    place = next(name for name in files if name.endswith(".pth"))
    content = files[place][1].rstrip() + f"\n{folder}\n".encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    lines = [line for line in files[record][1].decode().splitlines() if not line.startswith(f"{place},")]
    changed = {place: content, record: "\n".join([*lines, f"{place},sha256={digest},{len(content)}", ""]).encode()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for name, (info, data) in files.items():
            new.writestr(info, changed.get(name, data))
