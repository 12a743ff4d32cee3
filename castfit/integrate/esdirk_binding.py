"""A model's functions for the compiled integrator (esdirk.c), and the calls that integrate lanes and go back.

The integrator comes with castfit, or is compiled once per machine.  The model's functions

    rates (f, g),   jacobian of (f, g) by (x, z),   slopes: that again, by p, and in all by time

are CasADi's: evaluated by CasADi as they are, or compiled too, which takes a compiler's second and pays where a model
is large.  Both do the same operations in the same order: results are equal to the last bit.

Different threads may use one model at once: what its functions read and write belongs to a thread, and the call does
not hold the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from operator import is_
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, ref

import casadi as ca
import numpy as np

from castfit._support.casadi_functions import find_compiler
from castfit._support.pickling import ProcessLocal
from castfit._support.progress_line import progress_line
from castfit._support.records import dataclass
from castfit._support.time_limit import check_deadline
from castfit.integrate.compilation import CompilationError, bundled_library, is_compiled, load, split_work_arrays
from castfit.integrate.distributed import threads
from castfit.integrate.esdirk import ESDIRK4, ESDIRK5, TSITOURAS5, elimination
from castfit.integrate.lanes import LaneFailure, Lanes, input_discontinuities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from castfit._support.arrays import Array, Mask
    from castfit.integrate.esdirk import Tableau
    from castfit.integrate.options import IntegratorOptions

    Integers = NDArray[np.int64]

_FOLDER = Path(__file__).parent
# Without the last two a square root or comparison inside a loop keeps it from running along the directions.  Products
# are not fused with sums, which saves 1 to 4 %: which ones are differs from one copy of a loop to another, and then
# slopes along steps that were kept, or in the rest of a vector, differ in the last bit from those worked out at once.
_FLAGS = ("-O2", "-ftree-vectorize", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
# -O2 compiles twice as long and runs as fast.
_MODEL_FLAGS = ("-O1", "-ffp-contract=off")
_EVALUATE_SYMBOL = "_ZN6casadi21_function_buffer_evalEPv"  # C++ symbol that evaluates a FunctionBuffer
_MAX_UNSPLIT_INSTRUCTIONS = 3000  # instructions of the model's functions above which they are compiled in parts
_STEPS_PER_CALL = 20_000  # number of steps between two checks of the deadline
_COMPILED_GAIN_SECONDS = 2e-9  # computing time that compilation saves per operation
_COMPILE_COST_SECONDS = 0.06, 2.5e-6  # computing time of a compilation: fixed, and per character of the source
_POOL_SIZE = 2**19  # numbers in a pool of stored steps: 4 MB
_MAX_FREE_POOLS = 8  # number of pools that wait for their next use
_MAX_STORED_NUMBERS = 2**26  # numbers of all stored steps of one model: 512 MB
_ROOM_MARGIN, _ROOM_DECAY = 1.3, 0.95  # of the room that an integration took before
_STEP_HEADER_SIZE = 6  # numbers of a stored step besides its stages, KEPT_HEAD of esdirk.c
_MAX_ADJOINT_NUMBERS = 2**27  # numbers of one lane's steps for the backward integration: 1 GB

FINE, STEP_ERROR, STEP_NEWTON, MANY_STEPS, NOT_FINITE, SINGULAR, NO_MEMORY, NO_SLOPES, STAGE_SINGULAR = range(9)
"""How a lane ended; as in esdirk.c."""

_CAUSES = {
    STEP_ERROR: ("step_size", "the error test fails however short they are"),
    STEP_NEWTON: ("step_size", "the stages cannot be solved however short they are"),
    MANY_STEPS: ("too_many_steps", "too many steps are needed"),
    NOT_FINITE: ("not_finite", "the right-hand side is not finite"),
    SINGULAR: ("consistent_initialisation", "the algebraic equations are singular"),
    NO_MEMORY: ("solver", "there is no memory for the integration"),
    NO_SLOPES: ("not_finite", "a derivative of the right-hand side is not finite"),
    STAGE_SINGULAR: ("step_size", "the matrix of a stage is singular"),
}


_ELIMINATION_FIELDS = (
    "rows",
    "columns",
    "begin",
    "pivot",
    "entry_columns",
    "earlier",
    "entry",
    "one",
    "targets",
)  # fields of Elimination, in the order of the C structure


class _CFunction(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("compiled", "arguments", "results", "integers", "work", "evaluate", "buffer")
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_x", "n_z", "n_p", "n_u", "jacobian_nnz", "slope_nnz")),
        *((name, ctypes.c_void_p) for name in ("jacobian_row", "jacobian_col", "slope_row", "slope_col")),
        *((name, _CFunction) for name in ("rates", "jacobian", "slopes")),
        *((name, ctypes.c_void_p) for name in ("t", "y", "p", "u", "du", "f", "j", "slope_j", "by_p", "by_t")),
        ("timed", ctypes.c_int64),
        ("sparse", ctypes.c_int64),
        ("tail", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _ELIMINATION_FIELDS),
    ]


class _CTableau(ctypes.Structure):
    _fields_ = [
        ("stages", ctypes.c_int64),
        ("order", ctypes.c_int64),
        ("gamma", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("a", "c", "error", "dense", "predict")),
    ]


_NO_STORE = (None, 0, 0, None)
_LANE_FIELDS = ("grid", "start", "duration", "x0", "z0", "p", "u", "unit", "stops")
_DIRECTION_FIELDS = ("dx0", "dp", "d_start", "d_duration")
_RESULT_FIELDS = ("x", "z", "dx", "code", "which", "counts", "where")


class _CTask(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("lanes", "m", "n_d", "max_steps")),
        *((name, ctypes.c_double) for name in ("relative", "absolute", "newton", "watch")),
        *((name, ctypes.c_void_p) for name in (*_LANE_FIELDS, *_DIRECTION_FIELDS, "skip", "pair", "replay", "record")),
        ("recorded", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("follow", ctypes.c_int64),
        ("kept", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _RESULT_FIELDS),
    ]


class _CSums(ctypes.Structure):
    _fields_ = [
        ("n_a", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("seeds", "x0", "p", "start", "duration")),
        ("most", ctypes.c_int64),
    ]


@dataclass(frozen=True)
class StepSizes:
    """Settings of the error control and of the step sizes.

    newton : part of a step's allowed error up to which stages are solved
    watch : share of the directions' errors in the error control, for steps that are accurate enough for the states but
        too long for the directions; 0 for none
    replay : steps (k,) of relative time to be taken instead, for a single lane; negative for steps of the pair
    """

    relative: float
    absolute: float
    max_steps: int
    newton: float = 0.01
    watch: float = 0.1
    replay: Array | None = None


class StoredSteps(ProcessLocal):
    """The steps of an integration, stored by the compiled integrator for the integration along directions.

    The buffers are a pool of numbers (room,) and an index of its contents (2 L + 1,).  The pool returns to the model's
    free pools with the last reference.  `room` is the size that such an integration took before; sizes above the
    limit for all steps of a model are not stored.
    """

    def __init__(self, lanes: Lanes, settings: tuple[Any, ...], model: NativeModel, room: int = 0) -> None:
        self._lane_arrays, self._settings, self._free = _collect_lane_arrays(lanes), settings, model.free_pools
        step_index, room = np.zeros(2 * lanes.size + 1, dtype=np.int64), int(_ROOM_MARGIN * room)
        self.buffers: tuple[Array, Integers]
        """Pool and index together: a reader holds both, although another thread may release the steps meanwhile."""
        if _POOL_SIZE < room <= _MAX_STORED_NUMBERS:
            model.make_room(room)
            self.buffers = np.empty(room), step_index
            model.large_steps.append(ref(self))
            return
        try:
            self.buffers = self._free.pop(), step_index
        except IndexError:
            self.buffers = np.empty(_POOL_SIZE), step_index

    @property
    def count(self) -> Integers:
        """Number of stored steps of each lane, (L,), -1 if there was no room."""
        return self.buffers[1][1:-1:2]

    def single_lane_data(self) -> tuple[Array, Array, Array, Array, Array] | None:
        """Return the data of the continuous extension of k steps of a single lane.

        None if there was no room for the steps.

        Times between steps in relative time (k + 1,), states at their begin (k, n), algebraic ones with them, rates at
        both ends, and  sum_j d_j K_j.
        """
        pool, (begin, count, _) = self.buffers[0], self.buffers[1].tolist()
        if count <= 0:
            return None
        model, _, method, pair, _ = self._settings
        n, stages = model.n_x + model.n_z, max(method.stages, 0 if pair is None else pair.stages)
        size = _STEP_HEADER_SIZE + (stages + 1) * n
        steps = pool[begin : begin + count * size].reshape(count, size)
        times = np.append(steps[:, 0], steps[-1, 2])
        y, k = (
            steps[:, _STEP_HEADER_SIZE : _STEP_HEADER_SIZE + n].copy(),
            steps[:, _STEP_HEADER_SIZE + n :].reshape(count, stages, n),
        )
        explicit = steps[:, 5] != 0.0
        last_rates, bend_terms = np.empty_like(y), np.empty_like(y)
        for tableau, mask in ((method, ~explicit), (pair or method, explicit)):
            if mask.any():
                last_rates[mask] = k[mask, tableau.stages - 1]
                bend_terms[mask] = np.einsum("j,kjn->kn", tableau.dense, k[mask, : tableau.stages])
        return times, y, k[:, 0].copy(), last_rates, bend_terms

    def release(self) -> None:
        """Release the storage for other integrations; a user of these steps then has to integrate again."""
        self.buffers = np.empty(0), np.full_like(self.buffers[1], -1)

    def matches(self, lanes: Lanes, settings: tuple[Any, ...]) -> bool:
        """Check whether the steps were taken for the very same arrays with the same settings."""
        return all(map(is_, (*self._lane_arrays, *self._settings), (*_collect_lane_arrays(lanes), *settings)))

    def __del__(self) -> None:
        """Return the storage to the pool for reuse."""
        if len(self._free) < _MAX_FREE_POOLS and self.buffers[0].size == _POOL_SIZE:
            self._free.append(self.buffers[0])


def _collect_lane_arrays(lanes: Lanes) -> tuple[Array | None, ...]:
    return lanes.start, lanes.duration, lanes.x0, lanes.p, lanes.u, lanes.unit


@dataclass(frozen=True)
class IntegrationOutcome:
    """Result of the integration of L lanes: x (L, m, n_x), z (L, m, n_z), dx (L, m, n_x, n_d) if requested.

    code (L,); for codes other than `FINE`: where (L,) is the time, equation_index (L,) the equation or -1.
    counts (L, 5): steps, rejected steps, evaluations of the rates for stages, steps taken once more for the directions'
        sake, steps of the explicit pair.
    steps : those of the first lane, of relative time; negative where they are the pair's
    stored_steps : steps to be followed
    """

    x: Array
    z: Array
    dx: Array | None
    code: Integers
    where: Array
    equation_index: Integers
    counts: Integers
    steps: Array
    stored_steps: StoredSteps | None = None

    @property
    def arrays(self) -> list[Array]:
        """The arrays that have to be finite."""
        return [self.x, self.z] if self.dx is None else [self.x, self.z, self.dx]


@dataclass(frozen=True)
class AdjointSums:
    """Derivatives of n_a sums over each of L lanes: x0 (L, n_x, n_a), p (L, n_p, n_a), start and duration (L, n_a).

    code, where, equation_index : as in `IntegrationOutcome`
    """

    x0: Array
    p: Array
    start: Array
    duration: Array
    code: Integers
    where: Array
    equation_index: Integers

    @property
    def arrays(self) -> list[Array]:
        """The arrays that have to be finite."""
        return [self.x0, self.p, self.start, self.duration]


class NativeModel:
    """The functions of one model, from a graph (t, x, z, p, u) -> (ode, alg).

    compiled : whether to compile them at once, into `library`
    may_compile : whether to compile them later, once `is_worth_compiling`
    patterns : rows and columns of the entries of the Jacobian by states, then by parameters
    elimination : plan of the factorization

    Raises CompilationError: if that fails, or the integrator cannot be compiled.
    """

    def __init__(self, graph: ca.Function, *, compiled: bool, may_compile: bool = False) -> None:
        integrator()
        self.n_x, self.n_z, self.n_p, self.n_u = (graph.size1_in(i) for i in (1, 2, 3, 4))
        arguments = [ca.SX.sym(n, graph.size1_in(i)) for i, n in enumerate("txzpu")]
        t, x, z, p, u = arguments
        du = ca.SX.sym("du", self.n_u)
        f = ca.vertcat(*cast("list[ca.SX]", graph(*arguments)))
        jacobian, by_p, by_t = (ca.jacobian(f, v) for v in (ca.vertcat(x, z), p, t))
        self.depends_on_time = bool(by_t.nnz())
        if self.n_u:
            by_t = by_t + ca.mtimes(ca.jacobian(f, u), du)
        slopes = [_dense_entries(jacobian), _dense_entries(by_p), ca.densify(by_t)]
        self.functions = (
            ca.Function("rates", arguments, [ca.densify(f)], {"cse": True}),
            ca.Function("jacobian", arguments, slopes[:1], {"cse": True}),
            ca.Function("slopes", [*arguments, du], slopes, {"cse": True}),
        )
        self.patterns = (*_pattern_entries(jacobian), *_pattern_entries(by_p))
        self.elimination = elimination(self.n_x + self.n_z, self.n_x, *self.patterns[:2])
        self._lengths = [function.n_instructions() for function in self.functions]
        self._needs_parts = sum(self._lengths) > _MAX_UNSPLIT_INSTRUCTIONS
        self.library = load(self._source, _MODEL_FLAGS) if compiled or _find_evaluate_address() is None else None
        self._can_compile = may_compile and self.library is None
        self._local = threading.local()
        self.free_pools: list[Array] = []
        """Pools without a reader, for reuse."""
        self.large_steps: list[ref[StoredSteps]] = []
        """Steps in larger pools."""
        self._step_counts: dict[tuple[bytes, int], int] = {}  # numbers of all steps, by output times and lanes
        self.n_evaluated_operations = 0.0
        """Number of operations in all evaluations of the functions."""
        self._backward_operations = 0.0
        self.spent_seconds = 0.0
        """Seconds of computing time in the compiled integrator."""

    @property
    def is_compiled(self) -> bool:
        """Whether the functions are compiled."""
        return self.library is not None

    @cached_property
    def _source(self) -> str:
        generator = ca.CodeGenerator("model.c", {"with_header": False, "avoid_stack": self._needs_parts})
        for function in self.functions:
            generator.add(function)
        return split_work_arrays(generator.dump()) if self._needs_parts else generator.dump()

    @property
    def is_worth_compiling(self) -> bool:
        """Whether the functions were compiled before, or evaluating them has taken as long as a compilation."""
        spent = _COMPILED_GAIN_SECONDS * self.n_evaluated_operations
        if self.library is not None or not (self._needs_parts or spent > _COMPILE_COST_SECONDS[0]):
            return False  # even generating the source would not pay
        return self._is_compiled or spent > _COMPILE_COST_SECONDS[0] + _COMPILE_COST_SECONDS[1] * len(self._source)

    @cached_property
    def _is_compiled(self) -> bool:
        return is_compiled(self._source, _MODEL_FLAGS)

    def count(self, counts: Integers, stages: int, *, has_directions: bool) -> int:
        """Add the evaluations in counts (L, 5) of an integration to `evaluated`, and return its number of steps."""
        n_steps, _, evaluations, *_ = np.add.reduce(counts).tolist()
        rates, jacobian, slopes = self._lengths
        self._backward_operations = (
            n_steps * (stages - 1) * slopes
        )  # of the same steps along directions, or on the way back
        self.n_evaluated_operations += evaluations * rates + (
            self._backward_operations if has_directions else n_steps * jacobian
        )
        return n_steps

    def make_room(self, room: int) -> None:
        """Release the oldest steps in large pools until there is room for `room` numbers."""
        with _LOCK:
            live_steps = [steps for reference in self.large_steps if (steps := reference()) is not None]
            while live_steps and sum(steps.buffers[0].size for steps in live_steps) + room > _MAX_STORED_NUMBERS:
                live_steps.pop(0).release()
            self.large_steps = [ref(steps) for steps in live_steps]

    def integrate(
        self,
        lanes: Lanes,
        grid: Array,
        method: Tableau,
        control: StepSizes,
        *,
        stops: NDArray[np.int8] | None = None,
        skip: NDArray[np.bool_] | None = None,
        directions: tuple[Array, Array, Array | None] | None = None,
        keep: bool = False,
        follow: StoredSteps | None = None,
        pair: Tableau | None = None,
    ) -> IntegrationOutcome:
        """Integrate lanes over output times grid (m,), with sensitivities along `directions` if there are any.

        Steps are those of `pair` instead where nothing is stiff, if it is given; then there are no algebraic states.
        Algebraic states are consistent.  stops (L, m) tells what the inputs do at the end of an interval: 1 for a kink,
        2 for a jump.  skip (L,) are lanes that are left out, and NaN.  directions are dx0 (L, n_x, n_d),
        dp (L, n_p, n_d), and how starts and durations move, (2, L, n_d) or None.  Steps are kept, with `keep` whatever
        room they take, for another call that is to `follow` them, for the same lanes with directions.
        """
        size, m = lanes.size, grid.size
        dx0, dp, spans = directions if directions is not None else (None, None, None)
        n_d = 0 if dx0 is None else dx0.shape[2]
        x, z = np.full((size, m, self.n_x), np.nan), np.full((size, m, self.n_z), np.nan)
        dx = None if dx0 is None else np.full((size, m, self.n_x, n_d), np.nan)
        code, failed_equations, failure_times = (
            np.zeros(size, dtype=np.int64),
            np.full(size, -1, dtype=np.int64),
            np.zeros(size),
        )
        counts, steps = np.zeros((size, 5), dtype=np.int64), np.zeros(control.max_steps if size == 1 else 0)
        unit = np.ones((size, self.n_x + self.n_z)) if lanes.unit is None else lanes.unit
        input_stops = np.zeros((size, m), dtype=np.int8) if stops is None else stops
        skipped = np.zeros(size, dtype=np.int8) if skip is None else skip.astype(np.int8)
        of_time = (None, None) if spans is None else (spans[0], spans[1])
        lane_arrays = [np.ascontiguousarray(a, dtype=np.float64) for a in
                 (grid, lanes.start, lanes.duration, lanes.x0, lanes.z0, lanes.p, lanes.u, unit)]  # fmt: skip
        direction_arrays = [
            None if a is None else np.ascontiguousarray(a, dtype=np.float64) for a in (dx0, dp, *of_time)
        ]
        input_stops = np.ascontiguousarray(input_stops)
        table, call = _c_tableau(method), integrator().castfit_integrate
        replay, is_single_threaded = control.replay, threads() is None or size == 1
        settings, stored_steps = (self, grid, method, pair, control), None
        explicit = None if pair is None else ctypes.addressof(_c_tableau(pair)[0])
        if is_single_threaded and directions is None:
            stored_steps = StoredSteps(
                lanes, settings, self, self._step_counts.get((grid.tobytes(), size), 0) if keep else 0
            )
        elif is_single_threaded and follow is not None and follow.matches(lanes, settings):
            stored_steps = follow

        def pieces(first_lane: int, end_lane: int) -> Iterator[None]:
            """Integrate some of the lanes; yield before each piece of work, so that the caller checks the deadline."""
            lane_slice, storage = slice(first_lane, end_lane), None if stored_steps is None else stored_steps.buffers
            store = _NO_STORE if storage is None else (
                _address(storage[0]), storage[0].size, int(directions is not None), _address(storage[1])
            )  # fmt: skip
            workspace = self.workspace()
            inputs: tuple[Any, ...] = *lane_arrays[1:], input_stops, *direction_arrays, skipped
            outputs: tuple[Any, ...] = x, z, dx, code, failed_equations, counts, failure_times
            if end_lane - first_lane < size:
                inputs, outputs = (
                    tuple([None if a is None else a[lane_slice] for a in arrays]) for arrays in (inputs, outputs)
                )
            task = _CTask(
                end_lane - first_lane, m, n_d, control.max_steps, control.relative, control.absolute, control.newton,
                control.watch, *map(_address, (lane_arrays[0], *inputs)), explicit, *map(_address, (replay, steps)),
                steps.size, *store, *map(_address, outputs),
            )  # fmt: skip
            lane, addresses = 0, (ctypes.addressof(workspace.model), ctypes.addressof(table[0]), ctypes.addressof(task))
            while lane < end_lane - first_lane:
                yield
                lane = call(*addresses, lane, _STEPS_PER_CALL)

        self.compile_if_worthwhile()
        self.workspace()  # so that it is not made further down
        start_time = thread_time()
        for _ in self._run_pieces(pieces, size):
            check_deadline()
        self.spent_seconds += thread_time() - start_time
        stages = max(method.stages, 0 if pair is None else pair.stages)
        n_steps = self.count(counts, stages, has_directions=dx is not None)
        key = grid.tobytes(), size
        room = n_steps * (_STEP_HEADER_SIZE + (stages + 1) * (self.n_x + self.n_z))
        self._step_counts[key] = max(room, int(_ROOM_DECAY * self._step_counts.get(key, 0)))  # others have the same key
        return IntegrationOutcome(
            x,
            z,
            dx,
            code,
            failure_times,
            failed_equations,
            counts,
            steps[: counts[0, 0]] if size else steps,
            stored_steps,
        )

    def pull(
        self,
        lanes: Lanes,
        grid: Array,
        method: Tableau,
        control: StepSizes,
        seeds: Array,
        *,
        stops: NDArray[np.int8] | None = None,
        skip: NDArray[np.bool_] | None = None,
        follow: StoredSteps | None = None,
        pair: Tableau | None = None,
    ) -> AdjointSums:
        """Differentiate  sum seeds (L, m, n_x, n_a) * x  over lanes, as `integrate` has them without directions.

        Stored steps are followed; without them lanes are integrated again.
        """
        size, m, n_a = lanes.size, grid.size, seeds.shape[3]
        x0, p, start, duration = (
            np.full(shape, np.nan) for shape in ((size, self.n_x, n_a), (size, self.n_p, n_a), (size, n_a), (size, n_a))
        )
        code, failed_equations, failure_times = (
            np.zeros(size, dtype=np.int64),
            np.full(size, -1, dtype=np.int64),
            np.zeros(size),
        )
        lane_arrays: dict[str, NDArray[Any]] = {
            **{name: getattr(lanes, name) for name in ("start", "duration", "x0", "z0", "p", "u")},
            "unit": np.ones((size, self.n_x + self.n_z)) if lanes.unit is None else lanes.unit,
        }
        lane_arrays = {name: np.ascontiguousarray(a, dtype=np.float64) for name, a in lane_arrays.items()}
        lane_arrays["stops"] = np.ascontiguousarray(np.zeros((size, m), dtype=np.int8) if stops is None else stops)
        lane_arrays["skip"] = np.zeros(size, dtype=np.int8) if skip is None else skip.astype(np.int8)
        is_single_threaded = threads() is None or size == 1
        stored_steps = (
            follow
            if is_single_threaded and follow is not None and follow.matches(lanes, (self, grid, method, pair, control))
            else None
        )
        grid, seeds = (np.ascontiguousarray(a, dtype=np.float64) for a in (grid, seeds))
        table, explicit = _c_tableau(method)[0], None if pair is None else ctypes.addressof(_c_tableau(pair)[0])

        def pieces(first_lane: int, end_lane: int) -> Iterator[None]:
            lane_slice, count = slice(first_lane, end_lane), end_lane - first_lane
            scratch_arrays = {  # what the lane is integrated into if there are no steps
                "x": np.empty((count, m, self.n_x)),
                "z": np.empty((count, m, self.n_z)),
                "counts": np.zeros((count, 5), dtype=np.int64),
            }
            arrays = {
                name: a[lane_slice]
                for name, a in (lane_arrays | {"code": code, "which": failed_equations, "where": failure_times}).items()
            }
            pointers = {name: _address(a) for name, a in (arrays | scratch_arrays).items()}
            task = _CTask(
                lanes=count, m=m, max_steps=control.max_steps, relative=control.relative, absolute=control.absolute,
                newton=control.newton, grid=_address(grid), pair=explicit, **pointers,
            )  # fmt: skip
            storage = None if stored_steps is None else stored_steps.buffers
            if storage is not None:
                task.pool, task.room, task.kept = _address(storage[0]), storage[0].size, _address(storage[1])
            sums = _CSums(
                n_a, *(_address(a[lane_slice]) for a in (seeds, x0, p, start, duration)), _MAX_ADJOINT_NUMBERS
            )
            lane, workspace = 0, self.workspace()
            while lane < count:
                yield
                addresses = (ctypes.addressof(structure) for structure in (workspace.model, table, task, sums))
                lane = integrator().castfit_pull(*addresses, lane, _STEPS_PER_CALL)

        self.compile_if_worthwhile()
        self.workspace()  # so that it is not made further down
        start_time = thread_time()
        for _ in self._run_pieces(pieces, size):
            check_deadline()
        self.spent_seconds += thread_time() - start_time
        self.n_evaluated_operations += self._backward_operations
        return AdjointSums(x0, p, start, duration, code, failure_times, failed_equations)

    def compile_if_worthwhile(self) -> None:
        """Compile the functions if that pays by now."""
        if self._can_compile and self.is_worth_compiling:
            self._can_compile = False
            with suppress(CompilationError), progress_line(None, keep=False) as line:
                if line is not None:
                    line(f"compiling the model's {self.n_x + self.n_z} equations")
                self.library = load(self._source, _MODEL_FLAGS)

    def workspace(self) -> _Workspace:
        """Return the workspace of this thread, for the compiled functions if they are compiled by now."""
        workspace = getattr(self._local, "workspace", None)
        if workspace is None or workspace.library is not self.library:
            with _LOCK:  # CasADi counts references without one
                workspace = self._local.workspace = _Workspace(self)
        return workspace

    @staticmethod
    def _run_pieces(pieces: Callable[[int, int], Iterator[None]], size: int) -> Iterator[None]:
        """Return the pieces of work on all lanes; none are left if threads have done them."""
        shared = threads()
        if shared is None or size == 1:
            return pieces(0, size)
        shared.run(
            lambda first_lane, end_lane: deque(pieces(first_lane, end_lane), 0), size
        )  # the owner of the threads checks the deadline
        return iter(())


_MODELS: WeakKeyDictionary[ca.Function, dict[str, NativeModel]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def native_model(graph: ca.Function, compilation: str) -> NativeModel:
    """Return the functions of a model, the same ones for the same graph.

    compilation is "never", "deserved" (later, if ever), "auto" (where it works) or "always".

    Raises CompilationError: if they must be compiled and that fails.
    """
    with _LOCK:
        models = _MODELS.setdefault(graph, {})
        compiles_now = compilation in ("auto", "always")
        mode = "auto" if compiles_now else compilation
        if mode not in models:
            try:
                models[mode] = NativeModel(graph, compiled=compiles_now, may_compile=compilation == "deserved")
            except CompilationError:
                if compilation == "always":
                    raise
                models[mode] = NativeModel(graph, compiled=False)
        if compilation == "always" and not models[mode].is_compiled:
            models[mode] = NativeModel(graph, compiled=True)
        return models[mode]


class _Workspace:
    """Input and output arrays of a model's functions, for one thread."""

    def __init__(self, model: NativeModel) -> None:
        patterns, library, order = model.patterns, model.library, model.elimination
        self.library = library
        n, entries, slopes = model.n_x + model.n_z, patterns[0].size, patterns[2].size
        t, y, p, u, du = (np.zeros(max(k, 1)) for k in (1, n, model.n_p, model.n_u, model.n_u))
        f, j, slope_j, by_p, by_t = (np.zeros(max(k, 1)) for k in (n, entries, entries, slopes, n))
        input_arrays, output_arrays = [t, y[: model.n_x], y[model.n_x :], p, u, du], ([f], [j], [slope_j, by_p, by_t])
        self._references: list[Any] = [
            *input_arrays,
            y,
            *(a for arrays in output_arrays for a in arrays),
            patterns,
            library,
            order,
        ]
        c_functions: list[_CFunction] = []
        for function, arrays in zip(model.functions, output_arrays, strict=True):
            if library is None:
                c_functions.append(self._build_buffered_call(function, input_arrays, arrays))
            else:
                c_functions.append(self._build_compiled_call(function, library, input_arrays, arrays))
        lists: list[Integers | None] = []
        for name in _ELIMINATION_FIELDS:
            lists.append(None if order is None else getattr(order, name))
        self.model = _Model(
            model.n_x, model.n_z, model.n_p, model.n_u, entries, slopes, *map(_address, patterns), *c_functions,
            *map(_address, (t, y, p, u, du, f, j, slope_j, by_p, by_t)),
            int(model.depends_on_time),
            *((0, 0) if order is None else (order.entry_columns.size, order.tail)),
            *map(_address, lists),
        )  # fmt: skip

    def _build_buffered_call(
        self, function: ca.Function, input_arrays: list[Array], output_arrays: list[Array]
    ) -> _CFunction:
        """Set up a function to be evaluated by CasADi."""
        handle: Any = function.buffer()
        buffer = handle[0]
        for i in range(function.n_in()):
            if function.nnz_in(i):
                buffer.set_arg(i, memoryview(cast("Any", input_arrays[i])))
        for i, array in enumerate(output_arrays):
            if function.nnz_out(i):
                buffer.set_res(i, memoryview(cast("Any", array)))
        self._references.append(buffer)
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        return _CFunction(None, None, None, None, None, _find_evaluate_address(), address(buffer._self(), None))

    def _build_compiled_call(
        self, function: ca.Function, library: ctypes.CDLL, input_arrays: list[Array], output_arrays: list[Array]
    ) -> _CFunction:
        """Call a compiled function."""
        arguments, results = (
            (ctypes.c_void_p * max(size, len(arrays)))(*map(_address, arrays))
            for size, arrays in ((function.sz_arg(), input_arrays), (function.sz_res(), output_arrays))
        )
        integers, work = np.zeros(function.sz_iw() + 1, dtype=np.int64), np.zeros(function.sz_w() + 1)
        self._references += [arguments, results, integers, work]
        return _CFunction(
            ctypes.cast(getattr(library, function.name()), ctypes.c_void_p).value,
            ctypes.addressof(arguments),
            ctypes.addressof(results),
            _address(integers),
            _address(work),
            None,
            None,
        )


