"""Purchases of all candidates: rows, costs and budgets, in the form that the interior point method takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import named, real, text
from castfit._support.status import suggest, told
from castfit.drive.design.exact import Positions
from castfit.drive.design.interior_point import Offers, afforded

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index
    from castfit.drive.design.knowledge import Knowledge, PredictedValues

_FINER = 10  # times between those of a grid, where times may lie between them
_MOST = 2000  # times of a candidate, then
_WINDOWS = 500  # of times that are too near to each other, which the relaxed design knows of


@dataclass(frozen=True, eq=False)
class Purchases:
    """All that can be bought, and where each stands.

    candidate (N,), output (N,), time (N,) : positions in the candidate's outputs and times; -1 for all of them
    cost (N,);  values : of each sample and candidate;  paid : what is fixed costs
    price : of a unit of cost, in units of the criterion;  limited : whether there is a budget
    """

    offers: Offers
    at: Positions
    candidate: Index
    output: Index
    time: Index
    cost: Array
    values: tuple[tuple[PredictedValues, ...], ...]
    paid: float
    price: float = 0.0
    limited: bool = True

    @property
    def affordable(self) -> bool:
        """Whether anything can be bought once."""
        offers = self.offers
        return bool(np.all(offers.b[:, None] * (1 + 1e-9) >= offers.A, axis=0).any())

    def experiments(self, counts: Array, k: int) -> dict[str, list[tuple[float, int, int]]]:
        """Return the times of candidate k with their indices and counts, by output."""
        found: dict[str, list[tuple[float, int, int]]] = {}
        values = self.values[0][k]
        for i in np.flatnonzero((counts > 0) & (self.candidate == k)):
            outputs = range(len(values.outputs)) if self.output[i] < 0 else [self.output[i]]
            times = range(values.times.size) if self.time[i] < 0 else [self.time[i]]
            for o in outputs:
                own = found.setdefault(values.outputs[o], [])
                own += [(float(values.times[t]), int(t), round(float(counts[i]))) for t in times]
        return {o: sorted(of) for o, of in found.items()}


def purchases(
    known: Knowledge, budget: Any, price: float, distinct: int | None, mistakes: list[str], *, priced: bool = False
) -> Purchases | None:
    """Work out what can be bought; None where something in `mistakes` prevents it.

    priced : whether the price ends what no budget does
    """
    limits = _limits(known, budget, mistakes, priced=priced)
    if mistakes:
        return None
    samples = range(len(known.thetas))
    grids = [_grid(c.times) if c.between else c.times for c in known.candidates]
    values = tuple(_values(known, grids, s, mistakes) for s in samples)
    if mistakes:
        return None
    known_before = np.array([known.known(s) for s in samples])
    where: list[tuple[int, int, int, float, float, float]] = []  # candidate, output, time, cost, at most, spacing
    paid = np.zeros(len(limits))
    total = 0.0
    for k, candidate in enumerate(known.candidates):
        shape = (len(candidate.outputs), grids[k].size)
        every = {
            "output": [(o, t) for o in range(shape[0]) for t in range(shape[1])],
            "time": [(-1, t) for t in range(shape[1])],
            "experiment": [(-1, -1)],
        }[candidate.together]
        costs = [candidate.cost_of(candidate.outputs[o]) if o >= 0 else candidate.cost_of("") for o, _ in every]
        if candidate.fixed:
            paid += [
                sum(c for (o, _), c in zip(every, costs, strict=True) if _counts(key, known, k, o)) for key in limits
            ]
            total += sum(costs)
            continue
        where += [(k, o, t, c, candidate.at_most, candidate.spacing) for (o, t), c in zip(every, costs, strict=True)]
    if not where:
        mistakes.append("all candidates are fixed, so nothing can be optimised; add a candidate that is not fixed")
        return None
    J, M0 = offered(known, values, known_before)
    candidate, output, time = (np.array(column, dtype=np.intp) for column in list(zip(*where, strict=True))[:3])
    cost, most, spacing = (np.array(column, dtype=float) for column in list(zip(*where, strict=True))[3:])
    b = np.array(list(limits.values())) - paid
    if (b <= 0).any():
        mistakes.append(f"the fixed candidates cost {total:g} and use up the budget; increase it")
        return None
    rows = np.array(
        [[c * _counts(key, known, k, o) for k, o, c in zip(candidate, output, cost, strict=True)] for key in limits]
    )
    rows = rows.reshape(len(limits), cost.size)
    if distinct is not None and not limits:
        mistakes.append("distinct= distributes a budget over times; set budget=..., or remove it")
    if distinct is not None:
        most = np.minimum(most, np.maximum(np.floor(afforded(rows, b) / distinct), 1.0))
    at = _positions(known, grids, candidate, output, time, spacing)
    most = np.where(spacing > 0, 1.0, most)
    offers = Offers(J, M0, *_with_windows(rows, b, at), most, price * cost)
    return Purchases(offers, at, candidate, output, time, cost, values, total, price, bool(limits))


def _values(known: Knowledge, grids: list[Array], sample: int, mistakes: list[str]) -> tuple[PredictedValues, ...]:
    """Predict the values of each candidate. Return an empty tuple if there are mistakes already."""
    found: list[PredictedValues] = []
    for k, times in enumerate(grids if not mistakes else ()):
        mistakes += told(lambda k=k, times=times: found.append(known.values(k, times, sample)))
    return tuple(found)


def offered(known: Knowledge, values: Sequence[Sequence[PredictedValues]], before: Array) -> tuple[Array, Array]:
    """Return information rows J of the purchases, and M0: the prior information with that of fixed candidates
    (`Offers`).
    """
    fixed = [c.fixed for c in known.candidates]
    blocks = [[known.blocks(one, c.together) for one, c in zip(of, known.candidates, strict=True)] for of in values]
    width = max(block.shape[1] for of in blocks for block in of)
    J = [
        np.concatenate([np.pad(block, ((0, 0), (0, width - block.shape[1]), (0, 0)))
                        for block, done in zip(of, fixed, strict=True) if not done])
        for of in blocks
    ]  # fmt: skip
    more = [sum(np.einsum("Nki,Nkj->ij", block, block) for block, done in zip(of, fixed, strict=True) if done)
            for of in blocks]  # fmt: skip
    return np.array(J), np.array([M + also for M, also in zip(before, more, strict=True)])


def _limits(known: Knowledge, budget: Any, mistakes: list[str], *, priced: bool) -> dict[str, float]:
    """Read budgets: one for everything, "" here, or for outputs and candidates by name."""
    if budget is None:
        if not priced and not all(np.isfinite(c.at_most) or c.spacing > 0 or c.fixed for c in known.candidates):
            ends = "set budget=..., at_most= for every candidate, or price=... (criteria 'D', 'A' and cf.variance_of)"
            mistakes.append(f"without a budget the design is unbounded; {ends}")
        return {}
    given = named("budget", budget, mistakes) if isinstance(budget, Mapping) else {"": budget}
    outputs = {o for c in known.candidates for o in c.outputs}
    for key, value in given.items():
        number = real(value)
        if number is None or not 0 < number < np.inf:
            mistakes.append(f"budget is {text(value)}; expected a positive number, in the unit of the costs")
        if key not in ("", "all", *outputs, *known.labels):
            mistakes.append(f"budget names '{key}': {suggest(key, (*outputs, *known.labels, 'all'))}")
    if mistakes:
        return {}
    free = [(k, o) for k, c in enumerate(known.candidates) if not c.fixed for o in range(len(c.outputs))]
    if not priced and not all(
        any(_counts(key, known, k, o) for key in given) or np.isfinite(known.candidates[k].at_most) for k, o in free
    ):
        mistakes.append(
            "some candidate has no budget and no limit; add 'all' to the budget, or set at_most="
        )
    return {key: float(value) for key, value in given.items()}


def _counts(key: str, known: Knowledge, k: int, output: int) -> bool:
    """Check whether a purchase is paid from a budget."""
    outputs = known.candidates[k].outputs if output < 0 else (known.candidates[k].outputs[output],)
    return key in ("", "all", known.labels[k], *outputs)


def _grid(times: Array) -> Array:
    """Return times with further ones between them."""
    if times.size < 2:
        return times
    finer = max(1, min(_FINER, _MOST // times.size))
    return np.interp(np.arange((times.size - 1) * finer + 1) / finer, np.arange(times.size), times)


def _positions(
    known: Knowledge, grids: list[Array], candidate: Index, output: Index, time: Index, spacing: Array
) -> Positions:
    when = np.array([grids[k][t] if t >= 0 else 0.0 for k, t in zip(candidate, time, strict=True)])
    width = max(len(c.outputs) for c in known.candidates) + 1
    line = candidate * width + output + 1
    lone = time < 0  # whole experiments are no neighbours
    return Positions(np.where(lone, -1 - np.arange(line.size), line), candidate, when, np.where(lone, 0.0, spacing))


def _with_windows(A: Array, b: Array, at: Positions) -> tuple[Array, Array]:
    """Add to the budgets that of times that are too near to each other one is used at most."""
    rows: list[Array] = []
    for line in np.unique(at.line[at.spacing > 0]):
        own = np.flatnonzero(at.line == line)
        gap = at.spacing[own[0]] * (1 - 1e-9)
        windows = [((at.time >= t) & (at.time < t + gap) & (at.line == line)).astype(float) for t in at.time[own]]
        rows += windows[:: max(1, len(windows) // _WINDOWS)]
    if not rows:
        return A, b
    return np.concatenate([A, np.array(rows)]), np.concatenate([b, np.ones(len(rows))])
