"""Bands of predictions by profile likelihood: between which values an output lies that data and model do not exclude.

    prediction band    {z : PPL(z) <= T},            PPL(z) = min -2 log L with y(t) = z, above the least
    validation band    {z : VPL(z) <= T},            VPL(z) = min_g  PPL(g) + (z - g)^2 / s^2

with s the standard deviation of a new value (Kreutz, Raue and Timmer 2012).  The minimum over g is where

    PPL'(g) = 2 (z - g) / s^2      so that      z = g + s^2 PPL'(g) / 2,      VPL(z) = PPL(g) + s^2 PPL'(g)^2 / 4

and every point of the first profile gives one of the second.  Where sigma is estimated, PPL is replaced by the rise of
the sum of squares in units of its estimate, as in an F test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import optimize

from castfit._support.blas_threads import one_blas_thread
from castfit.result.bands_linear import deviation
from castfit.drive.uncertainty.profile.limits import at, joined, threshold
from castfit.drive.uncertainty.profile.path import follow
from castfit.drive.uncertainty.profile.predicted import Asked, OfPrediction, augmented, units
from castfit.drive.uncertainty.profile.setting import Setting, nodes_of, parts_along
from castfit.drive.uncertainty.profile.spots import CROSSED, FAR, ZERO, Branch, Goal
from castfit.drive.run.jobs import task, thaw
from castfit.drive.run.loop import Told, carry_out
from castfit.drive.run.options import RunOptions
from castfit.fit.methods import Solver, Transcription
from castfit.result.covariance import quantile
from castfit._support.status import InputError, Status

if TYPE_CHECKING:
    from castfit.problem.compiled_problem import Posed
    from castfit.result.result import Result

_Parts = tuple[Setting, tuple[Asked, ...], float]

_STEPS = 2  # in which the root of the objective comes to that of the threshold
_NO_REACH = 1e-10  # relative: what moves by less does not depend on what is estimated


@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def prediction_bands(
    result: Result,
    posed: Posed,
    linear: Mapping[str, Mapping[str, Any]],
    level: float,
    *,
    noise: bool,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    workers: int | Executor = 1,
) -> dict[str, dict[str, Any]]:
    """Return a prediction with entries ``y lower`` and ``y upper``, each by a profile of its own.

    Parameters
    ----------
    result : Result
    posed : Posed
        Its problem, with everything that is predicted among its outputs.
    linear : mapping
        The prediction with linear bands, without noise: what has none of any width depends on no estimate.
    level : float
    noise : bool
        Whether bands are those of new values.
    transcription, solver : optional
    workers : int or concurrent.futures.Executor
        Every profile is a task.

    Raises
    ------
    InputError
        If the best fit cannot be repeated by the transcription.
    """
    asked_transcription, chosen = parts_along(transcription, solver, [])
    posed = posed if posed.noise_parameters else posed.assuming(absolute_sigma=result.absolute_sigma)
    asked, keys = _asked(posed, linear)
    out = {name: {key: np.array(column, dtype=float) for key, column in columns.items()}
           for name, columns in linear.items()}  # fmt: skip
    if noise or asked:
        by = "chi2" if result.absolute_sigma else "F"
        top = threshold(level, n_data=result.n_data, dof=result.dof, by=by)
    else:
        return out
    if asked:
        setting = Setting(augmented(posed, asked), asked_transcription, chosen, result.theta,
                          nodes_of(posed, result.trajectories), True, tuple(asked))  # fmt: skip
        found = _all_followed(setting, asked, top, workers)
        for (name, output, row), (branch, ends) in zip(keys, found, strict=True):
            sigma = _deviation(result, posed, name, output, linear[name], row) if noise else 0.0
            factor = quantile(level, np.inf if result.absolute_sigma else result.dof)
            for side, end in zip((-1, 1), ends, strict=True):
                key = f"{output} {'lower' if side < 0 else 'upper'}"
                out[name][key][row] = _limit(branch, side, end, top, sigma, result, factor)
    known = set(keys)
    for name, columns in linear.items():
        for output in (key for key in columns if f"{key} lower" in columns):
            for row in range(np.size(columns["time"])):
                if noise and (name, output, row) not in known:
                    factor = quantile(level, np.inf if result.absolute_sigma else result.dof)
                    reach = factor * _deviation(result, posed, name, output, columns, row)
                    out[name][f"{output} lower"][row] -= reach
                    out[name][f"{output} upper"][row] += reach
    return out


def _asked(posed: Posed, linear: Mapping[str, Mapping[str, Any]]) -> tuple[list[Asked], list[tuple[str, str, int]]]:
    """Return every prediction that depends on an estimate, and where in the columns it stands."""
    names = [c.name for c in posed.conditions]
    rows: list[tuple[int, str, float, float, float]] = []
    keys: list[tuple[str, str, int]] = []
    for name, columns in linear.items():
        for output in (key for key in columns if f"{key} lower" in columns):
            values = np.asarray(columns[output], dtype=float)
            width = np.asarray(columns[f"{output} upper"], dtype=float) - np.asarray(columns[f"{output} lower"])
            size = np.maximum(np.abs(values), 1e-3 * np.max(np.abs(values), initial=0.0))
            for row, when in enumerate(np.asarray(columns["time"], dtype=float).tolist()):
                if not width[row] > _NO_REACH * size[row] or size[row] == 0.0:
                    continue
                rows.append((names.index(name), output, when, float(values[row]), float(size[row])))
                keys.append((name, output, row))
    sizes = units(np.array([r[3] for r in rows]), np.array([r[4] for r in rows]))
    return [Asked(*row[:4], unit) for row, unit in zip(rows, sizes.tolist(), strict=True)], keys


def _all_followed(
    setting: Setting, asked: Sequence[Asked], top: float, workers: int | Executor
) -> list[tuple[Branch, tuple[str, str]]]:
    """Follow every prediction, wherever there is room."""
    run = RunOptions(workers=workers).cleaned()
    job = run.freeze("predict", "problem, transcription and solver", (setting, tuple(asked), top))
    found: dict[int, tuple[Branch, tuple[str, str]]] = {}

    def enter(n: int, outcome: Any) -> Told | None:
        if isinstance(outcome, InputError):
            raise outcome
        if not isinstance(outcome, tuple):
            said = getattr(outcome, "message", outcome)
            raise InputError("predict", [f"{asked[n].output} at {asked[n].time:g} was not followed ({said}); take "
                                         "bands='linear'"])  # fmt: skip
        found[n] = outcome
        return None

    stopped = carry_out(run, one_prediction, deque((n, (job, n)) for n in range(len(asked))), enter, limit=np.inf)
    if stopped is not None:
        raise KeyboardInterrupt
    return [found[n] for n in range(len(asked))]


@task
def one_prediction(job: bytes | _Parts, n: int) -> tuple[Branch, tuple[str, str]]:
    """Follow both sides of prediction n; return the branch of the best fit."""
    setting, asked, top = thaw(job)
    return _followed(setting, n, asked[n], top)


def _followed(setting: Setting, n: int, asked: Asked, top: float) -> tuple[Branch, tuple[str, str]]:
    """Follow both sides of one prediction; return the branch of the best fit."""
    target = OfPrediction(asked.output, "prediction", False, -np.inf, np.inf, asked.unit, n=n)
    first = setting.first(target)
    tracer = setting.tracer(np.inf)
    if isinstance(first, Status) or isinstance(tracer, Status):
        status = first if isinstance(first, Status) else tracer
        assert isinstance(status, Status)
        raise InputError("predict", [f"the best fit could not be repeated ({status.value}); fit again, or take "
                                     "bands='linear'"])  # fmt: skip
    held, spot = first
    goal = Goal((top,), parts=_STEPS)
    below = follow(tracer, held, spot, -1, goal)
    again = setting.tracer(np.inf)  # elements that were refined below are not needed above
    above = follow(tracer if isinstance(again, Status) else again, held, spot, 1, goal)
    one, other = below.branches[0], above.branches[0]
    return joined(one, other), (one.ends[0], other.ends[1])


def _limit(branch: Branch, side: int, end: str, top: float, sigma: float, result: Result, factor: float) -> float:
    """Return where the profile, or that of a new value, crosses its threshold; infinite where it never does."""
    centre = float(branch.c[int(np.argmin(branch.delta))])
    last = float(branch.c[-1] if side > 0 else branch.c[0])
    if end in (FAR, ZERO):
        return side * np.inf
    if end != CROSSED:
        return np.nan
    if np.isnan(sigma) or not branch.reproduced(last, top):
        return np.nan

    def ratio(c: float) -> float:
        """Return the squared distance in units of t or normal quantiles, of which the threshold is factor^2."""
        rise = max(float(at(branch, np.array([c]))[0]), 0.0)
        if result.absolute_sigma:
            return rise
        return float(result.dof * np.expm1(rise / result.n_data))

    step = 1e-4 * abs(last - centre)

    def slope(c: float) -> float:
        inside = np.clip([c - step, c + step], branch.c[0], branch.c[-1])
        return (ratio(float(inside[1])) - ratio(float(inside[0]))) / float(inside[1] - inside[0])

    def rise_of_new(c: float) -> float:
        return ratio(c) + 0.25 * (sigma * slope(c)) ** 2 - factor**2

    found = float(optimize.brentq(rise_of_new, centre, last, xtol=1e-9 * max(abs(last - centre), 1e-300)))
    return found + 0.5 * sigma**2 * slope(found)


def _deviation(result: Result, posed: Posed, name: str, output: str, columns: Mapping[str, Any], row: int) -> float:
    """Return the standard deviation of a new value, NaN where nothing is known of it."""
    condition = next(c for c in posed.conditions if c.name == name)
    return float(deviation(result.statistics, posed, condition, output, columns)[row])
