"""Soft equations and constant states: their rows, their coordinates, and what they find."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit import problems
from castfit.fit import strategies
from castfit.fit.start.soft_start import soft_start
from castfit.problem.positivity import positive_states
from castfit.solve.relaxed_dynamics import SHORT_RAMP, FlatRelaxedProblem, SearchCoordinates

HARD = ("cascade", "fitzhugh_nagumo", "goodwin", "lorenz", "lotka_volterra_log", "repressilator")
POSITIVE = {"fitzhugh_nagumo": False, "lorenz": False}


def prey(unit=1.0, *, times=None, per_time=1.0):
    """Lotka and Volterra's prey as a logarithm, both states in another unit, time in another."""
    x, y, a, b, c, d = cf.symbols("x y a b c d")
    model = cf.Model(
        {x: (a * x - b * x * y / unit) * per_time, y: (c * x * y / unit - d * y) * per_time},
        parameters=[a, b, c, d],
        outputs={"log_x": ca.log(x / unit)},
        initial={x: 4 * unit, y: unit},
    )
    points = problems.load("lotka_volterra_log").problem.conditions[0].points
    experiment = cf.Experiment({"log_x": points.values[:, 0]}, time=points.times / per_time, start=0.0, sigma=0.1)
    return cf.Problem(model, experiment, parameters=dict.fromkeys("abcd", cf.Parameter(0.3, 0.01, 100, scale="log")))


def soft_problem(problem, transcription, rho=0.3):
    """A soft problem with a point that is nowhere special."""
    compiled_problem = problem.posed
    staged = transcription.transcribe(compiled_problem, compiled_problem.guess).explicit()
    n = len(compiled_problem.model.states)
    coordinates = SearchCoordinates.from_layout(staged.layout, positive_states(compiled_problem), np.full(n, 3.0))
    points = np.array([0.376403, 0.512486, 0.111111]) if staged.layout.chains[0].n_w else np.empty(0)
    noise = [np.full(chain.row_mask.shape, 1.5) for chain in staged.layout.chains]
    u = coordinates.search(staged.start) + 0.05 * np.random.default_rng(1).standard_normal(staged.start.size)
    return FlatRelaxedProblem(staged, coordinates, noise, points, rho), u


@pytest.mark.parametrize(
    "transcription", [cf.Collocation(elements="data"), cf.MultipleShooting(4)], ids=["elements", "stages"]
)
@pytest.mark.parametrize("name", ["lotka_volterra_log", "fitzhugh_nagumo"])
def test_gradient_is_that_of_the_value(name, transcription):
    soft, u = soft_problem(problems.load(name).problem, transcription)
    linear = soft.staged.linearize(soft.coordinates.natural(u))
    gradient = soft.equations(u, linear).gradient

    def value(step):
        point = u + step * direction
        return soft.value(point, soft.staged.evaluate(soft.coordinates.natural(point)))

    for seed in range(3):
        direction = np.random.default_rng(seed).standard_normal(u.size)
        slope = (8 * (value(1e-4) - value(-1e-4)) - (value(2e-4) - value(-2e-4))) / 12e-4
        assert slope == pytest.approx(gradient @ direction, rel=1e-4)


@given(st.lists(st.floats(-20, 20), min_size=4, max_size=4), st.floats(1e-6, 1e6))
def test_coordinates_there_and_back(z, unit):
    mixed = SearchCoordinates(np.array([True, False, True, False]), np.full(4, unit), np.full(4, 1e-7 * unit))
    u = np.array(z) + np.where(mixed.logarithmic, np.log(unit), 0.0)
    v = mixed.natural(u)
    is_resolved = ~mixed.logarithmic | (v > 1e-3 * mixed.floor)
    assert np.allclose(mixed.search(v)[is_resolved], u[is_resolved], rtol=1e-9, atol=1e-9)
    slope = (mixed.natural(u + 1e-6) - mixed.natural(u - 1e-6)) / 2e-6
    assert np.allclose(slope, mixed.slope(u), rtol=1e-6)


@pytest.mark.parametrize("name", HARD)
def test_positive_states_are_detected(name):
    assert positive_states(problems.load(name).problem.posed).tolist() == [POSITIVE.get(name, True)] * len(
        problems.load(name).problem.model.states
    )


def test_a_state_that_follows_a_signed_one_is_signed():
    x, y, z, k = cf.symbols("x y z k")
    model = cf.Model({x: -k * x, y: k * (x - 1), z: y - k * z}, parameters=[k], initial={x: 1, y: 1, z: 1})
    problem = cf.Problem(model, cf.Experiment({"x": [0.5, 0.3]}, time=[1, 2], sigma=0.1), parameters={"k": 1.0})
    assert positive_states(problem.posed).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("name", "distant_start", "transcription"),
    [
        ("lorenz", {"s": 100.0, "r": 3.0, "b": 0.1}, "collocation"),
        ("fitzhugh_nagumo", {"a": 0.05, "b": 1.0, "c": 10.0, "gain": 10.0}, "collocation"),
        ("lotka_volterra_log", {"a": 0.1, "b": 0.1, "c": 1.0, "d": 3.0}, "single"),
    ],
)
def test_a_start_decades_away_reaches_the_reference(name, distant_start, transcription):
    benchmark = problems.load(name)
    result = cf.fit(benchmark.problem, transcription, start=cf.SoftStart(distant_start), retry=False)
    assert result.success
    assert benchmark.reference.is_reached(result.chi2)
    assert benchmark.reference.is_matched(result.values)
    assert "Started from constant states with relaxed equations" in result.message


