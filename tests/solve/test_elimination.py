"""The second elimination: condensing's answer where condensing works, and the right one where it does not."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.linalg import expm

from castfit.solve.condensing import condense, expand
from castfit.solve.elimination import (
    DEPENDENCE_LIMIT,
    OrthogonalReduction,
    eliminate,
)
from castfit.solve.staged import ChainValues, Jacobians, Layout, Linearization, Specification, build_layout
from castfit.solve.subproblem import GROWTH_LIMIT, choose
from tests.solve.blocks import (
    bounded_step,
    close,
    dense,
    draw_bounds,
    flat_multipliers,
    kkt_matrix,
    kkt_solution,
    optimality_errors,
    problems,
)

FREE = np.inf


def unbounded(layout):
    return np.full(layout.n_v, -FREE), np.full(layout.n_v, FREE)


def step_of(layout, condensed):
    """Solve without bounds; path constraints stay."""
    return bounded_step(layout, condensed, *unbounded(layout))


def unstable(
    rate,
    stages: int,
    rng: np.random.Generator,
    *,
    components: tuple[int, ...] = (0, 1),
    stride: int = 1,
    units: tuple[float, float] = (1.0, 1.0),
) -> tuple[Layout, Linearization, np.ndarray]:
    """Linearize x'' = rate(t)^2 x + p-dependent forcing on [0, 1] (decay where rate < 0), states (x, x') in `units`.

    p and both initial states are estimated; the last array are the magnitudes of all variables.
    """
    K, n_q = stages, 3
    mask = np.zeros((K, len(components)), dtype=bool)
    mask[::stride] = True
    none = np.empty((K, 0))
    spec = Specification("e", np.arange(n_q), 2, 0, mask, none, none, np.linspace(0, 1, K + 1), ("x", "v"))
    layout = build_layout(("p", "x0", "v0"), (spec,))
    mu = np.array([rate(k / K) for k in range(K)])
    X = np.array([expm(np.array([[0, 1], [m * m, 0]]) / K) if m >= 0 else np.exp(m / K) * np.eye(2) for m in mu])
    size = np.array([1.0, np.abs(mu).max()])
    P = np.zeros((K, 2, n_q))
    P[:, :, 0] = rng.standard_normal((K, 2)) * size / K
    A = np.zeros((2, n_q))
    A[:, 1:] = np.diag(units)
    R_s = np.zeros((K, len(components), 2))
    for row, i in enumerate(components):
        R_s[:, row, i] = 20 / size[i]
    x = rng.standard_normal((K, 2)) * 0.1 * size
    X, P, x, R_s = X * units / np.array(units)[:, None], P / np.array(units)[:, None], x / units, R_s * units
    A = A / np.array(units)[:, None]
    values = ChainValues(rng.standard_normal(mask.shape) * mask, np.zeros(2), none, x, none)
    n_r = len(components)
    jacobians = Jacobians(
        R_s=R_s * mask[:, :, None],
        R_w=np.zeros((K, n_r, 0)),
        R_q=np.zeros((K, n_r, n_q)),
        D_s=np.zeros((K, 0, 2)),
        D_w=np.zeros((K, 0, 0)),
        D_q=np.zeros((K, 0, n_q)),
        X_s=X,
        X_w=np.zeros((K, 2, 0)),
        X_q=P,
        C_s=np.zeros((K, 0, 2)),
        C_w=np.zeros((K, 0, 0)),
        C_q=np.zeros((K, 0, n_q)),
        A=A,
    )
    scale = np.ones(layout.n_v)
    scale[layout.chains[0].nodes] = size / units
    linearization = Linearization(
        np.zeros(layout.n_v), (values,), np.zeros(0), np.zeros((0, n_q)), jacobians=(jacobians,)
    )
    return layout, linearization, scale


def exact_solution(full):
    """Solve the dense KKT system by Gauss elimination with 80 digits."""
    matrix = kkt_matrix(full)
    right = np.concatenate([full.r, np.zeros(full.J.shape[1]), -full.e])
    with localcontext() as context:
        context.prec = 80
        rows = [{j: Decimal(float(row[j])) for j in np.flatnonzero(row)} for row in np.column_stack([matrix, right])]
        n = len(rows)
        for i in range(n):
            pivot = max(range(i, n), key=lambda r: abs(rows[r].get(i, Decimal(0))))
            rows[i], rows[pivot] = rows[pivot], rows[i]
            for row in rows[i + 1 :]:
                if i in row:
                    factor = row.pop(i) / rows[i][i]
                    for j, value in rows[i].items():
                        if j > i:
                            row[j] = row.get(j, Decimal(0)) - factor * value
        x: list[Decimal] = [Decimal(0)] * (n + 1)
        x[n] = Decimal(-1)
        for i in reversed(range(n)):
            x[i] = -sum((value * x[j] for j, value in rows[i].items() if j > i), Decimal(0)) / rows[i][i]
    m, n_v = full.J.shape
    numbers = np.array([float(value) for value in x[:n]])
    return numbers[m : m + n_v], numbers[m + n_v :]


@given(problems(), st.integers(0, 2**32 - 1))
def test_every_row_is_that_of_the_full_problem(problem, seed):
    """For unknowns that satisfy the closure rows; without that, all equations but the closing ones hold."""
    layout, linearization = problem
    rng = np.random.default_rng(seed)
    some = None if seed % 2 else np.flatnonzero(rng.integers(0, 2, len(layout.chains))).tolist()
    full, scale = dense(layout, linearization), rng.uniform(0.1, 10, layout.n_v)
    condensed = eliminate(layout, linearization, scale, chains=some)
    x = rng.standard_normal(condensed.n_x)
    x -= np.linalg.pinv(condensed.F) @ (condensed.e + condensed.F @ x)
    dv = expand(condensed, x)
    assert close(full.C @ dv, -full.e)
    assert close(dv[condensed.positions], x)
    assert close(condensed.u + condensed.E @ x, full.r + full.J @ dv)
    assert close(condensed.c + condensed.C @ x, full.c + full.P @ dv)


@given(problems(determined=True, n_c=0))
def test_step_and_multipliers_are_those_of_the_dense_kkt_system(problem):
    layout, linearization = problem
    dv, expected_multipliers = kkt_solution(dense(layout, linearization))
    for chains in (None, [0]):
        step = step_of(layout, eliminate(layout, linearization, chains=chains))
        assert close(step.dv, dv)
        assert close(flat_multipliers(step.equations), expected_multipliers)


@given(problems(max_null=1), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.5]))
def test_bounded_step_is_optimal_and_that_of_condensing(problem, seed, share):
    layout, linearization = problem
    full = dense(layout, linearization)
    lower, upper = draw_bounds(np.random.default_rng(seed), linearization.v, share)
    steps = [bounded_step(layout, way(layout, linearization), lower, upper) for way in (condense, eliminate)]
    assert steps[0].solution.feasible == steps[1].solution.feasible
    assume(steps[0].solution.feasible)
    errors = optimality_errors(layout, full, steps[1], lower - linearization.v, upper - linearization.v)
    assert all(error < 1e-8 * max(1.0, np.abs(steps[1].dv).max()) for error in errors.values()), errors
    # The step is unique in what it predicts, if not in directions without data.
    predicted = [full.r + full.J @ step.dv for step in steps]
    assert close(predicted[1], predicted[0], 1e-8)


@given(st.integers(1, 20), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1), st.floats(0.1, 3))
def test_adjoint_is_the_transpose(conditions, n_s, p, seed, gain):
    """Duality: the derivative of  gradient . s + closure . rows  with respect to b is the multipliers."""
    rng = np.random.default_rng(seed)
    nodes = OrthogonalReduction(gain * rng.standard_normal((conditions, n_s, n_s)), rng.uniform(0.1, 10, n_s))
    b, gradient = rng.standard_normal((2, conditions + 1, n_s, p))
    s, rows = nodes.solve(b)
    closure = rng.standard_normal(rows.shape)
    assert np.isclose(
        np.vdot(gradient, s) + np.vdot(closure, rows),
        np.vdot(nodes.adjoint(gradient, closure), b),
        rtol=1e-7,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("mu", "stages", "options"),
    [
        (28.0, 20, {}),  # growth e^28 = 1e12
        (28.0, 13, {"units": (1e-5, 1e3)}),
        (60.0, 20, {}),  # e^60 = 1e26
        (60.0, 33, {"components": (0,), "stride": 4}),
        (60.0, 7, {}),  # e^8.6 in one stage
    ],
)
def test_growth_does_no_harm(mu, stages, options):
    layout, linearization, scale = unstable(lambda t: mu, stages, np.random.default_rng(3), **options)
    dv, expected_multipliers = exact_solution(dense(layout, linearization))
    condensed = choose(layout, linearization, scale)
    assert max(part.growth(scale) for part in condense(layout, linearization).chains) > 1e9
    assert condensed.n_x == layout.n_theta + 2
    step = step_of(layout, condensed)
    assert np.abs((step.dv - dv) / scale).max() <= 1e-10 * np.abs(dv / scale).max()
    assert np.abs(step.dv - dv)[:3].max() <= 1e-10 * np.abs(dv[:3]).max()
    of_conditions = np.tile(scale[layout.chains[0].nodes[0]], stages)
    errors = (flat_multipliers(step.equations) - expected_multipliers) * of_conditions
    assert np.abs(errors).max() <= 1e-10 * np.abs(expected_multipliers * of_conditions).max()
    # What condensing makes of it is why there is a second elimination.
    condensing_error = step_of(layout, condense(layout, linearization)).dv - dv
    assert np.abs(condensing_error / scale).max() > 1e-7 * np.abs(dv / scale).max()


def test_growth_followed_by_decay_keeps_a_middle_node():
    layout, linearization, scale = unstable(lambda t: 60.0 if t < 0.5 else -60.0, 24, np.random.default_rng(4))
    dv, _ = exact_solution(dense(layout, linearization))
    condensed = choose(layout, linearization, scale)
    retained_nodes = condensed.chains[0].nodes.kept_nodes
    assert len(retained_nodes) == 2
    assert 6 <= retained_nodes[0] <= 16
    assert retained_nodes[1] == 23
    step = step_of(layout, condensed)
    assert np.abs((step.dv - dv) / scale).max() <= 1e-7 * np.abs(dv / scale).max()


def test_no_coefficient_grows_however_long_the_horizon():
    layout, linearization, scale = unstable(lambda t: 500.0, 300, np.random.default_rng(5))
    part = eliminate(layout, linearization, scale).chains[0]
    unknowns = np.concatenate([np.ones(3), scale[part.chain.nodes[-1]]])
    assert np.abs(part.G * unknowns / scale[part.chain.nodes][:, :, None]).max() < 20


def test_overflow_is_silent_and_leads_to_the_second_elimination():
    layout, linearization, scale = unstable(lambda t: 1500.0, 100, np.random.default_rng(6))  # e^1500
    condensed = choose(layout, linearization, scale)
    assert condensed.n_x == 5
    step = step_of(layout, condensed)
    full = dense(layout, linearization)
    assert (np.abs(full.C @ step.dv + full.e) < 1e-12 * (np.abs(full.C) @ np.abs(step.dv))).all()


def test_bounds_hold_where_growth_is_large():
    layout, linearization, scale = unstable(lambda t: 60.0, 24, np.random.default_rng(7))
    full, condensed = dense(layout, linearization), choose(layout, linearization, scale)
    free = step_of(layout, condensed).dv
    lower, upper = unbounded(layout)
    nodes = layout.chains[0].nodes
    upper[nodes[10, 0]] = free[nodes[10, 0]] - 0.01
    lower[nodes[22, 0]] = free[nodes[22, 0]] + 0.02
    step = bounded_step(layout, condensed, lower, upper)
    assert step.solution.feasible
    assert np.count_nonzero(step.bounds) == 2
    errors = optimality_errors(layout, full, step, lower, upper)
    assert all(error < 1e-8 for error in errors.values()), errors


def test_stable_problems_are_condensed():
    layout, linearization, scale = unstable(lambda t: -1.0, 50, np.random.default_rng(8))
    assert max(part.growth(scale) for part in condense(layout, linearization).chains) < 100
    assert choose(layout, linearization, scale).n_x == layout.n_theta


def test_growth_does_not_depend_on_units():
    kinds = [unstable(lambda t: 12.0, 10, np.random.default_rng(9), units=units) for units in ((1, 1), (1e-5, 1e3))]
    growths = [
        max(part.growth(scale) for part in condense(layout, linearization).chains)
        for layout, linearization, scale in kinds
    ]
    assert np.isclose(growths[0], growths[1])
    assert 1e3 < growths[0] < GROWTH_LIMIT


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=16), st.integers(0, 2**32 - 1))
def test_conditions_hold_and_nothing_depends_too_much_whatever_is_kept(powers, seed):
    """Growth and decay in any order: middle nodes are kept where neither neighbour determines them."""
    rng = np.random.default_rng(seed)
    rotations = np.linalg.qr(rng.standard_normal((len(powers), 2, 2)))[0]
    X = rotations * 10 ** np.repeat(powers, 2)[:, None].reshape(-1, 1, 2)
    nodes = OrthogonalReduction(X, np.ones(2))
    assert nodes.kept_nodes[-1] == len(powers)
    assert all(np.abs(merge.Y).max(initial=0.0) <= DEPENDENCE_LIMIT for merge in nodes.merges)
    b = rng.standard_normal((len(powers) + 1, 2, 1))
    s, rows = nodes.solve(b)
    s = s + nodes.basis @ np.linalg.lstsq(nodes.closure, -rows, rcond=1e-15)[0]
    terms = np.abs(X) @ np.abs(s[:-1]) + np.abs(s[1:]) + np.abs(b[1:])
    assert np.abs(X @ s[:-1] - s[1:] + b[1:]).max() <= 1e-9 * terms.max()
    assert np.array_equal(s[0], b[0])


def test_conditions_between_two_kept_nodes_couple_them():
    """From 1, growth to 1e12 and decay to 1 again: the peak stays unknown, and the last node depends on it."""
    gains = np.array([1e3] * 4 + [1e-3] * 4)
    nodes = OrthogonalReduction(gains[:, None, None], np.ones(1))
    assert nodes.kept_nodes.tolist() == [4, 8]
    b = np.zeros((9, 1, 1))
    b[0] = 1.0
    s, rows = nodes.solve(b)
    y = np.array([[1e12], [1.0]])
    assert (np.abs(nodes.closure @ y + rows) < 1e-9 * (np.abs(nodes.closure) @ y)).all()
    assert np.allclose((s + nodes.basis @ y).ravel(), np.cumprod(np.append(1.0, gains)), rtol=1e-3)
