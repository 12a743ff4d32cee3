"""Allocation of a portfolio search: planning of rounds, most of them by the ways that were most productive.

A way is rewarded for finding the best optimum again (a limited number of times), for a better optimum, and for a new
cost among the best quarter of all candidates.  If an optimum is found once in a hundred candidates, the last reward
indicates early which ways come near it.  Rewards are compared per work, in simulations instead of seconds, so that the
plan is the same on every machine:

    share of a way  ~  ((1 + 2 improvements + finds + those in the best quarter) / (1 + its work / the mean work))^2

Shares refer to work, not to candidates: a way that takes a hundredth of the time is tried a hundred times as often at
equal reward.  Every way keeps a minimal share, because a way that fails at first may find the optimum in the end.
Random starts in the box and moved points keep larger ones: they are the most likely to find a new optimum, or to lead
from the floor of a long valley to a lower one.  In longer searches growing horizons keep a larger share, too: in 47
searches of two PEtab models (docs/how_to/petab.md) they founded low families two to three times as often per second as
starts in the box, on two other models a third to a quarter as often; relaxed equations hardly any.

A candidate below every earlier cost at the accuracy of a search is integrated at full accuracy at once.  If its cost
increases, it keeps the accurate cost, and its valley is followed at full accuracy.

If every state is measured, the default fit from the guess comes first, because its states start at the data.
Otherwise the ways that begin with a simulation come first, since they are much cheaper; the default fit waits for its
share, as incremental single shooting always does.

A valley whose cost keeps decreasing is below every solution, but may take hundreds of iterations and end nowhere.  The
lowest one is followed a few rounds at a time, with a share of the work, which is larger if the search would end
otherwise: in one search, a valley that decreased by a tenth per stride had taken all of 8 s, and another valley held
the optimum.  A valley far below all confirmed costs is checked by a few iterations at full accuracy, so that a search
that is stopped returns a recent best point.

A candidate from an independent start founds a family.  The end of a local fit from the moved head replaces the head of
its own family if its cost is lower, and no other head, so families do not displace each other.  A move is one of three,
with equal probability: up to three coordinates are drawn again; all are shifted by 10^U(-2, 0.3) units of the search
times a normal deviate; or each coordinate in turn is drawn again if the cost hardly changes.  In Elowitz' model, 11 of
20 parameters have no slope at the end of a local fit, and yet lead to lower floors: from there the third move finds
them within a second, the first within five, the second not at all.  From other floors the first move lowers heads three
times as often as the second (docs/compared/measured.md).

Mostly one of the three best families that are not spent is moved.  A head that some thirty moves did not lower makes
room for the next one, and a new family need not be among the best to become the best.  If a low cost is found again at
another point, that point is moved although a head of the same cost is spent.  If all heads are spent, the work goes to
new families.  Crossing two heads, and Storn and Price's (1997) differences of two others, found nothing sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.drive.search.portfolio.limits import SearchRegion
from castfit.drive.search.portfolio.strategies import (
    EXCHANGED,
    FOLLOW,
    FULL_ACCURACY_WAYS,
    MOVED,
    NEAR_COST_TOL,
    NO_COST_LIMITS,
    SAME_COST_TOL,
    CandidateOrder,
    CandidateOutcome,
)
from castfit.fit.start.local_search import FULL_ACCURACY_COST_FACTOR, MAX_FINAL_ITERATIONS, work_in_simulations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Index, Mask

N_MOVED_FAMILIES = 3  # number of the best families whose heads are moved
_MAX_POOL_SIZE = 15  # number of families in the pool, in addition to the spent ones
_ANY_HEAD_PROBABILITY = 0.2  # probability that the moved head is drawn from the whole pool
_MAX_VAIN_MOVES = 30  # moves without improvement after which a head is spent
# Quantile of the costs of independent candidates: below it, a second point of a spent head's cost is moved.
_GOOD_QUANTILE = 0.1
_MAX_RESAMPLED_COORDINATES = 3  # largest number of coordinates that one move draws again
_NEAR_DISTANCE = 1e-3  # root mean square distance of two heads that count as the same point, in widths of the limits
_EQUAL_COST_TOL = 0.1  # cost difference of two heads that count as the same, in units of the log-likelihood
_MIN_WORK_SHARE = 0.1  # share of the work that is divided evenly between the ways
_STEADY_WORK_SHARES = (
    (0, {"box": 0.3, MOVED: 0.3}),
    (40, {"box": 0.2, "growing": 0.3, MOVED: 0.3}),
    (150, {"box": 0.15, "growing": 0.4, MOVED: 0.3}),
)
"""Guaranteed shares of the work by way, from a number of candidates on."""

# Number of finds of the best optimum that are rewarded; more do not indicate where a better one is.
_MAX_REWARDED_FINDS = 3
_PRIOR_WORK_FACTOR = 100.0  # assumed work of a fit at full accuracy before the first one, in mean works of a candidate
_MAX_LOW_ACCURACY_STRIDES = 2  # number of times that a valley is followed at the low accuracy of the search
# Refutations of a cost at full accuracy after which other candidates of that cost count as refuted.
_MIN_REFUTATIONS = 2
_CHECKING_WORK_SHARE = 0.15  # share of the work for confirmations and checks; following valleys is not counted
_FOLLOWING_WORK_SHARE = 0.2  # share of the work for following a valley that is lower than every solution
_LAST_FOLLOWING_WORK_SHARE = 0.5  # the same share if the search would end otherwise
_MIN_CANDIDATES_BEFORE_MOVES = 6  # number of candidates before points are moved
_MIN_CANDIDATES_FOR_QUARTILE = 6  # number of candidates before the best quarter is rewarded
# Number of recent candidates whose median cost at a look limits the next one, and the smallest such number.
_N_RECENT_LOOKS, _MIN_RECENT_LOOKS = 20, 6

_CHEAP_WAYS = ("box", "growing")  # ways that begin with a simulation


@dataclass(frozen=True)
class PortfolioOptions:
    """Parts of a search, each of which can be left out or replaced.

    ways : ways to make candidates
    screen : number of draws of which the best one is the start
    families : number of the best families whose heads are moved
    race : whether a candidate is dropped if its cost at a look is above the median of earlier ones
    step_control : step control of local fits
    doubt : whether two quantities of the best point are exchanged before the search ends
    per_round : number of candidates per round
    """

    ways: tuple[str, ...]
    screen: int = 8
    families: int = N_MOVED_FAMILIES
    race: bool = True
    step_control: str = "box"
    doubt: bool = True
    per_round: int = 4


@dataclass(frozen=True)
class FamilyHead:
    """Head of a family: its best point.

    family : index of the candidate that founded the family
    vain : number of moves since the cost clearly decreased
    """

    theta: Array
    cost: float
    family: int = 0
    vain: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether the maximal number of moves in vain is reached."""
        return self.vain >= _MAX_VAIN_MOVES


