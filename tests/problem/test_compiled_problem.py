"""Posed problems: other questions about the same model, each as good as the first."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import castfit as cf
from castfit.drive.search.scatter.bounds import with_log_scales
from castfit.problem.compiled_problem import CompiledProblem
from tests.builders import decay_problem, everything, jacobian_error, lotka_volterra, refused

SOLUTIONS = (cf.SingleShooting(), cf.MultipleShooting(3), cf.Collocation())


def same(a: CompiledProblem, b: CompiledProblem) -> None:
    """Two problems ask the same: guess, bounds, and residuals by a transcription."""
    assert a.names == b.names
    np.testing.assert_array_equal(a.guess, b.guess)
    np.testing.assert_array_equal(a.bounds, b.bounds)
    np.testing.assert_array_equal(a.log, b.log)
    assert (a.n_data, a.outputs, a.absolute_sigma) == (b.n_data, b.outputs, b.absolute_sigma)
    staged_a, staged_b = (cf.MultipleShooting(3).transcribe(p, p.guess) for p in (a, b))
    np.testing.assert_allclose(staged_a.start, staged_b.start, rtol=1e-12)
    np.testing.assert_array_equal(staged_a.lower, staged_b.lower)
    left, right = staged_a.linearize(staged_a.start), staged_b.linearize(staged_a.start)
    for x, y in zip(left.values, right.values, strict=True):
        np.testing.assert_allclose(x.r, y.r, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(x.c, y.c, rtol=1e-9, atol=1e-9)
    for x, y in zip(left.jacobians, right.jacobians, strict=True):
        np.testing.assert_allclose(x.R_q, y.R_q, rtol=1e-7, atol=1e-7)


@cache
def questions() -> dict[str, CompiledProblem]:
    compiled_problem = everything().posed
    theta = compiled_problem.guess
    wide = compiled_problem.with_bounds(theta - 0.3, theta + 0.4, theta + 0.1)
    return {
        "itself": compiled_problem,
        "until": compiled_problem.with_horizon(1.0),
        "within": wide,
        "fix": compiled_problem.fix({"k1": 1.1, "x(0)[first]": 0.7}),
        "starting_at": compiled_problem.starting_at({"k2": 0.4, "k3[first]": 1.0}),
        "only": compiled_problem.with_experiments(["second"]),
        "all": wide.with_horizon(1.0).starting_at({"k2": 0.55}).fix(["k1"]),
    }


@pytest.mark.parametrize("name", list(questions()))
def test_every_posed_problem_survives_pickling(name):
    compiled_problem = questions()[name]
    copy = pickle.loads(pickle.dumps(compiled_problem))
    same(compiled_problem, copy)
    same(
        compiled_problem.with_horizon(0.7).with_bounds(*copy.bounds), pickle.loads(pickle.dumps(copy.with_horizon(0.7)))
    )


def test_pickling_keeps_bounds_and_guess_of_a_restated_problem():
    compiled_problem = lotka_volterra().posed
    changed = compiled_problem.with_bounds(
        compiled_problem.guess - 0.25, compiled_problem.guess + 0.5, compiled_problem.guess + 0.125
    )
    copy = pickle.loads(pickle.dumps(changed))
    np.testing.assert_array_equal(copy.guess, compiled_problem.guess + 0.125)
    np.testing.assert_array_equal(copy.bounds, (compiled_problem.guess - 0.25, compiled_problem.guess + 0.5))
    np.testing.assert_array_equal(compiled_problem.guess, lotka_volterra().guess)


def test_changes_follow_one_another():
    compiled_problem = everything().posed
    theta = compiled_problem.guess
    other = (
        compiled_problem.with_horizon(1.0).with_bounds(theta - 1, theta + 1).starting_at({"k2": 0.3}).with_horizon(0.5)
    )
    assert other.names == compiled_problem.names
    assert other.guess[1] == 0.3
    np.testing.assert_allclose(other.bounds, (theta - 1, theta + 1), rtol=1e-12)
    assert [c.name for c in other.conditions] == ["first"]
    assert max(c.end for c in other.conditions) <= 0.5


def test_until_takes_any_time_and_refuses_the_rest():
    compiled_problem = everything().posed
    assert compiled_problem.with_horizon(np.inf).n_data == compiled_problem.n_data
    assert compiled_problem.with_horizon(2).n_data == compiled_problem.n_data
    for horizon in (None, "1", np.nan, [1.0], 1j):
        with refused("the horizon is"):
            compiled_problem.with_horizon(horizon)
    with refused("nothing is measured up to 0.1; the first time after a start is 0.4"):
        compiled_problem.with_horizon(0.1)


def test_fix_makes_a_quantity_a_number():
    """Residuals and Jacobian of the shorter theta are those of the whole one, columns left out."""
    compiled_problem = everything().posed
    theta = compiled_problem.guess + 0.05
    fixed = compiled_problem.fix(
        dict(zip(("k1", "k3[second]"), compiled_problem.to_natural(theta)[[0, 4]], strict=True))
    )
    assert fixed.names == ("k2", "k3[first]", "x(0)[first]")
    indices = [1, 2, 3]
    staged, staged_fixed = (cf.MultipleShooting(3).transcribe(p, p.guess) for p in (compiled_problem, fixed))
    v = staged.start.copy()
    v[:5] = theta
    w = np.concatenate([theta[indices], v[5:]])
    full, shorter = staged.linearize(v), staged_fixed.linearize(w)
    assert np.concatenate([x.r.ravel() for x in shorter.values]) == pytest.approx(
        np.concatenate([x.r.ravel() for x in full.values]), abs=1e-9
    )
    assert shorter.jacobians[0].R_q == pytest.approx(full.jacobians[0].R_q[..., 1:], abs=1e-6)
    assert shorter.jacobians[1].R_q == pytest.approx(full.jacobians[1].R_q[..., 1:2], abs=1e-6)
    assert jacobian_error(staged_fixed, w) < 1e-5
    assert fixed.priors(theta[indices]).rows.size == 0


def test_another_scale_is_the_same_problem():
    compiled_problem = lotka_volterra(lower=0.01).posed
    logarithmic = compiled_problem.with_quantities([replace(q, scale="log") for q in compiled_problem.quantities])
    np.testing.assert_allclose(logarithmic.guess, np.log(compiled_problem.guess))
    for transcription in SOLUTIONS:
        a, b = (transcription.transcribe(p, p.guess) for p in (compiled_problem, logarithmic))
        x, y = (s.linearize(s.start) for s in (a, b))
        np.testing.assert_allclose(x.values[0].r, y.values[0].r, atol=1e-9)
        np.testing.assert_allclose(
            x.jacobians[0].R_q * compiled_problem.guess, y.jacobians[0].R_q, atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("transcription", SOLUTIONS, ids=lambda t: t.label)
def test_fit_and_drivers_accept_a_compiled_problem(transcription):
    problem = lotka_volterra()
    result = cf.fit(problem.posed, transcription)
    assert result.success
    assert result.problem is problem.posed
    assert cf.fit(problem, transcription).problem is problem
    assert result.predict()
    problem_at_optimum = problem.posed.starting_at(result.parameters)
    second_result = cf.fit(problem_at_optimum, transcription)
    assert second_result.cost == pytest.approx(result.cost, rel=1e-4)
    assert second_result.iterations <= result.iterations


def test_drivers_accept_a_compiled_problem():
    compiled_problem = decay_problem(parameters={"k": cf.Parameter(0.5, lower=1e-4, upper=10.0)}).posed.starting_at(
        {"k": 2.0}
    )
    assert cf.incremental(compiled_problem).success
    assert cf.multistart(compiled_problem, starts=2, rng=0).best.success
    assert cf.scatter_search(compiled_problem, rng=0, max_eval=40).best.success


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (lambda p: p.with_bounds(p.guess, p.guess - 1), "the bounds of 'k' are [0.5, -0.5]; swap them"),
        (lambda p: p.with_bounds([0.0, 1.0], p.guess), "lower is [0.0, 1.0]; give 1 numbers, one for each quantity"),
        (lambda p: p.with_bounds(p.guess, [np.nan]), "upper is [nan]"),
        (lambda p: p.starting_at({"kk": 1}), "'kk' is not estimated: did you mean 'k'?"),
        (lambda p: p.fix(["kk"]), "names holds 'kk': did you mean 'k'?"),
        (lambda p: p.with_experiments(["a"]), "experiments holds 'a'"),
        (lambda p: p.with_quantities([]), "give the quantities k, in this order"),
    ],
)
def test_invalid_changes_of_a_compiled_problem_are_refused(change, phrase):
    with refused(phrase):
        change(decay_problem().posed)


def test_compiled_problem_is_unchanged_by_its_methods():
    problem = decay_problem()
    assert problem.posed.posed is problem.posed
    with pytest.raises(AttributeError):
        problem.posed.quantities = ()  # type: ignore[misc]


def chain_of_two() -> cf.Problem:
    """x -> y, each with a rate of its own, both measured."""
    x, y, k, m = cf.symbols("x y k m")
    model = cf.Model({x: -k * x, y: x - m * y}, parameters=[k, m], initial={x: 1.0, y: 0.0})
    t = np.linspace(0.2, 3, 12)
    data = cf.Experiment({"x": np.exp(-0.5 * t), "y": 2 * (np.exp(-0.5 * t) - np.exp(-t))}, time=t, sigma=0.01)
    rate = cf.Parameter(3.0, bounds=(0.01, 5))
    return cf.Problem(model, data, parameters={"k": rate, "m": rate})


@pytest.mark.parametrize("kind", ["as it is", "logarithmic", "fixed", "narrower"])
def test_decomposition_starts_a_compiled_problem(kind):
    compiled_problem = chain_of_two().posed
    changed = {
        "as it is": compiled_problem,
        "logarithmic": compiled_problem.with_quantities([replace(q, scale="log") for q in compiled_problem.quantities]),
        "fixed": compiled_problem.fix({"m": 1.0}),
        "narrower": compiled_problem.with_bounds(np.array([0.3, 0.8]), np.array([0.7, 2.0])),
    }[kind]
    result = cf.fit(changed, start=cf.Decomposed())
    assert result.success
    assert result.parameters["k"] == pytest.approx(0.5, rel=1e-5)
    assert result.parameters.get("m", 1.0) == pytest.approx(1.0, rel=1e-5)


def test_a_scatter_search_starts_where_the_posed_problem_does():
    compiled_problem = chain_of_two().posed.starting_at({"k": 0.45, "m": 0.9})
    mistakes: list[str] = []
    searched = with_log_scales(compiled_problem.with_bounds(np.full(2, 0.0), np.full(2, 5.0)), "auto", mistakes)
    assert mistakes == []
    assert searched.log.all()
    np.testing.assert_allclose(searched.to_natural(searched.guess), [0.45, 0.9])
    assert with_log_scales(chain_of_two().posed.starting_at({"k": 0.45}), ["k"], mistakes).guess[0] == np.log(0.45)


def test_simulate_accepts_a_compiled_problem():
    compiled_problem = chain_of_two().posed
    assert cf.simulate(compiled_problem, {"k": 0.5, "m": 1.0})["experiment 1"]["x"][-1] == pytest.approx(
        np.exp(-1.5), rel=1e-6
    )
    fixed = compiled_problem.fix({"m": 1.0})
    simulation = cf.simulate(fixed, {"k": 0.5})["experiment 1"]
    assert simulation["y"] == pytest.approx(compiled_problem.conditions[0].points.values[:, 1], abs=1e-6)
    with refused("'m' is a constant of this compiled problem"):
        cf.simulate(fixed, {"m": 2.0})
    with refused("'q' is neither estimated nor a model parameter: choose from k, m"):
        cf.simulate(compiled_problem, {"q": 1.0})
