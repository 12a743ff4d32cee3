"""The result object: what `build_result` puts into it, the table, prediction, and saving."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import curve_fit

import castfit
from castfit import problems
from castfit._support.status import InputError, Status
from castfit.experiment.experiment import Experiment, free
from castfit.fit.attempt import Attempt, FitRun, SolveStaging
from castfit.fit.build_result import build_result
from castfit.integrate import IntegratorOptions
from castfit.model.model import Model, symbols
from castfit.problem.problem import Normal, Parameter, Problem
from castfit.result import result as module
from castfit.result.diagnostics import diagnose
from castfit.result.result import Result, select_table_names
from castfit.solve.condensing import condense, expand
from castfit.solve.gauss_newton import GaussNewton
from castfit.solve.solution import Solution
from castfit.solve.staged import Linearization, StagedProblem
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting

TIMES = np.linspace(0.3, 3.0, 12)
NOISE = 0.03 * np.random.default_rng(1).standard_normal(12)
SIGMA = 0.02 + 0.01 * TIMES
SHARP = IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-12)


def decay(*, sigma: Any = None, initial: Any = None, **parameters: Any) -> Problem:
    """x' = -k x + b with x(0) = 2 or free."""
    x, k, b = symbols("x k b")
    model = Model({x: -k * x + b}, parameters=[k, b], outputs={"double": 2 * x})
    measured = 1.5 * np.exp(-1.1 * TIMES) + 0.5 + NOISE
    experiment = Experiment({"x": measured}, TIMES, sigma=sigma, initial={"x": 2.0 if initial is None else initial})
    return Problem(model, experiment, parameters={"k": 1.0, "b": 0.5, **parameters})


def curve(t: np.ndarray, k: float, b: float, start: float = 2.0) -> np.ndarray:
    return (start - b / k) * np.exp(-k * t) + b / k


def gauss_newton(staged: StagedProblem, fixed_indices: tuple[int, ...] = ()) -> np.ndarray:
    """Solve a harmless problem by full steps of the condensed problem; theta[held] stays."""
    v = staged.start
    free_columns = np.setdiff1d(np.arange(staged.layout.n_theta), fixed_indices)
    for _ in range(12):
        condensed = condense(staged.layout, staged.linearize(v))
        step = np.zeros(condensed.n_x)
        step[free_columns] = -np.linalg.pinv(condensed.E[:, free_columns], rcond=1e-6) @ condensed.u
        v = v + expand(condensed, step)
    return v


def fit(problem: Problem, transcription: Any = None, **changes: Any) -> Result:
    transcription = transcription or SingleShooting(integrator=SHARP)
    problem = problem.posed.with_absolute_sigma(absolute_sigma=changes.get("absolute_sigma"))
    staged = changes.pop("staged", None) or transcription.transcribe(problem, problem.guess)
    active = changes.pop("active", {})
    v = changes.pop("v", None)
    v = gauss_newton(staged, tuple(active)) if v is None else v
    flags = np.zeros(staged.layout.n_v, dtype=np.int8)
    flags[list(active)] = list(active.values())
    linearize = changes.pop("linearize", True)
    evaluation = staged.linearize(v) if linearize else staged.evaluate(v)
    status, detail = changes.pop("status", Status.CONVERGED), changes.pop("detail", "")
    counts, failures = {"values": 12, "jacobians": 12}, changes.pop("failures", {})
    history = ({"cost": 3.0, "step": np.inf}, {"cost": 1.0, "step": 0.1})
    solution = Solution(v, status, detail, flags, 12, counts, failures, history)
    run = FitRun(
        problem, GaussNewton(), np.inf, None, str, iterations=12, evaluations=Counter(counts),
        failures=Counter(failures), history=list(history),
    )  # fmt: skip
    attempt = Attempt(SolveStaging(transcription, staged), solution, evaluation, None)
    changes.pop("absolute_sigma", None)
    options = {"message": "It converged.", "time": 0.25, "confidence_level": 0.95, **changes}
    return build_result(problem, attempt, run, **options)


