from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import runpy
import select
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit import cli, problems
from castfit._bench import KINDS
from castfit.cli import console as _console
from castfit.drive.run.optima import ObjectiveMeasure

KEYS = {
    "problem",
    "transcription",
    "solver",
    "success",
    "described",
    "status",
    "message",
    "parameters",
    "standard_errors",
    "measure",
    "objective",
    "chi2",
    "sse",
    "n_data",
    "iterations",
    "time",
}


@pytest.fixture
def fit_calls(monkeypatch):
    """What castfit.fit is called with; the fit itself is a quick one of another problem."""
    real, calls = cf.fit, []

    def record(problem, transcription, solver, **options):
        calls.append({"problem": problem, "transcription": transcription, "solver": solver, **options})
        return real(problems.load("bellman").problem)

    monkeypatch.setattr(cf, "fit", record)
    monkeypatch.setattr(_console, "compare_with_reference", lambda result, reference: ("", _console.TextTable((), ())))
    return calls


@pytest.fixture
def no_fit(monkeypatch):
    """Fail if a fit begins."""

    def refuse(*arguments, **options):
        pytest.fail("a fit began although the command line is wrong")

    monkeypatch.setattr(cf, "fit", refuse)


def test_list_shows_every_problem_and_keeps_its_numbers_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 72
    for name in problems.names():
        assert len([line for line in lines if line.split()[:1] == [name]]) == 1, name
    assert any(re.match(r"bellman +1 +2 +14 +21\.867 ", line) for line in lines)


@pytest.mark.slow
def test_list_shows_descriptions_of_problems(capsys):
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in problems.names():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        benchmark = problems.load(name)
        assert str(benchmark.problem.n_data) in line.split()
        assert f"{benchmark.reference.objective:.5g}" in line.split()


