"""How often triggers happen, where that is known: however fast they are, however short the time between two."""

import numpy as np
import pytest

import castfit as cf

x, v, n, t = cf.symbols("x v n t")
SLOW = pytest.mark.slow


def happens(when, end=10.0, states=None, start=None, count=100, **options):
    """Return how often a condition becomes true."""
    ode, initial = states or {}, start or {}
    model = cf.Model({**ode, n: 0 * n}, time=t, initial={**initial, n: 0.0})
    event = cf.Event(when=when, changes={n: n + 1}, count=count)
    return cf.simulate(model, {}, [0.0, end], events=[event], **options)["n"][-1]


def of_sine(w):
    """Return how often sin(w t) > 1/2 becomes true in 10."""
    return int(np.floor((10 * w - np.pi / 6) / (2 * np.pi))) + 1


@pytest.mark.parametrize("w", [10, 40 * np.pi, 100, pytest.param(1000, marks=SLOW), pytest.param(3000, marks=SLOW)])
def test_oscillations_of_time_are_counted(w):
    """40 pi is as fast as one turn in each of 200 parts."""
    assert happens(cf.sin(w * t) > 0.5, count=of_sine(w)) == of_sine(w)


@pytest.mark.parametrize("method", ["explicit", "esdirk", pytest.param("cvodes", marks=SLOW)])
@pytest.mark.parametrize("w", [10, pytest.param(100, marks=SLOW)])
def test_oscillations_of_states_are_counted(w, method):
    n_events = happens(
        x > 0.5, states={x: v, v: -(w**2) * x}, start={x: 0.0, v: float(w)}, count=of_sine(w),
        integrator=cf.IntegratorOptions(method),
    )  # fmt: skip
    assert n_events == of_sine(w)


@pytest.mark.parametrize(
    ("when", "count"),
    [
        ((t - 5) ** 2 < 1e-10, 1),
        (cf.exp(-(((t - 5.0123) / 1e-4) ** 2)) > 0.5, 1),
        (cf.exp(-(((t - 5.0123) / 1e-6) ** 2)) > 0.5, 1),
        ((t - 3.3) * (t - 3.30001) * (t - 7) > 0, 2),
        (t - cf.floor(t) > 0.5, 10),
        ((t - 5) ** 2 <= 0, 1),
        (cf.if_else(t < 3, 0, cf.if_else(t < 3.001, 1, 0)) > 0.5, 1),
        (cf.fabs(cf.sin(20 * t)) > 0.9999, 64),
        (cf.sin(cf.exp(t / 2)) > 0, 23),
    ],
    ids=str,
)
def test_short_pulses_of_time_are_seen(when, count):
    assert happens(when) == count


def test_products_are_counted():
    """Against signs on a grid that is far finer than what is counted."""
    grid = np.linspace(0.0, 10.0, 2_000_001)
    is_true = np.sin(200 * grid) * np.sin(201 * grid) > 0.99
    assert happens(cf.sin(200 * t) * cf.sin(201 * t) > 0.99) == (is_true[1:] & ~is_true[:-1]).sum()


@pytest.mark.parametrize("gap", [1e-2, 1e-3])
@pytest.mark.parametrize("method", ["explicit", "cvodes"])
def test_two_crossings_within_a_step_are_seen(gap, method):
    """A ball that rises above a height for a time of `gap` only."""
    height = 0.5 * 9.81 * (1 - (gap / 2) ** 2)
    n_events = happens(
        x > height, 2.0, {x: v, v: -9.81 + 0 * v}, {x: 0.0, v: 9.81}, integrator=cf.IntegratorOptions(method)
    )
    assert n_events == 1.0


@pytest.mark.parametrize("end", [30.0, pytest.param(80.0, marks=SLOW)])
def test_bounces_are_counted(end):
    e = 0.99
    fall = np.sqrt(2 / 9.81)
    bounces = fall + 2 * fall * np.cumsum(np.append(0.0, e ** np.arange(1, 600)))
    model = cf.Model({x: v, v: -9.81 + 0 * v, n: 0 * n}, initial={x: 1.0, v: 0.0, n: 0.0})
    bounce = cf.Event(when=x, direction="falling", changes={v: -e * v, n: n + 1}, count=600)
    n_bounces = cf.simulate(model, {}, [0.0, end], events=[bounce])["n"][-1]
    assert n_bounces == (bounces <= end).sum()


def test_inputs_are_looked_at_between_their_times():
    """A signal that is straight between its points, as steep as a pulse of a thousandth."""
    u = cf.symbols("u")
    model = cf.Model({n: 0 * n}, inputs=[u], initial={n: 0.0})
    pulse = cf.Input.linear([0.0, 5.0, 5.004, 5.008, 10.0], [0.0, 0.0, 1.0, 0.0, 0.0])
    event = cf.Event(when=u > 0.5, changes={n: n + 1})
    assert cf.simulate(model, {}, [0.0, 10.0], inputs={"u": pulse}, events=[event])["n"][-1] == 1.0


def test_times_of_events_are_exact():
    model = cf.Model({x: -x, n: 0 * n}, time=t, initial={x: 1.0, n: 0.0})
    tight = cf.IntegratorOptions(relative_tolerance=1e-11, absolute_tolerance=1e-13)
    event_time = cf.simulate(model, {}, [0.0, 3.0], events=[cf.Event(when=x < 0.3, changes={n: t})], integrator=tight)[
        "n"
    ][-1]
    assert event_time == pytest.approx(-np.log(0.3), abs=1e-9)
