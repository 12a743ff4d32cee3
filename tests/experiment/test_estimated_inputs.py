"""Inputs that are estimated: interpolation, roughness, fits against linear algebra, and what is refused."""

from __future__ import annotations

import itertools
import pickle
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import quad, solve_ivp

import castfit as cf
from tests.builders import refused
from tests.paths import ROOT

KINDS = ("piecewise_constant", "linear", "cubic_spline")
SINGLE = cf.SingleShooting()
METHODS = (SINGLE, cf.MultipleShooting(4), cf.Collocation())
K = 0.5
TIMES = np.linspace(0, 10, 26)[1:]


def labels(methods):
    return [m.label for m in methods]


def driven() -> cf.Model:
    """x' = u - k x."""
    x, u, k = cf.symbols("x u k")
    return cf.Model({x: u - k * x}, parameters=[k], inputs=[u], initial={x: 1.0})


@cache
def measured(seed: int = 3, sigma: float = 0.03) -> np.ndarray:
    fine = np.linspace(0, 10, 201)
    signal = cf.Input.linear(fine, 1.0 + np.sin(fine) * np.exp(-0.1 * fine))
    x = cf.simulate(driven(), {"k": K}, TIMES, inputs={"u": signal})["x"]
    return x + sigma * np.random.default_rng(seed).normal(size=x.size)


def asked(u, *, sigma: float | None = 0.03, k=None, factor: float = 1.0, unit: float = 1.0, **options) -> cf.Problem:
    """Return the question, in other units of time (factor) and of states and input (unit)."""
    x, s, p = cf.symbols("x u k")
    model = cf.Model({x: (s - p * x) / factor}, parameters=[p], inputs=[s], initial={x: unit})
    data = cf.Experiment(
        {"x": unit * measured()}, factor * TIMES, sigma=None if sigma is None else unit * sigma, inputs={"u": u}
    )
    return cf.Problem(model, data, parameters={"k": k or cf.Parameter(K, fixed=True)}, **options)


def knots_of(kind: str, n: int = 12) -> np.ndarray:
    t = np.linspace(0, 10, n + 1)
    return t[:-1] if kind == "piecewise_constant" else t


def design(estimated_input) -> tuple[np.ndarray, np.ndarray]:
    """Return how the data depend on the values at the knots, by Gauss's rule: x = x_0 + A c."""
    decay, (nodes, weights) = np.exp(-K * TIMES), np.polynomial.legendre.leggauss(12)
    ends = np.unique(np.concatenate([estimated_input.knots, TIMES, [0.0, 10.0]]))
    x, states_by_time = np.zeros(estimated_input.knots.size), {}
    for a, b in itertools.pairwise(ends):  # between which the input is a cubic at most
        node_times = a + (b - a) / 2 * (1 + nodes)
        x = x * np.exp(-K * (b - a)) + (b - a) / 2 * (
            weights * np.exp(-K * (b - node_times))
        ) @ estimated_input.interpolation(node_times)
        states_by_time[float(b)] = x
    return decay, np.array([states_by_time[float(t)] for t in TIMES])


@given(kind=st.sampled_from(KINDS), steps=st.lists(st.floats(0.1, 3.0), min_size=5, max_size=9), start=st.floats(-9, 9))
def test_interpolation_passes_through_the_knots_and_keeps_constants(kind, steps, start):
    knots = start + np.cumsum(steps)
    estimated_input = cf.Input.estimated(knots, kind, guess=1.0)
    assert_allclose(estimated_input.interpolation(knots), np.eye(knots.size), atol=1e-9)
    inside = np.linspace(knots[0], knots[-1], 23)
    assert_allclose(estimated_input.interpolation(inside).sum(axis=1), 1.0, atol=1e-9)


@pytest.mark.parametrize("kind", ["linear", "cubic_spline"])
def test_interpolation_is_that_of_the_known_input_of_the_same_kind(kind):
    knots, values = np.array([0.0, 1.0, 2.5, 4.0, 7.0, 8.0]), np.array([1.0, 3.0, -1.0, 0.0, 2.0, 2.5])
    times = np.linspace(0, 8, 41)
    known_input = getattr(cf.Input, kind)(knots, values)
    assert_allclose(
        cf.Input.estimated(knots, kind, guess=0.0).interpolation(times) @ values, known_input(times), atol=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [1, 2])
