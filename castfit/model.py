"""The model: an ODE or semi-explicit index-1 DAE with named states, parameters, inputs and outputs.

    x' = ode(t, x, z, p, u)          differential states x
    0  = alg(t, x, z, p, u)          algebraic states z
    y  = output(t, x, z, p, u)       whatever can be measured

A model is a CasADi SX graph over the user's own symbols.  Everything is checked at construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Union, cast

import casadi as ca

from castfit.status import InputError, check, suggest

Expression = Union[ca.SX, float, int]


def symbols(names: str) -> Any:
    """Create CasADi SX scalars.

    Parameters
    ----------
    names : str
        Names separated by spaces or commas, such as ``"x y"``.

    Returns
    -------
    casadi.SX or tuple of casadi.SX
        One symbol for one name, a tuple for several.
    """
    parts = names.replace(",", " ").split()
    if not parts:
        raise InputError("symbols", ["no name given; write for example symbols('x y')"])
    made = tuple(ca.SX.sym(name) for name in parts)
    return made[0] if len(made) == 1 else made


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
    outputs : mapping from str to expression, optional
        Measurable quantities.  Every state is an output under its own name already.
    time : casadi.SX, optional
        The symbol of time, if it appears.
    initial : mapping from casadi.SX or str to expression of the parameters, optional
        Initial states that hold unless an experiment says otherwise.

    Raises
    ------
    InputError
        Listing every mistake: unknown or doubly declared symbols, expressions that are not scalar, algebraic
        equations that do not determine the algebraic states (index 2 or higher).
    """

    def __init__(
        self,
        ode: Mapping[ca.SX, Expression],
        *,
        algebraic: Mapping[ca.SX, Expression] | None = None,
        parameters: Iterable[ca.SX] = (),
        inputs: Iterable[ca.SX] = (),
        outputs: Mapping[str, Expression] | None = None,
        time: ca.SX | None = None,
        initial: Mapping[ca.SX | str, Expression] | None = None,
    ) -> None:
        mistakes: list[str] = []
        algebraic = algebraic or {}
        states, algebraics = list(ode), list(algebraic)
        declared = {
            "state": states,
            "algebraic state": algebraics,
            "parameter": _as_list(parameters),
            "input": _as_list(inputs),
            "time": [] if time is None else [time],
        }
        _check_symbols(declared, mistakes)
        check("Model", mistakes)

        names = {kind: tuple(symbol.name() for symbol in symbols_) for kind, symbols_ in declared.items()}
        right = {x.name(): _scalar(f"ode of {x.name()}", f, mistakes) for x, f in ode.items()}
        residual = {z.name(): _scalar(f"equation of {z.name()}", _residual(g), mistakes) for z, g in algebraic.items()}
        extra = {str(n): _scalar(f"output {n}", h, mistakes) for n, h in (outputs or {}).items()}
        start = {_name(x): _scalar(f"initial value of {_name(x)}", f, mistakes) for x, f in (initial or {}).items()}
        check("Model", mistakes)

        everything = [symbol for group in declared.values() for symbol in group]
        for what, expressions in (("ode of", right), ("equation of", residual), ("output", extra)):
            for name, expression in expressions.items():
                mistakes += _undeclared(f"{what} {name}", expression, everything)
        for name, expression in start.items():
            if name not in names["state"]:
                mistakes.append(f"initial names '{name}', which is no state: {suggest(name, names['state'])}")
            mistakes += _undeclared(f"initial value of {name}", expression, declared["parameter"], only="parameters")
        taken = names["state"] + names["algebraic state"]
        mistakes += [
            f"output '{name}' has the name of a state; states are outputs already, choose another name"
            for name in extra
            if name in taken
        ]
        if not states:
            mistakes.append("ode is empty; give the right-hand side of at least one state")

        self.system = System(
            ca.SX.sym("t") if time is None else time,
            _vector(states),
            _vector(algebraics),
            _vector(declared["parameter"]),
            _vector(declared["input"]),
            _vector(right.values()),
            _vector(residual.values()),
            names["state"],
            names["algebraic state"],
            names["parameter"],
            names["input"],
        )
        mistakes += _index_mistakes(self.system)
        check("Model", mistakes)
        own = zip(taken, states + algebraics, strict=True)
        self.outputs: dict[str, ca.SX] = {**dict(own), **extra}
        self.initial: dict[str, ca.SX] = start

    @classmethod
    def from_dae(
        cls, dae: Mapping[str, ca.SX], *, outputs: Mapping[str, Expression] | None = None, initial: Any = None
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
        mistakes = [f"unknown key '{key}': {suggest(key, valid)}" for key in dae if key not in valid]
        mistakes += [f"key '{key}' is missing" for key in ("x", "ode") if key not in dae]
        pieces = {key: ca.vertsplit(ca.SX(value)) if value.numel() else [] for key, value in dae.items()}
        for left, right in (("x", "ode"), ("z", "alg")):
            if len(pieces.get(left, [])) != len(pieces.get(right, [])):
                mistakes.append(f"'{left}' has {len(pieces.get(left, []))} rows, '{right}' {len(pieces.get(right, []))}")
        check("Model.from_dae", mistakes)
        return cls(
            dict(zip(pieces["x"], pieces["ode"], strict=True)),
            algebraic=dict(zip(pieces.get("z", []), pieces.get("alg", []), strict=True)),
            parameters=pieces.get("p", []),
            inputs=pieces.get("u", []),
            outputs=outputs,
            time=dae.get("t"),
            initial=initial,
        )

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the differential states."""
        return self.system.state_names

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

    def __repr__(self) -> str:
        kind = "DAE" if self.algebraic_states else "ODE"
        return f"Model({kind}: states {', '.join(self.states)}; parameters {', '.join(self.parameters)})"

    def __reduce__(self) -> Any:
        """Pickle through a CasADi function, since bare SX does not pickle."""
        system = self.system
        extra = {n: e for n, e in self.outputs.items() if n not in self.states + self.algebraic_states}
        graph = system.function("model", system.ode, system.alg, _vector(extra.values()), _vector(self.initial.values()))
        names = (self.states, self.algebraic_states, self.parameters, self.inputs, tuple(extra), tuple(self.initial))
        return _restore, (graph, names, system.t.name())


def _restore(graph: ca.Function, names: tuple[tuple[str, ...], ...], time: str) -> Model:
    """Rebuild a pickled model on fresh symbols."""
    x, z, p, u = ([ca.SX.sym(n) for n in group] for group in names[:4])
    t = ca.SX.sym(time)
    made = cast("list[ca.SX]", graph.call([t, _vector(x), _vector(z), _vector(p), _vector(u)]))
    ode, alg, extra, initial = (_split(e) for e in made)
    return Model(
        dict(zip(x, ode, strict=True)),
        algebraic=dict(zip(z, alg, strict=True)),
        parameters=p,
        inputs=u,
        outputs=dict(zip(names[4], extra, strict=True)),
        time=t,
        initial=dict(zip(names[5], initial, strict=True)),
    )


def _vector(expressions: Iterable[Any]) -> ca.SX:
    """Stack scalars into a column; an empty one keeps the shape (0, 1)."""
    parts = list(expressions)
    return cast("ca.SX", ca.densify(ca.vertcat(*parts))) if parts else ca.SX(0, 1)


def _split(vector: ca.SX) -> list[ca.SX]:
    return list(ca.vertsplit(vector)) if vector.numel() else []


def _as_list(group: Any) -> list[ca.SX]:
    """Accept a sequence of scalars, a single symbol, or a symbolic vector."""
    if isinstance(group, ca.SX):
        return _split(group)
    return list(group)


def _name(key: ca.SX | str) -> str:
    return key if isinstance(key, str) else key.name()


def _residual(equation: Expression) -> Expression:
    """Turn ``a == b`` into ``a - b``; anything else is a residual already."""
    if isinstance(equation, ca.SX) and equation.is_scalar() and not equation.is_symbolic() and equation.n_dep() == 2:
        if equation.op() == ca.OP_EQ:
            return equation.dep(0) - equation.dep(1)
    return equation


def _scalar(what: str, expression: Any, mistakes: list[str]) -> ca.SX:
    try:
        value = ca.SX(expression)
    except NotImplementedError:
        mistakes.append(f"{what} is a {type(expression).__name__}; give a CasADi SX expression or a number")
        return ca.SX(0)
    if value.numel() != 1:
        mistakes.append(f"{what} has shape {value.shape}; it must be a scalar")
    return value


def _check_symbols(declared: Mapping[str, Sequence[Any]], mistakes: list[str]) -> None:
    """Check that every declared symbol is a scalar SX symbol and no name is used twice."""
    seen: dict[str, str] = {}
    for kind, group in declared.items():
        for symbol in group:
            if not (isinstance(symbol, ca.SX) and symbol.is_scalar() and symbol.is_symbolic()):
                mistakes.append(f"{kind} {symbol!r} is not a scalar SX symbol; create it with castfit.symbols")
                continue
            name = symbol.name()
            if name in seen:
                mistakes.append(f"the name '{name}' is declared twice, as {seen[name]} and as {kind}")
            seen[name] = kind


def _undeclared(where: str, expression: ca.SX, declared: Sequence[ca.SX], *, only: str = "") -> list[str]:
    """Name the symbols in a graph that are declared nowhere; a second symbol of a known name is a trap of its own."""
    known = {hash(symbol) for symbol in declared}
    names = [symbol.name() for symbol in declared]
    mistakes: list[str] = []
    for symbol in ca.symvar(expression):
        if hash(symbol) in known:
            continue
        name = symbol.name()
        if only:
            mistakes.append(f"{where} contains '{name}', but only {only} may appear there: {suggest(name, names)}")
        elif name in names:
            mistakes.append(f"{where} contains a second symbol named '{name}'; create each symbol once and reuse it")
        else:
            mistakes.append(f"{where} contains '{name}', which is declared nowhere: {suggest(name, names)}")
    return mistakes


def _index_mistakes(system: System) -> list[str]:
    """Find algebraic equations that cannot determine the algebraic states (structural rank of d alg / dz)."""
    n_z = system.z.numel()
    if n_z == 0:
        return []
    jacobian = ca.jacobian(system.alg, system.z)
    empty = [n for i, n in enumerate(system.algebraic_names) if jacobian[i, :].nnz() == 0]
    if empty:
        listing = ", ".join(empty)
        return [
            f"the equation of {listing} contains no algebraic state, so the DAE has index 2 or higher; "
            "differentiate that equation until the algebraic state appears"
        ]
    if ca.sprank(jacobian) < n_z:
        return [
            "the algebraic equations do not determine the algebraic states (d alg/dz is structurally singular), "
            "so the DAE has index 2 or higher; differentiate the constraint or choose other algebraic states"
        ]
    return []
