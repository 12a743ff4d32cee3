"""What shooting integrates: pieces between boundaries, their output grids and inputs, and in which order.

In multiple shooting every stage is one piece, begun at its own node.  In single shooting the whole experiment is one
stage; where something happens it is cut into pieces, of which each begins where the one before it ended.  Round r
integrates the r-th piece of every stage of every experiment, so that lanes remain many.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from castfit.integrate import shift_cubics
from castfit.integrate.grids import merge, snap
from castfit.integrate.integrators import integrator_of, relative_grid
from castfit.integrate.march import input_cubics
from castfit.transcribe.grid import Staging, arrange
from castfit.transcribe.measured import Measured, measured_by

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.integrate import Integrator, IntegratorOptions
    from castfit.integrate.integrators import Integrable
    from castfit.problem.compiled_problem import Posed
    from castfit.transcribe.division import Division

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Piece:
    """One stretch of integration.

    Attributes
    ----------
    stage : int
        The stage of which it is a part.
    grid : (m,) array
        Relative output times.
    cubics : (m, n_u, 4) array
        Inputs, about the beginnings of the intervals where the division was made.
    points : (n,) int array
        Which points of the stage lie on it.
    at : (n,) int array
        Where they lie on the grid.
    """

    stage: int
    grid: Array
    cubics: Array
    points: Index
    at: Index

    def inputs_at_end(self, cubics: Array, duration: float) -> tuple[Array, Array]:
        """Return the inputs at the end, and their slopes, (n_u,), from cubics (m, n_u, 4) where the piece is now."""
        before = float(self.grid[-2]) if self.grid.size > 1 else 0.0
        last = duration * (1.0 - before)
        u = shift_cubics(cubics[-1], np.repeat(last, cubics.shape[1]))
        return u[:, 0], u[:, 1]


@dataclass(frozen=True, eq=False)
class Pieces:
    """One experiment's measurements and pieces.

    Attributes
    ----------
    staging : Staging
    measured : Measured
    division : Division
        Stage k of it is piece k.
    pieces : tuple of Piece
    inputs : (K, M, n_u) array
        At the points.
    """

    staging: Staging
    measured: Measured
    division: Division
    pieces: tuple[Piece, ...]
    inputs: Array

    @cached_property
    def of_point(self) -> Index:
        """The piece on which each point lies, (K, M)."""
        out = np.zeros(self.staging.tau.shape, dtype=np.intp)
        for j, piece in enumerate(self.pieces):
            out[piece.stage, piece.points] = j
        return out


def cut(problem: Posed, i: int, division: Division, *, nodes: bool, starts: bool = False) -> Pieces:
    """Arrange experiment i's data on a division; without nodes its stages become pieces of a single stage.

    With `starts` data are read where stages begin.
    """
    model, condition = problem.model, problem.conditions[i]
    fine = arrange(condition, division.edges, division.after, starts=starts)
    staging = fine if nodes else arrange(condition, division.edges[[0, -1]])
    breaks = snap(condition.breakpoints, division.edges)
    inputs = np.zeros((*staging.tau.shape, len(condition.inputs)))
    pieces: list[Piece] = []
    passed = 0
    arriving: Array | None = None  # the inputs at the end of what was integrated last
    for k, (left, right) in enumerate(itertools.pairwise(division.edges.tolist())):
        measured = fine.times[k][fine.real[k]]
        kinks = breaks[(breaks > left) & (breaks < right)]
        alone = right == left or division.moving[k] or division.moving[k + 1]  # nothing is measured inside
        times = np.array([left, right]) if alone else merge(measured, kinks, np.array([left, right]))
        begins = right > left and (starts or (measured.size > 0 and bool(measured[0] == left)))
        times = np.concatenate([times[:1], times[1 - int(begins) :]])  # an output at the start is an empty interval
        grid = (np.array([0.0, 1.0]) if begins else np.ones(1)) if alone else relative_grid(model, times)
        cubics = input_cubics(condition.inputs, times if right > left else _beside(left, division.edges))
        if starts and arriving is not None and not division.after[k] and (begins or right == left):
            cubics[0, :, 0], cubics[0, :, 1:] = arriving, 0.0  # a measurement at a jump of an input comes before it
        if right > left:
            arriving = np.einsum("uc,c->u", cubics[-1], (times[-1] - times[-2]) ** np.arange(4))
        at = np.minimum(np.searchsorted(times[1:], snap(fine.times[k], times[1:])), times.size - 2)
        if nodes:
            points, stage = np.arange(at.size, dtype=np.intp), k
        else:
            at = at[: measured.size]
            points, stage = passed + np.arange(at.size, dtype=np.intp), 0
            passed += at.size
        # A measurement at a jump belongs to the interval that ends there, like the algebraic states.
        powers = np.diff(times)[at, None] ** np.arange(4)
        inputs[stage, points] = np.einsum("muc,mc->mu", cubics[at], powers)
        pieces.append(Piece(stage, grid, cubics, points, at))
    return Pieces(staging, measured_by(problem, i, staging), division, tuple(pieces), inputs)


def _beside(time: float, edges: Array) -> Array:
    """Return an interval that begins at a time between boundaries, or at the end one of length zero."""
    later = edges[edges > time]
    return np.array([time, later[0] if later.size else time])


@dataclass(frozen=True, eq=False)
class Part:
    """The lanes of one condition among those of a group, so that arrays move at once; n lanes, N points in all.

    Attributes
    ----------
    condition : int
    lanes : slice
        They lie one after the other.
    pieces, stages : (n,) int arrays
    cubics : (n, m, n_u, 4) array
        Inputs, about the beginnings of the intervals where the division was made.
    stage, point : (N,) int arrays
        Where the points lie among those of the condition.
    lane, at : (N,) int arrays
        And where among the outputs of the group.
    crossed : tuple of int
        Lanes at whose end something happens.
    """

    condition: int
    lanes: slice
    pieces: Index
    stages: Index
    cubics: Array
    stage: Index
    point: Index
    lane: Index
    at: Index
    crossed: tuple[int, ...]


def parts_of(chains: Sequence[Pieces], members: Sequence[tuple[int, int]]) -> tuple[Part, ...]:
    """Sort the lanes of a group by condition; members (condition, piece) come condition by condition."""
    out: list[Part] = []
    first = 0
    for i, own in itertools.groupby(members, key=lambda member: member[0]):
        chain, numbers = chains[i], [j for _, j in own]
        pieces = [chain.pieces[j] for j in numbers]
        counts = [piece.points.size for piece in pieces]
        stages = np.array([piece.stage for piece in pieces], dtype=np.intp)
        lanes = np.arange(first, first + len(pieces), dtype=np.intp)
        crossed = tuple(first + n for n, j in enumerate(numbers) if chain.division.crossings[j] is not None)
        out.append(
            Part(
                i,
                slice(first, first + len(pieces)),
                np.array(numbers, dtype=np.intp),
                stages,
                np.array([piece.cubics for piece in pieces]),
                np.repeat(stages, counts),
                np.concatenate([piece.points for piece in pieces]),
                np.repeat(lanes, counts),
                np.concatenate([piece.at for piece in pieces]),
                crossed,
            )
        )
        first += len(pieces)
    return tuple(out)


@dataclass(frozen=True)
class Group:
    """Pieces that share a relative output grid and therefore an integrator."""

    integrator: Integrator
    members: tuple[tuple[int, int], ...]  # (condition, piece)
    parts: tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class Arranged:
    """All experiments in pieces, and in which order they are integrated: per round groups."""

    chains: tuple[Pieces, ...]
    rounds: tuple[tuple[Group, ...], ...]


def arranged(model: Integrable, chains: Sequence[Pieces], options: IntegratorOptions, *, nodes: bool) -> Arranged:
    """Sort pieces into rounds and groups, with the integrators of a model."""
    rounds: dict[int, dict[tuple[float, ...], list[tuple[int, int]]]] = {}
    for i, chain in enumerate(chains):
        for k, piece in enumerate(chain.pieces):
            groups = rounds.setdefault(0 if nodes else k, {})
            groups.setdefault(tuple(piece.grid.tolist()), []).append((i, k))
    return Arranged(
        tuple(chains),
        tuple(
            tuple(
                Group(integrator_of(model, grid, options), tuple(m), parts_of(chains, m)) for grid, m in groups.items()
            )
            for _, groups in sorted(rounds.items())
        ),
    )