def test_roughness_is_none_of_what_is_smooth_and_has_no_unit_of_time(kind, order):
    knots = np.array([0.0, 1.0, 2.5, 4.0, 7.0, 8.0])
    estimated_input = cf.Input.estimated(knots, kind, guess=1.0, order=order)
    assert estimated_input.roughness.shape == (knots.size - order, knots.size)
    assert_allclose(estimated_input.roughness @ np.ones(6), 0.0, atol=1e-9)
    if order == 2:
        assert_allclose(estimated_input.roughness @ (3.0 - 2.0 * knots), 0.0, atol=1e-9)
    shifted_input = cf.Input.estimated(2000.0 + 60.0 * knots, kind, guess=1.0, order=order)
    values = np.array([1.0, 3.0, -1.0, 0.0, 2.0, 2.5])
    assert_allclose(
        np.sum((shifted_input.roughness @ values) ** 2), np.sum((estimated_input.roughness @ values) ** 2), rtol=1e-9
    )


def test_roughness_of_a_spline_is_the_integral_of_its_squared_curvature():
    knots, values = np.array([1.0, 2.0, 3.5, 5.0, 8.0, 9.0]), np.array([1.0, 3.0, -1.0, 0.0, 2.0, 2.5])
    estimated_input = cf.Input.estimated(knots, "cubic_spline", guess=1.0)
    spline = cf.Input.cubic_spline(knots, values)._polynomial
    total = sum(quad(lambda t: float(spline(t, 2)) ** 2, a, b)[0] for a, b in itertools.pairwise(knots))
    assert_allclose(np.sum((estimated_input.roughness @ values) ** 2), total * 8.0**3, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS, ids=labels(METHODS))
def test_estimates_and_errors_are_those_of_penalised_linear_algebra(kind, method):
    weight = 0.002
    estimated_input = cf.Input.estimated(knots_of(kind), kind, guess=1.0, smoothness=weight)
    result = cf.fit(asked(estimated_input), method)
    assert result.success, result.message
    decay, A = design(estimated_input)
    E, R = A / 0.03, np.sqrt(weight) * estimated_input.roughness
    H = E.T @ E + R.T @ R
    y = (measured() - decay) / 0.03
    best = np.linalg.solve(H, E.T @ y)
    residuals = y - E @ best
    assert_allclose(result.theta, best, atol=2e-5)
    assert_allclose(list(result.standard_errors.values()), np.sqrt(np.diag(np.linalg.inv(H))), rtol=1e-3)
    n_effective = np.trace(np.linalg.solve(H, E.T @ E))
    assert_allclose(result.chi2, residuals @ residuals, rtol=1e-4)
    assert result.dof == round(TIMES.size - n_effective)
    assert_allclose(result.effective["u"], n_effective, rtol=1e-4)
    assert_allclose(result.neg2loglik, residuals @ residuals + TIMES.size * np.log(2 * np.pi * 0.03**2), rtol=1e-4)
    assert_allclose(result.aic - result.neg2loglik, 2 * n_effective, rtol=1e-4)


def restricted(log_weight: float, E, y, R, variance: float | None) -> float:
    """Return -2 log of the density of the data with all values integrated over; the variance profiled if unknown."""
    S = np.exp(log_weight) * R.T @ R
    H = E.T @ E + S
    best = np.linalg.solve(H, E.T @ y)
    total = np.sum((y - E @ best) ** 2) + best @ S @ best
    spread = np.linalg.slogdet(H)[1] - R.shape[0] * log_weight
    free = y.size - (R.shape[1] - R.shape[0])
    return total / variance + spread if variance else free * np.log(total) + spread


@pytest.mark.parametrize("is_sigma_known", [True, False])
def test_the_weight_is_that_of_the_largest_restricted_likelihood(is_sigma_known):
    estimated_input = cf.Input.estimated(knots_of("linear", 20), guess=1.0)
    result = cf.fit(asked(estimated_input, sigma=0.03 if is_sigma_known else None))
    decay, A = design(estimated_input)
    unit, variance = (0.03, 1.0) if is_sigma_known else (1.0, None)
    E, y = A / unit, (measured() - decay) / unit
    grid = np.linspace(-25, 15, 4001)
    values = [restricted(g, E, y, estimated_input.roughness, variance) for g in grid]
    best = float(np.exp(grid[int(np.argmin(values))]))
    weight = result.smoothness["u"]
    if not is_sigma_known:  # there the penalty is relative to the variance of the data
        weight = weight * result.sigmas["sigma"] ** 2
    assert_allclose(np.log(weight), np.log(best), atol=0.05)


