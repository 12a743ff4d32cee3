"""The library's problems of optimal control: the best values known, confirmed by integration; how plans are shown."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf
from castfit import cli, problems
from castfit.problems import import_sibling
from tests.builders import refused

SINGULAR = {"catalyst", "fishing", "goddard", "lee_ramirez"}


@pytest.mark.parametrize("name", problems.control_names())
def test_library_problem_reaches_its_best_known_value(name):
    b = problems.load_control(name)
    plan = cf.control(b.model, **b.question)
    assert plan.success, plan.message
    assert b.is_reached(plan.integrated), plan.integrated
    assert b.is_reached(plan.objective)
    assert bool(plan.undetermined) == (name in SINGULAR)
    assert ("nearly undetermined" in plan.message) == (name in SINGULAR)


@pytest.mark.slow
@pytest.mark.parametrize("name", problems.control_names())
def test_library_problem_by_multiple_shooting_reaches_its_best_known_value(name):
    b = problems.load_control(name)
    plan = cf.control(b.model, transcription="multiple", **b.question)
    assert plan.success, plan.message
    assert b.is_reached(plan.integrated), plan.integrated


def test_undetermined_changes_hardly_change_the_objective():
    """Half the change that is claimed, the others following: here two neighbours, which together do nothing."""
    b = problems.load_control("catalyst")
    plan = cf.control(b.model, **b.question)
    u, change = plan.inputs["u"], plan.undetermined["u"]
    k = 100
    assert change[k] > 0.05
    values = u.values.copy()
    values[k] += 0.5 * change[k]
    values[k - 1] -= 0.25 * change[k]
    values[k + 1] -= 0.25 * change[k]
    simulation = cf.simulate(b.model, {}, plan.times, inputs={"u": cf.Input.piecewise_constant(u.times, values)})
    objective = simulation["a"][-1] + simulation["b"][-1] - 1
    assert 0 <= objective - plan.integrated < 2e-8 * abs(plan.integrated)


def test_plan_plot_report_and_summary_contain_the_objective(tmp_path):
    b = problems.load_control("van_der_pol")
    plan = cf.control(b.model, **b.question)
    figure = plan.plot(tmp_path / "plan.png")
    assert len(figure.axes) == 3
    assert plan.bounds_of("x1") == (-0.25,)
    page = plan.report(tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "2.93300" in page
    assert "x1 &gt;= -0.25 along" in page
    assert "2.93300" in str(plan)
    with refused("unknown state or input 'q'"):
        plan.plot(names=["q"])
    with refused("must end in .html"):
        plan.report(tmp_path / "plan.txt")


def test_cli_list_contains_all_control_problems(capsys):
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in problems.control_names():
        assert any(line.split()[:1] == [name] for line in lines), name
    with refused("no problem is named"):
        problems.load_control("goddart")


def test_bench_control_reports_a_row_per_transcription(monkeypatch):
    module = import_sibling("castfit._bench", "bench").optimal_control
    monkeypatch.setattr(module, "control_names", lambda: ("double_integrator",))
    monkeypatch.setattr(module, "_rockit", lambda python, name: {"seconds": 1e9, "objective": 2.0})
    report = module.run("control", rockit="python")
    rows = report.record["rows"]
    assert [row["transcription"] for row in rows] == ["collocation", "multiple"]
    assert all(row["reached"] for row in rows)
    assert np.isclose(rows[0]["rockit_objective"], 2.0)
    assert "geometric mean" in report.shown[1]
