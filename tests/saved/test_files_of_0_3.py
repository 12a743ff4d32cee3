"""Files that castfit 0.3 saved are read, and its checkpoints are continued to the same numbers."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import IO, cast

import pytest

import castfit as cf
from castfit._support.blas_threads import blas_kernel
from tests.saved import calls, problems
from tests.saved.facts import collect_facts, list_differences

DATA = Path(__file__).parent.parent / "data" / "0.3"
EXPECTED = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
"""Per file its class, the name of its problem or call in this folder, and the numbers that castfit 0.3 computed."""

RERUN_RTOL = 1e-7
LAST_BIT_RTOL = 1e-15
"""Relative accuracy of numbers that are computed from loaded ones, which differ between processors in the last bit."""

EXACT_KERNELS = {"SkylakeX"}
"""BLAS kernels on which fits are known to end at the exact bits of the files."""

SAVED = [name for name, entry in EXPECTED.items() if "call" not in entry]
CHECKPOINTS = [name for name, entry in EXPECTED.items() if "call" in entry]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files."""
    path = tmp_path_factory.mktemp("files")
    with tarfile.open(DATA / "files.tar.xz") as archive:
        for member in archive:
            (path / member.name).write_bytes(cast("IO[bytes]", archive.extractfile(member)).read())
    return path


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_file_is_read_and_saved_again(name: str, folder: Path, tmp_path: Path) -> None:
    entry = EXPECTED[name]
    if "residuals" in entry["values"]:  # castfit 0.3 saved them as predicted minus observed
        residuals = [r if isinstance(r, str) else -r for r in entry["values"]["residuals"]]
        entry = {**entry, "values": {**entry["values"], "residuals": residuals}}
    kind = getattr(cf, entry["class_name"])
    loaded = kind.load(folder / name)
    for bound in entry["values"].get("active", {}):  # castfit 0.3 had no interval of a quantity at its bound
        if bound in entry["values"].get("intervals", {}):
            assert entry["values"]["intervals"][bound] == ["nan", "nan"]
            lower, upper = loaded.confidence_intervals()[bound]
            assert lower <= loaded.values[bound] <= upper
            intervals = {**entry["values"]["intervals"], bound: [lower, upper]}
            entry = {**entry, "values": {**entry["values"], "intervals": intervals}}
    assert not list_differences(entry["values"], collect_facts(loaded))
    if kind is not cf.Plan:
        loaded = loaded.with_problem(getattr(problems, entry["problem"])())
    assert str(loaded)
    loaded.save(tmp_path / name)
    assert not list_differences(entry["values"], collect_facts(kind.load(tmp_path / name)))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_continued_to_the_same_numbers(name: str, folder: Path) -> None:
    entry = EXPECTED[name]
    path = folder / name
    values = entry.get("values")
    if entry.get("is_result_file"):
        loaded = getattr(cf, entry["class_name"]).load(path)
        loaded_values = entry.get("values_when_loaded", values)
        assert loaded_values is None or not list_differences(loaded_values, collect_facts(loaded), LAST_BIT_RTOL)
    size = path.stat().st_size
    try:
        result = getattr(calls, entry["call"])(checkpoint=path, resume=True, verbose=0)
    except cf.InputError as error:
        refusal = str(error)
    else:
        refusal = ""
    if _saved_only_a_hash(path) and blas_kernel() not in EXACT_KERNELS and refusal:
        assert "castfit 0.3 wrote it on another kind of processor" in refusal
        assert path.stat().st_size == size
        return
    assert not refusal
    expected_values = values or EXPECTED[entry["values_of"]]["values"]
    assert not list_differences(expected_values, collect_facts(result), RERUN_RTOL)
    growth = path.stat().st_size - size
    assert growth > 0 if values is None else growth < 0.1 * size  # a finished run repeats no fit


def _saved_only_a_hash(path: Path) -> bool:
    header = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    return any(str(header.get(key, "")).startswith("sha256:") for key in ("estimate", "truth"))


def test_every_driver_and_class_has_a_file() -> None:
    assert {entry["class_name"] for entry in EXPECTED.values()} >= {
        "Result", "PathResult", "Plan", "Profiles", "BootstrapResult", "MultistartResult", "ScatterResult",
        "PortfolioResult", "Contours", "LeaveOutResult", "CoverageResult", "SelectionResult", "MixedEffectsResult",
    }  # fmt: skip


def test_unknown_entries_of_a_record_are_refused(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "result_box.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(content | {"another_entry": 1}))
    with pytest.raises(cf.InputError, match="unknown entries another_entry"):
        cf.Result.load(tmp_path / "result.json")
