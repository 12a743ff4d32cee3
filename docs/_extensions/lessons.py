"""Lessons of the course: one script each, from which two notebooks are made, with gaps and with solutions.

A lesson is a script in the percent format: `# %% [markdown]` begins text, `# %%` code, `# %% checks` the code of the
checks, which notebooks fold away.  What stands between two markers is the solution of an exercise:

    # solution: what is asked
    answer = ...
    # end

In the notebook with gaps these lines become a comment with what is asked, and `answer = ...` for every name that the
solution assigns, or `return ...` if it returns.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

COURSE = Path(__file__).parents[1] / "course"
_CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)
_SOLUTION = re.compile(r"^( *)# solution: (.*)\n((?:.*\n)*?)\1# end\n", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A cell of a lesson: kind is "markdown", "code" or "checks"."""

    kind: str
    text: str

    @property
    def solutions(self) -> tuple[str, ...]:
        """What stands between the markers."""
        return tuple(dedent(match[3]) for match in _SOLUTION.finditer(self.text))

    @property
    def solved(self) -> str:
        """The code with solutions in; what is asked stays as a comment."""
        return _SOLUTION.sub(lambda match: f"{match[1]}# {match[2]}\n{match[3]}", self.text)

    @property
    def gapped(self) -> str:
        """The code with gaps."""
        return _SOLUTION.sub(lambda match: indent(_gap(match[2], dedent(match[3])), match[1]), self.text)


def units() -> list[Path]:
    """Return the folders of the units that there are."""
    return sorted(path.parent for path in COURSE.glob("unit_*/lesson.py"))


def read(path: Path) -> list[Cell]:
    """Read a lesson."""
    _, *parts = _CELL.split(path.read_text(encoding="utf-8"))
    cells: list[Cell] = []
    for head, body in zip(parts[::2], parts[1::2], strict=True):
        text = body.strip("\n") + "\n"
        if head.strip() == "[markdown]":
            cells.append(Cell("markdown", re.sub(r"^# ?", "", text, flags=re.MULTILINE)))
        else:
            cells.append(Cell("checks" if head.strip() == "checks" else "code", text))
    return cells


def notebook(cells: list[Cell], *, solved: bool) -> str:
    """Return a notebook, nbformat 4, as JSON."""
    written = []
    for number, cell in enumerate(cells):
        code = cell.kind != "markdown"
        text = (cell.solved if solved else cell.gapped) if code else cell.text
        folded = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]} if cell.kind == "checks" else {}
        entry: dict[str, object] = {"cell_type": "code" if code else "markdown", "id": f"cell-{number}",
                                    "metadata": folded, "source": text.rstrip("\n")}  # fmt: skip
        written.append(entry | {"execution_count": None, "outputs": []} if code else entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _gap(request: str, solution: str) -> str:
    """Return what stands in the gap of a solution."""
    statements = ast.parse(solution).body
    names = [
        node.id
        for statement in statements
        for target in (statement.targets if isinstance(statement, ast.Assign) else [])
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    returns = any(isinstance(node, ast.Return) for statement in statements for node in ast.walk(statement))
    left = ["return ..."] if returns else [f"{name} = ..." for name in dict.fromkeys(names)] or ["..."]
    return "\n".join([f"# your turn: {request}", *left]) + "\n"
