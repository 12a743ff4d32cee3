"""Outputs of a posed problem at any times, and how they move with theta."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.experiment import Points
from castfit.noise.gaussian import Gaussian
from castfit.observed import Observed
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._array import Array
    from castfit.conditions import Condition
    from castfit.integrate import IntegratorOptions
    from castfit.posed import Posed


@dataclass(frozen=True, eq=False)
class Responses:
    """Outputs of one experiment at times.

    names : tuple of str
    times : (n,) array
    values : (n, n_outputs) array
    slopes : (n, n_outputs, n_theta) array
        d value / d theta, search scale.
    """

    names: tuple[str, ...]
    times: Array
    values: Array
    slopes: Array


def responses(
    posed: Posed,
    condition: Condition,
    times: Array,
    theta: Array,
    options: IntegratorOptions,
    *,
    outputs: Sequence[str] | None = None,
) -> Responses | None:
    """Integrate one experiment with its forward sensitivities; None where that fails.

    Parameters
    ----------
    posed : Posed
    condition : Condition
    times : (n,) array
        Increasing, from the experiment's start on.
    theta : (n_theta,) array
    options : IntegratorOptions
    outputs : sequence of str, optional
        By default all that the model has, its states included.
    """
    names = posed.model.output_names if outputs is None else tuple(outputs)
    plain = Observed(Gaussian(), -1, ("",))
    unmeasured = Points(times, np.zeros((times.size, len(names))), np.ones((times.size, len(names))))
    asked = replace(
        posed,
        experiments=tuple(e for e in posed.experiments if e.name == condition.name),
        conditions=(replace(condition, points=unmeasured, observed=(plain,) * len(names)),),
        outputs=names,
        groups=(),
        spreads=(),
        noise_parameters=frozenset[str](),
    )
    # Scales that were eliminated are quantities here: there are no data that would determine them anew.
    staged = SingleShooting(options).transcribe(asked, theta).explicit()
    linear = staged.linearize(theta)
    if not linear.ok:
        return None
    slopes = np.zeros((times.size * len(names), theta.size))
    slopes[:, staged.layout.chains[0].theta] = linear.jacobians[0].R_q[0]
    ((values, *_),) = staged.standardised(theta)
    shape = (times.size, len(names))
    found = Responses(names, times, values.reshape(shape), slopes.reshape(*shape, theta.size))
    return found if np.isfinite(found.values).all() and np.isfinite(found.slopes).all() else None
