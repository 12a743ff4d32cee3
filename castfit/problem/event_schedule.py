"""The events of one experiment, worked out: when they happen, what they do, and how that varies.

What an experiment's events need are more rows e of its link (castfit.problem.parameter_map): their times, the rates of
infusions, and the parameters in what they change.  So an estimated lag time, a bioavailability or a dose of unknown
size vary with q like anything else, and everything here is a function of e.

Notation
--------
e      (n_e,)    rows of the link: times, rates, parameters
x, u             states before a jump, and inputs at its time
c      (n_c,)    the entries of e that a jump depends on besides its time
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, cast

import casadi as ca
import numpy as np

from castfit._support.arrays import Array, Index, Mask
from castfit._support.casadi_functions import BufferedFunction, RecentObjectCache
from castfit._support.records import dataclass

_LOCK = threading.RLock()  # CasADi counts references without one


@dataclass(frozen=True, eq=False)
class EventUpdate:
    """New states as a function of (t, x, u, c), `graph`; shared by all events of the same form.

    rows : states that may change

    Derivatives are built on demand: simulations need none.
    """

    graph: ca.Function
    rows: tuple[int, ...] = ()

    @classmethod
    def from_expressions(cls, arguments: Sequence[ca.SX], new_states: ca.SX, rows: Sequence[int] = ()) -> EventUpdate:
        """Build the function of a column of new states (n_x, 1) over arguments (t, x, u, c)."""
        return cls(ca.Function("change", list(arguments), [ca.densify(new_states)]), tuple(rows))

    def _symbols(self) -> tuple[list[ca.SX], ca.SX]:
        """Return new symbols for the arguments, and the new states over them."""
        arguments = [ca.SX.sym(n, self.graph.size1_in(i)) for i, n in enumerate("txuc")]
        return arguments, self.graph.call(arguments)[0]

    @cached_property
    def jacobian_function(self) -> ca.Function:
        """(t, x, u, c) -> (new states, their Jacobian by (t, x, u, c))."""
        with _LOCK:
            arguments, new_states = self._symbols()
            jacobian = ca.jacobian(new_states, ca.vertcat(*arguments))
            return ca.Function("change_slopes", arguments, [new_states, ca.densify(jacobian)])

    @cached_property
    def hessian_function(self) -> ca.Function:
        """(t, x, u, c, weight) -> Hessian of  weight . new states  by (t, x, u, c)."""
        with _LOCK:
            arguments, hessian = self._curvature()
            return ca.Function("change_curvature", arguments, [ca.densify(hessian)])

    @cached_property
    def is_linear(self) -> bool:
        """Whether that Hessian vanishes."""
        with _LOCK:
            return self._curvature()[1].nnz() == 0

    def _curvature(self) -> tuple[list[ca.SX], ca.SX]:
        arguments, new_states = self._symbols()
        weight = ca.SX.sym("weight", new_states.numel())
        return [*arguments, weight], ca.hessian(ca.dot(weight, new_states), ca.vertcat(*arguments))[0]

    @cached_property
    def entries(self) -> tuple[Index, Index]:
        """Return the structurally nonzero pairs (new state, argument) of the change: rows and columns."""
        with _LOCK:
            arguments, new_states = self._symbols()
            rows, columns = ca.jacobian_sparsity(new_states, ca.vertcat(*arguments)).get_triplet()
        return np.array(rows, dtype=np.intp), np.array(columns, dtype=np.intp)

    @property
    def support(self) -> Mask:
        """Return the dependence of each new state on each argument as a matrix, (n_x, 1 + n_x + n_u + n_c)."""
        matrix = np.zeros((self.graph.size1_out(0), self._n_arguments), dtype=np.bool_)
        matrix[self.entries] = True
        return matrix

    def needed_arguments(self, state_mask: Mask | None = None) -> Mask:
        """Return a mask of the arguments on which any new state, or any of those in a mask (n_x,), depends."""
        (rows, columns), is_needed = self.entries, np.zeros(self._n_arguments, dtype=np.bool_)
        is_needed[columns if state_mask is None else columns[state_mask[rows]]] = True
        return is_needed

    @property
    def _n_arguments(self) -> int:
        return sum(self.graph.size1_in(i) for i in range(4))

    @cached_property
    def changed_states(self) -> Mask:
        """Return the mask of the states that change, (n_x,)."""
        is_changed = np.zeros(self.graph.size1_out(0), dtype=np.bool_)
        with _LOCK:
            (_, x, _, _), new_states = self._symbols()
            for k in self.rows:
                is_changed[k] = not ca.is_equal(new_states[k], x[k], 1)
        return is_changed

    @classmethod
    def merge(cls, changes: Sequence[EventUpdate]) -> EventUpdate:
        """Return the simultaneous combination of the changes, each from the same states, with their c concatenated.

        If several of them change a state, the last one determines its value.
        """
        sizes = [change.graph.size1_in(3) for change in changes]
        t, x, u = (ca.SX.sym(n, changes[0].graph.size1_in(i)) for i, n in enumerate("txu"))
        c = [ca.SX.sym("c", size) for size in sizes]
        new_states = ca.SX(x)
        for change, c_part in zip(changes, c, strict=True):
            states = change.graph.call([t, x, u, c_part])[0]
            for j in np.flatnonzero(change.changed_states).tolist():
                new_states[j] = states[j]
        return cls.from_expressions(
            [t, x, u, ca.vertcat(*c)], new_states, sorted({k for change in changes for k in change.rows})
        )

    @classmethod
    def stack(cls, functions: Sequence[EventUpdate]) -> EventUpdate:
        """Return the function that stacks the values of all `functions`, with their c concatenated."""
        sizes = [function.graph.size1_in(3) for function in functions]
        t, x, u = (ca.SX.sym(n, functions[0].graph.size1_in(i)) for i, n in enumerate("txu"))
        c = [ca.SX.sym("c", size) for size in sizes]
        rows = [function.graph.call([t, x, u, c_part])[0] for function, c_part in zip(functions, c, strict=True)]
        return cls.from_expressions([t, x, u, ca.vertcat(*c)], ca.vertcat(*rows))

    def values(self, *arguments: float | Array) -> Array:
        """Return the new states (n_x,) at (t, x, u, c)."""
        return self._call_buffered(self.graph, arguments)["o0"][0].copy()

    def evaluate(self, *arguments: float | Array) -> tuple[Array, Array]:
        """Return the new states (n_x,) and their Jacobian (n_x, 1 + n_x + n_u + n_c) at (t, x, u, c)."""
        outputs = self._call_buffered(self.jacobian_function, arguments)
        return outputs["o0"][0].copy(), outputs["o1"].T.copy()

    def _call_buffered(self, function: ca.Function, arguments: Sequence[float | Array]) -> dict[str, Array]:
        call, arrays = _buffered_function(function)
        for i, array in arrays:
            array[...] = arguments[i]
        call()
        return call.results

    def hessian(self, *arguments: float | Array) -> Array:
        """Return the Hessian at (t, x, u, c, weight)."""
        return np.asarray(cast("Any", self.hessian_function)(*arguments), dtype=float)


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.functions_by_id: OrderedDict[int, tuple[ca.Function, BufferedFunction, list[tuple[int, Array]]]] = (
            OrderedDict()
        )


_BUFFERS = _Buffers()
_MAX_BUFFERED_FUNCTIONS = 256  # number of functions whose buffers are cached


def _buffered_function(function: ca.Function) -> tuple[BufferedFunction, list[tuple[int, Array]]]:
    """Return a function with buffers of this thread, and its nonempty arguments by position.

    With many events, calls without buffers would take most of the time.
    """
    cache = _BUFFERS.functions_by_id
    if id(function) not in cache:
        call = BufferedFunction(function, tuple(function.name_out()))
        cache[id(function)] = function, call, [(function.index_in(n), a) for n, a in call.arguments.items()]
        if len(cache) > _MAX_BUFFERED_FUNCTIONS:
            cache.popitem(last=False)
    return cache[id(function)][1:]


# Time of a state-triggered event that is not located yet, or does not happen.
NEVER_TIME = 1e300


@dataclass(frozen=True, eq=False)
class Trigger:
    """Trigger of an event: an expression g(t, x, u, c) crosses zero, or a condition becomes true.

    function : g as its only row; for a condition, the differences of the compared expressions
    parameters : (n_c,) the rows of e that it depends on
    direction : 1 for rising through zero, -1 for falling, 0 for either
    truth : function from the signs of all rows to whether the condition is true; `at_start` if it may be true there
    priority : priority of a condition as the only row of a function of (t, x, u, c), and the rows of e that are its c;
        `persistent`, `rng` and `forbidden` as in `Event`
    """

    description: str
    function: EventUpdate
    parameters: Index
    direction: int
    truth: ca.Function | None = None
    at_start: bool = False
    priority: tuple[EventUpdate, Index] | None = None
    persistent: bool = True
    rng: int | None = None
    forbidden: str = ""

    @property
    def is_ordered(self) -> bool:
        """Whether the event is ordered by its priority, and not simultaneous with all others that are due."""
        return self.priority is not None or not self.persistent

    def rank(self, t: float, x: Array, u: Array, e: Array) -> float:
        """Return the priority; -inf (the last place) if there is none, or if it is NaN."""
        if self.priority is None:
            return -np.inf
        function, rows = self.priority
        priority = self._fixed_priority[0] if self._fixed_priority else float(function.values(t, x, u, e[rows])[0])
        return -np.inf if np.isnan(priority) else priority

    @cached_property
    def _fixed_priority(self) -> list[float]:
        """The priority if it is a constant, as a list of at most one number."""
        function = None if self.priority is None else self.priority[0]
        if function is None or function.entries[0].size:
            return []
        return [float(function.values(*(np.zeros(function.graph.size1_in(i)) for i in range(4)))[0])]

    def values(self, t: float, x: Array, u: Array, e: Array) -> Array:
        """Return g, (n,)."""
        return self.function.values(t, x, u, e[self.parameters])

    def rates(self, t: float, x: Array, u: Array, e: Array, f: Array, du: Array) -> tuple[Array, Array, Array]:
        """Return g, g' (n,) and dg/dx (n, n_x), where states and inputs change by f (n_x,) and du (n_u,)."""
        g, jacobian = self.function.evaluate(t, x, u, e[self.parameters])
        by_x = jacobian[:, 1 : 1 + x.size]
        return g, jacobian[:, 0] + by_x @ f + jacobian[:, 1 + x.size : 1 + x.size + u.size] @ du, by_x

    def crossing_slopes(
        self, t: float, x: Array, u: Array, e: Array, f: Array, du: Array
    ) -> tuple[float, Array, Array]:
        """Return the rate of the row that crosses zero at t, and its derivatives by x (n_x,) and c (n_c,)."""
        g, jacobian = self.function.evaluate(t, x, u, e[self.parameters])
        _, rate, _ = self.rates(t, x, u, e, f, du)
        with np.errstate(divide="ignore", invalid="ignore"):
            time_to_zero = np.abs(g / rate)  # the time to zero
        row = int(np.argmin(np.where(np.isnan(time_to_zero), np.inf, time_to_zero)))
        by_x, _, by_c = np.split(jacobian[row, 1:], [x.size, x.size + u.size])
        return float(rate[row]), by_x, by_c

    def is_true(self, signs: Array) -> bool:
        """Check whether the trigger has a condition and it is true for these signs of its differences."""
        return self.truth is not None and bool(float(cast("Any", self.truth)(signs)))


