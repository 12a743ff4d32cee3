"""`result["k"]`: a number with its standard error, interval, verdict and unit."""

from __future__ import annotations

import copy
import json
import pickle
import sys

import numpy as np
import pytest

import castfit as cf

FIXED = {"k": 0.5, "m": cf.Parameter(2.0, fixed=True)}


def problem(**options):
    x, k, m = cf.symbols("x k m")
    model = cf.Model({x: -k * x}, parameters=[k, m], outputs={"y": m * x}, initial={x: 1})
    t = np.linspace(0.5, 4, 8)
    y = 2 * np.exp(-0.7 * t) + 0.02 * np.sin(9 * t)
    experiment = cf.Experiment(
        {"y": y}, time=t, sigma=options.pop("sigma", 0.02), initial={"x": options.pop("initial", 1.0)}
    )
    return cf.Problem(model, experiment, parameters={"k": 0.5, "m": cf.Parameter(1.5, scale="log")}, **options)


@pytest.fixture(scope="module")
def result():
    return cf.fit(problem(units={"time": "h", "y": "mg/L", "k": "1/h"}), cf.SingleShooting())


def test_an_estimate_is_the_number_and_what_is_known_of_it(result):
    for name in ("k", "m"):
        one = result[name]
        assert one == result.parameters[name] == one.value
        assert 2 * one == 2 * result.parameters[name]
        assert isinstance(one, float)
        assert one.standard_error == result.standard_errors[name]
        assert one.interval == result.confidence_intervals()[name]
        assert one.interval[0] < one < one.interval[1]
        assert (one.confidence_level, one.verdict) == (0.95, "well determined")
    assert (result["k"].unit, result["m"].unit) == ("1/h", "")


def test_it_reads_as_a_sentence_and_writes_as_a_number(result):
    k = result["k"]
    assert repr(k).startswith(f"k = {k:.5f}"[:8])
    assert "1/h, 95 % interval [" in repr(k)
    assert f"{k:.3f}" == f"{result.parameters['k']:.3f}"
    assert str(k) == str(result.parameters["k"])
    assert json.loads(json.dumps({"k": k})) == {"k": k}
    np.testing.assert_array_equal(np.array([k, k]), [k.value] * 2)


def test_estimate_contradicted_model_interval_is_conditional():
    """As the table has it; the data of `problem` have a wave that is far larger than such a sigma."""
    result = cf.fit(problem(sigma=0.001), cf.SingleShooting())
    assert result.is_contradicted
    assert repr(result["k"]).endswith("(assuming that the model is correct: well determined)")
    assert result.to_frame().verdict["k"] == "assuming that the model is correct: well determined"


def test_it_survives_copies(result):
    for estimate in (pickle.loads(pickle.dumps(result["k"])), copy.deepcopy(result["k"])):
        assert estimate == result["k"]
        assert vars(estimate) == vars(result["k"])


def test_result_reads_estimates_like_a_mapping(result):
    assert "k" in result
    assert "q" not in result
    assert list(result) == ["k", "m"]
    with pytest.raises(cf.InputError, match="'q' was not estimated: choose from k, m"):
        result["q"]
    with pytest.raises(cf.InputError, match="'0' was not estimated"):
        result[0]


def test_initial_states_and_eliminated_noise_are_there_too():
    result = cf.fit(
        problem(sigma={"y": cf.unknown()}, initial=cf.free(0.9), units={"y": "mg/L"}).replace(
            parameters={"k": 0.5, "m": cf.Parameter(2.0, fixed=True)}
        )
    )
    assert result["x(0)"] == result.initial_states["x(0)"]
    assert result["sigma(y)"] == result.sigmas["sigma(y)"]
    assert result["sigma(y)"].unit == "mg/L"
    low, high = result["sigma(y)"].interval
    assert low * high == pytest.approx(result["sigma(y)"] ** 2)


def test_a_failed_fit_has_the_value_alone():
    result = cf.fit(problem(), cf.SingleShooting(), cf.GaussNewton(max_iter=1))
    assert not result.success
    assert np.isnan(result["k"].standard_error)
    assert repr(result["k"]) == f"k = {result['k']:.6g} ({result['k'].verdict})"


def test_units_are_labels_and_stay_with_what_is_made_of_the_problem(result):
    original_problem = result.problem
    assert original_problem.posed.label("time") == "time (h)"
    assert original_problem.posed.label("m") == "m"
    assert original_problem.posed.fix(["m"]).unit("y") == "mg/L"
    assert pickle.loads(pickle.dumps(original_problem)).units == original_problem.units
    assert original_problem.replace(experiments=original_problem.experiments).units == original_problem.units
    assert "k (1/h)" in str(result)
    other_result = cf.fit(
        problem(initial=cf.free(0.9), units={"x": "mol"}).replace(
            parameters={"k": 0.5, "m": cf.Parameter(2.0, fixed=True)}
        )
    )
    assert other_result["x(0)"].unit == "mol"


def test_units_change_no_number(result):
    unitless_result = cf.fit(problem(), cf.SingleShooting())
    assert unitless_result.parameters == result.parameters
    assert unitless_result.to_dict()["question"] == result.to_dict()["question"]


def test_wrong_units_are_named_at_once():
    with pytest.raises(cf.InputError, match="2 mistakes") as caught:
        problem(units={"tme": "h", "y": 3})
    assert "did you mean 'time'?" in str(caught.value)
    assert "the unit of 'y' is 3; give text" in str(caught.value)


def test_estimates_as_a_frame(result):
    pytest.importorskip("pandas")
    frame = result.to_frame()
    assert list(frame.columns) == ["estimate", "standard_error", "lower", "upper", "verdict", "unit"]
    assert list(frame.index) == list(result.names)
    for name in result.names:
        one = result[name]
        expected = [one.value, one.standard_error, *one.interval, one.verdict, one.unit]
        assert frame.loc[name].tolist() == expected
    unknown = cf.fit(problem(sigma=cf.unknown()), cf.SingleShooting())
    assert list(unknown.to_frame().index) == ["k", "m", "sigma(y)"]
    assert unknown.to_frame().loc["sigma(y)", "estimate"] == unknown.sigmas["sigma(y)"]


def test_a_frame_without_pandas_is_a_sentence(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(cf.InputError, match="a DataFrame needs pandas: pip install pandas"):
        result.to_frame()
