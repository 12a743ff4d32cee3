"""A page for each problem of the library, made from its file: equations, data and fit, optimum, sources."""

from __future__ import annotations

import importlib
import inspect
import json
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

from sphinx.application import Sphinx

import castfit as cf
from castfit import plots, problems
from castfit.problems import Benchmark
from castfit.report.equations import table
from castfit.report.problem_sections import system

FOLDER = "problems"
MEASURED = Path(__file__).parents[1] / "measured" / "library.json"  # of `castfit bench library --json FILE`


def summary(benchmark: Benchmark) -> tuple[int, int, int, int]:
    """Count experiments, states, estimated quantities and data."""
    compiled_problem = benchmark.problem.posed
    return (
        len(compiled_problem.experiments),
        len(compiled_problem.model.states),
        len(compiled_problem.names),
        compiled_problem.n_data,
    )


def equations(module: Any) -> str:
    """Return what the problem's file says before its code: prose as prose, equations as they are laid out there."""
    paragraphs = (inspect.getdoc(module) or "").split("\n\n")
    return "\n\n".join(
        f"```text\n{dedent(text)}\n```" if text.startswith("    ") else text.replace("``", "`") for text in paragraphs
    )


def typeset(benchmark: Benchmark) -> str:
    """Return the model's equations as formulas, made from the graph that is integrated."""
    sections = system(benchmark.problem.model)
    groups = {
        "": sections.rates,
        "and what is zero": sections.algebraic,
        "with outputs": sections.outputs,
        "from": sections.initial,
        "where": sections.definitions,
    }
    blocks = [f"{f'<p>{words}</p>' if words else ''}{table(rows)}" for words, rows in groups.items() if rows]
    return f'<div class="formula system">{"".join(blocks)}</div>'


@cache
def measured() -> dict[str, Any]:
    """Return the table of the library by every method, as it was measured last."""
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def methods(name: str) -> str:
    """Tabulate how each method does with a problem, from measured numbers."""
    table = measured()
    rows = [row for row in table["rows"] if row["problem"] == name]
    if not rows:
        return f"Not measured yet; `castfit bench library --problems {name}` does it."
    lines = [
        "| method | ends | the reference optimum | iterations | evaluations | CPU time, s | building, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        starts = row["starts"]
        words = ", ".join(dict.fromkeys(end.replace("_", " ").split(":")[0] for end in row["ends"]))
        hits = ("yes" if row["correct"] else "no") if starts == 1 else f"{row['correct']} of {starts}"
        counts = " | ".join(
            f"{row[column]:.0f}" if row["evaluations"] else "" for column in ("iterations", "evaluations")
        )
        times = " | ".join(
            f"{row[column]:.2g}" if row[column] < 10 else f"{row[column]:.0f}" for column in ("cpu", "building")
        )
        lines.append(f"| `{row['method']}` | {words} | {hits} | {counts} | {times} |")
    return "\n".join(
        [
            "From the problem's own start for each transcription. `default` is `cf.fit(problem)`; the others have the",
            "settings that the problem recommends. Iterations and evaluations are medians. Building is what the first",
            "fit of a problem takes longer than its repetition.",
            "",
            *lines,
            "",
            f"Measured with castfit {table['castfit']} on {table['date']}, {table['machine']}, beside other work:",
            f"`castfit bench library --max-time {table['max_time']:g} --json FILE`.",
        ]
    )


def optimum(benchmark: Benchmark) -> str:
    """Tabulate the reference optimum."""
    errors = benchmark.reference.standard_errors or {}
    rows = [
        f"| {name} | {value:.7g} | {f'{errors[name]:.3g}' if name in errors else ''} |"
        for name, value in benchmark.reference.parameters.items()
    ]
    return "\n".join(["| quantity | optimum | standard error |", "|---|---|---|", *rows])


def playground(name: str, result: cf.Result, site: Path) -> str:
    """Write a page with sliders into the site, and return what shows it; say why where there can be none."""
    site.mkdir(parents=True, exist_ok=True)
    try:
        path = cf.explore(result, site / f"{name}-model.html", title=name)
    except cf.InputError as error:
        return f"None for this problem: {'; '.join(error.problems)}."
    frame = f'<iframe class="model" src="{path.name}" title="{name} with sliders" loading="lazy"></iframe>'
    words = f'<p><a href="{path.name}">In a window of its own</a>; <code>castfit explore {name}</code> writes it.</p>'
    return f"```{{raw}} html\n{frame}\n{words}\n```"


def page(name: str, folder: Path, site: Path) -> tuple[str, str]:
    """Return a problem's page and its line in the index; its picture goes into the folder, sliders into the site."""
    benchmark = problems.load(name)
    result = cf.fit(benchmark.problem, start=benchmark.reference.parameters)
    plots.fit(result, folder / f"{name}.png")
    module = importlib.import_module(f"castfit._problems.{name}")
    options = ", ".join(f"`{option}`" for option in inspect.signature(module.benchmark).parameters)
    experiments, states, quantities, data = summary(benchmark)
    sources = "\n".join(f"- {source}" for source in benchmark.sources)
    text = f"""# {name}

{benchmark.description}

```python
import castfit as cf

benchmark = cf.problems.load("{name}")
print(cf.fit(benchmark.problem))
```

{f"Options of `load`: {options}." if options else ""}

## Equations

{equations(module)}

```{{raw}} html
{typeset(benchmark)}
```

## Data and fit

![Data, the model at the optimum, and the residuals]({name}.png)

## Play with it

{playground(name, result, site)}

## Optimum

The objective is {benchmark.reference.objective:.10g}: {benchmark.reference.source}.

{optimum(benchmark)}

## How each method does

{methods(name)}

## Sources

{sources}

{benchmark.notes}
"""
    return text, f"| [{name}]({name}.md) | {experiments} | {states} | {quantities} | {data} |"


def write(app: Sphinx) -> None:
    """Write the pages."""
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    site = Path(app.outdir) / FOLDER
    pages = {name: page(name, folder, site) for name in problems.names()}
    for name, (text, _) in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    listed = "\n".join(pages)
    rows = "\n".join(row for _, row in pages.values())
    (folder / "index.md").write_text(
        f"""# Problems

Every problem of the library has its data, its source, and an optimum that was verified by two methods;
`castfit list` shows them, `castfit fit NAME` fits one, `castfit bench library` fits all by every method.

| problem | experiments | states | estimated | data |
|---|---|---|---|---|
{rows}

```{{toctree}}
:hidden:
{listed}
```
""",
        encoding="utf-8",
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for pages."""
    app.connect("builder-inited", write, priority=100)
    return {"parallel_read_safe": True}
