from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit import problems
from castfit._support.status import InputError
from castfit.drive.search.multistart.sampling import SAMPLINGS, draw
from tests.builders import decay_model


def problem(**parameters):
    """Two rates; by default one bounded, one on a logarithmic scale."""
    x, a, b = cf.symbols("x a b")
    model = cf.Model({x: -a * x + b}, parameters=[a, b], initial={x: 1})
    experiment = cf.Experiment({"x": [0.5, 0.4]}, time=[1, 2])
    rates = {"a": cf.Parameter(1.0, lower=-2, upper=4), "b": cf.Parameter(0.1, lower=1e-3, upper=10, scale="log")}
    return cf.Problem(model, experiment, parameters={**rates, **parameters})


def drawn(fit_problem, starts=8, sampling=None, limits=None, rng=0):
    mistakes: list[str] = []
    draws = draw(fit_problem, starts, sampling, limits, rng, mistakes)
    assert not mistakes, mistakes
    return draws


def column(draws, name):
    return np.array([start[name] for start in draws.initial_starts])


def mistakes(fit_problem, starts=8, sampling=None, limits=None, rng=0):
    messages: list[str] = []
    draw(fit_problem, starts, sampling, limits, rng, messages)
    return messages


@given(st.sampled_from(SAMPLINGS[:3]), st.integers(1, 40), st.integers(0, 2**32))
def test_starts_lie_within_the_bounds(sampling, count, seed):
    draws = drawn(problem(), count, sampling, rng=seed)
    start_points = [*draws.initial_starts, *(draws.redraw(0) for _ in range(5))]
    assert len(draws.initial_starts) == count
    assert all(-2 <= start["a"] <= 4 and 1e-3 <= start["b"] <= 10 for start in start_points)


@pytest.mark.parametrize("sampling", SAMPLINGS[:3])
def test_starts_are_even_in_the_search_scale(sampling):
    draws = drawn(problem(), 2000, sampling)
    uniform = {"a": (column(draws, "a") + 2) / 6, "b": np.log(column(draws, "b") / 1e-3) / np.log(1e4)}
    for values in uniform.values():
        assert scipy.stats.kstest(values, "uniform").pvalue > 1e-4


def test_a_latin_hypercube_has_one_start_in_every_slice():
    values = (column(drawn(problem(), 50, "latin_hypercube"), "a") + 2) / 6
    np.testing.assert_array_equal(np.sort(np.floor(values * 50)), np.arange(50))


def test_sobol_points_fill_the_plane_evenly():
    draws = drawn(problem(), 64)
    cells = {(int(8 * (s["a"] + 2) / 6), int(8 * np.log(s["b"] / 1e-3) / np.log(1e4))) for s in draws.initial_starts}
    assert len(cells) == 64  # a (0, 6, 2)-net in base 2, scrambled


