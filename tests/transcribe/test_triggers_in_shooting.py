"""Events that states trigger, in stages of multiple shooting: derivatives, and the answer of single shooting."""

from __future__ import annotations

import pickle

import casadi as ca
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import castfit as cf

TIGHT = cf.IntegratorOptions(relative_tolerance=1e-10, absolute_tolerance=1e-12)


def ball(times, *, measured="before"):
    """Return a ball that falls from the height 1 and bounces; noise of 1 cm."""
    h, v, g, r = cf.symbols("h v g r")
    model = cf.Model({h: v, v: -g}, parameters=[g, r])
    bounce = cf.Event(when=h, changes={v: -r * v, h: 0}, direction="falling", measured=measured)
    fallen = cf.simulate(model, {"g": 9.81, "r": 0.8}, times, initial={"h": 1.0, "v": 0.0}, events=[bounce])
    data = fallen["h"] + 0.01 * np.random.default_rng(0).standard_normal(times.size)
    initial = {"h": 1.0, "v": cf.free(0.05)}
    experiment = cf.Experiment({"h": data}, time=times, sigma=0.01, initial=initial, events=[bounce])
    return cf.Problem(model, experiment, parameters={"g": 9.7, "r": 0.79})


def tank():
    """Return a tank that a threshold empties by half, a dose at a known time, and a gate."""
    x, y, k, top, t = cf.symbols("x y k top t")
    model = cf.Model({x: k - 0.1 * y, y: x - 0.5 * y}, parameters=[k, top], time=t)
    events = [
        cf.Event(when=x > top, changes={x: 0.5 * x, y: y + k}, measured="after"),
        cf.Event(1.5, {x: x + 0.3}),
        cf.Event(when=y > 1.3, changes={y: 0.2 * y}, priority=2.0),
    ]
    times = np.linspace(0.2, 5.0, 13)
    initial = {"x": cf.free(0.2), "y": 0.1}
    experiment = cf.Experiment({"y": np.sin(times) ** 2}, time=times, sigma=0.3, initial=initial, events=events)
    return cf.Problem(model, experiment, parameters={"k": 0.7, "top": 1.0})


GIVEN = {"k": 1.05, "d": 0.12, "lag": 0.73, "top": 1.9}


def waiting():
    """Return a model of SBML's events: two with a delay and a priority, one that its condition calls off.

    The data are those of solve_ivp, which ends where x reaches the threshold, and goes on to the time that is due.
    """
    loaded = cf.sbml.load_antimony(
        "x = 1; x' = k - d * x; y = 0.2; y' = -0.5 * y + 0.1 * x; k = 1; d = 0.1; lag = 0.7; top = 2;"
        "at lag after x >= top, priority = 2, fromTrigger = false: y = y + x * k;"
        "at lag after x >= top, priority = 5: x = 0.5 * x;"
        "at lag after x >= top && x < 2.1, persistent = false: y = 9"
    )
    times = np.linspace(0.35, 5.03, 14)
    x, y = followed(times, **GIVEN)
    noise = 0.02 * np.random.default_rng(0).standard_normal((2, times.size))
    data = {"x": x + noise[0], "y": y + noise[1]}
    experiment = cf.Experiment(data, time=times, sigma=0.02, events=loaded.events)
    free = {n: cf.Parameter(v, lower=0.01) for n, v in loaded.parameters.items()}
    return cf.Problem(loaded.model, experiment, parameters=free)


def followed(times, k, d, lag, top):
    """Return what SciPy finds of the same: x is halved, of what it was when triggered, and then y sees it."""

    def rates(_t, s):
        return [k - d * s[0], -0.5 * s[1] + 0.1 * s[0]]

    def crossing(_t, s):
        return s[0] - top

    crossing.terminal, crossing.direction = True, 1
    options = {"method": "DOP853", "rtol": 1e-11, "atol": 1e-13, "dense_output": True}
    out, t, state = np.empty((2, times.size)), 0.0, np.array([1.0, 0.2])
    while t < times[-1]:
        segment = solve_ivp(rates, (t, times[-1]), state, events=crossing, **options)
        parts, due = [segment], segment.t[-1]
        if segment.status == 1:
            due = segment.t[-1] + lag
            parts.append(solve_ivp(rates, (segment.t[-1], due), segment.y[:, -1], **options))
            half = 0.5 * segment.y[0, -1]
            state = np.array([half, parts[-1].y[1, -1] + half * k])
        for part in parts:
            inside = (times > part.t[0]) & (times <= part.t[-1])
            out[:, inside] = part.sol(times[inside])
        t = due
    return out


