"""Simulation in pieces: accuracy, nodes, inputs, algebraic states, and what is said about bad input."""

from __future__ import annotations

import pickle
from typing import Any

import casadi as ca
import numpy as np
import pytest

import castfit as cf
from castfit._support.status import InputError
from castfit.experiment.events import Doses
from castfit.experiment.experiment import Experiment, free
from castfit.experiment.inputs import Input
from castfit.integrate import IntegratorOptions
from castfit.model.delay import delay
from castfit.model.model import Model, symbols
from castfit.problem.problem import Parameter, Problem
from castfit.simulate.simulate import SimulationError, TrajectoryNodes, predict, simulate
from castfit.simulate.steady_state import steady_state

MEASURED = np.array([0.5, 1.0, 2.0])


def decay(*, experiments: int = 1, **parameters: Any) -> Problem:
    """x' = -k x + b, x(0) free; outputs x and double = 2 x."""
    x, k, b = symbols("x k b")
    model = Model({x: -k * x + b}, parameters=[k, b], outputs={"double": 2 * x})
    experiment_list = [Experiment({"x": np.ones(3)}, MEASURED, initial={"x": free(1.0)}) for _ in range(experiments)]
    return Problem(model, experiment_list, parameters={"k": 0.7, "b": Parameter(0.0, fixed=True), **parameters})


def test_outputs_at_the_measured_times_by_default() -> None:
    simulation = simulate(decay())["experiment 1"]
    assert list(simulation) == ["time", "x", "double"]
    np.testing.assert_array_equal(simulation["time"], MEASURED)
    np.testing.assert_allclose(simulation["x"], np.exp(-0.7 * MEASURED), rtol=1e-7)
    np.testing.assert_allclose(simulation["double"], 2 * simulation["x"])


def test_given_times_may_begin_at_the_start_and_pass_the_last_measurement() -> None:
    t = np.array([0.0, 0.1, 0.5, 4.0])
    simulation = simulate(decay(), {"k": 0.3, "x(0)": 2.0}, times=t)["experiment 1"]
    np.testing.assert_allclose(simulation["x"], 2 * np.exp(-0.3 * t), rtol=1e-7)
    assert simulate(decay(), times=[0.0])["experiment 1"]["x"] == [1.0]


def test_fixed_parameters_can_be_changed_and_theta_is_in_search_scale() -> None:
    t = MEASURED
    values = simulate(decay(), {"b": 0.7})["experiment 1"]["x"]
    np.testing.assert_allclose(values, np.ones(3), rtol=1e-7)
    problem = decay(k=Parameter(0.7, scale="log"))
    values = simulate(problem, [np.log(0.2), 3.0])["experiment 1"]["x"]
    np.testing.assert_allclose(values, 3 * np.exp(-0.2 * t), rtol=1e-7)


def test_local_parameters_and_several_experiments() -> None:
    problem = decay(experiments=2, k=Parameter(0.7, local=True))
    simulation = simulate(problem, {"k[experiment 2]": 0.1}, times={"experiment 2": [1.0], "experiment 1": [2.0, 3.0]})
    assert simulation["experiment 1"]["x"] == pytest.approx(np.exp([-1.4, -2.1]), rel=1e-7)
    assert simulation["experiment 2"]["x"] == pytest.approx(np.exp([-0.1]), rel=1e-7)
    shared_simulation = simulate(problem, {"k": 0.1}, times=[1.0])
    assert [shared_simulation[name]["x"][0] for name in shared_simulation] == pytest.approx(
        [np.exp(-0.1)] * 2, rel=1e-7
    )
    assert list(simulate(problem, times={"experiment 2": [1.0]})) == ["experiment 2"]


def test_jumps_of_inputs_are_met_exactly() -> None:
    x, u = symbols("x u")
    model = Model({x: u}, inputs=[u], outputs={"both": x + u})
    jump = Input.piecewise_constant([0.0, 0.3, 1.1], [1.0, -2.0, 5.0])
    experiment = Experiment({"x": np.ones(3)}, MEASURED, initial={"x": free(0.0)}, inputs={"u": jump})
    simulation = simulate(Problem(model, experiment), times=[0.2, 0.3, 1.0, 2.0])["experiment 1"]
    np.testing.assert_allclose(simulation["x"], [0.2, 0.3, -1.1, -1.3 + 4.5], atol=1e-9)
    np.testing.assert_allclose(
        simulation["both"] - simulation["x"], [1.0, 1.0, -2.0, 5.0]
    )  # at 0.3 as a measurement there


