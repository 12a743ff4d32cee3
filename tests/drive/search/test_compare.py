"""Comparing methods: every one from the same starts, counted alike, whatever happens to some of them."""

import csv
import json
import signal
from functools import partial

import numpy as np
import pytest

import castfit as cf
from castfit import InputError, Status, plots
from castfit._support import process_pool as pool
from castfit.drive.run.optima import ObjectiveMeasure
from castfit.drive.search.compare.result import MethodRow, MethodTrial
from tests.drive.chores import STRAIGHT, Troubled, pole

SINGLE = (cf.SingleShooting(), STRAIGHT)
STARTS = [{"k": 0.2}, {"k": 0.4}, {"k": 0.8}, {"k": 1.5}]  # the last one has its pole at t = 0.67

COUNTS = ("correct", "n_other_optimum", "integration_error", "optimization_error")


@pytest.fixture(scope="module")
def problem():
    return pole()


@pytest.fixture(scope="module")
def comparison(problem):
    methods = {"straight": SINGLE, "multiple": "multiple", "mine": partial(cf.incremental, fallback=False)}
    return cf.compare(problem, methods, starts=STARTS)


def counts(comparison):
    return {row.method: tuple(getattr(row, name) for name in COUNTS) for row in comparison.rows}


def test_every_method_has_one_trial_per_start(comparison):
    assert [(t.start, t.method) for t in comparison.trials] == [
        (i, method) for i in range(4) for method in ("straight", "multiple", "mine")
    ]
    assert counts(comparison) == {"straight": (3, 0, 1, 0), "multiple": (4, 0, 0, 0), "mine": (4, 0, 0, 0)}
    assert comparison.best.values == pytest.approx({"k": 0.5})
    assert comparison.best.problem is not None
    assert comparison.stopped is None
    assert comparison.message == "All 12 fits ended."


def test_a_row_says_what_its_trials_took(comparison):
    for row in comparison.rows:
        trials = [t for t in comparison.trials if t.method == row.method]
        assert row.starts == 4
        assert row.converged == row.correct + row.n_other_optimum
        assert row.success_rate == row.correct / 4
        assert row.iterations == np.median([t.iterations for t in trials])
        assert row.evaluations == np.median([sum(t.evaluations.values()) for t in trials])
        assert row.median_time == np.median([t.time for t in trials])
        assert row.expected_time == pytest.approx(np.mean([t.time for t in trials]) / row.success_rate)
    assert [np.isnan(row.equivalent_iterations) for row in comparison.rows] == [True, True, False]


def test_incremental_fits_count_all_their_horizons(problem):
    comparison = cf.compare(problem, ["incremental"], starts=STARTS[1:2])
    incremental_result = cf.incremental(problem, start=STARTS[1])
    (trial,) = comparison.trials
    assert (
        trial.iterations
        == incremental_result.iterations
        == sum(h.iterations for h in incremental_result.horizons)
        > incremental_result.result.iterations
    )
    assert trial.evaluations == incremental_result.evaluations
    assert trial.evaluations["values"] > incremental_result.result.evaluations["values"]
    assert comparison.rows[0].equivalent_iterations == pytest.approx(incremental_result.equivalent_iterations)


def test_starts_are_drawn_as_by_multistart(problem):
    comparison = cf.compare(problem, {"a": SINGLE}, starts=3, rng=7)
    many = cf.multistart(problem, *SINGLE, starts=3, rng=7, max_draws=1)
    assert comparison.drawn == many.drawn
    assert [t.objective for t in comparison.trials] == [row.objective for row in many.starts]
    assert cf.compare(problem, {"a": SINGLE}, starts=3, rng=8).drawn != comparison.drawn


def test_workers_give_the_same_answers_and_a_lost_one_costs_its_trial(problem, comparison, monkeypatch, two_workers):
    monkeypatch.setattr(pool, "MAX_WORKERS_PER_TASK", 1)  # for further attempts see test_pool.py and test_disturbed.py
    trouble, death = ("die", "process died (SIGKILL)") if two_workers == 2 else ("exit", "was lost")
    methods = {
        "troubled": (Troubled(trouble=trouble, above=0.35, below=0.45), STRAIGHT),
        "straight": SINGLE,
        "multiple": "multiple",
    }
    worker_comparison = cf.compare(problem, methods, starts=STARTS, workers=two_workers)
    assert counts(worker_comparison) == {"troubled": (2, 0, 1, 1), "straight": (3, 0, 1, 0), "multiple": (4, 0, 0, 0)}
    assert worker_comparison.stopped is None
    assert f"Start 1, troubled: The worker {death}" in worker_comparison.message
    for method in ("straight", "multiple"):
        expected = [t.values for t in comparison.trials if t.method == method]
        assert [t.values for t in worker_comparison.trials if t.method == method] == expected


