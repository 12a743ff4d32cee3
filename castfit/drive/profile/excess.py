"""The objective with a quantity held at one value: a point of its profile, by one constrained fit.

A value lies in the confidence interval of a profile if the objective there does not exceed the threshold: the
likelihood-ratio test, which needs no path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from castfit.drive.profile.path import Spot
from castfit.drive.profile.reading import read_targets
from castfit.drive.profile.setting import Setting, nodes_of
from castfit.status import Status, check

if TYPE_CHECKING:
    from castfit.drive.profile.path import Tracer
    from castfit.drive.profile.targets import Target
    from castfit.methods import Solver, Transcription
    from castfit.result import Result

_SHORTEST = 1.0 / 16.0  # of the way to the value: a step that still fails ends the attempt


def excess(
    result: Result, values: Mapping[str, float], transcription: Transcription, solver: Solver
) -> dict[str, float]:
    """Return by how much -2 log L is above its minimum where each quantity by itself is held at a value.

    Parameters
    ----------
    result : Result
        With its problem.
    values : mapping from name to value
        Natural scale; names as in `castfit.profile`.
    transcription : Transcription
    solver : Solver

    Returns
    -------
    dict
        NaN where no fit with the value held succeeded.

    Raises
    ------
    InputError
        For unknown names.
    """
    mistakes: list[str] = []
    problem = result.problem
    check("excess", ["the result has no problem; use result.with_problem(problem)"] if problem is None else [])
    assert problem is not None
    posed = problem.posed
    posed = posed if posed.noise_parameters else posed.assuming(absolute_sigma=result.absolute_sigma)
    targets = read_targets(result, posed, list(values), mistakes)
    check("excess", mistakes)
    explicit = bool(frozenset[int]().union(*(t.needs_explicit for t in targets)))
    setting = Setting(posed, transcription, solver, result.theta, nodes_of(posed, result.trajectories), explicit)
    out: dict[str, float] = {}
    for target in targets:
        first, tracer = setting.first(target), setting.tracer(np.inf)
        if isinstance(first, Status) or isinstance(tracer, Status):
            out[target.name] = np.nan
            continue
        value = values[target.name]
        c = float(np.log(value)) if target.log else float(value)
        out[target.name] = _reached(tracer, *first, c)
    return out


def _reached(tracer: Tracer, target: Target, spot: Spot, c: float) -> float:
    """Go to c in as few steps as succeed; return delta there, NaN if none does."""
    whole, part = c - spot.c, 1.0
    if whole == 0.0:
        return spot.delta
    while True:
        h = whole * part if abs(whole * part) < abs(c - spot.c) else c - spot.c
        same = spot.v.size == tracer.staged.layout.n_v
        v = spot.v + h * spot.tangent if same else tracer.staged.start
        found = tracer.spot(target, c if h == c - spot.c else spot.c + h, v, h)
        if isinstance(found, Status):
            part *= 0.25
            if part < _SHORTEST:
                return np.nan
        elif h == c - spot.c:
            return found.delta
        else:
            spot = found