def test_algebraic_states_are_consistent_at_every_time() -> None:
    x, z, k = symbols("x z k")
    model = Model({x: -z}, algebraic={z: z**3 + z - k * x}, parameters=[k], outputs={"residual": z**3 + z - k * x})
    experiment = Experiment({"x": np.ones(3)}, MEASURED, initial={"x": 1.0})
    simulation = simulate(Problem(model, experiment, parameters={"k": 2.0}), times=np.linspace(0, 2, 9))["experiment 1"]
    assert simulation["z"][0] == pytest.approx(1.0)
    np.testing.assert_allclose(simulation["residual"], 0.0, atol=1e-9)


def test_integration_begins_anew_at_every_node() -> None:
    """x'' = mu^2 x + forcing with solution sin(pi t): from t = 0 rounding errors grow by exp(60)."""
    mu = 60.0
    x, y, p, t = symbols("x y p t")
    import casadi as ca

    model = Model({x: y, y: mu**2 * x - (mu**2 + p**2) * ca.sin(p * t)}, parameters=[p], time=t)
    times = np.linspace(0.1, 1, 10)
    data = {"x": np.sin(np.pi * times), "y": np.pi * np.cos(np.pi * times)}
    problem = Problem(model, Experiment(data, times, initial={"x": 0.0, "y": np.pi}), parameters={"p": np.pi})
    begin = np.linspace(0, 0.95, 20)
    nodes = TrajectoryNodes(begin, np.column_stack([np.sin(np.pi * begin), np.pi * np.cos(np.pi * begin)]))
    fine = np.linspace(0, 1, 41)
    piecewise = predict(problem, problem.guess, [nodes], times=fine)["experiment 1"]["x"]
    np.testing.assert_allclose(piecewise, np.sin(np.pi * fine), atol=1e-6)
    assert np.abs(simulate(problem, times=[1.0])["experiment 1"]["x"][0]) > 1.0


def test_nodes_may_differ_from_times_by_rounding() -> None:
    problem = decay()
    times = np.arange(1, 7) * 0.1
    begin = np.concatenate([[0.0], np.cumsum(np.full(5, 0.1))])  # 0.30000000000000004 and the like
    nodes = TrajectoryNodes(begin, np.exp(-0.7 * begin)[:, None])
    values = predict(problem, problem.guess, [nodes], times=times)["experiment 1"]["x"]
    np.testing.assert_allclose(values, np.exp(-0.7 * times), rtol=1e-7)


def test_tolerances_are_those_of_the_options() -> None:
    def error(tolerance: float) -> float:
        options = IntegratorOptions(relative_tolerance=tolerance, absolute_tolerance=tolerance)
        return abs(simulate(decay(), times=[2.0], integrator=options)["experiment 1"]["x"][0] - np.exp(-1.4))

    assert error(1e-10) < 1e-8 < error(1e-4)


def test_a_stop_is_explained_and_the_error_crosses_processes() -> None:
    x, k = symbols("x k")
    model = Model({x: k * x**2}, parameters=[k])  # x = 1 / (1 - k t) has a pole at 1 / k
    experiment = Experiment({"x": np.ones(3)}, MEASURED, initial={"x": 1.0}, name="blow-up")
    problem = Problem(model, experiment, parameters={"k": 0.8})
    with pytest.raises(SimulationError, match=r"^blow-up: .*stopped at t = 1\.25.* x ") as caught:
        simulate(problem)
    assert caught.value.time == pytest.approx(1.25, abs=1e-3)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.experiment, copy.time) == (str(caught.value), "blow-up", caught.value.time)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": {"kk": 1.0, "b": np.nan}}, r"2 mistakes[\s\S]*'kk' is neither .*'k'[\s\S]*'b' is nan"),
        ({"parameters": {"k": [1.0, 2.0]}}, "expected a finite number"),
        ({"parameters": [1.0]}, r"theta must hold 2 finite numbers, one for each of k, x\(0\)"),
        ({"times": [-1.0, 2.0]}, "start at -1, before the start of the experiment at 0"),
        ({"times": [2.0, 1.0]}, "must be finite and increasing"),
        ({"times": []}, "must be finite and increasing"),
        ({"times": {"experiment": [1.0]}}, "did you mean 'experiment 1'"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(decay(), **options)


def test_more_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="scale is 'log'; expected a positive number"):
        simulate(decay(k=Parameter(1.0, scale="log")), {"k": -1.0})
    x, u = symbols("x u")
    signal = Input.linear([0.0, 2.0], [0.0, 1.0])
    experiment = Experiment({"x": np.ones(3)}, MEASURED, initial={"x": free(0.0)}, inputs={"u": signal})
    with pytest.raises(InputError, match="input 'u' of 'experiment 1' is defined only up to 2; extend it to 3"):
        simulate(Problem(Model({x: u}, inputs=[u]), experiment), times=[1.0, 3.0])


# Without data


