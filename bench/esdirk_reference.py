"""The ESDIRK methods in plain NumPy, to be read, taught from, and compared with the compiled ones (esdirk.c).

The same stages, error estimate, step control, continuous extension and sensitivities, for one lane without inputs
whose start and duration are fixed; results are equal up to rounding.  An explicit method, gamma = 0, is one of them,
but never left.  Equations and notation are those of esdirk.c:

    Y_i = y_0 + H sum_{j<i} a_ij K_j + H gamma K_i,   K_i = f(Y_i),   0 = g(Y_i),   H = h D
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.integrate.esdirk import Tableau
    from castfit.integrate.esdirk_binding import StepSizes


_MAX_NEWTON_ITERATIONS = 8  # number of Newton iterations per stage
_MAGNITUDE_FRACTION = 1e-6  # fraction of the largest value so far that counts as a state's magnitude
_FEW_OUTPUTS = 500  # of which a single one within a step becomes its end
_EXPLICIT_ERROR_FACTOR = 2.0  # factor on the error estimates of explicit steps


@dataclass(frozen=True)
class ReferencePath:
    """States x (m, n_x) and sensitivities dx (m, n_x, n_d) at the outputs; the states' steps, of relative time."""

    x: Array
    dx: Array
    steps: Array


class NotSolved(Exception):
    """Newton's method did not converge."""


