"""Number of nodes of delay lines: it is increased until the estimates no longer change.

A fit of a model with delays is repeated, from where it ended, with half as many nodes more, until no estimate moves by
more than a hundredth of its standard error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit._support.status import Status
from castfit.fit.refinement import FitQuestion, RefinedFit
from castfit.model.delay import LADDER
from castfit.problem.problem import with_nodes
from castfit.result.result import Result

if TYPE_CHECKING:
    from castfit.problem.problem import Posable

_STILL = 0.01  # of a standard error
_ROUNDING = 1e-6  # of an estimate: data without noise leave no standard errors to compare with


class DelayNodes(RefinedFit):
    """More nodes, until estimates stand still."""

    what = "nodes of delay lines"

    def __init__(self, question: FitQuestion) -> None:
        self.problem, self.orders, self.said = question.problem, [_order(question.problem)], ""

    def refined(self, answer: Result) -> FitQuestion | None:
        """Return the problem with more nodes, unless it is known whether there are enough."""
        if not self.said and answer.status.cut_off:
            self.said = f"{_of(answer)}; whether they are enough was not tested."
        if self.said or not answer.success:
            return None
        order = next((n for n in LADDER if n > self.orders[-1]), None)
        finer = None if order is None else with_nodes(self.problem, order)
        if order is None or finer is None:
            self.said = f"{_of(answer)}; whether they suffice was not tested."
            return None
        self.orders.append(order)
        return FitQuestion(finer, answer.values)

    def joined(self, before: Result, after: Result) -> Result:
        """Compare estimates with fewer and with more nodes."""
        fewer, more = self.orders[-2:]
        if not after.success:
            ended = after.message if after.status is not Status.MAX_TIME else "no time was left"
            self.said = f"{_of(before)}; whether they are enough is unknown: with {more}, {ended}"
            return before
        moved = _STILL * movement(before, after)
        if moved <= _STILL:
            how = f"with {fewer} the estimates change by at most {moved:.1g} standard errors"
            self.said = f"{_of(after)}; {how}."
        elif more == max(LADDER):
            still = f"not converged: the estimates change by {moved:.2g} standard errors from {fewer} nodes on"
            self.said = f"{_of(after)}, and {still}."
        return super().joined(before, after)

    def concluded(self, answer: Result) -> Result:
        """Append to the message how many nodes there are and whether they suffice."""
        return answer.ended(answer.status, f"{answer.message} {self.said}") if self.said else answer


def movement(before: Result, after: Result) -> float:
    """Return the largest difference of two results' estimates, in units of what counts as none."""
    worst = 0.0
    for name, value in after.values.items():
        error = after.standard_errors[name]
        still = max(_STILL * error if np.isfinite(error) else 0.0, _ROUNDING * abs(value), np.finfo(float).tiny)
        if np.isfinite(error) or name in after.active or np.isnan(error):
            worst = max(worst, abs(value - before.values[name]) / still)
    return worst


def _order(problem: Posable) -> int:
    return max(line.order for line in problem.posed.model.lines if line.adaptive)


def _of(result: Result) -> str:
    assert result.problem is not None
    named = [f"{line.name} has {line.order} nodes" for line in result.problem.posed.model.lines if line.adaptive]
    return f"The delay line of {', that of '.join(named)}"
