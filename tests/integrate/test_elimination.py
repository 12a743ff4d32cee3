"""Sparse factorization in an order chosen beforehand: it solves, keeps sparse what is, and knows when it may not."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import expm

import castfit as cf
from castfit import Model, symbols
from castfit.integrate import Integrator, IntegratorOptions, method_of
from castfit.integrate.esdirk import ESDIRK5, elimination
from castfit.integrate.esdirk_binding import NativeModel, StepSizes, missing_integrator_reason
from tests.integrate.test_esdirk import graph_of, one

pytestmark = pytest.mark.skipif(missing_integrator_reason() != "", reason="needs a C compiler")


def _factorized(order, n, M):
    """Follow the lists: return L, with ones, and U, whose product is M with rows and columns in order."""
    values, L, U, target = np.zeros(order.entry_columns.size), np.eye(n), np.zeros((n, n)), 0
    rank = np.argsort(order.columns)
    for k in range(n):
        span = range(order.begin[k], order.begin[k + 1])
        values[list(span)] = [M[order.rows[k], order.entry_columns[q]] for q in span]
    for k in range(n):
        for q in range(order.begin[k], order.pivot[k]):
            i = order.earlier[q]
            values[q] /= values[order.pivot[i]]
            for u in range(order.pivot[i] + 1, order.begin[i + 1]):
                if i < order.tail:
                    position, target = order.targets[target], target + 1
                else:  # what is dense stands side by side, to the end of the row
                    position = order.begin[k + 1] - (order.begin[i + 1] - u)
                values[position] -= values[q] * values[u]
            L[k, i] = values[q]
        for q in range(order.pivot[k], order.begin[k + 1]):
            U[k, rank[order.entry_columns[q]]] = values[q]
    assert target == order.targets.size
    return L, U


@given(st.integers(1, 9), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_factors_multiply_to_the_matrix(n_x, n_z, seed):
    n, rng = n_x + n_z, np.random.default_rng(seed)
    pattern = rng.random((n, n)) < 0.3
    pattern[n_x:, n_x:] |= np.eye(n_z, dtype=bool)[rng.permutation(n_z)]  # algebraic equations that can be solved
    row, column = np.nonzero(pattern)
    M = np.where(pattern, rng.normal(size=(n, n)), 0.0)
    M[:n_x, :n_x] += np.diag(rng.uniform(0.5, 2.0, n_x))
    order = elimination(n, n_x, row, column)
    assert order is not None
    assert sorted(order.rows) == sorted(order.columns) == list(range(n))
    L, U = _factorized(order, n, M)
    assert (np.diag(U) != 0.0).all()
    size = np.abs(L) @ np.abs(U)  # what rounding errors are relative to
    np.testing.assert_allclose(L @ U, M[np.ix_(order.rows, order.columns)], rtol=0, atol=1e-13 * size.max())


@pytest.mark.parametrize(("n", "n_z"), [(60, 0), (90, 7)])
def test_factors_that_end_in_a_dense_block_multiply_to_the_matrix(n, n_z):
    rng = np.random.default_rng(n)
    pattern = np.eye(n, dtype=bool) | (rng.random((n, n)) < 4 / n)
    row, column = np.nonzero(pattern)
    M = np.where(pattern, rng.normal(size=(n, n)), 0.0) + 10.0 * np.eye(n)
    order = elimination(n, n - n_z, row, column)
    assert order is not None
    assert 0 < order.tail <= n - 16
    assert (order.entry_columns[order.begin[-2] :][order.tail - n :] == order.columns[order.tail :]).all()
    L, U = _factorized(order, n, M)
    np.testing.assert_allclose(L @ U, M[np.ix_(order.rows, order.columns)], rtol=0, atol=1e-13 * np.abs(M).max())


def test_a_band_does_not_fill_and_a_full_matrix_is_left_to_the_dense_method():
    n = 60
    row, column = np.nonzero(np.abs(np.subtract.outer(np.arange(n), np.arange(n))) < 2)
    order = elimination(n, n, row, column)
    assert order is not None
    assert order.entry_columns.size == row.size
    full = np.ones((n, n), dtype=bool).nonzero()
    assert elimination(n, n, *full) is None
    # an arrow whose head comes first would fill at once
    row, column = np.nonzero(np.eye(n, dtype=bool) | (np.arange(n) == 0) | (np.arange(n) == 0)[:, None])
    order = elimination(n, n, row, column)
    assert order is not None
    assert order.entry_columns.size == row.size
    assert elimination(2, 1, np.array([1]), np.array([0])) is None  # 0 = g(x): no state is left for it


@pytest.mark.parametrize(("n", "each"), [(40, 2.0), (75, 4.0), (130, 4.0)])
def test_linear_networks_follow_the_exponential_of_their_matrix(n, each):
    rng = np.random.default_rng(0)
    A = np.where(rng.random((n, n)) < each / n, rng.uniform(0, 2, (n, n)) * 10.0 ** rng.uniform(-2, 2, (n, n)), 0.0)
    A -= np.diag(A.sum(axis=0) + 10.0 ** rng.uniform(-1, 4, n))  # what leaves a state arrives at others, or is lost
    x = symbols(f"x{i}" for i in range(n))
    k = symbols("k")
    ode = ca.mtimes(ca.sparsify(ca.DM(A)), ca.vertcat(*x)) * k
    model = NativeModel(graph_of(Model(dict(zip(x, ca.vertsplit(ode), strict=True)), parameters=[k])), compiled=False)
    assert model.elimination is not None
    assert (model.elimination.tail < n) == (n > 40)  # where what is left counts as dense
    start, grid = rng.uniform(1, 2, n), np.array([0.1, 1.0])
    dx0, dp = np.zeros((1, n, 2)), np.zeros((1, 1, 2))
    dx0[0, 3, 0], dp[0, 0, 1] = 1.0, 1.0
    lanes = one(start, [1.0], 1.0, m=2)
    result = model.integrate(lanes, grid, ESDIRK5, StepSizes(1e-9, 1e-11, 10_000), directions=(dx0, dp, None))
    for j, t in enumerate(grid):
        propagator = expm(A * t)
        np.testing.assert_allclose(result.x[0, j], propagator @ start, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(result.dx[0, j, :, 0], propagator[:, 3], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(result.dx[0, j, :, 1], t * A @ propagator @ start, rtol=1e-5, atol=1e-6)
    seeds = rng.normal(size=(1, 2, n, 1))
    sums = model.pull(lanes, grid, ESDIRK5, StepSizes(1e-9, 1e-11, 10_000), seeds)
    np.testing.assert_allclose(sums.x0[0, 3, 0], np.sum(seeds[0, :, :, 0] * result.dx[0, :, :, 0]), rtol=1e-8)
    np.testing.assert_allclose(sums.p[0, 0, 0], np.sum(seeds[0, :, :, 0] * result.dx[0, :, :, 1]), rtol=1e-8)


def test_a_pivot_that_vanishes_is_seen():
    # With this step 1 - H gamma a = 0: no order of the diagonal can be followed.
    x, y, a, b = symbols("x y a b")
    graph = graph_of(Model({x: a * x + b * y, y: -b * x + a * y}, parameters=[a, b]))
    steps, method = np.full(4, 0.25), ESDIRK5
    p = np.array([4.0 / method.gamma, 3.0])
    lanes = one([1.0, 2.0], p, 1.0)
    result = NativeModel(graph, compiled=False).integrate(
        lanes, np.array([1.0]), method, StepSizes(1e-6, 1e-8, 10, newton=1e-5, replay=steps)
    )
    A, s, state = np.array([[p[0], p[1]], [-p[1], p[0]]]), method.stages, np.array([1.0, 2.0])
    for _ in steps:
        system = np.eye(2 * s) - 0.25 * np.kron(method.a, A)
        K = np.linalg.solve(system, np.tile(A @ state, s)).reshape(s, 2)
        state = state + 0.25 * method.b @ K
    assert result.code[0] == 0
    np.testing.assert_allclose(result.x[0, 0], state, rtol=1e-9)


def test_auto_is_this_method_where_states_depend_on_few_others():
    def method(n, neighbours, n_z=0):
        x, z = ([symbols(f"{name}{i}") for i in range(k)] for name, k in (("x", n), ("z", n_z)))
        k = symbols("k")
        ode = {x[i]: -k * x[i] * sum(x[max(i - neighbours, 0) : i + neighbours + 1]) for i in range(n)}
        model = Model(ode, algebraic={z[i]: z[i] - x[i] for i in range(n_z)}, parameters=[k])
        return Integrator(model.system, [1.0]).method

    assert method(60, 1) == "esdirk"
    assert method(60, 1, n_z=5) == "esdirk"
    assert method(20, 20) == "explicit"
    assert method(10, 1, n_z=10) == "esdirk"
    assert method(60, 60) == "cvodes"
    fine = IntegratorOptions(relative_tolerance=1e-13, absolute_tolerance=1e-15)
    assert method_of(fine, 2, 0) == "cvodes"
    assert method_of(IntegratorOptions(), 401, 1, None) == "idas"


def test_auto_is_this_method_where_directions_are_many():
    x, k = list(symbols(f"x{i}" for i in range(30))), list(symbols(f"k{i}" for i in range(30)))
    ode = {x[i]: -k[i] * x[i] * sum(x) for i in range(30)}
    model = Model(ode, parameters=k)
    graph = model.system.function("system", model.system.ode, model.system.alg)
    assert method_of(IntegratorOptions(), 30, 0, graph) == "cvodes"
    assert method_of(IntegratorOptions(), 30, 0, graph, directions=19) == "cvodes"
    assert method_of(IntegratorOptions(), 30, 0, graph, directions=30) == "esdirk"
    assert method_of(IntegratorOptions("cvodes"), 30, 0, graph, directions=30) == "cvodes"
    data = cf.Experiment({"x0": [0.5, 0.2]}, time=[1.0, 2.0], sigma=0.1, initial=dict.fromkeys(model.states, 0.1))
    for free, method in ((3, "cvodes"), (30, "esdirk")):
        parameters = {f"k{i}": cf.Parameter(0.1, fixed=i >= free) for i in range(30)}
        problem = cf.Problem(model, data, parameters=parameters)
        staged = cf.SingleShooting().transcribe(problem, problem.posed.guess)
        assert {group.integrator.method for group in staged.groups} == {method}
