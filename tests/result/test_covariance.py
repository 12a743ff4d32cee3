"""Rank, covariance, numerical error and likelihood, on matrices alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg, stats
from scipy.optimize import curve_fit

from castfit.result.covariance import (
    FisherInformation,
    Statistics,
    information,
    neg2loglik,
    quantile,
    statistics,
)
from castfit.result.fisher_information import sparse_basis
from castfit.solve.condensing import Condensed, condense
from castfit.solve.staged import ChainValues, Jacobians, Layout, Linearization, Specification, build_layout
from castfit.transcribe.transcribed_problem import profile_sigma, standardize_derivatives
from tests.solve.blocks import dense, random_problem

NOTHING = np.zeros((0, 0))


def inform(E: np.ndarray, *, at_bound: tuple[int, ...] = (), F: np.ndarray = NOTHING) -> FisherInformation:
    mask = np.zeros(E.shape[1], dtype=bool)
    mask[list(at_bound)] = True
    return information(E, F if F.size else np.zeros((0, E.shape[1])), mask)


def random_matrix(seed: int, m: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((m, n))


shapes = st.tuples(st.integers(0, 10**6), st.integers(8, 20), st.integers(1, 6))


@given(shapes)
def test_full_rank_is_the_textbook_inverse(case: tuple[int, int, int]) -> None:
    E = random_matrix(*case)
    analysis = inform(E)
    assert analysis.rank == E.shape[1]
    assert not analysis.undetermined.any()
    np.testing.assert_allclose(analysis.inverse, np.linalg.inv(E.T @ E), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(analysis.response, -np.linalg.pinv(E), rtol=1e-7, atol=1e-9)
    assert analysis.condition == pytest.approx(np.linalg.cond(E / linalg.norm(E, axis=0)))


@given(shapes, st.lists(st.floats(-12, 12), min_size=6, max_size=6))
def test_units_of_the_quantities_do_not_matter(case: tuple[int, int, int], exponents: list[float]) -> None:
    E = random_matrix(*case)
    E = np.column_stack([E, E[:, 0] * 3.0])  # one undetermined direction
    unit = 10.0 ** np.array((exponents * 2)[: E.shape[1]])
    analysis, scaled_analysis = inform(E), inform(E * unit)
    assert analysis.rank == scaled_analysis.rank == E.shape[1] - 1
    np.testing.assert_array_equal(analysis.undetermined, scaled_analysis.undetermined)
    np.testing.assert_allclose(np.abs(analysis.directions), np.abs(scaled_analysis.directions), atol=1e-6)
    determined = ~analysis.undetermined
    np.testing.assert_allclose(
        analysis.inverse[np.ix_(determined, determined)],
        (unit[:, None] * scaled_analysis.inverse * unit)[np.ix_(determined, determined)],
        rtol=1e-6,
        atol=1e-9,
    )


def test_product_is_named_and_leaves_the_others_alone() -> None:
    k1, k2, k3 = 2.0, 500.0, 0.3
    t = np.linspace(0.1, 3, 12)
    f = lambda k: k[0] * k[1] * np.exp(-k[2] * t)  # noqa: E731
    E = np.column_stack([f([1, k2, k3]), f([k1, 1, k3]), -t * f([k1, k2, k3])])
    analysis = inform(E)
    assert analysis.rank == 2
    assert analysis.condition == np.inf
    np.testing.assert_allclose(analysis.directions, [[np.sqrt(0.5), -np.sqrt(0.5), 0.0]], atol=1e-9)
    np.testing.assert_array_equal(analysis.undetermined, [True, True, False])
    reduced = np.column_stack([f([1, k2, k3]) / k2, -t * f([k1, k2, k3])])  # as a function of (k1 k2, k3)
    assert analysis.inverse[2, 2] == pytest.approx(np.linalg.inv(reduced.T @ reduced)[1, 1], rel=1e-9)


def test_directions_of_separate_products_are_kept_apart() -> None:
    A = random_matrix(1, 20, 3)
    E = np.column_stack([A[:, 0], A[:, 1], 5 * A[:, 0], A[:, 2], -0.1 * A[:, 1]])
    analysis = inform(E)
    participants = {tuple(np.flatnonzero(y)) for y in analysis.directions}
    assert participants == {(0, 2), (1, 4)}
    np.testing.assert_allclose(linalg.norm(analysis.directions, axis=1), 1.0)


def test_quantity_without_any_effect() -> None:
    E = random_matrix(2, 9, 3)
    E[:, 1] = 0.0
    analysis = inform(E)
    np.testing.assert_array_equal(analysis.directions, [[0.0, 1.0, 0.0]])
    np.testing.assert_array_equal(analysis.undetermined, [False, True, False])


def test_errors_of_derivatives_do_not_pass_for_information() -> None:
    E = random_matrix(3, 30, 2)
    E = np.column_stack([E, E[:, 0] + 1e-9 * random_matrix(4, 30, 1)[:, 0]])
    assert inform(E).rank == 2
    E[:, 2] = E[:, 0] + 1e-4 * random_matrix(4, 30, 1)[:, 0]
    assert inform(E).rank == 3


def test_quantity_at_its_bound_is_left_out() -> None:
    E = random_matrix(5, 15, 4)
    analysis = inform(E, at_bound=(1,))
    free_indices = [0, 2, 3]
    np.testing.assert_allclose(
        analysis.inverse[np.ix_(free_indices, free_indices)], np.linalg.inv(E[:, free_indices].T @ E[:, free_indices])
    )
    assert not analysis.inverse[1].any()
    assert analysis.rank == 3


def test_fewer_data_than_quantities() -> None:
    E = random_matrix(6, 2, 4)
    analysis = inform(E)
    assert analysis.rank == 2
    assert analysis.directions.shape == (2, 4)
    assert analysis.undetermined.all()
    np.testing.assert_allclose(E @ (analysis.directions / linalg.norm(E, axis=0)).T, 0.0, atol=1e-12)


def test_no_free_quantity() -> None:
    analysis = inform(random_matrix(7, 5, 2), at_bound=(0, 1))
    assert analysis.rank == 0
    assert analysis.condition == 1.0
    assert not analysis.inverse.any()
    assert not analysis.undetermined.any()


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_active_constraints_are_the_kkt_inverse(seed: int, n_f: int) -> None:
    E, F = random_matrix(seed, 15, 5), random_matrix(seed + 1, n_f, 5)
    F = np.vstack([F, 2.0 * F[:1]])  # a redundant row
    analysis = inform(E, F=F)
    kkt = np.block([[E.T @ E, F[:-1].T], [F[:-1], np.zeros((n_f, n_f))]])
    np.testing.assert_allclose(analysis.inverse, np.linalg.inv(kkt)[:5, :5], rtol=1e-6, atol=1e-8)
    assert analysis.rank == 5 - n_f


@pytest.mark.parametrize("absolute_sigma", [True, False])
def test_agrees_with_curve_fit(absolute_sigma: bool) -> None:
    rng = np.random.default_rng(8)
    t = np.linspace(0, 4, 25)
    sigma = 0.02 + 0.01 * t
    f = lambda t, a, b, c: a * np.exp(-b * t) + c  # noqa: E731
    y = f(t, 2.0, 1.3, 0.5) + 3 * sigma * rng.standard_normal(t.size)
    best, covariance = curve_fit(f, t, y, p0=[1, 1, 1], sigma=sigma, absolute_sigma=absolute_sigma, xtol=1e-14)
    a, b, _ = best
    E = np.column_stack([np.exp(-b * t), -t * a * np.exp(-b * t), np.ones(t.size)]) / sigma[:, None]
    chi2 = float((((f(t, *best) - y) / sigma) ** 2).sum())
    analysis = inform(E)
    variance = 1.0 if absolute_sigma else chi2 / (t.size - analysis.rank)
    np.testing.assert_allclose(variance * analysis.inverse, covariance, rtol=1e-4)


def kkt_inverse(layout: Layout, linearization: Linearization, equations: np.ndarray) -> np.ndarray:
    """Invert the KKT matrix of the whole problem, with further equations on dv."""
    full = dense(layout, linearization)
    C = np.vstack([full.C, equations])
    return np.linalg.inv(np.block([[full.J.T @ full.J, C.T], [C, np.zeros((len(C), len(C)))]]))


def of(layout: Layout, linearization: Linearization, *active: int, **tolerances: float) -> Statistics:
    flags = np.zeros(layout.n_v, dtype=np.int8)
    flags[list(active)] = -1
    return statistics(layout, linearization, flags, **tolerances)


def continuous(seed: int, **sizes: Any) -> tuple[Layout, Linearization]:
    """Draw a problem without gaps, so that the only error is the statistical one."""
    layout, linearization = random_problem(np.random.default_rng(seed), **sizes)
    return layout, replace(linearization, v=without_gaps(layout, linearization))


def without_gaps(layout: Layout, linearization: Linearization) -> np.ndarray:
    v = linearization.v.copy()
    for chain, values in zip(layout.chains, linearization.values, strict=True):
        v[chain.nodes] = np.vstack([values.a, values.x[:-1]])
    return v


problems = st.builds(
    lambda seed, n_s, n_w, free, priors: continuous(seed, n_s=n_s, n_w=n_w, n_r=5, free_initial=free, n_prior=priors),
    st.integers(0, 10**6),
    st.integers(0, 3),
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 2),
)


@given(problems, st.integers(0, 4))
def test_covariance_is_the_block_of_the_full_kkt_inverse(problem: tuple[Layout, Linearization], bound: int) -> None:
    layout, linearization = problem
    n = layout.n_theta
    uncertainty = of(layout, linearization, bound)
    expected = kkt_inverse(layout, linearization, np.eye(layout.n_v)[[bound]])[:n, :n]
    is_free = np.arange(n) != bound
    scale = np.sqrt(np.diag(expected)[is_free])
    error = (
        (uncertainty.covariance[np.ix_(is_free, is_free)] - expected[np.ix_(is_free, is_free)]) / scale / scale[:, None]
    )
    assert np.abs(error).max() < 1e-6
    assert np.isnan(uncertainty.covariance[bound]).all()
    assert np.isnan(uncertainty.standard_errors[bound])
    np.testing.assert_allclose(uncertainty.correlation[np.ix_(is_free, is_free)].diagonal(), 1.0)
    assert np.nanmax(np.abs(uncertainty.correlation)) <= 1.0 + 1e-12


@given(st.integers(0, 10**6), st.integers(0, 2))
def test_active_bounds_of_nodes_and_inner_variables_are_equations(seed: int, n_w: int) -> None:
    layout, linearization = continuous(seed, stages=(5, 3), n_w=n_w, n_r=6)
    chain = layout.chains[0]
    active = [chain.nodes[3, 0], *chain.inner[2, :1]]
    uncertainty = of(layout, linearization, *active)
    n = layout.n_theta
    expected = kkt_inverse(layout, linearization, np.eye(layout.n_v)[active])[:n, :n]
    np.testing.assert_allclose(uncertainty.covariance, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())
    assert uncertainty.dof == sum(int(c.row_mask.sum()) for c in layout.chains) - n + len(active)


def test_bound_of_a_node_that_nothing_moves_changes_nothing() -> None:
    layout, linearization = continuous(1, stages=(4,), free_initial=False)
    fixed = layout.chains[0].nodes[0, 0]
    free, bound = of(layout, linearization), of(layout, linearization, fixed)
    np.testing.assert_allclose(bound.covariance, free.covariance)
    assert bound.dof == free.dof


@pytest.mark.parametrize(("side", "pressed"), [("upper", True), ("upper", False), ("lower", True), ("lower", False)])
def test_path_constraint_counts_where_it_holds_the_optimum_back(side: str, pressed: bool) -> None:
    layout, linearization = continuous(2, stages=(4,), n_c=2, n_r=6)
    condensed = condense(layout, linearization)
    i = 5
    outward = condensed.C[i] if side == "upper" else -condensed.C[i]
    bounds = {"upper": np.full((4, 2), np.inf), "lower": np.full((4, 2), -np.inf)}
    if (outward @ condensed.E.T @ condensed.u < 0) != pressed:
        linearization = flip_residuals(linearization, condensed)
    bounds[side].flat[i] = condense(layout, linearization).c[i]
    chain = replace(layout.chains[0], constraint_lower=bounds["lower"], constraint_upper=bounds["upper"])
    layout = replace(layout, chains=(chain,))
    rows = dense(layout, linearization).P[[i]] if pressed else np.zeros((0, layout.n_v))
    n = layout.n_theta
    expected = kkt_inverse(layout, linearization, rows)[:n, :n]
    np.testing.assert_allclose(of(layout, linearization).covariance, expected, rtol=1e-7, atol=1e-9)


def flip_residuals(linearization: Linearization, condensed: Condensed) -> Linearization:
    """Turn the gradient of the condensed problem round."""
    (chain,), (values,) = condensed.layout.chains, linearization.values
    r = values.r.copy()
    r[chain.row_mask] -= 2 * condensed.u
    return replace(linearization, values=(replace(values, r=r),))


def test_equal_path_bounds_are_equations() -> None:
    layout, linearization = continuous(3, stages=(4,), n_c=1, n_r=6)
    lower, upper = np.full((4, 1), -np.inf), np.full((4, 1), np.inf)
    lower[2] = upper[2] = 0.3
    layout = replace(layout, chains=(replace(layout.chains[0], constraint_lower=lower, constraint_upper=upper),))
    n = layout.n_theta
    expected = kkt_inverse(layout, linearization, dense(layout, linearization).P[[2]])[:n, :n]
    np.testing.assert_allclose(of(layout, linearization).covariance, expected, rtol=1e-7, atol=1e-9)


@given(st.integers(0, 10**6), st.integers(0, 2), st.booleans())
def test_numerical_error_is_the_response_to_gaps(seed: int, n_w: int, with_bound: bool) -> None:
    layout, linearization = random_problem(np.random.default_rng(seed), stages=(4,), n_w=n_w, n_r=6)
    chain, n = layout.chains[0], layout.n_theta
    active = [int(chain.nodes[2, 1])] if with_bound else []
    uncertainty = of(layout, linearization, *active, relative_tolerance=1e-6, absolute_tolerance=1e-7)
    inverse = kkt_inverse(layout, linearization, np.eye(layout.n_v)[active])
    row = np.arange(dense(layout, linearization).e.size)
    gaps_only = np.r_[row[:2], [row[2 + k * (n_w + 2) + n_w + i] for k in range(3) for i in range(2)]]
    response = inverse[:n, layout.n_v :][:, gaps_only]  # d theta / d e, up to sign
    values, v = linearization.values[0], linearization.v
    size = np.abs(np.vstack([values.a, values.x[:-1]]) - v[chain.nodes])
    grown = np.einsum("kij,kj->ki", np.abs(linearization.jacobians[0].X_s), np.abs(v[chain.nodes]))
    size[1:] += 1e-6 * (np.abs(values.x) + grown)[:-1] + 1e-7
    expected = np.sqrt(((response * size.ravel()) ** 2).sum(axis=1))
    np.testing.assert_allclose(uncertainty.numerical_errors, expected, rtol=1e-6)
    statistical = of(layout, replace(linearization, v=without_gaps(layout, linearization)), *active).standard_errors
    np.testing.assert_allclose(uncertainty.standard_errors, np.hypot(statistical, expected), rtol=1e-6)


def grouped(layout: Layout, linearization: Linearization) -> tuple[Layout, Linearization]:
    """Let all data share an unknown sigma."""
    chains = tuple(replace(c, group=np.where(c.row_mask, 0, -1)) for c in layout.chains)
    unknown = replace(layout, chains=chains, group_sizes=np.array([sum(int(c.row_mask.sum()) for c in layout.chains)]))
    noise_estimate = profile_sigma(unknown, linearization.values, np.full(1, 1e-10), np.full(1, np.inf))
    jacobians = standardize_derivatives(unknown, linearization.jacobians, noise_estimate.sigma)
    return unknown, replace(
        linearization, values=noise_estimate.values, jacobians=jacobians, sigma=noise_estimate.sigma
    )


def test_unknown_noise_scales_the_covariance_by_chi2_per_degree_of_freedom() -> None:
    problem = continuous(4)
    known_noise, unknown_noise = of(*problem), of(*grouped(*problem))
    assert unknown_noise.dof == known_noise.dof
    assert unknown_noise.noise[0] ** 2 == pytest.approx(2 * problem[1].cost / unknown_noise.dof)
    np.testing.assert_allclose(
        unknown_noise.covariance, unknown_noise.noise[0] ** 2 * known_noise.covariance, rtol=1e-7
    )
    np.testing.assert_allclose(unknown_noise.jacobian, known_noise.jacobian)


def test_priors_weigh_the_same_in_every_unit_of_data_with_unknown_noise() -> None:
    layout, linearization = continuous(4, n_prior=2)
    uncertainty = of(*grouped(layout, linearization))
    larger = replace(linearization,
                     values=tuple(replace(v, r=1000 * v.r) for v in linearization.values),
                     jacobians=tuple(replace(j, R_s=1000 * j.R_s, R_w=1000 * j.R_w, R_q=1000 * j.R_q)
                                     for j in linearization.jacobians))  # fmt: skip
    scaled_uncertainty = of(*grouped(layout, larger))
    np.testing.assert_allclose(scaled_uncertainty.covariance, uncertainty.covariance, rtol=1e-9)
    assert scaled_uncertainty.noise[0] == pytest.approx(1000 * uncertainty.noise[0])
    # The noise's estimate is unbiased: the priors save degrees of freedom.
    squares = sum(float(np.vdot(v.r, v.r)) for v in linearization.values)
    n = sum(int(c.row_mask.sum()) for c in layout.chains)
    assert squares / n < uncertainty.noise[0] ** 2 < squares / (n - layout.n_theta)


def test_undetermined_quantities_have_infinite_errors_and_the_others_keep_theirs() -> None:
    layout, linearization = continuous(5, null_directions=1, n_r=6)
    uncertainty = of(layout, linearization)
    assert np.isinf(uncertainty.standard_errors[:2]).all()
    assert np.isnan(uncertainty.covariance[0, 1:]).all()
    assert np.isinf(uncertainty.condition)
    reference = of(layout, linearization, 1)  # hold one of the two: the others are estimated as before
    np.testing.assert_allclose(uncertainty.standard_errors[2:], reference.standard_errors[2:], rtol=1e-6)
    assert uncertainty.dof == reference.dof


def test_no_degree_of_freedom_leaves_unknown_noise_unknown() -> None:
    layout, linearization = continuous(6, stages=(1,), n_s=0, n_r=4, shared=3, local=1, padding=False)
    assert np.isnan(of(*grouped(layout, linearization)).standard_errors).all()
    assert np.isfinite(of(layout, linearization).standard_errors).all()


def unstable(mu: float, points: int, *, free_initial: bool = False) -> tuple[Layout, Linearization]:
    """Linearize Bulirsch's problem, x1' = x2, x2' = mu^2 x1 - (mu^2 + p^2) sin(p t), at its solution p = pi.

    Both states, (sin p t, p cos p t), are measured with sigma = 0.05; the initial state is known, or estimated.
    """
    p, h, t = np.pi, 1.0 / points, np.linspace(0, 1, points + 1)
    X = np.array([[np.cosh(mu * h), np.sinh(mu * h) / mu], [mu * np.sinh(mu * h), np.cosh(mu * h)]])
    solution = np.column_stack([np.sin(p * t), p * np.cos(p * t)])
    solution_slope = np.column_stack([t * np.cos(p * t), np.cos(p * t) - p * t * np.sin(p * t)])  # d solution / dp
    n = 3 if free_initial else 1
    none = np.zeros
    A, P = none((2, n)), none((points, 2, n))
    P[:, :, 0] = solution_slope[1:] - solution_slope[:-1] @ X.T
    A[:, 1:] = np.eye(2)[:, : n - 1]
    names, mask = ("p", "x1(0)", "x2(0)")[:n], np.ones((points, 2), dtype=bool)
    chain = Specification("e", np.arange(n), 2, 0, mask, none((points, 0)), none((points, 0)), t, ("x1", "x2"))
    layout = build_layout(names, (chain,))
    sizes = {"R": 2, "D": 0, "X": 2, "C": 0}
    empty = {f"{rows}_w": none((points, count, 0)) for rows, count in sizes.items()}
    empty |= {f"{rows}_{to}": none((points, 0, m)) for rows in "DC" for to, m in (("s", 2), ("q", n))}
    X = np.tile(X, (points, 1, 1))
    blocks = Jacobians(R_s=X / 0.05, R_q=P / 0.05, X_s=X, X_q=P, A=A, **empty)
    values = ChainValues(none((points, 2)), solution[0], none((points, 0)), solution[1:], none((points, 0)))
    v = layout.pack(np.array([p, *solution[0]])[:n], (solution[:-1],), (none((points, 0)),))
    return layout, Linearization(v, (values,), none(0), none((0, n)), (), (blocks,))


@pytest.mark.parametrize("mu", [5.0, 20.0, 60.0])
def test_growth_over_the_horizon_hides_no_information(mu: float) -> None:
    """At mu = 60 nodes grow by exp(60): their columns are parallel to 26 digits, though the data determine all."""
    layout, linearization = unstable(mu, 20, free_initial=True)
    uncertainty = of(layout, linearization, absolute_tolerance=1e-8)
    inverse = kkt_inverse(layout, linearization, np.zeros((0, layout.n_v)))
    assert not np.isinf(uncertainty.condition)
    np.testing.assert_allclose(uncertainty.covariance, inverse[:3, :3], rtol=1e-5)
    response = inverse[:3, layout.n_v + 2 :]  # to errors of the matching conditions
    np.testing.assert_allclose(uncertainty.numerical_errors, 1e-8 * np.linalg.norm(response, axis=1), rtol=1e-5)


@pytest.mark.parametrize("mu", [1.0, 5.0, 20.0])
def test_statistical_error_of_an_unstable_system(mu: float) -> None:
    layout, linearization = unstable(mu, 20)
    t = linearization_times(layout)
    grown = [np.sinh(mu * t) / mu, np.cosh(mu * t)]
    particular = [t * np.cos(np.pi * t), np.cos(np.pi * t) - np.pi * t * np.sin(np.pi * t)]
    sensitivity = np.concatenate([a - b for a, b in zip(particular, grown, strict=True)])
    expected = 0.05 / linalg.norm(sensitivity)
    assert of(layout, linearization).standard_errors[0] == pytest.approx(expected, rel=1e-9)


def linearization_times(layout: Layout) -> np.ndarray:
    return layout.chains[0].times[1:]


def test_error_of_the_integration_is_reported_where_the_data_seem_to_fix_more_digits_than_there_are() -> None:
    mu, points, relative = 60.0, 20, 1e-8
    layout, linearization = unstable(mu, points)
    assert of(layout, linearization).standard_errors[0] < 1e-16  # absurd in double precision
    uncertainty = of(layout, linearization, relative_tolerance=relative)
    # An error (e1, e2) of the first stage's end sets off the growing mode by (mu e1 + e2) / 2, as does a change
    # of p by exp(mu h) dp / 2; errors of later stages are smaller by another factor of exp(-mu h) each.
    # Such an error may itself have grown over the stage since it was made.
    start = np.abs(linearization.v[layout.chains[0].nodes[0]])
    grown = np.abs(linearization.jacobians[0].X_s[0]) @ start
    e1, e2 = relative * (np.abs(linearization.values[0].x[0]) + grown)
    expected = np.exp(-mu / points) * np.hypot(mu * e1, e2)
    assert uncertainty.standard_errors[0] == pytest.approx(expected, rel=0.02)
    assert uncertainty.numerical_errors[0] == uncertainty.standard_errors[0]


def test_quantiles_are_those_of_the_tables() -> None:
    assert quantile(0.95, np.inf) == pytest.approx(1.959964, abs=1e-6)
    assert quantile(0.95, 10) == pytest.approx(2.228139, abs=1e-6)  # Student 1908 as tabulated everywhere
    assert np.isnan(quantile(0.95, 0))


def test_likelihood_is_that_of_normal_errors() -> None:
    rng = np.random.default_rng(9)
    sigma = rng.uniform(0.1, 2.0, 12)
    residuals = rng.standard_normal(12)
    chi2 = float(residuals @ residuals)
    constant = float(np.log(sigma).sum()) + 6 * np.log(2 * np.pi)
    known_likelihood = neg2loglik(chi2 / 2, constant)
    assert known_likelihood == pytest.approx(-2 * stats.norm.logpdf(residuals * sigma, scale=sigma).sum())
    unknown_likelihood = neg2loglik(6 * np.log(chi2 / 12), constant, n_unknown=12)
    for factor in (0.9, 1.0, 1.1):
        scale = factor * np.sqrt(chi2 / 12) * sigma
        value = -2 * stats.norm.logpdf(residuals * sigma, scale=scale).sum()
        assert value == pytest.approx(unknown_likelihood) if factor == 1.0 else value > unknown_likelihood


def test_more_directions_than_quantities_have_a_basis_too():
    N = np.random.default_rng(0).standard_normal((3, 7)) * np.array([1.0, 1.0, 0.0])[:, None]
    basis = sparse_basis(N)
    assert basis.shape == (2, 3)
    np.testing.assert_allclose(basis.T @ basis, np.diag([1.0, 1.0, 0.0]), atol=1e-12)
