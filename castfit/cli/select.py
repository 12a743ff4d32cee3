"""``castfit select``: which of several models, by a PEtab Select problem or what a Python file defines."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from castfit._support.json_codec import replace_nonfinite
from castfit._support.status import raise_if_mistakes
from castfit.cli.command import FAILED, Command, add_verbose, collect_keywords, write_json
from castfit.cli.source import run_script

_YAML = (".yaml", ".yml")
_STATED = ("criterion", "method")


def _configure(parser: argparse.ArgumentParser) -> None:
    words = (
        "the YAML file of a PEtab Select problem, or a Python file that defines candidates = {name: problem}, "
        "or problem and choices"
    )
    parser.add_argument("file", metavar="FILE.yaml|FILE.py", help=words)
    parser.add_argument(
        "--criterion", metavar="C", help="AICc, AIC or BIC (default: AICc); a PEtab problem has its own"
    )
    parser.add_argument("--method", metavar="M", help="all, forward, backward, forecast or famos (default: auto)")
    parser.add_argument("--folder", metavar="FOLDER", help="where PEtab Select writes its files")
    parser.add_argument("--html", metavar="FILE", help="write a page with the result")
    parser.add_argument("--checkpoint", metavar="FILE", help="write every finished fit there")
    parser.add_argument("--resume", action="store_true", help="continue the checkpoint if it exists")
    add_verbose(parser, "the run; twice: each fit")


def _run(arguments: argparse.Namespace) -> int:
    """Search, and print the order."""
    import castfit
    from castfit.cli import console as screen

    file = Path(arguments.file)
    common = collect_keywords(arguments, "seed", "workers", "max_time", "fit_max_time", "checkpoint", "resume")
    common |= {"verbose": min(arguments.verbose, 2) or None}
    options = {n: getattr(arguments, n) for n in _STATED if getattr(arguments, n) is not None}
    if file.suffix in _YAML:
        raise_if_mistakes("select", [f"--{n} is what '{file}' says; leave it out" for n in options])
        selection = castfit.petab.select(file, folder=arguments.folder, **common)
    else:
        raise_if_mistakes("select", ["--folder is for PEtab Select problems; leave it out"] if arguments.folder else [])
        problems, choices = _read_problems(file)
        selection = castfit.select(problems, choices=choices, **options, **common)
    screen.print_report(screen.make_console(stderr=arguments.json == "-"), selection.summary())
    write_json(_build_record(str(file), selection), arguments.json)
    if arguments.plot:
        selection.plot(arguments.plot)
    if arguments.save and selection.best is not None:
        selection.best.save(arguments.save)
    if arguments.html:
        selection.report(arguments.html)
    return 0 if selection.complete and selection.names else FAILED


def _read_problems(file: Path) -> tuple[Any, Any]:
    """Return the problems, or the problem and its choices, that a Python file defines."""
    definitions = run_script(file)
    if "candidates" in definitions:
        return definitions["candidates"], None
    missing = [n for n in ("problem", "choices") if n not in definitions]
    remedy = "define candidates = {name: problem}, or problem and choices = {parameter: [0, castfit.estimated]}"
    raise_if_mistakes("file", [f"'{file}' does not define {' and '.join(missing)}; {remedy}"] if missing else [])
    return definitions["problem"], definitions["choices"]


def _build_record(name: str, selection: Any) -> dict[str, Any]:
    """Return the record for ``--json``. Non-finite numbers become None."""
    return replace_nonfinite(
        {
            "problem": name,
            "message": selection.message,
            "complete": selection.complete,
            "criterion": selection.criterion,
            "method": selection.method,
            "candidates": {
                n: {"criterion": selection.criteria[n], "weight": w, "values": selection.fits[n].result.values}
                for n, w in selection.weights.items()
            },
            "failed": {n: row.message for n, row in selection.fits.items() if n not in selection.names},
            "importance": selection.importance,
            "path": list(selection.path),
            "time": selection.time,
        }
    )  # fmt: skip


COMMAND = Command(
    "select",
    "say which of several models the data ask for",
    _run,
    {"json": None, "plot": None, "save": None, "max_time": math.inf, "fit_max_time": math.inf, "seed": 0, "workers": 1},
    _configure,
    ("castfit select petab_select_problem.yaml --workers 2 --folder found",
     "castfit select models.py --criterion BIC --plot models.png"),
    problem=False,
)  # fmt: skip
