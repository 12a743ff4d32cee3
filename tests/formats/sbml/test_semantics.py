"""Models with closed forms: what SBML's specification says of volumes, events, rules and stoichiometries."""

from __future__ import annotations

import re

import numpy as np
import pytest

import castfit as cf

TIGHT = cf.IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-13)
T = np.linspace(0.0, 4.0, 9)


def of(text, values=None, times=T, **options):
    """Simulate a model in Antimony."""
    return cf.simulate(cf.sbml.load_antimony(text, **options), values, times=times, integrator=TIGHT)


def xml(body: str, attributes: str = "", level: int = 3, version: int = 1) -> str:
    """Put the lists of a model into a document."""
    core = "version1/core" if level == 3 else f"version{version}"
    return (
        f'<sbml xmlns="http://www.sbml.org/sbml/level{level}/{core if level > 1 else ""}" '
        f'level="{level}" version="{version}"><model id="m" {attributes}>{body}</model></sbml>'
    ).replace("level1/", "level1")


def math(inside: str) -> str:
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML">{inside}</math>'


def test_constant_species_is_diluted_by_growing_volume():
    """The amount of a species that nothing changes stays, also that of a boundary species."""
    out = of("compartment V = 2; V' = 1; const species A in V; A = 3; species $B in V; B = 1; y := A + B")
    np.testing.assert_allclose(out["y"], (6 + 2) / (2 + T), rtol=1e-8)


def test_a_volume_by_a_rule_of_time():
    """V = 1 + t^2; A decays by k A V in amount."""
    out = of("compartment V; V := 1 + time^2; species A in V; A -> ; k * A * V; A = 2; k = 0.3")
    np.testing.assert_allclose(out["A"], 2 * np.exp(-0.3 * T) / (1 + T**2), rtol=1e-8)


def test_an_event_that_changes_a_volume_keeps_amounts_and_thins_concentrations():
    """V doubles at t = 1; A reacts, B has a rate rule for its concentration; C and D, alike, are set by the event.

    What is set is an amount in the volume before it, so that the concentration ends up as half of the value (case
    01779 of the SBML Test Suite).
    """
    out = of(
        """
        compartment V = 1; species A in V, B in V, C in V, D in V
        A -> ; 0 * A; A = 2
        B = 3; B' = 1
        C -> ; 0 * C; C = 5
        D = 1; D' = 0
        at time >= 1: V = 2, C = 7, D = 8
        z := V
        """
    )
    is_after = T >= 1
    np.testing.assert_allclose(out["A"], np.where(is_after, 1.0, 2.0), rtol=1e-8)
    np.testing.assert_allclose(out["B"], np.where(is_after, 0.5 * 4 + T - 1, 3 + T), rtol=1e-8)
    np.testing.assert_allclose(out["C"], np.where(is_after, 3.5, 5.0), rtol=1e-8)
    np.testing.assert_allclose(out["D"], np.where(is_after, 4.0, 1.0), rtol=1e-8)


def test_conversion_factors_and_stoichiometries_that_vary():
    """S' = c n(t) v with c = 3, n = 1 + t, v = 0.5: S = 3 * 0.5 (t + t^2/2)."""
    text = xml(
        '<listOfCompartments><compartment id="V" size="1" spatialDimensions="3" constant="true"/></listOfCompartments>'
        '<listOfSpecies><species id="S" compartment="V" initialAmount="0" hasOnlySubstanceUnits="true" '
        'boundaryCondition="false" constant="false"/></listOfSpecies>'
        '<listOfParameters><parameter id="c" value="3" constant="true"/></listOfParameters>'
        f'<listOfRules><rateRule variable="n">{math("<cn>1</cn>")}</rateRule></listOfRules>'
        '<listOfReactions><reaction id="R" reversible="false" fast="false"><listOfProducts>'
        '<speciesReference id="n" species="S" stoichiometry="1" constant="false"/></listOfProducts>'
        f'<kineticLaw>{math("<ci>v</ci>")}<listOfLocalParameters><localParameter id="v" value="0.5"/>'
        "</listOfLocalParameters></kineticLaw></reaction></listOfReactions>",
        'conversionFactor="c"',
    )
    loaded = cf.sbml.load(text)
    out = cf.simulate(loaded, times=T, integrator=TIGHT)
    np.testing.assert_allclose(out["S"], 1.5 * (T + T**2 / 2), rtol=1e-8)
    np.testing.assert_allclose(out["n"], 1 + T, rtol=1e-8)
    assert loaded.parameters == {"V": 1.0, "c": 3.0, "R_v": 0.5}
    twice = cf.simulate(loaded, {"R_v": 1.0, "n": 2.0}, times=T, integrator=TIGHT)
    np.testing.assert_allclose(twice["S"], 3 * (2 * T + T**2 / 2), rtol=1e-8)


def test_algebraic_rules_that_are_linear_are_solved():
    """a + b = x, a - b = 1: the model stays an ODE."""
    head = '<listOfParameters><parameter id="x" value="2" constant="false"/>'
    head += "".join(f'<parameter id="{n}" constant="false"/>' for n in "ab") + "</listOfParameters>"

    def equation(op: str, rest: str) -> str:
        first = f"<apply><{op}/><ci>a</ci><ci>b</ci></apply>"
        return f"<algebraicRule>{math(f'<apply><minus/>{first}{rest}</apply>')}</algebraicRule>"

    rules = f'<rateRule variable="x">{math("<apply><minus/><ci>x</ci></apply>")}</rateRule>'
    rules += equation("plus", "<ci>x</ci>") + equation("minus", "<cn>1</cn>")
    loaded = cf.sbml.load(xml(f"{head}<listOfRules>{rules}</listOfRules>"))
    assert not loaded.model.algebraic_states
    out = cf.simulate(loaded, times=T, integrator=TIGHT)
    np.testing.assert_allclose(out["a"], np.exp(-T) + 0.5, rtol=1e-8)
    np.testing.assert_allclose(out["b"], np.exp(-T) - 0.5, rtol=1e-8, atol=1e-9)


def test_an_algebraic_rule_that_is_not_linear_makes_a_dae():
    """y^2 = x and y > 0, which the file's value of y chooses."""
    body = '<listOfParameters><parameter id="x" value="4" constant="false"/><parameter id="y" value="{}" '
    body += 'constant="false"/></listOfParameters><listOfRules><rateRule variable="x">'
    body += math("<apply><minus/><ci>x</ci></apply>") + "</rateRule><algebraicRule>"
    body += math("<apply><minus/><apply><power/><ci>y</ci><cn>2</cn></apply><ci>x</ci></apply>")
    body += "</algebraicRule></listOfRules>"
    for guess in (1.5, -1.5):
        loaded = cf.sbml.load(xml(body.format(guess)))
        assert loaded.model.algebraic_states == ("y",)
        out = cf.simulate(loaded, times=T, integrator=TIGHT)
        np.testing.assert_allclose(out["y"], np.sign(guess) * 2 * np.exp(-T / 2), rtol=1e-7)


def test_events_at_the_start_exchange_values_at_once():
    """Both are true at 0 and were false before: each sees the other's old value; then a third follows."""
    out = of(
        """
        a = 1; b = 2; c = 0
        at a > 0, t0 = false: a = b
        at b > 0, t0 = false: b = a
        at a > 1.5: c = a + b
        """
    )
    np.testing.assert_array_equal([out["a"], out["b"], out["c"]], [[2.0] * 9, [1.0] * 9, [3.0] * 9])


def test_simultaneous_events_set_value_of_one_of_them():
    """Both see n = 0; which of them is last is not specified, here it is the one that is written last."""
    for trigger in ("x > 1.1", "time >= 1.1", "x > 1.1 && time > 0"):
        out = of(f"x = 0; x' = 1; n = 0; at {trigger}: n = n + 1; at {trigger}: n = n + 2")
        np.testing.assert_array_equal(out["n"], np.where(T > 1.1, 2.0, 0.0))


