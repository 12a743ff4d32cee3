"""`cf.design`: published designs from models, what it says, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.stats import norm

import castfit as cf
from castfit.drive.design.discrimination import _compute_misfit_roots
from castfit.drive.design.knowledge import censoring_share
from tests.drive.design.models import box_lucas, decay, fitted

GRID = np.linspace(0.1, 20, 200)


def test_design_matches_box_and_lucas():
    design = cf.design(box_lucas(), cf.Candidate(GRID, ["b"], continuous_times=True), budget=6)
    np.testing.assert_allclose(design.table["time"], [1.2295, 6.8577], atol=2e-4)
    np.testing.assert_array_equal(design.table["count"], [3, 3])
    M = design.selection.pool.information(design.counts)[0] * 0.03**2 / 3  # per measurement, by logarithms
    assert np.linalg.det(M) / (0.7 * 0.2) ** 2 == pytest.approx(0.65677, abs=1e-4)
    assert design.efficiency > 0.9999


def test_design_summary_states_measurements_bound_and_assumptions():
    text = str(cf.design(box_lucas(), cf.Candidate(GRID, ["b"]), budget=6))
    assert text.startswith("Measure b at t = 1.2 (3 times) and 6.9 (3 times).\n")
    assert "no design of these candidates and times within the budget is better by more than 0.0001 % (D)" in text
    assert "Two distinct times show no lack of fit; set distinct=3" in text
    assert "only if the guesses are correct" in text


def test_design_before_equals_standard_errors_of_the_fit():
    result = fitted()
    design = cf.design(result, cf.Candidate(GRID), budget=2)
    for name, error in result.standard_errors.items():
        assert design.before[name] * result.values[name] == pytest.approx(error, rel=1e-5)
        assert design.after[name] < design.before[name]


def test_design_after_matches_the_next_fit():
    result = fitted()
    design = cf.design(result, cf.Candidate(GRID, ["b"]), budget=6)
    assert design.problem.n_data == result.n_data + 6
    next_fit = cf.fit(design.problem, start=result.values)
    for name, error in next_fit.standard_errors.items():
        assert design.after[name] * result.values[name] == pytest.approx(error, rel=0.02)


def test_design_of_the_same_experiment_adds_to_its_data():
    design = cf.design(fitted(), cf.Candidate(GRID, ["b"], repeats=True), budget=3)
    (experiment,) = design.problem.experiments
    assert design.problem.n_data == 7
    assert experiment.data["b"][0].size == 7


@pytest.mark.parametrize(
    "noise", [cf.LogNormal(), cf.LogNormal(base=10), cf.StudentT(df=4), cf.Laplace(), cf.Huber()], ids=repr
)
@pytest.mark.parametrize("sigma", [0.2, None], ids=["given", "as before"])
def test_design_experiments_keep_the_noise_model(noise, sigma):
    """Sigma is in the unit of the noise: a logarithm for LogNormal, not a standard deviation for StudentT."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 5})
    times, off = np.array([1.0, 2, 4, 7]), np.array([1.02, 0.97, 1.03, 0.99])
    pilot = cf.Experiment({"x": 5 * np.exp(-0.5 * times) * off}, times, sigma=0.1, noise=noise)
    result = cf.fit(cf.Problem(model, pilot, parameters={"k": cf.Parameter(0.5, scale="log")}))
    offered = cf.Candidate(np.arange(0.5, 10, 0.5), **({} if sigma is None else {"sigma": sigma}))
    design = cf.design(result, offered, budget=4)
    next_fit = cf.fit(design.problem, start=result)
    assert design.after["k"] * result.values["k"] == pytest.approx(next_fit.standard_errors["k"], rel=1e-5)


@pytest.mark.parametrize(
    ("noise", "standardized_difference"),
    [
        (cf.Gaussian(), lambda mu, y: (mu - y) / 0.1),
        (cf.LogNormal(), lambda mu, y: np.log(mu / y) / 0.1),
        (cf.LogNormal(base=10), lambda mu, y: np.log10(mu / y) / 0.1),
        (cf.StudentT(df=4), lambda mu, y: np.sqrt(5 / 7) * (mu - y) / 0.1),
        (cf.Poisson(), lambda mu, y: (mu - y) / np.sqrt(mu)),
    ],
    ids=["normal", "log", "log10", "student", "poisson"],
)
def test_discrimination_misfit_is_on_the_scale_of_the_noise(noise, standardized_difference):
    """Compare with the misfit of the nearest second-order decay at old and new times."""
    x, k = cf.symbols("x k")
    times, size = np.array([1.0, 2, 4]), 200 if isinstance(noise, cf.Poisson) else 1
    values = np.round(size * np.exp(-0.5 * times) * [1.05, 0.93, 1.1], 0 if size > 1 else 8)
    sigma = None if size > 1 else 0.1
    experiment = cf.Experiment({"seen": values}, times, sigma=sigma, noise={"seen": noise})
    first_fit, second_fit = (
        cf.fit(
            cf.Problem(
                cf.Model({x: -k * x**n}, parameters=[k], initial={x: 1}, outputs={"seen": size * x}),
                experiment, parameters={"k": cf.Parameter(0.5, scale="log")},
            )
        )
        for n in (1, 2)
    )  # fmt: skip
    design = cf.design(first_fit, cf.Candidate(np.arange(1.0, 9)), budget=3, criterion=cf.discriminate(second_fit))
    all_times = np.concatenate([times, np.repeat(design.table["time"], design.table["count"])])
    mu = size * np.exp(-first_fit.values["k"] * all_times)
    nearest = least_squares(
        lambda z: standardized_difference(mu, size / (1 + np.exp(z[0]) * all_times)), [np.log(second_fit.values["k"])]
    )
    assert f"chi2 = {2 * nearest.cost:.4g} beyond the noise" in str(design)


