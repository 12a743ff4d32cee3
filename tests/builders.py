"""Problems that several tests pose, and a check of what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import casadi as ca
import numpy as np
import pytest

from castfit._support.status import InputError
from castfit.experiment.experiment import Experiment, free
from castfit.experiment.inputs import Input
from castfit.model.model import Model, symbols
from castfit.problem.problem import Constraint, Normal, Parameter, Problem
from castfit.solve.staged import StagedProblem, rows_in_units


@contextmanager
def refused(*phrases: str) -> Iterator[None]:
    """Expect one InputError with exactly as many mistakes as phrases, each phrase in the mistake of its position."""
    with pytest.raises(InputError) as caught:
        yield
    mistakes = caught.value.problems
    assert len(mistakes) == len(phrases), str(caught.value)
    for phrase, mistake in zip(phrases, mistakes, strict=True):
        assert phrase in mistake, f"{phrase!r} is not in {mistake!r}"


def decay_model(**extra) -> Model:
    """Exponential decay, x' = -k x."""
    x, k = symbols("x k")
    return Model({x: -k * x}, parameters=[k], **extra)


def decay_problem(**changes) -> Problem:
    """Exponential decay at five times, initial value known."""
    experiment = Experiment({"x": [1.0, 0.7, 0.5, 0.3, 0.2]}, time=[0, 1, 2, 3, 4], sigma=0.1, initial={"x": 1.0})
    return Problem(decay_model(), experiment, **{"parameters": {"k": 0.5}, **changes})


LOTKA_VOLTERRA = np.array(
    [
        [0.58462429, 1.653802752],
        [1.480323792, 1.898433328],
        [1.941197515, 0.791087389],
        [1.266090393, 0.402385741],
        [0.68499583, 0.435968041],
        [0.435253441, 0.725707829],
        [0.404814065, 1.244405746],
        [0.822427034, 2.052562952],
        [1.771604896, 1.426515341],
        [1.754832745, 0.548344791],
    ]
)  # prey and predators at t = 1 ... 10, from (0.4, 1) at t = 0
LOTKA_VOLTERRA_SSE = 0.027536379  # smallest sum of squares, known from other programs
LOTKA_VOLTERRA_POLE = (0.5, 0.5, 0.5, -0.2)  # parameters at which the solution has a pole at t = 3.3064


def lotka_volterra(guess=(0.8, 0.8, 1.5, 1.5), *, lower=-1.0, upper=5.0, **changes) -> Problem:
    """Prey and predators: four parameters, initial values known."""
    x, y = symbols("x y")
    k = symbols("k1 k2 k3 k4")
    model = Model({x: -k[0] * x + k[1] * x * y, y: k[2] * y - k[3] * x * y}, parameters=k)
    data = {"x": LOTKA_VOLTERRA[:, 0], "y": LOTKA_VOLTERRA[:, 1]}
    experiment = Experiment(data, time=np.arange(1.0, 11.0), initial={"x": 0.4, "y": 1.0})
    parameters = {f"k{i + 1}": Parameter(v, lower=lower, upper=upper) for i, v in enumerate(guess)}
    return Problem(model, experiment, **{"parameters": parameters, **changes})


