"""Comparisons of global searches: the table of runs, the baselines, and what the command line makes of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import castfit as cf
from castfit import cli
from castfit._bench import baselines, searches
from castfit._bench.baselines import ABLATION, SEARCHERS, Baseline, Budget, Scatter, evolve, start_often
from castfit._bench.searches import TABLES, SearchRow, SearchRun, run_searches, target_of
from castfit.drive.search.scatter.method.options import ScatterOptions
from castfit.problems import load, names
from tests.builders import refused

BUDGET = Budget(400, 30.0, 0.02754)


def decay(guess=2.0) -> cf.Problem:
    """A single rate constant, known exactly."""
    x, k = cf.symbols("x k")
    times = np.linspace(0.5, 4, 8)
    experiment = cf.Experiment({"x": np.exp(-0.7 * times)}, time=times, sigma=0.1, initial={"x": 1.0}, start=0.0)
    return cf.Problem(
        cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": cf.Parameter(guess, lower=0.0, upper=9.0)}
    )


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    integrator_options = cf.IntegratorOptions(relative_tolerance=1e-7, absolute_tolerance=1e-9)
    monkeypatch.setattr(baselines, "INTEGRATOR", integrator_options)


@pytest.mark.parametrize(
    "searcher",
    [Scatter("", {"dim_refset": 3, "n_diverse": 3}), Baseline("", start_often), Baseline("", evolve)],
    ids=["scatter", "multistart", "de"],
)
def test_all_searchers_count_alike_and_stop_at_the_target(searcher):
    trace = searcher(decay(), seed=0, workers=1, budget=Budget(2000, 30.0, 1e-4))
    assert trace.history[-1].chi2 <= 1e-4
    assert trace.history[-1].simulations <= trace.simulations <= 2000
    repeated_trace = searcher(decay(), seed=0, workers=1, budget=Budget(2000, 30.0, 1e-4))
    assert [(m.simulations, m.chi2) for m in repeated_trace.history] == [(m.simulations, m.chi2) for m in trace.history]


@pytest.mark.parametrize("minimise", [evolve, start_often])
def test_baselines_stop_at_their_limit(minimise):
    trace = Baseline("", minimise)(decay(), seed=0, workers=1, budget=Budget(30, 30.0, -np.inf))
    assert 30 <= trace.simulations <= 60
    assert bool(trace.ends) == (minimise is start_often)


@pytest.fixture
def small(monkeypatch):
    """A table of one quick problem."""
    table = replace(TABLES["ssm-pinene"], cases=(("alpha_pinene", {"scale": "log"}),), max_eval=300, histogram=True)
    monkeypatch.setitem(searches.TABLES, "ssm-pinene", table)
    monkeypatch.setattr(searches, "_warm_up", lambda *arguments: None)
    return table


def test_rows_say_what_the_runs_did(small):
    messages: list[str] = []
    (row,) = run_searches(small, methods=["scatter"], runs=2, seed=3, progress=messages.append)
    assert row.target == target_of(load("alpha_pinene"))
    assert row.reached == 2
    assert [run.seed for run in row.runs] == [3, 4]
    assert row.expected_simulations == sum(run.simulations for run in row.runs) / 2
    assert all(run.simulations_to_target <= run.simulations for run in row.runs)
    assert messages[-1] == "ssm-pinene, alpha_pinene, scatter: run 2 of 2"
    assert json.loads(json.dumps(row.record(), allow_nan=False))["reached"] == 2


def test_an_interruption_leaves_the_rows_that_are_done(small, monkeypatch, tmp_path):
    real = searches._run

    def run(searcher, *arguments):
        if searcher is SEARCHERS["multistart"]:
            raise KeyboardInterrupt
        return real(searcher, *arguments)

    monkeypatch.setattr(searches, "_run", run)
    file = tmp_path / "rows.json"
    chosen = ["--methods", "scatter,multistart", "--starts", "1", "--json", str(file)]
    assert cli.main(["bench", "ssm-pinene", *chosen]) == cli.command.INTERRUPTED
    record = json.loads(file.read_text())
    assert record["stopped"] == "interrupted"
    assert [row["method"] for row in record["rows"]] == ["scatter"]


def test_a_search_that_never_arrives_has_no_expected_cost():
    trace = searches.SearchTrace((), (), 10, 1.0)
    run = SearchRun(0, np.inf, np.inf, np.inf, 10, 1.0, trace)
    row = SearchRow("de", "words", "alpha_pinene", {}, 1.0, (run,))
    assert row.expected_simulations == row.expected_cpu == np.inf
    assert row.record()["expected_cpu"] is None
    assert row.record()["runs"][0]["chi2"] is None


def test_the_target_of_a_perfect_fit_is_small():
    assert target_of(load("three_step", lower=1e-3)) == 1e-4


def test_every_table_names_problems_and_searchers_that_exist():
    for name, table in TABLES.items():
        assert table.name == name
        assert set(table.methods) <= set(table.searchers)
        assert {problem for problem, _ in table.cases} <= set(names())
    assert SEARCHERS is not ABLATION


def test_every_ablation_changes_one_thing():
    option_names = set(vars(ScatterOptions())) | {"log_vars", "join_reach"}
    for name, searcher in ABLATION.items():
        assert isinstance(searcher, Scatter)
        assert set(searcher.options) <= option_names
        assert len(searcher.options) == {"default": 0, "neither": 2}.get(name, 1)
        for option, value in searcher.options.items():
            assert getattr(ScatterOptions(), option, None) != value


def test_mistakes_are_listed_at_once():
    with refused("no method 'scater': did you mean 'scatter'?", "runs is 0", "workers is 0", "seed is -1",
                 "max_time is 0", "reads no data"):  # fmt: skip
        run_searches(TABLES["ssm-pinene"], methods=["scater"], runs=0, workers=0, seed=-1, max_time=0, data="x.csv")


def test_the_warm_up_is_short():
    calls: list[tuple[dict, float]] = []

    class Recorded(Scatter):
        def __call__(self, problem, *, seed, workers, budget):
            calls.append((dict(self.options), budget.max_eval))
            return searches.SearchTrace((), (), 0, 0.0)

    searches._warm_up(Recorded("", {"local_n1": 7, "dim_refset": 10}), decay(), BUDGET)
    assert calls == [
        ({"local_n1": 0, "dim_refset": 3, "n_diverse": 3, "local_searches": 1}, 10),
    ]


def test_bench_prints_draws_and_writes(small, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # in a narrow table, words stand below each other
    curves, rows = tmp_path / "curves.png", tmp_path / "rows.json"
    chosen = ["--starts", "1", "--methods", "scatter,multistart", "--plot", str(curves), "--json", str(rows)]
    assert cli.main(["bench", "ssm-pinene", *chosen]) == 0
    out = capsys.readouterr().out
    for text in ("SSm", "1 of 1", "19.87", "the same fits from", "curves.png", "curves_histogram.png"):
        assert text in out
    assert curves.stat().st_size > 0
    assert (tmp_path / "curves_histogram.png").stat().st_size > 0
    record = json.loads(rows.read_text())
    assert [row["method"] for row in record["rows"]] == ["scatter", "multistart"]


@pytest.mark.parametrize(
    ("table", "option"),
    [
        ("ssm-pinene", "--tolerance=1e-6"),
        ("condensing-scaling", "--data=x.csv"),
        ("condensing-scaling", "--plot=x.png"),
        ("condensing-scaling", "--methods=single"),
        ("condensing-scaling", "--starts=3"),
        ("condensing-scaling", "--workers=1"),
        ("condensing-scaling", "--max-time=1"),
        ("condensing-scaling", "--tolerance=1e-6"),
        ("calcium-table1", "--data=x.csv"),
    ],
)
def test_bench_refuses_options_without_effect(table, option, capsys):
    assert cli.main(["bench", table, option]) == cli.command.MISUSE
    assert f"table '{table}' has no option {option.split('=')[0]}" in capsys.readouterr().err


def test_bench_refuses_a_picture_without_format(capsys):
    assert cli.main(["bench", "ssm-pinene", "--plot", "curves"]) == cli.command.MISUSE
    assert "'curves' has no image format" in capsys.readouterr().err
