"""castfit compare, and the parts of castfit bench that repeat the tables of incremental single shooting."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import castfit as cf
from castfit import Status, cli, problems
from castfit._bench import paper_tables
from castfit.drive.run.optima import ObjectiveMeasure


def test_compare_writes_its_rows(capsys, tmp_path):
    files = {kind: tmp_path / f"rows.{kind}" for kind in ("json", "csv", "png")}
    options = ["--starts", "2", "--rng", "3", "--methods", "collocation,incremental"]
    outputs = ["--json", str(files["json"]), "--csv", str(files["csv"]), "--plot", str(files["png"])]
    assert cli.main(["compare", "bellman", *options, *outputs]) == 0
    out = capsys.readouterr().out
    assert "bellman, 2 starts, seed 3" in out
    assert "growing horizons, single shooting" in out
    record = json.loads(files["json"].read_text())
    assert record["problem"] == "bellman"
    benchmark = problems.load("bellman")
    best = ObjectiveMeasure.from_problem(benchmark.problem).at_height(benchmark.reference.objective)
    assert record["best"] == pytest.approx(best, abs=14e-3)  # the mean of 14 squares within 0.1 %
    assert [(row["method"], row["starts"]) for row in record["rows"]] == [("collocation", 2), ("incremental", 2)]
    with open(files["csv"], newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["collocation", "incremental"]
    assert files["png"].read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def compare_calls(monkeypatch):
    """What castfit.compare is called with; it answers for a quick problem, and may be told how it was stopped."""
    real, calls = cf.compare, []

    def record(problem, methods, **options):
        calls.append({"problem": problem, "methods": methods, **options})
        bellman = problems.load("bellman").problem
        result = real(bellman, ["collocation"], starts=[{}], callback=options["callback"])
        return replace(result, stopped=calls[0].get("stopped"))

    monkeypatch.setattr(cf, "compare", record)
    return calls


def test_compare_uses_what_the_problem_recommends(compare_calls):
    assert cli.main(["compare", "notorious", "--option", "mu=20", "--methods", "multiple, incremental/multiple",
                     "--starts", "3", "--rng", "5", "--workers", "2", "--max-time", "9"]) == 0  # fmt: skip
    (call,) = compare_calls
    benchmark = problems.load("notorious", mu=20)
    assert [m.transcription for m in call["methods"].values()] == [cf.MultipleShooting(10)] * 2
    seeds = np.random.SeedSequence(5).spawn(3)
    assert call["starts"] == [benchmark.draw_start(np.random.default_rng(s)) for s in seeds]
    assert call["reference"] == benchmark.reference.objective
    assert (call["workers"], call["max_time"], call["fit_max_time"]) == (2, 9.0, 60.0)


def test_an_interrupted_comparison_exits_with_130(compare_calls, capsys):
    compare_calls.append({"stopped": Status.INTERRUPTED})
    assert cli.main(["compare", "bellman", "--json", "-"]) == 130
    assert json.loads(capsys.readouterr().out)["stopped"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bellmann"], "did you mean 'bellman'"),
        (["bellman", "--methods", "singel"], "did you mean 'single'"),
        (["bellman", "--starts", "0", "--rng", "-1"], "--rng is -1"),
        (["bellman", "--workers", "0"], "workers is 0"),
        (["bellman", "--csv", "no/such/rows.csv"], "cannot be written"),
        (["bellman", "--plot", "picture"], "has no image format"),
    ],
)
def test_misuse_exits_with_2(capsys, arguments, message):
    assert cli.main(["compare", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_table_1_names_mu_in_every_row(capsys, monkeypatch):
    table = problems.tables()["iss-table1"]
    assert [case["mu"] for case in table.cases] == [5, 10, 20, 40]
    monkeypatch.setattr(paper_tables, "tables", lambda: {table.name: replace(table, cases=table.cases[1::2])})
    methods = "incremental/multiple,incremental/collocation"
    assert cli.main(["bench", "iss-table1", "--starts", "2", "--methods", methods, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [row["mu"] for row in rows] == [10, 10, 40, 40]
    assert [row["correct"] for row in rows] == [2, 2, 2, 2]
    assert "18 / 100 / 99 / 100" in err


def test_table_2_is_solved_from_noise_of_its_own(capsys):
    best = []
    for seed in ([], ["--rng", "1"]):
        arguments = ["bench", "iss-table2", "--starts", "2", "--methods", "collocation", "--json", "-", *seed]
        assert cli.main(arguments) == 0
        record = json.loads(capsys.readouterr().out)
        assert [row["correct"] for row in record["rows"]] == [2]
        best += record["best"]
    reference = problems.load("lotka_volterra_michalik").reference
    assert best[0] == pytest.approx(reference.objective, rel=1e-4)
    assert abs(best[1] - best[0]) > 1


def test_table_3_shows_the_estimates_per_horizon(capsys):
    assert cli.main(["bench", "iss-table3", "--methods", "incremental,multiple", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    incremental_row, multiple_row = json.loads(out)["rows"]
    assert (incremental_row["correct"], multiple_row["correct"]) == (1, 1)
    assert incremental_row["equivalent_iterations"] <= 12  # the paper needs 12.35
    assert [h["horizon"] for h in incremental_row["horizons"]] == [0.5, 1, 2, 4, 8, 10]
    reference = problems.load("lotka_volterra_michalik").reference.parameters
    assert {name: incremental_row["horizons"][-1][name] for name in reference} == pytest.approx(reference, rel=1e-3)
    assert incremental_row["equivalent_iterations"] == pytest.approx(
        sum(h["iterations"] * h["horizon"] for h in incremental_row["horizons"]) / 10
    )
    assert "horizons" not in multiple_row
    assert "I_equiv = 12.35" in err
    assert "incremental: estimates per horizon" in err
    assert cli.main(["bench", "iss-table3", "--starts", "5"]) == 2
    assert "has a single start" in capsys.readouterr().err