def everything(**changes) -> Problem:
    """One of each: a DAE with time, jumping inputs, replicates, gaps in the data, local and logarithmic quantities.

    The first experiment has a free initial state, the second an initial state that depends on parameters; there are a
    prior, a constraint that involves all kinds of symbols, a bounded state, and stages without any measurement.
    """
    x, y, z, u, w, t = symbols("x y z u w t")
    k1, k2, k3, k4 = symbols("k1 k2 k3 k4")
    model = Model(
        {x: -k1 * x * y + u + 0.1 * t * k4, y: k2 * x - k3 * y * z + w},
        algebraic={z: z + 0.1 * z**3 == k2 * x + y**2},
        parameters=[k1, k2, k3, k4],
        inputs=[u, w],
        outputs={"product": k3 * x * y + z**2 + u, "logarithm": ca.log(x + 1)},
        time=t,
        initial={y: 0.5 * k1 * k2},
    )
    times = np.array([0.0, 0.4, 0.4, 0.9, 1.5, 2.0])
    first = Experiment(
        {
            "product": [1.35, 1.70, 1.80, np.nan, 4.65, 5.15],
            "logarithm": [np.nan, 0.70, 0.60, 0.63, np.nan, 0.72],
            "z": [0.85, 1.10, 1.00, 1.40, 1.65, 1.85],
        },
        time=times,
        sigma={"product": 0.1, "logarithm": 0.05, "z": 0.1},
        initial={"x": free(0.8, lower=0.1, upper=5.0, scale="log")},
        inputs={"u": Input.piecewise_constant([0, 0.73], [0.3, 1.2]), "w": Input.linear([0, 1.1, 3], [0.1, 0.5, 0.2])},
        name="first",
    )
    second = Experiment(
        {"y": ([0.7, 1.0, 1.6], [[0.75, 0.82], [0.80, np.nan], [0.62, 0.70]])},
        sigma=0.05,
        initial={"x": 0.9, "y": k1 / (1 + k2**2)},
        inputs={"u": 0.2, "w": Input.cubic_spline([0, 0.5, 1.2, 2], [0, 0.3, -0.1, 0.2])},
        start=0.2,
        name="second",
    )
    parameters = {
        "k1": Parameter(0.8, lower=0, scale="log", prior=Normal(1.0, 0.5)),
        "k2": 0.6,
        "k3": Parameter({"first": 0.4, "second": 0.7}, local=True, lower=0.0, upper=3.0),
        "k4": Parameter(0.5, fixed=True),
    }
    defaults = {
        "parameters": parameters,
        "state_bounds": {"x": (0.01, 10.0)},
        "constraints": [Constraint(x * y + z + u + 0.1 * t * k2, upper=20.0)],
    }
    return Problem(model, [first, second], **{**defaults, **changes})


def jacobian_error(staged: StagedProblem, v: np.ndarray, step: float = 2e-3) -> float:
    """Compare every Jacobian block with fourth-order differences; return the worst error, relative to its block or 1.

    The step is large because integrators return neighbouring points with independent errors.
    """
    linear, layout = staged.linearize(v), staged.layout
    assert linear.ok, linear.failures
    worst = 0.0
    for i in range(layout.n_v):
        h = step * max(1.0, abs(v[i]))
        near = [staged.evaluate(v + m * h * np.eye(layout.n_v)[i]) for m in (-2, -1, 1, 2)]

        def slope(values: list[np.ndarray], h: float = h) -> np.ndarray:
            return (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)

        pairs = [(linear.prior_jacobian[:, i], slope([e.prior for e in near]))] if i < layout.n_theta else []
        for c, (chain, j) in enumerate(zip(layout.chains, linear.jacobians, strict=True)):
            q, node, inner = (np.argwhere(at == i) for at in (chain.theta, chain.nodes, chain.inner))
            for name in "rdxc":
                # Derivatives of rows are those with unknown sigmas held.
                rows = [rows_in_units(layout, e, linear.sigma)[c] for e in near]
                difference = slope(rows if name == "r" else [getattr(e.values[c], name) for e in near])
                block = np.zeros_like(difference)
                if q.size:
                    block += getattr(j, f"{name.upper()}_q")[:, :, q[0, 0]]
                for hit, kind in ((node, "s"), (inner, "w")):
                    if hit.size:
                        block[hit[0, 0]] += getattr(j, f"{name.upper()}_{kind}")[hit[0, 0], :, hit[0, 1]]
                pairs.append((block, difference))
            difference = slope([e.values[c].a for e in near])
            pairs.append((j.A[:, q[0, 0]] if q.size else np.zeros_like(difference), difference))
        for exact, difference in pairs:
            if exact.size:
                worst = max(worst, np.abs(difference - exact).max() / max(1.0, np.abs(exact).max()))
    return worst
