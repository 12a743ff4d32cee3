"""Condensing is an exact elimination: every row of the condensed problem is a row of the full one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from castfit._support.status import InputError
from castfit.solve.condensing import (
    Substitution,
    condense,
    eliminate_inner,
    expand,
    multipliers,
    recondense,
)
from castfit.solve.matrices import BlockLU
from castfit.solve.staged import Failure, Multipliers
from tests.solve.blocks import (
    bounded_step,
    close,
    dense,
    draw_bounds,
    flat_multipliers,
    kkt_solution,
    lagrangian_gradient,
    optimality_errors,
    predicted,
    problems,
    random_problem,
)


@given(problems(), st.integers(0, 2**32 - 1))
def test_every_row_is_that_of_the_full_problem(problem, seed):
    layout, linearization = problem
    full, condensed = dense(layout, linearization), condense(layout, linearization)
    x = np.random.default_rng(seed).standard_normal(condensed.n_x)
    dv = expand(condensed, x)
    assert close(full.C @ dv, -full.e)
    assert close(condensed.u + condensed.E @ x, full.r + full.J @ dv)
    assert close(condensed.c + condensed.C @ x, full.c + full.P @ dv)
    assert np.array_equal(dv[condensed.positions], x)
    assert np.array_equal(condensed.positions, np.arange(layout.n_theta))
    for part in condensed.chains:
        h, H = part.inner()
        assert close(h + H @ x[part.columns], dv[part.chain.inner])
        assert close(part.g + part.G @ x[part.columns], dv[part.chain.nodes])


@given(problems(determined=True))
def test_step_and_multipliers_are_those_of_the_dense_kkt_system(problem):
    layout, linearization = problem
    full, condensed = dense(layout, linearization), condense(layout, linearization)
    x = np.linalg.lstsq(condensed.E, -condensed.u, rcond=None)[0]
    dv, expected_multipliers = kkt_solution(full)
    assert close(expand(condensed, x), dv)
    assert close(flat_multipliers(multipliers(condensed, condensed.u + condensed.E @ x)), expected_multipliers)


@given(problems(max_null=1), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 0.5]))
def test_bounded_step_is_optimal_in_the_full_problem(problem, seed, share):
    """With bounds on theta, nodes and inner variables, path constraints, and a rank-deficient E."""
    layout, linearization = problem
    full, condensed = dense(layout, linearization), condense(layout, linearization)
    lower, upper = draw_bounds(np.random.default_rng(seed), linearization.v, share)
    step = bounded_step(layout, condensed, lower, upper)
    assume(step.solution.feasible)
    errors = optimality_errors(layout, full, step, lower - linearization.v, upper - linearization.v)
    size = max(1.0, np.abs(step.dv).max())
    assert all(error < 1e-8 * size for error in errors.values()), errors


@given(problems(), st.integers(0, 2**32 - 1))
def test_multipliers_make_the_gradient_vanish_in_nodes_and_inner_variables(problem, seed):
    layout, linearization = problem
    rng = np.random.default_rng(seed)
    full, condensed = dense(layout, linearization), condense(layout, linearization)
    residuals, bounds = rng.standard_normal(condensed.u.size), rng.standard_normal(layout.n_v)
    path = rng.standard_normal(condensed.c.size)
    chain_multipliers = multipliers(condensed, residuals, bounds=bounds, path=path)
    gradient = full.J.T @ residuals + full.C.T @ flat_multipliers(chain_multipliers) + full.P.T @ path + bounds
    assert close(gradient[layout.n_theta :], 0.0)
    reduced_gradient = condensed.E.T @ residuals + condensed.C.T @ path + bounds[: layout.n_theta]
    for part in condensed.chains:
        reduced_gradient[part.chain.theta] += np.einsum("kij,ki->j", part.G, bounds[part.chain.nodes])
        reduced_gradient[part.chain.theta] += np.einsum("kij,ki->j", part.inner()[1], bounds[part.chain.inner])
    assert close(gradient[: layout.n_theta], reduced_gradient)  # in theta it is the gradient along the constraints


@given(problems(), st.integers(0, 2**32 - 1))
def test_gradient_of_the_lagrangian_is_the_dense_product(problem, seed):
    layout, linearization = problem
    rng = np.random.default_rng(seed)
    chain_multipliers = tuple(
        Multipliers(
            rng.standard_normal(chain.n_s),
            rng.standard_normal((chain.n_stages, chain.n_w)),
            rng.standard_normal((chain.n_stages - 1, chain.n_s)),
            rng.standard_normal((chain.n_stages, chain.n_c)),
        )
        for chain in layout.chains
    )
    bounds, full = rng.standard_normal(layout.n_v), dense(layout, linearization)
    path = np.concatenate([m.path.ravel() for m in chain_multipliers])
    expected = full.J.T @ full.r + full.C.T @ flat_multipliers(chain_multipliers) + full.P.T @ path + bounds
    assert close(lagrangian_gradient(layout, linearization, chain_multipliers, bounds), expected)


@given(problems(max_w=0))
def test_backward_recursion_of_the_paper_gives_the_same_matrix(problem):
    """Peifer and Timmer 2007, Eq. 11, row block by row block; one more step eliminates s_0 = a(q)."""
    layout, linearization = problem
    condensed = condense(layout, linearization)
    row = 0
    for chain, values, j in zip(layout.chains, linearization.values, linearization.jacobians, strict=True):
        for k in range(chain.n_stages):
            u, E, P = values.r[k], j.R_s[k], j.R_q[k]
            for i in range(k, 0, -1):
                h = values.x[i - 1] - linearization.v[chain.nodes[i]]
                u, E, P = u + E @ h, E @ j.X_s[i - 1], P + E @ j.X_q[i - 1]
            u, P = u + E @ (values.a - linearization.v[chain.nodes[0]]), P + E @ j.A
            measured = chain.row_mask[k]
            rows = slice(row, row + int(measured.sum()))
            assert close(condensed.u[rows], u[measured])
            assert close(condensed.E[rows][:, chain.theta], P[measured])
            row = rows.stop


@given(problems(), st.integers(0, 2**32 - 1))
def test_recondense_is_condensing_with_new_values(problem, seed):
    layout, linearization = problem
    rng = np.random.default_rng(seed)
    values = tuple(
        replace(v, r=v.r + 0.1 * mask, a=v.a - 0.2, d=2 * v.d, x=v.x + rng.standard_normal(v.x.shape), c=v.c + 1)
        for v, mask in zip(linearization.values, (chain.row_mask for chain in layout.chains), strict=True)
    )
    new_linearization = replace(
        linearization, v=linearization.v + rng.standard_normal(layout.n_v), values=values, prior=linearization.prior + 1
    )
    actual, expected = (
        recondense(condense(layout, linearization), new_linearization),
        condense(layout, new_linearization),
    )
    x = rng.standard_normal(layout.n_theta)
    assert close(expand(actual, x), expand(expected, x))
    assert np.array_equal(actual.v, new_linearization.v)
    for name in ("u", "E", "c", "C"):
        assert close(getattr(actual, name), getattr(expected, name))


@given(st.integers(0, 6), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_adjoint_of_substitution_is_its_transpose(conditions, n_s, p, seed):
    rng = np.random.default_rng(seed)
    nodes = Substitution(rng.standard_normal((conditions, n_s, n_s)))
    b, gradient = rng.standard_normal((2, conditions + 1, n_s, p))
    s, closure = nodes.solve(b)
    assert closure.shape == (0, p)
    assert np.isclose(np.vdot(gradient, s), np.vdot(nodes.adjoint(gradient, closure), b))


def test_single_shooting_has_no_nodes_and_the_blocks_are_the_answer():
    layout, linearization = random_problem(np.random.default_rng(2), stages=(3,), n_s=0, local=0, padding=False)
    condensed = condense(layout, linearization)
    assert np.array_equal(condensed.E, linearization.jacobians[0].R_q.reshape(-1, layout.n_theta))
    assert np.array_equal(condensed.u, linearization.values[0].r.ravel())


def test_product_of_many_stages_matches_powers():
    """x' = q in every stage: the node k has derivative k with respect to q."""
    layout, linearization = random_problem(
        np.random.default_rng(3), stages=(50,), n_s=1, shared=1, local=0, free_initial=False
    )
    j = linearization.jacobians[0]
    linear = replace(linearization, jacobians=(replace(j, X_s=np.ones_like(j.X_s), X_q=np.ones_like(j.X_q)),))
    assert np.array_equal(condense(layout, linear).chains[0].G.ravel(), np.arange(50.0))


