"""A solution is one only if the model itself, integrated with error control, does what the search found."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace

import numpy as np
import pytest

import castfit as cf
from castfit import problems
from castfit._support.status import Status
from castfit.fit.verification import verify
from castfit.integrate.esdirk_binding import missing_integrator_reason
from castfit.solve.solution import Solution, SolveControl
from castfit.solve.staged import StagedProblem
from castfit.transcribe.shooting_problem import ShootingProblem
from tests.builders import lotka_volterra

SOLVERS = [cf.GaussNewton(), cf.Ipopt()]


def label(part) -> str:
    return part.label


def steep_decay() -> cf.Problem:
    x, k = cf.symbols("x k")
    times = np.linspace(0.5, 5, 10)
    noise = 0.03 * np.random.default_rng(0).standard_normal(times.size)
    data = cf.Experiment({"x": np.exp(-0.699 * times) + noise}, time=times, sigma=0.03, initial={"x": 1.0})
    return cf.Problem(cf.Model({x: -k * x}, parameters=[k]), data, parameters={"k": 0.5})


def test_too_few_elements_are_no_solution_and_the_message_has_the_true_chi2():
    problem = steep_decay()
    result = cf.fit(problem, cf.Collocation(degree=1, elements=3))
    assert result.status is Status.INACCURATE
    assert not result.success
    predicted = cf.simulate(problem, result.parameters)["experiment 1"]["x"]
    chi2 = float((((predicted - problem.conditions[0].points.values[:, 0]) / 0.03) ** 2).sum())
    assert f"chi2 = {chi2:.4g}"[:-1] in result.message
    assert f"instead of {result.chi2:.6g} in the search" in result.message
    assert "Use more elements" in result.message


@pytest.mark.parametrize("names", [("s", "s"), ("", "")], ids=["one sigma", "two sigmas"])
def test_too_few_elements_are_no_solution_where_sigmas_are_unknown_either(names):
    """In units of its own most likely sigma each integration has as many squares as data."""
    x, k = cf.symbols("x k")
    times = np.linspace(0.5, 5, 10)
    noise = 0.003 * np.random.default_rng(0).standard_normal((2, times.size))
    data = {"a": np.exp(-0.699 * times) + noise[0], "b": 5 * np.exp(-0.699 * times) + 5 * noise[1]}
    sigma = {output: cf.unknown(name) for output, name in zip(data, names, strict=True)}
    model = cf.Model({x: -k * x}, parameters=[k], outputs={"a": x, "b": 5 * x})
    problem = cf.Problem(model, cf.Experiment(data, time=times, sigma=sigma, initial={"x": 1.0}), parameters={"k": 0.5})
    assert cf.fit(problem, cf.Collocation()).success
    rough = cf.fit(problem, cf.Collocation(degree=1, elements=3))
    assert rough.status is Status.INACCURATE
    simulated = cf.simulate(problem, rough.parameters)["experiment 1"]
    errors = (
        [np.concatenate([simulated[o] - data[o] for o in data])] if names[0] else [simulated[o] - data[o] for o in data]
    )
    neg2loglik = sum(e.size * (np.log(2 * np.pi * np.mean(e**2)) + 1) for e in errors)
    assert f"the model has -2 log L = {neg2loglik:.4g}"[:-1] in rough.message
    assert f"instead of {rough.neg2loglik:.6g} in the search" in rough.message


def test_numerical_error_with_few_elements_covers_the_discretisation_error():
    problem = steep_decay()
    exact = cf.fit(problem, cf.Collocation())
    coarse = cf.fit(problem, cf.Collocation(degree=2, elements=10))
    assert exact.success
    assert coarse.success
    off = abs(coarse.parameters["k"] - exact.parameters["k"])
    assert off > 1e-4
    assert coarse.numerical_errors["k"] == pytest.approx(off, rel=0.1)


def test_single_shooting_reports_its_integration_error():
    problem = lotka_volterra()
    rough = cf.fit(problem, cf.SingleShooting(cf.IntegratorOptions(relative_tolerance=1e-5, absolute_tolerance=1e-7)))
    exact = cf.fit(problem, cf.Collocation())
    for name, value in rough.parameters.items():
        off = abs(value - exact.parameters[name])
        assert 0.2 * off < rough.numerical_errors[name] < 20 * off


def verified_by(monkeypatch, answers=lambda method, result: result) -> list[str]:
    """Collect by which methods solutions are verified; `answers` may change what these find."""
    module, methods = importlib.import_module("castfit.fit.verification"), list[str]()
    verified = module._verified_by

    def noted(options, *arguments):
        methods.append(options.method)
        return answers(options.method, verified(options, *arguments))

    monkeypatch.setattr(module, "_verified_by", noted)
    return methods


@pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")
def test_verification_uses_adams_for_nonstiff_and_bdf_for_stiff_models(monkeypatch):
    methods = verified_by(monkeypatch)
    assert cf.fit(lotka_volterra(), "single").success
    assert methods == ["adams"]
    methods.clear()
    assert cf.fit(lotka_volterra(), cf.SingleShooting(cf.IntegratorOptions("esdirk"))).success
    assert methods == ["cvodes"]


@pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")
def test_verification_falls_back_to_bdf_if_adams_does_not_confirm(monkeypatch):
    doubts = verified_by(monkeypatch, lambda method, result: replace(result, is_reproduced=method == "cvodes"))
    assert cf.fit(lotka_volterra(), "single").success
    assert doubts == ["adams", "cvodes"]
    denied = verified_by(
        monkeypatch, lambda method, result: replace(result, is_reproduced=False, sentence="It is not.")
    )
    assert cf.fit(lotka_volterra(), "single", retry=False).status is Status.INACCURATE
    assert denied[:2] == ["adams", "cvodes"]


@pytest.mark.parametrize("solver", SOLVERS, ids=label)
def test_a_state_that_stays_at_zero_explains_no_datum(solver):
    """x' = k x^2 from x(0) = 0: the least gap, times a huge k, passes for a trajectory through (1, 1)."""
    x, k = cf.symbols("x k")
    data = cf.Experiment({"x": [1.0]}, time=[1.0], sigma=1.0, initial={"x": 0.0})
    problem = cf.Problem(cf.Model({x: k * x**2}, parameters=[k]), data, parameters={"k": 1.0})
    result = cf.fit(problem, cf.Collocation(), solver)
    assert not result.success or result.chi2 == pytest.approx(1.0)


