"""Confidence regions: the ellipsoid, its axes in words, its boxes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

import castfit as cf
from castfit import problems
from castfit.result.parameter_combinations import product, rounded_direction, weighted_sum
from tests.builders import decay_problem, lotka_volterra, refused

TRANSCRIPTIONS: dict[str, Any] = {
    "single": cf.SingleShooting(),
    "multiple": cf.MultipleShooting(),
    "collocation": cf.Collocation(),
}
T = np.linspace(0.0, 5.0, 20)
NOISE = 0.02 * np.random.default_rng(0).standard_normal(T.size)
HEMKER = (6.90765465, -0.01004524, -4.60545899)  # log(1/epsilon), log(q), log(p - q)


@cache
def escep(kind: str) -> cf.Result:
    """Fit Hemker's 23 observations from his start, (1600, 0.8, 1.2)."""
    return cf.fit(problems.load("escep").problem, TRANSCRIPTIONS[kind])


@cache
def hemkers_normal_matrix() -> tuple[np.ndarray, np.ndarray]:
    """Return A^T A (3, 3), and the residuals (23,), at his optimum by SciPy on the variational equations."""
    benchmark = problems.load("escep")
    data = benchmark.problem.experiments[0].data["c"]
    e, q, d = np.exp(HEMKER)

    def right(_t: float, y: np.ndarray) -> np.ndarray:
        s, c = y[:2]
        S = y[2:].reshape(2, 3)
        f = np.array([-(1 - c) * s + q * c, e * ((1 - c) * s - (q + d) * c)])
        J = np.array([[-(1 - c), s + q], [e * (1 - c), -e * (s + q + d)]])
        P = np.array([[0, q * c, 0], [f[1], -e * q * c, -e * d * c]])
        return np.concatenate([f, (J @ S + P).ravel()])

    y0 = np.concatenate([[1.0, 0.0], np.zeros(6)])
    solution = integrate.solve_ivp(right, (0, 30), y0, method="Radau", t_eval=data[0], rtol=1e-9, atol=1e-12)
    A = solution.y[5:8].T
    return A.T @ A, solution.y[1] - data[1][:, 0]


@pytest.mark.parametrize("kind", TRANSCRIPTIONS)
def test_hemkers_optimum_and_limits(kind: str) -> None:
    result = escep(kind)
    assert result.theta == pytest.approx(HEMKER, abs=1e-4)
    assert np.sqrt(result.chi2) == pytest.approx(1.409741e-4, rel=1e-3)
    region = result.confidence_region(0.99)  # F(3, 20) = 4.94
    assert region.radius == pytest.approx(np.sqrt(3 * 4.94), rel=1e-3)
    assert region.independent == pytest.approx([3.35e-4, 1.68e-4, 2.31e-3], rel=0.02)
    assert region.correlation[1, 2] == pytest.approx(-0.645, abs=0.01)
    normal, residuals = hemkers_normal_matrix()
    scale = 3 / 20 * float(residuals @ residuals) * stats.f.ppf(0.99, 3, 20)
    assert region.dependent == pytest.approx(np.sqrt(scale / np.diag(normal)), rel=2e-3)  # Eq. 3.19
    assert region.independent == pytest.approx(np.sqrt(scale * np.diag(np.linalg.inv(normal))), rel=2e-3)  # Eq. 3.20
    sizes, V = np.linalg.eigh(normal)
    for axis, size, v in zip(region.axes, sizes[::-1], V.T[::-1], strict=True):
        assert axis.length == pytest.approx(np.sqrt(scale / size), rel=2e-3)
        weights = np.array([axis.weights[name] for name in region.names])
        assert abs(weights @ v) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("kind", ["single", "multiple"])
def test_transcriptions_agree_on_the_region(kind: str) -> None:
    regions = {k: cf.fit(lotka_volterra(), TRANSCRIPTIONS[k]).confidence_region() for k in (kind, "collocation")}
    for one, other in ((regions[kind], regions["collocation"]), (escep(kind).confidence_region(),
                                                             escep("collocation").confidence_region())):  # fmt: skip
        for name in ("standard_errors", "marginal", "independent", "dependent"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-3)
        assert one.correlation == pytest.approx(other.correlation, abs=1e-3)
        assert [a.length for a in one.axes] == pytest.approx([a.length for a in other.axes], rel=1e-3)
        assert [a.combination for a in one.axes] == [a.combination for a in other.axes]


