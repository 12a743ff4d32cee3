"""Readers common to both versions of the format: the YAML file, rows, identifiers, overrides, priors, bounds.

A row of text knows its file and line, so that every mistake can name its place.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite, isinf, isnan
from pathlib import Path
from typing import Any, TypeVar, cast

from castfit._support.arguments import read_sequence, shorten_repr
from castfit._support.status import raise_if_mistakes, suggest
from castfit.formats.optional import library
from castfit.formats.petab.parsing import FormulaError, is_name, names_in, number
from castfit.formats.petab.problem_tables import LIN, MeasurementRow, ObservableRow, ParameterRow, PriorEntry

_TABLES = ("parameter", "condition", "experiment", "measurement", "observable", "mapping")


@dataclass(frozen=True)
class PetabFileIndex:
    """Contents of a PEtab YAML file: format version, model file, and the files of each kind of table."""

    file: Path
    version: int
    model: Path
    files: Mapping[str, tuple[str, ...]]

    @property
    def folder(self) -> Path:
        """Folder of the YAML file, to which all file names are relative."""
        return self.file.parent


def read_overview(file: Any, name: str = "file") -> PetabFileIndex:
    """Read the YAML file of a problem.

    Raises InputError: listing its errors and missing entries.
    """
    if not isinstance(file, (str, Path)):
        raise_if_mistakes("petab.load", [f"{name} is {shorten_repr(file)}; give the path of a problem's YAML file"])
    yaml, path = library("yaml"), Path(file)
    exists = False
    with suppress(OSError):  # as of names that are too long
        exists = path.is_file()
    raise_if_mistakes("petab.load", [] if exists else [f"there is no file '{path}'"])
    document: dict[str, Any] = {}
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        document = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    except RecursionError:
        raise_if_mistakes(
            "petab.load", [f"{path.name} is nested too deeply to be read; that of a problem is a list of files"]
        )
    except (yaml.YAMLError, ValueError, AttributeError) as error:  # also of dates and numbers that are none
        raise_if_mistakes("petab.load", [f"{path.name} is no YAML: {str(error).splitlines()[0]}"])
    version = _version(document)
    if version is None:
        section = document.get("format_version")
        content = "has no format_version" if section is None else f"has the format_version {section!r}"
        raise_if_mistakes("petab.load", [f"{path.name} {content}; PEtab problems have the format_version 1 or 2.0.0"])
    assert version is not None
    mistakes: list[str] = []
    section = _of_problem(document, path.name, mistakes) if version == 1 else document
    _unsupported(document, path.name, mistakes)
    files = {kind: _names(section, document, kind) for kind in _TABLES}
    missing = [k for k in ("parameter", "measurement", "observable") if not files[k]]
    if version == 1 and not files["condition"]:
        missing.append("condition")
    mistakes += [f"{path.name}: no {kind} table is named ({kind}_files)" for kind in missing]
    model = _model(section, version, path, mistakes)
    raise_if_mistakes("petab.load", mistakes)
    return PetabFileIndex(path, version, model, files)


def _version(document: Mapping[str, Any]) -> int | None:
    """Return the version of the tables: drafts of version 2 list problems, whose tables have the form of version 1."""
    major = str(document.get("format_version", "")).split(".")[0]
    if major == "2" and "problems" in document:
        return 1
    return int(major) if major in ("1", "2") else None


def _of_problem(document: Mapping[str, Any], name: str, mistakes: list[str]) -> Mapping[str, Any]:
    listed: Any = document.get("problems")
    problems: list[dict[str, Any]] = [p for p in read_sequence(listed) or [] if isinstance(p, dict)]
    if not problems:
        mistakes.append(f"{name}: 'problems' must list the files of a problem")
        return {}
    if len(problems) > 1:
        mistakes.append(
            f"{name}: it has {len(problems)} problems with models of their own; give each a file of its own"
        )
    return problems[0]


def _unsupported(document: Mapping[str, Any], name: str, mistakes: list[str]) -> None:
    entry: Any = document.get("extensions") or {}
    listed = list(cast("dict[Any, Any]", entry)) if isinstance(entry, dict) else read_sequence(entry)
    extensions: list[Any] = [entry] if listed is None else listed
    mistakes += [f"{name}: the extension '{e}' is not supported" for e in extensions]


def _names(section: Mapping[str, Any], document: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    entry: Any = section.get(f"{kind}_files") or document.get(f"{kind}_files") or document.get(f"{kind}_file") or ()
    listed = read_sequence(entry)
    return tuple(str(f) for f in ([entry] if listed is None else listed))


def _model(section: Mapping[str, Any], version: int, path: Path, mistakes: list[str]) -> Path:
    entry: Any = section.get("model_files")
    if entry is None and version == 1:
        listed: Any = section.get("sbml_files") or ()
        models = [(str(file), "sbml") for file in (read_sequence(listed) or [listed] if listed else ())]
    else:
        model_entries: list[Any] = list(cast("dict[str, Any]", entry).values()) if isinstance(entry, dict) else []
        entries = [cast("dict[str, Any]", e) for e in model_entries if isinstance(e, dict)]
        models = [(str(e.get("location", "")), str(e.get("language", ""))) for e in entries]
    if len(models) != 1:
        said_so = "no model is" if not models else f"{len(models)} models are"
        mistakes.append(f"{path.name}: {said_so} named; problems with one SBML model can be read")
        return path
    location, language = models[0]
    if language.lower() != "sbml":
        mistakes.append(f"{path.name}: the model '{location}' is in the language '{language}'; only SBML can be read")
    elif not (path.parent / location).is_file():
        mistakes.append(f"{location}: there is no such file of a model in {path.parent}")
    return path.parent / location


_T = TypeVar("_T")


# What stands for nothing in a table, in small letters; as pandas reads them.
_EMPTY = frozenset({"", "nan", "na", "n/a", "null", "none", "#n/a", "<na>"})
_MIN_NAME_SIMILARITY = 0.85  # share of common letters from which a column name counts as misspelt


@dataclass(frozen=True)
class TsvRow:
    """One line of a table: its cells by column, without those that are empty; `nan` are columns that say NaN."""

    file: str
    line: int
    cells: Mapping[str, str]
    nan: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """File and line, as messages begin."""
        return f"{self.file}, line {self.line}"

    def text(self, column: str, default: str = "") -> str:
        """Return a cell, or something else where it is empty."""
        return self.cells.get(column, default)

    def number(self, column: str, mistakes: list[str], default: float | None = None) -> float:
        """Return a cell as a number; NaN, and a mistake, where it is none."""
        cell = self.cells.get(column)
        if cell is None and default is not None:
            return default
        try:
            return float(cell or "")
        except ValueError:
            description = f"is '{cell}'" if cell is not None else "is NaN" if column in self.nan else "is empty"
            mistakes.append(f"{self.where}: {column} {description}; give a number")
            return float("nan")


def read_rows(overview: PetabFileIndex, mistakes: list[str], kind: str, *needed: str) -> tuple[TsvRow, ...]:
    """Read the tables of one kind, one after the other; `needed` are names of columns that must be there.

    Missing files, missing columns and lines that are too long are added to the mistakes.
    """
    out: list[TsvRow] = []
    for name in overview.files[kind]:
        path = overview.folder / name
        if not path.is_file():
            mistakes.append(f"{name}: there is no such file of the {kind} table in {overview.folder}")
            continue
        out += _read(path, name, needed, mistakes)
    return tuple(out)


def _read(path: Path, name: str, needed: tuple[str, ...], mistakes: list[str]) -> list[TsvRow]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        mistakes.append(f"{name}: it is no text in UTF-8 ({error}); save it so")
        return []
    if "\0" in text:
        mistakes.append(f"{name}: it holds bytes that are zero, as damaged files do; write it again")
        return []
    reader = csv.reader(text.splitlines(), delimiter="\t")
    header = [cell.strip() for cell in next(reader, list[str]())]
    separator = next((c for c in ",;" if len(header) == 1 and header[0].count(c) >= len(needed) - 1 > 0), None)
    if separator is not None:
        mistakes.append(f"{name}: its columns are separated by '{separator}'; a table of PEtab has tabs between them")
        return []
    missing = [column for column in needed if column not in header]
    mistakes += [f"{name}: column '{c}' is missing; {suggest(c, [h for h in header if h])}" for c in missing]
    mistakes += [f"{name}: column '{c}' is there twice" for c in dict.fromkeys(header) if c and header.count(c) > 1]
    if missing:
        return []
    rows: list[TsvRow] = []
    for cells in reader:
        stripped = [cell.strip() for cell in cells]
        if not any(stripped):
            continue
        if len(stripped) > len(header) and any(stripped[len(header) :]):
            mistakes.append(
                f"{name}, line {reader.line_num}: it has {len(stripped)} cells, but the table has {len(header)} columns"
            )
        column_cells = [(c, v) for c, v in zip(header, stripped, strict=False) if c]
        filled_cells = {c: v for c, v in column_cells if v.lower() not in _EMPTY}
        nan = frozenset(c for c, v in column_cells if c not in filled_cells and v.lower() == "nan")
        rows.append(TsvRow(name, reader.line_num, filled_cells, nan))
    return rows


def misspelled_columns(rows: Iterable[TsvRow], columns: Collection[str]) -> tuple[str, ...]:
    """Return a warning for each ignored column whose name resembles a missing PEtab column."""
    first_files: dict[str, str] = {}
    for row in rows:
        for column in row.cells:
            first_files.setdefault(column, row.file)
    absent = {c.casefold(): c for c in columns if c not in first_files}
    matches = {
        c: similar
        for c in first_files
        if c not in columns
        and (similar := difflib.get_close_matches(c.casefold(), absent, n=1, cutoff=_MIN_NAME_SIMILARITY))
    }
    return tuple(
        f"{first_files[c]}: the column '{c}' is not PEtab's and is passed over; did you mean '{absent[similar[0]]}'?"
        for c, similar in matches.items()
    )


def refuse_other_version_columns(rows: Iterable[TsvRow], columns: Mapping[str, str], mistakes: list[str]) -> None:
    """Refuse columns of the format's other version, which would be passed over in silence; the first row of each."""
    reported: set[str] = set()
    for row in rows:
        for column, remedy in columns.items():
            if row.text(column) and column not in reported:
                reported.add(column)
                mistakes.append(f"{row.where}: {column} is not in this version of the format; {remedy}")