@pytest.mark.parametrize("gap", [1e-7, 1e-10])
def test_a_jump_of_the_initial_state_is_found_however_small(gap):
    """x' = k x from x(0) = 0: a gap that no other figure shows grows to what was measured."""
    x, k = cf.symbols("x k")
    data = cf.Experiment({"x": [1.0]}, time=[1.0], sigma=1.0, initial={"x": 0.0})
    problem = cf.Problem(cf.Model({x: k * x}, parameters=[k]), data, parameters={"k": -np.log(gap)})
    transcription = cf.MultipleShooting(4)
    staged = transcription.transcribe(problem, problem.guess)
    states = gap ** (1 - np.arange(4) / 4)  # the exact trajectory, but from x(0) = gap
    evaluation = staged.evaluate(np.concatenate([problem.guess, states]))
    assert evaluation.cost < 1e-12
    verification = verify(problem.posed, staged, evaluation, transcription.integrator, transcription.accuracy)
    assert not verification.is_reproduced
    assert verification.chi2 == pytest.approx(1.0)
    assert f"x jumps by {gap:.2g} at t = 0" in verification.sentence


@pytest.mark.parametrize("solver", SOLVERS, ids=label)
@pytest.mark.parametrize("transcription", [cf.MultipleShooting(10), cf.Collocation()], ids=label)
@pytest.mark.parametrize("mu", [20, 40, 60])
def test_unstable_systems_are_solved_piece_by_piece(mu, transcription, solver):
    notorious = problems.load("notorious", mu=mu)
    result = cf.fit(notorious.problem, transcription, solver)
    assert result.success, result.message
    assert result.chi2 == pytest.approx(notorious.reference.objective, rel=1e-3)


def lorenz(end: float, seed: int = 1) -> cf.Problem:
    """All states, and their sum on another scale, ten times per unit of time, 5 % noise; the guess is the truth."""
    x, y, z, s, r, b, g = cf.symbols("x y z s r b g")
    model = cf.Model(
        {x: s * (y - x), y: x * (r - z) - y, z: x * y - b * z}, parameters=[s, r, b, g], outputs={"sum": g * (x + y)}
    )
    times = np.linspace(0.1, end, round(10 * end))
    parameters = {n: cf.Parameter(v, scale="log") for n, v in {"s": 10.0, "r": 28.0, "b": 8 / 3, "g": 2.0}.items()}
    names = ("x", "y", "z", "sum")
    blank = cf.Experiment(dict.fromkeys(names, np.ones(times.size)), time=times, initial={"x": 1, "y": 1, "z": 20})
    exact = cf.simulate(cf.Problem(model, blank, parameters=parameters))["experiment 1"]
    rng = np.random.default_rng(seed)
    sigma = {name: 0.05 * float(np.abs(exact[name]).mean()) for name in names}
    data = {name: exact[name] + sigma[name] * rng.standard_normal(times.size) for name in names}
    experiment = cf.Experiment(data, time=times, sigma=sigma, initial={"x": 1.0, "y": 1.0, "z": 20.0})
    return cf.Problem(model, experiment, parameters=parameters)


@pytest.mark.slow
@pytest.mark.parametrize("transcription", [cf.MultipleShooting("data"), cf.Collocation()], ids=label)
def test_chaos_is_solved_piece_by_piece(transcription):
    problem = lorenz(20.0)
    result = cf.fit(problem, transcription, start={"s": 13.0, "r": 36.0})
    assert result.success, result.message
    assert result.chi2 / result.dof == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("transcription", [None, cf.SingleShooting(), cf.MultipleShooting(5)])
