"""The model: what it holds, what it refuses, and that it survives pickling."""

from __future__ import annotations

import dataclasses
import pickle

import casadi as ca
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import structural_rank

from castfit._support.status import InputError
from castfit.model.dae_index import unmatched_parts
from castfit.model.model import Model, by_name, symbols
from tests.builders import decay_model, everything, refused
from tests.calls import calls_of


def values(model: Model, t, x, z, p, u) -> list[np.ndarray]:
    """Evaluate everything that a model says at a point."""
    system = model.system
    evaluate = system.function(
        "at", system.ode, system.alg, ca.vertcat(*model.outputs.values(), *model.initial.values())
    )
    return [np.asarray(v).ravel() for v in evaluate(t, x, z, p, u)]


def test_symbols_come_one_by_one_or_as_a_tuple():
    x = symbols("x")
    assert isinstance(x, ca.SX)
    assert x.name() == "x"
    assert [s.name() for s in symbols("a, b c")] == ["a", "b", "c"]
    assert [s.name() for s in symbols(f"u{i}" for i in range(3))] == ["u0", "u1", "u2"]
    (symbol,) = symbols(["x"])
    assert symbol.name() == "x"


@pytest.mark.parametrize("names", ["", " , ", None, 3, []])
def test_symbols_need_names(names):
    with refused("contains no name"):
        symbols(names)


def test_symbols_refuse_a_name_twice():
    with refused("'x' is given twice"):
        symbols("x y x")
    with refused("3 is no name"):
        symbols(["x", 3])


def test_names_and_outputs_in_order():
    model = everything().model
    assert model.states == ("x", "y")
    assert model.algebraic_states == ("z",)
    assert model.parameters == ("k1", "k2", "k3", "k4")
    assert model.inputs == ("u", "w")
    assert model.output_names == ("x", "y", "z", "product", "logarithm")
    assert repr(model) == "Model(DAE: states x, y; parameters k1, k2, k3, k4)"


def test_an_equation_may_be_a_residual_or_an_equality():
    x, z, k = symbols("x z k")
    models = [Model({x: z}, algebraic={z: e}, parameters=[k]) for e in (z - k * x**2, z == k * x**2, 0 == z - k * x**2)]  # noqa: SIM300
    residuals = [values(m, 0.0, 3.0, 5.0, 2.0, [])[1] for m in models]
    assert residuals == [pytest.approx([-13.0])] * 3


def test_parameters_may_be_vectors_generators_and_single_symbols():
    x, k = ca.SX.sym("x"), ca.SX.sym("k", 3)
    assert Model({x: -k[0] * x}, parameters=k).parameters == ("k_0", "k_1", "k_2")
    a, b = symbols("a b")
    assert Model({x: -a * x}, parameters=[a, k, b]).parameters == ("a", "k_0", "k_1", "k_2", "b")
    assert Model({x: -a * x}, parameters=(s for s in (a, b))).parameters == ("a", "b")
    assert Model({x: -a * x}, parameters=a).parameters == ("a",)


def test_a_state_may_be_called_t():
    t, x, k = symbols("t x k")
    model = Model({t: -k * t, x: t}, parameters=[k])
    assert model.system.t.name() != "t"
    assert pickle.loads(pickle.dumps(model)).states == ("t", "x")
    assert model.with_measured(("t",)).inputs == ("t",)


def test_model_lists_all_mistakes():
    x, y, z, k1, k2, other = symbols("x y z k1 k2 other")
    with refused(
        "the name 'x' is declared twice, as state and as parameter",
        "ode of 'y' has shape (2, 1)",
        "output 'wrong' is 'text'",
        "output 'missing' is or contains NaN",
        "ode of 'x' contains 'other', which is not declared: ",
        "equation of 'z' contains 'k2', which is not declared: did you mean 'k1'?",
        "initial names 'yy', which is no state: did you mean 'y'?",
        "initial value of 'yy' contains 'y', but only parameters may appear there",
        "output 'z' has the name of a state",
        "'time' is what predictions call their times",
    ):
        Model(
            {x: -k1 * x + other, y: ca.vertcat(x, y)},
            algebraic={z: z - k2},
            parameters=[k1, x],
            outputs={"wrong": "text", "z": x, "missing": np.nan, "time": x},
            initial={"yy": 2 * y},
        )


def test_the_same_name_created_twice_is_explained():
    x, k = symbols("x k")
    duplicate = ca.SX.sym("k")
    with refused("ode of 'x' contains a second symbol named 'k'; create each symbol once and reuse it"):
        Model({x: -duplicate * x}, parameters=[k])


