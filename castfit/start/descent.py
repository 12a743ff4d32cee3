"""Down in the box at the accuracy of a search, at once or on ever longer horizons.

On a short horizon the trajectory can hardly be wrong, and the valley of the cost is wide; its optimum is a good start
for a horizon that is a little longer.  What oscillates, or amplifies errors, is followed period by period in this way,
even where only one output on a scale of its own is measured and the start is a decade off in every parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from castfit._watch import Stopped, watched
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import Control, Iteration, Solution
from castfit.solve.step_control import Box, StepControl
from castfit.start.constant import soft_start
from castfit.start.scene import Scene
from castfit.status import Status

if TYPE_CHECKING:
    from castfit._array import Array
    from castfit.staged import StagedProblem

LOOKS = (10, 25)
"""Iterations at which a candidate must not be worse than half of those before it."""

HORIZONS = (10, 20)
"""Numbers of horizons, the whole among them: few are faster, many lose the way less often."""

_ITERATIONS = 60
_POLISHING = 150
_PER_HORIZON = 15
_COARSE = Box(patience=8, progress=1e-3)


@dataclass(frozen=True)
class Descent:
    """Where a candidate came to.

    theta (n,), cost : there;  at_looks : its costs at `LOOKS`, NaN where it had ended;  work : in simulations, a sweep
    of all sensitivities counted by what it takes;  dropped : whether it was not let to its end
    """

    theta: Array
    cost: float
    at_looks: tuple[float, float]
    work: float
    dropped: bool = False


def work_of(evaluations: dict[str, int], n_theta: int) -> float:
    """Return how many simulations evaluations are worth; about three sensitivities go into one."""
    sweeps = evaluations.get("jacobians", 0)
    others = sum(evaluations.values()) - sweeps
    return others + (1.0 + n_theta / 3.0) * sweeps


def best_of(scene: Scene, draws: Sequence[Array]) -> tuple[int, float]:
    """Return which draw has the lowest cost, and that cost."""
    costs = [scene.cost(theta) for theta in draws]
    k = int(np.argmin(costs))
    return k, costs[k]


def descend(
    scene: Scene, start: Array, limits: tuple[float, float], seconds: float, *, step_control: str = "box"
) -> Descent:
    """Go down from a start; `limits` are the costs above which it is dropped at `LOOKS`."""
    seen = [np.nan, np.nan]
    dropped = [False]

    def look(now: Iteration) -> bool:
        if now.iteration in LOOKS:
            k = LOOKS.index(now.iteration)
            seen[k] = now.cost
            dropped[0] = now.cost > limits[k]
        return dropped[0]

    found = _solve(scene.staged, start, _ITERATIONS, seconds, look, rule=_coarse(step_control))
    theta = found.v
    return Descent(theta, scene.cost(theta), (seen[0], seen[1]), work_of(found.evaluations, theta.size), dropped[0])


def settle(scene: Scene, start: Array, seconds: float, *, step_control: str = "box") -> Descent:
    """Go down to the optimum, as the accuracy of the search lets it be seen; `dropped` if it is not reached."""
    found = _solve(scene.staged, start, _POLISHING, seconds, rule=step_control)
    work = work_of(found.evaluations, found.v.size)
    return Descent(found.v, scene.cost(found.v), (np.nan, np.nan), work, not found.status.success)


def grow(
    scene: Scene, start: Array, seconds: float, horizons: int = HORIZONS[-1], *, step_control: str = "box"
) -> tuple[Array, float]:
    """Go down on ever longer horizons, all but the whole; return where to, and the work that it took.

    Parameters
    ----------
    scene : Scene
    start : (n,) array
    seconds : float
    horizons : int
        Into how many parts the distinct measured times are divided.
    step_control : str
    """
    rule = _coarse(step_control)
    theta, work, times = start, 0.0, scene.times
    shares = [int(np.ceil(k / horizons * times.size)) for k in range(1, horizons)]
    ends = sorted({float(times[share - 1]) for share in shares if 0 < share < times.size})
    for end in ends:
        found = _solve(scene.until(end), theta, _PER_HORIZON, seconds / horizons, rule=rule)
        work += work_of(found.evaluations, theta.size) * float(np.mean(times <= end))
        if found.status is not Status.START_FAILED:
            theta = found.v
    return theta, work


def harden(scene: Scene, start: Array, seconds: float, stations: tuple[float, ...]) -> tuple[Array, float]:
    """Let constant states and parameters find each other while equations harden; return where to, and the work.

    Parameters
    ----------
    scene : Scene
    start : (n,) array
    seconds : float
    stations : tuple of float
        Prices of the equations, one of `castfit.start.constant.RAMPS`.
    """
    with watched(max(seconds, 1e-3)):
        try:
            found = soft_start(scene.searched, start, scene.transcription.integrator, stations=stations)
        except Stopped:
            return start, 0.0
    lower, upper = scene.staged.lower[: start.size], scene.staged.upper[: start.size]
    return np.clip(found.theta, lower, upper), work_of(found.evaluations, start.size)


def _coarse(step_control: str) -> StepControl | str:
    return _COARSE if step_control == "box" else step_control


def _solve(
    staged: StagedProblem,
    start: Array,
    iterations: int,
    seconds: float,
    callback: Callable[[Iteration], bool] | None = None,
    *,
    rule: StepControl | str,
) -> Solution:
    from_there = staged.restricted()
    from_there.start = np.clip(start, staged.lower, staged.upper)
    solver = GaussNewton(rule, max_iter=iterations)
    return solver.solve(from_there, Control(max(seconds, 1e-3), callback))