def test_a_model_is_simulated_without_data() -> None:
    x, y, z, k, u = symbols("x y z k u")
    model = Model({x: -k * x, y: u}, algebraic={z: z - x - y}, parameters=[k], inputs=[u], initial={y: k})
    t = np.linspace(0, 2, 9)
    simulation = simulate(model, {"k": 0.7}, t, initial={"x": 2.0}, inputs={"u": 0.5})
    assert list(simulation) == ["time", "x", "y", "z"]
    np.testing.assert_allclose(simulation["x"], 2 * np.exp(-0.7 * t), rtol=1e-7)
    np.testing.assert_allclose(simulation["y"], 0.7 + 0.5 * t, rtol=1e-7)
    np.testing.assert_allclose(simulation["z"], simulation["x"] + simulation["y"], rtol=1e-12)
    later = simulate(model, {"k": 0.7}, t + 2000, initial={"x": 2.0}, inputs={"u": 0.5}, start=2000)
    np.testing.assert_allclose(later["x"], simulation["x"], rtol=1e-7)


def test_every_mistake_about_a_model_is_listed() -> None:
    x, y, k, u = symbols("x y k u")
    model = Model({x: -k * x, y: u}, parameters=[k], inputs=[u])
    with pytest.raises(InputError) as caught:
        simulate(model, {"kk": 1.0}, [2.0, 1.0], initial={"x": "one", "w": 1}, inputs={"v": 1.0}, start="now")  # type: ignore[call-overload]
    text = str(caught.value)
    for words in (
        "parameter 'k' has no value",
        "unknown parameter 'kk': did you mean 'k'",
        "times must be finite and increasing",
        "initial state 'x' is 'one'",
        "initial state 'y' has no value",
        "initial has the unknown state 'w'",
        "unknown input 'v'",
        "input 'u' is missing",
        "start is 'now'",
    ):
        assert words in text
    with pytest.raises(InputError, match="times is missing; for a model pass times="):
        simulate(model, {"k": 1.0}, initial={"x": 1, "y": 1}, inputs={"u": 0})


def test_simulate_implausible_times_refused() -> None:
    x, k = symbols("x k")
    model = Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    with pytest.raises(InputError, match=r"are far from 0, .*; set start=2000 or start=0"):
        simulate(model, {"k": 1e-3}, [2000.0, 2001.0])
    assert simulate(model, {"k": 1e-3}, [2000.0, 2001.0], start=0)["x"][0] == pytest.approx(np.exp(-2), rel=1e-7)
    with pytest.raises(InputError, match="are too close to each other for numbers of this size"):
        simulate(model, {"k": 1e-3}, [1e17, 1e17 + 64], start=1e17)
    with pytest.raises(InputError, match="reach from 0 to 1e\\+200; give them in another unit"):
        simulate(decay(), times=[1.0, 1e200])


def test_simulate_invalid_values_are_listed() -> None:
    """The problem itself is right: at its guess everything can be computed."""
    x, y, k, tau, lag = symbols("x y k tau lag")
    model = Model({x: -k * delay(x, tau), y: -y}, parameters=[k, tau], initial={x: ca.log(k)})
    experiments = [
        Experiment(
            {"x": [1.0, 1.0], "y": [1.0, 1.0]},
            [1.0, 2.0],
            initial={"y": 0},
            events=[Doses(into=y, amount=1, times=0, lag=lag)],
        ),
        Experiment({"y": [1.0, 1.0]}, [1.0, 2.0], initial={"y": 1}, name="other"),
    ]
    problem = Problem(model, experiments, parameters={"k": 2.0, "tau": 1.0, "lag": 0.5})
    with pytest.raises(InputError) as caught:
        simulate(problem, {"k": -1.0, "tau": -1.0})
    for name in ("experiment 1", "other"):
        assert f"{name}: the initial value of 'x' = log(k) is nan at k = -1" in str(caught.value)
        assert f"{name}: the delay of x(t - tau) is -1" in str(caught.value)
    with pytest.raises(InputError, match=r"experiment 1: .* would happen at t = -1, before the start 0"):
        simulate(problem, {"lag": -1.0})
    resting = Problem(
        Model({x: k - tau * x}, parameters=[k, tau], initial={x: 0.0}),
        Experiment({"x": [1.0, 2.0]}, [1.0, 2.0], initial=steady_state()),
        parameters={"k": 1.0, "tau": 1.0},
    )
    with pytest.raises(InputError, match="the steady state of 'x' before the experiment is nan at k = 1, tau = -1"):
        simulate(resting, {"tau": -1.0})