def test_alpha_pinene_is_that_of_the_literature() -> None:
    result = cf.fit(problems.load("alpha_pinene").problem)
    region = result.confidence_region()
    assert region.marginal == pytest.approx([1.0295e-6, 9.970e-7, 6.283e-6, 4.711e-5, 1.702e-5], rel=0.01)
    assert region.correlation[3, 4] == pytest.approx(0.798, abs=0.005)
    for name, ends in region.intervals("marginal").items():
        assert ends == pytest.approx(result.confidence_intervals()[name], rel=1e-6)


def line(rates: tuple[str, str] = ("a", "b"), **noise: Any) -> cf.Problem:
    """x = a + b t, which is linear in its parameters."""
    x, a, b = cf.symbols(f"x {rates[0]} {rates[1]}")
    model = cf.Model({x: b}, parameters=[a, b], initial={x: a})
    guesses = dict.fromkeys(rates, 1.0)
    return cf.Problem(model, cf.Experiment({"x": 1.0 + 0.5 * T + NOISE}, time=T, **noise), parameters=guesses)


@pytest.mark.parametrize("known_sigma", [True, False])
def test_the_region_is_that_of_linear_regression(known_sigma: bool) -> None:
    problem = line(sigma=0.02) if known_sigma else line()
    region = cf.fit(problem).confidence_region(0.9)
    X = np.column_stack([np.ones_like(T), T])
    y: np.ndarray = problem.experiments[0].data["x"][1][:, 0]
    best = np.linalg.lstsq(X, y)[0]
    variance = 0.02**2 if known_sigma else float(np.sum((y - X @ best) ** 2)) / 18
    squared = stats.chi2.ppf(0.9, 2) if known_sigma else 2 * stats.f.ppf(0.9, 2, 18)
    C = variance * np.linalg.inv(X.T @ X)
    assert region.radius**2 == pytest.approx(squared, rel=1e-6)
    assert region.independent == pytest.approx(np.sqrt(squared * np.diag(C)), rel=1e-5)
    assert region.dependent == pytest.approx(np.sqrt(squared * variance / np.diag(X.T @ X)), rel=1e-5)
    # The tangent points of the box, in natural values, lie just inside the ellipsoid.
    for j in (0, 1):
        touching = C[:, j] / np.sqrt(C[j, j]) * np.sqrt(squared)
        for factor, inside in ((0.999, True), (1.001, False)):
            values = dict(zip(region.names, region.values + factor * touching, strict=True))
            assert region.contains(values) == inside


def test_confidence_region_text_agrees_with_covariance() -> None:
    """What is written is a combination of its own, whose error is that of the text, not of the axis."""
    result = cf.fit(line(sigma=0.02))
    region = result.confidence_region()
    C = result.covariance / np.outer(region.values, region.values)
    for axis in region.axes:
        powers = {"a": 0.0, "b": 0.0}
        for sign, part in [(1, axis.combination.split("/")[0]), *((-1, p) for p in axis.combination.split("/")[1:])]:
            for factor in part.replace("**", "^").split("*"):
                name, _, power = factor.partition("^")
                powers[name] += sign * float(power or 1)
        h = np.array(list(powers.values()))
        assert axis.known_to == pytest.approx(region.factor * np.sqrt(h @ C @ h), rel=1e-6)
        assert axis.sentence.startswith(f"{axis.combination} is known to ")


def product_problem(unit: float = 1.0, **options: Any) -> cf.Problem:
    x, k1, k2 = cf.symbols("x k1 k2")
    model = cf.Model({x: -k1 * k2 * x}, parameters=[k1, k2])
    data = unit * (np.exp(-0.6 * T) + NOISE)
    experiment = cf.Experiment({"x": data}, time=T, sigma=0.02 * unit, initial={"x": unit})
    return cf.Problem(model, experiment, parameters={"k1": cf.Parameter(0.7, **options), "k2": 1.5})


@pytest.mark.parametrize("kind", TRANSCRIPTIONS)
def test_a_product_is_known_and_a_ratio_is_not(kind: str) -> None:
    result = cf.fit(product_problem(), TRANSCRIPTIONS[kind])
    region = result.confidence_region()
    assert "only k1*k2 enters" in result.summary()
    assert [axis.combination for axis in region.axes] == ["k1*k2", "k1/k2"]
    assert region.rank == 1
    assert np.isinf(region.independent).all()
    assert np.isinf(list(region.intervals().values())).any(axis=1).all()
    assert np.isinf(region.axes[1].length)
    assert region.sentences == ("k1/k2 is not determined.",)
    # The product alone, as one parameter, is known as well.
    x, k = cf.symbols("x k")
    product_problem_alone = cf.Problem(
        cf.Model({x: -k * x}, parameters=[k]), product_problem().experiments, parameters={"k": cf.Parameter(1.0)}
    )
    reduced_result = cf.fit(product_problem_alone, TRANSCRIPTIONS[kind])
    assert region.axes[0].known_to == pytest.approx(
        region.factor * reduced_result.standard_errors["k"] / reduced_result.values["k"], rel=1e-3
    )


