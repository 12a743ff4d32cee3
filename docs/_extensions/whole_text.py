"""The site for readers that take text: `llms.txt`, a list of all pages, and `llms-full.txt`, all of them in one file.

Pages written by hand stand there as Markdown, with what their code printed; examples of the gallery as scripts; of the
reference every public name with its signature and docstring.  Each page also stands beside its HTML as `PAGE.md`.
See https://llmstxt.org.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import castfit as cf

ORDER = ("index", "start", "how_to", "understand", "course", "compared", "trust", "reference", "problems", "gallery")
HEAD = """# castfit

> Parameters, initial states and noise of ODE and DAE models from measured time courses, by single shooting,
> multiple shooting or collocation, with standard errors, verdicts, profiles, searches and reports.

Write a `cf.Model` from CasADi symbols, `cf.Experiment` for the data, join them in a `cf.Problem`, and call `cf.fit`.
Mistakes in the input raise one `cf.InputError` that lists all of them with their remedies. The whole site as one text
is [llms-full.txt](llms-full.txt).
"""


def remember(app: Sphinx, name: str, source: list[str]) -> None:
    """Keep the text of a page as it is read, answers of its code included."""
    app.env.whole_text[name] = source[0]


def merge(app: Sphinx, env: Any, names: list[str], other: Any) -> None:
    """Take over what another process read."""
    env.whole_text.update({name: other.whole_text[name] for name in names if name in other.whole_text})


def begin(app: Sphinx) -> None:
    """Start with what earlier builds read."""
    app.env.whole_text = getattr(app.env, "whole_text", {})


def title(text: str) -> str:
    """Return the title of a page."""
    match = re.search(r"^# (.*)$|^(.+)\n=+$", text, re.MULTILINE)
    return (match[1] or match[2]).strip() if match else ""


def reference() -> str:
    """Return every public name with its signature and its docstring."""
    parts = []
    for owner, names in (
        (cf, cf.__all__),
        *((getattr(cf, m), getattr(cf, m).__all__) for m in ("plots", "petab", "sbml")),
    ):
        for name in sorted(names):
            thing = getattr(owner, name)
            if inspect.ismodule(thing):
                continue
            try:
                signature = str(inspect.signature(thing))
            except (TypeError, ValueError):
                signature = ""
            path = f"{owner.__name__}.{name}"
            parts.append(f"## {path}\n\n```text\n{path}{signature}\n\n{inspect.getdoc(thing) or ''}\n```\n")
    return "# Every public name\n\n" + "\n".join(parts)


def script(app: Sphinx, name: str) -> str:
    """Return an example of the gallery as its script."""
    path = Path(app.srcdir) / f"{name}.py"
    return f"```python\n{path.read_text(encoding='utf-8')}```\n" if path.exists() else ""


def plain(text: str) -> str:
    """Return a page without what only Sphinx understands."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^:{3,}.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^```\{(toctree|image|raw|eval-rst)\}.*?^```\n", "", text, flags=re.DOTALL | re.MULTILINE)
    return text.replace("~~~", "```").strip() + "\n"


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the files once the site is there."""
    if exception is not None or app.builder.format != "html":
        return
    out, texts = Path(app.outdir), {}
    for name, text in app.env.whole_text.items():
        if (
            name not in app.env.found_docs
            or name.startswith("reference/generated")
            or name == "gallery/sg_execution_times"
        ):
            continue
        body = script(app, name) if name.startswith("gallery/") else ""
        texts[name] = (title(text) or name, f"# {title(text)}\n\n{body}" if body else plain(text))
    texts["reference/all_names"] = ("Every public name", reference())
    listed, full_text = [HEAD], [HEAD]
    for folder in ORDER:
        folder_texts = {n: t for n, t in sorted(texts.items()) if n.split("/")[0] == folder}
        listed.append(f"\n## {folder.replace('_', ' ').capitalize()}\n")
        for name, (head, text) in folder_texts.items():
            path = out / f"{name}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            listed.append(f"- [{head}]({name}.md)")
            full_text.append(f"\n<!-- {name} -->\n\n{text}")
    (out / "llms.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (out / "llms-full.txt").write_text("\n".join(full_text), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen, after the code of pages has answered."""
    app.connect("builder-inited", begin)
    app.connect("source-read", remember, priority=900)
    app.connect("env-merge-info", merge)
    app.connect("build-finished", write, priority=800)
    return {"parallel_read_safe": True, "env_version": 1}
