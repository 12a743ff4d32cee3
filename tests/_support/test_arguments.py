"""Reading what users give: numbers stay numbers, nothing else becomes one."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import casadi as ca
import numpy as np
import pandas as pd
import pytest

from castfit._support.arguments import (
    is_one_of,
    read_mapping,
    read_real,
    read_reals,
    read_sequence,
    shorten_repr,
    symbol_or_text_name,
)
from castfit._support.status import suggest

ONES = [1, 1.0, np.float32(1), np.int8(1), np.array(1), Decimal(1), Fraction(1), np.uint64(1)]


@pytest.mark.parametrize("one", ONES, ids=lambda one: type(one).__name__)
def test_numbers(one):
    assert read_real(one) == 1.0
    assert type(read_real(one)) is float
    np.testing.assert_array_equal(read_reals([one, one]), [1.0, 1.0])


OTHERS = ["1", b"1", True, np.bool_(True), 1j, np.complex64(1), ca.SX(1), ca.MX(1), {}, {1}, object(),
          np.datetime64("2020"), np.datetime64(1, "ns"), np.timedelta64(1, "ns"), 10**400]  # fmt: skip


@pytest.mark.parametrize("other", OTHERS, ids=[f"other{i}" for i in range(len(OTHERS))])
def test_other_things_are_no_numbers(other):
    assert read_real(other) is None
    assert read_reals([other]) is None
    assert read_reals(np.array([1.0, other], dtype=object)) is None


def test_valid_names_are_listed_where_none_is_near():
    assert suggest("q", ["k", "m"]) == "choose from k, m"
    assert suggest("K", ["k", "m"]) == "did you mean 'k'? (valid: k, m)"
    assert suggest("q", []) == "there are none"
    assert suggest("q", map(str, range(1000))).endswith(", 49, and 950 more")


def test_arrays_are_no_single_number():
    assert read_real(None) is None
    assert read_real(pd.NA) is None
    assert read_real([1.0]) is None
    assert read_real(np.array([1.0])) is None
    assert np.isnan(read_real(np.nan))


def test_read_reals_missing_values_become_nan():
    masked = np.ma.masked_array([[1, 2], [3, 4]], mask=[[0, 1], [0, 0]])
    np.testing.assert_array_equal(read_reals(masked), [[1, np.nan], [3, 4]])
    np.testing.assert_array_equal(read_reals([1, None]), [1, np.nan])
    np.testing.assert_array_equal(read_reals(pd.array([1, pd.NA], dtype="Int64")), [1, np.nan])


def test_arrays_are_copies():
    values = np.ones(2)
    result = read_reals(values)
    assert result is not None
    result[0] = 5.0
    assert values[0] == 1.0


def test_iterators_are_read_and_ragged_rows_are_not():
    assert read_reals(iter([1, 2])).tolist() == [1, 2]
    assert read_reals({"a": 1}.values()).tolist() == [1]
    assert read_reals([[1], [2, 3]]) is None


def test_names():
    x = ca.SX.sym("x")
    assert (symbol_or_text_name("a"), symbol_or_text_name(x), symbol_or_text_name(x + 1), symbol_or_text_name(1)) == (
        "a",
        "x",
        None,
        None,
    )
    mistakes: list[str] = []
    assert read_mapping("things", {"x": 1, x: 2, 3: 4, "y": 5}, mistakes) == {"x": 1, "y": 5}
    assert mistakes == ["things names 'x' twice", "things has the key 3; give a name"]
    assert read_mapping("things", None, mistakes) == {}
    assert read_mapping("things", [], mistakes) == {}
    assert mistakes[2:] == ["things is a list; give a mapping from names, {name: ...}"]


def test_items():
    assert read_sequence(i for i in (1, 2)) == [1, 2]
    assert read_sequence(np.array([1, 2])) == [1, 2]
    for single in ("ab", {"a": 1}, ca.SX.sym("x", 2), ca.DM([1, 2]), np.array(1), None, 3):
        assert read_sequence(single) is None


def test_choices():
    assert is_one_of("a", "a", "b")
    assert is_one_of(None, None)
    for other in ("c", 1, None, np.array(["a", "b"]), ["a"], pd.Series(["a"])):
        assert not is_one_of(other, "a", "b")


def test_text_is_one_short_line():
    assert shorten_repr("a\nb") == r"'a\nb'"
    assert shorten_repr(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
    assert len(shorten_repr("x" * 100)) == 60
