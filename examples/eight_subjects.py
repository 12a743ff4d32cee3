"""Eight subjects and a sample at zero
====================================

Eight subjects and a sample at zero: a dose by mouth, a lag time, and errors in proportion to the concentration.

Blood is taken just before the tablet as well, as protocols have it, and the laboratory reports zero, or a little more
than that::

    gut' = -ka gut        c' = ka gut / 30 - ke c        320 mg into the gut at the time lag

- What misleads: a sigma in proportion to the prediction.  Before the lag the prediction is exactly zero, so is sigma:
  that sample has no probability, whatever the parameters are, and no search can begin.  The message names it.
- What helps: to leave the sample out, as it says nothing that the model does not know; and a floor of sigma, which the
  laboratory's limit of quantification gives, so that no other sample before an individual's lag does the same::

    python examples/eight_subjects.py
"""

from __future__ import annotations

import casadi as ca
import numpy as np

import castfit as cf

TRUTH = {"ka": 1.5, "ke": 0.09, "lag": 0.3, "share": 0.1, "omega(ka)": 0.3, "omega(ke)": 0.2}
TIMES = np.array([0, 0.25, 0.5, 1, 2, 4, 7, 9, 12, 24])  # h
SIGMA_FLOOR = 0.05  # constant part of the standard deviation in mg/L

gut, c, ka, ke, lag, share = cf.symbols("gut c ka ke lag share")
model = cf.Model({gut: -ka * gut, c: ka * gut / 30 - ke * c}, parameters=[ka, ke, lag, share], initial={gut: 0, c: 0})
tablet = cf.Doses(into=gut, amount=320, times=0, lag=lag)
rng = np.random.default_rng(2)


def subject() -> np.ndarray:
    """Simulate somebody's concentrations."""
    rates = {n: TRUTH[n] * np.exp(TRUTH[f"omega({n})"] * rng.standard_normal()) for n in ("ka", "ke")}
    values = {**rates, "lag": TRUTH["lag"], "share": TRUTH["share"]}
    exact = cf.simulate(model, values, TIMES, events=tablet)["c"]
    return exact + np.hypot(SIGMA_FLOOR, TRUTH["share"] * exact) * rng.standard_normal(TIMES.size)


measured = [subject() for _ in range(8)]


def fitted(sigma: ca.SX, start_index: int) -> cf.MixedEffectsResult:
    """Fit the population from a sample on, with a sigma."""
    experiments = [
        cf.Experiment({"c": y[start_index:]}, TIMES[start_index:], events=tablet, noise={"c": cf.Gaussian(sigma=sigma)})
        for y in measured
    ]
    parameters = {
        "ka": cf.Parameter(1.0, scale="log", local=True),
        "ke": cf.Parameter(0.1, scale="log", local=True),
        "lag": cf.Parameter(0.2, bounds=(0, 1)),
        "share": cf.Parameter(0.2, bounds=(0.001, 1)),
    }
    problem, individual = cf.Problem(model, experiments, parameters=parameters), cf.Individual(omega=0.4)
    return cf.mixed_effects(problem, cf.Population({"ka": individual, "ke": individual}))


misled = fitted(share * c, 0)
print("In proportion, with the sample at zero\n\n", misled.message, "\n", sep="")
result = fitted(ca.sqrt(SIGMA_FLOOR**2 + (share * c) ** 2), 1)
print("With a floor, without that sample\n\n", result, "\n", sep="")

for name, value in TRUTH.items():
    estimate, error = result.values[name], result.standard_errors[name]
    print(f"{name}: true {value}, found {estimate:.3g} ± {error:.2g}")
    assert name.startswith("omega") or abs(estimate - value) < 2 * error  # eight subjects tell little of a variance
assert not misled.success
assert "at t = 0 sigma of c is 0, where c is 0" in misled.message
assert result.success
result.plot()
