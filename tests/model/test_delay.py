"""Delays: the line and the chain against the method of steps, names, estimates, orders, and what is refused."""

from __future__ import annotations

import pickle
import sys
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit import problems
from castfit.model.delay import transport
from tests.builders import refused
from tests.dde import five_point, method_of_steps, stat5

KINDS = ("single", "multiple", "collocation")
TIMES = np.linspace(0, 12, 25)


def logistic(**options) -> cf.Model:
    x, r, tau = cf.symbols("x r tau")
    return cf.Model({x: r * x * (1 - cf.delay(x, tau, **options))}, parameters=[r, tau], initial={x: 0.1})


@cache
def logistic_by_steps(r=1.8, tau=1.0, history=lambda t: 0.1):
    def rate(t, x, past):
        return r * x * (1 - past(t - tau))

    return method_of_steps(rate, history, 0.1, tau, TIMES[-1])(TIMES)[:, 0]


def error(model: cf.Model) -> float:
    return np.abs(cf.simulate(model, {"r": 1.8, "tau": 1.0}, TIMES)["x"] - logistic_by_steps()).max()


@given(order=st.integers(2, 60))
def test_the_matrix_differentiates_polynomials(order):
    minus_d, age = transport(order)
    for power in range(min(order, 8) + 1):
        slope = power * age ** max(power - 1, 0)
        assert np.abs(minus_d @ age**power + slope).max() < 1e-13 * order**2 * max(1, power)
    assert np.allclose(age, (1 - np.cos(np.pi * np.arange(order + 1) / order)) / 2)


def test_lines_converge_and_chains_do_so_slowly():
    lines = [error(logistic(order=n)) for n in (4, 8, 16, 32)]
    assert lines[1] < 1e-4
    assert lines[3] < 1e-6
    assert all(fine_error < coarse_error / 4 for coarse_error, fine_error in pairwise(lines))
    chains = [error(logistic(method="chain", order=n)) for n in (50, 100, 200)]
    slopes = np.log2(np.array(chains[:-1]) / chains[1:])
    assert ((slopes > 0.8) & (slopes < 1.2)).all()  # first order
    assert 0.02 < chains[2] < 0.06


def test_simulation_takes_as_many_nodes_as_it_needs():
    assert error(logistic()) < 1e-5 * logistic_by_steps().max()
    assert error(logistic()) < error(logistic(order=10)) / 4
    experiment = cf.Experiment({"x": [1.0]}, time=[1.0])
    problem = cf.Problem(logistic(), experiment, parameters={"r": 1.8, "tau": 1.0})
    values = cf.simulate(problem, times=TIMES)["experiment 1"]["x"]
    assert np.array_equal(values, cf.simulate(logistic(), {"r": 1.8, "tau": 1.0}, TIMES)["x"])


def test_history_is_an_expression_of_time_and_parameters():
    x, r, tau, c, t = cf.symbols("x r tau c t")
    history = 0.1 + c * t  # meets the initial value, so that what follows is smoother
    model = cf.Model({x: r * x * (1 - cf.delay(x, tau, history=history, order=24))}, parameters=[r, tau, c], time=t,
                     initial={x: 0.1})  # fmt: skip
    values = cf.simulate(model, {"r": 1.8, "tau": 1.0, "c": 0.3}, TIMES)["x"]
    assert np.abs(values - logistic_by_steps(history=lambda s: 0.1 + 0.3 * s)).max() < 1e-6


def test_the_start_of_an_experiment_is_where_history_ends():
    x, r, tau, t = cf.symbols("x r tau t")
    model = cf.Model({x: r * x * (1 - cf.delay(x, tau, history=0.1 + 0.3 * (t - 5), order=24))},
                     parameters=[r, tau], time=t, initial={x: 0.1})  # fmt: skip
    expected = logistic_by_steps(history=lambda s: 0.1 + 0.3 * s)
    experiment = cf.Experiment({"x": expected[1:]}, time=5 + TIMES[1:], start=5)
    problem = cf.Problem(model, experiment, parameters={"r": 1.8, "tau": 1.0})
    assert np.abs(cf.simulate(problem)["experiment 1"]["x"] - expected[1:]).max() < 1e-6
    assert np.abs(cf.simulate(model, {"r": 1.8, "tau": 1.0}, 5 + TIMES, start=5)["x"] - expected).max() < 1e-6


