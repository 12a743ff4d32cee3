"""Own unknowns eliminated chain by chain: the same steps as those of the dense problem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import castfit as cf
from castfit._bench.many_experiments import many_experiments
from castfit._support.sparse_rows import sparse_rows
from castfit.solve import arrow as arrows
from castfit.solve import subproblem as local_problems
from castfit.solve.block_pivoting import solve_boxed_batch
from castfit.solve.bounded_lsq import bounded_lsq
from castfit.solve.condensing import condense
from castfit.solve.subproblem import LocalProblem
from tests.solve.blocks import random_problem
from tests.solve.toys import Affine


def both_steps(staged, linearization, *, regularisation=1e-9, **options):
    """Return the steps of the dense problem and of the arrow."""
    steps = []
    for few in (10**9, -1):
        with pytest.MonkeyPatch.context() as patch:
            for place in (arrows, local_problems):
                patch.setattr(place, "MAX_DENSE_LOCAL_UNKNOWNS", few)
            local = LocalProblem(staged, linearization, regularisation=regularisation)
            assert local._eliminates == (few < 0)
            damping = options.get("damping")
            steps.append(local.direction(damping=None if damping is None else damping / local.column_scale))
    return steps


def assert_same(one, other, tolerance=1e-9):
    for name in ("dv", "residuals", "bound_multipliers", "path_multipliers"):
        a, b = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * (1.0 + np.abs(a).max(initial=0.0)), err_msg=name)
    assert one.predicted == pytest.approx(other.predicted, rel=1e-9)
    assert one.decrease == pytest.approx(other.decrease, rel=1e-8)
    assert one.feasible == other.feasible


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.02, 2.0), st.booleans(), st.integers(0, 12))
def test_bounded_steps_are_those_of_the_dense_problem(seed, room, damped, n_bound):
    rng = np.random.default_rng(seed)
    stages = tuple(rng.integers(1, 5, size=rng.integers(2, 7)))
    layout, linearization = random_problem(rng, stages=stages, n_r=5, shared=2, local=2, n_s=1, padding=seed % 2 == 0)
    staged = Affine(layout, linearization)
    assume(LocalProblem(staged, linearization, regularisation=1e-6).held_directions == 0)  # else there are many minima
    bounded = rng.permutation(layout.n_theta)[:n_bound]
    staged.lower[bounded] = linearization.v[bounded] - room * rng.random(bounded.size)
    staged.upper[bounded] = linearization.v[bounded] + room * rng.random(bounded.size)
    if n_bound > 3:
        fixed = bounded[0]
        staged.lower[fixed] = staged.upper[fixed] = linearization.v[fixed]
    dense, arrow = both_steps(staged, linearization, damping=0.3 if damped else None)
    assert_same(dense, arrow)
    np.testing.assert_array_equal(dense.active.variables, arrow.active.variables)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_priors_of_own_and_shared_quantities_belong_to_their_chains(seed):
    rng = np.random.default_rng(seed)
    layout, linearization = random_problem(rng, stages=(3, 2, 4, 1), n_r=4, shared=3, local=2, n_s=1, n_prior=9)
    prior = linearization.prior_jacobian
    for row in range(9):  # of own quantities of one chain and shared ones; of shared ones alone; of two chains
        keep = np.r_[[row % 3], 3 + 3 * (row % 4) + np.arange(3)] if row < 7 else np.arange(2)
        keep = np.r_[3, 6] if row == 8 and seed % 3 == 0 else keep
        prior[row, np.setdiff1d(np.arange(layout.n_theta), keep)] = 0.0
    staged = Affine(layout, linearization)
    staged.upper[4] = linearization.v[4] + 0.01
    assert_same(*both_steps(staged, linearization))
    arrow = arrows.arrow(condense(layout, linearization).rows, np.ones(layout.n_theta))
    assert arrow.free.sum() == (2 if seed % 3 == 0 else 4)  # a prior on two chains ties them


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_nodes_and_path_constraints_at_bounds_tie_their_chains(seed, equal):
    rng = np.random.default_rng(seed)
    layout, linearization = random_problem(rng, stages=(3, 2, 4), n_r=4, n_c=1, shared=2, local=1)
    if equal:
        layout.chains[0].constraint_upper[:] = np.inf
        layout.chains[0].constraint_lower[:] = -np.inf
        layout.chains[0].constraint_upper[0] = layout.chains[0].constraint_lower[0] = 0.1
    staged = Affine(layout, linearization)
    node = layout.chains[1].nodes[1, 0]
    staged.upper[node] = linearization.v[node] + 0.02 * rng.random()
    dense, arrow = both_steps(staged, linearization)
    assert_same(dense, arrow, 1e-7)


@pytest.mark.parametrize("where", ["shared", "own", "between"])
def test_singular_directions_are_fixed_at_the_minimum_norm_step(where):
    rng = np.random.default_rng(5)
    layout, linearization = random_problem(rng, stages=(3, 4, 2), n_r=4, shared=3, local=2, n_s=0, padding=False)
    for chain, j in zip(layout.chains, linearization.jacobians, strict=True):
        if where == "shared":
            j.R_q[:, :, 1] = 2.0 * j.R_q[:, :, 0]
        elif where == "between":  # a shared quantity multiplies an own one of every chain
            j.R_q[:, :, 2] = 3.0 * j.R_q[:, :, 3]
        elif chain is layout.chains[1]:
            j.R_q[:, :, 4] = j.R_q[:, :, 3]
    dense, arrow = both_steps(Affine(layout, linearization), linearization)
    assert_same(dense, arrow, 1e-7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrows, "MAX_DENSE_LOCAL_UNKNOWNS", -1)
        local = LocalProblem(Affine(layout, linearization), linearization, regularisation=1e-9)
        assert local.held_directions == 1
        assert local.condition > 1e9


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.0, 3.0))
def test_small_bounded_problems_at_once_are_those_one_by_one(seed, o, room):
    rng = np.random.default_rng(seed)
    R, r = rng.standard_normal((7, o, o)) + 2 * np.eye(o), rng.standard_normal((7, o))
    lower, upper = -room * rng.random((7, o)), room * rng.random((7, o))
    lower[rng.random((7, o)) < 0.3], upper[rng.random((7, o)) < 0.3] = -np.inf, np.inf
    guess = rng.integers(-1, 2, (7, o)).astype(np.int8)
    x, signs = solve_boxed_batch(R, r, lower, upper, guess)
    for i in range(7):
        solution = bounded_lsq(r[i], R[i], lower=lower[i], upper=upper[i])
        np.testing.assert_allclose(x[i], solution.x, atol=1e-9)
        expected = np.where(signs[i] < 0, lower[i], np.where(signs[i] > 0, upper[i], x[i]))
        np.testing.assert_array_equal(x[i], expected)


def test_factors_of_own_unknowns_are_those_of_the_information_matrix():
    rng = np.random.default_rng(2)
    layout, linearization = random_problem(rng, stages=(3, 4, 2), n_r=4, shared=3, local=2, n_s=1)
    condensed = condense(layout, linearization)
    compressed_arrow = arrows.arrow(condensed.rows, np.ones(condensed.n_x)).factor_chains(condensed.u)
    zero = [np.zeros(batch.local_unknowns.shape) for batch in compressed_arrow.arrow.batches]
    factors = compressed_arrow.eliminate([np.zeros(values.shape, dtype=np.int8) for values in zero], zero, zero)
    H, gradient = condensed.E.T @ condensed.E, condensed.E.T @ condensed.u
    for part in factors.parts:
        for n, own_indices in enumerate(part.batch.local_unknowns):
            border = factors.arrow.border[part.batch.border_entries[n]]
            own_block = H[np.ix_(own_indices, own_indices)]
            np.testing.assert_allclose(part.R[n].T @ part.R[n], own_block, atol=1e-10)
            np.testing.assert_allclose(
                part.response[n], -np.linalg.solve(own_block, H[np.ix_(own_indices, border)]), atol=1e-9
            )
            np.testing.assert_allclose(part.offset[n], -np.linalg.solve(own_block, gradient[own_indices]), atol=1e-9)
    covariance = np.linalg.inv(H)[np.ix_(factors.arrow.border, factors.arrow.border)]
    T = factors.border[:, :-1]
    np.testing.assert_allclose(np.linalg.inv(T.T @ T), covariance, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_solve_arrow_agrees_with_a_dense_solve(seed, across):
    rng = np.random.default_rng(seed)
    n, columns, blocks = 2 + 5 * 3, [], []
    matrix = np.zeros((n, n))
    for i in range(5):
        indices = rng.permutation(np.r_[0, 1, 2 + 3 * i + np.arange(3)])
        J = rng.standard_normal((6, 5))
        columns.append(indices)
        blocks.append(J.T @ J)
        matrix[np.ix_(indices, indices)] += blocks[-1]
    prior = np.zeros((4, n))
    prior[0, [0, 3]] = prior[1, [1, 6]] = prior[2, 1] = 1.3
    prior[3, [2, 5] if across else [2, 4]] = -0.7  # own quantities of two chains, or of one
    diagonal, b = 0.1 + rng.random(n), rng.standard_normal(n)
    expected = np.linalg.solve(matrix + prior.T @ prior + np.diag(diagonal), b)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrows, "MAX_DENSE_LOCAL_UNKNOWNS", -1)
        solution = arrows.solve_arrow(columns, blocks, sparse_rows(prior).product(), diagonal, b)
    np.testing.assert_allclose(solution, expected, atol=1e-9)


def test_priors_of_own_quantities_stay_sparse_in_every_solver(monkeypatch):
    problem = many_experiments(12).replace(priors={"b": cf.Normal(0.5, 0.2)})
    priors = problem.priors(problem.guess)
    assert priors.jacobian.shape == (12, 40)
    assert priors.jacobian.entry.size == 12
    monkeypatch.setattr("castfit.solve.ipopt._MAX_DENSE_HESSIAN_QUANTITIES", 0)
    monkeypatch.setattr(arrows, "MAX_DENSE_LOCAL_UNKNOWNS", 10)
    reference, other = cf.fit(problem, "collocation"), cf.fit(problem, "collocation", "ipopt")
    monkeypatch.setattr(arrows, "MAX_DENSE_LOCAL_UNKNOWNS", 10**9)
    dense = cf.fit(problem, "collocation")
    for result in (other, dense):
        assert result.success
        for name, value in reference.values.items():
            assert abs(result.values[name] - value) < 1e-3 * reference.standard_errors[name]
            assert result.standard_errors[name] == pytest.approx(reference.standard_errors[name], rel=1e-4)
