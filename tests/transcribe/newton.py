"""Solve the equality constraints of a staged problem for its states, theta held: a simulation by the transcription."""

from __future__ import annotations

import numpy as np

from castfit.solve.staged import StagedProblem
from tests.solve.blocks import dense


def simulate(staged: StagedProblem, v: np.ndarray, tolerance: float = 1e-12, max_iter: int = 30) -> np.ndarray:
    """Return v with nodes and inner variables such that every equation holds, by a plain Newton iteration."""
    n_theta = staged.layout.n_theta
    for _ in range(max_iter):
        assembled = dense(staged.layout, staged.linearize(v))
        if np.abs(assembled.e).max() <= tolerance:
            return v
        v = v.copy()
        v[n_theta:] -= np.linalg.solve(assembled.C[:, n_theta:], assembled.e)
    raise AssertionError(f"Newton stopped at {np.abs(assembled.e).max():.1e}")
