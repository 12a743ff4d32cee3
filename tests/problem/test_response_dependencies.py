"""Exact dependencies among outputs with an unknown common covariance: alpha-pinene, and data of a known model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import castfit as cf
from castfit.problem.response_dependencies import without_dependencies

TIMES = [1230, 3060, 4920, 7800, 10680, 15030, 22620, 36420]
# Fuguitt and Hawkins 1947, J. Am. Chem. Soc. 69, 319-322: concentrations of five substances in percent.
PINENE = np.array(
    [
        [88.35, 7.3, 2.3, 0.4, 1.75],
        [76.4, 15.6, 4.5, 0.7, 2.8],
        [65.1, 23.1, 5.3, 1.1, 5.8],
        [50.4, 32.9, 6.0, 1.5, 9.3],
        [37.5, 42.7, 6.0, 1.9, 12.0],
        [25.9, 49.1, 5.9, 2.2, 17.0],
        [14.0, 57.4, 5.1, 2.6, 21.0],
        [4.5, 63.1, 3.8, 2.9, 25.7],
    ]
)
# Box, Hunter, MacGregor and Erjavec 1973; Bates and Watts 1988: rates in 1e-5 per minute.
RATES = {"p1": 5.953, "p2": 2.84, "p3": 0.427, "p4": 31.3, "p5": 5.74}


def pinene(outputs: str = "12345", values: Any = PINENE) -> cf.Problem:
    problem = cf.problems.load("alpha_pinene").problem
    data = {f"y{n}": values[:, int(n) - 1] for n in outputs}
    experiment = cf.Experiment(data, time=TIMES, sigma=cf.unknown("joint"))
    return cf.Problem(problem.model, experiment, parameters=problem.parameters)


def test_two_dependencies_of_pinene_are_named_and_the_published_rates_found(tmp_path: Any) -> None:
    problem = pinene()
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        start = {name: 1e-5 * rate * 10 ** rng.uniform(-1, 1) for name, rate in RATES.items()}
        result = cf.fit(problem, start=start)
        assert result.success
        assert [1e5 * result[name] for name in RATES] == pytest.approx([*RATES.values()], rel=1e-3)
        assert "y4" in result.message
        assert "are constant. The fit uses 3 of 5 orthogonal combinations" in result.message
    result.save(tmp_path / "pinene.json")
    loaded = cf.Result.load(tmp_path / "pinene.json").with_problem(problem)
    assert loaded.predict([5000.0])["experiment 1"]["y1"] == pytest.approx(result.predict([5000.0])["y1"])


def test_estimates_do_not_depend_on_the_order_of_the_outputs() -> None:
    start = {name: 1e-5 * rate for name, rate in RATES.items()}
    result = cf.fit(pinene("53142"), start=start)
    assert [1e5 * result[name] for name in RATES] == pytest.approx([*RATES.values()], rel=1e-3)


def test_independent_outputs_keep_their_names_and_a_poor_end_is_no_success() -> None:
    problem = pinene("123")
    assert without_dependencies(problem) == (problem, "")
    start = {name: 1e-5 * rate for name, rate in RATES.items()}
    best = cf.fit(problem, "single", start=start)
    assert best.neg2loglik == pytest.approx(15.897, abs=1e-3)
    distant_result = cf.fit(problem, "single")
    assert not distant_result.success or distant_result.neg2loglik < best.neg2loglik + 0.01


def test_missing_values_with_dependencies_are_refused_by_name() -> None:
    values = PINENE.copy()
    values[2, 3] = np.nan
    with pytest.raises(cf.InputError, match=r"missing values.*y4.* constant"):
        cf.fit(pinene(values=values))


def chain(seed: int, *, digits: int, n_experiments: int = 1, is_sum: bool = True, unit: float = 1.0) -> cf.Problem:
    """A -> B -> C with correlated errors of A and B; C completes the sum to that of the experiment, or has its own."""
    A, B, C, a, b = cf.symbols("A B C a b")
    model = cf.Model({A: -a * A, B: a * A - b * B, C: b * B}, parameters=[a, b], outputs={"c": unit * C})
    rng, times = np.random.default_rng(seed), np.linspace(0.5, 6.0, 12)
    experiments = []
    for k in range(n_experiments):
        total = 10.0 + 5.0 * k
        start = {"A": total, "B": 0.0, "C": 0.0}
        curve = cf.simulate(model, {"a": 0.7, "b": 0.4}, times, initial=start)
        noise = rng.multivariate_normal(np.zeros(3), [[0.04, -0.02, 0], [-0.02, 0.03, 0], [0, 0, 0.02]], 12)
        A_values, B_values = (np.round(curve[n] + e, digits) for n, e in zip("AB", noise.T[:2], strict=True))
        C_values = total - A_values - B_values if is_sum else np.round(curve["C"] + noise[:, 2], digits)
        data = {"A": A_values, "B": B_values, "c": unit * C_values}
        experiments.append(cf.Experiment(data, time=times, sigma=cf.unknown("joint"), initial=start))
    return cf.Problem(model, experiments, parameters={"a": 1.0, "b": 0.3})


@pytest.mark.parametrize("digits", [1, 2, 4, 9])
@pytest.mark.parametrize("n_experiments", [1, 3])
def test_dependency_is_found_at_any_rounding_and_with_a_constant_per_experiment(
    digits: int, n_experiments: int
) -> None:
    problem = chain(4, digits=digits, n_experiments=n_experiments)
    reduced, sentence = without_dependencies(problem)
    assert reduced.posed.outputs == ("combination 1", "combination 2")
    assert "A" in sentence
    assert "B" in sentence
    assert "c" in sentence
    # Model and data have the same sum, so that any two of the outputs contain everything.
    experiments = [
        e.with_changes(data={n: e.data[n] for n in "AB"}, noise={n: e.noise[n] for n in "AB"})
        for e in problem.experiments
    ]
    pair = [
        cf.Experiment(
            {n: e.data[n][1][:, 0] for n in "AB"}, time=e.data["A"][0], sigma=cf.unknown("joint"), initial=e.initial
        )
        for e in experiments
    ]
    other = cf.Problem(problem.model, pair, parameters=problem.parameters)
    for name, value in cf.fit(other).parameters.items():
        assert cf.fit(problem).parameters[name] == pytest.approx(value, rel=2e-3)


@pytest.mark.parametrize("seed", range(6))
def test_independent_errors_are_no_dependency(seed: int) -> None:
    problem = chain(seed, digits=2, is_sum=False)
    assert without_dependencies(problem) == (problem, "")


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e4])
def test_dependency_is_found_in_any_unit(unit: float) -> None:
    reduced, _ = without_dependencies(chain(1, digits=2, unit=unit))
    assert len(reduced.posed.outputs) == 2