def test_events_at_one_time_exchange_values_at_once():
    out = of("a = 1; b = 2; at time >= 2: a = b; at time >= 1.5 + 0.5: b = a")
    np.testing.assert_array_equal(out["a"], np.where(T >= 2, 2.0, 1.0))
    np.testing.assert_array_equal(out["b"], np.where(T >= 2, 1.0, 2.0))


@pytest.mark.parametrize(
    ("trigger", "count"),
    [
        ("time >= 2", T >= 2),
        ("time > 2", T > 2),
        ("time < 2", 0 * T),
        ("time < 2, t0 = false", 0 * T + 1),
        ("time >= 1 && time < 3 || time > 3.2", (T >= 1) * 1.0 + (T > 3.2)),
        ("2 * time == 3", T >= 1.5),
        ("time >= 0", 0 * T),
        ("time > 0", T > 0),
        ("time >= 0, t0 = false", 0 * T + 1),
        ("time >= late", T >= 2.2),
        ("x > 1.25", T > 1.25),
        ("x >= 1 && time < 3.25 && !(x < 1.1)", T >= 1.1),
        ("x > 1 && k > 2", 0 * T),
        ("k < 2, t0 = false", 0 * T + 1),
        ("piecewise(x > 1.1, time < 2, x > 3.1)", (T > 1.1) * 1.0 + (T > 3.1)),
    ],
)
def test_when_a_trigger_becomes_true(trigger, count):
    """x = time; n counts how often the event happened."""
    out = of(f"x = 0; x' = 1; n = 0; k = 1; late = 2.2; at {trigger}: n = n + 1")
    np.testing.assert_array_equal(out["n"], count)


def test_a_refill_that_repeats_itself():
    """x decays from 1 and is refilled at 1/2: period ln 2."""
    out = of("x = 1; x' = -x; n = 0; at x < 0.5: x = 1, n = n + 1")
    np.testing.assert_allclose(out["x"], np.exp(-np.mod(T, np.log(2))), rtol=1e-7)
    np.testing.assert_array_equal(out["n"], np.floor(T / np.log(2)))
    with pytest.raises(cf.SimulationError, match="more often than 3 times; give a larger count"):
        of("x = 1; x' = -x; at x < 0.5: x = 1", count=3)


@pytest.mark.parametrize("phase", ["time - floor(time / 2) * 2", "rem(time, 2)", "time - 2 * (ceil(time / 2) - 1)"])
def test_a_phase_that_jumps_back_triggers_in_every_period(phase):
    """The derivative of floor is zero wherever it is defined, but time less its floor is no line."""
    out = of(f"n = 0; x' = 1; x = 0; at {phase} > 1.5: n = n + 1", times=np.array([1.4, 1.6, 3.4, 3.6, 5.4, 5.6]))
    np.testing.assert_array_equal(out["n"], [0, 1, 1, 2, 2, 3])


def test_pieces_in_time_are_exact_at_their_ends():
    """A pulse from 1 to 1.001, which an integrator would step over, at a rate of 1000."""
    out = of("x = 0; x' = piecewise(1000, time >= 1 && time < 1.001, 0); y := piecewise(1, time >= 2, 0)")
    np.testing.assert_allclose(out["x"], T >= 1.001, atol=1e-9)
    np.testing.assert_array_equal(out["y"], T >= 2)


def test_rates_of_what_changes():
    """rateOf of a concentration in a growing volume, and at the start."""
    out = of("compartment V = 1; V' = 1; species A in V; A -> ; 0*A; A = 2; y := rateOf(A); z = rateOf(A); z' = 0")
    np.testing.assert_allclose(out["y"], -2 / (1 + T) ** 2, rtol=1e-8)
    np.testing.assert_allclose(out["z"], -2.0, rtol=1e-12)


def test_functions_with_names_of_their_own_and_uncommon_operations():
    x = 0.7
    text = f"""
        function f(time_, a) a * time_ end
        function g(a) f(a, 2) + 1 end
        x = {x}; x' = 0
        p := g(x) + factorial(5) + ceil(x) + floor(-x) + arcsinh(x) + sec(x) + coth(x) + arccot(x) + log10(100)
        o := abs(-x)
        q := max(x, 2, 1) + min(x, 2) + quotient(7, 2) + rem(7, 4) + root(3, 8) + ln(exp(x)) + x^3 + sqrt(x)
        r := factorial(10 * x)
        s := piecewise(1, x > 2, 2, x > 0.5, 3)
    """
    out = of(text)
    p = 2 * x + 1 + 120 + 1 - 1 + np.arcsinh(x) + 1 / np.cos(x) + 1 / np.tanh(x) + np.arctan(1 / x) + 2
    q = 2 + x + 3 + 3 + 2 + x + x**3 + np.sqrt(x)
    np.testing.assert_allclose(out["p"], p, rtol=1e-12)
    np.testing.assert_allclose(out["q"], q, rtol=1e-12)
    np.testing.assert_allclose(out["o"], x, rtol=1e-12)
    np.testing.assert_allclose(out["r"], 5040.0, rtol=1e-11)
    np.testing.assert_array_equal(out["s"], 2.0)


def test_rule_of_time_and_infinite_parameter_are_loaded():
    loaded = cf.sbml.load(
        xml(
            '<listOfParameters><parameter id="y" constant="false"/><parameter id="i" value="INF" constant="true"/>'
            '<parameter id="n" value="NaN" constant="true"/></listOfParameters><listOfRules><assignmentRule '
            'variable="y"><math xmlns="http://www.w3.org/1998/Math/MathML"><csymbol encoding="text" '
            'definitionURL="http://www.sbml.org/sbml/symbols/time">t</csymbol></math></assignmentRule></listOfRules>'
        )
    )
    np.testing.assert_allclose(cf.simulate(loaded, times=T)["y"], T)
    assert float(loaded.expressions["i"]) == np.inf
    assert np.isnan(float(loaded.expressions["n"]))


def test_older_levels():
    """Level 2 with a stoichiometry computed from a parameter; Level 1 with a boundary species."""
    kinetics = f"<kineticLaw>{math('<cn>0.5</cn>')}</kineticLaw>"
    species = '<listOfSpecies><species id="S" compartment="V" initialConcentration="1"/></listOfSpecies>'
    text = xml(
        '<listOfCompartments><compartment id="V" size="2"/></listOfCompartments>'
        f'{species}<listOfParameters><parameter id="n" value="3"/></listOfParameters>'
        '<listOfReactions><reaction id="R"><listOfProducts><speciesReference species="S">'
        f"<stoichiometryMath>{math('<ci>n</ci>')}</stoichiometryMath></speciesReference></listOfProducts>"
        f"{kinetics}</reaction></listOfReactions>",
        level=2,
        version=4,
    )
    np.testing.assert_allclose(cf.simulate(cf.sbml.load(text), times=T)["S"], 1 + 3 * 0.5 / 2 * T, rtol=1e-7)
    text = (
        '<sbml xmlns="http://www.sbml.org/sbml/level1" level="1" version="2"><model name="m"><listOfCompartments>'
        '<compartment name="V" volume="2"/></listOfCompartments><listOfSpecies>'
        '<species name="A" compartment="V" initialAmount="4" boundaryCondition="true"/>'
        '<species name="B" compartment="V" initialAmount="0"/></listOfSpecies><listOfReactions><reaction name="R">'
        '<listOfReactants><speciesReference species="A"/></listOfReactants><listOfProducts>'
        '<speciesReference species="B"/></listOfProducts><kineticLaw formula="k * pow(A, 2)"><listOfParameters>'
        '<parameter name="k" value="0.1"/></listOfParameters></kineticLaw></reaction></listOfReactions></model></sbml>'
    )
    np.testing.assert_allclose(cf.simulate(cf.sbml.load(text), times=T)["B"], 0.1 * 4 / 2 * T, rtol=1e-7)


