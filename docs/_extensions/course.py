"""The notebooks of the course, made from its lessons when the site is built."""

from __future__ import annotations

from typing import Any

from lessons import notebook, read, units
from sphinx.application import Sphinx


def write(app: Sphinx) -> None:
    """Write both notebooks of every unit beside its page, which offers them for download."""
    for folder in units():
        cells = read(folder / "lesson.py")
        for name, solved in ((folder.name, False), (f"{folder.name}_solutions", True)):
            (folder / f"{name}.ipynb").write_text(notebook(cells, solved=solved), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the notebooks before Sphinx looks for pages."""
    app.connect("builder-inited", write, priority=100)
    return {"parallel_read_safe": True}
