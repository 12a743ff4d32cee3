"""Models from SBML and Antimony: closed forms, several features each, and what is refused."""

from __future__ import annotations

import sys

import casadi as ca
import numpy as np
import pytest

import castfit as cf

TIGHT = cf.IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-13)
T = np.linspace(0.0, 4.0, 9)


def simulated(text, values=None, times=T):
    loaded = cf.sbml.load_antimony(text)
    return cf.simulate(loaded, values, times=times, integrator=TIGHT)


def test_amounts_and_concentrations_meet_in_one_reaction():
    """A concentration in 2 L becomes an amount: A' = -k A, B' = 2 k A, with a conversion of extents by 3."""
    loaded = cf.sbml.load_antimony(
        """
        compartment cell = 2
        species A in cell
        substanceOnly species B in cell
        A -> B; k * A * cell
        A = 3; B = 1; k = 0.5
        """
    )
    assert not loaded.species["A"].is_amount
    assert loaded.species["B"].is_amount
    out = cf.simulate(loaded, times=T, integrator=TIGHT)
    np.testing.assert_allclose(out["A"], 3 * np.exp(-0.5 * T), rtol=1e-8)
    np.testing.assert_allclose(out["B"], 1 + 6 * (1 - np.exp(-0.5 * T)), rtol=1e-8)


def test_a_compartment_that_grows_thins_what_is_in_it():
    """V = 1 + t; A decays by k A V in amount, so its amount does by k."""
    out = simulated("compartment V = 1; V' = 1; species A in V; A -> ; k * A * V; A = 2; k = 0.3")
    np.testing.assert_allclose(out["A_amount"], 2 * np.exp(-0.3 * T), rtol=1e-8)
    np.testing.assert_allclose(out["A"], 2 * np.exp(-0.3 * T) / (1 + T), rtol=1e-8)


def test_rules_functions_and_initial_assignments():
    """y := 2 x + time, x' = -k x, from x(0) = f(k)."""
    out = simulated("function f(a) 1 + a^2; end; x = f(k); x' = -k * x; y := 2 * x + time; k = 0.5; z = y")
    x = 1.25 * np.exp(-0.5 * T)
    np.testing.assert_allclose(out["x"], x, rtol=1e-8)
    np.testing.assert_allclose(out["y"], 2 * x + T, rtol=1e-8)


def test_an_initial_assignment_follows_the_parameters_in_it():
    text = "x = f0; f0 = 2 * k; x' = -k * x; k = 0.5"
    np.testing.assert_allclose(simulated(text, {"k": 2.0})["x"], 4 * np.exp(-2 * T), rtol=1e-8)


def test_initial_values_that_are_given_are_seen_by_those_that_follow_from_them():
    loaded = cf.sbml.load_antimony(
        "x = 2; y = 3 * x; x' = -x; y' = -y; c = x; z := c * y",
    )
    with pytest.raises(cf.InputError, match="'c' is computed from the initial value of 'x'; to change it, load with"):
        loaded.start({"x": 5.0})
    loaded = cf.sbml.load(loaded.sbml, parameters=["c"])
    a = ca.SX.sym("a")
    start = loaded.start({"x": a})
    assert [str(start.initial["y"]), str(start.parameters["c"])] == ["(3*a)", "a"]


def test_load_lists_all_mistakes():
    text = "A -> B; k * delay(A, time); A = 1; B = 0; k = 1; at -3 after A < 0.5: A = 2"
    with pytest.raises(cf.InputError) as error_info:
        cf.sbml.load_antimony(text)
    message = str(error_info.value)
    assert "2 mistakes" in message
    assert "the delayed value of 'A', at which events jump" in message
    assert "must not be negative" in message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.xml", "there is no file 'nowhere.xml'"),
        ("<sbml", "Unclosed XML token"),
        (3, "give the path of an SBML file"),
        ("A -> B\n", "use sbml.load_antimony"),
        ("<html></html>", "line"),
    ],
)
def test_load_invalid_sbml_is_refused(source, message):
    with pytest.raises(cf.InputError, match=message):
        cf.sbml.load(source)


def test_antimonys_complaint_is_shown():
    with pytest.raises(cf.InputError, match=r"sbml.load_antimony: 1 mistake found\n.*Antimony: .*line 1"):
        cf.sbml.load_antimony("A -> -> B")


