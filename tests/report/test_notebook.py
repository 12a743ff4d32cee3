"""What a notebook shows of our objects, asked as IPython asks."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import castfit as cf
from castfit import plots


def shown(thing):
    """Return what IPython would show of a thing, by kind."""
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")
    data, _ = formatters.DisplayFormatter().format(thing)
    return data


@pytest.fixture(scope="module")
def result():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1})
    t = np.linspace(0.5, 4, 8)
    experiment = cf.Experiment({"x": np.exp(-0.7 * t) + 0.02 * np.sin(9 * t)}, time=t, sigma=0.02)
    return cf.fit(cf.Problem(model, experiment, parameters={"k": 0.5}))


def test_figures_appear_by_themselves(result):
    for figure in (result.plot(), plots.residuals(result), plots.correlation(result)):
        bundle = shown(figure)
        assert bundle["image/png"].startswith(b"\x89PNG")
        assert "data:image/png;base64," in bundle["text/html"]
        assert bundle["text/plain"].startswith("<Picture of ")


CELL = """
import sys, castfit as cf
x, k = cf.symbols("x k")
e = cf.Experiment({"x": [1.0, 0.6, 0.3]}, time=[0, 1, 2], sigma=0.1)
r = cf.fit(cf.Problem(cf.Model({x: -k * x}, parameters=[k], initial={x: 1}), e, parameters={"k": 0.5}))
assert "matplotlib" not in sys.modules
"""
NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell, shown = InteractiveShell.instance(), []
shell.display_formatter.active_types = shell.display_formatter.format_types
shell.displayhook.write_format_data = lambda data, metadata=None: shown.append(data)
shell.display_pub.publish = lambda data, *_, **__: shown.append(data)
shell.run_cell(sys.argv[1]).raise_error()
for cell, count in zip(sys.argv[2::2], map(int, sys.argv[3::2])):
    shown.clear()
    shell.run_cell(cell).raise_error()
    kinds = [sorted(data) for data in shown if "image/png" in data]
    assert kinds == [["image/png", "text/html", "text/plain"]] * count, (cell, kinds)
"""


@pytest.mark.slow
def test_a_notebook_shows_every_figure_of_a_cell_once():
    pytest.importorskip("matplotlib_inline", reason="IPython's pictures are not installed")
    cells = {"f = r.plot()": 1, "r.plot()": 1, "r.plot();": 1, "r.plot(); 1": 1, "r.plot(), r.plot()": 2, "f": 1}
    arguments = [str(part) for pair in cells.items() for part in pair]
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    command = [sys.executable, "-c", NOTEBOOK, CELL, *arguments]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, **inline})


def test_results_problems_and_models_are_tables_and_formulas(result):
    problem = result.problem
    assert "<table" in shown(result)["text/html"]
    assert f"{result.standard_errors['k']:.2g}" in shown(result)["text/html"]
    for thing in (problem, problem.posed, problem.model):
        assert "<math" in shown(thing)["text/html"]
        assert shown(thing)["text/plain"] == repr(thing)
    assert "experiment 1" in shown(problem)["text/html"]


def test_notebook_searches_are_tables(result):
    problem = result.problem.replace(parameters={"k": cf.Parameter(0.5, bounds=(0.1, 2.0))})
    many = cf.multistart(problem, cf.SingleShooting(), starts=3, rng=0)
    few = cf.compare(problem, ["single", "multiple"], starts=2, rng=0)
    for search_result, words in (
        (many, ("Optima", "3 of 3", "The best fit")),
        (few, ("single", "multiple", "2 methods from 2 starts")),
        (cf.incremental(problem), ("horizon", "The best fit")),
        (cf.scatter_search(problem, rng=0, max_eval=100), ("simulations", "The best fit")),
    ):
        html = shown(search_result)["text/html"]
        assert all(word in html for word in words)
        assert html.count("<table") == html.count("</table>")


def test_names_are_no_html(result):
    evil = "<b>x</b>"
    problem = result.problem.replace(experiments=[result.problem.experiments[0].called(evil)], units={"x": evil})
    for thing in (problem, cf.fit(problem)):
        assert evil not in shown(thing)["text/html"]


def test_a_notebook_shows_a_fit_that_failed():
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 1})
    experiment = cf.Experiment({"x": [1.1, 1.3, 1.6]}, time=[1, 2, 3])
    failed = cf.fit(
        cf.Problem(model, experiment, parameters={"k": 0.5}), cf.SingleShooting(), cf.GaussNewton(max_iter=1)
    )
    assert "No solution" in shown(failed)["text/html"]


def test_notebook_printed_tables_are_html_tables(result):
    study, bootstrap = cf.identifiability(result, rng=0), cf.bootstrap(result, samples=4, rng=0)
    checked, compared = cf.doctor(result, starts=0), cf.compare_models({"one": result, "two": result})
    for thing, heads in (
        (study, ("moves data by", "verdict")),
        (bootstrap, ("bias", "linear")),
        (checked, ("check", "what to do")),
        (compared, ("AICc", "weight")),
    ):
        html = shown(thing)["text/html"]
        assert html.count("<table") == html.count("</table>") == 1
        assert all(head in html for head in heads)
        sentences = [part for part in thing.parts if isinstance(part, str)]
        assert html.count("<p>") == len(sentences) > 0
