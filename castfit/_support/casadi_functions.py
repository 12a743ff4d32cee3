"""CasADi's integrators: built in relative time, compiled in a folder that goes away, called through fixed arrays."""

from __future__ import annotations

import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import casadi as ca
import numpy as np
from numpy.typing import NDArray

K = TypeVar("K")
V = TypeVar("V")

_SHORTEST_STEP = 1e-14  # of a lane's duration
# Integrator steps between two checkpoints of an adjoint integration: memory for as many states.
_STEPS_PER_CHECKPOINT = 1000
_SCALING_EXPONENT_BITS = 520  # power of two, about half of the largest exponent of a floating-point number


def build_integrator(
    graph: ca.Function, method: str, grid: tuple[float, ...], options: dict[str, Any], *, backward: bool = False
) -> ca.Function:
    """Build an integrator over tau in [0, 1] from a function (t, x, z, p, u) -> (ode, alg).

    Its states are  x / x_unit  and  z / z_unit, its equations  0 = alg / alg_unit, its parameters (q, x_unit, z_unit,
    alg_unit) with q = (p, start, duration).  Its inputs, constant on every grid interval, are (edge, cubics): with
    s = duration * (tau - edge)  the model's inputs are  u_i = sum_c cubics[c, i] s**c.

    For `backward` integration, its parameters are (q / q_unit, x_unit, z_unit, alg_unit, q_unit): SUNDIALS
    holds the derivatives by all of them to one absolute tolerance.  That by start tells that the inputs do not move
    with it; those by units and inputs are zero.
    """
    n_x, n_z, n_p, n_u = (graph.size1_in(i) for i in (1, 2, 3, 4))
    x, z, q = (ca.SX.sym(name, n) for name, n in (("x", n_x), ("z", n_z), ("q", n_p + 2)))
    tau, edge, cubics = ca.SX.sym("tau"), ca.SX.sym("edge"), ca.SX.sym("cubics", 4, n_u)
    units = [ca.SX.sym(f"{prefix}_unit", n) for prefix, n in {"x": n_x, "z": n_z, "alg": n_z, "q": n_p + 2}.items()]
    units = units if backward else units[:-1]
    x_unit, z_unit, alg_unit, *q_unit = map(_clip_extreme, units) if backward else units
    p, start, duration = ca.vertsplit(q_unit[0] * q if q_unit else q, [0, n_p, n_p + 1, n_p + 2])
    c = _clip_extreme(cubics) if backward else cubics
    s = duration * (tau - _clip_extreme(edge)) + (start - _clip_extreme(start)) if backward else duration * (tau - edge)
    u = (c[0, :] + s * (c[1, :] + s * (c[2, :] + s * c[3, :]))).T
    ode, alg = graph(start + duration * tau, x_unit * x, z_unit * z, p, u)
    dae = {"t": tau, "x": x, "p": ca.vertcat(q, *units), "ode": duration / x_unit * ode}
    if n_z:
        dae |= {"z": z, "alg": alg / alg_unit}
    if n_u:
        dae["u"] = ca.vertcat(edge, ca.vec(cubics))
    return ca.integrator("integrator", "cvodes" if method == "adams" else method, dae, 0.0, list(grid), options)


def _clip_extreme(values: ca.SX) -> ca.SX:
    """Return values, |v| < 1e150, unchanged up to the 140th decimal, but with a zero derivative.

    CasADi differentiates by whatever is an argument of an integrator, under error control.  The derivative by a unit is
    a difference of equal numbers: rounding errors of size 1 / unit, which no step is short enough to bring below a
    tolerance.  The derivative of `floor` is zero, and all floating-point numbers above 2**53 are integers.
    """
    return ca.floor(values * 2.0**_SCALING_EXPONENT_BITS) * 2.0**-_SCALING_EXPONENT_BITS


