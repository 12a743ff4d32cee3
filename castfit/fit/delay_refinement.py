"""Number of nodes of delay lines: it is increased until the estimates no longer change.

A fit of a model with delays is repeated from its end with half as many nodes more, until no estimate changes by more
than a hundredth of its standard error.
"""

from __future__ import annotations

import numpy as np

from castfit._support.status import Status
from castfit.fit.refinement import RefinedFit, RefinementProblem
from castfit.model.delay import LADDER
from castfit.problem.problem import Posable, with_nodes
from castfit.result.result import Result

_CONVERGENCE_SE = 0.01  # Change of an estimate, in standard errors, below which the delay line is fine enough.
# Relative change of an estimate that is always accepted: exact data have no standard errors to compare with.
_CONVERGENCE_RTOL = 1e-6


class DelayNodes(RefinedFit):
    """Refinement of the delay lines until the estimates no longer change."""

    subject = "nodes of delay lines"

    def __init__(self, question: RefinementProblem) -> None:
        self.problem, self.orders, self.message = question.problem, [_order(question.problem)], ""

    def next_question(self, answer: Result) -> RefinementProblem | None:
        """Return the problem with more nodes, or None if the last change is already known."""
        if not self.message and answer.status.cut_off:
            self.message = f"{_describe_delay_lines(answer)}; whether they are enough was not tested."
        if self.message or not answer.success:
            return None
        order = next((n for n in LADDER if n > self.orders[-1]), None)
        finer_problem = None if order is None else with_nodes(self.problem, order)
        if order is None or finer_problem is None:
            self.message = f"{_describe_delay_lines(answer)}; whether they are enough was not tested."
            return None
        self.orders.append(order)
        return RefinementProblem(finer_problem, answer.values)

    def merge_answers(self, previous_answer: Result, new_answer: Result) -> Result:
        """Compare estimates with fewer and with more nodes."""
        previous_order, order = self.orders[-2:]
        if not new_answer.success:
            failure = new_answer.message if new_answer.status is not Status.MAX_TIME else "no time was left"
            self.message = (
                f"{_describe_delay_lines(previous_answer)}; whether they are enough is unknown: with {order}, {failure}"
            )
            return previous_answer
        change = _CONVERGENCE_SE * largest_change(previous_answer, new_answer)
        if change <= _CONVERGENCE_SE:
            comparison = f"with {previous_order} the estimates change by at most {change:.1g} standard errors"
            self.message = f"{_describe_delay_lines(new_answer)}; {comparison}."
        elif order == max(LADDER):
            note = f"not converged: the estimates change by {change:.2g} standard errors from {previous_order} nodes on"
            self.message = f"{_describe_delay_lines(new_answer)}, and {note}."
        return super().merge_answers(previous_answer, new_answer)

    def conclude(self, answer: Result) -> Result:
        """Append to the message the number of nodes and whether it is sufficient."""
        return answer.with_status(answer.status, f"{answer.message} {self.message}") if self.message else answer


def largest_change(previous: Result, current: Result) -> float:
    """Return the largest difference of two results' estimates, relative to the accepted difference."""
    largest_ratio = 0.0
    for name, value in current.values.items():
        error = current.standard_errors[name]
        tolerance = max(
            _CONVERGENCE_SE * error if np.isfinite(error) else 0.0, _CONVERGENCE_RTOL * abs(value), np.finfo(float).tiny
        )
        if np.isfinite(error) or name in current.active or np.isnan(error):
            largest_ratio = max(largest_ratio, abs(value - previous.values[name]) / tolerance)
    return largest_ratio


def _order(problem: Posable) -> int:
    return max(line.order for line in problem.posed.model.lines if line.adaptive)


def _describe_delay_lines(result: Result) -> str:
    assert result.problem is not None
    descriptions = [f"{line.name} has {line.order} nodes" for line in result.problem.posed.model.lines if line.adaptive]
    return f"The delay line of {', that of '.join(descriptions)}"