def test_the_choice_depends_on_no_unit():
    knots = knots_of("linear", 20)
    reference_result = cf.fit(asked(cf.Input.estimated(knots, guess=1.0)))
    for factor, unit in ((60.0, 1e4), (1e-3, 1e-3)):
        scaled_result = cf.fit(asked(cf.Input.estimated(factor * knots, guess=unit), factor=factor, unit=unit))
        assert_allclose(scaled_result.theta, unit * reference_result.theta, rtol=2e-3, atol=2e-3 * unit)
        assert_allclose(scaled_result.effective["u"], reference_result.effective["u"], rtol=2e-3)
        assert_allclose(scaled_result.smoothness["u"] * unit**2, reference_result.smoothness["u"], rtol=0.02)


def test_problems_and_results_survive_pickling_and_saving(tmp_path):
    problem = asked(cf.Input.estimated(knots_of("cubic_spline"), "cubic_spline", guess=1.0, scale="log"))
    pickled_problem = pickle.loads(pickle.dumps(problem))
    assert pickled_problem.names == problem.names
    compiled_problem = pickle.loads(pickle.dumps(problem.posed))
    result = cf.fit(problem, SINGLE)
    assert_allclose(cf.fit(pickled_problem, SINGLE).theta, result.theta, rtol=1e-6)
    assert_allclose(cf.fit(compiled_problem, SINGLE).theta, result.theta, rtol=1e-6)
    result.save(tmp_path / "result.json")
    loaded = cf.Result.load(tmp_path / "result.json").with_problem(pickled_problem)
    assert loaded.smoothness == result.smoothness
    assert loaded.effective == result.effective
    assert_allclose(loaded.predict()["experiment 1"]["x"], result.predict()["experiment 1"]["x"], rtol=1e-9)


def test_estimated_input_lists_all_mistakes():
    messages = ("kind is 'wavy'", "knots must increase strictly; look at t = 1", "guess is missing")
    with refused(*messages, "smoothness is -1", "order is 3", "per_experiment is 'yes'"):
        cf.Input.estimated([0, 2, 1], "wavy", smoothness=-1, order=3, per_experiment="yes")
    with refused("3 knots given; this kind needs at least 4", "the guess 0 is outside"):
        cf.Input.estimated([0, 1, 2], "cubic_spline", guess=0.0, lower=1.0)
    with refused("scale='log' needs a positive guess"):
        cf.Input.estimated([0, 1, 2], guess=0.0, scale="log")
    with refused("guess has 2 numbers for 3 knots"):
        cf.Input.estimated([0, 1, 2], guess=[1.0, 2.0])


def test_problem_lists_all_mistakes_of_estimated_inputs():
    with refused("input 'u' is given on [1, 8] but the experiment runs over [0, 10]"):
        asked(cf.Input.estimated([1, 4, 8], guess=1.0))
    with refused(
        "the knot 50 of 'u' lies behind the last measurement at 10", "the knot -8 of 'u' lies before the start"
    ):
        asked(cf.Input.estimated([-8, -4, 4, 12, 50], guess=1.0))
    with refused("and a value holds from its knot on"):
        asked(cf.Input.estimated([0, 5, 10], "piecewise_constant", guess=1.0))
    with refused("input 'u' is to be estimated, which only experiments"):
        cf.simulate(driven(), {"k": 1.0}, [1.0], inputs={"u": cf.Input.estimated([0, 1], guess=1.0)})


def scipy_course(knots, values, log: bool) -> np.ndarray:
    g = cf.Input.linear(knots, np.log(values) if log else values)
    u = (lambda t: np.exp(g(t))) if log else g
    solution = solve_ivp(lambda t, x: u(t) - K * x, (0, 10), [1.0], t_eval=TIMES, rtol=1e-10, atol=1e-10, max_step=0.1)
    return solution.y[0]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_simulations_follow_the_values_at_the_knots(scale):
    knots, values = np.array([0.0, 2.0, 5.0, 10.0]), np.array([1.0, 3.0, 0.5, 2.0])
    problem = asked(cf.Input.estimated(knots, guess=1.0, scale=scale))
    assert problem.names == ("u(0)", "u(2)", "u(5)", "u(10)")
    actual = cf.simulate(problem, dict(zip(problem.names, values, strict=True)))["experiment 1"]["x"]
    assert_allclose(actual, scipy_course(knots, values, scale == "log"), rtol=1e-5)