def test_misfits_compare_predictions_below_a_limit_of_detection():
    """The share of the information is small there, but the distance of two predictions is not cut at the limit."""
    noise, s = cf.LogNormal(0.1, below=0.3), np.array([0.1])
    mu, rival = np.array([0.28]), np.array([0.25])
    root, _ = _compute_misfit_roots(noise, mu, s, s, rival, np.ones((1, 1)))
    assert root[0] == pytest.approx(np.sqrt(censoring_share(noise, mu, s)[0]) * np.log(0.28 / 0.25) / 0.1, rel=1e-9)


def chain(output: str, sigma: float) -> cf.Result:
    """Fit a model whose outputs depend on earlier measurements, and in which something happens at t = 5."""
    x, y, k, d = cf.symbols("x y k d")
    outputs = {"made": cf.per_interval(d * y), "mean": cf.interval_mean(y), "fold": cf.relative_to_first(y)}
    model = cf.Model({x: -k * x, y: k * x - d * y}, parameters=[k, d], outputs=outputs, initial={x: 5, y: 0})
    times, noise = [1.0, 2, 4, 7], sigma * np.array([0, 0.9, -0.7, 0.4])
    placeholder_data = {"x": np.ones(4), output: np.ones(4)}
    experiment = cf.Experiment(
        placeholder_data, times, sigma={"x": 0.1, output: sigma}, events=[cf.Event(5, {y: 0.3 * y})]
    )
    guesses = {"k": cf.Parameter(0.5, scale="log"), "d": cf.Parameter(0.2, scale="log")}
    problem = cf.Problem(model, experiment, parameters=guesses)
    simulation = cf.simulate(problem, times=times)["experiment 1"]
    data = {"x": simulation["x"] + 0.1 * noise / sigma, output: simulation[output] + noise}
    return cf.fit(problem.replace(experiments=[experiment.with_values(data)]))


@pytest.mark.parametrize("output", ["made", "mean", "fold"])
def test_history_dependent_outputs_are_designed_as_whole_experiments(output):
    """Values by themselves were promised as if all the others of the grid were measured, too."""
    result = chain(output, 0.05)
    with pytest.raises(cf.InputError, match=f"a measurement of '{output}' depends on earlier measurements; give"):
        cf.design(result, cf.Candidate([1, 3, 6], [output]), budget=2)
    design = cf.design(result, cf.Candidate([1, 3, 6], [output], cost_unit="experiment"), budget=2)
    next_fit = cf.fit(design.problem, start=result)
    for name, error in next_fit.standard_errors.items():
        assert design.after[name] * result.values[name] == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("times", [[1, 3, 6], [1, 3]], ids=["bought", "offered"])
def test_design_experiments_omit_events_after_the_last_value(times):
    """As a problem must: no data can show it."""
    result = chain("made", 0.05)
    design = cf.design(result, cf.Candidate(times, ["x"]), budget=2)
    last_time = max(design.table["time"])
    assert last_time < 5.0
    assert not design.experiments[0].events
    next_fit = cf.fit(design.problem, start=result)
    assert design.after["k"] * result.values["k"] == pytest.approx(next_fit.standard_errors["k"], rel=1e-5)


def test_free_initial_state_of_a_new_experiment_costs_information():
    a, k = cf.symbols("a k")
    model = cf.Model({a: -k * a}, parameters=[k], initial={})
    experiment = cf.Experiment({"a": [1.0, 0.6, 0.4]}, [0.0, 1, 2], sigma=0.05, initial={"a": cf.free(1.0)})
    result = cf.fit(cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.5)}))
    free_design = cf.design(result, cf.Candidate(np.linspace(0, 8, 81), ["a"]), budget=4, over="k")
    same_design = cf.design(result, cf.Candidate(np.linspace(0, 8, 81), ["a"], repeats=True), budget=4, over="k")
    assert free_design.criterion == "Ds"
    assert len(free_design.information.names) == 3
    assert same_design.after["k"] < free_design.after["k"] < free_design.before["k"]


@pytest.mark.parametrize("criterion", ["A", "E", cf.variance_of("k1"), cf.variance_of(cf.OutputAt("b", 30))])
def test_design_efficiency_and_gap_by_criterion(criterion):
    design = cf.design(fitted(), cf.Candidate(GRID, ["a", "b"], sigma=0.03), budget=8, criterion=criterion)
    assert 0.85 < design.efficiency <= 1
    assert design.relaxed.gap <= 1e-6 * max(1.0, abs(design.value))


def test_variance_of_an_expression_matches_the_next_fit():
    k1, k2 = cf.symbols("k1 k2")
    result = fitted()
    design = cf.design(result, cf.Candidate(GRID, ["b"]), budget=3, criterion=cf.variance_of(k1 / k2))
    next_fit = cf.fit(design.problem, start=result.values)
    slope = np.array([1 / next_fit.values["k2"], -next_fit.values["k1"] / next_fit.values["k2"] ** 2])
    assert design.value == pytest.approx(slope @ next_fit.covariance @ slope, rel=0.05)