def test_an_algebraic_rule_of_level_1():
    """Level 1 says of no parameter whether it may vary."""
    text = (
        '<sbml xmlns="http://www.sbml.org/sbml/level1" level="1" version="2"><model name="m"><listOfCompartments>'
        '<compartment name="V"/></listOfCompartments><listOfParameters><parameter name="y" value="1"/>'
        '<parameter name="x" value="1"/></listOfParameters><listOfRules><algebraicRule formula="y - 2 * x"/>'
        '<parameterRule type="rate" name="x" formula="1"/></listOfRules></model></sbml>'
    )
    np.testing.assert_allclose(cf.simulate(cf.sbml.load(text), times=T)["y"], 2 + 2 * T, rtol=1e-7)


def test_submodels_are_put_together():
    """Two instances of a model, whose quantities are called A__x and B__x."""
    inner = f"""<listOfParameters><parameter id="x" value="2" constant="false"/></listOfParameters><listOfRules>
        <rateRule variable="x">{math("<apply><minus/><ci>x</ci></apply>")}</rateRule></listOfRules>"""
    submodels = "".join(f'<comp:submodel comp:id="{n}" comp:modelRef="decay"/>' for n in "AB")
    text = f"""<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core" level="3" version="1" comp:required="true"
        xmlns:comp="http://www.sbml.org/sbml/level3/version1/comp/version1"><model id="whole"><comp:listOfSubmodels>
        {submodels}</comp:listOfSubmodels></model><comp:listOfModelDefinitions><comp:modelDefinition id="decay">
        {inner}</comp:modelDefinition></comp:listOfModelDefinitions></sbml>"""
    out = cf.simulate(cf.sbml.load(text), {"B__x": 3.0}, times=T, integrator=TIGHT)
    np.testing.assert_allclose(out["A__x"], 2 * np.exp(-T), rtol=1e-8)
    np.testing.assert_allclose(out["B__x"], 3 * np.exp(-T), rtol=1e-8)
    replacement = """<listOfParameters><parameter id="x" value="5" constant="false"><comp:listOfReplacedElements>
        <comp:replacedElement comp:submodelRef="A" comp:idRef="{}"/></comp:listOfReplacedElements></parameter>
        </listOfParameters><comp:listOfSubmodels>"""
    replaced = cf.simulate(cf.sbml.load(text.replace("<comp:listOfSubmodels>", replacement.format("x"))), times=T)
    np.testing.assert_allclose(replaced["x"], 5 * np.exp(-T), rtol=1e-6)
    with pytest.raises(cf.InputError, match="comp:idRef"):
        cf.sbml.load(text.replace("<comp:listOfSubmodels>", replacement.format("nothing")))


def _composed(top: str, inner: str, middle: str = "") -> str:
    """Return a document with a model, a model definition "sub", and others."""
    return f"""<sbml xmlns="http://www.sbml.org/sbml/level3/version2/core" level="3" version="2" comp:required="true"
        xmlns:comp="http://www.sbml.org/sbml/level3/version1/comp/version1"><model id="top">{top}</model>
        <comp:listOfModelDefinitions>{middle}<comp:modelDefinition id="sub">{inner}</comp:modelDefinition>
        </comp:listOfModelDefinitions></sbml>"""


def _symbol(name: str, *inside: str) -> str:
    symbol = f'<csymbol encoding="text" definitionURL="http://www.sbml.org/sbml/symbols/{name}">{name}</csymbol>'
    return f"<apply>{symbol}{''.join(inside)}</apply>" if inside else symbol


_SUBMODEL_TIME = _symbol("time")
_CONVERTED = f"""<listOfCompartments><compartment id="C" size="1" spatialDimensions="3" constant="true"/>
    </listOfCompartments><listOfSpecies><species id="S" compartment="C" initialAmount="3" hasOnlySubstanceUnits="true"
    boundaryCondition="false" constant="false"/></listOfSpecies><listOfParameters><parameter id="r" value="1"
    constant="false"/><parameter id="c" constant="false"/><parameter id="v" constant="false"/><parameter id="d"
    constant="false"/><parameter id="e" value="0" constant="false"/></listOfParameters><listOfRules>
    <rateRule variable="r">{math(_SUBMODEL_TIME)}</rateRule>
    <assignmentRule variable="c">{math(f"<apply><times/><cn>2</cn>{_SUBMODEL_TIME}</apply>")}</assignmentRule>
    <assignmentRule variable="v">{math("<ci>J</ci>")}</assignmentRule>
    <assignmentRule variable="d">{math(_symbol("delay", "<ci>r</ci>", "<cn>0.25</cn>"))}</assignmentRule></listOfRules>
    <listOfReactions><reaction id="J" reversible="false"><listOfProducts><speciesReference species="S" constant="true"
    stoichiometry="1"/></listOfProducts><kineticLaw>{math(_SUBMODEL_TIME)}</kineticLaw></reaction></listOfReactions>
    <listOfEvents><event useValuesFromTriggerTime="true"><trigger initialValue="true" persistent="true">
    {math(f"<apply><geq/>{_SUBMODEL_TIME}<cn>0.5</cn></apply>")}</trigger><delay>{math("<cn>0.25</cn>")}</delay>
    <listOfEventAssignments><eventAssignment variable="e">{math(_SUBMODEL_TIME)}</eventAssignment>
    </listOfEventAssignments></event></listOfEvents>"""
_FACTORS = """<listOfParameters><parameter id="tc" value="{}" constant="true"/><parameter id="xc" value="{}"
    constant="true"/></listOfParameters><comp:listOfSubmodels><comp:submodel comp:id="A" comp:modelRef="{}"
    comp:timeConversionFactor="tc" comp:extentConversionFactor="xc"/></comp:listOfSubmodels>"""


@pytest.mark.parametrize("nested", [False, True])
def test_time_and_extent_of_submodels_are_converted(nested):
    """Time in a submodel is t / tc, extents in it are counted xc times outside; factors of nested ones multiply.

    So say sections 3.5.1 and 3.5.2 of the package's specification: rates are those of the submodel's own time, delays
    last tc times as long outside, and a reaction's identifier means its rate inside.
    """
    middle = f'<comp:modelDefinition id="mid">{_FACTORS.format(2, 5, "sub")}</comp:modelDefinition>' if nested else ""
    text = _composed(_FACTORS.format(2, 2, "mid") if nested else _FACTORS.format(4, 10, "sub"), _CONVERTED, middle)
    out = cf.simulate(cf.sbml.load(text), times=T, integrator=TIGHT)
    prefix, s = "A__A__" if nested else "A__", T / 4
    expected = {"r": 1 + s**2 / 2, "c": 2 * s, "S": 3 + 10 * s**2 / 2, "v": s}
    expected |= {"d": 1 + np.maximum(s - 0.25, 0) ** 2 / 2, "e": np.where(s >= 0.75, 0.5, 0.0)}
    for name, value in expected.items():
        np.testing.assert_allclose(out[prefix + name], value, rtol=1e-8, err_msg=name)


