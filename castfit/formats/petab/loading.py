"""`load`: a PEtab problem, version 1 or 2 of the format, as a castfit problem."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from castfit._support.arguments import text
from castfit.formats.petab import version_1, version_2
from castfit.formats.petab.build import build
from castfit.formats.petab.entities import read_entities
from castfit.formats.petab.overview import read_overview
from castfit._support.status import check

if TYPE_CHECKING:
    from castfit.formats.petab.observing import Observing
    from castfit.formats.petab.stated import Stated
    from castfit.problem.problem import Problem


@dataclass(frozen=True)
class Loaded:
    """A problem with the tables that it was made from, and which of its outputs each row measures."""

    stated: Stated
    observing: Observing
    problem: Problem


def load(file: str | Path) -> Problem:
    r"""Read a PEtab problem: model, data, conditions, noise, bounds, priors; nominal values are the guesses.

    Parameters
    ----------
    file : str or path
        The YAML file of the problem.

    Raises
    ------
    InputError
        Listing every mistake in the files with its file and line, and everything that cannot be expressed.

    Examples
    --------
    >>> from pathlib import Path
    >>> import castfit as cf
    >>> def table(name, *rows):
    ...     _ = Path(name).write_text("\n".join("\t".join(row.split()) for row in rows))
    >>> _ = Path("model.xml").write_text(cf.sbml.load_antimony("A -> ; k * A; A = 2; k = 0.3").sbml)
    >>> table(
    ...     "parameters.tsv",
    ...     "parameterId parameterScale lowerBound upperBound nominalValue estimate",
    ...     "k           log10          1e-3       1e3        0.4          1",
    ... )
    >>> table("observables.tsv", "observableId observableFormula noiseFormula", "y A 0.1")
    >>> table("conditions.tsv", "conditionId", "c")
    >>> table("data.tsv", "observableId simulationConditionId measurement time", "y c 1.3 1", "y c 0.5 4")
    >>> _ = Path("problem.yaml").write_text(
    ...     "format_version: 1\nparameter_file: parameters.tsv\nproblems:\n"
    ...     "- {sbml_files: [model.xml], observable_files: [observables.tsv], condition_files: [conditions.tsv], "
    ...     "measurement_files: [data.tsv]}"
    ... )
    >>> problem = cf.petab.load("problem.yaml")
    >>> problem
    Problem(1 experiment, 2 values of y; estimates k)
    >>> round(cf.petab.negative_log_likelihood(problem), 4)
    -2.2219
    """
    return load_tables(file).problem


def load_tables(file: Any) -> Loaded:
    """Read a problem, and keep what its tables say."""
    given: Any = file
    if not isinstance(given, (str, Path)):
        check("petab.load", [f"the file is {text(given)}; give the path of a problem's YAML file"])
    overview = read_overview(Path(given))
    mistakes: list[str] = []
    stated = (version_1 if overview.version == 1 else version_2).read(overview, mistakes)
    observing, problem = build(stated, read_entities(stated.model_file, mistakes), mistakes)
    return Loaded(stated, observing, problem)
