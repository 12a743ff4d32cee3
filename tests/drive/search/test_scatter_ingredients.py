"""Every ingredient of the scatter search by itself, on plain arrays."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castfit.drive.search.scatter.method.choice import (
    FilterState,
    LocalSearchPath,
    choose_start,
    filter_candidates,
    is_near_minima,
    is_near_paths,
    memory_distances,
    path_distances,
    thin_path,
)
from castfit.drive.search.scatter.method.combine import (
    bring_inside,
    draw_beyond,
    find_better_children,
    find_child_types,
    find_new_pairs,
    go_beyond,
    make_child,
    make_children,
    make_pair,
)
from castfit.drive.search.scatter.method.diversify import choose_subranges as choose_subrange
from castfit.drive.search.scatter.method.diversify import (
    compute_probabilities,
    compute_subranges,
    draw_diverse,
    draw_first_points,
)
from castfit.drive.search.scatter.method.members import Member, make_members, sort_by_quality
from castfit.drive.search.scatter.method.options import ScatterOptions
from castfit.drive.search.scatter.method.refset import (
    compute_largest_products,
    compute_least_distances,
    compute_segments,
    count_retained,
    find_most_distant,
    find_new_directions,
    form_by_corners,
    form_by_quality,
    has_near_member,
    is_flat,
    is_in_flat_zone,
    update_refset,
)

seeds = st.integers(0, 2**32 - 1)


def cloud(seed: int, k: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).random((k, n))


def members(X: np.ndarray, f=None) -> tuple[Member, ...]:
    return make_members(X, np.arange(len(X), dtype=float) if f is None else np.asarray(f, dtype=float), 0)


# Diversification (Eqs. 18-22)


def test_subranges_tile_the_unit_interval():
    lower, upper = compute_subranges(4)
    np.testing.assert_allclose(lower, [0, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(upper[:-1], lower[1:])
    assert upper[-1] == 1.0


def test_first_points_put_every_unknown_into_every_subrange_once():
    X = draw_first_points(5, 4, np.random.default_rng(0))
    np.testing.assert_array_equal(np.floor(4 * X), np.repeat(np.arange(4)[:, None], 5, axis=1))


def test_probabilities_are_inverse_to_the_frequencies():
    probability = compute_probabilities(np.array([[1, 2, 4, 4]]))
    np.testing.assert_allclose(probability, [[0.5, 0.25, 0.125, 0.125]])


@given(seeds, st.integers(1, 6))
def test_probabilities_add_up_to_one(seed, n):
    frequency = np.random.default_rng(seed).integers(1, 50, (n, 4))
    np.testing.assert_allclose(compute_probabilities(frequency).sum(axis=1), 1.0)


def test_a_subrange_is_the_first_whose_cumulated_probability_reaches_the_number():
    probability = np.tile([0.5, 0.25, 0.125, 0.125], (5, 1))
    chosen = choose_subrange(probability, np.array([0.0, 0.5, 0.51, 0.76, 1.0]))
    np.testing.assert_array_equal(chosen, [0, 0, 1, 2, 3])


@given(seeds, st.integers(4, 60), st.integers(1, 5))
def test_the_memory_counts_where_the_points_lie(seed, count, n):
    rng = np.random.default_rng(seed)
    X, frequency = draw_diverse(count, np.zeros((n, 4), dtype=np.intp), rng)
    assert X.shape == (count, n)
    assert (X >= 0).all()
    assert (X <= 1).all()
    np.testing.assert_array_equal(frequency.sum(axis=1), count)
    for i in range(n):
        expected = np.bincount(np.minimum((4 * X[:, i]).astype(int), 3), minlength=4)
        np.testing.assert_array_equal(frequency[i], expected)


def test_the_memory_is_not_changed_in_place():
    memory = np.ones((3, 4), dtype=np.intp)
    draw_diverse(5, memory, np.random.default_rng(0))
    assert (memory == 1).all()


def test_new_points_avoid_a_crowded_subrange():
    memory = np.array([[1000, 1, 1, 1]])
    X, _ = draw_diverse(30, memory, np.random.default_rng(1))
    assert (X < 0.25).sum() <= 2


def test_frequency_memory_is_more_even_than_chance():
    def unevenness(X):
        counts = np.array([np.bincount((4 * x).astype(int), minlength=4) for x in X.T])
        return np.var(counts)

    memory_unevenness = [
        unevenness(draw_diverse(40, np.zeros((10, 4), dtype=np.intp), np.random.default_rng(s))[0]) for s in range(20)
    ]
    random_unevenness = [unevenness(np.random.default_rng(s).random((40, 10))) for s in range(20)]
    assert np.mean(memory_unevenness) < 0.6 * np.mean(random_unevenness)


# The reference set (Eqs. 23-30)


@given(seeds)
def test_least_distances_are_distances_to_the_nearest(seed):
    X, R = cloud(seed, 6, 3), cloud(seed + 1, 4, 3)
    expected = [min(np.linalg.norm(x - r) for r in R) for x in X]
    np.testing.assert_allclose(compute_least_distances(X, R), expected)


@given(seeds)
def test_the_first_of_the_most_distant_maximizes_the_least_distance(seed):
    X, R = cloud(seed, 8, 3), cloud(seed + 1, 3, 3)
    chosen = find_most_distant(X, R, 3)
    assert len(set(chosen)) == 3
    assert chosen[0] == np.argmax(compute_least_distances(X, R))
    remaining_indices = [i for i in range(8) if i != chosen[0]]
    assert (
        chosen[1]
        == remaining_indices[
            int(np.argmax(compute_least_distances(X[remaining_indices], np.vstack([R, X[chosen[0]]]))))
        ]
    )


def test_find_most_distant_with_few_candidates_returns_all():
    assert sorted(find_most_distant(cloud(0, 2, 3), cloud(1, 1, 3), 5)) == [0, 1]


@given(seeds)
def test_a_reference_set_has_the_best_half_and_is_sorted(seed):
    everyone = members(cloud(seed, 30, 4), np.random.default_rng(seed).random(30))
    R = form_by_quality(everyone, 8)
    assert [m.number for m in R[:4]] == [m.number for m in sort_by_quality(everyone)[:4]]
    assert list(R) == list(sort_by_quality(R))
    assert len({m.number for m in R}) == 8


def test_a_reference_set_prefers_members_that_have_a_value():
    f = np.where(np.arange(20) < 9, np.arange(20), np.inf)
    R = form_by_quality(members(cloud(3, 20, 4), f), 8)
    assert all(np.isfinite(m.f) for m in R)


def test_corners_and_midpoint_come_first():
    R = form_by_corners(cloud(0, 20, 3), 6)
    np.testing.assert_array_equal(R[:3], [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5]])
    assert R.shape == (6, 3)


def test_a_better_candidate_replaces_the_worst():
    R = members(cloud(0, 5, 3))
    z = Member(cloud(9, 1, 3)[0], 2.5, 100)
    assert [m.number for m in update_refset(R, [z], distance=1e-3, epsilon=1e-6)] == [0, 1, 2, 100, 3]


def test_no_better_than_the_worst_does_not_enter():
    R = members(cloud(0, 5, 3))
    z = Member(cloud(9, 1, 3)[0], 4.0, 100)
    assert update_refset(R, [z], distance=1e-3, epsilon=1e-6) == R


def test_a_duplicate_does_not_enter():
    R = members(cloud(0, 5, 3))
    z = Member(R[3].x + 1e-9, 2.5, 100)
    assert has_near_member(z.x, R, 1e-3)
    assert update_refset(R, [z], distance=1e-3, epsilon=1e-6) == R


def test_a_point_of_the_same_flat_zone_does_not_enter():
    R = members(cloud(0, 5, 3))
    z = Member(cloud(9, 1, 3)[0], 3.0 - 1e-9, 100)
    assert is_in_flat_zone(z.f, R, 1e-6)
    assert update_refset(R, [z], distance=1e-3, epsilon=1e-6) == R


def test_a_new_best_enters_although_it_is_close_and_takes_the_closest_place():
    R = members(cloud(0, 5, 3), [1, 2, 3, 4, 5])
    z = Member(R[2].x + 1e-9, 1.0 - 1e-12, 100)
    assert [m.number for m in update_refset(R, [z], distance=1e-3, epsilon=1e-6)] == [100, 0, 1, 3, 4]


@given(seeds)
def test_an_update_never_loses_the_best_and_keeps_the_size(seed):
    rng = np.random.default_rng(seed)
    R = sort_by_quality(members(rng.random((6, 3)), rng.random(6)))
    candidates = make_members(rng.random((10, 3)), rng.random(10), 6)
    updated_set = update_refset(R, candidates, distance=0.05, epsilon=1e-3)
    assert len(updated_set) == 6
    assert updated_set[0].f == min(m.f for m in (*R, *candidates))
    assert list(updated_set) == list(sort_by_quality(updated_set))
    assert all(b.f <= a.f for a, b in zip(R, updated_set, strict=True))


def test_flat_sets_are_recognised():
    X = cloud(0, 4, 3)
    assert is_flat(members(X, [5, 5, 5, 5 + 1e-9]), 1e-6)
    assert not is_flat(members(X, [5, 5, 5, 6]), 1e-6)
    assert not is_flat(members(X, [5, 5, 5, np.inf]), 1e-6)


# Combination (Eq. 26)


def test_children_lie_beyond_between_and_beyond():
    better, worse, r = np.array([0.0, 0.0]), np.array([1.0, 2.0]), np.array([1.0, 0.5])
    np.testing.assert_allclose(make_child(1, better, worse, r), [-0.5, -0.5])
    np.testing.assert_allclose(make_child(2, better, worse, r), [0.5, 0.5])
    np.testing.assert_allclose(make_child(3, better, worse, r), [1.5, 2.5])


def test_the_better_a_pair_the_more_children_it_has():
    assert find_child_types(0, 4, 10, 0.1) == (1, 2, 2, 3)
    assert find_child_types(4, 5, 10, 0.1) == (1, 2, 3)
    assert find_child_types(5, 9, 10, 0.1) == (2, 1)
    assert find_child_types(5, 9, 10, 0.9) == (2, 3)


def test_pairs_are_combined_once():
    R = members(cloud(0, 5, 3))
    pairs = find_new_pairs(R, frozenset())
    assert pairs == list(combinations(range(5), 2))
    assert find_new_pairs(R, {make_pair(R[i], R[j]) for i, j in pairs}) == []
    assert find_new_pairs(R, {make_pair(R[3], R[1])}) == [p for p in pairs if p != (1, 3)]


@given(seeds, st.floats(0, 1))
def test_children_stay_in_the_cube(seed, prob_bound):
    R = members(cloud(seed, 6, 4))
    family = make_children(R, find_new_pairs(R, frozenset()), prob_bound, np.random.default_rng(seed))
    X = np.array([c.x for c in family])
    assert len(family) == 3 * 4 + 9 * 3 + 3 * 2
    assert ((X >= 0) & (X <= 1)).all()


def test_bring_inside_moves_outside_components_to_bound_or_between():
    x, parent = np.array([1.4, 0.5, -0.2]), np.array([0.8, 0.4, 0.1])
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(bring_inside(x, parent, 1.0, rng), [1.0, 0.5, 0.0])
    points = np.array([bring_inside(x, parent, 0.0, rng) for _ in range(50)])
    assert ((points[:, 0] > 0.8) & (points[:, 0] < 1)).all()
    assert ((points[:, 2] > 0) & (points[:, 2] < 0.1)).all()
    assert (points[:, 1] == 0.5).all()


# Going beyond


@given(seeds)
def test_further_points_continue_the_line_box(seed):
    parent, offspring = np.array([0.4, 0.6]), np.array([0.5, 0.5])
    x = draw_beyond(parent, offspring, 2.0, np.random.default_rng(seed))
    assert 0.5 <= x[0] <= 0.7
    assert 0.3 <= x[1] <= 0.5


def test_beyond_follows_a_descent_to_its_end():
    def bowl(X):
        return ((X - 0.9) ** 2).sum(axis=1)

    parent, offspring = members(np.array([[0.1, 0.1], [0.2, 0.2]]), [1.28, 0.98])
    new_members = go_beyond([(parent, offspring)], bowl, 10, np.random.default_rng(0))
    assert min(m.f for m in new_members) < 0.2
    assert [m.number for m in new_members] == list(range(10, 10 + len(new_members)))
    assert new_members[-1].f >= min(m.f for m in new_members)


def test_only_children_that_outdo_their_parent_are_followed():
    parent, other, good, better, bad = members(cloud(0, 5, 2), [3, 1, 2.5, 2.0, 4.0])
    assert find_better_children([(parent, good), (parent, better), (other, bad)]) == [(parent, better)]


# Regeneration (Eqs. 31-33)


def test_count_retained_is_half_or_one():
    assert count_retained(10, aggressive=False) == 5
    assert count_retained(10, aggressive=True) == 1


def test_products_with_segments():
    R, X = np.array([[0.5, 0.5], [0.5, 0.0]]), np.array([[0.5, 1.0], [1.0, 0.5], [0.5, 0.0]])
    np.testing.assert_allclose(compute_segments(R), [[0.0, 0.5]])
    np.testing.assert_allclose(compute_largest_products(X, R), [-0.25, 0.0, 0.25])
    assert find_new_directions(X, R, 1) == [0]


def test_each_new_direction_counts_for_the_next():
    R = np.array([[0.5, 0.5]])
    X = np.array([[1.0, 0.5], [0.9, 0.5], [0.0, 0.5], [0.5, 1.0]])
    chosen = find_new_directions(X, R, 3)
    assert chosen[:2] == [0, 2]  # the opposite direction, not the same one again
    assert len(set(chosen)) == 3


# What earlier local searches passed through


@given(seeds)
def test_distance_to_a_path_is_that_to_its_nearest_segment(seed):
    path, X = cloud(seed, 4, 3), cloud(seed + 1, 5, 3)
    dense = np.vstack([a + np.linspace(0, 1, 400)[:, None] * (b - a) for a, b in pairwise(path)])
    expected = np.linalg.norm(X[:, None] - dense[None], axis=2).min(axis=1)
    np.testing.assert_allclose(path_distances(X, path), expected, atol=5e-3)
    np.testing.assert_allclose(path_distances(path, path), 0.0, atol=1e-12)


def test_long_paths_keep_their_ends():
    path = cloud(0, 100, 3)
    short = thin_path(path)
    assert len(short) == 24
    np.testing.assert_array_equal(short[[0, -1]], path[[0, -1]])
    assert thin_path(path[:5]) is not None
    assert len(thin_path(path[:5])) == 5


def valley() -> LocalSearchPath:
    """A local search along the diagonal of the square."""
    path = np.linspace(0, 1, 9)[:, None] * np.ones(2)
    start, end = members(path[[0, -1]], [10.0, 1.0])
    return LocalSearchPath(start, end, path)


def test_the_far_end_of_a_valley_is_near_its_path_though_far_from_its_minimum():
    X = np.array([[0.1, 0.1], [0.05, 0.95]])
    assert is_near_paths(X, [valley()], 0.05).tolist() == [True, False]
    assert is_near_minima(X, [valley()], 0.5).tolist() == [False, False]
    assert is_near_minima(X, [valley()], 0.95).tolist() == [True, True]


def test_without_local_searches_everything_is_far():
    assert memory_distances(cloud(0, 3, 2), []).tolist() == [np.inf] * 3
    assert not is_near_paths(cloud(0, 3, 2), [], 0.5).any()


# Which point deserves a local search


def test_the_merit_filter_asks_for_points_as_good_as_the_last_start():
    pool = members(cloud(0, 4, 2), [1, 2, 3, np.inf])
    strict = FilterState().with_accepted(pool[1])
    options = ScatterOptions(merit_filter=True, distance_filter="none")
    assert [m.f for m in filter_candidates(pool, [], strict, options)] == [1, 2]
    assert [m.f for m in filter_candidates(pool, [], strict, ScatterOptions(merit_filter=False))] == [1, 2, 3]


def test_filters_relax_after_enough_refusals():
    filters = FilterState(threshold=1.0)
    for refusals in (1, 2):
        filters = filters.with_refusal(3)
        assert filters == FilterState(1.0, 1.0, refusals)
    assert filters.with_refusal(3) == FilterState(np.inf, 0.5, 0)
    assert filters.with_accepted(Member(np.zeros(2), 0.5, 0)) == FilterState(0.5, 1.0, 0)


def test_the_distance_filter_keeps_away_from_paths():
    pool = members(np.array([[0.5, 0.5], [0.1, 0.9]]), [1.0, 2.0])
    for kind, expected in (("paths", [2.0]), ("none", [1.0, 2.0]), ("minima", [])):
        accepted_members = filter_candidates(
            pool, [valley()], FilterState(), ScatterOptions(merit_filter=False, distance_filter=kind)
        )
        assert [m.f for m in accepted_members] == expected


def test_balance_weighs_quality_against_novelty():
    pool = members(np.array([[0.5, 0.5], [0.4, 0.6], [0.0, 1.0]]), [1.0, 2.0, 3.0])
    assert choose_start(pool, [], 1.0).f == 1.0
    assert choose_start(pool, [valley()], 0.0).f == 1.0
    assert choose_start(pool, [valley()], 1.0).f == 3.0


# Members


@settings(max_examples=12)
@given(seeds)
def test_members_are_locked_copies(seed):
    x = cloud(seed, 1, 3)[0]
    member = Member(x, 1.0, 0)
    x[0] = 7.0
    assert member.x[0] != 7.0
    with pytest.raises(ValueError, match="read-only"):
        member.x[0] = 7.0


def test_make_members_non_finite_value_becomes_infinite():
    assert [m.f for m in make_members(cloud(0, 3, 2), np.array([np.nan, -np.inf, 1.0]), 5)] == [np.inf, np.inf, 1.0]


def test_every_wrong_option_is_named():
    options = ScatterOptions(
        dim_refset=2, n_diverse=1, local_n1=-1, local_n2=0, balance=2, prob_bound=True, subranges=0,  # type: ignore[arg-type]
        first_refset="best", regeneration="x", aggressive=1, go_beyond=None, merit_filter="no",  # type: ignore[arg-type]
        distance_filter="y", relax_after=0, min_distance=-1, min_difference="z", restart_after=0, local_searches=0,  # type: ignore[arg-type]
    )  # fmt: skip
    text = "\n".join(options.mistakes())
    for name in vars(options):
        assert name in text
    assert ScatterOptions().mistakes() == []
