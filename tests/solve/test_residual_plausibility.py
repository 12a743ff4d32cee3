"""From when on residuals are too large to be noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

import castfit as cf
from castfit._bench.textbook_models import MODELS
from castfit.solve.residual_plausibility import IMPLAUSIBLE_P_VALUE, LARGE_SQUARE, large_square


@pytest.mark.parametrize("n", [1, 5, 12, 13, 20, 40, 69, 70, 1000, 100_000])
def test_noise_is_hardly_ever_taken_for_a_bad_fit(n):
    threshold = large_square(n)
    lower_limit, upper_limit = LARGE_SQUARE
    assert lower_limit <= threshold <= upper_limit
    if lower_limit < threshold < upper_limit:
        assert chi2.sf(n * threshold, n) == pytest.approx(IMPLAUSIBLE_P_VALUE, rel=1e-6)
    elif threshold == lower_limit:
        assert chi2.sf(n * threshold, n) <= IMPLAUSIBLE_P_VALUE
    else:
        assert chi2.sf(n * threshold, n) >= IMPLAUSIBLE_P_VALUE


@pytest.mark.slow
def test_an_optimum_a_little_below_four_is_left_for_the_best_one():
    name = "Lotka-Volterra"
    problem, place = MODELS[name].one_output(), tuple(MODELS).index(name)
    result = cf.fit(problem, start=MODELS[name].far_start((20, 0, place)))
    assert result.success
    assert result.chi2 < 1.5 * np.size(result.residuals)
