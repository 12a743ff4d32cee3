"""`cf.select`: the order of candidates, searches, averages, what is refused, and that runs can be continued."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit.drive.model_comparison.evidence import WeightedValues
from castfit.drive.model_comparison.search import QuadraticForecast, full_problem
from castfit.drive.model_comparison.select import read
from castfit.drive.model_comparison.selection_log import rank_by_criterion
from tests.builders import refused
from tests.workers import Post

TERMS = ("k2", "k3", "k4")
CHOICES = {n: [0, cf.estimated] for n in TERMS}


def four_terms(seed: int = 4, *, lower: float = -1.0, n: int = 12) -> Any:
    """A turns into B, which leaves: k1 and k4 are true, the way back (k2) and a second order loss (k3) are not."""
    a, b, k1, k2, k3, k4 = cf.symbols("a b k1 k2 k3 k4")
    rates = {a: -k1 * a + k2 * b - k3 * a**2, b: k1 * a - k2 * b - k4 * b}
    model = cf.Model(rates, parameters=[k1, k2, k3, k4], initial={a: 1, b: 0})
    t, noise = np.linspace(1, 12, n), 0.02 * np.random.default_rng(seed).standard_normal((2, n))
    a_values = np.exp(-0.6 * t)
    b_values = 0.6 / (0.25 - 0.6) * (a_values - np.exp(-0.25 * t))
    data = cf.Experiment({"a": a_values + noise[0], "b": b_values + noise[1]}, time=t, sigma=0.02)
    return cf.Problem(model, data, parameters={q: cf.Parameter(0.3, lower=lower, upper=5) for q in ("k1", *TERMS)})


def with_one_value_changed() -> Any:
    problem = four_terms(1)
    (experiment,) = problem.experiments
    changed = {name: values.copy() for name, (_, values) in experiment.data.items()}
    changed["a"][0] *= 1.1
    return problem.replace(experiments=experiment.with_values(changed))


@cache
def found(method: str = "all", criterion: str = "AICc") -> cf.SelectionResult:
    return cf.select(four_terms(), "single", choices=CHOICES, method=method, criterion=criterion)


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_all_candidates_are_those_fitted_one_by_one(half: int) -> None:
    assert len(found()) == 8
    for name in found().names[half::2]:
        problem = four_terms()
        fixed_parameters = {n: cf.Parameter(0.0, fixed=True) for n in TERMS if n not in name.split()}
        result = cf.fit(problem.replace(parameters={**problem.parameters, **fixed_parameters}), "single")
        assert found()[name].neg2loglik == pytest.approx(result.neg2loglik, abs=1e-6)
        k, n = len(result.names) - len(result.active), 24  # in "(none)" k1 is at its bound
        aicc = result.neg2loglik + 2 * k + 2 * k * (k + 1) / (n - k - 1)
        assert found().criteria[name] == pytest.approx(aicc, abs=1e-6)
    assert found().names[0] == "k4"
    assert found().importance["k4"] > 0.99
    assert sum(found().weights.values()) == pytest.approx(1.0)
    assert found()["k4 k1"] is found()["k4"]  # quantities that all estimate may be named
    assert "'k4' has the lowest AICc" in str(found())


@pytest.mark.parametrize("method", [pytest.param("forward", marks=pytest.mark.slow), "backward", "forecast"])
def test_searches_of_few_terms_find_the_best_with_fewer_fits(method: str) -> None:
    other = found(method)
    assert other.names[0] == found().names[0]
    assert len(other.fits) < 8
    assert other.complete
    for name in other:
        assert other.criteria[name] == pytest.approx(found().criteria[name], abs=1e-5)
    assert f"Method '{method}' fitted {len(other.fits)} of 8 candidates" in str(other)


@pytest.mark.slow
def test_famos_of_petab_select_finds_it_too() -> None:
    pytest.importorskip("petab_select")
    assert found("famos").names[0] == "k4"
    assert found("famos").complete


def test_select_fits_no_model_worse_than_a_nested_one() -> None:
    sizes = {n: set(n.split()) for n in found()}
    for one, other in combinations(found(), 2):
        small, large = sorted((one, other), key=lambda n: len(sizes[n]))
        if sizes[small] < sizes[large] or small == "(none)":
            assert found()[large].neg2loglik <= found()[small].neg2loglik + 1e-6


def test_select_refits_a_model_from_a_better_nested_model() -> None:
    x, w, c, t = cf.symbols("x w c t")
    times = np.linspace(0.5, 12, 24)
    model = cf.Model({x: w * cf.cos(w * t) + c}, parameters=[w, c], time=t, initial={x: 0})
    data = cf.Experiment({"x": np.sin(2.0 * times) + 0.01 * np.cos(9 * times)}, time=times, sigma=0.05)
    guess = {"w": cf.Parameter(6.0, bounds=(0, 20)), "c": cf.Parameter(0.0, bounds=(-1, 1))}
    near_problem = cf.Problem(model, data, parameters={"w": 2.1, "c": cf.Parameter(0.0, fixed=True)})
    far_problem = cf.Problem(model, data, parameters=guess)
    assert cf.fit(far_problem, "single", retry=False, second_start=False).chi2 > 100  # another hill
    selection = cf.select({"near": near_problem, "far": far_problem}, "single")
    assert selection["far"].chi2 <= selection["near"].chi2 + 1e-6
    assert "had not reached the optimum" in selection.message
    assert selection.names[0] == "near"  # what the drift adds is not worth a quantity


def test_ties_are_ordered_by_size_then_name() -> None:
    rows = dict(found().fits)
    values = {"k3 k4": 1.00004, "k4": 1.0, "k2 k4": 1.0, "k3": 0.0, "k2": np.inf, "(none)": np.nan}
    assert rank_by_criterion(values, rows) == ["k3", "k4", "k2 k4", "k3 k4", "(none)", "k2"]


@pytest.mark.parametrize("criterion", ["AIC", "AICc", "BIC"])
def test_a_quantity_at_its_bound_counts_in_no_driver(criterion: str) -> None:
    problem, choices = four_terms(lower=0.0), {n: CHOICES[n] for n in ("k2", "k3")}
    bounded = cf.select(problem, "single", choices=choices, criterion=criterion)
    at_bound = [n for n in bounded if bounded[n].active]
    assert at_bound
    for name in at_bound:
        result = bounded[name]
        held = [n for n in result.names if n in result.active]
        count = len(result.names) - len(held)
        assert (result.criteria.k, result.dof) == (count, result.n_data - count)
        assert bounded.criteria[name] == getattr(result.criteria, criterion.lower())
        (row,) = [line for line in str(bounded).splitlines() if line.startswith(f"{name}  ")]
        assert row.endswith(f"{', '.join(held)} at a bound, not counted")
    pair = {n: bounded[n] for n in bounded}
    assert "at a bound, not counted" in str(cf.compare_models(pair))


def test_forecasts_of_neighbours_are_near_their_fits() -> None:
    space = read(four_terms(), CHOICES)
    quadratic_forecast = QuadraticForecast.from_candidate(
        full_problem(space), found().candidate("k3 k4"), found()["k3 k4"]
    )
    assert quadratic_forecast is not None
    for name in ("k2 k3 k4", "k4", "k2 k4"):
        forecast = quadratic_forecast.criterion(found().candidate(name), "AICc")
        assert forecast == pytest.approx(found().criteria[name], abs=0.1)
    assert quadratic_forecast.criterion(found().candidate("k3 k4"), "AICc") == pytest.approx(
        found().criteria["k3 k4"], abs=1e-4
    )


def test_averages_are_those_of_burnham_and_anderson() -> None:
    weights, average = found().weights, found().average("k4")
    names = [n for n in found() if weights[n] > 1e-9]
    x = np.array([found()[n].values.get("k4", 0.0) for n in names])
    s = np.array([found()[n].standard_errors.get("k4", 0.0) for n in names])
    w = np.array([weights[n] for n in names])
    mean = float(w @ x)
    assert average == pytest.approx(mean, rel=1e-6)
    assert average.standard_error == pytest.approx(float(w @ np.sqrt(s**2 + (x - mean) ** 2)), rel=1e-5)
    assert average.standard_error > found()["k4"].standard_errors["k4"]
    k3_average = found().average("k3")
    assert k3_average == pytest.approx(sum(weights[n] * found()[n].values.get("k3", 0.0) for n in names), abs=1e-9)
    with refused("no candidate has 'k9'"):
        found().average("k9")


def test_quantiles_of_a_mixture_are_those_of_its_distribution() -> None:
    values = WeightedValues.from_rows([(np.array([0.0, 1.0]), np.array([1.0, 0.5]), 0.7, np.inf),
                                (np.array([4.0, 1.0]), np.array([0.5, 0.5]), 0.3, 6.0)])  # fmt: skip
    for p in (0.025, 0.5, 0.975):
        q = values.quantiles(p)
        probability = 0.7 * stats.norm.cdf(q, [0, 1], [1, 0.5]) + 0.3 * stats.t.cdf((q - [4, 1]) / 0.5, 6)
        assert probability == pytest.approx(p, abs=1e-9)
    open_ = WeightedValues.from_rows(
        [(np.zeros(1), np.ones(1), 0.9, np.inf), (np.zeros(1), np.full(1, np.inf), 0.1, np.inf)]
    )
    assert np.isneginf(open_.quantiles(0.04))
    assert np.isfinite(open_.quantiles(0.06))


def test_averaged_prediction_of_one_model_equals_its_own() -> None:
    selection = cf.select(four_terms(), "single", choices={"k4": [0, cf.estimated], "k2": [0, 0.01]})
    relevant_weights = {n: r for n, r in selection.weights.items() if r > 1e-4}
    assert len(relevant_weights) == 2
    single_predictions, averaged_predictions = (
        selection[selection.names[0]].predict([2.0, 9.0], bands="linear"),
        selection.predict([2.0, 9.0]),
    )
    lows = np.array([selection[n].predict([2.0, 9.0], bands="linear")["b lower"] for n in relevant_weights])
    assert (averaged_predictions["b lower"] >= lows.min(axis=0) - 1e-9).all()
    assert averaged_predictions["b"] == pytest.approx(single_predictions["b"], abs=0.02)
    single = cf.select(four_terms(), "single", choices={"k4": [0, cf.estimated]})
    assert single.weights["k4"] == pytest.approx(1.0)
    best = single["k4"].predict([2.0, 9.0], bands="linear")
    for entry in ("b", "b lower", "b upper"):
        assert single.predict([2.0, 9.0])[entry] == pytest.approx(best[entry], rel=1e-6)


def test_leaving_one_out_by_leverages_is_near_to_refits() -> None:
    result = found()["k4"]
    left, total = cf.leave_out(result, "value", transcription="single"), 0.0
    table = result.residual_table()
    for row, value, output, time in zip(left.rows, table["value"], table["output"], table["time"], strict=True):
        theta = dict(zip(result.names, row.theta, strict=True))
        predicted = cf.simulate(result.problem, theta, times=[float(time)])["experiment 1"][output][0]
        total += float((value - predicted) / 0.02) ** 2
    assert found().leave_one_out["k4"] == pytest.approx(total, rel=0.01)


def line_or_curve(values: Any, times: Any, **options: Any) -> cf.SelectionResult:
    x, t, a, b, c = cf.symbols("x t a b c")
    model = cf.Model({x: -x}, parameters=[a, b, c], time=t, outputs={"y": a + b * t + c * t**2}, initial={x: 1})
    problem = cf.Problem(model, cf.Experiment({"y": values}, times, start=0, **options),
                         parameters={"a": 1.0, "b": 0.5, "c": 0.1})  # fmt: skip
    return cf.select(problem, choices={"b": [0, cf.estimated], "c": [0, cf.estimated]})


@pytest.mark.parametrize("unit", [1.0, 1000.0])
@pytest.mark.parametrize("options", [{}, {"sigma": cf.unknown()}, {"sigma": 0.2}], ids=["none", "unknown", "known"])
def test_leave_one_out_divides_all_candidates_by_one_sigma(options: Any, unit: float) -> None:
    """Of linear models the errors of prediction are known: residuals divided by 1 - h."""
    rng = np.random.default_rng(2)
    times = np.linspace(0.2, 3, 12)
    values = unit * (1 + 0.5 * times + 0.15 * times**2 + 0.1 * rng.standard_normal(12))
    options = {n: unit * s if isinstance(s, float) else s for n, s in options.items()}
    selection = line_or_curve(values, times, **options)
    squares = {}
    for name, columns in (("(none)", [0]), ("b", [0, 1]), ("c", [0, 2]), ("b c", [0, 1, 2])):
        A = np.vander(times, 3, increasing=True)[:, columns]
        hat = A @ np.linalg.pinv(A)
        squares[name] = float(np.sum(((values - hat @ values) / (1 - np.diag(hat))) ** 2))
    found_squares = selection.leave_one_out
    assert min(found_squares, key=lambda n: found_squares[n]) == "b c"
    ratios = np.array([squares[n] / found_squares[n] for n in squares])
    best = selection[selection.names[0]]
    sigma = options["sigma"] if isinstance(options.get("sigma"), float) else best.deviations[0]
    np.testing.assert_allclose(ratios, sigma**2, rtol=1e-5)


def test_leave_one_out_of_log_normal_errors_and_counts_has_one_scale() -> None:
    rng = np.random.default_rng(5)
    times = np.linspace(0.2, 3, 12)
    mean = 1 + 0.5 * times + 0.15 * times**2
    selection = line_or_curve(mean * np.exp(0.1 * rng.standard_normal(12)), times, noise={"y": cf.LogNormal()})
    best = selection[selection.names[0]]
    ratio = best.residuals / best.normalised_residuals
    for name in selection.names:
        row = selection[name]
        logs = np.log(row.residual_table()["value"] / row.predictions)
        expected = np.sum((logs / ratio / (1 - row.leverage)) ** 2)
        assert selection.leave_one_out[name] == pytest.approx(expected, rel=1e-6)
    noise = cf.NegativeBinomial()
    counts = line_or_curve(rng.negative_binomial(5, 5 / (5 + 20 * mean)), times, noise={"y": noise})
    best = counts[counts.names[0]]
    for name in counts.names:
        row = counts[name]
        errors = (row.residual_table()["value"] - row.predictions) / best.deviations / (1 - row.leverage)
        assert counts.leave_one_out[name] == pytest.approx(np.sum(errors**2), rel=1e-3)


def test_numbers_do_not_depend_on_workers() -> None:
    with Post(2) as workers:
        other = cf.select(four_terms(), "single", choices=CHOICES, workers=workers)
    assert other.names == found().names
    for name in other:
        assert np.array_equal(other[name].theta, found()[name].theta)


def test_select_resumed_after_callback_gives_the_same_numbers(tmp_path: Any) -> None:
    file, counts = tmp_path / "select.jsonl", list[int]()

    def enough(progress: Any) -> bool:
        counts.append(progress.finished)
        return progress.finished >= 3

    stopped_selection = cf.select(four_terms(), "single", choices=CHOICES, checkpoint=file, callback=enough)
    assert not stopped_selection.complete
    assert "Stopped by the callback." in stopped_selection.message
    fitted = sum("row" in json.loads(line) for line in file.read_text().splitlines())
    assert fitted == counts[-1] == 3
    resumed_selection = cf.select(four_terms(), "single", choices=CHOICES, checkpoint=file, resume=True)
    assert resumed_selection.complete
    assert sum("row" in json.loads(line) for line in file.read_text().splitlines()) == 8
    for name in resumed_selection:
        assert np.array_equal(resumed_selection[name].theta, found()[name].theta)
    with refused("criterion"):
        cf.select(four_terms(), "single", choices=CHOICES, criterion="BIC", checkpoint=file, resume=True)


def test_select_lists_failed_candidate_without_rank() -> None:
    x, k, n = cf.symbols("x k n")
    data = cf.Experiment({"x": [0.8, 0.66, 0.57, 0.5]}, time=[1, 2, 3, 4], sigma=0.01, initial={"x": 1})
    good = cf.Problem(cf.Model({x: -k * x}, parameters=[k]), data, parameters={"k": 0.3})
    bad = cf.Problem(
        cf.Model({x: k * x * cf.sqrt(n - 5)}, parameters=[k, n]), data,
        parameters={"k": 0.3, "n": cf.Parameter(0.5, bounds=(0, 1))},
    )  # fmt: skip
    selection = cf.select({"good": good, "bad": bad}, "single", criterion="AIC", fit_max_time=10)
    assert selection.names == ("good",)
    assert "'bad' was not fitted: " in str(selection)
    assert selection.table["status"][-1] == "start_failed"
    with refused("'bad' was not fitted"):
        selection["bad"]


@pytest.mark.parametrize(
    ("make_problems", "options", "message"),
    [
        (lambda: {"a": four_terms(1), "b": with_one_value_changed()}, {}, "of 'a' in 'experiment 1' differ between"),
        (lambda: {"a": four_terms(1), "b": four_terms(1)}, {}, "'a' and 'b' are the same model; remove one"),
        (lambda: {"a": four_terms(1)}, {}, "fewer than two problems"),
        (lambda: {"a": four_terms(1), "b": 3}, {}, "'b' is 3; expected a Problem"),
        (four_terms, {}, "set choices="),
        (four_terms, {"choices": {"k7": [0, cf.estimated]}}, "choices has the unknown parameter 'k7': did you mean"),
        (four_terms, {"choices": {"k2": [0, 0]}}, "the same alternative twice"),
        (four_terms, {"choices": {"k2": [0]}}, "have one alternative"),
        (four_terms, {"choices": {"k2": ["x", 0]}}, "choices of 'k2' contain 'x'"),
        (four_terms, {"choices": {}}, "choices is empty"),
        (four_terms, {"choices": CHOICES, "criterion": "DIC"}, "criterion is 'DIC'; choose 'AIC', 'AICc' or 'BIC'"),
        (four_terms, {"choices": CHOICES, "method": "best"}, "method is 'best'; choose"),
        (lambda: {"a": four_terms(1), "b": four_terms(2)}, {"method": "forward"}, "applies to choices"),
        (lambda: four_terms(n=1), {"choices": CHOICES}, "AICc needs at least two measurements more"),
        (four_terms, {"choices": CHOICES, "resume": True}, "resume=True continues a checkpoint"),
        (four_terms, {"choices": CHOICES, "workers": 0}, "workers is 0"),
    ],
)  # fmt: skip
def test_select_with_wrong_arguments_raises_before_fitting(make_problems: Any, options: Any, message: str) -> None:
    with refused(message):
        cf.select(make_problems(), **options)


def test_select_ranks_undefined_criteria_last() -> None:
    few = cf.select(four_terms(n=2), "single", choices=CHOICES)
    undefined = [n for n in few if not np.isfinite(few.criteria[n])]
    assert undefined
    assert few.names[-len(undefined) :] == tuple(undefined)
    assert all(few.weights[n] == 0.0 for n in undefined)
    assert "AICc is undefined for" in str(few)


@cache
def orders() -> cf.SelectionResult:
    """First or second order: a pilot of two values does not tell."""
    x, k = cf.symbols("x k")
    pilot = cf.Experiment({"x": [0.83, 0.66]}, time=[0.4, 1.0], sigma=0.1)
    problems = {
        f"order {n}": cf.Problem(
            cf.Model({x: -k * x**n}, parameters=[k], initial={x: 1}), pilot,
            parameters={"k": cf.Parameter(0.5, bounds=(1e-3, 10))},
        )
        for n in (1, 2)
    }  # fmt: skip
    return cf.select(problems, "single", criterion="AIC")


def test_the_next_experiment_decides_where_even_times_need_far_more_values() -> None:
    grid = np.linspace(0.25, 10, 14)
    design = orders().next_experiment(cf.Candidate(grid, sigma=0.04), budget=8, against=["order 1", "order 2"])
    times = np.repeat(design.table["time"], design.table["count"])
    k, rng, sigma = orders()["order 1"].values["k"], np.random.default_rng(0), 0.04

    def curves(sample_times: Any) -> tuple[Any, Any]:
        exponents = np.geomspace(1e-3, 10, 4000)[:, None] * sample_times
        return np.exp(-exponents), 1 / (1 + exponents)

    def misfit(values: Any, sample_times: Any) -> tuple[Any, Any]:
        first_residuals, second_residuals = ((values[:, None] - c) / sigma for c in curves(sample_times))
        return tuple(np.min(np.sum(r**2, axis=2), axis=1) for r in (first_residuals, second_residuals))

    first_misfits, second_misfits = misfit(np.exp(-k * times) + sigma * rng.standard_normal((100, 8)), times)
    assert np.count_nonzero(first_misfits < second_misfits) == 100
    design_misfit = misfit(np.exp(-k * times)[None], times)[1][0]
    even_misfits = {n: misfit(np.exp(-k * t)[None], t)[1][0] for n in (8, 12, 16) for t in [np.linspace(0.25, 10, n)]}
    assert even_misfits[8] < even_misfits[12] < design_misfit < even_misfits[16]


def test_next_experiment_assumes_larger_model_as_truth() -> None:
    assert found()._rivals()[0] != "k4"
    assert found()._rivals()[1] == "k4"
    single = cf.select(four_terms(), "single", choices={"k4": [0, cf.estimated]})
    with refused("fewer than two plausible candidates"):
        single.next_experiment()


def test_selection_plot_shows_candidates_path_and_weights(tmp_path: Any) -> None:
    figure = found("backward").plot(tmp_path / "models.png")
    left, middle, right = figure.axes
    dots, path = left.lines[0], left.lines[1]
    assert len(dots.get_xdata()) == len(found("backward"))
    assert path.get_xdata().tolist() == [found("backward").size(n) for n in found("backward").path]
    assert [bar.get_width() for bar in middle.patches] == sorted(found("backward").importance.values(), reverse=True)
    assert [bar.get_width() for bar in right.patches] == [found("backward").weights[n] for n in found("backward").names]
    page = found("backward").report(tmp_path / "models.html").read_text()
    assert "Model selection" in page
    assert "has the lowest AICc" in page


@pytest.mark.slow  # see test_select_refits_a_model_from_a_better_nested_model
def test_select_descends_from_estimates_of_a_nested_model():
    """Two of eight couplings are there; of a candidate without them collocation, begun at the data, ends too high."""
    x, (k, m), a = cf.symbols([f"x{i}" for i in range(8)]), cf.symbols("k m"), cf.symbols([f"a{i}" for i in range(4)])
    rates = {
        state: k * (x[i - 1] if i else 1.0) - m * state + (a[i] * state * x[i + 1] if i < 4 else 0)
        for i, state in enumerate(x)
    }
    model, times, rng = cf.Model(rates, parameters=[k, m, *a]), np.linspace(0.3, 6.0, 15), np.random.default_rng(1)
    initial = {f"x{i}": 1.0 + 0.1 * i for i in range(8)}
    truth = {"k": 0.6, "m": 0.5, "a0": -0.2, "a1": 0.0, "a2": 0.0, "a3": -0.2}
    exact = cf.simulate(model, times=times, parameters=truth, initial=initial)
    data = {name: exact[name] + 0.03 * rng.standard_normal(15) for name in initial}
    experiment = cf.Experiment(data, time=times, sigma=0.03, initial=initial)
    base_parameters = {"k": 1.0, "m": 1.0, "a0": cf.Parameter(0.0, fixed=True), "a3": cf.Parameter(0.0, fixed=True)}
    problem = cf.Problem(model, experiment, parameters={**base_parameters, "a1": 0.01, "a2": 0.01})
    selection = cf.select(problem, choices={"a1": [0, cf.estimated], "a2": [0, cf.estimated]}, rng=0)
    assert "has a higher objective than" not in str(selection)
    heights = {name: row.neg2loglik for name, row in selection.fits.items()}
    assert all(heights[name] <= heights["(none)"] + 1e-3 for name in heights)
    assert heights["a1 a2"] <= min(heights["a1"], heights["a2"]) + 1e-3
