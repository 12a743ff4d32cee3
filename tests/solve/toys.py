"""Staged problems small enough to know everything about: affine ones from random blocks, formulas, faulty ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from castfit.solve.solution import CountingProblem, SolveControl
from castfit.solve.staged import (
    ChainValues,
    Evaluation,
    Failure,
    Jacobians,
    Layout,
    Linearization,
    Specification,
    StagedProblem,
    build_layout,
)
from castfit.solve.step_control import LineSearch
from castfit.solve.subproblem import LocalProblem
from tests.solve.blocks import predicted


class Affine(StagedProblem):
    """All functions are their own linearization; see `tests.solve.blocks.random_problem`."""

    def __init__(self, layout: Layout, linearization: Linearization) -> None:
        self.layout, self.linearization = layout, linearization
        self.lower, self.upper = np.full(layout.n_v, -np.inf), np.full(layout.n_v, np.inf)
        self.scale, self.start = np.ones(layout.n_v), linearization.v
        self.signal = tuple(1.0 * chain.row_mask for chain in layout.chains)

    def evaluate(self, v):
        linearization = self.linearization
        dv, values = v - linearization.v, []
        for chain, chain_values, j in zip(
            self.layout.chains, linearization.values, linearization.jacobians, strict=True
        ):
            predictions = {
                name: predicted(
                    getattr(chain_values, name), tuple(getattr(j, f"{name.upper()}_{to}") for to in "sqw"), chain, dv
                )
                for name in ("r", "d", "x", "c")
            }
            values.append(ChainValues(a=chain_values.a + j.A @ dv[chain.theta], **predictions))
        prior = linearization.prior + linearization.prior_jacobian @ self.layout.theta(dv)
        return Evaluation(v.copy(), tuple(values), prior, linearization.prior_jacobian)

    def linearize(self, v):
        return with_jacobians(self.evaluate(v), self.linearization.jacobians)


class Formula(StagedProblem):
    """Residuals r(q) (m,) with derivative J(q) (m, n) and nothing else: one stage without nodes, as single shooting."""

    def __init__(
        self,
        residuals: Callable[[np.ndarray], np.ndarray],
        jacobian: Callable[[np.ndarray], np.ndarray],
        start: list[float],
        *,
        signal: float = 1.0,
        path: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.residuals, self.jacobian = residuals, jacobian
        self.start = np.array(start, dtype=float)
        n, m = self.start.size, np.size(residuals(self.start))
        self.layout = build_layout(tuple(f"q{i}" for i in range(n)), (single_stage(n, m),))
        self.lower, self.upper, self.scale = np.full(n, -np.inf), np.full(n, np.inf), np.ones(n)
        self.signal = (np.full((1, m), signal),)

    def evaluate(self, v):
        none = np.empty((1, 0))
        r = np.asarray(self.residuals(v), dtype=float)[None]
        return Evaluation(
            v.copy(), (ChainValues(r, np.empty(0), none, none, none),), np.empty(0), np.empty((0, v.size))
        )

    def linearize(self, v):
        n = v.size
        blocks = {f"{row}_{to}": np.empty((1, 0, n if to == "q" else 0)) for row in "DXC" for to in "swq"}
        R_q = np.asarray(self.jacobian(v), dtype=float)[None]
        none = np.empty((*R_q.shape[:2], 0))
        return with_jacobians(self.evaluate(v), (Jacobians(R_s=none, R_w=none, R_q=R_q, A=np.empty((0, n)), **blocks),))


def single_stage(n: int, m: int) -> Specification:
    """One stage without nodes: n quantities, m residuals."""
    none = np.empty((1, 0))
    return Specification("toy", np.arange(n), 0, 0, np.ones((1, m), dtype=bool), none, none, np.array([0.0, 1.0]), ())


def with_jacobians(evaluation: Evaluation, jacobians: tuple[Jacobians, ...]) -> Linearization:
    point = evaluation
    return Linearization(point.v, point.values, point.prior, point.prior_jacobian, point.failures, jacobians)


class Faulty(StagedProblem):
    """Another staged problem that fails in a region: in its values, or only in its sensitivities."""

    def __init__(
        self, inner: StagedProblem, region: Callable[[np.ndarray], bool], *, sensitivities_only: bool = False
    ) -> None:
        self.inner, self.region, self.sensitivities_only = inner, region, sensitivities_only
        self.__dict__.update({name: getattr(inner, name) for name in ("layout", "lower", "upper", "scale", "start")})
        self.signal = inner.signal
        self.linearized: list[np.ndarray] = []

    def evaluate(self, v):
        return self._broken(self.inner.evaluate(v), not self.sensitivities_only and self.region(v))

    def linearize(self, v):
        self.linearized.append(v)
        return self._broken(self.inner.linearize(v), self.region(v))

    def _broken(self, evaluation, fails):
        if not fails:
            return evaluation
        nan = tuple(
            ChainValues(*(np.full_like(getattr(c, name), np.nan) for name in "radxc")) for c in evaluation.values
        )
        failure = Failure(self.layout.chains[0].name, 0, "step_size", "stopped at t = 0.3")
        return replace(evaluation, failures=(failure,), values=evaluation.values if self.sensitivities_only else nan)


def search(staged: StagedProblem, v: np.ndarray | None = None, memory=None) -> LineSearch:
    """Return what a step control is given at v."""
    ledger = CountingProblem(staged)
    linear = ledger.linearize(staged.start if v is None else v)
    local = LocalProblem(staged, linear)
    return LineSearch(ledger, local, local.direction(), linear, {} if memory is None else memory)


def solve(solver, staged: StagedProblem, **control):
    """Run a solver on a staged problem."""
    return solver.solve(staged, SolveControl(**control))
