"""What is identifiable: structure told from data, collinearity, and what to measure next."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit import problems
from castfit.result.collinearity import collinearity, largest_subset, most_collinear, sensitivities
from castfit.result.structural_identifiability import StructuralRank, structure
from tests.builders import refused

T = np.linspace(0.0, 5.0, 20)
NOISE = 0.02 * np.random.default_rng(0).standard_normal(T.size)


def structure_of(problem: cf.Problem, seed: int = 0) -> StructuralRank:
    return structure(problem.posed, np.random.default_rng(seed))


def decaying(rate: Any, names: str, guesses: dict[str, Any], **model: Any) -> cf.Problem:
    x, *p = cf.symbols(f"x {names}")
    built = cf.Model({x: rate(x, *p)}, parameters=p, **model)
    experiment = cf.Experiment({"x": np.exp(-0.6 * T) + NOISE}, time=T, sigma=0.02, initial={"x": 1.0})
    return cf.Problem(built, experiment, parameters=guesses)


def hidden(problem: cf.Problem, seed: int = 0) -> list[str]:
    return [c.sentence for c in structure_of(problem, seed).combinations]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("rate", "sentences"),
    [
        (lambda x, a, b: -a * b * x, ["only a*b enters"]),
        (lambda x, a, b: -a / b**2 * x, ["only a/b**2 enters"]),
        (lambda x, a, b: -(a + b) * x, ["only a + b enters"]),
        (lambda x, a, b: -a * x + b * cf.fmax(x - 5, 0), ["the data do not depend on b"]),
        (lambda x, a, b: -a * x / (b + x), []),
        (lambda x, a, b: -a * x - b * x**2, []),
    ],
    ids=["product", "ratio", "sum", "absent", "michaelis", "orders"],
)
def test_structure_is_found_at_random_values(rate: Any, sentences: list[str], seed: int) -> None:
    """Also where values happen to be such that a product looks like a sum: a = b at the guess."""
    problem = decaying(rate, "a b", {"a": 0.7, "b": 0.7})
    assert hidden(problem, seed) == sentences
    assert structure_of(problem, seed).identifiable == (not sentences)


def test_initial_state_behind_a_scale_is_identifiable_with_more_outputs() -> None:
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x})
    start = {"x": cf.free(1.0, lower=0.0)}
    one_output_experiment = cf.Experiment({"y": 2 * np.exp(-0.6 * T)}, time=T, initial=start)
    two_output_experiment = cf.Experiment({"y": 2 * np.exp(-0.6 * T), "x": ([0.0], [1.0])}, time=T, initial=start)
    guesses = {"k": 0.5, "s": 1.5}
    assert hidden(cf.Problem(model, one_output_experiment, parameters=guesses)) == ["only s*x(0) enters"]
    assert structure_of(cf.Problem(model, two_output_experiment, parameters=guesses)).identifiable


def test_several_experiments_and_inputs_count() -> None:
    """u' known: k1 u enters as k1*c in one experiment; a second dose of c does not help, its own value does."""
    x, k1, k2, u = cf.symbols("x k1 k2 u")
    model = cf.Model({x: k1 * k2 * u - x}, parameters=[k1, k2], inputs=[u])
    data = {"x": 1 - np.exp(-T)}
    first_experiment = cf.Experiment(data, time=T, initial={"x": 0.0}, inputs={"u": 1.0}, name="a")
    second_experiment = cf.Experiment(data, time=T, initial={"x": 0.0}, inputs={"u": 2.0}, name="b")
    third_experiment = cf.Experiment(
        data, time=T, initial={"x": 0.0}, inputs={"u": 1.0}, parameters={"k2": 3.0}, name="c"
    )
    guesses = {"k1": 0.5, "k2": 1.5}
    assert hidden(cf.Problem(model, [first_experiment, second_experiment], parameters=guesses)) == ["only k1*k2 enters"]
    assert structure_of(cf.Problem(model, [first_experiment, third_experiment], parameters=guesses)).identifiable


@pytest.mark.parametrize("name", problems.names())
def test_the_library_is_structurally_identifiable(name: str) -> None:
    structure_result = structure_of(problems.load(name).problem)
    assert structure_result.identifiable
    assert structure_result.probability == 0.0


def test_a_guess_of_zero_and_bounds_are_respected() -> None:
    parameters = {"a": cf.Parameter(0.0, bounds=(-1, 1)), "b": cf.Parameter(0.6, bounds=(0.59, 0.61))}
    assert structure_of(decaying(lambda x, a, b: a * x**2 - b * x, "a b", parameters)).identifiable


def test_structure_of_model_that_cannot_be_integrated_is_known() -> None:
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k])
    experiment = cf.Experiment({"x": [1.0, 2.0]}, time=[0.0, 900.0], initial={"x": 1.0})
    study = cf.identifiability(cf.Problem(model, experiment, parameters={"k": cf.Parameter(5.0, lower=1.0)}))
    assert study.structure.identifiable
    assert "could not be integrated" in str(study)
    assert "fix k" not in str(study)