@pytest.fixture(scope="module")
def result() -> Result:
    return fit(decay(sigma=0.03, initial=free(2.0, lower=0.0)), MultipleShooting(4, integrator=SHARP))


@pytest.mark.parametrize("absolute_sigma", [True, False])
@pytest.mark.parametrize(
    "transcription",
    [SingleShooting(integrator=SHARP), MultipleShooting(5, integrator=SHARP)],
    ids=["single", "multiple"],
)
def test_agrees_with_curve_fit(transcription: Any, absolute_sigma: bool) -> None:
    problem = decay(sigma=SIGMA, initial=free(2.0))
    result = fit(problem, transcription, absolute_sigma=absolute_sigma)
    data = problem.conditions[0].points.values[:, 0]
    best, covariance = curve_fit(
        curve, TIMES, data, [1.0, 0.5, 2.0], sigma=SIGMA, absolute_sigma=absolute_sigma, xtol=1e-12
    )
    assert list(result.parameters) == ["k", "b"]
    assert list(result.initial_states) == ["x(0)"]
    np.testing.assert_allclose(list(result.values.values()), best, rtol=1e-5)
    np.testing.assert_allclose(result.covariance, covariance, rtol=1e-4)
    np.testing.assert_allclose(list(result.standard_errors.values()), np.sqrt(np.diag(covariance)), rtol=1e-4)
    residuals = (data - curve(TIMES, *best)) / SIGMA
    np.testing.assert_allclose(result.residuals, residuals, atol=1e-5)
    assert result.chi2 == pytest.approx(residuals @ residuals)
    assert result.cost == pytest.approx(0.5 * result.chi2 if absolute_sigma else 6 * np.log(result.chi2 / 12))
    assert (result.n_data, result.dof) == (12, 9)
    np.testing.assert_allclose(result.gradient, 0.0, atol=1e-5)
    assert result.jacobian.shape == (12, 3)
    assert result.noise == pytest.approx(1.0 if absolute_sigma else np.sqrt(result.chi2 / 9))
    factor = stats.norm.ppf(0.95) if absolute_sigma else stats.t.ppf(0.95, 9)
    low, high = result.confidence_intervals(0.9)["b"]
    assert (high - low) / 2 == pytest.approx(factor * result.standard_errors["b"])
    assert (high + low) / 2 == pytest.approx(result.parameters["b"])


def test_likelihood_counts_the_noise_as_a_quantity_where_it_is_unknown() -> None:
    known_sigma, unknown_sigma = fit(decay(sigma=0.03)), fit(decay())
    data = known_sigma.problem.conditions[0].points.values[:, 0]
    expected = -2 * stats.norm.logpdf(data, curve(TIMES, *known_sigma.parameters.values()), 0.03).sum()
    assert known_sigma.neg2loglik == pytest.approx(expected)
    assert known_sigma.aic == pytest.approx(expected + 2 * 2)
    assert known_sigma.bic == pytest.approx(expected + 2 * np.log(12))
    assert unknown_sigma.aic == pytest.approx(unknown_sigma.neg2loglik + 2 * 3)
    assert unknown_sigma.neg2loglik < known_sigma.neg2loglik
    assert unknown_sigma.parameters == pytest.approx(known_sigma.parameters, rel=1e-6)


def test_log_scale_is_the_delta_method_and_its_intervals_stay_positive() -> None:
    linear = fit(decay(sigma=0.03))
    log = fit(decay(sigma=0.03, k=Parameter(1.0, scale="log"), b=Parameter(0.5, scale="log")))
    assert log.parameters == pytest.approx(linear.parameters, rel=1e-6)
    np.testing.assert_allclose(log.theta, np.log(list(log.parameters.values())))
    np.testing.assert_allclose(log.covariance, linear.covariance, rtol=1e-5)
    low, high = log.confidence_intervals()["b"]
    value, error = log.parameters["b"], log.standard_errors["b"]
    assert low * high == pytest.approx(value**2)
    assert np.log(high / value) == pytest.approx(stats.norm.ppf(0.975) * error / value)
    assert 0 < log.confidence_intervals(1 - 1e-12)["b"][0] < value


