"""Which bounds hold the minimum of a quadratic in a box: a guess by projected Newton steps (Bertsekas 1982).

    minimise  c.x + 1/2 x.H x   within  lower <= x <= upper,    H positive definite

Variables that are at a bound and would leave the box stay there, the others take Newton's step, which is projected onto
the box and halved until the quadratic falls.  Many bounds change at once, where an active-set method changes one:
for 36 variables, of which the box holds 27, that saves it nine tenths of its work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Signs = NDArray[np.int8]

_STEPS = 20  # usually five suffice
_HALVINGS = 10


def held_in_box(H: Array, c: Array, lower: Array, upper: Array) -> Signs:
    """Return -1 where the lower bound is likely to hold the minimum, +1 where the upper, 0 elsewhere, (n,).

    H (n, n), c, lower, upper (n,); the box contains 0.
    """
    x = np.zeros(c.size)
    value, gradient = 0.0, c
    for _ in range(_STEPS):
        held = ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
        free = np.flatnonzero(~held)
        newton = np.zeros(c.size)
        newton[free] = -np.linalg.solve(H[np.ix_(free, free)], gradient[free])
        factor = 1.0
        for _ in range(_HALVINGS):
            there = np.clip(x + factor * newton, lower, upper)
            image = H @ there
            fallen = float(there @ (c + 0.5 * image))
            if fallen < value:
                break
            factor *= 0.5
        else:
            break
        x, value, gradient = there, fallen, c + image
    signs = np.zeros(c.size, dtype=np.int8)
    signs[(x <= lower) & (gradient > 0)], signs[(x >= upper) & (gradient < 0)] = -1, 1
    return signs
