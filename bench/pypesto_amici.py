# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""What pyPESTO and AMICI make of one PEtab problem, as JSON on standard output.

castfit runs this file with another interpreter, in which these two are installed, and never imports it:

    python pypesto_amici.py PROBLEM.yaml FOLDER STARTS SEED SECONDS CASTFIT

FOLDER is where AMICI puts the compiled model.  Starts are drawn between the bounds and fitted by fides, until these
fits have taken SECONDS of CPU time.  CASTFIT is the folder that holds the package castfit: where what it needs is
installed too, its objective is put into the same problem of pyPESTO, and both are evaluated in turns.
"""

import contextlib
import json
import logging
import os
import sys
import time
import warnings

N_REPEATS = 5  # number of timed evaluations, of which the median counts


def seconds():
    """Return the CPU seconds of this process."""
    return time.process_time()


def timed(act):
    """Return the median CPU milliseconds of a call."""
    took = []
    for _ in range(N_REPEATS):
        began = seconds()
        act()
        took.append(1e3 * (seconds() - began))
    return sorted(took)[N_REPEATS // 2]


def read(path):
    """Return the petab library's problem, of version 1 without tables for plots, whose files are often missing."""
    import petab.v1
    import petab.v2
    import yaml

    with open(path, encoding="utf-8") as file:
        settings = yaml.safe_load(file)
    if str(settings.get("format_version", "")).startswith("2"):
        return petab.v2.Problem.from_yaml(path)
    for each in settings["problems"]:
        each.pop("visualization_files", None)
    return petab.v1.Problem.from_yaml(settings, base_path=os.path.dirname(os.path.abspath(path)))


def accurate(objective, x):
    """Return the value of AMICI and its gradient at the tightest tolerances with which it comes to an end."""
    import numpy as np

    parts = [objective, *getattr(objective, "_objectives", ())]  # several where there are priors
    solver = next(of.amici_solver for of in parts if hasattr(of, "amici_solver"))
    solver.set_max_steps(1_000_000)
    for relative in (1e-12, 1e-11, 1e-10, 1e-9):
        solver.set_relative_tolerance(relative)
        solver.set_absolute_tolerance(1e-3 * relative)
        value, slope = objective(x, sensi_orders=(0, 1))
        if np.isfinite(value) and np.isfinite(slope).all():
            break
    return value, slope


def compare_objectives(importer, problem, nominal, path, home):
    """Evaluate castfit's objective in pyPESTO's problem, in turns with AMICI's; tell why that cannot be done."""
    import numpy as np

    sys.path.append(home)
    try:
        import castfit

        objective = castfit.petab.to_pypesto(path)
        castfit_objective = importer.create_problem(objective=objective).objective
    except Exception as error:  # whatever keeps it from that is told
        return {"trouble": f"{type(error).__name__}: {error}"[:200]}
    amici_objective = problem.objective
    took = {(name, order): [] for name in ("castfit", "amici") for order in (0, 1)}
    failed = 0
    for k in range(2 * N_REPEATS + 1):  # the first one builds what is built once
        for order in (0, 1):
            for name, objective_ in (("castfit", castfit_objective), ("amici", amici_objective)):
                x = nominal + 1e-9 * (2 * k + order + 1)
                began = seconds()
                answer = objective_(x, sensi_orders=(0, 1)[: order + 1])
                spent = 1e3 * (seconds() - began)
                if np.isfinite(answer[0] if order else answer):
                    took[name, order] += [spent] if k else []
                else:
                    failed += name == "amici"  # what ends early takes no time that counts
    median = {key: float(np.median(of)) if of else None for key, of in took.items()}
    comparison = {"value": median["castfit", 0], "gradient": median["castfit", 1]}
    comparison |= {"amici_value": median["amici", 0], "amici_gradient": median["amici", 1], "amici_failed": failed}
    answers = [
        ("", castfit_objective(nominal, sensi_orders=(0, 1))),
        ("amici_", amici_objective(nominal, sensi_orders=(0, 1))),
    ]
    exact, exact_slope = accurate(amici_objective, nominal)
    comparison["nominal"] = float(answers[0][1][0])
    if np.isfinite(exact):
        for objective_, (at, slope) in answers:
            if not np.isfinite(at):
                continue
            comparison[f"{objective_}off"] = float(abs(at - exact) / max(1.0, abs(exact)))
            comparison[f"{objective_}gradient_off"] = float(
                np.abs(slope - exact_slope).max() / max(1.0, np.abs(exact_slope).max())
            )
    return comparison


def measured(path, folder, starts, seed, limit, home):
    """Compile, evaluate at the nominal parameters, and fit."""
    import amici
    import fides  # noqa: F401
    import numpy as np
    import pypesto
    import pypesto.optimize as optimize
    from pypesto.petab import PetabImporter

    answer: dict = {"versions": {"pypesto": pypesto.__version__, "amici": amici.__version__}}
    importer = PetabImporter(read(path), output_folder=folder, model_name="castfit_peer")
    problem = importer.create_problem()
    objective = problem.objective
    petab = importer.petab_problem  # version 2 has no scales
    nominal = petab.x_nominal_free_scaled if hasattr(petab, "x_nominal_free_scaled") else petab.x_nominal_free
    nominal = np.asarray(nominal, dtype=float)
    answer["nominal"] = float(objective(nominal))
    shifted_points = [nominal + 1e-9 * k for k in range(1, N_REPEATS + 1)]
    points = iter(shifted_points)
    answer["value"] = timed(lambda: objective(next(points)))
    points = iter(shifted_points)
    answer["gradient"] = timed(lambda: objective(next(points), sensi_orders=(1,)))
    answer["castfit"] = compare_objectives(importer, problem, nominal, path, home)
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
    answer.update(values=values, seconds=took)
    return answer


if __name__ == "__main__":
    path, folder, starts, seed, limit, home = sys.argv[1:7]
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(sys.stderr):
        told = measured(path, folder, int(starts), int(seed), float(limit), home)
    sys.stdout.write(json.dumps(told))