@dataclass(frozen=True, eq=False)
class EventInstant:
    """One time of an event, with a `description` for messages.

    time : the row of e that is its time; `is_moving` if that row depends on estimated quantities
    change : change of the states; None if only a rate changes.  It depends on the rows `parameters` (n_c,) of e
    is_measured_after : whether a value measured at exactly this time was measured after the change
    trigger : trigger of the event, if its time is not known beforehand
    """

    description: str
    time: int
    is_moving: bool = False
    change: EventUpdate | None = None
    parameters: Index = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    is_measured_after: bool = False
    trigger: Trigger | None = None


@dataclass(frozen=True)
class SwitchedParameter:
    """A parameter of the model that is raised by, or set to, a row of e between two instants.

    `parameter` is its position in p; `on_instant` and `off_instant` are positions among the instants, `off_instant` -1
    for never; `height_row` is the row of e.  With `is_assignment` the parameter has that value instead of being raised
    by it.
    """

    parameter: int
    on_instant: int
    off_instant: int
    height_row: int
    is_assignment: bool = False


def merge_instants(instants: Sequence[EventInstant]) -> tuple[EventInstant, ...]:
    """Return conditions that become true together as one instant, which changes the states by all of their changes."""
    if len(instants) < 2 or any(i.trigger is None or i.trigger.truth is None for i in instants):
        return tuple(instants)
    changes = tuple(instant.change for instant in instants if instant.change is not None)
    assert len(changes) == len(instants)
    return (
        replace(
            instants[0],
            change=_MERGED_UPDATES.get(changes, EventUpdate.merge),
            parameters=np.concatenate([instant.parameters for instant in instants]),
            is_measured_after=any(instant.is_measured_after for instant in instants),
        ),
    )


