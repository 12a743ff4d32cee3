"""A battery, logged each second
=============================

A battery, logged each second: a current that steps, and a voltage that steps with it.

An equivalent circuit: charge drains, a resistance acts at once, a resistance beside a capacitor within a minute::

    soc' = -I / (3600 Q)         v' = I / C - v / (R1 C)         U = 3.2 + 0.9 soc - R0 I - v

The log has a row per second with the current of that moment and the voltage that it makes.  The current holds until
the next row::

    cf.Input.piecewise_constant(time, current, measured="after")

- What misleads, first: that a value at the time of a jump belongs to the input before it, which is so unless it is
  said otherwise.  Then every voltage at a step is off by the whole step; the residuals follow the jumps, and
  `result.diagnostics` says so, and what to write.
- What misleads, second: ``cf.Input.linear``, which draws ramps through the steps.  At the samples it has the right
  values, but what flows between them is wrong: the data agree with the model (chi2/n = 0.96), and R0 is off by six of
  its standard errors.  Nothing but knowing how the log was made helps::

    python examples/battery.py
"""

from __future__ import annotations

import numpy as np

import castfit as cf

TRUTH = {"R0": 0.030, "R1": 0.020, "C": 1500.0, "Q": 0.9}
GUESS = {"R0": 0.05, "R1": 0.05, "C": 800.0, "Q": 1.2}
SIGMA = 0.002  # V

soc, v, current, R0, R1, C, Q = cf.symbols("soc v I R0 R1 C Q")
model = cf.Model(
    {soc: -current / (3600.0 * Q), v: current / C - v / (R1 * C)},
    parameters=[R0, R1, C, Q],
    inputs=[current],
    outputs={"U": 3.2 + 0.9 * soc - R0 * current - v},
    initial={soc: 0.9, v: 0.0},
)

rng = np.random.default_rng(4)
TIME = np.arange(301.0)  # s
LOGGED = np.repeat(rng.choice([-1.0, 0.0, 1.0, 2.0, 4.0], 61), 5)[:301]  # A, a drive that changes every five seconds
log = cf.Input.piecewise_constant(TIME, LOGGED, measured="after")
U = cf.simulate(model, TRUTH, TIME, inputs={"I": log})["U"] + SIGMA * rng.standard_normal(TIME.size)


def fitted(signal: cf.Input) -> cf.Result:
    """Fit with a current that is read from the log in one way."""
    experiment = cf.Experiment({"U": U}, time=TIME, sigma=SIGMA, inputs={"I": signal})
    parameters = {n: cf.Parameter(guess, scale="log") for n, guess in GUESS.items()}
    return cf.fit(cf.Problem(model, experiment, parameters=parameters), "single")


def difference_from_truth(result: cf.Result) -> float:
    """Return how many standard errors the worst estimate is away from the truth."""
    return max(abs(result[n].value - value) / result[n].standard_error for n, value in TRUTH.items())


uncorrected = fitted(cf.Input.piecewise_constant(TIME, LOGGED))
print("Measured before the jumps:", *uncorrected.diagnostics.messages, sep="\n")
ramps = fitted(cf.Input.linear(TIME, LOGGED))
result = fitted(log)
print("\nMeasured after them\n\n", result, "\n", sep="")
for name, value in TRUTH.items():
    estimate = result[name]
    print(
        f"{name}: true {value}, after {estimate.value:.5g} ± {estimate.standard_error:.2g}, "
        f"linear {ramps[name].value:.5g}"
    )
for label, compared in {"before": uncorrected, "after": result, "linear": ramps}.items():
    print(
        f"{label}: chi2/n = {compared.chi2 / TIME.size:.3g}, "
        f"{difference_from_truth(compared):.1f} standard errors from the truth"
    )

assert result.success
assert difference_from_truth(result) < 2
assert difference_from_truth(uncorrected) > 5
assert difference_from_truth(ramps) > 3
assert ramps.chi2 / TIME.size < 1.1
assert "measured='after'" in uncorrected.diagnostics.at_jumps
assert result.diagnostics.at_jumps == ""
result.plot()