@pytest.mark.parametrize(
    ("declared", "phrase"),
    [
        ({"parameters": [ca.MX.sym("k")]}, "parameter MX(k) is not a scalar SX symbol"),
        ({"parameters": ca.MX.sym("k")}, "parameters is MX(k); give a list of SX symbols"),
        ({"parameters": "k"}, "parameters is 'k'; give a list of SX symbols"),
        ({"parameters": None}, "parameters is None"),
        ({"parameters": 3}, "parameters is 3"),
        ({"parameters": [1.0]}, "parameter 1.0 is not a scalar SX symbol"),
        ({"parameters": [ca.SX.sym("")]}, "parameter SX() is not a scalar SX symbol with a name"),
        ({"parameters": [ca.SX.sym("a") + 1]}, "is not a scalar SX symbol"),
        ({"inputs": ["u"]}, "input 'u' is not a scalar SX symbol"),
        ({"time": "t"}, "time 't' is not a scalar SX symbol"),
        ({"algebraic": [1]}, "algebraic is a list"),
        ({"outputs": [1]}, "outputs is a list"),
        ({"outputs": {1: ca.SX(1)}}, "outputs has the key 1"),
        ({"outputs": {"h": None}}, "output 'h' is None"),
        ({"outputs": {"h": 1j}}, "output 'h' is 1j"),
        ({"outputs": {"h": True}}, "output 'h' is True"),
        ({"outputs": {"h": ca.MX.sym("m")}}, "output 'h' is MX(m)"),
        ({"outputs": {"h": ca.SX(0, 1)}}, "output 'h' has shape (0, 1)"),
        ({"outputs": {"h": np.inf}}, "output 'h' is inf"),
        ({"initial": 0.5}, "initial is a float"),
        ({"initial": {0: 0.5}}, "initial has the key 0"),
    ],
)
def test_wrong_kinds_are_refused(declared, phrase):
    x = symbols("x")
    with refused(phrase):
        Model({x: -x}, **declared)


@pytest.mark.parametrize("ode", [None, [], "x", {"x": 1.0}, {ca.MX.sym("x"): 1.0}, {}])
def test_the_ode_is_a_mapping_from_symbols(ode):
    with pytest.raises(InputError, match=r"ode is|is not a scalar SX symbol"):
        Model(ode)


def test_index_two_is_refused():
    x, y, z = symbols("x y z")
    with refused("the equation of z contains no algebraic state, so the DAE has index 2"):
        Model({x: z, y: x}, algebraic={z: x - y})
    a, b = symbols("a b")
    with refused("the equations of a and b contain only a, 2 equations for 1", "b appears in no algebraic equation"):
        Model({x: a}, algebraic={a: a - x, b: a**2 - x})
    with refused("the equations of a and b are not independent: dg/dz is singular whatever the values"):
        Model({x: a}, algebraic={a: a + b - x, b: 2 * a + 2 * b - x**2, z: z * (a - b)})
    c, d = symbols("c d")
    well = {a: a * b - x, b: b - x}
    with refused("the equations of c, d and z contain only c and z, 3 equations for 2", "d appears in no algebraic"):
        Model({x: a}, algebraic={**well, c: c - z + x, d: c - x, z: z * c})
    with refused("the equations of a, b and c contain only a and b, 3 equations for 2",
                 "d and z appear in the equation of d only, too few to determine them"):  # fmt: skip
        Model({x: a}, algebraic={a: a - x, b: b - x, c: b**2 - a, d: c + d - z, z: c - b})


@given(pattern=st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n),
                                                            min_size=n, max_size=n)))  # fmt: skip
def test_unmatched_parts_are_those_of_dulmage_and_mendelsohn(pattern):
    """Their deficits are what is missing of the structural rank, and nothing outside them can be mended by them."""
    pattern = np.array(pattern)
    parts, missing = unmatched_parts(pattern), len(pattern) - structural_rank(csr_matrix(pattern))
    assert len(parts.over_equations) - len(parts.over_states) == missing
    assert len(parts.under_states) - len(parts.under_equations) == missing
    over, under = list(parts.over_equations), list(parts.under_states)
    assert set(np.flatnonzero(pattern[over].any(axis=0))) == set(parts.over_states)
    assert set(np.flatnonzero(pattern[:, under].any(axis=1))) == set(parts.under_equations)


@pytest.mark.parametrize("unit", [1e-18, 1.0, 1e12])
def test_index_one_is_accepted_in_any_order_and_unit(unit):
    x, a, b, c = symbols("x a b c")
    model = Model({x: -a}, algebraic={a: c - unit * x, b: a + 1e-20 / unit * ca.exp(-b) - 1, c: b * c - unit * a**2})
    assert model.algebraic_states == ("a", "b", "c")