def test_second_fit_of_a_problem_builds_no_integrator(transcription, monkeypatch):
    """Neither its search nor what verifies it."""
    problem, count = lotka_volterra(), []
    module = importlib.import_module("castfit.integrate.integrator")
    build = module.build_integrator

    def counted(*args, **options):
        count.append(args)
        return build(*args, **options)

    monkeypatch.setattr(module, "build_integrator", counted)
    cf.fit(problem, transcription)
    assert count
    count.clear()
    assert cf.fit(problem, transcription).success
    assert not count


def test_gaps_are_measured_by_sensitivities_only_where_they_are_not_evidently_small(monkeypatch):
    """A piece of Bock's problem ends where the state crosses zero; a gap says nothing relative to that."""
    benchmark, requests = problems.load("notorious"), []
    original = ShootingProblem.node_sensitivities

    def counted(self, v, stages):
        requests.extend(stages)
        return original(self, v, stages)

    monkeypatch.setattr(ShootingProblem, "node_sensitivities", counted)
    result = cf.fit(benchmark.problem, start=benchmark.starts["reference"])
    assert result.success
    (stages,) = requests
    assert 0 < stages.sum() < 0.5 * stages.size


def test_pieces_of_many_elements_are_enough_and_gaps_between_them_are_found():
    """Of 135 elements of Bock's problem the ten that end at data are integrated from, one datum to the next."""
    benchmark = problems.load("notorious")
    problem, transcription = benchmark.problem.posed, cf.Collocation()
    result = cf.fit(problem, transcription, start=benchmark.starts["reference"])
    (nodes,) = result.trajectories.values()
    staged = cf.Collocation(elements=np.append(nodes.times, 1.0), states="data").transcribe(problem, result.theta)
    (chain,) = staged.layout.chains
    assert chain.n_stages > 5 * problem.n_data
    solution = cf.GaussNewton().solve(staged, SolveControl())
    verification = verify(
        problem, staged, staged.evaluate(solution.v), transcription.integrator, transcription.accuracy
    )
    assert verification.is_reproduced
    assert verification.defects[0].shape == (chain.n_stages, 2)
    assert 0 < np.count_nonzero(verification.defects[0].any(axis=1)) <= 11
    jump = solution.v.copy()
    jump[chain.nodes[70:]] *= 1.001  # far from any datum: the next piece does not begin where this one ends
    jump[chain.inner[70:]] *= 1.001
    jump_verification = verify(problem, staged, staged.evaluate(jump), transcription.integrator, transcription.accuracy)
    assert not jump_verification.is_reproduced
    assert (
        "x1 jumps by" in jump_verification.sentence
        or "x2 jumps by" in jump_verification.sentence
        or "has chi2 =" in jump_verification.sentence
    )


@pytest.mark.skipif(bool(missing_integrator_reason()), reason="ESDIRK is compiled")
def test_verification_uses_the_method_of_the_search_if_sundials_fails():
    """With x following y at a rate of e^38, CVODES and its rescuer give up at once."""
    x, y, fast = cf.symbols("x y fast")
    times = np.linspace(0.5, 4, 8)
    data = cf.Experiment({"x": np.exp(-times)}, time=times, sigma=0.01, initial={"x": 0.0, "y": 1.0})
    model = cf.Model({x: -fast * (x - y), y: -y}, parameters=[fast])
    problem = cf.Problem(model, data, parameters={"fast": cf.Parameter(float(np.exp(38)), scale="log")}).posed
    for method, reproduced in (("auto", True), ("cvodes", False)):
        staged = cf.SingleShooting(cf.IntegratorOptions()).transcribe(problem, problem.guess)
        verification = verify(problem, staged, staged.evaluate(staged.start), cf.IntegratorOptions(method=method), 1e-9)
        assert verification.is_reproduced == reproduced


def test_a_trajectory_begins_exactly_at_a_fixed_start():
    """A thousandth of a tiny start is within any solver's tolerance, and worth standard deviations where it grows."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x - x**3}, parameters=[k], initial={x: -1e-6})
    times = np.linspace(1.0, 16.0, 30)
    values = 1.3 * np.asarray(cf.simulate(model, {"k": 1.0}, times)["x"])
    problem = cf.Problem(model, cf.Experiment({"x": values}, times, sigma=0.01), parameters={"k": 0.9})
    result = cf.fit(problem, cf.MultipleShooting(1), IpoptWithShiftedStart(1e-9), retry=False)
    assert result.trajectories["experiment 1"].states[0, 0] == -1e-6
    simulated = np.asarray(cf.simulate(model, result.parameters, times)["x"])
    assert result.chi2 == pytest.approx(np.sum(((simulated - values) / 0.01) ** 2), rel=1e-6)


@dataclass(frozen=True)
class IpoptWithShiftedStart:
    """IPOPT that leaves a fixed start by a little, as tolerances allow."""

    shift: float
    label: str = "moved"

    def solve(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        """Move the first node."""
        solution = cf.Ipopt().solve(staged, control, warm=warm)
        v = solution.v.copy()
        v[staged.layout.chains[0].nodes[0]] += self.shift
        return replace(solution, v=v)
