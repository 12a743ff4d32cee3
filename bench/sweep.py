"""``castfit bench sweep``: what values with sensitivities cost at equal accuracy, by each method of integration.

Each problem is integrated at its reference (a PEtab problem at its nominal values) as single shooting does it, all
experiments, values and sensitivities along all estimated quantities, at relative tolerances 1e-4 ... 1e-10 and a
hundredth of them absolute.  The error is the largest one of a sensitivity,

    |S - S*| / max over time |S*|      (or a hundredth of the state's magnitude, where that is more),

and the same of the states, against CVODES at 1e-12.  Where the ESDIRK method at 1e-12 says otherwise, both are run at
1e-13, and the one is taken that this changes least: a model that amplifies small errors a million times (Crauste's, at
a threshold of its pathogen) is no longer accurate at 1e-12 by either.  Where neither 1e-10 nor what is coarser gives an
accuracy that is compared, 1e-12 is measured too.

CPU time as a function of the error is interpolated in logarithms to the accuracies that are compared; both methods are
timed in turn, so that what else the machine does meets both.

``castfit bench explicit`` does the same for explicit steps, taken where nothing is stiff, beside the ESDIRK method
alone, on textbook models, stiff ones among them and van der Pol's from mild to stiff: each as so many experiments at
once that the integration itself is what is timed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.status import raise_if_mistakes
from castfit._support.text_tables import Column, TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.integrate import IntegratorOptions, sundials
from castfit.integrate.integrator import integrator_of
from castfit.plots._canvas import BLUE, INK, RED, new_figure, save_or_show, tidy
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problems import load, names
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting

from .cpu_clock import cpu_timed
from .table import Kind, Report, collect_rows, record, unknown_mistakes
from .textbook_models import MODELS, Textbook

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from castfit._support.arrays import Array
    from castfit.integrate import Integrator
    from castfit.transcribe.segments import SensitivityRequest

    _ArrayPair = tuple[Array, Array]

NAME = "sweep"
EXPLICIT = "explicit"
PROBLEMS = ("calcium", "three_step", "stat5", "hiv_proteinase")
TOLERANCES = (1e-4, 1e-6, 1e-8, 1e-10)
ACCURACIES = (1e-4, 1e-6)
"""Errors at which methods are compared."""

_FINEST_TOLERANCE = 1e-12  # smallest relative tolerance, used if no other reaches the smallest accuracy
_EXACT = IntegratorOptions("cvodes", 1e-12, 1e-13, max_steps=200_000)
_REFERENCE_AGREEMENT = 1e-8  # difference of two methods at tolerance 1e-12 up to which either is a reference
_MAGNITUDE_FRACTION = 1e-6
"""Fraction of its initial value that counts as the magnitude of a state that has almost vanished."""
_SENSITIVITY_FRACTION = 1e-2
"""Fraction of a state's magnitude below which its sensitivities to relative changes have this size."""
_N_REPETITIONS = 3  # number of timed integrations, of which the fastest counts
_MAX_STEPS = 100_000  # largest number of integration steps
_N_COPIES = 30  # number of copies of an experiment that are integrated together
_TURNING = (5.0, 20.0, 100.0, 1000.0)  # van der Pol's parameter


def _textbook() -> dict[str, Textbook]:
    """Return models of all kinds, and van der Pol's oscillator on its way to stiffness."""
    turning = {
        f"van der Pol {mu:g}": Textbook(
            lambda s, p: (s[1], p[0] * (1 - s[0] ** 2) * s[1] - s[0]),
            {"mu": mu},
            {"x": 2.0, "y": 0.0},
            max(20.0, 2 * mu),
        )
        for mu in _TURNING
    }
    return MODELS | turning


@dataclass(frozen=True)
class Curve:
    """CPU seconds (n,) and errors (n,) of one method at falling tolerances; seconds that building took."""

    method: str
    seconds: Array
    errors: Array
    building: float

    def at(self, error: float) -> float:
        """Return the seconds at an error, by interpolation in logarithms; NaN outside of what was measured."""
        is_finite = np.isfinite(self.seconds) & np.isfinite(self.errors)
        if is_finite.sum() < 2:
            return np.nan
        # An error that grows again at a finer tolerance buys nothing.
        x: Array = np.minimum.accumulate(np.log(self.errors[is_finite]))
        y: Array = np.log(self.seconds[is_finite])
        if not x[-1] <= np.log(error) <= x[0]:
            return float(np.exp(y[0])) if np.log(error) > x[0] else np.nan
        log_seconds: Array = np.interp(np.log([error]), x[::-1], y[::-1])
        return float(np.exp(log_seconds[0]))


