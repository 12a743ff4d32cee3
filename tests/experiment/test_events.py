"""Events and doses: what they do in simulations and in every transcription, and what is refused."""

from __future__ import annotations

import itertools
import pickle

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

import castfit as cf
from castfit.integrate import IntegratorOptions
from castfit.problem.fingerprint import describe_differences, fingerprint
from castfit.solve.staged import Multipliers
from tests.builders import jacobian_error, refused
from tests.crossed import crossed
from tests.solve.blocks import dense

TIGHT = IntegratorOptions(relative_tolerance=1e-11, absolute_tolerance=1e-13)
TRANSCRIPTIONS = [
    cf.SingleShooting(TIGHT),
    cf.MultipleShooting(3, integrator=TIGHT),
    cf.MultipleShooting("data", integrator=TIGHT),
    cf.Collocation(integrator=TIGHT),
]
LABELS = [t.label for t in TRANSCRIPTIONS]

gut, blood, z = cf.symbols("gut blood z")
ka, ke, F, tlag, w, t = cf.symbols("ka ke F tlag w t")


def absorption() -> cf.Model:
    """Absorption and elimination of first order."""
    return cf.Model({gut: -ka * gut, blood: ka * gut - ke * blood}, parameters=[ka, ke])


def bateman(time, dose, dose_time, ka, ke):
    """Return the closed-form solution: amounts in the gut and in the blood after one dose."""
    s = np.maximum(np.asarray(time, dtype=float) - dose_time, 0.0)
    is_after_dose = np.asarray(time) > dose_time
    return is_after_dose * dose * np.exp(-ka * s), dose * ka / (ka - ke) * (np.exp(-ke * s) - np.exp(-ka * s))


def eventful() -> cf.Problem:
    """Everything at once: a DAE with time and an input that moves, events that depend on all of it, an infusion."""
    model = cf.Model(
        {gut: -ka * gut + 0.1 * w, blood: ka * gut - ke * z + 0.3 * t},
        algebraic={z: z + 0.1 * z**3 - blood - 0.2 * w - 0.05 * t},
        parameters=[ka, ke],
        inputs=[w],
        outputs={"product": gut * z},
        time=t,
    )
    times = np.array([0.0, 0.5, 1.0, 1.0, 2.0, 3.0, 4.0])
    data = cf.Experiment(
        {"product": np.full(7, 0.7), "blood": np.linspace(0.5, 1, 7)},
        time=times,
        sigma=0.3,
        initial={"gut": 1.0, "blood": cf.free(0.6), "z": 0.5},
        inputs={"w": cf.Input.linear([0, 1.3, 4], [0.1, 0.8, 0.2])},
        events=[
            cf.Event(0, {gut: gut + ka}),
            cf.Event(1.2 + tlag, {gut: gut**2 * F + w * t, blood: blood * (1 + 0.1 * gut)}),
            cf.Event(2, {blood: blood + F * gut}, measured="after"),
            cf.Event(2, {blood: blood**2}, measured="after"),
            cf.Doses(into=blood, amount=F * 2, times=[0.2, 2.3], duration=0.9 + tlag),
            cf.Doses(into="gut", amount=0.5, times=0.7, every=1, count=9, bioavailability=F),
        ],
    )
    parameters = {"ka": 0.8, "ke": 0.6, "F": 0.7, "tlag": cf.Parameter(0.15, bounds=(0, 0.6))}
    return cf.Problem(model, data, parameters=parameters)


def oral(problem_times=(0.5, 1, 2, 4, 8, 12, 13, 16, 24), *, lag=tlag, unit=1.0, weight=1.0, **changes) -> cf.Problem:
    """Three oral doses, with values of the closed form at ka = 1.3, ke = 0.2, F = 0.8, tlag = 0.3."""
    times = np.array(problem_times, dtype=float)
    dose_times = [0.0, 12.0]
    blood_values = sum(bateman(times, 0.8 * 100, a + 0.3, 1.3, 0.2)[1] for a in dose_times)
    doses = cf.Doses(
        into=gut, amount=100 * weight, times=[a * unit for a in dose_times], lag=lag, bioavailability=F, **changes
    )
    data = cf.Experiment(
        {"blood": weight * blood_values},
        time=times * unit,
        sigma=0.5 * weight,
        initial={"gut": 0, "blood": 0},
        events=[doses],
    )
    parameters = {
        "ka": cf.Parameter(0.9 / unit, scale="log"),
        "ke": cf.Parameter(0.3 / unit, scale="log"),
        "F": 0.6,
        "tlag": cf.Parameter(0.2 * unit, bounds=(0, 0.45 * unit)),
    }
    return cf.Problem(absorption(), data, parameters=parameters)


TRUTH = {"ka": 1.3, "ke": 0.2, "F": 0.8, "tlag": 0.3}


# Simulation


