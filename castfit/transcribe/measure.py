"""From states at points to rows: what a measurement costs, and the local model of it, for every transcription.

1. `castfit.transcribe.measured` turns what is observed at the points of one experiment into rows; `Observer` observes
   states that were integrated.
2. Rows of known sigma are what is left of that.  An unknown sigma, common to a group of n rows, is eliminated:

       S = SSE / n of the group,    sigma^ = sqrt S between the floor and the ceiling
       rows r / sigma^,  Jacobian R / sigma^,  cost  1/2 |r|^2 / sigma^2 + n (log sigma^ - 1/2)

   which is 1/2 n log S between them, and beyond the parabola in r that touches there with the same value and slope:
   the cost of a sigma that is known.  The rows' products are the gradient exactly and Fisher's information, in which
   sigma and theta do not mix.  The floor is what rounding leaves, or a bound; a ceiling is always a bound.

Points are batched as (K, M): stage and point within the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import Built
from castfit.problem.constraint_compilation import applies_at
from castfit.problem.lie_derivatives import graph_of
from castfit.solve.staged import Failure, Jacobians, Layout, Relations, Values
from castfit.transcribe.measured import Measured
from castfit.transcribe.pointwise import Expressions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem.compiled_problem import Posed
    from castfit.transcribe.grid import Staging

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]

RESOLUTION = 1e-10
"""No sigma is taken for smaller than this fraction of the data: what integration and rounding leave of exact data."""


@dataclass(frozen=True)
class Observed:
    """Values at points.

    g (K, M, n_g) what is observed;  r (K, M * n_r) rows;  excess: what they cost beyond half their squares;
    c (K, M * n_h) path constraints
    """

    g: Array
    r: Array
    excess: float
    c: Array


@dataclass(frozen=True)
class Observation:
    """Derivatives at points: r_x (K, M, n_r, n_x), r_z, r_p (all parameters p), and the same of c."""

    r_x: Array
    r_z: Array
    r_p: Array
    c_x: Array
    c_z: Array
    c_p: Array


def constrained(problem: Posed, i: int, staging: Staging) -> NDArray[np.bool_]:
    """Tell where the problem's constraints apply in condition i, (K, M, number of constraints).

    That is at the times that it names, at every point if it holds along the path, or wherever something was measured;
    not once more for a replicate, and a constraint of parameters alone only once.
    """
    return applies_at(problem, i, staging.times, staging.first, staging.distinct, problem.varying)


def relations_of(problem: Posed) -> Relations:
    """Return the bounds of a problem's relations of quantities."""
    given = problem.relations
    return Relations(
        tuple(r.name for r in given),
        np.array([r.lower for r in given]),
        np.array([r.upper for r in given]),
        np.ones(len(given)),
    )


def unrelated(layout: Layout, related: Array) -> list[Failure]:
    """Report relations that cannot be computed."""
    bad = [name for name, value in zip(layout.relations.names, related, strict=True) if not np.isfinite(value)]
    return [Failure("constraint", 0, "not_finite", f"'{name}' cannot be computed") for name in bad]


@dataclass(frozen=True)
class _Rows:
    """What an observer evaluates: outputs and spreads, then constraints, then bounded states (as positions in x).

    names : those of constraints and bounded states
    """

    names: tuple[str, ...]
    bounded: tuple[int, ...]
    limits: Array  # (n_h, 2)
    expressions: Expressions


_ROWS: Built[Posed, dict[bool, _Rows]] = Built()
"""The rows of each problem, with and without bounds of states, built once however many fits use them."""


def _rows(problem: Posed, *, state_bounds: bool) -> _Rows:
    system = problem.model.system
    names = list(problem.state_bounds) if state_bounds else []
    bounded = [problem.model.states.index(n) for n in names]
    graphs = [graph_of(c, problem.model) for c in problem.path]
    graphs += [system.x[i] for i in bounded]
    limits = [(c.lower, c.upper) for c in problem.path] + [problem.state_bounds[n] for n in names]
    column = ca.densify(ca.vertcat(problem.observed, *graphs))
    return _Rows(
        (*(c.name for c in problem.path), *names),
        tuple(bounded),
        np.array(limits, dtype=float).reshape(-1, 2),
        Expressions(system, column, np.arange(system.p.numel())),
    )


