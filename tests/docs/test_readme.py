"""The README's script prints what the README shows."""

import re
import subprocess
import sys

from tests.paths import ROOT

README = (ROOT / "README.md").read_text()


def test_the_script_prints_what_the_readme_shows(tmp_path):
    script, shown = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.DOTALL).groups()
    (tmp_path / "script.py").write_text(script)
    run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)

    def without_time(text):
        return re.sub(r"[\d.]+ s$", "T s", text.strip(), flags=re.MULTILINE).splitlines()

    assert without_time(run.stdout) == without_time(shown)
    assert run.stderr == ""
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_the_script_is_the_quickstart():
    script = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    example = (ROOT / "examples" / "quickstart.py").read_text()
    assert script.strip() in example


def test_linked_files_exist():
    for target in re.findall(r"\]\(([\w./]+)\)", README) + re.findall(r"`(examples/[\w.]+)`", README):
        assert (ROOT / target).exists(), target