def test_replacement_of_submodel_quantity_is_converted():
    """The factor takes values of what is replaced to those of what replaces it: y = 3 x, x' = -x^2, y' = -y^2 / 3."""
    rule = math("<apply><minus/><apply><times/><ci>x</ci><ci>x</ci></apply></apply>")
    inner = f"""<listOfParameters><parameter id="x" value="9" constant="false"/><parameter id="z" constant="false"/>
        </listOfParameters><listOfRules><rateRule variable="x">{rule}</rateRule>
        <assignmentRule variable="z">{math("<ci>x</ci>")}</assignmentRule></listOfRules>"""
    top = """<listOfParameters><parameter id="f" value="3" constant="true"/><parameter id="y" value="2"
        constant="false"><comp:listOfReplacedElements><comp:replacedElement comp:submodelRef="A" comp:idRef="x"
        comp:conversionFactor="f"/></comp:listOfReplacedElements></parameter></listOfParameters>
        <comp:listOfSubmodels><comp:submodel comp:id="A" comp:modelRef="sub"/></comp:listOfSubmodels>"""
    out = cf.simulate(cf.sbml.load(_composed(top, inner)), times=T, integrator=TIGHT)
    np.testing.assert_allclose(out["y"], 2 / (1 + 2 * T / 3), rtol=1e-8)
    np.testing.assert_allclose(out["A__z"], out["y"] / 3, rtol=1e-12)


def test_rates_of_change_in_a_submodel_of_another_time_are_refused():
    inner = f"""<listOfParameters><parameter id="x" value="1" constant="false"/><parameter id="v" constant="false"/>
        </listOfParameters><listOfRules><rateRule variable="x">{math("<ci>x</ci>")}</rateRule>
        <assignmentRule variable="v">{math(_symbol("rateOf", "<ci>x</ci>"))}</assignmentRule></listOfRules>"""
    with pytest.raises(cf.InputError, match="submodel 'A' has a time of its own, in which 'sub' takes rateOf"):
        cf.sbml.load(_composed(_FACTORS.format(4, 10, "sub"), inner))
    unconverted_text = _composed(_FACTORS.format(4, 10, "sub").replace('comp:timeConversionFactor="tc"', ""), inner)
    np.testing.assert_allclose(cf.simulate(cf.sbml.load(unconverted_text), times=T)["A__v"], np.exp(T), rtol=1e-5)


@pytest.mark.parametrize("package", ["qual", "distrib", "multi"])
def test_a_package_that_is_needed_is_refused_by_name(package):
    space = f"http://www.sbml.org/sbml/level3/version1/{package}/version1"
    text = f"""<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core" level="3" version="1"
        xmlns:{package}="{space}" {package}:required="true">
        <model id="m"><listOfCompartments><compartment id="c" constant="true" size="1"/></listOfCompartments></model>
        </sbml>"""
    with pytest.raises(cf.InputError, match=f"needs the SBML package '{package}'"):
        cf.sbml.load(text)


def test_events_whose_triggers_differ_in_kind_happen_at_once_all_the_same():
    """At t = 2 one trigger compares time alone, the other a state as well; they exchange a and b."""
    out = of("x = 0; x' = 1; a = 1; b = 2; at time >= 2: a = b; at time >= 2 && x > 1: b = a")
    np.testing.assert_array_equal(out["a"], np.where(T >= 2, 2.0, 1.0))
    np.testing.assert_array_equal(out["b"], np.where(T >= 2, 1.0, 2.0))


@pytest.mark.parametrize("late", [-1.0, 0.0, 1.0])
def test_a_time_that_has_passed_before_the_start_triggers_nothing(late):
    out = of(f"n = 0; late = {late}; at time >= late: n = n + 1")
    np.testing.assert_array_equal(out["n"], np.where(late > 0, late <= T, False))


@pytest.mark.parametrize(
    ("event", "n"),
    [
        ("at 1.5 after time >= 1: n = 7", np.where(T >= 2.5, 7.0, 0.0)),
        ("at 1.5 after time > 1: n = 7", np.where(T > 2.5, 7.0, 0.0)),
        ("at wait after time >= 1, fromTrigger = false: n = n + 1; wait = 0.75", np.where(T >= 1.75, 1.0, 0.0)),
        ("at 1 after time >= 1: n = time", np.where(T >= 2, 1.0, 0.0)),
        ("at 1 after time >= 1, fromTrigger = false: n = time + x", np.where(T >= 2, 4.0, 0.0)),
        ("at 1 after time >= 1 && time < 2 || time > 2.5: n = n2 + 1; n2 = 3", np.where(T >= 2, 4.0, 0.0)),
        ("at 2 after time >= 0, t0 = false: n = 5", np.where(T >= 2, 5.0, 0.0)),
    ],
)  # fmt: skip
def test_events_happen_later(event, n):
    """x = time; what was worked out when the event was triggered, or when it happens."""
    np.testing.assert_allclose(of(f"x = 0; x' = 1; n = 0; {event}")["n"], n, rtol=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "a"),
    [
        ("priority = 1: a = 3", "priority = 5: a = 2", 3.0),
        ("priority = 5: a = 3", "priority = 1: a = 2", 2.0),
        ("priority = 5: a = 3", "priority = 1: a = 10 * a", 10.0),
        ("priority = 5: a = 3", "priority = 1, fromTrigger = false: a = 10 * a", 30.0),
        ("priority = 1, fromTrigger = false: a = a + 3", "priority = 5, fromTrigger = false: a = 10 * a", 13.0),
        ("priority = -1: a = 3", "fromTrigger = false: a = 10 * a", 30.0),
    ],
)
def test_events_of_one_time_follow_each_other_by_their_priorities(first, second, a):
    for when in ("at time >= 2", *(() if second.endswith("1: a = 10 * a") else ("at 1.5 after time >= 0.5",))):
        late = when.replace("0.5", "1").replace("1.5", "1") if "after" in when else when
        out = of(f"a = 1; b = 0; {when}, {first}; {late}, {second}; at time >= 2: b = a")
        np.testing.assert_allclose(out["a"], np.where(T >= 2, a, 1.0), rtol=1e-12)
        assert set(out["b"][T < 2]) == {0.0}


def test_a_delay_can_be_estimated():
    loaded = cf.sbml.load_antimony("x = 0; x' = k; lag = 1; k = 1; at lag after time >= 1: x = 0")
    data = {"x": np.where(T[1:] >= 2.2, 1.1 * (T[1:] - 2.2), 1.1 * T[1:])}
    experiment = cf.Experiment(data, time=T[1:], sigma=0.1, events=loaded.events)
    parameters = {"k": 1.0, "lag": cf.Parameter(1.3, bounds=(1.05, 1.45))}
    result = cf.fit(cf.Problem(loaded.model, experiment, parameters=parameters), "single")
    assert result.success, result.message
    assert (result.parameters["k"], result.parameters["lag"]) == pytest.approx((1.1, 1.2), rel=1e-5)


@pytest.mark.parametrize(
    ("event", "n"),
    [
        ("at 1 after x >= 1: n = x", lambda t: np.where(t >= 2, 1.0, 0.0)),
        ("at 1 after x >= 1, fromTrigger = false: n = x", lambda t: np.where(t >= 2, 2.0, 0.0)),
        ("at x after time >= 1: n = 1", lambda t: np.where(t >= 2, 1.0, 0.0)),
        ("at 1 after x >= 1 && x < 2.5, persistent = false: n = 1", lambda t: np.where(t >= 2, 1.0, 0.0)),
        ("at 1 after x >= 1 && x < 1.5, persistent = false: n = 1", lambda t: 0.0 * t),
        ("at x >= 1, priority = 2: n = n + 1; at x >= 1, priority = 5: n = 10", lambda t: np.where(t >= 1, 1.0, 0.0)),
        (
            "at x >= 1, priority = 2, fromTrigger = false: n = n + 1; at x >= 1, priority = 5: n = 10",
            lambda t: np.where(t >= 1, 11.0, 0.0),
        ),
        (
            "at x >= 1, priority = -x, fromTrigger = false: n = n + 1; at x >= 1, priority = x: n = 10",
            lambda t: np.where(t >= 1, 11.0, 0.0),
        ),
        ("at x >= 1, priority = 2: y = -9; at y >= 1, priority = 1, persistent = false: n = 7", lambda t: 0.0 * t),
        ("at x >= 1, priority = 1: y = -9; at y >= 1, priority = 2: n = 7", lambda t: np.where(t >= 1, 7.0, 0.0)),
    ],
)
def test_events_of_states_wait_for_their_time_and_their_turn(event, n):
    """x = y = t; what an event sets may be of the trigger's time or of its own."""
    times = np.array([0.5, 1.2, 1.7, 2.2, 3.0])
    np.testing.assert_allclose(
        of(f"x = 0; x' = 1; y = 0; y' = 1; n = 0; {event}", times=times)["n"], n(times), rtol=1e-8, atol=1e-10
    )