def test_an_error_of_a_method_costs_its_trial(problem):
    def crash(problem, *, start, max_time):
        raise RuntimeError("no such luck")

    def forgets(problem, *, start, max_time):
        cf.fit(problem, *SINGLE, start=start, max_time=max_time)

    comparison = cf.compare(problem, {"crash": crash, "forgets": forgets, "straight": SINGLE}, starts=STARTS[:1])
    assert counts(comparison) == {"crash": (0, 0, 0, 1), "forgets": (0, 0, 0, 1), "straight": (1, 0, 0, 0)}
    assert "Start 0, crash: RuntimeError: no such luck" in comparison.message
    assert "returned None; expected a Result" in comparison.message


def counting(calls, *, interrupt=()):
    """Return a method that remembers its calls, and is interrupted at some of them."""

    def method(problem, *, start, max_time):
        calls.append(start["k"])
        if len(calls) in interrupt:
            signal.raise_signal(signal.SIGINT)
        return cf.fit(problem, *SINGLE, start=start, max_time=max_time)

    return method


def test_the_first_trial_of_a_method_is_run_twice(problem):
    calls = []
    cf.compare(problem, {"a": counting(calls)}, starts=STARTS[:3])
    assert calls == [0.2, 0.2, 0.4, 0.8]


def test_an_interrupted_run_keeps_what_is_finished(problem):
    comparison = cf.compare(problem, {"a": counting([], interrupt=[4]), "b": SINGLE}, starts=STARTS[:3])
    assert comparison.stopped is Status.INTERRUPTED
    assert counts(comparison) == {"a": (2, 0, 0, 0), "b": (2, 0, 0, 0)}  # methods take turns
    assert comparison.message == "Interrupted by the user. 4 of 6 fits ended."
    assert [t.status for t in comparison.trials][4:] == ["interrupted", "not_run"]


def test_the_callback_stops_the_run(problem):
    comparison = cf.compare(problem, {"a": SINGLE}, starts=STARTS, callback=lambda trial: trial.start == 1)
    assert comparison.stopped is Status.STOPPED_BY_CALLBACK
    assert comparison.rows[0].starts == 2


def test_time_limits(problem, clock):
    """The warm-up and two trials fit into the limit; the third is cut off and not counted, nor are the others."""

    def slow(problem, *, start, max_time):
        clock.sleep(min(max_time, 15.0))
        status = Status.MAX_TIME if max_time < 15.0 else Status.CONVERGED
        return cf.fit(problem, *SINGLE, start=start).with_status(status, status.message)

    comparison = cf.compare(problem, {"slow": slow}, starts=[{"k": 0.4}] * 20, max_time=50.0)
    assert clock.now == pytest.approx(50.0, abs=1.0)
    assert comparison.stopped is Status.MAX_TIME
    assert comparison.rows[0].starts == comparison.rows[0].correct == 2
    assert [t.status for t in comparison.trials] == ["converged"] * 2 + ["cut_off"] + ["not_run"] * 17
    each = cf.compare(problem, {"slow": slow}, starts=[{"k": 0.4}] * 2, fit_max_time=10.0)
    assert each.stopped is None
    assert counts(each) == {"slow": (0, 0, 0, 2)}


def test_compare_reference_below_all_fits_counts_none_as_correct(problem, comparison):
    lower = comparison.best_objective - 1.0
    reference_comparison = cf.compare(problem, {"straight": SINGLE}, starts=STARTS[:2], reference=lower)
    assert reference_comparison.best_objective == lower
    assert counts(reference_comparison) == {"straight": (0, 2, 0, 0)}
    assert reference_comparison.rows[0].expected_time == np.inf
    assert "never" in reference_comparison.summary()


@pytest.mark.parametrize(
    ("status", "chi2", "category"),
    [
        ("converged", 100.05, "correct"),
        ("acceptable", 99.0, "correct"),
        ("converged", 100.2, "wrong"),
        ("start_failed", np.nan, "integration_error"),
        ("evaluation_failed", 99.0, "integration_error"),
        ("max_time", 100.0, "optimization_error"),
        ("worker_died", np.nan, "optimization_error"),
        ("worker_hung", np.nan, "optimization_error"),
        ("error", np.nan, "optimization_error"),
    ],
)
def test_categories(status, chi2, category):
    assert MethodTrial("a", 0, status=status, objective=chi2).category(100.0) == category


def test_differences_that_are_rounding_do_not_count():
    assert (
        MethodTrial("a", 0, status="converged", objective=1e-9).category(1e-20, ObjectiveMeasure(floor=1e-8))
        == "correct"
    )
    assert (
        MethodTrial("a", 0, status="converged", objective=1e-7).category(1e-20, ObjectiveMeasure(floor=1e-8)) == "wrong"
    )


