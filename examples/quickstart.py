"""A first fit
===========

Theophylline in the serum of one subject after an oral dose: how fast it is absorbed and eliminated, from ten samples.

Hours after the dose of 4.53 mg per kg, and mg/L; subject 3 of the data of R. Upton, in Boeckmann, Sheiner and Beal
(1994).  The gut is not seen, the volume V is unknown, and so is the size of the errors."""

import castfit as cf

hours = [0.27, 0.58, 1.02, 2.02, 3.62, 5.08, 7.07, 9, 12.15, 24.17]
measured = [4.4, 6.9, 8.2, 7.8, 7.5, 6.2, 5.3, 4.9, 3.7, 1.05]

gut, blood, ka, ke, V = cf.symbols("gut blood ka ke V")
flows = {gut: -ka * gut, blood: ka * gut - ke * blood}
model = cf.Model(flows, parameters=[ka, ke, V], outputs={"level": blood / V})
taken = {"gut": 4.53, "blood": 0}
dose = cf.Experiment({"level": measured}, time=hours, initial=taken)
problem = cf.Problem(model, dose, parameters={"ka": 1, "ke": 0.1, "V": 0.5})
result = cf.fit(problem)
print(result)
result.plot("fit.png", bands="linear", noise=True)

assert result.success
assert result.goodness.described
assert abs(result.parameters["ka"] - 2.454) < 0.01 * result.standard_errors["ka"]
