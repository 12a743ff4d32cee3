"""A first fit
===========

Absorption and elimination of theophylline in one subject after an oral dose, estimated from ten serum samples.

Times are in hours after a dose of 4.53 mg/kg, levels in mg/L: subject 3 of R. Upton's data, in Boeckmann, Sheiner and
Beal (1994).  The amount in the gut is not measured, and neither the volume V nor the measurement error is known."""

import castfit as cf

hours = [0.27, 0.58, 1.02, 2.02, 3.62, 5.08, 7.07, 9, 12.15, 24.17]
level = [4.4, 6.9, 8.2, 7.8, 7.5, 6.2, 5.3, 4.9, 3.7, 1.05]

gut, blood, ka, ke, V = cf.symbols("gut blood ka ke V")
rates = {gut: -ka * gut, blood: ka * gut - ke * blood}
model = cf.Model(rates, parameters=[ka, ke, V], outputs={"level": blood / V})
dose = cf.Experiment({"level": level}, time=hours, initial={"gut": 4.53, "blood": 0})
problem = cf.Problem(model, dose, parameters={"ka": 1, "ke": 0.1, "V": 0.5})
result = cf.fit(problem)
print(result)
result.plot("fit.png", bands="linear", noise=True)

assert result.success
assert result.goodness.described
assert abs(result.parameters["ka"] - 2.454) < 0.01 * result.standard_errors["ka"]