def test_doses_give_the_closed_form():
    problem, times = oral(), np.linspace(0, 24, 97)
    simulation = cf.simulate(problem, TRUTH, times, integrator=TIGHT)["experiment 1"]
    exact = [sum(parts) for parts in zip(*(bateman(times, 80.0, a + 0.3, 1.3, 0.2) for a in (0, 12)), strict=True)]
    np.testing.assert_allclose(simulation["gut"], exact[0], atol=1e-8)
    np.testing.assert_allclose(simulation["blood"], exact[1], atol=1e-8)


def test_an_infusion_gives_the_closed_form():
    model = cf.Model({blood: -ke * blood}, parameters=[ke])
    data = cf.Experiment(
        {"blood": [1.0]},
        time=[5],
        initial={"blood": 0},
        events=[cf.Doses(into=blood, amount=[6, 2], times=[1, 2], duration=2)],
    )
    times = np.linspace(0, 5, 51)
    simulation = cf.simulate(cf.Problem(model, data, parameters={"ke": 0.7}), times=times, integrator=TIGHT)[
        "experiment 1"
    ]

    def course(rate, begin):
        up = rate / 0.7 * (1 - np.exp(-0.7 * np.clip(times - begin, 0, 2)))
        return up * np.exp(-0.7 * np.maximum(times - begin - 2, 0))

    np.testing.assert_allclose(simulation["blood"], course(3.0, 1) + course(1.0, 2), atol=1e-9)


def test_events_agree_with_an_independent_integration():
    """Everything at once, against SciPy span by span."""
    p = {"ka": 0.7, "ke": 0.5, "F": 0.6, "tlag": 0.2}

    def signal(time):
        return np.interp(time, [0, 1.3, 4], [0.1, 0.8, 0.2])

    def algebraic(time, y):
        roots = np.roots([0.1, 0, 1, -(y[1] + 0.2 * signal(time) + 0.05 * time)])
        return roots[np.abs(roots.imag) < 1e-12].real[0]

    def span(y, begin, end, rate):
        edges = [begin, *([1.3] if begin < 1.3 < end else []), end]
        for a, b in itertools.pairwise(edges):
            run = solve_ivp(
                lambda time, y: [
                    -p["ka"] * y[0] + 0.1 * signal(time),
                    p["ka"] * y[0] - p["ke"] * algebraic(time, y) + 0.3 * time + rate,
                ],
                (a, b), y, rtol=1e-11, atol=1e-13, method="DOP853",
            )  # fmt: skip
            y = run.y[:, -1]
        return y

    f, long = p["F"], 0.9 + p["tlag"]
    events = [(a + 0.7, lambda time, y: [y[0] + 0.5 * f, y[1]]) for a in range(4)]
    events.append((1.4, lambda time, y: [y[0] ** 2 * f + signal(time) * time, y[1] * (1 + 0.1 * y[0])]))
    events.append((2.0, lambda time, y: [y[0], (y[1] + f * y[0]) ** 2]))
    rates = [(0.2, 0.2 + long), (2.3, 2.3 + long)]
    marks = sorted({0.0, 4.0, *(a for a, _ in events), *(x for pair in rates for x in pair)})
    y = np.array([1.0 + p["ka"], 0.6])
    for a, b in itertools.pairwise(marks):
        active = sum(2 * f / long for on, off in rates if on <= a < off)
        y = span(y, a, b, active)
        for event_time, change in events:
            if event_time == b and b < 4.0:
                y = np.array(change(b, y))
    simulation = cf.simulate(eventful(), {**p, "blood": 0.6}, integrator=TIGHT)["experiment 1"]
    np.testing.assert_allclose([simulation["gut"][-1], simulation["blood"][-1]], y, rtol=1e-8)


@pytest.mark.parametrize(("measured", "expected"), [("before", [1, 1, 2, 3]), ("after", [2, 2, 3, 6])])
def test_a_value_at_the_time_of_an_event_is_before_or_after_it(measured, expected):
    """At the start, inside, and at the end; in simulations and in every transcription; replicates alike."""
    x, k = cf.symbols("x k")
    events = [cf.Event(event_time, {x: x + add}, measured=measured) for event_time, add in [(0, 1), (2, 1), (4, 3)]]
    data = cf.Experiment({"x": np.zeros(4)}, time=[0, 0, 2, 4], sigma=1, initial={"x": 1}, events=events)
    model = cf.Model({x: 0 * k}, parameters=[k])
    problem = cf.Problem(model, data, parameters={"k": cf.Parameter(1.0, prior=cf.Normal(1, 1))})
    assert cf.simulate(problem)["experiment 1"]["x"].tolist() == expected[1:]
    for transcription in TRANSCRIPTIONS:
        result = cf.fit(problem, transcription, retry=False, second_start=False)
        np.testing.assert_allclose(-result.residuals, expected, err_msg=transcription.label)
        np.testing.assert_allclose(result.predict()["experiment 1"]["x"], expected[1:], rtol=1e-9)


