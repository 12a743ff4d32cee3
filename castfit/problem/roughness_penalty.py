"""How smooth estimated inputs are: a penalty on their roughness, as rows and cost, and the weights that are not given.

    cost = 1/2 w |R z|^2,    z: values at knots, or their logarithms;    R: see castfit.estimated_input

It is no knowledge about any value, but says which functions are meant: it stays where priors are left aside, and what
it costs is no part of the likelihood.  Its rows count as no degrees of freedom; instead a smooth input uses fewer than
it has values, by as much as the penalty decides about them (the leverage of its rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from castfit.experiment.estimated_inputs import AUTO
from castfit.experiment.inputs import Placeholder
from castfit.problem.quantities import fixed_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.experiment.estimated_inputs import EstimatedInput
    from castfit.problem.quantities import Quantity
    from castfit.problem.parameters import Statement

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]
    Mask = NDArray[np.bool_]

_BEND = 30.0  # second derivative, in the size of the values and their span, that is expected before anything is known


@dataclass(frozen=True, eq=False)
class Smooth:
    """The penalty on one function:  r = sqrt(weight) (root z + offset).

    Attributes
    ----------
    what, label : str
        In words; the name of the function, which inputs of several experiments may share.
    at : (k,) int array
        Positions in theta.
    log : (k,) bool array
        Which z are logarithms.
    root : (m, k), offset : (m,) arrays
    weight : float
    chosen : bool
        Whether a fit chooses the weight; then this one is where it begins.
    n_theta : int
    """

    what: str
    label: str
    at: Index
    log: Mask
    root: Array
    offset: Array
    weight: float
    chosen: bool
    n_theta: int

    @property
    def constant(self) -> float:
        """Nothing: the penalty is no part of the likelihood."""
        return 0.0

    @property
    def curved(self) -> Mask:
        """All rows have a curvature."""
        return np.ones(self.offset.size, dtype=np.bool_)

    @property
    def informs(self) -> Mask:
        """Which quantities it says something about."""
        out = np.zeros(self.n_theta, dtype=np.bool_)
        out[self.at] = True
        return out

    def rows(self, n: Array) -> tuple[Array, Array, float, str]:
        """Return r (m,), J (m, n_theta), the cost, and what is wrong."""
        x = n[self.at]
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(self.log, np.log(np.where(self.log, x, 1.0)), x)
            r = np.sqrt(self.weight) * (self.root @ z + self.offset)
            slopes = np.where(self.log, 1.0 / np.where(self.log, x, 1.0), 1.0)
        jacobian = np.zeros((r.size, self.n_theta))
        jacobian[:, self.at] = np.sqrt(self.weight) * self.root * slopes
        finite = bool(np.isfinite(r).all() and np.isfinite(jacobian).all())
        cost = 0.5 * float(r @ r) if finite else np.inf
        return r, jacobian, cost, "" if finite else f"{self.what} cannot be computed"

    def kept(self, keep: Index, n: Array) -> Smooth | None:
        """Return the term as one of the entries `keep` of n, the others held."""
        place = {int(j): i for i, j in enumerate(keep)}
        left = np.array([int(j) in place for j in self.at], dtype=np.bool_)
        if not left.any():
            return None
        held = n[self.at[~left]]
        z = np.where(self.log[~left], np.log(np.where(self.log[~left], held, 1.0)), held)
        at = np.array([place[int(j)] for j in self.at[left]], dtype=np.intp)
        offset = self.offset + self.root[:, ~left] @ z
        root = self.root[:, left]
        return replace(self, at=at, log=self.log[left], root=root, offset=offset, n_theta=keep.size)

    def identity(self) -> tuple[Any, ...]:
        """Return what makes it itself; a weight that is chosen does not."""
        return self.at, self.log, self.root, self.offset, None if self.chosen else self.weight


def smooth_terms(said: Statement, quantities: Sequence[Quantity]) -> tuple[Smooth, ...]:
    """Return the penalties on estimated inputs, each function once."""
    place = {(q.of, q.experiment): j for j, q in enumerate(quantities)}
    found: dict[tuple[Any, ...], Smooth] = {}
    several = len({q.experiment for q in quantities if q.experiment is not None}) > 1
    for e in said.experiments:
        for u in e.inputs.values():
            if not isinstance(u, Placeholder) or u.said.smoothness == 0.0 or not u.said.roughness.size:
                continue
            names, label = u.said.names(u.called), u.said.label(u.called)
            values = np.array([fixed_value(said.parameters[n], e.name) for n in names])
            owner = e.name if u.said.per_experiment else None
            if (label, owner) in found:
                continue
            term = _term(u.said, label, values, [place.get((n, owner), -1) for n in names], len(quantities))
            if term is not None:
                where = f" in {e.name}" if owner is not None and several else ""
                found[label, owner] = replace(term, what=f"the smoothness of {label}{where}")
    return tuple(found.values())


def _term(said: EstimatedInput, label: str, values: Array, at: Sequence[int], n_theta: int) -> Smooth | None:
    """Return the penalty on values at positions `at`, numbers where that is -1; None if all are."""
    free = np.array(at) >= 0
    if not free.any():
        return None
    z = np.log(values) if said.log else values
    size = 1.0 if said.log else float(np.abs(z).max()) or 1.0
    chosen = said.smoothness == AUTO
    weight = (_BEND * size) ** -2.0 if isinstance(said.smoothness, str) else said.smoothness
    return Smooth(
        "",
        label,
        np.array(at, dtype=np.intp)[free],
        np.full(int(free.sum()), said.log),
        said.roughness[:, free],
        said.roughness[:, ~free] @ z[~free],
        weight,
        chosen,
        n_theta,
    )
