"""``castfit bench code``: the size of the source, its complexity and its imports, now and at the last tag."""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from castfit._support.status import InputError
from castfit._support.text_tables import TextTable

from .table import Kind, Report, record

NAME = "code"
_DRIVERS = ("checkup", "design", "model_comparison", "population", "search", "uncertainty")
CAPABILITIES = ("control", "formats", *(f"drive.{name}" for name in _DRIVERS))
SIZES = ("statements", "docstring lines", "tests")
COMPLEXITIES = (20, 30)  # cyclomatic complexities above which functions are counted
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_ARITHMETIC = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.Load)
Sources = Mapping[str, str]


def read_sources(root: Path, tag: str | None = None) -> dict[str, str]:
    """Return the text of each Python file in castfit/ and tests/ by its path; of the work tree if there is no tag."""
    if tag is None:
        paths = [path for folder in ("castfit", "tests") for path in sorted((root / folder).rglob("*.py"))]
        return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    with tarfile.open(fileobj=io.BytesIO(_run_git(root, "archive", tag, "castfit", "tests"))) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.name.endswith(".py")}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def _run_git(root: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        message = f"git {' '.join(arguments)} failed in {root}; run this table in a clone that has the project's tags"
        raise InputError("bench code", [message]) from error


def count_folders(sources: Sources) -> dict[str, Counter[str]]:
    """Return statements without docstrings, docstring lines and test functions of each folder of castfit and tests."""
    folders: dict[str, Counter[str]] = {}
    for path, text in sources.items():
        nodes, parts = list(ast.walk(ast.parse(text))), path.split("/")
        documented = [node for node in nodes if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False)]
        docs = [node.body[0] for node in documented]
        n_statements = sum(isinstance(node, ast.stmt) for node in nodes) - len(docs)
        n_docstring_lines = sum((doc.end_lineno or doc.lineno) - doc.lineno + 1 for doc in docs)
        n_tests = sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in nodes)
        figures = dict(zip(SIZES, (n_statements, n_docstring_lines, n_tests), strict=True))
        for folder in {"/".join(parts[: min(2, len(parts) - 1)]), f"{parts[0]} (all)"}:
            folders.setdefault(folder, Counter()).update(figures)
    return folders


def count_constants(tree: ast.Module) -> int:
    """Return the number of module-level names whose value is arithmetic with numbers."""

    def is_numeric(node: ast.expr) -> bool:
        parts = list(ast.walk(node))
        has_number = any(type(getattr(part, "value", None)) in (int, float) for part in parts)
        return has_number and all(isinstance(part, _ARITHMETIC) for part in parts)

    count = 0
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            is_unpacked = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            count += sum(map(is_numeric, node.value.elts if is_unpacked else [node.value]))
    return count


def find_imports(sources: Sources, package: str) -> set[str]:
    """Return the modules outside a package and outside castfit._support that it imports, also for type hints."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in sources}
    home = package.replace(".", "/")
    texts = [text for path, text in sources.items() if path == f"{home}.py" or path.startswith(f"{home}/")]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    pairs = [(node.module or "", alias.name) for node in nodes if not node.level for alias in node.names]
    imported = {full if (full := f"{module}.{name}") in modules else module for module, name in pairs}
    inside = (f"{package}.", "castfit._support.")
    return {module for module in imported if module.startswith("castfit") and not f"{module}.".startswith(inside)}


def measure_code(sources: Sources) -> Iterator[tuple[str, int]]:
    """Yield the name and value of each figure of castfit/ that is not counted by folder."""
    try:
        from radon.complexity import cc_visit
    except ImportError as error:
        raise InputError("bench code", ["radon is not installed; pip install -e '.[lint]'"]) from error
    texts = {path: text for path, text in sources.items() if path.startswith("castfit/")}
    blocks = [block for text in texts.values() for block in cc_visit(text) if block.letter in "FM"]
    for limit in COMPLEXITIES:
        yield f"functions of complexity > {limit}", sum(block.complexity > limit for block in blocks)
    yield "numeric constants at module level", sum(count_constants(ast.parse(text)) for text in texts.values())
    for package in CAPABILITIES:
        yield f"modules imported by {package}", len(find_imports(texts, f"castfit.{package}"))


def _report(name: str, progress: Any = None, folder: str = ".", against: str | None = None) -> Report:
    root = Path(folder)
    tag = against or _run_git(root, "describe", "--tags", "--abbrev=0", "--match=v*").decode().strip()
    new, old = read_sources(root), read_sources(root, tag)
    folders, old_folders = count_folders(new), count_folders(old)
    sizes = [
        (f, *(n for k in SIZES for n in (old_folders.get(f, Counter[str]())[k], folders[f][k])))
        for f in sorted(folders)
    ]
    figures = [(*pair, n) for pair, (_, n) in zip(measure_code(old), measure_code(new), strict=True)]
    columns = [column for size in SIZES for column in (f"{size}, {tag}", "now")]
    sheets = (_build_sheet(sizes, "folder", *columns), "", _build_sheet(figures, "castfit", tag, "now"))
    rows = [{"figure": figure, "before": previous, "now": n} for figure, previous, n in figures]
    return Report(sheets, record(name, rows, tag=tag, folders=folders, folders_before=old_folders))


def _build_sheet(rows: Sequence[tuple[str, Any]], subject: str, *columns: str) -> TextTable:
    numbers = [(f">{name}", lambda row, k=k: str(row[k])) for k, name in enumerate(columns, start=1)]
    return TextTable.from_items(rows, (subject, lambda row: row[0]), *numbers)


KIND = Kind(lambda: (NAME,), ("folder", "against"), _report, lambda name: "size, complexity and imports since a tag")
