"""The model: an ODE or semi-explicit index-1 DAE with named states, parameters, inputs and outputs.

    x' = ode(t, x, z, p, u)          differential states x
    0  = alg(t, x, z, p, u)          algebraic states z
    y  = output(t, x, z, p, u)       whatever can be measured

A model is a CasADi SX graph over the user's own symbols.  Everything is checked at construction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, cast

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from castfit._support.arguments import read_mapping, read_real, read_sequence, shorten_repr
from castfit._support.public_names import public
from castfit._support.records import dataclass
from castfit._support.renamed import with_old_names
from castfit._support.reprs import add_brief_repr, join_limited, one_line
from castfit._support.status import raise_if_mistakes, suggest, unknown_names
from castfit._support.views import views
from castfit.model.dae_index import index_mistakes
from castfit.model.delay import (
    DelayedValue,
    DelayLine,
    build_delay_lines,
    delays_in,
    restore_delays,
    substitute_symbols,
    with_new_symbols,
)
from castfit.model.expressions import NOT_A_NUMBER, holds_nan, pattern, substitute_by_name
from castfit.model.from_function import SymbolArray, call_user_function, rates
from castfit.model.graph_rewriting import Switch, differentiable_powers, replace_jumps
from castfit.model.interval_outputs import IntervalMemory, reduce_interval_outputs
from castfit.model.scaled_outputs import OutputScaling, Scaled, read_scaled, scale_outputs

Expression = ca.SX | float | int


def symbols(names: str | Iterable[str]) -> Any:
    """Create CasADi SX scalars.

    Parameters
    ----------
    names : str or iterable of str
        Names separated by spaces or commas, such as ``"x y"``; or one by one, ``(f"u{i}" for i in range(20))``.

    Returns
    -------
    casadi.SX or tuple of casadi.SX
        One symbol for one name, a tuple for several; a tuple always where an iterable is given.

    Examples
    --------
    >>> import castfit as cf
    >>> x, y = cf.symbols("x y")
    >>> -0.3 * x * y
    SX(((-0.3*x)*y))
    >>> cells = cf.symbols(f"u{i}" for i in range(3))
    >>> cells
    (SX(u0), SX(u1), SX(u2))
    """
    argument: Any = names
    parts = argument.replace(",", " ").split() if isinstance(argument, str) else read_sequence(argument) or []
    mistakes = [f"{shorten_repr(name)} is no name" for name in parts if not isinstance(name, str) or not name.strip()]
    valid_names = [name for name in parts if isinstance(name, str)]
    mistakes += [f"the name '{name}' is given twice" for name, times in Counter(valid_names).items() if times > 1]
    if not parts:
        mistakes.append(f"{shorten_repr(argument)} contains no name; write for example symbols('x y')")
    raise_if_mistakes("symbols", mistakes)
    scalars = tuple(ca.SX.sym(name) for name in parts)
    return scalars[0] if len(scalars) == 1 and isinstance(argument, str) else scalars


@add_brief_repr
@dataclass(frozen=True)
class System:
    """A semi-explicit DAE  x' = ode(t, x, z, p, u),  0 = alg(t, x, z, p, u)  as SX column vectors."""

    t: ca.SX
    x: ca.SX
    z: ca.SX
    p: ca.SX
    u: ca.SX
    ode: ca.SX
    alg: ca.SX
    state_names: tuple[str, ...]
    algebraic_names: tuple[str, ...]
    parameter_names: tuple[str, ...]
    input_names: tuple[str, ...]

    @property
    def arguments(self) -> list[ca.SX]:
        """The arguments (t, x, z, p, u) that every function of the model takes, in this order."""
        return [self.t, self.x, self.z, self.p, self.u]

    def function(self, name: str, *expressions: ca.SX) -> ca.Function:
        """Build a CasADi function of (t, x, z, p, u)."""
        return ca.Function(name, self.arguments, list(expressions), ["t", "x", "z", "p", "u"], _outputs(expressions))


def _outputs(expressions: Sequence[ca.SX]) -> list[str]:
    return [f"o{i}" for i in range(len(expressions))]


