"""Derivatives of matching conditions, and of the cost in single shooting, by backward integration.

**Matching conditions.**  Where every measured time is a node, rows depend on nodes and parameters alone, and only the
ends of the stages have to be differentiated.  For a direction d of the states at the end of stage k (Aydogmus and Tor
2018, Eqs. 16 and 17, with the signs that agree with finite differences)

    lambda' = -lambda f_x,   lambda(t_{k+1}) = d,      d . dx/ds_k = lambda(t_k),      d . dx/dp = int lambda f_p dt

is one backward integration, whatever the number of parameters; or, by the ESDIRK method, one way back over the steps
that were taken (esdirk_adjoint.c), whose derivatives these are.  All n_x unit vectors give the whole Jacobian, one
direction per stage the gradient of a scalar such as h_k = |x_k - s_{k+1}|^2, for which d = 2 (x_k - s_{k+1}).

Jumps at the end of a stage come after the integration: d is carried back through them.

**The cost** of single shooting is one number: adjoint states start at zero behind the last datum, grow by  r . dr/dx
at every datum on the way back, and end as the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from castfit._support.arrays import Array, Index
from castfit.problem.parameter_map import NaturalValues
from castfit.solve.staged import Chain, Failure
from castfit.transcribe.segments import DirectionalDerivatives, IntegratedPoints, Integration, SensitivitySeeds


def by_adjoint(
    sweep: IntegratedPoints,
    chains: Sequence[Chain],
    naturals: Sequence[NaturalValues],
    seeds: Sequence[SensitivitySeeds],
    moving: Sequence[Index],
    directions: Sequence[Array] | None,
) -> DirectionalDerivatives:
    """Differentiate the ends of all stages, and the states at data, which are at nodes.

    All arguments are per condition: `moving` are the columns of q with a direction, after the n_x of the node;
    `directions` (K, n_x) are those of each stage's end, by default all unit vectors.
    """
    n_x, n_z = sweep.x[0].shape[2], sweep.z[0].shape[2]
    widths = [n_x + columns.size for columns in moving]
    rows = n_x if directions is None else 1
    dx = [np.zeros((*states.shape[:2], n_x, w)) for states, w in zip(sweep.x, widths, strict=True)]
    dz = [np.zeros((*states.shape[:2], n_z, w)) for states, w in zip(sweep.z, widths, strict=True)]
    end = [np.full((states.shape[0], rows, w), np.nan) for states, w in zip(sweep.x, widths, strict=True)]
    failures: list[Failure] = []
    broken: set[tuple[int, int]] = set()
    for run in sweep.runs:
        outputs = run.trajectories.x.shape[1]
        end_directions = [
            _through_jumps(sweep, run, lane, naturals[i], None if directions is None else directions[i][j])
            for lane, (i, j) in enumerate(run.members)
        ]
        end_seeds = np.zeros((len(run.members), rows, outputs, n_x))
        end_seeds[:, :, -1] = [d for d, _ in end_directions]
        adjoints = run.integrator.adjoint(run.lanes, run.trajectories, end_seeds)
        algebraic_slopes = _at_nodes(run, seeds, max(widths)) if n_z else None
        for lane, (i, j) in enumerate(run.members):
            w, seed, piece = widths[i], seeds[i], sweep.integration_plan.chains[i].pieces[j]
            end[i][j, :, :n_x] = adjoints.x0[lane]
            by_q = adjoints.p[lane] @ seed.of_piece(j)
            if seed.edges is not None:
                length = seed.edges[j + 1] - seed.edges[j]
                by_q = by_q + np.outer(adjoints.start[lane], seed.edges[j]) + np.outer(adjoints.duration[lane], length)
            end[i][j, :, n_x:] = by_q + end_directions[lane][1] @ naturals[i].de[:, moving[i]]
            at_node = run.integrator.grid[piece.grid_index] == 0.0
            at_node |= run.lanes.duration[lane] == 0.0  # nothing happens on the way
            dx[i][j, piece.points[at_node], :, :n_x] = np.eye(n_x)
            if algebraic_slopes is not None:
                dz[i][j, piece.points[at_node]] = algebraic_slopes[lane, piece.grid_index[at_node], :, :w]
        failed_stages = sweep.find_failed_stages(run, adjoints.failures, chains, "adjoint states")
        failures += [failure for failure in failed_stages.values() if failure is not None]
        broken |= failed_stages.keys()
    for i, j in broken:
        end[i][j] = np.nan
    return DirectionalDerivatives(dx, dz, end, tuple(failures))


def _through_jumps(
    sweep: IntegratedPoints, run: Integration, lane: int, natural: NaturalValues, direction: Array | None
) -> tuple[Array, Array]:
    """Return directions (n, n_x) before the jumps at a stage's end, and what the jumps add along e, (n, n_e)."""
    i, j = run.members[lane]
    pieces, n_x = sweep.integration_plan.chains[i], run.trajectories.x.shape[2]
    directions_after = np.eye(n_x) if direction is None else direction[None]
    crossing = pieces.division.crossings[j]
    if crossing is None:
        return directions_after, np.zeros((directions_after.shape[0], natural.e.size))
    u, du = pieces.pieces[j].inputs_at_end(run.lanes.u[lane], float(run.lanes.duration[lane]))
    _, by_x, by_e = crossing.slopes(run.trajectories.x[lane, -1], natural.e, u, du)
    return directions_after @ by_x, directions_after @ by_e


