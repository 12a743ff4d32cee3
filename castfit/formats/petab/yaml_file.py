"""The YAML file of a PEtab problem: which version, which files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from castfit._support.arguments import read_sequence, shorten_repr
from castfit._support.status import raise_if_mistakes
from castfit.formats.optional import library

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
