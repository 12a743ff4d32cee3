"""From weighted residuals to rows: what a measurement costs, and the local model of it.

Rows of known sigma are the weighted residuals themselves.  An unknown sigma, common to a group of n rows, is
eliminated:

    S = SSE / n of the group,    sigma^ = max(sqrt S, floor)
    rows r / sigma^,  Jacobian R / sigma^,  cost  1/2 |r|^2 / sigma^2 + n (log sigma^ - 1/2)

which is 1/2 n log S above the floor, and below it the parabola in r that touches there with the same value and slope.
The rows' products are the gradient exactly and Fisher's information, in which sigma and theta do not mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from castfit.staged import Jacobians, Layout, Values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RESOLUTION = 1e-10
"""No sigma is taken for smaller than this fraction of the data: what integration and rounding leave of exact data."""


@dataclass(frozen=True)
class Profiled:
    """Values with standardised rows; sigma (n_groups,); excess: the cost beyond half the squares of the rows."""

    values: tuple[Values, ...]
    sigma: Array
    excess: float


def resolution(layout: Layout, signal: Sequence[Array]) -> Array:
    """Return the least sigma of each group, (n_groups,), from the typical magnitudes (K, n_r) of its rows."""
    squares = np.zeros(layout.n_groups)
    for chain, of_chain in zip(layout.chains, signal, strict=True):
        measured = chain.group >= 0
        np.add.at(squares, chain.group[measured], of_chain[measured] ** 2)
    magnitude = np.sqrt(squares / np.maximum(layout.group_sizes, 1))
    return RESOLUTION * np.where(magnitude > 0.0, magnitude, 1.0)


def profiled(layout: Layout, values: tuple[Values, ...], floor: Array) -> Profiled:
    """Divide weighted residuals by the most likely sigma of their group, not below `floor` (n_groups,)."""
    if layout.n_groups == 0:
        return Profiled(values, np.empty(0), 0.0)
    largest, squares = np.full(layout.n_groups, np.finfo(float).tiny), np.zeros(layout.n_groups)
    groups = [chain.group[chain.group >= 0] for chain in layout.chains]
    rows = [of.r[chain.group >= 0] for of, chain in zip(values, layout.chains, strict=True)]
    with np.errstate(all="ignore"):  # wild trial points overflow
        for group, r in zip(groups, rows, strict=True):
            np.maximum.at(largest, group, np.abs(r))
        for group, r in zip(groups, rows, strict=True):
            squares += np.bincount(group, (r / largest[group]) ** 2, minlength=layout.n_groups)
        sigma = np.maximum(largest * np.sqrt(squares / layout.group_sizes), floor)
        sigma = np.where(np.isfinite(sigma), sigma, 1.0)  # where a stage failed
        inverse = np.append(1.0 / sigma, 1.0)  # group -1, of known sigma, is the last
        standard = tuple(
            replace(of, r=of.r * inverse[chain.group]) for of, chain in zip(values, layout.chains, strict=True)
        )
        excess = float(np.sum(layout.group_sizes * (np.log(sigma) - 0.5)))
    return Profiled(standard, sigma, excess)


def standardised(layout: Layout, jacobians: tuple[Jacobians, ...], sigma: Array) -> tuple[Jacobians, ...]:
    """Divide the derivatives of weighted residuals by the sigma (n_groups,) of their group."""
    if layout.n_groups == 0:
        return jacobians
    with np.errstate(all="ignore"):
        inverse = np.append(1.0 / sigma, 1.0)
        return tuple(
            replace(j, **{name: getattr(j, name) * inverse[chain.group][:, :, None] for name in ("R_s", "R_w", "R_q")})
            for j, chain in zip(jacobians, layout.chains, strict=True)
        )
