"""Problems of the PEtab benchmark collection, where the environment variable CASTFIT_PETAB names their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import castfit as cf

pytest.importorskip("petab")
FOLDER = Path(os.environ.get("CASTFIT_PETAB", "nowhere"))
PROBLEMS = {p.stem.split("_")[0]: p for p in sorted(FOLDER.glob("*/*.yaml"))}

pytestmark = pytest.mark.skipif(not PROBLEMS, reason="CASTFIT_PETAB names no folder with PEtab problems")


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_can_be_read(name):
    assert cf.petab.load(PROBLEMS[name]).n_data > 0