@with_old_names(said="definition", told="to_system_symbols")
@public("castfit")
@dataclass(frozen=True, eq=False, init=False, repr=False)
class Model:
    """An ODE/DAE model with named states, parameters, inputs and outputs.

    Parameters
    ----------
    ode : mapping from casadi.SX to expression
        The right-hand side of each differential state.
    algebraic : mapping from casadi.SX to expression, optional
        For each algebraic state an equation, ``z - x**2`` (read as "= 0") or ``z == x**2``.
    parameters, inputs : sequences of casadi.SX, optional
        Symbols of the parameters and of the inputs u(t).
    noises : sequence of casadi.SX, optional
        Symbols of white noise of unit intensity, independent of each other, written into right-hand sides: with
        ``x: -k * x + s * w`` the state x is disturbed with intensity s, dx = -k x dt + s dW.  Where noise multiplies
        states this is Stratonovich's integral.  `fit` then estimates the path, too; `simulate` leaves noise at 0.
    outputs : mapping from str to expression, optional
        Measurable quantities.  Every state is an output under its own name already.  What is no value at a time is
        said with `per_interval`, `interval_mean` or `relative_to_first`; ``scaled(expression)`` has an unknown scale.
    time : casadi.SX, optional
        The symbol of time, if it appears.
    initial : mapping from casadi.SX or str to expression of the parameters, optional
        Initial states that hold unless an experiment says otherwise.

    Raises
    ------
    InputError
        Listing every mistake: unknown or doubly declared symbols, expressions that are not scalar, algebraic
        equations that do not determine the algebraic states (index 2 or higher).

    Examples
    --------
    >>> import castfit as cf
    >>> prey, predator, a, b, c, d = cf.symbols("prey predator a b c d")
    >>> cf.Model(
    ...     {prey: a * prey - b * prey * predator, predator: c * prey * predator - d * predator},
    ...     parameters=[a, b, c, d],
    ...     outputs={"animals": prey + predator},
    ...     initial={prey: 10, predator: 5},
    ... )
    Model(ODE: states prey, predator; parameters a, b, c, d)
    """

    system: System
    outputs: dict[str, ca.SX]
    initial: dict[str, ca.SX]
    scalings: dict[str, OutputScaling]
    memories: tuple[IntervalMemory, ...]
    """What experiments set at their measurements: of counts per interval and the like."""
    definition: ModelDefinition
    """What the model was given, by name, before delays and memories became states of it."""
    switches: tuple[Switch, ...]
    """Parameters that are 0 before a time and 1 after it."""
    noises: tuple[str, ...]
    """Parameters that stand for white noise; 0 in experiments without process noise."""
    generated: frozenset[str]
    """Parameters that castfit generates: noises, switches, rates of infusions, and pieces of inputs."""
    added: dict[str, ca.SX]
    """What equations and outputs add to inputs that are estimated, by name, over these parameters and time."""
    lines: tuple[DelayLine, ...]
    """What became of the model's delayed values."""

    def __init__(
        self,
        ode: Mapping[ca.SX, Expression],
        *,
        algebraic: Mapping[ca.SX, Expression] | None = None,
        parameters: Iterable[ca.SX] = (),
        inputs: Iterable[ca.SX] = (),
        noises: Iterable[ca.SX] = (),
        outputs: Mapping[str, Expression | Scaled] | None = None,
        time: ca.SX | None = None,
        initial: Mapping[ca.SX | str, Expression] | None = None,
    ) -> None:
        mistakes: list[str] = []
        unscaled_outputs, scalings, scale_symbols = read_scaled(read_mapping("outputs", outputs, mistakes), mistakes)
        reduced_outputs = reduce_interval_outputs(unscaled_outputs)
        memories = reduced_outputs.memories
        ode_argument: Any = ode
        if memories and isinstance(ode_argument, Mapping):
            ode = {**ode, **reduced_outputs.rates}
            initial = {**(initial or {}), **reduced_outputs.initial}
        declared = {
            "state": _keys("ode", ode, mistakes),
            "algebraic state": _keys("algebraic", {} if algebraic is None else algebraic, mistakes),
            "parameter": [*_as_list("parameters", parameters, mistakes), *scale_symbols.values()],
            "input": _as_list("inputs", inputs, mistakes),
            "noise": _as_list("noises", noises, mistakes),
            "time": [] if time is None else [time],
        }
        mistakes += _no_symbols(declared)
        raise_if_mistakes("Model", mistakes)  # without symbols there is nothing more to say
        mistakes += _repeated(declared)
        names = {kind: tuple(symbol.name() for symbol in symbols_) for kind, symbols_ in declared.items()}
        state_names = names["state"] + names["algebraic state"]

        right = _scalars("ode of", dict(zip(names["state"], ode.values(), strict=True)), mistakes)
        equations = zip(names["algebraic state"], (algebraic or {}).values(), strict=True)
        residual = _scalars("equation of", {name: _residual(e) for name, e in equations}, mistakes)
        extra = scale_outputs(_scalars("output", reduced_outputs.outputs, mistakes), scalings, scale_symbols)
        start = _scalars("initial value of", read_mapping("initial", initial, mistakes), mistakes)
        delayed = delays_in([*right.values(), *residual.values(), *extra.values()])
        all_symbols = [symbol for group in declared.values() for symbol in group]
        mistakes += _delay_mistakes(delayed, declared, all_symbols)
        all_symbols += [d.symbol for d in delayed]
        for label, expressions in (("ode of", right), ("equation of", residual), ("output", extra)):
            mistakes += _undeclared({f"{label} '{name}'": e for name, e in expressions.items()}, all_symbols)
        mistakes += _initial_mistakes(start, names["state"], declared["parameter"])
        mistakes += _output_mistakes(extra, state_names)
        mistakes += _noise_mistakes(declared["noise"], right, residual, extra, delayed)
        if not ode:
            mistakes.append("ode is empty; give the right-hand side of at least one state")
        raise_if_mistakes("Model", mistakes)  # graphs with errors cannot be evaluated below
        # What experiments without noise have is a parameter that is 0.
        declared["parameter"] = [*declared["parameter"], *declared["noise"]]
        names["parameter"] += names["noise"]
        if residual:
            other_symbols = [s for s in all_symbols if s.name() not in names["algebraic state"]]
            z = _vector(declared["algebraic state"])
            raise_if_mistakes(
                "Model", index_mistakes(_vector(residual.values()), z, [_vector(other_symbols)], list(residual))
            )

        t = _default_time([symbol.name() for symbol in all_symbols]) if time is None else time
        definition = ModelDefinition(right, residual, extra, start, delayed, memories)
        delay_lines: tuple[DelayLine, ...] = ()
        if delayed:
            lines = build_delay_lines(delayed, t)
            delay_lines = lines.lines
            right, residual, extra = ({**lines.without(group)} for group in (right, residual, extra))
            right, start = right | lines.rates, start | lines.initial
            declared["state"] = [*declared["state"], *lines.symbols]
            names["state"] = (*names["state"], *lines.rates)
        x = _vector(declared["state"])
        columns = differentiable_powers(
            [_vector(right.values()), _vector(residual.values()), _vector(extra.values())], x
        )
        extra = dict(zip(extra, _split(columns[2]), strict=True))
        symbol_by_name = {s.name(): s for s in declared["state"] + declared["algebraic state"]}
        vars(self).update(
            system=System(
                t,
                x,
                _vector(declared["algebraic state"]),
                _vector(declared["parameter"]),
                _vector(declared["input"]),
                columns[0],
                columns[1],
                names["state"],
                names["algebraic state"],
                names["parameter"],
                names["input"],
            ),
            outputs={**{n: symbol_by_name[n] for n in state_names}, **extra},
            initial=start,
            scalings=scalings,
            memories=memories,
            definition=definition,
            switches=(),
            noises=names["noise"],
            generated=frozenset(names["noise"]),
            added={},
            lines=delay_lines,
        )

    @classmethod
    def from_dae(
        cls, dae: Mapping[str, ca.SX], *, outputs: Mapping[str, Expression | Scaled] | None = None, initial: Any = None
    ) -> Model:
        """Build a model from CasADi's own vector DAE dictionary.

        Parameters
        ----------
        dae : mapping
            Keys ``x, ode`` and optionally ``z, alg, p, u, t``: SX column vectors, as for ``casadi.integrator``.
        outputs : mapping from str to expression, optional
        initial : mapping from state symbol or name to expression, optional
        """
        valid = ("x", "ode", "z", "alg", "p", "u", "t")
        mistakes: list[str] = []
        dae_entries = read_mapping("dae", dae, mistakes)
        mistakes += unknown_names("unknown key '{}'", dae_entries, valid)
        mistakes += [f"key '{key}' is missing" for key in ("x", "ode") if key not in dae_entries]
        pieces = {key: _column(key, value, mistakes) for key, value in dae_entries.items()}
        for left, right in (("x", "ode"), ("z", "alg")):
            rows, equations = len(pieces.get(left, [])), len(pieces.get(right, []))
            if rows != equations:
                mistakes.append(f"'{left}' has {rows} rows, but '{right}' has {equations}; they belong together")
        entries = {"entry of x": pieces.get("x", []), "entry of z": pieces.get("z", [])}
        mistakes += _no_symbols(entries) or _repeated(entries)
        raise_if_mistakes("Model.from_dae", mistakes)
        return cls(
            dict(zip(pieces["x"], pieces["ode"], strict=True)),
            algebraic=dict(zip(pieces.get("z", []), pieces.get("alg", []), strict=True)),
            parameters=pieces.get("p", []),
            inputs=pieces.get("u", []),
            outputs=outputs,
            time=dae_entries.get("t"),
            initial=initial,
        )

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        states: str | Iterable[str],
        parameters: str | Iterable[str] = (),
        *,
        inputs: str | Iterable[str] = (),
        outputs: Callable[..., Mapping[str, Expression | Scaled]] | None = None,
        initial: Mapping[str, Expression] | None = None,
    ) -> Model:
        """Build a model from a function ``f(t, x, p)``, such as an integrator takes; it is called once, with symbols.

        Parameters
        ----------
        function : callable
            Of time, states and parameters, and of the inputs if there are any: ``f(t, x, p, u)``.  The last three are
            arrays, in which symbols are found by place and by name: ``x[0]``, ``x["S"]``, ``S, I, R = x``.  It returns
            the derivatives in the order of the states, or by name.  NumPy's functions take symbols; conditions are
            written ``cf.if_else(x > 0, a, b)`` or ``np.where(x > 0, a, b)``.
        states, parameters, inputs : str or iterable of str
            Their names: ``"S I R"`` or ``["S", "I", "R"]``.
        outputs : callable, optional
            A function of the same arguments that returns measurable quantities by name.
        initial : mapping from str to number, optional
            Initial states that hold unless an experiment says otherwise.

        Examples
        --------
        >>> import castfit as cf
        >>> def epidemic(t, x, p):
        ...     S, I, R = x
        ...     infected = p["beta"] * S * I / (S + I + R)
        ...     return [-infected, infected - p["gamma"] * I, p["gamma"] * I]
        >>> cf.Model.from_function(epidemic, "S I R", "beta gamma", initial={"R": 0})
        Model(ODE: states S, I, R; parameters beta, gamma)
        """
        groups = [_named_symbols(names) for names in (states, parameters, inputs)]
        t = _default_time([symbol.name() for group in groups for symbol in group])
        x, p, u = groups
        arguments = [t, *(SymbolArray.from_symbols(group) for group in (groups if u else groups[:2]))]
        right = rates(call_user_function(function, "f", arguments), [symbol.name() for symbol in x])
        return cls(
            dict(zip(x, right, strict=True)),
            parameters=p,
            inputs=u,
            outputs=None if outputs is None else call_user_function(outputs, "outputs", arguments),
            time=t,
            initial=cast("Any", initial),
        )

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the differential states; states of delay lines come last."""
        return self.system.state_names

    @cached_property
    def own_states(self) -> tuple[str, ...]:
        """Names of the differential states in the model's definition, without states of delay lines."""
        return tuple(n for n in self.states if n in self.outputs)

    @cached_property
    def settling(self) -> System:
        """The equations by which it comes to rest: what gathers from measurement to measurement stands still."""
        memory_indices = [self.states.index(state) for memory in self.memories for state in memory.states]
        ode = ca.SX(ca.densify(self.system.ode))
        ode[memory_indices] = 0.0
        return replace(self.system, ode=ode) if memory_indices else self.system

    @property
    def adaptive(self) -> bool:
        """Whether the number of nodes of a delay line may be chosen."""
        return any(line.adaptive for line in self.lines)

    @property
    def is_extended(self) -> bool:
        """Whether parameters or outputs were added to those that the model was given, as for infusions and noise."""
        original_outputs = (*self.own_states, *self.algebraic_states, *self.definition.extra)
        return tuple(self.outputs) != original_outputs or bool(self.generated)

    def delays(self, p: Any) -> list[float]:
        """Return each line's tau at parameters p (n_p,)."""
        taus = _vector(d.tau for d in self.definition.delayed)
        return np.asarray(ca.Function("tau", [self.system.p], [taus])(p), dtype=float).ravel().tolist()

    def with_order(self, order: int) -> Model:
        """Return the model with so many nodes in each delay line whose number may be chosen."""
        if not self.adaptive:
            return self
        if order not in self._with_order:
            definition = self.definition
            delayed = with_new_symbols(
                definition.delayed, [order if d.adaptive else d.order for d in definition.delayed]
            )
            self._with_order[order] = self._restated(definition.over(definition.groups, delayed))
        return self._with_order[order]

    @cached_property
    def _with_order(self) -> dict[int, Model]:
        """Cache of the model with other orders, so that functions are built once for each order."""
        return {}

    @property
    def algebraic_states(self) -> tuple[str, ...]:
        """Names of the algebraic states."""
        return self.system.algebraic_names

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.system.parameter_names

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return self.system.input_names

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of everything that can be measured: states, algebraic states, outputs."""
        return tuple(self.outputs)

    def with_measured(self, names: Sequence[str]) -> Model:
        """Return the model in which the named states have become inputs, appended to its own inputs."""
        system = self.system
        symbol = dict(zip(system.state_names, ca.vertsplit(system.x), strict=True))
        rates = dict(zip(system.state_names, ca.vertsplit(system.ode), strict=True))
        return Model(
            {symbol[n]: rates[n] for n in system.state_names if n not in names},
            algebraic=dict(zip(_split(system.z), _split(system.alg), strict=True)),
            parameters=_split(system.p),
            inputs=[*_split(system.u), *(symbol[n] for n in names)],
            time=system.t,
        )

    def extended(self, parameters: Sequence[str], outputs: Mapping[str, ca.SX]) -> Model:
        """Return the model with more parameters, by name, and outputs that may contain them.

        Symbols in the new outputs are matched by name; the name of an output stands for its expression.
        """
        if not parameters and not outputs:
            return self
        system = self.system
        p = _vector([*_split(system.p), *(ca.SX.sym(n) for n in parameters)])
        extended = replace(system, p=p, parameter_names=(*system.parameter_names, *parameters))
        states = {*self.states, *self.algebraic_states}
        output_graphs = {n: graph for n, graph in self.outputs.items() if n not in states}
        new = {
            n: by_name(substitute_by_name(self.to_system_symbols(expression), output_graphs), extended)
            for n, expression in outputs.items()
        }
        definition = replace(self.definition, extra={**self.definition.extra, **new})
        return self.with_parts(system=extended, outputs={**self.outputs, **new}, definition=definition)

    def with_parts(self, **changes: Any) -> Model:
        """Return a model with other parts on the same symbols; `copy` would pickle it, and so make new ones."""
        model = Model.__new__(Model)
        vars(model).update({f.name: getattr(self, f.name) for f in fields(self)} | changes)
        return model

    @cached_property
    def flow_parameters(self) -> NDArray[np.bool_]:
        """Mask of the parameters that the differential and algebraic equations contain, (n_p,)."""
        system = self.system
        is_nonzero = pattern(ca.jacobian(ca.vertcat(system.ode, system.alg), system.p).sparsity())
        return np.logical_or.reduce(is_nonzero, axis=0)

    def with_rates(self, names: Sequence[str]) -> Model:
        """Return the model with a rate into each of the named states as one more parameter, after its own."""
        names = [n for n in names if f"rate into {n}" not in self.parameters]
        if not names:
            return self
        definition = self.definition
        rates = {n: ca.SX.sym(f"rate into {n}") for n in names}
        right = {n: ode + rates[n] if n in rates else ode for n, ode in definition.right.items()}
        return self._restated(replace(definition, right=right), list(rates.values()))

    def with_added_inputs(self, values: Mapping[str, ca.SX], parameters: Sequence[ca.SX]) -> Model:
        """Return the model in which expressions of time and of more parameters are added to some inputs, by name."""
        definition, u = self.definition, dict(zip(self.inputs, _split(self.system.u), strict=True))
        old, new = [u[n] for n in values], [u[n] + value for n, value in values.items()]
        orders = [d.order for d in definition.delayed]
        delayed = with_new_symbols(definition.delayed, orders, old, new) if definition.delayed else ()
        groups = [
            dict(zip(group, substitute_symbols(list(group.values()), old, new), strict=True))
            for group in definition.groups
        ]
        return self._restated(definition.over(groups, delayed), parameters).with_parts(added=dict(values))

    def to_system_symbols(self, expression: ca.SX) -> ca.SX:
        """Return an expression of the model's symbols, matched by name, with the additions to the inputs included."""
        changed_inputs = {s.name(): s for s in ca.symvar(expression) if s.name() in self.added}
        return substitute_by_name(expression, {n: s + self.added[n] for n, s in changed_inputs.items()})

    @cached_property
    def with_switches(self) -> Model:
        """The model with a parameter, 0 or 1, for everything in it that changes at a time; itself without any."""
        definition, system = self.definition, self.system
        other_symbols = ca.vertcat(system.x, system.z, system.u, *(d.symbol for d in definition.delayed))
        columns, switches = replace_jumps([_vector(g.values()) for g in definition.groups], system.t, other_symbols)
        if not switches:
            return self
        groups = [dict(zip(old, _split(new), strict=True)) for old, new in zip(definition.groups, columns, strict=True)]
        return self._restated(definition.over(groups, definition.delayed), [s.symbol for s in switches], switches)

    def _restated(
        self, definition: ModelDefinition, parameters: Sequence[ca.SX] = (), switches: tuple[Switch, ...] = ()
    ) -> Model:
        """Return the model of another definition, with more parameters after its own."""
        system, n = self.system, len(self.own_states)
        p = [*_split(system.p), *parameters]
        return _build_model(
            definition, _split(system.x)[:n], _split(system.z), p, _split(system.u), system.t
        ).with_parts(
            scalings=self.scalings,
            switches=(*self.switches, *switches),
            noises=self.noises,
            generated=self.generated | {s.name() for s in parameters},
            added=self.added,
        )

    @property
    def delayed_states(self) -> frozenset[str]:
        """Names of the states of which delayed values are taken."""
        delayed_names = {s.name() for d in self.definition.delayed for s in ca.symvar(d.expression)}
        return frozenset(n for n in self.own_states if n in delayed_names)

    def _repr_html_(self) -> str:
        return views().reports.card(self)

    def __repr__(self) -> str:
        kind = "DAE" if self.algebraic_states else "ODE"
        delays = f"; delays {', '.join(map(str, self.lines))}" if self.lines else ""
        parameter_names = [n for n in self.parameters if n not in self.noises]
        contents = (
            f"states {join_limited(self.own_states, 45)}; parameters {join_limited(parameter_names, 45) or 'none'}"
        )
        noises = f"; noises {', '.join(self.noises)}" if self.noises else ""
        return one_line(f"Model({kind}: {contents}{noises}{delays})")

    def __reduce__(self) -> Any:
        """Pickle through a CasADi function, since bare SX does not pickle."""
        definition, system = self.definition, self.system
        groups = (*definition.groups, definition.initial)
        parts = [part for d in definition.delayed for part in d.parts]
        state_symbols = _vector(_split(system.x)[: len(self.own_states)])
        arguments = [
            system.t,
            state_symbols,
            system.z,
            system.p,
            system.u,
            _vector(d.symbol for d in definition.delayed),
        ]
        graph = ca.Function("model", arguments, [*(_vector(g.values()) for g in groups), _vector(parts)])
        kinds = tuple((d.method, d.order, d.adaptive, len(d.parts)) for d in definition.delayed)
        names = (self.own_states, self.algebraic_states, self.parameters, self.inputs)
        times = ca.Function("times", [system.p], [_vector(s.time for s in self.switches)])
        added = ca.Function("added", [system.t, system.p], [_vector(self.added.values())])
        switches = tuple(s.name for s in self.switches)
        definition_parts = (
            graph,
            names,
            tuple(tuple(g) for g in groups),
            kinds,
            system.t.name(),
            definition.memories,
            self.scalings,
        )
        return _restore, (*definition_parts, self.noises, self.generated, switches, times, tuple(self.added), added)


