"""Choices of designs: graphs, gradients, published optima, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf
from castfit.drive.design.best_choices import ChoiceSearch, VerifiedChoiceSearch, read_choice_constraints
from castfit.drive.design.choices import candidate_choices
from castfit.drive.design.criteria import DCriterion
from castfit.drive.design.interior_point import DesignGoal
from castfit.drive.design.knowledge import build_design_information
from castfit.drive.design.purchases import build_selection
from tests.drive.design.models import box_lucas

gut, blood, ka, ke, F, V, u, b = cf.symbols("gut blood ka ke F V u b")
DRUG = cf.Model(
    {gut: -ka * gut, blood: ka * gut - ke * (1 + u) * blood},
    parameters=[ka, ke, V],
    inputs=[u],
    initial={gut: 0.0, blood: 0.0},
    outputs={"c": blood / V},
)
GUESSES = {"ka": cf.Parameter(1.0, scale="log"), "ke": cf.Parameter(0.2, scale="log"), "V": 20.0}


def drug(sigma=0.1, noise=None, **options):
    experiment_options = {"events": [cf.Doses(gut, 100, 0)], "inputs": {"u": 0.0}, **options}
    pilot = cf.Experiment({"c": [3.0, 2.0]}, [2.0, 8.0], sigma=sigma, noise=noise, **experiment_options)
    return cf.Problem(DRUG, pilot, parameters=GUESSES)


def searched(problem, *candidates, steps=200, constraints=None, **options):
    mistakes = []
    choices = candidate_choices(candidates, mistakes)
    information = build_design_information(
        problem, candidates, mistakes, samples=5, choice_values={c.name: c.middle for c in choices}
    )
    bought = build_selection(information, 4, 0.0, None, mistakes)
    rules = read_choice_constraints(constraints, information, choices, mistakes)
    assert not mistakes
    n = len(information.names)
    return ChoiceSearch(information, bought, DesignGoal(DCriterion(n)), np.arange(n), candidates, choices, rules, steps)


GRAPH_CASES = {
    "doses": lambda: (drug(), {"events": [cf.Doses(gut, [cf.choose(20, 90), 40], [0, cf.choose(1, 6)])]}),
    "infusion": lambda: (drug(), {"events": [cf.Doses(gut, 60, 0), cf.Doses(blood, cf.choose(0, 90), 1, duration=4)]}),
    "after": lambda: (
        drug(),
        {"events": [cf.Doses(gut, 60, 0), cf.Doses(blood, cf.choose(0, 9), 2, measured="after")]},
    ),
    "event": lambda: (
        drug(),
        {"events": [cf.Doses(gut, 60, 0), cf.Event(3, {blood: cf.choose(0.1, 0.9) * blood + ka})]},
    ),
    "lag": lambda: (
        cf.Problem(
            DRUG,
            cf.Experiment({"c": [3.0]}, [2.0], sigma=0.1, events=[cf.Doses(gut, 100, 0, lag=b)], inputs={"u": 0.0}),
            parameters={**GUESSES, "b": cf.Parameter(0.3)},
        ),
        {"events": [cf.Doses(gut, cf.choose(20, 100), 0, lag=b)]},
    ),
    "steps": lambda: (drug(), {"inputs": {"u": 0.1 + 2 * cf.choose(0, 1, pieces=3)}}),
    "spline": lambda: (
        drug(inputs={"u": cf.Input.pchip([0, 3, 8, 30], [0.0, 0.5, 0.1, 0.2])}),
        {"initial": {"blood": cf.choose(0, 50)}, "events": []},
    ),
    "parameter": lambda: (drug(), {"parameters": {"V": 20 + cf.choose(0, 9) * ke}}),
    "relative": lambda: (drug(), {"initial": {"blood": cf.choose(1, 50)}, "sigma": cf.relative(0.1, floor=1e-3)}),
    "computed": lambda: (drug({"c": 0.05 + 0.1 * blood / V}), {"initial": {"gut": cf.choose(1, 50)}}),
    "log-normal": lambda: (drug(0.1, cf.LogNormal()), {"initial": {"blood": cf.choose(1, 50)}, "inputs": {"u": 0.2}}),
    "free": lambda: (
        drug(initial={"blood": cf.free(5.0)}),
        {"initial": {"gut": cf.choose(1, 50)}, "cost_unit": "time"},
    ),
}


@pytest.mark.parametrize("case", GRAPH_CASES)
def test_sensitivity_graph_matches_the_integrated_model_and_its_gradient(case):
    problem, changes = GRAPH_CASES[case]()
    search = searched(problem, cf.Candidate([0.5, 1, 2, 4, 7.5], ["c"], **changes))
    z = np.full(search.bounds[0].size, 0.5)
    assert search.compute_relative_deviation(search.selection, z) < 2e-6
    z = np.linspace(0.3, 0.62, z.size)
    value, slope = search.value(z)
    assert np.abs(slope).max() > 1e-3
    h = 1e-4
    for i, direction in enumerate(np.eye(z.size)):
        up, down = (search.value(z + s * h * direction)[0] for s in (1, -1))
        assert slope[i] == pytest.approx((up - down) / (2 * h), rel=1e-3, abs=1e-4 * np.abs(slope).max()), value


def test_choice_gradient_with_samples_and_fixed_candidates_matches_differences():
    problem = drug(initial={"gut": cf.free(50.0)}, events=[])
    draws = cf.bootstrap(cf.fit(box_lucas()), samples=3, rng=0)
    a = cf.choose(0.5, 3)
    for source, candidates in (
        (draws, [cf.Candidate([1, 3, 6], ["b"], initial={"a": a})]),
        (
            problem,
            [
                cf.Candidate([1, 3], ["c"], initial={"gut": 10 * a, "blood": 1 / a}, fixed=True, name="done"),
                cf.Candidate([2, 5, 9], ["c"], initial={"gut": cf.choose(1, 50)}, name="next"),
            ],
        ),
    ):
        search = searched(source, *candidates)
        z = np.full(search.bounds[0].size, 0.4)
        slope, h = search.value(z)[1], 1e-4
        for i, direction in enumerate(np.eye(z.size)):
            up, down = (search.value(z + s * h * direction)[0] for s in (1, -1))
            assert slope[i] == pytest.approx((up - down) / (2 * h), rel=1e-3)


def decay(high=4.0, **options):
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    problem = cf.Problem(model, cf.Experiment({"x": [0.7]}, [1], sigma=0.1), parameters={"k": cf.Parameter(0.5)})
    return cf.design(
        problem, cf.Candidate(np.linspace(0.5, 6, 12), initial={"x": cf.choose(0.5, high)}, name="next"), budget=1,
        starts=3, **options,
    )  # fmt: skip


@pytest.mark.parametrize("criterion", ["D", "A", "E", cf.variance_of("k")])
def test_choice_for_decay_is_the_largest_start_measured_at_one_over_k(criterion):
    x = cf.symbols("x")
    design = decay(criterion=criterion)
    assert design.chosen["next"]["x(0)"] == pytest.approx(4.0, rel=1e-7)
    assert design.table["time"] == pytest.approx([2.0])
    assert design.after["k"] == pytest.approx(0.1 * np.e / (4.0 * 2.0) / 0.5, rel=1e-6)
    constrained_design = decay(criterion=criterion, constraints=[cf.along(x <= 3), cf.at(2, x <= 1)])
    assert constrained_design.chosen["next"]["x(0)"] == pytest.approx(np.e, rel=1e-6)
    assert sum("The integrated model of next satisfies" in remark for remark in constrained_design.remarks) == 2


def test_choice_design_summary_experiments_and_plot(tmp_path):
    design = decay()
    text = str(design)
    assert text.startswith("Choose x(0) = 4.\nMeasure x at t = 2.\n")
    assert "no design of these candidates and times, as chosen, within the budget" in text
    assert "Best design of 3 starting points, 3 of which" in text
    (experiment,) = design.experiments
    assert experiment.initial == {"x": pytest.approx(4.0)}
    assert design.verify(4).fitted == 4
    design.plot(tmp_path / "design.png")
    repeated_design = cf.design(
        design.information.problem, design.information.candidates, budget=1
    )  # these hold numbers
    assert repeated_design.value == pytest.approx(design.value, abs=1e-9)
    assert not repeated_design.chosen


@pytest.mark.slow
def test_choice_of_doses_is_at_least_as_good_as_a_grid():
    grid = np.linspace(0.5, 24, 48)

    def candidate(amount, when):
        return cf.Candidate(grid, ["c"], events=[cf.Doses(gut, amount, 0), cf.Doses(gut, 100 - amount, when)])

    amount, when = cf.choose(40, 90), cf.choose(2, 12)
    design = cf.design(drug(), candidate(amount, when), budget=6, starts=2, over=["ka", "ke"])
    grid_values = [cf.design(drug(), candidate(a, t), budget=6, over=["ka", "ke"]).value for a in (40, 90)
              for t in (2, 5, 8)]  # fmt: skip
    assert design.value <= min(grid_values) + 1e-6
    chosen = design.chosen["candidate 1"]
    amounts = [v for where, v in chosen.items() if "amount" in where]
    assert sum(amounts) == pytest.approx(100)
    small = cf.design(drug(), candidate(amount, when), budget=6, starts=1, constraints=[amount <= 50])
    assert small.chosen["candidate 1"]["amount of the dose into gut (1)"] <= 50 * (1 + 1e-6)


def reactor(T, start, **options):
    """The reaction of Wang and Dowling (2022), as Pyomo.DoE has it: log10 det of the information."""
    A, B, C, A1, A2, E1, E2, heat = cf.symbols("A B C A1 A2 E1 E2 T")
    rates = [a * cf.exp(-1000 * e / (8.314 * heat)) for a, e in ((A1, E1), (A2, E2))]
    model = cf.Model(
        {A: -rates[0] * A, B: rates[0] * A - rates[1] * B, C: rates[1] * B}, parameters=[A1, A2, E1, E2],
        inputs=[heat], initial={A: 5.0, B: 0.0, C: 0.0},
    )  # fmt: skip
    pilot = cf.Experiment({n: [1.0] for n in "ABC"}, [1.0], sigma=0.01, inputs={"T": 500.0})
    problem = cf.Problem(model, pilot, parameters={"A1": 84.79, "A2": 371.72, "E1": 7.78, "E2": 15.05})
    nine = cf.Candidate(
        np.linspace(0, 1, 9), list("ABC"), cost_unit="experiment", initial={"A": start}, inputs={"T": T}
    )
    design = cf.design(problem, nine, budget=1, **options)
    return design, -design.value / np.log(10)


def test_choice_for_the_reactor_exceeds_pyomo_doe():
    published = cf.Input.piecewise_constant(np.arange(8) / 8, [472.92, *[300.0] * 7])
    assert reactor(published, 5.0)[1] == pytest.approx(19.29129, abs=1e-5)
    design, value = reactor(cf.choose(300, 700, pieces=8), cf.choose(1, 5), starts=1)
    assert value > 19.431
    assert design.chosen["candidate 1"]["A(0)"] == pytest.approx(5)
    chosen_input = cf.Input.piecewise_constant(np.arange(8) / 8, design.chosen["candidate 1"]["T"])
    assert reactor(chosen_input, 5.0)[1] == pytest.approx(value, abs=1e-9)


def fishing(times, pieces=None, **options):
    """Lotka-Volterra with fishing, of which p2 and p4 are wanted, by 4 of 12 for each fish (Sager 2013)."""
    x, y, p2, p4, caught = cf.symbols("x y p2 p4 u")
    model = cf.Model(
        {x: x - p2 * x * y - 0.4 * caught * x, y: -y + p4 * x * y - 0.2 * caught * y}, parameters=[p2, p4],
        inputs=[caught], initial={x: 0.5, y: 0.7},
    )  # fmt: skip
    dt = 12 / times
    pilot = cf.Experiment({"x": [1.0], "y": [1.0]}, [1.0], sigma=dt**-0.5, inputs={"u": 0.0})
    problem = cf.Problem(model, pilot, parameters={"p2": 1.0, "p4": 1.0})
    when = dt * (0.5 + np.arange(times))
    chosen = {"u": cf.choose(0, 1, pieces=pieces)} if pieces else {"u": 0.0}
    candidate = cf.Candidate(when, ["x", "y"], at_most=1, inputs=chosen, name="next")
    budget = {"x": 4 / dt, "y": 4 / dt}
    return cf.design(problem, candidate, budget=budget, criterion="A", exact=False, **options)


@pytest.mark.slow
def test_choice_of_fishing_reduces_the_variance():
    assert fishing(120).value == pytest.approx(0.063957, abs=2.5e-5)
    design = fishing(60, 15, starts=1)
    assert design.value == pytest.approx(0.0370, abs=3e-4)
    u = design.chosen["next"]["u"]
    assert u[0] == pytest.approx(1)
    assert u[7:9] == pytest.approx([1, 1])
    assert u[2:6] == pytest.approx([0] * 4, abs=1e-6)


@pytest.mark.slow
def test_choice_of_fishing_matches_the_published_control():
    design = fishing(240, 120, starts=2)
    assert 0.03693 < design.value < 0.036944
    u, ends = design.chosen["next"]["u"], 0.1 * np.arange(120)
    assert (u[(ends < 0.5) | ((ends > 5) & (ends < 7.5))] > 0.99).all()
    assert (u[((ends > 1) & (ends < 4.5)) | (ends > 8)] < 0.01).all()


def test_choice_design_at_max_time_returns_the_best_point():
    design = decay(max_time=1e-9)
    assert any("The time limit was reached" in remark for remark in design.remarks)
    assert 0.5 <= design.chosen["next"]["x(0)"] <= 4


@pytest.mark.parametrize(
    ("bounds", "options", "message"),
    [
        ((5, 1), {}, "low = 5 is not below high = 1; exchange them"),
        ((2, 2), {}, "give the number itself"),
        ((0, np.inf), {}, "give two finite numbers"),
        ((0, "x"), {}, "give two finite numbers"),
        ((0, 1), {"pieces": 0}, "pieces is 0; give an integer from 1 to 1000"),
    ],
)
def test_choose_with_invalid_bounds_or_pieces_is_refused(bounds, options, message):
    with pytest.raises(cf.InputError, match=message):
        cf.choose(*bounds, **options)


x = cf.symbols("x")
REFUSED_CASES = {
    "q": lambda: ({"initial": {"q": cf.choose(0, 1)}}, {}, "'q'"),
    "pieces": lambda: ({"initial": {"gut": cf.choose(0, 1, pieces=3)}}, {}, "'gut.0.' has pieces="),
    "nothing": lambda: ({}, {"constraints": [cf.along(blood <= 5)]}, "no candidate contains cf.choose"),
    "starts": lambda: ({}, {"starts": 3}, "starts= is given, and no candidate contains cf.choose"),
    "few": lambda: ({"initial": {"gut": cf.choose(0, 1)}}, {"starts": 0}, "starts is 0; give a positive integer"),
    "strange": lambda: ({"initial": {"gut": cf.choose(0, 1)}}, {"constraints": [cf.along(x <= 5)]}, "contains 'x'"),
    "bare": lambda: ({"initial": {"gut": cf.choose(0, 1)}}, {"constraints": [blood <= 5]}, "write cf.along"),
    "blind": lambda: ({"initial": {"blood": cf.choose(1, 2)}, "events": []}, {}, "no candidate depends on ka"),
    "T": lambda: (
        {"initial": {"gut": cf.choose(0, 1)}},
        {"criterion": cf.discriminate(drug())},
        "discriminating designs do not support cf.choose",
    ),
    "worst": lambda: (
        {"initial": {"gut": cf.choose(0, 1)}},
        {"worst": True},
        "cf.choose optimises the average over samples; remove worst=True",
    ),
    "input": lambda: ({"inputs": {"q": cf.choose(0, 1)}}, {}, "'q'"),
    "into": lambda: ({"events": [cf.Doses("q", cf.choose(0, 1))]}, {}, "'q'"),
    "infusion": lambda: (
        {"events": [cf.Doses(gut, 9, cf.choose(0, 1), duration=1)]},
        {},
        "an infusion at a variable time",
    ),
    "duration": lambda: (
        {"events": [cf.Doses(gut, 9, 0, duration=cf.choose(1, 2))]},
        {},
        "an infusion at a variable time",
    ),
    "event": lambda: ({"events": [cf.Event(cf.choose(0, 1), {gut: 5})]}, {}, "an event at a variable time"),
    "by states": lambda: ({"events": [cf.Doses(gut, 9 - gut, cf.choose(0, 1))]}, {}, "a state-dependent dose"),
    "trigger": lambda: (
        {"initial": {"gut": cf.choose(0, 1)}, "events": [cf.Event(when=blood > 1, changes={gut: 0})]},
        {},
        "events triggered by states",
    ),
}


@pytest.mark.parametrize("case", REFUSED_CASES)
def test_design_with_unsupported_choices_is_refused(case):
    changes, options, message = REFUSED_CASES[case]()
    with pytest.raises(cf.InputError, match=message):
        cf.design(drug(), cf.Candidate([1, 2, 4, 8], ["c"], **changes), budget=4, **{"starts": 2, **options} if
                  case not in ("nothing",) else options)  # fmt: skip


def test_choice_design_with_infeasible_constraints_is_refused():
    with pytest.raises(cf.InputError, match="none of 3 starting points led to a design that keeps the constraints"):
        decay(constraints=[cf.at(1, x <= 0.1)])


def yeast(fed):
    """A candidate with yeast in it, which eats the faster the more there is of it."""
    x, y, k, K, feed = cf.symbols("x y k K feed")
    rate = k * y / (K + y)
    model = cf.Model({x: (rate - 0.1) * x, y: -2 * rate * x + 0.1 * (feed - y)}, parameters=[k, K], inputs=[feed],
                     initial={x: 1.0, y: 0.1})  # fmt: skip
    pilot = cf.Experiment({"x": [2.0], "y": [1.0]}, [5.0], sigma=0.3, inputs={"feed": 15.0})
    problem = cf.Problem(model, pilot, parameters={"k": 0.31, "K": 0.05})
    return problem, cf.Candidate([5, 10, 15, 20], ["x", "y"], cost_unit="experiment", inputs={"feed": fed})


def test_choice_search_refines_its_steps_until_confirmed():
    search = searched(*yeast(cf.choose(5, 45, pieces=2)), steps=60)
    trusted = VerifiedChoiceSearch(search, lambda z: (search.information, select_candidates(z)), bool)

    def select_candidates(z):
        information = build_design_information(
            search.information.problem, search.candidates, [], samples=1, choice_values=search.numbers(z)
        )
        return build_selection(information, 4, 0.0, None, [])

    _, z = trusted.search_locally(np.full(2, 0.5))
    assert trusted.search.steps > 60
    assert trusted.search.compute_relative_deviation(select_candidates(z), z) < 1e-3
    with np.errstate(all="ignore"):
        assert search.compute_relative_deviation(select_candidates(z), z) > 1e-3


@pytest.mark.slow
def test_choice_design_of_a_fast_model_is_at_least_as_good_as_a_grid():
    problem, later = yeast(cf.choose(5, 45, pieces=2))
    design = cf.design(problem, later, budget=1, starts=4)
    fed = [yeast(cf.Input.piecewise_constant([0, 10], [a, b]))[1] for a in (5, 25, 45) for b in (5, 25, 45)]
    values = [cf.design(problem, candidate, budget=1).value for candidate in fed]
    assert min(values) - 2 < design.value <= min(values) + 1e-6


def test_choice_design_of_a_stiff_model_is_refused():
    k, y = cf.symbols("k y")
    model = cf.Model({y: -1e6 * k * (y - 1)}, parameters=[k], initial={y: 0.0})
    problem = cf.Problem(model, cf.Experiment({"y": [0.7]}, [1e-6], sigma=0.1), parameters={"k": 1.0})
    with pytest.raises(cf.InputError, match=r"can be integrated|too stiff"):
        cf.design(problem, cf.Candidate([1e-6, 1], initial={"y": cf.choose(0, 0.5)}), budget=2, starts=2)


def test_choices_in_a_population_design_are_refused():
    spec = cf.Population({"ka": cf.Individual(omega=0.3)})
    with pytest.raises(cf.InputError, match=r"cf\.choose is unsupported for populations"):
        cf.design(drug(), cf.Candidate([1, 2, 4], ["c"], initial={"gut": cf.choose(0, 1)}), budget=9, population=spec)


def test_choice_design_plot_draws_chosen_inputs_as_steps():
    later = cf.Candidate([1, 2, 4, 8], ["c"], inputs={"u": cf.choose(0, 1, pieces=2)}, name="next")
    design = cf.design(drug(), later, budget=4, starts=1)
    figure = design.plot()
    assert len(figure.axes) == 5
    (steps,) = figure.axes[-1].patches
    np.testing.assert_allclose(steps.get_data().values, design.chosen["next"]["u"])


def test_cli_design_with_choose(capsys):
    from castfit.cli import main

    arguments = ["design", "bellman", "--guess", "--budget", "3", "--sigma", "1"]
    assert main([*arguments, "--choose", "p1=1"]) == 2
    assert "give NAME=A:B or NAME=A:B:N" in capsys.readouterr().err
    assert main([*arguments, "--choose", "nothing=0:1"]) == 2
    assert "'nothing' is not an input, parameter or state" in capsys.readouterr().err
    state = cf.problems.load("bellman").problem.original_model.states[0]
    assert main([*arguments, "--choose", f"{state}=50:70"]) == 0
    assert f"Choose {state}(0) = " in capsys.readouterr().out