def test_quantity_at_its_bound_has_no_error_and_is_marked() -> None:
    result = fit(decay(sigma=0.03, b=Parameter(0.7, lower=0.7)), active={1: -1})
    assert result.active == {"b": "lower"}
    assert np.isnan(result.standard_errors["b"])
    assert np.isnan(result.covariance[1]).all()
    fixed_result = fit(decay(sigma=0.03, b=Parameter(0.7, fixed=True)))
    assert result.standard_errors["k"] == pytest.approx(fixed_result.standard_errors["k"])
    assert result.dof == fixed_result.dof == 11
    assert result.identifiability["b"].sentence == "at its lower bound"


def test_values_never_lie_beyond_their_bounds() -> None:
    bound = 0.7  # exp(log(0.7)) is below 0.7
    problem = decay(sigma=0.03, b=Parameter(bound, lower=bound, scale="log"))
    result = fit(problem, active={1: -1})
    assert result.parameters["b"] >= bound
    problem.theta_from({**result.parameters, **result.initial_states})  # raises for a value outside its bounds


def test_prior_is_one_more_measurement() -> None:
    with_prior = fit(decay(sigma=0.03, k=Parameter(1.0, prior=Normal(1.2, 0.02))))
    without = fit(decay(sigma=0.03))
    assert with_prior.jacobian.shape == (13, 2)
    np.testing.assert_allclose(with_prior.jacobian[-1], [-50.0, 0.0])
    assert (with_prior.residuals.size, with_prior.dof) == (12, 11)
    assert with_prior.standard_errors["k"] < 0.02 < without.standard_errors["k"]
    prior = 50 * (with_prior.parameters["k"] - 1.2)
    assert with_prior.chi2 == pytest.approx(with_prior.residuals @ with_prior.residuals + prior**2)
    expected = with_prior.chi2 + 12 * np.log(2 * np.pi * 0.03**2) + np.log(2 * np.pi * 0.02**2)
    assert with_prior.neg2loglik == pytest.approx(expected)


def not_identifiable(transcription: Any = None) -> Result:
    x, k1, k2, b = symbols("x k1 k2 b")
    model = Model({x: -k1 * k2 * x + b}, parameters=[k1, k2, b])
    measured = curve(TIMES, 1.1, 0.55) + NOISE
    experiment = Experiment({"x": measured}, TIMES, sigma=0.03, initial={"x": 2.0})
    return fit(Problem(model, experiment, parameters={"k1": 0.4, "k2": 2.5, "b": 0.5}), transcription)


@pytest.mark.parametrize("transcription", [SingleShooting(), MultipleShooting(5)], ids=["single", "multiple"])
def test_product_is_reported_and_the_rest_stays_correct(transcription: Any) -> None:
    result, reference = not_identifiable(transcription), fit(decay(sigma=0.03))
    assert np.isinf([result.standard_errors["k1"], result.standard_errors["k2"]]).all()
    assert result.standard_errors["b"] == pytest.approx(reference.standard_errors["b"], rel=1e-4)
    assert result.dof == reference.dof
    assert result.identifiability["k1"].sentence == "not identifiable: only k1*k2 enters"
    assert "only k1*k2 enters (direction +0.71 k1 -0.71 k2)" in result.summary()


def test_more_measurements_of_the_same_kind_shrink_errors_by_their_root() -> None:
    x, k, b = symbols("x k b")
    model = Model({x: -k * x + b}, parameters=[k, b])
    one = curve(TIMES, 1.1, 0.55) + NOISE

    def fit_data(data: np.ndarray) -> Result:
        experiment = Experiment({"x": data}, TIMES, sigma=0.03, initial={"x": 2.0})
        return fit(Problem(model, experiment, parameters={"k": 1.0, "b": 0.5}))

    single, four = fit_data(one), fit_data(np.column_stack([one] * 4))
    assert four.standard_errors["k"] == pytest.approx(single.standard_errors["k"] / 2, rel=1e-6)