@add_brief_repr
@dataclass(frozen=True, eq=False)
class ModelDefinition:
    """Definition of a model, by name; symbols represent the delayed values."""

    right: dict[str, ca.SX]
    residual: dict[str, ca.SX]
    extra: dict[str, ca.SX]
    initial: dict[str, ca.SX]
    delayed: tuple[DelayedValue, ...]
    memories: tuple[IntervalMemory, ...] = ()

    @property
    def groups(self) -> tuple[dict[str, ca.SX], dict[str, ca.SX], dict[str, ca.SX]]:
        """Right-hand sides, algebraic equations, outputs."""
        return self.right, self.residual, self.extra

    def over(self, groups: Sequence[dict[str, ca.SX]], delayed: tuple[DelayedValue, ...]) -> ModelDefinition:
        """Return a copy with other expressions, in which symbols of the new delayed values replace the old symbols."""
        old, new = [o.symbol for o in self.delayed], [n.symbol for n in delayed]
        right, residual, extra = (
            dict(zip(group, substitute_symbols(list(group.values()), old, new), strict=True)) for group in groups
        )
        return replace(self, right=right, residual=residual, extra=extra, delayed=delayed)


def _build_model(
    definition: ModelDefinition,
    x: Sequence[ca.SX],
    z: Sequence[ca.SX],
    p: Sequence[ca.SX],
    u: Sequence[ca.SX],
    t: ca.SX,
) -> Model:
    """Build a model from its definition, on given symbols."""
    model = Model(
        dict(zip(x, definition.right.values(), strict=True)),
        algebraic=dict(zip(z, definition.residual.values(), strict=True)),
        parameters=p,
        inputs=u,
        outputs=definition.extra,
        time=t,
        initial={**definition.initial},
    )
    # The definition already contains the states of memories, but not when to set them.
    return model.with_parts(
        memories=definition.memories, definition=replace(model.definition, memories=definition.memories)
    )


