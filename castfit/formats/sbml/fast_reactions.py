"""Fast reactions: they are at equilibrium at all times, which is an algebraic equation for each.

With amounts a of the species that fast reactions change, of which N holds the stoichiometries and s is what all other
reactions do,

    a' = s + N v,    v -> infinity where the laws are not zero    =>    law(a) = 0

What the fast reactions cannot change stays a state.  Each independent one determines the amount of a species of its
own, of index d ("determined"); for the others, of index k ("kept"),

    T = a_k - C a_d,   C = N_k N_d^-1,   T' = s_k - C s_d,   a_k = T + C a_d

The laws may have several zeros.  The reactions reach the one to which  dn/ds = v(a + N n)  leads from the start, with
n the extents of the independent reactions; it is stable, so that it can be followed.

(Cao, Gillespie and Petzold 2005, J. Comput. Phys. 206, 395, have the same partition for stochastic models.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import casadi as ca
import numpy as np
from scipy.integrate import solve_ivp

from castfit._support.arrays import Array

_STOICHIOMETRY_ROUNDING = 1e-9  # smaller stoichiometric coefficients count as zero
_MAX_SETTLING_ROUNDS = 8  # number of integrations towards an equilibrium, each 10 times as long as the one before
_MAX_SETTLING_DISTANCE = 1e6  # extent of a reaction, relative to the amounts, beyond which it comes to no rest
_MIN_STABLE_RATE = 1e-9  # rate of the slowest approach to a stable equilibrium, relative to the largest derivative
_SETTLED_RTOL = 1e-6  # Newton correction, relative to the amounts, up to which an equilibrium is reached


@dataclass(frozen=True)
class FastPart:
    """The species that fast reactions change.

    reactions : with what each does to the species, in multiples of what the independent ones do, (n_reactions,
        n_determined): only the sums of laws by these multiples are zero
    determined : species given by the equilibrium, as many as reactions are independent
    state_species : the other species, whose totals are states
    share : C, (n_kept, n_determined), by their order
    stoichiometry : N_d, (n_determined, n_determined)
    """

    reactions: tuple[str, ...] = ()
    multiples: Array = field(default_factory=lambda: np.empty((0, 0)))
    determined: tuple[str, ...] = ()
    state_species: tuple[str, ...] = ()
    share: ca.SX | None = None
    stoichiometry: Array = field(default_factory=lambda: np.empty((0, 0)))

    def combined(self, name: str, of_determined: Sequence[ca.SX]) -> ca.SX:
        """Return the contribution of the determined species to a kept species, (C a_d)_k."""
        assert self.share is not None
        row = self.share[self.state_species.index(name), :]
        return sum((row[j] * value for j, value in enumerate(of_determined)), start=ca.SX(0))


def partition(stoichiometry: Mapping[str, Mapping[str, ca.SX]], numbers: Mapping[str, Mapping[str, float]]) -> FastPart:
    """Partition the species of reactions, given per reaction and species as expressions and as numbers.

    Raises ValueError: naming a reaction that does only what others do, by stoichiometries that are no numbers.
    """
    names = tuple(dict.fromkeys(s for changes in stoichiometry.values() for s in changes))
    reactions = tuple(r for r, changes in stoichiometry.items() if changes)
    if not reactions:
        return FastPart()
    matrix = np.array([[numbers[r].get(s, 0.0) for r in reactions] for s in names])
    pivots = _pivots(matrix)
    basis, pivot_rows = [*pivots], [*pivots.values()]
    for j, name in enumerate(reactions):
        if j not in pivots and not all(v.is_constant() for changes in stoichiometry.values() for v in changes.values()):
            raise ValueError(f"the fast reaction '{name}' does only what other fast reactions do")
    multiples = np.linalg.lstsq(matrix[:, basis], matrix, rcond=None)[0].T
    multiples[np.abs(multiples) < _STOICHIOMETRY_ROUNDING] = 0.0
    retained = tuple(s for i, s in enumerate(names) if i not in pivot_rows)
    determined = tuple(names[i] for i in pivot_rows)

    def rows(species: Sequence[str]) -> ca.SX:
        parts = [ca.horzcat(*(stoichiometry[reactions[j]].get(s, ca.SX(0)) for j in basis)) for s in species]
        return ca.vertcat(*parts) if parts else ca.SX(0, len(basis))

    share = ca.solve(rows(determined).T, rows(retained).T).T if retained else ca.SX(0, len(basis))
    own_stoichiometry = matrix[np.ix_([*pivot_rows], basis)]
    return FastPart(reactions, multiples, determined, retained, ca.densify(share), own_stoichiometry)


def settle(evaluate: Any, size: float) -> Array | None:
    """Return the extents (n,) at which independent reactions come to rest; None if they reach no stable equilibrium.

    evaluate : rates (n, 1) of these reactions, and their derivatives (n, n), as functions of the extents, from zero on
    size : magnitude of the amounts
    """
    extents, duration = np.zeros(evaluate.size1_in(0)), 0.0

    def move(_: float, n: Array) -> Array:
        rates = np.asarray(evaluate(n)[0], dtype=float)[:, 0]
        return rates if np.abs(n).max() <= _MAX_SETTLING_DISTANCE * size else np.full(n.size, np.nan)

    for _ in range(_MAX_SETTLING_ROUNDS):
        rates, slopes = (np.asarray(values, dtype=float) for values in evaluate(extents)[:2])
        speed = np.abs(rates).max() / size + np.abs(slopes).max()
        if not 0.0 < speed < np.inf:
            break
        if np.linalg.eigvals(slopes).real.max() < -_MIN_STABLE_RATE * np.abs(slopes).max():
            correction = np.linalg.solve(slopes, rates[:, 0])
            if np.abs(correction).max() <= _SETTLED_RTOL * size:
                return extents - correction
        duration = 10.0 * (duration or 1.0 / speed)
        try:
            solution: Any = solve_ivp(move, (0.0, duration), extents, "BDF", rtol=1e-8, atol=1e-11 * size)
        except ValueError:  # SciPy's matrices contain numbers that are not finite
            break
        extents = solution.y[:, -1]
    return None


def _pivots(matrix: Array) -> dict[int, int]:
    """Return a species of its own for each independent reaction, by Gauss's elimination, reactants first."""
    remainder, pivots = matrix.copy(), dict[int, int]()
    for j in range(matrix.shape[1]):
        column = np.abs(remainder[:, j])
        column[[*pivots.values()]] = 0.0
        i = int(np.argmax(column))
        if column[i] <= _STOICHIOMETRY_ROUNDING * max(float(np.abs(matrix).max()), 1.0):
            continue
        pivots[j] = i
        factors = remainder[i] / remainder[i, j]
        factors[j] = 0.0
        remainder -= np.outer(remainder[:, j], factors)
    return pivots
