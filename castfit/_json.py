"""What JSON cannot hold, in terms of what it can: arrays, and floats that are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def plain(value: Any) -> Any:
    """Turn arrays, enumerations, dataclasses and floats that are not finite into dicts, lists, numbers and text."""
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        return {"__array__": [plain(x) for x in array.ravel().tolist()], "__shape__": list(array.shape)}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(x) for key, x in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in cast("list[Any]", value)]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return {"__float__": str(value)}
    return value


def restored(entry: dict[str, Any]) -> Any:
    """Undo `plain` for arrays and for floats; an ``object_hook`` for `json.loads`."""
    if "__array__" in entry:
        return np.array(entry["__array__"], dtype=float).reshape(entry["__shape__"])
    return float(entry["__float__"]) if "__float__" in entry else entry
