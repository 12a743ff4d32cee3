"""Dense output: states as polynomials of time on every step that an integrator took.

The continuous extension of the compiled methods is a polynomial of degree 4 on each step (esdirk.c, write_outputs),

    x(t + theta H) = Hermite's cubic + H theta^2 (1 - theta)^2 sum_j d_j K_j,

which its steps, where they are kept, give without integrating again.  Of other integrators' steps nothing is known:
theirs are polynomials through states, rates and middles of equal parts, more of them until the cubics alone are near.

Polynomials are held by their Bernstein coefficients, between the least and the largest of which their values lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.integrate.integrator import integrator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from castfit._support.arrays import Array, Index
    from castfit.integrate.integrator import Integrable
    from castfit.integrate.lanes import Lanes
    from castfit.integrate.options import IntegratorOptions

_NEAR = 1e-3  # of a state's unit: how far from the middles cubics through parts of time may be
_MOST = 4096  # parts

# Bernstein coefficients of both halves of a polynomial (de Casteljau).
_HALF = np.array([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 2, 1, 0, 0], [1, 3, 3, 1, 0], [1, 4, 6, 4, 1]], dtype=float)
LEFT = _HALF / 2.0 ** np.arange(5)[:, None]
RIGHT = LEFT[::-1, ::-1]
# Bernstein coefficients of theta^0 ... theta^3.
POWERS = np.array([[1, 0, 0, 0], [1, 1 / 4, 0, 0], [1, 1 / 2, 1 / 6, 0], [1, 3 / 4, 1 / 2, 1 / 4], [1, 1, 1, 1]])
# Those of degree 4 from y0, H f0, y1, H f1, and the coefficient of theta^2 (1 - theta)^2.
_FROM_ENDS = np.array(
    [[1, 0, 0, 0, 0], [1, 1 / 4, 0, 0, 0], [1 / 2, 1 / 6, 1 / 2, -1 / 6, 1 / 6], [0, 0, 1, -1 / 4, 0], [0, 0, 1, 0, 0]]
)
_AT_MIDDLE = np.array([1 / 2, 1 / 8, 1 / 2, -1 / 8])  # Hermite's cubic there


@dataclass(frozen=True)
class DenseOutput:
    """States between times (K + 1,): at these x (K + 1, n_x) and z (K + 1, n_z), in between polynomials.

    ends (K, 5, n_x) : of each step x and H x' where it begins, both where it ends, and the coefficient of
        theta^2 (1 - theta)^2
    """

    times: Array
    x: Array
    z: Array
    ends: Array
    known: dict[int, Array] = field(default_factory=dict[int, Any], init=False, repr=False)

    def coefficients(self, states: Index) -> Array:
        """Return Bernstein coefficients of some states, (K, 5, n)."""
        return np.einsum("ij,kjn->kin", _FROM_ENDS, self.ends[:, :, states])

    def at(self, time: float) -> tuple[Array, Array]:
        """Return the states (n_x,) and their rates at a time."""
        k = self.part(time)
        begin, end = self.times[k], self.times[k + 1]
        values, slopes = _basis((time - begin) / (end - begin))
        if k not in self.known:  # several differences look at the same step
            self.known[k] = _FROM_ENDS @ self.ends[k]
        return values @ self.known[k], slopes @ self.known[k] / (end - begin)

    def rests(self, k: int) -> bool:
        """Check whether no state changes in a step."""
        return not self.ends[k, [1, 3, 4]].any()

    def part(self, time: float) -> int:
        """Return between which times a time lies."""
        last = self.times.size - 2
        return min(max(int(self.times.searchsorted(time, side="right")) - 1, 0), last) if last else 0


def _basis(theta: float) -> tuple[Array, Array]:
    """Return Bernstein's polynomials of degree 4 and their derivatives at theta, (5,) each."""
    rest = 1.0 - theta
    values = np.array([rest**4, 4 * theta * rest**3, 6 * theta**2 * rest**2, 4 * theta**3 * rest, theta**4])
    three = np.array([0.0, rest**3, 3 * theta * rest**2, 3 * theta**2 * rest, theta**3, 0.0])
    return values, 4.0 * (three[:-1] - three[1:])


def dense_output(
    model: Integrable, options: IntegratorOptions, lanes: Lanes, least: int, inputs: Callable[[Array], Array]
) -> DenseOutput | None:
    """Integrate one lane, and return its states as polynomials; None if integration fails.

    inputs : times (m + 1,) -> the inputs between them as local cubics (m, n_u, 4);  those of the lane are for all of it
    least : parts into which time is divided at least where steps are not known
    """
    by = integrator_of(model, [1.0], options)
    if by.stepping is not None:
        found = by.values(lanes, keep=True)
        if found.failures:
            return None
        steps = None if found.kept is None or found.rescued else found.kept.of_only_lane()
        if steps is not None:
            tau, y, first, last, bends = steps
            times = lanes.start[0] + lanes.duration[0] * tau
            x, z = np.concatenate([y[:, : by.n_x], found.x[0]]), np.concatenate([y[:, by.n_x :], found.z[0]])
            ends = np.stack([x[:-1], *(k[:, : by.n_x] for k in (first, last, bends))], axis=1)
            ends = np.insert(ends, 2, x[1:], axis=1)
            ends[:, [1, 3, 4]] *= np.diff(times)[:, None, None]
            return DenseOutput(times, x, z, ends)
    return _through_parts(model, options, lanes, least, inputs)


def _through_parts(
    model: Integrable, options: IntegratorOptions, lanes: Lanes, least: int, inputs: Callable[[Array], Array]
) -> DenseOutput | None:
    start, duration = float(lanes.start[0]), float(lanes.duration[0])
    unit = lanes.units[0][0]
    while True:
        grid = np.arange(1, 2 * least + 1) / (2 * least)
        every = start + duration * np.append(0.0, grid)
        cubics = inputs(every)
        by = integrator_of(model, grid, options)
        found = by.values(replace(lanes, u=cubics[None]))
        if found.failures:
            return None
        x, z = (np.concatenate([a[None, 0], b]) for a, b in ((lanes.x0, found.x[0]), (lanes.z0, found.z[0])))
        u = np.concatenate([cubics[:, :, 0], cubics[-1:] @ (every[-1] - every[-2]) ** np.arange(4)])
        p = np.repeat(lanes.p, every.size, axis=0)
        f = np.asarray(by.graph.map(every.size)(every[None], x.T, z.T, p.T, u.T)[0], dtype=float).T
        width = duration / least
        ends = np.stack([x[:-1:2], width * f[:-1:2], x[2::2], width * f[2::2]], axis=1)
        off = x[1::2] - np.einsum("j,kjn->kn", _AT_MIDDLE, ends)
        if least >= _MOST or (np.abs(off) <= _NEAR * unit).all():
            ends = np.concatenate([ends, 16.0 * off[:, None]], axis=1)
            return DenseOutput(every[::2], x[::2], z[::2], ends)
        least *= 2