def test_summary_shows_estimates_and_fit(result: Result) -> None:
    text = str(result)
    assert text == result.summary()
    lines = text.splitlines()
    assert lines[0].split() == ["value", "std.", "error", "95", "%", "interval,", "linear", "remark"]
    assert set(lines[1]) == {"-"}
    assert [line.split()[0] for line in lines[2:5]] == ["k", "b", "x(0)"]
    assert all("well determined" in line for line in lines[2:5])
    assert len({line.index("well") for line in lines[2:5]} | {lines[0].index("remark")}) == 1
    assert f"{result.measure} = {result.objective:.8g}, 12 measurements, 9 degrees of freedom" in text
    assert "Success: It converged." in text
    assert "multiple shooting (4 intervals), Gauss-Newton (natural level): 12 iterations, 0.25 s" in text
    assert "log scale" not in text
    assert max(map(len, lines)) < 110
    low, high = result.confidence_intervals()["k"]
    interval_texts = lines[2][lines[2].index("[") + 1 : lines[2].index("]")].split(", ")
    assert [float(end) for end in interval_texts] == pytest.approx([low, high], abs=0.01 * result.standard_errors["k"])
    assert "\n" not in repr(result)
    assert repr(result).startswith(f"Result(converged: {result.measure} = {result.objective:.6g}")


def test_table_names_bounds_scales_noise_and_failures() -> None:
    problem = decay(k=Parameter(1.0, scale="log"), b=Parameter(0.7, lower=0.7))
    result = fit(problem, active={1: -1}, failures={"step_size": 3}, confidence_level=0.9)
    text = result.summary()
    assert "90 % interval" in text
    assert "well determined (log scale)" in text
    assert [line.split()[:4] for line in text.splitlines() if line.startswith("b")] == [["b", "0.7", "-", "[0.7,"]]
    assert "at its lower bound" in text
    assert f"estimated noise {result.sigmas['sigma']:.3g} (maximum likelihood)" in text
    assert "failed evaluations: 3 step_size" in text


def test_failed_fit_gives_the_best_point_without_errors() -> None:
    problem = decay(sigma=0.03)
    result = fit(problem, v=problem.guess + 0.1, status=Status.MAX_ITERATIONS, message="Too many iterations.")
    assert not result.success
    assert result.parameters == pytest.approx({"k": 1.1, "b": 0.6})
    assert np.isfinite(result.chi2)
    assert np.isfinite(result.jacobian).all()
    assert np.isnan(list(result.standard_errors.values())).all()
    assert np.isnan(result.covariance).all()
    assert np.isnan(result.confidence_intervals()["k"]).all()
    assert "Failure: Too many iterations." in str(result)
    assert "Identifiability is not assessed: the fit did not succeed." in str(result)
    assert result.predict([1.0])["experiment 1"]["x"] == pytest.approx(curve(np.array([1.0]), 1.1, 0.6), rel=1e-6)


def test_fit_that_could_not_be_evaluated_still_gives_a_result(tmp_path: Path) -> None:
    x, k = symbols("x k")
    model = Model({x: k * x**2}, parameters=[k])  # a pole at t = 1 / k
    problem = Problem(model, Experiment({"x": np.ones(12)}, TIMES, initial={"x": 1.0}), parameters={"k": 0.8})
    result = fit(problem, v=problem.guess, linearize=False, status=Status.START_FAILED, message="It stopped.")
    assert result.cost == result.chi2 == np.inf
    assert np.isnan(result.residuals).all()
    assert result.jacobian.shape == (12, 1)
    assert result.parameters == {"k": 0.8}
    assert "Failure: It stopped." in str(result)
    result.save(tmp_path / "failed.json")
    assert str(Result.load(tmp_path / "failed.json")) == str(result)


