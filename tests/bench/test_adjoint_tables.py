"""The tables of adjoint states: what they count, what they time, and how they are asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from castfit import cli
from castfit._bench import adjoint_scaling, adjoint_table
from castfit._bench.adjoint_scaling import AdjointScaling, AdjointTiming
from tests.builders import refused


def test_the_table_counts_what_finds_the_optimum():
    vector, scalar, single = adjoint_table.adjoint_table(
        methods=["vector/gauss_newton", "scalar/sqp", "single/gauss_newton"], draws=2
    )
    assert (vector.correct, scalar.correct, single.correct) == (2, 2, 0)
    assert vector.iterations <= 9
    assert scalar.iterations <= 20
    assert single.ends == {"start_failed": 2}  # at the pole
    np.testing.assert_allclose(scalar.means, vector.means, rtol=1e-6)
    np.testing.assert_allclose(scalar.deviations, vector.deviations, rtol=1e-3)
    assert all(abs(mean - 1) < 0.1 for mean in vector.means)


def test_the_same_seed_draws_the_same_data():
    means, repeated_means, other_means = (
        adjoint_table.adjoint_table(methods=["vector/gauss_newton"], draws=1, seed=s)[0].means for s in (3, 3, 4)
    )
    assert means == repeated_means != other_means


def test_the_table_on_the_command_line(tmp_path, capsys):
    file = tmp_path / "table.json"
    assert cli.main(["bench", "adjoint-table", "--starts=1", "--methods=scalar/sqp", f"--json={file}"]) == 0
    output = capsys.readouterr().out
    assert "1 of 1" in output
    assert "0.9832" in output  # the paper's
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["method"], row["correct"]) == ("scalar/sqp", 1)


def test_mistakes_in_the_table():
    with refused("there is no method 'scalar/spq'", "starts is 0"):
        adjoint_table.adjoint_table(methods=["scalar/spq"], draws=0)


def test_scaling_times_every_network(tmp_path, monkeypatch, capsys):
    small = adjoint_scaling.adjoint_scaling
    scaling = small(states=(2, 3), parameters=(3, 6), repetitions=1)
    sizes = [(2, 3), (2, 6), (3, 3), (3, 6)]
    methods = ("esdirk", "cvodes")
    assert [(t.method, t.n_x, t.n_p) for t in scaling.timings] == [(m, *size) for size in sizes for m in methods]
    assert all(t.error < (1e-10 if t.method == "esdirk" else 1e-4) for t in scaling.timings)
    assert all(min(t.simulation, t.forward, t.adjoint, t.forward_all, t.vector) > 0 for t in scaling.timings)
    monkeypatch.setattr(adjoint_scaling, "adjoint_scaling", lambda **_: scaling)
    picture = tmp_path / "scaling.png"
    assert cli.main(["bench", "adjoint-scaling", f"--plot={picture}"]) == 0
    assert picture.stat().st_size > 1000
    assert "pays from" in capsys.readouterr().out


def test_the_crossover_is_where_both_take_the_same_time():
    n_p = (10, 100, 1000)
    timings = tuple(AdjointTiming("cvodes", 2, n, 1e-3, n / 10, 20.0, forward_all=n, vector=5.0, error=0) for n in n_p)
    one, jacobian = AdjointScaling(timings).crossovers["cvodes", 2]
    assert one == pytest.approx(200.0)
    assert jacobian == 0.0  # from the first
    never = tuple(AdjointTiming("cvodes", 2, n, 1e-3, 1.0, 2.0, 1.0, np.nan, 0.0) for n in n_p)
    assert AdjointScaling(never).crossovers["cvodes", 2] == (np.inf, np.inf)