def test_soft_start_does_not_depend_on_the_units_of_states_and_time():
    """The state is not measured but for its logarithm in a fixed unit; time is what the data are given in."""
    theta = np.log([0.1, 0.1, 1.0, 3.0])
    reference = soft_start(prey().posed, theta, cf.IntegratorOptions(), stations=SHORT_RAMP)
    for scaled_problem in (prey(1e6), prey(1e-6), prey(per_time=60.0)):
        scaled_start = soft_start(scaled_problem.posed, theta, cf.IntegratorOptions(), stations=SHORT_RAMP)
        assert scaled_start.theta == pytest.approx(reference.theta, rel=1e-2, abs=1e-2)


@pytest.mark.slow
def test_unknown_noise_is_told_from_the_signal():
    """Profiled from the start, sigma would rise to the deviation of the data, and constant states would be optimal."""
    benchmark = problems.load("cascade")
    start = cf.SoftStart({name: 3.0 for name in benchmark.problem.names})
    assert benchmark.reference.is_reached(cf.fit(benchmark.problem, "single", start=start).chi2)
    result = cf.fit(benchmark.problem, start=start)  # collocation ends where d1 and d2 are exchanged, 1.4 above
    assert result.success
    assert result.chi2 < 1.02 * benchmark.reference.objective


def test_doses_and_algebraic_states_are_carried_along():
    """Amounts jump where a dose is given, so that trajectories do; algebraic states have equations of their own."""
    x, c, k, v = cf.symbols("x c k v")
    model = cf.Model(
        {x: -k * x}, algebraic={c: c * v - x}, parameters=[k, v], outputs={"log_c": ca.log(c)}, initial={x: 1.0}
    )
    times = np.arange(0.5, 12.0)
    truth = np.exp(-0.3 * times) + np.where(times > 6, 2 * np.exp(-0.3 * (times - 6)), 0)
    log_c = np.log(truth / 4) + 0.05 * np.random.default_rng(0).standard_normal(times.size)
    experiment = cf.Experiment(
        {"log_c": log_c}, time=times, start=0.0, sigma=0.05, events=cf.Doses("x", 2.0, times=6.0)
    )
    scale = {"k": cf.Parameter(1.0, 1e-3, 1e3, scale="log"), "v": cf.Parameter(1.0, 1e-3, 1e3, scale="log")}
    problem = cf.Problem(model, experiment, parameters=scale)
    result = cf.fit(problem, start="soft", retry=False)
    assert result.success
    assert result.parameters == pytest.approx({"k": 0.3, "v": 4.0}, rel=0.1)


@pytest.mark.slow
def test_a_fit_tries_soft_equations_where_states_are_hidden(monkeypatch):
    """Ever longer horizons come before them, and find this too; without those it is theirs."""
    benchmark, distant_start = problems.load("lorenz"), {"s": 300.0, "r": 3.0, "b": 0.1}
    assert benchmark.reference.is_reached(cf.fit(benchmark.problem, start=distant_start).chi2)
    monkeypatch.setattr(
        strategies, "STRATEGIES", tuple(s for s in strategies.STRATEGIES if s is not strategies.GROWING_HORIZONS)
    )
    result = cf.fit(benchmark.problem, start=distant_start)
    assert benchmark.reference.is_reached(result.chi2)
    assert "relaxed equations from constant states" in result.message


@pytest.mark.slow
def test_multistart_begins_softly_and_does_not_depend_on_workers():
    problem = problems.load("lorenz").problem
    one, two = (cf.multistart(problem, starts=2, rng=1, start_strategy="soft", workers=n) for n in (1, 2))
    assert problems.load("lorenz").reference.is_reached(one.best.chi2)
    assert [row.chi2 for row in one.starts] == [row.chi2 for row in two.starts]


def test_mistakes():
    with pytest.raises(cf.InputError, match="ramp is 'steep'; choose 'long' or 'short'"):
        cf.SoftStart(ramp="steep")
    problem = problems.load("lorenz").problem
    with pytest.raises(cf.InputError, match="'q' is not estimated"):
        cf.fit(problem, start=cf.SoftStart({"q": 1.0}))


def test_out_of_time_the_start_is_the_answer():
    problem = problems.load("lorenz").problem
    result = cf.fit(problem, start="soft", max_time=1e-3)
    assert not result.success
    assert result.status is cf.Status.MAX_TIME
    assert result.parameters == pytest.approx(dict.fromkeys("srb", 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
def test_hits_from_starts_over_decades(name):
    """The best of 50 draws each; measured with other seeds: 8, 6, 7, 4, 3 and 8 of 8 by the better ramp."""
    benchmark = problems.load(name)
    compiled_problem = benchmark.problem.posed
    rough = cf.SingleShooting(cf.IntegratorOptions(relative_tolerance=1e-6, absolute_tolerance=1e-8))
    screening = rough.transcribe(compiled_problem, compiled_problem.guess)
    hits = 0
    for seed in range(100, 108):
        rng = np.random.default_rng(seed)
        thetas = [compiled_problem.theta_from(benchmark.draw_start(rng)) for _ in range(50)]
        costs = [evaluation.cost if (evaluation := screening.evaluate(theta)).ok else np.inf for theta in thetas]
        best = compiled_problem.to_natural(thetas[int(np.argmin(costs))])
        start = dict(zip(compiled_problem.names, best.tolist(), strict=True))
        ramps = ("long", "short")
        results = (cf.fit(benchmark.problem, start=cf.SoftStart(start, ramp), retry=False) for ramp in ramps)
        hits += any(benchmark.reference.is_reached(result.chi2) for result in results if result.success)
    assert hits >= {"goodwin": 2, "repressilator": 2}.get(name, 5)
