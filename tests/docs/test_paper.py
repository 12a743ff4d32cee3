"""The paper: its figures can be drawn, its references are complete, and its numbers are those that were measured."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.paths import ROOT

FOLDER = ROOT / "docs" / "paper"
PAPER = (FOLDER / "paper.md").read_text(encoding="utf-8")
FOUND_NOWHERE = {"michalik2009", "peifer2007"}  # whose DOI nobody could look up; the bibliography says so
BIBLIOGRAPHY = (FOLDER / "paper.bib").read_text(encoding="utf-8")


def figures():
    spec = importlib.util.spec_from_file_location("figures", FOLDER / "figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FIGURES


@pytest.mark.parametrize("name", ["fit", "profiles"])
def test_a_figure_is_drawn(name, tmp_path):
    figures()[name](tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_every_figure_has_its_command_and_its_picture():
    figure_links = re.findall(r"!\[([^\]]*)\]\((\w+)\.png\)", PAPER)
    assert [name for _, name in figure_links] == list(figures())
    for caption, name in figure_links:
        assert f"`python docs/paper/figures.py {name}`" in caption
        assert (FOLDER / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_references_are_complete_and_used():
    cited = set(re.findall(r"@(\w+)", PAPER.partition("---\n\n")[2]))
    entries = dict(re.findall(r"^@\w+\{(\w+), (.*)\}$", BIBLIOGRAPHY, re.MULTILINE))
    assert cited == entries.keys()
    for key, entry in entries.items():
        needed = {"author", "title", "year", *(() if key in FOUND_NOWHERE else ("doi",))}
        assert needed <= set(re.findall(r"(\w+) = \{", entry)), key
        assert key[-4:] in entry


def test_numbers_are_those_of_the_page_of_measurements():
    measured = (ROOT / "docs" / "compared" / "measured.md").read_text(encoding="utf-8")
    measured_numbers = set(re.findall(r"\d+(?:\.\d+)?", measured))
    section = re.search(r"^# Measured\n(.*?)^# ", PAPER, re.DOTALL | re.MULTILINE)
    assert section
    claimed = re.findall(r"(?<![A-Z])\d+(?:\.\d+)?", section[1])
    assert len(claimed) > 20
    assert [number for number in claimed if number not in measured_numbers] == []


def test_it_is_as_long_as_the_journal_asks():
    words = re.findall(r"\w+", PAPER.partition("---\n\n")[2])
    assert 250 < len(words) < 1100