def test_events_at_one_time_happen_as_they_are_listed():
    x, k = cf.symbols("x k")
    model = cf.Model({x: 0 * x + k}, parameters=[k])

    def at_end(*events):
        data = cf.Experiment({"x": [1.0]}, time=[2], initial={"x": 1}, events=events)
        return float(cf.simulate(cf.Problem(model, data, parameters={"k": 0.0}))["experiment 1"]["x"][0])

    plus, double = cf.Event(1, {x: x + 1}), cf.Event(1, {x: 2 * x})
    assert at_end(plus, double) == 4
    assert at_end(double, plus) == 3


def test_changes_of_one_event_happen_at_once():
    x, y, k = cf.symbols("x y k")
    model = cf.Model({x: 0 * k, y: 0 * k}, parameters=[k])
    data = cf.Experiment(
        {"x": [1.0], "y": [1.0]}, time=[2], initial={"x": 1, "y": 5}, events=[cf.Event(1, {x: y, y: x})]
    )
    simulation = cf.simulate(cf.Problem(model, data, parameters={"k": cf.Parameter(0.0, prior=cf.Normal(0, 1))}))
    assert (simulation["experiment 1"]["x"][0], simulation["experiment 1"]["y"][0]) == (5, 1)


# Transcriptions


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=LABELS)
def test_derivatives(transcription):
    """Times that are estimated move stages, whose inputs and algebraic states move with them."""
    problem = eventful()
    staged = transcription.transcribe(problem, problem.guess)
    rng = np.random.default_rng(0)
    point = staged.start + 0.02 * rng.standard_normal(staged.layout.n_v)
    assert jacobian_error(staged, point, 1e-3) < 1e-6


@pytest.mark.parametrize("scheme", ["radau", pytest.param("legendre", marks=pytest.mark.slow)])
def test_the_exact_hessian(scheme):
    problem = eventful()
    staged = cf.Collocation(elements=1, degree=2, scheme=scheme).transcribe(problem, problem.guess)
    rng = np.random.default_rng(1)
    v = staged.start + 0.05 * rng.standard_normal(staged.layout.n_v)
    (chain,) = staged.layout.chains
    m = Multipliers(
        rng.standard_normal(chain.n_s),
        rng.standard_normal((chain.n_stages, chain.n_w)),
        rng.standard_normal((chain.n_stages - 1, chain.n_s)),
        np.zeros((chain.n_stages, chain.n_c)),
    )
    equalities = [m.initial]
    for k, inner in enumerate(m.inner):
        equalities += [inner, m.matching[k]] if k < len(m.matching) else [inner]

    def gradient(v):
        linearization = dense(staged.layout, staged.linearize(v))
        return linearization.J.T @ linearization.r + linearization.C.T @ np.concatenate(equalities)

    ((stages, initial),) = staged.hessian(v, (m,)).chains
    total = np.zeros((v.size, v.size))
    total[np.ix_(chain.theta, chain.theta)] += initial
    for k, block in enumerate(stages):
        where = np.concatenate([chain.nodes[k], chain.inner[k], chain.theta])
        total[np.ix_(where, where)] += block
    np.testing.assert_allclose(total, total.T, atol=1e-12 * np.abs(total).max())
    h = 1e-3
    for e in rng.standard_normal((5, v.size)):  # which no wrong entry hides from
        numeric = (
            8 * (gradient(v + h * e) - gradient(v - h * e)) - (gradient(v + 2 * h * e) - gradient(v - 2 * h * e))
        ) / (12 * h)
        np.testing.assert_allclose(total @ e, numeric, rtol=1e-7, atol=1e-8 * np.abs(total).max())


@pytest.mark.parametrize(
    ("transcription", "solver"), crossed(dict(zip(LABELS, TRANSCRIPTIONS, strict=True)), ["gauss_newton", "ipopt"])
)
def test_lag_and_bioavailability_are_found(transcription, solver):
    result = cf.fit(oral(), transcription, solver)
    assert result.success, result.message
    for name, value in TRUTH.items():
        assert result.parameters[name] == pytest.approx(value, rel=1e-6), name
    times = np.linspace(0, 24, 25)
    predicted = result.predict(times)["experiment 1"]["blood"]
    np.testing.assert_allclose(predicted, cf.simulate(oral(), TRUTH, times)["experiment 1"]["blood"], atol=1e-4)


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=LABELS)
def test_a_lag_crosses_a_measurement(transcription):
    """From a guess behind the second datum to a truth before it."""
    problem = oral((0.1, 0.2, 0.4, 0.5, 1, 2, 4, 8, 12.5, 16)).replace(
        parameters={**oral().parameters, "tlag": cf.Parameter(0.46, bounds=(0, 0.9))}
    )
    result = cf.fit(problem, transcription)
    assert result.success, result.message
    assert result.parameters["tlag"] == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize(
    ("transcription", "unit"), crossed(dict(zip(LABELS, TRANSCRIPTIONS, strict=True)), [1e-9, 1e9])
)
def test_fit_with_doses_is_invariant_to_units(transcription, unit):
    reference_result, scaled_result = (
        cf.fit(oral(unit=u, weight=g), transcription) for u, g in ((1.0, 1.0), (unit, 1e-6))
    )
    assert scaled_result.success
    for name, power in (("ka", -1), ("ke", -1), ("F", 0), ("tlag", 1)):
        assert scaled_result.parameters[name] == pytest.approx(
            reference_result.parameters[name] * unit**power, rel=1e-5
        ), name