def test_confidence_region_prior_determines_ratio() -> None:
    prior = cf.priors.LogNormal(0.7, 0.3)
    region = cf.fit(product_problem(prior=prior)).confidence_region()
    assert [axis.combination for axis in region.axes] == ["k1*k2", "k1/k2"]
    # log(k1) has the deviation 0.3, and log(k2) = constant - log(k1).
    assert region.axes[1].known_to == pytest.approx(1.96 * 0.6, rel=0.02)


@settings(max_examples=5, deadline=None)
@given(st.integers(-6, 6), st.integers(-6, 6), st.sampled_from([1e-3, 1.0, 1e4]))
def test_units_do_not_matter(rate: int, amount: int, time: float) -> None:
    """The prey counted in other units, the predators' effect too, and the clock in others."""
    u, v = 2.0**rate, 10.0**amount
    problem = lotka_volterra()
    data = {n: (time * t, (u if n == "x" else v) * y) for n, (t, y) in problem.experiments[0].data.items()}
    experiment = cf.Experiment(data, initial={"x": 0.4 * u, "y": v}, sigma={"x": u, "y": v})
    units = np.array([1 / time, 1 / time / v, 1 / time, 1 / time / u])
    guess = dict(zip(problem.names, (units * problem.guess).tolist(), strict=True))
    other = cf.Problem(problem.model, experiment, parameters=guess)
    expected = reference()
    actual = cf.fit(other, absolute_sigma=False).confidence_region()
    assert actual.independent == pytest.approx(units * expected.independent, rel=2e-3)
    assert actual.gains == pytest.approx(expected.gains, rel=2e-3)
    assert [a.combination for a in actual.axes] == [a.combination for a in expected.axes]
    assert [a.known_to for a in actual.axes] == pytest.approx([a.known_to for a in expected.axes], rel=2e-3)


@cache
def reference() -> cf.ConfidenceRegion:
    return cf.fit(lotka_volterra()).confidence_region()


def test_a_quantity_of_unknown_sign_is_not_a_logarithm() -> None:
    x, k, c = cf.symbols("x k c")
    model = cf.Model({x: -k * x}, parameters=[k, c], outputs={"y": x + c})
    experiment = cf.Experiment({"y": np.exp(-0.6 * T) + NOISE}, time=T, sigma=0.02, initial={"x": 1.0})
    problem = cf.Problem(model, experiment, parameters={"k": 0.5, "c": cf.Parameter(0.1, bounds=(-1, 1))})
    region = cf.fit(problem).confidence_region()
    assert region.logarithmic.tolist() == [True, False]
    assert region.magnitudes[1] == pytest.approx(max(abs(region.values[1]), region.standard_errors[1]))
    assert all("c**" not in axis.combination for axis in region.axes)


def test_sums_are_written_in_the_quantities_own_units() -> None:
    """x = a + b + t / 2 with a and b of either sign: only their sum enters."""
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: 0.5}, parameters=[a, b], initial={x: a + b})
    parameters = {"a": cf.Parameter(0.4, bounds=(-9, 9)), "b": cf.Parameter(0.2, bounds=(-9, 9))}
    problem = cf.Problem(model, cf.Experiment({"x": 1 + 0.5 * T + NOISE}, time=T, sigma=0.02), parameters=parameters)
    sum_axis, difference_axis = cf.fit(problem, "collocation").confidence_region().axes
    assert (sum_axis.combination, difference_axis.combination) == ("a + b", "a - b")
    assert sum_axis.known_to == pytest.approx(1.96 * 0.02 / np.sqrt(T.size), rel=1e-3)
    assert np.isinf(difference_axis.known_to)


def test_bounds_hide_correlations_that_are_named() -> None:
    """Two decays of almost one rate, of which one is held: without its bound nobody could tell them apart."""
    x, y, a, b = cf.symbols("x y a b")
    model = cf.Model({x: -a * x, y: -b * y}, parameters=[a, b], outputs={"sum": x + y})
    experiment = cf.Experiment({"sum": 2 * np.exp(-0.6 * T) + NOISE}, time=T, initial={"x": 1.0, "y": 1.0})
    problem = cf.Problem(model, experiment, parameters={"a": 0.62, "b": cf.Parameter(0.55, upper=0.57)})
    result = cf.fit(problem)
    region = result.confidence_region()
    assert result.active == {"b": "upper"}
    assert np.isnan(region.independent[1])
    assert np.isfinite(region.dependent).all()
    partner, value = region.freed["b"]
    assert partner == "a"
    assert value < -0.99
    assert any("Without the bound it would be correlated with a (-" in s for s in region.sentences)
    assert len(region.axes) == region.rank == 1
    assert region.unbounded[0, 1] == pytest.approx(value, abs=1e-6)


