"""Starts by matching: what cannot be felt is found, and equations are matched to trajectories without integration."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import casadi as ca
import numpy as np
import pytest

import castfit as cf
from castfit import problems
from castfit._support.status import InputError, Status
from castfit.fit.start.matching import MatchedEquations, match_gradients
from castfit.fit.strategies import insensitive_quantities
from castfit.problems import exact_trajectory
from castfit.solve.penalty_homotopy import RelaxationLevel, RelaxedProblem
from castfit.solve.solution import CountingProblem
from castfit.transcribe.trajectory import start_trajectory
from tests.builders import everything, lotka_volterra

OPTIONS = cf.IntegratorOptions()
SINGLE, MULTIPLE, COLLOCATION = cf.SingleShooting(), cf.MultipleShooting(10), cf.Collocation(elements="data")


def felt_nothing_of(transcription, problem, theta=None):
    staged = transcription.transcribe(problem, problem.guess if theta is None else theta)
    return insensitive_quantities(staged, staged.linearize(staged.start))


def chain_problem(times, unit=1.0, **parameters):
    """a -> b -> c with rates 0.9 and 0.4, all states measured without noise."""
    a, b, c = cf.symbols("a b c")
    k1, k2 = cf.symbols("k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b, c: k2 * b}, parameters=[k1, k2])
    initial = {"a": unit, "b": 0.0, "c": 0.0}
    exact = exact_trajectory(model, parameters={"k1": 0.9, "k2": 0.4}, initial=initial, times=np.append(0.0, times))
    data = {name: values[1:] for name, values in exact.items()}
    return cf.Problem(
        model, cf.Experiment(data, time=times, initial=initial), parameters={"k1": 0.1, "k2": 3.0, **parameters}
    )


# ------------------------------------------------------------------------------------------------------------ unfelt


@pytest.mark.parametrize("transcription", [SINGLE, MULTIPLE])
def test_reactions_that_are_over_at_once_are_not_felt(transcription):
    problem = problems.load("alpha_pinene").problem
    assert felt_nothing_of(transcription, problem) == ("p3", "p4", "p5")
    reference_theta = problem.theta_from(problems.load("alpha_pinene").reference.parameters)
    assert felt_nothing_of(transcription, problem, reference_theta) == ()


def test_collocation_feels_them_in_its_equations():
    assert felt_nothing_of(COLLOCATION, problems.load("alpha_pinene").problem) == ()


def test_rate_of_a_substance_that_is_never_there_is_felt_by_nodes_from_data_only():
    benchmark = problems.load("gasoil")
    theta = benchmark.problem.theta_from(benchmark.starts["cops"])  # all rates zero
    assert felt_nothing_of(SINGLE, benchmark.problem, theta) == ("p2",)
    assert felt_nothing_of(MULTIPLE, benchmark.problem, theta) == ()


@pytest.mark.parametrize("transcription", [SINGLE, MULTIPLE, COLLOCATION])
@pytest.mark.parametrize("unit", [1.0, 1e-12, 1e9])
def test_insensitive_quantities_do_not_depend_on_units(transcription, unit):
    problem = chain_problem(np.arange(1.0, 5.0), unit)
    options = replace(OPTIONS, absolute_tolerance=1e-11 * unit)
    assert felt_nothing_of(replace(transcription, integrator=options), problem) == ()


@pytest.mark.parametrize("sigma", [1e-8, 1e6])
def test_insensitive_quantities_do_not_depend_on_the_noise(sigma):
    """x is measured, y is not: in multiple shooting the rate of y shows only in the gaps of y."""
    x, y, k, m = cf.symbols("x y k m")
    model = cf.Model({x: -k * x, y: m * x}, parameters=[k, m], initial={x: 1.0, y: 0.0})
    experiment = cf.Experiment({"x": [0.6, 0.4]}, time=[1.0, 2.0], sigma=sigma)
    with pytest.raises(InputError, match="'m'"):  # nothing measured depends on it at all
        cf.Problem(model, experiment, parameters={"k": 0.5, "m": 0.5})
    late = cf.Model({x: -k * x + 1e-4 * y, y: m * x}, parameters=[k, m], initial={x: 1.0, y: 0.0})
    problem = cf.Problem(late, experiment, parameters={"k": 0.5, "m": 0.5})
    assert felt_nothing_of(MULTIPLE, problem) == ()
    assert felt_nothing_of(SINGLE, problem) == ()


def test_insensitive_quantities_exclude_quantities_with_a_prior():
    guess = {"k2": cf.Parameter(2000.0, prior=cf.Normal(2000.0, 500.0))}
    times = np.arange(1.0, 5.0)
    assert felt_nothing_of(SINGLE, chain_problem(times, k1=1000.0, k2=2000.0)) == ("k1", "k2")
    assert felt_nothing_of(SINGLE, chain_problem(times, k1=1000.0, **guess)) == ("k1",)


@pytest.mark.parametrize("transcription", [SINGLE, MULTIPLE, COLLOCATION])
def test_everything_is_felt_in_a_problem_with_all_features(transcription):
    assert felt_nothing_of(transcription, everything()) == ()


# ---------------------------------------------------------------------------------------------------------- matching


def test_dense_data_without_noise_give_the_parameters():
    errors = []
    for n in (10, 20, 40):
        problem = chain_problem(np.linspace(0, 4, n + 1)[1:])
        estimates = problem.to_natural(match_gradients(problem, problem.guess, "data", OPTIONS))
        errors.append(np.abs(estimates - [0.9, 0.4]).max())
    assert errors[-1] < 2e-3
    assert errors[0] > 2 * errors[1] > 4 * errors[2]  # the interpolation's error


def test_start_does_not_matter_where_the_equations_are_linear():
    problem = chain_problem(np.linspace(0.4, 4, 10))
    first_theta = match_gradients(problem, problem.guess, "data", OPTIONS)
    second_theta = match_gradients(problem, problem.theta_from({"k1": 300.0, "k2": 0.0}), "data", OPTIONS)
    assert np.allclose(first_theta, second_theta, rtol=1e-4)


def test_bounds_scales_and_fixed_values_are_respected():
    times = np.linspace(0.4, 4, 10)
    bounded = chain_problem(times, k1=cf.Parameter(0.1, lower=0.0, upper=0.7))
    assert bounded.to_natural(match_gradients(bounded, bounded.guess, "data", OPTIONS))[0] == 0.7
    logarithmic = chain_problem(times, k1=cf.Parameter(0.1, scale="log", lower=1e-3), k2=cf.Parameter(0.4, fixed=True))
    assert logarithmic.names == ("k1",)
    assert np.allclose(
        logarithmic.to_natural(match_gradients(logarithmic, logarithmic.guess, "data", OPTIONS)), 0.9, rtol=0.05
    )


def test_equations_of_simulated_states_do_not_hold_the_parameters_back():
    """Only a is measured: b and c agree with the guess of k1, whatever that is, and tell nothing about it."""
    problem, times = chain_problem(np.linspace(0.4, 4, 10)), np.linspace(0.4, 4, 10)
    experiment = cf.Experiment({"a": np.exp(-0.9 * times)}, time=times, initial={"a": 1.0, "b": 0.0, "c": 0.0})
    parameters = {"k1": 0.1, "k2": cf.Parameter(0.4, fixed=True)}
    partial_problem = cf.Problem(problem.model, experiment, parameters=parameters)
    assert np.allclose(
        partial_problem.to_natural(match_gradients(partial_problem, partial_problem.guess, "data", OPTIONS)),
        0.9,
        rtol=0.05,
    )
    assert np.array_equal(
        match_gradients(partial_problem, partial_problem.guess, "simulation", OPTIONS), partial_problem.guess
    )


def test_states_may_be_given_by_hand():
    problem, times = chain_problem(np.linspace(0.4, 4, 10)), np.linspace(0, 4, 50)
    by_hand = {"a": (times, np.exp(-0.8 * times))}
    theta = match_gradients(problem, problem.guess, by_hand, OPTIONS)
    assert np.allclose(problem.to_natural(theta), [0.8, 3.0], rtol=0.01)  # k2 does not show in a
    trajectory = start_trajectory(problem, problem.guess, by_hand, OPTIONS)
    trajectory_theta = match_gradients(problem, problem.guess, trajectory, OPTIONS)
    assert (
        np.abs(problem.to_natural(trajectory_theta) - [0.1, 3.0]).max()
        < np.abs(problem.to_natural(trajectory_theta) - [0.8, 3.0]).max()
    )


def test_local_parameters_are_matched_to_their_own_experiment():
    times = np.linspace(0.4, 4, 10)
    (first_experiment,) = chain_problem(times).experiments
    exact = np.exp(-1.5 * times)
    second_experiment = cf.Experiment({"a": exact}, time=times, initial={"a": 1.0, "b": 0.0, "c": 0.0}, name="second")
    first_experiment = cf.Experiment(
        {"a": np.exp(-0.5 * times)}, time=times, initial={"a": 1.0, "b": 0.0, "c": 0.0}, name="first"
    )
    problem = cf.Problem(
        chain_problem(times).model,
        [first_experiment, second_experiment],
        parameters={"k1": cf.Parameter(0.1, local=True), "k2": cf.Parameter(0.4, fixed=True)},
    )
    estimates = dict(
        zip(problem.names, problem.to_natural(match_gradients(problem, problem.guess, "data", OPTIONS)), strict=True)
    )
    assert np.allclose(list(estimates.values()), [0.5, 1.5], rtol=0.05)


def test_problems_with_all_features_are_matched_within_their_bounds():
    problem = everything()
    theta = match_gradients(problem, problem.guess, "data", OPTIONS)
    lower, upper = problem.bounds
    assert theta.shape == problem.guess.shape
    assert ((theta >= lower) & (theta <= upper)).all()


def test_a_start_that_cannot_be_evaluated_stays():
    x, k = cf.symbols("x k")
    problem = cf.Problem(
        cf.Model({x: -k * ca.sqrt(x - 2.0)}, parameters=[k]),
        cf.Experiment({"x": [0.5, 0.3, 0.2]}, time=[1.0, 2.0, 3.0], initial={"x": 1.0}),
        parameters={"k": 0.5},
    )
    assert np.array_equal(match_gradients(problem, problem.guess, "data", OPTIONS), problem.guess)


# --------------------------------------------------------------------------------------------------------- in a fit


def test_fit_starts_by_matching_on_demand():
    benchmark = problems.load("alpha_pinene")
    result = cf.fit(benchmark.problem, SINGLE, cf.Ipopt(hessian="gauss-newton"), start="matching", max_time=20)
    assert benchmark.reference.is_matched(result.values)
    with pytest.raises(
        InputError,
        match="start is 'match'; give a mapping from names to values, a Result, 'matching', 'decomposed' or 'soft'",
    ):
        cf.fit(benchmark.problem, start="match")


def test_fit_reports_a_changed_start():
    benchmark = problems.load("gasoil")
    result = cf.fit(benchmark.problem, SINGLE, start=benchmark.starts["cops"])
    assert result.status is Status.CONVERGED
    assert benchmark.reference.is_reached(result.chi2)
    assert "the fit does not depend on p2; the search started from the measured states." in result.message


def test_there_is_a_second_start_only_where_all_states_are_measured():
    assert second_start_of(lotka_volterra()) is not None
    x, y = cf.symbols("x y")
    k = cf.symbols("k1 k2 k3 k4")
    model = cf.Model({x: -k[0] * x + k[1] * x * y, y: k[2] * y - k[3] * x * y}, parameters=k)
    half = cf.Experiment({"x": [0.58, 1.48, 1.94, 1.27]}, time=[1, 2, 3, 4], initial={"x": 0.4, "y": 1.0})
    assert second_start_of(cf.Problem(model, half, parameters=dict.fromkeys(model.parameters, 0.8))) is None


def second_start_of(problem):
    """What a fit tells its solver of another start."""
    second_starts = []

    class Spy:
        label = "spy"

        def solve(self, staged, control, *, warm=False):
            second_starts.append(control.second_start)
            return CountingProblem(staged).solution(staged.start, Status.MAX_ITERATIONS)

    cf.fit(problem, MULTIPLE, Spy())
    return second_starts[0]


@pytest.mark.parametrize("name", ["calcium", "three_step", "batch_reactor", "methanol"])
def test_equations_in_theta_are_those_of_the_whole_with_the_states_held(name):
    problem = cf.problems.load(name).problem.posed
    staged = cf.Collocation(elements="data").transcribe(problem, problem.guess).explicit()
    moving = np.arange(staged.layout.n_v) < staged.layout.n_theta
    lower, upper = (np.where(moving, bound, staged.start) for bound in (staged.lower, staged.upper))
    restricted_problem = staged.restricted(lower=lower, upper=upper)
    soft, linearization = (
        RelaxedProblem(restricted_problem, RelaxationLevel(0.065, 1.0)),
        restricted_problem.linearize(restricted_problem.start),
    )
    is_fixed = lower == upper
    full_equations, theta_equations = (
        soft.equations(linearization),
        MatchedEquations(restricted_problem).equations(linearization),
    )
    np.testing.assert_allclose(theta_equations.gradient[moving], full_equations.gradient[moving], rtol=1e-10)
    expected, actual = full_equations.solve(1e-3, is_fixed), theta_equations.solve(1e-3, is_fixed)
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(theta_equations.decrease(actual), full_equations.decrease(expected), rtol=1e-10)


def test_matching_holds_no_matrix_over_all_states():
    """Of a network of 60 states and 20 times one Jacobian by the states of all elements takes 5 MB."""
    n = 60
    x, k = list(cf.symbols(f"x{i}" for i in range(n))), list(cf.symbols(f"k{i}" for i in range(n)))
    model = cf.Model({x[i]: k[i - 1] * x[i - 1] - k[i] * x[i] for i in range(n)}, parameters=k)
    times, truth = np.linspace(0.1, 2, 20), np.linspace(0.5, 2.0, n)
    initial = dict(zip(model.states, np.linspace(2.0, 1.0, n), strict=True))
    exact = cf.simulate(model, times=times, parameters=dict(zip(model.parameters, truth, strict=True)), initial=initial)
    data = cf.Experiment({s: exact[s] for s in model.states}, time=times, sigma=0.01, initial=initial)
    problem = cf.Problem(model, data, parameters=dict.fromkeys(model.parameters, 1.0)).posed
    match_gradients(problem, problem.guess, "data", OPTIONS)  # builds what is built once
    tracemalloc.start()
    theta = match_gradients(problem, problem.guess, "data", OPTIONS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(problem.to_natural(theta), truth, rtol=0.05)
    assert peak < 4e6