@pytest.mark.parametrize("targets", [("k1", "k2"), (cf.OutputAt("b", 20),)], ids=["rates", "prediction"])
def test_variance_of_design_is_independent_of_units(targets):
    """Rates per day or per second, concentrations of 1 or of 1e-5: the same samples."""
    designs = []
    for day, one in ((1.0, 1.0), (86400.0, 1e-5)):
        a, b, k1, k2 = cf.symbols("a b k1 k2")
        model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: one, b: 0.0})
        pilot = cf.Experiment({"b": one * np.array([0.37, 0.36])}, [1 * day, 5 * day], sigma=0.03 * one)
        problem = cf.Problem(model, pilot, parameters={"k1": 0.5 / day, "k2": 0.3 / day})
        scaled_targets = [cf.OutputAt("b", 20 * day) if isinstance(w, cf.OutputAt) else w for w in targets]
        candidate = cf.Candidate(np.linspace(0.5, 12, 24) * day, ["b"], sigma=0.03 * one, at_most=2)
        designs.append(cf.design(problem, candidate, budget=5, criterion=cf.variance_of(*scaled_targets)))
    assert designs[0].table["count"].tolist() == designs[1].table["count"].tolist()
    assert sum(designs[0].table["count"]) == 5
    assert designs[1].table["time"] == pytest.approx(86400 * designs[0].table["time"])
    assert designs[1].efficiency == pytest.approx(designs[0].efficiency, rel=1e-3)


def test_design_respects_spacing_budgets_and_distinct():
    result = fitted()
    design = cf.design(result, cf.Candidate(GRID, ["b"], spacing=1.0), budget=5)
    assert np.diff(design.table["time"]).min() >= 1 - 1e-9
    design = cf.design(result, cf.Candidate(GRID, ["a", "b"], sigma=0.03), budget={"a": 1, "b": 3})
    counts_by_output = dict(zip(design.table["output"], design.table["count"], strict=True))
    assert set(counts_by_output) == {"a", "b"}
    assert design.table["count"][design.table["output"] == "a"].sum() == 1
    design = cf.design(result, cf.Candidate(GRID, ["b"]), budget=6, distinct=3)
    assert design.table["time"].size >= 3


def test_design_with_whole_and_fixed_experiments_and_a_price():
    result = fitted()
    short = cf.Candidate([1, 2, 4], ["b"], cost_unit="experiment", cost=3, name="short", at_most=2)
    long = cf.Candidate([4, 8, 16], ["b"], cost_unit="experiment", cost=3, name="long", at_most=2)
    fixed_candidate = cf.Candidate([7.0], ["b"], fixed=True, name="done")
    design = cf.design(result, [short, long, fixed_candidate], budget=7)
    assert design.spent <= 7
    assert {e.name for e in design.experiments} <= {"short", "long", "done"}
    assert "Perform done (fixed)." in str(design)
    nothing = cf.design(result, short, price=100.0)
    assert nothing.counts.sum() == 0
    assert nothing.table["time"].size == 0
    assert "no measurement is worth its price" in str(nothing)


@pytest.mark.parametrize(("criterion", "price"), [("D", 0.1), ("A", 1e-3), (cf.variance_of("k1"), 1e-4)])
def test_design_with_a_price_alone_has_the_optimal_size(criterion, price):
    candidate = cf.Candidate(GRID, ["b"])
    weights = cf.design(box_lucas(), candidate, price=price, criterion=criterion, exact=False)
    assert 0 <= weights.gap <= 1e-6 * max(1.0, abs(weights.value))
    spent = weights.counts.sum()
    # At the best size a last bit of spending is worth its price; all of it n of D, and f itself of A and c.
    worth = 2.0 if criterion == "D" else weights.value - price * spent
    assert price * spent == pytest.approx(worth, rel=1e-5)
    for other in (0.8 * spent, 1.25 * spent):  # no other budget has a better sum of both
        fixed = cf.design(box_lucas(), candidate, budget=other, criterion=criterion, exact=False)
        assert fixed.value + price * other > weights.value
    design = cf.design(box_lucas(), candidate, price=price, criterion=criterion)
    assert 0.99 < design.efficiency <= 1.0
    assert f"The cost is {design.spent:g}; at a price of {price:g} " in str(design)
    assert "within the budget" not in str(design)
    for i in np.flatnonzero(design.counts):
        less = design.counts - (np.arange(design.counts.size) == i)
        value = design.design_goal.values(design.selection.pool.information(less)) + price * less.sum()
        assert value >= design.value
    assert design.plot().axes


def test_design_with_price_and_budget_buys_nothing_that_does_not_pay():
    design = cf.design(fitted(), cf.Candidate(GRID, ["b"]), budget=6, price=1.0)
    assert design.counts.sum() == 0
    assert "The cost is 0; at a price of 1 " in str(design)


