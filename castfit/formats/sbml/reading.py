"""Reading files: SBML by libsbml, Antimony by its library; what these libraries complain about becomes a sentence."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from xml.parsers import expat

from castfit._support.arguments import shorten_repr
from castfit._support.status import raise_if_mistakes
from castfit.formats.optional import library

_UNDERSTOOD = (  # submodels, which are flattened, what Level 3 Version 2 knows by itself, and pictures
    "comp",
    "l3v2extendedmath",
    "layout",
    "render",
    "groups",
)
_OF_UNITS = frozenset(  # libsbml's numbers for what units are called and made of, which change no number
    (10302, 10311, 10313, *range(20216, 20222), *range(20401, 20440), 20511, 20608, 20701, 20702, 20706, 96007)
)
_MAX_LISTED_ERRORS = 20  # largest number of errors of libsbml that a message lists
_MAX_NESTING_DEPTH = 300  # largest depth of nested elements: formulas are read by a recursive function


def document(where: str, source: Any) -> Any:
    """Read SBML or Antimony, from a path or as text, and return libsbml's document, in Level 3.

    Raises InputError: for a missing file, text that is neither, and what libsbml calls errors.
    """
    libsbml = library("libsbml", "sbml.load")
    sbml_document = _read(where, source, libsbml)
    packages = [sbml_document.getPlugin(i).getPackageName() for i in range(sbml_document.getNumPlugins())]
    needed = [
        n
        for n in packages
        if n not in _UNDERSTOOD and sbml_document.getLevel() >= 3 and sbml_document.getPackageRequired(n)
    ]
    raise_if_mistakes(
        where, [f"the model needs the SBML package '{name}', which castfit does not know" for name in needed]
    )
    raise_if_mistakes(where, _complaints(sbml_document, libsbml))
    if sbml_document.getModel() is None:
        raise_if_mistakes(where, ["the file contains no model"])
    if "comp" in packages:
        _flatten(where, sbml_document, libsbml)
    level = sbml_document.getLevel()
    if level < 3 and not sbml_document.setLevelAndVersion(3, 1, False):
        raise_if_mistakes(
            where, _complaints(sbml_document, libsbml) or [f"Level {level} could not be converted to Level 3"]
        )
    if level == 1 and any(rule.isAlgebraic() for rule in sbml_document.getModel().getListOfRules()):
        for parameter in sbml_document.getModel().getListOfParameters():
            parameter.setConstant(False)  # Level 1 does not tell which may vary
    _examine(where, sbml_document, libsbml)
    return sbml_document


def _read(where: str, source: Any, libsbml: Any) -> Any:
    """Read a source with libsbml."""
    model_source: Any = source
    if isinstance(model_source, str) and model_source.lstrip().startswith("<"):
        return _parsed(where, model_source, libsbml)
    if not isinstance(model_source, (str, os.PathLike)):
        raise_if_mistakes(where, [f"the model is {shorten_repr(source)}; give the path of an SBML file, or its text"])
    if isinstance(model_source, str) and "\n" in model_source:
        raise_if_mistakes(where, ["the text is no SBML, which begins with '<'; for Antimony use sbml.load_antimony"])
    path = Path(cast("str", model_source))
    if not path.is_file():
        raise_if_mistakes(where, [f"there is no file '{path}'"])
    if path.suffix in (".ant", ".antimony"):
        return _parsed(where, from_antimony(where, path.read_text(encoding="utf-8")), libsbml)
    _not_too_deep(where, path.read_bytes())
    return libsbml.readSBMLFromFile(str(path.resolve()))  # submodels in other files are looked for beside it


def _parsed(where: str, content: str, libsbml: Any) -> Any:
    _not_too_deep(where, content.encode("utf-8"))
    return libsbml.readSBMLFromString(content)


def _not_too_deep(where: str, content: bytes) -> None:
    """Count how deep elements are nested, before libsbml reads them: ten thousand end the process in it."""
    depth = deepest = 0

    def begin(*_: Any) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    reader = expat.ParserCreate()
    reader.StartElementHandler, reader.EndElementHandler = begin, end
    with suppress(expat.ExpatError):  # libsbml says it in its own words
        reader.Parse(content, True)
    remedy = "give parts of formulas names, by assignment rules"
    raise_if_mistakes(
        where,
        [f"elements are nested {deepest} deep, more than {_MAX_NESTING_DEPTH}; {remedy}"]
        if deepest > _MAX_NESTING_DEPTH
        else [],
    )


def from_antimony(where: str, source: Any) -> str:
    """Translate Antimony's text to SBML.

    Raises InputError: with what its library says.
    """
    model_text: Any = source
    if not isinstance(model_text, str) or not model_text.strip():
        raise_if_mistakes(
            where,
            [f"the model is {shorten_repr(source)}; give Antimony's text, such as 'S1 -> S2; k*S1; S1 = 10; k = 0.1'"],
        )
    antimony = library("antimony", "sbml.load")
    antimony.clearPreviousLoads()
    if antimony.loadAntimonyString(model_text) < 0:
        raise_if_mistakes(where, [f"Antimony: {' '.join(str(antimony.getLastError()).split())}"])
    return str(antimony.getSBMLString(antimony.getMainModuleName()))


def _flatten(where: str, sbml_document: Any, libsbml: Any) -> None:
    """Flatten the submodels into the model."""
    _examine(where, sbml_document, libsbml)  # later, a replacement of a missing element would not be found
    raise_if_mistakes(where, _rates_of_another_time(sbml_document))
    properties = libsbml.ConversionProperties()
    properties.addOption("flatten comp", True)
    properties.addOption("performValidation", False)
    if sbml_document.convert(properties) != libsbml.LIBSBML_OPERATION_SUCCESS:
        raise_if_mistakes(
            where, _complaints(sbml_document, libsbml) or ["the model's submodels could not be put together"]
        )


def _rates_of_another_time(sbml_document: Any) -> list[str]:
    """Refuse ``rateOf`` where a submodel's time is converted: libsbml leaves it a rate by the time of the whole."""
    definitions = {d.getId(): d for d in sbml_document.getPlugin("comp").getListOfModelDefinitions()}
    submodel_names = {
        n: [s.getModelRef() for s in d.getPlugin("comp").getListOfSubmodels()] for n, d in definitions.items()
    }
    messages: list[str] = []
    for model in (sbml_document.getModel(), *definitions.values()):
        for submodel in model.getPlugin("comp").getListOfSubmodels():
            visited, pending = set[str](), [submodel.getModelRef()] if submodel.isSetTimeConversionFactor() else []
            while pending:
                name = pending.pop()
                if name in definitions and name not in visited:
                    visited.add(name)
                    pending += submodel_names[name]
            messages += [
                f"submodel '{submodel.getId()}' has a time of its own, in which '{name}' takes rateOf; write the rate "
                "of change as a formula"
                for name in sorted(visited)
                if "symbols/rateOf" in definitions[name].toSBML()
            ]
    return messages


def _examine(where: str, sbml_document: Any, libsbml: Any) -> None:
    """Check the document for violations of the specification with libsbml, except units and style."""
    for category in ("UNITS_CONSISTENCY", "MODELING_PRACTICE", "SBO_CONSISTENCY"):
        sbml_document.setConsistencyChecks(getattr(libsbml, f"LIBSBML_CAT_{category}"), False)
    sbml_document.getErrorLog().clearLog()
    sbml_document.checkConsistency()
    raise_if_mistakes(where, _complaints(sbml_document, libsbml))


def _complaints(sbml_document: Any, libsbml: Any) -> list[str]:
    """Return libsbml's errors, warnings aside."""
    errors = [sbml_document.getError(i) for i in range(sbml_document.getNumErrors())]
    errors = [e for e in errors if e.getSeverity() >= libsbml.LIBSBML_SEV_ERROR and e.getErrorId() not in _OF_UNITS]
    sentences = list(dict.fromkeys(f"line {e.getLine()}: {' '.join(e.getMessage().split())}" for e in errors))
    n_omitted = len(sentences) - _MAX_LISTED_ERRORS
    return sentences[:_MAX_LISTED_ERRORS] + ([f"and {n_omitted} more"] if n_omitted > 0 else [])
