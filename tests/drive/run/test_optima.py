from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit.drive.run.optima import ObjectiveMeasure, Optimum, StoppingEstimate, group_optima
from tests.drive.chores import noisy


def found(*counts):
    """Optima that so many starts found each."""
    return [Optimum(float(k), tuple(range(n)), ()) for k, n in enumerate(counts)]


@given(st.lists(st.sampled_from([1.0, 7.0, 7.1, 300.0]), min_size=1), st.randoms(use_true_random=False))
def test_fits_of_equal_height_are_one_optimum_whatever_their_order(heights, random):
    noisy = [height * (1 + 1e-6 * random.random()) for height in heights]
    ends = {i: (chi2, {"k": chi2}) for i, chi2 in enumerate(noisy)}
    shuffled = dict(random.sample(list(ends.items()), len(ends)))
    groups = group_optima(shuffled)
    assert groups == group_optima(ends)
    assert [round(group.objective, 2) for group in groups] == sorted(set(heights))
    assert sorted(i for group in groups for i in group.starts) == list(ends)
    for group in groups:
        values = [ends[i][0] for i in group.starts]
        assert values == sorted(values)
        assert values[0] == group.objective


def test_rounding_is_no_second_optimum():
    ends = {0: (3e-19, {"k": 1.0}), 1: (2e-16, {"k": 1.0})}
    assert len(group_optima(ends)) == 2
    (optimum,) = group_optima(ends, ObjectiveMeasure(floor=1e-10))
    assert optimum.starts == (0, 1)


def test_group_optima_names_quantities_that_vary_at_equal_height():
    ends = {i: (5.0, {"a": a, "b": 2.0 + 1e-5 * a, "zero": 0.0}) for i, a in enumerate((1.0, -1.0))}
    (optimum,) = group_optima(ends)
    assert optimum.varying == ("a",)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_more_starts_is_zero_if_less_than_half_an_optimum_is_expected(counts):
    outlook = StoppingEstimate.from_optima(found(*counts), sum(counts))
    w, n = outlook.n_optima, outlook.n_fits + outlook.more_starts
    assert w * (n - 1) / (n - w - 2) <= w + 0.5 + 1e-12
    if outlook.more_starts:
        n -= 1
        assert n <= w + 2 or w * (n - 1) / (n - w - 2) > w + 0.5


def test_the_outlook_is_a_posterior_expectation():
    """Seven fits in three optima, by summation: equal prior weight on 1, 2, 3 ... optima, each with uniform shares.

    The chance that n fits of which each kind was seen are followed by a new kind is known in closed form, as is its
    weight; the sum over the number of optima is the published value.
    """
    counts, w, n = (4, 2, 1), 3, 7
    weights, unseen = [], []
    for k in range(w, 20_000):
        # k! / (k - w)! * (k - 1)! / (k + n - 1)!: probability of the shares of n fits given k optima
        logs = np.sum(np.log(np.arange(k - w + 1, k + 1))) - np.sum(np.log(np.arange(k, k + n)))
        weights.append(np.exp(logs))
        unseen.append((k - w) / (k + n))
    outlook = StoppingEstimate.from_optima(found(*counts), n)
    assert outlook.unseen == pytest.approx(np.average(unseen, weights=weights), rel=1e-3)
    expected = np.average(np.arange(w, 20_000), weights=weights)
    assert outlook.expected_optima == pytest.approx(expected, rel=2e-2)


def test_more_starts_grow_with_the_failure_rate():
    sure, unsure = StoppingEstimate.from_optima(found(3, 3), 6), StoppingEstimate.from_optima(found(3, 3), 60)
    assert sure.more_starts == 10
    assert unsure.more_starts == 100
    assert unsure.success_rate == pytest.approx(0.05)
    assert 0.95**unsure.starts_for_best <= 0.01 < 0.95 ** (unsure.starts_for_best - 1)


def test_stopping_estimate_sentences():
    assert StoppingEstimate.from_optima([], 9).sentence.startswith("No start converged")
    assert StoppingEstimate.from_optima(found(50), 50).sentence.endswith("; no more starts are recommended.")
    assert "about 5 more starts are recommended" in StoppingEstimate.from_optima(found(2), 2).sentence
    assert StoppingEstimate.from_optima(found(1), 1).unseen == 1.0
    assert (
        "1 optimum in 2 successful fits: too few to estimate the probability of a new optimum; "
        in StoppingEstimate.from_optima(found(2), 2).sentence
    )
    assert StoppingEstimate.from_optima([], 9).starts_for_best == np.inf
    assert StoppingEstimate.from_optima(found(4), 4).starts_for_best == 1.0


