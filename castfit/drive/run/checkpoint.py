"""Checkpoints: append-only files of JSON lines from which a run that was killed can be continued.

The first line identifies the problem and the method of the records; every further line is a record of the driver.  A
line is on disk before the next one begins; an incomplete last line of a killed run is removed when the run continues.
A full disk does not end a run: the record is missing, a message reports this, and the next record is written again.
Each line ends with a checksum, by which later damage is detected; lines of earlier versions have none.

Format 2 differs from format 1 of castfit 0.2 and 0.3 in names of fields; files of both formats are read and continued.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np

from castfit._support.arguments import shorten_repr
from castfit._support.json_codec import decode_object, to_jsonable
from castfit._support.status import InputError, raise_if_mistakes
from castfit._support.whole_files import folder_mistakes, read_bytes, write_atomically
from castfit.fit.build_result import versions
from castfit.problem.fingerprint import digest, fingerprint
from castfit.problem.problem import Posable

Header = Mapping[str, Any]
Record = dict[str, Any]

FORMAT_VERSION = 2  # version of the file format, written to the first line
# Exceptions raised by records with unexpected contents.
DAMAGE = (TypeError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)
_KIND = "castfit_checkpoint"
_SUM = "crc32"
# Names of header entries in castfit 0.2 and 0.3, and their current names.
_RENAMED = {
    "level": "confidence_level",
    "levels": "confidence_levels",
    "start_max_time": "fit_max_time",
    "ways": "strategies",
}
# Largest difference of an estimate from that of a checkpoint, relative to its value and to its standard error: the last
# digits depend on the processor.
_ESTIMATE_RTOL, _ESTIMATE_SE_SHARE = 1e-6, 1e-4
_EXACT_ENTRY = "entry of castfit 0.3"
_FOREIGN = "is not a castfit checkpoint; choose another file"


class Checkpoint:
    """A file that grows by one record at a time.

    The header identifies the run of the records.  Its entries are compared one by one, except ``"versions"``.  An
    existing file is continued if `resume` is True; if it belongs to another run, InputError lists every difference.

    records : records of an existing file; `castfit._support.json_codec.rebuild_value` makes dataclasses of them
    trouble : sentence about missing records; empty if there are none

    If `verbose`, the first write error is printed to standard error.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header, *, resume: bool, verbose: bool = False) -> None:
        raise_if_mistakes("checkpoint", folder_mistakes(path))
        self.path, self._verbose = Path(path), verbose
        if self.path.is_fifo() or self.path.is_socket() or self.path.is_block_device():
            raise InputError("checkpoint", [f"'{path}' is not a file; pass a file path"])
        exists = self.path.is_file() and self.path.stat().st_size > 0
        if exists and not resume:
            raise InputError("checkpoint", [f"'{path}' exists; set resume=True to continue it, or delete it"])
        saved_header, self.records, self._whole = read(self.path) if exists else (None, (), 0)
        if saved_header is not None:
            raise_if_mistakes(
                "checkpoint",
                [f"'{path}' {difference}" for difference in describe_header_differences(saved_header, header)],
            )
        self._header = b"" if saved_header is not None else _line({_KIND: FORMAT_VERSION, **header})
        self.trouble = ""
        try:
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115, it stays open
            if exists:
                self._file.truncate(self._whole)
        except OSError as error:
            raise InputError("checkpoint", [f"'{path}' cannot be written: {error.strerror}"]) from error
        if saved_header is None:
            self._write(b"")
            _sync_folder(self.path.parent)

    def append(self, record: Mapping[str, Any]) -> bool:
        """Write a record of values that `to_jsonable` supports; return whether it is on disk afterwards."""
        return self._write(_line(record))

    def _write(self, line: bytes) -> bool:
        """Write a line whole or not at all, after the header if that is still missing."""
        content = self._header + line
        try:
            remaining = memoryview(content)
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
            if self.path.is_file():
                os.fsync(self._file.fileno())
        except OSError as error:
            self._fail(error)
            with suppress(OSError):  # devices have no length
                self._file.truncate(self._whole)
            return False
        self._header = b""
        self._whole += len(content)
        return True

    def _fail(self, error: OSError) -> None:
        """Record the first write error, and print it to stderr if the run is verbose."""
        if self.trouble:
            return
        self.trouble = f"The checkpoint '{self.path}' is incomplete, because some writes failed ({error.strerror})."
        if self._verbose:
            sys.stderr.write(
                f"castfit: writing the checkpoint '{self.path}' failed ({error.strerror}); the run continues.\n"
            )

    def intact(self) -> AbstractContextManager[None]:
        """Return a context in which errors of reading records are reported as damage of the file."""
        return checkpoint_guard("checkpoint", self.path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def checkpoint_guard(location: str, path: str | os.PathLike[str]) -> Generator[None, None, None]:
    """Convert errors while records are read to an InputError that reports a damaged file."""
    try:
        yield
    except DAMAGE as error:
        cause = error.problems[0] if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(location, [f"'{path}' is damaged ({cause}); choose another file or delete it"]) from None


def run_header(driver: str, problem: Posable, transcription: Any, solver: Any, **entries: Any) -> dict[str, Any]:
    """Build the header of a driver's records: its problem, its method, and other entries."""
    return {
        "driver": driver,
        **fingerprint(problem),
        "transcription": describe_method(transcription),
        "solver": describe_method(solver),
        **entries,
        "versions": dict(versions()),
    }


def describe_estimate(values: Mapping[str, float], errors: Mapping[str, float], exact_entry: str) -> dict[str, Any]:
    """Return the entry of a header that identifies an estimate to within the last digits.

    exact_entry : entry of castfit 0.3, a hash of exact bits or digits as text
    """
    deviations = np.nan_to_num([errors.get(n, 0.0) for n in values], posinf=0.0)
    return {"values": list(values.values()), "standard errors": deviations.tolist(), _EXACT_ENTRY: exact_entry}


def read_seed(rng: int | np.random.Generator) -> int | str:
    """Return the entry of a header that identifies the random numbers."""
    return int(rng) if isinstance(rng, (int, np.integer)) else "of a generator"


def read(path: str | Path) -> tuple[Record | None, tuple[Record, ...], int]:
    """Read a checkpoint as far as its lines are complete: header, records, and the number of bytes that this takes.

    The header is None if a run was killed before it was written.  A file that is no checkpoint, damaged in the middle,
    or of a later version of castfit is refused.
    """
    content = read_bytes("checkpoint", path)
    n_complete_bytes = content.rfind(b"\n") + 1
    if not n_complete_bytes and not _line({_KIND: FORMAT_VERSION}).startswith(content[: len(_KIND) + 3]):
        raise InputError("checkpoint", [f"'{path}' {_FOREIGN}"])
    lines: list[Record] = []
    for number, line in enumerate(content[:n_complete_bytes].splitlines(), 1):
        entry: Any = None
        with suppress(*DAMAGE):
            entry = json.loads(line, object_hook=decode_object if lines else None)
            check_sum = entry.pop(_SUM, None)
            if check_sum is not None and check_sum != _sum(line[: line.rindex(f', "{_SUM}"'.encode())] + b"}"):
                entry = None
        if not isinstance(entry, dict) or (number == 1 and _KIND not in entry):
            damage = f"line {number} is damaged; delete this line" if lines else _FOREIGN
            raise InputError("checkpoint", [f"'{path}' {damage}"])
        lines.append(cast("Record", entry))
    if not lines:
        return None, (), 0
    header, *records = lines
    version = header.pop(_KIND)
    if version not in (1, FORMAT_VERSION):
        raise InputError("checkpoint", [f"'{path}' has format {version}; this castfit reads format {FORMAT_VERSION}"])
    return {_RENAMED.get(key, key): value for key, value in header.items()}, tuple(records), n_complete_bytes


def write(path: str | Path, header: Header, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a whole checkpoint at once; a file appears complete or not at all, a device or a pipe is written to."""
    write_atomically(path, (_line(line) for line in ({_KIND: FORMAT_VERSION, **header}, *records)))


def describe_header_differences(saved_header: Header, header: Header) -> list[str]:
    """Describe the differences between two headers, except versions."""
    header = json.loads(_text(header))
    messages: list[str] = []
    for key in dict.fromkeys((*header, *saved_header)):
        if key == "versions" or (
            key in saved_header and key in header and _is_same_entry(saved_header[key], header[key])
        ):
            continue
        if key not in header:
            messages.append(f"has the setting {key}, which this run does not have")
        elif key not in saved_header:
            messages.append(f"lacks the setting {key} of this run")
        elif isinstance(header[key], dict) and _EXACT_ENTRY in header[key]:
            hint = ", or castfit 0.3 wrote it on another kind of processor: continue it there"
            messages.append(f"has another {key} than this run{hint if isinstance(saved_header[key], str) else ''}")
        elif isinstance(saved_header[key], str) and saved_header[key].startswith("sha256:"):
            messages.append(f"differs from this run in the {key}")
        else:
            messages.append(
                f"has {key} = {_format_value(saved_header[key])}; this run has {_format_value(header[key])}"
            )
    return messages


def _is_same_entry(saved_entry: Any, entry: Any) -> bool:
    """Compare an entry of two headers; estimates agree if they differ by less than their tolerance."""
    if not (isinstance(entry, dict) and _EXACT_ENTRY in entry):
        return saved_entry == entry
    estimate = cast("dict[str, Any]", entry)
    if isinstance(saved_entry, str):
        return saved_entry == estimate[_EXACT_ENTRY]
    values, errors = np.array(estimate["values"]), np.array(estimate["standard errors"])
    with suppress(*DAMAGE):
        differences = np.abs(np.array(saved_entry["values"]) - values)
        return bool((differences <= _ESTIMATE_RTOL * np.abs(values) + _ESTIMATE_SE_SHARE * errors).all())
    return False


def describe_method(value: Any) -> str:
    """Describe a transcription or a solver with all its options, the same in every process."""
    if is_dataclass(value) and not isinstance(value, type):
        options = ", ".join(f"{f.name}={describe_method(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({options})"
    if isinstance(value, np.ndarray):
        return f"array {digest(value)}"
    if isinstance(value, Mapping):
        entries = (f"{k}: {describe_method(v)}" for k, v in cast("Mapping[Any, Any]", value).items())
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe_method(v) for v in cast("tuple[Any, ...]", value)) + "]"
    if isinstance(value, np.generic):
        return repr(cast("Any", value).item())
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)  # a repr may hold an address


def _text(record: Mapping[str, Any]) -> bytes:
    return json.dumps(to_jsonable(record), allow_nan=False).encode()


def _sum(text: bytes) -> str:
    return f"{crc32(text):08x}"


def _line(record: Mapping[str, Any]) -> bytes:
    text = _text(record)
    return text[:-1] + f', "{_SUM}": "{_sum(text)}"}}\n'.encode()


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else shorten_repr(json.loads(json.dumps(value), object_hook=decode_object))


def _sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that a new file's name is stored, if the platform supports it."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