class PreparedTask:
    """Repeated integration of the same lanes (L,) over output times grid (m,), with arrays that are allocated once.

    counts (L, 5) : as of an `IntegrationOutcome`, of the last call;  stops (L, m) as of `NativeModel.integrate`
    """

    def __init__(self, stepper: CompiledStepper, grid: Array, lanes: Lanes, stops: NDArray[np.int8] | None) -> None:
        self.stepper, control, size = stepper, stepper.control, lanes.size
        self.settings = stepper.model, grid, stepper.method, stepper.pair, control
        self.counts = np.zeros((size, 5), dtype=np.int64)
        self._code, self._equation_index, self._failure_times = (
            np.zeros(size, dtype=np.int64),
            np.full(size, -1),
            np.zeros(size),
        )
        self._z = np.empty((size, grid.size, stepper.model.n_z))
        arrays: dict[str, NDArray[Any]] = {name: getattr(lanes, name) for name in ("start", "duration", "z0", "u")}
        arrays |= {
            "grid": grid,
            "unit": np.ones((size, stepper.model.n_x + stepper.model.n_z)) if lanes.unit is None else lanes.unit,
            "stops": np.zeros((size, grid.size), dtype=np.int8) if stops is None else stops,
            "skip": np.zeros(size, dtype=np.int8),
        }
        arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
        arrays |= {
            "code": self._code,
            "which": self._equation_index,
            "where": self._failure_times,
            "counts": self.counts,
            "z": self._z,
        }
        self._task = _CTask(
            lanes=size, m=grid.size, max_steps=control.max_steps, relative=control.relative,
            absolute=control.absolute, newton=control.newton, watch=control.watch,
            pair=None if stepper.pair is None else ctypes.addressof(_c_tableau(stepper.pair)[0]),
            **{name: _address(a) for name, a in arrays.items()},
        )  # fmt: skip
        self._arrays, self._addresses = (
            arrays,
            (ctypes.addressof(_c_tableau(stepper.method)[0]), ctypes.addressof(self._task)),
        )
        self._call = integrator().castfit_integrate

    def run(
        self,
        x0: Array,
        p: Array,
        x: Array,
        stored_steps: StoredSteps | None,
        directions: tuple[Array, Array, Array] | None,
    ) -> bool:
        """Integrate from x0 (L, n_x) with p (L, n_p) into x (L, m, n_x); return whether all lanes succeeded.

        Steps are stored, and followed along directions: dx0 (L, n_x, n_d) and dp (L, n_p, n_d), into dx
        (L, m, n_x, n_d).
        """
        task, outputs = self._task, [x]
        task.x0, task.p, task.x = _address(x0), _address(p), _address(x)
        task.pool = task.kept = task.dx = None
        task.n_d, task.follow = 0, int(stored_steps is not None and directions is not None)
        storage = None if stored_steps is None else stored_steps.buffers
        if storage is not None:
            task.pool, task.room, task.kept = _address(storage[0]), storage[0].size, _address(storage[1])
        if directions is not None:
            task.dx0, task.dp, task.dx = map(_address, directions)
            task.n_d = directions[0].shape[2]
            outputs.append(directions[2])
        self.stepper.model.compile_if_worthwhile()
        workspace, call, lane, size = self.stepper.model.workspace(), self._call, 0, x.shape[0]
        addresses = (ctypes.addressof(workspace.model), *self._addresses)
        self._code.fill(FINE)
        self.counts.fill(0)
        start_time = thread_time()
        while lane < size:
            check_deadline()
            lane = call(*addresses, lane, _STEPS_PER_CALL)
        self.stepper.model.spent_seconds += thread_time() - start_time
        self.stepper.model.count(self.counts, self.stepper.method.stages, has_directions=directions is not None)
        if np.logical_or.reduce(self._code):
            return False
        return all([np.logical_and.reduce(np.isfinite(array), axis=None) for array in outputs])

    def outcome(self, x: Array, stored_steps: StoredSteps | None) -> IntegrationOutcome:
        """Return the outcome of the last call."""
        status_arrays = self._code.copy(), self._failure_times.copy(), self._equation_index.copy(), self.counts.copy()
        return IntegrationOutcome(x, self._z, None, *status_arrays, np.empty(0), stored_steps)