def test_singular_inner_equations_are_reported_and_do_no_harm_elsewhere():
    layout, linearization = random_problem(np.random.default_rng(4), stages=(5,), n_w=2, n_prior=6)
    j = linearization.jacobians[0]
    D_w = j.D_w.copy()
    D_w[3] = [[1.0, 2.0], [2.0, 4.0]]
    singular = replace(linearization, jacobians=(replace(j, D_w=D_w),))
    condensed = condense(layout, singular)
    assert condensed.singular == (("experiment 0", 3),)
    assert condense(layout, linearization).singular == ()
    assert np.allclose(condensed.chains[0].G[:4], condense(layout, linearization).chains[0].G[:4])
    dv = expand(condensed, np.ones(condensed.n_x))
    residual = predicted(singular.values[0].d, (j.D_s, j.D_q, D_w), layout.chains[0], dv)
    assert np.abs(residual[[0, 1, 2, 4]]).max() < 1e-12
    assert np.abs(D_w[3].T @ residual[3]).max() < 1e-12  # the least-squares step
    assert np.abs(residual[3]).max() > 1e-3


def test_inner_elimination_solves_the_inner_equations():
    _, linearization = random_problem(np.random.default_rng(5), stages=(4,), n_w=3)
    j, d = linearization.jacobians[0], linearization.values[0].d
    stages = eliminate_inner(j, d)
    assert np.allclose(j.D_w @ stages.W_s + j.D_s, 0)
    assert np.allclose(j.D_w @ stages.W_q + j.D_q, 0)
    assert np.allclose((j.D_w @ stages.h[:, :, None])[:, :, 0] + d, 0)


