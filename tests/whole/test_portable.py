"""What holds on Windows and macOS too, as far as it can be seen here; docs/trust/platforms.md says what cannot."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

import castfit as cf
from tests.paths import ROOT

OURS = ("bench", "docs", "examples", "problems", ".ci")
FOLDERS = (Path(cf.__file__).parent, *(ROOT / name for name in OURS))
SOURCES = sorted(chain.from_iterable(folder.rglob("*.py") for folder in FOLDERS))
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{k}" for port in ("com", "lpt") for k in range(1, 10))}
POSIX_ONLY = {"crypt", "fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
POSIX_CALLS = {"fork", "forkpty", "killpg", "setsid", "uname", "mkfifo", "alarm", "setitimer"}
TEXT = {"open": 3, "read_text": 0, "write_text": 1}  # functions that open text, and where an encoding may stand
PROCESS_CALLS = {"run", "Popen", "check_output", "check_call"}  # of subprocess: text=True decodes what they print
HINTS = re.compile(rf"open|_text|text=|newlines|shell|os\.|signal\.|/tmp|/dev/|\b({'|'.join(POSIX_ONLY)})\b")
MADE = {"build", "_work", "gallery", "generated", "__pycache__", ".git"}


def test_names_of_files_are_such_that_every_system_can_hold_them():
    pairs = ((folder.parent, path) for folder in (*FOLDERS, ROOT / "tests") for path in folder.rglob("*"))
    relative_paths = [
        path.relative_to(parent) for parent, path in pairs if not MADE & set(path.relative_to(parent).parts)
    ]
    assert len(relative_paths) > 500
    folded = Counter(str(path).casefold() for path in relative_paths)
    assert [name for name, n in folded.items() if n > 1] == []
    for path in relative_paths:
        assert not RESERVED & {part.casefold().split(".")[0] for part in path.parts}, path
        assert not set(str(path)) & set('<>:"|?*'), path
        assert all(part[-1] not in " ." for part in path.parts), path
        assert len(str(path)) < 120, path  # beside a folder of 140: 260 in all
        assert not (ROOT / path).is_symlink(), path


def test_pages_of_the_reference_differ_by_more_than_the_case_of_letters():
    conf = ast.parse((ROOT / "docs" / "conf.py").read_text(encoding="utf-8"))
    (expression,) = (
        node.value
        for node in conf.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "autosummary_filename_map"
    )
    renamed = eval(compile(ast.Expression(expression), "conf.py", "eval"), {"castfit": cf})
    pages = Counter(renamed.get(f"castfit.{name}", f"castfit.{name}").casefold() for name in cf.__all__)
    assert "castfit.design-function" in pages
    assert [page for page, n in pages.items() if n > 1] == []


def test_sources_assume_no_encoding_and_no_system():
    assert len(SOURCES) > 400
    assumptions = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if not HINTS.search(text):  # as most do
            continue
        tree = ast.parse(text)
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        messages = [
            *chain.from_iterable(map(assumed, calls)),
            *(f"{n} at the top" for node in top for n in imported(node)),
        ]
        assumptions += [f"{path}: {one}" for one in messages]
    assert assumptions == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("open('a')", "no encoding"),
        ("p.read_text()", "no encoding"),
        ("(f / 'a').write_text('b')", "no encoding"),
        ("subprocess.run(c, text=True)", "no encoding"),
        ("subprocess.run(c, shell=True)", "asks a shell"),
        ("os.fork()", "POSIX only"),
        ("Path('/tmp/a')", "folder of Linux"),
    ],
)
def test_platform_assumption_is_detected(code, said):
    (call,) = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and assumed(node))
    assert said in assumed(call)[0]


def imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the modules of POSIX that a line imports."""
    names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else {node.module or ""}
    return names & POSIX_ONLY


def assumed(node: ast.Call) -> list[str]:
    """Return what a call assumes of the system."""
    function_name = ast.unparse(node.func)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else function_name
    keyword_names = {keyword.arg for keyword in node.keywords}
    values = [arg.value for arg in (*node.args, *(k.value for k in node.keywords)) if isinstance(arg, ast.Constant)]
    messages = []
    texts = name in TEXT and (name != "open" or function_name in ("open", "path.open", "file.open", "target.open"))
    binary = name == "open" and any(isinstance(v, str) and re.fullmatch("[rwax+]*b[+]?", v) for v in values)
    if texts and not binary and "encoding" not in keyword_names and len(node.args) <= TEXT[name]:
        messages.append("has no encoding")
    if (
        name in PROCESS_CALLS
        and keyword_names & {"text", "universal_newlines"}
        and not keyword_names & {"encoding", "errors"}
    ):
        messages.append("has no encoding")
    if "shell" in keyword_names or function_name in ("os.system", "os.popen"):
        messages.append("asks a shell")
    if name in POSIX_CALLS and function_name.startswith(("os.", "signal.")):
        messages.append("is there on POSIX only")
    if any(isinstance(value, str) and value.startswith(("/tmp", "/dev/")) for value in values):
        messages.append("names a folder of Linux")
    return [f"{ast.unparse(node)} {message}" for message in messages]


def test_fits_reports_workers_and_checkpoints_need_nothing_that_windows_lacks(tmp_path):
    script = ROOT / "tests" / "whole" / "elsewhere.py"
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    python_path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    process = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | ascii_only | {"PYTHONPATH": python_path},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"fit.html", "fit.json", "model.html", "starts.jsonl"}
