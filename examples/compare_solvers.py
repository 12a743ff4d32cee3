"""Gauss-Newton against IPOPT
==========================

Gauss-Newton against IPOPT: the same problems, transcriptions and starts, side by side.

Both solve the same staged least-squares problem.  IPOPT sees it as a sparse nonlinear program; Gauss-Newton condenses
it to a small dense one, and uses that it is a least-squares problem.  Run it to repeat the README's table; times are
the medians of three fits, statistics included.
"""

import statistics

import matplotlib.pyplot as plt

import castfit as cf
from castfit import problems

PROBLEMS = ("alpha_pinene", "stat5", "lotka_volterra", "bellman", "gasoil", "methanol")
TRANSCRIPTIONS = {
    "single": cf.SingleShooting(),
    "multiple": cf.MultipleShooting(10),
    "collocation": cf.Collocation(),
}


def median_fit(problem: cf.Problem, transcription: object, solver: object) -> tuple[cf.Result, float]:
    """Fit three times; return the result and the median time in seconds."""
    results = [cf.fit(problem, transcription, solver, max_time=60) for _ in range(3)]
    return results[-1], statistics.median(result.time for result in results)


ratios: dict[str, list[float]] = {}
print(f"{'problem':16}{'transcription':14}{'Gauss-Newton':>20}{'IPOPT':>20}{'ratio':>8}{'objectives differ by':>22}")
for name in PROBLEMS:
    benchmark = problems.load(name)
    for label, transcription in TRANSCRIPTIONS.items():
        gauss_newton_fit, seconds = median_fit(benchmark.problem, transcription, cf.GaussNewton())
        ipopt_fit, their_seconds = median_fit(benchmark.problem, transcription, cf.Ipopt())
        difference = abs(gauss_newton_fit.chi2 / ipopt_fit.chi2 - 1)
        left = f"{gauss_newton_fit.iterations} it. {1e3 * seconds:.0f} ms"
        right = f"{ipopt_fit.iterations} it. {1e3 * their_seconds:.0f} ms"
        print(f"{name:16}{label:14}{left:>20}{right:>20}{their_seconds / seconds:8.1f}{difference:22.1e}")
        ratios.setdefault(label, []).append(their_seconds / seconds)
        assert gauss_newton_fit.success
        assert abs(gauss_newton_fit.chi2 / benchmark.reference.objective - 1) < 1e-5
        assert difference < 1e-6 or gauss_newton_fit.chi2 < ipopt_fit.chi2

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for label, values in ratios.items():
    axes.semilogy(PROBLEMS, values, "o", label=label)
axes.axhline(1.0, color="0.7", zorder=0)
axes.set_ylabel("time of IPOPT / time of Gauss-Newton")
axes.legend()
