"""A first fit
===========

Two rate constants of 2 NO + O2 <=> 2 NO2 from 14 measured pressures in mm Hg (Bellman et al. 1967)."""

import castfit as cf

times = [1, 2, 3, 4, 5, 6, 7, 9, 11, 14, 19, 24, 29, 39]
values = [1.4, 6.3, 10.5, 14.2, 17.6, 21.4, 23.0, 27.0, 30.5, 34.4, 38.8, 41.6, 43.5, 45.3]

z, forward, backward = cf.symbols("z forward backward")
model = cf.Model({z: forward * (126.2 - z) * (91.9 - z) ** 2 - backward * z**2}, parameters=[forward, backward])
experiment = cf.Experiment({"z": values}, time=times, initial={"z": 0})
problem = cf.Problem(model, experiment, parameters={"forward": 1e-6, "backward": 1e-4})

result = cf.fit(problem)
print(result)
result.plot("fit.png")

assert result.success
assert abs(result.parameters["forward"] - 4.577e-6) < 0.01 * result.standard_errors["forward"]
