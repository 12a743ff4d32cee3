"""PEtab's formulas mean what its specification says, and what cannot be read is told with its place."""

from __future__ import annotations

import math

import casadi as ca
import numpy as np
import pytest

from castfit.formats.petab.parsing import FormulaError, expression, names_in

A, B, C = 0.7, 2.5, -1.2
MEANT = {
    "a + b * c": A + B * C,
    "a - b - c": A - B - C,
    "b / a / 2": B / A / 2,
    "-a^2": -(A**2),
    "b^-a^2": B ** -(A**2),
    "2^3^0.5": 2 ** (3**0.5),
    "-a * -b": A * B,
    "+a + 1.5e-1": A + 0.15,
    "(a + b) * 2": 2 * (A + B),
    "exp(-a) + ln(b) + log(b) + log(b, 3)": math.exp(-A) + 2 * math.log(B) + math.log(B, 3),
    "log2(b) + log10(b)": math.log2(B) + math.log10(B),
    "sqrt(abs(c)) * sign(c)": -math.sqrt(1.2),
    "min(a, c) + max(a, b) + pow(b, a)": C + B + B**A,
    "tanh(a) + sec(a) + arccot(b) + arcsinh(c)": math.tanh(A) + 1 / math.cos(A) + math.atan(1 / B) + math.asinh(C),
    "piecewise(1, a > b, 2, a >= 0.7, 3)": 2.0,
    "piecewise(a, !(a < b), b)": B,
    "(a < b) + (c != c)": 1.0,
    "!a + 1": 1.0,  # of the sign alone
    "true + false": 1.0,
    "a > b || true && a > b": 0.0,  # from left to right
    "a < b == true": 1.0,
    "1 / inf + a": A,
}


ALONE = ("!a + 1", "(a < b) + (c != c)", "a < b == true")  # numbers and truth values in one, which SymPy refuses


@pytest.mark.parametrize("text", MEANT)
def test_formulas_have_the_value_of_the_specification(text):
    symbols = {n: ca.SX.sym(n) for n in "abc"}
    graph = ca.SX(expression(text, symbols))
    actual = float(ca.Function("f", [*symbols.values()], [graph])(A, B, C))
    assert actual == pytest.approx(MEANT[text], rel=1e-14)
    assert float(expression(text, {"a": A, "b": B, "c": C})) == pytest.approx(MEANT[text], rel=1e-14)


def test_formula_names_exclude_functions_and_reserved_words():
    assert names_in("exp(k_1 * t) + piecewise(y, inf > A2, true) - 1e3") == {"k_1", "t", "y", "A2"}


def test_the_library_of_the_format_means_the_same():
    sympify = pytest.importorskip("petab.v1.math").sympify_petab
    for text, meant in MEANT.items():
        if text in ALONE:
            continue
        values_by_symbol = {s: {"a": A, "b": B, "c": C}[s.name] for s in sympify(text).free_symbols}
        assert float(
            bool(number) if (number := sympify(text).subs(values_by_symbol)).is_Boolean else number
        ) == pytest.approx(meant, rel=1e-12), text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a +", "it ends early"),
        ("(a", "it ends early"),
        ("a b", "'b' was not expected at position 3"),
        ("a ** b", r"'\*' was not expected at position 4"),
        ("1.", "'.' is no part of formulas"),
        ("a $ b", "'\\$' is no part of formulas"),
        ("sin(a, b)", "'sin' takes 1, not 2"),
        ("log(a, b, c)", "'log' takes 1 or 2, not 3"),
        ("piecewise(1, a)", "'piecewise' takes an odd number of operands, not 2"),
        ("sine(a)", "the function 'sine' is unknown: did you mean 'sin'"),
        ("NaN + a", "'NaN' is reserved"),
        ("(" * 3000, "nested too deeply"),
    ],
)
def test_unreadable_formula_is_refused(text, said):
    with pytest.raises(FormulaError, match=said):
        names_in(text + (" + a" if text == "1." else ""))


@pytest.mark.parametrize("text", ["a + sqrt(-1)", "a * (1 / 0)", "a / 0.0", "a + 0^-1", "a - arccoth(0.5)"])
def test_formula_that_is_not_a_number_is_refused(text):
    with pytest.raises(FormulaError, match=r"divides by zero|which is no number"):
        expression(text, {"a": ca.SX.sym("a")})
    assert expression("a + d", {"a": 1.0, "d": 2.0}) == 3.0
    with pytest.raises(FormulaError, match="'d' is unknown"):
        expression("a + d", {"a": 1.0})


def test_long_sums_are_read():
    graph = ca.SX(expression("+".join(["x"] * 5000), {"x": ca.SX.sym("x")}))
    assert float(ca.Function("f", ca.symvar(graph), [graph])(2.0)) == 1e4
    assert np.isinf(float(expression("-inf + 1", {})))
