"""Started at the truth, every transcription and the default reach the same optimum, of textbook models of all kinds.

All states are measured and one output on a scale of its own, with 5 % noise, parameters on log scale.  Chaotic models
are given a short horizon: over a long one single shooting has no chance, as rounding errors grow to the size of the
attractor (`test_chaos_is_solved_piece_by_piece` in test_verification.py is about those).
"""

from __future__ import annotations

import json

import pytest

import castfit as cf
from castfit import cli
from castfit._bench.textbook_models import MODELS

TRANSCRIPTIONS = {
    "default": None,
    "single": cf.SingleShooting(),
    "multiple": cf.MultipleShooting(10),
    "collocation": cf.Collocation(degree=4),
}


FAR = ("logistic", "Lotka-Volterra", "repressilator")
QUICK = ("decay", "epidemic", "Brusselator", "FitzHugh-Nagumo", "Robertson", "Lorenz")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_from_the_truth_all_reach_the_same_optimum(name):
    problem = MODELS[name].all_states(bounded=False)
    results = {label: cf.fit(problem, transcription) for label, transcription in TRANSCRIPTIONS.items()}
    for label, result in results.items():
        assert result.success, (label, result.message)
        assert result.goodness.described, (label, result.goodness)
        assert result.chi2 == pytest.approx(results["single"].chi2, rel=1e-3), label
        for quantity, value in result.parameters.items():
            error = results["single"].standard_errors[quantity]
            assert value == pytest.approx(results["single"].parameters[quantity], abs=0.02 * error), (label, quantity)


@pytest.mark.parametrize(
    "name",
    [n if n in ("logistic", "repressilator") else pytest.param(n, marks=pytest.mark.slow) for n in MODELS],
)
def test_one_scaled_output_suffices_from_a_decade_away(name):
    """By the default fit, but for at most one start of three of one model in seven, as counted over all of them."""
    model, place = MODELS[name], sorted(MODELS).index(name)
    problem = model.one_output()
    best = cf.fit(problem, "single", cf.GaussNewton("box"), start=model.truth)
    results = [cf.fit(problem, start=model.far_start((k, place))) for k in range(1 if name in FAR else 3)]
    successes = [r.success and r.chi2 <= 1.01 * best.chi2 for r in results]
    assert all(successes) if name in FAR else sum(successes) >= 2


def test_bench_repeats_a_table_of_textbook_models(tmp_path, capsys):
    file = tmp_path / "textbook.json"
    models = "--problems=decay,logistic"
    assert cli.main(["bench", "textbook-all-states", "--starts=1", "--methods=fit", models, f"--json={file}"]) == 0
    assert "fit: 2 of 2 found" in capsys.readouterr().out
    rows = json.loads(file.read_text())["rows"]
    assert [(row["model"], row["kind"], row["hits"]) for row in rows] == [
        ("decay", "smooth", 1), ("logistic", "smooth", 1),
    ]  # fmt: skip
    assert cli.main(["bench", "textbook", "--problems=dekay"]) == 2
    assert "did you mean 'decay'" in capsys.readouterr().err


@pytest.mark.slow
def test_ever_longer_horizons_find_solutions_that_jump_where_all_states_are_measured():
    model = MODELS["stiff van der Pol"]
    result = cf.fit(model.all_states(), start={"mu": 4.336, "scale": 1.798})
    assert result.goodness.described
    assert result.parameters["mu"] == pytest.approx(model.truth["mu"], rel=0.01)
    assert "growing horizons" in result.message
