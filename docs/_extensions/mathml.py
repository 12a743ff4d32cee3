"""Formulas as MathML, made when the site is built: pages need neither scripts nor a network to show them."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def formula(self: Any, node: nodes.math) -> None:
    """Write a formula within a line."""
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def display(self: Any, node: nodes.math_block) -> None:
    """Write a formula that stands alone; several lines are aligned at their &."""
    latex = node.astext()
    if "\\\\" in latex and "\\begin" not in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    self.body.append(f'<div class="formula">{convert(latex, display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer under the name that `html_math_renderer` takes."""
    app.add_html_math_renderer("mathml", (formula, None), (display, None))
    app.config["html_math_renderer"] = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
