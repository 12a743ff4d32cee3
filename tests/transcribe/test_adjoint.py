"""Multiple shooting by adjoint states: data at nodes, the same rows and derivatives as by forward sensitivities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import castfit as cf
from castfit.integrate import IntegratorOptions
from castfit.staged import gaps
from tests.builders import everything, jacobian_error, lotka_volterra, refused
from tests.test_events import eventful, oral

TIGHT = IntegratorOptions(relative_tolerance=1e-11, absolute_tolerance=1e-13)
ADJOINT = cf.MultipleShooting("data", derivatives="adjoint", integrator=TIGHT)
FORWARD = cf.MultipleShooting("data", derivatives="forward", integrator=TIGHT)


def consistent(problem: cf.Problem, transcription: cf.MultipleShooting):
    """Transcribe, and return a point at which all pieces join."""
    staged = transcription.transcribe(problem, problem.guess)
    v = staged.start.copy()
    for _ in range(max(c.n_stages for c in staged.layout.chains) + 1):
        at = staged.evaluate(v)
        for chain, values in zip(staged.layout.chains, at.values, strict=True):
            v[chain.nodes[0]] = values.a
            v[chain.nodes[1:]] = values.x[:-1]
    assert max(float(np.abs(g).max()) for g in gaps(staged.layout, staged.evaluate(v))) < 1e-12
    return staged, v


PROBLEMS = [lotka_volterra, everything, eventful, oral]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.__name__)
def test_rows_are_those_of_forward_multiple_shooting(problem):
    """Data at jumps of inputs and at events are read where they are without nodes there."""
    (one, v), (other, w) = (consistent(problem(), t) for t in (ADJOINT, FORWARD))
    rows = [
        np.concatenate([of.r[c.row_mask] for c, of in zip(s.layout.chains, s.evaluate(at).values, strict=True)])
        for s, at in ((one, v), (other, w))
    ]
    np.testing.assert_allclose(*rows, rtol=1e-8, atol=1e-9)
    limits = [
        [(c.constraint_lower[np.isfinite(c.constraint_upper)], of.c[np.isfinite(c.constraint_upper)])
         for c, of in zip(s.layout.chains, s.evaluate(at).values, strict=True)] for s, at in ((one, v), (other, w))
    ]  # fmt: skip
    for ours, theirs in zip(*limits, strict=True):
        for mine, its in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(np.sort(mine), np.sort(its), rtol=1e-8)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.__name__)
def test_adjoint_blocks_equal_finite_differences(problem):
    staged = ADJOINT.transcribe(problem(), problem().guess)
    rng = np.random.default_rng(1)
    v = staged.start + 0.01 * staged.scale * rng.standard_normal(staged.layout.n_v)
    assert jacobian_error(staged, v) < 1e-6


def test_rows_depend_on_no_integration():
    staged = ADJOINT.transcribe(lotka_volterra(), lotka_volterra().guess)
    linear = staged.linearize(staged.start)
    (chain,), (j,) = staged.layout.chains, linear.jacobians
    np.testing.assert_array_equal(chain.times, [0, *range(1, 11), 10])
    assert not j.R_q.any()
    np.testing.assert_allclose(j.R_s[1:] * linear.sigma[0], np.broadcast_to(np.eye(2), (10, 2, 2)))
    assert not j.R_s[0].any()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.__name__)
def test_one_direction_is_a_product_of_all(problem):
    staged = ADJOINT.transcribe(problem(), problem().guess)
    rng = np.random.default_rng(2)
    directions = [rng.standard_normal(chain.nodes.shape) for chain in staged.layout.chains]
    full, along = staged.linearize(staged.start), staged.linearize_along(staged.start, directions)
    for d, all_, one in zip(directions, full.jacobians, along.jacobians, strict=True):
        np.testing.assert_allclose(one.X_s, d[:, None] @ all_.X_s, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(one.X_q, d[:, None] @ all_.X_q, rtol=1e-6, atol=1e-8)
        np.testing.assert_array_equal(one.R_s, all_.R_s)


@settings(max_examples=15, deadline=None)
@given(unit=st.floats(-12, 12), scale=st.floats(-9, 9))
def test_adjoint_derivatives_do_not_depend_on_units(unit, scale):
    """Parameters in other units have other derivatives, far below or above every tolerance, of the same accuracy."""
    unit, scale = 10.0**unit, 10.0**scale
    a, b, k = cf.symbols("a b k")
    model = cf.Model({a: -k / unit * a, b: k / unit * a - 0.3 * b}, parameters=[k])
    data = cf.Experiment({"b": scale * np.array([0.3, 0.4, 0.2])}, time=[1, 2, 4], sigma=0.1 * scale,
                         initial={"a": scale, "b": 0})  # fmt: skip
    problem = cf.Problem(model, data, parameters={"k": 0.8 * unit})
    staged = cf.MultipleShooting("data", derivatives="adjoint").transcribe(problem, problem.guess)
    j = staged.linearize(staged.start).jacobians[0]
    t = np.diff(staged.layout.chains[0].times)[:-1]
    a0 = staged.start[staged.layout.chains[0].nodes[:-1, 0]]
    np.testing.assert_allclose(j.X_s[:-1, 0, 0], np.exp(-0.8 * t), rtol=1e-6)
    np.testing.assert_allclose(j.X_q[:-1, 0, 0] * unit, -t * a0 * np.exp(-0.8 * t), rtol=1e-6)


@pytest.mark.parametrize("solver", [cf.GaussNewton(), cf.Ipopt()], ids=lambda s: s.label)
def test_fits_agree_with_forward_sensitivities(solver):
    problem = lotka_volterra((0.5, 0.5, 0.5, -0.2))
    ours, theirs = (cf.fit(problem, t, solver) for t in (ADJOINT, FORWARD))
    assert ours.success
    assert ours.chi2 == pytest.approx(theirs.chi2, rel=1e-8)
    for name, value in theirs.parameters.items():
        assert ours.parameters[name] == pytest.approx(value, rel=1e-6)
        assert ours.standard_errors[name] == pytest.approx(theirs.standard_errors[name], rel=1e-5)
    np.testing.assert_allclose(ours.residuals, theirs.residuals, atol=1e-5)


def test_estimated_times_of_events_by_adjoint():
    guess = {"tlag": 0.25}
    ours, theirs = (cf.fit(oral(), t, start=guess) for t in (ADJOINT, FORWARD))
    assert ours.success
    for name, value in theirs.parameters.items():
        assert ours.parameters[name] == pytest.approx(value, rel=1e-6)
        assert ours.standard_errors[name] == pytest.approx(theirs.standard_errors[name], rel=1e-4)


def test_options_that_do_not_go_together_are_refused():
    with refused("derivatives is 'backward'; choose"):
        cf.MultipleShooting("data", derivatives="backward")
    with refused("intervals='data'"):
        cf.MultipleShooting(10, derivatives="adjoint")
    with refused("matching is 'norm'"):
        cf.MultipleShooting("data", derivatives="adjoint", matching="norm")
    with refused("derivatives='adjoint' as well"):
        cf.MultipleShooting("data", matching="scalar")
    with refused("intervals is 'dta'", "intervals='data'"):
        cf.MultipleShooting("dta", derivatives="adjoint", matching="scalar")
