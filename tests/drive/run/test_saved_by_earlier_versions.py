"""Files that castfit 0.2 wrote, of runs on Bellman's problem, are read: they are in users' folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import castfit as cf
from castfit.drive.run.checkpoint import describe_method

DATA = Path(__file__).parent / "data"
LIMITS = {"k1": (1e-6, 1e-5), "k2": (1e-4, 1e-3)}


@pytest.fixture(scope="module")
def problem():
    return cf.problems.load("bellman").problem


def test_a_multistart_and_its_optimum(problem, tmp_path):
    result = cf.MultistartResult.load(DATA / "multistart_0.2.jsonl")
    assert [row.status for row in result.starts] == ["converged"] * 3
    assert result.best.chi2 == pytest.approx(21.86671, abs=1e-4)
    assert len(result.optima) == 1
    assert result.with_problem(problem).best.predict([0.0])["experiment 1"]["z"] == 0.0
    result.save(tmp_path / "again.jsonl")
    assert str(cf.MultistartResult.load(tmp_path / "again.jsonl")) == str(result)


def test_a_multistart_goes_on_with_more_starts(problem, tmp_path):
    file = tmp_path / "run.jsonl"
    file.write_bytes(_header_of_today("multistart_0.2.jsonl"))
    result = cf.multistart(problem, starts=3, limits=LIMITS, rng=1, checkpoint=file, resume=True)
    loaded = cf.MultistartResult.load(DATA / "multistart_0.2.jsonl")
    assert [row.chi2 for row in result.starts] == [row.chi2 for row in loaded.starts]
    assert loaded.measure == "chi2"  # as that version called it
    assert result.measure == "-2 log L"
    assert [row.objective for row in result.starts] == pytest.approx([result.best.neg2loglik] * 3)


def test_a_bootstrap(problem, tmp_path):
    result = cf.BootstrapResult.load(DATA / "bootstrap_0.2.jsonl")
    assert result.thetas.shape == (3, 2)
    assert result.kind == "residual"
    assert result.with_problem(problem).standard_errors["k1"] == pytest.approx(1.23e-7, rel=0.01)
    assert "All 3 data sets" not in str(result)
    assert "3 of 3 data sets were fitted" in str(result)


def test_profiles(problem, tmp_path):
    profiles = cf.Profiles.load(DATA / "profile_0.2.jsonl")
    np.testing.assert_allclose(profiles["k1"].limits(0.95), (4.2541e-06, 4.9256e-06), rtol=1e-4)
    assert "bounded" in str(profiles)
    profiles.with_problem(problem).save(tmp_path / "again.jsonl")
    assert str(cf.Profiles.load(tmp_path / "again.jsonl")) == str(profiles)


def test_a_search_by_all_means_that_had_ended(problem, tmp_path):
    file = tmp_path / "run.jsonl"
    file.write_bytes(_header_of_today("portfolio_0.2.jsonl"))
    result = cf.estimate(problem, max_time=20, rng=1, limits=LIMITS, checkpoint=file, resume=True)
    assert result.stopping_rule_met
    assert [c.way for c in result.candidates] == ["fit", "box", "growing", "exchanged"]
    assert result.best.chi2 == pytest.approx(21.86671, abs=1e-4)


def _header_of_today(name):
    """Return a checkpoint as if transcription and solver had had today's options, which a run that goes on compares."""
    header_line, _, record_lines = (DATA / name).read_bytes().partition(b"\n")
    header = json.loads(header_line)
    header |= {"transcription": describe_method(cf.Collocation()), "solver": describe_method(cf.GaussNewton())}
    return json.dumps(header).encode() + b"\n" + record_lines
