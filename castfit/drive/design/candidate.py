"""Candidate experiments as users specify them: times, outputs and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit._support.arguments import (
    flag_mistakes,
    is_count,
    is_one_of,
    is_within,
    option_mistakes,
    read_mapping,
    read_real,
    read_reals,
    read_sequence,
    shorten_repr,
    symbol_or_text_name,
)
from castfit._support.public_names import public
from castfit._support.renamed import accept_old_names, with_old_names
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit.experiment.measurements import Relative

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from castfit._support.arrays import Array

TOGETHER = ("output", "time", "experiment")


@with_old_names(same="repeats", together="cost_unit", between="continuous_times")
@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Candidate:
    """A possible experiment, or a part of one, for `castfit.design`.

    Parameters
    ----------
    times : array
        Possible measurement times: a grid, from which times are chosen.
    outputs : sequence of str, optional
        Possible outputs; by default the outputs of the base experiment.
    experiment : str, optional
        Base experiment of the problem; by default the first.  Its free initial states and local parameters are new
        quantities of the candidate.
    repeats : bool
        Whether the candidate adds measurements to the base experiment, with the same initial states.
    initial, parameters, inputs, events
        Differences from the base experiment, as for `Experiment`.
    cost_unit : {"output", "time", "experiment"}
        What `cost` pays for: one value of one output; all outputs at one time; the whole experiment.
    cost : float or mapping from output to float
        Cost of one `cost_unit`, in the unit of the budget.
    at_most : int, optional
        Largest count of each measurement.
    fixed : bool
        Whether the candidate is measured once in any case: its cost and information are included.
    spacing : float
        Least distance of two times; 0 allows replicates.
    continuous_times : bool
        Whether times may lie between those of the grid.
    sigma : float, `relative` or mapping from output to these, optional
        Accuracy of values; by default as in the base experiment, or in another experiment of the problem.
    per_subject : int, optional
        Number of measurement times of each subject in a design of a population; by default all times.  A candidate is
        then a group, and a purchase is a subject, with `cost` and `spacing`; `at_most` limits the group.
    name : str, optional
        By default ``candidate 1`` and so on.

    Raises
    ------
    InputError
        Listing every mistake.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.Candidate([1, 2, 4, 8], ["x"], cost=2, at_most=3)
    Candidate(times=[1.0, 2.0, 4.0, 8.0], outputs=('x',), cost=2, at_most=3)
    """

    times: Array
    outputs: tuple[str, ...] = ()
    experiment: str = ""
    repeats: bool = False
    initial: Mapping[str, Any] = field(default_factory=dict[str, Any])
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    events: tuple[Any, ...] | None = None
    cost_unit: str = "output"
    cost: Any = 1.0
    at_most: float = np.inf
    fixed: bool = False
    spacing: float = 0.0
    continuous_times: bool = False
    sigma: Any = None
    per_subject: int | None = None
    name: str = ""

    @accept_old_names(same="repeats", together="cost_unit", between="continuous_times")
    def __init__(
        self,
        times: ArrayLike,
        outputs: Sequence[str] | str | None = None,
        *,
        experiment: str = "",
        repeats: bool = False,
        initial: Mapping[Any, Any] | None = None,
        parameters: Mapping[Any, Any] | None = None,
        inputs: Mapping[Any, Any] | None = None,
        events: Sequence[Any] | Any | None = None,
        cost_unit: str = "output",
        cost: float | Mapping[Any, float] = 1.0,
        at_most: float = np.inf,
        fixed: bool = False,
        spacing: float = 0.0,
        continuous_times: bool = False,
        sigma: Any = None,
        per_subject: int | None = None,
        name: str = "",
    ) -> None:
        mistakes: list[str] = []
        grid = read_reals(times)
        if grid is None or grid.ndim != 1 or not grid.size or not np.isfinite(grid).all():
            mistakes.append(
                f"times is {shorten_repr(times)}; expected a grid of numbers, such as numpy.linspace(0, 10, 101)"
            )
            grid = np.zeros(1)
        output_items = (
            [outputs]
            if isinstance(outputs, str) or symbol_or_text_name(outputs) is not None
            else read_sequence(() if outputs is None else outputs)
        )
        names = [symbol_or_text_name(o) for o in output_items or ()]
        if output_items is None or None in names:
            mistakes.append(f"outputs is {shorten_repr(outputs)}; expected output names")
        mapping_arguments = {"initial": initial, "parameters": parameters, "inputs": inputs}
        changes = {argument: read_mapping(argument, value, mistakes) for argument, value in mapping_arguments.items()}
        event_tuple = (
            None
            if events is None
            else tuple([events] if read_sequence(events) is None else read_sequence(events) or ())
        )
        has_cost_per_output, min_distance = isinstance(cost, Mapping), read_real(spacing)
        costs = _read_per_output("cost", cost, mistakes)
        sigmas = {} if sigma is None else _read_per_output("sigma", sigma, mistakes)
        n, grid = per_subject, np.unique(grid)
        mistakes += option_mistakes(
            *(
                ("cost", c, is_within(c, 0.0, np.inf, strictly=True), "give a positive number, or one per output")
                for c in costs.values()
            ),
            ("cost_unit", cost_unit, is_one_of(cost_unit, *TOGETHER), "choose 'output', 'time' or 'experiment'"),
            ("at_most", at_most, is_count(at_most, 1, 2**53) or is_within(at_most, np.inf), "give a positive integer"),
            (
                "spacing",
                spacing,
                min_distance is not None and 0 <= min_distance < np.inf,
                "give a time that is not negative",
            ),
            ("per_subject", n, n is None or is_count(n, 1), "give a positive integer, or leave it out"),
            *(
                (
                    "sigma",
                    s,
                    isinstance(s, Relative) or is_within(s, 0.0, np.inf, strictly=True),
                    "give a positive number, cf.relative(...), or one of these per output",
                )
                for s in sigmas.values()
            ),
            ("experiment", experiment, isinstance(experiment, str), "give text"),  # pyright: ignore[reportUnnecessaryIsInstance]
            ("name", name, isinstance(name, str), "give text"),  # pyright: ignore[reportUnnecessaryIsInstance]
        )
        mistakes += flag_mistakes(repeats=repeats, fixed=fixed, continuous_times=continuous_times)
        if has_cost_per_output and not is_one_of(cost_unit, "output"):
            mistakes.append(
                "outputs that are measured together have one cost; pass a number, or set cost_unit='output'"
            )
        if repeats is True and (any(changes.values()) or event_tuple is not None):
            mistakes.append(
                "repeats=True repeats an experiment, so its conditions cannot differ; remove repeats=True or the "
                "other conditions"
            )
        if continuous_times is True and is_one_of(cost_unit, "experiment"):
            mistakes.append(
                "the times of a whole experiment are fixed; remove continuous_times=True or cost_unit='experiment'"
            )
        if continuous_times is True and grid.size < 2:
            mistakes.append(
                "continuous_times=True optimises times between grid points; pass a grid of at least two times, or "
                "remove it"
            )
        options_set = {
            "spacing": is_within(spacing, 0.0, strictly=True),
            "at_most": is_within(at_most, 1.0, 2**53, strictly=True),
        }
        if fixed is True:
            options_set["continuous_times"] = continuous_times is True
            mistakes += [
                f"a fixed candidate is measured once at all its times; remove {argument}="
                for argument, is_set in options_set.items()
                if is_set
            ]
        elif options_set["spacing"] and is_one_of(cost_unit, "experiment"):
            mistakes.append("the times of a whole experiment are fixed; remove spacing= or cost_unit='experiment'")
        elif all(options_set.values()) and n is None:
            mistakes.append("at_most= counts repetitions, which spacing= excludes; remove one of them")
        if n is not None and is_count(n, 1) and (n > grid.size or fixed is True):
            mistakes.append(
                "a fixed candidate is measured at all its times; remove per_subject= or fixed=True"
                if fixed is True
                else f"{n} times cannot be selected from {grid.size}; pass more times, or a smaller per_subject="
            )
        raise_if_mistakes("Candidate", mistakes)
        costs = {o: float(c) for o, c in costs.items()}
        values: dict[str, Any] = {
            "times": grid,
            "outputs": tuple(names),
            "experiment": experiment,
            "repeats": repeats,
            **changes,
            "events": event_tuple,
            "cost_unit": cost_unit,
            "cost": costs if has_cost_per_output else costs[""],
            "at_most": float(at_most),
            "fixed": fixed,
            "spacing": float(min_distance or 0.0),
            "continuous_times": continuous_times,
            "sigma": sigmas or None,
            "per_subject": per_subject,
            "name": name,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def sigma_of(self, output: str) -> Any:
        """Return the specified accuracy of an output, or None if none is specified."""
        sigmas: Mapping[str, Any] = self.sigma or {}
        return sigmas.get(output, sigmas.get("", None))

    @property
    def named_outputs(self) -> tuple[str, ...]:
        """All outputs named: measured ones, and keys of `cost` and `sigma`."""
        costs: dict[str, float] | float = self.cost
        sigmas: Mapping[str, Any] = self.sigma or {}
        names = (*self.outputs, *(costs if isinstance(costs, dict) else ()), *sigmas)
        return tuple(dict.fromkeys(n for n in names if n))

    def cost_of(self, output: str) -> float:
        """Return the cost of one purchase of an output."""
        costs: dict[str, float] | float = self.cost
        return costs.get(output, 1.0) if isinstance(costs, dict) else costs


def _read_per_output(argument: str, value: Any, mistakes: list[str]) -> dict[str, Any]:
    """Read a value for each output; a single value for all outputs gets the empty string as its key."""
    return read_mapping(argument, value, mistakes) if isinstance(value, Mapping) else {"": value}


def with_fields(candidate: Candidate, **changes: Any) -> Candidate:
    """Return a copy with other field values, without checks."""
    new_candidate = copy(candidate)
    for key, value in changes.items():
        object.__setattr__(new_candidate, key, value)
    return new_candidate
