"""``castfit report``: problems of the library and of files become pages."""

from __future__ import annotations

import textwrap

import pytest

from castfit.cli import main

SCRIPT = """
    import castfit as cf
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1})
    experiment = cf.Experiment({"x": [0.62, 0.35, 0.22]}, time=[1, 2, 3], sigma=0.02)
    problem = cf.Problem(model, experiment, parameters={"k": 0.4})
    # <script>alert(1)</script>
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_problem_of_the_library_becomes_a_page(tmp_path, capsys):
    assert main(["report", "bellman", "--title", "Two rates", "--transcription", "single"]) == 0
    assert "bellman.html" in capsys.readouterr().out
    text = (tmp_path / "bellman.html").read_text(encoding="utf-8")
    assert "<h1>Two rates</h1>" in text
    assert "single shooting" in text


def test_a_file_becomes_a_page_with_its_script_and_profiles(tmp_path):
    (tmp_path / "decay.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    assert main(["report", "decay.py", "--profiles", "--out", "page.html"]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h2>Profiles</h2>" in text
    assert "# &lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("<script>") == 1


def test_report_invalid_path_is_refused_before_the_fit(capsys):
    assert main(["report", "bellman", "--out", "nowhere/page.pdf"]) == 2
    error_text = capsys.readouterr().err
    assert "let --out end in .html" in error_text
    assert "directory 'nowhere' does not exist" in error_text


def test_explore_writes_a_page_after_a_fit_or_from_the_guess(tmp_path, capsys):
    (tmp_path / "decay.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    assert main(["explore", "decay.py"]) == 0
    assert "Created decay-model.html." in capsys.readouterr().out
    assert '"estimate":{' in (tmp_path / "decay-model.html").read_text(encoding="utf-8")
    assert main(["explore", "decay.py", "--guess", "--out", "guess.html"]) == 0
    assert '"estimate":null' in (tmp_path / "guess.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["explore", "decay.py", "--guess", "--solver", "ipopt", "--start", "random"]) == 2
    error_text = capsys.readouterr().err
    assert "--solver sets how to fit, but --guess skips the fit" in error_text
    assert "--start sets how to fit" in error_text
    assert main(["explore", "decay.py", "--out", "guess.pdf"]) == 2
