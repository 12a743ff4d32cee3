"""The integrators of a model, built (and compiled) once however many fits use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from castfit._support.casadi_functions import Built
from castfit.integrate import Integrator, IntegratorOptions, SharedGrids

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from castfit.model.model import Model, System

    Array = NDArray[np.float64]


class Integrable(Protocol):
    """A model, or what else has a system."""

    @property
    def system(self) -> System:
        """What is integrated."""
        ...


_BUILT: Built[Integrable, dict[tuple[tuple[float, ...], IntegratorOptions], Integrator]] = Built()
_GRIDS: Built[Model, SharedGrids] = Built()


def relative_grid(model: Model, times: Array) -> Array:
    """Return times[1:] (m,) relative to times[0] ... times[-1]; grids that differ by rounding only become one."""
    return np.array(_GRIDS.get(model, lambda _: SharedGrids()).share(times))


def integrator_of(model: Integrable, grid: ArrayLike, options: IntegratorOptions) -> Integrator:
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
        like = next((known for (_, chosen), known in built.items() if chosen == options), None)
        built[key] = like.on(times) if like else Integrator(model.system, times, options)
    return built[key]
