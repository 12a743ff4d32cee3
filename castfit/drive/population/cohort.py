"""What the data of every individual cost, all of them at once, with derivatives by own and shared parameters.

    c_i(phi_i, s)      -log p(data of i), all constants included
    g_i  (m + n_s,)    its gradient by (phi_i, s)
    H_i  (m + n_s, m + n_s)    its expected curvature, Fisher's information: of normal errors J^T J with weighted
                       residuals, and  2 (d log sigma)^T (d log sigma)  for each value where sigma depends on them

`Simulated` has them from single shooting, whatever the problem holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from castfit.integrate import IntegratorOptions
from castfit.transcribe.measured import constant
from castfit.transcribe.single_shooting import SingleShooting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.drive.population.question import Question

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]


@dataclass(frozen=True)
class Costs:
    """Of k individuals: cost (k,), inf where it could not be had; and why, by the place among the k."""

    cost: Array
    failures: Mapping[int, str]


@dataclass(frozen=True)
class Curved(Costs):
    """The same with gradients (k, m + n_s) and expected curvatures (k, m + n_s, m + n_s); NaN where they failed."""

    gradient: Array
    curvature: Array


class Cohort(Protocol):
    """What individuals' data cost."""

    def costs(self, phi: Array, s: Array, who: Index) -> Costs:
        """Return the costs of some individuals `who` (k,) at own parameters phi (k, m) and shared ones s (n_s,)."""
        found = self.curved(phi, s, who)
        return Costs(found.cost, found.failures)

    def curved(self, phi: Array, s: Array, who: Index) -> Curved:
        """Return them with gradients and curvatures."""
        ...

    def seen(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of everybody's values, (n_data,) each.

        By individual, time and output; NaN where somebody cannot be simulated.
        """
        ...


def _numbers(who: Index) -> list[int]:
    return [int(i) for i in who]


class Simulated:
    """The cohort of a question, by single shooting of all its experiments.

    Parameters
    ----------
    question : Question
    integrator : IntegratorOptions
    """

    def __init__(self, question: Question, integrator: IntegratorOptions) -> None:
        self._question, posed = question, question.problem
        staged = SingleShooting(integrator, derivatives="forward").transcribe(posed, posed.guess)
        self._staged = staged.explicit()
        self._constant = np.array([constant(replace(posed, conditions=(c,))) for c in posed.conditions])
        entry = np.full(len(posed.names), -1, dtype=np.intp)
        entry[question.shared] = question.m + np.arange(question.shared.size)
        entry[question.places] = np.arange(question.m)
        self._columns: list[Index] = [entry[c.theta] for c in posed.conditions]
        self._place = {name: i for i, name in enumerate(question.individuals)}
        self._phi = question.problem.guess[question.places]

    def costs(self, phi: Array, s: Array, who: Index) -> Costs:
        """Return the costs of some individuals; the others are simulated where they were before."""
        found = self._staged.evaluate(self._theta(phi, s, who))
        every = np.array([0.5 * float(np.vdot(of.r, of.r)) + of.excess for of in found.values]) + self._constant
        failures = {self._place[f.chain]: f.detail for f in found.failures if f.chain in self._place}
        every[list(failures)] = np.inf
        every = np.where(np.isfinite(every), every, np.inf)
        return Costs(every[who], {k: failures[i] for k, i in enumerate(_numbers(who)) if i in failures})

    def curved(self, phi: Array, s: Array, who: Index) -> Curved:
        """Return costs, gradients and curvatures."""
        found = self._staged.linearize(self._theta(phi, s, who))
        information = found.information() if found.information is not None else None
        failures = {self._place[f.chain]: f.detail for f in found.failures if f.chain in self._place}
        size = self._question.m + s.size
        cost, gradient = np.full(who.size, np.inf), np.full((who.size, size), np.nan)
        curvature = np.full((who.size, size, size), np.nan)
        for k, i in enumerate(_numbers(who)):
            r, rows, columns = found.values[i].r, found.jacobians[i].R_q, self._columns[i]
            if i in failures or not np.isfinite(rows).all():
                failures.setdefault(i, "a derivative is not finite")
                continue
            cost[k] = 0.5 * float(np.vdot(r, r)) + found.values[i].excess + self._constant[i]
            gradient[k], curvature[k] = 0.0, 0.0
            gradient[k, columns] = np.einsum("kr,krq->q", r, rows)
            if information is not None:
                w = information[i]
                rows = w[..., None] * rows if w.ndim == 2 else w @ rows
            flat = rows.reshape(-1, rows.shape[2])
            curvature[k][np.ix_(columns, columns)] = flat.T @ flat
        reasons = {k: failures[i] for k, i in enumerate(_numbers(who)) if i in failures}
        return Curved(cost, reasons, gradient, curvature)

    def seen(self, phi: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return predictions, spreads and normalised residuals of everybody's values."""
        everybody = np.arange(self._question.n)
        prediction, spread, residual = zip(*self._staged.standardised(self._theta(phi, s, everybody)), strict=True)
        return np.concatenate(prediction), np.concatenate(spread), np.concatenate(residual)

    def _theta(self, phi: Array, s: Array, who: Index) -> Array:
        self._phi = self._phi.copy()
        self._phi[who] = phi
        return self._question.theta(self._phi, s)


def of_some(question: Question, members: Index) -> Question:
    """Return the question of some individuals, with the same theta."""
    posed = question.problem
    chosen = [int(i) for i in members]
    part = replace(
        posed,
        experiments=tuple(posed.experiments[i] for i in chosen),
        conditions=tuple(posed.conditions[i] for i in chosen),
    )
    return replace(question, problem=part, places=question.places[members], covariates=question.covariates[members])
