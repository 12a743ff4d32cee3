"""A mixed-effects fit that tests kill: a line on standard output per iteration, then it waits for its end."""

from __future__ import annotations

import sys
import time

import numpy as np

import castfit as cf


def run(path, callback=None):
    """Run, or go on where an earlier run was killed."""
    x, k = cf.symbols("x k")
    model = cf.Model({x: -k * x}, parameters=[k], initial={x: 10.0})
    rng, times = np.random.default_rng(6), np.array([0.5, 1.0, 2.0, 4.0])
    rates = 0.3 * np.exp(0.4 * rng.standard_normal(8))
    data = [10.0 * np.exp(-rate * times) + 0.2 * rng.standard_normal(4) for rate in rates]
    animals = [cf.Experiment({"x": values}, times, sigma=cf.unknown()) for values in data]
    problem = cf.Problem(model, animals, parameters={"k": cf.Parameter(0.8, local=True)})
    population = cf.Population({"k": cf.Individual(omega=0.2)})
    return cf.mixed_effects(problem, population, checkpoint=path, resume=path is not None, callback=callback)


def slowly(iteration):
    """Tell of an iteration; the third one takes for ever."""
    print(iteration.iteration, flush=True)  # noqa: T201
    if iteration.iteration == 3:
        time.sleep(600)


if __name__ == "__main__":
    run(sys.argv[1], slowly)