def test_simple_designs_and_efficiencies_in_the_summary():
    design = cf.design(fitted(), cf.Candidate(GRID, ["b"], name="next"), budget=6)
    assert set(design.simple) == {"equidistant times", "times in equal ratios", "the present times"}
    assert max(design.simple_efficiency, key=design.simple_efficiency.get) == "the present times"
    percentages = {n: f"{100 * e:.0f} %" for n, e in design.simple_efficiency.items()}
    template = "; equidistant times reach {}, times in equal ratios {}, the present times {}."
    assert template.format(*percentages.values()) in str(design)
    assert "present times, same cost" in str(design)
    present, even = [1, 1, 2, 4, 4, 8], np.linspace(0.1, 20, 6)
    for name, times in (("the present times", present), ("equidistant times", even)):
        counts = np.zeros(GRID.size)
        np.add.at(counts, [np.argmin(np.abs(GRID - t)) for t in times], 1.0)
        sd = np.sqrt(np.diag(np.linalg.inv(design.selection.pool.information(counts)[0])))
        np.testing.assert_allclose(list(design.simple[name].values()), sd, rtol=1e-9)
    early = np.linspace(0, 400, 4001)  # at equidistant times nothing is left
    blind = cf.design(box_lucas(), cf.Candidate(early, ["b"], name="next"), budget=4)
    assert "; equidistant times leave k1, k2 unknown, " in str(blind)
    assert " 0 %" not in str(blind)


def test_equidistant_times_start_at_the_first_informative_time():
    for grid, even in (([1.0, 2, 3, 4], [1, 4]), ([0.0, 1, 2, 3, 4], [2, 4])):  # at 0 the states are known
        design = cf.design(fitted(), cf.Candidate(grid, ["b"], name="next"), budget=2)
        information = design.selection.pool.information(np.isin(grid, even).astype(float))[0]
        standard_deviations = list(design.simple["equidistant times"].values())
        np.testing.assert_allclose(standard_deviations, np.sqrt(np.diag(np.linalg.inv(information))))


def test_design_over_samples_is_robust():
    result = fitted()
    draws = cf.bootstrap(result, samples=12, rng=0)
    mean = cf.design(draws, cf.Candidate(GRID, ["b"]), budget=6)
    worst = cf.design(draws, cf.Candidate(GRID, ["b"]), budget=6, worst=True, exact=False)
    assert mean.efficiency > 0.98
    assert 0 <= worst.gap < 0.05
    assert worst.criterion == "D"


def test_design_over_samples_is_verified_at_the_estimate():
    result = fitted()
    design = cf.design(cf.bootstrap(result, samples=6, rng=0), cf.Candidate(GRID, ["b"], name="next"), budget=6)
    assert abs(design.information.thetas - result.theta).min() > 1e-6  # no draw is the estimate
    truth = {name: one.truth for name, one in design.verify(2).quantities.items()}
    assert truth == pytest.approx(result.values, rel=1e-12)
    times = design.table["time"]
    predictions = cf.simulate(box_lucas(), result.values, times)["experiment 1"]["b"]
    np.testing.assert_allclose(design.table["prediction"], predictions, rtol=1e-5)


def test_design_plot_verify_and_petab_export(tmp_path):
    design = cf.design(fitted(), cf.Candidate(GRID, ["b"], name="next"), budget=6)
    figure = design.plot(tmp_path / "design.png")
    assert len(figure.axes) == 4
    assert (tmp_path / "design.png").stat().st_size > 10_000
    verified = design.verify(12)
    assert verified.fitted == 12
    pytest.importorskip("petab")
    loaded_problem = cf.petab.load(design.save_petab(tmp_path / "next"))
    assert loaded_problem.n_data == 10


def test_result_sensitivities_match_differences():
    result = fitted()
    sensitivities = result.sensitivities([0.5, 3.0])["experiment 1"]
    h = 1e-4
    for j, name in enumerate(result.names):
        up, down = (
            cf.simulate(box_lucas(), {**result.values, name: result.values[name] * (1 + s * h)}, [0.5, 3.0])
            for s in (1, -1)
        )
        for o, output in enumerate(sensitivities.names):
            slope = (up["experiment 1"][output] - down["experiment 1"][output]) / (2 * h * result.values[name])
            np.testing.assert_allclose(sensitivities.slopes[:, o, j], slope, rtol=1e-4, atol=1e-6)
    with pytest.raises(cf.InputError, match="times of 'experiment 1' are"):
        result.sensitivities([-1.0])


def test_cli_design_prints_and_plots(tmp_path, capsys):
    from castfit.cli import main

    picture = tmp_path / "design.png"
    arguments = [
        "design",
        "bellman",
        "--guess",
        "--budget",
        "3",
        "--sigma",
        "1",
        "--over",
        "k1",
        "--plot",
        str(picture),
    ]
    assert main(arguments) == 0
    assert "Measure z at t = " in capsys.readouterr().out
    assert picture.exists()
    assert main(["design", "bellman", "--guess", "--price", "0.5", "--sigma", "1"]) == 0
    assert "The cost is 4; at a price of 0.5" in capsys.readouterr().out


def test_cli_design_lists_all_mistakes_before_fitting(capsys):
    from castfit.cli import main

    arguments = ["--experiment", "q", "--outputs", "y", "--over", "k9", "--times", "now", "--spacing", "-1"]
    arguments += ["--choose", "z=5:1", "--choose", "w=1:2", "--choose", "k1=a"]
    assert main(["design", "bellman", *arguments]) == 2
    output = capsys.readouterr()
    assert not output.out
    for part in ("9 mistakes", "'q' is none", "'y' is none", "'k9' is not estimated", "give A:B:N", "exchange them",
                 "'w' is not an input", "--choose is 'k1=a'", "spacing is -1", "set --budget or --price"):  # fmt: skip
        assert part in output.err
    assert main(["design", "bellman", "--budget", "0", "--price", "-1"]) == 2
    assert "--budget is 0; give a positive number\n  - --price is -1" in capsys.readouterr().err


