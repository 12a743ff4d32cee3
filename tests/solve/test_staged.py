"""The contract: where variables lie, what they are called, what an evaluation is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castfit.solve.staged import (
    ChainValues,
    Evaluation,
    Failure,
    HessianBlocks,
    Layout,
    Specification,
    StagedProblem,
    build_layout,
    gaps,
)
from castfit.transcribe.single_shooting import SingleShooting
from tests.builders import decay_problem
from tests.solve.blocks import random_problem


@st.composite
def layouts(draw) -> Layout:
    """Draw layouts of 1 to 3 chains of any sizes, with and without nodes and inner variables."""
    n_theta = draw(st.integers(0, 4))
    specifications = []
    for i in range(draw(st.integers(1, 3))):
        stages, n_s, n_w = draw(st.integers(1, 4)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
        n_r, n_c = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        theta = np.array(sorted(draw(st.sets(st.integers(0, max(n_theta - 1, 0)), max_size=n_theta))), dtype=int)
        specifications.append(
            Specification(
                f"experiment {i}",
                theta,
                n_s,
                n_w,
                np.ones((stages, n_r), dtype=bool),
                np.full((stages, n_c), -np.inf),
                np.full((stages, n_c), np.inf),
                np.arange(stages + 1.0),
                tuple(f"x{j}" for j in range(n_s)),
            )
        )
    return build_layout(tuple(f"theta{i}" for i in range(n_theta)), tuple(specifications))


@given(layout=layouts(), seed=st.integers(0, 9))
def test_pack_and_local_are_inverse(layout, seed):
    v = np.random.default_rng(seed).standard_normal(layout.n_v)
    parts = [chain.local(v) for chain in layout.chains]
    for chain, (q, s, w) in zip(layout.chains, parts, strict=True):
        assert q.shape == (chain.n_q,)
        assert s.shape == (chain.n_stages, chain.n_s)
        assert w.shape == (chain.n_stages, chain.n_w)
        assert chain.row_mask.shape == (chain.n_stages, chain.n_r)
        assert chain.constraint_lower.shape == (chain.n_stages, chain.n_c)
        np.testing.assert_array_equal(q, layout.theta(v)[chain.theta])
    packed_v = layout.pack(layout.theta(v), tuple(s for _, s, _ in parts), tuple(w for _, _, w in parts))
    np.testing.assert_array_equal(packed_v, v)


@given(layout=layouts())
def test_every_variable_has_one_place_and_one_name(layout):
    places = np.concatenate(
        [np.arange(layout.n_theta), *(p.ravel() for c in layout.chains for p in (c.nodes, c.inner))]
    )
    np.testing.assert_array_equal(np.sort(places), np.arange(layout.n_v))
    names = [layout.describe(i) for i in range(layout.n_v)]
    assert len(set(names)) == layout.n_v
    with pytest.raises(IndexError, match="does not exist"):
        layout.describe(layout.n_v)


def test_the_order_of_variables_and_their_names():
    mask, none = np.ones((2, 1), dtype=bool), np.zeros((2, 0))
    theta = np.array([0])
    layout = build_layout(
        ("k",), (Specification("a", theta, 2, 1, mask, none, none, np.array([0, 0.5, 1]), ("x", "y")),)
    )
    assert [layout.describe(i) for i in range(layout.n_v)] == [
        "k",
        "x at t = 0 (a)",
        "y at t = 0 (a)",
        "inner variable of 0 at t = 0 (a)",
        "x at t = 0.5 (a)",
        "y at t = 0.5 (a)",
        "inner variable of 0 at t = 0.5 (a)",
    ]


def test_cost_and_failures():
    values = ChainValues(np.array([[3.0, 4.0]]), np.zeros(0), np.zeros((1, 0)), np.zeros((1, 0)), np.zeros((1, 0)))
    good = Evaluation(np.zeros(1), (values, values), np.array([2.0]), np.zeros((1, 1)))
    assert good.ok
    assert good.cost == 0.5 * (2 * 25 + 4)
    bad = replace(good, failures=(Failure("a", 0, "step_size", "it stopped"),))
    assert not bad.ok
    assert bad.cost == np.inf


def test_gaps_are_the_defects_of_continuity():
    layout, linear = random_problem(np.random.default_rng(0), stages=(3,), n_s=2)
    (chain_gaps,) = gaps(layout, linear)
    nodes, values = linear.v[layout.chains[0].nodes], linear.values[0]
    np.testing.assert_array_equal(chain_gaps[0], values.a - nodes[0])
    np.testing.assert_array_equal(chain_gaps[1], values.x[0] - nodes[1])
    np.testing.assert_array_equal(chain_gaps[2], values.x[1] - nodes[2])


def test_a_transcription_without_hessian_says_so():
    problem = decay_problem()
    staged = SingleShooting().transcribe(problem, problem.guess)
    assert HessianBlocks not in staged.capabilities
    with pytest.raises(NotImplementedError, match="ShootingProblem has no exact Hessian; use the Gauss-Newton"):
        StagedProblem.hessian(staged, staged.start, ())
