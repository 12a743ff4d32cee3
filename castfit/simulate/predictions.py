"""Predictions: outputs by experiment and name, found directly as well where there is but one experiment."""

from __future__ import annotations

from typing import Any

from castfit._support.status import suggest


class Prediction(dict[str, Any]):
    """Predictions of a problem, ``{experiment: {"time": (n,), output: (n,), ...}}``.

    For a single experiment, ``prediction[output]`` is ``prediction[experiment][output]``.
    """

    def __missing__(self, name: str) -> Any:
        single: dict[str, Any] = next(iter(self.values())) if len(self) == 1 else {}
        if name in single:
            return single[name]
        if single:
            raise KeyError(f"{name!r} is neither an experiment nor an output: {suggest(str(name), [*self, *single])}")
        experiment = next((e for e, outputs in self.items() if name in outputs), None)
        remedy = suggest(str(name), self) if experiment is None else f"write [{experiment!r}][{name!r}]"
        raise KeyError(f"unknown experiment {name!r}; {remedy}")


class Simulation(dict[str, Any]):
    """Simulation of a model without data, usable like one experiment of a problem.

    Maps ``"time"`` and each output to an array (n,).  ``simulation["experiment 1"]`` is the simulation itself.
    """

    def __missing__(self, name: str) -> Any:
        if name == "experiment 1":
            return self
        raise KeyError(f"unknown output {name!r}: {suggest(str(name), self)}")