def test_the_package_is_a_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["castfit", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("castfit", run_name="__main__", alter_sys=False)
    assert capsys.readouterr().out.strip() == f"castfit {cf.__version__}"


@pytest.mark.parametrize(
    ("argument", "expected"), [("--version", f"castfit {cf.__version__}"), ("--help", "usage: castfit")]
)
def test_version_and_help(capsys, argument, expected):
    with pytest.raises(SystemExit) as exit_:
        cli.main([argument])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith(expected)


def test_importing_the_command_line_leaves_the_slow_modules_alone():
    code = (
        "import sys, castfit.cli; sys.exit(any(m in sys.modules for m in ('matplotlib', 'rich', 'castfit.problems')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("transcription", ["single", "multiple", "collocation"])
def test_fit_reaches_the_reference_optimum(capfd, transcription):
    assert cli.main(["fit", "bellman", "--transcription", transcription]) == 0
    out, err = capfd.readouterr()
    assert "The reference optimum is reached." in out
    assert re.search(r"^k1 +4\.577\d*e-06 +4\.577088e-06 ", out, re.MULTILINE)
    assert "differs" not in out
    assert re.search(r"^-2 log L +45\.97\d* +45\.97\d* ", out, re.MULTILINE)
    assert err == ""  # progress is for terminals


def test_fit_by_adjoint_states(capsys):
    adjoint = ["--derivatives=adjoint", "--matching=scalar", "--solver=sqp", "--start=pole"]
    assert cli.main(["fit", "lotka_volterra", "--transcription=multiple", "--intervals=data", *adjoint]) == 0
    assert "multiple shooting (at data, adjoint, scalar), SQP" in capsys.readouterr().out


def test_fit_says_when_another_point_is_found(capsys):
    arguments = ["fit", "notorious", "--transcription", "single"]
    assert cli.main(arguments) == 1  # at mu = 60 the initial value problem is hopeless
    out = capsys.readouterr().out
    assert "The reference optimum is not reached." in out
    assert "differs" in out


def test_json_on_standard_output_is_alone_there(capsys):
    assert cli.main(["fit", "bellman", "--json", "-", "-v"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record.keys() == KEYS
    assert record["problem"] == "bellman"
    assert record["transcription"].startswith("collocation")
    assert record["solver"] == "Gauss-Newton (natural level)"
    assert record["success"] is True
    assert record["status"] == "converged"
    assert record["parameters"] == pytest.approx({"k1": 4.577088e-6, "k2": 2.796241e-4}, rel=1e-4)
    assert record["standard_errors"] == pytest.approx({"k1": 1.571e-7, "k2": 5.463e-5}, rel=1e-2)
    assert record["sse"] == pytest.approx(record["chi2"])  # sigma is unknown here
    assert record["n_data"] == 14
    assert "The reference optimum is reached." in err
    assert "converged after" in err


def test_json_file_has_initial_states_and_the_unweighted_sum_of_squares(tmp_path):
    path, saved = tmp_path / "stat5.json", tmp_path / "saved.json"
    assert cli.main(["fit", "stat5", "--transcription", "multiple", "--json", str(path), "--save", str(saved)]) == 0
    record = json.loads(path.read_text())
    problem = problems.load("stat5").problem
    assert record["parameters"].keys() == set(problem.names)
    (experiment,) = problem.experiments
    (model,) = cf.simulate(problem, record["parameters"], times=experiment.data["y1"][0]).values()
    differences = np.array([model[name] - values[:, 0] for name, (_, values) in experiment.data.items()])
    assert record["sse"] == pytest.approx(np.nansum(differences**2), rel=1e-4)
    assert record["chi2"] > 10 * record["sse"]
    assert cf.Result.load(saved).values == record["parameters"]


def test_a_failed_fit_exits_with_1_and_writes_null(capsys, tmp_path):
    files = ["--json", str(tmp_path / "pole.json"), "--plot", str(tmp_path / "pole.png")]
    assert cli.main(["fit", "lotka_volterra", "--transcription", "single", "--start", "pole", *files]) == 1
    assert "Failure: The model could not be integrated at the starting point." in capsys.readouterr().out
    record = json.loads((tmp_path / "pole.json").read_text())
    assert record["status"] == "start_failed"
    assert record["success"] is False
    assert record["chi2"] is None
    assert record["sse"] is None
    assert set(record["standard_errors"].values()) == {None}
    assert (tmp_path / "pole.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stat"], "did you mean 'stat5'"),
        (["bellman", "--option", "mu=20"], "unknown option 'mu'"),
        (["stat5", "--option", "interpolation=cubic"], "choose one of 'linear'"),
        (["notorious", "--option", "mu"], "use mu=value"),
        (["notorious", "--option", "rng=never"], "does not take rng=never"),
        (["bellman", "--start", "narow"], "unknown start 'narow' of 'bellman'"),
        (["bellman", "--start", "k1=much"], "'k1' is 'much'; give a number"),
        (["bellman", "--start", "random", "--rng", "-1"], "the seed is -1"),
        (["bellman", "--transcription", "single", "--degree", "3"], "does not take --degree; it takes --derivatives"),
        (["bellman", "--matching", "scalar"], "collocation does not take --matching"),
        (["bellman", "--transcription", "multiple", "--matching", "scalar"], "give derivatives='adjoint' as well"),
        (["bellman", "--transcription", "multiple", "--elements", "3"], "it takes --intervals, --states"),
        (["bellman", "--degree", "0"], "degree is 0"),
        (["bellman", "--json", "no/such/folder.json"], "'no/such/folder.json' cannot be written"),
        (["bellman", "--save", "."], "'.' is a directory"),
        (["bellman", "--plot", "picture"], "'picture' has no image format"),
        (["bellman", "--plot", "picture.xyz"], "use .png"),
    ],
)
@pytest.mark.usefixtures("no_fit")
def test_misuse_exits_with_2_before_the_fit(capsys, arguments, message):
    assert cli.main(["fit", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bellman", "--start", "k3=1"], "did you mean 'k2'"),
        (["bellman", "--start", "k1=-1"], "is outside its bounds"),
        (["bellman", "--max-time", "0"], "max_time is 0"),
        (["bellman", "--transcription", "multiple", "--intervals", "few"], "'few'"),
        (["bellman", "--transcription=single", "--derivatives=adjoint"], "which GaussNewton does not support"),
    ],
)
def test_fit_misuse_found_by_the_fit_exits_with_2(capsys, arguments, message):
    assert cli.main(["fit", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["fit"], ["fits"], ["fit", "bellman", "--transcription", "triple"]])
def test_the_parser_exits_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert "usage: castfit" in capsys.readouterr().err


def test_recommended_settings_yield_to_given_ones(fit_calls):
    recommended = problems.load("notorious").transcriptions["multiple"]["intervals"]
    for arguments, intervals in (([], recommended), (["--intervals", "7"], 7), (["--intervals", "data"], "data")):
        cli.main(["fit", "notorious", "--transcription", "multiple", *arguments])
        assert fit_calls[-1]["transcription"] == cf.MultipleShooting(
            intervals, states=fit_calls[-1]["transcription"].states
        )
    assert fit_calls[-1]["transcription"].states == problems.load("notorious").start_strategy
    cli.main(["fit", "bellman", "--degree", "4", "--elements", "12", "--states", "smoothed"])
    assert fit_calls[-1]["transcription"] == cf.Collocation(degree=4, elements=12, states="smoothed")
    cli.main(["fit", "bellman", "--transcription", "single", "--max-time", "9", "-vvv"])
    assert fit_calls[-1]["transcription"] == cf.SingleShooting()
    assert fit_calls[-1]["solver"] == cf.GaussNewton()
    assert fit_calls[-1]["max_time"] == 9
    assert fit_calls[-1]["verbose"] == 2
    cli.main(["fit", "bellman", "--solver", "ipopt"])
    assert fit_calls[-1]["solver"] == cf.Ipopt()


def test_options_reach_the_problem(fit_calls, monkeypatch):
    loaded_options, real = {}, problems.load
    monkeypatch.setattr(
        problems, "load", lambda name, **options: loaded_options.update(options) or real(name, **options)
    )
    cli.main(["fit", "notorious", "--option", "mu=20", "noise=0.1", "--option", "starts=narrow"])
    assert loaded_options == {"mu": 20, "noise": 0.1, "starts": "narrow"}


def test_fit_start_option_is_passed_to_the_fit(fit_calls, monkeypatch):
    benchmark = dataclasses.replace(problems.load("bellman"), starts={"single": {"k1": 2e-6, "k2": 3e-4}})
    monkeypatch.setattr(problems, "load", lambda name: benchmark)
    reference = {"k1": 1e-6, "k2": 1e-4}

    def start(*arguments):
        cli.main(["fit", "bellman", *arguments])
        return dict(fit_calls[-1]["start"])

    assert start() == reference
    assert start("--transcription", "single") == {"k1": 2e-6, "k2": 3e-4}
    assert start("--transcription", "single", "--start", "reference") == reference
    assert start("--start", "single") == {"k1": 2e-6, "k2": 3e-4}
    assert start("--start", "k2=5e-4") == {"k1": 1e-6, "k2": 5e-4}
    assert start("--start", "random", "--rng", "4") == benchmark.draw_start(4)
    assert start("--start", "random", "--rng", "4") == benchmark.draw_start(4)
    assert start("--start", "random", "--rng", "5") != benchmark.draw_start(4)


def test_interrupting_a_fit_reports_the_best_point_and_exits_with_130(capsys, monkeypatch, tmp_path):
    real = cf.fit

    def interrupted(*arguments, **options):
        return real(
            *arguments,
            **{
                **options,
                "callback": lambda iteration: iteration.iteration == 2 and signal.raise_signal(signal.SIGINT),
            },
        )

    monkeypatch.setattr(cf, "fit", interrupted)
    path = tmp_path / "record.json"
    assert cli.main(["fit", "stat5", "--transcription", "multiple", "--json", str(path)]) == 130
    assert "Failure: Interrupted by the user" in capsys.readouterr().out
    record = json.loads(path.read_text())
    assert record["status"] == "interrupted"
    assert math.isfinite(record["parameters"]["k1"])


def test_an_interruption_elsewhere_exits_with_130(capsys, monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(problems, "load", interrupt)
    assert cli.main(["list"]) == 130
    assert capsys.readouterr().err == "castfit: interrupted\n"


def test_interrupting_the_demonstration_ends_it(monkeypatch, tmp_path):
    real, calls = cf.fit, []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        return real(*arguments, **options).with_status(cf.Status.INTERRUPTED, "Interrupted.")

    monkeypatch.setattr(cf, "fit", interrupted)
    assert cli.main(["demo", "--plot", str(tmp_path / "demo.png")]) == 130
    assert len(calls) == 1


def test_demonstration(capfd, tmp_path):
    picture = tmp_path / "demo.png"
    assert cli.main(["demo", "--plot", str(picture)]) == 0
    out, err = capfd.readouterr()
    assert len(re.findall(r" (?:single shooting|multiple shooting|collocation) +yes +", out)) == 6
    for name in ("stat5", "alpha_pinene"):
        benchmark = problems.load(name)
        merit = ObjectiveMeasure.from_problem(benchmark.problem)
        best = f" {merit.at_height(benchmark.reference.objective):.5g} "
        assert out.count(best) == 3  # every transcription finds the optimum
    assert out.count("p1=5.926(51)e-5") == 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert err == ""


def test_progress_is_shown_on_a_terminal_even_while_the_streams_are_taken(monkeypatch):
    pty = pytest.importorskip("pty")
    from castfit._support.silence import capture_output

    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with _console.show_progress() as show, capture_output():
            show("step [one]")
        with _console.show_progress(silent=True) as show:
            show("nothing")
        output = b""
        while select.select([master], [], [], 0.2)[0]:
            output += os.read(master, 4096)
    os.close(master)
    assert b"step [one]" in output
    assert b"nothing" not in output


@given(st.floats(1e-12, 1e12), st.floats(1e-9, 1.0), st.booleans())
def test_concise_notation_reads_back(size, relative_error, negative):
    value, error = -size if negative else size, size * relative_error
    digits, bracket, exponent = re.fullmatch(
        r"(-?[\d.]+)\((\d+)\)(?:e([+-]\d+))?", _console.format_with_error(value, error)
    ).groups()
    resolution = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    assert 10 <= int(bracket) < 100
    assert int(bracket) * resolution == pytest.approx(error, rel=0.051)
    assert float(digits + "e" + (exponent or "0")) == pytest.approx(value, abs=0.51 * resolution)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (2.0793, 0.16, "2.08(16)"),
        (5.9258e-5, 5.07e-7, "5.926(51)e-5"),
        (0.5, 0.0996, "0.50(10)"),
        (0.1, 30.0, "0.1(3e+01)"),
        (1.5, math.nan, "1.5"),
        (1.5, math.inf, "1.5"),
        (1.5, 0.0, "1.5"),
        (math.nan, math.nan, "nan"),
    ],
)
def test_concise_notation(value, error, text):
    assert _console.format_with_error(value, error) == text


