"""Let Pyomo.DoE design a run of its own example, the reactor; run by an interpreter that has it, without castfit."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pyomo
import pyomo.environ
from pyomo.contrib.doe import DesignOfExperiments
from pyomo.contrib.doe.examples.reactor_experiment import ReactorExperiment

_KNOWN = {
    "CA0": 5.0, "CB0": 0.0, "CC0": 0.0, "A1": 84.79, "A2": 371.72, "E1": 7.78, "E2": 15.05, "t_range": [0, 1],
    "CA_bounds": [1, 5], "T_bounds": [300, 700], "control_points": {k / 8: 300.0 + 200.0 * (k == 0) for k in range(9)},
}  # fmt: skip


def seconds() -> float:
    """Return CPU seconds of this process and of the solvers that it ran."""
    return sum(os.times()[:4])


def main() -> None:
    """Print the design as JSON."""
    start_seconds = seconds()
    design = DesignOfExperiments(
        ReactorExperiment(data=_KNOWN, nfe=10, ncp=3), fd_formula="central", step=1e-3, objective_option="determinant",
        scale_constant_value=1, scale_nominal_param_value=True, L_diagonal_lower_bound=1e-7, solver=None, tee=False,
    )  # fmt: skip
    design.run_doe()
    took = seconds() - start_seconds
    results = design.results
    value = float(np.linalg.slogdet(np.array(results["FIM"]))[1] / np.log(10))
    first_value, *heat = [float(v) for v in results["Experiment Design"]]
    solver = pyomo.environ.SolverFactory("ipopt")
    ipopt = f"{'.'.join(map(str, solver.version()[:3]))} at {solver.executable()}"
    answer = {"CA0": first_value, "T": heat, "log10 det": value, "seconds": took, "version": pyomo.version.version}
    answer |= {"ipopt": ipopt}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