MISTAKES = [
    ({"budget": 0}, "budget is 0; expected a positive number"),
    ({"budget": {"c": 3}}, "budget names 'c'"),
    ({"budget": None}, "without a budget the design is unbounded"),
    ({"criterion": "F"}, "criterion is 'F'; expected"),
    ({"criterion": cf.variance_of("k3")}, "'k3' is not estimated"),
    ({"criterion": cf.variance_of(cf.OutputAt("c", 3))}, "'c' is no output"),
    ({"over": ["k3"]}, "over names 'k3'"),
    ({"worst": True}, "worst=True needs parameter samples"),
    ({"distinct": 0}, "distinct is 0"),
    ({"price": -1}, "price is -1"),
    ({"budget": None, "price": 1, "criterion": "E"}, "without a budget the design is unbounded"),
    ({"budget": None, "price": 1, "distinct": 3}, "distinct= distributes a budget"),
    ({"price": 1, "worst": True, "criterion": "A"}, "price= is defined only for criterion 'D'"),
    ({"rng": "a"}, "rng is 'a'"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=lambda o: str(o)[:30])
def test_design_with_invalid_options_names_the_mistake(options, message):
    with pytest.raises(cf.InputError, match=message.replace("(", r"\(")):
        cf.design(box_lucas(), cf.Candidate(GRID, ["b"]), **{"budget": 6, **options})


def test_design_with_invalid_candidates_is_refused():
    with pytest.raises(cf.InputError, match="'c' is no output"):
        cf.design(box_lucas(), cf.Candidate(GRID, ["c"]), budget=6)
    with pytest.raises(cf.InputError, match="'a' was not measured, so its accuracy is unknown"):
        cf.design(box_lucas(), cf.Candidate(GRID, ["a"]), budget=6)
    with pytest.raises(cf.InputError, match="the experiment at 0; begin later"):
        cf.design(box_lucas(), cf.Candidate([-1.0, 2.0]), budget=6)
    with pytest.raises(cf.InputError, match=r"(?s)times is .*cost is -1.*cost_unit is 'all'"):
        cf.Candidate("now", cost=-1, cost_unit="all")


def test_design_with_unidentifiable_quantities_is_refused():
    x, k1, k2, k3 = cf.symbols("x k1 k2 k3")
    guesses = {n: cf.Parameter(0.5, scale="log") for n in ("k1", "k2", "k3")}
    pilot = cf.Experiment({"x": [0.5, 0.2]}, [1, 2], sigma=0.1)
    product = cf.Problem(
        cf.Model({x: -k1 * k2 * x - k3}, parameters=[k1, k2, k3], initial={x: 2.0}), pilot, parameters=guesses
    )
    grid = np.linspace(0.5, 5, 10)
    with pytest.raises(cf.InputError, match="cannot distinguish k1, k2 from other quantities; add"):
        cf.design(product, cf.Candidate(grid), budget=6)
    design = cf.design(product, cf.Candidate(grid), budget=6, over="k3")
    assert "k1, k2 will not be identifiable after this experiment" in str(design)
    with pytest.raises(cf.InputError, match="no candidate depends on k2"):
        cf.design(box_lucas(), cf.Candidate(GRID, ["a"], sigma=0.1), budget=6)
    with pytest.raises(cf.InputError, match="one measurement is not enough for 2 quantities"):
        cf.design(box_lucas(), cf.Candidate(GRID, ["b"]), budget=1)


def test_design_with_uninformative_or_unaffordable_candidates_is_refused():
    nothing = "the candidates add no information; offer other times"
    for candidate in (cf.Candidate([0.0], ["b"]), cf.Candidate([1e4, 2e4], ["b"])):  # b begins with 0, and ends there
        with pytest.raises(cf.InputError, match=nothing):
            cf.design(fitted(), candidate, budget=3)
    with pytest.raises(cf.InputError, match="the budget is smaller than the cost of every candidate"):
        cf.design(fitted(), cf.Candidate(GRID, cost=2), budget=1)
    with pytest.raises(cf.InputError, match="result is not a solution; pass its problem"):
        cf.design(cf.fit(box_lucas(), "single", cf.GaussNewton(max_iter=1)), cf.Candidate(GRID), budget=3)


def test_design_at_poorly_determined_estimates_is_refused():
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1.0, b: 0.0})
    twice = cf.Experiment({"b": [0.45, 0.46]}, [1.0, 1.02], start=0, sigma=0.03)
    guesses = {n: cf.Parameter(v, lower=0, scale="log") for n, v in {"k1": 0.7, "k2": 0.2}.items()}
    result = cf.fit(cf.Problem(model, twice, parameters=guesses))
    assert result.values["k2"] < 1e-6
    for criterion in ("D", "A", "E", cf.variance_of("k2")):
        with pytest.raises(
            cf.InputError, match="at estimates that are poorly determined; pass the problem with trusted guesses"
        ):
            cf.design(result, cf.Candidate(GRID), budget=4, criterion=criterion)


