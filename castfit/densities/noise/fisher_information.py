"""Fisher's information of a density of which only the cost is known, by sums over all data that it can give.

With  p = exp(-cost)  and the score  g = d cost / d eta,

    I = integral of p g g^T dm    by the trapezoidal rule in asinh((m - mu) / width), if p integrates to 1
    I = sum over m = 0, 1, ... of p g g^T                                           if p sums to 1

If p does neither, the cost is not a density, and the result is the outer product of the scores of the data themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from castfit._support.arrays import Array

Evaluated = Callable[[Array, Array, Array], tuple[Array, Array]]

_QUADRATURE_NODES = 1601  # number of quadrature nodes over continuous data
_MAX_ASINH_DISTANCE = 14.0  # largest asinh of the distance from the prediction: about 600,000 widths
_MAX_PROBABILITY_ERROR = 1e-4  # largest difference of the total probability from 1
_COUNT_RANGE_FACTOR = 10.0  # sums over counts end at this multiple of the largest count or expectation ...
_COUNT_RANGE_OFFSET = 100  # ... plus this number of counts
_MAX_SUMMED_COUNTS = 100_000  # longer sums are replaced by quadrature


def information_root(evaluate: Evaluated, eta: Array, spread: Array, datum: Array) -> Array:
    """Return K (n, n_eta, n_eta) with  K K^T = I  of each datum.

    evaluate : returns cost (n,) and score (n, n_eta) from eta (n, n_eta), spread (n,) and datum (n,)
    eta, spread, datum (n, n_eta), (n,), (n,)
    """
    roots = np.zeros((*eta.shape, eta.shape[1]))
    scores = evaluate(eta, spread, datum)[1]
    distances = np.abs(datum - eta[:, 0])
    width = float(np.median(distances[distances > 0])) if (distances > 0).any() else 1.0
    u = np.linspace(-_MAX_ASINH_DISTANCE, _MAX_ASINH_DISTANCE, _QUADRATURE_NODES)
    offsets, steps = width * np.sinh(u), width * np.cosh(u) * (u[1] - u[0])
    counts = bool((datum == np.floor(datum)).all() and (datum >= 0).all())
    for i, (eta_row, s) in enumerate(zip(eta, spread, strict=True)):
        information = None
        if counts:
            top = _COUNT_RANGE_FACTOR * max(float(datum.max()), float(eta_row[0])) + _COUNT_RANGE_OFFSET
            if top < _MAX_SUMMED_COUNTS:
                information = _expected(evaluate, eta_row, s, np.arange(top), np.ones(int(np.ceil(top))))
        if information is None:
            information = _expected(evaluate, eta_row, s, eta_row[0] + offsets, steps)
        if information is None:
            roots[i, :, 0] = scores[i]
            continue
        values, vectors = np.linalg.eigh(information)
        roots[i] = vectors * np.sqrt(np.maximum(values, 0.0))
    return roots


def _expected(evaluate: Evaluated, eta: Array, spread: float, m: Array, weight: Array) -> Array | None:
    """Return the expectation of g g^T over data m (n,), or None if their probabilities do not sum to 1."""
    cost, score = evaluate(np.broadcast_to(eta, (m.size, eta.size)).copy(), np.full(m.size, spread), m)
    with np.errstate(over="ignore", invalid="ignore"):
        p = weight * np.exp(-cost)
    p = np.where(np.isfinite(p), p, 0.0)
    if abs(float(p.sum()) - 1.0) > _MAX_PROBABILITY_ERROR:
        return None
    score = np.where(p[:, None] > 0, score, 0.0)
    information = np.einsum("n,ni,nj->ij", p, score, score)
    return information if np.isfinite(information).all() else None