@dataclass(frozen=True)
class CandidateRecord:
    """Finished candidate: its way, its outcome, and its family (-1 for a family of its own)."""

    index: int
    way: str
    end: CandidateOutcome
    family: int = -1

    @property
    def success(self) -> bool:
        """Whether the candidate ended in a solution at full accuracy."""
        return self.end.result is not None and self.end.result.success

    @property
    def is_independent(self) -> bool:
        """Whether the candidate came from an independent starting point."""
        return self.way not in (MOVED, EXCHANGED)

    @property
    def cost(self) -> float:
        """Cost of the solution at full accuracy; infinite if the candidate is not a solution."""
        return self.end.result.cost if self.success and self.end.result is not None else np.inf


_COLUMNS = np.dtype(
    [("way", "U16"), *((name, float) for name in ("cost", "solution", "work", "checking", "following", "held"))]
    + [("looks", float, 2), ("followed", int), ("size", int)]
    + [(name, bool) for name in ("settled", "floor", "dropped", "fitted", "success", "independent")]
)
"""Columns of candidates: `solution` is the cost at full accuracy, `held` that of the last check of a valley, and `size`
the length of theta, 0 if there is none."""


def _build_columns(records: Sequence[CandidateRecord]) -> NDArray[Any]:
    return np.array(
        [
            (
                t.way, t.end.cost, t.cost, t.end.work, t.end.checking, t.end.following, t.end.checked_cost,
                t.end.at_looks, t.end.followed, len(t.end.theta), t.end.is_converged, t.end.floor, t.end.dropped,
                t.end.result is not None, t.success, t.is_independent,
            )
            for t in records
        ],
        dtype=_COLUMNS,
    )  # fmt: skip