def test_without_a_history_the_value_at_the_start_was_always_there():
    free_start = cf.Experiment({"x": [1.0]}, time=[3.0], initial={"x": cf.free(0.25)}, name="free")
    fixed_start = cf.Experiment({"x": [1.0]}, time=[3.0], initial={"x": 0.25}, name="own")
    k = cf.symbols("k")
    computed_start = cf.Experiment({"x": [1.0]}, time=[3.0], initial={"x": k / 2}, name="computed")
    problem = cf.Problem(
        logistic(), [free_start, fixed_start, computed_start], parameters={"r": 1.8, "tau": 1.0, "k": 0.5}
    )
    simulation = cf.simulate(problem, times=[1.0, 3.0])
    expected = cf.simulate(logistic(history=0.25), {"r": 1.8, "tau": 1.0}, [1.0, 3.0], initial={"x": 0.25})["x"]
    for name in ("free", "own", "computed"):
        assert np.allclose(simulation[name]["x"], expected, rtol=1e-7)
    link = problem.conditions[0].link
    natural = link.natural(np.array([1.8, 1.0, 0.25]))
    assert np.allclose(natural.da[:, 2], 1.0)  # the whole line moves with the initial state


def test_delayed_values_of_delayed_values_of_inputs_and_in_outputs():
    x, u, a, b = cf.symbols("x u a b")
    nested_delay = cf.delay(cf.delay(x, a, order=20), b, order=20)
    single_delay = cf.delay(x, a + b, order=30)
    delayed_input = cf.delay(u, a, order=20)
    model = cf.Model({x: -x + cf.sin(2 * u)}, parameters=[a, b], inputs=[u], initial={x: 0.2},
                     outputs={"twice": nested_delay, "once": single_delay, "before": delayed_input})  # fmt: skip
    assert model.output_names == ("x", "twice", "once", "before")
    times = np.linspace(0, 6, 13)
    signal = cf.Input.cubic_spline([-2.0, 0.0, 2.0, 4.0, 6.0], [0.0, 0.3, 0.9, 0.2, 0.4])
    simulation = cf.simulate(model, {"a": 0.6, "b": 0.4}, times, inputs={"u": signal})
    assert np.abs(simulation["twice"] - simulation["once"]).max() < 2e-4
    assert np.abs(simulation["before"] - np.where(times < 0.6, signal(0.0), signal(times - 0.6))).max() < 5e-3
    assert [str(line) for line in model.lines] == [
        "x(t - a): 20 nodes", "x(t - a)(t - b): 20 nodes", "x(t - (a+b)): 30 nodes", "u(t - a): 20 nodes"
    ]  # fmt: skip


def test_a_value_that_is_asked_for_twice_has_one_line():
    x, tau = cf.symbols("x tau")
    square = x**2
    model = cf.Model({x: -cf.delay(x, tau, history=1) + cf.delay(x, tau, history=1.0) * cf.delay(square, tau)
                      - cf.delay(square, tau) + cf.delay(x, tau)}, parameters=[tau], initial={x: 1.0})  # fmt: skip
    assert [line.name for line in model.lines] == ["x(t - tau)", "sq(x)(t - tau)", "x(t - tau) #2"]


def test_algebraic_states_can_be_delayed():
    x, z, tau = cf.symbols("x z tau")
    model = cf.Model({x: -cf.delay(z, tau, history=1.0, order=16)}, algebraic={z: z == x**2}, parameters=[tau],
                     initial={x: 1.0})  # fmt: skip
    expected = method_of_steps(lambda t, x, past: -(past(t - 0.5) ** 2), lambda t: 1.0, 1.0, 0.5, 3.0)(TIMES[:7])
    values = cf.simulate(model, {"tau": 0.5}, TIMES[:7])["x"]
    assert np.abs(values - expected[:, 0]).max() < 1e-5


def test_users_see_their_own_states():
    model = logistic()
    assert model.own_states == ("x",)
    assert model.output_names == ("x",)
    assert model.states[1] == "x(t - tau), node 1"
    assert str(model) == "Model(ODE: states x; parameters r, tau; delays x(t - tau): 10 nodes)"
    with refused(
        "'y' is measured but is neither a state nor an output: choose from x", "'z', which is no state: choose from x"
    ):
        cf.Problem(model, cf.Experiment({"y": [1.0]}, time=[1.0], initial={"z": 1.0}),
                   parameters={"r": 1.0, "tau": 1.0})  # fmt: skip


def test_models_with_delays_pickle_and_change_their_order():
    x, r, tau = cf.symbols("x r tau")
    inner = cf.delay(x, tau)
    chain = cf.delay(x, tau, method="chain", order=3)
    model = cf.Model({x: r * x * (1 - cf.delay(inner, 0.5, order=12)) - 0.1 * chain}, parameters=[r, tau],
                     initial={x: 0.1})  # fmt: skip
    finer = model.with_order(17)
    assert [line.order for line in finer.lines] == [17, 12, 3]
    values = {"r": 1.8, "tau": 1.0}
    for variant in (model, finer):
        copy = pickle.loads(pickle.dumps(variant))
        assert copy.states == variant.states
        assert copy.lines == variant.lines
        assert copy.with_order(11).lines == variant.with_order(11).lines
        assert np.array_equal(cf.simulate(variant, values, TIMES[:9])["x"], cf.simulate(copy, values, TIMES[:9])["x"])


