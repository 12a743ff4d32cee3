"""Priors on several quantities or on expressions in quantities: entries of ``Problem(priors=...)``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import (
    is_one_of,
    option_mistakes,
    read_mapping,
    read_real,
    read_reals,
    read_sequence,
    shorten_repr,
    symbol_or_text_name,
)
from castfit._support.arrays import Array
from castfit._support.pickling import Picklable
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.status import raise_if_mistakes, unknown_names
from castfit.densities.priors.distributions import PriorDistribution

_MAX_WEIGHT = 1e100  # largest weight of a penalty; its square must not overflow
_MAX_RELATIVE_ASYMMETRY = 1e-10  # a larger asymmetry of a covariance, relative to its diagonal, is more than rounding


@dataclass(frozen=True, eq=False)
class PriorTerm(Picklable):
    """A prior on a quantity, by name, or on a CasADi expression of quantities."""

    target: str | ca.SX
    prior: PriorDistribution

    @property
    def label(self) -> str:
        """Label of the quantity or expression."""
        return (
            f"'{self.target}'"
            if isinstance(self.target, str)
            else shorten_repr(self.target).removeprefix("SX(").removesuffix(")")
        )


@public("castfit.priors")
@dataclass(frozen=True, eq=False)
class JointNormal:
    """A normal prior on several quantities:  ``-log p = 1/2 |root (z - mean) + offset|^2 + constant``.

    Attributes
    ----------
    names : tuple of k str
    log : (k,) bool array
        Whether z is the logarithm of a quantity.
    mean : (k,) array
    root : (m, k) array
        Whose square, root^T root, is the information: the inverse of the covariance, where there is one.
    offset : (m,) array
    constant : float
    """

    names: tuple[str, ...]
    log: NDArray[np.bool_]
    mean: Array
    root: Array
    offset: Array
    constant: float = 0.0

    @property
    def label(self) -> str:
        """Label of the joint prior, with the names of its quantities."""
        shown_names = self.names if len(self.names) <= 4 else (*self.names[:3], "...")
        return f"the joint prior on {', '.join(shown_names)}"


def multivariate_normal(mean: Any, covariance: Any, *, on: str = "value") -> JointNormal:
    """Declare a joint normal prior on several quantities.

    Parameters
    ----------
    mean : mapping from str to float
        By name of the quantity: a parameter, ``k[experiment]`` of a local one, ``x(0)`` of an initial state.
    covariance : (k, k) array
        In the order of `mean`; positive definite.
    on : {"value", "log"}
        Whether the values or their natural logarithms are normally distributed.

    Raises
    ------
    InputError
        If these are no means, or no covariance of as many quantities.

    Examples
    --------
    >>> import castfit as cf
    >>> s, i, b, g = cf.symbols("s i b g")
    >>> model = cf.Model({s: -b * s * i, i: b * s * i - g * i}, parameters=[b, g], initial={s: 0.99, i: 0.01})
    >>> experiment = cf.Experiment({"i": [0.02, 0.05, 0.10]}, time=[1, 2, 3], sigma=0.01)
    >>> guess = {"b": 1.0, "g": cf.Parameter(0.3, lower=0)}
    >>> known = cf.priors.multivariate_normal({"b": 1.1, "g": 0.3}, [[0.04, 0.03], [0.03, 0.04]])
    >>> result = cf.fit(cf.Problem(model, experiment, parameters=guess, priors=known))
    >>> print(round(result.parameters["b"], 2), round(result.parameters["g"], 2))
    1.11 0.28
    """
    mistakes: list[str] = []
    entries = read_mapping("mean", mean, mistakes)
    centre = np.array([_number(f"the mean of '{n}'", v, mistakes) for n, v in entries.items()])
    matrix, k = read_reals(covariance), centre.size
    if k == 0 and not mistakes:
        mistakes.append("mean names nothing; give {name: value}")
    if not is_one_of(on, "value", "log"):
        mistakes.append(f"on is {shorten_repr(on)}; choose 'value' or 'log'")
    root = np.eye(k)
    if matrix is None or matrix.shape != (k, k) or not np.isfinite(matrix).all():
        mistakes.append(f"covariance is {shorten_repr(covariance)}; give finite numbers of shape ({k}, {k})")
    else:
        size = np.sqrt(np.abs(np.diag(matrix)))
        unit = np.where(size > 0.0, size, 1.0)
        scaled = matrix / unit[:, None] / unit
        try:
            if np.abs(scaled - scaled.T).max(initial=0.0) > _MAX_RELATIVE_ASYMMETRY:
                raise np.linalg.LinAlgError
            root = np.linalg.inv(np.linalg.cholesky(scaled)) / unit
        except np.linalg.LinAlgError:
            mistakes.append("covariance is not symmetric and positive definite; repair it")
    raise_if_mistakes("MultivariateNormal", mistakes)
    constant = 0.5 * k * np.log(2.0 * np.pi) - float(np.log(np.abs(np.diag(root))).sum())
    log = np.full(k, on == "log")
    return JointNormal(tuple(entries), log, centre, root, np.zeros(k), float(constant))


@public("castfit.priors")
@dataclass(frozen=True, eq=False)
class Penalty:
    """A pull of quantities towards values or each other; `tikhonov` and `lasso` make it.

    Attributes
    ----------
    names : tuple of str
        Quantities, or local parameters: then of every experiment.
    weight : float
    towards : "guess", "equal", or mapping from name to value
    on : "value" or "log"
    absolute : bool
        Whether absolute values count instead of half the squares.
    """

    names: tuple[str, ...]
    weight: float
    towards: str | dict[str, float]
    on: str
    absolute: bool = False

    @property
    def label(self) -> str:
        """Label of the penalty, with the names of its quantities."""
        return f"the penalty on {', '.join(self.names)}"


def tikhonov(names: Any, weight: float, *, towards: Any = "guess", on: str = "value") -> Penalty:
    """Shrink quantities towards values: the penalty ``1/2 weight (value - towards)^2`` is added to the cost.

    That is a normal prior of mean `towards` and deviation ``weight**-0.5``, as an entry of ``Problem(priors=...)``.

    Parameters
    ----------
    names : str or sequence of str
        Quantities, or local parameters, of which all are meant.
    weight : float
        In units of 1 / value^2; with ``on="log"`` a number.
    towards : "guess", "equal", float, or mapping from name to float
        "equal" pulls local parameters towards their own mean, so that experiments differ only as far as the data say.
    on : {"value", "log"}
        Whether values or their natural logarithms are compared.

    Raises
    ------
    InputError
        If one of these is nothing of the kind; names are checked by `Problem`.

    Examples
    --------
    >>> import castfit as cf
    >>> s, i, b, g = cf.symbols("s i b g")
    >>> model = cf.Model({s: -b * s * i, i: b * s * i - g * i}, parameters=[b, g], initial={s: 0.99, i: 0.01})
    >>> experiment = cf.Experiment({"i": [0.02, 0.05, 0.10]}, time=[1, 2, 3], sigma=0.01)
    >>> guess = {"b": 1.0, "g": cf.Parameter(0.3, lower=0)}
    >>> problem = cf.Problem(model, experiment, parameters=guess, priors=cf.tikhonov("g", weight=30.0))
    >>> print(round(cf.fit(problem).parameters["g"], 2))
    0.3
    """
    return penalty("tikhonov", names, weight, towards, on)


def lasso(names: Any, weight: float, *, towards: Any = "guess", on: str = "value") -> Penalty:
    """Select quantities by the penalty ``weight |value - towards|``, which keeps most values at `towards`.

    A quantity leaves `towards` only where half of chi2 falls by more than `weight` per unit; the others end exactly
    there, and the message of the result says which.  Those that leave are pulled back by weight * variance: for
    unbiased estimates fit once more with the others fixed.  It is a Laplace prior of scale 1 / weight.

    Parameters
    ----------
    names : str or sequence of str
        Quantities, or local parameters, of which all are meant.
    weight : float
        In units of 1 / value; with ``on="log"`` a number.
    towards : "guess", "equal", float, or mapping from name to float
        "equal" pulls local parameters towards that of the first experiment, so that they are equal unless the data
        object; with ``on="log"`` their ratios towards 1.
    on : {"value", "log"}
        Whether values or their natural logarithms are compared.

    Raises
    ------
    InputError
        If one of these is nothing of the kind; names are checked by `Problem`.

    Examples
    --------
    >>> import castfit as cf
    >>> s, i, b, g = cf.symbols("s i b g")
    >>> model = cf.Model({s: -b * s * i, i: b * s * i - g * i}, parameters=[b, g], initial={s: 0.99, i: 0.01})
    >>> experiment = cf.Experiment({"i": [0.02, 0.05, 0.10]}, time=[1, 2, 3], sigma=0.01)
    >>> guess = {"b": 1.0, "g": cf.Parameter(0.3, lower=0)}
    >>> problem = cf.Problem(model, experiment, parameters=guess, priors=cf.lasso("g", weight=100.0))
    >>> print(cf.fit(problem, "collocation").message)
    The optimality conditions hold to the requested tolerance. At the kink of the prior: g.
    """
    return replace(penalty("lasso", names, weight, towards, on), absolute=True)


def penalty(function_name: str, names: Any, weight: Any, towards: Any, on: Any) -> Penalty:
    """Read the arguments of a penalty."""
    mistakes: list[str] = []
    name_entries = [names] if symbol_or_text_name(names) is not None else read_sequence(names) or []
    parsed_names = [symbol_or_text_name(n) for n in name_entries]
    if not parsed_names or None in parsed_names:
        mistakes.append(f"names is {shorten_repr(names)}; give the name of a quantity, or a list of names")
    strength = read_real(weight)
    is_weight = strength is not None and 0.0 < strength <= _MAX_WEIGHT
    mistakes += option_mistakes(
        ("weight", weight, is_weight, f"give a positive number up to {_MAX_WEIGHT:g}"),
        ("on", on, is_one_of(on, "value", "log"), "choose 'value' or 'log'"),
    )
    quantity_names = tuple(n for n in parsed_names if n is not None)
    mistakes += [
        f"names holds '{n}' twice; leave one out" for n in dict.fromkeys(quantity_names) if quantity_names.count(n) > 1
    ]
    target: str | dict[str, float] = "guess"
    if isinstance(towards, str):
        if towards not in ("guess", "equal"):
            mistakes.append(f"towards is '{towards}'; give 'guess', 'equal', a number, or {{name: number}}")
        target = towards
    elif isinstance(towards, Mapping):
        target = {
            n: _number(f"towards of '{n}'", v, mistakes) for n, v in read_mapping("towards", towards, mistakes).items()
        }
        mistakes += [f"towards has no value for '{n}'" for n in quantity_names if n not in target]
        mistakes += unknown_names("towards has a value for '{}', which is not in names", target, quantity_names)
    else:
        number = _number("towards", towards, mistakes)
        target = dict.fromkeys(quantity_names, number)
    if is_one_of(on, "log") and isinstance(target, dict) and any(v <= 0.0 for v in target.values()):
        mistakes.append("towards must be positive where logarithms are compared")
    raise_if_mistakes(function_name, mistakes)
    assert strength is not None
    return Penalty(quantity_names, strength, target, on)


def _number(label: str, value: Any, mistakes: list[str]) -> float:
    number = read_real(value)
    if number is None or not np.isfinite(number):
        mistakes.append(f"{label} is {shorten_repr(value)}; give a finite number")
        return 1.0
    return number


Entry = PriorTerm | JointNormal | Penalty
"""What ``Problem(priors=...)`` holds."""

Priors = Mapping[Any, "PriorDistribution"] | Entry | Sequence["Mapping[Any, PriorDistribution] | Entry"] | None
"""What it takes."""


def read_entries(priors: Any, mistakes: list[str]) -> tuple[Entry, ...]:
    """Read `priors`: ``{name or expression: prior}``, a joint prior, a penalty, or a list of such entries."""
    if priors is None:
        return ()
    if isinstance(priors, (PriorTerm, JointNormal, Penalty)):
        return (priors,)
    if isinstance(priors, Mapping):
        return tuple(_beliefs(cast("Mapping[Any, Any]", priors), mistakes))
    entries = read_sequence(priors)
    if entries is None:
        remedy = "give {name or expression: prior}, cf.Prior(result), cf.tikhonov(...), or a list of these"
        mistakes.append(f"priors is {shorten_repr(priors)}; {remedy}")
        return ()
    return tuple(entry for item in entries for entry in _one(item, mistakes))


def _one(item: Any, mistakes: list[str]) -> Sequence[Entry]:
    if isinstance(item, (PriorTerm, JointNormal, Penalty, Mapping)):
        return read_entries(item, mistakes)
    remedy = "give {name or expression: prior}, cf.Prior(result), cf.tikhonov(...)"
    mistakes.append(f"priors contains {shorten_repr(item)}; {remedy}")
    return ()


def _beliefs(priors: Mapping[Any, Any], mistakes: list[str]) -> Iterable[PriorTerm]:
    for key, prior in priors.items():
        name = symbol_or_text_name(key)
        if name is not None:
            yield PriorTerm(name, prior)
        elif isinstance(key, ca.SX) and key.numel() == 1 and ca.symvar(key):
            yield PriorTerm(key, prior)
        else:
            mistakes.append(f"priors has the key {shorten_repr(key)}; give a name or a scalar expression of quantities")
