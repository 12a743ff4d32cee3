"""Bounded least squares: optimality by its conditions, by perturbation, and against scipy where scipy has it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, lsq_linear

from castfit.solve.bounded_lsq import LinearConstraints, bounded_lsq, column_scale, find_rank_deficiency
from castfit.solve.matrices import triangle

seeds = st.integers(0, 2**32 - 1)


def cost(u, E, x):
    return 0.5 * float(np.sum((u + E @ x) ** 2))


def rows_of(rng, p, n, *, equalities=0):
    """Draw rows with finite or infinite bounds of either side; the first are equalities."""
    lower = np.where(rng.random(p) < 0.7, -rng.exponential(1, p), -np.inf)
    upper = np.where(rng.random(p) < 0.7, rng.exponential(1, p), np.inf)
    lower[:equalities] = upper[:equalities] = 0.3
    return LinearConstraints(0.3 * rng.standard_normal(p), rng.standard_normal((p, n)), lower, upper)


def optimality_error(u, E, lower, upper, rows, units, solution):
    """Return the largest violation of the optimality conditions, in the given units of x."""
    forces = np.concatenate([solution.bound_multipliers * units, solution.row_multipliers])
    gradient = units * (E.T @ (u + E @ solution.x) + solution.bound_multipliers + rows.G.T @ solution.row_multipliers)
    values = np.concatenate([solution.x / units, rows.g + rows.G @ solution.x])
    low = np.concatenate([lower / units, rows.lower])
    high = np.concatenate([upper / units, rows.upper])
    size = max(1.0, np.abs(forces).max(initial=0.0), np.linalg.norm(u))
    working = np.abs(forces) > 1e-9 * size
    idle = np.where(forces < 0, values - low, high - values)[working]
    return max(
        np.abs(gradient).max(initial=0.0) / size,
        np.maximum(low - values, values - high).max(initial=0.0),
        np.abs(idle).max(initial=0.0),
    )


def possible(lower, upper, rows, units):
    """Return whether the constraints can be met, by linear programming."""
    above = np.vstack([rows.G, -rows.G]) * units
    limits = np.concatenate([rows.upper - rows.g, rows.g - rows.lower])
    real = np.isfinite(limits)
    box = list(zip(lower / units, upper / units, strict=True))
    return linprog(np.zeros(units.size), above[real], limits[real], bounds=box).status == 0


@given(seeds, st.integers(1, 10), st.integers(0, 20), st.floats(0, 6))
def test_pure_bounds_agree_with_scipy(seed, n, extra, spread):
    rng = np.random.default_rng(seed)
    units = 10 ** rng.uniform(-spread, spread, n)
    E, u = rng.standard_normal((n + extra, n)), rng.standard_normal(n + extra)
    lower = rng.standard_normal(n) - 0.5
    upper = lower + rng.exponential(1, n) + 0.01
    solution = bounded_lsq(u, E / units, lower=lower * units, upper=upper * units)
    reference = lsq_linear(E, -u, (lower, upper), method="bvls", tol=1e-15)
    assert np.allclose(solution.x / units, reference.x, atol=1e-8)
    active = np.sign(solution.bounds_active)
    assert np.array_equal(solution.x[active > 0], (upper * units)[active > 0])  # exactly at the bound
    assert np.array_equal(solution.x[active < 0], (lower * units)[active < 0])


@given(seeds, st.integers(1, 8), st.integers(0, 12), st.integers(0, 12), st.integers(0, 2), st.booleans())
def test_optimality_or_proven_contradiction(seed, n, m, p, equalities, integer):
    """Any shape and rank; integer data make ties and dependent constraints.  Feasibility is checked by an LP."""
    rng = np.random.default_rng(seed)
    units = 10 ** rng.uniform(-4, 4, n)
    E, u, rows = rng.standard_normal((m, n)), 3 * rng.standard_normal(m), rows_of(rng, p, n, equalities=equalities)
    lower = np.where(rng.random(n) < 0.5, -rng.exponential(1, n), -np.inf)
    upper = np.where(rng.random(n) < 0.5, rng.exponential(1, n), np.inf)
    if integer:
        E, u = np.round(E), np.round(u)
        rows = LinearConstraints(
            np.round(rows.g), np.round(rows.G), *(np.round(2 * b) / 2 for b in (rows.lower, rows.upper))
        )
        lower, upper = np.round(lower), np.round(upper)
    E, rows = E / units, LinearConstraints(rows.g, rows.G / units, rows.lower, rows.upper)
    lower, upper = lower * units, upper * units
    solution = bounded_lsq(u, E, lower=lower, upper=upper, rows=rows, scale=units)
    assert solution.optimal
    assert solution.feasible == possible(lower, upper, rows, units)
    if solution.feasible:
        assert optimality_error(u, E, lower, upper, rows, units, solution) < 1e-8 * max(
            1, np.abs(solution.x / units).max()
        )


@given(seeds)
def test_no_feasible_neighbour_is_better(seed):
    rng = np.random.default_rng(seed)
    n, m, p = 5, 9, 8
    E, u, rows = rng.standard_normal((m, n)), 3 * rng.standard_normal(m), rows_of(rng, p, n)
    inside = LinearConstraints(rows.g - rows.g, rows.G, rows.lower, rows.upper)  # x = 0 is feasible
    bounds = {"lower": -0.4 * np.ones(n), "upper": 0.5 * np.ones(n)}
    x = bounded_lsq(u, E, rows=inside, **bounds).x
    for _ in range(200):
        other = x + 10 ** rng.uniform(-6, 0) * rng.standard_normal(n)
        other = np.clip(other, bounds["lower"], bounds["upper"])
        value = inside.G @ other
        if (value >= inside.lower).all() and (value <= inside.upper).all():
            assert cost(u, E, other) >= cost(u, E, x) - 1e-12


@given(seeds, st.integers(1, 5), st.integers(1, 3))
def test_rank_deficiency_gives_the_shortest_solution_in_scaled_variables(seed, rank, missing):
    rng = np.random.default_rng(seed)
    n = rank + missing
    units = 10 ** rng.uniform(-3, 3, n)
    E = rng.standard_normal((n + 4, rank)) @ rng.standard_normal((rank, n)) / units
    u = rng.standard_normal(n + 4)
    solution = bounded_lsq(u, E, scale=units)
    assert solution.rank == rank
    assert np.allclose(solution.x / units, -np.linalg.pinv(E * units, rcond=1e-10) @ u, atol=1e-8)


def test_constraints_move_undetermined_directions_and_nothing_else():
    """Only x_0 + x_1 is measured; x_1 >= 2 is met by trading x_0 for it."""
    E, u = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), np.array([-1.0, -3.0])
    solution = bounded_lsq(u, E, lower=np.array([-np.inf, 2.0, -np.inf]))
    assert np.allclose(solution.x, [-1, 2, 3], atol=1e-12)
    assert abs(solution.bound_multipliers[1]) < 1e-12
    assert solution.rank == 2


@given(seeds, st.floats(-8, 8))
def test_units_of_a_variable_do_not_matter(seed, power):
    rng = np.random.default_rng(seed)
    E, u, rows = rng.standard_normal((9, 4)), rng.standard_normal(9), rows_of(rng, 6, 4)
    unit = np.array([10**power, 1, 1, 1])
    bounds = rng.exponential(0.3, (2, 4))
    solution = bounded_lsq(u, E, lower=-bounds[0], upper=bounds[1], rows=rows)
    scaled_solution = bounded_lsq(
        u,
        E / unit,
        lower=-bounds[0] * unit,
        upper=bounds[1] * unit,
        rows=LinearConstraints(rows.g, rows.G / unit, rows.lower, rows.upper),
    )
    assert solution.feasible == scaled_solution.feasible
    if solution.feasible:
        assert np.allclose(scaled_solution.x / unit, solution.x, atol=1e-9)
        assert np.array_equal(scaled_solution.bounds_active, solution.bounds_active)
        assert np.array_equal(scaled_solution.rows_active, solution.rows_active)
        assert np.allclose(scaled_solution.row_multipliers, solution.row_multipliers, atol=1e-8)


@given(seeds)
def test_ill_conditioned_problems_meet_their_constraints(seed):
    """The unconstrained minimum is 1e8 away; rows and bounds repeat each other."""
    rng = np.random.default_rng(seed)
    n, p = 12, 80
    E = (
        rng.standard_normal((30, n))
        @ np.diag(10 ** rng.uniform(-8, 0, n))
        @ np.linalg.qr(rng.standard_normal((n, n)))[0]
    )
    units = column_scale(E)
    inside, u = 0.1 * units * rng.standard_normal(n), 3 * rng.standard_normal(30)
    G = rng.standard_normal((p, n)) / units
    G[:20] = G[20:40] * rng.uniform(0.5, 2, (20, 1))
    G[40:50] = np.eye(n)[:10] / units[:10, None]
    lower = G @ inside - rng.exponential(0.3, p)
    rows = LinearConstraints(np.zeros(p), G, lower, lower + rng.exponential(2, p) + 1)
    low, high = inside - units * rng.exponential(1, n), inside + units * rng.exponential(1, n)
    solution = bounded_lsq(u, E, lower=low, upper=high, rows=rows)
    assert solution.optimal
    assert solution.feasible == possible(low, high, rows, units)
    if solution.feasible:
        assert optimality_error(u, E, low, high, rows, units, solution) < 1e-8


def test_thousands_of_rows_cost_no_iterations_unless_active():
    rng = np.random.default_rng(0)
    n, p = 20, 10_000
    E, u = rng.standard_normal((100, n)), rng.standard_normal(100)
    G = rng.standard_normal((p, n))
    x = bounded_lsq(u, E).x
    idle = LinearConstraints(np.zeros(p), G, G @ x - 1.0, np.full(p, np.inf))
    assert bounded_lsq(u, E, rows=idle).iterations == 0
    tight = LinearConstraints(
        np.zeros(p), G, np.where(np.arange(p) % 4000 == 7, G @ x + 0.1, G @ x - 3.0), np.full(p, np.inf)
    )
    solution = bounded_lsq(u, E, rows=tight)
    assert np.flatnonzero(solution.rows_active).tolist() == [7, 4007, 8007]
    assert solution.iterations < 10


@given(seeds)
def test_warm_start_from_the_answer_takes_no_iterations_and_from_elsewhere_gives_it_too(seed):
    rng = np.random.default_rng(seed)
    n, p = 6, 30
    E, u, rows = rng.standard_normal((12, n)), 3 * rng.standard_normal(12), rows_of(rng, p, n)
    rows = LinearConstraints(0 * rows.g, rows.G, rows.lower, rows.upper)
    bounds = {"lower": -np.ones(n), "upper": 0.7 * np.ones(n)}
    cold_solution = bounded_lsq(u, E, rows=rows, **bounds)
    warm_solution = bounded_lsq(
        u, E, rows=rows, bounds_active=cold_solution.bounds_active, rows_active=cold_solution.rows_active, **bounds
    )
    assert warm_solution.iterations == 0
    assert np.allclose(warm_solution.x, cold_solution.x, atol=1e-10)
    guess = {
        "bounds_active": rng.integers(-1, 2, n).astype(np.int8),
        "rows_active": rng.integers(-1, 2, p).astype(np.int8),
    }
    guessed_solution = bounded_lsq(u, E, rows=rows, **guess, **bounds)
    assert np.allclose(guessed_solution.x, cold_solution.x, atol=1e-9)
    assert np.array_equal(guessed_solution.rows_active, cold_solution.rows_active)


def test_equalities_and_fixed_variables_hold():
    E, u = np.eye(3), np.array([-1.0, -2.0, -3.0])
    rows = LinearConstraints(np.array([0.5]), np.array([[1.0, 1.0, 0.0]]), np.zeros(1), np.zeros(1))
    fixed = np.array([-np.inf, -np.inf, 1.5])
    solution = bounded_lsq(u, E, lower=fixed, upper=np.array([np.inf, np.inf, 1.5]), rows=rows)
    assert np.allclose(solution.x, [-0.75, 0.25, 1.5])
    assert np.allclose(solution.row_multipliers, [1.75])
    assert np.allclose(solution.bound_multipliers, [0, 0, 1.5])
    assert not solution.rows_active.any()
    assert not solution.bounds_active.any()


def test_repeated_equalities_are_one():
    rows = LinearConstraints(
        np.zeros(3),
        np.array([[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]),
        np.array([1.0, 2.0, 1.0]),
        np.array([1.0, 2.0, 1.0]),
    )
    solution = bounded_lsq(np.zeros(2), np.array([[1.0, 0.0], [0.0, 2.0]]), rows=rows)
    assert solution.feasible
    assert np.allclose(solution.x, [0.8, 0.2])
    assert np.allclose(rows.G.T @ solution.row_multipliers, [-0.8, -0.8])


def test_contradictory_rows_are_violated_as_little_as_possible_within_the_bounds():
    """x_0 <= 1 is a bound, so x_0 >= 3 is violated by 2; all rows then give way by 2, and x_1 = 0 costs nothing."""
    G = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    rows = LinearConstraints(np.zeros(3), G, np.array([3.0, 2.0, -np.inf]), np.array([np.inf, np.inf, 1.0]))
    solution = bounded_lsq(np.zeros(2), np.eye(2), upper=np.array([1.0, np.inf]), rows=rows)
    assert not solution.feasible
    assert solution.optimal
    assert solution.violation > 0.1
    assert np.isclose(solution.x[0], 1.0)
    assert abs(solution.x[1]) < 1e-4


@given(seeds, st.integers(4, 8))
def test_contradictions_beside_undetermined_directions_do_not_cycle(seed, n):
    """The large multipliers of the contradiction hide those of bounds that only undetermined directions meet."""
    rng = np.random.default_rng(seed)
    E, G = rng.standard_normal((2, n)), rng.standard_normal((3, n))
    E[:, -1], G[1] = E[:, 0], G[0]
    bounds = np.sort(rng.standard_normal((2, n)), axis=0)
    rows = LinearConstraints(np.zeros(3), G, np.array([-np.inf, 0.3, -np.inf]), np.array([0.0, np.inf, 0.6]))
    solution = bounded_lsq(rng.standard_normal(2), E, lower=bounds[0], upper=bounds[1], rows=rows)
    assert solution.optimal
    assert not solution.feasible
    assert (bounds[0] <= solution.x).all()
    assert (solution.x <= bounds[1]).all()


@given(seeds, st.integers(2, 6))
def test_bounded_lsq_treats_directions_at_rounding_level_as_undetermined(seed, n):
    """E sees nothing but what the equalities fix already; the one direction left is not data."""
    rng = np.random.default_rng(seed)
    units = 10 ** rng.uniform(-3, 3, n)
    G = rng.standard_normal((n - 1, n))
    E, values = rng.standard_normal((5, n - 1)) @ G / units, rng.standard_normal(n - 1)
    rows = LinearConstraints(np.zeros(n - 1), G / units, values, values)
    solution = bounded_lsq(rng.standard_normal(5), E, rows=rows, scale=units)
    assert solution.rank == 0
    assert solution.feasible
    assert np.allclose(solution.x / units, np.linalg.pinv(G) @ values)  # the shortest


def test_equalities_against_bounds_give_up_the_bounds_at_last():
    rows = LinearConstraints(np.zeros(1), np.array([[1.0, 0.0]]), np.array([5.0]), np.array([5.0]))
    solution = bounded_lsq(np.zeros(2), np.eye(2), upper=np.array([3.0, 1.0]), rows=rows)
    assert not solution.feasible
    assert np.allclose(solution.x, [5, 0], atol=1e-4)


def test_contradictory_equalities_are_solved_in_the_least_squares_sense():
    rows = LinearConstraints(
        np.zeros(2), np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([1.0, 2.0]), np.array([1.0, 2.0])
    )
    solution = bounded_lsq(np.array([0.0, -4.0]), np.eye(2), rows=rows)
    assert not solution.feasible
    assert np.allclose(solution.x, [1.5, 4])


def test_a_row_that_nothing_moves_is_reported():
    """A node whose initial state is fixed outside its bounds."""
    rows = LinearConstraints(np.array([2.0]), np.zeros((1, 2)), np.array([-np.inf]), np.array([1.0]))
    solution = bounded_lsq(np.array([-1.0, 1.0]), np.eye(2), rows=rows)
    assert not solution.feasible
    assert np.allclose(solution.x, [1, -1])


@given(seeds, st.integers(1, 12), st.integers(0, 2000))
def test_triangle_has_the_same_normal_matrix(seed, n, m):
    M = np.random.default_rng(seed).standard_normal((m, n))
    R = triangle(M)
    assert R.shape == (min(m, n), n)
    assert np.allclose(R.T @ R, M.T @ M, atol=1e-11 * max(m, 1))
    assert np.array_equal(R, np.triu(R))


def test_regularisation_names_the_direction_of_a_product():
    """Of a and b only the product matters: on the logarithmic scale their columns are equal."""
    rng = np.random.default_rng(1)
    column, other = rng.standard_normal((2, 30))
    E = np.column_stack([column, 1e-6 * other, column])
    regularization = find_rank_deficiency(E, scale=np.array([1.0, 1e6, 1.0]))
    assert regularization.directions.shape == (3, 1)
    assert np.allclose(np.abs(regularization.directions[:, 0]), [np.sqrt(0.5), 0, np.sqrt(0.5)])
    assert regularization.directions[0, 0] == pytest.approx(-regularization.directions[2, 0])
    assert regularization.singular_values[2] < 1e-12 * regularization.singular_values[0]


def test_regularisation_gives_singular_directions_a_large_singular_value():
    """Peifer and Timmer 2007, Eq. 23: the others stay as they are."""
    rng = np.random.default_rng(2)
    U, V = (np.linalg.qr(rng.standard_normal((n, 4)))[0] for n in (20, 4))
    w = np.array([5.0, 1.0, 1e-12, 1e-14])
    E = U * w @ V.T
    regularization = find_rank_deficiency(E, threshold=1e-10, Delta=100.0, scale=np.ones(4))
    assert np.allclose(regularization.singular_values, w, atol=1e-14)
    changed = np.linalg.svd(np.vstack([E, regularization.damping]), compute_uv=False)
    assert np.allclose(changed, [500, 500, 5, 1])
    assert np.allclose(regularization.directions @ regularization.directions.T, V[:, 2:] @ V[:, 2:].T)
    step = bounded_lsq(np.concatenate([np.ones(20), np.zeros(2)]), np.vstack([E, regularization.damping])).x
    assert np.abs(regularization.directions.T @ step).max() < 1e-12
    regular = find_rank_deficiency(E[:, :0])
    assert regular.damping.shape == (0, 0)


def test_regularisation_of_fewer_rows_than_columns():
    regularization = find_rank_deficiency(np.array([[1.0, 1.0, 0.0]]))
    assert np.count_nonzero(regularization.singular_values) == 1
    assert regularization.directions.shape == (3, 2)
    assert np.linalg.matrix_rank(np.vstack([[1.0, 1.0, 0.0], regularization.damping])) == 3


def test_no_data_and_no_unknowns():
    assert bounded_lsq(np.empty(0), np.empty((0, 2)), lower=np.array([1.0, -1.0])).x.tolist() == [1.0, 0.0]
    nothing = bounded_lsq(np.ones(3), np.empty((3, 0)))
    assert nothing.x.shape == (0,)
    assert nothing.feasible


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4))
def test_equations_that_are_combinations_of_others_change_nothing(seed, independent, copies):
    """The minimum and the forces of the constraints are those without the copies."""
    rng = np.random.default_rng(seed)
    E, u = rng.standard_normal((9, 5)), rng.standard_normal(9)
    G, g = rng.standard_normal((independent, 5)), rng.standard_normal(independent)
    mix = rng.standard_normal((copies, independent))
    zero = np.zeros(independent + copies)
    independent_solution = bounded_lsq(u, E, rows=LinearConstraints(g, G, zero[:independent], zero[:independent]))
    full_solution = bounded_lsq(
        u, E, rows=LinearConstraints(np.append(g, mix @ g), np.vstack([G, mix @ G]), zero, zero)
    )
    assert full_solution.feasible
    np.testing.assert_allclose(full_solution.x, independent_solution.x, rtol=1e-7, atol=1e-9)
    force = np.vstack([G, mix @ G]).T @ full_solution.row_multipliers
    np.testing.assert_allclose(force, G.T @ independent_solution.row_multipliers, rtol=1e-6, atol=1e-8)
