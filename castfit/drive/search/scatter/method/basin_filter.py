"""What earlier local searches passed through.

A filter that compares a start with the minima found so far starts again and again at the far ends of long valleys.
The path of a local search tells more: whatever lies close to any point of it leads to the same minimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array
from castfit.drive.search.scatter.method.members import Member, distances

_MOST_POINTS = 24  # of a path that are kept


@dataclass(frozen=True, eq=False)
class Climb:
    """A local search: from where to where, and the points on its way (k, n), both ends included."""

    start: Member
    end: Member
    path: Array


def thinned(path: Array) -> Array:
    """Return a path of at most a few points, evenly spaced in number, both ends included."""
    if len(path) <= _MOST_POINTS:
        return path
    return path[np.unique(np.linspace(0, len(path) - 1, _MOST_POINTS).round().astype(int))]


def path_distances(X: Array, path: Array) -> Array:
    """Return the distance from each row of X (k, n) to a path of straight segments (l, n), (k,)."""
    if len(path) == 1:
        return distances(X, path)[:, 0]
    A, D = path[:-1], np.diff(path, axis=0)
    length = np.maximum((D**2).sum(axis=1), np.finfo(float).tiny)
    along = np.einsum("kln,ln->kl", X[:, None, :] - A[None], D) / length
    foot = A[None] + np.clip(along, 0.0, 1.0)[:, :, None] * D[None]
    return np.sqrt(((X[:, None, :] - foot) ** 2).sum(axis=2)).min(axis=1)


def memory_distances(X: Array, climbs: Sequence[Climb]) -> Array:
    """Return the distance from each row of X to all that earlier searches passed, (k,); inf if there were none."""
    return np.min([np.full(len(X), np.inf), *(path_distances(X, climb.path) for climb in climbs)], axis=0)


def near_paths(X: Array, climbs: Sequence[Climb], reach: float) -> NDArray[np.bool_]:
    """Tell which rows of X lie within `reach`, a root mean square over the unknowns, of an earlier path, (k,)."""
    return memory_distances(X, climbs) < reach * np.sqrt(X.shape[1])


def near_minima(X: Array, climbs: Sequence[Climb], factor: float) -> NDArray[np.bool_]:
    """Tell which rows of X lie closer to a minimum found than `factor` times the way from which it was found, (k,).

    This is the distance filter of SSm (after Ugray et al. 2007, INFORMS J. Comput. 19, 328).
    """
    near = np.zeros(len(X), dtype=bool)
    for climb in climbs:
        way = float(np.linalg.norm(climb.start.x - climb.end.x))
        near |= distances(X, climb.end.x[None])[:, 0] < factor * way
    return near
