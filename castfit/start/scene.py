"""What searches of one problem share, built once per process: the problem at low accuracy, its horizons, where to draw.

Starts are compared, and trajectories followed, by single shooting at the accuracy of a search; nothing that is reported
is: what looks good is fitted again by `castfit.fit`, at full accuracy, and verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit._casadi import Built, find_compiler
from castfit.integrate import IntegratorOptions
from castfit.start.surrogate import surrogate
from castfit.transcribe.shooting_problem import ShootingProblem
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from castfit._array import Array
    from castfit.posed import Posed
    from castfit.staged import StagedProblem

_TOLERANCES = 1e-6, 1e-8
_WORTH_COMPILING = 1500.0  # simulations: a second or two


@dataclass
class Scene:
    """A posed problem as searches see it.

    asked : Posed
        The problem as it was given.
    searched : Posed
        The same with normal errors, whose unknown sizes are eliminated, in the place of other densities.
    staged : StagedProblem
        That one, by single shooting at low accuracy.
    """

    asked: Posed
    searched: Posed
    staged: StagedProblem
    transcription: SingleShooting
    _shorter: dict[float, StagedProblem] = field(default_factory=dict[float, "StagedProblem"])
    _work: float = 0.0

    @property
    def times(self) -> Array:
        """The distinct times after the start at which anything is measured, (n_times,)."""
        after = [c.points.times[c.points.times > c.start] for c in self.searched.conditions]
        return np.unique(np.concatenate([np.empty(0), *after]))

    @property
    def places(self) -> list[int]:
        """Where the quantities that are searched stand among all."""
        return [self.asked.names.index(name) for name in self.searched.names]

    def until(self, end: float) -> StagedProblem:
        """Return the problem up to a measured time."""
        if end not in self._shorter:
            shorter = self.searched.until(end)
            self._shorter[end] = self.transcription.transcribe(shorter, shorter.guess)
        return self._shorter[end]

    def worked(self, work: float) -> None:
        """Count work, in simulations; once there was as much as a compiler takes, the model's functions are compiled.

        Results are the same to the last bit.
        """
        self._work += work
        options = self.transcription.integrator
        if self._work < _WORTH_COMPILING or options.method != "esdirk" or options.compile != "never":
            return
        self.transcription = SingleShooting(replace(options, compile="auto"))
        self.staged = _compiled(self.staged, self.transcription.integrator)
        self._shorter = {end: _compiled(of, self.transcription.integrator) for end, of in self._shorter.items()}

    def cost(self, theta: Array) -> float:
        """Return the cost at theta (n,), infinite where the model cannot be integrated."""
        at = self.staged.evaluate(np.clip(theta, self.staged.lower, self.staged.upper))
        return at.cost if at.ok and np.isfinite(at.cost) else np.inf


_SCENES: Built[Posed, Scene] = Built()


def scene_of(posed: Posed) -> Scene:
    """Return the scene of a posed problem, built once."""
    return _SCENES.get(posed, _scene)


def search_options() -> IntegratorOptions:
    """Return how searches integrate: by the method in compiled code, where there is a compiler."""
    relative, absolute = _TOLERANCES
    method = "auto" if find_compiler() is None else "esdirk"
    return IntegratorOptions(
        method=method, relative_tolerance=relative, absolute_tolerance=absolute, watch_sensitivities=False
    )


def _scene(posed: Posed) -> Scene:
    searched = posed if posed.least_squares else surrogate(posed)
    transcription = SingleShooting(search_options())
    return Scene(posed, searched, transcription.transcribe(searched, searched.guess), transcription)


def _compiled(staged: StagedProblem, options: IntegratorOptions) -> StagedProblem:
    return staged.integrated_by(options) if isinstance(staged, ShootingProblem) else staged
