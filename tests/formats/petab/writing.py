"""Small PEtab problems, written to a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]

DECAY = """
model decay
  compartment cell = 1; species A in cell, B in cell
  A -> B; cell * k * A
  A = A0; B = 0; A0 = 2; k = 0.3; dose = 0
end
"""

_DEFAULTS_1 = {
    "parameters": [
        {
            "parameterId": "k",
            "parameterScale": "log10",
            "lowerBound": 1e-3,
            "upperBound": 1e3,
            "nominalValue": 0.4,
            "estimate": 1,
        }
    ],
    "observables": [{"observableId": "y", "observableFormula": "A", "noiseFormula": "0.1"}],
    "conditions": [{"conditionId": "c"}],
    "measurements": [
        {"observableId": "y", "simulationConditionId": "c", "measurement": m, "time": t}
        for t, m in ((1, 1.3), (2, 0.9), (4, 0.5))
    ],
    "mapping": [],
}
_DEFAULTS_2 = {
    "parameters": [
        {"parameterId": "k", "lowerBound": 1e-3, "upperBound": 1e3, "nominalValue": 0.4, "estimate": "true"}
    ],
    "observables": [{"observableId": "y", "observableFormula": "A", "noiseFormula": "0.1"}],
    "conditions": [],
    "experiments": [],
    "measurements": [
        {"observableId": "y", "experimentId": "", "measurement": m, "time": t}
        for t, m in ((1, 1.3), (2, 0.9), (4, 0.5))
    ],
    "mapping": [],
}


def table(rows: Rows) -> str:
    """Return rows as a table with tabs."""
    columns = list(dict.fromkeys(c for row in rows for c in row))
    lines = ["\t".join(columns), *("\t".join(str(row.get(c, "")) for c in columns) for row in rows)]
    return "\n".join(lines) + "\n"


def write(folder: Path, antimony: str = DECAY, *, version: int = 1, **tables: Rows) -> Path:
    """Write a problem, of which what is not given is a decay that is measured three times; return its YAML file."""
    import antimony as library

    library.clearPreviousLoads()
    assert library.loadAntimonyString(antimony) >= 0, library.getLastError()
    (folder / "model.xml").write_text(library.getSBMLString(library.getMainModuleName()))
    rows_by_kind = {**(_DEFAULTS_1 if version == 1 else _DEFAULTS_2), **tables}
    for kind, rows in rows_by_kind.items():
        if rows:
            (folder / f"{kind}.tsv").write_text(table(rows))
    listed = [
        f"{kind[:-1]}_files: [{kind}.tsv]"
        for kind in rows_by_kind
        if kind not in ("parameters", "mapping") and rows_by_kind[kind]
    ]
    listed += ["mapping_files: [mapping.tsv]"] if rows_by_kind["mapping"] else []
    if version == 1:
        text = "format_version: 1\nparameter_file: parameters.tsv\nproblems:\n  - sbml_files: [model.xml]\n"
        text += "".join(f"    {line}\n" for line in listed)
    else:
        text = "format_version: 2.0.0\nmodel_files: {m: {location: model.xml, language: sbml}}\n"
        text += "parameter_files: [parameters.tsv]\n" + "".join(f"{line}\n" for line in listed)
    path = folder / "problem.yaml"
    path.write_text(text)
    return path


def parameter(name: str, value: float, **columns: Any) -> dict[str, Any]:
    """Return a row of the parameter table of version 1, on a logarithmic scale."""
    row = {"parameterId": name, "parameterScale": "log10", "lowerBound": 1e-4, "upperBound": 1e4}
    return {**row, "nominalValue": value, "estimate": 1, **columns}


def measured(times: Sequence[float], values: Sequence[float], **columns: Any) -> list[dict[str, Any]]:
    """Return rows of the measurements table of version 1."""
    row = {"observableId": "y", "simulationConditionId": "c"}
    return [{**row, "measurement": m, "time": t, **columns} for t, m in zip(times, values, strict=True)]
