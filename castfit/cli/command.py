"""Shared parts of the commands: the command type, exit statuses, and reading and writing of named files."""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from castfit._support.status import raise_if_mistakes
from castfit._support.whole_files import write_atomically

FAILED, MISUSE, INTERRUPTED = 1, 2, 130

Progress = Callable[[str], object]  # called with a line about the current task
Argument = tuple[tuple[str, ...], Mapping[str, Any]]  # of a parser: its names and settings


def argument(*names: str, **settings: Any) -> Argument:
    """Return an argument of a command; see `argparse.ArgumentParser.add_argument`."""
    return names, settings


@dataclass(frozen=True)
class Command:
    """A subcommand: `run` takes the arguments and returns the exit status; the help ends with the examples.

    A command has the name of a problem as argument if `problem` is True, and then its own `arguments`.  The arguments
    of the `method` of a fit and some of `OPTIONS`, with their defaults, follow; None is no default.
    """

    name: str
    summary: str
    run: Callable[[argparse.Namespace], int]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arguments: tuple[Argument, ...] = ()
    examples: tuple[str, ...] = ()
    problem: bool = True
    method: tuple[Argument, ...] = ()
    usage: str | None = None

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add all arguments to a parser."""
        parser.usage = f"castfit {self.name} NAME|FILE.py|FILE.yaml [options]" if self.problem else self.usage
        group = parser.add_argument_group("method") if self.method else parser
        own_arguments = (*_PROBLEM, *self.arguments) if self.problem else self.arguments
        for target, arguments in ((parser, own_arguments), (group, self.method)):
            for names, settings in arguments:
                target.add_argument(*names, **settings)
        for name, default in self.options.items():
            reader, metavar, help_text = OPTIONS[name]
            default_text = "" if default is None else " (default: %(default)s)"
            parser.add_argument(
                format_option(name),
                dest=name,
                metavar=metavar,
                type=reader,
                default=default,
                help=help_text + default_text,
            )
            if name in _RENAMED:
                hidden = argparse.SUPPRESS
                parser.add_argument(_RENAMED[name], dest=name, type=reader, default=hidden, help=hidden)


def print_line(text: str, stream: TextIO) -> None:
    """Write a line."""
    stream.write(text + "\n")


def write_json(record: Any, file: str | None) -> None:
    """Write the record of ``--json``: to a file, to standard output for ``-``, and not at all for None."""
    if file is None:
        return
    text = json.dumps(record, indent=2, allow_nan=False)
    if file == "-":
        print_line(text, sys.stdout)
    else:
        write_atomically(file, [f"{text}\n".encode()])


def collect_keywords(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return options under the names that castfit's functions have for them."""
    return {"rng" if name == "seed" else name: getattr(arguments, name) for name in names}


def write_results(arguments: argparse.Namespace, record: Any, result: Any, *, has_plot: bool = True) -> None:
    """Write the files requested by ``--json``, ``--csv``, ``--plot``, ``--save`` and ``--petab``."""
    write_json(record, arguments.json)
    options = vars(arguments)
    if options.get("csv"):
        result.to_csv(Path(arguments.csv))
    if options.get("plot") and has_plot:
        result.plot(arguments.plot)
    if options.get("save"):
        result.save(arguments.save)
    if options.get("petab"):
        from castfit.formats import petab

        folder = Path(arguments.petab)
        folder.mkdir(parents=True, exist_ok=True)
        petab.save_parameters(result, folder / "parameters.tsv", like=arguments.name)
        petab.save_simulations(folder / "simulations.tsv", arguments.name, result)


def verbose_argument(subject: str) -> Argument:
    """Return -v, which may be given twice."""
    return argument("-v", "--verbose", action="count", default=0, help=f"report {subject}")


def format_option(name: str) -> str:
    """Return an option as it is written on the command line."""
    return "--rng" if name == "seed" else f"--{name.replace('_', '-')}"