def test_several_events_of_one_kind_may_wait_at_once():
    """Every 0.4 until 2 an event is triggered that happens 1.5 later: four wait at once, so three are too few."""
    text = (
        "s = 0; s' = 1; n = 0; at s >= 0.4 && time < 2.1: s = 0; at 1.5 after s >= 0.4, fromTrigger = false: n = n + 1"
    )
    times = np.array([1.0, 2.0, 2.5, 3.0, 4.0])
    np.testing.assert_allclose(of(text, times=times)["n"], [0, 1, 2, 3, 6])
    with pytest.raises(cf.SimulationError, match=r"more than 3 of event .* wait at once; load with a larger waiting="):
        of(text, times=times, waiting=3)
    with pytest.raises(cf.SimulationError, match="more often than 4 times; give a larger count="):
        of(text, times=times, count=4)
    loaded = cf.sbml.load_antimony("k = 1; " + text.replace("s' = 1", "s' = k"))
    experiment = cf.Experiment({"n": 0.0 * times}, time=times, sigma=1.0, events=loaded.events)
    result = cf.fit(cf.Problem(loaded.model, experiment, parameters=loaded.parameters), "single")
    assert "more than 3 of event _E1 wait at once; load with a larger waiting=. Try" in result.message
    assert "nan" not in result.message


def test_a_priority_that_is_no_number_comes_last():
    out = of(
        "x = 0; y = 0; z = 1; at time >= 1, priority = y / y: x = 1; at time >= 1, priority = z: x = 2", times=[0, 2]
    )
    assert out["x"][-1] == 1.0


def test_events_of_equal_priority_have_same_order_in_all_integrations():
    """One of two events calls the other off, every 0.1: a coin thrown 40 times."""
    one = "at time - r >= 0.1, priority = 1, persistent = false: r = time, {0} = {0} + 1; "
    text = "r = 0; a = 0; b = 0; " + one.format("a") + one.format("b")
    first_value, second_value, other_seed_value = (of(text, times=[0, 3.95], rng=seed)["a"][-1] for seed in (0, 0, 1))
    simulation = of(text, times=[0, 3.95])
    assert first_value == second_value == simulation["a"][-1] == 39 - simulation["b"][-1]
    assert first_value != other_seed_value
    assert 8 < first_value < 31


def test_fits_follow_delayed_events_that_states_trigger():
    """The derivatives of a delayed event's time, and of what it sets, by the Jacobian of single shooting."""
    loaded = cf.sbml.load_antimony(
        "x = 1; x' = k; k = 1; lag = 0.7; top = 2; y = 0.2; y' = -y; at lag after x >= top: y = y + x * k"
    )
    times = np.array([0.5, 1.5, 1.9, 2.5, 3.5])
    data = cf.Experiment({"y": 0.0 * times}, time=times, sigma=1.0, events=loaded.events)
    free = {n: cf.Parameter(v, lower=0.1) for n, v in loaded.parameters.items()}
    problem = cf.Problem(loaded.model, data, parameters=free)
    staged = cf.SingleShooting(integrator=TIGHT).transcribe(problem, problem.guess)
    v = staged.start
    (blocks,) = staged.linearize(v).jacobians
    step = 1e-6
    differences = [
        (staged.evaluate(v + step * e).values[0].r - staged.evaluate(v - step * e).values[0].r) / (2 * step)
        for e in np.eye(v.size)
    ]
    np.testing.assert_allclose(blocks.R_q.reshape(-1, v.size), np.array(differences).reshape(v.size, -1).T, atol=1e-6)
    # Triggered at t = (top - 1) / k = 1 it sets y(1) + 2 k at t = 1.7.
    y = cf.simulate(problem, times=times)["y"]
    set_ = 0.2 * np.exp(-1.0) + 2.0
    np.testing.assert_allclose(y, np.where(times < 1.7, 0.2 * np.exp(-times), set_ * np.exp(1.7 - times)), rtol=1e-6)


def fast(text: str) -> str:
    """Make the reactions F... fast, as Level 3 Version 1 can say it."""
    text = text.replace("level3/version2/core", "level3/version1/core").replace('version="2"', 'version="1"')
    return re.sub(r'<reaction id="(\w+)"', lambda m: f'{m[0]} fast="{str(m[1].startswith("F")).lower()}"', text)


def test_fast_reactions_are_at_equilibrium():
    """A <-> B is fast with A = 2 B, and B -> at the rate k: the sum decays as T' = -k T / 3."""
    text = cf.sbml.load_antimony("F: A -> B; a * A - b * B; S: B -> ; k * B; a = 1; b = 2; k = 0.6; A = 3; B = 0").sbml
    loaded = cf.sbml.load(fast(text))
    out = cf.simulate(loaded, times=T, integrator=TIGHT)
    np.testing.assert_allclose(out["A"], 2.0 * np.exp(-0.2 * T), rtol=1e-8)
    np.testing.assert_allclose(out["B"], np.exp(-0.2 * T), rtol=1e-8)
    assert not loaded.model.algebraic_states


def test_fast_reactions_that_are_not_linear_make_a_dae():
    """2 A <-> B with A^2 = B: A + 2 B = T stays 3, so that A = 1, until more A comes in at the rate 1."""
    text = cf.sbml.load_antimony("F: 2 A -> B; A^2 - B; S: -> A; v; v = 1; A = 3; B = 0").sbml
    loaded = cf.sbml.load(fast(text))
    assert loaded.model.algebraic_states
    out = cf.simulate(loaded, times=T, integrator=TIGHT)
    np.testing.assert_allclose(out["A"], (np.sqrt(1 + 8 * (3 + T)) - 1) / 4, rtol=1e-7)
    np.testing.assert_allclose(out["B"], out["A"] ** 2, rtol=1e-7)


def test_fast_reactions_may_go_round():
    """What each of them turns over in a cycle is the same, not nothing: A = 2 B = 4 C."""
    text = cf.sbml.load_antimony("F1: A -> B; A; F2: B -> C; 2 * B; F3: C -> A; 4 * C; A = 1; B = 0; C = 0").sbml
    out = cf.simulate(cf.sbml.load(fast(text)), times=[0.0, 1.0])
    np.testing.assert_allclose([out[s][-1] for s in "ABC"], [4 / 7, 2 / 7, 1 / 7])


def test_fast_reactions_that_never_rest_are_named():
    with pytest.raises(cf.InputError, match="the fast reactions F come to no equilibrium"):
        cf.sbml.load(fast(cf.sbml.load_antimony("F: A -> B; 0.3; A = 1; B = 0").sbml))


