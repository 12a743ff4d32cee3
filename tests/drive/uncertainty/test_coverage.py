"""How often intervals contain the truth: what is counted, and that nothing depends on who counts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

import castfit as cf
from castfit._bench.coverage import KINDS, run_kind
from castfit.cli import main
from castfit.drive.uncertainty.refits.coverage import wilson
from tests.builders import decay_model, refused

TIMES = np.linspace(0.2, 4.0, 12)
SINGLE = cf.SingleShooting()


def decay(sigma=0.05, **options) -> cf.Problem:
    experiment = cf.Experiment({"x": np.exp(-0.7 * TIMES)}, time=TIMES, sigma=sigma, initial={"x": 1.0}, **options)
    return cf.Problem(decay_model(), experiment, parameters={"k": 0.7})


def too_narrow(result, level):
    return {n: (v - 0.1 * result.standard_errors[n], v + 0.1 * result.standard_errors[n])
            for n, v in result.values.items()}  # fmt: skip


def test_workers_make_no_difference(two_workers):
    serial_result, parallel_result = (
        cf.coverage(decay(), samples=6, rng=3, workers=n, transcription=SINGLE) for n in (1, two_workers)
    )
    assert [row.requested_pairs for row in serial_result.rows] == [row.requested_pairs for row in parallel_result.rows]
    assert serial_result.fitted == 6
    other_seed_result = cf.coverage(decay(), samples=6, rng=4, transcription=SINGLE)
    assert serial_result.rows[0].requested_pairs != other_seed_result.rows[0].requested_pairs


def test_shares_and_widths_are_those_of_the_intervals():
    coverage = cf.coverage(decay(None), {"k": 0.6}, sigma=0.05, samples=60, confidence_level=0.8, transcription=SINGLE)
    k, table = coverage.quantities["k"], coverage.table
    inside = (table["k lower"] <= 0.6) & (table["k upper"] >= 0.6)
    assert k.share == inside.mean()
    assert k.share + k.below + k.above == pytest.approx(1.0)
    assert k.width == pytest.approx((table["k upper"] - table["k lower"]).mean())
    assert k.error == pytest.approx(np.sqrt(k.share * (1 - k.share) / 60))
    # of an exponential, at the truth: the derivative of each value by k is  -t exp(-k t)
    exact = 0.05 / np.sqrt(np.sum((TIMES * np.exp(-0.6 * TIMES)) ** 2))
    assert k.scatter == pytest.approx(exact, rel=0.35)
    assert k.standard_error == pytest.approx(exact, rel=0.15)
    assert abs(k.bias) < 4 * k.bias_error
    assert 0.8 - 4 * k.error < k.share < 0.8 + 4 * k.error
    assert "as promised" in str(coverage)


def test_coverage_of_user_intervals_reports_that_they_are_too_narrow():
    coverage = cf.coverage(decay(), samples=20, intervals=too_narrow, transcription=SINGLE)
    assert coverage.share < 0.35
    assert "too narrow" in str(coverage)
    assert "too_narrow" in coverage.intervals


def test_intervals_of_profiles():
    coverage = cf.coverage(decay(), samples=3, intervals="profile", transcription=SINGLE)
    k = coverage.quantities["k"]
    assert k.intervals == 3
    assert k.width == pytest.approx(2 * 1.96 * k.standard_error, rel=0.05)
    assert "coverage of profile intervals" in str(coverage)


@pytest.mark.slow
def test_a_result_is_a_design_with_its_estimates_as_truth():
    result = cf.fit(decay(), SINGLE)
    coverage = cf.coverage(result, samples=30, transcription=SINGLE)
    assert coverage.truth == pytest.approx(result.values)
    assert coverage.share > 0.75
    with refused("truth and sigma are part of the result"):
        cf.coverage(result, {"k": 1.0})


def test_coverage_counts_failed_fits():
    coverage = cf.coverage(decay(), samples=5, transcription=SINGLE, solver=cf.GaussNewton(max_iter=1))
    assert coverage.failures == {"max_iterations": 5}
    assert np.isnan(coverage.share)
    assert "5 fits failed and have no interval" in str(coverage)
    assert "no interval" in coverage.quantities["k"].verdict(0.95)


def test_coverage_with_several_mistakes_lists_all():
    with refused(
        "samples", "confidence_level is 1", "intervals is 'x'", "start is 3", "'q' is not estimated", "'k' is nan"
    ):
        cf.coverage(decay(), {"q": 1, "k": np.nan}, samples=0, confidence_level=1, intervals="x", start=3)
    with refused("'sigma' is missing"):
        cf.coverage(decay(None))
    with refused("all standard deviations are known"):
        cf.coverage(decay(), sigma=0.1)
    with refused("'y' is not an unknown standard deviation", "'x' is -1"):
        cf.coverage(decay(cf.unknown()), sigma={"y": 1.0, "x": -1})
    with refused("cannot be sampled from a user-defined cost"):
        cf.coverage(decay(None, noise=cf.Likelihood(lambda y, m: (y - m) ** 2)))
    with refused("give a Problem"):
        cf.coverage(3)


def test_the_range_of_a_share_is_that_of_scipy():
    expected = stats.binomtest(465, 500).proportion_ci(0.99, method="wilson")
    assert wilson(0.93, 500, 0.99) == pytest.approx((expected.low, expected.high))


def test_the_command_line_has_a_row_per_kind_of_noise(tmp_path):
    path = tmp_path / "coverage.json"
    assert main(["bench", "coverage", "--starts", "2", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["name"] for row in rows] == [f"lotka_volterra, {kind}" for kind in KINDS]
    assert all(row["fitted"] == 2 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_95_percent_have_nominal_coverage(kind):
    coverage = run_kind(kind, workers=2)
    assert coverage.fitted == 500
    assert 0.93 <= coverage.share <= 0.97