@pytest.mark.parametrize("transcription", [SingleShooting(), MultipleShooting(3)], ids=["single", "multiple"])
def test_derivatives_that_are_not_finite_leave_a_result_without_errors(transcription: Any) -> None:
    problem = decay(sigma=0.03)
    staged = transcription.transcribe(problem, problem.guess)
    sound = staged.linearize

    def spoiled(v: np.ndarray) -> Linearization:
        point = sound(v)
        (blocks,) = point.jacobians
        return replace(point, jacobians=(replace(blocks, R_q=np.full_like(blocks.R_q, np.nan)),))

    staged.linearize = spoiled
    result = fit(problem, transcription, staged=staged, v=staged.start)
    assert result.success
    assert np.isnan(result.standard_errors["k"])
    assert result.identifiability["k"].sentence == "the linear algebra of the statistics failed"
    assert np.isfinite(result.chi2)


def test_prediction_passes_through_the_residuals(result: Result) -> None:
    prediction = result.predict()["experiment 1"]
    data = result.problem.conditions[0].points.values[:, 0]
    np.testing.assert_allclose((data - prediction["x"]) / 0.03, result.residuals, atol=1e-5)
    np.testing.assert_allclose(prediction["double"], 2 * prediction["x"])
    fine = np.linspace(0, 3, 31)
    smooth = result.predict(fine)["experiment 1"]["x"]
    np.testing.assert_allclose(smooth, curve(fine, *result.values.values()), atol=1e-6)
    nodes = result.trajectories["experiment 1"]
    np.testing.assert_allclose(nodes.times, np.linspace(0, 3, 5)[:-1])
    np.testing.assert_allclose(nodes.states[:, 0], curve(nodes.times, *result.values.values()), atol=1e-6)
    assert result.gaps < 1e-8


@pytest.mark.parametrize(
    "make",
    [
        lambda: fit(decay(sigma=0.03, initial=free(2.0)), MultipleShooting(4)),
        lambda: fit(decay(b=Parameter(0.7, lower=0.7)), active={1: -1}, failures={"step_size": 2}),
        not_identifiable,
    ],
    ids=["converged", "at bound", "not identifiable"],
)
def test_everything_but_the_problem_survives_saving(make: Any, tmp_path: Path) -> None:
    result = make()
    result.save(tmp_path / "result.json")
    loaded_result = Result.load(tmp_path / "result.json")
    for name, value in vars(result).items():
        if name in ("question", "problem", "method", "goodness"):  # only a result without its problem needs the first
            continue
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(loaded_result, name), value)
            assert getattr(loaded_result, name).dtype == value.dtype
        elif name == "trajectories":
            assert list(loaded_result.trajectories) == list(value)
            for key in value:
                np.testing.assert_array_equal(loaded_result.trajectories[key].states, value[key].states)
        elif name in ("standard_errors", "numerical_errors"):
            np.testing.assert_equal(getattr(loaded_result, name), value)
        else:
            assert getattr(loaded_result, name) == value, name
    np.testing.assert_equal(asdict(loaded_result.goodness), asdict(result.goodness))
    assert str(replace(loaded_result, problem=result.problem)) == str(result)  # which judges residuals with its problem
    np.testing.assert_equal(loaded_result.confidence_intervals(), result.confidence_intervals())
    revived = loaded_result.with_problem(result.problem).predict([0.5, 1.0])["experiment 1"]["x"]
    np.testing.assert_array_equal(revived, result.predict([0.5, 1.0])["experiment 1"]["x"])