def of_noise(noise):
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1.0, b: 0.0})
    guesses = {n: cf.Parameter(v, lower=0, scale="log") for n, v in {"k1": 0.7, "k2": 0.2}.items()}
    spec = noise(b)
    options = {"noise": {"b": spec}} if isinstance(spec, cf.Gaussian) else {"sigma": {"b": spec}}
    data = cf.Experiment({"b": [0.45, 0.53, 0.52, 0.1]}, [1, 2, 4, 30], **options)
    return cf.Problem(model, data, parameters=guesses)


def test_design_avoids_values_below_a_limit_of_detection():
    result = cf.fit(of_noise(lambda b: cf.Gaussian(0.03, below=0.1)))
    design = cf.design(result, cf.Candidate([1.0, 2, 20, 30]), budget=6)
    for name, error in result.standard_errors.items():
        assert design.before[name] * result.values[name] == pytest.approx(error, rel=1e-5)
    assert design.table["time"].max() <= 2  # at 20 nothing is detected
    with pytest.raises(cf.InputError, match="this combination is unsupported"):
        cf.design(of_noise(lambda b: cf.Gaussian(0.02 + 0.1 * b, below=0.1)), cf.Candidate(GRID), budget=3)


@pytest.mark.parametrize(
    ("noise", "mu"),
    [
        (cf.Gaussian(0.1, below=0.3), 0.25),
        (cf.Gaussian(0.1, above=0.3), 0.25),
        (cf.Gaussian(0.1, below=0.2, above=0.3), 0.25),
        (cf.LogNormal(0.1, below=0.3), 0.25),
        (cf.Gaussian(0.1, below=0.3), -2.0),
    ],
)
def test_censoring_share_equals_the_mean_square_score(noise, mu):
    axis, s = (np.log, 0.1) if isinstance(noise, cf.LogNormal) else (np.asarray, 0.1)
    low, high = (
        np.inf * sign if limit is None else axis(limit) for limit, sign in ((noise.below, -1), (noise.above, 1))
    )
    z = np.linspace(max((low - axis(mu)) / s, -9.0), max(min((high - axis(mu)) / s, 9.0), -9.0), 20001)
    inside = np.trapezoid(z**2 * norm.pdf(z), z) if z[-1] > z[0] else 0.0
    z_limits = [((low - axis(mu)) / s), ((axis(mu) - high) / s)]
    score = inside + sum(norm.pdf(limit) ** 2 / norm.cdf(limit) for limit in z_limits if np.isfinite(limit))
    assert censoring_share(noise, np.array([mu]), np.array([s]))[0] == pytest.approx(score, abs=1e-6)


def test_design_with_correlated_errors_is_refused():
    with pytest.raises(cf.InputError, match="correlated measurement errors are unsupported"):
        cf.design(of_noise(lambda b: cf.correlated(0.03, time=1.0)), cf.Candidate(GRID), budget=3)
    with pytest.raises(cf.InputError, match="correlated measurement errors are unsupported"):
        cf.design(cf.fit(of_noise(lambda b: cf.correlated(0.03, time=1.0))), cf.Candidate(GRID), budget=3)


def test_design_with_budgets_fixed_candidates_and_doses():
    result = fitted()
    free_candidate = cf.Candidate(GRID, ["a", "b"], sigma=0.03, name="more")
    dosed_candidate = cf.Candidate(
        GRID, ["b"], events=cf.Doses(into="a", amount=1.0, times=[5.0]), spacing=0.5, name="dosed"
    )
    fixed_candidate = cf.Candidate([3.0, 5.0], ["b"], fixed=True, name="done")
    design = cf.design(
        result, [free_candidate, dosed_candidate, fixed_candidate], budget={"a": 2, "dosed": 3, "all": 8}
    )
    table, count = design.table, design.table["count"]
    assert count[table["output"] == "a"].sum() <= 2
    assert count[table["candidate"] == "dosed"].sum() == 3
    assert np.diff(table["time"][table["candidate"] == "dosed"]).min() >= 0.5 - 1e-9
    assert design.spent == 8  # including the two fixed measurements
    assert {e.name for e in design.experiments} == {"more", "dosed", "done"}
    assert 0.9 < design.efficiency <= 1


def test_design_of_a_loaded_result_needs_its_problem(tmp_path):
    fitted().save(tmp_path / "fit.json")
    loaded_result = cf.Result.load(tmp_path / "fit.json")
    with pytest.raises(cf.InputError, match="the result has no problem; use result"):
        cf.design(loaded_result, cf.Candidate(GRID), budget=3)
    direct_design, loaded_design = (
        cf.design(r, cf.Candidate(GRID), budget=3) for r in (fitted(), loaded_result.with_problem(box_lucas()))
    )
    assert loaded_design.value == pytest.approx(direct_design.value)