@dataclass(frozen=True)
class Compared:
    """One problem: its size, the curves of two methods that are compared, and by which errors are told."""

    name: str
    n_x: int
    n_d: int
    lanes: int
    theirs: Curve
    ours: Curve
    exact: str = ""

    def ratio(self, error: float) -> float:
        """Return the time of ours relative to the other's at an error."""
        return self.ours.at(error) / self.theirs.at(error)


def sweep(
    *, problems: Sequence[str] | None = None, folder: str | None = None, progress: Progress = lambda _: None
) -> Iterator[Compared]:
    """Compare both methods on problems of the library, and on PEtab problems in the folders of a folder.

    Parameters
    ----------
    problems : sequence of str, optional
        Names in the library, or of problems in the folder; by default four and all of these.
    folder : str, optional
    progress : callable, optional
    """
    for name, compiled_problem, theta in _cases(problems, folder):
        progress(f"{NAME}: {name}")
        yield compared(name, compiled_problem, theta)


def compared(name: str, compiled_problem: CompiledProblem, theta: Array, *, explicit: bool = False) -> Compared:
    """Compare two methods on a problem at theta (n_theta,): SUNDIALS and ESDIRK, or ESDIRK and explicit steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        staged = SingleShooting(
            IntegratorOptions("cvodes" if not compiled_problem.model.algebraic_states else "idas")
        ).transcribe(compiled_problem, theta)
        requests = staged.collect_sensitivity_requests(staged.start)
        method = sundials(len(compiled_problem.model.algebraic_states))
        exact, exact_method = _exact(requests, staged, method)
        if explicit:
            requests, exact = [_copied(a) for a in requests], [(_repeated(x), _repeated(dx)) for x, dx in exact]
        pair = ("esdirk", "explicit") if explicit else (method, "esdirk")
        other_curve, own_curve = (_timed(kind, requests, staged, exact, "always") for kind in pair)
    n_d = max(a.dx0.shape[2] for a in requests)
    lanes = sum(a.lanes.size for a in requests)
    return Compared(name, len(compiled_problem.model.states), n_d, lanes, other_curve, own_curve, exact_method)


def _copied(request: SensitivityRequest) -> SensitivityRequest:
    """Return a request for so many of the same lanes."""
    lane_indices = np.repeat(np.arange(request.lanes.size), _N_COPIES)
    spans = None if request.spans is None else _repeated(request.spans, 1)
    return replace(
        request, lanes=request.lanes[lane_indices], dx0=_repeated(request.dx0), dp=_repeated(request.dp), spans=spans
    )


def _repeated(array: Array, axis: int = 0) -> Array:
    return np.repeat(array, _N_COPIES, axis=axis)


def _exact(
    requests: Sequence[SensitivityRequest], staged: ShootingProblem, method: str
) -> tuple[list[_ArrayPair], str]:
    """Return values and sensitivities as exactly as two methods can have them, and by which."""

    def integrate(kind: str, finer: float = 1.0) -> list[_ArrayPair]:
        tolerances = finer * _EXACT.relative_tolerance, finer * _EXACT.absolute_tolerance
        options = IntegratorOptions(kind, *tolerances, max_steps=_EXACT.max_steps)
        return [_run(a, _with(a, staged, options)) for a in requests]

    def differ(one: list[_ArrayPair], other: list[_ArrayPair]) -> float:
        return max(_error(a, f, g) for a, f, g in zip(requests, one, other, strict=True))

    other_values, own_values = integrate(method), integrate("esdirk")
    if not all(np.isfinite(part).all() for trajectory in other_values for part in trajectory):
        return own_values, "esdirk"
    if not differ(own_values, other_values) > _REFERENCE_AGREEMENT:
        return other_values, method
    finer_values = {method: integrate(method, 0.1), "esdirk": integrate("esdirk", 0.1)}
    shifts = {method: differ(other_values, finer_values[method]), "esdirk": differ(own_values, finer_values["esdirk"])}
    best = min(shifts, key=lambda kind: shifts[kind])
    return finer_values[best], best


def _timed(
    kind: str,
    requests: Sequence[SensitivityRequest],
    staged: ShootingProblem,
    exact: list[_ArrayPair],
    compilation: str,
) -> Curve:
    """Time one method at all tolerances."""
    seconds: list[float] = []
    errors: list[float] = []
    building = 0.0
    for tolerance in (*TOLERANCES, _FINEST_TOLERANCE):
        if tolerance == _FINEST_TOLERANCE and min(errors) <= min(ACCURACIES):
            break
        options = IntegratorOptions(kind, tolerance, 1e-2 * tolerance, max_steps=_MAX_STEPS, compile=compilation)
        began = time.process_time()
        integrators = [_with(a, staged, options) for a in requests]
        trajectories = [_run(a, integrator) for a, integrator in zip(requests, integrators, strict=True)]
        first_seconds = time.process_time() - began
        durations = [
            cpu_timed(lambda: [_run(a, integrator) for a, integrator in zip(requests, integrators, strict=True)])[1]  # noqa: B023
            for _ in range(_N_REPETITIONS)
        ]
        building = max(building, first_seconds - min(durations))
        seconds.append(min(durations))
        errors.append(max(_error(a, f, e) for a, f, e in zip(requests, trajectories, exact, strict=True)))
    return Curve(kind, np.array(seconds), np.array(errors), building)


def _with(request: SensitivityRequest, staged: ShootingProblem, options: IntegratorOptions) -> Integrator:
    return integrator_of(staged.problem.model, request.integrator.grid, options)


def _run(request: SensitivityRequest, integrator: Integrator) -> _ArrayPair:
    """Integrate values with sensitivities: at once by a method that can, else first those, then these."""
    if request.spans is None:
        values, slopes = integrator.differentiated(request.lanes, request.dx0, request.dp)
        return values.x, slopes.dx
    values = integrator.values(request.lanes)
    return values.x, integrator.sensitivities(request.lanes, values, request.dx0, request.dp, request.spans).dx


def _error(request: SensitivityRequest, values: _ArrayPair, exact: _ArrayPair) -> float:
    """Return the largest relative error of values and sensitivities; infinite where a lane failed."""
    unit = np.maximum(request.lanes.units[0], _MAGNITUDE_FRACTION * np.abs(request.lanes.x0))[:, None]
    (x, dx), (x_, dx_) = values, exact
    of_values = np.abs(x - x_) / np.maximum(np.abs(x_).max(axis=1, keepdims=True), _SENSITIVITY_FRACTION * unit)
    of_slopes = np.abs(dx - dx_) / np.maximum(
        np.abs(dx_).max(axis=1, keepdims=True), _SENSITIVITY_FRACTION * unit[..., None]
    )
    worst = max(float(of_values.max(initial=0.0)), float(of_slopes.max(initial=0.0)))
    return worst if np.isfinite(worst) else np.inf


def _cases(problems: Sequence[str] | None, folder: str | None) -> Iterator[tuple[str, CompiledProblem, Array]]:
    for name in PROBLEMS if problems is None else problems:
        if name in names():
            benchmark = load(name)
            compiled_problem = benchmark.problem.posed.starting_at(benchmark.reference.parameters)
            yield name, compiled_problem, compiled_problem.guess
    for name, file in _files(folder).items():
        if problems is None or name in problems:
            from castfit import petab

            compiled_problem = petab.load(file).posed
            yield name, compiled_problem, compiled_problem.guess


def _files(folder: str | None) -> dict[str, Path]:
    """Return the PEtab problems in a folder, by what their folders' names begin with."""
    paths = [] if folder is None else sorted(Path(folder).glob("*/*.yaml"))
    return {file.parent.name.partition("_")[0]: file for file in paths}


