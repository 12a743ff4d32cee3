"""The integrators of a model, built (and compiled) once however many fits use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit._casadi import Built
from castfit.integrate import Integrator, IntegratorOptions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from castfit.model import Model

_BUILT: Built[Model, dict[tuple[tuple[float, ...], IntegratorOptions], Integrator]] = Built()


def integrator_of(model: Model, grid: ArrayLike, options: IntegratorOptions) -> Integrator:
    """Return the integrator of a model over relative output times (m,); every thread has its own.

    Raises
    ------
    InputError
        As `Integrator`.
    """
    times = np.asarray(grid, dtype=float)
    built = _BUILT.get(model, lambda _: {})
    key = (tuple(times.tolist()), options)
    if key not in built:
        built[key] = Integrator(model.system, times, options)
    return built[key]