@dataclass(frozen=True)
class PortfolioState:
    """State of the search after some rounds.

    records : candidates in the planned order
    pool : heads of families, the lowest cost first
    """

    records: tuple[CandidateRecord, ...] = ()
    pool: tuple[FamilyHead, ...] = ()

    @cached_property
    def table(self) -> NDArray[Any]:
        """The candidates as columns, (n,)."""
        return _build_columns(self.records)

    @property
    def best(self) -> float:
        """The lowest cost of a solution."""
        return float(self.table["solution"].min(initial=np.inf))

    @property
    def lowest(self) -> float:
        """Lowest cost that full accuracy confirmed, at the accuracy of the search."""
        best = self._lowest
        return float(self.table["cost"][best]) if best is not None else np.inf

    @cached_property
    def _lowest(self) -> int | None:
        """Index of the best confirmed candidate: a solution, or a clearly lower point on the floor of a valley."""
        T = self.table
        solution = _find_lowest(T["solution"], T["success"])
        cost_limit = np.inf if solution is None else T["cost"][solution] - SAME_COST_TOL
        floor = _find_lowest(T["cost"], T["fitted"] & T["settled"] & (T["cost"] < cost_limit))
        return solution if floor is None else floor

    @property
    def frontier(self) -> float:
        """Lowest cost so far that full accuracy has not refuted, whether it is an optimum or not."""
        return float(self.table["cost"][(self.table["size"] > 0) & ~self._is_refuted].min(initial=self.lowest))

    @cached_property
    def _is_refuted(self) -> Mask:
        """Mask of refuted candidates: at full accuracy their cost is higher.

        Candidates without a fit count as refuted if several candidates of the same cost were.
        """
        T = self.table
        failed = T["fitted"] & ~T["settled"]
        costs: Array = np.sort(T["cost"][failed])
        n_similar = costs.searchsorted(T["cost"] + SAME_COST_TOL, side="right") - costs.searchsorted(
            T["cost"] - SAME_COST_TOL
        )
        return np.asarray(failed | (~T["fitted"] & (n_similar >= _MIN_REFUTATIONS)), dtype=np.bool_)

    def find_unconfirmed(self, *, is_last: bool = False) -> int | None:
        """Return the index of the lowest converged candidate that is below every solution, or None.

        Confirmations have a limited share of the work, because later candidates soon beat most early ones.  The first
        confirmation is exempt, and the work of following valleys does not count.  Floors of valleys also have to wait
        for the share of valleys.  If `is_last`, neither share applies.
        """
        T = self.table
        is_converged = T["settled"] & (~T["floor"] | is_last | self._has_following_share) & ~self._is_refuted
        return self._find_promising(is_converged) if is_last or self._may_check else None

    @property
    def unpolished_index(self) -> int | None:
        """Index of the best confirmed candidate if its fit was cut short, else None."""
        best = self._lowest
        return None if best is None or self.records[best].success or self.records[best].end.polished else best

    @property
    def last_resort_index(self) -> int | None:
        """Index of the lowest candidate that looks better than every solution, optimum or not.

        Fitted when the time is over.
        """
        return self._find_promising(self.table["size"] > 0)

    def _find_promising(self, candidates: Mask) -> int | None:
        T = self.table
        return _find_lowest(T["cost"], candidates & ~T["fitted"] & (T["cost"] < self.lowest - SAME_COST_TOL))

    def find_valley(self, *, is_last: bool = False) -> int | None:
        """Return the index of the lowest open candidate, if it is below all converged ones.

        Return None if there is none, or if no share of the work is left.  The share is larger if `is_last`.
        """
        T, lowest = self.table, self._lowest_open
        has_share = is_last and T["following"].sum() <= _LAST_FOLLOWING_WORK_SHARE * T["work"].sum()
        return lowest if lowest is not None and (has_share or self._has_following_share[lowest]) else None

    @property
    def unchecked_index(self) -> int | None:
        """Index of the lowest open candidate if it is due for a check, else None.

        It is due if its cost is far below all checked ones and a share of the work is left.
        """
        T, lowest = self.table, self._lowest_open
        cost_limit = min(self.lowest, float(T["held"].min(initial=np.inf))) - NEAR_COST_TOL
        return lowest if lowest is not None and T["cost"][lowest] < cost_limit and self._may_check else None

    @cached_property
    def _lowest_open(self) -> int | None:
        T = self.table
        cost_limit = (
            min(float(T["cost"][T["settled"] & ~self._is_refuted].min(initial=np.inf)), self.lowest) - SAME_COST_TOL
        )
        is_open = (
            (T["size"] > 0) & ~(T["settled"] | T["dropped"] | T["fitted"] | self._is_refuted) & (T["cost"] < cost_limit)
        )
        return _find_lowest(T["cost"], is_open)

    @property
    def _may_check(self) -> bool:
        T = self.table
        return bool(T["checking"].sum() - T["following"].sum() <= _CHECKING_WORK_SHARE * T["work"].sum())

    @property
    def has_unfinished(self) -> bool:
        """Whether a candidate below every solution waits to be confirmed or followed."""
        return self.find_unconfirmed(is_last=True) is not None or self._lowest_open is not None

    @property
    def is_closable(self) -> bool:
        """Whether a waiting candidate can be confirmed or followed now, within the shares of the work."""
        return self.find_unconfirmed(is_last=True) is not None or self.find_valley(is_last=True) is not None

    @cached_property
    def _has_following_share(self) -> Mask:
        """Whether the share of valleys suffices for each candidate, (n,); the work of its first strides is ignored."""
        T = self.table
        strides = np.array(
            [
                FULL_ACCURACY_COST_FACTOR * work_in_simulations({"jacobians": MAX_FINAL_ITERATIONS}, n)
                for n in range(T["size"].max(initial=0) + 1)
            ]
        )
        expected_work = np.where(T["followed"] < _MAX_LOW_ACCURACY_STRIDES, 0.0, strides[T["size"]])
        return np.asarray(
            T["following"].sum() + expected_work <= _FOLLOWING_WORK_SHARE * T["work"].sum(), dtype=np.bool_
        )

    def find_best_hits(self, *, independent: bool = True) -> Index:
        """Return the indices of the candidates that ended in the best optimum.

        If `independent`, moved points do not count.  Candidates without a fit at full accuracy are compared by their
        cost at the accuracy of the search.
        """
        T, best, lowest = self.table, self.best, self.lowest
        if not np.isfinite(lowest):
            return np.empty(0, dtype=np.intp)
        is_best = T["settled"] & (np.abs(T["cost"] - lowest) <= SAME_COST_TOL)
        if self._lowest is not None and T["success"][self._lowest]:
            is_best |= T["solution"] <= best + SAME_COST_TOL
        return np.flatnonzero(is_best & (T["independent"] | (not independent)))

    def find_best_records(self, *, independent: bool = True) -> list[CandidateRecord]:
        """Return the candidates that ended in the best optimum, as determined by `find_best_hits`."""
        return [self.records[i] for i in self.find_best_hits(independent=independent).tolist()]

    def with_records(self, records: Sequence[CandidateRecord], region: SearchRegion) -> PortfolioState:
        """Return the state with more candidates."""
        pool = self.pool
        independent_costs = self.table["cost"][self.table["independent"]]
        threshold = (
            float(np.quantile(independent_costs, _GOOD_QUANTILE, method="lower")) + SAME_COST_TOL
            if independent_costs.size
            else -np.inf
        )
        for t in records:
            if t.end.theta and not t.end.dropped:
                family = t.index if t.family < 0 else t.family
                n_vain = next((m.vain for m in pool if m.family == family and t.end.cost >= m.cost - SAME_COST_TOL), 0)
                theta = np.array(t.end.theta, dtype=float)
                pool = add_to_pool(pool, FamilyHead(theta, t.end.cost, family, n_vain), region, threshold)
            if t.way == MOVED:
                pool = tuple(replace(m, vain=m.vain + 1) if m.family == t.family else m for m in pool)
        return self._with((*self.records, *records), np.concatenate([self.table, _build_columns(records)]), pool)

    def with_followed(self, index: int, end: CandidateOutcome) -> PortfolioState:
        """Return the state with a candidate whose valley was followed further."""
        previous = self.records[index].end
        if not end.cost < previous.cost and end.rough == previous.rough:  # costs of one accuracy are compared
            end = replace(end, theta=previous.theta, cost=previous.cost)
            if previous.followed >= _MAX_LOW_ACCURACY_STRIDES and not end.is_converged:
                # The same stride again would end at the same point; only a fit can continue from there.
                end = replace(end, is_converged=True, floor=True)
        updated = replace(
            previous, theta=end.theta, cost=end.cost, is_converged=end.is_converged, floor=end.floor,
            followed=previous.followed + 1, following=previous.following + end.work,
            checking=previous.checking + end.work, work=previous.work + end.work,
            seconds=previous.seconds + end.seconds, rough=end.rough,
        )  # fmt: skip
        return self._with_outcome(index, updated)

    def with_checked(self, index: int, end: CandidateOutcome) -> PortfolioState:
        """Return the state with a candidate in a valley that was fitted at full accuracy for a few iterations."""
        if end.result is None or end.result.success or not end.is_converged:
            return self.with_confirmed(index, end)
        previous = self.records[index].end
        lower = replace(previous, theta=end.theta, cost=end.cost) if end.cost < previous.cost else previous
        updated = replace(
            lower, checked_cost=end.cost, checking=previous.checking + end.work, work=previous.work + end.work,
            seconds=previous.seconds + end.seconds,
        )  # fmt: skip
        return self._with_outcome(index, updated)

    def with_confirmed(self, index: int, end: CandidateOutcome) -> PortfolioState:
        """Return the state with a candidate fitted at full accuracy; if the fit failed, it is not an optimum."""
        previous = self.records[index]
        updated = replace(
            end, start_theta=previous.end.start_theta, at_looks=previous.end.at_looks, followed=previous.end.followed,
            floor=previous.end.floor, following=previous.end.following + (end.work if previous.end.floor else 0.0),
            checking=previous.end.checking + end.work,
            work=previous.end.work + end.work, seconds=previous.end.seconds + end.seconds, rough=previous.end.rough,
        )  # fmt: skip
        if not end.is_converged:
            updated = replace(updated, theta=previous.end.theta, cost=previous.end.cost)
            if previous.end.result is not None:  # An earlier confirmation remains valid.
                updated = replace(updated, result=previous.end.result, is_converged=previous.end.is_converged)
        return self._with_outcome(index, updated)

    def _with_outcome(self, index: int, end: CandidateOutcome) -> PortfolioState:
        record, table = replace(self.records[index], end=end), self.table.copy()
        table[index : index + 1] = _build_columns([record])
        return self._with((*self.records[:index], record, *self.records[index + 1 :]), table, self.pool)

    @staticmethod
    def _with(
        records: tuple[CandidateRecord, ...], table: NDArray[Any], pool: tuple[FamilyHead, ...]
    ) -> PortfolioState:
        state = PortfolioState(records, pool)
        vars(state).update(table=table)
        return state