@cache
def integrator() -> ctypes.CDLL:
    """Return the compiled integrator: `castfit_integrate`, and `castfit_pull`, which goes back over its steps.

    It is the library that castfit was built with, or one compiled on this machine.

    Raises CompilationError: if there is no compiler, or it fails.
    """
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("esdirk*.c")))
    library = bundled_library(source, _FOLDER, "esdirk") or load(source, _FLAGS)
    for call, addresses in ((library.castfit_integrate, 3), (library.castfit_pull, 4)):
        call.restype, call.argtypes = ctypes.c_int64, (ctypes.c_void_p,) * addresses + (ctypes.c_int64,) * 2
    return library


@cache
def missing_integrator_reason() -> str:
    """Return the reason why the compiled integrator is unavailable; empty if it is available."""
    try:
        integrator()
    except CompilationError as error:
        return str(error)
    return "no C compiler was found" if _find_evaluate_address() is None and find_compiler() is None else ""


def wanted_compiler() -> str:
    """Return a note that a C compiler would make integration faster; empty if one works."""
    missing = missing_integrator_reason()
    return f"Integration would be faster with a C compiler, such as gcc or clang: {missing}." if missing else ""


@cache
def _find_evaluate_address() -> int | None:
    """Return the address of CasADi's buffer evaluation; None if its library has no such symbol."""
    for path in sorted(Path(ca.__file__).parent.glob("libcasadi.*")):
        try:
            return ctypes.cast(getattr(ctypes.CDLL(str(path)), _EVALUATE_SYMBOL), ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


@cache
def _c_tableau(method: Tableau) -> tuple[_CTableau, list[Array]]:
    """Return the C structure of a method, and the arrays that it refers to."""
    arrays = [np.ascontiguousarray(a) for a in (method.a, method.c, method.error, method.dense, method.predict)]
    return _CTableau(method.stages, method.embedded_order + 1, method.gamma, *map(_address, arrays)), arrays


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.__array_interface__["data"][0]


def _dense_entries(matrix: ca.SX) -> ca.SX:
    """Return the entries of a sparse matrix."""
    return ca.densify(ca.vertcat(*cast("list[ca.SX]", matrix.nonzeros())))


def _pattern_entries(matrix: ca.SX) -> tuple[Integers, Integers]:
    """Return rows and columns of the entries of a sparse matrix."""
    rows, columns = matrix.sparsity().get_triplet()
    return np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)