def map_names(rows: Iterable[TsvRow]) -> dict[str, str]:
    """Return the model's names by PEtab's names."""
    return {row.text("petabEntityId"): row.text("modelEntityId") for row in rows if row.text("modelEntityId")}


def by_name(rows: Iterable[TsvRow], column: str, mistakes: list[str]) -> dict[str, TsvRow]:
    """Return rows by their identifier; those without one, with a wrong one, or one given before are mistakes."""
    out: dict[str, TsvRow] = {}
    for row in rows:
        name = row.text(column)
        if not is_name(name):
            description = "is empty" if not name else f"is '{name}', which is no identifier (letters, digits and _)"
            mistakes.append(f"{row.where}: {column} {description}")
        elif name in out:
            mistakes.append(f"{row.where}: {column} '{name}' is there twice, first in {out[name].where}")
        else:
            out[name] = row
    return out


def choice(row: TsvRow, column: str, choices: Mapping[str, _T], default: str, mistakes: list[str]) -> _T:
    """Return the value that a cell's word stands for; `default` is the word for an empty cell, and may be invalid."""
    cell = row.text(column, default)
    if cell not in choices:
        description = f"'{cell}'" if cell else "empty"
        mistakes.append(f"{row.where}: {column} is {description}; choose {', '.join(dict.fromkeys(choices))}")
        return next(iter(choices.values()))
    return choices[cell]