def guarded(*, expression: bool = False) -> cf.Problem:
    """A decay with unknown sigma, and a prior that contradicts the data."""
    x, k = cf.symbols("x k")
    t = np.linspace(0.5, 4, 8)
    data = np.exp(-0.7 * t) + 0.02 * np.cos(9 * t)
    experiment = cf.Experiment({"x": data}, time=t, initial={"x": 1.0}, start=0.0)
    model, limits = cf.Model({x: -k * x}, parameters=[k]), {"lower": 0.1, "upper": 3.0}
    if expression:
        parameters = {"k": cf.Parameter(0.5, **limits)}
        return cf.Problem(model, experiment, parameters=parameters, priors={2 * k: cf.Normal(2.0, 0.2)})
    return cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.5, **limits, prior=cf.Normal(1.0, 0.1))})


@pytest.mark.parametrize("expression", [False, True])
def test_fits_are_compared_by_the_objective_where_a_prior_meets_an_unknown_sigma(expression):
    problem = guarded(expression=expression)
    best = cf.fit(problem, cf.SingleShooting())
    multistart_result = cf.multistart(problem, cf.SingleShooting(), starts=3)
    assert multistart_result.measure == best.measure == "-2 log L"
    assert multistart_result.optima[0].objective == pytest.approx(best.neg2loglik, abs=1e-5)
    search = cf.scatter_search(problem, cf.SingleShooting(), max_eval=60, dim_refset=4, n_diverse=12)
    assert search.history[-1].objective == pytest.approx(best.neg2loglik, abs=1e-4)
    assert search.best.values == pytest.approx(best.values, rel=1e-5)
    comparison = cf.compare(problem, ["single"], starts=2)
    assert comparison.best_objective == comparison.best_chi2 == pytest.approx(best.neg2loglik, abs=1e-5)


@pytest.mark.parametrize("kind", ["eliminated", "parameter", "robust"])
def test_fits_are_compared_by_the_objective_where_it_is_a_likelihood(kind):
    problem = noisy(kind)
    best = cf.fit(problem, cf.SingleShooting())
    assert best.success
    assert best.measure == "-2 log L"
    assert best.objective == best.neg2loglik
    merit = ObjectiveMeasure.from_problem(problem)
    assert merit.at_height(merit.compute_height(best.cost, best.chi2)) == pytest.approx(best.neg2loglik, rel=1e-9)
    assert merit.floor < best.neg2loglik - 10 * best.n_data
    multistart_result = cf.multistart(problem, "single", starts=3)
    assert len(multistart_result.optima) == 1
    assert multistart_result.optima[0].objective == pytest.approx(best.neg2loglik, abs=1e-5 * best.n_data)
    assert multistart_result.best.cost == pytest.approx(best.cost, abs=1e-5 * best.n_data)
    search = cf.scatter_search(problem, "single", max_eval=60, dim_refset=4, n_diverse=12)
    assert search.best is not None
    assert search.best.objective == pytest.approx(best.neg2loglik, abs=1e-4 * best.n_data)
    assert search.measure == ("-2 log L" if kind == "eliminated" else "-2 log L of normal errors")
    comparison = cf.compare(problem, ["single", "multiple"], starts=2)
    assert comparison.best_objective == pytest.approx(best.neg2loglik, abs=1e-5 * best.n_data)
    assert [row.correct for row in comparison.rows] == [2, 2]


def kinds() -> dict[str, cf.Problem]:
    """A decay with known sigma, and with one that is not known."""
    x, k = cf.symbols("x k")
    t = np.linspace(0.5, 4, 8)
    data = np.exp(-0.7 * t) + 0.02 * np.cos(9 * t)
    model, parameters = cf.Model({x: -k * x}, parameters=[k]), {"k": cf.Parameter(0.5, lower=0.1, upper=3.0)}
    return {
        measure: cf.Problem(
            model,
            cf.Experiment({"x": data}, time=t, initial={"x": 1.0}, start=0.0, sigma=sigma),
            parameters=parameters,
        )
        for measure, sigma in (("chi2", 0.02), ("-2 log L", None))
    }