def test_new_writes_a_fit_that_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "decay"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["decay.csv", "decay.py"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    run = subprocess.run([sys.executable, "decay.py"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "Success" in run.stdout
    assert (tmp_path / "decay.png").read_bytes().startswith(b"\x89PNG")
    original_text = (tmp_path / "decay.py").read_text()
    assert cli.main(["new", "decay.py"]) == 2
    assert "'decay.py' exists" in capsys.readouterr().err
    assert (tmp_path / "decay.py").read_text() == original_text
    assert cli.main(["new", "a/b"]) == 2
    table = (tmp_path / "decay.csv").read_text()
    (tmp_path / "decay.csv").write_text("\ufeff" + table, encoding="utf-8")  # as Excel writes it
    assert cli.main(["fit", "decay.py"]) == 0
    for written in (table, table.replace(",", ";").replace(".", ",")):  # the second as Excel writes it in Europe
        (tmp_path / "decay.csv").write_text(written)
        capsys.readouterr()
        assert cli.main(["fit", "decay.py"]) == 0
        assert "k1        0.39508 " in capsys.readouterr().out
    (tmp_path / "decay.csv").write_text(table.replace("0.92", "<1"))
    capsys.readouterr()
    assert cli.main(["fit", "decay.py"]) == 2
    assert "'<1'" in capsys.readouterr().err


def test_fit_with_process_noise_refuses_options_without_effect(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noisy.py").write_text(
        "import castfit as cf\nx, w = cf.symbols('x w')\nmodel = cf.Model({x: -x + w}, noises=[w], initial={x: 1.0})\n"
        "problem = cf.Problem(model, cf.Experiment({'x': [0.4, 0.1]}, [1, 2], sigma=0.1))\n"
    )
    assert cli.main(["fit", "noisy.py", "--states", "data", "--matching", "scalar"]) == 2
    error_text = capsys.readouterr().err
    assert "--states has no effect for models with process noise" in error_text
    assert "--matching has no effect" in error_text


def test_bench_lists_its_tables(capsys):
    assert cli.main(["bench", "--list"]) == 0
    output = capsys.readouterr().out
    for kind in KINDS:
        for name in kind.names():
            assert name in output
            assert kind.says(name)
    assert cli.main(["bench"]) == 2
    assert "castfit bench --list" in capsys.readouterr().err


def test_seed_is_the_old_name_of_rng(fit_calls, capsys):
    for name in ("--seed", "--rng"):
        cli.main(["fit", "calcium", "--start", "random", name, "5"])
    first_call, second_call = fit_calls
    assert first_call["start"] == second_call["start"]
