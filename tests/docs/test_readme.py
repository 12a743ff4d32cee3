"""The README's script prints what the README shows."""

import re
import subprocess
import sys

from tests.paths import ROOT

README = (ROOT / "README.md").read_text()


def test_the_script_prints_what_the_readme_shows(tmp_path):
    script, expected = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.DOTALL).groups()
    (tmp_path / "script.py").write_text(script)
    run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)

    def without_time(text):
        """Leave out how long it took, and what only castfit's compiled integrator says."""
        text = re.sub(r" \d+ of \d+ steps of integration were explicit[^.]*\.", "", text.strip())
        return re.sub(r"[\d.]+ s$", "T s", text, flags=re.MULTILINE).splitlines()

    assert without_time(run.stdout) == without_time(expected)
    assert run.stderr == ""
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_the_script_is_the_quickstart():
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


def test_every_figure_of_castfit_is_one_that_the_benchmark_repeats():
    claims = re.search(r"## Why change\n(.*?)\nCPU seconds", README, re.DOTALL)[1]
    from bench.readme import CLAIMS

    missing = [claim.says for claim in CLAIMS for part in claim.says.split(", ") if part not in claims]
    assert not missing
    assert len(README.splitlines()) < 160


def test_the_front_page_has_the_readmes_script():
    script = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert script in (ROOT / "docs" / "index.md").read_text()