def explicit(*, models: Sequence[str] | None = None, progress: Progress = lambda _: None) -> Iterator[Compared]:
    """Compare explicit steps, where nothing is stiff, with the ESDIRK method alone, on textbook models.

    Parameters
    ----------
    models : sequence of str, optional
        By default all of them.
    progress : callable, optional
    """
    for name, model in _textbook().items():
        if models is None or name in models:
            progress(f"{EXPLICIT}: {name}")
            compiled_problem = model.all_states().posed
            yield compared(name, compiled_problem, compiled_problem.guess, explicit=True)


def _run_explicit(name: str, progress: Progress, **options: Any) -> Report:
    chosen, plot = options.get("problems"), options.get("plot")
    names = None if chosen is None else tuple(chosen.split(",")) if isinstance(chosen, str) else tuple(chosen)
    raise_if_mistakes(EXPLICIT, unknown_mistakes("model", names or (), tuple(_textbook())))
    comparisons, status = collect_rows(explicit(models=names, progress=progress))
    if plot is not None:
        draw_sweeps(comparisons, plot)
    sheet = TextTable.from_items(
        comparisons,
        ("model", lambda c: c.name),
        (">states", lambda c: f"{c.n_x}"),
        (">directions", lambda c: f"{c.n_d}"),
        *_times("esdirk", lambda c: c.theirs),
        *_times("explicit", lambda c: c.ours),
        *_ratios(),
        title=f"CPU time of values with sensitivities of {_N_COPIES} experiments at equal errors, ms",
    )
    return Report((sheet,), record(name, _recorded(comparisons), **status))


