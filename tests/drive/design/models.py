"""Models whose best designs are known."""

from __future__ import annotations

from functools import cache

import numpy as np

import castfit as cf
from castfit.drive.design.interior_point import CandidatePool


def offers(J, budget=1.0, *, M0=None, u=None, cost=None):
    """Build a pool of candidates from rows (N, k, n)."""
    N, _, n = J.shape
    prior_information = np.zeros((n, n)) if M0 is None else M0
    A = np.ones((1, N)) if cost is None else np.asarray(cost, dtype=float)[None]
    limit = np.full(N, np.inf) if u is None else u
    return CandidatePool(J[None], prior_information[None], A, np.array([float(budget)]), limit, np.zeros(N))


@cache
def box_lucas():
    """A -> B -> C with guesses k = (0.7, 0.2); B is measured [Box and Lucas 1959]."""
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1.0, b: 0.0})
    pilot = cf.Experiment({"b": [0.45, 0.53, 0.52, 0.34]}, [1, 2, 4, 8], sigma=0.03)
    return cf.Problem(model, pilot, parameters={n: cf.Parameter(v, lower=0, scale="log") for n, v in GUESS.items()})


GUESS = {"k1": 0.7, "k2": 0.2}


@cache
def fitted():
    """The fit of four values."""
    return cf.fit(box_lucas())


@cache
def decay(order):
    """Decay of an order, k = 0.5."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x**order}, parameters=[k], initial={x: 1.0})
    pilot = cf.Experiment({"x": [0.7, 0.4]}, [1, 2], sigma=0.03)
    return cf.Problem(model, pilot, parameters={"k": cf.Parameter(0.5, lower=0)})
