"""The PEtab test suite: the cases of the installed petabtests, or of the folders that CASTFIT_PETAB_TESTS names."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import castfit as cf
from castfit.formats.petab.likelihood import simulated
from castfit.formats.petab.loading import load_tables
from castfit.formats.petab.priors import distribution

pytest.importorskip("petab")
INSTALLED = find_spec("petabtests")
PLACED = [*Path(INSTALLED.origin).parent.glob("cases/*/sbml")] if INSTALLED and INSTALLED.origin else []
NAMED = [Path(name) for name in os.environ.get("CASTFIT_PETAB_TESTS", "").split(os.pathsep) if name]
CASES = {
    f"{folder.parent.name} {path.parent.name}": path
    for folder in (NAMED or PLACED)
    for path in sorted(folder.glob("*/_*_solution.yaml"))
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CASES, reason="there are no cases: pip install petabtests")]


def _unbounded(loaded):
    """Return a problem that stands at its nominal values, which case 0026 of version 2 has outside of their bounds."""
    rows = {row.name: row for row in loaded.stated.parameters}
    nominal = {
        n: cf.Parameter(rows[n].nominal, scale=p.scale)
        for n, p in loaded.problem.parameters.items()
        if rows[n].estimated and not rows[n].lower <= rows[n].nominal <= rows[n].upper
    }
    return replace(loaded, problem=loaded.problem.replace(parameters={**loaded.problem.parameters, **nominal}))


@pytest.mark.parametrize("case", CASES)
def test_a_case(case):
    """The log likelihood and what is simulated, within the case's tolerances."""
    import yaml

    folder, number = CASES[case].parent, CASES[case].parent.name
    expected = yaml.safe_load(CASES[case].read_text(encoding="utf-8"))
    loaded = _unbounded(load_tables(folder / f"_{number}.yaml"))
    log_likelihood = -cf.petab.negative_log_likelihood(loaded.problem)
    assert log_likelihood == pytest.approx(expected["llh"], abs=expected["tol_llh"])
    priors = {row.name: distribution(row, truncated=True) for row in loaded.tables.parameters}
    nominal = {row.name: row.nominal for row in loaded.tables.parameters}
    logs = {n: -(p.row(nominal[n]).cost + p.constant) for n, p in priors.items() if n in expected.get("log_prior", {})}
    assert logs == pytest.approx(expected.get("log_prior", {}), abs=1e-8)
    tables = [(folder / name).read_text(encoding="utf-8") for name in expected["simulation_files"]]
    rows = [row for text in tables for row in csv.DictReader(text.splitlines(), delimiter="\t")]
    condition = "simulationConditionId" if "simulationConditionId" in rows[0] else "experimentId"
    expected_rows = sorted((r["observableId"], r[condition], float(r["time"]), float(r["simulation"])) for r in rows)
    actual_rows = sorted(
        (m.observable, m.experiment.partition(" after ")[0].replace("the experiment", ""), m.time, value)
        for m, value in zip(loaded.tables.measurements, simulated(loaded).tolist(), strict=True)
    )
    assert [row[:3] for row in actual_rows] == [row[:3] for row in expected_rows]
    np.testing.assert_allclose(
        [r[3] for r in actual_rows], [r[3] for r in expected_rows], rtol=0, atol=expected["tol_simulations"]
    )
