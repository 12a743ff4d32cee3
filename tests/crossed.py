"""Parameters of a test that is run for all pairs of two lists: the default run takes every value of both once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest


def crossed(one: Mapping[str, Any] | Sequence[Any], other: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
    """Return all pairs, of which those off the diagonal are slow tests; mappings have the names of their values.

    Longer lists go round the shorter one, so that no value is left out of the default run.
    """
    named = [values if isinstance(values, Mapping) else {str(v): v for v in values} for values in (one, other)]
    rows, columns = map(list, named)
    found = []
    for i, j in product(range(len(rows)), range(len(columns))):
        diagonal = j == i % len(columns) if len(rows) >= len(columns) else i == j % len(rows)
        values = named[0][rows[i]], named[1][columns[j]]
        found.append(pytest.param(*values, id=f"{rows[i]}-{columns[j]}", marks=[] if diagonal else [pytest.mark.slow]))
    return found
