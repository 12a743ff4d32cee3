"""Which data a fit reproduces so well that what is left are errors of rounding and integration, not of measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.problem.observables import unknowns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.problem.compiled_problem import Posed
    from castfit.solve.staged import Evaluation, StagedProblem

_INTEGRATED = 1e4  # times what rounding leaves: what integrators and collocation leave


def reproduced(problem: Posed, staged: StagedProblem, at: Evaluation, active: NDArray[np.int8]) -> str:
    """Say which data are reproduced exactly, so that nothing is known about their noise; empty if none are.

    Sigmas that are eliminated are then as small as errors of integration; those that are estimated are at the bound
    that the resolution of the data sets, unless another one was given.
    """
    floor = at.sigma <= staged.least_sigma
    small = at.sigma <= _INTEGRATED * staged.least_sigma
    names = [name for name, exact in zip(problem.groups, small, strict=True) if exact]
    free = {f"sigma({name})" for name, _, _, sigma in unknowns(problem.experiments) if sigma.lower == 0.0}
    estimated = (name for name, held in zip(problem.names, active[: len(problem.names)], strict=True) if held < 0)
    names += [name.removeprefix("sigma(").removesuffix(")") for name in estimated if name in free]
    if not names:
        return ""
    data = f"data of {', '.join(names)}" if all(names) else "data"
    left = "rounding" if len(names) == np.count_nonzero(floor) else "the errors of the integration"
    return f"The {data} are reproduced to within {left}; nothing is known about their noise."