def two_experiments(u, v, **options) -> cf.Problem:
    x, s, k = cf.symbols("x u k")
    model = cf.Model({x: s - k * x}, parameters=[k], inputs=[s], initial={x: 1.0}, **options)
    data = [cf.Experiment({"x": measured(seed)}, TIMES, sigma=0.03, inputs={"u": w}) for seed, w in ((1, u), (2, v))]
    return cf.Problem(model, data, parameters={"k": cf.Parameter(K, fixed=True)})


def test_experiments_share_an_input_or_have_their_own():
    knots = knots_of("linear", 8)
    shared = cf.Input.estimated(knots, guess=1.0)
    shared_problem = two_experiments(shared, cf.Input.estimated(knots, guess=1.0))
    assert len(shared_problem.names) == 9
    local_inputs = [cf.Input.estimated(knots, guess=1.0, per_experiment=True) for _ in range(2)]
    local_problem = two_experiments(*local_inputs)
    assert len(local_problem.names) == 18
    assert local_problem.names[:2] == ("u(0)[experiment 1]", "u(1.25)[experiment 1]")
    named_problem = two_experiments(shared, cf.Input.estimated(knots[::2], guess=1.0, name="other"))
    assert len(named_problem.names) == 14
    assert "other(2.5)" in named_problem.names
    result = cf.fit(local_problem, SINGLE)
    assert set(result.smoothness) == {"u"}  # one weight for both
    bands = result.estimated_inputs([0.0, 5.0])
    assert bands["experiment 1"]["u"][1] == pytest.approx(result.values["u(5)[experiment 1]"])
    assert bands["experiment 2"]["u"][1] == pytest.approx(result.values["u(5)[experiment 2]"])
    with refused("the estimated input 'u' is given in different ways"):
        two_experiments(shared, cf.Input.estimated(knots[::2], guess=1.0))


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_one_experiment_may_know_what_another_estimates(scale):
    knots = knots_of("linear", 8)
    signal = cf.Input.linear(np.linspace(0, 10, 51), 1.0 + np.sin(np.linspace(0, 10, 51)) ** 2)
    mixed = two_experiments(cf.Input.estimated(knots, guess=1.0, scale=scale), signal)
    single_problem = mixed.posed.with_experiments(["experiment 1"])
    assert_allclose(cf.fit(mixed, SINGLE).theta, cf.fit(single_problem, SINGLE).theta, atol=2e-4)
    simulation = cf.simulate(mixed, {n: 2.0 for n in mixed.names})
    direct = cf.simulate(driven(), {"k": K}, TIMES, inputs={"u": signal})["x"]
    assert_allclose(simulation["experiment 2"]["x"], direct, rtol=1e-6)
    constant = cf.simulate(driven(), {"k": K}, TIMES, inputs={"u": 2.0})["x"]
    assert_allclose(simulation["experiment 1"]["x"], constant, rtol=1e-6)


def test_bands_follow_from_the_covariance_of_the_values():
    estimated_input = cf.Input.estimated(knots_of("cubic_spline", 8), "cubic_spline", guess=1.0)
    result = cf.fit(asked(estimated_input), SINGLE)
    t = np.linspace(0, 10, 7)
    (band,) = result.estimated_inputs(t, confidence_level=0.9).values()
    basis = estimated_input.interpolation(t)
    assert_allclose(band["u"], basis @ result.theta, rtol=1e-9)
    half = 1.6448536 * np.sqrt(np.diag(basis @ result.covariance @ basis.T))
    assert_allclose(band["u upper"] - band["u"], half, rtol=1e-6)
    assert_allclose(band["u"] - band["u lower"], half, rtol=1e-6)
    positive = cf.fit(asked(cf.Input.estimated(knots_of("linear", 8), guess=1.0, scale="log")), SINGLE)
    (band,) = positive.estimated_inputs().values()
    assert (band["u lower"] > 0).all()
    assert_allclose(band["u upper"] * band["u lower"], band["u"] ** 2, rtol=1e-9)
    low, high = positive.confidence_intervals()["u(5)"]
    index = int(np.argmin(np.abs(band["time"] - 5.0)))
    assert_allclose((band["u lower"][index], band["u upper"][index]), (low, high), rtol=1e-9)
    with refused("range from -1 to 5"):
        positive.estimated_inputs([-1, 5])
    with refused("the problem has no estimated input"):
        cf.fit(asked(cf.Input.constant(1.0), k=cf.Parameter(0.4))).estimated_inputs()