def differences(staged, v, step=1e-6):
    """Return central differences of rows (K, n_r, n_v) and ends of stages (K, n_x, n_v)."""
    derivatives = []
    for unit in np.eye(v.size):
        ahead, behind = (staged.evaluate(v + sign * step * unit).values[0] for sign in (1, -1))
        derivatives.append([(ahead.r - behind.r) / (2 * step), (ahead.x - behind.x) / (2 * step)])
    return (np.moveaxis(np.array([m[i] for m in derivatives]), 0, -1) for i in (0, 1))


@pytest.mark.parametrize(
    "pose",
    [lambda: ball(np.linspace(0.1, 2.0, 12)), tank, pytest.param(waiting, marks=pytest.mark.slow)],
    ids=["ball", "tank", "waiting"],
)
@pytest.mark.parametrize(
    "intervals", [3, pytest.param(7, marks=pytest.mark.slow), pytest.param("data", marks=pytest.mark.slow)]
)
def test_derivatives_are_those_of_differences(pose, intervals):
    """Of residuals and of matching conditions, by all variables; nodes stand apart from each other's ends."""
    problem = pose()
    staged = cf.MultipleShooting(intervals, states="simulation", integrator=TIGHT).transcribe(problem, problem.guess)
    v = staged.start + 1e-3 * np.random.default_rng(1).uniform(-1, 1, staged.start.size)
    assert sum(len(c.pieces) - c.staging.duration.size for c in staged._current_pieces) > 0
    (jacobians,) = staged.linearize(v).jacobians
    rows, ends = differences(staged, v)
    chain, n_theta = staged.layout.chains[0], staged.layout.n_theta
    np.testing.assert_allclose(jacobians.R_q, rows.reshape(*jacobians.R_q.shape[:2], -1)[..., :n_theta], atol=3e-5)
    np.testing.assert_allclose(jacobians.X_q, ends[..., :n_theta], atol=3e-5)
    places = np.arange(v.size)[chain.nodes]
    for k, node_indices in enumerate(places):
        np.testing.assert_allclose(
            jacobians.R_s[k], rows.reshape(*jacobians.R_s.shape[:2], -1)[k][:, node_indices], atol=3e-5
        )
        np.testing.assert_allclose(jacobians.X_s[k], ends[k][:, node_indices], atol=3e-5)


def test_pickled_problem_keeps_its_triggered_events():
    """As what workers get, and what profiles, bootstraps and searches go on with, after the problem was evaluated."""
    compiled_problem = ball(np.linspace(0.1, 2.0, 20)).posed
    staged = cf.SingleShooting().transcribe(compiled_problem, compiled_problem.guess)
    cost = staged.evaluate(staged.start).cost
    staged_copy = cf.SingleShooting().transcribe(pickle.loads(pickle.dumps(compiled_problem)), compiled_problem.guess)
    assert staged_copy.evaluate(staged_copy.start).cost == cost


def test_a_bouncing_ball_has_one_optimum():
    """By single and multiple shooting, with the same standard errors."""
    times = np.linspace(0.1, 2.0, 20)
    problem = ball(times)
    one = cf.fit(problem, cf.SingleShooting())
    for intervals in (4,):
        other = cf.fit(problem, cf.MultipleShooting(intervals, states="simulation"))
        assert other.success, other.message
        assert other.chi2 == pytest.approx(one.chi2, rel=1e-7)
        for name, value in one.parameters.items():
            assert other.parameters[name] == pytest.approx(value, rel=1e-5)
            assert other.standard_errors[name] == pytest.approx(one.standard_errors[name], rel=1e-4)
    assert one.parameters["g"] == pytest.approx(9.81, abs=4 * one.standard_errors["g"])


