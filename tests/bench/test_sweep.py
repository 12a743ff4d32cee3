"""``castfit bench sweep``: curves of cost against error, and that both methods are right."""

from __future__ import annotations

import json

import numpy as np
import pytest

from castfit._bench.sweep import Curve, compared, draw_sweeps
from castfit._support.casadi_functions import find_compiler
from castfit.cli import main
from tests.builders import decay_problem

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="models are compiled")


def test_seconds_at_an_error_are_interpolated_in_logarithms():
    curve = Curve("esdirk", np.array([1.0, 10.0, 100.0]), np.array([1e-2, 1e-4, 1e-6]), 0.0)
    assert curve.at(1e-3) == pytest.approx(10**0.5)
    assert curve.at(1e-6) == pytest.approx(100.0)
    assert curve.at(1.0) == pytest.approx(1.0)  # the coarsest will do
    assert np.isnan(curve.at(1e-7))  # never reached
    failed = Curve("cvodes", np.array([1.0, 10.0]), np.array([np.inf, 1e-4]), 0.0)
    assert np.isnan(failed.at(1e-4))


@needs_compiler
def test_errors_fall_with_tolerances_and_are_plotted(tmp_path):
    problem = decay_problem()
    sweep = compared("decay", problem.posed, problem.posed.guess)
    assert (sweep.n_x, sweep.n_d, sweep.lanes) == (1, 1, 1)
    for curve in (sweep.theirs, sweep.ours):
        assert (curve.errors < 100 * np.array([1e-4, 1e-6, 1e-8, 1e-10])).all()
        assert (curve.seconds > 0).all()
    draw_sweeps([sweep], tmp_path / "sweep.svg")
    assert (tmp_path / "sweep.svg").read_text().startswith("<?xml")


@pytest.mark.slow
@needs_compiler
def test_esdirk_takes_less_time_than_compiled_cvodes(tmp_path):
    assert main(["bench", "sweep", "--problems", "stat5", "--json", str(tmp_path / "out.json")]) == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert all(0.0 < ratio < 1.0 for ratio in row["ratios"].values())
