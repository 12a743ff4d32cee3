"""Wheels bring the compiled integrator; editable installs are typed: checkers find castfit by a path, not by hooks."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from castfit._support.casadi_functions import find_compiler
from castfit.integrate import compilation, esdirk_binding
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


INSTALLED = Path(compilation.__file__).parents[2]  # where the package under test is: a clone, or an environment


def integrator_source() -> str:
    return "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((INSTALLED / "castfit/integrate").glob("esdirk*.c"))
    )


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
def test_a_built_integrator_is_loaded_for_the_very_source_that_it_was_built_from(tmp_path, monkeypatch):
    build = backend()
    monkeypatch.setattr(build, "FLAGS", ("-O0",))
    monkeypatch.setattr(build, "ROOT", INSTALLED)
    libraries = build.libraries(tmp_path)
    assert 1 <= len(libraries) <= 2
    library = compilation.bundled_library(integrator_source(), tmp_path, "esdirk")
    assert library is not None
    assert Path(library._name) in libraries
    assert library.castfit_integrate
    assert compilation.bundled_library(integrator_source() + " ", tmp_path, "esdirk") is None
    monkeypatch.setattr(compilation, "_machine", lambda: "flags : sse2")  # an older processor
    library = compilation.bundled_library(integrator_source(), tmp_path, "esdirk")
    assert library is not None
    assert "-v3" not in library._name
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / libraries[0].name).write_bytes(b"cut off")
    assert compilation.bundled_library(integrator_source(), tmp_path / "other", "esdirk") is None


def test_the_built_integrator_needs_no_compiler(monkeypatch):
    library = SimpleNamespace(castfit_integrate=SimpleNamespace(), castfit_pull=SimpleNamespace())
    monkeypatch.setattr(esdirk_binding, "bundled_library", lambda source, folder, stem: library)
    monkeypatch.setattr(esdirk_binding, "load", lambda source, flags: pytest.fail("compiled"))
    assert source_of_flags(esdirk_binding._FLAGS) == backend().FLAGS
    assert esdirk_binding.integrator.__wrapped__() is library


def source_of_flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out what suits one machine only."""
    return tuple(flag for flag in flags if flag != "-march=native")


def test_a_wheel_with_libraries_is_one_of_its_platform_for_every_python(tmp_path):
    wheel, library = tmp_path / "a-1-py3-none-any.whl", tmp_path / "esdirk-0.so"
    library.write_bytes(b"code")
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("a-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("a-1.dist-info/RECORD", "a-1.dist-info/WHEEL,sha256=x,0\na-1.dist-info/RECORD,,\n")
    name = backend().add_libraries(wheel, [library])
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert name == f"a-1-py3-none-{tag}.whl"
    assert not wheel.exists()
    with zipfile.ZipFile(tmp_path / name) as file:
        assert file.read("castfit/integrate/esdirk-0.so") == b"code"
        wheel_text = file.read("a-1.dist-info/WHEEL").decode()
        assert wheel_text == f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"
        for line in file.read("a-1.dist-info/RECORD").decode().splitlines()[1:]:
            place, digest, size = line.split(",")
            content = file.read(place)
            assert (
                digest == f"sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()}"
            )
            assert int(size) == len(content)


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
