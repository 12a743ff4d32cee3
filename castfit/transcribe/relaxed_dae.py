"""Relaxed algebraic equations: algebraic states at nodes are variables, and need not satisfy their equations yet.

Stage k is integrated from its node (s_k, w_k), w_k being algebraic states, with     (Bock, Eich, Schloeder 1988)

    0 = g(t, x, z, p, u) − rho_k,      rho_k = g(t_k, s_k, w_k, p, u(t_k)),      d_k = gain rho_k = 0

so that whatever s_k and w_k are, the equations that are integrated hold at the node with z = w_k.  Where the inner
equations d_k = 0 are satisfied nothing is relaxed.  No Newton iteration looks for consistent values, which may not be
there: that is left to the solver, which moves all variables together.  The usual factor of rho_k that decays along the
stage is 1 here: it would force z to where it belongs before the solver has moved x, and fail where that is nowhere.

The integrated system has more parameters, (p, rho_k).
"""

from __future__ import annotations

from dataclasses import replace

import casadi as ca
import numpy as np

from castfit._support.arrays import Array
from castfit._support.casadi_functions import PerObjectCache
from castfit._support.records import dataclass
from castfit.integrate import IntegratorOptions, Lanes
from castfit.integrate.algebraic import AlgebraicEquations, AlgebraicPoints
from castfit.integrate.lanes import shift_slopes
from castfit.model.model import Model, System


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A model as it is integrated, and its algebraic equations as they are."""

    system: System
    equations: AlgebraicEquations

    @classmethod
    def from_model(cls, model: Model, options: IntegratorOptions) -> Relaxed:
        """Return the model with relaxed equations, built once."""
        return _RELAXED.get(model, lambda m: _relaxed(m, options))

    def lanes(self, lanes: Lanes, skip: int) -> Lanes:
        """Return lanes from nodes x0, z0 with the parameters by which they are relaxed; `skip` intervals are empty."""
        return replace(lanes, p=np.concatenate([lanes.p, self.residual(lanes, skip)], axis=1))

    def residual(self, lanes: Lanes, skip: int) -> Array:
        """Return rho (L, n_z); the lanes have the model's own parameters."""
        return self.equations.residual(beginnings(lanes, skip), lanes.z0)

    def parameter_slopes(self, lanes: Lanes, skip: int, dx: Array, dz: Array, dp: Array, d_start: Array) -> Array:
        """Return the derivatives of the parameters of lanes that `lanes` returned, (L, n_p + n_z, n_d).

        dx (L, n_x, n_d), dz (L, n_z, n_d), dp (L, n_p, n_d) and d_start (L, n_d) are directions of the node, of the
        model's own parameters and of the time of the node.
        """
        model_lanes = replace(lanes, p=lanes.p[:, : dp.shape[1]])
        return np.concatenate([dp, self.residual_slopes(model_lanes, skip, dx, dz, dp, d_start)], axis=1)

    def residual_slopes(self, lanes: Lanes, skip: int, dx: Array, dz: Array, dp: Array, d_start: Array) -> Array:
        """Return the derivatives of rho, (L, n_z, n_d); the lanes have the model's own parameters."""
        g_z, g_x, g_p, g_t, g_u = self.equations.slopes(beginnings(lanes, skip), lanes.z0)
        du = shift_slopes(lanes.u[:, skip])[..., 0]  # inputs that vary, where the node moves
        return g_x @ dx + g_z @ dz + g_p @ dp + (g_t + g_u @ du[..., None]) * d_start[:, None]


_RELAXED: PerObjectCache[Model, Relaxed] = PerObjectCache()


def beginnings(lanes: Lanes, skip: int) -> AlgebraicPoints:
    """Return the points at which lanes begin."""
    return AlgebraicPoints(lanes.start, lanes.x0, lanes.p, lanes.u[:, skip, :, 0])


def equation_scales(relaxed: Relaxed, lanes: Lanes, unit: Array) -> Array:
    """Return the factors that scale each algebraic equation to the unit of its state, (n_z,).

    Lanes begin at nodes, and none of their intervals is empty; unit (n_z,) are magnitudes of the algebraic states.
    """
    terms = np.abs(relaxed.equations.slopes(beginnings(lanes, 0), lanes.z0)[0]) * unit
    largest = np.where(np.isfinite(terms), terms, 0.0).max(axis=(0, 2), initial=0.0)
    return np.where(largest > 0.0, unit / np.where(largest > 0.0, largest, 1.0), 1.0)


def _relaxed(model: Model, options: IntegratorOptions) -> Relaxed:
    system = model.system
    rho = ca.SX.sym("rho", system.z.numel())
    relaxed = replace(
        system,
        p=ca.vertcat(system.p, rho),
        alg=system.alg - rho,
        parameter_names=(*system.parameter_names, *(f"rho of {n}" for n in system.algebraic_names)),
    )
    equations = AlgebraicEquations(
        system.arguments,
        system.alg,
        relative_tolerance=options.relative_tolerance,
        absolute_tolerance=options.absolute_tolerance,
    )
    return Relaxed(relaxed, equations)
