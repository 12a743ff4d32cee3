"""Outputs of a posed problem at any times, and how they move with theta."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.densities.noise.gaussian import Gaussian
from castfit.experiment.experiment import Points
from castfit.problem.observables import ObservedOutput
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._support.arrays import Array
    from castfit.integrate import IntegratorOptions
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import Posed
    from castfit.solve.staged import Linearization, StagedProblem


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

    times (n,) : increasing, from the experiment's start on
    theta (n_theta,)
    outputs : by default all that the model has, its states included
    """
    names = posed.model.output_names if outputs is None else tuple(outputs)
    staged = simulated(posed, condition, times, theta, options, names)
    linear = staged.linearize(theta)
    if not linear.ok:
        return None
    slopes = slopes_of(staged, linear, theta).reshape(times.size, len(names), theta.size)
    ((values, *_),) = staged.standardised(theta)
    found = Responses(names, times, values.reshape(times.size, len(names)), slopes)
    return found if np.isfinite(found.values).all() and np.isfinite(found.slopes).all() else None


def simulated(
    posed: Posed,
    condition: Condition,
    times: Array,
    theta: Array,
    options: IntegratorOptions,
    names: Sequence[str],
) -> StagedProblem:
    """Pose one experiment by single shooting as if outputs were measured at times, to be zero with errors of 1."""
    plain = ObservedOutput(Gaussian(), -1, ("",))
    unmeasured = Points(times, np.zeros((times.size, len(names))), np.ones((times.size, len(names))))
    asked = replace(
        posed,
        experiments=tuple(e for e in posed.experiments if e.name == condition.name),
        conditions=(replace(condition, points=unmeasured, watched=np.empty(0), observed=(plain,) * len(names)),),
        outputs=tuple(names),
        groups=(),
        spreads=(),
        noise_parameters=frozenset[str](),
    )
    # Scales that were eliminated are quantities here: there are no data that would determine them anew.
    return SingleShooting(options).transcribe(asked, theta).explicit()


def slopes_of(staged: StagedProblem, linear: Linearization, theta: Array) -> Array:
    """Return the derivatives of what is `simulated` by theta, (n n_outputs, n_theta), point by point."""
    rows = linear.jacobians[0].R_q[0]
    slopes = np.zeros((len(rows), theta.size))
    slopes[:, staged.layout.chains[0].theta] = rows
    return slopes
