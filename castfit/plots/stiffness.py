"""A picture of stiffness: the time constants along a trajectory, and the eigenvalues in the complex plane."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from castfit.plots._canvas import labels, legend, new_figure, save_or_show, tidy_panels
from castfit.plots._colours import BLUE, INK, RED, SOFT

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit.drive.checkup.stiffness import Stiffness


def stiffness(found: Stiffness, path: str | Path | None = None) -> Figure:
    """Plot the time constants over time, decaying blue and growing red, and all eigenvalues in the complex plane.

    Parameters
    ----------
    found : Stiffness
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.

    Examples
    --------
    >>> import castfit as cf
    >>> escep = cf.problems.load("escep")
    >>> found = cf.stiffness(escep.problem.model, escep.reference.parameters, [0, 0.1, 1, 10])
    >>> figure = cf.plots.stiffness(found)
    """
    figure = new_figure(8.4, 3.6)
    left, right = tidy_panels(figure, 1, 2)[0]
    values = found.eigenvalues
    growing = values.real > 0.0
    times = np.repeat(found.times[:, None], values.shape[1], axis=1)
    for mask, colour, label in ((~growing & (values != 0), BLUE, "decaying"), (growing, RED, "growing")):
        if mask.any():
            left.plot(times[mask], found.time_constants[mask], ".", color=colour, markersize=3, label=label)
            right.plot(values.real[mask], values.imag[mask], ".", color=colour, markersize=3)
    span = found.times[-1] - found.times[0]
    left.axhline(span, color=SOFT, linewidth=0.8, linestyle="--", label="length of the trajectory")
    left.set_yscale("log")
    labels(left, "time", "time constant 1 / |λ|")
    legend(left)
    smallest = float(np.abs(values[values != 0]).min(initial=np.inf))
    right.set_xscale("symlog", linthresh=smallest if np.isfinite(smallest) else 1.0)
    right.axvline(0.0, color=SOFT, linewidth=0.6)
    labels(right, "Re λ", "Im λ")
    figure.suptitle(textwrap.fill(found.sentence, 120), x=0.01, ha="left", fontsize=8, color=INK)
    return save_or_show(figure, path)