@pytest.mark.parametrize(
    ("law", "a", "b", "equilibrium"),
    [
        ("-A * B", 5.0, 5.0, 10.0),
        ("A * B", 5.0, 5.0, 0.0),
        ("A * (A - 2)", 0.5, 5.0, 2.0),
        ("A * (A - 2)", 3.0, 5.0, 2.0),
        ("-A * (A - 2)", 1.9, 5.0, 0.0),
        ("A * (A - 1) * (A - 2)", 1.2, 5.0, 2.0),
        ("A * (A - 1) * (A - 2)", 0.8, 5.0, 0.0),
        ("-A * (A - 1) * (A - 2)", 1.2, 5.0, 1.0),
        ("sin(A)", 4.0, 0.0, 2 * np.pi),
        ("sin(A)", 7.0, 0.0, 2 * np.pi),
        ("A^2 - B^2", 3.0, 0.0, 1.5),
        ("A / (1 + A)", 3.0, 0.0, 0.0),
        ("1e9 * A * (A - 2e-9)", 1e-9, 5e-9, 2e-9),
    ],
)
def test_fast_reaction_reaches_zero_in_direction_of_its_law(law, a, b, equilibrium):
    """A' = -law, B' = law, infinitely fast, from A = a: the first zero at which A' falls through zero."""
    loaded = cf.sbml.load(fast(cf.sbml.load_antimony(f"F: A -> B; {law}; A = {a}; B = {b}").sbml))
    out = cf.simulate(loaded, times=[0.0, 1.0])
    np.testing.assert_allclose(out["A"], equilibrium, rtol=1e-6, atol=1e-9 * a)
    np.testing.assert_allclose(out["B"], a + b - equilibrium, rtol=1e-6, atol=1e-9 * b)


def test_fast_reaction_starts_from_the_value_in_a_simulation():
    loaded = cf.sbml.load(fast(cf.sbml.load_antimony("F: A -> B; A*(A - 1)*(A - 2); A = 0.8; B = 5").sbml))
    for a, equilibrium in ((0.8, 0.0), (1.2, 2.0)):
        assert cf.simulate(loaded, {"A": a}, times=[1.0])["A"][0] == pytest.approx(equilibrium, abs=1e-8)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("F: A -> B; k * A; k = 0", "the fast reactions F come to no equilibrium"),
        ("F: A -> B; -A", "the fast reactions F come to no equilibrium"),
        ("F: A -> B; -A * (A - 1)", "the fast reactions F come to no equilibrium"),
        ("F: A -> B; k * A; k = 0; at time > 1: k = 1", "the fast reactions F come to no equilibrium"),
        ("F: A -> B; k * A; k = 1; at time > 1: k = 0", "the fast reactions F come to no equilibrium"),
        ("F: A -> B; k * A; k := piecewise(1, time < 1, 0)", "the laws of the fast reactions F jump"),
        ("F: A -> B; A * (A - 3); at time > 1: A = 1", "event _E0 changes the equilibrium of the fast reactions F"),
        ("F: A -> s B; A; s = 1; at time > 1: s = 5", "a stoichiometry of the fast reactions F varies"),
        ("F: A -> s B; A; s := x; x' = 1; x = 1", "a stoichiometry of the fast reactions F varies"),
    ],
)
def test_fast_reactions_without_one_equilibrium_are_refused_by_name(model, message):
    text = cf.sbml.load_antimony(f"{model}; A = 2; B = 0").sbml
    with pytest.raises(cf.InputError, match=message):
        cf.sbml.load(fast(text))


def test_events_may_change_linear_fast_reactions():
    model = "F: A -> B; k * A - B; k = 1; A = 2; B = 0; at time >= 1: k = 3; at time >= 2: A = 5"
    out = cf.simulate(cf.sbml.load(fast(cf.sbml.load_antimony(model).sbml)), times=[0.0, 1.0, 2.0])
    np.testing.assert_allclose(out["A"], [1.0, 0.5, 6.5 / 4], rtol=1e-9)


@pytest.mark.parametrize(
    ("model", "early", "late"),
    [
        ("x = 5; x' = -x / 2; p := delay(rateOf(x), 1)", 0.0, lambda s: -2.5 * np.exp(-s / 2)),
        ("x = 5; x' = -x / 2; q := rateOf(x); p := delay(q + x, 1)", 5.0, lambda s: 2.5 * np.exp(-s / 2)),
        ("x = 5; x' = -x / 2; p := delay(delay(rateOf(x), 0.5), 0.5)", 0.0, lambda s: -2.5 * np.exp(-s / 2)),
        ("F: A -> B; A; A = 2; B = 3; p := delay(A, 1)", 2.0, lambda s: 0 * s),
        ("F: A -> B; A; A = 2; B = 3; q := 2 * B; p := delay(q, 1)", 6.0, lambda s: 10 + 0 * s),
        ("F: A -> B; A - B; A = 2; B = 0; S: B -> ; B; p := delay(A, 1)", 2.0, lambda s: np.exp(-s / 2)),
    ],
)
def test_delayed_value_before_the_start_knows_no_rate_and_no_fast_reaction(model, early, late):
    loaded = cf.sbml.load(fast(cf.sbml.load_antimony(model).sbml))
    out = cf.simulate(loaded, times=T, integrator=TIGHT)
    np.testing.assert_allclose(out["p"], np.where(T < 1, early, late(T - 1)), rtol=1e-6, atol=1e-9)


def test_a_delayed_value_before_the_start_and_after_it():
    """x' = -x(t - 1) with x = 1 before the start: polynomials, 1 - t, then 1 - t + (t - 1)^2 / 2, and so on."""
    out = of("x' = -delay(x, 1); x = 1; y := delay(time, 2)")
    steps = [
        np.where(k - 1 <= T, (-1.0) ** k * (T - k + 1) ** k / np.prod(np.arange(1, k + 1)), 0.0) for k in range(1, 6)
    ]
    np.testing.assert_allclose(out["x"], 1 + np.sum(steps, axis=0), atol=2e-5)
    np.testing.assert_allclose(out["y"], T - 2)


@pytest.mark.parametrize("tau", ["time / 2", "0.5 + time / 4", "1 + sin(time)", "d * time + 1", "2 * time"])
def test_a_delay_may_change_in_time(tau):
    """z' = z / 5 and x' = - x z / 2 are followed along t - tau(t), and stood still before the start."""
    out = of(f"d = 0.3; z = 1; z' = 0.2 * z; x = 2; x' = -0.5 * x * z; y := delay(x, {tau}); late := {tau}")
    earlier = np.maximum(T - out["late"], 0.0)
    np.testing.assert_allclose(out["y"], 2 * np.exp(-2.5 * (np.exp(0.2 * earlier) - 1)), rtol=1e-7)


def test_changing_delay_starts_from_overridden_initial_value():
    loaded = cf.sbml.load_antimony("k = 0.5; x = 2; x' = -k * x; y := delay(x, time / 2); n = 0; at y < 1: n = y")
    out = cf.simulate(loaded, {"x": 4.0, "k": 1.0}, times=T, integrator=TIGHT)
    np.testing.assert_allclose(out["y"], 4 * np.exp(-T / 2), rtol=1e-8)
    np.testing.assert_allclose(out["n"], 2 * np.log(4) < T)


def test_events_may_look_at_delayed_values():
    out = of("x' = exp(-time); x = 0; n = 0; at delay(x, 1) > 0.5: n = 1", times=[0.6, 1.5, 1.65, 1.75, 3.0])
    np.testing.assert_allclose(out["n"], [0, 0, 0, 1, 1])


def sawtooth(top, foot):
    """Grow by 1 from 1, and fall to `foot` wherever `top` is reached."""
    return lambda t: np.where(t < top - 1, 1 + np.maximum(t, 0.0), foot + np.mod(t - (top - 1), top - foot))


