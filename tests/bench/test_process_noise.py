"""The figures of models that err: the reactor that a filter loses, and errors that depend on each other."""

from __future__ import annotations

import numpy as np
import pytest

from castfit._bench import batch_reactor, correlated_errors


def test_derivatives_of_the_reactors_flow_are_those_of_differences():
    x, h = np.array([0.4, 0.2, 0.1]), 1e-6
    end, slope = batch_reactor.flow(x)
    for j, column in enumerate(np.eye(3)):
        ahead, behind = batch_reactor.flow(x + h * column)[0], batch_reactor.flow(x - h * column)[0]
        assert slope[:, j] == pytest.approx((ahead - behind) / (2 * h), abs=1e-8)
    mass = np.array([3.0, 1.0, 2.0])  # A = B + C, 2 B = C
    assert mass @ end == pytest.approx(mass @ x, rel=1e-12)


@pytest.mark.slow
def test_a_filter_loses_the_reactor_and_a_horizon_does_not():
    values_by_figure = {row.figure: row.found for row in batch_reactor.rows(2, 0)}
    assert values_by_figure["least concentration of the extended filter"] < -1.0
    assert values_by_figure["error at t = 30, extended Kalman filter"] > 0.3
    assert values_by_figure["error at t = 30, the same, clipped at 0"] > 10.0
    assert values_by_figure["error at t = 30, moving horizon 20"] < 0.01
    assert values_by_figure["within 0.05 from t on, moving horizon 20"] < 8.0


def test_correlated_errors_are_those_of_dense_algebra():
    for row in [*correlated_errors.line(3), *correlated_errors.determinant(3)]:
        assert row.found == pytest.approx(row.reference, rel=1e-6)
