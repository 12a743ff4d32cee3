"""The collocation transcription: its options, and meshes that are refined until the integrator agrees."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import castfit as cf
from castfit._support.status import InputError, Status
from castfit.integrate import IntegratorOptions
from castfit.solve.staged import gaps
from castfit.transcribe.refinement import element_errors
from tests.builders import everything, lotka_volterra, refused

TIMES = np.linspace(0, 10, 77)
FINE = IntegratorOptions(relative_tolerance=1e-12, absolute_tolerance=1e-14)


def solve_once(transcription, problem):
    """Transcribe at the guess and solve; return the staged problem and its solution."""
    staged = transcription.transcribe(problem, problem.guess)
    states = list(cf.GaussNewton().iterate(staged))
    assert states[-1].status is Status.CONVERGED
    return staged, states[-1].v


# ------------------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "lobatto"}, "scheme is 'lobatto'; choose 'radau' or 'legendre'"),
        ({"degree": 0}, "degree is 0; choose an integer from 1 to 9"),
        ({"degree": 2.0}, "degree is 2.0; choose an integer"),
        ({"degree": True}, "degree is True"),
        ({"elements": 0}, "elements is 0; give a positive integer, 'auto', 'data', or increasing times"),
        ({"elements": 2.5}, "elements is 2.5"),
        ({"elements": "adaptive"}, "elements is 'adaptive'; give a positive integer, 'auto', 'data'"),
        ({"elements": [0.0, 2.0, 1.0]}, "the times in elements do not increase"),
        ({"elements": None}, "elements is None"),
        ({"tolerance": 0.0}, "tolerance is 0.0; give a number, not below 1e-10"),
        ({"tolerance": 1e-12}, "tolerance is 1e-12; give a number, not below 1e-10"),
        ({"tolerance": "tight"}, "tolerance is 'tight'"),
        ({"integrator": 1e-8}, "integrator is 1e-08; give IntegratorOptions"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with refused(message):
        cf.Collocation(**options)


def test_all_mistakes_are_listed_at_once():
    with refused("elements", "scheme", "degree", "tolerance", "integrator"):
        cf.Collocation(elements=-1, scheme="", degree=10, tolerance=-1.0, integrator=None)


def test_unknown_starts_are_refused_when_they_are_used():
    problem = lotka_volterra()
    with pytest.raises(InputError, match="'dat' is not known: did you mean 'data'"):
        cf.Collocation(states="dat").transcribe(problem, problem.guess)


@pytest.mark.parametrize(
    ("elements", "label"),
    [
        ("auto", "collocation (radau 3, auto elements)"),
        ("data", "collocation (radau 3, data elements)"),
        (40, "collocation (radau 3, 40 elements)"),
        (np.int64(40), "collocation (radau 3, 40 elements)"),
        ([0.0, 1.0, 4.0], "collocation (radau 3, given elements)"),
        (np.array([0.0, 1.0, 4.0]), "collocation (radau 3, given elements)"),
    ],
)
def test_labels(elements, label):
    assert cf.Collocation(elements=elements).label == label


# ----------------------------------------------------------------------------------------------------------- elements


@pytest.mark.parametrize(
    ("elements", "edges"),
    [
        (4, np.linspace(0, 10, 5)),
        (np.int64(2), [0, 5, 10]),
        ("data", np.arange(11.0)),
        ([1.0, 7.5, 30.0], [0, 1, 7.5, 10]),
        ("auto", np.linspace(0, 10, 21)),  # twenty, which contain the measured times
    ],
)
def test_elements_are_laid_out_as_asked(elements, edges):
    problem = lotka_volterra()
    staged = cf.Collocation(elements=elements).transcribe(problem, problem.guess)
    np.testing.assert_allclose(staged.layout.chains[0].times, edges, atol=1e-12)


@pytest.mark.parametrize(("degree", "scheme"), [(1, "radau"), (2, "legendre"), (4, "radau")])
def test_degree_and_scheme_reach_the_table(degree, scheme):
    problem = lotka_volterra()
    staged = cf.Collocation(degree=degree, scheme=scheme, elements=3).transcribe(problem, problem.guess)
    assert staged.table.degree == degree
    assert staged.layout.chains[0].n_w == 2 * degree
    assert (staged.table.points[-1] == 1.0) == (scheme == "radau")


def test_states_start_at_the_data():
    problem = lotka_volterra()
    staged = cf.Collocation(elements="data").transcribe(problem, problem.guess)
    nodes = staged.start[staged.layout.chains[0].nodes]
    np.testing.assert_array_equal(nodes[0], [0.4, 1.0])
    np.testing.assert_allclose(nodes[1:], problem.conditions[0].points.values[:-1], rtol=1e-12)


def test_states_start_where_they_are_given():
    problem, t = lotka_volterra(), np.linspace(0, 10, 30)
    by_hand = {"x": (t, 1 + 0.1 * t), "y": (t, 2 - 0.1 * t)}
    staged = cf.Collocation(elements=5, states=by_hand).transcribe(problem, problem.guess)
    (trajectory,) = staged.interpolants(staged.start)
    x, _ = trajectory(np.array([4.0, 8.0]))
    np.testing.assert_allclose(x, [[1.4, 1.6], [1.8, 1.2]], rtol=1e-3)


# --------------------------------------------------------------------------------------------------------- refinement


@pytest.mark.parametrize("elements", [10, "data", [0.0, 5.0, 10.0]])
def test_only_automatic_elements_are_refined(elements):
    problem = lotka_volterra()
    staged, v = solve_once(cf.Collocation(elements=elements), problem)
    assert cf.Collocation(elements=elements).refine(problem, staged, v) is None


@pytest.mark.parametrize(("tolerance", "degree"), [(1e-4, 3), (1e-6, 3), (1e-8, 3), (1e-6, 2), (1e-6, 5)])
def test_refinement_ends_when_every_element_agrees_with_the_integrator(tolerance, degree):
    problem = lotka_volterra()
    transcription = cf.Collocation(degree=degree, tolerance=tolerance)
    staged, v = solve_once(transcription, problem)
    rounds = 0
    while (finer := transcription.refine(problem, staged, v)) is not None:
        # It starts at the solution of the coarse one: same theta, same polynomials.
        assert np.array_equal(finer.start[:4], v[:4])
        assert set(staged.layout.chains[0].times) <= set(finer.layout.chains[0].times)
        start = finer.evaluate(finer.start)
        assert np.abs(gaps(finer.layout, start)[0]).max() < 1e-9
        times = np.linspace(0, 10, 77)
        np.testing.assert_allclose(
            finer.interpolants(finer.start)[0](times)[0], staged.interpolants(v)[0](times)[0], atol=1e-9
        )
        staged = finer
        states = list(cf.GaussNewton(homotopy="never").iterate(staged))
        v, rounds = states[-1].v, rounds + 1
        assert rounds < 6
    (errors,) = element_errors(staged, v, FINE)
    assert errors.largest <= tolerance


def test_objective_approaches_that_of_tight_shooting():
    problem = lotka_volterra()
    exact = cf.fit(problem, cf.SingleShooting(FINE)).chi2
    errors = []
    for tolerance in (1e-4, 1e-6, 1e-8):
        result = cf.fit(problem, cf.Collocation(tolerance=tolerance))
        errors.append(abs(result.chi2 / exact - 1))
    assert errors[2] < 1e-6
    assert errors[2] < errors[1] < errors[0]


def test_checking_integrator_is_more_accurate_than_what_it_checks():
    """A sloppy integrator for the start must not stop refinement early, or keep it going for ever."""
    problem = lotka_volterra()
    sloppy = IntegratorOptions(relative_tolerance=1e-3, absolute_tolerance=1e-5)
    sloppy_result, fine_result = (cf.fit(problem, cf.Collocation(integrator=options)) for options in (sloppy, FINE))
    assert sloppy_result.success
    assert np.isclose(sloppy_result.chi2, fine_result.chi2, rtol=1e-8)


def test_elements_without_end_are_admitted(monkeypatch):
    monkeypatch.setattr(importlib.import_module("castfit.fit.attempt"), "_MAX_REFINEMENTS", 1)
    message = "the solution still differs from the integrator"
    result = cf.fit(lotka_volterra(), cf.Collocation(degree=2, tolerance=1e-9))
    assert result.status is Status.ACCEPTABLE
    assert message in result.message
    result = cf.fit(lotka_volterra(), cf.Collocation(degree=1, tolerance=1e-8), retry=False)
    assert result.status is Status.INACCURATE  # it differs so much that chi2 does
    assert message in result.message


def test_refinement_serves_every_experiment_and_algebraic_states():
    problem = everything()
    transcription = cf.Collocation(degree=2, tolerance=1e-7)
    staged, v = solve_once(transcription, problem)
    counts = [chain.n_stages for chain in staged.layout.chains]
    finer = transcription.refine(problem, staged, v)
    assert all(chain.n_stages >= count for chain, count in zip(finer.layout.chains, counts, strict=True))
    assert sum(chain.n_stages for chain in finer.layout.chains) > sum(counts)
    result = cf.fit(problem, transcription)
    assert result.success


def test_accuracy_is_the_tolerance():
    assert cf.Collocation(tolerance=1e-6).accuracy == 1e-6
