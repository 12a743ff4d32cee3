"""Exact designs: integer numbers of measurements, from weights, by rounding, filling and exchange.

Weights of a relaxed design at neighbouring times are merged and rounded efficiently (Pukelsheim and Rieder 1992).
Measurements are added while the budget lasts, and some measurements are exchanged for others (Fedorov 1972).  Only the
exchanges with the largest sensitivities are evaluated.  The bound of the relaxed design holds for exact designs, too.
Repeats are added and exchanged in blocks, one at a time at the end, so that the work hardly grows with the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from castfit._support.arrays import Array, Index, Mask
from castfit._support.ties import first_argmin, stable_order
from castfit.drive.design.interior_point import CandidatePool, DesignGoal, compute_tangent

_MAX_ENTERING = 30  # candidates with the largest sensitivities that are evaluated
_MAX_TRIAL_MATRICES = 2000  # number of matrices up to which all candidates are evaluated
_SMOOTHING_FRACTION = 0.05  # fraction of the criterion by which E is smoothed to rank candidates
_MIN_WEIGHT_FRACTION = 1e-4  # fraction of the largest weight below which a weight counts as zero
_MAX_SWEEPS = 200  # sweeps of exchanges
_COUNT_FRACTION, _ROOM_FRACTION = 1 / 64, 1 / 8  # repeats added at once, by those so far and by those that still fit
_SMALL_DESIGN_COUNT = 30  # measurements up to which pairs are exchanged if costs differ; size of random starts
_ROUNDING_SCALE = 1e-5  # scale of gains, relative to values, whose ties (1e-9) are rounding errors
_RIDGE_FRACTION = 1e-7  # fraction of the mean information of a candidate that is added to incomplete designs
_MIN_IMPROVEMENT = 1e-10  # decrease of a variance (relative) or of its logarithm that counts as an improvement


@dataclass(frozen=True, eq=False)
class CandidatePositions:
    """Positions of candidates: candidates of one `line` (N,) differ only in `time` (N,).

    Times of used candidates are at least `spacing` (N,) apart.

    group (N,) : lines of one sample, of which several outputs may be measured at the same time
    """

    line: Index
    group: Index
    time: Array
    spacing: Array

    def find_too_near(self, used_indices: Index) -> Mask:
        """Return a mask of the candidates closer in time to a used one than their spacing.

        Other outputs at its time are allowed.
        """
        mask = np.zeros(self.line.size, dtype=bool)
        for k in used_indices:
            is_near = (self.group == self.group[k]) & (np.abs(self.time - self.time[k]) < self.spacing * (1 - 1e-9))
            is_same_time = (self.time == self.time[k]) & (self.line != self.line[k])
            mask |= is_near & ~is_same_time
        return mask


def merge_adjacent_weights(w: Array, positions: CandidatePositions) -> Array:
    """Merge weights at most two grid steps apart at their mean time."""
    merged_weights = np.zeros_like(w)
    is_used = w > _MIN_WEIGHT_FRACTION * max(1e-300, float(w.max()))
    for line in np.unique(positions.line):
        indices = np.flatnonzero(positions.line == line)
        indices = indices[np.argsort(positions.time[indices], kind="stable")]
        ranks = np.flatnonzero(is_used[indices])
        for cluster_ranks in np.split(ranks, np.flatnonzero(np.diff(ranks) > 2) + 1) if ranks.size else []:
            cluster = indices[cluster_ranks]
            mean = float(np.average(positions.time[cluster], weights=w[cluster]))
            merged_weights[cluster[np.argmin(np.abs(positions.time[cluster] - mean))]] = w[cluster].sum()
    return merged_weights


def round_efficiently(w: Array, total: int) -> Array:
    """Return integers that add up to `total`, in the proportions of w, by efficient rounding.

    Pukelsheim and Rieder (1992), section 5: ceilings of  (total - l / 2) w_i,  l the size of the support, then one more
    where n_i / w_i is least, or one less where (n_i - 1) / w_i is largest, until they fit.
    """
    share, support = w / w.sum(), np.flatnonzero(w)
    counts = np.zeros_like(w)
    if total < support.size:
        counts[support[stable_order(share[support], descending=True)[:total]]] = 1.0
        return counts
    counts[support] = np.ceil((total - 0.5 * support.size) * share[support])
    while counts.sum() < total:
        counts[support[np.argmin(counts[support] / share[support])]] += 1.0
    while counts.sum() > total:
        counts[support[np.argmax((counts[support] - 1.0) / share[support])]] -= 1.0
    return counts


def optimize_counts(
    goal: DesignGoal,
    pool: CandidatePool,
    positions: CandidatePositions,
    w: Array,
    *,
    starts: int = 6,
    rng: np.random.Generator,
    stop: Callable[[], object] = bool,
) -> Array:
    """Return integer counts (N,) near weights w (N,) of the relaxed design, the best of several starts."""
    search = _Exchange(goal, pool, positions)
    weights = merge_adjacent_weights(w, positions)
    best = search.improve_design(search.fill_budget(search.round_weights(weights)), stop)
    if stop() or not np.isfinite(search.value(best)):  # the weights of a method that was stopped may be of no use
        best = min(best, search.fill_greedily(), key=search.value)
    for k in range(starts):
        if stop():
            break
        # From near the weights, and from anywhere: with few measurements the best may be far from them.
        random_weights = weights * rng.exponential(size=w.size)
        start = (
            search.fill_budget(search.round_weights(random_weights * weights.sum() / random_weights.sum()), stop)
            if k % 2
            else search.draw_design(rng, stop)
        )
        new_counts = search.improve_design(start, stop)
        if search.is_better(search.value(new_counts), search.value(best)):
            best = new_counts
    return best


@dataclass(frozen=True, eq=False)
class _Exchange:
    goal: DesignGoal
    pool: CandidatePool
    positions: CandidatePositions

    def is_better(self, value: float, reference: float) -> bool:
        """Check whether one value is below another by more than rounding.

        The margin is relative unless the criterion is logarithmic.
        """
        unit = 1.0 if self.goal.criterion.logarithmic or not np.isfinite(reference) else abs(reference)
        return value < reference - _MIN_IMPROVEMENT * unit

    def value(self, counts: Array) -> float:
        """Return the criterion, infinite for a singular design."""
        return float(self.goal.values(self.pool.information(counts)) + self.pool.price @ counts)

    def round_weights(self, w: Array) -> Array:
        """Return integers near w that satisfy the budgets."""
        pool, costs = self.pool, self.pool.A[:, w > 0]
        has_equal_costs = len(pool.b) == 1 and np.ptp(costs) <= 1e-12 * costs.max() and not pool.price.any()
        if has_equal_costs and w.sum() > 0 and not np.isfinite(pool.u).any():
            return round_efficiently(w, int(pool.b[0] / costs.max() + 1e-9))
        counts = np.zeros_like(w)
        for i in stable_order(w, descending=True)[: int(np.count_nonzero(w))]:
            trial = counts.copy()
            trial[i] = np.floor(w[i] + 1e-6)
            if trial[i] and self._can_add(counts)[i] and pool.fits(trial):
                counts = trial
        return counts

    def draw_design(self, rng: np.random.Generator, stop: Callable[[], object]) -> Array:
        """Draw a random design until the budget is used up or the random size is reached, then fill it."""
        counts = np.zeros(self.pool.count)
        for _ in range(_SMALL_DESIGN_COUNT):
            indices = np.flatnonzero(self._can_add(counts))
            if not indices.size:
                break
            counts[rng.choice(indices)] += 1.0
        return self.fill_budget(self._scale_up(counts), stop)

    def _can_add(self, counts: Array) -> Mask:
        """Return a mask of the candidates of which one more can be bought."""
        pool = self.pool
        remaining = pool.b - pool.A @ counts
        is_possible = np.all(remaining[:, None] * (1 + 1e-9) + 1e-12 >= pool.A, axis=0) & (counts + 1 <= pool.u + 1e-9)
        if self.positions.spacing.any():
            is_possible &= ~self.positions.find_too_near(np.flatnonzero(counts))
        return is_possible

    def fill_greedily(self) -> Array:
        """Return a design to which the best measurement is added again and again, in multiples if there are many."""
        return self.fill_budget(
            self._scale_up(self.fill_budget(np.zeros(self.pool.count), max_count=_SMALL_DESIGN_COUNT))
        )

    def _scale_up(self, counts: Array) -> Array:
        """Return a multiple of the counts if the budget is many times as large."""
        spent, is_used = self.pool.A @ counts, counts > 0.0
        if not is_used.any() or self.positions.spacing.any():
            return counts
        ratios = (np.append(self.pool.b, self.pool.u[is_used]) - np.append(spent, counts[is_used])) / np.maximum(
            np.append(spent, counts[is_used]), 1e-300
        )
        factor = np.floor(_ROOM_FRACTION * ratios.min())
        return counts * (factor if 1.0 < factor < np.inf else 1.0)

    def _count_room(self, counts: Array, i: int) -> float:
        """Return the number of further repeats of candidate i that can be bought."""
        pool = self.pool
        if self.positions.spacing[i] > 0.0:
            return 1.0
        remaining, cost = pool.b - pool.A @ counts, pool.A[:, i]
        numbers = (remaining[cost > 0.0] * (1 + 1e-9) + 1e-12) / cost[cost > 0.0]
        return float(np.floor(min(numbers.min(initial=np.inf), pool.u[i] - counts[i] + 1e-9)))

    def _rank_entering(self, counts: Array) -> tuple[Index, Array]:
        """Return the candidates that may enter with the largest sensitivities, and the criterion with each."""
        pool, ridge = self.pool, self._ridge
        indices = np.flatnonzero(self._can_add(counts))
        if not indices.size:
            return indices, np.empty(0)
        ridge_pool = CandidatePool(pool.J, pool.M0 + ridge, pool.A, pool.b, pool.u, pool.price)
        M = ridge_pool.information(counts)
        if indices.size * len(M) > _MAX_TRIAL_MATRICES:
            size = float(np.abs(self.goal.criterion.values(M)).mean())
            linearization = compute_tangent(self.goal, ridge_pool, counts, _SMOOTHING_FRACTION * size, curved=False)
            if linearization is not None:
                indices = indices[np.argsort(-linearization.h[indices], kind="stable")[:_MAX_ENTERING]]
        J = pool.J[:, indices]
        trial = M[None] + np.swapaxes(np.swapaxes(J, -1, -2) @ J, 0, 1)
        return indices, self.goal.values(trial) + pool.price[indices] + float(pool.price @ counts)

    @property
    def _ridge(self) -> Array:
        """Return a small diagonal information that makes incomplete designs comparable, (S, n, n)."""
        diagonals = np.einsum("sNki,sNki->si", self.pool.J, self.pool.J) / self.pool.count
        return _RIDGE_FRACTION * np.array([np.diag(d) for d in np.where(diagonals > 0.0, diagonals, 1.0)])

    def fill_budget(self, counts: Array, stop: Callable[[], object] = bool, *, max_count: float = np.inf) -> Array:
        """Add the best measurement repeatedly, as long as one fits and improves the criterion."""
        while counts.sum() < max_count and not stop():
            indices, values = self._rank_entering(counts)
            current_value = self._ridged_value(counts)
            if not indices.size or not self.is_better(float(values.min()), current_value):
                return counts
            i = _select_entering(indices, values)
            repeats = np.floor(min(_COUNT_FRACTION * counts.sum(), _ROOM_FRACTION * self._count_room(counts, i)))
            value = self._ridged_value(_with_more(counts, i, repeats)) if repeats > 1.0 else -np.inf
            while repeats > 1.0:  # prices may make fewer repeats better
                half = np.floor(0.5 * repeats)
                half_value = self._ridged_value(_with_more(counts, i, half))
                if value < half_value:
                    break
                repeats, value = half, half_value
            counts = _with_more(counts, i, max(repeats, 1.0))
        return counts

    def _ridged_value(self, counts: Array) -> float:
        """Return the criterion with a little more information, finite also for a singular design."""
        return float(self.goal.values(self.pool.information(counts) + self._ridge) + self.pool.price @ counts)

    def improve_design(self, counts: Array, stop: Callable[[], object]) -> Array:
        """Exchange measurements, ever smaller blocks of repeats, until no exchange improves the criterion."""
        value, block = self.value(counts), max(np.floor(_COUNT_FRACTION * counts.sum()), 1.0)
        A = self.pool.A
        has_unequal_costs = bool(A.size and np.ptp(A, axis=1).any())
        for _ in range(_MAX_SWEEPS):
            exchange = self._find_best_exchange(counts, value, [(j,) for j in np.flatnonzero(counts)], block, stop)
            if (
                exchange is None and has_unequal_costs and counts.sum() <= _SMALL_DESIGN_COUNT
            ):  # one expensive measurement for two cheap ones
                pairs = list(combinations(np.flatnonzero(counts), 2))
                exchange = self._find_best_exchange(counts, value, pairs, block, stop)
            if (exchange is None and block == 1.0) or stop():
                break
            block = block if exchange else max(np.floor(0.5 * block), 1.0)
            counts, value = exchange or (counts, value)
        return counts

    def _find_best_exchange(
        self, counts: Array, value: float, leaving: Sequence[tuple[Any, ...]], block: float, stop: Callable[[], object]
    ) -> tuple[Array, float] | None:
        """Return the best design after exchanging leaving measurements, with its value; None if none is better.

        Up to `block` repeats leave together.
        """
        best: tuple[Array, float] | None = None
        for group in leaving:
            if stop():
                break
            trial = counts.copy()
            trial[list(group)] -= np.minimum(trial[list(group)], block)
            indices, values = self._rank_entering(trial)
            trials = [trial] if self.pool.price.any() else []  # a measurement may leave without a successor
            if indices.size:
                i = _select_entering(indices, values)
                trials.append(_with_more(trial, i, min(self._count_room(trial, i), block)))
            for trial in (self.fill_budget(t, stop) for t in trials):
                trial_value, best_value = self.value(trial), value if best is None else best[1]
                if self.is_better(trial_value, best_value):
                    best = trial, trial_value
        return best


def _with_more(counts: Array, i: int, repeats: float) -> Array:
    """Return counts with more repeats of candidate i."""
    return counts + repeats * (np.arange(counts.size) == i)


def _select_entering(indices: Index, values: Array) -> int:
    """Return the index of the lowest value, and the first index if values differ by no more than rounding.

    Gains are compared, since the gain by one of a billion repeats is a small part of a value.
    """
    highest = float(np.max(values[np.isfinite(values)], initial=-np.inf))
    gains = values - highest if np.isfinite(highest) else values
    return int(indices[first_argmin(gains, _ROUNDING_SCALE * abs(highest) if np.isfinite(highest) else 0.0)])