def plugin_options(
    method: str,
    *,
    dae: bool,
    relative_tolerance: float,
    absolute_tolerance: float,
    max_steps: int,
    elements: int,
    backward: bool = False,
    watched: bool = True,
) -> dict[str, Any]:
    """Return CasADi's options for one of its integrators.

    `dae` tells whether there are algebraic states, `backward` whether SUNDIALS is to integrate adjoint states,
    `watched` whether its error control is to see sensitivities.
    """
    if method == "collocation":
        return {
            "number_of_finite_elements": elements,
            "interpolation_order": 3,
            "collocation_scheme": "radau",
            # Without the check CasADi's Newton method takes NaN for convergence and returns where it started.
            "rootfinder_options": {"error_on_fail": True, "regularity_check": True},
        }
    options: dict[str, Any] = {"reltol": relative_tolerance, "abstol": absolute_tolerance, "max_num_steps": max_steps}
    if method in ("cvodes", "adams", "idas"):
        # Otherwise the adjoint's parameter gradient is not error controlled and can be wrong by any factor.
        options["quad_err_con"] = True
        if not watched:
            options["fsens_err_con"] = False
        # For an ODE sensitivities cost twice as much with the correction and are no more accurate; for a DAE Newton's
        # method fails without it.
        options["second_order_correction"] = dae
        if backward:
            # By default every 20 steps: all but the last of these stretches are integrated twice on the way back.
            options["steps_per_checkpoint"] = _STEPS_PER_CHECKPOINT
    if method == "adams":
        options["linear_multistep_method"] = "adams"
    if method in ("cvodes", "adams"):
        options["min_step_size"] = _SHORTEST_STEP  # a pole ends the integration at once, not after max_steps
    return options


class BufferedFunction:
    """A CasADi function whose arguments and results are NumPy arrays that it reads and writes in place.

    Ten outputs of the calcium model take 76 us in this way and 260 us by ``function(x0=..., p=...)``.
    Matrices are transposed: CasADi's (rows, columns) by columns is NumPy's (columns, rows).  Not for threads.

    Attributes
    ----------
    arguments, results : dict from name to (columns, rows) array
        Fill `arguments` before the call, copy from `results` after it.
    """

    def __init__(self, function: ca.Function, results: tuple[str, ...]) -> None:
        buffer, self._run = cast("Any", function.buffer())
        self._buffer = buffer
        self.arguments = {n: np.zeros(function.size_in(n)[::-1]) for n in function.name_in() if function.nnz_in(n)}
        self.results = {n: np.zeros(function.size_out(n)[::-1]) for n in results}
        for name, array in self.arguments.items():
            if array.size:
                buffer.set_arg(function.index_in(name), memoryview(cast("Any", array)))
        for name, array in self.results.items():
            if array.size:
                buffer.set_res(function.index_out(name), memoryview(cast("Any", array)))

    def __call__(self) -> None:
        """Evaluate; raises RuntimeError where CasADi says that it failed, in either of its two ways."""
        self._run()
        if self._buffer.ret() != 0:  # CasADi's Rosenbrock integrator: no exception, and the old results in place
            raise RuntimeError("evaluation failed")


_MAX_CACHED_SHAPES = 16  # largest number of argument shapes whose array views are cached
# Largest number of points evaluated at once: larger buffers would exceed the memory of the points.
_MAX_POINTS_PER_CALL = 8192
_MAX_BUFFER_ENTRIES = 2**22  # largest number of entries in an output buffer
_SPARSE = (
    1024,
    0.25,
)  # entries of a matrix from which zeros are left out, where no more than this part is something else


