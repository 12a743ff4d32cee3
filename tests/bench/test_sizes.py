"""``castfit bench sizes``: rows are kept as they come, and what is kept is not fitted again."""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest

from castfit._bench import process_usage, sizes


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[tuple[str, str]] = []
    fit = sizes.SizedFit("titration", "default", "collocation", "converged", 1.0, 0.1, 2.0, 1.0, 100.0, 5)

    def run_fit(case: str, method: str, max_time: float) -> sizes.SizedFit:
        if len(fitted) == 2:
            raise KeyboardInterrupt
        fitted.append((case, method))
        is_failed = method == "single"
        return replace(fit, case=case, method=method, objective=math.inf if is_failed else 1.0, again=max_time)

    monkeypatch.setattr(sizes, "_run_in_process", run_fit)
    lines: list[str] = []
    options = {"problems": ["titration"], "max_time": 3.0, "folder": tmp_path, "told": lines.append}
    with pytest.raises(KeyboardInterrupt):
        list(sizes.run_sizes(**options))
    assert [line.partition(":")[0] for line in lines] == ["titration, default", "titration, single"]
    assert lines[0].endswith(" left")

    first_calls = fitted.copy()
    fitted.clear()
    (row,) = sizes.run_sizes(**options)
    assert first_calls == [("titration", "default"), ("titration", "single")]
    assert fitted == [("titration", "multiple"), ("titration", "collocation")]
    assert [f.objective for f in row] == [1.0, math.inf, 1.0, 1.0]
    assert not lines[-1].endswith(" left")
    assert sizes.ratios(row) == (1.0, 1.0)


@pytest.mark.skipif(process_usage._resource() is None, reason="the system counts no CPU time")
def test_a_process_ends_at_its_limit() -> None:
    endless = "from castfit._bench.process_usage import limit_cpu; limit_cpu(1)\nwhile True: pass"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool, pytest.raises(BrokenProcessPool):
        pool.submit(exec, endless).result(60)
