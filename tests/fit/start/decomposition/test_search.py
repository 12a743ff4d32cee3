"""Starts by decomposition: recovery from anywhere, refusals, limits, and multistart."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import castfit as cf
from castfit import problems
from castfit._support import time_limit
from castfit._support.status import InputError, Status
from castfit.fit.start.decomposition import search
from castfit.fit.start.decomposition.search import decompose
from tests.builders import refused

TRUTH = {"a": 0.8, "K": 0.5, "b": 1.5, "c": 0.3}
WIDE = cf.Parameter(1e-5, lower=1e-6, upper=1e3, scale="log")


def pathway(*, measured=("x", "y"), **changes) -> cf.Problem:
    """Decay by a saturated reaction into y, which decays: two blocks, exact data."""
    x, y, a, K, b, c = cf.symbols("x y a K b c")
    rate = a * x / (K + x)
    model = cf.Model({x: -rate, y: b * x - c * y}, parameters=[a, K, b, c], initial={x: 3, y: 0})
    times = np.linspace(0, 8, 17)
    exact = problems.exact_trajectory(model, parameters=TRUTH, initial={"x": 3.0, "y": 0.0}, times=times)
    experiment = cf.Experiment({name: exact[name] for name in measured}, time=times, sigma=0.1)
    return cf.Problem(model, experiment, **{"parameters": dict.fromkeys("aKbc", WIDE), **changes})


def test_fit_recovers_the_truth_and_says_how_it_started():
    result = cf.fit(pathway(), start="decomposed")
    assert result.success
    assert result.parameters == pytest.approx(TRUTH, rel=1e-5)
    assert "Started from separate estimates of 2 blocks: x; y." in result.message


def test_the_blocks_alone_come_close():
    problem = pathway()
    origin = decompose(problem, problem.guess, rng=1)
    assert problem.to_natural(origin.theta) == pytest.approx([TRUTH[name] for name in problem.names], rel=0.05)
    assert origin.stop_status is None


def test_equal_seeds_give_equal_starts():
    problem = pathway()
    thetas = [decompose(problem, problem.guess, rng=rng).theta for rng in (3, np.random.default_rng(3), 4)]
    assert np.array_equal(thetas[0], thetas[1])
    assert not np.array_equal(thetas[0], thetas[2])


def test_bounds_are_respected():
    narrow = cf.Parameter(2.0, lower=1.7, upper=4.0)
    problem = pathway(parameters={**dict.fromkeys("aKc", WIDE), "b": narrow})
    result = cf.fit(problem, start="decomposed")
    assert result.parameters["b"] == pytest.approx(1.7)
    assert result.active == {"b": "lower"}


def test_fixed_local_and_unbounded_parameters_and_free_initial_states():
    problem = pathway()
    one, two = (cf.Experiment(problem.experiments[0].data, sigma=0.1, name=n, initial=i)
                for n, i in (("one", {"x": cf.free(0.1, lower=0)}), ("two", {})))  # fmt: skip
    parameters = {
        "a": cf.Parameter(0.1, local=True),
        "K": cf.Parameter(TRUTH["K"], fixed=True),
        "b": cf.Parameter(0.01, lower=0, scale="log"),
        "c": 0.0,
    }
    result = cf.fit(problem.replace(experiments=[one, two], parameters=parameters), start="decomposed")
    assert result.success
    expected = {"b": 1.5, "c": 0.3, "a[one]": 0.8, "x(0)[one]": 3.0, "a[two]": 0.8}
    assert result.values == pytest.approx(expected, rel=1e-4)


def test_a_given_start_is_one_of_those_that_every_block_tries(monkeypatch):
    tried_points, original = [], search.evaluate_cost
    monkeypatch.setattr(
        search, "evaluate_cost", lambda staged, theta: tried_points.append(theta) or original(staged, theta)
    )
    cf.fit(pathway(), start=cf.Decomposed({"a": 0.7, "c": 0.2}))
    assert tried_points[0] == pytest.approx(np.log([0.7, 1e-5]))
    assert any(theta == pytest.approx(np.log([1e-5, 0.2])) for theta in tried_points)


def test_decomposed_start_keeps_quantities_outside_all_blocks():
    problem = pathway()
    scaled = cf.symbols("s")
    model = cf.Model(
        dict(zip(_split(problem.model.system.x), _split(problem.model.system.ode), strict=True)),
        parameters=[*_split(problem.model.system.p), scaled],
        outputs={"seen": scaled * problem.model.system.x[0]},
        initial={"x": 3, "y": 0},
    )
    data = problem.experiments[0].data
    scaled_data = (data["x"][0], 2 * data["x"][1][:, 0])
    experiment = cf.Experiment({"x": data["x"], "y": data["y"], "seen": scaled_data}, sigma=0.1)
    extended_problem = cf.Problem(model, experiment, parameters={**problem.parameters, "s": 0.5})
    origin = decompose(extended_problem, extended_problem.guess)
    assert origin.theta[extended_problem.names.index("s")] == 0.5
    assert cf.fit(extended_problem, start="decomposed").parameters == pytest.approx({**TRUTH, "s": 2.0}, rel=1e-5)


def _split(vector):
    return [vector[i] for i in range(vector.numel())]


def test_impossible_decompositions_are_refused():
    with refused("the state 'x', which couples its equations, must be measured directly"):
        cf.fit(pathway(measured=("y",)), start="decomposed")
    with refused("shared parameters connect all its equations"):
        cf.fit(problems.load("alpha_pinene").problem, start="decomposed")


def test_states_without_parameters_are_signals_only():
    problem = pathway(parameters={**dict.fromkeys("bc", WIDE), **{n: cf.Parameter(TRUTH[n], fixed=True) for n in "aK"}})
    result = cf.fit(problem, start="decomposed")
    assert result.parameters == pytest.approx({"b": 1.5, "c": 0.3}, rel=1e-5)
    assert "Started from separate estimates of 1 block: y." in result.message


def test_bad_arguments_are_refused():
    with refused("rng is 'dice'"):
        cf.Decomposed(rng="dice")
    with refused("'q' is not estimated", "start of 'a'"):
        cf.fit(pathway(), start=cf.Decomposed({"q": 1.0, "a": 1e9}))
    with refused("start_strategy is 'decompose'; expected 'decomposed', 'soft' or None"):
        cf.multistart(pathway(), starts=2, start_strategy="decompose")
    with refused("the problem cannot be decomposed"):
        cf.multistart(pathway(measured=("y",)), starts=2, start_strategy="decomposed")


def test_the_time_limit_holds(monkeypatch):
    monkeypatch.setattr(time_limit.time, "perf_counter", iter(np.arange(0.0, 1e4, 0.5)).__next__)
    origin = decompose(pathway(), pathway().guess, max_time=5.0)
    assert origin.stop_status is Status.MAX_TIME


def test_a_limit_that_ends_in_the_blocks_returns_the_best_point():
    problem = pathway()
    result = cf.fit(problem, start="decomposed", max_time=1e-4)
    assert result.status is Status.MAX_TIME
    assert not result.success
    assert result.chi2 >= 0


def test_control_c_in_a_block_returns_the_best_point(monkeypatch):
    problem, count, original = pathway(), [0], search.evaluate_cost

    def press(staged, theta):
        count[0] += 1
        if count[0] == 150:
            signal.raise_signal(signal.SIGINT)
        return original(staged, theta)

    monkeypatch.setattr(search, "evaluate_cost", press)
    result = cf.fit(problem, start="decomposed")
    assert result.status is Status.INTERRUPTED
    assert result.parameters["a"] != pytest.approx(1e-5)
    assert result.parameters["c"] == pytest.approx(1e-5)


def test_multistart_starts_from_decomposed_starts():
    run = cf.multistart(pathway(), starts=1, rng=5, start_strategy="decomposed")
    assert "Started from separate estimates of 2 blocks" in run.starts[0].message
    assert run.best.parameters == pytest.approx(TRUTH, rel=1e-5)


@pytest.mark.slow
def test_multistart_from_decomposed_starts_does_not_depend_on_workers():
    runs = [
        cf.multistart(pathway(), starts=2, rng=5, start_strategy="decomposed", workers=workers) for workers in (1, 2)
    ]
    assert [row.values for row in runs[0].starts] == [row.values for row in runs[1].starts]


@pytest.mark.slow
def test_three_step_from_the_whole_box():
    benchmark = problems.load("three_step")
    problem = benchmark.problem
    origin = decompose(problem, problem.theta_from(benchmark.draw_start(0)))
    truth = problem.theta_from(benchmark.reference.parameters)
    assert np.abs(origin.theta - truth).max() < np.log(1.5)
    staged = cf.SingleShooting(cf.IntegratorOptions(relative_tolerance=1e-6)).transcribe(problem, origin.theta)
    assert 2 * staged.evaluate(staged.start).cost < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_three_step_is_solved_from_twenty_starts(noise):
    benchmark = problems.load("three_step", noise=noise)
    options = cf.IntegratorOptions(relative_tolerance=1e-6, absolute_tolerance=1e-8, compile="auto")
    reference_result = cf.fit(benchmark.problem, cf.SingleShooting(options), start=benchmark.reference.parameters)
    multistart_result = cf.multistart(
        benchmark.problem, cf.SingleShooting(options), starts=20, sampling=benchmark.draw_start, rng=1,
        start_strategy="decomposed",
    )  # fmt: skip
    values = np.array([row.chi2 for row in multistart_result.starts])
    assert (values < 1e-4).sum() >= 19 if noise == 0 else (values < reference_result.chi2 * (1 + 1e-4)).all()


def test_input_error_is_one_of_castfits():
    with pytest.raises(InputError, match="start is 'decompose'"):
        cf.fit(pathway(), start="decompose")
