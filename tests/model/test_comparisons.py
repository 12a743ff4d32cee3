"""Conditions taken apart have the truth of the condition, also where they compare piecewise values."""

from __future__ import annotations

from itertools import product

import casadi as ca
import numpy as np
import pytest

from castfit.model.comparisons import Comparisons

x, y = ca.SX.sym("x"), ca.SX.sym("y")


@pytest.mark.parametrize(
    "condition",
    [
        (ca.if_else(x > 1, 1, 0) + ca.if_else(y > 1, -1, 0)) != 0,
        (ca.if_else(x > 1, 1, 0) - ca.if_else(y >= 1, 1, 0)) == 0,
        ca.if_else(x > 1, 1, 0) > 0.5,
        (ca.if_else(x > 1, 1, 0) + ca.if_else(y > 1, 1, 0)) >= 2,
        ca.if_else(x > 1, 1, 0) * ca.if_else(y > 1, 2, 0) == 2,
        ca.if_else(x > 1, y, 2) < 1.5,
        ca.if_else(x > 1, ca.if_else(y > 1, 1, 2), 3) == 2,
        ca.if_else(x >= 1, ca.sqrt(x - 1), -1) >= 0,
        ca.if_else(x >= 1, y / 2, 0) >= 0.5,
        (x > 1) == (y > 1),
        ca.floor(x) == 1,
        ca.floor(2 * x) - 3 > 0,
        5 - 2 * ca.ceil(y) <= 3,
        ca.ceil(x / 2) != 1.5,
        ca.floor(ca.floor(2 * x) / 2) + ca.if_else(y > 1, 1, 0) >= 2,
        (x > 1) + (y > 1) == 1,
        ca.logic_and(ca.if_else(x > 1, 1, 0) - 1, y > 1),
        ca.logic_not(ca.if_else(x > 1, y > 1, x < 1)),
    ],
    ids=str,
)
def test_truth_from_signs_equals_condition(condition):
    comparisons = Comparisons.from_condition(condition)
    direct = ca.Function("direct", [x, y], [condition])
    differences = ca.Function("differences", [x, y], [ca.vertcat(*comparisons.differences)])
    for point in product([0.0, 1.0, 1.5, 2.0], repeat=2):
        truth = comparisons.function()(np.sign(np.asarray(differences(*point))))
        assert bool(truth) == bool(direct(*point))


def test_piecewise_of_numbers_has_continuous_differences():
    """The zero of x - 1 is located, instead of a jump from 0 to 1."""
    (difference,) = Comparisons.from_condition(ca.if_else(x >= 1, 1, 0) > 0.5).differences
    assert ca.is_equal(difference, x - 1, 3)


def test_condition_without_comparisons_has_its_truth():
    assert Comparisons.from_condition(ca.SX(1.0)).holds_between()
    assert not Comparisons.from_condition(ca.SX(0.0)).holds_between()
    assert not Comparisons.from_condition(ca.if_else(x > 1, 2, 3) > 4).holds_between()
