"""The descent of searches: it is the box of Gauss-Newton, without what single shooting does not need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import castfit as cf
from castfit.fit.start.search_problem import search_problem_of
from castfit.solve.dense_descent import minimize_in_trust_region, supports_dense_descent
from castfit.solve.staged import StagedProblem
from castfit.solve.step_control import TrustRegion


@pytest.mark.parametrize("name", ["bellman", "lotka_volterra_log", "cascade"])
def test_dense_descent_ends_at_a_small_gradient(name: str) -> None:
    scene = search_problem_of(cf.problems.load(name).problem.posed)
    assert supports_dense_descent(scene.staged)
    draws = np.random.default_rng(1).normal(scene.searched.guess, 0.2, (8, scene.searched.guess.size))
    start = min(np.clip([scene.searched.guess, *draws], scene.staged.lower, scene.staged.upper), key=scene.cost)
    descent = minimize_in_trust_region(scene.staged, start, TrustRegion(), 200, 60.0)
    assert descent.predicted_decrease < 1e-3
    assert descent.cost <= scene.cost(start)
    assert descent.cost == pytest.approx(scene.cost(descent.theta), abs=1e-6 * (1.0 + abs(descent.cost)))
    for j in range(start.size):  # no step of one coordinate is lower
        for step in (-1e-2, 1e-2):
            theta = descent.theta.copy()
            theta[j] += step
            assert scene.cost(theta) >= descent.cost - 1e-3


def test_dense_descent_calls_look_before_every_step_and_counts_evaluations() -> None:
    scene = search_problem_of(cf.problems.load("lotka_volterra_log").problem.posed)
    iterations: list[tuple[int, float]] = []

    def look(iteration: int, cost: float) -> bool:
        iterations.append((iteration, cost))
        return iteration == 3

    descent = minimize_in_trust_region(scene.staged, scene.searched.guess, TrustRegion(), 60, 60.0, look=look)
    assert [k for k, _ in iterations] == [0, 1, 2, 3]
    assert [c for _, c in iterations] == sorted((c for _, c in iterations), reverse=True)
    assert descent.cost == iterations[-1][1]
    assert descent.evaluations["jacobians"] >= 4


def test_constraints_and_nodes_are_not_for_it() -> None:
    problem = cf.problems.load("bellman").problem.posed
    staged = cf.MultipleShooting(3).transcribe(problem, problem.guess)
    assert not supports_dense_descent(staged)


def test_matrices_that_are_mostly_zero_are_not_for_it() -> None:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k])
    times = np.linspace(0.02, 2.0, 100)

    def staged_of(count: int, initial: object) -> StagedProblem:
        one = cf.Experiment({"x": np.exp(-times)}, time=times, sigma=0.1, initial={"x": initial})
        problem = cf.Problem(model, [one] * count, parameters={"k": 1.5}).posed
        return cf.SingleShooting().transcribe(problem, problem.guess)

    assert supports_dense_descent(staged_of(20, cf.free(0.8)))
    assert supports_dense_descent(staged_of(160, 1.0))  # all of them share what is searched
    assert not supports_dense_descent(staged_of(160, cf.free(0.8)))


def test_without_time_it_returns_its_start(clock: Any) -> None:
    """A step that takes less than the least time, a millisecond, would be taken."""
    problem = cf.problems.load("bellman").problem.posed
    staged = cf.SingleShooting().transcribe(problem, problem.guess)
    clock.step = 1.0
    descent = minimize_in_trust_region(staged, problem.guess, TrustRegion(), 10, 0.0)
    assert descent.theta == pytest.approx(problem.guess)


def test_a_guess_at_which_states_are_next_to_nothing_does_not_keep_other_points_from_being_evaluated() -> None:
    x, y, k1, k2, s = cf.symbols("x y k1 k2 s")
    model = cf.Model({x: -k1 * x, y: k1 * x**2 - k2 * y}, parameters=[k1, k2, s], outputs={"seen": s * y})
    times = np.linspace(0.5, 5.0, 10)
    truth = {"k1": 1.0, "k2": 0.5, "s": 2.0}
    initial = {"x": 1.0, "y": 0.0}
    data = cf.simulate(model, truth, times, initial=initial)["seen"]
    guess = {n: cf.Parameter(g, 1e-60, 1e3, "log") for n, g in (("k1", 1e-55), ("k2", 1.0), ("s", 1.0))}
    experiment = cf.Experiment({"seen": data}, time=times, sigma=0.1, initial=initial)
    problem = cf.Problem(model, experiment, parameters=guess)
    scene = search_problem_of(problem.posed)
    assert scene.cost(np.log(list(truth.values()))) < 1e-6
    assert np.isfinite(scene.transcribe_until(2.0).evaluate(np.log(list(truth.values()))).cost)
