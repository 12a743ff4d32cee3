"""Editable installs are typed: type checkers find castfit by a path, as they cannot ask import hooks."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.paths import ROOT

HOOK = b"import hook; hook.install()"


def backend():
    pytest.importorskip("setuptools")
    spec = importlib.util.spec_from_file_location("build_backend", ROOT / ".ci" / "build_backend.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_wheel_of_an_editable_install_has_a_path_and_a_record_that_is_right(tmp_path):
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("hook.py", "")
        file.writestr("__editable__.a.pth", HOOK)
        record = ["hook.py,sha256=x,0", "__editable__.a.pth,sha256=y,27", "a-1.dist-info/RECORD,,", ""]
        file.writestr("a-1.dist-info/RECORD", "\n".join(record))
    backend().add_path(wheel, ROOT)
    with zipfile.ZipFile(wheel) as file:
        content = file.read("__editable__.a.pth")
        record = file.read("a-1.dist-info/RECORD").decode().splitlines()
        assert sorted(file.namelist()) == ["__editable__.a.pth", "a-1.dist-info/RECORD", "hook.py"]
    assert content == HOOK + f"\n{ROOT}\n".encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    assert sorted(record) == sorted(
        ["hook.py,sha256=x,0", f"__editable__.a.pth,sha256={digest},{len(content)}", "a-1.dist-info/RECORD,,"]
    )


@pytest.mark.slow
def test_type_checkers_find_an_editable_install(tmp_path):
    venv.create(tmp_path / "new", with_pip=True)
    python = tmp_path / "new" / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [str(python), "-m", "pip", "install", "-q", "--no-deps", "-e", str(ROOT)]
    installed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    if "No matching distribution found for setuptools" in installed.stderr:
        pytest.skip("setuptools cannot be had")
    assert installed.returncode == 0, installed.stderr
    (packages,) = {path.parent for path in (tmp_path / "new").rglob("__editable__*castfit*.pth")}
    lines = [line for path in packages.glob("*.pth") for line in path.read_text().splitlines()]
    paths = [Path(line) for line in lines if line and not line.startswith(("import ", "import\t", "#"))]
    assert [path for path in paths if (path / "castfit" / "py.typed").is_file()] == [ROOT]
    if importlib.util.find_spec("mypy") is not None:
        (tmp_path / "use.py").write_text('import castfit as cf\nn: int = cf.Result.load("a").message\n')
        options = ["--python-executable", str(python), "--ignore-missing-imports", "--cache-dir", str(tmp_path)]
        command = [sys.executable, "-m", "mypy", *options, "use.py"]
        checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert 'expression has type "str", variable has type "int"' in checked.stdout
