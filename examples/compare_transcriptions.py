"""Which transcription finds the parameters?
=========================================

Which transcription finds the parameters, and how fast?  Three tables of a paper, told again with fewer starts::

    python compare_transcriptions.py
    python compare_transcriptions.py --starts 100 --workers 2 --out pictures      (the whole tables, and their figures)

Michalik, Hannemann and Marquardt ("Incremental single shooting", preprint AICES-2009-8) estimate parameters from random
starts, and count which of them end at the global optimum.  ``castfit bench iss-table1`` and so on repeat their tables
to the letter; here every table is one call of `castfit.compare`, which any problem can have.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import castfit as cf
from castfit.problems import Benchmark, load


def plain_single_shooting(problem: cf.Problem, *, start: dict, max_time: float) -> cf.Result:
    """Fit as in textbooks, without any rescue; a comparison takes such a function as it takes a name."""
    solver = cf.GaussNewton(homotopy="never")
    return cf.fit(problem, cf.SingleShooting(), solver, start=start, second_start=False, max_time=max_time)


METHODS = {
    "single shooting": plain_single_shooting,
    "multiple shooting": "multiple",
    "collocation": "collocation",
    "incremental single": "incremental",
    "incremental multiple": "incremental/multiple",
    "incremental collocation": "incremental/collocation",
}


def compare(benchmark: Benchmark, methods: dict, *, starts: int, **options) -> cf.ComparisonResult:
    """Run methods from random starts of a benchmark."""
    rng = np.random.default_rng(1)
    return cf.compare(
        benchmark.problem,
        methods,
        starts=[benchmark.draw_start(rng) for _ in range(starts)],
        reference=benchmark.reference.objective,
        fit_max_time=30,
        **options,
    )


def draw_course(course: cf.IncrementalResult, optimum: dict[str, float], path: Path) -> None:
    """Plot the estimates with their standard errors on every horizon."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, value in optimum.items():
        horizons = [h.horizon for h in course.horizons]
        estimates = np.array([h.estimates[name] / value for h in course.horizons])
        errors = np.array([h.standard_errors[name] / value for h in course.horizons])
        axes.errorbar(horizons, estimates, np.where(np.isfinite(errors), errors, 0.0), fmt="o-", capsize=3, label=name)
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    axes.set_yscale("symlog", linthresh=2)
    axes.set(xscale="log", ylim=(-1, 200), xlabel="horizon", ylabel="estimate / optimum")
    axes.set_xticks(horizons, [f"{t:g}" for t in horizons], minor=False)
    axes.legend(frameon=False)
    figure.savefig(path)


# Workers import this script, so that what it does stands below this line.
if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Transcriptions from the same random starts.")
    arguments.add_argument("--starts", type=int, default=4, help="starts of each comparison (default: %(default)s)")
    arguments.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    arguments.add_argument("--out", type=Path, help="a folder for pictures; none are written without it")
    chosen = arguments.parse_args()
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)

    print("Table 1.  y'' = mu^2 y - (mu^2 + p^2) sin(p t), starts of p between -500 and 500, the answer is pi.\n")
    print("At mu = 40 an error of p grows by e^40 until the end.  Single shooting cannot see the optimum from there:")
    print("rounding p alone spoils it.  Multiple shooting sees it, but does not find it from so far; collocation may.")
    print("On growing horizons p is nearly known before the errors grow, whatever the transcription.\n")
    unstable = load("notorious", mu=40)
    growing = {name: METHODS[name] for name in ("single shooting", "incremental single", "incremental multiple",
                                                "incremental collocation")}  # fmt: skip
    comparison = compare(unstable, growing, starts=chosen.starts, workers=chosen.workers)
    print(comparison, "\n")
    rate = {row.method: row.success_rate for row in comparison.rows}
    assert rate["single shooting"] == 0
    assert min(rate[name] for name in rate if name.startswith("incremental")) >= 0.95
    assert abs(comparison.best.parameters["p"] - np.pi) < 1e-6

    print("Table 2.  Predator and prey with four rate constants, starts between 0 and 10.\n")
    print("The paper's single shooting found 1 of 100, its incremental single shooting 69: on the way from most starts")
    print("the model explodes.  Careful steps avoid that, and take long.  States that start from the data cannot")
    print("explode, so that multiple shooting and collocation need no growing horizons.\n")
    explosive = load("lotka_volterra_michalik")
    second = compare(explosive, METHODS, starts=chosen.starts, workers=chosen.workers)
    print(second, "\n")
    rate = {row.method: row.success_rate for row in second.rows}
    assert rate["multiple shooting"] == rate["collocation"] == 1
    assert min(rate[name] for name in rate if name.startswith("incremental")) >= 0.95
    assert rate["single shooting"] <= rate["incremental single"]

    print("Table 3.  One start of Table 2, horizon by horizon.  Most iterations are spent where they cost least:\n")
    third = cf.incremental(explosive.problem, start=explosive.starts["table 3"])
    for horizon in third.horizons:
        estimates = "  ".join(f"{name} = {value:.4f}" for name, value in horizon.estimates.items())
        print(f"    t <= {horizon.horizon:<4g} {horizon.iterations:3d} iterations   {estimates}")
    print(f"\n{third.iterations} iterations integrate as far as {third.equivalent_iterations:.1f} on the whole horizon")
    print("would; the paper's 55 as far as 12.35.")
    assert explosive.reference.is_matched(third.result.values)
    assert third.equivalent_iterations <= 12

    comparison.plot(chosen.out and chosen.out / "table1.png")
    second.plot(chosen.out and chosen.out / "table2.png")
    if chosen.out:
        draw_course(third, dict(explosive.reference.parameters), chosen.out / "table3.png")
        print(f"\nThe figures are in {chosen.out}.")