def test_saved_file_is_standard_json(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    replace(result, aic=np.nan, bic=-np.inf).save(path)
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert content["castfit_result"] == 4
    assert content["parameters"]["k"] == result.parameters["k"]
    assert content["status"] == "converged"
    loaded_result = Result.load(path)
    assert np.isnan(loaded_result.aic)
    assert loaded_result.bic == -np.inf


def test_loaded_result_asks_for_its_problem(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "result.json")
    loaded_result = Result.load(tmp_path / "result.json")
    for method in (loaded_result.predict, loaded_result.plot):
        with pytest.raises(
            InputError, match=r"the loaded result has no model; call result.with_problem\(problem\) first"
        ):
            method()
    x, k = symbols("x k")
    other = Experiment({"x": np.ones(3)}, [1.0, 2.0, 3.0], initial={"x": 1.0}, name="other")
    with pytest.raises(InputError, match=r"3 mistakes[\s\S]*quantities[\s\S]*experiments[\s\S]*number of measurements"):
        loaded_result.with_problem(Problem(Model({x: -k * x}, parameters=[k]), other, parameters={"k": 1.0}))


def test_a_problem_with_other_data_or_another_model_is_refused(tmp_path: Path) -> None:
    problem = decay(sigma=0.03)
    result = fit(problem)
    result.save(tmp_path / "result.json")
    loaded_result = Result.load(tmp_path / "result.json")
    assert (
        loaded_result.with_problem(decay(sigma=0.03, k=Parameter(3.0, upper=4.0))).problem is not None
    )  # the same question
    (experiment,) = problem.experiments
    other_data = problem.replace(experiments=[experiment.with_values({"x": 1.0 + NOISE})])
    with pytest.raises(InputError, match=r"data of 'experiment 1': the problem differs from the result"):
        loaded_result.with_problem(other_data)
    x, k, b = symbols("x k b")
    model = Model({x: -k * x - b}, parameters=[k, b], outputs={"double": 2 * x})
    other_model = Problem(model, experiment, parameters={"k": 1.0, "b": 0.5})
    with pytest.raises(InputError, match=r"model: the problem differs from the result"):
        loaded_result.with_problem(other_model)
    with pytest.raises(InputError, match=r"give a Problem"):
        loaded_result.with_problem(3)  # type: ignore[arg-type]
    loaded_result.save(tmp_path / "again.json")  # without its problem it still knows whose it is
    with pytest.raises(InputError, match=r"the problem differs from the result"):
        Result.load(tmp_path / "again.json").with_problem(other_data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "is not a JSON file"),
        ("[1, 2]", "is not a saved result"),
        ('{"parameters": {}}', "is not a saved result"),
        ('{"castfit_result": 99}', "is a result of format 99; this version of castfit reads formats up to 4"),
        ('{"castfit_result": 1, "names": []}', r"is damaged: status, .* missing"),
    ],
)
def test_other_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(InputError, match=message):
        Result.load(tmp_path / "file.json")


def test_level_of_an_interval_is_checked(result: Result) -> None:
    with pytest.raises(InputError, match="confidence_level is 95; it must be between 0 and 1"):
        result.confidence_intervals(95)


def test_residuals_are_a_table_with_a_row_for_each_value() -> None:
    x, y, k = symbols("x y k")
    model = Model({x: -k * x, y: k * x}, parameters=[k])
    one = Experiment({"x": ([0.5, 1.0], [[0.6, 0.62], [np.nan, 0.3]]), "y": ([1.0], [0.7])}, sigma=0.1,
                     initial={"x": 1.0, "y": 0.0}, name="day")  # fmt: skip
    two = Experiment({"y": [0.4]}, [0.5], sigma=0.2, initial={"x": 1.0, "y": 0.0}, name="night")
    result = fit(Problem(model, [one, two], parameters={"k": 1.0}))
    table = result.residual_table()
    assert {len(column) for column in table.values()} == {result.n_data}
    columns = (table[name].tolist() for name in ("experiment", "output", "time", "replicate", "value", "sigma"))
    assert sorted(zip(*columns, strict=True)) == [
        ("day", "x", 0.5, 0, 0.6, 0.1),
        ("day", "x", 0.5, 1, 0.62, 0.1),
        ("day", "x", 1.0, 0, 0.3, 0.1),
        ("day", "y", 1.0, 0, 0.7, 0.1),
        ("night", "y", 0.5, 0, 0.4, 0.2),
    ]
    np.testing.assert_array_equal(table["residual"], result.residuals)
    predicted = result.predict()
    for name, output, time, value in zip(
        table["experiment"], table["output"], table["time"], table["prediction"], strict=True
    ):
        prediction = predicted[name]
        assert value == pytest.approx(prediction[output][list(prediction["time"]).index(time)], rel=1e-6)
    assert float(np.sum(table["residual"] ** 2)) == pytest.approx(result.chi2)


