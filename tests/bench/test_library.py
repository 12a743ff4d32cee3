"""The table of every library problem by every method, and its comparison with an earlier one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

import castfit as cf
from castfit import cli, problems
from castfit._bench.library import METHODS, LibraryEntry, record, run_library
from castfit._bench.regression import build_tables, earlier
from tests.builders import refused
from tests.paths import ROOT


@pytest.fixture
def two_problems(monkeypatch):
    assert {"bellman", "lotka_volterra"} <= set(problems.names())  # which also finds the library
    monkeypatch.setattr(problems, "names", lambda: ("bellman", "lotka_volterra"))


def test_every_problem_meets_every_method(two_problems):
    entries = list(run_library(methods=["default", "multiple/ipopt"], starts=2))
    assert [(e.problem, e.method) for e in entries] == [
        (problem, method) for problem in ("bellman", "lotka_volterra") for method in ("default", "multiple/ipopt")
    ]
    for entry in entries:
        assert entry.starts == len(entry.ends) == 2
        assert 1 <= entry.correct <= entry.success <= 2
        assert entry.iterations >= 1
        assert entry.evaluations > entry.iterations
        assert entry.cpu > 0
    repeated_entries = list(run_library(names=["bellman", "lotka_volterra"], methods=["default"], starts=2))
    assert [replace(e, cpu=0, building=0) for e in repeated_entries] == [
        replace(e, cpu=0, building=0) for e in entries[::2]
    ]


def test_methods_are_all_transcriptions_by_all_solvers():
    assert set(METHODS) == {"default"} | {
        f"{t}/{s}" for t in ("single", "multiple", "collocation") for s in ("gauss_newton", "ipopt")
    }


def test_an_earlier_table_gives_ratios(tmp_path):
    old = LibraryEntry("bellman", "default", 1, 1, 1, 10.0, 30.0, 0.5, 2.0, ("converged",))
    second_entry = replace(old, method="single/ipopt")
    file = tmp_path / "old.json"
    file.write_text(json.dumps(record([old, second_entry])))
    earlier_entries = earlier(str(file))
    assert earlier_entries == {("bellman", "default"): old, ("bellman", "single/ipopt"): second_entry}
    new = [replace(old, iterations=5.0, cpu=1.0), replace(second_entry, correct=0, success=0, ends=("max_time",))]
    sheet, *lines = build_tables(new, earlier_entries)
    first_row, second_row = (dict(zip(sheet.heads[-4:], row[-4:], strict=True)) for row in sheet.rows)
    assert first_row == {">before": "1, 1", ">iterations": "0.50", ">CPU": "0.50", "ends": ""}
    assert second_row["ends"] == "max_time"
    text = "\n".join(lines)
    assert "2 fits: 1 succeed, 1 in the reference optimum; 3.0 s" in text
    assert "before: 2 succeed, 2 in the reference optimum; 4.0 s" in text
    assert "where both find the optimum (1 rows), geometric mean of new / old: iterations 0.500, CPU 0.500" in text
    assert "bellman, single/ipopt: 1 correct before, 0 now" in text


def test_an_error_of_one_fit_is_a_row(two_problems, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("out of order")

    monkeypatch.setattr(cf, "fit", broken)
    (entry, _) = run_library(methods=["default"])
    assert (entry.success, entry.ends) == (0, ("RuntimeError: out of order",))
    assert "out of order" in build_tables([entry])[0].rows[0][-1]


def test_mistakes_are_listed_at_once(tmp_path):
    with refused("no method 'defalt': did you mean 'default'?", "starts is 0", "seed is -1", "max_time is 0",
                 "no problem 'belman': did you mean 'bellman'?"):  # fmt: skip
        run_library(names=["belman"], methods=["defalt"], starts=0, seed=-1, max_time=0)
    file = tmp_path / "other.json"
    file.write_text("[1]")
    with refused("other.json' holds no such table"):
        earlier(str(file))


def test_bench_prints_and_writes_the_library(two_problems, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "library.json"
    assert cli.main(["bench", "library", "--methods", "default", "--json", str(file)]) == 0
    assert "2 fits: 2 succeed" in capsys.readouterr().out
    assert cli.main(["bench", "library", "--methods", "default", "--against", str(file)]) == 0
    out = capsys.readouterr().out
    assert "before: 2 succeed" in out
    assert "iterations 1.000" in out
    assert cli.main(["bench", "library", "--workers", "2"]) == 2
    assert "has no option --workers" in capsys.readouterr().err


def test_bench_keeps_what_an_interruption_leaves(two_problems, tmp_path, monkeypatch):
    from castfit._bench import library

    fitted = iter([library._entry])

    def entry(*arguments):
        return next(fitted, _interrupted)(*arguments)

    monkeypatch.setattr(library, "_entry", entry)
    file = tmp_path / "library.json"
    assert cli.main(["bench", "library", "--methods", "default", "--json", str(file)]) == 130
    assert json.loads(file.read_text())["stopped"] == "interrupted"
    assert [problem for problem, _ in earlier(str(file))] == ["bellman"]


def _interrupted(*arguments):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_the_table_is_run_by_another_checkout_as_a_script(tmp_path):
    root = ROOT
    file = tmp_path / "before.json"
    command = [sys.executable, str(root / "bench" / "library.py"), str(file), "5", "lotka_volterra"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(root)}, cwd=tmp_path)
    assert [method for _, method in earlier(str(file))] == list(METHODS)
