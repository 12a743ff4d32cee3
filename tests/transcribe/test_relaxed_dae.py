"""Relaxed algebraic equations: derivatives, agreement with consistent nodes, and nodes where nothing is consistent."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import castfit as cf
from tests.builders import everything, jacobian_error, refused

PARAMETERS = {"c": cf.Parameter(0.2, lower=0)}


def tank(rng: int = 1) -> cf.Problem:
    """A tank that empties by Torricelli's law almost to the ground: near it measured levels are negative."""
    h, q, c, u = cf.symbols("h q c u")
    model = cf.Model({h: u - q}, algebraic={q: q**2 - c**2 * h}, parameters=[c], inputs=[u])
    times, noise = np.linspace(0.5, 12, 24), np.random.default_rng(rng)
    inflow = cf.Input.piecewise_constant([0, 7.2, 8.2], [0.05, 1.05, 0.05])
    truth = cf.simulate(model, {"c": 0.45}, times, initial={"h": 1.0, "q": 0.5}, inputs={"u": inflow})
    data = {n: truth[n] + s * noise.standard_normal(times.size) for n, s in (("h", 0.05), ("q", 0.03))}
    experiment = cf.Experiment(
        data, times, sigma={"h": 0.05, "q": 0.03}, initial={"h": cf.free(1.0), "q": 0.5}, inputs={"u": inflow}
    )
    return cf.Problem(model, experiment, parameters=PARAMETERS)


def dosed() -> cf.Problem:
    """A dose at an estimated time moves nodes; the algebraic equation contains time, an input and a parameter."""
    x, z, k, lag, u, t = cf.symbols("x z k lag u t")
    model = cf.Model({x: u - k * z}, algebraic={z: z + 0.2 * z**3 - x - 0.1 * u * t}, parameters=[k], inputs=[u],
                     time=t)  # fmt: skip
    options = {
        "time": np.linspace(0.5, 4, 8),
        "sigma": 0.02,
        "initial": {"x": 1.0},
        "inputs": {"u": cf.Input.linear([0, 5], [0.2, 0.7])},
        "events": [cf.Doses(into=x, amount=0.6, times=0.7, lag=lag)],
    }
    parameters = {"k": 0.6, "lag": cf.Parameter(0.4, lower=0.1, upper=0.7)}
    empty = cf.Problem(model, cf.Experiment({"x": np.zeros(8), "z": np.zeros(8)}, **options), parameters=parameters)
    exact = cf.simulate(empty, {"k": 0.7, "lag": 0.3})["experiment 1"]
    noise = np.random.default_rng(0)
    data = {n: exact[n] + 0.02 * noise.standard_normal(8) for n in ("x", "z")}
    return cf.Problem(model, cf.Experiment(data, **options), parameters=parameters)


@pytest.mark.parametrize("problem", [everything(), dosed()], ids=["inputs", "moving"])
@pytest.mark.parametrize("intervals", [3, "data"])
def test_derivatives_at_inconsistent_nodes(problem, intervals):
    compiled_problem = problem.posed
    staged = cf.MultipleShooting(intervals, algebraic="relaxed").transcribe(compiled_problem, compiled_problem.guess)
    v = staged.start + 0.02 * np.random.default_rng(0).standard_normal(staged.start.size)
    evaluation = staged.evaluate(v)
    assert min(np.abs(values.d).max() for values in evaluation.values) > 1e-3
    assert jacobian_error(staged, v, 1e-3) < 1e-4
    inner = np.concatenate([chain.inner.ravel() for chain in staged.layout.chains])
    assert (staged.scale[inner] > 0).all()


@cache
def consistently(build):
    return cf.fit(build(), cf.MultipleShooting(4))


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=["gauss_newton", "ipopt"])
@pytest.mark.parametrize("build", [everything, dosed])
def test_nothing_is_relaxed_at_the_solution(build, solver):
    consistent = consistently(build)
    problem = consistent.problem
    relaxed = cf.fit(problem, cf.MultipleShooting(4, algebraic="relaxed"), solver)
    assert relaxed.success
    assert relaxed.chi2 == pytest.approx(consistent.chi2, rel=1e-6)
    for name, error in consistent.standard_errors.items():
        assert abs(relaxed.values[name] - consistent.values[name]) < 1e-3 * error
        assert relaxed.standard_errors[name] == pytest.approx(error, rel=1e-3)


def test_nodes_may_be_where_nothing_is_consistent():
    """At negative levels the outflow is imaginary: nodes that start from such data cannot be evaluated consistently."""
    compiled_problem = tank().posed
    assert min(compiled_problem.conditions[0].points.values[:, 0]) < 0
    consistent = cf.MultipleShooting("data").transcribe(compiled_problem, compiled_problem.guess)
    assert {f.cause for f in consistent.evaluate(consistent.start).failures} == {"consistent_initialisation"}
    relaxed = cf.MultipleShooting("data", algebraic="relaxed")
    staged = relaxed.transcribe(compiled_problem, compiled_problem.guess)
    assert staged.linearize(staged.start).ok


@pytest.mark.slow
def test_fits_begin_where_nothing_is_consistent():
    relaxed = cf.MultipleShooting("data", algebraic="relaxed")
    result = cf.fit(tank(), relaxed, second_start=False)
    assert result.success
    assert not result.failures
    other_results = [cf.fit(tank(), method) for method in ("single", "collocation")]
    for other in other_results:
        assert result.chi2 == pytest.approx(other.chi2, rel=2e-2)  # one of them may end in a neighbouring optimum
    assert result.chi2 <= min(other.chi2 for other in other_results) * (1 + 1e-6)
    assert abs(result.parameters["c"] - 0.45) < 4 * result.standard_errors["c"]


@pytest.mark.slow
def test_iterations_are_drawn_between_inconsistent_nodes():
    problem, transcription = tank(), cf.MultipleShooting(4, algebraic="relaxed")
    states = list(cf.GaussNewton(homotopy="never").iterate(problem, transcription))
    assert cf.plots.iterations(states, problem, transcription).axes


def test_models_without_algebraic_states_have_nothing_to_relax():
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    problem = cf.Problem(model, cf.Experiment({"x": [0.6, 0.4]}, [1.0, 2.0]), parameters={"k": 0.3})
    consistent_result, relaxed_result = (
        cf.fit(problem, cf.MultipleShooting(2, algebraic=a)) for a in ("consistent", "relaxed")
    )
    assert consistent_result.chi2 == relaxed_result.chi2


def test_mistakes():
    with refused("algebraic is 'loose'; choose 'consistent' or 'relaxed'"):
        cf.MultipleShooting(algebraic="loose")
    with refused("algebraic='relaxed' is differentiated forwards"):
        cf.MultipleShooting("data", derivatives="adjoint", algebraic="relaxed")
    assert cf.MultipleShooting(5, algebraic="relaxed").label == "multiple shooting (5 intervals, relaxed)"
