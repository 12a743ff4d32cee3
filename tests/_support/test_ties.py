"""Values that agree to rounding: the first of them wins, whatever the last digits are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from castfit._support.ties import TIE_RTOL, first_argmax, first_argmin, stable_order

# Integers of magnitude 0 to 20: two of them are the same number, or differ by far more than the tolerance.
INTEGERS = arrays(float, st.integers(1, 12), elements=st.integers(-20, 20).map(float))
FACTORS = st.sampled_from([1e-30, 1e-3, 1.0, 1e12])
SEEDS = st.integers(0, 2**32 - 1)


def perturbed(values, seed):
    return values * (1.0 + 1e-12 * np.random.default_rng(seed).uniform(-1.0, 1.0, values.size))


@given(INTEGERS, FACTORS, SEEDS)
def test_indices_do_not_change_under_relative_perturbations_of_1e_12(values, factor, seed):
    noisy = perturbed(factor * values, seed)
    assert first_argmax(noisy) == np.argmax(values)
    assert first_argmin(noisy) == np.argmin(values)
    np.testing.assert_array_equal(stable_order(noisy), np.argsort(values, kind="stable"))
    np.testing.assert_array_equal(stable_order(noisy, descending=True), np.argsort(-values, kind="stable"))


@given(arrays(float, st.integers(1, 12), elements=st.integers(-1000, 1000).map(float), unique=True), SEEDS)
def test_indices_equal_those_of_numpy_if_gaps_are_large(values, seed):
    noisy = perturbed(values, seed)
    assert first_argmax(noisy) == np.argmax(noisy)
    assert first_argmin(noisy) == np.argmin(noisy)
    np.testing.assert_array_equal(stable_order(noisy), np.argsort(noisy))
    np.testing.assert_array_equal(stable_order(noisy, descending=True), np.argsort(-noisy))


@given(
    arrays(float, st.integers(1, 12), elements=st.sampled_from([-np.inf, -1.0, -1.0 - 1e-12, 0.0, 1.0, np.inf, np.nan]))
)
def test_the_order_is_a_permutation_that_begins_with_the_extreme_value(values):
    for descending, first in ((False, first_argmin), (True, first_argmax)):
        order = stable_order(values, descending=descending)
        assert sorted(order) == list(range(values.size))
        assert order[0] == first(values)
        n_nan = int(np.isnan(values).sum())
        assert np.isnan(values[order[values.size - n_nan :]]).all()


def test_infinity_equals_only_itself():
    assert first_argmax([1e308, np.inf, np.inf]) == 1
    assert first_argmin([1e308, -np.inf, -np.inf]) == 1
    assert stable_order([np.inf, 1.0, np.inf, -np.inf]).tolist() == [3, 1, 0, 2]


def test_nan_is_worse_than_every_number():
    assert first_argmax([np.nan, -np.inf]) == 1
    assert first_argmin([np.nan, np.inf]) == 1
    assert first_argmin([np.nan, np.nan]) == first_argmax([np.nan, np.nan]) == 0
    assert stable_order([np.nan, 2.0, np.nan, 1.0]).tolist() == [3, 1, 0, 2]


def test_scale_sets_the_magnitude_that_differences_are_compared_with():
    assert first_argmin([1e-12, 0.0]) == 1
    assert first_argmin([1e-12, 0.0], scale=1.0) == 0
    assert stable_order([2e-12, 1e-12, -1.0], scale=1.0).tolist() == [2, 0, 1]


def test_differences_above_the_tolerance_are_no_ties():
    assert first_argmax([1.0, 1.0 + 0.5 * TIE_RTOL]) == 0
    assert first_argmax([1.0, 1.0 + 2.0 * TIE_RTOL]) == 1


def test_empty_sequences():
    assert stable_order([]).size == 0
    with pytest.raises(ValueError, match="zero-size"):
        first_argmin([])
