"""`doctor`: passed checks, and findings by check."""

from __future__ import annotations

import dataclasses
import signal
from functools import cache
from typing import Any

import numpy as np
import pytest

import castfit as cf
from castfit import problems
from castfit._support.time_limit import check_deadline
from castfit.drive.checkup import check
from castfit.drive.checkup.examinations import check_fit
from tests.builders import refused
from tests.drive.chores import QUICK, STRAIGHT

T = np.linspace(0.0, 5.0, 20)
NOISE = 0.02 * np.random.default_rng(0).standard_normal(T.size)


def decay(rate: Any, names: str, guesses: dict[str, Any], **experiment: Any) -> cf.Problem:
    x, *p = cf.symbols(f"x {names}")
    options = {"data": {"x": np.exp(-0.6 * T) + NOISE}, "time": T, "sigma": 0.02, "initial": {"x": 1.0}, **experiment}
    data = options.pop("data")
    return cf.Problem(cf.Model({x: rate(x, *p)}, parameters=p), cf.Experiment(data, **options), parameters=guesses)


def decay_problem(**experiment: Any) -> cf.Problem:
    return decay(lambda x, k: -k * x, "k", {"k": cf.Parameter(0.5, lower=0)}, **experiment)


def explosive() -> cf.Problem:
    """A pole long before the last datum, whatever the rate between its bounds."""
    x, k = cf.symbols("x k")
    experiment = cf.Experiment({"x": [1.0, 2.0, 3.0]}, time=[0.0, 5.0, 900.0], sigma=0.1, initial={"x": 1.0})
    parameters = {"k": cf.Parameter(5.0, lower=1.0)}
    return cf.Problem(cf.Model({x: k * x**2}, parameters=[k]), experiment, parameters=parameters)


@cache
def healthy() -> cf.Checkup:
    return cf.doctor(decay_problem(), starts=3)


def test_doctor_of_a_good_problem_passes_all_checks() -> None:
    report = healthy()
    assert report.ok, str(report)
    assert report.advice == ()
    assert str(report).endswith("No check needs attention.")
    names = {line.name for line in report.lines}
    assert names == {
        "fit", "gradient", "data", "scale", "stiffness", "redundant parameters", "symmetric parameters",
        "identifiability", "residuals", "tolerances", "other transcriptions", "other starts",
    }  # fmt: skip
    assert all(line.ok is True for line in report.lines)
    assert "adjoint gradients agree" in report["gradient"].sentence
    assert report.time < 60


def test_doctor_with_the_same_seed_is_reproducible() -> None:
    repeated_report = cf.doctor(decay_problem(), starts=3)
    assert [str(line) for line in repeated_report.lines] == [str(line) for line in healthy().lines]


def test_doctor_finds_redundant_parameters() -> None:
    report = cf.doctor(decay(lambda x, a, b: -a * b * x, "a b", {"a": 0.5, "b": 1.0}), starts=1)
    assert report["redundant parameters"].ok is False
    assert "only a*b enters" in report["redundant parameters"].sentence
    assert report["identifiability"].ok is False
    assert any("redundant parameters: Fix one of these quantities" in line for line in report.advice)


def test_doctor_finds_symmetric_pairs_of_parameters() -> None:
    """Two exponentials may be exchanged, with their amplitudes; each pair alone may not."""
    x, y, k1, k2, a1, a2 = cf.symbols("x y k1 k2 a1 a2")
    model = cf.Model({x: -k1 * x, y: -k2 * y}, parameters=[k1, k2, a1, a2], outputs={"sum": a1 * x + a2 * y})
    data = 2 * np.exp(-2.0 * T) + np.exp(-0.3 * T) + 0.1 * NOISE
    experiment = cf.Experiment({"sum": data}, time=T, sigma=2e-3, initial={"x": 1.0, "y": 1.0})
    guesses = {
        n: cf.Parameter(v, lower=1e-3) for n, v in zip(("k1", "k2", "a1", "a2"), (1.5, 0.4, 1.0, 1.0), strict=True)
    }
    line = cf.doctor(cf.Problem(model, experiment, parameters=guesses), starts=1)["symmetric parameters"]
    assert line.ok is False
    assert ": k1 and k2 with a1 and a2." in line.sentence


