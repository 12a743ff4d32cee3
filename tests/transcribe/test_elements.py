"""Collocation tables: identities that define them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castfit._support.status import InputError
from castfit.transcribe.elements import MAX_DEGREE, SCHEMES, CollocationScheme, table

TABLES = [table(scheme, degree) for scheme in SCHEMES for degree in range(1, MAX_DEGREE + 1)]
every_table = pytest.mark.parametrize("chosen", TABLES, ids=lambda c: f"{c.scheme}{c.degree}")


def runge_kutta(chosen: CollocationScheme) -> np.ndarray:
    """Butcher's matrix: element (i, j) is the integral of algebraic basis polynomial j from 0 to c_i."""
    tau, weight = np.polynomial.legendre.leggauss(chosen.degree)
    inside = chosen.points[:, None] * 0.5 * (1 + tau)
    return np.einsum("i,n,inj->ij", chosen.points, 0.5 * weight, chosen.algebraic_basis(inside))


@every_table
def test_points_increase_within_the_element(chosen):
    assert chosen.points.shape == (chosen.degree,)
    assert (np.diff(chosen.nodes) > 0).all()
    assert chosen.points[-1] <= 1
    assert (chosen.points[-1] == 1) == (chosen.scheme == "radau")


@every_table
def test_derivative_is_exact_up_to_the_degree(chosen):
    for power in range(chosen.degree + 1):
        exact = power * chosen.points ** max(power - 1, 0)
        np.testing.assert_allclose(chosen.derivative @ chosen.nodes**power, exact, atol=1e-13)


@every_table
def test_derivative_is_that_of_the_basis(chosen):
    step = 1e-3
    offsets, coefficients = np.array([-2, -1, 1, 2]) * step, np.array([1, -8, 8, -1]) / (12 * step)
    shifted = chosen.state_basis(chosen.points[:, None] + offsets)
    np.testing.assert_allclose(np.einsum("n,inj->ij", coefficients, shifted), chosen.derivative, rtol=1e-5, atol=1e-5)


@every_table
def test_rows_of_the_derivative_sum_to_zero(chosen):
    assert np.abs(chosen.derivative.sum(axis=1)).max() < 1e-13


@every_table
def test_end_weights_extrapolate_polynomials(chosen):
    for power in range(chosen.degree + 1):
        assert chosen.end @ chosen.nodes**power == pytest.approx(1, abs=1e-13)
    if chosen.scheme == "radau":
        assert (chosen.end == np.eye(chosen.degree + 1)[-1]).all()


@every_table
def test_quadrature_is_exact_up_to_its_order_and_no_further(chosen):
    for power in range(chosen.order):
        assert chosen.weights @ chosen.points**power == pytest.approx(1 / (power + 1), abs=1e-14)
    # The error of the first power beyond is known exactly: it is that of the squared node polynomial.
    quadrature_error = chosen.weights @ chosen.points**chosen.order - 1 / (chosen.order + 1)
    tau, weight = np.polynomial.legendre.leggauss(chosen.degree + 1)
    monic = (0.5 * (1 + tau)[:, None] - chosen.points).prod(axis=1)
    node_integral = 0.5 * weight @ (monic * (0.5 * (1 + tau)) ** (chosen.order - chosen.degree))
    assert quadrature_error == pytest.approx(-node_integral, abs=1e-15)
    assert node_integral != 0


@every_table
def test_basis_is_a_unit_vector_at_its_nodes(chosen):
    assert (chosen.state_basis(chosen.nodes) == np.eye(chosen.degree + 1)).all()
    assert (chosen.algebraic_basis(chosen.points) == np.eye(chosen.degree)).all()


@given(chosen=st.sampled_from(TABLES), tau=st.floats(-0.1, 1.1), seed=st.integers(0, 1000))
def test_interpolation_reproduces_polynomials(chosen, tau, seed):
    state = np.polynomial.Polynomial(np.random.default_rng(seed).standard_normal(chosen.degree + 1))
    algebraic = state.deriv()
    assert chosen.state_basis(tau) @ state(chosen.nodes) == pytest.approx(state(tau), abs=1e-12)
    assert chosen.algebraic_basis(tau) @ algebraic(chosen.points) == pytest.approx(algebraic(tau), abs=1e-11)


def test_basis_keeps_leading_axes():
    chosen = table("radau", 3)
    assert chosen.state_basis(np.zeros((5, 2))).shape == (5, 2, 4)
    assert chosen.algebraic_basis(0.5).shape == (3,)


@every_table
def test_collocation_is_the_runge_kutta_method(chosen):
    # Row i of the differentiation matrix undoes the integration: D_x A = I and D_0 = -D_x 1.
    inner = chosen.derivative[:, 1:]
    np.testing.assert_allclose(inner @ runge_kutta(chosen), np.eye(chosen.degree), atol=1e-12)
    np.testing.assert_allclose(chosen.derivative[:, 0], -inner.sum(axis=1), atol=1e-12)


def pade(z: complex, k: int, j: int) -> complex:
    """Numerator degree k, denominator degree j (Hairer and Wanner 1996, theorem IV.3.11)."""

    def one(z: complex, k: int, j: int) -> complex:
        f = math.factorial
        return sum(f(j + k - i) * f(k) / (f(j + k) * f(k - i) * f(i)) * z**i for i in range(k + 1))

    return one(z, k, j) / one(-z, j, k)


@every_table
@pytest.mark.parametrize("z", [-1.0, 3j, 0.5 + 0.5j, -20.0 + 2j, -1e6])
def test_stability_function_is_the_pade_approximation_of_exp(chosen, z):
    inner = chosen.derivative[:, 1:] - z * np.eye(chosen.degree)
    amplification = chosen.end @ np.concatenate([[1.0], np.linalg.solve(inner, -chosen.derivative[:, 0])])
    expected = pade(z, chosen.degree - (chosen.scheme == "radau"), chosen.degree)
    assert amplification == pytest.approx(expected, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(
    ("scheme", "degree", "message"),
    [
        ("radua", 3, "did you mean 'radau'"),
        ("legendre", 0, "degree is 0; give an integer from 1 to 11"),
        ("radau", 12, "degree is 12"),
    ],
)
def test_unknown_tables_are_refused(scheme, degree, message):
    with pytest.raises(InputError, match=message):
        table(scheme, degree)
