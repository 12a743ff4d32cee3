"""How fits grow with the number of experiments, and of values."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

import castfit as cf
from castfit import cli
from castfit._bench import many_experiments
from castfit.result.covariance import statistics
from castfit.solve.condensing import condense
from castfit.solve.subproblem import LocalProblem


def test_the_table_is_printed_plotted_and_written(tmp_path, monkeypatch, capsys):
    few = {"experiments": (3, 6), "values": (50, 100)}
    cases = [("experiments", m, n) for m in ("single", "collocation") for n in few["experiments"]]
    cases += [("values", "multiple", n) for n in few["values"]]
    timings = tuple(many_experiments.timed(*case, 0) for case in cases)
    assert all(t.success for t in timings)
    assert max(t.off for t in timings if t.what == "experiments") < 1e-5  # the closed form has the same chi2
    monkeypatch.setattr(many_experiments, "scaling", lambda **_: timings)
    picture, file = tmp_path / "scaling.png", tmp_path / "scaling.json"
    assert cli.main(["bench", "scaling", f"--plot={picture}", f"--json={file}"]) == 0
    assert "an iteration" in capsys.readouterr().out
    assert picture.stat().st_size > 1000
    assert [row["count"] for row in json.loads(file.read_text())["rows"]] == [n for _, _, n in cases]


def test_slopes_are_those_of_powers():
    timings = [
        many_experiments.ManyTiming("values", "m", n, 3, 0.0, 2.0 * n, 0.1 * n**1.5, 7.0, 0.0, True)
        for n in (10, 100, 1000)
    ]
    assert many_experiments.slopes(timings)["values, m"] == pytest.approx({"fit": 1.0, "iteration": 1.5, "memory": 0.0})


def _peak(count):
    """Return the peak memory of a step and of the statistics beyond what the problem holds, in bytes."""
    problem = many_experiments.many_experiments(count).posed
    staged = cf.SingleShooting().transcribe(problem, problem.guess)
    linear = staged.linearize(staged.start)
    tracemalloc.start()
    LocalProblem(staged, linear, regularisation=1e-9).direction()
    statistics(staged.layout, linear, np.zeros(staged.layout.n_v, dtype=np.int8), scale=staged.scale)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.slow
def test_memory_of_steps_and_statistics_is_linear_in_the_experiments():
    few, many_ = _peak(80), _peak(320)
    assert many_ < 4.6 * few
    assert many_ < 0.3 * 8 * (3 * 320 + 4) * 24 * 320  # bytes of the Jacobian that is not formed


@pytest.mark.slow
def test_many_experiments_fit_as_a_few_do_and_stay_readable(tmp_path):
    problem = many_experiments.many_experiments(170)
    result = cf.fit(problem, "single")
    assert result.success
    text = str(result)
    assert len(text.splitlines()) < 25
    assert "b[170 experiments]" in text
    assert "result['b[experiment 1]']" in text
    assert len(result.summary(every=True).splitlines()) > 514
    assert isinstance(result.covariance, cf.BlockMatrix)
    for name, truth in many_experiments.TRUTH.items():
        assert abs(result.values[name] - truth) < 4.0 * result.standard_errors[name]
    other = cf.fit(problem, "collocation")
    for name in ("k10", "b[experiment 3]", "A(0)[experiment 160]"):
        assert other.values[name] == pytest.approx(result.values[name], abs=1e-3 * result.standard_errors[name] + 1e-5)
        assert other.standard_errors[name] == pytest.approx(result.standard_errors[name], rel=1e-3)
    result.save(tmp_path / "result.json")  # without the matrices
    loaded = cf.Result.load(tmp_path / "result.json")
    assert loaded.values == result.values
    assert loaded.standard_errors == result.standard_errors


def test_rows_of_a_condensed_problem_are_blocks():
    problem = many_experiments.many_experiments(5).posed
    staged = cf.SingleShooting().transcribe(problem, problem.guess)
    condensed = condense(staged.layout, staged.linearize(staged.start))
    x = np.arange(condensed.n_x) - 3.0
    np.testing.assert_allclose(condensed.rows.times(x), condensed.E @ x)
    np.testing.assert_allclose(condensed.rows.norms, np.linalg.norm(condensed.E, axis=0))
    np.testing.assert_array_equal(condensed.rows.take_rows(np.array([1, 50])), condensed.E[[1, 50]])
