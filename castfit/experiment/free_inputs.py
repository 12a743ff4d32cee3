"""Inputs that are free: values on pieces of a horizon, to be chosen so that an objective becomes best.

u(t) = u_k                                              on piece k, piecewise constant: N values
u(t) = u_k + (u_{k+1} - u_k) (t - t_k) / (t_{k+1} - t_k)      linear: N + 1 values at the ends of pieces
"""

from __future__ import annotations

from typing import Any

import numpy as np

from castfit._support.arguments import (
    is_count,
    is_one_of,
    option_mistakes,
    plain_numbers,
    read_real,
    read_reals,
    shorten_repr,
)
from castfit._support.arrays import Array
from castfit._support.bounds import bound_mistakes
from castfit._support.records import dataclass
from castfit._support.reprs import add_brief_repr
from castfit._support.status import InputError, raise_if_mistakes

KINDS = ("piecewise_constant", "linear")
_MAX_PIECES = 100_000  # largest number of pieces of a free input


@add_brief_repr
@dataclass(frozen=True, eq=False)
class FreeInput:
    """An input that `control` chooses; create it with ``Input.free``, which describes its fields.

    guess : a number, an array of one for each value, a function of time such as an `Input`, or None
    """

    pieces: int
    kind: str
    lower: float
    upper: float
    guess: Any

    def __post_init__(self) -> None:
        mistakes = option_mistakes(
            ("pieces", self.pieces, is_count(self.pieces, 1, _MAX_PIECES), f"give an integer from 1 to {_MAX_PIECES}"),
            ("kind", self.kind, is_one_of(self.kind, *KINDS), "choose 'piecewise_constant' or 'linear'"),
        )
        values = None if self.guess is None or callable(self.guess) else read_reals(self.guess)
        if values is None:
            middle = self._middle() if not mistakes else 0.0
            mistakes += bound_mistakes("the input", middle, self.lower, self.upper, "linear")[:1]
        if self.guess is not None and not callable(self.guess):
            if values is None or values.ndim > 1 or not np.isfinite(values).all():
                mistakes.append(f"guess is {shorten_repr(self.guess)}; give a number, one for each value, or an Input")
            elif values.ndim == 1 and not mistakes and values.size != self.size:
                mistakes.append(f"guess has {values.size} numbers for {self.size} values; give one, or one for each")
            else:
                faults = [m for v in np.unique(values).tolist()
                          for m in bound_mistakes("the input", v, self.lower, self.upper, "linear")]  # fmt: skip
                mistakes += list(dict.fromkeys(faults))
        raise_if_mistakes("Input.free", mistakes)
        plain_numbers(self)

    @property
    def size(self) -> int:
        """Number of values."""
        return self.pieces + (self.kind == "linear")

    @property
    def linear(self) -> bool:
        """Whether it is linear between values."""
        return self.kind == "linear"

    def _middle(self) -> float:
        """Return the middle between finite bounds, else the value nearest to 0 within the bounds."""
        low, high = read_real(self.lower), read_real(self.upper)
        if low is None or high is None or np.isnan(low) or np.isnan(high):
            return 0.0
        if np.isfinite(low) and np.isfinite(high):
            return 0.5 * (low + high)
        return min(max(0.0, low), high)

    def edges(self, start: float, horizon: float) -> Array:
        """Return the ends of the pieces, (pieces + 1,)."""
        return start + horizon * np.linspace(0.0, 1.0, self.pieces + 1)

    def build_start_values(self, start: float, horizon: float) -> Array:
        """Return the values at which the search begins, (size,)."""
        if callable(self.guess):
            edges = self.edges(start, horizon)
            times = edges if self.linear else 0.5 * (edges[1:] + edges[:-1])
            try:
                guess_values = read_reals(self.guess(times))
            except (TypeError, ValueError) as error:
                raise InputError("Input.free", [f"guess cannot be called with times: {error}"]) from error
            if (
                guess_values is None
                or guess_values.shape not in ((), times.shape)
                or not np.isfinite(guess_values).all()
            ):
                raise_if_mistakes(
                    "Input.free", ["guess, called with times, does not return one finite number for each"]
                )
                return times
            return np.clip(np.broadcast_to(guess_values, times.shape), self.lower, self.upper)
        value = self._middle() if self.guess is None else np.asarray(self.guess, dtype=float)
        return np.array(np.broadcast_to(value, (self.size,)))
