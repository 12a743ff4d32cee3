"""`load`: a PEtab problem, version 1 or 2 of the format, as a castfit problem."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from castfit._reading import text
from castfit.petab import version_1
from castfit.petab.build import build
from castfit.petab.entities import read_entities
from castfit.petab.overview import read_overview
from castfit.status import check

if TYPE_CHECKING:
    from castfit.problem import Problem


def load(file: str | PathLike[str]) -> Problem:
    """Read a PEtab problem: model, data, conditions, noise, bounds, priors; nominal values are the guesses.

    Parameters
    ----------
    file : str or path
        The YAML file of the problem.

    Raises
    ------
    InputError
        Listing every mistake in the files with its file and line, and everything that cannot be expressed.
    """
    if not isinstance(file, (str, PathLike)):
        check("petab.load", [f"the file is {text(file)}; give the path of a problem's YAML file"])
    overview = read_overview(Path(file))
    check("petab.load", [f"{overview.file.name}: version 2 cannot be read yet"] if overview.version > 1 else [])
    mistakes: list[str] = []
    stated = version_1.read(overview, mistakes)
    return build(stated, read_entities(stated.model_file), mistakes)