def _find_lowest(costs: Array, candidates: Mask) -> int | None:
    """Return the index of the lowest cost among candidates, the first of equal ones; None if there are none."""
    return int(np.argmin(np.where(candidates, costs, np.inf))) if candidates.any() else None


def plan_round(
    state: PortfolioState, options: PortfolioOptions, region: SearchRegion, rng: np.random.Generator
) -> list[CandidateOrder]:
    """Return the orders of the next round."""
    ways = _find_untried_ways(state, options) or _choose_ways(state, options, rng)
    has_guess, n_boxes = bool((state.table["way"] == "fit").any()), int((state.table["way"] == "box").sum())
    limits = (_compute_cost_limit(state, 0), _compute_cost_limit(state, 1)) if options.race else NO_COST_LIMITS
    base = CandidateOrder(
        "", screen=options.screen, limits=limits, best=state.frontier, step_control=options.step_control
    )
    orders: list[CandidateOrder] = []
    for way in ways:
        seed = int(rng.integers(2**63, size=1)[0])
        order = replace(base, way=way, seed=seed, guess=way == "fit" and not has_guess)
        if way == "box":
            if n_boxes % 2:  # the best of several has its own basins
                order = replace(order, screen=1)
            order = replace(order, guess=n_boxes == 0 and "soft" in options.ways)
        if way == MOVED:
            head = select_head(state.pool, rng, options.families)
            theta, plateau = perturb_head(head.theta, region, rng)
            order = replace(order, theta=tuple(theta.tolist()), plateau=plateau, family=head.family)
        orders.append(order)
    return orders