def test_a_value_may_be_fixed_bounded_and_known_beforehand():
    estimated_input = cf.Input.estimated(knots_of("linear", 8), guess=1.0)
    x, u, k = cf.symbols("x u k")
    model = cf.Model({x: u - k * x}, parameters=[k], inputs=[u], initial={x: 1.0})
    data = cf.Experiment({"x": measured()}, TIMES, sigma=0.03, inputs={"u": estimated_input})
    fixed = cf.Problem(
        model,
        data,
        parameters={"k": cf.Parameter(K, fixed=True), "u(0)": cf.Parameter(0.7, fixed=True)},
        priors={"u(10)": cf.Normal(0.0, 1e-3)},
    )
    assert "u(0)" not in fixed.names
    result = cf.fit(fixed, SINGLE)
    (band,) = result.estimated_inputs([0.0, 10.0]).values()
    assert band["u"][0] == band["u lower"][0] == 0.7
    assert abs(band["u"][1]) < 0.01
    bounded_result = cf.fit(asked(cf.Input.estimated(knots_of("linear", 8), guess=1.0, lower=0.9)), SINGLE)
    assert bounded_result.active
    assert min(bounded_result.values.values()) == pytest.approx(0.9)
    influence = cf.prior_influence(result)
    assert influence.likelihood.smoothness == result.smoothness  # the penalty stays: it is no prior
    assert influence.likelihood.values["u(10)"] != pytest.approx(0.0, abs=0.05)
    with refused("the problem has no priors"):
        cf.prior_influence(bounded_result)


def test_a_steady_state_before_sees_the_input_at_the_start():
    x, u, k = cf.symbols("x u k")
    model = cf.Model({x: u - k * x}, parameters=[k], inputs=[u])
    knots, values = np.array([-2.0, 1.0, 4.0, 10.0]), np.array([1.0, 2.5, 0.5, 1.5])
    for scale, previous_inputs in (("linear", {}), ("log", {}), ("linear", {"u": 0.3})):
        estimated_input = cf.Input.estimated(knots, guess=1.0, scale=scale)
        start = cf.steady_state(inputs=previous_inputs, initial={"x": 1.0})
        data = cf.Experiment({"x": measured()}, TIMES, sigma=0.03, inputs={"u": estimated_input}, initial=start)
        problem = cf.Problem(model, data, parameters={"k": cf.Parameter(K, fixed=True)})
        simulation = cf.simulate(problem, dict(zip(problem.names, values, strict=True)), np.array([0.0, 1.0]))
        initial_input = float((np.exp if scale == "log" else np.asarray)(
            np.interp(0.0, knots, np.log(values) if scale == "log" else values)))  # fmt: skip
        assert simulation["experiment 1"]["x"][0] == pytest.approx(
            (previous_inputs.get("u", initial_input)) / K, rel=1e-6
        )


def test_delays_events_and_constraints_know_an_estimated_input():
    x, u, y = cf.symbols("x u y")
    model = cf.Model(
        {x: cf.delay(u, 1.0, order=8) - 0.5 * x, y: 0.0 * y},
        inputs=[u],
        initial={x: 1.0, y: 0.0},
        outputs={"now": 2 * u},
    )
    knots, values = np.array([0.0, 2.0, 6.0, 10.0]), np.array([1.0, 2.5, 0.5, 1.5])
    known_input = cf.Input.linear(knots, values)
    simulations = []
    for signal in (known_input, cf.Input.estimated(knots, guess=values, smoothness=None)):
        data = cf.Experiment(
            {"x": measured()}, TIMES, sigma=0.03, inputs={"u": signal}, events=[cf.Event(3.0, {y: y + 10 * u})]
        )
        problem = cf.Problem(model, data, constraints=[cf.Constraint(u, upper=50.0)])
        simulations.append(cf.simulate(problem)["experiment 1"])
    for name in ("x", "y", "now"):
        assert_allclose(simulations[1][name], simulations[0][name], rtol=1e-5, atol=1e-7)
    u = cf.symbols("u")
    limited = asked(cf.Input.estimated(knots, guess=1.0), constraints=[cf.Constraint(u, upper=1.2)])
    result = cf.fit(limited, "collocation", cf.Ipopt())
    (band,) = result.estimated_inputs(TIMES).values()
    assert band["u"].max() == pytest.approx(1.2, abs=1e-4)


