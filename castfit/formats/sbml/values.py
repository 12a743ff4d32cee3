"""Values of an SBML model's quantities at any time, and at the start.

A species means its amount or its concentration in formulas.  What means a concentration is a state as such while the
size of its compartment stays; where that varies, reactions and events keep the amount, so this is the state, called
"S_amount", and the concentration follows from it.

Notation: A amount, V size of the compartment, [S] = A/V
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from castfit.formats.optional import library
from castfit.formats.sbml.classification import QuantityRole, match_equations, roles_of
from castfit.formats.sbml.document import SbmlDocument, SbmlQuantity, SpeciesReference
from castfit.formats.sbml.fast_reactions import FastPart, partition, settle
from castfit.formats.sbml.formulas import Scope, UnsupportedSbmlFormula, expression
from castfit.integrate.intervals import may_jump
from castfit.model.delay import delay

_RATE = "a rate"  # what stands for rateOf among names
_ORDER = 40  # nodes of delay lines whose ends events may read: their number must not change


@dataclass(frozen=True)
class DelayedState:
    """The value that a state, or another delayed value `of` it, had a time tau ago; `symbol` stands for it."""

    state: str
    symbol: ca.SX
    delayed_expression: ca.SX
    tau: ca.SX


@dataclass(frozen=True)
class TrackedDelay:
    """Delayed value that is computed from an additional state y.

        x(t - tau) = y + r s + c s^2 / 2,   y' = s' (x'(s) - r - c s),   s = max(t - tau, 0)

    state : y, its symbol;  rate : y', over the symbols of delayed values
    initial_polynomial : r s + c s^2 / 2, with r and c the first derivatives of x at the start, so that y' has no jump
        at s = 0
    """

    value: DelayedState
    state: ca.SX
    tau: ca.SX
    rate: ca.SX
    initial_polynomial: ca.SX


@dataclass
class LazyValues(ABC):
    """Remembers what identifiers mean, worked out once each, and notices what depends on itself."""

    _value_cache: dict[str, ca.SX] = field(default_factory=dict[str, ca.SX], kw_only=True)
    _busy: list[str] = field(default_factory=list[str], kw_only=True)

    def value(self, name: str) -> ca.SX:
        """Return the value of an identifier. In a circular definition, record an error and return zero."""
        if name not in self._value_cache:
            if name in self._busy:
                self._round(name)
                return ca.SX(0)
            self._busy.append(name)
            self._value_cache[name] = self._valued(name)
            self._busy.pop()
        return self._value_cache[name]

    @abstractmethod
    def _valued(self, name: str) -> ca.SX:
        """Work out what an identifier means."""

    @abstractmethod
    def _round(self, name: str) -> None:
        """Complain that something depends on itself."""


@dataclass
class SbmlValues(LazyValues):
    """The values of quantities and reactions, over symbols of states, parameters and time.

    parameter_constants : constants that are parameters even if the file computes them
    mistakes : error messages, to which unsupported constructs are added
    assumed : reactions with a stoichiometry that the file leaves open, which is 1 then, as in levels 1 and 2
    """

    contents: SbmlDocument
    parameter_constants: frozenset[str]
    mistakes: list[str]
    assumed: list[str] = field(default_factory=list[str])
    _rates: dict[str, ca.SX] = field(default_factory=dict[str, ca.SX])

    def __post_init__(self) -> None:
        self.roles, undetermined = roles_of(self.contents)
        reserved_names = {*self.contents.quantities, *self.contents.reactions, *self.contents.functions}
        self.time = ca.SX.sym(_free_name("time", reserved_names, ("t",)))
        self.states: dict[str, ca.SX] = {}
        """Symbols of states, by the quantity that they belong to."""
        self.algebraic: dict[str, ca.SX] = {}
        """Symbols of algebraic states."""
        self.residuals: dict[str, ca.SX] = {}
        self.parameters: dict[str, ca.SX] = {}
        self.numbers: dict[str, float] = {}
        """Values of parameters, where the file gives them."""
        self.delays: dict[int, DelayedState] = {}
        """Delayed values, by the hash of their symbols."""
        self.followed: dict[str, TrackedDelay] = {}
        """Delayed values that have states of their own, by the names of these."""
        self._seen: set[int] = set()
        self.fast = FastPart()
        self.memories: dict[str, ca.SX] = {}
        """States that only events change, zero at the start, by their names."""
        self.computed_from: dict[str, set[str]] = {}
        """By constant that is no parameter, what its value was computed from."""
        self._taken = reserved_names
        self._own: dict[tuple[str, str], ca.SX] = {}
        self._chosen: dict[str, object] = {}
        self._decide(undetermined)
        self._fast_equations = ca.SX(0, 1), ca.SX(0, 1)
        self.states = {n: ca.SX.sym(n) for n, role in self.roles.items() if role.is_state}
        self._split_fast()
        self._value_cache.clear()  # names of states depend on the split
        self.states = {n: ca.SX.sym(self._state_name(n)) for n, role in self.roles.items() if role.is_state}
        for name in self.contents.quantities:
            if self.roles[name] is QuantityRole.CONSTANT:
                self.value(name)
        if self.fast.determined:
            self._equilibrate()
        for reaction in self.contents.reactions.values():
            for parameter in reaction.local_parameters:
                self._local(reaction.name, parameter)

    # States

    def varies(self, compartment: str) -> bool:
        """Check whether the size of a compartment varies."""
        return self.roles.get(compartment, QuantityRole.CONSTANT) is not QuantityRole.CONSTANT

    def is_amount(self, name: str) -> bool:
        """Check whether a species stands for its amount in formulas. It always does in a compartment without size."""
        q = self.contents.quantities[name]
        return q.as_amount or self.contents.quantities[q.compartment].dimensions == 0.0

    def holds_amount(self, name: str) -> bool:
        """Check whether the state of a species is its amount although formulas refer to its concentration."""
        q = self.contents.quantities[name]
        if q.kind != "species" or self.is_amount(name):
            return False
        if name in self.fast.state_species:
            return True
        if not self.varies(q.compartment):
            return False
        return self.roles[name] in (QuantityRole.REACTIONS, QuantityRole.HELD)

    def _state_name(self, name: str) -> str:
        if name in self.fast.state_species:
            return _free_name(f"{name}_total", self._taken, ())
        return _free_name(f"{name}_amount", self._taken, ()) if self.holds_amount(name) else name

    def _split_fast(self) -> None:
        """Find out which species the equilibrium of fast reactions determines."""
        expressions: dict[str, dict[str, ca.SX]] = {}
        for reaction in self.contents.reactions.values():
            if not reaction.fast:
                continue
            changes = expressions.setdefault(reaction.name, {})
            for participant in reaction.participants:
                if self.roles.get(participant.species) is QuantityRole.REACTIONS:
                    factor = self.contents.quantities[participant.species].factor
                    change = participant.sign * self._stoichiometry(reaction.name, participant)
                    change = change * self.value(factor) if factor else change
                    changes[participant.species] = changes.get(participant.species, ca.SX(0)) + change
        coefficients = [v for changes in expressions.values() for v in changes.values()]
        if any(any(n not in self.numbers for n in (s.name() for s in ca.symvar(v))) for v in coefficients):
            self.mistakes.append(
                f"a stoichiometry of the fast reactions {', '.join(expressions)} varies, or has no value"
            )
            return
        numbers = {r: {s: self.number(v) for s, v in changes.items()} for r, changes in expressions.items()}
        try:
            self.fast = partition(expressions, numbers)
        except ValueError as error:
            self.mistakes.append(str(error))
        self.roles.update(dict.fromkeys(self.fast.determined, QuantityRole.EQUILIBRIUM))

    def number(self, value: ca.SX) -> float:
        """Return an expression of parameters at the file's values."""
        symbols = ca.symvar(value)
        number: Any = ca.Function("number", symbols, [value]).call([self.numbers[s.name()] for s in symbols])[0]
        return float(number)

    def amount(self, name: str) -> ca.SX:
        """Return the amount of a species."""
        return self.value(name) if self.is_amount(name) else self.value(name) * self.size(name)

    def _equilibrate(self) -> None:
        """Work out what the equilibrium of fast reactions determines."""
        unknowns = {n: ca.SX.sym(n) for n in self.fast.determined}
        saved_values = dict(self._value_cache)
        self._value_cache.update(unknowns)
        laws = [self.value(r) for r in self.fast.reactions]
        residuals = [
            sum((m * law for m, law in zip(column, laws, strict=True) if m), start=ca.SX(0))
            for column in self.fast.multiples.T.tolist()
        ]
        z, g = ca.vertcat(*unknowns.values()), ca.vertcat(*residuals)
        slope = ca.jacobian(g, z)
        if ca.sprank(slope) < z.numel():
            self.mistakes.append(
                f"the fast reactions {', '.join(self.fast.reactions)} come to no equilibrium: their laws do not depend "
                "on all that they change"
            )
            return
        self._fast_equations = z, g
        if ca.depends_on(slope, z):
            self.algebraic.update(unknowns)
            self.residuals.update(zip(unknowns, residuals, strict=True))
            return
        self._value_cache = saved_values
        solution = -ca.solve(slope, ca.substitute([g], [z], [ca.SX.zeros(z.numel())])[0])
        self._value_cache.update(zip(unknowns, ca.vertsplit(ca.densify(solution)), strict=True))

    def settle_fast_reactions(self, start: StartValues, numbers: Mapping[str, float]) -> dict[str, float]:
        """Return the equilibrium values of the species that fast reactions determine, by name.

        The mapping is empty if the start is not given by the numbers, or if a mistake is added because the reactions
        reach no stable equilibrium.
        """
        (z, residuals), names, n_mistakes = self._fast_equations, self.fast.determined, len(self.mistakes)
        if not z.numel():
            return {}
        extents = ca.SX.sym("extents", z.numel())
        changes = ca.vertsplit(ca.DM(self.fast.stoichiometry) @ extents)
        shifted_values = ca.vertcat(
            *(start.value(n) + change / start.size(n) for n, change in zip(names, changes, strict=True))
        )
        residuals = start.at_start(ca.substitute([residuals], [z], [shifted_values])[0])
        amounts = ca.vertcat(*(start.amount(n) for n in (*names, *self.fast.state_species)))
        outputs = [residuals, ca.jacobian(residuals, extents), shifted_values, amounts]
        symbols = ca.symvar(ca.substitute([ca.veccat(*outputs)], [extents], [ca.DM.zeros(extents.numel())])[0])
        if len(self.mistakes) > n_mistakes or not {s.name() for s in symbols} <= numbers.keys():
            del self.mistakes[n_mistakes:]
            return {}
        outputs = ca.substitute(outputs, symbols, [ca.SX(numbers[s.name()]) for s in symbols])
        function: Any = ca.Function("fast", [extents], outputs)
        with np.errstate(all="ignore"):
            amounts_at_zero = np.asarray(function(0.0)[3], dtype=float)
            equilibrium = settle(function, float(np.abs(amounts_at_zero).max(initial=0.0)) or 1.0)
        if equilibrium is None:
            self.mistakes.append(
                f"the fast reactions {', '.join(self.fast.reactions)} come to no equilibrium: "
                "their laws lead to no stable one from the initial values"
            )
            return {}
        return dict(zip(names, np.asarray(function(equilibrium)[2], dtype=float).ravel().tolist(), strict=True))

    def check_fast_reactions(self, start: StartValues) -> None:
        """Add a mistake if fast reactions may leave the equilibrium that the algebraic equations follow."""
        z, residuals = self._fast_equations
        label = f"the fast reactions {', '.join(self.fast.reactions)}"
        self.mistakes += [f"the laws of {label} jump"] if may_jump(ca.jacobian(residuals, z)) else []
        dependencies = {*self.fast.determined, *self.fast.state_species}
        dependencies |= {n for n, s in self.states.items() if ca.depends_on(residuals, s)}
        for event in self.contents.events:
            if dependencies & event.assignments.keys():
                message = f"event {event.name} changes the equilibrium of {label}, whose laws are not linear"
                self.mistakes += [message] if self.algebraic else []
                assigned = {n: start.at_start(self.formula("an event", tree)) for n, tree in event.assignments.items()}
                self.settle_fast_reactions(self.start(assigned), self.numbers)

    def _decide(self, undetermined: tuple[str, ...]) -> None:
        """Find out what algebraic rules determine, and solve them for it where they are linear."""
        if not self.contents.algebraic:
            return
        saved_names = set(self._taken)
        symbols = {n: ca.SX.sym(n) for n in undetermined}
        undecided = {n: ca.SX.sym(n) for n, role in self.roles.items() if role.is_state and n not in symbols}
        self._value_cache.update({**undecided, **symbols})
        trial_residuals = [self.formula("an algebraic rule", tree) for tree in self.contents.algebraic]
        for memory in (self._value_cache, self._own, self.parameters, self.numbers, self.computed_from):
            memory.clear()  # variables of the rules were still constants
        self._taken = saved_names
        needs = [[n for n in undetermined if ca.depends_on(residual, symbols[n])] for residual in trial_residuals]
        matches = match_equations(needs)
        self.mistakes += [
            "an algebraic rule determines nothing: all quantities in it are determined otherwise"
            for n in matches
            if n is None
        ]
        determined_names = [n for n in matches if n is not None]
        self.roles.update(dict.fromkeys(determined_names, QuantityRole.ALGEBRAIC))
        self._chosen = dict(
            zip(determined_names, (t for t, n in zip(self.contents.algebraic, matches, strict=True) if n), strict=True)
        )

    def _solve(self) -> None:
        """Work out what algebraic rules determine."""
        determined_names = [n for n, role in self.roles.items() if role is QuantityRole.ALGEBRAIC]
        if not determined_names:
            return
        unknowns = {n: ca.SX.sym(n) for n in determined_names}
        saved_values = dict(self._value_cache)
        self._value_cache.update(unknowns)
        residuals = [self.formula("an algebraic rule", self._chosen[n]) for n in determined_names]
        self._value_cache = saved_values
        z, g = ca.vertcat(*unknowns.values()), ca.vertcat(*residuals)
        slope = ca.jacobian(g, z)
        if ca.depends_on(slope, z):
            self.algebraic, self.residuals = unknowns, dict(zip(determined_names, residuals, strict=True))
            self._value_cache.update(unknowns)
            return
        at_zero = ca.substitute([g], [z], [ca.SX.zeros(z.numel())])[0]
        solution = -ca.solve(slope, at_zero) if z.numel() > 1 else -at_zero / slope
        self._value_cache.update(zip(determined_names, ca.vertsplit(ca.densify(solution)), strict=True))

    def memory(self, name: str) -> ca.SX:
        """Return a state more that only events change, zero at the start."""
        return self.memories.setdefault(name, ca.SX.sym(_free_name(name, self._taken, ())))

    # Values at any time

    @property
    def scope(self) -> Scope:
        """Scope that resolves names at any time."""
        return Scope(
            self.value, self.time, self.rate, self.derivative, self.delayed, self.contents.functions
        )  # fmt: skip

    def _valued(self, name: str) -> ca.SX:
        contents = self.contents
        if name in contents.reactions:
            return self._law(name)
        if name not in contents.quantities:
            self.mistakes.append(f"a formula contains '{name}', which is defined nowhere")
            return ca.SX(0)
        q, role = contents.quantities[name], self.roles[name]
        if role is QuantityRole.ASSIGNED:
            return self.formula(f"the assignment rule of '{name}'", contents.assigned[name])
        if role is QuantityRole.ALGEBRAIC:
            self._solve()
            return self._value_cache[name]
        if role.is_state:
            state = self.states[name]
            if name in self.fast.state_species:
                state = state + self.fast.combined(name, [self.amount(n) for n in self.fast.determined])
            return state / self.size(name) if self.holds_amount(name) else state
        return self._constant(name, q)

    def is_plain(self, name: str) -> bool:
        """Check whether a constant is a plain number, and so a parameter, instead of a formula."""
        q = self.contents.quantities[name]
        if name in self.contents.initial or self._thins(name):
            return False
        return q.kind != "species" or q.value is None or q.given_as_amount == self.is_amount(name)

    def _thins(self, name: str) -> bool:
        """Check whether a constant species stands for a concentration that varies with its compartment."""
        q = self.contents.quantities[name]
        return q.kind == "species" and not self.is_amount(name) and self.varies(q.compartment)

    def is_parameter(self, name: str) -> bool:
        """Check whether a constant is a parameter."""
        return self.is_plain(name) or (name in self.parameter_constants and not self._thins(name))

    def _constant(self, name: str, q: SbmlQuantity) -> ca.SX:
        """Return a constant: a parameter, or an expression of parameters."""
        if self.is_parameter(name):
            number = q.value if self.is_plain(name) else StartValues(self, {}).number(name)
            return self._parameter(name, number) if number is None or np.isfinite(number) else ca.SX(number)
        start = StartValues(self, {})
        constant = start.value(name)
        self.computed_from[name] = start.touched - {name}
        return constant * start.value(q.compartment) / self.value(q.compartment) if self._thins(name) else constant

    def _parameter(self, name: str, number: float | None) -> ca.SX:
        if name not in self.parameters:
            self.parameters[name] = ca.SX.sym(name)
            if number is not None and not np.isnan(number):
                self.numbers[name] = float(number)
        return self.parameters[name]

    def _local(self, reaction: str, parameter: str) -> ca.SX:
        """Return a parameter that only one kinetic law knows, called "reaction_name"."""
        if (reaction, parameter) not in self._own:
            number = self.contents.reactions[reaction].local_parameters[parameter]
            self._own[reaction, parameter] = self._parameter(
                _free_name(f"{reaction}_{parameter}", self._taken, ()), number
            )
        return self._own[reaction, parameter]

    def size(self, species: str) -> ca.SX:
        """Return the size of a species' compartment."""
        return self.value(self.contents.quantities[species].compartment)

    def _law(self, name: str) -> ca.SX:
        reaction = self.contents.reactions[name]
        if reaction.law is None:
            self.mistakes.append(f"reaction '{name}' has no kinetic law")
            return ca.SX(0)
        local_parameters = {n: self._local(name, n) for n in reaction.local_parameters}
        return self.formula(f"the kinetic law of '{name}'", reaction.law, self.scope.inside(local_parameters))

    def formula(self, label: str, tree: object, scope: Scope | None = None) -> ca.SX:
        """Return a formula, at any time or in another scope; `label` it is, in words."""
        try:
            return expression(tree, scope or self.scope)
        except UnsupportedSbmlFormula as error:
            self.mistakes.append(f"{label} contains {error}")
            return ca.SX(0)

    def _round(self, name: str) -> None:
        self.mistakes.append(f"'{name}' depends on itself, by way of {', '.join(self._busy[self._busy.index(name) :])}")

    # Rates

    def rate(self, name: str) -> ca.SX:
        """Return the time derivative of what an identifier means."""
        return self.derivative(self.value(name))

    def derivative(self, value: ca.SX) -> ca.SX:
        """Return the time derivative of an expression along solutions."""
        symbols = {hash(s): n for n, s in self.states.items()}
        out = ca.jacobian(value, self.time)
        for s in ca.symvar(value):
            if hash(s) in symbols:
                out += ca.jacobian(value, s) * self.state_rate(symbols[hash(s)])
        if any(ca.depends_on(value, z) for z in self.algebraic.values()):
            self.mistakes.append("a rateOf asks for the derivative of what a nonlinear algebraic equation determines")
        if any(hash(s) in self.delays for s in ca.symvar(value)):
            self.mistakes.append("a rateOf asks for the derivative of a delayed value")
        return out

    @property
    def varying(self) -> ca.SX:
        """All symbols that vary, time aside."""
        delayed = (d.symbol for d in self.delays.values())
        return ca.vertcat(*self.states.values(), *self.algebraic.values(), *delayed)

    def delayed(self, value: Any, tau: Any, scope: Scope) -> ca.SX:
        """Return the delayed value of a tree: time by subtraction, states by delay lines.

        Before the start states were as at the start, or as an initial assignment says of these times.  Raises
        NotExpressible: for what has no line.
        """
        lag = expression(tau, scope)
        past_value = self._delayed(expression(value, scope), lag)
        sources = self._sources(value)
        is_moved_at_start = bool(sources & {_RATE, *self.fast.determined, *self.fast.state_species})
        if lag.is_zero() or self.mistakes or not (is_moved_at_start or sources & self.contents.initial.keys()):
            return past_value
        history = expression(value, self._history)
        if not (is_moved_at_start or ca.depends_on(history, self.time)):
            return past_value
        return ca.if_else(self.time < lag, ca.substitute([history], [self.time], [self.time - lag])[0], past_value)

    def _sources(self, tree: Any) -> set[str]:
        """Collect the names in a tree and in the assignment rules of these, and `_RATE` if it contains a rate."""
        is_rate = tree.getType() == library("libsbml").AST_FUNCTION_RATE_OF
        names = {tree.getName()} if tree.isName() else {_RATE} if is_rate else set[str]()
        children = [tree.getChild(i) for i in range(tree.getNumChildren())]
        children += [self.contents.assigned[n] for n in names if n in self.contents.assigned]
        return names.union(*map(self._sources, children))

    @property
    def _history(self) -> Scope:
        """Scope that resolves names before the start: as at the start, unless an initial assignment contains time."""
        contents, start = self.contents, self.start({})
        start_scope = replace(start.scope, time=self.time)

        def lookup(name: str) -> ca.SX:
            if name in contents.assigned:
                return expression(contents.assigned[name], scope)
            is_timed = name in contents.initial and name not in self.parameters
            return expression(contents.initial[name], start_scope) if is_timed else start.value(name)

        def rate(name: str) -> ca.SX:
            return ca.jacobian(lookup(name), self.time)

        def derivative(value: ca.SX) -> ca.SX:
            return ca.jacobian(value, self.time)

        def delayed(value: Any, lag: Any, inner: Scope) -> ca.SX:
            return ca.substitute([expression(value, inner)], [self.time], [self.time - expression(lag, inner)])[0]

        scope = replace(start_scope, lookup=lookup, rate=rate, derivative=derivative, delayed=delayed)
        return scope

    def _delayed(self, current_value: ca.SX, lag: ca.SX) -> ca.SX:
        if lag.is_zero() or not ca.depends_on(current_value, ca.vertcat(self.time, self.varying)):
            return current_value
        if ca.depends_on(lag, self.varying):
            raise UnsupportedSbmlFormula("a delay that depends on states")
        if lag.is_constant() and not 0.0 < float(lag) < np.inf:
            raise UnsupportedSbmlFormula(f"a delay of {float(lag):g}")
        name_by_hash = {hash(s): n for n, s in self.states.items()}
        old, new = [self.time], [self.time - lag]
        for symbol in ca.symvar(current_value):
            inner_delay = self.delays.get(hash(symbol))
            name = name_by_hash.get(hash(symbol), "" if inner_delay is None else inner_delay.state)
            if any(ca.is_equal(symbol, z) for z in self.algebraic.values()):
                raise UnsupportedSbmlFormula("a delayed value that follows from a nonlinear algebraic equation")
            if not name:
                continue
            if inner_delay is not None and (self._moves(lag) or self._moves(inner_delay.tau)):
                raise UnsupportedSbmlFormula("a delay that changes in time, of a delayed value")
            old.append(symbol)
            new.append(self._past(name, symbol, lag))
        return ca.substitute([current_value], [ca.vertcat(*old)], [ca.vertcat(*new)])[0]

    def _moves(self, tau: ca.SX) -> bool:
        """Check whether a delay varies in time."""
        return ca.depends_on(tau, self.time)

    def _past(self, name: str, symbol: ca.SX, lag: ca.SX) -> ca.SX:
        """Return the symbol of what a state, or a delayed value of it, was a time ago."""
        matches = (
            d for d in self.delays.values() if ca.is_equal(d.delayed_expression, symbol) and ca.is_equal(d.tau, lag, 9)
        )
        delayed_state = next(matches, None)
        if delayed_state is None:
            delayed_state = DelayedState(name, ca.SX.sym(f"delayed {name}"), symbol, lag)
            self.delays[hash(delayed_state.symbol)] = delayed_state
        return delayed_state.symbol

    def follow_delays(self, jumping_states: Collection[str]) -> dict[str, TrackedDelay]:
        """Return the delayed values that are states of their own, by name.

        What a state depends on is followed along s = t - tau as well, which ends where nothing feeds back by delays:
        then it is exact, and may jump where a state of `jumping_states`, by name, did.  Other values have delay lines.
        """
        name_by_hash = {hash(s): n for n, s in self.states.items()}
        while new := [d for d in self.delays.values() if hash(d.symbol) not in self._seen]:
            for d in new:
                self._seen.add(hash(d.symbol))
                tau, is_varying, dependencies = self._compute_total_delay(d), self._moves(d.tau), self._behind(d.state)
                has_jumps = any(self.states[n].name() in jumping_states for n in dependencies)
                feedback_source = self._endless(d.state)
                if (feedback_source or (len(dependencies) > _ORDER and not has_jumps)) and not is_varying:
                    if has_jumps:
                        self.mistakes.append(
                            f"the delayed value of '{d.state}', at which events jump, "
                            f"depends on {feedback_source or 'itself'}"
                        )
                    continue
                if is_varying and has_jumps:
                    self.mistakes.append(
                        f"the delayed value of '{d.state}', at which events jump, has a delay that changes in time"
                    )
                    continue
                s, rate = self.time - tau, self.state_rate(d.state)
                if is_varying and not self.number(ca.substitute([s], [self.time], [ca.SX(0)])[0]) <= 0.0:
                    self.mistakes.append(f"a delay of '{d.state}' is negative at the start")
                old, past_symbols = [self.time], [s]
                try:
                    for symbol in ca.symvar(rate):
                        inner_delay = self.delays.get(hash(symbol))
                        if hash(symbol) in name_by_hash:
                            old.append(symbol)
                            past_symbols.append(self._past(name_by_hash[hash(symbol)], symbol, tau))
                        elif inner_delay is not None and not is_varying:
                            old.append(symbol)
                            past_symbols.append(
                                self._past(
                                    inner_delay.state,
                                    self.states[inner_delay.state],
                                    tau + self._compute_total_delay(inner_delay),
                                )
                            )
                        elif ca.depends_on(symbol, self.varying):
                            raise UnsupportedSbmlFormula(
                                "a delay that changes in time, of what delays or equations determine"
                            )
                except UnsupportedSbmlFormula as error:
                    self.mistakes.append(f"what '{d.state}' depends on contains {error}")
                r, c = self._beginning(d.state)
                rate = ca.substitute([rate], [ca.vertcat(*old)], [ca.vertcat(*past_symbols)])[0]
                rate = ca.if_else(s > 0, (rate - r - c * s) * ca.jacobian(s, self.time), 0)
                name = _free_name(f"delayed {d.state}", self._taken, ())
                initial_expansion = ca.if_else(s > 0, r * s + c * s**2 / 2, 0)
                self.followed[name] = TrackedDelay(d, ca.SX.sym(name), tau, rate, initial_expansion)
        return self.followed

    def _compute_total_delay(self, d: DelayedState) -> ca.SX:
        """Return the delay of a value that is, perhaps, a delayed one of a delayed one."""
        inner_delay = self.delays.get(hash(d.delayed_expression))
        return d.tau if inner_delay is None else d.tau + self._compute_total_delay(inner_delay)

    def _needs(self, state: str) -> tuple[set[str], set[str]]:
        """Return the states on which a rate depends, and the states on whose delayed values it depends."""
        name_by_hash = {hash(s): n for n, s in self.states.items()}
        hashes = [hash(s) for s in ca.symvar(self.state_rate(state))]
        return {name_by_hash[h] for h in hashes if h in name_by_hash}, {
            self.delays[h].state for h in hashes if h in self.delays
        }

    def _behind(self, state: str) -> set[str]:
        """Return all states that one depends on, itself too."""
        states, pending = {state}, [state]
        while pending:
            current_states, delayed_states = self._needs(pending.pop())
            new_states = (current_states | delayed_states) - states
            states |= new_states
            pending += sorted(new_states)
        return states

    def _endless(self, state: str) -> str:
        """Describe the unsupported dependence of a state on fed-back delayed values or equations.

        Empty if there is none.
        """
        for name in sorted(self._behind(state)):
            if any(ca.depends_on(self.state_rate(name), z) for z in self.algebraic.values()):
                return "a nonlinear algebraic equation"
            feedback_states = sorted(n for n in self._needs(name)[1] if name in self._behind(n))
            if feedback_states:
                return f"the delayed value of '{feedback_states[0]}', which feeds back"
        return ""

    def _beginning(self, state: str) -> tuple[ca.SX, ca.SX]:
        """Return the first and second derivative of a state at the start; 0 where equations hide them."""
        rate, start, n_mistakes = self.state_rate(state), self.start({}), len(self.mistakes)
        second_derivative = ca.jacobian(rate, self.time)
        for name, symbol in self.states.items():
            if ca.depends_on(rate, symbol):
                second_derivative += ca.jacobian(rate, symbol) * self.state_rate(name)
        r, c = start.at_start(rate), start.at_start(second_derivative)
        if len(self.mistakes) > n_mistakes:  # solutions of nonlinear equations are not known at the start
            del self.mistakes[n_mistakes:]
            return ca.SX(0), ca.SX(0)
        return r, c

    def delay_lines(self) -> dict[str, tuple[ca.SX, ca.SX]]:
        """Return the symbol and the expression of each delayed value, by name.

        A state begins to move at the start, where its past would carry a kink for long.  So a line, or the state that
        is followed, carries it without the first terms of its expansion there,  x - r t - c t^2 / 2  with r = x'(0),
        c = x''(0), and they are added where they belong:  x(t - tau) = line + r s + c s^2 / 2,  s = max(t - tau, 0).
        """
        delayed_values = {name: (f.value.symbol, f.state + f.initial_polynomial) for name, f in self.followed.items()}
        followed = {hash(symbol) for symbol, _ in delayed_values.values()}
        for number, d in enumerate(d for d in self.delays.values() if hash(d.symbol) not in followed):
            rate, (r, c) = self.state_rate(d.state), self._beginning(d.state)
            state_expression = (
                ca.substitute(
                    [d.delayed_expression],
                    [ca.vertcat(*(symbol for symbol, _ in delayed_values.values()))],
                    [ca.vertcat(*(expression for _, expression in delayed_values.values()))],
                )[0]
                if delayed_values
                else d.delayed_expression
            )
            line = state_expression - r * self.time - c * self.time**2 / 2
            if not (
                state_expression.is_symbolic() and ca.simplify(rate - r - c * self.time).is_zero()
            ):  # else it stays as it is
                line = delay(line, d.tau, order=_ORDER if self.contents.events else "auto")
            s = self.time - d.tau
            delayed_values[f"delayed {d.state}, {number + 1}"] = (
                d.symbol,
                line + ca.if_else(s > 0, r * s + c * s**2 / 2, 0),
            )
        return delayed_values

    def state_rate(self, name: str) -> ca.SX:
        """Return the right-hand side of a quantity's state."""
        if name not in self._rates:
            if f"rate of {name}" in self._busy:
                self._round(f"rate of {name}")
                return ca.SX(0)
            self._busy.append(f"rate of {name}")
            self._rates[name] = self._rated(name)
            self._busy.pop()
        return self._rates[name]

    def _rated(self, name: str) -> ca.SX:
        role = self.roles[name]
        if role is QuantityRole.HELD:
            return ca.SX(0)
        if role is QuantityRole.RATE:
            return self.formula(f"the rate rule of '{name}'", self.contents.rates[name])
        flow = self._flow(name)
        if name in self.fast.state_species:
            flow = flow - self.fast.combined(name, [self._flow(n) for n in self.fast.determined])
        return flow if self.is_amount(name) or self.holds_amount(name) else _divided(flow, self.size(name))

    def _flow(self, name: str) -> ca.SX:
        """Return the rate of change of a species' amount by reactions, without the fast ones: A' = c sum nu v."""
        flow = ca.SX(0)
        for reaction, participant in self._parts.get(name, ()):
            flow += participant.sign * self._stoichiometry(reaction, participant) * self.value(reaction)
        factor = self.contents.quantities[name].factor
        return flow * self.value(factor) if factor else flow

    @cached_property
    def _parts(self) -> dict[str, list[tuple[str, SpeciesReference]]]:
        """In which reactions each species takes part."""
        participations: dict[str, list[tuple[str, SpeciesReference]]] = {}
        for reaction in self.contents.reactions.values():
            for participant in () if reaction.fast else reaction.participants:
                participations.setdefault(participant.species, []).append((reaction.name, participant))
        return participations

    def _stoichiometry(self, reaction: str, participant: SpeciesReference) -> ca.SX:
        if participant.reference:
            return self.value(participant.reference)
        if participant.stoichiometry is None:
            self.assumed.append(reaction)
            return ca.SX(1)
        return ca.SX(participant.stoichiometry)

    def start(self, overrides: Mapping[str, ca.SX]) -> StartValues:
        """Return the values at the start; `overrides` replaces some of them."""
        return StartValues(self, overrides)


@dataclass
class StartValues(LazyValues):
    """The values of quantities at the start, over symbols of parameters; `overrides` replace what the file says.

    `touched` collects the requested names.
    """

    values: SbmlValues
    overrides: Mapping[str, ca.SX]
    touched: set[str] = field(default_factory=set[str])

    @cached_property
    def scope(self) -> Scope:
        """Scope that resolves names at the start."""
        return Scope(
            self.value, ca.SX(0), self._rate, self._derivative, self._delayed, self.values.contents.functions
        )  # fmt: skip

    def value(self, name: str) -> ca.SX:
        """Return the value of an identifier at the start."""
        self.touched.add(name)
        return super().value(name)

    def _round(self, name: str) -> None:
        self.values.mistakes.append(f"the initial value of '{name}' depends on itself")

    def _valued(self, name: str) -> ca.SX:
        values, contents = self.values, self.values.contents
        if name in contents.reactions:
            return self.at_start(values.value(name))
        if name not in contents.quantities:
            return values.value(name)
        role, override = values.roles[name], self.overrides.get(name)
        if role is QuantityRole.CONSTANT and values.is_parameter(name):
            return values.value(name)
        if role in (QuantityRole.ASSIGNED, QuantityRole.ALGEBRAIC):
            return self.at_start(values.value(name))
        return self.read_file_value(name) if override is None else override

    def read_file_value(self, name: str) -> ca.SX:
        """Return the initial value that the file defines."""
        values, contents = self.values, self.values.contents
        q = contents.quantities[name]
        if name in contents.initial:
            try:
                return expression(contents.initial[name], self.scope)
            except UnsupportedSbmlFormula as error:
                values.mistakes.append(f"the initial assignment of '{name}' contains {error}")
                return ca.SX(0)
        if q.value is None or np.isnan(q.value):
            values.mistakes.append(f"the initial value of '{name}' is needed, but the file gives none")
            return ca.SX(0)
        if q.kind == "species" and q.given_as_amount != values.is_amount(name):
            size = self.value(q.compartment)
            return q.value / size if q.given_as_amount else q.value * size
        return ca.SX(q.value)

    def number(self, name: str) -> float | None:
        """Return the initial value of a constant that is kept as a parameter, at the file's values."""
        q = self.values.contents.quantities[name]
        if name not in self.values.contents.initial and q.value is None:
            return None
        initial_value = self.read_file_value(name)
        symbols = ca.symvar(initial_value)
        if any(s.name() not in self.values.numbers for s in symbols):
            return None
        numbers = [self.values.numbers[s.name()] for s in symbols]
        return float(ca.Function("number", symbols, [initial_value])(*numbers)) if symbols else float(initial_value)

    def is_given(self, name: str) -> bool:
        """Check whether a state has an initial value."""
        value = self.values.contents.quantities[name].value
        is_specified = name in self.overrides or name in self.values.contents.initial
        if name in self.values.fast.state_species:
            return all(n in self.overrides or n in self.values.contents.initial or
                       self.values.contents.quantities[n].value is not None
                       for n in (name, *self.values.fast.determined))  # fmt: skip
        return is_specified or (value is not None and not np.isnan(value))

    def state(self, name: str) -> ca.SX:
        """Return the initial value of a quantity's state."""
        holds, fast = self.values.holds_amount(name), self.values.fast
        if name in fast.state_species:
            return self.amount(name) - fast.combined(name, [self.amount(n) for n in fast.determined])
        return self.amount(name) if holds else self.value(name)

    def amount(self, name: str) -> ca.SX:
        """Return the amount of a species at the start."""
        return self.value(name) * self.size(name)

    def size(self, name: str) -> ca.SX:
        """Return the size by which the value of a species is an amount, 1 if it is one."""
        is_amount = self.values.is_amount(name)
        return ca.SX(1) if is_amount else self.value(self.values.contents.quantities[name].compartment)

    def at_start(self, value: ca.SX) -> ca.SX:
        """Substitute the initial values of the states, and time 0, into an expression."""
        values = self.values
        inside = {hash(s): s for s in ca.symvar(value)}
        old, new = [values.time], [ca.SX(0)]
        for name, symbol in values.states.items():
            if hash(symbol) in inside:
                old.append(symbol)
                new.append(self.state(name))
        for symbol in inside.values():
            if hash(symbol) in values.delays:  # before the start, states have their initial values
                old.append(symbol)
                new.append(self.state(values.delays[hash(symbol)].state))
        for name, symbol in values.algebraic.items():
            if hash(symbol) in inside:
                values.mistakes.append(
                    f"an initial value depends on '{name}', which a nonlinear algebraic rule determines"
                )
                old.append(symbol)
                new.append(ca.SX(0))
        return ca.substitute([value], [ca.vertcat(*old)], [ca.vertcat(*new)])[0]

    def _rate(self, name: str) -> ca.SX:
        return self.at_start(self.values.rate(name))

    def _derivative(self, value: ca.SX) -> ca.SX:
        return self.at_start(self.values.derivative(value))

    def _delayed(self, value: Any, tau: Any, _: Scope) -> ca.SX:
        return self.at_start(self.values.delayed(value, tau, self.values.scope))


def _divided(flow: ca.SX, size: ca.SX) -> ca.SX:
    """Return flow / size; where the flow is a multiple of the size, as kinetic laws are mostly, without either."""
    if not size.is_symbolic() or not ca.depends_on(flow, size):
        return flow / size
    slope = ca.jacobian(flow, size)
    remainder = ca.substitute([flow], [size], [ca.SX(0)])[0]
    return slope if remainder.is_zero() and not ca.depends_on(slope, size) else flow / size


def _free_name(name: str, reserved_names: set[str], alternatives: Iterable[str]) -> str:
    """Return a name that no identifier has, and take it."""
    for candidate in (name, *alternatives):
        if candidate not in reserved_names:
            reserved_names.add(candidate)
            return candidate
    while name in reserved_names:
        name += "_"
    reserved_names.add(name)
    return name