@pytest.mark.parametrize(("initial", "is_symmetric"), [(cf.free(8.0), True), (10.0, False)])
def test_doctor_reports_exchanged_rates_only_if_a_scale_is_estimated(initial: Any, is_symmetric: bool) -> None:
    """Exchanging both rates of a chain scales b by k2/k1. Only an estimated dose compensates this."""
    a, b, k1, k2 = cf.symbols("a b k1 k2")
    model = cf.Model({a: -k1 * a, b: k1 * a - k2 * b}, parameters=[k1, k2])
    data = 10 * 0.9 / 0.65 * (np.exp(-0.25 * T) - np.exp(-0.9 * T)) + NOISE
    experiment = cf.Experiment({"b": data}, time=T, sigma=0.02, initial={"a": initial, "b": 0.0})
    line = cf.doctor(cf.Problem(model, experiment, parameters={"k1": 0.8, "k2": 0.3}), starts=0)["symmetric parameters"]
    assert line.ok is not is_symmetric
    assert (": k1 and k2 (with a(0) rescaled)." in line.sentence) is is_symmetric


def test_doctor_does_not_pass_an_optimum_that_no_other_start_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    result = cf.fit(decay_problem())
    poorer = dataclasses.replace(result, cost=result.cost + 100.0)
    monkeypatch.setattr("castfit.drive.checkup.examinations.CheckContext.fit_from", lambda *_: poorer)
    line = cf.doctor(result, starts=2)["other starts"]
    assert line.ok is False
    assert ": 0 reached the cost of this optimum" in line.sentence


def test_doctor_finds_outputs_without_estimated_quantities() -> None:
    x, u, k = cf.symbols("x u k")
    model = cf.Model({x: -k * x, u: -u}, parameters=[k])
    experiment = cf.Experiment(
        {"x": np.exp(-0.6 * T) + NOISE, "u": np.exp(-T) + NOISE}, time=T, sigma=0.02, initial={"x": 1.0, "u": 1.0}
    )
    line = cf.doctor(cf.Problem(model, experiment, parameters={"k": 0.5}), starts=0)["data"]
    assert line.ok is False
    assert "no estimated quantity affects u in experiment 1" in line.sentence


def test_doctor_with_wide_linear_bounds_recommends_log_scale() -> None:
    parameter = cf.Parameter(0.5, lower=1e-6, upper=1e3)
    line = cf.doctor(decay(lambda x, k: -k * x, "k", {"k": parameter}), starts=0)["scale"]
    assert line.ok is False
    assert "scale='log'" in line.advice


def test_doctor_finds_a_better_optimum_from_other_starts() -> None:
    """The square of z^3 - 3 z - 5 with z = k - 3 has a minimum at k = 2, and is zero at k = 5.28."""
    x, k = cf.symbols("x k")
    z = k - 3
    model = cf.Model({x: 0 * k}, parameters=[k], initial={x: z**3 - 3 * z})
    experiment = cf.Experiment({"x": 5 + NOISE}, time=T, sigma=0.02)
    problem = cf.Problem(model, experiment, parameters={"k": cf.Parameter(1.5, lower=0.1, upper=20.0)})
    narrow_problem = problem.replace(parameters={"k": cf.Parameter(1.9, lower=0.1, upper=3.0)})
    local = cf.fit(narrow_problem, "single").with_known_problem(
        problem
    )  # between the wide bounds fits find the other optimum
    assert local.values["k"] == pytest.approx(2.0, abs=1e-2)
    report = cf.doctor(local, "single", starts=5)
    assert report["fit"].ok is False
    assert report["other starts"].ok is False
    assert "better optimum" in report["other starts"].sentence


def test_doctor_of_a_wrong_model_reports_misfit() -> None:
    report = cf.doctor(decay_problem(data={"x": 1 + T}, sigma=0.02), "single", starts=0)
    assert report["fit"].ok is False
    assert "does not fit the data" in report["fit"].sentence