@pytest.mark.slow
def test_discrimination_of_decay_orders_matches_simulations():
    # The recipe of Atkinson and Fedorov (1975): a third at 0.7, two thirds at 6.7; T = 0.010366 is the bound.
    grid = np.linspace(0.1, 10, 100)
    criterion = cf.discriminate(decay(2))
    shares = cf.design(decay(1), cf.Candidate(grid, sigma=1.0), budget=1, criterion=criterion, exact=False)
    np.testing.assert_allclose(shares.table["time"], [0.7, 6.7])
    np.testing.assert_allclose(shares.table["count"], [1 / 3, 2 / 3], atol=5e-3)
    assert -shares.value == pytest.approx(0.010366, abs=1e-6)
    assert 0 <= shares.gap <= 1e-6
    # Eight values: 91.52 at these times, three and five; 50.94 at 1.25, 2.5, ... 10
    grid = np.union1d(np.arange(0, 10.1, 0.25), [0.7, 6.7])
    design = cf.design(decay(1), cf.Candidate(grid), budget=8, criterion=criterion)
    assert 91.5 < -design.value < 91.6
    assert design.equidistant_efficiency * -design.bound == pytest.approx(50.94, abs=0.01)
    assert f"chi2 = {-design.value:.4g} beyond the noise (equidistant: 50.94)" in str(design)
    # Second way: a hundred simulations, fitted by the rival's formula; the noise itself leaves seven
    times = np.repeat(design.table["time"], design.table["count"])
    rng, left = np.random.default_rng(0), list[float]()
    for _ in range(100):
        values = np.exp(-0.5 * times) + 0.03 * rng.standard_normal(8)
        fit = least_squares(lambda k, y=values: (y - 1 / (1 + k * times)) / 0.03, 0.5)
        left.append(2 * fit.cost - 7)
    assert np.mean(left) == pytest.approx(-design.value, abs=3 * np.std(left) / 10)


@pytest.mark.slow
def test_discrimination_matches_atkinson_and_fedorov():
    # Atkinson and Fedorov (1975), example 1; the rival is linear: a Chebyshev approximation
    z, t, a, b, c = cf.symbols("z t a b c")
    pilot = cf.Experiment({"y": [1.0]}, [0.0], start=-1.0, sigma=1.0)
    wave = 4.5 - 1.5 * cf.exp(t) - 2 * cf.exp(-t)
    true = cf.Model({z: 0 * z}, parameters=[a], initial={z: 0.0}, outputs={"y": wave + a - 1}, time=t)
    parabola = cf.Model({z: 0 * z}, parameters=[a, b, c], initial={z: 0.0}, outputs={"y": a + b * t + c * t**2}, time=t)
    problem = cf.Problem(true, pilot, parameters={"a": 1.0})
    rival_problem = cf.Problem(parabola, pilot, parameters=dict.fromkeys("abc", 1.0))
    grid = cf.Candidate(np.linspace(-1, 1, 401))
    design = cf.design(problem, grid, budget=1, criterion=cf.discriminate(rival_problem), exact=False)
    used = design.table["count"] > 1e-3
    np.testing.assert_allclose(design.table["time"][used], [-1, -0.67, 0.145, 0.955], atol=1e-9)
    np.testing.assert_allclose(design.table["count"][used], [0.253, 0.428, 0.247, 0.072], atol=1.5e-3)
    assert -design.value == pytest.approx(1.0867e-3, rel=1e-4)


@pytest.mark.parametrize("exact", [True, False])
def test_models_that_are_known_exactly_are_discriminated(exact):
    """The truth has no quantity in Atkinson and Fedorov's example; then neither model has one."""
    z, t, a, b, c = cf.symbols("z t a b c")
    pilot = cf.Experiment({"y": [1.0]}, [0.0], start=-1.0, sigma=1.0)
    true = cf.Model({z: 0 * z}, initial={z: 0.0}, outputs={"y": 4.5 - 1.5 * cf.exp(t) - 2 * cf.exp(-t)}, time=t)
    parabola = cf.Model({z: 0 * z}, parameters=[a, b, c], initial={z: 0.0}, outputs={"y": a + b * t + c * t**2}, time=t)
    known = cf.Problem(true, pilot)
    rival_problem = cf.Problem(parabola, pilot, parameters=dict.fromkeys("abc", 1.0))
    grid = cf.Candidate(np.linspace(-1, 1, 401))
    budget = 20 if exact else 1
    design = cf.design(known, grid, budget=budget, criterion=cf.discriminate(rival_problem), exact=exact)
    assert -design.value / budget == pytest.approx(1.0867e-3, rel=1e-4 if not exact else 0.02)
    assert "after this" not in str(design)
    line = rival_problem.replace(parameters={n: cf.Parameter(float(n == "a"), fixed=True) for n in "abc"})
    times = np.array([-1.0, 0.0, 0.5])
    other = cf.design(known, cf.Candidate(times), budget=budget, criterion=cf.discriminate(line), exact=exact)
    distances = (4.5 - 1.5 * np.exp(times) - 2 * np.exp(-times) - 1.0) ** 2
    assert other.table["time"].tolist() == [times[distances.argmax()]]
    assert -other.value == pytest.approx(budget * distances.max(), rel=1e-6)


def test_only_discrimination_accepts_a_problem_without_quantities():
    z = cf.symbols("z")
    problem = cf.Problem(cf.Model({z: -z}, initial={z: 1.0}), cf.Experiment({"z": [1.0]}, [0.5], sigma=1.0))
    for criterion in ("D", "A", "E"):
        with pytest.raises(cf.InputError, match="nothing is estimated: free a parameter"):
            cf.design(problem, cf.Candidate(GRID), budget=6, criterion=criterion)


