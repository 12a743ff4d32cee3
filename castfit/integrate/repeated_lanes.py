"""Repeated integration of the same lanes with new states and parameters, in arrays that are allocated once.

A fit of a small model integrates for tenths of a millisecond at a time, about as long as it takes to lay out a task for
the compiled integrator.  Here that is done once; a call puts in what has changed.  What this cannot do, such as to
divide lanes among workers, or to explain and rescue a lane that fails, `Integrator` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.integrate.distributed import threads, workers
from castfit.integrate.esdirk_binding import StoredSteps, TaskLaid, stops_of
from castfit.integrate.integrator import scale_of_seeds
from castfit.integrate.lanes import Lanes, Sensitivities, Trajectories

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.integrate.integrator import Integrator


class RepeatedLanes:
    """Lanes like `still`, whose x0 (L, n_x) and p (L, n_p) are those of each call, by the integrator `by`."""

    def __init__(self, by: Integrator, still: Lanes) -> None:
        self._by, self._still = by, still
        self._shape = still.size, by.grid.size, by.n_x
        self._z = np.empty((*self._shape[:2], 0))
        self._may = by.stepping is not None and not by.n_z and bool(still.size) and bool((still.duration != 0.0).all())
        self._laid: TaskLaid | None = None

    def integrated_by(self, by: Integrator) -> RepeatedLanes:
        """Return a copy that uses another integrator."""
        return RepeatedLanes(by, self._still)

    def _here(self) -> TaskLaid | None:
        by, still = self._by, self._still
        if not self._may or by.stepping is None or workers() is not None or threads() is not None:
            return None
        if self._laid is None:
            self._laid = TaskLaid(by.stepping, by.grid, still, stops_of(still, by.grid) if by.n_u else None)
        return self._laid

    def lanes(self, x0: Array, p: Array) -> Lanes:
        """Return the lanes of a call."""
        still = self._still
        return Lanes(still.start, still.duration, x0, p, still.u, still.z0, still.unit)

    def values(self, lanes: Lanes) -> Trajectories:
        """Integrate, as `Integrator.values` does."""
        laid = self._here()
        if laid is None:
            return self._by.values(lanes)
        x = np.empty(self._shape)
        kept = StoredSteps(lanes, laid.how, laid.by.model)
        if laid.run(lanes.x0, lanes.p, x, kept, None):
            return Trajectories(x, self._z, (), kept=kept, steps=int(laid.counts[:, 0].sum()))
        return self._by.values(lanes, begun=laid.outcome(x, kept))

    def differentiated(
        self, lanes: Lanes, seeds: Array, at: Trajectories | None = None
    ) -> tuple[Trajectories, Sensitivities]:
        """Return trajectories as `values` does, and sensitivities as `Integrator` does; seeds (L, n_p + n_x, n_d)."""
        laid, n_p, n_d = self._here(), lanes.p.shape[1], seeds.shape[2]
        if laid is not None and n_d and (at is None or not (at.failures or at.rescued)):
            scale = scale_of_seeds(np.concatenate([lanes.p, lanes.units[0]], axis=1), seeds)
            scaled, x, dx = seeds * scale, np.empty(self._shape), np.empty((*self._shape, n_d))
            moves = scaled[:, n_p:].copy(), scaled[:, :n_p].copy(), dx
            if laid.run(lanes.x0, lanes.p, x, None if at is None else at.kept, moves):
                dx /= scale[:, None]
                steps = laid.counts.sum(axis=0).tolist()
                found = Sensitivities(dx, np.empty((*self._shape[:2], 0, n_d)), (), steps=(steps[0], steps[4]))
                return Trajectories(x, self._z, (), steps=steps[0]) if at is None else at, found
        dx0, dp = seeds[:, n_p:], seeds[:, :n_p]
        return self._by.differentiated(lanes, dx0, dp) if at is None else (
            at, self._by.sensitivities(lanes, at, dx0, dp))  # fmt: skip
