"""The residuals of a fit by what was measured: as columns, and as series in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.goodness import Series

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem import Posable

    Array = NDArray[np.float64]


def residual_table(problem: Posable, residuals: Array) -> dict[str, NDArray[Any]]:
    """Return one row per measured value, as columns (n_data,), in the order of the residuals.

    ``experiment``, ``output``, ``time``, ``replicate`` (counted from 0 among equal times), ``value``, ``prediction``,
    ``sigma`` (1 where it is unknown), ``residual`` = (prediction - value) / sigma.

    Parameters
    ----------
    problem : Problem or Posed
    residuals : (n_data,) array
        By experiment, time and output.
    """
    columns: dict[str, list[NDArray[Any]]] = {
        name: [] for name in ("experiment", "output", "time", "replicate", "value", "sigma")
    }
    for condition in problem.conditions:
        points, mask = condition.points, condition.points.mask
        row, output = np.nonzero(mask)
        columns["experiment"].append(np.full(row.size, condition.name))
        columns["output"].append(np.array(problem.outputs)[output])
        columns["time"].append(points.times[row])
        columns["replicate"].append(_replicates(points.times, mask)[mask])
        columns["value"].append(points.values[mask])
        columns["sigma"].append(points.sigma[mask])
    table = {name: np.concatenate(pieces) for name, pieces in columns.items()}
    sigma = table.pop("sigma")
    prediction = table["value"] + sigma * residuals
    return {**table, "prediction": prediction, "sigma": sigma, "residual": residuals.copy()}


def series(problem: Posable, residuals: Array) -> list[Series]:
    """Divide residuals (n_data,) by experiment and output."""
    table = residual_table(problem, residuals)
    found: list[Series] = []
    for condition in problem.conditions:
        for output in problem.outputs:
            of = (table["experiment"] == condition.name) & (table["output"] == output)
            if of.any():
                values = (table[name][of] for name in ("residual", "value", "sigma"))
                found.append(Series(condition.name, output, *values))
    return found


def _replicates(times: Array, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Count the values of each output at equal times, (n_points, n_outputs); times increase."""
    before = np.cumsum(mask, axis=0) - mask
    first = np.searchsorted(times, times, side="left")
    return before - before[first]
