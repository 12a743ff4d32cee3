"""What a checkpoint of a scatter search holds: after every generation the whole state and the whole book."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._json import plain
from castfit.drive.run.checkpoint import numbers, packed, unpacked
from castfit.drive.scatter.method.basins import Climb
from castfit.drive.scatter.method.choice import Filters
from castfit.drive.scatter.method.members import Member
from castfit.drive.scatter.method.search import State

if TYPE_CHECKING:
    from castfit.drive.scatter.book import Book
    from castfit.result import Result


def generation_record(states: Iterable[State], book: Book, saved: Result | None) -> dict[str, Any]:
    """Return the record of a generation; the best result is written only when it is not the one `saved` last."""
    record: dict[str, Any] = {"states": [_packed_state(s) for s in states], "book": plain(book.record())}
    if book.result is not saved:
        record["result"] = None if book.result is None else packed(book.result)
    return record


def last_generation(
    records: Iterable[Mapping[str, Any]],
) -> tuple[tuple[State, ...], Mapping[str, Any], Result | None] | None:
    """Return states, the book's record and its result after the last complete generation; None if there is none."""
    last: Mapping[str, Any] | None = None
    result: Any = None
    for record in records:
        if "states" in record:
            last, result = record, record.get("result", result)
    if last is None:
        return None
    entries = numbers({"states": last["states"], "book": last["book"]})
    states = tuple(_unpacked_state(entry) for entry in entries["states"])
    return states, entries["book"], None if result is None else unpacked(result)


def _packed_state(state: State) -> dict[str, Any]:
    entry = {**vars(state), "combined": sorted(state.combined), "frequency": state.frequency.astype(float)}
    return plain(entry)


def _unpacked_state(entry: Mapping[str, Any]) -> State:
    climbs = (Climb(_member(c["start"]), _member(c["end"]), c["path"]) for c in entry["climbs"])
    given: dict[str, Any] = {
        **entry,
        "R": tuple(_member(m) for m in entry["R"]),
        "best": _member(entry["best"]),
        "combined": frozenset((i, j) for i, j in entry["combined"]),
        "frequency": np.asarray(entry["frequency"]).astype(np.intp),
        "climbs": tuple(climbs),
        "filters": Filters(**entry["filters"]),
    }
    return State(**given)


def _member(entry: Mapping[str, Any]) -> Member:
    return Member(**entry)
