"""Constraints as users say them: relations of quantities, of states at a time, or along the whole path.

    k1 + k2 <= 1,  k1 == 2 * k3             of estimated quantities
    cf.at(10, x >= 0.5)                     of states and outputs at points in time
    cf.along(x + y <= 3)                    the same at every time of an experiment
    cf.between(0, x, 1)                     two bounds: Python cannot hand over  0 <= x <= 1
    cf.monotone(z), cf.conserved(x + y)     of how something changes

A relation is a CasADi expression whose last operation compares; `relation` takes it apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.arguments import (
    is_one_of,
    plain_numbers,
    read_real,
    read_reals,
    read_sequence,
    shorten_repr,
    symbol_or_text_name,
)
from castfit._support.pickling import Picklable
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.renamed import accept_old_names, with_old_names
from castfit._support.reprs import add_brief_repr
from castfit._support.status import raise_if_mistakes, suggest

ALONG = "along"
QUANTITIES = "quantities"
_KINDS = ("value", "rate", "total")

_LESS = (ca.OP_LE, ca.OP_LT)
_NO_RELATION = (ca.OP_NE, ca.OP_AND, ca.OP_OR, ca.OP_NOT)
_CHAIN = "a chain such as 0 <= x <= 1 is lost in Python before castfit sees it: write cf.between(0, x, 1)"


@with_old_names(shown="text")
@public("castfit")
@add_brief_repr
@dataclass(frozen=True, eq=False)
class Constraint(Picklable):
    """``lower <= expression <= upper``; equal bounds make it an equation.

    Relations are the short form: ``k1 + k2 <= 1``, ``cf.at(10, x >= 0.5)``, ``cf.along(x + y <= 3)``.

    Parameters
    ----------
    expression : casadi.SX
        Over the symbols of the model, names of its outputs, and names of estimated quantities (`quantity`).
    lower, upper : float
    name : str
        By which messages and tables call it.
    times : None, "along", "quantities", or tuple of float
        Where it holds: at every measured time (once, where it contains nothing but parameters), at every time, as a
        relation of estimated quantities, or at these times.
    experiments : tuple of str
        In which; in all if empty.
    of : {"value", "rate", "total"}
        What is bounded: the expression, its derivative by time, or the expression as a conserved sum.
    text : str
        The constraint as text.

    Examples
    --------
    >>> import castfit as cf
    >>> a, b, k1, k2 = cf.symbols("a b k1 k2")
    >>> model = cf.Model({a: -k1 * a + k2 * b, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1, b: 0})
    >>> data = {"a": [0.75, 0.62, 0.55, 0.52], "b": [0.24, 0.36, 0.47, 0.49]}
    >>> experiment = cf.Experiment(data, time=[1, 2, 3, 4], sigma=0.02)
    >>> guess = {"k1": 0.5, "k2": 0.5}
    >>> cf.Constraint(k1 - k2, lower=0.0)
    Constraint(expression=(k1-k2), lower=0)
    >>> problem = cf.Problem(model, experiment, parameters=guess, constraints=[k1 == k2])
    >>> result = cf.fit(problem)
    >>> round(result.parameters["k1"] - result.parameters["k2"], 9) + 0.0
    0.0
    >>> result.constraints["k1 == k2"].active
    'equal'
    """

    expression: ca.SX
    lower: float = -np.inf
    upper: float = np.inf
    name: str = ""
    times: tuple[float, ...] | str | None = None
    experiments: tuple[str, ...] = ()
    of: str = "value"
    text: str = ""

    def __post_init__(self) -> None:
        plain_numbers(self)

    @property
    def equation(self) -> bool:
        """Whether both bounds are equal."""
        return self.lower == self.upper


setattr(Constraint, "__init__", accept_old_names(shown="text")(Constraint.__init__))  # noqa: B010


def quantity(name: str) -> Any:
    """Return a symbol of an estimated quantity, or of an output, by its name, for use in constraints.

    Parameters
    ----------
    name : str
        As results call it: ``"x(0)"`` an initial state, ``"k[experiment 1]"`` a local parameter, ``"sigma(y)"`` or
        ``"scale(y)"`` where these are estimated, ``"total"`` an output of the model.

    Examples
    --------
    >>> import castfit as cf
    >>> a, b, k1, k2 = cf.symbols("a b k1 k2")
    >>> model = cf.Model({a: -k1 * a + k2 * b, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1, b: 0})
    >>> data = {"a": [0.75, 0.62, 0.55, 0.52], "b": [0.24, 0.36, 0.47, 0.49]}
    >>> experiment = cf.Experiment(data, time=[1, 2, 3, 4], sigma=0.02, initial={"a": cf.free(1.0), "b": cf.free(0.0)})
    >>> guess = {"k1": 0.5, "k2": 0.5}
    >>> total = cf.quantity("a(0)") + cf.quantity("b(0)")
    >>> result = cf.fit(cf.Problem(model, experiment, parameters=guess, constraints=[total == 1]))
    >>> round(result.initial_states["a(0)"] + result.initial_states["b(0)"], 9)
    1.0
    """
    quantity_name = symbol_or_text_name(name)
    raise_if_mistakes(
        "quantity", [] if quantity_name else [f"name is {shorten_repr(name)}; give the name of an estimated quantity"]
    )
    return ca.SX.sym(str(quantity_name))


def at(time: Any, relation: Any, *, experiment: Any = None, name: str = "") -> Constraint:
    """Hold a relation of states and outputs at one or several points in time.

    Parameters
    ----------
    time : float or sequence of float
        In the time of the experiments; it may lie behind the last measured one.
    relation : casadi.SX or Constraint
        Such as ``x >= 0.5`` or ``cf.between(0, x, 1)``.
    experiment : str or sequence of str, optional
        In which; by default in all.
    name : str, optional

    Raises
    ------
    InputError
        If one of these is nothing of the kind.

    Examples
    --------
    >>> import castfit as cf
    >>> a, b, k1, k2 = cf.symbols("a b k1 k2")
    >>> model = cf.Model({a: -k1 * a + k2 * b, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1, b: 0})
    >>> data = {"a": [0.75, 0.62, 0.55, 0.52], "b": [0.24, 0.36, 0.47, 0.49]}
    >>> experiment = cf.Experiment(data, time=[1, 2, 3, 4], sigma=0.02)
    >>> guess = {"k1": 0.5, "k2": 0.5}
    >>> problem = cf.Problem(model, experiment, parameters=guess, constraints=[cf.at(10, b >= 0.5)])
    >>> result = cf.fit(problem)
    >>> bool(result.predict([10])["experiment 1"]["b"][0] > 0.5 - 1e-6)
    True
    """
    mistakes: list[str] = []
    times = read_reals(time)
    if times is None or times.ndim > 1 or times.size == 0 or np.isnan(times).any():
        mistakes.append(f"time is {shorten_repr(time)}; give a number, or a list of numbers")
        times = np.zeros(1)
    constraint = _read("relation", relation, mistakes)
    experiment_names = _experiments(experiment, mistakes)
    raise_if_mistakes("at", mistakes)
    assert constraint is not None
    instants = tuple(float(t) for t in np.unique(times))
    times_text = ", ".join(f"{t:g}" for t in instants) if len(instants) <= 3 else f"{len(instants)} times"
    description, constraint_name = (
        f"{constraint.text} at t = {times_text}",
        constraint.name if is_one_of(name, "") else name,
    )
    return replace(constraint, times=instants, experiments=experiment_names, text=description, name=constraint_name)


def along(relation: Any, *, experiment: Any = None, name: str = "") -> Constraint:
    """Hold a relation of states and outputs at every time of an experiment, between measured times as well.

    It is held on a grid, which is refined until the integrated model keeps it everywhere.

    Parameters
    ----------
    relation : casadi.SX or Constraint
    experiment : str or sequence of str, optional
        In which; by default in all.
    name : str, optional

    Raises
    ------
    InputError
        If one of these is nothing of the kind.

    Examples
    --------
    >>> import castfit as cf
    >>> a, b, k1, k2 = cf.symbols("a b k1 k2")
    >>> model = cf.Model({a: -k1 * a + k2 * b, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1, b: 0})
    >>> data = {"a": [0.75, 0.62, 0.55, 0.52], "b": [0.24, 0.36, 0.47, 0.49]}
    >>> experiment = cf.Experiment(data, time=[1, 2, 3, 4], sigma=0.02)
    >>> guess = {"k1": 0.5, "k2": 0.5}
    >>> problem = cf.Problem(model, experiment, parameters=guess, constraints=[cf.along(b <= 0.45)])
    >>> result = cf.fit(problem)
    >>> bool(result.predict([0, 2, 4])["experiment 1"]["b"].max() < 0.45 + 1e-6)
    True
    """
    mistakes: list[str] = []
    constraint, experiment_names = _read("relation", relation, mistakes), _experiments(experiment, mistakes)
    raise_if_mistakes("along", mistakes)
    assert constraint is not None
    constraint_name = constraint.name if is_one_of(name, "") else name
    return replace(
        constraint, times=ALONG, experiments=experiment_names, text=f"{constraint.text} along", name=constraint_name
    )


def between(lower: float, expression: Any, upper: float, *, name: str = "") -> Constraint:
    """Return the relation  lower <= expression <= upper, of two numbers and an expression.

    Raises
    ------
    InputError
        If these are no numbers with lower <= upper, or no scalar expression.

    Examples
    --------
    >>> import castfit as cf
    >>> k1, k2 = cf.symbols("k1 k2")
    >>> cf.between(0.9, k1 / k2, 1.1)
    Constraint(expression=(k1/k2), lower=0.9, upper=1.1, times='quantities', text='0.9 <= k1/k2 <= 1.1')
    """
    mistakes: list[str] = []
    low, high = read_real(lower), read_real(upper)
    if low is None or high is None or not low <= high:
        mistakes.append(f"the bounds are {shorten_repr(lower)} and {shorten_repr(upper)}; give numbers, lower <= upper")
    graph = _expression("expression", expression, mistakes)
    raise_if_mistakes("between", mistakes)
    assert low is not None
    assert high is not None
    assert graph is not None
    description = f"{low:g} <= {expression_text(graph)} <= {high:g}"
    return Constraint(graph, low, high, name, times=QUANTITIES, text=description)


def monotone(what: Any, increasing: bool = True, *, experiment: Any = None, name: str = "") -> Constraint:
    """Constrain an output, a state or an expression to never fall, or never rise, between the events of an experiment.

    Parameters
    ----------
    what : casadi.SX or str
        An expression of states, or the name of an output or state.
    increasing : bool
        Whether it never falls (True) or never rises (False).
    experiment : str or sequence of str, optional
    name : str, optional

    Raises
    ------
    InputError
        If one of these is nothing of the kind.

    Examples
    --------
    >>> import castfit as cf
    >>> b = cf.symbols("b")
    >>> cf.monotone(b)
    Constraint(expression=b, lower=0, times='along', of='rate', text='b never falls')
    >>> cf.monotone("total", increasing=False)
    Constraint(expression=total, upper=0, times='along', of='rate', text='total never rises')
    """
    mistakes: list[str] = []
    graph, experiment_names = _named_expression("what", what, mistakes), _experiments(experiment, mistakes)
    if not is_one_of(increasing, True, False, np.True_, np.False_):
        mistakes.append(f"increasing is {shorten_repr(increasing)}; give True or False")
    raise_if_mistakes("monotone", mistakes)
    assert graph is not None
    description = f"{expression_text(graph)} never {'falls' if increasing else 'rises'}"
    bounds = (0.0, np.inf) if increasing else (-np.inf, 0.0)
    return Constraint(graph, *bounds, name, times=ALONG, experiments=experiment_names, of="rate", text=description)


def conserved(what: Any, total: float | None = None, *, experiment: Any = None, name: str = "") -> Constraint:
    """Constrain a sum of states to be constant between the events of an experiment.

    Where the model's equations keep it by themselves only `total` matters.  Where they would only keep it for some
    parameters, this is a constraint on these.

    Parameters
    ----------
    what : casadi.SX or str
        An expression of states, or the name of an output.
    total : float, optional
        Its value, at the start; by default any.
    experiment : str or sequence of str, optional
    name : str, optional

    Raises
    ------
    InputError
        If one of these is nothing of the kind.

    Examples
    --------
    >>> import castfit as cf
    >>> a, b = cf.symbols("a b")
    >>> cf.conserved(a + b, 1.0)
    Constraint(expression=(a+b), lower=1, upper=1, times='along', of='total', text='a+b is conserved at 1')
    """
    mistakes: list[str] = []
    graph, experiment_names = _named_expression("what", what, mistakes), _experiments(experiment, mistakes)
    value = np.nan if total is None else read_real(total)
    if value is None or not (total is None or np.isfinite(value)):
        mistakes.append(f"total is {shorten_repr(total)}; give a number")
    raise_if_mistakes("conserved", mistakes)
    assert graph is not None
    assert value is not None
    description = f"{expression_text(graph)} is conserved" + (f" at {value:g}" if np.isfinite(value) else "")
    return Constraint(
        graph, value, value, name, times=ALONG, experiments=experiment_names, of="total", text=description
    )


def read_constraints(argument: Any, mistakes: list[str], *, taken_names: Iterable[str] = ()) -> tuple[Constraint, ...]:
    """Read the argument as constraints, and name unnamed ones with names that are not in `taken_names`."""
    if isinstance(argument, (Constraint, ca.SX)):
        argument = [argument]
    listed = read_sequence(argument)
    if listed is None:
        mistakes.append(f"constraints is {shorten_repr(argument)}; give a list of relations such as k1 + k2 <= 1")
        return ()
    indexed_constraints = [(i, _read("constraints", item, mistakes, is_in_list=True)) for i, item in enumerate(listed)]
    parts: list[tuple[int, Any]] = [
        (i, part) for i, c in indexed_constraints if c is not None for part in (c.name, c.text)
    ]
    invalid_names = {i: part for i, part in parts if not isinstance(part, str)}
    mistakes += [f"constraint {i + 1} is named {shorten_repr(part)}; give text" for i, part in invalid_names.items()]
    indexed_constraints = [(i, c) for i, c in indexed_constraints if i not in invalid_names]
    names, constraints = set(taken_names), list[Constraint]()
    names |= {c.name for _, c in indexed_constraints if c is not None and c.name}
    for i, constraint in indexed_constraints:
        if constraint is None:
            continue
        constraint_name = constraint.name
        if not constraint_name:
            experiment_names = _experiments(constraint.experiments, [])
            base = (constraint.text or f"constraint {i + 1}") + (
                f" ({', '.join(experiment_names)})" if experiment_names else ""
            )
            constraint_name = next(
                n for n in (base, *(f"{base} ({k})" for k in range(2, len(names) + 3))) if n not in names
            )
            names.add(constraint_name)
        constraints.append(_normalise_constraint(replace(constraint, name=constraint_name), mistakes))
    return tuple(constraints)


def _normalise_constraint(constraint: Constraint, mistakes: list[str]) -> Constraint:
    """Return a constraint with its times and experiments as tuples, and note what these cannot be."""
    times: Any = constraint.times
    if not is_one_of(times, ALONG, QUANTITIES) and times is not None:
        time_values = read_reals(times)
        if time_values is None or time_values.ndim > 1 or time_values.size == 0 or np.isnan(time_values).any():
            remedy = f"give None, '{ALONG}', '{QUANTITIES}', or a tuple of numbers"
            mistakes.append(f"{constraint.name} has the times {shorten_repr(times)}; {remedy}")
        else:
            times = tuple(float(t) for t in np.unique(time_values))
    if not is_one_of(constraint.of, *_KINDS):
        mistakes.append(
            f"{constraint.name} has of={shorten_repr(constraint.of)}: {suggest(str(constraint.of), _KINDS)}"
        )
    experiment_names: Any = constraint.experiments
    return replace(
        constraint,
        times=times,
        experiments=_experiments(None if is_one_of(experiment_names, ()) else experiment_names, mistakes),
    )


def repeated_names(constraints: Sequence[Constraint]) -> list[str]:
    """Find constraints of one name."""
    names = [c.name for c in constraints]
    return [f"two constraints are named '{n}'; names must differ" for n in dict.fromkeys(names) if names.count(n) > 1]


def _read(label: str, value: Any, mistakes: list[str], *, is_in_list: bool = False) -> Constraint | None:
    """Read a relation, or take a constraint as it is."""
    if isinstance(value, Constraint):
        return value
    verb = "contains" if is_in_list else "is"
    if is_one_of(value, True, False, np.True_, np.False_):
        mistakes.append(f"{label} {verb} {value}, no relation; compare an expression of symbols; {_CHAIN}")
        return None
    remedy = "give Constraint(...), or a relation such as k1 + k2 <= 1"
    if not isinstance(value, ca.SX):
        mistakes.append(f"{label} {verb} {shorten_repr(value)}; {remedy}")
        return None
    if not value.is_scalar(True):
        mistakes.append(f"{label} {verb} a matrix of shape {value.shape}; give one scalar relation for each entry")
        return None
    if value.is_constant():
        mistakes.append(
            f"{label} {verb} a comparison that is {bool(float(value))} whatever the symbols; compare what varies"
        )
        return None
    if value.is_symbolic() or value.n_dep() != 2 or value.op() not in (*_LESS, ca.OP_EQ):
        if not value.is_symbolic() and value.op() in _NO_RELATION:
            remedy = "give one relation by <=, >= or == for each entry of the list"
        mistakes.append(f"{label} {verb} {shorten_repr(value)}; {remedy}")
        return None
    left, right = value.dep(0), value.dep(1)
    equal = value.op() == ca.OP_EQ
    if right.is_constant() or left.is_constant():
        graph, number = (left, float(right)) if right.is_constant() else (right, float(left))
        sign = "==" if equal else "<=" if right.is_constant() else ">="
        if np.isnan(number) or (equal and np.isinf(number)):
            mistakes.append(f"{label} {verb} {shorten_repr(value)}; compare with a finite number")
            return None
        lower = number if sign in ("==", ">=") else -np.inf
        upper = number if sign in ("==", "<=") else np.inf
        return Constraint(graph, lower, upper, times=QUANTITIES, text=f"{expression_text(graph)} {sign} {number:.12g}")
    description = f"{expression_text(left)} {'==' if equal else '<='} {expression_text(right)}"
    return Constraint(left - right, 0.0 if equal else -np.inf, 0.0, times=QUANTITIES, text=description)


def _expression(label: str, value: Any, mistakes: list[str]) -> ca.SX | None:
    if isinstance(value, ca.SX) and value.is_scalar(True) and not value.is_constant():
        return value
    mistakes.append(f"{label} is {shorten_repr(value)}; give a scalar expression of symbols")
    return None


def _named_expression(label: str, value: Any, mistakes: list[str]) -> ca.SX | None:
    return ca.SX.sym(value) if isinstance(value, str) and value else _expression(label, value, mistakes)


def _experiments(value: Any, mistakes: list[str]) -> tuple[str, ...]:
    if value is None or is_one_of(value, ()):
        return ()
    names: Sequence[Any] = [value] if isinstance(value, str) else read_sequence(value) or []
    if not names or not all(isinstance(n, str) and n for n in names):
        mistakes.append(f"experiment is {shorten_repr(value)}; give the name of an experiment, or a list of names")
        return ()
    return tuple(cast("Sequence[str]", names))


def expression_text(graph: ca.SX) -> str:
    """Write an expression without its outer parentheses."""
    full_text = str(graph)
    depth = 0
    for i, letter in enumerate(full_text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and i < len(full_text) - 1:
            return full_text
    return full_text[1:-1] if full_text.startswith("(") and full_text.endswith(")") else full_text
