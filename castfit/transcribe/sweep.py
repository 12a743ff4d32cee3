"""What one integration of a shooting problem found, and along which directions it is differentiated.

Notation: K stages, M points per stage, n_d directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit.integrate import Integrator, Lanes, Trajectories
    from castfit.solve.staged import Failure
    from castfit.transcribe.pieces import Arranged, Part

    Array = NDArray[np.float64]
    Index = NDArray[np.intp]


@dataclass(frozen=True)
class Run:
    """The pieces (condition, piece) of one group that could be begun, and what integration made of them."""

    integrator: Integrator
    members: tuple[tuple[int, int], ...]
    parts: tuple[Part, ...]
    lanes: Lanes
    found: Trajectories


@dataclass(frozen=True)
class Sweep:
    """What integration found, arranged by point; last grid time first where the end of a stage is meant."""

    laid: Arranged
    x: list[Array]  # per condition (K, M, n_x) at the points
    z: list[Array]
    end: list[Array]  # per condition (K, n_x), after what happens there
    runs: list[Run]  # in the order in which they were integrated
    failures: tuple[Failure, ...]


@dataclass(frozen=True)
class Asked:
    """What an integrator was asked to differentiate: dx0 (L, n_x, n_d), dp (L, n_p, n_d), spans (2, L, n_d) or None."""

    integrator: Integrator
    lanes: Lanes
    dx0: Array
    dp: Array
    spans: Array | None


@dataclass(frozen=True)
class Seeds:
    """How one experiment's pieces move: x (K, n_x, n_d) where each stage goes on, p, and edges if they move.

    p is (n_p, n_d - n_s), or of each piece (K, n_p, n_d - n_s);  edges (K + 1, n_d - n_s)
    """

    x: Array
    p: Array
    edges: Array | None

    def of_piece(self, j: int) -> Array:
        """Return how the parameters of piece j move."""
        return self.p[j] if self.p.ndim == 3 else self.p

    def of_pieces(self, numbers: Index) -> Array:
        """Return how the parameters of some pieces move, one for all or of each."""
        return self.p[numbers] if self.p.ndim == 3 else self.p


@dataclass(frozen=True)
class Slopes:
    """Derivatives along the directions, per condition.

    x (K, M, n_x, n_d), z (K, M, n_z, n_d) at the points;  end (K, n, n_d) of the states at the ends of stages, or of
    n products of them;  asked: what was integrated for that, where it was by forward sensitivities
    """

    x: list[Array]
    z: list[Array]
    end: list[Array]
    failures: tuple[Failure, ...]
    asked: tuple[Asked, ...] = ()
