"""Integration up to where a model stands still: accuracy matters little on the way, stability and long steps do.

ode23s (Shampine and Reichelt 1997, SIAM J. Sci. Comput. 18, 1), a Rosenbrock method of order 2(3) that is L-stable,
solves  M w' = F(w)  with the singular M = diag(1 ... 1, 0 ... 0) of algebraic states as well, and conserves what the
model conserves linearly.  Near rest its steps grow by a factor of five each, so that any horizon is reached soon.

    W = M − h d J,    W k_1 = F_0,    W k_2 = F(w + h k_1 / 2) − M k_1 + W k_1,    w⁺ = w + h k_2
    W k_3 = F(w⁺) − e_32 (M k_2 − F_1) − 2 (M k_1 − F_0),    error = h (k_1 − 2 k_2 + k_3) / 6
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np
import scipy

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Mask


_D = 1.0 / (2.0 + np.sqrt(2.0))
_E32 = 6.0 + np.sqrt(2.0)
_TOLERANCE = 1e-2  # of a step, relative to each variable
_SMALL = 1e-3  # of the largest value that a variable has had: what is smaller need not be accurate
_FIRST = 1e-2  # of the fastest time constant
_TINY = 1e-300
_lapack: Any = scipy.linalg.lapack  # a third of the time that NumPy's own functions take for such small matrices
_LARGEST_FACTOR, _SMALLEST_FACTOR = 5.0, 0.2


@dataclass(frozen=True)
class SettlingPoint:
    """Where the integration is: time, variables w (n,), rates F (n,), Jacobian J (n, n), magnitudes so far (n,)."""

    time: float
    w: Array
    rate: Array
    jacobian: Array
    size: Array


@dataclass(frozen=True)
class SettlingStep:
    """Where a step leads: w⁺ (n,), its error (n,), and F (n,) and J (n, n) there."""

    w: Array
    error: Array
    rate: Array
    jacobian: Array


def step_graph(w: ca.SX, p: ca.SX, f: ca.SX, n_x: int) -> tuple[list[ca.SX], list[ca.SX]]:
    """Return arguments (w, p, h, F_0, W^-1 transposed) and results (w⁺, error, F(w⁺), J(w⁺) transposed) of a step."""
    h, f0, transposed = ca.SX.sym("h"), ca.SX.sym("f0", w.numel()), ca.SX.sym("inverse", w.numel(), w.numel())
    mass = ca.vertcat(ca.SX.ones(n_x), ca.SX.zeros(w.numel() - n_x))
    rates = ca.Function("rates", [w, p], [f])
    inverse = transposed.T
    k1 = inverse @ f0
    f1 = rates(w + 0.5 * h * k1, p)
    k2 = inverse @ (f1 - mass * k1) + k1
    new = w + h * k2
    f2 = rates(new, p)
    k3 = inverse @ (f2 - _E32 * (mass * k2 - f1) - 2.0 * (mass * k1 - f0))
    jacobian = ca.Function("jacobian", [w, p], [ca.densify(ca.jacobian(f, w).T)])(new, p)
    results = [new, (k1 - 2.0 * k2 + k3) * (h / 6.0), f2, jacobian]
    return [w, p, h, f0, transposed], [ca.densify(r) for r in results]


def march(
    step: Callable[[Array, float, Array, Array], SettlingStep],
    both: Callable[[Array], tuple[Array, Array]],
    w: Array,
    n_x: int,
    steps: int,
    idle: Mask,
) -> Iterator[SettlingPoint]:
    """Yield the start and what every accepted step leads to; ends where steps fail or their number is used up.

    step : (w, h, F(w), W^-1) to what `step_graph` computes;  both : w to F(w) with its Jacobian
    w : (n,) consistent variables, the n_x differential ones first
    steps : how many at most, accepted or not
    idle : (n_x,) states that stay at zero, where rounding would move them
    """
    mass = np.zeros(w.size)
    mass[:n_x] = 1.0
    time = 0.0
    f0, jacobian = both(w)
    fastest = _fastest(jacobian[:n_x, :n_x])
    h = _FIRST / fastest if fastest > 0.0 else 1.0
    size = _sizes(both, w, n_x, fastest)
    yield SettlingPoint(time, w, f0, jacobian, size)
    masses = np.diag(mass)
    for _ in range(steps):
        if not (math.isfinite(h) and _finite(f0) and _finite(jacobian)):
            return
        inverse = _inverse(masses - h * _D * jacobian)
        if inverse is None:
            h *= 0.5
            continue
        new = step(w, h, f0, inverse)
        new.w[:n_x][idle] = new.error[:n_x][idle] = 0.0
        scale = np.maximum(np.maximum(np.abs(w), np.abs(new.w)), _SMALL * size) + _TINY
        worst = float((np.abs(new.error) / scale).max()) / _TOLERANCE  # NaN is rejected, too
        if worst <= 1.0:
            time, w, f0, jacobian = time + h, new.w, new.rate, new.jacobian
            size = np.maximum(size, np.abs(w))
            yield SettlingPoint(time, w, f0, jacobian, size)
        factor = 0.8 * worst ** (-1.0 / 3.0) if worst > 0.0 else _LARGEST_FACTOR if worst == 0.0 else 0.0
        h *= min(max(factor, _SMALLEST_FACTOR), _LARGEST_FACTOR)
        if h < 1e-14 * time:
            return


def factorised(matrix: Array) -> Callable[[Array], Array] | None:
    """Return the function that solves  matrix x = b  for b (n,) or (n, m); None if the matrix is singular."""
    lu, pivots, singular = _lapack.dgetrf(matrix)
    if singular:
        return None
    solve = _lapack.dgetrs
    return lambda b: solve(lu, pivots, b)[0]


def _inverse(matrix: Array) -> Array | None:
    """Return the inverse; None if the matrix is singular."""
    lu, pivots, singular = _lapack.dgetrf(matrix)
    if singular:
        return None
    return _lapack.dgetri(lu, pivots)[0]


def _fastest(jacobian: Array) -> float:
    """Return the largest modulus of the eigenvalues; NaN where there are none."""
    return float(np.abs(np.linalg.eigvals(jacobian)).max(initial=0.0)) if _finite(jacobian) else np.nan


def _sizes(both: Callable[[Array], tuple[Array, Array]], w: Array, n_x: int, fastest: float) -> Array:
    """Return magnitudes (n,): of what stands at zero the one to which its rate leads before it decays.

    Products of a reaction get theirs one after the other.
    """
    size = np.abs(w)
    for _ in range(n_x):
        zero = size[:n_x] == 0.0
        if not zero.any():
            break
        rate, jacobian = both(np.concatenate([size[:n_x], w[n_x:]]))
        decay = np.abs(np.diagonal(jacobian)[:n_x])
        with np.errstate(divide="ignore", invalid="ignore"):
            led = np.abs(rate[:n_x]) / np.where(decay > 0.0, decay, fastest)
        new = np.where(zero & np.isfinite(led), led, 0.0)
        if not (new > 0.0).any():
            break
        size[:n_x] += new
    return size


def _finite(values: Array) -> bool:
    return math.isfinite(float(values.sum()))
