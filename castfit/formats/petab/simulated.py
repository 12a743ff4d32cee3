"""What a problem predicts for every row of the measurements table it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from castfit.formats.petab.likelihood import Objective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.integrate import IntegratorOptions
    from castfit.formats.petab.loading import Loaded

    Array = NDArray[np.float64]


def simulated(
    loaded: Loaded, parameters: Mapping[str, float] | None = None, integrator: IntegratorOptions | None = None
) -> Array:
    """Return the prediction of each measured value (n,), in the order of the measurements table.

    Parameters
    ----------
    loaded : Loaded
    parameters : mapping from str to float, optional
        Natural values; those that are left out stand at their guess.
    integrator : IntegratorOptions, optional
    """
    problem = loaded.problem
    theta = problem.posed.theta_from(parameters or {})
    table = Objective(problem, theta, integrator).evaluate(theta).table
    keys = zip(table["experiment"], table["output"], table["time"].tolist(), strict=True)
    found = dict(zip(keys, table["prediction"].tolist(), strict=True))
    rest = {c.name for c in problem.conditions if c.settled}
    out: list[float] = []
    for datum in loaded.observing.data:
        name = datum.row.experiment
        label = f"{name} at rest" if np.isinf(datum.row.time) and f"{name} at rest" in rest else name
        out.append(found[label, datum.output, datum.row.time])
    return np.array(out)
