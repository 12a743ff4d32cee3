"""Comparing methods: every one from the same starts, counted alike, whatever happens to some of them."""

import csv
import json
from functools import partial

import numpy as np
import pytest

import castfit as cf
from castfit import InputError, Status, plots
from castfit._support import process_pool as pool
from castfit.drive.run.optima import Merit
from castfit.drive.search.compare.result import CATEGORIES, MethodRow, MethodTrial
from tests.drive.chores import STRAIGHT, Troubled, pole

SINGLE = (cf.SingleShooting(), STRAIGHT)
STARTS = [{"k": 0.2}, {"k": 0.4}, {"k": 0.8}, {"k": 1.5}]  # the last one has its pole at t = 0.67


@pytest.fixture(scope="module")
def problem():
    return pole()


@pytest.fixture(scope="module")
def found(problem):
    methods = {"straight": SINGLE, "multiple": "multiple", "mine": partial(cf.incremental, fallback=False)}
    return cf.compare(problem, methods, starts=STARTS)


def counts(found):
    return {row.method: tuple(getattr(row, category) for category in CATEGORIES) for row in found.rows}


def test_every_method_has_one_trial_per_start(found):
    assert [(t.start, t.method) for t in found.trials] == [
        (i, method) for i in range(4) for method in ("straight", "multiple", "mine")
    ]
    assert counts(found) == {"straight": (3, 0, 1, 0), "multiple": (4, 0, 0, 0), "mine": (4, 0, 0, 0)}
    assert found.best.values == pytest.approx({"k": 0.5})
    assert found.best.problem is not None
    assert found.stopped is None
    assert found.message == "All 12 fits ended."


def test_a_row_says_what_its_trials_took(found):
    for row in found.rows:
        own = [t for t in found.trials if t.method == row.method]
        assert row.starts == 4
        assert row.converged == row.correct + row.wrong
        assert row.success_rate == row.correct / 4
        assert row.iterations == np.median([t.iterations for t in own])
        assert row.evaluations == np.median([sum(t.evaluations.values()) for t in own])
        assert row.median_time == np.median([t.time for t in own])
        assert row.expected_time == pytest.approx(np.mean([t.time for t in own]) / row.success_rate)
    assert [np.isnan(row.equivalent_iterations) for row in found.rows] == [True, True, False]


def test_incremental_fits_count_all_their_horizons(problem):
    found = cf.compare(problem, ["incremental"], starts=STARTS[1:2])
    alone = cf.incremental(problem, start=STARTS[1])
    (trial,) = found.trials
    assert trial.iterations == alone.iterations == sum(h.iterations for h in alone.horizons) > alone.result.iterations
    assert trial.evaluations == alone.evaluations
    assert trial.evaluations["values"] > alone.result.evaluations["values"]
    assert found.rows[0].equivalent_iterations == pytest.approx(alone.equivalent_iterations)


def test_starts_are_drawn_as_by_multistart(problem):
    found = cf.compare(problem, {"a": SINGLE}, starts=3, rng=7)
    many = cf.multistart(problem, *SINGLE, starts=3, rng=7, max_draws=1)
    assert found.drawn == many.drawn
    assert [t.objective for t in found.trials] == [row.objective for row in many.starts]
    assert cf.compare(problem, {"a": SINGLE}, starts=3, rng=8).drawn != found.drawn


def test_workers_give_the_same_answers_and_a_lost_one_costs_its_trial(problem, found, monkeypatch, two_workers):
    monkeypatch.setattr(pool, "ATTEMPTS", 1)  # for further attempts see test_pool.py and test_disturbed.py
    trouble, death = ("die", "process died (SIGKILL)") if two_workers == 2 else ("exit", "was lost")
    methods = {
        "troubled": (Troubled(trouble=trouble, above=0.35, below=0.45), STRAIGHT),
        "straight": SINGLE,
        "multiple": "multiple",
    }
    there = cf.compare(problem, methods, starts=STARTS, workers=two_workers)
    assert counts(there) == {"troubled": (2, 0, 1, 1), "straight": (3, 0, 1, 0), "multiple": (4, 0, 0, 0)}
    assert there.stopped is None
    assert f"Start 1, troubled: Its worker {death}" in there.message
    for method in ("straight", "multiple"):
        here = [t.values for t in found.trials if t.method == method]
        assert [t.values for t in there.trials if t.method == method] == here