def test_factors_solve_both_ways_and_singular_matrices_by_the_shortest_step():
    rng = np.random.default_rng(2)
    D, b = rng.standard_normal((5, 4, 4)), rng.standard_normal((5, 4, 3))
    D[3, :, 1] = 0.0
    factors = BlockLU.factorize(D)
    assert factors.singular == (3,)
    for matrices, solutions in ((D, factors.solve(b)), (D.swapaxes(1, 2), factors.solve_transposed(b))):
        for k in range(5):
            np.testing.assert_allclose(solutions[k], np.linalg.lstsq(matrices[k], b[k])[0], rtol=1e-9, atol=1e-12)
    assert BlockLU.factorize(np.empty((3, 0, 0))).solve(np.empty((3, 0, 2))).shape == (3, 0, 2)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_factors_do_not_depend_on_units(seed, n):
    rng = np.random.default_rng(seed)
    D, b = np.eye(n) + rng.normal(size=(3, n, n)), rng.normal(size=(3, n, 2))
    unit, row = (10.0 ** rng.integers(-30, 31, (3, n)) for _ in range(2))
    factors, scaled_factors = BlockLU.factorize(D), BlockLU.factorize(row[:, :, None] * D / unit[:, None], unit)
    for solved, rhs, units in (("solve", row, unit), ("solve_transposed", 1.0 / unit, 1.0 / row)):
        x, y = getattr(factors, solved)(b), getattr(scaled_factors, solved)(rhs[:, :, None] * b)
        np.testing.assert_allclose(y / units[:, :, None], x, rtol=1e-7, atol=1e-9 * np.abs(x).max())


@pytest.mark.parametrize(
    "act", [condense, lambda layout, bad: recondense(condense(layout, replace(bad, failures=())), bad)]
)
def test_a_failed_stage_is_refused(act):
    layout, linearization = random_problem(np.random.default_rng(6))
    bad = replace(linearization, failures=(Failure("experiment 1", 2, "step_size", "stopped at t = 0.3"),))
    with pytest.raises(InputError, match=r"stage 2 of experiment 1 failed \(step_size\); use a point"):
        act(layout, bad)