def test_computed_constant_can_be_loaded_as_parameter():
    loaded = cf.sbml.load_antimony("x = 2; x' = -b * x; a = 3; b = 2 * a; c = 5 * b; y := c * x", parameters="all")
    assert set(loaded.model.parameters) == {"a", "b", "c"}
    assert loaded.parameters == {"a": 3.0, "b": 6.0, "c": 30.0}
    assert [[s.name() for s in ca.symvar(ca.SX(loaded.values[n]))] for n in "abc"] == [[], ["a"], ["b"]]
    np.testing.assert_allclose(
        cf.simulate(loaded, {"a": 1.0}, T, integrator=TIGHT)["y"], 20 * np.exp(-2 * T), rtol=1e-8
    )


def test_files_of_sbml_and_of_antimony(tmp_path):
    text = cf.sbml.load_antimony("x = 2; x' = -x").sbml.replace("<model ", '<model name="Zähler" ', 1)
    (tmp_path / "model.xml").write_text(text, encoding="utf-8")
    (tmp_path / "old.xml").write_bytes(text.replace("UTF-8", "ISO-8859-1").encode("latin-1"))
    (tmp_path / "model.ant").write_text("x = 2; x' = -x  # µ", encoding="utf-8")
    for name in ("model.xml", "model.ant"):
        loaded = cf.sbml.load(tmp_path / name)
        np.testing.assert_allclose(cf.simulate(loaded, times=T, integrator=TIGHT)["x"], 2 * np.exp(-T), rtol=1e-8)
    with pytest.raises(cf.InputError, match="must use UTF-8"):
        cf.sbml.load(tmp_path / "old.xml")


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "libsbml", None)
    with pytest.raises(cf.InputError, match=r"libsbml is not installed; pip install 'castfit\[petab\]'"):
        cf.sbml.load("model.xml")


def test_load_specification_error_names_its_line():
    """A rule for a quantity that does not exist."""
    text = """<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core" level="3" version="1"><model id="m">
        <listOfParameters><parameter id="x" value="1" constant="false"/></listOfParameters><listOfRules>
        <rateRule variable="y"><math xmlns="http://www.w3.org/1998/Math/MathML"><cn>1</cn></math></rateRule>
        </listOfRules></model></sbml>"""
    with pytest.raises(cf.InputError) as error_info:
        cf.sbml.load(text)
    assert any(message.startswith("line 4") and "'y'" in message for message in error_info.value.problems)


def test_mistakes_in_what_is_asked_for():
    text = "x = 2; x' = -k * x; y := 2 * x; k = a; a = 1"
    loaded = cf.sbml.load_antimony(text)
    with pytest.raises(cf.InputError) as error_info:
        loaded.start({"X": 1.0, "y": 3.0, "k": 2.0, "a": np.nan})
    message = str(error_info.value)
    for phrase in (
        "4 mistakes",
        "'X' is not in the model: did you mean 'x'?",
        "'y' follows from an assignment rule",
        "load with parameters=['k']",
        "'a' is nan; give a finite number",
    ):
        assert phrase in message
    with pytest.raises(cf.InputError) as error_info:
        cf.sbml.load_antimony(text, parameters=["x", "b"], count=0)
    message = str(error_info.value)
    for phrase in ("3 mistakes", "'b', which is not in the model", "'x', which changes, by a rate rule", "count is 0"):
        assert phrase in message
    with pytest.raises(cf.InputError, match="Loop detected"):
        cf.sbml.load_antimony("p := q + 1; q := 2 * p; x' = p; x = 0")


def test_constants_without_a_value_matter_only_where_something_depends_on_them():
    decay = "x' = -k * x; x = 2; k = 0.5; const q; const w"
    with pytest.warns(UserWarning, match="on which nothing depends, are left out: 'q', 'w'"):
        loaded = cf.sbml.load_antimony(decay)
    np.testing.assert_allclose(cf.simulate(loaded, times=T, integrator=TIGHT)["x"], 2 * np.exp(-0.5 * T), rtol=1e-8)
    assert list(loaded.model.parameters) == ["k"]
    for use in ("y := 2 * q", "at x < 1: x = q", "x2' = q"):
        with pytest.warns(UserWarning, match="left out: 'w'"):
            loaded = cf.sbml.load_antimony(f"{decay}; {use}")
        with pytest.raises(cf.InputError, match="'q' has no value"):
            cf.simulate(loaded, {"x2": 0.0} if "x2" in use else None, times=T)
    loaded_with_parameter = cf.sbml.load_antimony("x' = -x; x = 1; const q", parameters=["q"])
    assert list(loaded_with_parameter.model.parameters) == ["q"]
