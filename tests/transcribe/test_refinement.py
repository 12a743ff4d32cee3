"""Error estimates of elements, and meshes that follow from them."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit.experiment.experiment import Experiment
from castfit.experiment.inputs import Input
from castfit.integrate import IntegratorOptions
from castfit.model.model import Model, symbols
from castfit.problem.problem import Problem
from castfit.transcribe.collocation_problem import collocation_problem
from castfit.transcribe.elements import table
from castfit.transcribe.refinement import ElementErrors, element_errors, estimated_errors, refine
from tests.builders import everything
from tests.transcribe.newton import simulate


def growth(times, rate=1.0) -> Problem:
    """x' = k x with k = rate."""
    x, k = symbols("x k")
    experiment = Experiment({"x": np.ones(len(times))}, time=times, initial={"x": 1.0})
    return Problem(Model({x: k * x}, parameters=[k]), experiment, parameters={"k": rate})


def solve(problem, edges, trajectory=None, **options):
    """Simulate by collocation on the given elements."""
    system = problem.model.system

    def flat(t):
        return np.ones((t.size, system.x.numel())), np.ones((t.size, system.z.numel()))

    staged = collocation_problem(problem, [edges], theta=problem.guess, trajectories=[trajectory or flat], **options)
    return staged, simulate(staged, staged.start)


@pytest.mark.parametrize("scheme", ["radau", "legendre"])
def test_errors_are_those_of_the_exact_solution(scheme):
    edges = np.array([0.0, 0.5, 1.25, 2.0])
    staged, v = solve(growth([0.2, 1.25, 1.5, 2.0]), edges, scheme=scheme, degree=2)
    (errors,) = element_errors(staged, v)
    chain = staged.layout.chains[0]
    s, largest = v[chain.nodes][:, 0], np.abs(np.r_[v[chain.nodes].ravel(), v[chain.inner].ravel()]).max()
    exact = s * np.exp(np.diff(edges))
    np.testing.assert_allclose(
        errors.end_errors, np.abs(staged.evaluate(v).values[0].x[:, 0] - exact) / largest, atol=1e-8
    )
    times = np.array([0.2, 1.5])
    inside = np.abs(staged.interpolants(v)[0](times)[0][:, 0] - s[[0, 2]] * np.exp(times - edges[[0, 2]])) / largest
    np.testing.assert_allclose(errors.inside_errors, [inside[0], 0.0, inside[1]], atol=1e-8)
    assert errors.largest == max(errors.end_errors.max(), errors.inside_errors.max())


@pytest.mark.parametrize(("scheme", "degree"), [("radau", 1), ("radau", 2), ("legendre", 1), ("legendre", 2)])
def test_errors_fall_with_the_assumed_orders(scheme, degree):
    errors, tight = [], IntegratorOptions(relative_tolerance=1e-12, absolute_tolerance=1e-14)
    for h in (0.2, 0.1):
        # One element of length h, with a measurement inside where neither scheme is superconvergent.
        staged, v = solve(growth([0.15 * h, h], rate=-1.0), np.array([0.0, h]), scheme=scheme, degree=degree)
        errors.append(element_errors(staged, v, tight)[0])
    chosen = table(scheme, degree)
    assert np.log2(errors[0].end_errors / errors[1].end_errors) == pytest.approx(chosen.order + 1, abs=0.3)
    assert np.log2(errors[0].inside_errors / errors[1].inside_errors) == pytest.approx(degree + 1, abs=0.3)


def test_algebraic_states_and_inputs_are_integrated_with_their_elements():
    x, z, u, k = symbols("x z u k")
    model = Model({x: -k * z}, algebraic={z: z - x + u}, parameters=[k], inputs=[u])
    signal = Input.linear([0.0, 0.35, 2.0], [0.0, 1.0, -1.0])
    experiment = Experiment({"x": [1.0]}, time=[1.0], initial={"x": 1.0}, inputs={"u": signal})
    problem = Problem(model, experiment, parameters={"k": 1.0})
    fine, v = solve(problem, np.linspace(0, 1, 9), degree=4)
    assert element_errors(fine, v)[0].largest < 1e-7
    coarse, v = solve(problem, np.linspace(0, 1, 2), degree=1)
    assert element_errors(coarse, v)[0].largest > 1e-2