def test_an_error_of_a_method_costs_its_trial(problem):
    def crash(problem, *, start, max_time):
        raise RuntimeError("no such luck")

    def forgets(problem, *, start, max_time):
        cf.fit(problem, *SINGLE, start=start, max_time=max_time)

    found = cf.compare(problem, {"crash": crash, "forgets": forgets, "straight": SINGLE}, starts=STARTS[:1])
    assert counts(found) == {"crash": (0, 0, 0, 1), "forgets": (0, 0, 0, 1), "straight": (1, 0, 0, 0)}
    assert "Start 0, crash: RuntimeError: no such luck" in found.message
    assert "returned None, not a Result" in found.message


def counting(calls, *, interrupt=()):
    """Return a method that remembers its calls, and is interrupted at some of them."""

    def method(problem, *, start, max_time):
        calls.append(start["k"])
        if len(calls) in interrupt:
            raise KeyboardInterrupt
        return cf.fit(problem, *SINGLE, start=start, max_time=max_time)

    return method


def test_the_first_trial_of_a_method_is_run_twice(problem):
    calls = []
    cf.compare(problem, {"a": counting(calls)}, starts=STARTS[:3])
    assert calls == [0.2, 0.2, 0.4, 0.8]


def test_an_interrupted_run_keeps_what_is_finished(problem):
    found = cf.compare(problem, {"a": counting([], interrupt=[4]), "b": SINGLE}, starts=STARTS[:3])
    assert found.stopped is Status.INTERRUPTED
    assert counts(found) == {"a": (2, 0, 0, 0), "b": (2, 0, 0, 0)}  # methods take turns
    assert found.message == "Interrupted from the keyboard. 4 of 6 fits ended."
    assert [t.status for t in found.trials][4:] == ["not_run", "not_run"]


def test_the_callback_stops_the_run(problem):
    found = cf.compare(problem, {"a": SINGLE}, starts=STARTS, callback=lambda trial: trial.start == 1)
    assert found.stopped is Status.STOPPED_BY_CALLBACK
    assert found.rows[0].starts == 2


def test_time_limits(problem, clock):
    """The warm-up and two trials fit into the limit; the third is cut off and not counted, nor are the others."""

    def slow(problem, *, start, max_time):
        clock.sleep(min(max_time, 15.0))
        status = Status.MAX_TIME if max_time < 15.0 else Status.CONVERGED
        return cf.fit(problem, *SINGLE, start=start).ended(status, status.sentence)

    found = cf.compare(problem, {"slow": slow}, starts=[{"k": 0.4}] * 20, max_time=50.0)
    assert clock.now == pytest.approx(50.0, abs=1.0)
    assert found.stopped is Status.MAX_TIME
    assert found.rows[0].starts == found.rows[0].correct == 2
    assert [t.status for t in found.trials] == ["converged"] * 2 + ["cut_off"] + ["not_run"] * 17
    each = cf.compare(problem, {"slow": slow}, starts=[{"k": 0.4}] * 2, fit_max_time=10.0)
    assert each.stopped is None
    assert counts(each) == {"slow": (0, 0, 0, 2)}


