"""Parts of a link that compute initial states: the steady state before the experiment, and consistent initial states.

    n --inner link--> (p, a)  before the experiment  --rest--> w(p, a)
    n --inner link--> P = (p, a, given z)  --Newton--> w(P)

Nothing in an inner link is a logarithm, since n is in natural scale.  Of a **steady state** it gives the parameters
before the experiment and the state from which the model comes to rest; the rest itself, and the rules by which it is
differentiated, are in `castfit.experiment.steady`.  **Consistent** are initial states that follow from the algebraic
equations, where algebraic states have a value:

    0 = g(t_0, x, z, p, u_0),      w = (open x, open z),      P = (p, a, given z)

As many differential states are open as algebraic ones are given, so that there are as many equations as unknowns w.  By
the implicit function theorem  g_w dw = −g_P dP,  and for weights v on w, with  g_w' lambda = v,

    sum_i v_i d2 w_i = −sum_k lambda_k d2 g_k(V, V),      V = (dw, dP).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from castfit._support.records import dataclass
from castfit.problem.parameter_map import ParameterLink

if TYPE_CHECKING:
    from castfit._support.arrays import Array, Index, Mask
    from castfit.experiment.steady import SteadyStateSolver
    from castfit.model.model import System


_MAX_NEWTON_ITERATIONS, _MAX_STEP_HALVINGS = 50, 12
_NEWTON_STEP_RTOL = 1e-12  # relative size of the last Newton step
_MIN_EQUATION_SCALE = 1e-300  # scale of an equation that has none, in place of zero
_MAX_SHOWN_VALUES = 8  # number of values in a message
_solve: Any = np.linalg.solve


@dataclass(frozen=True, eq=False)
class SteadyStateRows:
    """Rows (m,) of a link that are states at rest: which state of the model each is, `states` (m,).

    `inner` gives (p, a) before the experiment; `names` are the names of the model's parameters, for messages.
    """

    rows: Index
    states: Index
    solver: SteadyStateSolver
    inner: ParameterLink
    names: tuple[str, ...]

    @property
    def pattern(self) -> Mask:
        """Return the pattern (m, n_q) of rows by entries of n: all rows depend on all that matters before the start."""
        moving = self.inner.moving_quantities | self.inner.starting_quantities
        return np.repeat(moving[None], self.rows.size, axis=0)

    def values(self, n: Array) -> tuple[Array, Array]:
        """Return the states (m,) and their derivatives by n (m, n_q); NaN where there is no steady state."""
        natural = self.inner.natural(n)
        steady_state = self.solver.solve(natural.p, natural.a)
        if not steady_state.ok:
            return np.full(self.rows.size, np.nan), np.full((self.rows.size, n.size), np.nan)
        slopes = self.solver.slopes(steady_state, natural.p, natural.dp, natural.da)
        return steady_state.w[self.states], slopes[self.states]

    def curvature(self, n: Array, weight: Array) -> tuple[Array, Array]:
        """Return the weighted sums of first and second derivatives by n."""
        natural = self.inner.natural(n)
        steady_state = self.solver.solve(natural.p, natural.a)
        if not steady_state.ok:
            return np.full(n.size, np.nan), np.full((n.size, n.size), np.nan)
        slopes = self.solver.slopes(steady_state, natural.p, natural.dp, natural.da)
        state_weights = np.zeros(steady_state.w.size)
        np.add.at(state_weights, self.states, weight)
        p_weights, a_weights, bend = self.solver.adjoint(steady_state, natural.p, state_weights)
        derivatives = np.concatenate([slopes, natural.dp])
        return state_weights @ slopes, derivatives.T @ bend @ derivatives + self.inner.curvature(
            n, p_weights, a_weights
        )

    def reason(self, n: Array, row: int) -> tuple[str, str]:
        """Describe the state without a steady-state value, the parameters, and the reason."""
        natural = self.inner.natural(n)
        failure = self.inner.failure(n, natural)
        steady_state = self.solver.solve(natural.p, natural.a)
        name = self.solver.states[int(self.states[row])]
        cause = failure or steady_state.reason
        where = f"{_format_values(self.names, natural.p)}{f' ({cause})' if cause else ''}"
        return f"the steady state of '{name}' before the experiment", where

    def restrict(self, keep: Index, n: Array) -> SteadyStateRows:
        """Return the part as a function of the entries `keep` of n, the others held at their value."""
        return replace(self, inner=self.inner.restrict(keep, n))


@dataclass(frozen=True, eq=False)
class ConsistentInitialRows:
    """Rows (m,) of a link that are consistent initial states; `inner` gives (p, a, given z).

    equations : (w, P) -> (g, g_w, g_P);  second : (w, P, lambda) -> Hessian of lambda . g by (w, P)
    guess : (n_w,), the m differential states first
    """

    rows: Index
    states: tuple[str, ...]
    inner: ParameterLink
    equations: ca.Function
    hessian_function: ca.Function
    guess: Array
    equation_names: tuple[str, ...]
    parameter_names: tuple[str, ...]

    @classmethod
    def from_system(
        cls,
        system: System,
        inner: ParameterLink,
        *,
        time: float,
        u: Array,
        open_states: Sequence[str],
        fixed_states: Sequence[str],
        guess: Array,
    ) -> ConsistentInitialRows:
        """Set up the equations at a time with inputs u (n_u,).

        `fixed_states` are the algebraic states with a value, in the order of the rows e.
        """
        indices = [system.state_names.index(n) for n in open_states]
        open_z = [j for j, n in enumerate(system.algebraic_names) if n not in fixed_states]
        w, P = ca.SX.sym("w", len(indices) + len(open_z)), ca.SX.sym("P", inner.base.size)
        n_p, n_x = system.p.numel(), system.x.numel()
        x, z = ca.SX(P[n_p : n_p + n_x]), ca.SX(system.z)
        for k, i in enumerate(indices):
            x[i] = w[k]
        for k, j in enumerate(open_z):
            z[j] = w[len(indices) + k]
        for k, n in enumerate(fixed_states):
            z[system.algebraic_names.index(n)] = P[n_p + n_x + k]
        function = system.function("alg", ca.densify(system.alg))
        (g,) = function.call([ca.SX(time), x, z, P[:n_p], ca.SX(ca.DM(u))])
        slopes = [ca.densify(ca.jacobian(g, v)) for v in (w, P)]
        weight = ca.SX.sym("lambda", g.numel())
        hessian, _ = ca.hessian(ca.dot(weight, g), ca.vertcat(w, P))
        return cls(
            np.array(indices, dtype=np.intp) + n_p,
            tuple(open_states),
            inner,
            ca.Function("equations", [w, P], [ca.densify(g), *slopes]),
            ca.Function("second", [w, P, weight], [ca.densify(hessian)]),
            guess,
            system.algebraic_names,
            (*system.parameter_names, *(f"{n}(0)" for n in fixed_states)),
        )

    @property
    def pattern(self) -> Mask:
        """Return the pattern (m, n_q) of rows by entries of n: all rows depend on all that matters at the start."""
        return np.repeat(np.logical_or.reduce(self.inner.pattern, axis=0)[None], self.rows.size, axis=0)

    def values(self, n: Array) -> tuple[Array, Array]:
        """Return the states (m,) and their derivatives by n (m, n_q); NaN where nothing consistent was found."""
        P, dP = self._compute_arguments(n)
        w, is_converged = self._solve(P)
        if not is_converged:
            return np.full(self.rows.size, np.nan), np.full((self.rows.size, n.size), np.nan)
        return w[: self.rows.size], self._slopes(w, P, dP)[: self.rows.size]

    def curvature(self, n: Array, weight: Array) -> tuple[Array, Array]:
        """Return the weighted sums of first and second derivatives by n."""
        P, dP = self._compute_arguments(n)
        w, is_converged = self._solve(P)
        if not is_converged:
            return np.full(n.size, np.nan), np.full((n.size, n.size), np.nan)
        dw = self._slopes(w, P, dP)
        _, by_w, by_P = self._evaluate(w, P)
        state_weights = np.append(weight, np.zeros(w.size - weight.size))
        multiplier: Array = _solve(by_w.T, state_weights)
        second: Any = self.hessian_function(w, P, multiplier)
        derivatives, P_weights = np.concatenate([dw, dP]), -by_P.T @ multiplier
        n_p, n_a = self.inner.n_p, P.size - self.inner.n_e
        inner = self.inner.curvature(n, P_weights[:n_p], P_weights[n_p:n_a], P_weights[n_a:])
        return state_weights @ dw, -derivatives.T @ np.asarray(second, dtype=float) @ derivatives + inner

    def reason(self, n: Array, row: int) -> tuple[str, str]:
        """Describe the state without a consistent value, the parameters, and the equation with the largest residual."""
        P, _ = self._compute_arguments(n)
        parameter_values = np.append(P[: self.inner.n_p], P[P.size - self.inner.n_e :])
        where = _format_values(self.parameter_names, parameter_values)
        subject = f"the initial value of '{self.states[row]}' that is consistent with the algebraic equations"
        w, _ = self._solve(P)
        g, by_w, _ = self._evaluate(w, P)
        size = self._sizes(by_w, w)
        i = int(np.argmax(np.where(np.isfinite(g), np.abs(g) / size, np.inf)))
        residual_text = f"near its guess, the equation of {self.equation_names[i]} stays off by {g[i]:.2g}"
        return subject, f"{where} ({self.inner.failure(n, self.inner.natural(n)) or residual_text})"

    def restrict(self, keep: Index, n: Array) -> ConsistentInitialRows:
        """Return the part as a function of the entries `keep` of n, the others held at their value."""
        return replace(self, inner=self.inner.restrict(keep, n))

    def _compute_arguments(self, n: Array) -> tuple[Array, Array]:
        natural = self.inner.natural(n)
        return np.concatenate([natural.p, natural.a, natural.e]), np.concatenate(
            [natural.dp, natural.da, natural.de.reshape(natural.e.size, n.size)]
        )

    def _evaluate(self, w: Array, P: Array) -> tuple[Array, Array, Array]:
        outputs: Any = self.equations(w, P)
        g, by_w, by_P = (np.asarray(f, dtype=float) for f in outputs)
        return g[:, 0], by_w, by_P

    def _sizes(self, by_w: Array, w: Array) -> Array:
        """Return the scale of each equation: its change if the unknowns change by their magnitudes."""
        sizes = np.abs(by_w) @ np.maximum(np.abs(w), np.abs(self.guess))
        return np.where(np.isfinite(sizes) & (sizes > 0.0), sizes, _MIN_EQUATION_SCALE)

    def _solve(self, P: Array) -> tuple[Array, bool]:
        """Return the unknowns by damped Newton steps from the guess, and whether they were found."""
        w = self.guess.copy()
        with np.errstate(all="ignore"):
            for _ in range(_MAX_NEWTON_ITERATIONS):
                g, by_w, _ = self._evaluate(w, P)
                try:
                    step: Array = -_solve(by_w, g)
                except np.linalg.LinAlgError:
                    return w, False
                if not np.isfinite(step).all():
                    return w, False
                if (
                    np.abs(step) <= _NEWTON_STEP_RTOL * np.maximum(np.abs(w), _NEWTON_STEP_RTOL * np.abs(self.guess))
                ).all():
                    return w + step, True
                sizes = self._sizes(by_w, w)
                previous_norm = np.abs(g / sizes).max()
                for _ in range(_MAX_STEP_HALVINGS):
                    if np.abs(self._evaluate(w + step, P)[0] / sizes).max() < previous_norm:
                        break
                    step = 0.5 * step
                w = w + step
        return w, False

    def _slopes(self, w: Array, P: Array, dP: Array) -> Array:
        """Return dw (n_w, n_q)."""
        _, by_w, by_P = self._evaluate(w, P)
        return -_solve(by_w, by_P @ dP)


def _format_values(names: Sequence[str], values: Array) -> str:
    """Show the first of some values, for a message."""
    value_texts = [f"{k} = {v:.6g}" for k, v in zip(names, values.tolist(), strict=True)]
    return ", ".join([*value_texts[:_MAX_SHOWN_VALUES], *(["..."] if len(value_texts) > _MAX_SHOWN_VALUES else [])])
