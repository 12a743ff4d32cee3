"""``castfit bench sbml``: a folder like the suite's, in which one case is right, one refused and one wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import castfit as cf
from castfit._bench import sbml_suite

pytest.importorskip("libsbml")
pytest.importorskip("antimony")

_SETTINGS = "start: 0\nduration: 2\nsteps: 2\nvariables: x\nabsolute: 1e-6\nrelative: 1e-6\namount:\nconcentration:\n"


def case(folder: Path, name: str, model: str, last_value: float) -> None:
    where = folder / name
    where.mkdir()
    (where / f"{name}-sbml-l3v1.xml").write_text(cf.sbml.load_antimony(model).sbml)
    (where / f"{name}-settings.txt").write_text(_SETTINGS)
    (where / f"{name}-results.csv").write_text(f"time,x\n0,1\n1,{float(np.exp(-1.0))!r}\n2,{last_value!r}\n")


def test_a_case_is_right_refused_or_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, last_value in (("00001", float(np.exp(-2.0))), ("00002", 0.2), ("00003", 0.0)):
        case(tmp_path, name, "x = 1; x' = -x", last_value)
    path = tmp_path / "00003" / "00003-sbml-l3v1.xml"
    path.write_text(
        path.read_text().replace(
            "<sbml ", '<sbml xmlns:odd="http://www.sbml.org/sbml/level3/version1/odd/version1" odd:required="true" '
        )
    )
    (tmp_path / "00004").mkdir()  # something else lies there
    report = sbml_suite.KIND.run("sbml", lambda _: None, folder=str(tmp_path))
    right_row, wrong_row, refused_row = report.record["rows"]
    assert (right_row["outcome"], wrong_row["outcome"]) == ("right", "wrong")
    assert right_row["error"] < 1.0 < wrong_row["error"]
    assert wrong_row["reason"] == f"x is {np.exp(-2.0):.6g} at t = 2, not 0.2"
    assert refused_row["outcome"] == "refused", refused_row
    assert "odd" in refused_row["reason"]
    assert "1 right, 1 refused by name, 1 wrong; 66.7 % not right" in report.shown[-1]
    json.dumps(report.record)
    assert sbml_suite.run_case(tmp_path / "00001", max_time=-1.0).reason == "not done within -1 CPU seconds"


def test_a_case_that_ends_too_late_is_not_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case(tmp_path, "00001", "x = 1; x' = -x", float(np.exp(-2.0)))
    original_method = sbml_suite.SuiteCase.found
    assert sbml_suite.run_case(tmp_path / "00001").outcome == "right"

    def late(self: sbml_suite.SuiteCase, loaded: cf.sbml.Loaded) -> Any:
        values, end = original_method(self, loaded), time.process_time() + 0.1
        while time.process_time() < end:
            pass
        return values

    monkeypatch.setattr(sbml_suite.SuiteCase, "found", late)
    row = sbml_suite.run_case(tmp_path / "00001", max_time=0.1)
    assert (row.outcome, row.reason) == ("wrong", "not done within 0.1 CPU seconds")


def test_bench_suite_names_mistakes_before_running(tmp_path: Path) -> None:
    with pytest.raises(cf.InputError, match="name the folder"):
        sbml_suite.KIND.run("sbml", lambda _: None)
    with pytest.raises(cf.InputError, match="holds no case"):
        sbml_suite.KIND.run("sbml", lambda _: None, folder=str(tmp_path))
    case(tmp_path, "00001", "x = 1; x' = -x", 0.1)
    with pytest.raises(cf.InputError, match="no case '00009'"):
        sbml_suite.KIND.run("sbml", lambda _: None, folder=str(tmp_path), problems=["00009"])
