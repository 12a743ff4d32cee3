"""The local problem's step is that of the full linearized problem, whatever was eliminated on the way."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from castfit.solve.condensing import multipliers
from castfit.solve.subproblem import ActiveSet, LocalProblem
from tests.solve.blocks import (
    BoundedStep,
    Dense,
    close,
    dense,
    draw_bounds,
    flat_multipliers,
    kkt_solution,
    lagrangian_gradient,
    optimality_errors,
    path_bounds,
    problems,
    random_problem,
)
from tests.solve.toys import Affine

seeds = st.integers(0, 2**32 - 1)


def equations(local, step):
    """Multipliers of all equations that belong to a step."""
    return multipliers(
        local.condensed,
        step.residuals,
        bounds=step.bound_multipliers,
        path=step.path_multipliers,
        closure=step.closure_multipliers,
    )


def bounded(problem, seed, share):
    """A random problem with random bounds close to its point."""
    staged = Affine(*problem)
    staged.lower, staged.upper = draw_bounds(np.random.default_rng(seed), staged.start, share)
    return staged


def errors_of(staged, local, step):
    """By how much a step violates the optimality conditions of the full problem."""
    as_given = BoundedStep(
        step.dv, equations(local, step), step.bound_multipliers, step.path_multipliers, solution=None
    )
    full, v = dense(staged.layout, staged.linearization), staged.linearization.v
    return optimality_errors(staged.layout, full, as_given, staged.lower - v, staged.upper - v)


@given(problems(determined=True, n_c=0))
def test_without_bounds_step_and_multipliers_are_those_of_the_dense_kkt_system(problem):
    staged = Affine(*problem)
    local = LocalProblem(staged, staged.linearization)
    step, (dv, expected_multipliers) = local.direction(), kkt_solution(dense(*problem))
    assert close(step.dv, dv)
    assert close(flat_multipliers(equations(local, step)), expected_multipliers)
    next_evaluation = staged.evaluate(staged.start + step.dv)
    assert close(step.predicted, next_evaluation.cost)


@given(problems(determined=True), seeds, st.sampled_from([0.1, 0.5, 0.9]))
def test_bounded_step_solves_the_dense_kkt_system_with_its_active_set_as_equations(problem, seed, share):
    staged = bounded(problem, seed, share)
    local = LocalProblem(staged, staged.linearization)
    step = local.direction()
    assume(step.feasible)
    assert all(error < 1e-8 * max(1.0, np.abs(step.dv).max()) for error in errors_of(staged, local, step).values())
    full, v, n = dense(*problem), staged.start, staged.layout.n_v
    # Numbers of a size that rounding cannot explain; complementarity says that these are all.
    active_indices = np.flatnonzero(np.abs(step.bound_multipliers) > 1e-8)
    path = np.flatnonzero(np.abs(step.path_multipliers) > 1e-8)
    (lower, upper), sign = path_bounds(staged.layout), np.sign(step.path_multipliers[path])
    target = (
        np.where(step.bound_multipliers[active_indices] < 0, staged.lower[active_indices], staged.upper[active_indices])
        - v[active_indices]
    )
    limit = np.where(sign < 0, lower[path], upper[path])
    C = np.vstack([full.C, np.eye(n)[active_indices], full.P[path]])
    e = np.concatenate([full.e, -target, full.c[path] - limit])
    condition = np.linalg.cond(C) if C.size else 1.0
    assume(condition < 1e6)
    dv, _ = kkt_solution(Dense(full.r, full.J, e, C, full.c, full.P))
    assert close(step.dv, dv, 1e-9 * condition)


@given(problems(max_null=1), seeds, st.sampled_from([0.0, 0.1, 0.5]))
def test_steps_of_rank_deficient_problems_are_optimal(problem, seed, share):
    staged = bounded(problem, seed, share)
    local = LocalProblem(staged, staged.linearization)
    step = local.direction()
    assume(step.feasible)
    # Directions that no data determine have a stiffness of 1e-7, and their forces so much fewer digits.
    assert all(error < 1e-6 * max(1.0, np.abs(step.dv).max()) for error in errors_of(staged, local, step).values())


@given(problems(determined=True), seeds)
def test_multipliers_make_the_gradient_of_the_lagrangian_vanish_after_the_step(problem, seed):
    staged = bounded(problem, seed, 0.4)
    local = LocalProblem(staged, staged.linearization)
    step = local.direction()
    assume(step.feasible)
    next_linearization = staged.linearize(staged.start + step.dv)
    chain_multipliers = equations(local, step)
    gradient = lagrangian_gradient(staged.layout, next_linearization, chain_multipliers, step.bound_multipliers)
    terms = np.concatenate([step.dv, step.bound_multipliers, flat_multipliers(chain_multipliers)])
    assert np.abs(gradient).max() < 1e-8 * max(1.0, np.abs(terms).max())


@given(problems(determined=True), seeds)
def test_correction_from_the_same_point_is_the_direction(problem, seed):
    staged = bounded(problem, seed, 0.3)
    local = LocalProblem(staged, staged.linearization)
    assert close(local.correction(staged.evaluate(staged.start)).dv, local.direction().dv)


@given(problems(determined=True, n_c=0), st.floats(0.0, 1.0))
def test_correction_along_the_direction_is_what_is_left_of_it(problem, factor):
    """Of a linear problem the simplified correction after a fraction of the step is the rest: omega vanishes."""
    staged = Affine(*problem)
    local = LocalProblem(staged, staged.linearization)
    dv = local.direction().dv
    assert close(local.correction(staged.evaluate(staged.start + factor * dv)).dv, (1 - factor) * dv)


@given(problems(determined=True), seeds, seeds)
def test_a_guessed_active_set_does_not_change_the_step(problem, seed, guess):
    staged = bounded(problem, seed, 0.5)
    cold = LocalProblem(staged, staged.linearization).direction()
    assume(cold.feasible)
    rng = np.random.default_rng(guess)
    signs = (rng.integers(-1, 2, size).astype(np.int8) for size in (staged.layout.n_v, cold.path_multipliers.size))
    for warm in (cold.active, ActiveSet(*signs)):
        assert close(LocalProblem(staged, staged.linearization, warm=warm).direction().dv, cold.dv, 1e-8)


def unstable(seed):
    """Two stages, nodes grow by 10^7; the last state is an integral that nothing measures or depends on."""
    layout, linearization = random_problem(
        np.random.default_rng(seed), stages=(2,), n_s=3, n_prior=1, gain=1e7, padding=False, local=0
    )
    j = linearization.jacobians[0]
    X_s, R_s = j.X_s.copy(), j.R_s.copy()
    X_s[:, :-1, -1], X_s[:, -1], X_s[:, -1, -1], R_s[:, :, -1] = 0.0, 1.0, 1.0, 0.0
    return layout, replace(linearization, jacobians=(replace(j, X_s=X_s, R_s=R_s),))


@pytest.mark.parametrize("seed", range(5))
def test_regularisation_spares_what_only_the_closure_determines(seed):
    """The last node stays unknown; data do not see the integral in it, but the matching conditions fix it."""
    staged = Affine(*unstable(seed))
    # The initial value of the integral is known, so all of the problem is determined.
    last_index = staged.layout.n_theta - 1
    staged.lower[last_index] = staged.upper[last_index] = staged.start[last_index]
    local = LocalProblem(staged, staged.linearization, regularisation=1e-9)
    assert local.condensed.n_x > last_index + 1
    full, fixed = dense(staged.layout, staged.linearization), np.eye(staged.layout.n_v)[[last_index]]
    dv, _ = kkt_solution(Dense(full.r, full.J, np.append(full.e, 0.0), np.vstack([full.C, fixed]), full.c, full.P))
    assert close(local.direction().dv, dv, 1e-7)


@pytest.mark.parametrize("gain", [0.7, 30.0])  # condensed, eliminated
def test_singular_directions_are_found_and_held(gain):
    layout, linearization = random_problem(
        np.random.default_rng(3), stages=(9,), n_s=2, gain=gain, null_directions=1, n_prior=8
    )
    staged = Affine(layout, linearization)
    free_problem = LocalProblem(staged, linearization, regularisation=0.0)
    regularized_problem = LocalProblem(staged, linearization, regularisation=1e-9)
    assert (regularized_problem.condensed.n_x > layout.n_theta) == (gain > 1)
    assert free_problem._singular[1].shape == (regularized_problem.condensed.n_x, 0)
    (direction,) = regularized_problem._singular[1].T
    in_theta = regularized_problem.column_scale * direction
    n_x, sign = regularized_problem.condensed.n_x, np.sign(in_theta[0])
    assert close(in_theta / np.abs(in_theta).max(), sign * (np.eye(1, n_x)[0] - np.eye(1, n_x, 1)[0]), 1e-6)
    assert regularized_problem.condition > 1e9
    step = regularized_problem.direction()
    scaled = step.dv[regularized_problem.condensed.positions] / regularized_problem.column_scale
    assert abs(direction @ scaled) < 1e-6 * np.abs(scaled).max()
    assert close(step.predicted, free_problem.direction().predicted, 1e-6)


@pytest.mark.parametrize("regularisation", [0.0, 1e-9])
def test_matrices_do_not_wait_for_the_garbage_collector(regularisation):
    """Of 240 states each iteration's were kept until it ran: 860 MB, not 340."""
    layout, linearization = random_problem(np.random.default_rng(3), n_prior=8)
    gc.disable()
    try:
        local = LocalProblem(Affine(layout, linearization), linearization, regularisation=regularisation)
        assert local.compute_trust_region_step(1.0).decrease == local.predicted_decrease
        reference = weakref.ref(local)
        del local
        assert reference() is None
    finally:
        gc.enable()


