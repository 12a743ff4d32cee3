"""Result of importing an SBML file: a model, and the settings that an experiment needs besides it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import casadi as ca

from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr, join_limited, one_line
from castfit.experiment.events import Event
from castfit.model.model import Model
from castfit.problem.parameters import Parameter


@dataclass(frozen=True)
class Species:
    """A species: its compartment, and whether its name means its amount; else it means its concentration.

    Examples
    --------
    >>> import castfit as cf
    >>> cf.sbml.load_antimony("species A in cell; cell = 2; A -> ; k * A; A = 3; k = 0.1").species
    {'A': Species(compartment='cell', is_amount=False)}
    """

    compartment: str
    is_amount: bool


@add_brief_repr
@dataclass(frozen=True)
class ImportedStart:
    """The `initial` and the `parameters` of an experiment; from `Loaded.start`.

    Examples
    --------
    >>> import castfit as cf
    >>> start = cf.sbml.load_antimony("A -> B; k * A; A = 2; B = 0; k = 0.3").start({"A": 5.0})
    >>> cf.Experiment({"B": [1.2, 2.1]}, time=[1, 2], initial=start.initial, parameters=start.parameters)
    Experiment(2 values of B, times 1 to 2)
    """

    initial: dict[str, Any]
    parameters: dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class ImportedModel:
    """A model from SBML or Antimony; created by `castfit.sbml.load`.

    Attributes
    ----------
    name : str
        The identifier of the model.
    model : Model
        Its states, parameters and outputs have the identifiers of the file.  Constants are parameters: those that the
        file computes by initial assignments are expressions of the others, if they were not asked for.  Parameters of a
        kinetic law alone are called "reaction_name".  What follows from states by rules is an output, reactions' rates
        as well.  Where the volume of a species' compartment changes, the state is the amount, "S_amount".
    parameters : dict from str to float
        The file's values of the model's parameters, where it gives them.
    values : dict from str to float or casadi.SX
        The same, but expressions of other parameters where the file computes them (see `load`).
    events : tuple of Event
        For every experiment: ``Experiment(..., events=loaded.events)``.
    expressions : dict from str to casadi.SX
        What each identifier means in formulas, over the model's symbols: a state, a parameter, time, or an expression.
    species : dict from str to Species
        Compartment of each species, and whether its identifier means an amount or a concentration.
    sbml : str
        The text of the model in SBML.

    Examples
    --------
    >>> import castfit as cf
    >>> loaded = cf.sbml.load_antimony("A -> B; k * A; A = 2; B = 0; k = 0.3")
    >>> loaded.model
    Model(ODE: states A, B; parameters default_compartment, k)
    >>> cf.simulate(loaded, times=[0, 1, 10])["B"].round(4)
    array([0.    , 0.5184, 1.9004])
    >>> cf.simulate(loaded, {"k": 3.0}, times=[0, 1, 10])["B"].round(4)
    array([0.    , 1.9004, 2.    ])
    """

    name: str
    model: Model
    parameters: dict[str, float]
    values: dict[str, Any]
    events: tuple[Event, ...]
    expressions: dict[str, ca.SX]
    species: dict[str, Species]
    sbml: str
    _start: Callable[[Mapping[str, Any]], ImportedStart] = field(repr=False)
    _larger: Callable[[str], ImportedModel | None] = field(default=lambda _: None, repr=False)
    _limited: bool = field(default=True, repr=False)

    @property
    def fixed(self) -> dict[str, Parameter]:
        """All parameters at the file's values, not estimated; of a problem for instance ``{**fixed, "k": 0.5}``."""
        return {n: Parameter(v, fixed=True) for n, v in self.parameters.items()}

    def start(self, values: Mapping[str, Any] | None = None) -> ImportedStart:
        """Return an experiment's initial states and parameters if some values differ from those of the file.

        Parameters
        ----------
        values : mapping from str to float or casadi.SX
            By identifier: initial values of what varies, as its identifier means it (amount or concentration), and
            values of constants; numbers or expressions of parameters.

        Returns
        -------
        Start
            ``initial``, of every state by its name in the model, the file's own initial values worked out anew with
            the given ones, and guesses of algebraic states; and ``parameters``, of the constants that were given, and
            of those that follow from them and were asked for when loading.

        Raises
        ------
        InputError
            For unknown identifiers, what a rule determines, and constants that follow from a given value but are no
            parameters; load with ``parameters=[...]`` then.

        Examples
        --------
        >>> import castfit as cf
        >>> loaded = cf.sbml.load_antimony("A -> B; k * A; A = 2; B := 0.5 * A0; A0 = 3; k = 0.3")
        >>> loaded.start({"A": 5.0, "k": 1.5})
        Start(initial={'A': 5}, parameters={'k': 1.5})
        """
        return self._start({} if values is None else values)

    @property
    def as_often_as_needed(self) -> bool:
        """Whether nobody said how often events that states trigger may happen in a simulation."""
        return not self._limited

    def larger(self, why: str) -> ImportedModel | None:
        """Return the model with room for more events, given a failed simulation's message `why`; None if impossible.

        Examples
        --------
        >>> import castfit as cf
        >>> loaded = cf.sbml.load_antimony("x' = 1; x = 0; at x >= 1: x = 0", count=2)
        >>> loaded.larger("too few") is None  # since the count was given
        True
        """
        return self._larger(why)

    def numbers(self, start: ImportedStart) -> dict[str, Any]:
        """Return the values of all parameters at a start, those that follow from others worked out."""
        values_by_name = {**self.parameters, **{n: v for n, v in start.parameters.items() if not isinstance(v, ca.SX)}}
        expressions = {n: v for n, v in start.parameters.items() if isinstance(v, ca.SX)}

        def number(name: str) -> Any:
            value = expressions.get(name)
            if value is None or any(s.name() not in {*values_by_name, *expressions} for s in ca.symvar(value)):
                return value if name in expressions else values_by_name[name]
            symbols = ca.symvar(value)
            result: Any = ca.Function("number", symbols, [value]).call([number(s.name()) for s in symbols])[0]
            return float(result)

        return values_by_name | {n: number(n) for n in expressions}

    def __repr__(self) -> str:
        events = f"; {len(self.events)} events" if self.events else ""
        return one_line(f"Loaded('{self.name}': states {join_limited(self.model.states, 45)}; "
                        f"parameters {join_limited(self.model.parameters, 45) or 'none'}{events})")  # fmt: skip
