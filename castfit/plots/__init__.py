"""Figures of results: data and residuals, iterations, searches, comparisons.

Input: results of fits and drivers.  Output: a matplotlib figure, which is also written to ``path`` if one is given.  A
figure that is not written is registered with pyplot, so that ``plt.show()`` shows it.  Importing castfit and writing
figures need neither pyplot nor a display; ``_figure`` takes care of this.  ``_canvas`` has panels, headings and
legends; ``_grid`` arranges panels of data and residuals.  Read ``_canvas.py`` first, then ``searches.py`` or
``results.py``.
"""

from castfit._support.public_names import assign_public_addresses as _publish
from castfit.plots.convergence import animate, history, iterations
from castfit.plots.designs import design
from castfit.plots.diagnostics import residuals, sensitivities, stiffness
from castfit.plots.relations import correlation, directions, ellipses
from castfit.plots.results import comparison, fit, gallery
from castfit.plots.searches import parameters, selection, success, waterfall
from castfit.plots.time_courses import individuals, inputs, paths, plan
from castfit.plots.uncertainty import contours, histograms, pairs, profiles

__all__ = [
    "animate",
    "comparison",
    "contours",
    "correlation",
    "design",
    "directions",
    "ellipses",
    "fit",
    "gallery",
    "histograms",
    "history",
    "individuals",
    "inputs",
    "iterations",
    "pairs",
    "parameters",
    "paths",
    "plan",
    "profiles",
    "residuals",
    "selection",
    "sensitivities",
    "stiffness",
    "success",
    "waterfall",
]

_publish(__name__, __all__, globals())
