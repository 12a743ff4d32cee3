"""The page of the command line: what each command says with --help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from castfit.cli import COMMANDS


def said(*arguments: str) -> str:
    """Return what the command line prints."""
    command = [sys.executable, "-m", "castfit", *arguments]
    environment = {**os.environ, "COLUMNS": "96"}
    return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=True).stdout.strip()


def write(app: Sphinx) -> None:
    """Write the page."""
    parts = [f"## castfit {c.name}\n\n```text\n{said(c.name, '--help')}\n```" for c in COMMANDS]
    top = f"# Command line\n\n```text\n{said('--help')}\n```"
    text = "\n\n".join([top, *parts])
    (Path(app.srcdir) / "reference" / "command_line.md").write_text(text + "\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the page before Sphinx looks for pages."""
    app.connect("builder-inited", write, priority=100)
    return {"parallel_read_safe": True}
