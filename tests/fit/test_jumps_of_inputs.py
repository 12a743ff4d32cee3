"""Values measured at the jumps of a logged input: before or after them, by every transcription and in simulations."""

from __future__ import annotations

import numpy as np
import pytest

import castfit as cf

TIMES = np.arange(0.0, 21.0)
LOGGED = np.array([1.0, 1, 3, 3, 0, 4, 4, 1, 2, 2, 5, 5, 0, 0, 3, 1, 4, 4, 2, 2, 0])
TRUTH = {"k": 0.3, "r": 0.5}


def circuit(*, algebraic: bool = False) -> cf.Model:
    """A state driven by a current, whose voltage sees the current directly."""
    x, k, r, i, v = cf.symbols("x k r i v")
    if algebraic:
        return cf.Model({x: i - k * x}, algebraic={v: v - x + r * i}, parameters=[k, r], inputs=[i], initial={x: 1})
    return cf.Model({x: i - k * x}, parameters=[k, r], inputs=[i], initial={x: 1}, outputs={"v": x - r * i})


def voltage_measured(side: str) -> np.ndarray:
    """The voltage at the times of the log, by the solution of the linear equation."""
    x = [1.0]
    for current in LOGGED[:-1]:
        x.append(current / TRUTH["k"] + (x[-1] - current / TRUTH["k"]) * np.exp(-TRUTH["k"]))
    current = LOGGED if side == "after" else np.append(LOGGED[0], LOGGED[:-1])
    return np.array(x) - TRUTH["r"] * current


def problem(
    measured_side: str,
    v: np.ndarray,
    *,
    algebraic: bool = False,
    events: tuple[cf.Event, ...] = (),
    sigma: float = 0.1,
    **parameters: cf.Parameter,
) -> cf.Problem:
    """The measured voltage, and a current that is said to have been measured on one side of its jumps."""
    current = cf.Input.piecewise_constant(TIMES, LOGGED, measured=measured_side)
    experiment = cf.Experiment({"v": v}, time=TIMES, sigma=sigma, inputs={"i": current}, events=events)
    return cf.Problem(circuit(algebraic=algebraic), experiment, parameters={"k": 0.4, "r": 0.3, **parameters})


@pytest.mark.parametrize("algebraic", [False, True])
@pytest.mark.parametrize("side", ["before", "after"])
def test_simulations_see_what_is_measured(side: str, algebraic: bool) -> None:
    current = cf.Input.piecewise_constant(TIMES, LOGGED, measured=side)
    dense = np.linspace(0.0, 20.0, 61)  # from one output to the next, and in one go
    for times in (TIMES, dense):
        v = cf.simulate(circuit(algebraic=algebraic), TRUTH, times, inputs={"i": current})["v"]
        assert v[np.isin(times, TIMES)] == pytest.approx(voltage_measured(side), abs=1e-5)


@pytest.mark.parametrize("algebraic", [False, True])
@pytest.mark.parametrize("transcription", ["single", "multiple", "collocation"])
def test_a_log_is_fitted_as_it_was_measured(transcription: str, algebraic: bool) -> None:
    fitted_problem = problem("after", voltage_measured("after"), algebraic=algebraic)
    result = cf.fit(fitted_problem, transcription)
    assert result.success
    assert {n: result[n].value for n in TRUTH} == pytest.approx(TRUTH, rel=1e-4)
    assert result.predict()["experiment 1"]["v"] == pytest.approx(voltage_measured("after"), abs=1e-4)


def test_predictions_are_those_of_the_residuals() -> None:
    rng = np.random.default_rng(3)
    result = cf.fit(problem("before", voltage_measured("before") + 0.1 * rng.standard_normal(TIMES.size)))
    assert result.predict()["experiment 1"]["v"] == pytest.approx(result.residual_table()["prediction"], abs=1e-5)


@pytest.mark.parametrize("transcription", ["single", "collocation"])
def test_elements_that_move_with_an_estimated_time_see_it_too(transcription: str) -> None:
    x, late = cf.symbols("x late")
    dropped = voltage_measured("after") - 2.0 * np.where(TIMES > 7.4, np.exp(-TRUTH["k"] * (TIMES - 7.4)), 0.0)
    guess = cf.Parameter(7.7, bounds=(6.0, 9.0))
    result = cf.fit(problem("after", dropped, events=(cf.Event(late, {x: x - 2.0}),), late=guess), transcription)
    assert {n: result[n].value for n in (*TRUTH, "late")} == pytest.approx({**TRUTH, "late": 7.4}, rel=1e-4)


def test_both_sides_at_one_time_are_refused_where_algebraic_states_jump() -> None:
    x = cf.symbols("x")
    with pytest.raises(cf.InputError, match="at t = 5 one event or jump is measured 'before' and another 'after'"):
        problem("after", voltage_measured("after"), algebraic=True, events=(cf.Event(5.0, {x: x + 1}),))


def test_an_unknown_side_is_refused() -> None:
    with pytest.raises(cf.InputError, match=r"measured is 'later'; choose 'before' or 'after'"):
        cf.Input.piecewise_constant([0, 1], [0, 1], measured="later")


def test_diagnostics_name_residuals_that_correlate_with_jumps() -> None:
    rng = np.random.default_rng(5)
    noise = 0.02 * rng.standard_normal(TIMES.size)
    wrong_diagnostics = cf.fit(problem("before", voltage_measured("after") + noise, sigma=0.02), "single").diagnostics
    assert wrong_diagnostics.has_findings
    assert "residuals of v correlate with the jumps of the input 'i'" in wrong_diagnostics.sentence
    assert "measured before it. If they were measured after it" in wrong_diagnostics.sentence
    assert "measured='after'" in wrong_diagnostics.sentence
    other_diagnostics = cf.fit(problem("after", voltage_measured("before") + noise, sigma=0.02), "single").diagnostics
    assert "measured='before'" in other_diagnostics.at_jumps
    right_diagnostics = cf.fit(problem("after", voltage_measured("after") + noise, sigma=0.02), "single").diagnostics
    assert right_diagnostics.at_jumps == ""


def test_a_model_that_errs_in_what_the_input_does_is_not_blamed_on_its_jumps() -> None:
    errs = problem("before", voltage_measured("before") + 0.3 * np.append(LOGGED[0], LOGGED[:-1]) ** 2, sigma=0.02)
    assert cf.fit(errs, "single").diagnostics.at_jumps == ""
    drifts = problem("before", voltage_measured("before") + 0.05 * TIMES, sigma=0.02)
    assert cf.fit(drifts, "single").diagnostics.at_jumps == ""
