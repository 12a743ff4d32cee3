"""Outputs of a posed problem at any times, and how they move with theta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from castfit._support.arguments import read_mapping, read_reals, shorten_repr
from castfit._support.arrays import Array
from castfit._support.status import raise_if_mistakes, unknown_names
from castfit.densities.noise.gaussian import Gaussian
from castfit.experiment.experiment import MeasurementPoints
from castfit.integrate import IntegratorOptions
from castfit.problem.compiled_experiments import Condition
from castfit.problem.compiled_problem import CompiledProblem
from castfit.problem.observables import ObservedOutput
from castfit.simulate.simulate import SimulationError
from castfit.solve.staged import Linearization, StagedProblem
from castfit.transcribe.single_shooting import SingleShooting


@dataclass(frozen=True, eq=False)
class OutputSensitivities:
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


@dataclass(frozen=True, eq=False)
class ResponseFunction:
    """The outputs of one experiment at given times, integrated with their forward sensitivities at any theta.

    names : tuple of str
    times (n,) : increasing, from the experiment's start on
    staged : the experiment, posed as if they were measured
    """

    names: tuple[str, ...]
    times: Array
    staged: StagedProblem

    @classmethod
    def from_condition(
        cls,
        compiled_problem: CompiledProblem,
        condition: Condition,
        times: Array,
        theta: Array,
        options: IntegratorOptions,
        outputs: Sequence[str] | None = None,
    ) -> ResponseFunction:
        """Pose one experiment; theta (n_theta,) gives the magnitudes of states; outputs are all outputs by default."""
        names = compiled_problem.model.output_names if outputs is None else tuple(outputs)
        return cls(names, times, simulated(compiled_problem, condition, times, theta, options, names))

    def __call__(self, theta: Array) -> OutputSensitivities | None:
        """Return the outputs and their derivatives at theta (n_theta,); None if the integration fails."""
        staged, shape = self.staged, (self.times.size, len(self.names))
        linear = staged.linearize(theta)
        if not linear.ok:
            return None
        slopes = output_derivatives(staged, linear, theta).reshape(*shape, theta.size)
        ((values, *_),) = staged.standardised(theta)
        sensitivities = OutputSensitivities(self.names, self.times, values.reshape(shape), slopes)
        return (
            sensitivities
            if np.isfinite(sensitivities.values).all() and np.isfinite(sensitivities.slopes).all()
            else None
        )


def responses(
    compiled_problem: CompiledProblem,
    condition: Condition,
    times: Array,
    theta: Array,
    options: IntegratorOptions,
    *,
    outputs: Sequence[str] | None = None,
) -> OutputSensitivities | None:
    """Evaluate a `ResponseFunction` once. Return None if the integration fails."""
    return ResponseFunction.from_condition(compiled_problem, condition, times, theta, options, outputs)(theta)


def natural_responses(
    compiled_problem: CompiledProblem, theta: Array, times: Any, options: IntegratorOptions
) -> dict[str, OutputSensitivities]:
    """Return the outputs of every experiment at given times, with derivatives with respect to natural values.

    times : for all, or by experiment; None for the measured ones.  What is none is an InputError.
    """
    conditions = {c.name: c for c in compiled_problem.conditions}
    mistakes: list[str] = []
    times_by_name = (
        read_mapping("times", times, mistakes) if isinstance(times, Mapping) else dict.fromkeys(conditions, times)
    )
    mistakes += unknown_names("unknown experiment '{}'", times_by_name, conditions)
    output_times: dict[str, Array] = {}
    for name in [n for n in times_by_name if n in conditions]:
        experiment_times = (
            conditions[name].points.times if times_by_name[name] is None else read_reals(times_by_name[name])
        )
        if (
            experiment_times is None
            or experiment_times.ndim != 1
            or not experiment_times.size
            or not np.isfinite(experiment_times).all()
            or experiment_times.min() < conditions[name].start
        ):
            mistakes.append(
                f"times of '{name}' are {shorten_repr(times_by_name[name])}; expected numbers from its start on"
            )
        else:
            output_times[name] = np.unique(experiment_times)
    raise_if_mistakes("sensitivities", mistakes)
    sensitivities: dict[str, OutputSensitivities] = {}
    for name, experiment_times in output_times.items():
        response = responses(compiled_problem, conditions[name], experiment_times, theta, options)
        if response is None:
            raise SimulationError(name, np.nan, "the model could not be integrated with its sensitivities")
        sensitivities[name] = replace(response, slopes=response.slopes / compiled_problem.natural_slope(theta))
    return sensitivities


def simulated(
    compiled_problem: CompiledProblem,
    condition: Condition,
    times: Array,
    theta: Array,
    options: IntegratorOptions,
    names: Sequence[str],
) -> StagedProblem:
    """Pose one experiment by single shooting as if outputs were measured at times, to be zero with errors of 1."""
    observable = ObservedOutput(Gaussian(), -1, ("",))
    unmeasured = MeasurementPoints(times, np.zeros((times.size, len(names))), np.ones((times.size, len(names))))
    unmeasured_problem = replace(
        compiled_problem,
        experiments=tuple(e for e in compiled_problem.experiments if e.name == condition.name),
        conditions=(
            replace(condition, points=unmeasured, watched_times=np.empty(0), observed=(observable,) * len(names)),
        ),
        outputs=tuple(names),
        groups=(),
        spreads=(),
        noise_parameters=frozenset[str](),
    )
    # Scales that were eliminated are quantities here: there are no data that would determine them anew.
    return SingleShooting(options).transcribe(unmeasured_problem, theta).explicit()


def output_derivatives(staged: StagedProblem, linear: Linearization, theta: Array) -> Array:
    """Return the derivatives of the `simulated` outputs by theta, (n n_outputs, n_theta), point by point."""
    rows = linear.jacobians[0].R_q[0]
    slopes = np.zeros((len(rows), theta.size))
    slopes[:, staged.layout.chains[0].theta] = rows
    return slopes
