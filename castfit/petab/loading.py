"""`load`: a PEtab problem, version 1 or 2 of the format, as a castfit problem."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from castfit._reading import text
from castfit.petab import version_1, version_2
from castfit.petab.build import build
from castfit.petab.entities import read_entities
from castfit.petab.overview import read_overview
from castfit.status import check

if TYPE_CHECKING:
    from castfit.petab.observing import Observing
    from castfit.petab.stated import Stated
    from castfit.problem import Problem


@dataclass(frozen=True)
class Loaded:
    """A problem with the tables that it was made from, and which of its outputs each row measures."""

    stated: Stated
    observing: Observing
    problem: Problem


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
    return load_tables(file).problem


def load_tables(file: Any) -> Loaded:
    """Read a problem, and keep what its tables say."""
    if not isinstance(file, (str, PathLike)):
        check("petab.load", [f"the file is {text(file)}; give the path of a problem's YAML file"])
    overview = read_overview(Path(file))
    mistakes: list[str] = []
    stated = (version_1 if overview.version == 1 else version_2).read(overview, mistakes)
    observing, problem = build(stated, read_entities(stated.model_file, mistakes), mistakes)
    return Loaded(stated, observing, problem)
