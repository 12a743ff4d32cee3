"""From a table to a report
========================

A drug is swallowed, absorbed from the gut into the blood, and excreted::

    gut'   = -ka gut
    blood' =  ka gut - ke blood        concentration = blood / V

The concentrations of two patients stand in a CSV file, as a laboratory sends it.  At the end there is one page that can
be sent on: equations, data, estimates and how sure they are, and how to repeat it.
"""

from pathlib import Path

import numpy as np
import pandas as pd

import castfit as cf

# %%
# The file that the laboratory sent.  Here it is made, with known rates and errors of 5 %.
TRUE = {"ka": 1.4, "ke": 0.25, "V": 12.0}
DOSES = {"Anna": 120.0, "Bert": 240.0}  # mg


def concentration(t, dose, ka, ke, V):
    """Return Bateman's function."""
    return dose / V * ka / (ka - ke) * (np.exp(-ke * t) - np.exp(-ka * t))


rng = np.random.default_rng(7)
hours = np.array([0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12])
rows = [
    (patient, t, concentration(t, dose, **TRUE) * (1 + 0.05 * rng.standard_normal()))
    for patient, dose in DOSES.items()
    for t in hours
]
file = Path("concentrations.csv")
pd.DataFrame(rows, columns=["patient", "hours", "mg_per_l"]).to_csv(file, index=False, float_format="%.3f")

# %%
# Read the table: one experiment for each patient.
table = pd.read_csv(file)
experiments = [
    cf.Experiment(
        {"concentration": rows["mg_per_l"].to_numpy()},
        time=rows["hours"].to_numpy(),
        start=0,
        sigma=cf.relative(0.05),
        initial={"gut": DOSES[str(patient)], "blood": 0},
        name=str(patient),
    )
    for patient, rows in table.groupby("patient")
]

# %%
# The model, and what is asked.  Units are labels of plots and tables.
gut, blood = cf.symbols("gut blood")
ka, ke, V = cf.symbols("ka ke V")
model = cf.Model(
    {gut: -ka * gut, blood: ka * gut - ke * blood}, parameters=[ka, ke, V], outputs={"concentration": blood / V}
)
problem = cf.Problem(
    model,
    experiments,
    parameters={name: cf.Parameter(guess, bounds=(1e-3, 1e3), scale="log") for name, guess in
                {"ka": 2.0, "ke": 0.1, "V": 10.0}.items()},
    units={"time": "h", "concentration": "mg/L", "gut": "mg", "blood": "mg", "ka": "1/h", "ke": "1/h", "V": "L"},
)  # fmt: skip
result = cf.fit(problem)
print(result)

# %%
# Every estimate knows how well it is known; as a number it is like any other.
print(repr(result["ke"]))
half_life = np.log(2) / result["ke"]
print(f"half-life {half_life:.2f} h")

# %%
# The picture, with the band in which the curve lies:
figure = result.plot(bands="linear")

# %%
# The page: open it in any browser, send it, print it.  It needs no network and no castfit.
page = result.report(
    "report.html",
    title="A drug in two patients",
    notes="Concentrations in plasma after a single dose, 120 mg (Anna) and 240 mg (Bert).",
)
print(f"{page}: {page.stat().st_size / 1000:.0f} kB")

assert result.success
assert all(one.interval[0] < TRUE[name] < one.interval[1] for name in TRUE for one in [result[name]])
assert page.stat().st_size < 2_000_000
