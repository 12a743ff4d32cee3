"""Softened problems: derivatives against differences, steps against dense matrices, the exact problem as a limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castfit.solve.penalty_homotopy import UNIT_PENALTY_RELATIVE_GAP, RelaxationLevel, RelaxedProblem
from castfit.solve.solution import CountingProblem
from castfit.solve.staged import StagedProblem, gaps
from castfit.solve.subproblem import LocalProblem
from castfit.transcribe.collocation import Collocation
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting
from tests.builders import everything, lotka_volterra
from tests.solve.blocks import close, dense, problems, random_problem
from tests.solve.toys import Affine, Faulty, Formula

seeds = st.integers(0, 2**32 - 1)
STATION = RelaxationLevel(0.3, 2.0)


def random_affine_problem(problem, seed) -> StagedProblem:
    """A random affine problem with random magnitudes of variables and data."""
    staged, rng = Affine(*problem), np.random.default_rng(seed)
    staged.scale = rng.uniform(0.3, 3.0, staged.layout.n_v)
    staged.signal = tuple(
        rng.uniform(0.1, 20.0, chain.row_mask.shape) * chain.row_mask for chain in staged.layout.chains
    )
    return staged


def weighted(staged, station, noise):
    """All weighted rows, dense: values (m,) and derivatives (m, n_v) at the start."""
    layout, full = staged.layout, dense(staged.layout, staged.linearization)
    floors = [
        1 / np.maximum(noise, station.floor * s[c.row_mask]) for s, c in zip(staged.signal, layout.chains, strict=True)
    ]
    w_r = np.concatenate([*floors, np.ones(len(staged.linearization.prior))])
    w_e = []
    for chain in layout.chains:
        w_e.append(1 / staged.scale[chain.nodes[0]])
        for k in range(chain.n_stages):
            w_e.append(1 / staged.scale[chain.inner[k]])
            if k + 1 < chain.n_stages:
                w_e.append(1 / staged.scale[chain.nodes[k + 1]])
    w = np.concatenate([w_r, np.sqrt(station.rho) / UNIT_PENALTY_RELATIVE_GAP * np.concatenate(w_e)])
    return w * np.concatenate([full.r, full.e]), w[:, None] * np.vstack([full.J, full.C])


@given(problems(n_c=0), seeds, st.floats(1e-6, 1.0), st.floats(0.0, 0.7), st.floats(0.1, 2.0))
def test_step_solves_the_dense_normal_equations_with_held_variables(problem, seed, mu, share, noise):
    staged = random_affine_problem(problem, seed)
    is_fixed = np.random.default_rng(seed).random(staged.layout.n_v) < share
    residual, jacobian = weighted(staged, STATION, noise)
    soft = RelaxedProblem(staged, STATION, noise)
    normal = soft.equations(staged.linearization)
    matrix, gradient = jacobian.T @ jacobian, jacobian.T @ residual
    assert close(soft.value(staged.linearization), 0.5 * residual @ residual)
    assert close(normal.gradient, gradient)
    assert close(normal.diagonal, np.diag(matrix))
    dv, free = np.zeros(gradient.size), ~is_fixed
    damped = matrix + mu * np.diag(np.maximum(np.diag(matrix), 1e-300))
    if (np.diag(damped)[free] < 1e-200).any():  # a variable that nothing depends on
        return
    dv[free] = np.linalg.solve(damped[np.ix_(free, free)], -gradient[free])
    step = normal.solve(mu, is_fixed)
    assert np.array_equal(step[is_fixed], dv[is_fixed])
    assert close(step, dv, 1e-10 * np.linalg.cond(damped[np.ix_(free, free)]) if free.any() else 0.0)
    assert close(normal.decrease(step), -gradient @ step - 0.5 * step @ matrix @ step)


def test_matrix_that_is_not_finite_gives_no_step():
    staged = random_affine_problem(random_problem(np.random.default_rng(0)), 0)
    j = staged.linearization.jacobians[0]
    broken = (replace(j, R_s=np.full_like(j.R_s, np.nan)), *staged.linearization.jacobians[1:])
    normal = RelaxedProblem(staged, STATION, 1.0).equations(replace(staged.linearization, jacobians=broken))
    assert normal.solve(1e-3, np.zeros(staged.layout.n_v, dtype=bool)) is None


TRANSCRIPTIONS = {
    "single": SingleShooting(),
    "multiple": MultipleShooting(3),
    "collocation": Collocation(degree=2, elements=3),
}


@pytest.mark.parametrize("name", TRANSCRIPTIONS)
def test_gradient_and_promised_decrease_are_those_of_the_value(name):
    """On a DAE with several experiments, priors, logarithms and padding."""
    problem = everything()
    staged = TRANSCRIPTIONS[name].transcribe(problem, problem.guess)
    rng = np.random.default_rng(1)
    v = staged.start + 0.02 * staged.scale * rng.standard_normal(staged.layout.n_v)
    soft = RelaxedProblem(staged, STATION, 0.7)
    normal = soft.equations(staged.linearize(v))
    direction = staged.scale * rng.standard_normal(staged.layout.n_v)
    h = 1e-4
    ahead, behind = (soft.value(staged.evaluate(v + sign * h * direction)) for sign in (1, -1))
    assert np.isclose(normal.gradient @ direction, (ahead - behind) / (2 * h), rtol=1e-5)
    # Half of the quadratic term's curvature comes from the residuals alone, which Gauss and Newton keep.
    small = 1e-5 * direction
    assert np.isclose(normal.decrease(small), -normal.gradient @ small, rtol=1e-2)
    fallen = soft.value(staged.linearize(v)) - soft.value(staged.evaluate(v + small))
    assert np.isclose(normal.decrease(small), fallen, rtol=1e-3)


@pytest.mark.parametrize("n_w", [0, 2])  # shooting, collocation
def test_without_softening_the_step_is_the_exact_one(n_w):
    layout, linearization = random_problem(np.random.default_rng(2), n_w=n_w, n_prior=14)
    staged = Affine(layout, linearization)
    exact = LocalProblem(staged, linearization).direction().dv
    errors = []
    for rho in (1e2, 1e3, 1e4):
        normal = RelaxedProblem(staged, RelaxationLevel(0.0, rho), 1.0).equations(linearization)
        dv = normal.solve(1e-16, np.zeros(layout.n_v, dtype=bool))
        errors.append(np.abs(dv - exact).max())
    assert errors[-1] < 1e-4
    assert np.allclose(np.array(errors[:-1]) / errors[1:], 10, rtol=0.1)  # first order in 1 / rho


def test_floor_limits_the_weight_of_accurate_data_only():
    staged = Formula(lambda q: q, lambda q: np.eye(2), [1.0, 1.0])
    staged.signal = (np.array([[100.0, 2.0]]),)
    soft = RelaxedProblem(staged, RelaxationLevel(0.1, 1.0), 1.0)
    assert np.isclose(soft.value(staged.evaluate(staged.start)), 0.5 * (0.1**2 + 1.0))


@pytest.mark.parametrize("name", TRANSCRIPTIONS)
def test_accepted_steps_lower_the_value_within_the_bounds(name):
    problem = lotka_volterra((0.5, 0.7, 1.2, 1.2), lower=0.4, upper=1.3)
    staged = TRANSCRIPTIONS[name].transcribe(problem, problem.guess)
    ledger, soft, mu = CountingProblem(staged), RelaxedProblem(staged, STATION, 1.0), 1e-3
    evaluation, values = ledger.evaluate(np.clip(staged.start, staged.lower, staged.upper)), []
    for _ in range(6):
        step = soft.step(ledger, ledger.linearize(evaluation.v), mu)
        values.append(soft.value(evaluation))
        if step.new_point is None:
            break
        assert step.value == soft.value(step.new_point) < values[-1]
        assert np.isclose(step.decrease, 1 - step.value / values[-1])
        assert (step.new_point.v >= staged.lower).all()
        assert (step.new_point.v <= staged.upper).all()
        evaluation, mu = step.new_point, step.damping
    assert values[-1] < 0.5 * values[0]


@pytest.mark.parametrize("sensitivities_only", [False, True])
def test_points_that_cannot_be_evaluated_are_never_accepted(sensitivities_only):
    """Minimum at 3, but everything beyond 2 fails: the step is shortened until it stays before."""
    toy = Formula(lambda q: q - 3.0, lambda q: np.eye(1), [0.0])
    staged = Faulty(toy, lambda v: bool(v[0] > 2.0), sensitivities_only=sensitivities_only)
    ledger, soft = CountingProblem(staged), RelaxedProblem(toy, STATION, 1.0)
    step = soft.step(ledger, ledger.linearize(np.zeros(1)), 1e-3)
    assert 0.5 < step.new_point.v[0] <= 2.0
    assert step.used_damping > 0.1
    assert ledger.failures["step_size"] > 0


def test_a_point_that_nothing_improves_is_kept():
    toy = Formula(lambda q: q - 3.0, lambda q: np.eye(1), [3.0])
    step = RelaxedProblem(toy, STATION, 1.0).step(CountingProblem(toy), toy.linearize(toy.start), 1e-3)
    assert step.new_point is None
    assert step.decrease == 0.0


def test_variables_leave_their_bounds_only_inwards():
    toy = Formula(lambda q: q - np.array([3.0, -3.0]), lambda q: np.eye(2), [1.0, 1.0])
    toy.lower, toy.upper = np.array([1.0, 1.0]), np.array([10.0, 10.0])
    step = RelaxedProblem(toy, STATION, 1.0).step(CountingProblem(toy), toy.linearize(toy.start), 1e-9)
    assert np.allclose(step.new_point.v, [3.0, 1.0])


def test_value_is_infinite_where_a_stage_failed():
    toy = Formula(lambda q: q, lambda q: np.eye(1), [1.0])
    staged = Faulty(toy, lambda v: True)
    assert RelaxedProblem(staged, STATION, 1.0).value(staged.evaluate(staged.start)) == np.inf


def test_price_of_a_gap():
    """At rho = 1 a gap of 6.5 % of the state's magnitude costs as much as one standard deviation."""
    layout, linearization = random_problem(np.random.default_rng(5), stages=(1,), n_r=0, n_s=1, n_prior=0)
    staged = Affine(layout, linearization)
    staged.scale = np.full(layout.n_v, 4.0)
    gap = gaps(layout, linearization)[0][0, 0]
    value = RelaxedProblem(staged, RelaxationLevel(0.0, 1.0), 1.0).value(linearization)
    assert np.isclose(value, 0.5 * (gap / (0.065 * 4.0)) ** 2)