@settings(max_examples=8, deadline=None)
@given(lag=st.floats(0.0, 5.0).map(lambda v: round(v, 1)), at=st.floats(0.0, 4.0).map(lambda v: round(v, 1)))
def test_transcriptions_see_the_same(lag, at):
    """Wherever events fall among the data, before, on or after them; where they meet the estimated one comes last."""
    x, k = cf.symbols("x k")
    data = cf.Experiment(
        {"x": np.zeros(5)},
        time=np.arange(5.0),
        sigma=1.0,
        initial={"x": 1.0},
        events=[cf.Event(at, {x: x + 1}), cf.Event(tlag, {x: 0.5 * x + tlag})],
    )
    parameters = {"k": 0.3, "tlag": cf.Parameter(3.0, bounds=(0, 6))}
    problem = cf.Problem(cf.Model({x: -k * x}, parameters=[k]), data, parameters=parameters)
    theta = np.array([0.3, lag])
    exact = []
    for time in range(5):
        value, previous_time = 1.0, 0.0
        for event_time, change in sorted([(at, lambda v: v + 1), (lag, lambda v: 0.5 * v + lag)], key=lambda e: e[0]):
            if event_time < time:
                value, previous_time = change(value * np.exp(-0.3 * (event_time - previous_time))), event_time
        exact.append(value * np.exp(-0.3 * (time - previous_time)))
    staged = cf.SingleShooting(TIGHT).transcribe(problem, problem.guess)
    np.testing.assert_allclose(staged.evaluate(theta).values[0].r[0], exact, rtol=1e-8)


# Switches


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=LABELS)
def test_a_jump_of_the_model_at_an_estimated_time_is_found(transcription):
    """Production that begins at `on` and ends at 5: in closed form, and estimated."""
    x, k, on, t = cf.symbols("x k on t")
    model = cf.Model({x: cf.if_else(t > on, 1, 0) * (t < 5) - k * x}, parameters=[k, on], time=t)
    times = np.linspace(0.5, 8, 16)

    def exact(k, on):
        up = (1 - np.exp(-k * np.clip(times - on, 0, 5 - on))) / k
        return up * np.exp(-k * np.maximum(times - 5, 0))

    data = cf.Experiment({"x": exact(0.6, 2.2)}, time=times, sigma=0.01, initial={"x": 0})
    problem = cf.Problem(model, data, parameters={"k": 0.4, "on": cf.Parameter(1.6, bounds=(0, 4))})
    actual = cf.simulate(problem, {"k": 0.5, "on": 1.3}, integrator=TIGHT)["experiment 1"]["x"]
    np.testing.assert_allclose(actual, exact(0.5, 1.3), atol=1e-9)
    staged = transcription.transcribe(problem, problem.guess)
    assert jacobian_error(staged, staged.start, 1e-3) < 1e-6
    result = cf.fit(problem, transcription)
    assert result.success, result.message
    assert (result.parameters["k"], result.parameters["on"]) == pytest.approx((0.6, 2.2), rel=1e-6)
    pickled_model = pickle.loads(pickle.dumps(problem.posed.model))
    assert [(s.name, str(s.time)) for s in pickled_model.switches] == [
        (s.name, str(s.time)) for s in problem.model.switches
    ]
    assert cf.Problem(pickled_model, data, parameters={"k": 0.4, "on": 1.0}).names == problem.names


def test_kinks_and_signs_are_switches_too_and_comparisons_of_states_stay():
    x, k, t = cf.symbols("x k t")
    ode = cf.fmax(t - 1, 0) + cf.fabs(2 * t - 5) + cf.sign(3 - t) + cf.fmin(x, 10) + cf.if_else(x > 3, 1, 0) * k
    model = cf.Model({x: ode - x}, parameters=[k], time=t, outputs={"y": cf.if_else(t >= k, x, 0)})
    data = cf.Experiment({"y": [1.0], "x": [1.0]}, time=[4], initial={"x": 0})
    problem = cf.Problem(model, data, parameters={"k": 1.0})
    names = {"after t = 1", "after t = 2.5", "after t = 3", "after t = k"}
    assert set(problem.posed.model.parameters) == {"k", *names}
    assert problem.replace(parameters={"k": 2.0}).names == ("k",)
    assert cf.Problem(problem.model, data, parameters={"k": 1.0}).model.parameters == problem.model.parameters
    times = np.array([0.5, 1, 2, 2.5, 4])
    simulation = cf.simulate(problem, times=times, integrator=TIGHT)["experiment 1"]
    run = solve_ivp(
        lambda t, x: max(t - 1, 0) + abs(2 * t - 5) + np.sign(3 - t) + min(x[0], 10) + (x[0] > 3) - x[0],
        (0, 4), [0.0], rtol=1e-10, atol=1e-12, max_step=1e-3, t_eval=times,
    )  # fmt: skip
    np.testing.assert_allclose(simulation["x"], run.y[0], rtol=1e-5)
    np.testing.assert_allclose(simulation["y"], [0, 0, *simulation["x"][2:]])  # at t = 1 what was before


