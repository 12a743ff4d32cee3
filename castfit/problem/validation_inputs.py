"""What can be wrong with estimated inputs, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of
from castfit.experiment.events import Event, symbols_of
from castfit.problem.parameters import estimated_inputs

if TYPE_CHECKING:
    from castfit.experiment.estimated_inputs import EstimatedInput
    from castfit.experiment.experiment import Experiment
    from castfit.model.model import Model
    from castfit.problem.parameters import Parameter, Statement


def input_mistakes(said: Statement) -> list[str]:
    """Find every mistake in what is said of inputs that are estimated."""
    mistakes: list[str] = []
    meant: dict[str, list[tuple[str, EstimatedInput, Experiment]]] = {}
    for e in said.experiments:
        for called, u in estimated_inputs(e).items():
            meant.setdefault(u.label(called), []).append((called, u, e))
            mistakes += [f"{e.name}: {m}" for m in _elsewhere(called, e)]
    taken = {*said.model.parameters, *said.model.states, *said.model.algebraic_states}
    for label, uses in meant.items():
        if len({u.said for _, u, _ in uses}) > 1:
            mistakes.append(
                f"the estimated input '{label}' is given in different ways; say the same wherever it is named, or give "
                "names, name=, or per_experiment=True with the same knots"
            )
            continue
        called, u, _ = uses[0]
        mistakes += [
            f"'{n}' is a value of the estimated input '{label}' and a name in the model; rename one of them"
            for n in u.names(called)
            if n in taken
        ]
        groups = [[e] for *_, e in uses] if u.per_experiment else [[e for *_, e in uses]]
        mistakes += [m for group in groups for m in _useless(label, u, group)]
    return mistakes


def local_mistakes(model: Model, experiments: Iterable[Experiment], given: Mapping[str, Parameter]) -> list[str]:
    """Find values of an input that differs between experiments of which the parameters say otherwise."""
    return [
        f"'{n}' differs between experiments by Input.estimated(per_experiment=True); add local=True"
        for e in experiments
        for called, u in estimated_inputs(e).items()
        if u.per_experiment and called in model.inputs
        for n in u.names(called)
        if n in given and not is_one_of(given[n].local, True, np.True_)
    ]


def _useless(label: str, u: EstimatedInput, experiments: list[Experiment]) -> list[str]:
    """Find knots on whose values nothing that was measured depends."""
    start, end = min(e.start for e in experiments), max(e.end for e in experiments)
    t = u.knots
    steps = u.kind == "piecewise_constant"
    late = t >= end if steps else np.append(False, t[:-1] >= end)
    early = np.append(t[1:] <= start, False)
    found: list[str] = []
    if late.any():
        found.append(
            f"the knot {t[late][-1]:g} of '{label}' lies behind the last measurement at {end:g}"
            f"{', and a value holds from its knot on' if steps else ''}; nothing depends on it, leave it out"
        )
    if early.any():
        found.append(
            f"the knot {t[early][0]:g} of '{label}' lies before the start {start:g}, and so does the next one; "
            "nothing depends on it, leave it out"
        )
    return found


def _elsewhere(called: str, experiment: Experiment) -> list[str]:
    """Find where an estimated input cannot stand."""
    found = [
        f"'{n}', a value of the input '{called}', is given by the experiment; fix it in the problem's parameters"
        for n in estimated_inputs(experiment)[called].names(called)
        if n in experiment.parameters
    ]
    for i, event in enumerate(experiment.events):
        simple = isinstance(event, Event) and not isinstance(event.time, ca.SX) and event.when is None
        if not simple and called in symbols_of([event]):
            found.append(
                f"event {i + 1} contains the input '{called}', which is estimated; that is possible for an Event at a "
                "known time only"
            )
    for output, noise in experiment.noise.items():
        graphs: list[Any] = [*noise.symbols, noise.sigma]
        if any(s.name() == called for g in graphs if isinstance(g, ca.SX) for s in ca.symvar(g)):
            found.append(
                f"sigma of '{output}' contains the input '{called}', which is estimated; add an output of the model "
                "that equals it, and write sigma with the output's name"
            )
    return found
