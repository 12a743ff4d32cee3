"""`fit`: every combination gives one answer, every end a result, every misuse one error."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import castfit as cf
from castfit._support.status import Status
from castfit.fit.attempt import verify_solution
from castfit.integrate import IntegratorOptions
from castfit.integrate.esdirk_binding import missing_integrator_reason
from castfit.solve.solution import SolveControl
from tests.builders import LOTKA_VOLTERRA_POLE, LOTKA_VOLTERRA_SSE, decay_problem, everything, lotka_volterra, refused

OPTIMUM = {"k1": 0.9837424, "k2": 0.9803890, "k3": 1.0169078, "k4": 1.0227137}  # Lotka-Volterra
SOLVERS = [cf.GaussNewton(), cf.Ipopt()]
TRANSCRIPTIONS = [cf.SingleShooting(), cf.MultipleShooting(5), cf.MultipleShooting("data"), cf.Collocation()]


def label(part) -> str:
    return part.label


@pytest.mark.parametrize("solver", SOLVERS, ids=label)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=label)
def test_every_combination_gives_one_answer(transcription, solver):
    result = cf.fit(lotka_volterra(), transcription, solver)
    assert result.success
    assert result.chi2 == pytest.approx(LOTKA_VOLTERRA_SSE, rel=1e-5)
    assert result.parameters == pytest.approx(OPTIMUM, rel=2e-5)
    assert (result.transcription, result.solver) == (transcription.label, solver.label)
    assert result.n_data == 20
    assert not result.absolute_sigma
    assert result.gaps < 1e-6
    assert result.message.startswith("The optimality conditions hold")


@pytest.mark.parametrize("solver", SOLVERS, ids=label)
def test_everything_at_once_agrees_too(solver):
    problem = everything()
    results = [cf.fit(problem, t, solver) for t in (cf.SingleShooting(), cf.MultipleShooting(4), cf.Collocation())]
    assert all(r.success for r in results), [r.message for r in results]
    for result in results[1:]:
        assert result.chi2 == pytest.approx(results[0].chi2, rel=1e-4)
        assert result.values == pytest.approx(results[0].values, rel=1e-4)
        assert result.absolute_sigma


def test_the_default():
    result = cf.fit(lotka_volterra())
    assert result.success
    assert result.transcription == "single shooting"
    assert result.chi2 == pytest.approx(LOTKA_VOLTERRA_SSE, rel=1e-6)


def test_counts_cover_all_refinements():
    transcription = cf.Collocation(degree=2)
    result = cf.fit(lotka_volterra(), transcription, cf.Ipopt())
    refinements = [entry["refinement"] for entry in result.history]
    assert refinements[0] == 0
    assert max(refinements) >= 1
    assert sorted(refinements) == refinements
    assert result.iterations == len(result.history) - (max(refinements) + 1)  # one entry is the start
    assert result.evaluations["jacobians"] >= len(result.history)


def test_starts_by_name():
    start_values: list[np.ndarray] = []

    def stop(iteration: cf.Iteration) -> bool:
        start_values.append(iteration.v[:4].copy())
        return True

    start = {"k3": 1.1, "k1": np.float64(0.7)}
    cf.fit(lotka_volterra(), cf.SingleShooting(), cf.Ipopt(), start=start, callback=stop)
    np.testing.assert_allclose(start_values[0], [0.7, 0.8, 1.1, 1.5])


def test_a_result_may_be_the_next_start_even_at_a_logarithmic_bound():
    parameters = {"k1": 0.8, "k2": 0.8, "k3": cf.Parameter(1.5, lower=1.2, scale="log"), "k4": 1.5}
    problem = lotka_volterra(parameters=parameters)
    result = cf.fit(problem, cf.MultipleShooting(5), cf.Ipopt())
    assert result.active == {"k3": "lower"}
    assert result.parameters["k3"] == 1.2
    refit = cf.fit(problem, cf.SingleShooting(), cf.GaussNewton(), start=result)
    assert refit.success
    assert refit.iterations <= 5
    assert refit.chi2 == pytest.approx(result.chi2, rel=1e-6)


def test_wrong_starts_are_refused():
    with refused("'k5' is not estimated: did you mean", "start of 'k1': the guess 9 is outside its bounds [-1, 5]"):
        cf.fit(lotka_volterra(), start={"k5": 1, "k1": 9})
    with refused(
        "start is 'mathing'; give a mapping from names to values, a Result, 'matching', 'decomposed' or 'soft'"
    ):
        cf.fit(lotka_volterra(), start="mathing")
    with refused("start is a list"):
        cf.fit(lotka_volterra(), start=[1, 2])  # type: ignore[arg-type]


def test_fit_lists_all_mistakes_at_once():
    with refused(
        "problem is 3; give a Problem",
        "callback is 1; give a function of one Iteration",
        "transcription is <class 'castfit.SingleShooting'>; give SingleShooting()",
        "solver is 'ipop': did you mean 'ipopt'? (valid: gauss_newton, box, trust_region, ipopt, sqp); or give "
        "GaussNewton(), Ipopt() or Sqp()",
        "confidence_level is 95; it must be between 0 and 1",
        "max_time is '1 min'; expected a positive number of seconds",
        "absolute_sigma is 'yes'; give True, False or None",
        "verbose is 3; choose 0, 1 or 2",
    ):
        cf.fit(
            3,  # type: ignore[arg-type]
            cf.SingleShooting,  # type: ignore[arg-type]
            "ipop",
            callback=1,  # type: ignore[arg-type]
            confidence_level=95,
            max_time="1 min",  # type: ignore[arg-type]
            absolute_sigma="yes",  # type: ignore[arg-type]
            verbose=3,
        )
    with refused("transcription is Ipopt(", "solver is SingleShooting("):
        cf.fit(lotka_volterra(), cf.Ipopt(), cf.SingleShooting())  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", SOLVERS, ids=label)
def test_a_start_that_cannot_be_integrated_is_a_result(solver):
    result = cf.fit(lotka_volterra(LOTKA_VOLTERRA_POLE), cf.SingleShooting(), solver)
    assert not result.success
    assert result.status is Status.START_FAILED
    assert "experiment 1: Integration stopped at t = 3.306" in result.message
    assert list(result.parameters.values()) == list(LOTKA_VOLTERRA_POLE)
    assert np.isnan(list(result.standard_errors.values())).all()
    assert sum(result.failures.values()) >= 1
    assert "Failure: The model could not be integrated at the starting point." in str(result)


@pytest.mark.parametrize("solver", SOLVERS, ids=label)
def test_interrupts_callbacks_and_limits_end_with_a_result(solver):
    problem, transcription = lotka_volterra(), cf.MultipleShooting(5)

    def interrupt(iteration: cf.Iteration) -> None:
        if iteration.iteration == 1:
            os.kill(os.getpid(), signal.SIGINT)

    ends = {
        Status.STOPPED_BY_CALLBACK: cf.fit(
            problem, transcription, solver, callback=lambda iteration: iteration.iteration >= 1
        ),
        Status.INTERRUPTED: cf.fit(problem, transcription, solver, callback=interrupt),
        Status.MAX_TIME: cf.fit(problem, transcription, solver, max_time=1e-9),
    }
    for status, result in ends.items():
        assert result.status is status
        assert not result.success
        assert result.message.startswith(status.message)
        assert np.isfinite(result.chi2)
        assert set(result.parameters) == set(OPTIMUM)


@pytest.mark.parametrize("solver", SOLVERS, ids=label)
def test_an_exception_in_the_callback_propagates(solver):
    def fail(iteration: cf.Iteration) -> None:
        raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        cf.fit(lotka_volterra(), cf.MultipleShooting(5), solver, callback=fail)


def unstable(mu: float = 60.0) -> cf.Problem:
    """Growth by exp(60) over the horizon; exact data."""
    x, v, p, t = cf.symbols("x v p t")
    model = cf.Model({x: v, v: mu**2 * x - (mu**2 + p**2) * _sine(p * t)}, parameters=[p], time=t)
    times = np.linspace(0.1, 1, 10)
    data = {"x": np.sin(np.pi * times), "v": np.pi * np.cos(np.pi * times)}
    experiment = cf.Experiment(data, time=times, sigma=0.05, initial={"x": 0.0, "v": np.pi})
    return cf.Problem(model, experiment, parameters={"p": 3.1})


def _sine(angle):
    import casadi as ca

    return ca.sin(angle)


@pytest.mark.parametrize("solver", SOLVERS, ids=label)
def test_single_shooting_of_an_unstable_system_is_never_a_success(solver):
    result = cf.fit(unstable(), cf.SingleShooting(), solver)
    assert not result.success
    if result.status is Status.UNRESOLVABLE:
        assert "Rounding errors of p (experiment 1) alone change a residual by" in result.message
        assert "use MultipleShooting or Collocation" in result.message


def test_multiple_shooting_of_an_unstable_system():
    result = cf.fit(unstable(), cf.MultipleShooting("data"))
    assert result.success
    assert result.parameters["p"] == pytest.approx(np.pi, rel=1e-6)


def test_verify_solution_rejects_a_point_dominated_by_rounding():
    problem = unstable()
    staged = cf.SingleShooting(IntegratorOptions(max_steps=100_000)).transcribe(problem, np.array([np.pi]))
    claimed_solution = cf.Ipopt().solve(staged, SolveControl())
    claimed_solution = replace(claimed_solution, v=np.array([np.pi]), status=Status.CONVERGED)
    verified_solution, _ = verify_solution(staged, claimed_solution)
    assert verified_solution.status is Status.UNRESOLVABLE
    stopped_solution = replace(claimed_solution, status=Status.INTERRUPTED)
    assert verify_solution(staged, stopped_solution)[0].status is Status.INTERRUPTED
    good = decay_problem()
    staged = cf.SingleShooting().transcribe(good, good.guess)
    result = cf.fit(good, "single")
    at_optimum = replace(claimed_solution, v=good.theta_from(result.parameters))
    assert verify_solution(staged, at_optimum)[0].status is Status.CONVERGED


def test_verify_solution_rejects_a_nonstationary_point():
    good = decay_problem()
    staged = cf.SingleShooting().transcribe(good, good.guess)
    claimed_solution = replace(cf.Ipopt().solve(staged, SolveControl()), v=good.guess, status=Status.CONVERGED)
    verified_solution, _ = verify_solution(staged, claimed_solution)
    assert verified_solution.status is Status.STEP_TOO_SMALL
    assert "still decreases along k" in verified_solution.detail


@dataclass
class NeverFine:
    """Single shooting that always asks for one more refinement."""

    integrator: IntegratorOptions = field(default_factory=IntegratorOptions)
    label: str = "never fine"
    accuracy: float = 1e-8
    states: str = "data"

    def transcribe(self, problem, theta):
        return cf.SingleShooting().transcribe(problem, theta)

    def refine(self, problem, staged, v):
        return self.transcribe(problem, v)


def test_mesh_refinement_ends_after_the_limit():
    result = cf.fit(decay_problem(), NeverFine(), cf.Ipopt())
    assert result.status is Status.ACCEPTABLE
    assert (
        "After 8 mesh refinements the solution still differs from the integrator; use more elements." in result.message
    )
    assert max(entry["refinement"] for entry in result.history) == 8


def test_absolute_sigma_follows_the_data_unless_said_otherwise():
    assert cf.fit(decay_problem()).absolute_sigma
    assert not cf.fit(decay_problem(), absolute_sigma=False).absolute_sigma
    assert not cf.fit(lotka_volterra()).absolute_sigma
    with refused("absolute_sigma=True uses the given standard deviations, but the experiments have none"):
        cf.fit(lotka_volterra(), absolute_sigma=True)


def test_fit_lists_loss_mistakes_with_other_mistakes():
    with refused("f_scale is that of a robust loss; give loss='huber' or another", "max_time is -1"):
        cf.fit(decay_problem(), f_scale=2.0, max_time=-1)
    with refused("loss is 'hubr'; choose 'linear', 'huber'", "give True or False"):
        cf.fit(decay_problem(), loss="hubr", retry="no")


def test_verbose(capfd):
    problem = decay_problem()
    cf.fit(problem, cf.MultipleShooting(3), cf.Ipopt())
    assert capfd.readouterr() == ("", "")
    result = cf.fit(problem, cf.MultipleShooting(3), cf.Ipopt(), verbose=1)
    out = capfd.readouterr().out
    assert "multiple shooting (3 intervals), IPOPT: 4 variables, 5 data" in out
    assert f"converged after {result.iterations} iterations" in out
    assert out.count("\n") == 2
    result = cf.fit(problem, cf.MultipleShooting(3), cf.Ipopt(), verbose=2)
    lines = capfd.readouterr().out.splitlines()
    assert sum("infeasibility" in line for line in lines) == result.iterations + 1


@pytest.mark.parametrize("transcription", ["single", "multiple", "multiple/ipopt"])
@pytest.mark.parametrize(
    ("noise", "measure"),
    [
        ({"sigma": 0.02}, "chi2"),
        ({}, "-2 log L"),
        ({"noise": cf.Laplace(0.02)}, "-2 log L"),
    ],
)  # fmt: skip
def test_progress_is_told_by_the_number_of_the_result(transcription, noise, measure):
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 1})
    experiment = cf.Experiment({"x": [0.6, 0.35, 0.22, 0.13]}, time=[1, 2, 3, 4], **noise)
    problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(0.4, bounds=(0.1, 2.0))})
    iterations = []
    result = cf.fit(
        problem, *transcription.split("/"), callback=lambda iteration: iterations.append(iteration) and False
    )
    assert result.measure == iterations[-1].measure == measure
    assert iterations[-1].objective == pytest.approx(result.objective, rel=1e-6)
    assert {iteration.measure for iteration in iterations} <= {measure, f"{measure} of normal errors"}


def test_threads_change_no_number():
    """One fit by one thread and by two: every bit is the same."""
    if missing_integrator_reason():
        pytest.skip(missing_integrator_reason())
    x, k, dose = cf.symbols("x k dose")
    model = cf.Model({x: -k * x}, parameters=[k, dose], initial={x: dose})
    times, rng = np.array([0.5, 1.0, 2.0, 4.0]), np.random.default_rng(0)
    doses = np.linspace(1, 4, 12)
    animals = [cf.Experiment({"x": d * np.exp(-0.3 * times) + 0.05 * rng.standard_normal(4)}, times, sigma=0.05,
                             parameters={"dose": d}) for d in doses]  # fmt: skip
    problem = cf.Problem(model, animals, parameters={"k": 0.3})
    options = cf.IntegratorOptions(method="esdirk")
    for transcription in (cf.SingleShooting(options), cf.MultipleShooting(2, integrator=options)):
        one, two = (cf.fit(problem, transcription, workers=workers) for workers in (1, 2))
        assert one.success
        assert one.theta.tobytes() == two.theta.tobytes()
        assert one.residuals.tobytes() == two.residuals.tobytes()
        assert one.covariance.tobytes() == two.covariance.tobytes()
        assert one.iterations == two.iterations
    with pytest.raises(cf.InputError, match=r"workers is 2, but collocation .* has no integrations to divide"):
        cf.fit(problem, "collocation", workers=2)
    with pytest.raises(cf.InputError, match="workers is 0; give a number, 1 or more"):
        cf.fit(problem, workers=0)


def doses(size: float, **noise) -> cf.Problem:
    """Two decays in a row, of unknown initial states, with a dose on the way, in any unit of the states."""
    x, y, k, m = cf.symbols("x y k m")
    model = cf.Model({x: -k * x, y: k * x - m * y}, parameters=[k, m])
    rng, experiments = np.random.default_rng(1), list[cf.Experiment]()
    for i, x0 in enumerate((1.0, 2.0, 0.5)):
        t = np.array([0.5, 1, 2, 3, 5, 8, 12]) * (1 + 0.1 * i)
        exact = {"x": x0 * np.exp(-t / 2), "y": 2.5 * x0 * (np.exp(-0.3 * t) - np.exp(-t / 2))}
        data = {n: size * (exact[n] + 0.02 * rng.standard_normal(7)) for n in exact}
        start = {"x": cf.free(0.8 * x0 * size), "y": 0.0}
        dose = cf.Doses(into="x", amount=0.3 * size, times=2.5)
        experiments.append(cf.Experiment(data, t, initial=start, events=[dose], name=f"{x0:g}", **noise))
    rates = {"k": cf.Parameter(0.2, scale="log"), "m": cf.Parameter(0.1, bounds=(1e-3, 10), scale="log")}
    return cf.Problem(model, experiments, parameters=rates)


def test_message_of_a_likelihood_fit_does_not_report_its_start_as_failed():
    """Least squares before a likelihood end early, on purpose: that was called a failure, and other ways were tried."""
    result = cf.fit(doses(1.0, noise=cf.StudentT(sigma=cf.unknown())))
    assert result.success
    assert "failed" not in result.message
    assert "single" in result.summary().splitlines()[-1]


@pytest.mark.parametrize("transcription", ["multiple", "collocation"])
def test_units_of_states_make_no_difference_to_a_search_with_gaps(transcription):
    """Least weights of gaps were of their units: of states about 1e12 up to 240 iterations instead of 14."""
    results = [
        cf.fit(doses(size, sigma=0.02 * size), transcription, cf.GaussNewton("levenberg_marquardt"), verify=False)
        for size in (1.0, 1e12)
    ]
    assert abs(results[0].iterations - results[1].iterations) <= 1
    assert results[1].values["k"] == pytest.approx(results[0].values["k"], rel=1e-9)