@pytest.mark.parametrize(
    "kind", ["collocation", *(pytest.param(k, marks=pytest.mark.slow) for k in ("single", "multiple"))]
)
def test_delay_estimates_agree_and_message_names_order(kind):
    rng = np.random.default_rng(4)
    values = logistic_by_steps() * (1 + 0.02 * rng.standard_normal(TIMES.size))
    experiment = cf.Experiment({"x": values[1:]}, time=TIMES[1:], sigma=0.02 * values[1:])
    bounds = {"r": cf.Parameter(1.5, lower=0.1, upper=5), "tau": cf.Parameter(0.8, lower=0.1, upper=3)}
    problem = cf.Problem(logistic(history=0.1), experiment, parameters=bounds)
    result = cf.fit(problem, cf.MultipleShooting(3) if kind == "multiple" else kind)
    assert result.success
    assert "The delay line of x(t - tau) has 15 nodes; with 10 the estimates change by at most" in result.message
    assert result.problem.posed.model.lines[0].order == 15
    # The optimum of the delay differential equation itself:
    q = np.array(list(result.values.values()))

    def residuals(q):
        return (logistic_by_steps(*q)[1:] - values[1:]) / (0.02 * values[1:])

    slopes = [five_point(lambda v, j=j: residuals(np.where(np.arange(2) == j, v, q)), q[j], 1e-3) for j in range(2)]
    jacobian = np.column_stack(slopes)
    step = np.linalg.lstsq(jacobian, -residuals(q), rcond=None)[0]
    errors = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    assert (np.abs(step) < 0.01 * errors).all()
    assert np.allclose(errors, list(result.standard_errors.values()), rtol=1e-3)
    assert np.isclose(result.chi2, np.sum(residuals(q) ** 2), rtol=1e-3)


def test_a_result_is_saved_and_finds_its_problem_again(tmp_path):
    experiment = cf.Experiment({"x": logistic_by_steps()[1:]}, time=TIMES[1:])
    problem = cf.Problem(logistic(), experiment, parameters={"r": 1.7, "tau": 1.0})
    result = cf.fit(problem, "single")
    result.save(tmp_path / "fit.json")
    loaded_result = cf.Result.load(tmp_path / "fit.json").with_problem(problem)
    assert np.array_equal(loaded_result.predict()["experiment 1"]["x"], result.predict()["experiment 1"]["x"])
    assert set(result.predict()["experiment 1"]) == {"time", "x"}


@pytest.mark.slow
def test_drivers_answer_with_the_nodes_that_were_needed():
    values = logistic_by_steps()[1:] * (1 + 0.02 * np.random.default_rng(4).standard_normal(24))
    bounds = {"r": cf.Parameter(1.7, lower=1.0, upper=3), "tau": cf.Parameter(0.9, lower=0.5, upper=1.5)}
    experiment = cf.Experiment({"x": values}, time=TIMES[1:], sigma=0.02)
    problem = cf.Problem(logistic(), experiment, parameters=bounds)
    reference = cf.fit(problem, "single")
    results = (
        cf.multistart(problem, starts=1, rng=0, transcription=cf.SingleShooting()).best,
        cf.incremental(problem).result,
        cf.fit(problem, cf.MultipleShooting(2), start=reference),
    )
    for result in results:
        assert result is not None
        assert result.success
        assert result.problem.posed.model.lines[0].order in (15, 22)
        assert np.isclose(result.chi2, reference.chi2, rtol=1e-4)
        assert np.allclose(result.predict()["experiment 1"]["x"], reference.predict()["experiment 1"]["x"], rtol=1e-3)


def test_delay_nodes_not_refined_message_says_untested():
    experiment = cf.Experiment({"x": logistic_by_steps()[1:]}, time=TIMES[1:])
    problem = cf.Problem(logistic(), experiment, parameters={"r": 1.7, "tau": 1.0})
    result = cf.fit(problem.posed.fix({"tau": 1.0}), "single")
    assert "x(t - tau) has 10 nodes; whether they are enough was not tested" in result.message
    stopped_result = cf.fit(problem, "single", callback=lambda progress: progress.iteration > 0)
    assert stopped_result.status is cf.Status.STOPPED_BY_CALLBACK
    assert "x(t - tau) has 10 nodes; whether they are enough was not tested" in stopped_result.message
    fixed = cf.fit(problem.replace(model=logistic(order=12)), "single")
    assert "nodes" not in fixed.message