def test_a_method_without_algebraic_equations_is_refused_with_everything_else() -> None:
    x, z, k = symbols("x z k")
    model = Model({x: -z}, algebraic={z: z**2 - k * x}, parameters=[k], initial={x: 1.0})
    with pytest.raises(
        InputError, match=r"2 mistakes[\s\S]*'cvodes' cannot integrate algebraic[\s\S]*unknown parameter 'kk'"
    ):
        simulate(model, {"k": 1.0, "kk": 1.0}, [1.0], integrator=IntegratorOptions(method="cvodes"))
    simulation = simulate(model, {"k": 1.0}, [1.0])  # the guess is 1 as in experiments: at 0 the equation is singular
    assert simulation["x"][0] == pytest.approx(0.25, rel=1e-7)  # x = (1 - t / 2)^2


@pytest.mark.parametrize("junk", [None, 3, "model", np.ones(3), object(), {"x": 1}])
def test_simulate_arguments_of_wrong_type_refused(junk: Any) -> None:
    with pytest.raises(InputError):
        simulate(junk)
    for arguments in ({"parameters": object()}, {"times": object()}, {"times": "all"}, {"parameters": "k"}):
        with pytest.raises(InputError):
            simulate(decay(), **arguments)
    with pytest.raises(InputError, match="initial belongs to the problem's experiments"):
        simulate(decay(), initial={"x": 1.0})  # type: ignore[call-overload]
    with pytest.raises(InputError, match="integrator is 'cvodes'; expected IntegratorOptions"):
        simulate(decay(), integrator="cvodes")  # type: ignore[arg-type]


def test_a_state_that_begins_at_zero_is_simulated_to_its_own_size() -> None:
    """Robertson's y2 begins at zero with a rate of 0.04 and stays below 4e-5."""
    y1, y2, y3 = symbols("y1 y2 y3")
    model = Model({y1: -0.04 * y1 + 1e4 * y2 * y3, y2: 0.04 * y1 - 1e4 * y2 * y3 - 3e7 * y2**2, y3: 3e7 * y2**2})
    simulation = simulate(model, times=np.array([1e-5, 0.4, 40.0, 4e5]), initial={"y1": 1.0, "y2": 0.0, "y3": 0.0})
    assert simulation["y2"] == pytest.approx([3.999839e-7, 3.386395e-5, 9.185535e-6, 1.984994e-8], rel=1e-5)  # RADAU5


@pytest.mark.parametrize("n", [2, 30, 500])
def test_a_front_that_has_not_arrived_yet_is_no_obstacle(n: int) -> None:
    """States down to 1e-320 once had these for their magnitudes, and no step was short enough for the next ones."""
    x = [symbols(f"x{i}") for i in range(n)]
    flows = {x[i]: (x[i - 1] / (1 + x[i - 1]) if i else 0) - 0.5 * x[i] for i in range(n)}
    initial = {f"x{i}": float(i == 0) for i in range(n)}
    times = np.linspace(0, 10, 11)
    simulation = simulate(Model(flows), times=times, initial=initial)
    small_simulation = simulate(
        Model({x[i]: flows[x[i]] for i in range(2)}), times=times, initial={"x0": 1.0, "x1": 0.0}
    )
    assert simulation["x1"] == pytest.approx(small_simulation["x1"], rel=1e-7, abs=1e-12)
    assert np.all(simulation[f"x{n - 1}"] >= -1e-12)


def test_the_estimates_of_a_fit_are_parameters_of_its_model():
    x, k, m = cf.symbols("x k m")
    model = cf.Model({x: m - k * x}, parameters=[k, m], initial={x: 0.0})
    data = cf.Experiment(
        {"x": [0.9, 0.55, 0.3, 0.2]}, time=[1, 2, 3, 4], events=[cf.Doses(into=x, amount=2)],
        noise=cf.Gaussian(below=0.25),  # so that sigma is among what is estimated
    )  # fmt: skip
    problem = cf.Problem(model, data, parameters={"k": 1.0, "m": cf.Parameter(0.03, fixed=True)})
    result = cf.fit(problem)
    assert set(result.values) == {"k", "sigma(x)"}
    dose = [cf.Doses(into=x, amount=1, times=0, every=1, count=2)]
    values = cf.simulate(model, result, [0.5, 1.5], events=dose)["x"]
    k, m = result.values["k"], 0.03
    value_before_dose = m / k + (1 - m / k) * np.exp(-k)
    assert values == pytest.approx(
        [m / k + (1 - m / k) * np.exp(-k / 2), m / k + (value_before_dose + 1 - m / k) * np.exp(-k / 2)]
    )
    assert cf.simulate(problem, result, [2.0])["x"] == pytest.approx(result.predict([2.0])["x"])
    with pytest.raises(cf.InputError, match="parameters is a Problem; give a mapping"):
        cf.simulate(model, problem, [1.0])
