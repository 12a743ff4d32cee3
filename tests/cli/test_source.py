"""The command line on files that define a problem, and `castfit doctor`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

import castfit
from castfit import cli
from castfit.cli.source import load
from tests.builders import refused

SCRIPT = """
import numpy as np
import castfit as cf
from beside import RATE

print("this is no JSON")
x, k = cf.symbols("x k")
t = np.linspace(0, 5, 12)
data = np.exp(-RATE * t) + 0.01 * np.random.default_rng(1).standard_normal(12)
experiment = cf.Experiment({"x": data}, time=t, sigma=0.01, initial={"x": 1.0})


def posed(guess=0.5):
    return cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": cf.Parameter(guess, lower=0)})


problem = posed()
other = posed(2.0)
number = 3

if __name__ == "__main__":
    raise AssertionError("this is for python FILE.py")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("RATE = 0.6\n")
    (tmp_path / "decay.py").write_text(SCRIPT)
    return str(tmp_path / "decay.py")


def test_a_file_defines_a_problem(script: str) -> None:
    source = load(script, [])
    assert (source.name, source.reference) == ("decay.py", None)
    assert source.starts["reference"] == {"k": 0.5}
    values = [source.draw_start(seed)["k"] for seed in range(20)]
    assert all(0.05 <= value <= 5.0 for value in values)
    assert source.draw_start(3) == source.draw_start(3)
    assert load(f"{script}:other", []).starts["reference"] == {"k": 2.0}
    assert load(f"{script}:posed", []).problem.names == ("k",)
    assert str(Path(script).parent) not in sys.path


def test_fit_and_compare_take_files(script: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["fit", script, "--json", "-", "--save", str(tmp_path / "fit.json")]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["problem"] == "decay.py"
    assert record["parameters"]["k"] == pytest.approx(0.6, abs=0.02)
    assert "reference" not in err
    assert "this is no JSON" in err
    assert cli.main(["fit", f"{script}:other", "--transcription", "single", "--start", "random"]) == 0
    assert cli.main(["compare", script, "--starts", "2", "--methods", "single,multiple"]) == 0
    assert "decay.py, 2 starts, seed 0" in capsys.readouterr().out


def test_doctor_takes_files(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", script, "--starts", "1", "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {line["check"] for line in record["checks"]} >= {"gradient", "redundant parameters", "other starts"}
    assert all(line["fine"] is not False for line in record["checks"])


def test_doctor_takes_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "bellman", "--starts", "1"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  ok  gradient: agrees with finite differences") for line in lines)


def test_load_invalid_file_names_the_mistake(script: str, tmp_path: Path) -> None:
    folder = tmp_path
    with refused("there is no file"):
        load(str(folder / "none.py"), [])
    with refused("is a file, which takes no options"):
        load(script, ["mu=20"])
    with refused("does not define 'othr': did you mean 'other'"):
        load(f"{script}:othr", [])
    with refused("has no Problem called 'number'"):
        load(f"{script}:number", [])
    (folder / "empty.py").write_text("x = 1\n")
    with refused("give it problem = cf.Problem(...)"):
        load(str(folder / "empty.py"), [])
    (folder / "broken.py").write_text("a = 1\nb = a / 0\n")
    with refused("stopped in line 2: ZeroDivisionError"):
        load(str(folder / "broken.py"), [])
    (folder / "typo.py").write_text("a = (1\n")
    with refused("SyntaxError"):
        load(str(folder / "typo.py"), [])
    (folder / "ends.py").write_text("import sys\nsys.exit(3)\n")
    with refused("ended itself (3)"):
        load(str(folder / "ends.py"), [])
    (folder / "wrong.py").write_text("import castfit as cf\nproblem = cf.IntegratorOptions(method='eulr')\n")
    with refused("method is 'eulr'"):
        load(str(folder / "wrong.py"), [])


def test_fit_reads_files_of_castfit_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["new", "decay"], ["fit", "decay.py", "--json", "decay.json"]):
        assert cli.main(arguments) == 0
    assert json.loads((tmp_path / "decay.json").read_text())["success"] is True
    assert not (tmp_path / "decay.png").exists()


def test_a_petab_problem_is_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("petab")
    pytest.importorskip("antimony")
    from tests.formats.petab.writing import write

    path = write(tmp_path)
    assert load(str(path), []).starts["reference"] == pytest.approx({"k": 0.4})
    output_folder = str(tmp_path / "found")
    assert cli.main(["fit", str(path), "--transcription", "single", "--json", "-", "--petab", output_folder]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["success"]
    head, row = (tmp_path / "found" / "parameters.tsv").read_text().splitlines()
    k = float(dict(zip(head.split("\t"), row.split("\t"), strict=True))["nominalValue"])
    assert k == result["parameters"]["k"]
    head, *rows = (tmp_path / "found" / "simulations.tsv").read_text().splitlines()
    simulations = [float(row.split("\t")[head.split("\t").index("simulation")]) for row in rows]
    assert simulations == pytest.approx([2 * math.exp(-k * t) for t in (1, 2, 4)], rel=1e-6)
    for name, folder, message in (
        (str(path), str(path), "is a file"),
        ("bellman", output_folder, "pass its YAML file"),
    ):
        assert cli.main(["fit", name, "--petab", folder]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "conditions.tsv").unlink()
    assert cli.main(["fit", str(path)]) == 2
    assert "conditions.tsv: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["estimate", "--max-time", "20"], ["multistart", "--starts", "4"]])
def test_searches_of_a_file(tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("petab")
    pytest.importorskip("antimony")
    from tests.formats.petab.writing import write

    path, saved, (name, *options) = str(write(tmp_path)), tmp_path / "best.json", command
    assert cli.main([name, path, *options, "--json", "-", "--save", str(saved)]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["success"]
    assert written["parameters"]["k"] == pytest.approx(0.4, rel=0.1)
    assert castfit.Result.load(saved).parameters == pytest.approx(written["parameters"])
    assert cli.main([name, path, "--rng", "-1"]) == 2
    assert "the seed is -1" in capsys.readouterr().err


def test_poor_optimum_exits_with_1(tmp_path, capsys):
    path = tmp_path / "swing.py"
    path.write_text(
        """
import castfit as cf
import numpy as np

x, y, w = cf.symbols("x y w")
model = cf.Model({x: y, y: -(w**2) * x}, parameters=[w], initial={x: 1.0, y: 0.0})
times = np.linspace(0.2, 10.0, 50)
data = cf.Experiment({"x": np.cos(3 * times)}, times, sigma=0.02)
problem = cf.Problem(model, data, parameters={"w": cf.Parameter(1.6, upper=1.7)})
""",
        encoding="utf-8",
    )
    assert cli.main(["fit", str(path), "--transcription", "single", "--json", str(tmp_path / "swing.json")]) == 1
    written = json.loads((tmp_path / "swing.json").read_text())
    assert written["success"]
    assert not written["described"]
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("A poor optimum: chi2/n = ")