# Around fits


def test_problem_with_events_is_pickled_fingerprinted_and_truncated():
    problem = eventful()
    pickled_problem = pickle.loads(pickle.dumps(problem))
    assert describe_differences(fingerprint(problem), fingerprint(pickled_problem)) == []
    assert describe_differences(fingerprint(problem), fingerprint(oral())) != []
    assert describe_differences(fingerprint(oral()), fingerprint(oral(measured="after"))) != []
    np.testing.assert_array_equal(
        cf.simulate(problem)["experiment 1"]["blood"], cf.simulate(pickled_problem)["experiment 1"]["blood"]
    )
    truncated_problem = problem.posed.with_horizon(1.5)
    assert (
        cf.simulate(truncated_problem)["experiment 1"]["blood"][-1] == cf.simulate(problem)["experiment 1"]["blood"][2]
    )
    staged = cf.SingleShooting().transcribe(truncated_problem, truncated_problem.guess)
    assert staged.linearize(staged.start).ok
    truncated_experiment = problem.experiments[0].until(1.5)
    assert truncated_experiment is not None
    assert len(truncated_experiment.events) == 4  # those at t = 2 are left out


def test_a_horizon_grows_over_events():
    problem = oral()  # a single datum says little: rates remain within decades of each other
    rates = {n: cf.Parameter(problem.parameters[n].value, bounds=(0.05, 5), scale="log") for n in ("ka", "ke")}
    result = cf.incremental(problem.replace(parameters={**problem.parameters, **rates}))
    assert result.success
    assert result.result.parameters["tlag"] == pytest.approx(0.3, rel=1e-4)


def test_matching_starts_a_fit_with_events():
    x, k = cf.symbols("x k")
    times = np.linspace(0.5, 6, 12)
    values = np.exp(-0.7 * times) + 2 * np.exp(-0.7 * (times - 3)) * (times > 3)
    data = cf.Experiment({"x": values}, time=times, sigma=0.01, initial={"x": 1}, events=[cf.Event(3, {x: x + 2})])
    problem = cf.Problem(cf.Model({x: -k * x}, parameters=[k]), data, parameters={"k": 5.0})
    result = cf.fit(problem, start="matching")
    assert result.parameters["k"] == pytest.approx(0.7, rel=1e-6)
    with refused("events, or switches of the model, happen in 'experiment 1'"):
        cf.fit(problem, start="decomposed")


# What is refused


def test_bad_events_are_refused():
    with refused("time is 'noon'", "measured is 'later'"):
        cf.Event("noon", {gut: 1}, measured="later")
    with refused("nothing changes"):
        cf.Event(1, {})
    with refused("the new value of 'gut' is nan"):
        cf.Event(1, {gut: np.nan})
    with refused("into is 3", "2 amounts are given for 3 times", "duration is -1", "lag is -2"):
        cf.Doses(into=3, amount=[1, 2], times=[0, 1, 2], duration=-1, lag=-2)
    with refused("every is 0", "every repeats one time", "count is 1.5"):
        cf.Doses(into=gut, amount=1, times=[0, 1], every=0, count=1.5)
    with refused("give every="):
        cf.Doses(into=gut, amount=1, times=0, count=3)
    with refused("events contains 3"):
        cf.Experiment({"x": [1.0]}, time=[1], events=[3])


def with_events(*events, **parameters) -> cf.Problem:
    data = cf.Experiment({"blood": [1.0, 2]}, time=[1, 2], initial={"gut": 0, "blood": 0}, events=events)
    return cf.Problem(absorption(), data, parameters={"ka": 1.0, "ke": 0.5, **parameters})


def test_events_that_do_not_fit_the_problem_are_refused():
    liver, dose = cf.symbols("liver dose")
    with refused("changes 'liver', which is no state"):
        with_events(cf.Event(1, {liver: 1}))
    with refused("contains 'dose', which is not in the model"):
        with_events(cf.Event(1, {gut: gut + dose}))
    with refused("its times contains 'gut'; only parameters"):
        with_events(cf.Doses(into=gut, amount=1, times=gut))
    with refused("the amount of an infusion contains 'blood'"):
        with_events(cf.Doses(into=gut, amount=blood, duration=1))
    with refused("before the start 0", "after the last measurement at 2"):
        with_events(cf.Event(-1, {gut: 1}), cf.Event(3, {gut: 1}))
    with refused("measured 'before' and another 'after'"):
        with_events(cf.Event(1, {gut: 1}), cf.Event(1, {blood: 1}, measured="after"))
    with refused("before the start 0, at the guess"):
        with_events(cf.Event(tlag, {gut: 1}), tlag=-0.5)
    with refused("all estimated times lie after the last measurement"):
        with_events(cf.Event(tlag, {gut: 1}), tlag=5.0)
    with refused("would end at t = 0.5, before it begins"):
        with_events(cf.Doses(into=gut, amount=1, times=1, duration=tlag), tlag=-0.5)
    with refused("no measurement depends on the free parameter 'F'"):
        with_blood_unmeasured()


