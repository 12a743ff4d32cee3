"""What a result of a model with noises shares with others: report, command line, predictions, and refusals in words."""

from __future__ import annotations

import json

import numpy as np
import pytest

import castfit as cf
from castfit.cli import main

SCRIPT = """
import castfit as cf
x, w, s = cf.symbols("x w s")
model = cf.Model({x: s * w}, parameters=[s], noises=[w])
data = [1.1, 0.9, 1.6, 2.2, 1.9, 2.4, 3.3, 3.1, 2.6, 2.9, 3.5, 4.1]
experiment = cf.Experiment({"x": data}, time=range(1, 13), sigma=0.2, start=0, initial={"x": cf.Normal(0, 10)})
problem = cf.Problem(model, experiment, parameters={"s": cf.Parameter(0.3, scale="log")})
"""


@pytest.fixture(scope="module")
def walk():
    namespace = {}
    exec(SCRIPT, namespace)
    return namespace["problem"], cf.fit(namespace["problem"])


def test_predictions_are_the_path_with_its_band(walk):
    _, result = walk
    band = result.path("x")
    prediction = result.predict([3.0, 7.5])["experiment 1"]
    assert prediction["x"] == pytest.approx(np.interp([3.0, 7.5], band.times, band.values))
    assert prediction["x lower"] == pytest.approx(np.interp([3.0, 7.5], band.times, band.lower))
    assert result.predict()["experiment 1"]["time"] == pytest.approx(band.times)
    with pytest.raises(cf.InputError, match=r"must be between 0 and 12; for later times use cf.moving_horizon"):
        result.predict([20.0])


def test_a_report_tells_of_the_path(walk, tmp_path):
    _, result = walk
    page = result.report(tmp_path / "walk.html", title="A walk").read_text()
    for phrase in (
        "A walk",
        "Parameters and path",
        "Data and path",
        "neighbours of x",
        "log likelihood",
        "Fingerprints",
    ):
        assert phrase in page
    loaded = (result.save(tmp_path / "walk.json"), cf.PathResult.load(tmp_path / "walk.json"))[1]
    assert "Data and path" not in loaded.report(tmp_path / "loaded.html").read_text()


def test_the_command_line_fits_and_reports(walk, tmp_path, capsys, monkeypatch):
    _, result = walk
    monkeypatch.chdir(tmp_path)
    (tmp_path / "walk.py").write_text(SCRIPT)
    assert main(["fit", "walk.py", "--json", "walk.json", "--save", "result.json"]) == 0
    content = json.loads((tmp_path / "walk.json").read_text())
    assert content["log_likelihood"] == pytest.approx(result.log_likelihood, rel=1e-6)
    assert content["parameters"]["s"] == pytest.approx(result["s"].value, rel=1e-4)
    assert cf.PathResult.load(tmp_path / "result.json").success
    assert main(["report", "walk.py", "--out", "walk.html"]) == 0
    assert "A castfit" not in (tmp_path / "walk.html").read_text()
    assert main(["fit", "walk.py", "--solver", "ipopt"]) != 0
    assert "--solver has no effect for models with process noise" in capsys.readouterr().err
    assert main(["bootstrap", "walk.py"]) != 0
    assert "which only fit(problem) estimates" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["profile", "bootstrap", "leave_out", "identifiability", "doctor", "Prior"])
def test_methods_of_other_results_path_result_refused(walk, name):
    _, result = walk
    with pytest.raises(cf.InputError, match="models with process noise have confidence_intervals"):
        getattr(cf, name)(result)


def test_attributes_of_other_results_are_refused_in_words(walk):
    _, result = walk
    with pytest.raises(AttributeError, match=r"have no diagnostics: .*; use innovations and white"):
        _ = result.diagnostics
    with pytest.raises(AttributeError, match="have no chi2: the fit maximises log_likelihood"):
        _ = result.chi2
    assert not hasattr(result, "nonsense")


def test_noise_has_no_value_in_sigma_and_simulations_take_none(walk):
    x, w = cf.symbols("x w")
    model = cf.Model({x: -x + w}, noises=[w])
    with pytest.raises(cf.InputError, match="'w' is white noise: it has no value at a time"):
        cf.Problem(model, cf.Experiment({"x": [1.0, 0.5]}, time=[1, 2], sigma=0.1 + w, initial={"x": 1}))
    simulation = cf.simulate(model, {}, [0.0, 1.0], initial={"x": 1.0})
    assert simulation["x"][1] == pytest.approx(np.exp(-1.0), rel=1e-5)
    with pytest.raises(cf.InputError, match="measurement errors must be independent"):
        cf.fit(
            cf.Problem(
                model, cf.Experiment({"x": [1.0, 0.5]}, [1, 2], sigma=cf.correlated(0.1, time=1.0), initial={"x": 1})
            )
        )
    assert "0 of them filled so far" in repr(cf.moving_horizon(walk[1], horizon=20))