class CompiledStepper:
    """The compiled method for one model, a graph (t, x, z, p, u) -> (ode, alg) whose states have these names.

    explicit : whether steps of an ODE are explicit where it is not stiff

    Raises CompilationError: if the model cannot be compiled although it has to.
    """

    def __init__(
        self, graph: ca.Function, names: Sequence[str], options: IntegratorOptions, *, explicit: bool = False
    ) -> None:
        self.model = native_model(graph, options.compile)
        self._names = tuple(names)
        self.control = StepSizes(options.relative_tolerance, options.absolute_tolerance, options.max_steps)
        if not options.watch_sensitivities:
            self.control = replace(self.control, watch=0.0)
        self.method = method_for(options.relative_tolerance)
        self.pair = TSITOURAS5 if explicit and not self.model.n_z else None

    def record_failures(
        self, outcome: IntegrationOutcome | AdjointSums, skip: Mask, failures: dict[int, LaneFailure]
    ) -> None:
        """Add the reasons of failed lanes to `failures`, non-finite results included."""
        for lane in np.flatnonzero(outcome.code != FINE).tolist():
            code, equation = int(outcome.code[lane]), int(outcome.equation_index[lane])
            cause, detail = _CAUSES[code]
            if code == NOT_FINITE and equation >= 0:
                detail = f"NaN or Inf in the equation of {self._names[equation]}"
            failures[lane] = LaneFailure(lane, cause, f"{detail}, at t = {outcome.where[lane]:g}")
        parts = outcome.arrays
        if not all(np.isfinite(part).all() for part in parts):
            flat = [part.reshape(skip.size, -1) for part in parts]
            is_bad = ~np.logical_and.reduce([np.isfinite(part).all(axis=1) for part in flat]) & ~skip
            for lane in np.flatnonzero(is_bad).tolist():
                failures.setdefault(lane, LaneFailure(lane, "not_finite", "the result is not finite"))


