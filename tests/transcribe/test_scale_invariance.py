"""In other units of state and time every transcription gives the same answer: random models, random units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import castfit as cf

TRANSCRIPTIONS = (cf.SingleShooting(), cf.MultipleShooting(5), cf.Collocation())
FAR = cf.GaussNewton(tolerance=1e-14)  # by default a search ends up to 1e-4 standard errors before the optimum


@dataclass(frozen=True)
class Drawn:
    """A network x_i' = -k_i x_i + sum_j c_ij x_j - d_i x_i^2, with what is measured of it, and units."""

    feeds: tuple[tuple[int, int], ...]
    quadratic: tuple[bool, ...]
    begins_at_zero: tuple[bool, ...]
    measured: tuple[bool, ...]
    log: bool
    known_sigma: bool
    units: tuple[float, ...]
    second: float
    seed: int


@st.composite
def drawn(draw) -> Drawn:
    n = draw(st.integers(1, 3))
    decades = st.integers(-15, 15).map(lambda e: 10.0**e)
    pairs = [(i, j) for i in range(n) for j in range(i)]
    flags = st.lists(st.booleans(), min_size=n, max_size=n).map(tuple)
    zero = (False, *draw(flags)[1:])
    return Drawn(
        feeds=tuple(pair for pair in pairs if pair[0] == pair[1] + 1 or draw(st.booleans())),
        quadratic=draw(flags),
        begins_at_zero=zero,
        measured=(*draw(flags)[:-1], True),
        log=draw(st.booleans()),
        known_sigma=draw(st.booleans()),
        units=tuple(draw(decades) for _ in range(n)),
        second=draw(st.integers(-9, 9).map(lambda e: 10.0**e)),
        seed=draw(st.integers(0, 10**6)),
    )


def posed(case: Drawn, units: np.ndarray, second: float) -> cf.Problem:
    """The same question in other units: states x U, times x T, rate constants accordingly."""
    rng = np.random.default_rng(case.seed)
    n = units.size
    states = [cf.symbols(f"x{i}") for i in range(n)]
    k = [cf.symbols(f"k{i}") for i in range(n)]
    truth, guess = rng.uniform(0.3, 1.5, n), rng.uniform(0.7, 1.4, n)
    strength = rng.uniform(0.2, 1.0, (n, n))
    right = []
    for i in range(n):
        flow = -k[i] * states[i]
        if case.quadratic[i]:
            flow -= 0.3 / (second * units[i]) * states[i] ** 2
        for a, b in case.feeds:
            if a == i:
                flow += strength[a, b] / second * units[a] / units[b] * states[b]
        right.append(flow)
    model = cf.Model(dict(zip(states, right, strict=True)), parameters=k)
    times = np.sort(rng.uniform(0.2, 5.0, 12))
    initial = {f"x{i}": 0.0 if case.begins_at_zero[i] else units[i] for i in range(n)}
    names = [f"x{i}" for i in range(n) if case.measured[i]]
    exact = cf.simulate(model, {f"k{i}": truth[i] / second for i in range(n)}, times * second, initial=initial)
    noise = rng.standard_normal((n, times.size))
    unit = {f"x{i}": units[i] for i in range(n)}
    data = {name: exact[name] + 0.02 * unit[name] * noise[int(name[1:])] for name in names}
    sigma = {name: 0.02 * unit[name] for name in names}
    scale = "log" if case.log else "linear"
    parameters = {f"k{i}": cf.Parameter(guess[i] * truth[i] / second, scale=scale) for i in range(n)}
    experiment = cf.Experiment(
        data, times * second, sigma=sigma if case.known_sigma else None, initial=initial, start=0
    )
    return cf.Problem(model, experiment, parameters=parameters)


def agree(case: Drawn) -> None:
    n = len(case.units)
    if not case.known_sigma:  # one common factor has a meaning only where all outputs have one unit
        case = Drawn(**{**case.__dict__, "units": (case.units[0],) * n})
    problem, scaled_problem = posed(case, np.ones(n), 1.0), posed(case, np.array(case.units), case.second)
    reference = cf.fit(problem, TRANSCRIPTIONS[1])
    # What the data hardly determine, such as two rates that may be exchanged, no search finds to six digits.
    determined = [0.5 * abs(v) > reference.standard_errors[n] for n, v in reference.parameters.items()]
    assume(reference.success and all(determined))
    for transcription in TRANSCRIPTIONS:
        one, two = cf.fit(problem, transcription, FAR), cf.fit(scaled_problem, transcription, FAR)
        assert one.status is two.status, (one.message, two.message)
        if not one.success:
            continue
        factor = 1.0 if case.known_sigma else case.units[0] ** 2
        assert two.chi2 == pytest.approx(one.chi2 * factor, rel=1e-6)
        close = 1e-6 if one.status is cf.Status.CONVERGED else 1e-3  # "acceptable" says how low it is, hardly where
        for name, value in one.parameters.items():
            error = one.standard_errors[name]
            # An estimate is known no better than its own numerical error allows.
            slack = close * max(abs(value), error if np.isfinite(error) else abs(value))
            assert two.parameters[name] * case.second == pytest.approx(value, abs=slack)
            if np.isfinite(error):
                assert two.standard_errors[name] * case.second == pytest.approx(error, rel=close)


@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    derandomize=True,
)
@given(drawn())
def test_answers_do_not_depend_on_units(case):
    agree(case)


@pytest.mark.parametrize("units", [(1e-14, 1e11, 1e13)])
def test_collocation_does_not_choose_pivots_by_units(units):
    """Decades apart they decided which equation of a stage gave which of its states."""
    case = Drawn(((1, 0), (2, 0), (2, 1)), (False,) * 3, (False,) * 3, (False, True, True), False, True, units, 1.0, 0)
    one, two = (cf.fit(posed(case, u, 1.0), TRANSCRIPTIONS[2]) for u in (np.ones(3), np.array(units)))
    assert one.success
    assert two.iterations == one.iterations
    assert two.theta == pytest.approx(one.theta, rel=1e-9)


def test_elements_are_not_refined_because_of_units():
    """Decades apart they decided the pivots of the step that shows the elements' errors."""
    case = Drawn(((1, 0), (2, 0), (2, 1)), (False,) * 3, (False,) * 3, (False, True, True), False, True, (), 1.0, 0)
    one, two = (cf.fit(posed(case, np.array(u), 1.0), TRANSCRIPTIONS[2]) for u in ((1.0,) * 3, (1e10, 1e-11, 1e15)))
    assert one.success
    assert two.success
    assert [entry["refinement"] for entry in two.history] == [entry["refinement"] for entry in one.history]
    assert two.theta == pytest.approx(one.theta, rel=1e-9)


@pytest.mark.parametrize("second", [1e-6, 2.0, 10.0])
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS)
def test_steps_do_not_depend_on_the_unit_of_what_is_on_a_logarithmic_scale(transcription, second):
    """The magnitude of a logarithm, which depends on units, once weighed in the length of a step."""
    case = Drawn(((1, 0),), (False, False), (False, False), (False, True), True, False, (1.0, 1.0), second, 0)
    one, two = (cf.fit(posed(case, np.ones(2), unit), transcription) for unit in (1.0, second))
    assert one.success
    assert two.iterations == one.iterations
    for name, value in one.parameters.items():
        assert two.parameters[name] * second == pytest.approx(value, rel=1e-9)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(drawn())
def test_two_hundred_answers_do_not_depend_on_units(case):
    agree(case)