def with_blood_unmeasured() -> cf.Problem:
    """Measure what an event in the blood does not reach."""
    data = cf.Experiment({"gut": [1.0, 2]}, time=[1, 2], initial={"gut": 1, "blood": 0}, events=cf.Event(1, {blood: F}))
    return cf.Problem(absorption(), data, parameters={"ka": 1.0, "ke": cf.Parameter(0.5, fixed=True), "F": 1.0})


def test_a_time_is_estimated_though_its_event_only_scales_a_state():
    problem = with_events(cf.Event(tlag, {gut: 0.5 * gut + 0}), cf.Event(0, {gut: 3}), tlag=0.5)
    assert "tlag" in problem.names


def test_a_time_that_leaves_the_experiment_is_a_failure_with_its_reason():
    problem = with_events(cf.Event(tlag, {gut: 1}), tlag=0.5)
    theta = problem.guess.copy()
    theta[problem.names.index("tlag")] = -0.25
    for transcription in TRANSCRIPTIONS:
        staged = transcription.transcribe(problem, problem.guess)
        v = staged.start.copy()
        v[: theta.size] = theta
        evaluation = staged.evaluate(v)
        assert not evaluation.ok
        assert "at t = -0.25, before the start 0" in evaluation.failures[0].detail


def test_repeated_doses_without_a_number_are_not_predicted_further():
    problem = with_events(cf.Doses(into=gut, amount=1, every=0.5))
    with refused("pass their number, count="):
        cf.simulate(problem, times=[1, 5])
    counted = with_events(cf.Doses(into=gut, amount=1, every=0.5, count=20))
    assert cf.simulate(counted, times=[1, 5])["experiment 1"]["gut"][1] > 0.5


# Events that states trigger


def bouncing(**changes) -> cf.Problem:
    """A ball that falls from height 1 and loses part of its speed whenever it touches the ground."""
    h, v, g, r = cf.symbols("h v g r")
    model = cf.Model({h: v, v: -g}, parameters=[g, r])
    times = np.array([0.3, 0.6, 0.9, 1.2, 1.5])
    data = cf.Experiment(
        {"h": np.zeros(5), "v": np.zeros(5)},
        time=times,
        sigma=0.1,
        initial={"h": 1, "v": 0},
        events=cf.Event(when=h, changes={v: -r * v}, direction="falling", **changes),
    )
    return cf.Problem(model, data, parameters={"g": 9.8, "r": 0.8})


def bounce(times, g, r):
    """Return heights and speeds in closed form."""
    states = []
    for t in times:
        begin, speed = np.sqrt(2 / g), r * np.sqrt(2 * g)
        if t <= begin:
            states.append((1 - 0.5 * g * t**2, -g * t))
            continue
        while t > begin + 2 * speed / g:
            begin, speed = begin + 2 * speed / g, r * speed
        states.append((speed * (t - begin) - 0.5 * g * (t - begin) ** 2, speed - g * (t - begin)))
    return np.array(states).T


def test_a_ball_bounces():
    problem = bouncing()
    times = problem.conditions[0].points.times
    actual = cf.simulate(problem, {"g": 9.81, "r": 0.7}, integrator=TIGHT)["experiment 1"]
    np.testing.assert_allclose([actual["h"], actual["v"]], bounce(times, 9.81, 0.7), atol=1e-8)
    staged = cf.SingleShooting(TIGHT).transcribe(problem, problem.guess)
    assert jacobian_error(staged, np.array([9.7, 0.75]), 1e-4) < 1e-6
    exact = np.zeros((10, 2))
    for j in range(2):
        step = 1e-5 * np.eye(2)[j]
        ahead, back = (bounce(times, *(np.array([9.7, 0.75]) + s * step)) for s in (1, -1))
        exact[:, j] = ((ahead - back) / 2e-5).T.ravel() / 0.1
    actual = staged.linearize(np.array([9.7, 0.75])).jacobians[0].R_q[0]
    np.testing.assert_allclose(actual, exact, rtol=1e-6, atol=1e-6 * np.abs(exact).max())