def test_parameters_of_the_noise_are_left_out() -> None:
    x, k, s = cf.symbols("x k s")
    experiment = cf.Experiment({"x": np.exp(-0.6 * T) + NOISE}, time=T, sigma=s * x, initial={"x": 1.0})
    problem = cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 0.5, "s": 0.1})
    structure_result = structure_of(problem)
    assert structure_result.names == ("k",)
    assert structure_result.identifiable


@cache
def product_study() -> cf.IdentifiabilityStudy:
    problem = decaying(lambda x, a, b: -a * b * x, "a b", {"a": 0.7, "b": 1.5})
    return cf.identifiability(cf.fit(problem), rng=0)


def test_structurally_unidentifiable_quantities_are_named() -> None:
    study = product_study()
    assert set(study.kinds.values()) == {"structurally not identifiable"}
    assert study.collinearity(["a", "b"]) > 1e5
    assert len(study.subset) == 1
    assert study.suggestions == ()
    assert any(s.startswith("No additional measurement was found that would determine") for s in study.sentences)


def test_practically_unidentifiable_quantities_are_named() -> None:
    """Far from saturation only a/b shows, but more accurate data would show both."""
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: -a * x / (b + x)}, parameters=[a, b])
    exact = cf.simulate(model, {"a": 0.6, "b": 1.0}, T, initial={"x": 0.02})["x"]
    low = cf.Experiment({"x": exact}, time=T, sigma=1e-3, initial={"x": 0.02})
    result = cf.fit(cf.Problem(model, low, parameters={"a": 0.6, "b": 1.0}))
    study = cf.identifiability(result, rng=0)
    assert study.structure.identifiable
    assert set(study.kinds.values()) == {"practically poorly determined"}
    assert all("identifiable from dense, error-free data" in remark for remark in study.remarks.values())
    (pair, index), *_ = study.collinear
    assert set(pair) == {"a", "b"}
    assert index == pytest.approx(study.collinearity(["a", "b"]))
    assert index > 30


def washout(times: np.ndarray, **options: Any) -> cf.Problem:
    """A -> B -> C, of which only B is measured."""
    a, b, k1, k2 = cf.symbols("A B k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2], initial={a: 1, b: 0})
    exact = cf.simulate(model, {"k1": 3.0, "k2": 0.4}, times)["B"]
    noise = 0.01 * np.random.default_rng(3).standard_normal(times.size)
    experiment = cf.Experiment({"B": exact + noise}, time=times, sigma=0.01)
    return cf.Problem(model, experiment, parameters={"k1": 2.0, "k2": 0.5}, **options)


def test_suggested_measurement_reduces_error_as_predicted() -> None:
    problem = washout(np.linspace(2.0, 8.0, 8))
    result = cf.fit(problem)
    study = cf.identifiability(result, rng=0)
    advice = study.suggestions[0]
    assert (advice.output, advice.measured) == ("B", True)
    assert advice.time < 1.0
    assert advice.combination in advice.sentence
    extra = washout(np.array([advice.time])).experiments[0].called("more")
    extended_result = cf.fit(problem.replace(experiments=[*problem.experiments, extra]))
    error_before, error_after = (r.standard_errors["k1"] / r.values["k1"] for r in (result, extended_result))
    assert error_before / error_after == pytest.approx(advice.error_before / advice.error_after, rel=0.3)
    assert error_before / error_after > 2


@pytest.mark.slow
def test_suggested_output_determines_undetermined_quantity() -> None:
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k, s], outputs={"y": s * x})
    experiment = cf.Experiment(
        {"y": 2 * np.exp(-0.6 * T) + NOISE}, time=T, sigma=0.02, initial={"x": cf.free(1.0, lower=0.0)}
    )
    study = cf.identifiability(cf.fit(cf.Problem(model, experiment, parameters={"k": 0.5, "s": 1.5})), rng=0)
    (advice,) = study.suggestions
    assert (advice.output, advice.measured) == ("x", False)
    assert np.isinf(advice.error_before)
    assert np.isfinite(advice.error_after)
    assert "not determined" in advice.sentence


def test_before_a_fit_the_design_counts() -> None:
    study = cf.identifiability(washout(T[1:]), rng=0)
    assert study.region is None
    assert study.structure.identifiable
    assert set(study.subset) == {"k1", "k2"}
    assert study.collinearity(["k1"]) == pytest.approx(1.0)
    assert "structurally identifiable" in str(study)