def by_name(expression: ca.SX, system: System) -> ca.SX:
    """Rewrite an expression over the system's own symbols, matching symbols by name."""
    return substitute_by_name(expression, {s.name(): s for vector in system.arguments for s in _split(vector)})


def _restore(
    graph: ca.Function,
    names: tuple[tuple[str, ...], ...],
    keys: tuple[tuple[str, ...], ...],
    kinds: tuple[tuple[str, int, bool, int], ...],
    time: str,
    memories: tuple[IntervalMemory, ...],
    scalings: Mapping[str, OutputScaling],
    noises: tuple[str, ...],
    generated: frozenset[str],
    switches: tuple[str, ...],
    switch_times: ca.Function,
    inputs: tuple[str, ...],
    added: ca.Function,
) -> Model:
    """Rebuild a pickled model on fresh symbols."""
    x, z, p, u = ([ca.SX.sym(n) for n in group] for group in names)
    t, symbols = ca.SX.sym(time), [ca.SX.sym("delayed") for _ in kinds]
    graphs: list[ca.SX] = graph.call([t, *map(_vector, (x, z, p, u, symbols))])
    *groups, flat = (_split(e) for e in graphs)
    remaining = iter(flat)
    parts = [[next(remaining) for _ in range(n)] for *_, n in kinds]
    delayed = restore_delays(symbols, parts, [(method, order, adaptive) for method, order, adaptive, _ in kinds])
    right, residual, extra, initial = (
        dict(zip(key, group, strict=True)) for key, group in zip(keys, groups, strict=True)
    )
    system = (
        model := _build_model(ModelDefinition(right, residual, extra, initial, delayed, memories), x, z, p, u, t)
    ).system
    symbol = {s.name(): s for s in p}
    times = _split(ca.SX(switch_times.call([system.p])[0]))
    return model.with_parts(
        scalings=dict(scalings),
        noises=noises,
        generated=generated,
        switches=tuple(Switch(symbol[n], time) for n, time in zip(switches, times, strict=True)),
        added=dict(zip(inputs, _split(ca.SX(added.call([system.t, system.p])[0])), strict=True)),
    )


