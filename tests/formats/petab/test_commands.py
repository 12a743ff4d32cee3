"""Commands on PEtab files."""

from __future__ import annotations

import json
from math import exp

import pytest
from scipy.optimize import minimize_scalar

from castfit.cli import main
from tests.formats.petab.writing import measured, parameter, write

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
    document = json.loads(record.read_text())
    assert document["transcription"].startswith(transcription)
    assert document["solver"] == solver
    data = ((1, 1.3), (2, 0.9), (4, 0.5))

    def squares(k):
        return sum((2 * exp(-k * t) - m) ** 2 for t, m in data)

    best = minimize_scalar(squares, bounds=(0.1, 1), method="bounded")
    assert document["parameters"]["k"] == pytest.approx(best.x, abs=1e-4)


def test_parameters_of_the_noise_are_no_twins(tmp_path):
    """They leave the outputs alone, so that outputs cannot tell whether two of them are exchanged."""
    import castfit as cf

    observables = [
        {"observableId": "y", "observableFormula": "A", "noiseFormula": "s"},
        {"observableId": "z", "observableFormula": "B", "noiseFormula": "r"},
    ]
    rows = [
        *measured((1, 2, 4, 5), (1.3, 0.9, 0.5, 0.3)),
        *measured((1, 2, 4, 5), (0.6, 1.0, 1.55, 1.6), observableId="z"),
    ]
    parameters = [parameter("k", 0.4), parameter("s", 0.1), parameter("r", 0.2)]
    problem = cf.petab.load(write(tmp_path, observables=observables, measurements=rows, parameters=parameters))
    report = cf.doctor(problem, "single", max_time=30, starts=2)
    (line,) = (n for n in report.lines if n.name == "symmetric parameters")
    assert line.ok, line.sentence
