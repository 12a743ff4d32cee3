"""Problems of the PEtab benchmark collection, where the environment variable CASTFIT_PETAB names their folder."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path

import numpy as np
import pytest

import castfit as cf
from castfit._bench.collection import REFERENCES, run_collection
from castfit.formats.petab.likelihood import simulated
from castfit.formats.petab.loading import load_tables
from tests.paths import ROOT

pytest.importorskip("petab")
FOLDER = Path(os.environ.get("CASTFIT_PETAB", "nowhere"))
PROBLEMS = {p.parent.name: p for p in sorted(FOLDER.glob("*/*.yaml"))}
ELSEWHERE = {  # their simulations are of other parameter values than the table's, rounded, or in a form of their own
    "Armistead_CellDeathDis2024", "Beer_MolBioSystems2014", "Blasi_CellSystems2016", "Brannmark_JBC2010",
    "Fujita_SciSignal2010", "Raimundez_PCB2020", "Zheng_PNAS2012",
}  # fmt: skip
LOOSE = {"Crauste_CellSystems2017": 1e-4, "Borghans_BiophysChem1997": 1e-4}  # as accurate as its simulations are
EXCHANGED = {
    "Sneyd_PNAS2002": {"Ca_dose_response__5": "Ca_dose_response__6", "Ca_dose_response__6": "Ca_dose_response__5"}
}

TABLES = {
    n: p
    for n, p in PROBLEMS.items()
    if n in REFERENCES and n not in ("Chen_MSB2009", "Lang_PLOSComputBiol2024", "Smith_BMCSystBiol2013")
}
"""Those whose tables of simulations are accurate, whose nominal values are within their bounds, of up to 100 states."""


def _simulations(name: str) -> Path:
    return PROBLEMS[name].parent / f"simulatedData_{name}.tsv"


pytestmark = pytest.mark.skipif(not PROBLEMS, reason="CASTFIT_PETAB names no folder with PEtab problems")


@pytest.mark.parametrize("name", TABLES)
def test_the_objective_at_the_nominal_parameters(name):
    began = time.process_time()
    problem = cf.petab.load(PROBLEMS[name])
    assert time.process_time() - began < 60.0  # two seconds are usual
    assert cf.petab.negative_log_likelihood(problem) == pytest.approx(REFERENCES[name], abs=1e-3)


@pytest.mark.parametrize("name", [n for n in TABLES if n not in ELSEWHERE and _simulations(n).is_file()])
def test_the_simulations_of_the_collection(name):
    """Rows are found by observable, condition, overrides and time: their order may be another."""
    loaded = load_tables(PROBLEMS[name])
    castfit_values = simulated(loaded)
    table = _simulations(name)
    rows = list(csv.DictReader(table.read_text().splitlines(), delimiter="\t"))
    condition = next(c for c in rows[0] if c.startswith("simulationCondition"))
    exchanged = EXCHANGED.get(name, {})
    reference_values: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row["time"]:
            condition_id = exchanged.get(row[condition], row[condition])
            reference_values.setdefault((row["observableId"].removeprefix("observable_"), condition_id), []).append(
                (float(row["time"]), float(row["simulation"]))
            )
    for m, value in zip(loaded.tables.measurements, castfit_values, strict=True):
        candidates = reference_values[m.observable.removeprefix("observable_"), m.experiment.partition(" after ")[0]]
        nearby_values = [v for t, v in candidates if abs(t - m.time) <= 1e-4 * max(1.0, abs(t))]
        assert min(abs(v - value) for v in nearby_values) <= LOOSE.get(name, 1e-5) * max(abs(value), 1e-6), m


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_the_gradient(name):
    (entry,) = run_collection(FOLDER, problems=[name])
    assert not entry.trouble
    assert entry.checked_at in ("nominal", "near")
    assert entry.gradient_error < 1e-5
    assert np.isfinite([entry.value, entry.gradient]).all()


OPTIMA = {
    "Blasi_CellSystems2016": (-1090.561825, 1e-5),
    "Borghans_BiophysChem1997": (-122.382885, 1e-4),
    "Fujita_SciSignal2010": (-66.580993, 1e-4),
}


@pytest.mark.parametrize("name", [n for n in OPTIMA if n in PROBLEMS])
def test_optima_below_the_best_known(name):
    """By two integrators, within the bounds."""
    value, margin = OPTIMA[name]
    page = ROOT / "docs" / "compared" / f"optimum_{name.partition('_')[0].lower()}.tsv"
    values = {
        r["parameterId"]: float(r["nominalValue"])
        for r in csv.DictReader(page.read_text().splitlines(), delimiter="\t")
    }
    problem = cf.petab.load(PROBLEMS[name])
    assert {*values} == {*problem.names}
    for method in ("auto", "rosenbrock"):
        options = cf.IntegratorOptions(method=method, relative_tolerance=1e-10, absolute_tolerance=1e-12)
        actual = cf.petab.negative_log_likelihood(problem, values, integrator=options)
        assert actual == pytest.approx(value, abs=margin)
        assert actual < REFERENCES[name] - 10


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_fit_that_is_cut_off_is_not_above_the_nominal_parameters(name):
    problem = cf.petab.load(PROBLEMS[name])
    start_objective = cf.fit(problem, "single", cf.GaussNewton(max_iter=0), retry=False).objective
    for limit in (0.5, 5.0):
        result = cf.fit(problem, max_time=limit)
        assert result.measure == "PEtab's objective"
        assert result.objective <= start_objective + 1e-4 * (1.0 + abs(start_objective))
