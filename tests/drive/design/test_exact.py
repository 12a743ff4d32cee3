"""Exact designs beside all designs there are."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from castfit.drive.design.criteria import ACriterion, DCriterion, ECriterion
from castfit.drive.design.exact import CandidatePositions, merge_adjacent_weights, optimize_counts, round_efficiently
from castfit.drive.design.interior_point import DesignGoal, optimize_weights
from tests.drive.design.models import offers


def build_positions(N):
    return CandidatePositions(np.arange(N), np.arange(N), np.zeros(N), np.zeros(N))


def best_of_all(goal, pool, N, budget, cost):
    values = []
    for m in range(1, budget + 1):
        for chosen in itertools.combinations_with_replacement(range(N), m):
            counts = np.bincount(chosen, minlength=N).astype(float)
            if cost @ counts <= budget and counts.max() <= 3:
                values.append(float(goal.values(pool.information(counts))))
    return min(values)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 20))])
def test_exact_design_efficiency_is_confirmed_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    n, N = int(rng.integers(2, 4)), int(rng.integers(6, 9))
    budget = int(rng.integers(n, n + 3))
    cost = rng.choice([1.0, 1.0, 2.0], N) if seed % 2 else np.ones(N)
    M0 = 0.05 * np.eye(n)
    pool = offers(rng.standard_normal((N, 1, n)), budget, M0=M0, cost=cost, u=np.full(N, 3.0))
    for criterion in (DCriterion(n), ACriterion(np.eye(n)), ECriterion(n)):
        goal = DesignGoal(criterion)
        weights = optimize_weights(goal, pool)
        counts = optimize_counts(goal, pool, build_positions(N), weights.w, rng=rng)
        value = float(goal.values(pool.information(counts)))
        best = best_of_all(goal, pool, N, budget, cost)
        assert pool.fits(counts)
        assert weights.bound <= best + 1e-9 * abs(best)
        stated_efficiency, true_efficiency = goal.efficiency(value, weights.bound), goal.efficiency(value, best)
        assert stated_efficiency <= true_efficiency + 1e-9
        assert true_efficiency >= 0.999


def test_round_efficiently_matches_hand_calculation():
    # Pukelsheim and Rieder (1992): with n = 8 and l = 3, ceil(6.5 w) = (3, 3, 2)
    np.testing.assert_array_equal(round_efficiently(np.array([0.43, 0.36, 0.21]), 8), [3, 3, 2])
    assert round_efficiently(np.array([0.5, 0.3, 0.2]), 2).sum() == 2


def test_merge_adjacent_weights_uses_the_mean_time():
    positions = CandidatePositions(np.zeros(6, int), np.zeros(6, int), np.arange(6.0), np.zeros(6))
    np.testing.assert_array_equal(
        merge_adjacent_weights(np.array([0, 1.0, 1.0, 0, 0, 0.5]), positions)[[1, 2, 5]], [2.0, 0.0, 0.5]
    )


def test_exact_design_keeps_the_spacing():
    times = np.linspace(0, 1, 21)
    J = np.stack([np.ones(21), times], -1)[:, None]
    positions = CandidatePositions(np.zeros(21, int), np.zeros(21, int), times, np.full(21, 0.2))
    pool = offers(J, 4, u=np.ones(21))
    counts = optimize_counts(
        DesignGoal(DCriterion(2)), pool, positions, np.full(21, 4 / 21), rng=np.random.default_rng(0)
    )
    used = times[counts > 0]
    assert used.size == 4
    assert np.diff(used).min() >= 0.2 - 1e-9


@pytest.mark.parametrize("budget", [1e3, 1e6, 1e9])
def test_large_budgets_are_spent_in_few_evaluations(budget, monkeypatch):
    """An exact design of many repeats is as good as the relaxed one, whose bound holds for it."""
    rng = np.random.default_rng(3)
    n, N = 3, 12
    cost = rng.choice([1.0, 2.3], N)
    pool = offers(rng.standard_normal((N, 1, n)), budget, M0=0.05 * np.eye(n), cost=cost)
    n_evaluations, evaluate = [0], DesignGoal.values

    def counted(goal, M):
        n_evaluations[0] += 1
        return evaluate(goal, M)

    for criterion in (DCriterion(n), ACriterion(np.eye(n)), ECriterion(n)):
        goal = DesignGoal(criterion)
        weights = optimize_weights(goal, pool)
        monkeypatch.setattr(DesignGoal, "values", counted)
        n_evaluations[0] = 0
        counts = optimize_counts(goal, pool, build_positions(N), weights.w, rng=rng)
        assert n_evaluations[0] < 60_000
        monkeypatch.undo()
        assert pool.fits(counts)
        assert (counts == np.round(counts)).all()
        assert goal.efficiency(float(goal.values(pool.information(counts))), weights.bound) > 1.0 - 20.0 / budget


def test_price_alone_decides_on_millions_of_repeats():
    n, N = 2, 6
    pool = offers(np.random.default_rng(5).standard_normal((N, 1, n)), 1e12, M0=np.eye(n))
    pool = replace(pool, price=np.full(N, 1e-7))
    goal = DesignGoal(DCriterion(n))
    weights = optimize_weights(goal, pool)
    counts = optimize_counts(goal, pool, build_positions(N), weights.w, rng=np.random.default_rng(0))
    assert float(goal.values(pool.information(counts)) + pool.price @ counts) - weights.bound < 1e-6
    assert counts.sum() == pytest.approx(n / 1e-7, rel=1e-3)
