"""Purchases of all candidates: rows, costs and budgets, in the form that the interior point method takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from castfit._support.arguments import read_mapping, read_real, shorten_repr
from castfit._support.arrays import Array, Index
from castfit._support.status import collect_mistakes, suggest
from castfit.drive.design.exact import CandidatePositions
from castfit.drive.design.interior_point import CandidatePool, max_affordable_counts
from castfit.drive.design.knowledge import DesignInformation, PredictedValues

_MAX_BUDGET = 1e15  # in the unit of the costs; counts of purchases beyond are no exact integers
_GRID_REFINEMENT = 10  # intervals per interval of the grid, if times may lie between grid times
_MAX_REFINED_TIMES = 2000  # times of a refined grid, roughly
_MAX_WINDOWS = 500  # spacing constraints per line in the relaxed design


@dataclass(frozen=True, eq=False)
class CandidateSelection:
    """All possible purchases, with their positions.

    candidate (N,), output (N,), time (N,) : indices of the candidate, its output and time; -1 for all of them
    cost (N,);  values : of each sample and candidate;  fixed_cost : cost of the fixed candidates
    price : of a unit of cost, in units of the criterion;  has_budget : whether there is a budget
    """

    pool: CandidatePool
    positions: CandidatePositions
    candidate: Index
    output: Index
    time: Index
    cost: Array
    values: tuple[tuple[PredictedValues, ...], ...]
    fixed_cost: float
    price: float = 0.0
    has_budget: bool = True

    @property
    def can_afford_any(self) -> bool:
        """Whether the budgets suffice for one of the purchases."""
        pool = self.pool
        return bool(np.all(pool.b[:, None] * (1 + 1e-9) >= pool.A, axis=0).any())

    def experiments(self, counts: Array, k: int) -> dict[str, list[tuple[float, int, int]]]:
        """Return the times of candidate k with their indices and counts, by output."""
        measurements: dict[str, list[tuple[float, int, int]]] = {}
        values = self.values[0][k]
        for i in np.flatnonzero((counts > 0) & (self.candidate == k)):
            outputs = range(len(values.outputs)) if self.output[i] < 0 else [self.output[i]]
            times = range(values.times.size) if self.time[i] < 0 else [self.time[i]]
            for o in outputs:
                rows = measurements.setdefault(values.outputs[o], [])
                rows += [(float(values.times[t]), int(t), round(float(counts[i]))) for t in times]
        return {o: sorted(rows) for o, rows in measurements.items()}


def build_selection(
    information: DesignInformation,
    budget: Any,
    price: float,
    distinct: int | None,
    mistakes: list[str],
    *,
    priced: bool = False,
) -> CandidateSelection | None:
    """Build the possible purchases. Return None after a mistake.

    priced : whether the price limits designs without a budget
    """
    limits = _read_budgets(information, budget, mistakes, priced=priced)
    if mistakes:
        return None
    samples = range(len(information.thetas))
    grids = [_refine_grid(c.times) if c.continuous_times else c.times for c in information.candidates]
    values = tuple(_predict_values(information, grids, s, mistakes) for s in samples)
    if mistakes:
        return None
    prior_information = np.array([information.compute_prior_information(s) for s in samples])
    entries: list[tuple[int, int, int, float, float, float]] = []  # candidate, output, time, cost, at most, spacing
    fixed_costs = np.zeros(len(limits))
    fixed_total = 0.0
    for k, candidate in enumerate(information.candidates):
        shape = (len(candidate.outputs), grids[k].size)
        units = {
            "output": [(o, t) for o in range(shape[0]) for t in range(shape[1])],
            "time": [(-1, t) for t in range(shape[1])],
            "experiment": [(-1, -1)],
        }[candidate.cost_unit]
        costs = [candidate.cost_of(candidate.outputs[o]) if o >= 0 else candidate.cost_of("") for o, _ in units]
        if candidate.fixed:
            fixed_costs += [
                sum(c for (o, _), c in zip(units, costs, strict=True) if _is_paid_from(key, information, k, o))
                for key in limits
            ]
            fixed_total += sum(costs)
            continue
        entries += [(k, o, t, c, candidate.at_most, candidate.spacing) for (o, t), c in zip(units, costs, strict=True)]
    if not entries:
        mistakes.append("all candidates are fixed, so nothing can be optimised; add a candidate that is not fixed")
        return None
    J, M0 = candidate_rows(information, values, prior_information)
    candidate, output, time = (np.array(column, dtype=np.intp) for column in list(zip(*entries, strict=True))[:3])
    cost, max_counts, spacing = (np.array(column, dtype=float) for column in list(zip(*entries, strict=True))[3:])
    b = np.array(list(limits.values())) - fixed_costs
    if (b <= 0).any():
        mistakes.append(f"the fixed candidates cost {fixed_total:g} and use up the budget; increase it")
        return None
    rows = np.array(
        [
            [c * _is_paid_from(key, information, k, o) for k, o, c in zip(candidate, output, cost, strict=True)]
            for key in limits
        ]
    )
    rows = rows.reshape(len(limits), cost.size)
    if distinct is not None and not limits:
        mistakes.append("distinct= distributes a budget over times; set budget=..., or remove it")
    if distinct is not None:
        max_counts = np.minimum(max_counts, np.maximum(np.floor(max_affordable_counts(rows, b) / distinct), 1.0))
    positions = _build_positions(information, grids, candidate, output, time, spacing)
    max_counts = np.where(spacing > 0, 1.0, max_counts)
    pool = CandidatePool(J, M0, *_add_spacing_budgets(rows, b, positions), max_counts, price * cost)
    return CandidateSelection(pool, positions, candidate, output, time, cost, values, fixed_total, price, bool(limits))


def _predict_values(
    information: DesignInformation, grids: list[Array], sample: int, mistakes: list[str]
) -> tuple[PredictedValues, ...]:
    """Predict the values of each candidate. Return an empty tuple if there are mistakes already."""
    values: list[PredictedValues] = []
    for k, times in enumerate(grids if not mistakes else ()):
        mistakes += collect_mistakes(lambda k=k, times=times: values.append(information.values(k, times, sample)))
    return tuple(values)


def candidate_rows(
    information: DesignInformation, values: Sequence[Sequence[PredictedValues]], prior_information: Array
) -> tuple[Array, Array]:
    """Return the rows J of a `CandidatePool`, and M0, which includes the information of fixed candidates."""
    fixed = [c.fixed for c in information.candidates]
    blocks = [
        [
            information.purchase_rows(predicted, c.cost_unit)
            for predicted, c in zip(sample, information.candidates, strict=True)
        ]
        for sample in values
    ]
    width = max(block.shape[1] for sample in blocks for block in sample)
    J = [
        np.concatenate([np.pad(block, ((0, 0), (0, width - block.shape[1]), (0, 0)))
                        for block, is_fixed in zip(sample, fixed, strict=True) if not is_fixed])
        for sample in blocks
    ]  # fmt: skip
    fixed_information = [
        sum(np.einsum("Nki,Nkj->ij", block, block) for block, is_fixed in zip(sample, fixed, strict=True) if is_fixed)
        for sample in blocks
    ]
    return np.array(J), np.array([M + added for M, added in zip(prior_information, fixed_information, strict=True)])


def _read_budgets(
    information: DesignInformation, budget: Any, mistakes: list[str], *, priced: bool
) -> dict[str, float]:
    """Read budgets by output or candidate; a single budget has the empty key."""
    if budget is None:
        if not priced and not all(np.isfinite(c.at_most) or c.spacing > 0 or c.fixed for c in information.candidates):
            remedy = "set budget=..., at_most= for every candidate, or price=... (criteria 'D', 'A' and cf.variance_of)"
            mistakes.append(f"without a budget the design is unbounded; {remedy}")
        return {}
    limits = read_mapping("budget", budget, mistakes) if isinstance(budget, Mapping) else {"": budget}
    outputs = {o for c in information.candidates for o in c.outputs}
    for key, value in limits.items():
        number = read_real(value)
        if number is None or not 0 < number <= _MAX_BUDGET:
            expected = f"expected a positive number up to {_MAX_BUDGET:g}, in the unit of the costs"
            mistakes.append(f"budget is {shorten_repr(value)}; {expected}")
        if key not in ("", "all", *outputs, *information.labels):
            mistakes.append(f"budget names '{key}': {suggest(key, (*outputs, *information.labels, 'all'))}")
    if mistakes:
        return {}
    free_pairs = [(k, o) for k, c in enumerate(information.candidates) if not c.fixed for o in range(len(c.outputs))]
    if not priced and not all(
        any(_is_paid_from(key, information, k, o) for key in limits) or np.isfinite(information.candidates[k].at_most)
        for k, o in free_pairs
    ):
        mistakes.append("some candidate has no budget and no limit; add 'all' to the budget, or set at_most=")
    return {key: float(value) for key, value in limits.items()}


def _is_paid_from(key: str, information: DesignInformation, k: int, output: int) -> bool:
    """Check whether a purchase is paid from a budget."""
    outputs = information.candidates[k].outputs if output < 0 else (information.candidates[k].outputs[output],)
    return key in ("", "all", information.labels[k], *outputs)


def _refine_grid(times: Array) -> Array:
    """Return a grid with additional times between its times."""
    if times.size < 2:
        return times
    finer = max(1, min(_GRID_REFINEMENT, _MAX_REFINED_TIMES // times.size))
    return np.interp(np.arange((times.size - 1) * finer + 1) / finer, np.arange(times.size), times)


def _build_positions(
    information: DesignInformation, grids: list[Array], candidate: Index, output: Index, time: Index, spacing: Array
) -> CandidatePositions:
    times = np.array([grids[k][t] if t >= 0 else 0.0 for k, t in zip(candidate, time, strict=True)])
    width = max(len(c.outputs) for c in information.candidates) + 1
    line = candidate * width + output + 1
    is_whole = time < 0  # whole experiments have no neighbours
    return CandidatePositions(
        np.where(is_whole, -1 - np.arange(line.size), line), candidate, times, np.where(is_whole, 0.0, spacing)
    )


def _add_spacing_budgets(A: Array, b: Array, positions: CandidatePositions) -> tuple[Array, Array]:
    """Add budgets that allow one measurement in each window shorter than the spacing."""
    rows: list[Array] = []
    for line in np.unique(positions.line[positions.spacing > 0]):
        indices = np.flatnonzero(positions.line == line)
        gap = positions.spacing[indices[0]] * (1 - 1e-9)
        windows = [
            ((positions.time >= t) & (positions.time < t + gap) & (positions.line == line)).astype(float)
            for t in positions.time[indices]
        ]
        rows += windows[:: max(1, len(windows) // _MAX_WINDOWS)]
    if not rows:
        return A, b
    return np.concatenate([A, np.array(rows)]), np.concatenate([b, np.ones(len(rows))])
