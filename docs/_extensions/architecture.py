"""The architecture in one drawing, made from the layers that the import linter checks."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]


def layers() -> list[list[str]]:
    """Return the modules of each layer, the highest first."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r'containers = \["castfit"\]\nexhaustive.*?layers = \[(.*?)\n\]', text, re.DOTALL)
    assert listed is not None
    return [re.findall(r"\((\w+)\)", layer) for layer in re.findall(r'"(.*?)"', listed[1])]


def sentence(module: str) -> str:
    """Return the first sentence of a module."""
    folder = ROOT / "castfit"
    path = folder / f"{module}.py" if (folder / f"{module}.py").exists() else folder / module / "__init__.py"
    text = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else "") or ""
    return " ".join(text.split("\n\n")[0].split())


class Architecture(SphinxDirective):
    """A table with a row for each layer."""

    def run(self) -> list[nodes.Node]:
        """Draw layers as boxes, one below the other."""
        rows = "".join(
            '<div class="layer">'
            + "".join(f'<span class="room" title="{sentence(m)}">{m}</span>' for m in layer if not m.startswith("_"))
            + "</div>"
            for layer in layers()
            if not all(m.startswith("_") for m in layer)
        )
        return [nodes.raw("", f'<div class="architecture">{rows}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("architecture", Architecture)
    return {"parallel_read_safe": True}
