"""Delays: values of the past in a model, and the reduction of such a model to one without them.

    v(t) = e(t − tau),      e an expression of states, algebraic states, inputs, parameters and time

The past values of e over one delay are a function w(theta) = e(t − theta) on 0 ≤ theta ≤ tau.  It satisfies the
transport equation  w_t = −w_theta,  w(0) = e.  The **delay line** represents it by its values at Chebyshev's nodes,

    theta_j = tau (1 − cos(pi j / M)) / 2,    w_0 = e,    w_j' = −sum_k D_jk w_k,    j = 1 ... M,    v = w_M

with D the differentiation matrix of the interpolating polynomial (Breda, Maset and Vermiglio 2005, SIAM J. Sci.
Comput. 27, 482; the matrix: Trefethen 2000, Spectral Methods in MATLAB, chapter 6).  Smooth pasts converge faster than
any power of 1/M; a kink, such as the one between the history and the solution, limits the order.  The **chain** is the
older way,

    w_1' = (N / tau) (e − w_1),    w_j' = (N / tau) (w_(j−1) − w_j),    v = w_N,

which converges as 1/N only, and is a model of its own: transit through N stages, with the gamma distribution.

Either way the w_j are states of an ordinary model, tau is a number or an expression of parameters, and everything else
works as ever.  Their names, such as ``x(t - tau), node 3``, appear in messages only: no output is made of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import casadi as ca
import numpy as np

from castfit._support.arguments import is_count, is_one_of, read_real, shorten_repr
from castfit._support.arrays import Array
from castfit._support.records import dataclass
from castfit._support.status import raise_if_mistakes

METHODS = ("spectral", "chain")
LADDER = (10, 15, 22, 33, 50, 75)  # nodes that are tried where their number is to be found
_LARGEST_ORDER = 200

# What each symbol made by `delay` stands for: a graph carries nothing but symbols.  A record keeps its own alive.
_KNOWN: dict[int, DelayedValue] = {}

_SAID: dict[tuple[Any, ...], DelayedValue] = {}


@dataclass(frozen=True, eq=False)
class DelayedValue:
    """Specification of one delayed value; `symbol` represents it in the model's expressions.

    history : the expression's values before the start; None for its value at the start
    method, order : "spectral" with so many nodes, or "chain" of so many stages; a fit may choose nodes if `adaptive`
    """

    symbol: ca.SX
    expression: ca.SX
    tau: ca.SX
    history: ca.SX | None
    method: str
    order: int
    adaptive: bool

    @property
    def parts(self) -> list[ca.SX]:
        """Expression, tau, and the history if there is one."""
        return [self.expression, self.tau, *([] if self.history is None else [self.history])]


def delay(
    expression: Any, tau: Any, *, history: Any = None, method: str = "spectral", order: int | str = "auto"
) -> ca.SX:
    """Take the value that an expression had a time tau ago.

    Parameters
    ----------
    expression : casadi.SX
        Of the model's states, algebraic states, inputs, parameters and time; it may hold delayed values itself.
    tau : casadi.SX or float
        The delay, positive: a number, or a parameter or an expression of parameters, estimated like any other.
    history : casadi.SX or float, optional
        The expression's values before the start of an experiment: a number, or an expression of time and parameters.
        By default the value at the start, held.
    method : {"spectral", "chain"}
        A delay line on Chebyshev's nodes, or a linear chain of `order` stages.
    order : int or "auto"
        Nodes of the line, or stages of the chain.  "auto" (lines only) begins with 10; `fit` then adds nodes until
        the estimates move no more, and says how many there are, `simulate` until no output moves by more than 1e-5 of
        its magnitude; both stop at 75.

    Returns
    -------
    casadi.SX
        A symbol for the equations and outputs of a `Model`.

    Raises
    ------
    InputError
        Listing every mistake.

    Examples
    --------
    >>> import castfit as cf
    >>> x, r, tau = cf.symbols("x r tau")
    >>> model = cf.Model({x: r * x * (1 - cf.delay(x, tau, history=0.1))}, parameters=[r, tau], initial={x: 0.1})
    >>> cf.simulate(model, {"r": 1.8, "tau": 1.0}, [0, 3, 6])["x"].round(3)
    array([0.1 , 1.53, 1.5 ])
    """
    mistakes: list[str] = []
    value_graph = _graph("expression", expression, mistakes)
    if value_graph is not None and not ca.symvar(value_graph):
        mistakes.append(f"expression is {shorten_repr(expression)}, a number; delay what changes in time")
    tau_graph = _graph("tau", tau, mistakes)
    if tau_graph is not None and tau_graph.is_constant() and not 0.0 < float(tau_graph) < np.inf:
        mistakes.append(f"tau is {float(tau_graph):g}; a delay is positive")
    history_graph = None if history is None else _graph("history", history, mistakes)
    if not is_one_of(method, *METHODS):
        mistakes.append(f"method is {shorten_repr(method)}; choose 'spectral' or 'chain'")
    adaptive = is_one_of(order, "auto")
    if adaptive and is_one_of(method, "chain"):
        mistakes.append("a chain needs order=, its number of stages: it is part of the model, not an accuracy")
    min_order = 2 if is_one_of(method, "spectral") else 1
    if not adaptive and not is_count(order, min_order, _LARGEST_ORDER):
        mistakes.append(
            f"order is {shorten_repr(order)}; give a number from {min_order} to {_LARGEST_ORDER}, or 'auto'"
        )
    raise_if_mistakes("delay", mistakes)
    assert value_graph is not None
    assert tau_graph is not None
    n_nodes = LADDER[0] if adaptive else int(order)
    cache_key = (
        _key(value_graph),
        _key(tau_graph),
        None if history_graph is None else _key(history_graph),
        method,
        n_nodes,
        adaptive,
    )
    if cache_key not in _SAID:  # the same value, asked for twice, needs one line only
        _SAID[cache_key] = _register(value_graph, tau_graph, history_graph, method, n_nodes, adaptive)
    return _SAID[cache_key].symbol


def _key(expression: ca.SX) -> tuple[str, float]:
    """Return a key that identifies an expression: numbers by value, others by their graph."""
    return ("number", float(expression)) if expression.is_constant() else ("graph", hash(expression))


def _register(
    expression: ca.SX, tau: ca.SX, history: ca.SX | None, method: str, order: int, adaptive: bool
) -> DelayedValue:
    delayed_value = DelayedValue(ca.SX.sym("delayed"), expression, tau, history, method, order, adaptive)
    _KNOWN[hash(delayed_value.symbol)] = delayed_value
    return delayed_value


def _graph(label: str, value: Any, mistakes: list[str]) -> ca.SX | None:
    """Read a number or a scalar expression."""
    if isinstance(value, ca.SX) and value.numel() == 1:
        return ca.densify(value)
    number = read_real(value)
    if number is not None and np.isfinite(number):
        return ca.SX(number)
    mistakes.append(f"{label} is {shorten_repr(value)}; give a scalar SX expression or a finite number")
    return None


def delays_in(expressions: Iterable[ca.SX]) -> tuple[DelayedValue, ...]:
    """Return the delayed values in expressions, those within others first."""
    delays: dict[int, DelayedValue] = {}

    def collect(expression: ca.SX) -> None:
        for symbol in ca.symvar(expression):
            key = hash(symbol)
            if key in _KNOWN and key not in delays:
                for part in _KNOWN[key].parts:
                    collect(part)
                delays[key] = _KNOWN[key]

    collect(ca.SX(ca.vertcat(*expressions)))
    return tuple(delays.values())


@dataclass(frozen=True)
class DelayLine:
    """Reduction of one delayed value, such as ``x(t - tau)``, to states, with the data to reverse it.

    `nodes` are the states that hold it, from the youngest to the oldest; the last one is the delayed value.
    """

    name: str
    nodes: tuple[str, ...]
    method: str
    order: int
    adaptive: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.order} {'nodes' if self.method == 'spectral' else 'stages'}"


@dataclass(frozen=True, eq=False)
class DelayLines:
    """All delayed values of a model as states: what `build_delay_lines` returns.

    rates, initial : right-hand sides, and initial values, by the name of a node; these may hold time, inputs and
        states, which mean those at the start
    symbols : of the nodes, in the order of `rates`
    """

    lines: tuple[DelayLine, ...]
    rates: dict[str, ca.SX]
    initial: dict[str, ca.SX]
    symbols: tuple[ca.SX, ...]
    delayed: tuple[DelayedValue, ...]

    def without(self, expressions: Mapping[str, ca.SX]) -> dict[str, ca.SX]:
        """Return expressions with the last node of each line in the place of the delayed value."""
        return dict(zip(expressions, self._replaced(list(expressions.values())), strict=True))

    def _replaced(self, expressions: list[ca.SX]) -> list[ca.SX]:
        ends: list[int] = (np.cumsum([d.order for d in self.delayed]) - 1).tolist()
        return substitute_symbols(expressions, [d.symbol for d in self.delayed], [self.symbols[i] for i in ends])


def build_delay_lines(delayed: Sequence[DelayedValue], time: ca.SX) -> DelayLines:
    """Make the states, rates and initial values of all delayed values."""
    lines: list[DelayLine] = []
    symbols: list[list[ca.SX]] = []
    for name, d in zip(_names(delayed), delayed, strict=True):
        kind = "node" if d.method == "spectral" else "stage"
        nodes = tuple(f"{name}, {kind} {j}" for j in range(1, d.order + 1))
        lines.append(DelayLine(name, nodes, d.method, d.order, d.adaptive))
        symbols.append([ca.SX.sym(n) for n in nodes])
    rates: list[ca.SX] = []
    initial: list[ca.SX] = []
    for d, node_symbols in zip(delayed, symbols, strict=True):
        w = [d.expression, *node_symbols]
        # exp(-log) is NaN where 1 / tau would turn a negative delay into growth that looks like a solution.
        rate = ca.exp(-ca.log(d.tau))
        if d.method == "spectral":
            matrix, ages = transport(d.order)
            rates += [rate * ca.dot(ca.DM(row), ca.vertcat(*w)) for row in matrix[1:]]
        else:
            ages = np.arange(d.order + 1) / d.order
            rates += [d.order * rate * (younger - older) for younger, older in itertools.pairwise(w)]
        for age in ages[1:].tolist():
            delayed_time = time - age * d.tau
            initial_value = (
                d.expression if d.history is None else substitute_symbols([d.history], [time], [delayed_time])[0]
            )
            initial.append(initial_value)
    flat = tuple(itertools.chain.from_iterable(symbols))
    names = [n for line in lines for n in line.nodes]
    delay_lines = DelayLines(tuple(lines), {}, {}, flat, tuple(delayed))
    initial_values = _at_start(initial, delayed, symbols)
    return replace(
        delay_lines,
        rates=delay_lines.without(dict(zip(names, rates, strict=True))),
        initial=dict(zip(names, initial_values, strict=True)),
    )


def _at_start(initial: list[ca.SX], delayed: Sequence[DelayedValue], symbols: list[list[ca.SX]]) -> list[ca.SX]:
    """Replace a delayed value within the initial values of another one by the initial value of its last node."""
    values = list(initial)
    end = -1
    for d, _ in zip(delayed, symbols, strict=True):  # inner ones come first
        end += d.order
        values[end + 1 :] = substitute_symbols(values[end + 1 :], [d.symbol], [values[end]])
    return values


def _names(delayed: Sequence[DelayedValue]) -> list[str]:
    """Name delayed values by what they are; a second one of the same name gets a number."""
    names_by_hash: dict[int, str] = {}
    for d in delayed:
        inner = [s for s in ca.symvar(d.expression) if hash(s) in names_by_hash]
        expression = substitute_symbols([d.expression], inner, [ca.SX.sym(names_by_hash[hash(s)]) for s in inner])[0]
        name = f"{_shortened(str(expression))}(t - {_shortened(str(d.tau))})"
        n_same = sum(n == name or n.startswith(f"{name} #") for n in names_by_hash.values())
        names_by_hash[hash(d.symbol)] = f"{name} #{n_same + 1}" if n_same else name
    return list(names_by_hash.values())


def _shortened(label: str) -> str:
    return label if len(label) <= 30 else f"{label[:27]}..."


def with_new_symbols(
    delayed: Sequence[DelayedValue],
    orders: Sequence[int],
    replaced_symbols: Sequence[ca.SX] = (),
    replacements: Sequence[ca.SX] = (),
) -> tuple[DelayedValue, ...]:
    """Rebuild delayed values on new symbols with other orders; `replacements` take the place of `replaced_symbols`."""
    delays: list[DelayedValue] = []
    for d, order in zip(delayed, orders, strict=True):
        old, new = [o.symbol for o in delayed[: len(delays)]], [n.symbol for n in delays]
        parts = substitute_symbols(d.parts, [*old, *replaced_symbols], [*new, *replacements])
        history = parts[2] if d.history is not None else None
        delays.append(_register(parts[0], parts[1], history, d.method, order, d.adaptive))
    return tuple(delays)


def restore_delays(
    symbols: Sequence[ca.SX], parts: Sequence[Sequence[ca.SX]], kinds: Sequence[tuple[str, int, bool]]
) -> tuple[DelayedValue, ...]:
    """Make the records of symbols anew, after unpickling; a history is missing where there are two parts."""
    delays: list[DelayedValue] = []
    for symbol, graphs, kind in zip(symbols, parts, kinds, strict=True):
        delayed_value = DelayedValue(symbol, graphs[0], graphs[1], graphs[2] if len(graphs) > 2 else None, *kind)
        _KNOWN[hash(symbol)] = delayed_value
        delays.append(delayed_value)
    return tuple(delays)


def substitute_symbols(expressions: list[ca.SX], old: Sequence[ca.SX], new: Sequence[ca.SX]) -> list[ca.SX]:
    """Substitute symbols in several expressions."""
    if not old or not expressions:
        return expressions
    return list(ca.substitute(expressions, [ca.vertcat(*old)], [ca.vertcat(*new)]))


@cache
def transport(order: int) -> tuple[Array, Array]:
    """Return -D (M + 1, M + 1) for tau = 1, and the ages theta_j (M + 1,) of the nodes.

    Differences of nodes are formed as products of sines, and the diagonal as minus the sum of its row: both keep the
    matrix exact to rounding where the textbook's formula loses digits.
    """
    j = np.arange(order + 1)
    phi = np.pi * j / (2 * order)
    # theta_i − theta_k = (cos(2 phi_k) − cos(2 phi_i)) / 2 = sin(phi_i + phi_k) sin(phi_i − phi_k)
    difference = np.sin(phi[:, None] + phi) * np.sin(phi[:, None] - phi)
    weight = np.where((j == 0) | (j == order), 2.0, 1.0) * (-1.0) ** j
    np.fill_diagonal(difference, 1.0)
    d = np.outer(weight, 1.0 / weight) / difference
    np.fill_diagonal(d, 0.0)
    np.fill_diagonal(d, -d.sum(axis=1))
    ages: Array = np.sin(phi) ** 2
    for array in (d, ages):
        array.flags.writeable = False
    return -d, ages
