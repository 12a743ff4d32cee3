"""Random staged problems, and their dense matrices written out block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from castfit.solve.bounded_lsq import BoundedLsqSolution, LinearConstraints, bounded_lsq
from castfit.solve.condensing import Condensed, expand, multipliers
from castfit.solve.staged import (
    Chain,
    ChainValues,
    Jacobians,
    Layout,
    Linearization,
    Multipliers,
    Specification,
    build_layout,
)


def close(left: np.ndarray, right: np.ndarray, tolerance: float = 1e-9) -> bool:
    """Whether arrays differ by no more than a part of the larger of 1 and the largest entry."""
    return bool(np.abs(left - right).max(initial=0.0) <= tolerance * max(1.0, np.abs(right).max(initial=0.0)))


def random_problem(
    rng: np.random.Generator,
    *,
    stages: tuple[int, ...] = (4, 3),
    n_s: int = 2,
    n_w: int = 0,
    n_r: int = 3,
    n_c: int = 0,
    shared: int = 3,
    local: int = 1,
    free_initial: bool = True,
    n_prior: int = 0,
    padding: bool = True,
    null_directions: int = 0,
    gain: float = 0.7,
) -> tuple[Layout, Linearization]:
    """Draw a layout and a linearization with random blocks, one chain per entry of `stages`.

    Theta is the shared quantities, then per chain its local ones and, if `free_initial`, its initial state (with an
    identity in A; else A is zero).  With `null_directions` as many shared quantities repeat the first one exactly, so
    that only their sum matters.  `gain` is the size of X_s: above 1 the nodes grow.
    """
    n_own = local + (n_s if free_initial else 0)
    n_theta = shared + n_own * len(stages)
    specifications = []
    for i, K in enumerate(stages):
        theta = np.r_[np.arange(shared), shared + n_own * i + np.arange(n_own)]
        mask = rng.random((K, n_r)) < 0.8 if padding else np.ones((K, n_r), dtype=bool)
        lower, upper = np.full((K, n_c), -np.inf), np.full((K, n_c), np.inf)
        lower[rng.random((K, n_c)) < 0.7] = -0.3
        upper[rng.random((K, n_c)) < 0.7] = 0.4
        names = tuple(f"x{j}" for j in range(n_s))
        specifications.append(
            Specification(f"experiment {i}", theta, n_s, n_w, mask, lower, upper, np.linspace(0, 1, K + 1), names)
        )
    layout = build_layout(tuple(f"theta{i}" for i in range(n_theta)), tuple(specifications))

    values, jacobians = [], []
    for chain in layout.chains:
        K, n_q = chain.n_stages, chain.n_q

        def block(*shape: int, size: float = 1.0) -> np.ndarray:
            return size * rng.standard_normal(shape)

        A = np.zeros((n_s, n_q))
        if free_initial:
            A[:, n_q - n_s :] = np.eye(n_s)
        D_w = block(K, n_w, n_w, size=0.3) + 2 * np.eye(n_w)
        parts = {
            "R": (n_r, chain.row_mask[:, :, None]),
            "D": (n_w, 1.0),
            "X": (n_s, 1.0),
            "C": (n_c, 1.0),
        }
        blocks = {
            f"{name}_{to}": block(K, rows, n) * keep
            for name, (rows, keep) in parts.items()
            for to, n in (("s", n_s), ("w", n_w), ("q", n_q))
        }
        blocks |= {"D_w": D_w, "X_s": gain * np.linalg.qr(block(K, n_s, n_s))[0] if n_s else block(K, 0, 0), "A": A}
        for name in ("R_q", "D_q", "X_q", "C_q"):
            for extra in range(1, 1 + null_directions):
                blocks[name][:, :, extra] = blocks[name][:, :, 0]
        jacobians.append(Jacobians(**blocks))
        values.append(
            ChainValues(
                r=block(K, n_r) * chain.row_mask,
                a=block(n_s, size=0.1),
                d=block(K, n_w, size=0.1),
                x=block(K, n_s, size=0.1),
                c=block(K, n_c, size=0.1),
            )
        )
    prior_jacobian = rng.standard_normal((n_prior, n_theta))
    prior_jacobian[:, 1 : 1 + null_directions] = prior_jacobian[:, :1]
    linearization = Linearization(
        v=0.1 * rng.standard_normal(layout.n_v),
        values=tuple(values),
        prior=rng.standard_normal(n_prior),
        prior_jacobian=prior_jacobian,
        jacobians=tuple(jacobians),
    )
    return layout, linearization


@dataclass(frozen=True)
class Dense:
    """The linearized problem written out: residuals r + J dv, equations e + C dv = 0, path rows c + P dv."""

    r: np.ndarray
    J: np.ndarray
    e: np.ndarray
    C: np.ndarray
    c: np.ndarray
    P: np.ndarray


def dense(layout: Layout, linearization: Linearization) -> Dense:
    """Write a linearization out in the order of the contract: measured rows; per chain initial, inner, matching."""
    n = layout.n_v
    lists: dict[str, list] = {name: [] for name in ("r", "J", "e", "C", "c", "P")}

    def add(value: str, matrix: str, constant: float, *entries: tuple[np.ndarray, np.ndarray]) -> None:
        row = np.zeros(n)
        for positions, numbers in entries:
            np.add.at(row, positions, numbers)
        lists[value].append(constant)
        lists[matrix].append(row)

    for chain, values, j in zip(layout.chains, linearization.values, linearization.jacobians, strict=True):
        q, s, w = chain.theta, chain.nodes, chain.inner
        for i in range(chain.n_s):
            add("e", "C", values.a[i] - linearization.v[s[0, i]], (q, j.A[i]), (s[0, i : i + 1], -np.ones(1)))
        for k in range(chain.n_stages):
            for i in range(chain.n_r):
                if chain.row_mask[k, i]:
                    add("r", "J", values.r[k, i], (q, j.R_q[k, i]), (s[k], j.R_s[k, i]), (w[k], j.R_w[k, i]))
            for i in range(chain.n_c):
                add("c", "P", values.c[k, i], (q, j.C_q[k, i]), (s[k], j.C_s[k, i]), (w[k], j.C_w[k, i]))
            for i in range(chain.n_w):
                add("e", "C", values.d[k, i], (q, j.D_q[k, i]), (s[k], j.D_s[k, i]), (w[k], j.D_w[k, i]))
            if k + 1 < chain.n_stages:
                for i in range(chain.n_s):
                    gap = values.x[k, i] - linearization.v[s[k + 1, i]]
                    terms = (q, j.X_q[k, i]), (s[k], j.X_s[k, i]), (w[k], j.X_w[k, i])
                    add("e", "C", gap, *terms, (s[k + 1, i : i + 1], -np.ones(1)))
    for value, row in zip(linearization.prior, linearization.prior_jacobian, strict=True):
        add("r", "J", value, (np.arange(layout.n_theta), row))

    def matrix(name: str) -> np.ndarray:
        return np.array(lists[name]).reshape(-1, n)

    return Dense(
        np.array(lists["r"]), matrix("J"), np.array(lists["e"]), matrix("C"), np.array(lists["c"]), matrix("P")
    )


@st.composite
def problems(
    draw, *, max_w: int = 2, max_null: int = 0, determined: bool = False, **fixed
) -> tuple[Layout, Linearization]:
    """Draw a random problem of any shape; a `determined` one has a prior on everything and so a unique solution."""
    options = {
        "stages": tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))),
        "n_s": draw(st.integers(0, 3)),
        "n_w": draw(st.integers(0, max_w)),
        "n_r": draw(st.integers(0, 4)),
        "n_c": draw(st.integers(0, 2)),
        "shared": draw(st.integers(1, 4)),
        "local": draw(st.integers(0, 2)),
        "free_initial": draw(st.booleans()),
    } | fixed
    options["null_directions"] = draw(st.integers(0, min(max_null, options["shared"] - 1)))
    n_own = options["local"] + options["n_s"] * options["free_initial"]
    n_theta = options["shared"] + n_own * len(options["stages"])
    n_prior = n_theta + 2 if determined else draw(st.integers(0, 3))
    return random_problem(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), n_prior=n_prior, **options)


def kkt_matrix(full: Dense) -> np.ndarray:
    """Return the augmented matrix of the unknowns (residuals, dv, multipliers), which does not square J."""
    (m, n), n_e = full.J.shape, full.e.size
    return np.block(
        [
            [np.eye(m), -full.J, np.zeros((m, n_e))],
            [full.J.T, np.zeros((n, n)), full.C.T],
            [np.zeros((n_e, m)), full.C, np.zeros((n_e, n_e))],
        ]
    )


def kkt_solution(full: Dense) -> tuple[np.ndarray, np.ndarray]:
    """Return step and multipliers of the linearized problem without inequalities, from the dense matrix."""
    (m, n), right = full.J.shape, np.concatenate([full.r, np.zeros(full.J.shape[1]), -full.e])
    solution = np.linalg.solve(kkt_matrix(full), right)
    return solution[m : m + n], solution[m + n :]


def flat_multipliers(chain_multipliers: tuple[Multipliers, ...]) -> np.ndarray:
    """Put multipliers into the order of the rows of `Dense.C`."""
    parts = [np.empty(0)]
    for m in chain_multipliers:
        parts.append(m.initial)
        for k, inner in enumerate(m.inner):
            parts += [inner, m.matching[k]] if k < len(m.matching) else [inner]
    return np.concatenate(parts)


def predicted(constant: np.ndarray, blocks: tuple[np.ndarray, ...], chain: Chain, dv: np.ndarray) -> np.ndarray:
    """Return constant + blocks (by s, q, w) times the step, stage by stage."""
    by_s, by_q, by_w = blocks
    q, s, w = chain.local(dv)
    return constant + np.einsum("kij,kj->ki", by_s, s) + by_q @ q + np.einsum("kij,kj->ki", by_w, w)


def draw_bounds(rng: np.random.Generator, v: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds around v: a share of them finite, some of those close."""
    width = rng.exponential(0.3, (2, v.size)) + 1e-3
    width[rng.random((2, v.size)) > share] = np.inf
    return v - width[0], v + width[1]


