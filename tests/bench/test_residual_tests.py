"""How often residuals are suspected: rarely if they are noise, mostly if they are not."""

from __future__ import annotations

import numpy as np

from castfit._bench.residual_tests import KIND, correlated, noise, run_tests


def test_noise_is_rarely_suspected_and_correlated_errors_mostly() -> None:
    rng = np.random.default_rng(0)
    independent_row = run_tests("noise", noise, 30, 1, 3, 200, rng)
    correlated_row = run_tests("alike", correlated(0.46), 30, 1, 0, 200, rng)
    assert independent_row.suspected < 0.11
    assert independent_row.shown < 0.02
    assert correlated_row.suspected > 0.65
    assert 0.1 < correlated_row.shown < correlated_row.suspected


def test_the_table_has_a_row_for_each_case() -> None:
    report = KIND.run("residual-tests", starts=2)
    assert report.record["draws"] == 2
    assert len(report.record["rows"]) == len(report.shown[0].rows) > 20
