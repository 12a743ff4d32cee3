"""What the code of pages prints and draws, below it: pages written by hand run when the site is built.

The Python blocks of a page are one script, as tests/docs/test_pages.py runs it.  Each page runs in a folder of its own;
of a block is shown what it prints, what its last expression is, and the figures that it makes: an expression, a name
that is assigned, or a picture that is written.  What a page said is kept in docs/_work for as long as neither page nor
castfit changes; CASTFIT_DOCS=quick runs nothing, and shows what is kept.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

DOCS = Path(__file__).parents[1]
KEPT = DOCS / "_work" / "executed"
FOLDERS = ("start", "how_to", "understand", "compared", "trust")
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
LONGEST = 60  # lines that are shown of what a block prints


def pages(docs: Path = DOCS) -> list[Path]:
    """Return the pages that have code to run."""
    page_paths = [
        docs / "index.md",
        docs / "course" / "exam.md",
        *(path for folder in FOLDERS for path in sorted((docs / folder).rglob("*.md"))),
    ]
    return [path for path in page_paths if path.exists() and BLOCK.search(path.read_text(encoding="utf-8"))]


def sources() -> str:
    """Return a mark of castfit as it is: what it said in another version is not shown."""
    files = [*sorted((DOCS.parent / "castfit").rglob("*.[pc]*")), Path(__file__)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files if path.suffix in (".py", ".c"))).hexdigest()


def kept(page: Path, mark: str, *, stale: bool = False) -> Path:
    """Return the folder of what a page said; with `stale` whatever is there of it."""
    name = "-".join(page.relative_to(DOCS).with_suffix("").parts)
    script = "\n".join(block[1] for block in BLOCK.finditer(page.read_text(encoding="utf-8")))
    folder = KEPT / f"{name}-{hashlib.sha256((mark + script).encode()).hexdigest()[:12]}"
    stale_folders = sorted(KEPT.glob(f"{name}-????????????")) if stale and not folder.exists() else []
    return stale_folders[-1] if stale_folders else folder


def run(page: Path, folder: Path) -> str:
    """Run a page and keep what its blocks said and drew; return what went wrong."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    blocks = list(BLOCK.finditer(page.read_text(encoding="utf-8")))
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        folder.mkdir(parents=True, exist_ok=True)
        for number, block in enumerate(blocks):
            out, existing_figures = StringIO(), set(Path().glob("*.png"))
            try:
                with redirect_stdout(out), redirect_stderr(StringIO()):
                    last_value = execute(block[1], f"{page}, block {number + 1}", names)
                    if last_value is not None and not is_figure(last_value):
                        print(last_value)
            except Exception as error:  # told with the page's name
                os.chdir(home)
                return f"{page.relative_to(DOCS)}, block {number + 1}: {type(error).__name__}: {error}"
            figures = [plt.figure(key) for key in plt.get_fignums()]
            written = [] if figures else sorted(set(Path().glob("*.png")) - existing_figures)
            drawn = []
            for figure in [*figures, *written]:
                target = folder / f"{number + 1}-{len(drawn) + 1}.png"
                figure.rename(target) if isinstance(figure, Path) else figure.savefig(target, dpi=150)
                drawn.append(target.name)
            plt.close("all")
            outputs.append({"text": out.getvalue(), "figures": drawn})
        os.chdir(home)
    (folder / "said.json").write_text(json.dumps(outputs), encoding="utf-8")
    return ""


def execute(code: str, where: str, names: dict[str, Any]) -> Any:
    """Run a block; return the value of the expression that it ends with, if it does."""
    tree = ast.parse(code)
    last_expression = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    return (
        eval(compile(ast.Expression(last_expression.value), where, "eval"), names)
        if last_expression is not None
        else None
    )


def is_figure(thing: object) -> bool:
    """Tell whether something is a figure: it is shown as one, not by its name."""
    return any(kind.__name__ == "Figure" for kind in type(thing).__mro__)


def run_all(app: Sphinx) -> None:
    """Run the pages whose answers are not kept, as many at once as there are cores."""
    if os.environ.get("CASTFIT_DOCS") == "quick":
        return
    mark = sources()
    todo = [(page, folder) for page in pages() if not ((folder := kept(page, mark)) / "said.json").exists()]
    if not todo:
        return
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(todo)), get_context("spawn")) as pool:
        failures = [sentence for sentence in pool.map(run, *zip(*todo, strict=True)) if sentence]
    if failures:
        raise ExtensionError("Pages whose code fails:\n" + "\n".join(failures))


def show(app: Sphinx, name: str, source: list[str]) -> None:
    """Put below each block of a page what it said and drew."""
    page = DOCS / f"{name}.md"
    if page not in app.config.executed_pages:
        return
    quick = os.environ.get("CASTFIT_DOCS") == "quick"
    folder = kept(page, app.config.executed_mark, stale=quick)
    if not (folder / "said.json").exists():
        return
    outputs = iter(json.loads((folder / "said.json").read_text(encoding="utf-8")))
    place = f"/{folder.relative_to(DOCS).as_posix()}"

    def with_answer(block: re.Match[str]) -> str:
        return block[0] + answer(next(outputs, {"text": "", "figures": []}), place)

    source[0] = BLOCK.sub(with_answer, source[0])


def answer(outputs: dict[str, Any], place: str) -> str:
    """Return what a block said as MyST."""
    lines = outputs["text"].rstrip().splitlines()
    left = len(lines) - LONGEST
    text = "\n".join([*lines[:LONGEST], f"... {left} more lines"] if left > 0 else lines)
    parts = [f"::::{{div}} printed\n~~~text\n{text}\n~~~\n::::\n"] if text else []
    parts += [
        f"```{{image}} {place}/{name}\n:alt: What the code above draws\n:class: drawn\n```\n"
        for name in outputs["figures"]
    ]
    return "\n" + "\n".join(parts) if parts else ""


def prepare(app: Sphinx, config: Any) -> None:
    """Remember what is run: pages are read by several processes."""
    config.executed_pages, config.executed_mark = set(pages()), sources()


def setup(app: Sphinx) -> dict[str, Any]:
    """Run pages before they are read."""
    app.add_config_value("executed_pages", set(), "")
    app.add_config_value("executed_mark", "", "")
    app.connect("config-inited", prepare)
    app.connect("builder-inited", run_all, priority=50)
    app.connect("source-read", show)
    return {"parallel_read_safe": True}
