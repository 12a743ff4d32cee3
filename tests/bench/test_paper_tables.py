"""Repeating published tables, and the scaling of the linear algebra."""

import json
import signal
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest

import castfit as cf
from castfit import InputError, Status, cli, problems
from castfit._bench import INTEGRATOR, METHODS, Scaling, condensing_scaling, paper_tables, run_table
from castfit._bench.methods import table_methods
from castfit._bench.scaling import random_chain
from castfit.cli import console as _console
from castfit.drive.run.optima import ObjectiveMeasure
from castfit.problems import PaperRow, PublishedTable
from castfit.solve.condensing import condense
from castfit.solve.elimination import eliminate

SMALL = PublishedTable(
    name="small",
    problem="lotka_volterra",
    starts=3,
    paper=(PaperRow("anything", "nothing"),),
    methods=("default", "single"),
    source="nowhere",
)
KEYS = {
    "method",
    "starts",
    "converged",
    "correct",
    "n_other_optimum",
    "integration_error",
    "optimization_error",
    "success_rate",
    "median_time",
    "expected_time",
    "iterations",
    "evaluations",
    "equivalent_iterations",
}


@pytest.fixture(scope="module")
def small():
    return run_table(SMALL)


def test_every_start_has_one_outcome(small):
    assert [row.method for row in small.rows] == ["default", "single"]
    for row in small.rows:
        assert row.correct + row.n_other_optimum + row.integration_error + row.optimization_error == row.starts == 3
        assert row.success_rate == row.correct / 3
        assert row.median_time > 0
        assert row.expected_time > 0
    assert small.rows[0].correct == 3  # the default is at home here
    benchmark = problems.load("lotka_volterra")
    best = ObjectiveMeasure.from_problem(benchmark.problem).at_height(benchmark.reference.objective)
    assert small.best[0] == pytest.approx(best, abs=1e-4 * benchmark.problem.n_data)


@pytest.mark.slow
def test_the_counts_do_not_depend_on_the_workers(small):
    parallel_table = run_table(SMALL, workers=2)
    one, two = (
        [replace(row, median_time=0.0, expected_time=0.0).record() for row in t.rows] for t in (small, parallel_table)
    )
    assert one == two
    assert parallel_table.best == small.best


@dataclass
class Scripted:
    """A method whose fits end as told, in turn, after a warm-up; it remembers what it was asked."""

    ends: list
    asked: list
    transcription: cf.SingleShooting = field(default_factory=cf.SingleShooting)
    description: str = "scripted"

    def __call__(self, problem, *, start, max_time, seed):
        self.asked.append((problem, dict(start), self.transcription.integrator, max_time))
        status, chi2 = self.ends[(len(self.asked) - 2) % len(self.ends)]
        result = fitted().with_status(status, status.message)
        if status is Status.INTERRUPTED:
            signal.raise_signal(signal.SIGINT)
        merit = ObjectiveMeasure.from_problem(problem)
        return replace(result, chi2=chi2, neg2loglik=merit.at_height(chi2), measure=merit.measure)

    def __reduce__(self):
        raise TypeError("it stays in this process, or nobody could see what it was asked")


@cache
def fitted():
    return cf.fit(problems.load("bellman").problem)


@pytest.fixture
def scripted(monkeypatch):
    """Add a method whose fits end as told; the best optimum known before is chi2 = 100."""

    def install(*ends):
        method = Scripted(list(ends), [])
        monkeypatch.setitem(METHODS, "scripted", method)
        return method

    monkeypatch.setattr(
        paper_tables, "_optimum", lambda benchmark: ObjectiveMeasure.from_problem(benchmark.problem).at_height(100.0)
    )
    return install