def test_the_receptor_of_stat5_is_stationary_by_another_integration():
    benchmark = cf.problems.load("stat5", receptor="estimated")
    result = cf.fit(benchmark.problem)
    assert benchmark.reference.is_matched({**result.parameters, **result.initial_states})
    table, p = benchmark.problem.experiments[0], np.array([benchmark.reference.parameters[n] for n in result.names])
    t, (absolute, relative) = table.data["receptor"][0], (0.0274, 0.1)
    receptor = table.data["receptor"][1].ravel()

    def chi2(p: np.ndarray) -> float:
        values_by_name = dict(zip(result.names, p, strict=True))
        u = np.array([values_by_name[f"u({s:g})"] for s in t])

        def rates(s, y):
            x1, x2, x3, _, *q = y
            active = values_by_name["k1"] * x1 * np.interp(s, t, u)
            filters = 8 / values_by_name["tau"] * (np.array([x3, *q[:-1]]) - q)
            back = values_by_name["k2"] * q[-1]
            return [
                back - active,
                active - x2**2,
                x2**2 - values_by_name["k2"] * x3,
                values_by_name["k2"] * x3 - back,
                *filters,
            ]

        y = np.zeros((t.size, 12))
        y[0, 0] = values_by_name["x1(0)"]
        for i, (a, b) in enumerate(itertools.pairwise(t)):  # the input has a kink at every time
            y[i + 1] = solve_ivp(rates, (a, b), y[i], rtol=1e-9, atol=1e-11, method="LSODA").y[:, -1]
        predictions = {"y1": 0.33 * (y[:, 1] + y[:, 2]), "y2": 0.26 * y[:, :3].sum(axis=1)}
        total = np.sum(((u - receptor) / (absolute + relative * receptor)) ** 2)
        for name, prediction in predictions.items():
            times, values = table.data[name]
            rows = np.searchsorted(t, times)
            total += np.nansum(((prediction[rows] - values.ravel()) / table.sigma[name].ravel()) ** 2)
        return float(total)

    assert chi2(p) == pytest.approx(benchmark.reference.objective, rel=1e-5)
    errors = np.array([result.standard_errors[n] for n in result.names])
    for j in range(p.size):
        step = 0.05 * errors[j] * (np.arange(p.size) == j)
        slope = (chi2(p + step) - chi2(p - step)) / 0.1  # by standard errors; the curvature is at least 2
        assert abs(slope) < 0.02, result.names[j]


def test_the_problem_of_a_result_has_the_chosen_weights():
    problem = asked(cf.Input.estimated(knots_of("linear", 20), guess=1.0), k=cf.Parameter(K, prior=cf.Normal(K, 0.05)))
    for question in (problem, problem.posed):
        result = cf.fit(question, SINGLE)
        weight = result.smoothness["u"]
        (term,) = result.problem.posed.smoothness_penalties
        assert (term.weight, term.chosen) == (weight, False)
        refit = cf.fit(result.problem, SINGLE, start=result)
        assert refit.smoothness == result.smoothness
        assert_allclose(refit.theta, result.theta, atol=1e-4)
    with refused("'v' is no estimated input", "the weight of 'u' is -1"):
        problem.smoothed({"v": 1.0, "u": -1})


def test_predictions_of_expressions_know_the_input():
    problem = asked(cf.Input.estimated(knots_of("linear", 8), guess=1.0))
    result = cf.fit(problem, SINGLE)
    u, x = cf.symbols("u x")
    (prediction,) = result.predict(TIMES, outputs={"gain": 3 * u + x}, bands="linear").values()
    (band,) = result.estimated_inputs(TIMES).values()
    assert_allclose(prediction["gain"], 3 * band["u"] + prediction["x"], rtol=1e-6)
    pickled_problem = pickle.loads(pickle.dumps(problem.posed))
    assert pickled_problem.model.added.keys() == {"u"}


def test_pictures_show_the_input(tmp_path):
    result = cf.fit(
        asked(cf.Input.estimated(knots_of("piecewise_constant", 8), "piecewise_constant", guess=1.0)), SINGLE
    )
    figure = result.plot(tmp_path / "fit.png")
    titles = [axes.get_title(loc="left") for axes in figure.get_axes()]
    assert any(title.startswith("u: ") and "effective" in title for title in titles)
    assert len(cf.plots.inputs(result).get_axes()) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bands_of_the_epidemic_cover_the_truth():
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import unknown_infectivity as example
    finally:
        sys.path.pop(0)
    inside = []
    for seed in range(50):
        result = cf.fit(example.problem(example.draw(np.random.default_rng(seed))))
        assert result.success, result.message
        inside.append(example.inside(result))
    shares = np.array(inside)
    assert shares.mean() >= 0.9  # of all times and data sets; 95 % are asked for
    assert shares.mean(axis=0).min() >= 0.8  # of the data sets, at the time at which the truth bends most
