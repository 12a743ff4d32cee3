"""Dense output: states as polynomials of time on every step that an integrator took.

The continuous extension of the compiled methods is a polynomial of degree 4 on each step (esdirk.c, write_outputs),

    x(t + theta H) = Hermite's cubic + H theta^2 (1 - theta)^2 sum_j d_j K_j,

which follows from stored steps without another integration.  The steps of other integrators are not known: their
polynomials interpolate states, rates and middles of equal parts, which are halved until the cubics alone are accurate.

Polynomials are represented by Bernstein coefficients, which bound their values.
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

_MIDDLE_TOLERANCE = 1e-3  # distance between cubic and solution at the middle of a part, in a state's unit
_MAX_TIME_PARTS = 4096  # number of parts of an interval that are not divided further

# Bernstein coefficients of both halves of a polynomial (de Casteljau).
_LEFT_HALF_NUMERATORS = np.array(
    [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 2, 1, 0, 0], [1, 3, 3, 1, 0], [1, 4, 6, 4, 1]], dtype=float
)
LEFT = _LEFT_HALF_NUMERATORS / 2.0 ** np.arange(5)[:, None]
RIGHT = LEFT[::-1, ::-1]
# Bernstein coefficients of theta^0 ... theta^3.
POWERS = np.array([[1, 0, 0, 0], [1, 1 / 4, 0, 0], [1, 1 / 2, 1 / 6, 0], [1, 3 / 4, 1 / 2, 1 / 4], [1, 1, 1, 1]])
# Those of degree 4 from y0, H f0, y1, H f1, and the coefficient of theta^2 (1 - theta)^2.
_FROM_ENDS = np.array(
    [[1, 0, 0, 0, 0], [1, 1 / 4, 0, 0, 0], [1 / 2, 1 / 6, 1 / 2, -1 / 6, 1 / 6], [0, 0, 1, -1 / 4, 0], [0, 0, 1, 0, 0]]
)
_HERMITE_MIDDLE_WEIGHTS = np.array([1 / 2, 1 / 8, 1 / 2, -1 / 8])  # Hermite's cubic there


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
    coefficient_cache: dict[int, Array] = field(default_factory=dict[int, Any], init=False, repr=False)

    def coefficients(self, states: Index) -> Array:
        """Return Bernstein coefficients of some states, (K, 5, n)."""
        return np.einsum("ij,kjn->kin", _FROM_ENDS, self.ends[:, :, states])

    def interpolate(self, time: float) -> tuple[Array, Array]:
        """Return the states (n_x,) and their rates at a time."""
        k = self.find_step(time)
        begin, end = self.times[k], self.times[k + 1]
        values, slopes = _basis((time - begin) / (end - begin))
        if k not in self.coefficient_cache:  # several differences look at the same step
            self.coefficient_cache[k] = _FROM_ENDS @ self.ends[k]
        return values @ self.coefficient_cache[k], slopes @ self.coefficient_cache[k] / (end - begin)

    def is_constant(self, k: int) -> bool:
        """Check whether no state changes in a step."""
        return not self.ends[k, [1, 3, 4]].any()

    def find_step(self, time: float) -> int:
        """Return the index of the step that contains a time."""
        last_index = self.times.size - 2
        return min(max(int(self.times.searchsorted(time, side="right")) - 1, 0), last_index) if last_index else 0


def _basis(theta: float) -> tuple[Array, Array]:
    """Return Bernstein's polynomials of degree 4 and their derivatives at theta, (5,) each."""
    complement = 1.0 - theta
    values = np.array(
        [complement**4, 4 * theta * complement**3, 6 * theta**2 * complement**2, 4 * theta**3 * complement, theta**4]
    )
    cubic_basis = np.array([0.0, complement**3, 3 * theta * complement**2, 3 * theta**2 * complement, theta**3, 0.0])
    return values, 4.0 * (cubic_basis[:-1] - cubic_basis[1:])


def dense_output(
    model: Integrable, options: IntegratorOptions, lanes: Lanes, min_parts: int, inputs: Callable[[Array], Array]
) -> DenseOutput | None:
    """Integrate one lane, and return its states as polynomials; None if integration fails.

    inputs : times (m + 1,) -> the inputs between them as local cubics (m, n_u, 4);  the lane has one cubic only
    min_parts : smallest number of parts of time if the steps are not known
    """
    integrator = integrator_of(model, [1.0], options)
    if integrator.stepping is not None:
        trajectories = integrator.values(lanes, keep=True)
        if trajectories.failures:
            return None
        steps = (
            None
            if trajectories.sensitivity_cache is None or trajectories.rescued_lanes
            else trajectories.sensitivity_cache.single_lane_data()
        )
        if steps is not None:
            tau, y, first_rates, last_rates, bend_terms = steps
            times = lanes.start[0] + lanes.duration[0] * tau
            x, z = (
                np.concatenate([y[:, : integrator.n_x], trajectories.x[0]]),
                np.concatenate([y[:, integrator.n_x :], trajectories.z[0]]),
            )
            ends = np.stack([x[:-1], *(k[:, : integrator.n_x] for k in (first_rates, last_rates, bend_terms))], axis=1)
            ends = np.insert(ends, 2, x[1:], axis=1)
            ends[:, [1, 3, 4]] *= np.diff(times)[:, None, None]
            return DenseOutput(times, x, z, ends)
    return _interpolate_parts(model, options, lanes, min_parts, inputs)


def _interpolate_parts(
    model: Integrable, options: IntegratorOptions, lanes: Lanes, n_parts: int, inputs: Callable[[Array], Array]
) -> DenseOutput | None:
    start, duration = float(lanes.start[0]), float(lanes.duration[0])
    unit = lanes.units[0][0]
    while True:
        grid = np.arange(1, 2 * n_parts + 1) / (2 * n_parts)
        times = start + duration * np.append(0.0, grid)
        cubics = inputs(times)
        integrator = integrator_of(model, grid, options)
        trajectories = integrator.values(replace(lanes, u=cubics[None]))
        if trajectories.failures:
            return None
        x, z = (
            np.concatenate([a[None, 0], b]) for a, b in ((lanes.x0, trajectories.x[0]), (lanes.z0, trajectories.z[0]))
        )
        u = np.concatenate([cubics[:, :, 0], cubics[-1:] @ (times[-1] - times[-2]) ** np.arange(4)])
        p = np.repeat(lanes.p, times.size, axis=0)
        f = np.asarray(integrator.graph.map(times.size)(times[None], x.T, z.T, p.T, u.T)[0], dtype=float).T
        width = duration / n_parts
        ends = np.stack([x[:-1:2], width * f[:-1:2], x[2::2], width * f[2::2]], axis=1)
        deviations = x[1::2] - np.einsum("j,kjn->kn", _HERMITE_MIDDLE_WEIGHTS, ends)
        if n_parts >= _MAX_TIME_PARTS or (np.abs(deviations) <= _MIDDLE_TOLERANCE * unit).all():
            ends = np.concatenate([ends, 16.0 * deviations[:, None]], axis=1)
            return DenseOutput(times[::2], x[::2], z[::2], ends)
        n_parts *= 2
