"""Structural identifiability: what the measured outputs could tell, however often and however well they were measured.

The Taylor coefficients of the outputs, as functions of the quantities, determine the same quantities as dense
measurements without errors, near almost any values.  The entries of their Jacobian are rational functions of the
quantities, and of exponentials and the like.  So its rank at random points of a finite field is the true rank, but for
chance (Sedoglavic 2002).  Nothing is integrated or rounded, and neither data nor estimates matter.  All of this is
local: other values far away may give the same outputs.

Notation
--------
D  (d, n)   directions, in reduced echelon form, in which the quantities change without a change of the outputs
U  (n,)     the drawn quantities;   p prime

A vector h with  D h = 0  is the gradient of a sum that is determined.  A vector h with  (D / U) h = 0  is the gradient
of a product of powers that is determined, in logarithms.  Combinations are named if all entries of h are ratios of
small integers, the same at all draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import casadi as ca
import numpy as np
import scipy.sparse.csgraph

from castfit._support.arrays import Array, Index
from castfit._support.reprs import add_brief_repr, join_limited, join_with_and
from castfit.problem.compiled_problem import CompiledProblem
from castfit.result.identifiability import ConfoundedQuantities
from castfit.result.parameter_combinations import product, weighted_sum
from castfit.result.structure.experiments import DrawnProblem, ModelGraphs
from castfit.result.structure.finite_field import (
    PRIMES,
    RedrawError,
    Residues,
    inverse,
    null_space,
    reduce_rows,
    to_ratio,
)
from castfit.result.structure.power_series import Draws, NotCoveredError

_MAX_DRAWS = 100  # Draws for one prime at most; a zero denominator needs another draw.
_MAX_TERMS = 6  # Terms in the description of a combination.
_MAX_SENTENCES = 5  # Combinations in a sentence.
_MAX_WEIGHT = 6  # Largest integer weight or power in a combination that is named.


@add_brief_repr
@dataclass(frozen=True, eq=False, repr=False)
class StructuralRank:
    """Structural identifiability of a problem whose outputs are known densely and without errors.

    names : quantities that were examined: all but those that appear in the noise only
    rank : number of directions that are determined, near almost any values; -1 if that is not known
    combinations : what is not, and what remains of it, such as ``only k1*k2 enters``
    probability : that something is determined and was not recognised, approximately; 0 if everything is
    orders : how many derivatives of the outputs were used
    sentence : all that in words, with the assumptions
    """

    names: tuple[str, ...]
    rank: int
    combinations: tuple[ConfoundedQuantities, ...]
    probability: float
    orders: int
    sentence: str

    @property
    def identifiable(self) -> bool | None:
        """Whether everything is determined, locally and near almost any values; None if that is not known."""
        return None if self.rank < 0 else self.rank == len(self.names)

    def find_combination(self, name: str) -> ConfoundedQuantities | None:
        """Return the combination in which a quantity is hidden; None if it is determined."""
        return next((c for c in self.combinations if name in c.names), None)

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, eq=False)
class _Answer:
    """Directions D at drawn quantities U; `obstacle` names a part of the problem that is not covered, if any."""

    D: Residues
    U: Residues
    p: int
    orders: int
    obstacle: str

    @property
    def support(self) -> tuple[int, bytes]:
        """The number of directions, and which quantities change along any."""
        return len(self.D), self.D.any(axis=0).tobytes()


def structure(
    compiled_problem: CompiledProblem, rng: np.random.Generator, *, may_continue: Callable[[], bool] = lambda: True
) -> StructuralRank:
    """Find the rank at two random points of two finite fields, and at more if these differ.

    may_continue : asked before each order of derivatives; if it returns False, the rank is not known
    """
    graphs = ModelGraphs(compiled_problem, may_continue)
    examined = _examined_quantities(compiled_problem)
    names = tuple(compiled_problem.names[int(j)] for j in examined)
    answers: list[_Answer] = []
    try:
        for p in PRIMES:
            answers.append(_answer(graphs, p, rng, examined))
            fewest = min(len(a.D) for a in answers)
            best = [a for a in answers if len(a.D) == fewest]
            if fewest == 0 or (len(best) > 1 and len({a.support for a in best}) == 1):
                break
        else:
            raise NotCoveredError("the rank differs between random points")
        obstacle = next((a.obstacle for a in best if a.obstacle), "")
        if obstacle:
            undetermined = [names[int(j)] for j in np.flatnonzero(best[0].D.any(axis=0))]
            raise NotCoveredError(f"{obstacle}; without it, {join_limited(undetermined)} would not be determined")
    except NotCoveredError as error:
        sentence = f"Structural identifiability: not known, because exact arithmetic does not cover {error}."
        return StructuralRank(names, -1, (), np.nan, 0, sentence)
    orders, rank = max(a.orders for a in best), len(names) - fewest
    chance = len(names) * (2 * orders + 1) * max(graphs.depth, 1) / PRIMES[-1]
    probability = min(1.0, chance ** len(best)) if fewest else 0.0
    combinations = tuple(_combination(names, best, group) for group in _groups(best[0].D))
    details = [f"exact rank {rank} of {len(names)}", "locally, for almost all values", *graphs.assumptions]
    if not combinations:
        opening = (
            "Structurally identifiable: dense, error-free measurements of these outputs would determine every quantity"
        )
        return StructuralRank(names, rank, (), 0.0, orders, f"{opening} ({'; '.join(details)}).")
    details.append(f"{orders} derivatives; probability of error about {10.0 ** math.ceil(math.log10(probability)):.0e}")
    sentences = [c.sentence for c in combinations[:_MAX_SENTENCES]]
    n_more = len(combinations) - len(sentences)
    text = "; ".join([*sentences, *([f"and {n_more} more combinations"] if n_more else [])])
    opening = f"Structurally not identifiable from these outputs, regardless of the amount of data: {text}"
    return StructuralRank(names, rank, combinations, probability, orders, f"{opening} ({'; '.join(details)}).")


def _examined_quantities(compiled_problem: CompiledProblem) -> Index:
    """Return the quantities that appear elsewhere than in the noise of the data or in the noise of the process."""
    model = compiled_problem.model
    system, noise_names = model.system, compiled_problem.noise_parameters
    if model.noises:
        column = ca.vertcat(system.ode, system.alg, *(model.outputs[n] for n in compiled_problem.outputs))
        noises = [s for s in ca.vertsplit(system.p) if s.name() in model.noises]
        quiet_column = ca.substitute([column], noises, [ca.SX(0)] * len(noises))[0]
        silent = {s.name() for s in ca.symvar(column)} - {s.name() for s in ca.symvar(ca.simplify(quiet_column))}
        noise_names = noise_names | silent
    return np.array(
        [j for j, q in enumerate(compiled_problem.quantities) if q.symbol_name not in noise_names], dtype=np.intp
    )


def _answer(graphs: ModelGraphs, p: int, rng: np.random.Generator, examined: Index) -> _Answer:
    """Compute the directions at one random point."""
    for _ in range(_MAX_DRAWS):
        try:
            drawn_problem = DrawnProblem(graphs, Draws(p, rng), examined)
            obstacle = drawn_problem.run()
        except RedrawError:
            continue
        D, _ = reduce_rows(drawn_problem.basis[examined].T, p)
        return _Answer(D, drawn_problem.unknowns[examined], p, drawn_problem.orders, obstacle)
    raise NotCoveredError("a denominator, logarithm or root that is zero at the start")


def _groups(D: Residues) -> list[Index]:
    """Return the quantities that directions link, as groups."""
    links = (D != 0).astype(int)
    _, labels = scipy.sparse.csgraph.connected_components(links.T @ links, directed=False)
    is_free = D.any(axis=0)
    return [np.flatnonzero((labels == label) & is_free) for label in dict.fromkeys(labels[is_free].tolist())]


def _combination(names: Sequence[str], answers: Sequence[_Answer], group: Index) -> ConfoundedQuantities:
    """Name what remains determined of a group of quantities."""
    members = tuple(names[int(j)] for j in group)
    direction_sets = [a.D[a.D[:, group].any(axis=1)][:, group] for a in answers]
    relative_sets = [D * inverse(a.U[group], a.p) % a.p for D, a in zip(direction_sets, answers, strict=True)]
    n_determined = group.size - len(direction_sets[0])
    if not n_determined:
        return ConfoundedQuantities(
            members, tuple({n: 1.0} for n in members), f"the data do not depend on {join_with_and(members)}"
        )
    primes = [a.p for a in answers]
    products, sums = (_integer_rows(sets, primes) for sets in (relative_sets, direction_sets))
    texts = [[product(members, row) for row in products], [weighted_sum(members, row) for row in sums]]
    complete = [join_with_and(_few(t)) for t in texts if len(t) == n_determined]
    if complete:
        sentence = f"only {' or '.join(dict.fromkeys(complete))} enter{'s' if n_determined == 1 else ''}"
    else:
        sentence = f"{join_with_and(_few(members))} are identifiable only in combination"
        parts = list(dict.fromkeys([*texts[0], *texts[1]]))
        sentence += f" ({join_with_and(_few(parts))} {'is' if len(parts) == 1 else 'are'} determined)" if parts else ""
    return ConfoundedQuantities(members, (), sentence)


def _few(terms: Sequence[str]) -> Sequence[str]:
    return terms if len(terms) <= _MAX_TERMS else (*terms[: _MAX_TERMS - 1], f"{len(terms) - _MAX_TERMS + 1} others")


def _integer_rows(direction_sets: Sequence[Residues], primes: Sequence[int]) -> list[Array]:
    """Return integer vectors that are orthogonal to the directions at all draws."""
    bases = [reduce_rows(null_space(D, p).T, p)[0] for D, p in zip(direction_sets, primes, strict=True)]
    rows: list[Array] = []
    for candidates in zip(*bases, strict=True):
        ratios = [[to_ratio(v, p) for v in row.tolist()] for row, p in zip(candidates, primes, strict=True)]
        if any(r != ratios[0] or None in r for r in ratios):
            continue
        fractions = [Fraction(r or 0) for r in ratios[0]]
        scale = reduce(math.lcm, (f.denominator for f in fractions))
        weights = np.array([int(f * scale) for f in fractions], dtype=float)
        if np.abs(weights).max() <= _MAX_WEIGHT and np.count_nonzero(weights) > 1:
            rows.append(weights)
    return rows
