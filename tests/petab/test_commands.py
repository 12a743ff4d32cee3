"""Commands on PEtab files."""

from __future__ import annotations

import json
from math import exp

import pytest
from scipy.optimize import minimize_scalar

from castfit.cli import main
from tests.petab.writing import write

pytest.importorskip("petab")
pytest.importorskip("antimony")


@pytest.mark.parametrize(
    ("options", "transcription", "solver"),
    [
        ((), "single", "Gauss-Newton (box)"),
        (("--solver", "gauss-newton"), "single", "Gauss-Newton (natural level)"),
        (("--transcription", "collocation"), "collocation", "Gauss-Newton (natural level)"),
    ],
)
def test_a_fit_begins_at_the_nominal_values(tmp_path, options, transcription, solver):
    """By single shooting in a box of decades, if nothing else is asked for."""
    path, record = write(tmp_path), tmp_path / "fit.json"
    assert main(["fit", str(path), *options, "--json", str(record)]) == 0
    found = json.loads(record.read_text())
    assert found["transcription"].startswith(transcription)
    assert found["solver"] == solver
    data = ((1, 1.3), (2, 0.9), (4, 0.5))

    def squares(k):
        return sum((2 * exp(-k * t) - m) ** 2 for t, m in data)

    best = minimize_scalar(squares, bounds=(0.1, 1), method="bounded")
    assert found["parameters"]["k"] == pytest.approx(best.x, abs=1e-4)
