"""Results as PEtab's tables: parameters with their estimates, and what the model predicts for every measured row."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

from castfit._support.arguments import option_mistakes
from castfit._support.status import collect_mistakes, raise_if_mistakes, suggest
from castfit.formats.petab.likelihood import simulated
from castfit.formats.petab.loading import load_tables
from castfit.formats.petab.reading import read_overview
from castfit.problem.quantities import Quantity
from castfit.result.result import Result

_HEAD = ("parameterId", "parameterScale", "lowerBound", "upperBound", "nominalValue", "estimate")


def save_parameters(result: Result, file: str | Path, like: str | Path | None = None) -> None:
    """Write the estimates as a PEtab parameter table.

    Parameters
    ----------
    result : Result
    file : str or path
        The table to write, ``"parameters.tsv"``.
    like : str or path, optional
        The YAML file of the problem that was fitted: its parameter table is written with the estimates as nominal
        values, all other columns as they are.  Without it the table is one of version 1 with what the problem says.

    Raises
    ------
    InputError
        For what is no result, and for estimates that are not in the table of `like`.

    Examples
    --------
    >>> from pathlib import Path
    >>> import castfit as cf
    >>> result = cf.fit(cf.problems.load("bellman").problem)
    >>> cf.petab.save_parameters(result, "parameters.tsv")
    >>> Path("parameters.tsv").read_text().split()[:6]
    ['parameterId', 'parameterScale', 'lowerBound', 'upperBound', 'nominalValue', 'estimate']
    """
    right = isinstance(cast("Any", result), Result)
    mistakes = option_mistakes(("result", result, right, "give a Result"), _file(file))
    mistakes += [] if like is None else collect_mistakes(lambda: read_overview(like, "like"))
    if right and like is None and result.problem is None:
        mistakes.append("the result has no problem; give like=")
    raise_if_mistakes("petab.save_parameters", mistakes)
    values = result.values
    if like is None:
        assert result.problem is not None
        write_table(Path(file), _HEAD, [_row(q, values[q.name]) for q in result.problem.quantities])
        return
    head, rows = _original(like, "parameter")
    names = [row.get("parameterId", "") for row in rows]
    unknown = [n for n in values if n not in names]
    raise_if_mistakes(
        "petab.save_parameters", [f"'{n}' is not in the table of '{like}': {suggest(n, names)}" for n in unknown]
    )
    changed = [
        {**row, "nominalValue": repr(float(values[n]))} if n in values else row
        for n, row in zip(names, rows, strict=True)
    ]
    write_table(Path(file), head if "nominalValue" in head else (*head, "nominalValue"), changed)


def _file(file: Any) -> tuple[str, Any, bool, str]:
    return "file", file, isinstance(file, (str, PathLike)), "give the path of the table to write"


def _row(quantity: Quantity, value: float) -> dict[str, str]:
    scale = "log" if quantity.scale == "log" else "lin"
    numbers = {"lowerBound": quantity.lower, "upperBound": quantity.upper, "nominalValue": value}
    cells = {n: repr(float(v)) for n, v in numbers.items()}
    return {"parameterId": quantity.name, "parameterScale": scale, **cells, "estimate": "1"}


def save_simulations(
    file: str | Path, like: str | Path, parameters: Result | Mapping[str, float] | None = None
) -> None:
    """Write the model's prediction for each measurement of a problem, as a PEtab simulation table.

    Parameters
    ----------
    file : str or path
        The table to write: the measurements, in their order, with a column ``simulation`` for ``measurement``.
    like : str or path
        The YAML file of the problem.
    parameters : Result or mapping from str to float, optional
        Natural values; what is left out stands at its nominal value.

    Raises
    ------
    InputError
        For mistakes in the files, unknown names, or values outside their bounds.
    SimulationError
        If the model cannot be integrated there.

    Examples
    --------
    >>> import castfit as cf
    >>> try:
    ...     cf.petab.save_simulations("simulations.tsv", "problem.yaml")
    ... except cf.InputError as error:
    ...     print(error)
    petab.save_simulations: 1 mistake found
      - there is no file 'problem.yaml'
    """
    raise_if_mistakes(
        "petab.save_simulations",
        [*option_mistakes(_file(file)), *collect_mistakes(lambda: read_overview(like, "like"))],
    )
    loaded = load_tables(like)
    values = parameters.values if isinstance(parameters, Result) else parameters
    predicted = simulated(loaded, values)
    head, rows = _original(like, "measurement")
    columns = tuple("simulation" if c == "measurement" else c for c in head)
    pairs = zip(rows, predicted.tolist(), strict=True)
    write_table(Path(file), columns, [{**row, "simulation": repr(float(v))} for row, v in pairs])


def _original(problem_file: str | Path, kind: str) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """Return the columns of a problem's tables of one kind, and their rows as text."""
    overview = read_overview(problem_file)
    head: dict[str, None] = {}
    rows: list[dict[str, str]] = []
    for name in overview.files[kind]:
        reader = csv.DictReader((overview.folder / name).read_text(encoding="utf-8-sig").splitlines(), delimiter="\t")
        head |= dict.fromkeys(reader.fieldnames or ())
        rows += [{k: v or "" for k, v in row.items() if k} for row in reader if any(row.values())]
    return tuple(head), rows


def write_table(path: Path, head: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows below a head, cells separated by tabs."""
    out = io.StringIO()
    table = csv.DictWriter(out, list(head), delimiter="\t", lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    table.writerows(rows)
    path.write_text(out.getvalue(), encoding="utf-8")
