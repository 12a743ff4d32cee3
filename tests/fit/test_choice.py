"""What a fit begins with that names no transcription, and in which order others follow."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import castfit as cf
from castfit._bench import costs, sizes
from castfit.fit import choice, strategies
from castfit.fit.attempt import FitRun
from castfit.fit.choice import (
    PROBE_SOLVER,
    CostFeatures,
    EarlyStoppingDescent,
    PredictedCost,
    choose_from_features,
    features,
    measured_costs,
    predict_costs,
)
from castfit.fit.start import local_search, matching
from tests.builders import decay_problem, lotka_volterra

SMALL = CostFeatures(
    n_x=3, n_z=0, n_q=5, experiments=1, points=20, rows=60, elements=40, steps=150, products=10, entries=9
)  # fmt: skip
LARGE = replace(SMALL, n_x=200, products=2000, entries=1000, steps=300)
MICHALIK = 20.330886  # chi2 of lotka_volterra_michalik at its optimum
MANY = replace(SMALL, experiments=1000, points=20_000, rows=60_000, elements=40_000, steps=150_000)


@pytest.fixture(autouse=True)
def plenty(monkeypatch):
    monkeypatch.setattr(choice, "available_memory", lambda: 1e15)
    monkeypatch.setattr(strategies, "available_memory", lambda: 1e15)


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("size", [SMALL, LARGE, MANY], ids=["small", "large", "many"])
def test_single_shooting_is_chosen_unless_predicted_to_be_slower(size, measured):
    prospect = replace(size, is_fully_measured=measured)
    costs = predict_costs(prospect)
    selection = choose_from_features(prospect)
    ratio = costs["collocation"].seconds / costs["single"].seconds
    single = isinstance(selection.transcription, cf.SingleShooting)
    assert single == (ratio > 1 / 1.3)
    times = r"about (as long|[\d.]+ times as long)"
    assert re.fullmatch(
        rf"(Single shooting|Collocation) was chosen: [a-z ]+ would take {times}( and need .* [GM]B)?\.",
        selection.sentence,
    )
    assert (selection.fallback is None) == (not single)


def test_fallback_is_the_cheapest_applicable_and_used_early_if_cheap():
    hidden_selection, measured_selection = (
        choose_from_features(SMALL),
        choose_from_features(replace(SMALL, is_fully_measured=True)),
    )
    assert isinstance(hidden_selection.fallback, cf.Collocation)
    assert isinstance(hidden_selection.solver, EarlyStoppingDescent)
    assert hidden_selection.returns_to_fallback
    costs = predict_costs(replace(SMALL, is_fully_measured=True))
    assert costs["multiple"].seconds < 3 * costs["single"].seconds
    assert isinstance(measured_selection.fallback, cf.MultipleShooting)
    assert isinstance(measured_selection.solver, EarlyStoppingDescent)
    assert measured_selection.solver.patience[0] < hidden_selection.solver.patience[0]
    assert not measured_selection.returns_to_fallback
    costly_selection = choose_from_features(replace(LARGE, is_fully_measured=True))
    assert isinstance(costly_selection.solver, EarlyStoppingDescent)
    assert costly_selection.solver.patience == hidden_selection.solver.patience
    assert costly_selection.returns_to_fallback
    costs = predict_costs(replace(LARGE, is_fully_measured=True))
    cheapest = cf.MultipleShooting if costs["multiple"].seconds < costs["collocation"].seconds else cf.Collocation
    assert isinstance(costly_selection.fallback, cheapest)


@pytest.mark.parametrize("times", [1.0, 2.0, 20.0])
def test_fallback_excludes_transcriptions_without_measured_cost(times, monkeypatch):
    """Costs of multiple shooting were measured with integrations that are compiled."""
    assert "multiple" not in predict_costs(replace(SMALL, method="cvodes"))
    monkeypatch.setattr(
        choice, "predict_costs", lambda _: {"single": PredictedCost(1.0, 1.0), "collocation": PredictedCost(times, 1.0)}
    )
    assert isinstance(choose_from_features(replace(SMALL, is_fully_measured=True)).fallback, cf.Collocation)


def test_stiffness_speaks_for_single_shooting_only():
    """So the model is looked at only where collocation would come first."""
    for measured in (False, True):
        nonstiff_costs = predict_costs(replace(SMALL, is_fully_measured=measured))
        stiff_costs = predict_costs(replace(SMALL, is_fully_measured=measured, is_stiff=True))
        assert (
            stiff_costs["collocation"].seconds / stiff_costs["single"].seconds
            > nonstiff_costs["collocation"].seconds / nonstiff_costs["single"].seconds
        )


def test_stiffness_is_the_fastest_decay_within_the_longest_element():
    x, y, fast = cf.symbols("x y fast")
    model = cf.Model({x: -fast * x, y: -y}, parameters=[fast], initial={x: 1.0, y: 1.0})
    times = np.linspace(0.5, 10, 20)  # elements of 0.5
    for rate, stiff in ((19.0, False), (21.0, True)):
        experiment = cf.Experiment({"x": np.exp(-times), "y": np.exp(-times)}, time=times, sigma=0.1)
        compiled_problem = cf.Problem(model, experiment, parameters={"fast": rate}).posed
        staged = cf.SingleShooting().transcribe(compiled_problem, compiled_problem.guess)
        assert (
            CostFeatures.from_problem(compiled_problem, compiled_problem.guess, staged)
            .with_stiffness(compiled_problem, staged)
            .is_stiff
            == stiff
        )


def test_prices_are_features_times_the_table():
    table, costs = measured_costs(), predict_costs(SMALL)
    time, memory = features(SMALL)["collocation"]
    iterations = table["iterations"]["collocation"][SMALL.kind]
    assert costs["collocation"].seconds == pytest.approx(iterations * np.dot(table["seconds"]["collocation"], time))
    assert costs["collocation"].memory == pytest.approx(np.dot(table["bytes"]["collocation"], memory))
    kinds = {replace(SMALL, is_fully_measured=m, is_stiff=s).kind for m in (True, False) for s in (True, False)}
    assert all(kinds == set(of_kind) for of_kind in table["iterations"].values())


def test_dense_blocks_are_dear_where_there_are_many_states():
    few, many = predict_costs(SMALL), predict_costs(LARGE)
    assert many["collocation"].seconds / few["collocation"].seconds > 100
    assert isinstance(choose_from_features(replace(LARGE, is_fully_measured=True)).transcription, cf.SingleShooting)


def test_collocation_comes_first_where_the_start_leads_nowhere():
    unreached_prospect = replace(SMALL, is_simulated=False)
    assert isinstance(choose_from_features(unreached_prospect, straight=False).transcription, cf.Collocation)
    assert isinstance(
        choose_from_features(unreached_prospect).transcription, cf.SingleShooting
    )  # what follows begins with short horizons
    assert isinstance(choose_from_features(SMALL, states=True).transcription, cf.Collocation)
    assert isinstance(
        choose_from_features(replace(LARGE), states=True).transcription, cf.SingleShooting
    )  # more than 15 times as dear


def test_message_explains_the_choice_of_a_slower_transcription():
    sentence = choose_from_features(SMALL, straight=False).sentence
    assert re.search(r"converges more often .*; single shooting would take about 0\.\d+ times as long", sentence)
    assert "converges more often" not in choose_from_features(SMALL).sentence
    assert "converges more often" not in choose_from_features(replace(SMALL, fits_data=True), straight=False).sentence


def test_choice_depends_on_cost_only_if_the_start_fits_the_data():
    described_prospect = replace(SMALL, fits_data=True)
    for options in ({"states": True}, {"straight": False}):
        assert isinstance(choose_from_features(SMALL, **options).transcription, cf.Collocation)
        assert isinstance(choose_from_features(described_prospect, **options).transcription, cf.SingleShooting)
    assert isinstance(
        choose_from_features(described_prospect, straight=False, bound=True).transcription, cf.Collocation
    )  # a solver of the user's, one of many


@pytest.mark.parametrize("bound", [False, True])
def test_one_of_many_starts_takes_no_long_time_for_what_collocation_alone_can_use(bound):
    """1,000 experiments of two states from random starts: collocation took 18 s and more, single shooting 3 to 4."""
    many = replace(MANY, n_x=2, n_q=3, products=1, entries=4, method="explicit", is_fully_measured=True)
    costs = predict_costs(many)
    assert costs["single"].seconds < costs["collocation"].seconds < 15 * costs["single"].seconds
    assert isinstance(choose_from_features(many, straight=False, bound=bound).transcription, cf.SingleShooting)
    assert isinstance(
        choose_from_features(many, straight=False, bound=bound, states=True).transcription, cf.Collocation
    )
    few = replace(many, experiments=20, points=400, rows=1200, elements=800, steps=3000)
    assert isinstance(choose_from_features(few, straight=False, bound=bound).transcription, cf.Collocation)


def test_a_soft_start_is_not_left_for_coarser_elements():
    """Collocation begins with coarser ones than soft equations have, and left what those found: 88 instead of 54."""
    benchmark = cf.problems.load("lotka_volterra_log")
    start = cf.SoftStart({"a": 0.057, "b": 0.317, "c": 0.03, "d": 0.231})
    result = cf.fit(benchmark.problem, start=start, retry=False)
    assert benchmark.reference.is_reached(result.chi2)


def test_choice_excludes_transcriptions_that_need_too_much_memory(monkeypatch):
    needed_memory = predict_costs(SMALL)["collocation"].memory
    monkeypatch.setattr(choice, "available_memory", lambda: 0.9 * needed_memory)
    selection = choose_from_features(replace(SMALL, is_fully_measured=True))
    assert isinstance(selection.transcription, cf.SingleShooting)
    assert selection.fallback is None
    assert "without trying collocation: it needs about" in selection.sentence
    monkeypatch.setattr(choice, "available_memory", lambda: 1.0)
    result = cf.fit(lotka_volterra())
    assert result.success
    assert result.transcription == "single shooting"


def test_fallback_strategies_start_with_the_cheapest(monkeypatch):
    problem = lotka_volterra().posed
    run = FitRun(problem, cf.GaussNewton(), np.inf, None, lambda _: None)

    def ordered(single: float, collocation: float) -> list[str]:
        costs = {"single": PredictedCost(single, 1.0), "collocation": PredictedCost(collocation, 1e9)}
        monkeypatch.setattr(strategies, "predict_costs", lambda _: costs)
        ways, sentence = strategies._ordered_strategies(run, cf.Collocation(), problem.guess)
        return [way.label for way in ways] + [sentence]

    usual = ordered(0.01, 0.01)
    assert usual[:-1] == [s.label for s in strategies.STRATEGIES if s.is_applicable(problem, cf.Collocation())]
    dear = ordered(0.01, 1e4)
    by_single = ["growing horizons", strategies.SingleShootingFallback.label, strategies.TRUST_REGION_DESCENT.label]
    assert dear[:3] == by_single
    assert sorted(dear) == sorted(usual)
    monkeypatch.setattr(strategies, "available_memory", lambda: 1e8)
    assert "states from simulation" in ordered(0.01, 0.01)[-1]
    assert "states from simulation" not in ordered(0.01, 0.01)[:-1]


def test_message_reports_the_choice_once_and_the_result_equals_the_named_one():
    problem = sizes.reaction(20)[0]
    result = cf.fit(problem)
    assert str(result).count("Single shooting was chosen: collocation would take about ") == 1
    collocation_result = cf.fit(problem, "collocation")
    assert "chosen" not in collocation_result.message
    assert result.chi2 == pytest.approx(collocation_result.chi2, rel=1e-6)


def test_collocation_follows_if_single_shooting_finds_no_solution():
    problem, start = sizes.CASES["goodwin"]()
    result = cf.fit(problem, start=start)
    assert result.success
    assert result.strategies[:3] == ("the start", "growing horizons", "collocation")
    assert result.is_adequate
    probed = [entry["iteration"] for entry in result.history if "try" not in entry]
    assert max(probed) < PROBE_SOLVER.max_iter  # given up where it was held up


def test_a_model_that_cannot_be_simulated_to_its_end_is_followed_over_ever_longer_horizons():
    problem, start = sizes.CASES["cascade"]()  # the logarithm of a state that rounding makes negative
    result = cf.fit(problem, start=start)
    assert result.strategies == ("the start", "growing horizons")
    assert result.objective == pytest.approx(-523.087, abs=0.01)  # by collocation: -521.716


def test_single_shooting_goes_on_from_parameters_matched_to_the_data():
    problem, start = sizes.CASES["lotka_volterra_michalik"]()
    result = cf.fit(problem, start=start)
    assert result.strategies == ("the start",)
    assert result.transcription == "single shooting"
    assert result.is_adequate
    assert [e["iteration"] for e in result.history].count(0) == 1  # told as one search
    assert result.chi2 == pytest.approx(MICHALIK, rel=1e-4)


@pytest.mark.slow
def test_parameters_matched_to_the_data_are_a_shorter_way_to_the_same():
    problem, start = sizes.CASES["lotka_volterra_michalik"]()
    result = cf.fit(problem, start=start, second_start=False)
    assert result.strategies[:2] == ("the start", "multiple shooting")
    assert result.chi2 == pytest.approx(MICHALIK, rel=1e-4)


def test_multiple_shooting_fallback_starts_at_matched_parameters(monkeypatch):
    problem, start = sizes.CASES["all states Hastings-Powell"]()
    start_thetas, matched = [], []
    transcribe, match = cf.MultipleShooting.transcribe, matching.match_gradients

    def record_start(self, compiled_problem, theta, *arguments):
        start_thetas.append(theta)
        return transcribe(self, compiled_problem, theta, *arguments)

    monkeypatch.setattr(cf.MultipleShooting, "transcribe", record_start)
    monkeypatch.setattr(
        matching, "match_gradients", lambda *arguments: matched.append(match(*arguments)) or matched[-1]
    )
    result = cf.fit(problem, start=start)
    assert result.strategies == ("the start", "multiple shooting")
    assert len(matched) == 1
    assert start_thetas[0] is matched[0]


def test_parameters_are_not_matched_where_that_takes_as_long_as_integrating():
    measured = replace(SMALL, is_fully_measured=True)
    assert choose_from_features(measured).solver.tries_second_start
    assert not choose_from_features(
        replace(measured, elements=10 * measured.steps, points=10 * measured.steps)
    ).solver.tries_second_start


def test_growing_horizons_stop_if_a_horizon_does_not_fit(monkeypatch):
    problem, start = sizes.CASES["goodwin"]()
    horizons, solve = [], local_search._solve
    monkeypatch.setattr(
        local_search, "_solve", lambda staged, *r, **k: horizons.append(staged) or solve(staged, *r, **k)
    )
    result = cf.fit(problem, start=start)
    assert result.is_adequate
    assert "growing horizons" in result.strategies
    assert 1 < len(horizons) < local_search.HORIZON_COUNTS[-1] / 2


def test_a_callback_stops_a_probe_too():
    problem, start = sizes.CASES["goodwin"]()
    result = cf.fit(problem, start=start, callback=lambda iteration: iteration.iteration == 3)
    assert result.status is cf.Status.STOPPED_BY_CALLBACK
    assert result.strategies == ("the start",)


def test_single_shooting_with_sparse_data_converges_within_the_probe():
    problem, start = sizes.CASES["values 10"]()
    result = cf.fit(problem, start=start)
    assert result.is_adequate
    assert "Single shooting was chosen" in result.message
    assert result.strategies == ("the start",)
    assert result.iterations <= PROBE_SOLVER.max_iter  # 63 without the curvature of the residuals


def test_probe_in_a_flat_valley_is_continued_to_its_end():
    """The second compartment is not measured, and the time is too short to determine the elimination."""
    blood, tissue, out, uptake, back = cf.symbols("blood tissue out uptake back")
    model = cf.Model(
        {blood: -(out + uptake) * blood + back * tissue, tissue: uptake * blood - back * tissue},
        parameters=[out, uptake, back],
        initial={tissue: 0},
    )
    truth = {"out": 0.3, "uptake": 0.6, "back": 0.2}
    times = np.linspace(2.5 / 40, 2.5, 40)
    exact = np.asarray(cf.simulate(model, truth, times, initial={"blood": 5.0})["blood"])
    sigma = 0.05 * float(exact.mean())
    data = exact + sigma * np.random.default_rng(122).standard_normal(40)
    factors = 3.0 ** np.random.default_rng(1022).uniform(-1, 1, 4)
    limits = {name: {"lower": value / 100, "upper": value * 100, "scale": "log"} for name, value in truth.items()}
    parameters = {
        name: cf.Parameter(value * factor, **limits[name])
        for (name, value), factor in zip(truth.items(), factors, strict=False)
    }
    initial = {"blood": cf.free(5.0 * factors[3], lower=0.05, upper=500, scale="log")}
    problem = cf.Problem(
        model, cf.Experiment({"blood": data}, time=times, sigma=sigma, initial=initial), parameters=parameters
    )
    result = cf.fit(problem)
    assert result.strategies == ("the start",)
    assert result.iterations > PROBE_SOLVER.max_iter
    assert result.success
    assert result.chi2 == pytest.approx(37.4793, abs=1e-3)


def test_default_fit_leaves_a_start_without_sensitivity():
    problem, start = sizes.CASES["alpha_pinene"]()
    result = cf.fit(problem, start=start)
    assert result.success
    assert result.strategies == ("the start",)
    assert "does not depend on p3, p4, p5" in result.message


def test_a_steep_algebraic_equation_is_none_of_collocations_long_ways():
    x, z, k, K = cf.symbols("x z k K")
    model = cf.Model({x: -k * z}, algebraic={z: z * (1 + (K / (x + 1e-6)) ** 20) - x}, parameters=[k, K])
    times = np.linspace(0.1, 5, 25)
    exact = cf.simulate(model, {"k": 0.5, "K": 1.0}, times, initial={"x": 3.0, "z": 3.0})
    data = {"x": exact["x"] + 0.02 * np.random.default_rng(0).standard_normal(25)}
    experiment = cf.Experiment(data, time=times, sigma=0.02, initial={"x": 3.0, "z": cf.consistent(3.0)})
    problem = cf.Problem(model, experiment, parameters={"k": 1.0, "K": 0.5})
    result, collocation_result = cf.fit(problem), cf.fit(problem, "collocation")
    assert result.success
    assert result.iterations < 10 < 30 < collocation_result.iterations  # 5 and 61
    assert result.cost == pytest.approx(collocation_result.cost, rel=1e-6)


def test_workers_are_given_work():
    assert "workers" in cf.fit(decay_problem(), workers=2).message


@pytest.mark.parametrize(
    "cases", [("textbook decay",), pytest.param(("textbook decay", "experiments 1"), marks=pytest.mark.slow)], ids=len
)
def test_costs_are_measured_and_told_by_features(cases):
    rows = list(costs.run_costs(cases=cases))
    assert {row.method for row in rows} == {"single", "multiple", "collocation"}
    table = costs.table(rows, {})
    for row in rows:
        assert np.dot(table["seconds"][row.method], row.of_time) == pytest.approx(row.seconds, rel=0.5)


def test_coefficients_are_found():
    rng = np.random.default_rng(0)
    A = rng.uniform(0.1, 10.0, (20, 3))
    assert costs.coefficients(A, A @ [1.0, 0.0, 2.0]) == pytest.approx([1.0, 0.0, 2.0], abs=1e-3)


def test_ratios_of_sizes_are_those_of_the_best_transcription():
    def one(method: str, objective: float, repeat_seconds: float, memory: float) -> sizes.SizedFit:
        return sizes.SizedFit(
            "case", method, method, "converged", objective, 0.1, repeat_seconds, repeat_seconds, memory, 5
        )

    fits = [one("default", 10.05, 2.0, 300.0), one("single", 10.0, 1.0, 100.0), one("multiple", 12.0, 0.1, 50.0)]
    assert sizes.ratios(fits) == (2.0, 3.0)
    assert sizes.ratios([one("default", 13.0, 2.0, 300.0), *fits[1:]]) == (np.inf, np.inf)
    assert "default: within" in sizes.build_tables([fits])[-1]


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt("gauss-newton")])
def test_fit_of_one_datum_at_a_bound_succeeds(solver):
    """The look at stiffness sees one state; x(1) = 1.7 exp(-k) decreases in k, so the best value is the upper bound."""
    x, k = cf.symbols("x k")
    experiment = cf.Experiment({"x": [0.5]}, time=[1.0], initial={"x": 1.7})
    problem = cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": cf.Parameter(0.2, 0, 0.4)})
    result = cf.fit(problem, solver=solver)
    assert result.success
    assert result.values["k"] == pytest.approx(0.4)
