"""The default is never worse than single shooting, recovers by itself, and says what was tried and what to try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

import castfit as cf
from castfit._bench.textbook_models import Textbook
from castfit._support.status import SOLVED, Status
from castfit.fit import strategies
from castfit.fit.attempt import Attempt
from castfit.fit.start import local_search
from castfit.solve.solution import Solution, SolveControl
from castfit.solve.staged import StagedProblem
from castfit.transcribe.shooting_problem import ShootingProblem
from tests.builders import decay_model, lotka_volterra, refused

SUIT = "The optimality conditions hold to the requested tolerance."


def measured(
    model: cf.Model, parameters: dict[str, float], initial: dict[str, float], times: np.ndarray, seed: int,
    deviation: Callable[[np.ndarray], float], outputs: tuple[str, ...],
) -> cf.Problem:  # fmt: skip
    """Simulate outputs and add noise; the guess is the truth, on log scale."""
    guesses = {name: cf.Parameter(value, scale="log") for name, value in parameters.items()}
    blank = cf.Experiment(dict.fromkeys(outputs, np.zeros(times.size)), time=times, initial=initial)
    exact = cf.simulate(cf.Problem(model, blank, parameters=guesses))["experiment 1"]
    rng = np.random.default_rng(seed)
    sigma = {name: deviation(exact[name]) for name in outputs}
    data = {name: exact[name] + sigma[name] * rng.standard_normal(times.size) for name in outputs}
    return cf.Problem(model, cf.Experiment(data, time=times, sigma=sigma, initial=initial), parameters=guesses)


def brusselator(seed: int) -> cf.Problem:
    """One scaled output of a limit cycle; started at the measured states, collocation got lost."""
    x, y, a, b, g = cf.symbols("x y a b g")
    model = cf.Model(
        {x: a + x**2 * y - (b + 1) * x, y: b * x - x**2 * y}, parameters=[a, b, g], outputs={"seen": g * y}
    )
    truth = {"a": 1.0, "b": 3.0, "g": 4.0}
    return measured(model, truth, {"x": 1.5, "y": 2.0}, np.arange(0.5, 30, 0.5), seed, lambda _: 0.4, ("seen",))


def epidemic() -> cf.Problem:
    s, i, beta, gamma, rho = cf.symbols("s i beta gamma rho")
    model = cf.Model(
        {s: -beta * s * i, i: beta * s * i - gamma * i}, parameters=[beta, gamma, rho], outputs={"cases": rho * i}
    )
    truth = {"beta": 0.5, "gamma": 0.15, "rho": 100.0}
    times = np.linspace(2.0, 60.0, 30)
    return measured(
        model, truth, {"s": 0.99, "i": 0.01}, times, 0, lambda y: 0.05 * float(np.abs(y).mean()), ("cases",)
    )


@pytest.mark.parametrize("method", ["multiple", "collocation"])
def test_fit_prepares_no_fallback_if_the_first_search_succeeds(method, monkeypatch):
    """Ever longer horizons take many times as long as the fit."""
    prepared = []
    grow = local_search.grow_horizons
    monkeypatch.setattr(
        local_search,
        "grow_horizons",
        lambda *arguments, **options: prepared.append(arguments) or grow(*arguments, **options),
    )
    problem = epidemic()
    assert cf.fit(problem, method).message.startswith(SUIT.rstrip("."))
    assert not prepared
    result = cf.fit(problem, method, cf.GaussNewton(max_iter=1, homotopy="never"), start={"beta": 0.2, "rho": 10.0})
    assert prepared, result.message


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_a_start_that_already_fits_is_recognised(seed):
    problem = brusselator(seed)
    single = cf.fit(problem, "single")
    for transcription in ("collocation", "multiple"):
        result = cf.fit(problem, transcription, retry=False)
        assert result.success
        assert result.chi2 == pytest.approx(single.chi2, rel=1e-4)
        assert result.iterations <= 15


@pytest.mark.parametrize("seed", [0, 2])
def test_collocation_is_not_worse_than_single_shooting_from_elsewhere(seed):
    problem, start = brusselator(seed), {"a": 1.3, "b": 3.5, "g": 3.0}
    result = cf.fit(problem, "collocation", start=start)
    result_without_retry = cf.fit(problem, "collocation", start=start, retry=False)
    assert result.success
    assert result.chi2 == pytest.approx(cf.fit(problem, "single", start=start).chi2, rel=1e-4)
    assert result_without_retry.chi2 > 10 * result.chi2
    assert result.message.startswith(SUIT)
    assert "attempt 1 found this result: growing horizons" in result.message
    assert result_without_retry.provenance.strategies == ("the start",)
    assert result.provenance.strategies == ("the start", "growing horizons")
    assert result.transcription.startswith("collocation")
    assert result.iterations > result_without_retry.iterations  # all tries are counted
    assert max(entry.get("try", 0) for entry in result.history) == 1


def test_collocation_recovers_from_a_poor_start():
    result = cf.fit(epidemic(), "collocation", start={"beta": 5.0, "gamma": 5.0, "rho": 1.0})
    assert result.success
    assert result.goodness.described
    assert "attempt 1 found this result" in result.message


def test_fit_does_not_solve_again_after_the_chosen_transcription_succeeds(monkeypatch):
    """With 300 states this took 5.5 GB and minutes: collocation was to be followed only if nothing else helps."""
    x, (k, m) = cf.symbols(f"x{i}" for i in range(16)), cf.symbols("k m")
    flows = {x[0]: -k * x[0], **{b: k * a - (m if b is x[-1] else k) * b for a, b in pairwise(x)}}
    model = cf.Model(flows, parameters=[k, m], outputs={"last": x[-1]})
    initial = {"x0": 1.0} | {f"x{i}": 0.0 for i in range(1, 16)}
    pulse = measured(model, {"k": 5.0, "m": 0.2}, initial, np.linspace(0.8, 6.4, 10), 0, lambda _: 0.01, ("last",))
    monkeypatch.setattr(strategies.CollocationFallback, "start", lambda *_: None)
    monkeypatch.setattr(cf.Collocation, "transcribe", lambda *_: pytest.fail("collocation was not needed"))
    result = cf.fit(pulse, start={"k": 30.0, "m": 0.5})
    assert result.goodness.described
    assert result.provenance.strategies[0] == "the start" != result.provenance.strategies[-1]


@pytest.mark.slow
def test_multiple_shooting_from_a_poor_start_recovers():
    start = {"beta": 10.0, "gamma": 0.01, "rho": 10.0}
    result_without_retry = cf.fit(epidemic(), cf.MultipleShooting(20), start=start, retry=False)
    assert not (result_without_retry.success and result_without_retry.is_adequate)
    result = cf.fit(epidemic(), cf.MultipleShooting(20), start=start)
    assert result.success
    assert result.goodness.described
    assert "found this result" in result.message


def test_fallbacks_end_with_the_time_limit_and_the_callback(monkeypatch, clock):
    def slow(self, *arguments, integrate=ShootingProblem._integrate):
        clock.sleep(1.0)
        return integrate(self, *arguments)

    monkeypatch.setattr(ShootingProblem, "_integrate", slow)
    start = {"beta": 10.0, "gamma": 0.01, "rho": 10.0}
    result = cf.fit(epidemic(), cf.MultipleShooting(20), start=start, max_time=4.5)
    assert 4.5 < clock.now < 8.0  # what has begun ends
    assert not result.success
    result = cf.fit(
        epidemic(), cf.MultipleShooting(20), start=start, callback=lambda iteration: iteration.iteration >= 2
    )
    assert result.status is Status.STOPPED_BY_CALLBACK
    assert result.iterations <= 3


def undescribed() -> cf.Problem:
    """Data that no decay describes."""
    x, k = cf.symbols("x k")
    data = cf.Experiment({"x": [1.0, -1.0, 1.0, -1.0]}, time=[1, 2, 3, 4], sigma=0.01, initial={"x": 1.0})
    return cf.Problem(cf.Model({x: -k * x}, parameters=[k]), data, parameters={"k": 0.5})


def test_fit_stops_and_reports_a_confirmed_optimum():
    result = cf.fit(undescribed(), cf.MultipleShooting(4))
    assert "Confirmed by states from simulation." in result.message
    assert result.strategies == ("the start", "states from simulation")
    assert not result.goodness.described


def test_message_lists_strategies_that_found_nothing_better(monkeypatch):
    monkeypatch.setattr(Attempt, "agrees_with", lambda self, other: False)
    result = cf.fit(undescribed(), cf.MultipleShooting(4))
    assert "Other strategies found nothing better: " in result.message
    assert "single shooting from the same starting point" in result.message
    assert not result.goodness.described


def test_stopped_search_resumes_if_the_fallback_finds_a_poor_optimum():
    """Sigma is a tenth of the noise: nothing describes such data, and two ways to one optimum are enough."""
    x, y, k, m = cf.symbols("x y k m")
    model = cf.Model({x: -k * x, y: k * x - m * y}, parameters=[k, m], initial={x: 1.0, y: 0.0})
    times = np.linspace(0.2, 5.0, 20)
    true = cf.simulate(model, times=times, parameters={"k": 1.0, "m": 0.4})
    draws = np.random.default_rng(3).standard_normal((2, 20))
    data = {name: true[name] + 0.1 * z for name, z in zip("xy", draws, strict=True)}
    problem = cf.Problem(model, cf.Experiment(data, times, sigma=0.01), parameters={"k": 3.0, "m": 0.1})
    result = cf.fit(problem)
    assert result.strategies == ("the start", "multiple shooting", "resuming the first search")
    assert "attempt 1 found this result: multiple shooting, confirmed by resuming the first search." in result.message
    assert result.success
    assert not result.goodness.described
    assert result.objective == pytest.approx(cf.fit(problem, "single", retry=False).objective, rel=1e-6)


@pytest.mark.parametrize("status", [s for s in Status if s not in SOLVED])
def test_every_failure_says_what_to_do(status):
    words = ("try", "Try", "use", "raise", "start", "Bound", "bound", "best point found", "does not reproduce")
    assert any(word in f"{status.message} {status.advice}" for word in words)


@pytest.mark.parametrize("second_transcription", ["single", "multiple", "collocation"])
@pytest.mark.parametrize("first_transcription", ["single", "multiple", "collocation"])
def test_a_converged_result_is_a_start_with_its_whole_trajectory(first_transcription, second_transcription):
    problem = brusselator(1)
    result = cf.fit(problem, first_transcription)
    restarted = cf.fit(problem, second_transcription, start=result, retry=False)
    assert restarted.success
    assert restarted.chi2 == pytest.approx(result.chi2, rel=1e-5)
    refining = second_transcription == "collocation" and first_transcription != second_transcription
    assert restarted.iterations <= (15 if refining else 2)


def test_a_result_of_an_unstable_system_is_a_start_too():
    from castfit import problems

    problem = problems.load("notorious", mu=40).problem
    for first_transcription, second_transcription in (
        ("collocation", cf.MultipleShooting(10)),
        ("multiple", cf.Collocation()),
    ):
        result = cf.fit(problem, first_transcription)
        restarted = cf.fit(problem, second_transcription, start=result)
        assert restarted.success
        assert restarted.chi2 == pytest.approx(result.chi2, rel=1e-3)


def test_names_stand_for_transcriptions_and_solvers():
    for transcription, solver in (("multiple", "ipopt"), ("multiple/ipopt", None), ("multiple", cf.Ipopt())):
        result = cf.fit(lotka_volterra(), transcription, solver)
        assert (result.transcription, result.solver) == ("multiple shooting (20 intervals)", "IPOPT")
    assert cf.fit(lotka_volterra(), "single", "gauss-newton").solver.startswith("Gauss-Newton")
    with refused("transcription is 'multi': did you mean 'multiple'?", "solver is 'newton': did you mean"):
        cf.fit(lotka_volterra(), "multi", "newton")


@pytest.mark.parametrize("limit", [0, 2])
def test_an_exact_hessian_that_another_transcription_does_not_give_is_no_mistake_of_the_user(limit):
    problem = cf.problems.load("bellman").problem
    result = cf.fit(problem, "collocation", cf.Ipopt(hessian="exact", options={"max_iter": limit}))
    assert not result.success
    assert result.status is Status.MAX_ITERATIONS
    assert "single shooting from the same starting point" in result.strategies


@pytest.mark.parametrize("transcription", [None, cf.SingleShooting(), cf.MultipleShooting(10)])
def test_a_start_that_describes_the_data_is_not_left_for_an_optimum_that_does_not(transcription):
    """The data do not resolve how fast x follows y: full steps lead to a rate of zero, where nothing moves."""
    reaction = Textbook(
        lambda s, p: (-p[0] * (s[0] - s[1]), -p[1] * s[1]), {"fast": 500.0, "slow": 0.5}, {"x": 0.0, "y": 1.0}, 4.0
    )
    result = cf.fit(reaction.all_states(seed=2, bounded=False), transcription)
    assert result.goodness.described
    assert result.chi2 < 116
    assert result.parameters["fast"] > 10
    assert result.parameters["slow"] == pytest.approx(0.5, rel=0.05)


class Astray:
    """Ends far from where it began, and calls that a solution."""

    label = "astray"

    def solve(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        solution = cf.GaussNewton(max_iter=0).solve(staged, control, warm=warm)
        v = solution.v.copy()
        v[: staged.layout.n_theta] += 0.5
        return replace(solution, v=v, status=Status.CONVERGED, detail="")


@pytest.mark.parametrize("transcription", [cf.SingleShooting(), cf.MultipleShooting(5, states="simulation")])
def test_a_fit_is_never_worse_than_its_start(transcription):
    """Where every search ends above the simulated start, one goes down from there."""
    problem = brusselator(3)
    start = cf.fit(problem, "single", cf.GaussNewton(max_iter=0), retry=False).chi2
    result = cf.fit(problem, transcription, Astray())
    assert result.chi2 <= start
    assert "trust-region descent from the starting point" in result.message
    result_without_retry = cf.fit(problem, transcription, Astray(), retry=False)
    assert not result_without_retry.success
    assert result_without_retry.chi2 > start


@dataclass(frozen=True)
class CutOff(Astray):
    """Ends far from where it began, for a reason that lets nothing follow."""

    status: Status

    def solve(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        return replace(super().solve(staged, control, warm=warm), status=self.status)


@pytest.mark.parametrize("sigma", [0.05, None])
def test_low_accuracy_search_gives_a_lower_bound_of_the_cost(sigma):
    """Wherever an experiment is: near the optimum, and where the model is far off, which is told to be above it."""
    data = {"x": np.array([0.62, 0.35, 0.24, 0.11])}
    experiment = cf.Experiment(data, time=[0.5, 1, 1.5, 2], initial={"x": 0.9}, sigma=sigma)
    problem = cf.Problem(decay_model(), experiment, parameters={"k": 2.0}).posed
    staged = cf.SingleShooting().transcribe(problem, problem.guess)
    exact = {k: staged.evaluate(np.array([k])).cost for k in (1.0, 1.3, 2.0, 5.0)}
    lower_bounds = {k: strategies._cost_lower_bound(staged.low_accuracy(), np.array([k])) for k in exact}
    assert all(lower_bounds[k] <= exact[k] for k in exact)
    assert lower_bounds[5.0] > exact[1.0]


@pytest.mark.parametrize("transcription", [None, "single", "multiple", "collocation"])
@pytest.mark.parametrize("status", [Status.MAX_TIME, Status.INTERRUPTED, Status.STOPPED_BY_CALLBACK])
def test_a_fit_that_is_cut_off_is_never_worse_than_its_start(transcription, status):
    problem = brusselator(3)
    start = cf.fit(problem, "single", cf.GaussNewton(max_iter=0), retry=False)
    result = cf.fit(problem, transcription, CutOff(status))
    assert result.status is status
    assert result.chi2 <= start.chi2 * (1 + 1e-5)
    assert result.parameters == pytest.approx(start.parameters)
    assert "the starting point is returned" in result.message
    assert cf.fit(problem, transcription, CutOff(status), retry=False).chi2 > start.chi2


def test_time_that_is_over_does_not_leave_a_spread_at_its_guess(clock):
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    times = np.linspace(0.2, 3.0, 15)
    values = 2 * np.exp(-times) + 0.1 * np.random.default_rng(1).standard_normal(15)
    experiment = cf.Experiment({"x": values}, times, sigma=s)
    problem = cf.Problem(model, experiment, parameters={"k": 1.5, "s": cf.Parameter(1e-3, scale="log")})
    result = cf.fit(problem, "single", max_time=3.0, callback=lambda iteration: clock.sleep(2.0))
    assert result.status is Status.MAX_TIME
    residuals = values - 2 * np.exp(-result.parameters["k"] * times)
    assert result.parameters["s"] == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=0.15)


def test_least_squares_leave_time_for_the_likelihood_itself(clock):
    x, k, s = cf.symbols("x k s")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    times = np.linspace(0.2, 3.0, 15)
    values = 2 * np.exp(-times) + 0.1 * np.random.default_rng(1).standard_normal(15)
    experiment = cf.Experiment({"x": values}, times, noise=cf.Laplace(s))
    problem = cf.Problem(model, experiment, parameters={"k": 4.0, "s": cf.Parameter(1e-3, scale="log")})
    measures = []

    def slow(iteration):
        measures.append(iteration.measure)
        clock.sleep(0.9)

    cf.fit(problem, "single", max_time=4.0, callback=slow)
    assert 0 < measures.count("-2 log L of normal errors") < 5
    assert measures[-1] == "-2 log L"


@dataclass(frozen=True)
class Halved:
    """A solver that ends far from where it began."""

    label: str = "halved"

    def solve(self, staged: StagedProblem, control: SolveControl, *, warm: bool = False) -> Solution:
        """Say that it goes on nowhere from where the first quantity is half as large."""
        solution = cf.GaussNewton(max_iter=0).solve(staged, control, warm=warm)
        v = solution.v.copy()
        v[0] *= 0.5
        return replace(solution, v=v, status=Status.STEP_TOO_SMALL)


@pytest.mark.parametrize("transcription", ["single", "multiple", "collocation"])
@pytest.mark.parametrize("noise", [None, cf.StudentT(), cf.Laplace(0.1)])
def test_no_likelihood_is_left_above_the_start_either(transcription, noise):
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    times = np.linspace(0.2, 3.0, 15)
    values = 2 * np.exp(-times) + 0.1 * np.random.default_rng(1).standard_normal(15)
    noise_options = {"sigma": cf.unknown()} if noise is None else {"noise": {"x": noise}}
    problem = cf.Problem(model, cf.Experiment({"x": values}, times, **noise_options), parameters={"k": 1.01})
    start_result = cf.fit(problem, "single", cf.GaussNewton(max_iter=0), retry=False)
    result = cf.fit(problem, transcription, Halved())
    assert result.cost <= start_result.cost + 1e-6


def noisy(scatter: float = 0.4, wave: float = 0.0) -> cf.Problem:
    """A decay whose data scatter by more than a fifth of the signal, nobody knows how much."""
    x, k = cf.symbols("x k")
    times = np.linspace(0.1, 4.0, 40)
    values = (
        2.0 * np.exp(-0.7 * times) + wave * np.sin(3.0 * times) + scatter * np.random.default_rng(5).standard_normal(40)
    )
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 2.0})
    return cf.Problem(model, cf.Experiment({"x": values}, time=times), parameters={"k": cf.Parameter(1.0, lower=0)})


def test_large_noise_of_unknown_size_is_no_reason_to_try_again():
    result = cf.fit(noisy())
    assert np.mean(result.residuals**2) > 0.04 * np.mean(result.predictions**2)
    assert result.success
    assert result.strategies == ("the start",)


def test_fit_tries_one_strategy_if_it_confirms_an_optimum_of_a_wrong_model():
    """A wave on the decay: neighbouring residuals are alike, and another optimum might explain them."""
    result = cf.fit(noisy(0.05, 0.8))
    assert result.success
    assert result.strategies == ("the start", "multiple shooting")
    assert "Confirmed by multiple shooting." in result.message


def no_such_animals(**noise) -> cf.Problem:
    """Prey that walk at random, and a likelihood with several optima."""
    x, y, a, b, c, d = cf.symbols("x y a b c d")
    model = cf.Model({x: a * x - b * x * y, y: c * x * y - d * y}, parameters=[a, b, c, d], initial={x: 2.0, y: 1.0})
    times = np.linspace(0, 20, 41)[1:]
    walk = 1 + 0.5 * np.cumsum(np.random.default_rng(0).standard_normal(40))
    data = cf.Experiment({"x": walk, "y": 2 + 2 * np.sin(times)}, time=times, **noise)
    return cf.Problem(model, data, parameters={"a": 1.0, "b": 0.5, "c": 0.3, "d": 0.8})


@pytest.mark.parametrize("last_call", [8, 20])
def test_stopped_fit_returns_the_lowest_point_of_the_integrated_model(last_call):
    """A first search is given up, the next one, whose states have gaps, is stopped: the first one came lower.

    The start was given, four times as high, or chi2 of pieces.
    """
    problem = no_such_animals(sigma=0.05)
    joined: list[float] = []
    count = iter(range(10_000))

    def stop(iteration: cf.Iteration) -> bool:
        joined.extend([iteration.objective] * (iteration.infeasibility == 0.0))
        return next(count) == last_call

    result = cf.fit(problem, callback=stop)
    assert result.status is Status.STOPPED_BY_CALLBACK
    assert "multiple shooting" in result.strategies
    assert result.chi2 <= 1.01 * min(joined)
    (data,), simulation = problem.experiments, cf.simulate(problem, result.parameters)["experiment 1"]
    chi2 = sum(float(np.sum(((simulation[n] - data.data[n][1].ravel()) / 0.05) ** 2)) for n in "xy")
    assert result.chi2 == pytest.approx(chi2, rel=1e-4)
    assert "not an optimum, so the model is not assessed" in str(result)
    assert "AIC" not in str(result)
    multiple_result = cf.fit(problem, "multiple", callback=lambda iteration: iteration.iteration == 2)
    assert ("The trajectory is discontinuous: chi2 refers to the shooting segments" in multiple_result.message) == (
        multiple_result.gaps > 1e-6
    )


def test_likelihood_stopped_later_is_not_worse():
    def stopped_after(n: int) -> cf.Result:
        remaining = iter(range(n))
        return cf.fit(
            no_such_animals(noise=cf.StudentT(0.05)), callback=lambda iteration: next(remaining, None) is None
        )

    early_result, late_result = stopped_after(8), stopped_after(60)
    assert early_result.status is late_result.status is Status.STOPPED_BY_CALLBACK
    assert len(late_result.strategies) > len(early_result.strategies)
    assert late_result.neg2loglik <= early_result.neg2loglik + 1e-6


def test_unstable_optimum_of_single_shooting_returns_to_collocation():
    """Single shooting found it, and errors grow by e^20 on the way: collocation, which was asked for, ends there."""
    problem = cf.problems.load("notorious", mu=20).problem
    result = cf.fit(problem, "collocation", start={"p": 100.0})
    assert result.success
    assert "attempt 4 found this result: single shooting" in result.message
    assert result.values["p"] == pytest.approx(np.pi, abs=1e-6)
