"""Algebraic states: solved for by Newton's method and differentiated by the implicit function theorem, in batches.

Every argument has the points along its first axis: t (N,), x (N, n_x), z (N, n_z), p (N, n_p), u (N, n_u).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.records import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Mask

    Rows = NDArray[np.intp]

_MAX_NEWTON_ITERATIONS = 50  # Newton iterations until a point counts as unsolved
_MAX_STEP_HALVINGS = 12  # halvings of a Newton step that does not reduce the residual


@dataclass(frozen=True)
class AlgebraicPoints:
    """N points (t, x, p, u) at which algebraic states are wanted."""

    t: Array
    x: Array
    p: Array
    u: Array

    def __getitem__(self, rows: Any) -> AlgebraicPoints:
        return AlgebraicPoints(self.t[rows], self.x[rows], self.p[rows], self.u[rows])


class AlgebraicEquations:
    """The equations 0 = alg(t, x, z, p, u), to be solved for z."""

    def __init__(self, arguments: list[ca.SX], alg: ca.SX, *, relative_tolerance: float, absolute_tolerance: float):
        t, x, z, p, u = arguments
        self.n_z = int(z.numel())
        self._tolerances = (relative_tolerance, absolute_tolerance)
        self._residual = ca.Function("alg", arguments, [ca.densify(alg)])
        self._newton = ca.Function("newton", arguments, [ca.densify(e) for e in (alg, ca.jacobian(alg, z))])
        blocks = [ca.densify(ca.jacobian(alg, v)) for v in (z, x, p, t, u)]
        self._blocks = ca.Function("blocks", arguments, blocks)

    def solve(self, points: AlgebraicPoints, guess: Array, unit: Array) -> tuple[Array, Mask]:
        """Solve for z (N, n_z) by damped Newton steps from a guess; also return which points were solved.

        unit (N, n_z) is what the absolute tolerance is relative to.
        """
        z = np.array(guess)
        is_solved = np.zeros(z.shape[0], dtype=bool)
        if self.n_z == 0:
            return z, ~is_solved
        relative, absolute = self._tolerances
        unsolved: Rows = np.arange(z.shape[0], dtype=np.intp)
        for _ in range(_MAX_NEWTON_ITERATIONS):
            unsolved_points = points[unsolved]
            g, g_z = self._evaluate(self._newton, unsolved_points, z[unsolved])
            step = -_solve(g_z, g)[..., 0]
            allowed = absolute * unit[unsolved] + relative * np.abs(z[unsolved])
            is_small = (np.abs(step) <= allowed).all(axis=1)  # False where NaN
            is_large = ~is_small
            step[is_large] = self._damped(
                unsolved_points[is_large], z[unsolved[is_large]], step[is_large], np.abs(g[is_large, :, 0]).max(axis=1)
            )
            trial = z[unsolved] + step
            is_usable = np.isfinite(trial).all(axis=1)
            z[unsolved[is_usable]] = trial[is_usable]
            is_solved[unsolved[is_small]] = True
            unsolved = unsolved[is_usable & ~is_small]
            if unsolved.size == 0:
                break
        return z, is_solved

    def differentiate(
        self, points: AlgebraicPoints, z: Array, dx: Array, dp: Array, dt: Array | None = None, du: Array | None = None
    ) -> Array:
        """Return dz (N, n_z, n_d) along directions dx (N, n_x, n_d), dp (N, n_p, n_d).

        dt (N, 1, n_d) and du (N, n_u, n_d) where the points move in time.
        """
        if self.n_z == 0:
            return np.zeros((z.shape[0], 0, dx.shape[-1]))
        g_z, g_x, g_p, g_t, g_u = self.slopes(points, z)
        with np.errstate(invalid="ignore", over="ignore"):  # lanes that failed hold NaN
            rhs = g_x @ dx + g_p @ dp
            if dt is not None and du is not None:
                rhs = rhs + g_t @ dt + g_u @ du
            return -_solve(g_z, rhs)  # g_x dx + g_z dz + g_p dp + g_t dt + g_u du = 0

    def pull(self, points: AlgebraicPoints, z: Array, z_bar: Array) -> tuple[Array, Array]:
        """Return the gradients of  sum z_bar (N, n_z) * z  by x and p, (N, n_x) and (N, n_p)."""
        if self.n_z == 0:
            return np.zeros(points.x.shape), np.zeros(points.p.shape)
        g_z, g_x, g_p, *_ = self._evaluate(self._blocks, points, z)
        with np.errstate(invalid="ignore", over="ignore"):  # lanes that failed hold NaN
            mu = -_solve(g_z.transpose(0, 2, 1), z_bar[:, :, None])
            return (g_x.transpose(0, 2, 1) @ mu)[..., 0], (g_p.transpose(0, 2, 1) @ mu)[..., 0]

    def sizes(self, points: AlgebraicPoints, z: Array, unit: Array) -> Array:
        """Return the largest change of each equation by a unit change of an algebraic state.

        Unit (N, n_z), result (N, n_z).
        """
        if self.n_z == 0:
            return np.ones(z.shape)
        change = np.abs(self._evaluate(self._newton, points, z)[1] * unit[:, None]).max(axis=2)
        return np.where(np.isfinite(change) & (change > 0.0), change, 1.0)

    def residual(self, points: AlgebraicPoints, z: Array) -> Array:
        """Return alg (N, n_z)."""
        return self._evaluate(self._residual, points, z)[0][..., 0]

    def slopes(self, points: AlgebraicPoints, z: Array) -> list[Array]:
        """Return the derivatives of alg by z, x, p, t, u, (N, n_z, ...) each."""
        return self._evaluate(self._blocks, points, z)

    def _damped(self, points: AlgebraicPoints, z: Array, step: Array, size: Array) -> Array:
        """Halve each point's step until the residual, of maximum norm `size` (N,), becomes smaller."""
        if step.size == 0:
            return step
        for _ in range(_MAX_STEP_HALVINGS):
            is_worse = ~(np.abs(self.residual(points, z + step)).max(axis=1) < size)  # NaN is worse
            if not is_worse.any():
                break
            step = np.where(is_worse[:, None], 0.5 * step, step)
        return step

    @staticmethod
    def _evaluate(function: ca.Function, points: AlgebraicPoints, z: Array) -> list[Array]:
        """Evaluate at all points: CasADi maps a function over columns by itself; matrices come out side by side."""
        n = z.shape[0]
        columns: list[Any] = [points.t[None, :], points.x.T, z.T, points.p.T, points.u.T]
        results = function.call([ca.DM(c) if c.size else ca.DM(c.shape[0], n) for c in columns])
        return [_unstack(np.asarray(r, dtype=float), n) for r in results]


def _unstack(wide: Array, n: int) -> Array:
    """Turn (rows, n * columns) into (n, rows, columns)."""
    return np.ascontiguousarray(wide.reshape(wide.shape[0], n, -1).transpose(1, 0, 2))


def _solve(a: Array, b: Array) -> Array:
    """Solve a batch of systems; singular ones become NaN and leave the others alone."""
    try:
        return np.asarray(np.linalg.solve(a, b), dtype=float)
    except np.linalg.LinAlgError:
        return np.stack([_solve_one(*pair) for pair in zip(a, b, strict=True)])


def _solve_one(a: Array, b: Array) -> Array:
    try:
        return np.asarray(np.linalg.solve(a, b), dtype=float)
    except np.linalg.LinAlgError:
        return np.full(b.shape, np.nan)
