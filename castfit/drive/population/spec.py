"""User specification of a population: distributions of own parameters over experiments, and their covariates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.arguments import (
    is_one_of,
    is_within,
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
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes, suggest
from castfit.experiment.measurements import is_frame
from castfit.problem.parameters import Parameter

DISTRIBUTIONS = ("lognormal", "normal")


@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Individual(Picklable):
    """Distribution of one own parameter over the experiments of a population.

    With a typical value mu and eta from a normal distribution of mean 0, every experiment (a patient, an animal, a
    well) has the value  mu * exp(eta)  ("lognormal") or  mu + eta  ("normal").

    Parameters
    ----------
    typical : number or casadi.SX, optional
        The typical value: by default it is estimated, under the parameter's name, from the problem's guess; a number
        sets another guess; or an expression of population parameters and covariates, such as
        ``CL_pop * (weight / 70) ** 0.75``.
    omega : float
        Guess of the standard deviation of eta, which is estimated: for "lognormal" about the relative spread between
        experiments, for "normal" in the parameter's unit.
    distribution : {"lognormal", "normal"}

    Raises
    ------
    InputError
        With all mistakes in the arguments.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.Individual(omega=0.6)
    Individual(omega=0.6)
    >>> CL_pop, weight = cf.symbols("CL_pop weight")
    >>> cf.Individual(CL_pop * (weight / 70) ** 0.75).distribution
    'lognormal'
    """

    typical: Any = None
    omega: float = 0.3
    distribution: str = "lognormal"

    def __post_init__(self) -> None:
        mistakes: list[str] = []
        typical, number = self.typical, read_real(self.typical)
        graph = isinstance(typical, ca.SX) and typical.numel() == 1
        if typical is not None and not graph and (number is None or not np.isfinite(number)):
            mistakes.append(
                f"typical is {shorten_repr(typical)}; expected a number, or an expression of parameters and covariates"
            )
        if not is_within(self.omega, 0.0, np.inf, strictly=True):
            remedy = "expected a positive number; for a parameter without variability remove local=True"
            mistakes.append(f"omega is {shorten_repr(self.omega)}; {remedy}")
        if not is_one_of(self.distribution, *DISTRIBUTIONS):
            mistakes.append(
                f"distribution is {shorten_repr(self.distribution)}: {suggest(str(self.distribution), DISTRIBUTIONS)}"
            )
        raise_if_mistakes("Individual", mistakes)


@public("castfit")
@dataclass(frozen=True, eq=False, repr=False)
class Population:
    """Distributions of the own parameters of a problem's experiments: the second level of a mixed-effects model.

    Parameters
    ----------
    individual : mapping from str to Individual
        For each own parameter (``Parameter(..., local=True)``) its distribution.
    correlated : True or sequence of groups of names, optional
        Own parameters with correlated etas: ``True`` for all, ``[("CL", "V")]`` for these two; by default none, so
        that the covariance is diagonal.
    parameters : mapping from str to Parameter or float, optional
        Guesses and bounds of the population parameters that expressions of typical values contain.
    covariates : mapping or DataFrame, optional
        Known numbers of every experiment, by name: ``{"weight": {"subject 1": 79.6, ...}}``, or a sequence in the order
        of the experiments, or a DataFrame with one row each, indexed by their names (with any other index: in order).

    Raises
    ------
    InputError
        With all mistakes in the arguments.  `mixed_effects` finds inconsistencies with a problem.

    Examples
    --------
    >>> import castfit as cf
    >>> CL_pop, weight = cf.symbols("CL_pop weight")
    >>> cf.Population(
    ...     {"ka": cf.Individual(omega=0.6), "CL": cf.Individual(CL_pop * (weight / 70) ** 0.75)},
    ...     parameters={"CL_pop": cf.Parameter(2.8, lower=0, scale="log")},
    ...     covariates={"weight": [79.6, 72.4, 70.5]},
    ... )
    Population(individual=ka, CL; covariates=weight)
    """

    individual: Mapping[str, Individual]
    correlated: Any = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter])
    covariates: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __init__(
        self,
        individual: Mapping[str, Individual] | Mapping[Any, Any],
        *,
        correlated: bool | Sequence[Sequence[str]] = (),
        parameters: Mapping[str, Parameter | float] | Mapping[Any, Any] | None = None,
        covariates: Any = None,
    ) -> None:
        mistakes: list[str] = []
        individuals = read_mapping("individual", individual, mistakes)
        mistakes += [
            f"'{n}' is {shorten_repr(v)}; expected Individual(...)"
            for n, v in individuals.items()
            if not isinstance(v, Individual)
        ]
        if not individuals and not mistakes:
            mistakes.append("the population has no local parameter; add at least one, {'CL': Individual()}")
        groups = _groups(correlated, tuple(individuals), mistakes)
        population_parameters = {
            n: v if isinstance(v, Parameter) else Parameter(v)
            for n, v in read_mapping("parameters", parameters, mistakes).items()
        }
        mistakes += [
            f"population parameter '{n}' is {label}; it must be one number for all experiments"
            for n, p in population_parameters.items()
            for label, is_invalid in (("local", p.local), ("a mapping", isinstance(p.value, Mapping)))
            if is_invalid
        ]
        covariate_values = _covariates(covariates, mistakes)
        mistakes += [
            f"'{n}' is both a population parameter and a covariate; rename one"
            for n in population_parameters
            if n in covariate_values
        ]
        raise_if_mistakes("Population", mistakes)
        values = {
            "individual": individuals,
            "correlated": groups,
            "parameters": population_parameters,
            "covariates": covariate_values,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        parts = [f"individual={', '.join(self.individual)}"]
        if self.correlated:
            parts.append("correlated=" + " and ".join(", ".join(g) for g in self.correlated))
        if self.covariates:
            parts.append(f"covariates={', '.join(self.covariates)}")
        return f"Population({'; '.join(parts)})"

    def of_some(self, experiments: Sequence[str], kept: Sequence[int]) -> Population:
        """Return the population of the experiments at the indices `kept`, with their covariates."""
        ignored: list[str] = []
        covariate_values = {n: self.covariate(n, experiments, ignored)[list(kept)] for n in self.covariates}
        return Population(
            self.individual, correlated=self.correlated, parameters=self.parameters, covariates=covariate_values
        )

    def covariate(self, name: str, experiments: Sequence[str], mistakes: list[str]) -> Array:
        """Return a covariate of each experiment (n,). Append missing values to `mistakes`."""
        source, missing = self.covariates[name], list[str]()
        values: Any = source
        if isinstance(source, Mapping):
            by_name = cast("Mapping[str, Any]", source)
            missing = [e for e in experiments if e not in by_name]
            values = [by_name.get(e, np.nan) for e in experiments]
        numbers = read_reals(values)
        if numbers is None or numbers.shape != (len(experiments),):
            mistakes.append(
                f"covariate '{name}' is {shorten_repr(values)}; "
                f"expected one number for each of the {len(experiments)} experiments"
            )
            return np.ones(len(experiments))
        missing += [e for e, v in zip(experiments, numbers, strict=True) if not np.isfinite(v) and e not in missing]
        if missing:
            missing_text = ", ".join(f"'{e}'" for e in missing[:5]) + (" ..." if len(missing) > 5 else "")
            mistakes.append(
                f"covariate '{name}' is missing for {missing_text}; pass a number, or remove the experiment"
            )
        return numbers


def _groups(value: Any, names: tuple[str, ...], mistakes: list[str]) -> tuple[tuple[str, ...], ...]:
    """Read the groups of correlated parameters."""
    if is_one_of(value, True, False):
        return (names,) if value and len(names) > 1 else ()
    outer = read_sequence(value)
    remedy = "expected True, or groups of names such as [('CL', 'V')]"
    if outer is None:
        mistakes.append(f"correlated is {shorten_repr(value)}; {remedy}")
        return ()
    groups: list[tuple[str, ...]] = []
    for group in outer:
        members = read_sequence(group)
        if members is None:
            mistakes.append(f"correlated contains {shorten_repr(group)}; {remedy}")
            continue
        group_names = [symbol_or_text_name(member) or shorten_repr(member) for member in members]
        mistakes += [f"correlated names '{n}': {suggest(n, names)}" for n in group_names if n not in names]
        if len(group_names) < 2:
            mistakes.append(f"correlated contains {shorten_repr(group)}; a group needs at least two names")
        groups.append(tuple(group_names))
    all_names = [n for group in groups for n in group]
    twice = dict.fromkeys(n for n in all_names if all_names.count(n) > 1)
    mistakes += [f"correlated contains '{n}' twice; put all correlated parameters into one group" for n in twice]
    return tuple(groups)


def _covariates(value: Any, mistakes: list[str]) -> dict[str, Any]:
    """Read covariates; columns of a table become mappings if its index has the names of the experiments."""
    if value is None or not is_frame(value):
        return read_mapping("covariates", value, mistakes)
    by_name = all(isinstance(label, str) for label in value.index)
    columns = {str(n): value[n] for n in value.columns}
    return {
        n: dict(zip(value.index, column.tolist(), strict=True)) if by_name else column.to_numpy()
        for n, column in columns.items()
    }
