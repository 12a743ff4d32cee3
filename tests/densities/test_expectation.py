"""The information of densities of which only the cost is known."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

import castfit as cf
from castfit.densities.noise.density import density_functions

S = ca.SX.sym("s")


def information(noise: cf.Noise, eta: np.ndarray, datum: np.ndarray) -> np.ndarray:
    """Return K K^T of each datum, from what multiplies its rows."""
    functions, one = density_functions(noise, computed=False), np.ones(datum.size)
    root = functions.information(eta, one, datum) @ functions.slopes(eta, one, datum)
    return np.swapaxes(root, 1, 2) @ root


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_normal_errors_have_the_information_of_normal_errors(unit):
    noise = cf.Likelihood(lambda mu, m: 0.5 * ((m - mu) / S) ** 2 + ca.log(S) + 0.5 * np.log(2 * np.pi))
    s = 2.0 * unit
    eta = np.array([[3.0 * unit, s], [-10.0 * unit, s], [0.2 * unit, s]])
    actual = information(noise, eta, np.array([4.1, -9.0, 0.5]) * unit)
    np.testing.assert_allclose(actual * unit**2, np.tile(np.diag([0.25, 0.5]), (3, 1, 1)), atol=1e-8)


def test_counts_have_the_information_of_counts():
    noise = cf.Likelihood(lambda mu, m: mu - m * ca.log(mu) + ca.SX(0) * S + log_factorial(m))
    eta = np.array([[3.0], [50.0], [0.5]])
    actual = information(noise, eta[:, :1], np.array([2.0, 61.0, 0.0]))
    np.testing.assert_allclose(actual[:, 0, 0], 1 / eta[:, 0], rtol=1e-8)


def test_a_cost_that_is_no_density_has_the_products_of_its_scores():
    noise = cf.Likelihood(lambda mu, m: ca.fabs(mu - m) ** 1.5)
    actual = information(noise, np.array([[3.0], [5.0]]), np.array([2.0, 9.5]))
    np.testing.assert_allclose(actual[:, 0, 0], [1.5**2 * 1.0, 1.5**2 * 4.5], rtol=1e-8)


def log_factorial(m: ca.SX) -> ca.SX:
    """Return log m! by Stirling's series for m + 8, and the recurrence."""
    x = m + 8
    series = (x + 0.5) * ca.log(x) - x + 0.5 * np.log(2 * np.pi) + 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)
    return series - sum((ca.log(m + k) for k in range(1, 9)), ca.SX(0))