def test_numbers_of_any_kind_are_expressions():
    x, k = symbols("x k")
    model = Model({x: np.float64(2)}, parameters=[k], outputs={"one": np.int64(1), "zero": ca.SX(1, 1), "k": k})
    ode, _, outputs = values(model, 0.0, 7.0, [], 4.0, [])
    assert ode == pytest.approx([2.0])
    assert outputs == pytest.approx([7.0, 1.0, 0.0, 4.0])


@given(point=st.lists(st.floats(0.1, 3.0), min_size=10, max_size=10))
def test_pickling_keeps_every_expression(point):
    model = everything().model
    copy = pickle.loads(pickle.dumps(model))
    split = point[0], point[1:3], point[3:4], point[4:8], point[8:10]
    for expected, actual in zip(values(model, *split), values(copy, *split), strict=True):
        np.testing.assert_array_equal(expected, actual)
    for name in ("states", "algebraic_states", "parameters", "inputs", "output_names"):
        assert getattr(model, name) == getattr(copy, name)
    assert tuple(model.initial) == tuple(copy.initial)


def test_pickling_keeps_constant_initial_values():
    model = decay_model(initial={"x": 2.0})
    assert float(pickle.loads(pickle.dumps(model)).initial["x"]) == 2.0


def test_measured_states_become_inputs():
    model = everything().model.with_measured(("y",))
    assert model.states == ("x",)
    assert model.inputs == ("u", "w", "y")
    expected = values(everything().model, 0.3, [1.0, 2.0], 0.7, [1, 2, 3, 4], [0.1, 0.2])
    system = model.system
    actual = system.function("part", system.ode, system.alg)(0.3, 1.0, 0.7, [1, 2, 3, 4], [0.1, 0.2, 2.0])
    assert float(actual[0]) == expected[0][0]
    assert float(actual[1]) == expected[1][0]


def test_casadis_own_dictionary():
    x, z, p, t = ca.SX.sym("x", 2), ca.SX.sym("z"), ca.SX.sym("p", 2), ca.SX.sym("t")
    dae = {"x": x, "z": z, "p": p, "t": t, "ode": ca.vertcat(p[0] * x[1] + t, z), "alg": z + p[1] * x[0]}
    model = Model.from_dae(dae, outputs={"sum": x[0] + x[1]}, initial={"x_0": p[0]})
    assert (model.states, model.algebraic_states, model.parameters) == (("x_0", "x_1"), ("z",), ("p_0", "p_1"))
    ode, alg, outputs = values(model, 0.5, [1.0, 2.0], 3.0, [4.0, 5.0], [])
    assert ode == pytest.approx([8.5, 3.0])
    assert alg == pytest.approx([8.0])
    assert outputs == pytest.approx([1.0, 2.0, 3.0, 3.0, 4.0])


def test_a_wrong_dictionary_is_refused():
    x = ca.SX.sym("x", 2)
    with refused(
        "unknown key 'od': did you mean 'ode'?",
        "key 'ode' is missing",
        "'p' is a str; give a CasADi SX column",
        "'x' has 2 rows, but 'ode' has 0",
    ):
        Model.from_dae({"x": x, "od": x, "p": "k"})
    with refused("the name 'x_0' is declared twice"):
        Model.from_dae({"x": ca.vertcat(x[0], x[0]), "ode": x})
    with refused("entry of x SX((x_0+1)) is not a scalar SX symbol"):
        Model.from_dae({"x": x[0] + 1, "ode": x[0]})
    with pytest.raises(InputError, match="dae is a list"):
        Model.from_dae([x])


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Model)])
def test_a_model_cannot_be_changed(name):
    model = decay_model()
    with pytest.raises(dataclasses.FrozenInstanceError, match=name):
        setattr(model, name, getattr(model, name))


def test_symbols_are_matched_by_name():
    model = decay_model()
    k, x = ca.SX.sym("k"), ca.SX.sym("x")
    expression = by_name(k * x + 1, model.system)
    assert float(model.system.function("moved", expression)(0, 3.0, [], 2.0, [])) == 7.0
    assert float(by_name(ca.SX(4), model.system)) == 4.0


def test_the_work_of_checking_a_model_grows_as_its_length():
    def calls(n):
        x, k = symbols(f"x{i}" for i in range(n)), symbols(f"k{i}" for i in range(n))
        rates = {x[i]: k[i] * (x[i - 1] - x[i]) for i in range(n)}
        outputs = {f"y{i}": 2 * x[i] for i in range(n)}
        return calls_of(lambda: Model(rates, parameters=k, outputs=outputs))

    calls(2)  # what is done once
    calls_20, calls_40, calls_80 = calls(20), calls(40), calls(80)
    assert calls_80 - calls_40 < 2.1 * (calls_40 - calls_20)
