"""Counts and means per interval are drawn as such: held over the interval, not as they come together."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf

WEEKS = np.array([1.0, 2.0, 3.5, 4.0, 6.0])


def fitted() -> cf.Result:
    """A rate that falls, counted per interval, and the state itself beside it."""
    x, k = cf.symbols("x k")
    outputs = {"cases": cf.per_interval(10 * x), "mean": cf.interval_mean(x), "now": x}
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 5.0}, outputs=outputs)
    edges = np.append(0.0, WEEKS)
    cases = -np.diff(50 / 0.3 * np.exp(-0.3 * edges))
    data = {"cases": cases, "mean": cases / 10 / np.diff(edges), "now": 5 * np.exp(-0.3 * WEEKS)}
    return cf.fit(cf.Problem(model, cf.Experiment(data, time=WEEKS, sigma=0.5), parameters={"k": 0.5}))


def test_a_count_is_held_over_its_interval_and_a_state_is_a_curve() -> None:
    result = fitted()
    figure = result.plot()
    lines = [line for axes in figure.axes for line in axes.lines if line.get_linestyle() == "-"]
    curves = [line for line in lines if np.size(line.get_xdata()) > 2]
    steps = [line for line in curves if line.get_drawstyle() == "steps-pre"]
    assert len(steps) == 2
    assert [line for line in curves if line.get_drawstyle() == "default"]
    for line, name in zip(steps, ("cases", "mean"), strict=True):
        assert np.asarray(line.get_xdata()) == pytest.approx(np.append(0.0, WEEKS))
        values = result.predict()[name]
        assert np.asarray(line.get_ydata()) == pytest.approx(np.append(values[0], values), rel=1e-6)


def test_bands_of_counts_do_not_fall_to_zero() -> None:
    result = fitted()
    figure = result.plot(bands="linear")
    shades = [c for axes in figure.axes for c in axes.collections if c.get_paths() and c.get_alpha() == 0.2]
    assert shades
    lowest = min(float(path.vertices[:, 1].min()) for path in shades[0].get_paths())
    assert lowest > 0.5 * float(np.min(result.predict()["cases"]))
