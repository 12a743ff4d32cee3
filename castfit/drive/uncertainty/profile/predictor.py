"""Where the solution should be at another number: along the tangent, or along the power that has this tangent.

    straight     v(c + h)  ~  v + h v' + h^2/2 v''
    power        ln |v(c + h)|  ~  the same of ln |v|, as a function of ln |c|

Valleys often are products: what a scale factor loses a state wins, s x = const, and with both in logarithms they are
straight.  Every entry of v takes what would have predicted the last solution better from this one; second derivatives
are differences of first ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from castfit._support.arrays import Array
    from castfit.drive.uncertainty.profile.spots import Spot

_FAR = 2.0  # times the last step: farther second derivatives are not trusted
_MOST = 3.0  # of a logarithm: no power changes an entry by a larger factor


def predicted(spots: Sequence[Spot], c: float, *, log: bool) -> Array:
    """Return v (n_v,) at c.

    Parameters
    ----------
    spots : Spots of one layout
        Where it is known, the nearest last.
    c : float
    log : bool
        Whether the coordinate is a logarithm already.
    """
    at = spots[-1]
    before = spots[-2] if len(spots) > 1 and spots[-2].c != at.c else None
    straight = _along(at.c, at.v, at.tangent, c, None if before is None else (before.c, before.tangent))
    if before is None or not (log or min(at.c * before.c, at.c * c) > 0.0):
        return straight
    x, x_before, x_new = (n if log else np.log(abs(n)) for n in (at.c, before.c, c))
    with np.errstate(all="ignore"):
        slope = at.tangent * (1.0 if log else at.c)
        y, dy = np.log(np.abs(at.v)), slope / at.v
        dy_before = before.tangent * (1.0 if log else before.c) / before.v
        change = _along(x, y, dy, x_new, (x_before, dy_before)) - y
        power = at.v * np.exp(change)
        back = before.c - at.c
        wrong = np.abs(at.v + back * at.tangent - before.v)
        wrong_power = np.abs(at.v * np.exp((x_before - x) * dy) - before.v)
        use = (at.v * before.v > 0.0) & (wrong_power < wrong) & (np.abs(change) < _MOST)
    return np.where(use, power, straight)


def _along(c: float, v: Array, slope: Array, to: float, before: tuple[float, Array] | None) -> Array:
    h = to - c
    out = v + h * slope
    if before is not None and abs(h) <= _FAR * abs(c - before[0]):
        out = out + 0.5 * h**2 / (c - before[0]) * (slope - before[1])
    return out
