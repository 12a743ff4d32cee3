"""Dense output: the polynomials of the steps that were taken, against the integrator's own outputs."""

import numpy as np
import pytest

import castfit as cf
from castfit.integrate import IntegratorOptions, Lanes
from castfit.integrate.dense_output import dense_output
from castfit.integrate.integrator import integrator_of


def oscillator():
    x, y = cf.symbols("x y")
    return cf.Model({x: y, y: 5 * (1 - x**2) * y - x}, initial={x: 2.0, y: 0.0})


def lane(grid):
    one = np.ones(1)
    return Lanes(one, 9.0 * one, np.array([[2.0, 0.0]]), np.zeros((1, 0)), np.zeros((1, grid, 0, 4)), np.zeros((1, 0)))


@pytest.mark.parametrize(
    ("method", "off"), [("explicit", 1e-8), ("esdirk", 1e-8), ("cvodes", 1e-4), ("rosenbrock", 1e-4)]
)
def test_polynomials_are_the_outputs(method, off):
    """To the tolerance where steps are known; else as near as parts of the time are short."""
    model, options, grid = oscillator(), IntegratorOptions(method), np.linspace(0.0, 1.0, 41)[1:]
    polynomials = dense_output(model, options, lane(1), 64, lambda t: np.zeros((t.size - 1, 0, 4)))
    expected = integrator_of(model, grid, options).values(lane(40)).x[0]
    values, rates = (
        np.array(part) for part in zip(*(polynomials.interpolate(t) for t in 1.0 + 9.0 * grid), strict=True)
    )
    np.testing.assert_allclose(values, expected, rtol=off, atol=off)
    np.testing.assert_allclose(rates[:, 0], expected[:, 1], atol=max(1e3 * off, 1e-5))
    coefficients = polynomials.coefficients(np.array([1]))
    np.testing.assert_allclose(coefficients[1:, 0, 0], polynomials.x[1:-1, 1], atol=1e-13)
    assert (coefficients.min(axis=(1, 2)) <= polynomials.x[:-1, 1] + 1e-13).all()


def test_dense_output_of_a_failed_integration_is_none():
    x = cf.symbols("x")
    model = cf.Model({x: x**2}, initial={x: 2.0})
    lanes = Lanes(
        np.zeros(1), np.ones(1), np.array([[2.0]]), np.zeros((1, 0)), np.zeros((1, 1, 0, 4)), np.zeros((1, 0))
    )
    for method in ("explicit", "cvodes"):
        assert dense_output(model, IntegratorOptions(method), lanes, 4, lambda t: np.zeros((t.size - 1, 0, 4))) is None