def test_outcomes_are_sorted_by_status_and_chi2(scripted):
    scripted(
        (Status.CONVERGED, 100.05),
        (Status.ACCEPTABLE, 99.99),
        (Status.CONVERGED, 100.2),
        (Status.START_FAILED, np.nan),
        (Status.EVALUATION_FAILED, 99.0),
        (Status.MAX_TIME, 99.99),
        (Status.STEP_TOO_SMALL, 5.0),
    )
    result_table = run_table(SMALL, methods=["scripted"], starts=7)
    (row,) = result_table.rows
    best = ObjectiveMeasure.from_problem(problems.load(SMALL.problem).problem).at_height(99.99)
    assert result_table.best == (best,)  # what did not converge is no optimum
    assert (row.correct, row.n_other_optimum, row.integration_error, row.optimization_error) == (2, 1, 2, 2)
    assert row.success_rate == 2 / 7


def test_a_method_that_never_succeeds_has_no_expected_time(scripted):
    scripted((Status.MAX_ITERATIONS, 100.0))
    result_table = run_table(SMALL, methods=["scripted"], starts=2)
    assert result_table.rows[0].expected_time == np.inf
    assert result_table.record()["rows"][0]["expected_time"] is None
    json.dumps(result_table.record(), allow_nan=False)


def test_every_case_has_its_own_problem_row_and_optimum(scripted):
    method = scripted((Status.CONVERGED, 100.0))
    table = replace(SMALL, problem="notorious", cases=({"mu": 5}, {"mu": 20}), methods=("scripted",))
    result_table = run_table(table, starts=2)
    assert [row.case for row in result_table.rows] == [{"mu": 5}, {"mu": 20}]
    assert [entry["mu"] for entry in result_table.record()["rows"]] == [5, 20]
    assert len(result_table.best) == 2
    assert len({id(problem) for problem, *_ in method.asked}) == 2
    console = _console.make_console()
    console.width = 160
    with console.capture() as text:
        console.print(_console.stack_tables(*result_table.shown))
    assert text.get().count("scripted") == 4  # two rows, each with its description


def test_the_seed_draws_noise_and_starts(scripted):
    method = scripted((Status.CONVERGED, 100.0))
    table = replace(SMALL, problem="lotka_volterra_michalik", methods=("scripted",))

    def draw_values(seed):
        method.asked.clear()
        run_table(table, starts=2, seed=seed)
        values = method.asked[-1][0].conditions[0].points.values
        return values, tuple(tuple(start.values()) for _, start, *_ in method.asked[-2:])

    stored, one, two, repeated_one = draw_values(None), draw_values(1), draw_values(2), draw_values(1)
    assert len({point for _, points in (stored, one, two) for point in points}) == 6
    assert not np.array_equal(one[0], two[0])
    assert not np.array_equal(stored[0], one[0])
    np.testing.assert_array_equal(one[0], repeated_one[0])
    assert one[1] == repeated_one[1]


def test_methods_share_starts_and_take_the_tolerance(scripted, monkeypatch):
    method, other = scripted((Status.CONVERGED, 100.0)), Scripted([(Status.CONVERGED, 100.0)], [])
    monkeypatch.setitem(METHODS, "other", other)
    run_table(SMALL, methods=["scripted", "other"], starts=2, tolerance=1e-7, max_time=3.0)
    first_starts, second_starts = ([start for _, start, *_ in m.asked[1:]] for m in (method, other))
    assert first_starts == second_starts
    assert first_starts[0] != first_starts[1]
    assert {run[2] for run in method.asked} == {replace(INTEGRATOR, relative_tolerance=1e-7, absolute_tolerance=1e-9)}
    assert {run[3] for run in method.asked} == {3.0}


@pytest.mark.parametrize("when", [0, 1, 2])
def test_interruption_ends_the_table(scripted, when):
    """In the warm-up, the first or the second fit."""
    ends = [(Status.CONVERGED, 100.0)] * 3
    ends[when - 1] = (Status.INTERRUPTED, 100.0)
    method = scripted(*ends)
    result_table = run_table(replace(SMALL, cases=({}, {})), methods=["scripted"])
    assert result_table.stopped is Status.INTERRUPTED
    assert result_table.record()["stopped"] == "interrupted"
    (row,) = result_table.rows  # the second case did not begin
    assert row.starts == max(when - 1, 0)  # what had finished counts
    assert len(method.asked) == when + 1


