"""``castfit bench code``: counts of statements, constants, complexity and imports, and the budget of each folder."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

import castfit as cf
from castfit._bench import code
from tests.paths import ROOT

SOURCE = '''"""A module."""
LIMIT, NAME, PAIR = 3, "x", (1, 2)
TABLE = {"a": 1}
RATE: float = 1 / 7


def double(x):
    """Return twice x.

    In two lines more.
    """
    return 2 * x


def test_double():
    assert double(1) == 2
'''


def test_docstrings_are_no_statements():
    folders = code.count_folders({"castfit/a.py": SOURCE, "castfit/fit/b.py": SOURCE, "tests/fit/c.py": "x = 1\n"})
    one_file = {"statements": 7, "docstring lines": 5, "tests": 1}
    assert folders["castfit"] == folders["castfit/fit"] == one_file
    assert folders["castfit (all)"] == {name: 2 * n for name, n in one_file.items()}
    assert folders["tests/fit"]["statements"] == 1


def test_constants_are_names_with_arithmetic_of_numbers():
    assert code.count_constants(ast.parse(SOURCE)) == 3  # LIMIT, PAIR, RATE


def test_imports_inside_the_package_and_of_support_are_left_out():
    text = (
        "from castfit.fit import search\n"
        "from castfit.fit.search import step\n"
        "from castfit._support import ties\n"
        "from castfit.control.plan import Plan\n"
        "from castfit.solve import solver\n"
    )
    sources = dict.fromkeys(("castfit/fit/search.py", "castfit/solve/__init__.py", "castfit/_support/ties.py"), "")
    sources |= {"castfit/control/__init__.py": text, "castfit/control/plan.py": ""}
    assert code.find_imports(sources, "castfit.control") == {"castfit.fit.search", "castfit.solve"}


def test_table_compares_the_work_tree_with_the_last_tag(tmp_path: Path):
    pytest.importorskip("radon")

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    for folder in ("castfit", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(SOURCE)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "Begin")
    git("tag", "v1.0")
    (tmp_path / "castfit" / "a.py").write_text(SOURCE + "SECOND = 2\n")
    report = code.KIND.run("code", None, folder=str(tmp_path))
    assert report.record["tag"] == "v1.0"
    assert report.record["folders_before"]["castfit"]["statements"] == 7
    assert report.record["folders"]["castfit"]["statements"] == 8
    (constants,) = [row for row in report.record["rows"] if row["figure"].startswith("numeric constants")]
    assert (constants["before"], constants["now"]) == (3, 4)


def test_folder_without_tags_is_refused(tmp_path: Path):
    with pytest.raises(cf.InputError, match="git describe"):
        code.KIND.run("code", None, folder=str(tmp_path))


def test_no_folder_exceeds_its_line_budget():
    """A budget may only be raised by a commit that gives the reason."""
    lines = (ROOT / "tests" / "docs" / "line_budget.tsv").read_text(encoding="utf-8").splitlines()
    budget = {folder: int(n) for folder, n in (line.split("\t") for line in lines[1:])}
    sizes = {folder: n["statements"] for folder, n in code.count_folders(code.read_sources(ROOT)).items()}
    assert set(budget) == {folder for folder in sizes if folder.startswith("castfit")}
    assert not {folder: (sizes[folder], limit) for folder, limit in budget.items() if sizes[folder] > limit}
