"""Scatter search on the benchmarks of global optimization, as far as they take longer than a moment."""

from __future__ import annotations

import pytest

import castfit as cf
from castfit import problems
from castfit._bench import INTEGRATOR
from castfit.drive.run.optima import ObjectiveMeasure
from tests.drive.chores import Troubled, pole
from tests.paths import ROOT

MEASURED = ROOT.parent / "shared" / "data" / "hiv_data.csv"


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.exists(), reason="the measurements are not part of castfit")
@pytest.mark.parametrize("seed", [0, 1])
def test_hiv_proteinase_is_solved_in_less_simulations_than_published(seed):
    problem = problems.load("hiv_proteinase", data=MEASURED).problem
    goal = ObjectiveMeasure.from_problem(problem).at_height(
        0.019275
    )  # published as a sum of squares; sigma is unknown here
    result = cf.scatter_search(problem, cf.SingleShooting(INTEGRATOR), rng=seed, include_guess=False, vtr=goal)
    assert result.success
    assert result.chi2 <= 0.019275
    assert result.simulations_to(goal) <= 1500
    assert result.best is not None
    assert result.best.values["k42"] == pytest.approx(2e4)


@pytest.mark.slow
def test_three_step_is_solved_from_decomposed_starts():
    benchmark = problems.load("three_step", lower=1e-3)
    result = cf.scatter_search(
        benchmark.problem, cf.SingleShooting(INTEGRATOR), rng=0, include_guess=False, local_start="decomposed", vtr=1e-4
    )
    assert result.chi2 < 1e-4
    assert result.best is not None
    assert benchmark.reference.is_matched(result.best.values)


def test_a_problem_that_cannot_be_decomposed_is_refused_at_once():
    x, y, k = cf.symbols("x y k")
    model = cf.Model({x: -k * x, y: k * x - y}, parameters=[k], initial={x: 1.0, y: 0.0})
    experiment = cf.Experiment({"y": [0.2, 0.3, 0.3]}, time=[0.5, 1.0, 1.5], sigma=0.1, start=0.0)
    problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.5, lower=0.1, upper=2.0)})
    with pytest.raises(cf.InputError, match="cannot be decomposed"):
        cf.scatter_search(problem, local_start="decomposed")


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_fit_and_nothing_else():
    deadly = Troubled(trouble="die", above=-1.0, below=0.45)  # the optimum is at 0.5
    options = {"dim_refset": 3, "n_diverse": 4, "log_vars": [], "max_eval": 60, "rng": 0, "local_searches": 3}
    result = cf.scatter_search(pole(), deadly, workers=2, include_guess=False, **options)
    failed_searches = [search for search in result.searches if search.status == "error"]
    assert failed_searches
    assert "worker" in failed_searches[0].message
    assert result.failures["worker_died"] == len(failed_searches)
    assert result.best is not None
    assert result.simulations >= 60
