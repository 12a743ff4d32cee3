"""Error estimates of collocation elements, and selection of the elements to refine.

Every element is solved again from its own node, and its polynomial compared with that at the element's end and at the
measured points inside.  Halving an element divides these local errors by 2**e with (Hairer, Norsett and Wanner 1993,
theorem II.7.10)

    e = 2 d        at the end, Radau points
    e = 2 d + 1    at the end, Legendre points
    e = d + 1      inside

Algebraic states follow from the differential ones at every collocation point, so that they are as accurate there as
these are, but where their equations are steep: they are compared at the last of these points, which with Radau points
is the element's end; and where they are measured or constrained, at those times, where they are of degree d - 1.

While elements are refined they are solved again by collocation of degree d + 2 at Radau points, whose own errors are
smaller by four orders: one Newton step from the polynomial y for all elements at once, and one of the elements' own
degree, so that what the search left of its equations is no error of the elements,

    A delta = d(y),    A = d d / d w,    error = delta_{d+2} - delta_d.

That is a tenth of the work of an integrator with error control, which does what remains: elements whose equations
cannot be evaluated there, and, once the search has ended, the verification (see castfit.fit.verification).
"""

from __future__ import annotations

from contextlib import suppress

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arrays import Array
from castfit._support.records import dataclass
from castfit.integrate import Integrator, IntegratorOptions, Lanes, shift_cubics
from castfit.integrate.integrator import integrator_of
from castfit.solve.matrices import BlockLU
from castfit.transcribe.collocation_problem import CollocationProblem
from castfit.transcribe.elements import CollocationScheme, ElementConstants, PointEquations, table

_MAX_ELEMENT_SPLIT = 8  # parts of an element per round: far from the final mesh the orders do not hold yet
_REFERENCE_OPTIONS = IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-12)
_N_EXTRA_POINTS = 2  # additional collocation points of the polynomials that estimate the errors
_MAX_BATCH_ENTRIES = 1_000_000  # number of matrix entries that are factorised at once
_ERROR_SAFETY_FACTOR = 0.1  # of the tolerance: calcium ends with 6 % more elements, after two rounds less, than with 1


@dataclass(frozen=True)
class ElementErrors:
    """Local errors of one experiment's elements, relative to the largest value of each state over the trajectory.

    end_errors : (K,)      at the element's end
    inside_errors : (K,)   largest at the measured points inside; 0 if nothing is measured there; of algebraic states
                           at the last collocation point of Legendre's, and at both ends if they are measured there
    table : Table   the polynomials

    Both are the largest over all states, inf where the element could not be integrated.
    """

    end_errors: Array
    inside_errors: Array
    table: CollocationScheme

    @property
    def largest(self) -> float:
        """The largest error of all."""
        return float(np.maximum(self.end_errors, self.inside_errors).max())


def element_errors(
    staged: CollocationProblem, v: Array, options: IntegratorOptions = _REFERENCE_OPTIONS
) -> tuple[ElementErrors, ...]:
    """Compare the elements at v (n_v,) with an integrator, per experiment.

    CVODES errs by up to ten times its relative tolerance over an element: errors below that are not seen.
    """
    integrator = integrator_of(staged.problem.model, [1.0], options)
    return tuple(
        checked.errors(checked.integration_errors(integrator, np.arange(checked.k.size)))
        for checked in _build_checks(staged, v)
    )


def estimated_errors(
    staged: CollocationProblem, v: Array, options: IntegratorOptions = _REFERENCE_OPTIONS
) -> tuple[ElementErrors, ...]:
    """Compare the elements at v (n_v,) with polynomials of higher degree, per experiment.

    If the polynomials are not finite, or if the equations contain time itself, an integrator with the options is used:
    polynomials miss a short pulse between the collocation points.
    """
    system = staged.problem.model.system
    if ca.depends_on(ca.vertcat(system.ode, system.alg), system.t):
        return element_errors(staged, v, options)
    errors: list[ElementErrors] = []
    for checked in _build_checks(staged, v):
        difference = checked.higher_degree_errors(staged.equations)
        failed_points = np.flatnonzero(~np.isfinite(difference).all(axis=1))
        if failed_points.size:
            integrator = integrator_of(staged.problem.model, [1.0], options)
            difference[failed_points] = checked.integration_errors(integrator, failed_points)
        errors.append(checked.errors(difference))
    return tuple(errors)