def test_a_result_is_frozen(result: Result) -> None:
    for part in (result, result.goodness):
        with pytest.raises(FrozenInstanceError):
            part.cost = 1.0
    stopped_result = result.with_status(Status.MAX_TIME, "It took too long.")
    assert not stopped_result.success
    assert stopped_result.message == "It took too long."
    assert stopped_result.parameters == result.parameters


@pytest.mark.parametrize("level", ["0.9", None, [0.5], np.nan])
def test_a_level_that_is_no_number_is_refused(level: Any, result: Result) -> None:
    if level is None:
        assert result.confidence_intervals(level) == result.confidence_intervals(0.95)
        return
    with pytest.raises(InputError, match="it must be between 0 and 1"):
        result.confidence_intervals(level)


@pytest.mark.parametrize("times", ["soon", [1.0, "2"], {"experiment 1": "soon"}, {1: 2}, [1 + 2j]])
def test_predict_invalid_times_refused(times: Any, result: Result) -> None:
    with pytest.raises(InputError, match=r"must be finite and increasing|unknown experiment|give a name"):
        result.predict(times)


@pytest.mark.parametrize(
    "damage", ["identifiability", "status", "log", "trajectories", "names", "integrator", "goodness"]
)
def test_a_damaged_file_is_refused(damage: str, result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "result.json")
    content = json.loads((tmp_path / "result.json").read_text())
    for junk in (3, "x", None, {"__array__": 3, "__shape__": 1}):
        (tmp_path / "damaged.json").write_text(json.dumps({**content, damage: junk}))
        with pytest.raises(InputError, match=r"damaged\.json' is (damaged|not a JSON file)"):
            Result.load(tmp_path / "damaged.json")
    (tmp_path / "damaged.json").write_bytes((tmp_path / "result.json").read_bytes()[:500] + b"\xff")
    with pytest.raises(InputError, match="is not a JSON file"):
        Result.load(tmp_path / "damaged.json")
    with pytest.raises(InputError, match="expected a file path"):
        Result.load(None)  # type: ignore[arg-type]


def test_results_of_the_first_format_are_read(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "result.json")
    content = json.loads((tmp_path / "result.json").read_text())
    del content["goodness"]
    (tmp_path / "old.json").write_text(json.dumps({**content, "castfit_result": 1}))
    old = Result.load(tmp_path / "old.json")
    assert old.parameters == result.parameters
    assert old.goodness.sentence == ""


@pytest.mark.parametrize("weights", [None, 2.0])
def test_the_noise_of_a_fit_has_one_value_with_a_name(weights: float | None, tmp_path: Path) -> None:
    x, k = symbols("x k")
    values = 10 * np.exp(-0.3 * TIMES) + 0.1 * np.cos(7 * TIMES)
    experiment = Experiment({"x": values}, TIMES, sigma=weights, initial={"x": 10})
    problem = Problem(Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 0.5})
    result = castfit.fit(problem, absolute_sigma=None if weights is None else False)
    likely = np.sqrt(np.mean((values - result.predictions) ** 2)) / (weights or 1.0)
    assert result["sigma"] == pytest.approx(likely, rel=1e-6)
    assert result.to_frame().loc["sigma", "estimate"] == result["sigma"]
    assert result["sigma"].verdict.endswith("noise, maximum likelihood")
    phrase = f"{likely:.3g} (maximum likelihood)"
    assert f"estimated noise {phrase}" in str(result)
    assert f"Estimated noise: {phrase}" in result.report(tmp_path / "page.html").read_text()
    assert f"{result.noise:.3g}" not in str(result)


