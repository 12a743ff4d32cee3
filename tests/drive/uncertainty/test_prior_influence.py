"""Estimates with priors beside those of the data alone."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf
from castfit.densities.priors import Gamma, LaplacePrior, Normal
from tests.builders import refused

TIMES = np.array([1.0, 2.0, 3.0])


def line(**parameters) -> cf.Problem:
    """x = k t, and n, which does nothing; the data say k = 2 with a standard error of 0.1 / sqrt(14)."""
    x, k, n = cf.symbols("x k n")
    model = cf.Model({x: k + 0 * n}, parameters=[k, n])
    data = cf.Experiment({"x": 2.0 * TIMES}, time=TIMES, initial={"x": 0.0}, sigma=0.1)
    return cf.Problem(model, data, parameters={"n": cf.Parameter(1.0, fixed=True), **parameters})


def compared(**parameters) -> cf.PriorInfluence:
    return cf.prior_influence(cf.fit(line(**parameters), "single"), "single", "ipopt")


ERROR = 0.1 / np.sqrt(14)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_prior_influence_reports_shift_in_standard_errors(scale):
    influence = compared(k=cf.Parameter(1.0, scale=scale, prior=Normal(2.0 + 5 * ERROR, ERROR)))
    assert influence.likelihood.parameters["k"] == pytest.approx(2.0)
    assert influence.posterior.parameters["k"] == pytest.approx(2.0 + 2.5 * ERROR, rel=1e-6)
    assert influence.shifts["k"] == pytest.approx(2.5, rel=0.03)
    assert influence.shares["k"] == pytest.approx(0.5, abs=0.02)
    assert "+2.5 standard errors: prior and data are in conflict" in str(influence)
    assert "6.25 with priors" in str(influence)  # 2.5 standard errors from the minimum
    assert list(influence.likelihood.values) == ["k"]


def test_remark_depends_on_shift_and_share_of_information():
    agreeing = compared(k=cf.Parameter(1.0, prior=Normal(2.0, 0.1 * ERROR)))
    assert agreeing.remark("k") == "no relevant shift; most of the information comes from priors"
    weak = compared(k=cf.Parameter(1.0, prior=Normal(3.0, 1.0)))
    assert weak.remark("k") == "no relevant shift"
    straight = compared(k=cf.Parameter(1.0, prior=Gamma(1, ERROR)))
    assert straight.shifts["k"] == pytest.approx(-1.0, rel=1e-3)
    assert straight.remark("k") == "shifted by -1 standard errors"
    assert straight.shares["k"] == pytest.approx(0.0, abs=1e-6)


def test_remark_names_quantity_determined_by_priors_only():
    influence = compared(k=1.0, n=cf.Parameter(1.0, prior=Normal(1.5, 0.2)))
    assert influence.remark("n") == "determined by priors only"
    assert influence.shares["n"] == 1.0
    assert np.isnan(influence.shifts["n"])
    assert influence.remark("k") == "no relevant shift"


def test_remark_names_quantity_at_kink_of_its_prior():
    influence = compared(k=cf.Parameter(1.0, prior=LaplacePrior(2.0 - ERROR, 0.1 * ERROR)))
    assert influence.posterior.active == {"k": "kink"}
    assert influence.shifts["k"] == pytest.approx(-1.0, rel=1e-3)
    assert influence.remark("k") == "fixed at the kink of its prior; shifted by -1 standard errors"


def test_bounds_stay_without_priors():
    problem = line(k=cf.Parameter(1.0, lower=0.5, upper=1.8, prior=Normal(1.0, 0.1)))
    problem_without_priors = problem.without_priors()
    assert (problem_without_priors.quantities[0].lower, problem_without_priors.quantities[0].upper) == (0.5, 1.8)
    assert problem_without_priors.every_prior == ()
    influence = cf.prior_influence(cf.fit(problem, "single"))
    assert influence.remark("k") == "without priors at its upper bound"


def test_prior_influence_without_priors_or_problem_raises(tmp_path):
    result = cf.fit(line(k=1.0))
    with refused("the problem has no priors"):
        cf.prior_influence(result)
    with refused("expected the result of a fit"):
        cf.prior_influence(3)  # type: ignore[arg-type]
    cf.fit(line(k=cf.Parameter(1.0, prior=Normal(1.0, 0.1)))).save(tmp_path / "fit.json")
    with refused("call result.with_problem(problem) first"):
        cf.prior_influence(cf.Result.load(tmp_path / "fit.json"))
