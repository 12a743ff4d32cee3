"""Verdicts: which combinations are named, and what is said about each quantity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit.result.covariance import Statistics, statistics
from castfit.result.identifiability import (
    AT_BOUND,
    CORRELATED_WITH,
    NOT_IDENTIFIABLE,
    POORLY_DETERMINED,
    UNKNOWN,
    WELL_DETERMINED,
    ConfoundedQuantities,
    Identifiability,
    _sentence,
    judge,
    no_verdict,
)
from castfit.solve.staged import ChainValues, Jacobians, Linearization, Specification, build_layout


def solved(E: np.ndarray, *, active: tuple[int, ...] = (), absolute_sigma: bool = True) -> Statistics:
    """Return the statistics of one chain without nodes whose residuals have the Jacobian E (m, n)."""
    m, n = E.shape
    none, theta = np.zeros, np.arange(n)
    sigma, mask = np.ones(1 - absolute_sigma), np.ones((1, m), bool)
    group = np.full((1, m), sigma.size - 1)
    chain = Specification("e", theta, 0, 0, mask, none((1, 0)), none((1, 0)), np.arange(2.0), (), group=group)
    layout = build_layout(tuple(f"k{j + 1}" for j in theta), (chain,))
    empty = {f"{rows}_{to}": none((1, 0, n if to == "q" else 0)) for rows in "DXC" for to in "swq"}
    blocks = Jacobians(R_s=none((1, m, 0)), R_w=none((1, m, 0)), R_q=E[None], A=none((0, n)), **empty)
    values = ChainValues(np.ones((1, m)), none(0), none((1, 0)), none((1, 0)), none((1, 0)))
    point = Linearization(np.ones(n), (values,), none(0), none((0, n)), (), (blocks,), sigma=sigma)
    flags = np.zeros(n, dtype=np.int8)
    flags[list(active)] = 1
    return statistics(layout, point, flags)


def verdicts(E: np.ndarray, values: list[float], *, log: bool = False, **options: bool) -> Identifiability:
    natural = np.array(values)
    names = [f"k{j + 1}" for j in range(natural.size)]
    slopes = natural if log else np.ones(natural.size)
    return judge(names, natural, slopes, {}, solved(E * slopes, **options))


def columns(seed: int, n: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((n, 30)))


k = [2.0, 0.5, 30.0]
f, g, h = columns(0, 3)

named = {
    "only k1*k2 enters": np.column_stack([k[1] * f, k[0] * f, g]),
    "only k1/k2 enters": np.column_stack([f / k[1], -k[0] / k[1] ** 2 * f, g]),
    "only k1*k2**2 enters": np.column_stack([k[1] ** 2 * f, 2 * k[0] * k[1] * f, g]),
    "only k1**2/k3 enters": np.column_stack([-2 * k[2] / k[0] ** 3 * f, g, f / k[0] ** 2]),
    "only k1 + k3 enters": np.column_stack([f, g, f]),
    "only k2 - k3 enters": np.column_stack([g, f, -f]),
    "only k1*k2*k3 enters": np.column_stack([k[1] * k[2] * f, k[0] * k[2] * f, k[0] * k[1] * f]),
    "only k1 + k2 + k3 enters": np.column_stack([f, f, f]),
    "the data do not depend on k2": np.column_stack([f, 0 * f, g]),
    "k1 and k3 are identifiable only in combination": np.column_stack([f, g, 0.77 * f]),
    # two combinations of three quantities: s x and s y
    "only k1*k2 and k1*k3 enter": np.column_stack([k[1] * f + k[2] * g, k[0] * f, k[0] * g]),
}


@pytest.mark.parametrize(("sentence", "E"), named.items(), ids=named)
@pytest.mark.parametrize("log", [False, True])
def test_combination_is_named(sentence: str, E: np.ndarray, log: bool) -> None:
    identifiability = verdicts(E, k, log=log)
    (combination,) = identifiability.combinations
    assert combination.sentence == sentence
    for verdict in identifiability.verdicts:
        assert (verdict.kind == NOT_IDENTIFIABLE) == (verdict.name in combination.names)
        if verdict.kind == NOT_IDENTIFIABLE:
            assert verdict.sentence == f"not identifiable: {sentence}"


@given(st.lists(st.floats(-8, 8), min_size=3, max_size=3))
def test_product_is_named_in_any_unit(exponents: list[float]) -> None:
    unit = 10.0 ** np.array(exponents)
    identifiability = verdicts(named["only k1*k2 enters"] / unit, list(np.array(k) * unit))
    assert "k1*k2" in identifiability.combinations[0].sentence  # k1 + k2 too, should the two values agree
    assert identifiability.combinations[0].directions[0] == pytest.approx({"k1": 0.5**0.5, "k2": -(0.5**0.5)})


def test_equal_values_leave_product_and_sum_open() -> None:
    (combination,) = verdicts(np.column_stack([f, f, g]), [0.5, 0.5, 1.0]).combinations
    assert combination.sentence == "only k1*k2 or k1 + k2 enters"


@pytest.mark.parametrize("values", [(1.5e9, 5.6e4), (1e6, 4.1e4), (6.0, 4.7e3), (0.2, 2e-6)])
@pytest.mark.parametrize("log", [False, True])
def test_combination_member_of_any_size_is_named(values: tuple[float, float], log: bool) -> None:
    """k = A exp(-E / 2494): the power of A and that of E differ by factors from 1e-9 to 22."""
    A, energy = values
    E = np.column_stack([f / A, -f / 2494.0, g])
    (combination,) = verdicts(E, [A, energy, 1.0], log=log).combinations
    assert combination.names == ("k1", "k2")
    assert combination.sentence == "k1 and k2 are identifiable only in combination"


@pytest.mark.parametrize("power", [1.0, 1.0005])
def test_combination_name_must_not_increase_the_rank(power: float) -> None:
    E = np.column_stack([f / k[0], power * f / k[1], g])
    (combination,) = verdicts(E, k).combinations
    assert ("k1*k2" in combination.sentence) == (power == 1.0)


def test_value_of_zero_has_no_product() -> None:
    (combination,) = verdicts(np.column_stack([f, f, g]), [0.0, 0.5, 1.0]).combinations
    assert combination.sentence == "only k1 + k2 enters"


def test_direction_is_written_with_its_signs() -> None:
    assert "direction +0.71 k1 -0.71 k2" in str(verdicts(named["only k1*k2 enters"], k))


def test_identifiability_many_terms_are_shortened() -> None:
    """A factor of each of forty experiments, beside one of all: a line, not forty terms."""
    factors = [f"b{i}" for i in range(40)]
    sentence = _sentence(["s", *factors], np.array([2.0] + [1.0] * 40), np.array([[-2.0] + [1.0] * 40]))
    assert sentence == "only s*b0, s*b1, s*b2 and 37 others enter"
    weights = {"s": 0.71} | {n: -0.01 * (1 + (i == 7)) for i, n in enumerate(factors)}
    combination = ConfoundedQuantities(("s", *factors), (weights,), sentence)
    assert str(combination) == f"{sentence} (direction +0.71 s -0.02 b7 -0.01 b0 and 38 others)"


def test_separate_groups_are_reported_separately() -> None:
    E = np.column_stack([f, g, f, 2 * g])
    identifiability = verdicts(E, [1.0, 5.0, 2.0, 2.5])
    assert {c.names: c.sentence for c in identifiability.combinations} == {
        ("k1", "k3"): "only k1 + k3 enters",
        ("k2", "k4"): "only k2*k4 enters",
    }


def test_well_determined() -> None:
    identifiability = verdicts(np.column_stack([f, 2 * g, h]), k)
    assert {v.kind for v in identifiability.verdicts} == {WELL_DETERMINED}
    assert identifiability.sentence == "All quantities are well determined."
    assert identifiability.combinations == ()
    assert identifiability["k2"].sentence == "well determined"


def test_poorly_determined() -> None:
    identifiability = verdicts(np.column_stack([f, 1e-3 * g, h]), k)
    assert identifiability["k2"].kind == POORLY_DETERMINED
    assert (
        identifiability["k2"].sentence == "poorly determined: the 95 % confidence interval is wider than the estimate"
    )
    assert identifiability.sentence == "1 of 3 poorly determined (k2); the others are well determined."


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize(("errors", "n"), [(0.2, 8), (0.15, 4), (0.25, 4)])
def test_poorly_determined_interval_wider_than_estimate(scale: str, errors: float, n: int) -> None:
    x, rate = cf.symbols("x rate")
    model = cf.Model({x: -rate * x}, parameters=[rate], initial={x: 1.0})
    times = np.linspace(0.3, 2.0, n)
    pattern = errors * np.array([1.0, -1.0, -1.0, 1.0] * (n // 4))
    data = cf.Experiment({"x": np.exp(-times) + pattern * np.exp(-times)}, times)
    result = cf.fit(cf.Problem(model, data, parameters={"rate": cf.Parameter(1.0, lower=0, scale=scale)}), "single")
    low, high = result.confidence_intervals()["rate"]
    wide = high - low > result.parameters["rate"]
    assert (result.identifiability["rate"].kind == POORLY_DETERMINED) == wide
    assert wide == (errors > 0.2)


def test_correlated() -> None:
    identifiability = verdicts(np.column_stack([f, f + 1e-2 * g, h]), [20.0, 200.0, 30.0])
    assert identifiability["k2"].kind == CORRELATED_WITH
    assert identifiability["k2"].sentence == "correlated -0.999 with k1"
    assert identifiability["k3"].kind == WELL_DETERMINED


def test_limit_of_the_integration_is_mentioned() -> None:
    uncertainty = solved(np.column_stack([f, g]))
    limited = type(uncertainty)(**{**vars(uncertainty), "numerical_errors": 0.9 * uncertainty.standard_errors})
    identifiability = judge(["k1", "k2"], np.array([2.0, 3.0]), np.ones(2), {}, limited)
    assert identifiability["k1"].sentence == "well determined; accuracy limited by integration errors"


def test_at_bound() -> None:
    identifiability = judge(
        ["k1", "k2"], np.ones(2), np.ones(2), {"k2": "upper"}, solved(np.column_stack([f, g]), active=(1,))
    )
    assert identifiability["k2"].kind == AT_BOUND
    assert identifiability["k2"].sentence == "at its upper bound"


def test_no_degree_of_freedom() -> None:
    identifiability = verdicts(np.eye(3), k, absolute_sigma=False)
    assert identifiability.sentence == (
        "Identifiability is not assessed: no degrees of freedom are left to estimate the noise."
    )


def test_failed_fit_still_says_what_is_not_identifiable() -> None:
    E = named["only k1*k2 enters"]
    identifiability = judge(
        ["k1", "k2", "k3"], np.array(k), np.ones(3), {}, solved(E), unknown="the fit did not succeed"
    )
    assert identifiability["k1"].kind == NOT_IDENTIFIABLE
    assert (identifiability["k3"].kind, identifiability["k3"].sentence) == (UNKNOWN, "the fit did not succeed")
    assert no_verdict(["a"], "why").sentence == "Identifiability is not assessed: why."