class ReferenceMethod:
    """The method for a graph (t, x, z, p, u) -> (ode, alg) without inputs.

    Parameters
    ----------
    graph : casadi.Function
    method : Tableau
    control : StepSizes
    """

    def __init__(self, graph: ca.Function, method: Tableau, control: StepSizes) -> None:
        self.method, self.control = method, control
        self.n_x = graph.size1_in(1)
        t, x, z, p, u = arguments = [ca.SX.sym(n, graph.size1_in(i)) for i, n in enumerate("txzpu")]
        f: Any = ca.vertcat(*graph(*arguments))
        self._timed = bool(ca.jacobian(f, t).nnz())
        parts = [f, ca.jacobian(f, ca.vertcat(x, z)), ca.jacobian(f, p)]
        self._parts = ca.Function("parts", [t, ca.vertcat(x, z), p, u], [ca.densify(part) for part in parts])

    def integrate(
        self, start: float, duration: float, y: Array, p: Array, unit: Array, grid: Array, dx0: Array, dp: Array
    ) -> ReferencePath:
        """Integrate from consistent y = (x, z) (n,) through relative times grid (m,), none of them 0.

        unit (n,) as in `Lanes`; dx0 (n_x, n_d), dp (n_p, n_d) are the directions.
        """
        path_arguments = start, duration, y, p, unit, grid, dx0, dp
        path, astray = self._path(*path_arguments, heeded=False)
        return replace(path, dx=self._path(*path_arguments, heeded=True)[0].dx) if astray else path

    def _path(
        self, start: float, duration: float, y: Array, p: Array, unit: Array, grid: Array, dx0: Array, dp: Array,
        *, heeded: bool,
    ) -> tuple[ReferencePath, bool]:  # fmt: skip
        """Integrate by steps in which directions have a say or not; tell also whether they need one."""
        method, control, n_x = self.method, self.control, self.n_x
        order, b_error = method.embedded_order + 1, method.error
        self._p, self._D = p, duration
        tau, previous_error, rejected, rate, astray = 0.0, 1.0, False, 0.5, False
        few, strict = (_FEW_OUTPUTS, 1.0) if method.gamma else (0, _EXPLICIT_ERROR_FACTOR)
        x: list[Array] = []
        dx: list[Array] = []
        steps: list[float] = []
        f, J, P = self._at(start, y)
        dy, k = dx0, np.concatenate([f[:n_x], y[n_x:]])  # k, dk: the first stage's rates
        dk = (J @ np.vstack([dy, self._algebraic(J, P, dy, dp)]) + P @ dp)[:n_x]
        user_unit, unit = unit, np.maximum(unit, _MAGNITUDE_FRACTION * np.abs(y))
        largest_values = np.abs(y)
        h = self._first_step(start, y, k, unit)
        while len(x) < grid.size:
            proposed, left = h, 1.0 - tau
            h = left if h >= left * (1 - 1e-10) else 0.5 * left if h > 0.5 * left else h
            output = float(grid[len(x)])
            single = len(x) + 1 == grid.size or grid[len(x) + 1] >= tau + h
            if grid.size <= few and single and tau < output < tau + h:
                h = output - tau
            to = 1.0 if h >= left * (1 - 1e-10) else output if abs(tau + h - output) <= 1e-10 * h else tau + h
            try:
                Y, K, M, rate = self._stages(start, tau, to, h, y, k, unit, rate)
            except NotSolved:
                h, rejected, rate = 0.25 * h, True, 0.5
                continue
            H = h * duration
            e = _solve(M, np.concatenate([H * (b_error @ K[:, :n_x]), np.zeros(y.size - n_x)]))
            error = strict * float(np.abs(e / self._weight(unit, np.maximum(np.abs(y), np.abs(Y[-1])))).max())
            if error > 1.0:
                h, rejected = h * min(max(0.2, 0.9 * error ** (-1 / order)), 0.9), True
                continue
            dY, dK, last_dk = self._differentiate(start, tau, to, h, Y, dy, dk, dp)
            allowed = self._weight(unit[:n_x, None], np.maximum(np.abs(dy), np.abs(dY[-1])))
            e = H * _weighted(b_error, dK)
            watch = strict * control.watch
            largest_values = error if heeded else max(1.0, control.watch * control.relative ** (-1 / 3))
            worst = watch * float((np.abs(e) / allowed).max(initial=0.0))
            if worst > largest_values:  # what is stiff is damped
                e = _solve(last_dk, np.vstack([e, np.zeros((y.size - n_x, e.shape[1]))]))[:n_x]
                worst = watch * float((np.abs(e) / allowed).max(initial=0.0))
            error, astray = max(error, worst) if heeded else error, astray or worst > largest_values
            if error > 1.0:
                h, rejected = h * min(max(0.2, 0.9 * error ** (-1 / order)), 0.9), True
                continue
            h = to - tau
            steps.append(h)
            while len(x) < grid.size and grid[len(x)] <= to:
                th = (float(grid[len(x)]) - tau) / h if grid[len(x)] < to else 1.0
                x.append(self._between(th, y[:n_x], Y[-1, :n_x], H * K[:, :n_x]))
                dx.append(self._between(th, dy, dY[-1], H * dK))
            y, dy, k, dk, tau = Y[-1], dY[-1], K[-1], dK[-1], to
            largest_values = np.maximum(largest_values, np.abs(y))
            unit = np.maximum(user_unit, _MAGNITUDE_FRACTION * largest_values)
            small = max(error, 1e-10)
            factor = 0.9 * small ** (-0.7 / order) * previous_error ** (0.4 / order)
            factor = min(1.0 if rejected else 6.0, max(0.2, factor))
            previous_error, rejected = small, False
            grown = h * factor
            h = max(grown, proposed) if h < proposed * (1 - 1e-9) and factor >= 1.0 else grown
        return ReferencePath(np.array(x), np.array(dx), np.array(steps)), astray

    def _stages(
        self, start: float, tau: float, to: float, h: float, y: Array, K1: Array, unit: Array, rate: float
    ) -> tuple[Array, Array, Array, float]:
        """Solve the stages: Y (s, n), K (s, n), which holds the algebraic states themselves, and the matrix M."""
        method, n_x, s = self.method, self.n_x, self.method.stages
        H = h * self._D
        g = H * method.gamma
        M = self._matrix(self._at(start + self._D * tau, y)[1], g)
        weight = self._weight(unit, np.abs(y))
        Y, K = np.zeros((s, y.size)), np.zeros((s, y.size))
        Y[0], K[0] = y, K1
        for i in range(1, s):
            time = start + self._D * (to if i == s - 1 else tau + method.c[i] * h)
            r = y[:n_x] + H * (method.a[i, :i] @ K[:i, :n_x])
            if g == 0.0:
                Y[i], K[i] = r, self._at(time, r)[0]
                continue
            guess = method.predict[i, :i] @ K[:i]
            Y[i], K[i], rate = self._newton(time, r, g, guess, M, weight, rate)
        return Y, K, M, rate

    def _newton(
        self, time: float, r: Array, g: float, k: Array, M: Array, weight: Array, rate: float
    ) -> tuple[Array, Array, float]:
        """Solve  Y_x = r + g K,  K = f(Y),  0 = g(Y)  with the matrix of the step; k holds guesses of K and z."""
        n_x, allowed, previous_norm, rate = self.n_x, self.control.newton, 0.0, rate**0.8
        y = np.concatenate([r + g * k[:n_x], k[n_x:]])
        for it in range(_MAX_NEWTON_ITERATIONS):
            f = self._at(time, y)[0]
            change = _solve(M, np.concatenate([g * (f[:n_x] - k[:n_x]), f[n_x:]]))
            k = k + np.concatenate([change[:n_x] / g, change[n_x:]])
            y = np.concatenate([r + g * k[:n_x], k[n_x:]])
            size = self._norm(change, weight)
            if it > 0:
                ratio = size / previous_norm
                if ratio >= 0.9:
                    if size <= max(allowed, 1e-14 / self.control.relative):
                        return y, k, rate
                    raise NotSolved
                rate = max(ratio, 1e-4)
                left = _MAX_NEWTON_ITERATIONS - 1 - it
                if left > 0 and size * ratio**left / (1 - ratio) > allowed:
                    raise NotSolved
            if size == 0.0 or rate / (1 - rate) * size <= allowed:
                return y, k, rate
            previous_norm = size
        raise NotSolved

    def _differentiate(
        self, start: float, tau: float, to: float, h: float, Y: Array, S: Array, dK1: Array, dp: Array
    ) -> tuple[Array, Array, Array]:
        """Differentiate the stages as implicit functions: dY (s, n_x, n_d), dK, and the matrix of the last one."""
        method, n_x, s = self.method, self.n_x, self.method.stages
        H = h * self._D
        g = H * method.gamma
        dY, dK = np.zeros((s, *S.shape)), np.zeros((s, *S.shape))
        dY[0], dK[0], last_dk = S, dK1, np.empty(0)
        for i in range(1, s):
            _, J, P = self._at(start + self._D * (to if i == s - 1 else tau + method.c[i] * h), Y[i])
            R = S + H * _weighted(method.a[i, :i], dK[:i])
            by_p, last_dk = P @ dp, self._matrix(J, g)
            if g == 0.0:
                dY[i], dK[i] = R, J @ R + by_p
                continue
            dY[i] = _solve(last_dk, np.vstack([R + g * by_p[:n_x], by_p[n_x:]]))[:n_x]
            dK[i] = (dY[i] - R) / g
        return dY, dK, last_dk

    def _between(self, th: float, y0: Array, y1: Array, HK: Array) -> Array:
        """Return the continuous extension at th in [0, 1]; HK (s, ...) are the rates times the step."""
        if th == 1.0:
            return y1
        om = 1.0 - th
        cubic = om**2 * (1 + 2 * th) * y0 + th**2 * (3 - 2 * th) * y1 + th * om**2 * HK[0] - th**2 * om * HK[-1]
        return cubic + th**2 * om**2 * _weighted(self.method.dense, HK)

    def _matrix(self, J: Array, g: float) -> Array:
        """Return M = [I - g f_x, -g f_z; -g_x, -g_z]."""
        M = -J
        M[: self.n_x] *= g
        M[: self.n_x, : self.n_x] += np.eye(self.n_x)
        return M

    def _algebraic(self, J: Array, P: Array, S: Array, dp: Array) -> Array:
        """Return how algebraic states move with x and p."""
        n_x = self.n_x
        return -_solve(J[n_x:, n_x:], J[n_x:, :n_x] @ S + P[n_x:] @ dp)

    def _first_step(self, start: float, y: Array, K1: Array, unit: Array) -> float:
        """Return a first step, from how fast states and rates change."""
        n_x, D = self.n_x, abs(self._D)
        weight = self._weight(unit, np.abs(y))[:n_x]
        size, rate = self._norm(y[:n_x], weight), D * self._norm(K1[:n_x], weight)
        probe_step = 1e-6 if size < 1e-5 or rate < 1e-5 else 0.01 * size / rate
        h = min(probe_step, 1e-6 if self._timed else 1.0)
        ahead = np.concatenate([y[:n_x] + h * self._D * K1[:n_x], y[n_x:]])
        f = self._at(start + self._D * h, ahead)[0][:n_x]
        bend = D * self._norm(f - K1[:n_x], weight) / h if np.isfinite(f).all() else 0.0
        largest_rate = max(bend, rate)
        order = self.method.embedded_order + 1
        return min(100 * h, max(1e-6, 1e-3 * h) if largest_rate <= 1e-15 else (0.01 / largest_rate) ** (1 / order))

    def _at(self, t: float, y: Array) -> tuple[Array, Array, Array]:
        """Return (f, g) (n,) and its derivatives by (x, z) and p."""
        parts: Any = self._parts
        f, J, P = (np.asarray(part, dtype=float) for part in parts(t, y, self._p, np.empty(0)))
        return f[:, 0], J, P

    def _weight(self, unit: Array, size: Array) -> Array:
        return self.control.absolute * unit + self.control.relative * size

    @staticmethod
    def _norm(e: Array, weight: Array) -> float:
        return float(np.sqrt(np.mean((e / weight) ** 2)))


def _weighted(weights: Array, parts: Array) -> Array:
    """Return the sum of parts (s, ...), weighted (s,)."""
    return np.asarray(np.tensordot(weights, parts, 1), dtype=float)


def _solve(matrix: Array, right: Array) -> Array:
    return np.asarray(np.linalg.solve(matrix, right), dtype=float)
