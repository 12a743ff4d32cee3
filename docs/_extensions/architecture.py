"""The packages in order, drawn from the layers that the import linter checks."""

from __future__ import annotations

import ast
import re
from html import escape
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


def first(module: str) -> str:
    """Return the first sentence of a module, without its full stop."""
    return re.split(r"(?<=[.:;])\s", sentence(module), maxsplit=1)[0].rstrip(".:;")


class Architecture(SphinxDirective):
    """Diagram of the packages: one row per layer, one box per package with its purpose."""

    def run(self) -> list[nodes.Node]:
        """Draw layers as boxes, one below the other."""
        layer_boxes = "".join(
            '<div class="layer">'
            + "".join(f'<span class="room"><b>{package}</b> {escape(first(package))}</span>' for package in layer)
            + "</div>"
            for layer in layers()
        )
        return [nodes.raw("", f'<div class="architecture">{layer_boxes}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("architecture", Architecture)
    return {"parallel_read_safe": True}
