"""Expressions at more points than are evaluated at once: the same numbers."""

from __future__ import annotations

import casadi as ca
import numpy as np

from castfit._support import casadi_functions as _casadi
from castfit._support.casadi_functions import BatchedFunction


def test_points_in_parts_are_points(monkeypatch):
    x, p = ca.SX.sym("x", 2), ca.SX.sym("p", 3)
    mapped = BatchedFunction("f", [x, p], ca.vertcat(x[0] * p[1], ca.sin(x[1]) * p[2], p[0]))
    points, parameters = np.random.default_rng(0).standard_normal((101, 7, 2)), np.array([2.0, -1.0, 0.5])
    expected, each = mapped(points, parameters).copy(), np.linspace(0, 1, 303).reshape(101, 1, 3)
    expected_each, expected_row = mapped(points, each).copy(), mapped(points[0], parameters).copy()
    for max_count in (50, 7, 3):  # of which the last is too few for a row of seven
        monkeypatch.setattr(_casadi, "_MAX_POINTS_PER_CALL", max_count)
        np.testing.assert_array_equal(mapped(points, parameters), expected)
        np.testing.assert_array_equal(mapped(points, each), expected_each)
        np.testing.assert_array_equal(mapped(points[0], parameters), expected_row)
    np.testing.assert_allclose(expected[..., 1, 0], 0.5 * np.sin(points[..., 1]), rtol=1e-15)


def test_batched_function_large_matrix_omits_structural_zeros(monkeypatch):
    x = ca.SX.sym("x", 40)
    jacobian = ca.jacobian(x**2 * ca.vertcat(x[1:], x[0]), x)
    points = np.random.default_rng(0).standard_normal((5, 3, 40))
    mapped = BatchedFunction("f", [x], jacobian)
    assert mapped.places[0].size == 80
    monkeypatch.setattr(_casadi, "_SPARSE", (10_000, 0.25))
    dense_function = BatchedFunction("f", [x], jacobian)
    assert dense_function.places[0].size == 1600
    np.testing.assert_array_equal(mapped(points), dense_function(points))
    rows, columns = mapped.places
    np.testing.assert_array_equal(mapped.entries(points), dense_function(points)[..., rows, columns])
    expected = mapped(points).copy()
    monkeypatch.setattr(_casadi, "_MAX_BUFFER_ENTRIES", 300)  # three points at once
    np.testing.assert_array_equal(mapped(points), expected)
