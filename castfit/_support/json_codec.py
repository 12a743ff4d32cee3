"""Records as JSON: any dataclass of arrays, enumerations, tuples, sets, mappings and further dataclasses.

`to_jsonable` converts a value to JSON types field by field; `decode_object` and then `rebuild_value` undo that by the
declared types.  Classes with a format number, such as `Result`, define `to_dict` and `from_dict` instead.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from inspect import get_annotations, unwrap
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import is_one_of, shorten_repr
from castfit._support.status import InputError, raise_if_mistakes
from castfit._support.whole_files import read_bytes, write_atomically

# Per record class, the names that castfit 0.3 gave to fields in its files, and the present ones.
RENAMED_FIELDS = {
    "CandidateOutcome": {"settled": "is_converged", "held": "checked_cost", "begun": "start_theta"},
    "ConstraintTable": {"what": "objective_name"},
    "HalfContour": {"whole": "is_complete"},
    "Profiles": {"by": "statistic"},
    "Refit": {"found": "requested_pairs", "elsewhere": "has_other_optimum"},
}


_LEAVES: dict[Any, Any] = {str: str, bool: bool, int: int, float: (int, float)}


def to_jsonable(value: Any) -> Any:
    """Turn arrays, enumerations, dataclasses and floats that are not finite into dicts, lists, numbers and text."""
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        return {"__array__": [to_jsonable(x) for x in array.ravel().tolist()], "__shape__": list(array.shape)}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        if hasattr(value, "to_dict"):
            return cast("Any", value).to_dict()
        return {f.name: to_jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(x) for key, x in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (set, frozenset)):
        return [to_jsonable(x) for x in sorted(cast("set[Any]", value))]
    if isinstance(value, (list, tuple)):
        return [to_jsonable(x) for x in cast("list[Any]", value)]
    if isinstance(value, np.generic):
        return to_jsonable(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return {"__float__": str(value)}
    return value


def replace_nonfinite(value: Any) -> Any:
    """Replace numbers that are not finite by None, also within mappings and lists, as required by JSON readers."""
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(x) for key, x in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [replace_nonfinite(x) for x in cast("list[Any]", value)]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def decode_object(entry: dict[str, Any]) -> Any:
    """Undo `to_jsonable` for arrays and for floats; an ``object_hook`` for `json.loads`."""
    if "__array__" in entry:
        return np.array(entry["__array__"], dtype=float).reshape(entry["__shape__"])
    return float(entry["__float__"]) if "__float__" in entry else entry


def rebuild_value(kind: Any, entry: Any) -> Any:
    """Convert a decoded JSON entry to a value of a known type.

    A dataclass takes the fields that it has; those that a file lacks keep their defaults.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if entry is None else rebuild_value(next(k for k in inner if k is not type(None)), entry)
    if kind in _LEAVES:
        if not isinstance(entry, _LEAVES[kind]) or isinstance(entry, bool) is not (kind is bool):
            raise TypeError(f"{shorten_repr(entry)} is of another type than {kind.__name__}")
        return entry
    if origin is np.ndarray:
        (number,) = get_args(inner[1])
        array = np.asarray(entry)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{shorten_repr(entry)} is no array of numbers")
        return array.astype(number)
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(rebuild_value(k, x) for k, x in zip(inner, entry, strict=True))
    if origin in (tuple, list, frozenset):
        return cast("Any", origin)(rebuild_value(inner[0], x) for x in entry)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        entries = {key: rebuild_value(inner[-1], x) for key, x in entry.items()}
        return Counter(entries) if origin is Counter else entries
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(entry)
    if isinstance(kind, type) and hasattr(kind, "from_dict"):
        return cast("Any", kind).from_dict(entry)
    if is_dataclass(kind):
        if not isinstance(entry, Mapping):
            raise TypeError(f"{entry!r} holds no fields")
        return cast("Any", kind)(**rebuild_fields(kind, cast("Mapping[str, Any]", entry)))
    return entry


def write_record(
    path: str | os.PathLike[str], marker: str, version: int, record: Any, *, without: Any = (), **entries: Any
) -> None:
    """Write the fields of a dataclass and further entries as JSON; the marker holds the version of the format."""
    values = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in without} | entries
    write_atomically(path, [(json.dumps({marker: version, **to_jsonable(values)}, allow_nan=False) + "\n").encode()])


def read_json(where: str, path: Any) -> Any:
    """Read a JSON file with arrays; InputError if it cannot be read, or contains something else."""
    content = read_bytes(where, path)
    try:
        return json.loads(content.decode(), object_hook=decode_object)
    except (TypeError, ValueError, KeyError, RecursionError, OverflowError) as error:
        # No text, no JSON, or no array where one is announced.
        raise InputError(where, [f"'{path}' is not a JSON file: {error}"]) from None


def check_shapes(shapes: Iterable[tuple[str, Any, tuple[int, ...]]]) -> None:
    """Check the shapes of arrays, of which names come first; ValueError if one differs."""
    for name, array, shape in shapes:
        if np.shape(array) != shape:
            raise ValueError(f"{name} has the shape {np.shape(array)} instead of {shape}")


def load_record(kind: Any, path: Any, marker: str, version: int, **extra_fields: Any) -> Any:
    """Read a file of `write_record` with extra fields that no file holds; InputError if it is damaged.

    A method `use_all` of the record must work.
    """
    where = f"{kind.__name__}.load"
    loaded = read_json(where, path)
    content: dict[str, Any] = cast("Any", loaded) if isinstance(loaded, dict) else {}
    if not is_one_of(content.pop(marker, None), version):
        raise InputError(where, [f"'{path}' contains no {kind.__name__} of format {version}; choose another file"])
    content = {name: value for name, value in content.items() if name not in extra_fields}
    absent = [f.name for f in fields(kind) if f.default is MISSING and f.name not in {**content, **extra_fields}]
    raise_if_mistakes(where, [f"'{path}' lacks {', '.join(absent)}; it is damaged"] if absent else [])
    try:
        record = kind(**rebuild_fields(kind, content), **extra_fields)
        record.use_all()
        return record
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise InputError(where, [f"'{path}' is damaged: {error}"]) from None


def rebuild_fields(kind: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass that an entry has, also under names of castfit 0.3.

    Raises
    ------
    TypeError
        If the entry has a key that is not a field, whose value would be lost.
    """
    new_names, types = RENAMED_FIELDS.get(kind.__name__, {}), _types(kind)
    entries = {new_names.get(name, name): value for name, value in entry.items()}
    if unknown_names := entries.keys() - types.keys():
        raise TypeError(f"unknown entries {', '.join(sorted(unknown_names))}")
    return {name: rebuild_value(types[name], value) for name, value in entries.items()}


@cache
def _types(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, which the module that defines it must know at run time.

    That is not what ``__module__`` says of public classes, but where the constructor looks names up.
    """
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            names = unwrap(cast("Any", base).__init__).__globals__
            hints |= get_annotations(cast("Any", base), globals=names, eval_str=True)
    return {f.name: hints[f.name] for f in fields(kind)}