@pytest.mark.slow
def test_tau_of_stat5_has_the_derivative_of_the_delay_itself():
    benchmark = problems.load("stat5", delay="line")
    q = np.array(list(benchmark.reference.parameters.values()))
    points = benchmark.problem.conditions[0].points
    exact = five_point(lambda tau: stat5(q[0], q[1], tau, q[3], points.times), q[2], 3e-3)[points.mask]
    problem = benchmark.problem.replace(model=benchmark.problem.model.with_order(60))
    fine = cf.IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-12)
    theta = problem.theta_from(benchmark.reference.parameters)
    staged = cf.SingleShooting(fine).transcribe(problem.posed, theta)
    rows = np.concatenate(list(staged.linearize(theta).jacobians[0].R_q))
    derivative = rows[staged.layout.chains[0].row_mask.ravel()][:, 2] * points.sigma[points.mask]
    assert np.abs(derivative - exact).max() < 1e-6 * np.abs(exact).max()
    residuals = ((stat5(*q, points.times) - points.values) / points.sigma)[points.mask]
    assert np.sum(residuals**2) == pytest.approx(benchmark.reference.objective, rel=1e-8)


@pytest.mark.slow
def test_chains_of_stat5_converge_to_the_line():
    line = problems.load("stat5", delay="line").reference
    references = [problems.load("stat5", delay=n).reference for n in (8, 20, 50)]
    gaps = [line.objective - reference.objective for reference in references]
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert 1.6 < gaps[1] / gaps[2] < 2.6  # first order: 50 / 20 = 2.5
    result = cf.fit(problems.load("stat5", delay="line").problem, "single")
    assert line.is_reached(result.chi2)
    assert line.is_matched(result.values)


def mackey_glass_residuals(benchmark, q):
    file = sys.modules[type(benchmark).__module__.replace("castfit.problems", "castfit._problems.mackey_glass")]
    values = benchmark.problem.conditions[0].points.values[:, 0]
    return (file.method_of_steps(**dict(zip(file.TRUTH, q, strict=True)))(file.TIMES) - values) / file.MEASUREMENT_SIGMA


@pytest.mark.slow
def test_the_reference_of_mackey_glass_is_an_optimum_of_the_equation_itself():
    benchmark = problems.load("mackey_glass")
    q = np.array(list(benchmark.reference.parameters.values()))
    residuals = mackey_glass_residuals(benchmark, q)
    assert np.sum(residuals**2) == pytest.approx(benchmark.reference.objective, rel=1e-8)
    slopes = [
        five_point(
            lambda v, j=j: mackey_glass_residuals(benchmark, np.where(np.arange(4) == j, v, q)), q[j], 1e-3 * q[j]
        )
        for j in range(4)
    ]
    jacobian = np.column_stack(slopes)
    errors = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    assert np.allclose(errors, list(benchmark.reference.standard_errors.values()), rtol=1e-4)
    step = np.linalg.lstsq(jacobian, -residuals, rcond=None)[0]
    assert (np.abs(step) < 1e-4 * errors).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_mackey_glass_is_solved(kind):
    benchmark = problems.load("mackey_glass")
    transcription = {"single": cf.SingleShooting, "multiple": cf.MultipleShooting, "collocation": cf.Collocation}[kind]
    result = cf.fit(benchmark.problem, transcription(**benchmark.transcriptions.get(kind, {})))
    assert result.success
    assert benchmark.reference.is_reached(result.chi2)
    assert benchmark.reference.is_matched(result.values)
    for name, expected in benchmark.reference.standard_errors.items():
        assert result.standard_errors[name] == pytest.approx(expected, rel=1e-3)


def test_a_negative_delay_does_not_look_like_a_solution():
    with refused("the delay of x(t - tau) is -1; a delay is positive"):
        cf.simulate(logistic(), {"r": 1.8, "tau": -1.0}, TIMES)
    problem = cf.Problem(logistic(), cf.Experiment({"x": [1.0, 2.0]}, time=[1.0, 2.0]), parameters={"r": 1, "tau": 1})
    with refused("experiment 1: the delay of x(t - tau) is -1; a delay is positive"):
        cf.simulate(problem, {"tau": -1.0})
    with refused("the delay of x(t - tau) is 0; a delay is positive"):
        cf.Problem(logistic(), problem.experiments, parameters={"r": 1, "tau": 0.0})


def test_mistakes_are_listed_at_once():
    x, tau = cf.symbols("x tau")
    with refused("a number; delay what changes", "tau is 0", "history is 'no'", "method is 'line'", "order is 1.5"):
        cf.delay(2, 0, history="no", method="line", order=1.5)
    with refused("a chain needs order="):
        cf.delay(x, tau, method="chain")
    y, z, k = cf.symbols("y z k")
    with refused(
        "a delayed expression contains 'y'", "a delay tau contains 'x'", "the history of a delay contains 'x'"
    ):
        cf.Model({x: -cf.delay(x * y, x, history=x)}, parameters=[k])
    with refused("contains an algebraic state"):
        cf.Model({x: -cf.delay(z, k)}, algebraic={z: z - x}, parameters=[k])
