"""How often intervals contain the truth: what is counted, and that nothing depends on who counts."""

from __future__ import annotations

import json

import numpy as np
import pytest

import castfit as cf
from castfit.benchmark.coverage import KINDS, Coverage, coverage
from castfit.cli import main
from tests.builders import decay_model, refused

TIMES = np.linspace(0.2, 4.0, 12)


def decay(rng: np.random.Generator) -> cf.Problem:
    values = np.exp(-0.7 * TIMES) + 0.05 * rng.standard_normal(TIMES.size)
    experiment = cf.Experiment({"x": values}, time=TIMES, sigma=0.05, initial={"x": 1.0})
    return cf.Problem(decay_model(), experiment, parameters={"k": 0.5})


def broken(rng: np.random.Generator) -> cf.Problem:
    raise ValueError(f"no data today ({rng.integers(1)})")


def test_workers_make_no_difference():
    here, there = (coverage("decay", decay, {"k": 0.7}, trials=6, seed=3, workers=n) for n in (1, 2))
    assert here == there
    assert here.fitted == 6
    assert here != coverage("decay", decay, {"k": 0.7}, trials=6, seed=4, level=0.1)


def test_a_wrong_truth_is_not_covered():
    assert coverage("decay", decay, {"k": 1.4}, trials=4).inside == {"k": 0}


def test_data_that_cannot_be_fitted_are_told():
    found = coverage("broken", broken, {"k": 0.7}, trials=3)
    assert found.ends == {"ValueError: no data today (0)": 3}
    assert np.isnan(found.share)


def test_numbers_are_checked():
    with refused("trials"):
        coverage("decay", decay, {"k": 0.7}, trials=0)


def test_shares_are_parts_of_the_fits():
    found = Coverage("a", 0.95, {"k": 3, "m": 4}, 4, {})
    assert found.shares == {"k": 0.75, "m": 1.0}
    assert found.share == 0.875


def test_the_command_line_has_a_row_per_kind_of_noise(tmp_path):
    path = tmp_path / "coverage.json"
    assert main(["bench", "coverage", "--starts", "2", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["name"] for row in rows] == [f"lotka_volterra, {kind}" for kind in KINDS]
    assert all(row["fitted"] == 2 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_95_percent_contain_the_truth_so_often(kind):
    draw, truth = KINDS[kind]
    found = coverage(kind, draw, truth, workers=2)
    assert found.fitted == 500
    assert 0.93 <= found.share <= 0.97