@pytest.mark.slow
def test_events_with_delays_and_priorities_have_one_optimum():
    """By single and multiple shooting; there the course, and how parameters move it, are those of solve_ivp."""
    problem = waiting()
    one = cf.fit(problem, "single")
    other = cf.fit(problem, cf.MultipleShooting(4, states="simulation"))
    assert one.success, one.message
    assert other.success, other.message
    assert other.chi2 == pytest.approx(one.chi2, rel=1e-7)
    times = np.linspace(0.35, 5.03, 14)
    course = cf.simulate(problem, GIVEN, times)
    np.testing.assert_allclose([course["x"], course["y"]], followed(times, **GIVEN), rtol=1e-7)
    for name, value in one.parameters.items():
        assert other.parameters[name] == pytest.approx(value, rel=1e-5)
        assert other.standard_errors[name] == pytest.approx(one.standard_errors[name], rel=1e-4)
    step, estimates = 1e-6, other.parameters
    sensitivities = [
        (
            followed(times, **{**estimates, n: estimates[n] + step})
            - followed(times, **{**estimates, n: estimates[n] - step})
        )
        / (2 * step)
        for n in problem.names
    ]
    rows = np.array(sensitivities).reshape(len(sensitivities), -1) / 0.02
    errors = np.sqrt(np.diag(np.linalg.inv(rows @ rows.T)))
    np.testing.assert_allclose([other.standard_errors[n] for n in problem.names], errors, rtol=1e-4)


def test_unsupported_methods_with_triggers_name_supported_ones():
    problem = ball(np.linspace(0.1, 1.0, 9))
    with pytest.raises(cf.InputError, match=r"only shooting can follow; use SingleShooting\(\) or MultipleShooting"):
        cf.fit(problem, cf.Collocation())
    with pytest.raises(cf.InputError, match="leave derivatives='adjoint' out"):
        cf.fit(problem, cf.MultipleShooting("data", derivatives="adjoint"))


def test_nodes_start_on_the_course_between_its_events():
    """Nodes between two bounces are in the middle, those before the first in the first half; there are no gaps."""
    problem = ball(np.linspace(0.1, 2.0, 12))
    staged = cf.MultipleShooting(20).transcribe(problem, problem.guess)
    (times,) = staged.times(staged.start)
    speed = np.sqrt(0.05**2 + 2 * 9.7)
    first_bounce = (0.05 + speed) / 9.7
    second_bounce = first_bounce + 2 * 0.79 * speed / 9.7
    third_bounce = second_bounce + 2 * 0.79**2 * speed / 9.7
    assert times[1:-1].min() < first_bounce / 2 < times[1:-1].max()
    inner = times[(times > first_bounce) & (times < third_bounce)]
    np.testing.assert_allclose(
        inner, [(first_bounce + second_bounce) / 2, (second_bounce + third_bounce) / 2], atol=1e-3
    )
    (values,) = staged.evaluate(staged.start).values
    np.testing.assert_allclose(values.x[:-1], staged.node_states(staged.start)[0][1:], atol=1e-2)


@pytest.mark.parametrize("transcription", ["single", "multiple"])
def test_condition_true_at_some_of_its_times_is_measured_after_events_there_only(transcription):
    """The condition holds at t = 2 itself, where it becomes true, and only after t = 3.5."""
    x, n, k, t = cf.symbols("x n k t")
    is_pulse = ca.logic_and(ca.logic_and(t >= 2, t < 3), x < 4.5)
    event = cf.Event(when=ca.logic_or(is_pulse, t > 3.5), changes={n: n + 1}, measured="if_true")
    times = np.arange(0.0, 25.0) / 4
    counts = (times >= 2).astype(float) + (times > 3.5)
    experiment = cf.Experiment(
        {"x": 5 * np.exp(-0.1 * times), "n": counts}, time=times, sigma=0.1, initial={x: 5, n: 0}, events=[event]
    )
    result = cf.fit(
        cf.Problem(cf.Model({x: -k * x, n: 0}, parameters=[k], time=t), experiment, parameters={"k": 0.2}),
        transcription,
    )
    assert result.chi2 < 1e-8
    assert result.values["k"] == pytest.approx(0.1, rel=1e-6)
