"""Results as PEtab's tables, read back and judged by the petab library."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import castfit as cf
from tests.builders import refused
from tests.petab.writing import measured, parameter, write

pytest.importorskip("petab")
pytest.importorskip("antimony")


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), delimiter="\t"))


def test_estimates_become_nominal_values(tmp_path):
    table = [parameter("k", 0.6, note="kept"), {**parameter("dose", 3.0), "estimate": 0}]
    path = write(tmp_path, parameters=table)
    result = cf.fit(cf.petab.load(path), "single")
    assert result.success
    cf.petab.save_parameters(result, tmp_path / "parameters.tsv", like=path)
    found = rows(tmp_path / "parameters.tsv")
    assert [r["parameterId"] for r in found] == ["k", "dose"]
    assert found[0]["note"] == "kept"
    assert float(found[0]["nominalValue"]) == result.parameters["k"]
    assert found[1]["nominalValue"] == "3.0"
    again = cf.petab.load(path)
    assert cf.petab.negative_log_likelihood(again) == pytest.approx(cf.petab.negative_log_likelihood(result), abs=1e-6)


def test_a_table_of_any_result(tmp_path):
    result = cf.fit(cf.problems.load("bellman").problem)
    cf.petab.save_parameters(result, tmp_path / "p.tsv")
    found = rows(tmp_path / "p.tsv")
    assert {r["parameterId"]: float(r["nominalValue"]) for r in found} == result.values
    with refused("'k1' is not in the table", "'k2' is not in the table"):
        cf.petab.save_parameters(result, tmp_path / "q.tsv", like=write(tmp_path))
    with refused("it is given 3; give a Result"):
        cf.petab.save_parameters(3, tmp_path / "q.tsv")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pandas, of what the petab library does
def test_simulations_give_the_same_likelihood_by_the_petab_library(tmp_path):
    import pandas as pd
    import petab.v1 as library

    observable = {"observableId": "y", "observableFormula": "observableParameter1_y * A",
                  "noiseFormula": "noiseParameter1_y", "observableTransformation": "log10"}  # fmt: skip
    data = measured((2, 1, 4), (0.9, 1.3, 0.5), observableParameters="scale", noiseParameters="0.2")
    data += measured((2, 1), (0.3, 0.4), observableParameters="0.5", noiseParameters="sd")
    path = write(tmp_path, observables=[observable], measurements=data,
                 parameters=[parameter("k", 0.4), parameter("scale", 1.2), parameter("sd", 0.3)])  # fmt: skip
    cf.petab.save_simulations(tmp_path / "simulations.tsv", path)
    found = pd.read_csv(tmp_path / "simulations.tsv", sep="\t")
    exact = [s * 2 * np.exp(-0.4 * t) for s, t in ((1.2, 2), (1.2, 1), (1.2, 4), (0.5, 2), (0.5, 1))]
    np.testing.assert_allclose(found["simulation"], exact, rtol=1e-7)
    tables = (
        library.get_measurement_df(str(tmp_path / "measurements.tsv")),
        found,
        library.get_observable_df(str(tmp_path / "observables.tsv")),
        library.get_parameter_df(str(tmp_path / "parameters.tsv")),
    )
    theirs = -library.calculate.calculate_llh(*tables)
    assert cf.petab.negative_log_likelihood(cf.petab.load(path)) == pytest.approx(theirs, abs=1e-7)
