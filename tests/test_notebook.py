"""What a notebook shows of our objects, asked as IPython asks."""

from __future__ import annotations

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
        found = shown(figure)
        assert found["image/png"].startswith(b"\x89PNG")
        assert "data:image/png;base64," in found["text/html"]
        assert found["text/plain"].startswith("<Picture of ")


def test_no_figure_needs_pyplot():
    code = (
        "import sys, castfit as cf; x, k = cf.symbols('x k');"
        "e = cf.Experiment({'x': [1.0, 0.6, 0.3]}, time=[0, 1, 2], sigma=0.1);"
        "r = cf.fit(cf.Problem(cf.Model({x: -k * x}, parameters=[k], initial={x: 1}), e, parameters={'k': 0.5}));"
        "assert 'matplotlib' not in sys.modules; r.plot()._repr_html_(); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
