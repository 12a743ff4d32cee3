"""Statistics of many experiments in blocks: the same figures as those of dense matrices."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import castfit.result.covariance as of
from castfit._support.status import InputError
from castfit.result.block_matrix import BlockMatrix
from castfit.solve import arrow as arrows
from tests.solve.blocks import random_problem


def both(layout, linearization, active, *, written=500, **options):
    """Return the statistics by dense matrices, and in blocks."""
    results = []
    for few in (10**9, -1):
        with pytest.MonkeyPatch.context() as patch:
            for place in (arrows, of):
                patch.setattr(place, "MAX_DENSE_LOCAL_UNKNOWNS", few)
            patch.setattr(of, "MAX_WRITTEN_OUT_QUANTITIES", written if few < 0 else 500)
            results.append(of.statistics(layout, linearization, active, **options))
    return results


def assert_same(dense, blocks, *, skip=("directions", "condition", "root"), tolerance=1e-8):
    for f in fields(dense):
        if f.name in skip:
            continue
        a, b = np.asarray(getattr(dense, f.name), dtype=float), np.asarray(getattr(blocks, f.name), dtype=float)
        size = np.abs(a[np.isfinite(a)]).max(initial=0.0)
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * size, err_msg=f.name)
    np.testing.assert_allclose(
        blocks.root @ blocks.root.T, dense.root @ dense.root.T, atol=tolerance * np.abs(dense.root).max() ** 2
    )


def drawn(seed, **options):
    rng = np.random.default_rng(seed)
    stages = tuple(rng.integers(2, 5, size=4))
    problem_options = {"n_r": 5, "shared": 2, "local": 2, "n_s": 1, "padding": False, **options}
    return rng, *random_problem(rng, stages=stages, **problem_options)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_statistics_in_blocks_are_those_of_dense_matrices(seed, has_active, errors):
    rng, layout, linearization = drawn(seed, n_prior=3)
    prior = linearization.prior_jacobian
    prior[0, 2:] = prior[1, 5:] = 0.0
    prior[2] = 0.0
    prior[2, 3] = 1.5  # of an own quantity
    active = np.zeros(layout.n_v, dtype=np.int8)
    if has_active:
        active[[1, 3, 6]] = -1
    rows = sum(int(c.row_mask.sum()) for c in layout.chains) + 3
    results = both(
        layout,
        linearization,
        active,
        relative_tolerance=1e-6 if errors else 0.0,
        absolute_tolerance=1e-6,
        row_errors=0.01 * rng.standard_normal(rows) if errors else None,
    )
    assert_same(*results)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_nodes_at_bounds_and_path_constraints(seed):
    _, layout, linearization = drawn(seed, n_c=1)
    layout.chains[0].constraint_lower[:], layout.chains[0].constraint_upper[:] = -np.inf, np.inf
    layout.chains[0].constraint_lower[1] = layout.chains[0].constraint_upper[1] = 0.2
    active = np.zeros(layout.n_v, dtype=np.int8)
    active[layout.chains[2].nodes[1, 0]] = 1
    assert_same(*both(layout, linearization, active, relative_tolerance=1e-6))


@pytest.mark.parametrize("position", ["own", "shared", "between"])
def test_block_statistics_undetermined_directions_agree_with_dense(position):
    _, layout, linearization = drawn(3, n_s=0, n_r=9)
    for i, j in enumerate(linearization.jacobians):
        if position == "shared":
            j.R_q[:, :, 1] = 2.0 * j.R_q[:, :, 0]
        elif position == "between":
            j.R_q[:, :, 1] = 3.0 * j.R_q[:, :, 2]
        elif i == 1:
            j.R_q[:, :, 3] = 0.5 * j.R_q[:, :, 2]
    dense, blocks = both(layout, linearization, np.zeros(layout.n_v, dtype=np.int8))
    assert_same(dense, blocks, skip=("directions", "condition", "root"))
    assert dense.condition == blocks.condition == np.inf
    assert dense.directions.shape == blocks.directions.shape == (1, layout.n_theta)
    np.testing.assert_allclose(np.abs(blocks.directions), np.abs(dense.directions), atol=1e-6)


def test_a_growing_system_keeps_its_nodes():
    _, layout, linearization = drawn(5, n_s=2, gain=400.0)
    assert_same(*both(layout, linearization, np.zeros(layout.n_v, dtype=np.int8), relative_tolerance=1e-9))


def test_a_block_matrix_is_used_like_an_array(monkeypatch):
    _, layout, linearization = drawn(11)
    active = np.zeros(layout.n_v, dtype=np.int8)
    active[3] = 1
    options = {
        "relative_tolerance": 1e-5,
        "row_errors": np.full(sum(int(c.row_mask.sum()) for c in layout.chains), 0.1),
    }
    dense, blocks = both(layout, linearization, active, written=0, **options)
    matrix, expected = blocks.covariance, dense.covariance
    n = layout.n_theta
    assert isinstance(matrix, BlockMatrix)
    assert matrix.shape == expected.shape
    size = np.nanmax(np.abs(expected))
    same = {"rtol": 1e-9, "atol": 1e-11 * size}
    np.testing.assert_allclose(np.asarray(matrix), expected, **same)
    np.testing.assert_allclose(matrix.diagonal(), np.diag(expected), **same)
    np.testing.assert_allclose(matrix[2], expected[2], **same)
    np.testing.assert_allclose(matrix[1:5, 2:4], expected[1:5, 2:4], **same)
    np.testing.assert_allclose(matrix[np.ix_([5, 0], [1, 7, 5])], expected[np.ix_([5, 0], [1, 7, 5])], **same)
    np.testing.assert_allclose(matrix[np.array([5, 0]), np.array([1, 7])], expected[[5, 0], [1, 7]], **same)
    np.testing.assert_allclose(matrix.of(layout.names[4], layout.names[0]), expected[np.ix_([4, 0], [4, 0])], **same)
    np.testing.assert_allclose(2.0 * matrix, 2.0 * expected, **same)
    x = np.arange(n) - 3.3
    np.testing.assert_allclose(matrix.times(x), np.nan_to_num(expected) @ x, rtol=1e-8)
    np.testing.assert_allclose(np.asarray(blocks.information), dense.information, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(blocks.jacobian.toarray(), dense.jacobian, atol=1e-12)
    assert "own" not in repr(matrix)
    with pytest.raises(InputError, match="did you mean 'theta1'"):
        matrix.of("theta1x")
    monkeypatch.setattr("castfit.result.block_matrix.MAX_WRITTEN_OUT_SIZE", 5)
    with pytest.raises(InputError, match="ask for blocks"):
        np.asarray(matrix)