def _vector(expressions: Iterable[ca.SX]) -> ca.SX:
    """Stack scalars into a column; an empty one keeps the shape (0, 1)."""
    parts = list(expressions)
    return ca.densify(ca.vertcat(*parts)) if parts else ca.SX(0, 1)


def _split(matrix: ca.SX) -> list[ca.SX]:
    if matrix.is_scalar(True):
        return [matrix]
    return list(ca.vertsplit(ca.vec(matrix))) if matrix.numel() else []


def _default_time(used_names: Sequence[str]) -> ca.SX:
    """Make the symbol of time under a name that is still free."""
    name = "t"
    while name in used_names:
        name += "_"
    return ca.SX.sym(name)


def _named_symbols(names: str | Iterable[str]) -> list[ca.SX]:
    """Make symbols of names; there may be none."""
    parts = names.replace(",", " ").split() if isinstance(names, str) else names
    return list(symbols(parts)) if read_sequence(parts) != [] else []


def _keys(label: str, mapping: Any, mistakes: list[str]) -> list[Any]:
    if isinstance(mapping, Mapping):
        return list(cast("Mapping[Any, Any]", mapping))
    if callable(mapping):
        mistakes.append(f"{label} is a function; write Model.from_function(f, states=[...], parameters=[...])")
        return []
    mistakes.append(f"{label} is a {type(mapping).__name__}; give a mapping from symbols to expressions, {{x: ...}}")
    return []


