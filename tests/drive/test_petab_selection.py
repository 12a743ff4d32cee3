"""PEtab Select's own test cases: the model, its criterion and its estimates are those that are expected."""

from __future__ import annotations

import ast
import csv
import json
import os
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import castfit as cf
from castfit import cli
from tests.builders import refused
from tests.paths import ROOT

# Its import takes seconds, so it waits for the first test that needs it.
pytestmark = pytest.mark.skipif(find_spec("petab_select") is None, reason="PEtab Select is not installed")

CASES = ROOT / "tests" / "formats" / "petab" / "select"
QUICK = ("0001", "0007")
FOLDER = os.environ.get("CASTFIT_PETAB_SELECT", "")  # of the cases of a copy of PEtab Select, for the large one


def problem(case: str) -> Path:
    return CASES / case / "petab_select_problem.yaml"


@cache
def selected(case: str) -> cf.SelectionResult:
    return cf.petab.select(problem(case))


def expected(case: str) -> Any:
    import yaml

    return yaml.safe_load((CASES / case / "expected.yaml").read_text())


@pytest.mark.parametrize(
    "case", [pytest.param(f"000{i}", marks=[] if f"000{i}" in QUICK else pytest.mark.slow) for i in range(1, 9)]
)
def test_a_case_ends_at_the_expected_model(case: str) -> None:
    selection, reference = selected(case), expected(case)
    assert selection.complete
    assert selection.names[0] == reference["model_hash"]
    assert selection.criteria[selection.names[0]] == pytest.approx(reference["criteria"][selection.criterion], abs=1e-6)
    assert selection.best is not None
    assert cf.petab.negative_log_likelihood(selection.best) == pytest.approx(reference["criteria"]["NLLH"], abs=1e-6)
    for name, value in reference["estimated_parameters"].items():
        assert selection.best.values[name] == pytest.approx(value, abs=1e-4)


def test_the_library_writes_its_files_and_checkpoints_change_nothing(tmp_path: Path) -> None:
    import petab_select

    file = tmp_path / "run.jsonl"
    selection = cf.petab.select(problem("0007"), folder=tmp_path / "found", checkpoint=file)
    assert selection.names == selected("0007").names
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas
        models = petab_select.Models.from_yaml(tmp_path / "found" / "models.yaml")
        best = petab_select.Model.from_yaml(tmp_path / "found" / "best.yaml")
    assert {str(m.hash) for m in models} == set(selection.names)
    assert str(best.hash) == selection.names[0]
    size = file.stat().st_size
    resumed_selection = cf.petab.select(problem("0007"), checkpoint=file, resume=True)
    assert file.stat().st_size == size
    for other_selection in (resumed_selection, selected("0007")):
        assert other_selection.names == selection.names
        assert all(np.array_equal(other_selection[n].theta, selection[n].theta) for n in selection)


def test_a_model_that_estimates_nothing_is_evaluated() -> None:
    selection = selected("0007")
    nothing = [n for n in selection if not selection[n].names]
    assert nothing
    fixed_problem = selection[nothing[0]].problem
    assert selection[nothing[0]].n_estimated == 0
    assert cf.petab.negative_log_likelihood(fixed_problem) == pytest.approx(
        0.5 * selection[nothing[0]].neg2loglik, abs=1e-6
    )


def test_petab_select_with_mistakes_in_files_raises(tmp_path: Path) -> None:
    with refused("there is no file"):
        cf.petab.select(tmp_path / "nothing.yaml")
    with refused("the file is 3; expected a path"):
        cf.petab.select(3)  # type: ignore[arg-type]
    path = tmp_path / "wrong.yaml"
    path.write_text("criterion: AIC\nmethod: somehow\nmodel_space_files: [none.tsv]\n")
    with refused("wrong.yaml"):
        cf.petab.select(path)
    text = (
        problem("0001")
        .read_text()
        .replace("AIC", "NLLH")
        .replace("model_space.tsv", str(CASES / "0001/model_space.tsv"))
    )
    path.write_text(text)
    with refused("always prefers the largest model"):
        cf.petab.select(path)


def test_command_select_reports_expected_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["select", str(problem("0001")), "--json", "-", "--html", str(page)]) == 0
    written = json.loads(capsys.readouterr().out)
    right = expected("0001")
    assert next(iter(written["candidates"])) == right["model_hash"]
    assert "Model selection" in page.read_text()
    assert cli.main(["select", str(problem("0001")), "--criterion", "BIC"]) == 2
    assert "--criterion is what" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="CASTFIT_PETAB_SELECT names no folder of test cases")
def test_the_models_of_the_large_case_reach_the_reference() -> None:
    from castfit.formats.petab.selection import problem_of

    folder = Path(FOLDER) / "0009"
    with open(folder / "expected_summary.tsv") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    with open(folder / "model_space.tsv") as file:
        names = next(csv.reader(file, delimiter="\t"))[2:]
    with pytest.warns(UserWarning, match="stoichiometries that the SBML file leaves open are taken to be 1"):
        base = problem_of(folder / "petab" / "petab_problem.yaml", frozenset(names))
    reference = {row["current model"]: float(row["current model criterion"]) for row in rows}
    problems = {
        key: base.replace(
            parameters={
                **base.parameters,
                **{n: cf.Parameter(1.0, fixed=True) for n in names if n not in ast.literal_eval(key)},
            }
        )
        for key, value in reference.items()
        if np.isfinite(value)
    }
    selection = cf.select(problems, "single", "box")
    for key in problems:
        assert selection.criteria[key] <= reference[key] + 1e-6
