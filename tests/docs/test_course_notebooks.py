"""The notebooks of the course in a Jupyter kernel, as a student and a teacher run them."""

from __future__ import annotations

import os
import sys

import pytest

from tests.paths import ROOT

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_extensions"))
from lessons import notebook, read, units  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
UNITS = [pytest.param(folder, id=folder.name) for folder in units()]


def executed(folder, where, *, solved):
    """Run all cells, and go on after errors; return the notebook."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    pytest.importorskip("ipykernel")
    document = nbformat.reads(notebook(read(folder / "lesson.py"), solved=solved), as_version=4)
    client(
        document, timeout=600, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": where}}
    ).execute()
    return [cell for cell in document.cells if cell.cell_type == "code"]


def errors(cell):
    return [output for output in cell.outputs if output.output_type == "error"]


@pytest.fixture(autouse=True)
def castfit_of_this_checkout(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONWARNINGS", "default")


@pytest.mark.filterwarnings("ignore")  # Jupyter's own
@pytest.mark.parametrize("folder", UNITS)
def test_with_solutions_it_runs_from_top_to_bottom(folder, tmp_path):
    cells = executed(folder, tmp_path, solved=True)
    assert [error.evalue for cell in cells for error in errors(cell)] == []
    output = "".join(o.text for cell in cells for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
    exercises = sum(len(cell.solutions) > 0 for cell in read(folder / "lesson.py"))
    assert output.count("Right.") == exercises
    assert any("image/png" in o.data for cell in cells for o in cell.outputs if "data" in o)  # a figure is shown
    assert "Warning" not in "".join(o.text for c in cells for o in c.outputs if o.get("name") == "stderr")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", UNITS)
def test_without_them_the_first_check_says_that_there_is_a_gap(folder, tmp_path):
    cell_errors = [error for cell in executed(folder, tmp_path, solved=False) for error in errors(cell)]
    assert cell_errors[0].ename == "AssertionError"
    assert cell_errors[0].evalue.startswith("The dots are still there")