def _run_table(name: str, progress: Progress, **options: Any) -> Report:
    chosen, folder, plot = options.get("problems"), options.get("folder"), options.get("plot")
    picked = None if chosen is None else tuple(chosen.split(",")) if isinstance(chosen, str) else tuple(chosen)
    mistakes = unknown_mistakes("problem", picked or (), (*names(), *_files(folder)))
    if folder is not None and not Path(folder).is_dir():
        mistakes.append(f"folder {folder} does not exist")
    raise_if_mistakes(NAME, mistakes)
    comparisons, status = collect_rows(sweep(problems=picked, folder=folder, progress=progress))
    if plot is not None:
        draw_sweeps(comparisons, plot)
    sheet = TextTable.from_items(
        comparisons,
        ("problem", lambda c: c.name),
        (">states", lambda c: f"{c.n_x}"),
        (">directions", lambda c: f"{c.n_d}"),
        (">lanes", lambda c: f"{c.lanes}"),
        ("exact by", lambda c: c.exact),
        ("compiled", lambda c: c.theirs.method),
        *_times("ms", lambda c: c.theirs),
        (">built in", lambda c: f"{c.theirs.building:.1f} s"),
        *_times("esdirk", lambda c: c.ours),
        (">built in ", lambda c: f"{c.ours.building:.1f} s"),
        *_ratios(),
        title="CPU time of values with sensitivities at equal errors",
    )
    return Report((sheet,), record(name, _recorded(comparisons), **status))


def _recorded(comparisons: Sequence[Compared]) -> list[dict[str, Any]]:
    return [
        {
            "problem": c.name, "states": c.n_x, "directions": c.n_d, "lanes": c.lanes, "exact": c.exact,
            "tolerances": [*TOLERANCES, _FINEST_TOLERANCE],
            "ratios": {f"{e:.0e}": c.ratio(e) for e in ACCURACIES},
            **{
                curve.method: {
                    "seconds": curve.seconds.tolist(), "errors": curve.errors.tolist(), "building": curve.building,
                }
                for curve in (c.theirs, c.ours)
            },
        }
        for c in comparisons
    ]  # fmt: skip


def draw_sweeps(comparisons: Sequence[Compared], path: str | Path | None = None) -> Figure:
    """Plot milliseconds against errors, both logarithmic, a panel per problem.

    Parameters
    ----------
    comparisons : sequence
    path : str or Path, optional
        Where to write the figure; the ending decides on the format.
    """
    columns = min(max(len(comparisons), 1), 4)
    rows = -(-max(len(comparisons), 1) // columns)
    figure = new_figure(2.6 * columns, 2.3 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, comparison in zip(grid.ravel(), comparisons, strict=False):
        tidy(axes)
        for colour, curve in ((RED, comparison.theirs), (BLUE, comparison.ours)):
            is_finite = np.isfinite(curve.errors) & (curve.errors > 0.0)
            axes.plot(
                curve.errors[is_finite],
                1e3 * curve.seconds[is_finite],
                ".-",
                color=colour,
                linewidth=1.4,
                label=curve.method,
            )
        if any(np.isfinite(curve.errors).any() for curve in (comparison.theirs, comparison.ours)):
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set_title(comparison.name, loc="left", fontsize=9, color=INK)
    for axes in grid.ravel()[len(comparisons) :]:
        axes.set_axis_off()
    if comparisons:
        grid[0, 0].legend(fontsize=7, frameon=False, labelcolor=INK)
    figure.supxlabel("largest relative error", fontsize=9, color=INK)
    figure.supylabel("CPU time, ms", fontsize=9, color=INK)
    return save_or_show(figure, path)


def _times(label: str, curve_of: Callable[[Compared], Curve]) -> list[Column[Compared]]:
    """Return a column of milliseconds per accuracy."""

    def column(error: float) -> Column[Compared]:
        return f">{label} at {error:.0e}", lambda c: _ms(curve_of(c).at(error))

    return [column(error) for error in ACCURACIES]


def _ratios() -> list[Column[Compared]]:
    """Return a column of ratios per accuracy."""

    def column(error: float) -> Column[Compared]:
        return f">ratio at {error:.0e}", lambda c: f"{c.ratio(error):.2f}" if np.isfinite(c.ratio(error)) else ""

    return [column(error) for error in ACCURACIES]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if np.isfinite(seconds) else ""


KIND = Kind(
    lambda: (NAME,),
    ("problems", "folder", "plot"),
    _run_table,
    lambda _: "values with sensitivities at equal accuracy: ESDIRK against compiled CVODES",
)
EXPLICIT_KIND = Kind(
    lambda: (EXPLICIT,),
    ("problems", "plot"),
    _run_explicit,
    lambda _: "values with sensitivities at equal accuracy: explicit steps against ESDIRK",
)
