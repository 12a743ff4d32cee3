"""Fast reactions: they are at equilibrium at all times, which is an algebraic equation for each.

With amounts a of the species that fast reactions change, of which N holds the stoichiometries and s is what all other
reactions do,

    a' = s + N v,    v -> infinity where the laws are not zero    =>    law(a) = 0

What the fast reactions cannot change stays a state.  Each independent one determines the amount of a species of its
own, of index d ("determined"); for the others, of index k ("kept"),

    T = a_k - C a_d,   C = N_k N_d^-1,   T' = s_k - C s_d,   a_k = T + C a_d

(Cao, Gillespie and Petzold 2005, J. Comput. Phys. 206, 395, have the same partition for stochastic models.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import casadi as ca
import numpy as np

from castfit._support.arrays import Array


@dataclass(frozen=True)
class FastPart:
    """The species that fast reactions change.

    determined : by the equilibrium, as many as there are `reactions`;  kept : the others, whose totals are states
    share : C, (n_kept, n_determined), by their order
    """

    reactions: tuple[str, ...] = ()
    determined: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    share: ca.SX | None = None

    def combined(self, name: str, of_determined: Sequence[ca.SX]) -> ca.SX:
        """Return what a kept species has of those that are determined,  (C a_d)_k."""
        assert self.share is not None
        row = self.share[self.kept.index(name), :]
        return sum((row[j] * value for j, value in enumerate(of_determined)), start=ca.SX(0))


def partition(stoichiometry: Mapping[str, Mapping[str, ca.SX]], numbers: Mapping[str, Mapping[str, float]]) -> FastPart:
    """Partition the species of reactions, given per reaction and species as expressions and as numbers.

    Raises ValueError: naming a reaction that does only what others do.
    """
    names = tuple(dict.fromkeys(s for of in stoichiometry.values() for s in of))
    reactions = tuple(r for r, of in stoichiometry.items() if of)
    if not reactions:
        return FastPart()
    matrix = np.array([[numbers[r].get(s, 0.0) for r in reactions] for s in names])
    chosen = _pivots(matrix, reactions)
    kept = tuple(s for i, s in enumerate(names) if i not in chosen)
    determined = tuple(names[i] for i in chosen)

    def rows(of: Sequence[str]) -> ca.SX:
        parts = [ca.horzcat(*(stoichiometry[r].get(s, ca.SX(0)) for r in reactions)) for s in of]
        return ca.vertcat(*parts) if parts else ca.SX(0, len(reactions))

    share = ca.solve(rows(determined).T, rows(kept).T).T if kept else ca.SX(0, len(reactions))
    return FastPart(reactions, determined, kept, ca.densify(share))


def _pivots(matrix: Array, reactions: Sequence[str]) -> list[int]:
    """Return a species of its own for each reaction, by Gauss's elimination with reactants, which come first."""
    rest, chosen = matrix.copy(), list[int]()
    for j, name in enumerate(reactions):
        column = np.abs(rest[:, j])
        column[chosen] = 0.0
        i = int(np.argmax(column))
        if column[i] <= 1e-9 * max(float(np.abs(matrix).max()), 1.0):
            raise ValueError(f"the fast reaction '{name}' does only what other fast reactions do")
        chosen.append(i)
        factors = rest[i] / rest[i, j]
        factors[j] = 0.0
        rest -= np.outer(rest[:, j], factors)
    return chosen