def _compute_cost_limit(state: PortfolioState, look: int) -> float:
    """Return the median cost of recent candidates at a look, above which the next one is dropped.

    Inf if there are too few.
    """
    costs = state.table["looks"][:, look]
    finite_costs = costs[np.isfinite(costs)][-_N_RECENT_LOOKS:]
    return float(np.median(finite_costs)) if finite_costs.size >= _MIN_RECENT_LOOKS else np.inf


def build_valley_order(state: PortfolioState, options: PortfolioOptions, index: int) -> CandidateOrder:
    """Return the order to follow a candidate's valley further."""
    end, step_control = state.records[index].end, options.step_control
    accurate = end.followed >= _MAX_LOW_ACCURACY_STRIDES
    return CandidateOrder(
        FOLLOW, theta=end.theta, best=state.lowest, accurate=accurate, step_control=step_control, finer=end.rough
    )


def build_exchange_order(state: PortfolioState, options: PortfolioOptions, rng: np.random.Generator) -> CandidateOrder:
    """Return the order to exchange two quantities of the best solution."""
    best = state.records[int(np.argmin(state.table["solution"]))]
    seed = int(rng.integers(2**63, size=1)[0])
    return CandidateOrder(EXCHANGED, seed, theta=best.end.theta, best=state.lowest, step_control=options.step_control)


