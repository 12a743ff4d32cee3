"""Distribution functions: SciPy's values, and identities between them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
from numpy.testing import assert_allclose

from castfit._support.distribution_functions import (
    beta_cdf,
    chi2_cdf,
    chi2_quantile,
    chi2_tail,
    f_median,
    fair_binomial_cdf,
    log_normal_cdf,
    normal_quantile,
    t_quantile,
)

DEGREES = [0.5, 1.0, 2.0, 3.0, 7.0, 17.5, 40.0, 200.0, 499.0, 501.0, 1e5]
TAILS = [1e-15, 1e-9, 1e-4, 0.025, 0.3, 0.5, 0.84, 0.975, 0.9999]


@pytest.mark.parametrize("dof", DEGREES)
@pytest.mark.parametrize("p", TAILS)
def test_quantiles_of_student_and_of_the_normal_distribution(dof, p):
    # SciPy's own is right to 2e-11 up to version 1.15, to 2e-12 since.
    assert_allclose(t_quantile(dof, p), scipy.special.stdtrit(dof, p), rtol=1e-10, atol=1e-15)
    assert_allclose(normal_quantile(p), scipy.special.ndtri(p), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dof", DEGREES)
@pytest.mark.parametrize("factor", [1e-3, 0.3, 0.9, 1.0, 1.2, 3.0, 20.0, np.inf])
def test_chi_square(dof, factor):
    x = dof * factor
    assert_allclose(chi2_cdf(dof, x), scipy.special.chdtr(dof, x), rtol=2e-12, atol=1e-300)
    assert_allclose(chi2_tail(dof, x), scipy.special.chdtrc(dof, x), rtol=2e-12, atol=1e-300)
    assert chi2_cdf(dof, x) + chi2_tail(dof, x) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("dof", DEGREES)
@pytest.mark.parametrize("tail", [1e-9, 1e-6, 0.05, 0.5, 0.9])
def test_quantiles_of_chi_square_are_its_inverse(dof, tail):
    assert_allclose(chi2_quantile(dof, tail), scipy.special.chdtri(dof, tail), rtol=2e-12)
    assert_allclose(chi2_tail(dof, chi2_quantile(dof, tail)), tail, rtol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 5, 30])
@pytest.mark.parametrize("m", DEGREES)
def test_the_median_of_f(n, m):
    assert_allclose(f_median(n, m), scipy.special.fdtri(n, m, 0.5), rtol=2e-12)


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.5), (1.0, 1.0), (3.5, 80.0), (240.0, 240.0), (400.0, 0.5), (600.0, 30.0)])
@pytest.mark.parametrize("x", [0.0, 1e-9, 0.1, 0.5, 0.93, 1.0])
def test_the_beta_distribution(a, b, x):
    assert_allclose(beta_cdf(a, b, x), scipy.special.betainc(a, b, x), rtol=2e-12, atol=1e-300)
    assert beta_cdf(a, b, x) + beta_cdf(b, a, 1.0 - x) == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("n", [1, 2, 9, 60, 480, 700])
def test_heads_of_a_fair_coin(n):
    for k in {0, n // 3, n // 2, n - 1, n}:
        assert_allclose(fair_binomial_cdf(k, n), scipy.special.bdtr(k, n, 0.5), rtol=2e-12)


def test_logarithms_of_the_normal_distribution():
    z = np.array([-45.0, -29.0, -8.0, -1.0, 0.0, 0.5, 6.0, 29.0, np.inf])
    for some in (z, z[1:-1], np.repeat(z, 80)):
        assert_allclose(log_normal_cdf(some), scipy.special.log_ndtr(some), rtol=1e-12, atol=1e-300)
