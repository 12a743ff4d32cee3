"""Files that appear whole or not at all: a full disk, or a process that ends, leaves the one that was there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from castfit._support.arguments import shorten_repr
from castfit._support.status import InputError, raise_if_mistakes


def write_atomically(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write a file at once; a device or a pipe is written to, and a link stays one.

    It is written beside its place and moved there, or, in a folder that takes no new files, in place.
    """
    raise_if_mistakes("save", folder_mistakes(path))
    target = Path(path)
    if target.exists() and not target.is_file():
        return _write_to_device(target, parts)
    target = target.resolve()
    content = b"".join(parts)  # whatever goes wrong with it does so before anything is touched
    try:
        temporary_folder = tempfile.TemporaryDirectory(dir=target.parent, prefix=".castfit_")
    except PermissionError:
        target.write_bytes(content)
        return None
    with temporary_folder as folder:
        temporary_path = Path(folder) / target.name
        with temporary_path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary_path.replace(target)
    return None


def read_bytes(where: str, path: Any) -> bytes:
    """Return the content of a file; InputError if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        cause = getattr(error, "strerror", None) or "expected a file path"
        raise InputError(where, [f"{shorten_repr(path)} cannot be read: {cause}"]) from error


def folder_mistakes(path: str | os.PathLike[str]) -> list[str]:
    """Return an error message if a file cannot be written since its path is none, or its folder does not exist."""
    target: Any = path
    if not isinstance(target, (str, os.PathLike)):
        return [f"path is {shorten_repr(target)}; expected a file path"]
    folder = Path(path).parent
    try:
        os.lstat(path)
    except (OSError, ValueError) as error:
        if folder.absolute().is_dir() and not isinstance(error, FileNotFoundError):
            return [f"path is {shorten_repr(str(path))}: {getattr(error, 'strerror', None) or error}"]
    return [] if folder.absolute().is_dir() else [f"directory '{folder}' does not exist; create it first"]


def _write_to_device(target: Path, parts: Iterable[bytes]) -> None:
    """Write to a target that is not a regular file.

    A pipe without a reader raises InputError, as a write would block.
    """
    try:
        descriptor = os.open(target, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise InputError(
            "save", [f"'{target}' cannot be written ({error.strerror}); give the path of a file"]
        ) from error
    with open(descriptor, "wb") as file:
        if hasattr(os, "set_blocking"):
            os.set_blocking(descriptor, True)
        file.writelines(parts)