def test_mistakes_are_listed_at_once():
    with pytest.raises(InputError, match=r"(?s)'defalt': did you mean 'default'.*starts is 0.*seed is -1"):
        run_table(SMALL, methods=["defalt"], starts=0, seed=-1)
    with pytest.raises(InputError, match=r"(?s)workers is 0; give at least 1.*max_time is 0; give a positive number"):
        run_table(SMALL, workers=0, max_time=0)
    with pytest.raises(InputError, match=r"relative_tolerance is 2"):
        run_table(SMALL, tolerance=2)


def test_declared_tables_name_problems_and_methods_that_exist():
    tables = problems.tables()
    assert {"calcium-table1", "iss-table1", "iss-table2", "iss-table3"} <= set(tables)
    for name, table in tables.items():
        assert table.name == name
        assert table.problem in problems.names()
        for case in table.cases:
            benchmark, mistakes = problems.load(table.problem, **case), []
            assert set(table_methods(table.methods, benchmark, mistakes)) == set(table.methods)
            assert not mistakes
            assert table.start is None or table.start in benchmark.starts
            assert list(case) == list(table.cases[0])


def test_both_eliminations_are_timed_on_the_same_step():
    layout, linear = random_chain(20, np.random.default_rng(3))
    condensed_system, eliminated_system = condense(layout, linear), eliminate(layout, linear)
    np.testing.assert_allclose(
        np.linalg.lstsq(condensed_system.E, -condensed_system.u)[0][:2], _constrained(eliminated_system)[:2], rtol=1e-8
    )
    scaling = condensing_scaling(stages=(10, 40), repetitions=2)
    assert scaling.stages == (10, 40)
    assert min(*scaling.condensing, *scaling.elimination) > 0


def _constrained(condensed):
    """Solve the dense problem with closure rows by its KKT system."""
    n, m = condensed.n_x, condensed.e.size
    matrix = np.block([[condensed.E.T @ condensed.E, condensed.F.T], [condensed.F, np.zeros((m, m))]])
    return np.linalg.solve(matrix, -np.concatenate([condensed.E.T @ condensed.u, condensed.e]))[:n]


def test_slopes_are_those_of_the_logarithms():
    stages = (10, 100, 1000)
    scaling = Scaling(stages, tuple(1e-3 * k for k in stages), tuple(1e-6 * k**2 for k in stages))
    assert scaling.slopes == pytest.approx((1.0, 2.0))


def test_bench_writes_its_rows(capsys, monkeypatch):
    monkeypatch.setattr(paper_tables, "tables", lambda: {"small": SMALL})
    assert cli.main(["bench", "small", "--starts", "2", "--methods", "default", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["table"] == "small"
    assert [set(row) for row in record["rows"]] == [KEYS]
    assert "anything" in err
    assert cli.main(["bench", "smal"]) == 2
    assert "did you mean 'small'?" in capsys.readouterr().err


def test_bench_times_the_linear_algebra(capsys, monkeypatch):
    monkeypatch.setattr(
        "castfit._bench.scaling.condensing_scaling", lambda rng: condensing_scaling(stages=(5, 20), rng=rng)
    )
    assert cli.main(["bench", "condensing-scaling"]) == 0
    assert "slope" in capsys.readouterr().out


@pytest.mark.slow
def test_population_table_recovers_the_truth(capsys, monkeypatch):
    monkeypatch.setattr("castfit._bench.population._SIZES", (40,))
    assert cli.main(["bench", "population-40", "--rng", "1", "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["success"]
    assert {row["name"] for row in record["rows"]} > {"ka", "CL", "V", "omega(V)"}
    assert all(abs(row["estimate"] - row["truth"]) < 3.5 * row["error"] for row in record["rows"])
