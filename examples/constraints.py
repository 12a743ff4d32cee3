"""Constraints
===========

What is known for certain is said as a constraint: rates that are equal, a total that nothing leaves, a concentration
that never exceeds a limit.  A constraint sharpens the estimates that it touches, and it has a price: by how much chi2
would fall if it were relaxed.  A large price says that data and constraint disagree.
"""

# %%
# A substance is taken up from the gut, passes into the blood, is bound and released by tissue, and leaves with urine:
# three rates into and out of the blood.

import numpy as np

import castfit as cf

gut, blood, tissue = cf.symbols("gut blood tissue")
uptake, bind, release, leave = cf.symbols("uptake bind release leave")
model = cf.Model(
    {
        gut: -uptake * gut,
        blood: uptake * gut - (bind + leave) * blood + release * tissue,
        tissue: bind * blood - release * tissue,
    },
    parameters=[uptake, bind, release, leave],
    outputs={"inside": gut + blood + tissue},
)

# %%
# Data: blood alone, at twelve times, with errors of 0.02.

truth = {"uptake": 1.2, "bind": 0.5, "release": 0.5, "leave": 0.15}
times = np.array([0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12])
start = {"gut": 1.0, "blood": 0.0, "tissue": 0.0}
path = cf.simulate(model, truth, times=times, initial=start)
rng = np.random.default_rng(4)
measured = path["blood"] + 0.02 * rng.standard_normal(times.size)
experiment = cf.Experiment({"blood": measured}, time=times, sigma=0.02, start=0.0, initial=start, name="oral")


def problem(*constraints):
    """Return the problem with these constraints."""
    guesses = {name: cf.Parameter(0.4, lower=0) for name in truth}
    return cf.Problem(model, experiment, parameters=guesses, constraints=constraints)


free = cf.fit(problem())
print(free)

# %%
# Relations of parameters
# -----------------------
# Equilibrium measurements say that as much is bound as is released.  Comparisons of symbols are constraints; `==` makes
# an equation.  The estimate of either rate becomes surer, and one more degree of freedom is left for the noise.

equal = cf.fit(problem(bind == release))
print(equal.constraints)
assert abs(equal.values["bind"] - equal.values["release"]) < 1e-9
assert equal.standard_errors["release"] < free.standard_errors["release"]
assert equal.dof == free.dof + 1

# %%
# States at a time, and always
# ----------------------------
# `cf.at` holds something at a time, measured or not, also behind the last measurement; `cf.along` always.  A second
# laboratory found no less than 0.19 in the body after a day; an assay excludes more than 0.52 in the blood at any time.
# Between the times at which a constraint is held the integrated model is looked at, and times are added until it is
# kept everywhere.

late = cf.at(24.0, cf.quantity("inside") >= 0.19)
limit = cf.along(blood <= 0.52)
constrained = cf.fit(problem(bind == release, late))
print(constrained)
figure = constrained.plot()
assert cf.simulate(constrained.problem, constrained.values, times=[24.0])["oral"]["inside"][0] > 0.19 - 1e-5
capped = cf.fit(problem(bind == release, limit))
fine = cf.simulate(capped.problem, capped.values, times=np.linspace(0, 12, 2401))["oral"]
assert fine["blood"].max() < 0.52 + 1e-5

# %%
# What a constraint costs
# -----------------------
# The multiplier of a constraint is the slope of chi2 by its bound: that of any solver, and of finite differences.

row = capped.constraints["blood <= 0.52 along"]
print(row.sentence)
neighbouring_chi2 = [cf.fit(problem(bind == release, cf.along(blood <= 0.52 + h))).chi2 for h in (1e-4, -1e-4)]
slope = (neighbouring_chi2[0] - neighbouring_chi2[1]) / 2e-4
print(f"multiplier {row.multiplier:.4g}, finite differences {slope:.4g}")
assert abs(row.multiplier - slope) < 0.02 * abs(slope)
ipopt = cf.fit(problem(bind == release, limit), "collocation/ipopt")
assert abs(ipopt.constraints[row.name].multiplier - row.multiplier) < 1e-3 * abs(row.multiplier)

# %%
# Monotony and conservation
# -------------------------
# Nothing is made in the body, so what is inside never grows: that the model knows by itself, and the constraint costs
# nothing.  To say that nothing leaves is another matter: castfit finds that this is an equation of parameters.

monotone = cf.fit(problem(cf.monotone("inside", increasing=False)))
assert not monotone.constraints.active
closed = cf.fit(problem(cf.conserved("inside")))
print(closed.constraints)
assert closed.values["leave"] < 1e-9
assert closed.chi2 > free.chi2

# %%
# What cannot be
# --------------
# Constraints that contradict each other are found before anything is solved.

try:
    problem(bind + leave <= 0.3, bind >= 0.2, leave >= 0.2)
except cf.InputError as error:
    print(error)
else:
    raise AssertionError("these contradict each other")
