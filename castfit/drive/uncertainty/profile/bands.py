"""Bands of predictions by profile likelihood: the values of an output that data and model do not exclude.

    prediction band    {z : PPL(z) <= T},            PPL(z) = min -2 log L with y(t) = z, above the least
    validation band    {z : VPL(z) <= T},            VPL(z) = min_g  PPL(g) + (z - g)^2 / s^2

with s the standard deviation of a new value (Kreutz, Raue and Timmer 2012).  The minimum over g is where

    PPL'(g) = 2 (z - g) / s^2      so that      z = g + s^2 PPL'(g) / 2,      VPL(z) = PPL(g) + s^2 PPL'(g)^2 / 4

and every point of the first profile gives one of the second.  If sigma is estimated, PPL is replaced by the rise of
the sum of squares in units of its estimate, as in an F test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from castfit._support.blas_threads import one_blas_thread
from castfit._support.status import InputError, Status
from castfit._support.time_limit import StopRequested
from castfit.drive.run.jobs import task, unpickle_job
from castfit.drive.run.loop import ProgressReport, run_tasks
from castfit.drive.run.options import RunOptions
from castfit.drive.uncertainty.profile.branches import (
    CROSSED,
    FAR,
    ZERO,
    ContinuationLimits,
    ProfileBranch,
    interpolate_delta,
    join_sides,
    threshold,
)
from castfit.drive.uncertainty.profile.continuation import follow_branches
from castfit.drive.uncertainty.profile.predictions import OfPrediction, PredictedOutput, prediction
from castfit.drive.uncertainty.profile.tasks import ProfileSetting, parts_along, with_fitted_sigmas
from castfit.fit.methods import Solver, Transcription
from castfit.problem.compiled_problem import CompiledProblem
from castfit.result.bands import deviation
from castfit.result.covariance import quantile
from castfit.result.residuals import unbiased_sigmas
from castfit.result.result import Result

_Parts = tuple[ProfileSetting, tuple[OfPrediction, ...], float]

_STEPS_TO_THRESHOLD = 2  # steps in which the root of the objective reaches the root of the threshold
_MIN_RELATIVE_WIDTH = 1e-10  # of the value: predictions with narrower linear bands depend on no estimate


@one_blas_thread
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def prediction_bands(
    result: Result,
    compiled_problem: CompiledProblem,
    linear: Mapping[str, Mapping[str, Any]],
    level: float,
    *,
    noise: bool,
    transcription: Transcription | str | None = None,
    solver: Solver | str | None = None,
    workers: int | Executor = 1,
) -> dict[str, dict[str, Any]]:
    """Return a prediction with entries ``y lower`` and ``y upper``, each by a profile of its own.

    The outputs of the problem include every predicted output.  `linear` is the prediction with linear bands, without
    noise; an entry whose band has no width depends on no estimate.  With `noise`, the bands refer to new values.
    Every profile is a task.

    Raises InputError if the best fit cannot be repeated by the transcription.
    """
    requested_transcription, chosen_solver = parts_along(transcription, solver, result, [])
    compiled_problem = with_fitted_sigmas(compiled_problem, result)
    targets, keys = _requested_predictions(compiled_problem, linear)
    bands = {name: {key: np.array(column, dtype=float) for key, column in columns.items()}
           for name, columns in linear.items()}  # fmt: skip
    if not (noise or targets):
        return bands
    statistic = "chi2" if result.absolute_sigma else "F"
    top = threshold(level, n_data=result.n_data, dof=result.dof, statistic=statistic)
    factor = quantile(level, np.inf if result.absolute_sigma else result.dof)
    sigmas = unbiased_sigmas(compiled_problem, result.residuals, result.normalised_residuals)

    def new_value_sigma(name: str, output: str, row: int) -> float:
        """Return the standard deviation of a new value; NaN if it is unknown."""
        condition = next(c for c in compiled_problem.conditions if c.name == name)
        return float(deviation(sigmas, compiled_problem, condition, output, linear[name])[row])

    if targets:
        setting = ProfileSetting.from_result(result, compiled_problem, requested_transcription, chosen_solver, targets)
        branches = _all_followed(setting, targets, top, workers)
        for (name, output, row), (branch, ends) in zip(keys, branches, strict=True):
            sigma = new_value_sigma(name, output, row) if noise else 0.0
            for side, end in zip((-1, 1), ends, strict=True):
                key = f"{output} {'lower' if side < 0 else 'upper'}"
                bands[name][key][row] = _limit(branch, side, end, top, sigma, result, factor)
    profiled_keys = set(keys)
    for name, output in _outputs_with_bands(linear) if noise else ():
        for row in range(np.size(linear[name]["time"])):
            if (name, output, row) not in profiled_keys:
                half_width = factor * new_value_sigma(name, output, row)
                bands[name][f"{output} lower"][row] -= half_width
                bands[name][f"{output} upper"][row] += half_width
    return bands


def _outputs_with_bands(linear: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """List the outputs that have bands, with their experiments."""
    return [(name, key) for name, columns in linear.items() for key in columns if f"{key} lower" in columns]


def _requested_predictions(
    compiled_problem: CompiledProblem, linear: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[OfPrediction, ...], list[tuple[str, str, int]]]:
    """Return the predictions that depend on an estimate, and their positions in the columns."""
    names = [c.name for c in compiled_problem.conditions]
    targets: list[OfPrediction] = []
    keys: list[tuple[str, str, int]] = []
    for name, output in _outputs_with_bands(linear):
        columns = linear[name]
        values = np.asarray(columns[output], dtype=float)
        width = np.asarray(columns[f"{output} upper"], dtype=float) - np.asarray(columns[f"{output} lower"])
        size = np.maximum(np.abs(values), 1e-3 * np.max(np.abs(values), initial=0.0))
        for row, time in enumerate(np.asarray(columns["time"], dtype=float).tolist()):
            if width[row] > _MIN_RELATIVE_WIDTH * size[row] and size[row] != 0.0:
                predicted_output = PredictedOutput(
                    names.index(name), output, time, float(values[row]), float(size[row])
                )
                targets.append(prediction(output, predicted_output, len(targets)))
                keys.append((name, output, row))
    return tuple(targets), keys


def _all_followed(
    setting: ProfileSetting, targets: tuple[OfPrediction, ...], top: float, workers: int | Executor
) -> list[tuple[ProfileBranch, tuple[str, str]]]:
    """Follow all predictions, in this process or on workers."""
    run = RunOptions(workers=workers).with_plain_numbers()
    job = run.pickle_job("predict", "problem, transcription and solver", (setting, targets, top))
    branches_by_index: dict[int, tuple[ProfileBranch, tuple[str, str]]] = {}

    def enter(n: int, outcome: Any) -> ProgressReport | None:
        if isinstance(outcome, InputError):
            raise outcome
        if not isinstance(outcome, tuple):
            message, predicted_output = getattr(outcome, "message", outcome), targets[n].prediction
            assert predicted_output is not None
            raise InputError("predict", [f"the profile of {predicted_output.output} at {predicted_output.time:g} was "
                                         f"not computed ({message}); use bands='linear'"])  # fmt: skip
        branches_by_index[n] = outcome
        return None

    stop_reason = run_tasks(
        run, profile_prediction, deque((n, (job, n)) for n in range(len(targets))), enter, limit=np.inf
    )
    if stop_reason is not None:
        raise StopRequested(stop_reason)
    return [branches_by_index[n] for n in range(len(targets))]


@task
def profile_prediction(job: bytes | _Parts, n: int) -> tuple[ProfileBranch, tuple[str, str]]:
    """Follow both sides of prediction n; return the branch of the best fit."""
    setting, targets, top = unpickle_job(job)
    start = setting.open_corrector(targets[n])
    if isinstance(start, Status):
        raise InputError("predict", [f"the best fit could not be reproduced ({start.value}); fit again, or use "
                                     "bands='linear'"])  # fmt: skip
    tracer, target, spot = start
    goal = ContinuationLimits((top,), parts=_STEPS_TO_THRESHOLD)
    # Elements that are refined below are not needed above.
    below, above = (follow_branches(replace(tracer), target, spot, side, goal).branches[0] for side in (-1, 1))
    return join_sides(below, above), (below.ends[0], above.ends[1])


def _limit(
    branch: ProfileBranch, side: int, end: str, top: float, sigma: float, result: Result, factor: float
) -> float:
    """Return the crossing of the threshold by the profile, or by that of a new value.

    Return an infinite value without a crossing, and NaN if it is unknown.
    """
    centre = float(branch.c[int(np.argmin(branch.delta))])
    end_c = float(branch.c[-1] if side > 0 else branch.c[0])
    if end in (FAR, ZERO):
        return side * np.inf
    if end != CROSSED:
        return np.nan
    if np.isnan(sigma) or not branch.reproduced(end_c, top):
        return np.nan

    def ratio(c: float) -> float:
        """Return the squared distance in units of t or normal quantiles, of which the threshold is factor^2."""
        rise = max(float(interpolate_delta(branch, np.array([c]))[0]), 0.0)
        if result.absolute_sigma:
            return rise
        return float(result.dof * np.expm1(rise / result.n_data))

    step = 1e-4 * abs(end_c - centre)

    def slope(c: float) -> float:
        ends = np.clip([c - step, c + step], branch.c[0], branch.c[-1])
        return (ratio(float(ends[1])) - ratio(float(ends[0]))) / float(ends[1] - ends[0])

    def rise_of_new(c: float) -> float:
        return ratio(c) + 0.25 * (sigma * slope(c)) ** 2 - factor**2

    crossing_c = float(scipy.optimize.brentq(rise_of_new, centre, end_c, xtol=1e-9 * max(abs(end_c - centre), 1e-300)))
    return crossing_c + 0.5 * sigma**2 * slope(crossing_c)