_MERGED_UPDATES: RecentObjectCache[tuple[EventUpdate, ...], EventUpdate] = RecentObjectCache(256)
_STACKED_UPDATES: RecentObjectCache[tuple[EventUpdate, ...], EventUpdate] = RecentObjectCache(256)
_FOLLOWING_TIME_ULPS = 4096  # units in the last place within which an event follows another immediately


def follows(previous_time: float, time: float) -> bool:
    """Check whether a triggered event at a time follows immediately, within a few ulps, on the last event."""
    return bool(time - previous_time <= _FOLLOWING_TIME_ULPS * np.spacing(abs(previous_time)))


def merge_simultaneous(instants: Sequence[EventInstant], e: Array) -> tuple[EventInstant, ...]:
    """Return the instants in order; instants of exactly the same time are merged into one."""
    merged_instants: list[EventInstant] = []
    for time, group in groupby(instants, key=lambda instant: float(e[instant.time])):
        members = list(group)
        merged_instants += merge_instants(members) if time < NEVER_TIME else members
    return tuple(merged_instants)


@dataclass(frozen=True, eq=False)
class Schedule:
    """All events of an experiment, in the user's order; e has n_e rows.

    Repeated doses without a number extend up to the time `known_until`.  `triggers` are the triggers of state-dependent
    events, each once; `is_moving` if any time depends on estimated quantities.
    """

    instants: tuple[EventInstant, ...] = ()
    levels: tuple[SwitchedParameter, ...] = ()
    n_e: int = 0
    known_until: float = np.inf
    triggers: tuple[Trigger, ...] = field(init=False)
    is_moving: bool = field(init=False)

    def __post_init__(self) -> None:
        triggers_by_id = {id(i.trigger): i.trigger for i in self.instants if i.trigger is not None}
        object.__setattr__(self, "triggers", tuple(triggers_by_id.values()))
        object.__setattr__(self, "is_moving", any(instant.is_moving for instant in self.instants))

    @cached_property
    def rows(self) -> Index:
        """The rows of e that are times of instants, (n_instants,)."""
        return np.array([instant.time for instant in self.instants], dtype=np.intp)

    @cached_property
    def every_trigger(self) -> EventUpdate:
        """The differences of all triggers as one function; their c one after the other."""
        return _STACKED_UPDATES.get(tuple(trigger.function for trigger in self.triggers), EventUpdate.stack)

    def rows_of(self, trigger: Trigger) -> list[int]:
        """Return the rows of e that are the times of a trigger's events."""
        return [row for rows in self.rows_by_side(trigger).values() for row in rows]

    def rows_by_side(self, trigger: Trigger) -> Mapping[bool, Sequence[int]]:
        """Return the rows of e that are the times of a trigger's events, by `is_measured_after`."""
        return self._by_trigger.get(trigger, {})

    @cached_property
    def _by_trigger(self) -> dict[Trigger, dict[bool, list[int]]]:  # not by id, which pickling changes
        rows_by_trigger: dict[Trigger, dict[bool, list[int]]] = {}
        for instant in self.instants:
            if instant.trigger is not None:
                sides = rows_by_trigger.setdefault(instant.trigger, {})
                sides.setdefault(instant.is_measured_after, []).append(instant.time)
        return rows_by_trigger

    @cached_property
    def _positions(self) -> dict[int, list[int]]:
        """The instants whose time is a row of e, by position."""
        positions_by_row: dict[int, list[int]] = {}
        for i, instant in enumerate(self.instants):
            positions_by_row.setdefault(instant.time, []).append(i)
        return positions_by_row

    def crossing_at(self, rows: Sequence[int]) -> StageEndUpdate:
        """Return the state change of all events at the times in `rows` of e, as one crossing."""
        positions = sorted(i for row in rows for i in self._positions.get(row, ()))
        return StageEndUpdate(merge_instants([self.instants[i] for i in positions]))

    @cached_property
    def known_instants(self) -> Index:
        """The instants whose times are numbers, by position."""
        return np.array([i for i, instant in enumerate(self.instants) if not instant.is_moving], dtype=np.intp)

    @cached_property
    def _moving_instants(self) -> Mask:
        return np.array([instant.is_moving for instant in self.instants], dtype=np.bool_)

    def order(self, e: Array) -> list[int]:
        """Return the indices of the instants in order of time; at equal times, estimated ones come after known ones."""
        times = e[self.rows]
        return np.lexsort((np.arange(times.size), self._moving_instants, times)).tolist()

    @cached_property
    def _instants_by_kind(self) -> list[tuple[EventInstant, list[int]]]:
        """One instant of each kind, and the rows of e that are the times of all of its kind."""
        instants_by_kind: dict[tuple[int, int, bytes], tuple[EventInstant, list[int]]] = {}
        for instant in self.instants:
            key = id(instant.change), id(instant.trigger), instant.parameters.tobytes()
            instants_by_kind.setdefault(key, (instant, []))[1].append(instant.time)
        return list(instants_by_kind.values())

    def find_dependencies(self, is_reached: Mask, parameters: Mask) -> tuple[Mask, Mask]:
        """Return masks of the states (n_x,) and rows of e (n_e,) on which reached states and parameters depend."""
        n_x = is_reached.size
        states, rows = np.zeros(n_x, dtype=np.bool_), np.zeros(self.n_e, dtype=np.bool_)
        for instant, times in self._instants_by_kind:
            if instant.change is None:
                continue
            changed = is_reached & instant.change.changed_states
            if changed.any():
                used = instant.change.needed_arguments(changed)
                rows[times] = True
                states |= used[1 : 1 + n_x]
                rows[instant.parameters] |= used[used.size - instant.parameters.size :]
                if instant.trigger is not None:
                    needed = instant.trigger.function.needed_arguments()
                    states |= needed[1 : 1 + n_x]
                    rows[instant.trigger.parameters] |= needed[needed.size - instant.trigger.parameters.size :]
        for level in self.levels:
            if parameters[level.parameter]:
                rows[level.height_row] = rows[self.instants[level.on_instant].time] = True
                if level.off_instant >= 0:
                    rows[self.instants[level.off_instant].time] = True
        return states, rows

    def describe_obstacle(self, e: Array, start: float) -> str:
        """Describe an impossible schedule, such as a change before the start of the experiment; empty if possible."""
        for trigger in self.triggers:
            rows = self.rows_of(trigger)
            if np.isnan(e[rows]).any():
                if trigger.forbidden:
                    return trigger.forbidden
                return (
                    f"the event at {trigger.description} happens more often than {len(rows)} times; "
                    "give a larger count="
                )
        for instant in self.instants:
            if instant.change is not None and instant.is_moving and e[instant.time] < start:
                return f"{instant.description} would happen at t = {e[instant.time]:.6g}, before the start {start:g}"
        for level in self.levels:
            if (
                level.off_instant >= 0
                and e[self.instants[level.off_instant].time] < e[self.instants[level.on_instant].time]
            ):
                on, off = (self.instants[i] for i in (level.on_instant, level.off_instant))
                return f"{on.description} would end at t = {e[off.time]:.6g}, before it begins at {e[on.time]:.6g}"
        return ""