def test_a_ball_that_bounces_is_fitted():
    problem = bouncing()
    times = problem.conditions[0].points.times
    h, v = bounce(times, 9.81, 0.7)
    data = problem.experiments[0].with_values({"h": h, "v": v})
    result = cf.fit(problem.replace(experiments=data, parameters={"g": 9.6, "r": 0.72}), "single", second_start=False)
    assert result.success, result.message
    assert (result.parameters["g"], result.parameters["r"]) == pytest.approx((9.81, 0.7), rel=1e-6)


def test_problem_with_triggers_is_pickled_and_fingerprinted():
    problem = bouncing()
    pickled_problem = pickle.loads(pickle.dumps(problem))
    assert describe_differences(fingerprint(problem), fingerprint(pickled_problem)) == []
    assert describe_differences(fingerprint(problem), fingerprint(bouncing(count=30))) != []
    np.testing.assert_array_equal(
        cf.simulate(problem)["experiment 1"]["h"], cf.simulate(pickled_problem)["experiment 1"]["h"]
    )


def test_an_expression_that_turns_back_between_two_steps_is_seen():
    """A spike through the threshold that is narrower than what is watched in one step."""
    x, k, t = cf.symbols("x k t")
    model = cf.Model({x: 0 * x + 2 * k * (0.5 - t)}, parameters=[k], time=t)
    data = cf.Experiment(
        {"x": [1.0]}, time=[1], initial={"x": 0}, events=cf.Event(when=x - peak(k), changes={x: x + 1})
    )
    actual = cf.simulate(cf.Problem(model, data, parameters={"k": 1.0}), integrator=TIGHT)["experiment 1"]["x"]
    np.testing.assert_allclose(actual, 1.0, atol=1e-9)


def peak(k):
    """Return a value that k (t - t**2) exceeds for a thousandth of the time around 1/2."""
    return k * (0.25 - 0.0005**2)


def test_a_threshold_of_a_state_and_a_parameter():
    """A population that is harvested by half when it reaches a limit, which is estimated."""
    x, k, limit = cf.symbols("x k limit")
    model = cf.Model({x: k * x}, parameters=[k])
    times = np.linspace(0.5, 6, 12)

    def exact(k, limit):
        steps = np.floor(np.maximum(k * times - np.log(limit), 0) / np.log(2) + (k * times > np.log(limit)))
        return np.exp(k * times) / 2**steps

    event = cf.Event(when=x - limit, changes={x: 0.5 * x}, direction="rising")
    data = cf.Experiment({"x": exact(0.5, 2.3)}, time=times, sigma=0.01, initial={"x": 1}, events=event)
    problem = cf.Problem(model, data, parameters={"k": 0.51, "limit": 2.4})
    np.testing.assert_allclose(
        cf.simulate(problem, {"k": 0.47, "limit": 2.5}, integrator=TIGHT)["experiment 1"]["x"],
        exact(0.47, 2.5),
        rtol=1e-8,
    )
    staged = cf.SingleShooting(TIGHT).transcribe(problem, problem.guess)
    assert jacobian_error(staged, np.array([0.47, 2.5]), 1e-4) < 1e-6


def test_triggered_events_unsupported_uses_are_refused():
    problem = bouncing()
    with refused("only shooting can follow"):
        cf.fit(problem, "collocation")
    solver = cf.GaussNewton(max_iter=1, homotopy="never")
    assert np.isfinite(cf.fit(problem, "multiple", solver, retry=False).chi2)  # from nodes that rest on the ground
    with pytest.raises(cf.SimulationError, match="happens more often than 1 times; give a larger count="):
        cf.simulate(bouncing(count=1))
    result = cf.fit(bouncing(count=1), "single")
    assert not result.success
    assert "happens more often than 1 times" in result.message
    with refused("give either a time or when="):
        cf.Event(1, {"v": 0}, when=cf.symbols("h"))
    with refused("direction is 'up'", "count is 0"):
        cf.Event(when=cf.symbols("h"), changes={"v": 0}, direction="up", count=0)


# Conditions


def level(threshold=0.5, **changes) -> cf.Problem:
    """A decay that is filled up again whenever it is below a threshold; each filling is counted."""
    x, n, k, low = cf.symbols("x n k low")
    model = cf.Model({x: -k * x, n: 0}, parameters=[k])
    times = np.linspace(0.3, 6, 20)
    data = cf.Experiment(
        {"x": np.ones(20)},
        time=times,
        sigma=0.1,
        initial={"x": 1, "n": 0},
        events=cf.Event(when=x < low, changes={x: 1, n: n + 1}, **changes),
    )
    return cf.Problem(model, data, parameters={"k": 0.7, "low": threshold})


def sawtooth(times, k, low):
    return np.exp(-k * np.mod(times, -np.log(low) / k))