def test_remark_names_quantities_determined_by_priors() -> None:
    prior = cf.priors.LogNormal(0.7, 0.3)
    problem = decaying(lambda x, a, b: -a * b * x, "a b", {"a": cf.Parameter(0.7, prior=prior), "b": 1.5})
    study = cf.identifiability(cf.fit(problem), rng=0)
    assert study.kinds["a"] == "structurally not identifiable"
    assert study.remarks["a"].endswith("determined only by priors")


def test_one_seed_gives_one_study() -> None:
    problem = washout(T[1:])
    first_study, second_study = (cf.identifiability(problem, rng=4) for _ in range(2))
    assert str(first_study) == str(second_study)
    assert first_study.structure.sentence == second_study.structure.sentence


@given(st.lists(st.floats(-6, 6), min_size=4, max_size=4))
def test_collinearity_has_no_units(exponents: list[float]) -> None:
    S = np.random.default_rng(5).standard_normal((30, 4))
    S[:, 3] = S[:, 0] + S[:, 1] + 0.01 * S[:, 3]
    unit = 10.0 ** np.array(exponents)
    M, scaled = S.T @ S, (S * unit).T @ (S * unit)
    expected = 1 / np.linalg.svd(S / np.linalg.norm(S, axis=0))[1][-1]
    assert collinearity(M, [0, 1, 2, 3]) == pytest.approx(expected, rel=1e-6)
    assert collinearity(scaled, [0, 1, 2, 3]) == pytest.approx(expected, rel=1e-4)
    assert set(largest_subset(scaled, 1 / unit)) == set(largest_subset(M, np.ones(4)))
    assert sensitivities(scaled, 1 / unit, 30) == pytest.approx(sensitivities(M, np.ones(4), 30))
    (worst, index), *_ = most_collinear(M, 3, 1)
    assert set(worst) == {0, 1, 3}
    assert index > 50


def test_many_quantities_are_chosen_one_by_one() -> None:
    S = np.random.default_rng(6).standard_normal((200, 30))
    S[:, 7] = S[:, 8] - S[:, 9] + 1e-3 * S[:, 7]
    chosen = largest_subset(S.T @ S, np.ones(30))
    assert len(chosen) == 29
    assert len({7, 8, 9} - set(chosen)) == 1
    assert collinearity(S.T @ S, chosen) <= 10


def test_misuse_is_refused(tmp_path: Any) -> None:
    with refused("rng is -1", "max_time is 0", "the first argument is 3; expected a Result or a Problem"):
        cf.identifiability(3, rng=-1, max_time=0)  # pyright: ignore[reportArgumentType]
    result = cf.fit(washout(T[1:]))
    result.save(tmp_path / "fit.json")
    with refused("the loaded result has no model"):
        cf.identifiability(cf.Result.load(tmp_path / "fit.json"))
    with refused("'k3' is not estimated"):
        product_study().collinearity(["a", "k3"][1:])


def test_sentences_about_collinearity_agree_with_well_determined_kinds() -> None:
    """Goodwin's oscillator from its optimum: collinear, and yet every quantity is known to a fifth of its size."""
    problem = problems.load("goodwin").problem
    optimum = {"k1": 1.08, "k2": 0.2, "k3": 0.93, "k4": 0.15, "k5": 1.07, "k6": 0.301, "gain": 4.96}
    study = cf.identifiability(cf.fit(problem, "single", "box", start=optimum), rng=0)
    assert {*study.kinds.values()} == {"well determined"}
    assert len(study.subset) < len(study.names)
    text = str(study)
    assert "compensate all but" in text
    for contradiction in ("fix ", "flat valley", "nearly collinear"):
        assert contradiction not in text


def test_subsets_of_equal_columns_do_not_depend_on_rounding() -> None:
    S = np.random.default_rng(7).standard_normal((20, 3))[:, [0, 1, 1, 2, 2, 2]]
    for seed in range(10):
        noisy = S * (1.0 + 1e-14 * np.random.default_rng(seed).standard_normal(S.shape))
        M = noisy.T @ noisy
        assert largest_subset(M, np.ones(6)).tolist() == [0, 1, 3]
        assert [pair.tolist() for pair, _ in most_collinear(M, 2, 4)] == [[1, 2], [3, 4], [3, 5], [4, 5]]
    wide = np.random.default_rng(8).standard_normal((100, 20))[:, np.repeat(np.arange(20), 2)]  # too many to try all
    for seed in range(10):
        noisy = wide * (1.0 + 1e-14 * np.random.default_rng(seed).standard_normal(wide.shape))
        assert set(largest_subset(noisy.T @ noisy, np.ones(40))) == set(range(0, 40, 2))


def test_indistinguishable_quantity_is_advised_to_be_fixed() -> None:
    study = cf.identifiability(cf.fit(decaying(lambda x, a, b: -a * b * x, "a b", {"a": 0.5, "b": 1.0})), rng=0)
    assert "fix b" in str(study)
    assert study.subset == ("a",)
    assert "a and b are not distinguishable" in str(study)
