"""Diagnosis of failed lanes: the time that integration reaches, and the message for the user."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from castfit.integrate.algebraic import AlgebraicPoints
from castfit.integrate.lanes import IntegrationStop, LaneFailure, Lanes, shift_cubics

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.integrate.integrator import Integrator

PROBE_STEPS = 300  # steps of one probe; with the number of probes, this bounds the work
_N_PROBE_TRIES = 60  # number of probes in addition to one per grid interval
_STOP_TIME_RTOL = 1e-6  # accuracy of the time of failure, relative to its grid interval

_SINGULAR_VALUE_RTOL = 1e-12  # singular values below it, relative to the largest, count as rounding errors
_MIN_NULL_VECTOR_ENTRY = 1e-6  # entry of a null vector above which its state is named

_CAUSES = (  # searched for in this order: first in CasADi's error, then in what was printed
    ("too_many_steps", r"TOO_MUCH_WORK"),
    ("step_size", r"ERR_FAIL|CONV_FAIL|TOO_MUCH_ACC"),
    ("not_finite", r"RHSFUNC|RES_FAIL|RES_ERR|(NaN|Inf) detected"),
    ("consistent_initialisation", r"IDACalcIC"),
    ("newton", r"rootfinder"),
)
REASONS = {
    "step_size": "the steps became too short",
    "too_many_steps": "too many steps are needed",
    "not_finite": "the right-hand side is not finite",
    "consistent_initialisation": "no consistent algebraic states were found",
    "algebraic_equations": "the algebraic equations have no solution nearby",
    "newton": "collocation's equations could not be solved",
}
_REMEDY = (
    "Start closer to the solution, bound the parameters, or use MultipleShooting or Collocation "
    "with states started from the data."
)


def diagnose(error: str, log: list[str], start: float, duration: float, integrator: Integrator) -> tuple[str, str]:
    """Return cause and detail of a failure from CasADi's error and the lines it printed."""
    printed = "\n".join(log)
    causes = (cause for text in (error, printed) for cause, pattern in _CAUSES if re.search(pattern, text))
    # CasADi's Rosenbrock integrator says nothing when it runs out of steps or they become too short.
    cause = next(causes, "step_size" if integrator.method == "rosenbrock" else "solver")
    if cause == "consistent_initialisation" and not integrator.n_z:
        cause = "solver"  # IDAS found no derivatives of the states; no algebraic states exist
    details: list[str] = []
    place = re.search(r"(NaN|Inf) detected for output (?:\w*_)?(ode|alg), at \(row (\d+)", error + printed)
    if cause == "not_finite" and place:
        names = integrator.state_names if place[2] == "ode" else integrator.algebraic_names
        details.append(f"{place[1]} in the equation of {names[int(place[3])]}")
    details += re.findall(r'returned "(\w+)"', error)
    times = re.findall(r"At t = ([-+.\deE]+)", printed)
    if times:
        details.append(f"at t = {start + duration * float(times[-1].rstrip('.')):g}")
    return cause, ", ".join(details) or REASONS.get(cause, error.splitlines()[-1])


def locate(probe: Integrator, lane: Lanes, grid: Array, failure: LaneFailure) -> IntegrationStop:
    """Integrate over the lane's grid intervals, then in shorter and shorter pieces up to the time of failure.

    probe : integrates over one interval (its grid is [1]) with at most `PROBE_STEPS` steps
    lane : one lane
    grid (m,) : its relative output times
    failure : the reported failure
    """
    edges = np.append(0.0, grid)
    stop, tries = lane, grid.size + _N_PROBE_TRIES
    for j in np.flatnonzero(np.diff(edges) > 0.0):
        begin, width = lane.start + lane.duration * edges[j], lane.duration * (edges[j + 1] - edges[j])
        interval = replace(lane, start=begin, duration=width, u=lane.u[:, j : j + 1])
        stop, tries = _approach_stop(probe, interval, tries)
        if stop.start[0] < (begin + width)[0]:
            break
        lane = replace(lane, x0=stop.x0, z0=stop.z0)
    return _describe_stop(probe, stop, failure)