@pytest.mark.parametrize("target", [5.0, 2.5, 11.3])
def test_unused_weights_are_not_listed(target):
    x, t, V, K = cf.symbols("x t V K")
    model = cf.Model({x: -x}, parameters=[V, K], time=t, outputs={"y": V * t / (K + t)}, initial={x: 1})
    data = cf.Experiment({"y": [1.0, 1]}, [1, 2], start=0, sigma=1.0)
    problem = cf.Problem(model, data, parameters={"V": 10.0, "K": 2.0})
    criterion = cf.variance_of(cf.OutputAt("y", target))
    candidate = cf.Candidate(np.arange(0.05, 20.01, 0.05), ["y"])
    design = cf.design(problem, candidate, budget=1, exact=False, criterion=criterion)
    assert design.counts[design.counts > 0].min() > 1e-3
    assert design.counts.sum() == pytest.approx(1.0, abs=1e-4)
    assert design.value - design.bound < 1e-3 * abs(design.value)


def test_rare_purchases_that_a_quantity_needs_are_kept():
    """Half of the budget is for the slope, at a cost of 1e6 a value: a weight of 5e-7 of the others."""
    x, t, a, b = cf.symbols("x t a b")
    outputs = {"level": a + 0 * t, "slope": b + 0 * t}
    model = cf.Model({x: -x}, parameters=[a, b], time=t, outputs=outputs, initial={x: 1})
    data = cf.Experiment({"level": [1.0], "slope": [1.0]}, [1], start=0, sigma=1.0)
    problem = cf.Problem(model, data, parameters={"a": 1.0, "b": 1.0})
    candidate = cf.Candidate([1.0], cost={"level": 1.0, "slope": 1e6})
    design = cf.design(problem, candidate, budget=1e6, exact=False)
    np.testing.assert_allclose(np.sort(design.counts), [0.5, 5e5], rtol=1e-3)


@pytest.mark.parametrize("samples", [1, 3])
def test_predictions_of_a_design_are_at_the_estimate(samples):
    result = fitted()
    draws = cf.bootstrap(result, samples=4, rng=0)
    design = cf.design(draws, cf.Candidate(GRID, ["b"]), budget=6, samples=samples)
    times = design.table["time"]
    predictions = cf.simulate(box_lucas(), result.values, times)["experiment 1"]["b"]
    np.testing.assert_allclose(design.table["prediction"], predictions, rtol=1e-5)
    assert "cf.sample(result)" not in str(design)
    with pytest.raises(cf.InputError, match="discriminate needs a Result or a Problem"):
        cf.design(draws, cf.Candidate(GRID, ["b"]), budget=6, samples=samples, criterion=cf.discriminate(box_lucas()))


def test_discriminate_with_invalid_rivals_is_refused():
    with pytest.raises(cf.InputError, match="a competing model is 3; expected"):
        cf.discriminate(3)
    with pytest.raises(cf.InputError, match="the competing model has no output 'b'"):
        cf.design(box_lucas(), cf.Candidate(GRID, ["b"]), budget=6, criterion=cf.discriminate(decay(1)))


def test_design_of_a_refuted_fit_warns():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    times = np.linspace(0.2, 8, 40)
    experiment = cf.Experiment({"x": 1 + 0.5 * np.sin(3 * times)}, times, sigma=0.02)
    result = cf.fit(cf.Problem(model, experiment, parameters={"k": 1.0}))
    design = cf.design(result, cf.Candidate(times, ["x"]), budget=4)
    assert result.is_contradicted
    assert "The fitted model does not fit the data" in str(design)


def test_design_uses_equations_and_reports_ignored_constraints():
    """A + b = 1.5 is one quantity less: as in the model that has 1.5 - a in the place of b."""
    x, y, a, b = cf.symbols("x y a b")
    times, grid = np.linspace(0.5, 6.0, 8), np.linspace(0.5, 6.0, 12)

    def designed(parameters, rate, constraints):
        model = cf.Model({x: -a * x, y: a * x - rate * y}, parameters=parameters, initial={x: 1.0, y: 0.0})
        data = cf.simulate(model, {"a": 1.0, "b": 0.5} if len(parameters) == 2 else {"a": 1.0}, times)["y"]
        experiment = cf.Experiment({"y": data + 0.02 * np.sin(9 * times)}, time=times, start=0, sigma=0.02)
        guesses = dict(zip(("a", "b"), (0.9, 0.6), strict=True)) if len(parameters) == 2 else {"a": 0.9}
        result = cf.fit(cf.Problem(model, experiment, parameters=guesses, constraints=constraints))
        return result, cf.design(result, cf.Candidate(grid, outputs=["y"]), budget=4)

    _, reduced_design = designed([a], 1.5 - a, ())
    result, design = designed([a, b], b, [a + b == 1.5])
    assert design.table["time"].tolist() == reduced_design.table["time"].tolist()
    for errors, expected in ((design.before, reduced_design.before), (design.after, reduced_design.after)):
        assert errors["a"] == pytest.approx(expected["a"], rel=1e-4)
    assert design.before["b"] == pytest.approx(result.standard_errors["b"] / result.values["b"], rel=1e-4)
    assert "ignores" not in str(design)
    assert "The design ignores the information of the constraint a+b <= 1.4." in str(
        designed([a, b], b, [a + b <= 1.4])[1]
    )
