"""Incremental fits: horizons, confidence limits, relaxation, fallbacks, and what the paper reports."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castfit as cf
from castfit import problems
from castfit._support.status import Status
from castfit.drive.search.incremental.hills import N_LINE_POINTS, neighbour_points
from castfit.drive.search.incremental.horizons import break_time, doubling_horizons, end, integrated_length
from castfit.drive.search.incremental.incremental import with_loose_tolerances
from castfit.drive.search.incremental.limits import Bounds, confidence_limits, standard_deviations
from tests.builders import LOTKA_VOLTERRA_POLE, LOTKA_VOLTERRA_SSE, decay_model, everything, lotka_volterra, refused
from tests.drive.chores import noisy

CVODES = cf.IntegratorOptions(method="cvodes")


@pytest.fixture(scope="module")
def predators():
    return problems.load("lotka_volterra_michalik")


def plain(problem, **options):
    """The method as it is printed, without what this package adds."""
    return cf.incremental(problem, coarse=False, fallback=False, **options)


# Horizons


def test_doubling_gives_the_horizons_of_the_paper(predators):
    assert doubling_horizons(predators.problem) == (0.5, 1, 2, 4, 8, 10)


@given(st.integers(2, 40))
def test_horizons_hold_powers_of_two_and_end_at_the_end(n):
    t = np.cumsum(np.linspace(0.1, 1.0, n))
    problem = cf.Problem(decay_model(), cf.Experiment({"x": t}, time=t, initial={"x": 1.0}), parameters={"k": 0.5})
    counts = [int(np.searchsorted(t, h, side="right")) for h in doubling_horizons(problem)]
    assert counts[-1] == n
    assert counts[:-1] == [2**i for i in range(len(counts) - 1)]


def test_points_at_the_start_and_sparse_quantities_do_not_stretch_the_first_horizon():
    x, y, k = cf.symbols("x y k")
    model = cf.Model({x: -k * x, y: k * x}, parameters=[k], initial={x: 1.0, y: 0.0})
    t = np.arange(9.0)
    experiment = cf.Experiment({"x": (t, np.exp(-t)), "y": ([8.0], [1.0])})
    assert doubling_horizons(cf.Problem(model, experiment, parameters={"k": 0.5})) == (1, 2, 4, 8)


def test_a_cut_problem_keeps_theta_and_counts_only_what_is_left():
    problem = everything()
    short = problem.posed.with_horizon(0.4)
    assert short.names == problem.names
    assert np.array_equal(short.guess, problem.guess)
    assert [c.name for c in short.conditions] == ["first"]
    assert short.n_data == np.isfinite(problem.conditions[0].points.values[:3]).sum()
    assert end(short) == 0.4
    assert integrated_length(problem) == pytest.approx(2.0 + 1.4)
    assert problem.posed.with_horizon(end(problem)).n_data == problem.n_data


def test_other_bounds_leave_the_problem_itself_alone():
    problem = everything()
    original_bounds = problem.bounds
    theta = problem.guess
    bounded = problem.posed.with_bounds(theta - 0.1, theta + 0.1, theta + 0.01)
    assert np.allclose(bounded.bounds, (theta - 0.1, theta + 0.1))
    assert np.allclose(bounded.guess, theta + 0.01)
    assert problem.bounds is original_bounds


def test_the_break_time_is_that_of_the_pole():
    problem = lotka_volterra(LOTKA_VOLTERRA_POLE)
    assert break_time(problem, problem.guess, cf.IntegratorOptions()) == pytest.approx(3.3064, abs=1e-3)
    assert break_time(problem, np.ones(4), cf.IntegratorOptions()) == np.inf


# Bounds


@given(st.floats(0.1, 5), st.sampled_from(["lower", "upper"]), st.floats(0.01, 100))
def test_a_relaxed_bound_moves_by_the_factor_but_not_beyond_the_users(factor, side, limit):
    user = Bounds(np.array([-limit, -np.inf]), np.array([limit, np.inf]))
    bounds = Bounds(np.array([-0.01, 1.0]), np.array([0.01, 4.0]))
    relaxed_bounds = bounds.with_relaxed({0: side, 1: side}, factor, user)
    expected = min(0.01 + 0.02 * factor, limit)
    if side == "upper":
        assert np.allclose(relaxed_bounds.upper, [expected, 4 + 3 * factor])
        assert np.array_equal(relaxed_bounds.lower, bounds.lower)
    else:
        assert np.allclose(relaxed_bounds.lower, [-expected, 1 - 3 * factor])
        assert np.array_equal(relaxed_bounds.upper, bounds.upper)


def test_only_bounds_that_differ_from_the_users_are_updated_ones():
    user, bounds = Bounds(np.zeros(2), np.ones(2)), Bounds(np.array([0.0, 0.2]), np.array([1.0, 0.3]))
    assert bounds.select_updated({0: "lower", 1: "upper"}, user) == {1: "upper"}


@pytest.mark.parametrize("sigma", [0.05, None])
def test_standard_deviations_and_limits_agree_with_the_results_own(sigma):
    x, y = 1 + np.arange(6), np.array([0.8, 0.5, 0.42, 0.25, 0.2, 0.11])
    experiment = cf.Experiment({"x": y}, time=x, sigma=sigma, initial={"x": cf.free(1.0, scale="log")})
    problem = cf.Problem(decay_model(), experiment, parameters={"k": 0.5})
    result = cf.fit(problem, cf.SingleShooting())
    deviations, _ = standard_deviations(result, 1e-8)
    errors = np.array(list(result.standard_errors.values()))
    assert deviations * problem.natural_slope(result.theta) == pytest.approx(errors, rel=1e-4)
    limits = confidence_limits(result, 0.99, 1e-8, Bounds(*problem.bounds))
    natural = np.transpose([problem.to_natural(limits.lower), problem.to_natural(limits.upper)])
    assert natural == pytest.approx(np.array(list(result.confidence_intervals(0.99).values())), rel=1e-4)


@pytest.mark.parametrize("kind", ["eliminated", "parameter", "robust"])
def test_a_likelihood_has_the_deviations_of_its_own_statistics(kind):
    result = cf.incremental(noisy(kind))
    assert result.success
    assert result.horizons[-1].standard_errors == pytest.approx(result.result.standard_errors, rel=1e-6)
    assert any(h.bounds["k"] != (0.1, 3.0) for h in result.horizons)


def test_confidence_limits_of_undetermined_quantities_are_the_user_bounds():
    problem = lotka_volterra().posed.with_horizon(1.0).with_sigma(1.0)
    result = cf.fit(problem, cf.SingleShooting())
    assert result.success
    user = Bounds(*problem.bounds)
    limits = confidence_limits(result, 0.99, 1e-8, user)
    assert np.isinf(standard_deviations(result, 1e-8)[0]).all()
    assert np.array_equal((limits.lower, limits.upper), (user.lower, user.upper))


# The whole method


def test_the_start_of_table_3_is_solved_with_fewer_equivalent_iterations(predators):
    result = cf.incremental(predators.problem, start=predators.starts["table 3"])
    assert result.success
    assert predators.reference.is_reached(result.result.chi2)
    assert predators.reference.is_matched(result.result.values)
    assert [h.horizon for h in result.horizons] == [0.5, 1, 2, 4, 8, 10]
    assert [h.n_data for h in result.horizons] == [2, 4, 8, 16, 32, 40]
    by_hand = sum(h.iterations * h.horizon for h in result.horizons) / 10
    assert result.equivalent_iterations == pytest.approx(by_hand)
    assert result.equivalent_iterations <= 12  # 12.35 in the paper
    assert result.result.problem is predators.problem


def test_the_plain_method_reaches_the_same_optimum(predators):
    result = plain(predators.problem, start=predators.starts["table 3"])
    assert predators.reference.is_matched(result.result.values)
    for earlier, later in zip(result.horizons[2:], result.horizons[3:], strict=False):
        assert later.relaxations > 0 or all(
            abs(later.bounds[n][side] - earlier.estimates[n]) <= 2.58 * earlier.standard_errors[n]
            for n in result.result.names
            for side in (0, 1)
        )


def test_a_tight_bound_is_relaxed_until_it_is_inactive(predators):
    result = plain(predators.problem, start=predators.starts["table 3"], bound_confidence_level=0.05)
    assert sum(h.relaxations for h in result.horizons) > 0
    assert predators.reference.is_matched(result.result.values)
    assert not result.result.active


def test_bounds_of_the_user_are_kept_and_not_relaxed():
    problem = lotka_volterra((0.5, 0.5, 0.5, 0.5), lower=0.0, upper=0.99)
    result = plain(problem)
    assert result.success
    assert set(result.result.active.values()) == {"upper"}
    assert all(0.0 <= low <= high <= 0.99 for h in result.horizons for low, high in h.bounds.values())
    assert result.result.cost == pytest.approx(cf.fit(problem, cf.SingleShooting()).cost, rel=1e-6)


def test_horizons_of_the_user_are_taken_and_the_end_is_added():
    result = plain(lotka_volterra(), horizons=[2.5, 6])
    assert [h.horizon for h in result.horizons] == [2.5, 6, 10]
    assert result.result.chi2 == pytest.approx(LOTKA_VOLTERRA_SSE, rel=1e-6)


def test_a_pole_on_the_way_is_avoided_by_the_break_time_rule():
    problem = lotka_volterra(LOTKA_VOLTERRA_POLE)
    assert cf.fit(problem, cf.SingleShooting(), cf.GaussNewton(homotopy="never")).status is Status.START_FAILED
    result = plain(problem, horizons="break time")
    assert result.horizons[0].horizon == 1.0  # half of 3.3 lies between the points 1 and 2
    assert result.result.chi2 == pytest.approx(LOTKA_VOLTERRA_SSE, rel=1e-6)
    full_result = plain(lotka_volterra(), horizons="break time")
    assert [h.horizon for h in full_result.horizons] == [10]


def test_a_horizon_that_cannot_be_integrated_is_approached_in_shorter_steps():
    result = cf.incremental(lotka_volterra(LOTKA_VOLTERRA_POLE), horizons=[10])
    assert result.horizons[0].status is Status.START_FAILED
    assert result.horizons[0].fallback == "shorter step"
    assert result.horizons[1].horizon < 10
    assert result.result.chi2 == pytest.approx(LOTKA_VOLTERRA_SSE, rel=1e-6)


def test_without_shorter_steps_multiple_shooting_rescues():
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 1.0})  # x = 1 / (1 - k t)
    experiment = cf.Experiment({"x": [1 / 0.6]}, time=[1.0], sigma=0.01)
    problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(3.0)})
    result = cf.incremental(problem)
    assert result.success
    assert result.horizons[0].fallback == "multiple shooting"
    assert result.result.parameters["k"] == pytest.approx(0.4, abs=1e-6)


def test_a_horizon_that_fails_leaves_the_estimates_alone():
    problem, solver = lotka_volterra(), cf.GaussNewton(homotopy="never", max_iter=1)
    result = plain(problem, solver=solver)
    assert [h.status for h in result.horizons] == [Status.MAX_ITERATIONS] * 5
    direct = cf.fit(problem, cf.SingleShooting(), solver)
    assert result.result.theta == pytest.approx(direct.theta, rel=1e-12)


def test_a_failure_on_every_horizon_is_a_result_that_says_why():
    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 1.0})
    experiment = cf.Experiment({"x": [3.0, 4.0]}, time=[1.0, 2.0], sigma=0.01)
    problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(3.0, lower=2.5)})
    result = cf.incremental(problem)
    assert not result.success
    assert result.result.problem is problem
    assert result.result.n_data == 2
    assert {h.horizon for h in result.horizons} == {1.0, 2.0}
    assert all(not h.status.success for h in result.horizons)


@pytest.mark.parametrize(
    ("transcription", "solver"),
    [(cf.MultipleShooting(5), cf.GaussNewton()), (cf.Collocation(), None), (cf.SingleShooting(), cf.Ipopt())],
)
def test_every_transcription_and_solver_gives_one_answer(transcription, solver):
    result = cf.incremental(lotka_volterra(), transcription, solver, horizons=[4])
    assert result.result.chi2 == pytest.approx(LOTKA_VOLTERRA_SSE, rel=1e-4)


def test_several_experiments_with_algebraic_states_and_local_parameters():
    problem = everything()
    result = cf.incremental(problem, horizons=[0.5, 1.0])
    direct = cf.fit(problem, cf.SingleShooting())
    assert result.success
    assert result.result.chi2 == pytest.approx(direct.chi2, rel=1e-6)
    first_horizon = result.horizons[0]
    assert first_horizon.n_data == 8  # the second experiment has none before 0.7
    assert first_horizon.standard_errors["k3[second]"] == np.inf
    assert first_horizon.estimates["k3[second]"] == 0.7
    assert 0 < first_horizon.share < 1


@pytest.mark.parametrize("mu", [10, 40])
def test_an_unstable_system_from_a_start_far_away(mu):
    notorious = problems.load("notorious", mu=mu)
    result = cf.incremental(notorious.problem, start={"p": 55.0})
    assert result.success
    assert notorious.reference.is_matched(result.result.values)
    # Where rounding errors of p exceed its standard error, single shooting cannot resolve the end.
    assert (result.horizons[-1].fallback == "multiple shooting") == (mu == 40)
    assert all(len(line) < 120 for line in result.summary().splitlines()[: len(result.horizons) + 2])


@pytest.mark.parametrize("p", [376.9438, 439.7665, -125.5593])
def test_a_first_horizon_with_many_optima_is_searched_from_beyond_the_hills_around(p):
    """These are three of the local optima, 63 units apart, of the first datum of each state."""
    notorious = problems.load("notorious", mu=5)
    result = cf.incremental(notorious.problem, start={"p": p})
    assert result.success
    assert notorious.reference.is_matched(result.result.values)
    assert result.equivalent_iterations < 10


def test_points_around_lie_on_both_sides_and_within_the_bounds():
    problem = problems.load("lotka_volterra").problem.posed
    result = cf.fit(problem, cf.SingleShooting(), cf.GaussNewton(max_iter=1, homotopy="never"))
    points = np.array(list(neighbour_points(problem, result)))
    assert points.shape == (N_LINE_POINTS, 4)
    lower, upper = problem.bounds
    assert ((points >= lower) & (points <= upper)).all()
    shift = points - result.theta
    inside = ((points > lower) & (points < upper)).all(axis=1)
    sides = np.sign(shift[inside][:, 0])
    assert (sides[0::2] == -sides[1::2]).all()
    unknown = result.with_status(Status.MAX_ITERATIONS, "")
    unknown.jacobian[...] = np.nan
    assert not list(neighbour_points(problem, unknown))


@pytest.mark.slow
def test_single_shooting_is_not_tried_again_once_rounding_errors_exceed_the_noise():
    notorious = problems.load("notorious", mu=40)
    result = cf.incremental(notorious.problem, cf.SingleShooting(CVODES), start={"p": 177.2})
    assert [h.fallback for h in result.horizons] == ["", "", "", "multiple shooting", "multiple shooting"]
    assert result.horizons[-1].iterations <= 7
    assert result.horizons[-2].iterations > 7  # first by single shooting


@pytest.mark.parametrize(
    "transcription",
    [cf.MultipleShooting(integrator=CVODES), cf.Collocation(integrator=CVODES)],
    ids=["multiple", "collocation"],
)
@pytest.mark.parametrize(("mu", "p"), [(10, -437.0), (60, 291.0)])
def test_nodes_do_not_lead_astray_from_far_away(transcription, mu, p):
    """Node states that started from a single measurement would wander away together with p."""
    benchmark = problems.load("notorious", mu=mu)
    result = cf.incremental(benchmark.problem, transcription, start={"p": p})
    assert result.success
    assert benchmark.reference.is_reached(result.result.chi2)
    assert result.result.parameters["p"] == pytest.approx(np.pi, abs=1e-2)
    assert result.result.transcription == transcription.label
    assert not any(h.fallback for h in result.horizons)


def test_tolerances_are_only_ever_made_coarser():
    fine = cf.SingleShooting(cf.IntegratorOptions(relative_tolerance=1e-9, absolute_tolerance=1e-11))
    rough = cf.SingleShooting(cf.IntegratorOptions(relative_tolerance=1e-3, absolute_tolerance=1e-5))
    options = with_loose_tolerances(fine).integrator
    assert options.relative_tolerance == 1e-6
    assert options.absolute_tolerance == pytest.approx(1e-8)
    assert with_loose_tolerances(rough) == rough
    assert with_loose_tolerances(cf.GaussNewton(tolerance=0.1)).tolerance == 0.1


# Control and misuse


def test_a_callback_stops_everything_and_the_result_is_of_the_whole_problem(predators):
    result = cf.incremental(predators.problem, callback=lambda iteration: iteration.iteration >= 2)
    assert result.result.status is Status.STOPPED_BY_CALLBACK
    assert len(result.horizons) == 1
    assert list(result.result.values.values()) != [5.0] * 4  # the best point so far, not the start
    assert result.result.n_data == predators.problem.n_data
    assert not result.success


def test_a_rescue_that_is_stopped_stops_everything():
    calls: list[float] = []

    def stop(iteration):
        calls.append(iteration.cost)
        return True

    x, k = cf.symbols("x k")
    model = cf.Model({x: k * x**2}, parameters=[k], initial={x: 1.0})
    experiment = cf.Experiment({"x": [1 / 0.6, 2.0]}, time=[1.0, 1.25], sigma=0.01)
    problem = cf.Problem(model, experiment, parameters={"k": 3.0})
    result = cf.incremental(problem, callback=stop)
    assert len(calls) == 1
    assert result.result.status is Status.STOPPED_BY_CALLBACK
    assert [h.horizon for h in result.horizons] == [1.0]


def test_no_time_left_is_a_status(predators):
    result = cf.incremental(predators.problem, max_time=1e-6)
    assert result.result.status is Status.MAX_TIME
    assert result.result.problem is predators.problem


def test_incremental_prints_only_if_verbose(capfd):
    problem = lotka_volterra()
    cf.incremental(problem, horizons=[4])
    assert capfd.readouterr() == ("", "")
    cf.incremental(problem, horizons=[4], verbose=1)
    lines = capfd.readouterr().out.splitlines()
    prefixes = [line.split(":")[0] for line in lines]
    assert (prefixes[0], prefixes[-1]) == ("until 4", "until 10")


def test_the_summary_has_a_line_per_horizon():
    result = cf.incremental(lotka_volterra())
    lines = result.summary().splitlines()
    assert lines[0].split() == ["horizon", "data", "k1", "k2", "k3", "k4", "-2", "log", "L", "relaxed", "iterations",
                                "status", "fallback"]  # fmt: skip
    assert result.horizons[-1].objective == pytest.approx(result.result.objective)
    assert [float(line.split()[0]) for line in lines[2 : 2 + len(result.horizons)]] == [1, 2, 4, 8, 10]
    assert f"equivalent to {result.equivalent_iterations:.2f}" in result.summary()
    assert f"I_equiv = {result.equivalent_iterations:.2f}" in repr(result)


def test_parts_of_the_wrong_kind_are_misuse():
    with refused("transcription is 3; give SingleShooting()", "solver is <class", "verbose is array"):
        cf.incremental(lotka_volterra(), 3, cf.Ipopt, verbose=np.array([1, 2]))


def test_mistakes_are_listed_together():
    problem = lotka_volterra()
    with refused(
        "break_fraction is 1", "bound_confidence_level", "bound_relaxation", "break_fraction has an effect only with",
        "max_time", "verbose", "increasing", "the first measurement is at 1",
    ):  # fmt: skip
        cf.incremental(problem, horizons=[0.5, 0.2], break_fraction=1, bound_confidence_level=0, bound_relaxation=-1,
                       max_time="long", verbose=3)  # fmt: skip
    with refused("did you mean 'doubling'"):
        cf.incremental(problem, horizons="doubled")
    with refused("give a Problem"):
        cf.incremental(None)
    with refused("did you mean 'k1'"):
        cf.incremental(problem, start={"k11": 1.0})


@pytest.mark.slow
def test_incremental_underflowing_estimate_stays_finite():
    """The data of the first horizons leave a quantity open, whose estimate underflows."""
    benchmark = problems.load("escep")
    result = cf.incremental(benchmark.problem, start=benchmark.starts["reference"], max_time=20)
    assert result.horizons
    assert np.isfinite(result.result.theta).all()


def test_incremental_horizon_without_degrees_of_freedom_sets_no_limits():
    """One datum and one sigma that is eliminated: the first horizon has no degree of freedom left."""
    x, k = cf.symbols("x k")
    t = np.linspace(0.5, 5, 10)
    data = np.exp(-t) + 0.02 * np.cos(7 * t)
    experiment = cf.Experiment({"x": data}, time=t, sigma=cf.unknown(), initial={"x": 1.0})
    problem = cf.Problem(cf.Model({x: -k * x}, parameters=[k]), experiment, parameters={"k": 0.3})
    result = cf.incremental(problem).result
    assert result.neg2loglik == pytest.approx(cf.fit(problem).neg2loglik, abs=1e-6)
