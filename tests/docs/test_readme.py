"""The README's script prints what the README shows."""

import re
import subprocess
import sys

from tests.paths import ROOT

README = (ROOT / "README.md").read_text()


def test_readme_script_prints_the_shown_output(tmp_path):
    script, expected = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.DOTALL).groups()
    (tmp_path / "script.py").write_text(script)
    run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)

    def without_time(text):
        """Remove the run time and the sentence of the compiled integrator."""
        text = re.sub(r" \d+ of \d+ integrator steps were explicit[^.]*\.", "", text.strip())
        return re.sub(r"[\d.]+ s$", "T s", text, flags=re.MULTILINE).splitlines()

    assert without_time(run.stdout) == without_time(expected)
    assert run.stderr == ""
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_readme_script_is_the_quickstart_example():
    script = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    example = (ROOT / "examples" / "quickstart.py").read_text()
    assert script.strip() in example


def test_linked_files_and_pages_exist():
    for target in re.findall(r"\]\(([\w./]+)\)", README) + re.findall(r"`(examples/[\w.]+)`", README):
        assert (ROOT / target).exists(), target
    pages = re.findall(r"https://castfit\.readthedocs\.io/en/latest/([\w/]+)\.html", README)
    files = re.findall(r"https://raw\.githubusercontent\.com/castfit/castfit/main/([\w/.]+)", README)
    assert pages
    assert files
    for target in [*(f"docs/{page}.md" for page in pages), *files]:
        assert (ROOT / target).exists(), target


def rows_of_comparison(text, heading):
    """Return the rows of the table below a heading, as a dictionary from the first cell to the second."""
    table = text.split(heading, 1)[1].split("|---|---|\n", 1)[1].split("\n\n", 1)[0]
    return dict([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())


def test_readme_figures_are_repeated_by_the_benchmark():
    from bench.readme import CLAIMS

    comparison = README.split("## Measured comparison", 1)[1]
    missing = [claim.says for claim in CLAIMS for part in claim.says.split(", ") if part not in comparison]
    assert not missing
    assert len(README.splitlines()) <= 120


def test_front_page_figures_are_those_of_the_readme():
    front_page = (ROOT / "docs" / "index.md").read_text()
    readme_rows = rows_of_comparison(README, "## Measured comparison")
    for label, text in rows_of_comparison(front_page, "**How castfit compares**").items():
        figures = re.findall(r"-?\d[\d.,]*", text)
        assert figures
        assert set(figures) <= set(re.findall(r"-?\d[\d.,]*", readme_rows[label])), label


def test_front_page_script_is_that_of_the_readme():
    script = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert script in (ROOT / "docs" / "index.md").read_text()
