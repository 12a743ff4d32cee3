"""The steady state as a function of parameters and of the state from which the model comes to rest.

    0 = G(w; p, a),    w = (x, z),    G = (ode, alg) with the rows of the laws' pivots replaced by  L (x − a)

Integration leads from a to where Newton's method takes over; what it finds is the steady state if integration had come
near it and it is stable: all eigenvalues but the zeros of the laws lie left of the imaginary axis.  By the implicit
function theorem  G_w dw = −G_p dp − G_a da,  and for weights v on w, with  G_w' lambda = v,

    sum_i v_i d2 w_i = −sum_k lambda_k d2 G_k(V, V),      V = (dw, dp, da).

Notation: n_x states, n_z algebraic states, n_w both, m laws, n_p parameters, n_d directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np
import scipy

from castfit._support.arrays import Array, Complex, Index, Mask
from castfit._support.casadi_functions import BufferedFunction, PerObjectCache
from castfit._support.pickling import Picklable
from castfit.experiment.steady.laws import ConservationLaws, conservation_laws, inactive_states
from castfit.experiment.steady.settle import SettlingState, relax, relaxation_integrator
from castfit.model.model import System

_solve: Any = np.linalg.solve
_lapack: Any = scipy.linalg.lapack  # a third of the time that NumPy's own functions take for such small matrices
_MAX_NEWTON_STEPS = 40  # largest number of Newton steps
_NEWTON_RTOL = 1e-13  # relative size of the last Newton step
_STAGNATION_RTOL = 1e-9  # relative size of the last Newton step if the steps no longer halve
_RATE_ROUNDING = 1e-9  # smaller rates, relative to the sum of their terms, count as zero
# Largest distance of the steady state from the last integrated point, relative to the magnitudes.
_MAX_NEWTON_DISTANCE = 0.05
_MAX_FIRST_STEP = 0.05  # largest first Newton step, relative to the magnitudes; otherwise the integration continues
# Smaller eigenvalues, relative to the fastest rate, count as zero (one per conservation law).
_ZERO_EIGENVALUE_RTOL = 1e-12
_MIN_DISTANCE = 1e-7  # distance from the steady state, relative to the magnitudes, below which integration stops
# If Newton's method reduces the slowest rate by more than this factor, that rate is zero at the steady state.
_MIN_RATE_RATIO = 0.1
_NOT_ISOLATED = "the steady state is not isolated: it depends on more than the conserved sums and parameters"


@dataclass(frozen=True)
class SteadyStateSolution:
    """Result of a steady-state search: variables w (n_w,), NaN if it failed, and the reason of a failure, else empty.

    matrix : (n_w, n_w) G_w at w
    eigenvalues : (n_x,) complex, of the Jacobian along the states, zeros of the laws included
    time : how long the integration was
    """

    w: Array
    matrix: Array
    eigenvalues: Complex
    time: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a steady state."""
        return not self.reason


class _SteadyStateFunctions:
    """F, its derivatives and steps of the integration on arrays, for one thread; `at` sets the parameters p (n_p,)."""

    def __init__(self, w: ca.SX, p: ca.SX, f: ca.SX, states: tuple[str, ...]) -> None:
        arguments, names, n_x = [w, p], ["w", "p"], len(states)
        # CasADi stores by columns, so the transpose arrives by rows.
        by_w, by_p = (ca.densify(ca.jacobian(f, v).T) for v in (w, p))
        self._both = BufferedFunction(ca.Function("both", arguments, [f, by_w], names, ["f", "j"]), ("f", "j"))
        self._slope = BufferedFunction(ca.Function("by_p", arguments, [by_p], names, ["j"]), ("j",))
        x, z = ca.vertsplit(w, [0, n_x, w.numel()])
        ode, alg = ca.vertsplit(f, [0, n_x, w.numel()])
        system = ca.Function("system", [ca.SX.sym("t"), x, z, p, ca.SX(0, 1)], [ode, alg])
        self.integrator = relaxation_integrator(system, states)

    def set_parameters(self, p: Array) -> _SteadyStateFunctions:
        """Take parameters."""
        for function in (self._both, self._slope):
            if "p" in function.arguments:
                function.arguments["p"][0] = p
        return self

    def evaluate(self, w: Array) -> tuple[Array, Array]:
        """Return F (n_w,) and its Jacobian (n_w, n_w)."""
        self._both.arguments["w"][0] = w
        self._both()
        results = self._both.results
        return results["f"][0].copy(), results["j"].copy()

    def by_p(self, w: Array) -> Array:
        """Return the derivative of F by p, (n_w, n_p)."""
        self._slope.arguments["w"][0] = w
        self._slope()
        return self._slope.results["j"].copy()


