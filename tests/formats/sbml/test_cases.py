"""Semantic cases of the SBML Test Suite (github.com/sbmlteam/sbml-test-suite), which are not kept here.

The environment variable CASTFIT_SBML_CASES names a folder with one folder per case, in it the model
(``NNNNN-sbml-l3v1.xml`` or of another level and version), ``NNNNN-settings.txt`` and ``NNNNN-results.csv``::

    CASTFIT_SBML_CASES=cases python -m pytest -m "slow or not slow" tests/formats/sbml/test_cases.py

A case passes within its own tolerances; what is refused is reported as skipped, by the names of what is missing.
"""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path

import numpy as np
import pytest

import castfit as cf

FOLDER = os.environ.get("CASTFIT_SBML_CASES", "")
CASES = sorted(p.name for p in Path(FOLDER).iterdir() if (p / f"{p.name}-settings.txt").is_file()) if FOLDER else []
SECONDS = 60.0  # for reading and building, which two are enough for


def settings_of(folder: Path) -> dict[str, str]:
    lines = (folder / f"{folder.name}-settings.txt").read_text().splitlines()
    return {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines) if _}


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def expected(folder: Path) -> tuple[list[str], np.ndarray]:
    with (folder / f"{folder.name}-results.csv").open() as file:
        head, *rows = [row for row in csv.reader(file) if row]
    return [name.strip() for name in head], np.array([[float(v) for v in row] for row in rows])


def simulated(loaded: cf.sbml.Loaded, times: np.ndarray, settings: dict[str, str], requested_names: list[str]):
    """Return what is wanted, species as amounts or concentrations as the settings say."""
    tight = cf.IntegratorOptions(relative_tolerance=1e-9, absolute_tolerance=1e-12)
    simulation = cf.simulate(loaded, times=times, integrator=tight)

    def value(name: str) -> np.ndarray:
        if name in simulation:
            return simulation[name]
        number = loaded.parameters.get(name)
        return np.full(times.size, float(loaded.expressions[name]) if number is None else number)

    results = {}
    for name in requested_names:
        results[name] = value(name)
        species = loaded.species.get(name)
        if species and name in names(settings["amount"]) and not species.is_amount:
            results[name] = results[name] * value(species.compartment)
        elif species and name in names(settings["concentration"]) and species.is_amount:
            results[name] = results[name] / value(species.compartment)
    return results


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="CASTFIT_SBML_CASES names no folder")
@pytest.mark.parametrize("case", CASES or ["none"])
def test_a_case(case):
    folder = Path(FOLDER) / case
    settings = settings_of(folder)
    model = max(folder.glob(f"{case}-sbml-l*.xml"))
    start_seconds = time.process_time()
    try:
        loaded = cf.sbml.load(model)
    except cf.InputError as refusal:
        pytest.skip(f"refused: {'; '.join(refusal.problems)}")
    assert time.process_time() - start_seconds <= SECONDS
    head, table = expected(folder)
    actual = simulated(loaded, table[:, 0], settings, head[1:])
    for name, column in zip(head[1:], table[:, 1:].T, strict=True):
        np.testing.assert_allclose(
            actual[name], column, rtol=float(settings["relative"]), atol=float(settings["absolute"]), err_msg=name
        )