@pytest.mark.parametrize("status", ["not_run", "cut_off", "interrupted"])
def test_compare_unfinished_trials_do_not_count(status):
    row = MethodRow.from_trials(
        "a", [MethodTrial("a", 0, status=status), MethodTrial("b", 0, status="converged", objective=1.0)], 1.0
    )
    assert row.starts == 0
    assert np.isnan(row.success_rate)
    assert row.record()["success_rate"] is None


def test_files(comparison, tmp_path):
    comparison.to_json(tmp_path / "rows.json")
    record = json.loads((tmp_path / "rows.json").read_text())
    assert record["best"] == comparison.best_objective
    assert [row["method"] for row in record["rows"]] == ["straight", "multiple", "mine"]
    assert record["rows"][0]["equivalent_iterations"] is None
    comparison.to_csv(tmp_path / "rows.csv")
    with open(tmp_path / "rows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["correct"] for row in rows] == ["3", "4", "4"]
    assert rows[0]["equivalent_iterations"] == ""
    assert "single shooting" in rows[0]["description"]


def test_the_table_has_one_line_per_trial(comparison):
    table = comparison.table
    assert {len(column) for column in table.values()} == {12}
    assert list(table["category"][table["method"] == "straight"]) == ["correct"] * 3 + ["integration_error"]
    correct = table["category"] == "correct"
    np.testing.assert_allclose(table["k"][correct], 0.5, rtol=1e-4)


def test_summary(comparison):
    lines = str(comparison).splitlines()
    (line,) = [line for line in lines if line.startswith("straight")]
    assert line.split()[1:7] == ["4", "3", "3", "(75", "%)", "0"]
    assert repr(comparison).startswith("ComparisonResult(chi2 = ")
    assert "straight 3/4" in repr(comparison)


def test_progress_is_shown_if_wanted(problem, capsys):
    cf.compare(problem, {"a": SINGLE}, starts=STARTS[:2])
    assert capsys.readouterr() == ("", "")
    cf.compare(problem, {"a": SINGLE}, starts=STARTS[:2], verbose=1)
    assert "2 of 2 fits" in capsys.readouterr().out
    cf.compare(problem, {"a": SINGLE}, starts=STARTS[:2], verbose=2)
    assert "start 1, a: converged" in capsys.readouterr().out


def test_the_figure_ends_at_the_success_rates(comparison, tmp_path):
    figure = comparison.plot(tmp_path / "success.png")
    (axes,) = figure.axes
    lines = axes.get_lines()
    assert [line.get_ydata()[-1] for line in lines] == [75.0, 100.0, 100.0]
    times = sorted(t.time for t in comparison.trials if t.method == "straight" and t.success)
    np.testing.assert_allclose(lines[0].get_xdata()[1:], times)
    assert axes.get_legend().get_texts()[0].get_text() == "straight: 3 of 4"
    assert (tmp_path / "success.png").stat().st_size > 1000


def test_plot_of_comparison_without_optimum_is_drawn(problem):
    figure = plots.success(cf.compare(problem, {"a": SINGLE}, starts=STARTS[3:]))
    (axes,) = figure.axes
    assert [line.get_ydata().size for line in axes.get_lines()] == [0]
    assert axes.get_legend().get_texts()[0].get_text() == "a: 0 of 1"


def test_all_mistakes_are_named_at_once(problem):
    with pytest.raises(InputError) as caught:
        cf.compare(problem, ["singel", "multiple/ipot"], starts=0, workers=0, max_time=0, fit_max_time=-1,
                   callback=1, verbose=3, reference="low")  # fmt: skip
    phrases = ("did you mean 'single'", "did you mean 'ipopt'", "workers is 0", "max_time is 0", "fit_max_time is -1",
               "callback is 1", "verbose is 3", "reference is 'low'", "starts is 0")  # fmt: skip
    assert len(caught.value.problems) == len(phrases)
    assert all(p in mistake for p, mistake in zip(phrases, caught.value.problems, strict=True))
    with pytest.raises(InputError, match="give a Problem"):
        cf.compare("pole", ["single"])


def test_compare_unpicklable_method_requires_one_worker(problem):
    with pytest.raises(InputError, match=r"problem and methods cannot be pickled for other processes.*workers=1"):
        cf.compare(problem, {"a": lambda problem, start, max_time: None}, starts=STARTS, workers=2)


def test_misuse_that_only_a_method_finds_names_the_method(problem):
    collocation = cf.Collocation(states={"y": ([0, 1], [0, 1])})
    with pytest.raises(InputError, match=r"compare, method 'c': (?s:.*)'y'"):
        cf.compare(problem, {"a": SINGLE, "c": collocation}, starts=STARTS[:1])
