"""Exact linear dependencies among measured outputs whose errors have an unknown common covariance.

If outputs were computed from others, or forced to a common sum, the smallest determinant of the covariance is reached
at parameters that have nothing to do with the data.  Dependencies are right singular vectors of the centred data
whose singular values are not larger than the rounding of the data explains (Box, Hunter, MacGregor and Erjavec 1973,
Technometrics 15, 33-51).  The fit uses the orthogonal combinations of the outputs that remain.

Notation: Z (n, p) data, centred in each experiment, in units of the last digit; their rounding errors have the
variance 1/12.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np
import scipy

from castfit._support.reprs import join_with_and
from castfit._support.status import InputError
from castfit.densities.noise.correlation import CrossOutputCorrelation
from castfit.experiment.experiment import MeasurementPoints

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.problem.problem import Posable

_MAX_ROUNDING_RATIO = 10.0  # largest sum of squares of a dependency, relative to the expected one of rounding errors
_DIGIT_RTOL = 1e-3  # relative to the last digit: deviation of values that are rounded to it
_MAX_DIGITS = 12  # digits of a value that are examined


def without_dependencies(posable: Posable) -> tuple[Posable, str]:
    """Return the problem with independent combinations of the outputs of ``unknown("joint")``, and a sentence.

    The sentence is empty, and the problem unchanged, if there are no dependencies.

    Raises
    ------
    InputError
        If there are dependencies, and an output was not measured at every time.
    """
    problem = posable.posed
    joint = next((c.names for c in problem.correlations if isinstance(c, CrossOutputCorrelation) and c.unknown), ())
    columns = [problem.outputs.index(name) for name in joint]
    values = [c.points.values[:, columns] for c in problem.conditions]
    complete = [rows[np.isfinite(rows).all(axis=1)] for rows in values]
    digits = np.array([_last_digit(column) for column in np.concatenate(complete).T])
    Z = np.concatenate([(rows - rows.sum(axis=0) / max(len(rows), 1)) / digits for rows in complete])
    dof = len(Z) - sum(len(rows) > 0 for rows in complete)
    is_plain = all(o is None or o.is_weighted for c in problem.conditions for o in (c.observed[j] for j in columns))
    if dof <= len(joint) or not joint or not is_plain:
        return posable, ""
    _, sizes, Vt = np.linalg.svd(Z)
    n_dependencies = int(np.count_nonzero(sizes**2 <= _MAX_ROUNDING_RATIO * dof / 12.0))
    if not 0 < n_dependencies < len(joint):
        return posable, ""
    dependencies = Vt[-n_dependencies:] / digits
    pivots = scipy.linalg.qr(dependencies, mode="r", pivoting=True)[1][:n_dependencies]
    rows = np.linalg.solve(dependencies[:, pivots], dependencies)
    # A term that changes less than the rounding errors of the sum is not described.
    rounding = np.linalg.norm(rows * digits, axis=1, keepdims=True) * np.sqrt(_MAX_ROUNDING_RATIO / 12.0)
    rows = np.where(np.abs(rows) * digits * np.ptp(Z, axis=0) > rounding, rows, 0.0)
    sums = [" + ".join(f"{w:.2g}*{n}" for n, w in zip(joint, row, strict=True) if w) for row in rows.tolist()]
    described = join_with_and([text.replace("+ -", "- ").replace("1*", "") for text in sums])
    verb = "is" if n_dependencies == 1 else "are"
    sentence = f"Within the rounding errors of the data, {described} {verb} constant"
    if any(len(part) < np.isfinite(points).any(axis=1).sum() for part, points in zip(complete, values, strict=True)):
        remedy = "remove an output for each of these sums, or the times at which an output is missing"
        raise InputError("fit", [f"sigma=unknown('joint') with missing values: {sentence}; {remedy}"])
    U = scipy.linalg.null_space(dependencies)
    names = tuple(f"combination {k + 1}" for k in range(U.shape[1]))
    expressions = {
        n: ca.dot(ca.DM(column), ca.vertcat(*map(ca.SX.sym, joint))) for n, column in zip(names, U.T, strict=True)
    }
    other_columns = [j for j in range(len(problem.outputs)) if j not in columns]
    conditions, experiments = list[Any](), list[Any]()
    for condition, experiment, joint_values in zip(problem.conditions, problem.experiments, values, strict=True):
        points, z, observed = condition.points, joint_values @ U, condition.observed[columns[0]]
        is_measured = np.isfinite(z).all(axis=1)
        data = {n: entry for n, entry in experiment.data.items() if n not in joint}
        noise = {n: model for n, model in experiment.noise.items() if n not in joint}
        correlation = CrossOutputCorrelation(names, None, unknown=True)
        new_observed = [None if observed is None else replace(
            observed, noise=replace(observed.noise, correlation=correlation), predicted_outputs=(n,)
        ) for n in names]  # fmt: skip
        if observed is not None:
            data |= {n: (points.times[is_measured], z[is_measured, k : k + 1]) for k, n in enumerate(names)}
            noise |= dict.fromkeys(names, replace(experiment.noise[joint[0]], correlation=correlation))
        new_points = MeasurementPoints(
            points.times,
            np.hstack([points.values[:, other_columns], z]),
            np.hstack([points.sigma[:, other_columns], np.where(np.isfinite(z), 1.0, np.nan)]),
        )
        experiments.append(experiment.with_changes(data=data, noise=noise))
        conditions.append(
            replace(
                condition, points=new_points, observed=(*(condition.observed[j] for j in other_columns), *new_observed)
            )
        )
    reduced = replace(
        problem.with_outputs(expressions),
        outputs=(*(problem.outputs[j] for j in other_columns), *names),
        conditions=tuple(conditions),
        experiments=tuple(experiments),
    )
    return reduced, f"{sentence}. The fit uses {len(names)} of {len(joint)} orthogonal combinations of these outputs."


def _last_digit(values: Array) -> float:
    """Return the power of ten to which all values are rounded; their rounding error if there is none."""
    largest = float(np.abs(values).max(initial=0.0))
    max_exponent = int(np.ceil(np.log10(largest))) if largest > 0.0 else 0
    for exponent in range(max_exponent, max_exponent - _MAX_DIGITS, -1):
        scaled = values * 10.0**-exponent
        if np.abs(scaled - np.rint(scaled)).max(initial=0.0) < _DIGIT_RTOL:
            return 10.0**exponent
    return 10.0 ** (max_exponent - _MAX_DIGITS)