class BatchedFunction:
    """A matrix expression as a function of arrays of points (..., size); the next call overwrites its results.

    places : rows and columns of the entries that are computed, (k,) each, row by row: of a large sparse matrix those
        that may differ from zero, else all
    """

    def __init__(self, name: str, arguments: Sequence[ca.SX], expression: ca.SX) -> None:
        self.empty = expression.nnz() == 0
        self._sizes = [a.numel() for a in arguments]
        self._shape = rows, columns = expression.shape
        # CasADi stores by columns, so the transpose arrives by rows.
        transposed = ca.cse(expression.T)
        min_entries, max_density = _SPARSE
        self._sparse = rows * columns >= min_entries and 0 < expression.nnz() <= max_density * rows * columns
        if not self._sparse:
            transposed = ca.densify(transposed)
        column, row = (np.array(indices, dtype=np.intp) for indices in transposed.sparsity().get_triplet())
        self.places, self._flat = (row, column), row * columns + column
        names = [f"i{i}" for i in range(len(arguments))]
        output: Any = ca.vertcat(*cast("list[ca.SX]", transposed.nonzeros())) if self._sparse else transposed
        self._function = ca.Function(name, list(arguments), [output], names, ["out"])
        self._buffered: dict[int, BufferedFunction] = {}
        self._views_by_shape: dict[
            tuple[tuple[int, ...], ...], tuple[BufferedFunction, list[tuple[int, NDArray[Any]]], NDArray[Any]]
        ] = {}

    def entries(self, *points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the entries at `places`, (..., k)."""
        return self(*points, as_matrices=False)

    def __call__(self, *points: NDArray[np.float64], as_matrices: bool = True) -> NDArray[np.float64]:
        """Return the matrices, (..., rows, columns), or their entries alone."""
        shapes = tuple([array.shape[:-1] for array in points])
        if not self._sparse and shapes in self._views_by_shape:
            evaluate, views, values = self._views_by_shape[shapes]
            for i, view in views:
                view[...] = points[i]
            evaluate()
            return values if as_matrices else values.reshape(*values.shape[:-2], -1)
        batch_shape = np.broadcast_shapes(*shapes)
        n_points = int(np.prod(batch_shape))
        max_points = max(1, min(_MAX_POINTS_PER_CALL, _MAX_BUFFER_ENTRIES // max(self._flat.size, 1)))
        if n_points > max_points and n_points <= max_points * batch_shape[0]:
            return self._in_parts(points, batch_shape, n_points, max_points, as_matrices=as_matrices)
        if n_points not in self._buffered:
            self._buffered[n_points] = BufferedFunction(self._function.map(n_points), ("out",))
        evaluate = self._buffered[n_points]
        views = [(i, evaluate.arguments[f"i{i}"].reshape(*batch_shape, n)) for i, n in enumerate(self._sizes) if n]
        for i, view in views:
            view[...] = points[i]
        evaluate()
        values = evaluate.results["out"].reshape(*batch_shape, -1)
        if not self._sparse:
            if len(self._views_by_shape) >= _MAX_CACHED_SHAPES:
                self._views_by_shape.clear()
            self._views_by_shape[shapes] = evaluate, views, values.reshape(*batch_shape, *self._shape)
        if not as_matrices:
            return values
        if self._sparse:
            entries, values = values, np.zeros((*batch_shape, self._shape[0] * self._shape[1]))
            values[..., self._flat] = entries
        return values.reshape(*batch_shape, *self._shape)

    def _in_parts(
        self,
        points: Sequence[NDArray[np.float64]],
        batch_shape: tuple[int, ...],
        n_points: int,
        max_points: int,
        *,
        as_matrices: bool,
    ) -> NDArray[np.float64]:
        """Evaluate at many points, at most so many at once."""
        shape = self._shape if as_matrices else self._flat.shape
        values = np.empty((n_points, *shape))
        # Arguments that are equal at all points are broadcast, not copied.
        flat = [np.broadcast_to(a, (*batch_shape, a.shape[-1])) for a in points]
        axis_length = batch_shape[0]
        chunk_length = max_points * axis_length // n_points
        for k in range(0, axis_length, chunk_length):
            chunk = [a[k : k + chunk_length] for a in flat]
            size = n_points // axis_length * chunk[0].shape[0]
            values[n_points // axis_length * k :][:size] = self(*chunk, as_matrices=as_matrices).reshape(size, *shape)
        return values.reshape(*batch_shape, *shape)


class PerObjectCache(threading.local, Generic[K, V]):
    """Per-thread cache of an object built for each key, such as the functions of a problem.

    Keys are weak references.  Values must not hold on to their keys, or neither is ever freed.
    """

    def __init__(self) -> None:
        self._values_by_key: WeakKeyDictionary[K, V] = WeakKeyDictionary()

    def get(self, key: K, build: Callable[[K], V]) -> V:
        """Return the value that `build` makes of the key, from the cache if present."""
        if key not in self._values_by_key:
            self._values_by_key[key] = build(key)
        return self._values_by_key[key]


class RecentObjectCache(threading.local, Generic[K, V]):
    """Per-thread cache of the most recent keys, for values that refer to their keys.

    max_size : largest number of keys in the cache of one thread
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values_by_key: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, build: Callable[[K], V]) -> V:
        """Return the value that `build` makes of the key, from the cache if present."""
        if key not in self._values_by_key:
            self._values_by_key[key] = build(key)
        self._values_by_key.move_to_end(key)
        while len(self._values_by_key) > self._max_size:
            self._values_by_key.popitem(last=False)
        return self._values_by_key[key]


def find_compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    for candidate in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        path = shutil.which(candidate) if candidate else None
        if path:
            return path
    return None
