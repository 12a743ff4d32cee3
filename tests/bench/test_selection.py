"""``castfit bench select``: a case of PEtab Select and simulated data sets, beside what is right."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest

from castfit._bench import selection
from tests.builders import refused
from tests.paths import ROOT


def test_selection_rows_stand_beside_expected_values(tmp_path: Path) -> None:
    pytest.importorskip("petab_select")
    for case in ("0001",):
        copytree(ROOT / "tests" / "formats" / "petab" / "select" / case, tmp_path / case)
    report = selection.KIND.run("select", lambda _: None, folder=str(tmp_path), starts=1)
    rows = {row["what"]: row for row in report.record["rows"]}
    model = rows["model, of 1 fitted"]
    assert model["reached"] == model["right"] == "M1_1-000"
    assert rows["AIC"]["reached"] == rows["AIC"]["right"]
    assert float(rows["largest difference of an estimate"]["reached"]) < 1e-4
    chosen = rows["AICc chooses a model that contains the true one"]
    assert chosen["reached"] == chosen["right"] == "1"


def test_bench_selection_names_mistakes() -> None:
    with refused("starts is 0", "there is no folder 'nowhere'"):
        selection.KIND.run("select", lambda _: None, folder="nowhere", starts=0)
