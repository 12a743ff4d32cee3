"""A PEtab problem, from its files to a report
===========================================

PEtab is a format in which models from systems biology are published together with their data: the model in SBML, and
tables that say what was measured under which conditions, with which errors, and which parameters are unknown.  A few
dozen published problems exist in it, and many tools read it.

Here a small one is written to a folder: an enzyme that makes a product, at two doses of the substrate, seen through a
detector whose scale nobody knows.
"""

from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import castfit as cf

folder = Path(mkdtemp())

# %%
# The model.  Antimony is a short way to write it; what is saved is SBML.
model = cf.sbml.load_antimony("""
    compartment flask = 1
    species S in flask, P in flask
    S -> P; flask * vmax * S / (K + S)
    S = dose; P = 0
    dose = 1; vmax = 1; K = 1
""")
_ = (folder / "model.xml").write_text(model.sbml, encoding="utf-8")


# %%
# The tables.  The observable has a placeholder, ``observableParameter1_light``, for which each measurement names the
# parameter that takes its place; its errors are normal on a logarithmic scale, of a standard deviation to be estimated.
def table(name, head, *rows):
    """Write a table: a head and rows, cells separated by tabs."""
    (folder / name).write_text(
        "\n".join("\t".join(map(str, row)) for row in (head.split(), *rows)) + "\n", encoding="utf-8"
    )


table(
    "parameters.tsv",
    "parameterId parameterScale lowerBound upperBound nominalValue estimate",
    ("vmax", "log10", 1e-3, 1e3, 1.0, 1),
    ("K", "log10", 1e-3, 1e3, 1.0, 1),
    ("gain", "log10", 1e-3, 1e3, 1.0, 1),
    ("noise", "log10", 1e-3, 1e1, 0.1, 1),
)
table("conditions.tsv", "conditionId dose", ("low", 1.0), ("high", 6.0))
table(
    "observables.tsv",
    "observableId observableFormula noiseFormula observableTransformation noiseDistribution",
    ("light", "observableParameter1_light * P", "noise", "log10", "normal"),
)

# %%
# The data are made here, with known values, so that the answer can be judged.
TRUE = {"vmax": 0.8, "K": 2.0, "gain": 3.0, "noise": 0.02}
times = np.array([0.5, 1, 2, 3, 5, 8, 12])
rng = np.random.default_rng(11)
rows = []
for name, dose in (("low", 1.0), ("high", 6.0)):
    product = cf.simulate(model, {"dose": dose, "vmax": TRUE["vmax"], "K": TRUE["K"]}, times=times)["P"]
    light = TRUE["gain"] * product * 10 ** (TRUE["noise"] * rng.standard_normal(times.size))
    rows += [("light", name, f"{value:.5g}", t, "gain") for t, value in zip(times, light, strict=True)]
table("measurements.tsv", "observableId simulationConditionId measurement time observableParameters", *rows)

_ = (folder / "problem.yaml").write_text(
    """
format_version: 1
parameter_file: parameters.tsv
problems:
  - sbml_files: [model.xml]
    condition_files: [conditions.tsv]
    observable_files: [observables.tsv]
    measurement_files: [measurements.tsv]
""",
    encoding="utf-8",
)

# %%
# One line reads all of it.  What comes back is an ordinary problem, with the nominal values as its guesses.
problem = cf.petab.load(folder / "problem.yaml")
print(problem)

# %%
# So everything that works for problems works here.
result = cf.fit(problem, "single")
print(result)
figure = result.plot()

# %%
# The objective as PEtab defines it, with all constants, for comparison with other tools:
print(f"negative log likelihood: {cf.petab.negative_log_likelihood(result):.4f}")

# %%
# The estimates as a PEtab table, the predictions as another one, and the page that tells the story:
cf.petab.save_parameters(result, folder / "estimates.tsv", like=folder / "problem.yaml")
cf.petab.save_simulations(folder / "simulations.tsv", folder / "problem.yaml", result)
result.report(folder / "report.html")
print((folder / "estimates.tsv").read_text(encoding="utf-8"))

# %%
# The true values are within the intervals, and the table holds the estimates.
for name, (low, high) in result.confidence_intervals(0.99).items():
    assert low <= TRUE[name] <= high, (name, low, high)
assert f"{result.parameters['vmax']!r}" in (folder / "estimates.tsv").read_text(encoding="utf-8")
