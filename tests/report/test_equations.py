"""Formulas of models in MathML: read back, they are the expressions that were written."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import casadi as ca
import pytest

import castfit as cf
from castfit import problems
from castfit.report.equations import Typesetter, formula, number, render_name
from castfit.report.page import Markup, escaped, joined, tag
from castfit.report.problem_sections import system

X, K1, K_CAT, TAU, T = (ca.SX.sym(n) for n in ("x", "k1", "k_cat", "tau", "t"))


def read(markup):
    """Write MathML as Python would: what it says, with all its brackets."""
    element = ET.fromstring(f"<math>{markup}</math>") if isinstance(markup, str) else markup
    parts = [read(child) for child in element]
    if element.tag == "mfrac":
        return f"(({parts[0]})/({parts[1]}))"
    if element.tag == "msup":
        return f"(({parts[0]})**({parts[1]}))"
    if element.tag == "msqrt":
        return f"(({''.join(parts)})**0.5)"
    if element.tag == "msub":
        return "_".join(part.replace(",", "_") for part in parts)
    if element.tag == "mspace":
        return "*"
    return (element.text or "").replace("−", "-").replace("·", "*").replace("\u00a0", " ") + "".join(parts)


def value(expression, **values):
    """Evaluate what a page shows of an expression."""
    text = "".join(read(term) for term in Typesetter([expression]).terms(0))
    return eval(text, {"max": max, "min": min}, values)


AT = {"x": 1.7, "k_1": 0.3, "k_cat": 2.2, "τ": 0.6, "t": 5.0}


@pytest.mark.parametrize(
    "expression",
    [
        -K1 * X, X - (K1 - TAU), X - (-K1), -(X + K1) * TAU, X / (K1 + X) / TAU, X / (K1 / TAU), (X + 1) ** 2 * K1,
        (-X) ** 2 - X**2, (K1 * X) ** 3, K1 ** (X + 1), 2 * X * 3, X * -2 + 4, 1 / X - 1 / (1 + X), -2.5 * X / K1,
        ca.sqrt(X + K1) * K_CAT, ca.fmax(X, K1) - ca.fmin(X, 1), 1e-7 * X - 3e5, (X - K1) * (X + K1), X - K1 + TAU - T,
        -(-X * (K1 - TAU)) / -T, ca.SX(4), K_CAT * X / (1 + X * (1 + TAU / K1)),
    ],
)  # fmt: skip
def test_a_formula_has_the_value_of_its_expression(expression):
    expected = float(ca.Function("f", [X, K1, K_CAT, TAU, T], [expression])(*AT.values()))
    assert value(expression, **AT) == pytest.approx(expected, rel=1e-12)


def test_long_shared_parts_get_a_name_and_short_ones_do_not():
    shared = K_CAT * X / (1 + X / K1 + X**2 / TAU) - K1 * X
    typeset = Typesetter([shared * 2, 3 - shared])
    (definition,) = typeset.definitions
    assert read(definition.left) == "v_1"
    values = AT | {"v_1": eval("".join(read(t) for t in definition.terms), {}, AT)}
    assert eval("".join(read(t) for t in typeset.terms(0)), {}, values) == pytest.approx(2 * values["v_1"])
    assert Typesetter([K1 * X, 1 - K1 * X]).definitions == []


def test_a_graph_that_unfolds_to_a_huge_tree_stays_small():
    grown = X
    for _ in range(60):
        grown = grown * (grown + K1)
    typeset = Typesetter([grown])
    assert len(typeset.definitions) < 70
    assert sum(len(t) for e in typeset.definitions for t in e.terms) < 50_000


def test_equations_powers_of_states_are_shown_as_written():
    """Not as castfit.model.graph_rewriting writes them, nor squares of squares."""
    x, n, k = cf.symbols("x n k")
    model = cf.Model({x: -k * x**n / (k**n + x**n)}, parameters=[n, k], initial={x: 1})
    equations = system(model)
    (rate,) = (read(term) for term in equations.rates[0].terms)
    assert eval(rate, {}, {"x": 1.7, "n": 2.3, "k": 0.6}) == pytest.approx(-0.6 * 1.7**2.3 / (0.6**2.3 + 1.7**2.3))
    assert "{" not in rate
    assert "<mn>4</mn>" in formula((x**2) ** 2)


def test_names_that_would_look_alike_are_told_apart():
    """Also from what the page itself gives a name."""
    x, k1, k_1, v1 = cf.symbols("x k1 k_1 v_1")
    shared = k1 * x / (1 + x / k_1 + x**2 / v1) - k_1 * x
    equations = system(cf.Model({x: shared}, parameters=[k1, k_1, v1], outputs={"y": 2 * shared}, initial={x: 1}))
    (definition,) = equations.definitions
    assert read(definition.left) == "w_1"
    text = "".join(definition.terms)
    assert ">k_1</mi>" in text
    assert "<mi>k</mi><mn>1</mn>" in text


def test_conditions_are_cases():
    text = formula(ca.if_else(T > 3, X, K1))
    assert "<mtable>" in text
    assert re.search(r"if\u00a0</mtext>.*<mo>&gt;</mo>", text)
    assert "otherwise" in text


def test_names_and_numbers():
    assert read(render_name("k1")) == "k_1"
    assert read(render_name("k_cat_max")) == "k_cat_max"
    assert "<mi>α</mi>" in render_name("alpha")
    assert render_name("STAT5") == '<mi mathvariant="normal">STAT5</mi>'
    assert render_name("<b>") == "<mtext>&lt;b&gt;</mtext>"
    assert [read(number(v)) for v in (0.5, 1e-7, -2.5e9)] == ["0.5", "((10)**(-7))", "-2500000000"]


def test_equations_delays_and_intervals_are_shown_as_written():
    x, y, k, rho, tau = cf.symbols("x y k rho tau")
    model = cf.Model(
        {x: -k * cf.delay(x, tau), y: k * x},
        parameters=[k, rho, tau],
        outputs={"cases": cf.per_interval(rho * x), "fold": cf.relative_to_first(y)},
        initial={x: 1, y: 0},
    )
    equations = system(model)
    assert [read(e.left) for e in equations.rates] == ["((dx)/(dt))", "((dy)/(dt))"]
    assert "x(t-τ)" in read(equations.rates[0].terms[0])
    assert "∫" in equations.outputs[0].terms[0]
    assert "first" in equations.outputs[1].terms[0]
    assert [read(e.left) for e in equations.initial] == ["x(0)", "y(0)"]


@pytest.mark.parametrize("problem", ["stat5", "calcium", "hiv_proteinase", "three_step", "mackey_glass"])
def test_models_of_the_library_are_well_formed(problem):
    equations = system(problems.load(problem).problem.original_model)
    assert equations.rates
    for equation in (
        *equations.rates,
        *equations.algebraic,
        *equations.outputs,
        *equations.initial,
        *equations.definitions,
    ):
        ET.fromstring(str(equation.html))


def test_text_is_escaped_and_markup_is_not():
    assert tag("p", "<b>", Markup("<i></i>"), title='"') == '<p title="&quot;">&lt;b&gt;<i></i></p>'
    assert joined("a", None, ["<", Markup("<br>")]) == "a&lt;<br>"
    assert tag("input", checked=True, disabled=False, data_x="1") == '<input checked data-x="1">'
    assert escaped("a&b") == "a&amp;b"