@dataclass(frozen=True)
class BoundedStep:
    """A step within bounds of all variables and path constraints; `equations`, `bounds`, `path` are multipliers."""

    dv: np.ndarray
    equations: tuple[Multipliers, ...]
    bounds: np.ndarray
    path: np.ndarray
    solution: BoundedLsqSolution


def bounded_step(layout: Layout, condensed: Condensed, lower: np.ndarray, upper: np.ndarray) -> BoundedStep:
    """Solve a condensed problem within bounds of all variables."""
    low, high = lower - condensed.v, upper - condensed.v
    blocks, where = [], []
    for part in condensed.chains:
        for places, (g, G) in ((part.chain.nodes, (part.g, part.G)), (part.chain.inner, part.inner())):
            wide = np.zeros((places.size, condensed.n_x))
            wide[:, part.columns] = G.reshape(places.size, part.columns.size)
            blocks.append((g.ravel(), wide, low[places].ravel(), high[places].ravel()))
            where.append(places.ravel())
    path_lower, path_upper = path_bounds(layout)
    zero = np.zeros(condensed.e.size)
    blocks += [(condensed.c, condensed.C, path_lower, path_upper), (condensed.e, condensed.F, zero, zero)]
    rows = LinearConstraints(*(np.concatenate([block[i] for block in blocks]) for i in range(4)))
    unknowns = condensed.positions
    solution = bounded_lsq(
        condensed.u, condensed.E, lower=low[unknowns], upper=high[unknowns], rows=rows, scale=condensed.scale
    )
    positions = np.concatenate(where)
    on_rows, path, closure = np.split(solution.row_multipliers, np.cumsum([positions.size, condensed.c.size]))
    bounds = np.zeros(layout.n_v)
    bounds[unknowns] = solution.bound_multipliers
    np.add.at(bounds, positions, on_rows)
    residuals = condensed.u + condensed.E @ solution.x
    equations = multipliers(condensed, residuals, bounds=bounds, path=path, closure=closure)
    return BoundedStep(expand(condensed, solution.x), equations, bounds, path, solution)


