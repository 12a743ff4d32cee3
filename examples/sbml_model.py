"""A fermenter from Antimony
=========================

A model of reactions, in the language Antimony or in SBML: a growing volume, a pump that is switched off, and a fit.

Models of biology are kept in SBML; Antimony is the same in words.  Bacteria X grow on a substrate S in a fermenter that
is fed until it is full.  What is written down are reactions, a rule for the volume, and an event; concentrations,
amounts and dilution follow from the rules of SBML.
"""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

import castfit as cf

# %%
# The model.  Species mean concentrations; a rate law is an amount per time, so it contains the volume.  A file is read
# in the same way, by ``cf.sbml.load("fermenter.xml")``.

FERMENTER = """
model fermenter
  compartment V = 1
  species S in V, X in V
  V' = F
  growth: 2 S -> X; mu * S / (K + S) * X * V
  feed:   -> S;     F * 20
  at V >= full: F = 0
  S = 10; X = 0.2; F = 0.05; full = 1.4
  mu = 0.3; K = 2
end
"""
loaded = cf.sbml.load_antimony(FERMENTER)
print(loaded)

# %%
# Where a volume changes the states are amounts, and concentrations are outputs.  The pump's rate F is a state as well,
# since an event changes it.  Everything has the name that it has in the file.

print(loaded.model.states, loaded.events)
print(cf.simulate(loaded, {"mu": 0.5}, times=[0, 4, 8, 12])["X"].round(3))
assert loaded.model.states == ("V", "S_amount", "X_amount", "F")

# %%
# Data, as SciPy would make them, amounts by hand: two cultures that begin with different substrate.

TRUTH = {"mu": 0.45, "K": 3.5}
TIMES = np.arange(1.0, 17.0)


def culture(s, mu, K):
    """Return the concentrations of substrate and bacteria at TIMES; the fermenter is full at t = 8."""

    def rates(pump):
        def derivatives(_, y):
            V, S, X = y
            growth = mu * S / (K * V + S) * X
            return [pump, 20 * pump - 2 * growth, growth]

        return derivatives

    fed_phase = solve_ivp(rates(0.05), (0, 8), [1, s, 0.2], t_eval=TIMES[:8], rtol=1e-10, atol=1e-12)
    batch_phase = solve_ivp(rates(0.0), (8, 16), fed_phase.y[:, -1], t_eval=TIMES[8:], rtol=1e-10, atol=1e-12)
    V, S, X = np.hstack([fed_phase.y, batch_phase.y])
    return S / V, X / V


rng = np.random.default_rng(3)
experiments = []
for s in (10.0, 4.0):
    S, X = (c + 0.05 * rng.standard_normal(c.size) for c in culture(s, **TRUTH))
    start = loaded.start({"S": s})  # initial values that differ from the file's, as its identifiers mean them
    experiments.append(
        cf.Experiment(
            {"S": S, "X": X},
            time=TIMES,
            sigma=0.05,
            initial=start.initial,
            events=loaded.events,
            name=f"{s:g} g/L",
        )
    )

# %%
# The fit: ``loaded.fixed`` are all parameters at the file's values, of which two are estimated.  An event that states
# trigger needs single shooting.

estimated = {name: cf.Parameter(loaded.parameters[name], lower=0.01, scale="log") for name in TRUTH}
problem = cf.Problem(loaded.model, experiments, parameters={**loaded.fixed, **estimated})
result = cf.fit(problem, "single")
print(result)
figure = result.plot()
assert result.success
for name, value in TRUTH.items():
    assert abs(result.parameters[name] - value) < 3 * result.standard_errors[name]

# %%
# The simulation is SciPy's.

exact = cf.simulate(problem, TRUTH)["10 g/L"]
np.testing.assert_allclose([exact["S"], exact["X"]], culture(10.0, **TRUTH), atol=1e-5)

# %%
# What cannot be expressed is refused, with the names of everything that is missing.

try:
    cf.sbml.load_antimony("A -> B; k * delay(A, 3); A = 1; B = 0; k = 1; at 2 after B > 0.5: A = 1")
except cf.InputError as error:
    print(error)
