"""Whether two fits are of the same measured values, so that their likelihoods may be compared; if not, which differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.problem.compiled_problem import LOSS, NO_LIKELIHOOD
from castfit.problem.fingerprint import question

if TYPE_CHECKING:
    from castfit.problem.compiled_experiments import Condition
    from castfit.problem.compiled_problem import CompiledProblem
    from castfit.problem.problem import Posable
    from castfit.result.result import Result


def data_mistakes(first_result: Result, second_result: Result, names: tuple[str, str]) -> list[str]:
    """List the differences between the data of two fits, which are called by `names`.

    Noise models and standard deviations may differ, because likelihoods include them; times and values must agree.  A
    loss that is not a likelihood cannot be compared.
    """
    names_without_likelihood = [
        name for name, r in zip(names, (first_result, second_result), strict=True) if r.measure == LOSS
    ]
    if names_without_likelihood:
        names_text = " and ".join(dict.fromkeys(names_without_likelihood))
        return [f"{names_text}: {NO_LIKELIHOOD}"]
    first_problem, second_problem = first_result.problem, second_result.problem
    return (
        _by_hashes(first_result, second_result, names)
        if first_problem is None or second_problem is None
        else differing_data(first_problem, second_problem, names)
    )


def differing_data(first_problem: Posable, second_problem: Posable, names: tuple[str, str]) -> list[str]:
    """List the differences between the data of two problems; see `data_mistakes`."""
    first_experiments = {c.name: c for c in first_problem.posed.conditions}
    second_experiments = {c.name: c for c in second_problem.posed.conditions}
    mistakes = [
        f"experiment '{name}' exists only in {fit_name}; compare fits to the same data"
        for fit_name, experiments, other_experiments in (
            (names[0], first_experiments, second_experiments),
            (names[1], second_experiments, first_experiments),
        )
        for name in experiments
        if name not in other_experiments
    ]
    for name in first_experiments:
        if name in second_experiments:
            mistakes += _differences(
                first_problem.posed, first_experiments[name], second_problem.posed, second_experiments[name], names
            )
    return mistakes


def _by_hashes(first_result: Result, second_result: Result, names: tuple[str, str]) -> list[str]:
    hashes = [r.question if r.problem is None else question(r.problem) for r in (first_result, second_result)]
    data = [{k: v for k, v in h.items() if k.startswith("data of ")} for h in hashes]
    if not all(data):
        return [f"whether {names[0]} and {names[1]} have the same data is unknown; use result.with_problem"]
    return [
        f"{key}, or the noise that it is given, differs between {names[0]} and {names[1]}; use result.with_problem"
        for key in dict.fromkeys((*data[0], *data[1]))
        if data[0].get(key) != data[1].get(key)
    ]


def _differences(
    first_problem: CompiledProblem,
    first_condition: Condition,
    second_problem: CompiledProblem,
    second_condition: Condition,
    names: tuple[str, str],
) -> list[str]:
    first_data, second_data = _measured(first_problem, first_condition), _measured(second_problem, second_condition)
    mistakes: list[str] = []
    for output in dict.fromkeys((*first_data, *second_data)):
        where = f"'{output}' in '{first_condition.name}'"
        if output not in first_data or output not in second_data:
            owner_name = names[0] if output in first_data else names[1]
            mistakes.append(f"measurements of {where} exist only in {owner_name}; compare fits to the same data")
        elif first_data[output].shape != second_data[output].shape or not np.array_equal(
            first_data[output], second_data[output]
        ):
            mistakes.append(
                f"the measurements of {where} differ between {names[0]} and {names[1]}; compare fits to the same data"
            )
    return mistakes


def _measured(compiled_problem: CompiledProblem, condition: Condition) -> dict[str, np.ndarray]:
    """Return (n, 2) times and values by output."""
    points, data = condition.points, dict[str, np.ndarray]()
    for j, name in enumerate(compiled_problem.outputs):
        is_measured = points.mask[:, j]
        if is_measured.any():
            times = np.full(int(is_measured.sum()), np.inf) if condition.is_steady_state else points.times[is_measured]
            data[name] = np.column_stack([times, points.values[is_measured, j]])
    return data