def path_bounds(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of all path constraints, in the order of `Dense.c`."""
    lower = np.concatenate([chain.constraint_lower.ravel() for chain in layout.chains])
    upper = np.concatenate([chain.constraint_upper.ravel() for chain in layout.chains])
    return lower, upper


def optimality_errors(
    layout: Layout, full: Dense, step: BoundedStep, low: np.ndarray, high: np.ndarray
) -> dict[str, float]:
    """Return by how much a step violates each of the optimality conditions of the full problem; low <= dv <= high."""
    values = np.concatenate([step.dv, full.c + full.P @ step.dv])
    path_lower, path_upper = path_bounds(layout)
    low, high = np.concatenate([low, path_lower]), np.concatenate([high, path_upper])
    forces = np.concatenate([step.bounds, step.path])
    gradient = full.J.T @ (full.r + full.J @ step.dv) + full.C.T @ flat_multipliers(step.equations)
    gradient += full.P.T @ step.path + step.bounds
    to_bound = np.where(forces < 0, values - low, high - values)
    idle = np.abs(forces) <= 1e-9 * max(1.0, np.abs(forces).max(initial=0.0))
    return {
        "equations": np.abs(full.e + full.C @ step.dv).max(initial=0.0),
        "inequalities": np.maximum(low - values, values - high).max(initial=0.0),
        "stationarity": np.abs(gradient).max(initial=0.0) / max(1.0, np.abs(forces).max(initial=0.0)),
        "complementarity": np.abs(to_bound[~idle]).max(initial=0.0),
    }


def lagrangian_gradient(
    layout, linearization, chain_multipliers: tuple[Multipliers, ...], bounds: np.ndarray
) -> np.ndarray:
    """Return the gradient (n_v,) of  1/2 |r|^2 + multipliers . constraints + bounds . v  at the linearization."""
    gradient = bounds.copy()
    gradient[: layout.n_theta] += linearization.prior @ linearization.prior_jacobian
    for chain, j, values, m in zip(
        layout.chains, linearization.jacobians, linearization.values, chain_multipliers, strict=True
    ):
        matching = np.concatenate([m.matching, np.zeros((1, chain.n_s))])  # nothing matches the end of the last stage
        factors = np.concatenate([values.r, m.inner, matching, m.path], axis=1)
        in_q, in_s, in_w = (
            np.einsum("kij,ki->kj", np.concatenate(blocks, axis=1), factors)
            for blocks in ((j.R_q, j.D_q, j.X_q, j.C_q), (j.R_s, j.D_s, j.X_s, j.C_s), (j.R_w, j.D_w, j.X_w, j.C_w))
        )
        gradient[chain.theta] += in_q.sum(axis=0) + j.A.T @ m.initial
        gradient[chain.nodes] += in_s - np.concatenate([m.initial[None], m.matching])
        gradient[chain.inner] += in_w
    return gradient