@pytest.mark.parametrize(
    ("event", "x"),
    [
        ("at time >= 2: x = 0.5", lambda t: np.where(t < 2, 1 + np.maximum(t, 0.0), t - 1.5)),
        ("at time >= 2: x = x / 2", lambda t: np.where(t < 2, 1 + np.maximum(t, 0.0), t - 0.5)),
        ("at time >= 0, t0=false: x = 5", lambda t: np.where(t < 0, 1.0, 5 + t)),
        ("at x >= 2: x = x / 2", sawtooth(2, 1)),
        ("at x >= 2, priority = 1: x = x / 2; at x >= 2, priority = 2: n = 2 * x", sawtooth(2, 1)),
        ("at 0.25 after x >= 2: x = 1", sawtooth(2.25, 1)),
    ],
)
def test_a_delayed_value_jumps_later_where_events_change_a_state(event, x):
    """Once, watched, by turns and after a delay of its own; the delay spans more than one jump."""
    times = np.linspace(0.03, 5.03, 21)
    out = of(f"x = 1; x' = 1; n = 0; y := delay(x, 1.7); z := delay(y, 0.4); {event}", times=times)
    np.testing.assert_allclose(out["x"], x(times), rtol=1e-7)
    np.testing.assert_allclose(out["y"], x(times - 1.7), rtol=1e-7)
    np.testing.assert_allclose(out["z"], x(times - 2.1), rtol=1e-7)


def test_delayed_jumps_move_with_parameters():
    """The slopes of what a fit sees, by the rate and by the delay, where an event of states is seen later."""
    loaded = cf.sbml.load_antimony("k = 0.5; tau = 1.3; x = 2; x' = -k * x; y := delay(x, tau); at x < 1: x = 3")
    times = np.array([0.5, 1.7, 2.6, 3.1, 4.2])

    def y(k, tau):
        return cf.simulate(loaded, {"k": k, "tau": tau}, times=times, integrator=TIGHT)["y"]

    data = cf.Experiment({"y": y(0.5, 1.3)}, time=times, sigma=0.1, events=loaded.events)
    problem = cf.Problem(loaded.model, data, parameters=loaded.parameters)
    sensitivities = cf.fit(problem, cf.SingleShooting(integrator=TIGHT)).sensitivities(times)["experiment 1"]
    numbers = [(y(0.5 + h, 1.3 + g) - y(0.5 - h, 1.3 - g)) / 2e-5 for h, g in ((1e-5, 0.0), (0.0, 1e-5))]
    np.testing.assert_allclose(
        sensitivities.slopes[:, sensitivities.names.index("y")], np.transpose(numbers), atol=1e-4
    )


@pytest.mark.parametrize(("sign", "expected_value"), [(">", 0.0), (">=", 1.0)])
@pytest.mark.parametrize("second", [">", ">="])
@pytest.mark.parametrize("delay", ["", "0.5 after "])
def test_value_at_time_of_event_cascade_follows_its_cause(sign, expected_value, second, delay):
    out = of(f"x' = 1; x = 0; a = 0; b = 0; at {delay}x {sign} 2: a = 1; at a {second} 0.5: b = 1", times=[2.0, 2.5])
    np.testing.assert_allclose(out["b"], [expected_value, 1.0] if not delay else [0.0, expected_value])


@pytest.mark.parametrize(
    ("trigger", "there"),
    [
        ("time > 2 && n > 0", 0.0),
        ("time >= 2 && n >= 1", 1.0),
        ("time >= 2 && x > 0.5", 1.0),
        ("time > 2 && x >= 0.5", 0.0),
        ("2 - time < 0 && !(x < 0.5)", 0.0),
        ("!(2 - time > 0) && x > 0.5", 1.0),
        ("x > 2 && time <= 9", 0.0),
        ("x >= 2 && time <= 9", 1.0),
    ],
)
def test_value_at_time_of_clock_event_follows_its_comparison(trigger, there):
    out = of(f"x' = 1; x = 0; n = 0; y = 0; at time > 1: n = 1; at {trigger}: y = y + 1", times=[0.0, 2.0, 3.0])
    np.testing.assert_array_equal(out["y"], [0.0, there, 1.0])


@pytest.mark.parametrize("moving", ["", "y' = -y; y = 1;"])
@pytest.mark.parametrize(
    ("trigger", "change_at_time"),
    [
        ("floor(time) != 1", 1),
        ("floor(time / 2) >= 1", 1),
        ("ceil(time) >= 3", 0),
        ("ceil(time) == 3", 0),
        ("floor(-time) < -2", 0),
        ("ceil(2 - time) < 1", 1),
        ("floor(2 - time) < 0", 0),
        ("floor(k * time) >= 1", 1),
        ("floor(time) * c > 6", 1),
        ("quotient(time, 2) == 1", 1),
        ("rem(time, 2) < 1 && time > 1", 1),
        ("rem(time, 2) >= 1 && time > 2.5", 0),
        ("piecewise(1, time >= 2, 0) > 0.5", 1),
        ("piecewise(1, time > 2, 0) > 0.5", 0),
        ("piecewise(0, time < 2, 1) == 1", 1),
        ("piecewise(0, time <= 2, 1) == 1", 0),
        ("piecewise(time / 2, time >= 2, 0) > 0.5", 1),
        ("piecewise(c, time >= 2, 0) > 0.5", 1),
        ("piecewise(c, time > 2, 0) > 0.5", 0),
        ("piecewise(1, time >= 1, 0) + piecewise(1, time > 2, 0) == 2", 0),
        ("piecewise(1, time >= 1, 0) + piecewise(-1, time >= 1, 0) + piecewise(1, time >= 2, 0) != 0", 1),
        ("piecewise(time > 2, time >= 0.5, false)", 0),
    ],
)
def test_value_at_time_of_event_follows_truth_of_trigger_there(trigger, change_at_time, moving):
    text = f"species c; c = 5; J: c -> ; 0 * c; k = 0.5; n = 0; {moving} at time > 0.5 && {trigger}: n = n + 1"
    out = of(text, times=[0.0, 1.99, 2.0, 2.01])["n"]
    previous = out[1]
    assert previous == (1.0 if trigger == "floor(time) != 1" else 0.0)
    late = 0.0 if "2.5" in trigger else 1.0
    np.testing.assert_array_equal(out[2:] - previous, [change_at_time, late])


@pytest.mark.parametrize(
    ("trigger", "changes"),
    [
        ("floor(time) - 2 == 0 || time > 3.5", [2.0, 3.5001]),
        ("floor(time) + piecewise(1, time > 2, 0) >= 3", [2.0001]),
        ("floor(time) == 2 || ceil(time) == 5", [2.0, 4.0001]),
        ("floor(time + 0.5) == 2 || time > 3", [1.5, 3.0001]),
        ("floor(time) - 2 == 0 && x < 4 || time > 3.5", [-10 * np.log(0.8), 3.5001]),
        ("x < 4.5 && time >= 2 || time > 5", [2.0]),
        ("floor(time) + ceil(time) >= 6", [3.0]),
        ("ceil(-time) == -2", [2.0]),
        ("-2 * floor(time) + 5 < 0", [3.0]),
        ("floor(floor(time) / 2) == 1", [2.0]),
        ("time - 2 * floor(time / 2) < 0.5", [2.0, 4.0, 6.0]),
    ],
)
def test_trigger_of_instants_and_later_conditions_happens_at_each(trigger, changes):
    """An event right after a time is 1e-4 later here."""
    times = np.arange(0.0, 6.01, 0.25)
    out = of(f"species x; x = 5; J: x -> ; 0.1 * x; n = 0; at ({trigger}): n = n + 1", times=times)
    np.testing.assert_array_equal(out["n"], (times[:, None] >= changes).sum(axis=1))