@dataclass(frozen=True, eq=False)
class StageEndUpdate:
    """The changes at the end of a stage, one after the other.

    The inputs at their time are local cubics' values, slopes and curvatures (u, du, ddu), each (n_u,).
    """

    instants: tuple[EventInstant, ...]

    def values(self, x: Array, e: Array, u: Array) -> Array:
        """Return the states after the changes, (n_x,)."""
        for instant in self.instants:
            assert instant.change is not None
            x = instant.change.values(e[instant.time], x, u, e[instant.parameters])
        return x

    def apply_at_time(self, time: float, x: Array, e: Array, u: Array) -> Array:
        """Return the states after the changes, all of them applied at this time."""
        for instant in self.instants:
            assert instant.change is not None
            x = instant.change.values(time, x, u, e[instant.parameters])
        return x

    def slopes(self, x: Array, e: Array, u: Array, du: Array) -> tuple[Array, Array, Array]:
        """Return the states after the changes, and their derivatives by x (n_x, n_x) and e (n_x, n_e)."""
        by_x, by_e = np.eye(x.size), np.zeros((x.size, e.size))
        for instant in self.instants:
            assert instant.change is not None
            new_states, jacobian = instant.change.evaluate(e[instant.time], x, u, e[instant.parameters])
            step_x, step_e = self._split(instant, jacobian, x.size, u.size, e.size, du)
            by_x, by_e, x = step_x @ by_x, step_x @ by_e + step_e, new_states
        return x, by_x, by_e

    @staticmethod
    def _split(instant: EventInstant, jacobian: Array, n_x: int, n_u: int, n_e: int, du: Array) -> tuple[Array, Array]:
        """Split the columns (t, x, u, c) of a Jacobian into derivatives by x and by e."""
        by_e = np.zeros((n_x, n_e))
        by_e[:, instant.time] = jacobian[:, 0] + jacobian[:, 1 + n_x : 1 + n_x + n_u] @ du
        for column, row in enumerate(instant.parameters.tolist(), start=1 + n_x + n_u):
            by_e[:, row] += jacobian[:, column]
        return jacobian[:, 1 : 1 + n_x], by_e

    def curvature(self, x: Array, e: Array, u: Array, du: Array, ddu: Array, weight: Array) -> Array:
        """Return the Hessian of  weight . states after the changes  by (x, e), (n_x + n_e, n_x + n_e)."""
        n_x, n_u, n_e = x.size, u.size, e.size
        states_before: list[tuple[Array, Array]] = []  # before each change: the states, and their derivatives by (x, e)
        derivatives = np.hstack([np.eye(n_x), np.zeros((n_x, n_e))])
        steps: list[tuple[Array, Array]] = []
        for instant in self.instants:
            assert instant.change is not None
            states_before.append((x, derivatives))
            new_states, jacobian = instant.change.evaluate(e[instant.time], x, u, e[instant.parameters])
            step_x, step_e = self._split(instant, jacobian, n_x, n_u, n_e, du)
            steps.append((step_x, jacobian[:, 1 + n_x : 1 + n_x + n_u]))
            derivatives = step_x @ derivatives
            derivatives[:, n_x:] += step_e
            x = new_states
        out = np.zeros((n_x + n_e, n_x + n_e))
        for instant, (state_before, slope), (step_x, step_u) in zip(
            reversed(self.instants), reversed(states_before), reversed(steps), strict=True
        ):
            assert instant.change is not None
            bend = instant.change.hessian(e[instant.time], state_before, u, e[instant.parameters], weight)
            # (t, x, u, c) as functions of (x, e): u moves with t
            inner = np.zeros((bend.shape[0], n_x + n_e))
            inner[0, n_x + instant.time] = 1.0
            inner[1 : 1 + n_x] = slope
            inner[1 + n_x : 1 + n_x + n_u, n_x + instant.time] = du
            rows = 1 + n_x + n_u + np.arange(instant.parameters.size)
            inner[rows, n_x + instant.parameters] = 1.0
            out += inner.T @ bend @ inner
            out[n_x + instant.time, n_x + instant.time] += weight @ (step_u @ ddu)
            weight = step_x.T @ weight
        return out