@pytest.mark.parametrize("scheme", ["radau", "legendre"])
def test_algebraic_states_that_nobody_measures_are_compared_too(scheme):
    """z = exp(30 x) errs by thirty times what x does; if it is constrained, between the collocation points too."""
    x, z, k = symbols("x z k")
    model = Model({x: k * x}, algebraic={z: ca.log(z) - 30 * x}, parameters=[k])
    experiment = Experiment({"x": np.ones(3)}, time=[0.3, 0.65, 1.0], initial={"x": 0.2})
    edges = np.array([0.0, 0.5, 1.0])
    problem = Problem(model, experiment, parameters={"k": 1.0})

    def guess_trajectory(t):
        return 0.2 * np.exp(t)[:, None], np.exp(6 * np.exp(t))[:, None]

    staged, v = solve(problem, edges, guess_trajectory, degree=2, scheme=scheme)
    (errors,), (estimated,) = element_errors(staged, v), estimated_errors(staged, v)
    y = staged.elements[0].states(*staged.layout.chains[0].local(v)[1:])
    exact_states = y[:, 0, 0] * np.exp(staged.table.points[-1] * np.diff(edges))
    off = np.abs(y[:, -1, 1] - np.exp(30 * exact_states)) / np.abs(y[..., 1]).max()
    measured_errors = errors.end_errors if scheme == "radau" else errors.inside_errors
    assert measured_errors[1] == pytest.approx(off[1], rel=0.05)
    assert estimated.largest == pytest.approx(errors.largest, rel=0.1)
    bound = Problem(model, experiment, parameters={"k": 1.0}, constraints=[cf.Constraint(z, upper=1e9)])
    staged, v = solve(bound, edges, guess_trajectory, degree=2, scheme=scheme)
    assert element_errors(staged, v)[0].inside_errors.max() > errors.largest


def test_an_element_that_cannot_be_integrated_has_an_infinite_error():
    """x' = x**2 from x = 1 has its pole at t = 1; one coarse element jumps over it."""
    x, k = symbols("x k")
    experiment = Experiment({"x": [1.0]}, time=[2.0], initial={"x": 1.0})
    problem = Problem(Model({x: k * x**2}, parameters=[k]), experiment, parameters={"k": 1.0})
    edges, flat = np.array([0.0, 0.5, 2.0]), (lambda t: (np.ones((t.size, 1)), np.ones((t.size, 0))))
    staged = collocation_problem(problem, [edges], theta=problem.guess, trajectories=[flat])
    v = staged.start.copy()
    v[staged.layout.chains[0].nodes[1]] = 2.0
    (errors,) = element_errors(staged, v)
    assert np.isfinite(errors.end_errors[0])
    assert np.isinf(errors.end_errors[1])
    np.testing.assert_allclose(refine(edges, errors, 10.0), [0, 0.5, 1.25, 2])


@pytest.mark.parametrize("scheme", ["radau", "legendre"])
@pytest.mark.parametrize("degree", [1, 2, 3, 6])
def test_polynomials_of_higher_degree_show_the_errors_that_integrators_show(scheme, degree):
    """Inputs, algebraic states and points inside included; parameters are fitted to nothing, elements coarse."""
    problem = everything()
    edges = [np.linspace(c.start, c.end, 7) for c in problem.conditions]
    flat = [lambda t: (np.ones((t.size, 2)), np.ones((t.size, 1)))] * 2
    staged = collocation_problem(
        problem.posed, edges, theta=problem.guess, trajectories=flat, degree=degree, scheme=scheme
    )
    v = simulate(staged, staged.start)
    tight = IntegratorOptions(relative_tolerance=1e-12, absolute_tolerance=1e-14)
    for exact, estimated in zip(element_errors(staged, v, tight), estimated_errors(staged, v, tight), strict=True):
        assert exact.largest > 1e-9
        for actual, expected in (
            (estimated.end_errors, exact.end_errors),
            (estimated.inside_errors, exact.inside_errors),
        ):
            np.testing.assert_allclose(actual, expected, rtol=0.1, atol=1e-10)


def test_element_errors_exclude_unsolved_equations_of_the_search():
    staged, v = solve(growth([1.0, 2.0]), np.linspace(0, 2, 5))
    (chain,) = staged.layout.chains
    rough = v.copy()
    rough[chain.inner] += 1e-4 * np.random.default_rng(0).standard_normal(chain.inner.shape)
    (left,), (exact,) = estimated_errors(staged, rough), estimated_errors(staged, v)
    np.testing.assert_allclose(left.end_errors, exact.end_errors, rtol=1e-2)