def test_a_condition_acts_whenever_it_becomes_true():
    problem = level()
    times = problem.conditions[0].points.times
    simulation = cf.simulate(problem, {"k": 0.8, "low": 0.45}, integrator=TIGHT)["experiment 1"]
    np.testing.assert_allclose(simulation["x"], sawtooth(times, 0.8, 0.45), rtol=1e-8)
    np.testing.assert_array_equal(simulation["n"], np.floor(times * 0.8 / -np.log(0.45)))
    staged = cf.SingleShooting(TIGHT).transcribe(problem, problem.guess)
    assert jacobian_error(staged, np.array([0.8, 0.45]), 1e-4) < 1e-6
    pickled_problem = pickle.loads(pickle.dumps(problem))
    assert describe_differences(fingerprint(problem), fingerprint(pickled_problem)) == []
    assert describe_differences(fingerprint(problem), fingerprint(level(at_start=True))) != []


def test_a_condition_that_is_true_at_the_start_acts_there_only_if_wanted():
    x, y = cf.symbols("x y")
    model = cf.Model({x: -x, y: 0}, initial={x: 1.0, y: 0.0})
    times = np.array([0.0, 1.0, 2.0])
    for at_start, expected in ((False, 0.0), (True, 1.0)):
        event = cf.Event(when=x > 0.5, changes={y: y + 1}, at_start=at_start, measured="after")
        np.testing.assert_array_equal(cf.simulate(model, times=times, events=event)["y"], expected)


def test_triggered_events_cascade_at_once_and_simultaneous_ones_act_together():
    """At t = 1 x jumps; that makes x > 3 true, twice: a and b exchange their values."""
    t, x, a, b, k, late = cf.symbols("t x a b k late")
    model = cf.Model({x: k * x, a: 0, b: 0}, parameters=[k], time=t)
    events = [
        cf.Event(when=ca.logic_and(x > 3, t < 5), changes={a: b}),
        cf.Event(when=x > 3, changes={b: a + x}),
        cf.Event(late, {x: 4 * x}),
    ]
    data = cf.Experiment(
        {"x": np.ones(4), "a": np.ones(4), "b": np.ones(4)},
        time=[0.5, 1.5, 2.0, 3.0],
        sigma=0.1,
        initial={"x": 1, "a": 1, "b": 2},
        events=events,
    )
    problem = cf.Problem(model, data, parameters={"k": 0.1, "late": 1.0})
    simulation = cf.simulate(problem, integrator=TIGHT)["experiment 1"]
    np.testing.assert_allclose(simulation["a"], [1, 2, 2, 2], rtol=1e-9)
    np.testing.assert_allclose(simulation["b"], [2, *[1 + 4 * np.exp(0.1)] * 3], rtol=1e-9)
    staged = cf.SingleShooting(TIGHT).transcribe(problem, problem.guess)
    assert jacobian_error(staged, np.array([0.12, 1.1]), 1e-4) < 1e-6
    result = cf.SingleShooting(TIGHT).transcribe(problem, problem.guess).linearize(np.array([0.12, 1.1]))
    assert np.abs(result.jacobians[0].R_q[0][-1]).max() > 0.1  # b remembers when x jumped


def test_a_state_that_rests_at_a_threshold_triggers_nothing_by_rounding():
    x, n = cf.symbols("x n")
    model = cf.Model({x: 0.5 - x, n: 0}, initial={x: 1.0, n: 0.0})
    event = cf.Event(when=x < 0.6, changes={x: 0.5, n: n + 1})
    refill = cf.Event(when=x < 0.5, changes={n: n + 10})
    simulation = cf.simulate(model, times=[0.0, 1.0, 5.0, 50.0], events=[event, refill])
    np.testing.assert_array_equal(simulation["n"], [0, 0, 1, 1])


def test_mistakes_in_conditions():
    x, y = cf.symbols("x y")
    with refused("a condition has no direction"):
        cf.Event(when=x > 3, changes={y: 0}, direction="rising")
    with refused("at_start is True; it may be True where when= is a condition"):
        cf.Event(when=x - 3, changes={y: 0}, at_start=True)
    with refused("events belong to the problem's experiments"):
        cf.simulate(bouncing(), events=cf.Event(1, {x: 0}))
    model = cf.Model({x: -x}, initial={x: 1.0})
    with refused("changes 'y', which is no state"):
        cf.simulate(model, times=[0, 1], events=cf.Event(0.5, {y: 0}))


@pytest.mark.parametrize("off", [0.0, 1e-14, -1e-14, 1e-12, -1e-12, 1e-10, -1e-10, 1e-9, -1e-9])
def test_thresholds_that_are_reached_where_a_step_of_the_watch_ends(off):
    """Steps of the watch are 1/200 of the time; thresholds are missed there by as much as errors of integration."""
    x, n = cf.symbols("x n")
    model = cf.Model({x: -x, n: 0}, initial={x: 1.0, n: 0.0})
    for j in (16, 32, 33, 64, 150):
        event = cf.Event(when=x < float(np.exp(-2 * j / 200) + off), changes={n: n + 1})
        simulation = cf.simulate(
            model, times=[0.1, 1.9, 2.0], events=event, integrator=IntegratorOptions(relative_tolerance=1e-7)
        )
        np.testing.assert_array_equal(simulation["n"], [0, 1, 1])
