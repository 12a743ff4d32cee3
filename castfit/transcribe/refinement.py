"""How accurate collocation elements are, and where more of them are needed.

Every element is integrated from its own node with error control, and the polynomial compared with that at the
element's end and at the measured points inside.  Halving an element divides these local errors by 2**e with
(Hairer, Norsett and Wanner 1993, theorem II.7.10)

    e = 2 d        at the end, Radau points
    e = 2 d + 1    at the end, Legendre points
    e = d + 1      inside
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import casadi as ca
import numpy as np

from castfit.integrate import IntegratorOptions, Lanes, shift_cubics
from castfit.integrate.integrators import integrator_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.integrate import Integrator
    from castfit.transcribe.collocation_problem import CollocationProblem
    from castfit.transcribe.elements import Elements
    from castfit.transcribe.lagrange import Table

    Array = NDArray[np.float64]

_LARGEST_SPLIT = 8  # parts per round: far from the solution's mesh the orders do not hold yet
_TIGHT = IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-12)
_MARGIN = 0.1  # calcium ends with 6 % more elements and after two rounds less than with 1


@dataclass(frozen=True)
class ElementErrors:
    """Local errors of one experiment's elements, relative to the largest value of each state over the trajectory.

    end : (K,)      at the element's end
    inside : (K,)   at the measured points inside, the largest; 0 where nothing is measured inside; algebraic states,
                    where they are measured, at the end too
    table : Table   the polynomials

    Both are the largest over all states, inf where the element could not be integrated.
    """

    end: Array
    inside: Array
    table: Table

    @property
    def largest(self) -> float:
        """The largest error of all."""
        return float(np.maximum(self.end, self.inside).max())


def element_errors(
    staged: CollocationProblem, v: Array, options: IntegratorOptions = _TIGHT
) -> tuple[ElementErrors, ...]:
    """Compare the elements at v (n_v,) with an integrator, per experiment.

    CVODES errs by up to ten times its relative tolerance over an element: errors below that are not seen.
    """
    integrator = integrator_of(staged.problem.model, [1.0], options)
    found: list[ElementErrors] = []
    observed = ca.depends_on(staged.problem.observed, staged.problem.model.system.z)
    for condition, chain, elements in zip(
        staged.problem.conditions, staged.layout.chains, staged.elements, strict=True
    ):
        q, s, w = chain.local(v)
        p = condition.link.natural(q).p
        found.append(_compare(integrator, elements, elements.states(s, w), p, staged.magnitude, observed=observed))
    return tuple(found)


def refine(edges: Array, errors: ElementErrors, tolerance: float) -> Array:
    """Return boundaries (K' + 1,) that contain `edges` (K + 1,) and let no error exceed the tolerance.

    Each element beyond the tolerance is divided into equal parts, at most 8, such that by the orders above a tenth of
    the tolerance remains; one that could not be integrated is halved.  Call again with the errors of the solution on
    the new elements.
    """
    chosen, aim = errors.table, _MARGIN * tolerance
    at_end = (errors.end / aim) ** (1 / (chosen.order + 1))
    inside = (errors.inside / aim) ** (1 / (chosen.degree + 1))
    wanted = np.ceil(np.maximum(at_end, inside))
    split = np.minimum(np.where(np.isinf(wanted), 2, wanted), _LARGEST_SPLIT)
    parts = np.where(np.maximum(errors.end, errors.inside) > tolerance, split, 1).astype(np.intp)
    spans = zip(edges[:-1], edges[1:], parts, strict=True)
    pieces: list[Array] = [np.linspace(left, right, n, endpoint=False) for left, right, n in spans]
    return np.concatenate([*pieces, edges[-1:]])


def inner_integrated(staged: CollocationProblem, options: IntegratorOptions) -> Array:
    """Return the start (n_v,) with the states inside each element integrated from its node, where that is possible.

    Data that span decades of time are interpolated with rates that are all noise; from there the elements' equations
    lead nowhere (Robertson's problem), from integrated states they do.
    """
    start = staged.start.copy()
    points = staged.table.points
    integrator = integrator_of(staged.problem.model, points / points[-1], options)
    for condition, chain, elements in zip(
        staged.problem.conditions, staged.layout.chains, staged.elements, strict=True
    ):
        q, s, w = chain.local(start)
        y, edges = elements.states(s, w), elements.edges
        p = condition.link.natural(q).p
        begins = np.append(0.0, points[:-1]) * np.diff(edges)[:, None]
        found = integrator.values(
            Lanes(
                start=edges[:-1],
                duration=points[-1] * np.diff(edges),
                x0=s,
                p=np.broadcast_to(p, (s.shape[0], p.size)),
                u=shift_cubics(np.repeat(elements.cubics[:, None], points.size, axis=1), begins[..., None]),
                z0=y[:, 1, elements.n_x :],
                unit=np.broadcast_to(staged.magnitude, (s.shape[0], elements.n_e)),
            )
        )
        exact = np.concatenate([found.x, found.z], axis=2).reshape(w.shape)
        start[chain.inner] = np.where(np.isfinite(exact.sum(axis=1, keepdims=True)), exact, w)
    return np.clip(start, staged.lower, staged.upper)


def _compare(
    integrator: Integrator, elements: Elements, y: Array, p: Array, unit: Array, *, observed: bool
) -> ElementErrors:
    """Integrate one lane to each element's end and to each measured point inside.

    unit (n_e,) is typical of the states; `observed` tells whether algebraic states are.
    """
    table, n_x, stages = elements.table, elements.n_x, y.shape[0]
    h, tau = np.diff(elements.edges), elements.tau
    measured = (elements.measured.weight > 0).any(axis=2) & (tau > 0) & (tau < 1)
    every = np.arange(stages, dtype=np.intp)
    k = np.append(every, np.argwhere(measured)[:, 0])
    at = np.concatenate([np.ones(stages), tau[measured]])
    # What stays far below the magnitude that its rate could give it is rounding.
    magnitude = np.maximum(np.abs(y).max(axis=(0, 1)), 1e-8 * unit)
    z_start = np.einsum("j,kje->ke", table.algebraic_basis(0.0), y[:, 1:, n_x:])
    lanes = Lanes(
        start=elements.edges[k],
        duration=at * h[k],
        x0=y[k, 0, :n_x],
        p=np.broadcast_to(p, (k.size, p.size)),
        u=elements.cubics[k][:, None],
        z0=z_start[k],
        unit=np.broadcast_to(magnitude, (k.size, magnitude.size)),
    )
    found = integrator.values(lanes)
    x = np.einsum("lj,lje->le", table.state_basis(at), y[k, :, :n_x])
    z = np.einsum("lj,lje->le", table.algebraic_basis(at), y[k, 1:, n_x:])
    error, of_z = (
        (np.abs(approximate - exact[:, -1]) / unit).max(axis=1, initial=0.0)
        for approximate, exact, unit in ((x, found.x, magnitude[:n_x]), (z, found.z, magnitude[n_x:]))
    )
    inside = np.zeros(stages)
    np.maximum.at(inside, k[stages:], error[stages:])
    if observed:
        np.maximum.at(inside, k, of_z)
    return ElementErrors(_or_infinite(error[:stages]), _or_infinite(inside), table)


def _or_infinite(errors: Array) -> Array:
    """Take infinity for what could not be integrated."""
    return np.where(np.isfinite(errors), errors, np.inf)