def test_a_better_optimum_may_be_known(problem, found):
    lower = found.best_objective - 1.0
    judged = cf.compare(problem, {"straight": SINGLE}, starts=STARTS[:2], reference=lower)
    assert judged.best_objective == lower
    assert counts(judged) == {"straight": (0, 2, 0, 0)}
    assert judged.rows[0].expected_time == np.inf
    assert "never" in judged.summary()


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
    assert MethodTrial("a", 0, status="converged", objective=1e-9).category(1e-20, Merit(floor=1e-8)) == "correct"
    assert MethodTrial("a", 0, status="converged", objective=1e-7).category(1e-20, Merit(floor=1e-8)) == "wrong"


@pytest.mark.parametrize("status", ["not_run", "cut_off", "interrupted"])
def test_what_did_not_finish_does_not_count(status):
    row = MethodRow.of(
        "a", [MethodTrial("a", 0, status=status), MethodTrial("b", 0, status="converged", objective=1.0)], 1.0
    )
    assert row.starts == 0
    assert np.isnan(row.success_rate)
    assert row.record()["success_rate"] is None


def test_files(found, tmp_path):
    found.to_json(tmp_path / "rows.json")
    record = json.loads((tmp_path / "rows.json").read_text())
    assert record["best"] == found.best_objective
    assert [row["method"] for row in record["rows"]] == ["straight", "multiple", "mine"]
    assert record["rows"][0]["equivalent_iterations"] is None
    found.to_csv(tmp_path / "rows.csv")
    with open(tmp_path / "rows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["correct"] for row in rows] == ["3", "4", "4"]
    assert rows[0]["equivalent_iterations"] == ""
    assert "single shooting" in rows[0]["description"]


def test_the_table_has_one_line_per_trial(found):
    table = found.table
    assert {len(column) for column in table.values()} == {12}
    assert list(table["category"][table["method"] == "straight"]) == ["correct"] * 3 + ["integration_error"]
    correct = table["category"] == "correct"
    np.testing.assert_allclose(table["k"][correct], 0.5, rtol=1e-4)


def test_summary(found):
    lines = str(found).splitlines()
    (line,) = [line for line in lines if line.startswith("straight")]
    assert line.split()[1:7] == ["4", "3", "3", "(75", "%)", "0"]
    assert repr(found).startswith("ComparisonResult(chi2 = ")
    assert "straight 3/4" in repr(found)


def test_progress_is_shown_if_wanted(problem, capsys):
    cf.compare(problem, {"a": SINGLE}, starts=STARTS[:2])
    assert capsys.readouterr() == ("", "")
    cf.compare(problem, {"a": SINGLE}, starts=STARTS[:2], verbose=1)
    assert "2 of 2 fits" in capsys.readouterr().out
    cf.compare(problem, {"a": SINGLE}, starts=STARTS[:2], verbose=2)
    assert "start 1, a: converged" in capsys.readouterr().out


def test_the_figure_ends_at_the_success_rates(found, tmp_path):
    figure = found.plot(tmp_path / "success.png")
    (axes,) = figure.axes
    lines = axes.get_lines()
    assert [line.get_ydata()[-1] for line in lines] == [75.0, 100.0, 100.0]
    times = sorted(t.time for t in found.trials if t.method == "straight" and t.success)
    np.testing.assert_allclose(lines[0].get_xdata()[1:], times)
    assert axes.get_legend().get_texts()[0].get_text() == "straight: 3 of 4"
    assert (tmp_path / "success.png").stat().st_size > 1000


def test_a_figure_of_nothing_found(problem):
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


def test_what_cannot_be_pickled_runs_here_only(problem):
    with pytest.raises(InputError, match=r"problem and methods cannot be sent to other processes.*workers=1"):
        cf.compare(problem, {"a": lambda problem, start, max_time: None}, starts=STARTS, workers=2)


def test_misuse_that_only_a_method_finds_names_the_method(problem):
    collocation = cf.Collocation(states={"y": ([0, 1], [0, 1])})
    with pytest.raises(InputError, match=r"compare, method 'c': (?s:.*)'y'"):
        cf.compare(problem, {"a": SINGLE, "c": collocation}, starts=STARTS[:1])
