"""Input and output of a step control."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from math import sqrt
from typing import ClassVar

import numpy as np

from castfit._support.records import dataclass
from castfit.solve.solution import CountingProblem
from castfit.solve.staged import Array, Evaluation, Index, Layout, gaps
from castfit.solve.subproblem import LocalProblem, Step


@dataclass(frozen=True)
class LineSearch:
    """Context of one iteration for the step control.

    local, step : the problem linearized at the current point, and the full Gauss-Newton step there
    evaluation : the current point
    memory : values that the step control stored in the last iteration
    """

    ledger: CountingProblem
    local: LocalProblem
    step: Step
    evaluation: Evaluation
    memory: Mapping[str, float]

    def trial(self, dv: Array) -> Evaluation:
        """Evaluate at v + dv, within the bounds."""
        staged = self.ledger.staged
        return self.ledger.evaluate(np.clip(self.evaluation.v + dv, staged.lower, staged.upper))

    def norm(self, dv: Array) -> float:
        """Root mean square of theta and node steps, in units of their magnitudes.

        Eliminated variables have no steps.
        """
        square = self.in_units(dv) ** 2
        return sqrt(float(np.add.reduce(square)) / square.size)

    def in_units(self, dv: Array) -> Array:
        """Return the steps (n,) of theta and nodes in units of their magnitudes."""
        chosen, unit = self._measure
        return dv[chosen] / unit

    @cached_property
    def _measure(self) -> tuple[Index | slice, Array]:
        staged = self.ledger.staged
        unit = np.maximum(np.abs(self.evaluation.v), staged.scale)
        unit[: staged.logarithmic.size][staged.logarithmic] = 1.0  # the value of a logarithm depends on units
        if staged.layout.n_v == staged.layout.n_theta and not staged.eliminated.size:
            return slice(None), unit
        chosen = np.delete(outer(staged.layout), staged.eliminated)  # theta comes first
        return chosen, unit[chosen]


@dataclass(frozen=True)
class StepOutcome:
    """Result of a step control.

    to : the new point, None if every trial failed
    damping : the damping factor
    memory : values for the next step
    report : figures for the history, such as the level function
    promise : expected decrease of the linear model by the next step, if known
    """

    new_point: Evaluation | None
    damping: float
    memory: Mapping[str, float] = field(default_factory=dict[str, float])
    report: Mapping[str, float] = field(default_factory=dict[str, float])
    predicted_decrease: float = np.inf


class StepControl(ABC):
    """Method that chooses the step length; a point that cannot be evaluated is never accepted.

    holds_singular_directions : whether directions that the data do not determine are fixed during the iterations
    uses_fallback : whether relaxed problems follow if steps make no progress
    """

    holds_singular_directions: ClassVar[bool] = True
    uses_fallback: ClassVar[bool] = True

    def step(self, local: LocalProblem, memory: Mapping[str, float]) -> Step:
        """Return the step whose predicted decrease tests convergence: by default the Gauss-Newton step."""
        return local.direction()

    @abstractmethod
    def advance(self, search: LineSearch) -> StepOutcome:
        """Choose the next point."""

    def memory_after_accuracy_change(self, memory: Mapping[str, float]) -> Mapping[str, float]:
        """Return the memory that remains valid after a change of accuracy: by default all of it."""
        return memory

    def mistakes(self, layout: Layout) -> list[str]:
        """Return messages on why this step control cannot be used for the problem; empty if it can."""
        return []


def outer(layout: Layout) -> Index:
    """Return the positions of theta and the nodes in v."""
    return np.concatenate([np.arange(layout.n_theta), *(chain.nodes.ravel() for chain in layout.chains)])


def violation_units(layout: Layout, scale: Array) -> list[Array]:
    """Return the unit of each `violation`: magnitudes of states for gaps and inner equations."""
    chains = [(scale[c.nodes], scale[c.inner], c.constraint_unit) for c in layout.chains]
    return [*(unit for of_chain in chains for unit in of_chain), layout.relations.unit]


def violation(layout: Layout, evaluation: Evaluation) -> list[Array]:
    """Return the equations' defects per chain: gaps (K, n_s), inner equations (K, n_w), violated path constraints.

    The last entry are the violated relations (n_h,).
    """
    defects: list[Array] = []
    for chain, gap, values in zip(layout.chains, gaps(layout, evaluation), evaluation.values, strict=True):
        lower_excess, upper_excess = chain.constraint_lower - values.c, values.c - chain.constraint_upper
        defects += [
            gap,
            values.d,
            np.fmax(np.fmax(lower_excess, upper_excess), 0.0),
        ]  # padding may be NaN, which fmax passes over
    relations = layout.relations
    return [*defects, np.fmax(np.fmax(relations.lower - evaluation.related, evaluation.related - relations.upper), 0.0)]
