"""Oral doses of eight subjects
============================

Oral doses of eight subjects: absorption after a lag time, two compartments, doses every twelve hours.

A drug is swallowed; after a lag time the fraction F of it is absorbed into the blood, exchanges with tissue, and is
eliminated::

    gut'     = -ka gut                                     + F dose at 0 + tlag, 12 + tlag, ...
    blood'   =  ka gut - (k10 + k12) blood + k21 tissue
    tissue'  =  k12 blood - k21 tissue

The lag time is a parameter like any other: each dose is an event whose time is estimated, with exact derivatives.  The
equations are linear, so that everything is known in closed form, a sum of exponentials: the simulation agrees with it,
and estimates by every transcription agree with those that SciPy finds for the closed form::

    python examples/oral_doses.py
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import least_squares

import castfit as cf

TRUTH = {"ka": 1.2, "k10": 0.15, "k12": 0.3, "k21": 0.25, "F": 0.7, "tlag": 0.4}
DOSES = [100, 100, 150, 150, 200, 200, 300, 300]  # mg, twice, twelve hours apart
TIMES = np.array([0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 12, 12.5, 13, 14, 16, 20, 24])  # h
SIGMA = 0.05  # mg/L
BLOOD_VOLUME = 10.0  # volume of distribution in L

gut, blood, tissue = cf.symbols("gut blood tissue")
ka, k10, k12, k21, F, tlag = cf.symbols("ka k10 k12 k21 F tlag")


def closed_form(times, dose, ka, k10, k12, k21, F, tlag):
    """Return the concentration in the blood after two doses (Gibaldi and Perrier 1982, appendix B)."""
    total = k10 + k12 + k21
    root = np.sqrt(total**2 - 4 * k10 * k21)
    rates = np.array([ka, (total + root) / 2, (total - root) / 2])
    rate_differences = rates[:, None] - rates + np.eye(3)  # the diagonal must not count
    weights = (k21 - rates) / -np.prod(np.where(np.eye(3, dtype=bool), -1.0, -rate_differences), axis=1)
    amount = 0.0
    for dose_time in (0.0, 12.0):
        elapsed = times - dose_time - tlag
        amount += (elapsed > 0) * F * dose * ka * (weights @ np.exp(-np.outer(rates, np.maximum(elapsed, 0.0))))
    return amount / BLOOD_VOLUME


model = cf.Model(
    {gut: -ka * gut, blood: ka * gut - (k10 + k12) * blood + k21 * tissue, tissue: k12 * blood - k21 * tissue},
    parameters=[ka, k10, k12, k21],
    outputs={"concentration": blood / BLOOD_VOLUME},
)
rng = np.random.default_rng(0)
measured = [closed_form(TIMES, dose, **TRUTH) + SIGMA * rng.standard_normal(TIMES.size) for dose in DOSES]
subjects = [
    cf.Experiment(
        {"concentration": values},
        time=TIMES,
        sigma=SIGMA,
        initial={"gut": 0, "blood": 0, "tissue": 0},
        events=[cf.Doses(into=gut, amount=dose, times=0, every=12, count=2, lag=tlag, bioavailability=F)],
        name=f"subject {i + 1}",
    )
    for i, (values, dose) in enumerate(zip(measured, DOSES, strict=True))
]
guess = {"ka": 0.8, "k10": 0.3, "k12": 0.2, "k21": 0.4, "F": 0.5, "tlag": 0.2}
problem = cf.Problem(
    model,
    subjects,
    parameters={
        **{name: cf.Parameter(guess[name], scale="log") for name in ("ka", "k10", "k12", "k21")},
        "F": cf.Parameter(guess["F"], bounds=(0, 1)),
        "tlag": cf.Parameter(guess["tlag"], bounds=(0, 2)),
    },
)

# 1. The simulation is the closed form.
fine = np.linspace(0, 24, 241)
tight = cf.IntegratorOptions(relative_tolerance=1e-11, absolute_tolerance=1e-13)
simulated = cf.simulate(problem, TRUTH, fine, integrator=tight)
worst = max(
    np.abs(simulated[s.name]["concentration"] - closed_form(fine, dose, **TRUTH)).max()
    for s, dose in zip(subjects, DOSES, strict=True)
)
print(f"largest difference between simulation and closed form: {worst:.1e} mg/L")
assert worst < 1e-8

# 2. The estimates are those of the closed form.
names = list(guess)


def residuals(p):
    """Return the residuals of all subjects, by the closed form."""
    return np.concatenate(
        [
            (closed_form(TIMES, d, **dict(zip(names, p, strict=True))) - y) / SIGMA
            for d, y in zip(DOSES, measured, strict=True)
        ]
    )


start = list(TRUTH.values())
exact = least_squares(residuals, start, jac="3-point", x_scale=start, xtol=1e-15, ftol=1e-15, gtol=1e-12)
print(f"\n{'':40}" + "".join(f"{name:>11}" for name in names))
print(f"{'closed form, scipy':40}" + "".join(f"{value:11.7f}" for value in exact.x))
solver = cf.GaussNewton(tolerance=1e-16)
for transcription in (
    cf.SingleShooting(tight),
    cf.MultipleShooting(4, integrator=tight),
    cf.Collocation(tolerance=1e-10),
):
    result = cf.fit(problem, transcription, solver)
    assert result.success, result.message
    estimates = np.array([result.parameters[name] for name in names])
    print(f"{f'{result.transcription}, {result.solver}'[:39]:40}" + "".join(f"{value:11.7f}" for value in estimates))
    np.testing.assert_allclose(estimates, exact.x, rtol=1e-6)

# 3. What the data say about the lag time.
figure = result.plot()
error = result.standard_errors["tlag"]
print(f"\nlag time {60 * result.parameters['tlag']:.1f} +- {60 * error:.1f} min (true: {60 * TRUTH['tlag']:.0f} min)")
assert abs(result.parameters["tlag"] - TRUTH["tlag"]) < 3 * error
