"""The methods that tables compare, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from castfit.fit import Solver, fit
from castfit.integrate import IntegratorOptions
from castfit.problem import Problem
from castfit.result import Result
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.ipopt import Ipopt
from castfit.transcribe.direct_collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

INTEGRATOR = IntegratorOptions("rosenbrock", relative_tolerance=1e-6, absolute_tolerance=1e-8, compile="auto")
"""How tables integrate unless told otherwise, by measurement on calcium.

CPU seconds per start, and chi2 at the optimum less 787.8624: compiled Rosenbrock 0.59 and 4e-4, at 1e-8 0.88 and 3e-4;
compiled CVODES 0.78 and -8e-3, at 1e-8 0.80 and 0.  CVODES at 1e-6 is so rough that convergence stays in doubt.
"""


class Method(Protocol):
    """A way to fit, for `run_table`; workers look it up by name."""

    @property
    def description(self) -> str:
        """What it is, for the table."""
        ...

    def __call__(
        self, problem: Problem, start: Mapping[str, float], *, integrator: IntegratorOptions, max_time: float
    ) -> Result:
        """Fit from a start within max_time seconds."""
        ...


@dataclass(frozen=True)
class PlainFit:
    """One call of `fit`; `second_start` says whether it may go on from the measured states."""

    transcription: SingleShooting | MultipleShooting | Collocation
    solver: Solver
    description: str
    second_start: bool = False

    def __call__(
        self, problem: Problem, start: Mapping[str, float], *, integrator: IntegratorOptions, max_time: float
    ) -> Result:
        """Fit from a start within max_time seconds."""
        return fit(
            problem,
            replace(self.transcription, integrator=integrator),
            self.solver,
            start=start,
            second_start=self.second_start,
            max_time=max_time,
        )


METHODS: dict[str, Method] = {
    "default": PlainFit(
        MultipleShooting(25), GaussNewton(), "multiple shooting, 25 intervals, with all rescues", second_start=True
    ),
    "homotopy": PlainFit(MultipleShooting(25), GaussNewton(), "the same, never from the measured states"),
    "natural-level": PlainFit(
        MultipleShooting(25),
        GaussNewton(homotopy="always"),
        "softened problems, then condensing with the natural level function",
    ),
    "paper": PlainFit(
        MultipleShooting(17),
        GaussNewton(homotopy="never", max_iter=1000),
        "17 intervals, natural level function, no homotopy",
    ),
    "single": PlainFit(
        SingleShooting(), GaussNewton(homotopy="never"), "single shooting, natural level function, no homotopy"
    ),
    "hemker": PlainFit(
        SingleShooting(), GaussNewton("hemker", homotopy="never"), "single shooting with Hemker's step rule"
    ),
    "collocation": PlainFit(
        Collocation(elements=800), GaussNewton(), "collocation, 800 elements, Gauss-Newton", second_start=True
    ),
    "collocation/ipopt": PlainFit(
        Collocation(elements=800), Ipopt(), "collocation, 800 elements, IPOPT with exact Hessian"
    ),
}