def refine(edges: Array, errors: ElementErrors, tolerance: float) -> Array:
    """Return boundaries (K' + 1,) that contain `edges` (K + 1,) and let no error exceed the tolerance.

    Each element beyond the tolerance is divided into equal parts, at most 8, such that by the orders above a tenth of
    the tolerance remains; one that could not be integrated is halved.  Call again with the errors of the solution on
    the new elements.
    """
    scheme, aim = errors.table, _ERROR_SAFETY_FACTOR * tolerance
    at_end = (errors.end_errors / aim) ** (1 / (scheme.order + 1))
    inside = (errors.inside_errors / aim) ** (1 / (scheme.degree + 1))
    required_parts = np.ceil(np.maximum(at_end, inside))
    split = np.minimum(np.where(np.isinf(required_parts), 2, required_parts), _MAX_ELEMENT_SPLIT)
    parts = np.where(np.maximum(errors.end_errors, errors.inside_errors) > tolerance, split, 1).astype(np.intp)
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
        y, edges, natural = elements.states(s, w), elements.edges, condition.link.natural(q)
        p = elements.division.stage_parameters(natural.p, natural.e)
        begins = np.append(0.0, points[:-1]) * np.diff(edges)[:, None]
        trajectories = integrator.values(
            Lanes(
                start=edges[:-1],
                duration=points[-1] * np.diff(edges),
                x0=s,
                p=p,
                u=shift_cubics(np.repeat(elements.cubics[:, None], points.size, axis=1), begins[..., None]),
                z0=y[:, 1, elements.n_x :],
                unit=np.broadcast_to(staged.magnitude, (s.shape[0], elements.n_e)),
            )
        )
        exact = np.concatenate([trajectories.x, trajectories.z], axis=2).reshape(w.shape)
        start[chain.inner] = np.where(np.isfinite(exact.sum(axis=1, keepdims=True)), exact, w)
    return np.clip(start, staged.lower, staged.upper)