def test_a_valley_is_found_and_its_pair_measured() -> None:
    x, k1, k2 = cf.symbols("x k1 k2")
    model = cf.Model({x: -k1 * x / (k2 + x)}, parameters=[k1, k2])  # far from saturation only k1/k2 matters
    data = 0.1 * np.exp(-0.6 * T) + 1e-4 * NOISE
    experiment = cf.Experiment({"x": data}, time=T, initial={"x": 0.1})
    region = cf.fit(cf.Problem(model, experiment, parameters={"k1": 3.0, "k2": 5.0})).confidence_region()
    assert region.correlation[0, 1] > 0.99
    best, worst = region.pair("k1", "k2")
    assert best.combination == "k1/k2"
    assert worst.combination == "k1*k2"
    assert worst.known_to > 50 * best.known_to
    assert any("flat valley" in s for s in region.sentences)
    assert any("k1 and k2 are correlated +0.99" in s and best.sentence in s for s in region.sentences)


def test_a_region_survives_saving(tmp_path: Path) -> None:
    result = cf.fit(product_problem())
    result.save(tmp_path / "fit.json")
    loaded = cf.Result.load(tmp_path / "fit.json")
    assert str(loaded.confidence_region()) == str(result.confidence_region())


def test_results_of_earlier_versions_have_regions() -> None:
    result = cf.fit(lotka_volterra())
    none = np.empty((0, 0))
    old = replace(result, root=none, undetermined=none, rank=-1)
    assert old.confidence_region().independent == pytest.approx(result.confidence_region().independent, rel=1e-6)


def test_confidence_region_invalid_arguments_refused() -> None:
    result = cf.fit(decay_problem())
    with refused("confidence_level is 2; it must be between 0 and 1"):
        result.confidence_region(2)
    region = result.confidence_region()
    with refused("did you mean 'dependent'"):
        region.intervals("dependant")
    with refused("unknown quantity 'q'", "'k' is missing"):
        region.contains({"q": 1.0})
    with refused("'k' was passed twice"):
        region.pair("k", "k")
    failed_result = result.with_status(cf.Status.MAX_ITERATIONS, "stopped")
    with refused("no confidence region: the fit failed"):
        failed_result.confidence_region()


def test_combinations_are_written_simply() -> None:
    names = ("a", "b", "c")
    assert product(names, np.array([1, -2, 0])) == "a/b**2"
    assert product(names, np.array([-1, 0, 0])) == "1/a"
    assert product(names, np.array([-1, 0.5, 1])) == "b**0.5*c/a"
    assert weighted_sum(names, np.array([1.0, -2.5, 0])) == "a - 2.5*b"
    g = np.array([0.7, 0.714, 0.01])
    assert rounded_direction(g / np.linalg.norm(g), lambda h: float(np.linalg.norm(h)), np.ones(3)) == pytest.approx(
        [1, 1, 0]
    )


def test_rounded_direction_keeps_small_needed_weights() -> None:
    """With c unknown by itself, a + 0.01 c is no longer known once c is left out."""
    g = np.array([1.0, 0.0, 0.01])
    g /= np.linalg.norm(g)
    open_ = np.array([-0.01, 0.0, 1.0])
    h = rounded_direction(g, lambda h: float(1e-3 * np.linalg.norm(h) + 1e3 * abs(h @ open_)), np.ones(3))
    assert h is not None
    assert h @ open_ == pytest.approx(0.0, abs=1e-6)


def test_confidence_region_section_is_labelled_fixed_at_estimates():
    """It has the radius of the whole region: of many quantities it is wider than the interval of one by itself."""
    x, s = cf.symbols("x s")
    model = cf.Model({x: 0 * x}, parameters=[s], outputs={"y": s * x}, initial={"x": 1.0})
    experiments = [cf.Experiment({"y": [1.0, 1.1]}, [1.0, 2.0], sigma=0.1) for _ in range(12)]
    problem = cf.Problem(model, experiments, parameters={"s": cf.Parameter(1.0, local=True)})
    region = cf.fit(problem, "single").confidence_region()
    assert (region.dependent > 2 * region.marginal).all()
    assert "others fixed at their estimates" in str(region)
    assert "if the others were known" not in str(region)
