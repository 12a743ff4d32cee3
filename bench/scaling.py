"""How the time of a condensed Gauss-Newton step grows with the number of stages, on random blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from castfit._support.arrays import Array
from castfit._support.text_tables import TextTable
from castfit.drive.search.compare.benchmarks import Progress
from castfit.solve.bounded_lsq import LinearConstraints, bounded_lsq
from castfit.solve.condensing import Condensed, condense, expand
from castfit.solve.elimination import eliminate
from castfit.solve.staged import ChainValues, Jacobians, Layout, Linearization, Specification, build_layout

from .table import Kind, Report, record

N_S, N_Q, N_R = 4, 11, 4
STAGES = (10, 30, 100, 300, 1000, 3000, 10_000)


@dataclass(frozen=True)
class Scaling:
    """Median seconds per step for each number of stages, and the slope of their logarithms."""

    stages: tuple[int, ...]
    condensing: tuple[float, ...]
    elimination: tuple[float, ...]

    @property
    def slopes(self) -> tuple[float, float]:
        """Log-log slopes of both eliminations."""
        return _slope(self.stages, self.condensing), _slope(self.stages, self.elimination)

    @property
    def shown(self) -> TextTable:
        """The times, in milliseconds, and the slopes below them."""
        times = zip(self.stages, self.condensing, self.elimination, strict=True)
        rows = [(f"{k}", f"{1e3 * one:.2f} ms", f"{1e3 * other:.2f} ms") for k, one, other in times]
        slopes = ("slope", *(f"{slope:.2f}" for slope in self.slopes))
        return TextTable((">stages", ">condensing", ">orthogonal elimination"), (*rows, slopes))


def condensing_scaling(
    *, stages: Sequence[int] = STAGES, rng: int | np.random.Generator = 0, repetitions: int = 5
) -> Scaling:
    """Time a condensed step by both eliminations on random stable blocks.

    Parameters
    ----------
    stages : sequence of int
        Numbers of stages K; n_s = 4 states, n_q = 11 quantities, 4 residuals per stage.
    rng : int or Generator
    repetitions : int
        Of which the median is taken.
    """
    generator = np.random.default_rng(rng)
    condensing: list[float] = []
    elimination: list[float] = []
    for count in stages:
        layout, linear = random_chain(count, generator)
        condensing.append(_median_time(lambda a=layout, b=linear: _step(condense(a, b)), repetitions))
        elimination.append(_median_time(lambda a=layout, b=linear: _step(eliminate(a, b)), repetitions))
    return Scaling(tuple(stages), tuple(condensing), tuple(elimination))


def random_chain(stages: int, rng: np.random.Generator) -> tuple[Layout, Linearization]:
    """Draw the linearization of one multiple-shooting chain whose states neither grow nor vanish."""
    specification = Specification(
        "random",
        np.arange(N_Q),
        N_S,
        0,
        np.ones((stages, N_R), dtype=bool),
        np.empty((stages, 0)),
        np.empty((stages, 0)),
        np.arange(stages + 1.0),
        tuple(f"x{i + 1}" for i in range(N_S)),
    )
    layout = build_layout(tuple(f"p{j + 1}" for j in range(N_Q)), (specification,))

    def draw(*shape: int) -> Array:
        return rng.standard_normal(shape)

    rotations = np.linalg.qr(draw(stages, N_S, N_S))[0]
    none = np.empty
    jacobians = Jacobians(
        R_s=draw(stages, N_R, N_S),
        R_w=none((stages, N_R, 0)),
        R_q=draw(stages, N_R, N_Q),
        D_s=none((stages, 0, N_S)),
        D_w=none((stages, 0, 0)),
        D_q=none((stages, 0, N_Q)),
        X_s=0.98 * rotations,
        X_w=none((stages, N_S, 0)),
        X_q=0.1 * draw(stages, N_S, N_Q),
        C_s=none((stages, 0, N_S)),
        C_w=none((stages, 0, 0)),
        C_q=none((stages, 0, N_Q)),
        A=np.zeros((N_S, N_Q)),
    )
    values = ChainValues(draw(stages, N_R), draw(N_S), none((stages, 0)), draw(stages, N_S), none((stages, 0)))
    v = draw(layout.n_v)
    return layout, Linearization(v, (values,), np.empty(0), np.empty((0, N_Q)), (), (jacobians,))


def _step(condensed: Condensed) -> Array:
    """Solve the dense problem and expand its solution."""
    zero = np.zeros(condensed.e.size)
    rows = LinearConstraints(condensed.e, condensed.F, zero, zero) if condensed.e.size else None
    return expand(condensed, bounded_lsq(condensed.u, condensed.E, rows=rows).x)


def _median_time(action: Callable[[], object], repetitions: int) -> float:
    action()
    times: list[float] = []
    for _ in range(repetitions):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def _slope(stages: Sequence[int], seconds: Sequence[float]) -> float:
    return float(np.polyfit(np.log(stages), np.log(seconds), 1)[0]) if len(stages) > 1 else np.nan


def _run(name: str, progress: Progress, seed: int = 0) -> Report:
    progress(name)
    scaling = condensing_scaling(rng=seed)
    return Report((scaling.shown,), record(name, [vars(scaling) | {"slopes": scaling.slopes}]))


KIND = Kind(lambda: ("condensing-scaling",), ("seed",), _run, lambda name: "time of a condensed step by stages")
