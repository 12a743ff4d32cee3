"""How large states are: what absolute tolerances are relative to, and variables are scaled by.

The unit of a state is its mean magnitude over a trajectory.  A state that stands at zero there, because it starts at
zero and was not simulated, takes the magnitude to which its rate can lead: |f| T within the horizon T, or less where
it decays, |f| / |df/dx|, with the states that are known so far at theirs; so the products of a reaction get their units
one after the other.  Everything here scales with the states and with time: in other units the units are other numbers
and the tolerances the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import Built

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from castfit.experiment.inputs import Input
    from castfit.model.model import Model

    Array = NDArray[np.float64]

_RATES: Built[Model, dict[int, ca.Function]] = Built()
"""Of so many points at once, by their number; 0 for one."""
_SIZES = 8  # that are kept


def units_of(
    model: Model, inputs: Sequence[Input], p: Array, horizon: float, table: tuple[Array, Array, Array]
) -> Array:
    """Return typical magnitudes (n_x + n_z,), positive; 1 for what never moves from zero.

    Parameters
    ----------
    model : Model
    inputs : sequence of Input
    p : (n_p,) array
    horizon : float
        Length of the experiment.
    table : (times (n,), states (n, n_x), algebraic states (n, n_z))
    """
    times, x, z = table
    size = mean_magnitude(x)
    least = 1.0 / horizon if horizon > 0.0 else np.inf  # in no time at all nothing moves from zero
    for _ in range(size.size if (size == 0.0).any() else 0):
        known = np.where((x == 0.0) & (size > 0.0), size, x)
        rates, decay = _rates(model, inputs, times, known, z, p)
        new = np.where(size == 0.0, rates / np.maximum(decay, least), 0.0)
        if not (new > 0.0).any():
            break
        # What decays the faster the larger it is settles between the two.
        _, faster = _rates(model, inputs, times, np.where(new > 0.0, new, known), z, p)
        balance = rates / np.maximum(faster, least)
        size = size + np.where(balance < new, np.sqrt(balance) * np.sqrt(new), new)
    size = np.concatenate([size, mean_magnitude(z)])
    return np.where(size > 0.0, size, 1.0)


def mean_magnitude(values: Array) -> Array:
    """Return the mean absolute value of each column of (n, m), of what is finite; 0 where nothing is."""
    finite = np.isfinite(values)
    with np.errstate(over="ignore"):
        mean = np.abs(np.where(finite, values, 0.0)).sum(axis=0) / np.maximum(finite.sum(axis=0), 1)
    return np.where(np.isfinite(mean), mean, 0.0)


def _rates(model: Model, inputs: Sequence[Input], times: Array, x: Array, z: Array, p: Array) -> tuple[Array, Array]:
    """Return the largest |f_i| and |d f_i / d x_i| over the table, (n_x,) each."""
    known = _RATES.get(model, lambda model: {0: _build(model)})
    if times.size not in known:
        known[times.size] = known[0].map(times.size)
        if len(known) > _SIZES:
            known.pop(next(size for size in known if size))
    function: Any = known[times.size]
    u = np.array([signal(times) for signal in inputs]).reshape(-1, times.size)
    found = function(times[None], x.T, z.T, np.repeat(p[:, None], times.size, axis=1), u)
    sizes = [np.abs(np.asarray(f, dtype=float)) for f in found]
    f, slope = (np.where(np.isfinite(s), s, 0.0).max(axis=1) for s in sizes)
    return f, slope


def _build(model: Model) -> ca.Function:
    ode = model.system.ode
    slopes = ca.diag(ca.jacobian(ode, model.system.x))
    return model.system.function("rates", ca.densify(ode), ca.densify(slopes))
