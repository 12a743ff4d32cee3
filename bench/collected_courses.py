"""What a collection's own tables of simulations say, beside what castfit simulates."""

from __future__ import annotations

import csv
from math import inf, nan
from pathlib import Path

from castfit.formats.petab.likelihood import simulated
from castfit.formats.petab.loading import LoadedProblem

_SAME_TIME = 1e-4  # relative: times are rounded in some tables
_MIN_MAGNITUDE = 1e-6  # magnitude below which differences are absolute, in units of the output


def difference(loaded: LoadedProblem, folder: Path, name: str) -> float:
    """Return the largest relative difference from the table ``simulatedData_NAME.tsv``; NaN without one.

    Rows are found by observable, condition and time: their order may be another than the measurements'.
    """
    table = folder / f"simulatedData_{name}.tsv"
    if not table.is_file():
        return nan
    rows = list(csv.DictReader(table.read_text(encoding="utf-8-sig").splitlines(), delimiter="\t"))
    condition = next((c for c in (rows[0] if rows else ()) if c.startswith("simulationCondition")), "")
    reference_values: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row.get("time") and row.get("simulation"):
            key = (_strip_name(row["observableId"]), row.get(condition, ""))
            reference_values.setdefault(key, []).append((float(row["time"]), float(row["simulation"])))
    worst = 0.0 if reference_values else nan
    for m, value in zip(loaded.tables.measurements, simulated(loaded).tolist(), strict=True):
        candidates = reference_values.get((_strip_name(m.observable), m.experiment.partition(" after ")[0]), [])
        matching_values = [v for t, v in candidates if t == m.time or abs(t - m.time) <= _SAME_TIME * max(1.0, abs(t))]
        off = min((abs(v - value) for v in matching_values), default=inf)
        worst = max(worst, off / max(abs(value), _MIN_MAGNITUDE))
    return worst


def _strip_name(observable: str) -> str:
    return observable.removeprefix("observable_")