def _find_untried_ways(state: PortfolioState, options: PortfolioOptions) -> list[str]:
    """Return the ways that were not tried yet.  If states are unobserved, the cheap ways come first, twice each."""
    times = {way: int((state.table["way"] == way).sum()) for way in options.ways if way != MOVED}
    if "soft" in options.ways and (cheap := [way for way in _CHEAP_WAYS if times.get(way, 2) < 2]):
        return cheap
    waiting = FULL_ACCURACY_WAYS if "soft" in options.ways else ("incremental",)
    new_ways = [way for way, count in times.items() if count == 0 and way not in waiting]
    return new_ways or ([] if state.records else ["box"])


def _choose_ways(state: PortfolioState, options: PortfolioOptions, rng: np.random.Generator) -> list[str]:
    n_fresh = int(((state.table["size"] > 0) & ~state.table["dropped"]).sum())
    ways = [w for w in options.ways if w != MOVED or (n_fresh >= _MIN_CANDIDATES_BEFORE_MOVES and state.pool)]
    if not ways:
        ways = ["box"]
    pay = compute_way_probabilities(state, ways)
    return [str(w) for w in rng.choice(ways, size=options.per_round, p=pay)]


def compute_way_probabilities(state: PortfolioState, ways: Sequence[str]) -> Array:
    """Compute the probability of each way for the next candidate, (n_ways,): its share of work over the work of one."""
    T = state.table
    costs, search_work = T["cost"], T["work"] - T["checking"]
    mean = float(np.mean(search_work)) or 1.0
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], costs]))[:-1]
    is_improved = costs < best_before - SAME_COST_TOL
    is_hit = np.zeros(costs.size, dtype=np.bool_)
    is_hit[state.find_best_hits(independent=False)[:_MAX_REWARDED_FINDS]] = True
    threshold = (
        float(np.quantile(costs, 0.25, method="lower")) if costs.size >= _MIN_CANDIDATES_FOR_QUARTILE else -np.inf
    )
    good_indices = np.flatnonzero(np.isin(T["way"], ways) & np.isfinite(costs) & (costs <= threshold + SAME_COST_TOL))
    is_first = np.zeros(costs.size, dtype=np.bool_)
    is_first[good_indices[np.unique(np.rint(costs[good_indices] / SAME_COST_TOL), return_index=True)[1]]] = True
    mask_by_way = {w: T["way"] == w for w in ways}
    successes = {
        w: 1.0 + sum(float((is_way & mask).sum()) for mask in (is_improved, is_improved, is_hit, is_first))
        for w, is_way in mask_by_way.items()
    }
    work = {w: float(search_work[is_way].sum()) for w, is_way in mask_by_way.items()}
    score = np.array([(successes[w] / (1.0 + work[w] / mean)) ** 2 for w in ways])
    steady_fractions = [fractions for min_count, fractions in _STEADY_WORK_SHARES if costs.size >= min_count][-1]
    idle_mask = np.array([w == MOVED and all(m.is_spent for m in state.pool) for w in ways])
    score[idle_mask & ~idle_mask.all()] = 0.0
    steady_shares = np.array(
        [0.0 if is_idle else steady_fractions.get(w, 0.0) for w, is_idle in zip(ways, idle_mask, strict=True)]
    )
    share = (
        (1.0 - _MIN_WORK_SHARE - steady_shares.sum()) * score / score.sum()
        + _MIN_WORK_SHARE / len(ways)
        + steady_shares
    )
    counts = {w: int(is_way.sum()) for w, is_way in mask_by_way.items()}
    mean_works = np.array(
        [
            work[w] / counts[w] if work[w] else mean * (_PRIOR_WORK_FACTOR if w in FULL_ACCURACY_WAYS else 1.0)
            for w in ways
        ]
    )
    frequencies = share / mean_works
    return np.asarray(frequencies / frequencies.sum(), dtype=float)


