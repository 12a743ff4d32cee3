"""Whether two fits are of the same measured values, so that their likelihoods may be compared; if not, which differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.problem.compiled_problem import LOSS, NO_LIKELIHOOD
from castfit.problem.fingerprint import question

if TYPE_CHECKING:
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import Posed
    from castfit.problem.problem import Posable
    from castfit.result.result import Result


def data_mistakes(first: Result, second: Result, names: tuple[str, str]) -> list[str]:
    """List the differences between the data of two fits, which are called by `names`.

    Noise models and standard deviations may differ, for likelihoods know of them; times and values may not.  A loss
    that is no likelihood cannot be compared at all.
    """
    lost = [name for name, r in zip(names, (first, second), strict=True) if r.measure == LOSS]
    if lost:
        which = " and ".join(dict.fromkeys(lost))
        return [f"{which}: {NO_LIKELIHOOD}"]
    one, other = first.problem, second.problem
    return _by_hashes(first, second, names) if one is None or other is None else differing_data(one, other, names)


def differing_data(one: Posable, other: Posable, names: tuple[str, str]) -> list[str]:
    """List the differences between the data of two problems; see `data_mistakes`."""
    a = {c.name: c for c in one.posed.conditions}
    b = {c.name: c for c in other.posed.conditions}
    mistakes = [
        f"experiment '{name}' exists only in {mine}; compare fits to the same data"
        for mine, own, others in ((names[0], a, b), (names[1], b, a))
        for name in own
        if name not in others
    ]
    for name in a:
        if name in b:
            mistakes += _differences(one.posed, a[name], other.posed, b[name], names)
    return mistakes


def _by_hashes(first: Result, second: Result, names: tuple[str, str]) -> list[str]:
    hashes = [r.question if r.problem is None else question(r.problem) for r in (first, second)]
    data = [{k: v for k, v in h.items() if k.startswith("data of ")} for h in hashes]
    if not all(data):
        return [f"whether {names[0]} and {names[1]} have the same data is unknown; use result.with_problem"]
    return [
        f"{key}, or the noise that it is given, differs between {names[0]} and {names[1]}; use result.with_problem"
        for key in dict.fromkeys((*data[0], *data[1]))
        if data[0].get(key) != data[1].get(key)
    ]


def _differences(one: Posed, a: Condition, other: Posed, b: Condition, names: tuple[str, str]) -> list[str]:
    mine, theirs = _measured(one, a), _measured(other, b)
    found: list[str] = []
    for output in dict.fromkeys((*mine, *theirs)):
        where = f"'{output}' in '{a.name}'"
        if output not in mine or output not in theirs:
            has = names[0] if output in mine else names[1]
            found.append(f"measurements of {where} exist only in {has}; compare fits to the same data")
        elif mine[output].shape != theirs[output].shape or not np.array_equal(mine[output], theirs[output]):
            found.append(f"the measurements of {where} differ between {names[0]} and {names[1]}; compare fits to the same data")
    return found


def _measured(posed: Posed, condition: Condition) -> dict[str, np.ndarray]:
    """Return (n, 2) times and values by output."""
    points, out = condition.points, dict[str, np.ndarray]()
    for j, name in enumerate(posed.outputs):
        own = points.mask[:, j]
        if own.any():
            times = np.full(int(own.sum()), np.inf) if condition.settled else points.times[own]
            out[name] = np.column_stack([times, points.values[own, j]])
    return out