_FIFTH_ORDER_RTOL = 1e-5
"""Relative tolerance up to which the fifth-order method with seven stages pays.

Milliseconds of a sweep at 1e-6 by order 4 / 5, and its error in 1e-6: stat5 0.7 / 0.8, 4.4 / 0.5; three-step 5.8 / 6.2,
9.9 / 2.1; calcium 1.3 / 1.5, 7 / 3; HIV 4.3 / 6.0, 64 / 17; Elowitz 9.2 / 7.5, 8 / 1; Boehm 1.5 / 2.0, 0.06 / 0.001.
"""


def method_for(relative_tolerance: float) -> Tableau:
    """Return the cheapest method for a tolerance."""
    return ESDIRK4 if relative_tolerance > _FIFTH_ORDER_RTOL else ESDIRK5


def forced_step_ends(lanes: Lanes, grid: Array) -> NDArray[np.int8]:
    """Mark times where steps must end because of the inputs, (L, m).

    1 if the cubic changes without a jump, 2 for a jump, 0 elsewhere.
    """
    out = np.zeros((lanes.size, grid.size), dtype=np.int8)
    if grid.size < 2:
        return out
    widths = lanes.duration[:, None] * np.diff(grid, prepend=0.0)
    is_changed = input_discontinuities(lanes.u, widths)
    out[:, :-1] = np.where(is_changed[..., 0].any(axis=2), 2, is_changed.any(axis=(2, 3)))
    return out