def _approach_stop(probe: Integrator, interval: Lanes, tries: int) -> tuple[Lanes, int]:
    """Integrate in pieces, halved at every failure; return a lane of zero duration at the stop and the tries left."""
    begin, width = interval.start, interval.duration
    current_lane, piece = interval, width
    while tries > 0 and piece[0] > _STOP_TIME_RTOL * width[0]:
        tries -= 1
        u = shift_cubics(interval.u, (current_lane.start - begin)[:, None, None])
        end = probe.values(replace(current_lane, duration=piece, u=u))
        if end.failures:
            if end.failures[0].cause == "consistent_initialisation" and not _has_consistent_start(
                probe, replace(current_lane, u=u)
            ):
                break  # shorter pieces fail as well
            piece = 0.5 * piece
            continue
        current_lane = replace(current_lane, start=current_lane.start + piece, x0=end.x[:, -1], z0=end.z[:, -1])
        piece = np.minimum(piece, begin + width - current_lane.start)
    u = shift_cubics(interval.u, (current_lane.start - begin)[:, None, None])
    return replace(current_lane, duration=np.zeros(1), u=u), tries


def _has_consistent_start(probe: Integrator, lane: Lanes) -> bool:
    """Whether the algebraic equations have a solution near their guess at the start of a lane."""
    points = AlgebraicPoints(lane.start, lane.x0, lane.p, lane.u[:, 0, :, 0])
    return bool(probe.algebra.solve(points, lane.z0, lane.units[1])[1].all())


def _describe_stop(probe: Integrator, stop: Lanes, failure: LaneFailure) -> IntegrationStop:
    """Name the fastest-changing state at the time of failure, or the algebraic equation with the largest residual."""
    time, x, z, p, u = float(stop.start[0]), stop.x0[0], stop.z0[0], stop.p[0], stop.u[0, 0, :, 0]
    rate, residual = (np.asarray(f, dtype=float).ravel() for f in cast("list[Any]", probe.graph(time, x, z, p, u)))
    reason = REASONS.get(failure.cause, failure.detail)
    detail = f" ({failure.detail})" if failure.detail != reason else ""
    summary = f"Integration stopped at t = {time:.5g}: {reason}{detail}."
    if failure.cause in ("consistent_initialisation", "algebraic_equations"):
        points = AlgebraicPoints(stop.start, stop.x0, stop.p, stop.u[:, 0, :, 0])
        gain = probe.algebra.slopes(points, stop.z0)[0][0] * stop.units[1][0]  # by each state's magnitude
        size = np.abs(gain).sum(axis=1)
        i = _argmax_abs(np.divide(residual, size, out=np.full_like(residual, np.inf), where=size > 0.0))
        name = probe.algebraic_names[i]
        remedy = (
            f"The equation of {name} is off by {residual[i]:.2g} there; give closer guesses of the algebraic states."
        )
        undetermined_names = [probe.algebraic_names[j] for j in _find_undetermined(gain)]
        if undetermined_names:
            remedy += (
                f" At the guess dg/dz is singular: {', '.join(undetermined_names)} "
                "can move without changing any equation."
            )
        return IntegrationStop(time, name, float(z[i]), f"{summary} {remedy}")
    i = _argmax_abs(rate / (np.abs(x) + probe.options.absolute_tolerance * stop.units[0][0]))
    name = probe.state_names[i]
    fastest_state = f"There {name} = {x[i]:.3g} changes fastest, by {rate[i]:.2g} per unit of time."
    return IntegrationStop(time, name, float(x[i]), f"{summary} {fastest_state} {_REMEDY}")


def _find_undetermined(gain: Array) -> list[int]:
    """Return the states with entries in the null vectors of a singular matrix (n, n)."""
    size = np.abs(gain).max(axis=1, keepdims=True)
    if not np.isfinite(gain).all():
        return []
    _, singular, v = np.linalg.svd(gain / np.where(size > 0.0, size, 1.0))
    null = v[singular <= _SINGULAR_VALUE_RTOL * max(singular[0], _SINGULAR_VALUE_RTOL)]
    return np.flatnonzero((np.abs(null) > _MIN_NULL_VECTOR_ENTRY).any(axis=0)).tolist()


def _argmax_abs(values: Array) -> int:
    """Return the position of the value of largest size; NaN is largest of all."""
    return int(np.argmax(np.where(np.isnan(values), np.inf, np.abs(values))))
