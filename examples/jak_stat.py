"""JAK-STAT: measured data, a measured input, a delay
==================================================

STAT5 is phosphorylated at the receptor, pairs up, enters the nucleus, stays there for a while and comes back::

    x1' = -k1 x1 u + k2 x3(t - tau)     STAT5
    x2' =  k1 x1 u - x2^2               activated STAT5
    x3' = -k2 x3 + x2^2                 pairs

(Swameye et al. 2003, in the scaling of Peifer and Timmer 2007).  The activity u of the receptor was measured and is
an input; of the states only two sums were measured, each value with an error of its own.
"""

import castfit as cf
from castfit import problems

# %%
# The library has model, data and what is known of the optimum.
benchmark = problems.load("stat5")
print(benchmark.description)
print(benchmark.problem)

# %%
# A fit from the problem's own guess, which is off by a factor of about two:
result = cf.fit(benchmark.problem)
print(result)
figure = result.plot()
assert result.success
assert benchmark.reference.is_reached(result.chi2)

# %%
# The three transcriptions agree, and so does IPOPT.
for method in ("single", "multiple", "collocation"):
    for solver in ("gauss-newton", "ipopt"):
        other = cf.fit(benchmark.problem, method, solver)
        print(f"{method:12} {solver:13} chi2 = {other.chi2:.6f}   {other.time:.2f} s")
        assert abs(other.chi2 / result.chi2 - 1) < 1e-6

# %%
# Do the data speak for a delay at all?  A delay of 0.1 minutes is none.
none = {**benchmark.problem.parameters, "tau": cf.Parameter(0.1, fixed=True)}
without = cf.fit(benchmark.problem.replace(parameters=none))
print(f"AIC with the delay {result.aic:.1f}, without {without.aic:.1f}")
assert result.aic < without.aic - 10