def test_damping_rows_give_the_levenberg_marquardt_step():
    layout, linearization = random_problem(np.random.default_rng(4), n_prior=12)
    local = LocalProblem(Affine(layout, linearization), linearization)
    E, u, D = local.condensed.E, local.condensed.u, 1 / local.column_scale
    step = local.direction(damping=0.3 * D)
    x = np.linalg.solve(E.T @ E + 0.09 * np.diag(D**2), -E.T @ u)
    assert close(step.dv[: layout.n_theta], x)
    assert close(step.residuals, u + E @ x)  # of the problem without damping
    assert close(step.decrease, 0.5 * np.sum((E @ x) ** 2))


def test_contradictory_bounds_are_reported():
    layout, linearization = random_problem(np.random.default_rng(5), stages=(3,), shared=1, local=0, free_initial=False)
    staged = Affine(layout, linearization)
    staged.lower[layout.chains[0].nodes[0]] = 100.0  # the initial state is given, and is not 100
    assert not LocalProblem(staged, linearization).direction().feasible


def test_padding_of_path_constraints_may_be_nan():
    layout, linearization = random_problem(np.random.default_rng(6), stages=(3,), n_c=2, n_prior=8)
    real = np.array([[True, False], [True, True], [False, False]])
    limits = {"constraint_lower": np.where(real, -0.01, -np.inf), "constraint_upper": np.where(real, 0.01, np.inf)}
    layout = replace(layout, chains=(replace(layout.chains[0], **limits),))
    values, j = linearization.values[0], linearization.jacobians[0]
    padded = replace(
        linearization,
        values=(replace(values, c=np.where(real, values.c, np.nan)),),
        jacobians=(replace(j, C_q=np.where(real[:, :, None], j.C_q, np.inf)),),
    )
    expected = LocalProblem(Affine(layout, linearization), linearization).direction()
    step = LocalProblem(Affine(layout, padded), padded).direction()
    assert np.count_nonzero(step.path_multipliers) > 1
    assert close(step.dv, expected.dv)
    assert close(step.path_multipliers, expected.path_multipliers)


def test_overflow_is_noticed():
    layout, linearization = random_problem(np.random.default_rng(7), n_prior=8)
    staged = Affine(layout, linearization)
    local = LocalProblem(staged, linearization)
    assert local.is_finite
    values = tuple(replace(v, x=np.full_like(v.x, 1e307)) for v in linearization.values)
    assert local.correction(replace(staged.evaluate(staged.start), values=values)) is None
    j = tuple(replace(j, R_q=np.full_like(j.R_q, np.inf)) for j in linearization.jacobians)
    assert not LocalProblem(staged, replace(linearization, jacobians=j)).is_finite
