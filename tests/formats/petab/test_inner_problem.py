"""Scales, offsets and spreads left out of an objective: the best of the whole objective, its gradient, its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import castfit as cf
from castfit.formats.petab.inner_problem import linear_quantities
from tests.builders import refused
from tests.formats.petab.test_pypesto_objective import differences, pypesto  # noqa: F401

TIMES = np.array([0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
A = 2.0 * np.exp(-0.4 * TIMES)
NAMES = ("k", "s", "o", "g", "common", "sd1", "sd2", "sd3", "q", "w")


def problem(**parameters):
    """Of two experiments: gel (scale, offset), blot (proportional, log10), two outputs that share a scale, and more."""
    a, b, k = cf.symbols("a b k")
    rng = np.random.default_rng(7)
    symbols = dict(zip(NAMES, cf.symbols(" ".join(NAMES)), strict=True))
    s, o, g, common, w, q = (symbols[n] for n in ("s", "o", "g", "common", "w", "q"))
    outputs = {
        "gel": s * a + o,
        "blot": g * b,
        "one": common * a,
        "two": common * b + 0.1,
        "odd": 1.0 + q * a,
        "squared": w**2 * a,
    }
    model = cf.Model(
        {a: -k * a, b: k * a}, parameters=[k, *(symbols[n] for n in NAMES[1:])], outputs=outputs,
        initial={a: 2.0, b: 0.0},
    )  # fmt: skip
    data = {
        "gel": 7.0 * A + 3.0 + 0.3 * rng.standard_normal(6),
        "blot": 20.0 * (2.0 - A) * 10 ** (0.05 * rng.standard_normal(6)),
        "one": 4.0 * A + 0.2 * rng.standard_normal(6),
        "two": 4.0 * (2.0 - A) + 0.1 + 0.6 * rng.standard_normal(6),
    }
    noise = {
        "gel": cf.Gaussian(symbols["sd1"]),
        "blot": cf.LogNormal(0.07, base=10),
        "one": cf.Gaussian(symbols["sd2"]),
        "two": cf.Gaussian(symbols["sd3"]),
    }
    second_data = {"odd": 1.0 + A, "squared": A}
    second_noise = {"odd": cf.LogNormal(0.1), "squared": cf.Gaussian(0.1)}
    experiments = [
        cf.Experiment(data, time=TIMES, noise=noise),
        cf.Experiment({**data, **second_data}, time=TIMES + 0.1, noise={**noise, **second_noise}),
    ]
    default_parameters = {
        "k": cf.Parameter(0.5, 0.01, 10, scale="log"),
        "s": cf.Parameter(1.0, 1e-3, 1e3, scale="log"),
        "o": cf.Parameter(0.0, -100, 100),
        "g": cf.Parameter(1.0, 1e-3, 1e3, scale="log"),
        "common": cf.Parameter(1.0, 1e-2, 1e3),
        **{n: cf.Parameter(0.5, 1e-3, 1e2, scale="log") for n in ("sd1", "sd2", "sd3")},
        "q": cf.Parameter(1.0, 0, 10),
        "w": cf.Parameter(1.0, 0, 10),
    }
    return cf.Problem(model, experiments, parameters={**default_parameters, **parameters})


def inner_best(full_objective, reduced_objective, x):
    """The least of the whole objective with what is left in x held, by a general optimizer; where it is found."""
    names = list(full_objective.x_names)
    free = [names.index(n) for n in names if n not in reduced_objective.x_names]
    point = full_objective.guess
    point[[names.index(n) for n in reduced_objective.x_names]] = x
    axes = full_objective.likelihood.axes

    def value(inner):
        point[free] = inner
        cost, gradient = full_objective(point, sensi_orders=(0, 1))
        return cost, gradient[free]

    bounds = list(zip(axes.lower[free], axes.upper[free], strict=True))
    fit = minimize(value, point[free], jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-9,
                     "maxiter": 2000, "maxfun": 5000})  # fmt: skip
    point[free] = fit.x
    return fit.fun, point


@pytest.mark.parametrize(
    "changed",
    [{}, {"o": cf.Parameter(0.0, 0.0, 2.0), "sd2": cf.Parameter(0.5, 0.4, 1e2, scale="log")}],
    ids=["inside", "at bounds"],
)
def test_the_best_of_the_whole_objective(changed, pypesto):  # noqa: F811
    """Its value, gradient and information; scale and offset, log-normal errors, a scale of data with two sigmas."""
    full_problem = problem(**changed)
    full_objective, reduced_objective = (
        cf.petab.to_pypesto(full_problem),
        cf.petab.to_pypesto(full_problem, eliminate=True),
    )
    assert list(reduced_objective.x_names) == ["k", "q", "w"]
    x = reduced_objective.guess + np.array([-0.05, 0.1, -0.1])
    best, point = inner_best(full_objective, reduced_objective, x)
    value, gradient, information = reduced_objective(x, sensi_orders=(0, 1, 2))
    assert value == pytest.approx(reduced_objective(x), rel=1e-14)
    by_arrays = reduced_objective(x, sensi_orders=(0, 1))
    assert reduced_objective.likelihood._dense is not None
    assert by_arrays[0] == reduced_objective(x)
    assert by_arrays[1] == pytest.approx(gradient, rel=1e-11, abs=1e-11)
    assert value == pytest.approx(best, abs=1e-6)
    assert value <= best + 1e-9
    eliminated_values = reduced_objective.eliminated(x)
    assert {*eliminated_values} == {"s", "o", "g", "common", "sd1", "sd2", "sd3"}
    if changed:
        assert eliminated_values["o"] == 2.0
        assert eliminated_values["sd2"] == pytest.approx(0.4)
    assert gradient == pytest.approx(differences(reduced_objective, x, range(3)), rel=1e-6, abs=1e-6)
    full_information = full_objective(point, sensi_orders=(2,))
    names = list(full_objective.x_names)
    outer_indices = [names.index(n) for n in reduced_objective.x_names]
    free = [names.index(n) for n in names if n not in reduced_objective.x_names and not (changed and n in ("o", "sd2"))]
    mixed = full_information[np.ix_(outer_indices, free)]
    expected = full_information[np.ix_(outer_indices, outer_indices)] - mixed @ np.linalg.solve(
        full_information[np.ix_(free, free)], mixed.T
    )
    assert information == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert not reduced_objective.check_mode("mode_res")


def test_named_quantities_are_eliminated(pypesto):  # noqa: F811
    full_problem = problem()
    objective = cf.petab.to_pypesto(full_problem, eliminate=["g", "sd1"])
    assert [n for n in NAMES if n not in objective.x_names] == ["g", "sd1"]
    best, _ = inner_best(cf.petab.to_pypesto(full_problem), objective, objective.guess)
    assert objective(objective.guess) == pytest.approx(best, abs=1e-7)


def test_quantity_that_cannot_be_eliminated_is_refused(pypesto):  # noqa: F811
    full_problem = problem(common=cf.Parameter(1.0, 0, 100, prior=cf.Normal(1.0, 0.1)))
    with refused("'speed' is not estimated"):
        cf.petab.to_pypesto(full_problem, eliminate=["speed"])
    with refused(
        "'k' cannot be eliminated: states, their initial values or events depend on it",
        "'common' cannot be eliminated: it has a prior",
        "'q' cannot be eliminated: 'odd' is not proportional to it",
        "'w' cannot be eliminated: 'squared' is not linear in it",
    ):
        cf.petab.to_pypesto(full_problem, eliminate=["k", "common", "q", "w", "s"])
    with refused("eliminate is []; choose True, False, or names of parameters"):
        cf.petab.to_pypesto(full_problem, eliminate=[])


def test_first_factor_of_product_is_eliminated():
    """Scale times offset is not linear; a scale that is in a sigma too is no scale."""
    a, scale, offset, rate = cf.symbols("a scale offset rate")
    model = cf.Model({a: -rate * a}, parameters=[scale, offset, rate], outputs={"y": scale * (a + offset)},
                     initial={a: 1.0})  # fmt: skip
    data = {"y": np.exp(-TIMES)}
    parameters = dict.fromkeys(("scale", "offset", "rate"), cf.Parameter(1.0, 0.0, 10.0))
    base_problem = cf.Problem(model, cf.Experiment(data, time=TIMES, sigma=0.1), parameters=parameters)
    linear_terms = linear_quantities(base_problem.posed)
    assert [base_problem.names[j] for j in linear_terms.entries] == ["scale"]
    assert linear_terms.obstacles["offset"] == "'y' is not linear in it and 'scale' together"
    assert [base_problem.names[j] for j in linear_quantities(base_problem.posed, ["offset"]).entries] == ["offset"]
    relative = cf.Problem(model, cf.Experiment(data, time=TIMES, sigma=0.1 * scale), parameters=parameters)
    assert linear_quantities(relative.posed).obstacles["scale"] == "sigma of y depends on it"
