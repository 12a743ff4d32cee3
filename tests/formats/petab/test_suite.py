"""The PEtab test suite, where CASTFIT_PETAB_TESTS names a folder of its cases, such as petabtests/cases/v1.0.0/sbml."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

import castfit as cf
from castfit.formats.petab.likelihood import simulated
from castfit.formats.petab.loading import load_tables

pytest.importorskip("petab")
FOLDER = Path(os.environ.get("CASTFIT_PETAB_TESTS", "nowhere"))
CASES = {p.parent.name: p for p in sorted(FOLDER.glob("*/_*_solution.yaml"))}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CASES, reason="CASTFIT_PETAB_TESTS names no folder with cases")]


@pytest.mark.parametrize("case", CASES)
def test_a_case(case):
    """The log likelihood and what is simulated, within the case's tolerances."""
    import yaml

    folder = CASES[case].parent
    expected = yaml.safe_load(CASES[case].read_text(encoding="utf-8"))
    loaded = load_tables(folder / f"_{case}.yaml")
    found = -cf.petab.negative_log_likelihood(loaded.problem)
    assert found == pytest.approx(expected["llh"], abs=expected["tol_llh"])
    tables = [(folder / name).read_text(encoding="utf-8") for name in expected["simulation_files"]]
    rows = [row for text in tables for row in csv.DictReader(text.splitlines(), delimiter="\t")]
    condition = "simulationConditionId" if "simulationConditionId" in rows[0] else "experimentId"
    theirs = sorted((r["observableId"], r[condition], float(r["time"]), float(r["simulation"])) for r in rows)
    ours = sorted(
        (m.observable, m.experiment.partition(" after ")[0], m.time, value)
        for m, value in zip(loaded.stated.measurements, simulated(loaded).tolist(), strict=True)
    )
    assert [row[:3] for row in ours] == [row[:3] for row in theirs]
    np.testing.assert_allclose([r[3] for r in ours], [r[3] for r in theirs], rtol=0, atol=expected["tol_simulations"])
