"""Numbers in tables have the digits that their uncertainty deserves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit._support.text_tables import format_interval


@pytest.mark.parametrize(
    ("interval", "value", "expected"),
    [
        ((2.024, 2.884), 2.454, "[2.024, 2.884]"),
        ((2.07e-4, 185744.5), 6.2, "[0.00021, 1.857e+05]"),
        ((-0.5, 0.5), 0.0, "[-0.500, 0.500]"),
        ((0.0, 3.0), 1.0, "[0.000, 3.00]"),
        ((np.nan, 1.0), 1.0, "-"),
    ],
)
def test_interval_ends_have_digits_of_their_own_size(interval, value, expected):
    assert format_interval(interval, value) == expected


@given(st.floats(-8, 8), st.floats(0.1, 8), st.floats(0.1, 8))
def test_interval_on_a_log_scale_keeps_two_digits_of_each_end(log_value, below, above):
    """An end that is not zero is never printed as zero, nor off by more than its second digit."""
    value = 10.0**log_value
    ends = value * 10.0**-below, value * 10.0**above
    printed = [float(end) for end in format_interval(ends, value).strip("[]").split(", ")]
    assert printed == pytest.approx(ends, rel=0.05)


def test_lower_end_of_a_log_scale_interval_is_not_printed_as_zero():
    """A decay that is known from below only: its interval spans nine decades."""
    x, k, a = cf.symbols("x k a")
    model = cf.Model({x: -k * (x - a)}, parameters=[k, a], initial={x: 2.0})
    guesses = {
        "k": cf.Parameter(3, lower=1e-3, upper=1e3, scale="log"),
        "a": cf.Parameter(0.5, lower=1e-3, scale="log"),
    }
    experiment = cf.Experiment({"x": [0.503, 0.50, 0.50]}, time=[1.0, 2.0, 3.0], sigma=0.08)
    result = cf.fit(cf.Problem(model, experiment, parameters=guesses))
    assert result.confidence_intervals()["k"][0] == pytest.approx(2.1e-4, rel=0.05)
    assert "[0.00021, 1.857e+05]" in str(result)