def _at_nodes(run: Integration, seeds: Sequence[SensitivitySeeds], width: int) -> Array:
    """Return the derivatives of algebraic states by directions of the node where they are read, (L, m, n_z, width)."""
    count, outputs, n_x = run.trajectories.x.shape
    dx = np.zeros((count, outputs, n_x, width))
    dx[..., :n_x] = np.eye(n_x)
    dp = np.zeros((count, run.lanes.p.shape[1], width))
    for lane, (i, j) in enumerate(run.members):
        parameter_seeds = seeds[i].of_piece(j)
        dp[lane, :, n_x : n_x + parameter_seeds.shape[1]] = parameter_seeds
    return run.integrator.algebraic_slopes(run.lanes, run.trajectories, dx, dp)


def gradient_by_adjoint(
    sweep: IntegratedPoints,
    chains: Sequence[Chain],
    naturals: Sequence[NaturalValues],
    seeds: Sequence[SensitivitySeeds],
    moving: Sequence[Index],
    point_derivatives: Sequence[tuple[Array, Array]],
) -> tuple[list[Array], tuple[Failure, ...]]:
    """Differentiate a sum over the points of whole experiments by q, but not what depends on q there directly.

    moving : per condition, the columns of q that affect the states
    point_derivatives : derivatives of the sum by states (1, M, n_x) and algebraic states (1, M, n_z) at the points

    Returns the derivatives per condition (n_q,), and the failures of integration.
    """
    gradients = [np.zeros(natural.dp.shape[1]) for natural in naturals]
    adjoint_states = [np.zeros(natural.a.size) for natural in naturals]  # by the states after each piece's end
    failures: list[Failure] = []
    for run in reversed(sweep.runs):
        count, outputs, n_x = run.trajectories.x.shape
        by_x, by_z = np.zeros((count, outputs, n_x)), np.zeros((count, outputs, run.trajectories.z.shape[2]))
        for lane, (i, j) in enumerate(run.members):
            piece = sweep.integration_plan.chains[i].pieces[j]
            np.add.at(by_x[lane], piece.grid_index, point_derivatives[i][0][0, piece.points])
            np.add.at(by_z[lane], piece.grid_index, point_derivatives[i][1][0, piece.points])
            directions_before, by_e = _through_jumps(sweep, run, lane, naturals[i], adjoint_states[i])
            by_x[lane, -1] += directions_before[0]
            gradients[i][moving[i]] += by_e[0] @ naturals[i].de[:, moving[i]]
        by_p = np.zeros(run.lanes.p.shape)
        if by_z.size:
            by_algebraic, by_p = run.integrator.algebraic_products(run.lanes, run.trajectories, by_z)
            by_x = by_x + by_algebraic
        adjoints = run.integrator.adjoint(run.lanes, run.trajectories, by_x[:, None])
        for lane, (i, j) in enumerate(run.members):
            seed = seeds[i]
            adjoint_states[i] = adjoints.x0[lane, 0]
            gradients[i][moving[i]] += (adjoints.p[lane, 0] + by_p[lane]) @ seed.of_piece(j)
            if seed.edges is not None:
                length = seed.edges[j + 1] - seed.edges[j]
                gradients[i][moving[i]] += adjoints.start[lane, 0] * seed.edges[j] + adjoints.duration[lane, 0] * length
        failed_stages = sweep.find_failed_stages(run, adjoints.failures, chains, "adjoint states")
        failures += [failure for failure in failed_stages.values() if failure is not None]
    for i, natural in enumerate(naturals):
        gradients[i][moving[i]] += adjoint_states[i] @ natural.da[:, moving[i]]
    return gradients, tuple(failures)