def test_an_interval_that_is_printed_is_not_denied() -> None:
    x, y, k = symbols("x y k")
    data = {"x": [8.1, 6.6, 4.3, 2.9, 1.3, 0.3], "y": [1.7, 3.1, np.nan, 6.8, 8.4, 9.5]}
    experiment = Experiment(data, [0.5, 1, 2, 3, 5, 8], initial={"x": 10, "y": 0})
    result = castfit.fit(Problem(Model({x: -k * x, y: k * x}, parameters=[k]), experiment, parameters={"k": 1.0}))
    assert result.is_contradicted
    low, high = result["k"].interval
    assert low < result["k"] < high
    for text in (str(result), repr(result["k"])):
        assert "[0.382" in text
        assert "no interval" not in text
        assert "ssuming that the model is correct" in text


def test_an_estimate_too_small_for_a_number_is_printed_and_remarked() -> None:
    problem = decay(sigma=0.03, b=Parameter(0.5, scale="log"))
    result = fit(problem, v=np.array([1.0, -800.0]))
    assert result.parameters["b"] == 0.0
    assert "the estimate underflows to zero" in str(result)
    assert np.isnan(result.confidence_intervals()["b"]).all()
    assert np.isfinite(result.confidence_intervals()["k"]).all()


def test_pickles(result: Result) -> None:
    copy = pickle.loads(pickle.dumps(result))
    assert str(copy) == str(result)
    np.testing.assert_allclose(copy.predict([1.0])["experiment 1"]["x"], result.predict([1.0])["experiment 1"]["x"])


def test_plot_is_a_figure(result: Result, tmp_path: Path) -> None:
    figure = result.plot(tmp_path / "fit.png")
    assert len(figure.axes) >= 1
    assert (tmp_path / "fit.png").stat().st_size > 1000


def test_the_beginning_alone_is_predicted():
    result = fit(problems.load("bellman").problem)
    assert result.predict([0])["experiment 1"]["z"] == 0.0


@pytest.mark.parametrize("name", ["result_0.2.json", "result_at_bound_0.2.json"])
def test_results_of_castfit_0_2_are_read(name: str, tmp_path: Path) -> None:
    old = Result.load(Path(__file__).parent / "data" / name)
    assert old.success
    at_bound = "bound" in name
    assert old.chi2 == pytest.approx(22.356983 if at_bound else 21.86671, abs=1e-4)
    assert (old.measure, old.objective) == ("-2 log L", old.neg2loglik)  # as its problem has no sigma
    assert old.active == ({"k1": "upper"} if at_bound else {})
    assert str(old).startswith("        value  std. error")
    assert old["k2"].standard_error == pytest.approx(3.7e-5 if at_bound else 5.5e-5, rel=0.02)
    assert old.versions["castfit"].startswith("0.2")
    old.save(tmp_path / "again.json")
    assert str(Result.load(tmp_path / "again.json")) == str(old)
    derived_values = old.criteria.aic, old.confidence_region().rank, old.identifiability.sentence
    assert derived_values[:2] == (old.aic, 1 if at_bound else 2)
    if not at_bound:
        result = old.with_problem(problems.load("bellman").problem)
        assert result.diagnostics.messages is not None
        assert "z upper" in result.predict([50.0], bands="linear")["experiment 1"]


def test_residuals_are_looked_at_once_for_all_estimates(monkeypatch):
    """Of 600 quantities a report looked at them 600 times: 80 of 116 CPU s."""
    calls = []
    monkeypatch.setattr(
        module, "diagnose", lambda *arguments, **options: calls.append(1) or diagnose(*arguments, **options)
    )
    result = fit(problems.load("lotka_volterra").problem)
    calls.clear()
    assert all(result[name].verdict for name in result.names)
    assert len(calls) == 1


def test_tables_show_few_quantities_of_many_experiments() -> None:
    local_names = [f"k[{i}]" for i in range(20)]
    shown_names, notes = select_table_names(["a", *local_names, "b[1]"], "table")
    assert shown_names == ("a", "k[0]", "k[1]", "k[2]", "b[1]")
    assert notes == ["Not shown: 17 more k[...]. All values: table."]
    assert select_table_names(["a", *local_names[:12]], "table") == (("a", *local_names[:12]), [])
