"""Reading files: SBML by libsbml, Antimony by its library; what these libraries complain about becomes a sentence."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from xml.parsers import expat

from castfit._support.arguments import text
from castfit._support.status import check
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
_MOST = 20  # complaints of libsbml that are shown
_DEEPEST = 300  # elements within each other; formulas are taken apart by a function that calls itself


def document(where: str, source: Any) -> Any:
    """Read SBML or Antimony, from a path or as text, and return libsbml's document, in Level 3.

    Raises InputError: for a missing file, text that is neither, and what libsbml calls errors.
    """
    libsbml = library("libsbml", "sbml.load")
    found = _read(where, source, libsbml)
    packages = [found.getPlugin(i).getPackageName() for i in range(found.getNumPlugins())]
    needed = [n for n in packages if n not in _UNDERSTOOD and found.getLevel() >= 3 and found.getPackageRequired(n)]
    check(where, [f"the model needs the SBML package '{name}', which castfit does not know" for name in needed])
    check(where, _complaints(found, libsbml))
    if found.getModel() is None:
        check(where, ["the file contains no model"])
    if "comp" in packages:
        _flatten(where, found, libsbml)
    level = found.getLevel()
    if level < 3 and not found.setLevelAndVersion(3, 1, False):
        check(where, _complaints(found, libsbml) or [f"Level {level} could not be converted to Level 3"])
    if level == 1 and any(rule.isAlgebraic() for rule in found.getModel().getListOfRules()):
        for parameter in found.getModel().getListOfParameters():
            parameter.setConstant(False)  # Level 1 does not tell which may vary
    _examine(where, found, libsbml)
    return found


def _read(where: str, source: Any, libsbml: Any) -> Any:
    """Read a source with libsbml."""
    given: Any = source
    if isinstance(given, str) and given.lstrip().startswith("<"):
        return _parsed(where, given, libsbml)
    if not isinstance(given, (str, os.PathLike)):
        check(where, [f"the model is {text(source)}; give the path of an SBML file, or its text"])
    if isinstance(given, str) and "\n" in given:
        check(where, ["the text is no SBML, which begins with '<'; for Antimony use sbml.load_antimony"])
    path = Path(cast("str", given))
    if not path.is_file():
        check(where, [f"there is no file '{path}'"])
    if path.suffix in (".ant", ".antimony"):
        return _parsed(where, from_antimony(where, path.read_text(encoding="utf-8")), libsbml)
    _not_too_deep(where, path.read_bytes())
    return libsbml.readSBMLFromFile(str(path.resolve()))  # submodels in other files are looked for beside it


def _parsed(where: str, given: str, libsbml: Any) -> Any:
    _not_too_deep(where, given.encode("utf-8"))
    return libsbml.readSBMLFromString(given)


def _not_too_deep(where: str, given: bytes) -> None:
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
        reader.Parse(given, True)
    remedy = "give parts of formulas names, by assignment rules"
    check(where, [f"elements are nested {deepest} deep, more than {_DEEPEST}; {remedy}"] if deepest > _DEEPEST else [])


def from_antimony(where: str, said: Any) -> str:
    """Translate Antimony's text to SBML.

    Raises InputError: with what its library says.
    """
    given: Any = said
    if not isinstance(given, str) or not given.strip():
        check(where, [f"the model is {text(said)}; give Antimony's text, such as 'S1 -> S2; k*S1; S1 = 10; k = 0.1'"])
    antimony = library("antimony", "sbml.load")
    antimony.clearPreviousLoads()
    if antimony.loadAntimonyString(given) < 0:
        check(where, [f"Antimony: {' '.join(str(antimony.getLastError()).split())}"])
    return str(antimony.getSBMLString(antimony.getMainModuleName()))


def _flatten(where: str, found: Any, libsbml: Any) -> None:
    """Flatten the submodels into the model."""
    _examine(where, found, libsbml)  # afterwards a replacement of what is not there would be forgotten
    check(where, _rates_of_another_time(found))
    properties = libsbml.ConversionProperties()
    properties.addOption("flatten comp", True)
    properties.addOption("performValidation", False)
    if found.convert(properties) != libsbml.LIBSBML_OPERATION_SUCCESS:
        check(where, _complaints(found, libsbml) or ["the model's submodels could not be put together"])


def _rates_of_another_time(found: Any) -> list[str]:
    """Refuse ``rateOf`` where a submodel's time is converted: libsbml leaves it a rate by the time of the whole."""
    definitions = {d.getId(): d for d in found.getPlugin("comp").getListOfModelDefinitions()}
    inside = {n: [s.getModelRef() for s in d.getPlugin("comp").getListOfSubmodels()] for n, d in definitions.items()}
    said: list[str] = []
    for model in (found.getModel(), *definitions.values()):
        for submodel in model.getPlugin("comp").getListOfSubmodels():
            reached, ahead = set[str](), [submodel.getModelRef()] if submodel.isSetTimeConversionFactor() else []
            while ahead:
                name = ahead.pop()
                if name in definitions and name not in reached:
                    reached.add(name)
                    ahead += inside[name]
            said += [
                f"submodel '{submodel.getId()}' has a time of its own, in which '{name}' takes rateOf; write the rate "
                "of change as a formula"
                for name in sorted(reached)
                if "symbols/rateOf" in definitions[name].toSBML()
            ]
    return said


def _examine(where: str, found: Any, libsbml: Any) -> None:
    """Check the document for violations of the specification with libsbml, except units and style."""
    for what in ("UNITS_CONSISTENCY", "MODELING_PRACTICE", "SBO_CONSISTENCY"):
        found.setConsistencyChecks(getattr(libsbml, f"LIBSBML_CAT_{what}"), False)
    found.getErrorLog().clearLog()
    found.checkConsistency()
    check(where, _complaints(found, libsbml))


def _complaints(found: Any, libsbml: Any) -> list[str]:
    """Return libsbml's errors, warnings aside."""
    errors = [found.getError(i) for i in range(found.getNumErrors())]
    errors = [e for e in errors if e.getSeverity() >= libsbml.LIBSBML_SEV_ERROR and e.getErrorId() not in _OF_UNITS]
    sentences = list(dict.fromkeys(f"line {e.getLine()}: {' '.join(e.getMessage().split())}" for e in errors))
    more = len(sentences) - _MOST
    return sentences[:_MOST] + ([f"and {more} more"] if more > 0 else [])