def overrides(row: TsvRow, column: str, mistakes: list[str]) -> tuple[str, ...]:
    """Return the names and numbers that replace the placeholders."""
    cell = row.text(column)
    if not cell:
        return ()
    values = tuple(part.strip() for part in cell.split(";"))
    mistakes += [
        f"{row.where}: {column} holds '{part}', which is neither a number nor an identifier"
        for part in values
        if number(part) is None and not is_name(part)
    ]
    return values


def measurement(row: TsvRow, experiment: str, mistakes: list[str]) -> MeasurementRow:
    """Return a row of the measurements table."""
    value, time = row.number("measurement", mistakes), row.number("time", mistakes)
    if row.text("measurement") and not isfinite(value) and not isnan(value):
        mistakes.append(f"{row.where}: measurement is {value}; give a finite number")
    if time == -inf:
        mistakes.append(f"{row.where}: time is -inf; give a time, or inf for the steady state")
    return MeasurementRow(
        row.where,
        row.text("observableId"),
        experiment,
        value,
        time,
        overrides(row, "observableParameters", mistakes),
        overrides(row, "noiseParameters", mistakes),
    )


def parameter(
    row: TsvRow, name: str, scale: str, estimated: bool, prior: PriorEntry | None, mistakes: list[str]
) -> ParameterRow:
    """Return a row of the parameter table, its bounds and nominal value checked."""
    lower = row.number("lowerBound", mistakes, -inf)
    upper = row.number("upperBound", mistakes, inf)
    nominal = row.number("nominalValue", mistakes) if row.text("nominalValue") else None
    where = f"{row.where}: '{name}'"
    if estimated:
        absent = [c for c in ("lowerBound", "upperBound") if not row.text(c)]
        mistakes += [f"{where} is estimated, but has no {column}; give one" for column in absent]
        if not absent and not lower <= upper:
            mistakes.append(f"{where} has the bounds {lower:g} and {upper:g}; give lowerBound <= upperBound")
        elif not absent and (lower == inf or upper == -inf):
            mistakes.append(f"{where} has the bounds {lower:g} and {upper:g}, between which there is no number")
        elif scale != LIN and row.text("lowerBound") and not lower > 0:
            mistakes.append(f"{where} has the lowerBound {lower:g}; on the scale {scale} it must be positive")
    elif nominal is None:
        mistakes.append(f"{where} is not estimated and has no nominalValue; give one")
    if nominal is not None and isinf(nominal):
        mistakes.append(f"{where} has the nominalValue {nominal:g}; give a finite number")
    return ParameterRow(row.where, name, scale, lower, upper, nominal, estimated, prior, row.text("parameterName"))


