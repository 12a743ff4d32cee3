"""What is drawn of a solve: broken trajectories over their data, and curves over the iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.plots._canvas import BLUE, INK, RED, SOFT, Axes, Canvas, tidy

if TYPE_CHECKING:
    from castfit.plots._course import Course, Row
    from castfit.plots._pieces import Piece
    from castfit.solve.state import GaussNewtonState
    from castfit.solve.staged import Array

_DOTS = 60  # more nodes than that are not marked, and more data get smaller dots
_SMALLEST = 1e-16  # below it gaps are drawn as this: there is no logarithm of zero
_SOFTENED = "#F5E6C8"


@dataclass(frozen=True)
class Trace:
    """The trajectory of one output on its axes."""

    row: Row
    curve: Any
    gaps: Any
    nodes: Any | None
    handles: dict[str, Any]  # what the legend explains

    @classmethod
    def on(cls, axes: Axes, row: Row, stages: int) -> Trace:
        """Draw the data, and make ready for a trajectory."""
        tidy(axes)
        size = 3.2 if row.times.size <= _DOTS else 1.8
        (data,) = axes.plot(row.times, row.values, "o", color="0.65", markersize=size, markeredgewidth=0, zorder=2)
        (curve,) = axes.plot([], [], color=BLUE, linewidth=1.3, solid_capstyle="butt", zorder=4)
        (gaps,) = axes.plot([], [], color=RED, linewidth=1.0, solid_capstyle="butt", zorder=3)
        nodes = None
        label = "trajectory, stage by stage" if stages > 1 else "trajectory"
        handles = {"data": data, label: curve}
        if 1 < stages <= _DOTS:
            (nodes,) = axes.plot(
                [], [], "o", color="white", markeredgecolor=BLUE, markersize=2.8, markeredgewidth=0.8, zorder=5
            )
            handles["nodes"] = nodes
        if stages > 1:
            handles["gaps"] = gaps
        start, end = row.condition.start, row.condition.end
        axes.set_xlim(start - 0.02 * (end - start), end + 0.02 * (end - start))
        axes.xaxis.get_major_locator().set_params(nbins=6)
        return cls(row, curve, gaps, nodes, handles)

    @property
    def lines(self) -> list[Any]:
        """All lines that move, from the back to the front."""
        return [line for line in (self.gaps, self.curve, self.nodes) if line is not None]

    def show(self, pieces: Sequence[Sequence[Piece]]) -> None:
        """Show this output, with gaps where one piece ends and the next one begins."""
        j, own = self.row.output, pieces[self.row.experiment]
        self.curve.set_data(*_broken([(piece.times, piece.values[:, j]) for piece in own]))
        jumps = [
            (there.times[[0, 0]], np.array([here.values[-1, j], there.values[0, j]]))
            for here, there in pairwise(own)
            if here.complete and there.times.size
        ]
        self.gaps.set_data(*_broken(jumps))
        if self.nodes is not None:
            begun = [piece for piece in own if piece.times.size]  # where algebraic states are consistent
            self.nodes.set_data([piece.times[0] for piece in begun], [piece.values[0, j] for piece in begun])


def _broken(lines: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Join lines to one that is interrupted by NaN."""
    gap = np.array([np.nan])
    times = [part for t, _ in lines for part in (t, gap)]
    values = [part for _, y in lines for part in (y, gap)]
    return np.concatenate([gap, *times]), np.concatenate([gap, *values])


@dataclass(frozen=True)
class Curves:
    """Cost, gaps and damping over the iterations."""

    axes: tuple[Axes, ...] = ()
    heights: tuple[Array, ...] = ()
    iterations: Sequence[int] = ()
    handles: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def on(cls, canvas: Canvas, course: Course) -> Curves:
        """Draw the curves, with the softened problems of a homotopy shaded."""
        states = course.states
        at = [state.iteration for state in states]
        # A step's factor is drawn where the step arrived; none arrives at the start.
        curves = {
            "cost, ½ Σ r²": np.array([0.5 * course.chi2(k) for k in range(len(states))]),
            "largest gap": np.maximum(course.gaps, _SMALLEST),
            "damping λ": np.array([np.nan, *(state.damping for state in states[1:])]),
        }
        if not course.has_gaps:
            del curves["largest gap"]
        many = canvas.subplots(1, len(curves), squeeze=False)[0]
        handles: dict[str, Any] = {}
        for axes, (title, heights) in zip(many, curves.items(), strict=True):
            tidy(axes)
            axes.set_title(title, loc="left", fontsize=9, color=INK, pad=4)
            axes.set_xlabel("iteration", fontsize=8, color=INK, labelpad=1)
            axes.set_xlim(-0.03 * max(at[-1], 1), 1.03 * max(at[-1], 1))
            axes.xaxis.get_major_locator().set_params(integer=True)
            if title.startswith("damping"):
                axes.set_ylim(-0.05, 1.1)
                axes.set_yticks([0, 0.5, 1])
            else:
                heights[~(np.isfinite(heights) & (heights > 0))] = np.nan
                if np.nanmax(heights, initial=0) > 10 * np.nanmin(heights, initial=np.inf):
                    axes.set_yscale("log")
                    axes.minorticks_off()
            axes.plot(at, heights, "-o", color=SOFT, linewidth=1.0, markersize=2.0, zorder=3)
            for first, last in _softened(states):
                handles["softened problem"] = axes.axvspan(first, last, color=_SOFTENED, linewidth=0, zorder=0)
        return cls(tuple(many), tuple(curves.values()), at, handles)

    def mark(self, k: int) -> list[Any]:
        """Mark the k-th state."""
        marks: list[Any] = []
        for axes, heights in zip(self.axes, self.heights, strict=True):
            (dot,) = axes.plot(self.iterations[k], heights[k], "o", color=BLUE, markersize=5, zorder=5)
            marks += [dot, axes.axvline(self.iterations[k], color=BLUE, linewidth=0.8, alpha=0.4, zorder=1)]
        return marks

    def move(self, marks: Sequence[Any], k: int) -> None:
        """Move marks to the k-th state."""
        for dot, line, heights in zip(marks[::2], marks[1::2], self.heights, strict=True):
            dot.set_data([self.iterations[k]], [heights[k]])
            line.set_xdata([self.iterations[k]] * 2)


def _softened(states: Sequence[GaussNewtonState]) -> list[tuple[int, int]]:
    """Return the first and last iterations of every ladder of softened problems."""
    spans: list[tuple[int, int]] = []
    for here, there in pairwise(states):
        if here.soft:
            joined = bool(spans) and spans[-1][1] == here.iteration
            first = spans.pop()[0] if joined else here.iteration
            spans.append((first, there.iteration))
    return spans
