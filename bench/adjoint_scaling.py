"""``castfit bench adjoint-scaling``: what a gradient costs in simulations, forwards and backwards.

A network of n_x states with n_p parameters is simulated, and differentiated

    forward    by n_p sensitivities:  n_x (1 + n_p) equations;
    adjoint    as one number, the sum of the final states: n_x equations backwards, n_p integrals;
    vector     as n_x numbers, the final states by parameters and initial states: n_x^2 equations backwards.

by CVODES, whose adjoint states are integrated anew, and by the ESDIRK method, which goes back over its own steps.  CPU
times are relative to that of a simulation by the same method to the same tolerance, which comes on top; the error is
the largest difference from the forward gradient, relative to its largest entry.  The crossover is where forward and
backward sensitivities take the same time, by interpolation of the logarithms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.integrate import Integrator, IntegratorOptions, Lanes
from castfit.model.model import Model, symbols
from castfit.plots._canvas import BEHIND, BLUE, INK, RED, new_figure, save_or_show, tidy

from .table import Kind, Report, number_mistakes, record

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.integrate import Sensitivities

NAME = "adjoint-scaling"
METHODS = ("esdirk", "cvodes")
STATES, PARAMETERS = (2, 5, 20, 100), (5, 10, 20, 50, 100, 200, 500)
_HORIZON_LENGTH = 5.0  # duration of the integration, in units of the model's time
_MAX_SENSITIVITY_EQUATIONS = 2e4  # number of sensitivity equations up to which forward sensitivities are timed
_COLOURS = (BLUE, RED, *BEHIND)
_REPEATED_SECONDS = 0.5  # mean duration of a call in seconds above which it is not repeated further


@dataclass(frozen=True)
class AdjointTiming:
    """One network: CPU seconds of a simulation, and how many simulations the derivatives take; NaN where left out."""

    method: str
    n_x: int
    n_p: int
    simulation: float
    forward: float
    adjoint: float
    forward_all: float
    vector: float
    error: float


@dataclass(frozen=True)
class AdjointScaling:
    """All networks.

    Attributes
    ----------
    timings : tuple of AdjointTiming
    """

    timings: tuple[AdjointTiming, ...]

    @property
    def crossovers(self) -> dict[tuple[str, int], tuple[float, float]]:
        """Per method and n_x the parameters from which a gradient, and a Jacobian, takes less time backwards."""
        out: dict[tuple[str, int], tuple[float, float]] = {}
        for method, n_x in dict.fromkeys((t.method, t.n_x) for t in self.timings):
            matching_timings = [t for t in self.timings if (t.method, t.n_x) == (method, n_x)]
            n_p = np.array([t.n_p for t in matching_timings], dtype=float)
            one = _crossing(n_p, np.array([t.forward / t.adjoint for t in matching_timings]))
            out[method, n_x] = one, _crossing(n_p, np.array([t.forward_all / t.vector for t in matching_timings]))
        return out


def network(n_x: int, n_p: int) -> Model:
    """Return a model whose parameters are the strengths of saturated connections between its states."""
    x, p = [symbols(f"x{i + 1}") for i in range(n_x)], [symbols(f"p{j + 1}") for j in range(n_p)]
    rates: list[Any] = [-(1 + i / n_x) * x[i] + 0.5 * ca.tanh(x[(i + 1) % n_x]) for i in range(n_x)]
    for j in range(n_p):
        to, from_ = j % n_x, (7 * j + 3 + j // n_x) % n_x
        rates[to] += p[j] * (n_x / n_p) * ca.tanh(x[from_])
    return Model(dict(zip(x, rates, strict=True)), parameters=p)


def adjoint_scaling(
    *,
    states: Sequence[int] = STATES,
    parameters: Sequence[int] = PARAMETERS,
    methods: Sequence[str] = METHODS,
    rng: int | np.random.Generator = 0,
    repetitions: int = 5,
    progress: Progress = lambda _: None,
) -> AdjointScaling:
    """Time derivatives of networks of several sizes.

    Parameters
    ----------
    states, parameters : sequences of int
    methods : sequence of str
        Of integration.
    rng : int or Generator
        Draws initial states and parameters.
    repetitions : int
        Of which the median is taken; of what takes long, one.
    progress : callable, optional
    """
    generator = np.random.default_rng(rng)
    timings: list[AdjointTiming] = []
    for n_x in states:
        for n_p in parameters:
            progress(f"{NAME}: {n_x} states, {n_p} parameters")
            x0, p = generator.uniform(0.5, 1.5, (1, n_x)), generator.uniform(0.1, 1.0, (1, n_p))
            lanes = Lanes(np.zeros(1), np.full(1, _HORIZON_LENGTH), x0, p, np.zeros((1, 1, 0, 4)), np.zeros((1, 0)))
            timings += [_timed(method, lanes, repetitions) for method in methods]
    return AdjointScaling(tuple(timings))


def _timed(method: str, lanes: Lanes, repetitions: int) -> AdjointTiming:
    n_x, n_p = lanes.x0.shape[1], lanes.p.shape[1]
    options = IntegratorOptions(method, watch_sensitivities=method != "esdirk")  # whose directions follow the steps
    integrator = Integrator(network(n_x, n_p).system, [1.0], options)
    trajectories = integrator.values(lanes, keep=True)
    all_directions, of_p = np.eye(n_x)[None, :, None], np.eye(n_p)[None]
    total = all_directions.sum(axis=1, keepdims=True)

    def forward(directions: int) -> Callable[[], Sensitivities]:
        dx0, dp = np.zeros((1, n_x, directions)), np.zeros((1, n_p, directions))
        dp[:, :, directions - n_p :] = of_p
        dx0[:, :, : directions - n_p] = np.eye(n_x)[:, : directions - n_p]
        return lambda: integrator.sensitivities(lanes, trajectories, dx0, dp)

    simulation = _median_time(lambda: integrator.values(lanes), 2 * repetitions)
    some = n_x * (1 + n_p) <= _MAX_SENSITIVITY_EQUATIONS
    ahead = forward(n_p)().dx[0, 0].sum(axis=0) if some else np.full(n_p, np.nan)
    error = np.abs(integrator.adjoint(lanes, trajectories, total).p[0, 0] - ahead).max() / np.abs(ahead).max()

    def relative(action: Callable[[], object], equations: float) -> float:
        return _median_time(action, repetitions) / simulation if equations <= _MAX_SENSITIVITY_EQUATIONS else np.nan

    return AdjointTiming(
        method,
        n_x,
        n_p,
        simulation,
        forward=relative(forward(n_p), n_x * (1 + n_p)),
        adjoint=relative(lambda: integrator.adjoint(lanes, trajectories, total), n_x + n_p),
        forward_all=relative(forward(n_p + n_x), n_x * (1 + n_p + n_x)),
        vector=relative(lambda: integrator.adjoint(lanes, trajectories, all_directions), n_x * (n_x + n_p)),
        error=float(error),
    )


def _median_time(action: Callable[[], object], repetitions: int) -> float:
    action()
    times: list[float] = []
    while len(times) < repetitions and sum(times) < _REPEATED_SECONDS * max(len(times) - 1, 1):
        began = time.process_time()  # what else the machine does must not count
        action()
        times.append(time.process_time() - began)
    return float(np.median(times))


def _crossing(n_p: Array, ratio: Array) -> float:
    """Return where a ratio passes 1, by interpolation in logarithms; 0 if it is larger from the beginning."""
    is_finite = np.isfinite(ratio)
    x, y = np.log(n_p[is_finite]), np.log(ratio[is_finite])
    if not y.size or y[-1] <= 0.0:
        return np.inf
    below = np.flatnonzero(y <= 0.0)
    if not below.size:
        return 0.0
    k = int(below[-1])
    return float(np.exp(x[k] - y[k] * (x[k + 1] - x[k]) / (y[k + 1] - y[k])))


def draw_derivatives(
    timings: Sequence[AdjointTiming],
    crossovers: Mapping[tuple[str, int], tuple[float, float]],
    path: str | Path | None = None,
) -> Figure:
    """Plot the time of a gradient in simulations against the number of parameters, a colour per number of states.

    Of several methods of integration the first one's are drawn.

    Parameters
    ----------
    timings : sequence
        Networks with n_x states and n_p parameters.
    crossovers : mapping
        Per method and n_x the number of parameters from which the adjoint takes less time, marked by a dot; a second
        number is not drawn.
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    """
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    tidy(axes)
    method_timings = [t for t in timings if t.method == timings[0].method]
    for colour, n_x in zip(_COLOURS, dict.fromkeys(t.n_x for t in method_timings), strict=False):
        size_timings = [t for t in method_timings if t.n_x == n_x]
        n_p = np.array([t.n_p for t in size_timings], dtype=float)
        forward = np.array([t.forward for t in size_timings], dtype=float)
        adjoint = np.array([t.adjoint for t in size_timings], dtype=float)
        axes.plot(n_p, forward, color=colour, linewidth=1.4, linestyle="--")
        axes.plot(n_p, adjoint, color=colour, linewidth=1.8, label=f"{n_x} states")
        is_finite = np.isfinite(adjoint)
        where = crossovers[size_timings[0].method, n_x][0]
        if n_p[0] <= where <= n_p[-1]:
            height = _interpolated(where, n_p[is_finite], adjoint[is_finite])
            axes.plot([where], [height], "o", color=colour, markersize=5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("parameters", fontsize=9, color=INK)
    axes.set_ylabel("gradient in simulations", fontsize=9, color=INK)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title("forward dashed, adjoint solid", loc="left", fontsize=10, color=INK)
    return save_or_show(figure, path)


def _interpolated(where: float, x: Array, y: Array) -> float:
    """Interpolate logarithms."""
    logarithms: Array = np.interp([np.log(where)], np.log(x), np.log(y))
    return float(np.exp(logarithms[0]))


def _run(name: str, progress: Progress, seed: int = 0, plot: str | None = None) -> Report:
    raise_if_mistakes(NAME, number_mistakes(seed=seed))
    scaling = adjoint_scaling(rng=seed, progress=progress)
    if plot is not None:
        draw_derivatives(scaling.timings, scaling.crossovers, plot)
    sheet = TextTable.from_items(
        scaling.timings,
        ("method", lambda t: t.method),
        (">states", lambda t: f"{t.n_x}"),
        (">parameters", lambda t: f"{t.n_p}"),
        (">simulation", lambda t: f"{1e3 * t.simulation:.2f} ms"),
        (">gradient: forward", lambda t: _times(t.forward)),
        (">adjoint", lambda t: _times(t.adjoint)),
        (">Jacobian: forward", lambda t: _times(t.forward_all)),
        (">adjoint ", lambda t: _times(t.vector)),
        (">error", lambda t: f"{t.error:.0e}" if np.isfinite(t.error) else ""),
        title="Time of derivatives in simulations",
    )
    crossings = TextTable.from_items(
        scaling.crossovers.items(),
        ("method", lambda item: item[0][0]),
        (">states", lambda item: f"{item[0][1]}"),
        (">gradient by adjoint pays from", lambda item: _from(item[1][0])),
        (">Jacobian by adjoint pays from", lambda item: _from(item[1][1])),
        title="Parameters from which backward integration takes less time",
    )
    rows = [vars(t) for t in scaling.timings]
    crossovers = [
        {"method": method, "n_x": n_x, "from": crossing} for (method, n_x), crossing in scaling.crossovers.items()
    ]
    return Report((sheet, "", crossings), record(NAME, rows, seed=seed, crossovers=crossovers))


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if np.isfinite(ratio) else ""


def _from(parameters: float) -> str:
    if not np.isfinite(parameters):
        return "more than were tried"
    return f"{parameters:.0f}" if parameters else "the first"


KIND = Kind(
    lambda: (NAME,),
    ("seed", "plot"),
    _run,
    lambda _: "what derivatives cost in simulations, forwards and by adjoint states, for up to 500 parameters",
)
