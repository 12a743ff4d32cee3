"""What the data of individuals cost whom the workers of a crew hold.

Each worker is sent its individuals once, data and all, and then parameters; it answers with costs, gradients and
curvatures.  Somebody's numbers do not depend on who else is there, so they are those of one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.process_pool import Lost
from castfit.drive.population.aligned import Aligned, laid_out
from castfit.drive.population.cohort import Cohort, Curved, of_some
from castfit.integrate.crew import Asked, held

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.drive.population.question import Question
    from castfit.integrate import IntegratorOptions
    from castfit.integrate.crew import Crew

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]


class Divided(Cohort):
    """The cohort of a question of which every experiment is `suitable`, divided among the workers of a crew.

    Parameters
    ----------
    question : Question
    integrator : IntegratorOptions
    crew : Crew
    """

    def __init__(self, question: Question, integrator: IntegratorOptions, crew: Crew) -> None:
        self._question, self._crew = question, crew
        grids, units = laid_out(question)
        self._parts = crew.shares(question.n)
        self._held = [
            held(
                Aligned,
                of_some(question, np.arange(part.start, part.stop, dtype=np.intp)),
                integrator,
                (grids[part], units[part]),
            )
            for part in self._parts
        ]

    def curved(self, phi: Array, s: Array, who: Index) -> Curved:
        """Return costs, gradients and curvatures."""
        size = self._question.m + s.size
        cost, failures = np.full(who.size, np.inf), dict[int, str]()
        gradient, curvature = np.full((who.size, size), np.nan), np.full((who.size, size, size), np.nan)
        places = [np.flatnonzero((who >= part.start) & (who < part.stop)) for part in self._parts]
        answers = self._answers(
            "curved", [(phi[at], s, who[at] - part.start) for at, part in zip(places, self._parts, strict=True)]
        )
        for at, own in zip(places, answers, strict=True):
            if isinstance(own, Lost):
                failures |= dict.fromkeys(at.tolist(), own.message)
                continue
            cost[at], gradient[at], curvature[at] = own.cost, own.gradient, own.curvature
            failures |= {int(at[k]): why for k, why in own.failures.items()}
        return Curved(cost, failures, gradient, curvature)

    def seen(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of everybody's values."""
        found: list[tuple[Array, Array, Array]] = []
        for part, own in zip(self._parts, self._answers("seen", [(phi[part], s) for part in self._parts]), strict=True):
            count = sum(int(c.points.mask.sum()) for c in self._question.problem.conditions[part])
            lost = isinstance(own, Lost)
            found.append((np.full(count, np.nan), np.ones(count), np.full(count, np.nan)) if lost else own)
        return tuple(np.concatenate(column) for column in zip(*found, strict=True))  # pyright: ignore[reportReturnType]

    def _answers(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return self._crew.run([Asked(what, method, given) for what, given in zip(self._held, arguments, strict=True)])
