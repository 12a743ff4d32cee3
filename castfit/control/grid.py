"""Stages of a horizon: their edges, and the values of the free inputs on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.control.question import ControlQuestion

_EDGE_MERGE_FRACTION = 1e-10  # distance up to which two edges are merged, as a fraction of the horizon


@dataclass(frozen=True, eq=False)
class StageGrid:
    """Edges (K + 1,) of stages as parts of the horizon, from 0 to 1."""

    edges: Array

    @classmethod
    def from_question(cls, question: ControlQuestion, elements: int) -> StageGrid:
        """Build a grid of about `elements` stages, with edges at pieces, constraint times and breakpoints."""
        length, start = question.horizon, question.start
        boundaries = [np.array([0.0, 1.0])]
        boundaries += [np.linspace(0.0, 1.0, u.pieces + 1) for u in question.free_inputs.values()]
        if not question.has_free_horizon:
            boundaries += [(np.array(c.times, dtype=float) - start) / length for c in question.points]
            boundaries += [(u.breakpoints - start) / length for u in question.known_inputs.values()]
        edges = np.unique(np.concatenate(boundaries))
        edges = edges[(edges >= 0.0) & (edges <= 1.0)]
        edges = edges[np.concatenate([[True], np.diff(edges) > _EDGE_MERGE_FRACTION])]
        edges[-1] = 1.0
        return cls(edges).subdivide(np.maximum(np.ceil(np.diff(edges) * elements - 1e-6).astype(int), 1))

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.edges.size - 1

    def subdivide(self, parts: Index) -> StageGrid:
        """Return the grid with each stage divided into a number of parts (K,)."""
        begin = np.repeat(self.edges[:-1], parts)
        length = np.repeat(np.diff(self.edges) / parts, parts)
        number = np.arange(begin.size) - np.repeat(np.cumsum(parts) - parts, parts)
        return replace(self, edges=np.append(begin + number * length, 1.0))

    def times(self, start: float, horizon: float) -> Array:
        """Return the edges in time."""
        return start + horizon * self.edges

    def find_value_indices(self, question: ControlQuestion) -> Index:
        """Return the indices of the values of all free inputs that each stage uses, (K, n_v)."""
        columns, offset = list[Any](), 0
        for u in question.free_inputs.values():
            piece = self._piece(u.pieces)
            columns += [offset + piece, *([offset + piece + 1] if u.linear else [])]
            offset += u.size
        return np.stack(columns, axis=1) if columns else np.empty((self.stages, 0), dtype=np.intp)

    def compute_stage_numbers(self, question: ControlQuestion) -> Array:
        """Return the numbers e of the stages, (K, n_e); see castfit.control.stages."""
        columns = [self.edges[:-1], np.diff(self.edges)]
        for u in question.free_inputs.values():
            piece = self._piece(u.pieces)
            columns += [self.edges[:-1] * u.pieces - piece, self.edges[1:] * u.pieces - piece]
        times = self.times(question.start, question.horizon)
        for u in question.known_inputs.values():
            columns += list(u.cubics(times).T)
        return np.stack(columns, axis=1)

    def _piece(self, pieces: int) -> Index:
        return np.minimum((0.5 * (self.edges[1:] + self.edges[:-1]) * pieces).astype(np.intp), pieces - 1)
