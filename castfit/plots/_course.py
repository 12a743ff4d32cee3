"""The course of a solve: its states, what there is to show of each, and in which words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit.plots._pieces import Piece, Pieces
from castfit.solve.solution import infeasibility
from castfit.solve.staged import StagedProblem, weighted_squares
from castfit._support.status import check

if TYPE_CHECKING:
    from castfit.problem.conditions import Condition
    from castfit.fit.fit import Transcription
    from castfit.problem.problem import Posable
    from castfit.solve.state import GaussNewtonState
    from castfit.solve.staged import Array

_SHARES = (0.0, 0.2, 0.5, 1.0)  # of all iterations, where snapshots are taken: the first ones change most
_MOST_ROWS, _MOST_SNAPSHOTS = 6, 8
_BEYOND = 0.5  # of the data's span, up to which a trajectory that leaves them is followed


@dataclass(frozen=True)
class Row:
    """One measured output of one experiment, and the values between which it is shown."""

    experiment: int
    condition: Condition
    output: int  # among the model's outputs
    label: str
    times: Array
    values: Array

    def limits(self, snapshots: Sequence[Sequence[Sequence[Piece]]]) -> tuple[float, float]:
        """Return the values between which the data are seen, and of trajectories that leave them the beginning."""
        low, high = float(self.values.min()), float(self.values.max())
        span = high - low or abs(high) or 1.0
        curves = [piece.values[:, self.output] for pieces in snapshots for piece in pieces[self.experiment]]
        seen = np.clip(np.concatenate([self.values, *curves]), low - _BEYOND * span, high + _BEYOND * span)
        low, high = float(np.nanmin(seen)), float(np.nanmax(seen))
        return low - 0.05 * (high - low), high + 0.05 * (high - low)


@dataclass(frozen=True)
class Course:
    """All states of a solve, and what is known about each."""

    states: tuple[GaussNewtonState, ...]
    staged: StagedProblem
    rows: tuple[Row, ...]
    note: str
    trajectories: Pieces
    gaps: Array

    @classmethod
    def of(
        cls, states: Iterable[GaussNewtonState], problem: Posable, transcription: Transcription | StagedProblem
    ) -> Course:
        """Collect the states; one that only says how the solve ended replaces the one before it."""
        given = tuple(states)
        staged = (
            transcription
            if isinstance(transcription, StagedProblem)
            else transcription.transcribe(problem, problem.guess)
        )
        layout = staged.layout
        mistakes = [] if given else ["there are no states; give list(GaussNewton().iterate(...))"]
        mistakes += [
            f"states have {size} variables, the transcription has {layout.n_v}; give the one that was iterated"
            for size in sorted({state.v.size for state in given} - {layout.n_v})
        ]
        check("plots", mistakes)
        kept = [
            here
            for here, there in zip(given, [*given[1:], None], strict=True)
            if there is None or here.iteration != there.iteration or not np.array_equal(here.v, there.v)
        ]
        rows = _rows(problem)
        note = f"{_MOST_ROWS} of {len(rows)} measured outputs are shown." if len(rows) > _MOST_ROWS else ""
        gaps = np.array([infeasibility(layout, staged.scale, state.evaluation) for state in kept])
        trajectories = Pieces(problem, [chain.times for chain in layout.chains])
        return cls(tuple(kept), staged, tuple(rows[:_MOST_ROWS]), note, trajectories, gaps)

    def chosen(self, choose: Sequence[int] | None) -> list[int]:
        """Return the positions of the states to show."""
        numbers = [state.iteration for state in self.states]
        if choose is None:
            return sorted({round(share * (len(numbers) - 1)) for share in _SHARES})
        mistakes = [
            f"there is no iteration {number}; choose from 0 to {numbers[-1]}"
            for number in choose
            if number not in numbers
        ]
        if not 1 <= len(choose) <= _MOST_SNAPSHOTS:
            mistakes.append(f"{len(choose)} iterations are chosen; choose 1 to {_MOST_SNAPSHOTS}")
        check("plots", mistakes)
        return [len(numbers) - 1 - numbers[::-1].index(number) for number in choose]

    def pieces(self, k: int) -> list[list[Piece]]:
        """Integrate all stages at the k-th state."""
        v = self.states[k].v
        theta = self.staged.layout.theta(v)
        return self.trajectories.between(self.staged.times(v)).from_nodes(theta, self.staged.node_states(v))

    def heading(self, k: int) -> str:
        """Say which iteration a state is, and how good."""
        state = self.states[k]
        count = state.iteration
        when = "start" if count == 0 else f"after {count} iteration{'s' if count > 1 else ''}"
        if not state.evaluation.ok:
            return f"{when}: cannot be integrated to the end"
        ended = f", {state.status.value.replace('_', ' ')}" if state.status is not None else ""
        gap = f", largest gap {_short(self.gaps[k])}" if self.has_gaps else ""
        return f"{when}{ended}\ncost {_short(0.5 * self.chi2(k))}{gap}"

    def chi2(self, k: int) -> float:
        """Return the sum of squared weighted residuals of the k-th state."""
        return weighted_squares(self.staged.layout, self.states[k].evaluation)

    @property
    def has_gaps(self) -> bool:
        """Whether anything must be joined."""
        return any(chain.n_s for chain in self.staged.layout.chains)


def _rows(problem: Posable) -> list[Row]:
    names, several = problem.model.output_names, len(problem.conditions) > 1
    rows: list[Row] = []
    for i, condition in enumerate(problem.conditions):
        points = condition.points
        for j, output in enumerate(problem.outputs):
            measured = points.mask[:, j]
            if measured.any():
                label = f"{output}, {condition.name}" if several else output
                data = points.times[measured], points.values[measured, j]
                rows.append(Row(i, condition, names.index(output), label, *data))
    return rows


def _short(value: float) -> str:
    """Write a number with three digits, a power of ten where it is needed."""
    if value == 0.0 or 1e-2 <= value < 1e5:
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    superscript = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa} · 10{superscript}"