class Observer:
    """The measured outputs and path constraints of a problem as batched functions.

    Parameters
    ----------
    problem : Posed
    state_bounds : bool
        Whether bounds of states are path constraints here (single shooting), because no node variable carries them.
    """

    def __init__(self, problem: Posed, *, state_bounds: bool) -> None:
        self._problem = problem
        built = _ROWS.get(problem, lambda _: {})
        if state_bounds not in built:
            built[state_bounds] = _rows(problem, state_bounds=state_bounds)
        self._rows = built[state_bounds]
        self._n_g = len(problem.outputs) + len(problem.spreads)

    @property
    def expressions(self) -> Expressions:
        """What is observed, then constraints, as functions of a point."""
        return self._rows.expressions

    @property
    def constraint_names(self) -> tuple[str, ...]:
        """What the path constraints at a point are."""
        return self._rows.names

    def constraint_bounds(self, i: int, staging: Staging) -> tuple[Array, Array]:
        """Return bounds of the path constraint rows of condition i, (K, M * n_h) each; infinite where none applies.

        Bounded states are unbounded at the start where their value is given: a constant is no constraint.
        """
        limits, positions = self._rows.limits, list(self._rows.bounded)
        rows = (staging.tau.shape[0], staging.tau.shape[1] * limits.shape[0])
        states = np.repeat(staging.first[:, :, None], len(positions), axis=2)
        states[0, staging.tau[0] == 0.0] &= ~self._problem.conditions[i].link.given[positions]
        bounded = np.concatenate([constrained(self._problem, i, staging), states], axis=2)
        lower = np.where(bounded, limits[:, 0], -np.inf).reshape(rows)
        upper = np.where(bounded, limits[:, 1], np.inf).reshape(rows)
        return lower, upper

    def values(self, measured: Measured, times: Array, x: Array, z: Array, p: Array, u: Array) -> Observed:
        """Evaluate rows and constraints at times (K, M), states x (K, M, n_x), z (K, M, n_z), inputs u (K, M, n_u)."""
        stages = times.shape[0]
        seen = self._rows.expressions.values(times[..., None], x, z, p, u).copy()
        g = seen[..., : self._n_g]
        r, excess = measured.rows(g)
        return Observed(g, r.reshape(stages, -1), excess, seen[..., self._n_g :].reshape(stages, -1))

    def slopes(self, times: Array, x: Array, z: Array, p: Array, u: Array) -> Array:
        """Evaluate derivatives of what is observed with respect to (x, z, p), (K, M, n_g, n)."""
        return self._rows.expressions.jacobian(times[..., None], x, z, p, u)[:, :, : self._n_g].copy()

    def jacobians(self, measured: Measured, times: Array, x: Array, z: Array, p: Array, u: Array) -> Observation:
        """Evaluate derivatives of rows and constraints with respect to x, z, p; arguments as in `values`."""
        slopes = self._rows.expressions.jacobian(times[..., None], x, z, p, u)
        n_x, n_z = x.shape[2], z.shape[2]
        g = self._rows.expressions.values(times[..., None], x, z, p, u) if measured.slots else np.empty(0)
        rows = measured.slopes(g, slopes[:, :, : self._n_g])
        blocks = (slice(0, n_x), slice(n_x, n_x + n_z), slice(n_x + n_z, None))
        constraints = slopes[:, :, self._n_g :].copy()
        return Observation(*(rows[..., b] for b in blocks), *(constraints[..., b] for b in blocks))


@dataclass(frozen=True)
class Profiled:
    """Values with standardised rows; sigma (n_groups,); what the cost has beyond half the squares of the rows.

    excess : all of it;  surplus : the part that is not of the unknown sigmas
    """

    values: tuple[Values, ...]
    sigma: Array
    excess: float
    surplus: float


def resolution(layout: Layout, signal: Sequence[Array]) -> Array:
    """Return the least sigma of each group, (n_groups,), from the typical magnitudes (K, n_r) of its rows."""
    squares = np.zeros(layout.n_groups)
    for chain, of_chain in zip(layout.chains, signal, strict=True):
        measured = chain.group >= 0
        np.add.at(squares, chain.group[measured], of_chain[measured] ** 2)
    magnitude = np.sqrt(squares / np.maximum(layout.group_sizes, 1))
    return RESOLUTION * np.where(magnitude > 0.0, magnitude, 1.0)


def sigma_limits(problem: Posed, layout: Layout, signal: Sequence[Array]) -> tuple[Array, Array]:
    """Return the least and the largest sigma of each group, (n_groups,) each."""
    least = resolution(layout, signal)
    if not problem.group_bounds:
        return least, np.full(least.size, np.inf)
    lower, upper = np.array(problem.group_bounds, dtype=float).reshape(-1, 2).T
    return np.maximum(least, lower), np.maximum(upper, np.maximum(least, lower))


def profiled(layout: Layout, values: tuple[Values, ...], floor: Array, ceiling: Array) -> Profiled:
    """Divide weighted residuals by the most likely sigma of their group, between floor and ceiling (n_groups,)."""
    surplus = sum(of.excess for of in values)
    if layout.n_groups == 0:
        return Profiled(values, np.empty(0), surplus, surplus)
    group = np.concatenate([chain.group[chain.group >= 0] for chain in layout.chains])
    r = np.concatenate([of.r[chain.group >= 0] for of, chain in zip(values, layout.chains, strict=True)])
    with np.errstate(all="ignore"):  # wild trial points overflow
        largest = np.full(layout.n_groups, np.finfo(float).tiny)
        np.maximum.at(largest, group, np.abs(r))
        squares = np.bincount(group, (r / largest[group]) ** 2, minlength=layout.n_groups)
        sigma = np.clip(largest * np.sqrt(squares / np.maximum(layout.group_sizes, 1)), floor, ceiling)
        sigma = np.where(np.isfinite(sigma), sigma, 1.0)  # where a stage failed
        standard = tuple(
            replace(of, r=of.r * inverse) for of, inverse in zip(values, layout.of_rows(1.0 / sigma), strict=True)
        )
        excess = float(np.sum(layout.group_sizes * (np.log(sigma) - 0.5)))
    return Profiled(standard, sigma, excess + surplus, surplus)


def standardised(layout: Layout, jacobians: tuple[Jacobians, ...], sigma: Array) -> tuple[Jacobians, ...]:
    """Divide the derivatives of weighted residuals by the sigma (n_groups,) of their group."""
    if layout.n_groups == 0:
        return jacobians
    with np.errstate(all="ignore"):
        inverse = [np.atleast_2d(of)[..., None] for of in layout.of_rows(1.0 / sigma)]
        return tuple(
            replace(j, R_s=j.R_s * each, R_w=j.R_w * each, R_q=j.R_q * each)
            for j, each in zip(jacobians, inverse, strict=True)
        )