def add_to_pool(
    pool: Sequence[FamilyHead], new_head: FamilyHead, region: SearchRegion, threshold: float = -np.inf
) -> tuple[FamilyHead, ...]:
    """Add a head to a pool, which is sorted by cost; of similar heads only the better one stays.

    The new head inherits the largest number of vain moves of the heads of other families that it replaces.  If its
    cost is below `threshold`, a spent head of the same cost elsewhere does not exclude it: moves from another point of
    a plateau may end elsewhere.
    """
    if not np.isfinite(new_head.cost):
        return tuple(pool)
    width = np.where(region.upper > region.lower, region.upper - region.lower, 1.0)
    theta = np.array([m.theta for m in pool]).reshape(len(pool), new_head.theta.size)
    is_near = np.sqrt(np.mean(((theta - new_head.theta) / width) ** 2, axis=1)) < _NEAR_DISTANCE
    clash = [
        bool(close)
        or m.family == new_head.family
        or (abs(m.cost - new_head.cost) < _EQUAL_COST_TOL and not (m.is_spent and new_head.cost <= threshold))
        for m, close in zip(pool, is_near, strict=True)
    ]
    position = sum(m.cost <= new_head.cost for m in pool)
    if any(clash[:position]):
        return tuple(pool)
    remaining = [m for m, is_clash in zip(pool[position:], clash[position:], strict=True) if not is_clash]
    vain_counts = [
        m.vain
        for m, is_clash in zip(pool[position:], clash[position:], strict=True)
        if is_clash and m.family != new_head.family
    ]
    new_head = replace(new_head, vain=max([new_head.vain, *vain_counts]))
    heads, n_free = list[FamilyHead](), _MAX_POOL_SIZE
    for m in (*pool[:position], new_head, *remaining):
        if m.is_spent or n_free > 0:
            heads.append(m)
            n_free -= not m.is_spent
    return tuple(heads)


def select_head(pool: Sequence[FamilyHead], rng: np.random.Generator, families: int = N_MOVED_FAMILIES) -> FamilyHead:
    """Choose the head that is moved, mostly among the best families that are not spent; the pool is sorted."""
    if rng.random() < _ANY_HEAD_PROBABILITY:
        return pool[int(rng.integers(len(pool)))]
    best = ([m for m in pool if not m.is_spent] or pool)[:families]
    return best[int(rng.integers(len(best)))]


def perturb_head(head: Array, region: SearchRegion, rng: np.random.Generator) -> tuple[Array, bool]:
    """Return a moved copy of a head, and whether simulations are to move it further over its plateau."""
    kind, theta = int(rng.integers(3)), head.copy()
    if kind == 0:
        coordinates = rng.choice(
            head.size, size=min(int(rng.integers(1, _MAX_RESAMPLED_COORDINATES + 1)), head.size), replace=False
        )
        theta[coordinates] = region.for_candidate(rng).draw(rng)[coordinates]
    elif kind == 1:
        theta += 10 ** rng.uniform(-2.0, 0.3) * region.unit * rng.standard_normal(head.size)
    return region.clip(theta), kind == 2