@pytest.mark.parametrize(
    "trigger", ["floor(time) == time", "ceil(time) - floor(time) == 0", "time - 2 * floor(time / 2) == 0"]
)
def test_trigger_at_single_times_of_jumps_is_refused(trigger):
    with pytest.raises(cf.InputError, match="changes at single times at which floor or ceil jumps"):
        of(f"n = 0; at ({trigger}): n = n + 1", times=[1.0])


def test_piecewise_whose_only_condition_is_true_has_its_value():
    rules = (
        '<listOfParameters><parameter id="k" constant="false"/></listOfParameters><listOfRules><assignmentRule '
        'variable="k">' + math("<piecewise><piece><cn>1</cn><true/></piece></piecewise>") + "</assignmentRule>"
        "</listOfRules>"
    )
    np.testing.assert_array_equal(cf.simulate(cf.sbml.load(xml(rules)), times=[0.0, 1.0])["k"], 1.0)


@pytest.mark.parametrize("also", ["", " && y > 0", " && x > 1"])
@pytest.mark.parametrize("order", ["", ", priority = 5"])
def test_events_true_at_a_time_precede_those_true_after_it(also, order):
    """z = y + 1 = 2 at t = 2, y = z + 1 = 3 right after it, where that is still true."""
    text = f"x' = 1; x = 0; y = 1; z = 0; w = 0; at time > 2{order}: y = z + 1; at time >= 2{also}: z = y + 1"
    out = of(text, times=[1.0, 2.5])
    np.testing.assert_array_equal([out["y"], out["z"]], [[1.0, 3.0], [0.0, 2.0]])
    out = of(f"x' = 1; x = 0; y = 1; z = 0; at time > 2 && z < 1: y = 9; at time >= 2{also}: z = 2", times=[1.0, 2.5])
    np.testing.assert_array_equal(out["y"], [1.0, 1.0])


def test_piecewise_without_otherwise_is_nan_elsewhere():
    out = of("x := piecewise(1, time < 2, 3, time > 2); y := piecewise(1, time < 2, 3, time > 3)", times=[1, 2, 2.5, 4])
    np.testing.assert_allclose(out["x"], [1, 3, 3, 3])
    np.testing.assert_allclose(out["y"], [1, np.nan, np.nan, 3])


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("at -1 after time > 1: n = 1", "the delay of event _E0 is -1; it must not be negative"),
        ("at -1 after x > 1: n = 1", "the delay of event _?E0 is -1; it must not be negative"),
        (
            "y = 1; y' = -delay(y, 1); at y < 0.5: y = 1",
            "of .y., at which events jump, depends on .* back",
        ),
        ("y := delay(x, x)", "a delay that depends on states"),
        ("y := delay(delay(x, 1), time)", "a delay that changes in time, of a delayed value"),
        ("y := delay(x, time - 1)", "a delay of 'x' is negative at the start"),
    ],
)
def test_unsupported_delays_are_named(event, said):
    with pytest.raises(cf.InputError, match=said):
        cf.sbml.load_antimony(f"x = 0; x' = 1; n = 0; {event}")


def test_a_time_of_an_event_can_be_estimated_by_any_transcription():
    """x grows by 1 until it falls to 0 at `late`; sawtooth in closed form."""
    loaded = cf.sbml.load_antimony("x = 0; x' = k; late = 2; k = 1; at time >= late: x = 0")
    data = cf.Experiment(
        {"x": np.where(T[1:] >= 2.2, 1.1 * (T[1:] - 2.2), 1.1 * T[1:])}, time=T[1:], sigma=0.1, events=loaded.events
    )
    problem = cf.Problem(loaded.model, data, parameters={"k": 1.0, "late": cf.Parameter(2.3, bounds=(2.05, 2.45))})
    for transcription in ("single", "multiple", "collocation"):
        result = cf.fit(problem, transcription)
        assert result.success, result.message
        assert (result.parameters["k"], result.parameters["late"]) == pytest.approx((1.1, 2.2), rel=1e-5)


@pytest.mark.parametrize("moving", ["", "y' = -y; y = 1;"])
def test_events_happen_as_often_as_they_do(moving):
    """Far more often than a hundred times, with a cascade each; whether anything has to be integrated or not."""
    out = of(
        f"{moving} n = 0; m = 0; due = 0.01; reset = 0;"
        "at time - reset >= due, priority = 2: reset = time, n = n + 1;"
        "at time - reset >= due, priority = 1, persistent = false: m = m + 1000;"
        "at n - m > 0.5, priority = 3: m = m + 1",
        times=[0.0, 1.005, 3.005],
    )
    np.testing.assert_allclose(out["n"], [0, 100, 300])
    np.testing.assert_allclose(out["m"], [0, 100, 300])


def test_given_counts_are_kept():
    text = "x' = 1; x = 0; n = 0; at x >= 1: x = 0, n = n + 1"
    assert cf.simulate(cf.sbml.load_antimony(text), times=[0.0, 250.5])["n"][-1] == 250
    with pytest.raises(cf.SimulationError, match="happens more often than 100 times; give a larger count="):
        cf.simulate(cf.sbml.load_antimony(text, count=100), times=[0.0, 250.5])


def test_even_rates_give_what_integration_gives():
    """Values before, at and after events, those of known times among them; a state that decays has to be integrated."""
    text = (
        "x' = k; x = 0; k = 0.3; w' = 2 - 3 * k; w = 1; n = 0; y = 5;"
        "at x > 1.05: x = 0.2, n = n + 1; at time >= 4: y = y + n; at y > 5: w = 1;"
        "at 0.7 after w > 2: n = n + 10, w = 0"
    )
    times = [0.0, 0.5, 3.5, 4.0, 4.5, 6.3, 8.0, 12.0]
    even, other = (of(prefix + text, times=times) for prefix in ("", "z' = -z; z = 1; "))
    for name in "xwny":
        np.testing.assert_allclose(even[name], other[name], rtol=1e-8, atol=1e-8)
    assert even["n"][-1] > 10


@pytest.mark.parametrize(
    ("degree", "value", "root"), [(3, -8, -2), (3, 8, 2), (5, -32, -2), (2, 9, 3), (2, -4, np.nan)]
)
def test_odd_roots_of_negative_numbers(degree, value, root):
    out = of(f"y' = 0; y = {value}; x := root({degree}, y)", times=[0.0, 1.0])
    np.testing.assert_allclose(out["x"], [root, root], rtol=1e-12)


def test_an_event_that_is_triggered_again_while_it_waits_happens_twice():
    out = of(
        "x = 0; n = 0; at time >= 1, priority = 9: x = 2; at time >= 1, priority = 8: x = 0;"
        "at time >= 1, priority = 7: x = 2; at time >= 1, priority = 6: x = 0;"
        "at x > 1, priority = 2, fromTrigger = false: n = n + 1",
        times=[0.0, 2.0],
    )
    assert out["n"][-1] == 2.0


def test_differences_that_bend_are_seen_anew_beside_those_that_do_not():
    """|x - 2.5| < y with x = t: at 1.5; once y falls to 1/4 at 2, again at 2.25; once it is 1 at 3, a third time."""
    text = "x' = 1; x = 0; n' = 0; n = 0; y' = 0; y = 1; when = 0; when' = 0; "
    text += "at abs(x - 2.5) < y: n = n + 1, when = time; at x > 2: y = 0.25; at x > 3: y = 1"
    out = cf.simulate(cf.sbml.load_antimony(text), times=[1.4, 1.6, 2.1, 2.2, 2.4, 2.7, 2.9, 3.2, 4.0])
    np.testing.assert_array_equal(out["n"], [0, 1, 1, 1, 2, 2, 2, 3, 3])
    np.testing.assert_allclose(out["when"][[1, 4, 7]], [1.5, 2.25, 3.0], rtol=1e-9)
