"""Input that used to be accepted and gave wrong numbers, or an error in nobody's words."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import castfit as cf
from castfit.problem.problem import Constraint, Parameter, Problem
from tests.builders import decay_model, decay_problem, refused

FREE = {"k": Parameter(0.5, lower=0.0, upper=5.0)}


def at_times(times, **changes) -> Problem:
    data = cf.Experiment({"x": np.ones(len(times))}, time=times, initial={"x": 1.0}, **changes)
    return Problem(decay_model(), data, parameters={"k": 0.5})


def named_like_an_initial_state() -> Problem:
    x, k = cf.symbols("x x(0)")
    model = cf.Model({x: -k * x}, parameters=[k])
    return Problem(
        model, cf.Experiment({"x": [0.5]}, time=[1.0], initial={"x": cf.free(1.0)}), parameters={"x(0)": 1.0}
    )


def test_a_parameter_called_like_an_initial_state_is_refused():
    with refused("the name 'x(0)' would mean the shared parameter 'x(0)' and the initial state 'x'; rename"):
        named_like_an_initial_state()


def test_a_parameter_called_like_a_local_value_is_refused():
    x, k, other = cf.symbols("x k k[experiment_1]")
    model = cf.Model({x: -k * other * x}, parameters=[k, other])
    experiments = [
        cf.Experiment({"x": [1.0, 0.5]}, time=[0, 1], initial={"x": 1.0}, name=name) for name in ("experiment_1", "b")
    ]
    parameters = {"k": Parameter(1.0, local=True), "k[experiment_1]": 1.0}
    with refused("' would mean the shared parameter 'k[experiment_1]' and the local parameter 'k'"):
        Problem(model, experiments, parameters=parameters)


def test_constraints_of_one_name_are_refused():
    twice = [Constraint(cf.symbols("x"), upper=limit, name="cap") for limit in (2.0, 3.0)]
    with refused("two constraints are named 'cap'; names must differ"):
        decay_problem(constraints=twice)


def test_calendar_times_ask_for_their_start():
    years = np.arange(2000, 2011)
    with refused(
        "the times, from 2000 to 2010, are far from 0, and the time of the initial states is not set; set start=2000"
    ):
        at_times(years)
    assert at_times(years, start=2000).conditions[0].start == 2000
    assert at_times(years, start=0).conditions[0].start == 0
    for usual in (np.arange(1, 40), [9.0, 10.0], [3.0], [1e-3], [0.0, 1e9], [100.0]):
        assert at_times(usual).conditions[0].start == 0
    with refused("start is '2000'; give a finite number"):
        at_times(years, start="2000")


@pytest.mark.parametrize(
    ("times", "phrase"),
    [
        ([1e300, 2e300], "the times reach from 0 to 2e+300; give them in another unit"),
        ([1e-300, 2e-300], "the times reach from 0 to 2e-300; give them in another unit"),
        ([1e15 + 2, 1e15 + 4], "are too close to each other for numbers of this size; count them from 1e+15"),
    ],
)
def test_times_that_numbers_cannot_resolve_are_refused(times, phrase):
    with refused(phrase):
        at_times(times, start=1e15 if times[0] > 1e14 and times[0] < 1e200 else 0)


def test_long_and_short_experiments_are_accepted():
    for times in ([1e15, 2e15], [1e-15, 2e-15], [1e-9, 1.0, 1e9]):
        assert at_times(times).n_data == len(times)
    assert at_times([1.7e9 + 1, 1.7e9 + 9], start=1.7e9).n_data == 2


@pytest.mark.parametrize(
    ("values", "sigma", "phrase"),
    [
        ([1e200, 1.0], None, "'x' contains 1e+200; give it in another unit"),
        ([1.0, 1.0], 1e-300, "sigma of 'x' is between 1e-300 and 1e-300, too far from the values"),
        ([1.0, 1.0], 1e300, "sigma of 'x' is between 1e+300 and 1e+300, too far from the values"),
    ],
)
def test_values_whose_squares_are_no_numbers_are_refused(values, sigma, phrase):
    with refused(phrase):
        cf.Experiment({"x": values}, time=[1, 2], sigma=sigma)


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=["Gauss-Newton", "IPOPT"])
@pytest.mark.parametrize(
    "transcription", [cf.SingleShooting(), cf.MultipleShooting(), cf.Collocation()], ids=lambda t: t.label
)
def test_a_problem_with_nothing_to_estimate_is_evaluated(transcription, solver):
    problem = decay_problem(parameters={"k": Parameter(0.5, fixed=True)})
    result = cf.fit(problem, transcription, solver)
    assert result.success
    assert result.names == ()
    assert result.n_estimated == 0
    assert result.dof == result.n_data
    assert "Nothing is estimated; the model was only evaluated." in result.summary()
    assert result.predict([1.0], bands="linear")["x lower"] == pytest.approx(np.exp(-0.5))
    with refused("nothing is estimated"):
        cf.bootstrap(result)
    assert 0.5 * result.neg2loglik == pytest.approx(cf.petab.negative_log_likelihood(problem), rel=1e-6)
    assert cf.simulate(problem)["experiment 1"]["x"] == pytest.approx(np.exp(-0.5 * np.arange(5)))


@pytest.mark.parametrize("driver", ["incremental", "multistart", "scatter_search", "compare"])
def test_drivers_say_that_nothing_is_estimated(driver):
    problem = decay_problem(parameters={"k": Parameter(0.5, fixed=True)})
    drivers = {
        "incremental": cf.incremental,
        "multistart": lambda p: cf.multistart(p, starts=2, rng=0),
        "scatter_search": lambda p: cf.scatter_search(p, rng=0),
        "compare": lambda p: cf.compare(p, ["single"], starts=2, rng=0),
    }
    with refused("nothing is estimated"):
        drivers[driver](problem)


@pytest.mark.parametrize("horizon", [None, "a", {}, [1], np.nan, 1j])
def test_the_horizon_of_an_experiment_is_a_time(horizon):
    with refused("the horizon is"):
        decay_problem().experiments[0].until(horizon)


def test_bounds_in_one_argument():
    assert Parameter(1.0, bounds=(0, 2)) == Parameter(1.0, lower=0, upper=2)
    assert Parameter(1.0, 0, 2).bounds == (0, 2)
    assert replace(Parameter(1.0, bounds=(0, 2)), value=1.5) == Parameter(1.5, 0, 2)
    assert pickle.loads(pickle.dumps(Parameter(1.0, bounds=[0, 2]))) == Parameter(1.0, 0, 2)
    assert cf.free(1.0, bounds=(0, 2)) == cf.free(1.0, lower=0, upper=2)
    assert np.allclose(decay_problem(parameters={"k": Parameter(0.5, bounds=(0.1, 4))}).bounds, ([0.1], [4]))


@pytest.mark.parametrize("make", [Parameter, cf.free])
def test_bounds_that_are_given_twice_or_are_no_pair_are_refused(make):
    with refused("lower or upper cannot be combined with bounds"):
        make(1.0, lower=0, bounds=(0, 2))
    for bounds in ((1,), 3, "ab ", {"lower": 0}, (1, 2, 3)):
        with refused("; give (lower, upper), infinite for none"):
            make(1.0, bounds=bounds)


def test_functions_of_pythons_math_are_answered_by_a_sentence():
    x, k = cf.symbols("x k")
    sentence = "is or contains NaN, which math.exp, float and similar functions return for a symbol; use castfit.exp"
    with refused(f"ode of 'x' {sentence}", f"output 'y' {sentence}", f"initial value of 'x' {sentence}"):
        cf.Model(
            {x: -k * x * math.exp(k)},
            parameters=[k],
            outputs={"y": math.sqrt(x)},
            initial={x: k + math.log(k)},
        )
    with refused(f"initial state 'x' {sentence}", f"parameter 'k' {sentence}"):
        cf.Experiment({"x": [1.0]}, time=[1], initial={"x": k * math.exp(k)}, parameters={"k": x + float(k)})
    with refused(f"constraint 1 {sentence}"):
        decay_problem(constraints=[Constraint(x * math.exp(k), upper=1.0)])
    nan = cf.symbols("nano")
    assert cf.Model({x: -nan * x}, parameters=[nan]).parameters == ("nano",)


def test_castfit_has_the_functions_of_models():
    x = cf.symbols("x")
    for name in ("exp", "log", "sqrt", "sin", "tanh", "fabs", "log10"):
        function = getattr(cf, name)
        assert str(function(x)).startswith({"fabs": "fabs", "log10": "(0.434294"}.get(name, name))
        assert float(function(0.5)) == pytest.approx(getattr(np, name)(0.5))
    model = cf.Model({x: -cf.if_else(x > 1, cf.sqrt(x), 0.0)})
    assert model.states == ("x",)


def test_functions_of_numpy_work_on_symbols_without_a_warning():
    code = (
        "import numpy as np, castfit as cf\n"
        "x, k = cf.symbols('x k')\n"
        "assert str(np.exp(x) + np.sqrt(k)) == str(cf.exp(x) + cf.sqrt(k))\n"
        "assert str(np.maximum(x, k)) == str(cf.fmax(x, k))\n"
    )
    process = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
