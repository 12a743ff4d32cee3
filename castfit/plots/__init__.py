"""Pictures: results with their data and residuals, iterations on their way there, many starts, methods compared.

Figures are made without pyplot, so that no window opens and no state is left behind; every function returns the
figure, and also writes it to `path` if one is given.
"""

from castfit.plots.convergence import animate, iterations
from castfit.plots.diagnostics import residuals
from castfit.plots.draws import histograms, pairs
from castfit.plots.history import history
from castfit.plots.inputs import inputs
from castfit.plots.methods import success
from castfit.plots.populations import individuals
from castfit.plots.profiles import contours, profiles
from castfit.plots.relations import correlation, directions, ellipses
from castfit.plots.results import comparison, fit, gallery
from castfit.plots.sensitivities import sensitivities
from castfit.plots.starts import parameters, waterfall
from castfit.plots.stiffness import stiffness

__all__ = [
    "animate",
    "comparison",
    "contours",
    "correlation",
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
    "profiles",
    "residuals",
    "sensitivities",
    "stiffness",
    "success",
    "waterfall",
]