def test_the_integrator_takes_over_where_polynomials_have_no_values():
    """sin(t - a) / (t - a) where a is one of the points of higher degree; and equations that are singular."""
    x, k, t = symbols("x k t")
    singular_time = table("radau", 5).points[1]
    model = Model({x: k * ca.sin(t - singular_time) / (t - singular_time)}, parameters=[k], time=t)
    experiment = Experiment({"x": [1.0]}, time=[1.0], initial={"x": 0.5})
    problem = Problem(model, experiment, parameters={"k": 1.0})
    staged, v = solve(problem, np.array([0.0, 1.0]))
    (exact,), (estimated_error,) = element_errors(staged, v), estimated_errors(staged, v)
    assert np.isfinite(estimated_error.largest)
    np.testing.assert_array_equal(estimated_error.end_errors, exact.end_errors)
    z = symbols("z")
    singular = Problem(Model({x: k * x}, algebraic={z: z**2 - x}, parameters=[k]), experiment, parameters={"k": 1.0})
    staged = collocation_problem(
        singular.posed, [np.array([0.0, 1.0])], theta=singular.guess,
        trajectories=[lambda t: (np.ones((t.size, 1)), np.zeros((t.size, 1)))],
    )  # fmt: skip
    (estimated_error,) = estimated_errors(staged, staged.start)
    assert estimated_error.largest > 0.1


exponents = st.lists(st.floats(-12, 3), min_size=1, max_size=6)


@given(end=exponents, seed=st.integers(0, 100), degree=st.integers(1, 5), scheme=st.sampled_from(["radau", "legendre"]))
def test_refined_elements_meet_the_tolerance_by_their_orders(end, seed, degree, scheme):
    rng = np.random.default_rng(seed)
    chosen, tolerance = table(scheme, degree), 1e-6
    errors = ElementErrors(10.0 ** np.array(end), 10.0 ** rng.uniform(-12, 1, len(end)), chosen)
    edges = np.cumsum(np.r_[0.3, rng.uniform(0.1, 2, len(end))])
    new = refine(edges, errors, tolerance)
    assert (np.diff(new) > 0).all()
    assert np.isin(edges, new).all()
    parts = np.diff(np.searchsorted(new, edges))
    assert parts.max() <= 8
    for k, n in enumerate(parts):
        inner = new[np.searchsorted(new, edges[k]) :][: n + 1]
        np.testing.assert_allclose(np.diff(inner), (edges[k + 1] - edges[k]) / n)
        left = max(errors.end_errors[k] / n ** (chosen.order + 1), errors.inside_errors[k] / n ** (degree + 1))
        assert left <= tolerance or n == 8
        assert (n > 1) == (max(errors.end_errors[k], errors.inside_errors[k]) > tolerance)


def test_refinement_ends_where_the_solution_is_steep():
    """A front, x = tanh(50 (t - 1/2)): elements gather there."""
    x, t, k = symbols("x t k")
    model = Model({x: k * (1 - ca.tanh(k * (t - 0.5)) ** 2)}, parameters=[k], time=t)
    start = float(np.tanh(-25.0))
    experiment = Experiment({"x": [0.0, 1.0]}, time=[0.5, 1.0], initial={"x": start})
    problem = Problem(model, experiment, parameters={"k": 50.0})
    edges, trajectory, tolerance = np.linspace(0, 1, 11), None, 1e-6
    for _ in range(6):
        staged, v = solve(problem, edges, trajectory)
        (errors,) = element_errors(staged, v)
        if errors.largest <= tolerance:
            break
        edges, trajectory = refine(edges, errors, tolerance), staged.interpolants(v)[0]
    assert errors.largest <= tolerance
    x = staged.interpolants(v)[0](np.linspace(0, 1, 11))[0][:, 0]
    np.testing.assert_allclose(x, np.tanh(50 * (np.linspace(0, 1, 11) - 0.5)), atol=1e-5)
    n_near = (np.abs(edges - 0.5) < 0.1).sum()
    assert n_near > 0.6 * edges.size  # a fifth of the horizon


def test_a_pulse_between_the_points_is_seen() -> None:
    """A forcing that is over before the next collocation point, written into the equations in time itself."""
    x, k = cf.symbols("x k")
    t = cf.symbols("t")
    pulse = cf.exp(-(((t - 4.321) / 0.01) ** 2)) / 0.01
    model = cf.Model({x: k * pulse - 0.1 * x}, parameters=[k], time=t)
    times = np.linspace(0.5, 10, 20)
    problem = cf.Problem(
        model, cf.Experiment({"x": np.zeros(20)}, time=times, sigma=0.01, initial={"x": 1.0}), parameters={"k": 1.0}
    )
    truth = cf.simulate(problem, {"k": 2.0})["experiment 1"]["x"]
    data = cf.Experiment({"x": truth}, time=times, sigma=0.01, initial={"x": 1.0})
    result = cf.fit(problem.replace(experiments=[data]), cf.Collocation(), retry=False)
    assert result.parameters["k"] == pytest.approx(2.0, rel=1e-4)
