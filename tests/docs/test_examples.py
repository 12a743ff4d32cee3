"""Every script in examples/ runs, reaches the answers that it asserts, and leaves no files but those it announces."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LEAVES = {
    "quickstart": ["fit.png"],
    "stiffness": ["stiffness.png"],
    "csv_to_report": ["concentrations.csv", "report.html"],
}
NEEDS = {
    "multistart_dask": "distributed",
    "csv_to_report": "pandas",
    "petab_problem": "petab",
    "sbml_model": "antimony",
}
SLOW = {
    "adjoint_shooting",
    "batch_reactor",
    "batch_reactor_dae",
    "battery",
    "best_yield",
    "boarding_school",
    "bootstrap_against_profiles",
    "bouncing_ball",
    "chemostat",
    "closed_loop",
    "compare_solvers",
    "compare_transcriptions",
    "constraints",
    "csv_to_report",
    "delays",
    "eight_subjects",
    "epidemic",
    "fed_batch",
    "gauss_newton_step_by_step",
    "heat_equation",
    "heat_to_learn",
    "hidden_states",
    "is_it_identifiable",
    "jak_stat",
    "just_the_answer",
    "lorenz",
    "lynx_and_hare",
    "michaelis_menten",
    "model_comparison",
    "multistart_dask",
    "nile",
    "oral_doses",
    "outliers",
    "petab_problem",
    "population_pk",
    "priors",
    "profiles_of_a_banana",
    "robertson",
    "sbml_model",
    "scaled_outputs",
    "scatter_search",
    "steady_states",
    "stiffness",
    "sunspots",
    "unknown_infectivity",
    "van_der_pol",
    "what_to_measure_next",
    "when_to_sample_a_population",
    "which_terms",
}


def run(script, folder, *arguments):
    """Run a script in a folder as a user would, with the castfit of this checkout; return what it printed."""
    process = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=280,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return process.stdout


@pytest.mark.parametrize(
    "script",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else []) for path in EXAMPLES],
)
def test_example_runs(script, tmp_path):
    pytest.importorskip(NEEDS.get(script.stem, "castfit"))
    assert run(script, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == LEAVES.get(script.stem, [])


@pytest.mark.slow
def test_the_lesson_writes_its_pictures(tmp_path):
    run(ROOT / "examples" / "gauss_newton_step_by_step.py", tmp_path, "--out", "pictures", "--gif")
    signatures = {path.name: path.read_bytes()[:4] for path in (tmp_path / "pictures").iterdir()}
    assert signatures == {"lotka_volterra.png": b"\x89PNG", "calcium.png": b"\x89PNG", "calcium.gif": b"GIF8"}
