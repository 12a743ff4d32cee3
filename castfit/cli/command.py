"""What commands share: what a command is, exit statuses, and reading and writing what the user named."""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from castfit.status import InputError, check

if TYPE_CHECKING:
    from castfit.problems import Benchmark

FAILED, MISUSE, INTERRUPTED = 1, 2, 130

Progress = Callable[[str], object]  # told what is being done


@dataclass(frozen=True)
class Command:
    """A subcommand: `configure` adds its arguments to a parser, `run` takes them and returns the exit status."""

    name: str
    summary: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def say(text: str, stream: TextIO) -> None:
    """Write a line."""
    stream.write(text + "\n")


def write_json(record: Any, file: str | None) -> None:
    """Write what --json asked for: to a file, to standard output for -, nowhere for None."""
    if file is None:
        return
    text = json.dumps(record, indent=2, allow_nan=False)
    if file == "-":
        say(text, sys.stdout)
    else:
        Path(file).write_text(text + "\n")


def add_problem(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a problem, for `load`."""
    parser.add_argument("name", metavar="NAME", help="problem of the library; see castfit list")
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="options of the problem, such as mu=20",
    )


def load(name: str, options: Sequence[str]) -> Benchmark:
    """Load a benchmark with its options given as key=value."""
    from castfit import problems

    given = assignments(options, "--option")
    try:
        return problems.load(name, **{key: literal(text) for key, text in given.items()})
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError) or not given:
            raise
        raise InputError("--option", [f"problem '{name}' does not take {', '.join(options)}: {error}"]) from error


def file_mistakes(*files: str | None) -> list[str]:
    """Find files that cannot be written, before a long fit rather than after it."""
    mistakes: list[str] = []
    for file in files:
        if file is None or file == "-":
            continue
        path = Path(file)
        if path.is_dir():
            mistakes.append(f"'{file}' is a folder; give a file")
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            mistakes.append(f"'{file}' cannot be written; give a file in a folder that exists and is yours")
    return mistakes


def picture_mistakes(file: str | None) -> list[str]:
    """Find a picture that cannot be written, or whose ending names no format."""
    from matplotlib.backend_bases import FigureCanvasBase

    if file is None:
        return []
    known = FigureCanvasBase.get_supported_filetypes()
    ending = Path(file).suffix.removeprefix(".").lower()
    wrong = [f"'{file}' has no ending that is a format of pictures; choose .png, .svg or .pdf"]
    return file_mistakes(file) + (wrong if ending not in known else [])


def assignments(pairs: Sequence[str], where: str) -> dict[str, str]:
    """Split key=value pairs."""
    split = {key.strip(): (mark, text.strip()) for key, mark, text in (pair.partition("=") for pair in pairs)}
    empty = [key for key, (mark, text) in split.items() if not (mark and text)]
    check(where, [f"'{key}' has no value; write {key}=value" for key in empty])
    return {key: text for key, (_, text) in split.items()}


def listed(text: str) -> list[str]:
    """Split names at commas."""
    return [name.strip() for name in text.split(",")]


def literal(text: str) -> Any:
    """Read a number, True, False or None; anything else is text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
