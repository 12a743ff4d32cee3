"""`castfit bench petab` on a folder of our own small problems."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from math import exp

import pytest

import castfit as cf
from castfit import cli
from castfit._bench.collection import run_collection, searched
from castfit._bench.cpu_clock import cpu_clock
from castfit._bench.nominal_table import run_nominal, verdict
from castfit._bench.peers import Peer
from tests.formats.petab.writing import measured, parameter, write

pytest.importorskip("petab")
pytest.importorskip("antimony")


def test_a_folder_of_problems(tmp_path, capsys):
    for name in ("decay", "broken"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, parameters=[parameter("k", 0.4)], measurements=measured((1, 2, 4), (1.3, 0.9, 0.5)))
    (tmp_path / "broken" / "observables.tsv").unlink()
    page = tmp_path / "page.html"
    options = ["--folder", str(tmp_path), "--starts", "1", "--max-time", "20", "--html", str(page), "--json", "-"]
    assert cli.main(["bench", "petab", *options]) == 0
    broken, decay = json.loads(capsys.readouterr().out)["rows"]
    assert "observables.tsv: there is no such file" in broken["trouble"]
    assert decay["gradient_error"] < 1e-6
    assert decay["checked_at"] == "nominal"
    assert decay["hits_0.1"] == 1
    assert decay["values"][0] < decay["nominal"]
    assert 0 < decay["value"] < decay["cpu_s_per_hit"] * 1e3
    text = page.read_text()
    assert "1 of 2 problems are read" in text
    assert "observables.tsv" in text


def test_nominal_parameters(tmp_path, capsys):
    """What is read is compared; a reference that is off, and a folder that cannot be read, are named."""
    for name in ("decay", "broken"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, parameters=[parameter("k", 0.4)], measurements=measured((1, 2, 4), (1.3, 0.9, 0.5)))
    (tmp_path / "broken" / "observables.tsv").unlink()
    assert cli.main(["bench", "petab", "--folder", str(tmp_path), "--nominal", "--json", "-"]) == 0
    output = capsys.readouterr()
    broken, decay = json.loads(output.out)["rows"]
    assert "observables.tsv: there is no such file" in broken["trouble"]
    assert "1 of 2 are as they must be" in output.err
    expected = cf.petab.negative_log_likelihood(cf.petab.load(tmp_path / "decay" / "problem.yaml"))
    assert decay["nominal"] == pytest.approx(expected)
    assert decay["gradient_error"] < 1e-7
    (entry,) = run_nominal({"decay": tmp_path / "decay" / "problem.yaml"}, {"decay": expected + 0.1}, print)
    assert verdict(entry) == "objective"
    assert verdict(replace(entry, loading=2.1, gradient_error=1e-4, reference=expected)) == "loads slowly, gradient"
    assert cli.main(["bench", "petab", "--folder", str(tmp_path), "--nominal", "--starts", "2"]) == 2
    assert "--nominal takes no starts" in capsys.readouterr().err


def test_searches_end_at_the_target(tmp_path):
    """Each search of several seeds stops at the best value known, far below its limit."""
    (tmp_path / "decay").mkdir()
    write(tmp_path / "decay", parameters=[parameter("k", 0.4)], measurements=measured((1, 2, 4), (1.34, 0.9, 0.4)))
    (entry,) = run_collection(tmp_path, problems=["dec"], starts=3, seed=7, max_time=1e4)
    assert entry.seeds == (7, 8, 9)
    assert entry.hits(0.1) == 3
    assert max(entry.seconds) < 100
    problem = cf.petab.load(tmp_path / "decay" / "problem.yaml")
    lines_by_target: dict[float, list[str]] = {1e9: [], -1e9: []}
    for target, lines in lines_by_target.items():
        assert searched(problem, 7, 1e4, target=target, progress=lines.append).success
    assert len(lines_by_target[1e9]) < len(lines_by_target[-1e9])


def test_searches_count_the_seconds_of_the_processor(monkeypatch):
    """Sleeping costs nothing."""
    spent = [100.0]
    monkeypatch.setattr(time, "process_time", lambda: spent[0])
    real = time.time, time.perf_counter
    with cpu_clock():
        start_times = time.time(), time.perf_counter()
        time.sleep(0.01)
        assert (time.time(), time.perf_counter()) == start_times
        spent[0] += 7.0
        assert time.time() - start_times[0] == pytest.approx(7.0)
        assert time.perf_counter() - start_times[1] == pytest.approx(7.0)
        assert start_times[0] == pytest.approx(real[0](), abs=60.0)
    assert (time.time, time.perf_counter) == real


def test_bench_invalid_folder_is_refused(tmp_path, capsys):
    assert cli.main(["bench", "petab"]) == 2
    assert "name the folder" in capsys.readouterr().err
    assert cli.main(["bench", "petab", "--folder", str(tmp_path)]) == 2
    assert "holds no problem" in capsys.readouterr().err
    (tmp_path / "decay").mkdir()
    write(tmp_path / "decay")
    assert cli.main(["bench", "petab", "--folder", str(tmp_path), "--problems", "decoy"]) == 2
    assert "there is no problem 'decoy': did you mean 'decay'" in capsys.readouterr().err


PEER = """#!/bin/sh
echo "talk" >&2
{said}
"""


def _peer(tmp_path, command):
    path = tmp_path / "python"
    path.write_text(PEER.format(said=command))
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for an interpreter")
def test_pypesto_and_amici_are_run_where_an_interpreter_is_named(tmp_path, capsys):
    """What stands for them here answers as the script does; hits are counted at the best value known plus 0.1."""
    (tmp_path / "decay").mkdir()
    write(tmp_path / "decay", parameters=[parameter("k", 0.4)], measurements=measured((1, 2, 4), (1.3, 0.9, 0.5)))
    table = "observableId\tsimulationConditionId\ttime\tsimulation\n"
    table += "".join(f"y\tc\t{t}\t{2 * exp(-0.4 * t) * off}\n" for t, off in ((1, 1), (2, 1), (4, 1.01)))
    (tmp_path / "decay" / "simulatedData_decay.tsv").write_text(table)
    answer = {"versions": {"pypesto": "9", "amici": "8"}, "nominal": -2.2, "value": 1.5, "gradient": 7.5}
    answer |= {"values": [-4.0, None, 5.0], "seconds": [1.0, 2.0, 4.0]}
    answer["castfit"] = {"value": 1.0, "gradient": 2.0, "amici_value": 2.0, "amici_gradient": 8.0, "off": 2e-9}
    answer["castfit"] |= {"gradient_off": 3e-8, "amici_off": 1e-8, "amici_gradient_off": 4e-6}
    options = ["bench", "petab", "--folder", str(tmp_path), "--starts", "1", "--max-time", "20", "--json", "-"]
    assert cli.main([*options, "--pypesto", _peer(tmp_path, f"echo '{json.dumps(answer)}'")]) == 0
    output = capsys.readouterr()
    (row,) = json.loads(output.out)["rows"]
    peer = row["peer"]
    assert (peer["hits"], peer["seconds"], peer["starts"]) == (1, 7.0, 3)
    assert peer["versions"] == "pypesto 9, amici 8"
    assert row["simulations"] == pytest.approx(0.01, rel=1e-3)
    assert "run now, pypesto 9, amici 8" in output.err
    assert peer["castfit"] == answer["castfit"]
    assert "in pyPESTO: a gradient with its value" in " ".join(output.err.split())
    assert "in brackets AMICI's gradients as they were timed" in " ".join(output.err.split())
    assert Peer(castfit=answer["castfit"]).ratio == 0.25
    answer["castfit"] = {"trouble": "ModuleNotFoundError: casadi"}
    assert cli.main([*options, "--pypesto", _peer(tmp_path, f"echo '{json.dumps(answer)}'")]) == 0
    assert "decay, castfit in pyPESTO: ModuleNotFoundError" in " ".join(capsys.readouterr().err.split())
    assert cli.main([*options, "--pypesto", _peer(tmp_path, "echo no amici here >&2; exit 1")]) == 0
    output = capsys.readouterr()
    assert "no amici here" in json.loads(output.out)["rows"][0]["peer"]["trouble"]
    assert "decay, pyPESTO: talk no amici here" in output.err
    assert cli.main([*options, "--pypesto", str(tmp_path / "nowhere")]) == 2
    assert "is no program; name the Python in which" in capsys.readouterr().err
