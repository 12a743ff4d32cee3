"""Outputs that are measured in units of their own: an unknown scale, and perhaps an unknown offset.

    y = scale(y) * expression + offset(y)

Scale and offset are parameters of the model like others. If they enter the data linearly, and nothing else constrains
them, they are eliminated while fitting (castfit.problem.linear_scales and castfit.transcribe.variable_projection).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_one_of, plain_numbers, read_real, shorten_repr
from castfit._support.bounds import both_bounds
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit.densities.priors import PriorDistribution


@add_brief_repr
@dataclass(frozen=True, eq=False)
class Scaled:
    """An output with an unknown scale; create it with `scaled`."""

    expression: Any
    offset: bool = False
    name: str = ""
    per_experiment: bool = False
    guess: float | None = None
    lower: float = -np.inf
    upper: float = np.inf
    prior: PriorDistribution | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)


def scaled(
    expression: ca.SX | float,
    *,
    offset: bool = False,
    name: str = "",
    per_experiment: bool = False,
    guess: float | None = None,
    lower: float = -np.inf,
    upper: float = np.inf,
    bounds: tuple[float, float] | None = None,
    prior: PriorDistribution | None = None,
) -> Scaled:
    """Declare an output that is measured up to an unknown factor, such as intensities of a gel or of a camera.

    The output ``{"y": scaled(expression)}`` of a model is  ``scale(y) * expression``,  with the parameter ``scale(y)``,
    which needs no guess.  Where it enters the data linearly, or of `LogNormal` data additively in the logarithm, and
    nothing else is known of it, it is eliminated: at every point of a search it has the value that is best there, so
    that it costs no iterations.  Estimates and standard errors are those of a parameter, as which it is estimated
    otherwise: with bounds or a prior, with other densities, if several unknown sigmas share it, or if it appears
    elsewhere.

    It is negative where that fits best, unless bounds exclude it.  A state that only such outputs show is not taken for
    measured, unless the scale has a guess.

    Parameters
    ----------
    expression : casadi.SX
        Of the model's symbols.
    offset : bool
        Whether an unknown offset ``offset(y)`` is added.
    name : str, optional
        Outputs of the same name share scale and offset, ``scale(name)``; by default each output has its own.  Another
        parameter may also be named in `Problem(parameters=...)`, as ``{"offset(y)": Parameter(0.0, lower=0.0)}``, to
        bound it or to fix it, and a value of an experiment's own in `Experiment(parameters=...)`.
    per_experiment : bool
        Whether every experiment has its own scale and offset; by default all share them.
    guess : float, optional
        Where an estimated scale begins; of an eliminated one it only says how large measured states are at the start.
    lower, upper : float
        Bounds of the scale.  Positive ones put its search on a logarithmic scale.
    bounds : (lower, upper), optional
        The same in one argument.
    prior : PriorDistribution, optional
        What is known of the scale beforehand.

    Raises
    ------
    InputError
        If `bounds` is no pair, or given beside `lower` or `upper`.  What else is wrong is found by `Model` and
        `Problem`.

    Examples
    --------
    >>> import castfit as cf
    >>> x, k = cf.symbols("x k")
    >>> model = cf.Model({x: -k * x}, parameters=[k], outputs={"blot": cf.scaled(x, offset=True)}, initial={x: 1})
    >>> experiment = cf.Experiment({"blot": [820, 540, 370, 270, 200, 160]}, time=[0, 1, 2, 3, 4, 5])
    >>> result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    >>> result["k"]
    k = 0.48497 ± 0.0087, 95 % interval [0.4573, 0.5126] (well determined)
    >>> result["scale(blot)"]
    scale(blot) = 721.99 ± 5, 95 % interval [706.10, 737.88] (well determined)
    """
    lower, upper = both_bounds("scaled", lower, upper, bounds)
    return Scaled(expression, offset, name, per_experiment, guess, lower, upper, prior)


@dataclass(frozen=True)
class OutputScaling:
    """Scaling of an output in a model; `scale` and `offset` are names of its parameters, "" for a missing one."""

    scale: str
    offset: str
    per_experiment: bool
    guess: float | None
    lower: float
    upper: float
    prior: PriorDistribution | None

    @classmethod
    def from_output(cls, output: str, scaled_output: Scaled) -> OutputScaling:
        """Name the parameters of an output."""
        label = scaled_output.name or output
        offset = f"offset({label})" if scaled_output.offset else ""
        return cls(
            f"scale({label})",
            offset,
            scaled_output.per_experiment,
            scaled_output.guess,
            scaled_output.lower,
            scaled_output.upper,
            scaled_output.prior,
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return (self.scale, self.offset) if self.offset else (self.scale,)

    @property
    def says_more(self) -> bool:
        """Whether a guess, a bound or a prior is given."""
        is_bounded = self.lower > -np.inf or self.upper < np.inf
        return self.guess is not None or is_bounded or self.prior is not None

    @property
    def identity(self) -> tuple[Any, ...]:
        """Key of the settings of the scale; it must be equal for all outputs that share the name."""
        return self.per_experiment, self.guess, self.lower, self.upper, repr(self.prior)


def read_scaled(
    outputs: Mapping[str, Any], mistakes: list[str]
) -> tuple[dict[str, Any], dict[str, OutputScaling], dict[str, ca.SX]]:
    """Return outputs before they are scaled, their scalings by output, and symbols of the new parameters by name."""
    unscaled_outputs: dict[str, Any] = {}
    scalings: dict[str, OutputScaling] = {}
    symbols: dict[str, ca.SX] = {}
    for output, value in outputs.items():
        if not isinstance(value, Scaled):
            unscaled_outputs[output] = value
            continue
        scaling_mistakes = _mistakes(value)
        mistakes += [f"output '{output}': scaled(...) {m}" for m in scaling_mistakes]
        unscaled_outputs[output] = value.expression
        if not scaling_mistakes:
            scalings[output] = OutputScaling.from_output(output, value)
            symbols |= {n: ca.SX.sym(n) for n in scalings[output].parameters if n not in symbols}
    for name in symbols:
        kinds = {s.identity for s in scalings.values() if s.scale == name}
        if len(kinds) > 1:
            mistakes.append(f"'{name}' is given in {len(kinds)} different ways; define it in the same way everywhere")
    return unscaled_outputs, scalings, symbols


def scale_outputs(
    graphs: Mapping[str, ca.SX], scalings: Mapping[str, OutputScaling], symbols: Mapping[str, ca.SX]
) -> dict[str, ca.SX]:
    """Return the graphs of outputs in the units in which they are measured."""
    scaled_graphs = dict(graphs)
    for output in graphs.keys() & scalings.keys():
        scaling = scalings[output]
        scaled_graphs[output] = symbols[scaling.scale] * graphs[output]
        if scaling.offset:
            scaled_graphs[output] += symbols[scaling.offset]
    return scaled_graphs


def measured_with(scalings: Mapping[str, OutputScaling], measured: Iterable[str]) -> frozenset[str]:
    """Return the parameters of all scaled outputs that are measured."""
    return frozenset(n for output in measured if output in scalings for n in scalings[output].parameters)


def _mistakes(scaled_output: Scaled) -> list[str]:
    mistakes: list[str] = []
    name: Any = scaled_output.name
    if not isinstance(name, str):
        mistakes.append(f"is named {shorten_repr(name)}; give text")
    for flag_name, flag in (("offset", scaled_output.offset), ("per_experiment", scaled_output.per_experiment)):
        if not is_one_of(flag, True, False, np.True_, np.False_):
            mistakes.append(f"has {flag_name}={shorten_repr(flag)}; give True or False")
    lower, upper = read_real(scaled_output.lower), read_real(scaled_output.upper)
    if lower is None or upper is None or not lower <= upper:
        mistakes.append(
            f"has the bounds {shorten_repr(scaled_output.lower)} and {shorten_repr(scaled_output.upper)}; "
            "give lower <= upper"
        )
    if scaled_output.guess is not None and read_real(scaled_output.guess) in (None, 0.0):
        mistakes.append(f"has the guess {shorten_repr(scaled_output.guess)}; give a number other than 0")
    return mistakes