def test_doctor_without_time_still_reports_active_bounds() -> None:
    result = cf.fit(decay(lambda x, k: -k * x, "k", {"k": cf.Parameter(0.5, upper=0.55)}), "single", retry=False)
    report = cf.doctor(result, max_time=1e-9)  # for the fit there is always time
    assert report["fit"].ok is False
    assert "estimates are at their bounds: k (upper)" in report["fit"].sentence
    assert "Not run for lack of time: gradient, " in str(report)
    assert all(report[name].ok is None for name in ("symmetric parameters", "tolerances", "other starts"))


def test_doctor_of_a_failed_result_reports_failure() -> None:
    result = cf.fit(explosive(), QUICK, STRAIGHT, retry=False, second_start=False)
    assert not result.success
    report = cf.doctor(result, max_time=1e-9)
    assert report["fit"].ok is False
    assert report["fit"].sentence.startswith("it failed: ")
    assert not report.ok


@pytest.mark.slow
def test_doctor_of_a_problem_reports_active_bounds() -> None:
    report = cf.doctor(decay(lambda x, k: -k * x, "k", {"k": cf.Parameter(0.5, upper=0.55)}), starts=0)
    assert report["fit"].ok is False


@pytest.mark.slow
def test_doctor_of_an_explosive_model_reports_failure() -> None:
    report = cf.doctor(explosive(), starts=1, max_time=8)
    assert report["fit"].ok is False
    assert report["gradient"].ok is False
    assert not report.ok


def test_doctor_of_a_result_does_not_fit_again() -> None:
    result = cf.fit(
        decay_problem(), cf.SingleShooting(cf.IntegratorOptions(relative_tolerance=1e-6, absolute_tolerance=1e-8))
    )
    report = cf.doctor(result, starts=1)
    assert report.result is result
    assert "collocation" in report["other transcriptions"].sentence


def test_doctor_respects_max_time(clock: Any) -> None:
    messages: list[str] = []
    clock.step = 1.0
    report = cf.doctor(problems.load("stat5").problem, max_time=100.0, callback=messages.append)
    assert report.time < 200.0  # a check that has begun is finished
    assert messages[0] == "fit"
    assert len(report.lines) == 12


def test_doctor_is_independent_of_units() -> None:
    u = 1e-7
    scaled = decay_problem(data={"x": u * (np.exp(-0.6 * T) + NOISE)}, sigma=0.02 * u, initial={"x": u})
    assert [line.ok for line in cf.doctor(scaled, starts=3).lines] == [line.ok for line in healthy().lines]


def test_doctor_with_invalid_arguments_lists_all_mistakes(tmp_path: Any) -> None:
    with refused("rng is -1", "max_time is 0", "starts is 1.5", "the first argument is 3"):
        cf.doctor(3, rng=-1, max_time=0, starts=1.5)  # pyright: ignore[reportArgumentType]
    with refused("start is 4; give a mapping", "transcription is 'sngle'"):
        cf.doctor(decay_problem(), "sngle", start=4)  # pyright: ignore[reportArgumentType]
    cf.fit(decay_problem()).save(tmp_path / "fit.json")
    with refused("the loaded result has no model"):
        cf.doctor(cf.Result.load(tmp_path / "fit.json"))


def test_doctor_stops_an_endless_check_at_max_time(monkeypatch, clock):
    """To look at every value of 1,000 experiments took a minute, whatever the time."""

    def endless(patient):
        while True:
            check_deadline()

    result = healthy().result
    monkeypatch.setattr(check, "EXAMINATIONS", (("endless", 1.0, endless), ("after", 0.5, endless)))
    clock.step = 1.0
    report = cf.doctor(result, max_time=100.0)
    assert [line.sentence for line in report.lines] == ["skipped: no time left."] * 2
    assert 100.0 < report.time < 120.0
    assert "Not run for lack of time: endless, after" in str(report)


def test_doctor_interrupted_returns_the_checks_so_far(monkeypatch):
    def pressed(patient):
        signal.raise_signal(signal.SIGINT)
        check_deadline()

    examined = healthy().result
    examinations = (("before", 1.0, check_fit), ("pressed", 1.0, pressed), ("after", 1.0, check_fit))
    monkeypatch.setattr(check, "EXAMINATIONS", examinations)
    report = cf.doctor(examined)
    assert [line.ok for line in report.lines] == [True, None, None]
    assert "Interrupted by the user. Not run: pressed, after." in str(report)