@dataclass(frozen=True)
class TriggeredRound:
    """State-triggered events of one round, at one time; they have no rows in the schedule."""

    time: float
    crossing: StageEndUpdate

    @property
    def is_measured_after(self) -> bool:
        """Whether a value measured at that very time was measured after it."""
        return any(instant.is_measured_after for instant in self.crossing.instants)


@dataclass(frozen=True, eq=False)
class TriggeredStageUpdate(StageEndUpdate):
    """The changes at a known time, if there are any, and of the rounds that follow immediately."""

    known_update: StageEndUpdate | None = None
    rounds: tuple[TriggeredRound, ...] = ()

    def values(self, x: Array, e: Array, u: Array) -> Array:
        """Return the states after the changes, (n_x,)."""
        x = x if self.known_update is None else self.known_update.values(x, e, u)
        for event_round in self.rounds:
            x = event_round.crossing.apply_at_time(event_round.time, x, e, u)
        return x


@dataclass(frozen=True, eq=False)
class NumericSchedule:
    """A schedule evaluated at numbers: state changes at increasing times (g,), and the parameters between them.

    `crossings` are the changes of the states, None for none; `is_measured_after` (g,) tells whether a value at exactly
    that time is the one after the change.  p (g + 1, n_p) are the parameters before the first time, after it, and so
    on; e (n_e,).
    """

    start: float
    times: Array
    crossings: tuple[StageEndUpdate | None, ...]
    is_measured_after: Mask
    p: Array
    e: Array

    @classmethod
    def from_schedule(cls, schedule: Schedule, start: float, p: Array, e: Array) -> NumericSchedule:
        """Evaluate a schedule for parameters p (n_p,) and rows e (n_e,)."""
        positions_by_time: dict[float, list[int]] = {}
        group_time = np.nan
        for i in schedule.order(e):
            time = float(e[schedule.instants[i].time])
            if time >= NEVER_TIME:
                break  # all later instants have no time either
            # What one event makes true follows it in the next numbers.                  (castfit.transcribe.triggers)
            is_immediate = schedule.instants[i].trigger is not None and follows(group_time, time)
            group_time = group_time if is_immediate else time
            positions_by_time.setdefault(group_time, []).append(i)
        past_instants: set[int] = set()
        parameter_rows: list[Array] = [p]
        crossings: list[StageEndUpdate | None] = []
        after_flags: list[bool] = []
        for positions in positions_by_time.values():
            past_instants |= set(positions)
            current_p = p.copy()
            for level in schedule.levels:
                if level.on_instant in past_instants and level.off_instant not in past_instants:
                    current_p[level.parameter] = e[level.height_row] + (
                        0.0 if level.is_assignment else current_p[level.parameter]
                    )
            parameter_rows.append(current_p)
            jumps = merge_simultaneous(
                [schedule.instants[i] for i in positions if schedule.instants[i].change is not None], e
            )
            crossings.append(StageEndUpdate(jumps) if jumps else None)
            cause_time = (
                e[jumps[0].time] if jumps else NEVER_TIME
            )  # events that follow immediately count at the time of their cause
            after_flags.append(any(instant.is_measured_after for instant in jumps if e[instant.time] == cause_time))
        times = np.array(list(positions_by_time))
        return cls(start, times, tuple(crossings), np.array(after_flags, dtype=bool), np.array(parameter_rows), e)

    def with_rounds(self, rounds: Sequence[TriggeredRound]) -> NumericSchedule:
        """Return the timetable with the rounds of state-triggered events inserted in order of time."""
        entries: list[tuple[float, int, list[TriggeredRound]]] = []  # time, the known entry with it or -1, rounds
        next_index, previous_time = 0, np.nan
        for event_round in rounds:
            while next_index < self.times.size and self.times[next_index] <= event_round.time:
                previous_time = float(self.times[next_index])
                entries.append((previous_time, next_index, []))
                next_index += 1
            if not follows(previous_time, event_round.time):
                previous_time = event_round.time
                entries.append((previous_time, -1, []))
            entries[-1][2].append(event_round)
        entries += [(float(self.times[k]), k, []) for k in range(next_index, self.times.size)]
        crossings: list[StageEndUpdate | None] = []
        after_flags, p, p_row = list[bool](), [self.p[0]], 0
        for time, k, entry_rounds in entries:
            known_crossing = None if k < 0 else self.crossings[k]
            crossings.append(
                TriggeredStageUpdate((), known_crossing, tuple(entry_rounds)) if entry_rounds else known_crossing
            )
            cause = (
                entry_rounds[0].is_measured_after
                if entry_rounds and known_crossing is None
                else k >= 0 and bool(self.is_measured_after[k])
            )
            after_flags.append(cause or any(r.is_measured_after for r in entry_rounds if r.time == time))
            p_row += k >= 0
            p.append(self.p[p_row])
        times = np.array([time for time, _, _ in entries])
        return NumericSchedule(
            self.start, times, tuple(crossings), np.array(after_flags, dtype=bool), np.array(p), self.e
        )

    @property
    def times_after_events(self) -> Array:
        """The times at which values are those after the changes."""
        return self.times[self.is_measured_after]

    def count_past_events(self, time: float, slack: float, *, at_start: bool) -> int:
        """Return the number of times that are past at a node; a node follows the events at its time.

        The states at the start of the experiment are those before the events at this time.
        """
        count = int(np.searchsorted(self.times, time + slack, side="right"))
        if at_start:
            while count and self.times[count - 1] >= time - slack and self.crossings[count - 1] is not None:
                count -= 1
        return count