@dataclass(frozen=True)
class _ElementCheck:
    """One experiment's elements at a solution, and the n points where they are compared.

    elements : Elements
    y : (K, d + 1, n_e)     the elements' states
    p : (K, n_p)            parameters of the model on each element
    point_parameters : array       parameters as the elements' equations take them
    magnitude : (n_e,)      of every state
    k, tau : (n,)           the points: every element's end, then the measured points inside, then every element's last
                            collocation point if algebraic states are compared there
    last_points_start : int where these begin
    has_observed_algebraic  whether algebraic states are measured or constrained
    """

    elements: ElementConstants
    y: Array
    p: Array
    point_parameters: Array
    magnitude: Array
    k: NDArray[np.intp]
    tau: Array
    last_points_start: int
    has_observed_algebraic: bool

    def integration_errors(self, integrator: Integrator, points: NDArray[np.intp]) -> Array:
        """Return polynomial minus integration at some of the points, (m, n_e); NaN where that failed."""
        elements, k, tau, n_x = self.elements, self.k[points], self.tau[points], self.elements.n_x
        table, y = elements.table, self.y
        lanes = Lanes(
            start=elements.edges[k],
            duration=tau * np.diff(elements.edges)[k],
            x0=y[k, 0, :n_x],
            p=self.p[k],
            u=elements.cubics[k][:, None],
            z0=y[k, 1, n_x:],  # extrapolated to the node they may lie where the equations have no values
            unit=np.broadcast_to(self.magnitude, (k.size, self.magnitude.size)),
        )
        trajectories = integrator.values(lanes)
        x = np.einsum("lj,lje->le", table.state_basis(tau), y[k, :, :n_x])
        z = np.einsum("lj,lje->le", table.algebraic_basis(tau), y[k, 1:, n_x:])
        return np.concatenate([x - trajectories.x[:, -1], z - trajectories.z[:, -1]], axis=1)

    def higher_degree_errors(self, equations: PointEquations) -> Array:
        """Return polynomial minus one of higher degree at all points, (n, n_e); not finite where that has no values."""
        elements, n_x = self.elements, self.elements.n_x
        finer = elements.with_table(table("radau", elements.table.degree + _N_EXTRA_POINTS))
        y = np.zeros((self.y.shape[0], finer.table.degree + 1, elements.n_e))
        y[..., :n_x] = elements.table.state_basis(finer.table.nodes) @ self.y[..., :n_x]
        y[:, 1:, n_x:] = elements.table.algebraic_basis(finer.table.points) @ self.y[:, 1:, n_x:]
        with np.errstate(all="ignore"):
            fine_step, coarse_step = (
                self._newton(discretization, equations, states)
                for discretization, states in ((finer, y), (elements, self.y))
            )
            return self._at_points(finer, fine_step) - self._at_points(elements, coarse_step)

    def _newton(self, elements: ElementConstants, equations: PointEquations, y: Array) -> Array:
        """Return the Newton step, to be subtracted from y, of every element, (K, d, n_e); NaN where it has none.

        Their magnitudes scale it: units of states decades apart would decide which pivots are taken.
        """
        defects = elements.defects(equations, y, self.point_parameters)
        flow = elements.flow(equations, y, self.point_parameters)
        step = np.full_like(defects, np.nan)
        rows = defects[0].size
        batch_size = max(_MAX_BATCH_ENTRIES // rows**2, 1)
        unit = np.tile(self.magnitude, rows // elements.n_e)
        for start in range(0, len(step), batch_size):
            batch = slice(start, start + batch_size)
            D = elements.inner_matrix(flow[batch])
            with suppress(np.linalg.LinAlgError):  # one of them is not finite
                factors = BlockLU.factorize(D, np.broadcast_to(unit, D.shape[:2]))
                step[batch] = factors.solve(defects[batch].reshape(-1, rows, 1)).reshape(-1, *defects.shape[1:])
                step[start + np.array(factors.singular, dtype=np.intp)] = np.nan
        return step

    def _at_points(self, elements: ElementConstants, step: Array) -> Array:
        """Evaluate the polynomials through steps (K, d, n_e), zero at the nodes, at the points, (n, n_e)."""
        n_x = elements.n_x
        x = np.einsum("lj,lje->le", elements.table.state_basis(self.tau)[:, 1:], step[self.k, :, :n_x])
        z = np.einsum("lj,lje->le", elements.table.algebraic_basis(self.tau), step[self.k, :, n_x:])
        return np.concatenate([x, z], axis=1)

    def errors(self, difference: Array) -> ElementErrors:
        """Return the errors of the elements from the differences (n, n_e) at the points."""
        stages, n_x = self.y.shape[0], self.elements.n_x
        relative = np.abs(difference) / self.magnitude
        error, of_z = relative[:, :n_x].max(axis=1, initial=0.0), relative[:, n_x:].max(axis=1, initial=0.0)
        end, inside, measured = error[:stages], np.zeros(stages), slice(stages, self.last_points_start)
        with np.errstate(invalid="ignore"):  # NaN where nothing could be integrated
            np.maximum.at(inside, self.k[measured], error[measured])
            if self.has_observed_algebraic:
                np.maximum.at(inside, self.k, of_z)
            elif self.last_points_start < self.k.size:
                np.maximum.at(inside, self.k[self.last_points_start :], of_z[self.last_points_start :])
            else:
                end = np.maximum(end, of_z[:stages])
        return ElementErrors(_replace_nan_by_inf(end), _replace_nan_by_inf(inside), self.elements.table)


def _build_checks(staged: CollocationProblem, v: Array) -> list[_ElementCheck]:
    checks: list[_ElementCheck] = []
    problem = staged.problem
    constrained = {s.name() for c in problem.constraints for s in ca.symvar(c.expression)}
    observes_algebraic = ca.depends_on(problem.observed, problem.model.system.z) or not constrained.isdisjoint(
        problem.model.algebraic_states
    )
    points = staged.table.points
    last_point = points[-1:] if problem.model.algebraic_states and points[-1] < 1.0 else points[:0]
    for condition, chain, elements in zip(
        staged.problem.conditions, staged.layout.chains, staged.elements, strict=True
    ):
        q, s, w = chain.local(v)
        y, tau = elements.states(s, w), elements.tau
        # Where an element begins its algebraic states are extrapolated.
        measured = (elements.measured.weight > 0).any(axis=2) | (elements.constraint_mask > 0).any(axis=2)
        measured &= (tau >= 0 if observes_algebraic else tau > 0) & (tau < 1)
        all_elements = np.arange(s.shape[0], dtype=np.intp)
        # A state that stays far below the magnitude that its rate can produce is a rounding error.
        magnitude = np.maximum(np.abs(y).max(axis=(0, 1)), 1e-8 * staged.magnitude)
        k = np.concatenate([all_elements, np.argwhere(measured)[:, 0], np.repeat(all_elements, last_point.size)])
        point_tau = np.concatenate([np.ones(all_elements.size), tau[measured], np.tile(last_point, all_elements.size)])
        natural = condition.link.natural(q)
        p, at_points = elements.division.stage_parameters(natural.p, natural.e), elements.parameters(natural)
        checked = _ElementCheck(
            elements.with_event_rows(natural.e),
            y,
            p,
            at_points,
            magnitude,
            k,
            point_tau,
            k.size - all_elements.size * last_point.size,
            observes_algebraic,
        )
        checks.append(checked)
    return checks


def _replace_nan_by_inf(errors: Array) -> Array:
    return np.where(np.isfinite(errors), errors, np.inf)
