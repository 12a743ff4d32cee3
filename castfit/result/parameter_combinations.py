"""Combinations of quantities in words: products of powers such as k1*k2 or k1/k2**2, and weighted sums.

Notation
--------
g  (n,)    a direction of unit length in relative changes,  u = d p / |p|,  which are changes of log |p|
h  (n,)    the same with few and round entries:  the combination  sum h_j log |p_j|,  a product of powers of the p_j
C  (n, n)  covariance of u;  h has the standard error  sqrt(h C h)

Sentences contain h together with the standard error of h, so they are exact statements about h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from castfit._support.ties import stable_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from castfit._support.arrays import Array


# Factor by which the standard error of a rounded combination may differ from that of the direction.
_MAX_ERROR_RATIO = 1.25
_MIN_DIRECTION_COSINE = 0.95  # Cosine between a direction and its rounded combination at least.
_DROPPED = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3)  # weights below this part of the largest may be left out
_MAX_TERMS = 5  # Terms of a combination in a sentence, at most.
_MAX_POWER = 3  # Largest integer power in a product of quantities.
_DIGITS = (1, 2, 3)


def rounded_direction(g: Array, error: Callable[[Array], float], units: Array) -> Array | None:
    """Return the simplest combination h (n,) that represents a direction g; None if that takes too many terms.

    Its first entry that is not zero is positive.

    g (n,) : of length 1
    error : returns the standard error of a combination; infinite, too
    units (n,) : the weights h / units are rounded
    """
    target_error = error(g)
    weights = (
        g * units if np.isinf(target_error) else g / units
    )  # Changes along the direction, or weights of a determined combination.
    candidates: list[tuple[Array, float]] = []
    for simple_weights in _simpler(g, weights):
        h = simple_weights * units
        length = float(np.linalg.norm(h))
        candidate_error = error(h) / length
        if np.count_nonzero(h) > _MAX_TERMS:
            continue
        if np.isinf(target_error):
            if np.isinf(candidate_error):
                return _signed(h)
        elif h @ g >= _MIN_DIRECTION_COSINE * length:
            if target_error / _MAX_ERROR_RATIO <= candidate_error <= target_error * _MAX_ERROR_RATIO:
                return _signed(h)
            candidates.append((h, candidate_error))
    min_error = min((candidate_error for _, candidate_error in candidates), default=np.inf)
    if np.isinf(min_error) or np.count_nonzero(np.abs(g) > _DROPPED[-1] * np.abs(g).max()) > _MAX_TERMS:
        return None
    return _signed(
        next(h for h, candidate_error in candidates if candidate_error <= _MAX_ERROR_RATIO * min_error)
    )  # no few digits say it exactly


def _signed(h: Array) -> Array:
    return h * np.sign(h[np.argmax(h != 0.0)])


def _simpler(g: Array, weights: Array) -> Iterator[Array]:
    """Propose simpler weights, few and round ones first; those small in g are left out."""
    relative = np.abs(g) / np.abs(g).max()
    for threshold in _DROPPED:
        retained_weights: Array = np.where(relative >= threshold, weights, 0.0)
        retained_weights = retained_weights / np.abs(retained_weights).max()
        for largest in range(1, _MAX_POWER + 1):
            integer_weights: Array = np.rint(retained_weights * largest)
            if ((integer_weights != 0.0) == (retained_weights != 0.0)).all():
                yield integer_weights
        for digits in _DIGITS:
            rounded_weights: Array = np.array([float(f"{w:.{digits}g}") for w in retained_weights])
            yield rounded_weights
    yield weights / np.abs(weights).max()


def mixture(names: Sequence[str], g: Array) -> str:
    """Describe a direction that has too many terms to be written."""
    leading = [names[j] for j in stable_order(np.abs(g), descending=True)[:2]]
    return f"a mixture of {np.count_nonzero(np.abs(g) > _DROPPED[-1])} quantities, {leading[0]} and {leading[1]} first"


def product(names: Sequence[str], powers: Array) -> str:
    """Write a product of powers such as k1*k2 or k1/k2**2; positive powers come first."""
    text = ""
    for name, power in sorted(zip(names, powers.tolist(), strict=True), key=lambda pair: pair[1] < 0):
        if power:
            operator = ("*" if power > 0 else "/") if text else ("1/" if power < 0 else "")
            text += f"{operator}{name}" + (f"**{abs(power):.3g}" if f"{abs(power):.3g}" != "1" else "")
    return text


def weighted_sum(terms: Sequence[str], weights: Array) -> str:
    """Write a sum such as x + 0.5*y; terms of weight zero are left out."""
    text = ""
    for term, weight in zip(terms, weights.tolist(), strict=True):
        if weight:
            sign = (" + " if weight > 0 else " - ") if text else ("-" if weight < 0 else "")
            factor = f"{abs(weight):.3g}"
            text += f"{sign}{'' if factor == '1' else f'{factor}*'}{term}"
    return text


def format_combination(
    names: Sequence[str], h: Array, logarithmic: NDArray[np.bool_], magnitudes: Array
) -> tuple[str, float]:
    """Format a combination, and return the factor that converts its change in u to that of the formatted expression.

    A product of powers has the unit 1: its error is relative.  That of a sum is in the unit of its first term.

    h (n,)
    logarithmic (n,) : whose logarithms, that is relative changes, are meant; the others are linear
    magnitudes (n,) : in whose units u counts, d p = magnitude * u
    """
    is_term = h != 0.0
    if logarithmic[is_term].all():
        return product(names, h), 1.0
    if not logarithmic[is_term].any():
        first_index = int(np.argmax(is_term))
        unit = float(magnitudes[first_index] / h[first_index])
        return weighted_sum(names, np.where(is_term, h * unit / magnitudes, 0.0)), abs(unit)
    terms = [f"log|{n}|" if log else f"{n}/{m:.3g}" for n, log, m in zip(names, logarithmic, magnitudes, strict=True)]
    return weighted_sum(terms, h), 1.0


def three_digits(correlation: float, sign: str = "+") -> str:
    """Format a correlation, never rounding it up to 1."""
    return f"{np.sign(correlation) * min(abs(correlation), 0.9994):{sign}.3f}"