def _as_list(label: str, group: Any, mistakes: list[str]) -> list[Any]:
    """Convert a sequence of scalars and symbolic vectors, or a single one, to a flat list."""
    if isinstance(group, ca.SX):
        return _split(group)
    entries = read_sequence(group)
    if entries is None:
        mistakes.append(f"{label} is {shorten_repr(group)}; give a list of SX symbols, created with castfit.symbols")
        return []
    return [s for item in entries for s in (_split(item) if isinstance(item, ca.SX) else [item])]


def _column(key: str, value: Any, mistakes: list[str]) -> list[ca.SX]:
    """Split an entry of CasADi's dictionary into scalars."""
    try:
        return _split(ca.SX(value))
    except (RuntimeError, TypeError, ValueError):
        mistakes.append(f"'{key}' is a {type(value).__name__}; give a CasADi SX column")
        return []


def _residual(equation: Any) -> Any:
    """Turn ``a == b`` into ``a - b``; anything else is a residual already."""
    if not (isinstance(equation, ca.SX) and equation.is_scalar(True)) or equation.is_symbolic():
        return equation
    is_equation = equation.n_dep() == 2 and equation.op() == ca.OP_EQ
    return equation.dep(0) - equation.dep(1) if is_equation else equation


def _scalars(label: str, expressions: Mapping[str, Any], mistakes: list[str]) -> dict[str, ca.SX]:
    """Return the expressions that are scalars."""
    scalars: dict[str, ca.SX] = {}
    for name, expression in expressions.items():
        try:
            number = read_real(expression)  # not every type of number is one of CasADi's
            value = expression if isinstance(expression, ca.SX) else ca.SX(expression if number is None else number)
        except (RuntimeError, TypeError, ValueError):
            value = None
        if value is None or isinstance(expression, (bool, np.bool_)):
            mistakes.append(f"{label} '{name}' is {shorten_repr(expression)}; give a CasADi SX expression or a number")
        elif value.numel() != 1:
            mistakes.append(f"{label} '{name}' has shape {value.shape}; it must be a scalar")
        elif holds_nan(value):
            mistakes.append(f"{label} '{name}' {NOT_A_NUMBER}")
        elif value.is_constant() and not np.isfinite(float(value)):
            mistakes.append(f"{label} '{name}' is {float(value)}; it must be finite")
        else:
            scalars[name] = value
    return scalars


