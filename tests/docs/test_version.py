"""The version is the same wherever it is said, and the changelog knows it."""

import re

import castfit as cf
from tests.paths import ROOT


def test_every_file_names_the_same_version():
    patterns = {
        "pyproject.toml": r'^version = "(.*)"$',
        "CITATION.cff": r"^version: (.*)$",
        "CHANGELOG.md": r"^## \[(\d.*?)\] - ",
    }
    for name, pattern in patterns.items():
        match = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert match, name
        assert match[1] == cf.__version__, name
    assert re.fullmatch(r"\d+\.\d+\.\d+", cf.__version__)  # https://semver.org


def test_the_citation_and_the_changelog_agree_on_the_day():
    day = re.search(r"^## \[\d.*?\] - (\d{4}-\d{2}-\d{2})$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert f"date-released: {day[1]}" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_what_is_not_released_comes_first_in_the_changelog():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


def test_the_oldest_versions_are_those_that_are_tested_and_that_the_recipe_allows():
    listed = re.search(r"^dependencies = \[(.*)\]$", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    allowed = dict(re.findall(r'"([a-z]+)>=([\d.]+)"', listed[1]))
    assert {"casadi", "numpy", "scipy"} <= allowed.keys()
    tested = dict(re.findall(r"^([a-z]+)==([\d.]+)", (ROOT / ".ci" / "oldest.txt").read_text("utf-8"), re.MULTILINE))
    assert tested.keys() == allowed.keys() | {"pyparsing"}  # which matplotlib needs
    for name, version in allowed.items():
        assert re.fullmatch(rf"{re.escape(version)}(\.0)*", tested[name]), name
    recipe = ROOT / ".ci" / "conda" / "recipe.yaml"
    if recipe.exists():  # no part of the sdist
        run = dict(re.findall(r"^    - ([a-z]+)(?:-base)? >=([\d.]+)$", recipe.read_text("utf-8"), re.MULTILINE))
        assert allowed.items() <= run.items()
