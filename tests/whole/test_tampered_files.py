"""Files of results whose entries were changed, dropped or cut are refused in words, or give a result that works."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import castfit as cf
from tests.bad_inputs import crowd, noisy, result, result_of

JUNK = [None, 5, -1, 1.5, "x", "", [], {}, [1, 2], {"__float__": "nan"}, {"__array__": [1.0, 2.0], "__shape__": [2]},
        {"__array__": [], "__shape__": [0]}, True]  # fmt: skip


def load_population(path: Path) -> cf.MixedEffectsResult:
    return cf.MixedEffectsResult.load(path, crowd(), cf.Population({"k": cf.Individual()}))


def estimator() -> cf.MovingHorizon:
    horizon = cf.moving_horizon(noisy(), 3, bounds={"x": (0.0, 0.45)})
    for time in (1.0, 2.0, 3.0, 4.0):
        horizon.step(time, {"x": 0.5})
    return horizon


def load_estimator(path: Path) -> cf.MovingHorizon:
    return cf.MovingHorizon.load(path, noisy())


IS_ONE_DOCUMENT = ("MovingHorizon", "Result", "Plan", "PathResult", "MixedEffectsResult")
USES: dict[str, tuple[Callable[[], Any], Any, list[Callable[[Any], Any]]]] = {
    "Result": (result, cf.Result.load,
               [lambda r: r.summary(), repr, lambda r: r.confidence_intervals(), lambda r: r.to_frame()]),
    "Plan": (lambda: result_of("plan"), cf.Plan.load,
             [lambda p: p.summary(), repr, lambda p: p.plot("plan.png"), lambda p: p.inputs["u"](0.5)]),
    "PathResult": (noisy, cf.PathResult.load,
                   [lambda r: r.summary(), repr, lambda r: r.path("x").values, lambda r: r.confidence_intervals(),
                    lambda r: r.predict()]),
    "MixedEffectsResult": (lambda: result_of("mixed_effects"), load_population,
                           [lambda r: r.summary(), repr, lambda r: r.predict([1.0]), lambda r: r.to_frame(),
                            lambda r: r.table]),
    "MovingHorizon": (estimator, load_estimator,
                      [repr, lambda h: h.states, lambda h: h.step(6.0, {"x": 0.3}), lambda h: h.step(9.0, {"x": 0.3})]),
    "Profiles": (lambda: result_of("profiles"), cf.Profiles.load,
                 [lambda p: p.summary(), repr, lambda p: p.limits(), lambda p: p.plot("profiles.png")]),
    "MultistartResult": (lambda: result_of("multistart"), cf.MultistartResult.load,
                         [lambda r: r.summary(), repr, lambda r: r.plot("multistart.png")]),
    "BootstrapResult": (lambda: result_of("bootstrap"), cf.BootstrapResult.load,
                        [lambda r: r.summary(), repr, lambda r: r.confidence_intervals()]),
}  # fmt: skip


def places(entry: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Iterate over the places of all entries, of lists the first one only."""
    yield path
    if isinstance(entry, dict):
        for key, value in entry.items():
            yield from places(value, (*path, key))
    elif isinstance(entry, list) and entry:
        yield from places(entry[0], (*path, 0))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at a place; `...` drops the entry."""
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    if len(path) == 1 and value is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(content[path[0]], path[1:], value)
    return copy


def faults(kind: str, folder: Path, count: int) -> list[str]:
    """List the raw errors of changed files."""
    make, load, uses = USES[kind]
    file, rng = folder / "file.json", np.random.default_rng(0)
    make().save(file)
    lines = file.read_text(encoding="utf-8").splitlines()
    is_lines = kind not in IS_ONE_DOCUMENT
    documents = [json.loads(line) for line in lines] if is_lines else [json.loads("\n".join(lines))]
    for document in documents if is_lines else []:
        document.pop("crc32", None)  # a forger would drop it too
    entries = [(i, path, junk) for i, d in enumerate(documents) for path in places(d) for junk in (..., *JUNK) if path]
    chosen = rng.choice(len(entries), min(count, len(entries)), replace=False)
    errors: list[str] = []
    for i, path, junk in (entries[j] for j in chosen.tolist()):
        texts = [json.dumps(changed(d, path, junk) if i == n else d) for n, d in enumerate(documents)]
        file.write_text("\n".join(texts) + "\n", encoding="utf-8")
        try:
            loaded = load(file)
            for use in uses:
                use(loaded)
        except cf.CastfitError:
            continue
        except Exception as error:
            errors.append(f"{'/'.join(map(str, path))} = {junk}: {type(error).__name__} {error}")
    return errors


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of variances that are negative now
@pytest.mark.parametrize("kind", USES)
def test_changed_files_are_refused_in_words(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert faults(kind, tmp_path, 60) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", USES)
def test_many_changed_files_are_refused_in_words(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert faults(kind, tmp_path, 1000) == []


@pytest.mark.parametrize("kind", USES)
def test_files_that_were_cut_are_refused(kind: str, tmp_path: Path) -> None:
    make, load, _ = USES[kind]
    make().save(tmp_path / "file.json")
    content = (tmp_path / "file.json").read_bytes()
    for share in (0.0, 0.1, 0.5, 0.9):
        (tmp_path / "file.json").write_bytes(content[: int(share * len(content))])
        try:
            load(tmp_path / "file.json").summary()  # a checkpoint is read as far as it goes
        except cf.InputError:
            continue
        assert kind not in IS_ONE_DOCUMENT
