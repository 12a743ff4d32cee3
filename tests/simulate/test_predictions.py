"""One shape of predictions: by experiment, and directly where there is but one."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import castfit as cf
from castfit.simulate.predictions import Prediction

TIMES = np.array([1.0, 2.0])


def decay(experiments: int = 1) -> cf.Problem:
    """x' = -k x with values near the exact ones."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    data = {"x": (np.array([1.0, 2.0, 3.0]), np.array([1.2, 0.7, 0.5]))}
    return cf.Problem(model, [cf.Experiment(data, sigma=0.1)] * experiments, parameters={"k": 0.7})


def test_an_only_experiment_needs_no_name() -> None:
    problem = decay()
    (name,) = [c.name for c in problem.conditions]
    prediction = cf.simulate(problem, times=TIMES)
    assert prediction["x"] is prediction[name]["x"]
    assert list(prediction) == [name]
    assert "x" not in prediction  # what is listed stays experiments
    assert pickle.loads(pickle.dumps(prediction))["x"] == pytest.approx(prediction["x"])


def test_all_predictions_of_a_result_have_that_shape() -> None:
    result = cf.fit(decay())
    (name,) = result.trajectories
    for prediction in (result.predict(), result.predict(TIMES, bands="linear")):
        assert prediction["x"] is prediction[name]["x"]
    assert result.predict(TIMES, bands="linear")["x upper"].shape == (2,)


def test_a_model_reads_as_its_only_experiment() -> None:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    prediction = cf.simulate(model, {"k": 0.3}, TIMES)
    assert prediction["experiment 1"]["x"] is prediction["x"]
    assert list(prediction) == ["time", "x"]
    with pytest.raises(KeyError, match="unknown output 'y': choose from time, x"):
        prediction["y"]


def test_several_experiments_need_a_name_and_the_error_says_it() -> None:
    prediction = cf.simulate(decay(experiments=2), times=TIMES)
    with pytest.raises(KeyError, match=r"unknown experiment 'x'; write \['experiment 1'\]\['x'\]"):
        prediction["x"]
    with pytest.raises(KeyError, match="unknown experiment 'experimnt 1'; did you mean 'experiment 1'"):
        prediction["experimnt 1"]
    with pytest.raises(KeyError, match="'xx' is neither an experiment nor an output: did you mean 'x'"):
        Prediction(one={"x": TIMES})["xx"]
