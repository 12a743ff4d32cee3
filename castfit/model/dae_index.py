"""Whether algebraic equations determine the algebraic states: index 1, by structure and by numbers.

The pattern of dg/dz, equations against states, is divided after Dulmage and Mendelsohn (1958).  A largest matching
pairs equations with states that they contain; from an equation that is left over, alternating paths

    equation -> a state in it -> the equation paired with that state -> ...

reach the over-determined part, which has more equations than states.  From a state that is left over they reach, the
other way round, the under-determined part, which has more states than equations.  A system with a complete matching
may still be singular, as  a + b = x, 2 a + 2 b = y;  then dg/dz has less than full rank at every point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import casadi as ca
import numpy as np
import scipy

from castfit._support.arrays import Array, Mask
from castfit._support.records import dataclass
from castfit._support.reprs import join_with_and
from castfit.model.expressions import pattern

_POINTS, _ENOUGH = 12, 3  # points at which dg/dz is evaluated, and how many must have a value
_SEED = 20260101  # the seed is fixed, so that a model is always judged in the same way
_RANK_RTOL = 1e-12  # smaller singular values, relative to the largest, count as zero
_MIN_COMPONENT = 1e-6  # smaller components of a null vector are not named in the message
_INDEX = "so the DAE has index 2 or higher"


@dataclass(frozen=True)
class PatternPartition:
    """The parts of a pattern that are not square: positions of equations and states."""

    over_equations: tuple[int, ...]
    over_states: tuple[int, ...]
    under_equations: tuple[int, ...]
    under_states: tuple[int, ...]


def unmatched_parts(contains: Mask) -> PatternPartition:
    """Divide a pattern (n_equations, n_states), which equation contains which state."""
    pairs: Any = scipy.sparse.csgraph.maximum_bipartite_matching(scipy.sparse.csr_matrix(contains), perm_type="column")
    state_of: list[int] = [int(j) for j in pairs]  # of each equation; -1 if it is left over
    equation_of = {j: i for i, j in enumerate(state_of) if j >= 0}
    unmatched_equations = [i for i, j in enumerate(state_of) if j < 0]
    unmatched_states = [j for j in range(contains.shape[1]) if j not in equation_of]
    return PatternPartition(
        *_find_reachable(unmatched_equations, contains, equation_of),
        *reversed(_find_reachable(unmatched_states, contains.T, {i: j for i, j in enumerate(state_of) if j >= 0})),
    )


def _find_reachable(
    start_rows: Sequence[int], contains: Mask, partner: Mapping[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Follow alternating paths from some rows; return the rows and columns that they reach."""
    rows, columns, queue = set(start_rows), set[int](), list(start_rows)
    while queue:
        for j in np.flatnonzero(contains[queue.pop()]).tolist():
            columns.add(j)
            i = partner.get(j)
            if i is not None and i not in rows:
                rows.add(i)
                queue.append(i)
    return tuple(sorted(rows)), tuple(sorted(columns))


def index_mistakes(alg: ca.SX, z: ca.SX, arguments: Sequence[ca.SX], names: Sequence[str]) -> list[str]:
    """Name the equations and states because of which 0 = alg (n_z, 1) does not determine z (n_z, 1).

    Equation i is called by the name of state i; `arguments` are everything that alg may contain beside z.
    """
    jacobian = ca.jacobian(alg, z)
    contains = pattern(jacobian.sparsity())
    parts = unmatched_parts(contains)
    if parts.over_equations:
        return _of_structure(parts, contains, names)
    return _of_rank(jacobian, z, arguments, names)


def _of_structure(parts: PatternPartition, contains: Mask, names: Sequence[str]) -> list[str]:
    mistakes: list[str] = []
    empty_equations = [i for i in parts.over_equations if not contains[i].any()]
    if empty_equations:
        verb = "contain" if len(empty_equations) > 1 else "contains"
        mistakes.append(
            f"{_equations(empty_equations, names)} {verb} no algebraic state, {_INDEX}; "
            "differentiate such an equation until an algebraic state appears"
        )
    excess_equations = [i for i in parts.over_equations if i not in empty_equations]
    if excess_equations:
        mistakes.append(
            f"{_equations(excess_equations, names)} contain only {_states(parts.over_states, names)}, "
            f"{len(excess_equations)} equations for {len(parts.over_states)}, {_INDEX}; "
            "differentiate or remove one of them"
        )
    if parts.under_equations:
        description = f"{_states(parts.under_states, names)} appear in {_equations(parts.under_equations, names)} only"
        mistakes.append(f"{description}, too few to determine them; add an equation that contains one of them")
    absent_states = [j for j in parts.under_states if not contains[:, j].any()]
    if absent_states and not empty_equations:
        verb = "appears" if len(absent_states) == 1 else "appear"
        mistakes.append(f"{_states(absent_states, names)} {verb} in no algebraic equation; add one that contains it")
    return mistakes


def _of_rank(jacobian: ca.SX, z: ca.SX, arguments: Sequence[ca.SX], names: Sequence[str]) -> list[str]:
    """Find the equations of which a combination contains no algebraic state, at all points tried."""
    rng = np.random.default_rng(_SEED)
    symbols = [s for s in (z, *arguments) if s.numel()]
    function: Any = ca.Function("slopes", symbols, [ca.densify(jacobian)])
    slopes: list[Array] = []
    for _ in range(_POINTS):
        sample = np.asarray(function(*(np.exp(rng.standard_normal(s.numel())) for s in symbols)), dtype=float)
        if np.isfinite(sample).all():
            slopes.append(_balanced(sample))
    if len(slopes) < _ENOUGH:
        return []
    is_dependent_equation, is_undetermined_state = (
        np.zeros(len(names), dtype=np.bool_),
        np.zeros(len(names), dtype=np.bool_),
    )
    for matrix in slopes:
        u, singular, v = np.linalg.svd(matrix)
        is_null = singular <= _RANK_RTOL * singular[0]
        if not is_null.any():  # one point with full rank shows that it is not singular
            return []
        is_dependent_equation |= (np.abs(u[:, is_null]) > _MIN_COMPONENT).any(axis=1)
        is_undetermined_state |= (np.abs(v[is_null]) > _MIN_COMPONENT).any(axis=0)
    equations, states = np.flatnonzero(is_dependent_equation).tolist(), np.flatnonzero(is_undetermined_state).tolist()
    return [
        f"{_equations(equations, names)} are not independent: dg/dz is singular whatever the values, and leaves "
        f"{_states(states, names)} undetermined, {_INDEX}; replace one of them, or differentiate the combination from "
        "which the states drop out"
    ]


def _balanced(matrix: Array) -> Array:
    """Divide rows and columns by their largest entries, so that units do not matter."""
    balanced = matrix.copy()
    for _ in range(3):
        for axis in (1, 0):
            largest = np.abs(balanced).max(axis=axis, keepdims=True)
            balanced = balanced / np.where(largest > 0.0, largest, 1.0)
    return balanced


def _equations(indices: Sequence[int], names: Sequence[str]) -> str:
    return f"the equation{'s' if len(indices) > 1 else ''} of {join_with_and([names[i] for i in indices])}"


def _states(indices: Sequence[int], names: Sequence[str]) -> str:
    return join_with_and([names[j] for j in indices])
