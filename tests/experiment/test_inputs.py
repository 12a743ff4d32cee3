"""Input signals: values, local cubics, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline, PchipInterpolator

from castfit._support.status import InputError
from castfit.experiment.inputs import Input
from tests.builders import refused

MAKERS = {
    "piecewise_constant": Input.piecewise_constant,
    "linear": Input.linear,
    "pchip": Input.pchip,
    "cubic_spline": Input.cubic_spline,
}


@st.composite
def signals(draw) -> Input:
    """Draw an input of any kind, with irregular points."""
    kind = draw(st.sampled_from(["constant", *MAKERS]))
    if kind == "constant":
        return Input.constant(draw(st.floats(-5, 5)))
    steps = draw(st.lists(st.floats(0.05, 3.0), min_size=4, max_size=8))
    values = draw(st.lists(st.floats(-10, 10), min_size=len(steps), max_size=len(steps)))
    return MAKERS[kind](draw(st.floats(-3, 3)) + np.cumsum(steps), values)


@given(signal=signals(), extra=st.lists(st.floats(0, 1), max_size=6), inside=st.floats(0.01, 0.99))
def test_cubics_reproduce_the_signal(signal, extra, inside):
    first_time, last_time = np.clip(signal.span, -3.0, 30.0)
    edges = np.unique(
        np.concatenate(
            [signal.breakpoints, first_time + np.array(extra) * (last_time - first_time), [first_time, last_time]]
        )
    )
    edges = edges[np.concatenate([[True], np.diff(edges) > 1e-6])]
    coefficients = signal.cubics(edges)
    offset = inside * np.diff(edges)
    actual = (coefficients * offset[:, None] ** np.arange(4)).sum(axis=1)
    size = 1 + np.abs(signal.values).max()
    np.testing.assert_allclose(actual, signal(edges[:-1] + offset), atol=1e-9 * size)


@given(signal=signals())
def test_cubics_forgive_an_edge_that_is_off_by_rounding(signal):
    if signal.kind == "constant":
        return
    edges = signal.breakpoints
    off = np.nextafter(edges, np.inf)
    np.testing.assert_allclose(signal.cubics(off), signal.cubics(edges), rtol=1e-9, atol=1e-9)


def test_kinds_are_the_known_ones():
    t, y = np.array([0.0, 1.0, 2.5, 4.0, 5.0]), np.array([1.0, 3.0, -1.0, 0.0, 2.0])
    times = np.linspace(0, 5, 31)
    np.testing.assert_allclose(Input.linear(t, y)(times), np.interp(times, t, y), atol=1e-14)
    np.testing.assert_array_equal(Input.pchip(t, y)(times), PchipInterpolator(t, y)(times))
    np.testing.assert_array_equal(Input.cubic_spline(t, y)(times), CubicSpline(t, y)(times))
    np.testing.assert_array_equal(Input.constant(7)([-1e9, 0, 1e9]), 7.0)


def test_slopes_that_are_almost_zero():
    assert Input.pchip([0, 1, 2, 3], [0, 0, 0, 1e-309])(2.5) >= 0.0


def test_steps_are_continuous_from_the_right_and_hold_on():
    step = Input.piecewise_constant([1, 2, 5], [10, 20, 30])
    np.testing.assert_array_equal(step([0, 1, 1.9, 2, 4.9, 5, 99]), [10, 10, 10, 20, 20, 30, 30])
    assert step.span == (1.0, np.inf)
    assert step.breakpoints.tolist() == [1.0, 2.0, 5.0]
    assert Input.constant(1).breakpoints.size == 0


def test_points_are_copied_and_locked():
    t = np.array([0.0, 1.0])
    signal = Input.linear(t, [1, 2])
    t[0] = 9.0
    assert signal(0.0) == 1.0
    with pytest.raises(ValueError, match="read-only"):
        signal.values[0] = 0.0


def test_pickling_and_comparison():
    signal = Input.pchip([0, 1, 3], [1, 2, 0])
    pickled_signal = pickle.loads(pickle.dumps(signal))
    np.testing.assert_array_equal(pickled_signal([0.3, 2.0]), signal([0.3, 2.0]))
    assert signal != pickled_signal  # signals are compared by identity, not by arrays
    assert len({signal, pickled_signal}) == 2


def test_generators_and_tuples_are_points():
    signal = Input.linear((t for t in (0, 1, 2)), {"a": 1, "b": 2, "c": 5}.values())
    assert signal(1.5) == 3.5


@pytest.mark.parametrize(
    ("times", "values", "phrase"),
    [
        ([0, 1, 2], [1, 2], "times has shape (3,) and values (2,)"),
        ([[0, 1]], [[1, 2]], "times has shape (1, 2)"),
        ([0], [1], "1 points given; this kind needs at least 2"),
        ([], [], "0 points given"),
        ([0, 0], [1, 2], "times must increase strictly; look at t = 0"),
        ([0, 2, 1], [1, 2, 3], "look at t = 1"),
        ([0, np.nan], [1, 2], "times is [0, nan]; give finite numbers"),
        ([0, 1], [1, None], "values is [1, None]; give finite numbers"),
        ([0, 1], [1, np.inf], "values is [1, inf]"),
        ([0, 1], ["1", "2"], "values is ['1', '2']"),
        ([0, 1], [True, False], "values is [True, False]"),
        ([0, 1], [1j, 2], "values is [1j, 2]"),
        (None, [1, 2], "times is None"),
        ("ab", [1, 2], "times is 'ab'"),
        ([0, 1], [[1], [2, 3]], "values is [[1], [2, 3]]"),
    ],
)
def test_wrong_points_are_refused(times, values, phrase):
    with refused(phrase):
        Input.linear(times, values)


def test_input_lists_all_mistakes():
    with refused("kind is 'cubic': did you mean 'cubic_spline'?", "times is ['a']", "values is [nan]"):
        Input("cubic", ["a"], [np.nan])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["1", None, np.nan, np.inf, 1j, True, [1.0], {}, object()])
def test_constants_are_finite_numbers(value):
    with pytest.raises(InputError, match=r"the value is .*; give a finite number"):
        Input.constant(value)


def test_too_few_points_for_a_spline():
    with refused("3 points given; this kind needs at least 4"):
        Input.cubic_spline([0, 1, 2], [0, 1, 2])