def prior(row: TsvRow, kind: str, column: str, allowed: Mapping[str, int], mistakes: list[str]) -> PriorEntry | None:
    """Return a prior of a kind that takes so many numbers, which stand in a column."""
    if kind not in allowed:
        mistakes.append(f"{row.where}: the prior '{kind}' is unknown: {suggest(kind, allowed)}")
        return None
    cell = row.text(column)
    numbers = [number(part.strip()) for part in cell.split(";")] if cell else []
    n_numbers = allowed[kind]
    if len(numbers) != n_numbers or any(v is None or not isfinite(v) for v in numbers):
        description = f"'{cell}'" if cell else "empty"
        mistakes.append(
            f"{row.where}: {column} is {description}; "
            f"the prior '{kind}' takes {n_numbers} number{'s' if n_numbers > 1 else ''}"
        )
        return None
    return PriorEntry(kind, tuple(v for v in numbers if v is not None))


def observable(
    row: TsvRow,
    name: str,
    axis: str,
    distribution: str,
    placeholders: Callable[[str, frozenset[str]], tuple[tuple[str, ...], tuple[str, ...]]],
    mistakes: list[str],
) -> ObservableRow:
    """Return a row of the observables table.

    `placeholders` finds the placeholders of observation and of noise, in order, given the observable and all names
    in its formulas.
    """
    formula_names: set[str] = set()
    for column in ("observableFormula", "noiseFormula"):
        formula = row.text(column)
        if not formula:
            mistakes.append(f"{row.where}: {column} of '{name}' is empty")
            continue
        try:
            formula_names |= names_in(formula)
        except FormulaError as error:
            mistakes.append(f"{row.where}: {column} of '{name}': {error}")
    of_value, of_noise = placeholders(name, frozenset(formula_names))
    return ObservableRow(
        row.where,
        name,
        row.text("observableFormula"),
        row.text("noiseFormula"),
        axis,
        distribution,
        of_value,
        of_noise,
        row.text("observableName"),
    )
