"""Residuals at jumps of an input: a value and the row of a log that was written with it may see two sides of a jump.

The residual of a value that the input enters directly is then proportional to the height of a jump at its time.  The
test is the partial correlation of residuals and heights, given the measured input and the previous residual.  A model
with a wrong effect of the input, or residuals that drift, do not show such a correlation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.integrate.lanes import snap_times
from castfit.result.covariance import quantile
from castfit.result.residuals import SHOWN_P_VALUE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array
    from castfit.experiment.inputs import Input
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.result.diagnostics import Outlier

_MIN_RESIDUALS = 8  # residuals
_MIN_CORRELATION = 0.5  # correlation


def residuals_at_jumps(
    outliers: Sequence[Outlier], table: Mapping[str, NDArray[Any]], compiled_problem: CompiledProblem
) -> str:
    """Return a sentence about an input with jumps that residuals follow, and a remedy; empty if there is none.

    table : columns ``experiment``, ``output``, ``time`` and ``normalised``, (n,) each, in the order of time
    """
    for i, name in enumerate(compiled_problem.model.inputs):
        signals = {c.name: c.inputs[i] for c in compiled_problem.conditions}
        if not any(signal.jumps.size for signal in signals.values()):
            continue
        for output in compiled_problem.outputs:
            column_blocks = [
                _columns(signal, table["time"][rows], table["normalised"][rows])
                for experiment, signal in signals.items()
                for rows in [(table["experiment"] == experiment) & (table["output"] == output)]
            ]
            if not _follow(np.concatenate(column_blocks)):
                continue
            is_after = any(signal.measured == "after" for signal in signals.values())
            assumed_side, opposite_side = ("after", "before") if is_after else ("before", "after")
            n = sum(o.output == output and o.time in signals[o.experiment].jumps for o in outliers)
            count = f"{n} of the {len(outliers)} outliers are at jumps, and " if n else ""
            return (
                f"The residuals of {output} correlate with the jumps of the input '{name}': {count}values at a jump "
                f"are interpreted as measured {assumed_side} it. If they were measured {opposite_side} it, set "
                f"Input.piecewise_constant(..., measured='{opposite_side}')."
            )
    return ""


def _columns(signal: Input, times: Array, residuals: Array) -> Array:
    """Return residuals, heights of jumps at their times, the input that was seen, and the residuals before, (n, 4)."""
    snapped_times = snap_times(times, signal.jumps)
    input_before, input_after = signal(np.nextafter(snapped_times, -np.inf)), signal(snapped_times)
    measured_input = input_after if signal.measured == "after" else input_before
    return np.stack(
        [residuals, input_after - input_before, measured_input, np.append(0.0, residuals)[: times.size]], axis=1
    )


def _follow(columns: Array) -> bool:
    """Test whether residuals are correlated with heights, given the other columns."""
    finite_rows = columns[np.isfinite(columns).all(axis=1)]
    if finite_rows.shape[0] < _MIN_RESIDUALS or not finite_rows[:, 1].any():
        return False
    regressors = np.column_stack([np.ones(finite_rows.shape[0]), finite_rows[:, 2:]])
    partial_residuals = finite_rows[:, :2] - regressors @ np.linalg.lstsq(regressors, finite_rows[:, :2])[0]
    if (np.abs(partial_residuals).max(axis=0) <= 1e-9 * np.abs(finite_rows[:, :2]).max(axis=0)).any():
        return False
    r, h = partial_residuals.T
    correlation = float(np.clip(r @ h / np.sqrt(r @ r * (h @ h)), -1.0, 1.0))
    dof = finite_rows.shape[0] - 4.0
    t = abs(correlation) * np.sqrt(dof / max(1.0 - correlation**2, 1e-300))
    return bool(abs(correlation) > _MIN_CORRELATION and t > quantile(1.0 - SHOWN_P_VALUE, dof))