def check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before a long fit rather than after it, and pictures without a format."""
    files = {name: file for name in ("json", "csv", "html", "save", "plot") if (file := getattr(arguments, name, None))}
    mistakes: list[str] = []
    for name, file in files.items():
        path = Path(file)
        if name == "json" and file == "-":
            continue
        if path.is_dir():
            mistakes.append(f"'{file}' is a directory; pass a file")
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            mistakes.append(f"'{file}' cannot be written; pass a file in an existing, writable directory")
        if name == "plot" and path.suffix.removeprefix(".").lower() not in _find_image_formats():
            mistakes.append(f"'{file}' has no image format; use .png, .svg or .pdf")
    folder = getattr(arguments, "petab", None)
    if folder and Path(folder).exists() and not Path(folder).is_dir():
        mistakes.append(f"'{folder}' is a file; give a folder for the tables")
    if folder and not getattr(arguments, "name", "").endswith(PETAB_FILES):
        mistakes.append("--petab needs a PEtab problem; pass its YAML file, or use --save")
    raise_if_mistakes("output", mistakes)


def _find_image_formats() -> Collection[str]:
    from matplotlib.backend_bases import FigureCanvasBase

    return FigureCanvasBase.get_supported_filetypes()


def split_assignments(pairs: Sequence[str], option_name: str) -> dict[str, str]:
    """Split key=value pairs."""
    parts_by_key = {key.strip(): (mark, text.strip()) for key, mark, text in (pair.partition("=") for pair in pairs)}
    empty = [key for key, (mark, text) in parts_by_key.items() if not (mark and text)]
    raise_if_mistakes(option_name, [f"'{key}' has no value; use {key}=value" for key in empty])
    return {key: text for key, (_, text) in parts_by_key.items()}


def split_commas(text: str) -> list[str]:
    """Split names at commas."""
    return [name.strip() for name in text.split(",")]


def parse_literal(text: str) -> Any:
    """Read a number, True, False or None; anything else is text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


PETAB_FILES = (".yaml", ".yml")

# The arguments that name a problem, for `castfit.cli.source.load`.
_PROBLEM = (
    argument(
        "name",
        metavar="NAME|FILE.py|FILE.yaml",
        help="library problem (see castfit list), Python file that defines `problem`, FILE.py:name, or PEtab YAML file",
    ),
    argument(
        "--option",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="problem options, such as mu=20",
    ),
)

# What commands may take: how it is read, what it is called in the help, and what it is for.
OPTIONS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "starts": (int, "N", "number of starts"),
    "seed": (int, "N", "random seed"),
    "workers": (int, "N", "processes"),
    "methods": (
        split_commas,
        "A,B",
        "transcription, transcription/solver, driver, driver/transcription, or the table's own",
    ),
    "max_time": (float, "S", "stop after S seconds; for a table: per start"),
    "fit_max_time": (float, "S", "seconds per fit"),
    "tolerance": (float, "T", "relative tolerance of the integrator"),
    "data": (str, "FILE", "use measurements of hiv_proteinase instead of simulated data"),
    "problems": (split_commas, "A,B", "fit only these library problems"),
    "against": (str, "FILE", "earlier --json output of the library, for ratios"),
    "folder": (str, "FOLDER", "directory of the problem collection, or of stored table rows"),
    "species": (int, "N", "number of species of a generated network"),
    "pypesto": (str, "PYTHON", "the Python in which pyPESTO and AMICI are installed, to run them beside castfit"),
    "pyomo": (str, "PYTHON", "the Python in which Pyomo is installed, with ipopt beside it, to run its design too"),
    "jax": (str, "PYTHON", "the Python in which JAX, diffrax and optimistix are installed, to run them beside castfit"),
    "rockit": (str, "PYTHON", "the Python in which rockit-meco is installed, to run it beside castfit"),
    "html": (str, "FILE", "write the table as an HTML page"),
    "json": (str, "FILE", "write the results as JSON; - for standard output"),
    "csv": (str, "FILE", "write the rows as a table"),
    "petab": (str, "FOLDER", "for a PEtab problem: write parameters.tsv and simulations.tsv"),
    "save": (str, "FILE", "save the result; castfit.Result.load reads it"),
    "plot": (str, "FILE", "write a figure; the extension sets the format"),
}

_RENAMED = {"fit_max_time": "--start-max-time", "seed": "--seed"}  # old names, which are accepted