@pytest.mark.parametrize("measure", ["chi2", "-2 log L"])
def test_every_text_tells_the_same_number_of_one_optimum(measure, capsys):
    """Table, progress, story, starts, methods, scatter: one number of one name."""
    problem = kinds()[measure]
    best = cf.fit(problem, "single", verbose=1)
    assert best.objective == (best.chi2 if measure == "chi2" else best.neg2loglik)
    expected_text = f"{measure} = {best.objective:.6g}"
    other_prefix = f"{'chi2' if measure != 'chi2' else '-2 log L'} = "
    sentences, scatter_sentences = [], []
    multistart_result = cf.multistart(
        problem, "single", starts=2, callback=lambda progress: sentences.append(progress.sentence)
    )
    estimate = cf.estimate(
        problem, finds=1, strategies=["box"], callback=lambda progress: sentences.append(progress.sentence)
    )
    comparison = cf.compare(problem, ["single"], starts=2, callback=lambda trial: sentences.append(trial.sentence))
    search = cf.scatter_search(
        problem, "single", max_eval=60, dim_refset=4, n_diverse=12,
        callback=lambda progress: scatter_sentences.append(progress.sentence),
    )  # fmt: skip
    texts = [
        str(best),
        repr(best),
        capsys.readouterr().out,
        *sentences[-1:],
        *map(str, (multistart_result, estimate, comparison, search)),
    ]
    texts += [
        repr(multistart_result),
        repr(comparison),
        repr(search),
        scatter_sentences[-1],
        estimate.story[0],
        sentences[1],
    ]
    for text in texts:
        assert expected_text in text
        assert other_prefix not in text
        assert "equivalent" not in text


def test_an_exact_fit_is_one_optimum_though_its_likelihood_has_no_bound():
    problem = kinds()["-2 log L"]
    merit = ObjectiveMeasure.from_problem(problem)
    ends = [merit.at_height(chi2) for chi2 in (1e-25, 1e-21, 1e-3)]
    assert ends[1] - ends[0] > 1.0
    assert len(group_optima({i: (end, {}) for i, end in enumerate(ends)}, merit)) == 2


def test_heights_and_objectives_convert_into_each_other():
    for problem in (*kinds().values(), guarded(), noisy("eliminated")):
        merit = ObjectiveMeasure.from_problem(problem)
        for height in (1e-3, 7.0, 1e9):
            assert merit.height_at(merit.at_height(height)) == pytest.approx(height)
    steep = ObjectiveMeasure("-2 log L", 10, 3.0, squares=False)
    assert steep.height_at(steep.at_height(steep.compute_height(1e5, np.nan))) == pytest.approx(
        steep.compute_height(1e5, np.nan)
    )


@given(
    st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=8),
    st.sampled_from([0.0, -40.0, 25.0, 1e4]),
    st.integers(1, 500),
)
def test_costs_that_are_likelihoods_are_compared_per_datum(costs, units, n):
    """They may be negative, and other units of the data add a number per datum, which changes no comparison."""
    merit = ObjectiveMeasure("-2 log L", n, floor=-np.inf, squares=False)
    values = [merit.compute_height(n * (cost + units), np.nan) for cost in costs]
    assert all(0.0 < value < np.inf for value in values)
    order = np.argsort(costs, kind="stable")
    assert (np.diff(np.array(values)[order]) >= 0.0).all()
    if units < 100:
        for offset in (units, 0.0):
            groups = group_optima({i: (2.0 * n * (cost + offset), {}) for i, cost in enumerate(costs)}, merit)
            for one in groups:
                spread = np.ptp([costs[i] for i in one.starts])
                assert spread <= 0.51e-4  # half of the relative difference of chi2
            lowest = [group.objective for group in groups]
            assert all(b - a > 0.99e-4 * n for a, b in pairwise(lowest))


def test_summary_of_wrong_model_reports_that_no_optimum_fits():
    x, k = cf.symbols("x k")
    t = np.linspace(0.5, 8, 16)
    experiment = cf.Experiment({"x": np.cos(2 * t)}, time=t, sigma=0.01, initial={"x": 1.0}, start=0.0)
    problem = cf.Problem(
        cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": cf.Parameter(0.5, lower=0.01, upper=3.0)}
    )
    multistart_result = cf.multistart(problem, cf.SingleShooting(), starts=3)
    search = cf.scatter_search(problem, cf.SingleShooting(), max_eval=40, dim_refset=4, n_diverse=12)
    comparison = cf.compare(problem, ["single"], starts=2)
    for result in (multistart_result, search, comparison):
        assert result.best.success
        assert "No optimum found fits the data." in str(result)
