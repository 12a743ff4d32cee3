"""The whole search on plain functions, without any model."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from castfit.drive.search.scatter.method.choice import thin_path
from castfit.drive.search.scatter.method.options import ScatterOptions
from castfit.drive.search.scatter.method.search import LocalSearchOutcome, begin_search, run_generation


class Function:
    """A black-box function of the unit cube, with local searches by L-BFGS-B."""

    def __init__(self, f, *, local=True):
        self.f, self.local, self.evaluations = f, local, 0

    def values(self, X):
        self.evaluations += len(X)
        return np.array([self.f(x) for x in X])

    def improve(self, start, climbs):
        if not self.local:
            return None
        path = [start.x]
        smooth = lambda x: min(float(np.nan_to_num(self.f(x), nan=1e9)), 1e9)  # noqa: E731
        solution = minimize(smooth, start.x, method="L-BFGS-B", bounds=[(0, 1)] * start.x.size, callback=path.append)
        self.evaluations += solution.nfev
        return LocalSearchOutcome(thin_path(np.array([*path, solution.x])), float(solution.fun))


def rastrigin(x):
    z = 10.24 * (x - 0.37)
    return float(10 * z.size + (z**2 - 10 * np.cos(2 * np.pi * z)).sum())


def ackley(x):
    z = 60 * (x - 0.61)
    return float(20 + np.e - 20 * np.exp(-0.2 * np.sqrt((z**2).mean())) - np.exp(np.cos(2 * np.pi * z).mean()))


def branin(x):
    u, v = 15 * x[0] - 5, 15 * x[1]
    return float((v - 5.1 / (4 * np.pi**2) * u**2 + 5 / np.pi * u - 6) ** 2
                 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(u) + 10)  # fmt: skip


def rosenbrock(x):
    z = 4 * x - 2
    return float((100 * (z[1:] - z[:-1] ** 2) ** 2 + (1 - z[:-1]) ** 2).sum())


def run(objective, n, options=None, *, seed=0, target=-np.inf, limit=20_000):
    options = options or ScatterOptions()
    state = begin_search(objective, n, seed, options)
    while objective.evaluations < limit and state.best.f > target:
        state = run_generation(objective, state, options)
    return state


@pytest.mark.parametrize(
    ("f", "n", "target"),
    [(rastrigin, 3, 1e-6), (ackley, 4, 1e-3), (branin, 2, 0.397888), (rosenbrock, 5, 1e-6)],
    ids=["rastrigin", "ackley", "branin", "rosenbrock"],
)
@pytest.mark.parametrize("seed", range(2))
def test_multimodal_functions_are_solved(f, n, target, seed):
    assert run(Function(f), n, seed=seed, target=target).best.f <= target


def test_search_without_local_searches_finds_the_optimum():
    state = run(Function(rastrigin, local=False), 3, ScatterOptions(go_beyond=True), target=1e-2, limit=30_000)
    assert state.best.f <= 1e-2


@pytest.mark.parametrize(
    "options",
    [
        ScatterOptions(first_refset="corners"),
        ScatterOptions(regeneration="distance"),
        ScatterOptions(aggressive=True),
        ScatterOptions(go_beyond=True),
        ScatterOptions(restart_after=2),
        ScatterOptions(merit_filter=False, distance_filter="minima"),
        ScatterOptions(distance_filter="none", balance=0.0),
        ScatterOptions(local_n1=3, local_n2=2),
        ScatterOptions(local_searches=3),
        ScatterOptions(dim_refset=5, n_diverse=20),
    ],
    ids=lambda o: ", ".join(f"{k}={v}" for k, v in vars(o).items() if v != getattr(ScatterOptions(), k)),
)
def test_every_option_leads_to_the_optimum_too(options):
    assert run(Function(branin), 2, options, target=0.397888).best.f <= 0.397888


def test_a_search_repeats_itself_and_another_seed_does_not():
    def trace(seed):
        state = begin_search(Function(rastrigin), 3, seed, ScatterOptions())
        out = [state.best.f]
        for _ in range(5):
            state = run_generation(Function(rastrigin), state, ScatterOptions())
            out += [state.best.f, *(m.f for m in state.R)]
        return out

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


def test_a_state_is_never_changed():
    objective = Function(rastrigin)
    state = begin_search(objective, 3, 0, ScatterOptions())
    snapshot = [m.f for m in state.R], state.frequency.copy(), len(state.climbs)
    run_generation(objective, state, ScatterOptions())
    assert [m.f for m in state.R] == snapshot[0]
    np.testing.assert_array_equal(state.frequency, snapshot[1])
    assert len(state.climbs) == snapshot[2]


def test_half_of_the_space_without_value_is_no_obstacle():
    def holey(x):
        return np.inf if x.sum() < 1 else rosenbrock(x)

    for first_refset in ("quality", "corners"):
        state = run(Function(holey), 2, ScatterOptions(first_refset=first_refset), target=1e-6)
        assert state.best.f <= 1e-6


def test_search_without_finite_values_ends_with_infinite_best():
    objective = Function(lambda x: np.nan)
    state = run(objective, 2, limit=2000)
    assert state.best.f == np.inf


def test_a_flat_reference_set_is_reset():
    objective = Function(lambda x: 1.0, local=False)
    state = begin_search(objective, 3, 0, ScatterOptions())
    next_state = run_generation(objective, state, ScatterOptions())
    assert next_state.R[0].number == state.R[0].number
    assert {m.number for m in next_state.R[1:]}.isdisjoint({m.number for m in state.R})


def test_an_exhausted_reference_set_keeps_its_better_half():
    objective = Function(rastrigin, local=False)
    options = ScatterOptions()
    state = begin_search(objective, 3, 0, options)
    for _ in range(50):
        previous_state, state = state, run_generation(objective, state, options)
        if previous_state.frequency.sum() != state.frequency.sum():
            break
    else:
        pytest.fail("the reference set was never regenerated")
    assert len(state.R) == options.dim_refset


def test_the_best_survives_restarts():
    options = ScatterOptions(restart_after=1, dim_refset=5)
    objective = Function(rastrigin)
    state = begin_search(objective, 3, 0, options)
    for _ in range(15):
        previous_state, state = state, run_generation(objective, state, options)
        assert state.best.f <= previous_state.best.f
    assert state.best.f <= state.R[0].f


def test_each_restart_waits_longer_and_draws_more():
    options = ScatterOptions(restart_after=1, dim_refset=4, n_diverse=8)
    objective = Function(lambda x: 1.0, local=False)
    state = begin_search(objective, 2, 0, options)
    generation_counts, draw_counts = [], []
    for _ in range(3):
        generations = 0
        while True:
            previous_state, state = state, run_generation(objective, state, options)
            generations += 1
            if state.restarts > previous_state.restarts:
                break
        generation_counts.append(generations)
        draw_counts.append(int(state.frequency[0].sum() - previous_state.frequency[0].sum()))
    assert generation_counts == [1, 2, 3]
    assert draw_counts == [16, 24, 32]


def test_given_points_are_tried():
    optimum = np.full((1, 3), 0.37)
    assert begin_search(Function(rastrigin, local=False), 3, 0, ScatterOptions(), optimum).best.f == pytest.approx(
        0, abs=1e-9
    )


def test_fewer_points_than_subranges():
    options = replace(ScatterOptions(), dim_refset=3, n_diverse=3)
    assert run(Function(branin), 2, options, target=0.3979).best.f <= 0.3979
