"""Noise models as they are given with experiments: what is read, refused, kept, and known to everything that fits."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest

import castfit as cf
from castfit.drive.search.multistart.sampling import draw
from castfit.fit.start.gaussian_surrogate import gaussian_surrogate, with_spreads
from castfit.problem.fingerprint import question

T = np.linspace(0.2, 8, 20)
TRANSCRIPTIONS = [cf.SingleShooting(), cf.MultipleShooting(5), cf.Collocation()]


def cascade(data: dict[str, Any], **noise: Any) -> cf.Problem:
    """x -> y -> nothing, with y measured in other units; parameters of the noise are added as they are needed."""
    x, y, k1, k2 = cf.symbols("x y k1 k2")
    model = cf.Model({x: -k1 * x, y: k1 * x - k2 * y}, parameters=[k1, k2], outputs={"obs": 100 * y})
    extra = noise.pop("parameters", {})
    rates = {n: cf.Parameter(g, scale="log", bounds=(1e-3, 1e3)) for n, g in (("k1", 3.0), ("k2", 1.0))}
    experiment = cf.Experiment(data, time=T, initial={"x": 1.0, "y": 0.0}, **noise)
    return cf.Problem(model, experiment, parameters={**rates, **extra})


def truth() -> dict[str, Any]:
    x, y = np.exp(-T), (np.exp(-0.3 * T) - np.exp(-T)) / 0.7
    return {"x": x, "obs": 100 * y}


def noisy(seed: int = 0) -> dict[str, Any]:
    rng, exact = np.random.default_rng(seed), truth()
    return {
        "x": exact["x"] + 0.02 * rng.standard_normal(T.size),
        "obs": exact["obs"] + 2 * rng.standard_normal(T.size),
    }


def counts(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {**noisy(seed), "obs": rng.poisson(truth()["obs"] * rng.gamma(10, 0.1, T.size)).astype(float)}


@cache
def counted() -> cf.Result:
    """Fit counts beside a series whose sigma is unknown."""
    return cf.fit(cascade(counts(), sigma={"x": cf.unknown()}, noise={"obs": cf.Poisson()}), "single")


def mistakes(**noise: Any) -> list[str]:
    with pytest.raises(cf.InputError) as caught:
        cascade(truth(), **noise)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        ({"sigma": {"x": cf.unknown(bounds=(2, 1)), "obs": 1.0}}, "bounds 2 and 1"),
        ({"sigma": {"x": cf.unknown(guess=-1.0), "obs": 1.0}}, "guess -1"),
        ({"sigma": {"x": cf.unknown(), "z": cf.unknown(), "obs": 1.0}}, "names 'z'"),
        ({"noise": {"z": cf.Poisson()}}, "names 'z'"),
        ({"noise": cf.Poisson}, "give Poisson()"),
        ({"noise": cf.Poisson()}, "whole numbers"),
        ({"noise": {"x": cf.StudentT(df=-1)}}, "df is -1"),
        ({"noise": {"x": cf.Gaussian(0.1)}, "sigma": {"x": 0.1, "obs": 1.0}}, "given twice"),
        ({"noise": cf.Gaussian(1.0), "sigma": 2.0}, "leave sigma out"),
        ({"noise": {"x": cf.Cauchy()}}, "sigma cannot be estimated"),
        ({"sigma": {"x": cf.symbols("a"), "obs": 1.0}}, "sigma contains 'a'"),
        ({"sigma": {"x": cf.unknown("s"), "obs": cf.unknown("s", guess=2.0)}}, "2 different ways"),
        (
            {"sigma": cf.unknown(guess=1.0), "parameters": {"sigma(x)": 1.0}},
            "'sigma(x)' is that of an unknown sigma",
        ),
    ],
)
def test_invalid_noise_of_experiment_is_refused(noise: dict[str, Any], said: str) -> None:
    assert any(said in m for m in mistakes(**noise)), mistakes(**noise)


def test_unknown_sigmas_belong_to_outputs_or_to_names() -> None:
    assert cascade(noisy(), sigma=cf.unknown()).posed.groups == ("x", "obs")
    assert cascade(noisy(), sigma=cf.unknown("both")).posed.groups == ("both",)
    assert cascade(noisy()).posed.groups == ("",)
    assert cascade(noisy(), sigma={"x": 0.1, "obs": cf.unknown()}).posed.groups == ("obs",)
    assert cascade(noisy(), sigma={"x": 0.02, "obs": cf.unknown(lower=0.1)}).names == ("k1", "k2", "sigma(obs)")


def test_absolute_sigma_is_refused_where_the_experiments_say_more() -> None:
    with pytest.raises(cf.InputError, match="remove absolute_sigma"):
        cf.fit(cascade(noisy(), sigma=cf.unknown()), absolute_sigma=True)


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=lambda t: t.label)
def test_an_output_in_other_units_has_the_same_sigma_in_these(transcription: Any) -> None:
    """One common sigma is a poor guess for outputs of different size; one each is right in every unit."""
    result = cf.fit(cascade(noisy(), sigma=cf.unknown()), transcription)
    scaled_data = {n: v * (1e-6 if n == "obs" else 1.0) for n, v in noisy().items()}
    x, y, k1, k2 = cf.symbols("x y k1 k2")
    model = cf.Model({x: -k1 * x, y: k1 * x - k2 * y}, parameters=[k1, k2], outputs={"obs": 1e-4 * y})
    experiment = cf.Experiment(scaled_data, time=T, sigma=cf.unknown(), initial={"x": 1.0, "y": 0.0})
    rates = {n: cf.Parameter(g, scale="log") for n, g in (("k1", 3.0), ("k2", 1.0))}
    scaled_result = cf.fit(cf.Problem(model, experiment, parameters=rates), transcription)
    assert result.success
    assert scaled_result.success
    assert scaled_result.sigmas["sigma(obs)"] == pytest.approx(1e-6 * result.sigmas["sigma(obs)"], rel=1e-6)
    assert scaled_result.standard_errors["k1"] == pytest.approx(result.standard_errors["k1"], rel=1e-5)
    residuals = result.residual_table()
    is_obs = residuals["output"] == "obs"
    assert result.sigmas["sigma(obs)"] == pytest.approx(np.sqrt(np.mean(residuals["residual"][is_obs] ** 2)), rel=1e-9)


def test_copies_keep_the_noise() -> None:
    a = cf.symbols("a")
    problem = cascade(
        counts(),
        sigma={"x": a},
        noise={"obs": cf.NegativeBinomial()},
        parameters={"a": cf.Parameter(0.1, scale="log")},
    )
    copies = [pickle.loads(pickle.dumps(problem)), problem.replace(), pickle.loads(pickle.dumps(problem.posed))]
    expected = cf.fit(problem, cf.SingleShooting())
    for copy in copies:
        assert question(copy) == question(problem)
        result = cf.fit(copy, cf.SingleShooting())
        assert result.neg2loglik == pytest.approx(expected.neg2loglik, rel=1e-9)
    assert problem.posed.with_horizon(4.0).n_data == 20
    assert "a" not in problem.posed.fix(["a"]).names


def test_another_noise_model_is_another_question() -> None:
    noises = [
        {"sigma": {"x": 1.0, "obs": 1.0}},
        {"sigma": {"x": 1.0}, "noise": {"obs": cf.StudentT(df=3)}},
        {"sigma": {"x": 1.0}, "noise": {"obs": cf.StudentT(df=4)}},
        {"sigma": {"x": 1.0, "obs": cf.unknown()}},
        {"sigma": {"x": 1.0, "obs": cf.unknown("s")}},
        {},
    ]
    questions = [tuple(question(cascade(noisy(), **noise)).items()) for noise in noises]
    assert len(set(questions)) == len(noises)


def test_the_surrogate_has_the_same_quantities_but_those_of_the_noise() -> None:
    problem = cascade(noisy(), sigma={"x": 0.02}, noise={"obs": cf.StudentT()})
    surrogate_problem = gaussian_surrogate(problem.posed)
    assert problem.names == ("k1", "k2", "sigma(obs)")
    assert surrogate_problem.names == ("k1", "k2")
    assert surrogate_problem.least_squares
    assert not problem.posed.least_squares


@pytest.mark.parametrize("bounds", [(1e-3, 1e3), (2.0, 1e3), (1e-3, 0.05)], ids=["free", "at lower", "at upper"])
def test_the_surrogate_eliminates_a_sigma_that_is_a_parameter_within_its_bounds(bounds: tuple[float, float]) -> None:
    """What is left is the likelihood with that sigma at its best, with its gradient; a fixed sigma is known."""
    s, fixed = cf.symbols("s fixed")
    data = noisy() | {"y": 0.05 * np.sin(T)}
    guess = float(np.clip(0.2, *bounds))
    parameters = {"s": cf.Parameter(guess, scale="log", bounds=bounds), "fixed": cf.Parameter(3.0, fixed=True)}
    problem = cascade(data, sigma={"x": s, "y": s, "obs": fixed}, parameters=parameters)
    surrogate_problem = gaussian_surrogate(problem.posed)
    assert surrogate_problem.names == ("k1", "k2")
    assert len(surrogate_problem.groups) == 1
    integrator = cf.IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-12)
    theta = np.log([1.3, 0.4])
    staged = cf.SingleShooting(integrator).transcribe(surrogate_problem, theta)
    n = int(staged.layout.group_sizes.sum())
    assert n == 2 * T.size

    def most_likely(theta: np.ndarray[Any, Any]) -> float:
        k1, k2 = np.exp(theta)
        x, y = np.exp(-k1 * T), k1 / (k1 - k2) * (np.exp(-k2 * T) - np.exp(-k1 * T))
        errors = np.concatenate([x - data["x"], y - data["y"]])
        sigma = float(np.clip(np.sqrt(np.mean(errors**2)), *bounds))
        known_sigma_squares = np.sum(((100 * y - data["obs"]) / 3.0) ** 2)
        return float(np.sum(errors**2) / (2 * sigma**2) + n * (np.log(sigma) - 0.5) + 0.5 * known_sigma_squares)

    linearization = staged.linearize(theta)
    assert linearization.cost == pytest.approx(most_likely(theta), rel=1e-7)
    rows = [
        (values.r.ravel(), j.R_q.reshape(values.r.size, -1))
        for values, j in zip(linearization.values, linearization.jacobians, strict=True)
    ]
    gradient = sum(r @ R for r, R in rows)
    steps = 1e-5 * np.eye(2)
    differences = [(most_likely(theta + h) - most_likely(theta - h)) / 2e-5 for h in steps]
    assert gradient == pytest.approx(differences, rel=1e-5)


def test_one_sigma_times_the_scale_of_each_output_is_judged_once() -> None:
    """Before, the sigma was moved once for every output that it is part of, to a bound."""
    x, k, s = cf.symbols("x k s")
    scales = cf.symbols(" ".join(f"a{j}" for j in range(6)))
    outputs = {f"y{j}": a * x for j, a in enumerate(scales)}
    model = cf.Model({x: -k * x}, parameters=[k, *scales], outputs=outputs, initial={x: 1.0})
    rng = np.random.default_rng(2)
    data = {n: 3.0**j * (np.exp(-0.4 * T) + 0.05 * rng.standard_normal(T.size)) for j, n in enumerate(outputs)}
    experiment = cf.Experiment(data, time=T, sigma={f"y{j}": s * a for j, a in enumerate(scales)})
    parameters = {f"a{j}": cf.Parameter(3.0**j, 1e-3, 1e3, "log") for j in range(6)}
    parameters |= {"k": cf.Parameter(0.4, 1e-3, 1e3, "log"), "s": cf.Parameter(0.05, 1e-4, 1e3, "log")}
    problem = cf.Problem(model, experiment, parameters=parameters)
    compiled_problem = problem.posed
    for guess in (5.0, 0.05, 5e-4):
        theta = compiled_problem.theta_from({"s": guess})
        staged = cf.SingleShooting().transcribe(compiled_problem, theta)
        adjusted_theta = staged.layout.theta(with_spreads(compiled_problem, staged, staged.start))
        values = dict(zip(compiled_problem.names, compiled_problem.to_natural(adjusted_theta), strict=True))
        assert values["s"] == pytest.approx(0.05, rel=0.4)
        assert values["a3"] == pytest.approx(27.0)


def test_starts_are_not_drawn_for_spreads_without_bounds() -> None:
    messages: list[str] = []
    starts = draw(
        cascade(counts(), sigma={"x": 0.02}, noise={"obs": cf.NegativeBinomial()}), 4, None, None, 0, messages
    )
    assert not messages
    assert len({start["k1"] for start in starts.initial_starts}) == 4
    assert len({start["dispersion(obs)"] for start in starts.initial_starts}) == 1


def test_drivers_find_maximum_likelihood() -> None:
    problem = cascade(counts(), sigma={"x": 0.02}, noise={"obs": cf.NegativeBinomial()})
    expected = cf.fit(problem, "single").neg2loglik
    single = cf.SingleShooting()
    assert cf.multistart(problem, single, starts=3, rng=0).best.neg2loglik == pytest.approx(expected, abs=1e-3)
    assert cf.incremental(problem, single).result.neg2loglik == pytest.approx(expected, abs=1e-3)
    searched = cf.scatter_search(problem, rng=0, max_eval=200)
    assert searched.best is not None
    assert searched.best.neg2loglik == pytest.approx(expected, abs=1e-3)
    compared = cf.compare(problem, ["single", "collocation/ipopt"], starts=2, rng=0)
    assert all(row.correct == 2 for row in compared.rows)


def test_a_result_with_noise_survives_saving(tmp_path: Any) -> None:
    result = counted()
    result.save(tmp_path / "result.json")
    loaded = cf.Result.load(tmp_path / "result.json").with_problem(result.problem)
    assert loaded.summary() == result.summary()
    assert "sigma(x)" in result.summary()
    assert loaded.sigmas == result.sigmas
    for name, column in result.residual_table().items():
        np.testing.assert_array_equal(loaded.residual_table()[name], column)
    result.plot(tmp_path / "fit.png")


def test_normalised_residuals_have_variance_one() -> None:
    result = counted()
    table = result.residual_table()
    obs = table["output"] == "obs"
    poisson = (table["value"] - table["prediction"])[obs] / np.sqrt(table["prediction"][obs])
    np.testing.assert_allclose(table["normalised"][obs], poisson)
    np.testing.assert_allclose(result.deviations[obs], np.sqrt(table["prediction"][obs]))
    assert np.mean(table["normalised"][~obs] ** 2) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("loss", ["huber", "soft_l1"])
def test_a_loss_is_short_for_a_noise_model(loss: str) -> None:
    model = {"huber": cf.Huber, "soft_l1": cf.SoftL1}[loss]
    short = cf.fit(cascade(noisy(), sigma={"x": 0.02, "obs": 2.0}), "single", loss=loss, f_scale=1.5)
    written = cf.fit(cascade(noisy(), noise={"x": model(0.02, f_scale=1.5), "obs": model(2.0, f_scale=1.5)}), "single")
    assert short.neg2loglik == pytest.approx(written.neg2loglik, rel=1e-8)
    assert cf.fit(cascade(noisy()), "single", loss=loss).names == ("k1", "k2", "sigma(all)")
    assert cf.fit(cascade(noisy()), "single", loss="linear").names == ("k1", "k2")


def test_losses_that_cannot_be_are_refused() -> None:
    problem = cascade(noisy())
    for options, message in (
        ({"loss": "hubert"}, "choose"),
        ({"loss": "huber", "f_scale": -1.0}, "f_scale is -1"),
        ({"loss": "cauchy"}, "sigma cannot be estimated"),
    ):
        with pytest.raises(cf.InputError, match=message):
            cf.fit(problem, **options)
    with pytest.raises(cf.InputError, match="no output has normal errors"):
        cf.fit(cascade(truth(), noise=cf.LogNormal()), loss="huber")
    with pytest.raises(cf.InputError, match="for a Problem"):
        cf.fit(problem.posed, loss="huber")


def test_a_dispersion_is_called_so_and_by_its_old_name(tmp_path, monkeypatch):
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 50.0})
    data = cf.Experiment({"x": [40, 21, 26, 9, 21, 12]}, time=[0.5, 1, 1.5, 2, 2.5, 3], noise=cf.NegativeBinomial())
    arguments = {"model": model, "experiments": data, "parameters": {"k": 1.0}}
    result = cf.fit(cf.Problem(**arguments), "single")
    assert result.names == ("k", "dispersion(x)")
    assert result["sigma(x)"] == result["dispersion(x)"] == result.parameters["dispersion(x)"]
    refit = cf.fit(cf.Problem(**arguments), "single", start={"sigma(x)": result["dispersion(x)"].value})
    assert refit["dispersion(x)"].value == pytest.approx(result["dispersion(x)"].value, rel=1e-4)
    monkeypatch.setattr(cf.NegativeBinomial, "spread_name", "sigma")  # as results were saved before
    old_result = cf.fit(cf.Problem(**arguments), "single")
    assert old_result.names == ("k", "sigma(x)")
    old_result.save(tmp_path / "before.json")
    monkeypatch.undo()
    loaded = cf.Result.load(tmp_path / "before.json")
    assert loaded["sigma(x)"] == old_result["sigma(x)"]
    restored_result = loaded.with_problem(cf.Problem(**arguments))
    assert restored_result.names == result.names
    assert restored_result.standard_errors["dispersion(x)"] == old_result.standard_errors["sigma(x)"]
    assert restored_result.covariance == pytest.approx(old_result.covariance)
