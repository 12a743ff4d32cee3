"""Bounds of expressions: no value lies outside, whatever the operation, and jumps are told."""

import casadi as ca
import numpy as np
import pytest

from castfit.integrate.intervals import Enclosure, may_jump

X, Y = ca.SX.sym("x"), ca.SX.sym("y")
EXPRESSIONS = [
    X + Y, X - Y, X * Y, X / Y, X**2, X**3, X**-2, X**Y, ca.sqrt(X), ca.exp(X), ca.log(Y), ca.sin(7 * X), ca.cos(X * Y),
    ca.tan(X), ca.asin(X / 4), ca.acos(Y / 4), ca.atan(X), ca.sinh(X), ca.cosh(X), ca.tanh(X), ca.asinh(X), ca.erf(X),
    ca.acosh(Y), ca.atanh(X / 4), ca.log1p(X), ca.expm1(X), ca.fabs(X), ca.fmin(X, Y), ca.fmax(X, Y), ca.atan2(X, Y),
    ca.hypot(X, Y), ca.floor(3 * X), ca.ceil(3 * Y), ca.sign(X), ca.fmod(5 * X, 2), ca.remainder(5 * X, 2),
    ca.copysign(X, Y), ca.if_else(X < Y, X, Y**2), ca.if_else(X <= 0, 1, ca.if_else(X == Y, 2, 3)), -X, 1 / Y, 2 * X,
    ca.if_else(ca.logic_and(X > 0, ca.logic_not(Y > 1)), X, 5), ca.if_else(ca.logic_or(X > 1, Y != 0), 2, X * Y),
]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_values_lie_between_the_bounds(expression):
    """Also those at points, where bounds are the values."""
    rng = np.random.default_rng(1)
    enclosure, value = Enclosure(ca.vertcat(X, Y), expression), ca.Function("value", [X, Y], [expression])
    low = rng.uniform(-3.0, 3.0, (300, 2))
    high = low + rng.exponential(0.7, (300, 2)) * rng.integers(0, 2, (300, 2))
    bottom, top, _ = enclosure(low, high)
    for part in rng.uniform(0.0, 1.0, (25, 2)):
        samples = low + part * (high - low)
        values = np.array(value(samples[:, 0][None], samples[:, 1][None])).ravel()
        is_finite = np.isfinite(values)
        slack = 1e-12 * (1.0 + np.abs(values[is_finite]))
        assert (bottom[is_finite, 0] - slack <= values[is_finite]).all()
        assert (values[is_finite] <= top[is_finite, 0] + slack).all()
    points = np.array(value(low[:, 0][None], low[:, 1][None])).ravel()
    is_finite = np.isfinite(points)
    for bound in enclosure(low, low)[:2]:
        np.testing.assert_allclose(bound[is_finite, 0], points[is_finite], rtol=1e-12, atol=1e-12)


def test_bounds_become_narrow():
    enclosure = Enclosure(ca.vertcat(X, Y), ca.sin(X) * Y - ca.exp(-X))
    widths = []
    for width in (1e-2, 1e-4):
        low, high, _ = enclosure(np.array([[0.3, 2.0]]), np.array([[0.3 + width, 2.0 + width]]))
        widths.append(float(high[0, 0] - low[0, 0]))
    assert widths[1] == pytest.approx(widths[0] / 100, rel=0.05)


def test_enclosure_marks_possible_jumps():
    lower_bounds = np.array([[0.2, 0.0], [0.9, 0.0]])
    for expression in (ca.floor(X), ca.if_else(X < 1, 3, 4), ca.fmod(X, 1)):
        assert Enclosure(ca.vertcat(X, Y), expression)(lower_bounds, lower_bounds + 0.3)[2].tolist() == [False, True]
        assert may_jump(expression)
    assert not may_jump(ca.fabs(X) + ca.fmax(X, Y))


def test_interval_of_an_unknown_operation_is_unbounded():
    low, high, jump = Enclosure(ca.vertcat(X, Y), ca.erfinv(X / 9))(np.zeros((1, 2)), np.ones((1, 2)))
    assert (low[0, 0], high[0, 0], jump[0]) == (-np.inf, np.inf, True)
