"""What a solve keeps book of: evaluations, failures, the best point; and how far a point is from feasible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from castfit._support.status import Status
from castfit.solve.solution import CountingProblem, _roughness, infeasibility
from tests.solve.blocks import dense, random_problem
from tests.solve.toys import Affine, Faulty, Formula


def line() -> Formula:
    """r(q) = q - 3."""
    return Formula(lambda q: q - 3.0, lambda q: np.eye(1), [0.0])


def test_infeasibility_is_the_largest_violation_in_units_of_the_states():
    layout, linearization = random_problem(np.random.default_rng(0), stages=(3,), n_w=2, n_c=2)
    chain, scale = layout.chains[0], np.full(layout.n_v, 1e-6)
    values = linearization.values[0]
    s = linearization.v[chain.nodes]
    exact = replace(
        values, a=s[0], x=np.vstack([s[1:], s[:1]]), d=np.zeros_like(values.d), c=np.full_like(values.c, 0.1)
    )

    def compute_infeasibility(**changed):
        return infeasibility(layout, scale, replace(linearization, values=(replace(exact, **changed),)))

    assert compute_infeasibility() == 0.0
    d = exact.d.copy()
    d[1, 1] = -3e-6
    assert np.isclose(compute_infeasibility(d=d), 3.0)
    x = exact.x.copy()
    x[0, 1] += 2e-6
    assert np.isclose(compute_infeasibility(x=x), 2.0)
    x[-1] = 99.0  # nothing matches the end of the last stage
    assert np.isclose(compute_infeasibility(x=x), 2.0)
    assert np.isclose(compute_infeasibility(a=exact.a + 5e-6), 5.0)
    upper = np.isfinite(chain.constraint_upper)
    assert np.isclose(compute_infeasibility(c=np.where(upper, 1.4, 0.1)), 1.0)  # above 0.4, in its own unit
    free = ~upper & ~np.isfinite(chain.constraint_lower)
    assert free.any()
    assert compute_infeasibility(c=np.where(free, np.nan, 0.1)) == 0.0


def test_ledger_counts_remembers_and_reuses():
    ledger = CountingProblem(line())
    evaluation = ledger.evaluate(np.array([1.0]))
    assert ledger.evaluate(np.array([1.0])) is evaluation
    ledger.linearize(np.array([1.0]))
    ledger.evaluate(np.array([2.5]))
    ledger.evaluate(np.array([7.0]))
    assert ledger.evaluations == {"values": 3, "jacobians": 1}
    assert ledger.best == 2.5
    solution = ledger.solution(ledger.best, Status.MAX_TIME, detail="late", iterations=3)
    assert (solution.evaluations, solution.failures) == ({"values": 3, "jacobians": 1}, {})
    assert solution.detail == "late"


def test_failures_are_counted_by_cause_and_never_best():
    staged = Faulty(line(), lambda v: bool(v[0] > 2.0))
    ledger = CountingProblem(staged)
    for q in (1.0, 2.5, 2.9):
        ledger.evaluate(np.array([q]))
    assert ledger.failures == {"step_size": 2}
    assert ledger.best == 1.0


def test_continuity_comes_before_cost():
    layout, linearization = random_problem(np.random.default_rng(1), stages=(4,), n_prior=8)
    staged = Affine(layout, linearization)
    staged.linearization = replace(linearization, prior=linearization.prior + 3.0)
    ledger = CountingProblem(staged)
    v = linearization.v
    continuous = v + np.linalg.lstsq(*_equations(staged), rcond=None)[0]
    ledger.evaluate(v)
    ledger.evaluate(continuous)
    ledger.evaluate(v + 1e-3)
    assert np.array_equal(ledger.best, continuous)


def _equations(staged):
    full = dense(staged.layout, staged.linearization)
    return full.C, -full.e


def test_coarse_evaluations_are_entered_in_the_same_book():
    toy = line()
    toy.low_accuracy = line
    ledger = CountingProblem(toy)
    ledger.explicit_low_accuracy.evaluate(np.array([2.0]))
    ledger.explicit_low_accuracy.linearize(np.array([2.0]))
    ledger.evaluate(np.array([1.0]))
    assert ledger.evaluations == {"values": 2, "jacobians": 1}
    assert ledger.best == 2.0
    assert CountingProblem(line()).explicit_low_accuracy.staged is not None
    same = CountingProblem(line())
    assert same.explicit_low_accuracy is same


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_never_best(value):
    toy = Formula(lambda q: np.where(q > 2, value, q - 3.0), lambda q: np.eye(1), [0.0])
    ledger = CountingProblem(toy)
    ledger.evaluate(np.array([1.0]))
    ledger.evaluate(np.array([2.5]))
    assert ledger.best == 1.0


def test_an_infeasibility_near_the_largest_number_is_graded():
    assert _roughness(0.0) == _roughness(1e-6) == 0.0
    assert _roughness(8e-6) == 3.0
    assert _roughness(1e305) == 1e305 < _roughness(np.inf)
