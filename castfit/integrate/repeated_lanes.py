"""Repeated integration of the same lanes with new states and parameters, in arrays that are allocated once.

A fit of a small model integrates for tenths of a millisecond at a time, about as long as it takes to lay out a task for
the compiled integrator.  Here that is done once, and a call sets x0 and p only.  `Integrator` divides lanes among
workers, and explains and rescues lanes that fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from castfit.integrate.distributed import threads, workers
from castfit.integrate.esdirk_binding import PreparedTask, StoredSteps, forced_step_ends
from castfit.integrate.integrator import scale_of_seeds
from castfit.integrate.lanes import Lanes, Sensitivities, Trajectories

if TYPE_CHECKING:
    from castfit._support.arrays import Array
    from castfit.integrate.integrator import Integrator


class RepeatedLanes:
    """Integration of lanes that differ from a template in x0 (L, n_x) and p (L, n_p) only."""

    def __init__(self, integrator: Integrator, lanes: Lanes) -> None:
        self._integrator, self._template = integrator, lanes
        self._shape = lanes.size, integrator.grid.size, integrator.n_x
        self._z = np.empty((*self._shape[:2], 0))
        self._can_prepare = (
            integrator.stepping is not None
            and not integrator.n_z
            and bool(lanes.size)
            and bool((lanes.duration != 0.0).all())
        )
        self._task: PreparedTask | None = None

    def integrated_by(self, integrator: Integrator) -> RepeatedLanes:
        """Return a copy that uses another integrator."""
        return RepeatedLanes(integrator, self._template)

    def _prepare_task(self) -> PreparedTask | None:
        integrator, lanes = self._integrator, self._template
        if not self._can_prepare or integrator.stepping is None or workers() is not None or threads() is not None:
            return None
        if self._task is None:
            self._task = PreparedTask(
                integrator.stepping,
                integrator.grid,
                lanes,
                forced_step_ends(lanes, integrator.grid) if integrator.n_u else None,
            )
        return self._task

    def lanes(self, x0: Array, p: Array) -> Lanes:
        """Return the lanes of a call."""
        template = self._template
        return Lanes(template.start, template.duration, x0, p, template.u, template.z0, template.unit)

    def values(self, lanes: Lanes) -> Trajectories:
        """Integrate, as `Integrator.values` does."""
        task = self._prepare_task()
        if task is None:
            return self._integrator.values(lanes)
        x = np.empty(self._shape)
        stored_steps = StoredSteps(lanes, task.settings, task.stepper.model)
        if task.run(lanes.x0, lanes.p, x, stored_steps, None):
            return Trajectories(x, self._z, (), sensitivity_cache=stored_steps, steps=int(task.counts[:, 0].sum()))
        return self._integrator.values(lanes, previous_outcome=task.outcome(x, stored_steps))

    def differentiated(
        self, lanes: Lanes, seeds: Array, trajectories: Trajectories | None = None
    ) -> tuple[Trajectories, Sensitivities]:
        """Return trajectories as `values` does, and sensitivities as `Integrator` does; seeds (L, n_p + n_x, n_d)."""
        task, n_p, n_d = self._prepare_task(), lanes.p.shape[1], seeds.shape[2]
        if (
            task is not None
            and n_d
            and (trajectories is None or not (trajectories.failures or trajectories.rescued_lanes))
        ):
            scale = scale_of_seeds(np.concatenate([lanes.p, lanes.units[0]], axis=1), seeds)
            scaled, x, dx = seeds * scale, np.empty(self._shape), np.empty((*self._shape, n_d))
            directions = scaled[:, n_p:].copy(), scaled[:, :n_p].copy(), dx
            if task.run(
                lanes.x0, lanes.p, x, None if trajectories is None else trajectories.sensitivity_cache, directions
            ):
                dx /= scale[:, None]
                steps = task.counts.sum(axis=0).tolist()
                sensitivities = Sensitivities(dx, np.empty((*self._shape[:2], 0, n_d)), (), steps=(steps[0], steps[4]))
                return Trajectories(
                    x, self._z, (), steps=steps[0]
                ) if trajectories is None else trajectories, sensitivities
        dx0, dp = seeds[:, n_p:], seeds[:, :n_p]
        return self._integrator.differentiated(lanes, dx0, dp) if trajectories is None else (
            trajectories, self._integrator.sensitivities(lanes, trajectories, dx0, dp))  # fmt: skip
