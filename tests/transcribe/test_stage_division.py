"""The grid of stages: every measurement at its place, whatever the boundaries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castfit._support.status import InputError
from castfit.experiment.experiment import Experiment
from castfit.integrate import SharedGrids
from castfit.integrate.lanes import merge, snap_times
from castfit.model.model import Model, symbols
from castfit.problem.problem import Condition, Problem
from castfit.transcribe.multiple_shooting import MultipleShooting
from castfit.transcribe.single_shooting import SingleShooting
from castfit.transcribe.stage_division import arrange, interval_mistakes, uniform_or_given
from tests.builders import decay_problem, refused


def condition(times, values=None, start=0.0) -> Condition:
    """Return a condition with measurements of x and of a second output at the given times."""
    values = np.ones((len(times), 2)) if values is None else np.array(values)
    data = Experiment(
        {"x": (times, values[:, 0]), "double": (times, values[:, 1])},
        sigma={"x": 0.5, "double": 0.25},
        initial={"x": 1.0},
        start=start,
    )
    x, k = symbols("x k")
    model = Model({x: -k * x}, parameters=[k], outputs={"double": 2 * x})
    return Problem(model, data, parameters={"k": 1.0}).conditions[0]


@st.composite
def measured(draw) -> Condition:
    """Draw irregular times with repetitions, near-repetitions and gaps."""
    times = draw(st.lists(st.floats(0, 10), min_size=1, max_size=8))
    times += [t * (1 + 1e-15) for t in draw(st.lists(st.sampled_from(times), max_size=2))]
    times += draw(st.lists(st.sampled_from(times), max_size=2))
    times = np.sort([*times, draw(st.floats(0.5, 10))])
    values = np.array(
        draw(st.lists(st.one_of(st.just(np.nan), st.floats(-5, 5)), min_size=2 * times.size, max_size=2 * times.size))
    )
    values = values.reshape(-1, 2)
    values[-1] = 3.0
    return condition(times, values)


@given(case=measured(), cuts=st.lists(st.floats(0, 1), max_size=6), onto=st.lists(st.integers(0, 9), max_size=3))
def test_every_measurement_is_assigned_once_and_in_order(case, cuts, onto):
    points = case.points
    inner = [case.end * c for c in cuts] + [points.times[i % points.times.size] for i in onto]
    edges = merge(np.array([0.0, case.end]), np.array(inner))
    staging = arrange(case, edges)

    mask = staging.weight > 0
    np.testing.assert_array_equal(staging.values[mask], points.values[points.mask])
    np.testing.assert_array_equal(staging.weight[mask], 1 / points.sigma[points.mask])
    assert (staging.values[~mask] == 0).all()

    real = mask.any(axis=2)
    np.testing.assert_allclose(staging.times[real], points.times, atol=2e-9 * case.end)
    assert ((staging.tau >= 0) & (staging.tau <= 1)).all()
    assert (np.diff(staging.tau, axis=1) >= 0).all()
    assert (staging.tau[~real] == 1).all()


@given(case=measured(), k=st.integers(1, 6))
def test_a_measurement_on_an_edge_belongs_to_the_stage_that_ends_there(case, k):
    edges = uniform_or_given(case, "data", option_name="intervals")
    staging = arrange(case, edges)
    assert set(np.unique(staging.tau)) <= {0.0, 1.0}
    assert (staging.tau[1:] == 1.0).all()  # only the start itself lies at the beginning of a stage
    uniform = uniform_or_given(case, k, option_name="intervals")
    assert (uniform[0], uniform[-1]) == (0.0, case.end)
    assert 2 <= uniform.size <= k + 1


def test_arrange_assigns_points_of_an_example():
    case = condition([0.0, 1.0, 1.0, 2.0, 3.5], [[1, np.nan], [2, 3], [4, 5], [6, 7], [np.nan, 8]])
    staging = arrange(case, np.array([0.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(staging.tau, [[0, 0.5, 0.5, 1], [1, 1, 1, 1], [0.5, 1, 1, 1]])
    assert staging.values[0].tolist() == [[1, 0], [2, 3], [4, 5], [6, 7]]
    assert staging.weight[0].tolist() == [[2, 0], [2, 4], [2, 4], [2, 4]]
    assert (staging.weight[1] == 0).all()
    assert staging.is_first_replicate.tolist() == [[True, True, False, True], [False] * 4, [True, False, False, False]]


@given(
    times=st.lists(st.floats(-5, 5), min_size=2, max_size=10),
    jitter=st.lists(st.floats(-1, 1), min_size=10, max_size=10),
)
def test_snap_times_finds_every_time_dropped_by_merge(times, jitter):
    times = np.array(times)
    jittered_times = times + 4e-16 * np.abs(times) * np.array(jitter[: times.size])
    merged_times = merge(times, jittered_times)
    if merged_times.size < 2:
        return
    assert (np.diff(merged_times) > 0).all()
    assert np.isin(snap_times(np.concatenate([times, jittered_times]), merged_times), merged_times).all()
    np.testing.assert_array_equal(snap_times(merged_times, merged_times), merged_times)


def test_snapping_leaves_other_times_alone():
    edges = np.array([0.0, 1.0, 2.0])
    times = np.array([0.3, 1.0 + 1e-15, 1.0 + 1e-14, 2.0 - 1e-15])
    np.testing.assert_array_equal(snap_times(times, edges), [0.3, 1.0, 1.0 + 1e-14, 2.0])


def test_equal_divisions_that_differ_by_rounding_share_one_grid():
    """Whatever the origin, and however many."""
    for start, end in ((0.0, 7.3), (2000.0, 2010.0), (1.7e9, 1.7e9 + 60.0), (-3.0, 3.0), (0.0, 1e-12)):
        edges, grids = np.linspace(start, end, 101), SharedGrids()
        inner = [np.linspace(a, b, 6) for a, b in itertools.pairwise(edges)]
        assert len({grids.share(times) for times in inner}) == 1
    assert len({grids.share(np.array(t)) for t in ([0, 0.3, 1.0], [0, 0.3 + 1e-13, 1.0])}) == 2


@pytest.mark.parametrize(("start", "tiny"), [(0.0, 1e-300), (0.0, 1e-5), (2000.0, 1e-11)])
def test_times_that_differ_stay_apart(start, tiny):
    times = start + np.array([tiny, 2 * tiny, 1e5])
    assert merge(np.array([start]), times).size == 4
    staging = arrange(condition(times, start=start), np.array([start, times[-1]]))
    np.testing.assert_array_equal(staging.times[0], times)


def test_times_that_span_decades_are_divided_among_the_data():
    times = np.logspace(-5, 5, 61)
    edges = uniform_or_given(condition(times), 20, option_name="intervals")
    assert edges.size == 21
    assert (edges[0], edges[-1]) == (0.0, times[-1])
    assert np.isin(edges[1:], times).all()
    few = uniform_or_given(condition(times[::10]), 20, option_name="intervals")
    np.testing.assert_array_equal(few, [0.0, *times[::10]])
    bursts = np.concatenate([np.linspace(1, 2, 30), np.linspace(50, 51, 30)])
    np.testing.assert_array_equal(
        uniform_or_given(condition(bursts), 20, option_name="intervals"), np.linspace(0, 51, 21)
    )


def test_given_times_are_cut_to_the_horizon():
    case = condition([0.0, 4.0])
    np.testing.assert_array_equal(
        uniform_or_given(case, np.array([-1, 0, 1, 3, 4, 9]), option_name="intervals"), [0, 1, 3, 4]
    )
    np.testing.assert_array_equal(uniform_or_given(case, [1, 3], option_name="intervals"), [0, 1, 3, 4])  # type: ignore[arg-type]


@pytest.mark.parametrize("good", [1, 20, np.int64(3), 4.0, "data", [1.0, 2.0], np.array([0, 1, 2]), range(3)])
def test_good_intervals(good):
    assert interval_mistakes("intervals", good) == []
    assert uniform_or_given(condition([0.0, 4.0]), good, option_name="intervals").size >= 2
    assert MultipleShooting(good).transcribe(decay_problem(), np.array([0.5])).layout.n_v > 1


@pytest.mark.parametrize(
    "bad", [0, -1, 2.5, np.nan, np.inf, None, True, "dat", "", [], ["a"], [1, 1], [2, 1], [1, np.nan], [[1, 2]], {}, 1j]
)
def test_bad_intervals(bad):
    with pytest.raises(
        InputError, match=r"intervals is .*; give a positive integer, 'data', or increasing|do not increase"
    ):
        MultipleShooting(bad)
    with pytest.raises(InputError, match="elements"):
        uniform_or_given(condition([0.0, 4.0]), bad, option_name="elements")


def test_labels():
    labels = [MultipleShooting(n).label for n in (7, np.int64(7), "data", np.array([1.0, 2.0]))]
    assert labels == [
        "multiple shooting (7 intervals)",
        "multiple shooting (7 intervals)",
        "multiple shooting (at data)",
        "multiple shooting (given intervals)",
    ]
    assert SingleShooting().label == "single shooting"


@pytest.mark.parametrize("make", [SingleShooting, MultipleShooting])
def test_the_integrator_is_options(make):
    with refused("integrator is 'cvodes'; give IntegratorOptions(...)"):
        make(integrator="cvodes")