def _no_symbols(declared: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return error messages for declared entries that are not scalar SX symbols with a name."""
    return [
        f"{kind} {shorten_repr(s)} is not a scalar SX symbol with a name; create it with castfit.symbols"
        for kind, group in declared.items()
        for s in group
        if not (isinstance(s, ca.SX) and s.is_scalar(True) and s.is_symbolic() and s.name())
    ]


def _repeated(declared: Mapping[str, Sequence[ca.SX]]) -> list[str]:
    """Find names that are declared twice."""
    kind_by_name: dict[str, str] = {}
    mistakes: list[str] = []
    for kind, group in declared.items():
        for symbol in group:
            name = symbol.name()
            if name in kind_by_name:
                mistakes.append(f"the name '{name}' is declared twice, as {kind_by_name[name]} and as {kind}")
            kind_by_name[name] = kind
    return mistakes


def _undeclared(expressions: Mapping[str, ca.SX], declared: Sequence[ca.SX], *, only: str = "") -> list[str]:
    """Name the symbols in graphs, by their location, that are not declared.

    A second symbol of a known name is a trap of its own.
    """
    names_by_hash = {hash(symbol): symbol.name() for symbol in declared}
    if all(hash(symbol) in names_by_hash for symbol in ca.symvar(_vector(expressions.values()))):
        return []
    names, mistakes = names_by_hash.values(), list[str]()
    for location, expression in expressions.items():
        for name in (symbol.name() for symbol in ca.symvar(expression) if hash(symbol) not in names_by_hash):
            if only:
                mistakes.append(
                    f"{location} contains '{name}', but only {only} may appear there: {suggest(name, names)}"
                )
            elif name in names:
                mistakes.append(
                    f"{location} contains a second symbol named '{name}'; create each symbol once and reuse it"
                )
            else:
                mistakes.append(f"{location} contains '{name}', which is not declared: {suggest(name, names)}")
    return mistakes


def _initial_mistakes(initial: Mapping[str, ca.SX], states: Sequence[str], parameters: Sequence[ca.SX]) -> list[str]:
    """Return error messages for initial values of unknown states, or with symbols other than parameters."""
    state_names = set(states)
    mistakes = [
        f"initial names '{n}', which is no state: {suggest(n, states)}" for n in initial if n not in state_names
    ]
    values = {f"initial value of '{name}'": e for name, e in initial.items()}
    return mistakes + _undeclared(values, parameters, only="parameters")


def _output_mistakes(outputs: Iterable[str], states: Sequence[str]) -> list[str]:
    """Find outputs whose names mean something else."""
    mistakes = [
        f"output '{name}' has the name of a state; states are outputs already, choose another name"
        for name in outputs
        if name in states
    ]
    if "time" in {*states, *outputs}:
        mistakes.append("'time' is what predictions call their times; choose another name for the state or output")
    return mistakes


def _noise_mistakes(
    noises: Sequence[ca.SX],
    right: Mapping[str, ca.SX],
    residual: Mapping[str, ca.SX],
    outputs: Mapping[str, ca.SX],
    delayed: Sequence[DelayedValue],
) -> list[str]:
    """Find noises that enter no right-hand side, one otherwise than linearly, or what must have a value at a time."""
    if not noises:
        return []
    noises = list({s.name(): s for s in noises}.values())  # one that is declared twice is a mistake of its own
    w, mistakes = _vector(noises), list[str]()
    used_names = {s.name() for graph in right.values() for s in ca.symvar(graph)}
    mistakes += [
        f"noise '{s.name()}' enters no right-hand side; write it into one, as in x: -k * x + s * {s.name()}, or leave "
        "it out"
        for s in noises
        if s.name() not in used_names
    ]
    mistakes += [
        f"ode of '{name}' is not linear in the noise; white noise has no square, write its intensity as a factor"
        for name, graph in right.items()
        if ca.depends_on(ca.jacobian(graph, w), w)
    ]
    remedy = "white noise has no value at a time; write it into the right-hand side of a state"
    for label, graphs in (("the equation of", residual), ("output", outputs)):
        mistakes += [f"{label} '{n}' holds noise; {remedy}" for n, graph in graphs.items() if ca.depends_on(graph, w)]
    if delayed and any(ca.depends_on(part, w) for d in delayed for part in d.parts):
        mistakes.append(f"a delayed value holds noise; {remedy}")
    return mistakes


def _delay_mistakes(
    delayed: Sequence[DelayedValue], declared: Mapping[str, Sequence[ca.SX]], all_symbols: Sequence[ca.SX]
) -> list[str]:
    """Find symbols that may not stand in a delayed value, its delay or its history."""
    mistakes: list[str] = []
    for d in delayed:
        known_symbols = [*all_symbols, *(other.symbol for other in delayed)]
        mistakes += _undeclared({"a delayed expression": d.expression}, known_symbols)
        mistakes += _undeclared({"a delay tau": d.tau}, declared["parameter"], only="parameters")
        if d.history is not None:
            allowed = [*declared["parameter"], *declared["time"]]
            mistakes += _undeclared({"the history of a delay": d.history}, allowed, only="parameters and time")
        elif ca.depends_on(d.expression, _vector(declared["algebraic state"])):
            mistakes.append(
                f"the delayed expression {shorten_repr(d.expression)} contains an algebraic state, whose initial value "
                "follows from the equations only; give history="
            )
    return mistakes
