"""The notebooks and the interactive page of the course, made when the site is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import iterations
from lessons import notebook, read, units
from sphinx.application import Sphinx


def write(app: Sphinx) -> None:
    """Write both notebooks of every unit beside its page, which offers them for download."""
    for folder in units():
        cells = read(folder / "lesson.py")
        for name, solved in ((folder.name, False), (f"{folder.name}_solutions", True)):
            (folder / f"{name}.ipynb").write_text(notebook(cells, solved=solved), encoding="utf-8")


def write_page(app: Sphinx, exception: Exception | None) -> None:
    """Write the interactive page into the site: it is whole by itself."""
    if exception is None and app.builder.format == "html":
        (Path(app.outdir) / "course" / "iterations.html").write_text(iterations.page(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the notebooks before Sphinx looks for pages."""
    app.connect("builder-inited", write, priority=100)
    app.connect("build-finished", write_page)
    return {"parallel_read_safe": True}
