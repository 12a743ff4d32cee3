"""How often confidence intervals contain the truth: fits of synthetic data, of which the truth is known.

``castfit bench coverage`` draws data of Lotka and Volterra's model with normal errors of unknown sigma, errors relative
to the value of unknown size, and Poisson counts.  `coverage` does it for any problem that can be drawn.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._text import Sheet
from castfit.benchmark.table import Kind, Progress, Report, number_mistakes, record
from castfit.drive.run.pool import Pool, lost
from castfit.experiment import Experiment
from castfit.fit import fit
from castfit.model import Model, symbols
from castfit.noise.base import Noise
from castfit.noise.counts import Poisson
from castfit.noise.gaussian import Gaussian
from castfit.problem import Problem
from castfit.simulate import simulate
from castfit.statement import Parameter
from castfit.status import check
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    import concurrent.futures as cf

    from castfit._array import Array
    from castfit.methods import Solver, Transcription

NAME = "coverage"
_TRIALS = 500

Draw = Callable[[np.random.Generator], Problem]


@dataclass(frozen=True)
class Coverage:
    """How often intervals of nominal probability `level` contain the truth.

    Attributes
    ----------
    name : str
    level : float
    inside : mapping
        Per quantity, in how many fits its interval contains the truth.
    fitted : int
        Fits that succeeded with an interval for every quantity.
    ends : mapping
        How the others ended, and how often.
    """

    name: str
    level: float
    inside: Mapping[str, int]
    fitted: int
    ends: Mapping[str, int]

    @property
    def shares(self) -> dict[str, float]:
        """The part of the intervals that contains the truth, per quantity; NaN without any fit."""
        return {name: count / self.fitted if self.fitted else np.nan for name, count in self.inside.items()}

    @property
    def share(self) -> float:
        """The same, of all quantities together."""
        return float(np.mean(list(self.shares.values())))


def coverage(
    name: str,
    draw: Draw,
    truth: Mapping[str, float],
    *,
    trials: int = _TRIALS,
    seed: int = 0,
    level: float = 0.95,
    transcription: Transcription | None = None,
    solver: Solver | None = None,
    workers: int | cf.Executor = 1,
    progress: Progress = lambda _: None,
) -> Coverage:
    """Fit data sets and count the intervals that contain the truth.

    Parameters
    ----------
    name : str
    draw : callable
        Makes a problem with data drawn from a random generator; defined in a module, so that processes can call it.
    truth : mapping
        The true values of the quantities whose intervals count, by name.
    trials : int
        Data sets; each has a random stream of its own, so that workers make no difference.
    seed : int
    level : float
    transcription : Transcription, optional
        By default single shooting.
    solver : Solver, optional
    workers : int or concurrent.futures.Executor
    progress : callable, optional
        Told how far it is.

    Raises
    ------
    InputError
        If a number is out of range.
    """
    check("coverage", number_mistakes(seed=seed, trials=trials))
    seeds = np.random.SeedSequence(seed).spawn(trials)
    parts = (draw, dict(truth), level, transcription or SingleShooting(), solver)
    tasks = deque((i, (*parts, s)) for i, s in enumerate(seeds))
    outcomes: dict[int, Mapping[str, bool] | str] = {}
    with Pool(workers) as pool:
        for key, outcome in pool.run(_trial, tasks):
            outcomes[key] = outcome if isinstance(outcome, (Mapping, str)) else lost(outcome)[0]
            progress(f"{name}: {len(outcomes)} of {trials} fits")
    found = [o for o in outcomes.values() if not isinstance(o, str)]
    ends = Counter(o for o in outcomes.values() if isinstance(o, str))
    return Coverage(name, level, {n: sum(o[n] for o in found) for n in truth}, len(found), dict(ends))


def _trial(
    draw: Draw,
    truth: Mapping[str, float],
    level: float,
    transcription: Transcription,
    solver: Solver | None,
    seed: np.random.SeedSequence,
) -> Mapping[str, bool] | str:
    """Fit one data set; return whether each interval contains the truth, or why there is none."""
    try:
        result = fit(draw(np.random.default_rng(seed)), transcription, solver)
    except Exception as error:  # whatever a drawn problem raises; the others go on
        return f"{type(error).__name__}: {error}"
    if not result.success:
        return result.status.value
    intervals = result.confidence_intervals(level)
    if any(not np.isfinite(intervals[name]).all() for name in truth):
        return "no interval"
    return {name: bool(intervals[name][0] <= value <= intervals[name][1]) for name, value in truth.items()}


# Lotka and Volterra's predators and prey

_TIMES = np.arange(1.0, 11.0)
_TRUE = {"k1": 1.0, "k2": 1.0, "k3": 1.0, "k4": 1.0}
_COUNTED = 50.0  # individuals in the unit of the model
_SIGMA, _RELATIVE = 0.05, 0.05


@cache
def _model() -> Model:
    x, y = symbols("x y")
    k1, k2, k3, k4 = symbols("k1 k2 k3 k4")
    equations = {x: -k1 * x + k2 * x * y, y: k3 * y - k4 * x * y}
    outputs = {"predators": _COUNTED * x, "prey": _COUNTED * y}
    return Model(equations, parameters=[k1, k2, k3, k4], outputs=outputs)


@cache
def _exact() -> Mapping[str, Array]:
    return simulate(_model(), _TRUE, _TIMES, initial={"x": 0.4, "y": 1.0})


@cache
def _relative() -> Mapping[str, Noise]:
    c, x, y = symbols("c x y")
    return {"x": Gaussian(c * x), "y": Gaussian(c * y)}


def _drawn(kind: str, rng: np.random.Generator) -> Problem:
    """Draw data of one kind, 10 values of each state."""
    exact, extra = _exact(), dict[str, Any]()
    if kind == "counts":
        data = {n: Poisson().sample(rng, exact[n], 1.0) for n in ("predators", "prey")}
        said: dict[str, Any] = {"noise": Poisson()}
    else:
        sizes = {n: _SIGMA if kind == "unknown sigma" else _RELATIVE * exact[n] for n in ("x", "y")}
        data = {n: exact[n] + size * rng.standard_normal(_TIMES.size) for n, size in sizes.items()}
        said = {"sigma": None} if kind == "unknown sigma" else {"noise": dict(_relative())}
        if kind == "relative errors":
            extra = {"c": Parameter(0.1, scale="log")}
    experiment = Experiment(data, time=_TIMES, initial={"x": 0.4, "y": 1.0}, **said)
    return Problem(_model(), experiment, parameters={**dict.fromkeys(_TRUE, 0.9), **extra})


KINDS: Mapping[str, tuple[Draw, Mapping[str, float]]] = {
    "unknown sigma": (partial(_drawn, "unknown sigma"), _TRUE),
    "relative errors": (partial(_drawn, "relative errors"), {**_TRUE, "c": _RELATIVE}),
    "counts": (partial(_drawn, "counts"), _TRUE),
}
"""Per kind of noise: how its data are drawn, and the truth."""


def _run(name: str, progress: Progress, seed: int = 0, starts: int = _TRIALS, workers: int = 1) -> Report:
    rows = [
        coverage(f"lotka_volterra, {kind}", draw, truth, trials=starts, seed=seed, workers=workers, progress=progress)
        for kind, (draw, truth) in KINDS.items()
    ]
    sheet = Sheet.of(
        rows,
        ("problem", lambda r: r.name),
        (">fits", lambda r: f"{r.fitted}"),
        (">inside", lambda r: f"{100 * r.share:.1f} %"),
        ("of each", lambda r: ", ".join(f"{n} {100 * share:.1f} %" for n, share in r.shares.items())),
        ("other ends", lambda r: ", ".join(f"{count} {end}" for end, count in r.ends.items())),
        title=f"Intervals of nominal {100 * rows[0].level:g} % that contain the truth",
    )
    return Report((sheet,), record(name, [vars(row) for row in rows], trials=starts, seed=seed))


KIND = Kind(lambda: (NAME,), ("starts", "seed", "workers"), _run, lambda name: "how often intervals contain the truth")
