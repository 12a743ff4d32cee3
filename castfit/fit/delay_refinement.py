"""How many nodes delay lines need: as many as it takes until the estimates move no more.

A fit of a model with delays is repeated, from where it ended, with half as many nodes more, until no estimate moves by
more than a hundredth of its standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.model.delay import LADDER
from castfit.problem.problem import with_nodes
from castfit._support.status import Status

if TYPE_CHECKING:
    from castfit.problem.problem import Posable
    from castfit.result.result import Result

_STILL = 0.01  # of a standard error
_ROUNDING = 1e-6  # of an estimate: data without noise leave no standard errors to compare with


def settled(problem: Posable, first: Result, again: Callable[[Posable, Mapping[str, float]], Result]) -> Result:
    """Repeat a fit with more nodes until its estimates stand still, and say so in the result's message.

    Parameters
    ----------
    problem : Problem or Posed
        With an adaptive model.
    first : Result
        A solution with as many nodes as the model has.
    again : callable
        ``again(problem, start)`` fits another problem from the given values.
    """
    best, orders, moved = first, [_order(problem)], np.inf
    for order in LADDER:
        if order <= orders[-1]:
            continue
        finer = with_nodes(problem, order)
        if finer is None:
            return _said(best, f"{_of(best)}; whether they suffice was not tested.")
        found = again(finer, best.values)
        if not found.success:
            ended = found.message if found.status is not Status.MAX_TIME else "no time was left"
            return _said(best, f"{_of(best)}; whether they suffice is not known: with {order}, {ended}")
        moved = movement(best, found)
        best = together(best, found)
        orders.append(order)
        if moved <= 1.0:
            how = f"with {orders[-2]} the estimates differ by at most {_STILL * moved:.1g} standard errors"
            return _said(best, f"{_of(best)}; {how}.")
    still = f"the estimates still move: by {_STILL * moved:.2g} standard errors from {orders[-2]} nodes on"
    return _said(best, f"{_of(best)}, and {still}.")


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
    """Name the delay lines of a result and their nodes."""
    assert result.problem is not None
    named = [f"{line.name} has {line.order} nodes" for line in result.problem.posed.model.lines if line.adaptive]
    return f"The delay line of {', that of '.join(named)}"


def _said(result: Result, sentence: str) -> Result:
    return result.ended(result.status, f"{result.message} {sentence}")


def together(before: Result, after: Result) -> Result:
    """Return the later result with the work of both."""
    a, b = before.provenance, after.provenance
    work = replace(
        b,
        iterations=a.iterations + b.iterations,
        evaluations={k: a.evaluations.get(k, 0) + b.evaluations.get(k, 0) for k in {**a.evaluations, **b.evaluations}},
        failures={k: a.failures.get(k, 0) + b.failures.get(k, 0) for k in {**a.failures, **b.failures}},
        time=a.time + b.time,
        history=a.history + b.history,
    )
    return replace(after, provenance=work)
