"""Measurements that are no state at a time: counts per interval, means over one, values relative to the first.

Each is a reduction to states that the experiment sets at its measurements:

    per interval     c' = rate,  c = 0 at every measurement;   the value measured is c just before
    mean             that, over  d' = 1,  d = 0 at every measurement
    relative         f' = 0,  f = the value at the first measurement;   later values are  value / f,  and the first is 1

so that every transcription, solver and statistic works as it is.  A model knows what it has to remember
(`IntervalMemory`), an experiment when (see `with_resets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import casadi as ca

from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes
from castfit.model.expressions import number_or_expression


@add_brief_repr
@dataclass(frozen=True, eq=False)
class IntervalOutput:
    """An output that depends on earlier measurements; create it with `per_interval` and its like."""

    kind: str
    expression: Any


@dataclass(frozen=True)
class IntervalMemory:
    """Memory of one output, "per interval", "mean" or "relative", with the names of its states."""

    output: str
    kind: str
    states: tuple[str, ...]

    @property
    def value(self) -> str:
        """The output of the model that a relative one is relative to the first value of."""
        return f"{self.output} itself"


def per_interval(rate: Any) -> IntervalOutput:
    """Declare an output that is the integral of a rate since the previous measurement, such as weekly counts of cases.

    The first interval begins at the experiment's start.  Between measurements, predictions show the integral so far;
    plots show the whole integral as a constant over the interval.  NaN is no measurement: the next value is the
    integral over both intervals.  If a value counts its own interval only, add a value with a very large sigma at the
    start of that interval.

    Parameters
    ----------
    rate : casadi.SX expression
        Of states, parameters, inputs and time, per unit of time.

    Raises
    ------
    InputError
        If it is no scalar expression.

    Examples
    --------
    >>> import castfit as cf
    >>> s, i, b, g, rho = cf.symbols("s i b g rho")
    >>> model = cf.Model(
    ...     {s: -b * s * i, i: b * s * i - g * i},
    ...     parameters=[b, g, rho],
    ...     outputs={"cases": cf.per_interval(rho * b * s * i)},
    ...     initial={s: 0.99, i: 0.01},
    ... )
    >>> cf.simulate(model, {"b": 2.0, "g": 0.5, "rho": 1000}, [0, 1, 2, 3])["cases"].round(1)
    array([  0. ,  43.8, 195.9, 501.6])
    """
    return _remembered("per_interval", "per interval", "rate", rate)


def interval_mean(expression: Any) -> IntervalOutput:
    """Declare an output that is the mean of an expression since the previous measurement.

    Parameters
    ----------
    expression : casadi.SX expression

    Raises
    ------
    InputError
        If it is no scalar expression.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], outputs={"mean": cf.interval_mean(x)}, initial={x: 2.0})
    >>> print(cf.simulate(model, {"k": 1.0}, [0, 1, 2])["mean"].round(4))
    [2.     1.2642 0.8647]
    """
    return _remembered("interval_mean", "mean", "expression", expression)


def relative_to_first(expression: Any) -> IntervalOutput:
    """Declare an output that is an expression divided by its value at the first measurement of this output.

    Up to there it is 1, whatever the model.  Give the first value, which says when that is: it does not count as
    measured.

    Parameters
    ----------
    expression : casadi.SX expression

    Raises
    ------
    InputError
        If it is no scalar expression.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], outputs={"fold": cf.relative_to_first(x)}, initial={x: 2.0})
    >>> print(cf.simulate(model, {"k": 1.0}, [0, 1, 2])["fold"].round(4))
    [1. 1. 1.]
    """
    return _remembered("relative_to_first", "relative", "expression", expression)


def _remembered(function_name: str, kind: str, label: str, value: Any) -> IntervalOutput:
    mistakes: list[str] = []
    expression = number_or_expression(label, value, "give a scalar SX expression of the model's symbols", mistakes)
    raise_if_mistakes(function_name, mistakes)
    return IntervalOutput(kind, expression)


@dataclass(frozen=True)
class ReducedOutputs:
    """Outputs without remembered ones, and the states, rates and initial values that hold these."""

    outputs: dict[str, Any]
    rates: dict[ca.SX, Any]
    initial: dict[str, float]
    memories: tuple[IntervalMemory, ...]


def reduce_interval_outputs(outputs: Mapping[str, Any]) -> ReducedOutputs:
    """Replace outputs with memory by ordinary outputs and additional states."""
    ordinary: dict[str, Any] = {}
    rates: dict[ca.SX, Any] = {}
    initial: dict[str, float] = {}
    memories: list[IntervalMemory] = []
    for name, output in outputs.items():
        if not isinstance(output, IntervalOutput):
            ordinary[name] = output
            continue
        memory_symbol = ca.SX.sym(f"{name} {'at first' if output.kind == 'relative' else 'so far'}")
        states = [memory_symbol]
        if output.kind == "relative":
            start_flag = ca.SX.sym(f"{name} begun")  # 0 until the first measurement, then 1
            rates |= {memory_symbol: 0, start_flag: 0}
            initial |= {memory_symbol.name(): 1.0, start_flag.name(): 0.0}
            states.append(start_flag)
            ordinary[f"{name} itself"] = output.expression
            ordinary[name] = ca.if_else(start_flag > 0.5, output.expression / memory_symbol, 1)
        else:
            rates[memory_symbol], initial[memory_symbol.name()] = output.expression, 0.0
            ordinary[name] = memory_symbol
        if output.kind == "mean":
            elapsed_time = ca.SX.sym(f"{name} since")
            rates[elapsed_time], initial[elapsed_time.name()] = 1, 0.0
            states.append(elapsed_time)
            # Before anything is gathered the mean is the value itself.
            ordinary[name] = ca.if_else(
                elapsed_time > 0, memory_symbol / ca.if_else(elapsed_time > 0, elapsed_time, 1), output.expression
            )
        memories.append(IntervalMemory(name, output.kind, tuple(s.name() for s in states)))
    return ReducedOutputs(ordinary, rates, initial, tuple(memories))
