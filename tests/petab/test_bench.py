"""`castfit bench petab` on a folder of our own small problems."""

from __future__ import annotations

import json

import pytest

from castfit import cli
from tests.petab.writing import measured, parameter, write

pytest.importorskip("petab")
pytest.importorskip("antimony")


def test_a_folder_of_problems(tmp_path, capsys):
    for name in ("decay", "broken"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, parameters=[parameter("k", 0.4)], measurements=measured((1, 2, 4), (1.3, 0.9, 0.5)))
    (tmp_path / "broken" / "observables.tsv").unlink()
    page = tmp_path / "page.html"
    options = ["--folder", str(tmp_path), "--starts", "1", "--max-time", "20", "--html", str(page), "--json", "-"]
    assert cli.main(["bench", "petab", *options]) == 0
    broken, decay = json.loads(capsys.readouterr().out)["rows"]
    assert "observables.tsv: there is no such file" in broken["trouble"]
    assert decay["gradient_error"] < 1e-6
    assert decay["checked_at"] == "nominal"
    assert decay["hits_0.1"] == 1
    assert decay["values"][0] < decay["nominal"]
    assert 0 < decay["value"] < decay["cpu_s_per_hit"] * 1e3
    text = page.read_text()
    assert "1 of 2 problems are read" in text
    assert "observables.tsv" in text


def test_what_is_wrong_with_a_folder(tmp_path, capsys):
    assert cli.main(["bench", "petab"]) == 2
    assert "name the folder" in capsys.readouterr().err
    assert cli.main(["bench", "petab", "--folder", str(tmp_path)]) == 2
    assert "holds no problem" in capsys.readouterr().err
    (tmp_path / "decay").mkdir()
    write(tmp_path / "decay")
    assert cli.main(["bench", "petab", "--folder", str(tmp_path), "--problems", "decoy"]) == 2
    assert "there is no problem 'decoy': did you mean 'decay'" in capsys.readouterr().err
