# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""What pyPESTO and AMICI make of one PEtab problem, as JSON on standard output.

castfit runs this file with another interpreter, in which these two are installed, and never imports it:

    python pypesto_amici.py PROBLEM.yaml FOLDER STARTS SEED SECONDS

FOLDER is where AMICI puts the compiled model.  Starts are drawn between the bounds and fitted by fides, until these
fits have taken SECONDS of CPU time.
"""

import contextlib
import json
import logging
import os
import sys
import time
import warnings

REPEATS = 5


def seconds():
    """Return the CPU seconds of this process."""
    return time.process_time()


def timed(act):
    """Return the median CPU milliseconds of a call."""
    took = []
    for _ in range(REPEATS):
        began = seconds()
        act()
        took.append(1e3 * (seconds() - began))
    return sorted(took)[REPEATS // 2]


def read(path):
    """Return the petab library's problem, of version 1 without tables for plots, whose files are often missing."""
    import petab.v1
    import petab.v2
    import yaml

    with open(path, encoding="utf-8") as file:
        said = yaml.safe_load(file)
    if str(said.get("format_version", "")).startswith("2"):
        return petab.v2.Problem.from_yaml(path)
    for each in said["problems"]:
        each.pop("visualization_files", None)
    return petab.v1.Problem.from_yaml(said, base_path=os.path.dirname(os.path.abspath(path)))


def measured(path, folder, starts, seed, limit):
    """Compile, evaluate at the nominal parameters, and fit."""
    import amici
    import fides  # noqa: F401
    import numpy as np
    import pypesto
    import pypesto.optimize as optimize
    from pypesto.petab import PetabImporter

    found: dict = {"versions": {"pypesto": pypesto.__version__, "amici": amici.__version__}}
    importer = PetabImporter(read(path), output_folder=folder, model_name="castfit_peer")
    problem = importer.create_problem()
    objective = problem.objective
    petab = importer.petab_problem  # version 2 has no scales
    nominal = petab.x_nominal_free_scaled if hasattr(petab, "x_nominal_free_scaled") else petab.x_nominal_free
    nominal = np.asarray(nominal, dtype=float)
    found["nominal"] = float(objective(nominal))
    moved = [nominal + 1e-9 * k for k in range(1, REPEATS + 1)]
    points = iter(moved)
    found["value"] = timed(lambda: objective(next(points)))
    points = iter(moved)
    found["gradient"] = timed(lambda: objective(next(points), sensi_orders=(1,)))
    rng_starts = np.random.default_rng(seed)
    lower, upper = np.asarray(problem.lb), np.asarray(problem.ub)
    values, took = [], []
    optimizer = optimize.FidesOptimizer(verbose=logging.ERROR)
    for k in range(starts):
        if sum(took) >= limit:
            break
        began = seconds()
        x0 = rng_starts.uniform(lower, upper)
        result = optimizer.minimize(problem, x0=x0, id=str(k), history_options=pypesto.HistoryOptions())
        took.append(seconds() - began)
        values.append(float(result.fval) if result.fval is not None and np.isfinite(result.fval) else None)
    found.update(values=values, seconds=took)
    return found


if __name__ == "__main__":
    path, folder, starts, seed, limit = sys.argv[1:6]
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(sys.stderr):
        told = measured(path, folder, int(starts), int(seed), float(limit))
    sys.stdout.write(json.dumps(told))
