"""Experiments from a table in long form: one measured value a row."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from castfit._support.arguments import (
    describe_non_numbers,
    option_mistakes,
    read_mapping,
    read_reals,
    reads_as_number,
    shorten_repr,
)
from castfit._support.status import InputError, raise_if_mistakes, suggest
from castfit.experiment.experiment import Experiment
from castfit.experiment.measurements import is_frame

_EVENT_COLUMNS = ("EVID", "AMT")  # names in NONMEM tables; rows in which they are not 0 are doses
_BY_NAME = ("initial", "parameters", "inputs")  # options in which the name of a column means its value


def experiments_from(
    table: Any,
    *,
    value: str,
    output: str,
    time: str,
    experiment: str | None = None,
    sigma: Any = None,
    each: Callable[[str], Mapping[str, Any]] | None = None,
    **options: Any,
) -> list[Experiment]:
    """Make experiments of a table in long form, with one measured value in each row.

    Parameters
    ----------
    table : pandas.DataFrame, or path of a CSV file
        Rows whose value is missing are left out.
    value, output, time : str
        The columns with the measured value, with the name of what was measured (a state or an output of the model), and
        with its time.  Rows may come in any order; equal rows but for the value are replicates.
    experiment : str, optional
        The column that tells experiments apart; their names are its entries.  Without it all is one experiment.
    sigma : str or as in `Experiment`, optional
        The column with the standard deviation of each value, or what `Experiment` takes for all.
    each : callable, optional
        ``each(name)`` returns the options of `Experiment` that are particular to one experiment, such as ``{"events":
        [...]}``.
    **options
        Options of `Experiment` for all of them.  In `initial`, `parameters` and `inputs` the name of a column means its
        value, which must be the same in all rows of an experiment: ``initial={"gut": "dose"}``.

    Returns
    -------
    list of Experiment
        In the order in which they first appear.

    Raises
    ------
    InputError
        Listing every mistake: columns that are not there, values that differ within an experiment, and those that
        `Experiment` finds.

    Examples
    --------
    >>> import castfit as cf
    >>> import pandas as pd
    >>> table = pd.DataFrame(
    ...     {
    ...         "patient": ["A", "A", "B", "B"],
    ...         "hour": [1, 4, 1, 4],
    ...         "what": ["blood"] * 4,
    ...         "mg/L": [3.1, 1.2, 6.4, 2.2],
    ...         "dose": [50, 50, 100, 100],
    ...     }
    ... )
    >>> cf.experiments_from(
    ...     table, value="mg/L", output="what", time="hour", experiment="patient", initial={"gut": "dose"}
    ... )
    [Experiment('A': 2 values of blood, times 1 to 4), Experiment('B': 2 values of blood, times 1 to 4)]
    """
    is_valid_each = each is None or callable(each)
    columns = {"value": value, "output": output, "time": time}
    columns |= {} if experiment is None else {"experiment": experiment}
    option_rules = [
        (role, c, isinstance(cast("Any", c), str), "give the name of a column") for role, c in columns.items()
    ]
    option_rules += [("each", each, is_valid_each, "give a function of an experiment's name")]
    raise_if_mistakes("experiments_from", option_mistakes(*option_rules))
    frame = _read(table, [c for role, c in columns.items() if role in ("output", "experiment")])
    columns |= {"sigma": sigma} if isinstance(sigma, str) else {}
    column_names = [str(c) for c in frame.columns]
    frame = frame.set_axis(column_names, axis=1)
    mistakes = [
        f"{role}='{c}' is no column of the table: {suggest(c, column_names)}"
        for role, c in columns.items()
        if c not in column_names
    ]
    mistakes += [
        f"{role} and {other} are both column '{c}'; pass different columns"
        for other, role in (("output", "value"), ("time", "value"), ("sigma", "value"), ("time", "output"),
                            ("value", "experiment"), ("time", "experiment"))
        if role in columns and (c := columns[role]) == columns.get(other)
    ]  # fmt: skip
    repeated_names = [c for c in dict.fromkeys(column_names) if column_names.count(c) > 1]
    mistakes += [f"the table has several columns '{c}'; rename them, or leave all but one out" for c in repeated_names]
    raise_if_mistakes("experiments_from", mistakes)
    mistakes += _event_mistakes(frame, {*columns.values(), *_mapped_columns(options)})
    frame = frame[frame[value].notna()]
    mistakes += [] if len(frame) else [f"column '{value}' holds no value"]
    for role in ("output", "time", "experiment"):  # pandas would leave such rows out without a word
        empty_rows: list[Any] = list(frame.index[frame[columns[role]].isna()]) if role in columns else []
        if len(empty_rows):
            place = f"index {empty_rows[0]}" + (f", and {len(empty_rows) - 1} more" if len(empty_rows) > 1 else "")
            mistakes.append(f"column '{columns[role]}' is empty at {place}, where a value is; fill it, or drop the row")
    for role in ("value", "sigma", "time"):
        column: Any = frame[columns[role]] if role in columns else ()
        n_invalid = sum(not reads_as_number(cell) for cell in column)
        if n_invalid and (role != "time" or n_invalid < len(column)):  # a column of times may hold dates
            text = f"{n_invalid} of {len(column)} values that are no numbers, {describe_non_numbers(column)}"
            mistakes.append(f"column '{columns[role]}' contains {text}; give numbers, and NaN for missing values")
    raise_if_mistakes("experiments_from", mistakes)
    numbers = {c: _but_odd(frame[c]) for c in (value, time, *([sigma] if isinstance(sigma, str) else []))}
    frame = frame.assign(**numbers)
    groups = [("", frame)] if experiment is None else list(frame.groupby(experiment, sort=False))
    experiments: list[Experiment] = []
    for name, rows in groups:
        label = str(name)
        experiment_options = {
            **options,
            **(read_mapping(f"each({label!r})", each(label), mistakes) if each is not None else {}),
        }
        for key in _BY_NAME:
            if key in experiment_options and isinstance(experiment_options[key], Mapping):
                experiment_options[key] = _resolve_columns(
                    key, experiment_options[key], rows, column_names, label, mistakes
                )
        try:
            experiments.append(_experiment(rows, columns, sigma, {"name": label, **experiment_options}))
        except InputError as error:
            mistakes += [f"{label}: {m}" if label else m for m in error.problems]
    raise_if_mistakes("experiments_from", mistakes)
    return experiments


def _read(table: Any, names: Sequence[str]) -> Any:
    """Return the table as a DataFrame; columns of names in a file are read as text, so 01 differs from 1."""
    if isinstance(table, (str, Path)):
        try:
            pandas = importlib.import_module("pandas")  # which is not needed otherwise
        except ImportError:
            raise InputError("experiments_from", ["a CSV file is read by pandas: pip install pandas"]) from None
        try:
            return pandas.read_csv(table, dtype=dict.fromkeys(names, str))
        except (OSError, ValueError) as error:
            raise InputError("experiments_from", [f"'{table}' cannot be read: {error}"]) from None
    raise_if_mistakes(
        "experiments_from",
        [] if is_frame(table) else [f"table is {shorten_repr(table)}; give a DataFrame, or a CSV file"],
    )
    return table


def _mapped_columns(options: Mapping[str, Any]) -> list[str]:
    """Return the columns whose values are options."""
    mappings = [options[key] for key in _BY_NAME if isinstance(options.get(key), Mapping)]
    return [entry for mapping in mappings for entry in mapping.values() if isinstance(entry, str)]


def _event_mistakes(frame: Any, used_columns: set[str]) -> list[str]:
    """Return an error message if rows are doses or other events, which no experiment would have."""
    columns = [c for c in frame.columns if c.upper() in _EVENT_COLUMNS and c not in used_columns]
    is_event = [
        any(reads_as_number(cell) and np.isfinite(float(cell)) and float(cell) for cell in row)
        for row in frame[columns].itertuples(index=False)
    ]
    if not any(is_event):
        return []
    where = f"{sum(is_event)} rows, the first at index {frame.index[is_event.index(True)]}"
    remedy = "drop these rows, and pass the doses as each=lambda name: {'events': cf.Doses(...)}"
    return [f"{' and '.join(columns)} mark doses or other events in {where}, which would be lost; {remedy}"]


def _but_odd(column: Any) -> Any:
    """Read numbers that are text only because other cells of the column are, so that messages name those cells."""
    if read_reals(column) is not None or all(map(reads_as_number, column)):
        return column

    def read(cell: Any) -> Any:
        return float(cell) if isinstance(cell, str) and reads_as_number(cell) else cell

    return column.astype(object).map(read)


def _resolve_columns(
    key: str, entries: Mapping[Any, Any], rows: Any, column_names: list[str], label: str, mistakes: list[str]
) -> dict[str, Any]:
    """Replace names of columns by what these hold in an experiment."""
    resolved: dict[str, Any] = {}
    for name, entry in read_mapping(key, entries, mistakes).items():
        resolved[name] = entry
        if not isinstance(entry, str):
            continue
        place = f"{key} of '{name}'" + (f" in {label}" if label else "")
        if entry not in column_names:
            mistakes.append(f"{place} is '{entry}', which is no column of the table: {suggest(entry, column_names)}")
            del resolved[name]
            continue
        values = rows[entry].unique()
        if len(values) > 1:
            mistakes.append(
                f"{place}: column '{entry}' holds several values, {shorten_repr(values[:3].tolist())}; it needs one"
            )
        resolved[name] = values[0].item() if hasattr(values[0], "item") else values[0]
    return resolved


def _experiment(rows: Any, columns: Mapping[str, str], sigma: Any, options: dict[str, Any]) -> Experiment:
    """Make one experiment of its rows."""
    data: dict[str, Any] = {}
    deviations: dict[str, Any] = {}
    for name, group in rows.groupby(columns["output"], sort=False):
        try:
            ordered = group.sort_values(columns["time"], kind="stable")
        except TypeError:  # text among numbers, which the experiment refuses
            ordered = group
        data[str(name)] = (ordered[columns["time"]], ordered[columns["value"]])
        if "sigma" in columns:
            deviations[str(name)] = cast("Any", np.asarray(ordered[columns["sigma"]]))
    repeated_options = [n for n in ("data", "time", *(["sigma"] if "sigma" in columns else [])) if n in options]
    raise_if_mistakes(
        "experiments_from", [f"{n} is what the table holds; leave it out of the options" for n in repeated_options]
    )
    all_options: dict[str, Any] = {"sigma": deviations if "sigma" in columns else sigma, **options}
    return Experiment(data, **all_options)
