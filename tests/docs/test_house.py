"""Packages, their order and names, and the number of files that one fit passes through."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import castfit as cf
from tests.calls import watched
from tests.paths import ROOT

CASTFIT = ROOT / "castfit"
pytestmark = pytest.mark.skipif(not CASTFIT.is_dir(), reason="what is installed is tested, not the sources")
# problems/ and bench/ lie outside castfit/, and are found by name; so are optional libraries, which have no types.
OUTSIDE = [CASTFIT / place for place in ("problems.py", "formats/optional.py")]


@cache
def sources() -> list[tuple[Path, str]]:
    """Return the files of castfit/ and bench/, and their text."""
    paths = [path for folder in (CASTFIT, ROOT / "bench") for path in sorted(folder.rglob("*.py"))]
    return [(path, path.read_text(encoding="utf-8")) for path in paths]


def calls(text: str) -> list[ast.Call]:
    """Return the calls in a file that may import something by a string; parsing every file takes seconds."""
    if not re.search("import_module|__import__", text):
        return []
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


def layers() -> list[list[str]]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r'containers = \["castfit"\]\nexhaustive.*?layers = \[(.*?)\n\]', text, re.DOTALL)
    assert listed is not None
    return [re.findall(r"\((\w+)\)", layer) for layer in re.findall(r'"(.*?)"', listed[1])]


def test_there_are_fifteen_floors_and_hardly_anything_on_the_stairs():
    assert len(layers()) == 15
    assert len(list(CASTFIT.glob("*.py"))) <= 7


def test_contributing_lists_the_checked_packages():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed_packages = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    packages = [package for layer in layers() for package in layer if (CASTFIT / package).is_dir()]
    assert sorted(listed_packages) == sorted(packages)
    layer_numbers = {package: n for n, layer in enumerate(layers()) for package in layer}
    assert [layer_numbers[package] for package in listed_packages] == sorted(
        layer_numbers[package] for package in listed_packages
    )


def test_every_package_has_a_description():
    for layer in layers():
        for package in layer:
            if (CASTFIT / package).is_dir():
                text = (
                    ast.get_docstring(ast.parse((CASTFIT / package / "__init__.py").read_text(encoding="utf-8"))) or ""
                )
                assert len(text.splitlines()) >= 3, package


def test_tests_have_the_same_packages():
    packages = {path.name for path in CASTFIT.iterdir() if (path / "__init__.py").exists()}
    assert packages <= {path.name for path in (ROOT / "tests").iterdir()}


def test_slow_cases_are_those_of_tests_that_exist(collected):
    """To the case in the files that this run looks at, by name in others."""
    files = {case.partition("::")[0] for case in collected}
    defined = dict[str, str]()
    missing_lines = list[str]()
    for line in (ROOT / "tests" / "slow_cases.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            path, name = line.partition("[")[0].split("::")
            text = defined.setdefault(path, (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else "")
            if f"def {name}(" not in text or (path in files and line not in collected):
                missing_lines.append(line)
    assert not missing_lines, "tests/slow_cases.txt: these are no tests any more; correct them"


def test_a_class_name_is_unique():
    places = defaultdict(list)
    for path, text in sources():
        for match in re.finditer(r"^ *class (\w+)[(:]", text, re.MULTILINE):
            places[match[1]].append(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}")
    assert len(places) > 200
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_no_module_of_ours_is_found_by_a_string():
    def is_castfit_module(call: ast.Call) -> bool:
        argument = call.args[0]
        return not (isinstance(argument, ast.Constant) and not str(argument.value).startswith(("castfit", ".")))

    locations = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, text in sources()
        for node in calls(text)
        if (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        in ("import_module", "__import__")
        and is_castfit_module(node)
        and path not in OUTSIDE
    ]
    assert not locations


def test_public_objects_have_their_public_address():
    for name in cf.__all__:
        thing = getattr(cf, name)
        if isinstance(thing, type) or callable(thing):
            assert thing.__module__ in ("castfit", "casadi.casadi"), name


def walked(method: str) -> tuple[set[str], list[str]]:
    """Return the files of castfit that one fit enters, and its deepest stack of castfit's own frames; not imports."""
    root, files, deepest = f"{CASTFIT}/", set[str](), list[str]()
    fit, problem = cf.fit, cf.problems.load("lotka_volterra").problem

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal deepest
        if event != "call" or not frame.f_code.co_filename.startswith(root):
            return
        if frame.f_code.co_filename.endswith("_support/records.py"):  # a constructor is written: part of an import
            return
        stack, current_frame = list[str](), frame
        while current_frame is not None:
            if current_frame.f_code.co_filename.startswith(root):
                if current_frame.f_code.co_name == "<module>":
                    return
                if not current_frame.f_code.co_name.endswith(
                    ("comp>", "expr>")
                ):  # no hop, and no frame since Python 3.12
                    stack.append(
                        f"{current_frame.f_code.co_filename.removeprefix(root)}: {current_frame.f_code.co_name}"
                    )
            current_frame = current_frame.f_back
        files.add(frame.f_code.co_filename)
        deepest = max(deepest, stack, key=len)

    with watched(note):
        result = fit(problem, method)
    assert result.success
    return files, deepest


@pytest.mark.parametrize("method", ["single", "multiple", "collocation"])
def test_one_fit_passes_few_files(method):
    files, deepest = walked(method)
    assert len(files) <= 60, sorted(files)
    assert len(deepest) <= 18, deepest
