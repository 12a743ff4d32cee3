"""Repeating published tables, and the scaling of the linear algebra."""

import json
from dataclasses import replace

import numpy as np
import pytest

from castfit import InputError, cli, problems
from castfit.benchmark import METHODS, Scaling, condensing_scaling, run_table
from castfit.benchmark.scaling import random_chain
from castfit.problems import PaperRow, PublishedTable
from castfit.solve.condensing import condense
from castfit.solve.elimination import eliminate

SMALL = PublishedTable(
    name="small",
    problem="lotka_volterra",
    starts=3,
    options={},
    paper=(PaperRow("anything", "nothing"),),
    methods=("default", "single"),
    source="nowhere",
)
KEYS = {
    "method",
    "starts",
    "correct",
    "wrong",
    "integration_error",
    "optimization_error",
    "success_rate",
    "median_time",
    "expected_time",
}


@pytest.fixture(scope="module")
def small():
    return run_table(SMALL)


def test_every_start_has_one_outcome(small):
    assert [row.method for row in small.rows] == ["default", "single"]
    for row in small.rows:
        assert row.correct + row.wrong + row.integration_error + row.optimization_error == row.starts == 3
        assert row.success_rate == row.correct / 3
        assert row.median_time > 0
        assert row.expected_time > 0
    assert small.rows[0].correct == 3  # the default is at home here
    assert small.best == pytest.approx(problems.load("lotka_volterra").reference.objective, rel=1e-4)


def test_the_counts_do_not_depend_on_the_workers(small):
    again = run_table(SMALL, workers=2)
    counts = [replace(row, median_time=0.0, expected_time=0.0) for row in small.rows]
    assert [replace(row, median_time=0.0, expected_time=0.0) for row in again.rows] == counts
    assert again.best == small.best


def test_mistakes_are_listed_at_once():
    with pytest.raises(InputError, match=r"(?s)no method 'defalt': did you mean 'default'.*starts is 0.*seed is -1"):
        run_table(SMALL, methods=["defalt"], starts=0, seed=-1)


def test_declared_tables_name_problems_and_methods_that_exist():
    tables = problems.tables()
    assert "calcium-table1" in tables
    for name, table in tables.items():
        assert table.name == name
        assert table.problem in problems.names()
        assert set(table.methods) <= set(METHODS)
        problems.load(table.problem, **table.options)


def test_both_eliminations_are_timed_on_the_same_step():
    layout, linear = random_chain(20, np.random.default_rng(3))
    first, second = condense(layout, linear), eliminate(layout, linear)
    np.testing.assert_allclose(np.linalg.lstsq(first.E, -first.u)[0][:2], _constrained(second)[:2], rtol=1e-8)
    found = condensing_scaling(stages=(10, 40), repetitions=2)
    assert found.stages == (10, 40)
    assert min(*found.condensing, *found.elimination) > 0


def _constrained(condensed):
    """Solve the dense problem with closure rows by its KKT system."""
    n, m = condensed.n_x, condensed.e.size
    matrix = np.block([[condensed.E.T @ condensed.E, condensed.F.T], [condensed.F, np.zeros((m, m))]])
    return np.linalg.solve(matrix, -np.concatenate([condensed.E.T @ condensed.u, condensed.e]))[:n]


def test_slopes_are_those_of_the_logarithms():
    stages = (10, 100, 1000)
    found = Scaling(stages, tuple(1e-3 * k for k in stages), tuple(1e-6 * k**2 for k in stages))
    assert found.slopes == pytest.approx((1.0, 2.0))


def test_bench_writes_its_rows(capsys, monkeypatch):
    monkeypatch.setattr(problems, "tables", lambda: {"small": SMALL})
    assert cli.main(["bench", "small", "--starts", "2", "--methods", "default", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["table"] == "small"
    assert [set(row) for row in record["rows"]] == [KEYS]
    assert "paper: anything" in err
    assert cli.main(["bench", "smal"]) == 2
    assert "did you mean 'small'?" in capsys.readouterr().err


def test_bench_times_the_linear_algebra(capsys, monkeypatch):
    monkeypatch.setattr("castfit.benchmark.condensing_scaling", lambda rng: condensing_scaling(stages=(5, 20), rng=rng))
    assert cli.main(["bench", "condensing-scaling"]) == 0
    assert "slope" in capsys.readouterr().out
