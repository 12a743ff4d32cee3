"""When an experiment sets what its model remembers: at the measurements of the outputs that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.experiment.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from castfit._support.arrays import Array
    from castfit.experiment.experiment import Experiment
    from castfit.model.model import Model


def with_resets(model: Model, experiment: Experiment) -> Experiment:
    """Return the experiment with the events at which its model's memory is set; itself if there is none."""
    events = tuple(_resets(model, experiment))
    return experiment.with_events((*experiment.events, *events)) if events else experiment


def _resets(model: Model, experiment: Experiment) -> Iterator[Event]:
    for memory in model.memories:
        if memory.output not in experiment.measured:
            continue
        times = _measured(experiment, memory.output)
        if memory.kind == "relative":
            held, begun = memory.states
            yield Event(float(times[0]), {held: model.outputs[memory.value], begun: 1.0})
        else:
            for t in times[:-1]:
                yield Event(float(t), dict.fromkeys(memory.states, 0.0))


def reset_mistakes(model: Model, experiment: Experiment) -> list[str]:
    """Find values of an interval without length."""
    return [
        f"'{m.output}' is measured at the start, where its first interval has no length; leave that row out, or give "
        "another start"
        for m in model.memories
        if m.kind != "relative" and m.output in experiment.measured
        if _measured(experiment, m.output)[0] <= experiment.start
    ]


def _measured(experiment: Experiment, output: str) -> Array:
    """Return the times at which an output has a value, increasing."""
    times, values = experiment.data[output]
    return np.unique(times[np.isfinite(values).any(axis=1)])
