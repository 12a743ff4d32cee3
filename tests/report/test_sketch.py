"""Curves with bands that are drawn by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest

from castfit.report.figures import WIDTH, SketchPanel, sketch, ticks


@pytest.mark.parametrize(
    ("low", "high", "right"),
    [
        (0.0, 39.0, [0, 10, 20, 30]),
        (-0.32, 0.51, [-0.2, 0.0, 0.2, 0.4]),
        (1.2e6, 1.3e6, [1.2e6, 1.22e6, 1.24e6, 1.26e6, 1.28e6, 1.3e6]),
        (-3e-7, 4e-7, [-2e-7, 0.0, 2e-7, 4e-7]),
    ],
)
def test_ticks_are_round(low, high, right):
    np.testing.assert_allclose(ticks(low, high), right, rtol=1e-12, atol=1e-20)


def test_marks_stand_on_the_curve_within_the_bands():
    x = np.linspace(0, 4, 41)
    panels: list[SketchPanel] = []
    for title, unit in (("a < b", 1.0), ("c", 1e9)):
        band, mark = (0.2 * unit * np.ones(41), 0.2), (1.0, np.exp(-1) * unit, "3")
        panels.append(SketchPanel(title, "time (h)", x, np.exp(-x) * unit, [band], [mark]))
    svg = sketch(panels)
    assert f'viewBox="0 0 {2 * WIDTH} ' in svg
    assert "a &lt; b" in svg
    curves = [
        np.array([p.split(",") for p in points.split()], dtype=float)
        for points in re.findall(r'<polyline points="([^"]*)"', svg)
    ]
    first_curve, frame, second_curve, _ = curves
    np.testing.assert_allclose(first_curve[:, 1], second_curve[:, 1], atol=0.11)  # units change labels alone
    np.testing.assert_allclose(second_curve[:, 0] - first_curve[:, 0], WIDTH, atol=0.11)
    mark = re.search(r'<circle cx="([^"]*)" cy="([^"]*)"', svg)
    np.testing.assert_allclose([float(mark[1]), float(mark[2])], first_curve[10], atol=0.11)
    band = np.array([p.split(",") for p in re.search(r'<polygon points="([^"]*)"', svg)[1].split()], dtype=float)
    assert np.all(band[:41, 1] < first_curve[:, 1])
    assert np.all(band[41:, 1][::-1] > first_curve[:, 1])
    assert frame[1, 1] >= band[:, 1].max()


def test_a_constant_has_a_frame():
    flat = SketchPanel("y", "t", np.array([2.0, 2.0]), np.zeros(2), [], [])
    assert "nan" not in sketch([flat])
    assert "inf" not in sketch([flat])
