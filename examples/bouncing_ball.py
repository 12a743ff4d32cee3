"""A ball that bounces
===================

A ball that bounces: an event that the state triggers, and what its bounces tell about the ball.

A ball is dropped beside a ruler and filmed, twenty-five pictures a second.  It falls freely, and whenever it reaches
the floor, its speed turns round and shrinks by the coefficient of restitution e::

    height' = speed
    speed'  = -g                       where height falls through 0:  speed -> -e speed

Nobody knows beforehand when that is: the times of the bounces follow from the height from which the ball was dropped,
from g and from e, and so do their derivatives, which a fit needs.  ``cf.Event(when=...)`` says what happens, castfit
finds when.  Between two bounces everything is a parabola, so that the answer can be had without castfit as well::

    python examples/bouncing_ball.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import least_squares

import castfit as cf

TRUTH = {"g": 9.81, "e": 0.8}
DROP_HEIGHT = 1.5  # initial height in m
SIGMA = 0.01  # m, of a height read off a picture
TIMES = np.arange(1, 76) / 25  # s

height, speed, g, e = cf.symbols("height speed g e")
model = cf.Model({height: speed, speed: -g}, parameters=[g, e])
bounce = cf.Event(when=height, direction="falling", changes={speed: -e * speed})


def parabolas(times, g, e, dropped):
    """Return the heights by hand: flights of 2 v / g, of which each begins e times as fast as the one before it."""
    start, speed = np.sqrt(2 * dropped / g), e * np.sqrt(2 * g * dropped)
    heights = dropped - g * times**2 / 2
    while start < times[-1]:
        elapsed = times - start
        heights = np.where(elapsed > 0, speed * elapsed - g * elapsed**2 / 2, heights)
        start, speed = start + 2 * speed / g, e * speed
    return heights


# %%
# The simulation is the parabolas, through four bounces.
drop = {"height": DROP_HEIGHT, "speed": 0.0}
simulated = cf.simulate(model, TRUTH, TIMES, initial=drop, events=bounce)["height"]
exact = parabolas(TIMES, **TRUTH, dropped=DROP_HEIGHT)
print(f"largest difference between simulation and parabolas: {np.abs(simulated - exact).max():.1e} m")
assert np.abs(simulated - exact).max() < 1e-6

# %%
# A fit that begins with a ball that bounces much better.  Nor is the height known from which it was dropped.
film = exact + SIGMA * np.random.default_rng(0).standard_normal(TIMES.size)
experiment = cf.Experiment(
    {"height": film},
    time=TIMES,
    start=0.0,
    sigma=SIGMA,
    initial={"height": cf.free(1.2, bounds=(0.1, 5)), "speed": 0.0},
    events=bounce,
)
problem = cf.Problem(
    model, experiment, parameters={"g": cf.Parameter(9.0, bounds=(1, 30)), "e": cf.Parameter(0.95, bounds=(0.05, 0.99))}
)
result = cf.fit(problem)
print(result)
assert result.success, result.message

# %%
# By hand, from the truth on: the same estimates and the same standard errors.
byhand = least_squares(lambda p: (parabolas(TIMES, *p) - film) / SIGMA, [*TRUTH.values(), DROP_HEIGHT], x_scale="jac")
errors = np.sqrt(np.diag(np.linalg.inv(byhand.jac.T @ byhand.jac)))
for name, value, error in zip(("g", "e"), byhand.x, errors, strict=False):
    estimate, spread = result.parameters[name], result.standard_errors[name]
    print(f"{name}: {estimate:.6f} +- {spread:.6f}, by hand {value:.6f} +- {error:.6f}")
    assert np.isclose(estimate, value, rtol=1e-5)
    assert np.isclose(spread, error, rtol=1e-3)
    assert abs(estimate - TRUTH[name]) < 3 * error

# %%
# What makes the fit possible: how the height moves with e.  Each bounce turns the sensitivity round with the speed, and
# lets it jump besides, since the bounce itself moves.  By the parabolas it is a difference of two films.
fine = np.linspace(0, 3, 1501)
fitted = result.sensitivities(fine)["experiment 1"]
slope = fitted.slopes[:, fitted.names.index("height"), list(result.values).index("e")]
best, step = np.array([*result.values.values()]), np.array([0, 1e-6, 0])
difference = (parabolas(fine, *(best + step)) - parabolas(fine, *(best - step))) / 2e-6
print(f"largest difference between sensitivities: {np.abs(slope - difference).max():.1e} m")
assert np.abs(slope - difference).max() < 1e-4

start = cf.simulate(problem, times=fine)["experiment 1"]["height"]
_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
left.plot(fine, start, color="0.7", label="start of the fit")
left.plot(fine, fitted.values[:, fitted.names.index("height")], label="fit")
left.plot(TIMES, film, "k.", markersize=4, label="film")
left.set(xlabel="time [s]", ylabel="height [m]")
left.legend()
right.plot(fine, slope)
right.set(xlabel="time [s]", ylabel="d height / d e [m]")
plt.show()