def test_log_uniform_draws_every_logarithm():
    draws = drawn(problem(a=cf.Parameter(1.0, lower=0.01, upper=100)), 2000, "log_uniform")
    assert scipy.stats.kstest(np.log10(column(draws, "a")) / 4 + 0.5, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("sampling", ["sobol", "uniform", lambda rng: {"a": rng.uniform()}])
def test_more_starts_begin_with_the_same_ones(sampling):
    assert drawn(problem(), 5, sampling).initial_starts == drawn(problem(), 13, sampling).initial_starts[:5]


@pytest.mark.parametrize("sampling", [*SAMPLINGS[:3], lambda rng: {"a": rng.uniform()}])
def test_draw_same_seed_gives_the_same_starts(sampling):
    draws, same_draws, other_draws = (
        drawn(problem(), 6, sampling, rng=seed) for seed in (1, np.random.default_rng(1), 2)
    )
    assert draws.initial_starts == same_draws.initial_starts
    assert draws.initial_starts != other_draws.initial_starts
    redraws = [draws.redraw(i) for i in (2, 4, 2)]
    assert redraws == [same_draws.redraw(i) for i in (2, 4, 2)]
    assert redraws[0] != redraws[2]


def test_redraw_is_independent_of_other_starts():
    one, other = drawn(problem()), drawn(problem())
    for i in range(7):
        one.redraw(i)
    assert one.redraw(7) == other.redraw(7)


def test_limits_narrow_the_bounds():
    values = column(drawn(problem(), 100, limits={"a": (0.5, 0.6)}), "a")
    assert 0.5 <= values.min() < 0.502
    assert 0.598 < values.max() <= 0.6


def test_a_distribution_is_cut_off_at_the_bounds():
    normal = scipy.stats.norm(4.0, 1.0)
    values = column(drawn(problem(), 1024, limits={"a": normal}), "a")
    assert values.max() <= 4.0
    expected = scipy.stats.truncnorm(-6, 0, 4.0, 1.0)
    assert scipy.stats.kstest(values, expected.cdf).pvalue > 1e-4


def test_draw_with_missing_bounds_samples_around_the_guess():
    free = problem(a=cf.Parameter(2.0, lower=-1), b=cf.Parameter(0.5, lower=0, upper=60, scale="log"))
    draws = drawn(free, 256)
    a, b = column(draws, "a"), column(draws, "b")
    assert -1 <= a.min() < 0
    assert 21 < a.max() <= 22  # the guess and ten times of it
    assert 0.5e-3 <= b.min() < 1e-3  # three decades below the guess
    assert 50 < b.max() <= 60
    note = "Starting points were sampled around the guess where a bound is missing: a in [-1, 22], b in [0.0005, 60]."
    assert draws.note == note
    assert drawn(problem()).note == ""
    assert drawn(free, limits={"a": (0, 1), "b": (0.1, 1)}).note == ""
    assert drawn(free, [{"a": 2.0}]).note == ""


@pytest.mark.parametrize("name", ["stat5", "batch_reactor"])
def test_problems_of_the_library_without_bounds_have_starts(name):
    free = problems.load(name).problem
    draws = drawn(free, 16)
    infinite = [q.name for q in free.quantities if not np.isfinite([q.lower, q.upper]).all()]
    assert infinite
    assert all(f"{name} in [" in draws.note for name in infinite)
    assert all(np.isfinite(list(start.values())).all() for start in draws.initial_starts)


def test_drivers_with_missing_bounds_report_the_sampled_range(clock):
    free = problem(a=cf.Parameter(1.0, lower=0))
    note = "Starting points were sampled around the guess where a bound is missing: a in [0, 11]."
    many = cf.multistart(free, "single", starts=2)
    assert note in str(many)
    assert note in str(cf.compare(free, ["single"], starts=2))
    assert note in "\n".join(cf.estimate(free, max_time=60, finds=1, strategies=["box"]).story)


def test_a_guess_of_zero_needs_limits_or_a_distribution_where_a_bound_is_missing():
    free = problem(a=0.0)
    (mistake,) = mistakes(free)
    assert "'a' has the limits [-inf, inf] about its guess 0, from which no starting point can be sampled" in mistake
    assert "limits={'a': (lower, upper)}" in mistake
    for limits in ({"a": (0, 1)}, {"a": scipy.stats.cauchy()}):
        assert np.isfinite(column(drawn(free, limits=limits), "a")).all()
    assert drawn(free, sampling=lambda rng: {"a": 3.0}).initial_starts[0]["a"] == 3.0


def test_a_logarithm_needs_a_positive_limit():
    assert "sampled on a log scale" in mistakes(problem(), limits={"b": (0, 1)})[-1]
    assert len(mistakes(problem(), sampling="log_uniform")) == 1  # a may be negative


def test_draw_user_start_is_completed_by_the_guess():
    draws = drawn(problem(), [{"a": 2.0}, {}])
    assert [start["a"] for start in draws.initial_starts] == [2.0, 1.0]
    np.testing.assert_allclose(column(draws, "b"), 0.1, rtol=1e-15)
    assert draws.redraw is None


@pytest.mark.parametrize(
    ("arguments", "phrases"),
    [
        ({"starts": 0}, ["starts is 0"]),
        ({"starts": 2.5}, ["starts is 2.5"]),
        ({"starts": True}, ["starts is True"]),
        ({"starts": []}, ["starts is empty"]),
        ({"starts": [{"a": 9}, {"c": 1}]}, ["start 0: start of 'a'", "start 1: 'c' is not estimated"]),
        ({"starts": [{}], "sampling": "sobol"}, ["nothing is sampled"]),
        ({"rng": -1}, ["rng is -1"]),
        ({"rng": "seed"}, ["rng is 'seed'"]),
        ({"sampling": "sobel"}, ["did you mean 'sobol'"]),
        ({"sampling": lambda rng: {}, "limits": {"a": (0, 1)}}, ["limits and a sampling function cannot be combined"]),
        (
            {"sampling": 3, "limits": {"a": (3, 2), "b": (1, 20), "c": (0, 1)}},
            ["sampling is 3", "limits has the name 'c'", "limits of 'a' are (3, 2)", "exceed its bounds [0.001, 10]"],
        ),
        ({"limits": {"a": scipy.stats.uniform(10, 1)}}, ["lies outside its bounds"]),
        ({"limits": {"a": (np.nan, 1)}}, ["limits of 'a'"]),
        ({"limits": [1, 2]}, ["limits is a list"]),
    ],
)
def test_draw_invalid_arguments_name_every_mistake(arguments, phrases):
    messages = mistakes(problem(), **arguments)
    assert len(messages) == len(phrases), messages
    assert all(phrase in mistake for phrase, mistake in zip(phrases, messages, strict=True)), messages


def test_a_function_that_draws_outside_the_bounds_is_misuse():
    with pytest.raises(InputError, match=r"start 0: start of 'a'"):
        drawn(problem(), sampling=lambda rng: {"a": 77.0})


@pytest.mark.parametrize("name", ["alpha_pinene", "notorious", "stat5"])
def test_the_library_draws_its_own_starts(name):
    benchmark = problems.load(name)
    draws = drawn(benchmark.problem, 3, benchmark.draw_start)
    assert all(set(start) == set(benchmark.problem.names) for start in draws.initial_starts)


def test_free_initial_states_are_drawn_too():
    experiment = cf.Experiment({"x": [1.0, 0.5]}, time=[0, 1], initial={"x": cf.free(1.0, lower=0.5, upper=2)})
    decay = cf.Problem(decay_model(), experiment, parameters={"k": cf.Parameter(0.5, lower=0, upper=1)})
    assert len(set(column(drawn(decay), "x(0)"))) == 8


def test_parameter_starts_mistakes_are_named() -> None:
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1.0})
    experiment = cf.Experiment({"x": [0.5, 0.2]}, time=[1, 2], sigma=0.1)
    for parameter, message in (
        (cf.Parameter(1.0, 0, 2, starts=cf.priors.Uniform(3, 4)), "lie outside its bounds"),
        (cf.Parameter(1.0, 0, 2, starts=cf.Normal(1, -1)), "has the starts Normal"),
        (cf.Parameter(1.0, fixed=True, starts=cf.Normal(1, 1)), "is fixed, so that no starts of it are drawn"),
        (cf.Parameter(1.0, starts=3), "has the starts 3; give Uniform"),  # type: ignore[arg-type]
    ):
        with pytest.raises(cf.InputError, match=message):
            cf.Problem(model, experiment, parameters={"k": parameter})