_FUNCTIONS: PerObjectCache[SteadyStateSolver, _SteadyStateFunctions] = PerObjectCache()
_LAST: PerObjectCache[SteadyStateSolver, list[tuple[tuple[bytes, bytes], SteadyStateSolution]]] = PerObjectCache()


@dataclass(frozen=True, eq=False)
class SteadyStateSolver(Picklable):
    """Steady-state problem of a model under given inputs u (n_u,), with a guess z_guess (n_z,) of the algebraic states.

    `equations` are (t, x, z, p, u) -> (ode, alg);  `idle` (n_x,) are states that begin and stay at zero.
    """

    equations: ca.Function
    u: Array
    z_guess: Array
    laws: ConservationLaws
    states: tuple[str, ...]
    idle: Mask
    time: float = field(default=0.0)

    @classmethod
    def from_system(
        cls, system: System, u: Array, z_guess: Array, p: Array, a: Array, vary: Mask, zero: Mask | None = None
    ) -> SteadyStateSolver:
        """Set up the equations; p and a are typical values, and laws hold for all values of the parameters `vary`.

        zero : (n_x,) the states that always begin at zero
        """
        ode = system.function("ode", ca.densify(system.ode))
        starts_at_zero = np.zeros(a.size, dtype=np.bool_) if zero is None else zero
        idle = inactive_states(ode, a, z_guess, p, u, zero=starts_at_zero, vary=vary)
        laws = conservation_laws(ode, a, z_guess, p, u, vary=vary, idle=idle)
        equations = system.function("equations", ca.densify(system.ode), ca.densify(system.alg))
        return cls(equations, u, z_guess, laws, system.state_names, idle)

    @property
    def n_x(self) -> int:
        """Number of differential states."""
        return len(self.states)

    def solve(self, p: Array, a: Array) -> SteadyStateSolution:
        """Find the steady state at parameters p (n_p,), coming from the state a (n_x,)."""
        key = (p.tobytes(), a.tobytes())
        cached = _LAST.get(self, lambda _: [])
        if not cached or cached[0][0] != key:
            cached[:] = [(key, self._solve(p, a))]
        return cached[0][1]

    def slopes(self, steady_state: SteadyStateSolution, p: Array, dp: Array, da: Array) -> Array:
        """Return dw (n_w, n_d) along directions dp (n_p, n_d), da (n_x, n_d)."""
        right_side = -self._functions.set_parameters(p).by_p(steady_state.w) @ dp
        right_side[self._pivots] = self.laws.coefficients @ da
        return _solve(steady_state.matrix, right_side)

    def adjoint(self, steady_state: SteadyStateSolution, p: Array, weight: Array) -> tuple[Array, Array, Array]:
        """Return the terms of the second derivatives of sum_i weight_i w_i.

        on_p (n_p,), on_a (n_x,), gradients by p and a; and bend (n_w + n_p, n_w + n_p), its Hessian along V = (dw, dp).
        """
        multiplier: Array = _solve(steady_state.matrix.T, weight)
        pivots = self._pivots
        on_a = self.laws.coefficients.T @ multiplier[pivots]
        multiplier[pivots] = 0.0
        on_p = -self._functions.set_parameters(p).by_p(steady_state.w).T @ multiplier
        second_derivatives: Any = self._second(steady_state.w, p, multiplier)
        return on_p, on_a, -np.asarray(second_derivatives, dtype=float)

    @cached_property
    def _pivots(self) -> Index:
        return np.array(self.laws.pivots, dtype=np.intp)

    @cached_property
    def _used(self) -> Index:
        """Parameters on which the equations depend; others, such as scales of outputs without data, may be NaN."""
        return np.unique(
            np.array([j for i in (0, 1) for j in self.equations.jac_sparsity(i, 3).get_col()], dtype=np.intp)
        )

    # How it is found

    def _solve(self, p: Array, a: Array) -> SteadyStateSolution:
        functions = self._functions.set_parameters(p)
        if not (np.isfinite(p[self._used]).all() and np.isfinite(a).all()):
            return self._none("parameters or initial values cannot be computed")
        w = self._consistent(np.concatenate([a, self.z_guess]), functions.evaluate)
        if w is None:
            return self._none("no solution of the algebraic equations was found near their guess")
        reason, state = "", None
        with np.errstate(all="ignore"):
            for state in relax(functions.integrator, functions.evaluate, w, p, self.idle):
                solution, distance = self._attempt(state, functions.evaluate, a)
                if solution is not None and not solution.reason:
                    return solution
                reason = solution.reason if solution is not None else reason
                if reason and distance < _MIN_DISTANCE:
                    break
        assert state is not None
        return self._none(reason or self._unsettled(state))

    def _attempt(
        self, state: SettlingState, residual_and_jacobian: Callable[[Array], tuple[Array, Array]], a: Array
    ) -> tuple[SteadyStateSolution | None, float]:
        """Try Newton's method from a moment of the integration; also return how far it moved, in magnitudes.

        The solution is None if Newton's method does not converge yet, and has a reason if its limit is not isolated.
        """
        unit = np.where(state.size > 0.0, state.size, 1.0)
        w, rate, jacobian, previous_error = state.w, state.rate, state.jacobian, np.inf
        for k in range(_MAX_NEWTON_STEPS):
            matrix, residual = self._system(w, rate, jacobian, a)
            solve = _factorised(matrix)
            if solve is None:
                return None, np.inf
            step = -solve(residual)
            step_size = float((np.abs(step) / unit).max())
            if not math.isfinite(step_size) or (k == 0 and step_size > _MAX_FIRST_STEP):
                return None, step_size
            w = w + step
            w[: self.n_x][self.idle] = 0.0
            rate, jacobian = residual_and_jacobian(w)
            error = float((np.abs(step) / np.maximum(np.abs(w), 1e-3 * unit)).max())
            if error <= _NEWTON_RTOL or 0.5 * previous_error < error <= _STAGNATION_RTOL:
                break
            previous_error = error
        else:
            return None, np.inf
        distance = float((np.abs(w - state.w) / unit).max())
        if not distance <= _MAX_NEWTON_DISTANCE or not np.isfinite(jacobian).all():
            return None, np.inf
        matrix, _ = self._system(w, rate, jacobian, a)
        try:
            values, earlier = self._eigenvalues(jacobian), self._eigenvalues(state.jacobian)
        except np.linalg.LinAlgError:  # of algebraic equations that are singular there
            return None, np.inf
        size = np.abs(np.concatenate(values)).max(initial=0.0)
        if (np.concatenate(values).real > _ZERO_EIGENVALUE_RTOL * size).any():
            return None, np.inf
        active, moving = values[0], self.n_x - len(self.laws.pivots)
        slowest = [float(np.sort(np.abs(v[0]))[::-1][moving - 1]) if moving else 1.0 for v in (values, earlier)]
        if (
            np.count_nonzero(active.real < -_ZERO_EIGENVALUE_RTOL * size) != moving
            or slowest[0] < _MIN_RATE_RATIO * slowest[1]
        ):
            return self._none(_NOT_ISOLATED), distance
        return SteadyStateSolution(w, matrix, np.concatenate(values), state.time), distance

    def _system(self, w: Array, rate: Array, jacobian: Array, a: Array) -> tuple[Array, Array]:
        """Return G_w and G."""
        matrix, residual = jacobian.copy(), rate.copy()
        pivots = self._pivots
        matrix[pivots] = 0.0
        matrix[pivots, : self.n_x] = self.laws.coefficients
        residual[pivots] = self.laws.coefficients @ (w[: self.n_x] - a)
        return matrix, residual

    def _eigenvalues(self, jacobian: Array) -> tuple[Complex, Complex]:
        """Return the eigenvalues along the differential states: those that move, and those that are idle.

        Active states do not move idle states that are zero, so the Jacobian is block triangular.
        """
        n = self.n_x
        f_x, f_z, g_x, g_z = jacobian[:n, :n], jacobian[:n, n:], jacobian[n:, :n], jacobian[n:, n:]
        reduced_jacobian = f_x - f_z @ _solve(g_z, g_x) if g_z.size else f_x
        parts = (~self.idle, self.idle) if self.idle.any() else (~self.idle,)
        spectra: list[Any] = [np.linalg.eigvals(reduced_jacobian[np.ix_(part, part)]) for part in parts]
        active, idle = (part.astype(complex) for part in (*spectra, np.empty(0))[:2])
        return active, idle

    def _consistent(self, w: Array, residual_and_jacobian: Callable[[Array], tuple[Array, Array]]) -> Array | None:
        """Solve the algebraic equations at the start."""
        n = self.n_x
        if w.size == n:
            return w
        w = w.copy()
        for _ in range(_MAX_NEWTON_STEPS):
            rate, jacobian = residual_and_jacobian(w)
            try:
                step: Array = -_solve(jacobian[n:, n:], rate[n:])
            except np.linalg.LinAlgError:
                return None
            if not np.isfinite(step).all():
                return None
            w[n:] += step
            if (np.abs(step) <= 1e-9 * np.abs(w[n:])).all():
                return w
        return None

    def _unsettled(self, state: SettlingState) -> str:
        """Describe how the model still changes at the last point of the integration."""
        if not (np.isfinite(state.rate).all() and np.isfinite(state.jacobian).all()):
            return f"its rates cannot be computed {_time_phrase(state.time)}"
        n = self.n_x
        with np.errstate(all="ignore"):  # variables that grew without bound are infinite
            rounding = np.abs(state.rate) <= _RATE_ROUNDING * np.abs(state.jacobian) @ np.abs(state.w)
        if rounding[:n].all():
            return f"{_time_phrase(state.time)} it stands still, but {_NOT_ISOLATED}"
        unit = np.where(state.size[:n] > 0.0, state.size[:n], 1.0)
        speed = np.abs(state.rate[:n]) / unit
        i = int(np.argmax(np.where(rounding[:n], -1.0, speed)))
        growing = np.abs(state.w[:n]) >= 0.999 * state.size[:n]
        behavior = "grows" if growing[i] and np.sign(state.rate[i]) == np.sign(state.w[i]) else "still moves"
        return (
            f"{_time_phrase(state.time)} '{self.states[i]}' {behavior}, by {state.rate[i]:.2g} per unit of time "
            f"at {state.w[i]:.3g}: the model grows without bound, oscillates, or settles too slowly"
        )

    def _none(self, reason: str) -> SteadyStateSolution:
        n = self.n_x + self.z_guess.size
        return SteadyStateSolution(
            np.full(n, np.nan), np.full((n, n), np.nan), np.full(self.n_x, np.nan, dtype=complex), np.nan, reason
        )

    # Functions

    @cached_property
    def _graphs(self) -> tuple[ca.SX, ca.SX, ca.SX]:
        """w, p and F as graphs."""
        n_x, n_z, n_p = (self.equations.size1_in(i) for i in (1, 2, 3))
        w, p = ca.SX.sym("w", n_x + n_z), ca.SX.sym("p", n_p)
        ode, alg = self.equations.call([ca.SX(self.time), w[:n_x], w[n_x:], p, ca.SX(ca.DM(self.u))])
        return w, p, ca.densify(ca.vertcat(ode, alg))

    @property
    def _functions(self) -> _SteadyStateFunctions:
        return _FUNCTIONS.get(self, lambda solver: _SteadyStateFunctions(*solver._graphs, solver.states))

    @cached_property
    def _second(self) -> ca.Function:
        w, p, f = self._graphs
        weight = ca.SX.sym("weight", f.numel())
        hessian, _ = ca.hessian(ca.dot(weight, f), ca.vertcat(w, p))
        return ca.Function("second", [w, p, weight], [ca.densify(hessian)])


def _factorised(matrix: Array) -> Callable[[Array], Array] | None:
    """Return the function that solves  matrix x = b  for b (n,) or (n, m); None if the matrix is singular."""
    lu, pivots, singular = _lapack.dgetrf(matrix)
    if singular:
        return None
    solve = _lapack.dgetrs
    return lambda b: solve(lu, pivots, b)[0]


def _time_phrase(time: float) -> str:
    """Format the elapsed time. A non-finite time means that the model was followed as far as numbers allow."""
    return f"after a time of {time:.4g}" if np.isfinite(time) else "however long one waits,"
